"""Settlements of one acking group that wait for the end of the loop's turn, to be logged together. Pure.

A thousand acks that come at once are one change with a few ranges. Each is answered by itself, at its own level. What
does not fit into one batch, as a thousand returns with a delay each, is logged in several, and who is in one that is
refused hears of it alone: what the others hear is what was logged of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from msgspec.structs import replace

from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Change, Departing, Returned, Settled, Watermark, split_ranges
from mirrorlog.queues.delivery import Settlement
from mirrorlog.queues.ranges import RangeSet

CHANGES_BYTES_MAX: Final = 60_000
"""Of changes in one batch: with header and offsets it is below 64 KiB, the smallest `max_batch_bytes` that a node can
be told to allow; a mirror may allow less than its master."""
_BYTES_PER_CHANGE: Final = 128
_BYTES_PER_BORDER: Final = 9
_TEXTS: Final = ("group", "holder", "exchange", "routing_key", "reason")


class Asked(NamedTuple):
    """A settlement; `done` is called when so many copies have it, or with the error."""

    settlement: Settlement
    copies: int
    done: Callable[[MirrorlogError | None], None]


class Part(NamedTuple):
    """Settlements that are logged together, and the changes which that takes. These fit into one batch, unless it is
    one settlement of very many ranges."""

    asked: list[Asked]
    changes: list[Change]

    @property
    def settlements(self) -> list[Settlement]:
        return [each.settlement for each in self.asked]


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
        return any(self._ranges.meets(first, until) for first, until in zip(flat, flat, strict=False))

    def add(self, asked: Asked) -> None:
        self.asked.append(asked)
        for first, until in asked.settlement.ranges:
            self._ranges.add(first, until)

    def parts(self, group: str) -> Iterator[Part]:
        """All of it in its order, as few parts as there can be. What is too much for one batch is several, each of
        which is logged, with a watermark, or refused, alone."""
        some: list[Asked] = []
        room = room_max = CHANGES_BYTES_MAX - _size_max(Watermark(group=group, queue_offset=0))
        for asked in self.asked:
            size = sum(map(_size_max, asked.settlement.changes))
            if size > room and some:
                yield Part(some, _changes_of(group, some))
                some, room = [], room_max
            some.append(asked)
            room -= size
        if some:
            yield Part(some, _changes_of(group, some))


def _changes_of(group: str, some: Iterable[Asked]) -> list[Change]:
    return merged(group, (change for each in some for change in each.settlement.changes))


def merged(group: str, changes: Iterable[Change]) -> list[Change]:
    """Settlements and returns of one group that differ in nothing but their ranges as one; others as they are."""
    settled: dict[str, list[int]] = {}
    returned: dict[tuple[int, bool], list[int]] = {}
    departing: dict[int, list[Departing]] = {}
    others: list[Change] = []
    for change in changes:
        if isinstance(change, Settled):
            settled.setdefault(change.why, []).extend(change.ranges)
        elif isinstance(change, Returned):
            returned.setdefault((change.delay_ms, change.counted), []).extend(change.ranges)
        elif isinstance(change, Departing):
            departing.setdefault(change.departure, []).append(change)
        else:
            others.append(change)
    return [
        *(Settled(group=group, ranges=_joined(ranges), why=why) for why, ranges in settled.items()),
        *(
            Returned(group=group, ranges=_joined(ranges), delay_ms=delay_ms, counted=counted)
            for (delay_ms, counted), ranges in returned.items()
        ),
        *(replace(each[0], ranges=_joined([at for one in each for at in one.ranges])) for each in departing.values()),
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


def ranges_of(changes: Iterable[Change]) -> tuple[tuple[int, int], ...]:
    """What settlements and returns among them are about, ascending."""
    flat = [border for each in changes if isinstance(each, Settled | Returned | Departing) for border in each.ranges]
    borders = _joined(flat)
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def _parts(change: Change) -> Iterator[Change]:
    if isinstance(change, Settled | Returned | Departing):
        for ranges in split_ranges(change.ranges):
            yield replace(change, ranges=ranges)
    else:
        yield change


def _size_max(change: Change) -> int:
    """How many bytes it takes in a batch, or fewer."""
    size = _BYTES_PER_CHANGE + len(getattr(change, "ranges", ())) * _BYTES_PER_BORDER
    return size + sum(len((getattr(change, text, "") or "").encode()) for text in _TEXTS)


def _joined(flat: list[int]) -> list[int]:
    """Ranges in any order as ascending ones that do not touch. Not by way of a RangeSet: one may be a gap of 2^32."""
    borders: list[int] = []
    for first, until in sorted(zip(flat[::2], flat[1::2], strict=True)):
        if borders and first <= borders[-1]:
            borders[-1] = max(borders[-1], until)
        else:
            borders += (first, until)
    return borders
