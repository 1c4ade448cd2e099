"""Letters: what of a record is sent out when it leaves its queue, and whether it may come to another one.

A letter is its record, with headers in front that tell how it died, by RabbitMQ's names:

    x-death              JSON, a list of tables, the newest first, one for each (queue, reason): queue, reason, count,
                         time (ms UTC, of the first), exchange, routing-keys
    x-first-death-queue, x-first-death-reason, x-first-death-exchange

A record that is sent back to where it died goes without them. It is a function of the record and of what the log says
of its departure: whoever sends it again sends the same bytes. What a record was published to is not known of it, so
`exchange` is empty, and `routing-keys` has its key.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mirrorlog.commitlog.body import Header, Record
from mirrorlog.queues.departures import REDRIVEN, REJECTED

DEATHS: Final = "x-death"
FIRST: Final = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
DEATHS_MAX: Final = 64
"""Tables of one record; the oldest are forgotten."""
_DEATHS_BYTES_MAX: Final = 64 * 1024
"""Of the header, that anybody may have written: more is not read."""


class Death(NamedTuple):
    """`queue`: its name within the virtual host; `reason`: see `queues.departures`; `at_us`: µs UTC."""

    queue: str
    reason: str
    at_us: int


def letter(record: Record, death: Death) -> Record:
    """What is sent out."""
    others = [header for header in record.headers if header[0] not in (DEATHS, *FIRST)]
    if death.reason == REDRIVEN:
        return record._replace(headers=others)
    return record._replace(headers=[*_told(record, death), *others])


def deaths_of(record: Record) -> list[dict[str, Any]]:
    """What it says of how it died, the newest first; nothing where that makes no sense."""
    told = next((value for name, value in record.headers if name == DEATHS), None)
    if told is None or len(told) > _DEATHS_BYTES_MAX:
        return []
    try:
        found = json.loads(told)
    except (ValueError, RecursionError):
        return []
    return [each for each in found if _is_death(each)][:DEATHS_MAX] if isinstance(found, list) else []


def died_in(record: Record) -> str | None:
    """The queue that it died in last; None when it says nothing of that."""
    there = deaths_of(record)
    return there[0]["queue"] if there else None


def is_cycle(record: Record, death: Death, queue: str) -> bool:
    """Whether it comes to a queue again that it has died in, and nobody has rejected it since: it would for ever."""
    for each in _deaths(record, death) if death.reason != REDRIVEN else ():
        if each["reason"] == REJECTED:
            return False
        if each["queue"] == queue:
            return True
    return False


def routing_key_of(record: Record) -> str:
    """Its own."""
    return (record.key or b"").decode(errors="replace")


def size_of(record: Record) -> int:
    """Bytes of it, about."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers


def _told(record: Record, death: Death) -> list[Header]:
    there = _deaths(record, death)
    known: Mapping[str, bytes | None] = {name: value for name, value in record.headers if name in FIRST}
    first = dict(zip(FIRST, (death.queue.encode(), death.reason.encode(), b""), strict=True))
    text = json.dumps(there, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return [(DEATHS, text.encode(errors="replace")), *((name, known.get(name, first[name])) for name in FIRST)]


def _deaths(record: Record, death: Death) -> Sequence[dict[str, Any]]:
    """With the one that it dies now."""
    there = deaths_of(record)
    same = [each for each in there if (each["queue"], each["reason"]) == (death.queue, death.reason)]
    others = [each for each in there if each not in same]
    newest = {
        "queue": death.queue,
        "reason": death.reason,
        "count": 1 + sum(each["count"] for each in same),
        "time": same[0]["time"] if same else death.at_us // 1000,
        "exchange": "",
        "routing-keys": [routing_key_of(record)],
    }
    return [newest, *others][:DEATHS_MAX]


def _is_death(told: object) -> bool:
    return (
        isinstance(told, dict)
        and isinstance(told.get("queue"), str)
        and isinstance(told.get("reason"), str)
        and all(type(told.get(name)) is int for name in ("count", "time"))
        and abs(told["count"]) < 1 << 53
    )
