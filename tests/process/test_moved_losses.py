"""A log that a queue has left, or is leaving, loses its newest bytes, on real nodes: nothing else of the queue is lost
with them, and who reads, copies or publishes goes on.

Method: the queue's log has one copy, on n1, which loses its power and with it all from a chosen place on, the word that
the queue has left among it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import ConnectionLost, MirrorlogError, PositionLost, RequestTimeout
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.queues import MoveOfQueue, Position, QueueInfo
from tests.process.clusters import eventually, fast_cluster, log_lines
from tests.process.raw import Raw, batch_of
from tests.process.test_losses import NEVER_FLUSHED, lose_power
from tests.process.test_moves import told
from tests.process.test_syncs import fill, move, until

pytestmark = [pytest.mark.process, pytest.mark.long]

SETTINGS: Final = {"cluster.node_timeout_ms": 1_000, **NEVER_FLUSHED}
LEFT: Final = [*range(10), *range(20, 40)]
"""What the loss has left of the numbers up to 40."""


def end_of(node: Node, log_id: str) -> int:
    return next(log.end for log in node.status().logs if log.log_id == log_id)


@asynccontextmanager
async def powerless(cluster: Cluster) -> AsyncIterator[tuple[Client, Callable[[], None]]]:
    """A queue `orders` with records in the logs of n1, n3 and n2, where it is; n1 lost its power, with the numbers from
    10 on that it had; what starts it again."""
    await asyncio.to_thread(cluster.wait_in_sync)
    n1 = cluster.nodes["n1"]
    async with Client(cluster.nodes["n2"].client, cluster.nodes["n3"].client) as client:
        for node in ("n1", "n2", "n3"):  # one log each
            await client.admin.declare(f"beside {node}", {"nodes": [node]})
        await client.admin.declare("orders", {"nodes": ["n1"]})
        before = await told(client, "orders")
        await fill(client, "orders", 0, 10)
        kept = end_of(n1, before.log_id)
        await fill(client, "orders", 10, 20)
        await move(client, "orders", {"nodes": ["n3"]})
        await fill(client, "orders", 20, 30)
        await move(client, "orders", {"nodes": ["n2"]})
        await fill(client, "orders", 30, 40)
        n1.kill()
        lose_power(n1, from_offset=kept, log_id=before.log_id)
        yield client, n1.start


async def read_on(client: Client) -> list[int]:
    """All numbers, and from behind each loss on."""
    found: list[int] = []
    async with asyncio.timeout(30), client.consumer("orders", start="earliest", until="confirmed") as consumer:
        while True:
            try:
                async for record in consumer:
                    found.append(int(record.value or b""))
                return found
            except PositionLost as lost:
                await consumer.seek(lost.details["go_on_at"])


async def test_who_reads_on_behind_a_loss_in_a_former_log_misses_nothing_else() -> None:
    async with fast_cluster(3, settings=SETTINGS) as cluster, powerless(cluster) as (client, start):
        await asyncio.to_thread(start)
        assert await read_on(client) == LEFT


async def test_a_group_goes_on_behind_a_loss_in_a_former_log() -> None:
    async with fast_cluster(3, settings=SETTINGS) as cluster, powerless(cluster) as (client, start):
        await asyncio.to_thread(start)
        found: list[int] = []
        async with asyncio.timeout(60), client.subscribe("orders", prefetch=20) as subscription:
            while len(found) < len(LEFT):
                delivery = await anext(subscription)
                found.append(int(delivery.value or b""))
                await delivery.ack()
        assert found == LEFT


async def test_a_former_master_that_lost_that_a_queue_left_takes_nothing_for_it() -> None:
    """One that has not heard that the queue moved goes on publishing to the node that had it, from its start on."""
    async with fast_cluster(3, settings=SETTINGS) as cluster, powerless(cluster) as (client, start):
        n1, queue = cluster.nodes["n1"], await told(client, "orders")
        starting = asyncio.get_running_loop().run_in_executor(None, start)
        taken = await asyncio.to_thread(publish_until_moved, n1, queue)
        await starting
        assert not taken


def publish_until_moved(node: Node, queue: QueueInfo) -> list[object]:
    """What was taken, up to where the log has said again that the queue left it, and that is over."""
    taken: list[object] = []
    raw, give_up_at = None, time.monotonic() + 30
    while not log_lines(node, "queue_handed_over")[1:]:
        assert time.monotonic() < give_up_at
        try:
            raw = raw or Raw(node.client, timeout=3)
            taken.append(raw.produce(batch_of([b"late"], queue)))
        except (ConnectionLost, RequestTimeout):
            raw = None
        except MirrorlogError:
            continue
    return taken


async def test_what_is_confirmed_in_the_source_behind_its_loss_stays() -> None:
    """Goal: a move whose source lost that the queue had left does not come about over what the source has confirmed
    since. Method: all of the queue's state has come to the target, unconfirmed, for its mirror hangs; the source loses
    its power, takes the queue back and confirms records; then the mirror goes on. In a run in which the queue had come
    before the mirror hung, nothing is shown, and it is all the same there."""
    settings = {**NEVER_FLUSHED, "cluster.node_timeout_ms": 20_000}
    async with fast_cluster(3, settings=settings, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        n1, there = cluster.nodes["n1"], {"nodes": ["n2", "n3"], "min_in_sync": 2}
        async with Client(*cluster.servers) as client:
            await client.admin.declare("beside n1", {"nodes": ["n1"]})
            for queue in ("there", "there too"):  # a log for each home
                await client.admin.declare(queue, there)
            await client.admin.declare("orders", {"nodes": ["n1"]})
            before = await told(client, "orders")
            await fill(client, "orders", 0, 10)
            kept = end_of(n1, before.log_id)
            await fill(client, "orders", 10, 20)
            position = Position(log_id=before.log_id, epoch=before.epoch, queue_offset=1)
            groups = (f"group {number:040}" for number in range(900))  # their positions are in many pieces
            await asyncio.gather(*(client.admin.commit_position("orders", group, position) for group in groups))
            asked = asyncio.ensure_future(client.admin.alter("orders", there))
            moves = list[MoveOfQueue]()
            while not moves:
                moves = (await client.admin.moves()).moves
            target = cluster.nodes[moves[0].target[-2:]]  # a log's name ends with its home
            (mirror,) = {"n2", "n3"} - {target.id}
            await asyncio.to_thread(wait_left, n1)
            cluster.nodes[mirror].pause()
            await asyncio.gather(asked, return_exceptions=True)
            await asyncio.to_thread(wait_quiet, target, moves[0].target)
            n1.kill()
            lose_power(n1, from_offset=kept, log_id=before.log_id)
            await asyncio.to_thread(n1.start)
        async with Client(*(node.client for name, node in cluster.nodes.items() if name != mirror)) as client:
            taken = await asyncio.wait_for(published(client, 5), 60)
            cluster.nodes[mirror].resume()
            await move(client, "orders", there)  # the wish is lost, too
            async with asyncio.timeout(30), client.consumer("orders", start=taken[0], until="confirmed") as consumer:
                assert [record.queue_offset async for record in consumer] == taken


def wait_left(node: Node) -> None:
    """Without a pause: what follows takes some ten milliseconds."""
    give_up_at = time.monotonic() + 30
    while not log_lines(node, "queue_left"):
        assert time.monotonic() < give_up_at


def wait_quiet(node: Node, log: str) -> None:
    """Nothing more comes to a log: all of a queue's state is there."""
    ends: list[int] = []

    def quiet() -> bool:
        ends.append(next(each.end for each in node.status().logs if each.name == log))
        return len(ends) > 9 and len(set(ends[-10:])) == 1

    eventually(quiet, "nothing comes any more")
    assert ends[-1] > 50_000, "all positions"


async def published(client: Client, count: int) -> list[int]:
    """The queue offsets of so many records that were confirmed."""
    taken: list[int] = []
    while len(taken) < count:
        try:
            async with client.producer("orders", confirm="all") as producer:
                taken.append((await producer.send(b"behind the loss")).queue_offset)
        except MirrorlogError:
            continue
    return taken


async def test_a_sync_ends_when_a_former_log_has_lost_something() -> None:
    """Goal: what is left is copied, what is lost stays known as that, and nothing waits for it. Method: sync the queue
    once the former log is back; read it without that."""
    async with fast_cluster(3, settings=SETTINGS) as cluster, powerless(cluster) as (client, start):
        await asyncio.to_thread(start)
        await client.admin.sync_queue("orders")
        done = await until(client, "orders", lambda sync: not sync.spans and not sync.wished, timeout_s=40)
        assert done.done_records >= 20
        cluster.nodes["n1"].kill()
        assert await read_on(client) == LEFT
