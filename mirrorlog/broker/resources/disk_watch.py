"""Looks at the disk of the data directory, and whether that is still there, once a second. Thin: `disk_limits` decides.

On a helper of its own: asking a disk that does not answer may take for ever, and then nobody else is to wait for it.
Rejected: to ask before each publish (a system call each), or only when a file cannot be made (too late to warn, and
the space that the index, the epoch lists and everybody else on that disk needs is gone by then).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from mirrorlog.broker.resources.disk_limits import DiskLimits, DiskReport, DiskSpace, DiskState
from mirrorlog.broker.resources.watching import INTERVAL_S, Looking
from mirrorlog.commitlog.directory import LOGS_NAME
from mirrorlog.commitlog.quarantine import all_quarantined
from mirrorlog.config import LogSettings
from mirrorlog.errors import MirrorlogError

logger = logging.getLogger(__name__)


def measure(path: Path) -> DiskSpace:
    """The file system that `path` is on; blocking. Raises OSError."""
    found = os.statvfs(path)
    size = found.f_blocks - found.f_bfree + found.f_bavail
    return DiskSpace(size * found.f_frsize, found.f_bavail * found.f_frsize)


def _in_place() -> None:
    """Nobody asks whether it is."""


def _nobody(error: MirrorlogError) -> None:
    """Nobody is to hear of it."""


def find_aside(path: Path) -> tuple[str, ...]:
    """The copies that were set aside in a data directory; blocking. Raises OSError."""
    logs = path / LOGS_NAME
    return tuple(str(each) for each in all_quarantined(logs)) if logs.exists() else ()


class DiskWatch:
    """One data directory. `report` is None until it was measured for the first time.

    Each of `on_measured` is called with every report, on the loop.
    """

    def __init__(
        self,
        path: Path,
        settings: LogSettings,
        *,
        helper: Executor,
        measure: Callable[[Path], DiskSpace] = measure,
        check: Callable[[], None] = _in_place,
        failed: Callable[[MirrorlogError], None] = _nobody,
        interval_s: float = INTERVAL_S,
    ) -> None:
        """`check`: blocking, whether the directory is still the one that was opened; `failed` is told when not."""
        self.report: DiskReport | None = None
        self.on_measured: list[Callable[[DiskReport], None]] = []
        self._path = path
        self._settings = settings
        self._helper = helper
        self._measure = measure
        self._check = check
        self._failed_with = failed
        self._failed = ""
        self._aside: tuple[str, ...] = ()
        self._looking = Looking("disk", self._look, interval_s=interval_s)

    async def start(self) -> None:
        """Returns when the disk was measured once, or could not be."""
        await self._looking.start()

    async def stop(self) -> None:
        await self._looking.stop()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._helper, self._check)
        except MirrorlogError as error:
            self._failed_with(error)
            return
        with contextlib.suppress(OSError):  # only named beside what was measured
            self._aside = await loop.run_in_executor(self._helper, find_aside, self._path)
        try:
            # Last, so that what is measured is told at once: files are made meanwhile.
            space = await loop.run_in_executor(self._helper, self._measure, self._path)
        except OSError as error:
            if str(error) != self._failed:
                logger.warning("disk_not_measured path=%s reason=%r", self._path, str(error))
            self._failed = str(error)
            return
        self._failed = ""
        self._measured(space)

    def _measured(self, space: DiskSpace) -> None:
        before = self.report.state if self.report is not None else DiskState.OK
        limits = DiskLimits.of(self._settings, space.size_bytes)
        report = DiskReport(limits.judge(space.free_bytes, before), space, limits, self._aside)
        self.report = report
        if report.state is not before:
            _told(before, report, self._path)
        for tell in self.on_measured:
            tell(report)


def _told(before: DiskState, report: DiskReport, path: Path) -> None:
    space, limits = report.space, report.limits
    logger.log(
        logging.INFO if report.state is DiskState.OK else logging.WARNING,
        "disk_state_changed state=%s was=%s free_bytes=%s size_bytes=%s low_bytes=%s full_bytes=%s path=%s aside=%s",
        report.state.value, before.value, space.free_bytes, space.size_bytes, limits.low_bytes, limits.full_bytes, path,
        ",".join(report.aside) or "-",
    )  # fmt: skip
