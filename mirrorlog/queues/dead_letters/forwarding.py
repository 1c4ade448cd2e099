"""Records that leave a queue for others, exactly once (decision 0041): what leaves, and under which numbers.

A *forwarding* is some records of one group that leave for one reason and in one way; they leave in *pieces*, one of a
queue at a time. Each step stands in the log of the queue before the next one is taken:

    ForwardingStarted  they leave: the ledger has them leased under the forwarding's number, so nobody is given them
    Addressed          a piece of it: which of its records go to which queues, as which sequences of which producer
                       epoch
    PieceForwarded     together with what settles the piece's records: every target has confirmed them

So a master that takes over between two steps knows what the one before may have sent, and sends the same again: the
target's own check of sequences answers it as the first time.

What a queue's forwardings are is one value that is never changed, so what a truncation takes back is the value before
it, and a checkpoint has it whole. It is small: forwardings that do the same are joined, a piece is bounded, and of the
targets the oldest are forgotten for a higher producer epoch.

Pure: batches in, state out; deciding gives what is to be logged. Queue offsets; ranges are flat, first, until, ….
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple, get_args

import msgspec

from mirrorlog.commitlog.format.header import OWN_PRODUCERS, BatchHeader
from mirrorlog.queues.changes import (
    Addressed,
    Change,
    DeadLetterTarget,
    ForwardingStarted,
    OffsetsJumped,
    PieceForwarded,
    StateGone,
)
from mirrorlog.queues.checkpoint_states import ForwardingRow, ForwardingState, PieceRow, State

REJECTED: Final = "rejected"
DELIVERY_LIMIT: Final = "delivery_limit"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
REDRIVEN: Final = "redriven"
"""Why records leave: by RabbitMQ's names they died, or somebody sends them back to where they did."""

HELD: Final = "held"
"""Why they do not, and nobody is given them: they died, and cannot be sent. One forwarding of a group has them all."""

NUMBERS: Final = 1 << 32
"""Numbers of forwardings are below, those of leases are not."""
FORWARDINGS_MAX: Final = 256
"""Of a queue, before what dies joins a forwarding of its kind whenever that began."""
WAYS_BYTES_MAX: Final = 8 * 1024
"""Of the names that forwardings of a queue lead to, before a redrive has to wait: a checkpoint has all that leaves a
queue in one batch, and that has 64 KiB where batches are the smallest."""
JOINED_US: Final = 1_000_000
"""What dies within that of the first of a forwarding joins it."""
TARGETS_MAX: Final = 1000
"""Queues whose sequences are remembered, of one that records leave."""

EPOCHS_SKIPPED: Final = 1 << 16
"""Producer epochs that a declared loss passes over: more than what is forgotten may have gone through, one for each
refusal, and few beside those that there are."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """Fields as of `ForwardingStarted`."""

    number: int
    group: str
    reason: str
    at_us: int
    exchange: str
    routing_key: str | None

    @property
    def way(self) -> tuple[str, str | None]:
        return self.exchange, self.routing_key

    def is_like(self, group: str, reason: str, exchange: str, routing_key: str | None) -> bool:
        return (self.group, self.reason, self.exchange, self.routing_key) == (group, reason, exchange, routing_key)


@dataclass(frozen=True, slots=True)
class QueueForwarding:
    """Those of one queue, in their order. `piece`: what leaves now. `sequences`: (producer epoch, next sequence) by the
    target's queue id, the one used last at the end; of any other queue the epoch is `epoch_floor`."""

    forwardings: tuple[Forwarding, ...] = ()
    piece: Addressed | None = None
    next_forwarding: int = 1
    epoch_floor: int = 0
    sequences: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def first(self) -> Forwarding | None:
        """The one whose turn it is; None when nothing leaves: what is held does not."""
        return next((each for each in self.forwardings if each.reason != HELD), None)

    def find(self, number: int) -> Forwarding | None:
        return next((each for each in self.forwardings if each.number == number), None)

    def numbering(self, target: int) -> tuple[int, int]:
        """Producer epoch and sequence of the next record that leaves for the queue `target`."""
        return self.sequences.get(target, (self.epoch_floor, 0))

    def follow(self, change: Change) -> QueueForwarding:
        match change:
            case ForwardingStarted():
                return self._started(change)
            case Addressed():
                return replace(self, piece=change)._numbered(change.targets)
            case PieceForwarded():
                left = tuple(each for each in self.forwardings if each.number != change.departure or not change.last)
                piece = None if self.piece is not None and self.piece.departure == change.departure else self.piece
                return replace(self, forwardings=left, piece=piece)
            case _:
                return self

    def _started(self, change: ForwardingStarted) -> QueueForwarding:
        if self.find(change.departure) is not None:
            return self
        made = Forwarding(
            change.departure, change.group, change.reason, change.at_us, change.exchange, change.routing_key
        )
        following = max(self.next_forwarding, change.departure + 1)
        return replace(self, forwardings=(*self.forwardings, made), next_forwarding=following)

    def _numbered(self, targets: Iterable[DeadLetterTarget]) -> QueueForwarding:
        """An epoch below the floor goes on only where it is known that it has not ended."""
        sequences, floor = dict(self.sequences), self.epoch_floor
        for target in targets:
            if target.producer_epoch < self.epoch_floor and target.queue_id not in sequences:
                continue
            sequences.pop(target.queue_id, None)
            sequences[target.queue_id] = target.producer_epoch, target.following
        while len(sequences) > TARGETS_MAX:
            epoch, _ = sequences.pop(next(iter(sequences)))
            floor = max(floor, epoch + 1)
        return replace(self, sequences=sequences, epoch_floor=floor)

    def after_jump(self) -> QueueForwarding:
        """Records of the log were lost, and with them numbers under which some were sent: none of those that may be is
        used again, by the piece under way neither. It may come twice."""
        targets = [] if self.piece is None else self.piece.targets
        epochs = [epoch for epoch, _ in self.sequences.values()] + [each.producer_epoch for each in targets]
        floor = max((self.epoch_floor, *epochs)) + EPOCHS_SKIPPED
        there = replace(self, sequences={}, epoch_floor=floor)
        if self.piece is None:
            return there
        anew = _numbered_anew(targets, floor)
        return replace(there, piece=msgspec.structs.replace(self.piece, targets=anew))._numbered(anew)

    @property
    def _ways(self) -> dict[tuple[str, str | None], int]:
        """Each once, as they came."""
        return {way: at for at, way in enumerate(dict.fromkeys(each.way for each in self.forwardings))}

    def has_room_for(self, to: str) -> bool:
        """Whether one more may begin that leads to the queue of this name: a checkpoint has all of them in one."""
        ways = {*self._ways, ("", to)}
        return sum(len(exchange.encode()) + len((key or "").encode()) for exchange, key in ways) <= WAYS_BYTES_MAX

    def state(self, queue_id: int) -> ForwardingState:
        piece, ways = self.piece, self._ways
        return ForwardingState(
            queue_id,
            self.next_forwarding,
            self.epoch_floor,
            list(ways),
            [
                ForwardingRow(each.number, each.group, each.reason, each.at_us, ways[each.way])
                for each in self.forwardings
            ],
            None if piece is None else PieceRow(piece.departure, piece.ranges, piece.targets, piece.kept, piece.more),
            dict(self.sequences),
        )


NONE: Final = QueueForwarding()


def _numbered_anew(targets: Sequence[DeadLetterTarget], epoch: int) -> list[DeadLetterTarget]:
    """Each queue's from 0 on."""
    following, anew = Counter[int](), list[DeadLetterTarget]()
    for target in targets:
        each = msgspec.structs.replace(target, producer_epoch=epoch, sequence=following[target.queue_id], numbered=0)
        following[target.queue_id] = each.following
        anew.append(each)
    return anew


class _Before(NamedTuple):
    """What a change that ends at `log_offset` is taken back with."""

    log_offset: int
    queue_id: int
    forwardings: QueueForwarding | None


class ForwardingTable:
    """The forwardings of one log, by queue."""

    follows: ClassVar[frozenset[type]] = frozenset(
        {ForwardingStarted, Addressed, PieceForwarded, OffsetsJumped, *get_args(StateGone)}
    )

    def __init__(self) -> None:
        self._queues: dict[int, QueueForwarding] = {}
        self._undo: deque[_Before] = deque()
        self._followed_to = 0
        self._confirmed = 0
        self.leaving: set[int] = set()
        """The queues that something leaves, or is to leave; not those of which all is held."""

    # --- asking ---

    def of(self, queue_id: int) -> QueueForwarding:
        """A queue's, as appended."""
        return self._queues.get(queue_id, NONE)

    # --- following the log ---

    def follow(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        """A batch of changes was appended."""
        if header.next_log_offset <= self._followed_to:
            return
        self._followed_to = header.next_log_offset
        for change in changes:
            if isinstance(change, ForwardingStarted | Addressed | PieceForwarded):
                self._put(header, header.queue_id, self.of(header.queue_id).follow(change))
            elif isinstance(change, OffsetsJumped):
                for queue_id, there in list(self._queues.items()):
                    self._put(header, queue_id, there.after_jump())
            elif isinstance(change, StateGone) and change.queue_id in self._queues:
                self._put(header, change.queue_id, None)

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended: what it says of a queue is all that there is of it."""
        if header.next_log_offset <= self._followed_to:
            return
        self._followed_to = header.next_log_offset
        for state in states:
            if isinstance(state, ForwardingState):
                self._put(header, state.queue_id, _restored(state))

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed. It may be told before the batches themselves are."""
        self._confirmed = log_offset
        while self._undo and self._undo[0].log_offset <= log_offset:
            self._undo.popleft()

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
        self._followed_to = min(self._followed_to, log_offset)
        while self._undo and self._undo[-1].log_offset > log_offset:
            before = self._undo.pop()
            self._set(before.queue_id, before.forwardings)

    def forget_queue(self, queue_id: int) -> None:
        """A queue is gone, for good."""
        self._set(queue_id, None)
        self._undo = deque(each for each in self._undo if each.queue_id != queue_id)

    # --- checkpoints ---

    def queue_ids(self) -> Iterator[int]:
        """The queues of which a checkpoint that begins now has something to tell."""
        return iter(list(self._queues))

    def state(self, queue_id: int) -> ForwardingState | None:
        """What it tells of one; None when nothing is known of it any more."""
        there = self._queues.get(queue_id)
        return None if there is None else there.state(queue_id)

    # --- inside ---

    def _put(self, header: BatchHeader, queue_id: int, forwardings: QueueForwarding | None) -> None:
        if header.next_log_offset > self._confirmed:
            self._undo.append(_Before(header.next_log_offset, queue_id, self._queues.get(queue_id)))
        self._set(queue_id, forwardings)

    def _set(self, queue_id: int, forwardings: QueueForwarding | None) -> None:
        if forwardings is None:
            self._queues.pop(queue_id, None)
        else:
            self._queues[queue_id] = forwardings
        leaves = forwardings is not None and forwardings.first is not None
        (self.leaving.add if leaves else self.leaving.discard)(queue_id)


class ForwardingNumbers:
    """Numbers forwardings in one mastership: what dies now joins one that does the same, or begins another one.
    `is_open`: whether one, by queue id and forwarding, still has records: one that a reset of its group has emptied
    sends what it has addressed, and who joined it would be taken for that."""

    def __init__(self, table: ForwardingTable, is_open: Callable[[int, Forwarding], bool] = lambda *_: True) -> None:
        self._table = table
        self._is_open = is_open
        self._begun: dict[int, Forwarding] = {}

    def forwarding(
        self,
        queue_id: int,
        group: str,
        ranges: Sequence[int],
        reason: str,
        *,
        at_us: int,
        exchange: str,
        routing_key: str | None,
    ) -> ForwardingStarted:
        """The change by which these leave; it may be appended later, or never."""
        found = self._joined(queue_id, lambda each: each.is_like(group, reason, exchange, routing_key), at_us, reason)
        if found is None:
            begun = self._begun.get(queue_id)
            number = max(self._table.of(queue_id).next_forwarding, begun.number + 1 if begun is not None else 1)
            found = Forwarding(number, group, reason, at_us, exchange, routing_key)
            self._begun[queue_id] = found
        return ForwardingStarted(
            group=group,
            departure=found.number,
            ranges=list(ranges),
            reason=reason,
            at_us=found.at_us,
            exchange=exchange,
            routing_key=routing_key,
        )

    def is_full(self, queue_id: int) -> bool:
        """Whether no more is to leave that nobody has to let go."""
        return len(self._table.of(queue_id).forwardings) >= FORWARDINGS_MAX

    def _joined(
        self, queue_id: int, is_like: Callable[[Forwarding], bool], at_us: int, reason: str
    ) -> Forwarding | None:
        there = self._table.of(queue_id)

        def joins(other: Forwarding) -> bool:
            is_logged = other.number < there.next_forwarding
            return is_like(other) and (not is_logged or self._is_open(queue_id, other))

        begun = self._begun.get(queue_id)
        if reason == HELD:
            known = there.forwardings if begun is None else (*there.forwardings, begun)
            return next((each for each in known if is_like(each)), None)
        if begun is not None and 0 <= at_us - begun.at_us < JOINED_US and joins(begun):
            return begun
        if not self.is_full(queue_id):
            return None
        return next((each for each in reversed(there.forwardings) if joins(each)), None)


def producer_of(incarnation: str, log_id: str, queue_id: int) -> int:
    """The producer id under which records leave a queue: the same whoever sends them, and none of a client's."""
    told = f"departures {incarnation or log_id} {queue_id}".encode()
    return int.from_bytes(hashlib.sha256(told).digest()[:8], "little") | OWN_PRODUCERS


def _restored(state: ForwardingState) -> QueueForwarding:
    piece = state.piece
    return QueueForwarding(
        forwardings=tuple(
            Forwarding(row.departure, row.group, row.reason, row.at_us, *state.ways[row.way])
            for row in state.forwardings
        ),
        piece=None
        if piece is None
        else Addressed(
            departure=piece.departure, ranges=piece.ranges, targets=piece.targets, kept=piece.kept, more=piece.more
        ),
        next_forwarding=state.next_forwarding,
        epoch_floor=state.epoch_floor,
        sequences=dict(state.sequences),
    )
