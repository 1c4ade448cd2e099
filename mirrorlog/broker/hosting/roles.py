"""What a node does for a log in each of its roles: write it, copy it, or only keep it.

A role begins when the one before has ended, and ends in two steps: `fence`, at once, after which it takes, acks and
answers nothing any more, and `end`, which waits for what its helpers have begun. What the roles have in common, the
copy, its readers and its flushes, is HostedLog's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol

from msgspec.structs import replace

from mirrorlog import __version__
from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.dead_letters.forwarder import DeadLetterForwarder
from mirrorlog.broker.dead_letters.reader import DeadLetterReader
from mirrorlog.broker.hosting.in_sync_keeper import InSyncKeeper
from mirrorlog.broker.hosting.status import (
    hold_infos,
    master_status,
    mirror_status,
    pin_status,
    producer_status,
    producer_statuses,
    resting_status,
)
from mirrorlog.broker.log.after_loss import say_what_is_so
from mirrorlog.broker.log.clock import LogClock, now_us
from mirrorlog.broker.log.host import Host
from mirrorlog.broker.log.maintenance import StateKeeper
from mirrorlog.broker.log.publish import LogPublisher
from mirrorlog.broker.log.refusals import ElsewhereLog
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.resources.disk_limits import DiskReport, DiskState
from mirrorlog.broker.retention.holds import HoldKeeper
from mirrorlog.broker.retention.length_limits import QueueLengths
from mirrorlog.broker.retention.queue_retention import QueueRetention, Retention
from mirrorlog.cluster.state.events import line_of
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.commitlog.epochs import ENTRIES_MAX
from mirrorlog.commitlog.retention import RetentionLimits
from mirrorlog.commitlog.segments.preallocation import first_file_bytes
from mirrorlog.config import Member, Settings
from mirrorlog.ha.accept import MasteredLog
from mirrorlog.ha.client import HAClient
from mirrorlog.ha.client_service import HAClientService
from mirrorlog.ha.in_sync import InSyncSet
from mirrorlog.ha.links import DeclaredLoss
from mirrorlog.ha.mastership import Mastership
from mirrorlog.queues.changes import EpochStarted, encode_change
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, Durability
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.status import LogStatus

logger = logging.getLogger(__name__)

_DURABILITY: Final = {"memory": Durability.MEMORY, "disk": Durability.DISK}


class LogRole(Protocol):
    """`checks`: to be made after each recorded flush, see `Maintenance`."""

    @property
    def publisher(self) -> LogPublisher | ElsewhereLog: ...

    @property
    def checks(self) -> Sequence[Callable[[], None]]: ...

    def flushed(self) -> None:
        """More of the log is on this disk."""

    def disk_measured(self, report: DiskReport) -> None: ...

    def status(self, now: float, now_us: int) -> LogStatus:
        """`now`: the loop's clock in s; `now_us`: µs UTC."""

    def fence(self, elsewhere: ElsewhereLog) -> None:
        """From here on nothing is taken, acked or confirmed in this role; who comes or waits is sent `elsewhere`."""

    async def end(self) -> None:
        """After `fence`: wait for what helpers have begun."""


class RestingRole:
    """Keeps the copy, and its readers have what is confirmed."""

    checks: Sequence[Callable[[], None]] = ()

    def __init__(self, replica: Replica, elsewhere: ElsewhereLog) -> None:
        self.publisher = elsewhere
        self._replica = replica

    def flushed(self) -> None:
        pass

    def disk_measured(self, report: DiskReport) -> None:
        if self._replica.usable:
            self._replica.log.allow_bytes(report.allowed_to_mirror_bytes)

    def status(self, now: float, now_us: int) -> LogStatus:
        return resting_status(self._replica)

    def fence(self, elsewhere: ElsewhereLog) -> None:
        pass

    async def end(self) -> None:
        pass


class MasterRole:
    """Writes the log, in the epoch that was opened last: publishes, links of mirrors, retention, checkpoints."""

    def __init__(
        self, host: Host, replica: Replica, *, in_sync: InSyncSet, losses: Sequence[DeclaredLoss] = ()
    ) -> None:
        """`losses`: see `MasteredLog`."""
        settings, assignment = host.settings, replica.assignment
        self._host = host
        self._replica = replica
        self.mastership = Mastership(
            name=assignment.name,
            own=settings.node.id,
            durability=_DURABILITY[assignment.flush],
            confirmed=replica.log.confirmed,
            waiting_max=settings.limits.max_waiting_confirms,
            in_sync=in_sync,
            lag_s=settings.cluster.mirror_lag_time_ms / 1000,
            pace=host.ha.pace,
        )
        # The loop's clock; asked for by way of the loop it has whole milliseconds, too few for a confirm.
        now = time.monotonic
        clock = LogClock(replica.log, wall_us=now_us, now=now)
        self.publisher = LogPublisher(
            replica,
            self.mastership,
            limits=settings.limits,
            ha=settings.ha,
            now=now,
            now_us=clock,
            view=host.view,
            memory=host.memory,
        )
        self.mastered = self.publisher.log = MasteredLog(
            log_id=replica.log_id,
            copy=replica,
            mastership=self.mastership,
            settings=settings.ha,
            answer=self.publisher.answer,
            losses=losses,
        )
        self._in_sync = InSyncKeeper(
            str(replica.log_id),
            replica.log.epochs.current,
            self.mastership,
            host.view,
            self.mastered.progressed,
            tell=host.tell,
        )
        self._state = StateKeeper(replica, self.publisher, batch_bytes_max=settings.limits.max_batch_bytes)
        self.holds = HoldKeeper(
            replica, self.publisher, hold_bytes=settings.log.hold_bytes, past_helper=host.helpers.index, tell=host.tell
        )
        reader = DeadLetterReader(
            replica,
            helper=host.helpers.dead_letters,
            past_helper=host.helpers.index,
            body_bytes_max=settings.limits.max_batch_bytes,
            former=lambda queue_id, at: host.dead_letters.read_former(
                replica.queues.find_id(queue_id).name, queue_id, at
            ),
        )
        self.deliverer = Deliverer(
            replica,
            self.publisher,
            limits=settings.limits,
            book=host.subscriptions,
            bytes_max=settings.log.send_at_once_bytes,
            begun=lambda: self.begun,
            now=asyncio.get_running_loop().time,
            clock=clock,
            batch_at=reader.batch_at,
            helper=host.helpers.read,
        )
        self.retention = _retention(host, replica, self.publisher, self.deliverer.unread_floors)
        self.lengths = QueueLengths(replica, self.publisher, self.deliverer, host)
        self.publisher.admit = self.lengths.admit
        self.publisher.leaving = self.lengths.leaving
        self.forwardings = DeadLetterForwarder(replica, self.publisher, self.deliverer, host, reader)
        self._stored = partial(host.ha.accept.stored, self.mastered)
        self._gained = partial(host.ha.accept.gained, self.mastered)
        self._reads: list[asyncio.Task[None]] = []
        self._jumped_at: int | None = None
        self.checks = (self._state.wake, self.retention.check)

    def begin(self, *, lost_from: int | None = None, queue_ids: int = 0, without_queues: bool = False) -> None:
        """Append the epoch's first batch and let mirrors come. `lost_from`: the log offset from which on confirmed
        records may be lost: then the queue offsets jump, before anything else is taken, and queue ids above those that
        may have been given out, `queue_ids` (`after_loss`). `without_queues`: those that are there went with a former
        run of the node: they are deleted, before anybody can find them. Raises DiskFull or DiskFailed.
        """
        replica, accept = self._replica, self._host.ha.accept
        epoch, name = replica.log.epochs.current, replica.assignment.name
        # Its confirm proves that every member follows this mastership (invariant 4).
        started = EpochStarted(epoch=epoch, node_id=self._host.settings.node.id, start_id=self._host.start_id)
        replica.append_change(encode_change(started), now_us())
        if lost_from is not None:
            say_what_is_so(replica, self._host.view, lost_from=lost_from, queue_ids=queue_ids, now_us=now_us())
            self._jumped_at = replica.log.end
        if without_queues:
            self._delete_queues()
        self.mastership.epoch_start_end = replica.log.end
        self.mastership.progress.flushed(replica.log.flushed)
        self.mastered.progressed(self.mastership.appended(replica.log.end))
        accept.register(self.mastered)
        replica.on_stored.append(self._stored)
        replica.on_confirmed.append(self._gained)
        replica.on_confirmed.append(self.publisher.tell_credit)
        self.deliverer.begin(jumped=lost_from is not None)
        logger.info("epoch_opened log=%s epoch=%s offset=%s", name, epoch, replica.log.end)
        if (count := len(replica.log.epochs.entries)) > ENTRIES_MAX // 2:
            logger.warning("epochs_many log=%s count=%s limit=%s", name, count, ENTRIES_MAX)

    def _delete_queues(self) -> None:
        """Nothing leads to them any more, and nobody uses them: the cluster took their places away with the run."""
        replica, ids = self._replica, self._replica.queues.queue_ids()
        for queue_id in ids:
            replica.append_change(replica.queues.delete(queue_id), now_us())
        if ids:
            logger.info("queues_of_former_run_deleted log=%s count=%s", replica.assignment.name, len(ids))

    @property
    def begun(self) -> bool:
        """Whether the epoch's first batch is confirmed: all that was confirmed before is known here then."""
        return self._replica.log.confirmed >= (self.mastership.epoch_start_end or 0)

    @property
    def jumped(self) -> bool:
        """Whether this mastership has let the queue offsets jump, and that is confirmed."""
        return self._jumped_at is not None and self._replica.log.confirmed >= self._jumped_at

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock): ask the cluster for what the in-sync set should be."""
        self._in_sync.tick(now)
        alone_s = now - self._host.view.contact_at(now)
        self.publisher.cut_off = alone_s * 1000 > self._host.settings.cluster.node_timeout_ms
        if self.begun:
            self.holds.tick(now)
            self.lengths.tick()
            self.forwardings.tick(now)
        self.deliverer.tick(now)
        self._tell_blocked(now)

    def _tell_blocked(self, now: float) -> None:
        """Of producers that a limit has held for a while."""
        for account in self.publisher.credits.blocked_long(now):
            status = producer_status(self._replica.queues, account, now)
            logger.warning(
                "producer_blocked log=%s queue=%s producer=%s peer=%s limit=%s unconfirmed_bytes=%s blocked_ms=%s",
                self._replica.assignment.name, status.queue, status.producer_id, status.peer, status.blocked_by,
                status.unconfirmed_bytes, status.blocked_ms,
            )  # fmt: skip

    def learned(self, in_sync: InSyncSet) -> None:
        """The cluster has decided this, for the epoch of this mastership."""
        self.mastered.progressed(self.mastership.learned(in_sync))

    def flushed(self) -> None:
        self.mastered.progressed(self.mastership.flushed(self._replica.log.flushed))

    def disk_measured(self, report: DiskReport) -> None:
        self.publisher.data_refused = report.refusal
        self._replica.log.allow_bytes(report.allowed_bytes)
        if report.state is not DiskState.OK and self._host.settings.log.retention_on_low_disk:
            self.retention.disk_is_low()

    def status(self, now: float, now_us: int) -> LogStatus:
        fall_behind = self._host.settings.ha.slave_fall_behind_bytes_max
        status = master_status(
            self._replica, self.mastership, self.deliverer, fall_behind_bytes=fall_behind, now=now, now_us=now_us
        )
        return replace(
            status,
            holds=hold_infos(self._replica, self.holds, now),
            producers=producer_statuses(self._replica.queues, self.publisher.credits, self.publisher.now()),
            producers_blocked=self.publisher.credits.blocked,
            pin=pin_status(self._replica.queues, self.retention.queues.pin),
        )

    def fence(self, elsewhere: ElsewhereLog) -> None:
        replica, accept = self._replica, self._host.ha.accept
        self.publisher.stop(elsewhere.refusal)
        # Acks that are still to come must not confirm anything: what is confirmed from here on the next master says.
        self._reads = accept.unregister(self.mastered, elsewhere.refusal())
        replica.on_stored.remove(self._stored)
        replica.on_confirmed.remove(self._gained)
        replica.on_confirmed.remove(self.publisher.tell_credit)
        self._state.stop()
        self._in_sync.stop()
        self._tell_left_open()
        self.deliverer.fence(elsewhere)
        self.lengths.fence()
        self.forwardings.fence()
        self.publisher.abandon(elsewhere.unknown)

    def _tell_left_open(self) -> None:
        """Whatever its helpers have told to go on, and would tell the end of later: nobody else knows of it."""
        for event in self._in_sync.left_open():
            logger.info("%s", line_of(event))
            self._host.tell(event)

    async def end(self) -> None:
        await self.retention.stop()
        await self.holds.stop()
        await self.lengths.end()
        await self.forwardings.end()
        await asyncio.gather(*self._reads, return_exceptions=True)


class MirrorRole:
    """Copies the log from `master`. `epoch_min`, `losses`: see HAClient; `quiesce`, `loss_end_found`: see
    HAClientService."""

    checks: Sequence[Callable[[], None]] = ()

    def __init__(
        self,
        host: Host,
        replica: Replica,
        *,
        master: Member,
        epoch_min: int,
        flush_helper: Executor,
        quiesce: Callable[[], Awaitable[None]],
        losses: Sequence[DeclaredLoss],
        loss_end_found: Callable[[int, int], None],
    ) -> None:
        settings, name = host.settings, replica.assignment.name
        self._host = host
        self._replica = replica
        self.publisher = ElsewhereLog(name, master)
        client = HAClient(
            log_id=replica.log_id,
            copy=replica,
            greeting=_greeting(host),
            master=master.replication,
            settings=settings.ha,
            now=asyncio.get_running_loop().time(),
            epoch_min=epoch_min,
            losses=losses,
        )
        self.service = HAClientService(
            client=client,
            copy=replica,
            helper=flush_helper,
            name=name,
            frame_bytes_max=max(settings.limits.max_batch_bytes, settings.ha.transfer_batch_bytes),
            limits=settings.limits,
            quiesce=quiesce,
            loss_end_found=loss_end_found,
            credentials=host.credentials,
        )

    def begin(self) -> None:
        """Dial."""
        self._replica.on_stored.append(self.service.stored)
        self._host.ha.add(self.service)
        self.service.tick(asyncio.get_running_loop().time())

    def flushed(self) -> None:
        self._replica.note_repaired()
        self.service.flushed()

    def disk_measured(self, report: DiskReport) -> None:
        replica = self._replica
        if replica.usable:
            replica.log.allow_bytes(report.allowed_to_mirror_bytes)
        has_spare = replica.usable and replica.log.has_spare
        settings = self._host.settings
        file_bytes = first_file_bytes(settings.log.segment_bytes, settings.limits.max_batch_bytes)
        room = has_spare or report.allowed_to_mirror_bytes >= file_bytes
        self.service.space_measured(room=room)

    def status(self, now: float, now_us: int) -> LogStatus:
        status = mirror_status(self._replica, self.service)
        repairing = self._replica.repairing
        if repairing is None or not self._replica.usable or status.reason:
            return status
        reason = f"repairs its copy: was bad from log offset {repairing.first}, has {repairing.last} to come to again"
        return replace(status, reason=reason)

    def fence(self, elsewhere: ElsewhereLog) -> None:
        self._host.ha.remove(self.service)
        self._replica.on_stored.remove(self.service.stored)
        self.service.fence()

    async def end(self) -> None:
        await self.service.stop()


def _greeting(host: Host) -> Hello:
    return Hello(
        version_min=PROTOCOL_VERSION_MIN,
        version_max=PROTOCOL_VERSION_MAX,
        role="mirror",
        software=f"mirrorlog {__version__}",
        cluster_id=str(host.settings.cluster.cluster_id),
        node_id=host.settings.node.id,
        start_id=host.start_id,
    )


def _retention(
    host: Host, replica: Replica, publisher: LogPublisher, unread: Callable[[], Mapping[int, int]]
) -> Retention:
    queues = QueueRetention(
        replica,
        publisher,
        copy_share=host.settings.log.retention_copy_percent / 100,
        copy_bytes=host.settings.log.retention_copy_bytes,
        past_helper=host.helpers.index,
        read_helper=host.helpers.read,
        now=asyncio.get_running_loop().time,
        now_us=now_us,
        unread=unread,
    )
    return Retention(replica, publisher, limits=_limits_of(host.settings), now_us=now_us, queues=queues)


def _limits_of(settings: Settings) -> RetentionLimits:
    age_ms = settings.log.retention_ms
    return RetentionLimits(
        max_age_us=age_ms * 1000 if age_ms is not None else None, max_bytes=settings.log.retention_bytes
    )


def in_sync_set(state: ClusterState, log_id: str) -> InSyncSet:
    """What the cluster has decided, for the log's master."""
    log, nodes, places = state.logs[log_id], state.nodes, state.places
    target = places.place(log_id).target if places is not None else ()
    return InSyncSet(
        version=log.version,
        replicas=log.replicas,
        members=log.in_sync,
        marked=log.marked,
        copies_wanted=log.copies_wanted,
        starts={node: nodes[node].start_id for node in log.replicas if node in nodes},
        target=target,
        paused=places is not None and places.paused,
    )
