"""Full disks, bad bytes and torn tails under a real node."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.errors import DiskFull, LogCorrupt, MirrorlogError, OffsetOutOfRange
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.frames import CONFIRM_DUPLICATE
from mirrorlog.wire.messages.queues import (
    CommitPosition,
    Done,
    FetchPosition,
    FoundPosition,
    GetMetadata,
    Metadata,
    Position,
    QueueInfo,
)
from tests.process.clusters import (
    MIB,
    assert_copies_equal,
    declare,
    error_of,
    eventually,
    facts,
    fast_cluster,
    log_directory,
    log_lines,
    log_of,
    mirror_of,
)
from tests.process.raw import Raw, batch_of

SMALL = {
    "log.segment_bytes": MIB,
    "log.populate_bytes": 0,
    "limits.max_batch_bytes": 256 * 1024,
    "limits.max_record_bytes": 128 * 1024,
}
WATCHED = {**SMALL, "log.disk_low_percent": 10, "log.disk_full_percent": 2}


def run(*command: str) -> str:
    """An empty text when it worked, else why not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else f"{' '.join(command)}: {done.stderr.strip()}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB with a ballast file of 2 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    why_not = run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(mount))
    if why_not:
        pytest.skip(f"no small file system here: {why_not}")
    (mount / "ballast").write_bytes(bytes(2 * MIB))
    try:
        yield mount
    finally:
        assert run("umount", str(mount)) == "" or run("umount", "-l", str(mount)) == ""


def fill(raw: Raw, queue: QueueInfo) -> tuple[int, MirrorlogError]:
    """Publish records of 100 KiB until one fails: how many were confirmed, and the error."""
    return fill_from(raw, queue, 0)


def fill_from(raw: Raw, queue: QueueInfo, first: int, *, size: int = 100_000) -> tuple[int, MirrorlogError]:
    """As `fill`, after so many records. A disk is full when it stays so: the next file may just be in the making."""
    number = first
    refusals = 0
    while number < 1000:
        try:
            raw.produce(numbered(number, queue, size))
        except MirrorlogError as error:
            refusals += 1
            if refusals == 20 or type(error) is not DiskFull:
                return number, error
        else:
            number, refusals = number + 1, 0
    raise AssertionError("the disk is never full")


def numbers(values: list[bytes]) -> list[int]:
    return [int(value.split(b".")[0]) for value in values]


def numbered(number: int, queue: QueueInfo, size: int = 100_000) -> bytearray:
    return batch_of([b"%d" % number + b"." * size], queue, producer_id=41, sequence=number)


def commit(raw: Raw, queue: QueueInfo, queue_offset: int) -> None:
    position = Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=queue_offset)
    raw.request(CommitPosition(queue=queue.name, group="g", position=position), Done)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("settings", [SMALL, WATCHED])
@pytest.mark.parametrize("flush", ["memory", "disk"])
def test_a_full_disk_refuses_data_and_all_else_goes_on(small_disk: Path, settings: dict[str, int], flush: str) -> None:
    """Goal: DISK_FULL is a refusal of data, not a failure; acks, which let space be freed, land. Method: publish until
    it comes, read everything, commit positions, declare; restart; free space, publish on; restart, read again."""
    with fast_cluster(1, data_dir=small_disk / "node", settings=settings, flush=flush) as one:
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            count, error = fill(raw, queue)
            assert type(error) is DiskFull, repr(error)
            assert "free space" in error.message
            assert count >= 20
            # The remains of the segment too, to the last batch that is data.
            last = numbered(count - 1, queue)
            for size in (5_000, 100, 1):
                before, (count, _) = count, fill_from(raw, queue, count, size=size)
                last = numbered(count - 1, queue, size) if count > before else last
            status = one.nodes["n1"].status()
            assert status.disk is not None
            assert (status.disk.state, status.logs[0].state) == ("full", "serving"), "it refuses what comes"
            assert "free space" in status.logs[0].reason
            assert numbers(raw.values(queue.queue_id)) == list(range(count))
            for number in range(100):
                commit(raw, queue, number % count)
                declare(one.servers[0], f"another-{number}")
            assert produced(raw, numbered(count, queue, 1)) is False
            assert raw.produce(last).flags & CONFIRM_DUPLICATE, "what landed is still confirmed"
        one.nodes["n1"].kill()
        one.nodes["n1"].start()
        with Raw(one.servers[0]) as raw:
            assert numbers(raw.values(queue.queue_id)) == list(range(count))
            commit(raw, queue, 1)
            assert fill_from(raw, queue, count)[0] == count
            (small_disk / "ballast").unlink()
            eventually(lambda: produced(raw, numbered(count, queue)), "publishing goes on by itself")
            eventually(lambda: log_of(one.nodes["n1"]).reason == "", "and nothing is said of the disk")
            for number in range(count + 1, count + 5):
                raw.produce(numbered(number, queue))
        one.nodes["n1"].kill()
        one.nodes["n1"].start()
        with Raw(one.servers[0]) as raw:
            assert numbers(raw.values(queue.queue_id)) == list(range(count + 5))
            assert len(raw.request(GetMetadata(), Metadata).queues) == 101
            found = raw.request(FetchPosition(queue="q", group="g"), FoundPosition)
            assert found.position is not None
            assert found.position.queue_offset == 1


def test_below_the_full_watermark_data_is_refused_at_once(small_disk: Path) -> None:
    """Goal: the last of a disk is not the log's; the state is told, and left by itself. Method: another's file takes
    the space down to the watermark, while the segment has room: data is refused, a position is not; remove it."""
    with fast_cluster(1, data_dir=small_disk / "node", settings=WATCHED) as one:
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            raw.produce(numbered(0, queue))
            free = os.statvfs(small_disk)
            others = small_disk / "others"
            others.write_bytes(bytes((free.f_bavail - 20) * free.f_bsize))
            eventually(lambda: log_lines(one.nodes["n1"], "disk_state_changed"), "the watch has seen it")
            count, error = fill_from(raw, queue, 1)
            assert count < 8, "there is room in the segment"
            assert "log.disk_full_percent" in error.message
            assert "nothing was stored" in error.message
            commit(raw, queue, 1)
            declare(one.servers[0], "p")
            status = one.nodes["n1"].status()
            assert status.disk is not None
            assert (status.disk.state, status.logs[0].state) == ("full", "serving")
            assert status.disk.free_bytes < status.disk.size_bytes // 50
            assert "the disk is full" in status.logs[0].reason
            others.unlink()
            eventually(lambda: produced(raw, numbered(count, queue)), "data is taken again")
            assert log_of(one.nodes["n1"]).reason == ""
            assert [facts(line)["state"] for line in log_lines(one.nodes["n1"], "disk_state_changed")] == ["full", "ok"]
            assert numbers(raw.values(queue.queue_id)) == list(range(count + 1))


@pytest.mark.long
def test_retention_on_a_low_disk_lets_publishing_go_on(small_disk: Path) -> None:
    """Goal: a disk much smaller than what is published, and nobody has to free it. Method: with the setting, publish
    twice the disk, each refusal tried again; what is left at the end is the newest, without a gap."""
    settings = {**WATCHED, "log.retention_on_low_disk": True}
    with fast_cluster(1, data_dir=small_disk / "node", settings=settings) as one:
        queue = declare(one.servers[0], "q")
        records = 100
        with Raw(one.servers[0]) as raw:
            for number in range(records):
                eventually(lambda number=number: produced(raw, numbered(number, queue)), f"record {number}")  # type: ignore[misc]
            # Retention may still be at work: a begin that has moved on since it was asked for is asked for again.
            eventually(lambda: newest_are_whole(raw, queue, records), "the newest records are there without a gap")
        assert log_of(one.nodes["n1"]).begin > 0


def newest_are_whole(raw: Raw, queue: QueueInfo, records: int) -> bool:
    begin = raw.request(GetMetadata(queues=["q"]), Metadata).queues[0].begin
    assert begin > records // 4
    try:
        return numbers(raw.values(queue.queue_id, begin)) == list(range(begin, records))
    except OffsetOutOfRange:
        return False


def produced(raw: Raw, batch: bytearray) -> bool:
    try:
        raw.produce(batch)
    except DiskFull:
        return False
    return True


def test_what_is_derived_waits_for_space(small_disk: Path) -> None:
    """Goal: a node whose tables and index find no space lives on. Method: no byte free while segments get old; then
    free space: they are sealed."""
    settings = {**SMALL, "log.kept_mapped_bytes": 0}
    with fast_cluster(1, data_dir=small_disk / "node", settings=settings) as one:
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            for number in range(7):
                raw.produce(numbered(number, queue))
            eventually(lambda: list(log_directory(one.nodes["n1"]).glob("spare-*")), "the next file is there")
            fill_up(small_disk / "others")
            count, _ = fill_from(raw, queue, 7)
            eventually(lambda: log_lines(one.nodes["n1"], "past_waits_for_space"), "a table finds no space")
            commit(raw, queue, count)
            assert numbers(raw.values(queue.queue_id)) == list(range(count))
            (small_disk / "others").unlink()
            eventually(lambda: log_lines(one.nodes["n1"], "segment_sealed"), "it is written")
            assert numbers(raw.values(queue.queue_id)) == list(range(count))
            assert len(log_lines(one.nodes["n1"], "past_waits_for_space")) == 1
        assert one.nodes["n1"].running


def fill_up(path: Path) -> None:
    """Take all that is free."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.long
def test_a_mirrors_full_disk_holds_the_confirms_and_says_why(small_disk: Path, tmp_path: Path) -> None:
    """Goal: the reason can be read on the mirror and in the master's log, once; space is kept, nothing is tried while
    there is none, and afterwards it goes on by itself. Method: a mirror on a small disk; fill it through the master,
    wait for some measurements, free space, compare the copies."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "n2").symlink_to(small_disk / "n2")
    (small_disk / "n2").mkdir()
    with fast_cluster(2, data_dir=data, settings={**WATCHED, "ha.reconnect_interval_ms": 20}) as two:
        two.wait_in_sync()
        mirror = two.nodes["n2"]
        queue = declare(two.servers[0], "q")
        with Raw(two.servers[0]) as raw:
            count, error = fill(raw, queue)
            assert error.retriable, repr(error)
            eventually(lambda: "free space on its disk" in log_of(mirror).reason, "the mirror names its disk")
            assert mirror_of(two, "n2").acked < log_of(two.master).end
            error = error_of(lambda: raw.produce(numbered(count, queue), deadline_ms=500))
            assert error.code in ("IN_SYNC_REPLICAS_NOT_ENOUGH", "SLAVE_NOT_AVAILABLE", "FLUSH_SLAVE_TIMEOUT")
            # A measurement that finds other space than the one before, and one more: the watch has looked twice.
            for name in ("others", "more"):
                before = disk_free(mirror)
                (small_disk / name).write_bytes(bytes(8192))
                eventually(lambda before=before: disk_free(mirror) != before, "it is measured again")  # type: ignore[misc]
            assert disk_free(mirror) > disk_size(mirror) // 200, "what is to be kept free is free"
            assert "free space on its disk" in log_of(mirror).reason
            assert len(log_lines(mirror, "mirror_waits_for_space")) == 1
            (left,) = (line for line in log_lines(two.master, "mirror_left") if "gave up" in line)
            assert "free space on its disk" in left
            (small_disk / "ballast").unlink()
            eventually(lambda: log_of(two.master).confirmed == log_of(two.master).end, "it follows again")
            two.wait_in_sync()
            # The one that failed may have been stored or not: its retry settles it.
            raw.produce(batch_of([b"%d" % count + b"." * 100_000], queue, producer_id=41, sequence=count))
            assert numbers(raw.values(queue.queue_id)) == list(range(count + 1))
            assert log_of(mirror).reason == ""
        assert_copies_equal(two)


def disk_free(node: Node) -> int:
    disk = node.status().disk
    assert disk is not None
    return disk.free_bytes


def disk_size(node: Node) -> int:
    disk = node.status().disk
    assert disk is not None
    return disk.size_bytes


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[Cluster, QueueInfo, Path]]:
    """A node with ten confirmed records that was stopped cleanly, and its segment file."""
    with fast_cluster(1, data_dir=tmp_path) as one:
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            for number in range(10):
                raw.produce(batch_of([b"%d" % number * 100], queue))
        assert one.nodes["n1"].stop() == 0
        yield one, queue, log_directory(one.nodes["n1"]) / ("0" * 20)


@pytest.mark.long
def test_bad_bytes_below_the_flushed_offset(stopped: tuple[Cluster, QueueInfo, Path]) -> None:
    """Goal: corruption is named and never served, cut or repaired by guess. Method: flip a byte in the middle of a
    stopped node's segment, start it: status, publishes, reads and metadata name the range; the file stays."""
    one, queue, segment = stopped
    content = bytearray(segment.read_bytes())
    content[1000] ^= 0xFF
    segment.write_bytes(content)
    one.nodes["n1"].start()
    log = log_of(one.nodes["n1"])
    assert log.state == "corrupt"
    assert "bad bytes from log offset" in log.reason
    assert segment.name in log.reason
    with Raw(one.servers[0]) as raw:
        for call in (
            lambda: raw.produce(batch_of([b"x"], queue)),
            lambda: raw.fetch(queue.queue_id, 0),
            lambda: raw.request(GetMetadata(queues=["q"]), Metadata),
            lambda: raw.request(GetMetadata(), Metadata),
        ):
            error = error_of(call)
            assert type(error) is LogCorrupt, repr(error)
            assert error.details["first"] <= 1000 < error.details["last"]
    assert log_lines(one.nodes["n1"], "copy_damaged")
    assert one.nodes["n1"].stop() == 0
    assert segment.read_bytes() == bytes(content)


@pytest.mark.long
def test_a_torn_tail_is_cut_and_named(stopped: tuple[Cluster, QueueInfo, Path]) -> None:
    """Goal: what a crash left half written goes, by name, and only that. Method: garbage behind the last batch."""
    one, queue, segment = stopped
    end = log_of_file(one)
    content = bytearray(segment.read_bytes())
    content[end : end + 500] = b"\xa5" * 500
    segment.write_bytes(content)
    one.nodes["n1"].start()
    (line,) = log_lines(one.nodes["n1"], "torn_tail_cut")
    assert f"{end}..{end + 504}" in line or f"{end}..{end + 500}" in line
    with Raw(one.servers[0]) as raw:
        assert raw.values(queue.queue_id) == [b"%d" % number * 100 for number in range(10)]
        raw.produce(batch_of([b"on"], queue))
        assert len(raw.values(queue.queue_id)) == 11


def log_of_file(one: Cluster) -> int:
    """Where the stopped node's log ends, by its own batches."""
    from mirrorlog.commitlog.format.header import MAGIC, read_header

    content = (log_directory(one.nodes["n1"]) / ("0" * 20)).read_bytes()
    at = 0
    while (header := read_header(content, at)).magic == MAGIC:
        at += header.length
    return at
