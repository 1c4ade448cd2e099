"""What a node tells of itself, its logs and its cluster."""

from __future__ import annotations

import msgspec

from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.queues import HoldInfo, Position


class GetStatus(Message, frozen=True):
    """What `mqtool offsets` shows. Answered with Status."""


class MirrorStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """One mirror as its master sees it. Offsets are log offsets, -1 before the first; times are µs UTC.

    `move_bytes_per_s`: what the master sends to all copies together that are made for a move, of which this is one; 0
    for no limit, -1 while nothing is sent because moving is paused. `lag_records_estimated`: the records are counted in
    whole batches from the index where it reaches, and scaled by bytes where it does not.
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
    move_bytes_per_s: int = 0
    last_read_us: int | None = None
    last_write_us: int | None = None


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
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
    dead_lettered: int = 0


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """`begin`: first, `next`: after the last appended, `confirmed`: after the last confirmed queue offset. `counts`:
    None while the node has counted nothing for it. `refuse_rate`: records a second, of the last seconds, that were
    refused because the queue is full. `ready`, `unacknowledged`: confirmed records of the queue's own group that may be
    given out, and that are with somebody; `delayed`: that wait for a time; `consumers`: its subscribers;
    `oldest_age_ms`: how long at least the first that it has not settled is there, 0 while there is none. All of these
    at its log's master, -1 elsewhere and from older nodes. `works`: it keeps what is not settled, and nothing else; at
    the master, too."""

    name: str
    queue_id: int
    begin: int
    next: int
    confirmed: int
    counts: QueueCounts | None = None
    refuse_rate: float = 0.0
    ready: int = -1
    unacknowledged: int = -1
    consumers: int = -1
    works: bool = False
    delayed: int = -1
    oldest_age_ms: int = -1


class AckingGroupStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """A group that acks, at its log's master; the queue's own group has no name. As in QueueStatus and QueueCounts;
    `leaving`: records that are on their way to other queues, as dead letters or sent back."""

    queue: str
    group: str
    ready: int = 0
    unacknowledged: int = 0
    delayed: int = 0
    leaving: int = 0
    consumers: int = 0
    oldest_age_ms: int = 0
    delivered: int = 0
    acked: int = 0
    dead_lettered: int = 0
    deliver_rate: float = 0.0
    ack_rate: float = 0.0


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """`lag`: confirmed records not yet passed."""

    group: str
    queue: str
    position: Position
    lag: int


class ProducerStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
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


class LeftQueueStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Records [`begin`, `next`) of a queue are in this log, though the queue has moved to another one, `moved_to` (id).
    The log keeps them until they are freed, or copied there (`mqtool sync-queue`)."""

    queue: str
    queue_id: int
    begin: int
    next: int
    moved_to: str


class PinStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A log's `dead_bytes`, of all its queues, stay because `live_bytes` of this queue stand before and among them."""

    queue: str
    live_bytes: int
    dead_bytes: int


class LogStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """One log on one node. `state`: serving, recovering, opening, following, disconnected or corrupt, with `reason`.
    `copies_up`: at its master, with fewer than `min_in_sync` publishes are refused; -1 elsewhere, and if not told.
    `holds`: of landings on its queues. `producers`: at its master, 100 at most, those that a limit holds first, and
    `producers_blocked` how many of these there are; `left`: of queues that have moved to other logs; `acking`: at its
    master, the groups that ack; `pin`: at its master, while something dead stays."""

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
    left: list[LeftQueueStatus] = []
    pin: PinStatus | None = None
    acking: list[AckingGroupStatus] = []


class DiskStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The disk of a node's data directory. `state`: ok, low (`reason` says what is missing) or full: data is
    refused."""

    state: str
    reason: str
    free_bytes: int
    size_bytes: int


class MemoryStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The memory of a node and its doors, page cache not counted. `state`: ok, or high: data is refused, and `reason`
    says why. `used_bytes`: what they hold; `high_bytes`: with how much it is high; `size_bytes`: of the machine or the
    container."""

    state: str
    reason: str
    used_bytes: int
    high_bytes: int
    size_bytes: int


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A node as another one sees it. `member`: its number in Raft; `votes`: not while it learns; `life`: up, down or
    unknown; `kind`: of its start, clean, died or lossy; `start_id`: of the run that the cluster knows, empty before the
    first; `software_version`: the highest cluster version that this run can do, 0 before the first; `leaving`: its
    copies go elsewhere, for good."""

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
    leaving: bool = False


class LossStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Confirmed records may be gone from log offset `start` up to `end`, or further: where the copy ended that came
    back and held most; None while no copy has told. `epoch`: the one that began there; `leapt`: the queue offsets are
    past it."""

    epoch: int
    start: int
    end: int | None = None
    leapt: bool = False


class PlacedLog(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """A log as the cluster has decided it. `master`: empty while there is none; `waits_for`: whom the coordinator that
    was asked waits for to promote one; `copies_wanted`: with fewer in sync nothing is confirmed; `wished`: to whom the
    log is being handed over, empty for nobody; `reason`: why nobody masters it, as far as it waits for somebody who is
    down; `transient`: what is in it goes with its node's run; `target`: the nodes
    that it is on its way to, empty when it stays."""

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
    target: list[str] = []
    reason: str = ""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The view of one node. `version`: of the view; `coordinator`: empty while none is known; `elections`: how often
    this node has seen another coordinator in its run; `advice`: what would make it safer, a line each;
    `cluster_version`: what the nodes may write, see `mirrorlog.versions`; `moving_paused`: no log goes to other
    nodes."""

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
    moving_paused: bool = False


class DurationCounts(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """How long something took, how often. `counts`: of each bucket alone: above the bound before it, up to and with its
    own of `bounds_s`; the last one has no bound. `sum_s`: of all."""

    bounds_s: list[float]
    counts: list[int]
    sum_s: float


class LogCounts(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
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


class NodeCounts(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """Of one node since its process began. `accepted`: connections by port, client or replication; `open`: those that
    are there now. `refused`: publishes of which nothing was stored, by the error's code. `links_opened`: to other
    members of the cluster, of which `links_open` stand; `questions_failed`: to these, without an answer that serves.
    `strangers`: of those that are open, who have not been let in, by port; `capped`: limits of connections that its
    limit of open files makes lower than its settings, with the number that holds; `logins_failed`, by reason, and
    `rights_refused`, by right: see `broker.refused_access`. `users_held_s`: by the rate of `quotas` that held them."""

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
    users_held_s: dict[str, float] = {}


class FormerStatus(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """What a node still holds of a log that the cluster does not name it for any more. `since_us`: µs UTC, since it is
    known to be such a copy; `removed`: the cluster has no such log; `goes_us`: when it is freed by itself, 0: never."""

    log_id: str
    name: str
    size_bytes: int
    since_us: int
    removed: bool = False
    goes_us: int = 0


class Status(Message, frozen=True):
    """`disk`, `memory`: None when it could not be measured; `cluster`: None for a node that is in none; `counts`,
    `memory`: None from a node that is older than they are. `certificate_expires_s`: s since 1970, of the node's
    certificate that is in use; 0 without TLS. `former`: copies that it holds and is not named for any more. `awaited`:
    its doors that do not serve, by what they are called in settings: until they do it is not ready."""

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
    former: list[FormerStatus] = []
    awaited: list[str] = []
