"""W5: a mirror returns far behind and catches up, while a slow producer goes on and is confirmed by two copies.

One of three nodes is stopped, a backlog is published, the node is started again. Its rate counts from the moment that
its master sees it connected until it holds what the master held then. The static in-sync set holds the confirmed offset
still while a member is away, so the producer asks for two copies.

In the same round a C program copies the same bytes of the master's own files by sendfile over loopback: the same work
without checks, acks and other loads. Once into a file whose pages are in the page cache, as those that the mirror had
prepared before it was stopped, and once into a new file.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final

import uvloop

from bench.clients import Clients, Pace, run_clients
from bench.limits import run_program
from bench.measure import Figure, latencies
from bench.nodes import prepared_cluster
from bench.publishing import Publish, publish
from bench.records import random_records
from bench.workload import WorkloadFailed
from mirrorlog.client import Client
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.status import MirrorStatus

QUEUE: Final = "w5"
COPIES: Final = 3

_CONFIRM_COPIES: Final = 2
_CATCH_UP_SECONDS_MAX: Final = 120.0
_POLL_SECONDS: Final = 0.01
_SLOW_INTERVAL_S: Final = 0.005
_QUIET_SECONDS: Final = 1.0
_POOL: Final = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """`total_bytes`: of the records that the mirror is behind."""

    record_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        return f"{COPIES} copies, {self.record_bytes} B, memory, {self.total_bytes / 2**30:.2g} GiB behind"


@dataclass(frozen=True, slots=True)
class Caught:
    """`began`, `ended`: by `perf_counter`; `log_bytes` were fetched in between."""

    log_bytes: int
    began: float
    ended: float


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    count = max(1, case.total_bytes // case.record_bytes)
    with prepared_cluster(QUEUE, COPIES, case.total_bytes * 11 // 10, min_in_sync=_CONFIRM_COPIES) as cluster:
        servers, mirror = tuple(cluster.servers), cluster.mirrors[-1]
        mirror.stop()
        run_clients(publish, [Publish(servers, QUEUE, "batches", case.record_bytes, count, _CONFIRM_COPIES)])
        with Clients(send_slowly, [(servers, case.record_bytes)]) as producers:
            producers.go()
            time.sleep(_QUIET_SECONDS)  # confirms without the mirror, to compare
            caught = catch_up(cluster, mirror)
            producers.stop()
            (sent,) = producers.results()
        copied = {how: sendfile_copy(cluster.master, how, caught.log_bytes) for how in ("warm", "new")}
    return [
        *catch_up_figures(name, caught, sent),
        *(Figure("W5", name, f"sendfile copy, {how} file", "MB/s", mb_s) for how, mb_s in copied.items()),
    ]


def catch_up_figures(name: str, caught: Caught, sent: list[tuple[float, float]]) -> list[Figure]:
    """`sent`: when each record of the slow producer was sent, and how long its confirm took in µs."""
    meanwhile = [latency_us for at, latency_us in sent if caught.began <= at <= caught.ended]
    before = [latency_us for at, latency_us in sent if at < caught.began]
    if not meanwhile or not before:
        raise WorkloadFailed(f"{len(before)} records were confirmed before the catch-up, {len(meanwhile)} during it")
    rate = caught.log_bytes / 1e6 / (caught.ended - caught.began)
    return [
        Figure("W5", name, "catch-up", "MB/s", rate),
        *latencies("W5", f"{name}, confirms by {_CONFIRM_COPIES} meanwhile", meanwhile, ("p50", "p99", "max")),
        *latencies("W5", f"{name}, confirms by {_CONFIRM_COPIES} before", before, ("p50", "p99", "max")),
    ]


def catch_up(cluster: Cluster, mirror: Node) -> Caught:
    """Start the mirror and wait until it holds what its master held when it connected."""
    master = cluster.master
    mirror.launch()
    deadline = time.monotonic() + _CATCH_UP_SECONDS_MAX
    held, end, began = 0, 0, 0.0
    while time.monotonic() < deadline:
        log = master.status().logs[0]
        seen = next(each for each in log.mirrors if each.node_id == mirror.id)
        now = time.perf_counter()
        if not began and _follows(seen):
            held, end, began = seen.acked, log.end, now
        if began and seen.acked >= end:
            mirror.wait_serving()
            return Caught(end - held, began, now)
        time.sleep(_POLL_SECONDS)
    raise WorkloadFailed(f"{mirror.id} did not catch up within {_CATCH_UP_SECONDS_MAX:g} s; {mirror.log_tail(3)}")


def _follows(seen: MirrorStatus) -> bool:
    return seen.connected and seen.acked >= 0


def sendfile_copy(master: Node, how: str, log_bytes: int) -> float:
    """MB/s of copying `log_bytes` of the segment files, from the first one on, into a `warm` or a `new` file."""
    segments = sorted(str(path) for path in master.data_dir.rglob("*") if path.name.isdigit() and len(path.name) == 20)
    outcome = run_program("sendfile_copy", how, str(log_bytes), *segments)
    return outcome["bytes"] / 1e6 / outcome["seconds"]


def send_slowly(pace: Pace, job: tuple[tuple[str, ...], int]) -> list[tuple[float, float]]:
    """The client: one record at a time, 200 a second at most, until told to stop."""
    servers, record_bytes = job
    return uvloop.run(_send_slowly(pace, servers, record_bytes))


async def _send_slowly(pace: Pace, servers: tuple[str, ...], record_bytes: int) -> list[tuple[float, float]]:
    records = random_records(record_bytes, _POOL, seed=5)
    sent: list[tuple[float, float]] = []
    async with Client(*servers) as client, client.producer(QUEUE, confirm=_CONFIRM_COPIES) as producer:
        await producer.send(records[0])
        pace.begin()
        while not pace.stopped:
            at = time.perf_counter()
            await producer.send(records[len(sent) % _POOL])
            sent.append((at, (time.perf_counter() - at) * 1e6))
            await asyncio.sleep(max(0.0, at + _SLOW_INTERVAL_S - time.perf_counter()))
    return sent
