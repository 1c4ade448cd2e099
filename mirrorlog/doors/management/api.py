"""The management API as an application: finds who answers a path, reads the body, and answers in RabbitMQ's shapes.

Each call is made by the login of who calls, so what he may is decided by the nodes, as everywhere else. Paths are split
before they are decoded: the default virtual host is `/`, written `%2f`. Whoever may not log in has no body read. What a
call may take is bounded: its time, with that for its body and for its turn; how many are served at once, the others
wait; and what bodies of all calls may hold together.

Rejected: starlette's own routes, which see the decoded path, in which `/api/queues/%2f/q` has three slashes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mirrorlog.doors.common.callers import Callers
from mirrorlog.doors.http.answers import address_of, login_of
from mirrorlog.doors.management import connections, definitions, messages, overview, queues, topology, users
from mirrorlog.doors.management.calls import ApiAnswer, Call, ClusterFacts, Page, Routes
from mirrorlog.doors.management.shapes import ApiError, bad_request, error_of
from mirrorlog.doors.management.sites import Sites
from mirrorlog.errors import ConnectionLost, MirrorlogError
from mirrorlog.wire.messages.topology import Login

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

PREFIX: Final = "/api"
LIMIT_S: Final = 12.0
"""Below what the server waits for an answer (`HttpLimits.exchange_s_max`): who waited is told."""
AT_ONCE_MAX: Final = 16
ATTEMPTS: Final = 4
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
BODIES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of all calls together."""

ROUTES: Final[Routes] = {
    path: pages
    for each in (overview, connections, topology, queues, messages, users, definitions)
    for path, pages in each.ROUTES.items()
}


class RouteTable:
    """Which page is at a path. Pure."""

    def __init__(self, routes: Routes) -> None:
        self._by_length: dict[int, list[tuple[list[str], Mapping[str, Page]]]] = {}
        for path, pages in routes.items():
            words = path.strip("/").split("/")
            self._by_length.setdefault(len(words), []).append((words, pages))
        for found in self._by_length.values():
            # A word is one, before it is any name.
            found.sort(key=lambda each: [word.startswith(":") for word in each[0]])

    def find(self, path: str) -> tuple[Mapping[str, Page], dict[str, str]]:
        """By method, who answers; and the names in the path, which is not decoded. Raises ApiError."""
        words = path.split("/")
        for pattern, pages in self._by_length.get(len(words), ()):
            if all(part.startswith(":") or part == word for part, word in zip(pattern, words, strict=True)):
                names = {
                    part[1:]: unquote(word, errors="strict")
                    for part, word in zip(pattern, words, strict=True)
                    if part.startswith(":")
                }
                return pages, names
        raise ApiError(404, "Object Not Found", "Not Found")


class ManagementApi:
    """An ASGI application, to be mounted at /api."""

    def __init__(self, callers: Callers, node: str, facts: ClusterFacts, sites: Sites) -> None:
        """`node`: the native address of the node whose door this is; `facts`, `sites`: which the page has, too."""
        self._callers = callers
        self._node = node
        self._routes = RouteTable(ROUTES)
        self._facts = facts
        self._sites = sites
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._bodies_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answered(request)
        except ApiError as error:
            answer = ApiAnswer(error.status, error.body, error.headers or {})
        except Exception:
            # The error itself goes to the log, with its traceback: who asked shall learn nothing of this side's.
            logger.exception("management_failed method=%s", request.method)
            answer = ApiAnswer(500, {"error": "internal_error", "reason": "the door's log says why"})
        await _response(answer)(scope, receive, send)

    async def _answered(self, request: Request) -> ApiAnswer:
        await self._sites.check(request)
        page, names = self._page(request)
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self._called(request, page, names)
        except MirrorlogError as error:
            raise error_of(error) from None
        except TimeoutError:
            raise ApiError(503, "service_unavailable", f"there was no answer within {LIMIT_S:g} s") from None

    def _page(self, request: Request) -> tuple[Page, dict[str, str]]:
        try:
            pages, names = self._routes.find(_path(request))
        except UnicodeDecodeError:
            raise bad_request("names in paths are UTF-8, with percent-encoding") from None
        method = "GET" if request.method == "HEAD" else request.method
        if method not in pages:
            allowed = ", ".join(sorted({*pages, *({"HEAD"} if "GET" in pages else ())}))
            raise ApiError(405, "method_not_allowed", f"this path takes {allowed}", {"Allow": allowed})
        return pages[method], names

    async def _called(self, request: Request, page: Page, names: Mapping[str, str]) -> ApiAnswer:
        login, address = login_of(request), address_of(request)
        async with self._callers.client(login, address) as client:
            taken = 0
            try:
                body = b""
                if request.method in ("PUT", "POST", "DELETE"):
                    body = await self._body(request)
                    taken = len(body)
                async with self._turns:
                    query = dict(request.query_params)
                    reason = request.headers.get("x-reason", "")
                    call = Call(client, login, self._facts, self._node, names, query, _json(body), reason)
                    return await insisted(page, call) if request.method in ("GET", "HEAD") else await page(call)
            finally:
                self._bodies_bytes -= taken
                self._changed(request, login)

    def _changed(self, request: Request, login: Login | None) -> None:
        if request.method not in ("GET", "HEAD"):
            self._facts.forget(login)

    async def _body(self, request: Request) -> bytes:
        """It counts until the call has ended. Raises ApiError."""
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                size += len(part)
                self._bodies_bytes += len(part)
                if size > BODY_BYTES_MAX:
                    raise ApiError(413, "payload_too_large", f"a body has up to {BODY_BYTES_MAX} bytes")
                if self._bodies_bytes > BODIES_BYTES_MAX:
                    raise ApiError(503, "service_unavailable", "other calls have large bodies; try again")
                parts.append(part)
        except BaseException:
            self._bodies_bytes -= size
            raise
        return b"".join(parts)


async def insisted(page: Callable[[Call], Awaitable[_T]], call: Call) -> _T:
    """What changes nothing is asked for again where a connection was lost: with the first user each node closes those
    that have not logged in, as they are used."""
    for _ in range(ATTEMPTS - 1):
        with contextlib.suppress(ConnectionLost):
            return await page(call)
    return await page(call)


def _path(request: Request) -> str:
    """Behind the prefix, as it was sent; one slash at its end says nothing."""
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").removeprefix(PREFIX).removeprefix("/")
    return path.removesuffix("/")


def _json(body: bytes) -> dict[str, Any]:
    """Raises ApiError."""
    if not body.strip():
        return {}
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise bad_request("not_json")
    return found


def _response(answer: ApiAnswer) -> Response:
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", **answer.headers}
    if answer.body is None:
        return Response(status_code=answer.status, headers=headers)
    return Response(_encoded(answer.body), answer.status, headers, media_type="application/json")


def _encoded(body: Any) -> bytes:
    return msgspec.json.encode(body, enc_hook=_as_text)


def _as_text(value: Any) -> str:
    """What JSON has no form for."""
    return str(value)
