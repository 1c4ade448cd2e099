"""A landing's step in Spark's tasks: which ranges each task writes, and what it gives back.

Ranges of many small queues share a task, and with it files; a large one is cut. A file of a task holds rows in the
order of the queue, so bounds of offsets and times are narrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from mirrorlog.commitlog.format.header import BatchHeader, Flag
from mirrorlog.spark.errors import StorageFailed
from mirrorlog.spark.landing.dead_letters import DeadLettersOf, DeadLetterWriter
from mirrorlog.spark.landing.decoding import Decoding, joined_fields
from mirrorlog.spark.landing.positions import MissedRange
from mirrorlog.spark.landing.tables import RAW_COLUMNS
from mirrorlog.spark.landing.upsert.table import NO_KEY, RowColumns, refuse_keyless, staged_rows
from mirrorlog.spark.landing.write.files import DataFile, FileFormat, FileWriter
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueueRange
from mirrorlog.spark.reading.arrow import QueueBatch, merged
from mirrorlog.spark.reading.rows import OnMissing, consumed_batches

if TYPE_CHECKING:
    from mirrorlog.spark.decode import Decoder


from mirrorlog.commitlog.format.arrow import BINARY, binary_array
from mirrorlog.spark.reading.arrow import grouped, is_small, record_batch

_VALUE: Final = RAW_COLUMNS.index("value")
_OTHERS: Final = tuple(name for name in RAW_COLUMNS if name != "value")


def raw_tables(batches: Iterable[QueueBatch]) -> Iterator[pa.Table]:
    """All their rows with RAW_COLUMNS, in order; the values in a chunk for each batch. Raises BadBatch.

    A table has at least ROWS_MIN rows or BYTES_MIN bytes as they stand in the log, but for the last one; there are no
    empty ones. It keeps alive what its batches were received in, so what is little of that is copied out of it: the
    last table, and one with a batch that is cut. Else a few records of many queues would keep megabytes each.
    """
    for held in grouped(filter(len, batches)):
        yield _table(held, copied=is_small(held) or any(len(each) < len(each.body) for each in held))


def _table(batches: Sequence[QueueBatch], *, copied: bool) -> pa.Table:
    values = [_values(batch) for batch in batches]
    if copied:
        # A lone array would be given back as it is.
        values = [pa.concat_arrays([*values, values[0][:0]])]
    others = pa.Table.from_batches([record_batch(batches, _OTHERS)])
    return others.add_column(_VALUE, pa.field("value", BINARY), pa.chunked_array(values, BINARY))


def _values(batch: QueueBatch) -> pa.Array:
    base = batch.header.base_queue_offset
    return binary_array(batch.body.values, len(batch.body))[batch.first - base : batch.next - base]


# A task makes a file at least: fewer records and bytes than this are not worth another one.
RECORDS_PER_TASK_MIN: Final = 50_000
BYTES_PER_TASK_MIN: Final = 32 * 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TaskWork:
    """Of one task. `table`: what dead letters say of where they are from; `dead`: how their files are written, None
    when there can be none; `upsert`: of a landing that merges, which columns of its table are what; `from_master`: the
    queues that are read there, whatever the options say."""

    ranges: tuple[QueueRange, ...]
    options: SourceOptions
    format: FileFormat
    table: DeadLettersOf
    decoder: Decoder | None = None
    dead: FileFormat | None = None
    upsert: RowColumns | None = None
    from_master: frozenset[str] = frozenset()

    def options_for(self, queue: str) -> SourceOptions:
        """Where and how that queue is read."""
        return replace(self.options, read_from="master") if queue in self.from_master else self.options

    @property
    def as_received(self) -> bool:
        """Whether the records go to the files as they are and where they are. Not over log files: those may be cut or
        used again once their bytes were checked, so what is read there is copied at once."""
        plain = self.decoder is None and self.upsert is None and not self.format.layout
        return plain and self.options.path is None


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """By a task. `bytes`: of the records in the log; `epochs`, `times`: of the last record of each range its epoch and
    append time (µs UTC), by queue and queue offset behind it. `missed`: of the ranges what was left out, because it was
    gone or could not be read and the landing is told to go on. `new_fields`: what the values have and the table lacks;
    then there are no files, and the step is done again under a wider schema."""

    files: tuple[DataFile, ...] = ()
    dead: tuple[DataFile, ...] = ()
    records: int = 0
    bytes: int = 0
    epochs: dict[tuple[str, int], int] = field(default_factory=dict)
    times: dict[tuple[str, int], int] = field(default_factory=dict)
    new_fields: pa.Schema | None = None
    missed: tuple[MissedRange, ...] = ()


def tasks_for(ranges: Sequence[QueueRange], *, parallelism: int, record_bytes: float) -> list[tuple[QueueRange, ...]]:
    """The ranges of each task, at most `parallelism` of them, none empty. `record_bytes`: how much a record has."""
    total = sum(map(len, ranges))
    if not total:
        return []
    wanted = max(total // RECORDS_PER_TASK_MIN, int(total * record_bytes) // BYTES_PER_TASK_MIN)
    count = max(1, min(parallelism, wanted, total))
    found: list[list[QueueRange]] = [[]]
    room = share = -(-total // count)
    for each in ranges:
        left = each
        while len(left):
            if not room:
                found.append([])
                room = share
            piece = replace(left, next=min(left.next, left.first + room))
            found[-1].append(piece)
            room -= len(piece)
            left = replace(left, first=piece.next)
    return [tuple(each) for each in found]


def write_range(number: int, work: TaskWork) -> WrittenFiles:
    """What a task does. Raises StorageFailed, and what reading and decoding do; then nothing of it counts."""
    try:
        return _write_range(number, work)
    except OSError as error:
        # By name: of anything else only a class and a line of Spark's own would reach the driver.
        raise StorageFailed(f"cannot write files of {work.table.table}: {error}") from error


def _write_range(number: int, work: TaskWork) -> WrittenFiles:
    counted = _Counted()
    with ExitStack() as stack:
        writer = stack.enter_context(FileWriter(work.format, number))
        dead = None if work.dead is None else stack.enter_context(FileWriter(work.dead, number))
        letters = None if dead is None else DeadLetterWriter(dead, work.table)
        write = writer.write if work.upsert is None else UpsertStage(writer, work.upsert, letters).write
        decoding = None if work.decoder is None else Decoding(work.decoder, write, letters)
        take = write if decoding is None else decoding.take
        for wanted in work.ranges:
            bury = None if letters is None else partial(letters.bury_unreadable, wanted.queue)
            batches = consumed_batches(work.options_for(wanted.queue), wanted, counted.missing(wanted.queue), bury)
            if work.as_received:
                for table in raw_tables(counted.passed(batches)):
                    writer.write_unsplit(table)
            else:
                for rows in merged(counted.passed(batches), RAW_COLUMNS):
                    take(rows)
            counted.end(wanted)
        if decoding is not None and decoding.new_fields is not None:
            return WrittenFiles(new_fields=decoding.new_fields)
        files = tuple(writer.finish())
        buried = () if dead is None else tuple(dead.finish())
    return WrittenFiles(
        files, buried, counted.records, counted.bytes, counted.epochs, counted.times, missed=tuple(counted.missed)
    )


class UpsertStage:
    """Rows with their keys to the files of a merge; those without a key to the dead letters."""

    def __init__(self, writer: FileWriter, columns: RowColumns, dead: DeadLetterWriter | None) -> None:
        self._writer = writer
        self._columns = columns
        self._dead = dead

    def write(self, rows: pa.RecordBatch, raw: pa.RecordBatch | None = None, /) -> None:
        """`rows`: as the table has them; `raw`: the records that they are of, by default themselves.

        Raises RecordWithoutKey when there is no table for dead letters.
        """
        raw = rows if raw is None else raw
        staged, with_key = staged_rows(rows, raw.column("value"), self._columns.key)
        if with_key.true_count < len(with_key):
            if self._dead is None:
                refuse_keyless(raw, with_key, queue=raw.column("topic")[0].as_py(), offset="offset")
            else:
                lost = raw.filter(pc.invert(with_key))
                self._dead.bury(lost, pa.repeat(pa.scalar(NO_KEY), lost.num_rows))
        if staged.num_rows:
            self._writer.write(staged)


class _Counted:
    def __init__(self) -> None:
        self.records = self.bytes = 0
        self.epochs: dict[tuple[str, int], int] = {}
        self.times: dict[tuple[str, int], int] = {}
        self.missed: list[MissedRange] = []
        self._last: BatchHeader | None = None

    def passed(self, batches: Iterable[QueueBatch]) -> Iterator[QueueBatch]:
        """The same, counted."""
        for batch in batches:
            self._last = batch.header
            self.records += len(batch)
            self.bytes += batch.header.length * len(batch) // max(1, batch.header.record_count)
            yield batch

    def missing(self, queue: str) -> OnMissing:
        """For what is left out of that queue."""
        return lambda missing: self.missed.append(MissedRange(queue, missing.first, missing.next, missing.why))

    def end(self, wanted: QueueRange) -> None:
        """All of a range was read. One of which nothing is left says nothing of its epoch."""
        if self._last is not None:
            # A copy that was moved has the epoch of its move: 0 says that nobody knows, and forgets what was there.
            copied = self._last.flags & Flag.COPIED
            self.epochs[wanted.queue, wanted.next] = 0 if copied else self._last.epoch
            self.times[wanted.queue, wanted.next] = self._last.append_time_us
        self._last = None


def gathered(written: Sequence[WrittenFiles]) -> WrittenFiles:
    """All of a step's tasks as one."""
    epochs: dict[tuple[str, int], int] = {}
    times: dict[tuple[str, int], int] = {}
    for each in written:
        epochs.update(each.epochs)
        times.update(each.times)
    return WrittenFiles(
        tuple(_all(each.files for each in written)),
        tuple(_all(each.dead for each in written)),
        sum(each.records for each in written),
        sum(each.bytes for each in written),
        epochs,
        times,
        joined_fields([each.new_fields for each in written if each.new_fields is not None]),
        tuple(_all(each.missed for each in written)),
    )


def _all(groups: Iterable[Sequence[_T]]) -> Iterator[_T]:
    for group in groups:
        yield from group
