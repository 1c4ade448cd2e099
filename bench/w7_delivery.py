"""W7: one record outstanding in a work queue on three copies: how long it takes to a subscriber, and its confirmed ack.

One client publishes a record, is given it, and acknowledges it, before it publishes the next. *delivered*: from handing
it over until it is in the subscriber's hand; *acked*: until its acknowledgement is confirmed by all copies, from then.
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
from bench.workload import MIB, WorkloadFailed
from mirrorlog.client import Client, Producer, Subscription

QUEUE: Final = "w7"
COPIES: Final = 3

_POOL: Final = 1_000
_WARM_UP: Final = 200
_PREPARED_BYTES: Final = 64 * MIB


@dataclass(frozen=True, slots=True)
class Case:
    """`seconds`: how long records are sent."""

    record_bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{COPIES} copies, {self.record_bytes} B, memory"


@dataclass(frozen=True, slots=True)
class Timed:
    """Of one record, µs."""

    delivered_us: float
    acked_us: float


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    with prepared_cluster(QUEUE, COPIES, _PREPARED_BYTES) as cluster:
        (timed,) = run_clients(one_by_one, [(tuple(cluster.servers), case)])
    return [
        *latencies("W7", f"{name}, delivered", [each.delivered_us for each in timed]),
        *latencies("W7", f"{name}, acked", [each.acked_us for each in timed]),
    ]


def one_by_one(pace: Pace, job: tuple[tuple[str, ...], Case]) -> list[Timed]:
    """The client: each record, after a warm-up."""
    servers, case = job
    return uvloop.run(_one_by_one(pace, servers, case))


async def _one_by_one(pace: Pace, servers: tuple[str, ...], case: Case) -> list[Timed]:
    records = random_records(case.record_bytes, _POOL, seed=7)
    timed: list[Timed] = []
    async with (
        Client(*servers) as client,
        client.producer(QUEUE, confirm="all") as producer,
        client.subscribe(QUEUE, prefetch=1) as subscription,
    ):
        for record in records[:_WARM_UP]:
            await _one(producer, subscription, record)
        end = pace.begin() + case.seconds
        while time.perf_counter() < end:
            timed.append(await _one(producer, subscription, records[len(timed) % _POOL]))
    return timed


async def _one(producer: Producer, subscription: Subscription, record: bytes) -> Timed:
    handed_over = time.perf_counter()
    sent = producer.send_nowait(record)
    delivery = await anext(subscription)
    delivered = time.perf_counter()
    await delivery.ack()
    acked = time.perf_counter()
    if delivery.offset != (await sent).queue_offset:
        raise WorkloadFailed(f"record {(await sent).queue_offset} was handed over, {delivery.offset} was given out")
    return Timed((delivered - handed_over) * 1e6, (acked - delivered) * 1e6)
