"""What a node serves: its ports, its logs and its helpers, whoever decides what each log is to it.

Order at the end: publishes are refused and those that wait are given a moment, then the ports go, then the logs, each
with the last confirmed offset told to its mirrors and written to its checkpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final
from uuid import UUID

from mirrorlog import __version__
from mirrorlog.broker.connections import Connections, native_connections
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.hosted_logs import HostedLogs
from mirrorlog.broker.hosting.status import disk_status, memory_status, with_warnings, without_master
from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.log.host import Helpers, Host
from mirrorlog.broker.moves.alter_requests import AlterRequests, MovingList
from mirrorlog.broker.moves.background import BackgroundTicks
from mirrorlog.broker.moves.evening import QueueEvening
from mirrorlog.broker.moves.former_limits import FormerLimits
from mirrorlog.broker.moves.former_records import FormerRecords
from mirrorlog.broker.moves.move_service import MoveService
from mirrorlog.broker.moves.sync_requests import SyncRequests
from mirrorlog.broker.moves.sync_service import SyncService
from mirrorlog.broker.moves.wanted_places import QueueGovernor, WantedPlaces
from mirrorlog.broker.ports import ClusterView
from mirrorlog.broker.resources.budgets import OutgoingBudget
from mirrorlog.broker.resources.disk_limits import DiskReport, DiskSpace
from mirrorlog.broker.resources.disk_watch import DiskWatch, measure
from mirrorlog.broker.resources.memory_limits import MemoryReport
from mirrorlog.broker.resources.memory_watch import MemoryWatch
from mirrorlog.broker.session.client_session import NativeDoor
from mirrorlog.broker.session.dead_letter_transport import DeadLetterLinks
from mirrorlog.broker.session.operator_requests import Operations
from mirrorlog.broker.session.queue_requests import Requests, Respond
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.cluster.state.events import Event
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.config import LogAssignment, Settings
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.accept import AcceptSocketService
from mirrorlog.ha.pace import MovePace
from mirrorlog.ha.service import TICK_S, HAService
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.fairness.lines import LoopLines
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX
from mirrorlog.wire.listening import check_free
from mirrorlog.wire.messages.handshake import NodeLimits, Welcome
from mirrorlog.wire.messages.queues import ListMoves
from mirrorlog.wire.messages.status import FormerStatus, NodeCounts, Status

logger = logging.getLogger(__name__)

_STOP_WAIT_S: Final = 2.0
_FORMER_DOOR_S: Final = 3.0
"""Doors notice that their node is gone, and end: those of the run before may be about to."""


class Server:
    """`view`: what the node knows of its cluster; `failed`: the node must end;
    `files`: the disk; `measure`: how much space is on it; `children`: its doors, by process id; `awaited`:
    see `Status`; `capped`: see `NodeCounts`."""

    def __init__(
        self,
        settings: Settings,
        directory: DataDirectory,
        *,
        start_id: str,
        view: ClusterView,
        failed: Callable[[MirrorlogError], None],
        files: Files = OS_FILES,
        measure: Callable[[Path], DiskSpace] = measure,
        credentials: Credentials = OPEN,
        capped: Mapping[str, int] = MappingProxyType({}),
        children: Callable[[], Iterable[int]] = tuple,
        awaited: Callable[[], list[str]] = list,
    ) -> None:
        self._settings = settings
        self._credentials = credentials
        self._capped = capped
        self._awaited = awaited
        self._directory = directory
        self._start_id = start_id
        self._failed = failed
        self._view = view
        self.logs = HostedLogs()
        self.logs.why_elsewhere = view.why_elsewhere
        self.helpers = Helpers()
        self.operations: Operations | None = None
        """What operators ask of the cluster; set before it listens."""
        self._disk = DiskWatch(
            settings.node.data_dir,
            settings.log,
            helper=self.helpers.disk,
            measure=measure,
            check=directory.check_in_place,
            failed=failed,
        )
        self._disk.on_measured.append(self._disk_measured)
        self._memory = MemoryWatch(settings.limits, helper=self.helpers.memory, children=children)
        self._memory.on_changed.append(self._memory_changed)
        self._lines = LoopLines()
        self.ha = HAService(
            AcceptSocketService(
                welcome=self.welcome(PROTOCOL_VERSION_MAX),
                limits=settings.limits,
                helper=self.helpers.read,
                credentials=credentials,
                lines=self._lines,
            ),
            pace := MovePace(settings.cluster.move_bytes_per_s),
        )
        self.dead_letters = DeadLetterLinks(
            settings.node.id,
            self.logs,
            view,
            batch_bytes_max=settings.limits.max_batch_bytes,
            helper=self.helpers.dead_letters,
            past_helper=self.helpers.index,
        )
        self.moves = MoveService(settings.node.id, self.logs, view)
        self.former_records = FormerRecords(settings.node.id, self.logs, view, helper=self.helpers.read, pace=pace)
        self.former_limits = FormerLimits(
            self.logs, view, records=self.former_records, spans=self.moves.with_former_records
        )
        self.chronicle: Callable[[Event], None] | None = None
        """What happens to this node's logs is told there; set before it listens."""
        self._host = Host(
            settings,
            start_id,
            self.ha,
            self.helpers,
            failed,
            view,
            files,
            credentials,
            self._tell,
            SubscriptionBook(settings.limits.max_subscriptions),
            self.dead_letters,
            self._memory,
            OutgoingBudget(settings.limits.outgoing_bytes_total),
            lambda: self.logs.opened,
            self.former_limits.sizes,
        )
        self.former: Callable[[], list[FormerStatus]] = list
        """The copies that this node is not named for any more."""
        self.syncs = SyncService(
            self.logs,
            view,
            records=self.former_records,
            pace=pace,
            log_bytes_max=settings.log.retention_bytes,
            tell=self._tell,
        )
        self._evening = QueueEvening(settings.node.id, self.logs, view)
        self._governor = QueueGovernor(self.logs, view)
        self._wanted: WantedPlaces | None = None
        self._door: NativeDoor | None = None
        self._requests: Requests | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._stopping = False

    # --- life ---

    async def start(self) -> None:
        """Measure disk and memory. Raises PortTaken: then nothing was changed."""
        settings = self._settings
        for address in (settings.replication_bind, settings.client_bind):
            await check_free(address)  # a start that fails later has begun a run for nothing
        for door, _ in settings.door_binds.values():
            await check_free(door, within_s=_FORMER_DOOR_S)
        await self._disk.start()
        await self._memory.start()

    async def listen(self) -> None:
        """Serve members, mirrors and clients. Raises PortTaken."""
        settings = self._settings
        self.logs.spans = self._view.all_spans()
        await self.ha.start(settings.replication_bind)
        self._requests = requests = Requests(settings, self.logs, self._view, self._status, self.operations)
        requests.handlers |= SyncRequests(requests, self._view, self.syncs).handlers
        self.moves.is_being_deleted = self._evening.is_being_deleted = requests.is_being_deleted
        self.moves.came = requests.lifetimes.came
        alterations = AlterRequests(requests, self._view)
        alterations.stays = self._evening.stays
        self._wanted = WantedPlaces(
            self.logs,
            self._view,
            lambda log, name: alterations.alter(log, name, {}),
            lambda name: name in alterations.staying or requests.is_being_deleted(name),
        )
        requests.governed = self._governor.change
        requests.handlers |= alterations.handlers
        moving = MovingList(
            self.logs, self._view, self.moves, self._wanted, evening=self._evening, records=self.former_records
        )

        async def list_moves(respond: Respond) -> None:
            respond(await moving.found())

        requests.handlers[ListMoves] = lambda asked, respond: requests.later(list_moves(respond), respond)
        self._door = door = NativeDoor(
            welcome=self.welcome, host=self._host, logs=self.logs, requests=requests, lines=self._lines
        )
        node, book = settings.node.id, self._host.subscriptions
        there = Connections(
            node,
            lambda: native_connections(node, door.sessions, book),
            users=self._view.users, logs=self.logs, tell=self._tell,
        )  # fmt: skip
        requests.handlers |= there.handlers
        await self._door.start(settings.client_bind, self._credentials.client)
        self._ticker = asyncio.ensure_future(self._tick_for_ever())
        self._ticker.add_done_callback(self._ticker_ended)

    @property
    def door_token(self) -> str:
        """By which the node knows its own doors; see `logins.Gatekeeper`."""
        assert self._door is not None
        return self._door.gatekeeper.door_token

    def look_at_rights(self) -> None:
        """The cluster has decided something; perhaps who may do what. Looked at in a step of its own, before whoever
        asked for that is answered: a decision is applied whole, whatever it leads to here."""
        self.logs.spans = self._view.all_spans()
        if self._door is not None:
            asyncio.get_running_loop().call_soon(self._door.look_at_rights)
            self.moves.look_soon()

    async def end_run(self) -> None:
        """The node is about to stop: queues that are not to outlive its run are deleted. A moment only."""
        if self._requests is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_STOP_WAIT_S):
                    await self._requests.lifetimes.end_run()

    def refuse_publishes(self) -> None:
        """The node is about to stop."""
        self._stopping = True
        for log in self.logs:
            log.stop_publishing()

    async def drain(self, *, hurry: Callable[[], bool]) -> None:
        """Give publishes that wait for their copies a moment to be answered; none when there is no time."""
        deadline = asyncio.get_running_loop().time() + _STOP_WAIT_S
        while any(log.waiting for log in self.logs):
            if asyncio.get_running_loop().time() >= deadline or hurry():
                return
            await asyncio.sleep(TICK_S)

    async def stop(self) -> None:
        """Close the ports, then the logs."""
        if self._door is not None:
            self._door.close()
        await self._evening.stop()
        if self._wanted is not None:
            await self._wanted.stop()
        await self.former_limits.stop()
        await self.moves.stop()
        await self.syncs.stop()
        await self.ha.stop()
        await self._disk.stop()
        await self._memory.stop()
        for log in self.logs.everyone():
            await log.close()

    def shut_down(self) -> None:
        """The last of all: no helper is needed any more."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.helpers.shutdown()

    # --- logs ---

    async def open_log(self, assignment: LogAssignment, log_id: UUID) -> HostedLog:
        """Open a log, or find out why it cannot be served: that is in its `error`. Raises MirrorlogError."""
        log = HostedLog(assignment, log_id, self._host)
        await log.open(self._directory.log_directory(log_id))
        self.logs.add(log)
        if log.error is None and self._disk.report is not None:
            log.disk_measured(self._disk.report)
        if self._stopping:
            log.stop_publishing()
        return log

    def _disk_measured(self, report: DiskReport) -> None:
        for log in self.logs:
            log.disk_measured(report)

    def _memory_changed(self, report: MemoryReport) -> None:
        state = report.state.value
        text = (
            report.refusal or f"the node's memory is {state} again: it and its doors hold {report.use.used_bytes} bytes"
        )
        details = {"used_bytes": report.use.used_bytes, "high_bytes": report.limits.high_bytes}
        self._tell(Event(kind=f"memory_{state}", text=text, node=self._settings.node.id, details=details))

    def _tell(self, event: Event) -> None:
        if self.chronicle is not None:
            self.chronicle(event)

    # --- time ---

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._door is not None
        assert self._requests is not None
        assert self._wanted is not None
        background = BackgroundTicks(
            moves=self.moves.tick,
            syncs=self.syncs.tick,
            evening=self._evening.tick,
            former_limits=self.former_limits.tick,
            governor=self._governor.tick,
            wanted_places=self._wanted.tick,
        )
        while True:
            now = loop.time()
            self.ha.tick(now)
            self._door.tick(now)
            for log in self.logs:
                log.tick(now)
            self._requests.lifetimes.tick(now)
            background.tick(now)
            await asyncio.sleep(TICK_S)

    def _ticker_ended(self, ticker: asyncio.Task[None]) -> None:
        """Without its clock a node answers no deadline: it must not live on and hang."""
        if not ticker.cancelled() and (error := ticker.exception()) is not None:
            logger.critical("ticker_failed", exc_info=error)
            self._failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    # --- facts ---

    def welcome(self, version: int) -> Welcome:
        """What is said to whoever connects."""
        limits, cluster = self._settings.limits, self._settings.cluster
        return Welcome(
            version=version,
            cluster_id=str(cluster.cluster_id),
            cluster_name=cluster.name,
            node_id=self._settings.node.id,
            start_id=self._start_id,
            limits=NodeLimits(
                max_record_bytes=limits.max_record_bytes,
                max_batch_bytes=limits.max_batch_bytes,
                credit_bytes=limits.credit_bytes,
                credit_batches=limits.credit_batches,
            ),
            software=f"mirrorlog {__version__}",
        )

    def _status(self) -> Status:
        now, wall = asyncio.get_running_loop().time(), now_us()
        cluster, logs = self._settings.cluster, self.logs.everyone()
        disk = disk_status(self._disk.report, (log.replica for log in logs))
        return Status(
            cluster_id=str(cluster.cluster_id),
            cluster_name=cluster.name,
            node_id=self._settings.node.id,
            start_id=self._start_id,
            now_us=wall,
            logs=with_warnings(
                [without_master(log.status(now, wall), self._view.why_unmastered(log.log_id)) for log in logs],
                disk,
                self._memory.refusal,
            ),
            disk=disk,
            cluster=self._view.status(now),
            counts=self._counts(),
            memory=memory_status(self._memory.report),
            certificate_expires_s=self._credentials.certificate_expires_s,
            former=self.former(),
            awaited=self._awaited(),
        )

    def _counts(self) -> NodeCounts:
        """What was counted since the process began."""
        logs, accept, door = self.logs.everyone(), self.ha.accept, self._door
        told = [log.replica.counters.told(log.name, sent_bytes=accept.sent_bytes(log.log_id)) for log in logs]
        opened, standing, failed = self._view.links()
        return NodeCounts(
            accepted={"client": door.accepted if door else 0, "replication": accept.accepted},
            open={"client": len(door.sessions) if door else 0, "replication": len(accept.links | accept.members)},
            refused=dict(door.refused) if door else {},
            links_opened=opened,
            links_open=standing,
            questions_failed=failed,
            logs=told,
            strangers={"client": door.places.strangers if door else 0, "replication": accept.places.strangers},
            capped=dict(self._capped),
            logins_failed=dict(door.gatekeeper.refused.logins) if door else {},
            rights_refused=dict(door.gatekeeper.refused.rights) if door else {},
            users_held_s=dict(door.quotas.held_s) if door else {},
        )
