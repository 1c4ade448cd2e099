"""The log directory that an offline tool is to look at: which it is, what each name in it is, what lies beside it."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.directory import LOGS_NAME
from mirrorlog.commitlog.epochs import FILE_NAME as EPOCHS_NAME
from mirrorlog.commitlog.files import OsFile, disk_error
from mirrorlog.commitlog.flush import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.table import table_start
from mirrorlog.commitlog.log_directory import FILES, QUARANTINED, LogDirectory, SegmentFile
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.recovery.recovery import FILE_NAME as LOSS_NAME
from mirrorlog.commitlog.segments.preallocation import SPARE_PREFIX
from mirrorlog.commitlog.segments.scan import BlockReader, find_starts
from mirrorlog.commitlog.segments.segment import segment_start
from mirrorlog.errors import BadInput

SECTOR_BYTES: Final = 4096
_FILLING: Final = b"\xff"
"""In the place of what cannot be read: never zeros, since zeros in the place of a header end a file."""

_REPLACEMENT_SUFFIX: Final = ".new"
_OWN: Final = frozenset({IDENTITY_NAME, EPOCHS_NAME, CHECKPOINT_NAME, LOSS_NAME, INDEX_NAME})


class SectorFile(OsFile):
    """A file for reading. `unreadable`: places of the sectors that gave an error, in the order in which they did."""

    __slots__ = ("_path", "unreadable")

    def __init__(self, fd: int, path: Path) -> None:
        super().__init__(fd)
        self._path = path
        self.unreadable: dict[int, None] = {}

    def pread(self, into: memoryview, at: int) -> int:
        """As OsFile's, with other bytes in the place of those that cannot be read.

        Raises DiskFailed for all else: named here, so that nobody takes what writes the found bytes for the disk.
        """
        try:
            return super().pread(into, at)
        except OSError as error:
            if error.errno != errno.EIO:
                raise disk_error(error, "read", self._path) from None
        return self._by_sector(into, at)

    def _by_sector(self, into: memoryview, at: int) -> int:
        size = min(len(into), max(0, self.size() - at))
        done = 0
        while done < size:
            place = at + done
            part = into[done : min(size, done + SECTOR_BYTES - place % SECTOR_BYTES)]
            try:
                super().pread(part, place)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise disk_error(error, "read", self._path) from None
                self.unreadable[place - place % SECTOR_BYTES] = None
                part[:] = _FILLING * len(part)
            done += len(part)
        return done


def find_log(path: Path) -> Path:
    """The log directory that `path` means: itself, or the only log of a node's data directory.

    Raises BadInput when there is none or more than one.
    """
    if (path / IDENTITY_NAME).is_file():
        return path
    logs = sorted(
        found.parent
        for found in path.glob(f"{LOGS_NAME}/*/{IDENTITY_NAME}")
        if not QUARANTINED.search(found.parent.name)
    )
    if len(logs) == 1:
        return logs[0]
    if logs:
        raise BadInput(f"{path} holds {len(logs)} logs; give one of {', '.join(map(str, logs))}")
    raise BadInput(f"{path} is no log directory (it has no {IDENTITY_NAME}) and holds none")


def set_aside(log: LogDirectory) -> list[Path]:
    """Former copies of this log beside it, which the node has put away."""
    found = log.path.absolute().parent.glob(f"{log.path.absolute().name}.aside-*")
    return sorted(path for path in found if QUARANTINED.search(path.name))


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


@dataclass(slots=True)
class Inventory:
    """Names. `tables`: by the start of their segment. `leftovers`: a start removes them. `unknown`: nobody does."""

    tables: dict[int, str] = field(default_factory=dict)
    leftovers: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def take_inventory(log: LogDirectory) -> Inventory:
    """Raises DiskFailed."""
    try:
        names = FILES.listdir(log.path)
    except OSError as error:
        raise disk_error(error, "list", log.path) from None
    held = {segment.path.name for segment in log.holding}
    starts = {segment.start for segment in log.holding}
    found = Inventory()
    for name in names:
        if (start := table_start(name)) is not None and start in starts:
            found.tables[start] = name
        elif name in held or name in _OWN:
            continue
        elif start is not None or segment_start(name) is not None or _is_unfinished(name):
            found.leftovers.append(name)
        else:
            found.unknown.append(name)
    return found


def _is_unfinished(name: str) -> bool:
    """A spare file, which a running node may hold ready, or a replacement that did not come to its end."""
    return name.startswith(SPARE_PREFIX) or name.endswith(_REPLACEMENT_SUFFIX)
