"""The login of a gRPC call: its metadata `authorization`, as `Basic …` of HTTP. Pure but for the call's own facts."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from urllib.parse import unquote

from mirrorlog.client import Client
from mirrorlog.doors.common.callers import Callers, is_here, read_basic
from mirrorlog.errors import LoginFailed
from mirrorlog.wire.messages.topology import Login


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
        return self._callers.client(self._login(call), address_of(call.peer()))

    def _login(self, call: Calling) -> Login | None:
        given = [value for name, value in call.invocation_metadata() or () if name == "authorization"]
        if not given:
            return None
        if len(given) > 1 or not isinstance(given[0], str):
            raise LoginFailed("authorization is given once, as text")
        return read_basic(given[0], private=self._tls or comes_from_here(call.peer()))


def comes_from_here(peer: str) -> bool:
    """Whether a peer as gRPC names it (`ipv4:127.0.0.1:50000`, `ipv6:%5B::1%5D:50000`, `unix:…`) is on this machine."""
    return peer.startswith("unix:") or is_here(address_of(peer))


def address_of(peer: str) -> str:
    """Without kind and port; empty for one that has none."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]")
