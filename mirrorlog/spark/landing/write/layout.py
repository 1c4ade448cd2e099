"""How a table's rows are shared out to partition folders: by date, by hash, or not at all. Pure.

    date(timestamp)     column `date`: the day, UTC, of the record's time; date(appendTime): of the log's
    hash(key, 16)       column `bucket`: 0 to 15, null for a record without key

The columns are called `_date` and `_bucket` in tables of decoded values, whose other names are the user's. A batch is
split by whole columns; one that falls into one partition, which most do, is passed on as it is.

The hash is written into folders' names, so it is what it is for good: with P = 0x100000001B3, the sum of
(byte + 1) * P ** (its place + 1) modulo 2 ** 64, mixed as splitmix64 does it, modulo n. It needs no step per key in
Python; Spark's own hashes would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from mirrorlog.spark.errors import BadLanding

_PRIME: Final = np.uint64(0x100000001B3)
_BUCKETS_MAX: Final = 1024
_DATE: Final = re.compile(r"date\(\s*(timestamp|appendTime)\s*\)")
_HASH: Final = re.compile(r"hash\(\s*key\s*,\s*(\d{1,9})\s*\)")
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
# Days since then that a calendar has, years 1 to 9999.
_DAY_MIN, _DAY_MAX = (date.min - _EPOCH).days, (date.max - _EPOCH).days
# Stands for null among partition numbers; no day and no bucket has it.
_NULL: Final = np.iinfo(np.int64).min

Values = tuple[str | None, ...]
"""Of the partition columns, in their order, as Delta writes them."""


@dataclass(frozen=True, slots=True)
class DateOf:
    """By the day of a time column, UTC; null outside of the years 1 to 9999."""

    source: str
    column: str = "date"
    spark_type: str = "date"

    def numbers(self, times: pa.Array) -> NDArray[np.int64]:
        micros = times.cast(pa.int64()).fill_null(_NULL)
        days = np.floor_divide(np.asarray(micros), _DAY_US)
        return np.where((days >= _DAY_MIN) & (days <= _DAY_MAX), days, _NULL)

    def value(self, number: int) -> str:
        return (_EPOCH + timedelta(days=number)).isoformat()


@dataclass(frozen=True, slots=True)
class HashOf:
    """By a hash of a binary column."""

    source: str
    buckets: int
    column: str = "bucket"
    spark_type: str = "integer"

    def numbers(self, keys: pa.Array) -> NDArray[np.int64]:
        hashed = (hash_binary(keys) % np.uint64(self.buckets)).astype(np.int64)
        return np.where(np.asarray(keys.is_valid()), hashed, _NULL) if keys.null_count else hashed

    def value(self, number: int) -> str:
        return str(number)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts, outermost folder first; empty: no partitions."""

    parts: tuple[DateOf | HashOf, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.parts)

    def columns(self, prefix: str = "") -> tuple[str, ...]:
        """The partition columns' names. `prefix`: of the record's own columns, `_` in decoded tables."""
        return tuple(prefix + part.column for part in self.parts)

    def split(self, batch: pa.RecordBatch, prefix: str = "") -> Iterator[tuple[Values, pa.RecordBatch]]:
        """The batch's rows by partition, in their order, with the columns that they had."""
        if not self.parts or not batch.num_rows:
            yield (), batch
            return
        numbers = np.stack([part.numbers(batch.column(prefix + part.source)) for part in self.parts])
        if (numbers == numbers[:, :1]).all():
            yield self._values(numbers[:, 0]), batch
            return
        found, places = np.unique(numbers, axis=1, return_inverse=True)
        places = places.reshape(-1)
        order = np.argsort(places, kind="stable")
        ends = np.cumsum(np.bincount(places))
        for partition, rows in enumerate(np.split(order, ends[:-1])):
            yield self._values(found[:, partition]), batch.take(pa.array(rows))

    def _values(self, numbers: NDArray[np.int64]) -> Values:
        return tuple(
            None if number == _NULL else part.value(int(number))
            for part, number in zip(self.parts, numbers, strict=True)
        )


NO_PARTITIONS: Final = Layout()


def parse_layout(texts: Sequence[str], *, key: str = "partition_by") -> Layout:
    """`date(timestamp)`, `date(appendTime)`, `hash(key, n)`. Raises BadLanding."""
    parts = tuple(_part(text, key) for text in texts)
    if len({part.column for part in parts}) < len(parts):
        raise BadLanding(f"key {key!r}: at most one date and one hash")
    return Layout(parts)


def folder(columns: Sequence[str], values: Values) -> str:
    """The folder of a partition with a slash at its end; empty without partitions."""
    return "".join(
        f"{name}={_NULL_FOLDER if value is None else value}/" for name, value in zip(columns, values, strict=True)
    )


def partition_values(columns: Sequence[str], values: Values) -> Mapping[str, str | None]:
    """As a commit names them."""
    return dict(zip(columns, values, strict=True))


def hash_binary(keys: pa.Array) -> NDArray[np.uint64]:
    """Of every entry of a binary array; of an absent one any number."""
    count = len(keys)
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)[offsets[0] : offsets[-1]] if data_buffer else np.zeros(0, np.uint8)
    starts = offsets - offsets[0]
    lengths = np.diff(starts)
    places = np.arange(len(data), dtype=np.int64) - np.repeat(starts[:-1], lengths)
    powers = np.cumprod(np.full(int(lengths.max()) if count else 0, _PRIME, np.uint64), dtype=np.uint64)
    sums = np.zeros(len(data) + 1, np.uint64)
    # Sums wrap around at 2 ** 64, and so do their differences: what is between two of them is right.
    np.cumsum((data.astype(np.uint64) + np.uint64(1)) * powers[places], out=sums[1:])
    return _mixed(sums[starts[1:]] - sums[starts[:-1]])


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _part(text: str, key: str) -> DateOf | HashOf:
    if found := _DATE.fullmatch(text):
        return DateOf(found[1])
    if (found := _HASH.fullmatch(text)) and 1 <= int(found[1]) <= _BUCKETS_MAX:
        return HashOf("key", int(found[1]))
    raise BadLanding(
        f"key {key!r}: {text!r} is none of date(timestamp), date(appendTime), hash(key, 1 to {_BUCKETS_MAX})"
    )
