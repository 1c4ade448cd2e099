"""What a client object held when nobody has it any more: it goes back, without `close`."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from mirrorlog.client import Client, sync
from mirrorlog.errors import NoSuchQueue
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
    return {task for task in asyncio.all_tasks() if "client/subscription/" in repr(task)}


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


# --- what else there is -----------------------------------------------------------------------------------------------


def sockets() -> set[str]:
    """Those of this process."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            target = str(each.readlink())
            if target.startswith("socket:"):
                found.add(target)
    return found


@contextmanager
def heard() -> Iterator[list[str]]:
    """The ResourceWarnings of the block that name what was not closed. Without the objects: who keeps the warning keeps
    its source."""
    told: list[str] = []

    def note(message: Warning | str, category: type[Warning], *_: object) -> None:
        if issubclass(category, ResourceWarning) and " was " in str(message):
            told.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = note
        yield told


def names(told: list[str]) -> list[str]:
    return sorted(each.split(" was not closed")[0] for each in told)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - it is about the collector, which tells nobody
            await asyncio.sleep(0.01)


def values(cluster: Cluster, queue: str) -> list[bytes]:
    with sync.Client(*cluster.servers) as client, client.consumer(queue, until="confirmed") as consumer:
        return [bytes(record.value or b"") for record in consumer]


async def test_a_producer_that_nobody_has_sends_what_it_was_given(cluster: Cluster) -> None:
    """Goal: what was accepted is not lost in silence. A producer is let go with records that have not left, behind it
    its client is closed: they are told of, and stored; nothing of the producer is left."""
    tasks = asyncio.all_tasks()
    async with Client(*cluster.servers) as client:
        await client.admin.declare("sent")
        producer = await client.producer("sent").start()
        for number in range(RECORDS):
            producer.send_nowait(b"%d" % number)
        with heard() as told:
            del producer
        assert told == ["a producer for queue 'sent' was not closed; 10 records have not ended yet"]
    assert values(cluster, "sent") == [b"%d" % number for number in range(RECORDS)]
    assert asyncio.all_tasks() <= tasks


async def test_what_a_producer_failed_with_unheard_is_told_when_it_is_let_go(cluster: Cluster) -> None:
    """Goal: a failure that only a flush would have told of. Its queue is deleted, a record is refused, and nobody asks;
    then it is let go. Whoever closes the client hears what failed."""
    client = await Client(*cluster.servers).connect()
    await client.admin.declare("failing")
    producer = await client.producer("failing", delivery_timeout_ms=1_000).start()
    await producer.send(b"first")
    await client.admin.delete_queue("failing")
    delivery = producer.send_nowait(b"second")
    await until(delivery.done)
    del delivery
    with pytest.warns(ResourceWarning, match="'failing' was not closed; 1 record failed, and nobody was told"):
        del producer
    with pytest.raises(NoSuchQueue):
        await client.close()


async def test_a_publisher_that_nobody_has_publishes_what_it_was_given(cluster: Cluster) -> None:
    """Goal: the same of messages to an exchange, and of the producers behind it nothing is said."""
    async with Client(*cluster.servers) as client:
        await client.admin.declare("published")
        await client.admin.topology.declare_exchange("ex", "fanout")
        await client.admin.topology.bind("ex", "published")
        publisher = await client.publisher("ex").start()
        for number in range(RECORDS):
            await publisher.hand_over("key", b"%d" % number)
        with heard() as told:
            del publisher
            await until(lambda: gc.collect() >= 0 and bool(told))
        assert told == ["a publisher to exchange 'ex' was not closed"]
    assert values(cluster, "published") == [b"%d" % number for number in range(RECORDS)]


async def test_a_consumer_that_nobody_has_is_gone(cluster: Cluster) -> None:
    """Goal: no task reads on for nobody. A consumer is let go with records fetched and none more to come: the fetch
    that waits for some, for longer than this test does, ends with it."""

    def fetches() -> list[asyncio.Task[object]]:
        return [task for task in asyncio.all_tasks() if "client/consumer/prefetcher.py" in repr(task)]

    async with Client(*cluster.servers) as client:
        await filled(client, "read")
        consumer = await client.consumer("read", max_wait_ms=60_000).start()
        assert len(await consumer.read(GIVEN, timeout_ms=20_000)) == GIVEN
        await until(lambda: bool(fetches()))
        with heard() as told:
            del consumer
            await until(lambda: gc.collect() >= 0 and bool(told))
        assert told == ["a consumer of queue 'read' was not closed"]
        await until(lambda: not fetches())


async def test_a_client_that_nobody_has_leaves_no_connection(cluster: Cluster) -> None:
    """Goal: sockets and tasks go with it, also when what it made is let go with it: a producer with records under way,
    a subscription, a consumer, leases."""
    before, tasks = sockets(), asyncio.all_tasks()
    async with Client(*cluster.servers) as other:
        await filled(other, "all")
        await filled(other, "leased")
    client = await Client(*cluster.servers).connect()
    producer = await client.producer("all").start()
    subscription = await client.subscribe("all").start()
    consumer = await client.consumer("all").start()
    made = [producer, subscription, consumer, await anext(subscription), await client.lease("leased", max_records=2)]
    await consumer.read(1, timeout_ms=20_000)
    producer.send_nowait(b"%d" % RECORDS)
    with heard() as told:
        del client, producer, subscription, consumer, made
        await until(lambda: gc.collect() >= 0 and len(told) >= 4)
    assert names(told) == [
        f"a client of {', '.join(cluster.servers)}",
        "a consumer of queue 'all'",
        "a producer for queue 'all'",
        "a subscription to queue 'all'",
    ]
    await until(lambda: sockets() <= before and asyncio.all_tasks() <= tasks)
    assert values(cluster, "all")[-1] == b"%d" % RECORDS


async def test_a_transaction_that_nobody_ends_says_so(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        transaction = client.transaction()
        transaction.send("sent", b"v")
        with pytest.warns(
            ResourceWarning, match="a transaction of 1 record and 0 settlements was neither committed nor"
        ):
            del transaction
        async with client.transaction():
            pass


def of_loops() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "mirrorlog-client"}


def test_a_blocking_client_that_nobody_has_ends_its_thread(cluster: Cluster) -> None:
    """Goal: the thread, its loop and the sockets go, and what was handed over is stored before. A client is let go with
    a producer, a publisher, a consumer and a subscription, all of them open."""
    before, threads = sockets(), of_loops()
    with sync.Client(*cluster.servers) as other:
        other.admin.declare("blocking all")
        other.admin.topology.declare_exchange("blocking", "fanout")
        other.admin.topology.bind("blocking", "blocking all")
    client = sync.Client(*cluster.servers).connect()
    producer = client.producer("blocking all").start()
    publisher = client.publisher("blocking").start()
    consumer = client.consumer("blocking all").start()
    subscription = client.subscribe("blocking all").start()
    publisher.publish("key", b"published")
    assert len(consumer.read(1, timeout_ms=20_000)) == 1
    for number in range(RECORDS):
        producer.send_nowait(b"%d" % number)
    (thread,) = of_loops() - threads
    with heard() as told:
        del client, producer, publisher, consumer, subscription
        gc.collect()
        thread.join(20)
        assert not thread.is_alive()
        gc.collect()
    assert sockets() <= before
    assert names(told) == [
        f"a client of {', '.join(cluster.servers)}",
        "a consumer of queue 'blocking all'",
        "a producer for queue 'blocking all'",
        "a publisher to exchange 'blocking'",
        "a subscription to queue 'blocking all'",
    ]
    assert values(cluster, "blocking all") == [b"published", *(b"%d" % number for number in range(RECORDS))]


def test_a_blocking_client_hears_at_its_close_what_became_of_what_was_let_go(cluster: Cluster) -> None:
    with sync.Client(*cluster.servers) as client:
        client.admin.declare("gone")
        producer = client.producer("gone", delivery_timeout_ms=1_000).start()
        client.admin.delete_queue("gone")
        producer.send_nowait(b"v")
        with pytest.warns(ResourceWarning, match="'gone' was not closed"):
            del producer
        with pytest.raises(NoSuchQueue):
            client.close()


# --- processes that end without a close -------------------------------------------------------------------------------

_OPEN = {
    "awaited": """
import asyncio, sys
from mirrorlog.client import Client
async def main():
    global client, producer, publisher, subscription, consumer
    client = await Client(*sys.argv[1:]).connect()
    producer = await client.producer("ending").start()
    publisher = await client.publisher("").start()
    subscription = await client.subscribe("ending").start()
    consumer = await client.consumer("ending").start()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    producer.send_nowait(b"v")
asyncio.run(main())
""",
    "blocking": """
import sys
from mirrorlog.client.sync import Client
client = Client(*sys.argv[1:]).connect()
producer = client.producer("ending").start()
publisher = client.publisher("").start()
subscription = client.subscribe("ending").start()
consumer = client.consumer("ending").start()
print("open", flush=True)
sys.stdin.readline()
producer.send_nowait(b"v")
""",
}


@pytest.mark.long_after(1)
@pytest.mark.parametrize("face", sorted(_OPEN))
@pytest.mark.parametrize("hangs", [False, True], ids=["well", "hanging"])
def test_a_process_that_closes_nothing_ends_and_says_so(face: str, hangs: bool) -> None:
    """Goal: an end without `close` is no hang and no silence, whether its node answers or not."""
    with fast_cluster(1) as cluster:
        with sync.Client(*cluster.servers) as client:
            client.admin.declare("ending")
        process = subprocess.Popen(
            [sys.executable, "-W", "always::ResourceWarning", "-c", _OPEN[face], *cluster.servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        node = cluster.master
        try:
            assert process.stdout.readline() == "open\n"
            if hangs:
                node.pause()
            _, said = process.communicate("\n", timeout=20)
        finally:
            process.kill()
            node.resume()
    assert process.returncode == 0, said
    assert "Traceback" not in said, said
    made = ["publisher to exchange ''", "subscription to queue 'ending'", "consumer of queue 'ending'"]
    for name in [f"client of {cluster.servers[0]}", "producer for queue 'ending'", *made]:
        assert said.count(f"a {name} was not closed") == 1, said
    if hangs:
        assert "a producer for queue 'ending' was not closed; 1 record has not ended" in said
