"""How much of a disk must be free, and what holds with less: two watermarks. Pure.

A disk is `low` when it is time to do something about it, or when no further segment fits; it is `full` when the log
takes no more data. A limit is a share of the disk and never more than a number of bytes: a hundredth of a large disk is
more than anybody needs, and a gigabyte of a small one is all of it. A state gets worse at its limit and better a
quarter above it, so that it does not change with every file that comes and goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Self

from mirrorlog.commitlog.segments.preallocation import FIRST_BYTES
from mirrorlog.config import LogSettings


class DiskState(Enum):
    OK = "ok"
    LOW = "low"
    FULL = "full"


class DiskSpace(NamedTuple):
    """Of a file system, in bytes, without what only its administrator may use."""

    size_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """Below `low_bytes` free a disk is low, below `full_bytes` full."""

    low_bytes: int
    full_bytes: int

    @classmethod
    def of(cls, settings: LogSettings, size_bytes: int) -> Self:
        """Those of a disk of that size. One without a low limit (0 percent) is never low."""
        full = min(int(size_bytes * settings.disk_full_percent / 100), settings.disk_full_bytes)
        low = min(int(size_bytes * settings.disk_low_percent / 100), settings.disk_low_bytes)
        next_file = min(settings.segment_bytes, FIRST_BYTES)  # on a small disk files are no larger
        return cls(low_bytes=max(low, full + next_file) if low else 0, full_bytes=full)

    def judge(self, free_bytes: int, before: DiskState) -> DiskState:
        """What state the disk is in now."""
        if free_bytes < _limit(self.full_bytes, leaving=before is DiskState.FULL):
            return DiskState.FULL
        if free_bytes < _limit(self.low_bytes, leaving=before is not DiskState.OK):
            return DiskState.LOW
        return DiskState.OK


def _limit(limit_bytes: int, *, leaving: bool) -> int:
    return limit_bytes + limit_bytes // 4 if leaving else limit_bytes


MIRROR_KEEPS: Final = 4
"""A mirror leaves the fourth part of the full limit free, for what is not the log's data."""
_NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class DiskReport:
    """A disk as it was last measured. `aside`: former copies of logs on it, which its operator may remove."""

    state: DiskState
    space: DiskSpace
    limits: DiskLimits
    aside: tuple[str, ...] = ()

    @property
    def allowed_bytes(self) -> int:
        """How much of it new files for data may take."""
        return max(0, self.space.free_bytes - self.limits.full_bytes)

    @property
    def allowed_to_mirror_bytes(self) -> int:
        """The same for a log that is mirrored here. A mirror takes what its master has taken, whose disk may have a
        little more room: if both stopped at one limit, this one would stop first, and with it retention, which needs
        every copy. So it may use most of what the limit keeps."""
        return max(0, self.space.free_bytes - self.limits.full_bytes // MIRROR_KEEPS)

    @property
    def refusal(self) -> str:
        """Why data is refused; empty while it is not."""
        if self.state is not DiskState.FULL:
            return ""
        return (
            f"{self._free}, below the {self.limits.full_bytes} that log.disk_full_percent and log.disk_full_bytes "
            f"keep; nothing was stored, {self._advice}"
        )

    @property
    def warning(self) -> str:
        """What is wrong with it, for people; empty while nothing is."""
        if self.state is DiskState.LOW:
            return f"{self._free}, below the {self.limits.low_bytes} at which it is low; {self._advice}"
        return self.refusal

    @property
    def _free(self) -> str:
        return f"the disk is {self.state.value}: {self.space.free_bytes} of {self.space.size_bytes} bytes are free"

    @property
    def _advice(self) -> str:
        if not self.aside:
            return "free space on it"
        more = len(self.aside) - _NAMED_MAX
        named = ", ".join(self.aside[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
        return f"free space on it, perhaps of former copies that were set aside: {named}"
