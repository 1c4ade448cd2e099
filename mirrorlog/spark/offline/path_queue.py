"""A queue in the logs of a path. One that has moved (decision 0050) has records in several of them, and is one queue.

What the logs themselves say tells where the borders are: which of them has the queue now, where one has left and where
it has come. Within that a record is where its batch stands; where several logs have it, as after a sync, the log that
the queue is in now counts, as it does for nodes. What none of them has belongs to the log before it (its loss, or its
bad bytes), up to the place where the queue left that: from there on up to where the next one begins it stood in a log
that the path does not have.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mirrorlog.spark.errors import RecordsMissing
from mirrorlog.spark.offline.log_reader import LogReader
from mirrorlog.spark.offline.log_view import BadStretch, KnownQueue, LogView
from mirrorlog.spark.plan import QueueFacts, QueueRange, QueueSpan

_Stretch = tuple[int, int, LogReader]
"""Queue offsets [first, next) that have batches in this log."""


@dataclass(frozen=True, slots=True, eq=False)
class PathQueue:
    """`own`: the log that has the queue now, or had it last of those there are; `former`: the others that have records
    of it, the one that it left last first."""

    own: LogReader
    known: KnownQueue
    former: tuple[LogReader, ...] = ()

    @classmethod
    def of(cls, queue_id: int, readers: Sequence[LogReader]) -> PathQueue:
        """The queue of that id in the logs that know of it, one at least."""

        def newest(reader: LogReader) -> tuple[bool, int]:
            known = reader.view.known
            return known.is_here(queue_id), known.nexts.get(queue_id, 0)

        own, *others = sorted(readers, key=newest, reverse=True)
        known = [each.queues()[queue_id] for each in (own, *others)]
        # A log that it has left keeps its name alone.
        incarnation = next((each.incarnation for each in known if each.incarnation), "")
        former = [each for each, there in zip(others, known[1:], strict=True) if there.incarnation in ("", incarnation)]
        return cls(own, replace(known[0], incarnation=incarnation), tuple(former))

    @property
    def is_here(self) -> bool:
        """Whether its own log takes what is new of it, as far as that knows."""
        return self.own.view.known.is_here(self.known.queue_id)

    @property
    def has_moved(self) -> bool:
        return bool(self.former) or any(each.known.has_moved(self.known.queue_id) for each in self._views)

    @property
    def readers(self) -> tuple[LogReader, ...]:
        """Of all its logs that are there."""
        return self.own, *self.former

    def facts(self) -> QueueFacts:
        """The confirmed queue offsets, as of the last `read_on` of the logs."""
        facts = self.own.facts(self.known)
        if not self.has_moved:
            return facts
        spans = tuple(self._spans(facts.begin, facts.next))
        in_one = {span.log_id for span in spans} == {facts.log_id}
        return replace(facts, spans=() if in_one else spans, former_logs=tuple(self._named_logs()))

    def gone_to(self, there: Container[str]) -> BadStretch | None:
        """What is missing behind its last record: the queue has gone on in a log that is not among `there`."""
        left = self.own.view.known.left.get(self.known.queue_id)
        if left is None or left.target in there:
            return None
        reason = (
            f"queue {self.known.name!r} went on in log {left.target} with record {left.next}, and the path has no "
            "directory of that log; give a path that has both, or set failOnDataLoss to false to read what is here"
        )
        return BadStretch(self.own.view.log.path, 0, 0, reason, self.known.name, left.next, other_log=left.target)

    def find_time(self, append_time_us: int, *, passes_missing: bool) -> int:
        """The first queue offset whose batch was appended at or after a time (µs UTC); the next one when there is
        none. Raises RecordsMissing when that may be in a log that is not there, unless it `passes_missing`."""
        facts = self.facts()
        if not facts.spans:
            return self.own.find_time(self.known, append_time_us)
        for span, following in pairwise([*facts.spans, QueueSpan("", facts.next)]):
            reader = self.reader(span.log_id)
            if reader is None and not passes_missing:
                raise missing(facts.range(span.first, following.first))
            if reader is not None:
                found = reader.find_time(self.known, append_time_us)
                if found < following.first:
                    return max(facts.begin, span.first, found)
        return facts.next

    def reader(self, log_id: str) -> LogReader | None:
        """Of that log, if it is there."""
        return next((each for each in self.readers if each.log_id == log_id), None)

    # --- Inside ---------------------------------------------------------------------------------------------------

    @property
    def _views(self) -> Iterator[LogView]:
        return (each.view for each in self.readers)

    def _named_logs(self) -> Iterator[str]:
        """All that are there or that they name."""
        queue_id = self.known.queue_id
        for reader in reversed(self.readers):
            known = reader.view.known
            came = known.came.get(queue_id) or known.arriving.get(queue_id)
            if came is not None and came.source:
                yield came.source
            yield reader.log_id

    def _spans(self, begin: int, following: int) -> Iterator[QueueSpan]:
        """From `begin` on; of two that follow each other the logs differ."""
        last: str | None = None
        for log_id, first in self._owned(begin, following):
            if log_id != last:
                yield QueueSpan(log_id, self._since(log_id, begin) if last is None else first)
                last = log_id

    def _since(self, log_id: str, begin: int) -> int:
        """From where on the log has, or had, what stands at `begin`."""
        reader = self.reader(log_id)
        came = None if reader is None else reader.view.known.came.get(self.known.queue_id)
        return came.first if came is not None and came.first <= begin else 0

    def _owned(self, begin: int, following: int) -> Iterator[tuple[str, int]]:
        """From which queue offset on the records are in which log."""
        at, before = begin, None
        for first, end, reader in self._stretches():
            if begin < end and first < following:
                if first > at:
                    yield from self._hole(at, first, before, reader)
                yield reader.log_id, max(at, first)
                at = end
            before = reader
        if at < following:
            yield from self._hole(at, following, before, self.own)
        yield self.own.log_id, following

    def _stretches(self) -> list[_Stretch]:
        """Of all logs, in order, none of them over another."""
        taken: list[_Stretch] = []
        for reader in self.readers:
            for first, following in reader.stretches(self.known.queue_id):
                free = _without(first, following, [each[:2] for each in taken])
                taken = sorted([*taken, *((*each, reader) for each in free)], key=lambda each: each[0])
        return taken

    def _hole(self, first: int, end: int, before: LogReader | None, behind: LogReader) -> Iterator[tuple[str, int]]:
        """Whose queue offsets are that nobody has a batch of."""
        queue_id = self.known.queue_id
        left = None if before is None else before.view.known.left.get(queue_id)
        came = behind.view.known.came.get(queue_id) or behind.view.known.arriving.get(queue_id)
        border = came.first if came is not None and first < came.first <= end else None
        if before is not None and left is not None:
            stood = min(max(first, left.next), end)
        elif border is not None:
            stood = first
        else:
            stood = end
        if first < stood:
            yield (before or behind).log_id, first
        missing_to = end if border is None else max(border, stood)
        if stood < missing_to:
            named = left.target if left is not None else came.source if came is not None else ""
            yield named, stood
        if missing_to < end:
            yield behind.log_id, missing_to


def missing(wanted: QueueRange) -> RecordsMissing:
    """For who wants to read a range of a log that is not there."""
    named = f"log {wanted.log_id}" if wanted.log_id else "another log"
    return RecordsMissing(
        f"{wanted}: these records stood in {named}, where the queue was before, and the path has no directory of it; "
        "give a path that has both, or set failOnDataLoss to false to go on without them",
        log=wanted.log_id,
    )


def _without(first: int, following: int, taken: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """What of [first, following) lies in none of `taken`, which are apart and in order."""
    for start, end in taken:
        if end <= first:
            continue
        if start >= following:
            break
        if first < start:
            yield first, start
        first = max(first, end)
    if first < following:
        yield first, following
