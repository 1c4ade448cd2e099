"""The body of a batch: columns in Arrow's layout, so that a reader wraps bytes and touches no record.

Columns stand in this order, each part padded with zeros to a multiple of 8, absent ones take no space:

    values      [validity bitmap]  int32 offsets[n + 1]  bytes
    keys        [validity bitmap]  int32 offsets[n + 1]  bytes                      if Column.KEYS
    headers     int32 list_offsets[n + 1], m = list_offsets[n]                      if Column.HEADERS
                  names   int32 offsets[m + 1]  UTF-8 bytes
                  values  [validity bitmap]  int32 offsets[m + 1]  bytes
    timestamps  [validity bitmap]  int64 µs UTC [n]                                 if Column.TIMESTAMPS

A validity bitmap (bit i of byte i // 8, least significant first, 1 = present) is there when the column's
`*_VALIDITY` bit is set. Absent is not empty: an absent value is a tombstone, an empty one is zero bytes.

Before it may stand a block of attributes (`commitlog.attributes`), which is no part of it.

Nothing says how long a column is: the last offset does. So one pass with a handful of vectorised checks finds
every column and proves that no record can reach outside the body (`body_reader`).

Source: Arrow columnar format, variable-size binary and list layouts. Rejected: Arrow IPC (its flatbuffer metadata
would be parsed and checked per batch, and its alignment rules would own our bytes on disk).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mirrorlog.commitlog.format.header import Column
from mirrorlog.errors import BadBatch

if TYPE_CHECKING:  # who sends and receives single records may do so without numpy, which takes longer than all else
    import numpy as np
    import numpy.typing as npt

Header = tuple[str, bytes | None]
Int32s: TypeAlias = "npt.NDArray[np.int32]"
Int64s: TypeAlias = "npt.NDArray[np.int64]"
Bools: TypeAlias = "npt.NDArray[np.bool_]"

FEW_RECORDS: Final = 16
FEW_OFFSETS: Final = tuple(struct.Struct(f"<{count + 1}i") for count in range(FEW_RECORDS + 1))


# Plain numbers: an operation with a member of an enum takes a microsecond, and a body is parsed for every batch.
VALUES_VALIDITY: Final = int(Column.VALUES_VALIDITY)
KEYS: Final = int(Column.KEYS)
KEYS_VALIDITY: Final = int(Column.KEYS_VALIDITY)
HEADERS: Final = int(Column.HEADERS)
HEADER_VALUES_VALIDITY: Final = int(Column.HEADER_VALUES_VALIDITY)
TIMESTAMPS: Final = int(Column.TIMESTAMPS)
TIMESTAMPS_VALIDITY: Final = int(Column.TIMESTAMPS_VALIDITY)
ATTRIBUTES: Final = int(Column.ATTRIBUTES)


class Record(NamedTuple):
    """One message as a producer gives it. `timestamp_us`: event time, µs UTC."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_us: int | None = None


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """Variable-size bytes: `data[offsets[i]:offsets[i + 1]]`, absent where the validity bit is 0."""

    validity: memoryview | None
    offsets: Int32s
    offsets_view: memoryview
    data: memoryview

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> memoryview | None:
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return self.data[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def size_max(self) -> int:
        """Bytes of the largest entry."""
        return int((self.offsets[1:] - self.offsets[:-1]).max(initial=0))


@dataclass(frozen=True, slots=True)
class HeadersColumn:
    """Record i has the entries `list_offsets[i]` up to `list_offsets[i + 1]` of `names` and `values`."""

    list_offsets: Int32s
    list_offsets_view: memoryview
    names: BinaryColumn
    values: BinaryColumn

    def __getitem__(self, index: int) -> list[Header]:
        entries = range(int(self.list_offsets[index]), int(self.list_offsets[index + 1]))
        return [(_text(self.names[entry]), _bytes(self.values[entry])) for entry in entries]


@dataclass(frozen=True, slots=True)
class TimestampsColumn:
    """Event times, int64 µs UTC; absent where the validity bit is 0."""

    validity: memoryview | None
    values: Int64s
    values_view: memoryview

    def __getitem__(self, index: int) -> int | None:
        if self.validity is not None and not self.validity[index >> 3] >> (index & 7) & 1:
            return None
        return int(self.values[index])


@dataclass(frozen=True, slots=True)
class Body:
    """The columns of one batch, as views into its bytes."""

    values: BinaryColumn
    keys: BinaryColumn | None = None
    headers: HeadersColumn | None = None
    timestamps: TimestampsColumn | None = None

    def __len__(self) -> int:
        return len(self.values)

    def record(self, index: int) -> Record:
        """Record `index` as objects of its own (copies its bytes)."""
        return Record(
            _bytes(self.values[index]),
            _bytes(self.keys[index]) if self.keys is not None else None,
            self.headers[index] if self.headers is not None else (),
            self.timestamps[index] if self.timestamps is not None else None,
        )

    def records(self) -> Iterator[Record]:
        return (self.record(index) for index in range(len(self)))


def _bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def _text(view: memoryview | None) -> str:
    try:
        return "" if view is None else str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise BadBatch(f"a header's name is not UTF-8: {error}") from None
