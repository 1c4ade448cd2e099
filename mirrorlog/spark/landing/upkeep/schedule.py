"""When a table is tidied, and how much of it may go. Pure.

Small commits make small files and a long log. Compaction joins the files, a checkpoint shortens the log, VACUUM
removes what no version within reach needs. Each has a time between two runs; and where there is more to do than that
time was meant for, compaction and checkpoint come early.

What VACUUM must not take are the files of a step that is not committed yet: no commit names them. So a step has a time
within which it must commit (`STEP_S_MAX`; `refuse_old_files` keeps it), and nothing younger than `KEEP_S_MIN` is
removed. It is twice as long, so that the clocks of the storage and of two drivers may differ by hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from mirrorlog.spark.errors import LandingConflict, UnsafeRetention
from mirrorlog.spark.landing.definition import KEEP_S_MIN, Upkeep

STEP_S_MAX: Final = KEEP_S_MIN / 2
"""Within this time from the first file of a step on it has to be committed, or it begins again."""

SMALL_FILES_MIN: Final = 8
"""Fewer small files are not worth a scheduled compaction: it would write the last, nearly full one again and again."""
SMALL_FILES_MAX: Final = 1_000
"""So many are compacted before their time."""
COMMITS_MAX: Final = 100
"""After so many commits a checkpoint comes before its time."""


class Duty(StrEnum):
    """What there is to do, in the order in which it is done: a checkpoint after the commit of a compaction."""

    COMPACT = "compact"
    CHECKPOINT = "checkpoint"
    VACUUM = "vacuum"


@dataclass(frozen=True, slots=True)
class FolderFiles:
    """The data files of one partition. `small`: those below the size that is worth joining."""

    files: int
    bytes: int
    small_files: int
    small_bytes: int


@dataclass(frozen=True, slots=True)
class TableFiles:
    """A table's data files by partition, and its commits that no checkpoint has."""

    version: int
    folders: Sequence[FolderFiles] = field(default_factory=tuple)
    commits_since_checkpoint: int = 0

    @property
    def files(self) -> int:
        return sum(folder.files for folder in self.folders)

    @property
    def bytes(self) -> int:
        return sum(folder.bytes for folder in self.folders)

    @property
    def joinable(self) -> int:
        """Small files that have another one beside them."""
        return sum(folder.small_files for folder in self.folders if folder.small_files > 1)

    def files_when_joined(self, target_bytes: int) -> int:
        """How many there will be after a compaction into files of `target_bytes`, about."""
        gone = (folder.small_files - -(-folder.small_bytes // target_bytes) for folder in self.folders)
        return self.files - sum(max(0, each) for each in gone)


def small_below(target_bytes: int) -> int:
    """Files below this size are joined: a file that is half full is left alone."""
    return target_bytes // 2


def may_be_due(upkeep: Upkeep, now_s: float, *, looked_s: float | None) -> bool:
    """Whether it is worth to look at the table's files, which costs a job: once a minute, or as often as a duty comes.

    `looked_s`: when that was done last, None never; `now_s`: of the same monotonic clock.
    """
    every = [every_s for every_s in _every(upkeep).values() if every_s is not None]
    return bool(every) and (looked_s is None or now_s - looked_s >= min(_LOOK_S, *every))


def due(upkeep: Upkeep, done_s: Mapping[Duty, float], now_s: float, seen: TableFiles) -> list[Duty]:
    """What to do now, in order. A duty that was never done is due; one that has no time in `upkeep` is not ours."""
    in_time, every = _in_time(upkeep, done_s, now_s), _every(upkeep)
    wanted = {
        Duty.COMPACT: (Duty.COMPACT in in_time and seen.joinable >= SMALL_FILES_MIN)
        or seen.joinable >= SMALL_FILES_MAX,
        Duty.CHECKPOINT: (Duty.CHECKPOINT in in_time and seen.commits_since_checkpoint > 0)
        or seen.commits_since_checkpoint >= COMMITS_MAX,
        Duty.VACUUM: Duty.VACUUM in in_time,
    }
    return [duty for duty in Duty if wanted[duty] and every[duty] is not None]


def safe_keep_s(keep_s: float) -> float:
    """`keep_s` itself. Raises UnsafeRetention when files of a step that is at work could be younger."""
    if keep_s < KEEP_S_MIN:
        raise UnsafeRetention(
            f"keeping files for {keep_s:g} s is too short: those of a landing's step that is not committed yet would "
            f"be removed; keep them for {KEEP_S_MIN:g} s (24 hours) or longer"
        )
    return keep_s


def refuse_old_files(modified_ms: Iterable[int], *, now_ms: int) -> None:
    """For a step before it commits: raise LandingConflict when its oldest file may be gone. Times are since 1970."""
    oldest_ms = min(modified_ms, default=now_ms)
    if now_ms - oldest_ms > STEP_S_MAX * 1000:
        raise LandingConflict(
            f"the step took {(now_ms - oldest_ms) / 1000:g} s, its files may have been removed after {STEP_S_MAX:g} s; "
            "nothing was added, run again with a smaller max_bytes"
        )


_LOOK_S: Final = 60.0


def _every(upkeep: Upkeep) -> dict[Duty, float | None]:
    return {
        Duty.COMPACT: upkeep.compact_every_s,
        Duty.CHECKPOINT: upkeep.checkpoint_every_s,
        Duty.VACUUM: upkeep.vacuum_every_s,
    }


def _in_time(upkeep: Upkeep, done_s: Mapping[Duty, float], now_s: float) -> set[Duty]:
    return {
        duty
        for duty, every_s in _every(upkeep).items()
        if every_s is not None and (duty not in done_s or now_s - done_s[duty] >= every_s)
    }
