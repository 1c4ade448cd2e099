"""Warm memory for batches on their way: their bytes are joined where those of batches that have ended stood.

A batch of 256 KiB from the allocator is 65 pages that the system clears and maps when they are first written, and
takes back when the batch has ended: as dear as copying the records themselves. So memory is used again, the oldest
first: batches end in about the order in which they leave. Whether the last user of it is done, a transport with
bytes unsent perhaps, the interpreter knows: a BytesIO with a view of it refuses to be written to. So nothing is
handed back, and nothing can be overwritten that somebody may still read.

Rejected: a bytearray filled through a view of it. Only `join` and BytesIO copy a list of bytes without a step in
Python for each, and `join` always makes memory of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mirrorlog.commitlog.format.drafts import Join, Part

_REMEMBERED_BYTES_MAX: Final = 16 * 1024 * 1024
# Smaller ones come from the allocator without new pages.
_POOLED_BYTES_MIN: Final = 64 * 1024
# Batches that are nearly as large share memory; powers of two would double one of 256 KiB and its header.
_STEP_BYTES: Final = 64 * 1024


class JoinPool:
    """Gives ways to join a batch's bytes. Used by one thread; the views may be dropped in any."""

    __slots__ = ("_files", "_remembered_bytes", "_remembered_bytes_max")

    def __init__(self, *, remembered_bytes_max: int = _REMEMBERED_BYTES_MAX) -> None:
        """`remembered_bytes_max`: of memory that is used again; what is needed beyond it comes from the allocator."""
        self._remembered_bytes_max = remembered_bytes_max
        self._remembered_bytes = 0
        # Each with its size, the one that was used longest ago first.
        self._files: deque[tuple[BytesIO, int]] = deque()

    def join_for(self, size_max: int) -> Join:
        """How to join a batch of at most `size_max` bytes, once and at once."""
        file = self._free(size_max) if size_max >= _POOLED_BYTES_MIN else None
        return bytearray().join if file is None else partial(_joined_in, file)

    def _free(self, size: int) -> BytesIO | None:
        while self._files and not _looked_at(self._files[0][0]):
            file, capacity = self._files.popleft()
            if capacity >= size:
                self._files.append((file, capacity))
                return file
            self._remembered_bytes -= capacity
        capacity = -(-size // _STEP_BYTES) * _STEP_BYTES
        if self._remembered_bytes + capacity > self._remembered_bytes_max:
            return None
        file = BytesIO(bytes(capacity))
        self._files.append((file, capacity))
        self._remembered_bytes += capacity
        return file


def _joined_in(file: BytesIO, parts: Sequence[Part]) -> memoryview:
    file.seek(0)
    file.writelines(parts)
    return file.getbuffer()[: file.tell()]


def _looked_at(file: BytesIO) -> bool:
    """Whether a view of it lives."""
    try:
        file.write(b"")
    except BufferError:
        return True
    return False
