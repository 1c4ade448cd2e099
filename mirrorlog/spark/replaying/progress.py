"""How far a replay came, told by the queue that it goes to.

Each record that a replay publishes has the header `mirrorlog-replay` with the replay's name and the record's source.
Such a record is there exactly if it was published: the one thing that cannot disagree with the queue is the queue. Two
positions of groups in the queue say where to look: where the replay began, and the last record of which a run made a
note, with all before it. Behind it single batches may be missing, where a publish failed and the next one did not: so
all that stands there is read, not its end alone.

What an earlier run had sent and nobody had confirmed yet may still become so. Therefore whoever goes on first commits a
position: that is confirmed by all copies behind everything that stood in the log before it.

Rejected: the last source offset as a group's position alone (a crash between publish and commit doubles what is in
between); an idempotent producer under a fixed id (nodes remember 64 batches of it, a replay has thousands).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord
from mirrorlog.client.sync import Client
from mirrorlog.errors import OffsetOutOfRange, PositionLost
from mirrorlog.spark.errors import ReplayUnknown
from mirrorlog.wire.messages.queues import Position, QueueInfo

HEADER: Final = "mirrorlog-replay"


def header_value(replay: str, source: str, offset: int) -> bytes:
    """Of the record that had this queue offset in its source queue."""
    return f"{replay}/{offset}/{source}".encode()


@dataclass(frozen=True, slots=True)
class PublishedOffsets:
    """What the queue has of a source queue: everything up to the source offset `up_to` (itself left out; None when that
    is not known), and the single ones behind it, `others`, rising."""

    up_to: int | None = None
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """Of one source queue in one replay, by its name `replay`, to the queue `to_queue`."""

    client: Client
    to_queue: str
    replay: str
    source: str

    def published(self, *, note: bool) -> PublishedOffsets:
        """By earlier runs. `note`: commit a position first, as a run does that is going to publish; else nothing is
        changed, and what is not confirmed yet is not seen.

        Raises ReplayUnknown when records that were published are gone, so that nobody can say which they were.
        """
        begun, last = (self.client.admin.position(self.to_queue, self._group(each)) for each in ("begun", "last"))
        if note:
            info = self._info()
            self._commit("begun", info, begun.queue_offset if begun is not None else info.next)
        start = last or begun
        if start is None:
            return PublishedOffsets()
        found = self._read(start.queue_offset)
        up_to = None
        if last is not None:
            up_to = found.get(last.queue_offset, -1) + 1
            if not up_to:
                raise self._unknown()
        return PublishedOffsets(
            up_to, tuple(sorted({each for each in found.values() if up_to is None or each >= up_to}))
        )

    def note(self, queue_offset: int) -> None:
        """The last record that was published, and is confirmed, stands at this queue offset of the target."""
        self._commit("last", self._info(), queue_offset)

    def _group(self, what: str) -> str:
        """Short, whatever the names."""
        source = hashlib.sha256(self.source.encode()).hexdigest()[:16]
        return f"{HEADER}-{self.replay}-{source}-{what}"

    def _info(self) -> QueueInfo:
        return self.client.admin.metadata([self.to_queue]).queues[0]

    def _commit(self, what: str, info: QueueInfo, queue_offset: int) -> None:
        position = Position(log_id=info.log_id, epoch=info.epoch, queue_offset=queue_offset)
        self.client.admin.commit_position(self.to_queue, self._group(what), position)

    def _unknown(self) -> ReplayUnknown:
        return ReplayUnknown(
            f"replay {self.replay} of {self.source!r} published records that queue {self.to_queue!r} does not have any "
            "more; start where it is to go on, under another name (--from-offset and --id)"
        )

    def _read(self, at: int) -> dict[int, int]:
        """The source offsets of this replay's records in the target, by queue offset, from the queue offset `at` on.

        What a declared loss took is as if it had not been published. Raises ReplayUnknown when `at` was freed.
        """
        found: dict[int, int] = {}
        while True:
            try:
                with self.client.consumer(
                    self.to_queue, start=at, until="confirmed", outage_timeout_ms=10_000
                ) as consumer:
                    for batch in consumer.batches():
                        found |= published_in(batch, self.replay, self.source)
                        at = batch.next
                return found
            except PositionLost as lost:
                at = lost.details["go_on_at"]
            except OffsetOutOfRange:
                raise self._unknown() from None


def published_in(batch: ConsumedBatch, replay: str, source: str) -> dict[int, int]:
    """The source offsets, by queue offset, of the records in a batch that this replay published from that queue."""
    if batch.body.headers is None:
        return {}
    offsets = ((each.queue_offset, _source_offset(each, replay, source)) for each in batch.records())
    return {queue_offset: offset for queue_offset, offset in offsets if offset is not None}


def _source_offset(record: ConsumedRecord, replay: str, source: str) -> int | None:
    """A record may have been replayed several times, each by another name."""
    for name, value in record.headers:
        if name == HEADER and value is not None:
            of_replay, offset, of_source = (*value.split(b"/", 2), b"", b"")[:3]
            if (of_replay, of_source) == (replay.encode(), source.encode()) and offset.isdigit():
                return int(offset)
    return None
