"""What is read of the system about memory, and who is told of it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mirrorlog.broker.resources.memory_limits import MemoryReport, MemoryUse
from mirrorlog.broker.resources.memory_watch import MemoryWatch, measure
from mirrorlog.config import LimitSettings

KIB = 1024
MIB = 1024**2


@pytest.fixture
def helper() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def machine(root: Path, *, groups: str) -> None:
    """16 MiB, of which 8 are available; this process holds 64 + 1 KiB, and 4 MiB of files; child 7 holds 32."""
    write(
        root,
        {
            "proc/meminfo": "MemTotal:  16384 kB\nMemFree:  4096 kB\nMemAvailable:  8192 kB\nHugePages_Total:  0\n",
            "proc/self/status": "Name:\tpython\nVmRSS:\t4160 kB\nRssAnon:\t64 kB\nRssFile:\t4096 kB\nVmSwap:\t1 kB\n",
            "proc/7/status": "Name:\tpython\nVmRSS:\t32 kB\nRssAnon:\t32 kB\n",
            "proc/self/cgroup": groups,
        },
    )


def test_of_a_process_counts_what_is_anonymous_and_that_of_its_doors(tmp_path: Path) -> None:
    """Goal: mapped segments are no memory of a node, what was swapped out is. Method: a /proc by hand, with a child
    that has ended, and a system without control groups."""
    machine(tmp_path, groups="")
    assert measure((7, 8), tmp_path) == MemoryUse(97 * KIB, 16 * MIB, 8 * MIB)
    (tmp_path / "proc/self/cgroup").unlink()
    assert measure((), tmp_path) == MemoryUse(65 * KIB, 16 * MIB, 8 * MIB)


@pytest.mark.parametrize(
    ("groups", "top", "names"),
    [
        ("0::/a/b\n", "sys/fs/cgroup", ("memory.max", "memory.current", "file", "shmem")),
        (
            "4:cpu,memory:/a/b\n3:pids:/x\n", "sys/fs/cgroup/memory",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"),
        ),
    ],
)  # fmt: skip
def test_a_container_has_its_limit_and_what_is_left_of_it_without_page_cache(
    tmp_path: Path, groups: str, top: str, names: tuple[str, str, str, str]
) -> None:
    """Goal: the least of all that contain it counts. Method: a group without a limit in one of 10 MiB, of which 9 are
    in use, 6 of these page cache, 1 of that in memory only: 6 are left; and as a container sees it, where only the top
    is there."""
    limit, current, files, shared = names
    stat = f"{files} {6 * MIB}\n{shared} {MIB}\n"
    machine(tmp_path, groups=groups)
    write(
        tmp_path,
        {
            f"{top}/a/b/{limit}": "max\n", f"{top}/a/b/{current}": "1\n", f"{top}/a/b/memory.stat": stat,
            f"{top}/a/{limit}": f"{10 * MIB}\n", f"{top}/a/{current}": f"{9 * MIB}\n", f"{top}/a/memory.stat": stat,
        },
    )  # fmt: skip
    assert measure((), tmp_path) == MemoryUse(65 * KIB, 10 * MIB, 6 * MIB)
    (tmp_path / top / "a").rename(tmp_path / "elsewhere")
    write(tmp_path / top, {limit: f"{MIB}\n", current: f"{8 * MIB}\n", "memory.stat": stat})
    assert measure((), tmp_path) == MemoryUse(65 * KIB, MIB, 0)


def test_a_real_process_is_measured() -> None:
    """Goal: the names are those of this system. Method: this process holds something, with itself as a child twice."""
    alone, twice = measure(), measure([os.getpid()])
    assert 0 < alone.used_bytes < alone.size_bytes
    assert twice.used_bytes > 3 * alone.used_bytes // 2
    assert 0 <= alone.available_bytes <= alone.size_bytes


class Memory:
    """Gives what is next in `used` (MiB of 1,000, or an error) and the last for ever."""

    def __init__(self, *used: int | OSError) -> None:
        self.used = list(used)
        self.children: list[tuple[int, ...]] = []

    def measure(self, children: Iterable[int]) -> MemoryUse:
        self.children.append(tuple(children))
        now = self.used.pop(0) if len(self.used) > 1 else self.used[0]
        if isinstance(now, OSError):
            raise now
        return MemoryUse(now * MIB, 1000 * MIB, (1000 - now) * MIB)


async def test_each_change_is_told_once_and_refuses_data_meanwhile(
    helper: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: a line and a word per change; what cannot be measured changes nothing. Let a node fill and empty."""
    caplog.set_level(logging.INFO)
    memory = Memory(100, 700, 750, OSError("gone"), OSError("gone"), 600, 599, 599)
    watch = MemoryWatch(
        LimitSettings(), helper=helper, children=lambda: [7, 8], measure=memory.measure, interval_s=0.001
    )
    told: list[tuple[str, bool]] = []
    done = asyncio.Event()

    def changed(report: MemoryReport) -> None:
        told.append((report.state.value, bool(watch.refusal)))
        if len(told) == 2:
            done.set()

    watch.on_changed.append(changed)
    await watch.start()
    try:
        async with asyncio.timeout(10):
            await done.wait()
    finally:
        await watch.stop()
    assert told == [("high", True), ("ok", False)]
    assert memory.children[0] == (7, 8)
    lines = [record.getMessage().split()[0] for record in caplog.records if "memory" in record.getMessage()]
    assert lines == ["memory_state_changed", "memory_not_measured", "memory_state_changed"]


async def test_a_watch_that_is_switched_off_measures_nothing(helper: ThreadPoolExecutor) -> None:
    memory = Memory(999)
    watch = MemoryWatch(
        LimitSettings(memory_high_percent=0), helper=helper, children=tuple, measure=memory.measure, interval_s=0.001
    )
    await watch.start()
    await watch.stop()
    assert (watch.report, memory.children) == (None, [])
