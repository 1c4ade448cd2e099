"""Measures the node's memory once a second and tells who asked for it. Thin: `memory_limits` decides.

Of this process and its doors the system says in `/proc` how much is anonymous, of the machine how much is available,
and of the control groups that they are in (v1 or v2, all that contain it) how much is left, page cache not counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from mirrorlog.broker.resources.budgets import OutgoingBudget, longest_begun
from mirrorlog.broker.resources.memory_limits import MemoryLimits, MemoryReport, MemoryState, MemoryUse
from mirrorlog.broker.resources.watching import INTERVAL_S, Looking
from mirrorlog.config import LimitSettings
from mirrorlog.errors import Overloaded
from mirrorlog.wire.endpoint import Endpoint

logger = logging.getLogger(__name__)


class _Hierarchy(NamedTuple):
    """Where control groups of a version stand, and under what names. What is left of `current` when the page cache
    (`files`, of which `shared` cannot be dropped) is gone must be kept."""

    top: str
    limit: str
    current: str
    files: str
    shared: str


_V2: Final = _Hierarchy("sys/fs/cgroup", "memory.max", "memory.current", "file", "shmem")
_V1: Final = _Hierarchy(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache", "total_shmem"
)


def measure(children: Iterable[int] = (), root: Path = Path("/")) -> MemoryUse:
    """Of this process and of `children`, by their ids; blocking. `root`: where /proc and /sys are. Raises OSError."""
    machine = _fields(root / "proc/meminfo")
    size, available = machine["MemTotal"], machine["MemAvailable"]
    for limit, left in _groups(root):
        size, available = min(size, limit), min(available, left)
    used = _held(root / "proc/self/status")
    for child in children:
        with suppress(OSError):  # it has just ended
            used += _held(root / f"proc/{child}/status")
    return MemoryUse(used, size, max(0, available))


def _held(status: Path) -> int:
    fields = _fields(status)
    if "RssAnon" not in fields:
        raise OSError(f"{status} does not tell of anonymous memory")
    return fields["RssAnon"] + fields.get("VmSwap", 0)


def _fields(path: Path) -> dict[str, int]:
    """Lines like `MemTotal:  24684092 kB`, in bytes."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit of each control group that has one, and how much of it is left."""
    with suppress(OSError):  # a system without control groups
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            hierarchy = _V2 if not kinds else _V1 if "memory" in kinds.split(",") else None
            if hierarchy is not None:
                yield from _limited(root / hierarchy.top, path, hierarchy)


def _limited(top: Path, path: str, hierarchy: _Hierarchy) -> Iterator[tuple[int, int]]:
    """Of a group and all that contain it. In a container `path` may be as the machine sees it, and only `top` there."""
    group = top / path.lstrip("/")
    for each in (group, *group.parents):
        with suppress(OSError, ValueError):  # no such group here, or without a limit ("max")
            limit = int((each / hierarchy.limit).read_text())
            facts = dict(line.split() for line in (each / "memory.stat").read_text().splitlines())
            cache = int(facts[hierarchy.files]) - int(facts[hierarchy.shared])
            yield limit, limit - int((each / hierarchy.current).read_text()) + cache
        if each == top:
            return


class MemoryWatch:
    """`report` is None until memory was measured for the first time, and where it is not: with
    `memory_high_percent = 0`. Each of `on_changed` is told, on the loop, when the state is another one."""

    def __init__(
        self,
        settings: LimitSettings,
        *,
        helper: Executor,
        children: Callable[[], Iterable[int]],
        measure: Callable[[Iterable[int]], MemoryUse] = measure,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.report: MemoryReport | None = None
        self.refusal = ""
        """Why data is refused; empty while it is not."""
        self.on_changed: list[Callable[[MemoryReport], None]] = []
        self._settings = settings
        self._helper = helper
        self._children = children
        self._measure = measure
        self._failed = ""
        self._looking = Looking("memory", self._look, interval_s=interval_s)

    async def start(self) -> None:
        """Returns when it was measured once, or could not be."""
        if self._settings.memory_high_percent:
            await self._looking.start()

    async def stop(self) -> None:
        await self._looking.stop()

    async def _look(self) -> None:
        look = partial(self._measure, tuple(self._children()))
        try:
            use = await asyncio.get_running_loop().run_in_executor(self._helper, look)
        except OSError as error:
            if str(error) != self._failed:
                logger.warning("memory_not_measured reason=%r", str(error))
            self._failed = str(error)
            return
        self._failed = ""
        self._measured(use)

    def _measured(self, use: MemoryUse) -> None:
        before = self.report.state if self.report is not None else MemoryState.OK
        limits = MemoryLimits.of(self._settings, use)
        self.report = report = MemoryReport(limits.judge(use.used_bytes, before), use, limits)
        self.refusal = report.refusal
        if report.state is before:
            return
        logger.log(
            logging.INFO if report.state is MemoryState.OK else logging.WARNING,
            "memory_state_changed state=%s was=%s used_bytes=%s high_bytes=%s low_bytes=%s size_bytes=%s "
            "available_bytes=%s",
            report.state.value, before.value, use.used_bytes, limits.high_bytes, limits.low_bytes, use.size_bytes,
            use.available_bytes,
        )  # fmt: skip
        for tell in self.on_changed:
            tell(report)


def close_heaviest(
    outgoing: OutgoingBudget[Endpoint], endpoints: Sequence[Endpoint], incoming_bytes_total: int, now: float
) -> None:
    """What all connections hold together: of those who do not read, and of those who begin and do not end, the one that
    holds most goes. See `budgets`."""
    if (reader := outgoing.look()) is not None:
        size, limit = reader.unsent_bytes, "outgoing_bytes_total"
        logger.warning("reader_closed peer=%s unsent_bytes=%s limit=%s", reader.peer, size, limit)
        reader.abort(Overloaded(f"{reader.peer} does not read what it asked for", limit=limit))
    while (sender := longest_begun(endpoints, incoming_bytes_total, now)) is not None:
        size, limit = sender.begun_bytes, "incoming_bytes_total"
        logger.warning("sender_closed peer=%s begun_bytes=%s limit=%s", sender.peer, size, limit)
        text = f"frames of {incoming_bytes_total} bytes were begun here and not completed (limits.{limit})"
        sender.close(Overloaded(text, limit=limit))
