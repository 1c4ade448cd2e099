"""However much there is of it, delivery does a bounded part of it at once, keeps no more than there is, and lets nobody
ask for more than there ever was."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mirrorlog.errors import ExclusiveTaken, NotGranted
from mirrorlog.queues.changes import Settled
from mirrorlog.queues.delivery.deadlines import READ_AT_ONCE, Endings
from mirrorlog.queues.delivery.group import GRANTS_MAX, RANGES_AT_ONCE, LeaseClaim, Reach, Rules
from mirrorlog.queues.delivery.subscribers import Turns
from mirrorlog.queues.groups.ledger import LeaseRow, Ledger
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.wire.frames import How
from tests.queues.delivered import Stage, records

HUGE = 1 << 62


def started(published: int, **rules: object) -> Stage:
    """With a subscriber 1 that may have anything, and a confirmed watermark."""
    made = Stage(Rules(**rules))  # type: ignore[arg-type]
    made.publish(published)
    made.subscribe(1, 10**6, 10**9)
    made.move_watermark()
    made.confirm()
    return made


def every_second(count: int) -> list[int]:
    return [border for each in range(0, count, 2) for border in (each, each + 1)]


def test_nobody_settles_what_there_never_was() -> None:
    """Ranges of 2^62 records are refused by what was given out, in this epoch and said again; the rest stays."""
    it = started(3)
    it.pump()
    for again in (False, True):
        for how in How:
            with pytest.raises(NotGranted):
                it.settle(1, 0, HUGE, how=how, again=again)
    with pytest.raises(NotGranted):
        it.delivery.settling.delivered([0, 1, 2, HUGE])
    assert it.settle(1, 0, 3).records == 3


def test_a_large_record_goes_beside_others_in_hand() -> None:
    """10 B, 3 MiB, 10 B; turns of 2 MiB, a prefetch of 256 MiB: all of them, one after the other."""
    it = Stage()
    it.publish(3)
    it.subscribe(1, 10, 256 << 20)
    sizes = [10, 3 << 20, 10]

    def reach(at: int, until: int, bytes_max: int) -> Reach:
        end = at + 1
        while end < until and sum(sizes[at : end + 1]) <= bytes_max:
            end += 1
        return Reach(at, end, sum(sizes[at:end]))

    it.delivery.giving._reach = reach
    it.move_watermark()
    it.confirm()
    for _ in range(3):
        it.turn(bytes_max=2 << 20)
    assert records(it.given) == [0, 1, 2]


def test_whole_batches_count_in_a_turn() -> None:
    """One record of each batch is wanted, and the whole batch is sent: four of them fill a turn."""
    it = started(40)
    it.pump()
    it.settle(1, *[border for each in range(0, 40, 5) for border in (each, each + 1)], how=How.RELEASE)
    it.delivery.giving._reach = lambda at, until, _: Reach(at, until, 10, 50)
    before = len(it.given)
    it.turn(bytes_max=200)
    assert records(it.given[before:]) == [0, 5, 10, 15]


def test_a_turn_gives_so_many_grants_at_most() -> None:
    """Attempts alternate, in one batch: what is granted is taken, and the rest comes in the next turns."""
    it = started(4000)
    it.delivery.giving._reach = lambda at, until, _: Reach(at, until, until - at)
    it.pump()
    it.settle(1, *every_second(4000), how=How.RETURN)
    it.settle(1, *[each + 1 for each in every_second(4000)], how=How.RELEASE)
    before = len(it.given)
    while (given := it.turn()) is not None:
        assert len(given.grants) <= GRANTS_MAX
    assert records(it.given[before:]) == list(range(4000))
    assert it.delivery.subscribers.find(1).unacked_bytes <= 4000


def test_a_hand_of_scattered_records_is_let_go_in_parts() -> None:
    """Nobody has the rest meanwhile, each is counted once, and an ack that is said again settles it first."""
    count = 4 * RANGES_AT_ONCE
    it = started(count, single_active=True)
    it.pump()
    it.settle(1, *every_second(count))
    it.append(it.delivery.gone(1))
    assert it.delivery.subscribers.leaving
    assert it.ledger.out == RANGES_AT_ONCE
    it.subscribe(2, 10**6, 10**9)
    assert it.pump() == []  # it is not the active one before
    assert it.settle(2, count - 1, count, again=True).records == 1
    it.append(it.delivery.leave())
    assert not it.delivery.subscribers.leaving
    it.confirm()
    it.pump()
    it.confirm()
    assert sorted(records(it.given + it.pump(), 2)) == list(range(1, count - 1, 2))
    assert {grant.attempts for number, grant in it.given if number == 2} == {1}
    it.tick(10**6)


def test_a_purge_comes_in_parts() -> None:
    """Every second record is ready."""
    count = 6 * RANGES_AT_ONCE
    it = started(count)
    it.pump()
    it.settle(1, *every_second(count), how=How.RELEASE)
    since = purged = 0
    while (change := it.delivery.purge(it.end, since)) is not None:
        assert len(change.ranges) <= 2 * RANGES_AT_ONCE
        it.append([change])
        it.delivery.purge_done(change)
        purged += sum(change.ranges[1::2]) - sum(change.ranges[::2])
        since = change.ranges[-1]
    assert purged == count // 2
    assert it.ledger.ready(it.end) == 0


def test_leases_that_end_together_end_in_parts() -> None:
    """More leases of one record than one part has, and one of many scattered ones: each record is counted once."""
    count = RANGES_AT_ONCE
    it = Stage()
    it.publish(count)
    for number in range(count):
        it.lease(100 + number, 1, 1000)
        it.turn()
    it.now += 1
    changes = it.delivery.expired(it.now)
    assert sum(len(change.ranges) for change in changes) < count * 2
    it.append(changes)
    it.delivery.expired_done(changes)
    assert it.delivery.due_at <= it.now
    it.tick(0)
    assert not it.ledger.leases
    assert {it.ledger.attempts(each, each + 1)[0] for each in range(count)} == {1}
    assert it.delivery.idle


def test_what_is_logged_of_leases_that_end_is_given_out_though_the_rest_is_refused() -> None:
    """Leases of every second one of many records end at once, which is more than one batch, and of it the log takes the
    first alone: those records are given to who has room, and the others with the next look, each counted once."""
    count = RANGES_AT_ONCE // 2
    it = started(2 * count)
    it.pump()
    it.settle(1, *[border for each in range(1, 2 * count, 2) for border in (each, each + 1)])
    it.delivery.subscribers.unsubscribe(1)
    it.settle(1, *every_second(2 * count), how=How.RELEASE)
    while it.ledger.ready(it.end):
        it.lease(100 + it.leases, count, 1000)
        it.turn()
    it.subscribe(2)
    it.pump()
    assert not records(it.given, 2)
    it.now += 1
    it.clock()
    (change,) = it.delivery.expired(it.now)
    logged = replace(change, ranges=change.ranges[:200])
    it.append([logged])
    it.delivery.expired_done([logged], whole=False)
    it.confirm()
    it.pump()
    it.confirm()
    it.pump()
    assert records(it.given, 2) == list(range(0, 200, 2))
    it.tick(0)
    it.pump()
    it.confirm()
    it.pump()
    assert records(it.given, 2) == list(range(0, 2000, 2))
    assert {it.ledger.attempts(each, each + 1)[0] for each in range(0, 2 * count, 2)} == {1}


def test_what_dies_of_what_is_returned_is_forgotten() -> None:
    """Two records of four came back too often: nobody keeps their flags, and no delay waits for them."""
    it = started(4, delivery_limit=1)
    it.pump()
    it.settle(1, 0, 2, how=How.RETURN)
    it.pump()
    it.refuses = True
    it.gone(1)
    it.refuses = False
    it.subscribe(2)
    it.pump()
    it.confirm()
    it.pump()
    assert len(it.delivery.front._uncounted) == 4
    it.settle(2, 0, 4, how=How.RETURN, delay_ms=1000)
    assert it.ledger.floor == 2
    assert list(it.delivery.front._uncounted) == [(2, 4)]
    assert [each.runs() for each in it.delivery.endings._parked.values()] == [[(2, 4)]]


def test_what_is_settled_of_leases_is_forgotten() -> None:
    """A thousand leases of twelve hours, each settled at once; then one that is extended a thousand times."""
    it = Stage()
    it.publish(1001)
    for number in range(1000):
        it.lease(100 + number, 1, 12 * 3600 * 1000)
        given = it.turn()
        assert given is not None
        receipt = LeaseClaim(number, number + 1, next(iter(it.ledger.leases)))
        settlement = it.delivery.leases.settle([receipt], How.ACK, end=it.end)
        it.append(settlement.changes)
        it.delivery.settling.settled(settlement, it.now)
    assert it.delivery.idle
    it.lease(5000, 1, 1000)
    it.turn()
    (lease,) = it.ledger.leases
    for _ in range(1000):
        it.now += 0.5
        (change,) = it.delivery.leases.extend([LeaseClaim(1000, 1001, lease)], 1000)
        it.append([change])
        it.delivery.endings.began(lease, 1000, it.now)
    assert len(it.delivery.endings) < 200
    it.tick(0.9)
    assert it.ledger.leases
    it.tick(0.2)
    assert not it.ledger.leases


def test_who_waits_for_a_lease_keeps_an_exclusive_subscriber_out() -> None:
    """Neither is ever given what the other one counts on having alone."""
    it = Stage()
    it.lease(50, 1, 1000)
    with pytest.raises(ExclusiveTaken):
        it.subscribe(1, exclusive=True)
    it.gone(50)
    it.subscribe(1, exclusive=True)
    with pytest.raises(ExclusiveTaken):
        it.lease(51, 1, 1000)


def test_what_stays_flagged_is_forgotten_once_it_is_settled() -> None:
    """A return could not be logged; an auto-ack settles it, and the group is idle."""
    it = started(2)
    it.pump()
    it.refuses = True
    it.gone(1)
    it.refuses = False
    it.confirm()
    assert not it.delivery.idle
    it.subscribe(2, auto_ack=True)
    it.pump()
    it.confirm()
    assert [grant.redelivered for _, grant in it.pump() or it.given[1:]] == [True]
    it.gone(2)
    it.confirm()
    assert it.delivery.idle


def test_turns_keep_no_entries_of_those_who_left() -> None:
    """A low priority comes and goes under one that stays on top."""
    turns = Turns()
    turns.ready(1, 9)
    for _ in range(1000):
        turns.ready(2, 0)
        turns.not_ready(2)
        turns.served(2)
    turns.ready(2, 0)
    assert turns.next() == 1
    assert len(turns._heap) < 100
    turns.not_ready(1)
    assert turns.next() == 2


def test_what_waits_when_a_mastership_begins_is_read_in_parts() -> None:
    """Three times as many leases as are read at once, and as many records with a delay, each of a stretch of its own:
    the first look has a part of them, some of the rest end, are extended or settled meanwhile, and in the end each
    ends at its time, once."""
    count = 3 * READ_AT_ONCE
    ledger = Ledger()
    for at in range(count):
        LedgerUpdate(ledger).lease(1 << 32 | at, LeaseRow("me", 1000, 5), at, at + 1)
        LedgerUpdate(ledger).give_again(count + 2 * at, count + 2 * at + 1, counted=False, delay_ms=500, logged_at=9)
    endings = Endings(ledger, 0.0)
    assert len(endings) == READ_AT_ONCE + 1
    assert endings.next_at < 0
    endings.began(1 << 32 | 7, 60_000, 0.0)
    LedgerUpdate(ledger).settle(8, 9)
    looks, parked, leased = 0, list[tuple[int, int]](), list[tuple[int, int]]()
    while endings.next_at <= 0.1:
        assert endings.due(0.1, RANGES_AT_ONCE) == ([], [])
        endings.done()
        looks += 1
    assert looks <= 4
    while endings.next_at <= 2:
        some, others = endings.due(2, RANGES_AT_ONCE)
        parked += some
        leased += others
        for first, until in [*some, *others]:
            LedgerUpdate(ledger).give_again(first, until, counted=False)
        endings.done()
    assert sorted(parked) == [(count + 2 * at, count + 2 * at + 1) for at in range(count)]
    assert sorted(leased) == [(at, at + 1) for at in range(count) if at not in (7, 8)]
    assert endings.next_at == 60


def test_a_purge_takes_what_is_held_back_and_leaves_what_somebody_has() -> None:
    """Delayed records far apart stand between those in hand, and a gap of 2^33 lies in front of the last ones."""
    it = started(0)
    it.publish(10)
    it.pump()
    it.confirm()
    it.pump()
    it.publish(10, delay_ms=60_000)
    it.end += 1 << 33
    it.publish(5, delay_ms=60_000)
    it.pump()
    assert it.delivery.held_back == 15
    far = 20 + (1 << 33)
    it.append([Settled(group="", ranges=[20, far], why="lost")])
    it.settle(1, 4, 5, how=How.RETURN, delay_ms=5000)
    change = it.delivery.purge(it.end)
    assert change is not None
    assert change.ranges == [4, 5, 10, 20, far, far + 5]
    it.append([change])
    it.delivery.purge_done(change)
    assert it.delivery.held_back == 0
    assert it.delivery.purge(it.end) is None
