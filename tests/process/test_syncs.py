"""What queues have left in former logs is copied to their own, while they are used, on real nodes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from mirrorlog.testing import Cluster
from mirrorlog.tools.main import app
from mirrorlog.wire.messages.queues import QueueInfo, QueueSync
from tests.process.clusters import MIB, eventually, fast_cluster, log_lines
from tests.process.test_moves import KEPT, Traffic, moved, told, values

pytestmark = pytest.mark.process

BEFORE = 300
SLOW = {"cluster.move_bytes_per_s": 256 * 1024}


async def until(
    client: Client, queue: str, reached: Callable[[QueueSync], bool], *, timeout_s: float = 30
) -> QueueSync:
    """Once the queue's master tells that."""
    sync = None
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    sync = await client.admin.queue_sync(queue)
                    if reached(sync):
                        return sync
                except MirrorlogError:
                    pass  # nobody can say at the moment
                await asyncio.sleep(0.02)
    except TimeoutError:
        pytest.fail(f"not reached: {sync}")


async def synced(client: Client, queue: str) -> QueueInfo:
    """Once nothing of the queue is elsewhere, and all know it."""
    await until(client, queue, lambda sync: not sync.spans and not sync.wished)
    async with asyncio.timeout(20):
        while True:
            info = await told(client, queue)
            if not info.spans:
                return info
            await asyncio.sleep(0.02)


async def fill(client: Client, queue: str, first: int, last: int, *, size: int = 0) -> None:
    """Numbers, as text, with so many bytes more."""
    async with client.producer(queue, confirm="all") as producer:
        for number in range(first, last):
            await producer.send(str(number).encode() + b" " * size)


def numbers(records: list[bytes]) -> list[int]:
    return [int(record) for record in records]


async def move(client: Client, queue: str, place: dict[str, Any]) -> QueueInfo:
    before = await told(client, queue)
    await client.admin.alter(queue, place)
    return await moved(client, queue, before.log_id)


async def test_a_synced_queue_needs_its_former_logs_no_more() -> None:
    """Goal: all records are in the queue's own log, in order, and the former logs free them. Method: a queue with
    records in three logs of three nodes is synced while nobody uses it; it is read whole with the nodes of the former
    logs stopped, and neither of these keeps anything of it."""
    async with fast_cluster(3) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            for node in ("n1", "n2", "n3"):
                await client.admin.declare(f"beside {node}", {"nodes": [node]})
            await client.admin.declare("orders", {"nodes": ["n1"]})
            await fill(client, "orders", 0, BEFORE)
            await move(client, "orders", {"nodes": ["n2"]})
            await fill(client, "orders", BEFORE, 2 * BEFORE)
            await move(client, "orders", {"nodes": ["n3"]})
            await fill(client, "orders", 2 * BEFORE, 3 * BEFORE)
            left = await client.admin.queue_sync("orders")
            assert [(span.first, span.next, span.records) for span in left.spans] == [
                (0, BEFORE, BEFORE),
                (BEFORE, 2 * BEFORE, BEFORE),
            ]
            assert all(span.size > 0 for span in left.spans)
            assert (left.wished, left.done_records) == (False, 0)
            begun = await client.admin.sync_queue("orders")
            assert begun.wished or not begun.spans
            after = await synced(client, "orders")
            assert (after.spans, after.begin, after.next) == ([], 0, 3 * BEFORE)
            for node in ("n1", "n2"):
                cluster.nodes[node].kill()
        async with Client(cluster.nodes["n3"].client) as client:
            assert numbers(await values(client, "orders")) == list(range(3 * BEFORE))


def former_bytes(sync: QueueSync) -> int:
    return sum(span.size for span in sync.spans)


async def test_a_sync_shows_how_far_it_is_and_is_cancelled_and_goes_on() -> None:
    """Goal: an operator sees what is left and how long it takes, and is master of it. Method: a queue with some MB in a
    former log is synced slowly; it is cancelled in the middle, and nothing more is copied; it goes on from there. In
    between, and at the end, a reader finds all records in order."""
    async with fast_cluster(2, settings=SLOW) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            for node in ("n1", "n2"):
                await client.admin.declare(f"beside {node}", {"nodes": [node]})
            await client.admin.declare("orders", {"nodes": ["n1"]})
            await fill(client, "orders", 0, 60, size=20_000)
            await move(client, "orders", {"nodes": ["n2"]})
            await fill(client, "orders", 60, 70)
            left = former_bytes(await client.admin.queue_sync("orders"))
            assert left > 60 * 20_000
            await client.admin.sync_queue("orders")
            half = await until(client, "orders", lambda sync: sync.done_bytes > left // 4 and sync.bytes_per_s > 0)
            assert half.wished
            assert 0 < half.seconds_left < 60
            assert not half.waits
            assert 50 <= half.done_records + half.spans[0].records <= 60, "but for a piece that is being confirmed"
            cancelled = await client.admin.cancel_sync_queue("orders")
            assert not cancelled.wished
            stopped = await until(client, "orders", lambda sync: sync.bytes_per_s == 0, timeout_s=30)
            assert stopped.spans
            assert numbers(await values(client, "orders")) == list(range(70))
            assert (await client.admin.queue_sync("orders")).done_bytes == stopped.done_bytes
            await client.admin.pause_moving(True)
            await client.admin.sync_queue("orders")
            await until(client, "orders", lambda sync: "moving is paused" in sync.waits)
            await client.admin.pause_moving(False)
            after = await synced(client, "orders")
            assert (after.spans, after.begin) == ([], 0)
            done = await client.admin.queue_sync("orders")
            assert done.done_records == 60
            assert numbers(await values(client, "orders")) == list(range(70))
            events = (await client.admin.events(node_id="n2")).events
            told_ = [event for event in events if event.kind.startswith("sync_")]
            kinds = [event.kind for event in told_ if event.kind != "sync_progressed"]
            assert kinds == ["sync_begun", "sync_cancelled", "sync_begun", "sync_ended"]
            percents = [event.details["percent"] for event in told_ if event.kind == "sync_progressed"]
            assert percents == sorted(percents)
            assert percents[-1] == 100
            assert len(percents) >= 2
            assert len(log_lines(cluster.nodes["n2"], "sync_progressed")) == len(percents)


async def test_a_queue_is_synced_while_it_is_used() -> None:
    """Goal: sync blocks nobody. Method: somebody publishes and somebody acknowledges all the time, while the queue
    moves twice with a sync behind each move. Every record is there once, in order, and was settled once."""
    async with fast_cluster(3, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("orders", KEPT)
            await client.admin.declare("beside")
            traffic = Traffic(client, "orders")
            async with traffic.running():
                await traffic.reached(BEFORE)
                for place in ({"copies": 2}, {"copies": None, "flush": "disk"}):
                    await move(client, "orders", place)
                    await traffic.reached(BEFORE)
                    await client.admin.sync_queue("orders")
                    await synced(client, "orders")
                    await traffic.reached(BEFORE)
            assert await values(client, "orders") == [str(number).encode() for number in range(traffic.sent)]
            assert set(traffic.settled.values()) == {1}
            assert len(traffic.settled) == traffic.sent


async def wish(client: Client, queue: str) -> None:
    """As soon as the cluster decides again."""
    async with asyncio.timeout(20):
        while True:
            try:
                await client.admin.sync_queue(queue)
            except MirrorlogError:
                await asyncio.sleep(0.05)
            else:
                return


async def begun_behind(client: Client, queue: str, queue_offset: int) -> None:
    """Until the queue begins there or behind."""
    async with asyncio.timeout(30):
        while True:
            if (await told(client, queue)).begin >= queue_offset:
                return
            await asyncio.sleep(0.05)


async def another_master(client: Client, queue: str, former: str) -> None:
    """Until somebody else masters the queue."""
    async with asyncio.timeout(20):
        while True:
            try:
                if (await told(client, queue)).master not in ("", former):
                    return
            except (MirrorlogError, IndexError):
                pass
            await asyncio.sleep(0.02)


@pytest.mark.long
@pytest.mark.story("000:33")
async def test_what_a_policy_has_copied_is_copied_by_whoever_masters_the_log() -> None:
    """Goal: an automatic sync hangs on no one moment. Method: the master of a queue's log is killed right after the
    queue has moved by its policy; and another one right after a policy became automatic that was manual. Both queues
    are whole in the end, by nobody's word."""
    all_on = {"ha-mode": "all", "flush": "disk"}
    async with fast_cluster(3, min_in_sync=2, settings={"cluster.node_timeout_ms": 1_000}) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            policies = client.admin.topology
            for policy, said in (("moves", all_on), ("turns", {**all_on, "ha-sync-mode": "manual"})):
                await client.admin.declare(f"beside {policy}")
                before = await client.admin.declare(policy)
                await fill(client, policy, 0, 50)
                await policies.set_policy(policy, f"^{policy}$", said)
                master = (await moved(client, policy, before.log_id)).master
                if policy == "turns":
                    assert (await until(client, policy, lambda sync: bool(sync.spans))).wished is False
                    await policies.set_policy(policy, f"^{policy}$", all_on)
                cluster.nodes[master].kill()
                await another_master(client, policy, master)
                await asyncio.to_thread(cluster.nodes[master].start)
                await synced(client, policy)
                assert numbers(await values(client, policy)) == list(range(50))


@pytest.mark.long
async def test_what_somebody_cancels_stays_cancelled_whatever_policies_say() -> None:
    """Goal: an operator has the last word. Method: a slow automatic sync is cancelled, another node masters the log,
    and the policy is set once more; another queue is copied by its policy meanwhile, and this one is not, and says why.
    Then somebody asks for it."""
    settings = {**SLOW, "cluster.node_timeout_ms": 1_000}
    disk, other = {"ha-mode": "all", "flush": "disk"}, {"ha-mode": "all", "flush": "disk", "min-in-sync": 1}
    async with fast_cluster(3, min_in_sync=2, settings=settings) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            policies = client.admin.topology
            for queue in ("beside", "orders", "small"):
                await client.admin.declare(queue)
            await fill(client, "orders", 0, 60, size=20_000)
            await fill(client, "small", 0, 5)
            await policies.set_policy("orders", "^orders$", disk)
            await until(client, "orders", lambda sync: sync.wished and bool(sync.spans))
            assert not (await client.admin.cancel_sync_queue("orders")).wished
            master = (await told(client, "orders")).master
            cluster.nodes[master].kill()
            await another_master(client, "orders", master)
            await asyncio.to_thread(cluster.nodes[master].start)
            await policies.set_policy("orders", "^orders$", disk, priority=1)
            before = await told(client, "small")
            await policies.set_policy("small", "^small$", other)
            await moved(client, "small", before.log_id)
            await synced(client, "small")
            left = await client.admin.queue_sync("orders")
            assert (left.wished, bool(left.spans)) == (False, True)
            assert left.waits.startswith("it was cancelled")
            await client.admin.sync_queue("orders")
            await synced(client, "orders")
            assert numbers(await values(client, "orders")) == list(range(60))


@pytest.mark.long
async def test_another_master_goes_on_with_a_sync() -> None:
    """Goal: what was copied is in the log, and nothing else is remembered. Method: kill -9 of the new log's master in
    the middle of a slow sync, and of its successor; both come back. All records are in the new log, in order, once."""
    settings = {**SLOW, "cluster.node_timeout_ms": 1_000}
    async with fast_cluster(3, min_in_sync=2, settings=settings) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("beside")
            await client.admin.declare("orders")
            await fill(client, "orders", 0, 80, size=20_000)
            await move(client, "orders", {"flush": "disk"})
            await fill(client, "orders", 80, 90)
            await client.admin.sync_queue("orders")
            for _ in range(2):
                await until(client, "orders", lambda sync: sync.done_bytes > 0)
                master = (await told(client, "orders")).master
                cluster.nodes[master].kill()
                await another_master(client, "orders", master)
                await asyncio.to_thread(cluster.nodes[master].start)
            after = await synced(client, "orders")
            assert after.spans == []
            assert numbers(await values(client, "orders")) == list(range(90))
            await fill(client, "orders", 90, 100)
            assert numbers(await values(client, "orders")) == list(range(100))


@pytest.mark.long
async def test_a_sync_waits_for_the_master_of_a_former_log() -> None:
    """Goal: a reason is told, and it goes on by itself. Method: the only node with the former log is killed, and
    started again; the queue takes and gives records all the while."""
    async with fast_cluster(3, settings={"cluster.node_timeout_ms": 1_000}) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(cluster.nodes["n2"].client, cluster.nodes["n1"].client) as client:
            for node in ("n1", "n2"):
                await client.admin.declare(f"beside {node}", {"nodes": [node]})
            await client.admin.declare("orders", {"nodes": ["n1"]})
            await fill(client, "orders", 0, 20)
            await move(client, "orders", {"nodes": ["n2"]})
            cluster.nodes["n1"].kill()
            await wish(client, "orders")
            waits = await until(client, "orders", lambda sync: "no connection to node n1" in sync.waits)
            assert (waits.spans[0].size, waits.spans[0].records) == (-1, 20)
            assert "no connection to node n1" in waits.spans[0].unknown
            await fill(client, "orders", 20, 30)
            await asyncio.to_thread(cluster.nodes["n1"].start)
            await synced(client, "orders")
            assert numbers(await values(client, "orders")) == list(range(30))


@pytest.mark.long
async def test_a_synced_queue_moves_back_and_forth() -> None:
    """Goal: a log that was freed of a queue takes it again with all that it has elsewhere. Method: a queue goes from
    one log to another and back, synced or not at each step, with records in between; it is read whole after each."""
    place: list[dict[str, Any]] = [{"flush": "memory"}, {"flush": "disk"}]
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            for number, where in enumerate(place):
                await client.admin.declare(f"beside {number}", where)
            await client.admin.declare("orders", place[0])
            for step, syncs in enumerate((True, False, True, False, True, True)):
                await fill(client, "orders", step * 20, step * 20 + 20)
                await move(client, "orders", place[(step + 1) % 2])
                if syncs:
                    await client.admin.sync_queue("orders")
                    assert (await synced(client, "orders")).spans == []
                info = await told(client, "orders")
                assert (info.begin, info.next) == (0, step * 20 + 20)
                assert numbers(await values(client, "orders")) == list(range(step * 20 + 20)), step


@pytest.mark.long
async def test_a_sync_of_what_is_only_on_disk_survives_a_restart() -> None:
    """Goal: copies are found in tables as everything is, also where a queue's places in the log do not rise with its
    offsets. Method: some MB in logs that keep nothing in memory; a sync; more records; all nodes stop and start. All is
    read in order, by time too; then retention of the queue lets its oldest records go, wherever they stand."""
    settings = {"log.kept_mapped_bytes": 0, "limits.max_batch_bytes": 256 * 1024, "limits.max_record_bytes": 128 * 1024}
    async with fast_cluster(2, settings=settings, segment_bytes=MIB) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("beside")
            await client.admin.declare("orders", {"retention_bytes": 6 * MIB})
            await fill(client, "orders", 0, 150, size=20_000)
            await move(client, "orders", {"flush": "disk"})
            await fill(client, "orders", 150, 200, size=20_000)
            middle = time.time_ns() // 1000
            await client.admin.sync_queue("orders")
            await synced(client, "orders")
            await fill(client, "orders", 200, 250, size=20_000)
            assert numbers(await values(client, "orders")) == list(range(250))
            for node in cluster.nodes.values():
                await asyncio.to_thread(node.stop)
            await asyncio.gather(*(asyncio.to_thread(node.start) for node in cluster.nodes.values()))
            assert numbers(await values(client, "orders")) == list(range(250))
            assert await client.admin.find_offset("orders", middle) == 200
            await fill(client, "orders", 250, 450, size=20_000)

            await begun_behind(client, "orders", 50)
            left = numbers(await values(client, "orders"))
            assert left == list(range(left[0], 450))
            assert left[0] >= 50


def mqtool(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """The exit code and stdout."""
    result = CliRunner().invoke(app, ["--servers", ",".join(cluster.servers), *arguments])
    return result.exit_code, result.stdout


async def test_an_operator_sees_what_former_logs_keep_and_has_it_copied() -> None:
    """Goal: nothing is kept without a name, and one command ends it. Method: a queue is moved with a record left
    behind; `queues` and `doctor` name it; `sync-queue --watch` ends when it is copied, and both have nothing to say.
    Then the queue is moved with `--sync`, and nothing stays behind."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            for number, flush in enumerate(("memory", "disk")):
                await client.admin.declare(f"beside {number}", {"flush": flush})
            first = await client.admin.declare("orders")
            await fill(client, "orders", 0, 20)
            await move(client, "orders", {"flush": "disk"})

            async def run(*arguments: str) -> tuple[int, str]:
                return await asyncio.to_thread(mqtool, cluster, *arguments)

            assert "orders" in (await run("queues"))[1].partition("FORMER LOGS")[2]
            (row,) = json.loads((await run("queues", "orders", "--json"))[1])
            assert (row["former"][0]["log_id"], row["former"][0]["records"]) == (first.log_id, 20)
            left = (await run("offsets"))[1].partition("RECORDS in former logs")[2].splitlines()[2].split()
            assert left[0::2][:2] == ["orders", "0"]
            assert left[3] == "20"
            code, said = await run("doctor")
            assert code == 0
            assert "records-left" in said
            code, said = await run("sync-queue", "orders", "--watch")
            assert (code, said.splitlines()[-1]) == (
                0,
                "orders: all of it is in its own log; nothing is left to copy",
            )
            assert "FORMER LOGS" not in (await run("queues"))[1]
            async with asyncio.timeout(30):  # the former log hears of it a moment later
                while "former logs" in (await run("offsets"))[1]:
                    pass
            assert "records-left" not in (await run("doctor"))[1]
            before = await told(client, "orders")
            code, said = await run("alter-queue", "orders", "--arg", 'flush="memory"', "--sync")
            assert (code, "moves" in said) == (0, True)
            await moved(client, "orders", before.log_id)
            assert (await synced(client, "orders")).spans == []
            assert numbers(await values(client, "orders")) == list(range(20))
            code, said = await run("sync-queue", "orders", "--cancel", "--watch")
            assert code != 0


@pytest.mark.long
async def test_a_log_that_has_freed_a_queue_takes_it_with_all_that_it_has() -> None:
    """Goal: a log says of a queue whose records it has freed that the queue begins behind them; they were copied, and
    live. Method: a queue is synced away from a log until that has freed it, and comes back with nothing new; it is
    read whole, before and behind the sync."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("beside", {"flush": "memory"})
            await client.admin.declare("beside it", {"flush": "disk"})
            await client.admin.declare("orders", {"flush": "memory"})
            await fill(client, "orders", 0, 20)
            await move(client, "orders", {"flush": "disk"})
            await client.admin.sync_queue("orders")
            await synced(client, "orders")
            await asyncio.to_thread(
                eventually, lambda: any(log_lines(node, "span_freed") for node in cluster.nodes.values()), "it is freed"
            )
            await move(client, "orders", {"flush": "memory"})
            assert numbers(await values(client, "orders")) == list(range(20))
            await client.admin.sync_queue("orders")
            assert (await synced(client, "orders")).begin == 0
            assert numbers(await values(client, "orders")) == list(range(20))
