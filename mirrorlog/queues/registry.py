"""The queues of a log and their groups' positions, built from the log's control, queue-state and checkpoint batches.

Declarations count from their append (a producer may write as soon as its declare was answered, also after the master
restarted and before it is confirmed again); positions count from their confirm, so that none points beyond what
survives. `cut` undoes what a truncation removed. Applying a batch twice equals applying it once (invariant 8).

A deletion, too, counts from its append: the queue is found no more. Until it is confirmed `cut` brings the queue back
as it was, so it is kept aside, and what others know of it (groups, holds, producers) stays where it is; `take_deleted`
says when all of that can go. Its id is never given out again.

A queue that left for another log, or is arriving from one, is *aside*: nobody finds it, and it is not lost either.

A checkpoint says again what stood before it, for copies that begin with it. Such a copy may meet records and
positions of queues before it meets the queues themselves; the checkpoint's own words come after these and hold them.

Pure: batches in, state out; deciding to declare gives the batch to append.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, Final, NamedTuple, get_args

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import BadRequest, NoSuchQueue, Overloaded, QueueExists
from mirrorlog.queues.arguments import check_declaration, check_names, difference_of
from mirrorlog.queues.changes import (
    Change,
    GroupDeleted,
    GroupReset,
    MoveChange,
    OffsetsJumped,
    PositionCommitted,
    QueueAltered,
    QueueArriving,
    QueueDeclared,
    QueueDeleted,
    QueueGoverned,
    QueueHandedOver,
    QueueStartsMoved,
    QueueUsed,
    encode_change,
    encode_changes,
)
from mirrorlog.queues.checkpoint_states import CheckpointBegan, MoveState, QueueStartsState, QueueState, State
from mirrorlog.queues.moves import MovePart, QueueMoves
from mirrorlog.queues.queue_table import IDS_PER_LOG, Governs, IdBlock, Queue, QueueTable, no_such_queue, nobody_governs
from mirrorlog.wire.names import check_new

_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,255}")


class _Leaving(NamedTuple):
    """A queue whose deletion ends at `log_offset` and is not confirmed. None for one of which this copy knows no more
    than what was said of it behind the beginning of a checkpoint, which did not come to it."""

    log_offset: int
    queue: Queue | None


class _Unconfirmed(NamedTuple):
    """What becomes visible when everything below `log_offset` is confirmed."""

    log_offset: int
    queue_id: int
    positions: tuple[PositionCommitted, ...]
    next_queue_offset: int = 0
    begin: int = -1
    replaced: str | None = None
    """A stream group that is there no more: deleted, or an acking group has its name from now on."""


class QueueRegistry:
    """All queues of one log by name and id. `id_base`: see `IdBlock`; `acking`: whether a queue has an acking group
    of a name, which then is no stream group's."""

    follows: ClassVar[frozenset[type]] = frozenset(
        {
            *(QueueDeclared, QueueDeleted, QueueAltered, QueueGoverned, QueueStartsMoved, OffsetsJumped),
            *(PositionCommitted, QueueUsed, GroupReset, GroupDeleted),
            *get_args(MoveChange),
        }
    )

    def __init__(
        self,
        *,
        queues_max: int,
        groups_max: int,
        id_base: int = 0,
        acking: Callable[[int, str], bool] = lambda queue_id, group: False,
    ) -> None:
        self._acking = acking
        self._queues_max = queues_max
        self._groups_max = groups_max
        ids = self._ids = IdBlock(id_base)
        self._known = known = QueueTable(ids)
        self._by_name, self.by_id, self.visitors = known.by_name, known.by_id, known.visitors
        self.limits, self.works, self.lengths = known.limits, known.works, known.lengths
        self.ttls, self.lifetimes = known.ttls, known.lifetimes
        self.moves = QueueMoves(known)
        self.epoch_shifts = self.moves.epoch_shifts
        self._unconfirmed: deque[_Unconfirmed] = deque()
        self.start_offsets: dict[int, int] = {}
        """The logged start offsets as appended, by queue id; see QueueStartsMoved."""
        self._confirmed_start_offsets: dict[int, int] = {}
        # By queue id, in the order of the log.
        self._leaving: dict[int, _Leaving] = {}
        self.deleted: list[int] = []  # what `take_deleted` gives
        self.moved: dict[int, int] = {}
        """What `take_moved` gives."""

    def __iter__(self) -> Iterator[Queue]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    # --- asking ---

    def find(self, name: str) -> Queue:
        """Raises NoSuchQueue, or QueueMoving for one that is aside, or has left records here."""
        queue = self._by_name.get(name)
        if queue is None:
            raise self.moves.refusal_of(name) or no_such_queue(name)
        return queue

    def get(self, name: str) -> Queue | None:
        return self._by_name.get(name)

    def named(self, name: str) -> Queue | None:
        """One that is here, or has left, and may come back as long as the cluster has it placed here."""
        return self._by_name.get(name) or (self.moves.leaving_as(name) if self.moves.aside else None)

    def find_id(self, queue_id: int) -> Queue:
        """Raises NoSuchQueue, or QueueMoving for one that has left, or is arriving."""
        queue = self.by_id.get(queue_id)
        if queue is None:
            raise self.moves.refusal(queue_id) or NoSuchQueue(
                f"no queue has the id {queue_id}; ask for the queue's metadata again", queue_id=queue_id
            )
        return queue

    def name_of(self, queue_id: int) -> str:
        """Of a queue that is here, or has left records here. Raises as `find_id`."""
        queue = self.by_id.get(queue_id)
        if queue is None and (left := self.moves.left.get(queue_id)) is not None and left.name:
            return left.name
        return (queue or self.find_id(queue_id)).name

    def check_read(self, queue_id: int, queue_offset: int) -> None:
        """Whether records of the queue may be read here from that one on. Raises as `find_id`."""
        if queue_id not in self.by_id and not self.moves.has_left_there(queue_id, queue_offset):
            self.find_id(queue_id)

    def has_id(self, queue_id: int) -> bool:
        return queue_id in self.by_id

    def is_gone(self, queue_id: int) -> bool:
        """Whether no queue of this id is here, nor may come back, nor has left records here; where all queues are
        known, as on a master. Of one of this log's block: it was deleted, and that is confirmed."""
        if queue_id in self.by_id or queue_id in self._leaving or self.moves.knows(queue_id):
            return False
        return queue_id <= self._ids.highest or not self._ids.owns(queue_id)

    def leaving_ids(self) -> list[int]:
        """The queues whose deletion is not confirmed: they may come back."""
        return list(self._leaving)

    def keeps(self, queue_id: int) -> bool:
        """Whether the records of a queue are to stay: it is here, or has left them here."""
        left = self.moves.left.get(queue_id)
        return queue_id in self.by_id or (left is not None and not left.freed)

    def left_ids(self) -> list[int]:
        """The queues that have left records here, which are kept until somebody says that they may go."""
        return [queue_id for queue_id, left in self.moves.left.items() if not left.freed]

    @property
    def any_gone(self) -> bool:
        """Whether a queue was ever deleted from this log, as far as is known: ids are given out one after another. Or
        whether that cannot be told so, for queues have moved."""
        moves = self.moves
        if self.visitors or moves.left or moves.arriving or moves.gone:
            return True
        return self._ids.highest - self._ids.first > len(self.by_id) + len(self._leaving)

    @property
    def queue_id_max(self) -> int:
        """The largest queue id that was ever given out; the base before the first."""
        return self._ids.highest

    @property
    def ids_assigned(self) -> int:
        """The number in this log of `queue_id_max`, from 1; 0 before the first."""
        return self._ids.highest - self._ids.base

    def ids_given_before(self, number: int) -> None:
        """An earlier log of the same number has given out ids up to this number; see `LogPlace.ids_from`."""
        self._ids.given_before(number)
        self.visitors.update(each for each in self.by_id if not self._ids.owns(each))

    def id_past(self, number: int) -> int:
        """What `queue_id_max` is once no id up to this number of the log is given out any more."""
        return max(self._ids.highest, self._ids.base + min(number, IDS_PER_LOG - 1))

    def queue_ids(self) -> list[int]:
        """All queues that are here now, in no order."""
        return list(self.by_id)

    def stated_ids(self) -> list[int]:
        """All queues of which a checkpoint that begins now tells: those that are aside, too."""
        aside = (each for each in self.moves.aside if not self.moves.is_incomplete(each))
        return [*self.by_id, *aside]

    def move_parts(self) -> Iterator[MovePart]:
        """See `QueueMoves.parts`: of visitors whose deletion is not confirmed it is told, too, that they are gone."""
        yield from self.moves.parts()
        yield from (("gone", each) for each in list(self._leaving) if not self._ids.owns(each))

    def groups(self, queue_id: int) -> list[str]:
        """The groups that have a position in a queue, a confirmed one or not."""
        queue = self._find(queue_id)
        return list(queue.newest) if queue is not None else []

    def is_leaving(self, queue_id: int) -> bool:
        """Whether a queue of this id was deleted, and that is not confirmed."""
        return queue_id in self._leaving

    def state(self, queue_id: int, groups: Sequence[str], *, next_queue_offset: int) -> QueueState | None:
        """A queue as appended up to now, with the positions of `groups`, for a checkpoint; None if it is gone."""
        queue = self.by_id.get(queue_id) or self.moves.aside.get(queue_id)
        return None if queue is None else queue.state(groups, next_queue_offset)

    # --- deciding ---

    def declare(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        incarnation: str = "",
        governed: Governs = nobody_governs,
        kept_by_use: bool = False,
    ) -> bytearray | None:
        """The batch that declares a queue, or None when it is there already with the same arguments.

        `incarnation`, `kept_by_use`: if it is new, see QueueDeclared; `governed`: what holds for it. Raises BadRequest,
        QueueExists (naming the difference), QueueMoving or Overloaded.
        """
        there = self._by_name.get(name)
        check_declaration(name, arguments, placed=there is not None)
        if there is not None:
            check_names(arguments, known=there.arguments)
            if difference := difference_of(there.arguments, arguments):
                raise QueueExists(f"queue {name!r} exists {difference}", queue=name)
            return None
        self.moves.check_name(name)
        self.check_room()
        queue_id = self._ids.next
        if queue_id is None:
            raise Overloaded(f"this log has given out all of its {IDS_PER_LOG - 1} queue ids", limit="queue_ids")
        made = QueueDeclared(
            name=name, queue_id=queue_id, incarnation=incarnation, arguments=dict(arguments), kept_by_use=kept_by_use
        )
        holds = governed(queue_id, name, arguments)
        return encode_change(made) if holds is None else encode_changes([made, holds])

    def check_room(self) -> None:
        """For one queue more. Raises Overloaded."""
        if len(self.by_id) + len(self.moves.aside) >= self._queues_max:
            raise Overloaded(f"this log has {self._queues_max} queues (limits.max_queues)", limit="max_queues")

    def commit_position(self, name: str, change: PositionCommitted) -> bytearray:
        """The batch that stores a group's position. Raises NoSuchQueue, BadRequest or Overloaded."""
        queue = self.find(name)
        if not _NAME.fullmatch(change.group):
            raise BadRequest("a group's name has 1 to 255 characters and no control characters")
        if self._acking(queue.queue_id, change.group):
            raise BadRequest(
                f"group {change.group!r} of queue {name!r} acknowledges what it reads, and has no position; take "
                "another name, or delete that group"
            )
        if change.group not in queue.newest:
            check_new("group", change.group)
            if len(queue.newest) >= self._groups_max:
                raise Overloaded(
                    f"queue {name!r} has {self._groups_max} groups (limits.max_groups_per_queue)",
                    limit="max_groups_per_queue",
                )
        return encode_change(change, queue_id=queue.queue_id)

    def delete(self, queue_id: int) -> bytearray:
        """The batch that deletes a queue. Raises NoSuchQueue."""
        self.find_id(queue_id)
        return encode_change(QueueDeleted(queue_id=queue_id))

    # --- following the log ---

    def follow(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        """A batch of changes was appended."""
        for change in changes:
            if isinstance(change, QueueDeclared | QueueAltered | QueueGoverned):
                self._declared(header, change)
            elif isinstance(change, QueueDeleted):
                self._delete(header, change.queue_id)
            elif isinstance(change, QueueStartsMoved):
                self._starts_moved(header, change.begins)
            elif isinstance(change, OffsetsJumped):
                self._ids.told(header.log_offset, max(self._ids.highest, change.queue_id_max))
            elif isinstance(change, PositionCommitted):
                self._appended(_Unconfirmed(header.next_log_offset, header.queue_id, (change,)))
            elif isinstance(change, QueueUsed):
                self._used(header.queue_id, header.log_offset)
            elif isinstance(change, GroupReset | GroupDeleted):
                self._appended(_Unconfirmed(header.next_log_offset, header.queue_id, (), replaced=change.group))
            elif isinstance(change, MoveChange):
                self._move(header, change)

    def _declared(self, header: BatchHeader, change: QueueDeclared | QueueAltered | QueueGoverned) -> None:
        if not isinstance(change, QueueDeclared):
            self._known.alter(header, change)
        elif change.queue_id > self._ids.highest:  # else it is here, or was deleted since, or has left
            made = Queue(change.name, change.queue_id, change.incarnation, change.arguments, header.log_offset)
            made.kept_by_use = change.kept_by_use
            self._declare(made)

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended."""
        for state in states:
            if isinstance(state, QueueState):
                self._restore(header, state)
            elif isinstance(state, QueueStartsState):
                self._starts_moved(header, state.begins)
            elif isinstance(state, CheckpointBegan):
                self._ids.told(header.log_offset, state.queue_id_max)
            elif isinstance(state, MoveState):
                self.moves.restore(header, state)

    def confirm(self, log_offset: int) -> dict[int, int]:
        """Everything below `log_offset` is confirmed. Gives the logged start offsets, by queue id, that became true
        now."""
        begins: dict[int, int] = {}
        while self._unconfirmed and self._unconfirmed[0].log_offset <= log_offset:
            until, queue_id, positions, next_queue_offset, begin, replaced = self._unconfirmed.popleft()
            if begin >= 0:
                begins[queue_id] = self._confirmed_start_offsets[queue_id] = begin
            queue = self._find(queue_id)
            # One that has come back is another queue than the one that these were told of.
            if queue is not None and until > queue.declared_at:
                queue.positions.update((change.group, change) for change in positions)
                if replaced is not None:
                    queue.positions.pop(replaced, None)
                queue.next_queue_offset = max(queue.next_queue_offset, next_queue_offset)
        if self._ids.told_at:
            self._ids.confirm(log_offset)
        self._confirm_deletions(log_offset)
        for part in (self._known, self.moves) if self._known.altered or self.moves.undo else ():
            part.confirm(log_offset)
        self.moved.update(begins)
        return begins

    def take_moved(self) -> dict[int, int]:
        """The logged start offsets that `confirm` gave since this was asked last."""
        moved, self.moved = self.moved, {}
        return moved

    def take_deleted(self) -> list[int]:
        """The ids of the queues whose deletion was confirmed since this was asked last."""
        deleted, self.deleted = self.deleted, []
        return deleted

    def _confirm_deletions(self, log_offset: int) -> None:
        for queue_id, leaving in list(self._leaving.items()) if self._leaving else ():
            if leaving.log_offset > log_offset:
                break
            del self._leaving[queue_id]
            self.moves.firsts.pop(queue_id, None)
            self.epoch_shifts.pop(queue_id, None)
            self.start_offsets.pop(queue_id, None)
            self._confirmed_start_offsets.pop(queue_id, None)
            self._ids.gone(queue_id)
            if not self._ids.owns(queue_id):
                self.moves.gone[queue_id] = leaving.log_offset
            self.deleted.append(queue_id)

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
        if self.moves.undo or self.moves.aside:
            self.moves.cut(log_offset)
        self._known.cut(log_offset)
        left, undone = len(self._leaving), [queue for queue in self if queue.declared_at >= log_offset]
        for queue in undone:
            self._known.remove(queue)
        self._bring_back(log_offset)
        for queue in self:
            queue.used_at = queue.used_at if queue.used_at < log_offset else -1
        if undone or len(self._leaving) < left or self._ids.told_at or self.moves.left:
            self._ids.cut(log_offset, [*self.by_id, *self._leaving, *self.moves.left])
        changed = set()
        while self._unconfirmed and self._unconfirmed[-1].log_offset > log_offset:
            changed.add(self._unconfirmed.pop().queue_id)
        self._find_newest(changed)

    # --- inside ---

    def _declare(self, queue: Queue) -> Queue:
        """It, or the one of its id that is here."""
        there = self.by_id.get(queue.queue_id)
        if there is None:
            self._known.put(queue)
            self._ids.given(queue.queue_id)
        return there or queue

    def _used(self, queue_id: int, log_offset: int) -> None:
        """The first time counts."""
        queue = self._find(queue_id)
        if queue is not None and queue.used_at < 0:
            queue.used_at = log_offset

    def _find(self, queue_id: int) -> Queue | None:
        """The queue, also one that a cut may bring back, or a move."""
        leaving = self._leaving.get(queue_id)
        if leaving is not None:
            return leaving.queue
        return self.by_id.get(queue_id) or self.moves.aside.get(queue_id)

    def _delete(self, header: BatchHeader, queue_id: int) -> None:
        self._ids.given(queue_id)
        queue = self.by_id.get(queue_id)
        if queue is not None:
            self._known.remove(queue)
        if queue_id not in self._leaving:
            self._leaving[queue_id] = _Leaving(header.next_log_offset, queue)

    def _bring_back(self, log_offset: int) -> None:
        """The queues whose deletion was cut, and whose declaration was not."""
        for queue_id, (deleted_at, queue) in list(self._leaving.items()):
            if deleted_at > log_offset:
                del self._leaving[queue_id]
                if queue is not None and queue.declared_at < log_offset and not self.moves.is_aside(queue_id):
                    self._known.put(queue)

    def _restore(self, header: BatchHeader, state: QueueState) -> None:
        put = self._declare if not self.moves.is_aside(state.queue_id) else self.moves.put_aside
        told = Queue(state.name, state.queue_id, state.incarnation, state.arguments, state.declared_at)
        told.governed, told.kept_by_use = state.governed, state.kept_by_use
        queue = put(told)
        if state.used_at >= 0:
            self._used(state.queue_id, state.used_at)
        positions = (
            PositionCommitted(group=group, log_id=log_id, epoch=epoch, queue_offset=queue_offset)
            for group, (log_id, epoch, queue_offset) in state.positions.items()
        )
        # What is the newest already stands before this in the log, and is confirmed before it.
        news = tuple(change for change in positions if queue.newest.get(change.group) != change)
        self._appended(_Unconfirmed(header.next_log_offset, queue.queue_id, news, state.next_queue_offset))

    def _starts_moved(self, header: BatchHeader, begins: Mapping[int, int]) -> None:
        for queue_id, begin in begins.items():
            if begin > self.start_offsets.get(queue_id, -1):
                self._appended(_Unconfirmed(header.next_log_offset, queue_id, (), begin=begin))

    def _appended(self, change: _Unconfirmed) -> None:
        self._unconfirmed.append(change)
        if change.begin >= 0:
            self.start_offsets[change.queue_id] = change.begin
        queue = self._find(change.queue_id) if self.moves.aside else self.by_id.get(change.queue_id)
        if queue is not None:
            _put_newest(queue, change)

    def _move(self, header: BatchHeader, change: MoveChange) -> None:
        self.moves.follow(header, change)
        if isinstance(change, QueueArriving):  # also below what was said here: its records elsewhere are not dead
            self._appended(_Unconfirmed(header.next_log_offset, change.queue_id, (), begin=change.begin))
        elif isinstance(change, QueueHandedOver) and (left := self.moves.left.get(change.queue_id)) and left.freed:
            self._starts_moved(header, {change.queue_id: left.next_queue_offset})

    def _find_newest(self, queue_ids: Set[int]) -> None:
        """After a cut: the newest positions of some queues, and the start offsets, from the confirmed ones and those
        left."""
        if not queue_ids:
            return
        known = {queue_id: queue for queue_id in queue_ids if (queue := self._find(queue_id)) is not None}
        for queue in known.values():
            queue.newest = dict(queue.positions)
        self.start_offsets = dict(self._confirmed_start_offsets)
        for change in self._unconfirmed:
            if change.begin >= 0:
                self.start_offsets[change.queue_id] = change.begin
            if change.queue_id in known and change.log_offset > known[change.queue_id].declared_at:
                _put_newest(known[change.queue_id], change)


def _put_newest(queue: Queue, change: _Unconfirmed) -> None:
    queue.newest.update((position.group, position) for position in change.positions)
    if change.replaced is not None:
        queue.newest.pop(change.replaced, None)
