"""Settlements of one acking group that wait for the end of the loop's turn, to be logged together. Pure.

A thousand acks that come at once are one change with a few ranges. Each is answered by itself, at its own level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Change, Returned, Settled
from mirrorlog.queues.delivery import Settlement
from mirrorlog.queues.ranges import RangeSet


class Asked(NamedTuple):
    """A settlement; `done` is called when so many copies have it, or with the error."""

    settlement: Settlement
    copies: int
    done: Callable[[MirrorlogError | None], None]


class Gathered:
    """Ranges of what is gathered are disjoint: whoever adds looks with `meets` first."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self._ranges = RangeSet()

    def meets(self, ranges: Iterable[int]) -> bool:
        """Whether anything of these, flat, is being settled already."""
        if not len(self._ranges):
            return False
        flat = iter(ranges)
        return any(self._ranges.within(first, until) for first, until in zip(flat, flat, strict=False))

    def add(self, asked: Asked) -> None:
        self.asked.append(asked)
        for first, until in asked.settlement.ranges:
            self._ranges.add(first, until)

    @property
    def settlements(self) -> list[Settlement]:
        return [each.settlement for each in self.asked]

    def changes(self, group: str) -> list[Change]:
        """All of it in as few changes as it can be."""
        return merged(group, (change for each in self.asked for change in each.settlement.changes))


def merged(group: str, changes: Iterable[Change]) -> list[Change]:
    """Settlements and returns of one group that differ in nothing but their ranges as one; others as they are."""
    settled: dict[str, RangeSet] = {}
    returned: dict[tuple[int, bool], RangeSet] = {}
    others: list[Change] = []
    for change in changes:
        if isinstance(change, Settled):
            _add(settled.setdefault(change.why, RangeSet()), change.ranges)
        elif isinstance(change, Returned):
            _add(returned.setdefault((change.delay_ms, change.counted), RangeSet()), change.ranges)
        else:
            others.append(change)
    return [
        *(Settled(group=group, ranges=_flat(ranges), why=why) for why, ranges in settled.items()),
        *(
            Returned(group=group, ranges=_flat(ranges), delay_ms=delay_ms, counted=counted)
            for (delay_ms, counted), ranges in returned.items()
        ),
        *others,
    ]


def in_batches(changes: Iterable[Change], ranges_max: int) -> Iterator[list[Change]]:
    """Changes with so many ranges at most, together in batches of which the same is true."""
    batch: list[Change] = []
    room = ranges_max
    for change in changes:
        for part in _parts(change, ranges_max):
            size = len(part.ranges) // 2 if isinstance(part, Settled | Returned) else 1
            if size > room:
                yield batch
                batch, room = [], ranges_max
            batch.append(part)
            room -= size
    if batch:
        yield batch


def _parts(change: Change, ranges_max: int) -> Iterator[Change]:
    if not isinstance(change, Settled | Returned) or len(change.ranges) <= 2 * ranges_max:
        yield change
        return
    for at in range(0, len(change.ranges), 2 * ranges_max):
        ranges = change.ranges[at : at + 2 * ranges_max]
        if isinstance(change, Settled):
            yield Settled(group=change.group, ranges=ranges, why=change.why)
        else:
            yield Returned(group=change.group, ranges=ranges, delay_ms=change.delay_ms, counted=change.counted)


def _add(ranges: RangeSet, flat: list[int]) -> None:
    for at in range(0, len(flat), 2):
        ranges.add(flat[at], flat[at + 1])


def _flat(ranges: RangeSet) -> list[int]:
    return [border for each in ranges for border in each]
