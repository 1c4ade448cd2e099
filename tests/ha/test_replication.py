"""Whole stories of a master and its mirrors: joining, resuming, a lost end, another master's tail."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mirrorlog.commitlog.format.header import read_header
from mirrorlog.commitlog.segments.segment import segment_name
from mirrorlog.config import Flush
from mirrorlog.errors import LogRecovering, MirrorAhead, NotMaster
from mirrorlog.ha.client import ClientState
from mirrorlog.ha.mastership import LogState
from mirrorlog.wire.frames import FrameType, Level, read_transfer
from tests.ha.links import Declared
from tests.ha.replicas import QUEUE_ID, append, content, open_replica, start_epoch
from tests.ha.world import MasterNode, MirrorNode, World


def publish_many(world: World, count: int, size: int = 200) -> None:
    for _ in range(count):
        assert world.publish(size, level=Level.ALL) is not None


def run_on(world: World, seconds: float = 2.0) -> None:
    """Let everything happen for a while, whatever comes of it."""
    for _ in range(int(seconds / 0.05)):
        for mirror in world.mirrors:
            world.finish_align(mirror)
        for link in list(world.links):
            world.finish_cold(link)
            world.deliver(link, 1 << 30, to_master=True)
            world.deliver(link, 1 << 30, to_master=False)
        world.tick(0.05)


@pytest.mark.story("002:3")
def test_a_mirror_serves_what_was_confirmed_when_its_master_is_gone(world: World) -> None:
    """Publish, then use the mirrors alone: each finds every confirmed record by its queue offset."""
    publish_many(world, 10)
    world.settle()
    for mirror in world.mirrors:
        runs = mirror.replica.index.entries(QUEUE_ID, 0, 1 << 20)
        assert [run.base_queue_offset for run in runs] == list(range(10))
        for run in runs:
            view = mirror.replica.log.read(run.log_offset, run.length, until=mirror.replica.log.confirmed)
            assert view is not None
            assert read_header(view).base_queue_offset == run.base_queue_offset


@pytest.mark.story("002:23-29")
def test_a_mirror_reports_its_end_and_the_master_pushes_from_there(tmp_path: Path) -> None:
    """Let a mirror join, take bytes, be cut off and join again: what it asks for is exactly what it holds, and no byte
    is sent twice."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    publish_many(world, 5)
    world.settle()
    held = world.mirrors[0].replica.log.end
    world.cut(world.links[0], master_knows=True, mirror_knows=True)
    publish_many(world, 5)
    world.tick(0.1)
    (link,) = world.links
    first: list[int] = []
    for _ in range(20):
        world.finish_align(link.mirror)
        world.deliver(link, 1 << 30, to_master=True)
        transfers = [each for each in _frames(link.to_mirror.bytes) if each[0] == FrameType.TRANSFER]
        first += [read_transfer(payload).log_offset for _, payload in transfers]
        world.deliver(link, 1 << 30, to_master=False)
    assert world.master.mastership.links["n1"].read_half.requested == held
    assert first[0] == held
    assert first == sorted(first)
    world.settle()
    world.check()
    world.close()


def _frames(sent: bytearray) -> list[tuple[int, memoryview]]:
    data, at, frames = bytes(sent), 0, []
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "little")
        payload = memoryview(data)[at + 16 : at + 16 + length]
        frames.append((int.from_bytes(data[at + 4 : at + 6], "little"), payload))
        at += 16 + length
    return frames


@pytest.mark.story("002:519-579")
def test_bytes_may_arrive_one_by_one(tmp_path: Path) -> None:
    """Deliver both directions in single bytes, in the middle of headers and batches: the copy comes out the same."""
    world = World(tmp_path, mirrors=1)
    publish_many(world, 3, size=50)
    world.tick(0.0)
    (link,) = world.links
    for _ in range(20_000):
        world.deliver(link, 1, to_master=True)
        world.deliver(link, 1, to_master=False)
        world.finish_align(link.mirror)
        if not world.waits and world.settled():
            break
    assert world.settled(), world.describe()
    world.check()
    world.close()


def test_a_mirror_that_is_killed_resumes_by_its_own_bytes(world: World) -> None:
    """Kill a mirror between publishes, three times: it asks for nothing that it holds."""
    for _ in range(3):
        publish_many(world, 4)
        world.settle()
        world.check()
        held = world.mirrors[0].replica.log.end
        world.restart_mirror(0, clean=False)
        assert world.mirrors[0].replica.log.end == held
        publish_many(world, 4)
        world.settle()
        world.check()
        assert world.master.mastership.links["n1"].read_half.requested == held


def test_every_restart_of_the_master_is_a_new_epoch(world: World) -> None:
    """Restart the master, killed and cleanly: mirrors follow into each epoch, and nothing confirmed changes."""
    for number, clean in enumerate((False, True, False)):
        publish_many(world, 4)
        world.settle()
        world.restart_master(clean=clean)
        assert world.master.replica.log.epochs.current == number + 2
        world.settle()
        world.check()
    for mirror in world.mirrors:
        assert mirror.replica.log.epochs == world.master.replica.log.epochs


def test_a_confirm_of_all_stands_still_while_a_mirror_is_away(world: World) -> None:
    """Cut one mirror of two off and publish for all: no confirm comes; with the mirror back it does."""
    gone = next(link for link in world.links if link.mirror is world.mirrors[1])
    world.cut(gone, master_knows=True, mirror_knows=False)
    confirmed = world.master.replica.log.confirmed
    token = world.publish(100, level=Level.ALL, timeout=60.0)
    majority = world.publish(100, level=Level.MAJORITY, timeout=60.0)
    for _ in range(10):
        for link in list(world.links):
            world.deliver(link, 1 << 30, to_master=True)
            world.deliver(link, 1 << 30, to_master=False)
    assert set(world.waits) == {token}
    assert [answer.token for answer in world.answers][-1] == majority
    assert world.master.replica.log.confirmed == confirmed
    world.settle()
    assert world.master.replica.log.confirmed == world.master.replica.log.end
    world.check()


@pytest.mark.parametrize("flush", ["memory", "disk"])
def test_every_mirror_hears_at_once_what_is_confirmed(tmp_path: Path, flush: Flush) -> None:
    """Publish once and let no time pass: all mirrors, not only the last to ack, come to know the confirmed offset."""
    world = World(tmp_path, mirrors=3, flush=flush)
    world.settle()
    world.publish(100, level=Level.ALL)
    for _ in range(5):
        for link in list(world.links):
            world.deliver(link, 1 << 30, to_master=False)
            world.deliver(link, 1 << 30, to_master=True)
        for number in (1, 2, 3, 0):
            world.flush(number)
    assert world.settled(), world.describe()
    world.close()


# --- Histories that part ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_a_master_that_lost_its_end_stays_closed_and_cuts_nobody(tmp_path: Path, clean: bool) -> None:
    """Put an older copy of the master's directory back: it names the lost range, refuses publishes, and every mirror
    keeps every byte, also the one that had fewer."""
    world = World(tmp_path, mirrors=2)
    world.settle()
    publish_many(world, 3)
    world.settle()
    older = world.master.replica.log.end
    world.restart_master(clean=clean)
    world.settle()
    shutil.copytree(tmp_path / "n0", tmp_path / "snapshot")
    snapshot_end = world.master.replica.log.end
    publish_many(world, 5)
    world.settle()
    assert world.master.replica.log.confirmed > snapshot_end > older
    kept = [content(mirror.replica) for mirror in world.mirrors]

    world.restart_master(clean=True)
    world.master.replica.close()
    shutil.rmtree(tmp_path / "n0")
    (tmp_path / "snapshot").rename(tmp_path / "n0")
    for link in world.links:
        link.master_open = False
    world.master = MasterNode(tmp_path / "n0", world.master.settings)
    world._wire_master()
    run_on(world)

    mastership = world.master.mastership
    assert mastership.state is LogState.RECOVERING
    assert f"holds log offsets {snapshot_end} to {len(kept[0])} that this master has lost" in mastership.reason
    assert isinstance(world.faults[0], MirrorAhead)
    assert world.publish(100, level=Level.MASTER) is None
    assert [content(mirror.replica) for mirror in world.mirrors] == kept
    assert not mastership.links
    world.close()


def test_a_master_older_than_its_mirrors_epoch_feeds_and_cuts_nobody(tmp_path: Path) -> None:
    """Put back a directory from before the last two starts: the mirrors' epoch is newer than the master's own, so it is
    no master any more, and the log is not closed for that."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    publish_many(world, 2)
    world.settle()
    world.master.replica.close()
    shutil.copytree(tmp_path / "n0", tmp_path / "snapshot")
    world.master.replica = open_replica(tmp_path / "n0", world.master.settings)
    for _ in range(2):
        world.restart_master(clean=True)
        world.settle()
    kept = content(world.mirrors[0].replica)
    world.master.replica.close()
    shutil.rmtree(tmp_path / "n0")
    (tmp_path / "snapshot").rename(tmp_path / "n0")
    for link in world.links:
        link.master_open = False
    world.master = MasterNode(tmp_path / "n0", world.master.settings)
    world._wire_master()
    run_on(world)
    assert world.master.mastership.state is LogState.SERVING
    assert world.faults
    assert all(isinstance(fault, NotMaster) for fault in world.faults)
    assert not world.master.mastership.links
    assert content(world.mirrors[0].replica) == kept
    world.close()


def make_tail_of_another_master(world: World, *, writer: str = "n1") -> tuple[int, int]:
    """Mirror n1 holds what `writer` (itself by default) wrote as a master once, and nobody else has it. Where that
    epoch's first batch begins and ends."""
    mirror = world.mirrors[0]
    if mirror.link is not None:
        world.cut(mirror.link, master_knows=True, mirror_knows=True)
    replica = mirror.replica
    common = replica.log.end
    start_epoch(replica, writer)
    started = replica.log.end
    append(replica, 300)
    return common, started


def reopen_as(world: World, number: int) -> None:
    """The mirror's process starts again on what it has."""
    old = world.mirrors[number]
    old.replica.close()
    world.mirrors[number] = MirrorNode(old.directory, old.settings, world.now, world.losses)


def test_another_masters_unconfirmed_tail_is_cut_at_the_common_point(tmp_path: Path) -> None:
    """Let n1 hold a tail from its own time as master, which the present master knows of by its epoch: the tail goes,
    what is common stays, and the copies become equal."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    # The log was handed over: epoch 2 was n1's, and its first batch reached n0 before n0 took over again in epoch 3.
    mirror = world.mirrors[0]
    common, started = make_tail_of_another_master(world)
    taken = content(mirror.replica)[common:started]
    master = world.master.replica
    master.log.adopt_epochs(mirror.replica.log.epochs.entries)
    master.append_run(memoryview(taken), log_offset=common)
    world.restart_master(clean=True)
    reopen_as(world, 0)
    before = world.mirrors[0].replica.log.end
    world.settle()
    assert started < before
    assert not world.faults
    assert content(world.mirrors[0].replica) == content(world.master.replica)
    assert world.mirrors[0].replica.log.read_batch_at(started)[0].epoch == 3
    world.close()


def test_a_tail_of_an_epoch_that_the_master_does_not_know_is_cut(tmp_path: Path) -> None:
    """Let n1 hold a tail that a third node wrote as a master of whom n0, which was promoted after it, has never heard:
    n0 has everything that was confirmed, so the tail goes and the copies become equal."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    make_tail_of_another_master(world, writer="n9")
    world.restart_master(clean=True)
    world.restart_master(clean=True)
    reopen_as(world, 0)
    assert world.mirrors[0].replica.log.epochs.current < world.master.replica.log.epochs.current
    world.settle()
    assert not world.faults
    assert content(world.mirrors[0].replica) == content(world.master.replica)
    world.close()


@pytest.mark.parametrize("confirmed", [False, True])
def test_a_copy_with_more_than_a_declared_loss_left_follows_again(tmp_path: Path, confirmed: bool) -> None:
    """Goal: a loss that was declared ends with equal copies, and what one had more is beside it, whether that copy knew
    it to be confirmed or not. Let n1 hold a tail that n0, promoted after it, has lost; both know of the loss."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    common, _ = make_tail_of_another_master(world, writer="n9")
    replica = world.mirrors[0].replica
    if confirmed:
        replica.set_confirmed(replica.log.end)
    tail = content(replica)[common:]
    world.restart_master(clean=True)
    world.restart_master(clean=True)
    world.losses = [Declared(world.master.replica.log.epochs.current, common)]
    reopen_as(world, 0)
    assert world.mirrors[0].replica.log.confirmed == (common + len(tail) if confirmed else common)
    world.settle()
    assert not world.faults
    assert content(world.mirrors[0].replica) == content(world.master.replica)
    (kept,) = tmp_path.glob("n1-kept-*")
    assert (kept / segment_name(common)).read_bytes() == tail
    world.close()


def test_a_confirmed_tail_is_never_cut(tmp_path: Path) -> None:
    """As above, but n1 knows its tail as confirmed: neither end cuts it, both say why."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    common, started = make_tail_of_another_master(world)
    mirror = world.mirrors[0]
    taken = content(mirror.replica)[common:started]
    world.master.replica.log.adopt_epochs(mirror.replica.log.epochs.entries)
    world.master.replica.append_run(memoryview(taken), log_offset=common)
    mirror.replica.set_confirmed(mirror.replica.log.end)
    world.restart_master(clean=True)
    reopen_as(world, 0)
    kept = content(world.mirrors[0].replica)
    run_on(world, 1.0)
    assert world.master.mastership.state is LogState.RECOVERING
    assert world.mirrors[0].client.state is not ClientState.TRANSFER
    assert content(world.mirrors[0].replica) == kept
    world.close()


def test_a_log_that_recovers_lets_no_mirror_join(tmp_path: Path) -> None:
    """Let one mirror be ahead and another one join after it: the second is neither cut nor fed."""
    world = World(tmp_path, mirrors=2)
    world.settle()
    make_tail_of_another_master(world)
    reopen_as(world, 0)
    other = world.mirrors[1]
    assert other.link is not None
    world.cut(other.link, master_knows=True, mirror_knows=True)
    world.master.mastership.ahead(MirrorAhead("mirror n1 holds more"))
    kept = content(other.replica)
    append(world.master.replica, 100)
    run_on(world, 1.0)
    assert content(other.replica) == kept
    assert any(isinstance(fault, LogRecovering) for fault in world.faults)
    world.close()


def test_a_former_masters_own_unconfirmed_tail_is_cut(tmp_path: Path) -> None:
    """Let n1 hold a tail that it wrote itself, in an epoch that the present master never heard of: n1 knows first-hand
    that nobody confirmed it, so it goes and the copies become equal, without the log closing."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    make_tail_of_another_master(world)
    start_epoch(world.mirrors[0].replica, "n1")  # it was started as master once more
    reopen_as(world, 0)
    world.settle()
    assert not world.faults
    assert world.master.mastership.state is LogState.SERVING
    assert content(world.mirrors[0].replica) == content(world.master.replica)
    world.close()


def test_the_same_epoch_and_start_of_a_restored_disk_are_another_history(tmp_path: Path) -> None:
    """Put back an empty disk of the master: its new start opens epoch 1 from 0 again. The mirror's bytes of the first
    epoch 1 are not taken for its own, however long the new log grows."""
    world = World(tmp_path, mirrors=1)
    world.settle()
    kept = content(world.mirrors[0].replica)
    world.master.replica.close()
    shutil.rmtree(tmp_path / "n0")
    for link in world.links:
        link.master_open = False
    world.master = MasterNode(tmp_path / "n0", world.master.settings)
    world._wire_master()
    while world.master.replica.log.end <= len(kept):
        append(world.master.replica, 300)
    run_on(world)
    assert world.master.mastership.state is LogState.RECOVERING
    assert content(world.mirrors[0].replica) == kept
    world.close()
