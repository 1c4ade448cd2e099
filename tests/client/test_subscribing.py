"""Subscriptions against nodes that do as they are told: what is sent, what is given out, and how each thing ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from mirrorlog import versions
from mirrorlog.client import Client, Delivered, Subscription
from mirrorlog.client.connection.liveness import KeepAlive
from mirrorlog.errors import (
    BadRequest,
    Closed,
    ConnectionLost,
    ConsumerTimedOut,
    ExclusiveTaken,
    FlushSlaveTimeout,
    InSyncReplicasNotEnough,
    MirrorlogError,
    NoSuchQueue,
    NotGranted,
    NotMaster,
    OutcomeUnknown,
    Refused,
    SettledOtherwise,
    SubscriptionCancelled,
    UnsupportedVersion,
)
from mirrorlog.wire.frames import DELIVER, GRANT, GRANT_REDELIVERED, FrameType, Grant, How, Level, frame
from tests.client.scripted_delivery import Giver, givers, stored
from tests.client.scripted_nodes import QUEUE, Nodes

AGAIN = GRANT_REDELIVERED


@pytest.fixture
async def nodes() -> AsyncIterator[Nodes]:
    async with givers() as started:
        stored(started, b"a", b"b", b"c", b"d")
        stored(started, b"e", b"f")
        yield started


@pytest.fixture
async def client(nodes: Nodes) -> AsyncIterator[Client]:
    async with Client(*nodes.servers, request_timeout_ms=2_000) as connected:
        yield connected


def giver(nodes: Nodes, node_id: str = "n1") -> Giver:
    node = nodes[node_id]
    assert isinstance(node, Giver)
    return node


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for it; `what`: is missing else."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  (what is looked at knows nothing of events)
            await asyncio.sleep(0.005)


async def take(subscription: Subscription, count: int) -> list[Delivered]:
    async with asyncio.timeout(10):
        return [await anext(subscription) for _ in range(count)]


def values(found: list[Delivered]) -> list[bytes | None]:
    return [each.value for each in found]


async def test_granted_records_come_with_what_is_known_of_them(nodes: Nodes, client: Client) -> None:
    """Goal: value, place, flag and attempts. Method: two grants out of one batch that came with the first."""
    n1 = giver(nodes)
    async with client.subscribe(QUEUE, "g", prefetch=7, prefetch_bytes=99, priority=2, name="me") as subscription:
        n1.give(Grant(0, 1), batches=(0,))
        n1.give(Grant(2, 4, AGAIN, 3))
        found = await take(subscription, 3)
        assert values(found) == [b"a", b"c", b"d"]
        assert [(each.offset, each.redelivered, each.attempts) for each in found] == [
            (0, False, 0),
            (2, True, 3),
            (3, True, 3),
        ]
        assert n1.fetches == 0
        asked = n1.subscribes[0]
        assert (asked.group, asked.prefetch_records, asked.prefetch_bytes, asked.priority, asked.name) == (
            "g",
            7,
            99,
            2,
            "me",
        )


async def test_what_did_not_come_is_fetched_from_the_copy_that_was_asked_for(nodes: Nodes, client: Client) -> None:
    """Goal: bytes from any copy. Method: grants without batches, read from the mirror; one batch is fetched once."""
    async with client.subscribe(QUEUE, read_from="mirror") as subscription:
        for first in (1, 2, 3):
            giver(nodes).give(Grant(first, first + 1))
        giver(nodes).give(Grant(4, 6))
        assert values(await take(subscription, 5)) == [b"b", b"c", b"d", b"e", b"f"]
    assert giver(nodes).fetches == 0
    assert giver(nodes, "n2").fetches == 2


async def test_a_batch_that_is_damaged_is_fetched_instead(nodes: Nodes, client: Client) -> None:
    """Goal: nothing is given out unproven. Method: flip a byte of the batch that is sent; the log has it right."""
    n1 = giver(nodes)
    right = nodes.batches[0]
    damaged = bytearray(right[1])
    damaged[-1] ^= 1
    nodes.batches[0] = (right[0], bytes(damaged))
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 2), batches=(0,))
        nodes.batches[0] = right
        assert values(await take(subscription, 2)) == [b"a", b"b"]
    assert n1.fetches == 1


async def test_acks_of_one_turn_leave_together_and_are_awaited_at_their_level(nodes: Nodes, client: Client) -> None:
    """Goal: one frame with joined ranges, answered for all who wait. Method: acks in disorder; then two awaited, and
    what is no ack."""
    n1 = giver(nodes)
    async with client.subscribe(QUEUE, confirm="majority") as subscription:
        n1.give(Grant(0, 4), Grant(4, 6), batches=(0, 1))
        found = await take(subscription, 6)
        for number in (0, 2, 1, 5):
            found[number].ack_nowait()
        await asyncio.gather(found[3].ack(), found[4].ack())
        first, second = n1.settled
        assert (first.how, first.level, first.epoch, first.ranges) == (How.ACK, Level.MAJORITY, 1, (0, 3, 5, 6))
        assert second.ranges == (3, 5)


async def test_a_delay_is_told(nodes: Nodes, client: Client) -> None:
    """Goal: requeue after a time. Method: two delays at once leave apart."""
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(0, 2), batches=(0,))
        found = await take(subscription, 2)
        await asyncio.gather(found[0].nack(delay_ms=70), found[1].release(delay_ms=2))
        assert [(each.how, each.delay_ms) for each in giver(nodes).settled] == [(How.RETURN, 70), (How.RELEASE, 2)]
        with pytest.raises(BadRequest, match="delay_ms"):
            await found[0].nack(delay_ms=-1)


async def test_an_ack_returns_when_it_is_confirmed(nodes: Nodes, client: Client) -> None:
    """Goal: `await ack()` waits for the answer. Method: a node that says nothing, and then does."""
    n1 = giver(nodes)
    n1.silent = True
    async with client.subscribe(QUEUE, settle_timeout_ms=5_000) as subscription:
        n1.give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        waits = asyncio.ensure_future(record.ack())
        await until(lambda: n1.settled, "no ack came")
        assert not waits.done()
        n1.silent = False
        n1.drop()  # it is told again over another connection, and answered there
        await waits
        assert [(each.how, each.ranges) for each in n1.settled] == [(How.ACK, (0, 1))] * 2


async def test_multiple_acks_all_that_was_given_out_so_far(nodes: Nodes, client: Client) -> None:
    """Goal: `multiple`. Method: four given out of six, ack the third."""
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(0, 4), Grant(4, 6), batches=(0, 1))
        found = await take(subscription, 4)
        await found[2].ack(multiple=True)
        with pytest.raises(NotGranted, match="settled before"):
            await found[1].ack()
        assert giver(nodes).settled[-1].ranges == (0, 3)


@pytest.mark.parametrize(
    ("settle", "how"),
    [
        (lambda each: each.ack(), How.ACK),
        (lambda each: each.nack(), How.RETURN),
        (lambda each: each.nack(requeue=False), How.DEAD),
        (lambda each: each.reject(), How.DEAD),
        (lambda each: each.release(), How.RELEASE),
    ],
)
async def test_each_settlement_has_its_word(
    nodes: Nodes, client: Client, settle: Callable[..., object], how: How
) -> None:
    """Goal: what the node is told. Method: each of them; a second one is refused."""
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(0, 4), batches=(0,))
        [record] = await take(subscription, 1)
        await settle(record)
        assert giver(nodes).settled[-1].how == how
        with pytest.raises(NotGranted):
            await record.ack()


async def test_extending_settles_nothing(nodes: Nodes, client: Client) -> None:
    """Goal: the consumer timeout begins anew. Method: extend, then ack."""
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        await record.extend()
        await record.extend()
        await record.ack()
        assert [each.how for each in giver(nodes).settled] == [How.EXTEND, How.EXTEND, How.ACK]


async def test_batches_are_settled_as_a_whole(nodes: Nodes, client: Client) -> None:
    """Goal: columns of what was granted, one range for all. Method: a part of a batch, a record of it read alone."""
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(0, 3), Grant(4, 6), batches=(0, 1))
        [first] = await take(subscription, 1)
        rest = await subscription.next_batch()
        assert rest.values.tolist() == [b"b", b"c"]
        assert (rest.offset, rest.next, len(rest)) == (1, 3, 2)
        other = await anext(subscription.batches())
        assert [record.value for record in other.records()] == [b"e", b"f"]
        await other.ack(multiple=True)
        assert giver(nodes).settled[-1].ranges == (0, 3, 4, 6)
        with pytest.raises(NotGranted):
            first.ack_nowait()


async def test_after_a_failover_unanswered_acks_are_told_again_and_the_rest_comes_again(
    nodes: Nodes, client: Client
) -> None:
    """Goal: transparent resumption. Method: three records in hand, one ack unanswered; the master dies; the new one is
    told of it under the epoch of its grant, and grants the others again."""
    n1, n2 = giver(nodes), giver(nodes, "n2")
    n1.silent = True
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 4), batches=(0,))
        held = await take(subscription, 3)
        waits = asyncio.ensure_future(held[1].ack())
        await until(lambda: n1.settled, "no ack came")
        n1.kill()
        nodes.promote("n2", version=2)
        await until(lambda: n2.by_number, "nobody subscribed")
        await waits
        assert (n1.settled[0].again, n2.settled[0].again) == (False, True)
        assert (n2.settled[0].epoch, n2.settled[0].ranges) == (1, (1, 2))
        n2.give(Grant(0, 1, AGAIN), Grant(2, 4, AGAIN), batches=(0,))
        again = await take(subscription, 3)
        assert [(each.value, each.redelivered) for each in again] == [(b"a", True), (b"c", True), (b"d", True)]


async def test_what_an_unanswered_ack_concerns_is_not_given_out_again(nodes: Nodes, client: Client) -> None:
    """Goal: no record comes again while its ack may count. Method: the new master answers late, and grants before."""
    n1, n2 = giver(nodes), giver(nodes, "n2")
    n1.silent = n2.silent = True
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 4), batches=(0,))
        held = await take(subscription, 4)
        waits = asyncio.ensure_future(held[1].ack())
        await until(lambda: n1.settled, "no ack came")
        n1.kill()
        nodes.promote("n2", version=2)
        await until(lambda: n2.settled, "the ack was not told again")
        n2.give(Grant(0, 4, AGAIN), batches=(0,))
        assert values(await take(subscription, 3)) == [b"a", b"c", b"d"]
        n2.silent = False
        n2.drop()
        await waits
        await until(lambda: n2.by_number, "nobody subscribed")
        assert [(each.epoch, each.ranges) for each in n2.settled[:2]] == [(1, (1, 2))] * 2


async def test_an_ack_of_what_is_held_from_before_counts_under_its_epoch(nodes: Nodes, client: Client) -> None:
    """Goal: the user may ack what he holds from before a failover; then it is not given out again. Method: ack it once
    the new master has granted it, before it is read."""
    n1, n2 = giver(nodes), giver(nodes, "n2")
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 4), batches=(0,))
        held = await take(subscription, 2)
        n1.kill()
        nodes.promote("n2", version=2)
        await until(lambda: n2.by_number, "nobody subscribed")
        n2.give(Grant(0, 4, AGAIN), batches=(0,))
        [first] = await take(subscription, 1)
        await held[1].ack()
        assert values(await take(subscription, 2)) == [b"c", b"d"]
        assert [(each.epoch, each.ranges, each.again) for each in n2.settled] == [(1, (1, 2), True)]
        assert first.value == b"a"


async def test_an_ack_that_fails_gives_the_record_back(nodes: Nodes, client: Client) -> None:
    """Goal: what was kept back for an ack that does not count is given out. Method: refuse the ack told again."""
    n1, n2 = giver(nodes), giver(nodes, "n2")
    n1.silent = True
    n2.settling = NotGranted("not yours", first=0, next=1)
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 1), batches=(0,))
        [held] = await take(subscription, 1)
        waits = asyncio.ensure_future(held.ack())
        await until(lambda: n1.settled, "no ack came")
        n1.kill()
        nodes.promote("n2", version=2)
        with pytest.raises(NotGranted, match="not yours"):
            await waits
        n2.settling = None
        n2.give(Grant(0, 1, AGAIN), batches=(0,))
        [again] = await take(subscription, 1)
        await again.ack()


@pytest.mark.parametrize(("tells_which", "expected"), [(True, NotGranted), (False, OutcomeUnknown)])
async def test_an_ack_of_what_somebody_else_has_by_now_is_no_success(
    nodes: Nodes, client: Client, tells_which: bool, expected: type[MirrorlogError]
) -> None:
    """Goal: an ack that returns holds. Method: the new master has given the record to another reader meanwhile; it
    says of which of the two, or it does not."""
    n1, n2 = giver(nodes), giver(nodes, "n2")
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 2), batches=(0,))
        held = await take(subscription, 2)
        n1.kill()
        nodes.promote("n2", version=2)
        await until(lambda: n2.by_number, "nobody subscribed")
        n2.passed_over, n2.tells_which = 1, tells_which
        with pytest.raises(expected, match="somebody else's hands"):
            await held[1].ack(multiple=True)


async def test_who_has_a_record_by_now_is_no_matter_for_those_beside_it(nodes: Nodes, client: Client) -> None:
    """Goal: each hears of his own records. Method: three are acknowledged one by one behind a failover, and leave in
    one frame; the first is somebody else's by now."""
    n1, n2 = giver(nodes), giver(nodes, "n2")
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 3), batches=(0,))
        held = await take(subscription, 3)
        n1.silent = True
        acks = [asyncio.ensure_future(each.ack()) for each in held]
        await until(lambda: n1.settled, "nothing was settled")
        n2.passed_over = 1
        n1.kill()
        nodes.promote("n2", version=2)
        outcomes = await asyncio.gather(*acks, return_exceptions=True)
        assert [type(each) for each in outcomes] == [NotGranted, type(None), type(None)]


async def test_each_hears_of_his_own_records_what_they_are_settled_as(nodes: Nodes, client: Client) -> None:
    """Goal: one record that is settled otherwise fails alone, whoever waits for what. Method: six leave in one frame,
    of which two are dead: some are awaited, one of the dead is not."""
    n1 = giver(nodes)
    n1.settling = SettledOtherwise.of([(1, 2, "dead"), (4, 5, "unknown")])
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 4), Grant(4, 6), batches=(0, 1))
        held = await take(subscription, 6)
        waits = [asyncio.ensure_future(held[number].ack()) for number in (0, 1, 2)]
        for number in (3, 4, 5):
            held[number].ack_nowait()
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(each) for each in outcomes] == [type(None), SettledOtherwise, type(None)]
        # What is unknown at the end is told once more: it might be that the answer had no place for it.
        assert [each.ranges for each in n1.settled] == [(0, 6), (4, 5)]
        with pytest.raises(SettledOtherwise, match="record 4 is settled already, so long ago"):
            await subscription.flush()
        await subscription.flush()
        for each in held:  # all of them are settled, in one way or another
            with pytest.raises(NotGranted, match="settled before"):
                await each.ack()


async def test_what_somebody_else_has_beside_what_is_settled_otherwise_may_be_tried_again(
    nodes: Nodes, client: Client
) -> None:
    """Goal: each record is told right, and what did not count stays in hand. Method: of two one is dead, and one is
    somebody else's."""
    n1 = giver(nodes)
    n1.settling = SettledOtherwise.of([(1, 2, "dead")], passed_over=1, elsewhere=[(0, 1)])
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 4), batches=(0,))
        held = await take(subscription, 2)
        outcomes = await asyncio.gather(*(each.ack() for each in held), return_exceptions=True)
        assert [type(each) for each in outcomes] == [NotGranted, SettledOtherwise]
        n1.settling = None
        await held[0].ack()


async def test_who_asked_for_it_is_told_of_a_failover(nodes: Nodes, client: Client) -> None:
    """Goal: `cancel_on_failover`. Method: while somebody waits for records the connection is lost, then the master."""
    subscription = client.subscribe(QUEUE, cancel_on_failover=True)
    async with subscription:
        waits = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        giver(nodes).drop()
        await until(lambda: giver(nodes).last == 2, "a lost connection was taken for a failover")
        giver(nodes).kill()
        nodes.promote("n2", version=2)
        with pytest.raises(SubscriptionCancelled, match="in epoch 1, and is in epoch 2"):
            await waits
        with pytest.raises(SubscriptionCancelled):
            await anext(subscription)
    assert giver(nodes, "n2").subscribes == []


@pytest.mark.parametrize(
    "error", [ConsumerTimedOut("too long"), NoSuchQueue("deleted"), SubscriptionCancelled("reset")]
)
async def test_a_subscription_that_its_node_ends_says_why(nodes: Nodes, client: Client, error: MirrorlogError) -> None:
    """Goal: a deleted queue, a forgotten record end it. Method: ENDED with each; acks say why, too."""
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        giver(nodes).end(error)
        with pytest.raises(type(error), match=error.message):
            await asyncio.wait_for(anext(subscription), 10)
        with pytest.raises(type(error), match=error.message):
            await record.ack()
    assert len(giver(nodes).subscribes) == 1


async def test_a_master_that_says_it_is_none_any_more_is_left(nodes: Nodes, client: Client) -> None:
    """Goal: a handover is no failure. Method: ENDED with NOT_MASTER, the new master is found."""
    async with client.subscribe(QUEUE) as subscription:
        nodes.promote("n2", version=2)
        giver(nodes).end(NotMaster("n2 is", master=nodes["n2"].address))
        await until(lambda: giver(nodes, "n2").by_number, "nobody subscribed")
        giver(nodes, "n2").give(Grant(4, 5), batches=(1,))
        assert values(await take(subscription, 1)) == [b"e"]


async def test_a_settlement_without_an_answer_ends_as_unknown(nodes: Nodes, client: Client) -> None:
    """Goal: nothing hangs. Method: a node that never answers; then the record may be acked again."""
    n1 = giver(nodes)
    n1.silent = True
    async with client.subscribe(QUEUE, settle_timeout_ms=150) as subscription:
        n1.give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        with pytest.raises(OutcomeUnknown, match="deadline"):
            await record.ack()
        n1.silent = False
        await record.ack()


async def test_a_settlement_that_never_left_is_refused(nodes: Nodes, client: Client) -> None:
    """Goal: what was not sent did not count. Method: no node is there any more."""
    async with client.subscribe(QUEUE, settle_timeout_ms=150) as subscription:
        giver(nodes).give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        for node in nodes.by_id.values():
            node.kill()
        with pytest.raises(Refused, match="nothing was settled") as refused:
            await asyncio.wait_for(_ack_after_loss(subscription, record), 10)
        assert not isinstance(refused.value, OutcomeUnknown)


async def _ack_after_loss(subscription: Subscription, record: Delivered) -> None:
    await until(lambda: subscription.session is None, "the loss was not noticed")
    await record.ack()


async def test_a_refusal_that_may_pass_is_tried_again(nodes: Nodes, client: Client) -> None:
    """Goal: copies that are missing for a moment cost time, not the ack. Method: refuse, then take it."""
    n1 = giver(nodes)
    n1.settling = InSyncReplicasNotEnough("one is there")
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        waits = asyncio.ensure_future(record.ack())
        await until(lambda: len(n1.settled) > 1, "it was not tried again")
        n1.settling = None
        await waits


@pytest.mark.parametrize("how", [How.RETURN, How.RELEASE])
async def test_a_return_whose_confirm_is_late_is_not_sent_again(nodes: Nodes, client: Client, how: How) -> None:
    """Goal: the record's next delivery stays with whoever has it. Method: the copies are late, twice; the record comes
    again to the same subscriber meanwhile; only the confirm is asked for, and the nack returns with it."""
    n1 = giver(nodes)
    n1.settling = FlushSlaveTimeout("late")
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        waits = asyncio.ensure_future(record.nack() if how is How.RETURN else record.release())
        await until(lambda: n1.settled, "no nack came")
        n1.give(Grant(0, 1, AGAIN))
        [again] = await take(subscription, 1)
        await until(lambda: len(n1.settled) > 2, "its confirm was not asked for")
        n1.settling = None
        await waits
        assert [each.how for each in n1.settled[:3]] == [how] * 3
        assert [each.ranges for each in n1.settled] == [(0, 1)] + [()] * (len(n1.settled) - 1)
        await again.ack()


async def test_multiple_on_a_record_of_two_sessions_ago_is_told(nodes: Nodes, client: Client) -> None:
    """Goal: an ack that returns was heard. Method: records are given out, and the connection lost, twice; the first
    session's are acked in the third, and a second time."""
    n1 = giver(nodes)
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 2), batches=(0,))
        held = await take(subscription, 2)
        for number in (1, 2):
            n1.drop()
            await until(lambda last=number: n1.last > last, "nobody subscribed")  # type: ignore[misc]
            n1.give(Grant(0, 2, AGAIN), batches=(0,))
            await take(subscription, 1)
        await held[1].ack(multiple=True)
        assert [(each.how, each.ranges, each.again) for each in n1.settled] == [(How.ACK, (0, 2), True)]
        with pytest.raises(NotGranted, match="settled before"):
            await held[1].ack(multiple=True)


async def test_what_nobody_waits_for_is_told_by_flush(nodes: Nodes, client: Client) -> None:
    """Goal: no failure is swallowed. Method: an ack that is refused, flushed; the next flush is content."""
    n1 = giver(nodes)
    n1.settling = BadRequest("no such thing")
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(0, 1), batches=(0,))
        [record] = await take(subscription, 1)
        record.ack_nowait()
        with pytest.raises(BadRequest, match="no such thing"):
            await subscription.flush()
        await subscription.flush()
        n1.settling = None
        record.ack_nowait()
        await subscription.flush()


@pytest.mark.parametrize("requeue", [True, False])
async def test_closing_gives_back_what_nobody_has_seen(nodes: Nodes, client: Client, requeue: bool) -> None:
    """Goal: what was not seen goes back uncounted; what was is its user's decision. Method: two of six were seen, one
    of them acked without waiting; with `requeue=False` the other one is acked behind the end."""
    n1 = giver(nodes)
    subscription = await client.subscribe(QUEUE).start()
    n1.give(Grant(0, 4), Grant(4, 6), batches=(0, 1))
    seen = await take(subscription, 2)
    seen[0].ack_nowait()
    await subscription.close(requeue=requeue)
    said = {(each.how, each.ranges) for each in n1.settled}
    assert said == {(How.ACK, (0, 1)), (How.RELEASE, (2, 4, 4, 6))} | ({(How.RETURN, (1, 2))} if requeue else set())
    assert not n1.by_number
    with pytest.raises(Closed, match="closed"):
        await anext(subscription)
    if requeue:
        with pytest.raises(Closed, match="closed"):
            await seen[1].ack()
    else:
        await seen[1].ack()
        assert (n1.settled[-1].how, n1.settled[-1].ranges) == (How.ACK, (1, 2))
    await subscription.close()


async def test_closing_while_the_node_answers_nothing_gives_back_what_is_in_hand_and_what_comes(nodes: Nodes) -> None:
    """Goal: a connection that stays keeps no record of a subscription that is closed. Method: Unsubscribe is answered
    late; two of four were seen, and two more come behind the close."""
    n1 = giver(nodes)
    async with Client(*nodes.servers, request_timeout_ms=200) as client:
        subscription = await client.subscribe(QUEUE).start()
        number = n1.number
        n1.give(Grant(0, 4), batches=(0,))
        await take(subscription, 2)
        n1.deaf = True
        await subscription.close()
        await until(lambda: len(n1.settled) == 2, "what is in hand was not given back")
        assert {(each.how, each.ranges) for each in n1.settled} == {(How.RELEASE, (2, 4)), (How.RETURN, (0, 2))}
        n1.give(Grant(4, 6), batches=(1,), number=number)
        await until(lambda: len(n1.settled) == 3, "what came late was not given back")
        assert (n1.settled[-1].how, n1.settled[-1].ranges) == (How.RELEASE, (4, 6))
        n1.catch_up()
        assert not n1.by_number


@pytest.mark.parametrize("requeue", [True, False])
async def test_what_a_node_does_not_take_back_as_a_subscription_closes_goes_with_it(
    nodes: Nodes, client: Client, requeue: bool
) -> None:
    """Goal: a connection that stays keeps no record of a subscription that is closed. Method: the log takes nothing;
    whoever keeps what he has seen does so."""
    n1 = giver(nodes)
    subscription = await client.subscribe(QUEUE).start()
    n1.give(Grant(0, 2), batches=(0,))
    await take(subscription, 2)
    number, n1.settling = n1.number, InSyncReplicasNotEnough("too few")
    await subscription.close(requeue=requeue)
    assert n1.left == ([number] if requeue else [])


async def test_what_is_abandoned_and_not_taken_back_goes_too(nodes: Nodes, client: Client) -> None:
    """The same, without waiting for it."""
    n1 = giver(nodes)
    subscription = await client.subscribe(QUEUE).start()
    n1.give(Grant(0, 2), batches=(0,))
    await take(subscription, 2)
    number, n1.settling = n1.number, InSyncReplicasNotEnough("too few")
    subscription.abandon()
    await until(lambda: n1.left == [number], "it stays in hand")


async def test_whoever_comes_back_names_the_subscription_whose_place_it_takes(nodes: Nodes, client: Client) -> None:
    """Goal: a node that has not noticed the lost connection ends what is subscribed over it. Method: lose it twice:
    each time the number and the secret of the one before are told, and no group is made anew once something was
    granted; with the first they are not there."""
    n1 = giver(nodes)
    async with client.subscribe(QUEUE) as subscription:
        n1.drop()
        await until(lambda: n1.last == 2, "nobody subscribed")
        n1.give(Grant(0, 1), batches=(0,))
        await take(subscription, 1)
        n1.drop()
        await until(lambda: n1.last == 3, "nobody subscribed")
    told = [(each.replaces, each.secret, each.create) for each in n1.subscribes]
    assert told == [(0, "", True), (1, "secret of n1 1", True), (2, "secret of n1 2", False)]


async def test_a_prefetch_that_was_set_holds_at_each_node_that_comes_later(nodes: Nodes) -> None:
    """Goal: a failover forgets neither a new prefetch nor a pause. Method: set while it is served, and while the node
    has not answered yet; the connection is cut between."""
    n1 = giver(nodes)
    n1.start_id = versions.run_id("s")
    async with Client(*nodes.servers) as client, client.subscribe(QUEUE, prefetch=7) as subscription:
        await subscription.set_prefetch(3, 50)
        await subscription.pause()
        asked = [(each.prefetch_records, each.prefetch_bytes, each.paused) for each in n1.prefetches]
        assert asked == [(3, 50, False), (3, 50, True)]
        n1.late = True
        n1.drop()
        await until(lambda: n1.last == 2, "nobody subscribed")
        again = n1.subscribes[1]
        assert (again.prefetch_records, again.prefetch_bytes, again.paused) == (3, 50, True)
        await subscription.set_prefetch(9)
        await subscription.resume()
        n1.catch_up()
        await until(lambda: len(n1.prefetches) == 3, "it was not told what was set meanwhile")
        assert (n1.prefetches[2].prefetch_records, n1.prefetches[2].paused) == (9, False)
        with pytest.raises(BadRequest, match="prefetch"):
            await subscription.set_prefetch(-1)


async def test_a_node_that_knows_no_new_prefetch_is_not_asked(nodes: Nodes) -> None:
    """Goal: the connection lasts, and nothing changes. Method: software of the version before."""
    n1 = giver(nodes)
    n1.start_id = versions.run_id("s", versions.PREFETCH - 1)
    async with Client(*nodes.servers) as client, client.subscribe(QUEUE, prefetch=7) as subscription:
        for change in (subscription.set_prefetch(3), subscription.pause()):
            with pytest.raises(UnsupportedVersion, match="a prefetch that changes"):
                await change
        n1.drop()
        await until(lambda: n1.last == 2, "nobody subscribed")
    assert (n1.prefetches, n1.subscribes[1].prefetch_records, n1.subscribes[1].paused) == ([], 7, False)


async def test_what_is_set_while_an_older_node_has_not_answered_holds_by_subscribing_anew(nodes: Nodes) -> None:
    """Goal: a node that would end the connection is not asked. Method: one of the version before answers late; the
    prefetch is set meanwhile."""
    n1 = giver(nodes)
    n1.start_id = versions.run_id("s", versions.PREFETCH - 1)
    n1.late = True
    async with Client(*nodes.servers) as client:
        subscription = client.subscribe(QUEUE, prefetch=7)
        begins = asyncio.ensure_future(subscription.start())
        await until(lambda: n1.subscribes, "nobody asked")
        await subscription.set_prefetch(3)
        n1.catch_up()
        await until(lambda: len(n1.subscribes) == 2, "it was left at the former prefetch")
        await begins
        await subscription.close()
    assert (n1.prefetches, n1.subscribes[1].prefetch_records) == ([], 3)


async def test_closing_the_client_closes_its_subscriptions(nodes: Nodes) -> None:
    """Goal: acks that were not awaited are not lost by a tidy end. Method: leave the client with one on its way."""
    async with Client(*nodes.servers) as client:
        subscription = await client.subscribe(QUEUE).start()
        giver(nodes).give(Grant(0, 2), batches=(0,))
        [record] = await take(subscription, 1)
        record.ack_nowait()
    assert {(each.how, each.ranges) for each in giver(nodes).settled} == {(How.ACK, (0, 1)), (How.RELEASE, (1, 2))}


async def test_grants_behind_an_abandoned_subscribe_are_given_back(nodes: Nodes, client: Client) -> None:
    """Goal: whoever stops waiting for a subscription keeps no record from others. Method: cancel the start while the
    node hangs; it answers late, and grants."""
    n1 = giver(nodes)
    n1.late = True
    begins = asyncio.ensure_future(client.subscribe(QUEUE).start())
    await until(lambda: n1.subscribes, "nobody asked")
    begins.cancel()
    await asyncio.gather(begins, return_exceptions=True)
    n1.catch_up()
    n1.give(Grant(0, 1), batches=(0,))
    await until(lambda: n1.settled and not n1.by_number, "it was not given back")
    assert [(each.how, each.ranges) for each in n1.settled] == [(How.RELEASE, (0, 1))]


async def test_with_auto_ack_nothing_is_settled(nodes: Nodes, client: Client) -> None:
    """Goal: what is sent is settled already. Method: an ack is a mistake, and closing gives nothing back."""
    async with client.subscribe(QUEUE, auto_ack=True) as subscription:
        giver(nodes).give(Grant(0, 2), batches=(0,))
        [record] = await take(subscription, 1)
        with pytest.raises(BadRequest, match="auto_ack"):
            record.ack_nowait()
    assert giver(nodes).subscribes[0].auto_ack
    assert giver(nodes).settled == []


async def test_with_auto_ack_the_node_hears_what_the_program_has_taken(nodes: Nodes, client: Client) -> None:
    """Goal: a slow program bounds what is sent to it. Method: four records with a prefetch of four, a grant of two, one
    of which a record is gone: told at half the prefetch, and at each grant's end."""
    n1 = giver(nodes)
    async with client.subscribe(QUEUE, auto_ack=True, prefetch=4) as subscription:
        n1.give(Grant(0, 4), batches=(0,))
        await take(subscription, 1)
        await take(subscription, 1)
        await until(lambda: len(n1.settled) == 1, "it was not told")
        await take(subscription, 2)
        await until(lambda: len(n1.settled) == 2, "it was not told")
        n1.give(Grant(4, 6), batches=(1,))
        await subscription.next_batch()
        await until(lambda: len(n1.settled) == 3, "it was not told")
    assert {each.how for each in n1.settled} == {How.EXTEND}
    assert [each.ranges for each in n1.settled] == [(0, 2), (2, 4), (4, 6)]
    assert n1.subscribes[0].prefetch_bytes == 256 * 1024


async def test_a_right_that_is_refused_is_told_at_once(nodes: Nodes, client: Client) -> None:
    """Goal: an exclusive group, a wrong name. Method: each; nothing is tried again."""
    giver(nodes).refuses = ExclusiveTaken("another has it")
    with pytest.raises(ExclusiveTaken):
        await client.subscribe(QUEUE, exclusive=True).start()
    with pytest.raises(NoSuchQueue):
        await client.subscribe("nothing").start()


async def test_while_there_is_no_master_who_waits_is_told(nodes: Nodes) -> None:
    """Goal: nothing hangs. Method: the master dies, no other is named; reading raises, and goes on when one is."""
    async with (
        Client(*nodes.servers, request_timeout_ms=300) as client,
        client.subscribe(QUEUE, outage_timeout_ms=300) as subscription,
    ):
        nodes.promote("", version=2)
        giver(nodes).kill()
        with pytest.raises((NotMaster, ConnectionLost)):
            await asyncio.wait_for(anext(subscription), 10)
        nodes.promote("n2", version=3)
        await until(lambda: subscription.session is not None, "nobody subscribed")
        giver(nodes, "n2").give(Grant(0, 1), batches=(0,))
        assert values(await take(subscription, 1)) == [b"a"]


async def test_a_master_that_hangs_is_left_for_its_successor(
    nodes: Nodes, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a node that keeps its connections and says nothing holds nobody up: neither who waits for records nor who
    waits for an ack. Method: it hangs, another one is named; the clock of pings is shortened."""
    monkeypatch.setattr(KeepAlive, "tick_s", 0.1)
    n1, n2 = giver(nodes), giver(nodes, "n2")
    other = Client(*nodes.servers)
    async with other, other.subscribe(QUEUE) as waiting, client.subscribe(QUEUE, "g") as acking:
        n1.give(Grant(0, 1), batches=(0,))
        [record] = await take(acking, 1)
        reads = asyncio.ensure_future(anext(waiting))
        n1.hangs = True
        acks = asyncio.ensure_future(record.ack())
        nodes.promote("n2", version=2)
        await until(lambda: len(n2.by_number) == 2, "they stayed")
        for number in n2.by_number:
            n2.give(Grant(4, 5), batches=(1,), number=number)
        async with asyncio.timeout(5):
            await acks
            assert (await reads).value == b"e"


async def test_who_handles_records_at_once_lets_acks_leave(nodes: Nodes, client: Client) -> None:
    """Goal: a loop body that never waits starves nothing. Method: a thousand records in hand; acks leave before the
    last one is read."""
    n1 = giver(nodes)
    place = stored(nodes, *(b"%d" % number for number in range(1_000)))
    async with client.subscribe(QUEUE) as subscription:
        n1.give(Grant(6, 1_006), batches=(place,))
        for _ in range(1_000):
            (await anext(subscription)).ack_nowait()
        assert n1.settled


async def test_a_grant_may_span_batches_of_which_some_came(nodes: Nodes, client: Client) -> None:
    """Goal: what is missing in the middle is fetched. Method: one grant over three batches, the second did not come;
    kept back in part, too."""
    stored(nodes, b"g", b"h")
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(1, 7), batches=(0, 2))
        assert values(await take(subscription, 6)) == [b"b", b"c", b"d", b"e", b"f", b"g"]
    assert giver(nodes).fetches == 1


async def test_records_that_were_freed_meanwhile_are_passed_over(nodes: Nodes, client: Client) -> None:
    """Goal: retention blocks nobody. Method: a grant whose first batch is not in the log any more."""
    async with client.subscribe(QUEUE) as subscription:
        del nodes.batches[0]
        giver(nodes).give(Grant(2, 6))
        found = await take(subscription, 2)
        assert values(found) == [b"e", b"f"]
        await found[1].ack(multiple=True)
        assert giver(nodes).settled[-1].ranges == (4, 6)


@pytest.mark.parametrize(
    "content",
    [b"", GRANT.pack(0, 1, 0, 0), GRANT.pack(0, 1, 0, 0) + b"\0" * 96, GRANT.pack(0, 1, 0, 0) + b"\xff" * 200],
)
async def test_a_frame_that_is_none_ends_the_connection_only(nodes: Nodes, client: Client, content: bytes) -> None:
    """Goal: what a node sends is not believed. Method: a grant and a batch are announced, something else comes; the
    subscription is made again."""
    n1 = giver(nodes)
    async with client.subscribe(QUEUE) as subscription:
        facts = DELIVER.pack(n1.number, 1, 6, 1, 1)
        n1.by_number[n1.number].endpoint.send([frame(FrameType.DELIVER, facts + content)])
        await until(lambda: n1.last == 2 and n1.by_number, "it was not made again")
        n1.give(Grant(0, 1), batches=(0,))
        assert values(await take(subscription, 1)) == [b"a"]


async def test_a_large_batch_is_received_where_it_stays(nodes: Nodes, client: Client) -> None:
    """Goal: no copy of what is large. Method: a batch of 200 KiB among others; all values are right."""
    place = stored(nodes, *(bytes([number]) * 20_480 for number in range(10)))
    async with client.subscribe(QUEUE) as subscription:
        giver(nodes).give(Grant(6, 16), batches=(place,))
        giver(nodes).give(Grant(0, 1), batches=(0,))
        found = await take(subscription, 11)
        assert values(found) == [*(bytes([number]) * 20_480 for number in range(10)), b"a"]


async def test_a_master_of_the_past_is_not_believed(nodes: Nodes, client: Client) -> None:
    """Goal: epochs only rise. Method: a node that has not heard of the newest master takes the subscription."""
    n1, n2 = giver(nodes), giver(nodes, "n2")
    nodes.promote("n1", version=5)
    async with client.subscribe(QUEUE) as subscription:
        nodes.promote("n2", version=6)
        n2.epoch = 4
        n1.end(NotMaster("n2 is"))
        await until(lambda: len(n2.subscribes) > 1, "it was not asked again")
        n2.epoch = 6
        await until(lambda: subscription.session is not None, "nobody subscribed")
        n2.give(Grant(0, 1), batches=(0,))
        assert values(await take(subscription, 1)) == [b"a"]


async def test_two_tasks_share_what_is_given_out(nodes: Nodes, client: Client) -> None:
    """Goal: each record goes to one of them. Method: two readers, fetched bytes between."""
    async with client.subscribe(QUEUE) as subscription:
        found: list[bytes | None] = []

        async def read() -> None:
            async for each in subscription:
                found.append(each.value)
                await asyncio.sleep(0)

        readers = [asyncio.ensure_future(read()) for _ in range(2)]
        giver(nodes).give(Grant(0, 4))
        giver(nodes).give(Grant(4, 6), batches=(1,))
        await until(lambda: len(found) == 6, "not all came")
        for each in readers:
            each.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    assert sorted(filter(None, found)) == [b"a", b"b", b"c", b"d", b"e", b"f"]


async def test_receiving_ends_when_the_time_is_up(nodes: Nodes, client: Client) -> None:
    """Goal: a poll. Method: nothing there; two of the records that are; all that is there at once."""
    async with client.subscribe(QUEUE) as subscription:
        assert await subscription.receive(timeout_ms=20) == []
        giver(nodes).give(Grant(0, 4), Grant(4, 6), batches=(0, 1))
        assert values(await subscription.receive(2, timeout_ms=5_000)) == [b"a", b"b"]
        assert values(await subscription.receive(timeout_ms=5_000)) == [b"c", b"d", b"e", b"f"]


@pytest.mark.parametrize(
    "options",
    [{"prefetch": -1}, {"prefetch": True}, {"prefetch_bytes": -1}, {"priority": "x"}, {"settle_timeout_ms": 0},
     {"confirm": "some"}],
)  # fmt: skip
async def test_a_wrong_option_is_named(client: Client, options: dict[str, object]) -> None:
    """Goal: told where it is made. Method: each of them."""
    with pytest.raises(BadRequest, match=next(iter(options))):
        client.subscribe(QUEUE, **options)  # type: ignore[arg-type]
