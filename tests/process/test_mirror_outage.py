"""A mirror dies or stands still under load: nothing is confirmed on fewer copies, nothing lands twice, nothing is
copied again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.errors import FlushSlaveTimeout, InSyncReplicasNotEnough, RequestTimeout, SlaveNotAvailable
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Durability, Level
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.clusters import (
    assert_copies_equal,
    at_master,
    declare,
    error_of,
    eventually,
    facts,
    fast_cluster,
    log_lines,
    log_of,
    lose_log,
    mirror_of,
    wait_next_master,
)
from tests.process.load import Load
from tests.process.raw import Raw, batch_of

UNKNOWN = {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with fast_cluster(3, data_dir=tmp_path, settings=getattr(request, "param", None)) as three:
        three.wait_in_sync()
        yield three


@pytest.fixture
def queue(cluster: Cluster) -> QueueInfo:
    return declare(cluster.servers[0], "q")


def check_all(cluster: Cluster, queue: QueueInfo, load: Load) -> None:
    """All copies are byte-equal, and every node reads all that was confirmed, once and in order."""
    assert_copies_equal(cluster)
    for node in cluster.nodes.values():
        with Raw(node.client) as raw:
            load.check(raw.values(queue.queue_id))


@pytest.mark.long
def test_a_killed_mirror_stops_confirms_and_resumes_from_its_own_offset(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: the whole story of an outage. Method: SIGKILL under load, see unknown outcomes, then refusals, and no
    confirm; restart, and compare what the mirror asks for with what it had acked, then all copies."""
    mirror = cluster.nodes["n2"]
    with Load(cluster.servers, queue) as load:
        eventually(lambda: load.confirmed >= 30, "the load runs")
        mirror.kill()
        left = eventually(lambda: log_lines(cluster.master, "mirror_left"), "the master sees it")
        acked = int(facts(left[-1])["acked"])
        assert acked > 0
        eventually(lambda: bool(load.outcomes), "publishes fail")
        with Raw(cluster.servers[0]) as raw:
            new = batch_of([b"new"], queue)
            assert type(error_of(lambda: raw.produce(new))) is InSyncReplicasNotEnough
        stood_at = log_of(cluster.master)
        before = load.confirmed
        answers = len(load.outcomes)
        eventually(lambda: len(load.outcomes) > answers + 8, "retries are answered, and not with a confirm")
        after = log_of(cluster.master)
        assert (after.confirmed, after.end, load.confirmed) == (stood_at.confirmed, stood_at.end, before)
        assert after.confirmed <= acked
        mirror.start()
        eventually(lambda: load.confirmed > before + 10, "confirms go on")
        load.stop()
    assert set(load.outcomes) <= {"IN_SYNC_REPLICAS_NOT_ENOUGH", "OUT_OF_SEQUENCE", *UNKNOWN}
    assert {confirm.copies for confirm in load.confirms.values()} == {3}
    assert mirror_of(cluster, "n2").requested >= acked
    check_all(cluster, queue, load)


@pytest.mark.long
@pytest.mark.parametrize("cluster", [{"ha.syncFlushTimeout": 5_000}], indirect=True)
def test_publishes_in_flight_at_a_death_wait_for_their_deadline(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: stored perhaps is said so, at the publish's own deadline, and a retry gets the first copy's place. Method:
    publish to a set with a paused mirror, kill it while the publish waits, which is long enough for a busy machine."""
    mirror = cluster.nodes["n3"]
    batch = batch_of([b"once"], queue, producer_id=21)
    with Raw(cluster.servers[0]) as raw:
        mirror.pause()
        waiting = raw.start_produce(batch)
        eventually(lambda: mirror_of(cluster, "n3").lag_bytes > 0, "the batch is stored on the master")
        mirror.kill()
        error = error_of(lambda: raw.confirm(waiting))
        assert type(error) is SlaveNotAvailable, repr(error)
        assert (error.details["copies"], error.details["copies_up"]) == (2, 2)
        again = error_of(lambda: raw.produce(batch, deadline_ms=100))
        assert type(again) is SlaveNotAvailable, "it is stored, so it must not be said that nothing was"
        assert type(error_of(lambda: raw.produce(batch_of([b"new"], queue)))) is InSyncReplicasNotEnough
        mirror.start()
        cluster.wait_in_sync()
        confirm = raw.produce(batch)
        assert (confirm.flags, confirm.copies, confirm.base_queue_offset) == (1, 3, 0)
        assert raw.values(queue.queue_id) == [b"once"]
    assert_copies_equal(cluster)


def test_a_retry_of_what_was_confirmed_needs_no_mirror(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a producer that lost its receipt gets it again, never a refusal that claims that nothing was stored.
    Method: confirm on three copies, kill both mirrors, send the identical batch, then a new one."""
    batch = batch_of([b"once"], queue, producer_id=23)
    with Raw(cluster.servers[0]) as raw:
        first = raw.produce(batch)
        end = cluster.wait_confirmed().end
        for mirror in cluster.mirrors:
            mirror.kill()
        eventually(lambda: not any(each.connected for each in log_of(cluster.master).mirrors), "both links are gone")
        again = raw.produce(batch)
        assert again == first._replace(flags=CONFIRM_DUPLICATE)
        assert again.copies == 3
        new = batch_of([b"new"], queue, producer_id=23, sequence=1)
        assert type(error_of(lambda: raw.produce(new))) is InSyncReplicasNotEnough
    assert log_of(cluster.master).end == end


@pytest.mark.long
def test_a_mirror_that_stands_still_holds_the_confirms(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a hang is no copy. Method: SIGSTOP; a publish has no receipt before its deadline, the confirmed offset
    stands; SIGCONT; both go on, and the record is there once."""
    mirror = cluster.nodes["n2"]
    batch = batch_of([b"held"], queue, producer_id=22)
    with Raw(cluster.servers[0]) as raw, Raw(cluster.servers[0]) as reader:
        mirror.pause()
        before = log_of(cluster.master)
        waiting = raw.start_produce(batch)
        behind = reader.start_fetch(queue.queue_id, 0, wait_ms=20_000)
        with pytest.raises(RequestTimeout):
            raw.confirm(waiting, timeout=0.5)
        during = log_of(cluster.master)
        assert during.end > before.end
        assert during.confirmed == before.confirmed
        assert type(error_of(lambda: raw.confirm(waiting))) in (FlushSlaveTimeout, SlaveNotAvailable)
        mirror.resume()
        facts_, batches = reader.batches(behind)
        assert (facts_.next, len(batches)) == (1, 1)
        eventually(lambda: log_of(cluster.master).confirmed >= during.end, "the confirmed offset goes on")
        cluster.wait_in_sync()
        confirm = raw.produce(batch)
        assert (confirm.copies, confirm.base_queue_offset, confirm.flags) == (3, 0, 1)
        assert raw.values(queue.queue_id) == [b"held"]
    assert_copies_equal(cluster)


@pytest.mark.long
def test_a_mirror_that_stands_still_for_long_is_counted_out(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: housekeeping ends a link whose socket is full, although nobody reads what was written to it. Method:
    SIGSTOP under a load that fills the buffers; publishes must come to be refused, not only to time out."""
    mirror = cluster.nodes["n2"]
    with Load(cluster.servers, queue, batch_records=64, value_bytes=16_000, window=16) as load:
        eventually(lambda: load.confirmed >= 5, "the load runs")
        mirror.pause()
        eventually(lambda: not mirror_of(cluster, "n2").connected, "the silent link is closed")
        with Raw(cluster.servers[0]) as raw:
            new = batch_of([b"new"], queue)
            assert type(error_of(lambda: raw.produce(new))) is InSyncReplicasNotEnough
        mirror.resume()
        before = load.confirmed
        eventually(lambda: load.confirmed > before, "confirms go on")
        load.stop()
    check_all(cluster, queue, load)


@pytest.mark.long
def test_lower_levels_are_answered_without_the_mirror_but_not_visible(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a level decides when a producer is answered, never what is seen. Method: with a paused mirror, publish at
    each level; those that two copies can satisfy are confirmed, none can be read until the mirror is back."""
    mirror = cluster.nodes["n2"]
    mirror.pause()
    with Raw(cluster.servers[0]) as raw:
        copies = {}
        for number, level in enumerate((Level.NONE, Level.MASTER, Level.ONE, Level.MAJORITY)):
            confirm = raw.produce(batch_of([b"%d" % number], queue), level=level)
            copies[level] = confirm.copies
        assert copies[Level.MASTER] >= 1
        assert copies[Level.ONE] == copies[Level.MAJORITY] == 2
        assert raw.values(queue.queue_id) == []
        mirror.resume()
        eventually(lambda: raw.values(queue.queue_id) == [b"0", b"1", b"2", b"3"], "they are visible")


@pytest.mark.long
def test_a_restarted_mirror_keeps_its_data(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a clean restart copies nothing again. Method: stop a mirror, look at what it asks for when it is back."""
    with Load(cluster.servers, queue, value_bytes=4000) as load:
        eventually(lambda: load.confirmed >= 50, "the load runs")
        load.stop()
    end = cluster.wait_confirmed().end
    mirror = cluster.nodes["n3"]
    assert mirror.stop() == 0
    mirror.start()
    cluster.wait_in_sync()
    assert mirror_of(cluster, "n3").requested == end
    opened = facts(log_lines(mirror, "log_opened")[-1])
    assert (opened["end"], opened["flushed"], opened["confirmed"]) == (str(end), str(end), str(end))
    assert not log_lines(mirror, "log_truncated")
    check_all(cluster, queue, load)


@pytest.mark.long
def test_a_mirror_reads_confirmed_records_with_the_master_away(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a copy serves what was confirmed and nothing else, also while nobody can be promoted. Method: publish at
    level one with one mirror paused, so that the other one holds more than is confirmed; kill the master; read that
    other one. It is promoted when the third is back, for its copy is the longest, and what it held is confirmed."""
    master, second, third = cluster.nodes.values()
    with Raw(master.client) as raw:
        raw.produce(batch_of([b"a", b"b"], queue))
        cluster.wait_confirmed()
        third.pause()
        raw.produce(batch_of([b"unconfirmed"], queue), level=Level.ONE)
    master.kill()
    with Raw(second.client, stale_reads=True) as raw:
        log = log_of(second)
        assert log.end > log.confirmed
        assert raw.values(queue.queue_id) == [b"a", b"b"]
        facts_, batches = raw.fetch(queue.queue_id, 2, wait_ms=100)
        assert (facts_.next, batches) == (2, [])
        error = error_of(lambda: raw.produce(batch_of([b"x"], queue)))
        assert error.code == "NOT_MASTER"
    third.resume()
    assert wait_next_master(cluster, master, log.epoch) is second
    master.start()
    cluster.wait_in_sync()
    with Raw(second.client) as raw:
        assert raw.values(queue.queue_id) == [b"a", b"b", b"unconfirmed"]
    assert_copies_equal(cluster)


@pytest.mark.long
def test_a_mirror_whose_copy_is_gone_takes_all_history(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: an empty copy is filled from the begin, and counts for nothing until then. Method: remove a mirror's copy
    of the log, restart it."""
    with Load(cluster.servers, queue, value_bytes=4000) as load:
        eventually(lambda: load.confirmed >= 20, "the load runs")
        load.stop()
    mirror = cluster.nodes["n2"]
    mirror.stop()
    lose_log(mirror)
    mirror.start()
    cluster.wait_in_sync()
    assert log_lines(mirror, "copy_gone")
    assert mirror_of(cluster, "n2").requested == 0
    check_all(cluster, queue, load)


@pytest.mark.long
def test_a_mirror_with_a_blank_disk_takes_all_history(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a blank node is another member of the cluster, and is filled from the begin. Method: remove a mirror's
    directory, restart it."""
    with at_master(cluster) as raw:
        raw.produce(batch_of([b"kept"], queue))
    mirror = cluster.nodes["n2"]
    mirror.stop()
    mirror.data_dir.rename(mirror.data_dir.with_name("aside"))
    mirror.start()
    cluster.wait_in_sync()
    assert log_lines(mirror, "disk_replaced")
    assert mirror_of(cluster, "n2").requested == 0
    assert_copies_equal(cluster)


@pytest.mark.long
@pytest.mark.parametrize("flush", ["memory", "disk"])
def test_the_receipt_says_where_the_copies_are(tmp_path: Path, flush: str) -> None:
    """Goal: CONFIRM's durability is the log's. Method: publish to a log of each kind; on disk means that every copy's
    flushed offset is past the record when the receipt is there."""
    with fast_cluster(2, flush=flush, data_dir=tmp_path, settings={"log.flushIntervalCommitLog": 60_000}) as two:
        queue = declare(two.servers[0], "q")
        two.wait_in_sync()
        with Raw(two.servers[0]) as raw:
            for number in range(20):
                confirm = raw.produce(batch_of([b"%d" % number], queue))
                assert confirm.durability == (Durability.DISK if flush == "disk" else Durability.MEMORY)
                assert confirm.copies == 2
        logs = [log_of(node) for node in two.nodes.values()]
        if flush == "disk":
            assert all(log.flushed > confirm.log_offset for log in logs)
            assert all(log.flush == "disk" for log in logs)
        else:
            assert all(log.flushed <= confirm.log_offset for log in logs)


@pytest.mark.long
def test_disk_can_be_asked_of_a_memory_log(tmp_path: Path) -> None:
    """Goal: a publish may ask for more than its log. Method: durability disk on a memory log with a short interval."""
    with fast_cluster(2, data_dir=tmp_path) as two:
        queue = declare(two.servers[0], "q")
        with Raw(two.servers[0]) as raw:
            confirm = raw.produce(batch_of([b"x"], queue), durability=Durability.DISK)
        assert confirm.durability == Durability.DISK
        assert all(log_of(node).flushed > confirm.log_offset for node in two.nodes.values())
