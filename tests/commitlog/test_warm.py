"""Preparing pages and files ahead of the tail."""

from pathlib import Path

import pytest

from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments.preallocation import PIECE_BYTES, Preparer, RecentGrowth
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import (
    KIB,
    abandon,
    append,
    append_sizes,
    flush,
    open_log,
    prepare,
    sized_batch,
    stored,
    warm,
    warm_pages,
)


def warm_all(log: CommitLog) -> int:
    """Run warm jobs until none is due; how many."""
    jobs = 0
    while warm(log):
        jobs += 1
    return jobs


def test_rolls_use_the_spare_that_was_prepared(tmp_path: Path) -> None:
    """Goal: no file is made on the loop when a helper keeps up. Roll ten times with and without warm jobs."""
    log = open_log(tmp_path / "warm", segment_bytes=1000, epoch=1)
    for _ in range(20):
        append(log, sized_batch(400))
        warm_all(log)
    assert log.stalls == 0
    cold = open_log(tmp_path / "cold", segment_bytes=1000, epoch=1)
    append_sizes(cold, [400] * 20)
    assert cold.stalls == 9
    assert len(stored(log)) == len(stored(cold)) == 8000


def test_the_window_is_populated_in_pieces_and_only_when_half_is_used(tmp_path: Path) -> None:
    """Goal: bounded calls, no busy work. Count populate calls of a 4 MiB window while the tail moves through it."""
    files = FaultyFiles()
    mib = 1024 * KIB
    log = open_log(tmp_path, segment_bytes=32 * mib, populate_bytes=4 * mib, epoch=1, files=files)
    assert warm_all(log) == 1
    assert files.disk.calls["populate"] == 4
    append(log, sized_batch(256 * KIB))
    assert not warm(log)
    append_sizes(log, [256 * KIB] * 8)
    assert warm_all(log) == 1
    assert files.disk.calls["populate"] == 7
    flush(log)
    assert warm_all(log) == 1, "a flush makes pages read-only again: the window is walked once more"


def walk_all(log: CommitLog) -> int:
    """As `warm_all`, of the window alone."""
    jobs = 0
    while warm_pages(log):
        jobs += 1
    return jobs


def test_the_window_goes_on_in_the_spare(tmp_path: Path) -> None:
    """Goal: the first append after a roll faults no page. Walk what is due while the tail nears the end of a file,
    roll, and see that nothing of the new file is due."""
    files = FaultyFiles()
    mib = 1024 * KIB
    log = open_log(
        tmp_path, segment_bytes=16 * mib, populate_bytes=4 * mib, prepare_bytes=96 * mib, epoch=1, files=files
    )
    while prepare(log):
        pass
    append_sizes(log, [256 * KIB] * 46)
    walk_all(log)
    before = files.disk.calls["populate"]
    append_sizes(log, [256 * KIB] * 4)
    assert walk_all(log) == 1, "less than the window is left: the beginning of the spare"
    assert files.disk.calls["populate"] - before == 4 * mib // PIECE_BYTES
    append_sizes(log, [256 * KIB] * 16)
    assert log.active_start > 0, "a new segment has begun"
    assert log.stalls == 0
    assert not warm_pages(log), "more than half of its window is walked already"


def test_a_spare_that_is_synced_again_is_walked_again(tmp_path: Path) -> None:
    """Goal: a sync makes pages read-only, whoever asked for it. Prepare a step of the spare after it was walked."""
    mib = 1024 * KIB
    log = open_log(tmp_path, segment_bytes=32 * mib, populate_bytes=16 * mib, prepare_bytes=40 * mib, epoch=1)
    while prepare(log):
        pass
    append_sizes(log, [256 * KIB] * 33)
    walk_all(log)
    assert not warm_pages(log)
    assert prepare(log), "the tail has moved on: a step of the spare"
    assert walk_all(log) == 1


def test_one_job_of_each_kind_is_out_at_a_time(tmp_path: Path) -> None:
    """Goal: no two helpers make the same spare or walk the same pages. Ask twice before completing."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    job = log.start_warm()
    assert job is not None
    assert log.start_warm() is None
    job.run()
    log.complete_warm(job)
    append(log, sized_batch(600))
    step = log.start_prepare()
    assert step is not None
    assert log.start_prepare() is None
    step.run()
    log.complete_prepare(step)
    assert log.start_prepare() is None, "one spare is enough"


def test_pages_far_ahead_are_touched_and_synced_step_by_step(tmp_path: Path) -> None:
    """Goal: the active file, then a spare, `prepare_bytes` ahead and no further. Count the calls of a first file of 16
    MiB, one of 32 MiB, and 16 MiB steps while the tail moves."""
    files = FaultyFiles()
    mib = 1024 * KIB
    log = open_log(tmp_path, segment_bytes=32 * mib, populate_bytes=0, prepare_bytes=48 * mib, epoch=1, files=files)
    before = files.disk.calls["fdatasync"]
    steps = 0
    while prepare(log):
        steps += 1
    assert steps == 4, "the file, the spare, and its two halves"
    assert files.disk.calls["populate"] == 48
    assert files.disk.calls["fdatasync"] - before == 3
    append_sizes(log, [256 * KIB] * 60)
    assert not prepare(log), "less than a step is due"
    append_sizes(log, [256 * KIB] * 5)
    assert prepare(log), "the next spare"
    assert prepare(log)
    assert files.disk.calls["populate"] == 64
    append_sizes(log, [256 * KIB] * 64)
    assert log.stalls == 0
    assert log.recovery.clean


def test_a_kernel_that_cannot_populate_is_left_in_peace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the window is an optimisation. Answer "not known" once: never asked again, appends go on."""
    files = FaultyFiles()
    monkeypatch.setattr(files, "populate", lambda pages: False)
    log = open_log(tmp_path, epoch=1, files=files)
    assert warm_all(log) == 1
    append_sizes(log, [64 * KIB] * 3)
    flush(log)
    assert log.start_warm() is None


def test_populating_changes_no_byte(tmp_path: Path) -> None:
    """Goal: MADV_POPULATE_WRITE only touches. Populate around stored batches and compare the file."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400] * 10)
    before = next(path for path in tmp_path.iterdir() if path.name.isdigit()).read_bytes()
    assert warm_all(log) > 0
    assert next(path for path in tmp_path.iterdir() if path.name.isdigit()).read_bytes() == before


def test_a_spare_is_removed_at_close_and_by_a_job_that_ends_after_it(tmp_path: Path) -> None:
    """Goal: a closed directory holds the log and nothing else. Close with a spare ready, and with its job still out."""
    for late in (False, True):
        directory = tmp_path / str(late)
        log = open_log(directory, segment_bytes=1000, epoch=1)
        append(log, sized_batch(600))
        job = log.start_prepare()
        assert job is not None
        job.run()
        if not late:
            log.complete_prepare(job)
        log.close()
        if late:
            log.complete_prepare(job)
        assert [path.name for path in directory.iterdir() if path.name.startswith("spare")] == []


def test_a_flush_syncs_only_what_it_must(tmp_path: Path) -> None:
    """Goal: an idle log costs no disk work. Flush twice without and with an append between."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [400] * 5)
    before = files.disk.calls["fdatasync"]
    assert flush(log) == 2000
    assert files.disk.calls["fdatasync"] - before == 4, "three files and the checkpoint"
    before, directory_before = files.disk.calls["fdatasync"], files.disk.calls["fsync_directory"]
    assert flush(log) == 2000
    assert files.disk.calls["fdatasync"] == before
    append(log, sized_batch(200))
    assert flush(log) == 2200
    assert files.disk.calls["fdatasync"] - before == 2
    assert files.disk.calls["fsync_directory"] == directory_before


def test_two_flushes_may_be_out_and_end_in_any_order(tmp_path: Path) -> None:
    """Goal: group commits overlap. Start two, complete the later first: the flushed offset never goes back."""
    log = open_log(tmp_path, epoch=1)
    append_sizes(log, [400])
    first = log.start_flush()
    append_sizes(log, [400])
    second = log.start_flush()
    second.run()
    assert log.complete_flush(second) == 800
    first.run()
    assert log.complete_flush(first) == 800
    abandon(log)
    assert open_log(tmp_path).flushed == 800


def test_one_of_many_logs_has_its_share_ready_and_a_spare_once_it_has_grown(tmp_path: Path) -> None:
    """Goal: many logs at rest take no more than one. Of eight logs one has an eighth of what one alone would have, and
    no spare; then append until a spare is worth it."""
    files = FaultyFiles()
    mib = 1024 * KIB
    log = open_log(
        tmp_path, segment_bytes=64 * mib, populate_bytes=8 * mib, prepare_bytes=128 * mib, epoch=1, files=files
    )
    job = log.start_warm(sharers=8)
    assert job is not None
    job.run()
    log.complete_warm(job)
    assert len(job.window) <= mib
    assert log.start_warm(sharers=8) is None
    before = files.disk.calls["populate"]
    while (step := log.start_prepare(sharers=8)) is not None:
        step.run()
        log.complete_prepare(step)
    assert files.disk.calls["populate"] - before == 16, "an eighth, which is the first file"
    assert not log.has_spare
    append_sizes(log, [256 * KIB] * 16)
    step = log.start_prepare(sharers=8, idle=False)
    assert step is not None
    step.run()
    log.complete_prepare(step)
    assert log.has_spare, "what it has taken four times is more than what is left of its file"


def test_what_is_ready_follows_what_the_log_takes(tmp_path: Path) -> None:
    """Goal: an empty node is small. A new log has a small file and no spare; what it takes makes the next files
    larger, and four times of it are ready; an hour later little is made ready any more."""
    files = FaultyFiles()
    mib = 1024 * KIB
    preparer = Preparer(
        files, tmp_path, segment_bytes=1024 * mib, prepare_bytes=256 * mib, at_rest_bytes=8 * mib, first_bytes=16 * mib
    )
    growth = RecentGrowth(0)
    active = preparer.make(preparer.first_bytes).as_segment(0, tmp_path / "0")

    def touched(now: float, end: int) -> int:
        before = files.disk.calls["populate"]
        growth.look(end, now)
        while (job := preparer.start(active, idle=True, grown=growth.to(end))) is not None:
            job.run()
            preparer.complete(job)
        return files.disk.calls["populate"] - before

    assert touched(0.0, 100) == 0, "less than a step, until the file's half"
    assert preparer.spare is None
    assert [preparer.file_bytes(end * mib) for end in (0, 8, 64, 300)] == [16 * mib, 32 * mib, 256 * mib, 1024 * mib]
    assert touched(1.0, 8 * mib) == 16, "its file, and a next one: four times 8 MiB"
    assert preparer.spare is not None
    assert growth.to(8 * mib) > 7 * mib
    growth.look(8 * mib, 3601.0)
    assert growth.to(8 * mib) < mib
