"""Delivery of one acking group: rules one by one, and all of them together against a plain model, with another master
at any step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrorlog.errors import BadRequest, ExclusiveTaken, NoSuchSubscription, NotGranted, ReceiptStale
from mirrorlog.queues.changes import GroupReset, Settled
from mirrorlog.queues.delivery.group import LeaseClaim, Rules
from mirrorlog.queues.delivery.subscribers import Subscriber, SubscriberOptions, Subscribers
from mirrorlog.queues.groups.ledger import State
from mirrorlog.wire.frames import Grant, How
from tests.queues.delivered import RECORD_BYTES, Refusal, Stage, records

PRIORITY_MAX = 2


def stage(published: int = 0, **rules: object) -> Stage:
    made = Stage(Rules(**rules))  # type: ignore[arg-type]
    made.publish(published)
    return made


def started(published: int = 0, **rules: object) -> Stage:
    """With a subscriber 1 and a confirmed watermark."""
    made = stage(published, **rules)
    made.subscribe(1)
    made.move_watermark()
    made.confirm()
    return made


# --- giving ---


def test_nothing_is_given_ahead_of_a_confirmed_watermark() -> None:
    """It is logged when somebody subscribes; nothing goes out before it is on all copies."""
    it = stage(10)
    it.subscribe(1)
    assert it.pump() == []
    assert it.ledger.watermark == 1000
    it.confirm()
    assert records(it.pump()) == list(range(10))


def test_a_record_published_alone_waits_for_no_watermark() -> None:
    """A record at a time: each is given at once, and settlements move the watermark in their own batch."""
    it = started()
    logged = len(it.log.batches)
    for offset in range(3000):
        it.publish(1)
        assert records(it.pump()) == [offset]
        it.settle(1, offset, offset + 1)
        if offset % 100 == 0:
            it.confirm()
    assert len(it.log.batches) == logged + 3000


def test_the_watermark_runs_ahead_by_the_credit_and_no_further() -> None:
    """A million records, prefetch 10: with ten in hand it says 10; settlements move it."""
    it = stage(1_000_000)
    it.subscribe(1, 10)
    it.pump()
    it.confirm()
    assert len(records(it.pump())) == 10
    assert it.ledger.watermark == 10
    it.settle(1, 0, 4)
    assert it.ledger.watermark == 14
    assert it.pump() == []
    it.confirm()
    assert records(it.pump()) == [10, 11, 12, 13]


def test_the_watermark_passes_over_what_is_leased() -> None:
    """A hundred records are leased: one subscriber's credit behind them is covered in one step."""
    it = stage(110)
    it.lease(5, 100, 10_000)
    it.pump()
    it.subscribe(1, 3)
    it.pump()
    it.confirm()
    assert records(it.pump()) == [100, 101, 102]


def test_what_is_published_after_a_master_began_is_never_flagged() -> None:
    """The watermark of the one before ran ahead of the queue's end."""
    it = started(2)
    it.pump()
    it.fail_over()
    it.publish(2)
    it.subscribe(2)
    assert [(grant.first, grant.redelivered) for _, grant in it.pump()] == [(0, True), (2, False)]


def test_what_could_not_be_logged_as_returned_stays_flagged() -> None:
    """The log takes nothing while a connection goes: its records are free all the same."""
    it = started(2)
    it.pump()
    it.subscribe(2)
    it.refuses = True
    it.gone(1)
    it.refuses = False
    assert [grant for _, grant in it.pump()] == [Grant(0, 2, 1, 0)]


def test_what_is_gone_from_the_queue_is_settled_in_whosever_hands_it_is() -> None:
    """Ten records: two in a hand, one leased, one parked. The begin moves to 8: one change, the hand has room again, a
    late ack of it changes nothing, and what stands behind is given out. A second look finds nothing."""
    it = started(10)
    it.lease(9, 1, 60_000)
    it.subscribe(2, 2)
    assert it.delivery.missing(0, (0, 0)) is None
    it.gone(1)
    it.pump()
    it.confirm()
    it.pump()
    it.settle(2, 1, 2, how=How.RETURN, delay_ms=60_000)
    before = it.ledger.out, it.ledger.leased, it.ledger.parked
    assert before[1:] == (1, 1)
    it.begin = 8
    change = it.delivery.missing(8, (0, 0))
    assert change == Settled(group="", ranges=[0, 8], why="gone")
    it.append([change])
    it.delivery.missing_done(change)
    assert (it.ledger.floor, it.ledger.out, it.ledger.leased, it.ledger.parked) == (8, 0, 0, 0)
    assert it.settle(2, 2, 3).records == 0
    it.move_watermark()
    it.confirm()
    assert records(it.pump()) == [8, 9]
    assert it.delivery.missing(8, (0, 0)) is None


def test_a_gap_that_a_loss_has_left_is_settled_in_one_step() -> None:
    """2^32 queue offsets between the records: one change, none of them is ready or given out, also when the begin
    stands within it, before it or behind it."""
    gap = (5, 5 + 2**32)
    it = stage(5)
    it.end = gap[1] + 3
    assert it.ledger.ready(it.end) == 2**32 + 8
    change = it.delivery.missing(0, gap)
    assert change is not None
    assert change.ranges == list(gap)
    assert it.delivery.missing(7, gap) == Settled(group="", ranges=[0, gap[1]], why="gone")
    assert it.delivery.missing(gap[1] + 1, gap) == Settled(group="", ranges=[0, gap[1] + 1], why="gone")
    it.append([change])
    it.delivery.missing_done(change)
    assert it.delivery.missing(0, gap) is None
    assert it.ledger.ready(it.end) == 8
    it.subscribe(1)
    it.move_watermark()
    it.confirm()
    assert records(it.pump()) == [*range(5)]
    it.confirm()
    assert records(it.pump()) == [*range(gap[1], gap[1] + 3)]


def test_after_a_reset_nothing_that_was_in_hand_is_known_any_more() -> None:
    """Goal: hands are void. Five are given out and in hand, then the group is reset to its begin, and delivery made
    anew: an ack of that epoch under the new subscription is not granted, said again or not; all comes again in order,
    unflagged; and a late ack of what somebody has by then is passed over."""
    it = started(5)
    it.pump()
    it.settle(1, 0, 2)
    it.append([GroupReset(group="", queue_offset=0)])
    it._make()
    it.subscribe(2, 3)
    for again in (False, True):
        with pytest.raises(NotGranted):
            it.settle(2, 2, 5, again=again)
    it.move_watermark()
    it.confirm()
    given = it.pump()
    assert records(given) == [0, 1, 2]
    assert not any(grant.redelivered or grant.attempts for _, grant in given)
    it.subscribe(3)
    late = it.settle(3, 0, 3, again=True)
    assert (late.records, late.passed_over) == (0, 3)
    assert it.ledger.floor == 0


def test_prefetch_counts_records_and_bytes_and_lets_one_large_record_through() -> None:
    """What fits beside what is in hand; a record larger than all of it goes when the hand is empty."""
    it = stage(20)
    it.subscribe(1, 3)
    it.subscribe(2, 1000, 4 * RECORD_BYTES)
    it.subscribe(3, 1000, 1)
    it.move_watermark()
    it.confirm()
    it.pump()
    assert [len(records(it.given, number)) for number in (1, 2, 3)] == [3, 4, 1]
    it.settle(2, *_flat(records(it.given, 2)[:2]))
    it.pump()
    assert [len(records(it.given, number)) for number in (1, 2, 3)] == [3, 6, 1]


def test_a_prefetch_that_changes_takes_nothing_back_and_gives_at_once_what_it_has_room_for() -> None:
    """Down: nothing until it is below the new bound. Up: at once. None: it is paused."""
    it = stage(40)
    it.subscribe(1, 10)

    def pump() -> int:
        it.move_watermark()
        it.confirm()
        return len(records(it.pump()))

    assert pump() == 10
    subscribers = it.delivery.subscribers
    subscribers.bound(1, 4, 1000 * RECORD_BYTES)
    assert subscribers.room == 0
    it.settle(1, 0, 6)
    assert pump() == 0
    it.settle(1, 6, 8)
    assert pump() == 2
    subscribers.bound(1, 14, 1000 * RECORD_BYTES)
    assert subscribers.room == 10
    assert pump() == 10
    subscribers.bound(1, 0, 1000 * RECORD_BYTES)
    it.settle(1, 8, 22)
    assert (pump(), subscribers.room) == (0, 0)
    subscribers.bound(1, 1000, 3 * RECORD_BYTES)
    assert pump() == 3
    with pytest.raises(NoSuchSubscription):
        subscribers.bound(2, 1, 1)


def _flat(offsets: list[int]) -> list[int]:
    return [border for each in offsets for border in (each, each + 1)]


def test_grants_are_as_long_as_they_can_be_and_end_with_a_batch() -> None:
    """Ten whole batches in one grant; a turn of fewer bytes ends at a batch's border."""
    it = started(50)
    given = it.turn(bytes_max=23 * RECORD_BYTES)
    assert given is not None
    assert given.grants == (Grant(0, 20, 0, 0),)
    given = it.turn()
    assert given is not None
    assert given.grants == (Grant(20, 50, 0, 0),)


def test_equals_take_turns_and_share_and_priority_goes_first() -> None:
    """Three equals get a third each of what is there, one after the other; one of a higher priority has all it can."""
    it = stage(30)
    for number in (1, 2, 3):
        it.subscribe(number, 1000)
    it.move_watermark()
    it.confirm()
    it.turn()
    assert records(it.given) == list(range(10))
    it.pump()
    shares = [len(records(it.given, number)) for number in (1, 2, 3)]
    assert sum(shares) == 30
    assert min(shares) >= 5
    it.subscribe(4, 4, priority=1)
    it.publish(9)
    given = it.pump()
    assert records(given, 4) == list(range(30, 34))


def test_whoever_settles_at_once_does_not_starve_the_others() -> None:
    """A record at a time: three with a prefetch of one, of whom one settles at once, and all in turn."""
    it = stage()
    for number in (1, 2, 3):
        it.subscribe(number, 1)
    it.move_watermark()
    it.confirm()
    for offset in range(30):
        it.publish(1)
        ((number, grant),) = it.pump()
        assert number == offset % 3 + 1
        it.settle(number, grant.first, grant.next)
        it.confirm()


def test_one_that_is_held_gets_nothing_until_it_is_let_go() -> None:
    """Its connection is full."""
    it = started(3)
    it.delivery.subscribers.hold(1, True)
    assert it.pump() == []
    it.delivery.subscribers.hold(1, False)
    assert records(it.pump()) == [0, 1, 2]


def test_records_that_are_gone_are_passed_over_and_settled() -> None:
    """The queue begins at 7 by now: what is below expired."""
    it = started(10)
    it.begin = 7
    assert records(it.pump()) == [7, 8, 9]
    assert it.ledger.floor == 7


def test_an_auto_ack_needs_its_change_first() -> None:
    """A log that takes nothing gives nothing; then all is settled as it is given."""
    it = stage(5)
    it.subscribe(1, auto_ack=True)
    it.move_watermark()
    it.confirm()
    it.refuses = True
    assert it.pump() == []
    it.refuses = False
    assert records(it.pump()) == list(range(5))
    assert it.ledger.floor == 5


# --- who takes ---


def test_an_exclusive_subscriber_is_alone() -> None:
    """Nobody comes to it, it comes to nobody; one that is closing is nobody."""
    it = started()
    with pytest.raises(ExclusiveTaken):
        it.subscribe(2, exclusive=True)
    it.publish(1)
    it.pump()
    it.delivery.subscribers.unsubscribe(1)
    it.subscribe(2, exclusive=True)
    with pytest.raises(ExclusiveTaken):
        it.subscribe(3)
    with pytest.raises(ExclusiveTaken):
        it.lease(4, 1, 1000)


def test_a_single_active_subscriber_keeps_all_until_its_last_record_is_back() -> None:
    """Closing, it has two in hand: the next one gets none before these are settled. Then the one of highest priority
    takes over, and stays when a higher one comes."""
    it = started(2, single_active=True)
    it.subscribe(2)
    it.subscribe(3, priority=5)
    it.pump()
    it.delivery.subscribers.unsubscribe(1)
    it.publish(2)
    assert it.pump() == []
    it.settle(1, 0, 2)
    assert records(it.pump(), 3) == [2, 3]
    it.subscribe(4, priority=9)
    it.publish(1)
    assert records(it.pump(), 3) == [4]
    it.gone(3)
    assert records(it.pump(), 4) == [2, 3, 4]


# --- what becomes of it ---


def test_what_returns_is_given_at_its_place_and_flagged_by_its_attempts() -> None:
    """A nack counts, a release does not; each grant has one number of attempts."""
    it = started(6)
    it.pump()
    it.settle(1, 1, 3, how=How.RETURN)
    it.settle(1, 3, 4, how=How.RELEASE)
    assert [grant for _, grant in it.pump()] == [Grant(1, 3, 1, 1), Grant(3, 4, 0, 0)]


def test_a_settlement_that_was_refused_changed_nothing() -> None:
    """The records stay in hand, and it may be said again."""
    it = started(3)
    it.pump()
    it.refuses = True
    with pytest.raises(Refusal):
        it.settle(1, 0, 3)
    it.refuses = False
    assert it.settle(1, 0, 3).records == 3
    assert it.settle(1, 0, 3).records == 0


def test_what_may_not_be_settled() -> None:
    """Another's, nobody's, of a later epoch; empty or falling ranges; by one that is not there."""
    it = stage(4)
    it.subscribe(1, 2)
    it.subscribe(2, 2)
    it.move_watermark()
    it.confirm()
    it.pump()
    with pytest.raises(NotGranted):
        it.settle(1, 0, 3)
    with pytest.raises(NotGranted):
        it.settle(1, 100, 101)
    with pytest.raises(NotGranted):
        it.settle(1, 0, 1, epoch=2)
    for ranges in ((1, 1), (2, 1), (1, 2, 0, 1)):
        with pytest.raises(BadRequest):
            it.settle(1, *ranges)
    with pytest.raises(NoSuchSubscription):
        it.settle(9, 0, 1)
    assert it.ledger.floor == 0


def test_a_delay_ends_by_the_clock_and_begins_anew_with_a_master() -> None:
    """Not a moment before; after a failover in full."""
    it = started(1)
    it.pump()
    it.settle(1, 0, 1, how=How.RETURN, delay_ms=1000)
    it.confirm()
    it.tick(0.95)
    assert it.pump() == []
    it.fail_over()
    it.subscribe(2)
    it.move_watermark()
    it.confirm()
    it.tick(0.95)
    assert it.pump() == []
    it.tick(0.1)
    assert records(it.pump(), 2) == [0]


def test_a_delivery_limit_ends_what_comes_back_too_often_however_it_comes() -> None:
    """By nacks, by a connection that goes, by a lease that ends."""
    for back in ("nack", "gone", "lease"):
        it = started(1, delivery_limit=1)
        for _ in range(2):
            it.subscribe(2)
            it.gone(1)
            if back == "lease":
                it.gone(2)
                it.lease(3, 1, 10)
            assert records(it.pump()) == [0]
            if back == "nack":
                it.settle(2, 0, 1, how=How.RETURN)
            it.gone(2)
            it.tick(1)
        it.subscribe(9)
        assert (it.pump(), it.ledger.floor) == ([], 1), back


def test_a_consumer_timeout_ends_whoever_keeps_a_record_and_an_extension_puts_it_off() -> None:
    """Never early, at most an eighth late; what is settled, or extended, counts anew."""
    it = started(3, consumer_timeout_s=8.0)
    it.pump()
    assert it.tick(7) == []
    it.settle(1, 0, 2)
    it.settle(1, 2, 3, how=How.EXTEND)
    assert it.tick(7) == []
    assert it.tick(2.1) == [1]
    it.subscribe(2)
    assert records(it.pump(), 2) == [2]


def test_acks_of_the_epoch_before_are_taken_below_its_watermark() -> None:
    """Who was not answered says it again to the next master, under its new subscription; returns change nothing:
    the record is free, or somebody's by then, and the master before may have counted them."""
    it = started(6)
    it.pump()
    it.fail_over()
    it.subscribe(2, 3)
    assert records(it.pump(), 2) == [0, 1, 2]
    assert it.settle(2, 0, 2, 4, 5, epoch=1).records == 3
    assert it.settle(2, 0, 2, epoch=1).records == 0
    assert it.settle(2, 2, 3, 5, 6, how=How.RETURN, epoch=1).ranges == ()
    assert (it.ledger.attempts(5, 6), it.ledger.next_free(5, 6)) == ((0, 6), (5, 6))
    assert it.settle(2, 2, 3, how=How.RELEASE, epoch=1).records == 0
    with pytest.raises(NotGranted):
        it.settle(2, 0, 7, epoch=1)
    it.settle(2, 0, 3)
    assert it.ledger.floor == 3


def test_what_is_said_again_counts_where_nobody_else_has_the_record() -> None:
    """An ack was lost with its connection, in this epoch: what lies free is settled, what another one has is passed
    over, and what was never given out is no part of it."""
    it = started(10)
    it.subscribe(2, 2)
    it.pump()
    (one, two) = (records(it.given, number) for number in (1, 2))
    it.gone(1)
    it.subscribe(3, 1)
    settlement = it.settle(3, 0, 10, again=True)
    assert (settlement.records, settlement.passed_over) == (len(one), len(two))
    assert sorted(two) == [each for each in range(10) if it.ledger.unsettled(each, each + 1)]
    assert it.settle(3, *_flat(two), how=How.RETURN, again=True).records == 0
    it.publish(1)
    with pytest.raises(NotGranted):
        it.settle(3, 10, 11, again=True)
    it.move_watermark()
    it.confirm()
    assert records(it.pump(), 3) == [10]
    it.settle(3, 10, 11, again=True)
    assert it.pump() == []


def test_a_clean_handover_says_exactly_what_was_given() -> None:
    """After it nothing is flagged that was not given; before it, up to a step is."""
    it = started(10)
    it.subscribe(2, 2)
    it.gone(1)
    assert records(it.pump()) == [0, 1]
    change = it.delivery.front.exact()
    assert change is not None
    assert change.queue_offset == 2
    it.append([change])
    it.confirm()
    it.fail_over()
    it.subscribe(3)
    given = it.pump()
    it.confirm()
    assert [(grant.first, grant.redelivered) for _, grant in (*given, *it.pump())] == [(0, True), (2, False)]


def test_a_purge_takes_what_is_in_nobodys_hands() -> None:
    """Waiting ones too, and what is out stays out."""
    it = started(6)
    it.subscribe(2, 1)
    it.gone(1)
    it.pump()
    it.settle(2, 0, 1, how=How.RETURN, delay_ms=1000)
    it.pump()
    change = it.delivery.purge(it.end)
    assert change is not None
    assert change.ranges == [0, 1, 2, 6]
    it.append([change])
    assert it.delivery.purge(it.end) is None
    it.tick(5)
    assert it.pump() == []


# --- leases ---


def test_a_lease_s_receipts() -> None:
    """Given in order, refused when it has ended, acking all the same; extended as a whole."""
    it = stage(6)
    it.lease(1, 2, 1000)
    it.lease(2, 3, 1000)
    assert records(it.pump(), 1) == [0, 1]
    assert records(it.given, 2) == [2, 3, 4]
    one, two = sorted(it.ledger.leases)
    it.tick(0.9)
    (change,) = it.delivery.leases.extend([LeaseClaim(0, 1, one)], 1000)
    it.append([change])
    it.delivery.endings.began(one, 1000, it.now)
    it.tick(0.2)
    assert sorted(it.ledger.leases) == [one]
    with pytest.raises(NotGranted):
        it.delivery.leases.extend([LeaseClaim(2, 3, two)], 1000)
    settlement = it.delivery.leases.settle([LeaseClaim(2, 4, two), LeaseClaim(0, 2, one)], How.ACK, end=it.end)
    assert settlement.records == 4
    assert not it.delivery.leases.settle([LeaseClaim(2, 4, two)], How.RETURN, end=it.end).ranges
    with pytest.raises(BadRequest):
        it.delivery.leases.settle([LeaseClaim(2, 9, two)], How.ACK, end=it.end)
    with pytest.raises(BadRequest):
        it.delivery.leases.settle([LeaseClaim(2, 3, two)], How.EXTEND, end=it.end)


def test_records_that_are_leased_apart_are_each_a_lease_of_its_own() -> None:
    """Goal: one is extended, and the others end. Method: three of four, given, extended and ended; a refused append
    leaves all of them free."""
    it = stage(4)
    it.lease(1, 3, 1000, apart=True)
    assert it.pump() == [(1, Grant(at, at + 1, 0, 0)) for at in range(3)]
    one, two, three = sorted(it.ledger.leases)
    it.tick(0.9)
    (change,) = it.delivery.leases.extend([LeaseClaim(1, 2, two)], 1000)
    it.append([change])
    it.delivery.endings.began(two, 1000, it.now)
    it.tick(0.2)
    assert sorted(it.ledger.leases) == [two]
    assert it.delivery.leases.settle([LeaseClaim(1, 2, two)], How.RETURN, end=it.end).records == 1
    assert three > two > one
    it.lease(2, 4, 1000, apart=True)
    it.refuses = True
    assert it.pump() == []
    it.refuses = False
    assert (sorted(it.ledger.leases), it.ledger.ready(4)) == ([two], 3)


def test_a_receipt_is_stale_once_somebody_else_has_the_record() -> None:
    """By another lease, or in a subscriber's hand; while it lies free the receipt acks."""
    it = stage(3)
    it.lease(1, 3, 100)
    it.pump()
    (old,) = it.ledger.leases
    it.tick(1)
    it.lease(2, 1, 100_000)
    it.pump()
    it.subscribe(3, 1)
    it.move_watermark()
    it.confirm()
    it.pump()
    for first in (0, 1):
        with pytest.raises(ReceiptStale):
            it.delivery.leases.settle([LeaseClaim(first, 3, old)], How.ACK, end=it.end)
    assert it.delivery.leases.settle([LeaseClaim(2, 3, old)], How.ACK, end=it.end).ranges == ((2, 3),)


def test_who_waits_for_a_lease_gets_its_turn_beside_subscribers() -> None:
    """And nothing is left behind by one that has given up."""
    it = started()
    it.lease(2, 1, 1000)
    it.lease(3, 1, 1000)
    it.gone(2)
    it.publish(2)
    given = it.pump()
    assert sorted(number for number, _ in given) == [1, 3]
    it.gone(1)
    assert not it.delivery.idle
    it.tick(2)
    it.confirm()
    assert it.delivery.idle


# --- all of it ---


@dataclass
class Model:
    """What must be true of each record, said plainly. Facts that were logged know where, to be lost with it."""

    settled: dict[int, int] = field(default_factory=dict)
    counted: list[tuple[int, int]] = field(default_factory=list)
    hands: dict[int, set[int]] = field(default_factory=dict)
    ever_given: set[int] = field(default_factory=set)
    flagged: set[int] = field(default_factory=set)
    """Not counted, and given out in this mastership."""
    asked: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    """Priority, when it may be given out and until when, s; of records that say something of it."""

    def attempts(self, record: int) -> int:
        return sum(each == record for each, _ in self.counted)

    def priority(self, record: int) -> int:
        return min(self.asked.get(record, (0,))[0], PRIORITY_MAX)

    def waits(self, record: int, now: float) -> bool:
        """Whether it is too early for it, or too late."""
        _, begins, ends = self.asked.get(record, (0, 0.0, math.inf))
        return not begins <= now + 1e-9 < ends

    def too_old(self, record: int, now: float) -> bool:
        return record in self.asked and self.asked[record][2] <= now + 1e-9

    def lose(self, log_offset: int) -> None:
        self.settled = {each: end for each, end in self.settled.items() if end <= log_offset}
        self.counted = [each for each in self.counted if each[1] <= log_offset]
        self.hands, self.flagged = {}, set()


class DeliveryMachine(RuleBasedStateMachine):
    """Everything that subscribers, holders, the log and the clock can do; another master at any step."""

    @initialize(single=st.booleans(), records=st.integers(2, 9))
    def begin(self, single: bool, records: int) -> None:
        self.stage = stage(20, single_active=single, consumer_timeout_s=1000.0, priority_max=PRIORITY_MAX)
        self.expired = 0
        self.model = Model()
        self.last = 0
        self.prefetch: dict[int, tuple[int, int]] = {}
        self.closing: set[int] = set()
        self.exclusive: set[int] = set()
        self.found = 0
        self.subscribe(records, 1000, 0, False)
        self.stage.move_watermark()
        self.stage.confirm()

    # --- helpers ---

    def parked_or_leased(self, record: int) -> bool:
        ((_, _, state),) = self.stage.ledger.runs(record, record + 1)
        return state in (State.PARKED, State.LEASED)

    def free(self) -> list[int]:
        taken = set().union(*self.model.hands.values()) if self.model.hands else set()
        return [
            each
            for each in range(self.stage.end)
            if each not in self.model.settled and each not in taken and not self.parked_or_leased(each)
            if not self.model.waits(each, self.stage.now)
        ]

    def in_hands(self) -> set[int]:
        return set().union(*self.model.hands.values()) if self.model.hands else set()

    def first_of(self, free: list[int]) -> int:
        """Which one is next: the first of the highest priority. While it is not covered nobody is given another one."""
        return min(free, key=lambda each: (-self.model.priority(each), each))

    def subscribers(self) -> list[int]:
        return sorted(self.model.hands)

    # --- rules ---

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        self.stage.publish(count)

    @rule(
        count=st.integers(1, 6),
        priority=st.sampled_from([0, 0, 1, 2, 9]),
        ttl_ms=st.sampled_from([None, None, 300, 1000]),
        delay_ms=st.sampled_from([0, 0, 400, 900]),
        queue_ttl_ms=st.sampled_from([None, None, 600]),
    )
    def publish_with_attributes(
        self, count: int, priority: int, ttl_ms: int | None, delay_ms: int, queue_ttl_ms: int | None
    ) -> None:
        now = self.stage.now
        ends = min(now + each / 1000 for each in (ttl_ms, queue_ttl_ms, math.inf) if each is not None)
        for record in range(self.stage.end, self.stage.end + count):
            self.model.asked[record] = priority, now + delay_ms / 1000, ends
        self.stage.publish(count, priority=priority, ttl_ms=ttl_ms, delay_ms=delay_ms, queue_ttl_ms=queue_ttl_ms)

    @rule()
    def confirm(self) -> None:
        self.stage.confirm()

    @rule(refuses=st.booleans())
    def log_takes(self, refuses: bool) -> None:
        self.stage.refuses = refuses

    @rule(records=st.integers(1, 9), size=st.integers(1, 60), priority=st.integers(0, 1), exclusive=st.booleans())
    def subscribe(self, records: int, size: int, priority: int, exclusive: bool) -> None:
        number = self.last + 1
        alone = any(each in self.exclusive for each in self.open())
        waiting = self.stage.delivery.subscribers.waiting
        try:
            self.stage.subscribe(number, records, size, priority=priority, exclusive=exclusive)
        except ExclusiveTaken:
            assert alone or (exclusive and (self.open() or waiting))
            return
        assert not alone
        assert not (exclusive and (self.open() or waiting))
        self.last = number
        self.model.hands[number] = set()
        self.prefetch[number] = (records, size)
        self.closing.discard(number)
        if exclusive:
            self.exclusive.add(number)

    def open(self) -> list[int]:
        return [each for each in self.model.hands if each not in self.closing]

    @precondition(lambda self: self.model.hands)
    @rule(data=st.data())
    def goes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.subscribers()))
        self.stage.gone(number)
        hand = self.model.hands.pop(number)
        if self.stage.refuses:
            self.model.flagged |= hand
        else:
            self.model.counted += [(each, self.stage.log.end) for each in hand]

    @precondition(lambda self: self.open())
    @rule(data=st.data())
    def unsubscribes(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open())))
        self.stage.delivery.subscribers.unsubscribe(number)
        self.closing.add(number)
        self._gone_if_done(number)

    @precondition(lambda self: self.open())
    @rule(data=st.data(), records=st.integers(0, 9), size=st.integers(1, 60))
    def changes_prefetch(self, data: st.DataObject, records: int, size: int) -> None:
        """Without a record it is paused."""
        number = data.draw(st.sampled_from(sorted(self.open())))
        self.stage.delivery.subscribers.bound(number, records, size)
        self.prefetch[number] = records, size

    def _gone_if_done(self, number: int) -> None:
        if number in self.closing and not self.model.hands[number]:
            del self.model.hands[number]
            assert not self.stage.delivery.subscribers.knows(number)

    @rule(confirms=st.booleans())
    def pump(self, confirms: bool) -> None:
        self.stage.clock()
        self.stage.move_watermark()
        if confirms:
            self.stage.confirm()
        for _ in range(40):
            free = self.free()
            covered = min(self.stage.end, self.stage.delivery.front.covered)
            given = self.stage.turn()
            if given is None:
                self.nobody_could_take(free if free and self.first_of(free) < covered else [])
                return
            assert given.grants
            assert given.grants[0].first == self.first_of(free), "not in order"
            for grant in given.grants:
                self.check_grant(given.number, grant, set(free), covered)
            if given.number in self.model.hands:
                self.check_hand(given.number)

    def check_grant(self, number: int, grant: Grant, free: set[int], covered: int) -> None:
        offsets = range(grant.first, grant.next)
        assert set(offsets) <= free
        for each in offsets:
            attempts = self.model.attempts(each)
            assert grant.attempts == attempts
            assert grant.redelivered == (attempts > 0 or each < self.found or each in self.model.flagged)
        if number in self.model.hands:
            assert grant.next <= covered, "ahead of the watermark"
            assert number not in self.closing
            self.model.hands[number].update(offsets)
            self.model.ever_given.update(offsets)

    def check_hand(self, number: int) -> None:
        count, size = self.prefetch[number]
        hand = self.model.hands[number]
        assert len(hand) <= count
        assert len(hand) <= max(1, size // RECORD_BYTES) or not hand
        if self.stage.rules.single_active:
            assert sum(bool(each) for each in self.model.hands.values()) <= 1

    def nobody_could_take(self, free: list[int]) -> None:
        """Liveness: with free records that are covered somebody has no room, or is not the active one."""
        if not free or self.stage.refuses:
            return
        with_room = [
            number
            for number in self.open()
            if (self.prefetch[number][0] and not self.model.hands[number])
            or (
                len(self.model.hands[number]) < self.prefetch[number][0]
                and (len(self.model.hands[number]) + 1) * RECORD_BYTES <= self.prefetch[number][1]
            )
        ]
        if self.stage.rules.single_active:
            with_room = [each for each in with_room if each == self.stage.delivery.subscribers._active]
        assert not with_room, f"{with_room} could take {free}"

    @precondition(lambda self: any(self.model.hands.values()))
    @rule(data=st.data(), how=st.sampled_from(How), delay_ms=st.sampled_from([0, 0, 500]))
    def settle(self, data: st.DataObject, how: How, delay_ms: int) -> None:
        number = data.draw(st.sampled_from([each for each in self.subscribers() if self.model.hands[each]]))
        chosen = data.draw(st.sets(st.sampled_from(sorted(self.model.hands[number])), min_size=1))
        ranges = _flat(sorted(chosen))
        if self.stage.refuses and (how in (How.ACK, How.DEAD, How.RETURN) or (how == How.RELEASE and delay_ms)):
            unsettled = [each for each in chosen if each not in self.model.settled]
            if unsettled or how == How.RETURN:
                with pytest.raises(Refusal):
                    self.stage.settle(number, *ranges, how=how, delay_ms=delay_ms)
                return
        settlement = self.stage.settle(number, *ranges, how=how, delay_ms=delay_ms)
        assert settlement.records == len([each for each in chosen if each not in self.model.settled])
        end = self.stage.log.end
        if how == How.EXTEND:
            return
        self.model.hands[number] -= chosen
        if how in (How.ACK, How.DEAD):
            for each in chosen:
                self.model.settled.setdefault(each, end)
        elif how == How.RETURN:
            self.model.counted += [(each, end) for each in chosen if each not in self.model.settled]
        self._gone_if_done(number)

    @precondition(lambda self: self.model.hands)
    @rule(data=st.data(), first=st.integers(0, 100), size=st.integers(1, 20))
    def settle_what_one_has_not(self, data: st.DataObject, first: int, size: int) -> None:
        number = data.draw(st.sampled_from(self.subscribers()))
        asked = set(range(first, first + size))
        if asked - self.model.hands[number] - self.model.settled.keys():
            with pytest.raises(NotGranted):
                self.stage.settle(number, first, first + size)

    @precondition(lambda self: self.stage.epoch > 1 and self.model.hands and not self.stage.refuses)
    @rule(data=st.data(), first=st.integers(0, 60), size=st.integers(1, 6))
    def ack_of_an_older_epoch(self, data: st.DataObject, first: int, size: int) -> None:
        number = data.draw(st.sampled_from(self.subscribers()))
        if first + size > min(max(self.found, self.stage.ledger.floor), self.stage.end):
            return
        self._say_again(number, range(first, first + size), epoch=self.stage.epoch - 1)

    def _say_again(self, number: int, asked: range, **options: int) -> None:
        own = self.model.hands[number] & set(asked)
        leased = {each for each in asked if self.parked_or_leased(each)} - self._parked(asked)
        others = set().union(*self.model.hands.values()) - own
        self.stage.settle(number, asked.start, asked.stop, **options)
        for each in set(asked) - others - leased:
            self.model.settled.setdefault(each, self.stage.log.end)
        self.model.hands[number] -= own
        self._gone_if_done(number)

    def _parked(self, asked: range) -> set[int]:
        runs = self.stage.ledger.runs(asked.start, asked.stop)
        return {each for first, until, state in runs if state == State.PARKED for each in range(first, until)}

    @precondition(lambda self: self.model.hands and not self.stage.refuses)
    @rule(data=st.data(), first=st.integers(0, 40), size=st.integers(1, 6))
    def ack_said_again(self, data: st.DataObject, first: int, size: int) -> None:
        """What was given out in this mastership and is perhaps free by now."""
        asked = range(first, first + size)
        if self.stage.given_now.issuperset(asked):
            self._say_again(data.draw(st.sampled_from(self.subscribers())), asked, again=True)

    @precondition(lambda self: not self.stage.rules.single_active and not self.exclusive)
    @rule(count=st.integers(1, 5), apart=st.booleans())
    def lease(self, count: int, apart: bool) -> None:
        self.last += 1
        self.stage.lease(self.last, count, 700, apart=apart)

    @precondition(lambda self: self.stage.ledger.leases and not self.stage.refuses)
    @rule(data=st.data(), how=st.sampled_from([How.ACK, How.RETURN, How.RELEASE]))
    def settle_a_lease(self, data: st.DataObject, how: How) -> None:
        lease = data.draw(st.sampled_from(sorted(self.stage.ledger.leases)))
        held = [each for run in self.stage.ledger.lease_ranges(lease) for each in range(*run)]
        settlement = self.stage.delivery.leases.settle(
            [LeaseClaim(each, each + 1, lease) for each in held], how, end=self.stage.end
        )
        self.stage.append(settlement.changes)
        self.stage.delivery.settling.settled(settlement, self.stage.now)
        if how == How.ACK:
            for each in held:
                self.model.settled.setdefault(each, self.stage.log.end)
        elif how == How.RETURN:
            self.model.counted += [(each, self.stage.log.end) for each in held]
        assert lease not in self.stage.ledger.leases

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.0]))
    def time_passes(self, seconds: float) -> None:
        leased = {
            lease: [each for run in self.stage.ledger.lease_ranges(lease) for each in range(*run)]
            for lease in self.stage.ledger.leases
        }
        counted = len(self.stage.returned)
        self.stage.tick(seconds)
        self.what_expired()
        ends = {each: end for first, until, end in self.stage.returned[counted:] for each in range(first, until)}
        for lease, held in leased.items():
            if lease not in self.stage.ledger.leases:
                self.model.counted += [(each, ends[each]) for each in held]

    def what_expired(self) -> None:
        """Nothing too soon, nothing out of a hand; and nothing is left of what nobody has."""
        for first, until, end in self.stage.expired[self.expired :]:
            for each in range(first, until):
                assert self.model.too_old(each, self.stage.now), f"{each} expired too soon"
                assert each not in self.in_hands()
                self.model.settled.setdefault(each, end)
        self.expired = len(self.stage.expired)
        met = min(self.stage.end, self.stage.delivery._attributed.met)
        for each in range(met) if not self.stage.refuses else ():
            if self.model.too_old(each, self.stage.now) and each not in self.in_hands():
                states = {state for _, _, state in self.stage.ledger.runs(each, each + 1)}
                assert states <= {State.SETTLED, State.LEASED}, f"{each} is too old"

    @rule(data=st.data())
    def another_master(self, data: st.DataObject) -> None:
        ends = [header.next_log_offset for header, _ in self.stage.log.batches]
        cut = data.draw(
            st.sampled_from([self.stage.confirmed, *(each for each in ends if each > self.stage.confirmed)])
        )
        self.stage.fail_over(cut)
        self.model.lose(cut)
        self.closing, self.exclusive, self.prefetch = set(), set(), {}
        self.found = self.stage.found
        assert all(each < self.found for each in self.model.ever_given), "given out, and would not be flagged"

    @invariant()
    def all_rooms_together_are_those_of_each(self) -> None:
        """By which the watermark runs ahead."""
        if hasattr(self, "stage"):
            subscribers = self.stage.delivery.subscribers
            active = subscribers._active
            rooms = [each.room for each in subscribers if active is None or each.facts.number == active]
            assert subscribers.room == sum(rooms)

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        if not hasattr(self, "stage"):
            return
        ledger, end = self.stage.ledger, self.stage.end
        settled = {
            each
            for first, until, state in ledger.runs(0, end)
            if state == State.SETTLED
            for each in range(first, until)
        }
        assert settled == set(self.model.settled)
        out = {
            each for first, until, state in ledger.runs(0, end) if state == State.OUT for each in range(first, until)
        }
        nobodys = {each for run in self.stage.delivery._attributed.nobodys(0, end) for each in range(*run)}
        assert out - nobodys == self.in_hands() - settled
        assert nobodys.isdisjoint(self.in_hands())
        assert self.exclusive.isdisjoint(self.open()) or len(self.open()) == 1


DeliveryMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestDelivery = DeliveryMachine.TestCase


def test_a_thousand_who_leave_a_single_active_group_cost_what_each_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a connection that drops with all its subscriptions does not hold up the loop. Method: the looks at
    subscribers, counted, while they come and the one that is active goes each time."""
    takers, looks = Subscribers(Rules(single_active=True)), 0
    look = Subscribers.look

    def counted(self: Subscribers, subscriber: Subscriber) -> None:
        nonlocal looks
        looks += 1
        look(self, subscriber)

    monkeypatch.setattr(Subscribers, "look", counted)
    for number in range(1, 1_001):
        takers.subscribe(SubscriberOptions(number, prefetch_records=1, prefetch_bytes=1))
    for number in range(1, 1_001):
        assert takers.alone == number
        gone = takers.gone(number)
        assert gone is not None
        takers.let_go(gone, [])
    assert not takers.any
    assert looks <= 4_000
