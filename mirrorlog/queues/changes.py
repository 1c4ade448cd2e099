"""Changes to queues, as the log keeps them: msgpack values inside control and queue-state batches.

    CONTROL      queue id 0   EpochStarted, QueueDeclared, QueueDeleted, QueueAltered, QueueGoverned,
                              LogStartMoved, QueueStartsMoved, OffsetsJumped,
                              QueueLeft, QueueReturned, QueueHandedOver,
                              QueueArriving, QueueArrived, QueueOpened, ArrivalDropped, SpanCopied
    QUEUE_STATE  the queue's  PositionCommitted, HoldSet, HoldEnded, Settled, Returned, Watermark, RecordsLeased,
                              GroupReset, GroupDeleted, QueueUsed, ForwardingStarted, Addressed, PieceForwarded

They use the ordinary columnar body (one value per change), so every tool that reads batches reads them too, and they
are replicated, confirmed, recovered and truncated like records. A change is a map with the names of its fields; unknown
fields are ignored, so fields can be added. What a checkpoint says of all of them stands in `checkpoint_states`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, get_args

import msgspec

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import CONTROL_QUEUE_ID, Buffer, Kind
from mirrorlog.errors import BadBatch

RANGES_PER_CHANGE: Final = 3000
"""Of 18 bytes each, at most: the smallest batch that nodes can be told to allow, 64 KiB, takes a change with so
many."""

SETTLED_WHYS: Final = ("acked", "dead", "limit", "expired", "dropped", "purged", "redriven", "gone")
"""Why records are done: acknowledged; rejected; come back too often; too old; too many of them in the queue;
purged; sent back to where they died; freed by retention or lost, before anybody settled them (software before said
`expired`)."""


class _Change(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    pass


class EpochStarted(_Change, frozen=True):
    """First batch of every epoch: who writes it. Its confirm proves that every member follows this mastership."""

    epoch: int
    node_id: str
    start_id: str


class QueueDeclared(_Change, frozen=True):
    """`queue_id` is never used for another queue of this log.

    `incarnation`: random, made at the declaration. It tells the queue from one of the same name in a cluster that was
    made anew under the same name, whose ids would be the same: readers' memories (a Delta table's) must not fit it.

    `kept_by_use`: what it keeps follows from how it is used, where its arguments do not say. Since
    `versions.KEPT_BY_USE`; earlier queues keep all.
    """

    name: str
    queue_id: int
    incarnation: str = ""
    arguments: dict[str, Any] = {}
    kept_by_use: bool = False


class QueueDeleted(_Change, frozen=True):
    """The queue of this id is there no more, with all that was ever said of it. Its records are dead."""

    queue_id: int


class QueueUsed(_Change, frozen=True):
    """Somebody was subscribed to the queue's own group: with its last subscriber it may go (`auto-delete`)."""


class PositionCommitted(_Change, frozen=True):
    """A group stands before `queue_offset`."""

    group: str
    log_id: str
    epoch: int
    queue_offset: int


class HoldSet(_Change, frozen=True):
    """A landing keeps the queue's records from `queue_offset` on, under its name; it counts from its confirm.

    `holder`: who has the hold, `epoch`: rises with each other holder, and after an end that nobody asked for.
    `lease_ms`: how long it stays without a renewal, a duration. `location`: where the records below are, a Delta table;
    `tiered`: what is there need not be kept in the log. `landed_from`: where the landing of that name and location was
    registered first; what it has landed since is [landed_from, queue_offset).
    """

    name: str
    holder: str
    epoch: int
    queue_offset: int
    lease_ms: int
    location: str = ""
    tiered: bool = False
    landed_from: int = 0


class HoldEnded(_Change, frozen=True):
    """The hold keeps nothing any more, if it is still in that epoch. `reason`: see `queues.holds`; one that was
    released is forgotten, of the others it stays known who had them, and where the landed records are."""

    name: str
    epoch: int
    reason: str


class Settled(_Change, frozen=True):
    """Records of an acking group are done; the group "" is the queue's own, here and in all that follows.

    `ranges`: queue offsets first, next, first, next, …, ascending and disjoint, as in all that follows; at most
    RANGES_PER_CHANGE of them. `why`: one of SETTLED_WHYS.
    """

    group: str
    ranges: list[int]
    why: str = "acked"


class Returned(_Change, frozen=True):
    """What is not settled of these records may be given out again: at once, whoever had it, or after `delay_ms`.
    `counted`: each has had one attempt more."""

    group: str
    ranges: list[int]
    delay_ms: int = 0
    counted: bool = False


class Watermark(_Change, frozen=True):
    """Records below `queue_offset` may have been given out, none above. It may go back, after a clean stop."""

    group: str
    queue_offset: int


class RecordsLeased(_Change, frozen=True, tag="Leased"):
    """What is not settled of these records belongs to `holder` under the number `lease` for `lease_ms`. The same number
    again: more of them, and all that it has begins anew, in full."""

    group: str
    lease: int
    holder: str
    ranges: list[int]
    lease_ms: int


class ForwardingStarted(_Change, frozen=True, tag="Departing"):
    """What is not settled of these records leaves for other queues: nobody is given them, and they are leased in the
    ledger under the number `departure`, below 2^32 and of nobody. The same number again: more of them.

    `reason`: by RabbitMQ's names, or `redriven`; see `dead_letters.forwarding`. `at_us`: when, µs UTC. `exchange`:
    where it leads, in the queue's virtual host; `routing_key`: null for each record's own."""

    group: str
    departure: int
    ranges: list[int]
    reason: str
    at_us: int
    exchange: str = ""
    routing_key: str | None = None


class DeadLetterTarget(msgspec.Struct, frozen=True, array_like=True):
    """A queue that records leave for, and under which numbers: `ranges` are those of the queue that they leave, and
    `sequence` counts them there. `name`: qualified. `numbered`: for how many records the numbers were given, when some
    were freed since; 0: for as many as there are. `tables`: how many of `x-death` a dead letter has at most, the newest
    ones; -1: all."""

    name: str
    log_id: str
    queue_id: int
    producer_epoch: int
    sequence: int
    ranges: list[int]
    numbered: int = 0
    tables: int = -1

    @property
    def records(self) -> int:
        return sum(self.ranges[1::2]) - sum(self.ranges[::2])

    @property
    def following(self) -> int:
        """The sequence of what is sent behind them."""
        return self.sequence + (self.numbered or self.records)


class Addressed(_Change, frozen=True):
    """Where some records of a forwarding go, `ranges`: the piece of it that leaves now, one of a queue at a time. The
    same piece again: where it goes from now on, under other numbers perhaps; a target that is not named any more has
    what it was to get. What no target has is dropped, but for what is `kept`: it is free again. `more`: a qualified
    name; the queues behind it by name are addressed when these targets have it. Empty: these are all."""

    departure: int
    ranges: list[int]
    targets: list[DeadLetterTarget]
    kept: list[int] = []
    more: str = ""


class PieceForwarded(_Change, frozen=True, tag="Departed"):
    """The piece that was addressed is where it was to go, or given up. `last`: the forwarding is done."""

    departure: int
    last: bool = False


class GroupReset(_Change, frozen=True):
    """An acking group stands before `queue_offset`, without exceptions, whether it was there or not. A stream group of
    that name is there no more. `void`: leases below that number are over for good, and so is whatever was given out in
    epochs below its upper half: nothing that is said of these counts."""

    group: str
    queue_offset: int
    void: int = 0


class GroupDeleted(_Change, frozen=True):
    """A group of either kind is there no more."""

    group: str


class LogStartMoved(_Change, frozen=True, tag="BeginMoved"):
    """The log begins at `log_offset`, a segment's end on the master, once this is confirmed: what stands below is
    needed by nobody."""

    log_offset: int


class QueueStartsMoved(_Change, frozen=True, tag="QueueBeginsMoved"):
    """Queues begin at these queue offsets, by queue id, once this is confirmed: records below are needed by nobody,
    wherever they stand. They never go back.

    A queue whose start offset was said once begins there and nowhere else, whatever the log still holds. Of every other
    queue it is the first record that the log has. Only queues of the first sort have copied batches."""

    begins: dict[int, int]


class OffsetsJumped(_Change, frozen=True, tag="OffsetsLeapt", omit_defaults=True):
    """Records from the log offset `lost_from` on were lost, confirmed ones perhaps. So every queue that is declared
    before this and whose next queue offset is below `go_on_at` goes on there; what comes in between is gone.

    Queue ids jump, too: none up to `queue_id_max` is given out from here on, for declarations may be lost.

    `epoch`: in which it is written. One queue offset for all queues, and not a distance: what was followed once, or is
    known from a checkpoint, is not moved a second time.
    """

    epoch: int
    lost_from: int
    go_on_at: int
    queue_id_max: int = 0


class QueueAltered(_Change, frozen=True):
    """The queue has these arguments from here on. Since `versions.PLACEMENTS`."""

    queue_id: int
    arguments: dict[str, Any]


class QueueGoverned(_Change, frozen=True):
    """From here on `arguments` hold for the queue, by its policy and its operators' policy, of these names; without
    either those that it was declared with. `version`: of the policies that say so. Since `versions.POLICIES`.

    What comes of it stands here, and not what the policies say: how that is put together may be another thing in other
    software, and copies must be equal."""

    queue_id: int
    version: int
    policy: str = ""
    operator_policy: str = ""
    arguments: dict[str, Any] = {}


# --- Queues that move between logs (decision 0050), since `versions.PLACEMENTS` ---------------------------------------
#
# In the log that a queue leaves: QueueLeft, then QueueReturned, or QueueHandedOver. In the one that it comes to:
# QueueArriving, batches of Kind.CHECKPOINT with its state, QueueArrived, then QueueOpened; or ArrivalDropped.


class QueueLeft(_Change, frozen=True):
    """From here on the log takes nothing for the queue, which goes to the log `target` by the move of that number; its
    next record is `next_queue_offset` there."""

    queue_id: int
    move: int
    target: str
    next_queue_offset: int


class QueueReturned(_Change, frozen=True):
    """The move was cancelled: the queue is here as before it left."""

    queue_id: int
    move: int


class QueueHandedOver(_Change, frozen=True):
    """The queue is the target's for good: of its state nothing is kept here, only its records. `freed`: these are dead,
    too, and it stays known no more than that the queue is elsewhere."""

    queue_id: int
    move: int
    freed: bool = False


class QueueArriving(_Change, frozen=True):
    """The states of a queue of the log `source` follow, up to QueueArrived; whatever was known of it here is no more.
    Its first record here is `first`. `producer_epoch_floor`: that of the source, which counts from here on too: whom it
    has forgotten nobody knows here either. `grants_epoch`: no grant or lease of the queue was given in one above.
    `begin`: where the queue begins, in its former spans; as `QueueStartsMoved` says it."""

    queue_id: int
    move: int
    source: str
    first: int
    producer_epoch_floor: int = 0
    grants_epoch: int = 0
    begin: int = 0


class QueueArrived(_Change, frozen=True):
    """All states of the queue stand in the log. Nobody finds it before QueueOpened."""

    queue_id: int
    move: int


class QueueOpened(_Change, frozen=True):
    """The cluster has added the span: the queue is here from now on, and taken for."""

    queue_id: int
    move: int


class ArrivalDropped(_Change, frozen=True):
    """The queue does not come, or its states are to come anew: nothing of them counts."""

    queue_id: int
    move: int


class SpanCopied(_Change, frozen=True):
    """All that the queue has from `first` on is in this log, confirmed before this was appended: what it had left of it
    in former logs was copied. Since `versions.SYNC`."""

    queue_id: int
    first: int


MoveChange = (
    QueueLeft
    | QueueReturned
    | QueueHandedOver
    | QueueArriving
    | QueueArrived
    | QueueOpened
    | ArrivalDropped
    | SpanCopied
)
StateGone = QueueHandedOver | QueueArriving | ArrivalDropped
"""With these nothing that was known of the queue's groups, holds, producers, records' attributes counts any more."""


Change = (
    EpochStarted
    | QueueDeclared
    | QueueDeleted
    | PositionCommitted
    | LogStartMoved
    | QueueStartsMoved
    | OffsetsJumped
    | HoldSet
    | HoldEnded
    | Settled
    | Returned
    | Watermark
    | RecordsLeased
    | GroupReset
    | GroupDeleted
    | QueueUsed
    | ForwardingStarted
    | Addressed
    | PieceForwarded
    | QueueAltered
    | QueueGoverned
    | QueueLeft
    | QueueReturned
    | QueueHandedOver
    | QueueArriving
    | QueueArrived
    | QueueOpened
    | ArrivalDropped
    | SpanCopied
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Change)


class _Tag(msgspec.Struct):
    type: str


_TAG_DECODER: Final = msgspec.msgpack.Decoder(_Tag)
_KNOWN: Final = frozenset(kind.__struct_config__.tag for kind in get_args(Change))


def split_ranges(ranges: Sequence[int], ranges_max: int = RANGES_PER_CHANGE) -> Iterator[list[int]]:
    """Flat ranges (first, next, first, next, …) in parts that one change each may have."""
    for at in range(0, len(ranges), 2 * ranges_max):
        yield list(ranges[at : at + 2 * ranges_max])


def encode_change(change: Change, *, queue_id: int = CONTROL_QUEUE_ID) -> bytearray:
    """A batch with one change, ready to be appended."""
    kind = Kind.QUEUE_STATE if queue_id != CONTROL_QUEUE_ID else Kind.CONTROL
    return encode_batch([Record(_ENCODER.encode(change))], queue_id=queue_id, kind=kind)


def encode_changes(changes: Sequence[Change], *, queue_id: int = CONTROL_QUEUE_ID) -> bytearray:
    """A batch with several changes of one queue, or of the log, in their order: all of them count, or none."""
    kind = Kind.QUEUE_STATE if queue_id != CONTROL_QUEUE_ID else Kind.CONTROL
    batch = draft_columns(list(map(_ENCODER.encode, changes))).seal(queue_id=queue_id, kind=kind)
    assert isinstance(batch, bytearray)  # no other memory was asked for
    return batch


def decode_changes(batch: Buffer) -> list[Change]:
    """The changes in a control or queue-state batch; those of a newer software, under names not known, are left out.

    Raises BadBatch for one that is known and does not fit.
    """
    values = parse_batch_body(batch).values
    try:
        changes = [_decode_change(values[index] or b"") for index in range(len(values))]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadBatch(f"a change that does not fit: {error}") from None
    return [change for change in changes if change is not None]


def _decode_change(value: bytes | memoryview) -> Change | None:
    try:
        change: Change = _DECODER.decode(value)
    except msgspec.ValidationError:
        if _TAG_DECODER.decode(value).type in _KNOWN:
            raise
        return None
    return change
