"""Exchanges through what happens to nodes: hangs, kills, restarts of all."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from mirrorlog.client import Client
from mirrorlog.client.publisher import Publication
from mirrorlog.errors import MirrorlogError
from tests.process.clusters import fast_cluster


async def values(client: Client, queue: str) -> list[bytes]:
    async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [bytes(record.value or b"") async for record in consumer]


async def test_a_bind_does_not_wait_for_a_node_that_hangs() -> None:
    """Goal: an answer in time, and it counts on all others. Method: a node is paused; a bind is answered within the two
    seconds and the time that it takes to decide; a publish behind it meets it."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        hangs = cluster.nodes["n3"]
        async with Client(*cluster.servers[:2]) as client:
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
    assert took < 8, "two seconds, and an election if it was the coordinator that hangs"


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


async def test_what_was_declared_is_there_after_all_nodes_have_restarted() -> None:
    """Goal: exchanges, bindings, virtual hosts and users are the cluster's and lie on its disks. Method: declare, stop
    all, start all, look."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            topology = client.admin.topology
            await client.admin.declare("q")
            await topology.add_virtual_host("shop")
            await topology.declare_exchange("e", "headers", alternate="amq.fanout")
            await topology.bind("e", "q", "k", {"x-match": "any", "n": 7, "raw": b"\x00", "flag": True})
            before = await topology.routing()
        for node in cluster.nodes.values():
            node.kill()
        # Together: each waits until it serves, which needs a majority.
        await asyncio.gather(*(asyncio.to_thread(node.start) for node in cluster.nodes.values()))
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            after = await client.admin.topology.routing()
            names = [each.name for each in await client.admin.topology.virtual_hosts()]
    assert (after.version, after.exchanges, after.bindings) == (before.version, before.exchanges, before.bindings)
    assert names == ["/", "shop"]
