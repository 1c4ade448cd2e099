"""The watch: who is told of what was measured, and that a disk that cannot be measured is no end of it."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from mirrorlog.broker.resources.disk_limits import DiskReport, DiskSpace
from mirrorlog.broker.resources.disk_watch import DiskWatch, measure
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.config import LogSettings
from mirrorlog.errors import DirectoryGone, MirrorlogError

GIB = 1024**3


@pytest.fixture
def helper() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


class Disk:
    """Gives what is next in `free` (GiB, or an error) and the last for ever."""

    def __init__(self, *free: int | OSError) -> None:
        self.free = list(free)

    def measure(self, path: Path) -> DiskSpace:
        now = self.free.pop(0) if len(self.free) > 1 else self.free[0]
        if isinstance(now, OSError):
            raise now
        return DiskSpace(100 * GIB, now * GIB)


async def watched(disk: Disk, helper: ThreadPoolExecutor, reports: int) -> list[DiskReport]:
    """The first reports of a watch on that disk."""
    found: list[DiskReport] = []
    enough = asyncio.Event()

    def measured(report: DiskReport) -> None:
        found.append(report)
        if len(found) == reports:
            enough.set()

    watch = DiskWatch(Path("data"), LogSettings(), helper=helper, measure=disk.measure, interval_s=0.001)
    watch.on_measured.append(measured)
    await watch.start()
    try:
        async with asyncio.timeout(10):
            await enough.wait()
    finally:
        await watch.stop()
    return found[:reports]


async def test_each_change_is_told_once_and_each_measurement_to_who_asked(
    helper: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a line per change of the state, not per second. Let a disk fill and empty."""
    caplog.set_level(logging.INFO)
    reports = await watched(Disk(50, 50, 9, 9, 1, 1, 50), helper, 8)
    assert [report.state.value for report in reports] == ["ok", "ok", "low", "low", "full", "full", "ok", "ok"]
    lines = [record.getMessage() for record in caplog.records if "disk_state_changed" in record.getMessage()]
    assert [line.split()[1:3] for line in lines] == [
        ["state=low", "was=ok"], ["state=full", "was=low"], ["state=ok", "was=full"],
    ]  # fmt: skip


async def test_a_disk_that_cannot_be_measured_keeps_its_state(
    helper: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: nobody is let in, or out, by a guess. Fail three times while full: one line, and full afterwards too."""
    gone = OSError(5, "Input/output error")
    reports = await watched(Disk(1, gone, gone, gone, 2, 50), helper, 3)
    assert [report.state.value for report in reports] == ["full", "full", "ok"]
    assert len([record for record in caplog.records if "disk_not_measured" in record.getMessage()]) == 1


def test_a_real_disk_is_measured(tmp_path: Path) -> None:
    """The disk of a temporary directory has some bytes free, and not more than it has."""
    space = measure(tmp_path)
    assert 0 < space.free_bytes < space.size_bytes


async def test_former_copies_are_looked_for(
    tmp_path: Path, helper: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a report names the copies that were set aside in its directory, and so does the line. Two of two logs."""
    paths = [tmp_path / "logs" / name for name in ("a.aside-2", "b.aside-1")]
    for path in (*paths, tmp_path / "logs" / "a"):
        path.mkdir(parents=True)
    watch = DiskWatch(tmp_path, LogSettings(), helper=helper, measure=Disk(1).measure)
    await watch.start()
    await watch.stop()
    assert watch.report is not None
    assert watch.report.aside == tuple(map(str, paths))
    (line,) = (record.getMessage() for record in caplog.records if "disk_state_changed" in record.getMessage())
    assert line.endswith(f"aside={paths[0]},{paths[1]}")


async def test_a_directory_that_was_removed_is_told_to_who_ends_the_node(
    tmp_path: Path, helper: ThreadPoolExecutor
) -> None:
    """Goal: a member that holds no log has a vote to lose. Its directory stands, then it is removed."""
    told: asyncio.Future[MirrorlogError] = asyncio.get_running_loop().create_future()
    path = tmp_path / "data"
    with DataDirectory.open(path, cluster_id=uuid4(), node_id="n1") as directory:
        watch = DiskWatch(
            path,
            LogSettings(),
            helper=helper,
            measure=Disk(1).measure,
            check=directory.check_in_place,
            failed=lambda error: None if told.done() else told.set_result(error),
            interval_s=0.001,
        )
        await watch.start()
        assert watch.report is not None
        assert not told.done()
        shutil.rmtree(path)
        try:
            assert isinstance(await asyncio.wait_for(told, 10), DirectoryGone)
        finally:
            await watch.stop()
