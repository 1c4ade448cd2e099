"""What is taken out of a copy of a log because it is bad, lost or of another history: where to cut, and what is kept.

Nothing is cut that was not set aside before, and of copies set aside there are so many and no more: whoever cleans up
decides what is not wanted. A cut goes down to a place from which on a checkpoint says what the queues were.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from mirrorlog.commitlog.files import Files, disk_named
from mirrorlog.commitlog.format.header import BatchHeader
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.quarantine import (
    find_quarantined_tail,
    next_quarantine,
    quarantine_damage,
    quarantine_tail,
    quarantined_copies,
    unfinished_quarantine,
)
from mirrorlog.errors import LogCorrupt, LogUnavailable
from mirrorlog.queues.checkpoint import CheckpointTracker


class CopyRepair:
    """Of the copy in one directory. `name`: the log's; `aside_max`: so many copies are kept beside it. All blocking."""

    def __init__(self, name: str, directory: Path, files: Files, *, aside_max: int) -> None:
        self._name = name
        self._directory = directory
        self._files = files
        self._aside_max = aside_max

    def check_aside(self, what: str) -> None:
        """Whether one more may be set aside, because this copy must `what`. Raises LogUnavailable, or DiskFailed."""
        with disk_named("list the copies beside", self._directory):
            found = quarantined_copies(self._directory)
        if len(found) >= self._aside_max:
            raise LogUnavailable(
                f"this copy of log {self._name} must {what}, but {len(found)} former ones are set aside "
                f"already (log.copies_aside_max), the oldest {found[0]}; remove those that nobody wants"
            )

    def keep_tail(self, log: CommitLog, log_offset: int, queues: Mapping[int, str]) -> Path:
        """Keep what stands from `log_offset` on beside this copy; the path. `queues`: their names. Raises
        LogUnavailable, LogCorrupt, DiskFull or DiskFailed."""
        with disk_named("set aside a part of", self._directory):
            if (found := find_quarantined_tail(self._files, log, log_offset)) is not None:
                return found
            self.check_aside("be cut")
            self.state_below(log, log_offset)
            return quarantine_tail(self._files, log, log_offset, queues=dict(queues))

    def keep_damaged(self, log: CommitLog, *, whole: bool) -> Path | None:
        """The same from the first bad byte on; None when it cannot be told what the queues were, and the `whole` copy
        has to go."""
        with disk_named("set aside a part of", self._directory):
            if unfinished_quarantine(self._files, log) is None:
                self.check_aside("be cut where it is bad")
            return None if whole else quarantine_damage(self._files, log, queues={})

    def keep_whole(self, *, empty: bool) -> None:
        """Set the whole copy aside, which is closed; an `empty` one is removed."""
        with disk_named("begin anew in", self._directory):
            # Renamed first in any case: a directory that is half removed when the process is killed is nobody's log.
            former = next_quarantine(self._directory)
            self._directory.rename(former)
            if empty:
                shutil.rmtree(former)

    def state_below(self, log: CommitLog, log_offset: int) -> int:
        """Where the newest state checkpoint begins that is complete below `log_offset`; 0 when none is, and none is
        needed. Raises LogUnavailable when none is and the log's first bytes are gone."""
        for first in (max(log.state_from, log.begin), log.begin):
            found = CheckpointTracker()

            def follow(header: BatchHeader, batch: memoryview, found: CheckpointTracker = found) -> None:
                found.apply(header, batch)

            if first < log_offset:
                log.scan(first, follow, until=log_offset)
            found.confirm(log_offset)
            if found.state_from or log.begin == 0:
                return found.state_from
        raise LogUnavailable(
            f"this copy of log {self._name} must be cut at {log_offset}, and nothing below says what its "
            f"queues were; stop the node and move {self._directory} away: it is copied anew"
        )


class NoLog:
    """Stands where a log will be."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> NoReturn:
        raise LogUnavailable(f"this copy of log {self._name} begins anew; ask again")


class DamagedLog:
    """Stands where the log of a damaged copy is: says what it holds, and refuses everything else by what is wrong."""

    _FACTS: Final = frozenset({"begin", "end", "flushed", "confirmed", "epochs", "claim", "recovery"})

    def __init__(self, log: CommitLog, error: LogCorrupt) -> None:
        self._log = log
        self._error = error

    def __getattr__(self, attribute: str) -> Any:
        if attribute in self._FACTS:
            return getattr(self._log, attribute)
        raise self._error.with_traceback(None)  # shared: it must not collect its raisers' frames
