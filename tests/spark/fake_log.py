"""A log that answers what planning asks, as a plain list of stretches: tests change it as failovers and losses do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, read_header, stamp
from mirrorlog.errors import PositionLost
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueueFacts, QueuePlace, QueueSpan, Seen

LOG_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
OTHER_LOG = "00000000-85b5-54b0-b99c-56b1e8d06aa8"


@dataclass
class FakeQueue:
    """`stretches`: (first, next, epoch) of the records that are left; `goes_on_at`: where the next record will stand,
    if that is behind a gap."""

    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    incarnation: str = "first"
    log_id: str = LOG_ID
    begin: int = 0
    goes_on_at: int = 0
    current: bool = True
    silent_master: str | None = None
    spans: tuple[QueueSpan, ...] = ()

    @property
    def next(self) -> int:
        return max([self.goes_on_at, self.begin, *(following for _, following, _ in self.stretches)])

    def publish(self, count: int, *, epoch: int = 1) -> None:
        self.stretches.append((self.next, self.next + count, epoch))

    def lose_from(self, offset: int) -> None:
        """As a declared loss does: the tail is gone, and the queue goes on far behind."""
        end = self.next
        self.stretches = [(first, min(following, offset), epoch) for first, following, epoch in self.stretches]
        self.stretches = [stretch for stretch in self.stretches if stretch[0] < stretch[1]]
        self.goes_on_at = end + 2**33

    def free_below(self, begin: int) -> None:
        self.begin = begin

    def move(self, log_id: str) -> None:
        """What is published from now on stands in that log."""
        self.spans = (*(self.spans or (QueueSpan(self.log_id, 0),)), QueueSpan(log_id, self.next))
        self.log_id = log_id

    def seen(self, at: int) -> Seen:
        for first, following, epoch in self.stretches:
            if max(first, self.begin) <= at < following:
                return header(epoch)
        if at < self.begin or at >= self.next:
            return None
        ends = [first for first, _, _ in self.stretches if first > at]
        return PositionLost(f"{at} is lost", go_on_at=min(ends, default=self.goes_on_at))


@dataclass
class FakeLog:
    """A `Lookup`. `epoch`: the newest; a failover raises it. `looks`: the places that were asked for."""

    queues: dict[str, FakeQueue] = field(default_factory=dict)
    epoch: int = 1
    looks: list[tuple[str, int]] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)

    def add(self, name: str, count: int = 0) -> FakeQueue:
        queue = self.queues[name] = FakeQueue()
        if count:
            queue.publish(count)
        return queue

    @contextmanager
    def opened(self, options: SourceOptions) -> Iterator[FakeLog]:
        yield self

    def facts(self, queues: Sequence[str] | None) -> list[QueueFacts]:
        names = sorted(self.queues) if queues is None else queues
        return [self._facts(name, self.queues[name]) for name in names if name in self.queues]

    def times(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """A record's append time is its queue offset."""
        return {
            name: min(max(time_us, self.queues[name].begin), self.queues[name].next) for name, time_us in wanted.items()
        }

    def headers_at(self, places: Sequence[QueuePlace]) -> list[Seen]:
        self.looks += [(place.facts.name, place.queue_offset) for place in places]
        return [self.queues[place.facts.name].seen(place.queue_offset) for place in places]

    def _facts(self, name: str, queue: FakeQueue) -> QueueFacts:
        return QueueFacts(
            cluster_id="c",
            name=name,
            incarnation=queue.incarnation,
            log_id=queue.log_id,
            queue_id=1,
            begin=queue.begin,
            next=queue.next,
            silent_master=queue.silent_master,
            epoch=self.epoch,
            current=queue.current,
            spans=queue.spans,
            former_logs=tuple(span.log_id for span in queue.spans),
        )


def header(epoch: int) -> BatchHeader:
    batch = encode_batch([Record(b"x")], queue_id=1)
    stamp(batch, log_offset=0, base_queue_offset=0, append_time_us=0, epoch=epoch, flags=0, seed=1)
    return read_header(batch)
