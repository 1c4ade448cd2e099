"""Which queue offsets a job reads, and how they are shared out to tasks. Pure.

A plan is made of numbers only: the confirmed end as it was when the job was planned is written into it, so every
task, and every retry of a task, reads the same records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeVar

from mirrorlog.spark.errors import BadOption, BeginUnknown, RangeNotDense, RecordsMissing
from mirrorlog.spark.options import EARLIEST, LATEST, Offsets, SourceOptions


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue as its nodes know it; confirmed queue offsets are `begin` up to `next` (exclusive).

    `silent_master`: the master, when it did not answer. Then whether anything below `begin` is left nobody can say: the
    copies that answered may all have begun late.
    """

    cluster_id: str
    name: str
    incarnation: str
    log_id: str
    queue_id: int
    begin: int
    next: int
    silent_master: str | None = None

    @property
    def begin_unknown(self) -> str | None:
        """Why reading from `begin` on might leave records out; None when it cannot."""
        if self.silent_master is None or not self.begin:
            return None
        return (
            f"queue {self.name!r}: its master {self.silent_master} does not answer, and the other copies have it from "
            f"{self.begin} on; whether they lack what is below it, or that is gone for good, only {self.silent_master} "
            "can say"
        )


@dataclass(frozen=True, slots=True)
class QueueRange:
    """The records of a queue from `first` up to `next` (exclusive). The ids tell it from a later queue of the name."""

    cluster_id: str
    queue: str
    log_id: str
    queue_id: int
    first: int
    next: int

    def __len__(self) -> int:
        return self.next - self.first

    def __str__(self) -> str:
        return f"queue {self.queue!r} from {self.first} up to {self.next}"


class Stretch(Protocol):
    """A piece of a queue that a reader got: queue offsets `first` up to `next` (exclusive)."""

    @property
    def first(self) -> int: ...
    @property
    def next(self) -> int: ...


_T = TypeVar("_T", bound=Stretch)


def plan(options: SourceOptions, queues: Iterable[QueueFacts]) -> list[QueueRange]:
    """What each task reads; queues without records in their range have no task.

    Raises BadOption, RecordsMissing, or BeginUnknown when it cannot be told what is missing.
    """
    return split([_range(options, facts) for facts in queues], options.min_partitions)


def split(ranges: Sequence[QueueRange], pieces_min: int) -> list[QueueRange]:
    """The same records in at least `pieces_min` ranges, each with at least one, of nearly equal length per queue."""
    total = sum(map(len, ranges))
    return [
        piece for each in ranges if len(each) for piece in _cut(each, -(-len(each) * pieces_min // total))
    ]  # the share, rounded up: so the shares sum up to at least pieces_min


def _cut(whole: QueueRange, pieces: int) -> Iterator[QueueRange]:
    pieces = min(pieces, len(whole))
    marks = [whole.first + len(whole) * number // pieces for number in range(pieces + 1)]
    for first, following in pairwise(marks):
        yield replace(whole, first=first, next=following)


def _range(options: SourceOptions, facts: QueueFacts) -> QueueRange:
    first = _resolve(options.starting, facts)
    following = _resolve(options.ending, facts)
    if first > following and _given(options.ending, facts.name) >= 0:
        raise BadOption(f"queue {facts.name!r}: startingOffsets {first} is above endingOffsets {following}")
    if options.fail_on_data_loss:
        _refuse_unknown(options, facts, first)
        _refuse_missing(facts, first, following)
    first = max(first, facts.begin)
    following = min(following, facts.next)
    return QueueRange(facts.cluster_id, facts.name, facts.log_id, facts.queue_id, first, max(first, following))


def _given(offsets: Offsets, queue: str) -> int:
    if isinstance(offsets, str):
        return EARLIEST if offsets == "earliest" else LATEST
    return offsets[queue]


def _resolve(offsets: Offsets, facts: QueueFacts) -> int:
    given = _given(offsets, facts.name)
    return {EARLIEST: facts.begin, LATEST: facts.next}.get(given, given)


def _refuse_unknown(options: SourceOptions, facts: QueueFacts, first: int) -> None:
    if facts.begin_unknown and (first < facts.begin or _given(options.starting, facts.name) == EARLIEST):
        advice = f"run again once it does, or start at {facts.begin} or later (startingOffsets)"
        raise BeginUnknown(f"{facts.begin_unknown}; {advice}", begin=facts.begin, next=facts.next)


def _refuse_missing(facts: QueueFacts, first: int, following: int) -> None:
    advice = "set failOnDataLoss to false to go on without them"
    if first < facts.begin:
        raise RecordsMissing(
            f"queue {facts.name!r}: {first} up to {facts.begin} are gone, it begins at {facts.begin}; {advice}",
            begin=facts.begin,
            next=facts.next,
        )
    if max(first, following) > facts.next:
        raise RecordsMissing(
            f"queue {facts.name!r}: {max(first, following)} is above {facts.next}, its confirmed end; {advice}",
            begin=facts.begin,
            next=facts.next,
        )


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
