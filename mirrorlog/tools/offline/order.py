"""Whether batches follow one another as those of one log must. Pure: batches in, faults out.

Checksums tell that a batch is what was written; this tells that what was written makes sense:

- the queue offsets of a queue are dense (copied batches keep older ones and are left out);
- a producer's sequence follows, and its epoch does not go back;
- append times do not go back (copied batches keep theirs);
- changes can be read, and an epoch's first batch says the epoch that it stands in;
- a state checkpoint says of queues and producers what the log said before it.

Where a walk begins, or goes on behind bad bytes, what is not known is believed. A queue that goes on there at a higher
offset tells what was lost: that is reported, exactly, and is no fault of its own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from mirrorlog.commitlog.format.header import NO_PRODUCER, BatchHeader, Flag, Kind
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.errors import BadBatch
from mirrorlog.tools.offline.batch_view import read_changes

FAULTS_MAX: Final = 1000
"""Faults, and lost stretches, that are kept; further ones are only counted."""

PRODUCERS_MAX: Final = 200_000
"""Producers that are remembered, those that wrote last."""

_NUMBERED_MAX: Final = int(Kind.DATA)
_COPIED: Final = int(Flag.COPIED)


@dataclass(frozen=True, slots=True)
class Fault:
    """A batch whose bytes are right and which cannot stand here."""

    log_offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.log_offset}: {self.what}"


@dataclass(frozen=True, slots=True)
class Lost:
    """Queue offsets [first, next) that stood in bad bytes below the log offset `before`."""

    queue_id: int
    first: int
    next: int
    before: int

    def __str__(self) -> str:
        return f"queue {self.queue_id}: {self.first}..{self.next}"


@dataclass(slots=True)
class QueueSeen:
    """Queue offsets [first, next) were met. `gap`: how many bad ranges had been met then."""

    first: int
    next: int
    gap: int
    name: str = ""


class _Producing(NamedTuple):
    """How far a producer has come in a queue."""

    epoch: int
    next_sequence: int
    gap: int


@dataclass(slots=True)
class Order:
    """Follows one log. `state`: the log offset at which a complete state checkpoint must begin; `state_end`: where that
    one ends, once it was met."""

    state: int = 0
    faults: list[Fault] = field(default_factory=list)
    fault_count: int = 0
    lost: list[Lost] = field(default_factory=list)
    lost_count: int = 0
    queues: dict[int, QueueSeen] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    state_end: int | None = None
    start_moved: list[tuple[int, int]] = field(default_factory=list)
    """(end of the batch, log offset) of the newest decisions on the log's start offset."""

    _gaps: int = 0
    _last_time_us: int = -(2**63)
    _last_epoch: int = 0
    _checkpoint_at: int | None = None
    _producers: OrderedDict[tuple[int, int], _Producing] = field(default_factory=OrderedDict)

    def batch(self, header: BatchHeader, batch: memoryview) -> None:
        """An OnBatch: the next good batch."""
        if not header.flags & _COPIED:
            if header.append_time_us < self._last_time_us:
                self._fault(header, f"append time {header.append_time_us} after {self._last_time_us}")
            self._last_time_us = max(self._last_time_us, header.append_time_us)
            if header.kind <= _NUMBERED_MAX:
                self._queue(header)
                if header.producer_id != NO_PRODUCER:
                    self._producer(header)
        if header.kind > _NUMBERED_MAX:
            self._changes(header, batch)
        self._last_epoch = header.epoch

    def gap(self, bad: Range) -> None:
        """An OnBad: bytes that are no batch come before the next one."""
        self._gaps += 1
        self._checkpoint_at = None

    # --- inside ---

    def _fault(self, header: BatchHeader, what: str) -> None:
        self.fault_count += 1
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(Fault(header.log_offset, what))

    def _queue(self, header: BatchHeader) -> None:
        base = header.base_queue_offset
        seen = self.queues.get(header.queue_id)
        if seen is None:
            self.queues[header.queue_id] = QueueSeen(base, header.next_queue_offset, self._gaps)
            return
        self._goes_on(header, seen, base, header.queue_id)
        seen.next = header.next_queue_offset

    def _goes_on(self, header: BatchHeader, seen: QueueSeen, base: int, queue_id: int) -> None:
        """The queue's next record is `base`, as a batch or a checkpoint says."""
        if base > seen.next and seen.gap < self._gaps:
            self.lost_count += 1
            if len(self.lost) < FAULTS_MAX:
                self.lost.append(Lost(queue_id, seen.next, base, header.log_offset))
        elif base != seen.next:
            self._fault(header, f"queue {queue_id} goes on at queue offset {base} and not at {seen.next}")
        seen.gap = self._gaps

    def _producer(self, header: BatchHeader) -> None:
        key = (header.producer_id, header.queue_id)
        held = self._producers.get(key)
        if held is not None:
            self._sequence(header, held)
        self._remember(key, _Producing(header.producer_epoch, header.next_sequence, self._gaps))

    def _sequence(self, header: BatchHeader, held: _Producing) -> None:
        who = f"producer {header.producer_id} in queue {header.queue_id}"
        unknown = held.gap < self._gaps
        if header.producer_epoch < held.epoch:
            self._fault(header, f"{who}: epoch {header.producer_epoch} after {held.epoch}")
        elif header.producer_epoch > held.epoch:
            if header.sequence and not unknown:
                self._fault(header, f"{who}: epoch {header.producer_epoch} begins at sequence {header.sequence}")
        elif header.sequence < held.next_sequence or (header.sequence > held.next_sequence and not unknown):
            self._fault(header, f"{who}: sequence {header.sequence} and not {held.next_sequence}")

    def _remember(self, key: tuple[int, int], producing: _Producing) -> None:
        self._producers[key] = producing
        self._producers.move_to_end(key)
        if len(self._producers) > PRODUCERS_MAX:
            self._producers.popitem(last=False)

    # --- changes ---

    def _changes(self, header: BatchHeader, batch: memoryview) -> None:
        try:
            for change in read_changes(header, batch):
                follow = _FOLLOWED.get((header.kind, change["type"]))
                if follow is not None:
                    follow(self, header, change)
        except BadBatch as error:
            self._fault(header, error.message)
        except (KeyError, TypeError, ValueError) as error:
            self._fault(header, f"a change that does not fit: {error!r}")

    def _epoch_started(self, header: BatchHeader, change: dict[str, Any]) -> None:
        if change["epoch"] != header.epoch or self._last_epoch == header.epoch:
            self._fault(header, f"the start of epoch {change['epoch']} stands within epoch {header.epoch}")

    def _queue_declared(self, header: BatchHeader, change: dict[str, Any]) -> None:
        self.names[change["queue_id"]] = str(change["name"])

    def _start_moved(self, header: BatchHeader, change: dict[str, Any]) -> None:
        if change["log_offset"] > header.log_offset:
            self._fault(header, f"the begin moves to {change['log_offset']}, above this place")
        self.start_moved = [*self.start_moved[-99:], (header.next_log_offset, change["log_offset"])]

    def _offset_jump(self, header: BatchHeader, change: dict[str, Any]) -> None:
        """After a loss that was declared every queue goes on far above."""
        for queue in self.queues.values():
            queue.next = max(queue.next, change["go_on_at"])

    def _checkpoint_began(self, header: BatchHeader, change: dict[str, Any]) -> None:
        self._checkpoint_at = header.log_offset

    def _checkpoint_ended(self, header: BatchHeader, change: dict[str, Any]) -> None:
        if change["began_at"] == self._checkpoint_at == self.state:
            self.state_end = header.next_log_offset
        self._checkpoint_at = None

    def _queue_state(self, header: BatchHeader, change: dict[str, Any]) -> None:
        queue_id, following = change["queue_id"], change["next_queue_offset"]
        self.names[queue_id] = str(change["name"])
        seen = self.queues.get(queue_id)
        if seen is None:
            self.queues[queue_id] = QueueSeen(following, following, self._gaps)
            return
        self._goes_on(header, seen, following, queue_id)
        seen.next = following

    def _producer_state(self, header: BatchHeader, change: dict[str, Any]) -> None:
        key = (change["producer_id"], change["queue_id"])
        epoch, following = change["producer_epoch"], change["next_sequence"]
        held = self._producers.get(key)
        if held is not None and held.gap == self._gaps and (epoch, following) != held[:2]:
            self._fault(
                header,
                f"producer {key[0]} in queue {key[1]} is said to stand at epoch {epoch}, sequence {following} and not "
                f"at {held.epoch}, {held.next_sequence}",
            )
        self._remember(key, _Producing(epoch, following, self._gaps))


_Follow = Callable[[Order, BatchHeader, dict[str, Any]], None]
_FOLLOWED: Final[dict[tuple[int, str], _Follow]] = {
    (Kind.CONTROL, "EpochStarted"): Order._epoch_started,
    (Kind.CONTROL, "QueueDeclared"): Order._queue_declared,
    (Kind.CONTROL, "BeginMoved"): Order._start_moved,
    (Kind.CONTROL, "OffsetsLeapt"): Order._offset_jump,
    (Kind.CHECKPOINT, "CheckpointBegan"): Order._checkpoint_began,
    (Kind.CHECKPOINT, "QueueState"): Order._queue_state,
    (Kind.CHECKPOINT, "ProducerState"): Order._producer_state,
    (Kind.CHECKPOINT, "CheckpointEnded"): Order._checkpoint_ended,
}
