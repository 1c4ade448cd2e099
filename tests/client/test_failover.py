"""Clients find the new master whatever the old one does, by nodes that do as they are told. What is confirmed is there
once, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.queue_metadata import check_same, is_another
from mirrorlog.errors import (
    Closed,
    InSyncReplicasNotEnough,
    LogRecovering,
    LogUnavailable,
    MirrorlogError,
    NodeStopping,
    NoSuchQueue,
    NotCurrent,
    NotMaster,
    OutcomeUnknown,
)
from mirrorlog.wire.messages.queues import Position, QueueInfo
from tests.client.scripted_nodes import LOG_ID, QUEUE, Node, Nodes, scripted


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait, on the loop's timers."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # the nodes set nothing that could be waited on
            await asyncio.sleep(0.002)
    assert condition(), what


# --- Producers --------------------------------------------------------------------------------------------------------


async def test_a_killed_master_costs_little_more_than_the_choice_of_another() -> None:
    """Goal: what waits finds the new master soon after there is one. Method: none is known for 0.3 s after the kill;
    from then on it may take a tenth of a second, the best of a few."""
    late = []
    for _ in range(3):
        async with scripted() as nodes, Client(*nodes.servers) as client, client.producer(QUEUE) as producer:
            await producer.send(b"before")
            loop = asyncio.get_running_loop()
            nodes["n1"].kill()
            nodes.promote("", version=2, heard_by="n2 n3")
            sending = asyncio.ensure_future(producer.send(b"after"))
            await asyncio.sleep(0.3)
            assert not sending.done()
            nodes.promote("n3", version=3, heard_by="n2 n3")
            promoted_at = loop.time()
            await asyncio.wait_for(sending, 10)
            late.append(loop.time() - promoted_at)
            assert nodes.values == [b"before", b"after"]
    assert min(late) < 0.1


async def test_many_in_flight_land_once_and_in_order_at_the_new_master() -> None:
    """By killing the master among batches that it answers no more; some of them it has stored."""
    async with scripted() as nodes, Client(*nodes.servers) as client, client.producer(QUEUE, batch_bytes=1) as producer:
        sends = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(20)]
        await sends[3]
        nodes["n1"].mute = True
        sends += [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(20, 40)]
        await until(lambda: producer._sender._pipeline.in_flight > 0, "something is unanswered")
        nodes["n1"].kill()
        nodes.promote("n2", version=2, heard_by="n2 n3")
        await asyncio.wait_for(asyncio.gather(*sends), 10)
        assert nodes.values == [b"%d" % number for number in range(40)]


async def test_the_one_that_knows_most_is_believed() -> None:
    """By a former master that says so, a node that is behind and names it, and one that makes itself master with an
    older version: neither gets a batch."""
    async with scripted() as nodes, Client(*nodes.servers) as client, client.producer(QUEUE) as producer:
        await producer.send(b"before")
        nodes.promote("n3", version=4, heard_by="n1 n3")
        nodes["n2"].master, nodes["n2"].version = "n2", 0
        await asyncio.wait_for(producer.send(b"after"), 10)
        assert nodes.values == [b"before", b"after"]
        assert (nodes["n1"].taken, nodes["n2"].taken, nodes["n3"].taken) == (2, 0, 1)


@pytest.mark.parametrize("kind", [InSyncReplicasNotEnough, LogRecovering, LogUnavailable, NodeStopping])
async def test_a_master_that_refuses_is_left_once_another_is_known(kind: type[MirrorlogError]) -> None:
    """One on the wrong side of a cut goes on refusing; before another was promoted it is asked again, and nobody
    else, though the other nodes' answers differ: they know no more."""
    async with scripted() as nodes, Client(*nodes.servers) as client, client.producer(QUEUE) as producer:
        await producer.send(b"before")
        nodes["n1"].refusal = kind("not now")
        nodes["n2"].master, nodes["n2"].version = "n2", 0
        sending = asyncio.ensure_future(producer.send(b"after"))
        await until(lambda: nodes["n1"].taken >= 4, "it is tried again")
        assert nodes["n2"].taken == 0
        nodes.promote("n3", version=2, heard_by="n3")
        await asyncio.wait_for(sending, 10)
        assert nodes.values == [b"before", b"after"]
        assert (nodes["n2"].taken, nodes["n3"].taken) == (0, 1)


async def test_a_hung_master_is_left_once_another_is_known() -> None:
    """Its connection stays open. What it had not answered goes to the new one, identical, before what comes later."""
    async with scripted() as nodes, Client(*nodes.servers) as client, client.producer(QUEUE) as producer:
        await producer.send(b"first")
        nodes["n1"].hangs = True
        sends = [asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(3)]
        asked = nodes["n3"].asked
        await until(lambda: nodes["n3"].asked > asked, "the other nodes are asked")
        assert producer._sender.connected, "being unanswered proves nothing"
        nodes.promote("n2", version=2, heard_by="n2 n3")
        await asyncio.wait_for(asyncio.gather(*sends), 10)
        await producer.send(b"last")
        assert nodes.values == [b"first", b"0", b"1", b"2", b"last"]


async def test_an_answer_that_takes_long_moves_nobody() -> None:
    """The others are asked at most twice a second while it is waited for; by a master that holds its answer."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        producer = await client.producer(QUEUE).start()
        connection, asked = producer._sender._connection, nodes["n2"].asked
        nodes["n1"].mute = True
        delivery = producer.send_nowait(b"v")
        began = asyncio.get_running_loop().time()
        await until(lambda: nodes["n2"].asked >= asked + 3, "asked again and again")
        assert asyncio.get_running_loop().time() - began > 1.4
        assert producer._sender._connection is connection
        assert (nodes["n1"].taken, nodes["n2"].taken) == (1, 0)
        producer.abandon()
        with pytest.raises(OutcomeUnknown):
            await delivery


async def test_without_a_producer_id_what_a_hung_master_has_is_unknown() -> None:
    """Nothing that may be stored is sent again; what comes later goes to the new master."""
    async with (
        scripted() as nodes,
        Client(*nodes.servers) as client,
        client.producer(QUEUE, idempotent=False) as producer,
    ):
        nodes["n1"].hangs = True
        sending = asyncio.ensure_future(producer.send(b"perhaps"))
        await until(lambda: producer._sender._pipeline.in_flight > 0, "it has left")
        nodes.promote("n2", version=2, heard_by="n2 n3")
        with pytest.raises(OutcomeUnknown):
            await asyncio.wait_for(sending, 10)
        await producer.send(b"later")
        assert nodes.values == [b"later"]


async def test_what_the_former_master_never_answers_holds_nobody() -> None:
    """One batch is refused while those before it wait for copies that are gone; by a node that answers from then on
    only refusals, and another that is promoted."""
    async with scripted() as nodes, Client(*nodes.servers) as client, client.producer(QUEUE, batch_bytes=1) as producer:
        await producer.send(b"before")
        nodes["n1"].mute = True
        first = asyncio.ensure_future(producer.send(b"first"))
        await until(lambda: nodes["n1"].taken == 2, "it waits at the old master")
        nodes["n1"].mute = False
        nodes["n1"].refusal = InSyncReplicasNotEnough("alone")
        second = asyncio.ensure_future(producer.send(b"second"))
        await until(lambda: nodes["n1"].taken == 3, "it is refused there")
        nodes.promote("n2", version=2, heard_by="n2 n3")
        await asyncio.wait_for(asyncio.gather(first, second), 10)
        assert nodes.values == [b"before", b"first", b"second"]


async def test_a_node_that_hangs_delays_no_search() -> None:
    """Goal: neither its connect timeout nor its request timeout is waited for. Method: of the nodes that are left one
    hangs, once connected and once not."""
    for connected in (True, False):
        async with scripted(4) as nodes, Client(nodes["n1"].address) as client, client.producer(QUEUE) as producer:
            await producer.send(b"before")
            if connected:
                await client.connection_to(nodes["n2"].address)
            nodes["n2"].hangs = True
            nodes["n1"].kill()
            nodes.promote("n3", version=2, heard_by="n3 n4")
            await asyncio.wait_for(producer.send(b"after"), 3)
            assert nodes.values == [b"before", b"after"]


async def test_a_new_master_that_hangs_before_it_is_reached_is_given_up_too() -> None:
    """Its connection is never made, within a long connect timeout; by one that hangs at once, and the next."""
    async with scripted() as nodes, Client(nodes["n1"].address, connect_timeout_ms=60_000) as client:
        async with client.producer(QUEUE) as producer:
            await producer.send(b"before")
            nodes["n2"].hangs = True
            nodes["n1"].kill()
            nodes.promote("n2", version=2, heard_by="n3")
            sending = asyncio.ensure_future(producer.send(b"after"))
            await until(lambda: any(link.node.node_id == "n2" for link in nodes["n2"].links), "it is tried")
            nodes.promote("n3", version=3, heard_by="n3")
            await asyncio.wait_for(sending, 10)
        assert nodes.values == [b"before", b"after"]


async def test_without_a_master_the_reason_says_so() -> None:
    """Nothing was stored, and it may be tried again; at the start and at the deadline, and asking soon and often."""
    async with scripted() as nodes, Client(*nodes.servers, request_timeout_ms=200) as client:
        producer = await client.producer(QUEUE, delivery_timeout_ms=300).start()
        nodes["n1"].kill()
        nodes.promote("", version=2, heard_by="n2 n3")
        with pytest.raises(NotMaster, match="no master") as refused:
            await client.producer(QUEUE).start()
        assert refused.value.retriable
        await until(lambda: not producer._sender.connected, "the end of the connection is seen")
        with pytest.raises(NotMaster, match="no master"):
            await producer.send(b"never")
        with pytest.raises(NotMaster):
            await client.node_address("")
        await producer.close()


async def test_a_producer_that_starts_in_between_waits_for_the_next_master() -> None:
    """By starting while there is none."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        nodes.promote("", version=2)
        asked = nodes["n2"].asked
        starting = asyncio.ensure_future(client.producer(QUEUE).start())
        await until(lambda: nodes["n2"].asked > asked + 2, "it asks again")
        nodes.promote("n3", version=3)
        producer = await asyncio.wait_for(starting, 10)
        await producer.send(b"v")
        await producer.close()


async def test_many_producers_ask_together() -> None:
    """However many have lost their master, there is one question at a time; by a hundred of them."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        producers = [await client.producer(QUEUE).start() for _ in range(100)]
        asked = nodes["n2"].asked
        sends = [asyncio.ensure_future(producer.send(b"v")) for producer in producers]
        nodes["n1"].kill()
        nodes.promote("n3", version=2, heard_by="n2 n3")
        await asyncio.wait_for(asyncio.gather(*sends), 10)
        assert nodes["n2"].asked - asked < 50
        assert len(nodes.values) == 100


# --- Consumers --------------------------------------------------------------------------------------------------------


async def publish(nodes: Nodes, *values: bytes) -> None:
    """By a client of its own."""
    async with Client(nodes.servers[-1]) as client, client.producer(QUEUE) as producer:
        for value in values:
            await producer.send(value)


@pytest.mark.parametrize("end", ["kill", "hang"])
async def test_a_reader_goes_on_at_the_next_master(end: str) -> None:
    """Neither a gap nor a repeat, and well before the request's own timeout; by killing and by halting the first."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0", b"1")
        async with client.consumer(QUEUE, max_wait_ms=100) as consumer:
            found = await consumer.read(2, timeout_ms=5_000)
            reading = asyncio.ensure_future(consumer.read(2, timeout_ms=5_000))
            fetches = nodes["n1"].fetches
            await until(lambda: nodes["n1"].fetches > fetches, "it waits at the first")
            if end == "kill":
                nodes["n1"].kill()
            nodes["n1"].hangs = True
            nodes.promote("n2", version=2, heard_by="n2 n3")
            await publish(nodes, b"2", b"3")
            found += await reading
            assert consumer.served_by == "n2"
    assert [(record.queue_offset, record.value) for record in found] == [(n, b"%d" % n) for n in range(4)]


@pytest.mark.parametrize("end", ["kill", "hang"])
async def test_a_reader_of_a_mirror_goes_on_at_another(end: str) -> None:
    """Whichever way it is gone; a silent mirror is left though nobody has replaced it, as long as there is another."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0")
        async with client.consumer(QUEUE, read_from="mirror", max_wait_ms=100) as consumer:
            found = await consumer.read(1, timeout_ms=5_000)
            first = consumer.served_by
            assert first in ("n2", "n3")
            nodes[first].hangs = True
            if end == "kill":
                nodes[first].kill()
            # Left after what it was already asked.
            async with Client(nodes["n1"].address) as other, other.producer(QUEUE) as producer:
                await producer.send(b"1")
            found += await consumer.read(1, timeout_ms=5_000)
            assert consumer.served_by not in (first, "n1")
    assert [record.queue_offset for record in found] == [0, 1]


async def test_a_reader_waits_while_there_is_no_master() -> None:
    """By starting one and reading on in between."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0")
        nodes["n1"].kill()
        nodes.promote("", version=2, heard_by="n2 n3")
        consumer = client.consumer(QUEUE, max_wait_ms=100)
        starting = asyncio.ensure_future(consumer.start())
        asked = nodes["n2"].asked
        await until(lambda: nodes["n2"].asked > asked + 1, "it asks again")
        nodes.promote("n3", version=3, heard_by="n2 n3")
        await asyncio.wait_for(starting, 10)
        assert [record.value for record in await consumer.read(1, timeout_ms=5_000)] == [b"0"]
        await consumer.close()


@pytest.mark.parametrize("asked", ["until confirmed", "from the latest"])
async def test_what_is_confirmed_is_not_taken_from_a_node_that_has_not_heard_that_it_masters(asked: str) -> None:
    """Goal: nothing confirmed is left out behind a failover. Method: the others name n2, which still takes itself for a
    mirror of the dead one, and knows less to be confirmed; it is asked again until it has heard, and has begun."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0", b"1", b"2")
        nodes["n1"].kill()
        nodes.promote("n2", version=2, heard_by="n3")
        nodes["n2"].known = 1
        consumer = client.consumer(QUEUE, **_ends(asked), max_wait_ms=100)
        starting = asyncio.ensure_future(consumer.start())
        await _asked_again(nodes["n2"], starting)
        nodes.promote("n2", version=2, heard_by="n2")
        nodes["n2"].current = False
        await _asked_again(nodes["n2"], starting)
        nodes["n2"].known, nodes["n2"].current = None, True
        await asyncio.wait_for(starting, 10)
        assert (consumer.cursor.until, consumer.position.queue_offset) in ((3, 0), (None, 3))
        await consumer.close()


@pytest.mark.parametrize("read_from", ["mirror", "n2"])
async def test_who_names_a_copy_reads_up_to_what_that_one_knows(read_from: str) -> None:
    """Also while nobody masters the log; a mirror knows less than its master, which is as documented."""
    async with scripted(2) as nodes, Client(*nodes.servers) as client:
        await publish(nodes, b"0", b"1")
        nodes["n1"].kill()
        nodes["n2"].known, nodes["n2"].current = 1, False
        async with client.consumer(QUEUE, start="earliest", until="confirmed", read_from=read_from) as consumer:
            assert [record.value async for record in consumer] == [b"0"]


async def test_while_nobody_masters_a_log_its_end_is_refused_in_time() -> None:
    """Goal: neither a wrong end nor a hang. By a client whose requests take half a second at most."""
    async with scripted() as nodes, Client(*nodes.servers, request_timeout_ms=500) as client:
        await publish(nodes, b"0")
        consumer = client.consumer(QUEUE, until="confirmed")
        for node in nodes.by_id.values():
            node.current = False
        with pytest.raises(NotCurrent, match="read_from"):
            await asyncio.wait_for(consumer.start(), 10)


async def test_who_ends_at_a_time_takes_it_from_the_master_alone() -> None:
    """A mirror that knows less finds a smaller one: enough to begin at. By a master that hangs, then is replaced."""
    async with scripted() as nodes, Client(*nodes.servers, request_timeout_ms=5_000) as client:
        nodes.promote("", version=2)
        for node in nodes.by_id.values():
            node.any_copy = True
        assert await client.admin.find_offset(QUEUE, 5) == 0
        finding = asyncio.ensure_future(client.admin.find_offset(QUEUE, 5, any_copy=False))
        await _asked_again(nodes["n2"], finding)
        nodes.promote("n3", version=3)
        assert await asyncio.wait_for(finding, 10) == 0


def _ends(asked: str) -> dict[str, Any]:
    return {"start": "earliest", "until": "confirmed"} if asked == "until confirmed" else {"start": "latest"}


async def _asked_again(node: Node, waiting: asyncio.Future[Any]) -> None:
    asked = node.asked
    await until(lambda: node.asked > asked + 3 or waiting.done(), "it asks again")
    assert not waiting.done()


@pytest.mark.parametrize(
    ("known", "found", "same"),
    [
        ({}, {}, True),
        ({}, {"queue_id": 2}, False),
        ({}, {"incarnation": "another"}, False),
        ({"incarnation": ""}, {}, True),
    ],
)
def test_a_queue_is_known_by_its_id_and_its_incarnation(
    known: dict[str, Any], found: dict[str, Any], *, same: bool
) -> None:
    """One that does not tell its incarnation, of software that had none, goes by the id."""
    info = QueueInfo(
        name=QUEUE, queue_id=1, incarnation="one", log_id=LOG_ID, epoch=1, master="n1", mirrors=[], begin=0, next=0
    )
    before, after = msgspec.structs.replace(info, **known), msgspec.structs.replace(info, **found)
    check_same(QUEUE, None, after)
    if same:
        check_same(QUEUE, before, after)
        return
    with pytest.raises(NoSuchQueue) as refused:
        check_same(QUEUE, before, after)
    assert is_another(refused.value)


# --- Requests, and the way in -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["kill", "hang", "refuse"])
async def test_requests_follow_the_master(end: str) -> None:
    """Each kind that goes to the master, within its timeout; by one that dies, hangs or refuses without knowing."""
    async with scripted() as nodes, Client(*nodes.servers) as client:
        await client.queue_info(QUEUE)
        if end == "kill":
            nodes["n1"].kill()
        elif end == "hang":
            nodes["n1"].hangs = True
        else:
            nodes["n1"].refusal = InSyncReplicasNotEnough("alone")
        nodes.promote("n2", version=2, heard_by="n2 n3")
        position = Position(log_id=LOG_ID, epoch=1, queue_offset=0)
        async with asyncio.timeout(8):
            await client.admin.commit_position(QUEUE, "g", position)
            assert await client.admin.find_offset(QUEUE, 0) == 0
            assert (await client.admin.declare(QUEUE)).master == "n2"


async def test_a_request_that_finds_no_master_is_asked_again_in_time() -> None:
    """By promoting one after the first refusals, and by none at all."""
    async with scripted() as nodes, Client(*nodes.servers, request_timeout_ms=2_000) as client:
        position = Position(log_id=LOG_ID, epoch=1, queue_offset=0)
        nodes.promote("", version=2)
        committing = asyncio.ensure_future(client.admin.commit_position(QUEUE, "g", position))
        declaring = asyncio.ensure_future(client.admin.declare(QUEUE))
        asked = nodes["n3"].asked
        await until(lambda: nodes["n3"].asked > asked + 2, "it asks again")
        assert not committing.done()
        assert not declaring.done()
        nodes.promote("n3", version=3)
        await asyncio.wait_for(asyncio.gather(committing, declaring), 10)
        client.request_timeout_ms = 200
        nodes.promote("", version=4)
        with pytest.raises(NotMaster):
            await client.admin.commit_position(QUEUE, "g", position)


async def test_a_server_that_hangs_costs_a_head_start() -> None:
    """Not its connect timeout, whatever is asked of the client; by the first one of three."""
    async with scripted() as nodes:
        nodes["n1"].hangs = True
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with Client(*nodes.servers, connect_timeout_ms=60_000) as client:
            assert (await client.metadata()).node_id in ("n2", "n3")
            assert loop.time() - began < 5


async def test_a_client_that_is_closed_ends_a_search() -> None:
    """Who waits is told why; by closing it while no node answers."""
    async with scripted() as nodes:
        client = await Client(*nodes.servers).connect()
        await client.queue_info(QUEUE)
        for node in nodes.by_id.values():
            node.hangs = True
        searching = asyncio.ensure_future(client.queue_info(QUEUE))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(Closed):
            await asyncio.wait_for(searching, 5)
