"""Stretches of a queue that come together: in changes and frames flat (first, until, first, until, …), else as pairs
[first, until). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mirrorlog.errors import BadRequest
from mirrorlog.queues.changes import Change, Departing, Returned, Settled
from mirrorlog.queues.ranges import Range, RangeSet


def pairs_of(ranges: Sequence[int]) -> list[Range]:
    """Raises BadRequest for ranges that are empty, or not in order."""
    pairs = list(zip(ranges[::2], ranges[1::2], strict=True))
    at = 0
    for first, until in pairs:
        if not at <= first < until:
            raise BadRequest(f"ranges rise and hold something each, not {first} to {until} behind {at}")
        at = until
    return pairs


def joined(ranges: Iterable[Range]) -> Iterator[Range]:
    """Neighbours as one."""
    last: Range | None = None
    for each in ranges:
        if last is not None and last[1] == each[0]:
            last = last[0], each[1]
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def flat(ranges: Iterable[Range]) -> list[int]:
    """Neighbours as one."""
    borders: list[int] = []
    for first, until in ranges:
        if borders and borders[-1] == first:
            borders[-1] = until
        else:
            borders += (first, until)
    return borders


def ended(change: Change) -> list[Range]:
    """The records that end with it."""
    return pairs_of(change.ranges) if isinstance(change, Settled | Departing) else []


def given_again(change: Change) -> list[Range]:
    """Those that are given out again by it."""
    return pairs_of(change.ranges) if isinstance(change, Returned) else []


def add_all(ranges: RangeSet, more: Iterable[Range]) -> None:
    for first, until in more:
        ranges.add(first, until)
