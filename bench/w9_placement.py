"""W9: what it is worth that logs are spread over the nodes, and what it costs to spread them, where the network is what
there is too little of: each node in a network namespace of its own that sends 200 Mbit/s at most.

- `spread`: producers publish to 8 queues of two copies on four nodes; all queues in one log, then in a log for each
  home, in the same round.
- `1 GiB moved`: on three nodes a log of that size changes one of its nodes, while its queue and seven others are
  published to; the latency of confirms before and meanwhile.
- `a fourth node`: the same load, and a node joins; how long until queues, copies and masters are spread over
  all four and everything is in sync, counted from the start of its process.

Producers are on no node: what they send is not limited, what they are answered is.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import uvloop

from bench.clients import Clients, Pace, run_clients
from bench.measure import Figure, latencies
from bench.namespaces import Network, NotPermitted, SeparatedCluster
from bench.nodes import wait_at_rest
from bench.publishing import Publish, publish, rate_of
from bench.records import random_records
from bench.ticks import Ticks
from bench.workload import KIB, MIB, Skipped, WorkloadFailed
from mirrorlog.client import Client, Producer
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.status import ClusterStatus

QUEUES: Final = tuple(f"w9-{number}" for number in range(8))
EGRESS_BITS_S: Final = 200_000_000
LOAD_RECORD_BYTES: Final = 8 * KIB
LOAD_TICK_S: Final = 0.016
"""A record to each queue: 4.2 MB/s in all."""
MOVE_BYTES_S: Final = 10 * MIB
"""Two fifths of what a node may send."""

_BEFORE_S: Final = 10.0
_MOVE_SECONDS_MAX: Final = 600.0
_POOL: Final = 1000
_TWO: Final = {"copies": 2}

What = Literal["spread", "1 GiB moved", "a fourth node"]


@dataclass(frozen=True, slots=True)
class Case:
    """`total_bytes`: published to all queues, or to the one that moves, or there when the fourth node comes."""

    what: What
    record_bytes: int
    total_bytes: int

    def __str__(self) -> str:
        nodes = {"spread": 4, "1 GiB moved": 3, "a fourth node": 3}[self.what]
        return (
            f"{self.what}: 2 copies on {nodes} nodes that send 200 Mbit/s each, {self.record_bytes} B, memory, "
            f"{len(QUEUES)} queues"
        )


def run(case: Case, name: str) -> list[Figure]:
    """One round. Raises Skipped where there can be no namespaces."""
    rounds: dict[What, Callable[[Case, str], list[Figure]]] = {
        "spread": _run_spread, "1 GiB moved": _run_moved, "a fourth node": _run_fourth,
    }  # fmt: skip
    try:
        return rounds[case.what](case, name)
    except NotPermitted as error:
        raise Skipped(f"needs root, and the commands ip and tc: {error}") from None


@contextmanager
def _cluster(nodes: int, *, spare: int = 0, **options: Any) -> Iterator[tuple[SeparatedCluster, Network]]:
    """Its nodes are limited from the moment that it is whole; there are addresses for `spare` more."""
    names = [f"n{number}" for number in range(1, nodes + spare + 1)]
    with Network(names) as network, SeparatedCluster(network, nodes, **options) as cluster:
        cluster.wait_in_sync()
        wait_at_rest(cluster)
        for name in names:
            network.limit(name, EGRESS_BITS_S)
        yield cluster, network


async def _declare(servers: Sequence[str], first: dict[str, Any] | None = None) -> None:
    """`first`: the arguments of the first queue, by default those of all."""
    async with Client(*servers) as client:
        for number, queue in enumerate(QUEUES):
            await client.admin.declare(queue, _TWO if number or first is None else first)


def _view(cluster: SeparatedCluster) -> ClusterStatus:
    """As the node knows it that has seen most."""
    views = [status.cluster for status in cluster.statuses().values() if status.cluster is not None]
    if not views:
        raise WorkloadFailed("no node says what it knows of the cluster")
    return max(views, key=lambda view: view.version)


# --- spread -----------------------------------------------------------------------------------------------------------


def _run_spread(case: Case, name: str) -> list[Figure]:
    one_log = ({"mirrors": ["n2"]},)
    rates = {}
    for how, logs in (("one log", one_log), ("spread", ({},))):
        with _cluster(4, logs=logs) as (cluster, _):
            asyncio.run(_declare(cluster.servers))
            masters = {log.master for log in _view(cluster).logs if len(log.replicas) == 2}
            if len(masters) != (1 if how == "one log" else 4):
                raise WorkloadFailed(f"{how}: {len(masters)} nodes master the queues")
            rates[how] = _rate(case, tuple(cluster.servers))
    figures = [Figure("W9", name, how, "MB/s", rate) for how, rate in rates.items()]
    return [*figures, Figure("W9", name, "spread / one log", "", rates["spread"] / rates["one log"])]


def _rate(case: Case, servers: tuple[str, ...]) -> float:
    """MB/s of all producers, one for each queue."""
    count = case.total_bytes // len(QUEUES) // case.record_bytes
    jobs = [
        Publish(servers, queue, "batches", case.record_bytes, count, copies=2, seed=seed)
        for seed, queue in enumerate(QUEUES)
    ]
    total, seconds = rate_of(run_clients(publish, jobs))
    return total * case.record_bytes / 1e6 / seconds


# --- under load -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of the load: when it was due, by `perf_counter`, and how long from then to its confirm."""

    due: float
    latency_us: float


def load(pace: Pace, servers: tuple[str, ...]) -> list[Sent]:
    """The client: a record to each queue every LOAD_TICK_S, whatever became of those before, until told to stop."""
    return uvloop.run(_load(pace, servers))


async def _load(pace: Pace, servers: tuple[str, ...]) -> list[Sent]:
    records = random_records(LOAD_RECORD_BYTES, _POOL, seed=9)
    sent: list[Sent] = []
    async with AsyncExitStack() as held:
        client = await held.enter_async_context(Client(*servers))
        producers = [await held.enter_async_context(client.producer(queue, confirm="all")) for queue in QUEUES]
        for producer in producers:
            await producer.send(records[0])
        pace.begin()
        number = 0
        async with asyncio.TaskGroup() as tasks:
            with Ticks(LOAD_TICK_S) as ticks:
                while not pace.stopped:
                    number += 1
                    await ticks.reached(number)
                    for producer in producers:
                        tasks.create_task(_send(producer, records[number % _POOL], ticks.due(number), sent))
    return sent


async def _send(producer: Producer, record: bytes, due: float, sent: list[Sent]) -> None:
    await producer.send(record)
    sent.append(Sent(due, (time.perf_counter() - due) * 1e6))


def _figures(name: str, sent: Sequence[Sent], began: float, ended: float) -> list[Figure]:
    before = [each.latency_us for each in sent if each.due < began]
    meanwhile = [each.latency_us for each in sent if began <= each.due <= ended]
    if not before or not meanwhile:
        raise WorkloadFailed(f"{len(before)} records were confirmed before, {len(meanwhile)} meanwhile")
    shares = ("p50", "p99", "max")
    of_before, of_meanwhile = (
        latencies("W9", f"{name}, confirms before", before, shares),
        latencies("W9", f"{name}, confirms meanwhile", meanwhile, shares),
    )
    return [
        Figure("W9", name, "p99 meanwhile / before", "", of_meanwhile[1].value / of_before[1].value),
        *of_before,
        *of_meanwhile,
    ]


def _run_moved(case: Case, name: str) -> list[Figure]:
    with _cluster(3, settings={"cluster.move_bytes_per_s": MOVE_BYTES_S}) as (cluster, _):
        servers = tuple(cluster.servers)
        asyncio.run(_declare(servers, {"nodes": ["n1", "n2"]}))  # alone in its log
        count = case.total_bytes // case.record_bytes
        run_clients(publish, [Publish(servers, QUEUES[0], "batches", case.record_bytes, count, copies=2)])
        with Clients(load, [servers], ready_seconds=120.0) as producers:
            producers.go()
            time.sleep(_BEFORE_S)
            began = time.perf_counter()
            log_id = asyncio.run(_move(servers))
            wait_for(lambda: _has_moved(cluster, log_id), timeout=_MOVE_SECONDS_MAX, what=lambda: "the log has moved")
            ended = time.perf_counter()
            producers.stop()
            (sent,) = producers.results()
    moved = Figure("W9", name, "moved", "MB/s", case.total_bytes / 1e6 / (ended - began))
    return [moved, *_figures(name, sent, began, ended)]


async def _move(servers: Sequence[str]) -> str:
    """The log that is on its way."""
    async with Client(*servers) as client:
        altered = await client.admin.alter(QUEUES[0], {"nodes": ["n1", "n3"]})
        if altered.moves or not altered.copies_change:
            raise WorkloadFailed("the queue moves to another log; its log's copies shall move")
        return (await client.admin.metadata([QUEUES[0]])).queues[0].log_id


def _has_moved(cluster: SeparatedCluster, log_id: str) -> bool | None:
    log = next(log for log in _view(cluster).logs if log.log_id == log_id)
    return (sorted(log.replicas) == sorted(log.in_sync) == ["n1", "n3"] and not log.target) or None


def _run_fourth(case: Case, name: str) -> list[Figure]:
    with _cluster(3, spare=1) as (cluster, _):
        servers = tuple(cluster.servers)
        asyncio.run(_declare(servers))
        _rate(case, servers)
        with Clients(load, [servers], ready_seconds=120.0) as producers:
            producers.go()
            time.sleep(_BEFORE_S)
            began = time.perf_counter()
            cluster.join("n4")
            wait_for(lambda: _is_even(cluster), timeout=_MOVE_SECONDS_MAX, what=lambda: "n4 has its share")
            ended = time.perf_counter()
            producers.stop()
            (sent,) = producers.results()
    return [Figure("W9", name, "until it has its share", "s", ended - began), *_figures(name, sent, began, ended)]


def _is_even(cluster: SeparatedCluster) -> bool | None:
    """Whether queues, masters and copies are spread over four nodes, and all is in sync."""
    view = _view(cluster)
    used = {log.log_id: log for log in view.logs if len(log.replicas) == 2}
    queues = asyncio.run(_logs_of_queues(cluster.servers))
    spread = (
        Counter(node for log in used.values() for node in log.replicas),
        Counter(used[log_id].master for log_id in queues if log_id in used),
    )
    there = [node.node_id for node in view.nodes]
    even = all(max(of[each] for each in there) - min(of[each] for each in there) <= 1 for of in spread)
    still = all(not log.target and set(log.in_sync) == set(log.replicas) for log in view.logs)
    return (len(there) == 4 and len(queues) == len(QUEUES) and even and still) or None


async def _logs_of_queues(servers: Sequence[str]) -> list[str]:
    async with Client(*servers) as client:
        return [queue.log_id for queue in (await client.admin.metadata()).queues]
