"""W2: one record outstanding, confirmed by all copies: the round trip that a careful producer waits for.

With small segments, one confirm in a thousand waits for a record that began a new one: p99.9 shows what a roll costs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import uvloop

from bench.clients import Pace, run_clients
from bench.measure import Figure, latencies
from bench.nodes import prepared_cluster
from bench.records import random_records
from bench.workload import MIB
from mirrorlog.client import Client
from mirrorlog.config import LogSettings

QUEUE: Final = "w2"

_POOL: Final = 1000
_WARM_UP: Final = 200


@dataclass(frozen=True, slots=True)
class Case:
    """`flush`: memory or disk, of the nodes' log; `seconds`: how long records are sent; `segment_bytes`: of the log, at
    least a batch's limit, which follows it."""

    copies: int
    record_bytes: int
    seconds: float
    flush: str = "memory"
    segment_bytes: int = LogSettings().segment_bytes

    def __str__(self) -> str:
        copies = "copy" if self.copies == 1 else "copies"
        rolls = f", segments of {self.segment_bytes // MIB} MiB" if self.rolls else ""
        return f"{self.copies} {copies}, {self.record_bytes} B, {self.flush}, send{rolls}"

    @property
    def rolls(self) -> bool:
        """Whether the log goes through many segments."""
        return self.segment_bytes < LogSettings().segment_bytes


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    with prepared_cluster(
        QUEUE,
        case.copies,
        256 * MIB,
        flush=case.flush,
        segment_bytes=case.segment_bytes,
        settings=_small_batches(case.segment_bytes) if case.rolls else None,
    ) as cluster:
        (latencies_us,) = run_clients(send_one_by_one, [(tuple(cluster.servers), case)])
    figures = latencies("W2", name, latencies_us, ("p50", "p90", "p99", "p99.9"))
    if case.rolls:
        filled = len(latencies_us) * case.record_bytes / case.segment_bytes
        figures.append(Figure("W2", name, "segments filled", "", filled))
    return figures


def _small_batches(limit: int) -> dict[str, object]:
    # A segment holds at least one batch, and a batch one record.
    return {"limits.max_batch_bytes": limit, "limits.max_record_bytes": limit // 2}


def send_one_by_one(pace: Pace, job: tuple[tuple[str, ...], Case]) -> list[float]:
    """The client: each record's time to its confirm in µs, after a warm-up."""
    servers, case = job
    return uvloop.run(_send_one_by_one(pace, servers, case))


async def _send_one_by_one(pace: Pace, servers: tuple[str, ...], case: Case) -> list[float]:
    records = random_records(case.record_bytes, _POOL, seed=2)
    latencies_us: list[float] = []
    async with Client(*servers) as client, client.producer(QUEUE, confirm="all") as producer:
        for record in records[:_WARM_UP]:
            await producer.send(record)
        end = pace.begin() + case.seconds
        while (asked := time.perf_counter()) < end:
            await producer.send(records[len(latencies_us) % _POOL])
            latencies_us.append((time.perf_counter() - asked) * 1e6)
    return latencies_us
