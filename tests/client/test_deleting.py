"""Deleting a queue: which of several nodes' answers is this call's, when the first one is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest

from mirrorlog.attempts import Attempts
from mirrorlog.client import admin
from mirrorlog.client.admin import Admin
from mirrorlog.client.client import Client
from mirrorlog.client.connection import masters
from mirrorlog.errors import ConnectionLost, MirrorlogError, NoSuchQueue
from mirrorlog.wire.messages.queues import Deleted

Answer = Deleted | MirrorlogError
Asked = Callable[[], Coroutine[Any, Any, Answer]]

GONE = NoSuchQueue("no queue 'q'", queue="q")


class Nodes:
    """A client's, which answer as they are told to. `answered`: by address, when they are asked in this order."""

    request_timeout_ms = 10_000
    connected = True

    def __init__(self, answers: Mapping[str, Asked], *, unreached: str = "") -> None:
        """`unreached`: those of which the error is that of a connection that never stood."""
        self.answers = answers
        self.unreached = unreached

    def addresses(self) -> list[str]:
        return list(self.answers)

    async def delete(self, monkeypatch: pytest.MonkeyPatch) -> int:
        async def asked(
            client: Client, address: str, message: object, expect: object, attempts: Attempts, **_: object
        ) -> Answer:
            if address in self.unreached:
                return await self.answers[address]()
            with attempts.one():
                return await self.answers[address]()

        monkeypatch.setattr(admin, "ask_placed_at", asked)
        monkeypatch.setattr(masters, "SILENCE_S", 0.0)
        async with asyncio.timeout(10):
            return await Admin(cast(Client, self)).delete_queue("q")


async def gone() -> Answer:
    return GONE


@pytest.mark.parametrize("slow_one", [0, 1])
async def test_the_node_that_deletes_it_may_be_slower_than_one_that_knows_it_gone(
    monkeypatch: pytest.MonkeyPatch, slow_one: int
) -> None:
    """Goal: nobody is told NoSuchQueue of the deletion that he has asked for himself. Method: two nodes are asked; the
    one that is asked first, or second, has deleted it and answers after the other one has said that it is not there."""
    told = asyncio.Event()

    async def knows() -> Answer:
        await asyncio.sleep(0)  # both are asked by then
        told.set()
        return GONE

    async def deletes() -> Answer:
        await told.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return Deleted(records=3)

    asks: list[Asked] = [knows, knows]
    asks[slow_one] = deletes
    assert await Nodes(dict(zip("ab", asks, strict=True))).delete(monkeypatch) == 3


async def test_an_answer_that_is_lost_after_another_node_knows_it_gone_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the same when the one that is slow dies: how many records it took nobody knows. A connection that never
    stood has deleted nothing: then the queue was not there."""
    told = asyncio.Event()

    async def knows() -> Answer:
        told.set()
        return GONE

    async def dies() -> Answer:
        await told.wait()
        raise ConnectionLost("it died")

    assert await Nodes({"a": dies, "b": knows}).delete(monkeypatch) == 0
    told.clear()
    with pytest.raises(NoSuchQueue):
        await Nodes({"a": dies, "b": knows}, unreached="a").delete(monkeypatch)


async def test_a_queue_that_was_never_there_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by several nodes at once: none waits for the others for ever."""
    with pytest.raises(NoSuchQueue):
        await Nodes({"a": gone, "b": gone, "c": gone}).delete(monkeypatch)
