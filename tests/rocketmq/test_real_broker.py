"""Real brokers of both lines are followed: what their own client publishes is here once, with its fields."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.rocketmq.records import RecordKind, RecordWalker
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster
from tests.rocketmq.real import RealBroker, real_broker

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.timeout(600)]
TOPICS = 3
ROUNDS = 5
COUNT = 1_000


@pytest.fixture(params=["rocketmq", "rocketmq-4"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealBroker]:
    with real_broker(request.param, tmp_path) as broker:
        yield broker


async def start(cluster: Cluster, broker: RealBroker, *flags: str) -> asyncio.subprocess.Process:
    maps = [word for number in range(TOPICS) for word in ("--map", f"orders-{number}=orders-{number}")]
    command = ["-m", "mirrorlog.tools.main", "-s", ",".join(cluster.servers), "follow-rocketmq", broker.address]
    return await asyncio.create_subprocess_exec(
        sys.executable, *command, *maps, "--name", "real", *flags, stderr=asyncio.subprocess.DEVNULL
    )


async def found(client: Client) -> Counter[int]:
    """How often each number is there; its fields are looked at."""
    numbers: Counter[int] = Counter()
    for topic in range(TOPICS):
        async with client.consumer(f"orders-{topic}", start="earliest", until="confirmed") as consumer:
            async for record in consumer:
                told = dict(record.headers)
                number = json.loads(record.value or b"")["n"]
                assert (number % TOPICS, record.key) == (topic, b"k-%d" % number)
                assert (told["TAGS"], told["number"]) == (b"t-%d" % (number % 3), b"%d" % number)
                assert told["rocketmq.kind"] == b"plain"
                numbers[number] += 1
    return numbers


async def test_each_message_is_there_once_through_deaths_of_everybody(broker: RealBroker, tmp_path: Path) -> None:
    """Goal: SEND_OK of a SYNC_MASTER means that all our copies have it, and nothing is doubled or missed. Method: the
    broker's only slave is the follower, which is killed after each round; our master is killed twice and the broker
    once, each in between. Delayed messages come when their broker has written them once more."""
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path / "nodes") as cluster:
        cluster.wait_in_sync()
        follower = await start(cluster, broker, "--from", "first")
        sent: Counter[str] = Counter()
        for round_ in range(ROUNDS):
            told = await asyncio.to_thread(broker.send, round_ * COUNT, COUNT, TOPICS)
            told.pop("median_us")
            sent.update(told)
            follower.kill()
            await follower.wait()
            if round_ in {1, 3}:
                dead = cluster.master
                dead.kill()
                await asyncio.to_thread(dead.start)
            if round_ == 2:
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            follower = await start(cluster, broker)
        written = plain_numbers(broker.log_bytes)
        async with Client(*cluster.servers) as client, asyncio.timeout(90):
            while await found(client) != (written := plain_numbers(broker.log_bytes)) or not delayed_came(written):  # noqa: ASYNC110
                await asyncio.sleep(1)
        follower.terminate()
        await follower.wait()
        assert sent["SEND_OK"] >= ROUNDS * COUNT * 0.9, sent
        assert len(written) >= sent["SEND_OK"]


def delayed_came(written: Counter[int]) -> bool:
    """One of a hundred waits a second before it is a message."""
    return sum(number % 100 == 99 for number in written) >= ROUNDS * COUNT // 100 * 0.9


def plain_numbers(content: bytes) -> Counter[int]:
    """What the broker has in its log for consumers: by its client's retries some may be there twice."""
    numbers: Counter[int] = Counter()
    walker = RecordWalker(0)
    end = content.rstrip(b"\x00")
    for record in walker.feed(end + bytes(1)):
        if record.kind is RecordKind.PLAIN and record.topic.startswith("orders-"):
            numbers[json.loads(record.body)["n"]] += 1
    return numbers
