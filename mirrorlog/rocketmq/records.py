"""The records of RocketMQ's commit log, found in a stream of its bytes.

    total size 4 | magic 4 | body CRC 4 | queue id 4 | flag 4 | queue offset 8 | physical offset 8 | system flag 4 |
    born time 8 | born host 8 or 20 | store time 8 | store host 8 or 20 | times consumed again 4 |
    offset of the prepared half 8 | body length 4, body | topic length 1 or 2, topic | properties' length 2, properties

All integers are big-endian, times in ms. The magic number tells the format: the second one has two bytes for the length
of a topic. A record that does not fit into what is left of a mapped file is written into the next one; what is left
begins with its size and a magic number of its own, and means nothing.

Every record says where it stands. One that says something else, has an unknown magic number or lengths that do not add
up is no record: the walk ends there with the physical offset, and gives nothing of it.

Facts: sources and logs of 4.9.7 and 5.5.0. Pure.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Final

import lz4.frame
import zstandard

from mirrorlog.errors import BadBatch

RECORD_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of one record. RocketMQ's `maxMessageSize` is 4 MiB of body, and may be set higher."""
BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a body that is opened: a few bytes may pretend to be gigabytes."""

_RECORD: Final = 0xDAA320A7
_RECORD_V2: Final = 0xDAA320AB
_BLANK: Final = 0xCBD43194

_PREFIX: Final = struct.Struct(">II")
_FIXED: Final = struct.Struct(">IIIiiqqiq")
_NUMBERS: Final = struct.Struct(">iqi")
_LONG: Final = struct.Struct(">q")
_RECORD_BYTES_MIN: Final = 91

_COMPRESSED: Final = 0x1
_TRANSACTION: Final = 0xC
_PREPARED: Final = 0x4
_BORN_V6: Final = 0x10
_STORED_V6: Final = 0x20
_INNER_BATCH: Final = 0x80
_COMPRESSION: Final = 0x700

_DELAYED_TOPICS: Final = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer")


class RecordKind(Enum):
    """What a record is. Only a plain one is a message as consumers see it: a half, and one that waits, are written
    once more under their own topic when their time has come."""

    PLAIN = "plain"
    HALF = "half"
    """Of a transaction that is not decided."""
    VERDICT = "verdict"
    """On a half."""
    DELAYED = "delayed"
    INNER_BATCH = "inner batch"
    """Many messages in one body, as topics of that type have them."""


@dataclass(frozen=True, slots=True)
class RocketRecord:
    """One record. `topic` and `queue_id` are those under which it was stored; a half and one that is delayed have their
    own in properties (`REAL_TOPIC`). `body` is as its producer gave it, opened when it was compressed."""

    physical_offset: int
    next_offset: int
    topic: str
    queue_id: int
    queue_offset: int
    flag: int
    born_ms: int
    born_host: str
    store_ms: int
    store_host: str
    times_consumed_again: int
    prepared_offset: int
    system_flag: int
    properties: Mapping[str, str]
    body: bytes

    @property
    def kind(self) -> RecordKind:
        if self.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC":
            return RecordKind.VERDICT
        if self.system_flag & _TRANSACTION == _PREPARED or self.topic == "RMQ_SYS_TRANS_HALF_TOPIC":
            return RecordKind.HALF
        if self.topic in _DELAYED_TOPICS:
            return RecordKind.DELAYED
        return RecordKind.INNER_BATCH if self.system_flag & _INNER_BATCH else RecordKind.PLAIN

    @property
    def keys(self) -> str:
        """What it can be found by, as its producer gave it; several stand with spaces between."""
        return self.properties.get("KEYS", "")

    @property
    def tag(self) -> str:
        return self.properties.get("TAGS", "")


class RecordWalker:
    """Takes bytes as they come, from a record's first one on, and gives the records that are whole."""

    def __init__(self, offset: int) -> None:
        self.offset = offset
        """Of the first byte that is not part of what was given: where to go on after a restart."""
        self._unread = bytearray()
        self._blank = 0

    @property
    def received(self) -> int:
        """Of the byte that comes next."""
        return self.offset + len(self._unread)

    def feed(self, content: bytes) -> Iterator[RocketRecord]:
        """Raises BadBatch with the physical offset when what comes is no record. Then nothing more can be found."""
        self._unread += content
        while (size := self._whole()) is not None:
            record = read_record(bytes(memoryview(self._unread)[:size]), self.offset)
            del self._unread[:size]
            self.offset += size
            yield record

    def _whole(self) -> int | None:
        """The size of a record of which all bytes are there, once blanks are passed."""
        while True:
            if self._blank:
                passed = min(self._blank, len(self._unread))
                del self._unread[:passed]
                self._blank -= passed
                self.offset += passed
            if self._blank or len(self._unread) < _PREFIX.size:
                return None
            size, magic = _PREFIX.unpack_from(self._unread)
            if magic != _BLANK:
                break
            if size < _PREFIX.size:
                raise BadBatch(f"a blank of {size} bytes at physical offset {self.offset}: no file ends so")
            self._blank = size
        if magic not in (_RECORD, _RECORD_V2):
            raise BadBatch(
                f"magic number {magic:#010x} at physical offset {self.offset}: no format of RocketMQ's that is known"
            )
        if not _RECORD_BYTES_MIN <= size <= RECORD_BYTES_MAX:
            raise BadBatch(f"a record of {size} bytes at physical offset {self.offset}: its size cannot be true")
        return size if len(self._unread) >= size else None


def read_record(content: bytes, offset: int) -> RocketRecord:
    """The record of which these are all bytes. Raises BadBatch."""
    try:
        return _read(content, offset)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadBatch(f"the record at physical offset {offset} is cut or garbled: {error}") from None


def _read(content: bytes, offset: int) -> RocketRecord:
    _, magic, crc, queue_id, flag, queue_offset, physical, system_flag, born_ms = _FIXED.unpack_from(content)
    if physical != offset:
        raise BadBatch(f"the record at physical offset {offset} says that it stands at {physical}")
    born_host, at = _host(content, _FIXED.size, is_v6=bool(system_flag & _BORN_V6))
    (store_ms,) = _LONG.unpack_from(content, at)
    store_host, at = _host(content, at + 8, is_v6=bool(system_flag & _STORED_V6))
    again, prepared, body_size = _NUMBERS.unpack_from(content, at)
    body, at = _part(content, at + _NUMBERS.size, body_size, offset)
    if crc != zlib.crc32(body) & 0x7FFFFFFF:
        raise BadBatch(f"the body of the record at physical offset {offset} does not match its CRC-32")
    wide = magic == _RECORD_V2
    topic_size = int.from_bytes(content[at : at + 1 + wide])
    topic, at = _part(content, at + 1 + wide, topic_size, offset)
    properties, at = _part(content, at + 2, int.from_bytes(content[at : at + 2]), offset)
    if at != len(content):
        raise BadBatch(f"the record at physical offset {offset} has {len(content)} bytes, and its parts have {at}")
    return RocketRecord(
        physical_offset=offset,
        next_offset=offset + len(content),
        topic=topic.decode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        flag=flag,
        born_ms=born_ms,
        born_host=born_host,
        store_ms=store_ms,
        store_host=store_host,
        times_consumed_again=again,
        prepared_offset=prepared,
        system_flag=system_flag,
        properties=read_properties(properties),
        body=_opened(body, system_flag, offset) if system_flag & _COMPRESSED else body,
    )


def _part(content: bytes, at: int, size: int, offset: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(content):
        raise BadBatch(f"a part of the record at physical offset {offset} has {size} bytes, which do not fit into it")
    return content[at : at + size], at + size


def _host(content: bytes, at: int, *, is_v6: bool) -> tuple[str, int]:
    size = 16 if is_v6 else 4
    address, port = ip_address(content[at : at + size]), int.from_bytes(content[at + size : at + size + 4])
    return f"[{address}]:{port}" if is_v6 else f"{address}:{port}", at + size + 4


def read_properties(content: bytes) -> dict[str, str]:
    """Names and values; 4.9 writes no mark behind the last one, 5.x does."""
    pairs = (pair.split("\x01", 1) for pair in content.decode().split("\x02") if pair)
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _opened(body: bytes, system_flag: int, offset: int) -> bytes:
    try:
        found = _OPENERS.get(system_flag & _COMPRESSION, _unzlib)(body)
    except (zlib.error, zstandard.ZstdError, RuntimeError) as error:
        raise BadBatch(f"the body of the record at physical offset {offset} cannot be opened: {error}") from None
    if len(found) > BODY_BYTES_MAX:
        raise BadBatch(f"the body of the record at physical offset {offset} opens to more than {BODY_BYTES_MAX} bytes")
    return found


def _unzlib(body: bytes) -> bytes:
    return zlib.decompressobj().decompress(body, BODY_BYTES_MAX + 1)


def _unlz4(body: bytes) -> bytes:
    found: bytes = lz4.frame.LZ4FrameDecompressor().decompress(body, max_length=BODY_BYTES_MAX + 1)
    return found


def _unzstd(body: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(body) as reader:
        return reader.read(BODY_BYTES_MAX + 1)


_OPENERS: Final = {0x100: _unlz4, 0x200: _unzstd, 0x300: _unzlib}
"""4.9 knows zlib alone, and has no bits for it."""
