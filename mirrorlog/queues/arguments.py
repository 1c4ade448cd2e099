"""What a queue may be declared with: the names, what each takes, and what it means to whoever asks. Pure.

An argument that means nothing here is refused, or its owner would believe in it. A log may hold some, of any shape,
that an older version took: whoever reads them passes over what does not fit.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from mirrorlog import versions
from mirrorlog.commitlog.retention import QueueLimits
from mirrorlog.errors import BadRequest

ARGUMENTS_MAX: Final = 100
DEPTH_MAX: Final = 8

TIER_KEEP_MS: Final = 3_600_000
"""How long a tiered queue keeps in the log what is landed, by default: an hour, since most readers are not further
behind, and the log serves them faster than a table."""

DELIVERY_LIMIT_MAX: Final = 254
"""Attempts are counted up to one more."""

_NUMBER_MAX: Final = 2**63 - 1
_TIMEOUT_MS_MAX: Final = 366 * 24 * 3600 * 1000


class _Number(NamedTuple):
    """A whole number from `least` to `most`; `or_else`: what -1 stands for, if it is allowed."""

    least: int
    most: int
    or_else: str = ""


_RETENTION: Final = "retention"
_TIER_KEEP: Final = "tier_keep_ms"
_LIMITS: Final = ("retention_ms", "retention_bytes")
_SINGLE_ACTIVE: Final = "x-single-active-consumer"
_CONSUMER_TIMEOUT: Final = "x-consumer-timeout"
_DELIVERY_LIMIT: Final = "x-delivery-limit"

_CHOICES: Final[Mapping[str, tuple[str, str]]] = {"flush": ("memory", "disk"), _RETENTION: ("limits", "work")}
_NUMBERS: Final[Mapping[str, _Number]] = {
    "copies": _Number(1, 255),
    **dict.fromkeys(_LIMITS, _Number(1, _NUMBER_MAX, "that of the log")),
    _TIER_KEEP: _Number(0, _NUMBER_MAX // 1000),
    _CONSUMER_TIMEOUT: _Number(1, _TIMEOUT_MS_MAX),
    _DELIVERY_LIMIT: _Number(0, DELIVERY_LIMIT_MAX, "no limit"),
}
_FLAGS: Final = (_SINGLE_ACTIVE,)
_KNOWN: Final = ("flush", "copies", *_LIMITS, _TIER_KEEP, _RETENTION, *_FLAGS, _CONSUMER_TIMEOUT, _DELIVERY_LIMIT)

_WITH_GROUPS: Final = frozenset({_SINGLE_ACTIVE, _CONSUMER_TIMEOUT, _DELIVERY_LIMIT})

# What an error repeats of a name or a value that somebody else chose.
_SHOWN_CHARS: Final = 80


def check_shape(arguments: Mapping[str, Any]) -> None:
    """What every node and every format can carry, nested a little. Deeper ones would be stored by one decoder and
    refused by another, and then copies differ. Raises BadRequest."""
    if len(arguments) > ARGUMENTS_MAX:
        raise BadRequest(f"{len(arguments)} arguments are above the limit of {ARGUMENTS_MAX}")
    for key, value in arguments.items():
        if not _is_plain(value, DEPTH_MAX):
            raise BadRequest(
                f"argument {_shown(key)} is no number, text, bytes or flag, nor lists or tables of these, "
                f"nested at most {DEPTH_MAX} deep"
            )


def check_names(arguments: Iterable[str], *, known: Container[str]) -> None:
    """`known`: what the queue has already, perhaps from a version that kept whatever it was given. Raises
    BadRequest."""
    for key in arguments:
        if key in _KNOWN or key in known:
            continue
        there_are = f"there are {', '.join(_KNOWN)}"
        if key.startswith("x-"):
            raise BadRequest(f"argument {_shown(key)} is not known yet, as not all x-… of RabbitMQ's are; {there_are}")
        near = get_close_matches(key[:_SHOWN_CHARS], _KNOWN, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise BadRequest(f"argument {_shown(key)} is not known; {there_are}{meant}")


def check_values(arguments: Mapping[str, Any]) -> None:
    """Raises BadRequest for a value that its argument does not take."""
    for key, value in arguments.items():
        if key in _CHOICES and value not in _CHOICES[key]:
            one, other = _CHOICES[key]
            raise BadRequest(f"argument {key!r} is {_shown(value)}, it must be {one!r} or {other!r}")
        if key in _NUMBERS:
            _check_number(key, value, _NUMBERS[key])
        if key in _FLAGS and type(value) is not bool:
            raise BadRequest(f"argument {key!r} is {_shown(value)}, it must be true or false")


def version_needed(arguments: Mapping[str, Any]) -> int:
    """At which version a cluster has to run for a queue with these arguments: a master of the software before would not
    keep what they say."""
    needs = arguments.get(_RETENTION) == "work" or not _WITH_GROUPS.isdisjoint(arguments)
    return versions.GROUPS if needs else versions.FIRST


def is_work(arguments: Mapping[str, Any]) -> bool:
    """Whether the queue keeps what is not settled, and nothing else."""
    return arguments.get(_RETENTION) == "work"


def limits_of(arguments: Mapping[str, Any]) -> QueueLimits | None:
    """A queue's own retention; None when it has none."""
    age_ms, size = (
        limit if type(limit := arguments.get(key)) is int and 1 <= limit <= _NUMBER_MAX else None for key in _LIMITS
    )
    if age_ms is None and size is None:
        return None
    return QueueLimits(max_age_us=None if age_ms is None else age_ms * 1000, max_bytes=size)


def tier_keep_us(arguments: Mapping[str, Any]) -> int:
    """How old what is landed has to be before it may go from the log early (µs)."""
    keep = arguments.get(_TIER_KEEP)
    return 1000 * (keep if type(keep) is int and 0 <= keep <= _NUMBER_MAX // 1000 else TIER_KEEP_MS)


def _check_number(key: str, value: object, allowed: _Number) -> None:
    # A flag is an int to Python, and to nobody else.
    if type(value) is int and (allowed.least <= value <= allowed.most or (value == -1 and allowed.or_else)):
        return
    numbers = f"from {allowed.least} to {allowed.most}" + (f", or -1 for {allowed.or_else}" if allowed.or_else else "")
    raise BadRequest(f"argument {key!r} is {_shown(value)}, it must be a whole number {numbers}")


def _is_plain(value: object, depth: int) -> bool:
    if value is None or isinstance(value, str | bytes | int | float | bool):
        return True
    if depth == 0:
        return False
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each, depth - 1) for key, each in value.items())
    return isinstance(value, list | tuple) and all(_is_plain(each, depth - 1) for each in value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"
