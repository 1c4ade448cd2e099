"""The traps' measurements: all figures come, and they say what they claim; how fast a machine is, is not tested."""

from __future__ import annotations

import ctypes
import errno
import mmap
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from bench import traps
from bench.measure import Figure
from bench.page_cache import reads_uncached
from bench.workload import KIB, MIB, Skipped
from mirrorlog.commitlog.files import OS_FILES

HELD_US: Final = 50_000
SENT: Final = 16 * KIB

OLD: Final = b"o" * SENT
NEW: Final = b"n" * SENT


def _names(figures: list[Figure]) -> list[tuple[str, str]]:
    """Case and name of each figure; none is zero, or a row would say nothing."""
    assert all(figure.value > 0 for figure in figures), figures
    return [(figure.case, figure.name) for figure in figures]


@pytest.fixture
def populates() -> None:
    """Skips where the kernel cannot populate pages for writing."""
    file, pages = traps._new_file(mmap.PAGESIZE)
    with file:
        if not OS_FILES.populate(pages):
            pytest.skip("the kernel has no MADV_POPULATE_WRITE")


# --- A call that holds the interpreter lock ---------------------------------------------------------------------------


def test_a_stop_is_as_long_as_the_lock_is_held() -> None:
    """A C call that keeps the lock for 50 ms: no thread can have run meanwhile."""
    stop = traps.stop_during(lambda: ctypes.PyDLL(None).usleep(HELD_US))
    assert HELD_US / 1e6 <= stop.gap_max <= stop.call


def test_a_call_counts_its_whole_length() -> None:
    """The same without the lock: the loop may go on, the call takes as long."""
    stop = traps.stop_during(lambda: ctypes.CDLL(None).usleep(HELD_US))
    assert stop.call >= HELD_US / 1e6
    assert 0 < stop.gap_max <= stop.call


def test_a_failed_call_ends_the_loop() -> None:
    """The error of the helper comes out; the loop does not wait for ever."""

    def fail() -> None:
        raise OSError(errno.EIO, "no disk")

    with pytest.raises(OSError, match="no disk"):
        traps.stop_during(fail)


@pytest.mark.usefixtures("populates")
def test_each_helper_call_has_its_gap_and_its_length() -> None:
    """Four ways on 64 KiB; no gap is longer than its call."""
    figures = traps.lock_held(64 * KIB, "a")
    ways = ("mmap.flush", "OsFile.fdatasync", "mmap.madvise, populate", "OsFiles.populate")
    assert _names(figures) == [(f"a, {way}", name) for way in ways for name in ("gap max", "call")]
    assert all(gap.value <= call.value for gap, call in zip(figures[::2], figures[1::2], strict=True))


# --- Windows and pages ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("populates")
def test_a_flush_is_timed_for_each_window_and_without_one() -> None:
    """Two small windows, then pwrite."""
    figures = traps.flush_after_window((128 * KIB, MIB), "a")
    ways = ("by map, 0.125 MiB touched ahead", "by map, 1 MiB touched ahead", "by pwrite, no window")
    assert _names(figures) == [(f"a, {way}", "fdatasync") for way in ways]


@pytest.mark.usefixtures("populates")
def test_stores_are_timed_for_each_state_of_a_page() -> None:
    """On 300 KiB, which is not a multiple of a batch."""
    figures = traps.store_by_pages(300 * KIB, "a")
    assert [name for _, name in _names(figures)] == ["append", "touch", "append once touched"] * 3
    assert len({case for case, _ in _names(figures)}) == 3


def test_storing_fills_every_byte() -> None:
    """The last batch is cut to what is left."""
    pages = bytearray(10)
    traps._store(memoryview(pages), b"abcd")
    assert pages == b"abcdabcdab"


def test_without_populate_a_trap_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old kernel: the reason says which one is needed."""
    monkeypatch.setattr(type(OS_FILES), "populate", lambda *_: False)
    with pytest.raises(Skipped, match=r"5\.14"):
        traps.flush_after_window((128 * KIB,), "a")


# --- sendfile against views -------------------------------------------------------------------------------------------


def test_costs_are_given_for_a_gigabyte() -> None:
    """Half of one, so all doubles but the rate."""
    figures = traps.Moved(500_000_000, sender=0.1, receiver=0.25, seconds=0.25).figures("a")
    assert [figure.name for figure in figures] == ["sender", "receiver", "both", "throughput"]
    assert [figure.value for figure in figures] == pytest.approx([0.2, 0.5, 0.7, 2.0])


def test_a_file_is_sent_in_both_ways() -> None:
    """4 MiB; a byte too few and the receiver would not come to its end."""
    figures = traps.send_a_file(4 * MIB, "a")
    assert _names(figures) == [
        (f"a, {way}", name)
        for way in ("views of its map", "os.sendfile")
        for name in ("sender", "receiver", "both", "throughput")
    ]


def _received_after_overwrite(path: Path, send: Callable[[socket.socket, int, mmap.mmap], None]) -> bytes:
    """Send a file of OLD, store NEW over it when that has returned, and only then receive."""
    path.write_bytes(OLD)
    with (
        path.open("r+b", buffering=0) as file,
        mmap.mmap(file.fileno(), SENT) as pages,
        traps.loopback() as (sender, receiver),
    ):
        send(sender, file.fileno(), pages)
        pages[:] = NEW
        sender.shutdown(socket.SHUT_WR)
        with receiver.makefile("rb") as stream:
            return stream.read()


def test_bytes_sent_as_a_view_arrive_as_they_were(tmp_path: Path) -> None:
    """What is stored in the map after the send has returned changes nothing: a recycled file may be written at once."""
    received = _received_after_overwrite(tmp_path / "file", lambda sender, _, pages: sender.sendall(pages))
    assert received == OLD


def test_bytes_sent_by_sendfile_arrive_as_the_file_is_now(tmp_path: Path) -> None:
    """The trap: the same with sendfile gives the new bytes, so a mirror would get what its CRC does not fit."""
    received = _received_after_overwrite(tmp_path / "file", lambda sender, fd, _: traps.sendfile_all(sender, fd, SENT))
    assert len(received) == SENT
    if received == OLD:
        pytest.skip("this kernel or file system copies the file's pages in sendfile")
    assert received == NEW


def test_sendfile_from_a_file_that_is_too_short_ends(tmp_path: Path) -> None:
    """It sends nothing at the end of the file; that must not be tried for ever."""
    (tmp_path / "file").write_bytes(OLD)
    with (tmp_path / "file").open("rb") as file, traps.loopback() as (sender, _), pytest.raises(OSError, match="ends"):
        traps.sendfile_all(sender, file.fileno(), SENT + 1)


# --- Reading the past -------------------------------------------------------------------------------------------------


def test_what_a_read_of_the_past_takes_of_the_memory(tmp_path: Path) -> None:
    """Goal: the row would show a way that fills the memory. A mebibyte by each: `pread` keeps it, the product's does
    not."""
    (tmp_path / "any").write_bytes(b"x")
    if not reads_uncached(tmp_path / "any"):
        pytest.skip("the kernel has no RWF_DONTCACHE for this file system")
    figures = traps.read_the_past(MIB, "a")
    ways = ("a, pread", "a, OsFile.pread_past")
    names = [(figure.case, figure.name) for figure in figures]
    assert names == [(way, name) for way in ways for name in ("rate", "memory taken")]
    assert figures[0].value > 0
    assert figures[2].value > 0
    assert (figures[1].value, figures[3].value) == (1, 0)


# --- A busy thread beside a loop --------------------------------------------------------------------------------------


@pytest.mark.process
def test_pings_give_percentiles_alone_and_beside_a_busy_thread() -> None:
    """For a moment, from a process of its own: the median is not above the 99th."""
    figures = traps.ping_beside_python(0.05, "a")
    cases = ("a, alone in its process", "a, beside a thread that runs Python")
    assert _names(figures) == [(case, name) for case in cases for name in ("p50", "p99")]
    assert figures[0].value <= figures[1].value
    assert figures[2].value <= figures[3].value


# --- The list ---------------------------------------------------------------------------------------------------------


def test_every_trap_is_a_group_of_its_own() -> None:
    """Six traps, quick or not, none of them taken for a workload of the product or compared with peers."""
    full, quick = traps.workloads(quick=False), traps.workloads(quick=True)
    names = ["lock", "window", "pages", "sendfile", "busy thread", "past"]
    assert [each.workload for each in full] == [each.workload for each in quick] == names
    assert {each.group for each in full} == {traps.TRAP}
    assert not any(each.compared for each in full)
