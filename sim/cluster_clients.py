"""Programs that use a simulated cluster through the public client, and the history of what they were told.

Everything that a checker knows of records comes from here: what was sent, how each of it ended, what was read where.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from mirrorlog.client import Client
from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.producer.producer import Delivery, Producer
from mirrorlog.errors import MirrorlogError, OutcomeUnknown, Overloaded, PositionLost, QueueExists
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.messages.status import ClusterStatus, Status
from sim.machines import Machine

AGAIN_S: Final = 0.1
"""After an error that a program would be ended by, it tries again."""
COMMIT_S: Final = 0.3

_T = TypeVar("_T")


@dataclass(slots=True)
class Sent:
    """A record that was handed over. `at`: when, in s of the run; `outcome`: confirmed, refused (nothing was stored) or
    unknown; empty: none yet."""

    producer: str
    queue: str
    number: int
    level: str | int
    at: float
    outcome: str = ""
    reason: str = ""
    receipt: Receipt | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a reader got it. `source`: producer and number, of which the value tells."""

    queue_offset: int
    log_offset: int
    epoch: int
    value: bytes
    source: tuple[str, int]

    @classmethod
    def of(cls, queue_offset: int, log_offset: int, epoch: int, value: bytes) -> Self:
        producer, number, _ = value.split(b" ", 2)
        return cls(queue_offset, log_offset, epoch, value, (producer.decode(), int(number)))


@dataclass(slots=True)
class Reading:
    """One reader. `gaps`: (from, up to) where it was told that records were lost; `error`: the last one that it met."""

    name: str
    queue: str
    node: str = ""
    seen: list[Seen] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    error: str = ""

    @property
    def next(self) -> int:
        """The queue offset behind the last record."""
        return self.seen[-1].queue_offset + 1 if self.seen else 0


@dataclass(frozen=True, slots=True)
class Committed:
    """A position. `at`: when its commit was asked for, in s of the run."""

    queue_offset: int = 0
    at: float = 0.0


@dataclass(slots=True)
class History:
    """`log_ids`, `queue_ids`: of each queue; `readings`: while the storm went on; `finals`: of every copy, when it was
    over; `committed`: by queue and group, the furthest position that was confirmed; `told`: by
    queue, group and queue offset, how the commits of that position ended, "" for one that has not yet; `found`: the
    furthest when the storm was over, and what the group then found; `status`: of every node, at the end."""

    sent: list[Sent] = field(default_factory=list)
    log_ids: dict[str, str] = field(default_factory=dict)
    queue_ids: dict[str, int] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)
    finals: list[Reading] = field(default_factory=list)
    committed: dict[tuple[str, str], Committed] = field(default_factory=dict)
    told: dict[tuple[str, str, int], set[str]] = field(default_factory=dict)
    found: dict[tuple[str, str], tuple[Committed, int]] = field(default_factory=dict)
    status: dict[str, Status] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def cluster(self) -> ClusterStatus:
        """As all nodes have it in the end."""
        cluster = next(iter(self.status.values())).cluster
        assert cluster is not None
        return cluster

    def confirmed(self) -> int:
        return sum(sent.outcome == "confirmed" for sent in self.sent)


@dataclass(frozen=True, slots=True)
class Producing:
    """A producer of `queue`: every `pause_s` a burst of `burst` records with `padding` bytes more than they need."""

    name: str
    queue: str
    level: str | int
    pause_s: float
    burst: int
    padding: int
    durability: str = "memory"
    delivery_timeout_ms: int = 30_000


async def insist(work: Callable[[], Awaitable[_T]]) -> _T:
    """Until it does not fail."""
    while True:
        try:
            return await work()
        except MirrorlogError:
            await asyncio.sleep(AGAIN_S)


async def declare(client: Client, queue: str, arguments: dict[str, Any]) -> QueueInfo:
    """The queue with these arguments, or as it was altered since."""
    try:
        return await client.admin.declare(queue, arguments)
    except QueueExists:
        found = (await client.metadata([queue])).queues
        return await client.admin.declare(queue, found[0].arguments if found else arguments)


class Writers:
    """A program: several producers, until `stopping`."""

    def __init__(
        self, servers: Sequence[str], queues: dict[str, str], producers: Sequence[Producing], history: History
    ) -> None:
        """`queues`: flush mode by name, made before anything is sent."""
        self.history = history
        self.stopping = False
        self.done = False
        self._servers = servers
        self._queues = queues
        self.producers = producers

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers).connect())
        for queue, flush in self._queues.items():
            info = await insist(lambda name=queue, mode=flush: client.admin.declare(name, {"flush": mode}))  # type: ignore[misc]
            self.history.log_ids[queue] = info.log_id
            self.history.queue_ids[queue] = info.queue_id
        await asyncio.gather(*(self._produce(client, each) for each in self.producers))
        self.done = True

    async def _produce(self, client: Client, what: Producing) -> None:
        producer = client.producer(
            what.queue,
            confirm=what.level,
            durability=what.durability,
            delivery_timeout_ms=what.delivery_timeout_ms,
        )
        await insist(producer.start)
        waits: list[asyncio.Future[None]] = []
        number = 0
        while not self.stopping:
            burst: list[tuple[Sent, Delivery]] = []
            with suppress(Overloaded):
                for _ in range(what.burst):
                    burst.append(self._send(producer, what, number))
                    number += 1
            if burst:
                waits.append(asyncio.ensure_future(self._note_ends(burst)))
            await asyncio.sleep(what.pause_s)
        with suppress(MirrorlogError):
            await producer.flush()
        await asyncio.gather(*waits)

    def _send(self, producer: Producer, what: Producing, number: int) -> tuple[Sent, Delivery]:
        """Raises Overloaded: then it was not handed over."""
        delivery = producer.send_nowait(b"%s %d " % (what.name.encode(), number) + b"." * what.padding)
        sent = Sent(what.name, what.queue, number, what.level, asyncio.get_running_loop().time())
        self.history.sent.append(sent)
        return sent, delivery

    async def _note_ends(self, burst: Sequence[tuple[Sent, Delivery]]) -> None:
        """In their order: most of a burst end together, and a task for each would be a sixth of all that runs."""
        for sent, delivery in burst:
            try:
                sent.receipt = await delivery
                sent.outcome = "confirmed"
                self.history.counts[f"confirmed of {sent.producer}"] += 1
            except OutcomeUnknown as error:
                sent.outcome, sent.reason = "unknown", error.code
            except MirrorlogError as error:
                sent.outcome, sent.reason = "refused", error.code


class Readers:
    """A program: consumers that follow their queues, one with a group that commits; until killed."""

    def __init__(self, servers: Sequence[str], queues: Sequence[str], history: History, *, mirrors: bool) -> None:
        """`mirrors`: there are some to be read from."""
        self.history = history
        self._mirrors = mirrors
        self._servers = servers
        self._queues = queues

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers).connect())
        work = [self._follow(client, queue, "master", group="readers") for queue in self._queues]
        if self._mirrors:
            work.append(self._follow(client, self._queues[0], "mirror"))
        await asyncio.gather(*work)

    async def _follow(self, client: Client, queue: str, read_from: str, group: str | None = None) -> None:
        reading = Reading(f"{read_from} reader of {queue}", queue)
        self.history.readings.append(reading)
        consumer = client.consumer(queue, start="earliest", read_from=read_from, group=group)
        await insist(consumer.start)
        if group is not None:
            asyncio.ensure_future(self._commit(client, consumer, group))  # noqa: RUF006  (ends with the program)
        while True:
            try:
                await follow(reading, consumer)
            except MirrorlogError as error:
                reading.error = f"{type(error).__name__}: {error}"
                await asyncio.sleep(AGAIN_S)

    async def _commit(self, client: Client, consumer: Consumer, group: str) -> None:
        history, key = self.history, (consumer.queue, group)
        while True:
            await asyncio.sleep(COMMIT_S)
            position = Committed(consumer.position.queue_offset, asyncio.get_running_loop().time())
            told = history.told.setdefault((*key, position.queue_offset), set())
            told.add("")
            try:
                await consumer.commit()
                told.add("confirmed")
                if position.queue_offset > history.committed.get(key, Committed()).queue_offset:
                    history.committed[key] = position
                history.counts["positions committed"] += 1
            except MirrorlogError as error:
                told.add("unknown" if isinstance(error, OutcomeUnknown) else "refused")
                history.counts["positions not committed"] += 1
            told.discard("")


async def follow(reading: Reading, consumer: Consumer) -> None:
    """Note what comes, until there is no more to come; past what was lost. Raises MirrorlogError."""
    while True:
        try:
            async for batch in consumer.batches():
                header = batch.header
                for offset, value in enumerate(batch.values.tolist(), batch.first):
                    assert value is not None
                    reading.seen.append(Seen.of(offset, header.log_offset, header.epoch, value))
            return
        except PositionLost as error:
            go_on_at = int(error.details["go_on_at"])
            reading.gaps.append((consumer.position.queue_offset, go_on_at))
            await consumer.seek(go_on_at)


class FinalReader:
    """A program: reads every queue from every one of its copies, and what each node says of itself."""

    def __init__(self, servers: Sequence[str], history: History) -> None:
        self.history = history
        self.done = False
        self._servers = servers

    async def __call__(self, machine: Machine) -> None:
        history = self.history
        client = await insist(lambda: Client(*self._servers).connect())
        first = await insist(client.admin.status)
        assert first.cluster is not None
        nodes = [node.node_id for node in first.cluster.nodes]
        while not self._level():  # a copy may still be coming to the end, or not know that it is confirmed
            for name in nodes:
                history.status[name] = await insist(lambda name=name: client.admin.status(name))  # type: ignore[misc]
            await asyncio.sleep(AGAIN_S)
        for (queue, group), committed in list(history.committed.items()):
            position = await insist(lambda q=queue, g=group: client.admin.position(q, g))  # type: ignore[misc]
            history.found[queue, group] = committed, position.queue_offset if position is not None else 0
        for queue in history.log_ids:
            for node_id in await self._copies(client, queue):
                history.finals.append(await insist(lambda q=queue, n=node_id: _read_all(client, q, n)))  # type: ignore[misc]
        self.done = True

    async def _copies(self, client: Client, queue: str) -> list[str]:
        """Nodes with all of it; without one, whoever masters each of its logs."""
        found = await insist(lambda: client.metadata([queue]))
        info = found.queues[0]
        held = {log.log_id: log.replicas for log in self.history.cluster.logs}
        logs = [held[log_id] for log_id in {span.log_id: 0 for span in info.spans} or [info.log_id]]
        return [node for node in logs[0] if all(node in replicas for replicas in logs)] or ["master"]

    def _level(self) -> bool:
        """Whether every copy has, and knows to be confirmed, all that its log holds."""
        if not self.history.status:
            return False
        placed = {log.log_id: log.replicas for log in self.history.cluster.logs}
        facts: dict[str, set[int]] = {}
        for node, status in self.history.status.items():
            for log in status.logs:
                if node in placed.get(log.log_id, ()):
                    facts.setdefault(log.log_id, set()).update((log.end, log.confirmed))
        return all(len(each) == 1 for each in facts.values())


async def _read_all(client: Client, queue: str, node: str) -> Reading:
    reading = Reading(f"final reader of {queue} at {node}", queue, node)
    async with client.consumer(queue, start="earliest", until="confirmed", read_from=node) as consumer:
        await follow(reading, consumer)
    return reading
