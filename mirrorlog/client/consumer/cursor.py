"""Where a reader stands, and the checked batches that it has fetched and not passed yet. Pure.

Whoever collects records to return them together looks ahead of the cursor with a Preview, and moves the cursor only
when they are all there: what is given up on the way is not lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mirrorlog.client.consumer.records import ClosedBatch, ConsumedBatch, ConsumedRecord

Held = ClosedBatch | ConsumedBatch
"""A proven batch; a closed one is opened when somebody comes to it, and forgotten when he leaves it."""


class Cursor:
    """A reader's place. `next`: the queue offset behind what was given out, `epoch`: of that, in the log `log_id`;
    `until`: where to stop before.

    Its user sets `next`, `epoch` and `log_id` as records go out, in whatever steps.
    """

    __slots__ = ("_gone", "_held", "_kind", "_open", "epoch", "log_id", "next", "until")

    def __init__(self, kind: type[ConsumedRecord] = ConsumedRecord) -> None:
        """`kind`: of the records that it leads to."""
        self._kind = kind
        self.next = 0
        self.until: int | None = None
        self.epoch = 0
        self.log_id = ""
        self._held: deque[Held] = deque()
        # The held batch that was opened last, and what it holds.
        self._open: tuple[Held, ConsumedBatch] | None = None
        # So many batches were held and are no more: with it a Preview finds its place again.
        self._gone = 0

    @property
    def ended(self) -> bool:
        """Nothing is left to give out, whatever is fetched."""
        return self._ends_at(0, self.next)

    @property
    def fetched(self) -> int:
        """The queue offset behind all that is held: where the next fetch begins."""
        return max(self.next, self._held[-1].next) if self._held else self.next

    @property
    def lacks(self) -> bool:
        """Whether something must be fetched before anything can be given out."""
        self._drop_passed()
        return self._lacks(0, self.next)

    def current(self) -> ConsumedBatch | None:
        """The batch at the position, cut to what is the reader's; None when it ended or must be fetched.

        Raises BadBatch for one that cannot be opened; then the position is before it.
        """
        self._drop_passed()
        return self._batch(0, self.next)

    def hold(self, batches: Iterable[Held]) -> None:
        """Take in what follows the batches held already."""
        self._held.extend(batches)

    def passed(self, batch: ConsumedBatch) -> None:
        """All of `batch`, as `current` gave it, was given out."""
        self.epoch, self.log_id, self.next = batch.header.epoch, batch.log_id, batch.next

    def seek(self, queue_offset: int) -> None:
        """Stand elsewhere, with nothing held."""
        self._gone += len(self._held)
        self._held.clear()
        self._open = None
        self.next = queue_offset

    def _drop_passed(self) -> None:
        held = self._held
        while held and held[0].next <= self.next:
            held.popleft()
            self._gone += 1
        if not held:
            self._open = None

    # --- for a Preview too ---

    def _ends_at(self, index: int, queue_offset: int) -> bool:
        """Whether nothing is left from `queue_offset` on, where held batch `index` is the next one."""
        if self.until is None:
            return False
        gap_reaches_it = index < len(self._held) and self._held[index].first >= self.until
        return queue_offset >= self.until or gap_reaches_it

    def _batch(self, index: int, queue_offset: int) -> ConsumedBatch | None:
        if index >= len(self._held) or self._ends_at(index, queue_offset):
            return None
        batch = self._opened(self._held[index]).after(queue_offset)
        return batch if self.until is None else batch.before(self.until)

    def _lacks(self, index: int, queue_offset: int) -> bool:
        return index >= len(self._held) and not self._ends_at(index, queue_offset)

    def _opened(self, held: Held) -> ConsumedBatch:
        if self._open is None or self._open[0] is not held:
            self._open = None  # its memory is free before the next one needs some
            self._open = held, held.opened(self._kind)
        return self._open[1]


class Preview:
    """What a cursor will give out next, without moving it before `claim`; it ends when that is moved from elsewhere."""

    __slots__ = ("_began", "_cursor", "_epoch", "_log_id", "_next", "_number")

    def __init__(self, cursor: Cursor) -> None:
        cursor._drop_passed()  # else each preview would look at all that was given out before it
        self._cursor = cursor
        self._began = self._next = cursor.next
        self._epoch, self._log_id = cursor.epoch, cursor.log_id
        self._number = cursor._gone

    @property
    def ended(self) -> bool:
        """Nothing is left behind what was passed, whatever is fetched."""
        return self._stale or self._cursor._ends_at(self._index(), self._next)

    @property
    def lacks(self) -> bool:
        """Whether something must be fetched before more can be collected."""
        return not self._stale and self._cursor._lacks(self._index(), self._next)

    def current(self) -> ConsumedBatch | None:
        """The batch behind what was passed, cut to what is the reader's; as of the cursor."""
        return None if self._stale else self._cursor._batch(self._index(), self._next)

    def passed(self, batch: ConsumedBatch) -> None:
        """All of `batch`, as `current` gave it, was collected."""
        self._epoch, self._log_id, self._next = batch.header.epoch, batch.log_id, batch.next

    def claim(self) -> bool:
        """Move the cursor behind all that was passed; False, without that, when it was moved from elsewhere."""
        if self._stale:
            return False
        self._cursor.epoch, self._cursor.log_id = self._epoch, self._log_id
        self._cursor.next = self._began = self._next
        return True

    @property
    def _stale(self) -> bool:
        return self._cursor.next != self._began

    def _index(self) -> int:
        """Of the held batch at, or else behind, what was passed."""
        cursor = self._cursor
        held, gone = cursor._held, cursor._gone
        number = max(self._number, gone)
        while number - gone < len(held) and held[number - gone].next <= self._next:
            number += 1
        self._number = number
        return number - gone
