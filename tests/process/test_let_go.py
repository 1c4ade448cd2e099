"""What a client object held when nobody has it any more: it goes back, without `close`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from mirrorlog.client import Client, sync
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster

RECORDS = 10
GIVEN = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1) as one:
        yield one


async def filled(client: Client, queue: str) -> None:
    await client.admin.declare(queue)
    async with client.producer(queue) as producer:
        for number in range(RECORDS):
            producer.send_nowait(b"%d" % number)


async def taken_all(client: Client, queue: str) -> dict[int, int]:
    """By record, how often it was given out before, as another subscriber is told."""
    async with client.subscribe(queue) as subscription:
        found: dict[int, int] = {}
        async with asyncio.timeout(20):
            while len(found) < RECORDS:
                delivered = await anext(subscription)
                found[int(delivered.value or b"")] = delivered.attempts
                await delivered.ack()
        return found


def tasks_of_subscriptions() -> set[asyncio.Task[object]]:
    return {task for task in asyncio.all_tasks() if "client/subscription.py" in repr(task)}


async def test_a_subscription_that_nobody_has_gives_back_what_it_was_granted(cluster: Cluster) -> None:
    """Goal: no record waits for a consumer that is gone. All records are granted to a subscription, which gives out
    some and settles the first; then it, and what it gave out, are let go. Another one gets the others at once: those
    that nobody saw uncounted, those that were given out counted once. Its task has ended."""
    async with Client(*cluster.servers) as client:
        await filled(client, "plain")
        subscription = await client.subscribe("plain").start()
        delivered = [await anext(subscription) for _ in range(GIVEN)]
        await delivered[0].ack()
        tasks = tasks_of_subscriptions()
        with pytest.warns(ResourceWarning, match="a subscription to queue 'plain' was not closed"):  # noqa: PT031 - both let go
            del subscription, delivered
            gc.collect()
        async with client.subscribe("plain") as other, asyncio.timeout(20):
            found = {}
            while len(found) < RECORDS - 1:
                again = await anext(other)
                found[int(again.value or b"")] = again.attempts
                await again.ack()
        assert found == {number: int(number < GIVEN) for number in range(1, RECORDS)}
        await ended(tasks)


async def ended(tasks: set[asyncio.Task[object]]) -> None:
    """All of these."""
    assert tasks
    _, left = await asyncio.wait(tasks, timeout=20)
    assert not left


async def test_a_subscription_lives_as_long_as_something_that_it_gave_out(cluster: Cluster) -> None:
    """Goal: who has a record may settle it. Only a delivered record is kept: its ack counts, and nothing is warned of
    before it goes, too."""
    async with Client(*cluster.servers) as client:
        await filled(client, "kept")

        async def first() -> object:
            return await anext(await client.subscribe("kept").start())

        delivered = await first()
        gc.collect()
        assert tasks_of_subscriptions()
        await delivered.ack()  # type: ignore[attr-defined]
        with pytest.warns(ResourceWarning, match="'kept' was not closed"):  # noqa: PT031 - both let go
            del delivered
            gc.collect()
        async with client.subscribe("kept") as other, asyncio.timeout(20):
            assert (await anext(other)).value == b"1"


async def test_a_closed_subscription_warns_of_nothing(cluster: Cluster, recwarn: pytest.WarningsRecorder) -> None:
    async with Client(*cluster.servers) as client:
        await filled(client, "closed")
        assert len(await taken_all(client, "closed")) == RECORDS
        gc.collect()
    assert not [each for each in recwarn if issubclass(each.category, ResourceWarning) and "queue" in str(each.message)]


def test_a_subscription_of_the_blocking_face_gives_back_too(cluster: Cluster) -> None:
    """Goal: the same where the loop is in a thread of its own."""
    with sync.Client(*cluster.servers) as client:
        client.admin.declare("blocking")
        with client.producer("blocking") as producer:
            for number in range(RECORDS):
                producer.send(b"%d" % number)
        subscription = client.subscribe("blocking").start()
        delivered = next(iter(subscription))
        with pytest.warns(ResourceWarning, match="'blocking' was not closed"):  # noqa: PT031 - both let go
            del subscription, delivered
            gc.collect()
        with client.subscribe("blocking") as other:
            found = {}
            while len(found) < RECORDS:
                (again,) = other.receive(1, timeout_ms=20_000)
                found[int(again.value or b"")] = again.attempts
                again.ack()
        assert found == {number: int(number == 0) for number in range(RECORDS)}
