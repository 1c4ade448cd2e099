"""What nodes pay for much of everything: idle queues, connections, records in hand, idle logs.

Nodes are at rest before and after; the figures are the difference: memory and threads of the node that takes most, and
*processor*, the share of one core that the three nodes take together while nobody does anything. Logs are there from
the start: what a node with all of them takes is told, and its disk.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from bench.clients import Clients, Pace
from bench.measure import Figure
from bench.nodes import prepared_cluster, wait_at_rest
from bench.records import random_records
from bench.workload import MIB, WorkloadFailed
from mirrorlog.client import Client, Subscription
from mirrorlog.config import LogSettings
from mirrorlog.testing import Cluster

QUEUE: Final = "scale"
COPIES: Final = 3
RECORD_BYTES: Final = 100

_DECLARED_AT_ONCE: Final = 50
_PREPARED_BYTES: Final = 256 * MIB
_MAKING_SECONDS: Final = 600.0
_COMING_TO_REST_SECONDS: Final = 20.0
"""Threads that nobody needs end after half of that, and logs are at rest after a quarter."""


@dataclass(frozen=True, slots=True)
class Case:
    """`queues` declared, each with a group that has been read and is left alone; or `connections`, each with a
    subscription; or `unsettled` records in one subscriber's hand; or `logs`, each with a copy on every node. `seconds`:
    how long the nodes are looked at."""

    queues: int = 0
    connections: int = 0
    unsettled: int = 0
    logs: int = 0
    seconds: float = 5.0

    def __str__(self) -> str:
        what = [
            f"{number:,} {name}"
            for number, name in (
                (self.queues, "idle queues"),
                (self.connections, "connections with a subscription each"),
                (self.unsettled, "records in hand"),
                (self.logs, "idle logs"),
            )
            if number
        ]
        return f"{COPIES} copies, {RECORD_BYTES} B, memory, {' and '.join(what)}"

    @property
    def count(self) -> int:
        """Of what there is much of."""
        return self.queues or self.connections or self.unsettled or self.logs


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    return _run_logs(case, name) if case.logs else _run_held(case, name)


def _run_logs(case: Case, name: str) -> list[Figure]:
    nodes = [f"n{number}" for number in range(1, COPIES + 1)]
    logs = [{"name": f"log{number}", "number": number, "master": nodes[number % COPIES]} for number in range(case.logs)]
    defaults = LogSettings()
    cluster = Cluster(
        COPIES,
        logs=logs,
        segment_bytes=defaults.segment_bytes,
        settings={"log.prepare_bytes": defaults.prepare_bytes},
    )
    began = time.perf_counter()
    with cluster:
        cluster.wait_in_sync(_MAKING_SECONDS)
        seconds = time.perf_counter() - began
        wait_at_rest(cluster)
        pids = [node.pid for node in cluster.nodes.values()]
        time.sleep(_COMING_TO_REST_SECONDS)
        share = processor_share(pids, 2 * case.seconds)
        disks = [_allocated_bytes(node.data_dir) for node in cluster.nodes.values()]
        return [
            Figure("scale", name, "memory of a node, each", "B", max(map(resident_bytes, pids)) / case.logs),
            Figure("scale", name, "processor", "%", 100 * share),
            Figure("scale", name, "threads of a node", "threads", float(max(map(thread_count, pids)))),
            Figure("scale", name, "disk of a node, each", "B", max(disks) / case.logs),
            Figure("scale", name, "time to make them", "s", seconds),
        ]


def _allocated_bytes(directory: Path) -> int:
    """Of a disk, that the files below take."""
    return sum(512 * path.lstat().st_blocks for path in directory.rglob("*") if path.is_file())


def _run_held(case: Case, name: str) -> list[Figure]:
    with prepared_cluster(QUEUE, COPIES, _PREPARED_BYTES) as cluster:
        wait_at_rest(cluster)
        pids = [node.pid for node in cluster.nodes.values()]
        memory, threads = [resident_bytes(pid) for pid in pids], [thread_count(pid) for pid in pids]
        idle = processor_share(pids, case.seconds)
        with Clients(hold, [(tuple(cluster.servers), case)], ready_seconds=_MAKING_SECONDS) as clients:
            # It is ready when all is there, and holds it until it is told to go on.
            wait_at_rest(cluster)
            bytes_more = max(resident_bytes(pid) - before for pid, before in zip(pids, memory, strict=True))
            threads_more = max(thread_count(pid) - before for pid, before in zip(pids, threads, strict=True))
            share = processor_share(pids, case.seconds)
            clients.go()
            (seconds,) = clients.results()
    return [
        Figure("scale", name, "memory of a node, each", "B", bytes_more / case.count),
        Figure("scale", name, "processor, before", "%", 100 * idle),
        Figure("scale", name, "processor, more", "%", 100 * (share - idle)),
        Figure("scale", name, "threads of a node, more", "threads", float(threads_more)),
        Figure("scale", name, "time to make them", "s", seconds),
    ]


def resident_bytes(pid: int) -> int:
    """What a process has in memory by itself: files that it maps do not count."""
    return _status(pid, "RssAnon") * 1024


def thread_count(pid: int) -> int:
    """Of a process."""
    return _status(pid, "Threads")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def processor_share(pids: Sequence[int], seconds: float) -> float:
    """Of one core, that these processes take together."""
    before, began = sum(map(processor_seconds, pids)), time.perf_counter()
    time.sleep(seconds)
    return (sum(map(processor_seconds, pids)) - before) / (time.perf_counter() - began)


def processor_seconds(pid: int) -> float:
    """That a process has used."""
    # The name, in parentheses, may have anything in it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hold(pace: Pace, job: tuple[tuple[str, ...], Case]) -> float:
    """The client: how many seconds it took until all was there."""
    return uvloop.run(_hold(pace, *job))


async def _hold(pace: Pace, servers: tuple[str, ...], case: Case) -> float:
    began = time.perf_counter()
    make = _queues if case.queues else _connections if case.connections else _records
    async with make(servers, case):
        seconds = time.perf_counter() - began
        await asyncio.to_thread(pace.begin)
    return seconds


@asynccontextmanager
async def _queues(servers: Sequence[str], case: Case) -> AsyncIterator[None]:
    async with Client(*servers) as client:

        async def make(number: int) -> None:
            await client.admin.declare(f"idle-{number}")
            async with client.subscribe(f"idle-{number}"):
                pass

        await _some_at_once(make, case.queues)
        yield


@asynccontextmanager
async def _connections(servers: Sequence[str], case: Case) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:

        async def make(number: int) -> None:
            client = await stack.enter_async_context(Client(*servers))
            await stack.enter_async_context(client.subscribe(QUEUE, name=f"reader-{number}"))

        await _some_at_once(make, case.connections)
        yield


@asynccontextmanager
async def _records(servers: Sequence[str], case: Case) -> AsyncIterator[None]:
    async with Client(*servers) as client:
        async with client.producer(QUEUE) as producer:
            records = random_records(RECORD_BYTES, 10_000, seed=3)
            for _ in range(0, case.unsettled, len(records)):
                await producer.send_many(records)
        async with client.subscribe(QUEUE, prefetch=case.unsettled, prefetch_bytes=0) as subscription:
            await _take(subscription, case.unsettled)
            yield


async def _take(subscription: Subscription, wanted: int) -> None:
    """Every record, and none is settled."""
    count = 0
    async for batch in subscription.batches():
        count += len(batch)
        if count == wanted:
            return
    raise WorkloadFailed(f"{count} records of {wanted} were given out")


async def _some_at_once(make: Callable[[int], Coroutine[None, None, None]], count: int) -> None:
    for first in range(0, count, _DECLARED_AT_ONCE):
        async with asyncio.TaskGroup() as group:
            for number in range(first, min(first + _DECLARED_AT_ONCE, count)):
                group.create_task(make(number))
