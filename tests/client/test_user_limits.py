"""Limits of users on a real node: who floods waits for himself, and is neither refused nor taken for dead.

What is measured are bounds that hold on a machine of any speed: never more than the rate, one second of it and what was
under way; nobody is asked to be fast."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import NoSuchUser, Overloaded
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.fairness.quotas import UserLimits
from mirrorlog.wire.messages.status import NodeCounts
from tests.process.clusters import fast_cluster

BATCH = 64 * 1024
OVERHEAD = 1.02
"""What headers and columns add to records of a KiB."""


@pytest.fixture
def limited() -> Iterator[Cluster]:
    """A node with an administrator, and the users `ann` and `bob` who may publish and read everything."""
    with fast_cluster(1) as cluster:
        asyncio.run(give_users(cluster))
        yield cluster


async def give_users(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        await client.admin.declare("q")
        await client.admin.declare("other")
        await client.admin.topology.set_user("admin", password_hash=hashed("admin"), tags=["administrator"])
    async with as_user(cluster, "admin") as client:
        for name in ("ann", "bob", "admin"):
            if name != "admin":
                await client.admin.topology.set_user(name, password_hash=hashed(name))
            await client.admin.topology.set_permissions(name, configure="", write=".*", read=".*")


def as_user(cluster: Cluster, name: str) -> Client:
    return Client(*cluster.servers, user=name, password=name)


async def counts_of(admin: Client) -> NodeCounts:
    counts = (await admin.admin.status("n1")).counts
    assert counts is not None
    return counts


def published(counts: NodeCounts) -> int:
    return sum(log.published_bytes for log in counts.logs)


@pytest.mark.long
@pytest.mark.process
async def test_a_flood_is_held_to_its_rate_and_nobody_else_is(limited: Cluster) -> None:
    """Goal: over all of a user's connections no more than his limit is stored; none of it is refused, and who has no
    limit waits for nothing. Method: one user has six times his rate under way from two clients; another one publishes
    one record after the other meanwhile, and is done before. The node tells for how long it held whom."""
    rate = 200_000
    async with as_user(limited, "admin") as admin, as_user(limited, "bob") as bob:
        await admin.admin.topology.set_user_limits("ann", publish_byte_rate=rate)
        before = published(await counts_of(admin))
        async with as_user(limited, "ann") as one, as_user(limited, "ann") as two:
            connections = [await each.any_connection() for each in (one, two)]
            began = time.monotonic()

            async def flood(client: Client) -> None:
                async with client.producer("q", batch_bytes=BATCH) as producer:
                    await asyncio.gather(*(producer.send(b"x" * 1024) for _ in range(3 * rate // 1024)))

            floods = asyncio.gather(flood(one), flood(two))
            async with bob.producer("other") as producer:
                for _ in range(50):
                    await producer.send(b"y")
            assert not floods.done()
            while not floods.done():
                counts = await counts_of(admin)
                most = rate * (time.monotonic() - began + 1) + 2 * BATCH + 50 * 256
                assert published(counts) - before <= most * OVERHEAD
                await asyncio.sleep(0.2)
            await floods
            assert [await each.any_connection() for each in (one, two)] == connections
        counts = await counts_of(admin)
        assert counts.users_held_s["publish_byte_rate"] > 3
        assert counts.users_held_s["read_byte_rate"] == 0
        told = (await admin.admin.events()).events
        held = [each.details for each in told if each.kind == "users_held"]
        assert held
        assert all(each["users"].keys() == {"ann"} for each in held)


@pytest.mark.long
@pytest.mark.process
async def test_a_connection_that_is_held_for_long_is_kept_and_its_publishes_are_confirmed(limited: Cluster) -> None:
    """Goal: nobody takes a node that holds him for dead, nor a held client for one that has gone. Method: large batches
    of several producers are under way on one connection, for longer than a client's system waits for an acknowledgement
    (3 s), in pauses of two; all of them are confirmed over the same connection."""
    async with as_user(limited, "admin") as admin, as_user(limited, "ann") as ann:
        await admin.admin.topology.set_user_limits("ann", publish_byte_rate=500_000)
        connection = await ann.any_connection()

        async def publish() -> None:
            async with ann.producer("q") as producer:
                await producer.send(b"x" * 1_000_000)

        began = time.monotonic()
        await asyncio.gather(*(publish() for _ in range(5)))
        assert time.monotonic() - began > 5
        assert await ann.any_connection() is connection


@pytest.mark.long
@pytest.mark.process
async def test_what_is_read_is_held_to_its_rate_and_settled_at_once(limited: Cluster) -> None:
    """Goal: fetches and deliveries are one budget; who is given nothing may acknowledge. Method: the same records by
    both, against the time that they must take at least."""
    rate, count = 300_000, 1_000
    async with as_user(limited, "admin") as admin, as_user(limited, "ann") as ann:
        async with admin.producer("q", batch_bytes=BATCH) as producer:
            await asyncio.gather(*(producer.send(b"x" * 1024) for _ in range(count)))
        await admin.admin.topology.set_user_limits("ann", read_byte_rate=rate)
        began = time.monotonic()
        async with ann.consumer("q", start="earliest", until="confirmed") as consumer:
            seen = [record async for record in consumer]
        assert len(seen) == count
        assert count * 1024 <= rate * (time.monotonic() - began + 1) + rate + BATCH
        taken = 0
        async with ann.subscribe("q", prefetch=50) as subscription:
            async for delivered in subscription:
                taken += 1
                await delivered.ack()
                if taken == count:
                    break
        assert 2 * count * 1024 <= rate * (time.monotonic() - began + 1) + 2 * rate + BATCH
        assert (await counts_of(admin)).users_held_s["read_byte_rate"] > 1


@pytest.mark.long
@pytest.mark.process
async def test_requests_are_held_to_their_rate(limited: Cluster) -> None:
    """By questions, one after the other; pings and the administrator's are none of them."""
    async with as_user(limited, "admin") as admin, as_user(limited, "ann") as ann:
        await admin.admin.topology.set_user_limits("ann", request_rate=20)
        began = time.monotonic()
        for _ in range(60):
            await ann.admin.queues()
        assert time.monotonic() - began >= 60 / 20 - 1 - 0.2


@pytest.mark.long
@pytest.mark.process
async def test_the_newest_connection_is_refused_by_the_name_of_the_limit(limited: Cluster) -> None:
    """Goal: a user's connections have a number, and those that are there stay. Method: two, a third, one that goes;
    limits below what is there close nothing. After a restart they hold as before."""
    async with as_user(limited, "admin") as admin:
        await admin.admin.topology.set_user_limits("ann", max_connections=2, request_rate=1_000)
        async with as_user(limited, "ann") as one:
            await one.connect()
            two = as_user(limited, "ann")
            await two.connect()
            with pytest.raises(Overloaded, match="user 'ann' has 2 connections to this node") as refused:
                await as_user(limited, "ann").connect()
            assert refused.value.details["limit"] == "user_connections"
            assert (await counts_of(admin)).logins_failed["connections"] >= 1
            await two.close()
            async with asyncio.timeout(20), as_user(limited, "bob"):
                while True:
                    try:
                        async with as_user(limited, "ann") as again:
                            await again.connect()
                        break
                    except Overloaded:  # the node has not seen the other one go yet
                        await asyncio.sleep(0.05)
            await admin.admin.topology.set_user_limits("ann", max_connections=1)
            assert {each.name for each in await one.admin.queues()} == {"other", "q"}
        with pytest.raises(NoSuchUser):
            await admin.admin.topology.set_user_limits("nobody", max_connections=1)
    node = limited.nodes["n1"]
    assert await asyncio.to_thread(node.stop) == 0
    await asyncio.to_thread(node.start)
    async with as_user(limited, "admin") as admin:
        users = {each.name: each.limits for each in await admin.admin.topology.users()}
        assert users == {"admin": UserLimits(), "ann": UserLimits(max_connections=1), "bob": UserLimits()}
        async with as_user(limited, "ann") as one:
            await one.connect()
            with pytest.raises(Overloaded):
                await as_user(limited, "ann").connect()


@pytest.mark.process
async def test_limits_that_are_cleared_hold_nobody_any_longer(limited: Cluster) -> None:
    """Goal: who waits goes on at once, and his producer may have as much under way as others. Method: what would take
    minutes is under way when the limit goes."""
    async with as_user(limited, "admin") as admin, as_user(limited, "ann") as ann:
        await admin.admin.topology.set_user_limits("ann", publish_byte_rate=1_000)
        async with ann.producer("q", batch_bytes=BATCH) as producer:
            sends = asyncio.gather(*(producer.send(b"x" * 1024) for _ in range(1_000)))
            async with asyncio.timeout(20):
                while not (await counts_of(admin)).users_held_s["publish_byte_rate"]:  # noqa: ASYNC110  (nobody tells)
                    await asyncio.sleep(0.05)
            assert not sends.done()
            await admin.admin.topology.clear_user_limits("ann")
            await sends
