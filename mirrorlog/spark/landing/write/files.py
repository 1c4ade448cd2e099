"""What a landing's task does: a range of a queue, read as Arrow batches and written as Parquet files of the table.

Arrow writes them: several times as fast as Spark's own writer, and the batches come as Arrow anyway. Values and keys
get no dictionary and no bounds, because nobody filters by them and both cost more than the writing. Rows are gathered
per partition until a row group is worth it; when all of them together reach `_HELD_BYTES_MAX` the largest group goes
out, so a task's memory does not grow with its range. Of many partitions at once only `_FILES_MAX` files are open.

Each row group begins its way to the disk when it is written, and a file that is full is waited for at the task's end
only: by then the disk has it.

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

from mirrorlog.spark.landing.write.layout import Layout, Values, folder, partition_values
from mirrorlog.spark.landing.write.statistics import FileStatistics
from mirrorlog.spark.landing.write.storage import OpenFile, Storage
from mirrorlog.spark.reading.rows import spare_modules

# Small enough that little is left to wait for at the end, large enough for readers that go by row groups.
_GROUP_BYTES: Final = 32 * 1024 * 1024
# A page is put together, compressed and written from the processor's second cache; a megabyte, the default, is pushed
# out of it in between, and costs twice the time. Its size is looked at after so many rows.
_PAGE_BYTES: Final = 256 * 1024
_PAGE_ROWS: Final = 256
_HELD_BYTES_MAX: Final = 256 * 1024 * 1024
_FILES_MAX: Final = 64
_CODECS: Final = {"none": "NONE", "snappy": "SNAPPY", "zstd": "ZSTD", "lz4": "LZ4"}
# The same in a whole file, or nearly: a dictionary makes them free.
_REPEATED: Final = ("topic", "partition", "timestampType", "_queue", "_timestampType", "queue", "reason")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A complete file below the table's root, and what a commit says of it. `modified_ms`: since 1970; `stats`: Delta's
    statistics, as JSON."""

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
        self._closed: list[tuple[Values, _Parquet]] = []
        self._held = 0

    def write(self, batch: pa.RecordBatch, _: pa.RecordBatch | None = None, /) -> None:
        """Take the rows. Raises what the storage does."""
        for values, rows in self._format.layout.split(batch, self._format.prefix):
            self._add(values, pa.Table.from_batches([rows]))
        while self._held > _HELD_BYTES_MAX:
            self._flush(max(self._groups, key=lambda values: self._groups[values].size))

    def write_unsplit(self, rows: pa.Table) -> None:
        """Take the rows, of a table without partitions; their columns may be in many chunks, which are not joined."""
        assert not self._format.layout
        self._add((), rows)

    def finish(self) -> list[DataFile]:
        """All files, complete and durable."""
        for values in list(self._groups):
            self._flush(values)
        for values in list(self._open):
            self._close(values)
        done = []
        while self._closed:
            values, file = self._closed[0]
            done.append(file.complete(partition_values(self._columns, values)))
            del self._closed[0]
        return done

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (*self._open.values(), *(file for _, file in self._closed)):
            file.abandon()

    def _add(self, values: Values, rows: pa.Table) -> None:
        group = self._groups.setdefault(values, _Group())
        group.add(rows)
        self._held += rows.nbytes
        if group.size >= min(_GROUP_BYTES, self._format.target_file_bytes):
            self._flush(values)

    def _flush(self, values: Values) -> None:
        group = self._groups.pop(values)
        self._held -= group.size
        rows = pa.concat_tables(group.tables)
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
        file = self._open.pop(values)
        self._closed.append((values, file))
        file.close()


class _Group:
    """Rows of a partition that wait to become a row group."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.size = 0

    def add(self, rows: pa.Table) -> None:
        self.tables.append(rows)
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
            data_page_size=_PAGE_BYTES,
            write_batch_size=_PAGE_ROWS,
        )

    @property
    def size(self) -> int:
        """Bytes written."""
        return int(self._file.stream.tell())

    def write(self, rows: pa.Table) -> None:
        """One row group."""
        self._statistics.add(rows)
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._file.push()

    def close(self) -> None:
        """Whole, and on its way to the disk; `complete` waits until it is there."""
        self._writer.close()
        self._file.close()

    def complete(self, partition: Mapping[str, str | None]) -> DataFile:
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
        spare_modules()
        for number, item in items:
            yield run(number, item)

    return list(numbered.mapPartitions(each).collect())
