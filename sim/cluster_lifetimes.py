"""Queues of a simulated cluster that go by themselves: guests who make them, use them and leave, and what is noted of
how they went.

`party` goes with its last subscriber (`auto-delete`), `brittle` when nobody has used it for a while (`x-expires`). One
guest subscribes to `party` for a while, and comes again; another one declares `brittle` again and again, mostly before
its time is up. When a queue goes is noted where that is decided, with who was subscribed to it then, counted from
outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final
from unittest.mock import patch

from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.consumer_groups.subscriptions import Subscribing
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.session.queue_lifetimes import LifetimeKeeper
from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from sim.cluster_clients import AGAIN_S, declare, insist
from sim.machines import Machine
from sim.processes import current_process

PARTY: Final = "party"
BRITTLE: Final = "brittle"
HALL: Final = "hall"
"""An exchange that leads to both."""
EXPIRES_MS: Final = 1_500
RETURN_MS: Final = 2_000
"""How long a new master waits for subscribers."""
_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {PARTY: {"auto-delete": True}, BRITTLE: {"x-expires": EXPIRES_MS}}


@dataclass(frozen=True, slots=True)
class Used:
    """A declaration that was answered: `asked_at`, `answered_at`: s of the run."""

    queue: str
    log_id: str
    queue_id: int
    asked_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class Went:
    """A queue was found to be over at `at` s of the run, by a master: by which node, log (its name), epoch; `there`:
    the subscriptions to its own group then; `auto_delete`: for want of these."""

    at: float
    node: str
    log: str
    epoch: int
    queue: str
    there: tuple[int, ...]
    auto_delete: bool


@dataclass(slots=True)
class LifetimeHistory:
    """`used`, `went`: in their order; `stays`: how often a guest was subscribed; `errors`: the last that guests met."""

    now: Callable[[], float]
    used: list[Used] = field(default_factory=list)
    went: list[Went] = field(default_factory=list)
    stays: int = 0
    errors: dict[str, str] = field(default_factory=dict)
    _there: dict[Subscribing, dict[int, tuple[int, str]]] = field(default_factory=dict)

    def enter(self, master: Subscribing, number: int, queue_id: int, group: str) -> None:
        self._there.setdefault(master, {})[number] = queue_id, group

    def leave(self, master: Subscribing, number: int) -> None:
        self._there.get(master, {}).pop(number, None)

    def end_queue(self, master: Subscribing, queue_id: int) -> None:
        """It is deleted there, or leaves for another log, and may come back."""
        there = self._there.get(master, {})
        self._there[master] = {number: of for number, of in there.items() if of[0] != queue_id}

    def end(self, log: HostedLog, names: Iterable[str]) -> None:
        """A master ends these queues."""
        process, replica = current_process(), log.replica
        there = self._there.get(log.deliverer.subscribing, {}) if log.deliverer is not None else {}
        for name in names:
            queue = replica.queues.get(name)
            lifetime = replica.queues.lifetimes.get(queue.queue_id) if queue is not None else None
            if queue is None or lifetime is None:
                continue
            numbers = tuple(number for number, of in there.items() if of == (queue.queue_id, ""))
            node = process.machine if process is not None else ""
            self.went.append(
                Went(self.now(), node, log.name, replica.log.epochs.current, name, numbers, lifetime.auto_delete)
            )


class Guests:
    """A program: makes the queues, uses them and leaves, until `stopping`."""

    def __init__(self, servers: Sequence[str], flush: str, history: LifetimeHistory, *, seed: str) -> None:
        self.stopping = False
        self.done = False
        self._servers = servers
        self._flush = flush
        self._history = history
        self._random = Random(f"{seed} guests")
        self._loop = asyncio.get_running_loop

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers, request_timeout_ms=5_000).connect())
        await insist(lambda: client.admin.topology.declare_exchange(HALL, "fanout"))
        await asyncio.gather(self._repeat(self._stay, client), self._repeat(self._touch, client))
        with suppress(MirrorlogError):
            await client.close()
        self.done = True

    async def _repeat(self, turn: Callable[[Client], Any], client: Client) -> None:
        while not self.stopping:
            try:
                await turn(client)
            except MirrorlogError as error:
                self._history.errors[turn.__name__] = f"{type(error).__name__}: {error}"
                await asyncio.sleep(AGAIN_S)

    async def _declare(self, client: Client, queue: str) -> None:
        asked_at = self._loop().time()
        info = await declare(client, queue, {"flush": self._flush, **_ARGUMENTS[queue]})
        self._history.used.append(Used(queue, info.log_id, info.queue_id, asked_at, self._loop().time()))
        await client.admin.topology.bind(HALL, queue)

    async def _stay(self, client: Client) -> None:
        """One visit to `party`."""
        await self._declare(client, PARTY)
        subscription = client.subscribe(PARTY, prefetch=5)
        await subscription.start()
        self._history.stays += 1
        end = self._loop().time() + self._random.choice((0.2, 1.0, 3.0))
        try:
            while not self.stopping and self._loop().time() < end:
                await subscription.receive(timeout_ms=100)
        finally:
            await subscription.close()
        await asyncio.sleep(self._random.choice((0.0, 0.5, 2.5)))

    async def _touch(self, client: Client) -> None:
        """`brittle` is used; rarely too late."""
        await self._declare(client, BRITTLE)
        await asyncio.sleep(self._random.choice((0.3, 0.3, 0.9, 1.3, 2.8)))


class Farewell:
    """A program: looks whether both are gone, at every node, with all that led to them. `waits_for`: what is there."""

    def __init__(self, servers: Sequence[str]) -> None:
        self.done = False
        self.waits_for = "nobody has answered"
        self._servers = servers

    async def __call__(self, machine: Machine) -> None:
        while not self.done:
            await asyncio.sleep(AGAIN_S)
            try:
                self.waits_for = "; ".join([found async for found in self._left()])
            except MirrorlogError as error:
                self.waits_for = f"{type(error).__name__}: {error}"
            self.done = not self.waits_for

    async def _left(self) -> Any:
        for server in self._servers:
            async with Client(server, role="tool", request_timeout_ms=2_000) as client:
                for queue in await client.admin.queues():
                    if queue.name in _ARGUMENTS:
                        yield f"{server} lists {queue.name} {queue.queue_id}"
                for binding in (await client.admin.topology.routing()).bindings:
                    if binding.source == HALL:
                        yield f"{server} knows {binding}"


_Any = Callable[..., Any]


@contextmanager
def watched(history: LifetimeHistory) -> Iterator[None]:
    """Whoever comes and goes, and what ends, is noted meanwhile."""
    with (
        patch.object(Subscribing, "subscribe", _subscribe(history, Subscribing.subscribe)),
        patch.object(Subscribing, "unsubscribe", _leave(history, Subscribing.unsubscribe)),
        patch.object(Subscribing, "end", _leave(history, Subscribing.end)),
        patch.object(Deliverer, "end_queue", _end_queue(history, Deliverer.end_queue)),
        patch.object(LifetimeKeeper, "_end_soon", _end_soon(history, LifetimeKeeper._end_soon)),
    ):
        yield


def _subscribe(history: LifetimeHistory, original: _Any) -> _Any:
    def subscribe(self: Subscribing, message: Any, queue_id: int, receiver: Any) -> Any:
        answer = original(self, message, queue_id, receiver)
        history.enter(self, answer.subscription, queue_id, message.group)
        return answer

    return subscribe


def _leave(history: LifetimeHistory, original: _Any) -> _Any:
    def leave(self: Subscribing, number: int, *args: Any) -> None:
        original(self, number, *args)
        history.leave(self, number)

    return leave


def _end_queue(history: LifetimeHistory, original: _Any) -> _Any:
    def end_queue(self: Deliverer, queue_id: int, error: MirrorlogError) -> None:
        original(self, queue_id, error)
        history.end_queue(self.subscribing, queue_id)

    return end_queue


def _end_soon(history: LifetimeHistory, original: _Any) -> _Any:
    def end_soon(self: LifetimeKeeper, log: HostedLog, names: Iterable[str], *, over: bool = False) -> None:
        names = list(names)
        history.end(log, names)
        original(self, log, names, over=over)

    return end_soon
