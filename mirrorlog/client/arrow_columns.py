"""Columns of many records from pyarrow. The only module of the client that imports it, and only when it is used.

An array's own buffers are cut; nothing is copied before the batch is made, but for entries that hide bytes under an
absence, which are written anew without them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mirrorlog.client.columns import BinaryEntries, Chunks, TimestampEntries, datetimes_us, offsets_of
from mirrorlog.commitlog.body import Bools, Int64s
from mirrorlog.errors import BadInput

_OFFSETS: Final = {pa.binary(): "<i4", pa.string(): "<i4", pa.large_binary(): "<i8", pa.large_string(): "<i8"}
_NOTHING: Final = memoryview(b"")


def arrow_binary(given: Any, what: str) -> BinaryEntries:
    """Values or keys from an Array or ChunkedArray of any binary or string type. Raises BadInput."""
    chunks = [_readable(chunk, what) for chunk in _chunks(given, what)]
    present = _present(chunks)
    dense = [_dense(chunk) for chunk in chunks]
    sizes = np.concatenate([np.zeros(0, dtype=np.int64), *(sizes for sizes, _ in dense)])
    return BinaryEntries(offsets_of(sizes), Chunks([data for _, data in dense]), present)


def arrow_timestamps(given: Any) -> TimestampEntries:
    """Timestamps with a zone, of any unit, or int64 in µs UTC. Raises BadInput."""
    chunks = _chunks(given, "timestamps")
    kind = given.type
    if pa.types.is_int64(kind):
        unit = "us"
    elif pa.types.is_timestamp(kind) and kind.tz is not None:
        unit = kind.unit
    elif pa.types.is_timestamp(kind):
        raise BadInput(f'timestamps are {kind} without a time zone; cast them to pa.timestamp("{kind.unit}", "UTC")')
    else:
        raise BadInput(f"timestamps are {kind}; give timestamps with a zone, or int64 (µs UTC)")
    present = _present(chunks)
    whole = [chunk.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for chunk in chunks]
    found = datetimes_us(np.concatenate([np.zeros(0, dtype=np.int64), *whole]).view(f"datetime64[{unit}]"))
    if found.present is not None:
        raise BadInput("a timestamp is beyond 64 bits of µs")
    return TimestampEntries(found.stamps_us, present)


def _chunks(given: Any, what: str) -> list[Any]:
    if isinstance(given, pa.ChunkedArray):
        return list(given.chunks)
    if isinstance(given, pa.Array):
        return [given]
    raise BadInput(f"{what} are a pyarrow {type(given).__name__}; give an Array or a ChunkedArray")


def _present(chunks: list[Any]) -> Bools | None:
    """None when nothing is absent."""
    if not any(chunk.null_count for chunk in chunks):
        return None
    return np.concatenate([chunk.is_valid().to_numpy(zero_copy_only=False) for chunk in chunks])


def _readable(array: Any, what: str) -> Any:
    """The array as one of the types whose buffers are read here; its absences stay."""
    kind = array.type
    if kind in _OFFSETS or (pa.types.is_fixed_size_binary(kind) and not array.null_count):
        return array
    views = (pa.types.is_binary_view(kind), pa.types.is_string_view(kind), pa.types.is_null(kind))
    if pa.types.is_fixed_size_binary(kind) or any(views):
        return array.cast(pa.large_binary())
    raise BadInput(f"{what} are a pyarrow array of {kind}; give binary, string or fixed-size binary")


def _dense(array: Any) -> tuple[Int64s, memoryview]:
    """Sizes of the entries, and their bytes back to back; of a `_readable` array."""
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        sizes = np.full(len(array), width, dtype=np.int64)
        return sizes, _buffer(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width]
    if not len(array):
        return np.zeros(0, dtype=np.int64), _NOTHING
    if array.null_count:
        array = pc.fill_null(array, pa.scalar(b"", pa.binary()).cast(array.type))
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=_OFFSETS[array.type])[array.offset : array.offset + len(array) + 1]
    sizes = np.diff(offsets).astype(np.int64)
    return sizes, _buffer(data_buffer)[int(offsets[0]) : int(offsets[-1])]


def _buffer(buffer: Any) -> memoryview:
    return _NOTHING if buffer is None else memoryview(buffer).cast("B")
