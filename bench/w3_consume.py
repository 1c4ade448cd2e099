"""W3: one consumer reads a backlog, served by the master, all of it in the page cache.

The client checks both checksums of every batch. `batches` takes each batch's header and length, `records` every record
as an object of its own with its value in `bytes`. Read from the first record to the last, again and again for the
measured time; what the connection and the first fetch take is part of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import uvloop

from bench.clients import Pace, run_clients
from bench.measure import Figure, publish_figures
from bench.nodes import prepared_cluster, wait_at_rest
from bench.publishing import Publish, publish
from bench.workload import WorkloadFailed
from mirrorlog.client import Client, Consumer

QUEUE: Final = "w3"
WAYS: Final = ("batches", "records")


@dataclass(frozen=True, slots=True)
class Case:
    """`total_bytes`: of the backlog's records; `seconds`: how long it is read in each way, at least once."""

    record_bytes: int
    total_bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"3 copies, {self.record_bytes} B, memory"


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
    count = max(1, case.total_bytes // case.record_bytes)
    figures: list[Figure] = []
    with prepared_cluster(QUEUE, 3, case.total_bytes * 11 // 10) as cluster:
        servers = tuple(cluster.servers)
        run_clients(publish, [Publish(servers, QUEUE, "batches", case.record_bytes, count, copies=3)])
        cluster.wait_confirmed()
        wait_at_rest(cluster)
        for way in WAYS:
            job = Consume(servers, way, case.record_bytes, count, case.seconds)
            ((consumed, seconds),) = run_clients(consume, [job])
            how = f"{name}, {way}"
            figures += publish_figures("W3", how, count=consumed, record_bytes=case.record_bytes, seconds=seconds)
    return figures


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
            if count != job.count or value_bytes < count * job.record_bytes:
                raise WorkloadFailed(f"{count} records of {value_bytes} bytes read, {job.count} are there")
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
