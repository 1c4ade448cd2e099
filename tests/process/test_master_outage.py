"""The master dies, stops, or returns with an older disk: another copy is promoted, and nothing confirmed is lost."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.errors import BadRequest, NoSuchQueue, Refused
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import CONFIRM_DUPLICATE
from mirrorlog.wire.messages.codec import decode
from mirrorlog.wire.messages.queues import CommitPosition, Done, FetchPosition, FoundPosition, Position, QueueInfo
from tests.process.clusters import (
    assert_copies_equal,
    at_master,
    declare,
    error_of,
    eventually,
    fast_cluster,
    log_lines,
    log_of,
    lose_log,
    segments,
    start_all,
    wait_next_master,
)
from tests.process.load import Load, duplicates
from tests.process.raw import Raw, batch_of


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with fast_cluster(3, data_dir=tmp_path) as three:
        three.wait_in_sync()
        yield three


@pytest.fixture
def queue(cluster: Cluster) -> QueueInfo:
    return declare(cluster.servers[0], "q")


@pytest.fixture
def spare(tmp_path: Path) -> Iterator[Cluster]:
    """Three copies of which two are enough."""
    with fast_cluster(3, data_dir=tmp_path, min_in_sync=2) as three:
        three.wait_in_sync()
        yield three


def check_all(cluster: Cluster, queue: QueueInfo, load: Load) -> None:
    assert_copies_equal(cluster)
    for node in cluster.nodes.values():
        with Raw(node.client) as raw:
            load.check(raw.values(queue.queue_id))


def test_a_killed_master_is_replaced_and_returns_with_all_that_was_confirmed(
    cluster: Cluster, queue: QueueInfo
) -> None:
    """Goal: SIGKILL of the master loses nothing and doubles nothing. Method: three deaths under load, each the first
    of another node's epoch, which confirms nothing until the dead one has returned, for all three copies are needed;
    retries under the same sequences; then all copies and all confirms are compared with what was sent."""
    with Load(cluster.servers, queue) as load:
        for _ in range(3):
            before = load.confirmed
            eventually(lambda before=before: load.confirmed >= before + 20, "the load runs")  # type: ignore[misc]
            master = cluster.master
            epoch = log_of(master).epoch
            master.kill()
            # What was under way when it died may have been answered before, and not be counted yet.
            dead_at = load.confirmed
            wait_next_master(cluster, master, epoch)
            assert load.confirmed <= dead_at + 8
            master.start()
        load.stop()
    assert load.lost >= 3
    cluster.wait_in_sync()
    assert log_of(cluster.master).state == "serving"
    assert {log_of(node).epoch for node in cluster.nodes.values()} == {log_of(cluster.master).epoch}
    assert {confirm.copies for confirm in load.confirms.values()} == {3}
    check_all(cluster, queue, load)


@pytest.mark.long
def test_a_retry_after_the_masters_death_gets_the_first_place(spare: Cluster) -> None:
    """Goal: the next master has the producer table, rebuilt from the log. Method: kill the master after a confirm, send
    the identical batch to the next one, then the next batch; the same once the dead one is back."""
    queue = declare(spare.servers[0], "q")
    batches = [batch_of([b"%d" % number], queue, producer_id=31, sequence=number) for number in range(5)]
    first = spare.master
    with Raw(first.client) as raw:
        confirms = [raw.produce(batch) for batch in batches]
    epoch = log_of(first).epoch
    first.kill()
    second = wait_next_master(spare, first, epoch)

    def check(sequence: int) -> None:
        with Raw(second.client) as raw:
            again = [raw.produce(batch) for batch in batches]
            assert [(one.log_offset, one.base_queue_offset, one.epoch) for one in again] == [
                (one.log_offset, one.base_queue_offset, one.epoch) for one in confirms
            ]
            assert all(one.flags == CONFIRM_DUPLICATE for one in again)
            new = batch_of([b"%d" % sequence], queue, producer_id=31, sequence=sequence)
            assert raw.produce(new).base_queue_offset == sequence
            assert raw.values(queue.queue_id) == [b"%d" % number for number in range(sequence + 1)]

    eventually(lambda: len(log_of(second).mirrors) == 2 and log_of(second).confirmed == log_of(second).end, "it serves")
    check(5)
    first.start()
    spare.wait_in_sync()
    check(6)


@pytest.mark.long
def test_a_batch_that_only_the_master_had_is_confirmed_later(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: outcome unknown ends as landed once, in the longest copy. Method: publish with both mirrors paused, kill
    all before any copy exists; start the one that has it first: it is promoted, the record is there once and a retry
    finds it."""
    master, others = cluster.master, cluster.mirrors
    for mirror in others:
        mirror.pause()
    batch = batch_of([b"alone"], queue, producer_id=32)
    end = log_of(master).end
    with Raw(master.client) as raw:
        raw.start_produce(batch)
        eventually(lambda: log_of(master).end > end, "it is stored on the master")
    master.kill()
    for mirror in others:
        mirror.kill()
    for node in (master, *others):
        node.start()
    cluster.wait_in_sync()
    assert cluster.master is master
    with Raw(master.client) as raw:
        confirm = raw.produce(batch)
        assert (confirm.flags, confirm.copies) == (CONFIRM_DUPLICATE, 3)
        assert raw.values(queue.queue_id) == [b"alone"]
    assert_copies_equal(cluster)


@pytest.mark.long
def test_a_batch_that_only_the_dead_master_had_is_cut(spare: Cluster) -> None:
    """Goal: outcome unknown ends as landed once, in the new master's log. Method: publish with both mirrors paused,
    kill all before any copy exists, let the mirrors go on: a retry lands there; the master returns, cuts its own, and
    the copies are equal."""
    queue = declare(spare.servers[0], "q")
    master, others = spare.master, spare.mirrors
    spare.wait_confirmed()
    for mirror in others:
        mirror.pause()
    batch = batch_of([b"alone"], queue, producer_id=32)
    before = log_of(master)
    with Raw(master.client) as raw:
        raw.start_produce(batch)
        eventually(lambda: log_of(master).end > before.end, "it is stored on the master")
    master.kill()
    for mirror in others:
        mirror.kill()  # what lay in its socket goes, too
        mirror.launch()
    with Raw(wait_next_master(spare, master, before.epoch).client) as raw:
        confirm = eventually(lambda: raw.produce(batch), "two copies are up again")
        assert (confirm.flags, confirm.copies) == (0, 2)
    master.start()
    spare.wait_in_sync()
    assert log_lines(master, "log_truncated")
    with at_master(spare) as raw:
        assert raw.produce(batch).flags == CONFIRM_DUPLICATE
        assert raw.values(queue.queue_id) == [b"alone"]
    assert_copies_equal(spare)


@pytest.mark.long
@pytest.mark.parametrize("order", [("n3", "n2", "n1"), ("n1", "n2", "n3")])
def test_all_nodes_restart_cleanly(cluster: Cluster, queue: QueueInfo, order: tuple[str, ...]) -> None:
    """Goal: exit code 0, clean tails, a new epoch, all data. Method: stop all three, the master last or first, start
    all three, publish on."""
    with Load(cluster.servers, queue) as load:
        eventually(lambda: load.confirmed >= 20, "the load runs")
        load.stop()
        epoch = cluster.wait_confirmed().epoch
        assert [cluster.nodes[node].stop() for node in order] == [0, 0, 0]
        start_all(cluster)
        cluster.wait_in_sync()
    epochs = {log_of(node).epoch for node in cluster.nodes.values()}
    assert epochs == {log_of(cluster.master).epoch}
    assert min(epochs) > epoch
    for node in cluster.nodes.values():
        assert not log_lines(node, "torn_tail_cut")
        assert not log_lines(node, "log_lossy")
    with at_master(cluster) as raw:
        raw.produce(batch_of([load.value(load.records)], queue, producer_id=7, sequence=load.records))
        assert len(raw.values(queue.queue_id)) == load.records + 1
    assert_copies_equal(cluster)


@pytest.mark.long
def test_a_stop_under_load_is_clean(spare: Cluster) -> None:
    """Goal: SIGTERM of the master hands the log over: no outcome is unknown, confirms go on while it is away, and its
    tail is clean. Method: stop it under load: exit code 0; the next start finds nothing torn, and every record lands
    once."""
    queue = declare(spare.servers[0], "q")
    with Load(spare.servers, queue, window=32) as load:
        eventually(lambda: load.confirmed >= 50, "the load runs")
        master = spare.master
        assert master.stop() == 0
        assert spare.master is not master
        before = load.confirmed
        eventually(lambda: load.confirmed > before + 40, "confirms go on without it")
        master.start()
        spare.wait_in_sync()
        load.stop()
    assert not log_lines(master, "torn_tail_cut")
    assert not log_lines(master, "log_truncated")
    assert set(load.outcomes) <= {
        "NOT_MASTER", "NODE_STOPPING", "OUT_OF_SEQUENCE", "IN_SYNC_REPLICAS_NOT_ENOUGH", "NO_SUCH_QUEUE"
    }, load.outcomes  # fmt: skip
    check_all(spare, queue, load)


@pytest.mark.long
def test_a_clean_stop_leaves_the_mirrors_with_all_that_is_confirmed(spare: Cluster) -> None:
    """Goal: the last confirmed offset is told before the goodbye. Method: publish, stop the master at once, read the
    record from both others without waiting; then the new epoch is confirmed on both."""
    queue = declare(spare.servers[0], "q")
    master, mirrors = spare.master, spare.mirrors
    with Raw(master.client) as raw:
        raw.produce(batch_of([b"last"], queue))
    assert master.stop() == 0
    for mirror in mirrors:
        with Raw(mirror.client) as raw:
            assert raw.values(queue.queue_id) == [b"last"]
    spare.wait_confirmed()


@pytest.mark.long
def test_a_stopping_node_says_so(tmp_path: Path) -> None:
    """Goal: NODE_STOPPING while publishes that wait are given their moment, when nobody can take over. Method: pause
    the mirrors so that one waits, SIGTERM, publish another one on the open connection."""
    with fast_cluster(3, data_dir=tmp_path, settings={"ha.syncFlushTimeout": 30_000}) as cluster:
        cluster.wait_in_sync()
        check_stopping(cluster, declare(cluster.servers[0], "q"))


def check_stopping(cluster: Cluster, queue: QueueInfo) -> None:
    master, mirrors = cluster.master, cluster.mirrors
    for mirror in mirrors:
        mirror.pause()
    with Raw(master.client) as raw:
        end = log_of(master).end
        waiting = raw.start_produce(batch_of([b"first"], queue, producer_id=33))
        eventually(lambda: log_of(master).end > end, "the first one waits")
        os.kill(master.pid, signal.SIGTERM)

        def refused() -> bool:
            late = batch_of([b"late"], queue)
            error = error_of(lambda: raw.produce(late, deadline_ms=1))
            return error.code == "NODE_STOPPING"

        eventually(refused, "publishes are refused", timeout=4)
        for mirror in mirrors:
            mirror.resume()
        assert raw.confirm(waiting).copies == 3
    assert master.stop() == 0
    master.start()
    cluster.wait_in_sync()
    assert_copies_equal(cluster)


@pytest.mark.long
@pytest.mark.parametrize("starts_alone", [0, 3])
def test_a_master_with_an_older_disk_masters_nothing(spare: Cluster, tmp_path: Path, starts_alone: int) -> None:
    """Goal: a restored snapshot costs nobody a byte, however often it was started alone. Method: copy the master's
    directory, publish more, put the copy back: alone it takes and shows nothing new, for nobody lets it in; with the
    others it is marked, another one masters, retries find what was confirmed, and its copy is filled up from there."""
    queue = declare(spare.servers[0], "q")
    first = spare.master
    with Raw(first.client) as raw:
        raw.produce(batch_of([b"old"], queue, producer_id=34))
    spare.wait_confirmed()
    assert first.stop() == 0
    older = tmp_path / "older"
    shutil.copytree(first.data_dir, older)
    first.start()
    spare.wait_in_sync()
    new = batch_of([b"new"], queue, producer_id=34, sequence=1)
    with at_master(spare) as raw:
        raw.produce(new)
    spare.wait_confirmed()
    for node in (*spare.mirrors, spare.master):
        assert node.stop() == 0
    shutil.rmtree(first.data_dir)
    older.rename(first.data_dir)
    for _ in range(starts_alone):
        first.start()
        assert log_of(first).role != "master"
        with Raw(first.client) as raw:
            assert isinstance(error_of(lambda raw=raw: raw.produce(new)), Refused | NoSuchQueue)  # type: ignore[misc]
        assert first.stop() == 0

    start_all(spare)
    eventually(lambda: log_lines(first, "disk_set_back"), "it says that its disk is an older one")
    spare.wait_in_sync()
    assert spare.master is not first
    with at_master(spare) as raw:
        again = raw.produce(new)
        assert (again.flags, again.base_queue_offset) == (CONFIRM_DUPLICATE, 1)
        raw.produce(batch_of([b"newer"], queue, producer_id=34, sequence=2))
    assert_copies_equal(spare)
    for node in spare.nodes.values():
        with Raw(node.client) as raw:
            assert raw.values(queue.queue_id) == [b"old", b"new", b"newer"]
        status = node.status().cluster
        assert status is not None
        assert [(log.marked, log.losses) for log in status.logs] == [([], [])]


@pytest.mark.long
def test_a_position_is_taken_before_the_confirmed_offset_is_known_again(tmp_path: Path) -> None:
    """Goal: a group that commits what it was delivered is not told BAD_REQUEST because the master is new. Method: no
    checkpoint since the begin; one mirror stands still, the others die and start: one of them masters, and knows
    nothing as confirmed, for the third is waited for. A position beyond what is stored is refused at once, one within
    waits, and is confirmed by the third one's return."""
    settings = {
        "log.flushIntervalCommitLog": 60_000, "ha.syncFlushTimeout": 30_000,
        "cluster.node_timeout_ms": 30_000, "cluster.mirror_lag_time_ms": 25_000, "cluster.promote_wait_ms": 100,
    }  # fmt: skip
    with fast_cluster(3, min_in_sync=1, data_dir=tmp_path, settings=settings) as three:
        three.wait_in_sync()
        queue = declare(three.servers[0], "q")
        with at_master(three) as raw:
            raw.produce(batch_of([b"0", b"1", b"2"], queue))
        epoch = log_of(three.master).epoch
        one, two, third = three.nodes.values()
        third.pause()
        for node in (one, two):
            node.kill()
        for node in (one, two):
            node.launch()
        for node in (one, two):
            node.wait_serving()
        master = eventually(lambda: three.master if log_of(three.master).epoch > epoch else None, "one is promoted")
        assert log_of(master).queues[0].confirmed == 0

        def commit(queue_offset: int) -> CommitPosition:
            position = Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=queue_offset)
            return CommitPosition(queue="q", group="g", position=position)

        with Raw(master.client) as raw:
            waiting = raw.ask(commit(3))
            error = error_of(lambda: raw.request(commit(4), Done))
            assert type(error) is BadRequest, repr(error)
            known = raw.request(FetchPosition(queue="q", group="g", any_copy=True), FoundPosition)
            assert known.position is None
            third.resume()
            assert isinstance(decode(raw.answer(waiting).payload), Done)
            found = raw.request(FetchPosition(queue="q", group="g"), FoundPosition).position
        assert found is not None
        assert found.queue_offset == 3


@pytest.mark.long
def test_a_master_whose_copy_is_gone_fills_it_from_the_next_one(tmp_path: Path) -> None:
    """Goal: a replaced disk costs nobody a byte. Method: two copies of which one is enough; take the master's copy of
    the log away while it does not run; the other one masters, the copy is marked, filled, and counts again, and what
    was stored is as it was."""
    with fast_cluster(2, min_in_sync=1, data_dir=tmp_path) as two:
        two.wait_in_sync()
        queue = declare(two.servers[0], "q")
        with at_master(two) as raw:
            raw.produce(batch_of([b"kept"], queue))
        end = two.wait_confirmed().end
        first, second = two.nodes.values()
        before = next(iter(segments(second).values()))[:end]
        assert first.stop() == 0
        lose_log(first)
        first.start()
        two.wait_in_sync()
        assert two.master is second
        assert log_lines(first, "copy_gone")
        with Raw(second.client) as raw:
            assert raw.produce(batch_of([b"new"], queue)).copies == 2
        assert_copies_equal(two)
        for node in (first, second):
            same = next(iter(segments(node).values()))[:end] == before
            assert same, f"{node.id} was changed"
            with Raw(node.client) as raw:
                assert raw.values(queue.queue_id) == [b"kept", b"new"]


@pytest.mark.long
def test_retries_are_marked_as_duplicates(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a receipt says that its batch was there already. Method: a load whose deadline is shorter than the round
    trip gets unknown outcomes, and its retries land nothing twice."""
    cluster.nodes["n2"].pause()
    with Load(cluster.servers, queue, deadline_ms=50, window=2) as load:
        eventually(lambda: len(load.outcomes) >= 6, "outcomes are unknown")
        cluster.nodes["n2"].resume()
        eventually(lambda: load.confirmed >= 20, "confirms come")
        load.stop()
    assert duplicates(load) >= 1
    check_all(cluster, queue, load)
