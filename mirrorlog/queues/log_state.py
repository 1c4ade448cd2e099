"""What follows from a log's changes and checkpoints: one interface for all that a copy keeps of them.

Groups, holds, positions, what leaves for other queues: each is told of the changes that it follows, of every
checkpoint, of what is confirmed, and of a cut. So whoever keeps a copy holds a list of them, and a feature with a state
of its own adds one line to that list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, ClassVar, Protocol

from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.queues.changes import Change, LogStartMoved
from mirrorlog.queues.checkpoint_states import QueueStartsState, State


class DerivedState(Protocol):
    """`follows`: the kinds of changes of which it wants to hear."""

    follows: ClassVar[frozenset[type]]

    def follow(self, header: BatchHeader, changes: Iterable[Any]) -> None:
        """A batch of changes was appended; there are some among them that it follows."""

    def restore(self, header: BatchHeader, states: Iterable[Any]) -> None:
        """A batch of a checkpoint was appended, which says again what stood before it."""

    def confirm(self, log_offset: int) -> object:
        """Everything below `log_offset` is confirmed. Asked for as long as something that it follows is not."""

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""


# Where a log begins: decided by its master, logged, and true for every copy once that is confirmed (invariant 12).
#
# Pure: batches in, a log offset out.


class LogStartTracker:
    """The decisions that a log holds."""

    follows: ClassVar[frozenset[type]] = frozenset({LogStartMoved})

    def __init__(self) -> None:
        # (end of the batch, new start offset) of those that are not confirmed.
        self._unconfirmed: deque[tuple[int, int]] = deque()
        self.confirmed = 0
        """Where the log begins by what is confirmed; 0 without a decision."""

    @property
    def newest(self) -> int:
        """Where the log will begin by the newest decision, confirmed or not; 0 without one."""
        return max(self.confirmed, self._unconfirmed[-1][1] if self._unconfirmed else 0)

    def follow(self, header: BatchHeader, changes: Iterable[Change]) -> None:
        """A batch of changes was appended."""
        for change in changes:
            if isinstance(change, LogStartMoved):
                self._unconfirmed.append((header.next_log_offset, change.log_offset))

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended, which says again what was decided before it."""
        for state in states:
            if isinstance(state, QueueStartsState) and state.log_start > self.newest:
                self._unconfirmed.append((header.next_log_offset, state.log_start))

    def confirm(self, log_offset: int) -> int | None:
        """Everything below `log_offset` is confirmed. Gives where the log begins by what became true now, or None."""
        begin = None
        while self._unconfirmed and self._unconfirmed[0][0] <= log_offset:
            begin = self.confirmed = self._unconfirmed.popleft()[1]
        return begin

    def cut(self, log_offset: int) -> None:
        """The log now ends at `log_offset`."""
        while self._unconfirmed and self._unconfirmed[-1][0] > log_offset:
            self._unconfirmed.pop()
