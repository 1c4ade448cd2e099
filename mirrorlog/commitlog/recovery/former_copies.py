"""Former copies of a log, set aside: directories beside its own, `<log id>.aside-<n>`, the newest with the largest n.

A mirror that begins anew keeps what it had: what of it nobody else has, the node cannot know. Nobody opens it there,
and nothing removes it; how many there may be is a limit (`log.copies_aside_max`), since each is as large as a log.
Rejected: to remove the oldest one at the limit. It may hold records that no operator has looked at yet.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"(.+)\.aside-(\d+)")


def copies_aside(directory: Path) -> list[Path]:
    """Those of the log in `directory`, oldest first; blocking. Raises OSError."""
    return [path for path in all_aside(directory.parent) if _parts(path)[0] == directory.name]


def all_aside(logs: Path) -> list[Path]:
    """Those of all logs below `logs`, by log and age; blocking. Raises OSError."""
    return sorted((path for path in logs.iterdir() if _NAME.fullmatch(path.name)), key=_parts)


def next_aside(directory: Path) -> Path:
    """A name that is free; blocking. Raises OSError."""
    number = max((_parts(path)[1] for path in copies_aside(directory)), default=0) + 1
    return directory.with_name(f"{directory.name}.aside-{number}")


def _parts(path: Path) -> tuple[str, int]:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return found[1], int(found[2])
