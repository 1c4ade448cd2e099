"""W2: one record outstanding, confirmed by all copies: the round trip that a careful producer waits for."""

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

QUEUE: Final = "w2"

_POOL: Final = 1000
_WARM_UP: Final = 200


@dataclass(frozen=True, slots=True)
class Case:
    """`flush`: memory or disk, of the nodes' log; `seconds`: how long records are sent."""

    copies: int
    record_bytes: int
    seconds: float
    flush: str = "memory"

    def __str__(self) -> str:
        copies = "copy" if self.copies == 1 else "copies"
        return f"{self.copies} {copies}, {self.record_bytes} B, {self.flush}, send"


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    with prepared_cluster(QUEUE, case.copies, 256 * MIB, flush=case.flush) as cluster:
        (latencies_us,) = run_clients(send_one_by_one, [(tuple(cluster.servers), case)])
    return latencies("W2", name, latencies_us, ("p50", "p90", "p99", "p99.9"))


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
