"""The stories that both systems are put through, as data: steps, which `play` does and measures. Pure.

In definitions `$0`, `$1`, … are the nodes. `own` is what mirrorlog alone is told besides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Definition = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Refusals:
    """What is answered to a policy of each definition."""

    definitions: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Declare:
    """A queue, under a policy that is there before it, asked for at node 0."""

    definition: Definition
    own: Definition = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """The queue's policy says something else from now on."""

    definition: Definition
    own: Definition = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fill:
    """So many confirmed messages more, of 1 KiB."""

    count: int


@dataclass(frozen=True, slots=True)
class Begin:
    """Somebody publishes steadily from here on, one message outstanding, at a node that is not this role."""

    spare: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """Nobody publishes any more. Told: the longest pause, and what was not confirmed."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Time and bytes on the links count from here."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Until the queue has so many copies, on these nodes if said, that all have everything (`whole`). Told: the time
    since the mark, under this name; nothing without one."""

    told: str = ""
    copies: int = 2
    nodes: tuple[int, ...] = ()
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Copied:
    """Told: MB that went over the links between the nodes since the mark."""

    told: str


@dataclass(frozen=True, slots=True)
class Kill:
    """The node of a role: `master`, `mirror`, or `origin`, which mastered the queue first."""

    role: str


@dataclass(frozen=True, slots=True)
class Missed:
    """Until it is told that the copy of whoever was killed counts no more: what is told may be seconds old."""


@dataclass(frozen=True, slots=True)
class Return:
    """Whoever was killed is started again."""


@dataclass(frozen=True, slots=True)
class Look:
    """Told: who masters the queue and how many messages it says that it has, after so many seconds."""

    told: str
    after_s: float


@dataclass(frozen=True, slots=True)
class Check:
    """All is read. Told: confirmed messages that are missing, that come twice, that are out of order."""


Step = (
    Refusals | Declare | Policy | Fill | Begin | End | Mark | Settled | Copied | Kill | Missed | Return | Look | Check
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scenario:
    key: str
    title: str
    steps: tuple[Step, ...]
    once: bool = False
    """Nothing in it is timed, so one round tells all."""


FULL: Final = 20_000
_TWO: Final = {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"}
_SOON: Final = {"replace-after-ms": 2_000}
"""RabbitMQ makes another mirror at once, mirrorlog by default after ten minutes: most nodes come back."""


def _on(*nodes: int) -> dict[str, Any]:
    return {"ha-mode": "nodes", "ha-params": [f"${number}" for number in nodes], "ha-sync-mode": "automatic"}


SCENARIOS: Final = (
    Scenario(
        "errors",
        "a policy that is wrong",
        (
            Refusals(
                (
                    {"ha-moed": "all"},
                    {"ha-mode": "exactly"},
                    {"ha-mode": "exactly", "ha-params": "2"},
                    {"ha-mode": "nodes", "ha-params": []},
                    {"ha-mode": "some", "ha-sync-mode": "soon", "max-length": -1},
                    {"ha-sync-mode": "automatic"},
                    {"ha-mode": 2},
                    {},
                    [],
                )
            ),
        ),
        once=True,
    ),
    Scenario(
        "migration",
        f"nodes [a, b] -> [c, d], {FULL} messages, under load",
        (
            Declare(_on(0, 1)),
            Settled(nodes=(0, 1)),
            Fill(FULL),
            Begin(),
            Mark(),
            Policy(_on(2, 3)),
            Settled("all is on c and d after, s", nodes=(2, 3)),
            End(),
            Copied("MB between the nodes"),
            Check(),
        ),
    ),
    Scenario(
        "master-synced",
        "the master is killed, its mirror is in sync",
        (
            Declare(_TWO, _SOON),
            Settled(),
            Fill(2_000),
            Begin(spare="master"),
            Mark(),
            Kill("master"),
            Settled("two copies again after, s"),
            End(),
            Return(),
            Check(),
        ),
    ),
    Scenario(
        "master-unsynced",
        "the only node with 1,000 older messages is killed; its mirror has 100 newer ones",
        (
            Declare({"ha-mode": "exactly", "ha-params": 1}),
            Fill(1_000),
            Policy({"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "manual"}),
            Settled(whole=False),
            Fill(100),
            Kill("origin"),
            Look("20 s later", 20.0),
            Return(),
            Look("10 s after its return", 10.0),
            Check(),
        ),
        once=True,
    ),
    Scenario(
        "mirror-restart",
        f"a mirror is killed and comes back, {FULL} messages, under load",
        (
            Declare(_on(0, 1)),
            Settled(nodes=(0, 1)),
            Fill(FULL),
            Begin(spare="mirror"),
            Kill("mirror"),
            Missed(),
            Mark(),
            Return(),
            Settled("in sync again, from the start of its node on, s", nodes=(0, 1)),
            End(),
            Copied("MB between the nodes"),
            Check(),
        ),
    ),
    Scenario(
        "replacement",
        f"exactly 2: the mirror's node dies and stays away, {FULL} messages, under load",
        (
            Declare(_TWO, _SOON),
            Settled(),
            Fill(FULL),
            Begin(spare="mirror"),
            Mark(),
            Kill("mirror"),
            Settled("another mirror is in sync after, s"),
            End(),
            Copied("MB between the nodes"),
            Return(),
            Check(),
        ),
    ),
)


def filled_in(definition: Any, nodes: Sequence[str]) -> Any:
    """With names of nodes."""
    if isinstance(definition, Mapping):
        return {key: filled_in(value, nodes) for key, value in definition.items()}
    if isinstance(definition, list | tuple):
        return [filled_in(each, nodes) for each in definition]
    if isinstance(definition, str) and definition.startswith("$"):
        return nodes[int(definition[1:])]
    return definition
