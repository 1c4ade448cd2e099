"""Shapes of RabbitMQ's management API: its errors, and its lists with pages, sorting and columns. Pure.

Tools look at the status, and at `error` and `reason` of a body; `rabbitmqadmin` prints the reason. So each outcome has
RabbitMQ's status and word, and the reason is what the node says, unless its tools compare the text. One difference:
what is wrong with a request is 400 with the reason, never 500.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from mirrorlog.client.definitions.rows import Row
from mirrorlog.errors import (
    AccessRefused,
    BadInput,
    ConfigError,
    InternalError,
    LoginFailed,
    MirrorlogError,
    MissingDependency,
    NoSuchExchange,
    NoSuchGroup,
    NoSuchQueue,
    NoSuchUser,
    NoSuchVirtualHost,
    OutcomeUnknown,
    ProtocolError,
    Refused,
    RequestTimeout,
    UnsupportedVersion,
)
from mirrorlog.wire.messages.topology import NoSuchBinding, NoSuchPermissions
from mirrorlog.wire.policies import NoSuchPolicy

PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
ROWS_MAX: Final = 50_000
_FILTER_CHARS_MAX: Final = 255
_REPEATS_MAX: Final = 2
"""In an expression that names are searched for, which somebody else chose and this process' loop waits for."""

Query = Mapping[str, str]

# --- Errors -------------------------------------------------------------------------------------------------------


class ApiError(Exception):
    """An answer that is no success: its status, and what the body says. `headers`: besides."""

    def __init__(self, status: int, error: str, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.body = {"error": error, "reason": reason}
        self.headers = headers


def bad_request(reason: str) -> ApiError:
    return ApiError(400, "bad_request", reason)


def not_found() -> ApiError:
    """What the path names is not there. Tools compare these words."""
    return ApiError(404, "Object Not Found", "Not Found")


_BASIC: Final = {"WWW-Authenticate": 'Basic realm="mirrorlog", charset="UTF-8"'}
_NOT_THERE: Final = (
    NoSuchQueue,
    NoSuchGroup,
    NoSuchExchange,
    NoSuchUser,
    NoSuchPolicy,
    NoSuchBinding,
    NoSuchPermissions,
)
_LATER: Final = (Refused, UnsupportedVersion)
_OURS: Final = (ProtocolError, ConfigError, MissingDependency)


def error_of(error: MirrorlogError) -> ApiError:  # noqa: PLR0911  (one line per kind)
    """How RabbitMQ would answer it."""
    if isinstance(error, LoginFailed):
        return ApiError(401, "not_authorized", str(error), _BASIC)
    if isinstance(error, AccessRefused):
        return ApiError(401, "not_authorized", str(error))
    if isinstance(error, NoSuchVirtualHost):
        return ApiError(404, "not_found", "vhost_not_found")
    if isinstance(error, _NOT_THERE):
        return ApiError(404, "not_found", str(error))
    if isinstance(error, OutcomeUnknown) and not isinstance(error, RequestTimeout | InternalError):
        return ApiError(504, "outcome_unknown", str(error))
    if error.retriable or isinstance(error, _LATER):
        return ApiError(503, "service_unavailable", str(error))
    if isinstance(error, BadInput) and not isinstance(error, _OURS):
        return bad_request(str(error))
    return ApiError(500, "internal_error", str(error))


# --- Lists ----------------------------------------------------------------------------------------------------------


def shaped(rows: Sequence[Row], query: Query) -> list[Row] | Row:
    """A list as it was asked for: filtered by name, sorted, as a page, and with some columns only. Raises ApiError."""
    found = _named(rows, query)
    if by := query.get("sort"):
        found = sorted(found, key=lambda row: _order(_at(row, by.split("."))))
    if query.get("sort_reverse") == "true":
        found = found[::-1]
    if "page" not in query:
        if len(found) > ROWS_MAX:
            raise bad_request(f"{len(found)} rows are above the limit of {ROWS_MAX} of one answer; ask for pages")
        return columns(found, query)
    page, size = _page(query)
    pages = max(1, -(-len(found) // size))
    if page > pages:
        told = f"Page out of range, page: {page} page size: {size}, len: {len(found)}"
        raise ApiError(400, "page_out_of_range", told)
    some = found[(page - 1) * size : page * size]
    return {
        "total_count": len(rows),
        "item_count": len(some),
        "filtered_count": len(found),
        "page": page,
        "page_size": size,
        "page_count": pages,
        "items": columns(some, query),
    }


def columns(rows: Iterable[Row], query: Query) -> list[Row]:
    """Of each row those that were asked for, `a.b` of a row within; all where nothing was said."""
    if not (asked := query.get("columns")):
        return list(rows)
    paths = [name.split(".") for name in asked.split(",") if name]
    return [_some(row, paths) for row in rows]


def _some(row: Row, paths: list[list[str]]) -> Row:
    found: Row = {}
    for first, *rest in paths:
        if first in row:
            inner = row[first]
            if rest and isinstance(inner, dict):
                inner = {**found.get(first, {}), **_some(inner, [rest])}
            found[first] = inner
    return found


def _page(query: Query) -> tuple[int, int]:
    words = query["page"], query.get("page_size") or str(PAGE_SIZE)
    page, size = (int(word) if word.isascii() and word.isdigit() and len(word) < 10 else 0 for word in words)
    if not page or not 0 < size <= PAGE_SIZE_MAX:
        raise bad_request(f"Invalid pagination parameters: page number {words[0]:.80}, page size {words[1]:.80}")
    return page, size


def _named(rows: Sequence[Row], query: Query) -> list[Row]:
    name = query.get("name")
    if not name:
        return list(rows)
    matches = _searched(name) if query.get("use_regex", "").lower() == "true" else _contains(name)
    return [row for row in rows if matches(str(row.get("name", "")))]


def _contains(words: str) -> Callable[[str], bool]:
    sought = words.lower()
    return lambda name: sought in name.lower()


def _searched(expression: str) -> Callable[[str], bool]:
    """Raises ApiError for what is no expression, or could take long: each open repeat multiplies the ways in which it
    may be held against a name of 255 characters."""
    bare = re.sub(r"\\.|\[\^?\]?[^]]*\]", "x", expression)
    repeats = len(re.findall(r"[*+{]", bare))
    if len(expression) > _FILTER_CHARS_MAX or repeats > _REPEATS_MAX or re.search(r"\)[*+{]", bare) or "(?" in bare:
        raise bad_request(
            f"name {expression[:80]!r} could take too long to search for: up to {_REPEATS_MAX} repeats, and none of a "
            "group, are taken"
        )
    try:
        pattern = re.compile(expression, re.IGNORECASE)
    except re.error as error:
        raise bad_request(f"name {expression[:80]!r} is no regular expression: {error}") from None
    return lambda name: pattern.search(name) is not None


def _at(row: Any, path: list[str]) -> Any:
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row


def _order(value: Any) -> tuple[int, Any]:
    """What is not there first, then numbers, then texts."""
    if value is None:
        return 0, 0
    return (1, value) if isinstance(value, int | float) else (2, str(value))
