"""What a node knows about its logs, as `mqtool offsets` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

import msgspec

from mirrorlog.broker.log.counters import GroupCounters, QueueCounters
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.ports import Reply
from mirrorlog.broker.resources.disk_limits import DiskReport, DiskState
from mirrorlog.broker.resources.memory_limits import MemoryReport
from mirrorlog.commitlog.index.gaps import counted_there
from mirrorlog.commitlog.retention import Pin
from mirrorlog.config import LogAssignment
from mirrorlog.errors import LogUnavailable, MirrorlogError
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.mastership import Mastership
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.queues.groups.table import OWN_GROUP
from mirrorlog.queues.limits.credit import Account, Credits
from mirrorlog.queues.limits.holds import Hold
from mirrorlog.queues.queue_table import Queue
from mirrorlog.queues.registry import QueueRegistry
from mirrorlog.wire.messages.queues import HoldInfo, Position
from mirrorlog.wire.messages.status import (
    AckingGroupStatus,
    DiskStatus,
    GroupStatus,
    LeftQueueStatus,
    LogStatus,
    MemoryStatus,
    MirrorStatus,
    PinStatus,
    ProducerStatus,
    QueueStatus,
)

if TYPE_CHECKING:
    from mirrorlog.broker.consumer_groups.coordinator import Deliverer
    from mirrorlog.broker.retention.holds import HoldKeeper
    from mirrorlog.ha.client_service import HAClientService

Clock = Callable[[], float]

_Key = tuple[int, str]
"""A group: queue id, and name."""
_OF_OWN_GROUP: Final = ("ready", "unacknowledged", "delayed", "consumers", "oldest_age_ms")


def master_status(
    replica: Replica, mastership: Mastership, deliverer: Deliverer, *, fall_behind_bytes: int, now: float, now_us: int
) -> LogStatus:
    """The log as its master sees it, mirrors included. `now`: the loop's clock in s; `now_us`: µs UTC."""
    mirrors = [
        _mirror(replica, mastership, node, fall_behind_bytes=fall_behind_bytes, now=now, now_us=now_us)
        for node in mastership.mirrors
    ]
    state, reason = mastership.state.value, mastership.reason
    acking = _acking(replica, deliverer, now, now_us)
    own = {each.queue: each for each in acking if each.group == OWN_GROUP}
    used = {queue.name for queue in replica.queues if OWN_GROUP in replica.groups.groups(queue.queue_id)}
    log = _log(replica, role="master", state=state, reason=reason, mirrors=mirrors, queues=_mastered(replica, own, now))
    there = [each for each in acking if each.group != OWN_GROUP or each.queue in used]
    return msgspec.structs.replace(log, copies_up=mastership.copies_up, acking=there)


def mirror_lags(replica: Replica, mastership: Mastership) -> dict[str, tuple[int, int]]:
    """By node, what mirrors that are not in sync lack, bytes and records; of those that had a link to this master."""
    progress, end = mastership.progress, replica.log.end
    ends = {node: progress.held(node).written for node in mastership.mirrors if not progress.is_member(node)}
    return {node: (end - held, replica.index.records_between(held, end)) for node, held in ends.items() if held}


def mirror_status(replica: Replica, service: HAClientService) -> LogStatus:
    """The log as one of its mirrors sees it."""
    if not replica.usable:
        error = LogUnavailable("the copy begins anew")
        return unavailable_status(replica.assignment, replica.log_id, error, role="mirror", state="opening")
    following = service.following
    reason = "" if following else str(service.client.last_error or "")
    return _log(replica, role="mirror", state="following" if following else "disconnected", reason=reason, mirrors=[])


def resting_status(replica: Replica) -> LogStatus:
    """The log on a node that neither writes nor follows it now."""
    if not replica.usable:
        error = LogUnavailable("the copy begins anew")
        return unavailable_status(replica.assignment, replica.log_id, error, role="none", state="opening")
    return _log(replica, role="none", state="resting", reason="", mirrors=[])


def unavailable_status(
    assignment: LogAssignment, log_id: UUID, error: MirrorlogError, *, role: str, state: str = "corrupt"
) -> LogStatus:
    """A log that this node refuses to serve, or whose copy begins anew (`opening`)."""
    return LogStatus(
        log_id=str(log_id),
        name=assignment.name,
        role=role,
        state=state,
        reason=str(error),
        flush=assignment.flush,
        min_in_sync=assignment.copies_wanted,
        epoch=0,
        begin=0,
        end=0,
        flushed=0,
        confirmed=0,
        mirrors=[],
        queues=[],
        groups=[],
    )


def disk_status(report: DiskReport | None, replicas: Iterable[Replica]) -> DiskStatus | None:
    """The disk of the data directory. One that gives a log no further file refuses data: that is full, whatever is free
    of it."""
    if report is None:
        return None
    refusals = (each.log.disk_refusal for each in replicas if each.usable)
    refusal = report.refusal or next(filter(None, refusals), "")
    return DiskStatus(
        state=DiskState.FULL.value if refusal else report.state.value,
        reason=refusal or report.warning,
        free_bytes=report.space.free_bytes,
        size_bytes=report.space.size_bytes,
    )


def memory_status(report: MemoryReport | None) -> MemoryStatus | None:
    """The memory of the node and its doors."""
    if report is None:
        return None
    return MemoryStatus(
        state=report.state.value,
        reason=report.refusal,
        used_bytes=report.use.used_bytes,
        high_bytes=report.limits.high_bytes,
        size_bytes=report.use.size_bytes,
    )


def without_master(log: LogStatus, why: str) -> LogStatus:
    """A copy that follows nobody says why, where it is known; one that is not served has something else to tell."""
    return msgspec.structs.replace(log, reason=why) if why and log.state in ("resting", "disconnected") else log


def with_warnings(logs: Sequence[LogStatus], disk: DiskStatus | None, memory: str) -> list[LogStatus]:
    """What is wrong with the disk, or the memory, is the reason of every log for which nothing else is to be told."""
    warning = (disk.reason if disk is not None else "") or memory
    if not warning:
        return list(logs)
    return [log if log.reason else msgspec.structs.replace(log, reason=warning) for log in logs]


def _log(
    replica: Replica,
    *,
    role: str,
    state: str,
    reason: str,
    mirrors: list[MirrorStatus],
    queues: list[QueueStatus] | None = None,
) -> LogStatus:
    assignment = replica.assignment
    return LogStatus(
        log_id=str(replica.log_id),
        name=assignment.name,
        role=role,
        state=state,
        reason=reason,
        flush=assignment.flush,
        min_in_sync=assignment.copies_wanted,
        epoch=replica.log.epochs.current,
        begin=replica.log.begin,
        end=replica.log.end,
        flushed=replica.log.flushed,
        confirmed=replica.log.confirmed,
        mirrors=mirrors,
        queues=queues if queues is not None else [_queue(replica, queue) for queue in replica.queues],
        groups=_groups(replica),
        holds=hold_infos(replica, None, 0.0),
        left=_left(replica),
    )


def _left(replica: Replica) -> list[LeftQueueStatus]:
    """Of queues that are in other logs now."""
    index, moves = replica.index, replica.queues.moves
    rows = [
        LeftQueueStatus(
            queue=each.name,
            queue_id=queue_id,
            begin=max(each.first, index.begin(queue_id)),
            next=each.next_queue_offset,
            moved_to=each.target,
        )
        for queue_id, each in moves.left.items()
        if each.name and not each.freed
    ]
    return sorted((row for row in rows if row.begin < row.next), key=lambda row: row.queue)


def hold_infos(replica: Replica, keeper: HoldKeeper | None, now: float) -> list[HoldInfo]:
    """All holds of a log, in the order of its queues, as `hold_info` tells of each."""
    return [
        hold_info(replica, queue, hold, keeper, now)
        for queue in replica.queues
        for _, hold in sorted(replica.holds.confirmed(queue.queue_id).items())
    ]


def hold_info(replica: Replica, queue: Queue, hold: Hold, keeper: HoldKeeper | None, now: float) -> HoldInfo:
    """A hold on a queue. `keeper`: of the log's master, None elsewhere; `now`: the loop's clock in s."""
    index, queue_id = replica.index, queue.queue_id
    following = index.next_confirmed(queue_id)
    return HoldInfo(
        queue=queue.name,
        name=hold.name,
        holder=hold.holder,
        epoch=hold.epoch,
        queue_offset=hold.queue_offset,
        lease_ms=hold.lease_ms,
        left_ms=keeper.left_ms(queue_id, hold, now) if keeper is not None else -1,
        location=hold.location,
        tiered=hold.tiered,
        ended=hold.ended,
        begin=index.begin(queue_id),
        next=following,
        lag=max(0, following - hold.queue_offset),
        kept_bytes=keeper.kept_bytes(queue_id, hold.name) if keeper is not None and hold.live else -1,
    )


def pin_status(queues: QueueRegistry, pin: Pin | None) -> PinStatus | None:
    """One by a queue that has gone since is none any more."""
    if pin is None or not queues.has_id(pin.queue_id):
        return None
    name = queues.find_id(pin.queue_id).name
    return PinStatus(queue=name, live_bytes=pin.live_bytes, dead_bytes=pin.dead_bytes)


def _mastered(replica: Replica, own: Mapping[str, AckingGroupStatus], now: float) -> list[QueueStatus]:
    """As the master tells, which alone counts and gives out."""
    counted, works = replica.counters.queues, replica.queues.works(replica.groups.queue_ids())
    return [
        _queue(
            replica,
            queue,
            counts=counts.told(now) if (counts := counted.get(queue.queue_id)) is not None else None,
            works=queue.queue_id in works,
            refuse_rate=counts.refused.rate(now) if counts is not None else 0.0,
            **{name: getattr(own[queue.name], name) for name in _OF_OWN_GROUP},
        )
        for queue in replica.queues
    ]


def _queue(replica: Replica, queue: Queue, **more: Any) -> QueueStatus:
    index = replica.index
    return QueueStatus(
        name=queue.name,
        queue_id=queue.queue_id,
        begin=index.begin(queue.queue_id),
        next=index.next_appended(queue.queue_id),
        confirmed=index.next_confirmed(queue.queue_id),
        **more,
    )


def _acking(replica: Replica, deliverer: Deliverer, now: float, now_us: int) -> list[AckingGroupStatus]:
    """Of each queue, its own group first. Before anybody has taken from it, that is not there, and all there is may be
    given out."""
    found = [each for queue in replica.queues for each in _groups_of(replica, deliverer, queue, now, now_us)]
    oldest = replica.counters.oldest
    if len(oldest) > len(found):  # of groups that are gone
        oldest.clear()
    return found


def _groups_of(
    replica: Replica, deliverer: Deliverer, queue: Queue, now: float, now_us: int
) -> Iterator[AckingGroupStatus]:
    queue_id, index = queue.queue_id, replica.index
    ledgers = replica.groups.groups(queue_id)
    counts = replica.counters.queues.get(queue_id) or QueueCounters()
    named = {group: replica.counters.groups.get((queue_id, group)) or GroupCounters() for group in ledgers if group}
    for group in (OWN_GROUP, *sorted(named)):
        ledger, key = ledgers.get(group) or Ledger(), (queue_id, group)
        held, leaving = deliverer.held_back(*key), deliverer.forwardings.forwarding(*key)
        counted, others = (named[group], []) if group else (counts, named.values())
        yield AckingGroupStatus(
            queue=queue.name,
            group=group,
            ready=counted_there(
                ledger.ready, index.begin(queue_id), index.gaps_of(queue_id), index.next_confirmed(queue_id)
            ),
            unacknowledged=max(0, ledger.out + ledger.leased - held - leaving),
            delayed=ledger.parked + held,
            leaving=leaving,
            consumers=deliverer.subscribers(*key),
            oldest_age_ms=_oldest_age_ms(replica, key, ledger.floor, now_us),
            delivered=counted.delivered.total - sum(each.delivered.total for each in others),
            acked=counted.acked.total - sum(each.acked.total for each in others),
            dead_lettered=counted.dead_lettered - sum(each.dead_lettered for each in others),
            deliver_rate=max(0.0, counted.delivered.rate(now) - sum(each.delivered.rate(now) for each in others)),
            ack_rate=max(0.0, counted.acked.rate(now) - sum(each.acked.rate(now) for each in others)),
        )


def _oldest_age_ms(replica: Replica, key: _Key, floor: int, now_us: int) -> int:
    """Of the first record that is not settled. When that was appended is remembered, for the index lets go of it; what
    nobody has looked at before it did is older than all that the index has: at least so old."""
    index, queue_id = replica.index, key[0]
    first = max(floor, index.begin(queue_id))
    if first >= index.next_confirmed(queue_id):
        return 0
    known = replica.counters.oldest.get(key)
    if index.past_until(queue_id, first) is None:
        appended_us = index.append_time_from(index.find(queue_id, first).log_offset)
    elif known is not None and known[0] == first:
        appended_us = known[1]
    else:
        appended_us = index.append_time_from(index.hot_from)
    if appended_us is None:
        return 0
    replica.counters.oldest[key] = first, appended_us
    return max(0, (now_us - appended_us) // 1000)


def _groups(replica: Replica) -> list[GroupStatus]:
    return [
        GroupStatus(
            group=group,
            queue=queue.name,
            position=Position(log_id=stored.log_id, epoch=stored.epoch, queue_offset=stored.queue_offset),
            lag=max(0, replica.index.next_confirmed(queue.queue_id) - stored.queue_offset),
        )
        for queue in replica.queues
        for group, stored in sorted(queue.positions.items())
    ]


def _mirror(
    replica: Replica, mastership: Mastership, node: str, *, fall_behind_bytes: int, now: float, now_us: int
) -> MirrorStatus:
    link = mastership.links.get(node)
    held = mastership.progress.held(node)
    lag_bytes = replica.log.end - held.written
    proven = link is not None and link.proven
    return MirrorStatus(
        node_id=node,
        connected=link is not None,
        proven=proven,
        in_sync=proven and mastership.progress.is_member(node) and lag_bytes <= fall_behind_bytes,
        requested=link.read_half.requested if link else -1,
        sent=link.write_half.next_transfer if link else -1,
        acked=held.written,
        flushed=held.flushed,
        lag_bytes=lag_bytes,
        lag_records=replica.index.records_between(held.written, replica.log.end),
        lag_records_estimated=held.written < replica.index.hot_from,
        lag_seconds=_lag_seconds(replica, held.written, now_us),
        bytes_per_second=link.write_half.rate.per_second(now) if link else 0.0,
        move_bytes_per_s=link.pace.bytes_per_s if link and link.pace else 0,
        last_read_us=_wall(link, now, now_us, read=True),
        last_write_us=_wall(link, now, now_us, read=False),
    )


def _lag_seconds(replica: Replica, acked: int, now_us: int) -> float:
    """Now less the append time of the oldest batch that the mirror has not acked; 0 when it has all."""
    if acked >= replica.log.end:
        return 0.0
    # From the index and not from the log, which may have to be read from disk.
    appended_us = replica.index.append_time_from(acked)
    return 0.0 if appended_us is None else max(0.0, (now_us - appended_us) / 1e6)


def _wall(link: HAConnection | None, now: float, now_us: int, *, read: bool) -> int | None:
    if link is None:
        return None
    last = link.read_half.last_read if read else link.write_half.last_write
    return now_us - int((now - last) * 1e6)


_PRODUCERS_TOLD_MAX: Final = 100


def producer_statuses(queues: QueueRegistry, counted: Credits, now: float) -> list[ProducerStatus]:
    """Those with something that is not confirmed, or held by a limit; these first, and at most 100."""
    return [producer_status(queues, account, now) for account in islice(counted.told(), _PRODUCERS_TOLD_MAX)]


def producer_status(queues: QueueRegistry, account: Account, now: float) -> ProducerStatus:
    reply, producer_id, queue_id = account.key
    return ProducerStatus(
        queue=queues.find_id(queue_id).name if queues.has_id(queue_id) else "",
        producer_id=producer_id,
        peer=cast(Reply, reply).peer,
        unconfirmed_bytes=account.size,
        unconfirmed_batches=account.batches,
        blocked_by=account.blocked_by,
        blocked_ms=int((now - account.blocked_at) * 1000) if account.blocked_by else 0,
        refused=account.refused,
    )
