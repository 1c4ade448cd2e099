from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_MEMORY: _ClassVar[Durability]
    DURABILITY_DISK: _ClassVar[Durability]
DURABILITY_UNSPECIFIED: Durability
DURABILITY_MEMORY: Durability
DURABILITY_DISK: Durability

class Position(_message.Message):
    __slots__ = ("log_id", "epoch", "queue_offset")
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    log_id: str
    epoch: int
    queue_offset: int
    def __init__(self, log_id: _Optional[str] = ..., epoch: _Optional[int] = ..., queue_offset: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("grpc_code", "code", "message", "retriable", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GRPC_CODE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    grpc_code: int
    code: str
    message: str
    retriable: bool
    details: _containers.ScalarMap[str, str]
    def __init__(self, grpc_code: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., retriable: _Optional[bool] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...
