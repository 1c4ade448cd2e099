"""What a transaction takes from its subscriptions' hands, and gives back when it does not count."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from mirrorlog import versions
from mirrorlog.client.client import Client
from mirrorlog.client.in_hand import Granted, Hand
from mirrorlog.client.sightings import Sighting
from mirrorlog.client.subscription import Subscription
from mirrorlog.client.transaction import Transaction, Transactor, _release, _settle, _Taken
from mirrorlog.errors import BadRequest, NotGranted
from mirrorlog.wire.messages import QueueInfo


class Holder:
    """The part of a subscription that a transaction needs."""

    def __init__(self) -> None:
        self.hand = Hand()
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def given(holder: Holder, first: int, following: int) -> Granted:
    granted = Granted(first, following, session=holder.hand.session, epoch=1)
    holder.hand.grant(granted)
    holder.hand.giving(granted)
    granted.given = following
    return granted


def taken(holder: Holder, granted: Granted, *ranges: tuple[int, int]) -> _Taken:
    parts = [(granted, first, following) for first, following in ranges]
    return _Taken(cast(Subscription, holder), granted.session, granted.epoch, parts)


def test_what_is_acknowledged_in_a_commit_is_settled_by_nobody_else_meanwhile() -> None:
    """Goal: a record is settled once. Take two records, settle one of them from elsewhere, give both back."""
    holder = Holder()
    granted = given(holder, 0, 4)
    each = taken(holder, granted, (1, 2), (3, 4))
    _settle([each])
    with pytest.raises(NotGranted):
        holder.hand.settle(granted, 1, 2)
    _release([each], settled=False)
    assert [part for _, part in holder.hand.unsettled()] == [(0, 4)]
    assert holder.woken == 0


def test_one_record_that_is_settled_already_changes_nothing() -> None:
    """Goal: all or nothing in the hand, too. Two subscriptions, of which the second has settled its record."""
    one, two = Holder(), Holder()
    first, second = given(one, 0, 2), given(two, 5, 7)
    two.hand.settle(second, 5, 6)
    with pytest.raises(NotGranted):
        _settle([taken(one, first, (0, 1)), taken(two, second, (6, 7), (5, 6))])
    assert [part for _, part in one.hand.unsettled()] == [(0, 2)]
    assert [part for _, part in two.hand.unsettled()] == [(6, 7)]


def test_the_same_record_twice_is_refused() -> None:
    """Goal: a mistake is told. Acknowledge one record twice in one transaction."""
    holder = Holder()
    granted = given(holder, 0, 2)
    with pytest.raises(NotGranted):
        _settle([taken(holder, granted, (0, 1), (0, 1))])
    assert [part for _, part in holder.hand.unsettled()] == [(0, 2)]


@pytest.mark.parametrize("settled", [True, False])
def test_records_that_come_again_meanwhile_are_kept_back(settled: bool) -> None:
    """Goal: what a commit acknowledges is not given out again before it is known what became of it. Lose the session,
    grant the same records anew, end the commit both ways."""
    holder = Holder()
    each = taken(holder, given(holder, 0, 3), (1, 2))
    _settle([each])
    holder.hand.lose()
    holder.hand.grant(Granted(0, 3, session=holder.hand.session, epoch=1))
    waiting = [(granted.given, granted.next) for granted in holder.hand.waiting if granted.given < granted.next]
    assert waiting == [(0, 1), (2, 3)]
    _release([each], settled=settled)
    waiting = [(granted.given, granted.next) for granted in holder.hand.waiting if granted.given < granted.next]
    assert waiting == ([(0, 1), (2, 3)] if settled else [(0, 1), (1, 2), (2, 3)])
    assert holder.woken == (not settled)


def test_what_was_kept_back_for_a_moment_is_given_out_again_at_once() -> None:
    """Goal: no record waits for the next event. Method: records have come again after a lost session; a transaction
    that acknowledges them fails at another subscription's."""
    one, two = Holder(), Holder()
    first, second = given(one, 0, 2), given(two, 5, 7)
    one.hand.lose()
    one.hand.grant(Granted(0, 2, session=one.hand.session, epoch=1))
    two.hand.settle(second, 5, 6)
    with pytest.raises(NotGranted):
        _settle([taken(one, first, (0, 2)), taken(two, second, (5, 6))])
    assert (one.woken, two.woken) == (1, 0)


class Asked:
    """A client that finds queues in a cluster of the software before; whoever is sent anything fails."""

    closed = False

    async def find(self, queue: str) -> Sighting:
        info = QueueInfo(name=queue, queue_id=1, log_id="l", epoch=1, master="n1", mirrors=[], begin=0, next=0)
        return Sighting(info, version=1, told_by="n1", address="n1:1")


async def test_a_cluster_that_knows_no_transactions_is_sent_none() -> None:
    """Goal: older software closes the connection that all others share at a frame that it does not know. Commit where
    the nodes say nothing of batches with attributes, which came with the same version: refused at once."""
    assert versions.ATTRIBUTES == versions.TRANSACTIONS
    transaction = Transaction(Transactor(cast(Client, Asked())), level=255, durability=0, timeout_ms=60_000)
    transaction.send("q", b"v")
    with pytest.raises(BadRequest, match="takes no transactions before all its nodes are updated"):
        async with asyncio.timeout(5):
            await transaction.commit()


@pytest.mark.parametrize("wrong", [{"confirm": "most"}, {"durability": "tape"}, {"timeout_ms": 0}])
def test_wrong_options_are_named(wrong: dict[str, Any]) -> None:
    """Goal: mistakes are told at once. Each option with a value that it does not take."""
    with pytest.raises(BadRequest, match=next(iter(wrong)).removesuffix("_ms")):
        Client().transaction(**wrong)


async def test_a_transaction_is_used_once() -> None:
    """Goal: no record is lost in one that has ended. Send, acknowledge and commit behind a rollback."""
    tx = Client().transaction()
    tx.send("q", b"v")
    await tx.rollback()
    with pytest.raises(BadRequest, match="was rolled back"):
        tx.send("q", b"v")
    with pytest.raises(BadRequest, match="was rolled back"):
        await tx.commit()
    with pytest.raises(BadRequest, match="was rolled back"):
        await tx.rollback()
