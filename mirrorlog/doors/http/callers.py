"""Metrics for who may see them: the node's status by each caller's own login, asked for as seldom as serves.

The node decides, for it is asked over a connection of the caller: without a login where there are no users, by a user
with a tag that may look where there are. Each login has its own answer, good for a second: what one may see must not be
shown to another.
"""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request

from mirrorlog.doors.common.callers import Callers, is_here, read_basic
from mirrorlog.doors.http.answers import DEADLINE_MS, Answer, Failures, StatusSource, Told, ask_node
from mirrorlog.errors import LoginFailed, RequestTimeout
from mirrorlog.wire.messages.topology import Login

SOURCES_MAX: Final = 64
"""Logins whose last answer is kept."""
_DEADLINE_S: Final = 2 * DEADLINE_MS / 1000


class CallerSources:
    """`node`: whose status is told. `failures`: of all sources of the door."""

    def __init__(self, callers: Callers, node: str, failures: Failures) -> None:
        self._callers = callers
        self._node = node
        self._failures = failures
        self._sources: dict[Login | None, StatusSource] = {}

    async def answer(self, request: Request) -> Answer:
        """As of `StatusSource`. Raises LoginFailed, AccessRefused, and what `Callers.client` raises."""
        login, address = _login_of(request), _address_of(request)
        try:
            async with (
                asyncio.timeout(_DEADLINE_S),
                self._callers.client(login, address),
            ):  # whatever is kept, is it he?
                return await self._source(login).answer()
        except TimeoutError:
            raise RequestTimeout(f"the node did not answer within {_DEADLINE_S:g} s") from None

    def _source(self, login: Login | None) -> StatusSource:
        source = self._sources.get(login)
        if source is None:
            if len(self._sources) >= SOURCES_MAX:
                del self._sources[next(iter(self._sources))]
            source = self._sources[login] = StatusSource(lambda: self._ask(login), failures=self._failures)
        return source

    async def _ask(self, login: Login | None) -> Told:
        async with self._callers.client(login) as client:
            return await ask_node(client, self._node)


def _login_of(request: Request) -> Login | None:
    given = request.headers.getlist("authorization")
    if not given:
        return None
    if len(given) > 1:
        raise LoginFailed("authorization is given once")
    return read_basic(given[0], private=request.url.scheme == "https" or is_here(_address_of(request)))


def _address_of(request: Request) -> str:
    return request.client.host if request.client is not None else ""
