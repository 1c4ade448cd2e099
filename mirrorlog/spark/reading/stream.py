"""`spark.readStream.format("mirrorlog")`: queues as a stream of micro-batches.

Where the stream stands is Spark's to keep, in its checkpoint, as JSON of positions (`positions`). A trigger asks which
records are confirmed, says how far it goes, and is planned and read like a batch. It holds for every queue that

- it is read from its start offset when it appears later than the stream. It joins with one trigger and is read from
  the next one on: so where its reading began stands in the checkpoint before anything is read;
- one that is gone stays where it was, one that was made anew under its name joins again, and a position whose history
  the log does not have any more, or that lies in a declared loss, is noticed: an error with failOnDataLoss, else a line
  in the log. A loss ends the stream when it is reached: what stands before it has been read by then;
- nothing is kept in this process that a restart would miss: what is remembered only spares questions.

A node that is away ends the trigger with its error; the query can be started again and goes on. `commit` does nothing:
it comes a batch late, and positions are nobody's business but the checkpoint's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from mirrorlog.errors import MirrorlogError, NoSuchQueue
from mirrorlog.spark.errors import BeginUnknown, HistoryChanged
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import (
    QueueFacts,
    QueueRange,
    TimeOffsets,
    beyond,
    confirmed_end,
    freed,
    refuse_unknown,
    starting_offset,
    tasks,
)
from mirrorlog.spark.positions import QueuePosition, as_offsets, parse_offsets
from mirrorlog.spark.reading.declared_gaps import between
from mirrorlog.spark.reading.lookup import Lookup, open_lookup
from mirrorlog.spark.reading.planning import (
    QueuePartition,
    check_histories,
    gaps_of,
    loss,
    lost,
    positions_at,
    starting_positions,
    subscribed,
    times_of,
)
from mirrorlog.spark.reading.rows import record_batches, spare_modules
from mirrorlog.spark.reading.triggers import Backlog, shares, waits

# A gap is 2^32 wide at least: one that came since the last look makes a range wider than this.
_WIDE: Final = 2**31

logger: Final = logging.getLogger(__name__)


class QueueStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans triggers on the driver, in a process of its own, and reads in tasks.

    Every method raises what nodes or files answer. `now`: seconds that only go forward.
    """

    def __init__(self, options: SourceOptions, now: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._now = now
        # By queue, its log and the newest epoch of that under which positions and gaps were looked at.
        self._checked: dict[str, tuple[str, int]] = {}
        # Where each queue ended when it was looked at last.
        self._newest: dict[str, QueuePosition] = {}
        # With availableNow: how far to read, and of which queues.
        self._target: dict[str, QueuePosition] | None = None
        self._triggered_at: float | None = None
        self._triggers = 0

    # --- Spark's interface ----------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Raises NoSuchQueue, HistoryChanged, BeginUnknown, NotCurrent, BadOption."""
        with open_lookup(self.options) as lookup:
            queues = subscribed(self.options, lookup)
            self._note(queues)
            found = TimeOffsets(times_of(self.options.starting, queues, lookup))
            first = {facts: self._first(facts, found) for facts in queues}
            given = starting_positions(self.options.starting, queues)
            check_histories(lookup, given, fail_on_data_loss=self.options.fail_on_data_loss)
            return as_offsets(positions_at(lookup, first) | _with_ids(given))

    def getDefaultReadLimit(self) -> ReadLimit:
        """By the options."""
        limits = self.options.limits
        if limits.records_max is not None:
            return ReadMaxRows(limits.records_max)
        return ReadAllAvailable() if limits.records_min is None else ReadMinRows(limits.records_min)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end. Raises NotCurrent while no master knows it, unless mirrors are read."""
        with open_lookup(self.options) as lookup:
            queues = self._queues(lookup)
        for facts in queues:
            confirmed_end(facts, self.options.read_from)
        self._target = {facts.name: _end(facts) for facts in queues}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next trigger goes; `start` itself when there is nothing for it. Raises HistoryChanged,
        PositionLost, RecordsMissing, BeginUnknown, NoSuchQueue."""
        known = parse_offsets(start)
        with open_lookup(self.options) as lookup:
            queues = self._queues(lookup)
            stands = self._stands(known, {facts.name: facts for facts in queues}, lookup.silent)
            # Those that join now are read from the next trigger on.
            going_on = {queue: position for queue, position in stands.items() if known.get(queue) == position}
            backlogs = self._backlogs(lookup, queues, going_on)
            ends = self._ends(backlogs, limit)
            reached = {facts: ends[facts.name] for facts in queues if facts.name in ends}
            following = stands | positions_at(lookup, reached)
        if following == known:
            return start
        self._triggered_at = self._now()
        self._triggers += 1
        return as_offsets(following)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What was confirmed at the last look; None before the first one."""
        return as_offsets(self._newest) or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What lies between, as tasks; the same after a restart. Raises as `latestOffset`."""
        before, after = parse_offsets(start), parse_offsets(end)
        moved = {
            queue: (stood, position)
            for queue, position in after.items()
            if (stood := before.get(queue)) is not None
            and (None in (stood.incarnation, position.incarnation) or stood.incarnation == position.incarnation)
            and stood.offset < position.offset
        }
        if not moved:
            return []
        with open_lookup(self.options) as lookup:
            found = {facts.name: facts for facts in lookup.facts(sorted(moved))}
            pieces = [
                piece for queue in moved for piece in self._pieces(lookup, found.get(queue), queue, *moved[queue])
            ]
        return [QueuePartition(wanted) for wanted in tasks(self.options, pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """As of the batch reader."""
        assert isinstance(partition, QueuePartition)
        spare_modules()
        return record_batches(self.options, partition.wanted)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do."""

    def stop(self) -> None:
        """Nothing to free: every question has connections of its own."""

    # --- Where it stands ------------------------------------------------------------------------------------------

    def _queues(self, lookup: Lookup) -> list[QueueFacts]:
        """Those subscribed that are there."""
        if self.options.pattern is None:
            found = lookup.facts(sorted(self.options.queues))
        else:
            found = [facts for facts in lookup.facts(None) if self.options.subscribes(facts.name)]
        self._note(found)
        return found

    def _note(self, queues: Iterable[QueueFacts]) -> None:
        self._newest = {facts.name: _end(facts) for facts in queues}

    def _first(self, facts: QueueFacts, found: TimeOffsets) -> int:
        first = starting_offset(self.options, facts, found)
        if self.options.fail_on_data_loss:
            refuse_unknown(self.options, facts, first)
        return first

    def _stands(
        self, known: Mapping[str, QueuePosition], found: Mapping[str, QueueFacts], silent: Sequence[str]
    ) -> dict[str, QueuePosition]:
        """Where each queue is read from: those that go on, and those that join."""
        stands: dict[str, QueuePosition] = {}
        unsure = f", or known to {', '.join(silent)} alone, which does not answer" if silent else ""
        for queue in self.options.queues:
            if queue not in known and queue not in found:
                self._loss(NoSuchQueue(f"queue {queue!r} is subscribed and not there{unsure}; {_ALLOW}"))
        for queue, position in known.items():
            if not self.options.subscribes(queue):
                logger.warning("queue_dropped queue=%s offset=%d reason=unsubscribed", queue, position.offset)
                continue
            facts = found.get(queue)
            if facts is None:
                told = f"queue {queue!r} was read up to {position.offset} and is gone{unsure}"
                self._loss(NoSuchQueue(f"{told}; {_ALLOW}"))
            elif _anew(position, facts):
                self._loss(_made_anew(facts, position))
                continue
            stands[queue] = position
        for queue, facts in found.items():
            if queue not in stands and (self._target is None or queue in self._target):
                self._refuse_unknown_begin(facts)
                stands[queue] = QueuePosition(facts.begin, None, facts.log_id, facts.incarnation)
        return stands

    def _refuse_unknown_begin(self, facts: QueueFacts) -> None:
        if facts.begin_unknown and self.options.fail_on_data_loss:
            raise BeginUnknown(f"{facts.begin_unknown}; start the query again once it is back", begin=facts.begin)

    def _loss(self, error: MirrorlogError) -> None:
        loss(error, fail_on_data_loss=self.options.fail_on_data_loss)

    # --- What there is to read ------------------------------------------------------------------------------------

    def _backlogs(
        self, lookup: Lookup, queues: Iterable[QueueFacts], stands: Mapping[str, QueuePosition]
    ) -> dict[str, Backlog]:
        """Of the queues that have moved on, or whose position must."""
        backlogs = {}
        for facts in queues:
            position, following = stands.get(facts.name), self._until(facts)
            if position is None or following is None:
                continue
            backlog = self._backlog(lookup, facts, position, following)
            if backlog.end != position.offset:
                backlogs[facts.name] = backlog
        return backlogs

    def _until(self, facts: QueueFacts) -> int | None:
        """Where to stop, with availableNow; None for a queue that was not there when it began."""
        if self._target is None:
            return facts.next
        target = self._target.get(facts.name)
        return None if target is None else min(facts.next, target.offset)

    def _backlog(self, lookup: Lookup, facts: QueueFacts, position: QueuePosition, following: int) -> Backlog:
        if position.offset > facts.next:
            return Backlog((), self._beyond(facts, position.offset))
        first = self._not_freed(facts, position.offset)
        if following <= first:
            return Backlog((), first)
        look = self._must_look(lookup, facts, position, following - first)
        gaps = gaps_of(lookup, facts, first, following) if look else []
        if gaps and self.options.fail_on_data_loss:
            if gaps[0].first == first:
                raise lost(facts.name, gaps[0])
            # What stands before it is read; then the stream ends.
            following, gaps = gaps[0].first, []
        for gap in gaps:
            self._loss(lost(facts.name, gap))
        return Backlog(tuple(between(first, following, gaps)), following)

    def _must_look(self, lookup: Lookup, facts: QueueFacts, position: QueuePosition, width: int) -> bool:
        """Whether there may be gaps. Under an epoch that is new here the position's history is looked at, too."""
        now = facts.log_id, facts.epoch
        if facts.epoch and self._checked.get(facts.name) == now:
            return width >= _WIDE
        check_histories(lookup, [(facts, position)], fail_on_data_loss=self.options.fail_on_data_loss)
        self._checked[facts.name] = now
        return True

    def _not_freed(self, facts: QueueFacts, first: int) -> int:
        if first >= facts.begin:
            return first
        self._refuse_unknown_begin(facts)
        self._loss(freed(facts, first))
        return facts.begin

    def _beyond(self, facts: QueueFacts, offset: int) -> int:
        """Where to go on for who stands above all that is confirmed: perhaps nobody who knows better answers now."""
        if not facts.current or facts.silent_master is not None:
            return offset
        self._loss(beyond(facts, offset))
        return facts.next

    # --- How much of it -------------------------------------------------------------------------------------------

    def _ends(self, backlogs: Mapping[str, Backlog], limit: ReadLimit) -> dict[str, int]:
        """Where each queue's part of the trigger ends."""
        available = sum(map(len, backlogs.values()))
        if not isinstance(limit, ReadAllAvailable) and self._target is None:
            idle_ms = None if self._triggered_at is None else (self._now() - self._triggered_at) * 1_000
            if waits(self.options.limits, available, idle_ms=idle_ms):
                return {}
        records_max = limit.max_rows if isinstance(limit, ReadMaxRows) else available
        given = shares(max(1, records_max), [len(backlog) for backlog in backlogs.values()], self._triggers)
        return {
            queue: backlog.after(share) if share else backlog.end
            for (queue, backlog), share in zip(backlogs.items(), given, strict=True)
            if share or not len(backlog)
        }

    # --- What lies between two positions --------------------------------------------------------------------------

    def _pieces(
        self, lookup: Lookup, facts: QueueFacts | None, queue: str, start: QueuePosition, end: QueuePosition
    ) -> list[QueueRange]:
        if facts is None:
            self._loss(NoSuchQueue(f"queue {queue!r} is to be read up to {end.offset} and is gone; {_ALLOW}"))
            return []
        if _anew(end, facts):
            self._loss(_made_anew(facts, end))
            return []
        following = end.offset
        if following > facts.next and self._beyond(facts, following) != following:
            following = facts.next
        first = self._not_freed(facts, start.offset)
        if first >= following:
            return []
        whole = facts.range(first, following)
        if not self._must_look(lookup, facts, start, following - first):
            return facts.in_logs(whole)
        gaps = gaps_of(lookup, facts, first, min(following, facts.next))
        for gap in gaps:
            self._loss(lost(queue, gap))
        dense = [replace(whole, first=one, next=other) for one, other in between(first, following, gaps)]
        return [piece for each in dense for piece in facts.in_logs(each)]


_ALLOW: Final = "set failOnDataLoss to false to go on without it"


def _end(facts: QueueFacts) -> QueuePosition:
    return QueuePosition(facts.next, None, facts.log_id, facts.incarnation)


def _anew(position: QueuePosition, facts: QueueFacts) -> bool:
    return position.incarnation not in (None, facts.incarnation)


def _made_anew(facts: QueueFacts, position: QueuePosition) -> HistoryChanged:
    return HistoryChanged(
        f"queue {facts.name!r} was read up to {position.offset}; it was deleted and made anew since (incarnation "
        f"{position.incarnation}, now {facts.incarnation}); set failOnDataLoss to false to read the new one from its "
        "begin"
    )


def _with_ids(given: Iterable[tuple[QueueFacts, QueuePosition]]) -> dict[str, QueuePosition]:
    """As they were given, so that what is wrong with them stays known; of this queue."""
    return {facts.name: _with_ids_of(facts, position) for facts, position in given}


def _with_ids_of(facts: QueueFacts, position: QueuePosition) -> QueuePosition:
    here = position.log_id if position.log_id in facts.logs else facts.log_at(position.offset - 1)
    return replace(position, log_id=here, incarnation=facts.incarnation)
