"""What each task of a read is to read: queues, their ranges of queue offsets, and what narrows them."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import InputPartition

from mirrorlog.spark.options import AtTime, Offsets, SourceOptions
from mirrorlog.spark.plan import QueueFacts, QueueRange, TimeOffsets, narrowed, no_such_queue, ranges, tasks
from mirrorlog.spark.positions import QueuePosition
from mirrorlog.spark.reading.filters import ALL_ROWS, Conditions
from mirrorlog.spark.reading.history import check_histories, without_gaps
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
        for piece in without_gaps(lookup, named[each.queue], each, fail_on_data_loss=options.fail_on_data_loss)
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
