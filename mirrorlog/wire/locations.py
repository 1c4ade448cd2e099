"""Locations of tables, and lists of the places where they may be: of a node, for what a landing names; of a client, for
what it follows. Pure.

A place is a directory or a URL that ends with a segment: what is below it is within, `/lake2` is not within `/lake`.
Both are compared in one spelling. What libraries of storage would read in two ways is within nothing: `..` and `.`,
also with their dots escaped, backslashes, control characters, queries, a path that begins nowhere. Links in a file
system are not looked at: whoever may write below a place may lead out of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote

from mirrorlog.errors import BadRequest

LOCATION_CHARS_MAX: Final = 4_096
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?", re.DOTALL)
_READ_IN_TWO_WAYS: Final = re.compile(r"[\x00-\x1f\x7f\\?#]")


def check_place(place: str) -> str:
    """The place, if something can be within it. Raises BadRequest."""
    if _segments(place) is None:
        raise BadRequest(
            f"{place[:80]!r} is no place of tables: give an absolute path or a URL, e.g. /lake or s3://bucket/lake, "
            "without '..'"
        )
    return place


def is_within(location: str, places: Iterable[str]) -> bool:
    """Whether it is one of the places, or below one."""
    return any(below(location, place) is not None for place in places)


def below(location: str, place: str) -> str | None:
    """What is left of a location behind the place that it is within, with a slash before it; None when it is not."""
    inner, outer = _segments(location), _segments(place)
    if inner is None or outer is None or inner[: len(outer)] != outer:
        return None
    return "".join(f"/{each}" for each in inner[len(outer) :])


def _segments(location: str) -> list[str] | None:
    """Scheme and host, then the path's segments; None for what could mean another place than it says."""
    if len(location) > LOCATION_CHARS_MAX or _READ_IN_TWO_WAYS.search(location):
        return None
    location = location.removeprefix("delta://")
    found = _URL.fullmatch(location)
    if found is not None:
        scheme, host, path = found[1].lower(), found[2] or "", found[3] or ""
        if not host and scheme != "file":
            return None
    else:
        scheme, host, path = "file", "", location
        if not path.startswith("/"):
            return None
    segments = [each for each in path.split("/") if each]
    if any(_moves(each) for each in segments):
        return None
    return [f"{scheme}://{host}", *segments]


def _moves(segment: str) -> bool:
    plain = unquote(segment)
    if plain.strip() in (".", "..") or "/" in plain or _READ_IN_TWO_WAYS.search(plain):
        return True
    return plain != segment and unquote(plain) != plain  # escaped twice
