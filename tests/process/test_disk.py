"""Full disks, bad bytes and torn tails under a real node."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.errors import DiskFull, LogCorrupt, MirrorlogError
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages import GetMetadata, Metadata, QueueInfo
from tests.process.clusters import (
    MIB,
    assert_copies_equal,
    declare,
    error_of,
    eventually,
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
    for number in range(1000):
        try:
            raw.produce(batch_of([b"%d" % number + b"." * 100_000], queue, producer_id=41, sequence=number))
        except MirrorlogError as error:
            return number, error
    raise AssertionError("the disk is never full")


def numbers(values: list[bytes]) -> list[int]:
    return [int(value.split(b".")[0]) for value in values]


def test_a_full_disk_refuses_and_reads_go_on(small_disk: Path) -> None:
    """Goal: DISK_FULL is a refusal, not a failure. Method: publish until it comes, read everything, free space, publish
    on; restart, and read again."""
    with fast_cluster(1, data_dir=small_disk / "node", settings=SMALL) as one:
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            count, error = fill(raw, queue)
            assert type(error) is DiskFull, repr(error)
            assert "free space" in error.message
            assert count >= 20
            end = log_of(one.master).end
            for _ in range(20):
                batch = batch_of([b"." * 100_000], queue, producer_id=41, sequence=count)
                assert type(error_of(lambda batch=batch: raw.produce(batch))) is DiskFull  # type: ignore[misc]
            log = log_of(one.master)
            assert (log.end, log.state) == (end, "serving")
            assert numbers(raw.values(queue.queue_id)) == list(range(count))
            (small_disk / "ballast").unlink()
            for number in range(count, count + 5):
                batch = batch_of([b"%d" % number + b"." * 100_000], queue, producer_id=41, sequence=number)
                raw.produce(batch)
        one.master.kill()
        one.master.start()
        with Raw(one.servers[0]) as raw:
            assert numbers(raw.values(queue.queue_id)) == list(range(count + 5))


def test_a_mirrors_full_disk_holds_the_confirms_and_says_why(small_disk: Path, tmp_path: Path) -> None:
    """Goal: the reason can be read on the mirror and in the master's log; afterwards it goes on by itself. Method: a
    mirror on a small disk; fill it through the master, free space, compare the copies."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "n2").symlink_to(small_disk / "n2")
    (small_disk / "n2").mkdir()
    with fast_cluster(2, data_dir=data, settings=SMALL) as two:
        two.wait_in_sync()
        queue = declare(two.servers[0], "q")
        with Raw(two.servers[0]) as raw:
            count, error = fill(raw, queue)
            assert error.retriable, repr(error)
            eventually(lambda: "No space left" in log_of(two.nodes["n2"]).reason, "the mirror names its disk")
            eventually(
                lambda: any("No space left" in line for line in log_lines(two.master, "mirror_left")),
                "the master's log names it",
            )
            assert mirror_of(two, "n2").acked < log_of(two.master).end
            (small_disk / "ballast").unlink()
            eventually(lambda: log_of(two.master).confirmed == log_of(two.master).end, "it follows again")
            two.wait_in_sync()
            # The one that failed may have been stored or not: its retry settles it.
            raw.produce(batch_of([b"%d" % count + b"." * 100_000], queue, producer_id=41, sequence=count))
            assert numbers(raw.values(queue.queue_id)) == list(range(count + 1))
        assert_copies_equal(two)


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[Cluster, QueueInfo, Path]]:
    """A node with ten confirmed records that was stopped cleanly, and its segment file."""
    with fast_cluster(1, data_dir=tmp_path) as one:
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            for number in range(10):
                raw.produce(batch_of([b"%d" % number * 100], queue))
        assert one.master.stop() == 0
        yield one, queue, log_directory(one.master) / ("0" * 20)


def test_bad_bytes_below_the_flushed_offset(stopped: tuple[Cluster, QueueInfo, Path]) -> None:
    """Goal: corruption is named and never served, cut or repaired by guess. Method: flip a byte in the middle of a
    stopped node's segment, start it: status, publishes, reads and metadata name the range; the file stays."""
    one, queue, segment = stopped
    content = bytearray(segment.read_bytes())
    content[1000] ^= 0xFF
    segment.write_bytes(content)
    one.master.start()
    log = log_of(one.master)
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
    assert log_lines(one.master, "log_unavailable")
    assert one.master.stop() == 0
    assert segment.read_bytes() == bytes(content)


def test_a_torn_tail_is_cut_and_named(stopped: tuple[Cluster, QueueInfo, Path]) -> None:
    """Goal: what a crash left half written goes, by name, and only that. Method: garbage behind the last batch."""
    one, queue, segment = stopped
    end = log_of_file(one)
    content = bytearray(segment.read_bytes())
    content[end : end + 500] = b"\xa5" * 500
    segment.write_bytes(content)
    one.master.start()
    (line,) = log_lines(one.master, "torn_tail_cut")
    assert f"{end}..{end + 504}" in line or f"{end}..{end + 500}" in line
    with Raw(one.servers[0]) as raw:
        assert raw.values(queue.queue_id) == [b"%d" % number * 100 for number in range(10)]
        raw.produce(batch_of([b"on"], queue))
        assert len(raw.values(queue.queue_id)) == 11


def log_of_file(one: Cluster) -> int:
    """Where the stopped node's log ends, by its own batches."""
    from mirrorlog.commitlog.format import MAGIC, read_header

    content = (log_directory(one.master) / ("0" * 20)).read_bytes()
    at = 0
    while (header := read_header(content, at)).magic == MAGIC:
        at += header.length
    return at


def test_a_mirror_with_bad_bytes_is_out(tmp_path: Path) -> None:
    """Goal: a corrupt copy counts for nothing, and the others are untouched. Method: flip a byte of a mirror's copy:
    its log is closed there, the master says whom it waits for."""
    with fast_cluster(3, data_dir=tmp_path) as three:
        queue = declare(three.servers[0], "q")
        with Raw(three.servers[0]) as raw:
            raw.produce(batch_of([b"x" * 2000], queue))
        mirror = three.nodes["n2"]
        assert mirror.stop() == 0
        segment = log_directory(mirror) / ("0" * 20)
        content = bytearray(segment.read_bytes())
        content[200] ^= 1
        segment.write_bytes(content)
        mirror.start()
        assert log_of(mirror).state == "corrupt"
        with Raw(three.servers[0]) as raw:
            error = error_of(lambda: raw.produce(batch_of([b"y"], queue)))
            assert error.code == "IN_SYNC_REPLICAS_NOT_ENOUGH"
            assert "n2" in error.message
            assert raw.values(queue.queue_id) == [b"x" * 2000]
        # Set aside by hand, it is filled again.
        mirror.stop()
        mirror.data_dir.rename(tmp_path / "aside")
        mirror.start()
        three.wait_in_sync()
        assert_copies_equal(three)
