"""What is known of a log by its directory: the pieces that hold it, what it says of its queues, and what is bad of it.

Nothing above the confirmed offset of the directory's checkpoint is taken in, nor a torn tail. What was taken in stays
true, for what is confirmed never changes; so `read_on` goes on from there. Only a start offset that
moved into a piece, and a history that was changed by a declared loss, begin it anew.

A running node frees files, and uses them again, while they are read here. So whatever does not fit is held against the
checkpoint as it is now before it is called bad.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.flush import Checkpoint
from mirrorlog.commitlog.format.header import BatchHeader, Buffer, Kind
from mirrorlog.commitlog.log_directory import FILES, LogDirectory, SegmentFile, read_log_directory
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.errors import BadBatch, DiskFailed, IndexDoubtful, LogCorrupt, MirrorlogError, PositionLost
from mirrorlog.queues.changes import (
    ArrivalDropped,
    Change,
    LogStartMoved,
    OffsetsJumped,
    QueueArriving,
    QueueDeclared,
    QueueDeleted,
    QueueHandedOver,
    QueueLeft,
    QueueOpened,
    QueueReturned,
    QueueStartsMoved,
    SpanCopied,
    decode_changes,
)
from mirrorlog.queues.checkpoint_states import (
    GapsState,
    MoveState,
    QueueStartsState,
    QueueState,
    State,
    decode_checkpoint,
)
from mirrorlog.spark.errors import RecordsMissing
from mirrorlog.spark.offline.pieces import LogPiece, checked_batch, sealed_piece, walk_file

# A node frees a segment every few seconds at most.
_TRIES_MAX: Final = 10


_ADVICE = "restore the log from another copy (mqtool verify names all of it), or set failOnDataLoss to false"


@dataclass(frozen=True, slots=True)
class BadStretch:
    """Log offsets `log_first` up to `log_last` hold no good batch; of which queue they were, and which queue offsets,
    `first` up to `next`, where that is known, else None. `path`: the file, or the log's directory.

    `go_on_at`: nothing is damaged, these queue offsets were given up when a loss was declared, up to that one; -1 else.
    `other_log`: nor is it damaged, but what stands from `first` on is in a log that is not there.
    """

    path: Path
    log_first: int
    log_last: int
    reason: str
    queue: str | None = None
    first: int | None = None
    next: int | None = None
    go_on_at: int = -1
    other_log: str = ""

    @property
    def given_up(self) -> bool:
        return self.go_on_at >= 0

    def __str__(self) -> str:
        if self.other_log:
            return self.reason
        records = f"queue {self.queue!r}, queue offsets {self.first} up to {self.next}"
        if self.given_up:
            return f"{records}: {self.reason}"
        place = f"log offsets {self.log_first} up to {self.log_last} in {self.path}: {self.reason}"
        return place if self.queue is None else f"{records}, {place}"

    def error(self) -> MirrorlogError:
        """For who does not go on without: PositionLost, LogCorrupt, or RecordsMissing."""
        if self.other_log:
            return RecordsMissing(self.reason, log=self.other_log)
        if self.given_up:
            return PositionLost(f"{self}; go on at {self.go_on_at}", go_on_at=self.go_on_at)
        return LogCorrupt(f"{self}; {_ADVICE}", first=self.log_first, last=self.log_last, file=str(self.path))


OnBad = Callable[[BadStretch], None]
"""Called in place of an error; reading goes on behind the stretch."""


# What a log says of its queues in its own control and checkpoint batches: names, begins, gaps. The same rules as the
# nodes' (`queues.registry`, `commitlog.index`), for one who reads a log once and of which only what is confirmed
# counts: nothing is ever cut here.


TELLING: Final = frozenset({int(Kind.CONTROL), int(Kind.CHECKPOINT)})
"""The kinds of batches that are to be followed here. Positions of groups are nobody's business."""


@dataclass(frozen=True, slots=True)
class KnownQueue:
    """As its declaration says."""

    name: str
    queue_id: int
    incarnation: str


class GoneTo(NamedTuple):
    """Of a queue that has left its log (decision 0050), as `QueueLeft` says: `next` is its first queue offset there."""

    target: str
    next: int


class CameFrom(NamedTuple):
    """Of a queue that came from another log: from which queue offset on it is in this one, which goes down while its
    older records are copied (decision 0051). `source`: of what is below; empty where nobody says which that is."""

    source: str
    first: int


@dataclass(slots=True)
class KnownQueues:
    """Follows the batches of a log that are confirmed, in log order.

    `queues`: those that have records here, or will, by queue id. `begins`: logged start offsets by queue id. `nexts`:
    at least so far is each queue, by queue id. `gap_ends`: where queues went on after losses. `start_decided`: the
    newest decision on the log's start offset. `left`, `arriving`, `came`: of queues that go to other logs, are on their
    way here, and came from others; `deleted`: ids of queues that are no more.
    """

    queues: dict[int, KnownQueue] = field(default_factory=dict)
    left: dict[int, GoneTo] = field(default_factory=dict)
    arriving: dict[int, CameFrom] = field(default_factory=dict)
    came: dict[int, CameFrom] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    begins: dict[int, int] = field(default_factory=dict)
    nexts: dict[int, int] = field(default_factory=dict)
    gap_ends: set[int] = field(default_factory=set)
    start_decided: int = 0

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """The next batch of a kind in TELLING. Raises BadBatch for a change that does not fit."""
        follow: dict[type, Callable[..., None]] = {
            QueueDeclared: self._declared,
            QueueDeleted: self._deleted,
            QueueState: self._restored,
            QueueStartsMoved: self._starts_moved,
            QueueStartsState: self._begins_said,
            LogStartMoved: self._start_moved,
            OffsetsJumped: self._jumped,
            GapsState: self._gaps_said,
            QueueLeft: self._left,
            QueueReturned: self._returned,
            QueueHandedOver: self._handed_over,
            QueueArriving: self._arriving,
            QueueOpened: self._opened,
            ArrivalDropped: self._dropped,
            SpanCopied: self._copied,
            MoveState: self._move_said,
        }
        changes: Iterable[Change | State] = (
            decode_checkpoint(batch) if header.kind == Kind.CHECKPOINT else decode_changes(batch)
        )
        for change in changes:
            if (apply := follow.get(type(change))) is not None:
                apply(change)

    def is_here(self, queue_id: int) -> bool:
        """Whether the log takes what is new of a queue."""
        return queue_id in self.queues and queue_id not in self.left and queue_id not in self.arriving

    def has_moved(self, queue_id: int) -> bool:
        """Whether another log may have records of a queue."""
        return any(queue_id in moves for moves in (self.left, self.arriving, self.came))

    def _declared(self, change: QueueDeclared | QueueState) -> None:
        self.deleted.discard(change.queue_id)
        queue = KnownQueue(change.name, change.queue_id, change.incarnation)
        known = self.queues.setdefault(change.queue_id, queue)
        if not known.incarnation:
            self.queues[change.queue_id] = queue
        self.nexts.setdefault(change.queue_id, 0)

    def _deleted(self, change: QueueDeleted) -> None:
        """Its records may be there for a while; nobody reads them any more."""
        self.queues.pop(change.queue_id, None)
        self.left.pop(change.queue_id, None)
        self.deleted.add(change.queue_id)

    def _left(self, change: QueueLeft) -> None:
        self.left[change.queue_id] = GoneTo(change.target, change.next_queue_offset)

    def _returned(self, change: QueueReturned) -> None:
        self.left.pop(change.queue_id, None)

    def _handed_over(self, change: QueueHandedOver) -> None:
        if change.freed:
            self.queues.pop(change.queue_id, None)

    def _arriving(self, change: QueueArriving) -> None:
        self.arriving[change.queue_id] = CameFrom(change.source, change.first)
        self.begins[change.queue_id] = change.begin  # lower than what was said here of records that are elsewhere now

    def _opened(self, change: QueueOpened) -> None:
        self.came[change.queue_id] = self.arriving.pop(change.queue_id, CameFrom("", 0))
        self.left.pop(change.queue_id, None)

    def _dropped(self, change: ArrivalDropped) -> None:
        self.arriving.pop(change.queue_id, None)
        if change.queue_id not in self.left:
            self.queues.pop(change.queue_id, None)

    def _copied(self, change: SpanCopied) -> None:
        came = self.came.get(change.queue_id)
        if came is not None and change.first < came.first:
            self.came[change.queue_id] = CameFrom("", change.first)

    def _move_said(self, state: MoveState) -> None:
        """As it is in the log at that place; it comes before the queue's own state."""
        queue_id = state.queue_id
        if state.step == "gone":
            self.deleted.add(queue_id)
        elif state.step == "came":
            self.came.setdefault(queue_id, CameFrom("", state.first))
        elif state.step == "arrived":
            self.arriving.setdefault(queue_id, CameFrom(state.log_id, state.queue_offset))
        else:
            self.left.setdefault(queue_id, GoneTo(state.log_id, state.queue_offset))
            if state.step != "freed":
                self.queues.setdefault(queue_id, KnownQueue(state.name, queue_id, ""))
                self.nexts.setdefault(queue_id, state.queue_offset)

    def _restored(self, state: QueueState) -> None:
        self._declared(state)
        self.nexts[state.queue_id] = max(self.nexts[state.queue_id], state.next_queue_offset)

    def _starts_moved(self, change: QueueStartsMoved | QueueStartsState) -> None:
        for queue_id, begin in change.begins.items():
            self.begins[queue_id] = max(begin, self.begins.get(queue_id, 0))

    def _begins_said(self, state: QueueStartsState) -> None:
        self._starts_moved(state)
        self.start_decided = max(self.start_decided, state.log_start)

    def _start_moved(self, change: LogStartMoved) -> None:
        self.start_decided = max(self.start_decided, change.log_offset)

    def _jumped(self, change: OffsetsJumped) -> None:
        """Every queue that was declared before goes on there, if it was below and this log numbers its records."""
        self.gap_ends.add(change.go_on_at)
        for queue_id, following in self.nexts.items():
            if queue_id not in self.left and queue_id not in self.arriving:
                self.nexts[queue_id] = max(following, change.go_on_at)

    def _gaps_said(self, state: GapsState) -> None:
        self.gap_ends.update(following for _, (_, following) in state.each())


class Freed(Exception):
    """A running node has freed, or changed, what was to be read. `read_on` tells what is there now."""


class LogView:
    """One log's directory. Nothing is read before the first `read_on`."""

    def __init__(self, log: LogDirectory) -> None:
        """Raises LogCorrupt when nobody knows what of it is confirmed."""
        self.log = log
        self.checkpoint = _checkpoint_of(log)
        self._doubted: set[int] = set()
        self._forget()

    def _forget(self) -> None:
        self.pieces: list[LogPiece] = []
        """In log order."""
        self.bad: list[BadStretch] = []
        """Where batches had to be and are none, in log order."""
        self.known = KnownQueues()
        self._end = self._followed = self.checkpoint.begin
        self._over = False

    @property
    def partial(self) -> bool:
        """A copy that began late and has not come to the decision that made its start offset: older records of a queue
        may still be to come behind newer ones, as copies."""
        return self.known.start_decided < self.checkpoint.begin

    # --- Reading on -----------------------------------------------------------------------------------------------

    def read_on(self) -> None:
        """Take in what was confirmed and freed meanwhile. Raises ForeignDirectory, LogCorrupt, DiskFailed."""
        for _ in range(_TRIES_MAX):
            try:
                self._take(read_log_directory(self.log.path))
                return
            except Freed:
                self._forget()
            except OSError as error:
                raise disk_error(error, "read", self.log.path) from None
        raise DiskFailed(f"{self.log.path} changes faster than it is read; read a copy of it", path=str(self.log.path))

    def check_there(self, log_offset: int) -> None:
        """Before what stands at a log offset is called bad. Raises Freed when it is no part of the log any more."""
        now = self.log.read_checkpoint()
        if now is not None and not now.begin <= log_offset < now.confirmed:
            raise Freed

    def doubt(self, piece: LogPiece) -> NoReturn:
        """The table of this piece is damaged: its segment is walked instead. Raises Freed, to be read on from."""
        if piece.rows is not None:
            raise LogCorrupt(f"{piece.path}: its batches contradict one another", file=str(piece.path))
        self._doubted.add(piece.start)
        self._forget()
        raise Freed

    def _take(self, log: LogDirectory) -> None:
        checkpoint = _checkpoint_of(log)
        changed = checkpoint.confirmed < self._end or not log.epochs.agrees_below(self._end, self.log.epochs)
        self.log, self.checkpoint = log, checkpoint
        if changed or any(piece.first < checkpoint.begin < piece.end for piece in self.pieces):
            self._forget()
        self.pieces = [piece for piece in self.pieces if piece.end > checkpoint.begin]
        self.bad = [bad for bad in self.bad if bad.log_last > checkpoint.begin]
        self._end = max(self._end, checkpoint.begin)
        self._followed = max(self._followed, checkpoint.begin, checkpoint.state)
        self._take_files(log)
        self._follow()

    def _take_files(self, log: LogDirectory) -> None:
        """The files from where it stands up to the confirmed offset."""
        segments = log.holding
        self._over = False
        first = max(0, bisect_right([segment.start for segment in segments], self._end) - 1)
        for number in range(first, len(segments)):
            following = segments[number + 1].start if number + 1 < len(segments) else None
            if self._over or self._end >= self.checkpoint.confirmed:
                break
            self._take_file(segments[number], following)
        must = min(self.checkpoint.flushed, self.checkpoint.confirmed)
        if self._end < must:
            self._add_bad(Range(self._end, must, "the log ends too early"), log.path)

    def _take_file(self, segment: SegmentFile, following: int | None) -> None:
        if segment.start > self._end:
            if self._end >= self.checkpoint.flushed:
                self._over = True
                return
            self._add_bad(Range(self._end, segment.start, f"no file holds it before {segment.path.name}"), segment.path)
        try:
            if (piece := self._sealed(segment, following)) is None:
                self._walk(segment, following)
            else:
                self.pieces.append(piece)
                self._end = piece.end
        except FileNotFoundError:
            self.check_there(segment.start)
            raise

    def _sealed(self, segment: SegmentFile, following: int | None) -> LogPiece | None:
        """By its table; None for a segment that is to be walked."""
        past = min(self.checkpoint.flushed, self.checkpoint.confirmed)
        if following is None or following > past or segment.start != self._end or segment.start in self._doubted:
            return None
        try:
            return sealed_piece(segment.path, start=segment.start, end=following, seed=self.log.rules.seed)
        except (FileNotFoundError, IndexDoubtful):
            return None

    def _walk(self, segment: SegmentFile, following: int | None) -> None:
        confirmed = self.checkpoint.confirmed
        found = walk_file(
            segment.path,
            start=segment.start,
            first=self._end,
            until=confirmed if following is None else min(confirmed, following),
            flushed=self.checkpoint.flushed,
            ends=following is None,
            rules=self.log.rules,
        )
        for bad in found.bad:
            self._add_bad(bad, segment.path)
        for piece in found.pieces:
            last = self.pieces[-1] if self.pieces else None
            if last is not None and last.rows is not None and (last.path, last.end) == (piece.path, piece.first):
                self.pieces[-1] = last.extended(piece)
            else:
                self.pieces.append(piece)
        self._end, self._over = found.end, found.over

    def _add_bad(self, bad: Range, path: Path) -> None:
        self.check_there(bad.first)
        self.bad.append(BadStretch(path, bad.first, bad.last, bad.reason))
        self._end = max(self._end, bad.last)

    # --- What it says of its queues -------------------------------------------------------------------------------

    def _follow(self) -> None:
        """The batches that tell of queues and were not followed yet."""
        for piece in self.pieces:
            if piece.end > self._followed:
                self._follow_piece(piece)
        self._followed = max(self._followed, self._end)

    def _follow_piece(self, piece: LogPiece) -> None:
        try:
            with piece.table() as table:
                states = [each for each in table.states() if each.kind in TELLING]
        except IndexDoubtful:
            self.doubt(piece)
        places = [(each.log_offset, each.length) for each in states if each.log_offset >= self._followed]
        if not places:
            return
        with closing(FILES.open(piece.path)) as file:
            for log_offset, length in places:
                batch = memoryview(bytearray(length))
                file.pread(batch, log_offset - piece.start)
                try:
                    self.known.apply(checked_batch(batch, log_offset, self.log.rules), batch)
                except BadBatch as error:
                    self._add_bad(Range(log_offset, log_offset + length, error.message), piece.path)


def _checkpoint_of(log: LogDirectory) -> Checkpoint:
    if log.checkpoint is None:
        raise LogCorrupt(
            f"{log.path}/checkpoint has no valid slot, so nobody knows what of the log is confirmed; "
            "read another copy, or let the node start and repair this one"
        )
    return log.checkpoint
