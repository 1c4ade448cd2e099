"""A plan of faults for one cluster, drawn from one seed, as data: it can be printed, saved, replayed and shrunk.

Every event undoes itself after a time of its own (a node that is killed is started again, a cut is mended), so any of
them can be left out and the others still make sense. Who is hit is named by a node, or by a part that some node plays
when the event comes: `@master`, `@mirror`, `@coordinator`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Final, Self

NAMES: Final = "abcdefg"
"""Of the nodes, in the order in which they are founded or join."""
CLIENTS: Final = ("writers", "readers")
"""Machines that the clients run on."""
TAKERS: Final = ("takers1", "takers2")
"""Machines of those that take from acking groups."""
MEDDLER: Final = "meddler"
"""The machine of who resets, purges and deletes."""
WISHES: Final = ("reset to earliest", "reset to latest", "reset back", "purge", "delete group", "delete queue")
"""What is done to a queue that is taken from."""
STAGES: Final = ("begun", "left", "arrived", "added")
"""Of a move, when somebody is hit: it is decided; the queue has left; all of it has come; the cluster has added its
span, and the target has still to say so."""

Argument = str | int | float


@dataclass(frozen=True, slots=True)
class Event:
    """`at_s`: since the beginning; `fault`: a method of `cluster_faults.Faults`; `args`: what it is given."""

    at_s: float
    fault: str
    args: tuple[Argument, ...] = ()

    def __str__(self) -> str:
        return f"{self.at_s:7.3f} {self.fault} {' '.join(map(str, self.args))}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """`nodes`: that found the cluster; `logs`: the flush mode of each log; `copies`: of each; `min_in_sync`: 0 for the
    default; `unit_bytes`, `ordered_names`, `forgets`: what kind of disks, see `sim.disk.DiskModel`; `groups`: whether
    there are takers of acking groups; `queues`: and queues of other sorts, see `cluster_queues`; `records`: and those
    whose records have limits; `transactions`: and those that transactions fill, see `cluster_sorts`; `letters`: and
    those whose dead records leave for others, see `cluster_dead_letters`; `lifetimes`: and those that go by
    themselves, see `cluster_lifetimes`; `credit`: whether producers have little of it, see `cluster_credit`; `moves`:
    whether copies are moved on purpose, and the plan of the cluster has to come to its end; `placing`: whether queues
    are, see `cluster_moves`; `always`: whether logs go on with what is left, see `cluster_policy`."""

    seed: str
    kind: str
    nodes: int
    copies: int
    min_in_sync: int
    logs: tuple[str, ...]
    seconds: float
    unit_bytes: int
    ordered_names: bool
    forgets: bool
    events: tuple[Event, ...]
    groups: bool = False
    queues: bool = False
    records: bool = False
    transactions: bool = False
    letters: bool = False
    lifetimes: bool = False
    credit: bool = False
    moves: bool = False
    placing: bool = False
    always: bool = False

    @property
    def clients(self) -> tuple[str, ...]:
        """Machines of programs that use it."""
        return (*CLIENTS, *TAKERS) if self.groups else CLIENTS

    @property
    def names(self) -> list[str]:
        return list(NAMES[: self.nodes])

    @property
    def log_names(self) -> list[str]:
        return ["main", *(f"log{number}" for number in range(1, len(self.logs)))]

    @property
    def copies_wanted(self) -> int:
        """Of each log, whole in-sync copies without which nothing is confirmed."""
        return self.min_in_sync or (1 if self.copies <= 2 else self.copies // 2 + 1)

    def with_events(self, events: tuple[Event, ...]) -> Plan:
        """The same with other events."""
        return replace(self, events=events)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises ValueError, KeyError or TypeError for what is no plan."""
        facts: dict[str, Any] = json.loads(text)
        events = tuple(Event(each["at_s"], each["fault"], tuple(each["args"])) for each in facts.pop("events"))
        return cls(**{**facts, "logs": tuple(facts["logs"])}, events=events)

    def __str__(self) -> str:
        disks = f"{self.unit_bytes} bytes at a time"
        head = (
            f"seed {self.seed} ({self.kind}): {self.nodes} nodes, {self.copies} copies, min_in_sync "
            f"{self.min_in_sync or 'default'}, logs {', '.join(self.logs)}; disks: {disks}, names "
            f"{'in order' if self.ordered_names else 'in any order'}{', forgetful' if self.forgets else ''}"
        )
        return "\n".join([head, *(f"  {event}" for event in self.events)])


@dataclass(frozen=True, slots=True)
class Kind:
    """What a storm is made of: `count` faults over `seconds`, drawn by weight; `logs`: one of these."""

    faults: Mapping[str, int]
    seconds: float = 4.0
    count: int = 24
    nodes: tuple[int, ...] = (1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 7)
    groups: bool = False
    queues: bool = False
    records: bool = False
    transactions: bool = False
    letters: bool = False
    lifetimes: bool = False
    credit: bool = False
    moves: bool = False
    placing: bool = False
    always: bool = False
    logs: tuple[tuple[str, ...], ...] = (("memory",), ("memory",), ("disk",), ("memory", "disk"))


_PROCESSES: Final = {"kill": 4, "pause": 3, "stop": 1}
_NETWORK: Final = {
    "cut": 2, "cut_one_way": 2, "isolate": 3, "split": 1, "reset": 2, "weather": 2, "lengthen": 1, "doubt": 1,
}  # fmt: skip
_DISKS: Final = {"slow": 2, "full": 1, "fsync": 1, "flip": 1}
_MACHINES: Final = {"power": 3, "blackout": 1, "clock": 1}
_OPERATORS: Final = {"drain": 1, "join": 1, "leave": 1, "rebalance": 1}
_SESSIONS: Final = {"desert": 2, "doze": 1, "reset": 4}

KINDS: Final[Mapping[str, Kind]] = {
    "anything": Kind({**_PROCESSES, **_NETWORK, **_DISKS, **_MACHINES, **_OPERATORS, "blank": 1, "restore": 1}),
    "network": Kind({**_NETWORK, "kill": 1, "pause": 1}),
    "falling masters": Kind({"kill": 5, "pause": 3, "isolate": 2, "reset": 1, "doubt": 2}, nodes=(3, 3, 5)),
    "power": Kind({"power": 5, "blackout": 2, "kill": 2, "slow": 1, "cut": 1, "restore": 1}),
    "disks": Kind({**_DISKS, "power": 1, "kill": 2, "blank": 1, "restore": 1}),
    "operators": Kind({**_OPERATORS, "kill": 2, "pause": 1, "blank": 1, "isolate": 1}, nodes=(1, 2, 3, 3, 5)),
}
GROUP_KINDS: Final[Mapping[str, Kind]] = {
    f"groups: {name}": replace(kind, faults={**kind.faults, **_SESSIONS}, groups=True) for name, kind in KINDS.items()
}
"""The same, with takers of acking groups, whose sessions are lost in all ways."""
QUEUE_KINDS: Final[Mapping[str, Kind]] = {
    f"queues: {name}": replace(kind, faults={**kind.faults, **_SESSIONS, "meddle": 6}, groups=True, queues=True)
    for name, kind in KINDS.items()
}
"""And with queues of other sorts, one of which is purged, reset and deleted while others take from it."""
RECORD_KINDS: Final[Mapping[str, Kind]] = {
    f"records: {name}": replace(
        kind,
        faults={**{fault: weight for fault, weight in kind.faults.items() if fault != "clock"}, **_SESSIONS},
        groups=True,
        records=True,
    )
    for name, kind in KINDS.items()
}
"""With queues whose records have times, priorities and limits. Their clocks are right: one that is set back by an hour
holds every delay up for an hour, since the log's own never goes back."""
TRANSACTION_KINDS: Final[Mapping[str, Kind]] = {
    f"transactions: {name}": replace(kind, faults={**kind.faults, **_SESSIONS}, groups=True, transactions=True)
    for name, kind in KINDS.items()
}
"""With takers who settle by transactions."""
LETTER_KINDS: Final[Mapping[str, Kind]] = {
    f"letters: {name}": replace(
        kind,
        faults={
            **{fault: weight for fault, weight in kind.faults.items() if fault != "clock"},
            **_SESSIONS,
            "redrive": 4,
            "intercept": 6,
        },
        groups=True,
        letters=True,
        logs=(("memory", "disk"), ("disk", "memory"), ("memory",)),
    )
    for name, kind in KINDS.items()
}
"""With queues whose dead records leave for others, most often in another log. Their clocks are right, for some last
only so long."""
LIFETIME_KINDS: Final[Mapping[str, Kind]] = {
    f"lifetimes: {name}": replace(kind, groups=True, lifetimes=True, seconds=8.0) for name, kind in KINDS.items()
}
"""With queues that go by themselves, in longer storms: nothing of it is fast."""
CREDIT_KINDS: Final[Mapping[str, Kind]] = {
    f"credit: {name}": replace(kind, faults={**kind.faults, "lengthen": 4, "pause": 3, "slow": 2}, credit=True)
    for name, kind in KINDS.items()
}
"""With producers that have little credit, and copies that are slow to give it back."""
COPY_KINDS: Final[Mapping[str, Kind]] = {
    f"copies: {name}": replace(
        kind,
        faults={**kind.faults, "wish": 8, "retire": 4, "empty": 2, "halt": 1, "join": 2, "leave": 2},
        nodes=(2, 3, 3, 3, 4, 5),
        seconds=6.0,
        moves=True,
        logs=(("memory", "disk", "memory"), ("memory", "memory", "disk", "disk")),
    )
    for name, kind in KINDS.items()
}
"""With more logs, which are wished elsewhere at random, and nodes that are emptied, join and leave."""
USED_COPY_KINDS: Final[Mapping[str, Kind]] = {
    name.replace("copies", "used copies"): replace(
        kind, faults={**kind.faults, **_SESSIONS}, groups=True, transactions=True
    )
    for name, kind in COPY_KINDS.items()
}
"""And with takers of acking groups, who settle by transactions."""
MOVE_KINDS: Final[Mapping[str, Kind]] = {
    f"{sort} moves: {name}".removeprefix("plain "): replace(
        kind,
        faults={
            **{fault: weight for fault, weight in kind.faults.items() if fault != "clock" or not kind.groups},
            **{"alter": 12, "ambush": 6, "call_off": 2},
        },
        seconds=max(5.0, kind.seconds),
        count=32,
        nodes=(2, 3, 3, 3, 3, 5),
        placing=True,
        logs=(("memory", "disk"), ("disk", "memory"), ("memory", "disk", "memory")),
    )
    for sort, kinds in (
        ("plain", KINDS),
        ("group", GROUP_KINDS),
        ("queue", QUEUE_KINDS),
        ("record", RECORD_KINDS),
        ("transaction", TRANSACTION_KINDS),
        ("letter", LETTER_KINDS),
        ("lifetime", LIFETIME_KINDS),
    )
    for name, kind in ((name.rpartition(": ")[2], kind) for name, kind in kinds.items())
}
"""Each sort once more, with queues that go from log to log meanwhile, also to logs that are made for them, and masters
that are hit in the middle of it. Clocks are right where there are takers: a log's time is its master's."""
POLICY_KINDS: Final[Mapping[str, Kind]] = {
    name.replace("moves", "policies"): replace(
        kind, faults={**kind.faults, "alter": 3, "govern": 10}, seconds=kind.seconds + 1.0
    )
    for name, kind in MOVE_KINDS.items()
}
"""And policies that say more and more often where they shall be than their own arguments do."""
ALWAYS_KINDS: Final[Mapping[str, Kind]] = {
    f"always: {name}": replace(kind, faults={**kind.faults, "strand": 8}, nodes=(3, 3, 4, 5), seconds=8.0, always=True)
    for name, kind in KINDS.items()
}
"""With logs that go on with what is left, and masters that are hit when they alone have everything."""
ALL_KINDS: Final[Mapping[str, Kind]] = {
    **KINDS,
    **GROUP_KINDS,
    **QUEUE_KINDS,
    **RECORD_KINDS,
    **TRANSACTION_KINDS,
    **LETTER_KINDS,
    **LIFETIME_KINDS,
    **CREDIT_KINDS,
    **COPY_KINDS,
    **USED_COPY_KINDS,
    **MOVE_KINDS,
    **POLICY_KINDS,
    **ALWAYS_KINDS,
}


def draw(seed: int | str, *, kind: str | None = None) -> Plan:
    """The plan of a seed; of that kind, or of one that the seed draws."""
    random = Random(f"plan {seed}")
    drawn = random.choice(list(KINDS))
    name = kind or drawn
    chosen = ALL_KINDS[name]
    nodes = random.choice(chosen.nodes)
    copies = min(nodes, random.choice((2, 3, 3, 3, 5)))
    choice = _Draw(random, NAMES[:nodes], (*CLIENTS, *TAKERS) if chosen.groups else CLIENTS)
    names = [fault for fault, weight in chosen.faults.items() for _ in range(weight)]
    if chosen.always:
        copies = random.choice((2, 2, 3))
    drawn_events = [choice.event(random.choice(names), chosen.seconds) for _ in range(chosen.count)]
    return Plan(
        seed=str(seed),
        kind=name,
        nodes=nodes,
        copies=copies,
        min_in_sync=random.choice((0, 0, 0, 0, 1, min(2, copies))) if not chosen.always else 1,
        logs=random.choice(chosen.logs),
        seconds=chosen.seconds,
        unit_bytes=random.choice((512, 4096)),
        ordered_names=random.random() < 0.7,
        forgets=random.random() < 0.3,
        events=tuple(sorted(drawn_events, key=lambda event: event.at_s)),
        groups=chosen.groups,
        queues=chosen.queues,
        records=chosen.records,
        transactions=chosen.transactions,
        letters=chosen.letters,
        lifetimes=chosen.lifetimes,
        credit=chosen.credit,
        moves=chosen.moves,
        placing=chosen.placing,
        always=chosen.always,
    )


class _Draw:
    """What each fault is given."""

    def __init__(self, random: Random, names: str, clients: tuple[str, ...]) -> None:
        self._random = random
        self._names = names
        self._clients = clients
        # So that it is never the last good copy that is damaged by hand.
        self._victim = random.choice(names)

    def event(self, fault: str, seconds: float) -> Event:
        args: Callable[[], tuple[Argument, ...]] = getattr(self, f"_{fault}")
        return Event(round(self._random.random() * seconds, 3), fault, args())

    def _node(self) -> str:
        if self._random.random() < 0.5:
            return self._random.choice(self._names)
        return self._random.choice(("@master", "@master", "@coordinator", "@mirror"))

    def _for_s(self) -> float:
        """Short ones hit the middle of something, long ones let it end."""
        return round(self._random.choice((0.01, 0.1, 0.3, 0.7, 1.5)) * (0.5 + self._random.random()), 3)

    def _kill(self) -> tuple[Argument, ...]:
        return self._node(), self._for_s()

    _pause = _power = _stop = _drain = _empty = _kill

    def _strand(self) -> tuple[Argument, ...]:
        """How the master ends, how long it is alone before, and how long it is gone."""
        how = self._random.choice(("kill", "kill", "power", "isolate", "stop", "drain"))
        return how, self._random.choice((0.1, 0.5)), self._random.choice((0.3, 1.0, 3.0))

    def _blackout(self) -> tuple[Argument, ...]:
        """How long each machine is without power at most."""
        return (self._for_s(),)

    def _clock(self) -> tuple[Argument, ...]:
        return self._node(), self._random.choice((-3600.0, -5.0, 5.0, 86_400.0))

    def _cut(self) -> tuple[Argument, ...]:
        return self._node(), self._random.choice((*self._names, *self._clients)), self._for_s()

    _cut_one_way = _cut

    def _isolate(self) -> tuple[Argument, ...]:
        return self._node(), self._random.choice(("nodes", "all")), self._for_s()

    def _doubt(self) -> tuple[Argument, ...]:
        """How long it is waited for."""
        return self._random.choice((0.5, 2.0)), self._for_s()

    def _split(self) -> tuple[Argument, ...]:
        some = self._random.sample(self._names, self._random.randrange(len(self._names) + 1))
        return "".join(sorted(some)), self._for_s()

    def _reset(self) -> tuple[Argument, ...]:
        return self._node(), self._random.choice((*self._names, *self._clients))

    def _desert(self) -> tuple[Argument, ...]:
        """Whose program is killed, and how long it is away."""
        return self._random.choice(TAKERS), self._for_s()

    _doze = _desert

    def _meddle(self) -> tuple[Argument, ...]:
        """What is done to which group of `wild`."""
        return self._random.choice(WISHES), self._random.choice(("", "g"))

    def _redrive(self) -> tuple[Argument, ...]:
        return ()

    def _intercept(self) -> tuple[Argument, ...]:
        """The master of the log that letters leave, or come to, what befalls it, how long they are waited for, and how
        soon after they were addressed it is hit."""
        whose, how = (
            self._random.choice(("source", "target")),
            self._random.choice(("kill", "kill", "pause", "isolate")),
        )
        return whose, how, self._random.choice((0.5, 2.0)), self._random.choice((0.0, 0.003, 0.02)), self._for_s()

    def _weather(self) -> tuple[Argument, ...]:
        delay_s, hiccups = self._random.choice((0.002, 0.02, 0.1)), self._random.choice((0.0, 0.05, 0.3))
        return delay_s, hiccups, self._for_s()

    def _lengthen(self) -> tuple[Argument, ...]:
        return self._node(), self._random.choice(self._names), self._random.choice((0.05, 0.2)), self._for_s()

    def _slow(self) -> tuple[Argument, ...]:
        return self._node(), self._random.choice((0.1, 0.5)), self._for_s()

    def _full(self) -> tuple[Argument, ...]:
        """The bytes that are left."""
        return self._node(), self._random.choice((0, 100_000, 600_000)), self._for_s()

    def _fsync(self) -> tuple[Argument, ...]:
        """The how many-th from now fails."""
        return self._victim, self._random.randrange(1, 20), self._for_s()

    def _flip(self) -> tuple[Argument, ...]:
        """Which of the segments, how deep in it, and which bit; the node is down meanwhile."""
        where = self._random.choice(("sealed", "active"))
        return self._victim, where, round(self._random.random(), 3), self._random.randrange(8), self._for_s()

    def _blank(self) -> tuple[Argument, ...]:
        return self._victim, self._for_s()

    def _restore(self) -> tuple[Argument, ...]:
        """How long the machine is down."""
        return self._victim, self._for_s()

    def _join(self) -> tuple[Argument, ...]:
        return ()

    def _wish(self) -> tuple[Argument, ...]:
        """Which of the logs, and for whom, the home first."""
        return self._random.randrange(4), "".join(self._random.sample(NAMES[:6], self._random.randint(1, 4)))

    def _retire(self) -> tuple[Argument, ...]:
        """From which of the logs, and whose copy."""
        return self._random.randrange(4), self._random.choice(NAMES[:6])

    def _halt(self) -> tuple[Argument, ...]:
        """For how long nothing moves."""
        return (self._for_s(),)

    def _alter(self) -> tuple[Argument, ...]:
        """Which of the queues, and how many places it is to go on; see `cluster_moves`."""
        return self._random.randrange(12), self._random.choice((1, 1, 2, 3))

    def _govern(self) -> tuple[Argument, ...]:
        """Of which of the queues, 0 for all, and what is said of it; see `cluster_moves.POLICIES`."""
        return self._random.choice((0, *range(1, 12))), self._random.choice((0, 0, *range(1, 6)))

    def _call_off(self) -> tuple[Argument, ...]:
        """How far a move is, how long such a one is waited for, and how soon it is cancelled then."""
        return self._random.choice(STAGES[:3]), self._random.choice((0.5, 2.0)), self._random.choice((0.0, 0.003, 0.02))

    def _ambush(self) -> tuple[Argument, ...]:
        """How far a move is, the master of which of its logs is hit, or a mirror of its target, how, how long such a
        move is waited for, how soon it is hit then, and for how long."""
        whose = self._random.choice(("source", "source", "target", "target", "mirror"))
        how = self._random.choice(("kill", "kill", "pause", "isolate", "power"))
        after_s = self._random.choice((0.0, 0.003, 0.02))
        stage = self._random.choice(STAGES)
        return f"{stage} {whose}", how, self._random.choice((0.5, 2.0)), after_s, self._for_s()

    def _rebalance(self) -> tuple[Argument, ...]:
        return ()

    def _leave(self) -> tuple[Argument, ...]:
        return (self._random.choice(self._names[1:] or self._names),)
