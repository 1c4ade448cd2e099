"""Which log a new queue goes to, by its arguments. Pure.

A log is a placement: so many copies, in memory or on disk. A queue that asks for nothing goes to one of the logs with
the cluster's own number of copies; one that asks for a number to a log with that many, which is made if there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID, uuid5

from mirrorlog.cluster.state.commands import LogMade
from mirrorlog.cluster.state.state import ClusterState, LogFacts, holds_transient
from mirrorlog.config import LOG_NUMBER_MAX, Flush
from mirrorlog.errors import BadRequest
from mirrorlog.wire.names import shown

_FLUSH: Final[Flush] = "memory"


def place_for(
    state: ClusterState,
    arguments: Mapping[str, Any],
    *,
    copies: int,
    is_up: Callable[[str], bool],
    log_group: str = "",
) -> str | LogMade:
    """The log's id, or the log that is to be made first. `arguments`: checked (`queues.registry`); `copies`: of a queue
    that does not say; `log_group`: the qualified name of its `x-log-group`, if it has one.

    Raises BadRequest when the cluster has no such log and can have none, or has the group in another one.
    """
    flush, asked = arguments.get("flush"), arguments.get("copies")
    if (log_id := state.log_groups.get(log_group)) is not None:
        _check_group(log_group, state.logs[log_id], flush, asked)
        return log_id
    logs = {log_id: log for log_id, log in state.logs.items() if not holds_transient(state, log_id)}
    wanted = asked if asked is not None else min(copies, max((log.copies for log in logs.values()), default=0))
    by_flush = [log_id for log_id, log in logs.items() if flush in (None, log.flush)]
    fitting = [log_id for log_id in by_flush if logs[log_id].copies == wanted]
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


def _check_group(log_group: str, log: LogFacts, flush: str | None, copies: int | None) -> None:
    """Whether a queue fits into the log of its group. Raises BadRequest."""
    if flush in (None, log.flush) and copies in (None, log.copies):
        return
    asked = {"flush": flush, "copies": copies}
    wants = ", ".join(f"{name} = {value!r}" for name, value in asked.items() if value is not None)
    raise BadRequest(
        f"log group {shown(log_group)} is in log {log.name}, which has flush = {log.flush!r} and copies = "
        f"{log.copies}; the queue asks for {wants}: leave that away, or take another x-log-group",
        log=log.name,
    )


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
