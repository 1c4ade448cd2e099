"""The management page as an application: finds the page of a path, asks by the login of who looks, and renders it.

Made on the server, so it works without its script; that one renews what is live and asks before what cannot be undone.
Names stand in the query and not in paths, for a virtual host may be called `/`. Nothing but this door's own files is
loaded (the strictest policy of contents there is), no page may be shown within another, and whatever changes something
is a POST that the browser itself says to come from here: a browser sends a login along by itself, whoever makes it ask.
After one the browser is sent to a page that shows what came of it, so that loading that anew does nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlencode

import jinja2
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from mirrorlog.diagnosis.cells import bytes_text, time_text
from mirrorlog.doors.common.callers import Callers
from mirrorlog.doors.http.answers import address_of, login_of
from mirrorlog.doors.management.api import insisted
from mirrorlog.doors.management.calls import Call, ClusterFacts
from mirrorlog.doors.management.page import dialogs, views
from mirrorlog.doors.management.page.actions import ACTIONS, Form
from mirrorlog.doors.management.page.live import LISTENERS_A_LOGIN_MAX, EventStream, Feeds
from mirrorlog.doors.management.page.views import Context, View
from mirrorlog.doors.management.shapes import ApiError, bad_request, error_of
from mirrorlog.doors.management.sites import Sites
from mirrorlog.errors import AccessRefused, LoginFailed, MirrorlogError
from mirrorlog.wire.messages.topology import Login
from mirrorlog.wire.names import shown

logger = logging.getLogger(__name__)

PREFIX: Final = "/page"
LIMIT_S: Final = 12.0
"""Below what the server waits for an answer (`HttpLimits.exchange_s_max`): who waited is told."""
AT_ONCE_MAX: Final = 8
FORMS_AT_ONCE_MAX: Final = 32
"""Whose bodies come in, or that wait for a turn: a slow one holds no page up."""
FORM_BYTES_MAX: Final = 1024 * 1024
NOTES_MAX: Final = 256
"""What came of so many actions is kept for whoever loads the page anew."""
_FIELDS_MAX: Final = 10_000
_ADDRESS_CHARS_MAX: Final = 8_000
_HERE: Final = Path(__file__).parent
_FILES: Final = {"page.css": "text/css", "page.js": "text/javascript"}

VIEWS: Final[Mapping[str, View]] = {**views.VIEWS, **dialogs.VIEWS}
PAGES: Final = (
    ("", "Overview"),
    ("queues", "Queues"),
    ("logs", "Logs"),
    ("nodes", "Nodes"),
    ("consumers", "Consumers"),
    ("connections", "Connections"),
    ("moves", "Moves"),
    ("policies", "Policies"),
    ("events", "Events"),
    ("doctor", "Doctor"),
)
"""Of the bar that all have: path and word."""

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Without one a form's POST would say no origin either.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_BASIC: Final = {"WWW-Authenticate": 'Basic realm="mirrorlog", charset="UTF-8"'}


async def _statuses(call: Call) -> Context:
    return {"statuses": await call.statuses()}


_MAY_LOOK: Final = View("", _statuses)
"""What everybody may see who sees a page; it is shared with these."""
_Looked = tuple[Login | None, str, tuple[tuple[str, str], ...]]
"""Who looks at which page, with its query."""


class Templates:
    """Rendered with everything escaped."""

    def __init__(self) -> None:
        self._found = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._found.filters |= {"bytes": bytes_text, "time": time_text, "number": number_text, "shown": shown}
        self._found.globals |= {"at": address_within, "rooms": PAGES}

    def page(self, template: str, facts: Mapping[str, Any]) -> str:
        """The whole of it."""
        return self._found.get_template(template).render(facts)

    def live(self, template: str, facts: Mapping[str, Any]) -> str:
        """What renews itself of it."""
        found = self._found.get_template(template)
        return "".join(found.blocks["live"](found.new_context(dict(facts))))


def number_text(number: float | None) -> str:
    """With narrow blanks between thousands; a dash for what nobody tells."""
    if number is None:
        return "-"
    return f"{number:,}".replace(",", "\u202f")


def address_within(path: str, /, **names: Any) -> str:
    """A link to another page."""
    query = urlencode({name: value for name, value in names.items() if value not in (None, "")})
    return f"{PREFIX}/{path}{'?' + query if query else ''}"


class Notes:
    """What came of actions, by a word that nobody guesses, and told to who acted alone."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[Login | None, str, str]] = {}

    def add(self, login: Login | None, kind: str, text: str) -> str:
        while len(self._kept) >= NOTES_MAX:
            del self._kept[next(iter(self._kept))]
        word = secrets.token_urlsafe(12)
        self._kept[word] = login, kind, text
        return word

    def find(self, login: Login | None, word: str) -> tuple[str, str] | None:
        """(kind, text)."""
        found = self._kept.get(word)
        return found[1:] if found is not None and found[0] == login else None


class ManagementPage:
    """An ASGI application, to be mounted at /page."""

    def __init__(self, callers: Callers, node: str, facts: ClusterFacts, sites: Sites) -> None:
        """`node`: the native address of the node whose door this is; `facts`, `sites`: which the API has, too."""
        self._callers = callers
        self._node = node
        self._facts = facts
        self._sites = sites
        self._templates = Templates()
        self._notes = Notes()
        self._turns = asyncio.Semaphore(AT_ONCE_MAX)
        self._forms = asyncio.Semaphore(FORMS_AT_ONCE_MAX)
        self._feeds: Feeds[_Looked] = Feeds(self._renewed)
        self._files = {name: (_HERE / name).read_bytes() for name in _FILES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            answer = await self._answered(request)
        except ApiError as error:
            answer = self._failed(error, self._note(request))
        except Exception:
            # The error itself goes to the log, with its traceback: who asked shall learn nothing of this side's.
            logger.exception("page_failed method=%s", request.method)
            answer = self._failed(ApiError(500, "internal_error", "the door's log says why"))
        for name, value in HEADERS.items():
            answer.headers.setdefault(name, value)
        await answer(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        path = _path(request)
        await self._sites.check(request)
        if request.method == "POST" and path == "act":
            return await self._act(request)
        if request.method not in ("GET", "HEAD"):
            raise ApiError(405, "method_not_allowed", "pages are read, with GET", {"Allow": "GET, HEAD"})
        if path in _FILES:
            return Response(self._files[path], media_type=_FILES[path], headers={"Cache-Control": "max-age=300"})
        if path == "live":
            return await self._live(request)
        if path not in VIEWS:
            raise ApiError(404, "not_found", f"no page {path[:80]!r}")
        return await self._shown(request, path)

    async def _shown(self, request: Request, path: str) -> Response:
        query = dict(request.query_params)
        login = _login(request)
        facts = await self._facts_of(login, address_of(request), VIEWS[path], query)
        query.pop("n", None)
        query.pop("path", None)
        renews = VIEWS[path].live and not facts.get("still")
        frame = {
            "path": path,
            "query": query,
            "note": self._note(request),
            "live": address_within("live", path=path or "overview", **query) if renews else "",
            "user": login.user if login is not None else "",
        }
        return Response(self._templates.page(VIEWS[path].template, {**facts, **frame}), media_type="text/html")

    async def _live(self, request: Request) -> Response:
        """`path`: of the page. Who may not look is told at once, and gets no place among those who do."""
        path, login, address = request.query_params.get("path", ""), _login(request), address_of(request)
        path = "" if path == "overview" else path
        if path not in VIEWS or not VIEWS[path].live:
            raise ApiError(404, "not_found", "no such page renews itself")
        # Whatever else is asked makes no page of its own.
        query = tuple((key, words) for key in VIEWS[path].asks if (words := request.query_params.get(key)))
        await self._facts_of(login, address, _MAY_LOOK, dict(query))
        self._feeds.check_room()
        if login is not None:  # else all who look are one
            self._feeds.check_room(lambda looked: looked[0] == login, LISTENERS_A_LOGIN_MAX)
        return EventStream(self._feeds, (login, path, query))

    async def _renewed(self, looked: _Looked) -> str:
        """What is live of a page. Raises ApiError."""
        login, path, words = looked
        query = dict(words)
        facts = await self._facts_of(login, "", VIEWS[path], query)
        return self._templates.live(VIEWS[path].template, {**facts, "path": path, "query": query})

    async def _facts_of(
        self, login: Login | None, address: str, view: View, query: Mapping[str, str]
    ) -> dict[str, Any]:
        """Raises ApiError."""
        names = {"vhost": query.get("vhost") or "/", "queue": query.get("name", "")}
        try:
            async with asyncio.timeout(LIMIT_S), self._callers.client(login, address) as client, self._turns:
                return await insisted(view.fill, Call(client, login, self._facts, self._node, names, query, {}))
        except MirrorlogError as error:
            raise _refusal(error, login) from None
        except TimeoutError:
            raise ApiError(503, "service_unavailable", f"there was no answer within {LIMIT_S:g} s") from None

    async def _act(self, request: Request) -> Response:
        _check_same_site(request)
        login = _login(request)
        back, kind, text = await self._acted(request, login)
        word = self._notes.add(login, kind, text)
        return RedirectResponse(f"{back}{'&' if '?' in back else '?'}n={word}", 303)

    async def _acted(self, request: Request, login: Login | None) -> tuple[str, str, str]:
        """Where to go, and what came of it: its kind, and in words. Raises ApiError for what is no action of a page."""
        try:
            async with (
                asyncio.timeout(LIMIT_S),
                self._callers.client(login, address_of(request)) as client,
                self._forms,
            ):
                form = await _form(request)
                action = ACTIONS.get(form.one("do"))
                if action is None:
                    raise bad_request("no such action")
                names = {"vhost": form.one("vhost") or "/", "queue": form.one("name")}
                back = address_within(action.back, **{name: form.one(name) for name in action.keeps})
                call = Call(client, login, self._facts, self._node, names, {}, {})
                try:
                    async with self._turns:
                        return back, "done", await action.act(call, form)
                except (ApiError, MirrorlogError) as error:
                    if login is None and isinstance(error, AccessRefused | LoginFailed):
                        raise  # a browser asks for a login, and sends the form again
                    again = address_within(action.back, **form.pairs) if action.mends else back
                    if len(again) <= _ADDRESS_CHARS_MAX:
                        back = again
                    return back, "failed", str(error)
                finally:
                    self._facts.forget(login)
        except MirrorlogError as error:
            raise _refusal(error, login) from None
        except TimeoutError:
            reason = f"there was no answer within {LIMIT_S:g} s: look whether it was done before you try again"
            raise ApiError(504, "outcome_unknown", reason) from None

    def _note(self, request: Request) -> tuple[str, str] | None:
        """What came of the action that has led to this page."""
        word = request.query_params.get("n")
        if not word:
            return None
        try:
            return self._notes.find(login_of(request), word)
        except MirrorlogError:
            return None

    def _failed(self, error: ApiError, note: tuple[str, str] | None = None) -> Response:
        frame: Context = {"path": "-", "query": {}, "note": note, "user": "", "live": ""}
        page = self._templates.page("error.html", {"status": error.status, "reason": str(error), **frame})
        return Response(page, error.status, dict(error.headers or {}), media_type="text/html")


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(PREFIX).strip("/")


def _login(request: Request) -> Login | None:
    """Raises ApiError for what is none."""
    try:
        return login_of(request)
    except MirrorlogError as error:
        raise _refusal(error, None) from None


def _refusal(error: MirrorlogError, login: Login | None) -> ApiError:
    """A browser asks for a login where there is none that serves, and only there."""
    found = error_of(error)
    if isinstance(error, AccessRefused):
        found.status, found.headers = (401, _BASIC) if login is None else (403, {})
    return found


def _check_same_site(request: Request) -> None:
    """What changes something was sent by a page of this door's. Every browser says so of a form, by the one header or
    the other; who says neither is none of ours. Raises ApiError."""
    site = request.headers.get("sec-fetch-site")
    if site not in (None, "same-origin") or (site is None and not request.headers.get("origin")):
        raise ApiError(403, "forbidden", "forms are taken from this page only; programs have /api")


async def _form(request: Request) -> Form:
    """Raises ApiError."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise ApiError(415, "unsupported_media_type", "a form is sent as application/x-www-form-urlencoded")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > FORM_BYTES_MAX:
            raise ApiError(413, "payload_too_large", f"a form has up to {FORM_BYTES_MAX} bytes")
    if body.count(b"&") >= _FIELDS_MAX:
        raise bad_request(f"a form has up to {_FIELDS_MAX} fields; move fewer groups at once, or by mqtool group-reset")
    try:
        return Form(parse_qs(body.decode(), keep_blank_values=True, errors="strict", max_num_fields=_FIELDS_MAX))
    except ValueError:
        raise bad_request("this is no form") from None
