"""Leases against nodes that do as they are told: what is asked, what is given, and receipts that outlive a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mirrorlog.client import Client, Leased
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns
from mirrorlog.commitlog.format.header import Codec, read_header
from mirrorlog.errors import BadBatch, BadRequest, FlushSlaveTimeout, NoSuchQueue, NotMaster, OutcomeUnknown
from mirrorlog.wire.frames import How, Level
from mirrorlog.wire.messages.groups import ExtendLease, Lease, LeasedRange, Leases, SettleLease
from tests.client.scripted_delivery import Giver, givers, stored
from tests.client.scripted_nodes import LOG_ID, QUEUE, Nodes
from tests.spoiled import spoiled


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


def leasing(nodes: Nodes, *ranges: LeasedRange, node_id: str = "n1") -> Giver:
    node = nodes[node_id]
    assert isinstance(node, Giver)
    node.leases = Leases(log_id=LOG_ID, epoch=1, queue_id=1, next=6, leased=list(ranges))
    return node


async def one(client: Client) -> Leased:
    [leased] = await client.lease(QUEUE, "g", max_records=1)
    return leased


async def test_leased_records_come_with_what_is_known_of_them(nodes: Nodes, client: Client) -> None:
    """Goal: values of ranges out of several batches, with lease, flag and attempts. Method: two leases at once."""
    n1 = leasing(
        nodes,
        LeasedRange(first=1, next=5, lease=7),
        LeasedRange(first=5, next=6, lease=8, redelivered=True, attempts=2),
    )
    found = await client.lease(QUEUE, "g", max_records=9, lease_ms=5_000, wait_ms=20, holder="me")
    assert [(each.value, each.offset, each.attempts, each.redelivered) for each in found] == [
        (b"b", 1, 0, False),
        (b"c", 2, 0, False),
        (b"d", 3, 0, False),
        (b"e", 4, 0, False),
        (b"f", 5, 2, True),
    ]
    assert [each.receipt[:4] for each in found] == ["1-7-", "2-7-", "3-7-", "4-7-", "5-8-"]
    assert n1.asked_of_leases == [Lease(queue=QUEUE, group="g", records_max=9, lease_ms=5_000, wait_ms=20, holder="me")]


async def test_nothing_there_is_no_error(nodes: Nodes, client: Client) -> None:
    """Goal: an empty queue. Method: a node without a lease to give."""
    leasing(nodes)
    assert await client.lease(QUEUE) == []


@pytest.mark.parametrize(
    ("settle", "how", "delay_ms"),
    [
        (lambda each: each.ack(), How.ACK, 0),
        (lambda each: each.nack(delay_ms=5), How.RETURN, 5),
        (lambda each: each.nack(requeue=False, delay_ms=5), How.DEAD, 0),
        (lambda each: each.reject(), How.DEAD, 0),
        (lambda each: each.release(delay_ms=6), How.RELEASE, 6),
    ],
)
async def test_each_settlement_has_its_word(
    nodes: Nodes, client: Client, settle: Callable[[Leased], Awaitable[None]], how: How, delay_ms: int
) -> None:
    """Goal: what the node is told. Method: each of them."""
    n1 = leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    await settle(await one(client))
    assert n1.asked_of_leases[-1] == SettleLease(
        queue=QUEUE,
        group="g",
        receipts=[LeasedRange(first=2, next=3, lease=7)],
        how=how,
        delay_ms=delay_ms,
        level=Level.ALL,
    )


async def test_a_lease_is_extended(nodes: Nodes, client: Client) -> None:
    """Goal: more time. Method: by the record, and by its text."""
    n1 = leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    leased = await one(client)
    await leased.extend(9_000)
    await client.extend_receipt(QUEUE, leased.receipt, 9_000, group="g")
    expected = ExtendLease(queue=QUEUE, group="g", receipts=[LeasedRange(first=2, next=3, lease=7)], lease_ms=9_000)
    assert n1.asked_of_leases[1:] == [expected, expected]


async def test_a_receipt_is_settled_by_whoever_has_its_text(nodes: Nodes, client: Client) -> None:
    """Goal: the text alone does, at another master, by another client. Method: lease, promote, settle elsewhere."""
    leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    text = (await one(client)).receipt
    nodes["n1"].kill()
    nodes.promote("n2", version=2)
    n2 = leasing(nodes, node_id="n2")
    async with Client(nodes["n2"].address) as other:
        assert await other.settle_receipt(QUEUE, text, group="g", how="release", delay_ms=3, confirm="one")
        with pytest.raises(BadRequest, match="something else"):
            await other.settle_receipt(QUEUE, text)
        with pytest.raises(BadRequest, match="how"):
            await other.settle_receipt(QUEUE, text, group="g", how="forget")
    [told] = n2.asked_of_leases
    assert isinstance(told, SettleLease)
    assert (told.how, told.delay_ms, told.level, told.receipts[0].first) == (How.RELEASE, 3, Level.ONE, 2)


async def test_an_answer_that_does_not_come_is_unknown(nodes: Nodes) -> None:
    """Goal: nothing hangs, and nobody is told that nothing happened. Method: a node that is mute behind the lease."""
    n1 = leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    async with Client(*nodes.servers, request_timeout_ms=200) as client:
        leased = await one(client)
        n1.mute = True
        with pytest.raises(OutcomeUnknown):
            await leased.ack()


async def test_leased_records_that_cannot_be_read_are_released(nodes: Nodes, client: Client) -> None:
    """Goal: nothing is kept from others for nothing. Method: a node whose batches are damaged."""
    n1 = leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    base, content = nodes.batches[0]
    nodes.batches[0] = (base, content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadBatch, match="log offset"):
        await one(client)
    assert isinstance(n1.asked_of_leases[-1], SettleLease)
    assert n1.asked_of_leases[-1].how == How.RELEASE


def stored_unreadable(nodes: Nodes, count: int, *, producer_id: int) -> None:
    """A batch of records that nobody can open."""
    draft = compress_draft(draft_columns([bytes(2_000)] * count), Codec.LZ4)
    batch = draft.seal(queue_id=1, producer_id=producer_id)
    nodes.store(bytes(batch))
    base, content = nodes.batches[-1]
    nodes.batches[-1] = base, spoiled(content, read_header(content).body_at, LOG_ID)


async def test_a_reject_under_way_holds_no_other_lease(nodes: Nodes, client: Client) -> None:
    """Goal: what is slow to be settled keeps only its own lease waiting. Method: a lease meets two batches that nobody
    can open, and the node does not answer the reject; another lease of the queue comes meanwhile. Both are settled by
    one request, and the first lease has the rest when that is answered."""
    stored_unreadable(nodes, 2, producer_id=77)
    stored_unreadable(nodes, 1, producer_id=78)
    stored(nodes, b"j")
    n1 = leasing(nodes, LeasedRange(first=5, next=10, lease=7))
    n1.keeps = True
    held = asyncio.ensure_future(client.lease(QUEUE, max_records=9))
    while not n1.owed:
        assert not held.done()
        await asyncio.sleep(0)
    leasing(nodes, LeasedRange(first=0, next=1, lease=8))
    async with asyncio.timeout(1):
        assert [each.value for each in await client.lease(QUEUE)] == [b"a"]
    n1.catch_up()
    n1.keeps = False
    assert [each.value for each in await held] == [b"f", b"j"]
    [told] = [each for each in n1.asked_of_leases if isinstance(each, SettleLease)]
    assert told.how == How.DEAD
    assert [(each.first, each.next, each.lease) for each in told.receipts] == [(6, 8, 7), (8, 9, 7)]


async def test_what_cannot_be_read_nor_given_back_may_be_leased(nodes: Nodes) -> None:
    """Goal: nobody is told that nothing was leased of what is. Method: damaged batches, and a release unanswered."""
    n1 = leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    n1.keeps = True
    base, content = nodes.batches[0]
    nodes.batches[0] = (base, content[:-1] + bytes([content[-1] ^ 1]))
    async with Client(*nodes.servers, request_timeout_ms=200) as client:
        with pytest.raises(OutcomeUnknown, match="log offset"):
            await one(client)


async def test_who_no_longer_waits_for_a_lease_gives_it_back(nodes: Nodes, client: Client) -> None:
    """Goal: nothing is kept from others for nobody. Method: a lease is cancelled that waits for a reject's answer."""
    stored_unreadable(nodes, 2, producer_id=77)
    n1 = leasing(nodes, LeasedRange(first=5, next=8, lease=7))
    n1.keeps = True
    waiting = asyncio.ensure_future(client.lease(QUEUE, max_records=9))
    while not n1.owed:
        assert not waiting.done()
        await asyncio.sleep(0)
    n1.keeps = False
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await client.close()
    told = [each.how for each in n1.asked_of_leases if isinstance(each, SettleLease)]
    assert told == [How.DEAD, How.RELEASE]


async def test_records_are_not_leased_again_for_one_call_that_may_have_leased_some(
    nodes: Nodes, client: Client
) -> None:
    """Goal: each repeat would lease others, to nobody. Method: copies that do not confirm in
    time."""
    n1 = leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    n1.refusal = FlushSlaveTimeout("a copy did not confirm in time")
    with pytest.raises(OutcomeUnknown):
        await client.lease(QUEUE)
    assert len(n1.asked_of_leases) == 1


async def test_a_lease_that_was_refused_is_asked_for_again_where_the_master_is(nodes: Nodes, client: Client) -> None:
    """Goal: what leased nothing for certain is followed. Method: a node that is master no more, before anybody heard of
    the next one."""
    n1 = leasing(nodes, LeasedRange(first=2, next=3, lease=7))
    n1.refusal = NotMaster("there is none")
    asking = asyncio.ensure_future(client.lease(QUEUE))
    while len(n1.asked_of_leases) < 2:
        assert not asking.done()
        await asyncio.sleep(0)
    n1.refusal = None
    assert len(await asking) == 1


@pytest.mark.parametrize(
    "options", [{"max_records": 0}, {"lease_ms": 0}, {"wait_ms": -1}, {"wait_ms": 60_001}, {"max_records": "x"}]
)
async def test_a_wrong_option_is_named(client: Client, options: dict[str, object]) -> None:
    """Goal: told where it is made. Method: each of them."""
    with pytest.raises(BadRequest, match=next(iter(options))):
        await client.lease(QUEUE, **options)  # type: ignore[arg-type]


async def test_a_queue_that_is_not_there_is_told(client: Client) -> None:
    """Goal: a wrong name ends at once. Method: lease from it."""
    with pytest.raises(NoSuchQueue):
        await client.lease("nothing")
