"""W8: a queue moves between two logs, to and fro, while somebody publishes to it, one record at a time.

The pause of a move is the longest that the publisher waited for a confirm from the moment that the move was asked for
until the queue was in the other log; what it waits for otherwise is measured in between, in the same run. Both logs are
there before: each has a queue of its own, so that the queue moves, and not its log's copies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.measure import Figure, latencies
from bench.nodes import prepared_cluster
from bench.records import random_records
from bench.workload import MIB, WorkloadFailed
from mirrorlog.client import Client
from mirrorlog.client.producer.producer import Producer
from mirrorlog.errors import MirrorlogError

COPIES: Final = 3
_QUEUE: Final = "w8"
_MOVES_OF_EACH: Final = 6
"""Queues; the records of one may be in eight logs."""
_PLACES: Final = ({"copies": 2, "flush": "memory"}, {"copies": 2, "flush": "memory", "min_in_sync": 1})
_MOVE_SECONDS_MAX: Final = 30.0
_BETWEEN_S: Final = 0.25
_POLL_S: Final = 0.002
_POOL: Final = 1000


@dataclass(frozen=True, slots=True)
class Case:
    """`moves`: how often it moves; `group`: somebody is subscribed to it, and acknowledges."""

    record_bytes: int
    moves: int
    group: bool = False

    def __str__(self) -> str:
        used = ", with a work queue" if self.group else ""
        return f"2 copies, {self.record_bytes} B, memory, {self.moves} moves{used}"


def run(case: Case, name: str) -> list[Figure]:
    """One round."""
    with prepared_cluster("beside", COPIES, 64 * MIB, min_in_sync=2) as cluster:
        pauses, between = asyncio.run(_run(case, list(cluster.servers)))
    figures = latencies("W8", f"{name}, pause", [pause * 1e6 for pause in pauses], ("p50", "p99", "max"))
    return [*figures, *latencies("W8", f"{name}, confirms in between", [each * 1e6 for each in between])]


async def _run(case: Case, servers: list[str]) -> tuple[list[float], list[float]]:
    """The pause of each move, and what confirms took in between, in s."""
    pauses: list[float] = []
    between: list[float] = []
    async with Client(*servers) as client:
        for number in range(COPIES):  # one for each home
            for place in range(len(_PLACES)):
                await client.admin.declare(f"stays-{number}-{place}", _PLACES[place])
        for number in range(0, case.moves, _MOVES_OF_EACH):
            moves = min(_MOVES_OF_EACH, case.moves - number)
            of_moves, of_others = await _move_to_and_fro(case, client, f"{_QUEUE}-{number}", moves)
            pauses += of_moves
            between += of_others
    return pauses, between


async def _move_to_and_fro(case: Case, client: Client, queue: str, moves: int) -> tuple[list[float], list[float]]:
    """As `_run`, of one queue."""
    await client.admin.declare(queue, _PLACES[0])
    publisher = _Publisher(random_records(case.record_bytes, _POOL, seed=8))
    pauses: list[float] = []
    async with client.producer(queue, confirm="all") as producer, asyncio.TaskGroup() as tasks:
        tasks.create_task(publisher.run(producer))
        taker = tasks.create_task(_take(client, queue)) if case.group else None
        await asyncio.sleep(_BETWEEN_S)
        for number in range(1, moves + 1):
            began = time.perf_counter()
            await _move(client, queue, {"min_in_sync": None, **_PLACES[number % 2]})
            await publisher.next_confirm()
            pauses.append(publisher.longest(began, time.perf_counter()))
            await asyncio.sleep(_BETWEEN_S)
        publisher.stopped = True
        if taker is not None:
            taker.cancel()
    return pauses, publisher.outside()


async def _take(client: Client, queue: str) -> None:
    async with client.subscribe(queue, prefetch=100) as subscription:
        async for delivery in subscription:
            await delivery.ack()


async def _move(client: Client, queue: str, place: Mapping[str, object]) -> None:
    """Until the queue is in the other log. Raises WorkloadFailed."""
    before = (await client.admin.metadata([queue])).queues[0].log_id
    if not (await client.admin.alter(queue, place)).moves:
        raise WorkloadFailed("the queue did not have to move; both places are one log")
    give_up_at = time.monotonic() + _MOVE_SECONDS_MAX
    while time.monotonic() < give_up_at:
        try:
            found = (await client.admin.metadata([queue])).queues
        except MirrorlogError:
            found = []
        if found and found[0].log_id != before:
            return
        await asyncio.sleep(_POLL_S)
    raise WorkloadFailed(f"the queue did not move within {_MOVE_SECONDS_MAX:g} s")


class _Publisher:
    """`waits`: when each record was sent and how long its confirm took, in s, by `perf_counter`."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records
        self._confirmed = asyncio.Event()
        self._moves: list[tuple[float, float]] = []
        self.waits: list[tuple[float, float]] = []
        self.stopped = False

    async def run(self, producer: Producer) -> None:
        """One record after the other."""
        while not self.stopped:
            at = time.perf_counter()
            await producer.send(self._records[len(self.waits) % _POOL])
            self.waits.append((at, time.perf_counter() - at))
            self._confirmed.set()

    async def next_confirm(self) -> None:
        """Of a record that was sent from now on."""
        for _ in range(2):
            self._confirmed.clear()
            await self._confirmed.wait()

    def longest(self, began: float, ended: float) -> float:
        """Of those that were under way within that time."""
        self._moves.append((began, ended))
        return max(took for at, took in self.waits if at + took >= began and at <= ended)

    def outside(self) -> list[float]:
        """Of those that no move touched."""
        return [took for at, took in self.waits if all(at + took < began or at > ended for began, ended in self._moves)]
