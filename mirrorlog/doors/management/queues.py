"""Queues of the management API: listed, declared, deleted, purged, synced; and who takes from them.

What nobody tells is left out, and never null, over which `rabbitmqadmin` stumbles: of a queue whose master does not
answer there is its name and place, and why. The queue's own group is what RabbitMQ calls the queue: its ready and
unacknowledged records are counted, those that wait for a delay or for another queue are not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from mirrorlog.client.definitions.rows import Row, declared_row, queue_arguments, require, text
from mirrorlog.config import split_address
from mirrorlog.diagnosis.cluster_status import syncs_of
from mirrorlog.diagnosis.places import why_queue_unmet
from mirrorlog.doors.management.calls import NO_CONTENT, ApiAnswer, Call, ClusterStatuses, Routes, written
from mirrorlog.doors.management.shapes import ApiError, bad_request, columns, not_found
from mirrorlog.errors import AccessRefused, BadRequest, ConfigError, MirrorlogError, NoSuchQueue
from mirrorlog.wire.messages.groups import ConsumerInfo, GroupInfo
from mirrorlog.wire.messages.queues import QueueInfo, QueueOutage, QueueSync
from mirrorlog.wire.messages.status import PlacedLog, QueueCounts, QueueStatus
from mirrorlog.wire.names import split

logger = logging.getLogger(__name__)

OWN_GROUP: Final = ""
ROWS_A_TURN: Final = 500
CONSUMERS_AT_ONCE: Final = 16
"""Queues whose groups are asked for at the same time."""
CONSUMED_MAX: Final = 1_000
"""Queues whose consumers one list has."""


# --- Rows -----------------------------------------------------------------------------------------------------------


def queue_row(info: QueueInfo, log: PlacedLog | None, told: QueueStatus | None, *, unmet: str = "") -> Row:
    """`log`: that it is in; `told`: what the master of that says of it; None while nobody tells; `unmet`: why what is
    asked for of its place cannot be had now. Pure."""
    in_sync = log.in_sync if log is not None else []
    return {
        **declared_row(info),
        **({"node": info.master, "state": "running"} if info.master else {"state": "down"}),
        "slave_nodes": info.mirrors,
        "synchronised_slave_nodes": [node for node in info.mirrors if node in in_sync],
        "recoverable_slaves": info.mirrors,
        **_policies(info),
        **({"mirrorlog_reason": unmet} if unmet else {}),
        **(_numbers(told.ready, told.unacknowledged, told.consumers) if told is not None else {}),
        **(_rates(told.counts) if told is not None and told.counts is not None else {}),
    }


def _policies(info: QueueInfo) -> Row:
    """Those that hold for it, and what they make of it."""
    said = {"policy": info.policy, "operator_policy": info.operator_policy}
    return {key: value for key, value in (*said.items(), ("effective_policy_definition", info.by_policies)) if value}


def outage_row(outage: QueueOutage) -> Row:
    """Nobody can answer for it: `reason` says why. Pure."""
    vhost, name = split(outage.name)
    return {"name": name, "vhost": vhost, "node": outage.node, "state": "down", "reason": outage.reason}


def _numbers(ready: int, unacknowledged: int, consumers: int) -> Row:
    """-1: not told, by an older node."""
    if ready < 0:
        return {}
    return {
        "messages": ready + unacknowledged,
        "messages_ready": ready,
        "messages_unacknowledged": unacknowledged,
        "consumers": consumers,
    }


def _rates(counts: QueueCounts) -> Row:
    """Since the master's process began, and of the last seconds."""
    return {
        "message_stats": {
            "publish": counts.published,
            "publish_details": {"rate": counts.publish_rate},
            "deliver_get": counts.delivered,
            "deliver_get_details": {"rate": counts.deliver_rate},
            "redeliver": counts.redelivered,
            "redeliver_details": {"rate": counts.redeliver_rate},
            "ack": counts.acked,
            "ack_details": {"rate": counts.ack_rate},
        }
    }


_PLAIN: Final = ("name", "vhost", "type", "durable", "auto_delete", "exclusive", "arguments", "node")
_TOTALS: Final = (*_PLAIN, "messages", "messages_ready", "messages_unacknowledged")


def _asked(row: Row, call: Call) -> Row:
    """`disable_stats`: what was declared alone; `enable_queue_totals`: and how many records there are."""
    if call.query.get("disable_stats") != "true":
        return row
    kept = _TOTALS if call.query.get("enable_queue_totals") == "true" else _PLAIN
    return {name: row[name] for name in kept if name in row}


# --- Pages ----------------------------------------------------------------------------------------------------------


async def queue_rows(call: Call) -> list[Row]:
    """By virtual host and name. Raises ApiError."""
    metadata, statuses = await call.queues(), await call.statuses()
    rows = [_asked(outage_row(outage), call) for outage in metadata.outages]
    for info in metadata.queues:
        rows.append(_asked(_row(info, statuses), call))
        if not len(rows) % ROWS_A_TURN:
            await asyncio.sleep(0)  # health is asked of the same loop
    return sorted(rows, key=lambda row: (row["vhost"], row["name"]))


def _row(info: QueueInfo, statuses: ClusterStatuses) -> Row:
    log = statuses.logs.get(info.log_id)
    return queue_row(info, log, statuses.queue(info), unmet=why_queue_unmet(info, statuses.view, log))


async def _list(call: Call) -> ApiAnswer:
    return call.listed(await queue_rows(call))


async def _one(call: Call) -> ApiAnswer:
    info = await call.described()
    if isinstance(info, QueueOutage):
        return ApiAnswer(body=outage_row(info))
    row = _row(info, await call.statuses())
    groups = await groups_of(call, info.name)
    if groups is not None:
        # Asked for now, and of one queue: not older than this call.
        row |= _numbers(*numbers) if (numbers := own_numbers(info, groups)) is not None else {}
        row["consumer_details"] = [_consumer(info.name, group, each) for group in groups for each in group.consumers]
        row["mirrorlog_groups"] = [
            {
                "group": group.group,
                "kind": group.kind,
                "ready": group.ready,
                "unacknowledged": group.out + group.leased,
                "delayed": group.parked,
            }
            for group in groups
            if group.kind == "acking"
        ]
    if (sync := (await syncs_of(call.client, [info])).get(info.name)) is not None:
        row |= _sync(sync)
    return ApiAnswer(body=columns([_asked(row, call)], call.query)[0])


def own_numbers(info: QueueInfo, groups: Sequence[GroupInfo]) -> tuple[int, int, int] | None:
    """Ready and unacknowledged records of a queue's own group, and its subscribers; None: nobody can tell. Pure."""
    own = next((group for group in groups if group.group == OWN_GROUP and group.kind == "acking"), None)
    if own is not None:
        return own.ready, own.out + own.leased, own.subscribers
    if not info.current:
        return None
    return info.next - info.begin - sum(end - first for first, end in info.gaps), 0, 0


def _sync(found: QueueSync) -> Row:
    """Of a queue that has moved: what former logs alone have of it, and whether it is copied; or why that is unknown,
    where the caller may not read the queue, or nobody can tell. Pure."""
    if unknown := [span.unknown for span in found.spans if span.records < 0]:
        return {"mirrorlog_sync": {"unknown": unknown[0]}}
    left = sum(span.records for span in found.spans)
    row: Row = {"mirrorlog_sync": {"wished": found.wished, "left_records": left, "done_records": found.done_records}}
    if found.waits:
        row["mirrorlog_sync"]["waits"] = found.waits
    return row | ({"state": "syncing", "sync_messages": found.done_records} if found.wished and left else {})


async def groups_of(call: Call, queue: str) -> list[GroupInfo] | None:
    """None where the caller may not read the queue, or nobody can tell."""
    try:
        return (await call.client.admin.groups(queue)).groups
    except AccessRefused:
        return None
    except MirrorlogError as error:
        logger.info("groups_not_told queue=%r reason=%r", queue, error.message)
        return None


async def _declare(call: Call) -> ApiAnswer:
    arguments, ignored = queue_arguments(call.body)
    if text(call.body, "node", "") if call.body.get("node") is not None else "":
        ignored.append("node")
    is_new = not await _is_there(call)
    await call.client.admin.declare(call.queue, arguments)
    if ignored:
        logger.info("arguments_ignored queue=%r arguments=%s", call.queue, ",".join(ignored))
    return written(is_new, ignored)


async def _is_there(call: Call) -> bool:
    metadata = await call.client.metadata([call.queue])
    return bool(metadata.queues or metadata.placed or metadata.outages)


async def _delete(call: Call) -> ApiAnswer:
    try:
        await call.client.admin.delete_queue(
            call.queue, if_unused=call.query.get("if-unused") == "true", if_empty=call.query.get("if-empty") == "true"
        )
    except NoSuchQueue:
        raise not_found() from None
    return NO_CONTENT


async def _purge(call: Call) -> ApiAnswer:
    try:
        await call.client.admin.purge(call.queue)
    except NoSuchQueue:
        raise not_found() from None
    return NO_CONTENT


async def _act(call: Call) -> ApiAnswer:
    require(call.body, "action")
    action = call.body["action"]
    admin = call.client.admin
    acts = {"sync": admin.sync_queue, "cancel_sync": admin.cancel_sync_queue}
    if not isinstance(action, str) or action not in acts:
        answer = bad_request("unknown")
        answer.body["reason"] = ["unknown", action]  # type: ignore[assignment]
        raise answer
    try:
        await acts[action](call.queue)
    except NoSuchQueue:
        raise not_found() from None
    return NO_CONTENT


# --- Consumers ------------------------------------------------------------------------------------------------------


async def _consumers(call: Call) -> ApiAnswer:
    """Of queues whose own group has subscribers; those of other groups are told of each queue alone."""
    metadata, statuses = await call.queues(), await call.statuses()
    taken = consumed(metadata.queues, statuses)
    if len(taken) > CONSUMED_MAX:
        raise ApiError(503, "service_unavailable", f"more than {CONSUMED_MAX} queues are consumed; ask by virtual host")
    return call.listed(await consumer_rows(call, taken))


def consumed(queues: Sequence[QueueInfo], statuses: ClusterStatuses) -> list[QueueInfo]:
    """Those whose own group has subscribers. Pure."""
    return [info for info in queues if (told := statuses.queue(info)) is not None and told.consumers > 0]


async def consumer_rows(call: Call, queues: Sequence[QueueInfo]) -> list[Row]:
    """Of all groups of these queues."""
    turns = asyncio.Semaphore(CONSUMERS_AT_ONCE)

    async def of(info: QueueInfo) -> list[Row]:
        async with turns:
            groups = await groups_of(call, info.name) or []
        return [_consumer(info.name, group, each) for group in groups for each in group.consumers]

    found = await asyncio.gather(*(of(info) for info in queues))
    return [row for rows in found for row in rows]


def _consumer(queue: str, group: GroupInfo, consumer: ConsumerInfo) -> Row:
    """Times are ms UTC: since when it is subscribed, and since when at the latest it holds its oldest record. Pure."""
    vhost, name = split(queue)
    times = {"mirrorlog_subscribed_at": consumer.since_us, "mirrorlog_held_since": consumer.held_since_us}
    row: Row = {
        "consumer_tag": consumer.name or consumer.peer,
        "queue": {"name": name, "vhost": vhost},
        "active": True,
        "activity_status": "up",
        "exclusive": consumer.alone,
        "arguments": {"x-priority": consumer.priority} if consumer.priority else {},
        "messages_unacknowledged": consumer.in_hand,
        "channel_details": {"connection_name": consumer.connection or consumer.peer, "name": consumer.peer},
        **{key: at // 1000 for key, at in times.items() if at},
    }
    try:
        host, port = split_address(consumer.peer)
        row["channel_details"] |= {"peer_host": host, "peer_port": port}
    except (ConfigError, BadRequest):
        pass  # somebody who is named by other words
    if group.group:
        row["mirrorlog_group"] = group.group
    return row


ROUTES: Final[Routes] = {
    "queues": {"GET": _list},
    "queues/:vhost": {"GET": _list},
    "queues/:vhost/:queue": {"GET": _one, "PUT": _declare, "DELETE": _delete},
    "queues/:vhost/:queue/contents": {"DELETE": _purge},
    "queues/:vhost/:queue/actions": {"POST": _act},
    "consumers": {"GET": _consumers},
    "consumers/:vhost": {"GET": _consumers},
}
