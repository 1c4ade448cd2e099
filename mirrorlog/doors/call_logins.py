"""The login of a gRPC call: its metadata `authorization`, as `Basic …` of HTTP. Pure but for the call's own facts."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import unquote

from mirrorlog.client import Client
from mirrorlog.doors.callers import Callers, read_basic
from mirrorlog.errors import LoginFailed
from mirrorlog.wire.messages import Login


class Calling(Protocol):
    """The part of gRPC's context that says who calls."""

    def peer(self) -> str: ...
    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]] | None: ...


class CallLogins:
    """`tls`: whether the door's port speaks it."""

    def __init__(self, callers: Callers, *, tls: bool = False) -> None:
        self._callers = callers
        self._tls = tls

    def client(self, call: Calling) -> AbstractAsyncContextManager[Client]:
        """With the caller's rights, for this call. Raises LoginFailed; entering it raises as `Callers.client`."""
        return self._callers.client(self._login(call))

    def _login(self, call: Calling) -> Login | None:
        given = [value for name, value in call.invocation_metadata() or () if name == "authorization"]
        if not given:
            return None
        if len(given) > 1 or not isinstance(given[0], str):
            raise LoginFailed("authorization is given once, as text")
        return read_basic(given[0], private=self._tls or is_here(call.peer()))


def is_here(peer: str) -> bool:
    """Whether a peer as gRPC names it (`ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`, `unix:…`) is on this machine."""
    kind, _, place = unquote(peer).partition(":")
    if kind == "unix":
        return True
    try:
        address = ipaddress.ip_address(place.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
