"""Warm memory for what a reader fetches: an answer is received into it once and never copied. Pure.

A fresh mebibyte costs as much in page faults and zeroing as it costs to receive, so buffers are used again. When may
one be? When nobody looks into it any more, and the interpreter knows that: a bytearray with a view of it, or a numpy
or Arrow array over such a view, cannot be resized. So nothing is handed back and nothing is counted; whoever keeps a
view keeps its buffer.

Rejected: giving buffers back by hand (one forgotten view, and records change under their reader), a weak reference
to the view (an array over it outlives it).
"""

from __future__ import annotations

from typing import Final

_REMEMBERED_BYTES_MAX: Final = 16 * 1024 * 1024
_REMEMBERED_MAX: Final = 16
# Smaller ones come cheaply from the allocator, without a page fault.
_POOLED_BYTES_MIN: Final = 64 * 1024


class BufferPool:
    """Gives memory to receive into, and gives it again once nobody looks at it. Used by one thread; the views that it
    gives may be dropped in any."""

    def __init__(self, *, remembered_bytes_max: int = _REMEMBERED_BYTES_MAX) -> None:
        """`remembered_bytes_max`: of buffers that may be used again; those beyond it end with their last view."""
        self._remembered_bytes_max = remembered_bytes_max
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Room for exactly `size` bytes, with anything in it. Nobody else has it until the last view of it is gone."""
        if size < _POOLED_BYTES_MIN:
            return memoryview(bytearray(size))
        # Powers of two: few sizes to find one among, and a value that is kept keeps at most twice its answer alive.
        return memoryview(self._free(1 << (size - 1).bit_length()))[:size]

    def _free(self, size: int) -> bytearray:
        for at, buffer in enumerate(self._buffers):
            if len(buffer) == size and not _looked_at(buffer):
                del self._buffers[at]
                break
        else:
            buffer = bytearray(size)
        # To the front: the one that was used last is the likeliest to be in the processor's cache.
        self._buffers.insert(0, buffer)
        while len(self._buffers) > _REMEMBERED_MAX or sum(map(len, self._buffers)) > self._remembered_bytes_max:
            self._buffers.pop()
        return buffer


def _looked_at(buffer: bytearray) -> bool:
    """Whether a view of it lives."""
    try:
        # One byte less and again one more: within what is allocated, so nothing moves.
        buffer.pop()
        buffer.append(0)
    except BufferError:
        return True
    return False
