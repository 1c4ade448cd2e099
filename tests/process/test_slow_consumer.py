"""Consumers that do not read what they asked for, of the tail and of the past: publishing goes on beside them."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import pytest

from mirrorlog.errors import ConnectionLost
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import QueueInfo
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
HELD_FETCHES = 6
"""Asked for by another one: what the node can keep for it, so that its connection lasts."""
ROUNDS = 4
PUBLISHES = 300
"""In each half of a round. What the consumers asked for is read for them during the first few dozen."""
SLOWER_MAX = 5.0
"""Of two medians of one run: other work on the machine falls on both, so they differ by less than a factor of two."""


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


def publish(raw: Raw, queue: QueueInfo, count: int, size: int) -> list[float]:
    """How long each took, one after the other, in seconds."""
    took = []
    for _ in range(count):
        batch = batch_of([b"x" * size], queue)
        began = time.perf_counter()
        assert raw.produce(batch).copies == 2
        took.append(time.perf_counter() - began)
    return took


@contextmanager
def consumers_that_never_read(address: str, queue: QueueInfo) -> Iterator[None]:
    """One that asks for 400 MiB of the past, one for as much of the tail, and one for no more than it may have.

    The first two may be closed for that at any time; the third gets what it asked for when it reads in the end.
    """
    with deaf(address) as of_past, deaf(address) as of_tail, Raw(address) as lasting:
        held = [lasting.start_fetch(queue.queue_id, 0) for _ in range(HELD_FETCHES)]
        with suppress(ConnectionLost):
            for _ in range(FETCHES):
                of_past.start_fetch(queue.queue_id, 0)
                of_tail.start_fetch(queue.queue_id, 79)
        yield
        assert all(lasting.batches(number)[1] for number in held)


def test_a_producer_goes_on_beside_consumers_that_never_read(cluster: Cluster) -> None:
    """Goal: a consumer costs the node `limits.outgoing_bytes_max`, and the producer next to nothing. Method: in turns
    with some that do not read what they asked for, and without: all publishes are confirmed by both copies, their
    medians are close, another reader gets each record, and the node's memory has grown by no more than the limit of
    each."""
    queue = declare(cluster.servers[0], "q")
    with Raw(cluster.servers[0]) as raw:
        publish(raw, queue, 80, 100_000)
        eventually(lambda: len(list(log_directory(cluster.master).glob("*.table"))) >= 4, "there is a past")
        before = own_memory(cluster.master.pid)
        alone: list[float] = []
        beside: list[float] = []
        for number in range(ROUNDS):
            alone += publish(raw, queue, PUBLISHES, 1_000)
            with consumers_that_never_read(cluster.servers[0], queue):
                beside += publish(raw, queue, PUBLISHES, 1_000)
                assert len(raw.values(queue.queue_id, 80 + 2 * PUBLISHES * number)) == 2 * PUBLISHES
                assert own_memory(cluster.master.pid) < before + 3 * OUTGOING + 16 * MIB
        assert median(beside) < SLOWER_MAX * median(alone), (
            f"{median(beside):.6f} s beside, {median(alone):.6f} s alone"
        )
