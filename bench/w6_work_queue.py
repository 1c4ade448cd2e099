"""W6: a work queue at work: published, given to a subscriber, acknowledged, all at the same time and on three copies.

From before the first record is published until the last acknowledgement is confirmed by all copies. One producer and
one consumer, in processes of their own. `records`: `async for`, an `ack_nowait` for each; `batches`: what was granted
of a batch is settled as one. A consumer that meets a record twice, or leaves one out, makes the round fail.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import uvloop

from bench.clients import Pace, run_clients
from bench.measure import Figure, publish_figures
from bench.nodes import prepared_cluster
from bench.publishing import Publish, Published, publish, rate_of
from bench.workload import WorkloadFailed
from mirrorlog.client import Client, Subscription

QUEUE: Final = "w6"
COPIES: Final = 3
PREFETCH: Final[Mapping[str, int]] = {"records": 1_000, "batches": 0}
"""As the peers have it; 0 is the node's limits."""

_STATE_BYTES_PER_RECORD: Final = 8


@dataclass(frozen=True, slots=True)
class Case:
    """`count`: of all records; `way`: how they are taken, see above; `flush`: of the nodes' log."""

    record_bytes: int
    count: int
    way: str
    flush: str = "memory"

    def __str__(self) -> str:
        return f"{COPIES} copies, {self.record_bytes} B, {self.flush}, {self.way}"


@dataclass(frozen=True, slots=True)
class Take:
    """The consumer's work."""

    servers: tuple[str, ...]
    way: str
    count: int


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    stored_bytes = case.count * (case.record_bytes + _STATE_BYTES_PER_RECORD) * 11 // 10
    with prepared_cluster(QUEUE, COPIES, stored_bytes, flush=case.flush) as cluster:
        servers = tuple(cluster.servers)
        # The producer sends one record more than it counts, before both begin.
        jobs: list[Publish | Take] = [
            Publish(servers, QUEUE, _SENDING[case.way], case.record_bytes, case.count, COPIES),
            Take(servers, case.way, case.count + 1),
        ]
        _, seconds = rate_of(run_clients(work, jobs))
    return publish_figures("W6", name, count=case.count, record_bytes=case.record_bytes, seconds=seconds)


def work(pace: Pace, job: Publish | Take) -> Published:
    """A client: the producer or a consumer."""
    return publish(pace, job) if isinstance(job, Publish) else uvloop.run(_take(pace, job))


async def _take(pace: Pace, job: Take) -> Published:
    async with (
        Client(*job.servers) as client,
        client.subscribe(QUEUE, prefetch=PREFETCH[job.way], prefetch_bytes=0) as subscription,
    ):
        began = pace.begin()
        offsets = await _TAKING[job.way](subscription, job.count)
        await subscription.flush()
        ended = time.perf_counter()
    if offsets != job.count * (job.count - 1) // 2:
        raise WorkloadFailed(f"of {job.count} records one was taken twice, and another one not")
    return Published(job.count, began, ended)


async def _take_records(subscription: Subscription, wanted: int) -> int:
    offsets = count = 0
    async for delivery in subscription:
        offsets += delivery.offset
        delivery.ack_nowait()
        count += 1
        if count == wanted:
            break
    return offsets


async def _take_batches(subscription: Subscription, wanted: int) -> int:
    offsets = count = 0
    async for batch in subscription.batches():
        offsets += sum(range(batch.offset, batch.offset + len(batch)))
        batch.ack_nowait()
        count += len(batch)
        if count == wanted:
            break
    return offsets


_SENDING: Final[Mapping[str, str]] = {"records": "send", "batches": "send_many"}
_TAKING: Final[Mapping[str, Callable[[Subscription, int], Awaitable[int]]]] = {
    "records": _take_records,
    "batches": _take_batches,
}
