"""A connection and its client against nodes, and against what only looks like one."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.liveness import KeepAlive
from mirrorlog.errors import (
    BadInput,
    BadRequest,
    ConnectionLost,
    MirrorlogError,
    NoSuchQueue,
    ProtocolError,
    QueueExists,
    WrongCluster,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import FRAME_HEADER_SIZE, PRODUCE, Confirm, FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Failure, NodeLimits, Welcome
from mirrorlog.wire.messages.queues import Done
from mirrorlog.wire.messages.status import GetStatus, Status
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

WELCOME = Welcome(
    version=1,
    cluster_id="c",
    cluster_name="c",
    node_id="n",
    start_id="s",
    limits=NodeLimits(max_record_bytes=1_000, max_batch_bytes=100_000),
)


@asynccontextmanager
async def stranger(talk: Talk) -> AsyncIterator[str]:
    """A server that does `talk` with each connection; its address."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await talk(reader, writer)
        except (asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        server.close()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


def welcoming(answer: bytes = b"", *, then_close: bool = False) -> Talk:
    """Greets properly, and answers the first frame after that with `answer`."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(frame(FrameType.WELCOME, encode(WELCOME)))
        await reader.read(4096)
        writer.write(answer)
        if not then_close:
            await reader.read()

    return talk


@pytest.mark.parametrize(
    ("talk", "error"), [(silent, ConnectionLost), (http, ProtocolError), (hang_up, ConnectionLost)]
)
async def test_what_is_no_node_is_told_apart_in_time(talk: Talk, error: type[MirrorlogError]) -> None:
    """Nothing hangs and the error says what; by servers that are silent, speak HTTP, or hang up."""
    async with stranger(talk) as address:
        with pytest.raises(error):
            await Connection.open(address, timeout_ms=200)


async def test_a_node_that_takes_its_time_to_greet_is_not_gone() -> None:
    """Goal: nobody gives up while a login goes on. Method: the only server is silent for a while, and hangs up then."""
    may_end = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_end.wait()

    async with stranger(slow) as address:
        client = Client(address)
        opening = asyncio.ensure_future(client.connection_to(address))
        with pytest.raises(ConnectionLost, match="still waited for"):
            await client.reach(address)
        assert client.connected
        may_end.set()
        with pytest.raises(ConnectionLost):
            await opening
        assert not client.connected


async def test_a_port_without_a_server_is_named() -> None:
    """By one that was just closed."""
    async with stranger(silent) as address:
        pass
    with pytest.raises(ConnectionLost, match=address):
        await Client(address).connect()


async def test_a_client_finds_the_server_that_works(shared_cluster: Cluster) -> None:
    """Servers are tried in order; by a closed port and an HTTP server before a node."""
    async with stranger(silent) as closed:
        pass
    async with stranger(http) as web, Client(closed, web, shared_cluster.servers[2]) as client:
        assert (await client.admin.metadata()).node_id == "n3"


async def test_a_node_of_another_cluster_is_refused(shared_cluster: Cluster) -> None:
    """By asking for a cluster id of our own making, then for the right one."""
    with pytest.raises(WrongCluster):
        await Client(*shared_cluster.servers, cluster_id=str(uuid4())).connect()
    async with Client(*shared_cluster.servers) as client:
        cluster_id = (await client.admin.metadata()).cluster_id
    async with Client(*shared_cluster.servers, cluster_id=cluster_id) as client:
        assert (await client.admin.status()).cluster_id == cluster_id


async def test_a_request_ends_when_its_connection_does() -> None:
    """Not at its deadline; by a server that hangs up instead of answering."""
    async with stranger(welcoming(then_close=True)) as address:
        opened = await Connection.open(address)
        with pytest.raises(ConnectionLost):
            await opened.request(GetStatus(), Status, timeout_ms=60_000)
        assert not opened.usable


@pytest.mark.parametrize(
    "answer",
    [
        frame(FrameType.CONFIRM, b"\0" * 4, 1),
        frame(FrameType.RESPONSE, encode(Done()), 1),
        frame(FrameType.BATCHES, b"", 1),
        frame(FrameType.WELCOME, encode(WELCOME), 1),
    ],
)
async def test_a_publish_is_told_of_an_answer_that_is_none(answer: bytes) -> None:
    """Whoever waits must hear; by answers of the wrong type or size, which say nothing about the batch."""
    async with stranger(welcoming(answer)) as address:
        opened = await Connection.open(address)
        heard: asyncio.Future[Confirm | MirrorlogError] = asyncio.get_running_loop().create_future()
        opened.produce(b"x" * 96, level=255, durability=0, deadline_ms=1_000, done=heard.set_result)
        assert type(await asyncio.wait_for(heard, 10)) is ProtocolError
        opened.close()


@pytest.mark.parametrize("size", [96, 16 * 1024, 16 * 1024 + 1, 300_000])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_a_batch_leaves_as_one_frame(size: int, kind: type) -> None:
    """Header, struct and batch as the protocol has them, copied together or not; by what the other side receives."""
    received = bytearray()

    async def collect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        writer.write(frame(FrameType.WELCOME, encode(WELCOME)))
        received.extend(await reader.readexactly(FRAME_HEADER_SIZE + PRODUCE.size + size))

    batch = bytes(index % 251 for index in range(size))
    async with stranger(collect) as address:
        opened = await Connection.open(address)
        ended: asyncio.Future[Confirm | MirrorlogError] = asyncio.get_running_loop().create_future()
        opened.produce(kind(batch), level=255, durability=1, deadline_ms=70_000, done=ended.set_result)
        assert type(await asyncio.wait_for(ended, 10)) is ConnectionLost
    assert received == frame(FrameType.PRODUCE, PRODUCE.pack(255, 1, 0, 70_000) + batch, 1)


async def test_a_request_is_told_of_an_answer_that_is_none() -> None:
    """A response of another type, and a frame of another type; by one of each."""
    for answer in (frame(FrameType.RESPONSE, encode(Done()), 1), frame(FrameType.CONFIRM, b"\0" * 32, 1)):
        async with stranger(welcoming(answer)) as address:
            opened = await Connection.open(address)
            with pytest.raises(ProtocolError):
                await opened.request(GetStatus(), Status, timeout_ms=10_000)
            opened.close()


async def test_a_node_that_stands_still_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open connection without a sign of life fails what waits on it; by a paused node and short clocks."""
    monkeypatch.setattr(KeepAlive, "tick_s", 0.05)
    monkeypatch.setattr(KeepAlive, "silence_s_max", 0.3)
    with fast_cluster(1) as cluster:
        master = cluster.master
        opened = await Connection.open(cluster.servers[0])
        master.pause()
        try:
            with pytest.raises(ConnectionLost, match="said nothing"):
                await opened.request(GetStatus(), Status, timeout_ms=30_000)
        finally:
            master.resume()


async def test_a_slow_answer_is_waited_for_while_the_node_lives(
    monkeypatch: pytest.MonkeyPatch, client: Client, queue: str
) -> None:
    """PONGs are signs of life; by a fetch that waits for longer than the silence allowed."""
    monkeypatch.setattr(KeepAlive, "tick_s", 0.05)
    monkeypatch.setattr(KeepAlive, "silence_s_max", 0.3)
    info = (await client.admin.metadata([queue])).queues[0]
    opened = await Connection.open(client.servers[0])
    facts, content = await opened.fetch(
        queue_id=info.queue_id, epoch=0, queue_offset=0, max_bytes=1_000, wait_ms=1_000, timeout_ms=10_000
    )
    assert (facts.batch_count, content) == (0, b"")
    assert opened.usable
    opened.close()


async def publish_kib(client: Client, queue: str, *sizes_kib: int) -> int:
    """Batches of one record of so many KiB; the queue's id."""
    async with client.producer(queue) as producer:
        for number, size in enumerate(sizes_kib):
            await producer.send(bytes([number]) * 1024 * size)
    return (await client.admin.metadata([queue])).queues[0].queue_id


async def test_a_fetch_is_received_where_its_reader_says(client: Client, queue: str) -> None:
    """A large answer comes into the memory given for it and a small one needs none; by what is asked for and given."""
    queue_id = await publish_kib(client, queue, 300, 300, 1)
    opened = await Connection.open(client.servers[0])
    rooms: list[bytearray] = []

    def room(size: int) -> memoryview:
        rooms.append(bytearray(size))
        return memoryview(rooms[-1])

    async def fetch(queue_offset: int) -> memoryview:
        _, content = await opened.fetch(
            queue_id=queue_id, epoch=0, queue_offset=queue_offset, max_bytes=1, wait_ms=0, timeout_ms=10_000, room=room
        )
        return content

    contents = await asyncio.gather(*map(fetch, range(3)))
    assert [content.obj for content in contents[:2]] == rooms
    assert [bytes(content[200_000:200_010]) for content in contents[:2]] == [bytes(10), b"\1" * 10]
    assert len(contents[2]) < 2_000
    assert b"\2" * 1024 in bytes(contents[2])
    opened.close()


async def test_an_answer_that_nobody_waits_for_does_no_harm(client: Client, queue: str) -> None:
    """Its room is not asked for, and the next answer is whole; by giving fetches up before their answers come."""
    queue_id = await publish_kib(client, queue, 300, 200)
    opened = await Connection.open(client.servers[0])

    def no_room(size: int) -> memoryview:
        raise AssertionError("asked for room after it was given up")

    for queue_offset, room in [(0, no_room), (1, no_room), (0, None)]:
        fetching = asyncio.ensure_future(
            opened.fetch(
                queue_id=queue_id,
                epoch=0,
                queue_offset=queue_offset,
                max_bytes=1,
                wait_ms=0,
                timeout_ms=10_000,
                room=room,
            )
        )
        if room is not None:
            await asyncio.sleep(0)  # it is sent
            fetching.cancel()
    _, content = await fetching
    assert bytes(content).count(bytes(300 * 1024)) == 1
    assert opened.usable
    opened.close()


async def test_closing_leaves_nothing_behind(shared_cluster: Cluster, new_name: Callable[[], str]) -> None:
    """No task, no warning; by closing a client whose producer and consumer are at work."""
    before = asyncio.all_tasks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with Client(*shared_cluster.servers) as client:
            name = (await client.admin.declare(new_name())).name
            producer = await client.producer(name).start()
            delivery = producer.send_nowait(b"v")
            async with client.consumer(name) as consumer:
                waiting = asyncio.ensure_future(anext(aiter(consumer)))
                assert (await waiting).value == b"v"
        assert delivery.done()
    assert asyncio.all_tasks() == before


# --- Admin ----------------------------------------------------------------------------------------------------------


async def test_declare_is_idempotent_and_names_a_difference(client: Client, new_name: Callable[[], str]) -> None:
    """Same arguments find the queue, others are an error; through a mirror too."""
    name = new_name()
    first = await client.admin.declare(name, {"retention_ms": 7})
    assert (await client.admin.declare(name, {"retention_ms": 7})).queue_id == first.queue_id
    with pytest.raises(QueueExists, match="retention_ms"):
        await client.admin.declare(name, {"retention_ms": 1})
    async with Client(client.servers[1]) as through_mirror:
        other = await through_mirror.admin.declare(new_name())
    assert other.queue_id != first.queue_id


async def test_metadata_names_nodes_queues_and_what_is_missing(
    client: Client, queue: str, new_name: Callable[[], str]
) -> None:
    """By a queue that is there and one that is not."""
    missing = new_name()
    found = await client.admin.metadata([queue, missing])
    assert [node.node_id for node in found.nodes] == ["n1", "n2", "n3"]
    assert ([info.name for info in found.queues], found.missing) == ([queue], [missing])
    assert queue in {info.name for info in await client.admin.queues()}


async def test_each_node_tells_its_own_status(client: Client) -> None:
    """By asking all three, and one that is not there."""
    for node_id in ("n1", "n2", "n3"):
        assert (await client.admin.status(node_id)).node_id == node_id
    with pytest.raises(BadRequest, match="n9"):
        await client.admin.status("n9")


async def test_positions_are_stored_per_group(client: Client, queue: str, new_name: Callable[[], str]) -> None:
    """What was committed is found again, one beyond the records is refused; by both."""
    async with client.producer(queue) as producer:
        for _ in range(3):
            await producer.send(b"v")
    async with client.consumer(queue) as consumer:
        await consumer.read(2, timeout_ms=10_000)
        position = consumer.position
    await client.admin.commit_position(queue, "g", position)
    assert await client.admin.position(queue, "g") == position
    async with client.consumer(queue, start=0) as consumer:
        await consumer.seek(99)
        with pytest.raises(BadInput):
            await client.admin.commit_position(queue, "g", consumer.position)
    with pytest.raises(NoSuchQueue):
        await client.admin.position(new_name(), "g")


async def test_an_error_that_cannot_be_read_ends_what_it_answers() -> None:
    """Nobody waits for a deadline because of it; by an ERROR frame of random bytes, and one with telling details."""
    async with stranger(welcoming(frame(FrameType.ERROR, b"\xff", 1))) as address:
        asked = await Connection.open(address)
        with pytest.raises(ConnectionLost, match="control message"):
            await asked.request(GetStatus(), Status, timeout_ms=20_000)
        asked.close()
    failure = Failure(code="NO_SUCH_QUEUE", message="m", details={"message": "x", "self": 1, "queue": "q"})
    async with stranger(welcoming(frame(FrameType.ERROR, encode(failure), 1))) as address:
        asked = await Connection.open(address)
        with pytest.raises(NoSuchQueue, match=r"^m$") as caught:
            await asked.request(GetStatus(), Status, timeout_ms=20_000)
        assert caught.value.details == {"message_": "x", "self_": 1, "queue": "q"}
        asked.close()
