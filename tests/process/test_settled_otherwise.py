"""Two who have had the same record settle it, each as something else: the second one hears what stands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest

from mirrorlog.client import Client, Delivered, Subscription
from mirrorlog.errors import SettledOtherwise
from mirrorlog.queues.delivery.settlement import CONTRARY_MAX
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster, log_of, wait_next_master
from tests.process.matrix.world import SOON_S, receive

LETTERS = "letters"
RECORDS = 4


class Held(NamedTuple):
    """`subscription`: of whose `mine` are; `client`: of the other one."""

    mine: list[Delivered]
    theirs: list[Delivered]
    subscription: Subscription
    client: Client


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"cluster.node_timeout_ms": 600}
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path_factory.mktemp("settled"), settings=settings) as cluster:
        cluster.wait_in_sync()
        yield cluster


@asynccontextmanager
async def held_by_two(cluster: Cluster, queue: str, records: int = RECORDS) -> AsyncIterator[Held]:
    """What A was given by a master that died, and B, on another connection, by the next one; both hold all of it."""
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(Client(*cluster.servers)) for _ in range(2)]
        await one.admin.declare(LETTERS)
        await one.admin.declare(queue, {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": LETTERS})
        async with one.producer(queue, batch_bytes=64) as producer:
            for number in range(records):
                producer.send_nowait(f"{queue} {number}".encode())
        first = await stack.enter_async_context(one.subscribe(queue, prefetch=records))
        mine = await receive(first, records)
        master = cluster.master
        epoch = log_of(master).epoch
        # B is served first at the next master: A is known there, and given nothing, while B has it all for itself.
        second = await stack.enter_async_context(two.subscribe(queue, prefetch=records, priority=1))
        master.kill()
        try:
            wait_next_master(cluster, master, epoch)
            theirs: list[Delivered] = []
            while len(theirs) < records:
                theirs += await second.receive(timeout_ms=200)
                for again in await first.receive(timeout_ms=200):
                    await again.release()
        finally:
            master.start()
            cluster.wait_in_sync()
        yield Held(mine, sorted(theirs, key=lambda each: each.offset), first, two)


async def letters(client: Client, queue: str) -> list[bytes]:
    """The dead letters that came from that queue, in order."""
    async with client.consumer(LETTERS, start="earliest", until="confirmed") as consumer:
        values = [bytes(record.value or b"") async for record in consumer]
    return sorted(value for value in values if value.startswith(queue.encode() + b" "))


async def until_letters(client: Client, queue: str, expected: list[bytes]) -> None:
    """These have come, each once, and no others, when nothing leaves the queue any more."""
    async with asyncio.timeout(SOON_S):
        while True:
            if (await client.admin.groups(queue)).groups[0].floor >= RECORDS:
                break
            await asyncio.sleep(0.05)
    assert await letters(client, queue) == expected


async def stands(settling: Awaitable[None]) -> str:
    """What the record stands as, if that is something else; empty for a success."""
    try:
        await settling
    except SettledOtherwise as error:
        return str(error.details["stands"])
    return ""


async def test_the_second_verdict_hears_which_one_stands(three: Cluster) -> None:
    """Goal: of a record one verdict is answered as success, and its dead letter is there if and only if it is dead.
    Method: B rejects, and A acknowledges; B acknowledges, and A rejects; and both say the same, either way."""
    async with held_by_two(three, "contrary") as (mine, theirs, _, client):
        await theirs[0].reject()
        with pytest.raises(SettledOtherwise, match="dead") as dead:
            await mine[0].ack()
        assert dead.value.details["stands"] == "dead"
        await theirs[1].ack()
        with pytest.raises(SettledOtherwise, match="acknowledged") as acked:
            await mine[1].reject()
        assert acked.value.details["stands"] == "acked"
        await theirs[2].ack()
        await mine[2].ack()
        await theirs[3].reject()
        await mine[3].reject()
        await until_letters(client, "contrary", [b"contrary 0", b"contrary 3"])


async def test_of_more_than_an_answer_names_each_hears_of_its_own(three: Cluster) -> None:
    """Goal: nobody hears that nobody knows, of what is known. Method: B rejects every other record, so that more runs
    are settled otherwise than an answer names; A acknowledges all at once."""
    records = 2 * CONTRARY_MAX + 100
    async with held_by_two(three, "more", records) as (mine, theirs, _, _):
        await asyncio.gather(*(each.ack() if each.offset % 2 else each.reject() for each in theirs))
        with pytest.raises(SettledOtherwise) as told:
            await mine[-1].ack(multiple=True)
    dead = [[each.offset, each.offset + 1, "dead"] for each in mine if not each.offset % 2]
    assert told.value.details["otherwise"] == dead


async def test_each_of_many_hears_of_its_own(three: Cluster) -> None:
    """Goal: who settles many in one turn of his loop is told of each what became of it; who does not wait hears of it
    by `flush`. Method: B rejects every other one; A acknowledges all, awaited and not."""
    async with held_by_two(three, "many") as (mine, theirs, subscription, client):
        for number in (0, 2):
            await theirs[number].reject()
        for number in (1, 3):
            await theirs[number].ack()
        assert await asyncio.gather(*(stands(each.ack()) for each in mine[:2])) == ["dead", ""]
        for each in mine[2:]:
            each.ack_nowait()
        with pytest.raises(SettledOtherwise, match="record 2 is settled already: dead"):
            await subscription.flush()
        await until_letters(client, "many", [b"many 0", b"many 2"])


async def test_of_a_transaction_nothing_counts(three: Cluster) -> None:
    """Goal: what a transaction sends stands for what it acknowledges. Method: it acknowledges a record that is dead by
    then beside one that is free to be settled, and sends one."""
    async with held_by_two(three, "whole") as (mine, theirs, subscription, client):
        await theirs[0].reject()
        await theirs[1].release()
        transaction = subscription.client.transaction()
        transaction.send(LETTERS, b"whole sent")
        for each in mine[:2]:
            transaction.ack(each)
        with pytest.raises(SettledOtherwise, match="record 0 is settled already: dead"):
            await transaction.commit()
        assert (await client.admin.groups("whole")).groups[0].unsettled >= RECORDS - 1
        assert b"whole sent" not in await letters(client, "whole")


async def test_a_receipt_of_a_lease_that_is_over_hears_it(three: Cluster) -> None:
    """Goal: the same for leases. Method: a lease ends, somebody else leases the record and rejects it, and the first
    holder acknowledges; his receipt rejects as well, which is what stands."""
    async with Client(*three.servers) as client:
        await client.admin.declare("leased")
        async with client.producer("leased") as producer:
            await producer.send(b"leased 0")
        [first] = await client.lease("leased", lease_ms=100, wait_ms=10_000)
        [second] = await client.lease("leased", lease_ms=60_000, wait_ms=10_000)
        await second.reject()
        with pytest.raises(SettledOtherwise, match="dead"):
            await first.ack()
        await first.reject()
        await second.reject()
