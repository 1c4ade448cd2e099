"""A broker's messages come into queues, each once, whoever ends when; it hears of them when all copies have them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import BadBatch
from mirrorlog.rocketmq.following import Following
from mirrorlog.rocketmq.routes import TopicRoutes
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster
from tests.rocketmq.broker import Broker

pytestmark = pytest.mark.process
TO_QUEUES = TopicRoutes({"orders": "orders", "payments": "payments"})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(3, min_in_sync=2) as started:
        started.wait_in_sync()
        yield started


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[Client]:
    async with Client(*cluster.servers) as client:
        yield client
        for queue in (await client.admin.metadata()).queues:
            await client.admin.delete_queue(queue.name)


async def until(met: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not met():  # noqa: ASYNC110  (conditions of several places)
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s:g} s: {what}") from None


@contextlib.asynccontextmanager
async def followed(following: Following) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(following.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def following(client: Client, broker: Broker, routes: TopicRoutes = TO_QUEUES, start: int | None = 0) -> Following:
    return Following(client, broker.address, routes, name="broker", log_group="rocketmq", start=start)


async def values(client: Client, queue: str) -> list[bytes | None]:
    async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [record.value async for record in consumer]


async def test_messages_are_in_their_queues_and_the_broker_hears_of_it(client: Client) -> None:
    """Topics that nobody maps are passed, and the place behind them is told, too."""
    async with Broker() as broker:
        broker.write(b"1", b"2")
        broker.write(b"x", topic="unmapped")
        broker.write(b"3", topic="payments")
        async with followed(following(client, broker)):
            await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged")
            broker.write(b"y", topic="unmapped")
            await until(lambda: broker.acknowledged == len(broker.log), "what leads nowhere is acknowledged")
        assert broker.reports[0] == 1  # 0 would mean the last file
        assert await values(client, "orders") == [b"1", b"2"]
        async with client.consumer("payments", start="earliest", until="confirmed") as consumer:
            (record,) = [each async for each in consumer]
        told = dict(record.headers)
        assert (record.value, record.key, record.timestamp) == (b"3", b"3", 1_700_000_000_123_000)
        assert (told["KEYS"], told["rocketmq.topic"], told["rocketmq.queue_offset"]) == (b"3", b"payments", b"7")


async def test_it_goes_on_where_its_place_is(client: Client) -> None:
    """Also after a link that broke in the middle of a record, and with another start asked for by nobody."""
    async with Broker() as broker:
        broker.write(*(b"%d" % number for number in range(20)))
        async with followed(following(client, broker)):
            await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged")
            whole = len(broker.log)
            broker.write(b"late")
            rest = bytes(broker.log[whole + 50 :])
            del broker.log[whole + 50 :]
            broker.drop()
            await until(lambda: broker.links == 2, "it comes back")
            broker.write_bytes(rest)
            await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged")
        broker.write(b"later")
        async with followed(following(client, broker, start=None)):
            await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged")
        assert await values(client, "orders") == [*(b"%d" % number for number in range(20)), b"late", b"later"]


async def test_of_two_one_follows_and_the_other_takes_over(client: Client, cluster: Cluster) -> None:
    async with Broker() as broker, Client(*cluster.servers) as other:
        first, second = following(client, broker), following(other, broker)
        broker.write(b"1")
        async with followed(second):
            async with followed(first):
                await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged")
                broker.write(b"2")
                await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged")
                assert (first.progress.messages, second.progress.messages) in {(2, 0), (0, 2)}
            broker.write(b"3")
            await until(lambda: broker.acknowledged == len(broker.log), "the other has taken over")
        assert await values(client, "orders") == [b"1", b"2", b"3"]


async def test_what_is_no_record_ends_it_and_nothing_of_it_is_stored(client: Client) -> None:
    async with Broker() as broker:
        broker.write(b"good")
        good = len(broker.log)
        broker.write_bytes(b"\x00\x00\x01\x00" + b"no record" * 30)
        with pytest.raises(BadBatch, match=f"at physical offset {good}"):
            async with asyncio.timeout(30):
                await following(client, broker).run()
        assert broker.acknowledged == good
        assert await values(client, "orders") == [b"good"]


async def test_topics_go_to_an_exchange_by_their_names(client: Client) -> None:
    """All but those that have a queue, and RocketMQ's own."""
    await client.admin.declare("blue", {"x-log-group": "rocketmq"})
    await client.admin.topology.declare_exchange("market", "topic")
    await client.admin.topology.bind("market", "blue", "bonds.#")
    async with Broker() as broker:
        for topic in ("bonds", "stocks", "orders", "RMQ_SYS_TRACE_TOPIC", "SCHEDULE_TOPIC_XXXX"):
            broker.write(topic.encode(), topic=topic)
        async with followed(following(client, broker, TopicRoutes({"orders": "orders"}, exchange="market"))):
            await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged")
        assert await values(client, "blue") == [b"bonds"]
        assert await values(client, "orders") == [b"orders"]


@pytest.mark.long
async def test_each_message_is_there_once_whoever_is_killed(tmp_path: Path) -> None:
    """Goal: nothing is repeated and nothing missed. Method: the follower, a process, is killed six times at random, the
    log's master twice, and links are cut, while the broker writes."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as cluster:
        cluster.wait_in_sync()
        servers = ",".join(cluster.servers)
        async with Broker() as broker:

            async def start() -> asyncio.subprocess.Process:
                command = [
                    "-m",
                    "mirrorlog.tools.main",
                    "-s",
                    servers,
                    "follow-rocketmq",
                    broker.address,
                    "--from",
                    "first",
                ]
                command = [*command[:-2], *(command[-2:] if not broker.links else [])]
                return await asyncio.create_subprocess_exec(
                    sys.executable, *command, "--map", "orders=orders", "--name", "b", stderr=asyncio.subprocess.DEVNULL
                )

            process, written = await start(), 0
            for round_ in range(8):
                for _ in range(10):
                    broker.write(*(b"%d" % number for number in range(written, written + 50)))
                    written += 50
                    await asyncio.sleep(chance.random() * 0.1)
                if round_ in {2, 5}:
                    cluster.master.kill()
                    killed = [node for node in cluster.nodes.values() if not node.running]
                    await asyncio.to_thread(lambda: [node.start() for node in killed])  # noqa: B023
                elif round_ == 4:
                    broker.drop()
                else:
                    process.send_signal(signal.SIGKILL)
                    await process.wait()
                    process = await start()
            await until(lambda: broker.acknowledged == len(broker.log), "all is acknowledged", 90.0)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
        async with Client(*cluster.servers) as client:
            assert await values(client, "orders") == [b"%d" % number for number in range(written)]
