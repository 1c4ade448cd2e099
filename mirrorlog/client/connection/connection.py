"""One connection to one node: requests out, answers back by correlation id. Thin.

A PING keeps an idle connection alive and finds one whose node stands still, every request has a deadline, and a lost
connection fails everything that waits on it at once.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, Self, TypeVar

from mirrorlog import __version__
from mirrorlog.client.connection.answers import confirm_in, ended_in, failure_in, of_kind, subscribed_in, tell_settled
from mirrorlog.client.connection.liveness import KeepAlive
from mirrorlog.errors import ConnectionLost, LoginFailed, MirrorlogError, ProtocolError, RequestTimeout
from mirrorlog.wire.dialling import CLIENT_UNACKED_MS, dial, end_unacked
from mirrorlog.wire.endpoint import REST_MS, Endpoint
from mirrorlog.wire.frames import (
    BATCHES,
    DELIVER,
    FETCH,
    FRAME_HEADER_SIZE,
    PRODUCE,
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    SETTLE_AGAIN,
    Batches,
    Confirm,
    Credit,
    Deliver,
    Frame,
    FrameType,
    frame,
    read_batches,
    read_credit,
    read_deliver,
    settle_frame,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import decode, encode, encode_readable
from mirrorlog.wire.messages.groups import Subscribe, Subscribed, Unsubscribe
from mirrorlog.wire.messages.handshake import Hello, Welcome
from mirrorlog.wire.messages.queues import Done
from mirrorlog.wire.messages.topology import Login
from mirrorlog.wire.transaction_frames import BatchReceipt, Transacted, read_transacted

# Of a node that holds a user to his limits, and does not read what comes.
_HELD_UNACKED_MS: Final = 20_000
# A consumer may ask for more than a batch, and a single batch may be as large as the node allows.
_FRAME_BYTES_MAX: Final = 512 * 1024 * 1024
_UNSENT_BYTES_MAX: Final = 1024 * 1024 * 1024
# A frame's header and the struct of a PRODUCE frame, in one.
_PRODUCE_HEAD: Final = struct.Struct("<IHHQ BBHI")
assert _PRODUCE_HEAD.size == FRAME_HEADER_SIZE + PRODUCE.size
# A copy of so little costs less than a second buffer.
_COPIED_BYTES_MAX: Final = 16 * 1024
# Plain numbers: a frame is compared with them whenever one comes.
_PRODUCE: Final = int(FrameType.PRODUCE)
_ERROR: Final = int(FrameType.ERROR)
_BATCHES: Final = int(FrameType.BATCHES)
_DELIVER: Final = int(FrameType.DELIVER)
_PONG: Final = int(FrameType.PONG)

ProduceDone = Callable[[Confirm | MirrorlogError], None]
SettleDone = Callable[[MirrorlogError | None], None]
Credited = Callable[[Credit], None]

_M = TypeVar("_M", bound=Message)
_Answered = Callable[[Frame | MirrorlogError], None]
_Room = Callable[[int], memoryview]


class GrantReceiver(Protocol):
    """Receives the grants that a node sends to one subscription; called on the loop. The first call is `subscribed` or
    `ended`, and nothing comes behind `ended`."""

    def subscribed(self, answer: Subscribed) -> None: ...

    def delivered(self, facts: Deliver, content: memoryview) -> None:
        """`content`: what follows the fixed struct, the subscriber's to keep."""

    def ended(self, error: MirrorlogError) -> None:
        """Refused, or over: by the node's word, or with the connection."""

    def room(self, size: int) -> memoryview:
        """Memory for exactly `size` bytes, for a large content to be received into."""


class Connection:
    """A connection to one node. Made by `open`. Its methods raise what the node answered, ConnectionLost or
    RequestTimeout. `loop`: where it is used; `when_lost`: called once, at its end."""

    def __init__(
        self, address: str, *, role: str, cluster_id: str | None, stale_reads: bool = False, client_id: str = ""
    ) -> None:
        """Use `open`. `role`: see `ROLES`, of a door with its name: `door:grpc`."""
        self.address = address
        role, _, door = role.partition(":")
        self._hello = Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION_MAX,
            role=role,
            software=f"mirrorlog-python {__version__}",
            cluster_id=cluster_id,
            stale_reads=stale_reads,
            credit=True,
            client_id=client_id,
            door=door,
        )
        self.loop = asyncio.get_running_loop()
        self._endpoint: Endpoint | None = None
        self._greeting: asyncio.Future[Welcome] = self.loop.create_future()
        self._waiting: dict[int, _Answered] = {}
        self._publishing: dict[int, ProduceDone] = {}
        self._rooms: dict[int, _Room] = {}
        self._subscribers: dict[int, GrantReceiver] = {}
        self._credited: dict[tuple[int, int], list[Credited]] = {}
        self._last_id = 0
        self._alive = KeepAlive(self.loop.time())
        self._credit_bytes: int | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._lost: MirrorlogError | None = None
        self.when_lost: Callable[[MirrorlogError], object] = str

    @classmethod
    async def open(
        cls,
        address: str,
        *,
        role: str = "client",
        cluster_id: str | None = None,
        stale_reads: bool = False,
        timeout_ms: int = 5_000,
        tls: ssl.SSLContext | None = None,
        login: tuple[str, str] | None = None,
        client_id: str = "",
    ) -> Self:
        """Connect and greet. `stale_reads`: a node that is cut off is to answer reads all the same. `login`: a user and
        the password, sent over TLS or within this machine only. `client_id`: of a client with several connections.

        Raises ConnectionLost, WrongCluster, UnsupportedVersion, LoginFailed or ConfigError.
        """
        connection = cls(address, role=role, cluster_id=cluster_id, stale_reads=stale_reads, client_id=client_id)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await dial(address, connection._make_endpoint, tls, unacked_ms=CLIENT_UNACKED_MS)
                await connection._greeting
                if login is not None:
                    await connection._login(*login, timeout_ms=timeout_ms)
        except BaseException as error:
            connection.close()
            del connection  # it holds the error, which holds this frame
            if isinstance(error, TimeoutError):
                raise ConnectionLost(f"no answer from {address} within {timeout_ms} ms") from None
            if isinstance(error, OSError):
                reason = os.strerror(error.errno) if error.errno else str(error)
                raise ConnectionLost(f"no connection to {address}: {reason}") from None
            raise
        connection._ticker = connection.loop.call_later(KeepAlive.tick_s, connection._tick)
        return connection

    def _make_endpoint(self) -> Endpoint:
        return Endpoint(self, frame_bytes_max=_FRAME_BYTES_MAX, outgoing_bytes_max=_UNSENT_BYTES_MAX)

    async def _login(self, user: str, password: str, *, timeout_ms: int) -> None:
        """Raises LoginFailed."""
        if not self._usable_endpoint().is_private:
            raise LoginFailed(f"the password of {user!r} is not sent to {self.address} without TLS")
        await self.request(Login(user=user, password=password), Done, timeout_ms=timeout_ms)

    @property
    def welcome(self) -> Welcome:
        """What the node said of itself: ids and limits."""
        return self._greeting.result()

    @property
    def credit_bytes(self) -> int:
        """What a producer that begins may have open in a queue; see `wire.frames.Credit`."""
        return self.welcome.limits.credit_bytes if self._credit_bytes is None else self._credit_bytes

    @property
    def usable(self) -> bool:
        return self._lost is None and self._endpoint is not None and self._endpoint.open

    @property
    def owes_answer(self) -> bool:
        """Whether something is asked of the node while it has said nothing for half a second: it may hang."""
        return self._alive.owes(self.loop.time(), is_asked=bool(self._publishing or self._waiting))

    def give_up(self, reason: str) -> None:
        """Close it though its node has not: what still waits ends with ConnectionLost, saying why."""
        self._lost = self._lost or ConnectionLost(reason)
        self.close()

    def close(self) -> None:
        """Idempotent. What still waits ends with ConnectionLost."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._endpoint is not None:
            self._endpoint.abort()

    # --- requests ---

    async def request(self, message: Message, expect: type[_M], *, timeout_ms: int) -> _M:
        """Send a control message and await its answer."""
        answer = await self._ask(FrameType.REQUEST, encode_readable(message), timeout_ms)
        decoded = decode(of_kind(answer, FrameType.RESPONSE).payload)
        if not isinstance(decoded, expect):
            raise ProtocolError(f"{type(decoded).__name__} where {expect.__name__} was expected")
        return decoded

    def produce(
        self,
        batch: bytes | bytearray | memoryview,
        *,
        level: int,
        durability: int,
        deadline_ms: int,
        done: ProduceDone,
        routing: int = 0,
    ) -> None:
        """Send one ready batch; `done` is called once, with its confirm or with the error, on the loop. `routing`: the
        stamp of the version that it was routed by (`wire.routing`), 0 for none.

        The bytes must stay as they are until then. Raises ConnectionLost when the connection is gone already.
        """
        endpoint = self._endpoint
        if endpoint is None or self._lost is not None or not endpoint.open:
            raise self._gone()
        self._last_id = correlation_id = self._last_id + 1
        size = len(batch)
        head = _PRODUCE_HEAD.pack(
            PRODUCE.size + size, _PRODUCE, 0, correlation_id, level, durability, routing, deadline_ms
        )
        self._publishing[correlation_id] = done
        endpoint.send((head + batch,) if size <= _COPIED_BYTES_MAX else (head, memoryview(batch)))

    async def transact(self, payload: bytes, *, timeout_ms: int) -> tuple[Transacted, list[BatchReceipt]]:
        """One transaction (`transact_payload`), awaited. Raises what the node answered, ConnectionLost or
        RequestTimeout."""
        answer = await self._ask(FrameType.TRANSACT, payload, timeout_ms)
        return read_transacted(of_kind(answer, FrameType.TRANSACTED).payload)

    async def fetch(
        self,
        *,
        queue_id: int,
        epoch: int,
        queue_offset: int,
        max_bytes: int,
        wait_ms: int,
        timeout_ms: int,
        room: Callable[[int], memoryview] | None = None,
    ) -> tuple[Batches, memoryview]:
        """Whole batches from the one that holds `queue_offset` on; none when `wait_ms` passed without a record.

        `room(size)`: memory for exactly `size` bytes, for a large answer to be received into; asked at most once.
        """
        request = FETCH.pack(queue_id, epoch, queue_offset, max_bytes, wait_ms)
        answer = await self._ask(FrameType.FETCH, request, wait_ms + timeout_ms, room)
        payload = of_kind(answer, FrameType.BATCHES).payload
        return read_batches(payload), payload[BATCHES.size :] if answer.body is None else answer.body

    def on_credit(self, producer_id: int, queue_id: int, credited: Credited) -> None:
        """It is called on the loop whenever the node says what this producer may have open in the queue. Several may
        be: those without an id have that in common."""
        self._credited.setdefault((producer_id, queue_id), []).append(credited)

    def off_credit(self, producer_id: int, queue_id: int, credited: Credited) -> None:
        """It is called no more."""
        heard = self._credited.get((producer_id, queue_id), [])
        if credited in heard:
            heard.remove(credited)
        if not heard:
            self._credited.pop((producer_id, queue_id), None)

    # --- subscriptions ---

    def subscribe(self, message: Subscribe, subscriber: GrantReceiver) -> None:
        """Ask for grants. Raises ConnectionLost when the connection is gone already.

        By callbacks and without a deadline: grants come right behind the answer, and whoever gave up waiting for it
        must give back what comes all the same.
        """

        def answered(answer: Frame | MirrorlogError) -> None:
            subscribed = answer if isinstance(answer, MirrorlogError) else subscribed_in(answer)
            if isinstance(subscribed, MirrorlogError):
                subscriber.ended(subscribed)
                return
            self._subscribers[subscribed.subscription] = subscriber
            subscriber.subscribed(subscribed)

        self._send(FrameType.REQUEST, encode_readable(message), answered)

    def settle(
        self,
        ranges: Sequence[int],
        *,
        subscription: int,
        epoch: int,
        how: int,
        level: int,
        delay_ms: int,
        again: bool,
        done: SettleDone,
    ) -> None:
        """Send one settlement; `done` is called once, with None or the error, on the loop. `ranges`: flat, ascending.
        `again`: of records that came over a connection that is lost.

        Raises ConnectionLost when the connection is gone already.
        """
        endpoint = self._endpoint
        if endpoint is None or self._lost is not None or not endpoint.open:
            raise self._gone()
        self._last_id = correlation_id = self._last_id + 1
        self._waiting[correlation_id] = partial(tell_settled, done)
        frame_ = settle_frame(
            ranges,
            subscription=subscription,
            epoch=epoch,
            how=how,
            level=level,
            delay_ms=delay_ms,
            flags=SETTLE_AGAIN if again else 0,
            correlation_id=correlation_id,
        )
        endpoint.send((frame_,))

    def unsubscribe(self, subscription: int, *, done: SettleDone, leaves: bool = False) -> None:
        """Ask for no more grants; those on their way come before `done`. `leaves`: what is unacknowledged goes back as
        if the connection were lost. Raises ConnectionLost."""
        message = Unsubscribe(subscription=subscription, leaves=leaves)
        self._send(
            FrameType.REQUEST,
            encode(message),
            lambda answer: done(answer if isinstance(answer, MirrorlogError) else None),
        )

    def forget(self, subscription: int) -> None:
        """Nothing that comes for it interests anybody any more."""
        self._subscribers.pop(subscription, None)

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.trust()
        endpoint.send([frame(FrameType.HELLO, encode(self._hello))])

    def frame(self, frame_: Frame) -> None:
        alive = self._alive
        alive.last_read = self.loop.time()
        if alive.pinged_at is not None:
            alive.pinged_at = None
        elif frame_.type == _PONG and alive.holds():
            self._end_unacked(_HELD_UNACKED_MS)
        correlation_id = frame_.correlation_id
        if (done := self._publishing.get(correlation_id)) is not None:
            # First read, then forgotten: if it cannot be read the connection ends, and whoever waits is told so.
            result = confirm_in(frame_)
            del self._publishing[correlation_id]
            done(result)
        elif correlation_id:
            answer = failure_in(frame_) if frame_.type == _ERROR else frame_
            if (answered := self._waiting.pop(correlation_id, None)) is not None:
                answered(answer)
        else:
            self._told(frame_)

    def _told(self, frame_: Frame) -> None:
        """A frame that answers nothing."""
        if frame_.type == _DELIVER:
            self._deliver(frame_)
        elif frame_.type == FrameType.CREDIT:
            self._take_credit(read_credit(frame_.payload))
        elif frame_.type == FrameType.ENDED:
            number, error = ended_in(frame_)
            if (subscriber := self._subscribers.pop(number, None)) is not None:
                subscriber.ended(error)
        elif frame_.type == FrameType.WELCOME:
            if isinstance(welcome := decode(frame_.payload), Welcome) and not self._greeting.done():
                self._greeting.set_result(welcome)
        elif frame_.type == FrameType.GOODBYE:
            self._lost = ConnectionLost(f"{self.address} is going down")
        elif frame_.type == _ERROR:
            self._lost = failure_in(frame_)

    def _take_credit(self, credit: Credit) -> None:
        if not credit.queue_id:
            self._credit_bytes = credit.granted
        for credited in tuple(self._credited.get((credit.producer_id, credit.queue_id), ())):
            credited(credit)

    def _deliver(self, frame_: Frame) -> None:
        facts = read_deliver(frame_.payload)
        if (subscriber := self._subscribers.get(facts.subscription)) is not None:
            body = frame_.body
            # What was not placed stands in the connection's own buffer, which is used again.
            content = memoryview(bytes(frame_.payload[DELIVER.size :])) if body is None else body
            subscriber.delivered(facts, content)

    def handled(self) -> None: ...

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        """Where its reader wants the answer to a fetch, or a subscriber its grants; what nobody waits for any more goes
        where it will."""
        if frame_type == _DELIVER:
            subscriber = self._subscribers.get(read_deliver(facts).subscription)
            return subscriber.room(size) if subscriber is not None else None
        room = self._rooms.get(correlation_id)
        return room(size) if room is not None and frame_type == _BATCHES else None

    def writable(self) -> None: ...  # what waits for the socket is bounded by the producers' windows

    def disconnected(self, error: MirrorlogError | None) -> None:
        hint = "" if self._greeting.done() else " before the greeting; does that port want TLS, or a certificate?"
        lost = self._lost or error or ConnectionLost(f"{self.address} closed the connection{hint}")
        if not self._greeting.done():
            self._greeting.set_exception(lost)
        publishing, self._publishing = self._publishing, {}
        waiting, self._waiting = self._waiting, {}
        subscribers, self._subscribers = self._subscribers, {}
        # Whoever waits cannot know whether the node still got the request: that is ConnectionLost, whatever the reason.
        failure = lost if isinstance(lost, ConnectionLost) else ConnectionLost(f"{self.address}: {lost}")
        self._lost = ConnectionLost(str(lost))  # one that nobody raises: it would keep where it was raised
        for tell in (*publishing.values(), *waiting.values()):
            tell(failure)
        for subscriber in subscribers.values():
            subscriber.ended(failure)
        self.when_lost(lost)

    # --- inside ---

    def _send(self, kind: FrameType, payload: bytes, answered: _Answered, room: _Room | None = None) -> int:
        """A frame that is answered; its correlation id. Raises ConnectionLost."""
        endpoint = self._usable_endpoint()
        self._last_id = correlation_id = self._last_id + 1
        self._waiting[correlation_id] = answered
        if room is not None:
            self._rooms[correlation_id] = room
        endpoint.send([frame(kind, payload, correlation_id)])
        return correlation_id

    def _usable_endpoint(self) -> Endpoint:
        if self._endpoint is None or not self.usable:
            raise self._gone()
        return self._endpoint

    def _gone(self) -> ConnectionLost:
        return ConnectionLost(f"the connection to {self.address} is gone: {self._lost or 'closed'}")

    async def _ask(self, kind: FrameType, payload: bytes, timeout_ms: int, room: _Room | None = None) -> Frame:
        """Send a frame and await its answer, whatever type that has. The answer's bytes are the caller's to keep."""
        outcome: asyncio.Future[Frame] = self.loop.create_future()

        def answered(answer: Frame | MirrorlogError) -> None:
            if outcome.done():
                return
            if isinstance(answer, MirrorlogError):
                outcome.set_exception(answer)
            else:
                # The payload stands in the connection's own buffer, which is used again; a placed body does not.
                outcome.set_result(answer._replace(payload=memoryview(bytes(answer.payload))))

        correlation_id = self._send(kind, payload, answered, room)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await outcome
        except TimeoutError:
            raise RequestTimeout(f"{self.address} did not answer within {timeout_ms} ms") from None
        finally:
            self._waiting.pop(correlation_id, None)
            self._rooms.pop(correlation_id, None)

    def _tick(self) -> None:
        if not self.usable:
            return
        assert self._endpoint is not None
        now, alive = self.loop.time(), self._alive
        silent_s = now - alive.last_read
        if alive.is_lost(now):
            self.give_up(f"{self.address} said nothing for {silent_s:.0f} s")
            return
        if alive.is_released(now):
            self._end_unacked(CLIENT_UNACKED_MS)
        if silent_s * 1000 >= REST_MS:
            self._endpoint.rest()
        if alive.wants_ping(now, is_busy=bool(self._waiting or self._publishing or self._subscribers)):
            self._endpoint.send([frame(FrameType.PING)])
        self._ticker = self.loop.call_later(KeepAlive.tick_s, self._tick)

    def _end_unacked(self, unacked_ms: int) -> None:
        if self._endpoint is not None and self._endpoint.socket is not None:
            end_unacked(self._endpoint.socket, unacked_ms)
