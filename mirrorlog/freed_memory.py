"""What a process does with large blocks of memory that it has freed: it keeps some, for the next ones are the same.

By default glibc gives the end of its heap back to the kernel when a large block there is freed, and each page of the
next block is a page fault. Whether that happens depends on what else stands at the heap's end, so the same work, a body
of 256 KiB that is opened, takes 7 or 160 µs. Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
from typing import Final

# <malloc.h>
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
BLOCK_BYTES_MAX: Final = 32 * 1024 * 1024
"""The largest blocks that glibc takes from its heaps."""


def keep_freed_memory(kept_bytes: int, *, block_bytes: int = BLOCK_BYTES_MAX) -> bool:
    """Keep up to `kept_bytes` at the end of each heap; blocks up to `block_bytes` come from there, larger ones from the
    kernel. False where the C library is another one and nothing was done."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    done: bool = mallopt(_M_TRIM_THRESHOLD, kept_bytes) == 1 and mallopt(_M_MMAP_THRESHOLD, block_bytes) == 1
    return done
