"""The gaps in a queue's offsets after declared losses (decision 0023), found by asking at a few places.

Nobody lists a queue's gaps: a node answers PositionLost to whoever stands in one, naming where the queue goes on. A gap
is 2^32 offsets wide at least, so one that begins behind a record is met by the time so many have been passed; where it
begins is then found by halving. A queue without losses costs two questions.

Pure: `search` asks nobody itself. It is a generator of places, to be sent what was answered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

GAP_OFFSETS_MIN: Final = 2**32


@dataclass(frozen=True, slots=True)
class Gap:
    """Queue offsets that were never given to a record that is left: a declared loss (decision 0023)."""

    first: int
    next: int


Search = Generator[int, int | None, list[Gap]]
"""Yields queue offsets; to each it wants where the queue goes on when it lies in a gap, else None."""


def search(first: int, following: int) -> Search:
    """The gaps in `first` up to `following` (exclusive), in order, cut to that range."""
    gaps: list[Gap] = []
    record, at = first - 1, first  # `record`: the last place known to be in no gap
    while at < following:
        go_on_at = yield at
        if go_on_at is None:
            record = at
            at = max(at + 1, min(at + GAP_OFFSETS_MIN, following - 1))
            continue
        begin = yield from _begin(record, at)
        gaps.append(Gap(begin, min(max(go_on_at, at + 1), following)))
        record, at = gaps[-1].next - 1, gaps[-1].next
    return gaps


def _begin(record: int, lost: int) -> Generator[int, int | None, int]:
    """The first place of the gap that `lost` is in, which begins somewhere behind `record`."""
    while lost - record > 1:
        middle = (record + lost) // 2
        if (yield middle) is None:
            record = middle
        else:
            lost = middle
    return lost


def answered(places: Search, go_on_at: Callable[[int], int | None]) -> list[Gap]:
    """The result of a search, with every place answered by `go_on_at`."""
    try:
        place = next(places)
        while True:
            place = places.send(go_on_at(place))
    except StopIteration as end:
        found: list[Gap] = end.value
        return found


def joined(gaps: Iterable[Gap]) -> list[Gap]:
    """The same, in order, those that touch as one."""
    found: list[Gap] = []
    for gap in gaps:
        if found and gap.first <= found[-1].next:
            found[-1] = Gap(found[-1].first, max(found[-1].next, gap.next))
        else:
            found.append(gap)
    return found


def between(first: int, following: int, gaps: Sequence[Gap]) -> list[tuple[int, int]]:
    """What is left of `first` up to `following` (exclusive) without the gaps: ranges with a record at each offset."""
    edges = [first, *(edge for gap in gaps for edge in (gap.first, gap.next)), following]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in pairs if start < end]
