"""The state of a log's queues as its checkpoints keep it: msgpack values inside batches of Kind.CHECKPOINT, queue id 0.

    CheckpointBegan, MoveState, QueueState, HoldsState, GroupState, LedgerChunk, VerdictsState, LeasesState, RunState,
    ForwardingState, QueueStartsState, GapsState, ProducerState, CheckpointEnded

Each is an array that begins with a letter: there may be 100,000 of them, and the names of fields would be most of their
bytes. New fields go to the end; those that are not known are ignored, and so are states under letters not known. Like
`queues.changes` they use the ordinary columnar body, one value per state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

import msgspec

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import CONTROL_QUEUE_ID, Buffer, Kind
from mirrorlog.errors import BadBatch
from mirrorlog.queues.changes import DeadLetterTarget


class _State(msgspec.Struct, frozen=True, array_like=True):
    pass


class CheckpointBegan(_State, frozen=True, tag="B"):
    """A checkpoint begins here; what follows it in the log, together with it, gives all of the state.

    `queue_id_max`: the largest queue id that was ever given out, also to a queue that is gone.
    """

    queue_id_max: int


class GovernedState(_State, frozen=True):
    """What policies make of a queue; fields as of `QueueGoverned`."""

    version: int
    policy: str
    operator_policy: str
    arguments: dict[str, Any]


class QueueState(_State, frozen=True, tag="Q"):
    """A queue as of this place in the log. One of many groups comes in several, each with a part of its positions.

    `next_queue_offset`: of the next record appended. `positions`: (log id, epoch, queue offset) by group, the newest
    ones appended. `declared_at`: log offset of its declaration, which may be gone; `used_at`: that of its QueueUsed, -1
    without one. `governed`: None while no policy ever said anything of it. `kept_by_use`: see `QueueDeclared`.
    """

    queue_id: int
    name: str
    incarnation: str
    arguments: dict[str, Any]
    next_queue_offset: int
    positions: dict[str, tuple[str, int, int]]
    declared_at: int
    used_at: int = -1
    governed: GovernedState | None = None
    kept_by_use: bool = False


class MoveState(_State, frozen=True, tag="M"):
    """What a log has to say of a queue that moved, as of this place in the log and before its QueueState. Since
    `versions.PLACEMENTS`, and only where there is such a queue.

    `step`: `left`, `over` (QueueHandedOver), `freed`, `arrived` (and not opened), `came` (from another log, and is
    here, or aside), or `gone`: its id is of another log's block, and it was deleted here. `log_id`: where it goes to,
    or comes from; `queue_offset`: that from which on it is in the newer log, `first`: that from which on it was in this
    one; `epochs`: so much above the log's are those of its grants; `name`: the queue's, as long as it has records here.
    """

    queue_id: int
    step: str
    move: int = 0
    log_id: str = ""
    queue_offset: int = 0
    first: int = 0
    epochs: int = 0
    name: str = ""


class QueueStartsState(_State, frozen=True, tag="L"):
    """Where some queues begin, as `QueueStartsMoved` said; the newest ones appended. Several of them may come.

    `log_start`: the newest LogStartMoved as of this place in the log, 0 without one.
    """

    log_start: int
    begins: dict[int, int]


class GapsState(_State, frozen=True, tag="G"):
    """Which queue offsets of some queues, [first, next), `OffsetsJumped` gave up the last time; two jumps with no
    record between them are one. Several of them may come, behind the states of these queues.

    `former`: those of the losses before that matter still, the oldest first. Software of before neither writes nor
    reads it, and what it tells is right as far as it goes: whoever knows of more gaps keeps them.
    """

    gaps: dict[int, tuple[int, int]]
    former: dict[int, list[tuple[int, int]]] = {}

    def each(self) -> Iterator[tuple[int, tuple[int, int]]]:
        """(queue id, gap) of all of them."""
        for queue_id, former in self.former.items():
            yield from ((queue_id, gap) for gap in former)
        yield from self.gaps.items()


class HoldRow(_State, frozen=True):
    """A hold in a checkpoint; fields as of `HoldSet`. `ended`: why, empty while it holds."""

    name: str
    holder: str
    epoch: int
    queue_offset: int
    lease_ms: int
    location: str
    tiered: bool
    ended: str
    landed_from: int = 0


class HoldsState(_State, frozen=True, tag="H"):
    """A queue's holds as of this place in the log, some of them."""

    queue_id: int
    holds: list[HoldRow]


class GroupState(_State, frozen=True, tag="A"):
    """An acking group of a queue as of this place in the log. Its exceptions come behind it, in `LedgerChunk`s, its
    dead behind these, and its leases at the end. `void`: see `GroupReset`. `known_from`: of what was settled below it,
    nobody knows as what; -1: of nothing that was settled so far, as software before has it."""

    queue_id: int
    group: str
    floor: int
    watermark: int
    void: int = 0
    known_from: int = -1


class LedgerChunk(_State, frozen=True, tag="C"):
    """Records [first, next) of an acking group as of this place in the log: 1,024 from a multiple of that on, or a
    range of any length in which all are settled.

    `settled`: a bit per record, the lowest one first; nothing when all are. `attempts`: a byte per record, nothing when
    none came back. `parked`: (first, next, delay in ms, log offset of the change), `leased`: (first, next, lease),
    counted from this `first`.
    """

    queue_id: int
    group: str
    first: int
    next: int
    settled: bytes = b""
    attempts: bytes = b""
    parked: list[tuple[int, int, int, int]] = []
    leased: list[tuple[int, int, int]] = []


class VerdictsState(_State, frozen=True, tag="V"):
    """Which of the settled records [first, next) of an acking group died, as of this place in the log; `known_from`: as
    of `GroupState`, by now. `dead`: runs, ascending; of each where it begins, counted from the end of the one before,
    the first one from `first`, and how long it is."""

    queue_id: int
    group: str
    first: int
    next: int
    known_from: int
    dead: list[int] = []


class LeasesState(_State, frozen=True, tag="S"):
    """Leases of an acking group, some of them, as of this place in the log, by number: (holder, how long in ms, log
    offset of the change with which it began)."""

    queue_id: int
    group: str
    leases: dict[int, tuple[str, int, int]]


class RunState(_State, frozen=True, tag="R"):
    """Which records of a queue have a priority, a time to live or a delay, as of this place in the log, some of them.

    `runs`: 7 numbers for each, ascending and disjoint: first queue offset, number of records, priority, ttl in ms + 1
    or 0 for none, delay in ms, append time of the last of its batches in µs UTC, and how long before it the first was.
    """

    queue_id: int
    runs: list[int]


class ForwardingRow(_State, frozen=True):
    """A forwarding in a checkpoint; fields as of `ForwardingStarted`. `way`: exchange and routing key, by their place
    among the `ways` of the state that it is in."""

    departure: int
    group: str
    reason: str
    at_us: int
    way: int


class PieceRow(_State, frozen=True):
    """The piece that leaves, in a checkpoint; fields as of `Addressed`."""

    departure: int
    ranges: list[int]
    targets: list[DeadLetterTarget]
    kept: list[int]
    more: str = ""


class ForwardingState(_State, frozen=True, tag="D"):
    """What leaves a queue for others as of this place in the log, all of it. `next_forwarding`: no number from there on
    was used; `epoch_floor`: the lowest producer epoch of a queue that is none of `sequences`; `ways`: exchanges and
    routing keys of forwardings, each pair once. `sequences`: (producer epoch, next sequence) by the id of the queue
    that records left for."""

    queue_id: int
    next_forwarding: int
    epoch_floor: int
    ways: list[tuple[str, str | None]]
    forwardings: list[ForwardingRow]
    piece: PieceRow | None
    sequences: dict[int, tuple[int, int]]


class ProducerState(_State, frozen=True, tag="P"):
    """A producer in a queue as of this place in the log.

    `last_append_time_us`: of its last batch. `landed`: its newest batches by sequence, oldest first: CRC, record
    count, log offset, base queue offset, next log offset, epoch, which is 2^32 higher of a batch that was refused.
    """

    producer_id: int
    queue_id: int
    producer_epoch: int
    next_sequence: int
    last_append_time_us: int
    landed: dict[int, tuple[int, int, int, int, int, int]]


class CheckpointEnded(_State, frozen=True, tag="E"):
    """The checkpoint that began at the log offset `began_at` is complete.

    `producer_epoch_floor`: where producers that are not known begin; see `queues.producers`.
    """

    began_at: int
    producer_epoch_floor: int


State = (
    CheckpointBegan
    | MoveState
    | QueueState
    | HoldsState
    | GroupState
    | LedgerChunk
    | VerdictsState
    | LeasesState
    | QueueStartsState
    | GapsState
    | RunState
    | ForwardingState
    | ProducerState
    | CheckpointEnded
)


_ENCODER: Final = msgspec.msgpack.Encoder()
_STATE_DECODER: Final = msgspec.msgpack.Decoder(State)

_STATE_TAG_DECODER: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])

_KNOWN_STATES: Final = frozenset(_ENCODER.encode(kind.__struct_config__.tag) for kind in get_args(State))


def encode_state(state: State) -> bytes:
    """One value of a checkpoint."""
    return _ENCODER.encode(state)


def encode_checkpoint(values: Sequence[bytes]) -> bytearray:
    """A checkpoint batch of values as `encode_state` gives them, ready to be appended."""
    return encode_batch([Record(value) for value in values], queue_id=CONTROL_QUEUE_ID, kind=Kind.CHECKPOINT)


def decode_checkpoint(batch: Buffer) -> list[State]:
    """The states in a checkpoint batch; those of a newer software are left out.

    Raises BadBatch for one that is known and does not fit.
    """
    values = parse_batch_body(batch).values
    try:
        states = [_decode_state(values[index] or b"") for index in range(len(values))]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBatch(f"a checkpoint that does not fit: {error}") from None
    return [state for state in states if state is not None]


def _decode_state(value: bytes | memoryview) -> State | None:
    try:
        state: State = _STATE_DECODER.decode(value)
    except msgspec.ValidationError:
        parts = _STATE_TAG_DECODER.decode(value)
        if not parts or bytes(parts[0]) in _KNOWN_STATES:
            raise
        return None
    return state
