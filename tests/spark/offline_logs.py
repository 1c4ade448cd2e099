"""Logs on disk with queues whose every record is known, for the offline reader."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirrorlog.client.consumer.records import ConsumedBatch
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns
from mirrorlog.commitlog.format.header import BatchHeader, Codec, Flag
from mirrorlog.queues.changes import (
    OffsetsJumped,
    QueueArrived,
    QueueArriving,
    QueueHandedOver,
    QueueLeft,
    QueueOpened,
    QueueStartsMoved,
    encode_change,
)
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    GapsState,
    QueueStartsState,
    QueueState,
    State,
    encode_checkpoint,
    encode_state,
)
from mirrorlog.spark.offline import LogDirectories, OnBad
from mirrorlog.spark.plan import QueueFacts, QueueRange
from tests.commitlog.logs import LOG_ID
from tests.spark.queues import every_kind_of_record
from tests.tools.logs import SEGMENT_BYTES, LogMaker

CODECS: Final = (Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD)


class Row(NamedTuple):
    """A record at its place."""

    offset: int
    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    append_time_us: int


class StoryLog(LogMaker):
    """A log that keeps in `rows`, by queue id, what it was given; `begins` as said by the log."""

    def __init__(
        self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES, queues: int = 3, log_id: UUID = LOG_ID
    ) -> None:
        super().__init__(directory, segment_bytes=segment_bytes, queues=queues, log_id=log_id)
        self.log_id = str(log_id)
        self.rows: dict[int, dict[int, Row]] = {queue_id: {} for queue_id in self._next}
        self.begins: dict[int, int] = {}
        self.gaps: dict[int, tuple[int, int]] = {}
        self.stored: list[tuple[BatchHeader, list[Record]]] = []

    def publish(self, queue_id: int, records: list[Record], codec: Codec = Codec.NONE) -> BatchHeader:
        """Append records behind the queue's last one."""
        first = self._next[queue_id]
        self._next[queue_id] = first + len(records)
        return self._store(queue_id, records, codec, first)

    def data(self, queue_id: int, records: int = 5, **_: object) -> BatchHeader:  # type: ignore[override]
        """As a maker's, with records that are kept in mind."""
        return self.publish(queue_id, [Record(b"%d" % number) for number in range(records)])

    def checkpoint(self, *, ended: bool = True) -> None:
        """A state checkpoint as a node writes it, a batch of data in the middle of it."""
        began = self._states(CheckpointBegan(len(self._next)))
        queues = [QueueState(each, f"q{each}", "", {}, following, {}, 0) for each, following in self._next.items()]
        self._states(*queues)
        self.data(1)
        self._states(QueueStartsState(log_start=self.log.begin, begins=self.begins), GapsState(gaps=self.gaps))
        if ended:
            self._states(CheckpointEnded(began.log_offset, 0))
            self.state = began.log_offset

    def _states(self, *states: State) -> BatchHeader:
        return self.change(encode_checkpoint([encode_state(each) for each in states]))

    def leave(self, queue_id: int, target: str, *, move: int) -> tuple[int, int]:
        """A queue goes to the log `target`: its first queue offset there, and the time, µs UTC."""
        first = self._next.pop(queue_id)
        self.change(encode_change(QueueLeft(queue_id, move, target, first)))
        self.change(encode_change(QueueHandedOver(queue_id, move)))
        return first, self._time_us

    def take(self, queue_id: int, source: StoryLog, *, move: int) -> int:
        """A queue comes from that log; its first queue offset here."""
        first, self._time_us = source.leave(queue_id, self.log_id, move=move)
        self.change(encode_change(QueueArriving(queue_id, move, source.log_id, first)))
        self._states(QueueState(queue_id, f"q{queue_id}", "made once", {}, first, {}, 0))
        self.change(encode_change(QueueArrived(queue_id, move)))
        self.change(encode_change(QueueOpened(queue_id, move)))
        self._next[queue_id] = first
        self.rows.setdefault(queue_id, {})
        return first

    def copy(self, number: int) -> BatchHeader:
        """Append the batch `number` of `stored` once more; its queue begins where the log says, from now on."""
        header, _ = self.stored[number]
        if header.queue_id not in self.begins:
            self.say_begin(header.queue_id, min(self.rows[header.queue_id]))
        return self._append_copied(self.bytes_of(header))

    def copy_from(self, source: StoryLog, headers: Iterable[BatchHeader]) -> None:
        """Append these batches of another log."""
        for header in headers:
            self._append_copied(source.bytes_of(header))

    def bytes_of(self, header: BatchHeader) -> memoryview:
        with (self.directory / f"{self._start_of(header.log_offset):020d}").open("rb") as file:
            file.seek(header.log_offset - self._start_of(header.log_offset))
            return memoryview(file.read(header.length))

    def _append_copied(self, batch: memoryview) -> BatchHeader:
        copied = self.log.append_copied(batch)
        assert copied.flags & Flag.COPIED
        return copied

    def say_begin(self, queue_id: int, begin: int) -> None:
        """Log where the queue begins."""
        self.change(encode_change(QueueStartsMoved(begins={queue_id: begin})))
        self.begins[queue_id] = begin

    def jump(self) -> int:
        """Every queue goes on far above; where."""
        go_on_at = max(self._next.values()) + 2**32
        self.change(encode_change(OffsetsJumped(epoch=1, lost_from=self.log.end, go_on_at=go_on_at)))
        self.gaps = {queue_id: (stood, go_on_at) for queue_id, stood in self._next.items()}
        self._next = dict.fromkeys(self._next, go_on_at)
        return go_on_at

    def next_of(self, queue_id: int) -> int:
        return self._next[queue_id]

    def visible(self, queue_id: int) -> list[Row]:
        """The records from the queue's begin on."""
        rows = self.rows[queue_id]
        return [rows[offset] for offset in sorted(rows) if offset >= self.begins.get(queue_id, 0)]

    def _start_of(self, log_offset: int) -> int:
        starts = [int(path.name) for path in self.directory.iterdir() if path.name.isdigit()]
        return max(start for start in starts if start <= log_offset)

    def _store(self, queue_id: int, records: list[Record], codec: Codec, first: int) -> BatchHeader:
        draft = draft_columns(
            [each.value for each in records],
            [each.key for each in records],
            [each.headers for each in records],
            [each.timestamp_us for each in records],
        )
        batch = compress_draft(draft, codec).seal(queue_id=queue_id, producer_id=9, producer_epoch=0, sequence=first)
        header = self._append(batch, first)
        self.stored.append((header, records))
        for offset, each in enumerate(records, first):
            headers = tuple((name, value) for name, value in each.headers)
            row = Row(offset, each.value, each.key, headers, each.timestamp_us, header.append_time_us)
            self.rows[queue_id][offset] = row
        return header


def random_log(directory: Path, seed: int, *, batches: int = 150) -> StoryLog:
    """A closed log of many segments: batches of every kind of record, compressed or not, copies, begins that were said,
    state checkpoints, and tables beside most segments."""
    dice = random.Random(seed)
    log = StoryLog(directory, queues=4)
    kinds = every_kind_of_record(500)
    for _ in range(batches):
        records = [dice.choice(kinds) for _ in range(dice.randint(1, 40))]
        log.publish(dice.randint(1, 3), records, dice.choice(CODECS))
        if dice.random() < 0.05:
            log.checkpoint()
        if dice.random() < 0.1:
            log.copy(dice.randrange(len(log.stored)))
        if dice.random() < 0.05:
            log.confirm()
            log.seal()
    log.close()
    return log


def rows_of(batches: Iterable[ConsumedBatch]) -> list[Row]:
    return [
        Row(each.queue_offset, each.value, each.key, tuple(each.headers), each.timestamp, each.append_time_us)
        for batch in batches
        for each in batch.records()
    ]


def range_of(facts: QueueFacts, first: int | None = None, following: int | None = None) -> QueueRange:
    """All of a queue that is in one log, or a part of it."""
    first = facts.begin if first is None else first
    following = facts.next if following is None else following
    return QueueRange(facts.cluster_id, facts.name, facts.log_id, facts.queue_id, first, following)


def read_all(path: Path | str, queue: str, on_bad: OnBad | None = None) -> list[Row]:
    """Every record of a queue, as one who opens the path now finds them."""
    logs = LogDirectories.open(str(path))
    return rows_of(logs.batches(range_of(logs.facts([queue], on_bad)[0]), on_bad))
