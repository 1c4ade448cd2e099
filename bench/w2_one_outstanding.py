"""W2: one message outstanding, confirmed by all copies: the round trip that a careful producer waits for."""

from __future__ import annotations

import time

import uvloop

from bench.measure import Figure, percentile
from mirrorlog.client import Client
from mirrorlog.testing import Cluster


def run(copies: int, record_bytes: int, count: int, *, flush: str = "memory") -> list[Figure]:
    """One round: `count` sends, each awaited before the next."""
    with Cluster(copies, min_in_sync=copies, flush=flush) as cluster:
        cluster.wait_in_sync()
        latencies_us = uvloop.run(_send_one_by_one(cluster.servers, record_bytes, count))
    case = f"{copies} copies, {record_bytes} B, {flush}"
    return [
        Figure("W2", case, "p50", "µs", percentile(latencies_us, 0.50)),
        Figure("W2", case, "p99", "µs", percentile(latencies_us, 0.99)),
    ]


async def _send_one_by_one(servers: list[str], record_bytes: int, count: int) -> list[float]:
    value = bytes(record_bytes)
    latencies_us: list[float] = []
    async with Client(*servers) as client:
        await client.admin.declare("w2")
        async with client.producer("w2", confirm="all") as producer:
            for _ in range(100):
                await producer.send(value)
            for _ in range(count):
                started = time.perf_counter()
                await producer.send(value)
                latencies_us.append((time.perf_counter() - started) * 1e6)
    return latencies_us
