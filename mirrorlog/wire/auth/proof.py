"""Two nodes prove to each other that they know the cluster's secret, without sending it, and that they are who they say
they are, as far as their certificates tell. Pure.

    dials                                                   accepts
    HELLO      role, node, start, cluster; credential: the method's name
                                                            CHALLENGE   a nonce
    PROOF      a nonce of its own; MAC "dialled"
                                                            WELCOME     credential: MAC "accepted"

A MAC is HMAC-SHA-256 with the secret as its key, over both nonces, what HELLO said (versions, role, node id, start id,
cluster id), and, on the accepting side, what WELCOME says. So what was heard once proves nothing on another connection,
for another role or node, or the other way round. Who accepts proves nothing before the other side has: a stranger gets
nothing to try guesses on.

What follows the greeting is not bound to it: whoever can change bytes on their way needs to be kept out by TLS.
Rejected: the nonce of who dials in HELLO, which saves nothing and makes every greeting another one; MACs by the secret
over passwords' derivations (the secret is random bytes, not a password; its least length is checked).

With TLS nodes trust whoever has a certificate of the cluster's authority, not names of hosts: addresses change, and the
node id is what counts. A certificate with a common name stands for one node: its id is that name, or one of its DNS
names. One without a common name may be any node's.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import NotProven, ProtocolError
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.messages.codec import encode, expect_message
from mirrorlog.wire.messages.handshake import Challenge, Hello, Proof, Welcome

METHOD: Final = b"hmac-sha-256"
NONCE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 1024

_LABEL: Final = b"mirrorlog cluster secret 1"


def mac_dialled(secret: bytes, hello: Hello, challenge: bytes, nonce: bytes) -> bytes:
    """What the side that dialled sends. `challenge`: the nonce of who accepted, `nonce`: its own."""
    return _mac(secret, b"dialled", challenge, nonce, *_said(hello))


def mac_accepted(secret: bytes, hello: Hello, challenge: bytes, nonce: bytes, welcome: Welcome) -> bytes:
    """What the side that accepted sends, with a greeting that it makes good for."""
    return _mac(secret, b"accepted", challenge, nonce, *_said(hello), *_told(welcome))


def hello_check(hello: Hello) -> int:
    """What HELLO.check is: there is no agreement yet on checked frames. Whoever changes bytes on purpose is no matter
    of it. Over these fields for good, so that nodes of different software agree."""
    said = (*_said(hello), hello.credential, hello.incarnation, hello.runs)
    return crc32c(msgspec.msgpack.encode(said))


def welcome_check(welcome: Welcome) -> int:
    """What WELCOME.check is, likewise."""
    return crc32c(msgspec.msgpack.encode((*_told(welcome), welcome.credential, welcome.runs)))


class DialledGreeting:
    """The side that dialled, until it is welcome. `nonce`: fresh; without a secret nothing is proven or asked for.
    `certificate`: of the other side, as for `check_certificate`. `check_frames`: called once that is agreed; None: this
    side cannot."""

    def __init__(
        self,
        hello: Hello,
        *,
        secret: bytes | None = None,
        nonce: bytes = b"",
        certificate: Mapping[str, Any] | None = None,
        check_frames: Callable[[], None] | None = None,
    ) -> None:
        hello = hello if secret is None else msgspec.structs.replace(hello, credential=METHOD)
        self.hello = hello if check_frames is None else msgspec.structs.replace(hello, check=hello_check(hello))
        """What is sent first."""
        self._check_frames = check_frames
        self._secret = secret
        self._nonce = nonce
        self._certificate = certificate
        self._challenge: bytes | None = None

    def received(self, frame_: Frame) -> Welcome | bytes:
        """The welcome, believed; or a frame to be sent, after which there is more to come. Raises NotProven or
        ProtocolError."""
        if frame_.type == FrameType.CHALLENGE and self._challenge is None:
            return self._prove(expect_message(frame_, FrameType.CHALLENGE, Challenge).nonce)
        welcome = expect_message(frame_, FrameType.WELCOME, Welcome)
        # Let go of: it is the connection's, which would not die with its end.
        check_frames, self._check_frames = self._check_frames, None
        if welcome.check is not None and check_frames is not None:
            check_frames()
            if welcome.check != welcome_check(welcome):
                raise ProtocolError("the welcome does not match its check: it was changed on its way")
        if self._secret is not None:
            self._check(self._secret, welcome)
        check_certificate(self._certificate, welcome.node_id)
        return welcome

    def _prove(self, challenge: bytes) -> bytes:
        if self._secret is None:
            raise NotProven("the other node asks for the cluster's secret, and none is set here: set cluster.secret")
        _check_nonce(challenge)
        self._challenge = challenge
        mac = mac_dialled(self._secret, self.hello, challenge, self._nonce)
        return frame(FrameType.PROOF, encode(Proof(nonce=self._nonce, mac=mac)))

    def _check(self, secret: bytes, welcome: Welcome) -> None:
        if self._challenge is None or welcome.credential is None:
            raise NotProven(
                f"node {welcome.node_id:.128} does not prove the cluster's secret, and one is set here; set the same "
                "cluster.secret on all nodes"
            )
        if not hmac.compare_digest(
            mac_accepted(secret, self.hello, self._challenge, self._nonce, welcome), welcome.credential
        ):
            raise NotProven(f"node {welcome.node_id:.128} has not proven the cluster's secret")


class AcceptedGreeting:
    """The side that accepted, once it has heard HELLO. Raises NotProven when only one of both has a secret, and
    ProtocolError for a HELLO that was changed on its way.

    `also`: other secrets that are taken, while the nodes change theirs; who proves one is answered by it.
    `nonce`: fresh. `challenge`: the frame to be answered by a proof; None when nothing is asked for.
    """

    def __init__(
        self, hello: Hello, *, secret: bytes | None = None, also: Sequence[bytes] = (), nonce: bytes = b""
    ) -> None:
        if hello.check is not None and hello.check != hello_check(hello):
            raise ProtocolError("the greeting does not match its check: it was changed on its way")
        if (secret is None) != (hello.credential is None):
            which = "the node that was dialled has" if secret is not None else "that node has"
            other = "has not" if secret is not None else "the one that was dialled has not"
            raise NotProven(
                f"only one side has the cluster's secret: {which} one, {other} (dialled by node "
                f"{hello.node_id or '?':.128}); set the same cluster.secret on all nodes"
            )
        if secret is not None and hello.credential != METHOD:
            raise NotProven("the other node proves the cluster's secret in a way that is not known here; update it")
        self.hello = hello
        self.challenge = None if secret is None else frame(FrameType.CHALLENGE, encode(Challenge(nonce=nonce)))
        self._secret = secret
        self._taken = (secret, *also) if secret is not None else ()
        self._nonce = nonce
        self._theirs: bytes | None = None

    def proven(self, frame_: Frame) -> None:
        """Take the answer to the challenge. Raises NotProven or ProtocolError."""
        assert self._secret is not None
        proof = expect_message(frame_, FrameType.PROOF, Proof)
        _check_nonce(proof.nonce)
        for secret in self._taken:
            if hmac.compare_digest(mac_dialled(secret, self.hello, self._nonce, proof.nonce), proof.mac):
                self._secret, self._theirs = secret, proof.nonce
                return
        raise NotProven(
            f"node {self.hello.node_id or '?':.128} has another cluster.secret than the node that it dialled; set "
            "the same on all nodes"
        )

    def sealed(self, welcome: Welcome) -> Welcome:
        """The welcome with the proof of this side, if one is due. Only after `proven`."""
        if self._secret is not None:
            assert self._theirs is not None
            mac = mac_accepted(self._secret, self.hello, self._nonce, self._theirs, welcome)
            welcome = msgspec.structs.replace(welcome, credential=mac)
        if not self.checked:
            return welcome
        return msgspec.structs.replace(welcome, check=welcome_check(welcome))

    @property
    def checked(self) -> bool:
        """Whether the welcome agrees that all frames behind it are checked."""
        return self.hello.check is not None


def check_certificate(certificate: Mapping[str, Any] | None, node_id: str) -> None:
    """Whether a node may call itself so. `certificate`: as `ssl` gives that of the other side; None without TLS, which
    is no matter of this. Raises NotProven."""
    if certificate is None:
        return
    common = [value for parts in certificate.get("subject", ()) for name, value in parts if name == "commonName"]
    if not common:
        return
    names = [*common, *(value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")]
    if node_id not in names:
        raise NotProven(
            f"node {node_id:.128} shows a certificate of {', '.join(names):.256}; give it one with its id as common "
            "name or as a DNS name"
        )


def _said(hello: Hello) -> tuple[str, ...]:
    return (
        str(hello.version_min), str(hello.version_max), hello.role, hello.node_id or "", hello.start_id or "",
        hello.cluster_id or "",
    )  # fmt: skip


def _told(welcome: Welcome) -> tuple[str, ...]:
    return (
        str(welcome.version), welcome.cluster_id, welcome.cluster_name, welcome.node_id, welcome.start_id,
        str(welcome.incarnation),
    )  # fmt: skip


def _mac(secret: bytes, side: bytes, *fields: bytes | str) -> bytes:
    """Each field with its length before it: no two lists of fields give the same bytes."""
    mac = hmac.new(secret, digestmod="sha256")
    for field in (_LABEL, side, *fields):
        data = field.encode() if isinstance(field, str) else field
        mac.update(len(data).to_bytes(4, "little"))
        mac.update(data)
    return mac.digest()


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise NotProven(f"a nonce of {len(nonce)} bytes where {NONCE_BYTES} were due")
