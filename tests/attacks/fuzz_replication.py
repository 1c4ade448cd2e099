"""The replication port, as somebody who is no node: greetings, proofs, pulls, heartbeats and Raft, nearly right."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from uuid import UUID

import msgspec

from mirrorlog.cluster.requests import AskApplied, AskFence, AskLooking, AskState, encode
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages.codec import encode as encode_message
from mirrorlog.wire.messages.handshake import Hello
from tests.attacks.fuzz import at_ports, mutated
from tests.attacks.target import Target

_LOG = str(UUID(int=7))


def attack(target: Target, seconds: float, random: Random) -> int:
    """Whether there is a secret or not: nothing that comes without one may end or depose a node."""
    return at_ports(target, target.replication, seconds, random, _said, tls=False)


def _said(random: Random) -> Sequence[bytes]:
    hello = Hello(
        version_min=1,
        version_max=1,
        role=random.choice(["mirror", "member", "joiner", "client"]),
        # Never one of the cluster's own: without a secret nobody keeps others from being believed to be them.
        node_id=random.choice(["stranger", "x" * 300, "n\u202e"]),
        start_id=random.choice(["a" * 32, "", "b"]),
    )
    greeting = frame(FrameType.HELLO, encode_message(hello))
    if random.random() < 0.3:
        return [mutated(random, greeting)]
    return [greeting, *(_frame(random, number) for number in range(random.randint(1, 8)))]


def _frame(random: Random, number: int) -> bytes:
    questions = [
        AskLooking(),
        AskApplied(index=random.choice((0, 2**63 - 1))),
        AskState(node="n1", index=0),
        AskFence(log_id=_LOG, epoch=2**31, start_id="s"),
    ]
    payloads = [
        (FrameType.ASK, encode(random.choice(questions))),
        (FrameType.BEAT, b""),
        (FrameType.RAFT, msgspec.msgpack.encode({"type": "Append", "term": 2**40, "entries": []})),
        (FrameType.PROOF, random.randbytes(32)),
        (FrameType.ACK, random.randbytes(24)),
        (FrameType.FOLLOW, encode_message(Hello(version_min=1, version_max=1, role="mirror"))),
        (FrameType.PULL, random.randbytes(16)),
    ]
    kind, payload = random.choice(payloads)
    whole = frame(kind, mutated(random, payload) if random.random() < 0.5 else payload, number)
    return mutated(random, whole) if random.random() < 0.3 else whole
