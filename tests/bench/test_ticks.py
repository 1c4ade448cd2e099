"""The beat of a schedule: no tick before its time, none lost, and a late reader finds those that have passed."""

from __future__ import annotations

import asyncio
import time

from bench.ticks import Ticks

PERIOD_S = 0.002


async def test_a_tick_is_never_early() -> None:
    """Twenty ticks, each awaited; one that came early would let a record leave before it is due."""
    with Ticks(PERIOD_S) as ticks:
        for tick in range(1, 21):
            await asyncio.wait_for(ticks.reached(tick), 10)
            assert time.perf_counter() >= ticks.due(tick)


async def test_ticks_that_passed_during_a_stall_are_not_waited_for() -> None:
    """Block the loop for ten periods: after the next tick was read, those before it are reached without waiting."""
    with Ticks(PERIOD_S) as ticks:
        stalled_until = ticks.due(10)
        while time.perf_counter() < stalled_until:
            pass
        await asyncio.wait_for(ticks.reached(10), 10)
        for tick in range(1, 10):
            waiting = asyncio.ensure_future(ticks.reached(tick))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert waiting.done()
