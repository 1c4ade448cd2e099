"""W2: one record outstanding, confirmed by all copies: the round trip that a careful producer waits for.

With small segments, one record in a thousand begins a new one, and is timed by itself: what a roll costs whom it meets.
Segments of 64 MiB are recycled ones, as in a node that has been at work for a while: the log keeps four of them, and is
filled twice over before.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, Self

import uvloop

from bench.clients import Pace, run_clients
from bench.measure import Figure, latencies
from bench.nodes import prepared_cluster
from bench.records import random_records
from bench.workload import MIB
from mirrorlog.client import Client
from mirrorlog.config import LimitSettings, LogSettings

QUEUE: Final = "w2"

_POOL: Final = 1000
_WARM_UP: Final = 200
_LARGE_BYTES: Final = 64 * MIB
_SEGMENTS_KEPT: Final = 4
_LOOK_S: Final = 0.2


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

    @property
    def fill_bytes(self) -> int:
        """What is published before."""
        return 2 * _SEGMENTS_KEPT * self.segment_bytes if self.rolls and self.segment_bytes >= _LARGE_BYTES else 0

    def settings(self) -> dict[str, object]:
        """Of the nodes."""
        if not self.rolls:
            return {}
        # A segment holds at least one batch, and a batch one record.
        limit = min(self.segment_bytes, LimitSettings().max_batch_bytes)
        found: dict[str, object] = {"limits.max_batch_bytes": limit, "limits.max_record_bytes": limit // 2}
        if self.fill_bytes:
            found["log.retention_bytes"] = _SEGMENTS_KEPT * self.segment_bytes
        return found


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    with prepared_cluster(
        QUEUE,
        case.copies,
        256 * MIB,
        flush=case.flush,
        segment_bytes=case.segment_bytes,
        settings=case.settings(),
    ) as cluster:
        starts = SegmentStarts(cluster.master.data_dir)
        # Looking takes a part of the processors that are measured.
        with starts if case.rolls else nullcontext():
            (timed,) = run_clients(send_one_by_one, [(tuple(cluster.servers), case)])
    figures = latencies("W2", name, [each.latency_us for each in timed], ("p50", "p90", "p99", "p99.9"))
    if case.rolls:
        first = [each.latency_us for each in timed if each.log_offset in starts.found]
        begun = latencies("W2", name, first, ("p50", "p90", "max")) if first else []
        figures += [replace(each, name=f"first of a segment, {each.name}") for each in begun]
        figures.append(Figure("W2", name, "segments begun", "", len(first)))
    return figures


class SegmentStarts:
    """Looks at the names of a node's segments several times a second, since retention removes them."""

    def __init__(self, data_dir: Path) -> None:
        self.found: set[int] = set()
        self._data_dir = data_dir
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_on)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._look()

    def _look_on(self) -> None:
        while not self._ended.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        names = (path.name for path in self._data_dir.glob("logs/*/*"))
        self.found |= {int(name) for name in names if name.isdigit()}


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
        for _ in range(0, case.fill_bytes, case.record_bytes * _POOL):
            await producer.send_many(records)
        for record in records[:_WARM_UP]:
            await producer.send(record)
        end = pace.begin() + case.seconds
        while (asked := time.perf_counter()) < end:
            receipt = await producer.send(records[len(timed) % _POOL])
            timed.append(Timed((time.perf_counter() - asked) * 1e6, receipt.log_offset))
    return timed
