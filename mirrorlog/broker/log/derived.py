"""What follows from the batches of one log: its index, and the state of queues, groups, producers, holds and the rest.

Each batch is followed once, wherever it comes from: recovery, a producer, the master. The log is the truth, and all of
this can be thrown away (invariant 10). What has a state of its own and follows changes is one entry in a list of
`DerivedState`; nobody is asked to confirm who has nothing open.

`DerivedTables` is in memory, `PastUpkeep` what of the index is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Final, get_args

from mirrorlog.commitlog.files import disk_named
from mirrorlog.commitlog.format.header import BatchHeader, Column, Kind
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.past import Past, PastIndex
from mirrorlog.commitlog.index.past import delete as delete_index
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.config import LimitSettings
from mirrorlog.errors import BadBatch, IndexDoubtful, MirrorlogError
from mirrorlog.queues.changes import Change, MoveChange, OffsetsJumped, QueueArriving, StateGone, decode_changes
from mirrorlog.queues.checkpoint import CheckpointTracker
from mirrorlog.queues.checkpoint_states import GapsState, QueueState, decode_checkpoint
from mirrorlog.queues.dead_letters.forwarding import ForwardingTable
from mirrorlog.queues.groups.table import GroupTable
from mirrorlog.queues.limits.attributes import RunTable
from mirrorlog.queues.limits.holds import HoldTable
from mirrorlog.queues.log_state import DerivedState, LogStartTracker
from mirrorlog.queues.producers import ProducerTable
from mirrorlog.queues.queue_table import id_base_of
from mirrorlog.queues.registry import QueueRegistry

logger = logging.getLogger(__name__)

# Plain numbers: comparing with a member of an enum takes a microsecond.
_DATA: Final = int(Kind.DATA)
_CHECKPOINT: Final = int(Kind.CHECKPOINT)
_CONTROL: Final = int(Kind.CONTROL)
_CHANGES: Final = frozenset({_CONTROL, int(Kind.QUEUE_STATE)})
_ATTRIBUTES: Final = int(Column.ATTRIBUTES)
_MOVES: Final = frozenset(get_args(MoveChange))


class DerivedTables:
    """Of one copy of a log, of whose batches none is known yet. `name`, `number`: the log's."""

    def __init__(self, name: str, number: int, limits: LimitSettings) -> None:
        self._name = name
        self._limits = limits
        self.index = QueueIndex()
        self.index.partial = True
        self.queues = QueueRegistry(
            queues_max=limits.max_queues,
            groups_max=limits.max_groups_per_queue,
            id_base=id_base_of(number),
            acking=lambda queue_id, group: self.groups.get(queue_id, group) is not None,
        )
        self.groups = GroupTable(per_queue_max=limits.max_groups_per_queue, is_arriving=self.queues.moves.is_incomplete)
        self.forwardings = ForwardingTable()
        self.runs = RunTable(runs_max=limits.attribute_runs_max, floors=self.groups.whole_floors)
        self.holds = HoldTable(per_queue_max=limits.max_holds_per_queue)
        self.producers = self._no_producers()
        self._attributes_unknown = False
        self.checkpoints = CheckpointTracker()
        self.begins = LogStartTracker()
        self._states: tuple[DerivedState, ...] = (
            *(self.queues, self.holds, self.groups, self.forwardings, self.checkpoints, self.begins),
        )
        # Of which of them something is not confirmed, and up to where in the log.
        self._unconfirmed: dict[DerivedState | RunTable, int] = {}
        self.start_decided = 0
        """Where the log begins by what is logged and confirmed; it follows when the index is ready for it."""

    def _no_producers(self) -> ProducerTable:
        limits = self._limits
        return ProducerTable(producers_max=limits.max_producers, expiry_us=limits.producer_expiry_ms * 1000)

    # --- a start ---

    def read_tables(self, index: PastIndex, tables: Tables) -> None:
        """What the tables of the sealed segments say, before the batches behind them come."""
        for start, head in sorted(tables.heads.items()):
            self.index.set_past(
                first=start, end=head.end, first_append_time_us=head.first_append_time_us, records=head.records
            )
        for queue_id, (begin, following) in index.queues().items():
            self.index.set_queue(queue_id, begin=begin, next_offset=following)

    def confirm_recorded(self, log_offset: int) -> None:
        """What was confirmed when the copy was closed, or died; before its batches come."""
        self.groups.confirm(log_offset)
        self.forwardings.confirm(log_offset)
        self.runs.confirm(log_offset)

    # --- batches ---

    def apply(self, header: BatchHeader, batch: memoryview, changes: Sequence[Change] | None = None) -> None:
        """A batch stands in the log. `changes`: what it says, if that is known."""
        self.index.add(header)
        kind = header.kind
        if kind == _DATA:
            if header.columns & _ATTRIBUTES or header.queue_id in self.queues.ttls:
                self._apply_attributes(header, batch)
        elif kind == _CHECKPOINT:
            self._apply_checkpoint(header, batch)
        elif kind in _CHANGES:
            # Decoded once: there may be thousands of ranges in it.
            self._apply_changes(header, decode_changes(batch) if changes is None else changes)
        self.producers.apply(header)

    def _apply_attributes(self, header: BatchHeader, batch: memoryview) -> None:
        try:
            self.runs.apply(header, batch, queue_ttl_ms=self.queues.ttls.get(header.queue_id))
        except BadBatch as error:
            # A newer software took it, and knows what it says; a copy must not end for that.
            if not self._attributes_unknown:
                self._attributes_unknown = True
                logger.warning(
                    "attributes_not_known log=%s offset=%s reason=%r; its records are delivered without",
                    self._name, header.log_offset, str(error),
                )  # fmt: skip

    def _apply_changes(self, header: BatchHeader, changes: Sequence[Change]) -> None:
        kinds = set(map(type, changes))
        for state in self._states:
            if not state.follows.isdisjoint(kinds):
                state.follow(header, changes)
                self._unconfirmed[state] = header.log_offset + header.length
        if header.kind == _CONTROL or self.runs.total:
            self.runs.follow(header)
            self._unconfirmed[self.runs] = header.log_offset + header.length
        if header.kind == _CONTROL:
            self.producers.follow(changes)
            if not kinds.isdisjoint(_MOVES):
                self._apply_moves(header, changes)
        if OffsetsJumped in kinds:
            self._apply_jumps(header, changes)

    def _apply_moves(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, StateGone):
                self.runs.state_gone(header, change.queue_id)
            if isinstance(change, QueueArriving):
                left = self.queues.moves.left.get(change.queue_id)
                left_at = left.next_queue_offset if left is not None else 0
                self.index.jump(header.log_offset, (change.queue_id,), change.first, lost=False, left_at=left_at)

    def _apply_jumps(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        for change in changes:
            if isinstance(change, OffsetsJumped):
                # Also of queues that only records tell of: a start, or a copy that begins late, may come to the
                # checkpoint that declares them behind the jump.
                queue_ids = {*self.queues.queue_ids(), *self.index.queue_ids()} - self.queues.moves.ids_elsewhere
                self.index.jump(header.log_offset, queue_ids, change.go_on_at)

    def _apply_checkpoint(self, header: BatchHeader, batch: memoryview) -> None:
        states = decode_checkpoint(batch)
        told: tuple[DerivedState | RunTable, ...] = (*self._states, self.runs)
        for each in told:
            each.restore(header, states)
            self._unconfirmed[each] = header.log_offset + header.length
        self.producers.restore(header, states)
        for state in states:
            # All its records are gone, or the last of them, and only the checkpoint knows that there were some.
            if isinstance(state, QueueState) and state.next_queue_offset > self.index.next_appended(state.queue_id):
                self.index.set_next(state.queue_id, state.next_queue_offset)
            elif isinstance(state, GapsState):
                for queue_id, gap in state.each():
                    self.index.set_gap(queue_id, gap)

    # --- what is confirmed, or cut ---

    def confirm(self, log: CommitLog, log_offset: int) -> Set[int]:
        """Everything below is confirmed; the ids of the queues that gained confirmed records."""
        begins = self._confirm_states(log, log_offset) if self._unconfirmed else {}
        gained = self.index.confirm(log_offset)
        for queue_id, queue_begin in begins.items():
            self.index.set_start(queue_id, queue_begin)
        if self.index.partial and self.start_decided >= log.begin:
            # Before that decision all that is alive below was appended once more.
            self.index.partial = False
        return gained

    def _confirm_states(self, log: CommitLog, log_offset: int) -> dict[int, int]:
        """Of what something is not confirmed; the logged begins of queues that became true by it, by queue id."""
        for state, until in list(self._unconfirmed.items()):
            state.confirm(log_offset)
            if until <= log_offset:
                del self._unconfirmed[state]
        begins = self.queues.take_moved() if self.queues.moved else {}
        if begins:
            self.runs.start_moved(begins)
        log.set_state_from(self.checkpoints.state_from)
        self.start_decided = max(self.start_decided, self.begins.confirmed)
        return begins

    def forget_queues(self, deleted: Set[int]) -> None:
        """Nothing brings them back any more."""
        self.index.forget_queues(deleted)
        self.holds.forget_queues(deleted)
        self.runs.forget_queues(deleted)
        for queue_id in deleted:
            self.groups.forget_queue(queue_id)
            self.forwardings.forget_queue(queue_id)

    def start_moved(self, begin: int, begins: dict[int, int]) -> None:
        """The log begins there. `begins`: see `PastUpkeep.starts_behind`; the other queues begin in memory."""
        index = self.index
        # First what is forgotten, then who begins behind it.
        index.evict(begin)
        for queue_id in index.queue_ids():
            if queue_id not in begins:
                begins[queue_id] = index.hot_first(queue_id)
        index.start_moved(begin, begins)
        if not index.partial:
            # Not `begins`: what was appended once more may stand behind what is first in memory. And a copy that is
            # partial shows less than there is.
            self.runs.start_moved({queue_id: index.begin(queue_id) for queue_id in begins})

    def cut(self, end: int, producers: ProducerTable | None) -> None:
        """The log ends there now. `producers`: see `producers_below`; None: they are as they were."""
        self.index.cut(end)
        for state in self._states:
            state.cut(end)
        self.runs.cut(end, self.index.next_appended)
        if producers is not None:
            self.producers = producers

    def producers_below(self, log: CommitLog, log_offset: int) -> ProducerTable:
        """As a start finds them in a log that ends there; blocking.

        They cannot be cut as the rest can: a batch makes others forgotten. And a batch that is cut must be, or this
        copy, once it is the master, answers its retry as one that landed.
        """
        producers = self._no_producers()

        def follow(header: BatchHeader, batch: memoryview) -> None:
            if header.kind == _CHECKPOINT:
                producers.restore(header, decode_checkpoint(batch))
                return
            if header.kind == _CONTROL:
                producers.follow(decode_changes(batch))
            producers.apply(header)

        log.scan_state(follow, until=log_offset)
        return producers


class PastUpkeep:
    """What the index knows of a log's sealed segments, kept on disk. All of it is blocking, and done on the helper that
    has it for itself. `name`, `directory`: the log's."""

    def __init__(self, name: str, directory: Path, tables: Tables) -> None:
        self._name = name
        self._directory = directory
        self.past = Past(PastIndex.open(directory / INDEX_NAME, tables), tables)

    def add(self, start: int, log: CommitLog) -> None:
        """The segment whose table was stored. Raises LogCorrupt, DiskFull, DiskFailed."""
        with disk_named("index", self._directory):
            try:
                self.past.add(start)
            except IndexDoubtful:
                self.rebuild(log)

    def starts_behind(self, begin: int, log: CommitLog) -> dict[int, int]:
        """See `Past.starts_behind`."""
        with disk_named("index", self._directory):
            try:
                return self.past.starts_behind(begin)
            except IndexDoubtful:
                self.rebuild(log)
                return self.past.starts_behind(begin)

    def drop(self, begin: int, log: CommitLog) -> None:
        """Forget the segments that end at or below `begin`."""
        with disk_named("index", self._directory):
            past = self.past
            try:
                for start in [start for start, head in past.tables.heads.items() if head.end <= begin]:
                    past.drop(start)
            except IndexDoubtful:
                self.rebuild(log)

    def rebuild(self, log: CommitLog) -> None:
        """Make the index anew from the tables, and tables that are damaged from their segments."""
        past = self.past
        with disk_named("rebuild the index of", self._directory):
            with suppress(MirrorlogError):
                past.close()
            for start in sorted(past.tables.heads):
                log.check_table(start)
            delete_index(self._directory / INDEX_NAME)
            past.index = PastIndex.open(self._directory / INDEX_NAME, past.tables)

    def close(self) -> None:
        try:
            self.past.close()
        except MirrorlogError as error:
            # It is derived: without its mark it is made anew at the next start, and this stop is as good as any.
            logger.warning("index_not_closed log=%s reason=%r", self._name, str(error))
