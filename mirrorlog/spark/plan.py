"""Which queue offsets a job reads, and how they are shared out to tasks. Pure.

A plan is made of numbers only: the confirmed end as it was when the job was planned is written into it, so every
task, and every retry of a task, reads the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final, NamedTuple, Protocol, TypeVar

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import NoSuchQueue, NotCurrent, PositionLost
from mirrorlog.spark.errors import BadOption, BeginUnknown, RangeNotDense, RecordsMissing
from mirrorlog.spark.options import EARLIEST, LATEST, AtTime, Offsets, SourceOptions
from mirrorlog.spark.positions import QueuePosition

TASKS_MAX: Final = 100_000
"""Of one plan: each costs the driver memory, and Spark some milliseconds."""
MASTER: Final = "master"
"""Who reads from it wants all that is confirmed; who reads from others, what these know of."""
TASK_RECORDS: Final = 500_000
"""Of a task, where options do not say how many tasks there shall be."""

_GO_ON: Final = "set failOnDataLoss to false to go on without them"


class QueueSpan(NamedTuple):
    """A stretch of a queue that has moved (decision 0050): its records from queue offset `first` on, up to the next
    one's, are in this log."""

    log_id: str
    first: int


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue as its nodes know it; confirmed queue offsets are `begin` up to `next` (exclusive).

    `silent_master`: the master, when it did not answer, empty while there is none. Then whether anything below `begin`
    is left nobody can say: the copies that answered may all have begun late. `epoch`: the newest that anybody knows of,
    0 if unknown. `current`: whether its master said what is confirmed; False while that does not answer, there is none,
    or it does not know yet what its predecessor confirmed behind `next`. `mirrored`: whether it has copies besides the
    master's. `log_id`: the log that it is in now. `spans`: of a queue with records in several logs, the oldest first;
    `former_logs`: all that it was in, also those that have nothing of it any more.
    """

    cluster_id: str
    name: str
    incarnation: str
    log_id: str
    queue_id: int
    begin: int
    next: int
    silent_master: str | None = None
    epoch: int = 0
    current: bool = True
    mirrored: bool = field(default=True, compare=False)
    spans: tuple[QueueSpan, ...] = ()
    former_logs: tuple[str, ...] = field(default=(), compare=False)

    def range(self, first: int, following: int) -> QueueRange:
        """Its queue offsets `first` up to `following` (exclusive), in whichever logs; see `in_logs`."""
        return QueueRange(self.cluster_id, self.name, self.log_at(first), self.queue_id, first, following)

    def in_logs(self, wanted: QueueRange) -> list[QueueRange]:
        """The same records in ranges that are within one log each, and name it; none are empty."""
        within = [span.first for span in self.spans if wanted.first < span.first < wanted.next]
        edges = [wanted.first, *sorted(set(within)), wanted.next]
        return [
            replace(wanted, log_id=self.log_at(first), first=first, next=following)
            for first, following in pairwise(edges)
            if first < following
        ]

    def log_at(self, queue_offset: int) -> str:
        """The log in which that record stands, or will stand."""
        held = (span.log_id for span in reversed(self.spans) if span.first <= queue_offset)
        return next(held, self.log_id)

    @property
    def logs(self) -> tuple[str, ...]:
        """All that it is or was in, each once."""
        return tuple(dict.fromkeys((*self.former_logs, *(span.log_id for span in self.spans), self.log_id)))

    @property
    def begin_unknown(self) -> str | None:
        """Why reading from `begin` on might leave records out; None when it cannot."""
        if self.silent_master is None or not self.begin:
            return None
        if not self.silent_master:
            return (
                f"queue {self.name!r} has no master at the moment, and the copies that answer have it from "
                f"{self.begin} on; whether they lack what is below it, or that is gone for good, only a master can say"
            )
        return (
            f"queue {self.name!r}: its master {self.silent_master} does not answer, and the other copies have it from "
            f"{self.begin} on; whether they lack what is below it, or that is gone for good, only {self.silent_master} "
            "can say"
        )


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The records of a queue from `first` up to `next` (exclusive). The ids tell it from a later queue of the name; of
    a range that is to be read `log_id` is the log that they are in.

    `turn`: number of the task, so that those who read from mirrors are spread over them.
    """

    cluster_id: str
    queue: str
    log_id: str
    queue_id: int
    first: int
    next: int
    turn: int = 0

    def __len__(self) -> int:
        return self.next - self.first

    def __str__(self) -> str:
        return f"queue {self.queue!r} from {self.first} up to {self.next}"


class OffsetStretch(Protocol):
    """A piece of a queue that a reader got: queue offsets `first` up to `next` (exclusive)."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


_T = TypeVar("_T", bound=OffsetStretch)

Bounds = tuple[int, int]
"""Queue offsets, the first and behind the last."""


@dataclass(frozen=True, slots=True)
class TimeOffsets:
    """Where the nodes found the times that options name, by queue: the first queue offset appended then or later."""

    starting: Mapping[str, int] = field(default_factory=dict)
    ending: Mapping[str, int] = field(default_factory=dict)


NOTHING_FOUND: Final = TimeOffsets()


def plan(options: SourceOptions, queues: Iterable[QueueFacts]) -> list[QueueRange]:
    """What each task reads; queues without records in their range have no task.

    Raises BadOption, RecordsMissing, or BeginUnknown when it cannot be told what is missing.
    """
    return tasks(options, ranges(options, list(queues)))


def ranges(
    options: SourceOptions, queues: Sequence[QueueFacts], found: TimeOffsets = NOTHING_FOUND
) -> list[QueueRange]:
    """The range of each queue, whole; empty ones are left out.

    Raises BadOption, RecordsMissing, BeginUnknown, and NotCurrent while the end of a queue is known to nobody.
    """
    _refuse_unnamed(options, [facts.name for facts in queues])
    return [each for each in (_range(options, facts, found) for facts in queues) if len(each)]


def tasks(options: SourceOptions, wanted: Sequence[QueueRange]) -> list[QueueRange]:
    """The same records shared out to tasks. Raises BadOption when there were too many."""
    records_max = options.partition_records_max
    if records_max is None and options.min_partitions == 1:
        records_max = TASK_RECORDS
    return split(wanted, options.min_partitions, records_max)


def split(wanted: Sequence[QueueRange], pieces_min: int, records_max: int | None = None) -> list[QueueRange]:
    """The same records in at least `pieces_min` ranges, each with at least one and at most `records_max`, of nearly
    equal length per range; each has a turn of its own. Raises BadOption when there were more than TASKS_MAX."""
    total = sum(map(len, wanted))
    shares = [_share(len(each), total, pieces_min, records_max) for each in wanted if len(each)]
    if sum(shares) > TASKS_MAX:
        raise BadOption(f"{total} records would be shared out to {sum(shares)} tasks; at most {TASKS_MAX} are planned")
    pieces = (piece for each, share in zip(filter(len, wanted), shares, strict=True) for piece in _cut(each, share))
    return [replace(piece, turn=turn) for turn, piece in enumerate(pieces)]


def narrowed(wanted: Iterable[QueueRange], bounds: Sequence[Bounds]) -> list[QueueRange]:
    """What of the ranges lies within any of `bounds`, which are apart and in order."""
    return [
        replace(each, first=max(each.first, first), next=min(each.next, following))
        for each in wanted
        for first, following in bounds
        if max(each.first, first) < min(each.next, following)
    ]


def _share(length: int, total: int, pieces_min: int, records_max: int | None) -> int:
    """Rounded up: so the shares sum up to at least `pieces_min`."""
    pieces = -(-length * pieces_min // total)
    return min(length, pieces if records_max is None else max(pieces, -(-length // records_max)))


def _cut(whole: QueueRange, pieces: int) -> Iterator[QueueRange]:
    marks = [whole.first + len(whole) * number // pieces for number in range(pieces + 1)]
    for first, following in pairwise(marks):
        yield replace(whole, first=first, next=following)


def _refuse_unnamed(options: SourceOptions, names: Sequence[str]) -> None:
    """Under a pattern only the plan knows which queues there are."""
    for option, offsets in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        unnamed = [name for name in names if isinstance(offsets, Mapping) and name not in offsets]
        if unnamed:
            raise BadOption(f"option {option!r} must name every queue that matches, also {', '.join(unnamed)}")


def _range(options: SourceOptions, facts: QueueFacts, found: TimeOffsets) -> QueueRange:
    first = starting_offset(options, facts, found)
    following = _ending_offset(options, facts, found)
    if first > following and _given(options.ending, facts.name) >= 0:
        raise BadOption(f"queue {facts.name!r}: startingOffsets {first} is above endingOffsets {following}")
    if options.fail_on_data_loss:
        refuse_unknown(options, facts, first)
        _refuse_missing(facts, first, following)
    first = max(first, facts.begin)
    following = min(following, facts.next)
    return facts.range(first, max(first, following))


def starting_offset(options: SourceOptions, facts: QueueFacts, found: TimeOffsets = NOTHING_FOUND) -> int:
    """Where to begin to read a queue. Raises BadOption, and NotCurrent when that is its end and nobody knows it."""
    starting = options.starting
    if not isinstance(starting, AtTime):
        return _resolve(starting, facts, options)
    if found.starting[facts.name] < facts.next:
        return found.starting[facts.name]
    if not starting.else_latest:
        raise BadOption(
            f"queue {facts.name!r} has no record that was appended at {starting.of(facts.name)} µs or later; set "
            "startingOffsetsByTimestampStrategy to latest to begin at its end then"
        )
    return confirmed_end(facts, options.read_from)


def _ending_offset(options: SourceOptions, facts: QueueFacts, found: TimeOffsets) -> int:
    if not isinstance(options.ending, AtTime):
        following = _resolve(options.ending, facts, options)
        # More may be confirmed than is known at the moment.
        return following if following <= facts.next else max(following, confirmed_end(facts, options.read_from))
    at = found.ending[facts.name]
    return at if at < facts.next else confirmed_end(facts, options.read_from)


def _given(offsets: Offsets, queue: str) -> int:
    if isinstance(offsets, str):
        return EARLIEST if offsets == "earliest" else LATEST
    if isinstance(offsets, AtTime):
        return LATEST
    given = offsets[queue]
    return given.offset if isinstance(given, QueuePosition) else given


def _resolve(offsets: Offsets, facts: QueueFacts, options: SourceOptions) -> int:
    given = _given(offsets, facts.name)
    if given == LATEST:
        return confirmed_end(facts, options.read_from)
    return facts.begin if given == EARLIEST else given


def confirmed_end(facts: QueueFacts, read_from: str) -> int:
    """Behind all that is confirmed, by the word of the master. Raises NotCurrent while there is none that knows it; but
    who reads from mirrors while no master answers has what these know of."""
    if facts.current or (facts.silent_master is not None and read_from != MASTER):
        return facts.next
    if facts.silent_master is None:
        why = "has a new master that does not know yet"
    elif not facts.silent_master:
        why = "has no master at the moment, and nobody else knows"
    else:
        why = f"has a master, {facts.silent_master}, that does not answer, and the other copies may not know"
    raise NotCurrent(
        f"queue {facts.name!r} {why} what is confirmed behind {facts.next}; run again, or read what the others know "
        "(read_from=mirror)"
    )


def refuse_unknown(options: SourceOptions, facts: QueueFacts, first: int) -> None:
    """Raises BeginUnknown when records may be left out by beginning at `first`, and nobody can say."""
    earliest = not isinstance(options.starting, AtTime) and _given(options.starting, facts.name) == EARLIEST
    if facts.begin_unknown and (first < facts.begin or earliest):
        advice = f"run again once it does, or start at {facts.begin} or later (startingOffsets)"
        raise BeginUnknown(f"{facts.begin_unknown}; {advice}", begin=facts.begin, next=facts.next)


def _refuse_missing(facts: QueueFacts, first: int, following: int) -> None:
    if first < facts.begin:
        raise freed(facts, first)
    if max(first, following) > facts.next:
        raise beyond(facts, max(first, following))


def freed(facts: QueueFacts, first: int) -> RecordsMissing:
    """For who wanted to begin to read at `first`."""
    return RecordsMissing(
        f"queue {facts.name!r}: {first} up to {facts.begin} are gone, it begins at {facts.begin}; {_GO_ON}",
        begin=facts.begin,
        next=facts.next,
    )


def beyond(facts: QueueFacts, following: int) -> RecordsMissing:
    """For who wanted to read up to `following`."""
    return RecordsMissing(
        f"queue {facts.name!r}: {following} is above {facts.next}, its confirmed end; {_GO_ON}",
        begin=facts.begin,
        next=facts.next,
    )


def no_such_queue(missing: Sequence[str], silent: Sequence[str]) -> NoSuchQueue:
    """For who asked for the queues `missing`; `silent`: nodes that did not answer."""
    unsure = f" (on the nodes that answer; {', '.join(silent)} may know it)" if silent else ""
    return NoSuchQueue(f"no queue {', '.join(map(repr, missing))}{unsure}; see: mqtool queues")


def dense(wanted: QueueRange, stretches: Iterable[_T]) -> Iterator[_T]:
    """The stretches as they come, checked to be `wanted` exactly: every queue offset once, in order.

    Raises RangeNotDense at the first one that does not follow, and at the end when some are missing.
    """
    expected = wanted.first
    for stretch in stretches:
        if stretch.first != expected or not expected < stretch.next <= wanted.next:
            raise RangeNotDense(
                f"{wanted}: the nodes gave {stretch.first} up to {stretch.next} where {expected} was to follow"
            )
        expected = stretch.next
        yield stretch
    if expected != wanted.next:
        raise RangeNotDense(f"{wanted}: the nodes gave nothing from {expected} on")


class QueuePlace(NamedTuple):
    """A queue offset of a queue."""

    facts: QueueFacts
    queue_offset: int


Seen = BatchHeader | PositionLost | None
"""The header of the batch at a place; PositionLost in a gap, None when it is gone."""
