"""Walking the batches of a segment file with pread: every header, every checksum, in order.

Recovery, rebuilding and tools use this and never the map, so that a bad sector is an error and not a SIGBUS.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from mirrorlog.commitlog.epochs import EpochList
from mirrorlog.commitlog.files import File, Files
from mirrorlog.commitlog.format.envelope import inner_bytes, open_envelope
from mirrorlog.commitlog.format.header import (
    ALIGNMENT,
    HEADER_SIZE,
    MAGIC_AT,
    BatchHeader,
    check_body,
    check_stamped,
    is_envelope,
    is_inner,
)
from mirrorlog.errors import BadBatch, LogCorrupt

OnBatch = Callable[[BatchHeader, memoryview], None]
"""Called with a checked header and the whole batch; the view is valid only during the call. Of a transaction with its
envelope first, then with what is inside."""

BLOCK_BYTES: Final = 2 * 1024 * 1024
_STARTS_MAX: Final = 4
_RESTORE: Final = "; restore the log from another copy"

_ZEROS: Final = bytes(BLOCK_BYTES)
_MAGIC: Final = re.compile(b"MLB1")


def ignore_batch(header: BatchHeader, batch: memoryview) -> None:
    """An OnBatch that does nothing."""


class BlockReader:
    """Sequential reads of one file through one reused buffer. Raises OSError."""

    __slots__ = ("_at", "_buffer", "_data_end", "_file", "_held", "size")

    def __init__(self, file: File) -> None:
        self._file = file
        self.size = file.size()
        # Asked for before anything is read: the kernel's read-ahead counts as data from then on.
        self._data_end = file.data_end()
        self._buffer = memoryview(bytearray(min(BLOCK_BYTES, self.size)))
        self._at = 0
        self._held = 0

    def view(self, at: int, size: int) -> memoryview:
        """The bytes at `at`, fewer than `size` only at the file's end. Valid until the next call."""
        if at < self._at or at + size > self._at + self._held:
            self._fill(at, size)
        return self._buffer[at - self._at : min(at - self._at + size, self._held)]

    def blocks(self, at: int) -> Iterator[tuple[int, memoryview]]:
        """(place, bytes) from `at` on, without the zeros at the file's end that were never written."""
        while at < self._data_end:
            block = self.view(at, min(BLOCK_BYTES, self.size - at))
            if not block:
                return
            yield at, block
            at += len(block)

    def _fill(self, at: int, size: int) -> None:
        wanted = min(max(BLOCK_BYTES, size), self.size - at)
        if wanted > len(self._buffer):
            self._buffer = memoryview(bytearray(wanted))
        self._at = at
        self._held = self._file.pread(self._buffer[: max(0, wanted)], at)


class Checked(NamedTuple):
    """A whole batch, as long as its reader's view is valid, and the headers of what is inside of a transaction."""

    header: BatchHeader
    batch: memoryview
    inside: list[BatchHeader]


@dataclass(frozen=True, slots=True)
class BatchRules:
    """What makes bytes a batch of this log: its seed and its epochs. No size limit but the file's: a setting that
    was lowered must not turn stored batches into bad ones."""

    seed: int
    epochs: EpochList

    def check_header(self, head: memoryview, log_offset: int, bytes_max: int) -> BatchHeader:
        """Of the batch at a log offset, which has `bytes_max` at most. Raises BadBatch."""
        header = check_stamped(head, 0, log_offset=log_offset, seed=self.seed, max_batch_bytes=bytes_max)
        if header.epoch != (epoch := self.epochs.at(log_offset)):
            raise BadBatch(f"epoch {header.epoch} where the epoch list has {epoch}")
        return header

    def check(self, reader: BlockReader, start: int, at: int) -> Checked:
        """The whole batch at `at` of the file whose first byte is log offset `start`. Raises BadBatch."""
        header = self.check_header(reader.view(at, HEADER_SIZE), start + at, reader.size - at)
        batch = reader.view(at, header.length)
        check_body(batch, 0, header)
        if is_inner(header):
            raise BadBatch("the transaction that this batch belongs to is not whole")
        inside = open_envelope(batch, header, seed=self.seed) if is_envelope(header) else []
        return Checked(header, batch, inside)


class Stop(NamedTuple):
    """Where a walk ended: a position in the file, and why no batch is there."""

    at: int
    reason: str


def walk(reader: BlockReader, *, start: int, at: int, until: int, rules: BatchRules, on_batch: OnBatch) -> Stop:
    """Give every batch from `at` on to `on_batch`, up to file position `until` or the first place that holds none.

    Transactions are given whole, or not at all.
    """
    while at < until:
        try:
            header, batch, inside = rules.check(reader, start, at)
        except BadBatch as error:
            return Stop(at, error.message)
        on_batch(header, batch)
        for inner in inside:
            on_batch(inner, inner_bytes(batch, header, inner))
        at += header.length
    return Stop(at, "")


def scan_file(
    files: Files, path: Path, *, start: int, first: int, last: int, rules: BatchRules, on_batch: OnBatch
) -> None:
    """Give the batches of [first, last), log offsets, to `on_batch`. Raises LogCorrupt and OSError."""
    with closing(files.open(path)) as file:
        stop = walk(
            BlockReader(file), start=start, at=first - start, until=last - start, rules=rules, on_batch=on_batch
        )
    if stop.reason:
        raise bad_bytes(start + stop.at, last, path, stop.reason)


def bad_bytes(first: int, last: int, path: Path, reason: str) -> LogCorrupt:
    """The error for log offsets [first, last) that must hold batches and do not."""
    return LogCorrupt(
        f"bad bytes from log offset {first} to {last} in {path}: {reason}{_RESTORE}",
        first=first,
        last=last,
        file=str(path),
    )


def without_advice(error: LogCorrupt) -> str:
    """What is wrong, for whoever does something about it."""
    return error.message.removesuffix(_RESTORE)


def nonzero_end(reader: BlockReader, at: int) -> int:
    """The position after the last byte from `at` on that is not zero, rounded up to 8; `at` when all are zero."""
    end = at
    for place, block in reader.blocks(at):
        if not _is_zero(block):
            end = place + len(bytes(block).rstrip(b"\0"))
    return min(end + -end % ALIGNMENT, reader.size)


def find_batch(reader: BlockReader, *, start: int, at: int, rules: BatchRules) -> BatchHeader | None:
    """The first valid batch at or after `at`: aligned, checksums right, at its own place, of the right epoch.

    Blocks are multiples of 8 bytes and so is `at`, so no aligned magic is cut in two by a block's border.
    """
    for place, block in reader.blocks(at):
        for candidate in _candidates(place, bytes(block), at):
            try:
                return rules.check(reader, start, candidate).header
            except BadBatch:
                continue
    return None


def find_starts(reader: BlockReader, rules: BatchRules, *, lowest: int) -> list[int]:
    """The log offsets, from `lowest` on, that the first byte of a file may have whose name does not say it, by the
    batches of this log that stand in it; none without one.

    There may be several: a recycled file holds former batches behind new ones, and a record may be a copy of a batch.
    Then those of the most bytes.
    """
    found: Counter[int] = Counter()
    end = 0
    for place, block in reader.blocks(0):
        content = bytes(block)
        for candidate in _candidates(place, content, 0):
            at = candidate - place
            # Seldom from the file: a recycled one is full of former batches.
            log_offset = content[at : at + 8] if at >= 0 else reader.view(candidate, 8)
            start = int.from_bytes(log_offset, "little") - candidate
            if candidate < end or start < lowest:
                continue
            with suppress(BadBatch):
                header = rules.check(reader, start, candidate).header
                found[start] += header.length
                end = candidate + header.length
    return sorted(found, key=lambda start: (-found[start], -start))[:_STARTS_MAX]


def _candidates(place: int, block: bytes, lowest: int) -> Iterator[int]:
    """File positions where a batch could begin whose magic lies in `block`."""
    for match in _MAGIC.finditer(block):
        candidate = place + match.start() - MAGIC_AT
        if candidate >= lowest and candidate % ALIGNMENT == 0:
            yield candidate


def _is_zero(block: memoryview) -> bool:
    # In words of 8 bytes: three times as fast as comparing bytes, and the rest of a new file is up to a gigabyte.
    words = len(block) // 8 * 8
    return not (words and np.frombuffer(block[:words], dtype="<u8").any()) and not any(block[words:])


def zero_out(file: File, at: int, end: int) -> None:
    """Write zeros over [at, end) where something else stands. Raises OSError."""
    end = min(end, file.data_end())
    buffer = memoryview(bytearray(min(BLOCK_BYTES, max(0, end - at))))
    while at < end:
        got = file.pread(buffer[: end - at], at)
        if got == 0:
            return
        if not _is_zero(buffer[:got]):
            file.pwrite(_ZEROS[:got], at)
        at += got
