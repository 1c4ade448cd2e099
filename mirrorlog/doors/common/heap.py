"""Freed memory stays with the process: messages of a MiB come and go hundreds of times a second.

By default glibc gives a large block back to the kernel when it is freed, and each page of the next one is a page fault:
70,000 for 256 MiB published, a tenth as many without, which is a tenth of the door's processor time.
"""

from __future__ import annotations

import ctypes
from typing import Final

# <malloc.h>. The second is the largest that glibc takes.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 * 1024 * 1024
_MMAP_BYTES: Final = 32 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Keep up to 64 MiB at the end of each heap. False where the C library is another one and nothing was done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    done: bool = mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES) == 1 and mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES) == 1
    return done
