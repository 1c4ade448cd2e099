"""Dead letters: what of a record is sent out when it leaves its queue, and whether it may come to another one.

A dead letter is its record, with headers in front that tell how it died, by RabbitMQ's names:

    x-death              JSON, a list of tables, the newest first, one for each (queue, reason): queue, reason, count,
                         time (ms UTC, of the first), exchange, routing-keys; forgotten, in the oldest one
    x-first-death-queue, x-first-death-reason, x-first-death-exchange

A record that is sent back to where it died goes without them. It is a function of the record and of what the log says
of its forwarding: whoever sends it again sends the same bytes. What a record was published to is not known of it, so
`exchange` is empty, and `routing-keys` has its key, as much of it as a routing key may have.

What is written here can be read here: tables that do not fit are forgotten, the oldest first, and the oldest that stays
says how many. For who goes in a circle is known by these tables, and a record that would go round for ever must end:
it comes to no queue that they tell, and to none at all when they have forgotten too much.

Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from mirrorlog.commitlog.format.body import Header, Record
from mirrorlog.queues.dead_letters.forwarding import REDRIVEN, REJECTED
from mirrorlog.wire.names import NAME_CHARS_MAX

DEATHS: Final = "x-death"
FIRST: Final = ("x-first-death-queue", "x-first-death-reason", "x-first-death-exchange")
DEATHS_MAX: Final = 64
"""Tables of one record; the oldest are forgotten. So often it may die with nobody rejecting it, too."""
_DEATHS_BYTES_MAX: Final = 64 * 1024
"""Of the header, that anybody may have written: more is not read, nor written."""
_BRACKETS_BYTES: Final = 64
"""Of the header, beside its tables: brackets, and what says how many are forgotten."""
ADDED_BYTES_MAX: Final = 5 * 1024
"""That a dead letter which tells of one death is larger than its record: the queue's name twice and a routing key, of
255 characters of up to 6 bytes in JSON each, names of headers, and a column of headers where its batch had none."""
_COUNT_MAX: Final = (1 << 53) - 1
_FORGOTTEN: Final = "forgotten"


class Death(NamedTuple):
    """`queue`: its name within the virtual host; `reason`: see `dead_letters.forwarding`; `at_us`: µs UTC."""

    queue: str
    reason: str
    at_us: int


class Circle(NamedTuple):
    """What a record may not come to, for it would go round for ever: queues, or any (`whole`)."""

    queues: frozenset[str]
    whole: bool

    def has(self, queue: str) -> bool:
        return self.whole or queue in self.queues


def dead_letter(record: Record, death: Death, *, tables_max: int = DEATHS_MAX) -> Record:
    """What is sent out. With fewer tables it is smaller, and less of a circle is seen; with none of them it says
    nothing of having died, and no circle is seen at all."""
    others = [header for header in record.headers if header[0] not in (DEATHS, *FIRST)]
    if death.reason == REDRIVEN or not tables_max:
        return record._replace(headers=others)
    return record._replace(headers=[*_told(record, death, tables_max), *others])


def deaths_of(record: Record) -> list[dict[str, Any]]:
    """What it says of how it died, the newest first; nothing where that makes no sense."""
    told = next((value for name, value in record.headers if name == DEATHS), None)
    if told is None or len(told) > _DEATHS_BYTES_MAX:
        return []
    try:
        found = json.loads(told, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return []
    return [each for each in found if _is_death(each)][:DEATHS_MAX] if isinstance(found, list) else []


def died_in(record: Record) -> str | None:
    """The queue that it died in last; None when it says nothing of that."""
    there = deaths_of(record)
    return there[0]["queue"] if there else None


def circle(record: Record, death: Death) -> Circle:
    """The queues that it has died in, this time too, since somebody rejected it last."""
    queues, times = set[str](), 0
    for each in _deaths(record, death) if death.reason != REDRIVEN else ():
        if each["reason"] == REJECTED:
            break
        queues.add(each["queue"])
        times += 1 + _forgotten(each)
    return Circle(frozenset(queues), times > DEATHS_MAX)


def routing_key_of(record: Record) -> str:
    """Its own."""
    return (record.key or b"").decode(errors="replace")


def size_of(record: Record) -> int:
    """Bytes of it, about."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers


def _told(record: Record, death: Death, tables_max: int) -> list[Header]:
    known: Mapping[str, bytes | None] = {name: value for name, value in record.headers if name in FIRST}
    first = dict(zip(FIRST, (death.queue.encode(), death.reason.encode(), b""), strict=True))
    there = _kept(_deaths(record, death), min(tables_max, DEATHS_MAX))
    text = b"[" + b",".join(_encoded(each) for each in there) + b"]"
    return [(DEATHS, text), *((name, known.get(name, first[name])) for name in FIRST)]


def _deaths(record: Record, death: Death) -> list[dict[str, Any]]:
    """With the one that it dies now."""
    there = deaths_of(record)
    same = [each for each in there if (each["queue"], each["reason"]) == (death.queue, death.reason)]
    others = [each for each in there if (each["queue"], each["reason"]) != (death.queue, death.reason)]
    newest = {
        "queue": death.queue,
        "reason": death.reason,
        "count": min(1 + sum(each["count"] for each in same), _COUNT_MAX),
        "time": same[0]["time"] if same else min(death.at_us // 1000, _COUNT_MAX),
        "exchange": "",
        "routing-keys": [routing_key_of(record)[:NAME_CHARS_MAX]],
    }
    return [newest, *others]


def _kept(tables: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The newest of them, so many at most, one at least, and as many as can be read again."""
    size, count = _BRACKETS_BYTES, 0
    for each in tables[:most]:
        size += len(_encoded(each)) + 1
        if count and size > _DEATHS_BYTES_MAX:
            break
        count += 1
    *newer, oldest = tables[:count]
    forgotten = _forgotten(oldest)
    for each in tables[count:]:
        if each["reason"] == REJECTED:
            break
        forgotten += 1 + _forgotten(each)
    bare = {name: value for name, value in oldest.items() if name != _FORGOTTEN}
    return [*newer, bare | {_FORGOTTEN: min(forgotten, _COUNT_MAX)} if forgotten else bare]


def _encoded(table: dict[str, Any]) -> bytes:
    return json.dumps(table, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode(errors="replace")


def _forgotten(table: dict[str, Any]) -> int:
    """How many older ones it stands for."""
    told = table.get(_FORGOTTEN, 0)
    return told if type(told) is int and 0 < told <= _COUNT_MAX else 0


def _no_number(name: str) -> object:
    """Python writes them and reads them, JSON knows none. Raises ValueError."""
    raise ValueError(f"{name} is no number")


def _is_death(told: object) -> bool:
    return (
        isinstance(told, dict)
        and isinstance(told.get("queue"), str)
        and isinstance(told.get("reason"), str)
        and all(type(told.get(name)) is int and 0 <= told[name] <= _COUNT_MAX for name in ("count", "time"))
    )
