"""A subscription's unacknowledged records: granted to it, given out to its user or not yet, and not settled. Pure.

A grant is a stretch of one batch, so this holds a few numbers per grant. Who settles in order, or whole grants, moves a
number; only who settles out of order pays a byte for each record of that grant.

A record may come again while its user still has it from before: after a failover, or a lost connection. Then there are
two of it here, each under its own session, and an ack of the older one keeps the newer one back until it is known what
became of it (`withhold`): what is acknowledged is not given out again, and what could not be is.

What was given out in a session is known for as long as its user has a record of it: each grant leads to the others of
its session, and when he lets the last one go they go with it. Rejected: to remember the session before (two may be lost
in a row, and then an ack of the first one's records changed nothing and was told as done), or all of them (a user who
waits for records to come again lets go of what he has, and nobody is told).

Rejected: a set of queue offsets (a hash entry per record), a list of ranges (acks in random order make one each).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

from mirrorlog.errors import NotGranted

# Ranges of queue offsets: joining them, and cutting one out of another. Pure.
#
# A range is (first, next), next exclusive, never empty. Lists of them are ascending and disjoint, unless it is said
# otherwise.


RANGES_MAX: Final = 4_096
"""Of one frame: 64 KiB. What is acknowledged in a random order makes a range of each record."""

Range = tuple[int, int]
"""(first, next): the first queue offset and the one behind the last."""


def joined(ranges: Iterable[Range]) -> list[Range]:
    """The same queue offsets in as few ranges as can be. They may come in any order and overlap."""
    found: list[Range] = []
    for first, following in sorted(ranges):
        if found and first <= found[-1][1]:
            if following > found[-1][1]:
                found[-1] = found[-1][0], following
        else:
            found.append((first, following))
    return found


def common(first: int, following: int, ranges: Sequence[Range]) -> list[Range]:
    """What of `first` up to `following` stands in `ranges`."""
    return [
        (max(first, each_first), min(following, each_next))
        for each_first, each_next in ranges
        if each_first < following and first < each_next
    ]


def without(first: int, following: int, ranges: Sequence[Range]) -> list[Range]:
    """What of `first` up to `following` does not stand in `ranges`."""
    left: list[Range] = []
    at = first
    for taken_first, taken_next in common(first, following, ranges):
        if at < taken_first:
            left.append((at, taken_first))
        at = taken_next
    if at < following:
        left.append((at, following))
    return left


def flat(ranges: Iterable[Range]) -> list[int]:
    """As frames have them: first, next, first, next, …"""
    return [number for each in ranges for number in each]


def count(ranges: Iterable[Range]) -> int:
    """How many queue offsets they hold."""
    return sum(following - first for first, following in ranges)


class Granted:
    """A grant: records `first` up to `next`, of which those below `given` were given out.

    `session`: the number of the subscribing that it came under, `epoch`: of that; `source`: where its bytes are, for
    whoever gives them out. `number`: by when the first of it was given out; `peers`: grants of its session of which
    something was given out, in that order, itself among them as long as it may be settled. `arrival`: by when it came:
    those that came first are given out first, wherever they stand in the queue, for they may be urgent. `size`: bytes
    of what was given out of it, as of whole batches.
    """

    __slots__ = (
        "_floor", "_marks", "_settled",
        "arrival", "attempts", "epoch", "first", "given", "next", "number", "peers", "redelivered", "session", "size",
        "source",
    )  # fmt: skip

    def __init__(
        self,
        first: int,
        following: int,
        *,
        session: int,
        epoch: int,
        redelivered: bool = False,
        attempts: int = 0,
        source: Any = None,
    ) -> None:
        self.first = first
        self.next = following
        self.session = session
        self.epoch = epoch
        self.redelivered = redelivered
        self.attempts = attempts
        self.source = source
        self.given = first
        self.arrival = 0
        self.number = 0
        self.size = 0.0
        self.peers: dict[Granted, None] | None = None
        self._settled = 0
        # Below it all are settled, as long as there are no marks: one byte per record.
        self._floor = first
        self._marks: bytearray | None = None

    def settle(self, first: int, following: int) -> bool:
        """Mark records that were given out; whether all that were are settled now. Raises NotGranted when one of them
        is settled already."""
        if self._marks is None and first == self._floor:
            self._floor = following
        else:
            self._mark(first, following)
        self._settled += following - first
        return self._settled == self.given - self.first

    def reopen(self, first: int, following: int) -> None:
        """Records that were marked are not settled after all."""
        marks = self._own_marks()
        marks[first - self.first : following - self.first] = bytes(following - first)
        self._settled -= following - first

    def open_below(self, following: int) -> list[Range]:
        """The records below `following` that were given out and are not settled."""
        end = min(following, self.given)
        if self._marks is None:
            return [(self._floor, end)] if self._floor < end else []
        return list(self._gaps(self._marks, end))

    def parts(self, ranges: Iterable[Range]) -> list[Granted]:
        """Records of it that were not given out, as grants of their own."""
        return [self._part(*each) for each in ranges]

    def _part(self, first: int, following: int) -> Granted:
        part = Granted(
            first,
            following,
            session=self.session,
            epoch=self.epoch,
            redelivered=self.redelivered,
            attempts=self.attempts,
            source=self.source,
        )
        part.arrival = self.arrival
        return part

    def _mark(self, first: int, following: int) -> None:
        marks = self._own_marks()
        at = marks.find(1, first - self.first, following - self.first)
        if at >= 0:
            raise NotGranted(f"queue offset {self.first + at} was settled before; a record is settled once")
        marks[first - self.first : following - self.first] = b"\1" * (following - first)

    def _own_marks(self) -> bytearray:
        if self._marks is None:
            settled = self._floor - self.first
            self._marks = bytearray(b"\1" * settled + bytes(self.next - self._floor))
        return self._marks

    def _gaps(self, marks: bytearray, end: int) -> Iterator[Range]:
        stop = end - self.first
        at = marks.find(0, 0, stop)
        while at >= 0:
            until = marks.find(1, at, stop)
            until = stop if until < 0 else until
            yield self.first + at, self.first + until
            at = marks.find(0, until, stop)


class Unacked:
    """The unacknowledged records of one subscription. `session`: grants of another one are no longer its own;
    `waiting`: what is to be given out next, in order."""

    __slots__ = ("_arrived", "_kept_back", "_number", "_out", "_withheld", "session", "waiting")

    def __init__(self) -> None:
        self.session = 0
        self.waiting: deque[Granted] = deque()
        self._arrived = 0
        self._number = 0
        # Grants of this session of which something was given out, in that order; see `Granted.peers`.
        self._out: dict[Granted, None] = {}
        # What is kept back, and what of it stands here, by who keeps it.
        self._kept_back: dict[Hashable, Sequence[Range]] = {}
        self._withheld: dict[Hashable, list[Granted]] = {}

    def grant(self, granted: Granted) -> None:
        """Take in a grant, behind those that wait."""
        self._arrived += 1
        granted.arrival = self._arrived
        pieces = [granted]
        for by, ranges in self._kept_back.items():
            pieces = self._cut(pieces, by, ranges)
        self.waiting.extend(pieces)

    def head(self) -> Granted | None:
        """What is to be given out next; None while nothing is."""
        waiting = self.waiting
        while waiting and waiting[0].given >= waiting[0].next:
            waiting.popleft()
        return waiting[0] if waiting else None

    def skip(self, granted: Granted, following: int) -> Range | None:
        """Records below `following` that wait are not there any more; which, if any, for whoever has to settle them."""
        end = min(max(following, granted.given), granted.next)
        if granted.given >= end:
            return None
        granted.given, skipped = end, granted.given
        granted.settle(skipped, end)
        return skipped, end

    def giving(self, granted: Granted, size: float = 0.0) -> None:
        """Something of it, of so many bytes, is given out from now on."""
        granted.size += size
        if not granted.number:
            self._number += 1
            granted.number = self._number
            granted.peers = self._out
            self._out[granted] = None

    def settle(self, granted: Granted, first: int, following: int) -> None:
        """The user settles what he was given. Raises NotGranted for what was settled before."""
        if granted.settle(first, following) and granted.given >= granted.next and granted.peers is not None:
            granted.peers.pop(granted, None)

    def settle_up_to(self, granted: Granted, following: int) -> list[tuple[Granted, Range]]:
        """The same with all that was given out under its session before it, and of it below `following`; what that
        was."""
        found = [
            (each, open_range)
            for each in _peers(granted)
            if each.number <= granted.number
            for open_range in each.open_below(following if each is granted else each.given)
        ]
        for each, (first, behind) in found:
            self.settle(each, first, behind)
        return found

    def reopen(self, granted: Granted, first: int, following: int) -> None:
        """What the user settled could not be: he may try again."""
        granted.reopen(first, following)
        _peers(granted).setdefault(granted)

    def withhold(self, by: Hashable, ranges: Sequence[Range]) -> None:
        """Give nothing of `ranges` out until `by` is released: neither what waits now nor what is granted later."""
        self._kept_back[by] = ranges
        self.waiting = deque(self._cut(self.waiting, by, ranges))

    def release(self, by: Hashable, *, settled: bool, but: Sequence[Range] = ()) -> bool:
        """What `by` kept back is settled, `but` for these ranges, or is to be given out after all. Whether something
        is."""
        self._kept_back.pop(by, None)
        held = self._withheld.pop(by, [])
        if settled:
            held = [part for each in held for part in each.parts(common(each.given, each.next, but))]
        if held:
            self.waiting = deque(sorted([*held, *self.waiting], key=lambda each: (each.arrival, each.given)))
        return bool(held)

    def lose(self) -> None:
        """The session is over: what was not given out is somebody else's, or comes again."""
        self.session += 1
        self.waiting.clear()
        self._withheld.clear()
        self._out = {}

    def unseen(self) -> list[Range]:
        """What waits, or is kept back, and was not given out."""
        held = [each for kept in self._withheld.values() for each in kept]
        return [(each.given, each.next) for each in [*self.waiting, *held] if each.given < each.next]

    def unsettled_size(self) -> tuple[int, float]:
        """How many records were given out in this session and are not settled, and of how many bytes: of a grant that
        is settled in part, in proportion."""
        records, size = 0, 0.0
        for each in self._out:
            open_records = count(each.open_below(each.given))
            records += open_records
            size += each.size * open_records / max(1, each.given - each.first)
        return records, size

    def unsettled(self) -> list[tuple[Granted, Range]]:
        """What was given out in this session and is not settled."""
        return [(each, open_range) for each in self._out for open_range in each.open_below(each.given)]

    def _cut(self, grants: Iterable[Granted], by: Hashable, ranges: Sequence[Range]) -> list[Granted]:
        """The grants without what `by` keeps back, which is put aside."""
        left: list[Granted] = []
        for granted in grants:
            kept = common(granted.given, granted.next, ranges)
            if not kept:
                left.append(granted)
                continue
            self._withheld.setdefault(by, []).extend(granted.parts(kept))
            left += granted.parts(without(granted.given, granted.next, ranges))
            # Who settles what was given out of it still does so here.
            granted.next = granted.given
        return left


def _peers(granted: Granted) -> dict[Granted, None]:
    """Raises NotGranted for what was never given out."""
    if granted.peers is None:
        raise NotGranted(f"records {granted.first} to {granted.next} were not given out; settle what was")
    return granted.peers
