"""What the logs of a simulated cluster say of records, read from the disks of its nodes when all is over: what was
stored and when, and why records are done that nobody has acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirrorlog.commitlog.attributes import Attributes, attributes_of
from mirrorlog.commitlog.body import parse_batch_body
from mirrorlog.commitlog.envelope import is_envelope
from mirrorlog.commitlog.format import HEADER_SIZE, BatchHeader, Kind, read_header
from mirrorlog.queues.changes import Settled, decode_changes

_Queue = tuple[str, int]
"""Log and queue id."""


UNACKED: Final = frozenset({"expired", "dropped", "limit"})
"""Reasons for which records are done that nobody has settled."""


class Stored(NamedTuple):
    """A record. `appended_us`: of its batch."""

    appended_us: int
    attributes: Attributes
    value: bytes | None


class Ended(NamedTuple):
    """Records that a change settled, and when that was appended."""

    group: str
    first: int
    until: int
    why: str
    at_us: int

    def among(self, records: Mapping[int, Stored]) -> list[tuple[int, Stored]]:
        """Those that are there; a gap that a loss has left is long."""
        if self.until - self.first > len(records):
            return [each for each in records.items() if self.first <= each[0] < self.until]
        return [(offset, records[offset]) for offset in range(self.first, self.until) if offset in records]


@dataclass(slots=True)
class LoggedQueue:
    """`records`: by queue offset."""

    records: dict[int, Stored] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)


def flattened(batches: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """What stands in envelopes comes in their place."""
    for at, batch in batches:
        header = read_header(batch)
        if not is_envelope(header):
            yield at, batch
            continue
        inner = HEADER_SIZE
        while inner < header.length:
            length = read_header(batch, inner).length
            yield at + inner, batch[inner : inner + length]
            inner += length


def logged(log_id: str, batches: Iterable[tuple[int, bytes]]) -> dict[_Queue, LoggedQueue]:
    """All that one copy of a log says, by queue."""
    found: dict[_Queue, LoggedQueue] = defaultdict(LoggedQueue)
    for _, batch in flattened(batches):
        header = read_header(batch)
        queue = log_id, header.queue_id
        if header.kind == Kind.DATA:
            found[queue].records.update(_records(header, batch))
        elif header.kind == Kind.QUEUE_STATE:
            found[queue].ended += _ended(header, batch)
    return found


def _records(header: BatchHeader, batch: bytes) -> Iterator[tuple[int, Stored]]:
    attributes = attributes_of(header, batch)
    values = parse_batch_body(batch).values
    for index in range(header.record_count):
        value = values[index]
        stored = Stored(header.append_time_us, attributes, None if value is None else bytes(value))
        yield header.base_queue_offset + index, stored


def _ended(header: BatchHeader, batch: bytes) -> Iterator[Ended]:
    for change in decode_changes(batch):
        if isinstance(change, Settled):
            pairs = zip(change.ranges[::2], change.ranges[1::2], strict=True)
            yield from (Ended(change.group, *pair, change.why, header.append_time_us) for pair in pairs)
