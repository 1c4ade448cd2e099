"""Settlements of one acking group that wait for the end of the loop's turn, to be logged together. Pure.

A thousand acks that come at once are one change with a few ranges. Each is answered by itself, at its own level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Change, Returned, Settled, split_ranges
from mirrorlog.queues.delivery import Settlement
from mirrorlog.queues.ranges import RangeSet

CHANGES_BYTES_MAX: Final = 60_000
"""Of changes in one batch: with header and offsets it is below 64 KiB, the smallest `max_batch_bytes` that a node can
be told to allow; a mirror may allow less than its master."""
_BYTES_PER_CHANGE: Final = 128
_BYTES_PER_BORDER: Final = 9


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
    settled: dict[str, list[int]] = {}
    returned: dict[tuple[int, bool], list[int]] = {}
    others: list[Change] = []
    for change in changes:
        if isinstance(change, Settled):
            settled.setdefault(change.why, []).extend(change.ranges)
        elif isinstance(change, Returned):
            returned.setdefault((change.delay_ms, change.counted), []).extend(change.ranges)
        else:
            others.append(change)
    return [
        *(Settled(group=group, ranges=_joined(ranges), why=why) for why, ranges in settled.items()),
        *(
            Returned(group=group, ranges=_joined(ranges), delay_ms=delay_ms, counted=counted)
            for (delay_ms, counted), ranges in returned.items()
        ),
        *others,
    ]


def in_batches(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """The changes in their order, those with many ranges as several, in batches that every node takes."""
    batch: list[Change] = []
    room = CHANGES_BYTES_MAX
    for change in changes:
        for part in _parts(change):
            size = _size_max(part)
            if size > room and batch:
                yield batch
                batch, room = [], CHANGES_BYTES_MAX
            batch.append(part)
            room -= size
    if batch:
        yield batch


def _parts(change: Change) -> Iterator[Change]:
    if isinstance(change, Settled | Returned):
        for ranges in split_ranges(change.ranges):
            yield replace(change, ranges=ranges)
    else:
        yield change


def _size_max(change: Change) -> int:
    """How many bytes it takes in a batch, or fewer."""
    size = _BYTES_PER_CHANGE + len(getattr(change, "ranges", ())) * _BYTES_PER_BORDER
    return size + sum(len(getattr(change, text, "").encode()) for text in ("group", "holder"))


def _joined(flat: list[int]) -> list[int]:
    """Ranges in any order as ascending ones that do not touch. Not by way of a RangeSet: one may be a gap of 2^32."""
    borders: list[int] = []
    for first, until in sorted(zip(flat[::2], flat[1::2], strict=True)):
        if borders and first <= borders[-1]:
            borders[-1] = max(borders[-1], until)
        else:
            borders += (first, until)
    return borders
