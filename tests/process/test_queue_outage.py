"""Queues whose only node is down: whoever asks for one is answered at once, and told which node to start."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from mirrorlog.client import Client, Delivered, Subscription
from mirrorlog.errors import LogUnavailable, MirrorlogError, QueueExists
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import Lease, ListGroups, PurgeGroup, ResetGroups, Subscribe
from mirrorlog.wire.messages.queues import (
    CommitPosition,
    DeclareQueue,
    DeleteQueue,
    FetchPosition,
    FindOffset,
    GetMetadata,
    Metadata,
    Position,
    QueueInfo,
)
from tests.process.clusters import error_of, eventually, fast_cluster
from tests.process.raw import Raw, batch_of

ONE = {"copies": 1}
AT_ONCE_S = 1.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("outage")
    settings = {"cluster.node_timeout_ms": 600}
    with fast_cluster(3, min_in_sync=2, data_dir=directory, settings=settings) as cluster:
        cluster.wait_in_sync()
        yield cluster


@asynccontextmanager
async def with_its_node_down(cluster: Cluster, queue: str) -> AsyncIterator[tuple[QueueInfo, Node]]:
    """A queue of one copy with three records; its node comes back at the end."""
    async with Client(*cluster.servers) as client:
        info = await client.admin.declare(queue, ONE)
        async with client.producer(queue) as producer:
            for number in range(3):
                await producer.send(b"%d" % number)
    node = cluster.nodes[info.master]
    others = [each for each in cluster.nodes.values() if each is not node]
    node.kill()
    try:
        for each in others:
            eventually(lambda each=each: _outages(each), f"{each.id} knows that {node.id} is down")
        yield info, node
    finally:
        node.start()
        eventually(lambda: not _outages(others[0]), "it is back")


def _outages(node: Node) -> list[str]:
    with Raw(node.client) as raw:
        return [outage.name for outage in raw.request(GetMetadata(), Metadata).outages]


def _asked(queue: str, info: QueueInfo) -> list[Message]:
    position = Position(log_id=info.log_id, epoch=1, queue_offset=1)
    return [
        DeclareQueue(name=queue, arguments=ONE),
        DeclareQueue(name=queue, arguments={"copies": 2}),
        Subscribe(queue=queue),
        Lease(queue=queue, records_max=1, lease_ms=1_000),
        PurgeGroup(queue=queue),
        DeleteQueue(name=queue),
        FindOffset(queue=queue, append_time_us=0),
        FetchPosition(queue=queue, group="g"),
        CommitPosition(queue=queue, group="g", position=position),
        ListGroups(queue=queue),
        ResetGroups(queue=queue, to="earliest"),
    ]


def _check(error: MirrorlogError, info: QueueInfo, began: float) -> None:
    assert isinstance(error, LogUnavailable), error
    assert error.details["node"] == info.master
    assert abs(error.details["since"] / 1e6 - time.time()) < 60
    assert info.master in str(error)
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.long
async def test_a_durable_queue_whose_only_node_is_down_answers_at_once_and_names_it(three: Cluster) -> None:
    """Goal: nobody waits for a node that somebody has to start. Method: every request, a batch and a fetch, sent to
    both other nodes: LOG_UNAVAILABLE with node and time, and the queue is listed with them; with the node back all is
    there."""
    async with with_its_node_down(three, "alone") as (info, node):
        for other in (each for each in three.nodes.values() if each is not node):
            with Raw(other.client) as raw:
                for message in _asked("alone", info):
                    began = time.monotonic()
                    _check(error_of(partial(raw.request, message, Message)), info, began)
                listed = raw.request(GetMetadata(), Metadata).outages
                assert [(each.name, each.node, each.log_id) for each in listed] == [("alone", node.id, info.log_id)]
                assert node.id in listed[0].reason
                named = raw.request(GetMetadata(queues=["alone", "never"]), Metadata)
                assert (named.missing, [each.name for each in named.outages]) == (["alone", "never"], ["alone"])
                for act in (partial(raw.produce, batch_of([b"x"], info)), partial(raw.fetch, info.queue_id, 0)):
                    _check(error_of(act), info, time.monotonic())
    async with Client(*three.servers) as client:
        async with client.consumer("alone", start="earliest", until="confirmed") as consumer:
            assert [record.value async for record in consumer] == [b"0", b"1", b"2"]
        with pytest.raises(QueueExists, match="copies=1"):
            await client.admin.declare("alone", {"copies": 2})


async def _produce(client: Client) -> object:
    async with client.producer("lonely") as producer:
        return await producer.send(b"x")


async def _publish(client: Client) -> object:
    async with client.publisher("") as publisher:
        return await publisher.publish("lonely", b"x")


async def _subscribe(client: Client) -> object:
    async with client.subscribe("lonely") as subscription:
        return await anext(subscription)


async def _consume(client: Client) -> object:
    async with client.consumer("lonely", start="earliest") as consumer:
        return await anext(aiter(consumer))


async def _publish_to_an_exchange(client: Client) -> object:
    async with client.publisher("to-lonely") as publisher:
        return await publisher.publish("", b"x")


async def _commit(client: Client) -> object:
    async with client.transaction() as transaction:
        transaction.send("lonely", b"x")
        return await transaction.commit()


async def _commit_to_an_exchange(client: Client) -> object:
    async with client.transaction() as transaction:
        transaction.publish("only-lonely", "", b"x")
        return await transaction.commit()


async def _commit_position(client: Client) -> object:
    info = (await client.admin.metadata(["lonely"])).outages[0]
    position = Position(log_id=info.log_id, epoch=1, queue_offset=1)
    return await client.admin.commit_position("lonely", "g", position)


async def test_a_client_is_told_at_once_whatever_it_begins(three: Cluster) -> None:
    """Goal: the client does not wait out its timeouts for what a node has told it. Method: each thing that it can begin
    with such a queue, with a fresh client that is given all nodes, the dead one first."""

    begun: list[Callable[[Client], Awaitable[object]]] = [
        _publish_to_an_exchange,
        _commit,
        _commit_to_an_exchange,
        _commit_position,
        lambda client: client.admin.reset_groups("lonely", to="earliest"),
        lambda client: client.admin.redrive("lonely"),
        lambda client: client.admin.delete_group("lonely", "g"),
        lambda client: client.admin.holds("lonely"),
        _produce,
        _publish,
        _subscribe,
        _consume,
        lambda client: client.lease("lonely"),
        lambda client: client.admin.declare("lonely", ONE),
        lambda client: client.admin.declare("lonely"),
        lambda client: client.admin.delete_queue("lonely"),
        lambda client: client.admin.purge("lonely"),
        lambda client: client.admin.groups("lonely"),
        lambda client: client.admin.position("lonely", "g"),
        lambda client: client.admin.find_offset("lonely", 0),
    ]
    async with Client(*three.servers) as client:
        await client.admin.declare("lonely", ONE)
        for exchange in ("only-lonely", "to-lonely"):
            await client.admin.topology.declare_exchange(exchange, "fanout")
            await client.admin.topology.bind(exchange, "lonely")
        # Of a message that leads there and elsewhere nothing is stored either.
        await client.admin.declare("beside", {"copies": 3})
        await client.admin.topology.bind("to-lonely", "beside")
    async with with_its_node_down(three, "lonely") as (info, node):
        servers = sorted(three.servers, key=lambda server: server != node.client)
        for begin in begun:
            async with Client(*servers) as client:
                began = time.monotonic()
                with pytest.raises(MirrorlogError) as raised:
                    async with asyncio.timeout(5):
                        await begin(client)
                _check(raised.value, info, began)
    async with Client(*three.servers) as client:
        assert (await client.admin.declare("beside", {"copies": 3})).next == 0


async def test_who_was_at_work_with_it_goes_on_when_its_node_is_back(three: Cluster) -> None:
    """Goal: a restart of the only node costs nobody his producer or subscription. Method: both stand while the node
    is killed and started; what is sent meanwhile lands, and comes."""
    async with Client(*three.servers, request_timeout_ms=20_000) as client:
        info = await client.admin.declare("steady", ONE)
        async with client.producer("steady") as producer, client.subscribe("steady") as subscription:
            await producer.send(b"before")
            assert (await anext(subscription)).value == b"before"
            node = three.nodes[info.master]
            node.kill()
            sending = asyncio.ensure_future(producer.send(b"meanwhile"))
            await asyncio.to_thread(node.start)
            await sending
            found = [delivered.value async for delivered in _until(subscription, b"meanwhile")]
            assert found[-1] == b"meanwhile"


@pytest.mark.long_after(1)
@pytest.mark.parametrize("committed_before", [False, True])
async def test_who_takes_and_sends_in_transactions_goes_on_when_its_node_is_back(
    three: Cluster, committed_before: bool
) -> None:
    """Goal: a restart of the only node ends no loop that takes, works and commits, be it in its first commit. Method:
    the node is killed, and the others say so; a commit begins, and the node is started: it ends well, once."""
    queue = f"looped-{committed_before}"
    async with Client(*three.servers) as client:
        info = await client.admin.declare(queue, ONE)
        async with client.producer(queue) as producer:
            for number in range(3):
                await producer.send(b"%d" % number)
        async with client.subscribe(queue) as subscription:
            first, second, _ = await subscription.receive(3, timeout_ms=10_000)
            if committed_before:
                async with client.transaction() as transaction:
                    transaction.send(queue, b"before")
                    await transaction.commit()
            node = three.nodes[info.master]
            others = [each for each in three.nodes.values() if each is not node]
            node.kill()
            for each in others:
                down = partial(eventually, lambda each=each: queue in _outages(each), "it is known to be down")
                await asyncio.to_thread(down)
            transaction = client.transaction(timeout_ms=20_000)
            transaction.send(queue, b"last")
            if not committed_before:
                transaction.ack(first)
            committing = asyncio.ensure_future(transaction.commit())
            settling = asyncio.ensure_future(second.ack())
            await asyncio.to_thread(node.start)
            await committing
            await settling
        async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
            values = [record.value async for record in consumer]
        assert values == [b"0", b"1", b"2", *[b"before"] * committed_before, b"last"]


async def _until(subscription: Subscription, last: bytes) -> AsyncIterator[Delivered]:
    async for delivered in subscription:
        yield delivered
        if delivered.value == last:
            return


@pytest.mark.long
async def test_a_queue_whose_only_whole_copy_is_down_is_read_from_its_other_copy_and_names_the_node() -> None:
    """Goal: whoever wants a master that cannot be there is told at once which node to start, and a reader of a mirror
    goes on. Method: three nodes, a log of two copies that needs one; the mirror stops and leaves the set, more is
    published, the master dies, the mirror is back: it knows the first record. With the master back all is there."""
    logs = ({"mirrors": ["n2"]},)
    with fast_cluster(3, min_in_sync=1, logs=logs, settings={"cluster.node_timeout_ms": 600}) as cluster:
        cluster.wait_in_sync()
        n1, n2, n3 = (cluster.nodes[name] for name in ("n1", "n2", "n3"))

        def members() -> list[str]:
            view = n3.status().cluster
            return next(log.in_sync for log in view.logs if log.name == "main") if view is not None else []

        async with Client(n1.client) as client:
            await client.admin.declare("q")
            async with client.producer("q") as producer:
                await producer.send(b"1")
                await asyncio.to_thread(cluster.wait_confirmed)
                await asyncio.to_thread(n2.stop)
                await asyncio.to_thread(eventually, lambda: members() == ["n1"], "the mirror has left the set")
                await producer.send(b"2")
        n1.kill()
        await asyncio.to_thread(n2.start)

        def named() -> list[str]:
            with Raw(n2.client) as raw:
                return [each.node for each in raw.request(GetMetadata(queues=["q"]), Metadata).outages]

        await asyncio.to_thread(eventually, lambda: named() == ["n1"], "the mirror knows that the master is down")
        async with Client(*cluster.servers) as client:
            began = time.monotonic()
            with pytest.raises(LogUnavailable, match="waits for node n1, which alone had everything"):
                async with client.producer("q"):
                    pass
            with pytest.raises(LogUnavailable, match="mqtool promote"):
                await client.lease("q")
            assert time.monotonic() - began < 2 * AT_ONCE_S
            async with client.consumer("q", start="earliest", read_from="n2") as consumer:
                assert (await consumer.read(1, timeout_ms=10_000))[0].value == b"1"
            await asyncio.to_thread(n1.start)
            async with client.consumer("q", start="earliest", until="confirmed") as consumer:
                assert [record.value async for record in consumer] == [b"1", b"2"]
