"""What a leader knows of another member's log, and how much it may send it before it hears of that. Pure.

PROBE: where the logs part is not known; one Append at a time finds out. REPLICATE: it is; entries are sent without
waiting, so many and so large. SNAPSHOT: what the member lacks is not in the log any more; pieces of the snapshot go
out, one at a time.

What got lost is found by rounds, not by time: when a heartbeat that was sent later is answered and the entries are not,
they are sent anew. So a slow disk or a narrow connection gets nothing twice, and a dead member gets heartbeats alone.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final

IN_FLIGHT_MAX: Final = 32
"""Appends sent to a member that it has not answered."""


class Stage(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """`matched`: up to here its log is the leader's; `next`: the first index that was not sent; `told`: up to here it
    was said to be committed; `heard_at`: its last answer, on the leader's clock; `round`: the newest one answered."""

    __slots__ = (
        "_in_flight", "_one_sent_in", "heard_at", "matched", "next", "part_at", "round", "snapshot_index", "stage",
        "told",
    )  # fmt: skip

    def __init__(self, *, next_index: int, now: float) -> None:
        self.stage = Stage.PROBE
        self.matched = self.told = 0
        self.next = next_index
        self.heard_at = now
        self.round = 0
        self.snapshot_index = self.part_at = 0
        """Which snapshot it is sent, and the byte of its state that it wants next."""
        # The round of the probe or piece that is on its way, one at most; last index and round of each Append that is.
        self._one_sent_in: int | None = None
        self._in_flight: deque[tuple[int, int]] = deque()

    @property
    def may_send(self) -> bool:
        """Whether entries, or a piece of the snapshot, may leave now."""
        if self.stage is Stage.REPLICATE:
            return len(self._in_flight) < IN_FLIGHT_MAX
        return self._one_sent_in is None

    # --- what left ---

    def sent(self, last_index: int, round_: int) -> None:
        """Entries up to `last_index` are on their way."""
        if self.stage is Stage.PROBE:
            self._one_sent_in = round_
        else:
            self._in_flight.append((last_index, round_))
            self.next = last_index + 1

    def send_snapshot(self, index: int) -> None:
        """What it lacks is not in the log any more; from the snapshot's first byte."""
        self.stage, self.snapshot_index, self.part_at = Stage.SNAPSHOT, index, 0
        self._one_sent_in = None
        self._in_flight.clear()

    def part_sent(self, round_: int) -> None:
        """The piece at `part_at` is on its way."""
        self._one_sent_in = round_

    # --- what came back ---

    def taken(self, matched: int) -> None:
        """It holds everything up to `matched`."""
        self.matched = max(self.matched, matched)
        while self._in_flight and self._in_flight[0][0] <= self.matched:
            self._in_flight.popleft()
        if self.stage is Stage.SNAPSHOT and matched >= self.snapshot_index:
            self._probe(self.matched + 1)
        elif self.stage is Stage.PROBE and matched >= self.next - 1:
            self.stage, self._one_sent_in = Stage.REPLICATE, None
        self.next = max(self.next, self.matched + 1)

    def refused(self, following: int) -> None:
        """The entry before what was sent is not there: the logs may be the same below `following`."""
        if self.stage is not Stage.SNAPSHOT:
            self._probe(max(self.matched + 1, min(following, self.next)))

    def wants_part(self, at: int) -> None:
        """The piece at byte `at` is next. Asked for again, it is on its way already: nothing multiplies."""
        if at != self.part_at:
            self.part_at, self._one_sent_in = at, None

    def answered(self, round_: int, now: float) -> None:
        """It answered something of that round: what was sent in an older one and is still unanswered got lost."""
        self.heard_at = now
        self.round = max(self.round, round_)
        if self._one_sent_in is not None and self._one_sent_in < self.round:
            self._one_sent_in = None
        if self._in_flight and self._in_flight[0][1] < self.round:
            self._probe(self.matched + 1)

    def _probe(self, following: int) -> None:
        self.stage = Stage.PROBE
        self.next = following
        self._one_sent_in = None
        self._in_flight.clear()
