"""How much of what queues have goes into one trigger of a stream, and when there is a trigger. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirrorlog.spark.options import TriggerLimits
from mirrorlog.spark.plan import Bounds


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a queue has for a reader: `pieces` with a record at each queue offset, apart and in order. `end`: where the
    reader stands who has read them all, behind a gap if one follows."""

    pieces: tuple[Bounds, ...]
    end: int

    def __len__(self) -> int:
        return sum(following - first for first, following in self.pieces)

    def after(self, records: int) -> int:
        """Where the reader stands who has read so many, 1 and more."""
        left = records
        for first, following in self.pieces[:-1]:
            if left <= following - first:
                return first + left
            left -= following - first
        if not self.pieces or left >= self.pieces[-1][1] - self.pieces[-1][0]:
            return self.end
        return self.pieces[-1][0] + left


def shares(limit: int, sizes: Sequence[int], turn: int) -> list[int]:
    """Of `limit` records so many for each queue, in proportion to what it has, `limit` in all or everything.

    Each queue that has something gets a record at least, so that a small one does not wait until large ones are empty;
    with more such queues than records it is another one's turn with each `turn`. Rejected: rounding each share up, as
    the Kafka source does (more than the limit), or down (nothing for a small queue).
    """
    total = sum(sizes)
    if total <= limit:
        return list(sizes)
    waiting = [index for index, size in enumerate(sizes) if size]
    start = turn % len(waiting)
    first = set([*waiting[start:], *waiting[:start]][:limit])
    given = [int(index in first) for index in range(len(sizes))]
    left, rest = limit - len(first), total - len(waiting)
    if not left:
        return given
    more = [(size - one) * left // rest for size, one in zip(sizes, given, strict=True)]
    given = [one + some for one, some in zip(given, more, strict=True)]
    for index in waiting:
        one_more = min(1, limit - sum(given), sizes[index] - given[index])
        given[index] += one_more
    return given


def waits(limits: TriggerLimits, available: int, *, idle_ms: float | None) -> bool:
    """Whether a trigger is to wait for more records. `idle_ms`: since the last one, None before the first one."""
    if limits.records_min is None or idle_ms is None:
        return False
    return available < limits.records_min and idle_ms < limits.delay_ms
