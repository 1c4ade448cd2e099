"""A data file's statistics as Delta has them: rows, and per column the least, the greatest and how many are null.

Of a struct there is nothing: a reader expects an object there, with an entry for each field, and one that finds a
number gives up all statistics of the file.

Readers skip a file by them, so a bound may be too wide and never too narrow: a long text is cut, upwards for the
greatest; times have milliseconds, rounded down and up; a column that holds NaN, an infinity or a time outside of the
calendar has no bound at all, because JSON, or another reader's order, has no place for them. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

TEXT_MAX: Final = 32
"""Characters of a bound; Delta's own length."""
_LAST: Final = "\U0010ffff"
_COLUMNS_MAX: Final = 32
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH: Final = datetime(1970, 1, 1)
# Of a decimal every digit counts, so it is no float on its way.
_JSON: Final = msgspec.json.Encoder(decimal_format="number")


class FileStatistics:
    """Of the rows of one file, gathered group by group.

    `always`: columns that have bounds wherever they stand; of the others the first 32, as with Delta.
    """

    def __init__(self, schema: pa.Schema, always: Sequence[str] = ()) -> None:
        first = schema.names[:_COLUMNS_MAX]
        self._counted = [name for name in schema.names if name in first or name in always]
        self._bounded = [name for name in self._counted if _has_bounds(schema.field(name).type)]
        self._least: dict[str, Any] = {}
        self._greatest: dict[str, Any] = {}
        self._open: set[str] = set()
        self._nulls = {name: 0 for name in self._counted if not pa.types.is_struct(schema.field(name).type)}
        self.rows = 0

    def add(self, group: pa.Table) -> None:
        """Count these rows in."""
        self.rows += group.num_rows
        for name in self._nulls:
            self._nulls[name] += group.column(name).null_count
        for name in self._bounded:
            self._add_bounds(name, group.column(name))

    def json(self) -> str:
        """What an `add` carries."""
        return _JSON.encode(
            {
                "numRecords": self.rows,
                "minValues": _without_none(self._least, _least_text, self._open),
                "maxValues": _without_none(self._greatest, _greatest_text, self._open),
                "nullCount": self._nulls,
            }
        ).decode()

    def _add_bounds(self, name: str, column: pa.ChunkedArray) -> None:
        if name in self._open:
            return
        # Arrow leaves NaN out of its bounds; Spark has it above all numbers.
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            self._open.add(name)
            return
        bounds = pc.min_max(_comparable(column))
        least, greatest = bounds["min"].as_py(), bounds["max"].as_py()
        if least is None:
            return
        kind = column.type
        least, greatest = _with_kind(kind, least), _with_kind(kind, greatest)
        self._least[name] = min(least, self._least.get(name, least))
        self._greatest[name] = max(greatest, self._greatest.get(name, greatest))


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_timestamp(kind)
        or types.is_date32(kind)
    )


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Times as numbers: Python's have no years above 9999."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date32(column.type) else column


def _with_kind(kind: pa.DataType, bound: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return _Time(bound, kind.tz is not None)
    return _Day(bound) if pa.types.is_date32(kind) else bound


class _Time(int):
    """µs since 1970; `zoned`: an instant, else a local time."""

    zoned: bool

    def __new__(cls, micros: int, zoned: bool) -> _Time:
        made = super().__new__(cls, micros)
        made.zoned = zoned
        return made

    def text(self, millis: int) -> str | None:
        try:
            moment = (_EPOCH if self.zoned else _NAIVE_EPOCH) + timedelta(milliseconds=millis)
        except OverflowError:
            return None
        return moment.strftime(f"{moment.year:04d}-%m-%dT%H:%M:%S.{moment.microsecond // 1000:03d}") + "Z" * self.zoned


class _Day(int):
    """Days since 1970."""

    def text(self) -> str | None:
        try:
            return (date(1970, 1, 1) + timedelta(days=self)).isoformat()
        except OverflowError:
            return None


def _without_none(bounds: dict[str, Any], text: Any, left_out: set[str]) -> dict[str, Any]:
    found = {name: text(bound) for name, bound in bounds.items() if name not in left_out}
    return {name: bound for name, bound in found.items() if bound is not None}


def _least_text(bound: Any) -> Any:
    if isinstance(bound, _Time):
        return bound.text(bound // 1000)
    return bound[:TEXT_MAX] if isinstance(bound, str) else _plain(bound)


def _greatest_text(bound: Any) -> Any:
    if isinstance(bound, _Time):
        return bound.text(-(-bound // 1000))
    return _cut_upwards(bound) if isinstance(bound, str) else _plain(bound)


def _plain(bound: Any) -> Any:
    if isinstance(bound, _Day):
        return bound.text()
    return None if isinstance(bound, float) and not math.isfinite(bound) else bound


def _cut_upwards(text: str) -> str | None:
    """A short text that is not below `text`; None when there is none."""
    if len(text) <= TEXT_MAX:
        return text
    # What is cut off begins with a character below the last one there is, so that one in its place is above it.
    for end in range(TEXT_MAX, len(text)):
        if text[end] != _LAST:
            return text[:end] + _LAST
    return text
