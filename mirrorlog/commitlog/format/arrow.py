"""A batch's columns as pyarrow arrays over its own bytes, which they keep alive; without a step per record.

The log's columns have Arrow's layout already. Imported only by those who want it: pyarrow is not needed to read or
write.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from mirrorlog.commitlog.format.body import BinaryColumn, HeadersColumn
from mirrorlog.errors import BadBatch

BINARY: Final = pa.binary()
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")


def binary_array(column: BinaryColumn | None, count: int, kind: Any = BINARY) -> pa.Array:
    """`kind`: binary or string; all null without a column."""
    if column is None:
        return pa.nulls(count, kind)
    return pa.Array.from_buffers(
        kind, count, [_buffer(column.validity), _buffer(column.offsets_view), _buffer(column.data)]
    )


def timestamps_array(micros: memoryview, count: int, validity: memoryview | None = None) -> pa.Array:
    """TIMESTAMP over int64 µs UTC."""
    return pa.Array.from_buffers(TIMESTAMP, count, [_buffer(validity), _buffer(micros)])


def headers_array(column: HeadersColumn | None, count: int, kind: Any, *, null_when_none: bool = False) -> pa.Array:
    """`kind`: a list of structs of a name (string) and a value (binary). `null_when_none`: instead of an empty list.

    Raises BadBatch when a name is not UTF-8.
    """
    if column is None:
        return pa.nulls(count, kind) if null_when_none else _empty_lists(count, kind)
    entries = len(column.names)
    names = binary_array(column.names, entries, pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadBatch(f"a header's name is not UTF-8: {error}") from None
    children = [names, binary_array(column.values, entries)]
    pairs = pa.Array.from_buffers(kind.value_type, entries, [None], children=children)
    present = None
    if null_when_none:
        present = pa.py_buffer(np.packbits(np.diff(column.list_offsets) > 0, bitorder="little").data)
    return pa.Array.from_buffers(kind, count, [present, _buffer(column.list_offsets_view)], children=[pairs])


def _empty_lists(count: int, kind: Any) -> pa.Array:
    offsets = pa.py_buffer(np.zeros(count + 1, dtype=np.int32).data)
    return pa.Array.from_buffers(kind, count, [None, offsets], children=[pa.array([], kind.value_type)])


def _buffer(view: memoryview | None) -> pa.Buffer | None:
    return None if view is None else pa.py_buffer(view)
