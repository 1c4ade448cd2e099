"""What the cluster has decided: nodes and logs, as one value that commands turn into the next one. Pure.

Every node applies the same commands in the same order and has the same state. What a command may not do is refused
here, when it is applied, and nowhere else: a coordinator that is wrong, late or no coordinator any more changes nothing
that the rules do not allow. A refused command changes nothing, and its outcome says why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.attempts import outcome_of
from mirrorlog.cluster.state import topology
from mirrorlog.cluster.state.commands import (
    SINCE,
    TOPOLOGY,
    Addresses,
    AnyCommand,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    LeapConfirmed,
    LogMade,
    LossEndFound,
    MasterWished,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeStarted,
    NodeStopped,
    Promoted,
    QueueIdsGranted,
    QueuesPlaced,
    QueuesRemoved,
    QueuesUnbound,
    ReplicaAdded,
    ReplicaRemoved,
    RunEnded,
    Seen,
    StartKind,
    TransientLogMade,
    VersionRaised,
    VirtualHostRemoved,
)
from mirrorlog.cluster.state.topology import Topology
from mirrorlog.config import LOG_NUMBER_MAX
from mirrorlog.errors import BadRequest, MirrorlogError, NotAMember, Refused, UnsupportedVersion, from_code
from mirrorlog.wire.names import SEPARATOR, shown, split

LOSSES_KEPT: Final = 1000
"""Of each log; the oldest go. All of them were in the logs and the metrics."""
EPOCH_MAX: Final = 2**32 - 1
"""What a batch's header can say."""
LOG_GROUPS_MAX: Final = 10_000
LOG_GROUPS_PER_HOST: Final = 2_000
"""Of one virtual host, all that there ever were: a group is kept when its queues are gone, and goes with its virtual
host."""
EPOCHS_RAISED: Final = 1_000_000
"""By a recovery of the cluster: more than a majority that is lost can have given out unseen."""


_TRANSIENT: Final = "transient-"
"""With what the names of these logs begin; see TransientLogMade."""


class NodeFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """`member`: its id in Raft; `token`: see NodeJoined; `start_id`: empty before its first start; `stopped`: cleanly,
    and not started since."""

    member: int
    addresses: Addresses
    witness: bool = False
    token: str = ""
    start_id: str = ""
    kind: StartKind = StartKind.CLEAN
    stopped: bool = False
    draining: bool = False


class Loss(msgspec.Struct, frozen=True, omit_defaults=True):
    """Confirmed records may be gone from log offset `start` on. `epoch`: the one that began there; `end`: up to where,
    as far as copies that returned have told; `leapt`: queue offsets are past it, and that is confirmed."""

    epoch: int
    start: int
    end: int | None = None
    leapt: bool = False


QUEUE_IDS_GRANTED: Final = 4096
"""Numbers of queues that a log has from the beginning, and that are granted at once when it needs more."""
QUEUE_IDS_RAISED: Final = 65_536
"""By a recovery of the cluster: more than a majority that is lost can have granted unseen."""
QUEUE_IDS_MAX: Final = (1 << 24) - 1
"""Of one log, for all time: a queue's id has 24 bits for it."""


class LogFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """`replicas`: nodes, the home first; `master`: None before the first promotion and when its run has ended.

    `wished`: who shall take over from the master, empty for nobody; see MasterWished.
    `raised_from`: what the epoch was when the cluster was recovered, until the next promotion; see `last_led`.

    `in_sync`: by node, the run in which it holds everything; `marked`: of these, who may have lost something of it.
    `copies_wanted`: with fewer nothing is confirmed, and the set does not shrink below it. It is `min_in_sync`, or by
    default 1 with one or two copies and the majority with more; more copies raise it only once so many are in sync, so
    that a copy that is added holds nobody up.
    """

    number: int
    name: str
    flush: str
    replicas: tuple[str, ...]
    copies: int = 3
    min_in_sync: int | None = None
    copies_wanted: int = 1
    master: Holder | None = None
    epoch: int = 0
    version: int = 0
    in_sync: Mapping[str, str] = {}
    marked: frozenset[str] = frozenset()
    losses: tuple[Loss, ...] = ()
    wished: str = ""
    raised_from: int = 0

    @property
    def last_led(self) -> int:
        """The last epoch that is known to have had a master: nobody writes in one that a recovery has raised."""
        return self.raised_from or self.epoch

    @property
    def seen(self) -> Seen:
        """For a command about it."""
        return Seen(self.epoch, self.version)

    @property
    def promotable(self) -> tuple[str, ...]:
        """In-sync members that lost nothing, in the order of the replicas."""
        return tuple(node for node in self.replicas if node in self.in_sync and node not in self.marked)

    @property
    def recovering(self) -> bool:
        """Whether everybody who held everything may have lost something of it."""
        return bool(self.in_sync) and not self.promotable

    @property
    def owes_leap(self) -> bool:
        """Whether something was lost and the queue offsets may not be past it: whoever is master lets them leap, and
        delivers nothing before that is confirmed."""
        return not all(loss.leapt for loss in self.losses)

    def may_leave(self, nodes: Collection[str]) -> tuple[str, ...]:
        """Who of `nodes` may leave the in-sync set together: never the master, and `copies_wanted` stay.

        A marked member fills no place of a whole one: while the whole ones are too few, none of them leaves, dead or
        not. Marked ones leave as far as the others are enough to hold the confirmed offset still.
        """
        master = self.master.node if self.master is not None else None
        leaving = [node for node in self.replicas if node in self.in_sync and node in nodes and node != master]
        marked = [node for node in leaving if node in self.marked]
        spare = len(self.promotable) - self.copies_wanted
        if spare > 0:
            return tuple(marked + [node for node in leaving if node not in self.marked][:spare])
        return tuple(marked[: max(0, len(self.in_sync) - self.copies_wanted)])


class ClusterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`version`: index of the last entry that changed it; `incarnation`: raised when a lost majority is replaced;
    `homes`: every node shall be home to a log; `queues`: the log's id by the queue's name; `cluster_version`: what may
    be written (`mirrorlog.versions`). As long as that is 1 the state is what software of version 1 makes of the same
    entries, byte for byte: a field that came later is not stored before."""

    cluster_id: str
    name: str
    homes: bool = True
    version: int = 0
    incarnation: int = 1
    nodes: Mapping[str, NodeFacts] = {}
    logs: Mapping[str, LogFacts] = {}
    queues: Mapping[str, str] = {}
    cluster_version: int = versions.FIRST
    topology: Topology | None = None
    """Virtual hosts, exchanges, users; None before the first change of these."""
    removals: Mapping[str, int] = {}
    """How often queues were taken away, by the log's id; see QueuesRemoved. Not with the log's facts: with one field
    more they would be other bytes at version 1."""
    transient: Mapping[str, str] = {}
    """The id of the log for what lives no longer than the node's run, by the node; see TransientLogMade."""
    log_groups: Mapping[str, str] = {}
    """The log's id by the qualified name of an `x-log-group`. It stays when the last queue of the group is deleted: who
    declares them anew finds them together again."""
    granted_ids: Mapping[str, int] = {}
    """By the log's id what `queue_ids` gives, where that is more than each log has from the beginning."""

    def queue_ids(self, log_id: str) -> int:
        """Up to this number masters of a log may give ids to queues, from 1; none above was ever given out. So one that
        has lost declarations, nobody knows how many, goes on above it (decision 0023)."""
        return self.granted_ids.get(log_id, QUEUE_IDS_GRANTED)

    @property
    def routing(self) -> Topology:
        """The same, which always is one."""
        return self.topology or topology.NONE


class Outcome(msgspec.Struct, frozen=True):
    """`refusal`: why nothing changed; empty when it did, or was so already. `code`: of the error that it is, where the
    rule names one; `details`: of that error. `in_doubt`: an earlier attempt got no answer, and it may be that one which
    the rule forbids now."""

    index: int
    refusal: str = ""
    code: str = ""
    details: Mapping[str, Any] = {}
    in_doubt: bool = False

    @property
    def error(self) -> MirrorlogError:
        """What whoever asked for it is told of a refusal."""
        refusal = from_code(self.code, self.refusal, dict(self.details)) if self.code else Refused(self.refusal)
        return outcome_of(refusal, in_doubt=self.in_doubt)


class _Refused(Exception):
    """A rule forbids it."""


def applied(state: ClusterState, index: int, command: AnyCommand) -> tuple[ClusterState, Outcome]:
    """The state after entry `index`, and what came of it."""
    try:
        changed = _HANDLERS[type(command)](state, index, command)
    except _Refused as refusal:
        return state, Outcome(index, str(refusal))
    except MirrorlogError as refusal:
        return state, Outcome(index, refusal.message, refusal.code, refusal.details)
    if changed == state:
        return state, Outcome(index)
    return replace(changed, version=index), Outcome(index)


def check_proposal(state: ClusterState, command: AnyCommand) -> None:
    """Before a command becomes an entry, which everybody has to read. Raises UnsupportedVersion for one that the
    cluster's version does not have, NotAMember for the start of a node whose software does not fit it.

    A start of software that is too old is refused when it is applied, too; here it costs no entry, however often it is
    asked for.
    """
    if isinstance(command, NodeStarted):
        if reason := versions.misfit(versions.version_of(command.start_id), state.cluster_version):
            raise NotAMember(f"the cluster does not let this node in: {reason}")
        return
    since = SINCE.get(type(command), versions.FIRST)
    # The raise is of the version that it leads to: it is not the cluster that has to have that, but everybody in it.
    if since > state.cluster_version and not (isinstance(command, VersionRaised) and not behind(state, since)):
        raise UnsupportedVersion(
            f"the cluster runs at version {state.cluster_version} until all nodes are updated, and "
            f"{type(command).__name__} came with version {since}; not updated: {', '.join(behind(state, since))}"
        )


def behind(state: ClusterState, version: int) -> list[str]:
    """Nodes whose last registered run is of software before `version`; those that never ran are, as far as is known."""
    return [node for node, facts in state.nodes.items() if versions.version_of(facts.start_id) < version]


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
        changed = topology.recovered(state.routing)
    changed_state = replace(state, incarnation=state.incarnation + 1, nodes=nodes, logs=logs, topology=changed)
    if state.cluster_version >= versions.DELETION:
        raised = {log_id: min(state.queue_ids(log_id) + QUEUE_IDS_RAISED, QUEUE_IDS_MAX) for log_id in logs}
        changed_state = replace(changed_state, granted_ids=raised)
    for node in sorted(state.nodes.keys() - nodes.keys()):
        changed_state = _forget_transient(changed_state, node)
    return changed_state


def _recovered_log(log: LogFacts, nodes: Mapping[str, NodeFacts]) -> LogFacts:
    replicas = tuple(node for node in log.replicas if node in nodes)
    return _with_needed(
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


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_decoder = msgspec.msgpack.Decoder(ClusterState)


def encode_state(state: ClusterState) -> bytes:
    """For a snapshot. Equal states are the same bytes."""
    return _encoder.encode(state)


def decode_state(data: bytes) -> ClusterState:
    """The other way. Raises msgspec.DecodeError, UnsupportedVersion for that of a cluster whose version this software
    does not work in."""
    state = _decoder.decode(data)
    versions.check_supported(state.cluster_version)
    return state


# --- Nodes ----------------------------------------------------------------------------------------------------------


def _joined(state: ClusterState, index: int, command: NodeJoined) -> ClusterState:
    known = state.nodes.get(command.node)
    if known is not None and command.token and known.token == command.token:
        return state
    if known is not None:
        raise _Refused(
            f"a node {command.node} is in the cluster already, as member {known.member}; forget it first if its disk "
            "is blank, or choose another id"
        )
    facts = NodeFacts(member=index, addresses=command.addresses, witness=command.witness, token=command.token)
    return _with_node(state, command.node, facts)


def _started(state: ClusterState, index: int, command: NodeStarted) -> ClusterState:
    node = _node(state, command.node)
    if node.start_id == command.start_id:
        return state
    if command.member not in (0, node.member):
        raise _Refused(
            f"node {command.node} is member {node.member}; member {command.member} was forgotten, and its disk with it"
        )
    if (version := versions.version_of(command.start_id)) < state.cluster_version:
        raise _Refused(versions.misfit(version, state.cluster_version))
    # A disk that does not know its last run was set back to an older one: what it acked since is gone.
    set_back = node.start_id not in ("", command.before, *command.since)
    if set_back and command.seen != node.start_id:
        raise _Refused(
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
    return _without_transient(replace(_with_node(state, command.node, facts), logs=logs), command.node)


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


def _stopped(state: ClusterState, index: int, command: NodeStopped) -> ClusterState:
    node = _node(state, command.node)
    if node.start_id != command.start_id:
        raise _Refused(f"node {command.node} runs as {node.start_id}, not as {command.start_id}")
    return _without_transient(_with_node(state, command.node, replace(node, stopped=True)), command.node)


def _draining(state: ClusterState, index: int, command: NodeDraining) -> ClusterState:
    node = _node(state, command.node)
    return _with_node(state, command.node, replace(node, draining=command.draining))


def _forgotten(state: ClusterState, index: int, command: NodeForgotten) -> ClusterState:
    known = state.nodes.get(command.node)
    if known is None or command.member not in (0, known.member):
        return state
    state = _forget_transient(state, command.node)
    logs = {log_id: _without_node(log, command.node) for log_id, log in state.logs.items()}
    nodes = {name: facts for name, facts in state.nodes.items() if name != command.node}
    return replace(state, nodes=nodes, logs=logs)


def _without_node(log: LogFacts, node: str) -> LogFacts:
    if node not in log.replicas:
        return log
    # Of marked members one may go while another stays: that something may be lost is known, and will be said.
    if log.promotable == (node,) or tuple(log.in_sync) == (node,):
        raise _Refused(
            f"node {node} holds the last copy of log {log.name} that may be whole; promote another one first, and "
            "accept the loss"
        )
    return _with_needed(
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


# --- Versions -------------------------------------------------------------------------------------------------------


def _raised(state: ClusterState, index: int, command: VersionRaised) -> ClusterState:
    if command.version <= state.cluster_version:
        return state
    if command.version != state.cluster_version + 1:
        raise _Refused(f"the cluster runs at version {state.cluster_version}; {command.version} is not the next one")
    if late := behind(state, command.version):
        raise _Refused(
            f"the cluster runs at version {state.cluster_version} until all nodes are updated; not updated: "
            f"{', '.join(late)}"
        )
    return replace(state, cluster_version=command.version)


# --- Queues ---------------------------------------------------------------------------------------------------------


def _placed(state: ClusterState, index: int, command: QueuesPlaced) -> ClusterState:
    if command.log_id not in state.logs:
        raise _Refused(f"there is no log {command.log_id}")
    for name in command.names:
        virtual_host = split(name)[0]
        if SEPARATOR in name and state.routing.virtual_host(virtual_host) is None:
            raise _Refused(f"there is no virtual host {virtual_host!r}")
    if command.log_group:
        return _placed_in_group(state, command)
    return _with_queues(state, command.names, command.log_id)


def _with_queues(state: ClusterState, names: Iterable[str], log_id: str) -> ClusterState:
    new = {name: log_id for name in names if name not in state.queues}
    return replace(state, queues={**state.queues, **new}) if new else state


def _placed_in_group(state: ClusterState, command: QueuesPlaced) -> ClusterState:
    group = command.log_group
    placed = {name: state.queues[name] for name in command.names if name in state.queues}
    for where in (*placed.values(), command.log_id):
        if holds_transient(state, where):
            raise _Refused(
                f"log group {shown(group)} cannot be in log {state.logs[where].name}: what is in there is not durable, "
                f"and goes with its node, as {', '.join(map(shown, command.names))} does; delete that queue first, or "
                "take another name"
            )
    log_id = state.log_groups.get(group) or next(iter(placed.values()), command.log_id)
    for name, other in placed.items():
        if other != log_id:
            raise _Refused(
                f"queue {shown(name)} is in log {state.logs[other].name}, and log group {shown(group)} in log "
                f"{state.logs[log_id].name}; leave x-log-group away, or take another one"
            )
    log = state.logs[log_id]
    if command.copies not in (0, log.copies) or command.flush not in ("", log.flush):
        raise _Refused(
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
    raise _Refused(
        f"{whose} has {limit} log groups (x-log-group), and can have no more: leave x-log-group away, take one that is "
        f"there, {advice}"
    )


def _queues_unbound(state: ClusterState, index: int, command: QueuesUnbound) -> ClusterState:
    log = state.logs.get(command.log_id)
    if log is None:
        raise _Refused(f"there is no log {command.log_id}")
    if command.epoch != log.epoch:
        raise _Refused(f"log {log.name} has moved on: epoch {log.epoch}; the command knew epoch {command.epoch}")
    return _without_bindings(state, [name for name in command.names if state.queues.get(name) == command.log_id])


def _without_bindings(state: ClusterState, names: Collection[str]) -> ClusterState:
    routing = topology.without_queues(state.routing, names)
    return state if routing is state.routing else replace(state, topology=routing)


def _queues_removed(state: ClusterState, index: int, command: QueuesRemoved) -> ClusterState:
    log = state.logs.get(command.log_id)
    if log is None:
        raise _Refused(f"there is no log {command.log_id}")
    removals = state.removals.get(command.log_id, 0)
    if (command.epoch, command.removals) != (log.epoch, removals):
        raise _Refused(
            f"log {log.name} has moved on: epoch {log.epoch}, {removals} queues removed; the command knew epoch "
            f"{command.epoch}, {command.removals} removed"
        )
    gone = {name for name in command.names if state.queues.get(name) == command.log_id}
    if not gone:
        return state
    # A bind may have come in between: it saw the queue in its place.
    unbound = _without_bindings(state, sorted(gone))
    return replace(
        unbound,
        queues={name: log_id for name, log_id in state.queues.items() if name not in gone},
        removals={**state.removals, command.log_id: removals + 1},
    )


def _transient_made(state: ClusterState, index: int, command: TransientLogMade) -> ClusterState:
    if command.node in state.transient:
        return state
    log = LogMade(
        log_id=command.log_id,
        number=command.number,
        name=f"{_TRANSIENT}{command.node}-{command.number}",
        flush="memory",
        replicas=(command.node,),
        copies=1,
    )
    return replace(_made(state, index, log), transient={**state.transient, command.node: command.log_id})


def _run_ended(state: ClusterState, index: int, command: RunEnded) -> ClusterState:
    node = _node(state, command.node)
    if node.start_id != command.start_id:
        raise _Refused(f"node {command.node} runs as {node.start_id}, not as {command.start_id}")
    return _without_transient(state, command.node)


def holds_transient(state: ClusterState, log_id: str) -> bool:
    """Whether what is in a log goes with its node's run, or went with its node."""
    log = state.logs[log_id]
    return log_id in state.transient.values() or (not log.replicas and log.name.startswith(_TRANSIENT))


def _without_transient(state: ClusterState, node: str) -> ClusterState:
    """The node's run is over: the queues in its transient log are gone, and what led to them."""
    log_id = state.transient.get(node)
    names = tuple(name for name, where in state.queues.items() if where == log_id) if log_id is not None else ()
    if log_id is None or not names:
        return state
    routing = topology.without_queues(state.routing, names)
    return replace(
        state,
        topology=state.topology if routing is state.routing else routing,
        queues={name: where for name, where in state.queues.items() if where != log_id},
        removals={**state.removals, log_id: state.removals.get(log_id, 0) + 1},
    )


def _forget_transient(state: ClusterState, node: str) -> ClusterState:
    """The node does not come back: nothing in its transient log is worth keeping. The log stays, without copies, for
    its number tells the ids that it has given out."""
    log_id = state.transient.get(node)
    if log_id is None:
        return state
    left = _without_transient(state, node)
    log = left.logs[log_id]
    empty = replace(log, replicas=(), master=None, in_sync={}, marked=frozenset(), version=log.version + 1, wished="")
    return replace(
        left,
        logs={**left.logs, log_id: empty},
        transient={each: where for each, where in left.transient.items() if each != node},
    )


# --- Logs -----------------------------------------------------------------------------------------------------------


def _made(state: ClusterState, index: int, command: LogMade) -> ClusterState:
    known = state.logs.get(command.log_id)
    if known is not None and (known.name, known.number) == (command.name, command.number):
        return state
    for log_id, log in state.logs.items():
        if log_id == command.log_id or log.name == command.name or log.number == command.number:
            raise _Refused(
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
    return replace(state, logs={**state.logs, command.log_id: facts})


def _check_log(command: LogMade) -> None:
    name, copies, min_in_sync = command.name, command.copies, command.min_in_sync
    if not 0 <= command.number <= LOG_NUMBER_MAX:
        raise _Refused(f"log {name}: its number is 0 to {LOG_NUMBER_MAX}, not {command.number}")
    if command.flush not in ("memory", "disk"):
        raise _Refused(f"log {name}: flush is memory or disk, not {command.flush}")
    if not command.replicas or len(set(command.replicas)) != len(command.replicas):
        raise _Refused(f"log {name} needs nodes to hold it, each once")
    if copies < 1 or (min_in_sync is not None and not 1 <= min_in_sync <= copies):
        raise _Refused(f"log {name}: min_in_sync is 1 up to copies, not {min_in_sync} of {copies}")


def _replica_added(state: ClusterState, index: int, command: ReplicaAdded) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    _data_node(state, command.node)
    if command.node in log.replicas:
        return state
    return _with_log(state, command.log_id, _with_needed(replace(log, replicas=(*log.replicas, command.node))))


def _replica_removed(state: ClusterState, index: int, command: ReplicaRemoved) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if command.node not in log.replicas:
        return state
    if command.node in log.in_sync:
        raise _Refused(f"node {command.node} is in sync with log {log.name}; it leaves that set first")
    if not spares(log, command.node):
        raise _Refused(
            f"log {log.name} needs {log.copies_wanted} in-sync copies, and {len(log.replicas) - 1} copies are too few "
            "for that; add another one first"
        )
    return _with_log(state, command.log_id, _without(log, command.node))


def spares(log: LogFacts, node: str) -> bool:
    """Whether enough replicas are left without this one."""
    left = _without(log, node)
    return left.copies_wanted >= log.copies_wanted and len(left.replicas) >= log.copies_wanted


def _without(log: LogFacts, node: str) -> LogFacts:
    return _with_needed(replace(log, replicas=tuple(each for each in log.replicas if each != node)))


def _promoted(state: ClusterState, index: int, command: Promoted) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    holder = command.holder
    _holding(state, log, holder)
    if not log.epoch < command.epoch <= EPOCH_MAX:
        raise _Refused(f"log {log.name} is in epoch {log.epoch}; {command.epoch} is not above it, up to {EPOCH_MAX}")
    whole = holder.node in log.promotable
    if log.epoch > 0 and not whole and not command.unclean:
        raise _Refused(f"node {holder.node} may lack what was confirmed of log {log.name}; in sync: {_names(log)}")
    if log.epoch > 0 and not whole and command.lost_from is None:
        raise _Refused(f"log {log.name}: a promotion of {holder.node} has to say what may be lost")
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
    return _with_log(state, command.log_id, changed)


def _wished(state: ClusterState, index: int, command: MasterWished) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if command.node and command.node not in log.promotable:
        raise _Refused(f"node {command.node} cannot be the next master of log {log.name}; in sync: {_names(log)}")
    masters = log.master is not None and log.master.node == command.node
    wished = "" if masters else command.node
    return state if wished == log.wished else _with_log(state, command.log_id, replace(log, wished=wished))


def _shrunk(state: ClusterState, index: int, command: InSyncShrunk) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if not command.nodes:
        return _with_log(state, command.log_id, log)
    gone = set(command.nodes) & set(log.in_sync)
    if not gone:
        return state
    if log.master is None or log.master.node in gone:
        raise _Refused(f"log {log.name}: its master is always in sync; in sync: {_names(log)}")
    if set(log.may_leave(gone)) != gone:
        raise _Refused(
            f"log {log.name} needs {log.copies_wanted} whole in-sync copies; {', '.join(sorted(gone))} cannot leave; "
            f"in sync: {_names(log)}"
        )
    left = {node: start for node, start in log.in_sync.items() if node not in gone}
    return _with_log(state, command.log_id, replace(log, in_sync=left, marked=log.marked - gone))


def _grown(state: ClusterState, index: int, command: InSyncGrown) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    holder = command.holder
    _holding(state, log, holder)
    if log.master is None:
        raise _Refused(f"log {log.name} has no master that could vouch for {holder.node}")
    if log.in_sync.get(holder.node) == holder.start_id and holder.node not in log.marked:
        return state
    changed = replace(log, in_sync={**log.in_sync, holder.node: holder.start_id}, marked=log.marked - {holder.node})
    return _with_log(state, command.log_id, _with_needed(changed))


def _leap_confirmed(state: ClusterState, index: int, command: LeapConfirmed) -> ClusterState:
    log = _log(state, command.log_id, command.seen)
    if log.master is None:
        raise _Refused(f"log {log.name} has no master that could have let its queue offsets leap")
    if not log.owes_leap:
        return state
    return _with_log(
        state, command.log_id, replace(log, losses=tuple(replace(loss, leapt=True) for loss in log.losses))
    )


def _loss_end_found(state: ClusterState, index: int, command: LossEndFound) -> ClusterState:
    """No version of the log: nobody decides by it, and it says the same whenever it comes."""
    log = state.logs.get(command.log_id)
    if log is None:
        raise _Refused(f"there is no log {command.log_id}")
    if all(loss.epoch != command.epoch for loss in log.losses):
        raise _Refused(f"log {log.name} knows of no loss when its epoch {command.epoch} began")
    losses = tuple(_up_to(loss, command.end) if loss.epoch == command.epoch else loss for loss in log.losses)
    return replace(state, logs={**state.logs, command.log_id: replace(log, losses=losses)})


def _queue_ids_granted(state: ClusterState, index: int, command: QueueIdsGranted) -> ClusterState:
    """No version of the log, and whoever asks: a bound that is too high costs numbers, and nothing else."""
    if command.log_id not in state.logs:
        raise _Refused(f"there is no log {command.log_id}")
    until = min(command.until, QUEUE_IDS_MAX)
    if until <= state.queue_ids(command.log_id):
        return state
    return replace(state, granted_ids={**state.granted_ids, command.log_id: until})


def _up_to(loss: Loss, end: int) -> Loss:
    return replace(loss, end=max(loss.start, end, loss.end or 0))


# --- Virtual hosts, exchanges, users ---------------------------------------------------------------------------------


def _with_topology(state: ClusterState, index: int, command: AnyCommand) -> ClusterState:
    changed = topology.changed(state.routing, command, state.queues.keys())
    if changed == state.routing:
        return state
    state = replace(state, topology=changed)
    if not isinstance(command, VirtualHostRemoved):
        return state
    kept = {group: log_id for group, log_id in state.log_groups.items() if split(group)[0] != command.name}
    return replace(state, log_groups=kept)  # it has no queues any more


# --- What rules need ------------------------------------------------------------------------------------------------


def _node(state: ClusterState, node: str) -> NodeFacts:
    if node not in state.nodes:
        raise _Refused(f"no node {node} is in the cluster; there are {', '.join(sorted(state.nodes)) or 'none'}")
    return state.nodes[node]


def _data_node(state: ClusterState, node: str) -> None:
    if _node(state, node).witness:
        raise _Refused(f"node {node} is a witness: it holds no messages")


def _holding(state: ClusterState, log: LogFacts, holder: Holder) -> None:
    """It runs, and has a copy of the log."""
    node = _node(state, holder.node)
    if node.start_id != holder.start_id or node.stopped:
        raise _Refused(f"run {holder.start_id} of node {holder.node} has ended")
    if holder.node not in log.replicas:
        raise _Refused(f"node {holder.node} holds no copy of log {log.name}")


def _log(state: ClusterState, log_id: str, seen: Seen) -> LogFacts:
    log = state.logs.get(log_id)
    if log is None:
        raise _Refused(f"there is no log {log_id}")
    if seen != log.seen:
        raise _Refused(
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


def _with_needed(log: LogFacts) -> LogFacts:
    """Other replicas, or more in sync, are another number that a confirm needs; never one that is not there."""
    if log.min_in_sync is not None:
        return log
    usual = _majority(min(log.copies, len(log.replicas)))
    return replace(log, copies_wanted=min(usual, max(log.copies_wanted, len(log.promotable))))


def _with_node(state: ClusterState, node: str, facts: NodeFacts) -> ClusterState:
    return replace(state, nodes={**state.nodes, node: facts})


def _with_log(state: ClusterState, log_id: str, log: LogFacts) -> ClusterState:
    """Every change of a log is a version of it. Who is not whole in sync any more is wished no more."""
    wished = log.wished if log.wished in log.promotable else ""
    return replace(state, logs={**state.logs, log_id: replace(log, version=log.version + 1, wished=wished)})


_HANDLERS: Final[Mapping[type[AnyCommand], Callable[[ClusterState, int, Any], ClusterState]]] = {
    NodeJoined: _joined,
    NodeStarted: _started,
    NodeStopped: _stopped,
    NodeDraining: _draining,
    NodeForgotten: _forgotten,
    QueuesPlaced: _placed,
    QueuesUnbound: _queues_unbound,
    QueuesRemoved: _queues_removed,
    TransientLogMade: _transient_made,
    RunEnded: _run_ended,
    LogMade: _made,
    ReplicaAdded: _replica_added,
    ReplicaRemoved: _replica_removed,
    Promoted: _promoted,
    MasterWished: _wished,
    InSyncShrunk: _shrunk,
    InSyncGrown: _grown,
    LeapConfirmed: _leap_confirmed,
    LossEndFound: _loss_end_found,
    QueueIdsGranted: _queue_ids_granted,
    VersionRaised: _raised,
    **dict.fromkeys(TOPOLOGY, _with_topology),
}
