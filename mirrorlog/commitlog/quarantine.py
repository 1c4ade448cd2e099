"""What a copy of a log gives up, kept in a directory of its own beside the copy's before it is cut.

Three cases: a mirror that begins anew keeps the whole former copy; a declared loss cuts the diverged tail, which the
copy holds beyond the history that it has to follow (invariant 6); and a damaged copy is cut from its first bad byte on.

The directories are named `<log id>.aside-<n>`, the newest with the largest n. Nobody opens them there, and nothing
removes them: what of it nobody else has, the node cannot know. How many there may be is a limit
(`log.copies_aside_max`), since each may be as large as a log. Each is a log directory: identity and epoch list of the
log, a checkpoint that begins at the cut, and the segments from there on. So `mqtool verify`, `dump` and `recover` read
it as they read any other. `surplus.json` names the queues, whose declarations mostly stand below.

A **diverged tail** is copied under a name that is nobody's, and gets its own when all of it is on disk.

Of **damage** bytes stay as they are, good or bad. Whole files are moved, not copied: on a damaged disk the less is read
the better, and a log may fill half of it. What begins within a file is copied. It may be cut short at any place and be
done again: while files are missing below the flushed offset the copy is damaged all the same, and a directory without
its identity, which is written last, is gone on with.

Rejected: to remove the oldest directory at the limit (it may hold records that no operator has looked at yet); hard
links to the segment files (the one that is cut goes on, and spare files are made of others); to keep the whole copy of
a diverged tail (as large as the log, for what is mostly its last second).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from mirrorlog.commitlog.epochs import store_epochs
from mirrorlog.commitlog.files import Files, read_file, replace_file
from mirrorlog.commitlog.flush import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.flush import Checkpoint, CheckpointFile
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.segments.scan import BlockReader, nonzero_end
from mirrorlog.commitlog.segments.segment import segment_name, segment_start

REPORT_NAME: Final = "surplus.json"

_NAME: Final = re.compile(r"(.+)\.aside-(\d+)")
_UNFINISHED: Final = ".cutting"
_COPY_BYTES: Final = 1024 * 1024
_IDENTITY_BYTES_MAX: Final = 64 * 1024


# --- Names ----------------------------------------------------------------------------------------------------------


def quarantined_copies(directory: Path) -> list[Path]:
    """Those of the log in `directory`, oldest first; blocking. Raises OSError."""
    return [path for path in all_quarantined(directory.parent) if _parts(path)[0] == directory.name]


def all_quarantined(logs: Path) -> list[Path]:
    """Those of all logs below `logs`, by log and age; blocking. Raises OSError."""
    return sorted((path for path in logs.iterdir() if _NAME.fullmatch(path.name)), key=_parts)


def next_quarantine(directory: Path) -> Path:
    """A name that is free; blocking. Raises OSError."""
    number = max((_parts(path)[1] for path in quarantined_copies(directory)), default=0) + 1
    return directory.with_name(f"{directory.name}.aside-{number}")


def _parts(path: Path) -> tuple[str, int]:
    found = _NAME.fullmatch(path.name)
    assert found is not None
    return found[1], int(found[2])


# --- A diverged tail ------------------------------------------------------------------------------------------------


def find_quarantined_tail(files: Files, log: CommitLog, first: int) -> Path | None:
    """Where [first, end of the log), log offsets, was copied already, by somebody who did not come to the cut;
    blocking. Raises OSError."""
    wanted = _tail_checkpoint(log, first)
    found = reversed(quarantined_copies(log.directory))
    return next((path for path in found if _stored(files, log, path) == wanted), None)


def quarantine_tail(files: Files, log: CommitLog, first: int, *, queues: Mapping[int, str]) -> Path:
    """Copy [first, end of the log), log offsets, to a directory of its own; on disk when this returns its path.

    Blocking, and nobody may change the log meanwhile. `queues`: names by queue id.

    Raises OSError, and as `CommitLog.read_cold`; then nothing is left of it.
    """
    unfinished = log.directory.with_name(log.directory.name + _UNFINISHED)
    with _removed_unless_done(unfinished):
        files.make_directory(unfinished)
        _write_segments(files, log, first, unfinished)
        facts = {"first": first, "end": log.end, "confirmed": log.confirmed}
        _finish(files, log, unfinished, checkpoint=_tail_checkpoint(log, first), facts=facts, queues=queues)
        path = next_quarantine(log.directory)
        files.rename(unfinished, path)
        files.fsync_directory(path.parent)
    return path


def _tail_checkpoint(log: CommitLog, first: int) -> Checkpoint:
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
                    run = log.read_cold(at, _COPY_BYTES, until=end).run()
                    file.pwrite(run, at - first)
                    at += len(run)
                file.fdatasync()
            first = end


@contextmanager
def _removed_unless_done(directory: Path) -> Iterator[None]:
    shutil.rmtree(directory, ignore_errors=True)  # of a process that was killed in it
    try:
        yield
    finally:
        # Renamed it is not there any more.
        shutil.rmtree(directory, ignore_errors=True)


# --- Damage ---------------------------------------------------------------------------------------------------------


def unfinished_quarantine(files: Files, log: CommitLog) -> Path | None:
    """Where somebody began to move a part of the log and did not come to the end; blocking. Raises OSError."""
    return next((path for path in quarantined_copies(log.directory) if not files.exists(path / IDENTITY_NAME)), None)


def quarantine_damage(files: Files, log: CommitLog, *, queues: Mapping[int, str]) -> Path:
    """Keep all that stands behind the end of a damaged log in a directory of its own, gone from the log's; on disk when
    this returns its path. Blocking. `queues`: names by queue id. Raises OSError."""
    path = unfinished_quarantine(files, log) or next_quarantine(log.directory)
    files.make_directory(path)
    files.fsync_directory(path.parent)
    _copy_rest(files, log, path)
    _move_files(files, log, path)
    corrupt, claim, first = log.recovery.corrupt, log.recovery.claim, log.end
    assert corrupt is not None
    facts = {
        "first": first,
        "end": claim.end,
        "confirmed": claim.confirmed,
        "damaged": {"first": corrupt.first, "last": corrupt.last, "reason": corrupt.reason},
    }
    checkpoint = Checkpoint(first, claim.end, max(first, claim.confirmed))
    _finish(files, log, path, checkpoint=checkpoint, facts=facts, queues=queues)
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


# --- Both -----------------------------------------------------------------------------------------------------------


def _finish(
    files: Files,
    log: CommitLog,
    directory: Path,
    *,
    checkpoint: Checkpoint,
    facts: Mapping[str, Any],
    queues: Mapping[int, str],
) -> None:
    """Make a log directory of it: report, checkpoint, epoch list, and the identity as the last thing."""
    content = {**facts, "queues": {str(queue_id): name for queue_id, name in sorted(queues.items())}}
    replace_file(files, directory / REPORT_NAME, (json.dumps(content, indent=2) + "\n").encode())
    CheckpointFile.create(files, directory, log.log_id, checkpoint)
    store_epochs(files, directory, log.epochs)
    identity = read_file(files, log.directory / IDENTITY_NAME, max_bytes=_IDENTITY_BYTES_MAX)
    replace_file(files, directory / IDENTITY_NAME, identity)
