"""What the cluster may be told to change: one struct each, as it stands in the Raft log.

A command that changes a log names the (epoch, version) that its sender saw (`Seen`): it is refused when the log has
moved on since. Unknown fields are ignored when they are read, so that a newer node may say more. A command that some
node cannot read stops that node: `command_codec.SINCE` says which cluster version has it (`mirrorlog.versions`).
Those of virtual hosts, exchanges and users are in `topology_commands`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from mirrorlog.cluster.state.placements import Placement
from mirrorlog.config import Member


class StartKind(StrEnum):
    """What a node's disk and page cache are worth after a start (invariant 7)."""

    CLEAN = "clean"
    DIED = "died"
    LOSSY = "lossy"


class Addresses(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where others reach a node, as `host:port`; empty for a door that it does not have."""

    client: str = ""
    replication: str = ""
    grpc: str = ""
    http: str = ""


def addresses_of(member: Member) -> Addresses:
    """Of a member of the configuration, as the cluster keeps them."""
    return Addresses(
        client=member.client, replication=member.replication, grpc=member.grpc or "", http=member.http or ""
    )


def member_of(node: str, addresses: Addresses) -> Member:
    """A node as the configuration has it. Raises ValidationError for addresses that are none."""
    return Member(
        id=node,
        client=addresses.client,
        replication=addresses.replication,
        grpc=addresses.grpc or None,
        http=addresses.http or None,
    )


class Holder(msgspec.Struct, frozen=True, array_like=True):
    """A node in one of its runs."""

    node: str
    start_id: str


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A log as the sender of a command knew it."""

    epoch: int
    version: int


class Command(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Base of all commands. `by`: the user who asked for it, for people; empty for nodes themselves, and where there
    are no users. No decision hangs on it."""

    by: str = ""


# --- Nodes ----------------------------------------------------------------------------------------------------------


class NodeJoined(Command, frozen=True):
    """Let a node in; its member id is the index of this entry. `witness`: it votes and holds no messages.

    `token`: of this joining, kept on the node's disk until it is in: a node that died meanwhile asks again by it.
    """

    node: str
    addresses: Addresses
    witness: bool = False
    token: str = ""


class NodeStarted(Command, frozen=True):
    """A run begins. `member`: whose disk it is, 0 when the sender does not know.

    `before`: the last start id that the node's disk knows to be registered; `since`: those of later runs, which may be
    registered or died before. When the cluster's is another one the disk was set back and nothing on it counts, or the
    command is late and its run over: only the sender can tell. So it is refused, unless `seen` says that the sender has
    read the cluster's start id and goes on.

    `kind` and `damaged` are the worst of all runs in `since` and this one: what an unregistered run lost is lost.
    `damaged`: ids of logs whose copy lost something whatever the kind: an fsync that failed, an end below what it had
    recorded as confirmed.
    """

    node: str
    start_id: str
    kind: StartKind
    addresses: Addresses
    member: int = 0
    before: str = ""
    since: tuple[str, ...] = ()
    seen: str = ""
    damaged: tuple[str, ...] = ()


class NodeStopped(Command, frozen=True):
    """A clean stop: the node says so itself, before it goes."""

    node: str
    start_id: str


class NodeDraining(Command, frozen=True):
    """It shall master nothing any more, or may again. Its next start ends it too."""

    node: str
    draining: bool


class NodeLeaving(Command, frozen=True):
    """It shall hold nothing any more, or may again: its copies go elsewhere. No start of it ends that."""

    node: str
    leaving: bool


class NodeForgotten(Command, frozen=True):
    """It will not come back. Its copies count no more. `member`: which one, so that a late command does not meet the
    next node of that name; 0 for whichever it is."""

    node: str
    member: int = 0


# --- Versions -------------------------------------------------------------------------------------------------------


class VersionRaised(
    Command,
    frozen=True,
    tag="VersionRaised: the cluster of this disk runs at version 2 or above, start software of that version",
):
    """The cluster runs at `version` from now on, one above the one before. Refused unless every node's run can do that.

    The tag is what software of version 1 says when it finds this on its disk: all that it tells of a command which it
    does not know.
    """

    version: int


# --- Queues ---------------------------------------------------------------------------------------------------------


class QueuesPlaced(Command, frozen=True):
    """These queues are in this log. A name that is placed already stays where it is: so two that declare the same name
    at once make one queue.

    `log_group`: the qualified name of the queues' `x-log-group`, if they have one: they go where it is, and it begins
    in this log if it is nowhere yet. Only since `versions.LOG_GROUPS`. `copies`, `flush`: what the queues of a group
    ask for, if they do: whoever chose `log_id` may not have known yet where the group is.
    """

    log_id: str
    names: tuple[str, ...]
    log_group: str = ""
    copies: int = 0
    flush: str = ""


class QueuesUnbound(Command, frozen=True):
    """Nothing leads to these queues any more: they are about to be deleted. They stay where they are. From the master
    of their log; `epoch`: in which it said so: its next master has heard of no deletion, and users came back to it."""

    names: tuple[str, ...]
    log_id: str
    epoch: int


class QueuesRemoved(Command, frozen=True):
    """The queues are in their log no more, and are not placed any more; their bindings go with them. From the log's
    master, once all copies know that.

    `epoch`: in which it said so; `removals`: as many of these commands as the log had then. So one that comes late, or
    twice, does not meet a queue of the same name that was declared since.
    """

    names: tuple[str, ...]
    log_id: str
    epoch: int
    removals: int


class TransientLogMade(Command, frozen=True):
    """A log for the queues that live no longer than a run of `node`: one copy, in memory. A node has one."""

    log_id: str
    number: int
    node: str


class RunEnded(Command, frozen=True):
    """This run of a node is over, as far as others can tell: what it had in its transient log is gone. A run that is
    there after all hears of it."""

    node: str
    start_id: str


class MoveBegun(Command, frozen=True):
    """These queues, all of one log, shall be in the log `target`. The index of this entry is the move's number.

    `log_group`: the qualified name of their `x-log-group`: all of its queues, which nobody joins meanwhile.
    """

    names: tuple[str, ...]
    target: str
    log_group: str = ""


class QueuesMoved(Command, frozen=True):
    """From the target's master: it has all of the move's queues, confirmed, and writes them from now on. `first`: by
    queue the first queue offset that it gives. Refused when the move was cancelled."""

    number: int
    first: Mapping[str, int]


class MoveCancelled(Command, frozen=True):
    """The move's queues stay where they are. Refused when it was said already that they moved."""

    number: int


class SpanSeen(msgspec.Struct, frozen=True, array_like=True):
    """By what a span of a queue is known again: the queue is in the log `target`, to which it came by the entry `came`
    (see LogPlaces), and the span begins at `first`. So a command that comes late, or twice, meets neither a later span
    of the same log nor another queue of the same name. The cluster knows no ids of queues."""

    target: str
    came: int
    first: int


class SpanEnded(Command, frozen=True):
    """The oldest span of a queue, `span`, has no record any more. From the master of the queue's log.

    `span`: None from software of version 6, which looks at none: only since `versions.SYNC`."""

    name: str
    log_id: str
    span: SpanSeen | None = None


class QueueSyncWished(Command, frozen=True):
    """What the queue has left in former logs shall be copied to the one that it is in, or no more of it. Nothing
    happens where there is nothing to copy. `automatic`: a policy has it so, and nobody asked: then nothing happens
    either where somebody has said that no more is to be copied. Since `versions.SYNC`."""

    name: str
    wished: bool = True
    automatic: bool = False


class RecordsCopied(Command, frozen=True):
    """From the master of a queue's log: of the newest span before that has records, `span`, the one in the log
    `log_id`, all from the queue offset `first` on are in the queue's own log, confirmed. That is where they are from
    now on; and a span of which nothing is left has ended. Since `versions.SYNC`."""

    name: str
    log_id: str
    first: int
    span: SpanSeen


class MovingPaused(Command, frozen=True):
    """Nothing is begun any more that moves logs or queues, and copies that are wished are not filled; or may be
    again."""

    paused: bool


# --- Logs -----------------------------------------------------------------------------------------------------------


class LogMade(Command, frozen=True):
    """`number`: the high byte of the ids of queues that are declared in it; `flush`: memory or disk; `replicas`: the
    home first; `copies`: how many there shall be once there are nodes for it; `min_in_sync`: None for the default.

    `placement`: the rule that it is made for, which says all of these too; only since `versions.PLACEMENTS`.
    """

    log_id: str
    number: int
    name: str
    flush: str
    replicas: tuple[str, ...]
    copies: int = 3
    min_in_sync: int | None = None
    placement: Placement | None = None


class LogAltered(Command, frozen=True):
    """From now on the log is by this rule; its flush mode stays. More copies are added, fewer taken away, by the
    coordinator."""

    log_id: str
    seen: Seen
    placement: Placement


class LogRemoved(Command, frozen=True):
    """Nothing is in the log, and nothing will be: its number is free for another one."""

    log_id: str
    seen: Seen


class ReplicasWished(Command, frozen=True):
    """These nodes shall hold the log, the home first; the coordinator goes there step by step. Without nodes a wish is
    taken back: it stays as it is then."""

    log_id: str
    seen: Seen
    nodes: tuple[str, ...]


class ReplicaRetired(Command, frozen=True):
    """This node, which may be in sync and live, shall hold no copy any more: the wish is for others. Refused for the
    master, and when it left fewer whole in-sync copies than the log promises."""

    log_id: str
    seen: Seen
    node: str


class ReplicaAdded(Command, frozen=True):
    """A node shall hold a copy."""

    log_id: str
    seen: Seen
    node: str


class ReplicaRemoved(Command, frozen=True):
    """A node shall hold none any more. Refused for a member of the in-sync set, and when it lowered how many in-sync
    copies a confirm needs: another one is added first."""

    log_id: str
    seen: Seen
    node: str


class Promoted(Command, frozen=True):
    """`holder` masters the log from now on, in `epoch`. `unclean`: from outside the in-sync set, or marked; then it is
    said from which log offset on confirmed records may be lost, and moves from and to the log are cancelled with it
    (since `versions.SYNC`)."""

    log_id: str
    seen: Seen
    holder: Holder
    epoch: int
    unclean: bool = False
    lost_from: int | None = None


class MasterWished(Command, frozen=True):
    """`node`, which is in sync, shall master the log: the present master hands it over. The wish ends with that, with
    another one's promotion, and when the node leaves the in-sync set. An empty one takes a wish back."""

    log_id: str
    seen: Seen
    node: str


class InSyncShrunk(Command, frozen=True):
    """The confirmed offset waits no more for these nodes. Never the master, never below `min_in_sync`. Without nodes it
    only raises the version, so that every command that saw the one before is void."""

    log_id: str
    seen: Seen
    nodes: tuple[str, ...]


class InSyncGrown(Command, frozen=True):
    """The master has waited for this mirror, and it holds everything."""

    log_id: str
    seen: Seen
    holder: Holder


class OffsetJumpConfirmed(Command, frozen=True, tag="LeapConfirmed"):
    """The master's: all queue offsets have jumped over what was lost so far, and the batch that says so is
    confirmed."""

    log_id: str
    seen: Seen


class QueueIdsGranted(Command, frozen=True):
    """Masters of the log may give out the numbers of queues up to `until`; see `ClusterState.queue_ids`."""

    log_id: str
    until: int


class LossEndFound(Command, frozen=True):
    """A copy that returned held what was lost when `epoch` began up to log offset `end`: it reaches there at least."""

    log_id: str
    epoch: int
    end: int
