"""A connection of AMQP: bytes to what is said, and what is answered to bytes. Thin.

What is written leaves when the loop turns, together. Nothing more is read while what was said before takes too much
room; nothing more is delivered while the client does not take what was sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from platform import python_version
from typing import Any, Final, cast

from pamqp import base, commands
from pamqp import frame as pamqp_frame

from mirrorlog import __version__
from mirrorlog.client import Client
from mirrorlog.client.amqp import table_in
from mirrorlog.doors.amqp.channel import Channel
from mirrorlog.doors.amqp.codec import HEARTBEAT_FRAME, PROTOCOL_HEADER
from mirrorlog.doors.amqp.consuming import EXTEND_S
from mirrorlog.doors.amqp.errors import (
    ACCESS_REFUSED,
    CONNECTION_FORCED,
    HARD,
    INTERNAL_ERROR,
    NOT_ALLOWED,
    as_amqp,
    reply_text,
)
from mirrorlog.doors.amqp.publishing import Publishing
from mirrorlog.doors.amqp.state import (
    CHANNEL_MAX,
    FRAME_MAX,
    HEARTBEAT_S,
    ChannelClosed,
    ChannelOpened,
    ConnectionLeft,
    ConnectionState,
    Event,
    Failed,
    HostOpening,
    MessagePublished,
    MessageSettled,
    OtherProtocol,
    Said,
    SaidLogin,
    Started,
    Tuned,
)
from mirrorlog.doors.amqp.topology import AmqpTopology
from mirrorlog.errors import AccessRefused, BadInput, LoginFailed, MirrorlogError, NoSuchVirtualHost
from mirrorlog.wire.messages.topology import GetRouting, Login, Routing

logger = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
LOAD_BYTES_MAX: Final = 32 * 1024 * 1024
LOAD_COUNT_MAX: Final = 20_000
"""Publishes that have not ended, and what waits on channels: beyond it nothing is read."""
BLOCKED_S: Final = 1.0
"""So long nothing is read before the client is told why."""
OUT_BYTES_MAX: Final = 512 * 1024 * 1024
"""Answers to a client that takes none, and a delivery of the largest: beyond it the connection ends."""
_WRITE_BYTES_HIGH: Final = 1024 * 1024
_CLOSE_S: Final = 10.0
_MECHANISMS: Final = ("PLAIN", "AMQPLAIN")
_PROPERTIES: Final[dict[str, Any]] = {
    "product": "mirrorlog",
    "version": __version__,
    "platform": f"Python {python_version()}",
    "information": "AMQP 0-9-1 with the extensions of RabbitMQ 3.13",
    "capabilities": {
        "publisher_confirms": True,
        "exchange_exchange_bindings": True,
        "basic.nack": True,
        "consumer_cancel_notify": True,
        "connection.blocked": True,
        "consumer_priorities": True,
        "authentication_failure_close": True,
        "per_consumer_qos": True,
        "direct_reply_to": True,
    },
}


@dataclass(frozen=True, slots=True)
class DoorSide:
    """What connections have of their door. `make`: a client of the cluster for a login; `plain_passwords`: logins are
    taken over connections that others may read."""

    make: Callable[[Login], Client]
    body_bytes_max: int
    plain_passwords: bool = False


class AmqpConnection(asyncio.Protocol):
    """One connection. `private`: whether nobody else reads a transport; `room`: whether the door has any for it."""

    def __init__(
        self,
        side: DoorSide,
        ended: Callable[[AmqpConnection], None],
        *,
        private: Callable[[Any], bool],
        room: bool = True,
    ) -> None:
        self._room = room
        self._side = side
        self._ended = ended
        self._is_private = private
        self._loop = asyncio.get_running_loop()
        self._state = ConnectionState(body_bytes_max=side.body_bytes_max)
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._flushing = False
        self._may_write: asyncio.Future[None] | None = None
        self._reading = True
        self._load = 0
        self._load_bytes = 0
        self._blocking: asyncio.TimerHandle | None = None
        self._blocked = self._wants_blocked = False
        self._channels: dict[int, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._heard_at = self._said_at = self._loop.time()
        self._heartbeat_s = 0
        self._timer: asyncio.TimerHandle | None = self._loop.call_later(HANDSHAKE_S, self._give_up)
        self._extending: asyncio.TimerHandle | None = None
        self._client: Client | None = None
        self._publishing: Publishing | None = None
        self._over = False
        self.user = ""
        self.virtual_host = ""
        self.wants_cancels = self.prefetch_of_living = False
        self._tells_failed_logins = False

    # --- for channels ---

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    @property
    def publishing(self) -> Publishing:
        assert self._publishing is not None
        return self._publishing

    @property
    def topology(self) -> AmqpTopology:
        return AmqpTopology(self.client, self.virtual_host)

    @property
    def frame_max(self) -> int:
        return self._state.frame_max

    def write(self, frames: bytes) -> None:
        """Sent when the loop turns."""
        self._out.append(frames)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def say(self, channel: int, method: base.Frame) -> None:
        """A method."""
        self.write(pamqp_frame.marshal(method, channel))

    async def writable(self) -> None:
        """Until the client takes what is sent."""
        while self._may_write is not None:
            await asyncio.shield(self._may_write)

    def loaded(self, count: int, size: int = 0) -> None:
        """So much more is under way, or less."""
        self._load += count
        self._load_bytes += size
        if self._transport is None:
            return
        if self._reading:
            if self._load > LOAD_COUNT_MAX or self._load_bytes > LOAD_BYTES_MAX:
                self._reading = False
                self._transport.pause_reading()
                if self._wants_blocked:
                    self._blocking = self._loop.call_later(BLOCKED_S, self._tell_blocked)
        elif self._load <= LOAD_COUNT_MAX // 2 and self._load_bytes <= LOAD_BYTES_MAX // 2:
            self._reading = True
            self._heard_at = self._loop.time()
            self._tell_unblocked()
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _tell_blocked(self) -> None:
        self._blocking, self._blocked = None, True
        self.say(0, commands.Connection.Blocked("what was published waits for its copies"))

    def _tell_unblocked(self) -> None:
        if self._blocking is not None:
            self._blocking.cancel()
            self._blocking = None
        if self._blocked:
            self._blocked = False
            self.say(0, commands.Connection.Unblocked())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Have it done, beside."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def fail(self, failure: Failed) -> None:
        """Tell the client what has failed: a channel, or all of it."""
        if failure.code in HARD:
            failure = failure._replace(channel=0)
        if self._state.failed(failure):
            self._tell_failure(failure)

    def channel_closed(self, channel: Channel, *, answered: bool) -> None:
        """All of it is done."""
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]
        if not answered:
            self.say(channel.number, commands.Channel.CloseOk())

    # --- the transport's ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES_HIGH)
        if not self._room:
            logger.warning("connection_refused reason='as many as there may be'")
            self._abort()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        try:
            for event in self._state.receive(data):
                self._take(event)
                if self._over:
                    return
        except Exception:
            logger.exception("connection_failed user=%r", self.user)
            self.fail(Failed(0, INTERNAL_ERROR, "the door failed"))
            self._close_soon()

    def pause_writing(self) -> None:
        self._may_write = self._may_write or self._loop.create_future()

    def resume_writing(self) -> None:
        may_write, self._may_write = self._may_write, None
        if may_write is not None:
            may_write.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self.resume_writing()
        for timer in (self._timer, self._extending, self._blocking):
            if timer is not None:
                timer.cancel()
        self._ended(self)

    async def release(self) -> None:
        """What is with it goes back, and its client ends. Idempotent."""
        channels, self._channels = list(self._channels.values()), {}
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(TimeoutError, MirrorlogError):
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.gather(*(each.close() for each in channels))
                if self._publishing is not None:
                    await self._publishing.drained()
        with contextlib.suppress(MirrorlogError):
            await client.close()

    def stop(self) -> None:
        """The door ends."""
        self.fail(Failed(0, CONNECTION_FORCED, "the door is being stopped"))
        self._close_soon()

    # --- inside ---

    def _flush(self) -> None:
        self._flushing = False
        out, self._out = self._out, []
        if out and self._transport is not None and not self._transport.is_closing():
            self._said_at = self._loop.time()
            self._transport.writelines(out)
            if self._transport.get_write_buffer_size() > OUT_BYTES_MAX:
                logger.warning("connection_not_reading user=%r", self.user)
                self._abort()

    def _take(self, event: Event) -> None:
        if type(event) in (MessagePublished, MessageSettled, Said, ChannelClosed):
            channel = self._channels.get(event.channel)  # type: ignore[union-attr]  # of these four
            if channel is not None:
                channel.take(event)  # type: ignore[arg-type]
            elif type(event) is ChannelClosed and not event.answered:
                self.say(event.channel, commands.Channel.CloseOk())
        elif type(event) is ChannelOpened:
            self._channels[event.channel] = Channel(self, event.channel)
            self.say(event.channel, commands.Channel.OpenOk())
        elif type(event) is Failed:
            self._tell_failure(event)
        else:
            self._take_of_connection(event)

    def _take_of_connection(self, event: Event) -> None:
        if type(event) is Started:
            start = commands.Connection.Start(
                version_major=0, version_minor=9, server_properties=_PROPERTIES, mechanisms=" ".join(_MECHANISMS),
                locales="en_US",
            )  # fmt: skip
            self.say(0, start)
        elif type(event) is OtherProtocol:
            self.write(PROTOCOL_HEADER)
            self._close_soon()
        elif type(event) is SaidLogin:
            self.spawn(self._log_in(event))
        elif type(event) is Tuned:
            self._heartbeat_s = event.heartbeat_s
        elif type(event) is HostOpening:
            self.spawn(self._open(event.virtual_host))
        elif type(event) is ConnectionLeft:
            self.spawn(self._close(event))

    # --- inside: the handshake ---

    async def _log_in(self, given: SaidLogin) -> None:
        capabilities = given.properties.get("capabilities")
        if isinstance(capabilities, dict):
            self.wants_cancels = capabilities.get("consumer_cancel_notify") is True
            self._wants_blocked = capabilities.get("connection.blocked") is True
            self._tells_failed_logins = capabilities.get("authentication_failure_close") is True
        self.prefetch_of_living = given.properties.get("product") == "py-amqp"
        try:
            login = read_login(given)
            if not (self._side.plain_passwords or self._is_private(self._transport)):
                raise LoginFailed(
                    "a password is taken over TLS or from this machine only; set tls.amqp or amqp.plain_passwords"
                )
            self._client = client = self._side.make(login)
            await client.connect()
        except (LoginFailed, AccessRefused) as error:
            logger.info("login_refused reason=%r", error.message)
            self._refuse_login(given.mechanism)
            return
        except MirrorlogError as error:
            self.fail(Failed(0, INTERNAL_ERROR, error.message, commands.Connection.StartOk.index))
            self._close_soon()
            return
        self.user = login.user
        self._state.tuned()
        tune = commands.Connection.Tune(channel_max=CHANNEL_MAX, frame_max=FRAME_MAX, heartbeat=HEARTBEAT_S)
        self.say(0, tune)

    def _refuse_login(self, mechanism: str) -> None:
        if self._tells_failed_logins:
            text = f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile."
            self.fail(Failed(0, ACCESS_REFUSED, text))
        self._close_soon()

    async def _open(self, virtual_host: str) -> None:
        index = commands.Connection.Open.index
        client = self.client
        try:
            connection = await client.any_connection()
            asked = GetRouting(virtual_host=virtual_host, only_version=True)
            await connection.request(asked, Routing, timeout_ms=client.request_timeout_ms)
        except (NoSuchVirtualHost, BadInput) as error:
            refused = isinstance(error, AccessRefused)
            what = f"access to vhost '{virtual_host}' refused for user '{self.user}'" if refused else (
                f"vhost {virtual_host} not found"
            )  # fmt: skip
            self.fail(Failed(0, NOT_ALLOWED, what, index))
            return
        except MirrorlogError as error:
            known = as_amqp(error)
            self.fail(Failed(0, known.code, known.text, index))
            return
        self.virtual_host = virtual_host
        self._publishing = Publishing(client, virtual_host)
        self._state.opened()
        self.say(0, commands.Connection.OpenOk())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heartbeat_s:
            self._timer = self._loop.call_later(self._heartbeat_s / 2, self._beat)
        self._extending = self._loop.call_later(EXTEND_S, self._extend)

    def _give_up(self) -> None:
        """The handshake takes too long."""
        logger.info("handshake_timeout after_s=%s", HANDSHAKE_S)
        self._close_soon()

    # --- inside: its life ---

    def _beat(self) -> None:
        now, every = self._loop.time(), self._heartbeat_s
        if self._reading and now - self._heard_at > 2 * every:
            logger.info("heartbeat_missed user=%r silent_s=%.0f", self.user, now - self._heard_at)
            self._abort()
            return
        if now - self._said_at >= every / 2:
            self.write(HEARTBEAT_FRAME)
        self._timer = self._loop.call_later(every / 2, self._beat)

    def _extend(self) -> None:
        for channel in self._channels.values():
            channel.extend()
        self._extending = self._loop.call_later(EXTEND_S, self._extend)

    def _tell_failure(self, failure: Failed) -> None:
        text = reply_text(failure.code, failure.text)
        class_id, method_id = failure.method >> 16, failure.method & 0xFFFF
        if failure.channel:
            logger.info("channel_failed user=%r channel=%s text=%r", self.user, failure.channel, text)
            self.say(failure.channel, commands.Channel.Close(failure.code, text, class_id, method_id))
            if (channel := self._channels.get(failure.channel)) is not None:
                channel.fail()
        else:
            logger.info("connection_failed user=%r text=%r", self.user, text)
            self.say(0, commands.Connection.Close(failure.code, text, class_id, method_id))
            self._loop.call_later(_CLOSE_S, self._abort)  # the client may not answer

    async def _close(self, event: ConnectionLeft) -> None:
        await self.release()
        if not event.answered:
            self.say(0, commands.Connection.CloseOk())
        self._close_soon()

    def _close_soon(self) -> None:
        """Once what is said has left."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def read_login(given: SaidLogin) -> Login:
    """Raises LoginFailed."""
    if given.mechanism == "PLAIN":
        parts = given.response.split(b"\0")
        if len(parts) == 3:
            return Login(user=_text(parts[1]), password=_text(parts[2]))
    elif given.mechanism == "AMQPLAIN":
        with contextlib.suppress(BadInput):
            table = table_in(given.response, 0, len(given.response))
            user, password = table.get("LOGIN"), table.get("PASSWORD")
            if isinstance(user, str) and isinstance(password, str):
                return Login(user=user, password=password)
    raise LoginFailed(f"mechanism {given.mechanism[:32]!r} is none of {', '.join(_MECHANISMS)}, or says no login")


def _text(content: bytes) -> str:
    return content.decode(errors="replace")
