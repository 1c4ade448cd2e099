"""Runs: which records have which priority, time to live and delay, through everything that befalls a log.

A walk does what a master does, in a random order that its seed gives: batches with attributes and without, groups that
settle and are set back, queues that are declared and deleted, checkpoints cut in pieces, time that goes by, confirms,
truncations and restarts. The model is the log itself, read record by record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import Final

import pytest

from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes, attributes_of
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import ATTRIBUTES_SIZE, HEADER_SIZE, BatchHeader, Kind, read_header
from mirrorlog.errors import BadBatch, Overloaded
from mirrorlog.queues.changes import GroupDeleted, QueueStartsMoved, Settled, encode_change
from mirrorlog.queues.checkpoint import CheckpointWriter
from mirrorlog.queues.checkpoint_states import RunState, encode_state
from mirrorlog.queues.limits.attributes import JOINED_US_MAX, RUNS_PER_STATE, QueueRuns, Run, RunRow, RunTable
from tests.queues.statelog import Derived, StateLog

SECOND_US: Final = 1_000_000
STEPS: Final = 250
ASKED: Final = [
    NO_ATTRIBUTES,
    Attributes(5),
    Attributes(5),
    Attributes(9),
    Attributes(0, 1_000),
    Attributes(0, 60_000),
    Attributes(0, 0),
    Attributes(2, None, 5_000),
    Attributes(1, 60_000, 2_000),
]
_KINDS: Final = {"plain": {}, "ttl": {"x-message-ttl": 30_000}}


def data_of(queue_id: int, attributes: Attributes, count: int = 1) -> bytearray:
    asked = None if attributes == NO_ATTRIBUTES else attributes
    return encode_batch([Record(b"v")] * count, queue_id=queue_id, attributes=asked)


def table(runs_max: int = 1000) -> RunTable:
    return RunTable(runs_max=runs_max, floors=lambda queue_ids: {})


def of(runs: RunTable, queue_id: int = 1) -> list[Run]:
    there = runs.of(queue_id)
    return list(there) if there is not None else []


# --- joining ---


def test_neighbours_of_one_priority_are_one_run_whenever_they_came() -> None:
    """Three batches of one priority, days apart, then another priority, then the first again behind a plain one."""
    runs = table()
    for at, first in enumerate([0, 3, 6]):
        runs.add(1, first, 3, at * 86_400 * SECOND_US, Attributes(5))
    runs.add(1, 9, 1, 0, Attributes(6))
    runs.add(1, 12, 1, 0, Attributes(6))
    assert of(runs) == [Run(0, 9, 5, None, None), Run(9, 10, 6, None, None), Run(12, 13, 6, None, None)]
    assert runs.total == 3


@pytest.mark.parametrize(("ttl_ms", "within_us"), [(100, 1_000), (1_000, 10_000), (10**6, 10**7), (10**9, 10**7)])
def test_neighbours_of_one_time_to_live_are_one_run_within_a_hundredth_of_it(ttl_ms: int, within_us: int) -> None:
    """Batches that come within the hundredth, and 10 s at most, are one run, counted from the last; the next is
    another one."""
    runs, asked = table(), Attributes(0, ttl_ms)
    for first, at in enumerate([0, within_us // 2, within_us, within_us + 1]):
        runs.add(1, first, 1, at, asked)
    ends = [within_us + ttl_ms * 1000, within_us + 1 + ttl_ms * 1000]
    assert of(runs) == [Run(0, 3, 0, ends[0], None), Run(3, 4, 0, ends[1], None)]


def test_a_time_to_live_of_nothing_is_never_counted_from_another_batch() -> None:
    """Two batches a microsecond apart are two runs, two of one moment are one."""
    runs = table()
    for first, at in enumerate([7, 7, 8]):
        runs.add(1, first, 1, at, Attributes(0, 0))
    assert of(runs) == [Run(0, 2, 0, 7, None), Run(2, 3, 0, 8, None)]


def test_a_delay_counts_from_the_last_append_and_joins_by_the_shorter_time() -> None:
    """With a time to live of a day and a delay of a second, 10 ms count."""
    runs, asked = table(), Attributes(1, 86_400_000, 1_000)
    for first, at in enumerate([0, 10_000, 10_001]):
        runs.add(1, first, 1, at, asked)
    assert [run.not_before_us for run in of(runs)] == [10_000 + SECOND_US, 10_001 + SECOND_US]


def test_a_million_batches_with_one_time_to_live_are_a_few_runs() -> None:
    """10,000 batches in a second, with a minute; then one a second for a day, with a day."""
    runs = table()
    for at in range(10_000):
        runs.add(1, at, 1, at * 100, Attributes(0, 60_000))
    assert runs.total == len(of(runs)) == 2
    for at in range(86_400):
        runs.add(2, at, 1, at * SECOND_US, Attributes(0, 86_400_000))
    assert len(of(runs, 2)) <= 8_640


def test_runs_whose_time_to_live_is_over_are_one_and_the_others_stay_as_they_are() -> None:
    """50,000 records of a second, one each second, read as a stream alone, so that nothing settles them; a plain one
    and one of ten years stand among them, and three that are not over at the end."""
    runs = table(runs_max=100_000)
    for at in range(50_000):
        if at != 20_000:
            ttl_ms = 10 * 365 * 86_400_000 if at == 30_000 else 1_000
            runs.add(1, at, 1, at * SECOND_US, Attributes(at % 2, ttl_ms))
    assert runs.total == len(of(runs)) < 3_000
    there = runs.of(1)
    assert there is not None
    now_us = 49_999 * SECOND_US
    for at in range(50_000):
        run = there.covering(at)
        if at == 20_000:
            assert run is None
            continue
        assert run is not None
        assert run.expires_at_us is not None
        is_over = at != 30_000 and (at + 1) * SECOND_US <= now_us
        assert (run.expires_at_us <= now_us) == is_over
        if not is_over:
            assert run == Run(at, at + 1, at % 2, run.expires_at_us, None)


@pytest.mark.parametrize(
    ("queue_ttl_ms", "asked", "expires_ms"),
    [(50, None, 50), (50, 70, 50), (50, 20, 20), (0, 20, 0), (50, 0, 0)],
)
def test_a_queues_own_time_to_live_counts_when_it_is_the_shorter(
    queue_ttl_ms: int, asked: int | None, expires_ms: int
) -> None:
    runs = table()
    runs.add(1, 0, 1, SECOND_US, Attributes(3, asked), queue_ttl_ms=queue_ttl_ms)
    assert of(runs) == [Run(0, 1, 3, SECOND_US + expires_ms * 1000, None)]


# --- asking ---


def test_runs_are_found_by_queue_offset() -> None:
    """Three runs with plain records before, between and behind them."""
    runs = QueueRuns()
    for first in (10, 20, 22):
        runs.add(RunRow(first, first + 2, Attributes(first), 0))
    firsts = [run.first if (run := runs.covering(at)) else None for at in (9, 10, 11, 12, 19, 20, 22, 23, 24)]
    assert firsts == [None, 10, 10, None, None, 20, 22, 22, None]
    assert [run.first for run in runs.from_on(11)] == [10, 20, 22]
    assert [run.first for run in runs.from_on(12)] == [20, 22]
    assert [run.first for run in runs.between(11, 22)] == [10, 20]
    assert (list(runs.from_on(24)), list(runs.between(12, 20)), runs.end, len(runs)) == ([], [], 24, 3)


def test_a_queue_without_attributes_is_not_there() -> None:
    runs = table()
    runs.add(1, 0, 5, 0)
    runs.add(2, 0, 5, 0, Attributes(1))
    assert (runs.of(1), runs.queue_ids(), runs.total) == (None, [2], 1)


# --- limits and bad input ---


def test_above_the_limit_a_publish_is_refused_and_the_limit_named() -> None:
    """One run fits, then it is full; a mirror that has a smaller limit follows all the same; what is settled makes
    room."""
    runs = table(runs_max=1)
    runs.check_room(1)
    runs.add(1, 0, 1, 0, Attributes(1))
    with pytest.raises(Overloaded, match=r"limits\.attribute_runs_max.*nothing was stored") as refused:
        runs.check_room(1)
    assert refused.value.details["limit"] == "attribute_runs_max"
    runs.add(1, 5, 1, 0, Attributes(1))
    assert runs.total == 2
    runs.start_moved({1: 6})
    runs.check_room(1)


def test_one_queue_leaves_room_for_others() -> None:
    """Ten runs fit: a queue alone has six of them, and others have the rest."""
    runs = table(runs_max=10)
    for at in range(6):
        runs.check_room(1)
        runs.add(1, at * 2, 1, 0, Attributes(1))
    with pytest.raises(Overloaded, match=r"6 runs of this queue.*room for 4 more.*attribute_runs_max"):
        runs.check_room(1)
    for queue_id in (2, 3, 4, 5):
        runs.check_room(queue_id)
        runs.add(queue_id, 0, 1, 0, Attributes(1))
    with pytest.raises(Overloaded, match=r"this log keeps .* of 10 runs, of records"):
        runs.check_room(6)


def test_nothing_is_forgotten_while_the_queues_own_group_can_still_be_made() -> None:
    """Another group has settled all; the queue's own one begins where the queue does. With it, what both have settled
    goes."""
    walk = Walk(0)
    batch = walk.live.registry.declare("q", {})
    assert batch is not None
    walk.append(batch)
    queue_id = walk.live.registry.find("q").queue_id
    walk.append(encode_change(walk.live.groups.reset(queue_id, "g", 0), queue_id=queue_id))
    walk.append(data_of(queue_id, Attributes(5)))
    walk.append(encode_change(Settled(group="g", ranges=[0, 1]), queue_id=queue_id))
    walk.live.confirm(walk.log.end)
    assert of(walk.live.runs, queue_id) == [Run(0, 1, 5, None, None)]
    walk.append(encode_change(walk.live.groups.reset(queue_id, "", 0), queue_id=queue_id))
    walk.append(encode_change(Settled(group="", ranges=[0, 1]), queue_id=queue_id))
    walk.live.confirm(walk.log.end)
    assert of(walk.live.runs, queue_id) == []


def test_attributes_that_are_not_known_leave_the_queues_own() -> None:
    """A block with its reserved byte set, as a later software may write it: it is told, and the records are as those of
    a batch without."""
    batch = data_of(1, Attributes(5))
    batch[HEADER_SIZE + ATTRIBUTES_SIZE - 1] = 1
    runs, header = table(), read_header(batch)
    with pytest.raises(BadBatch):
        runs.apply(header, batch)
    assert runs.of(1) is None
    with pytest.raises(BadBatch):
        runs.apply(header, batch, queue_ttl_ms=9)
    assert of(runs) == [Run(0, 1, 0, 9_000, None)]


@pytest.mark.parametrize(
    "numbers",
    [
        [0, 1, 5, 0, 0, 0],
        [0, 0, 5, 0, 0, 0, 0],
        [-1, 2, 5, 0, 0, 0, 0],
        [0, 1, 256, 0, 0, 0, 0],
        [0, 1, 5, -1, 0, 0, 0],
        [0, 1, 5, 0, -1, 0, 0],
        [0, 1, 5, 0, 0, 0, JOINED_US_MAX + 1],
        [2**63 - 1, 2, 5, 0, 0, 0, 0],
        [5, 1, 5, 0, 0, 0, 0, 5, 1, 5, 0, 0, 0, 0],
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_bad(numbers: list[int]) -> None:
    header = read_header(data_of(1, NO_ATTRIBUTES))
    with pytest.raises(BadBatch):
        table().restore(header, [RunState(1, numbers)])


def test_a_state_is_below_half_of_the_smallest_batch() -> None:
    """As many runs as one state has, with the largest numbers there are."""
    widest = [2**62, 2**62 - 1, 255, 2**48, 2**48, 2**62, JOINED_US_MAX]
    assert len(encode_state(RunState(2**32 - 1, widest * RUNS_PER_STATE))) < 32 * 1024


# --- the log goes on, and back ---


def test_a_batch_that_stands_in_the_log_once_more_changes_nothing() -> None:
    """A joined run, and a batch from its middle again; and one in a place of which nothing is known, which is put
    there."""
    runs = table()
    for first in (4, 6, 8):
        runs.add(1, first, 2, first, Attributes(0, 60_000))
    before = of(runs)
    runs.add(1, 6, 2, 6, Attributes(0, 60_000))
    assert of(runs) == before
    runs.add(1, 0, 6, 1, Attributes(0, 60_000))
    assert of(runs) == [Run(0, 4, 0, 60_000_001, None), *before]


def test_a_cut_takes_what_is_behind_it_and_the_end_of_a_joined_run() -> None:
    runs = table()
    for first in (0, 2, 4):
        runs.add(1, first, 2, 0, Attributes(1))
    runs.add(1, 6, 2, 0, Attributes(2))
    runs.add(2, 0, 1, 0, Attributes(2))
    runs.cut(0, lambda queue_id: 3 if queue_id == 1 else 0)
    assert of(runs) == [Run(0, 3, 1, None, None)]


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log = StateLog()
        self.confirmed = 0
        self.live = Derived()
        self.writer: CheckpointWriter | None = None
        self.states = 0

    def step(self) -> None:
        steps: dict[Callable[[], None], int] = {
            self.declare: 3,
            self.delete: 1,
            self.publish: 60,
            self.settle: 25,
            self.change_groups: 4,
            self.let_time_go_by: 20,
            self.confirm: 12,
            self.write_checkpoint: 20,
            self.move_begins: 2,
            self.cut: 2,
            self.restart: 4,
            self.copy: 3,
        }
        self.random.choices(list(steps), list(steps.values()))[0]()

    def append(self, batch: bytearray, *, base_queue_offset: int = 0) -> None:
        self.live.follow(*self.log.append(batch, base_queue_offset=base_queue_offset))

    def some_queue(self) -> int | None:
        there = self.live.registry.queue_ids()
        return self.random.choice(there) if there else None

    def declare(self) -> None:
        name = self.random.choice(["plain", "ttl"])
        batch = self.live.registry.declare(name, _KINDS[name])
        if batch is not None:
            self.append(batch)

    def delete(self) -> None:
        if (queue_id := self.some_queue()) is not None and self.random.random() < 0.5:
            self.append(self.live.registry.delete(queue_id))

    def publish(self) -> None:
        if (queue_id := self.some_queue()) is not None:
            asked = self.random.choice(ASKED)
            for _ in range(self.random.choice([1, 1, 3])):
                batch = data_of(queue_id, asked, self.random.randint(1, 3))
                self.append(batch, base_queue_offset=self.live.next_queue_offset(queue_id))
                self.log.now_us += self.random.choice([0, 1, 3_000, 30_000])

    def change_groups(self) -> None:
        if (queue_id := self.some_queue()) is None:
            return
        group, there = self.random.choice(["", "g"]), self.live.groups.groups(queue_id)
        if group in there and len(there) > 1 and self.random.random() < 0.4:  # the last one's floor would be unknown
            self.append(encode_change(GroupDeleted(group=group), queue_id=queue_id))
            return
        # Set back it gets plain records, so not behind what all groups had.
        floor = min((ledger.floor for ledger in there.values()), default=0)
        at = self.random.choice([floor, self.live.next_queue_offset(queue_id)])
        self.append(encode_change(self.live.groups.reset(queue_id, group, at), queue_id=queue_id))

    def settle(self) -> None:
        queue_id = self.some_queue()
        groups = self.live.groups.groups(queue_id) if queue_id is not None else {}
        for group, ledger in groups.items():
            end = self.live.next_queue_offset(queue_id or 0)
            first = self.random.choice([ledger.floor, ledger.floor, self.random.randint(0, end)])
            until = min(end, first + self.random.choice([1, 2, 20]))
            if first < until:
                self.append(encode_change(Settled(group=group, ranges=[first, until]), queue_id=queue_id or 0))

    def let_time_go_by(self) -> None:
        self.log.now_us += self.random.choice([1_000, 50_000, SECOND_US, 100 * SECOND_US])

    def confirm(self) -> None:
        if borders := [header.next_log_offset for header, _ in self.log.since(self.confirmed)]:
            self.confirmed = self.random.choice([*borders, borders[-1]])
            self.live.confirm(self.confirmed)

    def write_checkpoint(self) -> None:
        if self.writer is None:
            self.writer = self.live.writer(queues_per_batch=1, producers_per_batch=1)
        for _ in range(self.random.choice([1, 1, 2, 100])):
            batch = self.writer.next_batch(self.log.end)
            if batch is None:
                self.writer = None
                return
            self.append(batch)

    def move_begins(self) -> None:
        if (queue_id := self.some_queue()) is not None:
            floors = self.live.groups.floors([queue_id])
            self.append(encode_change(QueueStartsMoved(begins=floors)))

    def cut(self) -> None:
        places = [header.log_offset for header, _ in self.log.since(self.confirmed)]
        if not places:
            return
        place = self.random.choice(places)
        self.log.cut(place)
        for derived in (self.live.registry, self.live.holds, self.live.groups, self.live.tracker):
            derived.cut(place)
        again = Derived()
        again.follow_all(self.log.batches, confirmed=self.confirmed)
        self.live.producers, self.live.appended = again.producers, again.appended
        self.live.runs.cut(place, lambda queue_id: again.appended.get(queue_id, 0))
        self.writer = None

    def restart(self) -> None:
        """From the newest checkpoint, or as a copy that begins before it."""
        begins = [0, self.live.tracker.state_from, self.live.tracker.state_from]
        told_before = self.random.random() < 0.5
        begin = self.random.choice(begins)
        self.live = Derived()
        if told_before:
            self.live.confirm(self.confirmed)
        self.live.follow_all(self.log.since(begin), confirmed=self.confirmed)
        self.writer = None

    def copy(self) -> None:
        """What a checkpoint tells a copy, which begins between two batches below it and hears some batches twice."""
        state_from = self.live.tracker.state_from
        begins = [header.log_offset for header, _ in self.log.batches if header.log_offset <= state_from] or [0]
        copy = Derived()
        for header, batch in self.log.since(self.random.choice(begins)):
            copy.follow(header, batch)
            if header.kind == Kind.DATA and self.random.random() < 0.2 and copy.registry.has_id(header.queue_id):
                copy.runs.apply(header, batch, queue_ttl_ms=copy.registry.ttls.get(header.queue_id))
        copy.confirm(self.confirmed)
        check(copy, self.log, settled_too=False)

    def check(self) -> None:
        check(self.live, self.log)


def check(derived: Derived, log: StateLog, *, settled_too: bool = True) -> None:
    """Of every record that some group has not settled, or of which no group has heard, the table says what its batch
    says, and times are later by the part that may be joined, never sooner; of no other it says anything else.
    `settled_too`: not so of a copy that began with records of queues which it did not know."""
    assert derived.runs.total == sum(len(of(derived.runs, each)) for each in derived.runs.queue_ids())
    for queue_id in derived.registry.queue_ids():
        runs = derived.runs.of(queue_id)
        ledgers = list(derived.groups.groups(queue_id).values())
        begin = derived.registry.start_offsets.get(queue_id, 0)
        whole = of(derived.runs, queue_id)
        assert all(left.until <= right.first for left, right in pairwise(whole))
        for header, asked in batches_of(log, queue_id, derived.registry.ttls.get(queue_id)):
            for at in range(max(begin, header.base_queue_offset), header.next_queue_offset):
                found = runs.covering(at) if runs is not None else None
                needed = not ledgers or any(ledger.unsettled(at, at + 1) for ledger in ledgers)
                if needed or settled_too:
                    check_record(found, asked, header.append_time_us, needed=needed)


def batches_of(log: StateLog, queue_id: int, ttl_ms: int | None) -> Sequence[tuple[BatchHeader, Attributes]]:
    rows = []
    for header, batch in log.batches:
        if header.kind == Kind.DATA and header.queue_id == queue_id:
            asked = attributes_of(header, batch)
            ttls = [each for each in (asked.ttl_ms, ttl_ms) if each is not None]
            rows.append((header, asked._replace(ttl_ms=min(ttls) if ttls else None)))
    return rows


def check_record(found: Run | None, asked: Attributes, append_us: int, *, needed: bool) -> None:
    if found is None:
        assert not needed or asked == NO_ATTRIBUTES
        return
    assert asked != NO_ATTRIBUTES
    assert found.priority == asked.priority
    shortest = min(
        [JOINED_US_MAX * 100, *(1000 * each for each in (asked.ttl_ms, asked.delay_ms or None) if each is not None)]
    )
    for time, exact in (
        (found.expires_at_us, asked.expires_at_us(append_us)),
        (found.not_before_us, asked.not_before_us(append_us) if asked.delay_ms else None),
    ):
        assert (time is None) == (exact is None)
        assert time is None or exact is None or exact <= time <= exact + shortest // 100


@pytest.mark.parametrize("seed", range(40))
def test_every_unsettled_record_has_the_attributes_of_its_batch_whatever_befalls_the_log(seed: int) -> None:
    """Walk, and hold the table against the log after every step, that of a copy that begins with a checkpoint too. In
    the end all is settled: nothing is left."""
    walk = Walk(seed)
    for _ in range(STEPS):
        walk.step()
        walk.check()
    for queue_id in walk.live.registry.queue_ids():
        end = walk.live.next_queue_offset(queue_id)
        for group in ["", "g"]:
            walk.append(encode_change(walk.live.groups.reset(queue_id, group, end), queue_id=queue_id))
    walk.writer = None
    walk.write_checkpoint()
    while walk.writer is not None:
        walk.write_checkpoint()
    walk.live.confirm(walk.log.end)
    assert walk.live.runs.total == 0, seed


def test_a_checkpoint_carries_thousands_of_runs_in_small_states() -> None:
    """Twelve hundred runs of one queue, and more while it is written: each state has its share, a copy that begins
    there has all."""
    walk = Walk(0)
    batch = walk.live.registry.declare("q", {})
    assert batch is not None
    walk.append(batch)
    queue_id = walk.live.registry.find("q").queue_id
    for at in range(1200):
        walk.append(data_of(queue_id, Attributes(1 + at % 2)), base_queue_offset=at)
    began_at = walk.log.end
    writer = walk.live.writer(queues_per_batch=250, producers_per_batch=250)
    at, sizes = 1200, []
    while (batch := writer.next_batch(walk.log.end)) is not None:
        sizes.append(len(batch))
        walk.append(batch)
        walk.append(data_of(queue_id, Attributes(1 + at % 2)), base_queue_offset=at)
        at += 1
    copy = Derived()
    copy.follow_all(walk.log.since(began_at), confirmed=walk.log.end)
    assert of(copy.runs, queue_id) == of(walk.live.runs, queue_id)
    assert (copy.runs.total, max(sizes) <= 32 * 1024) == (at, True)


def test_a_copy_forgets_nothing_for_a_group_that_it_knows_before_the_others() -> None:
    """A copy begins behind the making of a queue's own group, and hears of another one that stands at the end. Then a
    checkpoint tells of both, and of the runs, which the first still needs; then all of it is confirmed."""
    walk = Walk(0)
    batch = walk.live.registry.declare("q", {})
    assert batch is not None
    walk.append(batch)
    queue_id = walk.live.registry.find("q").queue_id
    walk.append(encode_change(walk.live.groups.reset(queue_id, "", 0), queue_id=queue_id))
    walk.append(data_of(queue_id, Attributes(5)))
    began_at = walk.log.end
    walk.append(data_of(queue_id, Attributes(6)), base_queue_offset=1)
    walk.append(encode_change(walk.live.groups.reset(queue_id, "late", 2), queue_id=queue_id))
    writer = walk.live.writer(queues_per_batch=1, producers_per_batch=1)
    while (written := writer.next_batch(walk.log.end)) is not None:
        walk.append(written)
    copy = Derived()
    copy.follow_all(walk.log.since(began_at), confirmed=walk.log.end)
    assert of(copy.runs, queue_id) == [Run(0, 1, 5, None, None), Run(1, 2, 6, None, None)]


@pytest.mark.parametrize("starts_with_log", [True, False], ids=["from the log's first byte", "from a checkpoint"])
def test_a_copy_that_hears_of_a_confirm_behind_a_checkpoint_forgets_what_the_others_have(starts_with_log: bool) -> None:
    """All groups have settled a record, and the master knows that to be confirmed when it writes a checkpoint; a group
    is made in front of that record while it is written. A copy that knows all groups, and hears of the confirm behind
    all this, has that record plain too."""
    master = Walk(0)
    queue_id = queue_of(master)
    master.append(data_of(queue_id, Attributes(5)))
    master.append(encode_change(master.live.groups.reset(queue_id, "", 0), queue_id=queue_id))
    began_at = 0 if starts_with_log else master.log.end
    if not starts_with_log:
        append_checkpoint(master)
    copy, heard_to = Derived(), master.log.end
    copy.follow_all(master.log.since(began_at), confirmed=heard_to)
    assert of(copy.runs, queue_id) == [Run(0, 1, 5, None, None)]
    master.append(encode_change(Settled(group="", ranges=[0, 1]), queue_id=queue_id))
    master.live.confirm(master.log.end)
    append_checkpoint(master, encode_change(master.live.groups.reset(queue_id, "late", 0), queue_id=queue_id))
    assert of(master.live.runs, queue_id) == []
    for header, stored in master.log.since(heard_to):
        copy.follow(header, stored)
    copy.confirm(master.log.end)
    assert of(copy.runs, queue_id) == []


@pytest.mark.parametrize("is_cut", [False, True], ids=["as it comes", "cut and fetched again"])
def test_a_copy_that_began_late_takes_no_floor_for_that_of_all_groups(is_cut: bool) -> None:
    """A copy begins behind the making of a group that needs a record, and hears how the queue's own one is made behind
    it: of all groups that it knows none needs that record. A checkpoint tells of the other one and of the record; then
    all of it is confirmed. So it is, too, when that copy, which knows all groups by then, has to give up what it was
    sent and is sent it again."""
    master = Walk(0)
    queue_id = queue_of(master)
    master.append(encode_change(master.live.groups.reset(queue_id, "early", 0), queue_id=queue_id))
    began_at = master.log.end
    master.append(data_of(queue_id, Attributes(5)))
    cut_at = master.log.end
    master.append(encode_change(master.live.groups.reset(queue_id, "", 1), queue_id=queue_id))
    append_checkpoint(master)
    copy = Derived()
    for header, stored in master.log.since(began_at):
        copy.follow(header, stored)
    if is_cut:
        for derived in (copy.registry, copy.holds, copy.groups, copy.tracker):
            derived.cut(cut_at)
        copy.runs.cut(cut_at, copy.next_queue_offset)
        for header, stored in master.log.since(cut_at):
            copy.follow(header, stored)
    copy.confirm(master.log.end)
    assert of(copy.runs, queue_id) == of(master.live.runs, queue_id) == [Run(0, 1, 5, None, None)]


def queue_of(walk: Walk) -> int:
    """A queue that is declared now; its id."""
    batch = walk.live.registry.declare("q", {})
    assert batch is not None
    walk.append(batch)
    return walk.live.registry.find("q").queue_id


def append_checkpoint(walk: Walk, *meanwhile: bytearray) -> None:
    """`meanwhile`: what comes behind its first batch."""
    writer = walk.live.writer(queues_per_batch=1, producers_per_batch=1)
    left = list(meanwhile)
    while (written := writer.next_batch(walk.log.end)) is not None:
        walk.append(written)
        while left:
            walk.append(left.pop(0))
