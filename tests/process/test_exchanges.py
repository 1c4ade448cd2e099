"""Exchanges through what happens to nodes: hangs, kills, restarts of all."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import pytest

from mirrorlog.client import Client
from mirrorlog.client.publisher.publications import Publication
from mirrorlog.errors import LoginFailed, LogUnavailable, MirrorlogError
from mirrorlog.wire.auth.passwords import hashed
from tests.process.clusters import fast_cluster


async def values(client: Client, queue: str) -> list[bytes]:
    async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [bytes(record.value or b"") async for record in consumer]


@pytest.mark.long
async def test_a_bind_does_not_wait_for_a_node_that_hangs() -> None:
    """Goal: an answer in time, and it counts on all others. Method: the node that the client is connected to is paused;
    a bind is answered when another one was asked, which waits two seconds for it; a publish behind it meets it."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        hangs = cluster.nodes["n3"]
        async with Client(cluster.servers[2], *cluster.servers[:2]) as client:
            await client.admin.declare("q")
            await client.admin.topology.declare_exchange("e", "fanout")
            async with client.publisher("e", mandatory=True) as publisher:
                hangs.pause()
                try:
                    began = time.monotonic()
                    await client.admin.topology.bind("e", "q")
                    took = time.monotonic() - began
                    published = await publisher.publish("", b"v")
                finally:
                    hangs.resume()
    assert set(published.receipts) == {"q"}
    assert took < 9, "four seconds, two more, and an election if it was the coordinator that hangs"


async def test_messages_through_an_exchange_survive_the_master_s_death_while_bindings_change() -> None:
    """Goal: a confirmed message is in every queue that its answer names, once, and messages keep their order, also when
    batches are routed anew while their master is gone. Method: messages all the while, one client binds and unbinds,
    the master of both queues is killed."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client, Client(*cluster.servers) as other:
            for name in ("always", "moving"):
                await client.admin.declare(name)
            await client.admin.topology.declare_exchange("e", "fanout")
            await client.admin.topology.bind("e", "always")
            async with client.publisher("e", batch_bytes=2048) as publisher:
                handed: list[tuple[bytes, Publication]] = []
                stop = asyncio.Event()

                async def publish() -> None:
                    number = 0
                    while not stop.is_set():
                        value = b"%d" % number
                        handed.append((value, await publisher.hand_over("k", value)))
                        number += 1
                        await asyncio.sleep(0.0005)

                async def change(times: int) -> None:
                    for _ in range(times):
                        with suppress(MirrorlogError):
                            await other.admin.topology.bind("e", "moving")
                        with suppress(MirrorlogError):
                            await other.admin.topology.unbind("e", "moving")

                publishing = asyncio.ensure_future(publish())
                await change(3)
                cluster.nodes["n1"].kill()
                await change(4)
                stop.set()
                await publishing
                async with asyncio.timeout(40):
                    confirmed: dict[str, list[bytes]] = {"always": [], "moving": []}
                    failed = 0
                    for value, publication in handed:
                        try:
                            for queue in (await publication).receipts:
                                confirmed[queue].append(value)
                        except MirrorlogError:
                            failed += 1
            for queue, told in confirmed.items():
                got = await values(client, queue)
                assert len(set(got)) == len(got), f"{queue}: twice"
                assert set(told) <= set(got), f"{queue}: a confirmed message is missing"
                assert [value for value in got if value in set(told)] == told, f"{queue}: order"
            assert publisher.stats.rerouted > 0
            assert confirmed["always"]
            assert confirmed["moving"]
            assert failed < len(handed) / 2


@pytest.mark.long
async def test_a_node_that_starts_alone_is_not_open_to_everybody() -> None:
    """Goal: users count on a node that has not heard its cluster, and nobody changes anything there: neither while it
    is alone nor in the moment in which the others come. Method: a cluster of two with users, both stopped, one started;
    who has no login asks for all it may, and goes on asking to be made an administrator until the other one is back."""
    with fast_cluster(2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            await client.admin.declare("secret")
            async with client.producer("secret") as producer:
                await producer.send(b"v")
            await client.admin.topology.set_user("admin", password_hash=hashed("a"), tags=["administrator"])
        async with Client(*cluster.servers, user="admin", password="a") as admin:
            await admin.admin.topology.set_permissions("admin", configure=".*", write=".*", read=".*")
        for node in cluster.nodes.values():
            await asyncio.to_thread(node.stop)
        alone, other = cluster.nodes.values()
        alone.launch()
        address = cluster.servers[0]
        async with asyncio.timeout(60):
            await until_it_answers(address)
            asking = asyncio.ensure_future(ask_for_the_keys(address))
            async with Client(address, allow_stale_reads=True, request_timeout_ms=2_000) as stranger:
                for ask in (stranger.admin.queues(), stranger.admin.topology.users(), values(stranger, "secret")):
                    with pytest.raises(LoginFailed):
                        await ask
            async with Client(address, user="admin", password="a", request_timeout_ms=2_000) as admin:
                await admin.admin.queues()
                with pytest.raises(MirrorlogError):
                    await admin.admin.topology.set_user("new", password_hash=hashed("n"))
            await asyncio.to_thread(other.start)
            async with Client(*cluster.servers, user="admin", password="a") as admin:
                await admin.admin.topology.set_user("new", password_hash=hashed("n"))
                assert [each.name for each in await admin.admin.topology.users()] == ["admin", "new"]
                asking.cancel()
                assert (await asyncio.gather(asking, return_exceptions=True))[0] is not True


async def until_it_answers(address: str) -> None:
    while True:
        with suppress(MirrorlogError):
            async with Client(address, connect_timeout_ms=500):
                return
        await asyncio.sleep(0.01)


async def ask_for_the_keys(address: str) -> bool:
    """Whether nobody was made an administrator."""
    while True:
        with suppress(MirrorlogError):
            async with Client(address, request_timeout_ms=6_000) as nobody:
                await nobody.admin.topology.set_user("evil", password_hash=hashed("e"), tags=["administrator"])
                return True
        await asyncio.sleep(0.01)


@pytest.mark.long
async def test_a_bound_queue_whose_node_is_down_is_not_passed_over() -> None:
    """Goal: a message is not confirmed without a queue that it leads to, through an exchange and by its name. Method: a
    queue with one copy, its node stopped: who begins is refused at once, naming the queue, and nothing is stored in
    the other queue; who was at work waits, and is confirmed by all when the node is back."""
    logs = [{"mirrors": ["n3"]}, {"name": "two", "master": "n2", "flush": "disk", "mirrors": []}]
    with fast_cluster(3, min_in_sync=1, logs=logs) as cluster:
        async with Client(*cluster.servers) as client:
            await client.admin.declare("one")
            await client.admin.declare("two", {"flush": "disk"})
            topology = client.admin.topology
            for exchange, queues in (("both", ("one", "two")), ("only", ("two",))):
                await topology.declare_exchange(exchange, "fanout")
                for queue in queues:
                    await topology.bind(exchange, queue)
        async with (
            Client(cluster.servers[0], cluster.servers[2]) as client,
            client.publisher("both", delivery_timeout_ms=40_000) as at_work,
            asyncio.timeout(60),
        ):
            await at_work.publish("two", b"before")
            await asyncio.to_thread(cluster.nodes["n2"].stop)
            for exchange in ("both", "only", ""):
                async with client.publisher(exchange, delivery_timeout_ms=700) as publisher:
                    with pytest.raises(LogUnavailable, match="'two'") as told:
                        await publisher.publish("two", b"refused")
                    assert told.value.details["queue"] == "two"
            waiting = asyncio.ensure_future(at_work.publish("two", b"v"))
            await asyncio.to_thread(cluster.nodes["n2"].start)
            assert set((await waiting).receipts) == {"one", "two"}
            for queue in ("one", "two"):
                assert await values(client, queue) == [b"before", b"v"]


@pytest.mark.long
async def test_what_was_declared_is_there_after_all_nodes_have_restarted() -> None:
    """Goal: exchanges, bindings and virtual hosts are the cluster's and lie on its disks. Method: declare, stop all,
    start all, look."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            topology = client.admin.topology
            await client.admin.declare("q")
            await topology.add_virtual_host("shop")
            await topology.declare_exchange("e", "headers", alternate="amq.fanout")
            await topology.declare_exchange("late", "x-delayed-message", arguments={"x-delayed-type": "direct"})
            await topology.bind("late", "q", "k")
            await topology.bind("e", "q", "k", {"x-match": "any", "n": 7, "raw": b"\x00", "flag": True})
            before = await topology.routing()
        for node in cluster.nodes.values():
            node.kill()
        # Together: each waits until it serves, which needs a majority.
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in cluster.nodes.values()))
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            after = await client.admin.topology.routing()
            async with client.publisher("late") as publisher:
                assert set((await publisher.publish("k", b"later", delay_ms=1)).receipts) == {"q"}
            names = [each.name for each in await client.admin.topology.virtual_hosts()]
    assert (after.version, after.exchanges, after.bindings) == (before.version, before.exchanges, before.bindings)
    assert names == ["/", "shop"]
