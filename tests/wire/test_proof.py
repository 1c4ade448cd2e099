"""Nodes prove the cluster's secret: what is believed, and every forgery that is not. No sockets: frames only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mirrorlog.errors import MirrorlogError, NotProven, ProtocolError
from mirrorlog.wire.auth.proof import (
    METHOD,
    AcceptedGreeting,
    DialledGreeting,
    check_certificate,
    mac_accepted,
    mac_dialled,
)
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import HELLO_BYTES_MAX, Frame, FrameType, frame
from mirrorlog.wire.messages.codec import decode, encode
from mirrorlog.wire.messages.handshake import Challenge, Hello, NodeLimits, Proof, Welcome

SECRET = b"correct horse battery staple"
HELLO = Hello(version_min=1, version_max=1, role="member", cluster_id="c", node_id="n2", start_id="s2")
WELCOME = Welcome(
    version=1,
    cluster_id="c",
    cluster_name="name",
    node_id="n1",
    start_id="s1",
    limits=NodeLimits(max_record_bytes=1, max_batch_bytes=1),
)
DIALLED, ACCEPTED, OTHER = (bytes([number]) * 32 for number in (1, 2, 3))


def as_frame(data: bytes) -> Frame:
    """What the other side takes out of its socket."""
    reader = FrameReader(frame_bytes_max=HELLO_BYTES_MAX)
    reader.room()[: len(data)] = data
    reader.received(len(data))
    found = reader.next_frame()
    assert found is not None
    return found._replace(payload=memoryview(bytes(found.payload)))


def dialling(hello: Hello = HELLO, *, secret: bytes | None = SECRET, nonce: bytes = DIALLED) -> DialledGreeting:
    return DialledGreeting(hello, secret=secret, nonce=nonce)


def accepting(
    hello: Hello | None = None, *, secret: bytes | None = SECRET, nonce: bytes = ACCEPTED
) -> AcceptedGreeting:
    """Has heard the HELLO of a side with the secret, unless another one is given."""
    return AcceptedGreeting(hello or dialling().hello, secret=secret, nonce=nonce)


def challenge_of(side: AcceptedGreeting) -> Frame:
    assert side.challenge is not None
    return as_frame(side.challenge)


def proof_of(side: DialledGreeting, challenge: Frame) -> Frame:
    answer = side.received(challenge)
    assert isinstance(answer, bytes)
    return as_frame(answer)


def welcome_frame(welcome: Welcome) -> Frame:
    return as_frame(frame(FrameType.WELCOME, encode(welcome)))


def proof_frame(mac: bytes, *, nonce: bytes = DIALLED) -> Frame:
    return as_frame(frame(FrameType.PROOF, encode(Proof(nonce=nonce, mac=mac))))


def refused(call: Callable[[], object], match: str = ".") -> MirrorlogError:
    with pytest.raises(NotProven, match=match) as caught:
        call()
    assert SECRET.decode() not in str(caught.value)
    return caught.value


# --- What is believed -------------------------------------------------------------------------------------------------


def test_two_sides_with_the_secret_believe_each_other_and_do_not_send_it() -> None:
    """Greet through the codec, and look for the secret in all that was sent."""
    dials = dialling()
    accepts = AcceptedGreeting(dials.hello, secret=SECRET, nonce=ACCEPTED)
    challenge = challenge_of(accepts)
    proof = proof_of(dials, challenge)
    accepts.proven(proof)
    welcome = accepts.sealed(WELCOME)
    assert dials.received(welcome_frame(welcome)) == welcome
    sent = encode(dials.hello) + bytes(challenge.payload) + bytes(proof.payload) + encode(welcome)
    assert SECRET not in sent


def test_without_a_secret_the_greeting_is_the_former_one() -> None:
    """Neither side has one: HELLO and WELCOME are the bytes that they are without any of this."""
    dials = dialling(secret=None)
    assert encode(dials.hello) == encode(HELLO)
    accepts = AcceptedGreeting(HELLO)
    assert accepts.challenge is None
    assert accepts.sealed(WELCOME) is WELCOME
    assert dials.received(welcome_frame(WELCOME)) == WELCOME


# --- Sides that do not fit --------------------------------------------------------------------------------------------


def test_a_side_without_the_secret_is_refused_by_one_that_has_it() -> None:
    """Dial without it, and with it to one that has none; both are told which setting to set."""
    refused(lambda: accepting(HELLO), "set the same cluster.secret on all nodes")
    refused(lambda: AcceptedGreeting(dialling().hello), "set the same cluster.secret on all nodes")


def test_who_dialled_without_the_secret_does_not_answer_a_challenge() -> None:
    """A node that asks all the same, though nothing was offered."""
    refused(lambda: dialling(secret=None).received(challenge_of(accepting())), r"set cluster\.secret")


def test_a_welcome_without_a_proof_is_not_believed() -> None:
    """Of one that never asked, of one that asked and proves nothing, and with a MAC but without a challenge."""
    refused(lambda: dialling().received(welcome_frame(WELCOME)), r"set the same cluster\.secret")
    dials = dialling()
    proof_of(dials, challenge_of(accepting()))
    refused(lambda: dials.received(welcome_frame(WELCOME)))
    sealed = msgspec.structs.replace(WELCOME, credential=mac_accepted(SECRET, HELLO, b"", DIALLED, WELCOME))
    refused(lambda: dialling().received(welcome_frame(sealed)))


def test_another_secret_proves_nothing_to_either_side() -> None:
    """One side has a secret that differs in its last byte."""
    wrong = SECRET[:-1] + b"x"
    accepts = accepting()
    refused(lambda: accepts.proven(proof_of(dialling(secret=wrong), challenge_of(accepts))), "another cluster.secret")
    dials = dialling()
    proof = decode(proof_of(dials, challenge_of(accepts)).payload)
    assert isinstance(proof, Proof)
    forged = mac_accepted(wrong, dials.hello, ACCEPTED, proof.nonce, WELCOME)
    refused(lambda: dials.received(welcome_frame(msgspec.structs.replace(WELCOME, credential=forged))))


def test_a_way_to_prove_that_is_not_known_is_refused() -> None:
    """A newer node offers another method."""
    refused(lambda: accepting(msgspec.structs.replace(HELLO, credential=b"newer")), "update it")


# --- Forgeries by one who has heard a greeting, or takes part in another one ------------------------------------------


def test_a_proof_that_was_heard_before_is_refused() -> None:
    """Replay it to the same node's next connection: the nonce is another one."""
    heard = proof_of(dialling(), challenge_of(accepting()))
    accepting().proven(heard)
    refused(lambda: accepting(nonce=OTHER).proven(heard))


def test_a_welcome_that_was_heard_before_is_refused() -> None:
    """Replay it, and the challenge before it, to the next connection of the same node."""
    accepts, dials = accepting(), dialling()
    challenge = challenge_of(accepts)
    accepts.proven(proof_of(dials, challenge))
    heard = welcome_frame(accepts.sealed(WELCOME))
    dials.received(heard)
    again = dialling(nonce=OTHER)
    proof_of(again, challenge)
    refused(lambda: again.received(heard))


def test_a_proof_is_not_turned_back_on_who_made_it() -> None:
    """Who has no secret challenges with the nonce that it was challenged with, and sends the answer back, as a proof
    and as that of a welcome."""
    victim = accepting()
    challenge = challenge_of(victim)
    proof = decode(proof_of(dialling(), challenge).payload)
    assert isinstance(proof, Proof)
    dials = dialling()
    proof_of(dials, challenge)
    refused(lambda: dials.received(welcome_frame(msgspec.structs.replace(WELCOME, credential=proof.mac))))
    accepted = mac_accepted(SECRET, dialling().hello, ACCEPTED, DIALLED, WELCOME)
    refused(lambda: victim.proven(proof_frame(accepted)))


def test_the_nonces_do_not_change_places() -> None:
    """A MAC over the same two nonces in the other order."""
    swapped = mac_dialled(SECRET, dialling().hello, DIALLED, ACCEPTED)
    refused(lambda: accepting().proven(proof_frame(swapped)))


@pytest.mark.parametrize(
    "other",
    [
        {"role": "mirror"}, {"role": "joiner"}, {"node_id": "n3"}, {"start_id": "s3"}, {"cluster_id": "d"},
        {"version_max": 2}, {"node_id": "n", "start_id": "2s2"},
    ],
    ids=str,
)  # fmt: skip
def test_a_proof_is_for_what_hello_said_and_for_nothing_else(other: dict[str, Any]) -> None:
    """Take the proof of one greeting for another role, node, start, cluster or version, also when the fields joined
    are the same text."""
    said = dialling().hello
    mac = mac_dialled(SECRET, said, ACCEPTED, DIALLED)
    accepting(said).proven(proof_frame(mac))
    refused(lambda: accepting(msgspec.structs.replace(said, **other)).proven(proof_frame(mac)))


@pytest.mark.parametrize(
    "other",
    [
        {"node_id": "n3"}, {"start_id": "s3"}, {"cluster_id": "d"}, {"cluster_name": "x"}, {"version": 2},
        {"incarnation": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_welcome_is_not_changed_on_its_way(other: dict[str, Any]) -> None:
    """Change what it says and keep its proof."""
    accepts, dials = accepting(), dialling()
    accepts.proven(proof_of(dials, challenge_of(accepts)))
    changed = msgspec.structs.replace(accepts.sealed(WELCOME), **other)
    refused(lambda: dials.received(welcome_frame(changed)))


@pytest.mark.parametrize("length", [0, 1, 31, 33])
def test_a_part_of_a_proof_is_none(length: int) -> None:
    """Cut or lengthen the MAC on both sides."""
    accepts, dials = accepting(), dialling()
    mac = mac_dialled(SECRET, dials.hello, ACCEPTED, DIALLED)
    refused(lambda: accepting().proven(proof_frame((mac + b"\0")[:length])))
    accepts.proven(proof_of(dials, challenge_of(accepts)))
    sealed = accepts.sealed(WELCOME)
    assert sealed.credential is not None
    cut = msgspec.structs.replace(sealed, credential=(sealed.credential + b"\0")[:length])
    refused(lambda: dials.received(welcome_frame(cut)))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_nonce_has_its_length(length: int) -> None:
    """A shorter or longer one of either side, with the MAC that belongs to it."""
    nonce = b"\1" * length
    asked = as_frame(frame(FrameType.CHALLENGE, encode(Challenge(nonce=nonce))))
    refused(lambda: dialling().received(asked), f"{length} bytes")
    mac = mac_dialled(SECRET, dialling().hello, ACCEPTED, nonce)
    refused(lambda: accepting().proven(proof_frame(mac, nonce=nonce)), f"{length} bytes")


def test_one_challenge_is_answered() -> None:
    """A second one is out of order: nobody collects answers."""
    dials = dialling()
    proof_of(dials, challenge_of(accepting()))
    with pytest.raises(ProtocolError):
        dials.received(challenge_of(accepting(nonce=OTHER)))


def test_something_else_than_a_proof_is_refused() -> None:
    """HELLO again, where PROOF is due."""
    with pytest.raises(ProtocolError):
        accepting().proven(as_frame(frame(FrameType.HELLO, encode(dialling().hello))))


def test_the_method_is_what_hello_carries() -> None:
    """The credential names the method and holds nothing of the secret."""
    assert dialling().hello.credential == METHOD
    assert dialling(secret=b"another secret of a cluster").hello == dialling().hello


# --- Certificates -----------------------------------------------------------------------------------------------------


def certificate(common: str | None, *names: str) -> dict[str, Any]:
    """As `ssl` gives it."""
    subject = ((("organizationName", "o"),), *(() if common is None else ((("commonName", common),),)))
    return {"subject": subject, "subjectAltName": tuple(("DNS", name) for name in names)}


@pytest.mark.parametrize(
    "shown",
    [None, certificate(None), certificate(None, "db1"), certificate("n2"), certificate("db1", "db1", "n2")],
    ids=str,
)
def test_a_node_has_a_certificate_that_may_be_its_own(shown: dict[str, Any] | None) -> None:
    """No TLS, no common name, its id as common name, its id as a DNS name."""
    check_certificate(shown, "n2")


@pytest.mark.parametrize(
    "shown", [certificate("n3"), certificate("db1", "db1"), certificate("n", "n22"), certificate("")], ids=str
)
def test_another_node_s_certificate_is_refused(shown: dict[str, Any]) -> None:
    """A common name that is another one; a welcome under it is not believed either."""
    refused(lambda: check_certificate(shown, "n2"), "its id as common name")
    dials = DialledGreeting(HELLO, certificate=shown)
    refused(lambda: dials.received(welcome_frame(WELCOME)))


# --- Checked frames ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("secret", [None, SECRET])
def test_two_sides_that_can_check_frames_agree_on_it(secret: bytes | None) -> None:
    """Greet with and without a secret: who dials switches at the welcome, once, and who accepts may behind it."""
    switched: list[bool] = []
    dials = DialledGreeting(HELLO, secret=secret, nonce=DIALLED, check_frames=lambda: switched.append(True))
    accepts = AcceptedGreeting(dials.hello, secret=secret, nonce=ACCEPTED)
    if secret is not None:
        accepts.proven(proof_of(dials, challenge_of(accepts)))
    assert accepts.checked
    assert not switched
    dials.received(welcome_frame(accepts.sealed(WELCOME)))
    assert switched == [True]


def test_a_side_of_before_has_nothing_checked() -> None:
    """Dial without a check, and be welcomed without one, as software of before does: both go on as they were."""
    assert not AcceptedGreeting(HELLO).checked
    dials = DialledGreeting(HELLO, check_frames=lambda: pytest.fail("the other side does not know of it"))
    assert dials.received(welcome_frame(WELCOME)) == WELCOME


@pytest.mark.parametrize("field", ["node_id", "start_id", "incarnation", "runs", "cluster_id", "role", "check"])
def test_a_greeting_that_was_changed_on_its_way_is_refused(field: str) -> None:
    """Change a field of HELLO behind its check: a node is not taken for another one, nor for another run."""
    values = {"incarnation": 7, "runs": ("r",), "check": 1}
    hello = DialledGreeting(HELLO, check_frames=lambda: None).hello
    changed = msgspec.structs.replace(hello, **{field: values.get(field, "other")})
    with pytest.raises(ProtocolError, match="changed on its way"):
        AcceptedGreeting(changed)


@pytest.mark.parametrize("field", ["node_id", "start_id", "incarnation", "runs", "cluster_name", "check"])
def test_a_welcome_that_was_changed_on_its_way_is_refused(field: str) -> None:
    """Likewise, the other way round."""
    values = {"incarnation": 7, "runs": ("r",), "check": 1}
    dials = DialledGreeting(HELLO, check_frames=lambda: None)
    welcome = AcceptedGreeting(dials.hello).sealed(WELCOME)
    changed = msgspec.structs.replace(welcome, **{field: values.get(field, "other")})
    with pytest.raises(ProtocolError, match="changed on its way"):
        dials.received(welcome_frame(changed))
