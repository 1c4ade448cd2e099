"""CRC-32C (Castagnoli) over any buffer, in hardware where the machine has it.

`crc32c` takes memoryviews without a copy and runs at memory speed. `crcmod` is the portable fallback, a hundred
times slower, and the independent oracle of the tests. google-crc32c was rejected: it wants `bytes`, so it copies.
"""

from __future__ import annotations

from functools import cache
from importlib.machinery import ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec
from typing import Protocol, cast


class Crc32c(Protocol):
    """`crc32c(data, value)`: the CRC of `data` continued from `value` (0 to begin)."""

    def __call__(self, data: bytes | bytearray | memoryview, value: int = 0, /) -> int: ...


def crc32c_portable(data: bytes | bytearray | memoryview, value: int = 0, /) -> int:
    """The same, on any machine."""
    # crcmod's C code takes only bytes-like objects of one dimension; a bytes copy is the price of the fallback.
    return _crcmod()(bytes(data), value)


@cache
def _crcmod() -> Crc32c:
    import crcmod.predefined

    return cast(Crc32c, crcmod.predefined.mkCrcFun("crc-32c"))


def _hardware() -> Crc32c:
    """The package's extension module alone: its `__init__` also reads its version from the installed packages, and
    imports its command line, which was a sixth of what a program spends on importing a client. Raises ImportError."""
    package = PathFinder.find_spec("crc32c")
    if package is not None:
        spec = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if spec is not None and isinstance(spec.loader, ExtensionFileLoader):
            module = module_from_spec(spec)
            spec.loader.exec_module(module)
            return cast(Crc32c, module.crc32c)
    from crc32c import crc32c as found  # laid out in another way

    return found


try:
    crc32c: Crc32c = _hardware()
except ImportError:  # no wheel for this platform
    crc32c = crc32c_portable
