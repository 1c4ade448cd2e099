"""Lines from a file, a pipe or a terminal, without holding up the event loop while none come.

A thread of its own reads, since a read from a pipe can take for ever. It is a daemon and uses `os.read`: Ctrl-C ends
the program at once, where an executor's thread, or the lock of a buffered stdin, would have to be waited for.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from typing import Final

from mirrorlog.errors import BadInput

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The most that a node's `max_record_bytes` may be set to."""

_CHUNK_BYTES: Final = 64 * 1024
_CHUNKS_AHEAD: Final = 16

_Chunks = asyncio.Queue[bytes | OSError]


async def read_lines(fd: int) -> AsyncIterator[bytes]:
    """Each line without its line feed; the last one counts without one too. Raises BadInput."""
    rest = bytearray()
    async for chunk in _chunks(fd):
        *lines, tail = chunk.split(b"\n")
        for line in lines:
            rest += line
            yield bytes(rest)
            rest.clear()
        rest += tail
        if len(rest) > LINE_BYTES_MAX:
            raise BadInput(f"a line is longer than {LINE_BYTES_MAX} bytes; no node takes a record of that size")
    if rest:
        yield bytes(rest)


async def _chunks(fd: int) -> AsyncIterator[bytes]:
    chunks: _Chunks = asyncio.Queue(_CHUNKS_AHEAD)
    threading.Thread(target=_read, args=(fd, asyncio.get_running_loop(), chunks), daemon=True).start()
    while chunk := await chunks.get():
        if isinstance(chunk, OSError):
            raise BadInput(f"the input cannot be read: {chunk.strerror}")
        yield chunk


def _read(fd: int, loop: asyncio.AbstractEventLoop, chunks: _Chunks) -> None:
    """Until the end, which is an empty chunk, or until the loop has gone."""
    while True:
        chunk: bytes | OSError
        try:
            chunk = os.read(fd, _CHUNK_BYTES)
        except OSError as error:
            chunk = error
        put = chunks.put(chunk)
        try:
            asyncio.run_coroutine_threadsafe(put, loop).result()
        except (RuntimeError, CancelledError):  # the loop is closed, or closing: nobody reads on
            put.close()
            return
        if not isinstance(chunk, bytes) or not chunk:
            return
