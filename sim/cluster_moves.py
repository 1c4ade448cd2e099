"""Queues of a simulated cluster that move between its logs while they are used: who alters them, and where they were.

Where a queue is, and which of its records are in which log, is noted as it is decided, by whichever node applies that
first: clients hear of it late, and the cluster forgets spans that have ended.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, NamedTuple
from unittest.mock import patch

from mirrorlog.client import Client
from mirrorlog.cluster.state import machine as rules
from mirrorlog.cluster.state.commands import Command, MoveBegun, MoveCancelled, QueuesMoved, RecordsCopied
from mirrorlog.cluster.state.state import ClusterState, Outcome
from mirrorlog.errors import MirrorlogError, OutcomeUnknown
from sim.cluster_clients import insist
from sim.cluster_plan import Plan
from sim.cluster_sorts import TRANSACTED
from sim.machines import Machine

ALTER_MS: Final = 5_000
PLACES: Final = ("memory", "disk", "disk apart", "memory apart")
"""Where a queue may be: in one of the logs that the cluster has, or in one that is made for those who ask for it."""
POLICIES: Final = ("none", "apart", "all", "exactly", "all by hand", "exactly apart")
"""What may be said of a queue, or of all. None of it lets a confirm stand for fewer copies than the plan does."""

EVERY: Final = "every queue"
"""Of which a policy is, in the place of one."""


class Home(NamedTuple):
    """Since when, in s of the run, a queue is in that log; no log: it is no more."""

    since: float
    log_id: str


class Spanned(NamedTuple):
    """From queue offset `first` on a queue's records are in that log."""

    log_id: str
    first: int


@dataclass(slots=True)
class Places:
    """`homes`, `spans`: by the queue's name, in order, all that there ever were since it was made; `torn`: where queues
    of one log group were not together; `lost_at`: of logs that are no more, when epochs were opened by which they lost
    something; `copied`: queues of which records were copied from one log to another. `opened_at`: by log's name and
    epoch; `forget`: called with the name of a log that is no more."""

    now: Callable[[], float]
    opened_at: Mapping[tuple[str, int], float]
    forget: Callable[[str], None]
    homes: dict[str, list[Home]] = field(default_factory=lambda: defaultdict(list))
    spans: dict[str, list[Spanned]] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)
    lost_at: dict[str, list[float]] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    _index: int = 0

    def applied(self, index: int, command: Command, before: ClusterState, after: ClusterState) -> None:
        """An entry was, by some node, maybe not for the first time."""
        if index <= self._index:
            return
        self._index = index
        if before.queues is not after.queues:
            self._note_homes(before, after)
        for log_id in before.logs.keys() - after.logs.keys():
            name = before.logs[log_id].name
            self.lost_at[log_id] = [self.opened_at.get((name, each.epoch), inf) for each in before.logs[log_id].losses]
            self.forget(name)
            self.counts["moves: a log is no more"] += 1
        if isinstance(command, MoveBegun) and before.placing.moves != after.placing.moves:
            self.counts["moves: begun"] += 1
        elif isinstance(command, MoveCancelled) and before is not after:
            self.counts["moves: cancelled"] += 1
        elif isinstance(command, QueuesMoved) and before is not after:
            self.counts["moves: come about"] += 1
            self._note_spans(command, before, after)
        elif isinstance(command, RecordsCopied) and before is not after:
            self.counts["syncs: records copied"] += 1
            self.copied.add(command.name)
            spans = after.placing.spans[command.name]
            self.counts["syncs: come about"] += command.name in before.placing.syncs and all(
                span.ended for span in spans[:-1]
            )

    def _note_homes(self, before: ClusterState, after: ClusterState) -> None:
        now = self.now()
        for name in before.queues.keys() | after.queues.keys():
            log_id = after.queues.get(name, "")
            if before.queues.get(name, "") != log_id:
                self.homes[name].append(Home(now, log_id))
                if not log_id:
                    self.spans.pop(name, None)
        shop = {after.queues[name] for name in TRANSACTED if name in after.queues}
        if len(shop) > 1:
            self.torn.append(f"{now:.3f}: queues of one log group are in {', '.join(sorted(shop))}")

    def _note_spans(self, command: QueuesMoved, before: ClusterState, after: ClusterState) -> None:
        for name, first in command.first.items():
            spans = self.spans.setdefault(name, [Spanned(before.queues[name], 0)])
            spans.append(Spanned(after.queues[name], first))

    def log_at(self, name: str, queue_offset: int) -> str:
        """The log of the record there; empty for a queue that has not moved."""
        spans = self.spans.get(name, ())
        return next((each.log_id for each in reversed(spans) if each.first <= queue_offset), "")

    def logs_of(self, name: str) -> list[str]:
        """All that it was in, under that name."""
        return list(dict.fromkeys(each.log_id for each in self.homes.get(name, ()) if each.log_id))

    def home_at(self, name: str, at: float) -> tuple[int, str]:
        """How often the queue had moved by then, and its log."""
        homes = self.homes.get(name, ())
        number = bisect_right(homes, at, key=lambda each: each.since) - 1
        return (number, homes[number].log_id) if number >= 0 else (-1, "")

    def times_in(self, name: str, log_id: str, at: float) -> int:
        """By how many moves the queue had come to that log when it was there last, up to then; -1: never."""
        homes = self.homes.get(name, ())
        known = [number for number, each in enumerate(homes) if each.log_id == log_id and each.since <= at]
        return max(known, default=-1)


@contextmanager
def placed(places: Places) -> Iterator[None]:
    """Every decision is noted meanwhile."""
    original = rules.applied

    def applied(state: ClusterState, index: int, command: Command) -> tuple[ClusterState, Outcome]:
        after, outcome = original(state, index, command)
        places.applied(index, command, state, after)
        return after, outcome

    with patch.object(rules, "applied", applied):
        yield


def arguments_of(where: str, plan: Plan) -> dict[str, Any]:
    """What a queue is altered to for one of `PLACES`."""
    flush, _, apart = where.partition(" ")
    return {"flush": flush, "min_in_sync": plan.copies if apart else plan.min_in_sync or None}


def definition_of(which: str, plan: Plan) -> dict[str, Any]:
    """What a policy says for one of `POLICIES`."""
    said: dict[str, dict[str, Any]] = {
        "all": {"ha-mode": "all"},
        "exactly": {"ha-mode": "exactly", "ha-params": plan.copies},
        "by hand": {"ha-sync-mode": "manual"},
        "apart": {"min-in-sync": plan.copies},
    }
    return {key: value for words, keys in said.items() if words in which for key, value in keys.items()}


@dataclass(slots=True)
class Altered:
    """A queue was altered; `by`: or a policy was set, or cleared. `outcome`: confirmed, refused, unknown or none yet.
    `syncs`: what it leaves behind is to be copied, two times of three."""

    queue: str
    where: str
    asked_at: float
    syncs: bool = False
    by: str = "alter"
    outcome: str = ""
    reason: str = ""


class Mover:
    """A program: alters queues, and says what holds for them, as it is told, all at once. `queues`: those that there
    are by now."""

    def __init__(self, servers: Sequence[str], plan: Plan, queues: Callable[[], Sequence[str]]) -> None:
        self.altered: list[Altered] = []
        self._servers = servers
        self._plan = plan
        self._queues = queues
        self._wishes: asyncio.Queue[Callable[[], Altered]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: Counter[str] = Counter()

    def ask(self, number: int, steps: int) -> None:
        """One of its queues, and by how many of `PLACES` it is to go on."""
        self._wishes.put_nowait(lambda: self._next_place(number, steps))

    def govern(self, number: int, which: int) -> None:
        """What a policy of one of its queues says from now on, or that of all; one of `POLICIES`."""
        self._wishes.put_nowait(lambda: self._next_policy(number, which))

    @property
    def idle(self) -> bool:
        return self._wishes.empty() and all(each.outcome for each in self.altered)

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers, request_timeout_ms=ALTER_MS).connect())
        while True:
            altered = (await self._wishes.get())()
            self.altered.append(altered)
            task = asyncio.ensure_future(self._alter(client, altered))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _next_place(self, number: int, steps: int) -> Altered:
        queues = self._queues()
        queue = queues[number % len(queues)]
        self._asked[queue] += steps
        where = PLACES[self._asked[queue] % len(PLACES)]
        syncs = (number + self._asked[queue]) % 3 > 0
        return Altered(queue, where, asyncio.get_running_loop().time(), syncs=syncs)

    def _next_policy(self, number: int, which: int) -> Altered:
        queues = [EVERY, *self._queues()]
        queue = queues[number % len(queues)]
        where = POLICIES[which % len(POLICIES)]
        return Altered(queue, where, asyncio.get_running_loop().time(), by="policy")

    async def _alter(self, client: Client, altered: Altered) -> None:
        queue, topology = altered.queue, client.admin.topology
        try:
            if altered.by == "alter":
                await client.admin.alter(queue, arguments_of(altered.where, self._plan), sync=altered.syncs)
            elif altered.where == "none":
                await topology.clear_policy(f"of {queue}", missing_ok=True)
            else:
                pattern, priority = ("", 0) if queue == EVERY else (f"^{queue}$", 1)
                said = definition_of(altered.where, self._plan)
                await topology.set_policy(f"of {queue}", pattern, said, priority=priority, apply_to="queues")
            altered.outcome = "confirmed"
        except MirrorlogError as error:
            altered.outcome = "unknown" if isinstance(error, OutcomeUnknown) else "refused"
            altered.reason = f"{type(error).__name__}: {error}"
