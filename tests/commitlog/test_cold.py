"""Reads of the past and the page cache: what was not in memory is not afterwards, what was there stays."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from bench.page_cache import RWF_DONTCACHE, cached_pages, drop_pages, reads_uncached
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.log import CommitLog
from tests.commitlog.logs import KIB, append, flush, open_log, segment_files, sized_batch

SEGMENT_BYTES = 1024 * KIB
# Neither a divisor of a page nor of a segment: every read begins and ends within a page.
BATCH_BYTES = 10_000
RUN_BYTES = 256 * KIB
SEGMENTS = 6
_ATTEMPTS = 5


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """Several segments, of which only the last is mapped and none of the others is in memory."""
    log = open_log(tmp_path, segment_bytes=SEGMENT_BYTES, kept_mapped_bytes=0, epoch=1)
    while len(segment_files(tmp_path)) < SEGMENTS:
        append(log, sized_batch(BATCH_BYTES))
    flush(log)
    log.set_confirmed(log.end)
    # What was dropped by the first is unmapped by the job of the second.
    append(log, sized_batch(BATCH_BYTES))
    flush(log)
    for path in past(log):
        drop_pages(path)
    if any(any(cached_pages(path)) for path in past(log)):
        pytest.skip("this file system keeps what it is asked to drop")
    yield log
    log.close()


@pytest.fixture
def exact(tmp_path: Path) -> None:
    """Skips where a read cannot be told to leave nothing behind; what is done there instead has a test of its own."""
    (tmp_path / "any").write_bytes(b"x")
    if not reads_uncached(tmp_path / "any"):
        pytest.skip("the kernel has no RWF_DONTCACHE for this file system")


def past(log: CommitLog) -> list[Path]:
    return segment_files(log.directory)[:-1]


def read_past(log: CommitLog, run_bytes: int = RUN_BYTES) -> int:
    """Read from the begin to the active segment, a batch appended at each step; the bytes read."""
    at = log.begin
    while at < log.active_start:
        run = log.read_cold(at, run_bytes, until=log.active_start).run()
        at += len(run)
        append(log, sized_batch(112))
    return at


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("run_bytes", [RUN_BYTES, BATCH_BYTES, SEGMENT_BYTES])
@pytest.mark.parametrize("sealed", [False, True])
def test_reading_the_past_leaves_no_page_of_it_behind(log: CommitLog, run_bytes: int, sealed: bool) -> None:
    """Goal: a reader of the past drives out nothing that is needed. Read all of it in runs that end within pages, while
    the log grows: no page of it is in memory afterwards, and every page of the tail is."""
    while sealed and (segment := log.next_to_seal()) is not None:
        log.seal(segment[1])
    assert read_past(log, run_bytes) == log.active_start
    assert [sum(cached_pages(path)) for path in past(log)] == [0] * (SEGMENTS - 1)
    tail_pages = -(-(log.end - log.active_start) // mmap.PAGESIZE)
    tail = cached_pages(segment_files(log.directory)[-1])[:tail_pages]
    assert len(tail) > RUN_BYTES // BATCH_BYTES * 112 // mmap.PAGESIZE
    assert all(tail)


@pytest.mark.usefixtures("exact")
def test_what_was_in_memory_before_stays_there(log: CommitLog) -> None:
    """Goal: who reads once takes nothing from those who read often. With the first two segments in memory, and the
    beginning of the third, read everything: these pages are there, and no others. The system may take pages back
    whenever it likes, but not each time: what a read drops is gone in every attempt."""
    for _ in range(_ATTEMPTS):
        before = _bring_some_in(log)
        if not (all(chain(*before[:2])) and sum(before[2]) == SEGMENT_BYTES // 2 // mmap.PAGESIZE):
            continue  # taken back already: nothing could be said of them
        read_past(log)
        after = [cached_pages(path) for path in past(log)]
        pages = zip(chain(*before), chain(*after), strict=True)
        assert not any(there and not was_there for was_there, there in pages)
        if after == before:
            return
    raise AssertionError("pages that were in memory before a read were not after it, in any attempt")


def _bring_some_in(log: CommitLog) -> list[list[bool]]:
    """The first two segments and the first half of the third; which pages are in memory then."""
    whole, half = past(log)[:2], past(log)[2]
    for path in whole:
        path.read_bytes()
    fd = os.open(half, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, SEGMENT_BYTES // 2, 0)
    os.close(fd)
    return [cached_pages(path) for path in past(log)]


def refuse(monkeypatch: pytest.MonkeyPatch, flags: int, code: int = errno.EOPNOTSUPP) -> None:
    """Let the kernel know none of these ways to read."""
    preadv = os.preadv

    def refusing(fd: int, buffers: list[memoryview], at: int, flags_: int = 0) -> int:
        if flags_ & flags:
            raise OSError(code, os.strerror(code))
        return preadv(fd, buffers, at, flags_)

    monkeypatch.setattr(os, "preadv", refusing)


def test_an_older_kernel_leaves_little_behind(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the same for kernels that cannot read without caching; they may find in memory what they have just asked
    for themselves, and keep it, more of it while the machine is busy. Without that flag less than half of the past
    stays, in one attempt of a few, and cached files stay whole."""
    refuse(monkeypatch, RWF_DONTCACHE)
    cached, stayed = past(log)[0], 0
    for _ in range(5):
        for path in past(log)[1:]:
            drop_pages(path)
        cached.read_bytes()
        read_past(log)
        assert all(cached_pages(cached))
        stayed = sum(sum(cached_pages(path)) for path in past(log)[1:])
        if stayed < (SEGMENTS - 2) * SEGMENT_BYTES // mmap.PAGESIZE // 2:
            return
    raise AssertionError(f"{stayed} pages stay")


def test_a_file_system_that_does_not_know_what_is_cached(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the bytes come in any case. Without any flag everything is read; an error that is none of the kind is
    passed on."""
    refuse(monkeypatch, RWF_DONTCACHE | os.RWF_NOWAIT)
    assert read_past(log) == log.active_start
    refuse(monkeypatch, RWF_DONTCACHE, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        OS_FILES.open(past(log)[0]).pread_past(memoryview(bytearray(10)), 0)


def test_a_python_without_flags_for_reads_reads(log: CommitLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the same for a Python that was built without preadv2, which says so in its own way and has no name for a
    flag. Let any flag fail as it does there."""
    preadv = os.preadv

    def flagless(fd: int, buffers: list[memoryview], at: int, flags: int = 0) -> int:
        if flags:
            raise NotImplementedError("preadv: flags unavailable on this platform")
        return preadv(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", flagless)
    monkeypatch.delattr(os, "RWF_NOWAIT", raising=False)
    assert read_past(log) == log.active_start


def test_reads_at_the_end_of_a_file_are_short(tmp_path: Path) -> None:
    """Goal: the same answers as any read gives. Ask across the end, at it, and beyond it, in memory and not."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 5000)
    for _ in range(2):
        for at, expected in ((0, 5000), (4990, 10), (5000, 0), (9000, 0)):
            drop_pages(path)
            content = memoryview(bytearray(8000))
            assert OS_FILES.open(path).pread_past(content, at) == expected
            assert bytes(content) == b"x" * expected + bytes(8000 - expected)
        path.read_bytes()
