"""Which parts of queues and which segments go, and which are copied: examples, and random lives beside a plain list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.commitlog.retention import (
    PART,
    Decision,
    Pin,
    QueueLimits,
    Queues,
    RetentionLimits,
    SegmentLife,
    SegmentParts,
    Stretch,
    alive_from,
    decide,
    first_queue_offsets,
)

Part = tuple[int, int, int, int, int]
"""Queue id, first and next queue offset, bytes, time of the last batch."""


def segment(start: int, *parts: Part, time: int = 0, size: int = 100) -> SegmentParts:
    return SegmentParts(start, start + size, time, np.array(sorted(parts), PART))


def decided(
    segments: list[SegmentParts],
    limits: dict[int, QueueLimits],
    *,
    begins: dict[int, int] | None = None,
    begin: int = 0,
    at_most: int = 10**9,
    now_us: int = 0,
    log: RetentionLimits | None = None,
    copied: dict[int, bool] | None = None,
    copy_share: float = 0.125,
    floors: dict[int, int] | None = None,
    tiers: dict[int, int] | None = None,
) -> Decision:
    return decide(
        segments,
        Queues(limits, begins or {}, floors or {}, tiers or {}),
        begin=begin,
        end=segments[-1].end,
        at_most=at_most,
        now_us=now_us,
        limits=log or RetentionLimits(),
        copied=copied or {},
        copy_share=copy_share,
    )


# --- parts of queues ---


def test_a_part_dies_when_its_last_batch_is_too_old() -> None:
    """Two queues of different ages over three segments: each begin rises behind the parts that are too old, by its own
    limit, and no further; a queue without limits is left alone."""
    segments = [segment(at, *((q, at, at + 100, 30, at) for q in (1, 2, 3)), time=at) for at in (0, 100, 200)]
    limits = {1: QueueLimits(max_age_us=150), 2: QueueLimits(max_age_us=60)}
    assert decided(segments, limits, now_us=251).queue_starts == {1: 200, 2: 200}
    assert decided(segments, limits, now_us=250).queue_starts == {1: 100, 2: 200}
    assert decided(segments, limits, now_us=60).queue_starts == {}


@pytest.mark.parametrize("far", [1 << 24, 1 << 31])
def test_a_queue_of_another_logs_numbers_is_none_of_this_ones(far: int) -> None:
    """Goal: queues that were declared elsewhere keep their ids. Method: two whose numbers are the same in their logs,
    of which one has a limit, or is known, or is held."""
    segments = [segment(at, *((q, at, at + 100, 30, at) for q in (1, far + 1)), time=at) for at in (0, 100)]
    for one, other in ((1, far + 1), (far + 1, 1)):
        limits = {one: QueueLimits(max_age_us=10)}
        assert decided(segments, limits, now_us=50).queue_starts == {one: 100}
        both = {**limits, other: QueueLimits(max_age_us=10)}
        assert decided(segments, both, now_us=50, floors={other: 50}).queue_starts == {one: 100}
        queues = Queues({}, {}, {}, {}, {one})
        found = decide(
            segments, queues, begin=0, end=200, at_most=200, now_us=0, limits=RetentionLimits(), copied={}, copy_share=0
        )
        assert found.deleted == {other}


def test_a_begin_that_is_logged_is_not_said_again() -> None:
    """The same decision with what it gave before: nothing is new."""
    segments = [segment(at, (1, at, at + 100, 30, at)) for at in (0, 100)]
    limits = {1: QueueLimits(max_age_us=10)}
    assert decided(segments, limits, now_us=50).queue_starts == {1: 100}
    assert decided(segments, limits, now_us=50, begins={1: 100}).queue_starts == {}


def test_the_logs_age_is_that_of_a_queue_with_a_limit_of_bytes_alone() -> None:
    """A queue with bytes only, in a log with an age, and in one without."""
    segments = [segment(at, (1, at, at + 100, 30, at), time=10**6) for at in (0, 100)]
    limits = {1: QueueLimits(max_bytes=1000)}
    assert decided(segments, limits, now_us=50, log=RetentionLimits(max_age_us=10)).queue_starts == {1: 100}
    assert decided(segments, limits, now_us=50).queue_starts == {}


@pytest.mark.parametrize(("max_bytes", "begin"), [(1, 200), (30, 200), (31, 100), (60, 100), (61, 0), (1000, 0)])
def test_a_queue_keeps_at_least_its_bytes(max_bytes: int, begin: int) -> None:
    """Goal: what Kafka's users expect of retention.bytes. Parts of 30 bytes in three segments: the oldest go while
    those that stay hold the limit."""
    segments = [segment(at, (1, at, at + 100, 30, 0), (2, at, at + 100, 500, 0)) for at in (0, 100, 200)]
    assert decided(segments, {1: QueueLimits(max_bytes=max_bytes)}).queue_starts.get(1, 0) == begin


def test_records_that_stand_twice_count_once() -> None:
    """A segment holds copies of an older one: the bytes of the copies do not push other records out."""
    segments = [segment(0, (1, 0, 100, 30, 0)), segment(100, (1, 100, 200, 30, 0)), segment(200, (1, 0, 100, 30, 0))]
    assert decided(segments, {1: QueueLimits(max_bytes=60)}).queue_starts == {}
    assert decided(segments, {1: QueueLimits(max_bytes=30)}).queue_starts == {1: 100}


# --- segments ---


def test_segments_go_when_all_their_parts_are_dead() -> None:
    """A log without limits, two queues with short ones: what has nothing alive goes, up to the first that has, and not
    above what may go."""
    segments = [segment(at, (1, at, at + 100, 50, at), (2, at, at + 100, 50, at)) for at in (0, 100, 200, 300)]
    limits = dict.fromkeys((1, 2), QueueLimits(max_age_us=50))
    assert decided(segments, limits, now_us=260).begin == 300
    assert decided(segments, limits, now_us=260, at_most=250).begin == 200
    assert decided(segments, limits, now_us=260, begin=300).begin is None
    assert decided(segments, limits, now_us=40).begin is None


def test_few_live_bytes_are_copied_and_many_stay() -> None:
    """A segment with an eighth of it alive, and one with a byte more; no share at all copies nothing."""
    limits = {1: QueueLimits(max_age_us=10), 2: QueueLimits(max_age_us=10**9)}
    few = [segment(0, (1, 0, 9, 700, 0), (2, 0, 9, 100, 0), size=800)]
    assert decided(few, limits, now_us=50).copy == SegmentLife(0, 800, 100, expired=False)
    assert decided(few, limits, now_us=50, copy_share=0).copy is None
    many = [segment(0, (1, 0, 9, 699, 0), (2, 0, 9, 101, 0), size=800)]
    assert decided(many, limits, now_us=50).copy is None


def test_a_full_segment_is_copied_for_the_dead_ones_behind_it() -> None:
    """Goal: space stays bounded. One segment all alive, seven dead ones behind it: the eighth makes it worth while."""
    limits = {1: QueueLimits(max_age_us=10), 2: QueueLimits(max_age_us=10**9)}
    first = segment(0, (2, 0, 9, 100, 0))
    dead = [segment(100 * each, (1, each, each + 1, 100, 0)) for each in range(1, 8)]
    assert decided([first, *dead[:6]], limits, now_us=50).copy is None
    assert decided([first, *dead], limits, now_us=50).copy == SegmentLife(0, 100, 100, expired=False)


def test_a_copied_segment_goes_and_the_next_one_is_looked_at() -> None:
    """Say that the first segment was copied: the log begins behind it, and the second is to be copied."""
    limits = {1: QueueLimits(max_age_us=10), 2: QueueLimits(max_age_us=10**9)}
    segments = [segment(at, (1, at, at + 9, 95, 0), (2, at, at + 9, 5, 0)) for at in (0, 100)]
    found = decided(segments, limits, now_us=50, begins={1: 109}, copied={0: False})
    assert found == Decision({}, 100, SegmentLife(100, 200, 5, expired=False))


def test_a_queue_without_limits_goes_with_the_logs() -> None:
    """A log of two segments at most: what a queue without limits has in the oldest is dead, what one with limits has
    is copied."""
    segments = [segment(at, (1, at, at + 100, 95, 0), (2, at, at + 100, 5, 0)) for at in (0, 100, 200)]
    found = decided(segments, {2: QueueLimits(max_age_us=10**9)}, log=RetentionLimits(max_bytes=200))
    assert found == Decision({}, None, SegmentLife(0, 100, 5, expired=True))


def test_what_a_low_disk_left_out_is_not_dead_when_the_disk_is_not_low() -> None:
    """Goal: copies made while the log's limits let a segment go have no records of queues without limits. Say that it
    was copied so: it goes while they do, and stays when they do not."""
    segments = [segment(at, (1, at, at + 100, 95, 0), (2, at, at + 100, 5, 0)) for at in (0, 100)]
    limits = {2: QueueLimits(max_age_us=10**9)}
    low = RetentionLimits(max_bytes=100)
    assert decided(segments, limits, log=low, copied={0: True}).begin == 100
    assert decided(segments, limits, copied={0: True}).begin is None
    assert decided(segments, limits, copied={0: False}).begin == 100


def test_copies_do_not_outlive_newer_records() -> None:
    """Goal: no hole in a queue. A queue without limits, copied once, so that its begin is logged; then the log's limits
    take a segment with newer records of it: its begin rises behind them. A queue never copied needs no word."""
    segments = [
        segment(100, (1, 100, 200, 50, 0), (3, 100, 200, 50, 0)),
        segment(200, (1, 0, 100, 10, 0), (1, 200, 300, 50, 0)),
    ]
    log = RetentionLimits(max_bytes=100)
    limits = {9: QueueLimits(max_age_us=1)}
    assert decided(segments, limits, begins={1: 0}, begin=100, log=log) == Decision({1: 200}, 200)


def test_where_queues_begin_that_were_never_copied() -> None:
    """The first part of each in the segments given; a queue that has none is left out."""
    segments = [segment(0, (1, 5, 9, 10, 0)), segment(100, (1, 9, 12, 10, 0), (2, 7, 8, 10, 0))]
    assert first_queue_offsets(segments, [1, 2, 3]) == {1: 5, 2: 7}
    assert first_queue_offsets(segments, []) == {}


def test_a_queue_that_pins_what_is_dead_is_named_with_its_bytes() -> None:
    """The one that has most of what is alive in the first segment that stays, with all that it has; what is dead is
    counted over all segments that stay, whoever had it. Nothing is named where nothing is dead, or all of it goes."""
    limits = {1: QueueLimits(max_age_us=10)}
    segments = [
        segment(0, (1, 0, 100, 100, 0)),
        segment(100, (1, 100, 130, 30, 0), (2, 0, 10, 60, 0), (3, 0, 5, 10, 0)),
        segment(200, (1, 130, 220, 90, 0), (2, 10, 12, 5, 0), (3, 5, 9, 5, 0)),
    ]
    found = decided(segments, limits, now_us=50, copy_share=0.1)
    assert (found.begin, found.copy, found.pin) == (100, None, Pin(2, 65, 120))
    assert decided(segments, {}, now_us=50).pin is None
    assert decided(segments[:1], limits, now_us=50).pin is None


# --- what landings hold ---


@pytest.mark.parametrize(("floor", "begin"), [(0, 0), (99, 0), (100, 100), (199, 100), (200, 200), (300, 300)])
def test_what_is_held_outlives_its_limits(floor: int, begin: int) -> None:
    """A queue whose parts are all too old, then too many: those with a record at or above the floor stay; another one
    that nobody holds goes."""
    segments = [segment(at, *((q, at, at + 100, 30, at) for q in (1, 2))) for at in (0, 100, 200)]
    for limits in (QueueLimits(max_age_us=1), QueueLimits(max_bytes=1)):
        gone = 200 if limits.max_bytes else 300  # the newest part is kept by its bytes
        found = decided(segments, {1: limits, 2: limits}, now_us=1000, floors={1: floor})
        assert found.queue_starts.get(1, 0) == min(begin, gone)
        assert found.queue_starts[2] == gone


def test_what_is_held_outlives_the_logs_limits() -> None:
    """A log of a segment, nothing in it with limits of its own: what a landing needs stays in its segments, and is
    copied where it is little; what is below goes with the log."""
    segments = [segment(at, (1, at, at + 100, 95, 0), (2, at, at + 100, 5, 0)) for at in (0, 100, 200)]
    log = RetentionLimits(max_bytes=100)
    assert decided(segments, {}, log=log).begin == 200
    assert decided(segments, {}, log=log, floors={1: 100}).begin == 100
    assert decided(segments, {}, log=log, floors={1: 0}) == Decision({})
    assert decided(segments, {}, log=log, floors={2: 150}) == Decision({}, 100, SegmentLife(100, 200, 5, expired=True))
    found = decided(segments, {}, log=log, floors={2: 150}, copied={100: True}, begins={2: 100})
    assert found == Decision({}, 200), "the copies are above the floor: the queue's begin does not rise"


def test_what_is_tiered_goes_early_below_the_floor() -> None:
    """A queue that is kept for ever, tiered after 50: its parts below the floor that are older go; those of another
    queue stay, and it by itself too while nobody has landed it."""
    segments = [segment(at, (1, at, at + 100, 30, at), (2, at, at + 100, 30, at)) for at in (0, 100, 200)]
    assert decided(segments, {}, now_us=260, floors={1: 300}, tiers={1: 50}).queue_starts == {1: 300}
    assert decided(segments, {}, now_us=240, floors={1: 300}, tiers={1: 50}).queue_starts == {1: 200}
    assert decided(segments, {}, now_us=260, floors={1: 150}, tiers={1: 50}).queue_starts == {1: 100}
    assert decided(segments, {}, now_us=260, floors={1: 0}, tiers={1: 50}).queue_starts == {}
    limits = {1: QueueLimits(max_age_us=10**6)}
    assert decided(segments, limits, now_us=260, floors={1: 300}, tiers={1: 50}).queue_starts == {1: 300}
    assert decided(
        segments, {1: QueueLimits(max_age_us=1)}, now_us=260, floors={1: 300}, tiers={1: 500}
    ).queue_starts == {1: 300}


# --- random lives ---


class Batch(NamedTuple):
    queue_id: int
    base: int
    next: int
    size: int
    time: int


@dataclass
class PlainSegment:
    start: int
    batches: list[Batch] = field(default_factory=list)
    time: int = 0

    @property
    def end(self) -> int:
        return self.start + sum(batch.size for batch in self.batches)


class PlainLog:
    """A log as a list of segments, the last one growing, and what must be kept by the plain words of its limits."""

    def __init__(self, limits: dict[int, QueueLimits], log_limits: RetentionLimits) -> None:
        self.limits = limits
        self.log_limits = log_limits
        self.segments = [PlainSegment(0)]
        self.all: dict[int, list[Batch]] = {}
        self.begins: dict[int, int] = {}
        self.copied: dict[int, bool] = {}
        self.begin = 0
        self.now = 1000
        # Queue offsets below which records of a queue may be gone: of one without limits, their segment went by the
        # log's; of a tiered one, they were landed and old.
        self.may_go: dict[int, int] = {}
        self.tiered: dict[int, int] = {}
        self.floors: dict[int, int] = {}
        self.tiers: dict[int, int] = {}

    @property
    def end(self) -> int:
        return self.segments[-1].end

    def publish(self, queue_id: int, count: int, size: int) -> None:
        known = self.all.setdefault(queue_id, [])
        base = known[-1].next if known else 0
        known.append(Batch(queue_id, base, base + count, size, self.now))
        self.store(known[-1])

    def store(self, batch: Batch) -> None:
        last = self.segments[-1]
        if last.batches and last.end + batch.size > last.start + 100:
            last = PlainSegment(last.end)
            self.segments.append(last)
        last.batches.append(batch)
        last.time = self.now

    def parts(self) -> list[SegmentParts]:
        return [
            SegmentParts(each.start, each.end, each.time, np.array(list(_parts(each.batches)), PART))
            for each in self.segments[:-1]
            if each.end > self.begin
        ]

    def decide(self) -> Decision:
        return decide(
            self.parts(),
            Queues(self.limits, self.begins, self.floors, self.tiers),
            begin=self.begin,
            end=self.end,
            at_most=self.end,
            now_us=self.now,
            limits=self.log_limits,
            copied=self.copied,
            copy_share=0.25,
        )

    def follow(self, decision: Decision, *, all_of_it: bool) -> None:
        expired = True
        for each in self.segments[:-1]:
            expired = expired and self.log_limits.expire(Aged(each.end, each.time), end=self.end, now_us=self.now)
            for batch in each.batches if expired else ():
                if batch.next <= self.floors.get(batch.queue_id, batch.next):
                    self.may_go[batch.queue_id] = max(batch.next, self.may_go.get(batch.queue_id, 0))
        for queue_id, age in self.tiers.items():
            for batch in self.all.get(queue_id, ()):
                if batch.next <= self.floors[queue_id] and batch.time < self.now - age:
                    self.tiered[queue_id] = max(batch.next, self.tiered.get(queue_id, 0))
        for queue_id, begin in decision.queue_starts.items():
            assert begin > self.begins.get(queue_id, -1), "it only rises"
            self.begins[queue_id] = begin
        if decision.begin is not None:
            self.begin = decision.begin
            self.segments = [each for each in self.segments if each.end > self.begin or each is self.segments[-1]]
        if decision.copy is not None:
            self.copy(decision.copy, all_of_it=all_of_it)

    def copy(self, life: SegmentLife, *, all_of_it: bool) -> None:
        (source,) = [each for each in self.segments if each.start == life.start]
        later = {batch[:3] for each in self.segments if each.start > life.start for batch in each.batches}
        held = [
            batch
            for queue_id, base, following, _, _ in _parts(source.batches)
            for batch in source.batches
            if batch.queue_id == queue_id and base <= batch.base < following > self.floors.get(queue_id, 2**63)
        ]
        alive = [
            batch
            for batch in source.batches
            if batch.next > self.begins.get(batch.queue_id, 0)
            and (batch.queue_id in self.limits or not life.expired or batch in held)
            and batch[:3] not in later
        ]
        said = first_queue_offsets(self.parts(), {batch.queue_id for batch in alive} - self.begins.keys())
        self.begins.update(said)
        for batch in alive if all_of_it else alive[: len(alive) // 2]:
            self.store(batch)
        if all_of_it:
            self.copied[life.start] = life.expired

    # --- what must hold ---

    def check(self) -> None:
        held: dict[int, set[tuple[int, int]]] = {}
        for each in self.segments:
            for batch in each.batches:
                held.setdefault(batch.queue_id, set()).add((batch.base, batch.next))
        for queue_id, batches in self.all.items():
            places = sorted(held.get(queue_id, set()))
            begin = self.begins.get(queue_id, places[0][0] if places else batches[-1].next)
            alive = [(base, following) for base, following in places if following > begin]
            expected = [batch[1:3] for batch in batches if batch.next > begin]
            assert alive == expected, f"queue {queue_id} from {begin} on"
            for batch in batches:
                assert batch.next > begin or self.dead(batch), f"{batch} went, queue {queue_id} begins at {begin}"

    # --- landings ---

    def hold(self, queue_id: int, share: float, tier: int | None) -> None:
        """From a record that is there, a share of all of them away from the first."""
        batches = self.all.get(queue_id, [])
        first = max(self.begins.get(queue_id, 0), self.first_held(queue_id))
        floor = first + round(share * (batches[-1].next - first)) if batches else 0
        if floor < self.floors.get(queue_id, 2**63):
            self.copied.clear()
        self.floors[queue_id] = floor
        self.tiers.pop(queue_id, None)
        if tier is not None:
            self.tiers[queue_id] = tier

    def release(self, queue_id: int) -> None:
        self.floors.pop(queue_id, None)
        self.tiers.pop(queue_id, None)

    def first_held(self, queue_id: int) -> int:
        held = [batch.base for each in self.segments for batch in each.batches if batch.queue_id == queue_id]
        return min(held, default=self.all[queue_id][-1].next if self.all.get(queue_id) else 0)

    def dead(self, batch: Batch) -> bool:
        """Whether its limits say that it may go, and no landing holds it."""
        if batch.next > self.floors.get(batch.queue_id, 2**63):
            return False
        if batch.next <= self.tiered.get(batch.queue_id, 0):
            return True
        limits = self.limits.get(batch.queue_id)
        if limits is None:
            return batch.next <= self.may_go.get(batch.queue_id, 0)
        age = limits.max_age_us or self.log_limits.max_age_us
        newer = sum(each.size for each in self.all[batch.queue_id] if each.base > batch.base)
        return (age is not None and batch.time < self.now - age) or (
            limits.max_bytes is not None and newer >= limits.max_bytes
        )

    def check_idle(self) -> None:
        """Nothing is left to do: no stretch of segments from the begin on has little enough alive."""
        live = size = 0
        expired = True
        for each in self.segments[:-1]:
            expired = expired and self.log_limits.expire(Aged(each.end, each.time), end=self.end, now_us=self.now)
            live += sum(
                size
                for queue_id, _, following, size, _ in _parts(each.batches)
                if following > self.begins.get(queue_id, 0)
                and (queue_id in self.limits or not expired or following > self.floors.get(queue_id, 2**63))
            )
            size += each.end - each.start
            assert live > 0.25 * size


class Aged(NamedTuple):
    end: int
    last_append_time_us: int


def _parts(batches: Iterable[Batch]) -> Iterator[Part]:
    """Dense stretches in order, as a table has them."""
    open_part: Part | None = None
    for queue_id, base, following, size, time in sorted(set(batches)):
        if open_part is not None and open_part[0] == queue_id and open_part[2] == base:
            open_part = (queue_id, open_part[1], following, open_part[3] + size, time)
            continue
        if open_part is not None:
            yield open_part
        open_part = (queue_id, base, following, size, time)
    if open_part is not None:
        yield open_part


_AGES = st.sampled_from([None, 1, 50, 300, 10**6])
_BYTES = st.sampled_from([None, 1, 60, 400])
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 4), st.integers(1, 12), st.integers(1, 30)),
        st.tuples(st.just("publish"), st.integers(1, 4), st.integers(1, 12), st.integers(1, 30)),
        st.tuples(st.just("time"), st.integers(1, 100)),
        st.tuples(st.just("decide"), st.booleans()),
        st.tuples(st.just("hold"), st.integers(1, 4), st.floats(0, 1), st.sampled_from([None, None, 0, 100])),
        st.tuples(st.just("release"), st.integers(1, 4)),
    ),
    min_size=10,
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    limits=st.dictionaries(st.integers(1, 3), st.builds(QueueLimits, _AGES, _BYTES)),
    log_limits=st.builds(RetentionLimits, _AGES, st.sampled_from([None, 100, 500])),
    steps=_STEPS,
)
def test_a_random_life_loses_nothing_that_must_be_kept(
    limits: dict[int, QueueLimits], log_limits: RetentionLimits, steps: list[tuple]
) -> None:
    """Goal: the decision is safe and comes to an end. Publish, let time go by, have landings hold queues and release
    them, decide and follow, with copies that end half-way, in any order; each record is kept as long as the plain words
    of its limits say, and while it is held, queues have no holes, and at the end a bounded number of rounds leaves
    nothing to do."""
    log = PlainLog(limits, log_limits)
    for step in steps:
        match step:
            case ("publish", queue_id, batches, size):
                for number in range(batches):
                    log.publish(queue_id, 1 + number % 3, size)
            case ("time", passed):
                log.now += passed
            case ("decide", all_of_it):
                log.follow(log.decide(), all_of_it=all_of_it)
            case ("hold", queue_id, share, tier):
                log.hold(queue_id, share, tier)
            case ("release", queue_id):
                log.release(queue_id)
        log.check()
    for _ in range(3 * len(log.segments) + 10):
        decision = log.decide()
        if decision == Decision({}):
            break
        log.follow(decision, all_of_it=True)
        log.check()
    else:
        pytest.fail("it goes on for ever")
    log.check_idle()


# --- what a queue has left ---


def stays(
    own: QueueLimits | None = None,
    *,
    newer: int = 0,
    floor: int = 10**9,
    now_us: int = 0,
    log: RetentionLimits | None = None,
) -> tuple[int, int]:
    """Of a queue that has left the log with 400 records, 100 in each of three segments of 30 bytes, and in the newest
    one, 50 bytes."""
    segments = [segment(at, *((q, at, at + 100, 30, at) for q in (1, 2)), time=at) for at in (0, 100, 200)]
    stretch = Stretch(1, 0, 400, 140, newer, floor)
    return alive_from(segments, stretch, own, end=500, now_us=now_us, limits=log or RetentionLimits())


def test_what_a_queue_has_left_goes_by_its_own_limits() -> None:
    """Of age, and of bytes, where what is in later logs counts; but for what is held, and what the newest segments
    have. It is as if all had stayed in one log."""
    assert stays() == stays(QueueLimits()) == (0, 140)
    assert stays(QueueLimits(max_age_us=150), now_us=251) == (200, 80)
    assert stays(QueueLimits(max_age_us=1), now_us=10**6) == (300, 50)
    assert stays(QueueLimits(max_bytes=80)) == (200, 80)
    assert stays(QueueLimits(max_bytes=81)) == (100, 110)
    assert stays(QueueLimits(max_bytes=81), newer=1) == (200, 80)
    assert stays(QueueLimits(max_bytes=81), newer=1, floor=100) == (100, 110)
    assert stays(QueueLimits(max_bytes=1), newer=10**6) == (300, 50)
    assert stays(QueueLimits(max_bytes=10**6), now_us=251, log=RetentionLimits(max_age_us=150)) == (200, 80)


def test_what_a_queue_without_limits_has_left_goes_by_those_of_its_log() -> None:
    """Segment by segment, as the log's other records do."""
    assert stays(log=RetentionLimits(max_bytes=300)) == (200, 80)
    assert stays(log=RetentionLimits(max_age_us=150), now_us=251) == (200, 80)
    assert stays(log=RetentionLimits(max_bytes=300), floor=150) == (100, 110)
    assert stays(log=RetentionLimits(max_bytes=1), newer=10**6) == (300, 50)


def former_and_here(segments: list[SegmentParts], max_bytes: int, size: int) -> tuple[int, int]:
    """Where a queue of `size` bytes begins, as a former log says it, and as the same log says it of a queue that is
    there. A segment of another queue follows."""
    limits, segments = QueueLimits(max_bytes=max_bytes), [*segments, segment(10_000, (9, 0, 1, 1, 0))]
    until = max(int(each.parts["next"].max()) for each in segments)
    stretch = Stretch(1, 0, until, size)
    found, _ = alive_from(segments, stretch, limits, end=10_100, now_us=0, limits=RetentionLimits())
    return found, decided(segments, {1: limits}).queue_starts.get(1, 0)


def test_a_queue_that_was_copied_and_left_again_is_limited_by_its_own_order() -> None:
    """The newest records were copied first, so the oldest stand in the newest segments; they are what goes."""
    segments = [segment(at * 100, (1, 900 - 100 * at, 1000 - 100 * at, 30, 0)) for at in range(10)]
    assert former_and_here(segments, 60, 300) == (800, 800)


def test_what_stands_twice_in_a_former_log_counts_once() -> None:
    """It was appended once more, or copied by two masters; as a whole, and in part: then rather too little goes."""
    parts = [(0, 100), (100, 200), (200, 300), (200, 300)]
    segments = [segment(at * 100, (1, base, following, 30, 0)) for at, (base, following) in enumerate(parts)]
    assert former_and_here(segments, 60, 90) == (100, 100)
    assert former_and_here(segments, 61, 90) == (0, 0)
    parts = [(0, 100), (100, 200), (150, 300)]
    segments = [segment(at * 100, (1, base, following, 30, 0)) for at, (base, following) in enumerate(parts)]
    assert former_and_here(segments, 60, 75) == (0, 0)
    assert former_and_here(segments, 30, 75)[0] == 150


def test_what_stands_in_no_segment_that_was_looked_at_stays() -> None:
    """A queue that has come back to a log has records there that are older than what is in no memory; and a gap that a
    loss has left is none."""
    segments = [segment(0, (1, 100, 200, 30, 0), time=0)]
    old = QueueLimits(max_age_us=1)
    for first, gaps, begin in ((0, (), 0), (100, (), 200), (0, ((0, 100),), 200), (0, ((0, 99),), 99)):
        stretch = Stretch(1, first, 300, 100, gaps=gaps)
        found = alive_from(segments, stretch, old, end=500, now_us=10, limits=RetentionLimits())
        assert found == (begin, 70), (first, gaps)
