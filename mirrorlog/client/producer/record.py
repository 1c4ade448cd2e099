"""One record as callers give it: what it takes in a batch, and whether it can be in one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from mirrorlog.client.properties import Headers, as_bytes
from mirrorlog.commitlog.format.header import HEADER_SIZE, NO_TIMESTAMP
from mirrorlog.errors import BadRequest, RecordTooLarge
from mirrorlog.wire.messages.handshake import NodeLimits

Header = tuple[str, bytes | None]
"""As in `commitlog.format.body`, which takes long to load."""

RECORD_OVERHEAD_BYTES: Final = 24
"""What a record takes in a batch besides its bytes: offsets of value and key, its timestamp, a header list entry, and
its bits of the validity bitmaps."""

BATCH_OVERHEAD_BYTES: Final = HEADER_SIZE + 128
"""And the batch once: its header and attributes, the offset that each column has more than entries, the padding of each
part."""

# A header's name and value have an offset and a bit as well.
_HEADER_OVERHEAD_BYTES: Final = 9
_HEADERS_ARE: Final = "headers are a mapping or pairs of a name (str, UTF-8) and bytes, text or None"
_TIMESTAMP_MAX: Final = -NO_TIMESTAMP - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def record_size(value: bytes | None, key: bytes | None, headers: Sequence[Header]) -> int:
    """Bytes that a record takes in a batch at most, besides BATCH_OVERHEAD_BYTES.

    Raises BadRequest for what is no bytes: found later, it would spoil the batch for the records around it.
    """
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value) if type(value) is bytes else _refuse("a value", value)
    if key is not None:
        size += len(key) if type(key) is bytes else _refuse("a key", key)
    return size + headers_size(headers) if headers else size


def check_record(value: bytes | None, size: int, limits: NodeLimits) -> None:
    """Of a record of `size` bytes. Raises RecordTooLarge where a node with these limits would not take it."""
    # What is within both is the usual; else it is to be told which one it is above.
    if BATCH_OVERHEAD_BYTES + size <= limits.max_batch_bytes and size <= limits.max_record_bytes:
        return
    check_value(value, limits)
    if BATCH_OVERHEAD_BYTES + size > limits.max_batch_bytes:
        raise RecordTooLarge(f"a record of {size} bytes is above max_batch_bytes ({limits.max_batch_bytes})")


def check_value(value: bytes | None, limits: NodeLimits) -> None:
    """Raises RecordTooLarge."""
    limit = limits.max_record_bytes
    if value is not None and len(value) > limit:
        raise RecordTooLarge(f"a value of {len(value)} bytes is above the node's max_record_bytes ({limit})")


def headers_size(headers: Sequence[Header]) -> int:
    """Bytes that a record's headers take in a batch. Raises BadRequest."""
    size = 0
    try:
        for name, content in headers:
            size += _HEADER_OVERHEAD_BYTES + (len(name) if name.isascii() else len(name.encode()))
            if type(name) is not str:
                _refuse("a name in headers", name)
            if content is not None:
                size += len(content) if type(content) is bytes else _refuse("a value in headers", content)
    except (TypeError, ValueError, AttributeError):
        raise BadRequest(_HEADERS_ARE) from None
    return size


def _refuse(what: str, found: object) -> int:
    give = "str" if "name" in what else "bytes, text or None"
    objects = ", or make the producer with serializer=" if what == "a value" else ""
    raise BadRequest(f"{what} is {type(found).__name__}; give {give}{objects}")


def as_headers(headers: Headers | None) -> Sequence[Header]:
    """A mapping or pairs as tuples: read once, here, and nobody can change them afterwards. Raises BadRequest."""
    if not headers:
        return ()
    try:
        # The usual case is a list, and asking for a Mapping is dear. A pair that is a tuple is not copied.
        is_mapping = type(headers) is not list and isinstance(headers, Mapping)
        pairs: tuple[Any, ...] = tuple(headers.items() if is_mapping else map(tuple, headers))  # type: ignore[union-attr]
    except TypeError:
        raise BadRequest(_HEADERS_ARE) from None
    for pair in pairs:
        if len(pair) == 2 and isinstance(pair[1], str):
            if not is_mapping and isinstance(headers, list | tuple) and any(isinstance(each, str) for each in headers):
                raise BadRequest(_HEADERS_ARE)  # a text of two characters is no pair
            return tuple((each[0], as_bytes(each[1]), *each[2:]) if len(each) > 1 else each for each in pairs)
    return pairs


def as_timestamp_us(timestamp: datetime | int | None) -> int | None:
    """µs UTC. Raises BadRequest for a datetime without a time zone: its meaning would depend on the machine."""
    if timestamp is None:
        return None
    if isinstance(timestamp, int):
        if not -_TIMESTAMP_MAX <= timestamp <= _TIMESTAMP_MAX:
            raise BadRequest(f"timestamp {timestamp} is beyond 64 bits of µs")
        return timestamp
    if not isinstance(timestamp, datetime):
        raise BadRequest(f"a timestamp is a datetime or µs as int, not {type(timestamp).__name__}")
    if timestamp.tzinfo is None:
        raise BadRequest(f"timestamp {timestamp} has no time zone; use datetime(..., tzinfo=UTC)")
    elapsed = timestamp - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
