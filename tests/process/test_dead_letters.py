"""Dead letters between real nodes: processes, sockets, kill -9; and in a cluster with users."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import pytest

from mirrorlog.client import Client
from mirrorlog.config import RECORD_BYTES_MAX
from mirrorlog.errors import AccessRefused, MirrorlogError
from mirrorlog.wire.auth.passwords import hashed
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process

RECORDS: Final = 5_000
MIB: Final = 1024 * 1024
TWO_LOGS: Final[list[dict[str, Any]]] = [{}, {"name": "two", "master": "n2", "flush": "disk"}]


async def reject(client: Client, queue: str, count: int) -> None:
    """All of so many different ones, through whatever befalls."""
    met: set[bytes] = set()
    async with client.subscribe(queue, prefetch=500) as subscription:
        while len(met) < count:
            try:
                for record in await subscription.take_within(500, timeout_ms=500):
                    record.nack_nowait(requeue=False)
                    met.add(record.value or b"")
                await subscription.flush()
            except MirrorlogError as error:
                if not error.retriable and not met:
                    raise


async def received(client: Client, queue: str, count: int) -> list[bytes]:
    """The first so many records as a stream, and whatever comes in half a second behind them."""
    found: list[bytes] = []
    async with client.consumer(queue, start="earliest") as consumer:
        while len(found) < count:
            found += [record.value or b"" for record in await consumer.read(1000, timeout_ms=500)]
        found += [record.value or b"" for record in await consumer.read(1000, timeout_ms=500)]
    return found


@pytest.mark.long
@pytest.mark.parametrize("victim", ["n1", "n2"])
async def test_dead_letters_come_to_another_nodes_queue_once_through_kill_9(victim: str) -> None:
    """Goal: exactly once between processes. Method: the queue is mastered by one node, the one for dead letters by
    another; either is killed once the first letters are there."""
    with fast_cluster(3, logs=TWO_LOGS, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with asyncio.timeout(60), Client(*cluster.servers) as client:
            await client.admin.declare("dead", {"flush": "disk"})
            await client.admin.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
            values = [b"%d" % number for number in range(RECORDS)]
            async with client.producer("q") as producer:
                await producer.send_many(values)
            rejecting = asyncio.ensure_future(reject(client, "q", RECORDS))
            async with client.consumer("dead", start="earliest") as consumer:
                while not await consumer.read(1, timeout_ms=500):
                    pass
            cluster.nodes[victim].kill()
            await rejecting
            assert sorted(await received(client, "dead", RECORDS)) == sorted(values)


@pytest.mark.long
async def test_in_a_cluster_with_users_nodes_need_no_user_and_people_a_right() -> None:
    """Goal: dead letters go their way where everybody has to log in, and nobody gets records by them where he may not
    write. Method: one who may declare them, one who may not; redrives to a named queue, and to wherever they died."""
    with fast_cluster(3, logs=TWO_LOGS) as cluster:
        cluster.wait_in_sync()
        way = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        async with Client(*cluster.servers) as client:
            await client.admin.topology.set_user("admin", password_hash=hashed("admin"), tags=["administrator"])
        async with asyncio.timeout(60), Client(*cluster.servers, user="admin", password="admin") as admin:
            topology = admin.admin.topology
            for name in ("app", "other"):
                await topology.set_user(name, password_hash=hashed(name))
            await topology.set_permissions("admin", configure=".*", write=".*", read=".*")
            await topology.set_permissions("app", configure=".*", write="^(q|amq\\.default)$", read=".*")
            await topology.set_permissions("other", configure=".*", write="^q$", read=".*")
            await admin.admin.declare("dead", {"flush": "disk"})
            async with Client(*cluster.servers, user="other", password="other") as other:
                with pytest.raises(AccessRefused, match=r"amq\.default"):
                    await other.admin.declare("q", way)
            async with Client(*cluster.servers, user="app", password="app") as app:
                await app.admin.declare("q", way)
                async with app.producer("q") as producer:
                    await producer.send(b"v")
                await reject(app, "q", 1)
                assert await received(app, "dead", 1) == [b"v"]
                for to in ("", "dead"):
                    with pytest.raises(AccessRefused):
                        await app.admin.redrive("dead", to=to)
                assert await app.admin.redrive("dead", to="q") == 1
                async with app.subscribe("q") as subscription:
                    back = await anext(subscription)
                    assert (back.value, list(back.headers)) == (b"v", [])
                    await back.nack(requeue=False)
            async with admin.subscribe("dead") as subscription:
                again = await anext(subscription)
                assert json.loads(dict(again.headers)["x-death"])[0]["count"] == 1
                await again.release()
            assert await admin.admin.redrive("dead") == 1
            assert await received(admin, "q", 3) == [b"v"] * 3


@pytest.mark.parametrize("largest", [64 * MIB, RECORD_BYTES_MAX], ids=["64", "128"])
@pytest.mark.long_after(1)
async def test_a_letter_of_many_megabytes_comes_to_another_nodes_queue(largest: int) -> None:
    """Goal: whatever a queue takes can leave it, for the queue of another node too. Method: records of 20 MiB and of
    the largest size that a node may be told to take, between logs of two masters."""
    limits = {
        "limits.max_record_bytes": largest,
        "limits.max_batch_bytes": largest + 8 * MIB,
        "limits.outgoing_bytes_max": 2 * largest + 16 * MIB,
        "log.segment_bytes": 256 * MIB,
    }
    with fast_cluster(2, logs=TWO_LOGS, settings=limits) as cluster:
        async with asyncio.timeout(180), Client(*cluster.servers) as client:
            dead = await client.admin.declare("dead", {"flush": "disk"})
            q = await client.admin.declare("q", {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
            assert dead.master != q.master
            async with client.producer("q", delivery_timeout_ms=60_000) as producer:
                for size in (20 * MIB, largest):
                    await producer.send(bytes(size))
            rejecting = asyncio.ensure_future(reject(client, "q", 2))
            async with client.consumer("dead", start="earliest") as consumer:
                found: list[int] = []
                while len(found) < 2:
                    found += [len(record.value or b"") for record in await consumer.read(1, timeout_ms=1000)]
            assert sorted(found) == [20 * MIB, largest]
            rejecting.cancel()
