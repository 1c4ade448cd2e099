"""The acking groups of a log, by queue and name (decision 0033): what their ledgers are by the log's own changes.

A change counts from its append, for deciding and for what is shown; `cut` undoes what a truncation removed. For that
each change leaves behind, until it is confirmed, what stood in the places that it touched: a copy of the state as
confirmed would be as large as the state, and following twice would cost twice. Applying a batch twice equals applying
it once, attempts too (invariant 8): the table remembers up to which log offset it has followed the log.

The queue's own group, the one that users of queues mean, has the empty name. A name is either an acking group's or
that of a stream group, which has no more than a position (`queues.registry`): to make an acking group of a stream
group's name is refused, and so is a position of an acking one. A reset that says so replaces a stream group by an
acking one; the other way leads over the acking group's end.

Pure: batches in, state out; deciding gives the change to append.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from typing import ClassVar, Final, NamedTuple, get_args

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.errors import BadBatch, BadRequest, NoSuchGroup, Overloaded
from mirrorlog.queues.changes import (
    Change,
    ForwardingStarted,
    GroupDeleted,
    GroupReset,
    QueueArrived,
    RecordsLeased,
    Returned,
    Settled,
    StateGone,
    Watermark,
)
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    GroupState,
    LeasesState,
    LedgerChunk,
    State,
    VerdictsState,
)
from mirrorlog.queues.groups.ledger import LeaseRow, Ledger
from mirrorlog.queues.groups.ledger_update import Journal, LedgerUpdate
from mirrorlog.queues.groups.states import GroupPart, GroupWalk, restore_chunk, restore_leases, restore_verdicts
from mirrorlog.queues.groups.verdicts import DEAD_WHYS
from mirrorlog.wire.names import check_new

OWN_GROUP: Final = ""
"""The queue's own."""

NAME_CHARS_MAX: Final = 255
_NAME: Final = re.compile(rf"[^\x00-\x1f\x7f]{{0,{NAME_CHARS_MAX}}}")
_OFFSETS: Final = 1 << 63

Key = tuple[int, str]
"""Queue id and group."""
_OfLedger = LedgerChunk | VerdictsState | LeasesState
_Update = Settled | Returned | RecordsLeased | ForwardingStarted | _OfLedger
_OnLedger = Settled | Returned | Watermark | RecordsLeased | ForwardingStarted


class _Undo(NamedTuple):
    """What a change that ends at `log_offset` is taken back with: this ledger stood there (None: none did), so far from
    complete (`partial`), with this floor and watermark, and what the journal says is gone."""

    log_offset: int
    key: Key
    ledger: Ledger | None
    partial: bool
    floor: int = 0
    watermark: int = 0
    journal: Journal | None = None


class GroupTable:
    """The acking groups of one log. `per_queue_max`: of one queue; `is_arriving`: whether a queue's states are coming
    from another log, and have not all come."""

    follows: ClassVar[frozenset[type]] = frozenset(
        {*get_args(_OnLedger), GroupReset, GroupDeleted, QueueArrived, *get_args(StateGone)}
    )

    def __init__(self, *, per_queue_max: int, is_arriving: Callable[[int], bool] = lambda queue_id: False) -> None:
        self._per_queue_max = per_queue_max
        self._is_arriving = is_arriving
        self._queues: dict[int, dict[str, Ledger]] = {}
        self._undo: deque[_Undo] = deque()
        # Of those that a checkpoint, or an arrival, which has not ended tells of, and nothing before it did.
        self._partial: set[Key] = set()
        self._followed_to = 0
        self._confirmed = 0
        self.lowered = 0
        """Counts the changes by which groups may have come to need more than before: whoever decided what to free
        before one of them has to look again."""
        self.made: set[int] = set()
        """Queues of which a group was made, or made anew: whoever has looked at a queue for all of its groups takes
        its id out, and looks again."""

    # --- asking ---

    def get(self, queue_id: int, group: str) -> Ledger | None:
        """A group as appended."""
        return self._queues.get(queue_id, {}).get(group)

    def find(self, queue_id: int, group: str) -> Ledger:
        """A group as appended. Raises NoSuchGroup."""
        ledger = self.get(queue_id, group)
        if ledger is None:
            raise no_such_group(group)
        return ledger

    def groups(self, queue_id: int) -> Mapping[str, Ledger]:
        """A queue's groups by name."""
        return self._queues.get(queue_id, {})

    def queue_ids(self) -> Set[int]:
        """Of the queues that have groups."""
        return self._queues.keys()

    def __iter__(self) -> Iterator[tuple[int, str, Ledger]]:
        """All groups: queue id, name, ledger."""
        for queue_id, groups in self._queues.items():
            yield from ((queue_id, group, ledger) for group, ledger in groups.items())

    def floors(self, queue_ids: Collection[int]) -> dict[int, int]:
        """The lowest floor of its groups, by queue id, of those of these queues that have any."""
        found = {queue_id: self._queues[queue_id].values() for queue_id in queue_ids if queue_id in self._queues}
        return {queue_id: min(ledger.floor for ledger in ledgers) for queue_id, ledgers in found.items()}

    def whole_floors(self, queue_ids: Collection[int]) -> dict[int, int]:
        """`floors`, of those queues that have their own group: that of another is made by whoever takes from it first,
        and begins where the queue does."""
        return self.floors([each for each in queue_ids if OWN_GROUP in self._queues.get(each, ())])

    # --- deciding ---

    def reset(
        self,
        queue_id: int,
        group: str,
        queue_offset: int,
        *,
        streams: Collection[str] = (),
        replace_stream: bool = False,
        void: int = 0,
    ) -> GroupReset:
        """The change that has a group stand there, and makes it if it is not there. `streams`: the queue's stream
        groups; one of that name is replaced only when that is asked for. `void`: see `GroupReset`. Raises BadRequest or
        Overloaded."""
        if not _NAME.fullmatch(group):
            raise BadRequest(f"a group's name has at most {NAME_CHARS_MAX} characters and no control characters")
        if not 0 <= queue_offset < _OFFSETS:
            raise BadRequest(f"queue offset {queue_offset} is not within 0 and {_OFFSETS - 1}")
        if group in streams and not replace_stream:
            raise BadRequest(
                f"group {group!r} reads this queue as a stream: it has a position and acknowledges nothing; take "
                "another name, or make it an acking group with a reset that says so"
            )
        there = self.groups(queue_id)
        if group not in there:
            check_new("group", group)
        others = len(streams) - (group in streams)
        if group not in there and len(there) + others >= self._per_queue_max:
            raise Overloaded(
                f"this queue has {self._per_queue_max} groups (limits.max_groups_per_queue); delete those that nobody "
                "wants",
                limit="max_groups_per_queue",
            )
        return GroupReset(group=group, queue_offset=queue_offset, void=void)

    def delete(self, queue_id: int, group: str) -> GroupDeleted:
        """The change that ends a group. Raises NoSuchGroup."""
        self.find(queue_id, group)
        return GroupDeleted(group=group)

    # --- following the log ---

    def follow(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        """A batch of changes was appended. Raises BadBatch for one that makes no sense."""
        end = header.log_offset + header.length
        if end <= self._followed_to:
            return
        self._followed_to = end
        for change in changes:
            if isinstance(change, _OnLedger):
                ledger = self.get(header.queue_id, change.group)
                # One that is not known yet: a checkpoint behind this tells of it. Then this is in there.
                if ledger is not None:
                    self._change(header, (header.queue_id, change.group), ledger, change)
            elif isinstance(change, GroupReset):
                self._put(header, (header.queue_id, change.group), Ledger(change.queue_offset, void=change.void))
            elif isinstance(change, GroupDeleted):
                self._put(header, (header.queue_id, change.group), None)
            elif isinstance(change, QueueArrived | StateGone):
                self._moved(header, change)

    def _moved(self, header: BatchHeader, change: QueueArrived | StateGone) -> None:
        """All that is known of a queue's groups is whole by now, or gone."""
        for group, ledger in list(self.groups(change.queue_id).items()):
            self._put(header, (change.queue_id, group), ledger if isinstance(change, QueueArrived) else None)

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended, which says again what stood before it. Groups that are known are passed
        over: there is nothing new of them. Raises BadBatch."""
        if header.next_log_offset <= self._followed_to:
            return
        self._followed_to = header.next_log_offset
        for state in states:
            if isinstance(state, GroupState):
                if self.get(state.queue_id, state.group) is None:
                    known = state.known_from if state.known_from >= 0 else max(state.floor, state.watermark)
                    ledger = Ledger(state.floor, state.watermark, state.void, known_from=known)
                    self._put(header, (state.queue_id, state.group), ledger, partial=True)
            elif isinstance(state, _OfLedger):
                key = (state.queue_id, state.group)
                if key in self._partial:
                    self._change(header, key, self._queues[key[0]][key[1]], state)
            elif isinstance(state, CheckpointBegan | CheckpointEnded):
                self._complete(header, ended=isinstance(state, CheckpointEnded))

    def confirm(self, log_offset: int) -> None:
        """Everything below `log_offset` is confirmed. It may be told before the batches themselves are: nothing is kept
        to take them back with."""
        self._confirmed = log_offset
        while self._undo and self._undo[0].log_offset <= log_offset:
            self._undo.popleft()

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`. Nothing is given out any more: this is no master."""
        self._followed_to = min(self._followed_to, log_offset)
        if self._undo and self._undo[-1].log_offset > log_offset:
            self.lowered += 1
        while self._undo and self._undo[-1].log_offset > log_offset:
            self._take_back(self._undo.pop())
        self.drop_volatile()

    def forget_queue(self, queue_id: int) -> None:
        """A queue is gone, for good."""
        self._queues.pop(queue_id, None)
        self._partial = {key for key in self._partial if key[0] != queue_id}
        self._undo = deque(each for each in self._undo if each.key[0] != queue_id)

    def drop_volatile(self) -> None:
        """The mastership ended: whatever was given out is free."""
        for _, _, ledger in self:
            ledger.drop_volatile()

    # --- checkpoints ---

    def parts(self) -> Iterator[GroupPart]:
        """All that a checkpoint has to tell of groups that are here when it begins, in order; `state` of each is to be
        taken before the next one is asked for."""
        for queue_id, group, ledger in list(self):
            if self.get(queue_id, group) is ledger:
                yield from GroupWalk(queue_id, group, ledger).parts()

    def state(self, part: GroupPart) -> State | None:
        """What a part has to tell; None when its group is gone, or made anew."""
        walk = part.walk
        return walk.state(part) if self.get(walk.queue_id, walk.group) is walk.ledger else None

    # --- inside ---

    def _change(self, header: BatchHeader, key: Key, ledger: Ledger, change: _OnLedger | _OfLedger) -> None:
        """Change a ledger in place."""
        journal: Journal | None = None
        if (end := header.log_offset + header.length) > self._confirmed:
            journal = []
            self._undo.append(_Undo(end, key, ledger, key in self._partial, ledger.floor, ledger.watermark, journal))
        try:
            if isinstance(change, Watermark):
                ledger.watermark = change.queue_offset
            else:
                _follow(LedgerUpdate(ledger, journal), change, header.log_offset)
        except ValueError as error:
            raise BadBatch(f"group {key[1]!r} of queue {key[0]}: {error}") from None

    def _put(self, header: BatchHeader, key: Key, ledger: Ledger | None, *, partial: bool = False) -> None:
        """Have another ledger stand there, or none."""
        old = self.get(*key)
        if old is None and ledger is None:
            return
        if old is None or ledger is None or ledger.floor < old.floor:
            self.lowered += 1
        if ledger is not None:
            self.made.add(key[0])
        if header.next_log_offset > self._confirmed:
            self._undo.append(_Undo(header.next_log_offset, key, old, key in self._partial))
        self._set(key, ledger, partial)

    def _set(self, key: Key, ledger: Ledger | None, partial: bool) -> None:
        queue_id, group = key
        if ledger is not None:
            self._queues.setdefault(queue_id, {})[group] = ledger
        elif (groups := self._queues.get(queue_id)) is not None:
            groups.pop(group, None)
            if not groups:
                del self._queues[queue_id]
        (self._partial.add if partial and ledger is not None else self._partial.discard)(key)

    def _complete(self, header: BatchHeader, *, ended: bool) -> None:
        """A checkpoint ended: all that it told is whole. Or another one begins: it tells anew what the one before did
        not come to. Neither says anything of what arrives meanwhile."""
        for key in [key for key in self._partial if not self._is_arriving(key[0])]:
            self._put(header, key, self.get(*key) if ended else None)

    def _take_back(self, undo: _Undo) -> None:
        self._set(undo.key, undo.ledger, undo.partial)
        if undo.ledger is not None and undo.journal is not None:
            LedgerUpdate(undo.ledger).undo(undo.journal, floor=undo.floor, watermark=undo.watermark)


def no_such_group(group: str) -> NoSuchGroup:
    what = f"this queue has no group {group!r}" if group else "nobody has ever subscribed to this queue"
    made = "the first subscription or lease makes it" + (", or the first commit one of a stream" if group else "")
    return NoSuchGroup(f"{what}; {made}", group=group)


def _follow(update: LedgerUpdate, change: _Update, logged_at: int) -> None:
    """Raises ValueError for one that makes no sense."""
    match change:
        case Settled() | Returned():
            _give_or_settle(update, change, logged_at)
        case RecordsLeased():
            _lease(update, change.lease, LeaseRow(change.holder, change.lease_ms, logged_at), change.ranges)
        case ForwardingStarted():
            _lease(update, change.departure, LeaseRow("", 0, logged_at), change.ranges)
        case LedgerChunk():
            restore_chunk(update, change)
        case VerdictsState():
            restore_verdicts(update, change)
        case LeasesState():
            restore_leases(update, change)


def _give_or_settle(update: LedgerUpdate, change: Settled | Returned, logged_at: int) -> None:
    for first, until in _ranges(change.ranges):
        if isinstance(change, Settled):
            (update.die if change.why in DEAD_WHYS else update.settle)(first, until)
        else:
            update.give_again(first, until, counted=change.counted, delay_ms=change.delay_ms, logged_at=logged_at)


def _lease(update: LedgerUpdate, number: int, row: LeaseRow, ranges: list[int]) -> None:
    for first, until in _ranges(ranges):
        update.lease(number, row, first, until)
    update.extend(number, row)


def _ranges(flat: list[int]) -> Iterator[tuple[int, int]]:
    """Raises ValueError when they are not ascending, disjoint and not empty."""
    if len(flat) % 2:
        raise ValueError("a range has no end")
    reached = 0
    for first, until in zip(flat[::2], flat[1::2], strict=True):
        if not reached <= first < until <= _OFFSETS:
            raise ValueError(f"range [{first}, {until}) does not follow {reached}")
        reached = until
        yield first, until
