"""What a user types, as values: `name=value` pairs and points in time. Everything else is a BadInput that says how."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from mirrorlog.errors import BadInput

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_pair(text: str, option: str) -> tuple[str, str]:
    """`name=value`; the value may be empty and may hold `=`. Raises BadInput."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadInput(f"{option} {text!r}: write name=value")
    return name, value


def parse_arguments(pairs: Sequence[str]) -> dict[str, Any]:
    """A queue's arguments: a value that is JSON (a number, true, null, …) is taken as such, any other as text.

    Raises BadInput, for a name given twice too.
    """
    arguments: dict[str, Any] = {}
    for text in pairs:
        name, value = parse_pair(text, "--arg")
        if name in arguments:
            raise BadInput(f"--arg {name} is given twice")
        try:
            arguments[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            arguments[name] = value
    return arguments


def parse_time(text: str) -> int:
    """ISO 8601 as µs UTC; without a zone it is UTC. Raises BadInput."""
    try:
        if text.isdigit():
            raise ValueError
        moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadInput(f"{text!r} is no time; write it like 2026-11-21 or 2026-11-21T10:15:00Z (UTC)") from None
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
