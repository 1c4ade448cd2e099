"""A log's queue state in the log itself: who writes it there, and from where on it is whole.

A checkpoint is a run of batches of Kind.CHECKPOINT among those that are appended meanwhile:

    CheckpointBegan   MoveState ...   QueueState ...   HoldsState ...   GroupState, LedgerChunk ..., LeasesState ...
    ForwardingState ...   RunState ...   QueueStartsState ...   GapsState ...   ProducerState ...   CheckpointEnded

Each piece says the state as of its own place, so it is made and appended in one step of the loop, and others come in
between. What is read from the first batch on, all kinds in the order of the log, gives the state that the whole log
gives: whoever changed since the beginning is in the batches themselves, everybody else is in a piece. Only a complete
checkpoint counts, and only from its confirm on. Of a queue that was deleted nothing is said any more, also while that
is not confirmed: whoever begins with the checkpoint never hears of it.

What a queue brings along from another log (decision 0050) stands between QueueArriving and QueueArrived in batches of
the same kind. A checkpoint that began in between says nothing of that queue, so it does not count.

Rejected: all in one step (10,000 queues would hold the loop up), a copy of the state to write from (twice the memory,
and the copy takes as long), a file beside the log (it would have to be replicated, confirmed and cut like the log).

Pure: state in, batches out; batches in, a log offset out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Final, Generic, TypeVar

from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, Buffer, Kind
from mirrorlog.commitlog.index.gaps import GAPS_MAX, Gap, Gaps
from mirrorlog.queues.changes import ArrivalDropped, Change, QueueArrived, QueueArriving, decode_changes
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    GapsState,
    QueueStartsState,
    State,
    decode_checkpoint,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.queues.dead_letters.forwarding import ForwardingTable
from mirrorlog.queues.groups.states import GroupPart
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.limits.attributes import RunPart, RunTable
from mirrorlog.queues.limits.holds import HoldTable
from mirrorlog.queues.moves import MovePart
from mirrorlog.queues.producers import ProducerKey, ProducerTable
from mirrorlog.queues.registry import QueueRegistry

QUEUES_PER_BATCH: Final = 250
PRODUCERS_PER_BATCH: Final = 400
"""Each about 1 ms of the loop."""

BATCH_BYTES_MAX: Final = 256 * 1024
"""A batch of several states ends below this. One state alone may be larger, by the arguments of its queue."""

GROUPS_PER_STATE: Final = 128
"""A group's name has up to 255 characters of up to 4 bytes: so many of them, and 32 KiB of arguments, fit a batch."""

STARTS_PER_STATE: Final = 1000
"""Of 14 bytes each, at most."""

GAPS_PER_STATE: Final = 1000
"""Of 24 bytes each, at most; more than a queue has."""

HOLDS_PER_BATCH: Final = 250

GROUP_PARTS_PER_BATCH: Final = 250
GROUPS_BYTES_MAX: Final = 16 * 1024
"""About 1 ms of the loop: so many groups that stand somewhere, or some 100 pieces of exceptions."""

FORWARDINGS_PER_BATCH: Final = 50

RUN_STATES_PER_BATCH: Final = 250
RUNS_BYTES_MAX: Final = 32 * 1024
"""About 1 ms of the loop: some 1,000 runs."""

assert GAPS_PER_STATE >= GAPS_MAX

CARRIED_BATCHES: Final = 100_000
"""Landed batches of all producers in a checkpoint, about 4 MB; when they are spent the others come in brief."""

Key = TypeVar("Key")
QueuePart = tuple[int, Sequence[str]]
"""A queue's id, and the groups whose positions its state carries."""


class CheckpointWriter:
    """Writes one checkpoint, batch by batch. `next_queue_offset` gives a queue id's next one to be appended,
    `log_start` where the log begins by the newest decision that it holds, 0 without one, `gaps`, by
    queue id, which queue offsets of queues were given up after losses; `holds`, `groups`, `runs`,
    `forwardings`: None without any."""

    def __init__(
        self,
        registry: QueueRegistry,
        producers: ProducerTable,
        next_queue_offset: Callable[[int], int],
        *,
        log_start: Callable[[], int] = lambda: 0,
        gaps: Callable[[], Iterable[tuple[int, Gaps]]] = tuple,
        holds: HoldTable | None = None,
        groups: GroupTable | None = None,
        runs: RunTable | None = None,
        forwardings: ForwardingTable | None = None,
        queues_per_batch: int = QUEUES_PER_BATCH,
        producers_per_batch: int = PRODUCERS_PER_BATCH,
        group_parts_per_batch: int = GROUP_PARTS_PER_BATCH,
        batch_bytes_max: int = BATCH_BYTES_MAX,
    ) -> None:
        self._registry = registry
        self._producers = producers
        self._next_queue_offset = next_queue_offset
        self._log_start = log_start
        self._gaps = gaps
        self._holds = holds
        self._groups = groups
        self._runs = runs
        self._forwardings = forwardings
        self._queues_per_batch = queues_per_batch
        self._producers_per_batch = producers_per_batch
        self._group_parts_per_batch = group_parts_per_batch
        self._batch_bytes_max = min(batch_bytes_max, BATCH_BYTES_MAX)
        self._batches_left = CARRIED_BATCHES
        self._began_at: int | None = None
        self._cuts: list[_AnyCut] = []
        self._ended = False

    def next_batch(self, log_end: int) -> bytearray | None:
        """The next batch, to be appended at the log's end, `log_end`, before anything else is; None after the last.

        If it cannot be appended, this checkpoint stays incomplete: write another one.
        """
        if self._began_at is None:
            return self._begin(log_end)
        while self._cuts:
            batch = self._cuts[0].next_batch()
            if batch is not None:
                return batch
            del self._cuts[0]
        return self._end()

    def _begin(self, log_end: int) -> bytearray:
        self._began_at = log_end
        # Who is there now. Those who come later are in the log behind this place, those who go leave no state.
        limit = self._batch_bytes_max
        queues, producers = self._queue_parts(self._registry.stated_ids()), iter(self._producers.known())
        self._cuts = [
            _Cut(self._registry.move_parts(), self._registry.moves.state, self._queues_per_batch, limit),
            _Cut(queues, self._queue_state, self._queues_per_batch, limit),
            *([] if self._holds is None else [_Cut(self._holds.states(), self._holds_state, HOLDS_PER_BATCH, limit)]),
            *self._group_cuts(limit),
            *self._forwarding_cuts(limit),
            *self._run_cuts(limit),
            _Cut(self._starts_parts(), self._starts_state, 1, limit),
            _Cut(self._gap_states(), lambda state: state, 1, limit),
            _Cut(producers, self._producer_state, self._producers_per_batch, limit),
        ]
        return encode_checkpoint([encode_state(CheckpointBegan(queue_id_max=self._registry.queue_id_max))])

    def _end(self) -> bytearray | None:
        if self._ended:
            return None
        self._ended = True
        assert self._began_at is not None
        ended = CheckpointEnded(began_at=self._began_at, producer_epoch_floor=self._producers.epoch_floor)
        return encode_checkpoint([encode_state(ended)])

    def _queue_parts(self, queue_ids: Sequence[int]) -> Iterator[QueuePart]:
        for queue_id in queue_ids:
            groups = self._registry.groups(queue_id)
            for first in range(0, max(1, len(groups)), GROUPS_PER_STATE):
                yield queue_id, groups[first : first + GROUPS_PER_STATE]

    def _queue_state(self, part: QueuePart) -> State | None:
        queue_id, groups = part
        return self._registry.state(queue_id, groups, next_queue_offset=self._next_queue_offset(queue_id))

    def _holds_state(self, part: QueuePart) -> State | None:
        assert self._holds is not None
        return self._holds.state(*part) if not self._is_deleted(part[0]) else None

    def _group_state(self, part: GroupPart) -> State | None:
        assert self._groups is not None
        return self._groups.state(part) if not self._is_deleted(part.walk.queue_id) else None

    def _group_cuts(self, limit: int) -> list[_Cut[GroupPart]]:
        if self._groups is None:
            return []
        limit = min(limit, GROUPS_BYTES_MAX)
        return [_Cut(self._groups.parts(), self._group_state, self._group_parts_per_batch, limit)]

    def _forwarding_cuts(self, limit: int) -> list[_Cut[int]]:
        if self._forwardings is None:
            return []
        return [_Cut(self._forwardings.queue_ids(), self._forwarding_state, FORWARDINGS_PER_BATCH, limit)]

    def _forwarding_state(self, queue_id: int) -> State | None:
        assert self._forwardings is not None
        return self._forwardings.state(queue_id) if not self._is_deleted(queue_id) else None

    def _run_cuts(self, limit: int) -> list[_Cut[RunPart]]:
        if self._runs is None:
            return []
        return [_Cut(self._runs.parts(), self._run_state, RUN_STATES_PER_BATCH, min(limit, RUNS_BYTES_MAX))]

    def _run_state(self, part: RunPart) -> State | None:
        assert self._runs is not None
        return self._runs.state(part) if not self._is_deleted(part.walk.queue_id) else None

    def _starts_parts(self) -> Iterator[Sequence[int]]:
        queue_ids = list(self._registry.start_offsets)
        for first in range(0, max(len(queue_ids), self._log_start() > 0), STARTS_PER_STATE):
            yield queue_ids[first : first + STARTS_PER_STATE]

    def _starts_state(self, queue_ids: Sequence[int]) -> State:
        begins = self._registry.start_offsets
        there = [each for each in queue_ids if each in begins and not self._is_deleted(each)]
        return QueueStartsState(log_start=self._log_start(), begins={each: begins[each] for each in there})

    def _gap_states(self) -> Iterator[GapsState]:
        newest, former, left = dict[int, Gap](), dict[int, list[Gap]](), GAPS_PER_STATE
        for queue_id, gaps in self._gaps():
            if self._is_deleted(queue_id):
                continue
            if len(gaps) > left:
                yield GapsState(gaps=newest, former=former)
                newest, former, left = {}, {}, GAPS_PER_STATE
            newest[queue_id] = gaps[-1]
            if len(gaps) > 1:
                former[queue_id] = list(gaps[:-1])
            left -= len(gaps)
        if newest:
            yield GapsState(gaps=newest, former=former)

    def _is_deleted(self, queue_id: int) -> bool:
        """Or not there yet: what arrives says all of itself."""
        registry = self._registry
        return registry.is_leaving(queue_id) or registry.is_gone(queue_id) or registry.moves.is_incomplete(queue_id)

    def _producer_state(self, key: ProducerKey) -> State | None:
        state = self._producers.state(key, brief=self._batches_left <= 0)
        if state is not None:
            self._batches_left -= len(state.landed)
        return state


class _Cut(Generic[Key]):
    """Cuts a row of states into batches; each state is taken when its batch is made."""

    def __init__(
        self, keys: Iterator[Key], state: Callable[[Key], State | None], states_max: int, batch_bytes_max: int
    ) -> None:
        self._keys = keys
        self._state = state
        self._states_max = states_max
        self._batch_bytes_max = batch_bytes_max
        self._held: Key | None = None

    def next_batch(self) -> bytearray | None:
        """None when none is left."""
        values: list[bytes] = []
        # Both columns are padded; offsets begin with one more than there are values.
        left = self._batch_bytes_max - HEADER_SIZE - 4 - 2 * 8
        while len(values) < self._states_max and (key := self._next_key()) is not None:
            state = self._state(key)
            if state is None:
                continue
            value = encode_state(state)
            left -= len(value) + 4
            if values and left < 0:
                # Taken anew for the next batch: by then it may have moved on.
                self._held = key
                break
            values.append(value)
        return encode_checkpoint(values) if values else None

    def _next_key(self) -> Key | None:
        key, self._held = self._held, None
        return key if key is not None else next(self._keys, None)


_AnyCut = (
    _Cut[MovePart]
    | _Cut[QueuePart]
    | _Cut[GroupPart]
    | _Cut[RunPart]
    | _Cut[int]
    | _Cut[Sequence[int]]
    | _Cut[GapsState]
    | _Cut[ProducerKey]
)


class CheckpointTracker:
    """Which checkpoint of a log is the newest that can be relied upon.

    `state_from`: the log offset from which on the log gives all of its state; that of a CheckpointBegan, or 0. Nothing
    at or above it may be freed.
    """

    follows: ClassVar[frozenset[type]] = frozenset({QueueArriving, QueueArrived, ArrivalDropped})

    def __init__(self) -> None:
        self.state_from = 0
        # (log offset of a batch, where the checkpoint began that is open behind it): each beginning and each end.
        self._opens: deque[tuple[int, int | None]] = deque()
        # (end of its last batch, where it began) of those that are complete and not confirmed.
        self._unconfirmed: deque[tuple[int, int]] = deque()
        # (log offset of a change, the queues that were arriving behind it): each beginning and each end of an arrival.
        self._arriving: deque[tuple[int, frozenset[int]]] = deque()

    @property
    def _open(self) -> int | None:
        """Where the newest checkpoint began, as long as it has not ended."""
        return self._opens[-1][1] if self._opens else None

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """A batch was appended. Raises BadBatch for a checkpoint that does not fit."""
        # The first and the last one stand alone; a long batch need not be read for them.
        if header.kind == Kind.CHECKPOINT and header.record_count == 1:
            self.restore(header, decode_checkpoint(batch))
        elif header.kind == Kind.CONTROL:
            self.follow(header, decode_changes(batch))

    def follow(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        """A batch of changes was appended: a queue may be arriving from here on, or no more."""
        for change in changes:
            if isinstance(change, QueueArriving | QueueArrived | ArrivalDropped):
                there = self._arriving[-1][1] if self._arriving else frozenset()
                began = isinstance(change, QueueArriving)
                now = there | {change.queue_id} if began else there - {change.queue_id}
                self._arriving.append((header.log_offset, now))

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended: `apply`, of one that was decoded already."""
        for state in states:
            if isinstance(state, CheckpointBegan):
                while len(self._opens) > 1 and self._opens[1][0] <= self.state_from:
                    self._opens.popleft()  # no cut goes behind it
                while len(self._arriving) > 1 and self._arriving[1][0] <= self.state_from:
                    self._arriving.popleft()
                counts = not (self._arriving and self._arriving[-1][1])
                self._opens.append((header.log_offset, header.log_offset if counts else None))
            elif isinstance(state, CheckpointEnded) and state.began_at == self._open:
                self._unconfirmed.append((header.next_log_offset, state.began_at))
                self._opens.append((header.log_offset, None))

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed."""
        while self._unconfirmed and self._unconfirmed[0][0] <= log_offset:
            self.state_from = self._unconfirmed.popleft()[1]

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
        # Where an end is gone and its beginning is not, what is fetched again may complete it.
        while self._opens and self._opens[-1][0] >= log_offset:
            self._opens.pop()
        while self._arriving and self._arriving[-1][0] >= log_offset:
            self._arriving.pop()
        while self._unconfirmed and self._unconfirmed[-1][0] > log_offset:
            self._unconfirmed.pop()
