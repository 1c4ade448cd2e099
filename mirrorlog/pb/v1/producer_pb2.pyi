from mirrorlog.pb.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRequest(_message.Message):
    __slots__ = ("open", "batch")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    open: OpenPublish
    batch: PublishBatch
    def __init__(self, open: _Optional[_Union[OpenPublish, _Mapping]] = ..., batch: _Optional[_Union[PublishBatch, _Mapping]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("opened", "result")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    result: PublishResult
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., result: _Optional[_Union[PublishResult, _Mapping]] = ...) -> None: ...

class OpenPublish(_message.Message):
    __slots__ = ("queue", "level", "durability", "delivery_timeout_ms", "identity")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    queue: str
    level: ConfirmLevel
    durability: _common_pb2.Durability
    delivery_timeout_ms: int
    identity: ProducerIdentity
    def __init__(self, queue: _Optional[str] = ..., level: _Optional[_Union[ConfirmLevel, _Mapping]] = ..., durability: _Optional[_Union[_common_pb2.Durability, str]] = ..., delivery_timeout_ms: _Optional[int] = ..., identity: _Optional[_Union[ProducerIdentity, _Mapping]] = ...) -> None: ...

class ConfirmLevel(_message.Message):
    __slots__ = ("name", "copies")
    class Name(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NAME_UNSPECIFIED: _ClassVar[ConfirmLevel.Name]
        NAME_NONE: _ClassVar[ConfirmLevel.Name]
        NAME_MASTER: _ClassVar[ConfirmLevel.Name]
        NAME_ONE: _ClassVar[ConfirmLevel.Name]
        NAME_MAJORITY: _ClassVar[ConfirmLevel.Name]
        NAME_ALL: _ClassVar[ConfirmLevel.Name]
    NAME_UNSPECIFIED: ConfirmLevel.Name
    NAME_NONE: ConfirmLevel.Name
    NAME_MASTER: ConfirmLevel.Name
    NAME_ONE: ConfirmLevel.Name
    NAME_MAJORITY: ConfirmLevel.Name
    NAME_ALL: ConfirmLevel.Name
    NAME_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    name: ConfirmLevel.Name
    copies: int
    def __init__(self, name: _Optional[_Union[ConfirmLevel.Name, str]] = ..., copies: _Optional[int] = ...) -> None: ...

class ProducerIdentity(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class PublishBatch(_message.Message):
    __slots__ = ("tag", "sequence", "records", "ready")
    TAG_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    tag: int
    sequence: int
    records: Records
    ready: bytes
    def __init__(self, tag: _Optional[int] = ..., sequence: _Optional[int] = ..., records: _Optional[_Union[Records, _Mapping]] = ..., ready: _Optional[bytes] = ...) -> None: ...

class Records(_message.Message):
    __slots__ = ("records", "priority", "ttl_ms", "delay_ms")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    priority: int
    ttl_ms: int
    delay_ms: int
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., priority: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("value", "key", "headers", "timestamp_us")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_us: int
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("queue_id", "max_record_bytes", "max_batch_bytes", "window_bytes", "window_batches")
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_BATCHES_FIELD_NUMBER: _ClassVar[int]
    queue_id: int
    max_record_bytes: int
    max_batch_bytes: int
    window_bytes: int
    window_batches: int
    def __init__(self, queue_id: _Optional[int] = ..., max_record_bytes: _Optional[int] = ..., max_batch_bytes: _Optional[int] = ..., window_bytes: _Optional[int] = ..., window_batches: _Optional[int] = ...) -> None: ...

class PublishResult(_message.Message):
    __slots__ = ("tag", "confirm", "error")
    TAG_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    tag: int
    confirm: Confirm
    error: _common_pb2.Error
    def __init__(self, tag: _Optional[int] = ..., confirm: _Optional[_Union[Confirm, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class Confirm(_message.Message):
    __slots__ = ("base_queue_offset", "log_offset", "epoch", "copies", "durability", "duplicate")
    BASE_QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_OFFSET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    base_queue_offset: int
    log_offset: int
    epoch: int
    copies: int
    durability: _common_pb2.Durability
    duplicate: bool
    def __init__(self, base_queue_offset: _Optional[int] = ..., log_offset: _Optional[int] = ..., epoch: _Optional[int] = ..., copies: _Optional[int] = ..., durability: _Optional[_Union[_common_pb2.Durability, str]] = ..., duplicate: _Optional[bool] = ...) -> None: ...
