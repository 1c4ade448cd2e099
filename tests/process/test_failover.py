"""Any node may die, hang or go: another copy is promoted, publishes go on, and what was confirmed is there once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import InSyncReplicasNotEnough, MasterChanged, NotCurrent, NotMaster
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.frames import CONFIRM_DUPLICATE
from mirrorlog.wire.messages.operators import Drained, DrainNode
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.messages.status import PlacedLog
from tests.process.clusters import (
    assert_copies_equal,
    at_master,
    declare,
    error_of,
    eventually,
    fast_cluster,
    log_lines,
    log_of,
    mirror_of,
    start_all,
    wait_next_master,
)
from tests.process.load import Load
from tests.process.raw import Raw, batch_of

NODE_TIMEOUT_MS = 600
MIRROR_LAG_MS = 500
UNKNOWN = {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE", "MASTER_CHANGED"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three copies of which two are enough."""
    with ready(tmp_path) as three:
        yield three


def ready(directory: Path, **settings: Any) -> Cluster:
    """To be entered; `settings`: of `[cluster]`."""
    chosen = {f"cluster.{name}": value for name, value in settings.items()}
    return fast_cluster(3, min_in_sync=2, data_dir=directory, settings=chosen)


@pytest.fixture
def queue(cluster: Cluster) -> QueueInfo:
    cluster.wait_in_sync()
    return declare(cluster.servers[0], "q")


def placed(node: Node) -> PlacedLog:
    """What the node knows of its cluster's only log."""
    status = node.status().cluster
    assert status is not None
    (log,) = status.logs
    return log


def more(load: Load, batches: int, what: str) -> None:
    """So many more are confirmed, from now on."""
    target = load.confirmed + batches

    def reached() -> bool:
        if load.error is not None:
            raise load.error
        return load.confirmed >= target

    eventually(reached, f"confirms go on {what}; outcomes {load.outcomes[-5:]}")


def check_all(cluster: Cluster, queue: QueueInfo, load: Load) -> None:
    """All copies are equal, each reads everything once and in order, nobody is marked and nothing was lost."""
    cluster.wait_in_sync()
    assert_copies_equal(cluster)
    for node in cluster.nodes.values():
        with Raw(node.client) as raw:
            load.check(raw.values(queue.queue_id))
        log = placed(node)
        assert (log.marked, log.losses, log.waits_for) == ([], [], [])
        assert set(log.in_sync) == set(cluster.nodes)
        assert not log_lines(node, "log_lossy")
        assert "Traceback" not in node.log_file.read_text()


# --- Deaths -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_publishes_go_on_while_the_master_is_dead(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: one death costs a moment. Method: kill the master under load, twice, the second time the next one: confirms
    go on before the dead one is back, in a later epoch each time."""
    with Load(cluster.servers, queue) as load:
        more(load, 20, "at first")
        for _ in range(2):
            master = cluster.master
            epoch = log_of(master).epoch
            master.kill()
            wait_next_master(cluster, master, epoch)
            more(load, 20, f"without {master.id}")
            master.start()
            cluster.wait_in_sync()
        load.stop()
    # Not a measurement: a machine that has other things to do must not fail it. One that hangs, does.
    assert load.longest_s < 5
    assert load.confirms[0].copies == 3
    check_all(cluster, queue, load)


@pytest.mark.long
def test_all_nodes_killed_at_once_come_back_with_everything(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: where only processes die, the page cache survives: nothing is lost, and no loss is said. Method: kill all
    three under load without a pause between, start them all; twice."""
    with Load(cluster.servers, queue) as load:
        for _ in range(2):
            more(load, 20, "with all nodes")
            for node in cluster.nodes.values():
                node.kill()
            start_all(cluster)
        more(load, 20, "after the last start")
        load.stop()
    check_all(cluster, queue, load)


@pytest.mark.long
@pytest.mark.parametrize("victims", [("n2", "n3"), ("n1", "n2")])
def test_two_dead_nodes_of_three_hold_everything_still(
    cluster: Cluster, queue: QueueInfo, victims: Sequence[str]
) -> None:
    """Goal: a minority confirms nothing and says so at once. Method: kill two of three, with and without the master;
    each publish to the third is refused before its deadline, with the reason, reads say that others may know more, and
    the confirmed offset stands; start them again, and all goes on."""
    with at_master(cluster) as raw:
        confirm = raw.produce(batch_of([b"first"], queue, producer_id=41))
    cluster.wait_confirmed()
    for node in victims:
        cluster.nodes[node].kill()
    (left,) = [node for node in cluster.nodes.values() if node.id not in victims]
    masters = "n1" not in victims

    def refused() -> bool:
        with Raw(left.client) as raw:
            began = time.monotonic()
            error = error_of(lambda: raw.produce(batch_of([b"no"], queue, producer_id=42), deadline_ms=20_000))
            assert time.monotonic() - began < 5
            return type(error) is (InSyncReplicasNotEnough if masters else NotMaster)

    eventually(refused, "it refuses")
    before = log_of(left)
    for _ in range(20):
        assert refused()
    eventually(lambda: not reads(left, queue), "it knows that it is alone")
    with Raw(left.client, stale_reads=True) as raw:
        assert raw.values(queue.queue_id) == [b"first"]
    after = log_of(left)
    assert (after.confirmed, after.end) == (before.confirmed, before.end)
    for node in victims:
        cluster.nodes[node].launch()
    for node in victims:
        cluster.nodes[node].wait_serving()
    cluster.wait_in_sync()
    with at_master(cluster) as raw:
        again = raw.produce(batch_of([b"first"], queue, producer_id=41))
        assert (again.flags, again.log_offset) == (CONFIRM_DUPLICATE, confirm.log_offset)
        assert raw.produce(batch_of([b"second"], queue, producer_id=41, sequence=1)).base_queue_offset == 1
        assert raw.values(queue.queue_id) == [b"first", b"second"]
    assert_copies_equal(cluster)


def reads(node: Node, queue: QueueInfo) -> bool:
    """Whether it answers reads, as one that is in touch with the others."""
    with Raw(node.client) as raw:
        try:
            raw.fetch(queue.queue_id, 0)
        except NotCurrent:
            return False
    return True


# --- Hangs ------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_master_that_stands_still_is_replaced_and_finds_itself_fenced(tmp_path: Path) -> None:
    """Goal: a hung process is as good as dead, and harmless when it wakes. Method: SIGSTOP the master under load for
    longer than `node_timeout_ms`: confirms go on elsewhere; a publish and a read that lie in its sockets when it wakes
    are answered, the first with no confirm, the second with nothing that is not confirmed; then all are equal."""
    with ready(tmp_path, node_timeout_ms=NODE_TIMEOUT_MS) as cluster:
        cluster.wait_in_sync()
        queue, other = declare(cluster.servers[0], "q"), declare(cluster.servers[0], "other")
        master = cluster.master
        epoch = log_of(master).epoch
        # What it has may be read from a node that is cut off, if that is asked for: it is confirmed all the same.
        stale = Raw(master.client, timeout=20, stale_reads=True)
        with Load(cluster.servers, queue, answer_s=1.0) as load, stale as raw:
            more(load, 20, "at first")
            master.pause()
            waiting = raw.start_produce(batch_of([b"stale"], other, producer_id=43))
            reading = raw.start_fetch(other.queue_id, 0, wait_ms=500)
            wait_next_master(cluster, master, epoch)
            more(load, 20, "with another master")
            with at_master(cluster) as next_one:
                true = batch_of([b"true"], other, producer_id=44)
                eventually(lambda: next_one.produce(true), "two copies are up")
            master.resume()
            error = error_of(lambda: raw.confirm(waiting))
            assert error.code in {"NOT_MASTER", "IN_SYNC_REPLICAS_NOT_ENOUGH", *UNKNOWN}, repr(error)
            for batch in raw.batches(reading)[1]:
                assert b"stale" not in bytes(batch)
            more(load, 20, "when it is back")
            cluster.wait_in_sync()
            load.stop()
        assert log_of(master).role == "mirror"
        assert cluster.master is not master
        for node in cluster.nodes.values():
            with Raw(node.client) as raw:
                assert raw.values(other.queue_id) == [b"true"]
        check_all(cluster, queue, load)


@pytest.mark.long
def test_a_mirror_that_stands_still_leaves_the_set_and_comes_back(tmp_path: Path) -> None:
    """Goal: one slow copy delays nobody for longer than `mirror_lag_time_ms` when two are enough. Method: SIGSTOP a
    mirror, with a node timeout that does not come into it: a publish waits, is confirmed on two copies, the next ones
    are at once; SIGCONT: it is let in again, and holds all."""
    with ready(tmp_path, node_timeout_ms=30_000, mirror_lag_time_ms=MIRROR_LAG_MS) as cluster:
        cluster.wait_in_sync()
        queue = declare(cluster.servers[0], "q")
        master, mirror, _ = cluster.nodes.values()
        with Load([master.client], queue) as load:
            more(load, 20, "at first")
            mirror.pause()
            more(load, 20, "without the mirror")
            assert set(placed(master).in_sync) == {"n1", "n3"}
            mirror.resume()
            eventually(lambda: set(placed(master).in_sync) == {"n1", "n2", "n3"}, "it is let in again")
            more(load, 20, "with it")
            load.stop()
        assert set(load.outcomes) <= UNKNOWN | {"OUT_OF_SEQUENCE"}
        assert {confirm.copies for confirm in load.confirms.values()} == {2, 3}
        assert load.confirms[max(load.confirms)].copies == 3
        assert cluster.master is master
        check_all(cluster, queue, load)


# --- Going and coming ------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_rolling_restart_loses_nothing_and_copies_nothing_again(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a clean stop hands over first. Method: stop and start each node in turn under load: exit code 0, no outcome
    is unknown, and what each node asks for when it is back is where its copy ends."""
    with Load(cluster.servers, queue, pace_s=0.002) as load:
        for node in cluster.nodes.values():
            more(load, 10, f"before {node.id} stops")
            assert node.stop() == 0
            end = log_of(cluster.master).end
            more(load, 10, f"without {node.id}")
            node.start()
            cluster.wait_in_sync()
            assert 0 < mirror_of(cluster, node.id).requested <= end
            assert not log_lines(node, "log_truncated")
        load.stop()
    assert not UNKNOWN & set(load.outcomes), load.outcomes
    assert load.longest_s < 5
    check_all(cluster, queue, load)


def test_publishes_during_role_changes_land_once(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a log that changes hands while batches are on their way loses and doubles none, and leaves no outcome
    unknown. Method: drain the master of the moment, six times, under load."""
    with Load(cluster.servers, queue, window=16) as load:
        for _ in range(6):
            more(load, 10, "with this master")
            master = cluster.master
            epoch = log_of(master).epoch
            with Raw(master.client) as raw:
                raw.request(DrainNode(node=master.id, draining=True), Drained)
                wait_next_master(cluster, master, epoch)
                raw.request(DrainNode(node=master.id, draining=False), Drained)
        more(load, 10, "at the end")
        load.stop()
    assert not UNKNOWN & set(load.outcomes), load.outcomes
    assert "NOT_MASTER" in load.outcomes, "no publish met a change"
    check_all(cluster, queue, load)


@pytest.mark.long
def test_a_publish_that_waits_when_the_master_is_fenced_is_told_so(tmp_path: Path) -> None:
    """Goal: nobody waits for a confirm that can never come. Method: hold a publish by two paused mirrors, let the
    master stand still while they start again and one of them is promoted: when it wakes, what waits ends as unknown
    before its deadline; a retry at the new master lands once, and the former one cuts what it had."""
    with ready(tmp_path, node_timeout_ms=NODE_TIMEOUT_MS) as cluster:
        cluster.wait_in_sync()
        queue = declare(cluster.servers[0], "q")
        cluster.wait_confirmed()
        master, mirrors = cluster.master, cluster.mirrors
        epoch = log_of(master).epoch
        batch = batch_of([b"once"], queue, producer_id=45)
        with Raw(master.client, timeout=20) as raw:
            for mirror in mirrors:
                mirror.pause()
            waiting = raw.start_produce(batch, deadline_ms=15_000)
            eventually(lambda: mirror_of_one(master, "n2") > 0, "it is stored on the master")
            master.pause()
            for mirror in mirrors:
                mirror.kill()  # what lay in its socket goes, too: else it would have the batch, and that be confirmed
                mirror.launch()
            wait_next_master(cluster, master, epoch)
            master.resume()
            began = time.monotonic()
            error = error_of(lambda: raw.confirm(waiting))
            assert error.code in UNKNOWN, repr(error)
            assert time.monotonic() - began < 10
            if type(error) is MasterChanged:
                assert error.details["master"] in {*cluster.servers, None}
        with at_master(cluster) as raw:
            assert eventually(lambda: raw.produce(batch), "two copies are up").flags == 0
            cluster.wait_in_sync()
            assert raw.produce(batch).flags == CONFIRM_DUPLICATE
            assert raw.values(queue.queue_id) == [b"once"]
        assert log_lines(master, "log_truncated")
        assert_copies_equal(cluster)


def mirror_of_one(master: Node, node_id: str) -> int:
    """How many bytes a mirror lacks, as its master sees it; whatever the others say."""
    return next(mirror.lag_bytes for mirror in log_of(master).mirrors if mirror.node_id == node_id)


# --- The public client ------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("deed", [Node.kill, Node.stop, Node.pause])
async def test_the_public_client_goes_on_by_itself(tmp_path: Path, deed: Callable[[Node], object]) -> None:
    """Goal: an application sees no error when the master dies, stops or hangs. Method: send records one after the other
    and read them in a group meanwhile; half way, do it to the master: every send has a receipt, and the group has each
    record once, in order."""
    with ready(tmp_path, node_timeout_ms=NODE_TIMEOUT_MS) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        victim = cluster.nodes["n1"]
        values = [b"%d" % number for number in range(400)]
        async with Client(*cluster.servers) as client:
            await client.admin.declare("q")
            async with asyncio.timeout(30), client.producer("q") as producer:
                reading = asyncio.ensure_future(read(client, len(values)))
                for number, value in enumerate(values):
                    if number == len(values) // 2:
                        await asyncio.to_thread(deed, victim)
                    assert (await producer.send(value)).queue_offset == number
                assert await reading == values
        victim.resume()
        if not victim.running:
            await asyncio.to_thread(victim.start)
        await asyncio.to_thread(cluster.wait_in_sync)
        await asyncio.to_thread(assert_copies_equal, cluster)


async def read(client: Client, count: int) -> list[bytes]:
    async with client.consumer("q", group="g", start="earliest") as consumer:
        found: list[bytes] = []
        async for record in consumer:
            found.append(record.value or b"")
            if len(found) == count:
                return found
    raise AssertionError("the consumer ended")
