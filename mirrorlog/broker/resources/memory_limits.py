"""How much memory a node may hold before it takes no more data: a watermark. Pure.

What counts is anonymous memory, of the node and of its doors, swapped out or not: only that must be kept. The mapped
segments of logs are page cache, which the system takes back when it needs it; counted, every node with a log larger
than its machine would refuse data for ever. For the same reason what a container "uses" counts only without its files.

The node has the machine's memory or its container's, whichever is less, and of that no more than others leave: it is
high at a share of what it holds and what is free together, so that it takes no more data before the machine swaps,
whoever fills it. Rejected: a limit in what is free alone (a small node would be stopped by a neighbour's balloon of
which it has no part), and a share of the machine alone (two nodes on one machine would fill it).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Self

from mirrorlog.config import LimitSettings


class MemoryState(Enum):
    OK = "ok"
    HIGH = "high"


class MemoryUse(NamedTuple):
    """`used_bytes`: anonymous memory of the node and its doors; `size_bytes`: of the machine or the container;
    `available_bytes`: what nobody holds of that."""

    used_bytes: int
    size_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """From `high_bytes` on it is high, until it is below `low_bytes`; 0: never."""

    high_bytes: int
    low_bytes: int

    @classmethod
    def of(cls, settings: LimitSettings, use: MemoryUse) -> Self:
        """Those of a node that has so much."""
        room = min(use.size_bytes, use.used_bytes + use.available_bytes)
        if settings.memory_bytes is not None:
            room = min(room, settings.memory_bytes)
        return cls(
            high_bytes=int(room * settings.memory_high_percent / 100),
            low_bytes=int(room * settings.memory_low_percent / 100),
        )

    def judge(self, used_bytes: int, before: MemoryState) -> MemoryState:
        """What state the node is in now."""
        limit = self.low_bytes if before is MemoryState.HIGH else self.high_bytes
        return MemoryState.HIGH if self.high_bytes and used_bytes >= limit else MemoryState.OK


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """A node's memory as it was last measured."""

    state: MemoryState
    use: MemoryUse
    limits: MemoryLimits

    @property
    def refusal(self) -> str:
        """Why data is refused; empty while it is not."""
        if self.state is not MemoryState.HIGH:
            return ""
        limits = self.limits
        return (
            f"the node's memory is high: it and its doors hold {self.use.used_bytes} bytes, of {limits.high_bytes} "
            f"(limits.memory_high_percent); nothing was stored, data is taken again below {limits.low_bytes} "
            "(limits.memory_low_percent)"
        )
