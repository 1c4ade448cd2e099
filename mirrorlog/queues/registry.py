"""The queues of a log and their groups' positions, built from the log's control and queue-state batches.

Declarations count from their append (a producer may write as soon as its declare was answered, also after the master
restarted and before it is confirmed again); positions count from their confirm, so that none points beyond what
survives. `cut` undoes what a truncation removed. Applying a batch twice equals applying it once (invariant 8).

Pure: batches in, state out; deciding to declare gives the batch to append.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mirrorlog.commitlog.format import BatchHeader, Buffer, Kind
from mirrorlog.errors import BadRequest, NoSuchQueue, Overloaded, QueueExists
from mirrorlog.queues.changes import PositionCommitted, QueueDeclared, decode_changes, encode_change

_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,255}")
_ARGUMENTS_MAX: Final = 100
_ARGUMENT_DEPTH_MAX: Final = 8


@dataclass(slots=True)
class Queue:
    """`declared_at`: log offset of its declaration."""

    name: str
    queue_id: int
    incarnation: str
    arguments: dict[str, Any]
    declared_at: int
    positions: dict[str, PositionCommitted] = field(default_factory=dict)


class QueueRegistry:
    """All queues of one log by name and id."""

    def __init__(self, *, queues_max: int, groups_max: int) -> None:
        self._queues_max = queues_max
        self._groups_max = groups_max
        self._by_name: dict[str, Queue] = {}
        self._by_id: dict[int, Queue] = {}
        self._unconfirmed: deque[tuple[int, int, PositionCommitted]] = deque()
        self._id_max = 0

    def __iter__(self) -> Iterator[Queue]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    # --- asking ---

    def find(self, name: str) -> Queue:
        """Raises NoSuchQueue."""
        queue = self._by_name.get(name)
        if queue is None:
            raise no_such_queue(name)
        return queue

    def get(self, name: str) -> Queue | None:
        return self._by_name.get(name)

    def find_id(self, queue_id: int) -> Queue:
        """Raises NoSuchQueue."""
        queue = self._by_id.get(queue_id)
        if queue is None:
            raise NoSuchQueue(f"no queue has the id {queue_id}", queue_id=queue_id)
        return queue

    def has_id(self, queue_id: int) -> bool:
        return queue_id in self._by_id

    # --- deciding ---

    def declare(self, name: str, arguments: Mapping[str, Any], *, incarnation: str = "") -> bytearray | None:
        """The batch that declares a queue, or None when it is there already with the same arguments.

        `incarnation`: a random text for the queue if it is new (see QueueDeclared).
        Raises BadRequest, QueueExists (naming the difference) or Overloaded.
        """
        if not _NAME.fullmatch(name):
            raise BadRequest("a queue's name has 1 to 255 characters and no control characters")
        if len(arguments) > _ARGUMENTS_MAX:
            raise BadRequest(f"{len(arguments)} arguments are above the limit of {_ARGUMENTS_MAX}")
        _check_arguments(arguments)
        there = self._by_name.get(name)
        if there is not None:
            _refuse_difference(there, arguments)
            return None
        if len(self._by_id) >= self._queues_max:
            raise Overloaded(f"this log has {self._queues_max} queues (limits.max_queues)", limit="max_queues")
        queue_id = self._id_max + 1
        return encode_change(
            QueueDeclared(name=name, queue_id=queue_id, incarnation=incarnation, arguments=dict(arguments))
        )

    def commit_position(self, name: str, change: PositionCommitted) -> bytearray:
        """The batch that stores a group's position. Raises NoSuchQueue, BadRequest or Overloaded."""
        queue = self.find(name)
        if not _NAME.fullmatch(change.group):
            raise BadRequest("a group's name has 1 to 255 characters and no control characters")
        if change.group not in queue.positions and len(queue.positions) >= self._groups_max:
            raise Overloaded(
                f"queue {name!r} has {self._groups_max} groups (limits.max_groups_per_queue)",
                limit="max_groups_per_queue",
            )
        return encode_change(change, queue_id=queue.queue_id)

    # --- following the log ---

    def apply(self, header: BatchHeader, batch: Buffer) -> None:
        """A batch was appended."""
        if header.kind == Kind.CONTROL:
            for change in decode_changes(batch):
                if isinstance(change, QueueDeclared):
                    self._declared(change, header.log_offset)
        elif header.kind == Kind.QUEUE_STATE:
            for change in decode_changes(batch):
                if isinstance(change, PositionCommitted):
                    self._unconfirmed.append((header.next_log_offset, header.queue_id, change))

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed."""
        while self._unconfirmed and self._unconfirmed[0][0] <= log_offset:
            _, queue_id, change = self._unconfirmed.popleft()
            if queue_id in self._by_id:
                self._by_id[queue_id].positions[change.group] = change

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
        while self._unconfirmed and self._unconfirmed[-1][0] > log_offset:
            self._unconfirmed.pop()
        for queue in [queue for queue in self if queue.declared_at >= log_offset]:
            del self._by_id[queue.queue_id], self._by_name[queue.name]
        self._id_max = max(self._by_id, default=0)

    def _declared(self, change: QueueDeclared, log_offset: int) -> None:
        if change.queue_id in self._by_id:
            return
        queue = Queue(change.name, change.queue_id, change.incarnation, change.arguments, log_offset)
        self._by_name[queue.name] = self._by_id[queue.queue_id] = queue
        self._id_max = max(self._id_max, queue.queue_id)


def no_such_queue(name: str) -> NoSuchQueue:
    return NoSuchQueue(f"no queue {name!r}; make it with: mqtool declare {name}", queue=name)


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """What every node and every format can carry, nested a little. Deeper ones would be stored by one decoder and
    refused by another, and then copies differ."""
    for key, value in arguments.items():
        if not _is_plain(value, _ARGUMENT_DEPTH_MAX):
            raise BadRequest(
                f"argument {key!r} is no number, text, bytes or flag, nor lists or tables of these, "
                f"nested at most {_ARGUMENT_DEPTH_MAX} deep"
            )


def _is_plain(value: object, depth: int) -> bool:
    if value is None or isinstance(value, str | bytes | int | float | bool):
        return True
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each, depth - 1) for key, each in value.items())
    return isinstance(value, list | tuple) and all(_is_plain(each, depth - 1) for each in value)


def _refuse_difference(queue: Queue, arguments: Mapping[str, Any]) -> None:
    for key in sorted(queue.arguments.keys() | arguments.keys()):
        there, asked = queue.arguments.get(key), arguments.get(key)
        if there != asked:
            raise QueueExists(
                f"queue {queue.name!r} exists with {key}={there!r}, asked for {key}={asked!r}", queue=queue.name
            )
