"""Rows: the same without `await`, in a program that runs on over the restart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

from mirrorlog.client.sync import Client, Delivered, Leased, Publisher, Subscription
from tests.process.matrix.world import ADMIN, LONG_MS, REQUEST_MS, SOON_S, World

QUEUE: Final = "sync"
OUT: Final = "sync-out"
LEASED: Final = "sync-leased"
EXCHANGE: Final = "sync-exchange"


async def synchronous_faces(world: World) -> AsyncGenerator[None]:
    """Publisher, subscription, transaction and leases keep their promises in threads as they do in a loop."""
    user, password = ADMIN
    client = Client(*world.cluster.servers, user=user, password=password, request_timeout_ms=REQUEST_MS)
    program = _Program(client)
    try:
        await asyncio.to_thread(program.set_up)
        yield
        await asyncio.to_thread(program.act)
        yield
        await asyncio.to_thread(program.act_again)
        yield
        await asyncio.to_thread(program.end)
    finally:
        await asyncio.to_thread(client.close)
    await world.is_settled(QUEUE, 5)
    await world.is_settled(LEASED, 2)
    assert await world.values(OUT) == [b"1", b"2"]


class _Program:
    """Each step in one thread."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.publisher: Publisher
        self.subscription: Subscription
        self.leased: Leased

    def set_up(self) -> None:
        admin = self.client.connect().admin
        for queue in (QUEUE, OUT):
            admin.declare(queue, {"x-log-group": "matrix-sync"})
        admin.declare(LEASED)
        admin.topology.declare_exchange(EXCHANGE, "topic")
        admin.topology.bind(EXCHANGE, QUEUE, "#")
        with self.client.producer(LEASED) as producer:
            producer.send_many([b"0", b"1"])

    def act(self) -> None:
        self.publisher = self.client.publisher(EXCHANGE, mandatory=True).start()
        for number in range(4):
            assert set(self.publisher.publish("k", b"%d" % number).receipts) == {QUEUE}
        self.subscription = self.client.subscribe(QUEUE, prefetch=3).start()
        first, second, _ = self._taken(3)
        first.ack()
        self._move(second)
        (self.leased,) = self.client.lease(LEASED, max_records=1, lease_ms=LONG_MS)

    def act_again(self) -> None:
        third, fourth = self._taken(2)
        assert ([third.offset, fourth.offset], third.redelivered) == ([2, 3], True)
        self._move(third)
        fourth.ack()
        self.publisher.publish("k", b"4")
        (fifth,) = self._taken(1)
        assert (fifth.offset, fifth.redelivered) == (4, False)
        fifth.ack()
        (other,) = self.client.lease(LEASED, lease_ms=LONG_MS)
        assert (self.leased.offset, other.offset) == (0, 1)
        self.leased.extend(LONG_MS)
        self.leased.ack()
        other.ack()

    def end(self) -> None:
        self.publisher.close()
        self.subscription.close()

    def _move(self, delivered: Delivered) -> None:
        with self.client.transaction() as tx:
            tx.send(OUT, delivered.value)
            tx.ack(delivered)

    def _taken(self, count: int) -> list[Delivered]:
        found: list[Delivered] = []
        give_up_at = time.monotonic() + SOON_S
        while len(found) < count:
            assert time.monotonic() < give_up_at, f"{QUEUE}: {len(found)} of {count} records came"
            found += self.subscription.receive(count - len(found), timeout_ms=1_000)
        return found
