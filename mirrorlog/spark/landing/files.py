"""What a landing's task does: a range of a queue, read as Arrow batches and written as Parquet files of the table.

Arrow writes them: several times as fast as Spark's own writer, and the batches come as Arrow anyway. Values and keys
get no dictionary and no bounds, because nobody filters by them and both cost more than the writing. Rows are gathered
per partition until a row group is worth it; when all of them together reach `_HELD_BYTES_MAX` the largest group goes
out, so a task's memory does not grow with its range. Of many partitions at once only `_FILES_MAX` files are open.

A file's name is random. A task that is run again, by Spark or by the next landing, writes other files, and those that
no commit names are rubbish (decision 0031).
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mirrorlog.spark.landing.layout import Layout, Values, folder, partition_values
from mirrorlog.spark.landing.statistics import FileStatistics
from mirrorlog.spark.landing.storage import OpenFile, Storage

_GROUP_BYTES: Final = 64 * 1024 * 1024
_HELD_BYTES_MAX: Final = 256 * 1024 * 1024
_FILES_MAX: Final = 64
_CODECS: Final = {"none": "NONE", "snappy": "SNAPPY", "zstd": "ZSTD", "lz4": "LZ4"}
# The same in a whole file, or nearly: a dictionary makes them free.
_REPEATED: Final = ("topic", "partition", "timestampType", "_queue", "_timestampType", "queue", "reason")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete file below the table's root, and what a commit says of it. `modified_ms`: since 1970."""

    path: str
    partition_values: Mapping[str, str | None]
    size: int
    modified_ms: int
    stats: str
    records: int


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How the files of a table are written. `prefix`: of the record's own columns; `bounded`: columns with bounds in
    the statistics wherever they stand."""

    table: str
    layout: Layout = field(default_factory=Layout)
    prefix: str = ""
    compression: str = "snappy"
    target_file_bytes: int = 256 * 1024 * 1024
    bounded: tuple[str, ...] = ()


class FileWriter:
    """Batches of one schema in, files of one table out. Use with `with`: an error leaves no unfinished file.

    `number`: of the task, in the files' names.
    """

    def __init__(self, file_format: FileFormat, number: int) -> None:
        self._format = file_format
        self._number = number
        self._storage = Storage(file_format.table)
        self._columns = file_format.layout.columns(file_format.prefix)
        self._groups: dict[Values, _Group] = {}
        self._open: dict[Values, _Parquet] = {}
        self._done: list[DataFile] = []
        self._held = 0

    def write(self, batch: pa.RecordBatch, _: pa.RecordBatch | None = None, /) -> None:
        """Take the rows. Raises what the storage does."""
        for values, rows in self._format.layout.split(batch, self._format.prefix):
            group = self._groups.setdefault(values, _Group())
            group.add(rows)
            self._held += rows.nbytes
            if group.size >= min(_GROUP_BYTES, self._format.target_file_bytes):
                self._flush(values)
        while self._held > _HELD_BYTES_MAX:
            self._flush(max(self._groups, key=lambda values: self._groups[values].size))

    def finish(self) -> list[DataFile]:
        """All files, complete and durable."""
        for values in list(self._groups):
            self._flush(values)
        for values in list(self._open):
            self._close(values)
        return self._done

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.abandon()

    def _flush(self, values: Values) -> None:
        group = self._groups.pop(values)
        self._held -= group.size
        rows = pa.Table.from_batches(group.batches)
        if values not in self._open:
            self._make_room()
            self._open[values] = self._begin(values, rows.schema)
        file = self._open[values]
        file.write(rows)
        if file.size >= self._format.target_file_bytes:
            self._close(values)

    def _begin(self, values: Values, schema: pa.Schema) -> _Parquet:
        name = f"{folder(self._columns, values)}part-{self._number:05d}-{uuid.uuid4()}.parquet"
        return _Parquet(self._storage.open(name), name, schema, self._format)

    def _make_room(self) -> None:
        if len(self._open) >= _FILES_MAX:
            self._close(max(self._open, key=lambda values: self._open[values].size))

    def _close(self, values: Values) -> None:
        self._done.append(self._open.pop(values).complete(partition_values(self._columns, values)))


class _Group:
    """Rows of a partition that wait to become a row group."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.batches.append(rows)
        self.size += rows.nbytes


class _Parquet:
    """A file that is being written."""

    def __init__(self, file: OpenFile, name: str, schema: pa.Schema, file_format: FileFormat) -> None:
        self._file = file
        self._name = name
        self._statistics = FileStatistics(schema, file_format.bounded)
        self._writer = pq.ParquetWriter(
            file.stream,
            schema,
            compression=_CODECS[file_format.compression],
            use_dictionary=_with_dictionary(schema),
            write_statistics=_with_statistics(schema),
            store_schema=False,
        )

    @property
    def size(self) -> int:
        """Bytes written."""
        return int(self._file.stream.tell())

    def write(self, rows: pa.Table) -> None:
        """One row group."""
        self._statistics.add(rows)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def complete(self, partition: Mapping[str, str | None]) -> DataFile:
        self._writer.close()
        size, modified_ms = self._file.complete()
        return DataFile(self._name, partition, size, modified_ms, self._statistics.json(), self._statistics.rows)

    def abandon(self) -> None:
        # A writer that is not closed complains when it is forgotten.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        self._file.abandon()


def _with_dictionary(schema: pa.Schema) -> list[str] | bool:
    """Text that was decoded is often repeated; Arrow gives a dictionary up where it does not pay."""
    return [name for name in schema.names if name in _REPEATED or (pa.types.is_string(schema.field(name).type))]


def _with_statistics(schema: pa.Schema) -> list[str]:
    """Within a file, for readers that pass over row groups."""
    return [each.name for each in schema if not pa.types.is_binary(each.type) and not pa.types.is_nested(each.type)]


def run_in_tasks(spark: Any, work: Sequence[Any], run: Any) -> list[Any]:
    """`run(number, item)` for every item in a Spark task of its own; the results in the order of the items.

    Raises what Spark does (`errors.from_spark`).
    """
    if not work:
        return []
    numbered = spark.sparkContext.parallelize(list(enumerate(work)), len(work))

    def each(items: Iterator[tuple[int, Any]]) -> Iterator[Any]:
        for number, item in items:
            yield run(number, item)

    return list(numbered.mapPartitions(each).collect())
