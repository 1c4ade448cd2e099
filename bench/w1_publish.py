"""W1: publish as fast as one Python producer can, every record confirmed by all copies (page cache unless said).

Measured from the first `send_nowait` to the last receipt, records made beforehand. The producer runs in a process of
its own, as a user's would.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import uvloop

from bench.measure import Figure
from mirrorlog.client import Client
from mirrorlog.errors import Overloaded
from mirrorlog.testing import Cluster

_BURST: Final = 256


def run(copies: int, record_bytes: int, total_bytes: int, *, flush: str = "memory") -> list[Figure]:
    """One round: a fresh cluster of `copies` nodes, `total_bytes` of records of `record_bytes`."""
    count = max(1, total_bytes // record_bytes)
    with Cluster(copies, min_in_sync=copies, flush=flush) as cluster:
        cluster.wait_in_sync()
        seconds = uvloop.run(_publish(cluster.servers, record_bytes, count))
    case = f"{copies} copies, {record_bytes} B, {flush}, 1 producer, send_nowait"
    return [
        Figure("W1", case, "rate", "msg/s", count / seconds),
        Figure("W1", case, "throughput", "MB/s", count * record_bytes / 1e6 / seconds),
    ]


async def _publish(servers: list[str], record_bytes: int, count: int) -> float:
    value = bytes(record_bytes)
    async with Client(*servers) as client:
        await client.admin.declare("w1")
        async with client.producer("w1", confirm="all") as producer:
            await producer.send(value)
            started = time.perf_counter()
            for number in range(count):
                while True:
                    try:
                        delivery = producer.send_nowait(value)
                        break
                    except Overloaded:
                        await producer.room()
                if number % _BURST == 0:
                    await asyncio.sleep(0)
            await producer.flush()
            await delivery  # raises if the last batch failed
            assert producer.stats.confirmed == count + 1, producer.stats
            return time.perf_counter() - started
