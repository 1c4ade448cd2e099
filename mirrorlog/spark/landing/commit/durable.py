"""Having commits on the disk, whoever wrote them: their data files first, then the commits themselves.

Spark's writers leave that to the page cache. A landing lets the log free what is landed, so before it does, what a
merge or a compaction wrote must survive a power loss, as the files of an append do. The same goes for what a driver
left that was killed between its commit and its fsync: the next run reads the position from the cache, and would let the
log free what only the cache has. So a run syncs the table before it says to the log where the table stands
(`sync_table`). Object stores need nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from mirrorlog.spark.landing.write.storage import local_path, sync_file, sync_local

_LOG: Final = "_delta_log"
_LOG_FILE: Final = "_delta_log/{:020d}.json"

COMMITS_MAX: Final = 100
"""How far a run looks back in a table that it has not synced yet. A driver dies once, and leaves the commits of a step;
the kernel itself writes what is older than some seconds."""

# By table: which directory its log was, and the version up to which this process has synced it.
_synced: Final[dict[str, tuple[tuple[int, int], int]]] = {}


def sync_table(table: str, version: int | None) -> None:
    """Have the local table at path `table` on the disk up to `version`: before the log hears that it may free records.

    Looks at what came since the last call in this process only; at the first call at the last `COMMITS_MAX` commits and
    all checkpoints. None, for no table, is nothing to do. Raises OSError.
    """
    root = local_path(table)
    if root is None or version is None:
        return
    found = (root / _LOG).stat()
    log = (found.st_dev, found.st_ino)
    known, synced = _synced.get(table, (log, -1))
    if known != log or synced > version:
        synced = -1  # the table was made anew
    if synced < version:
        if synced < 0:
            sync_checkpoints(table)
        sync_commits(table, above=max(synced, version - COMMITS_MAX), up_to=version)
        _synced[table] = (log, version)


def sync_commits(table: str, *, above: int, up_to: int) -> None:
    """The commits above version `above` up to `up_to` (inclusive) of a local table, and all files that they added.

    Files and commits that are gone again are passed over. Raises OSError.
    """
    root = local_path(table)
    if root is None:
        return
    commits = [root / _LOG_FILE.format(version) for version in range(above + 1, up_to + 1)]
    _sync([root / name for commit in commits for name in _added(commit)], root)
    _sync(commits, root)


def sync_own(table: str, version: int, *, above: int) -> None:
    """The commit `version`, whose data files are on the disk, and wholly what others committed above `above`.

    A commit is nothing without those below it. Raises OSError.
    """
    root = local_path(table)
    if root is None:
        return
    sync_commits(table, above=above, up_to=version - 1)
    _sync([root / _LOG_FILE.format(version)], root)
    if version == 0:
        sync_file(root.parent)


def sync_checkpoints(table: str) -> None:
    """All checkpoints of a local table and the file that names the last one. Raises OSError."""
    root = local_path(table)
    for file in sorted((root / _LOG).glob("*checkpoint*")) if root is not None else ():
        sync_local(table, f"{_LOG}/{file.name}")


def _sync(files: list[Path], root: Path) -> None:
    """The files that are there, then the directories that name them, from the lowest to the table's own."""
    there = [file for file in dict.fromkeys(files) if _synced_file(file)]
    directories = {above for file in there for above in file.parents if above.is_relative_to(root)}
    for directory in sorted(directories, key=lambda each: -len(each.parts)):
        sync_file(directory)


def _synced_file(file: Path) -> bool:
    try:
        sync_file(file)
    except FileNotFoundError:
        return False
    return True


def _added(commit: Path) -> Iterator[str]:
    try:
        lines = commit.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        action: dict[str, Any] = json.loads(line)
        for kind in action.keys() & {"add", "cdc"}:
            yield unquote(action[kind]["path"])
