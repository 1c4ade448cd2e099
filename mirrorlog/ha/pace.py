"""How fast copies are filled that are made for a move: bytes per second that a node sends for it. Pure.

A copy that moves for evenness is no emergency, and it shares the network and the disks with those who publish. So what
a node sends to all such copies together has a limit (`cluster.move_bytes_per_s`), and while moving is paused they are
sent nothing. A copy that is in sync is never held back, nor one for which confirms wait already because it is about to
be; nor one that fell behind, or takes the place of a lost one: those are missing.

It is sent in small runs and short steps. What a node can send at all is often not much more than the limit, and all
that is in a run comes before the publishes of others: at 200 Mbit/s 1 MiB takes 42 ms, and what is more than the
network holds is dropped, which costs whoever lost something 200 ms.

A bucket that is filled by time and may go into debt by one run, so that runs need not be cut. Rejected: a smaller
window of what is in flight; its rate depends on the way there and back.
"""

from __future__ import annotations

from typing import Final, Protocol

BURST_S: Final = 0.02
"""Of so many seconds bytes may be sent at once after a rest."""
STEP_S: Final = 0.005
"""How often it is looked whether it goes on."""
RUN_BYTES_MAX: Final = 64 * 1024
"""Of a run that is held back, unless its batch is larger."""


class Filling(Protocol):
    """Of a log: who is filled for a move."""

    @property
    def paused(self) -> bool: ...
    def holds_back(self, node: str) -> bool:
        """Whether the limit is for this mirror, now."""


class MovePace:
    """Of a node, for all links by which it fills such copies. `bytes_per_s`: 0 for no limit."""

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._left = 0.0
        self._at = 0.0

    def wait_s(self, now: float) -> float:
        """Until something may be sent; 0 for now."""
        if not self.bytes_per_s:
            return 0.0
        if now > self._at:
            most = self.bytes_per_s * BURST_S
            self._left = min(most, self._left + (now - self._at) * self.bytes_per_s)
            self._at = now
        return 0.0 if self._left > 0 else (1.0 - self._left) / self.bytes_per_s

    def spend(self, size: int) -> None:
        """It was sent."""
        self._left -= size


class LinkPace:
    """Of one link."""

    def __init__(self, pace: MovePace, log: Filling, node: str) -> None:
        self._pace = pace
        self._log = log
        self._node = node

    @property
    def over(self) -> bool:
        """Whether nothing holds this mirror back any more."""
        return not self._log.holds_back(self._node)

    @property
    def bytes_per_s(self) -> int:
        """That the node sends to all such mirrors together; 0 for no limit, -1 while nothing is sent."""
        return -1 if self._log.paused else self._pace.bytes_per_s

    def holds(self, now: float) -> bool:
        """Whether nothing may be sent now."""
        return self._log.paused or self._pace.wait_s(now) > 0

    def spend(self, size: int) -> None:
        """It was sent."""
        self._pace.spend(size)
