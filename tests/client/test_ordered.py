"""Groups that are ordered by key on real nodes: consumers that come, go and die, leases, batches of any shape, and a
master that is killed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from mirrorlog.client import Client, Delivered, Subscription
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import BadRequest, ExclusiveTaken, NotMaster
from mirrorlog.testing import Cluster
from tests.process.clusters import MIB, fast_cluster

pytestmark = pytest.mark.process

KEYS = 12
OF_EACH = 40


async def publish(client: Client, queue: str, numbers: Iterable[int], *, keys: int = KEYS, **options: str) -> None:
    """Record n has the key n % keys."""
    async with client.producer(queue, **options) as producer:  # type: ignore[arg-type]
        await producer.send_many([b"%d" % each for each in numbers], keys=[b"k%d" % (each % keys) for each in numbers])


async def take(subscription: Subscription, count: int) -> list[Delivered]:
    async with asyncio.timeout(30):
        return [await anext(subscription) for _ in range(count)]


def numbers(found: Iterable[Delivered]) -> list[int]:
    return [int(each.value or b"") for each in found]


class Work:
    """Consumers of one queue, each a client of its own; what they processed of each key, in order."""

    def __init__(self, cluster: Cluster, queue: str) -> None:
        self.processed: dict[bytes, list[int]] = defaultdict(list)
        self.seen: set[int] = set()
        self.tasks: list[asyncio.Task[None]] = []
        self._cluster = cluster
        self._queue = queue
        self.subscriptions: dict[int, Subscription] = {}

    def start(self, number: int) -> None:
        self.tasks.append(asyncio.ensure_future(self._consume(number)))

    async def die(self, number: int) -> None:
        """Its connection is cut with what it has, and nobody settles that."""
        subscription = self.subscriptions[number]
        assert subscription.session is not None
        subscription.session.connection.close()
        self.tasks[number].cancel()
        await asyncio.gather(self.tasks[number], return_exceptions=True)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not done():
                await asyncio.sleep(0.01)
                for task in self.tasks:
                    if task.done() and not task.cancelled():
                        task.result()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _consume(self, number: int) -> None:
        async with (
            Client(*self._cluster.servers) as client,
            client.subscribe(self._queue, ordered_by="key", prefetch=20) as subscription,
        ):
            self.subscriptions[number] = subscription
            async for delivery in subscription:
                await asyncio.sleep(0)
                self.processed[bytes(delivery.key or b"")].append(int(delivery.value or b""))
                self.seen.add(int(delivery.value or b""))
                if int(delivery.value or b"") % 7 == 3 and not delivery.redelivered:
                    delivery.nack_nowait()
                else:
                    delivery.ack_nowait()

    def check(self, count: int) -> None:
        assert self.seen == set(range(count)), "something was lost"
        for key, found in self.processed.items():
            firsts = list(dict.fromkeys(found))
            assert firsts == sorted(firsts), f"{key!r} was processed out of order: {found}"


async def test_each_key_is_processed_in_order_whoever_dies() -> None:
    """Goal: the promise. Method: three consumers of many keys, which return some records; one is cut off with what it
    has, another comes, the master is killed; published to all along. Of each key every record is processed, for the
    first time in order."""
    count = KEYS * OF_EACH
    with fast_cluster(min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            await publish(client, "q", range(count // 2))
            work = Work(cluster, "q")
            try:
                for number in range(3):
                    work.start(number)
                await work.until(lambda: len(work.seen) > 60)
                await work.die(1)
                work.start(3)
                await work.until(lambda: len(work.seen) > 120)
                info = await client.queue_info("q")
                cluster.nodes[info.master].kill()
                await publish(client, "q", range(count // 2, count))
                await work.until(lambda: len(work.seen) == count)
            finally:
                await work.end()
    work.check(count)


async def test_a_return_comes_before_what_stands_behind_it_and_a_reject_frees_its_key(
    client: Client, queue: str
) -> None:
    await publish(client, queue, range(6), keys=2)
    async with client.subscribe(queue, ordered_by="key") as subscription:
        zero, one = await take(subscription, 2)
        assert numbers([zero, one]) == [0, 1]
        assert await subscription.receive(timeout_ms=100) == []
        await zero.nack()
        await one.reject()
        again, three = await take(subscription, 2)
        assert numbers([again, three]) == [0, 3]
        assert again.attempts == 1
        await again.ack()
        assert numbers(await take(subscription, 1)) == [2]


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_batches_take_any_shape(client: Client, queue: str, compression: str) -> None:
    """Many keys in small and large batches, records without a key among them, and a consumer that takes batches."""
    for first in range(0, 300, 100):
        await publish(client, queue, range(first, first + 100), keys=7, compression=compression)
        await client_send(client, queue, b"none")
    found: list[int] = []
    async with client.subscribe(queue, ordered_by="key") as subscription, asyncio.timeout(30):
        others = 0
        while len(found) < 300 or others < 3:
            batch = await subscription.next_batch()
            values = [bytes(each or b"") for each in batch.values]
            others += values.count(b"none")
            found += [int(each) for each in values if each != b"none"]
            batch.ack_nowait()
    for key in range(7):
        assert [each for each in found if each % 7 == key] == list(range(key, 300, 7))


async def client_send(client: Client, queue: str, value: bytes) -> None:
    async with client.producer(queue) as producer:
        await producer.send(value)


async def test_leases_and_subscriptions_share_keys_and_refuse_who_wants_no_order(client: Client, queue: str) -> None:
    await publish(client, queue, range(4), keys=2)
    zero, one = await client.lease(queue, max_records=4, ordered_by="key")
    assert (zero.value, one.value) == (b"0", b"1")
    with pytest.raises(ExclusiveTaken, match="in order by key"):
        async with client.subscribe(queue):
            pass
    with pytest.raises(ExclusiveTaken, match="in order by key"):
        await client.lease(queue)
    async with client.subscribe(queue, ordered_by="key") as subscription:
        assert await subscription.receive(timeout_ms=100) == []
        await one.ack()
        [three] = await take(subscription, 1)
        assert three.value == b"3"
        await three.ack()
        await zero.release()
        assert numbers(await take(subscription, 1)) == [0]


async def test_options_that_make_no_sense_are_refused(client: Client, queue: str) -> None:
    with pytest.raises(BadRequest, match="auto_ack"):
        async with client.subscribe(queue, ordered_by="key", auto_ack=True):
            pass
    with pytest.raises(BadRequest, match="ordered_by 'value'"):
        async with client.subscribe(queue, ordered_by="value"):
            pass


def test_the_blocking_client_takes_the_same_option(shared_cluster: Cluster) -> None:
    with SyncClient(*shared_cluster.servers) as client:
        client.admin.declare("ordered-sync")
        with client.producer("ordered-sync") as producer:
            for each in range(3):
                producer.send(b"%d" % each, key=b"k")
        with client.subscribe("ordered-sync", ordered_by="key") as subscription:
            found = subscription.receive(timeout_ms=5_000)
            assert [each.value for each in found] == [b"0"]
            found[0].ack()
        assert [each.value for each in client.lease("ordered-sync", ordered_by="key", wait_ms=5_000)] == [b"1"]


async def test_keys_are_read_of_what_the_memory_has_let_go_and_of_what_is_packed_and_large() -> None:
    """Goal: a backlog is consumed in order, wherever it stands. Method: segments of which the memory keeps the last,
    and a batch of a MiB that compresses; two consumers."""
    settings = {
        "log.kept_mapped_bytes": 0,
        "log.prepare_bytes": 0,
        "limits.max_batch_bytes": 2 * MIB,
        "limits.max_record_bytes": 128 * 1024,
    }
    count, packed, keys = 4_000, 1_000, 400
    with fast_cluster(1, segment_bytes=4 * MIB, settings=settings) as cluster:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            for first in range(0, count, 500):
                async with client.producer("q", batch_bytes=64 * 1024) as producer:
                    numbers = range(first, first + 500)
                    await producer.send_many(
                        [b"%d " % each + bytes(4_000) for each in numbers],
                        keys=[b"k%d" % (each % keys) for each in numbers],
                    )
            async with client.producer("q", batch_bytes=MIB, compression="lz4") as producer:
                numbers = range(count, count + packed)
                await producer.send_many(
                    [b"%d " % each + bytes(1_000) for each in numbers],
                    keys=[b"k%d" % (each % keys) for each in numbers],
                )
            found: dict[int, list[int]] = defaultdict(list)
            done = 0

            async def consume() -> None:
                nonlocal done
                async with client.subscribe("q", ordered_by="key", prefetch_bytes=MIB) as subscription:
                    while done < count + packed:
                        for each in await subscription.receive(timeout_ms=100):
                            number = int(bytes(each.value or b"").split()[0])
                            found[number % keys].append(number)
                            each.ack_nowait()
                            done += 1

            async with asyncio.timeout(60):
                await asyncio.gather(consume(), consume())
    assert {key: list(range(key, count + packed, keys)) for key in range(keys)} == found


async def test_keys_are_read_of_what_a_queue_has_left_in_a_former_log() -> None:
    """Two consumers of a queue that was moved, of records from before and behind."""
    count = 1_000
    with fast_cluster(2, logs=(), min_in_sync=1) as cluster:
        async with Client(*cluster.servers) as client:
            there = await client.admin.declare("q")
            await publish(client, "q", range(count // 2), keys=50)
            other = next(node for node in cluster.nodes if node != there.master)
            await client.admin.alter("q", {"nodes": [other]})
            await until_moved(client, there.log_id)
            await publish(client, "q", range(count // 2, count), keys=50)
            work = Work(cluster, "q")
            try:
                for number in range(2):
                    work.start(number)
                await work.until(lambda: len(work.seen) == count)
            finally:
                await work.end()
    work.check(count)


async def until_moved(client: Client, log_id: str) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(NotMaster):
                if (await client.queue_info("q")).log_id != log_id:
                    return
            await asyncio.sleep(0.05)
