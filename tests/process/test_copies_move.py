"""Copies move while they are used: a node that joins a loaded cluster takes its share, one that leaves is emptied."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.client import Client, Producer
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import MirrorlogError
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.status import ClusterStatus, PlacedLog
from tests.process.growing import Growing, join
from tests.process.test_operators import Tool

pytestmark = pytest.mark.process

QUEUES = [f"q{number}" for number in range(6)]
FIRST_RECORDS = 400
VALUE_BYTES = 2_000
PAUSE_S = 0.005
LIMIT = 4 * 1024 * 1024
"""Bytes a second, of what moves."""


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[Growing]:
    with Growing(tmp_path) as made:
        yield made


@pytest.fixture
def mqtool(capsys: pytest.CaptureFixture[str]) -> Tool:
    return Tool(capsys)


class Publishing:
    """A producer for each queue, one record after the other. `confirmed`: by queue, how many; the value of a record
    says which one it is."""

    def __init__(self, servers: list[str]) -> None:
        self.confirmed: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        self.failures: list[MirrorlogError] = []
        self._servers = servers
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        async with Client(*self._servers) as client:
            await asyncio.gather(*(self._publish(client, queue) for queue in QUEUES))

    def stop(self) -> None:
        self._stopping.set()

    async def _publish(self, client: Client, queue: str) -> None:
        async with client.producer(queue, confirm="all") as producer:
            await asyncio.gather(*(self._one(producer, queue) for _ in range(FIRST_RECORDS)))
            while not self._stopping.is_set():
                await self._one(producer, queue)
                await asyncio.sleep(PAUSE_S)

    async def _one(self, producer: Producer, queue: str) -> None:
        number, self.sent[queue] = self.sent[queue], self.sent[queue] + 1
        try:
            await producer.send(f"{number} ".encode().ljust(VALUE_BYTES, b"."))
        except MirrorlogError as error:
            self.failures.append(error)
        else:
            self.confirmed[queue] += 1


def view_of(growing: Growing) -> ClusterStatus:
    """As the node knows it that has seen most."""
    views = [status.cluster for status in growing.statuses().values() if status.cluster is not None]
    return max(views, key=lambda view: view.version)


def of_queues(view: ClusterStatus) -> list[PlacedLog]:
    """Logs with two copies: those of the queues."""
    return [log for log in view.logs if log.copies == 2]


async def until(condition: Callable[[], bool], growing: Growing, what: str) -> None:
    """What a node says is looked at again and again; one that does not answer yet says nothing."""

    def met() -> bool | None:
        return condition() or None

    await asyncio.to_thread(wait_for, met, timeout=60.0, what=lambda: f"{what}; {view_of(growing)}; {growing.said()}")


def numbers(servers: list[str], queue: str) -> list[int]:
    """Of all records of a queue, as they are read."""
    with SyncClient(*servers) as client, client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [int(bytes(delivery.value).split()[0]) for delivery in consumer]


@pytest.mark.long
async def test_a_fourth_node_takes_its_share_and_another_is_emptied_and_forgotten(
    growing: Growing, mqtool: Tool
) -> None:
    """Goal: a cluster grows and shrinks under load, no confirmed record is lost, doubled or out of order. Method: three
    nodes with six queues of two copies, on several logs, published to all the time; n4 joins, and holds and masters as
    much as others, of queues too; n1 is drained for good, holds nothing, is stopped and forgotten; all is read."""
    nodes = [growing.node() for _ in range(3)]
    for node in nodes:
        node.launch(*join(*nodes))
    await asyncio.to_thread(growing.wait_whole, ["n1", "n2", "n3"], 3)
    servers = [node.client for node in nodes]
    async with Client(*servers) as client:
        for queue in QUEUES:
            await client.admin.declare(queue, {"copies": 2})
    publishing = Publishing(servers)
    running = asyncio.ensure_future(publishing.run())
    await until(lambda: min(publishing.confirmed[queue] for queue in QUEUES) > FIRST_RECORDS, growing, "a load")

    fourth = growing.node()
    fourth.launch(*join(*nodes))
    servers.append(fourth.client)

    def has_its_share() -> bool:
        view = view_of(growing)
        masters = {log.log_id: log.master for log in view.logs}
        with SyncClient(*servers) as client:
            mastered = Counter(masters[queue.log_id] for queue in client.admin.metadata().queues)
        held = Counter(node for log in of_queues(view) for node in log.replicas)
        homes = Counter(log.replicas[0] for log in of_queues(view))
        there = ("n1", "n2", "n3", "n4")
        even = all(
            max(of[node] for node in there) - min(of[node] for node in there) <= 1 for of in (held, homes, mastered)
        )
        still = not any(log.target or set(log.in_sync) != set(log.replicas) for log in view.logs)
        return len(view.nodes) == 4 and even and still and bool(homes["n4"]) and held["n4"] > 1 and bool(mastered["n4"])

    await until(has_its_share, growing, "n4 has its share")

    text = await asyncio.to_thread(mqtool.ok, "drain", "n1", "--empty", "--wait", "--timeout", "60", servers=servers)
    assert text == "node n1 holds nothing any more; mqtool forget-node n1 takes it out\n"
    view = view_of(growing)
    assert not any("n1" in log.replicas for log in view.logs if not log.transient)
    assert all(len(log.replicas) == 2 for log in of_queues(view))
    assert any("n4" in log.replicas for log in of_queues(view))
    assert await asyncio.to_thread(nodes[0].stop) == 0
    servers.remove(nodes[0].client)
    await asyncio.to_thread(mqtool.ok, "forget-node", "n1", servers=servers)
    before = publishing.confirmed.copy()
    await until(lambda: all(publishing.confirmed[each] > before[each] + 20 for each in QUEUES), growing, "a load")
    publishing.stop()
    await running
    assert not publishing.failures
    for queue in QUEUES:
        assert await asyncio.to_thread(numbers, servers, queue) == list(range(publishing.sent[queue]))
    kinds = Counter(event["kind"] for event in await asyncio.to_thread(mqtool.json, "events", servers=servers))
    assert kinds["replicas_wished"] >= 2
    assert kinds["replica_retired"] >= 2
    assert kinds["node_leaving"] == kinds["node_left"] == 1


async def test_what_moves_is_shown_and_stands_still_while_it_is_paused(growing: Growing, mqtool: Tool) -> None:
    """Goal: operators see what is going to happen before it does, and decide when. Method: moving is paused, a third
    node joins two with a queue of one copy each and more, the plan names what goes there; then it goes on."""
    nodes = [growing.node() for _ in range(2)]
    for node in nodes:
        node.launch(*join(*nodes))
    await asyncio.to_thread(growing.wait_whole, ["n1", "n2"], 2)
    servers = [node.client for node in nodes]

    async def ask(*arguments: str) -> str:
        return await asyncio.to_thread(mqtool.ok, *arguments, servers=servers)

    def to_third(found: dict[str, Any]) -> list[str]:
        assert found["paused"]
        return [move["name"] for move in found["copies"] if "n3" in move["target"]]

    def copies_on_third() -> int:
        return sum("n3" in log.replicas for log in view_of(growing).logs if log.copies == 1)

    async with Client(*servers) as client:
        for number, rule in enumerate(({}, {"min_in_sync": 1}, {"flush": "disk"}, {"flush": "disk", "min_in_sync": 1})):
            await client.admin.declare(f"q{number}", {"copies": 1, **rule})
    assert await ask("rebalance", "--pause") == "nothing moves any more\n"
    assert "moving is paused" in await ask("nodes")
    third = growing.node()
    third.launch(*join(*nodes))
    await asyncio.to_thread(
        wait_for,
        lambda: to_third(mqtool.json("rebalance", "--dry-run", servers=servers)) or None,
        timeout=30.0,
        what=lambda: f"a log shall go to n3; {view_of(growing)}",
    )
    assert copies_on_third() == 0
    assert await ask("rebalance", "--resume") == "moving goes on\n"
    await until(lambda: copies_on_third() >= 1, growing, "n3 has its share")
    await until(lambda: not any(log.target for log in view_of(growing).logs), growing, "all is where it should be")
    assert "every copy is where it should be" in await ask("rebalance", "--wait")


@pytest.mark.long
async def test_a_move_takes_no_more_than_its_limit_and_says_so(growing: Growing, mqtool: Tool) -> None:
    """Goal: a copy that is made for a move is filled as fast as is allowed, and its master says how fast that is.
    Method: two nodes of one copy each of a log of 16 MiB, which may send 4 MiB/s for moves; the one that holds it is
    emptied, while the status of the mirror and the plan are looked at."""
    nodes = [growing.node() for _ in range(2)]
    for node in nodes:
        growing.configure(node, cluster__move_bytes_per_s=LIMIT)
        node.launch(*join(*nodes))
    await asyncio.to_thread(growing.wait_whole, ["n1", "n2"], 2)
    servers = [node.client for node in nodes]
    await asyncio.to_thread(mqtool.ok, "rebalance", "--pause", servers=servers)
    async with Client(*servers) as client:
        await client.admin.declare("q", {"copies": 1})
        async with client.producer("q", confirm="all") as producer:
            await asyncio.gather(*(producer.send(bytes(64 * 1024)) for _ in range(256)))
    (log,) = (log for log in view_of(growing).logs if log.copies == 1)
    (source,) = log.replicas
    await asyncio.to_thread(mqtool.ok, "drain", source, "--empty", servers=servers)
    await asyncio.to_thread(mqtool.ok, "rebalance", "--resume", servers=servers)
    began = time.monotonic()
    told: set[int] = set()
    left: list[float] = []

    def moved() -> bool:
        found = mqtool.json("rebalance", "--dry-run", servers=servers)
        left.extend(size for size, _ in found["left_bytes"].values())
        for status in growing.statuses().values():
            for each in status.logs:
                told.update(mirror.move_bytes_per_s for mirror in each.mirrors if each.log_id == log.log_id)
        now = next(each for each in view_of(growing).logs if each.log_id == log.log_id)
        return source not in now.replicas

    await until(moved, growing, "the log has moved")
    seconds = time.monotonic() - began
    assert LIMIT in told
    assert max(left) > LIMIT
    assert seconds >= 0.8 * 256 * 64 * 1024 / LIMIT, seconds
    assert [len(log.replicas) for log in view_of(growing).logs if log.copies == 1] == [1]
    async with Client(*servers) as client:
        events = (await client.admin.events(node_id=source)).events
    fills = [event for event in events if event.kind.startswith("mirror_sync_") and event.log == log.name]
    assert fills[0].kind == "mirror_sync_begun"
    assert sum(event.kind == "mirror_sync_progressed" for event in fills) >= 2
    assert [(event.kind, event.details["in_sync"]) for event in fills if "in_sync" in event.details] == [
        ("mirror_sync_ended", True)
    ], "the copy's becoming whole made its node the master"
