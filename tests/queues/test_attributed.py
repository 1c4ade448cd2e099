"""What the attributes of batches do to delivery, rule by rule; all of them together, against a plain model and with
another master at any step, are in `test_delivery`."""

from __future__ import annotations

import pytest

from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.queues.changes import Change, Settled
from mirrorlog.queues.delivery import priorities as attributed
from mirrorlog.queues.delivery import priorities as levels
from mirrorlog.queues.delivery.group import LeaseClaim, Rules
from mirrorlog.queues.delivery.keys import KeyOrder, KeysRead
from mirrorlog.queues.delivery.priorities import Attributed
from mirrorlog.queues.delivery.settlement import Outcomes
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.queues.limits.attributes import QueueRuns, RunRow
from mirrorlog.wire.frames import How
from tests.queues.delivered import Stage, records


def stage(**rules: object) -> Stage:
    """With a subscriber 1, and a confirmed watermark."""
    made = Stage(Rules(**rules))  # type: ignore[arg-type]
    made.subscribe(1)
    made.move_watermark()
    made.confirm()
    return made


# --- delays ---


def test_a_delayed_record_is_given_out_at_its_time_and_not_before_and_holds_nobody_up() -> None:
    """What stands behind it is given at once; then it comes, unflagged, for nobody had it."""
    it = stage()
    it.publish(2, delay_ms=1000)
    it.publish(1)
    assert records(it.pump()) == [2]
    assert it.delivery.held_back == 2
    assert it.delivery.due_at == pytest.approx(1.0)
    it.tick(0.999)
    assert it.pump() == []
    it.tick(0.001)
    given = it.pump()
    assert records(given) == [0, 1]
    assert not any(grant.redelivered for _, grant in given)
    assert it.delivery.held_back == 0


def test_a_new_master_holds_a_delayed_record_back_until_the_same_time() -> None:
    """The delay counts from the append, whoever masters the log."""
    it = stage()
    it.publish(1, delay_ms=1000)
    it.pump()
    it.confirm()
    it.tick(0.6)
    it.fail_over()
    it.subscribe(2)
    it.move_watermark()
    it.confirm()
    assert it.pump() == []
    it.tick(0.4)
    assert records(it.pump(), 2) == [0]


def test_a_group_that_is_let_alone_keeps_no_record_back() -> None:
    """Its last subscriber goes while one waits: nothing is out, and the next one to come finds it waiting."""
    it = stage()
    it.publish(1, delay_ms=1000)
    it.pump()
    it.gone(1)
    it.confirm()
    assert it.delivery.idle
    it.delivery.let_go()
    assert it.ledger.out == 0
    it._make()
    it.subscribe(2)
    it.move_watermark()
    it.confirm()
    assert it.pump() == []
    it.tick(1)
    assert records(it.pump()) == [0]


def test_a_purge_takes_what_waits_for_its_time() -> None:
    """It is in nobody's hands, and does not come afterwards."""
    it = stage()
    it.publish(2, delay_ms=1000)
    it.publish(1)
    it.pump()
    change = it.delivery.purge(it.end)
    assert change is not None
    assert change.ranges == [0, 2]
    it.append([change])
    it.delivery.purge_done(change)
    assert it.delivery.held_back == 0
    it.tick(2)
    assert it.pump() == []


# --- times to live ---


def test_the_shorter_time_to_live_counts_and_ends_without_a_subscriber() -> None:
    """The queue's is 10 s; those of batches 5 s, 20 s and none."""
    it = Stage()
    for ttl_ms in (5_000, 20_000, None):
        it.publish(1, ttl_ms=ttl_ms, queue_ttl_ms=10_000)
    it.turn()
    for seconds, left in ((4.9, [0, 1, 2]), (0.1, [1, 2]), (4.9, [1, 2]), (0.1, [])):
        it.tick(seconds)
        assert [each for each in range(3) if it.ledger.unsettled(each, each + 1)] == left
    assert [first for first, _, _ in it.expired] == [0, 1]


def test_nothing_is_given_out_behind_its_time_wherever_it_stands() -> None:
    """The head is in hand; what is behind it is too old before the clock was ever looked at."""
    it = Stage()
    it.publish(1)
    it.publish(1, ttl_ms=1000)
    it.publish(1)
    it.subscribe(1, 1)
    it.move_watermark()
    it.confirm()
    assert records(it.pump()) == [0]
    it.now += 1
    it.subscribe(2)
    it.pump()
    it.confirm()
    assert records(it.pump()) == [2]
    it.tick(0)
    assert it.ledger.unsettled_total(3) == 2


def test_one_in_hand_may_be_settled_late_and_expires_when_it_comes_back() -> None:
    """Two are in hand behind their time: an ack of one counts, the other is nacked and given to nobody; so is one that
    was leased, and one that was nacked with a delay."""
    it = stage()
    it.publish(4, ttl_ms=1000)
    it.lease(7, 1, 1_500)
    it.pump()
    leased = next(iter(it.ledger.lease_ranges(next(iter(it.ledger.leases)))))[0]
    one, two, three = sorted({0, 1, 2, 3} - {leased})
    it.settle(1, three, three + 1, how=How.RETURN, delay_ms=60_000)
    it.tick(1)
    assert not it.ledger.unsettled(three, three + 1)
    assert it.settle(1, one, one + 1).records == 1
    it.settle(1, two, two + 1, how=How.RETURN)
    assert it.pump() == []
    it.tick(1)
    assert it.pump() == []
    assert it.ledger.floor == 4
    assert {each for first, until, _ in it.expired for each in range(first, until)} == {two, three, leased}


def test_a_receipt_acks_a_record_that_is_about_to_expire() -> None:
    """Its lease has ended and so has its time, but nothing is logged: whoever did the work is believed."""
    it = Stage()
    it.publish(1, ttl_ms=1000)
    it.lease(7, 1, 500)
    it.pump()
    (lease,) = it.ledger.leases
    it.tick(0.6)
    it.now += 1
    it.clock()
    assert it.delivery.held_back == 1
    settlement = it.delivery.leases.settle([LeaseClaim(0, 1, lease)], How.ACK, end=it.end)
    it.append(settlement.changes)
    it.delivery.settling.settled(settlement, it.now)
    it.tick(0)
    assert (it.ledger.floor, it.expired) == (1, [])


def test_no_time_to_live_is_one_chance() -> None:
    """It is given to who waits with credit; without one it expires at its first look."""
    it = stage()
    it.publish(1, ttl_ms=0)
    assert records(it.pump()) == [0]
    it.gone(1)
    it.tick(0)
    assert it.ledger.floor == 1
    it.publish(1, ttl_ms=0)
    it.pump()
    it.tick(0)
    it.subscribe(2)
    assert it.pump() == []
    assert it.ledger.floor == 2


@pytest.mark.parametrize("leased", [False, True])
def test_who_comes_later_is_not_given_what_had_no_time_to_live(leased: bool) -> None:
    """Goal: a record of no time to live that comes to nobody is given to nobody, be he the first who takes from the
    group, nor to who comes when all others are gone; what comes behind him is his."""
    it = Stage()
    for number in (1, 2):
        it.publish(1, ttl_ms=0)
        it.publish(1)
        it.now += 1
        it.clock()
        if leased:
            it.lease(number, 9, 60_000)
        else:
            it.subscribe(number)
        it.pump()
        it.confirm()
        it.pump()
        assert records(it.given, number) == [it.end - 1]
        it.tick(0)
        assert it.expired[-1][:2] == (it.end - 2, it.end - 1)
        if leased:
            it.lease(number, 9, 60_000)
        it.publish(1, ttl_ms=0)
        it.pump()
        it.confirm()
        it.pump()
        assert records(it.given, number)[-1] == it.end - 1
        if not leased:
            it.settle(number, *(it.end - 2, it.end))
        it.gone(number)


def test_an_expiry_that_the_log_refuses_is_told_again_and_given_to_nobody_meanwhile() -> None:
    """It takes nothing, then it does."""
    it = stage()
    it.publish(2, ttl_ms=1000)
    it.delivery.subscribers.hold(1, True)
    it.pump()
    it.refuses = True
    it.tick(1)
    it.delivery.subscribers.hold(1, False)
    assert it.pump() == []
    it.refuses = False
    it.tick(0)
    assert it.ledger.floor == 2


def test_every_death_goes_by_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rejected, come back too often (by a nack, a connection, a lease), too old: whoever wants to send such records
    elsewhere has one place to begin with; an ack, a purge and what is gone do not come by."""
    died: list[tuple[str, list[tuple[int, int]]]] = []
    die = Outcomes.die

    def noted(self: Outcomes, ranges: list[tuple[int, int]], why: str) -> list[Change]:
        died.extend((why, [*ranges]) for _ in ranges[:1])
        return die(self, ranges, why)

    monkeypatch.setattr(Outcomes, "die", noted)
    it = stage(delivery_limit=0)
    it.publish(7, ttl_ms=100_000)
    it.lease(9, 1, 1000)
    it.pump()
    (leased,) = [each for lease in it.ledger.leases for each in it.ledger.lease_ranges(lease)]
    one, two, three, *rest = [each for each in range(7) if each != leased[0]]
    it.settle(1, one, one + 1, how=How.DEAD)
    it.settle(1, two, two + 1, how=How.RETURN)
    it.settle(1, three, three + 1)
    it.tick(2)
    it.settle(1, rest[0], rest[0] + 1, how=How.RELEASE)
    change = it.delivery.purge(it.end)
    assert change is not None
    it.append([change])
    it.delivery.purge_done(change)
    it.settle(1, rest[1], rest[1] + 1, how=How.RELEASE)
    it.tick(100)
    it.gone(1)
    whys = [("dead", one), ("limit", two), ("limit", leased[0]), ("expired", rest[1]), ("limit", rest[2])]
    assert died == [(why, [(first, first + 1)]) for why, first in whys]


# --- priorities ---


def test_the_highest_priority_goes_first_and_each_level_in_order() -> None:
    """Higher ones than the queue tells apart are the highest; what came back keeps its level and place."""
    it = stage(priority_max=5)
    for priority in (0, 5, 1, 200, 5, 0):
        it.publish(1, priority=priority)
    it.pump()
    assert records(it.given) == [1, 3, 4, 2, 0, 5]
    it.settle(1, 2, 5, how=How.RETURN)
    assert records(it.pump()) == [3, 4, 2]


def test_without_a_highest_priority_there_is_none() -> None:
    """`x-max-priority` is 0 by default: the queue's order holds."""
    it = stage()
    for priority in (0, 9, 3):
        it.publish(1, priority=priority)
    assert records(it.pump()) == [0, 1, 2]


def test_a_priority_behind_a_long_queue_is_covered_and_given_next() -> None:
    """A million plain records, prefetch 10, then an urgent one: one watermark later it comes, before the others."""
    it = Stage(Rules(priority_max=9))
    it.publish(1_000_000)
    it.subscribe(1, 10)
    it.pump()
    it.confirm()
    it.pump()
    it.publish(1, priority=9)
    it.pump()
    it.settle(1, 0, 10)
    it.confirm()
    assert records(it.pump()) == [1_000_000, *range(10, 19)]


def test_nothing_lower_is_given_while_the_watermark_does_not_cover_a_higher_one() -> None:
    """Goal: who has room for one record gets the highest, though it lies beyond what the watermark covers and lower
    ones do not; that the log refuses the watermark for a while changes nothing of that."""
    it = Stage(Rules(priority_max=9))
    it.publish(4)
    it.subscribe(1, 1)
    it.pump()
    it.confirm()
    it.pump()
    it.publish(1, priority=3)
    it.publish(2, priority=9)
    it.refuses = True
    it.gone(1)
    it.subscribe(2, 1)
    assert it.pump() == [], "the watermark covers record 0, which is free"
    assert not it.delivery.served(it.delivery.front.asked)
    it.refuses = False
    for expected in (5, 6, 4, 0, 1):
        given = it.pump()
        it.confirm()
        assert records([*given, *it.pump()]) == [expected]
        it.settle(2, expected, expected + 1)


def test_of_a_high_run_what_is_covered_is_given() -> None:
    """The watermark ends within it: the rest comes with the next one, and before what is lower."""
    it = Stage(Rules(priority_max=9))
    it.publish(1, priority=1)
    it.publish(6, priority=5)
    it.subscribe(1, 4)
    it.pump()
    it.confirm()
    assert records(it.pump()) == [1, 2, 3]
    it.confirm()
    assert records(it.pump()) == [4]


def test_what_waits_for_the_watermark_keeps_its_one_chance() -> None:
    """An urgent record of no time to live far behind a long queue, when nothing else is on its way to be covered."""
    it = Stage(Rules(priority_max=9))
    it.publish(1000)
    it.subscribe(1, 2)
    it.pump()
    it.confirm()
    it.pump()
    it.settle(1, 0, 1)
    it.confirm()
    it.tick(1)
    it.publish(1, ttl_ms=0, priority=9)
    assert it.turn() is None, "as a look may be that another one's watermark came before"
    it.tick(0)
    it.pump()
    it.confirm()
    assert records(it.pump()) == [1000]


def test_a_level_keeps_nothing_of_what_was_settled_in_any_order() -> None:
    """Urgent records between plain ones, given and acked one by one; then some of them out of order, while the first
    plain one is in hand."""
    it = stage(priority_max=1)
    for _ in range(500):
        it.publish(1, priority=1)
        it.publish(1)
        while given := it.pump():
            for _, grant in given:
                it.settle(1, grant.first, grant.next)
            it.confirm()
    assert it.ledger.floor == it.end == 1000
    assert it.delivery._attributed.levels.records <= 1
    it.publish(1)
    for _ in range(300):
        it.publish(1, priority=1)
        it.publish(1)
    it.subscribe(2, 5000)
    for _ in range(20):
        it.pump()
        it.confirm()
    urgent = list(range(1001, it.end, 2))
    for number in (1, 2):
        hand = set(records(it.given, number)) - set(range(1000))
        it.settle(number, *[border for each in urgent if each in hand for border in (each, each + 1)])
    it.pump()
    assert it.ledger.floor == 1000
    assert it.delivery._attributed.levels.records <= 1


def test_what_comes_back_is_found_without_going_over_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three thousand urgent ones in hand, plain ones between, of which none is: one nack, and its search asks the
    ledger a few times."""
    it = stage(priority_max=1)
    for _ in range(3000):
        it.publish(1, priority=1)
        it.publish(1)
    it.subscribe(2, 2000)
    for _ in range(40):
        it.pump()
        it.confirm()
    first = records(it.given, 2)[0]
    assert first % 2 == 0, "an urgent one"
    asked: list[int] = []
    next_free = Ledger.next_free

    def noted(self: Ledger, at: int, until: int) -> tuple[int, int] | None:
        asked.append(at)
        return next_free(self, at, until)

    monkeypatch.setattr(Ledger, "next_free", noted)
    it.settle(2, first, first + 1, how=How.RETURN)
    assert records(it.pump()) == [first]
    assert len(asked) < 20


def test_a_search_that_gives_up_gives_nothing_else_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Urgent records were settled without anybody looking, all but the last; plain ones lie between. Each look goes
    over three of them, and the urgent one is given first all the same."""
    it = stage(priority_max=1)
    it.delivery.subscribers.hold(1, True)
    for _ in range(20):
        it.publish(1)
        it.publish(1, priority=1)
    it.pump()
    it.append([Settled(group="", ranges=[border for at in range(1, 39, 2) for border in (at, at + 1)])])
    monkeypatch.setattr(levels, "STEPS_MAX", 3)
    it.delivery.subscribers.hold(1, False)
    looks = 0
    while not it.given:
        it.pump()
        it.confirm()
        looks += 1
        assert it.given or it.delivery.behind
    assert records(it.given)[0] == 39
    assert 5 < looks < 20


# --- bounds ---


def settled_ones(it: Stage) -> list[int]:
    return [each for each in range(it.end) if not it.ledger.unsettled(each, each + 1)]


def test_so_many_runs_are_met_in_one_look_and_nothing_is_given_out_that_was_not_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look meets three runs; records behind are not given before theirs is met, and none is missed."""
    monkeypatch.setattr(attributed, "RUNS_MAX", 3)
    monkeypatch.setattr(attributed, "LOOKS_MAX", 3)
    it = stage()
    for _ in range(10):
        it.publish(1, ttl_ms=1000)
        it.now += 0.2
    it.publish(1)
    looks = 0
    while looks == 0 or it.delivery.behind:
        it.tick(0)
        it.pump()
        it.confirm()
        looks += 1
    assert looks > 2
    it.tick(0)
    assert records(it.given) == [6, 7, 8, 9, 10]
    assert settled_ones(it) == [0, 1, 2, 3, 4, 5]


def test_what_was_not_met_is_asked_for_though_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty delayed records, each a run, before a plain one, three runs a look: a lease is given once all are met, and
    until then it says that it is behind. With nobody there, it is not idle before it has met a time to live."""
    monkeypatch.setattr(attributed, "RUNS_MAX", 3)
    monkeypatch.setattr(attributed, "LOOKS_MAX", 3)
    it = Stage()
    for at in range(20):
        it.publish(1, delay_ms=3_600_000 + at)
    it.publish(1)
    it.lease(7, 1, 1000)
    while not it.given:
        assert it.pump() or it.delivery.behind
    assert records(it.given) == [20]
    assert not it.delivery.behind
    it = Stage(Rules(priority_max=1))
    for at in range(20):
        it.publish(1, priority=at % 2)
    it.publish(1, ttl_ms=300)
    looks = 0
    while looks == 0 or it.delivery.behind:
        it.pump()
        assert not it.delivery.idle
        looks += 1
    assert looks > 3
    assert it.delivery.due_at == pytest.approx(0.3)
    it.tick(0.3)
    assert settled_ones(it) == [20]


def test_one_run_grows_old_and_waits_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 5,000 records of which every second one is acked: each look goes through some hundred of them, nothing
    is given out meanwhile, and in the end the others are settled. One of 5,000 that wait comes back whole."""
    monkeypatch.setattr(attributed, "LOOKS_MAX", 100)
    monkeypatch.setattr(attributed, "WINDOW", 64)
    it = stage()
    it.publish(5000, ttl_ms=1000)
    it.delivery.subscribers.hold(1, True)
    it.pump()
    it.append([Settled(group="", ranges=[border for at in range(0, 5000, 2) for border in (at, at + 1)])])
    it.delivery.subscribers.hold(1, False)
    it.now += 1
    parts = []
    it.clock()
    while it.delivery.due_at <= it.now:
        assert it.turn() is None
        changes = it.delivery.expired(it.now)
        parts.append(sum(len(each.ranges) // 2 for each in changes if isinstance(each, Settled)))
        it.append(changes)
        it.delivery.expired_done(changes)
        it.clock()
    assert (sum(parts), it.ledger.floor) == (2500, 5000)
    assert max(parts) <= 100
    it.publish(5000, delay_ms=1000)
    while it.turn() is None and it.delivery.behind:
        it.clock()
    assert it.delivery.held_back == 5000
    it.now += 1
    looks = 0
    while it.delivery.held_back:
        it.clock()
        looks += 1
    assert looks > 1
    it.subscribe(3, 10_000)
    for _ in range(10):
        it.pump()
        it.confirm()
    assert sorted(records(it.given)) == list(range(5000, 10_000))


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("back_us", [0, 50_000, 3_600_000_000])
def test_who_waits_is_given_what_has_no_time_to_live_whatever_the_clock_says(leased: bool, back_us: int) -> None:
    """Goal: no safety rests on the clock, which may be set back. Method: somebody comes in the microsecond in which two
    such records were appended; the clock goes back, and more are: those are his, the two are nobody's."""
    it = Stage(now=7_200.0)
    it.publish(2, ttl_ms=0)
    it.lease(1, 100, 60_000) if leased else it.subscribe(1)
    for _ in range(20):
        it.publish(1, ttl_ms=0)
        it.pump()
        it.confirm()
        it.pump()
        it.back_us = back_us
        it.tick(0.01)
        if leased:
            it.lease(1, 100, 60_000)
    assert records(it.given) == list(range(2, 22))
    assert [(first, until) for first, until, _ in it.expired] == [(0, 2)]


def test_everybody_with_credit_is_given_what_has_one_chance() -> None:
    """A hundred with room for one each, a hundred records of no time to live, 32 grants a look: all are given. What the
    watermark does not cover yet has its chance when it does."""
    it = Stage()
    for number in range(1, 101):
        it.subscribe(number, 1)
    it.publish(100, ttl_ms=0)
    for _ in range(8):
        it.tick(0)
        it.pump(turns=32)
        it.tick(0)
        it.confirm()
    assert sorted(records(it.given)) == list(range(100))
    assert it.expired == []
    it.publish(3, ttl_ms=0)
    it.pump()
    it.tick(0)
    assert [(first, until) for first, until, _ in it.expired] == [(100, 103)], "nobody has room"


def test_a_run_that_grows_is_one_moment() -> None:
    """One queue with a time to live, twenty confirms a run, nobody acks: as many moments as runs, each at the time of
    its last record; and to meet one more goes over none of the others."""
    ledger, runs = Ledger(), QueueRuns()
    known = Attributed(ledger, KeyOrder(ledger, KeysRead), priority_max=0, runs=lambda: runs)
    for record in range(4000):
        runs.add(RunRow(record, record + 1, Attributes(0, 60_000), record * 5_000))
        known.meet(record + 1, record * 5_000, taken=False)
    assert len(known._ends) == len(runs) < 50
    ends = [known._ends.come(10**12) for _ in range(len(runs))]
    assert [(each.first, each.until) for each in ends if each] == [(run.first, run.until) for run in runs]
    assert [each.at_us for each in ends if each] == [run.expires_at_us for run in runs]


def test_moments_of_what_was_settled_are_forgotten() -> None:
    """A thousand records of ten years each, acked at once; a thousand delayed ones, purged: little is kept of them, and
    the group is idle. One that is not settled keeps it, until it is."""
    ledger, runs = Ledger(), QueueRuns()
    known = Attributed(ledger, KeyOrder(ledger, KeysRead), priority_max=0, runs=lambda: runs)
    for record in range(1000):
        runs.add(RunRow(record, record + 1, Attributes(0, 10**9 + record, 0), 0))
        known.meet(record + 1, 0, taken=True)
        LedgerUpdate(ledger).settle(record, record + 1)
        runs.drop(record + 1)
    assert len(known._ends) < 200
    assert known.idle
    for record in range(1000, 2000):
        runs.add(RunRow(record, record + 1, Attributes(0, None, 10**9 + record), 0))
        known.meet(record + 1, 0, taken=True)
        LedgerUpdate(ledger).settle(record, record + 1)
        known.settled([(record, record + 1)])
    assert len(known._waits) < 200
    ledger.take(2000, 2001)
    for record in (2001, 2002):
        runs.add(RunRow(record, record + 1, Attributes(0, 10**9 + record, 0), 0))
    known.meet(2003, 0, taken=True)
    LedgerUpdate(ledger).settle(2001, 2002)
    assert not known.idle
    LedgerUpdate(ledger).settle(2002, 2003)
    assert ledger.floor == 2000
    assert known.idle


def test_a_hand_that_is_gone_asks_each_level_for_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """255 levels, 2,000 scattered records in hand: to take them back looks at each record's own level, and a search
    asks no level in which nothing is."""
    it = stage(priority_max=255)
    for at in range(2000):
        it.publish(1, priority=1 + at % 255)
    it.subscribe(2, 5000)
    for _ in range(40):
        it.pump()
        it.confirm()
    it.pump()
    assert len(it.delivery._attributed.levels) <= 1
    added: list[int] = []
    add = levels.Levels.add

    def noted(self: levels.Levels, priority: int, first: int, until: int) -> None:
        added.append(first)
        add(self, priority, first, until)

    monkeypatch.setattr(levels.Levels, "add", noted)
    hand = records(it.given, 2)
    it.settle(2, *[border for each in sorted(hand)[::2] for border in (each, each + 1)])
    it.gone(2)
    while it.delivery.behind:
        it.clock()
    assert sorted(added) == sorted(hand)[1::2]
