"""Control messages: msgpack maps, one tagged struct each. Unknown fields are ignored, so that fields can be added.

They travel where a frame's cost does not matter; batches never do. msgspec checks types while it decodes, so a
message that arrives is a message that fits. Rejected: protobuf here (eight times slower to encode; the gRPC door
has its own), pickle (never).
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from mirrorlog.errors import MirrorlogError, ProtocolError, from_code
from mirrorlog.wire.frames import Frame, FrameType, Level, frame
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.routing import Binding, Exchange

_M = TypeVar("_M", bound="Message")


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, kw_only=True):
    """Base of all control messages."""


# --- Greeting -----------------------------------------------------------------------------------------------------


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the node will take; a client checks them before it sends. `credit_…`: what a producer may have in one queue
    that is not confirmed, before any CREDIT frame has come; 0: the node has no such limit."""

    max_record_bytes: int
    max_batch_bytes: int
    credit_bytes: int = 0
    credit_batches: int = 0


class Hello(Message, frozen=True):
    """First frame of every connection. `role`: see `greeting`. `credential`: how it will prove the cluster's secret.
    `incarnation`: of the cluster as a member knows it, 0: not said; `runs`: former start ids that the node's disk knows
    and the cluster may know it by, None: not said. `credit`: whether CREDIT frames may be sent to it. `client_id`: a
    secret of the client's own, the same on all its connections: its exclusive queues are its on each of them."""

    version_min: int
    version_max: int
    role: str
    software: str = ""
    cluster_id: str | None = None
    node_id: str | None = None
    start_id: str | None = None
    stale_reads: bool = False
    credential: bytes | None = None
    incarnation: int = 0
    runs: tuple[str, ...] | None = None
    credit: bool = False
    client_id: str = ""

    def __repr__(self) -> str:
        """Without the client's secret: messages are shown in errors and logs."""
        shown = (name for name in self.__struct_fields__ if name != "client_id")
        return f"Hello({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


class Challenge(Message, frozen=True):
    """Who was dialled asks for a proof: see `wire.proof`."""

    nonce: bytes


class Proof(Message, frozen=True):
    nonce: bytes
    mac: bytes


class Welcome(Message, frozen=True):
    """`incarnation`: of the cluster, as a member knows it; raised when a lost majority is replaced. 0: not said.
    `credential`: the proof that this node knows the cluster's secret too. `runs`: see `Hello`."""

    version: int
    cluster_id: str
    cluster_name: str
    node_id: str
    start_id: str
    limits: Limits
    software: str = ""
    incarnation: int = 0
    credential: bytes | None = None
    runs: tuple[str, ...] | None = None


class Failure(Message, frozen=True):
    """An error's code, text and details (ERROR frames)."""

    code: str
    message: str
    details: dict[str, Any] = {}


# --- Replication: one connection per mirror and log -----------------------------------------------------------------


class EpochEntry(msgspec.Struct, frozen=True, array_like=True):
    """`start`: first log offset of the epoch; `node_id`, `start_id`: who wrote it."""

    epoch: int
    start: int
    node_id: str = ""
    start_id: str = ""


class Follow(Message, frozen=True):
    """Mirror to master: what it holds. `confirmed`: the confirmed offset it knows, below which it never truncates.

    `start`: where a copy that has to begin anew wants to begin: at the log's begin, or at its last segment.
    """

    log_id: str
    epochs: list[EpochEntry]
    begin: int
    end: int
    confirmed: int
    start: str = "begin"


class History(Message, frozen=True):
    """Master to mirror: what the log is. The mirror finds the common point, truncates, and answers with Pull.

    `start_at`: None, or where the mirror begins anew, because its copy ends below the log's begin or is empty.
    """

    epoch: int
    epochs: list[EpochEntry]
    begin: int
    end: int
    confirmed: int
    start_at: int | None = None


class Pull(Message, frozen=True):
    """Mirror to master: send from here. `end` is the same number when nothing was cut since Follow."""

    log_offset: int


# --- Requests of clients and tools ----------------------------------------------------------------------------------


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Advertised addresses, `host:port`; None for a door that the node does not have."""

    node_id: str
    client: str
    replication: str
    grpc: str | None = None
    http: str | None = None


class TierInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A Delta table that has records of the queue below `next`, by the word of the landing `name`, which has told that
    they may go from the log."""

    name: str
    location: str
    next: int


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as this node knows it. Queue offsets are those of confirmed records: `begin` up to `next`.

    `incarnation` tells it from another queue that has or had the same name and ids. `producer_epoch`: a new producer
    begins there, as the queue's master knows it. `current`: whether this node masters the queue and its epoch has
    begun; else there may be confirmed records behind `next` (nodes before version 4 say True of mirrors, too). `tiers`:
    where records below `begin` may be; `gaps`: queue offsets [first, next) within `begin` and `next` that were given up
    after losses, ascending (before version 4 the newest of them alone). `attributes`: whether its batches may have some
    (decision 0036).
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


class QueueOutage(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that nobody can answer for: all nodes that hold its log are down. `node`: the one to start, of several
    the log's home; `since_us`: since when this node knows that it is down, µs UTC, 0 when it was so before; `reason`:
    in words."""

    name: str
    log_id: str
    node: str
    since_us: int = 0
    reason: str


class Position(msgspec.Struct, frozen=True, kw_only=True):
    """Where a reader stands: the next queue offset it will read."""

    log_id: str
    epoch: int
    queue_offset: int


class GetMetadata(Message, frozen=True):
    """`queues`: names; None for all."""

    queues: list[str] | None = None


class SetHold(Message, frozen=True):
    """A landing registers, or renews its lease and says how far it has come: the queue's records from `queue_offset` on
    are kept. Answered with HoldGiven once it is confirmed; asking twice gives the same.

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


class HoldInfo(msgspec.Struct, frozen=True, kw_only=True):
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


class HoldGiven(Message, frozen=True):
    hold: HoldInfo


class EndHold(Message, frozen=True):
    """Forget a hold. Answered with Done once that is confirmed, or when there is none. `holder`: only if that one has
    it, else HoldTaken; empty: whoever has it."""

    queue: str
    name: str
    holder: str = ""


class ListHolds(Message, frozen=True):
    """The holds of a queue, as its master knows them. Answered with HoldsFound."""

    queue: str


class HoldsFound(Message, frozen=True):
    holds: list[HoldInfo]


# --- Groups that ack: see docs/decisions/0033 and 0034 ---


class Subscribe(Message, frozen=True):
    """Records of an acking group are to be pushed to this connection. Answered with Subscribed; `DELIVER` frames may
    come before the answer is read, never before it is sent.

    `group`: empty for the queue's own; one that is not there is made, and begins where the queue begins. `prefetch`:
    so many records, and bytes, granted and not settled, at most; 0: the node's limit. `auto_ack`: what is granted is
    settled as it is sent. `exclusive`: refused while somebody else is subscribed, and nobody else while this is.
    `priority`: higher ones are served first. `name`: for people. `create`: whether a group that is not there is made;
    else NoSuchGroup.

    `replaces`, `secret`: the subscription whose place this takes, by its number and what its Subscribed said: it ends
    first, as if its connection were gone, which the node may not have noticed. One that has ended is no error.
    """

    queue: str
    group: str = ""
    prefetch_records: int = 0
    prefetch_bytes: int = 0
    auto_ack: bool = False
    exclusive: bool = False
    priority: int = 0
    name: str = ""
    create: bool = True
    replaces: int = 0
    secret: str = ""


class Subscribed(Message, frozen=True):
    """`subscription`: its number, within the node's run. `prefetch_*`: as they hold, after the node's limits. `secret`:
    lets a later Subscribe take its place."""

    subscription: int
    log_id: str
    epoch: int
    queue_id: int
    prefetch_records: int
    prefetch_bytes: int
    secret: str = ""


class Unsubscribe(Message, frozen=True):
    """Nothing more is granted; what is in hand stays so until it is settled or the connection goes. Answered with
    Done, behind every DELIVER of the subscription. `leaves`: it ends now, as if its connection were gone."""

    subscription: int
    leaves: bool = False


class SubscriptionEnded(Message, frozen=True):
    """In an ENDED frame: the subscription is no more, and what it had is given to others. `code`, `message`, `details`:
    of the error that says why; NOT_MASTER with the details of that error when the log has another master."""

    subscription: int
    code: str
    message: str
    details: dict[str, Any] = {}


class LeasedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Records [first, next) under the lease of that number: each of them with it is a receipt."""

    first: int
    next: int
    lease: int
    redelivered: bool = False
    attempts: int = 0


class Lease(Message, frozen=True):
    """Up to `records_max` records for `lease_ms`, then they come back by themselves. Answered with Leases, confirmed on
    all copies; with none after `wait_ms` if there are none. `holder`: for people."""

    queue: str
    group: str = ""
    records_max: int = 1
    lease_ms: int = 30_000
    wait_ms: int = 0
    holder: str = ""


class Leases(Message, frozen=True):
    """`next`: the queue's next confirmed queue offset. The records are fetched."""

    log_id: str
    epoch: int
    queue_id: int
    next: int
    leased: list[LeasedRange]


class SettleLease(Message, frozen=True):
    """`how`: see `frames.How`, but EXTEND; `level`: a confirm level. A receipt of a lease that has ended acks as long
    as nobody else has the record, and returns nothing. Answered with LeasesSettled; with ReceiptStale, and nothing of
    it counts, when somebody else has one of the records now; with SettledOtherwise, and nothing of it counts, when one
    is settled as something else."""

    queue: str
    receipts: list[LeasedRange]
    how: int
    group: str = ""
    delay_ms: int = 0
    level: int = Level.ALL


class ExtendLease(Message, frozen=True):
    """The leases of these receipts run for `lease_ms` from now. Answered with LeasesSettled; receipts of a lease that
    has ended are refused with NotGranted, and nothing is extended."""

    queue: str
    receipts: list[LeasedRange]
    lease_ms: int
    group: str = ""


class LeasesSettled(Message, frozen=True):
    """`records`: so many changed."""

    records: int


class PurgeGroup(Message, frozen=True):
    """Settle every record that is ready in the group, not what is in somebody's hands. Answered with Purged."""

    queue: str
    group: str = ""


class Purged(Message, frozen=True):
    records: int


REDRIVE_MAX: Final = 1_000_000
"""Records of one redrive."""


class Redrive(Message, frozen=True):
    """Send up to `records_max` records that are ready in the queue's own group, the oldest ones, back to the queue that
    each died in last, or to the queue `to`, a name in the same virtual host. Answered with Redriven when that is
    confirmed; they arrive a moment later, each once. One that leads to no queue stays where it is."""

    queue: str
    records_max: int = REDRIVE_MAX
    to: str = ""


class Redriven(Message, frozen=True):
    """So many are on their way."""

    records: int


class DeleteGroup(Message, frozen=True):
    """Forget a group of either kind. Its subscriptions end. Answered with Done once it is confirmed, with NoSuchGroup
    when there is none. The queue's own group cannot be deleted."""

    queue: str
    group: str


class ListGroups(Message, frozen=True):
    """The groups of a queue as its master knows them. Answered with GroupsFound."""

    queue: str


class LeaseInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A lease that runs. `lease`: its number, which its receipts name, too. `records`: how many it has still.
    `ends_in_ms`: unless it is extended, -1: not known yet."""

    lease: int
    records: int
    holder: str = ""
    ends_in_ms: int = -1


class ConsumerInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is subscribed to a group. `name`: as it gave it; `peer`: its connection's address. `in_hand`: records.
    `alone`: it has the group for itself, because it is exclusive, or the single one that is active."""

    peer: str
    name: str = ""
    priority: int = 0
    in_hand: int = 0
    alone: bool = False


class GroupInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`kind`: stream (`floor` is its position) or acking. Records below `floor` are settled, below `watermark` may have
    been given out. `ready`: may be given out now; `unsettled`: all confirmed ones that are not settled, of which `out`
    are with subscribers, `leased` leased, `departing` leave for other queues, and `parked` wait for a delay's end.

    `waiting`: who waits for leases. `alone`: who has the group for itself; `idle_for_another`: how many get nothing for
    that. Of the others `without_credit` have in hand what they may have, and the connections of `not_reading` take
    nothing; 20 of each at most, as `peer (records in hand)`. `due_ms`: until a delay, a lease or a consumer's time ends
    next, -1: none. `gone`: not settled, and freed by the queue's retention all the same.
    `departing_waits`: why none of the `departing` arrives at the moment, if that is so.
    `leases`, `consumers`: 20 of each at most, and 1,000 of each in one answer.
    """

    group: str
    kind: str
    floor: int
    watermark: int = 0
    ready: int = 0
    unsettled: int = 0
    out: int = 0
    leased: int = 0
    parked: int = 0
    subscribers: int = 0
    waiting: int = 0
    idle_for_another: int = 0
    without_credit: list[str] = []
    not_reading: list[str] = []
    alone: str = ""
    due_ms: int = -1
    gone: int = 0
    departing: int = 0
    departing_waits: str = ""
    leases: list[LeaseInfo] = []
    consumers: list[ConsumerInfo] = []


class GroupsFound(Message, frozen=True):
    """`next`: the queue's next confirmed queue offset."""

    queue: str
    next: int
    groups: list[GroupInfo]


class ResetGroups(Message, frozen=True):
    """Have groups of a queue, of either kind, stand somewhere else: all that are named, or none. Answered with
    GroupsReset once it is confirmed; refused (InUse) while one of them is active.

    `groups`: None stands for all there are. `to`: earliest, latest, offset, time, shift or each. `value`: a queue
    offset, µs UTC for a time, how many records forward for a shift, below 0 back. `offsets`: by group, for each. Where
    that is no record's place it is the nearest there is; only an offset that is none is refused, OffsetOutOfRange.
    `dry_run`: only tell. `force`: active ones, too: subscriptions and leases of them end. A shift that is asked for
    twice is made twice.
    """

    queue: str
    groups: list[str] | None = None
    to: str = "earliest"
    value: int = 0
    offsets: dict[str, int] = {}
    dry_run: bool = False
    force: bool = False


class GroupMove(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: stream or acking. `source`: where it stood, an acking group's floor; `target`: where it stands now, or
    would. `active`: who is at it, in words; empty when nobody is known to be."""

    group: str
    kind: str
    source: Position
    target: Position
    active: str = ""


class GroupsReset(Message, frozen=True):
    """`begin`, `next`: between these the groups may stand, queue offsets. `done`: not for a dry run."""

    queue: str
    begin: int
    next: int
    groups: list[GroupMove]
    done: bool


class Metadata(Message, frozen=True):
    """`version`: of the newest decision of the cluster that this node knows: of several answers the highest is true.
    `placed`: of those that are missing here, the ones that are in a log of the cluster all the same. `outages`: of
    all there are, the ones that nobody can answer for now; when some were asked for, of these, also those with a
    copy here that nobody can master. `heard`: not so while this node's run has not heard its cluster: then what it says
    of masters may be old, and that something is not offered (`QueueInfo.attributes`) is no answer."""

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
    knows what that is. Those who ask without a word of it are of software that took either.
    """

    queue: str
    append_time_us: int
    any_copy: bool = True


class FoundOffset(Message, frozen=True):
    queue_offset: int


class CommitPosition(Message, frozen=True):
    """Store a group's position; answered (Done) when it is confirmed."""

    queue: str
    group: str
    position: Position


class FetchPosition(Message, frozen=True):
    """`any_copy`: a mirror may answer, which may have heard of less than was confirmed; else the master does, once it
    knows what that is."""

    queue: str
    group: str
    any_copy: bool = False


class FoundPosition(Message, frozen=True):
    """`position` is None when the group has never committed one."""

    position: Position | None


class Done(Message, frozen=True):
    pass


class GetStatus(Message, frozen=True):
    """What `mqtool offsets` shows. Answered with Status."""


class MirrorStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One mirror as its master sees it. Offsets are log offsets, -1 before the first; times are µs UTC.

    `lag_records_estimated`: the records are counted in whole batches from the index where it reaches, and scaled by
    bytes where it does not.
    """

    node_id: str
    connected: bool
    proven: bool
    in_sync: bool
    requested: int
    sent: int
    acked: int
    flushed: int
    lag_bytes: int
    lag_records: int
    lag_records_estimated: bool
    lag_seconds: float
    bytes_per_second: float
    last_read_us: int | None = None
    last_write_us: int | None = None


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of a queue on one node since its process began, see `broker.queue_counters`. Rates: records per second, of the
    last seconds."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acked: int = 0
    expired: int = 0
    timed_out: int = 0
    publish_rate: float = 0.0
    deliver_rate: float = 0.0
    redeliver_rate: float = 0.0
    ack_rate: float = 0.0


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`begin`: first, `next`: after the last appended, `confirmed`: after the last confirmed queue offset. `counts`:
    None while the node has counted nothing for it. `refuse_rate`: records a second, of the last seconds, that were
    refused because the queue is full."""

    name: str
    queue_id: int
    begin: int
    next: int
    confirmed: int
    counts: QueueCounts | None = None
    refuse_rate: float = 0.0


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """`lag`: confirmed records not yet passed."""

    group: str
    queue: str
    position: Position
    lag: int


class ProducerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A producer with something in a queue that is not confirmed, or that a limit holds. `peer`: its connection's other
    end; `unconfirmed_…`: of it; `blocked_by`: the limit, for `blocked_ms` already; empty: it may go on. `refused`:
    whether it has sent more than it may."""

    queue: str
    producer_id: int
    peer: str
    unconfirmed_bytes: int
    unconfirmed_batches: int
    blocked_by: str = ""
    blocked_ms: int = 0
    refused: bool = False


class LogStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One log on one node. `state`: serving, recovering, opening, following, disconnected or corrupt, with `reason`.
    `copies_up`: at its master, with fewer than `min_in_sync` publishes are refused; -1 elsewhere, and if not told.
    `holds`: of landings on its queues. `producers`: at its master, 100 at most, those that a limit holds first, and
    `producers_blocked` how many of these there are."""

    log_id: str
    name: str
    role: str
    state: str
    reason: str
    flush: str
    min_in_sync: int
    epoch: int
    begin: int
    end: int
    flushed: int
    confirmed: int
    mirrors: list[MirrorStatus]
    queues: list[QueueStatus]
    groups: list[GroupStatus]
    holds: list[HoldInfo] = []
    producers: list[ProducerStatus] = []
    producers_blocked: int = 0
    copies_up: int = -1


class DiskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The disk of a node's data directory. `state`: ok, low (`reason` says what is missing) or full: data is
    refused."""

    state: str
    reason: str
    free_bytes: int
    size_bytes: int


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a node and its doors, page cache not counted. `state`: ok, or high: data is refused, and `reason`
    says why. `used_bytes`: what they hold; `high_bytes`: with how much it is high; `size_bytes`: of the machine or the
    container."""

    state: str
    reason: str
    used_bytes: int
    high_bytes: int
    size_bytes: int


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node as another one sees it. `member`: its number in Raft; `votes`: not while it learns; `life`: up, down or
    unknown; `kind`: of its start, clean, died or lossy; `start_id`: of the run that the cluster knows, empty before the
    first; `software_version`: the highest cluster version that this run can do, 0 before the first."""

    node_id: str
    member: int
    client: str
    replication: str
    life: str
    grpc: str = ""
    http: str = ""
    start_id: str = ""
    kind: str = ""
    witness: bool = False
    stopped: bool = False
    draining: bool = False
    votes: bool = True
    software_version: int = 0


class LossStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Confirmed records may be gone from log offset `start` up to `end`, or further: where the copy ended that came
    back and held most; None while no copy has told. `epoch`: the one that began there; `leapt`: the queue offsets are
    past it."""

    epoch: int
    start: int
    end: int | None = None
    leapt: bool = False


class PlacedLog(msgspec.Struct, frozen=True, kw_only=True):
    """A log as the cluster has decided it. `master`: empty while there is none; `waits_for`: whom the coordinator that
    was asked waits for to promote one; `copies_wanted`: with fewer in sync nothing is confirmed; `wished`: to
    whom the log is being handed over, empty for nobody; `transient`: what is in it goes with its node's run."""

    log_id: str
    name: str
    flush: str
    replicas: list[str]
    master: str
    epoch: int
    version: int
    in_sync: list[str]
    marked: list[str]
    copies: int
    copies_wanted: int
    losses: list[LossStatus] = []
    waits_for: list[str] = []
    wished: str = ""
    transient: bool = False


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The view of one node. `version`: of the view; `coordinator`: empty while none is known; `elections`: how often
    this node has seen another coordinator in its run; `advice`: what would make it safer, a line each;
    `cluster_version`: what the nodes may write, see `mirrorlog.versions`."""

    version: int
    incarnation: int
    coordinator: str
    term: int
    elections: int
    registered: bool
    nodes: list[NodeStatus]
    logs: list[PlacedLog]
    advice: list[str] = []
    cluster_version: int = 1


class DurationCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took, how often. `counts`: of each bucket alone: above the bound before it, up to and with its
    own of `bounds_s`; the last one has no bound. `sum_s`: of all."""

    bounds_s: list[float]
    counts: list[int]
    sum_s: float


class LogCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one log on one node since it took a copy of it in, whatever roles it has had: see `broker.counters`. `log`:
    its name; `unknown`: by an error's code; `sent_bytes`: by the mirror's node id."""

    log: str
    published_batches: int
    published_records: int
    published_bytes: int
    confirms: DurationCounts
    unknown: dict[str, int]
    sent_bytes: dict[str, int]
    received_bytes: int
    fetches: int
    fetched_bytes: int
    flushes: int
    flushed_bytes: int
    promotions: int


class NodeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Of one node since its process began. `accepted`: connections by port, client or replication; `open`: those that
    are there now. `refused`: publishes of which nothing was stored, by the error's code. `links_opened`: to other
    members of the cluster, of which `links_open` stand; `questions_failed`: to these, without an answer that serves.
    `strangers`: of those that are open, who have not been let in, by port; `capped`: limits of connections that its
    limit of open files makes lower than its settings, with the number that holds; `logins_failed`, by reason, and
    `rights_refused`, by right: see `broker.refused_access`."""

    accepted: dict[str, int]
    open: dict[str, int]
    refused: dict[str, int]
    links_opened: int
    links_open: int
    questions_failed: int
    logs: list[LogCounts]
    strangers: dict[str, int] = {}
    capped: dict[str, int] = {}
    logins_failed: dict[str, int] = {}
    rights_refused: dict[str, int] = {}


class Status(Message, frozen=True):
    """`disk`, `memory`: None when it could not be measured; `cluster`: None for a node that is in none; `counts`,
    `memory`: None from a node that is older than they are. `certificate_expires_s`: s since 1970, of the node's
    certificate that is in use; 0 without TLS."""

    cluster_id: str
    cluster_name: str
    node_id: str
    start_id: str
    now_us: int
    logs: list[LogStatus]
    disk: DiskStatus | None = None
    cluster: ClusterStatus | None = None
    counts: NodeCounts | None = None
    memory: MemoryStatus | None = None
    certificate_expires_s: int = 0


# --- Operators ------------------------------------------------------------------------------------------------------


class DrainNode(Message, frozen=True):
    """A node shall master nothing any more, or may again. Answered with Drained once that is decided; the logs follow,
    one after the other. `node`: empty for the one that is asked."""

    node: str = ""
    draining: bool = True


class Drained(Message, frozen=True):
    """`node`: which one it is about."""

    node: str
    draining: bool


class ForgetNode(Message, frozen=True):
    """A node will not come back. Answered with Done once that is decided. `force`: also one that is up."""

    node: str
    force: bool = False


class Rebalance(Message, frozen=True):
    """Every log whose home can take it over shall be mastered there. Answered with Rebalanced."""

    dry_run: bool = False


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """A log that is not mastered by its home, the first of its replicas. `reason`: why it stays; empty when it is, or
    would be, handed over."""

    log_id: str
    name: str
    source: str
    target: str
    reason: str = ""


class Rebalanced(Message, frozen=True):
    """What is handed over from here on is decided: it happens whoever coordinates. `done`: not for a dry run."""

    moves: list[Move]
    done: bool


class PromoteCopy(Message, frozen=True):
    """Master a log from a copy that may lack what was confirmed. Answered with CopyPromoted. `log`: name or id; `to`: a
    node, empty for the copy that has most; without `accept_loss` nothing is done, and what would be is told."""

    log: str
    to: str = ""
    accept_loss: bool = False


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a fenced copy holds; `error`: why it said nothing. Log offsets; -1 for not known."""

    node_id: str
    last_epoch: int = -1
    end: int = -1
    confirmed: int = -1
    error: str = ""


class CopyPromoted(Message, frozen=True):
    """`missing`: nodes that have everything, or may, and are not there; `able`: who could be it. `node`, `epoch`,
    `lost_from` and `copies` only when it is `done`: confirmed records may be lost from that log offset on; up to
    `lost_to` they were, as far as copies that are there know of more."""

    log_id: str
    name: str
    missing: list[str]
    able: list[str]
    done: bool = False
    node: str = ""
    epoch: int = 0
    lost_from: int | None = None
    lost_to: int | None = None
    copies: list[CopyReport] = []


class GetEvents(Message, frozen=True):
    """What happened in the cluster, as this node came to know it. Answered with Events: at once when there are some
    behind number `after`, else when there are or after `wait_ms`."""

    after: int = 0
    wait_ms: int = 0
    limit: int = 1000


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`number`: of the node's run, from 1; `time_us`: µs UTC by the node's clock, 0 for what was decided before its
    run; `index`: of the entry that decided it, 0 for what this node saw by itself; `kind`: see docs/operations.md."""

    number: int
    time_us: int
    kind: str
    text: str
    index: int = 0
    node: str = ""
    log: str = ""
    details: dict[str, Any] = {}


class Events(Message, frozen=True):
    """`start_id`: numbers are of this run; `first`: the oldest that is still held; `last`: the newest, 0 for none."""

    node_id: str
    start_id: str
    now_us: int
    first: int
    last: int
    events: list[ClusterEvent]


# --- Virtual hosts, exchanges, users: see docs/decisions/0035 ---
#
# Each is answered with Done, or what it asks for, once it is decided and every node that is up has applied it; or after
# two seconds, while one of them is slow.


class DeclareExchange(Message, frozen=True):
    """Idempotent; ExchangeExists names the difference. `passive`: only ask whether it is there."""

    name: str
    exchange: Exchange
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    passive: bool = False


class DeleteExchange(Message, frozen=True):
    """`if_unused`: only while no binding leads from it (InUse)."""

    name: str
    virtual_host: str = DEFAULT_VIRTUAL_HOST
    if_unused: bool = False


class Bind(Message, frozen=True):
    """All of them or none, up to 1,000."""

    bindings: list[Binding]
    virtual_host: str = DEFAULT_VIRTUAL_HOST


class Unbind(Message, frozen=True):
    """Nothing when it is not there."""

    binding: Binding
    virtual_host: str = DEFAULT_VIRTUAL_HOST


class GetRouting(Message, frozen=True):
    """Answered with Routing at once. `version`: what the asker has; 0: nothing. `to_publish`: asked by who routes by
    it: a node that is cut off refuses that (NotCurrent), and the answer may be what has changed since `version` only.
    `only_version`: nothing else is asked for."""

    virtual_host: str = DEFAULT_VIRTUAL_HOST
    version: int = 0
    to_publish: bool = False
    only_version: bool = False


class Routing(Message, frozen=True):
    """What the node that answers knows. `changed`: False when the asker has this version already; then the rest is
    empty. `exchanges`: without the predefined ones. `since`: 0 when this is all there is; else it is what has changed
    since that version, and `deleted` and `unbound` are the exchanges and bindings that are gone."""

    version: int
    changed: bool = True
    exchanges: dict[str, Exchange] = {}
    bindings: list[Binding] = []
    since: int = 0
    deleted: list[str] = []
    unbound: list[Binding] = []


class AddVirtualHost(Message, frozen=True):
    name: str


class DeleteVirtualHost(Message, frozen=True):
    """Refused (InUse) while it has queues."""

    name: str


class ListVirtualHosts(Message, frozen=True):
    """Answered with VirtualHosts."""


class VirtualHostInfo(msgspec.Struct, frozen=True, kw_only=True):
    """`version`: of its routing; the rest are numbers of them. `exchanges`: declared ones."""

    name: str
    version: int
    exchanges: int
    bindings: int
    queues: int


class VirtualHosts(Message, frozen=True):
    virtual_hosts: list[VirtualHostInfo]


class SetUser(Message, frozen=True):
    """`password_hash`: see `wire.passwords`: a password itself is never sent for this. None: as it was."""

    name: str
    password_hash: str | None = None
    tags: list[str] | None = None


class DeleteUser(Message, frozen=True):
    name: str


class SetPermissions(Message, frozen=True):
    """Regular expressions; an empty one matches nothing."""

    user: str
    configure: str
    write: str
    read: str
    virtual_host: str = DEFAULT_VIRTUAL_HOST


class ClearPermissions(Message, frozen=True):
    user: str
    virtual_host: str = DEFAULT_VIRTUAL_HOST


class ListUsers(Message, frozen=True):
    """Answered with Users; hashes are not told."""


class PermissionInfo(msgspec.Struct, frozen=True, kw_only=True):
    virtual_host: str
    configure: str
    write: str
    read: str


class UserInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tags: list[str]
    permissions: list[PermissionInfo]


class Users(Message, frozen=True):
    users: list[UserInfo]


class Login(Message, frozen=True):
    """The first request of a connection, where the cluster has users. Only over TLS, or to this machine. Without a
    name: a door of the node, with the token that the node gave it."""

    user: str
    password: str

    def __repr__(self) -> str:
        """Without the password: messages are shown in errors and logs."""
        return f"Login(user={self.user!r})"


AnyMessage = (
    Hello | Challenge | Proof | Welcome | Failure | Follow | History | Pull
    | GetMetadata | Metadata | DeclareQueue | DeleteQueue | Deleted | FindOffset | FoundOffset
    | CommitPosition | FetchPosition | FoundPosition | Done | GetStatus | Status
    | SetHold | HoldGiven | EndHold | ListHolds | HoldsFound
    | Subscribe | Subscribed | Unsubscribe | SubscriptionEnded | Lease | Leases | SettleLease | ExtendLease
    | LeasesSettled | PurgeGroup | Purged | DeleteGroup | ListGroups | GroupsFound | ResetGroups | GroupsReset
    | Redrive | Redriven | DeclareExchange | DeleteExchange | Bind | Unbind | GetRouting | Routing
    | AddVirtualHost | DeleteVirtualHost | ListVirtualHosts | VirtualHosts
    | SetUser | DeleteUser | SetPermissions | ClearPermissions | ListUsers | Users | Login
    | DrainNode | Drained | ForgetNode | Rebalance | Rebalanced | PromoteCopy | CopyPromoted | GetEvents | Events
)  # fmt: skip

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(AnyMessage)


class Encoded(Message, frozen=True):
    """A message that was encoded before, for it is large and many ask for it; never decoded."""

    data: bytes


def encode(message: Message) -> bytes:
    return message.data if type(message) is Encoded else _ENCODER.encode(message)


def decode(payload: memoryview | bytes) -> AnyMessage:
    """The message in a frame's payload. Raises ProtocolError naming what does not fit."""
    try:
        message: AnyMessage = _DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a control message does not fit: {error}") from None
    return message


def expect_message(frame_: Frame, frame_type: FrameType, kind: type[_M]) -> _M:
    """The message of that kind in a frame of that type. Raises ProtocolError for anything else."""
    if frame_.type != frame_type:
        raise ProtocolError(f"frame type {frame_.type} where {frame_type.name} was expected")
    message = decode(frame_.payload)
    if not isinstance(message, kind):
        raise ProtocolError(f"{type(message).__name__} where {kind.__name__} was expected")
    return message


def error_frame(error: MirrorlogError, correlation_id: int = 0) -> bytes:
    failure = Failure(code=error.code, message=error.message, details=error.details)
    return frame(FrameType.ERROR, encode(failure), correlation_id)


def as_error(failure: Failure) -> MirrorlogError:
    """The exception that a received ERROR frame stands for."""
    return from_code(failure.code, failure.message, failure.details)
