"""The names of queues in a log that is read offline: batches know numbers only."""

from __future__ import annotations

from contextlib import closing

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.format import BatchHeader, Kind
from mirrorlog.commitlog.scan import BlockReader, walk
from mirrorlog.errors import BadBatch
from mirrorlog.tools.changes import read_changes
from mirrorlog.tools.log_directory import FILES, LogDirectory


class QueueNames:
    """By queue id, learned from declarations and state checkpoints.

    What a queue's records stand behind: its declaration, or the state checkpoint that the log's checkpoint names. So
    `read_state` first, then every batch in order, and a record's name is known when it comes.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._ended = False

    def __getitem__(self, queue_id: int) -> str:
        """The number stands for a queue without a known name."""
        return self._names.get(queue_id, str(queue_id))

    def is_called(self, queue_id: int, text: str) -> bool:
        """Whether `text` means this queue: by its name, or by its number."""
        name = self._names.get(queue_id)
        return text in (name, str(queue_id)) if name is not None else text == str(queue_id)

    def knows(self, name: str) -> bool:
        """Whether a queue has that name."""
        return name in self._names.values()

    def learn(self, header: BatchHeader, batch: memoryview) -> None:
        """An OnBatch. What cannot be read is passed over."""
        if header.kind not in (Kind.CONTROL, Kind.CHECKPOINT):
            return
        try:
            changes = read_changes(header, batch)
        except BadBatch:
            return
        for change in changes:
            if change["type"] in ("QueueDeclared", "QueueState"):
                self._names[change.get("queue_id", 0)] = str(change.get("name", ""))
            self._ended = self._ended or change["type"] == "CheckpointEnded"

    def read_state(self, log: LogDirectory) -> None:
        """Learn from the state checkpoint, if the log has one. Bad bytes end that. Raises DiskFailed."""
        at = log.checkpoint.state if log.checkpoint is not None else 0
        for segment in log.holding if at else ():
            try:
                with closing(FILES.open(segment.path)) as file:
                    reader = BlockReader(file)
                    while segment.start <= at < segment.start + reader.size and not self._ended:
                        following = self._step(reader, log, segment.start, at)
                        if following is None:
                            break
                        at = following
            except OSError as error:
                raise disk_error(error, "read", segment.path) from None

    def _step(self, reader: BlockReader, log: LogDirectory, start: int, at: int) -> int | None:
        """Read the batch at log offset `at`; where the next one begins, or None when none is there."""
        stop = walk(reader, start=start, at=at - start, until=at - start + 1, rules=log.rules, on_batch=self.learn)
        return None if stop.reason else start + stop.at
