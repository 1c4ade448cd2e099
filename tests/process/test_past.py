"""What is far behind: sealed, forgotten by the memory, read again, freed; through restarts of every node."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.commitlog.index.blocks import BLOCK_BYTES
from mirrorlog.errors import OffsetOutOfRange, Overloaded
from mirrorlog.testing import Cluster, Node
from tests.process.clusters import MIB, eventually, facts, fast_cluster, log_directory, log_lines, log_of

pytestmark = pytest.mark.process

KIB = 1024
SMALL = {
    "log.kept_mapped_bytes": 0,
    "log.prepare_bytes": 0,
    "limits.max_batch_bytes": 256 * KIB,
    "limits.max_record_bytes": 128 * KIB,
}
QUEUES = ("a", "b", "c")
Content = dict[str, list[bytes]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fast_cluster(2, segment_bytes=MIB, settings=SMALL) as started:
        started.wait_in_sync()
        yield started


async def publish(servers: list[str], seed: int, total_bytes: int, queues: tuple[str, ...] = QUEUES) -> Content:
    """Random records of random sizes, in turns to each queue; what was confirmed."""
    choose = random.Random(seed)
    content: Content = {queue: [] for queue in queues}
    async with Client(*servers) as client:
        producers = {}
        for queue in queues:
            await client.admin.declare(queue)
            producers[queue] = await client.producer(queue, batch_bytes=16 * KIB).start()
        while sum(sum(map(len, values)) for values in content.values()) < total_bytes:
            queue = choose.choice(queues)
            for _ in range(choose.randrange(1, 40)):
                value = choose.randbytes(choose.randrange(0, 2 * KIB))
                while True:
                    try:
                        producers[queue].send_nowait(value)
                        break
                    except Overloaded:
                        await producers[queue].room()
                content[queue].append(value)
            await producers[queue].flush()
    return content


async def read(
    servers: list[str], queue: str, *, start: int | str = "earliest", read_from: str = "master"
) -> list[bytes]:
    async with (
        Client(*servers) as client,
        client.consumer(queue, start=start, until="confirmed", read_from=read_from) as consumer,
    ):
        return [record.value or b"" async for record in consumer]


def tables(node: Node) -> list[Path]:
    return sorted(log_directory(node).glob("*.table"))


def segment_names(node: Node) -> list[int]:
    return sorted(int(path.name) for path in log_directory(node).iterdir() if path.name.isdigit())


def restart_all(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        node.stop()
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_in_sync()


def assert_reads(cluster: Cluster, content: Content) -> None:
    """Every record in order from both copies, and from offsets in the middle."""
    end = cluster.wait_confirmed().end
    eventually(lambda: all(log_of(node).confirmed == end for node in cluster.nodes.values()), "all copies know it")
    for queue, values in content.items():
        for read_from in ("master", "mirror"):
            assert asyncio.run(read(cluster.servers, queue, read_from=read_from)) == values
        for start in range(1, len(values), max(1, len(values) // 7)):
            assert asyncio.run(read(cluster.servers, queue, start=start)) == values[start:]


@pytest.mark.long
def test_what_the_memory_has_let_go_is_read_from_the_tables(cluster: Cluster) -> None:
    """Goal: no record is out of reach when its segment is sealed. Fill a dozen segments, read all of three interleaved
    queues from master and mirror, restart every node, read again and go on writing; delete the index, spoil a table:
    both are made anew."""
    content = asyncio.run(publish(cluster.servers, 1, 8 * MIB))
    for node in cluster.nodes.values():
        eventually(lambda node=node: len(tables(node)) >= 5, f"segments of {node.id} are sealed")
    assert_reads(cluster, content)
    restart_all(cluster)
    assert_reads(cluster, content)
    for queue, values in asyncio.run(publish(cluster.servers, 2, 2 * MIB)).items():
        content[queue] += values
    assert_reads(cluster, content)

    for node in cluster.nodes.values():
        node.stop()
        spoiled = tables(node)[1]
        spoiled.write_bytes(bytes(len(spoiled.read_bytes())))
        tables(node)[2].unlink()
        for file in (log_directory(node) / "index").iterdir():
            file.write_bytes(b"no index" * 1000)
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_in_sync()
    assert_reads(cluster, content)
    for node in cluster.nodes.values():
        (told,) = log_lines(node, "index_rebuilt")
        assert facts(told)["tables"] == "1", "the spoiled one; a missing one is no damage"


@pytest.mark.long
def test_what_is_derived_holds_up_no_stop_and_is_told_when_it_is_made_anew(tmp_path: Path) -> None:
    """Goal: a stop is clean and a damaged table is told, whenever it is met. Take the index away from a running node
    and stop it: exit code 0, a warning, no traceback. Kill it, flip a byte of a table where a start must read, so that
    the index is made again: one line, and every record is read."""
    with fast_cluster(1, segment_bytes=MIB, settings=SMALL, data_dir=tmp_path) as one:
        node = one.master
        content = asyncio.run(publish(one.servers, 5, 5 * MIB))
        eventually(lambda: len(tables(node)) >= 3, "segments are sealed")
        shutil.rmtree(log_directory(node) / "index")
        assert node.stop() == 0
        assert len(log_lines(node, "index_not_closed")) == 1
        assert len(log_lines(node, "node_stopped")) == 1
        assert "Traceback" not in node.log_file.read_text()

        node.start()
        node.kill()
        assert log_lines(node, "index_rebuilt") == []
        spoiled = tables(node)[1]
        whole = bytearray(spoiled.read_bytes())
        whole[BLOCK_BYTES + 5] ^= 1  # the first stretch
        spoiled.write_bytes(whole)
        node.start()
        (told,) = log_lines(node, "index_rebuilt")
        assert spoiled.name in told
        for queue, values in content.items():
            assert asyncio.run(read(one.servers, queue)) == values


def test_times_are_found_in_the_past(cluster: Cluster) -> None:
    """Goal: a lookup by time reaches as far as the log. Look up the append times of records all over the queue."""
    asyncio.run(publish(cluster.servers, 3, 6 * MIB, ("a",)))
    eventually(lambda: len(tables(cluster.master)) >= 3, "segments are sealed")

    async def check() -> None:
        async with Client(*cluster.servers) as client, client.consumer("a", until="confirmed") as consumer:
            batches = [(batch.header, batch.first) async for batch in consumer.batches()]
            first_at: dict[int, int] = {}
            for header, first in batches:
                first_at.setdefault(header.append_time_us, first)
            times = sorted(first_at)
            for time in times[:: max(1, len(times) // 20)]:
                assert await client.admin.find_offset("a", time) == first_at[time]
            assert await client.admin.find_offset("a", times[0] - 1) == 0
            assert await client.admin.find_offset("a", times[-1] + 1) == batches[-1][0].next_queue_offset

    asyncio.run(check())


@pytest.mark.long
def test_retention_frees_files_and_keeps_what_is_known(tmp_path: Path) -> None:
    """Goal: invariant 12. A log of at most 3 MiB: every copy frees the same segments, an idle queue keeps its offsets,
    its group's position and its producer's place through restarts, and what is freed is answered with the new begin."""
    settings = {**SMALL, "log.retention_bytes": 3 * MIB}
    with fast_cluster(2, segment_bytes=MIB, settings=settings) as cluster:
        cluster.wait_in_sync()

        async def use_idle_queue() -> None:
            async with Client(*cluster.servers) as client:
                await client.admin.declare("idle")
                async with client.producer("idle") as producer:
                    for _ in range(3):
                        await producer.send(b"early")
                async with client.consumer("idle", group="g", until="confirmed") as consumer:
                    assert len([record async for record in consumer]) == 3
                    await consumer.commit()

        asyncio.run(use_idle_queue())
        content = asyncio.run(publish(cluster.servers, 4, 10 * MIB))
        end = cluster.wait_confirmed().end
        for node in cluster.nodes.values():
            eventually(lambda node=node: log_of(node).begin >= end - 4 * MIB, f"{node.id} has freed its begin")
            eventually(lambda node=node: len(segment_names(node)) <= 6, f"{node.id} has freed its files")
            eventually(
                lambda node=node: f"begin={log_of(node).begin}\n" in node.log_file.read_text(), "the index knows"
            )

        async def look() -> None:
            async with Client(*cluster.servers) as client:
                infos = {info.name: info for info in await client.admin.queues()}
                assert set(infos) == {"idle", *QUEUES}
                assert (infos["idle"].begin, infos["idle"].next) == (3, 3), "its records are gone, its numbers are not"
                position = await client.admin.position("idle", "g")
                assert position is not None
                assert position.queue_offset == 3
                for queue, values in content.items():
                    info = infos[queue]
                    assert 0 < info.begin < info.next == len(values)
                    assert await read(cluster.servers, queue) == values[info.begin :]
                    with pytest.raises(OffsetOutOfRange):
                        await read(cluster.servers, queue, start=0)

        asyncio.run(look())
        restart_all(cluster)
        asyncio.run(look())

        async def go_on() -> None:
            async with Client(*cluster.servers) as client, client.producer("idle") as producer:
                assert (await producer.send(b"late")).queue_offset == 3

        asyncio.run(go_on())
