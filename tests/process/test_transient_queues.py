"""Exclusive queues and those that are not durable, on real nodes: they go with their connection or their node, and
nobody else loses anything by them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from mirrorlog.client import Client, Subscription
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    MirrorlogError,
    NoSuchQueue,
    OutcomeUnknown,
    QueueExclusive,
    QueueExists,
)
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import Lease, ListGroups, PurgeGroup, Subscribe
from mirrorlog.wire.messages.queues import (
    DeclareQueue,
    Deleted,
    DeleteQueue,
    FetchPosition,
    GetMetadata,
    Metadata,
    QueueInfo,
)
from mirrorlog.wire.messages.topology import Bind
from mirrorlog.wire.routing import Binding
from tests.process.clusters import error_of, fast_cluster
from tests.process.raw import Raw, batch_of

OWN = {"exclusive": True}
PASSING = {"durable": False}
SOON_S = 15.0


@asynccontextmanager
async def cluster_of(directory: Path, node_timeout_ms: int = 600) -> AsyncIterator[tuple[Cluster, Client]]:
    settings = {"cluster.node_timeout_ms": node_timeout_ms}
    with fast_cluster(3, min_in_sync=2, data_dir=directory, settings=settings) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers, request_timeout_ms=10_000) as client:
            yield cluster, client


async def is_there(client: Client, queue: str) -> bool:
    metadata = await client.admin.metadata([queue])
    return bool(metadata.queues or metadata.placed)


async def gone(client: Client, queue: str) -> None:
    async with asyncio.timeout(SOON_S):
        while await is_there(client, queue):  # noqa: ASYNC110  (nobody tells)
            await asyncio.sleep(0.05)


async def ended(subscription: Subscription) -> MirrorlogError:
    try:
        async for _ in subscription:
            pass
    except MirrorlogError as error:
        return error
    raise AssertionError("it ended without a reason")


def copies_of(cluster: Cluster, info: QueueInfo) -> list[str]:
    """The nodes with a directory of the queue's log."""
    return [node.id for node in cluster.nodes.values() if (node.data_dir / "logs" / info.log_id).exists()]


def declared(raw: Raw, name: str, **arguments: object) -> QueueInfo:
    return raw.request(DeclareQueue(name=name, arguments=arguments), Metadata).queues[0]


def declared_behind(raw: Raw, name: str) -> QueueInfo:
    """As soon as the node has missed the one who had it."""
    give_up_at = time.monotonic() + SOON_S
    while True:
        try:
            return declared(raw, name, **OWN)
        except QueueExclusive:
            if time.monotonic() > give_up_at:
                raise


def declared_when_free(node: Node, name: str, **arguments: object) -> QueueInfo:
    """As soon as the node can, over as many connections as that takes."""
    give_up_at = time.monotonic() + SOON_S
    while True:
        try:
            with Raw(node.client) as raw:
                while True:
                    try:
                        return declared(raw, name, **arguments)
                    except ConnectionLost:
                        raise
                    except MirrorlogError:
                        if time.monotonic() > give_up_at:
                            raise
        except (ConnectionLost, OSError):
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.002)


def asked_of(queue: str) -> list[Message]:
    return [
        DeclareQueue(name=queue, arguments=OWN),
        DeclareQueue(name=queue),
        Subscribe(queue=queue),
        Lease(queue=queue, records_max=1, lease_ms=1_000),
        PurgeGroup(queue=queue),
        DeleteQueue(name=queue),
        FetchPosition(queue=queue, group="g"),
        ListGroups(queue=queue),
        Bind(virtual_host="/", bindings=[Binding("e", queue)]),
    ]


async def test_an_exclusive_queue_is_its_connections_alone(tmp_path: Path) -> None:
    """Goal: nobody else uses it, everybody may publish to it, and it is on one node and in no mirror. Method: every
    request and a fetch over another connection to its node; its owner does the same things; its connection ends: it is
    gone on all nodes, its name free, and its id is not used again."""
    async with cluster_of(tmp_path / "nodes") as (cluster, client):
        await client.admin.topology.declare_exchange("e", "fanout")
        node = cluster.nodes["n2"]
        with Raw(node.client) as owner, Raw(node.client) as other:
            info = declared(owner, "mine", **OWN)
            assert (info.master, info.mirrors) == ("n2", [])
            for message in asked_of("mine"):
                error = error_of(lambda message=message: other.request(message, Message))
                assert isinstance(error, QueueExclusive), (message, error)
                assert error.details["queue"] == "mine"
            assert isinstance(error_of(lambda: other.fetch(info.queue_id, 0)), QueueExclusive)
            other.produce(batch_of([b"from another"], info))
            assert owner.values(info.queue_id) == [b"from another"]
            assert declared(owner, "mine", **OWN).queue_id == info.queue_id
            assert isinstance(error_of(lambda: declared(owner, "mine")), QueueExists)
            assert copies_of(cluster, info) == ["n2"]
            owner.close()
            await gone(client, "mine")
            again = declared(other, "mine", **OWN)
            assert again.log_id == info.log_id
            assert again.queue_id > info.queue_id
            assert other.values(again.queue_id) == []
        await gone(client, "mine")
        durable = await client.admin.declare("mine")
        assert durable.log_id != info.log_id


@pytest.mark.long
async def test_a_client_uses_its_exclusive_queue_over_all_its_connections(tmp_path: Path) -> None:
    """A client that knows the node by another address has two connections to it, and one queue; without a name it is
    given one, another each time; its subscription gets what is published through an exchange; with the client it goes,
    and what led to it."""
    async with cluster_of(tmp_path / "nodes") as (cluster, client):
        await client.admin.topology.declare_exchange("e", "fanout")
        port = cluster.nodes["n3"].client.rpartition(":")[2]
        async with Client(f"localhost:{port}") as mine:
            info = await mine.admin.declare("", OWN)
            another = await mine.admin.declare("", OWN)
            durable = await mine.admin.declare("")
            names = {info.name, another.name, durable.name}
            assert len(names) == 3
            assert all(name.startswith("amq.gen-") and len(name) == 30 for name in names)
            assert (info.master, durable.mirrors != []) == ("n3", True)
            await mine.admin.topology.bind("e", info.name)
            async with mine.subscribe(info.name) as subscription, client.publisher("e") as publisher:
                await publisher.publish("", b"x")
                delivered = await anext(subscription)
                assert delivered.value == b"x"
                await delivered.ack()
            with pytest.raises(QueueExclusive):
                await client.admin.purge(info.name)
            with pytest.raises(BadRequest, match="empty name"):
                await client.admin.declare("amq.gen-mine")
        await gone(client, info.name)
        await gone(client, another.name)
        assert not (await client.admin.topology.routing()).bindings
        assert await is_there(client, durable.name)


@pytest.mark.long
async def test_a_thousand_exclusive_queues_go_at_once(tmp_path: Path) -> None:
    """Goal: a client that goes costs the cluster a few decisions, not thousands. Method: 1,000 queues over one
    connection, and what the cluster has decided since: two decisions, or a few when a look came in between."""
    async with cluster_of(tmp_path / "nodes", node_timeout_ms=10_000) as (cluster, client):
        with Raw(cluster.nodes["n1"].client) as raw:
            asked = [raw.ask(DeclareQueue(name=f"q{number}", arguments=OWN)) for number in range(1_000)]
            for correlation_id in asked:
                raw.answer(correlation_id, timeout=60)
            before = cluster.nodes["n1"].status().cluster
            raw.close()
            for number in (0, 999):
                await gone(client, f"q{number}")
        after = cluster.nodes["n1"].status().cluster
        assert before is not None
        assert after is not None
        assert after.version - before.version < 10
        assert not (await client.admin.metadata(None)).queues


@pytest.mark.long
@pytest.mark.parametrize("arguments", [OWN, PASSING], ids=["exclusive", "not durable"])
@pytest.mark.parametrize("how", ["killed", "stopped"])
async def test_a_queue_that_is_not_durable_goes_with_its_node_and_consumers_are_told(
    tmp_path: Path, arguments: dict[str, bool], how: str
) -> None:
    """Goal: gone from the lists when its node is, whether that comes back or not; who is subscribed is told; it may be
    declared elsewhere, under another id; and no old record comes with the node."""
    async with cluster_of(tmp_path / "nodes") as (cluster, client):
        node: Node = cluster.nodes["n3"]
        servers = [node.client, *(each for each in cluster.servers if each != node.client)]
        async with Client(*servers, request_timeout_ms=60_000) as owner:
            info = await owner.admin.declare("passing", arguments)
            assert (info.master, info.mirrors) == ("n3", [])
            await client.admin.declare("lasting", {"copies": 3})
            await client.admin.topology.declare_exchange("e", "fanout")
            await owner.admin.topology.bind("e", "passing")
            async with owner.producer("passing") as producer:
                await producer.send(b"old")
            producer = await owner.producer("passing", delivery_timeout_ms=120_000).start()
            consumer = await owner.consumer("passing", start="latest").start()
            async with owner.subscribe("passing") as subscription:
                assert (await anext(subscription)).value == b"old"
                waits: list[Awaitable[object]] = [
                    ended(subscription),
                    anext(aiter(consumer)),
                    owner.lease("passing", wait_ms=60_000),
                ]
                told = [asyncio.ensure_future(each) for each in waits]
                await asyncio.to_thread(node.kill if how == "killed" else node.stop)
                async with asyncio.timeout(SOON_S):
                    *read, leased = await asyncio.gather(*told, return_exceptions=True)
                    assert all(isinstance(each, NoSuchQueue) for each in read), read
                    # A lease that has left is not asked for again: nobody knows whether it was given.
                    assert isinstance(leased, NoSuchQueue | OutcomeUnknown), leased
                    with pytest.raises(NoSuchQueue, match="gone with its node"):
                        await producer.send(b"nobody's")
        await gone(client, "passing")
        assert not (await client.admin.topology.routing()).bindings
        async with Client(cluster.nodes["n1"].client) as elsewhere:
            again = await elsewhere.admin.declare("passing", arguments)
            assert (again.master, again.log_id != info.log_id) == ("n1", True)
            assert again.queue_id != info.queue_id
            await elsewhere.admin.topology.bind("e", "passing")
            await asyncio.to_thread(node.start)
            with Raw(node.client) as raw:
                assert isinstance(error_of(lambda: raw.fetch(info.queue_id, 0)), NoSuchQueue)
                found = raw.request(GetMetadata(), Metadata).queues
                assert info.queue_id not in [queue.queue_id for queue in found]
            bindings = (await client.admin.topology.routing()).bindings
            assert [each.destination for each in bindings] == ["passing"], "the other one's"
            async with elsewhere.consumer("passing", start="earliest", until="confirmed") as consumer:
                assert [record.value async for record in consumer] == []
            assert await is_there(client, "lasting")


@pytest.mark.long
async def test_the_queue_of_an_owner_that_hangs_goes(tmp_path: Path) -> None:
    """Goal: a client that is there and says nothing holds no queue for ever. Method: one whose connection is open and
    silent, as of a program that is stopped, and one that says that it lives: `limits.idle_timeout_ms` later the first
    one's queue is gone, its name is free, and the other one's is there."""
    settings = {"limits.idle_timeout_ms": 1_500}
    with fast_cluster(1, min_in_sync=1, data_dir=tmp_path / "nodes", settings=settings) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            mine = await client.admin.declare("mine", OWN)
            with Raw(cluster.servers[0]) as silent:
                hanging = declared(silent, "hanging", **OWN)
                began = time.monotonic()
                await gone(client, "hanging")
                assert time.monotonic() - began < 1.5 + SOON_S / 2
                assert (await client.admin.declare("hanging", OWN)).queue_id > hanging.queue_id
                assert isinstance(error_of(lambda: silent.request(GetMetadata(), Metadata)), ConnectionLost)
            assert (await client.admin.declare("mine", OWN)).queue_id == mine.queue_id


@pytest.mark.long
async def test_a_queue_that_is_not_durable_survives_connections(tmp_path: Path) -> None:
    """It is its node's, not a connection's: everybody uses it, through every node, and it is there when the one who
    declared it has gone. What asks for copies, a disk or a common log with it is refused."""
    async with cluster_of(tmp_path / "nodes") as (cluster, client):
        async with Client(cluster.nodes["n2"].client) as other:
            info = await other.admin.declare("passing", PASSING)
        assert copies_of(cluster, info) == ["n2"]
        async with client.producer("passing") as producer:
            await producer.send(b"x")
        async with client.subscribe("passing") as subscription:
            assert (await anext(subscription)).value == b"x"
        assert (await client.admin.declare("passing", PASSING)).queue_id == info.queue_id
        with pytest.raises(QueueExists, match="durable=False"):
            await client.admin.declare("passing")
        with pytest.raises(QueueExists, match="durable=False"):
            await client.admin.declare("passing", {"durable": True})
        for wrong in ({"copies": 2}, {"flush": "disk"}, {"x-log-group": "g"}):
            with pytest.raises(BadRequest, match=next(iter(wrong))):
                await client.admin.declare("wrong", {**PASSING, **wrong})
        assert await client.admin.delete_queue("passing") == 1


async def test_who_declares_a_name_behind_its_owners_end_gets_no_record_of_his(tmp_path: Path) -> None:
    """Goal: an exclusive queue is over when its connection is, though its deletion takes the cluster a moment. Method:
    several times: it has a record, its connection ends, and another one that knows its id fetches from it and declares
    the name at once: it never reads the record, and has another queue."""
    with fast_cluster(1, min_in_sync=1, data_dir=tmp_path / "nodes") as cluster:
        cluster.wait_in_sync()
        node = next(iter(cluster.nodes.values()))
        with Raw(node.client) as other:
            for _ in range(5):
                with Raw(node.client) as owner:
                    info = declared(owner, "mine", **OWN)
                    owner.produce(batch_of([b"secret"], info))
                fetched = other.start_fetch(info.queue_id, 0)
                again = declared_behind(other, "mine")
                assert again.queue_id > info.queue_id
                assert other.values(again.queue_id) == []
                assert isinstance(
                    error_of(lambda fetched=fetched: other.batches(fetched)), NoSuchQueue | QueueExclusive
                )
                assert other.request(DeleteQueue(name="mine"), Deleted).records == 0


@pytest.mark.long
@pytest.mark.parametrize("arguments", [OWN, PASSING], ids=["exclusive", "not durable"])
async def test_what_a_killed_node_held_never_comes_back_under_its_name(
    tmp_path: Path, arguments: dict[str, bool]
) -> None:
    """Goal: a run's queues are gone with it, also for who declares one as soon as its node is back. Method: a record, a
    kill, and declarations again and again from the first moment on; several times."""
    with fast_cluster(1, min_in_sync=1, data_dir=tmp_path / "nodes") as cluster:
        cluster.wait_in_sync()
        node = next(iter(cluster.nodes.values()))
        seen: set[int] = set()
        for _ in range(3):
            with Raw(node.client) as raw:
                info = declared(raw, "passing", **arguments)
                assert info.queue_id not in seen
                seen.add(info.queue_id)
                raw.produce(batch_of([b"old"], info))
                node.kill()
            node.launch()
            again = await asyncio.to_thread(declared_when_free, node, "passing", **arguments)
            assert (again.queue_id in seen, again.next) == (False, 0)
            seen.add(again.queue_id)
            node.wait_serving()
            with Raw(node.client) as raw:
                assert isinstance(error_of(lambda raw=raw, info=info: raw.fetch(info.queue_id, 0)), NoSuchQueue)
                if "durable" in arguments:
                    raw.request(DeleteQueue(name="passing"), Deleted)


@pytest.mark.long
async def test_a_durable_queue_does_not_get_into_a_log_that_goes_with_its_node(tmp_path: Path) -> None:
    """Goal: an `x-log-group` does not lead there. Method: a queue that is not durable is declared as durable with a
    group through another node, which is refused; the next queue of that group has its mirrors."""
    async with cluster_of(tmp_path / "nodes") as (cluster, client):
        async with Client(cluster.nodes["n1"].client) as first, Client(cluster.nodes["n2"].client) as second:
            passing = await first.admin.declare("orders", PASSING)
            with pytest.raises((BadRequest, QueueExists)):
                await second.admin.declare("orders", {"x-log-group": "g"})
        invoices = await client.admin.declare("invoices", {"x-log-group": "g"})
        assert invoices.log_id != passing.log_id
        assert invoices.mirrors
