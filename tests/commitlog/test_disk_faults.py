"""Full and failing disks, injected at a chosen call."""

import errno
import os
from pathlib import Path

import pytest

from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.stored_log import LogCondition
from mirrorlog.errors import DiskFailed, DiskFull, FileRefused, LogCorrupt, OffsetOutOfRange
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import (
    abandon,
    append,
    append_sizes,
    flush,
    mapped,
    open_log,
    patch,
    segment_files,
    sized_batch,
    stored,
    warm,
)


def test_a_full_disk_refuses_the_append_and_keeps_the_log_readable(tmp_path: Path) -> None:
    """Goal: DiskFull is a refusal. Deny space for the next file, read, flush, give space back, append again."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [400, 400])
    content = stored(log)
    files.disk.fail("allocate", errno.ENOSPC)
    for _ in range(3):
        with pytest.raises(DiskFull, match="No space left on device; free space"):
            append(log, sized_batch(400))
    assert (log.end, log.state) == (800, LogCondition.OPEN)
    assert stored(log) == mapped(log) == content
    assert flush(log) == 800
    assert len(list(tmp_path.iterdir())) == 4, "a file that could not be allocated is not left behind"
    assert append(log, sized_batch(200)).log_offset == 800, "what still fits is taken"
    files.disk.heal()
    assert append(log, sized_batch(400)).log_offset == 1000
    log.close()
    assert open_log(tmp_path, segment_bytes=1000).recovery.clean


@pytest.mark.parametrize("prepared", [False, True])
def test_a_file_that_cannot_be_named_is_not_left_behind(tmp_path: Path, prepared: bool) -> None:
    """Goal: retries on a full disk do not fill it further. Deny the rename of a roll, with and without a spare."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [600])
    while prepared and warm(log):
        pass
    files.disk.fail("rename", errno.ENOSPC, times=2)
    for _ in range(2):
        with pytest.raises(DiskFull):
            append(log, sized_batch(600))
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("spare")] == []
    assert append(log, sized_batch(600)).log_offset == 600


def test_a_spare_that_finds_the_disk_full_is_asked_for_again_after_a_flush(tmp_path: Path) -> None:
    """Goal: preparing ahead fails silently and is not hammered. Deny space to the spare, then give it back."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [600])
    files.disk.fail("allocate", errno.ENOSPC)
    while warm(log):
        pass
    tried = files.disk.calls["allocate"]
    assert not warm(log)
    assert files.disk.calls["allocate"] == tried
    files.disk.heal()
    flush(log)
    while warm(log):
        pass
    append(log, sized_batch(600))
    assert log.stalls == 0


def test_a_run_that_meets_a_full_disk_half_way_keeps_nothing(tmp_path: Path) -> None:
    """Goal: a mirror is told of every batch that it keeps. Deny the third file of a run over four."""
    master = open_log(tmp_path / "master", epoch=1)
    append_sizes(master, [400] * 8)
    files = FaultyFiles()
    mirror = open_log(tmp_path / "mirror", segment_bytes=1000, files=files)
    mirror.adopt_epochs(master.epochs.entries)
    run = memoryview(stored(master))
    mirror.append_run(run[:400], log_offset=0)
    files.disk.fail("allocate", errno.ENOSPC, first=2, times=1)
    with pytest.raises(DiskFull):
        mirror.append_run(run[400:], log_offset=400)
    assert (mirror.end, stored(mirror)) == (400, bytes(run[:400]))
    assert segment_files(tmp_path / "mirror")[0].read_bytes()[400:] == bytes(600)
    assert len(mirror.append_run(run[400:], log_offset=400)) == 7
    assert stored(mirror) == bytes(run)


@pytest.mark.parametrize("operation", ["fdatasync", "pwrite", "fsync_directory"])
def test_a_failed_sync_ends_all_appending(tmp_path: Path, operation: str) -> None:
    """Goal: after a failed fsync nothing is believed. Fail a call of a flush: refused from then on, still readable."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [400] * 3)
    content = stored(log)
    files.disk.fail(operation, times=1)
    job = log.start_flush()
    with pytest.raises(DiskFailed, match="Input/output error; check the disk"):
        job.run()
    with pytest.raises(DiskFailed):
        log.complete_flush(job)
    assert (log.state, log.flushed) == (LogCondition.FAILED, 0)
    with pytest.raises(DiskFailed):
        append(log, sized_batch(112))
    with pytest.raises(DiskFailed):
        log.open_epoch(2)
    with pytest.raises(DiskFailed):
        flush(log)
    assert mapped(log) == content
    assert log.start_warm() is None
    synced = files.disk.calls["fdatasync"]
    log.close()
    assert files.disk.calls["fdatasync"] == synced, "a failed log is not synced again: success would be a lie"


def test_a_full_disk_at_a_sync_is_a_failed_disk(tmp_path: Path) -> None:
    """Goal: bytes that were taken cannot be refused any more. Answer fdatasync with ENOSPC."""
    files = FaultyFiles()
    log = open_log(tmp_path, epoch=1, files=files)
    append_sizes(log, [400])
    files.disk.fail("fdatasync", errno.ENOSPC, times=1)
    with pytest.raises(DiskFailed):
        flush(log)
    assert log.state is LogCondition.FAILED


def test_an_epoch_that_cannot_be_stored_is_not_opened(tmp_path: Path) -> None:
    """Goal: memory and disk agree about the list. Fail the write with a full disk, then let it pass."""
    files = FaultyFiles()
    log = open_log(tmp_path, epoch=1, files=files)
    files.disk.fail("pwrite", errno.ENOSPC, times=1)
    with pytest.raises(DiskFull):
        log.open_epoch(2)
    assert log.epochs.current == 1
    log.open_epoch(2)
    abandon(log)
    assert open_log(tmp_path).epochs.current == 2


def test_an_unreadable_file_is_named_at_open_and_in_cold_reads(tmp_path: Path) -> None:
    """Goal: a bad sector is an error, not a signal. Fail pread in a cold read, in a scan and while opening."""
    files = FaultyFiles()
    log = open_log(tmp_path, epoch=1, files=files)
    append_sizes(log, [400])
    files.disk.fail("pread")
    with pytest.raises(DiskFailed, match="cannot read"):
        log.read_cold(0, 400, until=400).run()
    abandon(log)
    with pytest.raises(DiskFailed, match="Input/output error"):
        open_log(tmp_path, files=files)
    files.disk.heal()
    assert open_log(tmp_path, files=files).end == 400


def test_a_cold_read_checks_headers_and_notices_removed_files(tmp_path: Path) -> None:
    """Goal: bytes that changed on disk are not passed on. Spoil a header under a job; cut the file under another."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 4)
    spoiled, removed = log.read_cold(0, 800, until=1600), log.read_cold(800, 800, until=1600)
    patch(segment_files(tmp_path)[0], 408, b"\xff")
    with pytest.raises(LogCorrupt, match="from log offset 400"):
        spoiled.run()
    log.truncate(800, log.epochs.entries)
    with pytest.raises(OffsetOutOfRange, match="removed"):
        removed.run()


def test_a_new_log_on_a_full_disk_is_refused_and_works_later(tmp_path: Path) -> None:
    """Goal: creation can be repeated after a failure at any step. Fail each call of it in turn, then open."""
    for number in range(1, 12):
        files = FaultyFiles()
        for operation in ("create", "pwrite", "fdatasync", "rename", "allocate", "fsync_directory"):
            files.disk.fail(operation, errno.ENOSPC, first=number, times=1)
        try:
            open_log(tmp_path / str(number), files=files)
        except DiskFull:
            files.disk.heal()
            log = open_log(tmp_path / str(number), files=files, epoch=1)
            assert log.recovery.clean
            append_sizes(log, [400])
        else:
            break
    assert number > 4


REFUSED = [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM]


@pytest.mark.parametrize("code", [*REFUSED, errno.ENOMEM, errno.EFBIG])
@pytest.mark.parametrize("operation", ["create", "allocate", "map", "rename"])
def test_a_segment_that_the_system_refuses_to_make_is_no_failing_disk(
    tmp_path: Path, operation: str, code: int
) -> None:
    """Goal: a node without a free descriptor, without memory or rights keeps its copy. Method: refuse each step of
    making the next segment; the append is refused by name, what is there is read and flushed, and later it goes on."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [600])
    content = stored(log)
    files.disk.fail(operation, code)
    for _ in range(2):
        with pytest.raises(FileRefused, match="cannot"):
            append(log, sized_batch(600))
    assert (log.end, log.state) == (600, LogCondition.OPEN)
    assert stored(log) == content
    assert flush(log) == 600
    files.disk.heal()
    assert append(log, sized_batch(600)).log_offset == 600
    log.close()
    assert open_log(tmp_path, segment_bytes=1000).recovery.clean


@pytest.mark.parametrize("code", REFUSED)
def test_a_flush_opens_nothing(tmp_path: Path, code: int) -> None:
    """Goal: a node without descriptors or rights flushes as ever, new names included. Method: refuse all opening."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [600, 600])
    files.disk.refuse(code)
    synced = files.disk.calls["fsync_directory"]
    assert flush(log) == log.end == 1200
    assert files.disk.calls["fsync_directory"] == synced + 1
    log.close()
    files.disk.heal()
    assert open_log(tmp_path, segment_bytes=1000).recovery.clean


@pytest.mark.parametrize("operation", ["fdatasync", "fsync_directory"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, *REFUSED, errno.ENOMEM])
def test_a_sync_that_began_and_failed_is_a_failing_disk(tmp_path: Path, code: int, operation: str) -> None:
    """Goal: after it nobody knows what the disk has, whatever the reason. Method: fail the sync of bytes and names."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [600, 600])
    files.disk.fail(operation, code)
    with pytest.raises(DiskFailed):
        flush(log)
    assert log.state is LogCondition.FAILED
    abandon(log)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("sizes", [[400] * 7, [400] * 2])
@pytest.mark.parametrize("code", [*REFUSED, errno.ENOMEM])
def test_a_cut_that_the_system_refuses_is_made_later(tmp_path: Path, code: int, sizes: list[int], lost: bool) -> None:
    """Goal: a mirror whose end must be cut keeps its copy while nothing can be opened. Method: refuse all opening, cut
    within the active segment and far before it, twice; the log is as it was and open. Then it is cut, and goes on."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files, kept_mapped_bytes=0)
    append_sizes(log, sizes)
    flush(log)
    if lost:
        log.set_confirmed(log.end)
    content, epochs, confirmed = stored(log), log.epochs, log.confirmed
    for _ in range(2):
        files.disk.refuse(code)
        with pytest.raises(FileRefused):
            log.truncate(400, [Epoch(1, 0), Epoch(2, 400)], lost=lost)
        assert (log.state, log.epochs, log.confirmed) == (LogCondition.OPEN, epochs, confirmed)
        files.disk.heal()
        assert stored(log) == content
    log.truncate(400, [Epoch(1, 0), Epoch(2, 400)], lost=lost)
    assert (log.end, log.epochs.current) == (400, 2)
    append(log, sized_batch(600))
    assert flush(log) == 1000
    log.close()
    again = open_log(tmp_path, segment_bytes=1000)
    assert (again.recovery.clean, again.end, again.epochs.current) == (True, 1000, 2)


@pytest.mark.parametrize(
    "operation", ["open", "create", "open_directory", "pwrite", "rename", "unlink", "allocate", "map"]
)
def test_a_refusal_at_any_step_of_a_cut_is_none_or_ends_the_log(tmp_path: Path, operation: str) -> None:
    """Goal: what is on disk and what is in memory never part. Method: refuse each call of a cut in turn; either the log
    is open, and the cut can be asked for again, or it has failed, and opens."""
    tries = 0
    for number in range(1, 14):
        files = FaultyFiles()
        directory = tmp_path / str(number)
        log = open_log(directory, segment_bytes=1000, epoch=1, files=files, kept_mapped_bytes=0)
        append_sizes(log, [400] * 7)
        flush(log)
        content = stored(log)
        files.disk.fail(operation, errno.EACCES, first=number, times=1)
        try:
            log.truncate(400, [Epoch(1, 0), Epoch(2, 400)])
        except FileRefused:
            assert stored(log) == content
            log.truncate(400, [Epoch(1, 0), Epoch(2, 400)])
            assert (log.end, log.epochs.current) == (400, 2)
        except DiskFailed:
            assert log.state is LogCondition.FAILED
        else:
            break
        tries += 1
        abandon(log)
        again = open_log(directory, segment_bytes=1000)
        assert content.startswith(stored(again))
        assert not again.recovery.lossy
    assert tries or operation in {"allocate", "map"}


@pytest.mark.parametrize("code", [*REFUSED, errno.ENOMEM])
@pytest.mark.parametrize("operation", ["open_directory", "create", "pwrite", "fdatasync", "rename"])
def test_an_epoch_that_the_system_refuses_to_store_is_opened_later(tmp_path: Path, operation: str, code: int) -> None:
    """Goal: a promotion without descriptors leaves the list as it was, and the log open. Method: refuse each step of
    replacing the file, while it cannot be read either."""
    files = FaultyFiles()
    log = open_log(tmp_path, epoch=1, files=files)
    files.disk.fail(operation, code)
    files.disk.fail("open", code)
    with pytest.raises(FileRefused):
        log.open_epoch(2)
    assert (log.epochs.current, log.state) == (1, LogCondition.OPEN)
    files.disk.heal()
    log.open_epoch(2)
    abandon(log)
    assert open_log(tmp_path).epochs.current == 2


@pytest.mark.parametrize("code", REFUSED)
def test_a_run_that_is_refused_half_way_keeps_nothing(tmp_path: Path, code: int) -> None:
    """Goal: a mirror without descriptors keeps its copy. Method: refuse the third file of a run over four, and all
    other opening from there on; nothing of the run is kept, the log is open, and later takes it all."""
    master = open_log(tmp_path / "master", epoch=1)
    append_sizes(master, [400] * 8)
    files = FaultyFiles()
    mirror = open_log(tmp_path / "mirror", segment_bytes=1000, files=files)
    mirror.adopt_epochs(master.epochs.entries)
    run = memoryview(stored(master))
    mirror.append_run(run[:400], log_offset=0)
    files.disk.fail("create", code, first=2)
    files.disk.fail("open", code)
    files.disk.fail("open_directory", code)
    with pytest.raises(FileRefused):
        mirror.append_run(run[400:], log_offset=400)
    assert (mirror.end, mirror.state) == (400, LogCondition.OPEN)
    files.disk.heal()
    assert len(mirror.append_run(run[400:], log_offset=400)) == 7
    assert stored(mirror) == bytes(run)


def test_a_sync_that_the_kernel_denies_is_no_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: only opening may be refused. Method: the real disk, with EACCES from the calls that sync."""

    def deny(fd: int) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    for call in ("fdatasync", "fsync"):
        log = open_log(tmp_path / call, segment_bytes=1000, epoch=1)
        append_sizes(log, [600, 600])
        with monkeypatch.context() as patched:
            patched.setattr(os, call, deny)
            with pytest.raises(DiskFailed):
                flush(log)
        assert log.state is LogCondition.FAILED
        abandon(log)


@pytest.mark.parametrize("code", [*REFUSED, errno.ENOMEM])
def test_a_cold_read_that_the_system_refuses_is_asked_again(tmp_path: Path, code: int) -> None:
    """Goal: a reader of the past is refused and the node goes on. Method: refuse to open the segment, then not."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [600, 600])
    files.disk.fail("open", code)
    with pytest.raises(FileRefused, match="cannot read"):
        log.read_cold(0, 600, until=600).run()
    assert log.state is LogCondition.OPEN
    files.disk.heal()
    assert len(log.read_cold(0, 600, until=600).run()) == 600
