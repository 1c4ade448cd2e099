"""Limits on the connections to a port: places for strangers, and places for those that were let in. Pure.

A connection is a stranger from `accept` on: in its TLS handshake, in its greeting, in its login. There are so many
places for strangers, and so many of them for one address. When those of its address are taken, the oldest stranger of
that address goes; when all are, the oldest of the address that has most. So a stranger is never refused and always has
some time, who floods drives out himself, and nobody who was let in goes for a stranger.

Rejected: to refuse the newest (sixty silent sockets kept a mirror out); to let `accept` wait while places are taken
(then all wait in one line behind the flood, members too).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_T = TypeVar("_T", bound=Hashable)

_V6_BITS: Final = 64
"""An address of IPv6 is one of 2^64 that whoever has it may take as he likes."""


class PortPlaces(Generic[_T]):
    """Of one port. A key stands for a connection: it comes once, may be let in, and leaves."""

    def __init__(self, *, strangers_max: int, per_address_max: int, let_in_max: int) -> None:
        self.strangers_max = strangers_max
        self.per_address_max = per_address_max
        self.let_in_max = let_in_max
        self._addresses: dict[_T, str] = {}
        self._lines: dict[str, dict[_T, None]] = {}
        self._let_in: set[_T] = set()
        # Addresses by how many strangers each has, the one that has had so many for longest first: a flood from many
        # addresses must not make each accept look at all of them.
        self._by_count: list[dict[str, None]] = [{}]

    @property
    def strangers(self) -> int:
        return len(self._addresses)

    @property
    def let_in(self) -> int:
        return len(self._let_in)

    def come(self, key: _T, address: str) -> _T | None:
        """A connection was accepted; gives the stranger that must go for it, which has left by this."""
        source = source_of(address)
        goes = None
        if len(self._lines.get(source, ())) >= self.per_address_max:
            goes = next(iter(self._lines[source]))
        elif len(self._addresses) >= self.strangers_max:
            goes = self.oldest()
        if goes is not None:
            self.leave(goes)
        self._addresses[key] = source
        line = self._lines.setdefault(source, {})
        line[key] = None
        self._recount(source, len(line) - 1, len(line))
        return goes

    def oldest(self) -> _T | None:
        """The oldest stranger of an address that has most."""
        if not self._addresses:
            return None
        source = next(iter(self._by_count[-1]))
        return next(iter(self._lines[source]))

    def went_on(self, key: _T) -> None:
        """A stranger has done a step towards being let in: it is as good as new. Nothing for others."""
        if (source := self._addresses.get(key)) is not None:
            line = self._lines[source]
            del line[key]
            line[key] = None

    def take(self, key: _T) -> bool:
        """Let a stranger in, if there is a place; True for one that was let in before."""
        if key in self._let_in:
            return True
        if key not in self._addresses or len(self._let_in) >= self.let_in_max:
            return False
        self.leave(key)
        self._let_in.add(key)
        return True

    def leave(self, key: _T) -> None:
        """Its descriptor is closed. Idempotent."""
        self._let_in.discard(key)
        if (source := self._addresses.pop(key, None)) is None:
            return
        line = self._lines[source]
        del line[key]
        self._recount(source, len(line) + 1, len(line))
        if not line:
            del self._lines[source]

    def _recount(self, source: str, before: int, now: int) -> None:
        by_count = self._by_count
        by_count[before].pop(source, None)
        if now == len(by_count):
            by_count.append({})
        if now:
            by_count[now][source] = None
        while len(by_count) > 1 and not by_count[-1]:
            by_count.pop()


def source_of(address: str) -> str:
    """What counts as one address: all of IPv4, the network of IPv6; what is none is itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, _V6_BITS), strict=False))
