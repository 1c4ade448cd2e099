"""What each page is made of: asked of the cluster by the login of who looks, and handed to its template.

The lists are those of the management API and of `mqtool`, and so are the rights: what a login is refused is not on its
pages, or stands there with the reason. What all nodes say of themselves is asked once a second at most for each login,
as for the API. Nothing here changes anything: that is in `actions`.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from mirrorlog.diagnosis.advice import STOPS, Diagnosis
from mirrorlog.diagnosis.cluster_status import (
    AllStatuses,
    authorities,
    newest_view,
    put_together,
    role_of,
    syncs_of,
    warnings,
)
from mirrorlog.diagnosis.facts import facts_of
from mirrorlog.diagnosis.findings import Facts, findings
from mirrorlog.diagnosis.places import sync_text
from mirrorlog.doors.http.answers import DEADLINE_MS
from mirrorlog.doors.http.lists import copy_of
from mirrorlog.doors.management.calls import Call, ClusterStatuses
from mirrorlog.doors.management.page.model import (
    QueueLine,
    Reason,
    Reasons,
    log_axis,
    outage_line,
    queue_axis,
    queue_line,
    red_first,
)
from mirrorlog.doors.management.queues import groups_of, own_numbers
from mirrorlog.doors.management.shapes import bad_request
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.groups import GroupInfo
from mirrorlog.wire.messages.queues import Metadata, MovesFound, QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import LogStatus, PlacedLog, Status
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, split

QUEUES_A_PAGE: Final = 100
LOGS_SHOWN: Final = 100
FINDINGS_SHOWN: Final = 500
REDS_SHOWN: Final = 50
"""On the overview, of queues and of findings."""

DOCTOR_S: Final = 8.0
"""All groups are asked for within it; of those that are not it says so."""
MORE_S: Final = 3.0
"""What is asked beside nodes' statuses may take so long: a page is there when a node hangs."""
EVENTS_SHOWN: Final = 100

Context = dict[str, Any]
"""By the names that the template has for it."""


@dataclass(frozen=True, slots=True)
class View:
    """A page: its template, what fills it, whether it renews itself while somebody looks at it, and what of the query
    that hangs on."""

    template: str
    fill: Callable[[Call], Awaitable[Context]]
    live: bool = True
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """The cluster as one login sees it. `moves`: None while nobody tells."""

    metadata: Metadata
    statuses: ClusterStatuses
    status: AllStatuses
    moves: MovesFound | None
    found: list[Diagnosis]
    reasons: Reasons

    def lines(self) -> list[QueueLine]:
        """All queues, red first."""
        lines = [outage_line(each) for each in self.metadata.outages]
        lost = {each.name for each in self.metadata.outages}
        return red_first([*lines, *(self.line(each) for each in self.metadata.queues if each.name not in lost)])

    def line(self, info: QueueInfo) -> QueueLine:
        log = self.statuses.logs.get(info.log_id)
        reasons = self.reasons.of_queue(info.name, log.name if log is not None else "")
        return queue_line(info, log, self.statuses.queue(info), reasons)

    def copies(self, log_id: str) -> dict[str, LogStatus]:
        """Of a log, by node, of those that answer."""
        found = {node: copy_of(told, log_id) for node, told in self.statuses.by_node.items()}
        return {node: copy for node, copy in found.items() if copy is not None}


async def seen(call: Call) -> ClusterSeen:
    """Raises MirrorlogError when no node tells, or this login may not see it."""
    metadata, statuses, moves = await asyncio.gather(call.client.metadata(None), call.statuses(), _moves(call))
    status = put_together(metadata, statuses.by_node)
    facts = Facts(
        status=status,
        queues=metadata.queues,
        outages=metadata.outages,
        moves=moves.moves if moves is not None else [],
        members=[node.node_id for node in metadata.nodes],
    )
    # Of thousands of queues it takes a while, as their lines do, and health is asked of the same loop.
    found = await asyncio.to_thread(findings, facts)
    losses = {log.name: log.losses for log in statuses.logs.values() if log.losses}
    return ClusterSeen(metadata, statuses, status, moves, found, Reasons(found, losses))


async def _moves(call: Call) -> MovesFound | None:
    try:
        async with asyncio.timeout(MORE_S):
            return await call.client.admin.moves(node_timeout_ms=DEADLINE_MS)
    except (MirrorlogError, TimeoutError):
        return None


async def groups_in_time(call: Call, queue: str) -> list[GroupInfo] | None:
    """None also while its master hangs: the rest of a page is not held up by it."""
    try:
        async with asyncio.timeout(MORE_S):
            return await groups_of(call, queue)
    except TimeoutError:
        return None


# --- Overview and lists ---------------------------------------------------------------------------------------------


async def _overview(call: Call) -> Context:
    found = await seen(call)
    lines = await asyncio.to_thread(found.lines)
    view = newest_view(found.status.nodes)
    holds = [hold for copy in authorities(found.status) for hold in copy.log.holds]
    numbers = [line for line in lines if line.ready is not None]
    return {
        "cluster": found.metadata.cluster_name,
        "found": found.found[:REDS_SHOWN],
        "more": max(0, len(found.found) - REDS_SHOWN),
        "stops": sum(each.weight == STOPS for each in found.found),
        "noted": sum(each.weight != STOPS for each in found.found),
        "warnings": warnings(view) if view is not None else ["no node that answers is in a cluster"],
        "reds": [line for line in lines if line.weight == STOPS or line.behind][:REDS_SHOWN],
        "nodes": _node_rows(found),
        "holds": sorted(holds, key=lambda hold: (not hold.ended, -hold.lag)),
        "moves": found.moves,
        "totals": {
            "queues": len(lines),
            "ready": sum(line.ready or 0 for line in numbers),
            "unacknowledged": sum(line.unacknowledged or 0 for line in numbers),
            "consumers": sum(line.consumers or 0 for line in numbers),
            "published a second": round(sum(line.publish_rate or 0 for line in lines), 1),
            "delivered a second": round(sum(line.deliver_rate or 0 for line in lines), 1),
            "logs": len(found.statuses.logs),
            "nodes that answer": f"{len(found.status.nodes)} of {len(found.metadata.nodes)}",
        },
    }


async def _queues(call: Call) -> Context:
    found = await seen(call)
    sought, vhost = call.query.get("q", "").lower(), call.query.get("vhost", "")
    every = await asyncio.to_thread(found.lines)
    lines = [line for line in every if sought in line.name.lower() and vhost in ("", line.vhost)]
    page = number_of(call, "page", 1, least=1)
    pages = max(1, -(-len(lines) // QUEUES_A_PAGE))
    return {
        "lines": lines[(page - 1) * QUEUES_A_PAGE : page * QUEUES_A_PAGE],
        "count": len(lines),
        "pages": pages,
        "page": page,
        "vhosts": sorted({line.vhost for line in every}),
    }


def number_of(call: Call, name: str, default: int, *, least: int = 0, most: int = 10**18) -> int:
    """Of the query. Raises ApiError."""
    words = call.query.get(name) or str(default)
    if not (words.isascii() and words.isdigit() and len(words) < 20 and least <= int(words) <= most):
        raise bad_request(f"{name} {words:.40} is no number from {least} to {most}")
    return int(words)


# --- One queue ------------------------------------------------------------------------------------------------------


async def _queue(call: Call) -> Context:
    info = await call.described()
    if isinstance(info, QueueOutage):
        return {"line": outage_line(info), "info": None, "name": split(info.name)[1], "vhost": call.vhost}
    found, groups, syncs = await asyncio.gather(
        seen(call), groups_in_time(call, info.name), syncs_of(call.client, [info])
    )
    placed = found.statuses.logs.get(info.log_id)
    master = found.copies(info.log_id).get(info.master)
    line = found.line(info)
    if groups is not None and (numbers := own_numbers(info, groups)) is not None:
        ready, unacknowledged, consumers = numbers
        line = replace(line, ready=ready, unacknowledged=unacknowledged, consumers=consumers)
    return {
        "line": line,
        "info": info,
        "vhost": call.vhost,
        "name": split(info.name)[1],
        "groups": groups,
        "log": placed,
        "axis": _axis(found, placed, near=call.query.get("near") == "1", queue=info.name),
        "records": queue_axis(info, groups or [], master.holds if master is not None else []),
        "producers": [each for each in (master.producers if master is not None else []) if each.queue == info.name],
        "moves": [each for each in (found.moves.moves if found.moves is not None else []) if each.queue == info.name],
        "sync": {"text": sync_text(sync), "found": sync} if (sync := syncs.get(info.name)) is not None else None,
        "commands": {each: command_of(each, call.vhost, split(info.name)[1]) for each in COMMANDS},
        "counts": told.counts if (told := found.statuses.queue(info)) is not None else None,
    }


def _axis(found: ClusterSeen, placed: PlacedLog | None, *, near: bool, queue: str | None = None) -> Any:
    """`queue`: whose landings alone are shown."""
    if placed is None:
        return None
    there = found.copies(placed.log_id)
    master = there.get(placed.master)
    holds = [each for each in (master.holds if master is not None else []) if queue in (None, each.queue)]
    return log_axis(placed, there, near=near, holds=holds)


COMMANDS: Final[Mapping[str, str]] = {
    "sync": "sync-queue",
    "cancel-sync": "cancel-sync-queue",
    "purge": "purge",
    "delete": "delete",
    "move": "alter-queue",
    "cancel-move": "alter-queue --cancel",
    "publish": "publish",
    "browse": "consume",
    "reset": "group-reset",
}
"""What `mqtool` has for what pages do with a queue."""


def command_of(what: str, vhost: str, name: str) -> str:
    """The line to type for it. Pure."""
    where = "" if vhost == DEFAULT_VIRTUAL_HOST else f" --vhost {shlex.quote(vhost)}"
    return f"mqtool {COMMANDS[what]} {shlex.quote(name)}{where}"


# --- Logs and nodes -------------------------------------------------------------------------------------------------


async def _logs(call: Call) -> Context:
    found = await seen(call)
    near = call.query.get("near") == "1"
    return await asyncio.to_thread(_log_rows, found, near=near)


def _log_rows(found: ClusterSeen, *, near: bool) -> Context:
    """Those that need somebody first, and `more` there are."""
    queues: dict[str, list[tuple[str, str]]] = {}
    for info in found.metadata.queues:
        queues.setdefault(info.log_id, []).append(split(info.name))
    logs = [(found.reasons.of("log", log.name), log) for log in found.statuses.logs.values()]
    logs.sort(key=lambda each: (not _stops(each[0]), not each[0], each[1].name))
    rows = [
        {"log": log, "axis": _axis(found, log, near=near), "reasons": reasons, "queues": queues.get(log.log_id, [])}
        for reasons, log in logs[:LOGS_SHOWN]
    ]
    return {"rows": rows, "near": near, "more": len(logs) - len(rows)}


def _stops(reasons: tuple[Reason, ...]) -> bool:
    return any(each.weight == STOPS for each in reasons)


async def _nodes(call: Call) -> Context:
    found = await seen(call)
    view = newest_view(found.status.nodes)
    return {"nodes": _node_rows(found), "view": view}


def _node_rows(found: ClusterSeen) -> list[Context]:
    """Those that do not answer first."""
    view = newest_view(found.status.nodes)
    known = {node.node_id: node for node in (view.nodes if view is not None else [])}
    rows: list[Context] = []
    for node in found.metadata.nodes:
        told, member = found.statuses.by_node.get(node.node_id), known.get(node.node_id)
        rows.append({
            "id": node.node_id,
            "info": node,
            "told": told if isinstance(told, Status) else None,
            "reason": "" if isinstance(told, Status) else str(told) if told is not None else "nobody has asked it yet",
            "member": member,
            "role": role_of(member, view.coordinator) if member is not None and view is not None else "",
            "masters": sum(log.master == node.node_id for log in found.statuses.logs.values()),
            "holds": sum(node.node_id in log.replicas for log in found.statuses.logs.values()),
            "reasons": found.reasons.of("node", node.node_id),
        })  # fmt: skip
    return sorted(rows, key=lambda row: (row["told"] is not None, not _stops(row["reasons"]), row["id"]))


async def _events(call: Call) -> Context:
    """Of the node whose door this is, so that their numbers are of one run."""
    node, admin = await call.node_id(), call.client.admin
    newest = (await admin.events(limit=1, node_id=node)).last
    found = await admin.events(after=max(0, newest - EVENTS_SHOWN), limit=EVENTS_SHOWN, node_id=node)
    return {"node": node, "events": found.events[::-1]}


async def _doctor(call: Call) -> Context:
    """Of all queues' groups, too, which costs a question for each queue: so it is not live."""
    found = await asyncio.to_thread(findings, await facts_of(call.client, within_s=DOCTOR_S))
    return {"found": found[:FINDINGS_SHOWN], "more": max(0, len(found) - FINDINGS_SHOWN)}


VIEWS: Final[Mapping[str, View]] = {
    "": View("overview.html", _overview),
    "queues": View("queues.html", _queues, asks=("q", "vhost", "page")),
    "queue": View("queue.html", _queue, asks=("vhost", "name", "near")),
    "logs": View("logs.html", _logs, asks=("near",)),
    "nodes": View("nodes.html", _nodes),
    "events": View("events.html", _events),
    "doctor": View("doctor.html", _doctor, live=False),
}
"""By path."""
