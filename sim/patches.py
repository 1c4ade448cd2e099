"""Clocks and chance of the processes of a run: what the standard library gives them comes from the run instead.

Wall clocks are off by what their process says; everything that is drawn comes from the run's seed, in the order in
which it is asked for. What blocks is an error: in virtual time nobody would ever wake it.

Rejected: to hand clocks and chance to every class that uses them. They are a few calls of the standard library, and a
call that is forgotten would only be found by a run that does not repeat.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any, Final, NoReturn
from unittest.mock import patch

from mirrorlog.broker.log.disk_threads import DiskLane
from mirrorlog.broker.session.client_session import ClientSession
from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.producer.producer import Producer
from mirrorlog.cluster.membership import seeds
from mirrorlog.ha.accept import MasterLink
from mirrorlog.wire.listening import Port
from mirrorlog.wire.tls import Refusals
from sim.loop import START_S, VirtualLoop
from sim.processes import Process, current_process

WALL_START_NS: Final = 1_750_000_000 * 1_000_000_000
"""When every run begins, for clocks that are right: ns UTC."""
NUMBERED: Final = (ClientSession, Consumer, MasterLink, Producer)
"""Whose objects stand in sets that somebody walks: in a run they are told apart by numbers, not by their addresses."""

_NUMBER: Final = "_number_in_run"


@contextmanager
def patched(loop: VirtualLoop, seed: str) -> Iterator[None]:
    """The run's clocks and chance, for everybody in this Python process."""
    chances: dict[Process | None, random.Random] = {}
    original_seed = random.Random.seed

    def chance() -> random.Random:
        # One for each process: what the world draws, or a module when it is imported, is no part of what nodes draw.
        process = current_process()
        if process not in chances:
            chances[process] = random.Random(f"{seed} chance {process}")
        return chances[process]

    def urandom(size: int) -> bytes:
        return chance().randbytes(size)

    def wall_ns() -> int:
        process = current_process()
        skew = process.wall_skew_ns if process is not None else 0
        return WALL_START_NS + round((loop.now - START_S) * 1e9) + skew

    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        original_seed(self, chance().getrandbits(64) if a is None else a, version)

    def shut_down(self: Executor, wait: bool = True, *, cancel_futures: bool = False) -> None:
        loop.helpers.finish(self)

    state = random.getstate()
    with ExitStack() as patches:
        patches.callback(random.setstate, state)
        for owner, name, new in (
            (time, "monotonic", loop.time),
            (time, "monotonic_ns", lambda: round(loop.now * 1e9)),
            (time, "perf_counter", loop.time),
            (time, "perf_counter_ns", lambda: round(loop.now * 1e9)),
            (time, "time", lambda: wall_ns() / 1e9),
            (time, "time_ns", wall_ns),
            (time, "sleep", _blocks("time.sleep")),
            (os, "urandom", urandom),
            (os, "getpid", _process_number),
            (random, "_urandom", urandom),
            (random.Random, "seed", seeded),
            (threading.Thread, "start", _blocks("a thread")),
            (ThreadPoolExecutor, "submit", _blocks("ThreadPoolExecutor.submit")),
            (ThreadPoolExecutor, "shutdown", shut_down),
            (DiskLane, "submit", _blocks("DiskLane.submit")),
            (DiskLane, "shutdown", shut_down),
            (Port, "open", _listen),
            (seeds, "_refusals", Refusals()),  # what was told in one run is told in the next one, too
        ):
            patches.enter_context(patch.object(owner, name, new))
        number_of = _numbering()
        for each in NUMBERED:
            patches.enter_context(patch.object(each, "__hash__", number_of))
        random.seed(f"{seed} global")
        yield


def _numbering() -> Callable[[object], int]:
    """Numbers for objects, in the order in which they are first asked for."""
    serial = count()

    def number_of(each: object) -> int:
        facts = vars(each)
        if _NUMBER not in facts:
            facts[_NUMBER] = next(serial)
        found: int = facts[_NUMBER]
        return found

    return number_of


async def _listen(port: Port, host: str, number: int) -> None:
    """The network of the run accepts, and there are no descriptors to be short of."""
    loop = asyncio.get_running_loop()
    port._server = await loop.create_server(lambda: port.made(port.come("")), host, number)


def _process_number() -> int:
    process = current_process()
    return 1000 + process.number if process is not None else 1


def _blocks(what: str) -> Callable[..., Future[Any]]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError(f"{what} in virtual time")

    return refuse
