"""Which sites may drive this door through somebody's browser: its own alone.

A browser says from which site a page is (`Origin`), and that is compared with the name that it has asked for (`Host`).
Whoever has a name of his own can let it lead here a moment later, and then both are his. Where there are users that
helps him to nothing, for a browser keeps a login for the name that it was typed for. Where there are none everybody is
let in, so there only names are taken that nobody else can let lead here: addresses, `localhost`, and those by which
this door is bound or the cluster's nodes know each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request

from mirrorlog.doors.common.callers import Callers
from mirrorlog.doors.management.shapes import ApiError, error_of
from mirrorlog.errors import AccessRefused, LoginFailed, MirrorlogError

USERS_S: Final = 60.0
"""That there are users is taken to be so for as long: whom a node refuses is counted."""


class Sites:
    """Made on the door's loop. `bind`: where the door is."""

    def __init__(self, callers: Callers, bind: str) -> None:
        self._callers = callers
        self._bound = host_of(bind)
        self._had_users_at = -math.inf

    async def check(self, request: Request) -> None:
        """Raises ApiError for a request that another site has sent, or may have."""
        asked, origin = request.headers.get("host"), request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != asked:
            raise ApiError(403, "forbidden", "pages of other origins are not served")
        name = host_of(asked or "")
        if not name or is_nobodys(name) or name == self._bound:
            return
        if name not in (known := await self._names()) and known:
            reason = (
                f"this cluster has no users, so it is served by an address, localhost or a node's own name, and not as "
                f"{name[:80]!r}: make a user (mqtool user-set), or let the node say that name (http.advertise)"
            )
            raise ApiError(403, "forbidden", reason)

    async def _names(self) -> set[str]:
        """Of the cluster's nodes; none where there are users. Raises ApiError when no node tells."""
        now = asyncio.get_running_loop().time()
        if now - self._had_users_at < USERS_S:
            return set()
        try:
            async with self._callers.client(None) as client:
                nodes = (await client.metadata([])).nodes
        except (AccessRefused, LoginFailed):
            self._had_users_at = now
            return set()
        except MirrorlogError as error:
            raise error_of(error) from None
        addresses = (each for node in nodes for each in (node.client, node.replication, node.grpc, node.http))
        return {host_of(each) for each in addresses if each}


def host_of(address: str) -> str:
    """What stands before the port of an address, in small letters. Pure."""
    try:
        return (urlsplit(f"//{address}").hostname or "").rstrip(".")
    except ValueError:
        return address  # which is no name


def is_nobodys(name: str) -> bool:
    """Whether no name server is asked for it. Pure."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return False
