"""Pages through which something is done: records are looked at, groups reset, queues moved, policies written.

Each says first what would come of it, and its form sends just that: a reset sends the offsets that its dry run has
shown. Records are read as a stream: nothing is consumed, counted or reordered, and nobody gets one later for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from mirrorlog.client import ConsumedRecord
from mirrorlog.diagnosis.cells import parse_time, printable, target_of
from mirrorlog.diagnosis.places import altered_text
from mirrorlog.doors.management.calls import Call
from mirrorlog.doors.management.connections import connections_of
from mirrorlog.doors.management.page.actions import placing_of
from mirrorlog.doors.management.page.policy_form import FIELD, FIELDS, NUMBER, typed_of
from mirrorlog.doors.management.page.views import Context, View, command_of, groups_in_time, number_of, seen
from mirrorlog.doors.management.queues import consumed, consumer_rows
from mirrorlog.doors.management.shapes import ApiError, bad_request
from mirrorlog.errors import AccessRefused, BadInput, MirrorlogError
from mirrorlog.wire.messages.operators import CopyMoves
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.names import split
from mirrorlog.wire.policies import APPLY_TO, PolicyRow

BROWSED_MAX: Final = 100
BROWSED_BYTES_MAX: Final = 1024 * 1024
"""Of values on one page; one more record may be on it."""
VALUE_BYTES_SHOWN: Final = 2048
CONSUMED_SHOWN: Final = 200
"""Queues whose consumers are asked for, and how many of these are shown."""
CONSUMERS_SHOWN: Final = 500
CONNECTIONS_ASKED: Final = 1_000
"""Of each node, and how many of these are shown."""
CONNECTIONS_SHOWN: Final = 200
_BROWSED: Final = 20
_BROWSE_S: Final = 8.0
_FETCH_BYTES: Final = 1024 * 1024
_OWN_GROUP: Final = ""
_EVERY: Final = "*"


# --- Browsing -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ShownBytes:
    """Bytes for people. `kind`: text, hex or none; `cut`: how many there are besides."""

    kind: str
    text: str
    cut: int = 0


def shown_bytes(value: bytes | None, limit: int = VALUE_BYTES_SHOWN) -> ShownBytes:
    """Text where it is UTF-8 that can be read, else in hexadecimal; of long ones the beginning. Pure."""
    if value is None:
        return ShownBytes("none", "")
    part = value[:limit]
    try:
        # A character that the limit has cut is none of the value's fault.
        text = part.decode() if len(part) == len(value) else part.decode(errors="ignore")
        readable = "\0" not in text and (len(part) == len(value) or len(text.encode()) > len(part) - 4)
    except UnicodeDecodeError:
        readable, text = False, ""
    if readable:
        return ShownBytes("text", "".join(c if c in "\n\t" else printable(c) for c in text), len(value) - len(part))
    return ShownBytes("hex", part[: limit // 2].hex(" ", 4), max(0, len(value) - limit // 2))


async def _browse(call: Call) -> Context:
    info = await _there(call)
    groups = await groups_in_time(call, info.name)
    own = next((group for group in groups or () if group.group == _OWN_GROUP and group.kind == "acking"), None)
    given = call.query.get("start", "").strip()
    first = max(info.begin, own.floor if own is not None else 0)
    start = await _start(call, info, given) if given else first
    count = number_of(call, "count", _BROWSED, least=1, most=BROWSED_MAX)
    records = await _read(call, info, start, count)
    return {
        "vhost": call.vhost,
        "name": call.names["queue"],
        "info": info,
        "start": start,
        "count": count,
        "rows": [_record_row(each) for each in records],
        "following": records[-1].queue_offset + 1 if records else None,
        "command": f"{command_of('browse', call.vhost, call.names['queue'])} --from {start}",
    }


async def _start(call: Call, info: QueueInfo, given: str) -> int:
    if given.isascii() and given.isdigit() and len(given) < 19:
        return max(info.begin, int(given))
    try:
        return await call.client.admin.find_offset(info.name, parse_time(given))
    except BadInput as error:
        raise bad_request(error.message) from None


async def _read(call: Call, info: QueueInfo, start: int, count: int) -> list[ConsumedRecord]:
    found: list[ConsumedRecord] = []
    size = 0
    if start >= info.next:
        return found
    try:
        async with (
            asyncio.timeout(_BROWSE_S),
            call.client.consumer(
                info.name,
                start=start,
                until=info.next,
                max_bytes=_FETCH_BYTES,
                outage_timeout_ms=call.client.request_timeout_ms,
            ) as consumer,
            aclosing(aiter(consumer)) as records,  # type: ignore[type-var]
        ):
            async for record in records:
                found.append(record)
                size += len(record.value or b"")
                if len(found) >= count or size >= BROWSED_BYTES_MAX:
                    break
    except TimeoutError:
        pass  # what has come is shown
    return found


def _record_row(record: ConsumedRecord) -> Context:
    return {
        "offset": record.queue_offset,
        "key": shown_bytes(record.key, 256),
        "value": shown_bytes(record.value),
        "size": len(record.value or b""),
        "time_us": record.timestamp if record.timestamp is not None else record.append_time_us,
        "headers": [(printable(name), shown_bytes(value, 256)) for name, value in record.headers],
        "priority": record.priority,
    }


async def _there(call: Call) -> QueueInfo:
    """The queue that is named. Raises ApiError, and why nobody can answer for it."""
    info = await call.described()
    if not isinstance(info, QueueInfo):
        raise ApiError(503, "service_unavailable", info.reason)
    return info


# --- Resets and moves -----------------------------------------------------------------------------------------------


async def _reset(call: Call) -> Context:
    """Without a place to go to, only the form."""
    info = await _there(call)
    groups = (await call.client.admin.groups(info.name)).groups
    to, group = call.query.get("to", "").strip(), call.query.get("group", _EVERY)
    found = None
    if to:
        try:
            target = target_of(to)
        except BadInput as error:
            raise bad_request(error.message) from None
        named = None if group == _EVERY else [group]
        found = await call.client.admin.reset_groups(info.name, named, dry_run=True, **target)
    return {
        "vhost": call.vhost,
        "name": call.names["queue"],
        "groups": groups,
        "group": group,
        "every": _EVERY,
        "to": to,
        "found": found,
        "command": command_of("reset", call.vhost, call.names["queue"]),
    }


async def _move(call: Call) -> Context:
    """What would be done."""
    asked = placing_of(lambda name: call.query.get(name, ""))
    found = await call.client.admin.alter(call.queue, asked, dry_run=True)
    changes = "".join(f" --arg {name}={','.join(value) if isinstance(value, list) else value}"
                      for name, value in asked.items())  # fmt: skip
    return {
        "vhost": call.vhost,
        "name": call.names["queue"],
        "text": altered_text(found),
        "does": found.moves or found.copies_change,
        "leaves": found.left_records,
        "command": command_of("move", call.vhost, call.names["queue"]) + changes,
    }


async def _moves(call: Call) -> Context:
    """Of queues, and of whole logs, which administrators alone may hear of."""
    found = await seen(call)
    copy_moves: CopyMoves | None = None
    reason = ""
    try:
        copy_moves = await call.client.admin.copy_moves()
    except AccessRefused as error:
        # Each question that is refused is counted as one: it is not put every other second.
        return {"moves": found.moves, "copy_moves": None, "reason": error.message, "still": True}
    except MirrorlogError as error:
        reason = error.message
    return {"moves": found.moves, "copy_moves": copy_moves, "reason": reason}


# --- Consumers ------------------------------------------------------------------------------------------------------


async def _consumers(call: Call) -> Context:
    """Each queue's groups are asked for, so it is not live, and of the first queues alone."""
    metadata, statuses = await asyncio.gather(call.client.metadata(None), call.statuses())
    vhost = call.query.get("vhost", "")
    taken = [each for each in consumed(metadata.queues, statuses) if vhost in ("", split(each.name)[0])]
    rows = await consumer_rows(call, taken[:CONSUMED_SHOWN])
    return {
        "rows": sorted(rows, key=lambda row: -row["messages_unacknowledged"])[:CONSUMERS_SHOWN],
        "count": len(rows),
        "queues": len(taken),
        "asked": min(len(taken), CONSUMED_SHOWN),
        "vhosts": sorted({split(each.name)[0] for each in metadata.queues}),
        "producers": [
            (log.name, each) for told in statuses.told for log in told.logs for each in log.producers if each.blocked_by
        ],
    }


async def _connections(call: Call) -> Context:
    """`q`: a part of its name, its user or its client; `node`. Not live: nobody who types a reason is disturbed."""
    found, statuses = await asyncio.gather(connections_of(call, most=CONNECTIONS_ASKED), call.statuses())
    sought, node = call.query.get("q", "").lower(), call.query.get("node", "")
    rows = [
        row
        for row in found.rows
        if node in ("", row.node) and any(sought in each.lower() for each in (row.name, row.user, row.client))
    ]
    counts = [(each.node_id, each.counts) for each in statuses.told if each.counts is not None]
    return {
        "rows": rows[:CONNECTIONS_SHOWN],
        "count": len(rows),
        "more": found.more,
        "untold": list(found.untold.items()),
        "nodes": [(node, each.open, each.strangers, each.capped) for node, each in sorted(counts)],
    }


# --- Policies -------------------------------------------------------------------------------------------------------


async def _policies(call: Call) -> Context:
    """`edit`, `of`: a policy with which the form is filled; `do`: a form that was refused, whose values stand there."""
    found, vhosts = await call.policies(), await call.client.admin.topology.virtual_hosts()
    rows = sorted(
        found, key=lambda row: (not row.reason, row.operator, row.virtual_host, -row.policy.priority, row.name)
    )
    typed = call.query if "do" in call.query else typed_of(_edited(rows, call.query))
    return {
        "rows": rows,
        "vhosts": sorted(each.name for each in vhosts),
        "apply_to": APPLY_TO,
        "typed": typed,
        "fields": [(each, typed.get(FIELD + each.key, "")) for each in FIELDS],
        "number": NUMBER,
    }


def _edited(rows: list[PolicyRow], query: Mapping[str, str]) -> PolicyRow | None:
    sought = query.get("of", "/"), query.get("edit", ""), query.get("operator", "") == "1"
    return next((row for row in rows if (row.virtual_host, row.name, row.operator) == sought), None)


VIEWS: Final[Mapping[str, View]] = {
    "browse": View("browse.html", _browse, live=False),
    "reset": View("reset.html", _reset, live=False),
    "move": View("move.html", _move, live=False),
    "moves": View("moves.html", _moves),
    "consumers": View("consumers.html", _consumers, live=False),
    "connections": View("connections.html", _connections, live=False),
    "policies": View("policies.html", _policies, live=False),
}
"""By path."""
