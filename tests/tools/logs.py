"""Log directories on disk for the offline tools."""

from contextlib import closing
from pathlib import Path
from typing import Final
from uuid import UUID

from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.flush import Checkpoint, CheckpointFile
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import Draft, draft_columns, encode_batch
from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, Codec, Flag, Kind
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.past import PastIndex
from mirrorlog.commitlog.index.tables import table_from_segment
from mirrorlog.commitlog.segments.scan import BatchRules
from mirrorlog.commitlog.segments.segment import segment_name
from mirrorlog.queues.changes import EpochStarted, LogStartMoved, QueueDeclared, encode_change
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    ProducerState,
    QueueState,
    encode_checkpoint,
    encode_state,
)
from tests.commitlog.logs import LOG_ID, abandon, append, append_sizes, flush, open_log, prepare

APPEND_TIME_US: Final = 1_795_261_291_850_475
BATCH_BYTES: Final = 1024
SEGMENT_BYTES: Final = 16 * BATCH_BYTES


def make_log(directory: Path, *, batches: int = 40, flushed: bool = True) -> list[BatchHeader]:
    """A closed log of equal batches over several segments; their headers. Without `flushed` its checkpoint says that
    nothing was on disk yet, as after a crash."""
    log = open_log(directory, segment_bytes=SEGMENT_BYTES, epoch=1)
    headers = append_sizes(log, [BATCH_BYTES] * batches)
    log.set_confirmed(log.end)
    log.close()
    if not flushed:
        with closing(CheckpointFile.open(OS_FILES, directory, LOG_ID)) as file:
            file.write_both(Checkpoint(0, 0, 0))
    return headers


def make_story(directory: Path) -> None:
    """A closed log with one batch of every kind that a node writes."""
    log = open_log(directory, epoch=1)
    append(log, memoryview(encode_change(EpochStarted(epoch=1, node_id="n1", start_id="s-1"))))
    declared = QueueDeclared(name="flights", queue_id=1, arguments={"x-max-age": "7D"})
    append(log, memoryview(encode_change(declared)))
    records = [Record(b"v", b"k", [("row", b"0")], 1_357_000_000_000_000), Record(None)]
    data = encode_batch(records, queue_id=1, kind=Kind.DATA, producer_id=77, producer_epoch=1, sequence=5)
    log.append(memoryview(data), base_queue_offset=5, append_time_us=APPEND_TIME_US)
    log.set_confirmed(log.end)
    log.close()


class LogMaker:
    """Writes a log as a node does: queues 1, 2, … with dense offsets, one producer each, state checkpoints, a begin
    that moves, tables and an index. Every record has 100 bytes."""

    def __init__(
        self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, queues: int = 3, log_id: UUID = LOG_ID
    ) -> None:
        self.directory = directory
        self.log = open_log(directory, segment_bytes=segment_bytes, epoch=1, kept_mapped_bytes=0, log_id=log_id)
        self.headers: list[BatchHeader] = []
        self.state = 0
        self._next: dict[int, int] = {}
        self._time_us = APPEND_TIME_US
        self._index = directory / INDEX_NAME
        self.change(encode_change(EpochStarted(epoch=1, node_id="n1", start_id="s-1")))
        for queue_id in range(1, queues + 1):
            self.change(encode_change(QueueDeclared(name=f"q{queue_id}", queue_id=queue_id)))
            self._next[queue_id] = 0

    def change(self, batch: bytearray) -> BatchHeader:
        """Append a batch that is no data."""
        return self._append(batch, 0)

    def data(
        self, queue_id: int, records: int = 5, *, codec: Codec = Codec.NONE, base: int | None = None, skip: int = 0
    ) -> BatchHeader:
        """Append records of a queue; `base`: a copy of older ones; `skip`: as if so many were in between."""
        draft = draft_columns([bytes([65 + queue_id]) * 100] * records)
        copied = base is not None
        first = base if base is not None else self._next[queue_id] + skip
        batch = compress_draft(draft, codec).seal(
            queue_id=queue_id, producer_id=queue_id, producer_epoch=0, sequence=first
        )
        if not copied:
            self._next[queue_id] = first + records
        return self._append(batch, first, flags=Flag.COPIED if copied else Flag.NONE)

    def garbage(self, queue_id: int, codec: Codec) -> BatchHeader:
        """Append five records' worth of bytes under a codec that nobody can open, sealed as they should be."""
        first = self._next[queue_id]
        content = bytearray(HEADER_SIZE) + b"no body!" * 20
        batch = Draft(content, 5, 0, 0, codec=codec, padding=0, body_length=1000).seal(
            queue_id=queue_id, producer_id=queue_id, producer_epoch=0, sequence=first
        )
        self._next[queue_id] += 5
        return self._append(batch, first)

    def fill(self, batches: int) -> None:
        """Data of all queues in turn."""
        for number in range(batches):
            self.data(1 + number % len(self._next))

    def checkpoint(self, *, ended: bool = True) -> None:
        """A state checkpoint, with another batch in between; it counts once it is confirmed."""
        began = self.change(encode_checkpoint([encode_state(CheckpointBegan(len(self._next)))]))
        queues = [
            QueueState(queue_id, f"q{queue_id}", "", {}, following, {"g": (str(LOG_ID), 1, 0)}, 0)
            for queue_id, following in self._next.items()
        ]
        self.change(encode_checkpoint([encode_state(each) for each in queues]))
        self.data(1)
        producers = [
            ProducerState(queue_id, queue_id, 0, following, self._time_us, {})
            for queue_id, following in self._next.items()
        ]
        self.change(encode_checkpoint([encode_state(each) for each in producers]))
        if ended:
            self.change(encode_checkpoint([encode_state(CheckpointEnded(began.log_offset, 0))]))
        self.state = began.log_offset

    def confirm(self) -> None:
        """Flush and confirm all, and record it."""
        flush(self.log)
        self.log.set_confirmed(self.log.end)
        self.log.set_state_from(self.state)
        flush(self.log)

    def seal(self) -> None:
        """Tables for all that can have one."""
        rules = BatchRules(self.log.seed, self.log.epochs)
        while (segment := self.log.next_to_seal()) is not None:
            start, end = segment
            content = table_from_segment(
                OS_FILES, self.directory / segment_name(start), start=start, first=max(start, self.log.begin), end=end,
                rules=rules,
            )  # fmt: skip
            self.log.tables.store(start, end, content)
            self.log.seal(end)

    def move_start(self, log_offset: int) -> None:
        """Decide, log and confirm a new begin, and free what is below; the files become spares."""
        self.change(encode_change(LogStartMoved(log_offset=log_offset)))
        self.confirm()
        self.log.move_start(log_offset)
        for start in [start for start, head in self.log.tables.heads.items() if head.end <= log_offset]:
            self.log.tables.remove(start)
        flush(self.log)
        while prepare(self.log):
            pass

    def close(self, *, index: bool = True) -> None:
        """As a clean stop."""
        self.confirm()
        if index:
            PastIndex.open(self._index, self.log.tables).close()
        self.log.tables.close()
        self.log.close()

    def kill(self) -> None:
        """As a SIGKILL."""
        self.log.tables.close()
        abandon(self.log)

    def _append(self, batch: bytearray, base: int, flags: int = 0) -> BatchHeader:
        self._time_us += 1
        header = self.log.append(memoryview(batch), base_queue_offset=base, append_time_us=self._time_us, flags=flags)
        self.headers.append(header)
        return header


def make_past(directory: Path, *, batches: int = 120) -> LogMaker:
    """A closed log of a dozen segments with tables, an index, copied batches and a state checkpoint near its end."""
    maker = LogMaker(directory)
    maker.fill(batches)
    maker.data(1, base=0)
    maker.fill(batches // 4)
    maker.checkpoint()
    maker.fill(10)
    maker.confirm()
    maker.seal()
    maker.close()
    return maker


def segment_starts(directory: Path) -> list[int]:
    """Of all segment files."""
    return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


def overwrite(directory: Path, log_offset: int, content: bytes) -> None:
    """Damage the stored bytes at `log_offset`."""
    starts = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    start = max(start for start in starts if start <= log_offset)
    with (directory / f"{start:020d}").open("r+b") as file:
        file.seek(log_offset - start)
        file.write(content)


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below with its bytes and modification time in ns."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
