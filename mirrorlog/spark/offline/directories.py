"""The logs below a path, and their queues by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import unquote, urlsplit

from mirrorlog.commitlog.directory import LOGS_NAME
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.log_directory import QUARANTINED, LogDirectory, read_log_directory
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.errors import BadInput, NoSuchLog, NoSuchQueue
from mirrorlog.spark.errors import BadOption
from mirrorlog.spark.offline.log_reader import LogBatch, LogReader
from mirrorlog.spark.offline.log_view import LogView, OnBad
from mirrorlog.spark.offline.path_queue import PathQueue, missing
from mirrorlog.spark.plan import QueueFacts, QueueRange

if TYPE_CHECKING:
    from mirrorlog.client import ConsumedBatch

_PATTERNS: Final = (
    IDENTITY_NAME,
    f"{LOGS_NAME}/*/{IDENTITY_NAME}",
    f"*/{IDENTITY_NAME}",
    f"*/{LOGS_NAME}/*/{IDENTITY_NAME}",
)


class LogDirectories:
    """Logs of one or more nodes, each once. Blocking, for one thread at a time; nothing stays open between calls."""

    def __init__(self, path: Path, readers: Sequence[LogReader]) -> None:
        """Use `open`."""
        self.path = path
        self._readers = list(readers)

    @classmethod
    def open(cls, path: str) -> Self:
        """`path`: a node's data directory, a log's directory, or a folder with several of either; a plain path or a
        `file:` address. Of several copies of a log the one is taken that knows most of it to be confirmed.

        Raises BadOption when there is no log, ForeignDirectory, LogCorrupt (no usable epoch list or checkpoint),
        DiskFailed.
        """
        root = _local(path)
        found = sorted({each.parent for pattern in _PATTERNS for each in root.glob(pattern)})
        logs = [read_log_directory(each) for each in found if not QUARANTINED.search(each.name)]
        if not logs:
            raise BadOption(
                f"option 'path': {root} holds no log; give a node's data directory, a log's directory (it has a "
                f"{IDENTITY_NAME}), or a folder of them, which every worker can read"
            )
        return cls(root, [LogReader(LogView(log)) for log in _best_copies(logs)])

    def facts(self, names: Sequence[str] | None = None, on_bad: OnBad | None = None) -> list[QueueFacts]:
        """Queues as they are confirmed now, in the order asked for; by default all of them, in order of name.

        A queue that is in several logs is one (`path_queue`). Where a log has bad bytes, what it says of its queues may
        not be all: LogCorrupt, unless `on_bad` hears of them; likewise RecordsMissing for a queue that has gone on in a
        log that is not there. Raises NoSuchQueue naming those that are not there, BadInput for a name that several
        queues have; as `open`.
        """
        for reader in self._readers:
            reader.read_on()
        queues = self._by_name()
        if missing := [name for name in names or () if name not in queues]:
            raise NoSuchQueue(f"no queue {', '.join(map(repr, missing))} in {self.path}{self._damage()}")
        wanted = sorted(queues) if names is None else names
        asked = {reader for name in wanted for reader in queues[name].readers}
        bad = [bad for each in self._readers if names is None or each in asked for bad in each.view.bad]
        there = {each.log_id for each in self._readers}
        bad += [gone for name in wanted if (gone := queues[name].gone_to(there)) is not None]
        for each in bad:
            if on_bad is None:
                raise each.error()
            on_bad(each)
        return [queues[name].facts() for name in wanted]

    def find_time(self, queue: str, append_time_us: int, on_bad: OnBad | None = None) -> int:
        """The first confirmed queue offset whose batch was appended at or after a time (µs UTC); the next one when
        there is none. As of the last `facts`. Raises as `facts`, and RecordsMissing when it may be in a log that is not
        there, unless there is an `on_bad`, which has heard of worse."""
        return self._named(queue).find_time(append_time_us, passes_missing=on_bad is not None)

    def header(self, queue: str, queue_offset: int) -> BatchHeader | None:
        """Of the batch that holds a queue offset, proven by its checksums: with its epoch, and whether it is copied.
        None when no batch that can be read holds it. As of the last `facts`. Raises as `facts`."""
        found = self._named(queue)
        reader = found.reader(found.facts().log_at(queue_offset)) if found.has_moved else found.own
        return None if reader is None else reader.header(found.known, queue_offset)

    def batches(self, wanted: QueueRange, on_bad: OnBad | None = None) -> Iterator[ConsumedBatch]:
        """The batches of exactly this range, in order, proven; the first and the last one cut to it.

        With `on_bad` what is corrupt, or was given up after a loss, is told to it, and reading goes on behind it.
        Raises NoSuchLog, NoSuchQueue, RecordsMissing (freed meanwhile, or not confirmed), PositionLost, LogCorrupt
        naming file, log offsets, queue and queue offsets, DiskFailed.
        """
        from mirrorlog.client import ConsumedBatch

        found = self.log_batches(wanted, on_bad)
        return (
            ConsumedBatch(each.queue, each.log_id, each.header, each.body, each.raw, each.first, each.next)
            for each in found
        )

    def log_batches(self, wanted: QueueRange, on_bad: OnBad | None = None) -> Iterator[LogBatch]:
        """As `batches`, for Arrow alone: so tasks need no client."""
        reader = next((each for each in self._readers if each.log_id == wanted.log_id), None)
        if reader is None and any(self._has_moved_in(each, wanted) for each in self._readers):
            raise missing(wanted)
        if reader is None or reader.view.log.cluster_id != wanted.cluster_id:
            raise NoSuchLog(f"{wanted}: {self.path} has no log {wanted.log_id} of cluster {wanted.cluster_id}")
        queue = reader.queues().get(wanted.queue_id)
        if queue is None:
            raise NoSuchQueue(f"{wanted}: log {wanted.log_id} in {self.path} has no queue id {wanted.queue_id}")
        return reader.batches(queue, wanted.first, wanted.next, on_bad)

    # --- Inside ---------------------------------------------------------------------------------------------------

    @staticmethod
    def _has_moved_in(reader: LogReader, wanted: QueueRange) -> bool:
        same = reader.view.log.cluster_id == wanted.cluster_id and wanted.queue_id in reader.queues()
        return same and reader.view.known.has_moved(wanted.queue_id)

    def _by_name(self) -> dict[str, PathQueue]:
        found: dict[str, PathQueue] = {}
        for queue in self._queues():
            other = found.get(queue.known.name)
            if other is not None and other.is_here and queue.is_here:
                logs = f"{other.own.view.log.path} and {queue.own.view.log.path}"
                raise BadInput(f"queue {queue.known.name!r} is in {logs}; give the path of one of them")
            # Of one that has left the name may be another's by now.
            if other is None or queue.is_here:
                found[queue.known.name] = queue
        return found

    def _queues(self) -> Iterator[PathQueue]:
        """Of all logs. A queue's id is its own in all of the cluster."""
        held: dict[tuple[str, int], list[LogReader]] = {}
        for reader in self._readers:
            for queue_id in reader.queues():
                held.setdefault((reader.view.log.cluster_id, queue_id), []).append(reader)
        for (cluster_id, queue_id), readers in held.items():
            if not any(each.view.known.has_moved(queue_id) for each in readers):
                yield from (PathQueue(each, each.queues()[queue_id]) for each in readers)
                continue
            same = [each.view.known for each in self._readers if each.view.log.cluster_id == cluster_id]
            if not any(queue_id in known.deleted for known in same):
                yield PathQueue.of(queue_id, readers)

    def _named(self, name: str) -> PathQueue:
        try:
            return self._by_name()[name]
        except KeyError:
            raise NoSuchQueue(f"no queue {name!r} in {self.path}{self._damage()}") from None

    def _damage(self) -> str:
        """Why a queue may not be found."""
        bad = [bad for reader in self._readers for bad in reader.view.bad]
        return f"; its declaration may have stood in bad bytes: {bad[0]}" if bad else ""


def _local(path: str) -> Path:
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    if "://" in path:
        raise BadOption(f"option 'path': {path} is no path of a file system; mount it, or copy the logs")
    return Path(path)


def _best_copies(logs: Sequence[LogDirectory]) -> list[LogDirectory]:
    """One of each log: it knows most to be confirmed, and of those it has most from before."""
    best: dict[object, LogDirectory] = {}
    for log in logs:
        held = best.get(log.log_id)
        if held is None or _worth(log) > _worth(held):
            best[log.log_id] = log
    return list(best.values())


def _worth(log: LogDirectory) -> tuple[int, int, int]:
    checkpoint = log.checkpoint
    return (
        (-1, 0, 0)
        if checkpoint is None
        else (log.epochs.data_epoch(checkpoint.confirmed), checkpoint.confirmed, -checkpoint.begin)
    )
