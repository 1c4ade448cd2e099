"""CRC-32C (Castagnoli) over any buffer, in hardware where the machine has it.

`crc32c` takes memoryviews without a copy and runs at memory speed. `crcmod` is the portable fallback, a hundred
times slower, and the independent oracle of the tests. google-crc32c was rejected: it wants `bytes`, so it copies.
"""

from __future__ import annotations

from typing import Protocol

import crcmod.predefined


class Crc32c(Protocol):
    """`crc32c(data, value)`: the CRC of `data` continued from `value` (0 to begin)."""

    def __call__(self, data: bytes | bytearray | memoryview, value: int = 0, /) -> int: ...


def _portable() -> Crc32c:
    calculate = crcmod.predefined.mkCrcFun("crc-32c")

    def crc32c_portable(data: bytes | bytearray | memoryview, value: int = 0, /) -> int:
        # crcmod's C code takes only bytes-like objects of one dimension; a bytes copy is the price of the fallback.
        return int(calculate(bytes(data), value))

    return crc32c_portable


crc32c_portable: Crc32c = _portable()

try:
    from crc32c import crc32c as _hardware
except ImportError:  # no wheel for this platform
    crc32c: Crc32c = crc32c_portable
else:
    crc32c = _hardware
