"""What each task of a read is to read: queues, their ranges of queue offsets, and what narrows them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from pyspark.sql.datasource import InputPartition

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import MirrorlogError, PositionLost
from mirrorlog.spark.errors import HistoryChanged
from mirrorlog.spark.options import AtTime, Offsets, SourceOptions
from mirrorlog.spark.plan import QueueFacts, QueuePlace, QueueRange, TimeOffsets, narrowed, no_such_queue, ranges, tasks
from mirrorlog.spark.positions import QueuePosition, broken_history
from mirrorlog.spark.reading.declared_gaps import Gap, answered, between, joined, search
from mirrorlog.spark.reading.filters import ALL_ROWS, Conditions
from mirrorlog.spark.reading.lookup import Lookup


class QueuePartition(InputPartition):
    """What one task reads."""

    def __init__(self, wanted: QueueRange) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def planned(options: SourceOptions, lookup: Lookup, conditions: Conditions = ALL_ROWS) -> list[QueueRange]:
    """What each task of a batch read is to read. Raises as `QueueReader.partitions`."""
    queues = subscribed(options, lookup, conditions)
    found = TimeOffsets(times_of(options.starting, queues, lookup), times_of(options.ending, queues, lookup))
    given = starting_positions(options.starting, queues)
    check_histories(lookup, given, fail_on_data_loss=options.fail_on_data_loss)
    named = {facts.name: facts for facts in queues}
    whole = [
        piece
        for each in narrowed(ranges(options, queues, found), conditions.offsets)
        for dense in without_gaps(lookup, named[each.queue], each, fail_on_data_loss=options.fail_on_data_loss)
        for piece in named[each.queue].in_logs(dense)
    ]
    return tasks(options, whole)


def subscribed(options: SourceOptions, lookup: Lookup, conditions: Conditions = ALL_ROWS) -> list[QueueFacts]:
    """The queues that are read. Raises NoSuchQueue for one that was named and is not there."""
    if options.pattern is not None:
        return [
            each for each in lookup.facts(None) if options.subscribes(each.name) and conditions.has_topic(each.name)
        ]
    names = [name for name in options.queues if conditions.has_topic(name)]
    queues = lookup.facts(names) if names else []
    if missing := sorted(set(names) - {facts.name for facts in queues}):
        raise no_such_queue(missing, lookup.silent)
    return queues


def times_of(offsets: Offsets, queues: Sequence[QueueFacts], lookup: Lookup) -> dict[str, int]:
    """Where the times that an option names are, by queue; nothing for options that name none."""
    if not isinstance(offsets, AtTime):
        return {}
    return lookup.times({facts.name: offsets.of(facts.name) for facts in queues})


def starting_positions(offsets: Offsets, queues: Sequence[QueueFacts]) -> list[tuple[QueueFacts, QueuePosition]]:
    """The queues for which a position was given, and not just a number."""
    if isinstance(offsets, str | AtTime):
        return []
    given = [(facts, offsets.get(facts.name)) for facts in queues]
    return [(facts, position) for facts, position in given if isinstance(position, QueuePosition)]


# What planning finds out about positions and ranges: whether the log still has their history, and where it has gaps.
# Data loss is an error, or, when that is allowed, a line in the log.


logger: Final = logging.getLogger(__name__)


def positions_at(lookup: Lookup, wanted: Mapping[QueueFacts, int]) -> dict[str, QueuePosition]:
    """Positions at queue offsets, with the log of the record below each, and its epoch where there is one."""
    below = headers_below(lookup, wanted.items())
    epochs = {queue: header.epoch for queue, header in below.items()}
    return {
        facts.name: QueuePosition(at, epochs.get(facts.name), facts.log_at(at - 1), facts.incarnation)
        for facts, at in wanted.items()
    }


def headers_below(lookup: Lookup, stands: Iterable[tuple[QueueFacts, int]]) -> dict[str, BatchHeader]:
    """Of the batches with the last record below each queue offset, by queue; nothing where the log has none there."""
    places = [QueuePlace(facts, at - 1) for facts, at in stands if facts.begin < at <= facts.next]
    seen = lookup.headers_at(places) if places else []
    return {
        place.facts.name: header for place, header in zip(places, seen, strict=True) if isinstance(header, BatchHeader)
    }


def check_histories(
    lookup: Lookup, stands: Sequence[tuple[QueueFacts, QueuePosition]], *, fail_on_data_loss: bool
) -> None:
    """Raises HistoryChanged for a position that was reached in another history than the log has now."""
    known = [(facts, position.offset) for facts, position in stands if position.epoch is not None]
    below = headers_below(lookup, known)
    for facts, position in stands:
        header = below.get(facts.name)
        reason = broken_history(
            position,
            log_id=facts.log_at(position.offset - 1),
            incarnation=facts.incarnation,
            below=header,
            former_logs=facts.logs,
        )
        if reason is not None:
            loss(
                HistoryChanged(f"queue {facts.name!r} at {position.offset}: {reason}; {_ADVICE}"),
                fail_on_data_loss=fail_on_data_loss,
            )


def without_gaps(lookup: Lookup, facts: QueueFacts, wanted: QueueRange, *, fail_on_data_loss: bool) -> list[QueueRange]:
    """What of the range has a record at each queue offset. Raises PositionLost naming a gap in it."""
    gaps = gaps_of(lookup, facts, wanted.first, wanted.next)
    for gap in gaps:
        loss(lost(wanted.queue, gap), fail_on_data_loss=fail_on_data_loss)
    return [
        replace(wanted, first=first, next=following) for first, following in between(wanted.first, wanted.next, gaps)
    ]


def gaps_of(lookup: Lookup, facts: QueueFacts, first: int, following: int) -> list[Gap]:
    """The declared losses among queue offsets `first` up to `following` (exclusive), cut to them, in order. One of a
    former log may be short: the queue went on behind it, in another one. So it is looked for in each by itself."""

    def go_on_at(queue_offset: int) -> int | None:
        (seen,) = lookup.headers_at([QueuePlace(facts, queue_offset)])
        return int(seen.details["go_on_at"]) if isinstance(seen, PositionLost) else None

    pieces = facts.in_logs(facts.range(first, following)) if first < following else []
    return joined(gap for each in pieces for gap in answered(search(each.first, each.next), go_on_at))


def lost(queue: str, gap: Gap) -> PositionLost:
    """For who was to read over a gap."""
    return PositionLost(
        f"queue {queue!r}: {gap.first} up to {gap.next} are lost, confirmed records perhaps: a loss of the log's "
        f"newest records was declared; go on at {gap.next} (startingOffsets), or set failOnDataLoss to false to leave "
        "them out",
        go_on_at=gap.next,
    )


def loss(error: MirrorlogError, *, fail_on_data_loss: bool) -> None:
    """Raises it, or says it."""
    if fail_on_data_loss:
        raise error
    logger.warning("data_loss_allowed code=%s: %s", error.code, error.message)


_ADVICE: Final = (
    "what was read of it may not be what it holds now; set failOnDataLoss to false to go on from there all the same"
)
