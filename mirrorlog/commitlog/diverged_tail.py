"""What a copy holds beyond the history that it has to follow, kept before it is cut (invariant 6).

It becomes a log directory of its own beside the copy's, named as copies are that were set aside (`aside`): identity and
epoch list of the log, a checkpoint that begins at the cut, and the segments from there on. So `mqtool verify`, `dump`
and `recover` read it as they read any other. `surplus.json` names the queues, whose declarations mostly stand below.

It is made under a name that is nobody's and gets its own when all of it is on disk. Rejected: hard links to the segment
files (the one that is cut goes on, and spare files are made of others), to set the whole copy aside (as large as the
log, for what is mostly its last second).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.checkpoint import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.checkpoint import Checkpoint, CheckpointFile
from mirrorlog.commitlog.epochs import store_epochs
from mirrorlog.commitlog.files import Files, read_file, replace_file
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.recovery.former_copies import copies_aside, next_aside
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.segments.segment import segment_name

REPORT_NAME: Final = "surplus.json"

_UNFINISHED: Final = ".cutting"
_READ_BYTES: Final = 1024 * 1024
_IDENTITY_BYTES_MAX: Final = 64 * 1024


def find_surplus(files: Files, log: CommitLog, first: int) -> Path | None:
    """Where [first, end of the log), log offsets, was set aside already, by somebody who did not come to the cut;
    blocking. Raises OSError."""
    wanted = _checkpoint(log, first)
    return next((path for path in reversed(copies_aside(log.directory)) if _stored(files, log, path) == wanted), None)


def set_surplus_aside(files: Files, log: CommitLog, first: int, *, queues: Mapping[int, str]) -> Path:
    """Keep [first, end of the log), log offsets, in a directory of its own; on disk when this returns its path.

    Blocking, and nobody may change the log meanwhile. `queues`: names by queue id.

    Raises OSError, and as `CommitLog.read_cold`; then nothing is left of it.
    """
    unfinished = log.directory.with_name(log.directory.name + _UNFINISHED)
    with _removed_unless_done(unfinished):
        files.make_directory(unfinished)
        _write_segments(files, log, first, unfinished)
        _write_report(files, log, first, unfinished, queues)
        CheckpointFile.create(files, unfinished, log.log_id, _checkpoint(log, first))
        store_epochs(files, unfinished, log.epochs)
        identity = read_file(files, log.directory / IDENTITY_NAME, max_bytes=_IDENTITY_BYTES_MAX)
        replace_file(files, unfinished / IDENTITY_NAME, identity)
        path = next_aside(log.directory)
        files.rename(unfinished, path)
        files.fsync_directory(path.parent)
    return path


def _checkpoint(log: CommitLog, first: int) -> Checkpoint:
    return Checkpoint(begin=first, flushed=log.end, confirmed=max(first, log.confirmed))


def _stored(files: Files, log: CommitLog, path: Path) -> Checkpoint | None:
    if not files.exists(path / CHECKPOINT_NAME):
        return None
    with closing(CheckpointFile.open(files, path, log.log_id)) as checkpoints:
        return checkpoints.stored


def _write_segments(files: Files, log: CommitLog, first: int, directory: Path) -> None:
    """One file for each segment of the log, the first one from `first` on."""
    ends = [segment.end for segment in log.segments() if segment.end > first]
    for end in [*ends, log.end]:
        if first < end:
            with closing(files.open(directory / segment_name(first), create=True)) as file:
                at = first
                while at < end:
                    run = log.read_cold(at, _READ_BYTES, until=end).run()
                    file.pwrite(run, at - first)
                    at += len(run)
                file.fdatasync()
            first = end


def _write_report(files: Files, log: CommitLog, first: int, directory: Path, queues: Mapping[int, str]) -> None:
    content = {
        "first": first,
        "end": log.end,
        "confirmed": log.confirmed,
        "queues": {str(queue_id): name for queue_id, name in sorted(queues.items())},
    }
    replace_file(files, directory / REPORT_NAME, (json.dumps(content, indent=2) + "\n").encode())


@contextmanager
def _removed_unless_done(directory: Path) -> Iterator[None]:
    shutil.rmtree(directory, ignore_errors=True)  # of a process that was killed in it
    try:
        yield
    finally:
        # Renamed it is not there any more.
        shutil.rmtree(directory, ignore_errors=True)
