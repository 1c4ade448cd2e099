"""What a damaged copy holds from its first bad byte on, set aside before it is cut.

A directory of its own beside the copy's, named as copies are that were set aside (`aside`), as `surplus` makes one for
a declared loss: so `mqtool verify`, `dump` and `recover --salvage` read it. Here bytes stay as they are, good or bad.
Whole files are moved, not copied: on a damaged disk the less is read the better, and a log may fill half of it. What
begins within a file is copied.

It may be cut short at any place and be done again: while files are missing below the flushed offset the copy is damaged
all the same, and a directory without its identity, which is written last, is gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.checkpoint import Checkpoint, CheckpointFile
from mirrorlog.commitlog.diverged_tail import REPORT_NAME
from mirrorlog.commitlog.epochs import store_epochs
from mirrorlog.commitlog.files import Files, read_file, replace_file
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.recovery.former_copies import copies_aside, next_aside
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.segments.scan import BlockReader, nonzero_end
from mirrorlog.commitlog.segments.segment import segment_name, segment_start

_COPY_BYTES: Final = 1024 * 1024
_IDENTITY_BYTES_MAX: Final = 64 * 1024


def unfinished_aside(files: Files, log: CommitLog) -> Path | None:
    """Where somebody began to set a part of the log aside and did not come to the end; blocking. Raises OSError."""
    return next((path for path in copies_aside(log.directory) if not files.exists(path / IDENTITY_NAME)), None)


def set_damage_aside(files: Files, log: CommitLog, *, queues: Mapping[int, str]) -> Path:
    """Keep all that stands behind the end of a damaged log in a directory of its own, gone from the log's; on disk when
    this returns its path. Blocking. `queues`: names by queue id. Raises OSError."""
    path = unfinished_aside(files, log) or next_aside(log.directory)
    files.make_directory(path)
    files.fsync_directory(path.parent)
    _copy_rest(files, log, path)
    _move_files(files, log, path)
    _write_report(files, log, path, queues)
    claim, first = log.recovery.claim, log.end
    CheckpointFile.create(files, path, log.log_id, Checkpoint(first, claim.end, max(first, claim.confirmed)))
    store_epochs(files, path, log.epochs)
    identity = read_file(files, log.directory / IDENTITY_NAME, max_bytes=_IDENTITY_BYTES_MAX)
    replace_file(files, path / IDENTITY_NAME, identity)
    return path


def _starts(files: Files, directory: Path) -> list[int]:
    return sorted(start for name in files.listdir(directory) if (start := segment_start(name)) is not None)


def _copy_rest(files: Files, log: CommitLog, path: Path) -> None:
    """Of the file in which the bad bytes begin: from there on, without the zeros at its end."""
    holder = max((start for start in _starts(files, log.directory) if start < log.end), default=None)
    if holder is None:
        return
    with closing(files.open(log.directory / segment_name(holder))) as source:
        at = log.end - holder
        end = nonzero_end(BlockReader(source), at) if at < source.size() else at
        if at >= end:
            return
        with closing(files.open(path / segment_name(log.end), create=True)) as target:
            buffer = memoryview(bytearray(min(_COPY_BYTES, end - at)))
            while at < end:
                got = source.pread(buffer[: end - at], at)
                if got == 0:
                    break
                target.pwrite(buffer[:got], holder + at - log.end)
                at += got
            target.fdatasync()


def _move_files(files: Files, log: CommitLog, path: Path) -> None:
    """From the back to the front, so that what is left in the log's directory has no hole."""
    for start in reversed([start for start in _starts(files, log.directory) if start >= log.end]):
        name = segment_name(start)
        if files.exists(path / name):
            continue  # copied there by an attempt before this one: the log goes on with its own until it is cut
        files.rename(log.directory / name, path / name)
    files.fsync_directory(path)
    files.fsync_directory(log.directory)


def _write_report(files: Files, log: CommitLog, path: Path, queues: Mapping[int, str]) -> None:
    corrupt, claim = log.recovery.corrupt, log.recovery.claim
    assert corrupt is not None
    content = {
        "first": log.end,
        "end": claim.end,
        "confirmed": claim.confirmed,
        "damaged": {"first": corrupt.first, "last": corrupt.last, "reason": corrupt.reason},
        "queues": {str(queue_id): name for queue_id, name in sorted(queues.items())},
    }
    replace_file(files, path / REPORT_NAME, (json.dumps(content, indent=2) + "\n").encode())
