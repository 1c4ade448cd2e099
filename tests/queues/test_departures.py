"""Departures: what leaves a queue for others comes there exactly once, whatever befalls log and masters in between.

A walk does what a master does, in a random order that its seed gives, and lets it end anywhere: records die, pieces are
addressed, sent, settled; answers are lost and batches come late; confirms, truncations, checkpoints cut in pieces and
restarts come between any two steps. The model is the log itself, and what the targets hold in the end.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from random import Random
from typing import Final

import pytest

from mirrorlog.commitlog.format import BatchHeader, Kind, read_header
from mirrorlog.errors import OutOfSequence, StaleProducerEpoch
from mirrorlog.queues.changes import (
    Addressed,
    Change,
    Departed,
    Departing,
    Settled,
    Target,
    decode_changes,
    encode_changes,
)
from mirrorlog.queues.departures import (
    DEPARTURES_MAX,
    JOINED_US,
    REJECTED,
    TARGETS_MAX,
    Departure,
    DepartureNumbers,
    DepartureTable,
    producer_of,
)
from mirrorlog.queues.ledger import State
from mirrorlog.queues.producers import ProducerTable
from tests.queues.statelog import Derived, Master, data

STEPS: Final = 300
TARGETS: Final = (101, 102)
PRODUCER: Final = 7
PIECE: Final = 4


def leads_to(record: int) -> set[int]:
    """Some records lead to one queue, some to both, some to none."""
    if record % 7 == 0:
        return set()
    if record % 5 == 0:
        return set(TARGETS)
    return {TARGETS[record % 2]}


class Aim:
    """A queue that records come to: what its log takes, by the check of every log."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.records: Counter[int] = Counter()
        self._producers = ProducerTable()
        self._end = 0

    def take(self, target: Target) -> None:
        """Raises OutOfSequence, StaleProducerEpoch."""
        numbers = {"producer_id": PRODUCER, "producer_epoch": target.producer_epoch, "sequence": target.sequence}
        header = read_header(data(self.queue_id, count=target.records, **numbers))
        if self._producers.check(header) is not None:
            return
        self._end += 1000
        self._producers.apply(header._replace(log_offset=self._end, append_time_us=self._end))
        self.records.update(offsets(target.ranges))

    def forget(self) -> None:
        """Nobody has sent anything for a day."""
        states = [self._producers.state(key, brief=False) for key in self._producers.known()]
        used = [state.producer_epoch for state in states if state is not None]
        epoch = max(self._producers.epoch_floor, max(used, default=-1) + 1)
        self._producers = ProducerTable()
        self._producers._epoch_floor = epoch


def offsets(flat: list[int]) -> list[int]:
    return [at for first, until in zip(flat[::2], flat[1::2], strict=True) for at in range(first, until)]


def flat(records: list[int]) -> list[int]:
    return [border for at in records for border in (at, at + 1)]


class Walk:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.master = Master()
        self.queue_id = self.master.declare("q")
        self.append(self.derived.groups.reset(self.queue_id, "", 0))
        self.numbers = DepartureNumbers(self.derived.departures)
        self.aims = {queue_id: Aim(queue_id) for queue_id in TARGETS}
        self.confirmed = self.master.log.end
        self.master.confirm_all()
        self.heard: set[int] = set()
        self.late: list[Target] = []
        self.writer = None

    @property
    def derived(self) -> Derived:
        return self.master.derived

    @property
    def table(self) -> DepartureTable:
        return self.derived.departures

    def append(self, *changes: Change) -> BatchHeader:
        return self.master.append(encode_changes(changes, queue_id=self.queue_id))

    # --- what a master does ---

    def publish(self) -> None:
        self.master.publish(self.queue_id, count=self.random.randrange(1, 6))

    def some_free(self) -> list[int]:
        ledger = self.derived.groups.find(self.queue_id, "")
        following = self.derived.next_queue_offset(self.queue_id)
        free = [at for low, high, state in ledger.runs(0, following) if state == State.FREE for at in range(low, high)]
        return sorted(self.random.sample(free, min(len(free), self.random.randrange(0, 7))))

    def die(self) -> None:
        self.master.log.now_us += self.random.choice([1, JOINED_US // 3, 2 * JOINED_US])
        if records := self.some_free():
            self.append(
                self.numbers.departing(
                    self.queue_id, "", flat(records), self.random.choice([REJECTED, "expired"]),
                    at_us=self.master.log.now_us, exchange="x", routing_key=self.random.choice([None, "k"]),
                )
            )  # fmt: skip

    def settle(self) -> None:
        if records := self.some_free():
            self.append(Settled(group="", ranges=flat(records)))

    def leave(self) -> None:
        """One step of whoever sees to departures."""
        there = self.table.of(self.queue_id)
        if not there.departures:
            return
        if there.piece is None:
            self.address(there.departures[0])
        elif self.confirmed < self.master.log.end:
            self.confirm()
        elif left := [at for at in range(len(there.piece.targets)) if at not in self.heard]:
            self.send(there.piece, left[0])
        else:
            self.depart(there.piece)

    def left(self, number: int) -> list[int]:
        ledger = self.derived.groups.find(self.queue_id, "")
        return [at for first, until in ledger.lease_ranges(number) for at in range(first, until)]

    def address(self, departure: Departure) -> None:
        self.heard = set()
        records = self.left(departure.number)[:PIECE]
        if not records:
            self.append(Departed(departure=departure.number, last=True))
            return
        there = self.table.of(self.queue_id)
        targets = [
            Target(f"t{queue_id}", "log", queue_id, *there.numbering(queue_id), flat(going))
            for queue_id in TARGETS
            if (going := [at for at in records if queue_id in leads_to(at)])
        ]
        self.append(Addressed(departure=departure.number, ranges=flat(records), targets=targets))

    def send(self, piece: Addressed, index: int) -> None:
        target = piece.targets[index]
        fate = self.random.randrange(4)
        if fate == 0:
            self.late.append(target)  # it comes some time, or never; nobody hears of it
            return
        try:
            self.aims[target.queue_id].take(target)
        except (OutOfSequence, StaleProducerEpoch) as error:
            epoch = max(target.producer_epoch, error.details.get("producer_epoch", -1)) + 1
            anew = Target(target.name, target.log_id, target.queue_id, epoch, 0, target.ranges)
            targets = [*piece.targets[:index], anew, *piece.targets[index + 1 :]]
            self.append(Addressed(departure=piece.departure, ranges=piece.ranges, targets=targets))
            return
        if fate > 1:
            self.heard.add(index)

    def depart(self, piece: Addressed) -> None:
        last = set(self.left(piece.departure)) <= set(offsets(piece.ranges))
        self.heard = set()
        self.append(Settled(group="", ranges=piece.ranges, why="dead"), Departed(departure=piece.departure, last=last))

    # --- what befalls it ---

    def confirm(self) -> None:
        ends = [header.next_log_offset for header, _ in self.master.log.batches]
        self.confirmed = max(self.confirmed, self.random.choice(ends[-5:]))
        self.derived.confirm(self.confirmed)

    def cut(self) -> None:
        """Another master: what is not confirmed may be gone."""
        ends = [header.next_log_offset for header, _ in self.master.log.batches]
        at = self.random.choice([end for end in ends if end >= self.confirmed])
        self.master.log.cut(at)
        self.derived.registry.cut(at)
        self.derived.groups.cut(at)
        self.derived.departures.cut(at)
        self.derived.tracker.cut(at)
        held = [header for header, _ in self.master.log.batches if header.kind == Kind.DATA]
        self.derived.appended[self.queue_id] = held[-1].next_queue_offset if held else 0
        self.begin()

    def begin(self) -> None:
        self.heard, self.writer = set(), None
        self.numbers = DepartureNumbers(self.table)

    def restart(self) -> None:
        """A copy that begins with the newest checkpoint knows what all others do."""
        live, state_from = self.derived, self.derived.tracker.state_from
        self.master.derived = Derived()
        self.derived.follow_all(self.master.log.since(state_from), confirmed=self.confirmed)
        self.derived.appended = dict(live.appended)
        assert self.table.of(self.queue_id) == live.departures.of(self.queue_id)
        assert self.table.leaving == live.departures.leaving
        self.begin()

    def checkpoint(self) -> None:
        if self.writer is None:
            self.writer = self.derived.writer(queues_per_batch=1, producers_per_batch=1)
        batch = self.writer.next_batch(self.master.log.end)
        if batch is None:
            self.writer = None
        else:
            self.master.append(batch)

    def come_late(self) -> None:
        """A batch of a master that was believed to be gone."""
        if self.late:
            target = self.late.pop(self.random.randrange(len(self.late)))
            with suppress(OutOfSequence, StaleProducerEpoch):
                self.aims[target.queue_id].take(target)

    def forget(self) -> None:
        if self.table.of(self.queue_id).piece is None:
            self.late.clear()
            for aim in self.aims.values():
                aim.forget()

    def end(self) -> None:
        """All that is left comes to its end, and everything is where it was to go."""
        while self.table.leaving:
            self.confirmed = self.master.log.end
            self.derived.confirm(self.confirmed)
            self.leave()
        while self.late:
            self.come_late()
        departed = {
            at
            for header, batch in self.master.log.batches
            if header.kind == Kind.QUEUE_STATE
            for change in decode_changes(batch)
            if isinstance(change, Departing)
            for at in offsets(change.ranges)
        }
        for queue_id, aim in self.aims.items():
            assert aim.records == Counter(at for at in departed if queue_id in leads_to(at))
        ledger = self.derived.groups.find(self.queue_id, "")
        assert not ledger.leased
        assert all(ledger.unsettled(at, at + 1) == 0 for at in departed)


@pytest.mark.parametrize("seed", range(60))
def test_every_record_that_left_is_in_its_targets_exactly_once(seed: int) -> None:
    walk = Walk(seed)
    steps = {
        walk.publish: 3, walk.die: 3, walk.settle: 1, walk.leave: 12, walk.confirm: 3, walk.cut: 1, walk.restart: 1,
        walk.checkpoint: 4, walk.come_late: 1, walk.forget: 1,
    }  # fmt: skip
    for _ in range(STEPS):
        walk.random.choices(list(steps), list(steps.values()))[0]()
    walk.end()


def table_of(*changes: Change) -> DepartureTable:
    master = Master()
    queue_id = master.declare("q")
    for change in changes:
        master.append(encode_changes([change], queue_id=queue_id))
    assert queue_id == 1
    return master.derived.departures


def departing(number: int, at_us: int = 0) -> Departing:
    return Departing(group="", departure=number, ranges=[number, number + 1], reason=REJECTED, at_us=at_us)


def test_applying_a_batch_twice_equals_applying_it_once() -> None:
    master = Master()
    queue_id = master.declare("q")
    target = Target("t", "l", 9, 0, 0, [0, 1])
    master.append(encode_changes([departing(1)], queue_id=queue_id))
    master.append(encode_changes([Addressed(departure=1, ranges=[0, 1], targets=[target])], queue_id=queue_id))
    once = master.derived.departures.of(queue_id)
    for header, batch in master.log.batches:
        master.derived.follow(header, batch)
    assert master.derived.departures.of(queue_id) == once
    assert once.numbering(9) == (0, 1)


def test_what_dies_joins_what_died_the_same_way_within_a_second() -> None:
    numbers = DepartureNumbers(DepartureTable())

    def number(at_us: int, reason: str = REJECTED, key: str | None = None) -> int:
        return numbers.departing(1, "", [0, 1], reason, at_us=at_us, exchange="x", routing_key=key).departure

    assert [number(0), number(JOINED_US - 1), number(JOINED_US), number(JOINED_US + 1, "expired")] == [1, 1, 2, 3]
    assert number(JOINED_US + 2, "expired", "k") == 4


def test_with_many_departures_waiting_what_dies_joins_one_of_its_kind_whenever_it_began() -> None:
    """A target that is away for long costs memory for so many departures, and not for one each second."""
    table = table_of(*(departing(number) for number in range(1, DEPARTURES_MAX + 1)))
    numbers = DepartureNumbers(table)
    assert numbers.is_full(1)
    joined = numbers.departing(1, "", [0, 1], REJECTED, at_us=10**15, exchange="", routing_key=None)
    assert joined.departure == DEPARTURES_MAX


def test_a_target_that_was_forgotten_begins_under_a_higher_producer_epoch() -> None:
    """More targets than are remembered: the first one's next record comes under an epoch that it never had."""
    targets = [Target("t", "l", 1000 + at, 3, 0, [0, 1]) for at in range(TARGETS_MAX + 1)]
    table = table_of(departing(1), Addressed(departure=1, ranges=[0, 1], targets=targets))
    there = table.of(1)
    assert (len(there.sequences), there.numbering(1000), there.numbering(1001)) == (TARGETS_MAX, (4, 0), (3, 1))


def test_a_deleted_queue_leaves_nothing() -> None:
    table = table_of(departing(1))
    assert table.leaving == {1}
    table.forget_queue(1)
    assert (table.leaving, list(table.queue_ids()), table.of(1).departures) == (set(), [], ())


def test_a_queues_records_leave_under_one_producer_id_of_its_own() -> None:
    ids = {producer_of(incarnation, "log", number) for incarnation in ("", "a", "b") for number in (1, 2)}
    assert len(ids) == 6
    assert all(0 < each < 2**64 for each in ids)
    assert producer_of("a", "log", 1) == producer_of("a", "other", 1)
