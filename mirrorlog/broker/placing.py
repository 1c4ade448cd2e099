"""Which log a new queue goes to, by its arguments. Pure.

A log is a placement: so many copies, in memory or on disk. A queue that asks for nothing goes to one of the logs with
the cluster's own number of copies; one that asks for a number to a log with that many, which is made if there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID, uuid5

from mirrorlog.cluster.commands import LogMade
from mirrorlog.cluster.state import ClusterState
from mirrorlog.config import LOG_NUMBER_MAX, Flush
from mirrorlog.errors import BadRequest

_FLUSH: Final[Flush] = "memory"


def place_for(
    state: ClusterState, arguments: Mapping[str, Any], *, copies: int, is_up: Callable[[str], bool]
) -> str | LogMade:
    """The log's id, or the log that is to be made first. `arguments`: checked (`queues.registry`); `copies`: of a queue
    that does not say.

    Raises BadRequest when the cluster has no such log and can have none.
    """
    flush, asked = arguments.get("flush"), arguments.get("copies")
    wanted = asked if asked is not None else min(copies, max((log.copies for log in state.logs.values()), default=0))
    by_flush = [log_id for log_id, log in state.logs.items() if flush in (None, log.flush)]
    fitting = [log_id for log_id in by_flush if state.logs[log_id].copies == wanted]
    if fitting or (by_flush and asked is None):
        return _least_used(state, fitting or by_flush)
    if not state.logs:
        raise BadRequest("this cluster has no log yet; ask again")
    if asked is None:
        raise BadRequest(
            f"no log of this cluster has flush = {flush!r}; say with copies how many the queue shall have, and one "
            "is made"
        )
    return _made(state, asked, flush or _FLUSH, is_up)


def _least_used(state: ClusterState, fitting: list[str]) -> str:
    """Of those that have a master, if any has one, the log with the fewest queues; of equals the one with the lowest
    number."""
    held = Counter(state.queues.values())
    return min(fitting, key=lambda each: (state.logs[each].master is None, held[each], state.logs[each].number))


def _made(state: ClusterState, copies: int, flush: str, is_up: Callable[[str], bool]) -> LogMade:
    """At home on the node that holds the fewest copies; the others are added by the cluster."""
    nodes = [node for node, facts in state.nodes.items() if not facts.witness]
    if copies > len(nodes):
        raise BadRequest(f"argument 'copies' is {copies}, and the cluster has {len(nodes)} nodes to hold them")
    free = [node for node in nodes if is_up(node) and not state.nodes[node].draining] or nodes
    held = Counter(node for log in state.logs.values() for node in log.replicas)
    numbers = {log.number for log in state.logs.values()}
    number = next((each for each in range(LOG_NUMBER_MAX + 1) if each not in numbers), None)
    if number is None:
        raise BadRequest(f"the cluster has {len(numbers)} logs, and can have no more; ask for what one of them has")
    name = f"{copies}-copies-{flush}"
    return LogMade(
        log_id=str(uuid5(UUID(state.cluster_id), name)),
        number=number,
        name=name,
        flush=flush,
        replicas=(min(free, key=lambda node: (held[node], node)),),
        copies=copies,
    )
