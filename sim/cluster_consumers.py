"""Programs that take records of acking groups from a simulated cluster through the public client, and what they noted.

Several takers share a group: subscriptions, pushed, and leases, asked for. They acknowledge most of what they get, give
some back at once or after a delay, as seen or as not seen, let some leases run out, extend others; some hold up to
their prefetch before they settle anything. A program that is killed is started again and knows nothing of before.
When the storm is over everybody settles for good what comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Protocol, cast

from mirrorlog.client import Client
from mirrorlog.client.subscription.delivered import Settleable
from mirrorlog.client.subscription.leases import Leased
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.transaction.transaction import Transaction
from mirrorlog.errors import MirrorlogError, NotGranted, OutcomeUnknown, SettledOtherwise
from sim.cluster_clients import AGAIN_S, insist
from sim.machines import Machine

SETTLE_TIMEOUT_MS: Final = 5_000
OPEN_MAX_S: Final = 45.0
"""More than the timeouts of everything that a taker waits for."""
_HELD_MAX: Final = 20
_DELAYS_MS: Final = (0, 30, 300)
_IDLE_MS: Final = 100
_LATE_S: Final = 1.5

INVOICES: Final = "invoices"
AUDIT: Final = "audit"
"""What transactions send to."""

TORN: Final = "torn"
"""The group whose takers are not of one mind."""

GroupKey = tuple[str, str]
"""Queue and group."""


@dataclass(slots=True)
class Taken:
    """A record as a taker got it, and what it did. `at`, `asked_at`, `answered_at`: s of the run, inf for not yet;
    `how`: ack, nack, reject or release; `outcome`: confirmed, refused, unknown or none yet. Of a lease also
    `lease_ms`, and `lease_from`: since when it runs at the latest it was asked for. `stands`: what it was told that the
    record is settled as, when that is something else."""

    taker: str
    queue: str
    group: str
    queue_offset: int
    value: bytes | None = field(repr=False)
    redelivered: bool
    attempts: int
    at: float
    how: str = ""
    level: str = "all"
    asked_at: float = float("inf")
    answered_at: float = float("inf")
    outcome: str = ""
    lease_ms: int = 0
    lease_from: float = 0.0
    receipt: str = ""
    stands: str = ""


@dataclass(frozen=True, slots=True)
class Taking:
    """A taker of a group. `way`: push, auto (acknowledged as it is sent), tx (by transactions) or lease; `obedient`:
    acknowledges everything, in order, one by one; `alone`: nobody else has records of the group at the same time;
    `level`: of its settlements; `exclusive`, `priority`: of its subscriptions; `rejects`: how much of what it gets,
    from 0 to 1, also in peace; `late`: how much of it it settles up to 1.5 s later, whoever has it by then;
    `ordered_by`: as of subscriptions and leases."""

    name: str
    queue: str
    group: str
    way: str
    prefetch: int
    level: str = "all"
    obedient: bool = False
    alone: bool = False
    lease_ms: int = 1_000
    exclusive: bool = False
    priority: int = 0
    rejects: float = 0.0
    late: float = 0.0
    ordered_by: str | None = None


@dataclass(slots=True)
class Transacted:
    """A transaction: the records of `orders` that it acknowledged, and of which it sent word, one part for each and one
    for itself. `outcome`: as of `Taken`."""

    name: str
    orders: list[int]
    at: float
    outcome: str = ""

    @property
    def parts(self) -> int:
        return len(self.orders) + 1


@dataclass(slots=True)
class GroupHistory:
    """What takers noted. `refused`: each settlement that was, as it was then; it may have been tried again. `waits`:
    what is waited for now, by number: what, and since when; `waited_s`: the longest that anything was waited for, and
    what; `errors`: the last ones that takers met."""

    taken: list[Taken] = field(default_factory=list)
    refused: list[Taken] = field(default_factory=list)
    waits: dict[int, tuple[str, float]] = field(default_factory=dict)
    waited_s: tuple[float, str] = (0.0, "")
    errors: dict[str, str] = field(default_factory=dict)
    transactions: list[Transacted] = field(default_factory=list)
    _number: int = 0

    def forget(self, program: str) -> None:
        """That program waits for nothing any more: it was killed."""
        self.waits = {number: wait for number, wait in self.waits.items() if not wait[0].startswith(f"{program}:")}

    async def wait(self, what: str, work: Awaitable[object]) -> None:
        """For something that must end, within `OPEN_MAX_S`."""
        self._number += 1
        number, since = self._number, asyncio.get_running_loop().time()
        self.waits[number] = what, since
        try:
            await work
        finally:
            self.waits.pop(number, None)
            self.waited_s = max(self.waited_s, (asyncio.get_running_loop().time() - since, what))


class _Settles(Protocol):
    async def ack(self) -> None: ...
    async def nack(self, requeue: bool = True, *, delay_ms: int = 0) -> None: ...
    async def reject(self) -> None: ...
    async def release(self, *, delay_ms: int = 0) -> None: ...


_Held = list[tuple[Taken, _Settles]]


class Subscribers:
    """The programs of one machine. `peace`: everything is acknowledged from now on; `stopping`: it comes to its end;
    `done`: it has."""

    def __init__(
        self, name: str, servers: Sequence[str], takings: Sequence[Taking], history: GroupHistory, *, seed: str
    ) -> None:
        self.name = name
        self.history = history
        self.peace = False
        self.stopping = False
        self.done = False
        self._servers = servers
        self._takings = takings
        self._seed = seed
        self._run = 0

    async def __call__(self, machine: Machine) -> None:
        self._run = machine.runs
        self.history.forget(self.name)  # what a run that was killed waited for
        client = await insist(lambda: Client(*self._servers, request_timeout_ms=5_000).connect())
        await asyncio.gather(*(self._take(client, each) for each in self._takings))
        await self.history.wait(f"{self.name}: close", client.close())
        self.done = True

    async def _take(self, client: Client, what: Taking) -> None:
        taker = _Consumer(self, client, what, Random(f"{self._seed} {what.name} {self._run}"))
        turn = taker.lease if what.way == "lease" else taker.subscribed
        while not self.stopping:
            try:
                await turn()
            except MirrorlogError as error:
                self.history.errors[what.name] = f"{type(error).__name__}: {error}"
                await asyncio.sleep(AGAIN_S)
        await asyncio.gather(*taker.tasks)


class _Consumer:
    """One taker in one run of its program."""

    def __init__(self, program: Subscribers, client: Client, what: Taking, random: Random) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self._program = program
        self._history = program.history
        self._client = client
        self._what = what
        self._random = random
        self._loop = asyncio.get_running_loop()
        # Whose settlement was refused, and may be tried again.
        self._left: _Held = []

    # --- pushed ---

    async def subscribed(self) -> None:
        """One subscription, until it ends or the program stops."""
        what = self._what
        subscription = self._client.subscribe(
            what.queue,
            what.group,
            prefetch=what.prefetch,
            auto_ack=what.way == "auto",
            exclusive=what.exclusive,
            priority=what.priority,
            ordered_by=what.ordered_by,
            confirm=what.level,
            settle_timeout_ms=SETTLE_TIMEOUT_MS,
        )
        await self._wait("subscribe", subscription.start())
        try:
            await self._follow(subscription)
        finally:
            with suppress(MirrorlogError):
                await self._wait("close", subscription.close())

    async def _follow(self, subscription: Subscription) -> None:
        held: _Held = []
        self._left = []
        for_s = 60.0 if self._what.obedient else self._random.choice((0.5, 2.0, 60.0))
        end = self._loop.time() + for_s
        while not self._program.stopping and (self._program.peace or self._loop.time() < end):
            if self._program.peace:  # they are in hand as before
                held, self._left = [*held, *self._left], []
            for delivery in await subscription.receive(timeout_ms=_IDLE_MS):
                taken = self._note(delivery.offset, delivery.value, delivery.redelivered, delivery.attempts)
                if self._what.way != "auto":
                    held.append((taken, delivery))
            if len(held) < self._hold_up_to():
                if held:
                    await asyncio.sleep(AGAIN_S)
                    held = await self._settle_all(held)
                continue
            held = await self._settle_all(held)
        # What was being settled goes on; what is left in hand goes back as the subscription closes.
        await asyncio.gather(*self.tasks)

    def _hold_up_to(self) -> int:
        return 1 if self._program.peace or self._what.obedient else self._random.choice((1, 1, 5, _HELD_MAX))

    async def _settle_all(self, held: _Held) -> _Held:
        """In any order, unless it is to be in order."""
        if not self._what.obedient:
            self._random.shuffle(held)
        if self._what.way == "tx":
            self._start(self._transact(held))
        else:
            for taken, delivery in held:
                self._start(self._settle(taken, delivery))
        if self._what.prefetch == 1 or self._random.random() < 0.3:
            await asyncio.gather(*self.tasks)
        return []

    # --- leased ---

    async def lease(self) -> None:
        """One lease."""
        what, asked_at = self._what, self._loop.time()
        found = []

        async def ask() -> None:
            found.extend(
                await self._client.lease(
                    what.queue,
                    what.group,
                    max_records=what.prefetch,
                    lease_ms=what.lease_ms,
                    wait_ms=_IDLE_MS * 3,
                    ordered_by=what.ordered_by,
                )
            )

        await self._wait("lease", ask())
        for leased in found:
            taken = self._note(leased.offset, leased.value, leased.redelivered, leased.attempts)
            taken.lease_ms, taken.lease_from, taken.receipt = what.lease_ms, asked_at, leased.receipt
            chance = 1.0 if self._program.peace else self._random.random()
            if chance > 0.25:
                self._start(self._settle(taken, leased))
            elif chance > 0.15:
                self._start(self._extend_and_settle(taken, leased))
            # Else it is forgotten.
        if self._random.random() < 0.5:
            await asyncio.gather(*self.tasks)

    async def _extend_and_settle(self, taken: Taken, leased: Leased) -> None:
        asked_at = self._loop.time()
        try:
            await self._wait("extend", leased.extend(taken.lease_ms))
            taken.lease_from = asked_at
        except MirrorlogError as error:
            self._history.errors[f"{self._what.name} extend"] = f"{type(error).__name__}: {error}"
        await self._settle(taken, leased)

    # --- settling ---

    def _how(self) -> str:
        if self._what.rejects and self._random.random() < self._what.rejects:
            return "reject"
        if self._program.peace or self._what.obedient:
            return "ack"
        return self._random.choice(("ack",) * 14 + ("nack",) * 3 + ("release", "reject"))

    async def _settle(self, taken: Taken, delivery: _Settles) -> None:
        if not (self._program.peace or self._what.obedient) and self._random.random() < 0.2:
            await asyncio.sleep(self._random.random() * 0.5)
        if self._what.late and not self._program.peace and self._random.random() < self._what.late:
            await asyncio.sleep(self._random.random() * _LATE_S)
        how, delay_ms = self._how(), self._random.choice(_DELAYS_MS)
        taken.how, taken.level, taken.asked_at = how, self._what.level, self._loop.time()
        if taken.lease_ms:
            taken.level = "all"
        work: Callable[[], Awaitable[None]] = {
            "ack": delivery.ack,
            "nack": lambda: delivery.nack(delay_ms=delay_ms),
            "reject": delivery.reject,
            "release": delivery.release,
        }[how]
        if await self._refused(taken, work) and not taken.lease_ms:
            self._left.append((taken, delivery))
        taken.answered_at = self._loop.time()

    async def _refused(self, taken: Taken, work: Callable[[], Awaitable[None]]) -> bool:
        """Whether it may be tried again."""
        try:
            await self._wait(taken.how, work())
            taken.outcome = "confirmed"
        except OutcomeUnknown:
            taken.outcome = "unknown"
        except MirrorlogError as error:
            taken.outcome = "refused"
            if isinstance(error, SettledOtherwise):
                taken.stands = str(error.details["stands"])
            self._history.refused.append(replace(taken, answered_at=self._loop.time()))
            self._history.errors[f"{self._what.name} {taken.how}"] = f"{type(error).__name__}: {error}"
            return not isinstance(error, NotGranted)
        return False

    # --- transactions ---

    async def _transact(self, held: _Held) -> None:
        """All of it by one; now and then another one was given up before."""
        loop, history = self._loop, self._history
        if not self._program.peace and self._random.random() < 0.2:
            await asyncio.sleep(self._random.random() * 0.3)
            await (await self._transaction(held, "")).rollback()
        name = f"{self._what.name}.{self._program._run}.{len(history.transactions)}"
        done = Transacted(name, [taken.queue_offset for taken, _ in held], loop.time())
        history.transactions.append(done)
        for taken, _ in held:
            taken.how, taken.asked_at = "ack", loop.time()
        try:
            await self._wait("commit", (await self._transaction(held, name)).commit())
            done.outcome = "confirmed"
        except OutcomeUnknown:
            done.outcome = "unknown"
        except MirrorlogError as error:
            done.outcome = "refused"
            history.errors[f"{self._what.name} commit"] = f"{type(error).__name__}: {error}"
        for taken, _ in held:
            taken.outcome, taken.answered_at = done.outcome, loop.time()
        await self._give_back(held, done.outcome)

    async def _transaction(self, held: _Held, name: str) -> Transaction:
        transaction = self._client.transaction(timeout_ms=SETTLE_TIMEOUT_MS)
        parts = len(held) + 1
        for part, (taken, delivery) in enumerate(held):
            told = f"{name} {part} of {parts} for {taken.queue_offset} ".encode()
            transaction.send(INVOICES, told + b"." * 100)
            transaction.ack(cast(Settleable, delivery))
        transaction.send(AUDIT, f"{name} {parts - 1} of {parts} for all".encode())
        return transaction

    async def _give_back(self, held: _Held, outcome: str) -> None:
        """What a commit did not settle is in hand as before. Of one of unknown outcome it may be, and then somebody
        has seen it."""
        for taken, delivery in held if outcome != "confirmed" else ():
            if outcome == "refused":
                taken.how = "release"
            with suppress(MirrorlogError):
                await self._wait("give back", delivery.release() if outcome == "refused" else delivery.nack())

    # --- words ---

    def _start(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _wait(self, what: str, work: Awaitable[object]) -> None:
        await self._history.wait(f"{self._program.name}: {what} of {self._what.name}", work)

    def _note(self, queue_offset: int, value: bytes | None, redelivered: bool, attempts: int) -> Taken:
        taken = Taken(
            taker=f"{self._what.name}#{self._program._run}",
            queue=self._what.queue,
            group=self._what.group,
            queue_offset=queue_offset,
            value=value,
            redelivered=redelivered,
            attempts=attempts,
            at=self._loop.time(),
        )
        self._history.taken.append(taken)
        return taken


class GroupWatcher:
    """A program: asks the masters of queues how their groups stand, until nothing in any of them is to be settled.
    `waits_for`: what is still open."""

    def __init__(self, servers: Sequence[str], groups: Sequence[GroupKey]) -> None:
        self.done = False
        self.waits_for = "nobody has answered"
        self._servers = servers
        self._groups = groups

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers, role="tool").connect())
        while not self.done:
            await asyncio.sleep(AGAIN_S)
            try:
                self.waits_for = await self._open_point(client)
            except MirrorlogError as error:
                self.waits_for = f"{type(error).__name__}: {error}"
            self.done = not self.waits_for

    async def _open_point(self, client: Client) -> str:
        for queue in sorted({queue for queue, _ in self._groups}):
            found = await client.admin.groups(queue)
            known = {each.group: each for each in found.groups}
            for group in (group for name, group in self._groups if name == queue):
                if group not in known:
                    return f"group {group!r} of {queue} is not there"
                if known[group].floor < found.next:
                    return f"{queue}, which goes to {found.next}, has {known[group]}"
        return ""


def takings(seed: str, queues: Sequence[str]) -> list[Taking]:
    """Who takes from what: in the first queue its own group, of which two take, and one whose only taker keeps the
    order; in the last one a group that is leased from and subscribed to, one that is only leased from, and one that
    acknowledges as it is sent; and in the first one a group of two who reject half of it, and say so late."""
    random = Random(f"{seed} takings")
    first, last = queues[0], queues[-1]

    def prefetch() -> int:
        return random.choice((1, 5, 50, 1_000))

    def level() -> str:
        return random.choice(("all", "all", "all", "master"))

    return [
        Taking("t0", first, "", "push", prefetch(), level()),
        Taking("t1", first, "", "push", prefetch(), level()),
        Taking("t2", first, "ordered", "push", prefetch(), "all", obedient=True, alone=True),
        Taking("t3", last, "mixed", "push", prefetch(), "all"),
        Taking("t4", last, "mixed", "lease", random.choice((1, 10, 100)), lease_ms=random.choice((200, 1_000, 3_000))),
        Taking("t5", last, "leased", "lease", random.choice((10, 100)), lease_ms=random.choice((200, 1_000, 3_000))),
        Taking("t6", last, "auto", "auto", 0),
        Taking("t7", first, TORN, "push", 20, rejects=0.5, late=0.5),
        Taking("t8", first, TORN, "push", 20, rejects=0.5, late=0.5),
    ]
