"""What a full queue refuses and sends to its dead letters, between real nodes: processes, sockets, kill -9."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError, SentToDeadLetters
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process

RECORDS: Final = 2_000
TWO_LOGS: Final[list[dict[str, Any]]] = [{}, {"name": "two", "master": "n2", "flush": "disk"}]


async def read(client: Client, queue: str, count: int) -> list[bytes]:
    """The first so many records as a stream, and whatever comes in half a second behind them."""
    found: list[bytes] = []
    async with client.consumer(queue, start="earliest") as consumer:
        while len(found) < count:
            found += [record.value or b"" for record in await consumer.read(1000, timeout_ms=500)]
        found += [record.value or b"" for record in await consumer.read(1000, timeout_ms=500)]
    return found


async def take(client: Client, met: set[bytes], has_met_all: Callable[[], bool]) -> None:
    """One who acks what he is given."""
    while not has_met_all():
        with suppress(MirrorlogError):
            async with client.subscribe("q", prefetch=5) as subscription:
                while not has_met_all():
                    for record in await subscription.take_within(5, timeout_ms=500):
                        met.add(record.value or b"")
                        await record.ack()


@pytest.mark.long
@pytest.mark.parametrize("victim", ["n1", "n2"])
async def test_each_record_is_in_the_queue_or_among_its_dead_letters_through_kill_9(victim: str) -> None:
    """Goal: what is refused comes to the dead letters once, and its producer knows, between processes. Method: somebody
    takes slower than another one publishes; the master of the queue, or the one of the queue for dead letters, is
    killed once the first letters are there."""
    with fast_cluster(3, logs=TWO_LOGS, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with asyncio.timeout(90), Client(*cluster.servers) as client:
            await client.admin.declare("dead", {"flush": "disk"})
            way = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            await client.admin.declare("q", {**way, "x-max-length": 5, "x-overflow": "reject-publish-dlx"})
            met: set[bytes] = set()
            confirmed: list[bytes] = []
            refused: list[bytes] = []

            async def publish() -> None:
                async with client.producer("q", batch_bytes=1) as producer:
                    for begin in range(0, RECORDS, 50):
                        values = [b"%d" % number for number in range(begin, begin + 50)]
                        ended = await asyncio.gather(*map(producer.send, values), return_exceptions=True)
                        for value, outcome in zip(values, ended, strict=True):
                            assert not isinstance(outcome, BaseException) or isinstance(outcome, SentToDeadLetters)
                            (refused if isinstance(outcome, SentToDeadLetters) else confirmed).append(value)

            publishing = asyncio.ensure_future(publish())
            taking = asyncio.ensure_future(take(client, met, lambda: publishing.done() and met.issuperset(confirmed)))
            async with client.consumer("dead", start="earliest") as consumer:
                while not await consumer.read(1, timeout_ms=500):
                    assert not publishing.done()
            cluster.nodes[victim].kill()
            await publishing
            await taking
            assert confirmed
            assert met == set(confirmed)
            assert sorted(await read(client, "dead", len(refused))) == sorted(refused)
