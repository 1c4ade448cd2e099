"""The rules of nodes: who joins, starts, stops and leaves, and at which version the cluster runs. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.state import topology_rules
from mirrorlog.cluster.state.commands import (
    Addresses,
    Holder,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeLeaving,
    NodeStarted,
    NodeStopped,
    StartKind,
    VersionRaised,
)
from mirrorlog.cluster.state.log_rules import arrived, node_of, with_needed, with_place
from mirrorlog.cluster.state.queue_rules import forget_transient, without_transient
from mirrorlog.cluster.state.state import QUEUE_IDS_MAX, ClusterState, Forbidden, LogFacts, NodeFacts, behind
from mirrorlog.errors import BadRequest

EPOCHS_RAISED: Final = 1_000_000
"""By a recovery of the cluster: more than a majority that is lost can have given out unseen."""
QUEUE_IDS_RAISED: Final = 65_536
"""By a recovery of the cluster: more than a majority that is lost can have granted unseen."""


def recovered(state: ClusterState, survivors: Collection[str]) -> ClusterState:
    """What goes on when a majority is lost for good: `survivors` alone, as a new incarnation of the cluster.

    What the lost ones decided last is not known here: any of them may have mastered any log. So no run masters anything
    any more, every copy that is left is marked, and every epoch is far above what they can have given out: each log
    recovers from the best of its copies and reports what it may have lost. Raises BadRequest.
    """
    unknown = sorted(set(survivors) - state.nodes.keys())
    if unknown or not survivors:
        raise BadRequest(
            f"no node {', '.join(unknown) or 'at all'} is known to go on with; there are {', '.join(state.nodes)}"
        )
    nodes = {name: facts for name, facts in state.nodes.items() if name in survivors}
    logs = {log_id: _recovered_log(log, nodes) for log_id, log in state.logs.items()}
    changed = state.topology
    if state.cluster_version >= versions.ROUTING:
        changed = topology_rules.recovered(state.routing)
    changed_state = replace(state, incarnation=state.incarnation + 1, nodes=nodes, logs=logs, topology=changed)
    if state.cluster_version >= versions.DELETION:
        raised = {log_id: min(state.queue_ids(log_id) + QUEUE_IDS_RAISED, QUEUE_IDS_MAX) for log_id in logs}
        changed_state = replace(changed_state, granted_ids=raised)
    for node in sorted(state.nodes.keys() - nodes.keys()):
        changed_state = _without_wishes(forget_transient(changed_state, node), node)
    return changed_state


def _recovered_log(log: LogFacts, nodes: Mapping[str, NodeFacts]) -> LogFacts:
    replicas = tuple(node for node in log.replicas if node in nodes)
    return with_needed(
        replace(
            log,
            replicas=replicas,
            master=None,
            epoch=log.epoch + EPOCHS_RAISED,
            raised_from=log.last_led,
            in_sync={node: nodes[node].start_id for node in replicas},
            marked=frozenset(replicas),
            version=log.version + 1,
            wished="",
        )
    )


def restored(
    state: ClusterState, node: str, *, start_id: str, cluster_id: str, name: str, epochs: Mapping[str, int]
) -> ClusterState:
    """The beginning of another cluster, which holds what this one did: `node` alone, under a new identity, and with a
    whole copy of each log that was not transient. `start_id`: of the run that stands for its disk; `epochs`: the last
    one of each log's bytes, by the log's id. Nothing is lost and nothing is raised: who reads there begins anew.

    Raises BadRequest for a log that there are no bytes of."""
    for former in sorted(state.nodes):
        state = _without_wishes(forget_transient(state, former), former)
    missing = [log.name for log_id, log in state.logs.items() if log.replicas and log_id not in epochs]
    if missing:
        raise BadRequest(f"there is nothing of log {', '.join(missing)}")
    logs = {
        log_id: with_needed(
            replace(
                log,
                replicas=(node,),
                master=None,
                epoch=max(log.epoch, epochs[log_id]),
                raised_from=0,
                in_sync={node: start_id},
                marked=frozenset(),
                copies_wanted=1,
                version=log.version + 1,
                wished="",
            )
        )
        if log_id in epochs
        else log
        for log_id, log in state.logs.items()
    }
    addresses = next((facts.addresses for facts in state.nodes.values()), Addresses())
    nodes = {node: NodeFacts(member=1, addresses=addresses, start_id=start_id, stopped=True)}
    return replace(state, cluster_id=cluster_id, name=name, nodes=nodes, logs=logs)


def joined(state: ClusterState, index: int, command: NodeJoined) -> ClusterState:
    known = state.nodes.get(command.node)
    if known is not None and command.token and known.token == command.token:
        return state
    if known is not None:
        raise Forbidden(
            f"a node {command.node} is in the cluster already, as member {known.member}; forget it first if its disk "
            "is blank, or choose another id"
        )
    facts = NodeFacts(member=index, addresses=command.addresses, witness=command.witness, token=command.token)
    return _with_node(state, command.node, facts)


def started(state: ClusterState, index: int, command: NodeStarted) -> ClusterState:
    node = node_of(state, command.node)
    if node.start_id == command.start_id:
        return state
    if command.member not in (0, node.member):
        raise Forbidden(
            f"node {command.node} is member {node.member}; member {command.member} was forgotten, and its disk with it"
        )
    if (version := versions.version_of(command.start_id)) < state.cluster_version:
        raise Forbidden(versions.misfit(version, state.cluster_version))
    # A disk that does not know its last run was set back to an older one: what it acked since is gone.
    set_back = node.start_id not in ("", command.before, *command.since)
    if set_back and command.seen != node.start_id:
        raise Forbidden(
            f"node {command.node} was registered as {node.start_id}, which its disk does not know: either it was set "
            f"back to an earlier state, or run {command.start_id} is over"
        )
    kind = StartKind.LOSSY if set_back else command.kind
    facts = replace(
        node, start_id=command.start_id, kind=kind, stopped=False, draining=False, addresses=command.addresses
    )
    if set_back and len(state.nodes) > 1:
        # It may have forgotten a vote, as a blank disk has. One that is alone has nobody to begin anew from.
        facts = replace(facts, member=index)

    def loses(log_id: str, log: LogFacts) -> bool:
        """A machine that went down loses what was in memory only."""
        return set_back or log_id in command.damaged or (kind is StartKind.LOSSY and log.flush == "memory")

    holder = Holder(command.node, command.start_id)
    logs = {log_id: _with_new_run(log, holder, lossy=loses(log_id, log)) for log_id, log in state.logs.items()}
    return without_transient(replace(_with_node(state, command.node, facts), logs=logs), command.node)


def _with_new_run(log: LogFacts, holder: Holder, *, lossy: bool) -> LogFacts:
    """The run before has ended: it masters nothing any more. What it held, the new one holds, or is marked."""
    masters = log.master is not None and log.master.node == holder.node
    member = holder.node in log.in_sync
    if not masters and not member:
        return log
    return replace(
        log,
        master=None if masters else log.master,
        in_sync={**log.in_sync, holder.node: holder.start_id} if member else log.in_sync,
        marked=log.marked | {holder.node} if member and lossy else log.marked,
        version=log.version + 1,
        wished="" if lossy and log.wished == holder.node else log.wished,
    )


def stopped(state: ClusterState, index: int, command: NodeStopped) -> ClusterState:
    node = node_of(state, command.node)
    if node.start_id != command.start_id:
        raise Forbidden(f"node {command.node} runs as {node.start_id}, not as {command.start_id}")
    return without_transient(_with_node(state, command.node, replace(node, stopped=True)), command.node)


def draining(state: ClusterState, index: int, command: NodeDraining) -> ClusterState:
    node = node_of(state, command.node)
    return _with_node(state, command.node, replace(node, draining=command.draining))


def leaving(state: ClusterState, index: int, command: NodeLeaving) -> ClusterState:
    node = node_of(state, command.node)
    staying = [each for each, facts in state.nodes.items() if not facts.witness and not facts.leaving]
    if command.leaving and staying == [command.node]:
        raise Forbidden(f"node {command.node} is the only one left that may hold messages; add another one first")
    return _with_node(state, command.node, replace(node, leaving=command.leaving))


def forgotten(state: ClusterState, index: int, command: NodeForgotten) -> ClusterState:
    known = state.nodes.get(command.node)
    if known is None or command.member not in (0, known.member):
        return state
    state = forget_transient(state, command.node)
    logs = {log_id: _without_node(log, command.node) for log_id, log in state.logs.items()}
    nodes = {name: facts for name, facts in state.nodes.items() if name != command.node}
    return _without_wishes(replace(state, nodes=nodes, logs=logs), command.node)


def _without_wishes(state: ClusterState, node: str) -> ClusterState:
    """What was wished of a node that is gone comes about no more: others are looked for."""
    for log_id, place in state.placing.logs.items():
        if node in place.target:
            state = with_place(state, log_id, replace(place, target=()))
        elif place.target:
            state = arrived(state, log_id)
    return state


def _without_node(log: LogFacts, node: str) -> LogFacts:
    if node not in log.replicas:
        return log
    # Of marked members one may go while another stays: that something may be lost is known, and will be said.
    if log.promotable == (node,) or tuple(log.in_sync) == (node,):
        raise Forbidden(
            f"node {node} holds the last copy of log {log.name} that may be whole; promote another one first, and "
            "accept the loss"
        )
    return with_needed(
        replace(
            log,
            replicas=tuple(each for each in log.replicas if each != node),
            master=None if log.master is not None and log.master.node == node else log.master,
            in_sync={each: start for each, start in log.in_sync.items() if each != node},
            marked=log.marked - {node},
            version=log.version + 1,
            wished="" if log.wished == node else log.wished,
        )
    )


def version_raised(state: ClusterState, index: int, command: VersionRaised) -> ClusterState:
    if command.version <= state.cluster_version:
        return state
    if command.version != state.cluster_version + 1:
        raise Forbidden(f"the cluster runs at version {state.cluster_version}; {command.version} is not the next one")
    if late := behind(state, command.version):
        raise Forbidden(
            f"the cluster runs at version {state.cluster_version} until all nodes are updated; not updated: "
            f"{', '.join(late)}"
        )
    return replace(state, cluster_version=command.version)


def _with_node(state: ClusterState, node: str, facts: NodeFacts) -> ClusterState:
    return replace(state, nodes={**state.nodes, node: facts})
