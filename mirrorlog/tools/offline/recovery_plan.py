"""What a start of the node would do to a log's directory, found out by the node's own recovery, which changes nothing
here: it reads through files that cannot be written, and the tables that it would make stay in memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.flush import Checkpoint
from mirrorlog.commitlog.index.table import SegmentTable, TableHead
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.recovery import LossNote, Recovery, RecoveryReport
from mirrorlog.commitlog.segments.scan import ignore_batch
from mirrorlog.commitlog.segments.segment import segment_name, segment_start
from mirrorlog.errors import LogCorrupt, MirrorlogError
from mirrorlog.tools.offline.inventory import take_inventory
from mirrorlog.tools.offline.log_directory import FILES, LogDirectory

_NO_CHECKPOINT: Final = Checkpoint(0, 0, 0)


@dataclass(slots=True)
class Plan:
    """`refused`: why the node would not open the log; nothing else is known then. `torn`, `cut_valid`: what it would
    cut, see RecoveryReport. `lossy`: it would count as having lost something, by what it cuts or, in `earlier`, by what
    earlier ones cut and nobody has acted on. `tables`: segments whose table it would make. `renamed`: (old, new) names.
    `removed`: names."""

    refused: MirrorlogError | None = None
    end: int = 0
    torn: Range | None = None
    cut_valid: Range | None = None
    lossy: bool = False
    earlier: Range | None = None
    tables: list[int] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether it would change anything but the index."""
        return bool(self.torn or self.cut_valid or self.tables or self.renamed or self.removed)


def plan_start(log: LogDirectory) -> Plan:
    """Try a start. Raises DiskFailed."""
    first = min(
        (start for segment in log.segments if (start := segment_start(segment.path.name)) is not None), default=0
    )
    tables = _PlannedTables(log)
    recovery = Recovery(FILES, log.path, log.rules, log.checkpoint or _NO_CHECKPOINT._replace(begin=first), tables)
    try:
        recovery.take_sealed()
        recovery.scan(ignore_batch)
    except LogCorrupt as error:
        return Plan(refused=error, tables=tables.made)
    except OSError as error:
        return Plan(refused=disk_error(error, "read", log.path), tables=tables.made)
    return _planned(log, recovery, recovery.report(()), tables.made)


def _planned(log: LogDirectory, recovery: Recovery, report: RecoveryReport, made: list[int]) -> Plan:
    told = LossNote(FILES, log.path).told(report)
    kept = {segment.path.name: segment_name(segment.start) for segment in recovery.segments}
    inventory = take_inventory(log)
    candidates = [*inventory.leftovers, *(segment.path.name for segment in log.holding)]
    return Plan(
        end=report.end,
        torn=report.torn,
        cut_valid=report.cut_valid,
        lossy=told.lossy,
        earlier=told.cut_valid if not report.lossy else None,
        tables=made,
        renamed=[(old, new) for old, new in kept.items() if old != new],
        removed=sorted({name for name in candidates if name not in kept}),
    )


class _PlannedTables(Tables):
    """Tables that are not written. `made`: the segments of those that would be."""

    def __init__(self, log: LogDirectory) -> None:
        super().__init__(FILES, log.path, seed=log.rules.seed)
        self.made: list[int] = []
        self._log_seed = log.rules.seed

    def store(self, start: int, end: int, content: memoryview) -> TableHead:
        self.made.append(start)
        with os.fdopen(os.memfd_create("table"), "wb", buffering=0) as memory:
            memory.write(content)
            path = Path(f"/proc/self/fd/{memory.fileno()}")
            with SegmentTable.open(FILES, path, start=start, end=end, seed=self._log_seed) as table:
                self.heads[start] = table.head
        return self.heads[start]
