"""A node's memory under many who do not read, and many who do not end what they begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from mirrorlog.errors import ConnectionLost, Overloaded
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import QueueInfo
from tests.attacks.begun_frames import begun_frames
from tests.attacks.slow_readers import slow_readers
from tests.process.clusters import MIB, declare, eventually, fast_cluster, log_lines
from tests.process.raw import Raw, batch_of

SETTINGS = {
    "log.kept_mapped_bytes": 0,
    "log.populate_bytes": 0,
    "log.prepare_bytes": 0,
    "limits.outgoing_bytes_total": 32 * MIB,
    "limits.incoming_bytes_total": 32 * MIB,
}
RECORDS = 48


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(1, settings=SETTINGS) as one:
        yield one


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> QueueInfo:
    """Old records, all but the newest of which are on disk alone."""
    found = declare(cluster.servers[0], "q")
    with Raw(cluster.servers[0]) as raw:
        for number in range(RECORDS):
            raw.produce(batch_of([b"%d" % number + bytes(MIB - 100)], found, producer_id=1, sequence=number))
    return found


def held(cluster: Cluster) -> int:
    """Anonymous memory of the node."""
    memory = cluster.nodes["n1"].status().memory
    assert memory is not None
    return memory.used_bytes


def test_readers_who_take_nothing_fill_a_budget_and_nobody_else_waits(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: forty slow readers of old records cost a node its budget, not its memory. Method: each asks for 128 MiB and
    reads nothing; another one reads all of the queue beside them; what the node holds stays near the budget."""
    before = held(cluster)
    with slow_readers(cluster.servers[0], queue.queue_id, 40):
        eventually(lambda: held(cluster) > before + 8 * MIB, "they hold something")
        with Raw(cluster.servers[0], timeout=30) as raw:
            assert len(raw.values(queue.queue_id)) == RECORDS
        assert held(cluster) < before + 128 * MIB
    eventually(lambda: held(cluster) < before + 32 * MIB, "it is given back")


def test_of_many_who_begin_frames_and_stop_the_first_go(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: frames that nobody ends cost a node its budget. Method: 16 begin 7 MiB each, in a node that has 32 for
    that: it closes some and names the limit; then a publish of somebody else is confirmed."""
    node, before = cluster.nodes["n1"], held(cluster)
    with suppress(ConnectionLost), begun_frames(cluster.servers[0], 16, size=7 * MIB) as senders:
        error = senders[0].last_words()
        assert isinstance(error, Overloaded)
        assert error.details["limit"] == "incoming_bytes_total"
    assert log_lines(node, "sender_closed")
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([b"x"], queue, producer_id=2))
    eventually(lambda: held(cluster) < before + 48 * MIB, "it is given back")
