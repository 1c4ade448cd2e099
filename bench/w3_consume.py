"""W3: one consumer reads a backlog, served by the master, all of it in the page cache.

The client checks both checksums of every batch. `batches` takes each batch's header and length, `records` every record
as an object of its own with its value in `bytes`. Read from the first record to the last, again and again for the
measured time; what the connection and the first fetch take is part of it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import uvloop

from bench.clients import Pace, run_clients
from bench.measure import Figure, publish_figures
from bench.nodes import prepared_cluster, wait_at_rest
from bench.publishing import Publish, publish
from bench.workload import WorkloadFailed
from mirrorlog.client import Client, Consumer
from mirrorlog.testing import Cluster

QUEUE: Final = "w3"
COPIES: Final = 3
WAYS: Final = ("batches", "records")


@dataclass(frozen=True, slots=True)
class Case:
    """`total_bytes`: of the backlog's records; `seconds`: how long it is read in each way, at least once."""

    record_bytes: int
    total_bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{COPIES} copies, {self.record_bytes} B, memory"

    @property
    def count(self) -> int:
        """Of the backlog's records."""
        return max(1, self.total_bytes // self.record_bytes)


@dataclass(frozen=True, slots=True)
class Consume:
    """One client's work: `count` records are in the queue."""

    servers: tuple[str, ...]
    way: str
    record_bytes: int
    count: int
    seconds: float


def run(case: Case, name: str) -> list[Figure]:
    """One round: publish the backlog, then read it in both ways."""
    figures: list[Figure] = []
    with backlog(case) as cluster:
        for way in WAYS:
            job = Consume(tuple(cluster.servers), way, case.record_bytes, case.count, case.seconds)
            figures += read_figures(case, f"{name}, {way}", *run_clients(consume, [job]))
    return figures


@contextmanager
def backlog(case: Case, *, grpc: bool = False) -> Iterator[Cluster]:
    """Nodes at rest that hold it, all of it confirmed; `grpc`: with the gRPC doors."""
    with prepared_cluster(QUEUE, COPIES, case.total_bytes * 11 // 10, grpc=grpc) as cluster:
        job = Publish(tuple(cluster.servers), QUEUE, "batches", case.record_bytes, case.count, COPIES)
        run_clients(publish, [job])
        cluster.wait_confirmed()
        wait_at_rest(cluster)
        yield cluster


def read_figures(case: Case, how: str, read: tuple[int, float]) -> list[Figure]:
    """Of a client that has read so many records in so many seconds."""
    count, seconds = read
    return publish_figures("W3", how, count=count, record_bytes=case.record_bytes, seconds=seconds)


def check_all_read(count: int, value_bytes: int, *, wanted: int, record_bytes: int) -> None:
    """Raises WorkloadFailed unless that is all of the backlog."""
    if count != wanted or value_bytes < count * record_bytes:
        raise WorkloadFailed(f"{count} records of {value_bytes} bytes read, {wanted} are there")


def consume(pace: Pace, job: Consume) -> tuple[int, float]:
    """The client: how many records it has read, and the seconds that it took."""
    return uvloop.run(_consume(pace, job))


async def _consume(pace: Pace, job: Consume) -> tuple[int, float]:
    read = _read_batches if job.way == "batches" else _read_records
    consumed = 0
    async with Client(*job.servers) as client:
        began = pace.begin()
        while time.perf_counter() - began < job.seconds:
            async with client.consumer(QUEUE, start="earliest", until="confirmed") as consumer:
                count, value_bytes = await read(consumer)
            check_all_read(count, value_bytes, wanted=job.count, record_bytes=job.record_bytes)
            consumed += count
        return consumed, time.perf_counter() - began


async def _read_batches(consumer: Consumer) -> tuple[int, int]:
    count = stored_bytes = 0
    async for batch in consumer.batches():
        count += len(batch)
        stored_bytes += batch.header.length
    return count, stored_bytes


async def _read_records(consumer: Consumer) -> tuple[int, int]:
    count = value_bytes = 0
    async for record in consumer:
        count += 1
        value_bytes += len(record.value or b"")
    return count, value_bytes
