"""Queues, positions and holds: asked for, declared, deleted, found."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.policies import DECLARED


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Advertised addresses, `host:port`; None for a door that the node does not have."""

    node_id: str
    client: str
    replication: str
    grpc: str | None = None
    http: str | None = None


class TierInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A Delta table that has records of the queue below `next`, by the word of the landing `name`, which has told that
    they may go from the log."""

    name: str
    location: str
    next: int


class SpanInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A stretch of a queue that has moved: its records from queue offset `first` on, up to the next one's, are in this
    log. `master`: empty while there is none."""

    log_id: str
    first: int
    epoch: int = 0
    master: str = ""
    mirrors: list[str] = []


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A queue as this node knows it. Queue offsets are those of confirmed records: `begin` up to `next`.

    `incarnation` tells it from another queue that has or had the same name and ids. `producer_epoch`: a new producer
    begins there, as the queue's master knows it. `current`: whether this node masters the queue and its epoch has
    begun; else there may be confirmed records behind `next` (nodes before version 4 say True of mirrors, too). `tiers`:
    where records below `begin` may be; `gaps`: queue offsets [first, next) within `begin` and `next` that were given up
    after losses, ascending (before version 4 the newest of them alone). `attributes`: whether its batches may have some
    (decision 0036). `spans`: of a queue that has moved, the oldest first, those that have records from before and the
    one that it is in now; `former_logs`: ids of all logs that it was in (decision 0050). `reason`: why nobody masters
    it, and what helps; empty while somebody does, or may soon. `policy`, `operator_policy`: the names of those that
    hold for it as its log says, with what they make of its arguments (`effective`, empty without either), where each of
    these comes from (`sources`), and of which version of the policies that is (`policy_version`, 0: none ever said
    anything of it); `policy_pending`: the cluster has decided otherwise by now.
    """

    name: str
    queue_id: int
    incarnation: str = ""
    log_id: str
    epoch: int
    master: str
    mirrors: list[str]
    begin: int
    next: int
    producer_epoch: int = 0
    arguments: dict[str, Any] = {}
    current: bool = True
    tiers: list[TierInfo] = []
    gaps: list[tuple[int, int]] = []
    attributes: bool = False
    spans: list[SpanInfo] = []
    former_logs: list[str] = []
    reason: str = ""
    policy: str = ""
    operator_policy: str = ""
    effective: dict[str, Any] = {}
    sources: dict[str, str] = {}
    policy_version: int = 0
    policy_pending: bool = False

    def __repr__(self) -> str:
        """What is asked for most; all the others are its fields."""
        shown = {name: getattr(self, name) for name in ("name", "master", "mirrors", "begin", "next")}
        shown |= {"arguments": self.effective or self.arguments} | ({"reason": self.reason} if self.reason else {})
        return f"QueueInfo({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def at(self, queue_offset: int) -> QueueInfo:
        """The same, with the log of the span that the record stands in, and its nodes."""
        for span in reversed(self.spans[:-1]):
            following = next(each.first for each in self.spans if each.first > span.first or each is self.spans[-1])
            if span.first <= queue_offset < following:
                return replace(
                    self, log_id=span.log_id, epoch=span.epoch, master=span.master, mirrors=span.mirrors, current=False
                )
        return self

    def next_log_at(self, queue_offset: int) -> int | None:
        """From where on records behind that one are in another log; None for one in the log that the queue is in."""
        return next((span.first for span in self.spans if span.first > queue_offset), None)

    @property
    def by_policies(self) -> dict[str, Any]:
        """Of what holds for it, what policies have said."""
        return {key: self.effective[key] for key, source in self.sources.items() if source != DECLARED}

    def was_in(self, log_id: str) -> bool:
        """Whether a position in that log is one of this queue."""
        return log_id == self.log_id or log_id in self.former_logs


class QueueOutage(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A queue that nobody can answer for: all nodes that hold its log are down. `node`: the one to start, of several
    the log's home; `since_us`: since when this node knows that it is down, µs UTC, 0 when it was so before; `reason`:
    in words."""

    name: str
    log_id: str
    node: str
    since_us: int = 0
    reason: str


class Position(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Where a reader stands: the next queue offset it will read."""

    log_id: str
    epoch: int
    queue_offset: int


class GetMetadata(Message, frozen=True):
    """`queues`: names; None for all."""

    queues: list[str] | None = None


class SetHold(Message, frozen=True):
    """A landing registers, or renews its lease and says how far it has come: the queue's records from `queue_offset` on
    are kept. Answered with HoldGranted once it is confirmed; asking twice gives the same.

    `holder`: who asks, another name in every run; `epoch`: the one that a renewal was given, 0 at the registration;
    `lease_ms`: how long it holds without a renewal. `location`: of the Delta table that has what is below; `tiered`:
    that may go from the log. `take_over`: also while another holder's lease runs, which is refused (HoldTaken) else.
    """

    queue: str
    name: str
    holder: str
    queue_offset: int
    lease_ms: int
    location: str = ""
    tiered: bool = False
    take_over: bool = False
    epoch: int = 0


class HoldInfo(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A landing's hold on a queue. `epoch`: rises with each other holder. Records below `queue_offset` are landed, at
    `location`; `left_ms`: of its lease, -1 where only the log's master knows. `ended`: why it keeps nothing any more
    (expired, too-much), empty while it does. `begin`, `next`: the queue's first and next confirmed queue offset; what
    the landing has not got below `begin` is gone. `lag`: confirmed records from `queue_offset` on; `kept_bytes`: of the
    log, from there to its end, -1 when it is not known."""

    queue: str
    name: str
    holder: str
    epoch: int
    queue_offset: int
    lease_ms: int
    left_ms: int = -1
    location: str = ""
    tiered: bool = False
    ended: str = ""
    begin: int = 0
    next: int = 0
    lag: int = 0
    kept_bytes: int = -1


class HoldGranted(Message, frozen=True, tag="HoldGiven"):
    hold: HoldInfo


class EndHold(Message, frozen=True):
    """Forget a hold. Answered with Done once that is confirmed, or when there is none. `holder`: only if that one has
    it, else HoldTaken; empty: whoever has it. `must_exist`: NoSuchHold when there is none; a node that does not know
    of that answers Done."""

    queue: str
    name: str
    holder: str = ""
    must_exist: bool = False


class ListHolds(Message, frozen=True):
    """The holds of a queue, as its master knows them. Answered with HoldsFound."""

    queue: str


class HoldsFound(Message, frozen=True):
    holds: list[HoldInfo]


class Metadata(Message, frozen=True):
    """`version`: of the newest decision of the cluster that this node knows: of several answers the highest is true.
    `placed`: of those that are missing here, the ones that are in a log of the cluster all the same, unless this node
    masters that log and has not got them; of all there are, the ones that are not in a log of this node (older nodes
    name none then). `outages`: of all there are, the ones that nobody can answer for now; when some were asked for, of
    these, also those with a copy here that nobody can master. `heard`: not so while this node's run has not heard its
    cluster: then what it says of masters may be old, and that something is not offered (`QueueInfo.attributes`) is no
    answer."""

    cluster_id: str
    cluster_name: str
    node_id: str
    nodes: list[NodeInfo]
    queues: list[QueueInfo]
    missing: list[str] = []
    version: int = 0
    placed: list[str] = []
    outages: list[QueueOutage] = []
    heard: bool = True


class DeclareQueue(Message, frozen=True):
    """Answered with QueueInfo inside Metadata once the declaration is confirmed; idempotent. With an empty name (in its
    virtual host) the node makes one, another one each time: `amq.gen-` and 128 random bits."""

    name: str
    arguments: dict[str, Any] = {}


class AlterQueue(Message, frozen=True):
    """Change where a queue is: `arguments`, of `queues.arguments.PLACING`, None for one that is taken away. Answered
    with AlteredQueue once it is decided; what follows goes on by itself. `dry_run`: say what would be done; `sync`: as
    SyncQueue for all that move, once they have."""

    name: str
    arguments: dict[str, Any]
    dry_run: bool = False
    sync: bool = False


class AlteredQueue(Message, frozen=True, kw_only=True):
    """`queues`: it, and those of its log group; `rule`: by which they are from now on; `log`: the name of the one that
    they were in. `moves`: they go to another log, and `left_records` stay in the former one until they are freed.
    `copies_change`: their log has other copies, for which `copied_bytes` are copied. `done`: it is decided. `copies`:
    how many there will be, of `copies_before` now, as the nodes are; 0 from older nodes."""

    queues: list[str]
    rule: str
    log: str
    moves: bool = False
    copies_change: bool = False
    copied_bytes: int = 0
    left_records: int = 0
    done: bool = False
    copies_before: int = 0
    copies: int = 0


class SyncQueue(Message, frozen=True):
    """What a queue that has moved has left in former logs shall be copied to its own (`sync`), or no more of it
    (`cancel`); or only told how far that is, with an empty `wish`. Answered with QueueSync, by the master of the
    queue's log; what follows goes on by itself."""

    queue: str
    wish: Literal["sync", "cancel", ""] = ""


class FormerSpan(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a former log alone keeps of a queue that has moved: `records`, queue offsets from `first` up to `next`;
    what is copied already is not counted. `log`: its name; `size`: bytes of their batches, -1 while nobody says, for
    the reason `unknown`. `mqtool queues` says -1 `records` where the queue's master does not tell."""

    log: str
    log_id: str
    first: int
    next: int
    records: int
    size: int = -1
    unknown: str = ""


class QueueSync(Message, frozen=True, kw_only=True):
    """How far a queue is synced. `wished`: whether it shall be; `log`: the name of its own log; `spans`: of former logs
    that have records, the oldest first: what is left to copy. `done_records`, `done_bytes`: copied since this
    mastership began; `seconds_left`: at this speed, -1 while that is not known; `waits`: why it does not get on."""

    queue: str
    wished: bool
    log: str
    spans: list[FormerSpan] = []
    done_records: int = 0
    done_bytes: int = 0
    bytes_per_s: float = 0.0
    seconds_left: float = -1.0
    waits: str = ""


class CancelMove(Message, frozen=True):
    """A queue, and those of its log group, shall stay in the log that they are in: a move of them that has not come
    about is given up, and what they ask for becomes what that log has. Answered with Stays by the log's master."""

    name: str


class Stays(Message, frozen=True, kw_only=True):
    """`queues`: that stay in `log`, by name; `cancelled`: they were on their way to another one; `arguments`: of the
    queue that was asked about, from now on."""

    queues: list[str]
    log: str
    cancelled: bool
    arguments: dict[str, Any]


class ListMoves(Message, frozen=True):
    """Of any node: which queues are on their way to another log, or shall go there? Answered with MovesFound."""


class MoveOfQueue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """A queue goes from the log `source` to the log `target` (names; a rule's words while no log is chosen). `number`:
    of the move, 0 before it has begun. `stage`: *planned*: one of the next that even out who masters how many;
    *wanted*: not begun; *waits*: for the other log; *left*: what is known of the queue goes over, nothing is taken for
    it; *arrived*: it is about to be opened there; *unknown*, of no queue: a node that masters logs does not answer, and
    may know of queues that are to go, with the `reason`. `why` it goes; `records` and `size_bytes`: what there is of it
    now, -1 where it is not known; `pieces`: of its state that have gone over; `reason`: why it does not get on. `told`:
    by the master of `source`; other nodes know that it moves, and no more."""

    queue: str
    source: str
    target: str
    number: int = 0
    stage: str = "waits"
    why: str = ""
    records: int = -1
    size_bytes: int = -1
    pieces: int = 0
    reason: str = ""
    told: bool = False


class MovesFound(Message, frozen=True):
    """`moves`: by queue; `paused`: none is begun."""

    moves: list[MoveOfQueue]
    paused: bool = False


class DeleteQueue(Message, frozen=True):
    """Delete a queue with its records, groups and bindings; its id is never used again. Answered by the master of its
    log with Deleted once all of that is confirmed.

    `if_unused`: only while nobody is subscribed to any of its groups, waits for a lease or waits in a fetch at the
    master; `if_empty`: only when its groups that ack have settled everything, and when it has none, while there are no
    records. `force`: also when a landing holds records of it. Refused with InUse.
    """

    name: str
    if_unused: bool = False
    if_empty: bool = False
    force: bool = False


class Deleted(Message, frozen=True):
    """`records`: those that the queue's own group had not settled."""

    records: int


class FindOffset(Message, frozen=True):
    """The first queue offset whose batch was appended at or after a time (µs UTC); `next` if there is none.

    `any_copy`: a mirror may answer, which may have heard of less than was confirmed; else the master does, once it
    knows what that is. Those who ask without a word of it are of software that took either. `log`: the id of the log to
    look in, of those that a queue which has moved is or was in (`QueueInfo.spans`); empty: in the one that it is in.
    """

    queue: str
    append_time_us: int
    any_copy: bool = True
    log: str = ""


class FoundOffset(Message, frozen=True):
    """`log`: of a queue that has moved the id of the log that was looked in, and of which alone this is true: what an
    older span has of that time comes first. Empty of another queue."""

    queue_offset: int
    log: str = ""


class CommitPosition(Message, frozen=True):
    """Store a group's position; answered (Done) when it is confirmed. `reader`: whose it is, see FetchPosition."""

    queue: str
    group: str
    position: Position
    reader: str = ""


class FetchPosition(Message, frozen=True):
    """`any_copy`: a mirror may answer, which may have heard of less than was confirmed; else the master does, once it
    knows what that is.

    `reader`: a name of its own, of who reads as this group from here on, as long as this connection lasts and the
    master is the same; another one is answered ExclusiveTaken. Empty: just asked. `leaves`: it reads no more."""

    queue: str
    group: str
    any_copy: bool = False
    reader: str = ""
    leaves: bool = False


class FoundPosition(Message, frozen=True):
    """`position` is None when the group has never committed one."""

    position: Position | None


class Done(Message, frozen=True):
    pass
