"""Which pages of a file are in memory, and how to have none there: what a measurement of reads must know and decide."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import OS_FILES

RWF_DONTCACHE: Final = 0x80  # linux/fs.h

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def cached_pages(path: Path) -> list[bool]:
    """For each page of a file, the first one first, whether it is in memory; looking brings none in. Raises OSError."""
    pages = OS_FILES.open(path).map()
    found = (ctypes.c_ubyte * -(-len(pages) // mmap.PAGESIZE))()
    if _libc.mincore(ctypes.addressof(ctypes.c_char.from_buffer(pages)), len(pages), found) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(path))
    return [bool(page & 1) for page in bytes(found)]


def drop_pages(path: Path) -> None:
    """Bring a file to disk and out of memory; pages that somebody has mapped stay. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def reads_uncached(path: Path) -> bool:
    """Whether a read of this file can leave nothing behind: Linux 6.14 or newer, and a file system that knows how.
    Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(1)], 0, RWF_DONTCACHE)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return False
    finally:
        os.close(fd)
    return True
