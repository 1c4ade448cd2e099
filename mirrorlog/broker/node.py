"""A node: the composition root. Opens the data directory and the logs, wires the pure parts to sockets and helpers.

Order at start: lock the directory, recover the logs, open a new epoch for each log mastered here (on disk before the
first byte), listen for mirrors, follow masters, and only then serve clients. Order at stop: the reverse, with the
last confirmed offset told to the mirrors and written to the checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Final

from mirrorlog import __version__
from mirrorlog.broker.disk_limits import DiskReport
from mirrorlog.broker.disk_watch import DiskWatch
from mirrorlog.broker.door import NativeDoor
from mirrorlog.broker.grpc_process import GrpcDoorProcess
from mirrorlog.broker.host import Helpers, Host, now_us
from mirrorlog.broker.hosted import HostedLog
from mirrorlog.broker.hosted_logs import HostedLogs
from mirrorlog.broker.requests import Requests
from mirrorlog.broker.status import disk_status, with_disk
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.config import LogAssignment, Settings
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.accept import AcceptSocketService
from mirrorlog.ha.service import TICK_S, HAService
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX
from mirrorlog.wire.listening import check_free
from mirrorlog.wire.messages import Limits, Status, Welcome

logger = logging.getLogger(__name__)

_STOP_WAIT_S: Final = 2.0


class Node:
    """One running node. `run` returns its exit code."""

    def __init__(self, settings: Settings, *, debug: bool = False) -> None:
        self._settings = settings
        self._debug = debug
        self._start_id = str(uuid.uuid4())
        self._stopping = asyncio.Event()
        self._failure: MirrorlogError | None = None
        self._helpers = Helpers()
        self._disk = DiskWatch(settings.node.data_dir, settings.log, helper=self._helpers.disk)
        self._disk.on_measured.append(self._disk_measured)
        self._directory: DataDirectory | None = None
        self.logs = HostedLogs()
        self._ha = HAService(
            AcceptSocketService(
                welcome=self._welcome(PROTOCOL_VERSION_MAX), limits=settings.limits, helper=self._helpers.read
            )
        )
        self._host = Host(settings, self._start_id, self._ha, self._helpers, self.fail)
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
        await self._ha.start(settings.replication_bind)
        self._door = NativeDoor(
            settings,
            welcome=self._welcome,
            logs=self.logs,
            requests=Requests(settings, self.logs, self._status),
            push=self._ha.accept.push,
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
        for log in self.logs:
            log.stop_publishing()
        await self._drain()
        if self._grpc is not None:
            await self._grpc.stop()
        if self._door is not None:
            self._door.close()
        await self._ha.stop()
        await self._disk.stop()
        for log in self.logs.everyone():
            await log.close()
        if self._directory is not None:
            self._directory.close()
        self._helpers.shutdown()
        logger.info("node_stopped reason=%r", str(self._failure or "asked to"))

    async def _drain(self) -> None:
        """Give publishes that wait for their copies a moment to be answered."""
        deadline = asyncio.get_running_loop().time() + _STOP_WAIT_S
        while any(log.waiting for log in self.logs):
            if asyncio.get_running_loop().time() >= deadline or self._failure:
                return
            await asyncio.sleep(TICK_S)

    async def _tick_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            assert self._door is not None
            self._ha.tick(now)
            self._door.tick(now)
            await asyncio.sleep(TICK_S)

    # --- logs ---

    async def _open_log(self, directory: DataDirectory, assignment: LogAssignment) -> None:
        """Open one log and begin the role that the assignment gives this node. Raises MirrorlogError."""
        log_id = self._settings.cluster.log_id(assignment)
        log = HostedLog(assignment, log_id, self._host)
        try:
            await log.open(directory.log_directory(log_id))
        finally:
            self.logs.add(log)
        if log.error is not None:
            return
        if self._disk.report is not None:
            log.disk_measured(self._disk.report)
        if assignment.master == self._settings.node.id:
            await log.lead(assignment, log.facts().epoch_known + 1)
        else:
            await log.follow(assignment)

    def _disk_measured(self, report: DiskReport) -> None:
        for log in self.logs:
            log.disk_measured(report)

    # --- facts ---

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
        logs = [log.status(now, wall) for log in self.logs.everyone()]
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
