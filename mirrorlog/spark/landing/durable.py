"""Having commits that Spark wrote on the disk: their data files first, then the commits themselves.

Spark's writers leave that to the page cache. A landing lets the log free what is landed, so before it does, what a
merge or a compaction wrote must survive a power loss, as the files of an append do. Object stores need nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from mirrorlog.spark.landing.storage import local_path, sync_local

_LOG_FILE: Final = "_delta_log/{:020d}.json"


def sync_commits(table: str, *, above: int, up_to: int) -> None:
    """The commits above version `above` up to `up_to` (inclusive) of a local table, and all files that they added.

    Files and commits that are gone again are passed over. Raises OSError.
    """
    root = local_path(table)
    if root is None:
        return
    for version in range(above + 1, up_to + 1):
        name = _LOG_FILE.format(version)
        for path in (*_added(root / name), name):
            if (root / path).exists():
                sync_local(table, path)


def sync_checkpoints(table: str) -> None:
    """All checkpoints of a local table and the file that names the last one. Raises OSError."""
    root = local_path(table)
    for file in sorted((root / "_delta_log").glob("*checkpoint*")) if root is not None else ():
        sync_local(table, f"_delta_log/{file.name}")


def _added(commit: Path) -> Iterator[str]:
    try:
        lines = commit.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        action: dict[str, Any] = json.loads(line)
        for kind in action.keys() & {"add", "cdc"}:
            yield unquote(action[kind]["path"])
