"""What keeps a cluster's queues, logs and groups from making progress, in plain words, and what to do about it.

Facts in, findings out: the status of every node that answers, what the cluster has decided, the queues and their groups
as their masters know them. A finding *stops* something (somebody waits and nothing will come of it by itself) or is to
be *noted* (it goes on, and will not for ever, or not as somebody believes). Rejected: a check of its own on each node,
asked for by a request of its own (half of the reasons are seen only from outside: a node that is down says nothing).

Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import msgspec

from mirrorlog.diagnosis.advice import STOPS, Diagnosis, say
from mirrorlog.diagnosis.cells import bytes_text, printable
from mirrorlog.diagnosis.cluster_status import AllStatuses, LogCopy, UnreachedLog, authorities, logs_in, newest_view
from mirrorlog.diagnosis.places import absent_nodes, nowhere, why_queue_unmet
from mirrorlog.wire.messages.groups import GroupInfo, GroupsFound
from mirrorlog.wire.messages.queues import MoveOfQueue, QueueInfo, QueueOutage, QueueSync
from mirrorlog.wire.messages.status import (
    ClusterStatus,
    LogStatus,
    MirrorStatus,
    NodeStatus,
    PlacedLog,
    QueueStatus,
    Status,
)
from mirrorlog.wire.names import shown

_ACKING: Final = "acking"
_NAMED_MAX: Final = 20
_HOLDERS_SHOWN: Final = 3
"""So many subscribers that are held up a node names."""
_ACKED_MIN: Final = 10_000
"""Records that are kept for nothing: with fewer it is not worth a word."""
_PINNED_MIN: Final = 256 * 1024 * 1024
_KEEPING: Final = frozenset({"retention", "retention_ms", "retention_bytes"})
_LAG_BYTES: Final = 16 * 1024 * 1024
_DAY_S: Final = 86_400
_EXPIRES_SOON_S: Final = 14 * _DAY_S
_LAG_S: Final = 1.0
"""A mirror nearer than either is as near as one is that is written to."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes tell, from which diagnoses are made. `status`: of all nodes; `queues`, `outages`: as the cluster
    lists them; `groups`: by queue, as its master told; `unasked`: why one did not, by queue; `syncs`: what former logs
    keep of queues, by queue; `moves`: of queues to other logs; `members`: names of all nodes."""

    status: AllStatuses
    queues: list[QueueInfo] = []
    outages: list[QueueOutage] = []
    groups: Mapping[str, GroupsFound] = {}
    unasked: Mapping[str, str] = {}
    syncs: Mapping[str, QueueSync] = {}
    moves: list[MoveOfQueue] = []
    members: list[str] = []


def findings(facts: Facts) -> list[Diagnosis]:
    """What stops comes first; within that, nodes, logs, queues, groups."""
    statuses = {each.name: each for copy in authorities(facts.status) for each in copy.log.queues}
    arguments = {each.name: each.arguments for each in facts.queues}
    found = [
        *_nodes(facts.status),
        *_placed(facts.status),
        *(each for log in facts.status.unreached for each in _unreached(log)),
        *(each for copy in authorities(facts.status) for each in _log(copy)),
        *_queues(facts, statuses),
        *(each for told in facts.groups.values() for each in _groups(told, arguments, statuses.get(told.queue))),
    ]
    return sorted(found, key=lambda each: each.weight != STOPS)


# --- nodes ---


def _nodes(status: AllStatuses) -> Iterator[Diagnosis]:
    for each in status.unreachable:
        text = f"node {each.node_id} ({each.client}) does not answer: {each.message}"
        yield say("node", each.node_id, "node-unreachable", text)
    for node in status.nodes:
        yield from _resources(node)
        yield from _certificate(node)
        yield from _former(node)
        if node.cluster is not None and not node.cluster.coordinator:
            text = f"node {node.node_id} knows of no coordinator: a majority of the nodes is not in touch"
            yield say("node", node.node_id, "no-coordinator", text, stops=True)
    yield from _draining(status)


def _draining(status: AllStatuses) -> Iterator[Diagnosis]:
    view = newest_view(status.nodes)
    for node in view.nodes if view is not None else ():
        if node.draining and not node.leaving:
            text = f"node {node.node_id} drains: it hands over what it masters, and leaves promotions to others"
            yield say("node", node.node_id, "draining", text, start=node.node_id)
        elif node.leaving and view is not None:
            yield _emptied(node, view)


def _emptied(node: NodeStatus, view: ClusterStatus) -> Diagnosis:
    """What is left on a node that leaves for good, and why that goes nowhere, if it does not."""
    name = node.node_id
    left = [log for log in view.logs if name in log.replicas and not log.transient]
    if not left:
        text = f"node {name} was emptied and holds nothing any more: mqtool forget-node {name} takes it out"
        return say("node", name, "emptying", text, start=name)
    logs = f"{len(left)} log{'s are' if len(left) != 1 else ' is'} on it yet"
    text = f"node {name} is being emptied; {logs}: {', '.join(log.name for log in left[:_NAMED_MAX])}"
    waits = "moving is paused" if view.moving_paused else next(filter(None, (nowhere(log, view) for log in left)), "")
    if not waits:
        return say("node", name, "emptying", text, start=name)
    return say("node", name, "emptying-waits", f"{text}; it goes on no further: {waits}", stops=True, start=name)


def _resources(node: Status) -> Iterator[Diagnosis]:
    disk, memory = node.disk, node.memory
    if disk is not None and disk.state != "ok":
        full = disk.state == "full"
        effect = "publishes are refused there" if full else "it will refuse publishes when it is full"
        text = f"the disk of node {node.node_id} is {disk.state}, {effect}: {disk.reason}"
        yield say("node", node.node_id, "disk-full" if full else "disk-low", text, stops=full)
    if memory is not None and memory.state != "ok":
        text = f"the memory of node {node.node_id} is high, publishes are refused there: {memory.reason}"
        yield say("node", node.node_id, "memory-high", text, stops=True)
    if capped := node.counts.capped if node.counts is not None else {}:
        lower = ", ".join(f"limits.{name} is {number}" for name, number in sorted(capped.items()))
        text = f"node {node.node_id} may not open as many files as its settings ask for: {lower}"
        yield say("node", node.node_id, "connections-capped", text)


def _former(node: Status) -> Iterator[Diagnosis]:
    if node.former:
        names = ", ".join(each.name or each.log_id for each in node.former[:_NAMED_MAX])
        text = (
            f"node {node.node_id} still holds {bytes_text(sum(each.size_bytes for each in node.former))} of "
            f"{len(node.former)} log{'s' if len(node.former) != 1 else ''} that it is not named for any more: {names}"
        )
        yield say("node", node.node_id, "former-copies", text)


def _certificate(node: Status) -> Iterator[Diagnosis]:
    """By the node's own clock."""
    left_s = node.certificate_expires_s - node.now_us / 1e6
    if not node.certificate_expires_s or left_s >= _EXPIRES_SOON_S:
        return
    what = f"the certificate of node {node.node_id}"
    if left_s <= 0:
        text = f"{what} has expired: nobody who connects anew takes it"
        yield say("node", node.node_id, "certificate-expired", text, stops=True)
    else:
        yield say("node", node.node_id, "certificate-expires", f"{what} expires in {left_s / _DAY_S:.1f} days")


# --- logs ---


def _placed(status: AllStatuses) -> Iterator[Diagnosis]:
    """What the cluster has decided, by the view that is newest."""
    view = newest_view(status.nodes)
    if view is None:
        return
    lives = {node.node_id: node.life for node in view.nodes}
    for log in view.logs:
        if log.transient:
            continue  # its queues are gone with its node's run
        if not log.master:
            waited = ", ".join(log.waits_for or log.in_sync or log.replicas)
            text = f"log {log.name} has no master" + (f": {log.reason}" if log.reason else f" and waits for {waited}")
            yield say("log", log.name, "no-master", text, stops=True, start=waited)
        elif _has_no_heir(log, lives):
            whole = ", ".join(node for node in log.in_sync if node not in log.marked) or log.master
            why = log.reason or "no copy that is up may take over: each may lack what was confirmed"
            text = f"master {log.master} of log {log.name} is down: {why}"
            yield say("log", log.name, "no-master", text, stops=True, start=whole)


def _unreached(log: UnreachedLog) -> Iterator[Diagnosis]:
    text = f"no node that answers has log {log.name}: {log.reason}"
    yield say("log", log.name, "not-reached", text, stops=True, start=" or ".join(log.nodes) or "a node that had it")


def _has_no_heir(log: PlacedLog, lives: Mapping[str, str]) -> bool:
    """Whether its master is down, and those of its copies that are up may all lack something. With none up its queues
    are told of."""
    if lives.get(log.master) != "down" or all(lives.get(node) == "down" for node in log.replicas):
        return False
    return all(lives.get(node) == "down" for node in log.in_sync if node not in log.marked)


def _log(copy: LogCopy) -> Iterator[Diagnosis]:
    log = copy.log
    if log.role != "master":
        if log.state == "corrupt":
            text = f"the copy of log {log.name} on {copy.node_id} is not served: {log.reason}"
            yield say("log", log.name, "corrupt", text, stops=True)
        return
    if log.state == "recovering":
        text = f"log {log.name} is recovering on {copy.node_id}: {log.reason}"
        yield say("log", log.name, "recovering", text, stops=True)
    up = log.copies_up if log.copies_up >= 0 else 1 + sum(mirror.proven for mirror in log.mirrors)
    if up < log.min_in_sync:
        away = ", ".join(mirror.node_id for mirror in log.mirrors if not mirror.connected) or "copies that catch up"
        text = (
            f"log {log.name} has {up} copies in sync and min_in_sync is {log.min_in_sync}: publishes are refused; "
            f"missing: {away}"
        )
        yield say("log", log.name, "below-min-in-sync", text, stops=True)
    for mirror in log.mirrors:
        yield from _mirror(log, mirror)
    yield from _producers(log)
    yield from _holds(log)
    yield from _pinned(log)


def _mirror(log: LogStatus, mirror: MirrorStatus) -> Iterator[Diagnosis]:
    what = f"mirror {mirror.node_id} of log {log.name}"
    if not mirror.connected:
        text = f"{what} is not connected: there is a copy less"
        yield say("log", log.name, "mirror-away", text, start=mirror.node_id)
    elif mirror.lag_bytes > _LAG_BYTES or mirror.lag_seconds > _LAG_S:
        held = mirror.in_sync and log.confirmed < log.end
        waits = f"; confirms wait for it, {log.end - log.confirmed} bytes are not confirmed" if held else ""
        text = f"{what} is {mirror.lag_bytes} bytes and {mirror.lag_seconds:.1f} s behind{waits}"
        yield say("log", log.name, "mirror-behind", text)


def _producers(log: LogStatus) -> Iterator[Diagnosis]:
    for each in log.producers:
        if each.blocked_by:
            text = (
                f"producer {each.producer_id} ({each.peer}) of queue {shown(each.queue)} is held by {each.blocked_by} "
                f"since {each.blocked_ms / 1000:.1f} s: {each.unconfirmed_bytes} bytes of it are not confirmed by all "
                "copies in sync"
            )
            yield say("queue", shown(each.queue), "producer-blocked", text)
    unnamed = log.producers_blocked - sum(bool(each.blocked_by) for each in log.producers)
    if unnamed > 0:
        yield say("log", log.name, "producer-blocked", f"{unnamed} more producers of log {log.name} are held")


def _pinned(log: LogStatus) -> Iterator[Diagnosis]:
    pin = log.pin
    if pin is not None and pin.dead_bytes >= max(_PINNED_MIN, (log.end - log.begin) // 4):
        text = (
            f"{pin.dead_bytes} bytes of log {log.name} that nobody needs stay because {pin.live_bytes} bytes of queue "
            f"{shown(pin.queue)} stand before and among them"
        )
        yield say("queue", shown(pin.queue), "space-pinned", text)


def _holds(log: LogStatus) -> Iterator[Diagnosis]:
    for hold in log.holds:
        if hold.lag and not hold.ended:
            kept = f", {hold.kept_bytes} bytes of the log" if hold.kept_bytes >= 0 else ""
            who = f"landing {hold.name} (held by {hold.holder})"
            text = f"{who} keeps {hold.lag} records of queue {shown(hold.queue)}{kept}"
            yield say("queue", shown(hold.queue), "retention-held", text)


# --- queues ---


def _queues(facts: Facts, statuses: Mapping[str, QueueStatus]) -> Iterator[Diagnosis]:
    for outage in facts.outages:
        text = f"queue {shown(outage.name)} cannot be reached: {outage.reason}"
        yield say("queue", shown(outage.name), "nodes-down", text, stops=True, start=outage.node)
    for queue, why in facts.unasked.items():
        text = f"the master of queue {shown(queue)} does not tell of its groups: {why}"
        yield say("queue", shown(queue), "not-answered", text, stops=True)
    view = newest_view(facts.status.nodes)
    logs = logs_in(view)
    for info in facts.queues:
        told = facts.groups.get(info.name)
        if told is not None and not told.groups and info.next > info.begin:
            text = (
                f"queue {shown(info.name)} has {info.next - info.begin} records and no group: nobody has been "
                "subscribed to it, nor stored a position"
            )
            yield say("queue", shown(info.name), "never-read", text)
        yield from _full(info, told, statuses.get(info.name))
        yield from _acked(info, told, statuses.get(info.name))
        yield from _unmet(info, facts.members, why_queue_unmet(info, view, logs.get(info.log_id)))
    for move in facts.moves:
        yield from _move_waits(move)
    for sync in facts.syncs.values():
        yield from _left(sync)
    yield from _timeouts(facts)


def _unmet(info: QueueInfo, members: Collection[str], why: str) -> Iterator[Diagnosis]:
    """Names may be of nodes that are still to come, or mistyped: either way there are so many copies less. `why`: what
    else keeps it from the place that it asks for."""
    absent = absent_nodes(info.effective or info.arguments, members)
    if members and absent:
        on = ", ".join(each for each in (info.master, *info.mirrors) if each) or "no node"
        text = (
            f"queue {shown(info.name)} asks for copies on {', '.join(absent)}, which the cluster does not have; its "
            f"copies are on {on}"
        )
        yield say("queue", shown(info.name), "nodes-missing", text, start=shown(info.name))
    elif why:
        by = f" (policy {info.policy})" if info.policy else ""
        yield say("queue", shown(info.name), "place-unmet", f"queue {shown(info.name)}{by} {why}")


def _move_waits(move: MoveOfQueue) -> Iterator[Diagnosis]:
    """Of a move that gets on there is no reason."""
    if move.queue and move.reason:
        to = f" to {move.target}" if move.target else ""
        text = f"queue {shown(move.queue)} shall go from log {move.source}{to}, and does not: {move.reason}"
        yield say("queue", shown(move.queue), "move-waits", text, start=shown(move.queue))


def _left(sync: QueueSync) -> Iterator[Diagnosis]:
    """What former logs keep of a queue that has moved; what is being copied gets on by itself."""
    name = shown(sync.queue)
    for span in sync.spans:
        if span.records < 0:
            continue  # its master does not answer, which is a finding of its own
        size = bytes_text(span.size) if span.size >= 0 else f"{span.records} records"
        kept = f"log {span.log} keeps {size} of queue {name}, which has moved to {sync.log}"
        if not sync.wished:
            why = f", and nothing copies them: {sync.waits}" if sync.waits else ""
            yield say("queue", name, "records-left", f"{kept}{why}", start=name)
        elif sync.waits:
            yield say("queue", name, "sync-waits", f"{kept}, and copying them waits: {sync.waits}", start=name)


def _full(info: QueueInfo, told: GroupsFound | None, status: QueueStatus | None) -> Iterator[Diagnosis]:
    """How many bytes are ready no node tells: of a limit in bytes the refusals say that it is reached."""
    if not _rejects(info.arguments):
        return
    refused = status.refuse_rate if status is not None else 0.0
    limit, ready = info.arguments.get("x-max-length"), -1
    if told is not None:
        own = next((each for each in told.groups if each.kind == _ACKING and not each.group), None)
        ready = own.ready if own is not None else info.next - info.begin
    if not refused and not (type(limit) is int and ready >= limit):
        return
    pace = _pace(status)
    goes_on = f"; {pace:.1f} records a second are given out or settled" if pace else ""
    text = (
        f"queue {shown(info.name)} is as long as it may be (x-max-length, x-max-length-bytes): publishes are refused, "
        f"{refused:.1f} records a second of late{goes_on}"
    )
    yield say("queue", shown(info.name), "full", text, stops=not pace)


def _acked(info: QueueInfo, told: GroupsFound | None, status: QueueStatus | None) -> Iterator[Diagnosis]:
    """Who says nothing of retention, and only acknowledges, means no more to have what is acknowledged."""
    arguments, groups = info.effective or info.arguments, told.groups if told is not None else []
    if status is None or status.works or not groups or any(group.kind != _ACKING for group in groups):
        return
    acked = min(group.floor for group in groups) - info.begin
    if acked >= _ACKED_MIN and not _KEEPING & arguments.keys():
        text = f"queue {shown(info.name)} keeps {acked} records that all its groups have acknowledged"
        yield say("queue", shown(info.name), "acked-kept", text, start=shown(f"^{re.escape(info.name)}$"))


def _timeouts(facts: Facts) -> Iterator[Diagnosis]:
    for copy in authorities(facts.status):
        for each in copy.log.queues:
            if each.counts is not None and each.counts.timed_out:
                text = (
                    f"{each.counts.timed_out} subscriptions of queue {shown(each.name)} ended because a record was not "
                    f"settled in time (x-consumer-timeout), since node {copy.node_id} was started"
                )
                yield say("queue", shown(each.name), "consumer-timeout", text)


# --- groups ---


def _groups(
    found: GroupsFound, arguments: Mapping[str, Mapping[str, Any]], status: QueueStatus | None
) -> Iterator[Diagnosis]:
    """`arguments`: by queue; `status`: of this one, by the master of its log."""
    queue = shown(found.queue)
    for group in found.groups:
        if group.kind == _ACKING:
            of = f"group {group.group} of queue {queue}" if group.group else f"queue {queue}"
            for reason, stops, text in (
                *_progress(group, _pace(status)),
                *_forwarding(group),
                *_kept(group, arguments.get(found.queue, {}), works=status is not None and status.works),
            ):
                yield say("group", f"{queue} {group.group or '(own)'}", reason, f"{of}: {text}", stops=stops)


_Reason = tuple[str, bool, str]
"""A reason of a group, whether it stops it, and what is the matter."""


def _pace(status: QueueStatus | None) -> float:
    """Records a second that are given out or settled, of all of a queue's groups together."""
    counts = status.counts if status is not None else None
    return max(counts.deliver_rate, counts.ack_rate) if counts is not None else 0.0


def _progress(group: GroupInfo, pace: float) -> Iterator[_Reason]:
    """Why records that could be given out are not: the first reason that holds. `pace`: records a second that are."""
    if not group.unsettled:
        return
    if group.ready:
        yield from _ready(group, pace)
    elif not group.subscribers and group.parked + group.leased < group.unsettled and group.out:
        yield "closing", False, f"{group.out} records are with subscribers that have ended and not settled them"
    elif group.parked + group.leased >= group.unsettled:
        due = f"; the next one ends in {group.due_ms / 1000:.1f} s" if group.due_ms >= 0 else ""
        leased = f"{group.leased} records are leased{_holders(group)} and {group.parked} wait for a delay{due}"
        yield "waiting-for-time", False, leased
    if group.alone and group.idle_for_another:
        idle = f"{group.idle_for_another} subscribers get nothing while {group.alone} has it for itself"
        yield "one-active", False, idle


def _holders(group: GroupInfo) -> str:
    """Of the leases that are named, as far as they have names."""
    names = list(dict.fromkeys(printable(each.holder) for each in group.leases if each.holder))
    more = ", …" if len(names) > _HOLDERS_SHOWN else ""
    return f" (by {', '.join(names[:_HOLDERS_SHOWN])}{more})" if names else ""


def _forwarding(group: GroupInfo) -> Iterator[_Reason]:
    if group.departing_waits:
        text = f"{group.departing} records are to leave for other queues, and do not: {group.departing_waits}"
        yield "departures-wait", True, text


def _ready(group: GroupInfo, pace: float) -> Iterator[_Reason]:
    """Who is busy has no credit at most moments: it stands still only if nothing goes on beside it."""
    ready = f"{group.ready} records are ready"
    why = _why_none(group) + (f"; meanwhile {pace:.1f} records a second are given out or settled" if pace else "")
    able = group.subscribers - group.idle_for_another
    held_up = len(group.without_credit) + len(group.not_reading)
    if not group.subscribers and not group.waiting:
        yield "no-subscriber", True, f"{ready}, and nobody is subscribed or waits for a lease"
    elif group.alone and (group.without_credit or group.not_reading) and not group.waiting:
        yield "holder-idle", not pace, f"{ready}, and {group.alone}, which has the group for itself, takes none: {why}"
    elif group.subscribers and not group.waiting and held_up >= min(able, _NAMED_MAX):
        yield "no-credit", not pace, f"{ready}, and no subscriber takes more: {why}"


def _why_none(group: GroupInfo) -> str:
    parts = []
    if group.without_credit:
        parts.append(f"their prefetch is used up by {', '.join(group.without_credit)}")
    if group.not_reading:
        parts.append(f"{', '.join(group.not_reading)} do not read what was sent")
    return "; ".join(parts)


def _kept(group: GroupInfo, arguments: Mapping[str, Any], *, works: bool) -> Iterator[_Reason]:
    if group.gone:
        yield "expired-unread", False, f"retention has freed {group.gone} records that it had not settled"
    if works and group.unsettled and not (group.ready or group.subscribers or group.waiting):  # ready ones are told of
        kept = f"{group.unsettled} records from {group.floor} on are kept until it settles them, and nobody takes them"
        yield "retention-held", False, kept
    limit = arguments.get("x-max-length")
    if type(limit) is int and not group.group and group.unsettled > limit and not _rejects(arguments):
        yield "above-length", False, f"{group.unsettled} records are unsettled and x-max-length is {limit}"


def _rejects(arguments: Mapping[str, Any]) -> bool:
    return str(arguments.get("x-overflow", "")).startswith("reject-publish")
