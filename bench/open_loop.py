"""Latency at half of the peak: records leave by a fixed schedule, whatever became of those before them.

First the log is filled beyond what it keeps, so that segments are recycled from then on, as in a node that has been at
work for a while. Then the peak: `send_nowait` as fast as the window allows, through several segments. Then half of that
rate for some seconds: each millisecond its share of records, all at once. A record's latency counts from the tick at
which it was due, so a stall counts for every record that it held up. One record a tick is timed, each time at another
place in its burst.
Segments are small, so that logs go through many of them.

`late to leave` is how long after its tick a timed record was handed over: what the client itself, or whoever kept the
processor from it, has added. The rest is from there to the confirm.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import uvloop

from bench.clients import Pace, run_clients
from bench.measure import Figure, latencies
from bench.nodes import prepared_cluster
from bench.publishing import send_each
from bench.records import random_records
from bench.ticks import Ticks
from bench.workload import MIB
from mirrorlog.client import Client, Delivery, Producer
from mirrorlog.errors import Overloaded

QUEUE: Final = "open"
COPIES: Final = 3
SEGMENT_BYTES: Final = 64 * MIB
SHARE: Final = 0.5

TICK_S: Final = 0.001
RETENTION_BYTES: Final = 256 * MIB
_FILL_BYTES: Final = 1024 * MIB
_PEAK_SECONDS_MIN: Final = 2.0


@dataclass(frozen=True, slots=True)
class Case:
    """`peak_bytes`: published to find the peak; `seconds`: of the schedule."""

    record_bytes: int
    peak_bytes: int
    seconds: float

    def __str__(self) -> str:
        return f"{COPIES} copies, {self.record_bytes} B, memory, send, segments of {SEGMENT_BYTES // MIB} MiB"


@dataclass(frozen=True, slots=True)
class Answered:
    """`rate`: records a second that were due. Of the timed ones: `latencies_us` from due to confirm, of which
    `late_us` until they were handed over."""

    rate: float
    latencies_us: list[float]
    late_us: list[float]


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    with prepared_cluster(
        QUEUE, COPIES, SEGMENT_BYTES, segment_bytes=SEGMENT_BYTES, settings={"log.retention_bytes": RETENTION_BYTES}
    ) as cluster:
        (answered,) = run_clients(send_by_schedule, [(tuple(cluster.servers), case)])
    shares = ("p50", "p99", "p99.9", "max")
    return [
        Figure("open loop", name, "rate", "msg/s", answered.rate),
        *latencies("open loop", name, answered.latencies_us, shares),
        *(replace(each, name=f"late to leave, {each.name}") for each in latencies("open loop", name, answered.late_us)),
        Figure(
            "open loop", name, "segments filled", "", case.seconds * answered.rate * case.record_bytes / SEGMENT_BYTES
        ),
    ]


def send_by_schedule(pace: Pace, job: tuple[tuple[str, ...], Case]) -> Answered:
    """The client."""
    servers, case = job
    return uvloop.run(_send_by_schedule(pace, servers, case))


async def _send_by_schedule(pace: Pace, servers: tuple[str, ...], case: Case) -> Answered:
    records = random_records(case.record_bytes, max(1, case.peak_bytes // case.record_bytes), seed=7)
    async with Client(*servers) as client, client.producer(QUEUE, confirm="all") as producer:
        await producer.send(records[0])
        pace.begin()
        for _ in range(0, _FILL_BYTES, case.peak_bytes):
            await send_each(producer, records)
        await producer.flush()
        peak = await _peak(producer, records)
        schedule = Schedule(producer, records, rate=peak * SHARE)
        await schedule.send(case.seconds)
        return Answered(schedule.rate, schedule.latencies_us, schedule.late_us)


async def _peak(producer: Producer, records: Sequence[bytes]) -> float:
    """Records a second, of as many rounds of `records` as it takes to measure them."""
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < _PEAK_SECONDS_MIN:
        await send_each(producer, records)
        count += len(records)
    await producer.flush()
    return count / (time.perf_counter() - began)


class Schedule:
    """Sends the records of tick i at `began + i * TICK_S`, `rate` of them a second."""

    def __init__(self, producer: Producer, records: Sequence[bytes], *, rate: float) -> None:
        self.rate = rate
        self.latencies_us: list[float] = []
        self.late_us: list[float] = []
        self._producer = producer
        self._records = records
        self._sent = 0
        self._timing: set[asyncio.Task[None]] = set()

    async def send(self, seconds: float) -> None:
        """All records of so many seconds, and until each timed one is confirmed."""
        with Ticks(TICK_S) as ticks:
            for tick in range(1, int(seconds / TICK_S) + 1):
                # After a stall the loop turns between bursts, so that confirms are read meanwhile.
                await ticks.reached(tick)
                await self._hand_over(int(self.rate * tick * TICK_S), ticks.due(tick), tick)
        await self._producer.flush()
        await asyncio.gather(*self._timing)

    async def _hand_over(self, end: int, due: float, tick: int) -> None:
        """The records from the first one that was not sent up to number `end` (exclusive)."""
        if end == self._sent:
            return
        send, pool = self._producer.send_nowait, self._records
        timed = self._sent + tick % (end - self._sent)
        for number in range(self._sent, end):
            record = pool[number % len(pool)]
            try:
                delivery = send(record)
            except Overloaded:
                delivery = await self._hand_over_with_room(record)
            if number == timed:
                self._time(delivery, due)
        self._sent = end

    async def _hand_over_with_room(self, record: bytes) -> Delivery:
        while True:
            await self._producer.room()
            try:
                return self._producer.send_nowait(record)
            except Overloaded:
                continue

    def _time(self, delivery: Delivery, due: float) -> None:
        self.late_us.append((time.perf_counter() - due) * 1e6)
        task = asyncio.ensure_future(self._wait(delivery, due))
        self._timing.add(task)
        task.add_done_callback(self._timing.discard)

    async def _wait(self, delivery: Delivery, due: float) -> None:
        await delivery
        self.latencies_us.append((time.perf_counter() - due) * 1e6)
