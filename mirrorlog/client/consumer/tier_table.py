"""A landed Delta table, read as the log's own records: the rows of one queue in the order of its queue offsets.

Blocking, for a helper thread. A file that alone has its stretch of queue offsets, in order, as a landing writes it, is
read from end to end. All other rows are read in windows of queue offsets, whatever files they lie in: a table that is
partitioned, compacted or clustered has a window's rows in several files and in any order. Files and row groups whose
statistics lie outside a window are not opened. A window is as large as some megabytes allow, so a table of any size
takes little memory.

What stands in the table is believed only as far as the table itself says that it has the queue: by Delta's transaction
id of the landing, which names the queue's incarnation, and tells up to which queue offset it is landed; one beside it
tells from which one on. Rows outside of that stretch are of a former queue of the same name, or of nobody. A row twice
within it, or one that is missing between others, is an error: it cannot be told which of two rows is the record, and
nobody may pass over one unnoticed.

Rejected: always file by file in the order of their first offset (a hash partition has every stretch in every file);
always windows (a row group that is larger than a window would be read again for each).

Imported only by those who need it: it wants pyarrow and deltalake.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from mirrorlog.client.producer.bulk import Bulk
from mirrorlog.client.producer.columns import TimestampEntries
from mirrorlog.commitlog.format.header import Flag, log_seed, stamp
from mirrorlog.errors import TierBroken, TierUnreachable
from mirrorlog.wire.messages.queues import QueueInfo

WINDOW_BYTES: Final = 8 * 1024 * 1024
_ROWS_FIRST: Final = 1024
_ROWS_MAX: Final = 16_384
_BATCH_BYTES: Final = 256 * 1024
# A statistic of a time may be cut to milliseconds.
_TIME_SLACK_US: Final = 1000
_NEEDED: Final = ("topic", "offset", "key", "value", "timestamp")
_TIME: Final = pa.timestamp("us", tz="UTC")
_OFFSET_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _File:
    """`first`, `last`: the offsets in it as far as its statistics say; `latest_us`: the last append time; `rows`: how
    many it has, 0 when that is not known."""

    path: str
    first: int
    last: int
    latest_us: int
    rows: int


@dataclass(frozen=True, slots=True)
class TierBatches:
    """Rows as batches. `content`: `count` batches back to back, as a node would send them; `next`: the queue offset
    behind them."""

    content: bytearray
    count: int
    next: int


class TierTable:
    """The rows of the queue `info` of the cluster `cluster_id` in the table at `location`, as it is now.

    `options`: of its storage, as deltalake takes them. Raises TierUnreachable, TierBroken.
    """

    def __init__(self, location: str, info: QueueInfo, cluster_id: str, options: Mapping[str, str]) -> None:
        self.location = location
        self._info = info
        try:
            table = DeltaTable(location, storage_options=dict(options) or None)
            application = f"mirrorlog:{cluster_id}:{info.incarnation}"
            landed = table.transaction_version(application)
            landed_from = table.transaction_version(f"{application}:begin")
            self._dataset = table.to_pyarrow_dataset()
            self._files = list(self._files_of(table))
        except TableNotFoundError as error:
            raise self._unreachable(f"there is no table: {error}") from None
        except Exception as error:
            raise self._unreachable(error) from error
        self._check_columns()
        if landed is None:
            raise TierBroken(
                f"the table {location} has no transaction id of queue {info.name!r} as it is now: its rows are of "
                "another queue, or of one of the same name that was there before",
                location=location,
            )
        self.next: int = landed
        """The queue offset behind the last record that is landed."""
        # Tables of landings that did not write it yet have none: then all that is below `next` counts.
        self._landed_from = landed_from or 0
        self._alone = _disjoint(self._files)
        self._fragments = {unquote(fragment.path): fragment for fragment in self._dataset.get_fragments()}

    def begin(self) -> int:
        """The first queue offset in it; `next` when it has none."""
        return self._first(self._rows(self._landed_from, self.next), self._files)

    def find_time(self, append_time_us: int) -> int:
        """The first queue offset whose record was appended at or after a time (µs UTC); `next` when there is none."""
        time = pa.scalar(append_time_us, _TIME)
        wanted = self._rows(self._landed_from, self.next) & (self._time_field() >= time)
        return self._first(wanted, [each for each in self._files if each.latest_us + _TIME_SLACK_US >= append_time_us])

    def batches(self, first: int, until: int, *, epoch: int) -> Iterator[TierBatches]:
        """The records [first, until), as batches that carry `epoch`, as far as they are landed; nothing when the table
        does not have `first`. Raises TierBroken for a row that is missing behind `first`, or there twice;
        TierUnreachable."""
        if first < self._landed_from:
            return
        at, rows, until = first, _ROWS_FIRST, min(until, self.next)
        while at < until:
            for window in self._in_a_row(at, until):
                at += window.num_rows
                yield self._as_batches(window, epoch)
            if at >= until:
                return
            window = self._window(at, min(until, at + rows))
            if window is None:
                rows = max(1, rows // 2)
                continue
            if at == first and not self._has(window, first) and first < self.begin():
                return
            self._check_dense(window, at, min(until, at + rows))
            at += window.num_rows
            yield self._as_batches(window, epoch)
            rows = min(_ROWS_MAX, 2 * rows, max(1, WINDOW_BYTES * window.num_rows // max(1, window.nbytes)))

    @staticmethod
    def _has(window: pa.Table, queue_offset: int) -> bool:
        return window.num_rows > 0 and bool(window.column("offset")[0].as_py() == queue_offset)

    # --- what is where ---

    def _files_of(self, table: DeltaTable) -> Iterator[_File]:
        """Those that may have rows of the queue. What has no statistics may have anything."""
        name = self._info.name
        for action in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            if (action.get("min.topic") or name) > name or (action.get("max.topic") or name) < name:
                continue
            first, last = action.get("min.offset"), action.get("max.offset")
            latest = action.get("max.appendTime")
            yield _File(
                action["path"],
                0 if first is None else first,
                _OFFSET_MAX if last is None else last,
                _OFFSET_MAX if latest is None else pa.scalar(latest, _TIME).cast(pa.int64()).as_py(),
                action.get("num_records") or 0,
            )

    def _first(self, wanted: Any, files: Sequence[_File]) -> int:
        """The smallest offset of the rows that are wanted; `next` without any."""
        found = self.next
        for file in sorted(files, key=lambda each: each.first):
            if file.first >= found:
                break
            if file.last < self._landed_from:
                continue
            for batch in self._scan([file], wanted, ["offset"]):
                if batch.num_rows:
                    found = min(found, pc.min(batch.column(0)).as_py())
        return found

    def _check_columns(self) -> None:
        names = self._dataset.schema.names
        if missing := [name for name in _NEEDED if name not in names]:
            raise TierBroken(
                f"the table {self.location} has no column {', '.join(missing)}; records can be read back from a raw "
                "landing only",
                location=self.location,
            )

    # --- rows ---

    def _in_a_row(self, at: int, until: int) -> Iterator[pa.Table]:
        """The rows from `at` on of the file that alone has them, as long as they follow one another."""
        index = bisect_right(self._alone, at, key=lambda each: each.first) - 1
        if index < 0 or self._alone[index].last < at:
            return
        file = self._alone[index]
        wanted = self._rows(at, until)
        rows = min(_ROWS_MAX, max(1, WINDOW_BYTES // self._row_bytes(file)))
        for batch in self._scan([file], wanted, self._columns, rows):
            if not batch.num_rows:
                continue
            found = batch.column("offset").to_numpy()
            if not np.array_equal(found, np.arange(at, at + len(found), dtype=np.int64)):
                del self._alone[index]
                return
            at += len(found)
            yield pa.Table.from_batches([batch])

    def _rows(self, first: int, end: int) -> Any:
        """The condition for the queue's rows [first, end)."""
        offset = pc.field("offset")
        return (pc.field("topic") == self._info.name) & (offset >= first) & (offset < end)

    def _row_bytes(self, file: _File) -> int:
        """Of a row on average, before its compression."""
        try:
            footer = self._fragments[unquote(file.path)].metadata
        except (OSError, KeyError, pa.ArrowException) as error:
            raise self._unreachable(error) from error
        size: int = sum(footer.row_group(index).total_byte_size for index in range(footer.num_row_groups))
        return int(max(1, size // max(1, footer.num_rows)))

    @property
    def log_id(self) -> str:
        """In whose name batches are made of its rows."""
        return self._info.log_id

    @property
    def _columns(self) -> list[str]:
        return [*_NEEDED[1:], *(name for name in ("timestampType", "headers", "appendTime") if name in self._names)]

    def _window(self, first: int, end: int) -> pa.Table | None:
        """The rows [first, end) in order; None when they are too many bytes, and more than one."""
        wanted = self._rows(first, end)
        files = [each for each in self._files if each.first < end and each.last >= first]
        names = self._columns
        kept: list[pa.RecordBatch] = []
        size = 0
        for batch in self._scan(files, wanted, names):
            kept.append(batch)
            size += batch.nbytes
            if size > 4 * WINDOW_BYTES and end - first > 1:
                return None
        found = pa.Table.from_batches(kept, schema=pa.schema([self._dataset.schema.field(name) for name in names]))
        return found.sort_by("offset")

    @property
    def _names(self) -> list[str]:
        names: list[str] = self._dataset.schema.names
        return names

    def _scan(
        self, files: Sequence[_File], wanted: Any, columns: Sequence[str], rows: int = _ROWS_MAX
    ) -> Iterator[pa.RecordBatch]:
        try:
            for file in files:
                yield from self._fragments[unquote(file.path)].to_batches(
                    schema=self._dataset.schema,
                    columns=list(columns),
                    filter=wanted,
                    batch_size=rows,
                    batch_readahead=1,
                    fragment_readahead=1,
                    use_threads=False,
                )
        except (OSError, KeyError, pa.ArrowException) as error:
            raise self._unreachable(error) from error

    def _check_dense(self, window: pa.Table, first: int, end: int) -> None:
        found = window.column("offset").to_numpy()
        expected = np.arange(first, end, dtype=np.int64)
        if len(found) == len(expected) and (found == expected).all():
            return
        name, there = self._info.name, f"the table {self.location}"
        if len(twice := found[1:][found[1:] == found[:-1]]):
            raise TierBroken(
                f"{there} has queue offset {int(twice[0])} of queue {name!r} more than once: rows of a former queue of "
                "this name stand beside it, or another program has written them; it cannot be told which is the record",
                location=self.location,
            )
        count = min(len(found), len(expected))
        other = np.flatnonzero(found[:count] != expected[:count])
        missing = first + (int(other[0]) if len(other) else count)
        following = self._first(
            self._rows(missing + 1, self.next), [each for each in self._files if each.last > missing]
        )
        raise TierBroken(
            f"{there} lacks {missing} up to {following} of queue {name!r}, and the log has them no more: they were "
            f"lost, or rows were deleted; seek to {following} to go on without them",
            location=self.location,
            go_on_at=following,
        )

    # --- batches ---

    def _as_batches(self, window: pa.Table, epoch: int) -> TierBatches:
        """Cut where the append time changes, and to some size. A batch is not the one that was in the log: where it
        stood there, who sent it and how it was cut is not landed."""
        window = window.combine_chunks()
        bulk = Bulk.of(window.column("value"), window.column("key"), self._headers(window), None)
        bulk = Bulk(bulk.values, bulk.keys, bulk.headers, _event_times(window), bulk.ends)
        times, first = _append_times(window), int(window.column("offset")[0].as_py())
        seed = log_seed(UUID(self.log_id))
        content, count, start = bytearray(), 0, 0
        borders = [*(np.flatnonzero(np.diff(times)) + 1).tolist(), len(times)]
        for border in borders:
            while start < border:
                end = min(border, bulk.cut(start, _BATCH_BYTES))
                batch = bulk.draft(start, end).seal(queue_id=self._info.queue_id)
                stamp(
                    batch,
                    log_offset=0,
                    base_queue_offset=first + start,
                    append_time_us=int(times[start]),
                    epoch=epoch,
                    flags=Flag.COPIED,
                    seed=seed,
                )
                content += batch
                count, start = count + 1, end
        return TierBatches(content, count, first + len(times))

    def _headers(self, window: pa.Table) -> list[list[tuple[str, bytes | None]]] | None:
        if "headers" not in window.schema.names or window.column("headers").null_count == window.num_rows:
            return None
        rows = window.column("headers").to_pylist()
        return [[(each["key"], each["value"]) for each in row or ()] for row in rows]

    def _time_field(self) -> Any:
        time = pc.field("timestamp")
        return pc.coalesce(pc.field("appendTime"), time) if "appendTime" in self._names else time

    def _unreachable(self, error: object) -> TierUnreachable:
        told = " ".join(str(error).split())[:500]
        return TierUnreachable(
            f"records of queue {self._info.name!r} that the log has no more are in the table {self.location}, which "
            f"cannot be read here: {told}; map its location with tiers={{…}}, give tier_options for its storage, or "
            "tiers=False to read what the log has; if the table is gone for good, end its landing: mqtool landing-end",
            location=self.location,
        )


def _disjoint(files: Sequence[_File]) -> list[_File]:
    """Those whose stretch of offsets no other file touches, in order. With as many rows as that has offsets: then none
    of them can stand there twice, unless another one is missing."""
    ordered = sorted(files, key=lambda each: (each.first, each.last))
    found, reached = [], -1
    for index, file in enumerate(ordered):
        ends_before = index + 1 == len(ordered) or ordered[index + 1].first > file.last
        if file.first > reached and ends_before and file.rows == file.last - file.first + 1:
            found.append(file)
        reached = max(reached, file.last)
    return found


def _micros(column: Any) -> Any:
    """int64 µs UTC."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(pa.timestamp("us", tz=column.type.tz), safe=False).cast(pa.int64())


def _append_times(window: pa.Table) -> Any:
    """µs UTC; where it is not landed, the record's own time stands for it."""
    times = _micros(window.column("timestamp"))
    if "appendTime" in window.schema.names:
        times = pc.coalesce(_micros(window.column("appendTime")), times)
    return pc.fill_null(times, 0).to_numpy(zero_copy_only=False)


def _event_times(window: pa.Table) -> Any:
    """None when no record has one."""
    stamps = _micros(window.column("timestamp"))
    present = stamps.is_valid()
    if "timestampType" in window.schema.names:
        present = pc.and_(present, pc.fill_null(pc.equal(window.column("timestampType").combine_chunks(), 0), True))
    there = present.to_numpy(zero_copy_only=False)
    if not there.any():
        return None
    values = np.where(there, pc.fill_null(stamps, 0).to_numpy(zero_copy_only=False), 0).astype(np.int64)
    return TimestampEntries(values, None if there.all() else there)
