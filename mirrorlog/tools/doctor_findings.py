"""What keeps a cluster's queues, logs and groups from making progress, in plain words, and what to do about it.

Facts in, findings out: the status of every node that answers, what the cluster has decided, the queues and their groups
as their masters know them. A finding *stops* something (somebody waits and nothing will come of it by itself) or is to
be *noted* (it goes on, and will not for ever, or not as somebody believes). Rejected: a check of its own on each node,
asked for by a request of its own (half of the reasons are seen only from outside: a node that is down says nothing).

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from mirrorlog.tools.cluster_status import AllStatuses, Copy, authorities
from mirrorlog.tools.records import printable
from mirrorlog.wire.messages.groups import GroupInfo, GroupsFound
from mirrorlog.wire.messages.queues import HoldInfo, QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import LogStatus, MirrorStatus, PlacedLog, QueueStatus, Status
from mirrorlog.wire.names import shown

STOPS: Final = "stops"
NOTED: Final = "noted"

_ACKING: Final = "acking"
_NAMED_MAX: Final = 20
_HOLDERS_SHOWN: Final = 3
"""So many subscribers that are held up a node names."""
_LAG_BYTES: Final = 16 * 1024 * 1024
_DAY_S: Final = 86_400
_EXPIRES_SOON_S: Final = 14 * _DAY_S
_LAG_S: Final = 1.0
"""A mirror nearer than either is as near as one is that is written to."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`what`: node, log, queue or group, with its `name`. `reason`: a word that stays as it is. `weight`: stops or
    noted. `text`: what is the matter; `advice`: what to do."""

    what: str
    name: str
    reason: str
    weight: str
    text: str
    advice: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """`status`: of all nodes; `queues`, `outages`: as the cluster lists them; `groups`: by queue, as its master told;
    `unasked`: why one did not, by queue."""

    status: AllStatuses
    queues: list[QueueInfo] = []
    outages: list[QueueOutage] = []
    groups: Mapping[str, GroupsFound] = {}
    unasked: Mapping[str, str] = {}


def findings(facts: Facts) -> list[Finding]:
    """What stops comes first; within that, nodes, logs, queues, groups."""
    statuses = {each.name: each for copy in authorities(facts.status) for each in copy.log.queues}
    arguments = {each.name: each.arguments for each in facts.queues}
    found = [
        *_nodes(facts.status),
        *_placed(facts.status),
        *(each for copy in authorities(facts.status) for each in _log(copy)),
        *_queues(facts, statuses),
        *(each for told in facts.groups.values() for each in _groups(told, arguments, statuses.get(told.queue))),
    ]
    return sorted(found, key=lambda each: each.weight != STOPS)


# --- nodes ---


def _nodes(status: AllStatuses) -> Iterator[Finding]:
    for each in status.unreachable:
        yield Finding(
            what="node", name=each.node_id, reason="node-unreachable", weight=NOTED,
            text=f"node {each.node_id} ({each.client}) does not answer: {each.message}",
            advice="start it, or look at its log file and the network; mqtool nodes tells what the others know",
        )  # fmt: skip
    for node in status.nodes:
        yield from _disk(node)
        yield from _memory(node)
        yield from _capped(node)
        yield from _certificate(node)
        if node.cluster is not None and not node.cluster.coordinator:
            yield Finding(
                what="node", name=node.node_id, reason="no-coordinator", weight=STOPS,
                text=f"node {node.node_id} knows of no coordinator: a majority of the nodes is not in touch",
                advice="start the nodes that are down; for a majority that is lost for good: mqtool recover-cluster",
            )  # fmt: skip


def _disk(node: Status) -> Iterator[Finding]:
    disk = node.disk
    if disk is None or disk.state == "ok":
        return
    full = disk.state == "full"
    effect = "publishes are refused there" if full else "it will refuse publishes when it is full"
    yield Finding(
        what="node", name=node.node_id, reason="disk-full" if full else "disk-low", weight=STOPS if full else NOTED,
        text=f"the disk of node {node.node_id} is {disk.state}, {effect}: {disk.reason}",
        advice="free space on it, shorten retention_ms or retention_bytes, or end holds that keep records "
        "(mqtool landings)",
    )  # fmt: skip


def _memory(node: Status) -> Iterator[Finding]:
    memory = node.memory
    if memory is None or memory.state == "ok":
        return
    yield Finding(
        what="node", name=node.node_id, reason="memory-high", weight=STOPS,
        text=f"the memory of node {node.node_id} is high, publishes are refused there: {memory.reason}",
        advice="look who takes it: connections that do not read, many queues or unsettled records; give the node more "
        "(limits.memory_bytes), or end what else runs on its machine",
    )  # fmt: skip


def _capped(node: Status) -> Iterator[Finding]:
    capped = node.counts.capped if node.counts is not None else {}
    if not capped:
        return
    lower = ", ".join(f"limits.{name} is {number}" for name, number in sorted(capped.items()))
    yield Finding(
        what="node", name=node.node_id, reason="connections-capped", weight=NOTED,
        text=f"node {node.node_id} may not open as many files as its settings ask for: {lower}",
        advice="raise the hard limit of open files of its process (LimitNOFILE=65536, or ulimit -Hn) and start it "
        "again, or lower these settings",
    )  # fmt: skip


def _certificate(node: Status) -> Iterator[Finding]:
    """By the node's own clock."""
    left_s = node.certificate_expires_s - node.now_us / 1e6
    if not node.certificate_expires_s or left_s >= _EXPIRES_SOON_S:
        return
    expired = left_s <= 0
    effect = f"expires in {left_s / _DAY_S:.1f} days"
    if expired:
        effect = "has expired: nobody who connects anew takes it"
    yield Finding(
        what="node", name=node.node_id, reason="certificate-expired" if expired else "certificate-expires",
        weight=STOPS if expired else NOTED, text=f"the certificate of node {node.node_id} {effect}",
        advice="put a new one in its place (tls.certificate, tls.key) and send the node a SIGHUP",
    )  # fmt: skip


# --- logs ---


def _placed(status: AllStatuses) -> Iterator[Finding]:
    """What the cluster has decided, by the view that is newest."""
    views = [node.cluster for node in status.nodes if node.cluster is not None]
    if not views:
        return
    view = max(views, key=lambda each: each.version)
    waits = {log.log_id: log.waits_for for each in views for log in each.logs if log.waits_for}
    lives = {node.node_id: node.life for node in view.nodes}
    for log in view.logs:
        if log.transient:
            continue  # its queues are gone with its node's run
        if not log.master:
            yield _no_master(log, waits.get(log.log_id, []))
        elif _has_no_heir(log, lives):
            yield _dead_master(log)


def _no_master(log: PlacedLog, waits_for: list[str]) -> Finding:
    waited = ", ".join(waits_for) or ", ".join(log.in_sync) or ", ".join(log.replicas)
    return Finding(
        what="log", name=log.name, reason="no-master", weight=STOPS,
        text=f"log {log.name} has no master and waits for {waited}",
        advice=f"start {waited}; if it is lost for good: mqtool promote, which says what is lost",
    )  # fmt: skip


def _has_no_heir(log: PlacedLog, lives: Mapping[str, str]) -> bool:
    """Whether its master is down, and those of its copies that are up may all lack something. With none up its queues
    are told of."""
    if lives.get(log.master) != "down" or all(lives.get(node) == "down" for node in log.replicas):
        return False
    return all(lives.get(node) == "down" for node in log.in_sync if node not in log.marked)


def _dead_master(log: PlacedLog) -> Finding:
    whole = ", ".join(node for node in log.in_sync if node not in log.marked) or log.master
    return Finding(
        what="log", name=log.name, reason="no-master", weight=STOPS,
        text=f"master {log.master} of log {log.name} is down, and no copy that is up may take over: each may lack what "
        "was confirmed",
        advice=f"start {whole}; if it is lost for good: mqtool promote, which says what is lost",
    )  # fmt: skip


def _log(copy: Copy) -> Iterator[Finding]:
    log = copy.log
    if log.role != "master":
        if log.state == "corrupt":
            yield _corrupt(copy)
        return
    if log.state == "recovering":
        yield Finding(
            what="log", name=log.name, reason="recovering", weight=STOPS,
            text=f"log {log.name} is recovering on {copy.node_id}: {log.reason}",
            advice="bring that node back; mqtool promote decides without it",
        )  # fmt: skip
    yield from _in_sync(copy)
    yield from _producers(log)
    yield from _holds(log)


def _corrupt(copy: Copy) -> Finding:
    return Finding(
        what="log", name=copy.log.name, reason="corrupt", weight=STOPS,
        text=f"the copy of log {copy.log.name} on {copy.node_id} is not served: {copy.log.reason}",
        advice="it is repaired from another copy when there is one; mqtool verify says what is bad",
    )  # fmt: skip


def _in_sync(copy: Copy) -> Iterator[Finding]:
    log = copy.log
    up = log.copies_up if log.copies_up >= 0 else 1 + sum(mirror.proven for mirror in log.mirrors)
    away = [mirror.node_id for mirror in log.mirrors if not mirror.connected]
    if up < log.min_in_sync:
        yield Finding(
            what="log", name=log.name, reason="below-min-in-sync", weight=STOPS,
            text=f"log {log.name} has {up} copies in sync and min_in_sync is {log.min_in_sync}: publishes are refused; "
            f"missing: {', '.join(away) or 'copies that catch up'}",
            advice="start the missing nodes, or wait until they have caught up (mqtool offsets)",
        )  # fmt: skip
    for mirror in log.mirrors:
        yield from _mirror(log, mirror)


def _mirror(log: LogStatus, mirror: MirrorStatus) -> Iterator[Finding]:
    if not mirror.connected:
        yield Finding(
            what="log", name=log.name, reason="mirror-away", weight=NOTED,
            text=f"mirror {mirror.node_id} of log {log.name} is not connected: there is a copy less",
            advice=f"start {mirror.node_id}; it goes on from its own end",
        )  # fmt: skip
    elif mirror.lag_bytes > _LAG_BYTES or mirror.lag_seconds > _LAG_S:
        held = mirror.in_sync and log.confirmed < log.end
        waits = f"; confirms wait for it, {log.end - log.confirmed} bytes are not confirmed" if held else ""
        yield Finding(
            what="log", name=log.name, reason="mirror-behind", weight=NOTED,
            text=f"mirror {mirror.node_id} of log {log.name} is {mirror.lag_bytes} bytes and "
            f"{mirror.lag_seconds:.1f} s behind{waits}",
            advice="look at its disk and network; it leaves the in-sync set by itself when it stays behind",
        )  # fmt: skip


def _producers(log: LogStatus) -> Iterator[Finding]:
    for each in log.producers:
        if each.blocked_by:
            yield Finding(
                what="queue", name=shown(each.queue), reason="producer-blocked", weight=NOTED,
                text=f"producer {each.producer_id} ({each.peer}) of queue {shown(each.queue)} is held by "
                f"{each.blocked_by} since {each.blocked_ms / 1000:.1f} s: {each.unconfirmed_bytes} bytes of it are not "
                "confirmed by all copies in sync",
                advice="a copy in sync is slow: see the log's mirrors; it goes on by itself when they have caught up",
            )  # fmt: skip
    unnamed = log.producers_blocked - sum(bool(each.blocked_by) for each in log.producers)
    if unnamed > 0:
        yield Finding(
            what="log", name=log.name, reason="producer-blocked", weight=NOTED,
            text=f"{unnamed} more producers of log {log.name} are held", advice="see the ones that are named",
        )  # fmt: skip


def _holds(log: LogStatus) -> Iterator[Finding]:
    for hold in log.holds:
        if hold.ended or not hold.lag:
            continue
        yield _hold(hold)


def _hold(hold: HoldInfo) -> Finding:
    kept = f", {hold.kept_bytes} bytes of the log" if hold.kept_bytes >= 0 else ""
    return Finding(
        what="queue", name=shown(hold.queue), reason="retention-held", weight=NOTED,
        text=f"landing {hold.name} (held by {hold.holder}) keeps {hold.lag} records of queue {shown(hold.queue)}{kept}",
        advice="run the landing, or end its hold if nobody will: mqtool landing-end",
    )  # fmt: skip


# --- queues ---


def _queues(facts: Facts, statuses: Mapping[str, QueueStatus]) -> Iterator[Finding]:
    for outage in facts.outages:
        yield Finding(
            what="queue", name=shown(outage.name), reason="nodes-down", weight=STOPS,
            text=f"queue {shown(outage.name)} cannot be reached: {outage.reason}",
            advice=f"start node {outage.node}",
        )  # fmt: skip
    for queue, why in facts.unasked.items():
        yield Finding(
            what="queue", name=shown(queue), reason="not-answered", weight=STOPS,
            text=f"the master of queue {shown(queue)} does not tell of its groups: {why}",
            advice="see its log and its nodes; ask again",
        )  # fmt: skip
    for info in facts.queues:
        told = facts.groups.get(info.name)
        if told is not None and not told.groups and info.next > info.begin:
            yield Finding(
                what="queue", name=shown(info.name), reason="never-read", weight=NOTED,
                text=f"queue {shown(info.name)} has {info.next - info.begin} records and no group: nobody has been "
                "subscribed to it, nor stored a position",
                advice="start a consumer, or take it out of the bindings if nobody wants it (mqtool bindings)",
            )  # fmt: skip
        yield from _full(info, told, statuses.get(info.name))
    yield from _timeouts(facts)


def _full(info: QueueInfo, told: GroupsFound | None, status: QueueStatus | None) -> Iterator[Finding]:
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
    yield Finding(
        what="queue", name=shown(info.name), reason="full", weight=NOTED if pace else STOPS,
        text=f"queue {shown(info.name)} is as long as it may be (x-max-length, x-max-length-bytes): publishes are "
        f"refused, {refused:.1f} records a second of late{goes_on}",
        advice="start more consumers, or mqtool purge; with x-overflow drop-head the oldest would go instead",
    )  # fmt: skip


def _timeouts(facts: Facts) -> Iterator[Finding]:
    for copy in authorities(facts.status):
        for each in copy.log.queues:
            counts = each.counts
            if counts is not None and counts.timed_out:
                yield Finding(
                    what="queue", name=shown(each.name), reason="consumer-timeout", weight=NOTED,
                    text=f"{counts.timed_out} subscriptions of queue {shown(each.name)} ended because a record was not "
                    f"settled in time (x-consumer-timeout), since node {copy.node_id} was started",
                    advice="settle sooner, extend, take a smaller prefetch, or declare a longer x-consumer-timeout",
                )  # fmt: skip


# --- groups ---


def _groups(
    found: GroupsFound, arguments: Mapping[str, Mapping[str, Any]], status: QueueStatus | None
) -> Iterator[Finding]:
    """`arguments`: by queue; `status`: of this one, by the master of its log."""
    for group in found.groups:
        if group.kind == _ACKING:
            yield from _progress(found, group, _pace(status))
            yield from _leaving(found, group)
            yield from _kept(found, group, arguments.get(found.queue, {}))


def _pace(status: QueueStatus | None) -> float:
    """Records a second that are given out or settled, of all of a queue's groups together."""
    counts = status.counts if status is not None else None
    return max(counts.deliver_rate, counts.ack_rate) if counts is not None else 0.0


def _name(found: GroupsFound, group: GroupInfo) -> str:
    return f"{shown(found.queue)} {group.group or '(own)'}"


def _of(found: GroupsFound, group: GroupInfo) -> str:
    own = not group.group
    return f"queue {shown(found.queue)}" if own else f"group {group.group} of queue {shown(found.queue)}"


def _progress(found: GroupsFound, group: GroupInfo, pace: float) -> Iterator[Finding]:
    """Why records that could be given out are not: the first reason that holds. `pace`: records a second that are."""
    if not group.unsettled:
        return
    say = _Saying(found, group)
    if group.ready:
        yield from _ready(say, group, pace)
    elif not group.subscribers and group.parked + group.leased < group.unsettled and group.out:
        yield say(
            "closing", NOTED, f"{group.out} records are with subscribers that have ended and not settled them",
            "they come back when those connections end",
        )  # fmt: skip
    elif group.parked + group.leased >= group.unsettled:
        due = f"; the next one ends in {group.due_ms / 1000:.1f} s" if group.due_ms >= 0 else ""
        yield say(
            "waiting-for-time", NOTED,
            f"{group.leased} records are leased{_holders(group)} and {group.parked} wait for a delay{due}",
            "settle the leases, or wait: they come back by themselves",
        )  # fmt: skip
    if group.alone and group.idle_for_another:
        yield say(
            "one-active", NOTED,
            f"{group.idle_for_another} subscribers get nothing while {group.alone} has it for itself",
            "this is as asked for (exclusive, or x-single-active-consumer); end that subscriber to pass it on",
        )  # fmt: skip


def _holders(group: GroupInfo) -> str:
    """Of the leases that are named, as far as they have names."""
    names = list(dict.fromkeys(printable(each.holder) for each in group.leases if each.holder))
    more = ", …" if len(names) > _HOLDERS_SHOWN else ""
    return f" (by {', '.join(names[:_HOLDERS_SHOWN])}{more})" if names else ""


def _leaving(found: GroupsFound, group: GroupInfo) -> Iterator[Finding]:
    if group.departing_waits:
        yield _Saying(found, group)(
            "departures-wait", STOPS,
            f"{group.departing} records are to leave for other queues, and do not: {group.departing_waits}",
            "mend what is named; all but those that are held leave by themselves then, each once",
        )  # fmt: skip


class _Saying:
    """Findings of one group."""

    def __init__(self, found: GroupsFound, group: GroupInfo) -> None:
        self._name = _name(found, group)
        self._of = _of(found, group)

    def __call__(self, reason: str, weight: str, text: str, advice: str) -> Finding:
        return Finding(
            what="group", name=self._name, reason=reason, weight=weight, text=f"{self._of}: {text}", advice=advice
        )


def _ready(say: _Saying, group: GroupInfo, pace: float) -> Iterator[Finding]:
    """Who is busy has no credit at most moments: it stands still only if nothing goes on beside it."""
    ready = f"{group.ready} records are ready"
    weight = NOTED if pace else STOPS
    why = _why_none(group) + (f"; meanwhile {pace:.1f} records a second are given out or settled" if pace else "")
    able = group.subscribers - group.idle_for_another
    held_up = len(group.without_credit) + len(group.not_reading)
    if not group.subscribers and not group.waiting:
        yield say(
            "no-subscriber", STOPS, f"{ready}, and nobody is subscribed or waits for a lease",
            "start a consumer; mqtool receive takes some by hand, mqtool purge throws them away",
        )  # fmt: skip
    elif group.alone and (group.without_credit or group.not_reading) and not group.waiting:
        holder = group.alone
        yield say(
            "holder-idle", weight, f"{ready}, and {holder}, which has the group for itself, takes none: {why}",
            "have it settle what it has, or end it, then another one may go on",
        )  # fmt: skip
    elif group.subscribers and not group.waiting and held_up >= min(able, _NAMED_MAX):
        yield say(
            "no-credit", weight, f"{ready}, and no subscriber takes more: {why}",
            "have them settle what they have in hand, give them a larger prefetch, or start more of them",
        )  # fmt: skip


def _why_none(group: GroupInfo) -> str:
    parts = []
    if group.without_credit:
        parts.append(f"their prefetch is used up by {', '.join(group.without_credit)}")
    if group.not_reading:
        parts.append(f"{', '.join(group.not_reading)} do not read what was sent")
    return "; ".join(parts)


def _kept(found: GroupsFound, group: GroupInfo, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    say = _Saying(found, group)
    if group.gone:
        yield say(
            "expired-unread", NOTED, f"retention has freed {group.gone} records that it had not settled",
            'declare the queue with retention="work" if each is to be settled, or give it longer limits',
        )  # fmt: skip
    if arguments.get("retention") == "work" and group.unsettled and not group.subscribers and not group.waiting:
        yield say(
            "retention-held", NOTED,
            f'{group.unsettled} records from {group.floor} on are kept for it (retention="work"), nobody takes them',
            "start its consumers, or delete the group: mqtool group-delete",
        )  # fmt: skip
    limit = arguments.get("x-max-length")
    if type(limit) is int and not group.group and group.unsettled > limit and not _rejects(arguments):
        yield say(
            "above-length", NOTED, f"{group.unsettled} records are unsettled and x-max-length is {limit}",
            "the oldest go; start more consumers",
        )  # fmt: skip


def _rejects(arguments: Mapping[str, Any]) -> bool:
    return str(arguments.get("x-overflow", "")).startswith("reject-publish")


def reasons(found: Iterable[Finding]) -> set[str]:
    """The words of some findings."""
    return {each.reason for each in found}
