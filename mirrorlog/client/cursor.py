"""Where a reader stands, and the checked batches that it has fetched and not passed yet. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mirrorlog.client.consumed import ConsumedBatch


class Cursor:
    """`next`: the queue offset behind what was given out, `epoch`: of that; `until`: where to stop before.

    Its user sets `next` and `epoch` as records go out, in whatever steps.
    """

    __slots__ = ("_held", "epoch", "next", "until")

    def __init__(self) -> None:
        self.next = 0
        self.until: int | None = None
        self.epoch = 0
        self._held: deque[ConsumedBatch] = deque()

    @property
    def ended(self) -> bool:
        """Nothing is left to give out, whatever is fetched."""
        if self.until is None:
            return False
        leaps_over = bool(self._held) and self._held[0].first >= self.until
        return self.next >= self.until or leaps_over

    def current(self) -> ConsumedBatch | None:
        """The batch at the position, cut to what is the reader's; None when it ended or must be fetched."""
        held = self._held
        while held and held[0].next <= self.next:
            held.popleft()
        if not held or self.ended:
            return None
        batch = held[0].after(self.next)
        return batch if self.until is None else batch.before(self.until)

    def hold(self, batches: Iterable[ConsumedBatch]) -> None:
        """Take in what follows the batches held already."""
        self._held.extend(batches)

    def passed(self, batch: ConsumedBatch) -> None:
        """All of `batch`, as `current` gave it, was given out."""
        self.epoch, self.next = batch.header.epoch, batch.next

    def seek(self, queue_offset: int) -> None:
        """Stand elsewhere, with nothing held."""
        self._held.clear()
        self.next = queue_offset
