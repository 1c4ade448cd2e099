"""A begin that moves: what goes, when, and what becomes of its file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments.preallocation import RECYCLED_MAX
from mirrorlog.errors import BadRequest, OffsetOutOfRange
from tests.commitlog.faulty import FaultyFiles
from tests.commitlog.logs import abandon, append_sizes, flush, mapped, open_log, prepare, segment_files, stored


def confirm_all(log: CommitLog) -> None:
    """Everything is confirmed and described by a state checkpoint at the end."""
    log.set_confirmed(log.end)
    log.set_state_from(log.end)


def names(directory: Path) -> list[str]:
    return [str(int(path.name)) for path in segment_files(directory)]


def test_the_begin_does_not_pass_what_is_confirmed_and_described(tmp_path: Path) -> None:
    """Goal: invariant 12. Ask for more than the confirmed offset, and than the newest state checkpoint, gives."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 6)
    with pytest.raises(BadRequest):
        log.move_start(800)
    log.set_confirmed(1600)
    with pytest.raises(BadRequest):
        log.move_start(800)
    log.set_state_from(800)
    with pytest.raises(BadRequest):
        log.move_start(1600)
    log.move_start(800)
    assert log.begin == 800
    log.move_start(400)
    assert log.begin == 800, "it never goes back"


def test_files_go_only_after_the_new_begin_is_on_disk(tmp_path: Path) -> None:
    """Goal: a crash in between finds either begin and all that it needs. Move the begin, kill before the flush, before
    the files are removed, and after."""
    for step in range(3):
        directory = tmp_path / str(step)
        log = open_log(directory, segment_bytes=1000, epoch=1)
        append_sizes(log, [400] * 8)
        flush(log)
        confirm_all(log)
        content = stored(log)
        log.move_start(1600)
        if step >= 1:
            flush(log)
        if step >= 2:
            flush(log)  # what was dropped is let go by the next job
            while prepare(log):
                pass
            assert names(directory) == ["1600", "2400"]
        abandon(log)
        log = open_log(directory, segment_bytes=1000)
        begin = 1600 if step else 0
        assert (log.recovery.clean, log.begin, stored(log)) == (True, begin, content[begin:])
        assert names(directory) == (["1600", "2400"] if step else ["0", "800", "1600", "2400"]), "leftovers are removed"
        with pytest.raises(OffsetOutOfRange):
            log.read(begin - 400, 400, until=log.end)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("operations", [["rename", "unlink"], ["open"], ["unlink"], ["open", "unlink"]])
def test_a_file_that_could_not_be_freed_is_freed_later(tmp_path: Path, operations: list[str], code: int) -> None:
    """Goal: what retention frees does not stay until the next start. Method: refuse each way to be rid of the files;
    once that is over, and the disk was looked at, nothing but the log's own files is there."""
    files = FaultyFiles()
    log = open_log(tmp_path, segment_bytes=1000, epoch=1, files=files)
    append_sizes(log, [400] * 12)
    confirm_all(log)
    log.move_start(4000)
    for operation in operations:
        files.disk.fail(operation, code)
    for _ in range(3):
        flush(log)
        while prepare(log):
            pass
        log.allow_bytes(1 << 20)
    files.disk.heal()
    while prepare(log):
        pass
    spares = [path for path in tmp_path.iterdir() if path.name.startswith("spare")]
    assert names(tmp_path) == ["4000"]
    assert len(spares) <= 1 + RECYCLED_MAX


def test_a_freed_file_is_recycled_and_its_old_content_never_counts(tmp_path: Path) -> None:
    """Goal: no page is touched for the first time, and no old batch comes back. Roll on through recycled files, by map
    and by pwrite, killing the log now and then: what is read is what was appended."""
    for through in (False, True):
        directory = tmp_path / str(through)
        log = open_log(directory, segment_bytes=1000, epoch=1, write_through=through)
        found_recycled = 0
        for number in range(150):
            append_sizes(log, [(112, 200, 400)[number % 3]])
            flush(log)
            confirm_all(log)
            log.move_start(log._chain.active.start)
            flush(log)
            while prepare(log):
                pass
            expected, begin = stored(log), log.begin
            assert mapped(log) == expected
            assert len(list(directory.glob("spare*"))) <= 3
            if number % 7 == 6:
                abandon(log)
                log = open_log(directory, segment_bytes=1000, write_through=through)
                found_recycled += log._chain.active.recycled
                assert log.recovery.clean
                assert (log.begin, stored(log)) == (begin, expected)
                log.open_epoch(number + 2)
        assert found_recycled > 3
        abandon(log)


def test_recycled_files_are_used_while_the_log_goes_on(tmp_path: Path) -> None:
    """Goal: steady state makes no new file. Retain two files of many; count the files that were ever made by inode."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    inodes: set[int] = set()
    for _ in range(200):
        append_sizes(log, [400])
        flush(log)
        confirm_all(log)
        log.move_start(max(log.begin, log._chain.segments[-2].start if len(log._chain.segments) > 1 else 0))
        flush(log)
        while prepare(log):
            pass
        inodes |= {path.stat().st_ino for path in tmp_path.iterdir() if path.name.isdigit()}
    assert log.end == 80_000
    assert log.stalls == 0
    assert len(inodes) <= 6
    assert stored(log) == mapped(log)


def test_a_file_is_not_overwritten_while_a_reader_holds_a_part_of_it(tmp_path: Path) -> None:
    """Goal: bytes that are on their way to a socket do not change. Hold a view over retention and rolls; let it go."""
    log = open_log(tmp_path, segment_bytes=1000, epoch=1)
    append_sizes(log, [400] * 3)
    held = log.read(0, 800, until=log.end)
    assert held is not None
    before = bytes(held)
    flush(log)
    confirm_all(log)
    log.move_start(800)
    flush(log)
    while prepare(log):
        pass
    append_sizes(log, [400] * 8)
    assert bytes(held) == before
    first = tmp_path / f"{0:020d}"
    assert first.exists(), "the file waits for its reader"
    held.release()
    flush(log)
    log._preparer.discard(log._preparer.take())
    assert prepare(log)
    assert not first.exists()
    assert log._preparer.spare is not None
    assert log._preparer.spare.recycled


def test_a_view_of_a_file_that_left_the_memory_is_not_overwritten_either(tmp_path: Path) -> None:
    """Goal: a slow reader gets what it was promised. Hold a view, let the log unmap its file for being far behind, and
    only then free and recycle it, with batches of equal size, which would pass for others of the same place."""
    log = open_log(tmp_path, segment_bytes=1000, kept_mapped_bytes=0, epoch=1)
    append_sizes(log, [400])
    held = log.read(0, 400, until=log.end)
    assert held is not None
    before = bytes(held)
    append_sizes(log, [400] * 7)
    flush(log)
    confirm_all(log)
    assert log.read(0, 400, until=log.end) is None, "unmapped"
    log.move_start(1600)
    for _ in range(12):
        flush(log)
        while prepare(log):
            pass
        append_sizes(log, [400])
    assert bytes(held) == before
