"""The logs that a node holds, as they come and go: whom a frame, a request or a measurement concerns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.cluster.state.placements import Span
from mirrorlog.errors import MirrorlogError, NoSuchQueue, QueueMoving
from mirrorlog.queues.queue_table import IDS_PER_LOG

_FOUND_MAX: Final = 100_000


class HostedLogs:
    """By id, and by the number that their queues' ids tell. Iterating gives those that are served, as they came; a
    damaged copy is none of them until it is repaired."""

    def __init__(self) -> None:
        self._served: dict[str, HostedLog] = {}
        self._by_number: dict[int, HostedLog] = {}
        self._refused: dict[str, HostedLog] = {}
        self._found: dict[int, HostedLog] = {}
        """Where queues are that have moved, or were when they were last asked for."""
        self.why_elsewhere: Callable[[int], MirrorlogError | None] = _not_known
        """What is said of a log with this number that is none of this node's; see `ports.ClusterView`."""
        self.spans: Mapping[str, Sequence[Span]] = {}
        """Of queues that have moved; see `ports.ClusterView`. Set with each decision, for each frame looks at it."""

    def __iter__(self) -> Iterator[HostedLog]:
        return iter([log for log in self._served.values() if log.replica.damage is None])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def opened(self) -> int:
        """How many copies are open."""
        return len(self._served)

    def add(self, log: HostedLog) -> None:
        """A log that was opened, or that its node refuses to serve."""
        if log.state is HostedState.UNAVAILABLE:
            self._refused[str(log.log_id)] = log
            return
        self._served[str(log.log_id)] = log
        self._by_number[log.assignment.log_number] = log

    def remove(self, log: HostedLog) -> None:
        """It is reached no more; to close it is its owner's."""
        self._refused.pop(str(log.log_id), None)
        if self._served.pop(str(log.log_id), None) is not None:
            del self._by_number[log.assignment.log_number]
            self._found = {queue_id: found for queue_id, found in self._found.items() if found is not log}

    def get(self, log_id: str) -> HostedLog | None:
        """The log, if it is served. Raises why it is not, if it is one of this node's."""
        if (refused := self._refused.get(log_id)) is not None:
            raise refused.refusal()
        return _undamaged(self._served.get(log_id))

    def held(self, log_id: str) -> HostedLog | None:
        """The log, if this node has opened it, served or not."""
        return self._served.get(log_id) or self._refused.get(log_id)

    def of_queue(self, queue_id: int) -> HostedLog:
        """The log that has the queue; else one that it has left, or the one that gave out this id, if it did: that the
        queue is not there is for that log to say.

        Raises QueueMoving when the cluster has it in a log that is not here, whatever a copy here may not have heard,
        or have lost: no log but that takes anything for it. NoSuchQueue; NotMaster when others hold that log: it may
        have been here a moment ago; LogUnavailable when this node refuses to serve it, or all that hold it are down.
        """
        number = queue_id // IDS_PER_LOG
        log = self._by_number.get(number)
        # Asked for each frame: first where its id was given out, then where it was found before.
        for known in (log, self._found.get(queue_id)):
            if known is not None and known.replica.damage is None:
                queue = known.replica.queues.by_id.get(queue_id)
                if queue is not None and (not self.spans or _is_newest(known, self.spans.get(queue.name, ()))):
                    return known
        if (moved := self._moved_to(queue_id)) is not None:
            if len(self._found) >= _FOUND_MAX:  # also of queues that are deleted since
                self._found.clear()
            log = self._found[queue_id] = moved
        if log is not None and log.replica.damage is None:
            return log
        _undamaged(log)
        for refused in self._refused.values():
            if refused.assignment.log_number == number:
                raise refused.refusal()
        if (elsewhere := self.why_elsewhere(number)) is not None:
            raise elsewhere
        raise NoSuchQueue(
            f"no queue has the id {queue_id} in a log that this node holds; ask for the queue's metadata again"
        )

    def to_read(self, queue_id: int, queue_offset: int) -> HostedLog:
        """The log of those here that has this record of the queue; where none is known to have it, as `of_queue`.

        By the cluster's spans: a log that the queue has come back to has some records from before what is in another
        one, and some from behind it. Where these are not known here yet: by what the logs say, each of its own."""
        try:
            log = self.of_queue(queue_id)
        except QueueMoving as elsewhere:
            return self._to_read_of_former(queue_id, queue_offset, elsewhere)
        moves = log.replica.queues.moves
        if queue_offset >= moves.firsts.get(queue_id, 0) and queue_id not in moves.left:
            return log
        if (span := self._span(queue_id, queue_offset)) is not None:
            here = self.get(span.log_id) if not span.ended else None
            if here is not None and here.replica.queues.keeps(queue_id):
                return here
            if span.ended:
                return log  # it says where the queue begins
        spans = [
            (each.replica.queues.moves.left[queue_id].next_queue_offset, each)
            for each in self
            if each.replica.queues.moves.has_left_there(queue_id, queue_offset)
        ]
        return min(spans, key=lambda span: span[0])[1] if spans else log

    def _to_read_of_former(self, queue_id: int, queue_offset: int, elsewhere: QueueMoving) -> HostedLog:
        """The log that the queue is in is not here. Raises `elsewhere` for a record that is in no log here."""
        span = self._span(queue_id, queue_offset)
        log = self.get(span.log_id) if span is not None and not span.ended else None
        if log is None or not log.replica.queues.keeps(queue_id):
            raise elsewhere
        return log

    def with_records(self, log_id: str, queue: str) -> tuple[HostedLog, int]:
        """That log and the queue's id, when the queue is there, or has left records there. Raises QueueMoving when that
        is not so, LogUnavailable when this node refuses to serve the log."""
        log = self.get(log_id)
        if log is not None and (there := log.replica.queues.get(queue)) is not None:
            return log, there.queue_id
        queue_id = log.replica.queues.moves.id_left_as(queue) if log is not None else None
        if log is None or queue_id is None:
            raise QueueMoving(
                f"no records of queue {queue!r} are here in a log {log_id[:64]!r}; ask for its spans again"
            )
        return log, queue_id

    def _span(self, queue_id: int, queue_offset: int) -> Span | None:
        """The one that holds this record of a queue, as far as the cluster's spans are known here."""
        name = next((name for log in self if (name := _name_in(log, queue_id))), "")
        spans = self.spans.get(name, ())
        return next((span for span in reversed(spans) if span.first <= queue_offset), None)

    def _moved_to(self, queue_id: int) -> HostedLog | None:
        """The log that the queue has come to, else one that it has left, of those here. Asked for nothing that is where
        its id was given out, but for a copy there which may not have heard that it has left.

        Copies that are behind, or have lost that it left, may have it too, and nothing is taken for it there."""
        there = {str(log.log_id): log for log in self if queue_id in log.replica.queues.by_id}
        for known in there.values():
            if not (spans := self.spans.get(known.replica.queues.by_id[queue_id].name)):
                return known
            if (newest := spans[-1].log_id) not in there:
                raise QueueMoving(
                    f"queue {queue_id} is in log {newest}; ask for its place again", queue_id=queue_id, log=newest
                )
            return there[newest]
        return next((log for log in self if log.replica.queues.moves.knows(queue_id)), None)

    @property
    def refused(self) -> list[HostedLog]:
        """Those that this node refuses to serve, each with its `error`."""
        return [*self._refused.values(), *(log for log in self._served.values() if log.replica.damage is not None)]

    def everyone(self) -> list[HostedLog]:
        """Served or not."""
        return [*self._served.values(), *self._refused.values()]


def _not_known(log_number: int) -> MirrorlogError | None:
    """Of no cluster."""
    return None


def _name_in(log: HostedLog, queue_id: int) -> str:
    """The name of a queue that is in a log, or has left records there; else empty."""
    queues = log.replica.queues
    queue = queues.by_id.get(queue_id)
    return queue.name if queue is not None else queues.moves.left_name(queue_id)


def _is_newest(log: HostedLog, spans: Sequence[Span]) -> bool:
    """Whether a queue with these spans is in a log, and in no other one since."""
    return not spans or spans[-1].log_id == str(log.log_id)


def _undamaged(log: HostedLog | None) -> HostedLog | None:
    """Raises what is wrong with a damaged copy: until it is repaired nobody is served from it."""
    if log is not None and log.replica.damage is not None:
        raise log.refusal()
    return log
