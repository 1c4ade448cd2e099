"""The round trip of one record in Python and uvloop: producer to master, to mirrors, acks, confirm; fanout.c's moves.

    python -m bench.limit.hops SECONDS RECORD_BYTES MIRRORS

The smallest program that makes them: one process and one uvloop each, a `BufferedProtocol` at every end, frames of a
fixed size, a copy into a mapped file at the master, received in place at the mirrors. No header, no checksum, no queue.
What it takes beyond the C program is what Python and uvloop take.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Final

import uvloop

from bench.limit import children
from bench.measure import percentile

ACK: Final = bytes(8)
HOST: Final = "127.0.0.1"
FILE_BYTES: Final = 64 * 1024 * 1024

_WARM_UP_SHARE: Final = 0.1


class End(asyncio.BufferedProtocol):
    """One end of a connection. `place`: where the next frame is received; `whole`: called when it has come."""

    def __init__(self, place: Callable[[], memoryview], whole: Callable[[End], None]) -> None:
        self.send: Callable[[bytes | memoryview], None] = lambda frame: None
        self.connected = asyncio.Event()
        self.closed = asyncio.Event()
        self._place = place
        self._whole = whole
        self._room = place()
        self._held = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.send = transport.write  # type: ignore[attr-defined]  # uvloop's transports do not derive from asyncio's
        self.connected.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        self._held += nbytes
        if self._held == len(self._room):
            self._held = 0
            self._whole(self)
            self._room = self._place()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()


def always(size: int) -> Callable[[], memoryview]:
    """The same memory for every frame."""
    memory = memoryview(bytearray(size))
    return lambda: memory


class MappedFile:
    """A file without a name whose pages are in memory; its places go round."""

    def __init__(self, record_bytes: int) -> None:
        with tempfile.TemporaryFile() as file:
            file.write(bytes(FILE_BYTES))
            file.flush()
            self._view = memoryview(mmap.mmap(file.fileno(), FILE_BYTES))
        for at in range(0, FILE_BYTES, mmap.PAGESIZE):
            self._view[at] = 1
        self._record_bytes = record_bytes
        self._end = 0

    def next_place(self) -> memoryview:
        """For the next record."""
        if self._end + self._record_bytes > FILE_BYTES:
            self._end = 0
        self._end += self._record_bytes
        return self._view[self._end - self._record_bytes : self._end]


async def mirror(port: int, record_bytes: int) -> None:
    """Receive each record into the file and ack it, until the master is gone."""
    file = MappedFile(record_bytes)
    loop = asyncio.get_running_loop()
    _, end = await loop.create_connection(lambda: End(file.next_place, lambda end: end.send(ACK)), HOST, port)
    await end.closed.wait()


async def master(report: Callable[[int], object], record_bytes: int, mirrors: int) -> None:
    """Copy each record into the file, send it from there to each mirror, and confirm it when all have acked.

    `report`: told the port for mirrors, and the one for the producer once they are there.
    """
    file, buffer = MappedFile(record_bytes), always(record_bytes)
    loop = asyncio.get_running_loop()
    missing = 0

    def stored(_: End) -> None:
        nonlocal missing
        place = file.next_place()
        place[:] = buffer()
        missing = mirrors
        for each in followers:
            each.send(place)

    def acked(_: End) -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            producer.send(ACK)

    followers = [End(always(len(ACK)), acked) for _ in range(mirrors)]
    coming = iter(followers)
    report(_port(await loop.create_server(lambda: next(coming), HOST, 0)))
    for each in followers:
        await each.connected.wait()
    producer = End(buffer, stored)
    report(_port(await loop.create_server(lambda: producer, HOST, 0)))
    await producer.closed.wait()


def _port(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


async def produce(port: int, record_bytes: int, seconds: float) -> list[float]:
    """Send a record when the one before it was confirmed; how long each took in µs, after a warm-up."""
    record, taken_us = os.urandom(record_bytes), []
    asked = 0.0
    begin = time.perf_counter() + seconds * _WARM_UP_SHARE
    done = asyncio.Event()

    def confirmed(end: End) -> None:
        nonlocal asked
        now = time.perf_counter()
        if asked > begin:
            taken_us.append((now - asked) * 1e6)
        if now > begin + seconds and taken_us:
            done.set()
            return
        asked = time.perf_counter()
        end.send(record)

    loop = asyncio.get_running_loop()
    _, end = await loop.create_connection(lambda: End(always(len(ACK)), confirmed), HOST, port)
    end.send(record)
    await done.wait()
    return taken_us


def main() -> None:
    seconds, record_bytes, mirrors = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    theirs, reported = os.pipe()

    def report(port: int) -> None:
        os.write(reported, f"{port}\n".encode())

    children.start(lambda: uvloop.run(master(report, record_bytes, mirrors)))
    os.close(reported)
    with open(theirs, encoding="ascii") as ports:  # noqa: PTH123 - a descriptor
        mirror_port = int(ports.readline())
        for _ in range(mirrors):
            children.start(lambda: uvloop.run(mirror(mirror_port, record_bytes)))
        producer_port = int(ports.readline())
    signal.alarm(children.DEADLINE_S)
    taken_us = uvloop.run(produce(producer_port, record_bytes, seconds))
    children.wait()
    print(json.dumps({f"p{share}_us": percentile(taken_us, share / 100) for share in (50, 99, 99.9)}))


if __name__ == "__main__":
    main()
