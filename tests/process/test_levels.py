"""Confirm levels, in memory and on disk: when a publish is answered while mirrors stand still, and what its receipt
says."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from mirrorlog.errors import FlushSlaveTimeout, RequestTimeout
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.frames import Confirm, Durability, Level
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.clusters import assert_copies_equal, declare, error_of, eventually, fast_cluster, log_of, mirror_of
from tests.process.raw import Raw, batch_of

# Of a set of three: how many copies each level waits for.
NEEDED: dict[str | int, int] = {"all": 3, 3: 3, "majority": 2, 2: 2, "one": 2, "master": 1, "none": 0}
# Nothing ends by a clock but what has a deadline of its own, and nobody is taken for dead or left behind.
PATIENT = {
    "ha.syncFlushTimeout": 30_000,
    "ha.haHousekeepingInterval": 20_000,
    "cluster.node_timeout_ms": 30_000,
    "cluster.mirror_lag_time_ms": 30_000,
}
# Of a publish that has no reason to be answered. Those that have one were answered before.
UNANSWERED_S = 0.2


@pytest.fixture(params=["memory", "disk"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """Three copies of which two are enough, mastered by n1, in a log of either flush mode."""
    with fast_cluster(3, min_in_sync=2, flush=request.param, data_dir=tmp_path, settings=PATIENT) as three:
        three.wait_in_sync()
        yield three


@pytest.fixture
def queue(cluster: Cluster) -> QueueInfo:
    return declare(cluster.servers[0], "q")


def durabilities(node: Node) -> Sequence[Durability]:
    """What a producer can be answered for: a disk log knows nothing less."""
    return [Durability.DISK] if log_of(node).flush == "disk" else [Durability.MEMORY, Durability.DISK]


def publish(raw: Raw, queue: QueueInfo, level: str | int, durability: int, **options: int) -> int:
    """Its correlation id."""
    return raw.start_produce(batch_of([b"x"], queue), level=Level.parse(level), durability=durability, **options)


def check_receipt(confirm: Confirm, level: str | int, durability: int, nodes: Collection[Node]) -> None:
    """As many copies as the level asks for, as durable as was asked for; `nodes`, which run, hold no fewer of them."""
    assert confirm.durability == durability, (level, confirm)
    assert NEEDED[level] <= confirm.copies <= len(nodes), (level, confirm)
    logs = [log_of(node) for node in nodes]
    held = [log.flushed if durability == Durability.DISK else log.end for log in logs]
    assert sum(end > confirm.log_offset for end in held) >= confirm.copies, (level, confirm, held)


@pytest.mark.long_after(1)
@pytest.mark.story("003:11b")
def test_each_level_waits_for_its_copies_and_no_others(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a level is answered by the copies that it asks for, as durable as it asks. Method: SIGSTOP one mirror, then
    both; publish at every level, the highest first: those that the others can satisfy have their receipts, the rest
    none; SIGCONT: now they have."""
    master, second, third = cluster.nodes.values()
    for durability in durabilities(master):
        check_levels(queue, durability, up=[master, second], paused=[third])
        check_levels(queue, durability, up=[master], paused=[second, third])
    cluster.wait_in_sync()
    assert_copies_equal(cluster)


def check_levels(queue: QueueInfo, durability: int, *, up: Sequence[Node], paused: Sequence[Node]) -> None:
    """`up`: the master first."""
    for node in paused:
        node.pause()
    with Raw(up[0].client) as raw:
        waiting = {level: publish(raw, queue, level, durability) for level in NEEDED}
        for level, needed in NEEDED.items():
            if needed <= len(up):
                check_receipt(raw.confirm(waiting.pop(level)), level, durability, up)
        for number in waiting.values():
            with pytest.raises(RequestTimeout):
                raw.confirm(number, timeout=UNANSWERED_S / len(waiting))
        for node in paused:
            node.resume()
        for level, number in waiting.items():
            check_receipt(raw.confirm(number), level, durability, [*up, *paused])
    assert "all" in waiting


@pytest.mark.long
def test_what_a_level_still_lacks_at_its_deadline_is_said(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: never a success below the level. Method: SIGSTOP a mirror and publish with a short deadline: `all` and 3
    end as unknown and say how many copies there are; the same batch sent again is answered when the mirror goes on."""
    master, _, mirror = cluster.nodes.values()
    for number, level in enumerate(("all", 3), 1):
        mirror.pause()
        batch = batch_of([b"x"], queue, producer_id=number)
        with Raw(master.client) as raw:
            error = error_of(partial(raw.produce, batch, level=Level.parse(level), deadline_ms=1_000))
            assert type(error) is FlushSlaveTimeout, repr(error)
            assert (error.details["copies"], error.details["copies_up"]) == (2, 3)
            again = raw.start_produce(batch, level=Level.parse(level))
            mirror.resume()
            confirm = raw.confirm(again)
            assert (confirm.copies, confirm.base_queue_offset) == (3, number - 1)


@pytest.mark.long
def test_all_is_the_set_and_a_number_is_a_number(tmp_path: Path) -> None:
    """Goal: `all` goes on without a mirror that has left the set, and its receipt says so; a number of copies does not.
    Method: SIGSTOP a mirror until it is out: `all` is answered with two copies, 3 is not."""
    settings = {**PATIENT, "cluster.mirror_lag_time_ms": 1_000}
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path, settings=settings) as cluster:
        cluster.wait_in_sync()
        queue = declare(cluster.servers[0], "q")
        master, _, mirror = cluster.nodes.values()
        mirror.pause()
        with Raw(master.client) as raw:
            assert raw.produce(batch_of([b"0"], queue)).copies == 2
            eventually(lambda: not mirror_of(cluster, mirror.id).in_sync, "the mirror has left the set")
            three = raw.start_produce(batch_of([b"1"], queue), level=3)
            assert raw.produce(batch_of([b"2"], queue)).copies == 2
            with pytest.raises(RequestTimeout):
                raw.confirm(three, timeout=UNANSWERED_S)
            mirror.resume()
            assert raw.confirm(three).copies == 3
            eventually(lambda: mirror_of(cluster, mirror.id).in_sync, "it is let in again")
            assert raw.produce(batch_of([b"3"], queue)).copies == 3
