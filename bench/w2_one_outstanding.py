"""W2: one record outstanding, confirmed by all copies: the round trip that a careful producer waits for.

With small segments, one record in a thousand begins a new one, and is timed by itself: what a roll costs whom it meets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

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
        (timed,) = run_clients(send_one_by_one, [(tuple(cluster.servers), case)])
        starts = segment_starts(cluster.master.data_dir)
    figures = latencies("W2", name, [each.latency_us for each in timed], ("p50", "p90", "p99", "p99.9"))
    if case.rolls:
        first = [each.latency_us for each in timed if each.log_offset in starts]
        begun = latencies("W2", name, first, ("p50", "p90", "max")) if first else []
        figures += [replace(each, name=f"first of a segment, {each.name}") for each in begun]
        figures.append(Figure("W2", name, "segments begun", "", len(first)))
    return figures


def segment_starts(data_dir: Path) -> set[int]:
    """The log offsets at which the segments of a node's logs begin."""
    names = (path.name for path in data_dir.glob("logs/*/*"))
    return {int(name) for name in names if name.isdigit()}


def _small_batches(limit: int) -> dict[str, object]:
    # A segment holds at least one batch, and a batch one record.
    return {"limits.max_batch_bytes": limit, "limits.max_record_bytes": limit // 2}


class Timed(NamedTuple):
    """One record: the time to its confirm, and where its batch stands in the log."""

    latency_us: float
    log_offset: int


def send_one_by_one(pace: Pace, job: tuple[tuple[str, ...], Case]) -> list[Timed]:
    """The client: each record, after a warm-up."""
    servers, case = job
    return uvloop.run(_send_one_by_one(pace, servers, case))


async def _send_one_by_one(pace: Pace, servers: tuple[str, ...], case: Case) -> list[Timed]:
    records = random_records(case.record_bytes, _POOL, seed=2)
    timed: list[Timed] = []
    async with Client(*servers) as client, client.producer(QUEUE, confirm="all") as producer:
        for record in records[:_WARM_UP]:
            await producer.send(record)
        end = pace.begin() + case.seconds
        while (asked := time.perf_counter()) < end:
            receipt = await producer.send(records[len(timed) % _POOL])
            timed.append(Timed((time.perf_counter() - asked) * 1e6, receipt.log_offset))
    return timed
