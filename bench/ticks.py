"""The beat of a schedule, from a timer of the kernel: exact to some µs, where an event loop's own are to a millisecond.

Half a millisecond on average is more than a round trip takes, and would be taken for the latency of what is measured.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import Final, Self

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class _TimerSpec(ctypes.Structure):
    """struct itimerspec: the period, and the time until the first tick, each in seconds and nanoseconds."""

    _fields_ = (
        ("period_s", ctypes.c_long),
        ("period_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class Ticks:
    """Tick 1 is one period after `with` was entered. For one task, on a running loop. Raises OSError."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._began = 0.0
        self._passed = 0
        self._changed = asyncio.Event()
        self._fd = -1

    def __enter__(self) -> Self:
        self._fd = _checked(_LIBC.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC))
        seconds, fraction = divmod(self._period_s, 1)
        period = int(seconds), round(fraction * 1e9)
        self._began = time.perf_counter()
        _checked(_LIBC.timerfd_settime(self._fd, 0, ctypes.byref(_TimerSpec(*period, *period)), None))
        asyncio.get_running_loop().add_reader(self._fd, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def due(self, tick: int) -> float:
        """When that tick is, as `time.perf_counter` gives it."""
        return self._began + tick * self._period_s

    async def reached(self, tick: int) -> None:
        """Until that tick; the loop turns once at least."""
        await asyncio.sleep(0)
        while self._passed < tick:
            self._changed.clear()
            await self._changed.wait()

    def _read(self) -> None:
        # How many periods have passed since it was read last.
        self._passed += int.from_bytes(os.read(self._fd, 8), "little")
        self._changed.set()


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
