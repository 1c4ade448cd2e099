"""Runs: which records of a queue have a priority, a time to live or a delay (decision 0036).

A *run* is a stretch of a queue whose records have the same attributes: those of their batch, and where the queue has a
time to live (`x-message-ttl`), the shorter of both. What has no run is plain; a queue that never had one is not here at
all, and costs nothing.

Times count from the append. Neighbours of the same attributes are one run when their append times lie within a
hundredth of the shortest time, 10 s at most; the times of all of them then count from the last append: later, never
sooner. So what is given out after its time is so by that at most, and a queue with one time to live has a hundred runs
whose time is not over, or one for each 10 s of it. Neighbours that have a priority alone are always one, and so are,
now and then, those whose time to live is over by the log's own time: nobody is given any of them.

Everything here follows from the log, on every copy: `apply` and `restore` tell of batches, `follow` and `start_moved`
of what nobody needs any more, `cut` of what is gone. A run goes when it is settled in all groups that there are, the
queue's own among them, once that is confirmed; a group that is set back behind that, or is made there afterwards, gets
these records as plain ones. While a queue has not its own group nothing goes by that: its first subscriber makes it,
at the queue's start offset. Where two neighbours are joined may differ between copies, by where they began to follow
the log; what each record has does not, but for that hundredth. Applying a batch twice equals applying it once
(invariant 8).

Pure. Queue offsets everywhere, [first, until); times in µs UTC on the clock of the log's append times.

Rejected: runs as objects (four times the bytes: there may be a million of them); the log offset of each run, to cut by
(the queue's next offset after a cut says the same).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes, attributes_of
from mirrorlog.commitlog.format.header import BatchHeader, Buffer
from mirrorlog.errors import BadBatch, Overloaded
from mirrorlog.queues.checkpoint_states import CheckpointBegan, CheckpointEnded, RunState, State

JOINED_US_MAX: Final = 10_000_000
_JOINED_PART: Final = 100
"""Append times of one run lie within the smaller of JOINED_US_MAX and this part of its shortest time."""

RUNS_PER_STATE: Final = 500
"""Of 49 bytes each, at most: less than half of the smallest batch that nodes can be told to allow."""

_FIELDS: Final = 7
_SWEPT_PART: Final = 8
_SPARE: Final = 1024
_NO_TTL: Final = -1
_OFFSETS: Final = 1 << 63
_T = TypeVar("_T")


class Run(NamedTuple):
    """Records [first, until). `expires_at_us`: from then on they are given to nobody, None: never; of 0 ms it is their
    append time. `not_before_us`: before that they are given to nobody, None: at once."""

    first: int
    until: int
    priority: int
    expires_at_us: int | None
    not_before_us: int | None


class RunRow(NamedTuple):
    """A run as it is kept. `appended_us`: the last append time of its batches, `spread_us`: how long before it the
    first one was."""

    first: int
    until: int
    attributes: Attributes
    appended_us: int
    spread_us: int = 0


class QueueRuns:
    """The runs of one queue, in the order of their queue offsets; they never overlap.

    The last one may grow when batches come: its `until` and its times move forward, its `first` stays. Whoever keeps a
    run over a turn of the loop asks again with `covering(first)`.
    """

    __slots__ = (
        "_appended_us", "_columns", "_delay_ms", "_first", "_kept", "_priority", "_spread_us", "_ttl_ms", "_until",
    )  # fmt: skip

    def __init__(self) -> None:
        self._columns = tuple(array(kind) for kind in "QQBqqqI")
        self._first, self._until, self._priority, self._ttl_ms, self._delay_ms, *times = self._columns
        self._appended_us, self._spread_us = times
        self._kept = 0

    # --- asking ---

    def __len__(self) -> int:
        return len(self._first)

    def __iter__(self) -> Iterator[Run]:
        return self.from_on(0)

    def covering(self, queue_offset: int) -> Run | None:
        """The run that the record is in; None for a plain one."""
        index = self._ending_behind(queue_offset)
        return self._run(index) if index < len(self) and self._first[index] <= queue_offset else None

    def from_on(self, queue_offset: int) -> Iterator[Run]:
        """The runs that end behind it, in order, the first one perhaps begins before it. Nothing may change while they
        are gone through."""
        return (self._run(index) for index in range(self._ending_behind(queue_offset), len(self)))

    def between(self, first: int, until: int) -> Iterator[Run]:
        """The runs that have records in [first, until), whole, as `from_on`."""
        return takewhile(lambda run: run.first < until, self.from_on(first))

    def rows(self, first: int, until: int, rows_max: int) -> list[RunRow]:
        """As they are kept, of those that end behind `first` and begin before `until`, so many at most."""
        index = self._ending_behind(first)
        last = min(index + rows_max, bisect_left(self._first, until, index))
        return [self._row(each) for each in range(index, last)]

    @property
    def end(self) -> int:
        """Where the last one ends; 0 without any."""
        return self._until[-1] if self._until else 0

    # --- changing ---

    def add(self, row: RunRow) -> None:
        """A batch was appended: behind all the others, or in its place if it stands in the log once more."""
        if row.first < self.end:
            self._add_earlier(row)
        elif not self.join(row.first, row.until, row.attributes, row.appended_us):
            self._insert(len(self), [row])
            if len(self) > 2 * self._kept + _SPARE:
                self._join_over(row.appended_us)
                self._kept = len(self)

    def join(self, first: int, until: int, attributes: Attributes, appended_us: int) -> bool:
        """Take a batch into the last run. Whether that could be: it can with most, and they cost no more than this."""
        if not self._until or self._until[-1] != first:
            return False
        priority, ttl_ms, delay_ms = attributes
        ttl = _NO_TTL if ttl_ms is None else ttl_ms
        if (self._priority[-1], self._ttl_ms[-1], self._delay_ms[-1]) != (priority, ttl, delay_ms):
            return False
        if (within_us := _within_us(ttl_ms, delay_ms)) is not None:
            spread_us = appended_us - self._appended_us[-1] + self._spread_us[-1]
            if not 0 <= spread_us <= within_us:
                return False
            self._spread_us[-1] = spread_us
        self._until[-1], self._appended_us[-1] = until, appended_us
        return True

    def put(self, rows: Sequence[RunRow]) -> None:
        """Have these, in order and not overlapping, stand there from the first one's begin to the last one's end."""
        self.insert_space(rows[0].first, rows[-1].until)
        self._insert(self._ending_behind(rows[0].first), rows)

    def insert_space(self, first: int, until: int) -> None:
        """Nothing is known of [first, until) any more."""
        index = self._ending_behind(first)
        left: list[RunRow] = []
        last = index
        while last < len(self) and self._first[last] < until:
            row = self._row(last)
            parts = row._replace(until=min(row.until, first)), row._replace(first=max(row.first, until))
            left += [part for part in parts if part.first < part.until]
            last += 1
        self._delete(index, last)
        self._insert(index, left)

    def cut(self, until: int) -> None:
        """There are no records from `until` on."""
        index = self._ending_behind(until)
        if index < len(self) and self._first[index] < until:
            self._until[index] = until
            index += 1
        self._delete(index, len(self))

    def drop(self, floor: int) -> None:
        """Nobody needs what is below. Nothing is moved before an eighth of all can go."""
        count = self._ending_behind(floor)
        if count * _SWEPT_PART >= len(self):
            self._delete(0, count)

    def starts_below(self, queue_offset: int) -> bool:
        """Whether there is a run that ends there or below."""
        return bool(self._until) and self._until[0] <= queue_offset

    # --- inside ---

    def _ending_behind(self, queue_offset: int) -> int:
        """The index of the first run that ends behind."""
        return bisect_right(self._until, queue_offset)

    def _run(self, index: int) -> Run:
        appended_us, ttl_ms, delay_ms = self._appended_us[index], self._ttl_ms[index], self._delay_ms[index]
        return Run(
            self._first[index],
            self._until[index],
            self._priority[index],
            None if ttl_ms == _NO_TTL else appended_us + ttl_ms * 1000,
            appended_us + delay_ms * 1000 if delay_ms else None,
        )

    def _row(self, index: int) -> RunRow:
        first, until, priority, ttl_ms, delay_ms, appended_us, spread_us = (column[index] for column in self._columns)
        attributes = Attributes(priority, None if ttl_ms == _NO_TTL else ttl_ms, delay_ms)
        return RunRow(first, until, attributes, appended_us, spread_us)

    def _join_over(self, now_us: int) -> None:
        """Neighbours whose time to live is over are one run, of what the last of them has."""
        times = zip(self._appended_us, self._ttl_ms, strict=True)
        over = [ttl_ms != _NO_TTL and at_us + ttl_ms * 1000 <= now_us for at_us, ttl_ms in times]
        left, first = list[int](), array("Q")
        for index in range(len(self)):
            if index and over[index - 1] and over[index] and self._until[index - 1] == self._first[index]:
                left[-1] = index
                self._spread_us[index] = 0
            else:
                left.append(index)
                first.append(self._first[index])
        for column in self._columns:
            column[:] = array(column.typecode, [column[index] for index in left])
        self._first[:] = first

    def _add_earlier(self, row: RunRow) -> None:
        """A batch that stands in the log once more. What is known of it stays: it may be joined."""
        reached = row.first
        for run in list(self.between(row.first, row.until)):
            if reached < run.first:
                self._insert(self._ending_behind(reached), [row._replace(first=reached, until=run.first)])
            reached = run.until
        if reached < row.until:
            self._insert(self._ending_behind(reached), [row._replace(first=reached)])

    def _insert(self, index: int, rows: Sequence[RunRow]) -> None:
        if not rows:
            return
        for column, numbers in zip(self._columns, zip(*map(_kept, rows), strict=True), strict=True):
            column[index:index] = array(column.typecode, numbers)

    def _delete(self, first: int, until: int) -> None:
        for column in self._columns if first < until else ():
            del column[first:until]


class RunPart(NamedTuple):
    """What one `RunState` is to tell: of a walk's queue, from `first` on."""

    walk: RunWalk
    first: int


class RunWalk:
    """One queue's way into a checkpoint: what it has when this is made. What comes later is in the log."""

    def __init__(self, queue_id: int, until: int) -> None:
        self.queue_id = queue_id
        self.until = until
        self.reached = 0

    def parts(self) -> Iterator[RunPart]:
        """In their order; the state of each is taken before the next one is asked for."""
        while (first := self.reached) < self.until:
            self.reached = self.until  # when nobody takes the state its queue is gone
            yield RunPart(self, first)


class _Settled(NamedTuple):
    """All groups of a queue stand at `floor` or behind, once everything below `log_offset` is confirmed."""

    log_offset: int
    queue_id: int
    floor: int


class RunTable:
    """The runs of one log. `runs_max`: of all its queues, before publishes that would add one are refused; `floors`:
    see `GroupTable.whole_floors`; it has followed a batch when this is told of it."""

    def __init__(self, *, runs_max: int, floors: Callable[[Collection[int]], Mapping[int, int]]) -> None:
        self._runs_max = runs_max
        self._floors = floors
        self._queues: dict[int, QueueRuns] = {}
        self._settled: deque[_Settled] = deque()
        self._forgotten: list[tuple[int, int, QueueRuns]] = []  # end of a batch, queue id
        self._confirmed = 0
        # Within a checkpoint a copy that began with it does not know all groups.
        self._groups_doubtful = False
        self._checkpoint_at: int | None = None
        # From this log offset on all groups are known: the log was followed from its first byte, or through a whole
        # checkpoint. None before that.
        self._complete_from: int | None = None
        self.total = 0
        """How many runs there are."""

    # --- asking ---

    def of(self, queue_id: int) -> QueueRuns | None:
        """A queue's runs, as appended; None for a queue that has none. Ask anew in each turn of the loop."""
        return self._queues.get(queue_id)

    def queue_ids(self) -> list[int]:
        """The queues that have runs."""
        return list(self._queues)

    def check_room(self, queue_id: int) -> None:
        """Before a batch with attributes is stored, in that queue. One queue has no more than is left for the others:
        half of all when it is alone. Raises Overloaded."""
        runs = self._queues.get(queue_id)
        own, left = len(runs) if runs is not None else 0, self._runs_max - self.total
        if left > 0 and own <= left:
            return
        whose = f"{self.total} runs" if left <= 0 else f"{own} runs of this queue, and has room for {left} more"
        raise Overloaded(
            f"this log keeps the priority, time to live or delay of {whose}, of records that are not settled "
            "(limits.attribute_runs_max); nothing was stored, settle some, or publish without them",
            limit="attribute_runs_max",
        )

    # --- following the log ---

    def apply(self, header: BatchHeader, batch: Buffer, *, queue_ttl_ms: int | None = None) -> None:
        """A batch of data was appended. `queue_ttl_ms`: `x-message-ttl` of its queue. Raises BadBatch when what it says
        of its attributes is not known here; it counts as a batch without, then."""
        attributes = NO_ATTRIBUTES
        try:
            attributes = attributes_of(header, batch)
        finally:
            first, count, at_us = header.base_queue_offset, header.record_count, header.append_time_us
            self.add(header.queue_id, first, count, at_us, attributes, queue_ttl_ms=queue_ttl_ms)

    def add(
        self,
        queue_id: int,
        first: int,
        count: int,
        append_time_us: int,
        attributes: Attributes = NO_ATTRIBUTES,
        *,
        queue_ttl_ms: int | None = None,
    ) -> None:
        """`apply`, of records that are said by their numbers."""
        if queue_ttl_ms is not None and (attributes.ttl_ms is None or queue_ttl_ms < attributes.ttl_ms):
            attributes = attributes._replace(ttl_ms=queue_ttl_ms)
        if attributes == NO_ATTRIBUTES:
            return
        runs = self._queues.get(queue_id)
        if runs is None or not runs.join(first, first + count, attributes, append_time_us):
            row = RunRow(first, first + count, attributes, append_time_us)
            self._change(queue_id, QueueRuns.add, row)

    def follow(self, header: BatchHeader) -> None:
        """A batch with changes was appended, of a queue's groups or of the log."""
        if header.log_offset == 0:
            self._complete_from = 0
        if header.queue_id in self._queues and not self._groups_doubtful:
            self._note_settled(header.next_log_offset, [header.queue_id])

    def state_gone(self, header: BatchHeader, queue_id: int) -> None:
        """By a batch that was appended nothing counts any more that is known of a queue."""
        self._settled = deque(each for each in self._settled if each.queue_id != queue_id)
        if (runs := self._queues.pop(queue_id, None)) is not None:
            self.total -= len(runs)
            self._forgotten.append((header.next_log_offset, queue_id, runs))

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended: what it says of runs counts. Raises BadBatch."""
        for state in states:
            if isinstance(state, RunState) and state.runs:
                self._change(state.queue_id, QueueRuns.put, _rows_of(state))
            elif isinstance(state, CheckpointBegan):
                self._begin_checkpoint(header.log_offset)
            elif isinstance(state, CheckpointEnded):
                self._end_checkpoint(header.next_log_offset, state.began_at)

    def start_moved(self, begins: Mapping[int, int]) -> None:
        """Queues begin at these queue offsets, by queue id; that is confirmed."""
        for queue_id in self._queues.keys() & begins.keys():
            self._change(queue_id, QueueRuns.drop, begins[queue_id])

    def forget_queues(self, queue_ids: Collection[int]) -> None:
        """Queues are gone, for good."""
        for queue_id in self._queues.keys() & queue_ids:
            self._change(queue_id, QueueRuns.cut, 0)
        self._settled = deque(each for each in self._settled if each.queue_id not in queue_ids)

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed. It may be told before the batches themselves are."""
        self._confirmed = log_offset
        while self._settled and self._settled[0].log_offset <= log_offset:
            _, queue_id, floor = self._settled.popleft()
            self._change(queue_id, QueueRuns.drop, floor)
        self._forgotten = [each for each in self._forgotten if each[0] > log_offset]

    def cut(self, log_offset: int, next_appended: Callable[[int], int]) -> None:
        """The log now ends at `log_offset`; `next_appended` says where a queue goes on now, by its id."""
        while self._settled and self._settled[-1].log_offset > log_offset:
            self._settled.pop()
        while self._forgotten and self._forgotten[-1][0] > log_offset:
            _, queue_id, runs = self._forgotten.pop()
            self.total += len(runs) - len(self._queues.get(queue_id, ()))
            self._queues[queue_id] = runs
        if self._complete_from is not None and self._complete_from > log_offset:
            self._complete_from = None
        for queue_id in list(self._queues):
            until = next_appended(queue_id)
            if self._queues[queue_id].end > until:
                self._change(queue_id, QueueRuns.cut, until)

    # --- checkpoints ---

    def parts(self) -> Iterator[RunPart]:
        """All that a checkpoint has to tell of what is here when it begins; `state` of each is to be taken before the
        next one is asked for."""
        for queue_id, runs in list(self._queues.items()):
            yield from RunWalk(queue_id, runs.end).parts()

    def state(self, part: RunPart) -> RunState | None:
        """What a part has to tell; None when it is gone."""
        walk, first = part
        runs = self._queues.get(walk.queue_id)
        rows = runs.rows(first, walk.until, RUNS_PER_STATE) if runs is not None else []
        walk.reached = rows[-1].until if rows else walk.until
        return RunState(walk.queue_id, [number for row in rows for number in _numbers(row)]) if rows else None

    # --- inside ---

    def _begin_checkpoint(self, log_offset: int) -> None:
        self._groups_doubtful, self._checkpoint_at = True, log_offset
        if self._complete_from is None:
            # What was noted is the floor of some groups, and another one may need what this checkpoint tells of runs.
            self._settled.clear()

    def _end_checkpoint(self, log_offset: int, began_at: int) -> None:
        """`log_offset`: where it ends."""
        self._groups_doubtful = False
        if self._complete_from is None and began_at == self._checkpoint_at:
            self._complete_from = log_offset
        self._note_settled(log_offset, list(self._queues))

    def _note_settled(self, log_offset: int, queue_ids: Collection[int]) -> None:
        """By the changes below `log_offset` nothing is unsettled below the floors of these queues' groups."""
        for queue_id, floor in self._floors(queue_ids).items():
            has_more = self._queues[queue_id].starts_below(floor)
            if has_more and log_offset <= self._confirmed:
                self._change(queue_id, QueueRuns.drop, floor)
            elif has_more:
                self._settled.append(_Settled(log_offset, queue_id, floor))

    def _change(self, queue_id: int, change: Callable[[QueueRuns, _T], None], to: _T) -> None:
        runs = self._queues.get(queue_id)
        before = 0 if runs is None else len(runs)
        runs = QueueRuns() if runs is None else runs
        change(runs, to)
        self.total += len(runs) - before
        if runs:
            self._queues[queue_id] = runs
        else:
            self._queues.pop(queue_id, None)


def _kept(row: RunRow) -> tuple[int, ...]:
    """As the columns of `QueueRuns` have it."""
    priority, ttl_ms, delay_ms = row.attributes
    ttl = _NO_TTL if ttl_ms is None else ttl_ms
    return row.first, row.until, priority, ttl, delay_ms, row.appended_us, row.spread_us


def _within_us(ttl_ms: int | None, delay_ms: int) -> int | None:
    """How far from each other the append times of one run may lie; None when they do not matter."""
    if ttl_ms is None and not delay_ms:
        return None
    shortest = min(each for each in (ttl_ms, delay_ms or None) if each is not None)
    return min(JOINED_US_MAX, shortest * 1000 // _JOINED_PART)


def _numbers(row: RunRow) -> tuple[int, ...]:
    """As `RunState` has them."""
    first, until, priority, ttl_ms, *times = _kept(row)
    return first, until - first, priority, ttl_ms + 1, *times


def _rows_of(state: RunState) -> list[RunRow]:
    """Raises BadBatch for numbers that make no sense."""
    if len(state.runs) % _FIELDS:
        raise BadBatch(f"runs of queue {state.queue_id} have {_FIELDS} numbers each, not {len(state.runs)} in all")
    rows, reached = [], 0
    for at in range(0, len(state.runs), _FIELDS):
        first, count, priority, ttl, delay_ms, appended_us, spread_us = state.runs[at : at + _FIELDS]
        fits = 0 <= priority <= 255 and ttl >= 0 and delay_ms >= 0 and 0 <= spread_us <= JOINED_US_MAX
        if not (reached <= first < first + count <= _OFFSETS and fits):
            raise BadBatch(f"run [{first}, {first + count}) of queue {state.queue_id} makes no sense behind {reached}")
        attributes = Attributes(priority, ttl - 1 if ttl else None, delay_ms)
        rows.append(RunRow(first, first + count, attributes, appended_us, spread_us))
        reached = first + count
    return rows
