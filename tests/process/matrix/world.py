"""What the features of the matrix have in common: a cluster, who is logged in, and waiting for what a group says."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

from mirrorlog.client import Client, Delivered, Subscription
from mirrorlog.errors import (
    ConnectionLost,
    InSyncReplicasNotEnough,
    NotCurrent,
    NotLeader,
    NotMaster,
    RequestTimeout,
)
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.groups import GroupInfo
from mirrorlog.wire.messages.queues import QueueInfo

ADMIN: Final = ("admin", "secret")
SOON_S: Final = 20.0
LONG_MS: Final = 600_000
"""Ends in no test."""
REQUEST_MS: Final = 20_000

_POLL_S: Final = 0.05
_PASSING: Final = (ConnectionLost, InSyncReplicasNotEnough, NotCurrent, NotLeader, NotMaster, RequestTimeout)

_T = TypeVar("_T")


class World:
    """A cluster that is to be restarted, and who is logged in to it. `first`: the node that masters the log until then,
    and that every kind of restart concerns."""

    def __init__(self, cluster: Cluster, stack: AsyncExitStack, *, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.client: Client
        self.first: Node
        self._stack = stack

    async def begin(self) -> None:
        """Make the first user, who everybody is by then, and find the first master."""
        async with Client(*self.cluster.servers) as stranger:
            name, password = ADMIN
            topology = stranger.admin.topology
            await topology.set_user(name, password_hash=hashed(password), tags=["administrator"])
        self.client = await self.connect()
        await self.client.admin.topology.set_permissions(name, configure=".*", write=".*", read=".*")
        info = await self.declare("first")
        self.first = self.cluster.nodes[info.master]

    async def connect(
        self,
        *servers: str,
        user: str = ADMIN[0],
        password: str = ADMIN[1],
        request_timeout_ms: int = REQUEST_MS,
    ) -> Client:
        """Another client; by default one that knows all nodes. It is closed with the world."""
        addresses = servers or tuple(self.cluster.servers)
        client = Client(*addresses, user=user, password=password, request_timeout_ms=request_timeout_ms)
        return await self._stack.enter_async_context(client)

    # --- queues ---

    async def declare(self, queue: str, **arguments: Any) -> QueueInfo:
        """Arguments with `_` for `-`, where RabbitMQ has named them: `x_max_length`."""
        named = {key if key.startswith("retention") else key.replace("_", "-"): arguments[key] for key in arguments}
        return await self.client.admin.declare(queue, named)

    async def publish(self, queue: str, count: int, **asked: Any) -> list[int]:
        """Records in batches of a few, numbered from where the queue ends; their queue offsets. Returns when all copies
        have them."""
        async with self.client.producer(queue, batch_bytes=64) as producer:
            receipts = await asyncio.gather(*(producer.send(b"record %d" % number, **asked) for number in range(count)))
        return sorted(receipt.queue_offset for receipt in receipts)

    async def values(self, queue: str) -> list[bytes]:
        """Of all its records, read as a stream."""
        async with self.client.consumer(queue, start="earliest", until="confirmed") as consumer:
            return [bytes(record.value or b"") async for record in consumer]

    async def is_there(self, queue: str) -> bool:
        metadata = await self.client.admin.metadata([queue])
        return bool(metadata.queues or metadata.placed)

    async def gone(self, queue: str) -> None:
        """Until its name is free."""

        async def met() -> bool:
            return not await self.is_there(queue)

        await self.until(met, f"queue {queue} is gone")

    # --- groups ---

    async def group(self, queue: str, name: str = "") -> GroupInfo:
        """As the queue's master knows it. Raises AssertionError when it is not there."""
        found = {each.group: each for each in (await self.client.admin.groups(queue)).groups}
        assert name in found, f"{queue} has no group {name!r}"
        return found[name]

    async def until_group(self, queue: str, name: str = "", **facts: Any) -> GroupInfo:
        """Until the group says these facts of itself: `ready=3`."""
        seen: list[GroupInfo] = []

        async def met() -> bool:
            seen[:] = [each for each in (await self.client.admin.groups(queue)).groups if each.group == name]
            return bool(seen) and all(getattr(seen[0], key) == value for key, value in facts.items())

        await self.until(met, lambda: f"{queue} says {facts}; it says {seen}")
        return seen[0]

    async def is_settled(self, queue: str, floor: int, name: str = "") -> None:
        """Everything below `floor` is done, and there is nothing else."""
        found = await self.group(queue, name)
        assert (found.floor, found.unsettled) == (floor, 0), found

    async def nothing_comes(self, queue: str, subscription: Subscription, *, below: int) -> None:
        """Nothing of what the queue has is given out any more: a record that is published now comes next, alone."""
        (new,) = await self.publish(queue, 1)
        assert new >= below
        (one,) = await receive(subscription, 1)
        assert one.offset == new, f"{one} came where only {new} was left"
        await one.ack()
        await self.is_settled(queue, new + 1)

    async def until(
        self, condition: Callable[[], Awaitable[bool]], what: str | Callable[[], str], *, within_s: float = SOON_S
    ) -> None:
        """Wait for it; a node that has no answer at the moment counts as not yet."""
        give_up_at = time.monotonic() + within_s
        while True:
            error: Exception | None = None
            try:
                if await condition():
                    return
            except _PASSING as passing:
                error = passing
            if time.monotonic() > give_up_at:
                raise AssertionError(f"not within {within_s:g} s: {what if isinstance(what, str) else what()}; {error}")
            await asyncio.sleep(_POLL_S)


async def receive(subscription: Subscription, count: int) -> list[Delivered]:
    found: list[Delivered] = []
    try:
        async with asyncio.timeout(SOON_S):
            while len(found) < count:
                found.append(await anext(subscription))
    except TimeoutError:
        raise AssertionError(f"{subscription.queue}: {len(found)} of {count} records came: {found}") from None
    return found


def offsets(delivered: Collection[Delivered]) -> list[int]:
    return [each.offset for each in delivered]


def again(delivered: Sequence[Delivered], expected: Sequence[int], *, attempts: int = 0) -> None:
    """These came after a failover: in order, flagged, and the failover was not counted."""
    assert offsets(delivered) == list(expected)
    assert all(each.redelivered for each in delivered), delivered
    assert [each.attempts for each in delivered] == [attempts] * len(delivered), delivered


async def ack_all(delivered: Collection[Delivered]) -> None:
    await asyncio.gather(*(each.ack() for each in delivered))


async def reached(moment: float) -> None:
    """Until the clock of this machine shows `moment`: what is tested is what happens behind it."""
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
