"""The rules of logs: who masters one, who is in sync, what was lost. Pure.

A command that names a log says in which (epoch, version) its sender saw it: it is refused when the log has moved on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeVar

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.state.commands import (
    Holder,
    InSyncGrown,
    InSyncShrunk,
    LogAltered,
    LogMade,
    LogRemoved,
    LossEndFound,
    MasterWished,
    OffsetJumpConfirmed,
    Promoted,
    QueueIdsGranted,
    ReplicaAdded,
    ReplicaRemoved,
    ReplicaRetired,
    ReplicasWished,
    Seen,
)
from mirrorlog.cluster.state.move_rules import without_moves_of
from mirrorlog.cluster.state.placements import NOWHERE, LogPlace, Placement
from mirrorlog.cluster.state.state import (
    EPOCH_MAX,
    QUEUE_IDS_MAX,
    ClusterState,
    Forbidden,
    LogFacts,
    Loss,
    NodeFacts,
    holds_transient,
)
from mirrorlog.config import COPIES_MAX, LOG_NUMBER_MAX
from mirrorlog.wire.names import shown

_Value = TypeVar("_Value")

LOSSES_KEPT: Final = 1000
"""Of each log; the oldest go. All of them were in the logs and the metrics."""


def made(state: ClusterState, index: int, command: LogMade) -> ClusterState:
    known = state.logs.get(command.log_id)
    if known is not None and (known.name, known.number) == (command.name, command.number):
        return state
    for log_id, log in state.logs.items():
        if log_id == command.log_id or log.name == command.name or log.number == command.number:
            raise Forbidden(
                f"log {log.name} has the id {log_id} and the number {log.number}; {command.name} cannot have the id "
                f"{command.log_id} and the number {command.number}"
            )
    _check_log(command)
    for node in command.replicas:
        _data_node(state, node)
    facts = LogFacts(
        number=command.number,
        name=command.name,
        flush=command.flush,
        replicas=command.replicas,
        copies=command.copies,
        min_in_sync=command.min_in_sync,
        copies_wanted=command.min_in_sync or _majority(min(command.copies, len(command.replicas))),
    )
    place = LogPlace(rule=command.placement, ids_from=state.placing.ids_given.get(str(command.number), 0))
    return with_place(replace(state, logs={**state.logs, command.log_id: facts}), command.log_id, place)


def with_place(state: ClusterState, log_id: str, place: LogPlace) -> ClusterState:
    """One that says nothing is none."""
    if place == state.placing.place(log_id):
        return state
    logs = {each: there for each, there in state.placing.logs.items() if each != log_id}
    if place != NOWHERE:
        logs[log_id] = place
    return replace(state, places=replace(state.placing, logs=logs))


def _check_log(command: LogMade) -> None:
    name, copies, min_in_sync = command.name, command.copies, command.min_in_sync
    if not 0 <= command.number <= LOG_NUMBER_MAX:
        raise Forbidden(f"log {name}: its number is 0 to {LOG_NUMBER_MAX}, not {command.number}")
    if command.flush not in ("memory", "disk"):
        raise Forbidden(f"log {name}: flush is memory or disk, not {command.flush}")
    if not command.replicas or len(set(command.replicas)) != len(command.replicas):
        raise Forbidden(f"log {name} needs nodes to hold it, each once")
    if copies < 1 or (min_in_sync is not None and not 1 <= min_in_sync <= copies):
        raise Forbidden(f"log {name}: min_in_sync is 1 up to copies, not {min_in_sync} of {copies}")


def altered(state: ClusterState, index: int, command: LogAltered) -> ClusterState:
    log, rule = _log(state, command.log_id, command.seen), command.placement
    if rule.flush != log.flush:
        raise Forbidden(f"log {log.name} has flush = {log.flush!r}, for ever; its queues move for another one")
    _check_stays(state, command.log_id)
    if rule == state.rule(command.log_id):
        return state
    # Software of version 6 decided without this.
    if state.cluster_version >= versions.SYNC and (other := other_queue(state, command.log_id)):
        raise Forbidden(f"log {log.name} has records of queue {shown(other)}, or gets it: its rule stays for that one")
    copies = copies_of(rule)
    if rule.min_in_sync is not None and rule.min_in_sync > copies:
        raise Forbidden(f"log {log.name}: min_in_sync is 1 up to copies, not {rule.min_in_sync} of {copies}")
    # Not above what is in sync, or nothing were confirmed; the set grows, and the number with it (`with_needed`).
    wanted = rule.min_in_sync or _majority(min(copies, len(log.replicas)))
    copies_wanted = max(1, min(wanted, len(log.promotable) or 1))
    changed = replace(log, copies=copies, min_in_sync=rule.min_in_sync, copies_wanted=copies_wanted)
    # Who was wished was so by the rule before.
    place = replace(state.placing.place(command.log_id), rule=rule, target=())
    return _with_log(with_place(state, command.log_id, place), command.log_id, changed)


def other_queue(state: ClusterState, log_id: str) -> str:
    """A queue that is elsewhere, and has records in a log, confirmed by the copies of that log's rule, or moves there;
    empty when there is none."""
    places = state.placing
    left = (
        name
        for name, spans in places.spans.items()
        if state.queues.get(name) != log_id and any(span.log_id == log_id and not span.ended for span in spans)
    )
    return next(left, "") or next((name for name, move in places.moves.items() if move.target == log_id), "")


def copies_of(rule: Placement) -> int:
    """How many that is at most; all nodes, and more than will ever be there, is COPIES_MAX."""
    return len(rule.nodes) or min(rule.copies or COPIES_MAX, COPIES_MAX)


def homes_for(state: ClusterState, log_id: str) -> list[str]:
    """Nodes that may hold a log, by its rule and for good, by name; where none of those is there that it names, all."""
    staying = sorted([node for node, facts in state.nodes.items() if not facts.witness and not facts.leaving])
    place = state.places.logs.get(log_id) if state.places is not None else None
    if place is None or place.rule is None or not place.rule.nodes:
        return staying
    return [node for node in place.rule.nodes if node in staying] or staying


def promised(state: ClusterState, log_id: str) -> int:
    """How many copies a log has: as many as its rule says, or as there are nodes for it."""
    return promised_of(state.rule(log_id), homes_for(state, log_id))


def promised_of(rule: Placement, able: Collection[str]) -> int:
    """The same; `able`: who may hold it."""
    if rule.nodes and not set(rule.nodes) & set(able):
        return 1
    return max(1, min(copies_of(rule), len(able)))


def fewest(state: ClusterState, log_id: str) -> int:
    """To how few copies a log may be moved: those that are promised, and that a confirm needs by its own setting. The
    default for that follows the copies, as they go one by one."""
    return max(promised(state, log_id), state.logs[log_id].min_in_sync or 1)


def _check_stays(state: ClusterState, log_id: str) -> None:
    if holds_transient(state, log_id):
        raise Forbidden(f"what is in log {state.logs[log_id].name} goes with its node: it has one copy, which stays")


def removed(state: ClusterState, index: int, command: LogRemoved) -> ClusterState:
    log, places = _log(state, command.log_id, command.seen), state.placing
    if places.place(command.log_id).rule is None:
        raise Forbidden(f"log {log.name} was founded: it stays, for queues that are declared")
    used = {*state.queues.values(), *state.log_groups.values(), *state.transient.values()}
    used.update(span.log_id for spans in places.spans.values() for span in spans if not span.ended)
    used.update(log_id for move in places.moves.values() for log_id in (move.source, move.target))
    if command.log_id in used:
        raise Forbidden(f"log {log.name} has queues, or spans or a log group of queues; it stays")
    left = replace(
        with_place(state, command.log_id, NOWHERE),
        logs=_but(state.logs, command.log_id),
        removals=_but(state.removals, command.log_id),
        granted_ids=_but(state.granted_ids, command.log_id),
    )
    given = {**places.ids_given, str(log.number): state.queue_ids(command.log_id)}
    return replace(left, places=replace(left.placing, ids_given=given, logs_removed=places.logs_removed + 1))


def _but(of: Mapping[str, _Value], log_id: str) -> dict[str, _Value]:
    return {each: value for each, value in of.items() if each != log_id}


def replicas_wished(state: ClusterState, index: int, command: ReplicasWished) -> ClusterState:
    log, place = _log(state, command.log_id, command.seen), state.placing.place(command.log_id)
    if len(set(command.nodes)) != len(command.nodes):
        raise Forbidden(f"log {log.name}: a node is wished twice: {', '.join(command.nodes)}")
    able, least = homes_for(state, command.log_id), fewest(state, command.log_id)
    for node in command.nodes:
        _data_node(state, node)
        if node not in able:
            raise Forbidden(f"node {node} leaves, or the placement of log {log.name} is not for it: {', '.join(able)}")
    if command.nodes:
        _check_stays(state, command.log_id)
        if len(command.nodes) < least:
            raise Forbidden(f"log {log.name} promises {least} copies; {', '.join(command.nodes)} are too few")
    if command.nodes == place.target or (not place.target and command.nodes == log.replicas):
        return state
    place = replace(place, target=command.nodes)
    return _with_log(with_place(state, command.log_id, place), command.log_id, log)


def arrived(state: ClusterState, log_id: str) -> ClusterState:
    """A wish that has come about is none any more: the log is on these nodes, and mastered by the first of them."""
    log, place = state.logs[log_id], state.placing.place(log_id)
    at_home = log.master is not None and (log.master.node,) == place.target[:1]
    if set(place.target) != set(log.replicas) or not (at_home or place.target == log.replicas):
        return state
    state = with_place(state, log_id, replace(place, target=()))
    return replace(state, logs={**state.logs, log_id: replace(log, replicas=place.target)})


def replica_retired(state: ClusterState, index: int, command: ReplicaRetired) -> ClusterState:
    log, node = _log(state, command.log_id, command.seen), command.node
    if node not in log.replicas:
        return state
    target = state.placing.place(command.log_id).target
    if not target or node in target:
        raise Forbidden(f"log {log.name}: nobody wishes that node {node} holds it no more")
    if log.master is None or log.master.node == node:
        raise Forbidden(f"node {node} masters log {log.name}, or nobody does; another one takes it over first")
    whole = [each for each in log.promotable if each != node]
    least = max(log.copies_wanted, promised(state, command.log_id))
    if len(whole) < least:
        raise Forbidden(
            f"log {log.name} promises {least} copies, and without node {node} only {', '.join(whole) or 'nobody'} "
            "would be whole and in sync; others come in first"
        )
    left = {each: start for each, start in log.in_sync.items() if each != node}
    return _with_log(state, command.log_id, _without(replace(log, in_sync=left, marked=log.marked - {node}), node))


def replica_added(state: ClusterState, index: int, command: ReplicaAdded) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    _data_node(state, command.node)
    if command.node in log.replicas:
        return state
    return _with_log(state, command.log_id, with_needed(replace(log, replicas=(*log.replicas, command.node))))


def replica_removed(state: ClusterState, index: int, command: ReplicaRemoved) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if command.node not in log.replicas:
        return state
    if command.node in log.in_sync:
        raise Forbidden(f"node {command.node} is in sync with log {log.name}; it leaves that set first")
    if not spares(log, command.node):
        raise Forbidden(
            f"log {log.name} needs {log.copies_wanted} in-sync copies, and {len(log.replicas) - 1} copies are too few "
            "for that; add another one first"
        )
    return _with_log(state, command.log_id, _without(log, command.node))


def spares(log: LogFacts, node: str) -> bool:
    """Whether enough replicas are left without this one."""
    left = _without(log, node)
    return left.copies_wanted >= log.copies_wanted and len(left.replicas) >= log.copies_wanted


def _without(log: LogFacts, node: str) -> LogFacts:
    return with_needed(replace(log, replicas=tuple(each for each in log.replicas if each != node)))


def promoted(state: ClusterState, index: int, command: Promoted) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    holder = command.holder
    _holding(state, log, holder)
    if not log.epoch < command.epoch <= EPOCH_MAX:
        raise Forbidden(f"log {log.name} is in epoch {log.epoch}; {command.epoch} is not above it, up to {EPOCH_MAX}")
    whole = holder.node in log.promotable
    if log.epoch > 0 and not whole and not command.unclean:
        raise Forbidden(f"node {holder.node} may lack what was confirmed of log {log.name}; in sync: {_names(log)}")
    if log.epoch > 0 and not whole and command.lost_from is None:
        raise Forbidden(f"log {log.name}: a promotion of {holder.node} has to say what may be lost")
    losses = log.losses
    if command.lost_from is not None:
        losses = (*losses, Loss(command.epoch, command.lost_from))[-LOSSES_KEPT:]
    changed = replace(
        log,
        master=holder,
        epoch=command.epoch,
        raised_from=0,
        in_sync=log.in_sync if whole else {holder.node: holder.start_id},
        marked=log.marked if whole else frozenset(),
        losses=losses,
        wished=log.wished if log.master == holder and holder.node != log.wished else "",
    )
    state = _with_log(state, command.log_id, changed)
    return state if command.lost_from is None else without_moves_of(state, command.log_id)


def master_wished(state: ClusterState, index: int, command: MasterWished) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if command.node and command.node not in log.promotable:
        raise Forbidden(f"node {command.node} cannot be the next master of log {log.name}; in sync: {_names(log)}")
    masters = log.master is not None and log.master.node == command.node
    wished = "" if masters else command.node
    return state if wished == log.wished else _with_log(state, command.log_id, replace(log, wished=wished))


def in_sync_shrunk(state: ClusterState, index: int, command: InSyncShrunk) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if not command.nodes:
        return _with_log(state, command.log_id, log)
    gone = set(command.nodes) & set(log.in_sync)
    if not gone:
        return state
    if log.master is None or log.master.node in gone:
        raise Forbidden(f"log {log.name}: its master is always in sync; in sync: {_names(log)}")
    if set(log.may_leave(gone)) != gone:
        raise Forbidden(
            f"log {log.name} needs {log.copies_wanted} whole in-sync copies; {', '.join(sorted(gone))} cannot leave; "
            f"in sync: {_names(log)}"
        )
    left = {node: start for node, start in log.in_sync.items() if node not in gone}
    return _with_log(state, command.log_id, replace(log, in_sync=left, marked=log.marked - gone))


def in_sync_grown(state: ClusterState, index: int, command: InSyncGrown) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    holder = command.holder
    _holding(state, log, holder)
    if log.master is None:
        raise Forbidden(f"log {log.name} has no master that could vouch for {holder.node}")
    if log.in_sync.get(holder.node) == holder.start_id and holder.node not in log.marked:
        return state
    changed = replace(log, in_sync={**log.in_sync, holder.node: holder.start_id}, marked=log.marked - {holder.node})
    return _with_log(state, command.log_id, with_needed(changed))


def jump_confirmed(state: ClusterState, index: int, command: OffsetJumpConfirmed) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if log.master is None:
        raise Forbidden(f"log {log.name} has no master that could have let its queue offsets jump")
    if not log.owes_jump:
        return state
    return _with_log(
        state, command.log_id, replace(log, losses=tuple(replace(loss, leapt=True) for loss in log.losses))
    )


def loss_end_found(state: ClusterState, index: int, command: LossEndFound) -> ClusterState:
    """No version of the log: nobody decides by it, and it says the same whenever it comes."""
    log = state.logs.get(command.log_id)
    if log is None:
        raise Forbidden(f"there is no log {command.log_id}")
    if all(loss.epoch != command.epoch for loss in log.losses):
        raise Forbidden(f"log {log.name} knows of no loss when its epoch {command.epoch} began")
    losses = tuple(_up_to(loss, command.end) if loss.epoch == command.epoch else loss for loss in log.losses)
    return replace(state, logs={**state.logs, command.log_id: replace(log, losses=losses)})


def queue_ids_granted(state: ClusterState, index: int, command: QueueIdsGranted) -> ClusterState:
    """No version of the log, and whoever asks: a bound that is too high costs numbers, and nothing else."""
    if command.log_id not in state.logs:
        raise Forbidden(f"there is no log {command.log_id}")
    until = min(command.until, QUEUE_IDS_MAX)
    if until <= state.queue_ids(command.log_id):
        return state
    return replace(state, granted_ids={**state.granted_ids, command.log_id: until})


def _up_to(loss: Loss, end: int) -> Loss:
    return replace(loss, end=max(loss.start, end, loss.end or 0))


def node_of(state: ClusterState, node: str) -> NodeFacts:
    if node not in state.nodes:
        raise Forbidden(f"no node {node} is in the cluster; there are {', '.join(sorted(state.nodes)) or 'none'}")
    return state.nodes[node]


def _data_node(state: ClusterState, node: str) -> None:
    if node_of(state, node).witness:
        raise Forbidden(f"node {node} is a witness: it holds no messages")


def _holding(state: ClusterState, log: LogFacts, holder: Holder) -> None:
    """It runs, and has a copy of the log."""
    node = node_of(state, holder.node)
    if node.start_id != holder.start_id or node.stopped:
        raise Forbidden(f"run {holder.start_id} of node {holder.node} has ended")
    if holder.node not in log.replicas:
        raise Forbidden(f"node {holder.node} holds no copy of log {log.name}")


def _log(state: ClusterState, log_id: str, seen: Seen) -> LogFacts:
    log = state.logs.get(log_id)
    if log is None:
        raise Forbidden(f"there is no log {log_id}")
    if seen != log.seen:
        raise Forbidden(
            f"log {log.name} has moved on: epoch {log.epoch}, version {log.version}; "
            f"the command knew epoch {seen.epoch}, version {seen.version}"
        )
    return log


def _names(log: LogFacts) -> str:
    members = [node for node in log.replicas if node in log.in_sync]
    return ", ".join(f"{node} (marked)" if node in log.marked else node for node in members) or "nobody"


def _majority(copies: int) -> int:
    """Of those, as far as it is asked for: one of two cannot wait for the other."""
    return 1 if copies <= 2 else copies // 2 + 1


def with_needed(log: LogFacts) -> LogFacts:
    """Other replicas, or more in sync, are another number that a confirm needs; never one that is not there."""
    if log.min_in_sync is not None:  # one that was raised for a log that is there holds nobody up either
        return replace(log, copies_wanted=max(log.copies_wanted, min(log.min_in_sync, len(log.promotable))))
    usual = _majority(min(log.copies, len(log.replicas)))
    return replace(log, copies_wanted=min(usual, max(log.copies_wanted, len(log.promotable))))


def _with_log(state: ClusterState, log_id: str, log: LogFacts) -> ClusterState:
    """Every change of a log is a version of it. Who is not whole in sync any more is wished no more."""
    wished = log.wished if log.wished in log.promotable else ""
    changed = replace(state, logs={**state.logs, log_id: replace(log, version=log.version + 1, wished=wished)})
    return arrived(changed, log_id) if log_id in state.placing.logs else changed
