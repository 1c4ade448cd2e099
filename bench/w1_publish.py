"""W1: publish as fast as the producers can, every record confirmed by all copies.

From before the first record is handed over to the last confirm, of all producers. The records are made, and the nodes
have prepared their pages, before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bench.clients import run_clients
from bench.measure import Figure, publish_figures
from bench.nodes import prepared_cluster
from bench.publishing import BATCH_BYTES, Publish, publish, rate_of
from bench.workload import KIB

QUEUE: Final = "w1"


@dataclass(frozen=True, slots=True)
class Case:
    """`total_bytes`: of all records of all producers; `flush`: memory or disk, of the nodes' log."""

    copies: int
    record_bytes: int
    total_bytes: int
    way: str = "send"
    flush: str = "memory"
    producers: int = 1
    batch_bytes: int = BATCH_BYTES
    compression: str = "none"

    def __str__(self) -> str:
        plural = "" if self.producers == 1 else "s"
        batches = "" if self.batch_bytes == BATCH_BYTES else f" in {self.batch_bytes // KIB} KiB"
        packed = "" if self.compression == "none" else f", {self.compression}"
        return (
            f"{self.copies} {'copy' if self.copies == 1 else 'copies'}, {self.record_bytes} B, {self.flush}, "
            f"{self.producers} producer{plural}, {self.way}{batches}{packed}"
        )


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    count = max(1, case.total_bytes // case.record_bytes // case.producers)
    # What is stored besides the records: headers and offsets, for the smallest ones a twentieth.
    stored_bytes = case.total_bytes * 11 // 10
    with prepared_cluster(QUEUE, case.copies, stored_bytes, flush=case.flush) as cluster:
        jobs = [
            Publish(
                tuple(cluster.servers),
                QUEUE,
                case.way,
                case.record_bytes,
                count,
                case.copies,
                seed,
                case.batch_bytes,
                case.compression,
            )
            for seed in range(case.producers)
        ]
        published, seconds = rate_of(run_clients(publish, jobs))
    return publish_figures("W1", name, count=published, record_bytes=case.record_bytes, seconds=seconds)
