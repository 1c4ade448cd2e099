"""What the logs of a simulated cluster say of records, read from the disks of its nodes when all is over: what was
stored and when, and why records are done that nobody has acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mirrorlog.commitlog.format.attributes import Attributes, attributes_of
from mirrorlog.commitlog.format.body import Header
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, Kind, is_envelope, read_header
from mirrorlog.queues.changes import (
    Addressed,
    ArrivalDropped,
    Change,
    ForwardingStarted,
    GroupReset,
    PieceForwarded,
    QueueArrived,
    QueueArriving,
    QueueOpened,
    Settled,
    decode_changes,
)
from mirrorlog.queues.checkpoint_states import decode_checkpoint
from mirrorlog.queues.groups.table import GroupTable

_Stay = tuple[int, int]
"""The id of a queue, and the number of the move by which it came to a log, 0 where it was declared."""


UNACKED: Final = frozenset({"expired", "dropped", "limit", "redriven", "gone"})
"""Reasons for which records are done that nobody has settled."""
GROUPS_MAX: Final = 1_000


class Stored(NamedTuple):
    """A record. `appended_us`: of its batch."""

    appended_us: int
    attributes: Attributes
    value: bytes | None
    headers: Sequence[Header] = ()


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
    """`records`: by queue offset; `ended`: all that was ever settled, in order; `stands`: by group, what of it was
    settled since its last reset, with which each begins; `leaving`: steps by which records leave, with their log
    offsets and times (µs); `behind`: groups that were made, or set back, with what all groups had settled from there
    on: [first, until); `reset`: groups that were; `came`: from which logs it came, and with which record on."""

    records: dict[int, Stored] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)
    stands: dict[str, list[Ended]] = field(default_factory=dict)
    leaving: list[tuple[int, int, ForwardingStarted | Addressed | PieceForwarded]] = field(default_factory=list)
    behind: list[tuple[str, int, int]] = field(default_factory=list)
    reset: set[str] = field(default_factory=set)
    came: list[tuple[str, int]] = field(default_factory=list)

    def go_on(self, later: LoggedQueue) -> None:
        """In another log."""
        self.records.update(later.records)
        self.ended += later.ended
        self.leaving += later.leaving
        self.behind += later.behind
        self.reset |= later.reset
        self.came += later.came
        for group in later.reset:
            self.stands[group] = []
        for group, ended in later.stands.items():
            self.stands.setdefault(group, []).extend(ended)

    def settle(self, header: BatchHeader, batch: bytes) -> None:
        """Changes of groups were appended."""
        for change in decode_changes(batch):
            if isinstance(change, GroupReset):
                self.stands[change.group] = []
                self.reset.add(change.group)
            elif isinstance(change, Settled):
                pairs = zip(change.ranges[::2], change.ranges[1::2], strict=True)
                ended = [Ended(change.group, *pair, change.why, header.append_time_us) for pair in pairs]
                self.ended += ended
                self.stands.setdefault(change.group, []).extend(ended)

    def may_be_plain(self, group: str, offset: int) -> bool:
        """Whether that group may have been given this record without its attributes."""
        return any(each == group and first <= offset < until for each, first, until in self.behind)


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


def logged(*logs: Iterable[tuple[int, bytes]]) -> dict[int, LoggedQueue]:
    """All that one copy of each log says, by queue id. A queue that moves goes on in the next one."""
    stays: dict[_Stay, LoggedQueue] = defaultdict(LoggedQueue)
    for batches in logs:
        for stay, known in _stays(batches).items():
            stays[stay].go_on(known)
    found: dict[int, LoggedQueue] = defaultdict(LoggedQueue)
    for queue_id, move in sorted(stays):
        found[queue_id].go_on(stays[queue_id, move])
    return found


def _stays(batches: Iterable[tuple[int, bytes]]) -> dict[_Stay, LoggedQueue]:
    found: dict[_Stay, LoggedQueue] = defaultdict(LoggedQueue)
    came_by: dict[int, int] = {}
    arriving = set[int]()
    groups = GroupTable(per_queue_max=GROUPS_MAX, is_arriving=arriving.__contains__)
    for at, batch in flattened(batches):
        header = read_header(batch)
        queue = found[header.queue_id, came_by.get(header.queue_id, 0)]
        if header.kind == Kind.DATA:
            queue.records.update(_records(header, batch))
        elif header.kind == Kind.QUEUE_STATE:
            queue.settle(header, batch)
            queue.behind += _behind(header, batch, groups)
            changes = decode_changes(batch)
            groups.follow(header, changes)
            queue.leaving += [
                (at, header.append_time_us, change)
                for change in changes
                if isinstance(change, ForwardingStarted | Addressed | PieceForwarded)
            ]
        elif header.kind == Kind.CONTROL:
            changes = decode_changes(batch)
            note_arrivals(changes, arriving)
            came_by.update((each.queue_id, each.move) for each in changes if isinstance(each, QueueOpened))
            for each in changes:
                if isinstance(each, QueueArriving):
                    found[each.queue_id, each.move].came.append((each.source, each.first))
            groups.follow(header, changes)
        elif header.kind == Kind.CHECKPOINT:
            groups.restore(header, decode_checkpoint(batch))
        groups.confirm(header.next_log_offset)
    return found


def note_arrivals(changes: Iterable[Change], arriving: set[int]) -> None:
    """Which queues are on their way to a log behind these changes."""
    for change in changes:
        if isinstance(change, QueueArriving):
            arriving.add(change.queue_id)
        elif isinstance(change, QueueArrived | ArrivalDropped):
            arriving.discard(change.queue_id)


def _records(header: BatchHeader, batch: bytes) -> Iterator[tuple[int, Stored]]:
    attributes = attributes_of(header, batch)
    body = parse_batch_body(batch)
    for index in range(header.record_count):
        record = body.record(index)
        value = None if record.value is None else bytes(record.value)
        stored = Stored(header.append_time_us, attributes, value, record.headers)
        yield header.base_queue_offset + index, stored


def _behind(header: BatchHeader, batch: bytes, groups: GroupTable) -> Iterator[tuple[str, int, int]]:
    """`groups`: as they were before it."""
    floor = groups.whole_floors([header.queue_id]).get(header.queue_id, 0)
    for change in decode_changes(batch):
        if isinstance(change, GroupReset) and change.queue_offset < floor:
            yield change.group, change.queue_offset, floor
