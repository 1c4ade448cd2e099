"""Who shall master a log next while its master lives, and which logs are not mastered by their homes. Pure.

A master hands a log over to whom was wished (`mqtool rebalance`), to the home that it is on its way to, or, when it
drains, to the one of those who can take over that masters the fewest logs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.state import ClusterState, LogFacts


def heir(log: LogFacts, state: ClusterState, life: Callable[[str], Life], *, home: str = "") -> str:
    """Whom the log's master shall hand it over to: who was wished, then `home`, when the log's copies are on their way
    to one, or, when the master drains, of those who can take over one that stays and masters the fewest logs. Empty
    when it shall not, or nobody can."""
    if log.master is None:
        return ""
    able = heirs(log, state, life)
    for wished in (log.wished, home):
        if wished in able:
            return wished
    if log.master.node not in state.nodes or not state.nodes[log.master.node].draining:
        return ""
    mastered = Counter(each.master.node for each in state.logs.values() if each.master is not None)
    return min(able, key=lambda node: (state.nodes[node].leaving, mastered[node]), default="")


def heirs(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> list[str]:
    """Who can take over from the log's master: in sync, whole, there, and to stay; in the order of the replicas."""
    return [
        node
        for node in log.promotable
        if (log.master is None or node != log.master.node)
        and (facts := state.nodes.get(node)) is not None
        and facts.start_id == log.in_sync[node]
        and not facts.draining
        and not facts.stopped
        and life(node) is Life.UP
    ]


def may_come_in(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> bool:
    """Whether a mirror that is not in sync is there and to stay, so that it may be a heir soon."""
    return any(
        life(node) is Life.UP and facts.start_id and facts.stays and not facts.stopped
        for node in log.replicas
        if node not in log.promotable and (facts := state.nodes.get(node)) is not None
    )


@dataclass(frozen=True, slots=True)
class Away:
    """A log that is not mastered by its home. `reason`: why its home cannot take it over now; empty when it can."""

    log_id: str
    home: str
    reason: str = ""


def away_from_home(state: ClusterState, life: Callable[[str], Life]) -> list[Away]:
    """In the order of the logs. The home of a log is the first of its replicas. One that is on its way to others is
    mastered by the next one by itself."""
    return [
        Away(log_id, log.replicas[0], _why_not(log.replicas[0], log, state, life))
        for log_id, log in state.logs.items()
        if log.replicas
        and (log.master is None or log.master.node != log.replicas[0])
        and not state.placing.place(log_id).target
    ]


def _why_not(node: str, log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> str:
    if log.master is None:
        return "the log has no master"
    facts = state.nodes.get(node)
    if node in heirs(log, state, life) and facts is not None and not facts.leaving:
        return ""
    if facts is None or facts.stopped or life(node) is not Life.UP:
        return f"{node} is not up"
    if facts.draining:
        return f"{node} is draining"
    if facts.leaving:
        return f"{node} leaves the cluster"
    return f"{node} is {'marked' if node in log.marked else 'not in sync'}"
