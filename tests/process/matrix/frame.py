"""Runs all features on one cluster: set up all, let each act, restart, let each act again, look at all.

A feature is an asynchronous generator of a World: it yields behind its set-up, its first half, its second half, and
ends with what must be true then. So what it has in hand lies open over the restart, as a program's does. All run at
once; one that fails is told with its stage, and the others go on.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Final

import pytest

from tests.process.matrix.columns import Column, in_sync, mend
from tests.process.matrix.world import World

Feature = Callable[[World], AsyncGenerator[None]]

STAGES: Final = ("set up", "act", "act again", "check")
STAGE_S: Final = 60.0
_LOG_LINES: Final = 200


@dataclass(slots=True)
class _Running:
    name: str
    steps: AsyncGenerator[None]
    failure: str = ""

    async def step(self, stage: str) -> None:
        if self.failure:
            return
        last = stage == STAGES[-1]
        try:
            async with asyncio.timeout(STAGE_S):
                await anext(self.steps)
            if last:
                self.failure = f"{stage}: it has more steps than there are stages"
        except StopAsyncIteration:
            if not last:
                self.failure = f"{stage}: it ended before its last stage"
        except (Exception, pytest.fail.Exception) as error:  # what `pytest.raises` raises is no Exception
            self.failure = f"{stage}: {_told(error)}"

    async def end(self) -> None:
        """What it left open is closed, also where that fails as the feature did."""
        with suppress(Exception):
            async with asyncio.timeout(STAGE_S):
                await self.steps.aclose()


async def failures_of(column: Column, features: Sequence[Feature], *, seed: int) -> tuple[list[str], str]:
    """Of all features through the column's restart: feature, column, stage and what went wrong; and when something did,
    the last lines of all nodes' logs."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(column.cluster())
        await asyncio.to_thread(cluster.wait_in_sync)
        world = World(cluster, await stack.enter_async_context(AsyncExitStack()), seed=seed)
        await world.begin()
        running = [_Running(each.__name__.replace("_", " "), each(world)) for each in features]
        try:
            await _step(running, STAGES[0])
            await _step(running, STAGES[1])
            await in_sync(world)
            await column.happen(world)
            await _step(running, STAGES[2])
            await mend(world)
            await _step(running, STAGES[3])
        finally:
            for each in running:
                await each.end()
        failures = [f"{each.name} [{column}] {each.failure}" for each in running if each.failure]
        logs = [f"log of {name}:\n{node.log_tail(_LOG_LINES)}" for name, node in cluster.nodes.items()]
    return failures, "\n".join(logs) if failures else ""


async def _step(running: Sequence[_Running], stage: str) -> None:
    await asyncio.gather(*(each.step(stage) for each in running))


def _told(error: BaseException) -> str:
    where = traceback.extract_tb(error.__traceback__)
    here = [f"{line.name}:{line.lineno}" for line in where if "/matrix/" in line.filename][1:]
    return f"{type(error).__name__}: {error} (at {' > '.join(here)})"
