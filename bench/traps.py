"""The traps of the data path: each beside the way that avoids it, so that a row says whether the reason still holds.

Every workload gives the figures of both ways from one run: they are to be compared with each other and with nothing
else. Where the product has a function for the good way (`OsFile.fdatasync`, `OsFiles.populate`), that function is
what is measured. Why each way was chosen: decision 0007.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import socket
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

import uvloop

from bench.clients import Pace, run_clients
from bench.measure import Figure, latencies
from bench.page_cache import cached_pages, drop_pages
from bench.workload import KIB, MIB, TRAP, Measured, Skipped, WorkloadFailed
from mirrorlog.commitlog.files import OS_FILES, OsFile

_MADV_POPULATE_WRITE: Final = 23  # linux/mman.h
_TOUCH_BYTES: Final = MIB
_BATCH: Final = 256 * KIB
_SMALL_BATCH: Final = 64 * KIB
_PAST_RUN: Final = MIB - 1000
_SENT_FILE: Final = 64 * MIB
_GAP_TRIES: Final = 4
_SYNCS: Final = 5
_PING_PAUSE_SECONDS: Final = 0.001
_DEADLINE_SECONDS: Final = 20


def workloads(*, quick: bool) -> list[Measured]:
    """One for each trap; each takes less than four seconds on a disk that gives 0.5 GB/s."""
    share = 16 if quick else 1
    helped, window, stored = 64 * MIB // share, 256 * MIB // share, 64 * MIB // share

    def trap(workload: str, case: str, measure: Callable[[str], list[Figure]]) -> Measured:
        return Measured(workload, case, measure, group=TRAP)

    return [
        trap("lock", f"a loop while a helper handles {helped // MIB} MiB", partial(lock_held, helped)),
        trap("window", "64 KiB between flushes", partial(flush_after_window, (8 * MIB // share, window))),
        trap("pages", f"{stored // MIB} MiB stored by map", partial(store_by_pages, stored)),
        trap("sendfile", "loopback, a file in the page cache", partial(send_a_file, 512 * MIB // share)),
        trap("busy thread", "loopback ping to uvloop", partial(ping_beside_python, 0.2 if quick else 1.0)),
        trap("past", f"{window // MIB} MiB of the past from the disk", partial(read_the_past, window)),
    ]


def _new_file(size: int) -> tuple[OsFile, memoryview]:
    """Allocated and mapped, on the disk that nodes use too; without a name, so it is gone with its last user."""
    with tempfile.TemporaryDirectory(prefix="mirrorlog-bench-trap-") as directory:
        file = OS_FILES.open(Path(directory) / "file", create=True)
    file.allocate(size)
    return file, file.map()


def _touch(pages: memoryview) -> None:
    """Make pages writable as the product does. Raises Skipped."""
    for at in range(0, len(pages), _TOUCH_BYTES):
        if not OS_FILES.populate(pages[at : at + _TOUCH_BYTES]):
            raise Skipped("the kernel cannot populate pages for writing: Linux 5.14 or newer is needed")


def _store(pages: memoryview, batch: bytes) -> None:
    for at in range(0, len(pages), len(batch)):
        pages[at : at + len(batch)] = batch[: len(pages) - at]


# --- A call that holds the interpreter lock ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Stop:
    """How long a thread did not run during a helper's call, at most, and how long the call took. Seconds."""

    gap_max: float
    call: float


def stop_during(call: Callable[[], object]) -> Stop:
    """Turn in a loop while a helper thread makes the call. Raises what the call raises."""
    with ThreadPoolExecutor(1) as helper:
        # So that the start of the helper's thread is not taken for a stop.
        helper.submit(int).result()
        began = last = time.perf_counter()
        gap_max, done = 0.0, False
        running = helper.submit(call)
        while not done:
            done = running.done()
            now = time.perf_counter()
            gap_max, last = max(gap_max, now - last), now
        running.result()
        return Stop(gap_max, last - began)


def lock_held(size: int, case: str) -> list[Figure]:
    """`mmap.flush` and `mmap.madvise` against what the product calls, on `size` bytes."""
    ways: dict[str, Callable[[], Callable[[], object]]] = {
        "mmap.flush": lambda: _map_of(_dirty(size)[1]).flush,
        "OsFile.fdatasync": lambda: _dirty(size)[0].fdatasync,
        "mmap.madvise, populate": lambda: partial(_map_of(_new_file(size)[1]).madvise, _MADV_POPULATE_WRITE),
        "OsFiles.populate": lambda: partial(OS_FILES.populate, _new_file(size)[1]),
    }
    figures: list[Figure] = []
    for way, make_call in ways.items():
        # The best one: a thread stops for other reasons too, but for a held lock it stops every time.
        best = min(stop_during(make_call()) for _ in range(_GAP_TRIES))
        figures += (
            Figure("lock", f"{case}, {way}", "gap max", "ms", best.gap_max * 1e3),
            Figure("lock", f"{case}, {way}", "call", "ms", best.call * 1e3),
        )
    return figures


def _dirty(size: int) -> tuple[OsFile, memoryview]:
    file, pages = _new_file(size)
    _store(pages, os.urandom(_BATCH))
    return file, pages


def _map_of(pages: memoryview) -> mmap.mmap:
    return cast(mmap.mmap, pages.obj)


# --- A window of writable pages is a window to be written -------------------------------------------------------------


def flush_after_window(windows: tuple[int, ...], case: str) -> list[Figure]:
    """fdatasync after a batch, with the pages ahead of the tail touched by so many bytes, and by pwrite without any."""
    batch = os.urandom(_SMALL_BATCH)
    file, pages = _new_file(max(windows) + (len(windows) + 1) * _SYNCS * len(batch))
    _touch(pages)
    file.fdatasync()
    figures: list[Figure] = []
    tail = 0
    for window in (*windows, 0):
        times_ms: list[float] = []
        for _ in range(_SYNCS):
            if window:
                _touch(pages[tail : tail + window])
                pages[tail : tail + len(batch)] = batch
            else:
                file.pwrite(batch, tail)
            tail += len(batch)
            times_ms.append(_timed(file.fdatasync) * 1e3)
        way = f"by map, {window / MIB:g} MiB touched ahead" if window else "by pwrite, no window"
        figures.append(Figure("window", f"{case}, {way}", "fdatasync", "ms", statistics.median(times_ms)))
    return figures


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


# --- A page's first store ---------------------------------------------------------------------------------------------


def store_by_pages(size: int, case: str) -> list[Figure]:
    """Appends of batches by memcpy, and the touching that a helper may do for them, by what the pages were before."""
    batch = os.urandom(_BATCH)
    figures: list[Figure] = []
    for state, make in _STATES.items():
        appended, touched = make(size), make(size)
        figures += (
            _rate(f"{case}, {state}", "append", size, partial(_store, appended, batch)),
            _rate(f"{case}, {state}", "touch", size, partial(_touch, touched)),
            _rate(f"{case}, {state}", "append once touched", size, partial(_store, touched, batch)),
        )
    return figures


def _rate(case: str, name: str, size: int, call: Callable[[], object]) -> Figure:
    return Figure("pages", case, name, "GB/s", size / 1e9 / _timed(call))


def _never_touched(size: int) -> memoryview:
    return _new_file(size)[1]


def _prepared(size: int) -> memoryview:
    file, pages = _new_file(size)
    _touch(pages)
    file.fdatasync()
    return pages


def _recycled(size: int) -> memoryview:
    file, _ = _dirty(size)
    file.fdatasync()
    return file.map()


_STATES: Final = {
    "never touched": _never_touched,
    "prepared (touched and synced)": _prepared,
    "recycled (stored before, synced, mapped anew)": _recycled,
}


# --- Reading the past -------------------------------------------------------------------------------------------------


def read_the_past(size: int, case: str) -> list[Figure]:
    """`size` bytes that are not in memory, in runs, by pread and as the product does: how fast, and what memory it
    took. Raises Skipped where pages cannot be dropped."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="mirrorlog-bench-trap-") as directory:
        path = Path(directory) / "file"
        with path.open("wb") as file:
            for _ in range(size // MIB):
                file.write(os.urandom(MIB))
        for way, read in {"pread": OsFile.pread, "OsFile.pread_past": OsFile.pread_past}.items():
            drop_pages(path)
            if any(cached_pages(path)):
                raise Skipped("this file system keeps the pages that it is asked to drop")
            seconds = _timed(partial(_read_in_runs, path, read))
            left = sum(cached_pages(path)) * mmap.PAGESIZE / MIB
            figures += (
                Figure("past", f"{case}, {way}", "rate", "GB/s", size / 1e9 / seconds),
                Figure("past", f"{case}, {way}", "memory taken", "MiB", left),
            )
    return figures


def _read_in_runs(path: Path, read: Callable[[OsFile, memoryview, int], int]) -> None:
    """As readers of the past do it: whole batches, so that hardly a run begins or ends with a page; a file each."""
    run = memoryview(bytearray(_PAST_RUN))
    for at in range(0, path.stat().st_size, len(run)):
        with OS_FILES.open(path) as file:
            read(file, run, at)


# --- sendfile against views -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Moved:
    """What moving `size` bytes took: processor seconds of both ends, and seconds by the clock."""

    size: int
    sender: float
    receiver: float
    seconds: float

    def figures(self, case: str) -> list[Figure]:
        """What a GB costs each end and both, and the rate."""
        gb = self.size / 1e9
        return [
            Figure("sendfile", case, "sender", "CPU s/GB", self.sender / gb),
            Figure("sendfile", case, "receiver", "CPU s/GB", self.receiver / gb),
            # Part of a stream's work is done for whichever end happens to run; the sum says most.
            Figure("sendfile", case, "both", "CPU s/GB", (self.sender + self.receiver) / gb),
            Figure("sendfile", case, "throughput", "GB/s", gb / self.seconds),
        ]


@contextmanager
def loopback() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection. They block, because sendfile is to, but not for ever: then BlockingIOError."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = (socket.create_connection(server.getsockname(), _DEADLINE_SECONDS), server.accept()[0])
    with ends[0], ends[1]:
        for end in ends:
            end.settimeout(None)
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", _DEADLINE_SECONDS, 0))
        yield ends


def sendfile_all(sender: socket.socket, fd: int, size: int) -> None:
    """The first `size` bytes of a file. Raises OSError, also when the file has fewer."""
    sent = 0
    while sent < size:
        step = os.sendfile(sender.fileno(), fd, sent, size - sent)
        if step == 0:
            raise OSError(errno.EIO, f"the file ends at {sent}, not at {size}")
        sent += step


def send_a_file(size: int, case: str) -> list[Figure]:
    """`size` bytes, by a view of the file's map and by sendfile, to a receiver with one warm buffer."""
    with tempfile.TemporaryFile(prefix="mirrorlog-bench-trap-") as file:
        length = min(size, _SENT_FILE)
        file.truncate(length)
        pages = memoryview(mmap.mmap(file.fileno(), length))
        _store(pages, os.urandom(_BATCH))
        by_view = _move(size, length, lambda sender: sender.sendall(pages))
        by_sendfile = _move(size, length, lambda sender: sendfile_all(sender, file.fileno(), length))
    return by_view.figures(f"{case}, views of its map") + by_sendfile.figures(f"{case}, os.sendfile")


def _move(size: int, length: int, send: Callable[[socket.socket], None]) -> Moved:
    """Send `length` bytes until `size` have left."""
    with loopback() as (sender, receiver), ThreadPoolExecutor(1) as other:
        receiving = other.submit(_receive, receiver, size)
        began, spent = time.perf_counter(), time.thread_time()
        for _ in range(size // length):
            send(sender)
        spent = time.thread_time() - spent
        return Moved(size, spent, receiving.result(_DEADLINE_SECONDS), time.perf_counter() - began)


def _receive(receiver: socket.socket, size: int) -> float:
    """Processor seconds for so many bytes."""
    buffer = bytearray(_BATCH)
    spent = time.thread_time()
    while size > 0:
        got = receiver.recv_into(buffer)
        if got == 0:
            raise WorkloadFailed(f"the sender ended with {size} bytes still to come")
        size -= got
    return time.thread_time() - spent


# --- A busy thread beside a loop --------------------------------------------------------------------------------------


def ping_beside_python(seconds: float, case: str) -> list[Figure]:
    """One ping outstanding, from another process to a loop alone, and to one beside a thread that never waits."""
    with _echo() as address:
        job = (address, seconds)
        (alone,) = run_clients(ping, [job])
        with _busy_python():
            (beside,) = run_clients(ping, [job])
    return latencies("busy thread", f"{case}, alone in its process", alone) + latencies(
        "busy thread", f"{case}, beside a thread that runs Python", beside
    )


def ping(pace: Pace, job: tuple[tuple[str, int], float]) -> list[float]:
    """The client: round trips in µs, with a pause after each.

    Without it the loop has the next ping before the busy thread wakes, and a stop of 10 ms is one of a thousand pings.
    """
    address, seconds = job
    times_us: list[float] = []
    with socket.create_connection(address, _DEADLINE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end = pace.begin() + seconds
        while (asked := time.perf_counter()) < end:
            connection.send(b"p")
            if connection.recv(1) == b"":
                raise WorkloadFailed("the loop ended the connection")
            times_us.append((time.perf_counter() - asked) * 1e6)
            time.sleep(_PING_PAUSE_SECONDS)
    return times_us


@contextmanager
def _echo() -> Iterator[tuple[str, int]]:
    """The address of a loop on a thread of this process that sends back what it gets."""
    loop = uvloop.new_event_loop()
    server = cast(asyncio.Server, loop.run_until_complete(loop.create_server(_Echo, "127.0.0.1", 0)))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(server.wait_closed())
        loop.close()


class _Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@contextmanager
def _busy_python() -> Iterator[None]:
    """Meanwhile a thread runs Python code."""
    stop = threading.Event()

    def count() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
