"""Whose turn it is to leave: queues that wait for what does not answer keep back no other one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorlog.broker.dead_letters.forwarder import QUEUES_AT_ONCE, DeadLetterForwarder
from mirrorlog.errors import LogUnavailable
from mirrorlog.queues.dead_letters.forwarding import NONE

STUCK = 4 * QUEUES_AT_ONCE


def keeper_of(leaving: set[int]) -> DeadLetterForwarder:
    replica: Any = SimpleNamespace(
        forwardings=SimpleNamespace(leaving=leaving, of=lambda _: NONE),
        queues=SimpleNamespace(has_id=lambda _: False),
        assignment=SimpleNamespace(name="main"),
    )
    publisher: Any = SimpleNamespace(cut_off=False, stopping=False)
    host: Any = SimpleNamespace(
        settings=SimpleNamespace(limits=SimpleNamespace(max_batch_bytes=1 << 20)),
        helpers=SimpleNamespace(dead_letters=None, index=None),
        dead_letters=object(),
    )
    anything: Any = SimpleNamespace()
    return DeadLetterForwarder(replica, publisher, anything, host, anything)


def test_a_queue_behind_many_that_hang_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody starves. Method: more queues than may leave at once hang as long as they may, and try again at
    once; one with a higher id has a target that answers."""
    leaving = set(range(1, STUCK + 2))
    served: list[int] = []
    hanging: list[asyncio.Future[None]] = []

    async def leave(self: DeadLetterForwarder, queue_id: int, roads: object) -> None:
        served.append(queue_id)
        if queue_id <= STUCK:
            hanging.append(asyncio.get_running_loop().create_future())
            await hanging[-1]
        leaving.discard(queue_id)

    monkeypatch.setattr(DeadLetterForwarder, "_leave", leave)

    async def story() -> int:
        keeper, rounds = keeper_of(leaving), 0
        later = asyncio.get_running_loop().time() + 1e6  # no pause is longer
        while STUCK + 1 not in served:
            assert rounds <= STUCK, "it is never its turn"
            rounds += 1
            keeper.tick(later)
            await turns()
            assert len(hanging) <= QUEUES_AT_ONCE
            for each in hanging:
                each.set_exception(LogUnavailable("nobody masters its log"))
            hanging.clear()
            await turns()
        assert keeper.waits(1) == "nobody masters its log"
        assert keeper.waits(STUCK + 1) == ""
        keeper.fence()
        await keeper.end()
        return rounds

    assert asyncio.run(story()) <= STUCK // QUEUES_AT_ONCE + 1


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_queue_that_has_much_lets_others_leave_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """More queues than may leave at once, none of which ever ends: each has its turn all the same."""
    leaving = set(range(1, 2 * QUEUES_AT_ONCE + 1))
    served: set[int] = set()

    async def leave(self: DeadLetterForwarder, queue_id: int, roads: object) -> None:
        served.add(queue_id)

    monkeypatch.setattr(DeadLetterForwarder, "_leave", leave)
    monkeypatch.setattr("mirrorlog.broker.dead_letters.forwarder.TURN_S", 0.0)

    async def story() -> None:
        keeper = keeper_of(leaving)
        for _ in range(10):
            keeper.tick(0.0)
            await turns()
        keeper.fence()
        await keeper.end()

    asyncio.run(story())
    assert served == leaving
