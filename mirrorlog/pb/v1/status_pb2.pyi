from mirrorlog.pb.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeStatus(_message.Message):
    __slots__ = ("cluster_id", "cluster_name", "node_id", "start_id", "now_us", "logs")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    cluster_name: str
    node_id: str
    start_id: str
    now_us: int
    logs: _containers.RepeatedCompositeFieldContainer[LogStatus]
    def __init__(self, cluster_id: _Optional[str] = ..., cluster_name: _Optional[str] = ..., node_id: _Optional[str] = ..., start_id: _Optional[str] = ..., now_us: _Optional[int] = ..., logs: _Optional[_Iterable[_Union[LogStatus, _Mapping]]] = ...) -> None: ...

class LogStatus(_message.Message):
    __slots__ = ("log_id", "name", "role", "state", "reason", "flush", "min_in_sync", "epoch", "begin", "end", "flushed", "confirmed", "mirrors", "queues", "groups", "holds", "producers", "producers_blocked", "copies_up", "left", "pin", "acking")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    FLUSH_FIELD_NUMBER: _ClassVar[int]
    MIN_IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_BLOCKED_FIELD_NUMBER: _ClassVar[int]
    COPIES_UP_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    ACKING_FIELD_NUMBER: _ClassVar[int]
    log_id: str
    name: str
    role: str
    state: str
    reason: str
    flush: _common_pb2.Durability
    min_in_sync: int
    epoch: int
    begin: int
    end: int
    flushed: int
    confirmed: int
    mirrors: _containers.RepeatedCompositeFieldContainer[MirrorStatus]
    queues: _containers.RepeatedCompositeFieldContainer[QueueStatus]
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    holds: _containers.RepeatedCompositeFieldContainer[HoldStatus]
    producers: _containers.RepeatedCompositeFieldContainer[ProducerStatus]
    producers_blocked: int
    copies_up: int
    left: _containers.RepeatedCompositeFieldContainer[LeftQueueStatus]
    pin: PinStatus
    acking: _containers.RepeatedCompositeFieldContainer[AckingGroupStatus]
    def __init__(self, log_id: _Optional[str] = ..., name: _Optional[str] = ..., role: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., flush: _Optional[_Union[_common_pb2.Durability, str]] = ..., min_in_sync: _Optional[int] = ..., epoch: _Optional[int] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., flushed: _Optional[int] = ..., confirmed: _Optional[int] = ..., mirrors: _Optional[_Iterable[_Union[MirrorStatus, _Mapping]]] = ..., queues: _Optional[_Iterable[_Union[QueueStatus, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., holds: _Optional[_Iterable[_Union[HoldStatus, _Mapping]]] = ..., producers: _Optional[_Iterable[_Union[ProducerStatus, _Mapping]]] = ..., producers_blocked: _Optional[int] = ..., copies_up: _Optional[int] = ..., left: _Optional[_Iterable[_Union[LeftQueueStatus, _Mapping]]] = ..., pin: _Optional[_Union[PinStatus, _Mapping]] = ..., acking: _Optional[_Iterable[_Union[AckingGroupStatus, _Mapping]]] = ...) -> None: ...

class PinStatus(_message.Message):
    __slots__ = ("queue", "live_bytes", "dead_bytes")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LIVE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    live_bytes: int
    dead_bytes: int
    def __init__(self, queue: _Optional[str] = ..., live_bytes: _Optional[int] = ..., dead_bytes: _Optional[int] = ...) -> None: ...

class LeftQueueStatus(_message.Message):
    __slots__ = ("queue", "queue_id", "begin", "next", "moved_to")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    MOVED_TO_FIELD_NUMBER: _ClassVar[int]
    queue: str
    queue_id: int
    begin: int
    next: int
    moved_to: str
    def __init__(self, queue: _Optional[str] = ..., queue_id: _Optional[int] = ..., begin: _Optional[int] = ..., next: _Optional[int] = ..., moved_to: _Optional[str] = ...) -> None: ...

class ProducerStatus(_message.Message):
    __slots__ = ("queue", "producer_id", "peer", "unconfirmed_bytes", "unconfirmed_batches", "blocked_by", "blocked_ms", "refused")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_BYTES_FIELD_NUMBER: _ClassVar[int]
    UNCONFIRMED_BATCHES_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_BY_FIELD_NUMBER: _ClassVar[int]
    BLOCKED_MS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    queue: str
    producer_id: int
    peer: str
    unconfirmed_bytes: int
    unconfirmed_batches: int
    blocked_by: str
    blocked_ms: int
    refused: bool
    def __init__(self, queue: _Optional[str] = ..., producer_id: _Optional[int] = ..., peer: _Optional[str] = ..., unconfirmed_bytes: _Optional[int] = ..., unconfirmed_batches: _Optional[int] = ..., blocked_by: _Optional[str] = ..., blocked_ms: _Optional[int] = ..., refused: _Optional[bool] = ...) -> None: ...

class QueueCounts(_message.Message):
    __slots__ = ("published", "delivered", "redelivered", "acked", "expired", "timed_out", "publish_rate", "deliver_rate", "redeliver_rate", "ack_rate", "dead_lettered")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_RATE_FIELD_NUMBER: _ClassVar[int]
    DELIVER_RATE_FIELD_NUMBER: _ClassVar[int]
    REDELIVER_RATE_FIELD_NUMBER: _ClassVar[int]
    ACK_RATE_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    published: int
    delivered: int
    redelivered: int
    acked: int
    expired: int
    timed_out: int
    publish_rate: float
    deliver_rate: float
    redeliver_rate: float
    ack_rate: float
    dead_lettered: int
    def __init__(self, published: _Optional[int] = ..., delivered: _Optional[int] = ..., redelivered: _Optional[int] = ..., acked: _Optional[int] = ..., expired: _Optional[int] = ..., timed_out: _Optional[int] = ..., publish_rate: _Optional[float] = ..., deliver_rate: _Optional[float] = ..., redeliver_rate: _Optional[float] = ..., ack_rate: _Optional[float] = ..., dead_lettered: _Optional[int] = ...) -> None: ...

class HoldStatus(_message.Message):
    __slots__ = ("queue", "name", "holder", "epoch", "queue_offset", "lease_ms", "left_ms", "location", "tiered", "ended", "begin", "next", "lag", "kept_bytes")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    TIERED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    queue: str
    name: str
    holder: str
    epoch: int
    queue_offset: int
    lease_ms: int
    left_ms: int
    location: str
    tiered: bool
    ended: str
    begin: int
    next: int
    lag: int
    kept_bytes: int
    def __init__(self, queue: _Optional[str] = ..., name: _Optional[str] = ..., holder: _Optional[str] = ..., epoch: _Optional[int] = ..., queue_offset: _Optional[int] = ..., lease_ms: _Optional[int] = ..., left_ms: _Optional[int] = ..., location: _Optional[str] = ..., tiered: _Optional[bool] = ..., ended: _Optional[str] = ..., begin: _Optional[int] = ..., next: _Optional[int] = ..., lag: _Optional[int] = ..., kept_bytes: _Optional[int] = ...) -> None: ...

class MirrorStatus(_message.Message):
    __slots__ = ("node_id", "connected", "proven", "in_sync", "requested", "sent", "acked", "flushed", "lag_bytes", "lag_records", "lag_records_estimated", "lag_seconds", "bytes_per_second", "last_read_us", "last_write_us", "move_bytes_per_s")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    PROVEN_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    FLUSHED_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LAG_RECORDS_ESTIMATED_FIELD_NUMBER: _ClassVar[int]
    LAG_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LAST_READ_US_FIELD_NUMBER: _ClassVar[int]
    LAST_WRITE_US_FIELD_NUMBER: _ClassVar[int]
    MOVE_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
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
    last_read_us: int
    last_write_us: int
    move_bytes_per_s: int
    def __init__(self, node_id: _Optional[str] = ..., connected: _Optional[bool] = ..., proven: _Optional[bool] = ..., in_sync: _Optional[bool] = ..., requested: _Optional[int] = ..., sent: _Optional[int] = ..., acked: _Optional[int] = ..., flushed: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_records: _Optional[int] = ..., lag_records_estimated: _Optional[bool] = ..., lag_seconds: _Optional[float] = ..., bytes_per_second: _Optional[float] = ..., last_read_us: _Optional[int] = ..., last_write_us: _Optional[int] = ..., move_bytes_per_s: _Optional[int] = ...) -> None: ...

class QueueStatus(_message.Message):
    __slots__ = ("name", "queue_id", "begin", "next", "confirmed", "counts", "refuse_rate", "ready", "unacknowledged", "consumers", "works", "delayed", "oldest_age_ms")
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    REFUSE_RATE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    WORKS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_id: int
    begin: int
    next: int
    confirmed: int
    counts: QueueCounts
    refuse_rate: float
    ready: int
    unacknowledged: int
    consumers: int
    works: bool
    delayed: int
    oldest_age_ms: int
    def __init__(self, name: _Optional[str] = ..., queue_id: _Optional[int] = ..., begin: _Optional[int] = ..., next: _Optional[int] = ..., confirmed: _Optional[int] = ..., counts: _Optional[_Union[QueueCounts, _Mapping]] = ..., refuse_rate: _Optional[float] = ..., ready: _Optional[int] = ..., unacknowledged: _Optional[int] = ..., consumers: _Optional[int] = ..., works: _Optional[bool] = ..., delayed: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ...) -> None: ...

class AckingGroupStatus(_message.Message):
    __slots__ = ("queue", "group", "ready", "unacknowledged", "delayed", "leaving", "consumers", "oldest_age_ms", "delivered", "acked", "dead_lettered", "deliver_rate", "ack_rate")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DELAYED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    DELIVER_RATE_FIELD_NUMBER: _ClassVar[int]
    ACK_RATE_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    ready: int
    unacknowledged: int
    delayed: int
    leaving: int
    consumers: int
    oldest_age_ms: int
    delivered: int
    acked: int
    dead_lettered: int
    deliver_rate: float
    ack_rate: float
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., ready: _Optional[int] = ..., unacknowledged: _Optional[int] = ..., delayed: _Optional[int] = ..., leaving: _Optional[int] = ..., consumers: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ..., delivered: _Optional[int] = ..., acked: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., deliver_rate: _Optional[float] = ..., ack_rate: _Optional[float] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("group", "queue", "position", "lag")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    group: str
    queue: str
    position: _common_pb2.Position
    lag: int
    def __init__(self, group: _Optional[str] = ..., queue: _Optional[str] = ..., position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., lag: _Optional[int] = ...) -> None: ...
