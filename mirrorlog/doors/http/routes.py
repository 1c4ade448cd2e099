"""What the HTTP door answers. Errors are one line of JSON: `{"error": …}`.

A node that does not answer is 503 for scrapes too, not numbers of a moment ago and not an empty page: then Prometheus'
own `up` is 0 for a node that is gone, for one that hangs and for one that is cut off, and one alert tells all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from mirrorlog.doors.http.answers import CallerSources, StatusScrape, StatusSource
from mirrorlog.doors.http.lists import ClusterLists
from mirrorlog.doors.http.metric_families import SERIES_MAX
from mirrorlog.doors.http.metrics import metrics_text
from mirrorlog.errors import AccessRefused, LoginFailed, MirrorlogError, NoSuchQueue

_TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"
_PATH_SHOWN_MAX: Final = 80


def make_app(
    source: StatusSource,
    metrics: StatusSource | CallerSources | None = None,
    lists: ClusterLists | None = None,
    management: ASGIApp | None = None,
    page: ASGIApp | None = None,
    *,
    series_max: int = SERIES_MAX,
) -> Starlette:
    """The application of one node's door. `metrics`: where they come from, if not from where health does; `lists`: of
    the whole cluster; `management`: what is below /api; `page`: what is below /page; `series_max`: see
    `metrics_text`."""
    pages = _Pages(source, metrics or source, to_page=page is not None, series_max=series_max)
    listed = [Route(f"/{what}", answer) for what, answer in lists.pages.items()] if lists is not None else []
    mounted: list[BaseRoute] = [Mount("/api", management)] if management is not None else []
    if page is not None:
        mounted += [Route("/page", _to_page), Mount("/page", page)]
    app = Starlette(
        routes=[
            Route("/", pages.index),
            Route("/metrics", pages.metrics),
            Route("/health", pages.health),
            Route("/ready", pages.ready),
            *listed,
            *mounted,
        ],
        exception_handlers={
            HTTPException: _not_served,
            LoginFailed: _not_logged_in,
            AccessRefused: _refused,
            NoSuchQueue: _not_there,
            MirrorlogError: _node_failed,
            Exception: _failed,
        },
    )
    # A path is served or it is not; nobody is sent to another.
    app.router.redirect_slashes = False
    return app


class _Pages:
    """What is served at each path."""

    def __init__(
        self, source: StatusSource, metrics: StatusSource | CallerSources, *, to_page: bool, series_max: int
    ) -> None:
        self._series_max = series_max
        self._source = source
        self._to_page = to_page
        self._metrics = metrics
        self._rendered: tuple[StatusScrape, bytes] | None = None

    async def index(self, request: Request) -> Response:
        """People who come with a browser are sent to the page."""
        if self._to_page and "text/html" in request.headers.get("accept", ""):
            return await _to_page(request)
        return PlainTextResponse(
            "mirrorlog: /metrics is for Prometheus, /health is 200 while this node answers, /ready while it and its "
            "doors serve; "
            "/queues, /offsets, /groups and /moves are lists of the whole cluster; "
            "/api is RabbitMQ's management API and /page the management page, unless http.management is false\n"
        )

    async def metrics(self, request: Request) -> Response:
        if isinstance(self._metrics, CallerSources):
            answer = await self._metrics.answer(request)
        else:
            answer = await self._metrics.answer()
        return Response(self._text(answer), media_type=_TEXT_FORMAT)

    async def health(self, request: Request) -> Response:
        status = (await self._source.answer()).told.status
        return JSONResponse({"node": status.node_id, "start_id": status.start_id})

    async def ready(self, request: Request) -> Response:
        """Whether the node takes what clients send it: it answers, its cluster has let it in, its doors serve."""
        status = (await self._source.answer()).told.status
        if status.cluster is None or not status.cluster.registered:
            return _error(f"node {status.node_id} waits for its cluster to let it in", 503)
        if status.awaited:
            return _error(f"node {status.node_id} waits for its doors: {', '.join(status.awaited)}", 503)
        return JSONResponse({"node": status.node_id, "start_id": status.start_id})

    def _text(self, answer: StatusScrape) -> bytes:
        """Written once for all who share the answer."""
        if self._rendered is None or self._rendered[0] is not answer:
            self._rendered = (answer, metrics_text(answer, self._series_max))
        return self._rendered[1]


async def _to_page(request: Request) -> Response:
    return RedirectResponse("/page/")


async def _not_served(request: Request, error: Exception) -> Response:
    """No such path, or another method than GET."""
    assert isinstance(error, HTTPException)
    path: str = request.scope["path"]
    shown = path if len(path) <= _PATH_SHOWN_MAX else f"{path[:_PATH_SHOWN_MAX]}…"
    reason = {404: f"nothing is at {shown}; / says what is here", 405: f"{shown} can only be read, with GET"}
    return _error(reason.get(error.status_code, error.detail), error.status_code, error.headers)


async def _not_logged_in(request: Request, error: Exception) -> Response:
    return _error(str(error), 401, {"WWW-Authenticate": 'Basic realm="mirrorlog", charset="UTF-8"'})


async def _refused(request: Request, error: Exception) -> Response:
    return _error(str(error), 403)


async def _not_there(request: Request, error: Exception) -> Response:
    return _error(str(error), 404)


async def _node_failed(request: Request, error: Exception) -> Response:
    return _error(str(error), 503)


async def _failed(request: Request, error: Exception) -> Response:
    """The error itself goes to the log, with its traceback."""
    return _error(f"internal error: {type(error).__name__}", 500)


def _error(reason: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status, headers)
