"""One simulated file's bytes, twice: what processes see, and what the device holds.

`cache` is the page cache, `disk` the device. Memory given out by `map` is `cache` itself, so stores cannot be watched:
a unit (512 bytes or a page) is dirty when the two differ. From that follows everything a disk may do to what was not
synced: each dirty unit is there or not after a power loss, on its own.

Rejected: recording every write and replaying a part of them. A store through a map leaves no record.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

PAGE_BYTES: Final = 4096
CACHE_LINE_BYTES: Final = 64


def differing(old: bytes | bytearray, new: bytes | bytearray, unit: int) -> Iterator[int]:
    """The positions of the units of `new` that are not the same in `old`; what `old` lacks counts as different."""
    if old == new:
        return
    for at in range(0, len(new), unit):
        if old[at : at + unit] != new[at : at + unit]:
            yield at


class Inode:
    """A file without its name. Sizes and positions are bytes.

    `forgotten`: pages that a failed sync left marked as clean although the device does not hold them, with the bytes
    they had then. The next sync passes them over unless they were stored to since; what the kernel evicts goes back to
    what the device holds. `allocated` bytes are reserved, `durable_size` of them for good.
    """

    __slots__ = ("allocated", "cache", "disk", "durable_size", "forgotten")

    def __init__(self, cache: bytearray | None = None, disk: bytearray | None = None) -> None:
        self.cache = bytearray() if cache is None else cache
        self.disk = bytearray() if disk is None else disk
        self.forgotten: dict[int, bytes] = {}
        self.allocated = 0
        self.durable_size = 0

    def copy(self) -> Inode:
        other = Inode(bytearray(self.cache), bytearray(self.disk))
        other.forgotten = dict(self.forgotten)
        other.allocated, other.durable_size = self.allocated, self.durable_size
        return other

    # --- What processes do ----------------------------------------------------------------------------------------

    def allocate(self, size: int) -> None:
        self.grow(size)
        self.allocated = max(self.allocated, size)

    def grow(self, size: int) -> None:
        """Raises BufferError when the file is mapped: the log never lets a mapped file grow."""
        if size > len(self.cache):
            self.cache.extend(bytes(size - len(self.cache)))

    def write(self, data: bytes | memoryview, at: int) -> None:
        if not len(data):
            return
        self.grow(at + len(data))
        self.cache[at : at + len(data)] = data
        for page in range(at // PAGE_BYTES, (at + len(data) - 1) // PAGE_BYTES + 1):
            self.forgotten.pop(page, None)

    def data_end(self) -> int:
        """Rounded up to a page, as a file system counts."""
        used = len(bytes(self.cache).rstrip(b"\0"))
        return min(used + -used % PAGE_BYTES, len(self.cache))

    # --- What the kernel does -------------------------------------------------------------------------------------

    def dirty(self, unit: int) -> list[int]:
        """The positions of the units that the kernel knows to be newer than the device."""
        return [at for at in differing(self.disk, self.cache, unit) if not self._is_forgotten(at)]

    def write_back(self, random: Random, chance: float, unit: int) -> None:
        """Each dirty unit reaches the device by `chance`."""
        for at in self.dirty(unit):
            if random.random() < chance:
                self._persist(self.cache, at, unit)

    def sync(self, image: bytes) -> None:
        """`image`, the cache as it was when the sync began, is on the device; forgotten pages are passed over."""
        if not self.forgotten:
            self.disk[:] = image
            return
        for at in differing(self.disk, image, PAGE_BYTES):
            if not self._is_forgotten(at):
                self._persist(image, at, PAGE_BYTES)
        self._resize_disk(len(image))

    def fail_sync(self, random: Random, unit: int, *, forget: bool) -> None:
        """A sync failed: some of it arrived. `forget`: the rest counts as clean from now on."""
        self.write_back(random, random.random(), unit)
        if forget:
            for at in differing(self.disk, self.cache, PAGE_BYTES):
                self.forgotten[at // PAGE_BYTES] = bytes(self.cache[at : at + PAGE_BYTES])

    def evict(self, random: Random) -> None:
        """Forgotten pages leave the cache, or not; whoever reads them next sees what the device holds."""
        for page in list(self.forgotten):
            at = page * PAGE_BYTES
            if self._is_forgotten(at) and random.random() < 0.5:
                held = bytes(self.disk[at : at + PAGE_BYTES])
                end = min(at + PAGE_BYTES, len(self.cache))
                self.cache[at:end] = held.ljust(end - at, b"\0")[: end - at]
                del self.forgotten[page]

    # --- What a crash leaves --------------------------------------------------------------------------------------

    def after_power_loss(self, random: Random, unit: int) -> Inode:
        """Each dirty unit arrived or not. The size may have arrived without the bytes: then they are zero."""
        left = self.copy()
        left.write_back(random, random.choice((0.0, 0.1, 0.5, 0.9, 1.0)), unit)
        size = len(self.cache) if random.random() < 0.5 else self.durable_size
        if len(left.disk) < size:
            left._resize_disk(size)
        found = Inode(bytearray(left.disk), left.disk)
        found.allocated = found.durable_size = self.durable_size
        return found

    def tear(self, before: bytes, random: Random) -> None:
        """A copy into memory was under way: of what changed since `before` each cache line is there or not."""
        for at in list(differing(before, self.cache, CACHE_LINE_BYTES)):
            if random.random() < 0.5:
                self.cache[at : at + CACHE_LINE_BYTES] = before[at : at + CACHE_LINE_BYTES]

    def _is_forgotten(self, at: int) -> bool:
        page = at // PAGE_BYTES
        held = self.forgotten.get(page)
        if held is not None and held != self.cache[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]:
            del self.forgotten[page]
            return False
        return held is not None

    def _persist(self, image: bytes | bytearray, at: int, unit: int) -> None:
        end = min(at + unit, len(image))
        if end > len(self.disk):
            self._resize_disk(end)
        self.disk[at:end] = image[at:end]

    def _resize_disk(self, size: int) -> None:
        del self.disk[size:]
        self.disk.extend(bytes(size - len(self.disk)))
