"""The form of a policy: a field for each key, with the type of its values; and what a filled form says. Pure.

Whether a value makes sense the nodes decide, and name all that does not. `tests` compare the keys with theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorlog.doors.management.shapes import bad_request
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.policies import PolicyRow

TEXT: Final = "text"
NUMBER: Final = "number"
CHOICE: Final = "choice"
MANY: Final = "number or list"
LEVEL: Final = "level or number"
FIELD: Final = "key:"
"""What a key's field is called begins with it."""
_LENGTH_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class PolicyField:
    """`kind`: of its values; `choices`: all there are; `unit`: of a number."""

    key: str
    kind: str
    choices: tuple[str, ...] = ()
    unit: str = ""


FIELDS: Final = (
    PolicyField("ha-mode", CHOICE, ("all", "exactly", "nodes")),
    PolicyField("ha-params", MANY),
    PolicyField("ha-sync-mode", CHOICE, ("automatic", "manual")),
    PolicyField("ha-sync-batch-size", NUMBER),
    PolicyField("ha-promote-on-shutdown", CHOICE, ("when-synced", "always")),
    PolicyField("ha-promote-on-failure", CHOICE, ("when-synced", "always")),
    PolicyField("queue-master-locator", CHOICE, ("min-masters", "client-local", "random")),
    PolicyField("message-ttl", NUMBER, unit="ms"),
    PolicyField("expires", NUMBER, unit="ms"),
    PolicyField("max-length", NUMBER, unit="records"),
    PolicyField("max-length-bytes", NUMBER, unit="bytes"),
    PolicyField("overflow", CHOICE, ("drop-head", "reject-publish", "reject-publish-dlx")),
    PolicyField("dead-letter-exchange", TEXT),
    PolicyField("dead-letter-routing-key", TEXT),
    PolicyField("delivery-limit", NUMBER),
    PolicyField("alternate-exchange", TEXT),
    PolicyField("flush", CHOICE, ("memory", "disk")),
    PolicyField("retention", CHOICE, ("limits", "work")),
    PolicyField("min-in-sync", NUMBER),
    PolicyField("replace-after-ms", NUMBER, unit="ms"),
    PolicyField("confirm", LEVEL),
    PolicyField("mirror-topology", CHOICE, ("star", "auto")),
)


def definition_of(form: Callable[[str], str]) -> dict[str, Any]:
    """What the fields say that are not empty; `form`: the value of a field. Raises ApiError."""
    found: dict[str, Any] = {}
    for each in FIELDS:
        words = form(FIELD + each.key)
        if words.strip():
            found[each.key] = value_of(each, words)
    return found


def value_of(field: PolicyField, words: str) -> Any:
    """Raises ApiError for what is none of its kind."""
    if field.kind == NUMBER:
        return _number(field.key, words.strip())
    if field.kind == MANY:
        names = [each.strip() for each in words.split(",") if each.strip()]
        return _number(field.key, names[0]) if len(names) == 1 and _is_number(names[0]) else names
    if field.kind == LEVEL and _is_number(words.strip()):
        return int(words)
    return words.strip() if field.kind in (CHOICE, LEVEL) else words


def _is_number(words: str) -> bool:
    bare = words.removeprefix("-")
    return bare.isascii() and bare.isdigit() and len(bare) < _LENGTH_MAX


def _number(key: str, words: str) -> int:
    if not _is_number(words):
        raise bad_request(f"{key} {words[:40]!r} is no number")
    return int(words)


def text_of(value: Any) -> str:
    """How a value stands in its field; empty for none."""
    if value is None:
        return ""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def typed_of(row: PolicyRow | None) -> dict[str, str]:
    """A policy as its form would send it; without one a form that is not filled yet."""
    if row is None:
        return {"vhost": DEFAULT_VIRTUAL_HOST, "apply-to": "all", "priority": "0"}
    policy = row.policy
    return {
        "policy": row.name,
        "vhost": row.virtual_host,
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "priority": str(policy.priority),
        "operator": "yes" if row.operator else "",
        **{FIELD + each.key: text_of(policy.definition.get(each.key)) for each in FIELDS},
    }


def body_of(form: Callable[[str], str]) -> Mapping[str, Any]:
    """As the API takes it. Raises ApiError."""
    body: dict[str, Any] = {
        "pattern": form("pattern"),
        "apply-to": form("apply-to") or "all",
        "definition": definition_of(form),
    }
    if form("priority").strip():
        body["priority"] = _number("priority", form("priority").strip())
    return body
