"""HAClientService: drives the HAClient of one log, its connection to the master and the helper that aligns the copy.

Thin: what to do is HAClient's to say.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from mirrorlog.commitlog.epochs import LIST_BYTES_MAX, Epoch
from mirrorlog.config import LimitSettings
from mirrorlog.errors import ConnectionLost, LogUnavailable, MirrorlogError, ProtocolError
from mirrorlog.ha.actions import Action, Align, Close, Connect, FlushSoon, Send
from mirrorlog.ha.client import ClientState, HAClient, MirrorCopy
from mirrorlog.ha.links import log_failure
from mirrorlog.wire.auth.credentials import OPEN, Credentials
from mirrorlog.wire.dialling import dial
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import FRAME_HEADER_SIZE, TRANSFER, Frame

logger = logging.getLogger(__name__)

_TIMER_S: Final = 0.001
"""How much too early a timer of the loop may come."""

_T = TypeVar("_T")


class AlignedCopy(MirrorCopy, Protocol):
    """What a mirror's side needs of its copy beyond appending."""

    def align(self, log_offset: int, epochs: Sequence[Epoch], *, anew: bool, lost: bool) -> None:
        """Blocking: run on a helper. `lost`: also below what is confirmed. What is bad of a damaged copy goes, too."""

    def check_aside(self) -> None:
        """Blocking: raises MirrorlogError when this copy may not be set aside."""

    def quarantine_tail(self, log_offset: int) -> Path:
        """Blocking: keep what stands from there on, also when it is cut; where. Raises MirrorlogError."""

    def begin_anew(self) -> None:
        """The copy will be made, or opened, anew by `align`: nobody may use it from here on until `aligned`."""

    def aligned(self) -> None: ...

    def align_failed(self, error: Exception) -> None: ...

    def ask_flush(self) -> None:
        """Somebody waits for the disk."""


class HAClientService:
    """HAClient of one log: its connection to the master, and the helper that aligns the copy."""

    def __init__(
        self,
        *,
        client: HAClient,
        copy: AlignedCopy,
        helper: Executor,
        name: str,
        frame_bytes_max: int,
        limits: LimitSettings,
        quiesce: Callable[[], Awaitable[None]],
        loss_end_found: Callable[[int, int], None],
        credentials: Credentials = OPEN,
    ) -> None:
        """`quiesce`: waits until nothing but the link works on the copy. `loss_end_found`: is told of the epoch for
        which a loss was declared, and of the log offset up to which this copy held what was lost."""
        self.client = client
        self._copy = copy
        self._helper = helper
        self._name = name
        self._frame_bytes_max = max(frame_bytes_max, LIST_BYTES_MAX) + FRAME_HEADER_SIZE + TRANSFER.size
        self._limits = limits
        self._quiesce = quiesce
        self._loss_end_found = loss_end_found
        self._credentials = credentials
        self._redial: asyncio.TimerHandle | None = None
        self._endpoint: Endpoint | None = None
        self._task: asyncio.Task[None] | None = None
        self._full_at = -1

    @property
    def following(self) -> bool:
        """The link is up and the copies' histories agree."""
        return self.client.state is ClientState.TRANSFER

    def tick(self, now: float) -> None:
        endpoint = self._endpoint
        if endpoint is not None and (endpoint.stalled(now, self._limits.frame_timeout_ms) or endpoint.starved(now)):
            return
        self._do(self.client.tick(now))

    def stored(self) -> None:
        """Bytes stand in the log."""
        self._do(self.client.stored(time.monotonic()))

    def space_measured(self, *, room: bool) -> None:
        """Whether there is room for another segment, on the disk of this copy or in a file made before."""
        self.client.space_measured(room=room, now=time.monotonic())

    def flushed(self) -> None:
        self._do(self.client.flushed(time.monotonic()))

    def fence(self) -> None:
        """Nothing is taken from the master any more, and nothing is acked."""
        self.client.stop()
        if self._redial is not None:
            self._redial.cancel()
        if self._endpoint is not None:
            self._endpoint.close()
        # Also while the transport is closing already and has not said so: the memory at the log's end into which
        # bytes are received belongs to the next role.
        self.client.disconnected(time.monotonic())

    async def stop(self) -> None:
        """`fence`, and wait for what the helper does to the copy."""
        self.fence()
        if self._task is not None:
            if not self.client.align_out:  # a connect may take long; a cut must be finished
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.trust()
        self._do(self.client.connected(time.monotonic(), self._credentials.dialled(self.client.greeting, endpoint)))

    def frame(self, frame_: Frame) -> None:
        was = self.client.state
        try:
            self._do(self.client.received(frame_, time.monotonic()))
        finally:
            if was is not self.client.state:
                logger.debug("mirror_state log=%s state=%s", self._name, self.client.state.value)

    def handled(self) -> None:
        pass

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        return self.client.place(frame_type, facts, size)

    def writable(self) -> None:
        pass

    def disconnected(self, error: MirrorlogError | None) -> None:
        self._endpoint = None
        self._lost(error)

    # --- inside ---

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                if self._endpoint is not None:
                    self._endpoint.send(action.parts)
            elif isinstance(action, Connect):
                self._spawn(self._connect())
            elif isinstance(action, Align):
                self._spawn(self._align(action))
            elif isinstance(action, FlushSoon):
                self._copy.ask_flush()
            elif isinstance(action, Close) and self._endpoint is not None:
                self._endpoint.close(action.error)

    def _spawn(self, work: Any) -> None:
        # One at a time: connecting and aligning are states of the client, and it does not connect while a cut is out.
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(log_failure)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(self._limits.hello_timeout_ms / 1000):
                await dial(self.client.master, self._make_endpoint, self._credentials.dialling)
        except (OSError, TimeoutError, UnicodeError, MirrorlogError) as error:  # a host that is no name: UnicodeError
            self._lost(ConnectionLost(f"no connection to the master at {self.client.master}: {error}"))

    def _make_endpoint(self) -> Endpoint:
        return Endpoint(self, frame_bytes_max=self._frame_bytes_max, outgoing_bytes_max=2**62)

    async def _align(self, action: Align) -> None:
        before, confirmed = self._copy.log.end, self._copy.log.confirmed
        try:
            await self._do_align(action)
        except Exception as error:
            # Whatever it was, the link must end and another one be tried: nobody else would.
            self._copy.align_failed(error)
            self.client.align_failed()
            if self._endpoint is not None:
                self._endpoint.close(
                    error if isinstance(error, MirrorlogError) else ProtocolError(f"internal: {error}")
                )
            if not isinstance(error, MirrorlogError):
                raise
            return
        if action.anew:
            logger.warning("copy_began_anew log=%s at=%s; the former one is set aside", self._name, self._copy.log.end)
        elif (end := self._copy.log.end) < before:
            logger.warning(
                "log_truncated log=%s first=%s last=%s bytes=%s confirmed_was=%s epoch=%s",
                self._name, end, before, before - end, confirmed, self._copy.log.epochs.current,
            )  # fmt: skip
        logger.info("mirror_follows log=%s master=%s from=%s", self._name, self.client.master, self._copy.log.end)
        self._do(self.client.aligned(time.monotonic()))

    async def _do_align(self, action: Align) -> None:
        held_to, end = self._copy.log.claim.end, self._copy.log.end
        lost = action.loss > 0 and action.log_offset < end
        if action.anew:
            await self._helped(self._copy.check_aside)
        elif lost:
            await self._keep_diverged_tail(action)
        if action.loss:
            self._loss_end_found(action.loss, held_to)
        if lost or action.anew or end < held_to:
            # What works on the copy must have ended: its results belong to the former one.
            await self._quiesce()
            self._copy.begin_anew()
        await self._helped(partial(self._copy.align, action.log_offset, action.epochs, anew=action.anew, lost=lost))
        self._copy.aligned()

    async def _keep_diverged_tail(self, action: Align) -> None:
        end, confirmed = self._copy.log.end, self._copy.log.confirmed
        path = await self._helped(partial(self._copy.quarantine_tail, action.log_offset))
        logger.error(
            "surplus_set_aside log=%s first=%s last=%s bytes=%s confirmed=%s loss_epoch=%s path=%s; the cluster has "
            "declared it lost; save its records with: mqtool recover %s --salvage OUT",
            self._name, action.log_offset, end, end - action.log_offset, confirmed, action.loss, path, path,
        )  # fmt: skip

    async def _helped(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._helper, work)

    def _lost(self, error: MirrorlogError | None) -> None:
        known = str(self.client.last_error)
        self.client.disconnected(time.monotonic(), error)
        self._dial_again()
        if self.client.waits_for_space:
            self._tell_full(error)
        elif error is not None and str(error) != known:
            logger.warning("mirror_disconnected log=%s master=%s reason=%r", self._name, self.client.master, str(error))

    def _dial_again(self) -> None:
        """At the moment when it is due: the first waits are shorter than a tick."""
        if self._redial is not None:
            self._redial.cancel()
        if self.client.state is ClientState.WAITING:
            wait_s = self.client.retry_at - time.monotonic() + _TIMER_S
            self._redial = asyncio.get_running_loop().call_later(wait_s, lambda: self.tick(time.monotonic()))

    def _tell_full(self, error: MirrorlogError | None) -> None:
        """Once for each place at which the copy stands still, however often it is tried."""
        try:
            end = self._copy.log.end
        except LogUnavailable:  # it could not begin anew: the node ends, and says so
            return
        if end != self._full_at:
            self._full_at = end
            logger.warning("mirror_waits_for_space log=%s end=%s reason=%r", self._name, end, str(error))
