"""What a benchmark run gives: named figures, their minimum, median and maximum over rounds, and who was busy."""

from __future__ import annotations

import ctypes
import os
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

_SET_CHILD_SUBREAPER: Final = 36  # <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one round. `workload`: e.g. W1; `case`: what was varied; `unit`: of `value`."""

    workload: str
    case: str
    name: str
    unit: str
    value: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A figure over all rounds."""

    workload: str
    case: str
    name: str
    unit: str
    minimum: float
    median: float
    maximum: float
    rounds: int


def summarise(figures: Iterable[Figure]) -> list[Summary]:
    """One summary per (workload, case, name), in order of first appearance."""
    grouped: dict[tuple[str, str, str, str], list[float]] = {}
    for figure in figures:
        grouped.setdefault((figure.workload, figure.case, figure.name, figure.unit), []).append(figure.value)
    return [
        Summary(*key, minimum=min(values), median=statistics.median(values), maximum=max(values), rounds=len(values))
        for key, values in grouped.items()
    ]


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0..1) of the values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latencies(workload: str, case: str, values_us: list[float], shares: Sequence[str] = ("p50", "p99")) -> list[Figure]:
    """A figure for each share, named like `p99.9`, or `max`; values in µs."""
    return [
        Figure(workload, case, share, "µs", percentile(values_us, 1 if share == "max" else float(share[1:]) / 100))
        for share in shares
    ]


def publish_figures(workload: str, case: str, *, count: int, record_bytes: int, seconds: float) -> list[Figure]:
    """Records and their bytes a second."""
    return [
        Figure(workload, case, "rate", "msg/s", count / seconds),
        Figure(workload, case, "throughput", "MB/s", count * record_bytes / 1e6 / seconds),
    ]


# --- Who was busy -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ticks:
    """Processor time since the start of the machine, all cores together, in clock ticks.

    `interrupts`: the network's work after an interrupt, which belongs to no process.
    """

    idle: int
    interrupts: int
    total: int

    @classmethod
    def parse(cls, stat: str) -> Self:
        """From the text of /proc/stat."""
        # user, nice, system, idle, iowait, irq, softirq, steal; what follows is counted as user and nice time too.
        ticks = [int(field) for field in stat.split("\n", 1)[0].split()[1:9]]
        return cls(idle=ticks[3] + ticks[4], interrupts=ticks[5] + ticks[6], total=sum(ticks))


@dataclass(frozen=True, slots=True)
class Busy:
    """Shares (0..1) of all cores: `own`, this process and all that came from it; `foreign`, everything else.

    `total` is all that was not idle: both, and the interrupts. What a virtual machine's host took is foreign.
    """

    own: float
    foreign: float
    total: float

    @classmethod
    def between(cls, before: Ticks, after: Ticks, *, own_ticks: float) -> Self:
        """`own_ticks`: processor time of own processes in between."""
        elapsed = after.total - before.total
        if elapsed <= 0:
            return cls(0.0, 0.0, 0.0)
        busy = elapsed - (after.idle - before.idle)
        foreign = max(0.0, busy - (after.interrupts - before.interrupts) - own_ticks)
        return cls(own=min(1.0, max(0.0, own_ticks) / elapsed), foreign=foreign / elapsed, total=busy / elapsed)


class Load:
    """How busy the machine's cores have been since this was made, and with whose work."""

    def __init__(self) -> None:
        self._before = self._read()

    def busy(self) -> Busy:
        """Until now. Own processes that ended unnoticed, and those whose parent died before them, count as foreign."""
        (before, own_before), (now, own_now) = self._before, self._read()
        return Busy.between(before, now, own_ticks=(own_now - own_before) * os.sysconf("SC_CLK_TCK"))

    @staticmethod
    def _read() -> tuple[Ticks, float]:
        own = os.times()
        spent = own.user + own.system + own.children_user + own.children_system
        living = sum(ticks_of_descendants(os.getpid())) / os.sysconf("SC_CLK_TCK")
        return Ticks.parse(Path("/proc/stat").read_text()), spent + living


def ticks_of_descendants(root: int) -> Iterator[int]:
    """Of each process that lives and came from `root`: its processor time, and that of the children it waited for."""
    children: dict[int, list[tuple[int, int]]] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name, in parentheses, may have anything in it.
            fields = file.read_text().rpartition(")")[2].split()
        except OSError:  # it ended a moment ago
            continue
        children.setdefault(int(fields[1]), []).append((int(file.parent.name), sum(map(int, fields[11:15]))))
    pending = [root]
    while pending:
        for pid, ticks in children.get(pending.pop(), ()):
            pending.append(pid)
            yield ticks


def adopt_orphans() -> None:
    """Make this process the parent of every grandchild whose parent dies, so that their time can be counted."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def collect_orphans() -> None:
    """Take note of adopted processes that have ended. Only while no child is being waited for elsewhere."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def load_average() -> float:
    """Of the last minute: what else ran when the benchmark began."""
    return os.getloadavg()[0]
