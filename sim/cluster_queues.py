"""Queues of other sorts in a simulated cluster: who fills them, and who meddles with them while others take.

`work` keeps records until they are settled, and its begin follows; of `single` one subscriber at a time is given
records; `lone` is taken from by subscribers who want it for themselves; `wild` is purged, its groups are reset and
deleted, and it is deleted as a whole and made anew; `keyed` is shared by key. They have feeders of their own: no
consumer reads them, and the checks of records that stay are not about them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Final, NamedTuple

from mirrorlog.client import Client
from mirrorlog.client.producer.producer import Delivery, Producer
from mirrorlog.errors import MirrorlogError, NoSuchQueue, OutcomeUnknown, Overloaded
from sim.cluster_clients import Sent, declare, insist
from sim.cluster_consumers import Taking
from sim.cluster_dead_letters import APART, LETTER_ARGUMENTS, MORGUE, REDRIVEN_MAX, TARGETS, lead
from sim.cluster_sorts import ARGUMENTS, DELIVERY_MS, FILLED, asked
from sim.machines import Machine

QUEUES: Final = ("work", "single", "lone", "wild")
ALONE: Final = frozenset({"single", "lone"})
"""Of which one at a time has records."""
WILD: Final = "wild"
KEYED: Final = "keyed"
_KEYS: Final = 3
_IN_A_ROW: Final = 4
REDRIVE: Final = "redrive"
"""What else may be done: to the queue of those that died."""
_NOT_FED: Final = FILLED | set(TARGETS)
_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "work": {"retention": "work"},
    "single": {"x-single-active-consumer": True},
}
_BACK: Final = -20
_PADDINGS: Final = (10, 1000, 8000)
_DELIVERY_MS: Final = 10_000


@dataclass(slots=True)
class Meddled:
    """Something that was done to `wild`. `asked_at`, `done_at`: s of the run; it may take effect in between, and for
    ever (inf) when nobody knows what became of it."""

    what: str
    asked_at: float
    done_at: float = inf


@dataclass(slots=True)
class QueueHistory:
    """`sent`: with its value and the id of its queue, in order; `names`: of each queue id that a declaration has told;
    `log_ids`: by name; `begin`: as far as that of `work` was seen to move."""

    sent: list[tuple[Sent, bytes, int]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    log_ids: dict[str, str] = field(default_factory=dict)
    meddled: list[Meddled] = field(default_factory=list)
    begin: int = 0
    errors: dict[str, str] = field(default_factory=dict)

    def meddled_since(self, queue: str, at: float) -> bool:
        """Whether anything was done to that queue that may have taken effect at that time or later."""
        return queue == WILD and any(each.done_at >= at for each in self.meddled)


class _Feeding(NamedTuple):
    """Every `pause_s` a burst of `burst` records."""

    queue: str
    pause_s: float
    burst: int
    padding: bytes


class Feeders:
    """A program: makes the queues, and again those that are gone, and sends into them until `stopping`."""

    def __init__(
        self,
        servers: Sequence[str],
        queues: Sequence[str],
        flush: tuple[str, str],
        history: QueueHistory,
        *,
        seed: str,
        made: Callable[[str, int], None],
    ) -> None:
        """`flush`: of all, and of the one that is apart; `made`: is told of each queue: its name and id."""
        self.stopping = False
        self.done = False
        self.ready = False
        self._servers = servers
        self._queues = queues
        self._flush = flush
        self._history = history
        self._random = Random(f"{seed} feeders")
        self._made = made
        self._ids: dict[str, int] = {}

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers, request_timeout_ms=5_000).connect())
        for queue in self._queues:
            await self._declare(client, queue)
        if set(TARGETS) <= set(self._queues):
            await lead(client)
        self.ready = True
        await asyncio.gather(*(self._feed(client, queue) for queue in self._queues if queue not in _NOT_FED))
        self.done = True

    async def _declare(self, client: Client, queue: str) -> None:
        given = _ARGUMENTS.get(queue) or ARGUMENTS.get(queue) or LETTER_ARGUMENTS.get(queue) or {}
        arguments = {"flush": self._flush[queue == APART], **given}
        info = await insist(lambda: declare(client, queue, arguments))
        self._history.names[info.queue_id] = queue
        self._history.log_ids[queue], self._ids[queue] = info.log_id, info.queue_id
        self._made(queue, info.queue_id)
        if queue == "work":
            self._history.begin = max(self._history.begin, info.begin)

    async def _feed(self, client: Client, queue: str) -> None:
        random = self._random
        what = _Feeding(queue, random.choice((0.1, 0.2)), random.choice((1, 1, 3)), b"." * random.choice(_PADDINGS))
        number = 0
        while not self.stopping:
            await self._declare(client, queue)  # another one, if it was deleted
            delivery_timeout_ms = DELIVERY_MS.get(queue, _DELIVERY_MS)
            producer = client.producer(queue, confirm="all", delivery_timeout_ms=delivery_timeout_ms)
            with suppress(MirrorlogError):
                await producer.start()
                number = await self._send(producer, what, number)
            with suppress(MirrorlogError):
                await producer.close()
        await self._declare(client, queue)

    async def _send(self, producer: Producer, what: _Feeding, number: int) -> int:
        """Until the queue is gone, or it is time to stop; the number of the next record."""
        waits: list[asyncio.Future[bool]] = []
        while not self.stopping and not any(each.done() and not each.result() for each in waits):
            with suppress(Overloaded):
                for _ in range(what.burst):
                    waits.append(asyncio.ensure_future(self._end(*self._hand_over(producer, what, number))))
                    number += 1
            await asyncio.sleep(what.pause_s)
        with suppress(MirrorlogError):
            await producer.flush()
        await asyncio.gather(*waits)
        return number

    def _hand_over(self, producer: Producer, what: _Feeding, number: int) -> tuple[Sent, Delivery]:
        queue = what.queue
        value = b"feeder-%s %d " % (queue.encode(), number) + what.padding
        key = key_of(number) if queue == KEYED else None
        delivery = producer.send_nowait(value, key=key, **asked(queue, self._random))
        sent = Sent(f"feeder-{queue}", queue, number, "all", asyncio.get_running_loop().time())
        self._history.sent.append((sent, value, self._ids[queue]))
        return sent, delivery

    async def _end(self, sent: Sent, delivery: Delivery) -> bool:
        """Whether the queue is still there, as far as that tells."""
        try:
            sent.receipt = await delivery
            sent.outcome = "confirmed"
        except OutcomeUnknown as error:
            sent.outcome, sent.reason = "unknown", error.code
        except MirrorlogError as error:
            sent.outcome, sent.reason = "refused", error.code
            self._history.errors[sent.producer] = f"{type(error).__name__}: {error}"
            return not isinstance(error, NoSuchQueue)
        return True


class Meddler:
    """A program: does to `wild`, or with what has died, what it is told, one after the other."""

    def __init__(self, servers: Sequence[str], history: QueueHistory) -> None:
        self._servers = servers
        self._history = history
        self._wishes: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        self._busy = False

    def ask(self, what: str, group: str) -> None:
        """`what`: one of `cluster_plan.WISHES`, or `REDRIVE`."""
        self._wishes.put_nowait((what, group))

    @property
    def idle(self) -> bool:
        return self._wishes.empty() and not self._busy

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers, request_timeout_ms=5_000).connect())
        while True:
            what, group = await self._wishes.get()
            self._busy = True
            await self._meddle(client, what, group)
            self._busy = False

    async def _meddle(self, client: Client, what: str, group: str) -> None:
        loop = asyncio.get_running_loop()
        meddled = Meddled(f"{what} {group!r}", loop.time())
        self._history.meddled.append(meddled)
        try:
            await _act(client, what, group)
        except OutcomeUnknown:
            return
        except MirrorlogError as error:
            self._history.errors[what] = f"{type(error).__name__}: {error}"
        meddled.done_at = loop.time()


def _act(client: Client, what: str, group: str) -> Awaitable[Any]:
    admin = client.admin
    match what:
        case "reset to earliest" | "reset to latest":
            return admin.reset_groups(WILD, [group], to=what.removeprefix("reset to "), force=True)
        case "reset back":
            return admin.reset_groups(WILD, [group], shift=_BACK, force=True)
        case "purge":
            return admin.purge(WILD, group)
        case "redrive":
            return admin.redrive(MORGUE, records_max=REDRIVEN_MAX)
        case "delete group":
            return admin.delete_group(WILD, group or "g")
        case _:
            return admin.delete_queue(WILD, force=True)


def queues_of(seed: str) -> list[str]:
    """Two of them, now and then the one that is shared by key in place of the second: a schedule with all of them takes
    long."""
    random = Random(f"{seed} queues")
    two = [WILD, random.choice(QUEUES[:3])] if random.random() < 0.6 else random.sample(QUEUES[:3], 2)
    return [two[0], KEYED] if Random(f"{seed} keyed").random() < 0.2 else two


def key_of(number: int) -> bytes:
    """Of a record of `keyed`: several in a row have one."""
    return b"key %d" % (number // _IN_A_ROW % _KEYS)


def takings_of(seed: str, queues: Sequence[str]) -> list[Taking]:
    """Who takes from these."""
    random = Random(f"{seed} takings of queues")

    def prefetch() -> int:
        return random.choice((1, 5, 50))

    every = [
        Taking("w0", "work", "", "push", prefetch()),
        Taking("w1", "work", "", "push", prefetch()),
        Taking("w2", "work", "g", "lease", random.choice((1, 10, 100)), lease_ms=random.choice((200, 1_000))),
        Taking("s0", "single", "", "push", prefetch(), obedient=True, alone=True),
        Taking("s1", "single", "", "push", prefetch(), obedient=True, alone=True, priority=random.choice((0, 1))),
        Taking("e0", "lone", "", "push", prefetch(), obedient=True, alone=True, exclusive=True),
        Taking("e1", "lone", "", "push", prefetch(), obedient=True, alone=True, exclusive=True),
        Taking("x0", "wild", "", "push", prefetch()),
        Taking("x1", "wild", "", "push", prefetch()),
        Taking("x2", "wild", "g", "lease", random.choice((1, 10, 100)), lease_ms=random.choice((200, 1_000))),
        Taking("x3", "wild", "g", "push", prefetch()),
        Taking("y0", KEYED, "", "push", prefetch(), ordered_by="key"),
        Taking("y1", KEYED, "", "push", prefetch(), ordered_by="key", late=0.2),
        Taking("y2", KEYED, "", "lease", 5, lease_ms=random.choice((200, 1_000)), ordered_by="key"),
    ]
    return [each for each in every if each.queue in queues]
