"""Records that leave for other queues, as those see them who take from the group: they are nobody's, and done."""

from __future__ import annotations

import math

import pytest

from mirrorlog.errors import BadRequest, NotGranted
from mirrorlog.queues.changes import Change, ForwardingStarted, Settled
from mirrorlog.queues.delivery.group import GroupDelivery, LeaseClaim, LeaseWish, Reach, Rules
from mirrorlog.queues.delivery.settlement import DEAD, DEATHS, REASONS, WHYS, deaths
from mirrorlog.queues.delivery.subscribers import SubscriberOptions
from mirrorlog.queues.groups.ledger import LeaseRow, Ledger, State
from mirrorlog.queues.groups.ledger_update import LedgerUpdate
from mirrorlog.queues.ranges import Range
from mirrorlog.wire.frames import How

DEPARTURE = 5


def leaving(group: str, ranges: list[Range], why: str) -> list[Change]:
    """As a queue with dead letters has it."""
    flat = [border for each in ranges for border in each]
    return (
        [ForwardingStarted(group=group, departure=DEPARTURE, ranges=flat, reason=REASONS[why], at_us=0)] if flat else []
    )


def follow(ledger: Ledger, changes: tuple[Change, ...]) -> None:
    for change in changes:
        assert isinstance(change, ForwardingStarted)
        for first, until in zip(change.ranges[::2], change.ranges[1::2], strict=True):
            LedgerUpdate(ledger).lease(change.departure, LeaseRow("", 0, 0), first, until)


def group_of(ledger: Ledger, rules: Rules | None = None) -> GroupDelivery:
    """Ten records, and one subscriber who was given all that are free."""
    delivery = GroupDelivery(
        "", ledger, rules or Rules(), epoch=1, found_watermark=ledger.watermark,
        reach=lambda at, until, size: Reach(at, until, until - at), next_lease=lambda: 1 << 32 | 1, now=0.0,
        die=leaving,
    )  # fmt: skip
    delivery.subscribe(SubscriberOptions(number=1, prefetch_records=100, prefetch_bytes=1000))
    delivery.clock(0.0, 0)
    watermark = delivery.watermark_wanted(10)
    assert watermark is not None
    delivery.front.appended(watermark.queue_offset)
    delivery.watermark_confirmed(watermark.queue_offset, watermark.queue_offset)
    while delivery.grant(10, 0.0, bytes_max=1000) is not None:
        pass
    return delivery


def test_what_is_rejected_leaves_and_is_nobodys() -> None:
    ledger = Ledger()
    delivery = group_of(ledger)
    settlement = delivery.settling.settle(1, 1, How.DEAD, [2, 4])
    assert settlement.records == 2
    follow(ledger, settlement.changes)
    delivery.settling.settled(settlement, 0.0)
    assert (ledger.forwarding(0, 10), ledger.forwarding(3, 10), ledger.out, ledger.ready(10)) == (2, 1, 8, 0)
    assert list(ledger.runs(2, 4)) == [(2, 4, State.LEASED)]
    assert delivery.due_at > 100  # by no time of its own


def test_to_settle_it_again_is_heard_and_changes_nothing() -> None:
    """In the same session, and by one who has lost his connection and says it again."""
    ledger = Ledger()
    delivery = group_of(ledger)
    settlement = delivery.settling.settle(1, 1, How.DEAD, [2, 4])
    follow(ledger, settlement.changes)
    delivery.settling.settled(settlement, 0.0)
    for again in (False, True):
        for how in (How.ACK, How.DEAD):
            said = delivery.settling.settle(1, 1, how, [2, 4], again=again)
            assert (said.records, said.changes, said.passed_over) == (0, (), 0)


def test_a_departure_is_no_lease_of_anybody() -> None:
    """No receipt names it, it does not end, and a group of which it is all that is left may be let alone."""
    ledger = Ledger()
    LedgerUpdate(ledger).lease(DEPARTURE, LeaseRow("", 0, 0), 2, 4)
    delivery = GroupDelivery(
        "", ledger, Rules(), epoch=1, found_watermark=10, reach=lambda at, until, size: Reach(at, until, 1),
        next_lease=lambda: 1 << 32 | 1, now=0.0,
    )  # fmt: skip
    assert (delivery.due_at, delivery.idle, delivery.expired(1e9)) == (math.inf, True, [])
    with pytest.raises(BadRequest):
        delivery.leases.settle([LeaseClaim(2, 4, DEPARTURE)], How.ACK, end=10)
    with pytest.raises(NotGranted):
        delivery.leases.extend([LeaseClaim(2, 4, DEPARTURE)], 1000)
    delivery.lease(LeaseWish(2, "h", 10, 1000))
    given = delivery.grant(10, 0.0, bytes_max=100)
    assert given is not None
    assert [(each.first, each.next) for each in given.grants] == [(0, 2), (4, 10)]


def test_whoever_goes_away_lets_what_came_back_too_often_leave() -> None:
    ledger = Ledger()
    delivery = group_of(ledger, Rules(delivery_limit=0))
    follow(ledger, tuple(delivery.gone(1)))
    assert (ledger.forwarding(0, 10), ledger.out, ledger.ready(10)) == (10, 0, 0)


def test_ready_records_are_the_oldest_that_are_free() -> None:
    ledger = Ledger()
    LedgerUpdate(ledger).settle(3, 5)
    delivery = GroupDelivery(
        "", ledger, Rules(), epoch=1, found_watermark=0, reach=lambda at, until, size: Reach(at, until, 1),
        next_lease=lambda: 1 << 32 | 1, now=0.0,
    )  # fmt: skip
    assert delivery.free.ready(10, 4) == [(0, 3), (5, 6)]
    assert delivery.free.ready(4, 100) == [(0, 3)]
    assert delivery.free.ready(0, 100) == []


def test_each_way_to_die_has_its_reason_and_its_why() -> None:
    assert [REASONS[why] for why in DEATHS] == ["rejected", "delivery_limit", "expired", "maxlen"]
    assert [WHYS[REASONS[why]] for why in DEATHS] == list(DEATHS)
    assert deaths("g", [(1, 2)], DEAD) == [Settled(group="g", ranges=[1, 2], why="dead")]
    assert deaths("g", [], DEAD) == []
