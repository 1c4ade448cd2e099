"""Queues that move between logs while they are used, on real nodes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import BadRequest, ConnectionLost, MirrorlogError, NotMaster
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import MoveOfQueue, QueueInfo
from tests.process.clusters import fast_cluster, log_lines

pytestmark = pytest.mark.process

BEFORE = 300


async def told(client: Client, queue: str) -> QueueInfo:
    """As the node that knows most describes it."""
    return (await client.admin.metadata([queue])).queues[0]


async def moved(client: Client, queue: str, log_id: str) -> QueueInfo:
    """Once the queue is in another log than that one."""
    async with asyncio.timeout(20):
        while True:
            try:
                info = await told(client, queue)
                if info.log_id != log_id:
                    return info
            except (MirrorlogError, IndexError):
                pass  # nobody can say at the moment
            await asyncio.sleep(0.01)


KEPT = {"retention": "limits"}
"""Of a queue that is read whole in the end, though all of it was acknowledged."""


class Traffic:
    """Somebody publishes numbers to a queue, and somebody acknowledges what he is given, until it is ended."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._ends = asyncio.Event()
        self._more = asyncio.Condition()
        self.sent = 0
        self.settled: Counter[bytes] = Counter()

    async def publish(self) -> None:
        async with self._client.producer(self._queue, confirm="all") as producer:
            while not self._ends.is_set():
                await producer.send(str(self.sent).encode())
                async with self._more:
                    self.sent += 1
                    self._more.notify_all()

    async def reached(self, more: int) -> None:
        """Until so many more records are confirmed."""
        wanted = self.sent + more
        async with asyncio.timeout(30), self._more:
            await self._more.wait_for(lambda: self.sent >= wanted)

    async def consume(self) -> None:
        async with self._client.subscribe(self._queue, prefetch=20) as subscription:
            while not self._ends.is_set() or len(self.settled) < self.sent:
                async with asyncio.timeout(20):
                    delivery = await anext(subscription)
                await delivery.ack()
                self.settled[delivery.value] += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.publish())
            tasks.create_task(self.consume())
            try:
                yield
            finally:
                self._ends.set()


async def values(client: Client, queue: str) -> list[bytes]:
    """All records of the queue, as a stream from its beginning."""
    async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [record.value or b"" async for record in consumer]


async def test_a_queue_moves_while_it_is_used() -> None:
    """Goal: nothing is lost, doubled or out of order for those who use a queue while it moves. Method: a queue with
    three copies gets one with two, and then one on two named nodes on disk; all the while somebody publishes to it and
    somebody acknowledges. At the end every record is there once, in order, and was settled once."""
    async with fast_cluster(3, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            first = await client.admin.declare("orders", KEPT)
            traffic = Traffic(client, "orders")
            async with traffic.running():
                await traffic.reached(BEFORE)
                planned = await client.admin.alter("orders", {"copies": 2}, dry_run=True)
                assert (planned.moves, planned.done, planned.rule) == (True, False, "2-copies-memory")
                assert (await told(client, "orders")).log_id == first.log_id
                await client.admin.alter("orders", {"copies": 2})
                second = await moved(client, "orders", first.log_id)
                assert (second.queue_id, second.arguments["copies"]) == (first.queue_id, 2)
                await client.admin.alter("orders", {"nodes": ["n2", "n3"], "flush": "disk"})
                third = await moved(client, "orders", second.log_id)
                assert {third.master, *third.mirrors} == {"n2", "n3"}
                await traffic.reached(BEFORE)
            assert third.former_logs[:2] == [first.log_id, second.log_id]
            assert await values(client, "orders") == [str(number).encode() for number in range(traffic.sent)]
            assert set(traffic.settled.values()) == {1}
            assert len(traffic.settled) == traffic.sent


async def test_what_a_former_log_has_is_read_and_given_out_from_there() -> None:
    """Goal: records before the move stay where they are, and whoever comes for them gets them. Method: a queue is
    filled, moved with nobody there, and filled on; a subscriber and a stream reader come, and get all of it; a node
    that holds the new log alone knows nothing of the old records, and says where they are."""
    async with fast_cluster(3, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            before = await client.admin.declare("orders", {"nodes": ["n1"]})
            beside = await client.admin.declare("beside", {"nodes": ["n1"]})
            assert before.log_id == beside.log_id, "else the log itself would go to other nodes"
            async with client.producer("orders") as producer:
                for number in range(BEFORE):
                    await producer.send(str(number).encode())
                await client.admin.alter("orders", {"nodes": ["n3"]})
                after = await moved(client, "orders", before.log_id)
                assert ([span.first for span in after.spans], after.begin) == ([0, BEFORE], 0)
                for number in range(BEFORE, 2 * BEFORE):
                    await producer.send(str(number).encode())
            expected = [str(number).encode() for number in range(2 * BEFORE)]
            assert await values(client, "orders") == expected
            got = []
            async with client.subscribe("orders") as subscription:
                while len(got) < 2 * BEFORE:
                    async with asyncio.timeout(20):
                        delivery = await anext(subscription)
                    got.append(delivery.value)
                    await delivery.ack()
            assert got == expected


@pytest.mark.parametrize("other", [{"nodes": ["n1"], "flush": "disk"}, {"nodes": ["n2"]}], ids=["here", "there"])
async def test_a_queue_that_comes_back_is_read_and_found_by_time_in_all_its_spans(other: dict[str, Any]) -> None:
    """Goal: no reader passes over what is in another log, nor is sent around for it. Method: a queue goes to a log of
    the same node, or of another one, and comes back, with records in each span. A stream from its beginning, and from
    a time before each span's first record, gives all that is behind it; the master's word alone says the same. While
    nobody answers for an old span, its time is refused, and not answered with a later record."""
    one = {"nodes": ["n1"], "flush": "memory"}
    async with fast_cluster(3) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client, Client(*cluster.servers, request_timeout_ms=1_000) as impatient:
            for name, arguments in (("beside", one), ("beside the other", other), ("orders", one)):
                await client.admin.declare(name, arguments)  # else the log itself would go to other nodes
            log_ids, times = [(await told(client, "orders")).log_id], []
            for number, place in enumerate((one, other, one)):
                if number:
                    await client.admin.alter("orders", {"flush": None, **place})
                    log_ids.append((await moved(client, "orders", log_ids[-1])).log_id)
                times.append(time.time_ns() // 1000)
                async with client.producer("orders", confirm="all") as producer:
                    for value in range(number * 10, number * 10 + 10):
                        await producer.send(str(value).encode())
            assert log_ids[0] == log_ids[2] != log_ids[1]
            times.append(time.time_ns() // 1000)
            expected = [str(value).encode() for value in range(30)]
            assert await values(client, "orders") == expected
            for number, at in enumerate(times):
                assert await client.admin.find_offset("orders", at) == number * 10
                assert await client.admin.find_offset("orders", at, any_copy=False) == number * 10
            start = datetime.fromtimestamp(times[1] / 1e6, UTC)
            async with client.consumer("orders", start=start, until="confirmed") as consumer:
                assert [record.value async for record in consumer] == expected[10:]
            if other["nodes"] == ["n2"]:
                cluster.nodes["n2"].kill()
                with pytest.raises((ConnectionLost, NotMaster)):
                    await impatient.admin.find_offset("orders", times[1])
                assert await client.admin.find_offset("orders", times[0]) == 0


async def test_a_reader_that_follows_a_queue_goes_on_over_its_moves_within_a_node() -> None:
    """Goal: what a node gives from the new log before the reader has heard of it is no damage. Method: one node; a
    queue goes to another log and back while somebody publishes and somebody reads on at its end."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await client.admin.declare("beside")
        first = await client.admin.declare("orders", KEPT)
        traffic, found = Traffic(client, "orders"), list[bytes | None]()

        async def read_on() -> None:
            """Up to the last record."""
            async with client.consumer("orders", start="earliest") as consumer:
                async for record in consumer:
                    found.append(record.value)
                    if record.value == b"the last one":
                        return

        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(read_on())
            async with traffic.running():
                before = first.log_id
                for flush in ("disk", "memory"):
                    await traffic.reached(BEFORE)
                    await client.admin.alter("orders", {"flush": flush})
                    before = (await moved(client, "orders", before)).log_id
                await traffic.reached(BEFORE)
            async with client.producer("orders") as producer:
                await producer.send(b"the last one")
        assert found == [*(str(number).encode() for number in range(traffic.sent)), b"the last one"]


async def test_dead_letters_are_read_from_the_log_that_has_them() -> None:
    """Goal: a record that dies is a dead letter wherever its bytes are. Method: a queue moves to a log of another node
    with half of its records left behind; a subscriber rejects all of them, and all are in the other queue, once."""
    async with fast_cluster(3, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("dead")
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            before = await client.admin.declare("orders", {"nodes": ["n1"], **letters})
            await client.admin.declare("beside", {"nodes": ["n1"]})
            async with client.producer("orders") as producer:
                for number in range(20):
                    if number == 10:
                        await client.admin.alter("orders", {"nodes": ["n3"]})
                        await moved(client, "orders", before.log_id)
                    await producer.send(str(number).encode())
            async with client.subscribe("orders") as subscription, asyncio.timeout(20):
                for _ in range(20):
                    delivery = await anext(subscription)
                    await delivery.reject()
            async with client.consumer("dead", start="earliest") as consumer, asyncio.timeout(20):
                died = [(await anext(aiter(consumer))).value for _ in range(20)]
            assert sorted(died, key=lambda value: int(value or b"")) == [str(number).encode() for number in range(20)]


async def test_what_does_not_move_says_so() -> None:
    """An exclusive or transient queue, an argument that is none of its place, and one that is as asked already."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await client.admin.declare("passing", {"durable": False})
        with pytest.raises(BadRequest, match="goes with its node"):
            await client.admin.alter("passing", {"copies": 1})
        await client.admin.declare("stays", {"copies": 1})
        with pytest.raises(BadRequest, match="'x-max-length' of a queue cannot be changed"):
            await client.admin.alter("stays", {"x-max-length": 3})
        assert not (await client.admin.alter("stays", {"copies": 1})).moves


async def test_queues_that_are_declared_into_a_group_that_moves_come_to_it() -> None:
    """Goal: a log group is in one log, whenever its queues are declared, and whoever declares one has it, and waits a
    moment at most. Method: the group moves while a queue after the other is declared into it, by two clients."""
    async with fast_cluster(3, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client, Client(*reversed(cluster.servers)) as other:
            group = {"x-log-group": "g"}
            before = await client.admin.declare("first", group)
            declared = ["first"]

            async def declare(by: Client, name: str) -> None:
                for number in range(30):
                    await by.admin.declare(f"{name}{number}", group)
                    declared.append(f"{name}{number}")

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(declare(client, "a"))
                tasks.create_task(declare(other, "b"))
                await client.admin.alter("first", {"flush": "disk"})
            await moved(client, "first", before.log_id)
            logs = {(await moved(client, name, before.log_id)).log_id for name in declared}
            assert len(logs) == 1
            assert len(declared) == 61


async def test_a_move_that_waits_is_shown_and_cancelled() -> None:
    """Goal: whoever moves a queue to a node that is not there sees why it does not get on, whichever node is asked, and
    can have it stay. Method: the node is killed before; the row is the same by each of the others; the queue is used
    all the while, and when the node is back it stays where it is."""
    async with fast_cluster(3, settings={"cluster.node_timeout_ms": 1_000}) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            before = await client.admin.declare("orders", {"nodes": ["n1"]})
            await client.admin.declare("beside", {"nodes": ["n1"]})
            cluster.nodes["n3"].kill()
            await client.admin.alter("orders", {"nodes": ["n3"]})
            async with client.producer("orders") as producer:
                await producer.send(b"while it waits")
            for server in cluster.servers[:2]:
                async with Client(server) as other:
                    (row,) = await told_moves(other, lambda rows: any(each.reason for each in rows))
                    assert (row.queue, row.source, row.stage, row.records) == ("orders", "on-n1-memory-n1", "waits", 1)
                    assert row.size_bytes > 0
                    assert row.why == "asks for nodes n3, its log has n1"
            stays = await client.admin.cancel_move("orders")
            assert (stays.cancelled, stays.arguments["nodes"]) == (True, ["n1"])
            await asyncio.to_thread(cluster.nodes["n3"].start)
            await asyncio.to_thread(cluster.wait_in_sync)
            info = await told(client, "orders")
            assert (info.log_id, info.arguments["nodes"]) == (before.log_id, ["n1"])
            assert (await client.admin.moves()).moves == []


async def told_moves(client: Client, enough: Callable[[list[MoveOfQueue]], bool]) -> list[MoveOfQueue]:
    """Once they are that."""
    async with asyncio.timeout(20):
        while True:
            moves = (await client.admin.moves()).moves
            if enough(moves):
                return moves
            await asyncio.sleep(0.05)


async def kill_during_move(cluster: Cluster, client: Client, victim: str) -> None:
    """A move with the death of a node in its middle, which comes back."""
    first = await client.admin.declare("orders", KEPT)
    traffic = Traffic(client, "orders")
    async with traffic.running():
        await traffic.reached(BEFORE)
        await client.admin.alter("orders", {"copies": 2})
        cluster.nodes[victim].kill()
        # It is used again by then, in the new log; or in the old one, when only the dead node had the new one so far.
        await traffic.reached(BEFORE)
        await asyncio.to_thread(cluster.nodes[victim].start)
        await moved(client, "orders", first.log_id)  # by itself, if that came to nothing
        await traffic.reached(BEFORE)
    sent = [str(number).encode() for number in range(traffic.sent)]
    assert await values(client, "orders") == sent
    assert len(traffic.settled) == traffic.sent


@pytest.mark.long_after(1)
@pytest.mark.parametrize("victim", ["n1", "n2", "n3"])
async def test_a_move_survives_a_node(victim: str) -> None:
    """Goal: a queue that moves goes on, in one log or the other, whichever node dies in it. Method: kill -9 right
    behind the decision, under traffic: the old master, and nodes that may be the new one."""
    async with fast_cluster(3, min_in_sync=2, settings={"cluster.node_timeout_ms": 1_000}) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await kill_during_move(cluster, client, victim)


@pytest.mark.long
async def test_records_left_behind_keep_the_copies_that_confirmed_them() -> None:
    """Goal: who asks for fewer copies takes none from others. Method: a queue that two copies shall confirm moves away
    and leaves records; the one that is alone there then asks for one copy: it goes, and the log keeps its copies."""
    two = {"nodes": ["n1", "n2"], "min_in_sync": 2, "queue-master-locator": "client-local"}
    async with fast_cluster(3, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(cluster.nodes["n1"].client, cluster.nodes["n2"].client) as client:
            for name in ("precious", "cheap"):
                await client.admin.declare(name, two)
            former = (await told(client, "precious")).log_id
            assert (await told(client, "cheap")).log_id == former
            async with client.producer("precious", confirm="all") as producer:
                await producer.send(b"kept by two")
            await client.admin.alter("precious", {"nodes": ["n3", "n2"]})
            await moved(client, "precious", former)
            answer = await client.admin.alter("cheap", {"nodes": ["n1"], "min_in_sync": None})
            assert (answer.moves, answer.copies_change) == (True, False)
            await moved(client, "cheap", former)
            (span, *_) = (await told(client, "precious")).spans
            assert (span.log_id, len(span.mirrors)) == (former, 1)


@pytest.mark.long
async def test_nodes_live_on_with_a_queue_that_no_rule_fits_any_more() -> None:
    """Goal: an odd queue among those that are evened out ends no node. Method: settings say one copy, the logs have
    two, and one queue names two in sync, as its log has; one node masters all queues, and gives the others away."""
    logs = ({"name": "a"}, {"name": "b", "master": "n2"})
    async with fast_cluster(2, min_in_sync=2, logs=logs, settings={"cluster.copies": 1}) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            names = ["strict", *(f"q{number}" for number in range(11))]
            for name in names:
                await client.admin.declare(name, {"min_in_sync": 2} if name == "strict" else {})
            there = {name: (await told(client, name)).log_id for name in names}
            left = [name for name in names if there[name] == there["strict"]]
            for name in set(names) - set(left):
                await client.admin.delete_queue(name)
            async with asyncio.timeout(30):
                while True:
                    if any([(await told(client, name)).log_id != there[name] for name in left]):
                        break
                    await asyncio.sleep(0.1)
            assert (await told(client, "strict")).log_id == there["strict"]
        for node in cluster.nodes.values():
            assert not log_lines(node, "ticker_failed")
            node.status()
