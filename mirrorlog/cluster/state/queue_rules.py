"""The rules of where queues are: in which log each is placed, with which others, and what ends with a node's run. Pure.

Virtual hosts, exchanges, bindings and users have theirs in `topology_rules`; what a change of these means for queues
stands here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from msgspec.structs import replace

from mirrorlog.cluster.state import topology_rules
from mirrorlog.cluster.state.commands import (
    Command,
    LogMade,
    QueuesPlaced,
    QueuesRemoved,
    QueuesUnbound,
    RunEnded,
    TransientLogMade,
)
from mirrorlog.cluster.state.log_rules import made, node_of
from mirrorlog.cluster.state.placements import LogPlaces
from mirrorlog.cluster.state.state import TRANSIENT_PREFIX, ClusterState, Forbidden, holds_transient
from mirrorlog.cluster.state.topology_commands import VirtualHostRemoved
from mirrorlog.errors import QueueMoving
from mirrorlog.wire.names import SEPARATOR, shown, split

LOG_GROUPS_MAX: Final = 10_000
LOG_GROUPS_PER_HOST: Final = 2_000
"""Of one virtual host, all that there ever were: a group is kept when its queues are gone, and goes with its virtual
host."""


def placed(state: ClusterState, index: int, command: QueuesPlaced) -> ClusterState:
    if command.log_id not in state.logs:
        raise Forbidden(f"there is no log {command.log_id}")
    for name in command.names:
        virtual_host = split(name)[0]
        if SEPARATOR in name and state.routing.virtual_host(virtual_host) is None:
            raise Forbidden(f"there is no virtual host {virtual_host!r}")
    if command.log_group:
        return _placed_in_group(state, command)
    return _with_queues(state, command.names, command.log_id)


def _with_queues(state: ClusterState, names: Iterable[str], log_id: str) -> ClusterState:
    new = {name: log_id for name in names if name not in state.queues}
    return replace(state, queues={**state.queues, **new}) if new else state


def _placed_in_group(state: ClusterState, command: QueuesPlaced) -> ClusterState:
    group = command.log_group
    if any(move.log_group == group for move in state.placing.moves.values()):
        raise QueueMoving(f"the queues of log group {shown(group)} are moving to another log; ask again")
    placed = {name: state.queues[name] for name in command.names if name in state.queues}
    for where in (*placed.values(), command.log_id):
        if holds_transient(state, where):
            raise Forbidden(
                f"log group {shown(group)} cannot be in log {state.logs[where].name}: what is in there is not durable, "
                f"and goes with its node, as {', '.join(map(shown, command.names))} does; delete that queue first, or "
                "take another name"
            )
    log_id = state.log_groups.get(group) or next(iter(placed.values()), command.log_id)
    for name, other in placed.items():
        if other != log_id:
            raise Forbidden(
                f"queue {shown(name)} is in log {state.logs[other].name}, and log group {shown(group)} in log "
                f"{state.logs[log_id].name}; leave x-log-group away, or take another one"
            )
    log = state.logs[log_id]
    if command.copies not in (0, log.copies) or command.flush not in ("", log.flush):
        raise Forbidden(
            f"log group {shown(group)} is in log {log.name}, which has flush = {log.flush!r} and copies = "
            f"{log.copies}, and the queue asks for others: leave these away, or take another x-log-group"
        )
    if group not in state.log_groups:
        _check_room_for_group(state, split(group)[0])
    state = replace(state, log_groups={**state.log_groups, group: log_id})
    return _with_queues(state, command.names, log_id)


def _check_room_for_group(state: ClusterState, virtual_host: str) -> None:
    whose, limit, advice = "this cluster", LOG_GROUPS_MAX, "or remove a virtual host that nobody needs: its groups go"
    if len(state.log_groups) < LOG_GROUPS_MAX:
        if sum(split(group)[0] == virtual_host for group in state.log_groups) < LOG_GROUPS_PER_HOST:
            return
        whose, limit = f"virtual host {virtual_host}", LOG_GROUPS_PER_HOST
        advice = "or declare the queue in another virtual host"
    raise Forbidden(
        f"{whose} has {limit} log groups (x-log-group), and can have no more: leave x-log-group away, take one that is "
        f"there, {advice}"
    )


def unbound(state: ClusterState, index: int, command: QueuesUnbound) -> ClusterState:
    log = state.logs.get(command.log_id)
    if log is None:
        raise Forbidden(f"there is no log {command.log_id}")
    if command.epoch != log.epoch:
        raise Forbidden(f"log {log.name} has moved on: epoch {log.epoch}; the command knew epoch {command.epoch}")
    return _without_bindings(state, [name for name in command.names if state.queues.get(name) == command.log_id])


def _without_bindings(state: ClusterState, names: Collection[str]) -> ClusterState:
    routing = topology_rules.without_queues(state.routing, names)
    return state if routing is state.routing else replace(state, topology=routing)


def removed(state: ClusterState, index: int, command: QueuesRemoved) -> ClusterState:
    log = state.logs.get(command.log_id)
    if log is None:
        raise Forbidden(f"there is no log {command.log_id}")
    removals = state.removals.get(command.log_id, 0)
    if (command.epoch, command.removals) != (log.epoch, removals):
        raise Forbidden(
            f"log {log.name} has moved on: epoch {log.epoch}, {removals} queues removed; the command knew epoch "
            f"{command.epoch}, {command.removals} removed"
        )
    moves = state.placing.moves
    gone = {name for name in command.names if state.queues.get(name) == command.log_id and name not in moves}
    if not gone:
        return state
    # A bind may have come in between: it saw the queue in its place.
    unbound = _without_bindings(state, sorted(gone))
    return replace(
        unbound,
        queues={name: log_id for name, log_id in state.queues.items() if name not in gone},
        removals={**state.removals, command.log_id: removals + 1},
        places=_without_spans(state, gone),
    )


def _without_spans(state: ClusterState, names: Collection[str]) -> LogPlaces | None:
    places = state.placing
    left = places.without_syncs(names)
    spans = {name: spans for name, spans in places.spans.items() if name not in names}
    came = {name: index for name, index in places.came.items() if name not in names}
    same = left is places and len(spans) == len(places.spans)
    return state.places if same else replace(left, spans=spans, came=came)


def transient_made(state: ClusterState, index: int, command: TransientLogMade) -> ClusterState:
    if command.node in state.transient:
        return state
    log = LogMade(
        log_id=command.log_id,
        number=command.number,
        name=f"{TRANSIENT_PREFIX}{command.node}-{command.number}",
        flush="memory",
        replicas=(command.node,),
        copies=1,
    )
    return replace(made(state, index, log), transient={**state.transient, command.node: command.log_id})


def run_ended(state: ClusterState, index: int, command: RunEnded) -> ClusterState:
    node = node_of(state, command.node)
    if node.start_id != command.start_id:
        raise Forbidden(f"node {command.node} runs as {node.start_id}, not as {command.start_id}")
    return without_transient(state, command.node)


def without_transient(state: ClusterState, node: str) -> ClusterState:
    """The node's run is over: the queues in its transient log are gone, and what led to them."""
    log_id = state.transient.get(node)
    names = tuple(name for name, where in state.queues.items() if where == log_id) if log_id is not None else ()
    if log_id is None or not names:
        return state
    routing = topology_rules.without_queues(state.routing, names)
    return replace(
        state,
        topology=state.topology if routing is state.routing else routing,
        queues={name: where for name, where in state.queues.items() if where != log_id},
        removals={**state.removals, log_id: state.removals.get(log_id, 0) + 1},
    )


def forget_transient(state: ClusterState, node: str) -> ClusterState:
    """The node does not come back: nothing in its transient log is worth keeping. The log stays, without copies, for
    its number tells the ids that it has given out."""
    log_id = state.transient.get(node)
    if log_id is None:
        return state
    left = without_transient(state, node)
    log = left.logs[log_id]
    empty = replace(log, replicas=(), master=None, in_sync={}, marked=frozenset(), version=log.version + 1, wished="")
    return replace(
        left,
        logs={**left.logs, log_id: empty},
        transient={each: where for each, where in left.transient.items() if each != node},
    )


def topology_changed(state: ClusterState, index: int, command: Command) -> ClusterState:
    changed = topology_rules.changed(state.routing, command, state.queues.keys())
    if changed == state.routing:
        return state
    state = replace(state, topology=changed)
    if not isinstance(command, VirtualHostRemoved):
        return state
    kept = {group: log_id for group, log_id in state.log_groups.items() if split(group)[0] != command.name}
    return replace(state, log_groups=kept)  # it has no queues any more
