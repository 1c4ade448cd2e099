"""The disk, as the log uses it: a `File` is one open file, `Files` is a file system.

Everything in this package reaches the disk through these two, so that a simulated disk can stand in and a test can
make the third `fdatasync` fail. `OsFiles` is the real one: thin, it decides nothing, OSError passes through it and
becomes a named error at the border above (`disk_error`).

What is relied on (Linux, a local file system):

- `allocate` reserves the blocks, so a later store through the map cannot meet a full disk (that would be SIGBUS).
- A map and pread/pwrite of the same file see the same bytes (one page cache).
- `fdatasync` returns after the data, and the size needed to read it, are on the device; a made, renamed or removed
  name is on the device after `fsync_directory`. After a failed sync nothing is known about the pages it covered.
- `rename` replaces atomically: after a crash the old or the new file is there, never a mix.
- A call that ends with EMFILE, ENFILE, EACCES, EPERM, EFBIG or ENOMEM has done nothing, and can be made again.
  A sync is the exception (`begun`). What several calls do together takes its descriptors before the first of them.
- A link that somebody has put at a file's name is not followed: what it leads to is not ours to cut or to write.

Rejected: `mmap.flush` and `mmap.madvise` for syncing and populating. Both hold the interpreter lock for as long as the
disk takes; `os.fdatasync` and a call through ctypes do not.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol, Self

from mirrorlog.errors import DirectoryGone, DiskFailed, DiskFull, FileRefused

_MADV_POPULATE_WRITE: Final = 23  # linux/mman.h, since Linux 5.14; Python has no name for it
_RWF_DONTCACHE: Final = 0x80  # linux/fs.h, since Linux 6.14
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED: Final = {
    errno.EMFILE: "raise the node's limit of open files (LimitNOFILE)",
    errno.ENFILE: "raise the machine's limit of open files (fs.file-max)",
    errno.EACCES: "give the node's user the right to it",
    errno.EPERM: "give the node's user the right to it",
    errno.EFBIG: "raise the node's limit of a file's size (LimitFSIZE), or that of its file system",
    errno.ENOMEM: "give the machine more memory, or end what else takes it",
}

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
"""What is in a log is read by its users' rights, not by the machine's."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class File(Protocol):
    """One open file. Offsets and sizes are bytes. Every method but `close` and `stands_at` raises OSError."""

    def allocate(self, size: int) -> None:
        """Reserve `size` bytes from the start; what was not there reads as zero."""

    def map(self) -> memoryview:
        """The whole file as writable memory. The view keeps the mapping alive, the file may be closed before it."""

    def pread(self, into: memoryview, at: int) -> int:
        """Read at `at` until `into` is full or the file ends; the number of bytes read."""

    def pread_past(self, into: memoryview, at: int) -> int:
        """As `pread`, of what hardly anybody reads again: it leaves nothing in memory that was not there before."""

    def data_end(self) -> int:
        """Everything from here on was allocated and never written: it reads as zero, without being read."""

    def pwrite(self, data: bytes | memoryview, at: int) -> None:
        """Write all of `data` at `at`."""

    def pwritev(self, parts: Sequence[bytes | bytearray | memoryview], at: int) -> None:
        """Write the parts, one after the other, at `at`, as one write."""

    def fdatasync(self) -> None: ...

    def size(self) -> int: ...

    def stands_at(self, path: Path) -> bool:
        """Whether `path` leads to this file, and not to another one, or nowhere; True where that cannot be told."""

    def close(self) -> None:
        """Idempotent. A file that nobody holds any more is closed too."""


class Directory(Protocol):
    """An open directory: its names can be synced when nothing can be opened any more."""

    def sync(self) -> None:
        """Raises OSError."""

    def close(self) -> None:
        """Idempotent. One that nobody holds any more is closed too."""


class Files(Protocol):
    """A file system. Every method but `exists` raises OSError."""

    def open(self, path: Path, *, create: bool = False) -> File:
        """For reading and writing. `create`: empty, replacing what had the name."""

    def lock(self, path: Path, note: bytes) -> File:
        """Hold `path` against every other process for as long as the file is open, and write `note` into it.

        Raises BlockingIOError when another process holds it.
        """

    def exists(self, path: Path) -> bool: ...

    def make_directory(self, path: Path) -> None:
        """With its parents; nothing happens when it exists."""

    def listdir(self, path: Path) -> list[str]: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def shorten(self, path: Path, size: int) -> bool:
        """Cut the file at `size`, which nothing maps beyond; False for one that has another name too, which stays."""

    def open_directory(self, path: Path) -> Directory: ...

    def fsync_directory(self, path: Path) -> None:
        """Open it and sync its names."""

    def populate(self, pages: memoryview) -> bool:
        """Make the pages of a mapped range present and writable, contents unchanged; False where the kernel cannot.

        The range begins at a page border.
        """


class OsFile:
    """A file descriptor that is closed with its last user: a flush may still sync a file that the log has let go."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def map(self) -> memoryview:
        return memoryview(mmap.mmap(self._fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE))

    def pread(self, into: memoryview, at: int) -> int:
        return self._pread(into, at)

    def _pread(self, into: memoryview, at: int, flags: int = 0) -> int:
        done = 0
        while done < len(into):
            got = os.preadv(self._fd, [into[done:]], at + done, flags)
            if got == 0:
                break
            done += got
        return done

    def pread_past(self, into: memoryview, at: int) -> int:
        # Else the pages that a read brings ahead of itself are taken by the next one for pages that were there before.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        for read in (self._pread_uncached, self._pread_and_drop):
            try:
                return read(into, at)
            except NotImplementedError:  # a Python that was built for a C library without preadv2
                break
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:  # this kernel, or this file system, does not know how
                    raise
        return self.pread(into, at)

    def _pread_uncached(self, into: memoryview, at: int) -> int:
        return self._pread(into, at, _RWF_DONTCACHE)

    def _pread_and_drop(self, into: memoryview, at: int) -> int:
        """Nearly the same for older kernels: pages that are not all there before are dropped, those beside them too."""
        try:
            cached = os.preadv(self._fd, [into], at, os.RWF_NOWAIT)
        except BlockingIOError:
            cached = 0
        if cached == len(into):
            return cached
        if got := self.pread(into, at):
            start, end = at & -mmap.PAGESIZE, -(-(at + got) // mmap.PAGESIZE) * mmap.PAGESIZE
            os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)
        return got

    def data_end(self) -> int:
        end = 0
        try:
            while True:
                end = os.lseek(self._fd, os.lseek(self._fd, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            # ENXIO: no data behind `end`. EINVAL: a file system that does not know.
            if error.errno not in (errno.ENXIO, errno.EINVAL):
                raise
            return end if error.errno == errno.ENXIO else self.size()

    def pwrite(self, data: bytes | memoryview, at: int) -> None:
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += os.pwrite(self._fd, view[done:], at + done)

    def pwritev(self, parts: Sequence[bytes | bytearray | memoryview], at: int) -> None:
        done = os.pwritev(self._fd, parts, at)
        if done < sum(map(len, parts)):
            self.pwrite(b"".join(parts)[done:], at + done)

    def fdatasync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def stands_at(self, path: Path) -> bool:
        try:
            there = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return os.path.samestat(os.fstat(self._fd), there)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OsDirectory:
    """A directory's descriptor, closed with its last user."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class OsFiles:
    """The operating system's files."""

    def open(self, path: Path, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT | os.O_TRUNC if create else 0)
        return OsFile(os.open(path, flags, FILE_MODE))

    def lock(self, path: Path, note: bytes) -> OsFile:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(fd, 0)
            os.pwrite(fd, note, 0)
        except OSError:
            os.close(fd)
            raise
        return OsFile(fd)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_directory(self, path: Path) -> None:
        path.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)

    def listdir(self, path: Path) -> list[str]:
        return sorted(os.listdir(path))  # noqa: PTH208 - names are wanted, not paths

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def shorten(self, path: Path, size: int) -> bool:
        if path.stat().st_nlink > 1:
            return False
        os.truncate(path, size)
        return True

    def open_directory(self, path: Path) -> OsDirectory:
        return OsDirectory(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def fsync_directory(self, path: Path) -> None:
        with closing(self.open_directory(path)) as names:
            names.sync()

    def populate(self, pages: memoryview) -> bool:
        address = ctypes.addressof(ctypes.c_char.from_buffer(pages))
        while _libc.madvise(address, len(pages), _MADV_POPULATE_WRITE) != 0:
            code = ctypes.get_errno()
            if code == errno.EINVAL:
                return False
            if code not in (errno.EINTR, errno.EAGAIN):
                raise OSError(code, os.strerror(code))
        return True


OS_FILES: Final = OsFiles()


def disk_error(error: OSError, what: str, path: Path) -> DiskFull | DiskFailed:
    """The named error for a failed call on `path`. `what` completes "cannot …". What the system refuses before it comes
    to the medium is FileRefused, and says nothing of the disk."""
    if error.errno in _REFUSED:
        return FileRefused(f"cannot {what} {path}: {error.strerror}; {_REFUSED[error.errno]}", path=str(path))
    if error.errno in _FULL:
        return DiskFull(f"cannot {what} {path}: {error.strerror}; free space on its disk", path=str(path))
    if error.errno == errno.ELOOP:
        link = error.filename or path
        return DiskFailed(f"cannot {what} {path}: {link} is a symbolic link, remove it", path=str(path))
    return DiskFailed(f"cannot {what} {path}: {error.strerror}; check the disk", path=str(path))


def directory_gone(path: Path) -> DirectoryGone:
    """For whoever works in a directory that is not there any more."""
    return DirectoryGone(
        f"{path} was removed, moved or replaced while it was in use; start the node again: what the other copies have, "
        "it copies from them",
        path=str(path),
    )


def was_refused(error: OSError) -> bool:
    """Whether the system has refused a call, which has done nothing then."""
    return error.errno in _REFUSED


@contextmanager
def begun() -> Iterator[None]:
    """A sync, or what cannot be taken back: one that fails, for want of memory or of rights too, leaves nobody knowing
    what is on disk, and is no refusal."""
    try:
        yield
    except OSError as error:
        if was_refused(error):
            raise OSError(errno.EIO, error.strerror) from None
        raise


@contextmanager
def disk_named(what: str, path: Path) -> Iterator[None]:
    """An OSError in it becomes the error that `disk_error` names."""
    try:
        yield
    except OSError as error:
        raise disk_error(error, what, path) from None


def read_file(files: Files, path: Path, *, max_bytes: int) -> bytes:
    """All of a small file, at most `max_bytes` of it. Raises OSError."""
    with closing(files.open(path)) as file:
        content = bytearray(min(file.size(), max_bytes))
        return bytes(content[: file.pread(memoryview(content), 0)])


def replace_file(files: Files, path: Path, content: bytes) -> None:
    """Make `content` the file at `path`, on disk when this returns; after a crash it is the old or the new one.

    Raises OSError. After one that says that the system refused it (`was_refused`) the old file is there; after a sync
    that failed it is the old or the new one.
    """
    new = path.with_name(path.name + ".new")
    with closing(files.open_directory(path.parent)) as names:
        with closing(files.open(new, create=True)) as file:
            file.pwrite(content, 0)
            file.fdatasync()
        files.rename(new, path)
        with begun():
            names.sync()
