"""What planning asks of a log, whether it is asked of nodes or read from files.

A plan is made from few answers: which queues there are and from where to where, where a time is, and which batch stands
at a queue offset. `open_lookup` gives whoever answers them for the options.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from mirrorlog.errors import LogCorrupt, NoSuchQueue, OffsetOutOfRange, PositionLost
from mirrorlog.spark.errors import RecordsMissing
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueueFacts, QueuePlace, Seen

if TYPE_CHECKING:
    from mirrorlog.spark.offline import BadStretch, LogDirectories

logger: Final = logging.getLogger(__name__)


class Lookup(Protocol):
    """Every method blocks, and raises what nodes answer or files show: ConnectionLost, LogCorrupt, …

    `silent`: the nodes that did not answer when facts were asked for last; a queue that is missing may be theirs.
    """

    silent: Sequence[str]

    def facts(self, queues: Sequence[str] | None) -> list[QueueFacts]:
        """Of those that there are, in the order asked for; of all in the order of their names."""

    def times(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """By queue, the first queue offset appended at or after a time, µs UTC; the next one where there is none."""

    def headers_at(self, places: Sequence[QueuePlace]) -> list[Seen]:
        """Of the batches at places below what is confirmed."""


@contextmanager
def open_lookup(options: SourceOptions) -> Iterator[Lookup]:
    """Raises ConnectionLost, ConfigError for files of TLS that are none, and what a directory that is no log's raises.

    Not for use on an event loop.
    """
    if options.path is not None:
        from mirrorlog.spark.offline import LogDirectories

        yield FileLookup(LogDirectories.open(options.path), fail_on_bad=options.fail_on_data_loss)
        return
    from mirrorlog.spark.reading.nodes import NodeLookup

    with NodeLookup(options.servers, options.access, read_from=options.read_from) as lookup:
        yield lookup


class FileLookup:
    """Over log directories. `fail_on_bad`: where bad bytes may hide what a log says of its queues."""

    silent: Sequence[str] = ()

    def __init__(self, directories: LogDirectories, *, fail_on_bad: bool = True) -> None:
        self._directories = directories
        self._on_bad = None if fail_on_bad else _tell

    def facts(self, queues: Sequence[str] | None) -> list[QueueFacts]:
        """As of `Lookup`."""
        try:
            return self._directories.facts(queues, self._on_bad)
        except NoSuchQueue:
            return [facts for name in queues or () for facts in self._one(name)]

    def _one(self, queue: str) -> list[QueueFacts]:
        try:
            return self._directories.facts([queue], self._on_bad)
        except NoSuchQueue:
            return []

    def times(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """As of `Lookup`."""
        return {queue: self._directories.find_time(queue, time_us, self._on_bad) for queue, time_us in wanted.items()}

    def headers_at(self, places: Sequence[QueuePlace]) -> list[Seen]:
        """As of `Lookup`."""
        return [self._header_at(place) for place in places]

    def _header_at(self, place: QueuePlace) -> Seen:
        facts, at = place
        header = self._directories.header(facts.name, at)
        if header is not None:
            return header
        wanted = facts.range(at, at + 1)
        try:
            return next((batch.header for batch in self._directories.batches(wanted)), None)
        except PositionLost as lost:
            return lost
        except (OffsetOutOfRange, RecordsMissing, LogCorrupt):
            return None  # freed, or for the task to tell


def _tell(bad: BadStretch) -> None:
    logger.warning("log_damaged reason=%r", str(bad))
