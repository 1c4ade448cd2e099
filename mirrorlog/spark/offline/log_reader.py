"""A log's queues by queue offset, from its directory: facts, times, and proven batches.

What a queue shows is dense but for the gaps after a loss. So a queue offset without a batch either was given up
(PositionLost, as nodes say) or stood in bytes that are bad now (LogCorrupt); neither is passed over unasked.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple, NoReturn, TypeVar

from mirrorlog.commitlog.files import File, disk_error
from mirrorlog.commitlog.format.body import Body
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.index.queue_order import QueuedBatch
from mirrorlog.commitlog.index.table import SegmentTable
from mirrorlog.commitlog.log_directory import FILES
from mirrorlog.errors import BadBatch, IndexDoubtful
from mirrorlog.spark.errors import RecordsMissing
from mirrorlog.spark.offline.log_view import BadStretch, Freed, KnownQueue, LogView, OnBad
from mirrorlog.spark.offline.pieces import LogPiece, checked_batch
from mirrorlog.spark.plan import QueueFacts

_READ_BYTES: Final = 4 * 1024 * 1024
# Of other queues, between two batches of one: to read them too takes less time than another call.
_BETWEEN_BYTES: Final = 32 * 1024
_BODY_BYTES_MAX: Final = 2**28

_T = TypeVar("_T")


class _Span(NamedTuple):
    """Queue offsets [first, next) of a queue that stand in one piece; in none when they are not there."""

    first: int
    next: int
    piece: LogPiece | None


class _StoredBatch(NamedTuple):
    """A batch that is proven by both of its checksums, and not opened yet."""

    queue: str
    header: BatchHeader
    raw: memoryview

    @property
    def next(self) -> int:
        return self.header.next_queue_offset


@dataclass(frozen=True, slots=True, eq=False)
class LogBatch:
    """A batch of a log's files, a `reading.arrow.QueueBatch`."""

    queue: str
    log_id: str
    header: BatchHeader
    body: Body
    raw: memoryview
    first: int
    next: int

    def __len__(self) -> int:
        return self.next - self.first


_Item = _StoredBatch | BadStretch


class LogReader:
    """One log. Blocking, for one thread at a time."""

    def __init__(self, view: LogView) -> None:
        self.view = view
        self._has_read = False

    @property
    def log_id(self) -> str:
        return str(self.view.log.log_id)

    def read_on(self) -> None:
        """Take in what was confirmed and freed meanwhile. Raises ForeignDirectory, LogCorrupt, DiskFailed."""
        self.view.read_on()
        self._has_read = True

    def queues(self) -> dict[int, KnownQueue]:
        """All that are declared in what is confirmed, by queue id."""
        if not self._has_read:
            self.read_on()
        return self.view.known.queues

    # --- Facts ----------------------------------------------------------------------------------------------------

    def facts(self, queue: KnownQueue) -> QueueFacts:
        """The confirmed queue offsets of a queue, as of the last `read_on`."""
        begin, following = self._asked(lambda: self._ends(queue.queue_id))
        return QueueFacts(
            cluster_id=self.view.log.cluster_id,
            name=queue.name,
            incarnation=queue.incarnation,
            log_id=self.log_id,
            queue_id=queue.queue_id,
            begin=begin,
            next=following,
            epoch=self.view.log.epochs.current,
        )

    def stretches(self, queue_id: int) -> list[tuple[int, int]]:
        """The queue offsets [first, next) that have a batch in this log, joined and in order."""
        found: list[tuple[int, int]] = []
        for first, following, _ in sorted(self._asked(lambda: self._spans(queue_id)), key=lambda span: span[:2]):
            if found and first <= found[-1][1]:
                found[-1] = found[-1][0], max(found[-1][1], following)
            else:
                found.append((first, following))
        return found

    def find_time(self, queue: KnownQueue, append_time_us: int) -> int:
        """The first queue offset whose batch was appended at or after a time (µs UTC); the next one when there is
        none."""
        return self._asked(lambda: self._find_time(queue.queue_id, append_time_us))

    def header(self, queue: KnownQueue, queue_offset: int) -> BatchHeader | None:
        """Of the batch that holds a queue offset, proven; None when there is none that can be read."""
        found = self._asked(lambda: self._items(queue, queue_offset, queue_offset + 1))[0]
        return found.header if isinstance(found, _StoredBatch) else None

    def _ends(self, queue_id: int) -> tuple[int, int]:
        """(begin, next)."""
        known, spans = self.view.known, self._spans(queue_id)
        following = max([known.nexts.get(queue_id, 0), *(span.next for span in spans)])
        begin = known.begins.get(queue_id)
        if begin is None:
            begin = self._first(spans, following)
        begin = min(begin, following)
        if self.view.partial:
            begin = max(begin, _last_hole_end(spans))
        came = known.came.get(queue_id)
        if begin < following and (came is None or came.first <= begin):
            at = _span_at(spans, begin, following)
            if at.piece is None and at.next in known.gap_ends:
                begin = at.next  # it has nothing from before the gap
        return begin, following

    def _first(self, spans: Sequence[_Span], following: int) -> int:
        """Of a queue whose begin the log does not say: what the log has. Its first records may stand in bad bytes."""
        if self.view.bad and not self.view.checkpoint.begin:
            return 0
        return min((span.first for span in spans), default=following)

    def _find_time(self, queue_id: int, append_time_us: int) -> int:
        begin, following = self._ends(queue_id)
        found = following
        for piece in {span.piece: None for span in self._spans(queue_id)}:
            assert piece is not None
            with self._table(piece) as table:
                first = table.find_time(queue_id, append_time_us)
            found = min(found, following if first is None else first)
        return max(begin, found)

    # --- Batches --------------------------------------------------------------------------------------------------

    def batches(self, queue: KnownQueue, first: int, following: int, on_bad: OnBad | None) -> Iterator[LogBatch]:
        """The records with queue offsets `first` up to `following` (exclusive), in order, every byte checked.

        Raises RecordsMissing below the start offset and above the confirmed end, PositionLost, LogCorrupt, DiskFailed.
        With `on_bad` what is lost or corrupt is told to it, and reading goes on behind.
        """
        at = first
        while at < following:
            for item in self._asked(partial(self._items_within, queue, at, following)):
                try:
                    batch = self._opened(item, at, following) if isinstance(item, _StoredBatch) else item
                except Freed:
                    self.read_on()
                    break
                if not isinstance(batch, BadStretch):
                    yield batch
                elif on_bad is None:
                    raise batch.error()
                else:
                    on_bad(batch)
                assert item.next is not None
                at = item.next

    def _items_within(self, queue: KnownQueue, at: int, following: int) -> list[_Item]:
        """Raises RecordsMissing, as of the last `read_on`."""
        begin, end = self._ends(queue.queue_id)
        if at < begin or following > end:
            missing = f"{at} up to {begin} are gone" if at < begin else f"{following} is above {end}"
            raise RecordsMissing(
                f"queue {queue.name!r}: {missing}; {self.view.log.path} has {begin} up to {end} confirmed",
                begin=begin,
                next=end,
            )
        return self._items(queue, at, following)

    def _items(self, queue: KnownQueue, at: int, following: int) -> list[_Item]:
        """What comes first at the queue offset `at`: a few megabytes of batches, or one hole."""
        spans = self._spans(queue.queue_id)
        span = _span_at(spans, at, following)
        if span.piece is None:
            end = min((each.first for each in spans if each.first > at), default=self._ends(queue.queue_id)[1])
            came, gap_ends = self.view.known.came.get(queue.queue_id), self.view.known.gap_ends
            if came is not None and at < came.first <= end:
                # It was in other logs before that; the gap ends where it went on, perhaps in one of these.
                end = min([end, *(each for each in gap_ends if each > at)])
            return [self._hole(queue, span, end)]
        with self._table(span.piece) as table:
            runs = table.entries(queue.queue_id, at, _READ_BYTES, until=span.next)
        if not runs or not runs[0].base_queue_offset <= at < runs[0].next_queue_offset:
            self.view.doubt(span.piece)
        return self._read(queue, span.piece, runs)

    def _hole(self, queue: KnownQueue, span: _Span, end: int) -> BadStretch:
        """Queue offsets that no batch has, of a hole up to `end`: given up, unless bad bytes can have held them."""
        bad, path = self.view.bad, self.view.log.path
        if not bad or end in self.view.known.gap_ends:
            reason = "their records are lost, or may have been: a loss of the log's newest records was declared"
            return BadStretch(path, 0, 0, reason, queue.name, span.first, span.next, go_on_at=end)
        reason = "; ".join(dict.fromkeys(each.reason for each in bad))
        path = bad[0].path if len(bad) == 1 else path
        return BadStretch(path, bad[0].log_first, bad[-1].log_last, reason, queue.name, span.first, span.next)

    def _opened(self, batch: _StoredBatch, at: int, following: int) -> LogBatch | BadStretch:
        """Cut to queue offsets `at` up to `following` (exclusive)."""
        header = batch.header
        try:
            body = open_body(batch.raw, header=header, body_bytes_max=_BODY_BYTES_MAX)
        except BadBatch as error:
            why = f"producer {header.producer_id} sent what nobody can open: {error.message}"
            return self._bad(batch.queue, _run_of(header), why)
        first, end = max(at, header.base_queue_offset), min(following, header.next_queue_offset)
        return LogBatch(batch.queue, self.log_id, header, body, batch.raw, first, end)

    # --- Bytes ----------------------------------------------------------------------------------------------------

    def _read(self, queue: KnownQueue, piece: LogPiece, runs: Sequence[QueuedBatch]) -> list[_Item]:
        items: list[_Item] = []
        try:
            with closing(FILES.open(piece.path)) as file:
                for group in _groups(runs):
                    items += self._read_group(queue, piece, file, group)
        except FileNotFoundError as error:
            self.view.check_there(runs[0].log_offset)
            raise disk_error(error, "read", piece.path) from None
        except OSError as error:
            raise disk_error(error, "read", piece.path) from None
        return items

    def _read_group(self, queue: KnownQueue, piece: LogPiece, file: File, group: Sequence[QueuedBatch]) -> list[_Item]:
        first = group[0].log_offset
        content = memoryview(bytearray(group[-1].log_offset + group[-1].length - first))
        try:
            file.pread_past(content, first - piece.start)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            if len(group) > 1:  # a bad sector: those beside it are there
                return [item for run in group for item in self._read_group(queue, piece, file, [run])]
            return [self._bad(queue.name, group[0], "the disk does not give it")]
        view = content.toreadonly()  # what is given out is the log's, whoever looks at it
        return [self._proven(queue, run, view[run.log_offset - first :][: run.length]) for run in group]

    def _proven(self, queue: KnownQueue, run: QueuedBatch, raw: memoryview) -> _Item:
        try:
            header = checked_batch(raw, run.log_offset, self.view.log.rules)
            if (header.queue_id, *_run_of(header)) != (queue.queue_id, *run):
                raise BadBatch("another batch than the segment's table says")
        except BadBatch as error:
            return self._bad(queue.name, run, error.message)
        return _StoredBatch(queue.name, header, raw)

    def _bad(self, queue: str, run: QueuedBatch, reason: str) -> BadStretch:
        """Raises Freed when that is because the place is no part of the log any more."""
        self.view.check_there(run.log_offset)
        path = next((each.path for each in self.view.pieces if run.log_offset < each.end), self.view.log.path)
        end = run.log_offset + run.length
        return BadStretch(path, run.log_offset, end, reason, queue, run.base_queue_offset, run.next_queue_offset)

    # --- Where ----------------------------------------------------------------------------------------------------

    def _spans(self, queue_id: int) -> list[_Span]:
        """All stretches of the queue, in log order; of two that hold the same records the later one counts."""
        spans: list[_Span] = []
        for piece in self.view.pieces:
            try:
                rows = piece.of_queue(queue_id)
            except (IndexDoubtful, FileNotFoundError):
                self._not_there(piece)
            spans += map(_Span, rows["base"].tolist(), rows["next"].tolist(), [piece] * len(rows))
        return spans

    @contextmanager
    def _table(self, piece: LogPiece) -> Iterator[SegmentTable]:
        try:
            with piece.table() as table:
                yield table
        except (IndexDoubtful, FileNotFoundError):
            self._not_there(piece)

    def _not_there(self, piece: LogPiece) -> NoReturn:
        """A piece's table is damaged, or gone, perhaps with its segment. Raises Freed."""
        self.view.check_there(piece.first)
        self.view.doubt(piece)

    def _asked(self, question: Callable[[], _T]) -> _T:
        """The answer by what is there now."""
        self.queues()
        while True:
            try:
                return question()
            except Freed:
                self.read_on()


def _span_at(spans: Sequence[_Span], at: int, following: int) -> _Span:
    """From the queue offset `at` on, up to `following` at most: what stands in one piece, or in none."""
    holding = [number for number, span in enumerate(spans) if span.first <= at < span.next]
    last = holding[-1] if holding else -1
    end = min(following, spans[last].next) if holding else following
    # Copies in later segments count from where they begin.
    end = min([end, *(span.first for span in spans[last + 1 :] if span.first > at)])
    return _Span(at, end, spans[last].piece if holding else None)


def _last_hole_end(spans: Sequence[_Span]) -> int:
    """From where on the spans are dense; 0 when they are from their begin on."""
    found = following = 0
    for first, end, _ in sorted(spans, key=lambda span: span.first):
        if first > following > 0:
            found = first
        following = max(following, end)
    return found


def _groups(runs: Sequence[QueuedBatch]) -> Iterator[Sequence[QueuedBatch]]:
    """Runs that are read by one call each: those that stand close together."""
    cuts = [
        number
        for number, (one, other) in enumerate(pairwise(runs), 1)
        if not 0 <= other.log_offset - (one.log_offset + one.length) <= _BETWEEN_BYTES
    ]
    for first, end in pairwise([0, *cuts, len(runs)]):
        yield runs[first:end]


def _run_of(header: BatchHeader) -> QueuedBatch:
    return QueuedBatch(header.log_offset, header.base_queue_offset, header.record_count, header.length)
