"""What is free of one acking group on its master, and what goes first of it: the order of the queue, and before it that
of the priorities (`queues.attributed`). Pure. Ranges are [first, until), queue offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mirrorlog.queues.attributed import Attributed
from mirrorlog.queues.ledger import Ledger
from mirrorlog.queues.subscriber import Range

RANGES_AT_ONCE: Final = 4096
"""Of what goes, is purged or ends, in one part."""


class FreeRecords:
    """`uncovered`: whether what goes first lay beyond the watermark when it was asked for last."""

    def __init__(self, ledger: Ledger, attributed: Attributed) -> None:
        self.uncovered = False
        self._ledger = ledger
        self._attributed = attributed
        # Below it nothing is free.
        self._from = ledger.floor
        # Where what is confirmed ended when it was asked for last.
        self._end = 0

    @property
    def behind(self) -> bool:
        """Whether some of what `met` was asked about was not looked at, for there is much."""
        return self._attributed.met < self._end or self._attributed.unsorted

    def met(self, end: int, now_us: int, *, taken: bool) -> int:
        """Below which records may be given out of those below `end`: of all these it is known what they ask for.
        `taken`: whether somebody could take one now."""
        attributed = self._attributed
        self._end, self.uncovered = end, False
        if attributed.met < end:
            attributed.meet(end, now_us, taken=taken)
        return 0 if attributed.behind(now_us) else min(end, attributed.met)

    def next(self, limit: int) -> Range | None:
        """The first free records below `limit`, of the highest priority that there is."""
        if (levels := self._attributed.levels) and ((urgent := levels.next_free(limit)) is not None or levels.tired):
            return urgent
        run = self._ledger.next_free(self._from, limit)
        self._from = run[0] if run is not None else max(self._from, limit)
        return run

    def next_covered(self, end: int, covered: int) -> Range | None:
        """What of the next free records below `end` the watermark covers. While it does not cover those of the highest
        priority nobody is given lower ones instead: who has room for one would be kept from the higher by the lower."""
        self.uncovered = False
        if not self._attributed.levels:
            return self.next(min(end, covered))
        run = self.next(end)
        if run is None or run[1] <= covered:
            return run
        self.uncovered = run[0] >= covered
        return None if self.uncovered else (run[0], covered)

    def next_new(self, end: int, *, front: int, asked: int) -> int:
        """Where the next record stands that was not given before. `front`: nothing was from there on; `asked`: the
        watermark as it was asked for last."""
        urgent = self._attributed.levels.next_free(end) if self._attributed.levels else None
        if urgent is not None and urgent[0] >= asked:
            return max(front, urgent[0])  # what it is given before is covered with it
        if self._from < asked or asked <= front or asked >= end:
            return front
        # Nothing below the watermark is free: settled or leased records are passed over, not given.
        run = self._ledger.next_free(asked, end)
        return run[0] if run is not None else end

    def ready(self, end: int, records_max: int) -> list[Range]:
        """The first ready records below `end`, so many at most, some thousand ranges."""
        found, left = list[Range](), records_max
        at = max(self._ledger.floor, self._from)
        while left > 0 and len(found) < RANGES_AT_ONCE and (run := self._ledger.next_free(at, end)) is not None:
            first, at = run[0], min(run[1], run[0] + left)
            found.append((first, at))
            left -= at - first
        return found

    def freed(self, first: int) -> None:
        """This one is free again, and perhaps others behind it."""
        self._from = min(self._from, first)

    def came_back(self, ranges: Sequence[Range]) -> None:
        """They are in nobody's hands any more. Who is too old of them is not free either."""
        if ranges:
            self._attributed.freed(ranges)
            self.freed(min(ranges)[0])
