"""Rows of a fixed size in checked blocks: a reader takes the 4 KiB that it needs and trusts no other byte.

A block is 4096 bytes: as many whole rows as fit into 4092, zeros, and the CRC-32C of those 4092 bytes. The CRC starts
at a number made of the file's salt and the block's place, so a block of another file or place does not count.

Rejected: one checksum per section (a lookup would have to read megabytes to trust one row), a list of checksums apart
from the blocks (two reads for each).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirrorlog.commitlog.files import File
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import IndexDoubtful

BLOCK_BYTES: Final = 4096
PAYLOAD_BYTES: Final = BLOCK_BYTES - 4

Bytes = NDArray[np.uint8]
Rows = NDArray[Any]

_BLOCKS_CACHED: Final = 8
_U32: Final = 2**32 - 1


def rows_per_block(row_bytes: int) -> int:
    return PAYLOAD_BYTES // row_bytes


def blocks_for(rows: int, row_bytes: int) -> int:
    """How many blocks `rows` rows need."""
    return -(-rows // rows_per_block(row_bytes))


def place_rows(blocks: Bytes, rows: Rows) -> None:
    """Copy `rows` (structured or plain, contiguous) into `blocks`, zeroed and of shape [n, 4096]."""
    size = rows.dtype.itemsize
    per_block = rows_per_block(size)
    content = rows.view(np.uint8).reshape(len(rows), size) if len(rows) else np.empty((0, size), np.uint8)
    full = len(rows) // per_block
    blocks[:full, : per_block * size] = content[: full * per_block].reshape(full, per_block * size)
    if full < len(blocks):
        rest = content[full * per_block :].reshape(-1)
        blocks[full, : len(rest)] = rest


def seal_blocks(blocks: Bytes, *, first: int, salt: int) -> NDArray[np.uint32]:
    """Write each block's CRC; `first` is the place of the first one in the file. Gives the CRCs."""
    content = blocks.reshape(-1).data
    crcs = np.fromiter(
        (
            crc32c(content[at : at + PAYLOAD_BYTES], (salt + first + index) & _U32)
            for index, at in enumerate(range(0, len(content), BLOCK_BYTES))
        ),
        dtype="<u4",
        count=len(blocks),
    )
    blocks[:, PAYLOAD_BYTES:] = crcs.view(np.uint8).reshape(len(blocks), 4)
    return crcs


class CheckedBlocks:
    """The blocks of one open file, read by pread. Blocking; one thread at a time. The last few are kept."""

    __slots__ = ("_cached", "_file", "_name", "_salt", "reads")

    def __init__(self, file: File, *, salt: int, name: str) -> None:
        self._file = file
        self._salt = salt
        self._name = name
        self._cached: OrderedDict[int, bytes] = OrderedDict()
        self.reads = 0
        """How many blocks were read from the file."""

    def block(self, number: int) -> bytes:
        """The 4096 bytes of a block. Raises IndexDoubtful, and OSError."""
        content = self._cached.get(number)
        if content is None:
            content = self._cached[number] = self._read(number)
            if len(self._cached) > _BLOCKS_CACHED:
                self._cached.popitem(last=False)
        else:
            self._cached.move_to_end(number)
        return content

    def _read(self, number: int) -> bytes:
        self.reads += 1
        content = bytearray(BLOCK_BYTES)
        with memoryview(content) as view:
            got = self._file.pread(view, number * BLOCK_BYTES)
            crc = crc32c(view[:PAYLOAD_BYTES], (self._salt + number) & _U32)
        if got < BLOCK_BYTES or crc.to_bytes(4, "little") != content[PAYLOAD_BYTES:]:
            raise IndexDoubtful(f"{self._name}: block {number} does not match its checksum", block=number)
        return bytes(content)


class Section:
    """`count` rows from block `first_block` on. Row numbers count from 0."""

    __slots__ = ("_blocks", "_dtype", "_per_block", "count", "first_block")

    def __init__(self, blocks: CheckedBlocks, dtype: np.dtype[Any], *, first_block: int, count: int) -> None:
        self._blocks = blocks
        self._dtype = dtype
        self._per_block = rows_per_block(dtype.itemsize)
        self.first_block = first_block
        self.count = count

    @property
    def end_block(self) -> int:
        """The block after the last one."""
        return self.first_block + blocks_for(self.count, self._dtype.itemsize)

    def row(self, number: int) -> tuple[bytes, int]:
        """(block, place in it) of a row, to unpack from."""
        block, place = divmod(number, self._per_block)
        return self._blocks.block(self.first_block + block), place * self._dtype.itemsize

    def slices(self) -> Iterator[Rows]:
        """All rows, a block at a time."""
        for number in range(self.first_block, self.end_block):
            left = self.count - (number - self.first_block) * self._per_block
            yield np.frombuffer(self._blocks.block(number), self._dtype, count=min(left, self._per_block))

    def all(self) -> Rows:
        """All rows in one array."""
        return np.concatenate([np.empty(0, self._dtype), *self.slices()])

    def some(self, first: int, last: int) -> Rows:
        """The rows [first, last) in one array."""
        blocks = range(first // self._per_block, blocks_for(last, self._dtype.itemsize)) if first < last else range(0)
        rows = [
            np.frombuffer(self._blocks.block(self.first_block + number), self._dtype, count=self._per_block)
            for number in blocks
        ]
        return np.concatenate([np.empty(0, self._dtype), *rows])[first % self._per_block :][: max(0, last - first)]
