"""The routing of a virtual host: its exchanges and bindings at one version, and when a node has vouched for that.

What a batch says of its version are 16 bits, which come round. So a version is used for FRESH_S only, until a node has
vouched for it anew: within these, and the time that a batch may be under way, no cluster makes half as many changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import Final

from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.errors import (
    AccessRefused,
    ConnectionLost,
    LoginFailed,
    MirrorlogError,
    NoSuchVirtualHost,
    NotCurrent,
    ProtocolError,
    RequestTimeout,
)
from mirrorlog.wire.messages.topology import GetRouting, Routing
from mirrorlog.wire.routing import VERSION_FIRST, RoutingTable, no_such_exchange, stamp

FRESH_S: Final = 10.0
"""How old a node's word may be when anything is routed by it."""
ASK_MS: Final = 2_000
_REFRESH_S: Final = 10.0
"""How long nodes may take to tell the routing that one of them knows already."""
_RETRY_S: Final = 0.02


class PublishRoutes:
    """The routing of one virtual host. `closed`: whether nobody wants to know any more; `only_version`: without the
    exchanges and bindings. `stamp`: what batches say that were routed by it; `vouched_at`: when (s of the loop's clock)
    the question left that a node has answered so."""

    def __init__(
        self, client: ClusterClient, virtual_host: str, *, closed: Callable[[], bool], only_version: bool = False
    ) -> None:
        self.virtual_host = virtual_host
        self.table = RoutingTable({}, [])
        self.stamp = 0
        self.vouched_at = -inf
        self._client = client
        self.closed = closed
        self._only_version = only_version
        self._loop = asyncio.get_running_loop()
        self._learning = asyncio.Lock()

    @property
    def is_old(self) -> bool:
        """Whether nothing may be routed by it."""
        return self._loop.time() - self.vouched_at > FRESH_S

    def check(self, exchange: str) -> None:
        """Whether it may be published to. Raises NoSuchExchange, AccessRefused."""
        facts = self.table.exchanges.get(exchange)
        if facts is None:
            raise no_such_exchange(exchange)
        if facts.internal:
            raise AccessRefused(f"exchange {exchange!r} is internal: only other exchanges give it messages")

    async def refresh(self, at_least: int = VERSION_FIRST, *, give_up_at: float = inf) -> None:
        """Have the routing at that version or a later one, from a node that has it. Raises NoSuchVirtualHost,
        AccessRefused, or why no node that answers has it."""
        async with self._learning:  # what is told are changes of what is known
            await self._ask_any(self._learn, at_least, give_up_at=give_up_at)

    async def newest(self, *, give_up_at: float = inf) -> int:
        """The version of a node that knows what is known here, or more; if nothing has changed it vouches for that.
        Raises as `refresh`."""
        return await self._ask_any(self.hear_version, self.table.version, give_up_at=give_up_at)

    async def hear_version(self, address: str, at_least: int) -> int | None:
        """What that node knows, if that is enough; if nothing has changed it vouches for what is known here. Raises
        what it answers, ConnectionLost, RequestTimeout."""
        asked_at = self._loop.time()
        version = await self._ask_version(address)
        if version == self.table.version:
            self.vouched_at = max(self.vouched_at, asked_at)
        return version if version >= at_least else None

    async def version_known(self) -> int:
        """The version, as some node knows it; what is known here, when none says."""
        for address in self._client.addresses():
            with suppress(ConnectionLost, RequestTimeout, NotCurrent, NoSuchVirtualHost):
                return await self._ask_version(address)
        return self.table.version

    # --- inside ---

    async def _ask_version(self, address: str) -> int:
        connection = await self._client.reach(address)
        asked = GetRouting(virtual_host=self.virtual_host, to_publish=True, only_version=True)
        return (await connection.request(asked, Routing, timeout_ms=ASK_MS)).version

    async def _ask_any(
        self, ask: Callable[[str, int], Awaitable[int | None]], at_least: int, *, give_up_at: float
    ) -> int:
        """The version of a node that has that one or a later one. Raises as `refresh`."""
        give_up_at = min(give_up_at, self._loop.time() + _REFRESH_S)
        while True:
            failures: list[MirrorlogError] = []
            for address in self._client.addresses():
                try:
                    if (version := await ask(address, at_least)) is not None:
                        return version
                except LoginFailed:
                    raise
                except (ConnectionLost, RequestTimeout, NotCurrent, NoSuchVirtualHost, ProtocolError) as error:
                    failures.append(error)  # one of older software does not know the question; others may
            told = [error for error in failures if not isinstance(error, ConnectionLost)]
            if told and all(isinstance(error, NoSuchVirtualHost | ProtocolError) for error in told):
                raise told[0]
            if self.closed() or self._loop.time() >= give_up_at:
                raise failures[-1] if failures else self._not_known(at_least)
            await asyncio.sleep(_RETRY_S)

    def _not_known(self, version: int) -> RequestTimeout:
        host = self.virtual_host
        return RequestTimeout(f"no node that answers knows the routing of virtual host {host} at version {version}")

    async def _learn(self, address: str, at_least: int) -> int | None:
        """Have the routing that this node knows, if that is enough; its version. Raises as `hear_version`."""
        asked_at = self._loop.time()
        connection = await self._client.reach(address)
        table = self.table
        asked = GetRouting(
            virtual_host=self.virtual_host, version=table.version, to_publish=True, only_version=self._only_version
        )
        answer = await connection.request(asked, Routing, timeout_ms=ASK_MS)
        if answer.version < at_least:
            return None
        if answer.changed:
            self._take(answer, table)
        self.vouched_at = asked_at
        return answer.version

    def _take(self, answer: Routing, table: RoutingTable) -> None:
        if answer.since and answer.since == table.version:
            table.change(
                answer.version,
                exchanges=answer.exchanges,
                deleted=answer.deleted,
                bindings=answer.bindings,
                unbound=answer.unbound,
            )
        else:
            self.table = RoutingTable(answer.exchanges, answer.bindings, version=answer.version)
        self.stamp = stamp(answer.version)
