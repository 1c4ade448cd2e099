"""The client port, with every kind of frame nearly as it should be: before a greeting, behind one, and logged in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns
from mirrorlog.commitlog.format.header import Codec
from mirrorlog.wire.frames import FETCH, PRODUCE, SETTLE, SETTLE_RANGE, FrameType, Level, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.groups import Lease, Subscribe
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.queues import CommitPosition, DeclareQueue, GetMetadata, Position
from mirrorlog.wire.messages.topology import Login
from mirrorlog.wire.transaction_frames import transact_payload
from tests.attacks.fuzz import at_ports, mutated
from tests.attacks.target import Target

HELLO = frame(FrameType.HELLO, encode(Hello(version_min=1, version_max=1, role="client")))
_QUEUE_IDS = (0, 1, 2, 2**16, 2**32 - 1)


def attack(target: Target, seconds: float, random: Random) -> int:
    """Sound frames are mutated whole, or in their payload alone, which gets them past the first look."""
    return at_ports(target, target.client, seconds, random, partial(_said, target), tls=True)


def _said(target: Target, random: Random) -> Sequence[bytes]:
    if random.random() < 0.2:
        return [mutated(random, HELLO)]
    said = [HELLO]
    if target.user and random.random() < 0.8:
        said.append(_request(1, Login(user=target.user, password=target.password)))
    said += [_frame(target, random, number) for number in range(2, 2 + random.randint(1, 12))]
    return said


def _request(number: int, message: object) -> bytes:
    return frame(FrameType.REQUEST, encode(message), number)  # type: ignore[arg-type]


def _frame(target: Target, random: Random, number: int) -> bytes:
    kind, payload = random.choice(_sound(target, random))
    how = random.random()
    if how < 0.1:
        kind = random.choice(list(FrameType))
    if how < 0.5:
        payload = mutated(random, payload)
    whole = frame(kind, payload, number)
    return mutated(random, whole) if how > 0.8 else whole


def _sound(target: Target, random: Random) -> list[tuple[FrameType, bytes]]:
    queue_id, queue = random.choice(_QUEUE_IDS), random.choice(target.queues or ("q",))
    codec = random.choice(list(Codec))
    draft = compress_draft(draft_columns([bytes(random.randrange(2_000)) for _ in range(random.randint(1, 20))]), codec)
    batch = bytes(draft.seal(queue_id=queue_id, producer_id=random.getrandbits(40), sequence=random.choice((0, 0, 9))))
    settle = SETTLE.pack(1, 1, 0, int(Level.ALL), 0, 0, 1, 0) + SETTLE_RANGE.pack(0, random.choice((1, 2**63)))
    messages = [
        DeclareQueue(name=queue),
        GetMetadata(queues=[queue]),
        CommitPosition(queue=queue, group="s", position=Position(log_id="l", epoch=1, queue_offset=0)),
        Subscribe(queue=queue, group="g", prefetch_records=10),
        Lease(queue=queue, group="g", records_max=1, lease_ms=1000, wait_ms=0, holder="h"),
    ]
    return [
        (FrameType.PRODUCE, PRODUCE.pack(Level.ALL, 0, 0, 0) + batch),
        (FrameType.TRANSACT, transact_payload([], [batch], level=Level.ALL, durability=0, deadline_ms=0)),
        (FrameType.FETCH, FETCH.pack(queue_id, 0, 0, 1 << 20, 0)),
        (FrameType.SETTLE, settle),
        (FrameType.PING, b""),
        *((FrameType.REQUEST, encode(message)) for message in messages),
    ]
