"""The epoch list of a log: which mastership wrote from which log offset on, and the file that keeps it.

A mastership is known by its number, its start and who wrote it: the node and that node's start id. The last is needed
because a master whose disk was restored gives out a number again, perhaps at the same start, for other bytes.

The list decides two things. A batch counts only if its epoch is the one that the list gives at its place, so bytes
of a history that was cut cannot come back. And two copies find with it where their histories part: see `common_point`.

An epoch that wrote nothing shares its start with the next one; the later one counts there. A mirror takes over its
master's whole list when they meet, so a list may hold entries beyond its owner's end: they speak of bytes that the
owner does not have yet.

The file `epochs`, little endian, replaced as a whole:

    offset  size  field
         0     4  magic     b"MLEP"
         4     4  version   1
         8     4  count
        12     …  per entry: u32 epoch, u64 start (log offset), u8 length and UTF-8 of node id, the same of start id
         …     4  CRC-32C of all bytes before it
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from mirrorlog.commitlog.files import Files, read_file, replace_file
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import BadRequest, LogCorrupt

FILE_NAME: Final = "epochs"
ENTRIES_MAX: Final = 50_000
"""One for each start of a master; none is forgotten (why: decision 0007)."""
LIST_BYTES_MAX: Final = 16 * 1024 * 1024
"""More than a list takes in any form: an entry has some 50 bytes, and less than 200 with the longest names."""
NO_EPOCH: Final = 0

_MAGIC: Final = b"MLEP"
_VERSION: Final = 1
EPOCH_MAX: Final = 2**32 - 1
_OFFSET_MAX: Final = 2**63 - 1
_HEAD = struct.Struct("<4sII")
_ENTRY = struct.Struct("<IQ")
_CRC = struct.Struct("<I")
_TEXT_MAX: Final = 255


class EpochLike(Protocol):
    """Anything with an epoch and the log offset at which it starts, such as an entry of a message."""

    @property
    def epoch(self) -> int: ...

    @property
    def start(self) -> int: ...

    @property
    def node_id(self) -> str: ...

    @property
    def start_id(self) -> str: ...


class Epoch(NamedTuple):
    """One mastership: its number, the log offset of its first byte, and which node wrote it, in which of its starts."""

    epoch: int
    start: int
    node_id: str = ""
    start_id: str = ""


@dataclass(frozen=True, slots=True)
class EpochList:
    """Numbers rise, starts do not fall. Immutable; `of` checks."""

    entries: tuple[Epoch, ...] = ()
    _starts: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, entries: Iterable[EpochLike]) -> Self:
        """Raises BadRequest for entries that are no history."""
        checked: list[Epoch] = []
        last = Epoch(NO_EPOCH, 0)
        for each in entries:
            entry = Epoch(each.epoch, each.start, each.node_id, each.start_id)
            if not (last.epoch < entry.epoch <= EPOCH_MAX and last.start <= entry.start <= _OFFSET_MAX):
                raise BadRequest(f"epoch {entry.epoch} from {entry.start} cannot follow {last.epoch} from {last.start}")
            if len(entry.node_id.encode()) > _TEXT_MAX or len(entry.start_id.encode()) > _TEXT_MAX:
                raise BadRequest(f"epoch {entry.epoch}: node id and start id have at most {_TEXT_MAX} bytes")
            checked.append(entry)
            last = entry
        if len(checked) > ENTRIES_MAX:
            raise BadRequest(
                f"{len(checked)} epochs are above the limit of {ENTRIES_MAX}: each start of a master adds one; "
                "publish the records into a new log"
            )
        return cls(tuple(checked), tuple(entry.start for entry in checked))

    @property
    def current(self) -> int:
        """The last epoch; 0 when there is none."""
        return self.entries[-1].epoch if self.entries else NO_EPOCH

    def at(self, log_offset: int) -> int:
        """The epoch that writes at `log_offset`; 0 when there is none."""
        entry = self._entry_at(log_offset)
        return entry.epoch if entry is not None else NO_EPOCH

    def data_epoch(self, end: int) -> int:
        """The epoch of the last byte of a copy that ends at `end`; 0 for an empty copy."""
        return self.at(end - 1) if end > 0 else NO_EPOCH

    def opened(self, epoch: int, end: int, *, node_id: str = "", start_id: str = "") -> EpochList:
        """With `epoch` from `end` on, written by this start of this node.

        Entries beyond `end` speak of bytes that will never be here: they go. Raises BadRequest when the epoch is not
        above all that the list has.
        """
        if epoch <= self.current:
            raise BadRequest(f"epoch {epoch} is not above {self.current}, the last one of this log")
        return EpochList.of([*self.held(end), Epoch(epoch, end, node_id, start_id)])

    def held(self, end: int) -> tuple[Epoch, ...]:
        """The entries that start at or below `end`."""
        return self.entries[: bisect_right(self._starts, end)]

    def agrees_below(self, end: int, other: EpochList) -> bool:
        """Whether both give every byte below `end` the same epoch, by the same writer."""
        starts = {start for start in (*self._starts, *other._starts) if start < end}
        return all(self._entry_at(start) == other._entry_at(start) for start in starts)

    def covering(self, first: int, end: int) -> list[Epoch]:
        """The epochs that give the bytes [first, end) their number."""
        return [*self.held(first)[-1:], *(entry for entry in self.entries if first < entry.start < end)]

    def last_common(self, other: EpochList) -> Epoch | None:
        """The last epoch that both lists have: the same number and start, by the same writer."""
        theirs = set(other.entries)
        return next((entry for entry in reversed(self.entries) if entry in theirs), None)

    def end_of(self, entry: Epoch, end: int) -> int:
        """Where `entry` ends in a copy that ends at `end`: at the next epoch's start or the copy's end."""
        following = self.entries.index(entry) + 1
        return min(self.entries[following].start, end) if following < len(self.entries) else end

    def _entry_at(self, log_offset: int) -> Epoch | None:
        """The last entry that starts at or below."""
        index = bisect_right(self._starts, log_offset) - 1
        return self.entries[index] if index >= 0 else None


def common_point(own: EpochList, own_end: int, other: EpochList, other_end: int) -> int | None:
    """Up to which log offset two copies are one history, or None when no epoch says so.

    The last epoch that both have was written by one start of one master, so both hold the same bytes up to the smaller
    of its two ends. An empty copy has everything it holds, nothing, in common with any other.
    """
    if own_end == 0 or other_end == 0:
        return 0
    entry = own.last_common(other)
    if entry is None:
        return None
    return min(own.end_of(entry, own_end), other.end_of(entry, other_end))


def encode_epochs(epochs: EpochList) -> bytes:
    """The bytes of the file."""
    content = bytearray(_HEAD.pack(_MAGIC, _VERSION, len(epochs.entries)))
    for entry in epochs.entries:
        content += _ENTRY.pack(entry.epoch, entry.start)
        for text in (entry.node_id.encode(), entry.start_id.encode()):
            content += bytes((len(text),)) + text
    return bytes(content + _CRC.pack(crc32c(content)))


def decode_epochs(content: bytes) -> EpochList:
    """Raises ValueError naming what is wrong."""
    if len(content) < _HEAD.size + _CRC.size:
        raise ValueError(f"{len(content)} bytes are too few")
    magic, version, count = _HEAD.unpack_from(content)
    if (magic, version) != (_MAGIC, _VERSION):
        raise ValueError(f"magic {magic!r} version {version}, expected {_MAGIC!r} version {_VERSION}")
    if _CRC.unpack_from(content, len(content) - _CRC.size)[0] != crc32c(content[: -_CRC.size]):
        raise ValueError("the checksum does not match")
    try:
        return EpochList.of(_read_entries(content[_HEAD.size : -_CRC.size], count))
    except BadRequest as error:
        raise ValueError(error.message) from None


def _read_entries(content: bytes, count: int) -> Iterator[Epoch]:
    """Raises ValueError when the bytes are not exactly `count` entries."""
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(content):
            raise ValueError(f"{len(content)} bytes do not hold {count} entries")
        epoch, start = _ENTRY.unpack_from(content, at)
        node_id, at = _read_text(content, at + _ENTRY.size)
        start_id, at = _read_text(content, at)
        yield Epoch(epoch, start, node_id, start_id)
    if at != len(content):
        raise ValueError(f"{len(content)} bytes hold more than {count} entries")


def _read_text(content: bytes, at: int) -> tuple[str, int]:
    """The text at `at`, and where the next field begins."""
    if at >= len(content) or at + 1 + content[at] > len(content):
        raise ValueError(f"an entry reaches beyond {len(content)} bytes")
    end = at + 1 + content[at]
    return content[at + 1 : end].decode(), end


def load_epochs(files: Files, directory: Path) -> EpochList:
    """The stored list. Raises LogCorrupt, and OSError (FileNotFoundError when there is none)."""
    path = directory / FILE_NAME
    content = read_file(files, path, max_bytes=_HEAD.size + ENTRIES_MAX * (_ENTRY.size + 2 + 2 * _TEXT_MAX) + _CRC.size)
    try:
        return decode_epochs(content)
    except ValueError as error:
        raise LogCorrupt(f"{path} cannot be read: {error}; restore the log's directory from a copy") from None


def store_epochs(files: Files, directory: Path, epochs: EpochList) -> None:
    """Replace the stored list; on disk when this returns. Raises OSError, then the old one is still there."""
    replace_file(files, directory / FILE_NAME, encode_epochs(epochs))
