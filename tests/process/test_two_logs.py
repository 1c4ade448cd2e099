"""Two logs in one cluster: one in memory whose home is n1, one on disk whose home is n2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import LogCorrupt, NoSuchQueue, NotMaster, QueueExists
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.frames import Durability
from mirrorlog.wire.messages.queues import DeclareQueue, GetMetadata, Metadata, QueueInfo
from tests.process.clusters import error_of, eventually, fast_cluster
from tests.process.raw import Raw, batch_of

ON_DISK = {"flush": "disk"}
IN_LOGS = ("main", "main", "disk", "disk")
LOGS = [{}, {"name": "disk", "master": "n2", **ON_DISK}]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with fast_cluster(2, data_dir=tmp_path_factory.mktemp("two"), logs=LOGS) as cluster:
        cluster.wait_in_sync()
        yield cluster


async def publish(client: Client, queue: str, *values: bytes) -> set[int]:
    """The durabilities that the receipts name."""
    async with client.producer(queue) as producer:
        return {(await producer.send(value)).durability for value in values}


async def values(client: Client, queue: str, *, read_from: str = "master") -> list[bytes]:
    async with client.consumer(queue, until="confirmed", start="earliest", read_from=read_from) as consumer:
        return [record.value or b"" async for record in consumer]


def log_id_of(cluster: Cluster, log: str) -> str:
    return next(each.log_id for each in cluster.nodes["n1"].status().logs if each.name == log)


def directory_of(node: Node, log: str) -> Path:
    return node.data_dir / "logs" / next(each.log_id for each in node.status().logs if each.name == log)


def declare_at(node: Node, name: str, **arguments: str) -> QueueInfo:
    with Raw(node.client) as raw:
        return raw.request(DeclareQueue(name=name, arguments=arguments), Metadata).queues[0]


@pytest.mark.long
async def test_a_queue_lives_in_the_log_of_its_flush_mode(two: Cluster) -> None:
    """Goal: each queue has its log's master, durability and ids, whoever is asked, also after a restart. Method: one
    queue of either kind through each node, records and positions in all, then both nodes are killed and started."""
    queues = {"memory-1": {"flush": "memory"}, "memory-2": {"flush": "memory"}, "disk-1": ON_DISK, "disk-2": ON_DISK}
    found: dict[str, QueueInfo] = {}
    for name, server in zip(queues, two.servers * 2, strict=True):
        async with Client(server) as client:
            found[name] = await client.admin.declare(name, queues[name])
            durability = Durability.DISK if name.startswith("disk") else Durability.MEMORY
            assert await publish(client, name, name.encode(), b"second") == {durability}
            assert await values(client, name) == [name.encode(), b"second"]
            async with client.consumer(name, group="g") as consumer:
                await anext(aiter(consumer))
                await consumer.commit()
    assert [found[name].master for name in queues] == [two.wait_master(log) for log in IN_LOGS]
    assert [found[name].queue_id >> 24 for name in queues] == [0, 0, 1, 1]
    assert len({info.queue_id for info in found.values()}) == len(queues)
    assert len({info.log_id for info in found.values()}) == 2
    two.wait_confirmed()
    for node in two.nodes.values():
        node.kill()
    for node in two.nodes.values():
        node.start()
    two.wait_in_sync()
    masters = {log_id_of(two, log): two.wait_master(log) for log in ("main", "disk")}
    for server in two.servers:
        async with Client(server) as client:
            again = {info.name: info for info in await client.admin.queues()}
            for name in queues:
                assert again[name].queue_id == found[name].queue_id
                assert again[name].master == masters[found[name].log_id]
                assert await values(client, name) == [name.encode(), b"second"]
                assert await values(client, name, read_from="mirror") == [name.encode(), b"second"]
                position = await client.admin.position(name, "g")
                assert position is not None
                assert (position.queue_offset, position.log_id) == (1, found[name].log_id)


def test_the_status_of_each_node_tells_of_both_logs(two: Cluster) -> None:
    """Goal: what `mqtool offsets` shows is per log. Ask both nodes for roles, flush modes and mirrors."""
    seen = {
        (node_id, log.name): (log.role, log.state, log.flush, [mirror.node_id for mirror in log.mirrors])
        for node_id, status in two.statuses().items()
        for log in status.logs
    }
    expected = {}
    for log, flush in (("main", "memory"), ("disk", "disk")):
        master = two.wait_master(log)
        (mirror,) = two.nodes.keys() - {master}
        expected[master, log] = ("master", "serving", flush, [mirror])
        expected[mirror, log] = ("mirror", "following", flush, [])
    assert seen == expected


def test_a_node_that_does_not_write_the_log_names_the_one_that_does(two: Cluster) -> None:
    """Goal: a client finds the way with one more question. Declare and publish where the log is mirrored."""
    for log, flush in (("main", "memory"), ("disk", "disk")):
        there = two.wait_master(log)
        (here,) = two.nodes.keys() - {there}
        error = error_of(lambda here=here, flush=flush: declare_at(two.nodes[here], f"away-{flush}", flush=flush))  # type: ignore[misc]
        assert type(error) is NotMaster
        assert error.details == {"master": two.nodes[there].client, "node": there}
        queue = declare_at(two.nodes[there], f"of-{log}", flush=flush)
        with Raw(two.nodes[here].client) as raw:
            assert type(error_of(lambda raw=raw, queue=queue: raw.produce(batch_of([b"x"], queue)))) is NotMaster  # type: ignore[misc]


def test_a_name_is_of_one_queue_in_all_logs(two: Cluster) -> None:
    """Goal: no second queue of a name in another log. Declare one with the other flush mode, at both nodes."""
    memory, disk = two.nodes[two.wait_master("main")], two.nodes[two.wait_master("disk")]
    declare_at(memory, "one", flush="memory")
    declare_at(disk, "two", flush="disk")
    two.wait_confirmed()
    for node in two.nodes.values():
        error = error_of(lambda node=node: declare_at(node, "one", flush="disk"))  # type: ignore[misc]
        assert type(error) is QueueExists
        assert "flush='memory'" in error.message
        assert type(error_of(lambda node=node: declare_at(node, "two"))) is QueueExists  # type: ignore[misc]
    assert declare_at(disk, "one", flush="memory").master == memory.id


def test_an_id_of_no_log_is_no_queue(two: Cluster) -> None:
    """Goal: ids that nobody gave out are refused. Fetch and publish with one of each log, and of a log not there."""
    with Raw(two.servers[0]) as raw:
        for queue_id in (999, 2 << 24 | 1, 255 << 24 | 1):
            assert type(error_of(lambda queue_id=queue_id: raw.fetch(queue_id, 0))) is NoSuchQueue  # type: ignore[misc]
            batch = batch_of([b"x"], queue_id)
            assert type(error_of(lambda batch=batch: raw.produce(batch))) is NoSuchQueue  # type: ignore[misc]


async def test_a_flush_mode_that_no_log_has_gets_a_log() -> None:
    """Goal: nobody believes to be on disk who is not. One log in memory, a queue that asks for disk: a log is made for
    it, whose master the client waits for; what goes there is on disk, and the log in memory has none of it."""
    with fast_cluster(1) as one:
        async with Client(*one.servers) as client:
            on_disk = await client.admin.declare("q", ON_DISK)
            assert on_disk.log_id != log_id_of(one, "main")
            assert on_disk.master == one.master.id
            assert on_disk.queue_id == 1 << 24 | 1
            assert await publish(client, "q", b"x") == {Durability.DISK}
            assert await values(client, "q") == [b"x"]
        assert next(log.flush for log in one.master.status().logs if log.log_id == on_disk.log_id) == "disk"
        assert declare_at(one.master, "r", flush="memory").queue_id == 1


@pytest.mark.long_after(1)
@pytest.mark.parametrize("numbered", [False, True])
def test_logs_keep_their_numbers_whatever_the_list_says_later(tmp_path: Path, numbered: bool) -> None:
    """Goal: no id changes its queue by an edit of the list, which founds a cluster and is not looked at again. Turn it
    around, with and without numbers in it: what was declared is where it was, and the next id follows."""
    logs = [{}, {"name": "disk", **ON_DISK}]
    with fast_cluster(1, data_dir=tmp_path, logs=logs) as one:
        before = declare_at(one.master, "q", flush="disk")
        with Raw(one.servers[0]) as raw:
            raw.produce(batch_of([b"x"], before))
    turned = [{**log, "number": number} if numbered else log for number, log in enumerate(reversed(logs))]
    with fast_cluster(1, data_dir=tmp_path, logs=turned) as one:
        one.wait_in_sync()
        assert declare_at(one.master, "q", flush="disk").queue_id == before.queue_id
        assert declare_at(one.master, "r", flush="disk").queue_id == before.queue_id + 1
        with Raw(one.servers[0]) as raw:
            assert raw.values(before.queue_id) == [b"x"]


@pytest.mark.long
def test_a_log_that_is_refused_leaves_the_other_one_alone(tmp_path: Path) -> None:
    """Goal: corruption closes one log, not a node. Flip a byte of the log on disk, start, use both."""
    with fast_cluster(1, data_dir=tmp_path, logs=[{}, {"name": "disk", "number": 255, **ON_DISK}]) as one:
        node = one.master
        queues = [declare_at(node, "good"), declare_at(node, "bad", flush="disk")]
        assert [queue.queue_id for queue in queues] == [1, 255 << 24 | 1]
        with Raw(node.client) as raw:
            for queue in queues:
                raw.produce(batch_of([b"x" * 1000], queue))
                assert raw.values(queue.queue_id) == [b"x" * 1000]
        segment = directory_of(node, "disk") / ("0" * 20)
        node.stop()
        content = bytearray(segment.read_bytes())
        content[500] ^= 1
        segment.write_bytes(content)
        node.start()
        good, bad = queues
        with Raw(node.client) as raw:
            eventually(lambda: raw.produce(batch_of([b"y"], good)), "the good log takes records")
            assert raw.values(good.queue_id) == [b"x" * 1000, b"y"]
            for call in (
                lambda: raw.fetch(bad.queue_id, 0),
                lambda: raw.produce(batch_of([b"y"], bad)),
                lambda: raw.request(GetMetadata(queues=["bad"]), Metadata),
                lambda: declare_at(node, "bad", flush="disk"),
            ):
                error = error_of(call)
                assert type(error) is LogCorrupt, repr(error)
            assert declare_at(node, "new").queue_id == good.queue_id + 1
