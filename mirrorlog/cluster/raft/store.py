"""A member's Raft state on disk: a journal of bundles behind a snapshot.

    snapshot-N   the frame of a Base: this member's id, the state machine after entry i, the term of that
    journal-N    frames, one for each bundle that was saved since: hard state and entries

    frame        a header of 16 bytes, then the payload in msgpack
      0  3  "mlr"
      3  1  version of the format
      4  4  u32 length of the payload
      8  4  u32 CRC-32C of the payload
     12  4  u32 CRC-32C of (u64 N, u64 place in the file, the 12 bytes before): the header alone tells whether one
            stands there. It is the same in all versions, so that an older one can say that it is too old

N counts the snapshots. A new one is made beside the old: its journal, with what is still needed, and the snapshot under
another name; the rename decides. What is older is removed then, or at the next start.

A bundle is one write and one sync, and nothing is said of it before. So only the last frame can be torn, by a crash
before its sync: it is cut, and was never spoken of. Bad bytes with the header of a frame behind them are damage, for
that one was begun after they were on disk: the member refuses to start, because a vote or an entry that it answered for
may be gone (a blank disk is a new member). Damage to the last frame alone cannot be told from a torn one. The place in
the checksum keeps what a torn frame leaves behind a shorter one from being taken for the next.

What a start reads may be in memory only: the process before was killed between its write and its sync, or its sync
failed and the kernel calls the pages clean. So the last frame is written again, and it and the names are synced, before
anything is said of it.

Rejected: one file that is written anew for each bundle (a configuration of 10,000 queues is megabytes), LMDB (its
commit is two syncs, and it hides which write is torn).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar

import msgspec

from mirrorlog.cluster.raft.messages import Effects, HardState, RaftEntry, Snapshot, Stored
from mirrorlog.commitlog.files import Directory, File, Files, begun, disk_error, disk_named
from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.errors import DiskFailed, LogCorrupt, UnsupportedVersion

_VERSION: Final = 1
_MAGIC: Final = b"mlr"
_HEADER: Final = struct.Struct("<3sBIII")
_SEED: Final = struct.Struct("<QQ")
assert _HEADER.size == 16

_SNAPSHOT: Final = "snapshot-"
_JOURNAL: Final = "journal-"
_NEW: Final = ".new"
_OURS: Final = re.compile(r"(snapshot-|journal-)([1-9][0-9]{0,17})(\.new)?", re.ASCII)

FILE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""What is larger is no file of ours."""


class Base(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot's file says. `own`: the member whose disk this is."""

    own: int
    snapshot: Snapshot


class Bundle(msgspec.Struct, frozen=True, array_like=True):
    """What one frame of the journal says: the newest hard state, and entries, each of which replaces the one of its
    index and all behind it."""

    hard_state: HardState | None
    entries: tuple[RaftEntry, ...] = ()


_T = TypeVar("_T")

_encode = msgspec.msgpack.Encoder().encode
_decode_base = msgspec.msgpack.Decoder(Base).decode
_decode_bundle = msgspec.msgpack.Decoder(Bundle).decode


class RaftStore:
    """One directory, used by one thread at a time. Everything blocks."""

    def __init__(
        self, files: Files, directory: Path, *, own: int, hard_state: HardState, number: int, journal: File, end: int
    ) -> None:
        """`create` and `open` make one. `number`: of the snapshot; `end`: of the journal's last frame."""
        self.own = own
        self._hard_state = hard_state
        self._files = files
        self._directory = directory
        self._number = number
        self._journal = journal
        self._end = end
        self.doubtful = False
        """A write or a sync has failed: nobody knows what the disk holds, and trying again could pass over a hole."""

    @property
    def journal_bytes(self) -> int:
        """How long the journal is: it says when a snapshot is due."""
        return self._end

    @classmethod
    def create(cls, files: Files, directory: Path, *, own: int, snapshot: Snapshot) -> Self:
        """A new member's disk. Raises DiskFull, DiskFailed: then there is none, and it can be tried again."""
        with disk_named("make", directory):
            files.make_directory(directory)
            files.fsync_directory(directory.parent)
            with closing(files.open_directory(directory)) as names:
                journal, end = _prepare(files, directory, 1, Base(own, snapshot), Bundle(HardState()))
                _decide(files, directory, names, 1)
        return cls(files, directory, own=own, hard_state=HardState(), number=1, journal=journal, end=end)

    @classmethod
    def open(cls, files: Files, directory: Path) -> tuple[Self, Stored] | None:
        """What is there, on disk when this returns; None when no member was ever made here.

        Raises LogCorrupt, UnsupportedVersion for what a newer version wrote, DiskFull, DiskFailed.
        """
        with disk_named("read", directory):
            number = _newest(files, directory)
            if number is None:
                return None
            base = _base(files, directory, number)
            journal = _existing(files, directory / f"{_JOURNAL}{number}")
            try:
                stored, end = _replayed(base.snapshot, journal, number, directory)
                files.fsync_directory(directory)
            except BaseException:
                journal.close()
                raise
            state = stored.hard_state
            found = cls(files, directory, own=base.own, hard_state=state, number=number, journal=journal, end=end)
            found._remove_others()
        return found, stored

    def save(self, effects: Effects) -> None:
        """The first three fields of a bundle, on disk when this returns. Raises DiskFull, DiskFailed: then the member
        must not go on; unless the store is `doubtful`, the same can be saved later."""
        self._check()
        self._hard_state = effects.hard_state or self._hard_state
        if effects.snapshot is not None:
            self.replace(effects.snapshot, effects.entries)
        elif effects.must_sync:
            with self._in_doubt("write to"):
                frame = _frame(self._number, self._end, _encode(Bundle(effects.hard_state, effects.entries)))
                self._journal.pwrite(frame, self._end)
                self._journal.fdatasync()
            self._end += len(frame)

    def replace(self, snapshot: Snapshot, entries: tuple[RaftEntry, ...]) -> None:
        """A snapshot takes the place of the one before and of the journal; `entries` follow it.

        Raises DiskFull when there is no space beside the old ones: they still hold, and what was asked for can be asked
        for again. Raises DiskFailed as `save`.
        """
        self._check()
        with disk_named("write a snapshot to", self._directory):
            names = self._files.open_directory(self._directory)
        with closing(names):
            self._replace(names, snapshot, entries)

    def _replace(self, names: Directory, snapshot: Snapshot, entries: tuple[RaftEntry, ...]) -> None:
        number = self._number + 1
        base, bundle = Base(self.own, snapshot), Bundle(self._hard_state, entries)
        try:
            journal, end = _prepare(self._files, self._directory, number, base, bundle)
        except OSError as error:
            self._remove_others()
            raise disk_error(error, "write a snapshot to", self._directory) from None
        # From here on it is not known which of the two holds, until the rename is known to be on disk.
        with self._in_doubt("write a snapshot to"):
            _decide(self._files, self._directory, names, number)
        self._journal.close()
        self._journal, self._end, self._number = journal, end, number
        self._remove_others()

    def close(self) -> None:
        """Idempotent."""
        self._journal.close()

    def _check(self) -> None:
        if self.doubtful:
            raise DiskFailed(
                f"an earlier write to {self._directory} failed, and nobody knows what the disk holds; check the disk "
                "and start the node again",
                path=str(self._directory),
            )

    @contextmanager
    def _in_doubt(self, what: str) -> Iterator[None]:
        self.doubtful = True
        with disk_named(what, self._directory), begun():
            yield
        self.doubtful = False

    def _remove_others(self) -> None:
        """What is no part of the present pair. One that stays is tried again at the next start; it is in nobody's
        way."""
        keep = {f"{_SNAPSHOT}{self._number}", f"{_JOURNAL}{self._number}"}
        with suppress(OSError):
            for name in self._files.listdir(self._directory):
                if name not in keep and _OURS.fullmatch(name):
                    with suppress(OSError):
                        self._files.unlink(self._directory / name)


# --- Making ---------------------------------------------------------------------------------------------------------


def _prepare(files: Files, directory: Path, number: int, base: Base, bundle: Bundle) -> tuple[File, int]:
    """Both files of a snapshot, on disk, but for its name. The journal, and its end."""
    journal = files.open(directory / f"{_JOURNAL}{number}", create=True)
    try:
        frame = _frame(number, 0, _encode(bundle))
        journal.pwrite(frame, 0)
        journal.fdatasync()
        with closing(files.open(directory / f"{_SNAPSHOT}{number}{_NEW}", create=True)) as file:
            file.pwrite(_frame(number, 0, _encode(base)), 0)
            file.fdatasync()
        # The journal's name before the snapshot's: one without a journal is damage.
        files.fsync_directory(directory)
    except BaseException:
        journal.close()
        raise
    return journal, len(frame)


def _decide(files: Files, directory: Path, names: Directory, number: int) -> None:
    """From now on this one holds."""
    files.rename(directory / f"{_SNAPSHOT}{number}{_NEW}", directory / f"{_SNAPSHOT}{number}")
    names.sync()


# --- Frames ---------------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    version: int
    length: int
    checksum: int


def _frame(number: int, place: int, payload: bytes) -> bytes:
    header = _HEADER.pack(_MAGIC, _VERSION, len(payload), crc32c(payload), 0)[:-4]
    return header + _header_checksum(header, number, place).to_bytes(4, "little") + payload


def _header_checksum(header: bytes | memoryview, number: int, place: int) -> int:
    return crc32c(header, crc32c(_SEED.pack(number, place)))


def _header(content: memoryview, number: int, place: int) -> _Header | None:
    """Of the frame that was begun at `place`; None when none was."""
    if len(content) - place < _HEADER.size:
        return None
    magic, version, length, checksum, own = _HEADER.unpack_from(content, place)
    if magic != _MAGIC or own != _header_checksum(content[place : place + _HEADER.size - 4], number, place):
        return None
    return _Header(version, length, checksum)


def _payload(content: memoryview, number: int, place: int, path: Path) -> memoryview | None:
    """Of the frame that stands at `place`; None when none does. Raises UnsupportedVersion."""
    header = _header(content, number, place)
    if header is None:
        return None
    if header.version != _VERSION:
        raise _too_new(path, f"it has format {header.version}, this version knows {_VERSION}")
    start = place + _HEADER.size
    payload = content[start : start + header.length]
    if len(payload) < header.length or crc32c(payload) != header.checksum:
        return None
    return payload


def _goes_on(content: bytearray, number: int, end: int) -> bool:
    """Whether a frame was begun behind `end`. Only headers are looked at, so it takes no longer than reading does."""
    view = memoryview(content)
    place = content.find(_MAGIC, end + 1)
    while place >= 0:
        if _header(view, number, place) is not None:
            return True
        place = content.find(_MAGIC, place + 1)
    return False


# --- Reading --------------------------------------------------------------------------------------------------------


def _newest(files: Files, directory: Path) -> int | None:
    """The number of the snapshot that holds; None when no member was ever made here."""
    snapshots, journals = _numbers(files, directory, _SNAPSHOT), _numbers(files, directory, _JOURNAL)
    newest = max(snapshots, default=0)
    for journal in journals:
        # One that is ahead by one was prepared and not decided; more was never said in it than what it began with.
        if journal > newest and (journal > newest + 1 or _was_used(files, directory, journal)):
            raise _corrupt(directory / f"{_JOURNAL}{journal}", "its snapshot is missing")
    return newest or None


def _numbers(files: Files, directory: Path, prefix: str) -> list[int]:
    if not files.exists(directory):
        return []
    found = [_OURS.fullmatch(name) for name in files.listdir(directory)]
    return [int(each[2]) for each in found if each is not None and each[1] == prefix and each[3] is None]


def _was_used(files: Files, directory: Path, number: int) -> bool:
    path = directory / f"{_JOURNAL}{number}"
    with closing(files.open(path)) as journal:
        content = _content(journal, path)
    return _goes_on(content, number, 0)


def _base(files: Files, directory: Path, number: int) -> Base:
    path = directory / f"{_SNAPSHOT}{number}"
    with closing(files.open(path)) as file:
        payload = _payload(memoryview(_content(file, path)), number, 0, path)
    if payload is None:
        raise _corrupt(path, "its snapshot is damaged")
    return _decoded(_decode_base, payload, path)


def _existing(files: Files, path: Path) -> File:
    try:
        return files.open(path)
    except FileNotFoundError:
        raise _corrupt(path, "it is missing") from None


def _replayed(snapshot: Snapshot, journal: File, number: int, directory: Path) -> tuple[Stored, int]:
    """What the journal adds to its snapshot, and where it ends; all of it on disk."""
    path = directory / f"{_JOURNAL}{number}"
    content = _content(journal, path)
    view = memoryview(content)
    hard_state, last, end = HardState(), 0, 0
    entries: list[RaftEntry] = []
    while (payload := _payload(view, number, end, path)) is not None:
        bundle = _decoded(_decode_bundle, payload, path)
        hard_state = bundle.hard_state or hard_state
        for entry in bundle.entries:
            at = entry.index - snapshot.index - 1
            if not 0 <= at <= len(entries):
                raise _corrupt(path, f"entry {entry.index} does not follow")
            entries[at:] = [entry]
        last, end = end, end + _HEADER.size + len(payload)
    if end == 0 or _goes_on(content, number, end):
        raise _corrupt(path, f"bytes at {end} are damaged")
    if last > 0:  # the first one was on disk before its snapshot had a name
        journal.pwrite(view[last:end], last)
        journal.fdatasync()
    return Stored(hard_state, snapshot, tuple(entries)), end


def _content(file: File, path: Path) -> bytearray:
    if (size := file.size()) > FILE_BYTES_MAX:
        raise _corrupt(path, f"it has {size} bytes")
    content = bytearray(size)
    del content[file.pread(memoryview(content), 0) :]
    return content


def _decoded(decode: Callable[[memoryview], _T], payload: memoryview, path: Path) -> _T:
    try:
        return decode(payload)
    except msgspec.MsgspecError as error:
        # Its checksum is right, so this is what was written.
        raise _too_new(path, str(error)) from None


def _corrupt(path: Path, reason: str) -> LogCorrupt:
    return LogCorrupt(
        f"the cluster's metadata in {path} cannot be used: {reason}. Set the directory aside and let the node join "
        "again as a new member",
        path=str(path),
    )


def _too_new(path: Path, reason: str) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"the cluster's metadata in {path} says what this version of mirrorlog cannot read: {reason}. Start the "
        "version that wrote it, or a newer one",
        path=str(path),
    )
