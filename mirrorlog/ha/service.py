"""HAService: the sockets and clocks around the pure machines of this package. Thin.

It starts what the seed's HAService starts (seed 002, lines 31-45): AcceptSocketService listens for mirrors and makes an
HAConnection for each, GroupTransferService answers waiting publishes (inside Mastership), HAClient follows a master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set
from concurrent.futures import Executor
from typing import Any, Final, Protocol
from uuid import UUID

import msgspec

from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.config import HaSettings, LimitSettings, split_address
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    MirrorAhead,
    MirrorlogError,
    NoSuchLog,
    Overloaded,
    PortTaken,
    ProtocolError,
)
from mirrorlog.ha.actions import Action, Align, Close, Connect, ReadCold, Send
from mirrorlog.ha.client import ClientState, HAClient, ReplicaLog
from mirrorlog.ha.connection import HAConnection, SourceLog
from mirrorlog.ha.group_transfer import Answer
from mirrorlog.ha.mastership import LogState, Mastership
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import (
    FRAME_HEADER_SIZE,
    TRANSFER,
    Ack,
    Frame,
    FrameType,
    frame,
    read_ack,
)
from mirrorlog.wire.greeting import check_hello
from mirrorlog.wire.messages import Failure, Follow, Hello, Message, Pull, Welcome, as_error, decode, encode

logger = logging.getLogger(__name__)

# How often the machines are told the time; deadlines and heartbeats are exact to this.
TICK_S: Final = 0.05
_SPARE_LINKS: Final = 16


class MasterLog(SourceLog, Protocol):
    """What a master's side needs of its log beyond reading."""

    def set_confirmed(self, log_offset: int) -> None: ...

    def is_border(self, log_offset: int) -> bool:
        """Whether a batch begins or the log ends there."""


class MirrorLog(ReplicaLog, Protocol):
    """What a mirror's side needs of its copy beyond appending."""

    def align(self, log_offset: int, epochs: Sequence[Epoch]) -> None:
        """Blocking: run on a helper."""

    def aligned(self) -> None: ...

    def align_failed(self, error: Exception) -> None: ...


class MasterLink:
    """The master's end of one mirror's connection: frames to an HAConnection, its actions to the socket."""

    def __init__(self, service: MasterService) -> None:
        self._service = service
        self._endpoint: Endpoint | None = None
        self._greeted: Hello | None = None
        self._log: MasteredLog | None = None
        self.connection: HAConnection | None = None
        self.opened_at = 0.0

    @property
    def endpoint(self) -> Endpoint:
        assert self._endpoint is not None
        return self._endpoint

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.opened_at = self._service.now()
        if len(self._service.links) >= self._service.links_max:
            endpoint.close(Overloaded(f"{self._service.links_max} links are open on this port", limit="links_max"))
        else:
            self._service.links.add(self)

    def frame(self, frame_: Frame) -> None:
        now = self._service.now()
        if frame_.type == FrameType.ERROR and self._greeted is not None:
            reason = as_error(_message(frame_, FrameType.ERROR, Failure))
            raise ConnectionLost(f"mirror {self._greeted.node_id} gave up: {reason}")
        if self._greeted is None:
            self._greet(frame_)
        elif self.connection is None:
            self._follow(_message(frame_, FrameType.FOLLOW, Follow), now)
        else:
            self._transfer(frame_, now)

    def writable(self) -> None:
        self.pump()

    def disconnected(self, error: MirrorlogError | None) -> None:
        self._service.links.discard(self)
        if self.connection is not None and self._log is not None:
            self._log.mastership.leave(self.connection)
            logger.info(
                "mirror_left node=%s log=%s acked=%s reason=%r",
                self.connection.node_id, self._log.name, self.connection.read_half.acked, str(error or "closed"),
            )  # fmt: skip

    # --- driving ---

    def pump(self) -> None:
        """Push what the log has gained, unless the socket is full."""
        if self.connection is not None and self.endpoint.open and not self.endpoint.paused:
            self._do(self.connection.pump(self._service.now()))

    def tick(self, now: float, limits: LimitSettings) -> None:
        if self.connection is None:
            if (now - self.opened_at) * 1000 >= limits.hello_timeout_ms:
                self.endpoint.close(ProtocolError(f"no greeting within {limits.hello_timeout_ms} ms"))
            return
        if not self.endpoint.stalled(now, limits.frame_timeout_ms):
            self._do(self.connection.tick(now))

    def _greet(self, frame_: Frame) -> None:
        hello = _message(frame_, FrameType.HELLO, Hello)
        version = check_hello(hello, cluster_id=self._service.welcome.cluster_id)
        if hello.role != "mirror" or hello.node_id is None:
            raise ProtocolError(f"role {hello.role!r} on the replication port; clients use the client port")
        self._greeted = hello
        self.endpoint.trust()
        self.endpoint.send([self._service.welcome_frame(version)])

    def _follow(self, message: Follow, now: float) -> None:
        assert self._greeted is not None
        assert self._greeted.node_id is not None
        log = self._service.log(message.log_id)
        log.mastership.check_member(self._greeted.node_id)
        if not (0 <= message.begin <= message.end and 0 <= message.confirmed <= message.end):
            raise BadRequest(
                f"a copy from {message.begin} to {message.end}, confirmed up to {message.confirmed}, cannot be"
            )
        connection = log.link(self._greeted.node_id, now)
        try:
            actions = connection.follow(message, now)
        except MirrorAhead as error:
            known = log.mastership.reason
            log.mastership.ahead(error)
            if log.mastership.reason != known:  # the mirror comes back every half second
                logger.error("log_recovering log=%s reason=%r", log.name, log.mastership.reason)
            raise
        log.mastership.check_open()
        self._log, self.connection = log, connection
        self._do(actions)

    def _transfer(self, frame_: Frame, now: float) -> None:
        assert self._log is not None
        assert self.connection is not None
        if frame_.type == FrameType.ACK:
            ack = read_ack(frame_.payload)
            self._check_borders(ack)
            self._log.progressed(self._log.mastership.acked(self.connection, ack, now))
            self.pump()
        elif frame_.type == FrameType.PULL:
            actions = self.connection.pull(_message(frame_, FrameType.PULL, Pull), now)
            # Only now, when this link is proven, may it take the place of an older one of the same mirror.
            if (replaced := self._log.mastership.join(self.connection)) is not None:
                self._service.close_link_of(replaced)
            self._do(actions)
            logger.info(
                "mirror_joined node=%s log=%s epoch=%s from=%s end=%s",
                self.connection.node_id, self._log.name, self._log.log.epochs.current,
                self.connection.read_half.requested, self._log.log.end,
            )  # fmt: skip
            self._log.progressed(self._log.mastership.proven(self.connection))
        else:
            raise ProtocolError(f"frame type {frame_.type} from a mirror")

    def _check_borders(self, ack: Ack) -> None:
        """A copy holds whole batches. An ack within one would make it visible, to readers, before it is there."""
        assert self._log is not None
        for log_offset in (ack.written, ack.flushed):
            if log_offset <= self._log.log.end and not self._log.log.is_border(log_offset):
                raise ProtocolError(f"an ack of {log_offset}, where no batch ends")

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.endpoint.send(action.parts)
            elif isinstance(action, Close):
                self.endpoint.close(action.error)
            elif isinstance(action, ReadCold):
                self._service.spawn(self._read_cold(action))

    async def _read_cold(self, action: ReadCold) -> None:
        loop = asyncio.get_running_loop()
        try:
            run = await loop.run_in_executor(self._service.helper, action.job.run)
            if self.connection is not None and self.endpoint.open:
                self._do(self.connection.cold_read(run, self._service.now()))
        except MirrorlogError as error:
            self.endpoint.close(error)


class MasteredLog:
    """A log that this node masters: its decisions, its bytes, and who is told of confirms."""

    def __init__(
        self,
        *,
        log_id: UUID,
        name: str,
        own_id: str,
        log: MasterLog,
        mastership: Mastership,
        settings: HaSettings,
        answer: Callable[[Answer], None],
    ) -> None:
        self.log_id = log_id
        self.name = name
        self.log = log
        self.mastership = mastership
        self._own_id = own_id
        self._settings = settings
        self._answer = answer

    def link(self, node_id: str, now: float) -> HAConnection:
        return HAConnection(node_id=node_id, own_id=self._own_id, log=self.log, settings=self._settings, now=now)

    def progressed(self, answers: Iterable[Answer]) -> None:
        """Copies moved on: records become visible, then producers are answered."""
        self.log.set_confirmed(self.mastership.progress.confirmed)
        for each in answers:
            self._answer(each)


class MasterService:
    """AcceptSocketService and the links it accepts; one per node, for all logs that the node masters."""

    def __init__(
        self,
        *,
        welcome: Welcome,
        logs: Sequence[MasteredLog],
        limits: LimitSettings,
        helper: Executor,
        refusals: dict[str, MirrorlogError] | None = None,
    ) -> None:
        self.welcome = welcome
        self.links: set[MasterLink] = set()
        self.helper = helper
        # Each mirror has one link per log; the rest is room for those that are being replaced or refused.
        self.links_max = 2 * sum(len(log.mastership.mirrors) for log in logs) + _SPARE_LINKS
        self._logs = {str(log.log_id): log for log in logs}
        self._refusals = refusals or {}
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pump_due = False

    async def start(self, address: str) -> None:
        """Listen for mirrors. Raises PortTaken."""
        self._server = await listen(address, lambda: Endpoint(
            MasterLink(self),
            frame_bytes_max=1024 * 1024,  # a mirror sends greetings and acks; epoch lists are the largest
            outgoing_bytes_max=2**62,  # bounded by in_flight_bytes_max
        ))  # fmt: skip

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def log(self, log_id: str) -> MasteredLog:
        """Raises NoSuchLog, or the reason why this node does not serve the log."""
        if log_id in self._refusals:
            raise self._refusals[log_id].with_traceback(None)  # shared: it must not collect its raisers' frames
        if log_id not in self._logs:
            raise NoSuchLog(f"this node is not the master of log {log_id}; check [[cluster.logs]] on both nodes")
        return self._logs[log_id]

    def welcome_frame(self, version: int) -> bytes:
        return frame(FrameType.WELCOME, encode(msgspec.structs.replace(self.welcome, version=version)))

    def wake(self) -> None:
        """A log has grown, or more of it is confirmed: push once in this turn of the loop, whatever came in it.

        Every link is served: a confirm that one mirror's ack or a flush has brought is news to the other mirrors too.
        """
        if not self._pump_due and self.links:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def gained(self, queue_ids: Set[int]) -> None:
        """More is confirmed, of these queues; the mirrors are told, whichever they are."""
        self.wake()

    def tick(self, now: float) -> None:
        for link in list(self.links):
            link.tick(now, self._limits)
        for log in self._logs.values():
            log.progressed(log.mastership.expired(now))

    def close_link_of(self, connection: HAConnection) -> None:
        for link in list(self.links):
            if link.connection is connection:
                link.endpoint.close(ConnectionLost(f"mirror {connection.node_id} has opened a newer link"))

    def spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)

    async def stop(self) -> None:
        """Tell the mirrors the last confirmed offset and goodbye."""
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.pump()
            link.endpoint.send([frame(FrameType.GOODBYE)])
            link.endpoint.close()
        for task in self._tasks:
            task.cancel()

    def _pump(self) -> None:
        self._pump_due = False
        for link in list(self.links):
            link.pump()


class MirrorService:
    """HAClient of one log: its connection to the master, and the helper that aligns the copy."""

    def __init__(
        self,
        *,
        client: HAClient,
        log: MirrorLog,
        helper: Executor,
        name: str,
        frame_bytes_max: int,
        limits: LimitSettings,
    ) -> None:
        self.client = client
        self._log = log
        self._helper = helper
        self._name = name
        self._frame_bytes_max = frame_bytes_max + FRAME_HEADER_SIZE + TRANSFER.size
        self._limits = limits
        self._endpoint: Endpoint | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def connected_now(self) -> bool:
        return self.client.state is ClientState.TRANSFER

    def tick(self, now: float) -> None:
        if self._endpoint is not None and self._endpoint.stalled(now, self._limits.frame_timeout_ms):
            return
        self._do(self.client.tick(now))

    def flushed(self) -> None:
        self._do(self.client.flushed(self._now()))

    async def stop(self) -> None:
        aligning = self.client.state is ClientState.ALIGNING
        self.client.stop()
        if self._endpoint is not None:
            self._endpoint.close()
        if self._task is not None:
            if not aligning:  # a connect may take long; a cut must be finished
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.trust()
        self._do(self.client.connected(self._now()))

    def frame(self, frame_: Frame) -> None:
        was = self.client.state
        try:
            self._do(self.client.received(frame_, self._now()))
        finally:
            if was is not self.client.state:
                logger.debug("mirror_state log=%s state=%s", self._name, self.client.state.value)

    def writable(self) -> None:
        pass

    def disconnected(self, error: MirrorlogError | None) -> None:
        self._endpoint = None
        self._lost(error)

    # --- inside ---

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Connect):
                self._spawn(self._connect())
            elif isinstance(action, Align):
                self._spawn(self._align(action))
            elif self._endpoint is None:
                return
            elif isinstance(action, Send):
                self._endpoint.send(action.parts)
            elif isinstance(action, Close):
                self._endpoint.close(action.error)

    def _spawn(self, work: Any) -> None:
        # One at a time: connecting and aligning are states of the client, and it does not connect while a cut is out.
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(_log_failure)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(self.client.master)
            async with asyncio.timeout(self._limits.hello_timeout_ms / 1000):
                await loop.create_connection(self._make_endpoint, host, port)
        except (OSError, TimeoutError, UnicodeError, MirrorlogError) as error:  # a host that is no name: UnicodeError
            self._lost(ConnectionLost(f"no connection to the master at {self.client.master}: {error}"))

    def _make_endpoint(self) -> Endpoint:
        return Endpoint(self, frame_bytes_max=self._frame_bytes_max, outgoing_bytes_max=2**62)

    async def _align(self, action: Align) -> None:
        before = self._log.end
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._helper, self._log.align, action.log_offset, action.epochs)
            self._log.aligned()
        except Exception as error:
            # Whatever it was, the link must end and another one be tried: nobody else would.
            self._log.align_failed(error)
            self.client.align_failed()
            if self._endpoint is not None:
                self._endpoint.close(
                    error if isinstance(error, MirrorlogError) else ProtocolError(f"internal: {error}")
                )
            if not isinstance(error, MirrorlogError):
                raise
            return
        if self._log.end < before:
            logger.warning("log_truncated log=%s first=%s last=%s", self._name, self._log.end, before)
        logger.info("mirror_follows log=%s master=%s from=%s", self._name, self.client.master, self._log.end)
        self._do(self.client.aligned(self._now()))

    def _lost(self, error: MirrorlogError | None) -> None:
        known = str(self.client.last_error)
        self.client.disconnected(self._now(), error)
        if error is not None and str(error) != known:
            logger.warning("mirror_disconnected log=%s master=%s reason=%r", self._name, self.client.master, str(error))


def _log_failure(task: asyncio.Future[None]) -> None:
    """A task that nobody awaits must not fail unseen."""
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("task_failed", exc_info=error)


async def listen(address: str, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.Server:
    """A server on `host:port`. Raises PortTaken naming the address and what to do."""
    host, port = split_address(address)
    try:
        return await asyncio.get_running_loop().create_server(factory, host, port, backlog=1024)
    except OSError as error:
        raise PortTaken(f"cannot listen on {address}: {error.strerror or error}; free it or bind another one") from None


def _message(frame_: Frame, kind: FrameType, expected: type[Any]) -> Any:
    if frame_.type != kind:
        raise ProtocolError(f"frame type {frame_.type} where {kind.name} was expected")
    message: Message = decode(frame_.payload)
    if not isinstance(message, expected):
        raise ProtocolError(f"{type(message).__name__} where {expected.__name__} was expected")
    return message


__all__ = ["LogState", "MasterService", "MasteredLog", "MirrorService", "listen"]
