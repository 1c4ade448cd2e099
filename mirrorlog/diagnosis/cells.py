"""Numbers, names and times as text for people, in tables, findings and pages; and as people write them. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from mirrorlog.errors import BadInput

NOTHING: Final = "-"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHIFT: Final = re.compile(r"[+-][0-9]{1,18}")
_OFFSET: Final = re.compile(r"[0-9]{1,18}")
_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB")


def offset_text(offset: int) -> str:
    """A log or queue offset; none yet is -1 in messages."""
    return NOTHING if offset < 0 else str(offset)


def bytes_text(size: float) -> str:
    """A size for people: `512 B`, `1.5 KiB`."""
    if size < 1024:
        return f"{size:.0f} B"
    power = 0
    while size >= 1024 and power < len(_UNITS):
        size /= 1024
        power += 1
    return f"{size:.1f} {_UNITS[power - 1]}"


def ago_text(time_us: int | None, now_us: int) -> str:
    """How long ago, in seconds; clocks of two nodes may differ, so never negative."""
    return NOTHING if time_us is None else f"{max(0, now_us - time_us) / 1e6:.1f} s ago"


def age_text(age_ms: int) -> str:
    """`1.5 s`, `4.2 min`, `3.1 h`, `2.0 d`; nothing for 0, and for what is not told."""
    if age_ms <= 0:
        return NOTHING
    age_s = age_ms / 1000
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if age_s >= seconds:
            return f"{age_s / seconds:.1f} {unit}"
    return f"{age_s:.1f} s"


def time_text(time_us: int) -> str:
    """µs UTC as ISO 8601 with milliseconds; beyond what a calendar has, the number."""
    try:
        moment = datetime.fromtimestamp(time_us / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_us} µs"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def printable(text: str) -> str:
    """What would break a line, or move a terminal's cursor, is escaped."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


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


def target_of(text: str) -> dict[str, Any]:
    """What `group-reset --to` and the page say, as options of `Admin.reset_groups`. Raises BadInput. Pure."""
    if text in ("earliest", "latest"):
        return {"to": text}
    if _SHIFT.fullmatch(text):
        return {"shift": int(text)}
    if _OFFSET.fullmatch(text):
        return {"to": int(text)}
    return {"to": _EPOCH + timedelta(microseconds=parse_time(text))}
