from mirrorlog.pb.v1 import common_pb2 as _common_pb2
from mirrorlog.pb.v1 import producer_pb2 as _producer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Edge(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EDGE_UNSPECIFIED: _ClassVar[Edge]
    EDGE_EARLIEST: _ClassVar[Edge]
    EDGE_LATEST: _ClassVar[Edge]

class Shape(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SHAPE_UNSPECIFIED: _ClassVar[Shape]
    SHAPE_RECORDS: _ClassVar[Shape]
    SHAPE_RAW: _ClassVar[Shape]
EDGE_UNSPECIFIED: Edge
EDGE_EARLIEST: Edge
EDGE_LATEST: Edge
SHAPE_UNSPECIFIED: Shape
SHAPE_RECORDS: Shape
SHAPE_RAW: Shape

class ConsumeRequest(_message.Message):
    __slots__ = ("queue", "start", "until", "read_from", "shape", "max_bytes", "max_wait_ms", "outage_timeout_ms")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    READ_FROM_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    OUTAGE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    start: Start
    until: Until
    read_from: ReadFrom
    shape: Shape
    max_bytes: int
    max_wait_ms: int
    outage_timeout_ms: int
    def __init__(self, queue: _Optional[str] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., until: _Optional[_Union[Until, _Mapping]] = ..., read_from: _Optional[_Union[ReadFrom, _Mapping]] = ..., shape: _Optional[_Union[Shape, str]] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., outage_timeout_ms: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("edge", "queue_offset", "append_time_us", "position", "group")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    edge: Edge
    queue_offset: int
    append_time_us: int
    position: _common_pb2.Position
    group: str
    def __init__(self, edge: _Optional[_Union[Edge, str]] = ..., queue_offset: _Optional[int] = ..., append_time_us: _Optional[int] = ..., position: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., group: _Optional[str] = ...) -> None: ...

class Until(_message.Message):
    __slots__ = ("queue_offset", "edge")
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EDGE_FIELD_NUMBER: _ClassVar[int]
    queue_offset: int
    edge: Edge
    def __init__(self, queue_offset: _Optional[int] = ..., edge: _Optional[_Union[Edge, str]] = ...) -> None: ...

class ReadFrom(_message.Message):
    __slots__ = ("copy", "node_id")
    class Copy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        COPY_UNSPECIFIED: _ClassVar[ReadFrom.Copy]
        COPY_MASTER: _ClassVar[ReadFrom.Copy]
        COPY_MIRROR: _ClassVar[ReadFrom.Copy]
    COPY_UNSPECIFIED: ReadFrom.Copy
    COPY_MASTER: ReadFrom.Copy
    COPY_MIRROR: ReadFrom.Copy
    COPY_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    copy: ReadFrom.Copy
    node_id: str
    def __init__(self, copy: _Optional[_Union[ReadFrom.Copy, str]] = ..., node_id: _Optional[str] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("first", "next", "begin", "end", "node_id", "batch_count", "batches", "raw")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    first: int
    next: _common_pb2.Position
    begin: int
    end: int
    node_id: str
    batch_count: int
    batches: ConsumedBatches
    raw: bytes
    def __init__(self, first: _Optional[int] = ..., next: _Optional[_Union[_common_pb2.Position, _Mapping]] = ..., begin: _Optional[int] = ..., end: _Optional[int] = ..., node_id: _Optional[str] = ..., batch_count: _Optional[int] = ..., batches: _Optional[_Union[ConsumedBatches, _Mapping]] = ..., raw: _Optional[bytes] = ...) -> None: ...

class ConsumedBatches(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[ConsumedBatch]
    def __init__(self, batches: _Optional[_Iterable[_Union[ConsumedBatch, _Mapping]]] = ...) -> None: ...

class ConsumedBatch(_message.Message):
    __slots__ = ("base_queue_offset", "append_time_us", "log_offset", "epoch", "records", "priority", "ttl_ms", "delay_ms")
    BASE_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    base_queue_offset: int
    append_time_us: int
    log_offset: int
    epoch: int
    records: _containers.RepeatedCompositeFieldContainer[_producer_pb2.Record]
    priority: int
    ttl_ms: int
    delay_ms: int
    def __init__(self, base_queue_offset: _Optional[int] = ..., append_time_us: _Optional[int] = ..., log_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., records: _Optional[_Iterable[_Union[_producer_pb2.Record, _Mapping]]] = ..., priority: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ...) -> None: ...
