"""What each name in a log's directory is: what belongs to the log, what is left over, and what nobody knows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mirrorlog.commitlog.epochs import FILE_NAME as EPOCHS_NAME
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.flush import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.table import table_start
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.recovery.recovery import FILE_NAME as LOSS_NAME
from mirrorlog.commitlog.segments.preallocation import SPARE_PREFIX
from mirrorlog.commitlog.segments.segment import segment_start
from mirrorlog.tools.offline.log_directory import FILES, LogDirectory

_REPLACEMENT_SUFFIX: Final = ".new"
_OWN: Final = frozenset({IDENTITY_NAME, EPOCHS_NAME, CHECKPOINT_NAME, LOSS_NAME, INDEX_NAME})


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
