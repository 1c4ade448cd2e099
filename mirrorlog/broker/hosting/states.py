"""The states of a log on one node, what is said of its copy, and what the node is to do about it. Pure.

NEW --open--> OPENING --> OPEN ------+
                 |                   v
                 v        +--> CHANGING --> MASTER | MIRROR | RESTING
            UNAVAILABLE   |                             |
                          +-----------------------------+       any --close--> CLOSED

A copy that has promised an epoch in a fence serves no older one: what it does waits for the next master. Should the
cluster come to nothing with that promotion and keep the master it had, the copies that have promised cannot follow
it, and it may be one of them: whoever sees that asks for an election (`wants_election`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mirrorlog.cluster.state.commands import Holder
from mirrorlog.cluster.state.state import LogFacts


class HostedState(Enum):
    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    CHANGING = "changing"
    MASTER = "master"
    MIRROR = "mirror"
    RESTING = "resting"
    UNAVAILABLE = "unavailable"
    CLOSED = "closed"


ROLES: Final = {HostedState.MASTER, HostedState.MIRROR, HostedState.RESTING}
CHANGEABLE: Final = {HostedState.OPEN, *ROLES}

NEXT: Final[dict[HostedState, set[HostedState]]] = {
    HostedState.NEW: {HostedState.OPENING, HostedState.CLOSED},
    HostedState.OPENING: {HostedState.OPEN, HostedState.UNAVAILABLE, HostedState.CLOSED},
    HostedState.OPEN: {HostedState.CHANGING, HostedState.UNAVAILABLE},
    HostedState.CHANGING: {*ROLES, HostedState.CLOSED},
    **{role: {HostedState.CHANGING} for role in ROLES},
    HostedState.UNAVAILABLE: {HostedState.CLOSED},
    HostedState.CLOSED: set(),
}


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What this node holds of a log: what a promotion compares. Offsets are log offsets.

    `last_epoch`: of the last byte; `epoch_known`: the newest one in the list, of which it may hold no byte yet.
    `confirmed` is above `end` in a damaged copy alone: up to there it held the log, which may have been confirmed.
    """

    last_epoch: int
    end: int
    confirmed: int
    flushed: int
    epoch_known: int


# What a log is to this node, by what the cluster has decided.


@dataclass(frozen=True, slots=True)
class Lead:
    """Write the log, in this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Follow:
    """Copy the log from this run of its master, in this epoch."""

    master: Holder
    epoch: int


@dataclass(frozen=True, slots=True)
class Rest:
    """Keep the copy and wait. `wants_election`: the master that there is cannot be followed; else there is none."""

    wants_election: bool = False


@dataclass(frozen=True, slots=True)
class Leave:
    """The log is none of this node's."""


Duty = Lead | Follow | Rest | Leave


def duty_of(log: LogFacts | None, own: Holder, promised: int) -> Duty:
    """What `own`, this node in this run, is to do about a log of which it has promised that epoch."""
    if log is None or own.node not in log.replicas:
        return Leave()
    master = log.master
    if master is None or (master.node == own.node and master != own):
        return Rest()
    if log.epoch < promised:
        return Rest(wants_election=True)
    return Lead(log.epoch) if master == own else Follow(master, log.epoch)
