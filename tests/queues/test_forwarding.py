"""Departures: what leaves a queue for others comes there exactly once, whatever befalls log and masters in between.

A walk does what a master does, in a random order that its seed gives, and lets it end anywhere: records die, pieces are
addressed, sent, settled; answers are lost and batches come late; confirms, truncations, checkpoints cut in pieces and
restarts come between any two steps. The model is the log itself, and what the targets hold in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from random import Random
from typing import Final
from zlib import crc32

import pytest
from msgspec.structs import replace

from mirrorlog.commitlog.format.header import BatchHeader, Kind, read_header
from mirrorlog.errors import BatchTooLarge, MirrorlogError
from mirrorlog.queues.changes import (
    Addressed,
    Change,
    DeadLetterTarget,
    ForwardingStarted,
    OffsetsJumped,
    PieceForwarded,
    Settled,
    decode_changes,
    encode_change,
    encode_changes,
)
from mirrorlog.queues.checkpoint_states import encode_checkpoint, encode_state
from mirrorlog.queues.dead_letters.forwarding import (
    DELIVERY_LIMIT,
    EPOCHS_SKIPPED,
    FORWARDINGS_MAX,
    HELD,
    JOINED_US,
    NONE,
    REDRIVEN,
    REJECTED,
    TARGETS_MAX,
    Forwarding,
    ForwardingNumbers,
    ForwardingTable,
    QueueForwarding,
    producer_of,
)
from mirrorlog.queues.dead_letters.pieces import Step, reduced, refused, served
from mirrorlog.queues.groups.ledger import State
from mirrorlog.queues.producers import ProducerTable
from tests.queues.statelog import Derived, Master, data

STEPS: Final = 300
TARGETS: Final = (101, 102, 103)
PRODUCER: Final = 7
PIECE: Final = 6
TAKES: Final = {101: 100, 102: 2, 103: 1}
"""Records in one batch: some targets' nodes take smaller ones."""


def leads_to(record: int) -> set[int]:
    """Some records lead to one queue, some to all, some to none."""
    if record % 7 == 0:
        return set()
    if record % 5 == 0:
        return set(TARGETS)
    return {TARGETS[record % 3]}


class Aim:
    """A queue that records come to: what its log takes, by the check of every log."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        self.records: Counter[int] = Counter()
        self._producers = ProducerTable()
        self._end = 0

    def take(self, target: DeadLetterTarget) -> None:
        """Raises OutOfSequence, StaleProducerEpoch, BatchTooLarge, BadBatch."""
        if target.records > TAKES[self.queue_id]:
            raise BatchTooLarge("too large")
        numbers = {"producer_id": PRODUCER, "producer_epoch": target.producer_epoch, "sequence": target.sequence}
        header = read_header(data(self.queue_id, count=target.records, **numbers))
        header = header._replace(crc=crc32(repr(target.ranges).encode()))
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
        self.numbers = ForwardingNumbers(self.derived.forwardings, self.is_open)
        self.aims = {queue_id: Aim(queue_id) for queue_id in TARGETS}
        self.confirmed = self.master.log.end
        self.master.confirm_all()
        self.going: Addressed | None = None
        self.freed: set[int] = set()
        self.late: list[DeadLetterTarget] = []
        self.writer = None

    @property
    def derived(self) -> Derived:
        return self.master.derived

    @property
    def table(self) -> ForwardingTable:
        return self.derived.forwardings

    def is_open(self, queue_id: int, departure: Forwarding) -> bool:
        return self.derived.groups.find(queue_id, "").lease_records(departure.number) > 0

    def append(self, *changes: Change) -> BatchHeader:
        return self.master.append(encode_changes(changes, queue_id=self.queue_id))

    # --- what a master does ---

    def publish(self) -> None:
        self.master.publish(self.queue_id, count=self.random.randrange(1, 6))

    def some_free(self) -> list[int]:
        ledger = self.derived.groups.find(self.queue_id, "")
        following = self.derived.next_queue_offset(self.queue_id)
        free = [at for low, high, state in ledger.runs(0, following) if state == State.FREE for at in range(low, high)]
        return sorted(self.random.sample(free, min(len(free), self.random.randrange(0, 9))))

    def die(self) -> None:
        self.master.log.now_us += self.random.choice([1, JOINED_US // 3, 2 * JOINED_US])
        if records := self.some_free():
            self.append(
                self.numbers.forwarding(
                    self.queue_id, "", flat(records), self.random.choice([REJECTED, "expired"]),
                    at_us=self.master.log.now_us, exchange="x", routing_key=self.random.choice([None, "k"]),
                )
            )  # fmt: skip

    def settle(self) -> None:
        if records := self.some_free():
            self.append(Settled(group="", ranges=flat(records)))

    def free(self) -> None:
        """Retention does not wait for what leaves."""
        if (there := self.table.of(self.queue_id)).forwardings:
            records = self.left(there.forwardings[0].number)
            self.freed.update(self.random.sample(records, min(len(records), 1)))

    def leave(self) -> None:
        """One step of whoever sees to departures."""
        there = self.table.of(self.queue_id)
        if not there.forwardings:
            return
        if self.going is None and there.piece is None:
            self.address(there.forwardings[0])
        elif self.confirmed < self.master.log.end:
            self.confirm()
        elif self.going is None:
            self.going = there.piece
        elif self.going.targets:
            self.send(self.going)
        elif self.going.more:
            self.go_on(self.going)
        else:
            self.depart(self.going)

    def left(self, number: int) -> list[int]:
        ledger = self.derived.groups.find(self.queue_id, "")
        return [at for first, until in ledger.lease_ranges(number) for at in range(first, until)]

    def address(self, departure: Forwarding) -> None:
        left = self.left(departure.number)
        if gone := [at for at in left if at in self.freed]:
            self.append(Settled(group="", ranges=flat(gone), why="dead"))
        records = [at for at in left if at not in self.freed][:PIECE]
        if not records:
            self.append(PieceForwarded(departure=departure.number, last=True))
            return
        self.goes(Addressed(departure=departure.number, ranges=flat(records), targets=[]), behind="")

    def go_on(self, piece: Addressed) -> None:
        self.goes(piece, behind=piece.more)

    def goes(self, piece: Addressed, *, behind: str) -> None:
        """To the next of its targets by name, one at a time or two."""
        there = self.table.of(self.queue_id)
        records = [at for at in offsets(piece.ranges) if at not in self.freed]
        targets = [
            DeadLetterTarget(f"t{queue_id}", "log", queue_id, *there.numbering(queue_id), flat(going))
            for queue_id in TARGETS
            if f"t{queue_id}" > behind and (going := [at for at in records if queue_id in leads_to(at)])
        ]
        named = targets[: self.random.randrange(1, 3)]
        more = named[-1].name if len(named) < len(targets) else ""
        self.going = replace(piece, targets=named, more=more)
        if named:
            self.append(self.going)

    def send(self, piece: Addressed) -> None:
        target = piece.targets[0]
        gone = [at for at in offsets(target.ranges) if at in self.freed]
        fate = self.random.randrange(4)
        if fate == 0:
            self.late.append(target)  # it comes some time, or never; nobody hears of it
            return
        if gone:
            self.step(reduced(piece, flat(gone)))
            return
        try:
            self.aims[target.queue_id].take(target)
        except MirrorlogError as error:
            self.step(refused(piece, REJECTED, error))
            return
        if fate > 1:
            self.going = served(piece)

    def step(self, step: Step | None) -> None:
        assert step is not None, "it would be waited for, for ever"
        self.going = step.piece
        if step.logged:
            self.append(step.piece)

    def depart(self, piece: Addressed) -> None:
        last = set(self.left(piece.departure)) <= set(offsets(piece.ranges))
        self.going = None
        self.append(
            Settled(group="", ranges=piece.ranges, why="dead"), PieceForwarded(departure=piece.departure, last=last)
        )

    # --- what befalls it ---

    def confirm(self) -> None:
        ends = [header.next_log_offset for header, _ in self.master.log.batches]
        self.confirmed = max(self.confirmed, self.random.choice(ends[-5:]))
        self.derived.confirm(self.confirmed)

    def confirm_all(self) -> None:
        self.confirmed = self.master.log.end
        self.derived.confirm(self.confirmed)

    def cut(self) -> None:
        """Another master: what is not confirmed may be gone."""
        ends = [header.next_log_offset for header, _ in self.master.log.batches]
        self.cut_at(self.random.choice([end for end in ends if end >= self.confirmed]))

    def cut_at(self, at: int) -> None:
        self.master.log.cut(at)
        self.derived.registry.cut(at)
        self.derived.groups.cut(at)
        self.derived.forwardings.cut(at)
        self.derived.tracker.cut(at)
        held = [header for header, _ in self.master.log.batches if header.kind == Kind.DATA]
        self.derived.appended[self.queue_id] = held[-1].next_queue_offset if held else 0
        self.begin()

    def begin(self) -> None:
        self.going, self.writer = None, None
        self.numbers = ForwardingNumbers(self.table, self.is_open)

    def restart(self) -> None:
        """A copy that begins with the newest checkpoint knows what all others do."""
        live, state_from = self.derived, self.derived.tracker.state_from
        self.master.derived = Derived()
        self.derived.follow_all(self.master.log.since(state_from), confirmed=self.confirmed)
        self.derived.appended = dict(live.appended)
        assert self.table.of(self.queue_id) == live.forwardings.of(self.queue_id)
        assert self.table.leaving == live.forwardings.leaving
        self.begin()

    def lose(self) -> None:
        """A declared loss: of what was confirmed the end is gone, too, but no records; and a leap says so. No
        checkpoint is in this."""
        batches = self.master.log.batches
        data_end = max(header.next_log_offset for header, _ in batches if header.kind == Kind.DATA)
        ends = [header.next_log_offset for header, _ in batches if header.next_log_offset >= data_end]
        at = self.random.choice(ends[-6:])
        batches = [each for each in self.master.log.batches if each[0].next_log_offset <= at]
        self.master.log.cut(at)
        self.master.derived = Derived()
        self.confirmed = min(self.confirmed, at)
        self.derived.follow_all(batches, confirmed=self.confirmed)
        self.master.append(encode_change(OffsetsJumped(epoch=1, lost_from=at, go_on_at=0)))
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
            with suppress(MirrorlogError):
                self.aims[target.queue_id].take(target)

    def forget(self) -> None:
        if self.table.of(self.queue_id).piece is None:
            self.late.clear()
            for aim in self.aims.values():
                aim.forget()

    def end(self) -> set[int]:
        """All that is left comes to its end; what has departed."""
        while self.table.leaving:
            self.confirm_all()
            self.leave()
        while self.late:
            self.come_late()
        departed = {
            at
            for header, batch in self.master.log.batches
            if header.kind == Kind.QUEUE_STATE
            for change in decode_changes(batch)
            if isinstance(change, ForwardingStarted)
            for at in offsets(change.ranges)
        }
        ledger = self.derived.groups.find(self.queue_id, "")
        assert not ledger.leased
        assert all(ledger.unsettled(at, at + 1) == 0 for at in departed)
        return departed

    def take_steps(self, steps: Mapping[Callable[[], None], int]) -> None:
        for _ in range(STEPS):
            self.random.choices(list(steps), list(steps.values()))[0]()


@pytest.mark.parametrize("seed", range(100))
def test_every_record_that_left_is_in_its_targets_exactly_once(seed: int) -> None:
    """Whatever is freed meanwhile may be nowhere, and keeps no other one back."""
    walk = Walk(seed)
    walk.take_steps({
        walk.publish: 3, walk.die: 3, walk.settle: 1, walk.leave: 20, walk.confirm: 3, walk.cut: 1, walk.restart: 1,
        walk.checkpoint: 4, walk.come_late: 1, walk.forget: 1, walk.free: 1,
    })  # fmt: skip
    departed = walk.end()
    for queue_id, aim in walk.aims.items():
        assert max(aim.records.values(), default=1) == 1
        wanted = {at for at in departed if queue_id in leads_to(at)}
        assert wanted - walk.freed <= aim.records.keys() <= wanted


@pytest.mark.parametrize("seed", range(60))
def test_a_declared_loss_of_the_source_loses_no_letter_of_what_it_still_has(seed: int) -> None:
    """What it has forgotten to have sent comes twice; that its numbers are in use is no reason to give anything up."""
    walk = Walk(seed)
    for _ in range(60):
        walk.publish()
    walk.confirm_all()
    walk.take_steps({
        walk.die: 3, walk.leave: 20, walk.confirm: 3, walk.cut: 1, walk.come_late: 1, walk.lose: 1,
    })  # fmt: skip
    departed = walk.end()
    for queue_id, aim in walk.aims.items():
        assert {at for at in departed if queue_id in leads_to(at)} <= aim.records.keys()


def table_of(*changes: Change) -> ForwardingTable:
    master = Master()
    queue_id = master.declare("q")
    for change in changes:
        master.append(encode_changes([change], queue_id=queue_id))
    assert queue_id == 1
    return master.derived.forwardings


def departing(number: int, at_us: int = 0) -> ForwardingStarted:
    return ForwardingStarted(group="", departure=number, ranges=[number, number + 1], reason=REJECTED, at_us=at_us)


def test_applying_a_batch_twice_equals_applying_it_once() -> None:
    master = Master()
    queue_id = master.declare("q")
    target = DeadLetterTarget("t", "l", 9, 0, 0, [0, 1])
    master.append(encode_changes([departing(1)], queue_id=queue_id))
    master.append(encode_changes([Addressed(departure=1, ranges=[0, 1], targets=[target])], queue_id=queue_id))
    once = master.derived.forwardings.of(queue_id)
    for header, batch in master.log.batches:
        master.derived.follow(header, batch)
    assert master.derived.forwardings.of(queue_id) == once
    assert once.numbering(9) == (0, 1)


def test_what_dies_joins_what_died_the_same_way_within_a_second() -> None:
    numbers = ForwardingNumbers(ForwardingTable())

    def number(at_us: int, reason: str = REJECTED, key: str | None = None) -> int:
        return numbers.forwarding(1, "", [0, 1], reason, at_us=at_us, exchange="x", routing_key=key).departure

    assert [number(0), number(JOINED_US - 1), number(JOINED_US), number(JOINED_US + 1, "expired")] == [1, 1, 2, 3]
    assert number(JOINED_US + 2, "expired", "k") == 4


def test_what_dies_joins_no_departure_that_a_reset_has_emptied_but_one_that_is_not_logged_yet() -> None:
    """Several deaths of one batch are one departure; it has no records before that batch is appended."""
    table = table_of(departing(1))
    numbers = ForwardingNumbers(table, lambda *_: False)

    def number() -> int:
        return numbers.forwarding(1, "", [0, 1], REJECTED, at_us=0, exchange="", routing_key=None).departure

    assert [number(), number()] == [2, 2]


def test_with_many_departures_waiting_what_dies_joins_one_of_its_kind_whenever_it_began() -> None:
    """A target that is away for long costs memory for so many departures, and not for one each second."""
    table = table_of(*(departing(number) for number in range(1, FORWARDINGS_MAX + 1)))
    numbers = ForwardingNumbers(table)
    assert numbers.is_full(1)
    joined = numbers.forwarding(1, "", [0, 1], REJECTED, at_us=10**15, exchange="", routing_key=None)
    assert joined.departure == FORWARDINGS_MAX


def test_a_target_that_was_forgotten_begins_under_a_higher_producer_epoch() -> None:
    """More targets than are remembered: the first one's next record comes under an epoch that it never had."""
    targets = [DeadLetterTarget("t", "l", 1000 + at, 3, 0, [0, 1]) for at in range(TARGETS_MAX + 1)]
    table = table_of(departing(1), Addressed(departure=1, ranges=[0, 1], targets=targets))
    there = table.of(1)
    assert (len(there.sequences), there.numbering(1000), there.numbering(1001)) == (TARGETS_MAX, (4, 0), (3, 1))


def test_a_deleted_queue_leaves_nothing() -> None:
    table = table_of(departing(1))
    assert table.leaving == {1}
    table.forget_queue(1)
    assert (table.leaving, list(table.queue_ids()), table.of(1).forwardings) == (set(), [], ())


def test_a_queues_records_leave_under_one_producer_id_of_its_own() -> None:
    ids = {producer_of(incarnation, "log", number) for incarnation in ("", "a", "b") for number in (1, 2)}
    assert len(ids) == 6
    assert all(0 < each < 2**64 for each in ids)
    assert producer_of("a", "log", 1) == producer_of("a", "other", 1)
    assert producer_of("abc", "log", 7) == 11427172890182794958, (
        "logs name it: another one would double what is sent again"
    )


def test_a_declared_loss_ends_the_numbers_of_the_piece_under_way_too_and_they_do_not_come_back() -> None:
    """The piece is logged anew behind the loss: what follows it goes under numbers that nobody has used, and those are
    no numbers that a piece of the lost part may have used after a few refusals."""
    there = NONE.follow(departing(1))
    there = there.follow(Addressed(departure=1, ranges=[0, 10], targets=[DeadLetterTarget("t", "l", 9, 0, 0, [0, 10])]))
    there = there.after_jump()
    promised = there.numbering(9)
    assert there.piece is not None
    assert promised == (EPOCHS_SKIPPED, 10)
    assert [(each.producer_epoch, each.sequence) for each in there.piece.targets] == [(EPOCHS_SKIPPED, 0)]
    split = refused(there.piece, REJECTED, BatchTooLarge("-"))
    assert split is not None
    there = there.follow(split.piece)
    assert there.numbering(9) == promised


def test_numbers_of_an_epoch_that_has_ended_are_not_gone_on_with() -> None:
    """Whoever logs them: the next piece begins under one that nobody has used."""
    there = QueueForwarding(forwardings=NONE.follow(departing(1)).forwardings, epoch_floor=7)
    there = there.follow(Addressed(departure=1, ranges=[0, 10], targets=[DeadLetterTarget("t", "l", 9, 3, 0, [0, 10])]))
    assert there.numbering(9) == (7, 0)


def test_what_leaves_a_queue_fits_the_smallest_batch_of_a_checkpoint() -> None:
    """However many queues it goes to, and however long their names are: redrives to more of those wait."""
    name, table, number = "\U0001d50d" * 251, ForwardingTable(), 0
    there = NONE

    def begin(reason: str, exchange: str, key: str | None) -> None:
        nonlocal there, number
        number += 1
        change = replace(departing(number, 2**50), reason=reason, exchange=exchange, routing_key=key)
        there = there.follow(change)

    begin(DELIVERY_LIMIT, name + "dead", name + "dead")
    while there.has_room_for(key := f"{name}{number:04}"):
        begin(REDRIVEN, "", key)
    assert number > 3
    while len(there.forwardings) < FORWARDINGS_MAX:
        begin(DELIVERY_LIMIT, name + "dead", name + "dead")
    targets = [DeadLetterTarget("t", "l", 2**40 + at, EPOCHS_SKIPPED, 2**40, [0, 1]) for at in range(TARGETS_MAX)]
    there = there.follow(Addressed(departure=1, ranges=[0, 1], targets=targets))
    there = replace_piece(there, DeadLetterTarget(name, "l" * 36, 2**40, EPOCHS_SKIPPED, 2**40, list(range(600))))
    state = there.state(1)
    assert len(encode_state(state)) < 64 * 1024 - 1024
    table.restore(read_header(encode_checkpoint([encode_state(state)])), [state])
    assert table.of(1) == there


def replace_piece(there: QueueForwarding, *targets: DeadLetterTarget) -> QueueForwarding:
    """A piece of a node with batches this small: of 8 KiB of targets."""
    return there.follow(Addressed(departure=1, ranges=list(range(256)), targets=[*targets] * 5))


def test_all_that_is_held_is_one_departure_whose_turn_never_comes() -> None:
    """Through resets, whenever it came; what leaves beside it has its turn; a queue with nothing else is at rest."""
    table = table_of(departing(1), replace(departing(2), reason=HELD))
    numbers = ForwardingNumbers(table, lambda *_: False)

    def held(at_us: int) -> int:
        return numbers.forwarding(1, "", [5, 6], HELD, at_us=at_us, exchange="", routing_key=None).departure

    assert (held(0), held(10**15)) == (2, 2)
    first = table.of(1).first
    assert first is not None
    assert first.number == 1
    assert table.leaving == {1}
    at_rest = table_of(departing(1), replace(departing(2), reason=HELD), PieceForwarded(departure=1, last=True))
    assert at_rest.leaving == set()
    assert at_rest.of(1).first is None


def test_what_is_held_first_is_held_by_one_departure_before_it_is_logged() -> None:
    numbers = ForwardingNumbers(ForwardingTable())
    held = [
        numbers.forwarding(1, "", [at, at + 1], HELD, at_us=at * 10**9, exchange="", routing_key=None).departure
        for at in range(2)
    ]
    assert held == [1, 1]
