"""Bytes of a copy go bad: it fetches them again from another one, without anybody's help."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import LogCorrupt, MirrorlogError, PositionLost
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.clusters import (
    MIB,
    assert_copies_equal,
    at_master,
    declare,
    error_of,
    eventually,
    facts,
    fast_cluster,
    log_lines,
    log_of,
    start_all,
    wait_next_master,
)
from tests.process.raw import Raw, batch_of, values_of
from tests.process.test_losses import mqtool, placed

pytestmark = pytest.mark.process

SMALL = {
    "log.segment_bytes": MIB,
    "log.populate_bytes": 0,
    "log.kept_mapped_bytes": 0,
    "limits.max_batch_bytes": 256 * 1024,
    "limits.max_record_bytes": 128 * 1024,
}
RECORDS = 40
"""Of 100,000 bytes each: four files, of which the first ones are sealed soon."""


def value(number: int) -> bytes:
    return b"%d" % number + b"." * 100_000


def filled(cluster: Cluster, records: int = RECORDS) -> QueueInfo:
    """A queue with so many confirmed records, everywhere."""
    queue = declare(cluster.servers[0], "q", retention="limits")  # also when a group has settled them
    with at_master(cluster) as raw:
        for number in range(records):
            raw.produce(batch_of([value(number)], queue, producer_id=7, sequence=number))
    cluster.wait_in_sync()
    cluster.wait_confirmed()
    return queue


def copy_of(node: Node) -> Path:
    """The directory of the node's only log."""
    (found,) = (path for path in (node.data_dir / "logs").iterdir() if ".aside-" not in path.name)
    return found


def flip(node: Node, log_offset: int) -> Path:
    """One bit of its copy, on its disk; the file."""
    path = max(path for path in copy_of(node).iterdir() if path.name.isdigit() and int(path.name) <= log_offset)
    with path.open("r+b") as file:
        file.seek(log_offset - int(path.name))
        bad = file.read(1)[0] ^ 4
        file.seek(log_offset - int(path.name))
        file.write(bytes([bad]))
    return path


def forget_tables(node: Node) -> None:
    """A start reads the past of which it has no table."""
    for path in copy_of(node).glob("*.table"):
        path.unlink()


def repaired(cluster: Cluster, node: Node) -> dict[str, str]:
    """Wait until all copies are whole and in sync, and equal; gives what the node's log says of the repair. What is set
    aside is taken out of the way."""
    eventually(lambda: log_lines(node, "copy_repaired"), "it says that it is repaired", timeout=30)
    cluster.wait_in_sync()
    eventually(lambda: not placed(cluster).marked, "it is whole again")
    for path in (node.data_dir / "logs").glob("*.aside-*"):
        path.rename(node.data_dir / path.name)
    assert_copies_equal(cluster)
    assert not log_of(node).reason
    return facts(log_lines(node, "copy_repaired")[-1])


def values_everywhere(cluster: Cluster, queue: QueueInfo, records: int) -> None:
    for node in cluster.nodes.values():
        with Raw(node.client) as raw:
            equal = raw.values(queue.queue_id) == [value(number) for number in range(records)]
            assert equal, f"{node.id} has other records"


@pytest.mark.long
@pytest.mark.parametrize("where", ["sealed", "active"])
def test_a_mirror_whose_bytes_went_bad_repairs_itself(tmp_path: Path, where: str) -> None:
    """Goal: nobody has to do anything, and nothing is lost. A bit of a mirror's copy is flipped while it is down, in a
    sealed segment of which it has no table, or in the last one. It starts, says where it is bad, fetches from there on,
    and is in sync with files equal to the others', byte for byte. What stood there is aside, bad and good, and tools
    name the bad bytes. Meanwhile the log goes on."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=SMALL) as three:
        three.wait_in_sync()
        queue = filled(three)
        mirror = three.mirrors[0]
        eventually(lambda: len(list(copy_of(mirror).glob("*.table"))) >= 2, "its past is sealed")
        assert mirror.stop() == 0
        end = log_of(three.master).end
        place = 150_000 if where == "sealed" else end - 150_000
        forget_tables(mirror)
        flip(mirror, place)
        with at_master(three) as raw:
            raw.produce(batch_of([value(RECORDS)], queue, producer_id=7, sequence=RECORDS))
        mirror.start()
        told = repaired(three, mirror)
        (damaged,) = map(facts, log_lines(mirror, "copy_damaged"))
        assert int(damaged["first"]) <= place < int(damaged["last"])
        assert (int(damaged["held"]), int(damaged["confirmed_was"])) == (end, end)
        assert (told["first"], told["last"]) == (damaged["first"], damaged["held"])
        assert int(told["bytes"]) == end - int(damaged["first"])
        (aside,) = mirror.data_dir.glob("*.aside-1")
        report = json.loads((aside / "surplus.json").read_text())
        assert report["damaged"]["first"] == report["first"] == int(damaged["first"])
        with pytest.raises(AssertionError, match="BAD"):
            verify(aside)
        values_everywhere(three, queue, RECORDS + 1)
        mirror.stop()
        mirror.start()
        three.wait_in_sync()
        assert len(log_lines(mirror, "copy_damaged")) == 1, "its next start is as any other"


def verify(directory: Path) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-m", "mirrorlog.tools.main", "verify", str(directory)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_master_whose_bytes_went_bad_while_it_was_down_follows_another_one(tmp_path: Path) -> None:
    """Goal: a damaged copy leads nobody. The master is killed, a bit of its copy is flipped, it starts at once: another
    one masters, and it is repaired as its mirror."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=SMALL) as three:
        three.wait_in_sync()
        queue = filled(three)
        former = three.master
        epoch = log_of(former).epoch
        former.kill()
        forget_tables(former)
        flip(former, 150_000)  # its newest bytes may be above what was recorded as flushed
        former.start()
        wait_next_master(three, former, epoch)
        repaired(three, former)
        assert not placed(three).losses
        values_everywhere(three, queue, RECORDS)


@pytest.mark.long
def test_bad_bytes_that_a_master_reads_end_it_and_are_repaired(tmp_path: Path) -> None:
    """Goal: a copy that is found bad in use is not served from, and does not stay. A bit is flipped in the past of the
    master, and somebody reads it there: he gets an error and never the bytes, the node ends, another one masters; the
    next start finds the place, though a table vouches for it, and repairs it."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=SMALL) as three:
        three.wait_in_sync()
        queue = filled(three)
        former = three.master
        epoch = log_of(former).epoch
        eventually(lambda: len(list(copy_of(former).glob("*.table"))) >= 2, "its past is sealed")
        flip(former, 150_000)
        with Raw(former.client) as raw:
            error = error_of(lambda: raw.values(queue.queue_id))
        assert isinstance(error, MirrorlogError)
        eventually(lambda: not former.running, "it ends")
        assert former.exit_code == LogCorrupt.exit_code
        wait_next_master(three, former, epoch)
        former.start()
        told = repaired(three, former)
        assert int(told["first"]) <= 150_000
        values_everywhere(three, queue, RECORDS)


@pytest.mark.long
@pytest.mark.parametrize("which", ["master", "mirror"])
async def test_readers_of_a_copy_that_is_found_bad_read_on_from_the_others(tmp_path: Path, which: str) -> None:
    """Goal: while whole copies stand by, damage costs a reader no error. A bit is flipped in the past of the master, or
    of a mirror, and read there: by consumers of master, mirrors and the nearest, and by an acking group. Each has every
    record, in order; the node ends meanwhile, and is repaired."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=SMALL) as three:
        three.wait_in_sync()
        await asyncio.to_thread(filled, three)
        bad = three.master if which == "master" else three.mirrors[0]
        eventually(lambda: len(list(copy_of(bad).glob("*.table"))) >= 2, "its past is sealed")
        flip(bad, 150_000)
        expected = [value(number) for number in range(RECORDS)]

        async def consumed(client: Client, read_from: str, turn: int) -> bool:
            async with client.consumer("q", until=RECORDS, read_from=read_from, turn=turn, max_bytes=MIB) as consumer:
                return [record.value async for record in consumer] == expected

        async def acked(client: Client) -> bool:
            async with client.subscribe("q", group="g", prefetch=5) as subscription:
                found: dict[bytes | None, None] = {}  # one whose ack was on its way when the master ended comes again
                while len(found) < RECORDS:
                    delivery = await anext(subscription)
                    found[delivery.value] = None
                    delivery.ack_nowait()
                return list(found) == expected

        async with Client(*three.servers) as client:
            ways = [("mirror", 0), ("mirror", 1), ("nearest", 0)] if which == "mirror" else [("master", 0)]
            async with asyncio.timeout(60):
                assert all(await asyncio.gather(*(consumed(client, *way) for way in ways), acked(client)))
        await asyncio.to_thread(eventually, lambda: not bad.running, "it ends")
        assert bad.exit_code == LogCorrupt.exit_code
        bad.start()
        repaired(three, bad)


@pytest.mark.long
def test_the_only_whole_copy_goes_on_without_its_bad_bytes(tmp_path: Path) -> None:
    """Goal: to end it would take away what is good of it. A bit is flipped in the past of an only copy: who reads it
    gets an error with the range, and no byte of it; the rest is read, records are taken, the node lives; its next start
    is as any other."""
    with fast_cluster(1, data_dir=tmp_path, settings=SMALL) as one:
        node = one.nodes["n1"]
        queue = filled(one)
        eventually(lambda: len(list(copy_of(node).glob("*.table"))) >= 2, "its past is sealed")
        flip(node, 150_000)
        for _ in range(2):
            with Raw(node.client) as raw:
                error = error_of(lambda raw=raw: raw.values(queue.queue_id, 1))  # type: ignore[misc]
                assert isinstance(error, LogCorrupt)
                assert error.details["first"] <= 150_000 < error.details["last"]
                # The one batch alone is missing.
                equal = raw.values(queue.queue_id, 2)[: RECORDS - 2] == [value(each) for each in range(2, RECORDS)]
                assert equal, "a good record is missing"
                eventually(lambda raw=raw: raw.produce(batch_of([b"on"], queue)), "the log goes on")  # type: ignore[misc]
            (line,) = eventually(lambda: log_lines(node, "bad_bytes_read"), "it is told once")
            assert "nobody else is whole" in line
            node.stop()
            node.log_file.write_text("")
            node.start()


@pytest.mark.long
def test_bad_bytes_that_a_master_sends_are_its_own_to_find(tmp_path: Path) -> None:
    """Goal: a mirror that is sent bad bytes does not come again for ever. A bit is flipped in the master's last file,
    which it sends from memory, while a mirror is down that lacks it: the mirror refuses, the master reads its own bytes
    and ends, another one masters, and all become equal."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=SMALL) as three:
        three.wait_in_sync()
        queue = filled(three, 4)
        former, late = three.master, three.mirrors[0]
        epoch = log_of(former).epoch
        assert late.stop() == 0
        with at_master(three) as raw:
            for number in range(4, 8):
                raw.produce(batch_of([value(number)], queue, producer_id=7, sequence=number))
        three.wait_confirmed()
        flip(former, log_of(former).end - 150_000)
        late.launch()
        eventually(lambda: not former.running, "it ends", timeout=30)
        assert former.exit_code == LogCorrupt.exit_code
        late.wait_serving()
        former.start()
        wait_next_master(three, former, epoch)
        repaired(three, former)
        values_everywhere(three, queue, 8)


def lost_at(raw: Raw, queue: QueueInfo, queue_offset: int) -> PositionLost | None:
    """The answer there, once it is that records were lost."""
    try:
        raw.fetch(queue.queue_id, queue_offset)
    except PositionLost as error:
        return error
    return None


@pytest.mark.long
def test_of_damaged_copies_the_best_one_becomes_the_log(tmp_path: Path) -> None:
    """Goal: invariant 7. All stop, a bit of each copy is flipped, each at another place; all start. The one that is
    good for longest masters: the loss begins where its bad bytes do and ends where the copies ended, queue offsets
    leap, and all copies become equal. What stood behind is aside on each."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2, settings=SMALL) as three:
        three.wait_in_sync()
        queue = filled(three, 8)
        end = log_of(three.master).end
        nodes = list(three.nodes.values())
        for node in nodes:
            node.stop()
        for node, place in zip(nodes, (150_000, 650_000, 350_000), strict=True):
            flip(node, place)
        start_all(three)
        (loss,) = eventually(lambda: placed(three).losses, "the loss is declared", timeout=30)
        best = nodes[1]
        (damaged,) = map(facts, log_lines(best, "copy_damaged"))
        assert loss.start == int(damaged["first"])
        assert 550_000 < loss.start < 650_000
        assert three.master is best
        # Each clean stop of a master has let another one begin an epoch.
        eventually(lambda: (placed(three).losses[0].end or 0) >= end, "its end is known")
        with at_master(three) as raw:
            lost = eventually(lambda: lost_at(raw, queue, 6), "queue offsets leap")
            eventually(lambda: raw.produce(batch_of([b"on"], queue)), "the log goes on")
            assert raw.values(queue.queue_id, lost.details["go_on_at"]) == [b"on"]
        three.wait_in_sync()
        eventually(lambda: not placed(three).marked, "all are whole again")
        for node in nodes:
            (aside,) = (node.data_dir / "logs").glob("*.aside-*")
            aside.rename(node.data_dir / aside.name)
        assert_copies_equal(three)


@pytest.mark.long
def test_an_only_copy_keeps_every_byte(tmp_path: Path) -> None:
    """Goal: nothing is cut that is nowhere else. A bit of the only copy is flipped: it is refused as damaged, the
    cluster waits, and however often the node starts, its files stay as they are."""
    with fast_cluster(1, data_dir=tmp_path, settings=SMALL) as one:
        node = one.nodes["n1"]
        queue = filled(one, 4)
        node.stop()
        flip(node, 150_000)
        before = {path.name: path.read_bytes() for path in copy_of(node).iterdir() if path.is_file()}
        for _ in range(2):
            node.start()
            assert log_of(node).state == "corrupt"
            eventually(lambda: placed(one).waits_for == ["n1"], "the cluster says whom it waits for")
            with Raw(node.client) as raw:
                for call in (lambda: raw.fetch(queue.queue_id, 0), lambda: raw.produce(batch_of([b"x"], queue))):
                    error = error_of(call)
                    assert type(error) is LogCorrupt, repr(error)
            assert node.stop() == 0
            after = {path.name: path.read_bytes() for path in copy_of(node).iterdir() if path.is_file()}
            assert after == before
            assert [path.name for path in (node.data_dir / "logs").iterdir()] == [copy_of(node).name]


@pytest.mark.long
def test_an_only_copy_goes_on_when_an_operator_says_so(tmp_path: Path) -> None:
    """Goal: what is good of it is not lost with what is bad. A bit of the only copy is flipped; `mqtool promote
    --accept-loss` makes what stands below it the log: the loss is declared from there to where it ended, queue offsets
    leap, and what stood behind is aside."""
    with fast_cluster(1, data_dir=tmp_path, settings=SMALL) as one:
        node = one.nodes["n1"]
        queue = filled(one, 4)
        end = log_of(node).end
        node.stop()
        flip(node, 350_000)
        node.start()
        eventually(lambda: placed(one).waits_for == ["n1"], "the cluster says whom it waits for")
        mqtool("--servers", node.client, "promote", "main", "--accept-loss")
        (loss,) = eventually(lambda: placed(one).losses, "the loss is declared")
        (damaged,) = map(facts, log_lines(node, "copy_damaged"))
        assert loss.start == int(damaged["first"])
        eventually(lambda: (placed(one).losses[0].end or 0) >= end, "its end is known")
        with Raw(node.client) as raw:
            lost = eventually(lambda: lost_at(raw, queue, 3), "queue offsets leap")
            eventually(lambda: raw.produce(batch_of([b"on"], queue)), "the log goes on")
            equal = [values_of(batch) for batch in raw.fetch(queue.queue_id, 0)[1]] == [
                [value(each)] for each in range(3)
            ]
            assert equal, "what is good of it is there"
            assert raw.values(queue.queue_id, lost.details["go_on_at"]) == [b"on"]
        (aside,) = (node.data_dir / "logs").glob("*.aside-*")
        assert (aside / f"{loss.start:020d}").exists()
