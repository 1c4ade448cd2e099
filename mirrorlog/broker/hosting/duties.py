"""What a log is to this node, by what the cluster has decided. Pure.

A copy that has promised an epoch in a fence serves no older one: what it does waits for the next master. Should the
cluster come to nothing with that promotion and keep the master it had, the copies that have promised cannot follow
it, and it may be one of them: whoever sees that asks for an election (`wants_election`).
"""

from __future__ import annotations

from dataclasses import dataclass

from mirrorlog.cluster.state.commands import Holder
from mirrorlog.cluster.state.state import LogFacts


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
