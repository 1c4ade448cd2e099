"""The active groups of one log, which somebody consumes, leases from or waits in: which there are, which have something
to do, and when each is looked at next.

A group is here from the first consumer to the last; before and after it is a ledger, and costs nothing. All times are
in one heap. Who is to be looked at in the next turn of the loop is kept in the order in which that was found out: a
simulated run repeats to the last callback.

Pure: `now` in, works out; `soon` asks for the turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final, NamedTuple

from msgspec.structs import replace

from mirrorlog.commitlog.index.gaps import NO_GAPS, Gaps
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.changes import Change, ForwardingStarted, Returned, Settled, Watermark, split_ranges
from mirrorlog.queues.delivery.group import EPOCH_BITS, GroupDelivery, Settlement
from mirrorlog.queues.ranges import RangeSet

# Settlements of one acking group that wait for the end of the loop's turn, to be logged together. Pure.
#
# A thousand acks that come at once are one change with a few ranges. Each is answered by itself, at its own level.
# What does not fit into one batch, as a thousand returns with a delay each, is logged in several, and who is in one
# that is refused hears of it alone: what the others hear is what was logged of theirs.


CHANGES_BYTES_MAX: Final = 60_000
"""Of changes in one batch: with header and offsets it is below 64 KiB, the smallest `max_batch_bytes` that a node can
be told to allow; a mirror may allow less than its master."""
_BYTES_PER_CHANGE: Final = 128
_BYTES_PER_BORDER: Final = 9
_TEXTS: Final = ("group", "holder", "exchange", "routing_key", "reason")
_FEW_CHANGES: Final = 8
_FEW_BORDERS: Final = 1000
"""Texts have up to 255 characters of up to 4 bytes."""
assert _FEW_CHANGES * (_BYTES_PER_CHANGE + len(_TEXTS) * 4 * 255) + _FEW_BORDERS * _BYTES_PER_BORDER < CHANGES_BYTES_MAX


class SettlementRequest(NamedTuple):
    """A settlement; `done` is called when so many copies have it, or with the error."""

    settlement: Settlement
    copies: int
    done: Callable[[MirrorlogError | None], None]


class LoggedSettlements(NamedTuple):
    """Settlements that are logged together, and the changes which that takes. These fit into one batch, unless it is
    one settlement of very many ranges."""

    asked: list[SettlementRequest]
    changes: list[Change]


class PendingSettlements:
    """Ranges of what is gathered are disjoint: whoever adds looks with `meets` first."""

    def __init__(self) -> None:
        self.asked: list[SettlementRequest] = []
        # Of the first so many of them: known when the next one comes, for the one of a turn is usually alone.
        self._ranges: RangeSet | None = None
        self._ranged = 0

    def meets(self, ranges: Iterable[int]) -> bool:
        """Whether anything of these, flat, is being settled already."""
        if not self.asked:
            return False
        if self._ranges is None:
            self._ranges = RangeSet()
        for asked in self.asked[self._ranged :]:
            for first, until in asked.settlement.ranges:
                self._ranges.add(first, until)
        self._ranged = len(self.asked)
        flat = iter(ranges)
        return any(self._ranges.meets(first, until) for first, until in zip(flat, flat, strict=False))

    def add(self, asked: SettlementRequest) -> None:
        self.asked.append(asked)

    def parts(self, group: str) -> Iterator[LoggedSettlements]:
        """All of it in its order, as few parts as there can be. What is too much for one batch is several, each of
        which is logged, with a watermark, or refused, alone."""
        if not self.asked:
            return
        if len(self.asked) == 1 or _are_few([change for each in self.asked for change in each.settlement.changes]):
            yield LoggedSettlements(self.asked, _changes_of(group, self.asked))
            return
        some: list[SettlementRequest] = []
        room = room_max = CHANGES_BYTES_MAX - _size_max(Watermark(group=group, queue_offset=0))
        for asked in self.asked:
            size = sum(map(_size_max, asked.settlement.changes))
            if size > room and some:
                yield LoggedSettlements(some, _changes_of(group, some))
                some, room = [], room_max
            some.append(asked)
            room -= size
        if some:
            yield LoggedSettlements(some, _changes_of(group, some))


def _changes_of(group: str, some: Iterable[SettlementRequest]) -> list[Change]:
    changes: list[Change] = []
    for each in some:
        changes += each.settlement.changes
    return merged(group, changes) if len(changes) > 1 else changes


def merged(group: str, changes: Iterable[Change]) -> list[Change]:
    """Settlements and returns of one group that differ in nothing but their ranges as one; others as they are."""
    settled: dict[str, list[int]] = {}
    returned: dict[tuple[int, bool], list[int]] = {}
    departing: dict[int, list[ForwardingStarted]] = {}
    others: list[Change] = []
    for change in changes:
        if isinstance(change, Settled):
            settled.setdefault(change.why, []).extend(change.ranges)
        elif isinstance(change, Returned):
            returned.setdefault((change.delay_ms, change.counted), []).extend(change.ranges)
        elif isinstance(change, ForwardingStarted):
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
    changes = list(changes)
    if _are_few(changes):
        if changes:
            yield changes
        return
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
    flat = [
        border for each in changes if isinstance(each, Settled | Returned | ForwardingStarted) for border in each.ranges
    ]
    borders = _joined(flat)
    return tuple(zip(borders[::2], borders[1::2], strict=True))


def _parts(change: Change) -> Iterator[Change]:
    if isinstance(change, Settled | Returned | ForwardingStarted):
        for ranges in split_ranges(change.ranges):
            yield replace(change, ranges=ranges)
    else:
        yield change


def _are_few(changes: Sequence[Change]) -> bool:
    """Whether they surely fit into one batch, whatever their texts: then none of them is sized."""
    borders = 0
    for change in changes:
        borders += len(getattr(change, "ranges", ()))
    return len(changes) <= _FEW_CHANGES and borders <= _FEW_BORDERS


def _size_max(change: Change) -> int:
    """How many bytes it takes in a batch, or fewer."""
    size = _BYTES_PER_CHANGE + len(getattr(change, "ranges", ())) * _BYTES_PER_BORDER
    for text in _TEXTS:
        size += len((getattr(change, text, "") or "").encode())
    return size


def _joined(flat: list[int]) -> list[int]:
    """Ranges in any order as ascending ones that do not touch. Not by way of a RangeSet: one may be a gap of 2^32."""
    borders: list[int] = []
    for first, until in sorted(zip(flat[::2], flat[1::2], strict=True)):
        if borders and first <= borders[-1]:
            borders[-1] = max(borders[-1], until)
        else:
            borders += (first, until)
    return borders


_SPARE: Final = 64

Key = tuple[int, str]
"""Queue id and group."""


@dataclass(slots=True)
class ActiveGroup:
    """A group that has consumers. `planned`: when it is looked at next. `refused`: a change of it was. `gaps`:
    those of its queue that are settled in it. `there`: it is this one that stands for its group. `due`: when there is
    something to do in it, as of its last plan."""

    key: Key
    delivery: GroupDelivery
    gathered: PendingSettlements = field(default_factory=PendingSettlements)
    planned: float = inf
    refused: bool = False
    gaps: Gaps = NO_GAPS
    there: bool = False
    due: float = inf


class ActiveGroups:
    """`soon`: has `awakened` asked for in a turn of the loop to come."""

    def __init__(self, soon: Callable[[], None]) -> None:
        self._soon = soon
        self.by_key: dict[Key, ActiveGroup] = {}
        """To be read."""
        # In the order in which they came, as those that are awake.
        self._of_queue: dict[int, dict[str, None]] = {}
        self.awake: dict[Key, None] = {}
        """Those that are to be looked at."""
        self._times: list[tuple[float, Key]] = []
        self._any_refused = False

    # --- which there are ---

    def __len__(self) -> int:
        return len(self.by_key)

    def get(self, key: Key) -> ActiveGroup | None:
        return self.by_key.get(key)

    def all(self) -> list[ActiveGroup]:
        return list(self.by_key.values())

    def of_queue(self, queue_id: int) -> list[ActiveGroup]:
        return [self.by_key[queue_id, group] for group in self._of_queue.get(queue_id, ())]

    def add(self, work: ActiveGroup) -> None:
        queue_id, group = work.key
        self.by_key[work.key] = work
        work.there = True
        self._of_queue.setdefault(queue_id, {})[group] = None

    def remove(self, work: ActiveGroup) -> None:
        queue_id, group = work.key
        del self.by_key[work.key]
        work.there = False
        groups = self._of_queue[queue_id]
        del groups[group]
        if not groups:
            del self._of_queue[queue_id]
        self.awake.pop(work.key, None)

    def clear(self) -> None:
        for work in self.by_key.values():
            work.there = False
        for each in (self.by_key, self._of_queue, self.awake, self._times):
            each.clear()

    # --- which have something to do ---

    def wake(self, work: ActiveGroup) -> None:
        """It is looked at in a turn to come."""
        if work.there:
            self.awake[work.key] = None
            self._soon()

    def wake_all(self) -> None:
        for each in self.by_key.values():
            self.wake(each)

    def gained(self, queue_ids: Set[int]) -> None:
        """More of these is confirmed. It is only noted who is awake by that: the turn is for the caller to ask for."""
        for queue_id in queue_ids & self._of_queue.keys() if self._of_queue else ():
            for group in self._of_queue[queue_id]:
                if self.by_key[queue_id, group].delivery.taken:
                    self.awake[queue_id, group] = None

    def awakened(self) -> list[ActiveGroup]:
        """Those that are awake; they are so no more."""
        awake, self.awake = self.awake, {}
        works: list[ActiveGroup] = []
        for key in awake:
            if (work := self.by_key.get(key)) is not None:
                works.append(work)
        return works

    def refuse(self, work: ActiveGroup) -> None:
        """A change of it was refused; see `try_again`."""
        work.refused = self._any_refused = True

    def try_again(self) -> None:
        """Wake those that were refused."""
        for work in [each for each in self.by_key.values() if each.refused] if self._any_refused else ():
            work.refused = False
            self.wake(work)
        self._any_refused = False

    # --- and when ---

    def plan(self, work: ActiveGroup) -> None:
        """It is looked at when its delivery is due."""
        work.due = due = work.delivery.due_at
        if due < work.planned and work.there:
            work.planned = due
            heappush(self._times, (due, work.key))
            if len(self._times) > 2 * len(self.by_key) + _SPARE:
                self._times = [(each.planned, each.key) for each in self.by_key.values() if each.planned < inf]
                heapify(self._times)

    def come(self, now: float) -> list[Key]:
        """Those that are perhaps due; each is then asked for with `start`."""
        keys: list[Key] = []
        while self._times and self._times[0][0] <= now:
            keys.append(heappop(self._times)[1])
        return keys

    def start(self, key: Key, now: float) -> ActiveGroup | None:
        """The one that is due, planned no more; None when it is not."""
        work = self.by_key.get(key)
        if work is None or work.planned > now:
            return None
        work.planned = inf
        return work


# The numbers of the leases of one mastership: no other lease of the log has one of them, before or after. Pure.


_LEASES_MAX: Final = (1 << EPOCH_BITS) - 32  # some may be given together


class LeaseNumbers:
    """`epoch`: of a queue's grants, by its id, asked for with each; see `QueueMoves.epoch_shifts`."""

    def __init__(self, epoch: Callable[[int], int]) -> None:
        self._epoch = epoch
        self._leases = 0

    @property
    def full(self) -> bool:
        """Whether there is none left."""
        return self._leases >= _LEASES_MAX

    def last(self, queue_id: int) -> int:
        """The highest number that was given to a lease of a queue, or might have been; below all that will be."""
        return self._epoch(queue_id) << EPOCH_BITS | self._leases

    def next(self, queue_id: int) -> int:
        """For a lease of that queue."""
        self._leases += 1
        return self.last(queue_id)
