"""A mirror whose copy is of no use to the log any more begins anew, where the log begins or at its last segment."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import OffsetOutOfRange
from mirrorlog.testing import Cluster, Node
from tests.process.clusters import (
    MIB,
    eventually,
    facts,
    fast_cluster,
    log_directory,
    log_lines,
    log_of,
    lose_log,
    mirror_of,
)
from tests.process.test_past import SMALL, publish, read

pytestmark = pytest.mark.process

RETAINED = {**SMALL, "log.retention_bytes": 2 * MIB}


def fill(cluster: Cluster, seed: int, total_bytes: int) -> None:
    asyncio.run(publish(cluster.servers, seed, total_bytes, ("q",)))


def assert_reads_the_same(cluster: Cluster, mirror: Node) -> None:
    """What the mirror has of the queue is what the master has from there on."""
    end = cluster.wait_confirmed().end
    eventually(lambda: log_of(mirror).confirmed == end, "the mirror knows the last confirm")

    def same() -> bool:
        try:
            from_master = asyncio.run(read(cluster.servers, "q"))
            from_mirror = asyncio.run(read(cluster.servers, "q", read_from=mirror.id))
        except OffsetOutOfRange:
            return False  # retention was at work between asking for the begin and reading there
        shorter = min(len(from_master), len(from_mirror))
        return shorter > 0 and from_master[-shorter:] == from_mirror[-shorter:]

    eventually(same, "both give out the same records")


def aside(node: Node) -> list[Path]:
    return sorted((node.data_dir / "logs").glob("*.aside-*"))


def test_a_mirror_whose_copy_is_gone_begins_where_the_log_begins(tmp_path: Path) -> None:
    """Goal: invariant 1, none in common. Remove a mirror's copy after retention has moved the begin; it comes back as a
    whole member, with queues and positions that were declared below the begin."""
    with fast_cluster(2, segment_bytes=MIB, settings=RETAINED, min_in_sync=1) as cluster:
        cluster.wait_in_sync()
        fill(cluster, 1, 6 * MIB)
        cluster.wait_confirmed()
        eventually(lambda: log_of(cluster.master).begin > 2 * MIB, "the begin has moved")
        (mirror,) = cluster.mirrors
        mirror.stop()
        lose_log(mirror)
        mirror.start()
        cluster.wait_in_sync()
        assert log_of(mirror).begin > 2 * MIB
        assert [queue.name for queue in log_of(mirror).queues] == ["q"]
        assert_reads_the_same(cluster, mirror)
        assert mirror_of(cluster, mirror.id).in_sync
        assert aside(mirror) == []


@pytest.mark.long
def test_a_node_whose_disk_was_set_back_is_another_member(tmp_path: Path) -> None:
    """Goal: a restored snapshot of a machine comes back while the others run: what it forgot it may have voted for, so
    it is a member with no past, and its copy is filled up. Method: copy a stopped mirror's directory, start and stop it
    a few times, put the copy back."""
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as three:
        three.wait_in_sync()
        fill(three, 8, MIB // 4)
        mirror = three.nodes["n3"]
        assert mirror.stop() == 0
        kept = tmp_path / "kept"
        shutil.copytree(mirror.data_dir, kept)
        for _ in range(2):
            mirror.start()
            three.wait_in_sync()
            assert mirror.stop() == 0
        fill(three, 9, MIB // 4)
        shutil.rmtree(mirror.data_dir)
        kept.rename(mirror.data_dir)
        mirror.start()
        three.wait_in_sync()
        assert log_lines(mirror, "disk_set_back")
        assert log_lines(mirror, "begun_anew")
        assert_reads_the_same(three, mirror)


@pytest.mark.long
def test_a_disk_is_replaced_twice(tmp_path: Path) -> None:
    """Goal: what a node was founded as does not keep it out for ever. Method: take a mirror's disk away, let it come
    back as another member; the same again."""
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as three:
        three.wait_in_sync()
        mirror = three.nodes["n3"]
        for _ in range(2):
            assert mirror.stop() == 0
            shutil.rmtree(mirror.data_dir)
            mirror.start()
            three.wait_in_sync(timeout=10)
        assert len(log_lines(mirror, "disk_replaced")) == 2


@pytest.mark.long
def test_a_copy_that_ends_below_the_begin_is_set_aside(tmp_path: Path) -> None:
    """Goal: invariant 1, an end below the master's begin. Keep a mirror of three away while retention passes its end:
    its former copy is kept beside the new one, and it becomes a member again. No more copies are kept than the limit
    allows, and none is removed: until one is, by hand, it stays away and says why. (Its absence holds the confirmed
    offset still, so the begin is moved by a master that was told to do without it.)"""
    settings = {**RETAINED, "log.copies_aside_max": 2}
    with fast_cluster(3, segment_bytes=MIB, settings=settings, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        fill(cluster, 2, MIB)
        cluster.wait_confirmed()
        away = cluster.mirrors[1]
        away.stop()
        kept = tmp_path / "kept"
        shutil.copytree(log_directory(away), kept)
        away.start()
        cluster.wait_in_sync()
        fill(cluster, 3, 6 * MIB)
        cluster.wait_confirmed()
        eventually(lambda: log_of(cluster.master).begin > 3 * MIB, "the begin has moved")
        # As if it had been away all the time.
        away.stop()
        directory = log_directory(away)
        shutil.rmtree(directory)
        kept.rename(directory)
        former = [log_directory(away).with_name(f"{log_directory(away).name}.aside-{number}") for number in (1, 2)]
        for path in former:
            path.mkdir()
        away.start()
        eventually(lambda: "log.copies_aside_max" in log_of(away).reason, "it says why it stays away")
        assert str(former[0]) in log_of(away).reason
        eventually(lambda: len(log_lines(cluster.master, "mirror_left")) > 3, "it tries again")
        assert log_of(away).begin == 0
        assert aside(away) == former
        former[0].rmdir()
        cluster.wait_in_sync()
        assert log_of(away).begin > 3 * MIB
        assert [path.name.split(".")[1] for path in aside(away)] == ["aside-2", "aside-3"]
        assert any(aside(away)[1].iterdir())
        assert_reads_the_same(cluster, away)
        away.stop()
        away.start()
        cluster.wait_in_sync()
        assert_reads_the_same(cluster, away)


@pytest.mark.long
def test_a_mirror_that_starts_at_the_last_segment_is_waited_for_by_nobody(tmp_path: Path) -> None:
    """Goal: it is in sync only once older records are gone. A blank mirror with `ha.start=last-segment` follows, serves
    the newest records, and no confirm waits for it; when retention has moved the begin past its own it is a member."""
    settings = {**SMALL, "log.retention_bytes": 8 * MIB}
    with fast_cluster(3, segment_bytes=MIB, settings=settings, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        fill(cluster, 4, 4 * MIB)
        cluster.wait_confirmed()
        late = cluster.mirrors[1]
        late.stop()
        lose_log(late)
        late.start("--set", "ha.start=last-segment")
        eventually(lambda: log_of(late).begin > 2 * MIB, "it begins late")
        eventually(lambda: not mirror_of(cluster, late.id).in_sync, "it is not in sync")
        eventually(lambda: mirror_of(cluster, late.id).acked == log_of(cluster.master).end, "it follows")
        assert_reads_the_same(cluster, late)

        async def send_while_it_hangs() -> int:
            async with Client(*cluster.servers) as client, client.producer("q", confirm="all") as producer:
                return (await producer.send(b"nobody waits for it")).copies

        late.pause()
        try:
            assert asyncio.run(send_while_it_hangs()) == 2
        finally:
            late.resume()
        begin = log_of(late).begin
        fill(cluster, 5, 12 * MIB)
        eventually(lambda: log_of(cluster.master).begin >= begin, "older records are gone")
        fill(cluster, 6, MIB // 4)
        eventually(lambda: mirror_of(cluster, late.id).in_sync, "it is a member now")
        told = [facts(line) for line in log_lines(cluster.master, "mirror_in_sync") if f"node={late.id}" in line]
        assert [each["reason"] for each in told[1:]] == ["'lacks"], "of a record, and once"
        assert_reads_the_same(cluster, late)
