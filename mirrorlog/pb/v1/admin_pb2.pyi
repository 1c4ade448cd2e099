from mirrorlog.pb.v1 import common_pb2 as _common_pb2
from mirrorlog.pb.v1 import status_pb2 as _status_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class QueueInfo(_message.Message):
    __slots__ = ("name", "queue_id", "log_id", "epoch", "master", "mirrors", "begin", "next", "arguments", "incarnation", "producer_epoch", "current", "tiers", "gaps", "attributes", "spans", "former_logs", "reason", "policy", "operator_policy", "effective", "sources", "policy_version", "policy_pending")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Argument
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...
    class EffectiveEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Argument
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...
    class SourcesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    GAPS_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    FORMER_LOGS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_POLICY_FIELD_NUMBER: _ClassVar[int]
    EFFECTIVE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    POLICY_PENDING_FIELD_NUMBER: _ClassVar[int]
    name: str
    queue_id: int
    log_id: str
    epoch: int
    master: str
    mirrors: _containers.RepeatedScalarFieldContainer[str]
    begin: int
    next: int
    arguments: _containers.MessageMap[str, Argument]
    incarnation: str
    producer_epoch: int
    current: bool
    tiers: _containers.RepeatedCompositeFieldContainer[TierInfo]
    gaps: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    attributes: bool
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    former_logs: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    policy: str
    operator_policy: str
    effective: _containers.MessageMap[str, Argument]
    sources: _containers.ScalarMap[str, str]
    policy_version: int
    policy_pending: bool
    def __init__(self, name: _Optional[str] = ..., queue_id: _Optional[int] = ..., log_id: _Optional[str] = ..., epoch: _Optional[int] = ..., master: _Optional[str] = ..., mirrors: _Optional[_Iterable[str]] = ..., begin: _Optional[int] = ..., next: _Optional[int] = ..., arguments: _Optional[_Mapping[str, Argument]] = ..., incarnation: _Optional[str] = ..., producer_epoch: _Optional[int] = ..., current: _Optional[bool] = ..., tiers: _Optional[_Iterable[_Union[TierInfo, _Mapping]]] = ..., gaps: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., attributes: _Optional[bool] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., former_logs: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ..., policy: _Optional[str] = ..., operator_policy: _Optional[str] = ..., effective: _Optional[_Mapping[str, Argument]] = ..., sources: _Optional[_Mapping[str, str]] = ..., policy_version: _Optional[int] = ..., policy_pending: _Optional[bool] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("log_id", "first", "epoch", "master", "mirrors")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MASTER_FIELD_NUMBER: _ClassVar[int]
    MIRRORS_FIELD_NUMBER: _ClassVar[int]
    log_id: str
    first: int
    epoch: int
    master: str
    mirrors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, log_id: _Optional[str] = ..., first: _Optional[int] = ..., epoch: _Optional[int] = ..., master: _Optional[str] = ..., mirrors: _Optional[_Iterable[str]] = ...) -> None: ...

class TierInfo(_message.Message):
    __slots__ = ("name", "location", "next")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    location: str
    next: int
    def __init__(self, name: _Optional[str] = ..., location: _Optional[str] = ..., next: _Optional[int] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("first", "next")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    first: int
    next: int
    def __init__(self, first: _Optional[int] = ..., next: _Optional[int] = ...) -> None: ...

class Argument(_message.Message):
    __slots__ = ("boolean", "integer", "number", "text", "binary", "list", "table")
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BINARY_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    boolean: bool
    integer: int
    number: float
    text: str
    binary: bytes
    list: ArgumentList
    table: ArgumentTable
    def __init__(self, boolean: _Optional[bool] = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., text: _Optional[str] = ..., binary: _Optional[bytes] = ..., list: _Optional[_Union[ArgumentList, _Mapping]] = ..., table: _Optional[_Union[ArgumentTable, _Mapping]] = ...) -> None: ...

class ArgumentList(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Argument]
    def __init__(self, items: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ...) -> None: ...

class ArgumentTable(_message.Message):
    __slots__ = ("entries",)
    class EntriesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Argument
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.MessageMap[str, Argument]
    def __init__(self, entries: _Optional[_Mapping[str, Argument]] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node_id", "client_address", "replication_address", "grpc_address", "http_address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    client_address: str
    replication_address: str
    grpc_address: str
    http_address: str
    def __init__(self, node_id: _Optional[str] = ..., client_address: _Optional[str] = ..., replication_address: _Optional[str] = ..., grpc_address: _Optional[str] = ..., http_address: _Optional[str] = ...) -> None: ...

class DeclareQueueRequest(_message.Message):
    __slots__ = ("name", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Argument
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: _containers.MessageMap[str, Argument]
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[_Mapping[str, Argument]] = ...) -> None: ...

class DeclareQueueResponse(_message.Message):
    __slots__ = ("queue",)
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    queue: QueueInfo
    def __init__(self, queue: _Optional[_Union[QueueInfo, _Mapping]] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "next_page_token", "outages")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OUTAGES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    next_page_token: str
    outages: _containers.RepeatedCompositeFieldContainer[QueueOutage]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., outages: _Optional[_Iterable[_Union[QueueOutage, _Mapping]]] = ...) -> None: ...

class QueueOutage(_message.Message):
    __slots__ = ("name", "log_id", "node", "reason", "since_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    log_id: str
    node: str
    reason: str
    since_us: int
    def __init__(self, name: _Optional[str] = ..., log_id: _Optional[str] = ..., node: _Optional[str] = ..., reason: _Optional[str] = ..., since_us: _Optional[int] = ...) -> None: ...

class DescribeQueuesRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeQueuesResponse(_message.Message):
    __slots__ = ("queues", "missing", "cluster_id", "cluster_name", "node_id", "nodes", "outages")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTAGES_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    missing: _containers.RepeatedScalarFieldContainer[str]
    cluster_id: str
    cluster_name: str
    node_id: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    outages: _containers.RepeatedCompositeFieldContainer[QueueOutage]
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., missing: _Optional[_Iterable[str]] = ..., cluster_id: _Optional[str] = ..., cluster_name: _Optional[str] = ..., node_id: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., outages: _Optional[_Iterable[_Union[QueueOutage, _Mapping]]] = ...) -> None: ...

class AlterQueueRequest(_message.Message):
    __slots__ = ("name", "arguments", "dry_run")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Argument
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: _containers.MessageMap[str, Argument]
    dry_run: bool
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[_Mapping[str, Argument]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class AlterQueueResponse(_message.Message):
    __slots__ = ("queues", "rule", "log", "moves", "left_records", "copies_change", "copied_bytes", "done")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    LEFT_RECORDS_FIELD_NUMBER: _ClassVar[int]
    COPIES_CHANGE_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    rule: str
    log: str
    moves: bool
    left_records: int
    copies_change: bool
    copied_bytes: int
    done: bool
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., rule: _Optional[str] = ..., log: _Optional[str] = ..., moves: _Optional[bool] = ..., left_records: _Optional[int] = ..., copies_change: _Optional[bool] = ..., copied_bytes: _Optional[int] = ..., done: _Optional[bool] = ...) -> None: ...

class CancelMoveRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class CancelMoveResponse(_message.Message):
    __slots__ = ("queues", "log", "cancelled", "arguments")
    class ArgumentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Argument
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Argument, _Mapping]] = ...) -> None: ...
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedScalarFieldContainer[str]
    log: str
    cancelled: bool
    arguments: _containers.MessageMap[str, Argument]
    def __init__(self, queues: _Optional[_Iterable[str]] = ..., log: _Optional[str] = ..., cancelled: _Optional[bool] = ..., arguments: _Optional[_Mapping[str, Argument]] = ...) -> None: ...

class ListMovesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMovesResponse(_message.Message):
    __slots__ = ("moves", "paused")
    MOVES_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    moves: _containers.RepeatedCompositeFieldContainer[MoveOfQueue]
    paused: bool
    def __init__(self, moves: _Optional[_Iterable[_Union[MoveOfQueue, _Mapping]]] = ..., paused: _Optional[bool] = ...) -> None: ...

class MoveOfQueue(_message.Message):
    __slots__ = ("queue", "source", "target", "number", "stage", "why", "records", "size_bytes", "pieces", "reason", "told")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    queue: str
    source: str
    target: str
    number: int
    stage: str
    why: str
    records: int
    size_bytes: int
    pieces: int
    reason: str
    told: bool
    def __init__(self, queue: _Optional[str] = ..., source: _Optional[str] = ..., target: _Optional[str] = ..., number: _Optional[int] = ..., stage: _Optional[str] = ..., why: _Optional[str] = ..., records: _Optional[int] = ..., size_bytes: _Optional[int] = ..., pieces: _Optional[int] = ..., reason: _Optional[str] = ..., told: _Optional[bool] = ...) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.NodeStatus
    def __init__(self, status: _Optional[_Union[_status_pb2.NodeStatus, _Mapping]] = ...) -> None: ...

class FindOffsetRequest(_message.Message):
    __slots__ = ("queue", "append_time_us")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    queue: str
    append_time_us: int
    def __init__(self, queue: _Optional[str] = ..., append_time_us: _Optional[int] = ...) -> None: ...

class FindOffsetResponse(_message.Message):
    __slots__ = ("queue_offset",)
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    def __init__(self, queue_offset: _Optional[int] = ...) -> None: ...

class CommitPositionRequest(_message.Message):
    __slots__ = ("queue", "group", "position")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    position: _common_pb2.Position
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ..., position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ...) -> None: ...

class CommitPositionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchPositionRequest(_message.Message):
    __slots__ = ("queue", "group")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    queue: str
    group: str
    def __init__(self, queue: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class FetchPositionResponse(_message.Message):
    __slots__ = ("position",)
    POSITION_FIELD_NUMBER: _ClassVar[int]
    position: _common_pb2.Position
    def __init__(self, position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ...) -> None: ...
