"""What a copy has too much is kept, whole and on disk, before it is cut."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.flush import Checkpoint
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.log_directory import read_log_directory
from mirrorlog.commitlog.quarantine import REPORT_NAME, find_quarantined_tail, quarantine_tail, quarantined_copies
from mirrorlog.errors import DiskFailed
from mirrorlog.tools.offline.verify import examine
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import abandon, append, flush, open_log, segment_files, sized_batch, stored

QUEUES = {1: "flights"}


def copy(directory: Path, files: FaultyFiles | None = None) -> CommitLog:
    """Five batches of 400 bytes, two to a segment; four are confirmed, three are flushed."""
    log = open_log(directory, segment_bytes=1000, epoch=1, files=files or OS_FILES)
    for number in range(5):
        append(log, sized_batch(400), number)
        if number == 2:
            flush(log)
    log.set_confirmed(1600)
    return log


@pytest.mark.parametrize("first", [0, 400, 800, 1200, 1600])
def test_what_is_set_aside_is_a_log_that_begins_there(tmp_path: Path, first: int) -> None:
    """Goal: tools read it as they read any log. Set aside from each border on: the bytes are the copy's, in files as
    the copy has them, nothing is wrong with it, and it says what its queues are called."""
    log = copy(tmp_path / "log")
    path = quarantine_tail(OS_FILES, log, first, queues=QUEUES)
    assert quarantined_copies(tmp_path / "log") == [path]
    examined = examine(read_log_directory(path), what="test")
    assert examined.error() is None
    assert examined.log.checkpoint == Checkpoint(begin=first, flushed=2000, confirmed=max(first, 1600))
    assert b"".join(each.read_bytes() for each in segment_files(path)) == stored(log)[first:]
    starts = [int(each.name) for each in segment_files(path)]
    assert starts == [first, *(start for start in (800, 1600) if start > first)]
    assert json.loads((path / REPORT_NAME).read_text()) == {
        "first": first, "end": 2000, "confirmed": 1600, "queues": {"1": "flights"}
    }  # fmt: skip


def test_it_is_found_again_by_its_place_alone(tmp_path: Path) -> None:
    """Goal: a process that is killed between keeping and cutting keeps it once. Look for it as it is, and once the copy
    has gone on or another place is asked for."""
    log = copy(tmp_path / "log")
    path = quarantine_tail(OS_FILES, log, 800, queues=QUEUES)
    assert find_quarantined_tail(OS_FILES, log, 800) == path
    assert find_quarantined_tail(OS_FILES, log, 400) is None
    append(log, sized_batch(400), 5)
    assert find_quarantined_tail(OS_FILES, log, 800) is None


def test_a_disk_that_fails_in_it_leaves_nothing_behind(tmp_path: Path) -> None:
    """Goal: what has its name is whole. Fail each disk call in turn: there is no directory but the copy's, which is as
    it was; what a process left that was killed in it is replaced."""
    steps = 0
    for operation in ("pwrite", "fdatasync", "rename", "fsync_directory", "create", "open", "pread"):
        for number in range(1, 20):
            directory = tmp_path / f"{operation}-{number}" / "log"
            directory.parent.mkdir()
            files = FaultyFiles()
            log = copy(directory, files)
            (directory.parent / "log.cutting").mkdir()
            (directory.parent / "log.cutting" / "rubbish").touch()
            files.disk.fail(operation, first=number)
            try:
                path = quarantine_tail(files, log, 400, queues=QUEUES)
            except (OSError, DiskFailed):
                steps += 1
                left = [each.name for each in directory.parent.iterdir()]
                # Only a sync that fails behind the rename cannot take the name back.
                assert left == ["log"] or (operation == "fsync_directory" and sorted(left) == ["log", "log.aside-1"])
                abandon(log)
            else:
                assert not (path / "rubbish").exists()
                abandon(log)
                break
    assert steps > 15
