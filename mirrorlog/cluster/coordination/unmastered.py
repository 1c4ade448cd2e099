"""Why nobody masters a log, and what would help: one sentence, for lists, errors and diagnoses. Pure.

It says what is missing, what the copies lack that are up, for whom the log waits, and what goes on without him: which
key of its rule, or which command. What a copy lacks its master knew, and told now and then (`CoordinatorRunner.lags`):
it is as old as that, so more may be missing; of a copy that had no link to its last master nobody knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from mirrorlog.cluster.coordination.liveness import Life, is_down, nodes_needed, nodes_out
from mirrorlog.cluster.coordination.promotion import keys_that_count
from mirrorlog.cluster.state.placements import ALWAYS, WHEN_SYNCED
from mirrorlog.cluster.state.state import ClusterState, LogFacts

Lag = tuple[int, int]
"""What a copy lacks of its master's, at least: bytes and records."""
_NONE: Final[Mapping[str, Lag]] = {}


def waited_for(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> tuple[str, ...]:
    """Nodes that are down and without which nobody masters the log, first the one whose start helps most; none while
    somebody masters it, or may."""
    if (log.master is not None and not is_down(log.master.node, state, life)) or not log.epoch:
        return ()
    if found := nodes_out(log, state, life) or nodes_needed(log, state, life):
        return found
    return tuple(node for node in log.replicas if log.recovering and node in log.marked and is_down(node, state, life))


def why_unmastered(
    log_id: str,
    state: ClusterState,
    life: Callable[[str], Life],
    *,
    lags: Mapping[str, Lag] = _NONE,
    since: str = "",
    after_s: float = 0.0,
) -> str:
    """Empty while somebody masters the log, or may. `lags`: by node, as far as they are known; `since`: when the first
    that it waits for went down, for people; `after_s`: how long those who have everything are waited for."""
    log = state.logs[log_id]
    nodes = waited_for(log, state, life)
    if not nodes:
        return ""
    left = [node for node in log.replicas if node not in log.promotable and not is_down(node, state, life)]
    if log.recovering:
        head = "every copy that had everything may have lost something"
    elif left:
        head = "no in-sync mirror is up: " + ", ".join(_lack(node, lags.get(node)) for node in left)
    else:
        head = "no copy is up"
    alone = f"node {nodes[0]}, which" if len(nodes) == 1 else f"one of nodes {', '.join(nodes)}, which"
    if log.recovering:
        waits = f"it waits for {', '.join(nodes)}, down{since}; start {nodes[0]}"
    elif left:
        waits = f"it waits for {alone} alone had everything, and went down{since}; start {nodes[0]}"
    else:
        waits = f"it waits for {alone} went down{since}; start {nodes[0]}"
    return "; ".join([head, waits, *(_without(log_id, log, state, after_s) if left else ())])


def _lack(node: str, lag: Lag | None) -> str:
    if lag is None:
        return f"what {node} lacks nobody knows who is up"
    size_bytes, records = lag
    if records > 0:
        return f"{node} lacks {records:,} {'records' if records > 1 else 'record'}"
    return f"{node} lacks {size_bytes:,} bytes" if size_bytes > 0 else f"{node} may lack what was confirmed last"


def _without(log_id: str, log: LogFacts, state: ClusterState, after_s: float) -> Iterator[str]:
    """What goes on without those who are waited for."""
    keys, says = keys_that_count(log, state), state.rule(log_id).promotes
    if keys and all(says[key] == ALWAYS for key in keys):
        yield f"{' and '.join(keys)} = always: the best of these is promoted when they are gone for {after_s:g} s"
    elif keys:
        waiting = [key for key in keys if says[key] == WHEN_SYNCED]
        yield f"{' and '.join(waiting)} = when-synced: with always it would go on without"
    yield f"if it is lost for good: mqtool promote {log.name} --accept-loss, which says what is lost"
