"""What a tool of the management API sends and sees."""

from __future__ import annotations

import html
import http.client
import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from mirrorlog.config import split_address
from mirrorlog.testing.asking import wait_for

DEADLINE_S = 30.0
_T = TypeVar("_T")


class Told(NamedTuple):
    """`body`: of JSON; None for an empty one. Names of headers are in small letters."""

    status: int
    body: Any
    headers: dict[str, str]


class Api:
    """At an address of an HTTP door, as a user, or as nobody."""

    def __init__(self, address: str, user: str | None = "guest", password: str = "guest") -> None:
        self.address = address
        self._headers = {}
        if user is not None:
            self._headers["Authorization"] = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Told:
        """`path`: behind /api/; `body`: bytes as they are, all else as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection(*split_address(self.address), timeout=DEADLINE_S)
        try:
            connection.request(method, f"/api/{path}", data, {**self._headers, **headers})
            answer = connection.getresponse()
            found = answer.read()
            return Told(
                answer.status,
                json.loads(found) if found else None,
                {name.lower(): each for name, each in answer.headers.items()},
            )
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """What is there."""
        told = self.call("GET", path)
        assert told.status == 200, (path, told)
        return told.body

    def put(self, path: str, body: Any = None) -> int:
        """The status, of a success."""
        return self._done("PUT", path, {} if body is None else body)

    def post(self, path: str, body: Any = None) -> Any:
        told = self.call("POST", path, {} if body is None else body)
        assert told.status in (200, 201, 204), (path, told)
        return told.body

    def delete(self, path: str) -> int:
        return self._done("DELETE", path, None)

    def error(self, method: str, path: str, body: Any = None) -> tuple[int, str, Any]:
        """Status, error and reason of an answer that has nothing else."""
        told = self.call(method, path, body)
        assert told.body is not None, told
        assert told.body.keys() == {"error", "reason"}, told
        return told.status, told.body["error"], told.body["reason"]

    def until(self, path: str, what: Callable[[Any], _T]) -> _T:
        """The first true thing that `what` makes of what is there."""
        return wait_for(lambda: what(self.get(path)) or None, timeout=DEADLINE_S, what=lambda: f"{path} to be so")

    def _done(self, method: str, path: str, body: Any) -> int:
        told = self.call(method, path, body)
        assert told.status in (200, 201, 204), (path, told)
        return told.status


class Shown(NamedTuple):
    """A page. Names of headers are in small letters."""

    status: int
    text: str
    headers: dict[str, str]


class Pages:
    """The management page at an address of an HTTP door, as a user, or as nobody; without a script."""

    def __init__(self, address: str, user: str | None = None, password: str = "guest") -> None:
        self.address = address
        self._headers = {}
        if user is not None:
            self._headers["Authorization"] = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"

    def get(self, path: str, /, **query: object) -> Shown:
        """`path`: behind /page/."""
        return self._call("GET", f"/page/{path}{'?' + urlencode(query) if query else ''}", None, {})

    def browse(self, path: str) -> Shown:
        """As somebody who types an address into a browser."""
        return self._call("GET", path, None, {"Accept": "text/html,*/*;q=0.8"})

    def text(self, path: str, /, **query: object) -> str:
        """Of a page that is there, as who reads it: without tags, blanks as one."""
        shown = self.get(path, **query)
        assert shown.status == 200, (path, shown)
        return words_of(shown.text)

    def until(self, words: str, path: str, /, **query: object) -> str:
        """Of a page, as who reads it, as soon as it has these words."""

        def met() -> str | None:
            shown = self.get(path, **query)
            text = words_of(shown.text)
            return text if shown.status == 200 and words in text else None

        return wait_for(
            met, timeout=DEADLINE_S, what=lambda: f"{words!r} on {path}: {words_of(self.get(path, **query).text)}"
        )

    def act(self, do: str, headers: dict[str, str] | None = None, **fields: object) -> Shown:
        """As a browser sends a form of the page; the answer to that alone."""
        body = urlencode({"do": do, **fields}, doseq=True).encode()
        own = {"Origin": f"http://{self.address}"} if headers is None else headers
        return self._call("POST", "/page/act", body, {"Content-Type": "application/x-www-form-urlencoded", **own})

    def done(self, do: str, **fields: object) -> str:
        """The page to which that leads, as who reads it."""
        told = self.act(do, **fields)
        assert told.status == 303, told
        shown = self._call("GET", told.headers["location"], None, {})
        assert shown.status == 200, shown
        return words_of(shown.text)

    def events(self, path: str) -> Iterator[str]:
        """Those of a live page, until its stream ends."""
        connection = http.client.HTTPConnection(*split_address(self.address), timeout=DEADLINE_S)
        try:
            connection.request("GET", f"/page/{path}", headers=self._headers)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            data: list[str] = []
            for line in answer:
                words = line.decode().rstrip("\n")
                if words.startswith("data: "):
                    data.append(words.removeprefix("data: "))
                elif not words and data:
                    yield "\n".join(data)
                    data = []
        finally:
            connection.close()

    def until_live(self, words: str, path: str) -> str:
        """The first event of a live page that has these words, of as many streams as it takes."""

        def met() -> str | None:
            return next((event for event in self.events(path) if words in event), None)

        return wait_for(met, timeout=DEADLINE_S, what=lambda: f"{words!r} in an event of {path}")

    def _call(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Shown:
        connection = http.client.HTTPConnection(*split_address(self.address), timeout=DEADLINE_S)
        try:
            connection.request(method, path, body, {**self._headers, **headers})
            answer = connection.getresponse()
            text = answer.read().decode()
            return Shown(answer.status, text, {name.lower(): each for name, each in answer.headers.items()})
        finally:
            connection.close()


def words_of(page: str) -> str:
    """What is read of a page."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())
