"""Finding the log directory that an offline tool is to look at, and what lies beside it."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from mirrorlog.commitlog.directory import LOGS_NAME
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.log_directory import ASIDE, FILES, LogDirectory, SegmentFile, read_log_directory
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.segments.preallocation import SPARE_PREFIX
from mirrorlog.commitlog.segments.scan import BlockReader, find_starts
from mirrorlog.errors import BadInput
from mirrorlog.tools.offline.sectors import SectorFile

__all__ = [
    "FILES",
    "LogDirectory",
    "SegmentFile",
    "find_log",
    "open_segment",
    "read_log_directory",
    "set_aside",
    "with_spares",
]


def find_log(path: Path) -> Path:
    """The log directory that `path` means: itself, or the only log of a node's data directory.

    Raises BadInput when there is none or more than one.
    """
    if (path / IDENTITY_NAME).is_file():
        return path
    logs = sorted(
        found.parent for found in path.glob(f"{LOGS_NAME}/*/{IDENTITY_NAME}") if not ASIDE.search(found.parent.name)
    )
    if len(logs) == 1:
        return logs[0]
    if logs:
        raise BadInput(f"{path} holds {len(logs)} logs; give one of {', '.join(map(str, logs))}")
    raise BadInput(f"{path} is no log directory (it has no {IDENTITY_NAME}) and holds none")


def set_aside(log: LogDirectory) -> list[Path]:
    """Former copies of this log beside it, which the node has put away."""
    found = log.path.absolute().parent.glob(f"{log.path.absolute().name}.aside-*")
    return sorted(path for path in found if ASIDE.search(path.name))


def with_spares(log: LogDirectory) -> LogDirectory:
    """With the spare files too that hold batches of this log behind what is flushed: the bytes may survive a power loss
    that the file's name did not. Reads these files. Raises DiskFailed."""
    found = {segment.start: segment for segment in log.segments}
    for name in FILES.listdir(log.path):
        if name.startswith(SPARE_PREFIX):
            spare = log.path / name
            try:
                with closing(FILES.open(spare)) as file:
                    starts = find_starts(BlockReader(file), log.rules, lowest=max(log.begin, log.flushed))
            except OSError as error:
                raise disk_error(error, "read", spare) from None
            if starts:
                found.setdefault(starts[0], SegmentFile(starts[0], spare))
    return replace(log, segments=tuple(found[start] for start in sorted(found)))


def open_segment(segment: SegmentFile) -> SectorFile:
    """For reading, past bad sectors. Raises OSError."""
    return SectorFile(os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC), segment.path)
