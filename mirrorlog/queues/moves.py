"""Which queues of a log have left it for another one, and which are on their way to it (decision 0050). Pure.

Such a queue is *aside*: nobody finds it, but its state is here. A change counts from its append, and `cut` takes it
back. A queue that comes back to a log which it has left is both, left and arriving, until it is opened; should its
arrival be dropped, it has left as before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import QueueMoving
from mirrorlog.queues.changes import (
    ArrivalDropped,
    MoveChange,
    QueueArrived,
    QueueArriving,
    QueueHandedOver,
    QueueLeft,
    QueueOpened,
    QueueReturned,
    SpanCopied,
    StateGone,
)
from mirrorlog.queues.checkpoint_states import MoveState
from mirrorlog.queues.queue_table import Queue, QueueTable


class LeftQueue(NamedTuple):
    """Fields as of `QueueLeft`. `first`: of its records here, but for those of a span before; `until`: where the batch
    ends that says so. `handed_over`: its state is kept no more; `freed`: nor its records."""

    move: int
    target: str
    next_queue_offset: int
    first: int
    until: int
    name: str
    handed_over: bool = False
    freed: bool = False


class ArrivingQueue(NamedTuple):
    """Fields as of `QueueArriving`. `until`: where that batch ends, or the one of QueueArrived when `arrived`."""

    move: int
    source: str
    first: int
    until: int
    arrived: bool = False


MovePart = tuple[str, int]
"""Step of a MoveState, and the queue's id."""


class _Before(NamedTuple):
    """Where a queue was before a change that ends at `log_offset`."""

    log_offset: int
    queue_id: int
    left: LeftQueue | None
    arriving: ArrivingQueue | None
    here: Queue | None
    aside: Queue | None
    first: int
    epoch_shift: int


class QueueMoves:
    """Of one log. `left` and `arriving`: by queue id. `gone`: by ids of other logs' blocks whose queues were deleted
    here, up to where the log may have records of them. `aside`: the queues whose state is here, though nobody finds
    them.

    `firsts`: by queue id, from which queue offset on one that came from another log is here; it goes down as that is
    copied which the queue has left there (`SpanCopied`), for good when all of it is. `epoch_shifts`: the same,
    how far the epochs of its grants and leases are above the log's. Epochs are compared within a log alone, and a queue
    may come to one whose epochs are lower: lease numbers would be given twice then, and what was given out before would
    seem to be of a mastership to come."""

    def __init__(self, known: QueueTable) -> None:
        self._known = known
        self.left: dict[int, LeftQueue] = {}
        self.arriving: dict[int, ArrivingQueue] = {}
        self.gone: dict[int, int] = {}
        self.aside: dict[int, Queue] = {}
        self.firsts: dict[int, int] = {}
        self.epoch_shifts: dict[int, int] = {}
        self.undo: deque[_Before] = deque()
        self.undecided: set[int] = set()
        """The queues that are on their way here, or have left and may return."""

    # --- asking ---

    def knows(self, queue_id: int) -> bool:
        """Whether it has left, or is arriving."""
        return queue_id in self.left or queue_id in self.arriving

    def is_aside(self, queue_id: int) -> bool:
        """Whether its state is here, though nobody finds the queue: it may still return, or is arriving."""
        left = self.left.get(queue_id)
        return queue_id in self.arriving or (left is not None and not left.handed_over)

    def is_incomplete(self, queue_id: int) -> bool:
        """Whether it is arriving, and its states have not all come."""
        arriving = self.arriving.get(queue_id)
        return arriving is not None and not arriving.arrived

    @property
    def ids_elsewhere(self) -> set[int]:
        """Of the queues that this log numbers no records of: another one does."""
        return {*self.left, *self.arriving}

    @property
    def any_incomplete(self) -> bool:
        """Whether there is any such: no checkpoint begins meanwhile, for it could not tell of it."""
        return any(not each.arrived for each in self.arriving.values())

    def name(self, queue_id: int) -> str:
        """Of a queue that is aside; empty of another one."""
        queue = self.aside.get(queue_id)
        return queue.name if queue is not None else ""

    def refusal(self, queue_id: int) -> QueueMoving | None:
        """What whoever asks for a queue that is not here is told; None of one that has neither left nor is arriving."""
        if queue_id in self.arriving:
            return QueueMoving(f"queue {queue_id} is arriving in this log; try again in a moment", queue_id=queue_id)
        left = self.left.get(queue_id)
        if left is None:
            return None
        how = "has moved" if left.handed_over else "is moving"
        return QueueMoving(
            f"queue {queue_id} {how} to log {left.target}; ask for its place again", queue_id=queue_id, log=left.target
        )

    def has_left_there(self, queue_id: int, queue_offset: int) -> bool:
        """Whether that record of a queue is in this log, though the queue is not, unless retention has freed it."""
        left = self.left.get(queue_id)
        return left is not None and not left.freed and queue_offset < left.next_queue_offset

    def left_name(self, queue_id: int) -> str:
        """The name of a queue that has left records here; empty of another one."""
        left = self.left.get(queue_id)
        return left.name if left is not None else ""

    def id_left_as(self, name: str) -> int | None:
        """The id of the queue of that name that has left records here; None when there is none."""
        found = [(each.move, queue_id) for queue_id, each in self.left.items() if each.name == name and not each.freed]
        return max(found)[1] if found else None  # an older one of that name is deleted, and about to be freed

    def elsewhere(self, queue_id: int, queue_offset: int) -> QueueMoving | None:
        """What whoever asks for that record is told that is not in this log, and that no loss has taken: None when it
        was not in another one before. While it is not confirmed from where on it is here, nobody knows: a copy may have
        heard that records were copied before it heard that these are confirmed."""
        left, first = self.left.get(queue_id), self.firsts.get(queue_id, 0)
        unsure = any(before.queue_id == queue_id and before.first != first for before in self.undo)
        if not unsure and queue_offset >= (left.first if left is not None else first):
            return None
        return QueueMoving(
            f"record {queue_offset} of queue {queue_id} is in a log that the queue was in before; ask for its spans",
            queue_id=queue_id,
        )

    def refusal_of(self, name: str) -> QueueMoving | None:
        """The same, by its name, as long as that is known here."""
        named = [queue_id for queue_id, queue in self.aside.items() if queue.name == name]
        named += [queue_id for queue_id, left in self.left.items() if left.name == name and not left.freed]
        return self.refusal(named[0]) if named else None

    def leaving(self) -> list[Queue]:
        """Those that have left, and may come back."""
        return [queue for queue_id, queue in self.aside.items() if queue_id not in self.arriving]

    def leaving_as(self, name: str) -> Queue | None:
        """The same, by name."""
        return next((queue for queue in self.leaving() if queue.name == name), None)

    def check_name(self, name: str) -> None:
        """Whether no queue of that name is aside. Raises QueueMoving."""
        for queue_id, queue in self.aside.items():
            if queue.name == name and (refusal := self.refusal(queue_id)) is not None:
                raise refusal

    # --- following the log ---

    def follow(self, header: BatchHeader, change: MoveChange) -> None:
        """A change was appended."""
        queue_id = change.queue_id
        before = self._note(header, queue_id)
        if isinstance(change, SpanCopied):
            self._came(queue_id, min(change.first, before.first), before.epoch_shift)
            return
        self._follow_facts(change, before, header.next_log_offset)
        if isinstance(change, QueueArriving):
            self._came(queue_id, change.first, change.grants_epoch + 1 - header.epoch)
        elif isinstance(change, StateGone):
            self._came(queue_id, 0, 0)
        queue, aside = before.here, self.aside.pop(queue_id, None)
        if isinstance(change, QueueReturned | QueueOpened):
            if queue is None and aside is not None:
                self._known.put(aside)
            return
        if queue is not None:
            self._known.remove(queue)
        if not isinstance(change, StateGone) and (kept := queue or aside) is not None:
            self.aside[queue_id] = kept

    def _follow_facts(self, change: MoveChange, before: _Before, until: int) -> None:
        left, arriving = before.left, before.arriving
        match change:
            case QueueLeft():
                queue = before.here or before.aside
                name = queue.name if queue is not None else left.name if left is not None else ""
                left = LeftQueue(change.move, change.target, change.next_queue_offset, before.first, until, name)
            case QueueReturned():
                left = None
            case QueueHandedOver() if left is not None:
                freed = change.freed or left.freed
                left = left._replace(handed_over=True, freed=freed)
            case QueueArriving():
                left = left and left._replace(handed_over=True)
                arriving = ArrivingQueue(change.move, change.source, change.first, until)
            case QueueArrived() if arriving is not None:
                arriving = arriving._replace(arrived=True, until=until)
            case QueueOpened():
                left = arriving = None
            case ArrivalDropped():
                arriving = None
        self._set(change.queue_id, left, arriving)

    def restore(self, header: BatchHeader, state: MoveState) -> None:
        """A checkpoint says what is true at its place already, wherever the log was followed up to there."""
        queue_id, until = state.queue_id, header.next_log_offset
        if state.step == "gone":
            self.gone.setdefault(queue_id, until)
            return
        before = self._note(header, queue_id)
        if state.step == "came":
            self._came(queue_id, state.first, state.epochs)
            return
        left, arriving = before.left, before.arriving
        if state.step == "arrived":
            if arriving is None or arriving.move != state.move:
                arriving = ArrivingQueue(state.move, state.log_id, state.queue_offset, until, arrived=True)
        elif left is None or left.move != state.move:
            over, freed = state.step != "left", state.step == "freed"
            left = LeftQueue(state.move, state.log_id, state.queue_offset, state.first, until, state.name, over, freed)
        elif not left.name:
            left = left._replace(name=state.name)  # it left before it was known here
        self._set(queue_id, left, arriving)

    def put_aside(self, queue: Queue) -> Queue:
        """A checkpoint, or what arrives, tells of a queue that nobody is to find."""
        return self.aside.setdefault(queue.queue_id, queue)

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed."""
        while self.undo and self.undo[0].log_offset <= log_offset:
            self.undo.popleft()

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
        while self.undo and self.undo[-1].log_offset > log_offset:
            self._take_back(self.undo.pop())
        for queue_id in [each for each, queue in self.aside.items() if queue.declared_at >= log_offset]:
            del self.aside[queue_id]

    def forget(self, log_start: int, is_elsewhere: Callable[[str], bool]) -> None:
        """What nobody can name any more: the log begins behind all that a queue had here, and the queue was deleted
        since, or has been in so many logs that this one is none of them. `is_elsewhere`: whether a queue of that name
        is one of those that have left this log. Copies may forget at different times: whoever asks for a queue that is
        deleted is told the same."""
        undone = {before.queue_id for before in self.undo}
        self.gone = {queue_id: until for queue_id, until in self.gone.items() if until > log_start}
        newest: dict[str, int] = {}
        for left in self.left.values():
            newest[left.name] = max(left.move, newest.get(left.name, 0))
        for queue_id, left in list(self.left.items()):
            dead = left.freed and left.name and left.until <= log_start and queue_id not in undone
            if dead and (left.move < newest[left.name] or not is_elsewhere(left.name)):
                self._set(queue_id, None, self.arriving.get(queue_id))
                self._known.gone(queue_id)

    # --- checkpoints ---

    def parts(self) -> Iterator[MovePart]:
        """What a checkpoint that begins now has to tell of; `state` of each when its batch is made."""
        tables: dict[str, Collection[int]] = {"left": self.left, "arrived": self.arriving, "gone": self.gone}
        for step, queue_ids in {**tables, "came": {**self.firsts, **self.epoch_shifts}}.items():
            yield from ((step, queue_id) for queue_id in sorted(queue_ids))

    def state(self, part: MovePart) -> MoveState | None:
        """What it tells; None when that is not so any more, or not yet."""
        step, queue_id = part
        if step == "gone":
            return MoveState(queue_id, step)
        if step == "came":
            first, epochs = self.firsts.get(queue_id, 0), self.epoch_shifts.get(queue_id, 0)
            there = (first or epochs) and not self.is_incomplete(queue_id)
            return MoveState(queue_id, step, first=first, epochs=epochs) if there else None
        if step == "arrived":
            each = self.arriving.get(queue_id)
            if each is None or not each.arrived:
                return None
            return MoveState(queue_id, step, each.move, each.source, each.first)
        left = self.left.get(queue_id)
        if left is None:
            return None
        step = "freed" if left.freed else "over" if left.handed_over else step
        return MoveState(
            queue_id, step, left.move, left.target, left.next_queue_offset, first=left.first, name=left.name
        )

    # --- inside ---

    def _note(self, header: BatchHeader, queue_id: int) -> _Before:
        before = _Before(
            header.next_log_offset,
            queue_id,
            self.left.get(queue_id),
            self.arriving.get(queue_id),
            self._known.by_id.get(queue_id),
            self.aside.get(queue_id),
            self.firsts.get(queue_id, 0),
            self.epoch_shifts.get(queue_id, 0),
        )
        self.undo.append(before)
        return before

    def _take_back(self, before: _Before) -> None:
        _, queue_id, left, arriving, here, aside, first, epoch_shift = before
        self._set(queue_id, left, arriving)
        self._came(queue_id, first, epoch_shift)
        there = self._known.by_id.get(queue_id)
        if there is not None and there is not here:
            self._known.remove(there)
        if here is not None and there is not here:
            self._known.put(here)
        if aside is not None:
            self.aside[queue_id] = aside
        else:
            self.aside.pop(queue_id, None)

    def _set(self, queue_id: int, left: LeftQueue | None, arriving: ArrivingQueue | None) -> None:
        if left is None:
            self.left.pop(queue_id, None)
        else:
            self.left[queue_id] = left
        if arriving is None:
            self.arriving.pop(queue_id, None)
        else:
            self.arriving[queue_id] = arriving
        if arriving is not None or (left is not None and not left.handed_over):
            self.undecided.add(queue_id)
        else:
            self.undecided.discard(queue_id)

    def _came(self, queue_id: int, first: int, epoch_shift: int) -> None:
        for there, number in ((self.firsts, first), (self.epoch_shifts, epoch_shift)):
            if number > 0:
                there[queue_id] = number
            else:
                there.pop(queue_id, None)
