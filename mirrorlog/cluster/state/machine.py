"""The state machine behind Raft: entries in, the cluster's state and the outcomes of proposals out. Pure.

Every node applies the same commands in the same order and has the same state. What a command may not do is refused when
it is applied, by the rules, and nowhere else: a coordinator that is wrong, late or no coordinator any more changes
nothing that the rules do not allow. A refused command changes nothing, and its outcome says why.

Whoever proposed a command waits for its entry by (index, term): what comes back at that index with another term is
somebody else's, and the command is lost for good. Whether a command that got no answer was applied shows in the state
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.cluster.raft.messages import EntryKind, RaftEntry, Snapshot
from mirrorlog.cluster.state import commands, log_rules, move_rules, node_rules, queue_rules
from mirrorlog.cluster.state.command_codec import SINCE, decode_command
from mirrorlog.cluster.state.commands import Command
from mirrorlog.cluster.state.state import ClusterState, Forbidden, Outcome, behind, decode_state, encode_state
from mirrorlog.cluster.state.topology_commands import TopologyCommand
from mirrorlog.errors import MirrorlogError, NotAMember, UnsupportedVersion

Done = Callable[[Outcome | None], None]
"""Called with what came of a proposal; None: it was never applied, and never will be."""


@dataclass(frozen=True, slots=True)
class AppliedEntry:
    """One entry that was applied. `command`: None where the entry is not the state machine's."""

    entry: RaftEntry
    command: Command | None
    before: ClusterState
    after: ClusterState
    outcome: Outcome


class Machine:
    """`state`: after entry `index`, of term `term`. What this software cannot follow, because the cluster's version is
    above it, raises UnsupportedVersion before it changes anything."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.state = decode_state(snapshot.state)
        self.index, self.term = snapshot.index, snapshot.term
        self._waiting: dict[int, tuple[int, Done]] = {}

    def wait(self, index: int, term: int, done: Done) -> None:
        """Tell `done` what comes of the entry that was proposed there."""
        self._waiting[index] = term, done

    def apply(self, entries: Iterable[RaftEntry]) -> list[AppliedEntry]:
        """The next entries, each exactly once. Raises UnsupportedVersion."""
        return [self._apply(entry) for entry in entries]

    def restore(self, snapshot: Snapshot) -> None:
        """Another's state, further on. What waited here may have been applied there: nobody can say any more."""
        self.state = decode_state(snapshot.state)
        self.index, self.term = snapshot.index, snapshot.term
        self.give_up()

    def give_up(self) -> None:
        """Whoever waits is told that he will hear nothing."""
        waiting, self._waiting = self._waiting, {}
        for _, done in waiting.values():
            done(None)

    def snapshot_state(self) -> bytes:
        """For a snapshot as of `index`."""
        return encode_state(self.state)

    def _apply(self, entry: RaftEntry) -> AppliedEntry:
        assert entry.index == self.index + 1, f"entry {entry.index} after {self.index}"
        before, outcome, command = self.state, Outcome(entry.index), None
        if entry.kind == EntryKind.COMMAND:
            command = decode_command(entry.data)
            after, outcome = applied(before, entry.index, command)
            versions.check_supported(after.cluster_version)
            self.state = after
        self.index, self.term = entry.index, entry.term
        if entry.index in self._waiting:
            term, done = self._waiting.pop(entry.index)
            done(outcome if term == entry.term else None)
        return AppliedEntry(entry, command, before, self.state, outcome)


def applied(state: ClusterState, index: int, command: Command) -> tuple[ClusterState, Outcome]:
    """The state after entry `index`, and what came of it."""
    try:
        changed = HANDLERS[type(command)](state, index, command)
    except Forbidden as refusal:
        return state, Outcome(index, str(refusal))
    except MirrorlogError as refusal:
        return state, Outcome(index, refusal.message, refusal.code, refusal.details)
    if changed == state:
        return state, Outcome(index)
    return replace(changed, version=index), Outcome(index)


def check_proposal(state: ClusterState, command: Command) -> None:
    """Before a command becomes an entry, which everybody has to read. Raises UnsupportedVersion for one that the
    cluster's version does not have, NotAMember for the start of a node whose software does not fit it.

    A start of software that is too old is refused when it is applied, too; here it costs no entry, however often it is
    asked for.
    """
    if isinstance(command, commands.NodeStarted):
        if reason := versions.misfit(versions.version_of(command.start_id), state.cluster_version):
            raise NotAMember(f"the cluster does not let this node in: {reason}")
        return
    since = SINCE.get(type(command), versions.FIRST)
    # The raise is of the version that it leads to: it is not the cluster that has to have that, but everybody in it.
    if since > state.cluster_version and not (isinstance(command, commands.VersionRaised) and not behind(state, since)):
        raise UnsupportedVersion(
            f"the cluster runs at version {state.cluster_version} until all nodes are updated, and "
            f"{type(command).__name__} came with version {since}; not updated: {', '.join(behind(state, since))}"
        )


HANDLERS: Final[Mapping[type[Command], Callable[[ClusterState, int, Any], ClusterState]]] = {
    commands.NodeJoined: node_rules.joined,
    commands.NodeStarted: node_rules.started,
    commands.NodeStopped: node_rules.stopped,
    commands.NodeDraining: node_rules.draining,
    commands.NodeForgotten: node_rules.forgotten,
    commands.QueuesPlaced: queue_rules.placed,
    commands.QueuesUnbound: queue_rules.unbound,
    commands.QueuesRemoved: queue_rules.removed,
    commands.TransientLogMade: queue_rules.transient_made,
    commands.RunEnded: queue_rules.run_ended,
    commands.MoveBegun: move_rules.begun,
    commands.QueuesMoved: move_rules.moved,
    commands.MoveCancelled: move_rules.cancelled,
    commands.SpanEnded: move_rules.span_ended,
    commands.QueueSyncWished: move_rules.sync_wished,
    commands.RecordsCopied: move_rules.records_copied,
    commands.MovingPaused: move_rules.paused,
    commands.NodeLeaving: node_rules.leaving,
    commands.LogAltered: log_rules.altered,
    commands.LogRemoved: log_rules.removed,
    commands.ReplicasWished: log_rules.replicas_wished,
    commands.ReplicaRetired: log_rules.replica_retired,
    commands.LogMade: log_rules.made,
    commands.ReplicaAdded: log_rules.replica_added,
    commands.ReplicaRemoved: log_rules.replica_removed,
    commands.Promoted: log_rules.promoted,
    commands.MasterWished: log_rules.master_wished,
    commands.InSyncShrunk: log_rules.in_sync_shrunk,
    commands.InSyncGrown: log_rules.in_sync_grown,
    commands.OffsetJumpConfirmed: log_rules.jump_confirmed,
    commands.LossEndFound: log_rules.loss_end_found,
    commands.QueueIdsGranted: log_rules.queue_ids_granted,
    commands.VersionRaised: node_rules.version_raised,
    **dict.fromkeys(TopologyCommand.__subclasses__(), queue_rules.topology_changed),
}
