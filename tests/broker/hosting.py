"""Two or three whole nodes on one loop whose log changes hands, and traffic that goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.roles import MasterRole, MirrorRole
from mirrorlog.client import Client
from mirrorlog.config import HaSettings, LimitSettings, LogAssignment, LogSettings, Settings
from tests.ha.nodes import WAIT_S, Node, cluster_settings, decider_of, lead, running, until

KIB = 1024
SEGMENT_BYTES = 256 * KIB
# No wait ends by its deadline while a test runs.
PATIENT = HaSettings(reconnect_interval_ms=20, sync_flush_timeout_ms=120_000)


def small(settings: Sequence[Settings], **log: Any) -> list[Settings]:
    """Segments and batches as small as can be, sealed as soon as they are full."""
    options = {
        "segment_bytes": SEGMENT_BYTES,
        "populate_bytes": 0,
        "prepare_bytes": 0,
        "kept_mapped_bytes": 0,
        "flush_interval_ms": 10,
        **log,
    }
    limits = LimitSettings(max_batch_bytes=64 * KIB, max_record_bytes=32 * KIB)
    return [each.model_copy(update={"log": LogSettings(**options), "limits": limits}) for each in settings]


def settings_for(root: Path, copies: int, *, flush: Any = "memory", **log: Any) -> list[Settings]:
    """As `small`, and waits that end by a confirm or by a change only."""
    return small(cluster_settings(root, copies=copies, ha=PATIENT, flush=flush), **log)


@asynccontextmanager
async def running_all(settings: Sequence[Settings]) -> AsyncIterator[list[Node]]:
    """Nodes that serve and follow."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(each)) for each in settings]


def written_by(log: HostedLog, node: str) -> LogAssignment:
    """The assignment with `node` as the master, and all others as mirrors."""
    others = tuple(each for each in log.assignment.nodes if each != node)
    return log.assignment.model_copy(update={"master": node, "mirrors": others})


def node_of(log: HostedLog) -> str:
    return log._host.settings.node.id


def next_epoch(*logs: HostedLog) -> int:
    return max(log.facts().epoch_known for log in logs) + 1


async def promotable(log: HostedLog) -> None:
    """Until this node is in sync: the master has let it in."""
    await until(lambda: node_of(log) in decider_of(log).facts(log).promotable)


async def hand_over(old: HostedLog, new: HostedLog) -> None:
    """As a cluster does it when both are well: fence the old master, promote the other, let the old one follow."""
    assignment = written_by(old, node_of(new))
    await promotable(new)
    await old.step_down(assignment)
    epoch = next_epoch(old, new)
    await lead(new, assignment, epoch)
    await old.follow(assignment, epoch=epoch)


async def take_over(old: HostedLog, new: HostedLog) -> int:
    """As a cluster does it when the old master does not hear it: promote, and tell the old one when something that will
    never be confirmed stands in its log. Gives where its log ended then."""
    assignment = written_by(old, node_of(new))
    await promotable(new)
    epoch = next_epoch(old, new)
    await lead(new, assignment, epoch)
    old.publisher.append_change(_declaration(old), lambda error: None)
    end = old.facts().end
    await old.follow(assignment, epoch=epoch)
    return end


def _declaration(log: HostedLog) -> bytearray:
    batch = log.replica.queues.declare(f"never confirmed {log.facts().end}", {})
    assert batch is not None
    return batch


async def in_sync(master: HostedLog, *mirrors: HostedLog) -> None:
    """Until the mirrors are in the in-sync set, have all that the master has, and know it as confirmed."""
    role = master.role
    assert isinstance(role, MasterRole)

    def equal() -> bool:
        return role.mastership.in_sync.issuperset(map(node_of, mirrors)) and all(
            isinstance(log.role, MirrorRole)
            and log.role.service.following
            and log.facts().end == log.facts().confirmed == master.facts().end == master.facts().confirmed
            and log.replica.log.epochs == master.replica.log.epochs
            for log in mirrors
        )

    await until(equal)


class Writer:
    """Publishes numbers, one after the other in a queue, until it is stopped; all of them must be confirmed."""

    def __init__(self, client: Client, queue: str) -> None:
        self.confirmed: list[int] = []
        self._client = client
        self._queue = queue
        self._stopping = False
        self._task = asyncio.ensure_future(self._run())

    async def more(self, count: int = 20) -> None:
        """Until so many more are confirmed."""
        wanted = len(self.confirmed) + count
        await until(lambda: len(self.confirmed) >= wanted or self._task.done())
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def _run(self) -> None:
        async with self._client.producer(self._queue, batch_bytes=4 * KIB, max_in_flight=4) as producer:
            number = 0
            while not self._stopping:
                numbers = range(number, number + 7)
                sent = [producer.send_nowait(b"%d %s" % (each, b"x" * 600)) for each in numbers]
                for each, delivery in zip(numbers, sent, strict=True):
                    await delivery
                    self.confirmed.append(each)
                number += len(sent)


class Reader:
    """Reads a queue from its start for ever, and knows what it has seen."""

    def __init__(self, client: Client, queue: str, read_from: str) -> None:
        self.seen: list[int] = []
        self._task = asyncio.ensure_future(self._run(client, queue, read_from))

    async def reached(self, count: int) -> None:
        await until(lambda: len(self.seen) >= count or self._task.done())
        if self._task.done():
            self._task.result()

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=WAIT_S)

    async def _run(self, client: Client, queue: str, read_from: str) -> None:
        async with client.consumer(queue, start="earliest", read_from=read_from) as consumer:
            expected = 0
            async for record in consumer:
                assert record.queue_offset == expected, "in order, and none twice or left out"
                expected += 1
                self.seen.append(int((record.value or b"").split()[0]))
