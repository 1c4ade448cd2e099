"""Retention: what a log may delete, whole segments from its start on, and in them the parts of queues. Pure.

A queue without limits of its own lives by its log's, segment by segment. One that has some lives by these alone: its
*part* of a segment, all its records there, is dead when they are too old, or when later segments hold enough of the
queue. What is dead of a queue is always its beginning, up to a queue offset that only rises.

A segment goes when nothing in it is alive. Where little is, that little is appended once more, *copied*, and the rest
of its segment goes with it. The share is taken over all segments from the start offset on, not over the oldest alone:
one that is full of live records would else hold up all the dead ones behind it. So what is kept of the dead is at most
(1 / share) times what is alive, and what is copied at most `share` of what becomes free.

A landing's *hold* wins over all limits: no part with a record at or above the queue's *floor*, the smallest queue
offset that is held, is dead. Where a landing says that what it has may go (*tiered*), the parts below the floor are
dead once they are older than the queue keeps them for that, whatever its other limits say.

Deciding is the master's alone; every copy follows the decision once it is logged and confirmed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]

PART: Final = np.dtype([("queue_id", "<u4"), ("base", "<i8"), ("next", "<i8"), ("bytes", "<i8"), ("last_time", "<i8")])
"""A dense part of a queue in one segment: queue offsets [base, next), bytes of its batches, and the append time (µs
UTC) of its last one. In order of queue and queue offset."""


_NEVER: Final = 2**63 - 1
_DENSE_MAX: Final = (1 << 24) - 1


class Aged(Protocol):
    """A segment that is not appended to any more: log offset of its end, and when its last batch was appended (µs
    UTC)."""

    @property
    def end(self) -> int: ...
    @property
    def last_append_time_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """`max_age_us`: of a segment's last batch; `max_bytes`: of the log. None: no limit."""

    max_age_us: int | None = None
    max_bytes: int | None = None

    def without_oldest(self, segments: Iterable[Aged], *, begin: int, end: int) -> RetentionLimits:
        """As if the bytes of a log [begin, end) were limited to what follows its oldest segment, or less."""
        oldest = next((segment.end for segment in segments if segment.end > begin), None)
        if oldest is None or (self.max_bytes is not None and self.max_bytes <= end - oldest):
            return self
        return replace(self, max_bytes=end - oldest)

    def expire(self, segment: Aged, *, end: int, now_us: int) -> bool:
        """Whether a segment of a log that ends at `end` is too old, or one too many."""
        too_old = self.max_age_us is not None and segment.last_append_time_us < now_us - self.max_age_us
        return too_old or (self.max_bytes is not None and end - segment.end >= self.max_bytes)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Of one queue. `max_age_us`: None for that of the log. `max_bytes`: so many bytes of its newest batches are kept
    at least; None: no limit."""

    max_age_us: int | None = None
    max_bytes: int | None = None


def next_start(
    segments: Iterable[Aged], *, begin: int, end: int, at_most: int, now_us: int, limits: RetentionLimits
) -> int | None:
    """The new start offset of a log [begin, end), at a segment's end not above `at_most`; None when nothing can go. For
    a log whose queues all live by its limits.

    Oldest first, and the first one that stays ends it: what is freed is one stretch from the start offset on.
    """
    found = None
    for segment in segments:
        if segment.end > at_most or not limits.expire(segment, end=end, now_us=now_us):
            break
        if segment.end > begin:
            found = segment.end
    return found


# --- Queues with limits of their own --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentParts:
    """A segment that is not appended to any more. Log offsets, µs UTC. `parts`: rows of `PART`."""

    start: int
    end: int
    last_append_time_us: int
    parts: Rows


class Queues(NamedTuple):
    """`limits`: of the queues that have their own. `begins`: the logged ones; records below are dead. `floors`: of the
    queues of which landings hold records, the smallest queue offset held; `tiers`: of those of which what is below may
    go early, how old it is to be (µs). By queue id. `known`: the ids of all queues that are there; those of others,
    which were deleted, are dead. None: nothing was ever deleted."""

    limits: Mapping[int, QueueLimits]
    begins: Mapping[int, int]
    floors: Mapping[int, int] = {}
    tiers: Mapping[int, int] = {}
    known: Collection[int] | None = None


class SegmentLife(NamedTuple):
    """What is alive of a segment [start, end), log offsets; bytes. `expired`: by the log's limits."""

    start: int
    end: int
    live_bytes: int
    expired: bool


class Pin(NamedTuple):
    """Why bytes stay that nobody needs. `queue_id`: the queue that has most of what is alive in the log's first
    segment; `live_bytes`: of it in all segments; `dead_bytes`: what is dead in them, of all queues."""

    queue_id: int
    live_bytes: int
    dead_bytes: int


@dataclass(frozen=True, slots=True)
class Decision:
    """To be done in this order. `queue_starts`: queues whose logged start offset rises, by id. `begin`: where the log
    begins from now on, None when it stays. `copy`: what is alive of this segment, the first of the log then, is to be
    appended once more. `deleted`: queues that have records there and are not there themselves. `pin`: of
    what is left then; None while nothing of it is dead."""

    queue_starts: Mapping[int, int]
    begin: int | None = None
    copy: SegmentLife | None = None
    deleted: frozenset[int] = frozenset()
    pin: Pin | None = field(default=None, compare=False)


def decide(
    segments: Sequence[SegmentParts],
    queues: Queues,
    *,
    begin: int,
    end: int,
    at_most: int,
    now_us: int,
    limits: RetentionLimits,
    copied: Mapping[int, bool],
    copy_share: float,
) -> Decision:
    """What a log [begin, end) lets go, up to a segment's end not above `at_most`.

    `segments`: those that were looked at, from the start offset on and without a gap; while later ones are missing less
    goes. `copied`: the starts of those of which all that was alive stands elsewhere too, confirmed; and whether the
    log's limits had let the segment go then, so that nothing but queues with own limits counted."""
    deleted = _deleted(segments, queues.known)
    # Behind all that they have: so they are dead whatever keeps the records of others, and no begin of theirs is said.
    queues = queues._replace(begins={**queues.begins, **dict.fromkeys(deleted, _NEVER)})
    queue_starts = _next_queue_starts(segments, queues, now_us=now_us, max_age_us=limits.max_age_us)
    queues = queues._replace(begins={**queues.begins, **queue_starts})
    found = list(_lives(segments, queues, end=end, now_us=now_us, limits=limits, copied=copied))
    next_start, copy = _next_step(found, begin=begin, at_most=at_most, copy_share=copy_share)
    going = (
        segment
        for segment, life in zip(segments, found, strict=True)
        if next_start is not None and life.end <= next_start and life.expired
    )
    pin = _pin(segments, queues, found, begin=max(begin, next_start or 0), until=at_most)
    return Decision({**queue_starts, **_dying_queues(going, queues)}, next_start, copy, deleted, pin)


class Stretch(NamedTuple):
    """[first, until) of a queue that has gone to another log since, `size` bytes with what stands in segments that are
    appended to yet. `newer_bytes`: of the queue in later logs. `floor`: nothing above may go. `gaps`: what losses have
    left."""

    queue_id: int
    first: int
    until: int
    size: int
    newer_bytes: int = 0
    floor: int = _NEVER
    gaps: Sequence[tuple[int, int]] = ()


def alive_from(
    segments: Sequence[SegmentParts],
    stretch: Stretch,
    own: QueueLimits | None,
    *,
    end: int,
    now_us: int,
    limits: RetentionLimits,
) -> tuple[int, int]:
    """From which queue offset on a stretch of a queue that has left a log stays, and how many bytes that are: by the
    queue's `own` limits, part by part, or without them segment by segment by those of the log, [.., `end`). What is in
    none of the `segments` stays."""
    rows = _newest_first(segments, stretch)
    dead, alive, going, lowest = list(stretch.gaps), stretch.until, 0, _NEVER
    max_age_us = (own.max_age_us if own is not None else None) or limits.max_age_us
    # What follows counts for what is before; first of all what stands in segments that are appended to yet.
    newer = stretch.newer_bytes + max(0, stretch.size - sum(size for _, _, _, size, _ in rows))
    for segment, base, following, size, last_us in rows:
        if own is None:
            expired = limits.expire(segment, end=end, now_us=now_us)
        else:
            too_old = max_age_us is not None and last_us < now_us - max_age_us
            expired = too_old or (own.max_bytes is not None and newer >= own.max_bytes)
        newer += size if following <= lowest else 0  # to count too little is to keep too much
        lowest = min(lowest, base)
        if expired and following <= stretch.floor:
            dead.append((base, following))
            going += size
        else:
            alive = min(alive, base)
    at = stretch.first
    for base, following in sorted(dead):
        if base > at:
            break
        at = max(at, following)
    return max(stretch.first, min(at, alive)), stretch.size - min(going, stretch.size)


def _newest_first(segments: Sequence[SegmentParts], stretch: Stretch) -> list[tuple[SegmentParts, int, int, int, int]]:
    """Base, next, bytes and last time of the parts of a stretch, by queue offset: what was copied from another log, or
    appended once more, stands behind what is newer. Of a part that stands twice the earlier place has no bytes."""
    rows = [(segment, *row) for segment in segments for row in _rows(segment, stretch)]
    found, lowest = [], _NEVER
    for segment, base, following, size, last_us in sorted(rows, key=lambda row: (row[2], row[0].end), reverse=True):
        found.append((segment, base, following, 0 if base >= lowest else size, last_us))
        lowest = min(lowest, base)
    return found


def _rows(segment: SegmentParts, stretch: Stretch) -> list[tuple[int, int, int, int]]:
    """The same of one segment. Found by halves: they are in order, and there may be very many."""
    ids, queue_id = segment.parts["queue_id"], stretch.queue_id
    first = bisect_left(ids, queue_id)
    rows = (segment.parts[at].item() for at in range(first, bisect_right(ids, queue_id, first)))
    return [row[1:] for row in rows if row[2] > stretch.first and row[1] < stretch.until]


def _deleted(segments: Iterable[SegmentParts], known: Collection[int] | None) -> frozenset[int]:
    if known is None:
        return frozenset()
    lookup = _Lookup(dict.fromkeys(known, 1), default=0)
    found: set[int] = set()
    for segment in segments:
        found.update(np.unique(segment.parts["queue_id"][lookup.of(segment.parts) == 0]).tolist())
    return frozenset(found)


def _next_queue_starts(
    segments: Sequence[SegmentParts], queues: Queues, *, now_us: int, max_age_us: int | None
) -> dict[int, int]:
    """The queues with own limits, or tiered, whose start offset rises, and to where: behind the parts that are dead
    now."""
    found = _too_old(segments, queues, now_us=now_us, max_age_us=max_age_us)
    for queue_id, begin in _too_many(segments, queues):
        found[queue_id] = max(begin, found.get(queue_id, 0))
    return {queue_id: begin for queue_id, begin in found.items() if begin > queues.begins.get(queue_id, 0)}


def _too_old(
    segments: Sequence[SegmentParts], queues: Queues, *, now_us: int, max_age_us: int | None
) -> dict[int, int]:
    ages = {queue_id: limits.max_age_us or max_age_us for queue_id, limits in queues.limits.items()}
    oldest = {queue_id: max(now_us - age, -_NEVER) for queue_id, age in ages.items() if age is not None}
    for queue_id, age in queues.tiers.items():
        oldest[queue_id] = max(now_us - age, oldest.get(queue_id, -_NEVER))
    lookup, begins = _Lookup(oldest, default=-_NEVER), _Lookup(queues.begins, default=0)
    floors = _Lookup(queues.floors, default=_NEVER)
    found: dict[int, int] = {}
    for segment in segments:
        parts = segment.parts
        dead = (parts["last_time"] < lookup.of(parts)) & (parts["next"] > begins.of(parts))
        _raise_to(found, parts[dead & (parts["next"] <= floors.of(parts))])
    return found


def _raise_to(begins: dict[int, int], dead: Rows) -> None:
    for queue_id, following in zip(dead["queue_id"].tolist(), dead["next"].tolist(), strict=True):
        begins[queue_id] = max(following, begins.get(queue_id, 0))


def _too_many(segments: Sequence[SegmentParts], queues: Queues) -> Iterator[tuple[int, int]]:
    """(queue id, begin) of the queues of which later parts hold enough."""
    limited = {queue_id: each.max_bytes for queue_id, each in queues.limits.items() if each.max_bytes is not None}
    if not limited:
        return
    lookup = _Lookup(dict.fromkeys(limited, 1), default=0)
    parts = np.concatenate([np.empty(0, PART), *(each.parts[lookup.of(each.parts) > 0] for each in segments)])
    # From the newest records of each queue on. Copied ones come twice while their first place is there.
    parts = parts[np.lexsort((parts["next"], parts["queue_id"]))[::-1]]
    queue_id, kept, lowest = -1, 0, 0
    columns = (parts[name].tolist() for name in ("queue_id", "base", "next", "bytes"))
    for each, base, following, size in zip(*columns, strict=True):
        if each != queue_id:
            queue_id, kept, lowest = each, 0, following
        if following > lowest:
            continue  # seen already: to count too little is to keep too much
        if kept >= limited[queue_id] and following <= queues.floors.get(queue_id, _NEVER):
            yield queue_id, following
            lowest = -1  # all that follows is older
        kept, lowest = kept + size, min(lowest, base)


def _lives(
    segments: Iterable[SegmentParts],
    queues: Queues,
    *,
    end: int,
    now_us: int,
    limits: RetentionLimits,
    copied: Mapping[int, bool],
) -> Iterator[SegmentLife]:
    begins, own = _Lookup(queues.begins, default=0), _Lookup(dict.fromkeys(queues.limits, 1), default=0)
    floors = _Lookup(queues.floors, default=_NEVER)
    expired = True
    for segment in segments:
        expired = expired and limits.expire(segment, end=end, now_us=now_us)
        parts = segment.parts
        alive = parts["next"] > begins.of(parts)
        if expired:
            alive &= (own.of(parts) > 0) | (parts["next"] > floors.of(parts))
        # What was left out of the copies is dead only as long as the log's limits say so.
        done = segment.start in copied and copied[segment.start] <= expired
        yield SegmentLife(segment.start, segment.end, 0 if done else int(parts["bytes"][alive].sum()), expired)


def _next_step(
    segments: Iterable[SegmentLife], *, begin: int, at_most: int, copy_share: float
) -> tuple[int | None, SegmentLife | None]:
    """(new start offset, segment to copy)."""
    free: int | None = None
    first: SegmentLife | None = None
    live = size = 0
    for segment in segments:
        if segment.end > at_most:
            break
        if segment.end <= begin:
            continue
        if not segment.live_bytes and first is None:
            free = segment.end
            continue
        first = first or segment
        live += segment.live_bytes
        size += segment.end - max(begin, segment.start)
        if live <= copy_share * size:
            return free, first
    return free, None


def _pin(
    segments: Sequence[SegmentParts], queues: Queues, lives: Sequence[SegmentLife], *, begin: int, until: int
) -> Pin | None:
    left = [at for at, life in enumerate(lives) if begin < life.end <= until]
    dead = sum(lives[at].end - max(begin, lives[at].start) - lives[at].live_bytes for at in left)
    first = next((at for at in left if lives[at].live_bytes), None)
    if first is None or dead <= 0:
        return None
    begins = _Lookup(queues.begins, default=0)
    alive = [parts[parts["next"] > begins.of(parts)] for parts in (segments[at].parts for at in left)]
    of_first = alive[left.index(first)]
    if not len(of_first):
        return None
    ids, at = np.unique(of_first["queue_id"], return_inverse=True)
    queue_id = int(ids[np.argmax(np.bincount(at, of_first["bytes"]))])
    return Pin(queue_id, sum(int(rows["bytes"][rows["queue_id"] == queue_id].sum()) for rows in alive), dead)


def _dying_queues(segments: Iterable[SegmentParts], queues: Queues) -> dict[int, int]:
    """The queues without own limits whose start offset rises because these segments go by the log's limits; of those
    only whose start offset is logged: copies of their older records may stand behind these segments, and must not
    outlive them."""
    begins, own = _Lookup(queues.begins, default=_NEVER), _Lookup(dict.fromkeys(queues.limits, 1), default=0)
    floors = _Lookup(queues.floors, default=_NEVER)
    found: dict[int, int] = {}
    for segment in segments:
        parts = segment.parts
        dying = (parts["next"] > begins.of(parts)) & (own.of(parts) == 0)
        _raise_to(found, parts[dying & (parts["next"] <= floors.of(parts))])
    return found


def first_queue_offsets(segments: Iterable[SegmentParts], queue_ids: Iterable[int]) -> dict[int, int]:
    """Where queues without copied batches begin in these segments, by queue id."""
    wanted = np.array(list(queue_ids), np.uint32)
    found: dict[int, int] = {}
    for segment in segments:
        parts = segment.parts[np.isin(segment.parts["queue_id"], wanted)]
        for queue_id, base in zip(parts["queue_id"].tolist(), parts["base"].tolist(), strict=True):
            found.setdefault(queue_id, base)
        if len(found) == len(wanted):
            break
    return found


class _Lookup:
    """A map of queue ids to whole numbers that is asked for whole columns. Ids count up from the log's, but for those
    of queues that were declared in other logs."""

    def __init__(self, values: Mapping[int, int], *, default: int) -> None:
        ids, found = (np.fromiter(each, np.int64, len(values)) for each in (values.keys(), values.values()))
        order = np.argsort(ids)
        # The last one is above all ids, and stands for those that are not there.
        self._ids = np.append(ids[order], _NEVER)
        self._values = np.append(found[order], default)
        self._dense: Rows | None = None
        if len(ids) and self._ids[-2] - self._ids[0] <= _DENSE_MAX:
            # The first one stands for all below, the last one for all above.
            self._dense = np.full(int(self._ids[-2] - self._ids[0]) + 3, default, np.int64)
            self._dense[ids - self._ids[0] + 1] = found

    def of(self, parts: Rows) -> Rows:
        """The value of each part's queue."""
        ids = parts["queue_id"].astype(np.int64)
        found: Rows
        if self._dense is not None:
            found = self._dense[np.clip(ids - self._ids[0] + 1, 0, len(self._dense) - 1)]
            return found
        at = np.searchsorted(self._ids, ids)
        found = self._values[np.where(self._ids[at] == ids, at, len(self._ids) - 1)]
        return found
