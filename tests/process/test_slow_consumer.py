"""Consumers that do not read what they asked for, of the tail and of the past: publishing goes on beside them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.testing import Cluster
from mirrorlog.wire.messages import QueueInfo
from tests.process.clusters import MIB, declare, eventually, fast_cluster, log_directory
from tests.process.raw import Raw, batch_of

KIB = 1024
OUTGOING = 8 * MIB
SETTINGS = {
    "log.kept_mapped_bytes": 0,
    "log.prepare_bytes": 0,
    "limits.max_batch_bytes": 256 * KIB,
    "limits.max_record_bytes": 128 * KIB,
    "limits.outgoing_bytes_max": OUTGOING,
}
FETCHES = 400
"""Asked for by each, of up to 1 MiB: many times what the node may keep for it."""
PUBLISHES = 300


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with fast_cluster(2, segment_bytes=MIB, settings=SETTINGS) as two:
        two.wait_in_sync()
        yield two


def deaf(address: str) -> Raw:
    """A connection whose socket takes next to nothing."""
    raw = Raw(address)
    raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return raw


def own_memory(pid: int) -> int:
    """Bytes of a process, without the pages of files."""
    status = Path(f"/proc/{pid}/status").read_text()
    return KIB * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon:"))


def publish(raw: Raw, queue: QueueInfo, count: int, size: int) -> None:
    for _ in range(count):
        assert raw.produce(batch_of([b"x" * size], queue)).copies == 2


def test_a_producer_goes_on_beside_consumers_that_never_read(cluster: Cluster) -> None:
    """Goal: a consumer costs the node `limits.outgoing_bytes_max` and the producer nothing. Method: one that asks for
    400 MiB of the past and one for 400 MiB of the tail, neither reads; 300 publishes are confirmed by both copies
    meanwhile, another reader gets each, and the node's memory has grown by no more than the limit of both."""
    queue = declare(cluster.servers[0], "q")
    with Raw(cluster.servers[0]) as raw:
        publish(raw, queue, 80, 100_000)
        eventually(lambda: len(list(log_directory(cluster.master).glob("*.table"))) >= 4, "there is a past")
        before = own_memory(cluster.master.pid)
        with deaf(cluster.servers[0]) as of_past, deaf(cluster.servers[0]) as of_tail:
            for _ in range(FETCHES):
                of_past.start_fetch(queue.queue_id, 0)
                of_tail.start_fetch(queue.queue_id, 79)
            publish(raw, queue, PUBLISHES, 1_000)
            assert len(raw.values(queue.queue_id, 80)) == PUBLISHES
            assert own_memory(cluster.master.pid) < before + 2 * OUTGOING + 16 * MIB
            publish(raw, queue, PUBLISHES, 1_000)
        assert len(raw.values(queue.queue_id)) == 80 + 2 * PUBLISHES
