"""Logs whose copies are all on nodes that are down: nothing can be asked of them, and nothing is promoted. And logs of
which only copies are up that may lack something: they are read from as far as they know, and nobody masters them. Pure.

Whoever asks for such a log, or for its master, is told so at once, and which node has to be started; while another copy
may yet be promoted he is told to wait instead. A node that has stopped and is back in a run that has still to register
is not down: it is waited for. Rejected: to let everybody wait until his own time is up, which is longer than most
people wait; to refuse readers of a copy that is up.
"""

from __future__ import annotations

from collections.abc import Callable

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.state.state import ClusterState, LogFacts


def nodes_out(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> tuple[str, ...]:
    """All nodes that hold the log, when each of them is down; none while one may answer. First those whose start helps:
    who has everything, and may be promoted; then who is in sync; the home before others."""
    if all(_is_down(node, state, life) for node in log.replicas):
        return tuple(sorted(log.replicas, key=lambda node: (node not in log.promotable, node not in log.in_sync)))
    return ()


def nodes_needed(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> tuple[str, ...]:
    """Those that have everything of a log that has no master, when each of them is down and another copy is up; none
    while somebody may master it, or when `nodes_out` tells."""
    whole = log.promotable or tuple(node for node in log.replicas if node in log.in_sync)
    masters = log.master is not None and not _is_down(log.master.node, state, life)
    if not whole or masters or all(_is_down(node, state, life) for node in log.replicas):
        return ()
    return whole if all(_is_down(node, state, life) for node in whole) else ()


def _is_down(node: str, state: ClusterState, life: Callable[[str], Life]) -> bool:
    facts = state.nodes.get(node)
    stopped = facts is not None and facts.stopped
    return life(node) is Life.DOWN or (stopped and life(node) is not Life.UP)
