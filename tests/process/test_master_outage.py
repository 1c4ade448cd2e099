"""The master dies, restarts, or returns with an older disk."""

from __future__ import annotations

import os
import shutil
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.errors import BadRequest, LogRecovering, NoSuchQueue
from mirrorlog.testing import Cluster
from mirrorlog.testing.toml import dump_toml
from mirrorlog.wire.frames import CONFIRM_DUPLICATE
from mirrorlog.wire.messages import (
    CommitPosition,
    Done,
    FetchPosition,
    FoundPosition,
    Position,
    QueueInfo,
    decode,
)
from tests.process.clusters import (
    assert_copies_equal,
    declare,
    error_of,
    eventually,
    fast_cluster,
    log_lines,
    log_of,
    segments,
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


def check_all(cluster: Cluster, queue: QueueInfo, load: Load) -> None:
    assert_copies_equal(cluster)
    for node in cluster.nodes.values():
        with Raw(node.client) as raw:
            load.check(raw.values(queue.queue_id))


def test_a_killed_master_returns_with_all_that_was_confirmed(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: SIGKILL of the master loses nothing and doubles nothing. Method: three deaths under load, each restart a
    new epoch; retries under the same sequences; then all copies and all confirms are compared with what was sent."""
    with Load(cluster.servers[0], queue) as load:
        for round_ in range(3):
            before = load.confirmed
            eventually(lambda before=before: load.confirmed >= before + 20, "the load runs")  # type: ignore[misc]
            epoch = log_of(cluster.master).epoch
            cluster.master.kill()
            cluster.master.start()
            assert log_of(cluster.master).epoch == epoch + 1, round_
        load.stop()
    assert load.lost >= 3
    assert log_of(cluster.master).state == "serving"
    for mirror in cluster.mirrors:
        assert log_of(mirror).epoch == log_of(cluster.master).epoch
    check_all(cluster, queue, load)


def test_a_retry_after_the_masters_death_gets_the_first_place(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: the producer table is rebuilt from the log. Method: kill the master after a confirm, send the identical
    batch to its next start."""
    batches = [batch_of([b"%d" % number], queue, producer_id=31, sequence=number) for number in range(5)]
    with Raw(cluster.servers[0]) as raw:
        firsts = [raw.produce(batch) for batch in batches]
    cluster.master.kill()
    cluster.master.start()
    cluster.wait_in_sync()
    with Raw(cluster.servers[0]) as raw:
        again = [raw.produce(batch) for batch in batches]
        assert [(one.log_offset, one.base_queue_offset, one.epoch) for one in again] == [
            (one.log_offset, one.base_queue_offset, one.epoch) for one in firsts
        ]
        assert all(one.flags == 1 for one in again)
        assert raw.produce(batch_of([b"5"], queue, producer_id=31, sequence=5)).base_queue_offset == 5
        assert raw.values(queue.queue_id) == [b"%d" % number for number in range(6)]


def test_a_batch_that_only_the_master_had_is_confirmed_later(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: outcome unknown ends as landed once. Method: publish with both mirrors paused, kill the master before any
    copy exists, restart all: the record is there once and a retry finds it."""
    for mirror in cluster.mirrors:
        mirror.pause()
    batch = batch_of([b"alone"], queue, producer_id=32)
    end = log_of(cluster.master).end
    with Raw(cluster.servers[0]) as raw:
        raw.start_produce(batch)
        eventually(lambda: log_of(cluster.master).end > end, "it is stored on the master")
    cluster.master.kill()
    for mirror in cluster.mirrors:
        mirror.kill()
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_in_sync()
    with Raw(cluster.servers[0]) as raw:
        confirm = raw.produce(batch)
        assert (confirm.flags, confirm.copies) == (1, 3)
        assert raw.values(queue.queue_id) == [b"alone"]
    assert_copies_equal(cluster)


def test_all_nodes_restart_cleanly(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: exit code 0, clean tails, a new epoch, all data. Method: stop all three, start all three, publish on."""
    with Load(cluster.servers[0], queue) as load:
        eventually(lambda: load.confirmed >= 20, "the load runs")
        load.stop()
        epoch = cluster.wait_confirmed().epoch
        assert [node.stop() for node in reversed(cluster.nodes.values())] == [0, 0, 0]
        for node in cluster.nodes.values():
            node.start()
        cluster.wait_in_sync()
    for node in cluster.nodes.values():
        assert not log_lines(node, "torn_tail_cut")
        assert not log_lines(node, "log_lossy")
        assert log_of(node).epoch == epoch + 1
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([load.value(load.records)], queue, producer_id=7, sequence=load.records))
        assert len(raw.values(queue.queue_id)) == load.records + 1
    assert_copies_equal(cluster)


def test_a_stop_under_load_is_clean(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: SIGTERM answers what is there, refuses what comes, and leaves a clean tail. Method: stop the master under
    load: exit code 0; the next start finds nothing torn, and every record lands once."""
    with Load(cluster.servers[0], queue, window=32) as load:
        eventually(lambda: load.confirmed >= 50, "the load runs")
        assert cluster.master.stop() == 0
        cluster.master.start()
        before = load.confirmed
        eventually(lambda: load.confirmed > before + 10, "confirms go on")
        load.stop()
    assert not log_lines(cluster.master, "torn_tail_cut")
    assert "FLUSH_SLAVE_TIMEOUT" not in load.outcomes
    assert "SLAVE_NOT_AVAILABLE" not in load.outcomes
    check_all(cluster, queue, load)


def test_a_clean_stop_leaves_the_mirrors_with_all_that_is_confirmed(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: the last confirmed offset is told before the goodbye. Method: publish, stop the master at once, read the
    record from both mirrors."""
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([b"last"], queue))
    assert cluster.master.stop() == 0
    for mirror in cluster.mirrors:
        log = log_of(mirror)
        assert log.confirmed == log.end
        with Raw(mirror.client) as raw:
            assert raw.values(queue.queue_id) == [b"last"]


def test_a_stopping_node_says_so(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: NODE_STOPPING while publishes that wait are given their moment. Method: pause the mirrors so that one
    waits, SIGTERM, publish another one on the open connection."""
    for mirror in cluster.mirrors:
        mirror.pause()
    with Raw(cluster.servers[0]) as raw:
        end = log_of(cluster.master).end
        waiting = raw.start_produce(batch_of([b"first"], queue, producer_id=33))
        eventually(lambda: log_of(cluster.master).end > end, "the first one waits")
        os.kill(cluster.master.pid, signal.SIGTERM)

        def refused() -> bool:
            late = batch_of([b"late"], queue)
            error = error_of(lambda: raw.produce(late, deadline_ms=1))
            return error.code == "NODE_STOPPING"

        eventually(refused, "publishes are refused", timeout=2)
        for mirror in cluster.mirrors:
            mirror.resume()
        assert raw.confirm(waiting).copies == 3
    assert cluster.master.stop() == 0
    cluster.master.start()
    cluster.wait_in_sync()
    assert_copies_equal(cluster)


def test_a_master_with_an_older_disk_stays_closed(cluster: Cluster, queue: QueueInfo, tmp_path: Path) -> None:
    """Goal: a restored snapshot costs nobody a byte. Method: copy the master's directory, publish more, put the copy
    back: it is `recovering`, names the range everywhere, still reads what it knows, and the mirrors' files are as they
    were."""
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([b"old"], queue))
    cluster.wait_confirmed()
    assert cluster.master.stop() == 0
    older = tmp_path / "older"
    shutil.copytree(cluster.master.data_dir, older)
    cluster.master.start()
    cluster.wait_in_sync()
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([b"new"], queue))
    end = cluster.wait_confirmed().end
    for node in reversed(cluster.nodes.values()):
        assert node.stop() == 0
    before = {mirror.id: segments(mirror) for mirror in cluster.mirrors}
    shutil.rmtree(cluster.master.data_dir)
    older.rename(cluster.master.data_dir)

    for node in cluster.nodes.values():
        node.start()
    log = eventually(
        lambda: log if (log := log_of(cluster.master)).state == "recovering" else None, "the master is recovering"
    )
    assert str(end) in log.reason
    assert "truncated" in log.reason
    with Raw(cluster.servers[0]) as raw:
        error = error_of(lambda: raw.produce(batch_of([b"x"], queue)))
        assert type(error) is LogRecovering
        assert str(end) in error.message
        assert raw.values(queue.queue_id) == [b"old"]
    for mirror in cluster.mirrors:
        status = eventually(
            lambda mirror=mirror: s if (s := log_of(mirror)).reason else None,  # type: ignore[misc]
            "the mirror says why it does not follow",
        )
        assert (status.end, status.confirmed, status.state) == (end, end, "disconnected")
        with Raw(mirror.client) as raw:
            assert raw.values(queue.queue_id) == [b"old", b"new"]
        assert segments(mirror).keys() == before[mirror.id].keys()
        same = segments(mirror) == before[mirror.id]
        assert same, f"{mirror.id} was changed"


def test_a_position_is_taken_before_the_confirmed_offset_is_known_again(tmp_path: Path) -> None:
    """Goal: a group that commits what it was delivered is not told BAD_REQUEST because the master has just restarted.
    Method: kill all, with no checkpoint since the begin; start the master alone: nothing is known as confirmed. A
    position beyond what is stored is refused at once, one within waits, and is confirmed by the mirrors' return."""
    settings = {"log.flushIntervalCommitLog": 60_000, "ha.syncFlushTimeout": 30_000}
    with fast_cluster(3, min_in_sync=1, data_dir=tmp_path, settings=settings) as three:
        three.wait_in_sync()
        queue = declare(three.servers[0], "q")
        with Raw(three.servers[0]) as raw:
            raw.produce(batch_of([b"0", b"1", b"2"], queue))
        for node in three.nodes.values():
            node.kill()
        three.master.start()
        assert log_of(three.master).confirmed == 0

        def commit(queue_offset: int) -> CommitPosition:
            position = Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=queue_offset)
            return CommitPosition(queue="q", group="g", position=position)

        with Raw(three.servers[0]) as raw:
            waiting = raw.ask(commit(3))
            error = error_of(lambda: raw.request(commit(4), Done))
            assert type(error) is BadRequest, repr(error)
            assert raw.request(FetchPosition(queue="q", group="g"), FoundPosition).position is None
            for mirror in three.mirrors:
                mirror.start()
            assert isinstance(decode(raw.answer(waiting).payload), Done)
            found = raw.request(FetchPosition(queue="q", group="g"), FoundPosition).position
        assert found is not None
        assert found.queue_offset == 3


def test_a_master_with_an_empty_disk_stays_closed(tmp_path: Path) -> None:
    """Goal: a replaced disk costs nobody a byte, although its first epoch has the number that the mirror knows. Method:
    two copies of which one is enough; take the master's directory away; it is `recovering`, and the mirror's file and
    what is read from it are as they were."""
    with fast_cluster(2, min_in_sync=1, data_dir=tmp_path) as two:
        two.wait_in_sync()
        queue = declare(two.servers[0], "q")
        with Raw(two.servers[0]) as raw:
            raw.produce(batch_of([b"kept"], queue))
        end = two.wait_confirmed().end
        mirror = two.nodes["n2"]
        before = segments(mirror)
        assert two.master.stop() == 0
        two.master.data_dir.rename(two.master.data_dir.with_name("aside"))
        two.master.start()
        log = eventually(lambda: log if (log := log_of(two.master)).state == "recovering" else None, "it is recovering")
        assert log.epoch == 1
        assert str(end) in log.reason
        with Raw(two.servers[0]) as raw:
            assert type(error_of(lambda: raw.produce(batch_of([b"x"], queue)))) in (LogRecovering, NoSuchQueue)
        with Raw(mirror.client) as raw:
            assert raw.values(queue.queue_id) == [b"kept"]
        status = log_of(mirror)
        assert (status.end, status.confirmed, status.epoch) == (end, end, 1)
        same = segments(mirror) == before
        assert same, "the mirror's copy was changed"


def make_master(cluster: Cluster, node_id: str) -> None:
    """Write into every node's configuration that `node_id` is the log's master and all others are its mirrors."""
    for node in cluster.nodes.values():
        tables = tomllib.loads(node.config_file.read_text())
        (log,) = tables["cluster"]["logs"]
        log["master"] = node_id
        log["mirrors"] = [each for each in cluster.nodes if each != node_id]
        node.config_file.write_text(dump_toml(tables))


def test_an_operator_makes_another_node_the_master(tmp_path: Path) -> None:
    """Goal: the documented way out of LOG_RECOVERING works and loses nothing. Method: put an older copy under the
    master and start it three times: it has epochs that nobody else knows, numbered above theirs. Make n2 the master in
    every configuration: all serve, all copies are equal, and all that was confirmed is there."""
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as three:
        three.wait_in_sync()
        queue = declare(three.servers[0], "q")
        older, first = tmp_path / "older", three.master
        with Raw(three.servers[0]) as raw:
            raw.produce(batch_of([b"old"], queue, producer_id=34))
        three.wait_confirmed()
        assert first.stop() == 0
        shutil.copytree(first.data_dir, older)
        first.start()
        three.wait_in_sync()
        with Raw(three.servers[0]) as raw:
            raw.produce(batch_of([b"new"], queue, producer_id=34, sequence=1))
        three.wait_confirmed()
        assert first.stop() == 0
        shutil.rmtree(first.data_dir)
        older.rename(first.data_dir)
        for _ in range(3):
            first.start()
            eventually(lambda: log_of(first).state == "recovering", "it is recovering")
            assert first.stop() == 0
        for mirror in three.mirrors:
            assert mirror.stop() == 0

        make_master(three, "n2")
        for node in three.nodes.values():
            node.launch()
        for node in three.nodes.values():
            node.wait_serving()
        second = three.nodes["n2"]
        eventually(lambda: all(each.proven for each in log_of(second).mirrors), "both follow the new master")
        with Raw(second.client) as raw:
            again = raw.produce(batch_of([b"new"], queue, producer_id=34, sequence=1))
            assert (again.flags, again.base_queue_offset, again.copies) == (CONFIRM_DUPLICATE, 1, 3)
            raw.produce(batch_of([b"newer"], queue, producer_id=34, sequence=2))
        assert_copies_equal(three)
        assert (log_of(second).state, log_of(second).role) == ("serving", "master")
        for node in three.nodes.values():
            with Raw(node.client) as raw:
                assert raw.values(queue.queue_id) == [b"old", b"new", b"newer"]


def test_retries_are_marked_as_duplicates(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a receipt says that its batch was there already. Method: a load whose deadline is shorter than the round
    trip gets unknown outcomes, and its retries land nothing twice."""
    cluster.nodes["n2"].pause()
    with Load(cluster.servers[0], queue, deadline_ms=50, window=2) as load:
        eventually(lambda: len(load.outcomes) >= 6, "outcomes are unknown")
        cluster.nodes["n2"].resume()
        eventually(lambda: load.confirmed >= 20, "confirms come")
        load.stop()
    assert duplicates(load) >= 1
    check_all(cluster, queue, load)
