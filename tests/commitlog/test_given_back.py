"""What a log has made ready for a burst goes back to the disk once it rests, and a small disk is not filled ahead."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments.chain import KEPT_MAPPED_S
from mirrorlog.commitlog.segments.preallocation import DISK_SHARE, LATE_S, first_file_bytes
from mirrorlog.errors import DiskFull
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import KIB, MAX_BATCH_BYTES, append_sizes, flush, open_log, stored

MIB = 1024 * KIB
SEGMENT = 128 * MIB
FIRST = first_file_bytes(SEGMENT, MAX_BATCH_BYTES)
PIECE = 200 * KIB


def log_of(directory: Path, files: Files = OS_FILES) -> CommitLog:
    """One whose files grow from 16 MiB to 128."""
    return open_log(directory, segment_bytes=SEGMENT, prepare_bytes=MIB, prepare_at_rest_bytes=0, epoch=1, files=files)


def looked_at(log: CommitLog, now: float) -> None:
    """All that is due at that time (s)."""
    flush(log)
    while (job := log.start_prepare(now=now)) is not None:
        job.run()
        log.complete_prepare(job)


def disk_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.name.isdigit() or "spare" in path.name)


def burst(log: CommitLog, now: float) -> None:
    append_sizes(log, [PIECE] * 1000)
    looked_at(log, now)


def test_after_a_burst_the_active_file_is_rolled_out_of_and_spares_are_removed(tmp_path: Path) -> None:
    """Goal: a node that rests has small files. Method: after 200 MB in a second the log is looked at every half minute;
    what it has sealed is shortened as its maintenance does."""
    log = log_of(tmp_path)
    burst(log, 1.0)
    content = stored(log)
    assert disk_bytes(tmp_path) >= 2 * SEGMENT
    at = 1.0
    while at < 15 * LATE_S:
        at += KEPT_MAPPED_S
        looked_at(log, at)
    assert log.active_start == log.end
    log.set_confirmed(log.end)
    while (segment := log.next_to_seal()) is not None:
        log.shorten(segment[1])
        log.seal(segment[1])
    assert disk_bytes(tmp_path) < len(content) + 4 * FIRST
    assert stored(log) == content
    append_sizes(log, [PIECE] * 3)
    flush(log)
    log.close()
    again = open_log(tmp_path, segment_bytes=SEGMENT)
    assert again.recovery.clean
    assert stored(again)[: len(content)] == content
    assert len(stored(again)) == len(content) + 3 * PIECE


def test_a_log_that_goes_on_as_before_keeps_its_files(tmp_path: Path) -> None:
    """Nothing is rolled early while it takes as much as it took."""
    log = log_of(tmp_path)
    for number in range(1, 4):
        burst(log, 30.0 * number)
    sizes = sorted(path.stat().st_size for path in tmp_path.iterdir() if path.name.isdigit())
    assert sizes[-3:] == [SEGMENT] * 3


def test_memory_that_is_lent_for_a_run_is_not_rolled_away(tmp_path: Path) -> None:
    """Goal: a run that a mirror receives into the log's end stands where it was received. Method: the log is due to be
    rolled while the memory is out."""
    log = log_of(tmp_path)
    burst(log, 1.0)
    begun = log.active_start
    lent = log.place_for(1000)
    assert lent is not None
    for number in range(100):
        looked_at(log, 1.0 + number * LATE_S)
    assert log.active_start == begun
    log.drop_placed(lent)
    looked_at(log, 200 * LATE_S)
    assert log.active_start == log.end


def test_a_file_that_cannot_be_begun_early_is_none_that_is_missed(tmp_path: Path) -> None:
    """Goal: who appends hears nothing of it, and nobody tries again and again. Method: the disk names no file when the
    log is due to be rolled."""
    files = FaultyFiles()
    log = log_of(tmp_path, files)
    burst(log, 1.0)
    begun = log.active_start
    files.disk.fail("rename", errno.EACCES)
    for number in range(2, 100):
        looked_at(log, number * LATE_S)
    assert log.active_start == begun
    append_sizes(log, [PIECE])
    files.disk.heal()
    looked_at(log, 200 * LATE_S)
    assert log.active_start == log.end


@pytest.mark.parametrize("left", [FIRST, 3 * FIRST, 20 * FIRST])
def test_a_file_takes_a_share_of_what_the_disk_has_left(tmp_path: Path, left: int) -> None:
    """Goal: a small disk is used to its end, in small files. Method: so much is left when the log wants a segment."""
    log = log_of(tmp_path)
    log.allow_bytes(left)
    log.keep_reserve(MAX_BATCH_BYTES)
    before = disk_bytes(tmp_path)
    with pytest.raises(DiskFull):
        append_sizes(log, [PIECE] * 3_000)
    assert left - FIRST < disk_bytes(tmp_path) - before <= left
    largest = max(path.stat().st_size for path in tmp_path.iterdir() if path.name.isdigit())
    assert largest <= max(FIRST, left // DISK_SHARE)


def test_a_file_that_has_another_name_is_not_shortened(tmp_path: Path) -> None:
    """A copy that was set aside shares it."""
    log = log_of(tmp_path / "log")
    burst(log, 1.0)
    first = min(path for path in (tmp_path / "log").iterdir() if path.name.isdigit())
    os.link(first, tmp_path / "aside")
    size = first.stat().st_size
    for number in range(2, 200):
        looked_at(log, number * LATE_S)
    log.set_confirmed(log.end)
    while (segment := log.next_to_seal()) is not None:
        log.shorten(segment[1])
        log.seal(segment[1])
    assert first.stat().st_size == size
