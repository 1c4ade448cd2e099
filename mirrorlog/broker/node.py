"""A node: the composition root. Opens the data directory and the logs, wires the pure parts to sockets and helpers.

Order at start: lock the directory, recover the logs, open a new epoch for each log mastered here (on disk before the
first byte), listen for mirrors, follow masters, and only then serve clients. Order at stop: the reverse, with the
last confirmed offset told to the mirrors and written to the checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final
from uuid import UUID

from mirrorlog import __version__
from mirrorlog.broker.disk_limits import DiskReport, DiskState
from mirrorlog.broker.disk_watch import DiskWatch
from mirrorlog.broker.door import DoorLog, NativeDoor
from mirrorlog.broker.fetch import Fetcher
from mirrorlog.broker.grpc_process import GrpcDoorProcess
from mirrorlog.broker.loss_keeper import LossKeeper
from mirrorlog.broker.maintenance import Maintenance
from mirrorlog.broker.past_keeper import PastKeeper
from mirrorlog.broker.publish import ElsewhereLog, Publisher
from mirrorlog.broker.queue_retention import QueueRetention
from mirrorlog.broker.replica import Replica, UnavailableReplica
from mirrorlog.broker.requests import Requests
from mirrorlog.broker.retention import Retention
from mirrorlog.broker.state_keeper import StateKeeper
from mirrorlog.broker.status import disk_status, master_status, mirror_status, unavailable_status, with_disk
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.epochs import ENTRIES_MAX
from mirrorlog.commitlog.retention import RetentionLimits
from mirrorlog.config import LogAssignment, Settings
from mirrorlog.errors import LogUnavailable, MirrorlogError
from mirrorlog.ha.accept import AcceptSocketService, MasteredLog
from mirrorlog.ha.client import HAClient
from mirrorlog.ha.client_service import HAClientService
from mirrorlog.ha.mastership import Mastership
from mirrorlog.ha.service import TICK_S, HAService
from mirrorlog.queues.changes import EpochStarted, encode_change
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, Durability
from mirrorlog.wire.listening import check_free
from mirrorlog.wire.messages import Hello, Limits, LogStatus, Status, Welcome

logger = logging.getLogger(__name__)

_STOP_WAIT_S: Final = 2.0
_DURABILITY: Final = {"memory": Durability.MEMORY, "disk": Durability.DISK}


def now_us() -> int:
    """µs UTC."""
    return time.time_ns() // 1000


def yield_to_others() -> None:
    """Give the calling thread a low priority: what it prepares is worth nothing if it takes the loop's core."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 15)


class Node:
    """One running node. `run` returns its exit code."""

    def __init__(self, settings: Settings, *, debug: bool = False) -> None:
        self._settings = settings
        self._debug = debug
        self._start_id = str(uuid.uuid4())
        self._stopping = asyncio.Event()
        self._failure: MirrorlogError | None = None
        # Each helper has one kind of work, so that a slow flush delays no read, nor the flush of another log.
        self._flush_helpers = {log.name: ThreadPoolExecutor(1, f"flush-{log.name}") for log in settings.own_logs}
        self._warm_helper = ThreadPoolExecutor(1, "warm")
        self._prepare_helper = ThreadPoolExecutor(1, "prepare", initializer=yield_to_others)
        self._read_helper = ThreadPoolExecutor(2, "read")
        self._index_helper = ThreadPoolExecutor(1, "index")
        self._disk_helper = ThreadPoolExecutor(1, "disk")
        self._disk = DiskWatch(settings.node.data_dir, settings.log, helper=self._disk_helper)
        self._disk.on_measured.append(self._disk_measured)
        self._retentions: list[Retention] = []
        self._pasts: list[PastKeeper] = []
        self._directory: DataDirectory | None = None
        self._replicas: dict[str, Replica] = {}
        self._unavailable: dict[str, UnavailableReplica] = {}
        self._mastered: dict[str, MasteredLog] = {}
        self._mirrored: dict[str, HAClientService] = {}
        self._publishers: list[Publisher] = []
        self._door_logs: dict[str, DoorLog] = {}
        self._maintenance: list[Maintenance] = []
        self._ha: HAService | None = None
        self._door: NativeDoor | None = None
        self._grpc: GrpcDoorProcess | None = None
        self._ticker: asyncio.Task[None] | None = None

    # --- life ---

    def stop(self) -> None:
        """Ask for a clean stop; `run` returns soon after."""
        self._stopping.set()

    def fail(self, error: MirrorlogError) -> None:
        """Stop because this node can no longer be trusted with its copy."""
        self._failure = self._failure or error
        self._stopping.set()

    async def run(self) -> int:
        """Serve until stopped; the exit code. Raises MirrorlogError when the start fails."""
        try:
            await self._start()
            await self._start_grpc_door()
            if not self._stopping.is_set():
                print(self._readiness(), flush=True)
            await self._stopping.wait()
        except MirrorlogError as error:
            self.fail(error)
            raise
        finally:
            await self._shut_down()
            if self._ticker is not None:
                self._ticker.cancel()
        return self._failure.exit_code if self._failure else 0

    def _ticker_ended(self, ticker: asyncio.Task[None]) -> None:
        """Without its clock a node answers no deadline: it must not live on and hang."""
        if not ticker.cancelled() and (error := ticker.exception()) is not None:
            logger.critical("ticker_failed", exc_info=error)
            self.fail(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    async def _start(self) -> None:
        settings = self._settings
        cluster_id = settings.cluster.cluster_id
        self._directory = DataDirectory.open(settings.node.data_dir, cluster_id=cluster_id, node_id=settings.node.id)
        for address in (settings.replication_bind, settings.client_bind):
            await check_free(address)  # a start that fails later has begun an epoch for nothing
        await self._disk.start()
        for assignment in settings.own_logs:
            await self._open_log(self._directory, assignment)
        accept = AcceptSocketService(
            welcome=self._welcome(PROTOCOL_VERSION_MAX),
            logs=list(self._mastered.values()),
            limits=settings.limits,
            helper=self._read_helper,
            refusals=self._refusals(),
        )
        for replica in self._replicas.values():
            if replica.is_master:
                replica.on_stored.append(accept.stored)
                replica.on_confirmed.append(accept.gained)
        self._ha = HAService(accept, list(self._mirrored.values()))
        await self._ha.start(settings.replication_bind)
        self._door = NativeDoor(
            settings,
            welcome=self._welcome,
            logs=self._door_logs,
            refusals=self._refusals(),
            requests=Requests(settings, self._door_logs, self._refusals(), self._status),
            push=accept.push,
        )
        await self._door.start(settings.client_bind)
        # From here on clients are answered, so deadlines must be kept; the door below may take its time.
        self._ticker = asyncio.ensure_future(self._tick_for_ever())
        self._ticker.add_done_callback(self._ticker_ended)

    async def _start_grpc_door(self) -> None:
        """Start the door's process and wait until it serves, or until the node is asked to stop."""
        settings = self._settings
        if settings.grpc_bind is None:
            return
        self._grpc = GrpcDoorProcess(node=settings.client_bind, bind=settings.grpc_bind, debug=self._debug)
        serving = asyncio.ensure_future(self._grpc.start())
        stopping = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            serving.cancel()
        elif not serving.result():
            logger.warning("grpc_door_not_serving bind=%s", settings.grpc_bind)

    async def _shut_down(self) -> None:
        for publisher in self._publishers:
            publisher.stopping = True
        await self._drain()
        if self._grpc is not None:
            await self._grpc.stop()
        if self._door is not None:
            self._door.close()
        if self._ha is not None:
            await self._ha.stop()
        await self._disk.stop()
        await self._close_logs()
        if self._directory is not None:
            self._directory.close()
        for helper in (
            *self._flush_helpers.values(),
            self._warm_helper,
            self._prepare_helper,
            self._read_helper,
            self._index_helper,
            self._disk_helper,
        ):
            helper.shutdown(wait=True, cancel_futures=True)
        logger.info("node_stopped reason=%r", str(self._failure or "asked to"))

    async def _close_logs(self) -> None:
        """Every log is flushed and closed, whatever the others do."""
        for maintenance in self._maintenance:
            await maintenance.stop()
        for retention in self._retentions:
            await retention.stop()
        for past in self._pasts:
            await past.stop()
        loop = asyncio.get_running_loop()
        for replica in self._replicas.values():
            try:
                await loop.run_in_executor(self._flush_helpers[replica.assignment.name], replica.close)
            except MirrorlogError as error:
                self.fail(error)

    async def _drain(self) -> None:
        """Give publishes that wait for their copies a moment to be answered."""
        deadline = asyncio.get_running_loop().time() + _STOP_WAIT_S
        while any(log.mastership.waiting for log in self._mastered.values()):
            if asyncio.get_running_loop().time() >= deadline or self._failure:
                return
            await asyncio.sleep(TICK_S)

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            assert self._ha is not None
            assert self._door is not None
            self._ha.tick(now)
            self._door.tick(now)
            await asyncio.sleep(TICK_S)

    # --- logs ---

    async def _open_log(self, directory: DataDirectory, assignment: LogAssignment) -> None:
        log_id = self._settings.cluster.log_id(assignment)
        replica = Replica(assignment, log_id, self._settings)
        replica.on_broken = self.fail
        loop = asyncio.get_running_loop()
        started = loop.time()
        helper = self._flush_helpers[assignment.name]
        try:
            await loop.run_in_executor(helper, replica.open, directory.log_directory(log_id))
        except LogUnavailable as error:
            # Other logs of this node go on; this one is refused by its reason until it is repaired.
            self._refuse_log(assignment, log_id, error)
            return
        if replica.is_master and (count := len(replica.epochs.entries)) >= ENTRIES_MAX:
            await loop.run_in_executor(helper, replica.close)
            full = LogUnavailable(
                f"log {assignment.name} has {count} epochs, and each start of its master adds one: no more fit; "
                "its mirrors still serve readers, publish its records from there into a new log"
            )
            self._refuse_log(assignment, log_id, full)
            return
        self._report_recovery(replica, loop.time() - started)
        self._replicas[str(log_id)] = replica
        if replica.is_master:
            await self._master(replica)
        else:
            self._mirror(replica)

    def _refuse_log(self, assignment: LogAssignment, log_id: UUID, error: LogUnavailable) -> None:
        logger.error("log_unavailable log=%s reason=%r", assignment.name, str(error))
        self._unavailable[str(log_id)] = UnavailableReplica(assignment, log_id, error)

    def _report_recovery(self, replica: Replica, seconds: float) -> None:
        report = replica.log.recovery
        name = replica.assignment.name
        logger.info(
            "log_opened log=%s epoch=%s begin=%s end=%s flushed=%s confirmed=%s batches=%s seconds=%.3f",
            name, replica.epochs.current, replica.begin, replica.end, replica.flushed, replica.confirmed,
            report.batches, seconds,
        )  # fmt: skip
        if report.torn is not None:
            logger.warning("torn_tail_cut log=%s %s", name, report.torn)
        if report.lossy:
            logger.error("log_lossy log=%s cut=%s confirmed_was=%s", name, report.cut_valid, report.recorded.confirmed)
        for warning in report.warnings:
            logger.warning("log_warning log=%s reason=%r", name, warning)

    async def _master(self, replica: Replica) -> None:
        settings = self._settings
        assignment = replica.assignment
        epoch = replica.epochs.current + 1
        loop = asyncio.get_running_loop()
        open_epoch = partial(replica.log.open_epoch, epoch, node_id=settings.node.id, start_id=self._start_id)
        await loop.run_in_executor(self._flush_helpers[assignment.name], open_epoch)
        mastership = Mastership(
            name=assignment.name,
            own=settings.node.id,
            mirrors=assignment.mirrors,
            durability=_DURABILITY[assignment.flush],
            min_in_sync=assignment.copies_wanted,
            confirmed=replica.confirmed,
            waiting_max=settings.limits.max_waiting_confirms,
            lossy=replica.log.lossy,
        )
        publisher = Publisher(replica, mastership, limits=settings.limits, ha=settings.ha, now=loop.time, now_us=now_us)
        mastered = MasteredLog(
            log_id=replica.log_id,
            name=assignment.name,
            own_id=settings.node.id,
            log=replica,
            mastership=mastership,
            settings=settings.ha,
            answer=publisher.answer,
        )
        publisher.log = mastered
        self._publishers.append(publisher)
        replica.log.keep_reserve(settings.log.reserve)
        state = StateKeeper(replica, publisher, batch_bytes_max=settings.limits.max_batch_bytes)
        self._mastered[str(replica.log_id)] = mastered
        # The epoch's first batch: its confirm proves that every member follows this mastership (invariant 4).
        started = EpochStarted(epoch=epoch, node_id=settings.node.id, start_id=self._start_id)
        replica.append_change(encode_change(started), now_us())
        mastership.progress.flushed(replica.flushed)
        mastered.progressed(mastership.appended(replica.end))
        logger.info("epoch_opened log=%s epoch=%s offset=%s", assignment.name, epoch, replica.end)
        if (count := len(replica.epochs.entries)) > ENTRIES_MAX // 2:
            logger.warning("epochs_many log=%s count=%s limit=%s", assignment.name, count, ENTRIES_MAX)
        loss = LossKeeper(replica, mastership, helper=self._flush_helpers[assignment.name])
        self._serve(
            replica, publisher, lambda: mastered.progressed(mastership.flushed(replica.flushed)), loss.check, state.wake
        )

    def _mirror(self, replica: Replica) -> None:
        settings = self._settings
        master = settings.cluster.member(replica.assignment.master)
        greeting = Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION_MAX,
            role="mirror",
            software=f"mirrorlog {__version__}",
            cluster_id=str(settings.cluster.cluster_id),
            node_id=settings.node.id,
            start_id=self._start_id,
        )
        client = HAClient(
            log_id=replica.log_id,
            log=replica,
            greeting=greeting,
            master=master.replication,
            settings=settings.ha,
            now=asyncio.get_running_loop().time(),
        )
        service = HAClientService(
            client=client,
            log=replica,
            helper=self._flush_helpers[replica.assignment.name],
            name=replica.assignment.name,
            frame_bytes_max=max(settings.limits.max_batch_bytes, settings.ha.transfer_batch_bytes),
            limits=settings.limits,
            quiesce=partial(self._quiesce, replica),
        )
        replica.on_stored.append(service.stored)
        self._mirrored[str(replica.log_id)] = service
        elsewhere = ElsewhereLog(replica.assignment.name, master)
        self._serve(replica, elsewhere, service.flushed)

    def _serve(
        self,
        replica: Replica,
        publisher: Publisher | ElsewhereLog,
        flushed: Callable[[], None],
        *checks: Callable[[], None],
    ) -> None:
        settings = self._settings
        loop = asyncio.get_running_loop()
        past = PastKeeper(replica, helper=self._index_helper, failed=self.fail)
        self._pasts.append(past)
        fetcher = Fetcher(
            replica, limits=settings.limits, settings=settings.log, past=past, helper=self._read_helper, now=loop.time
        )
        self._door_logs[str(replica.log_id)] = DoorLog(replica, publisher, fetcher, past)
        checks = (*checks, past.wake)
        if isinstance(publisher, Publisher):
            limits = RetentionLimits(
                max_age_us=settings.log.retention_ms * 1000 if settings.log.retention_ms is not None else None,
                max_bytes=settings.log.retention_bytes,
            )
            queues = QueueRetention(
                replica,
                publisher,
                copy_share=settings.log.retention_copy_percent / 100,
                copy_bytes=settings.log.retention_copy_bytes,
                past_helper=self._index_helper,
                read_helper=self._read_helper,
                now=loop.time,
                now_us=now_us,
            )
            retention = Retention(replica, publisher, limits=limits, now_us=now_us, queues=queues)
            self._retentions.append(retention)
            checks = (*checks, retention.check)
        maintenance = Maintenance(
            replica,
            flush_interval_ms=settings.log.flush_interval_ms,
            flush_bytes=settings.log.flush_bytes,
            flush_helper=self._flush_helpers[replica.assignment.name],
            warm_helper=self._warm_helper,
            prepare_helper=self._prepare_helper,
            flushed=flushed,
            checks=checks,
            failed=self.fail,
        )
        if self._disk.report is not None:
            self._disk_measured(self._disk.report)
        maintenance.start()
        self._maintenance.append(maintenance)

    def _disk_measured(self, report: DiskReport) -> None:
        for publisher in self._publishers:
            publisher.data_refused = report.refusal
        for replica in self._replicas.values():
            if replica.usable:
                replica.log.allow_bytes(report.allowed_bytes if replica.is_master else report.allowed_to_mirror_bytes)
        for log_id, mirrored in self._mirrored.items():
            replica = self._replicas[log_id]
            has_spare = replica.usable and replica.log.has_spare
            room = has_spare or report.allowed_to_mirror_bytes >= self._settings.log.segment_bytes
            mirrored.space_measured(room=room)
        if report.state is not DiskState.OK and self._settings.log.retention_on_low_disk:
            for retention in self._retentions:
                retention.disk_is_low()

    async def _quiesce(self, replica: Replica) -> None:
        """Wait until nothing works on the copy any more but the link that asks."""
        await self._door_logs[str(replica.log_id)].past.stop()
        for maintenance in self._maintenance:
            if maintenance.replica is replica:
                await maintenance.rest()

    # --- facts ---

    def _refusals(self) -> dict[str, MirrorlogError]:
        return {log_id: replica.error for log_id, replica in self._unavailable.items()}

    def _welcome(self, version: int) -> Welcome:
        limits = self._settings.limits
        return Welcome(
            version=version,
            cluster_id=str(self._settings.cluster.cluster_id),
            cluster_name=self._settings.cluster.name,
            node_id=self._settings.node.id,
            start_id=self._start_id,
            limits=Limits(max_record_bytes=limits.max_record_bytes, max_batch_bytes=limits.max_batch_bytes),
            software=f"mirrorlog {__version__}",
        )

    def _status(self) -> Status:
        now, wall = asyncio.get_running_loop().time(), now_us()
        logs: list[LogStatus] = []
        for log_id, replica in self._replicas.items():
            if replica.is_master:
                mastership = self._mastered[log_id].mastership
                fall_behind = self._settings.ha.slave_fall_behind_bytes_max
                logs.append(master_status(replica, mastership, fall_behind_bytes=fall_behind, now=now, now_us=wall))
            else:
                logs.append(mirror_status(replica, self._mirrored[log_id]))
        for unavailable in self._unavailable.values():
            role = "master" if unavailable.assignment.master == self._settings.node.id else "mirror"
            logs.append(unavailable_status(unavailable, role=role))
        cluster = self._settings.cluster
        return Status(
            cluster_id=str(cluster.cluster_id),
            cluster_name=cluster.name,
            node_id=self._settings.node.id,
            start_id=self._start_id,
            now_us=wall,
            logs=with_disk(logs, self._disk.report),
            disk=disk_status(self._disk.report),
        )

    def _readiness(self) -> str:
        settings = self._settings
        return (
            f"mqnode {settings.node.id} serving client={settings.client_bind} "
            f"replication={settings.replication_bind} grpc={settings.grpc_bind or '-'}"
        )
