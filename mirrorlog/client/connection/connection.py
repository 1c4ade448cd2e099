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
from typing import Final, Protocol, Self, TypeVar

from mirrorlog import __version__
from mirrorlog.errors import ConnectionLost, LoginFailed, MirrorlogError, NotGranted, ProtocolError, RequestTimeout
from mirrorlog.wire.dialling import CLIENT_UNACKED_MS, dial, end_unacked
from mirrorlog.wire.endpoint import REST_MS, Endpoint
from mirrorlog.wire.frames import (
    BATCHES,
    CONFIRM,
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
    read_settled,
    settle_frame,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import as_error, decode, encode
from mirrorlog.wire.messages.groups import Subscribe, Subscribed, SubscriptionEnded, Unsubscribe
from mirrorlog.wire.messages.handshake import Failure, Hello, Welcome
from mirrorlog.wire.messages.queues import Done
from mirrorlog.wire.messages.topology import Login
from mirrorlog.wire.transaction_frames import BatchReceipt, Transacted, read_transacted

# A node that owes an answer is asked for a sign of life soon, so that its requests move on well before producers' and
# readers' deadlines; an idle connection is only kept from being closed as idle.
_TICK_S: Final = 5.0
_PING_IDLE_S: Final = 15.0
_SILENCE_S_MAX: Final = 20.0
_QUIET_S: Final = 0.5
# A node that holds a user to his limits says that it lives, and does not read what comes; how long is its matter.
_HELD_S: Final = 5.0
_HELD_UNACKED_MS: Final = 20_000
# A consumer may ask for more than a batch, and a single batch may be as large as the node allows.
_FRAME_BYTES_MAX: Final = 512 * 1024 * 1024
_UNSENT_BYTES_MAX: Final = 1024 * 1024 * 1024
_TAKEN_NAMES: Final = frozenset({"self", "message"})
# A frame's header and the struct of a PRODUCE frame, in one.
_PRODUCE_HEAD: Final = struct.Struct("<IHHQ BBHI")
assert _PRODUCE_HEAD.size == FRAME_HEADER_SIZE + PRODUCE.size
# A copy of so little costs less than a second buffer does, for the loop and for the system.
_COPIED_BYTES_MAX: Final = 16 * 1024
# Plain numbers: a frame is compared with them whenever one comes.
_PRODUCE: Final = int(FrameType.PRODUCE)
_CONFIRM: Final = int(FrameType.CONFIRM)
_ERROR: Final = int(FrameType.ERROR)
_BATCHES: Final = int(FrameType.BATCHES)
_DELIVER: Final = int(FrameType.DELIVER)
_PONG: Final = int(FrameType.PONG)

ProduceDone = Callable[[Confirm | MirrorlogError], None]
SettleDone = Callable[[MirrorlogError | None], None]
Credited = Callable[[Credit], None]

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Message)
_Answered = Callable[[Frame | MirrorlogError], None]
_Room = Callable[[int], memoryview]


class Subscriber(Protocol):
    """Whom a node sends grants to; called on the loop. The first call is `subscribed` or `ended`, and nothing comes
    behind `ended`."""

    def subscribed(self, answer: Subscribed) -> None: ...

    def delivered(self, facts: Deliver, content: memoryview) -> None:
        """`content`: what follows the fixed struct, the subscriber's to keep."""

    def ended(self, error: MirrorlogError) -> None:
        """Refused, or over: by the node's word, or with the connection."""

    def room(self, size: int) -> memoryview:
        """Memory for exactly `size` bytes, for a large content to be received into."""


class Connection:
    """Made by `open`. Its methods raise what the node answered, ConnectionLost or RequestTimeout. `loop`: where it is
    used."""

    def __init__(
        self, address: str, *, role: str, cluster_id: str | None, stale_reads: bool = False, client_id: str = ""
    ) -> None:
        """Use `open`."""
        self.address = address
        self._hello = Hello(
            version_min=PROTOCOL_VERSION_MIN,
            version_max=PROTOCOL_VERSION_MAX,
            role=role,
            software=f"mirrorlog-python {__version__}",
            cluster_id=cluster_id,
            stale_reads=stale_reads,
            credit=True,
            client_id=client_id,
        )
        self.loop = asyncio.get_running_loop()
        self._endpoint: Endpoint | None = None
        self._greeting: asyncio.Future[Welcome] = self.loop.create_future()
        self._waiting: dict[int, _Answered] = {}
        self._publishing: dict[int, ProduceDone] = {}
        self._rooms: dict[int, _Room] = {}
        self._subscribers: dict[int, Subscriber] = {}
        self._credited: dict[tuple[int, int], list[Credited]] = {}
        self._last_id = 0
        self._last_read = self.loop.time()
        self._pinged_at: float | None = None
        self._held_until: float | None = None
        self._credit_bytes: int | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._lost: MirrorlogError | None = None

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
        connection._ticker = connection.loop.call_later(_TICK_S, connection._tick)
        return connection

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
        now = self.loop.time()
        if self._pinged_at is not None and now - self._pinged_at > _QUIET_S:
            return True
        asked = self._publishing or self._waiting
        return bool(asked) and now - self._last_read > _QUIET_S

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
        answer = await self._ask(FrameType.REQUEST, encode(message), timeout_ms)
        decoded = decode(_expect(answer, FrameType.RESPONSE).payload)
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
        endpoint = self._usable_endpoint()
        correlation_id = self._next_id()
        size = len(batch)
        head = _PRODUCE_HEAD.pack(
            PRODUCE.size + size, _PRODUCE, 0, correlation_id, level, durability, routing, deadline_ms
        )  # fmt: skip
        self._publishing[correlation_id] = done
        endpoint.send((head + batch,) if size <= _COPIED_BYTES_MAX else (head, memoryview(batch)))

    async def produce_and_wait(
        self, batch: bytes | bytearray | memoryview, *, level: int, durability: int, deadline_ms: int
    ) -> Confirm:
        """One ready batch, awaited. Raises what the node answered, ConnectionLost, or RequestTimeout well after the
        deadline."""
        outcome: asyncio.Future[Confirm] = self.loop.create_future()

        def done(result: Confirm | MirrorlogError) -> None:
            if outcome.done():
                return
            if isinstance(result, MirrorlogError):
                outcome.set_exception(result)
            else:
                outcome.set_result(result)

        self.produce(batch, level=level, durability=durability, deadline_ms=deadline_ms, done=done)
        return await self._within(outcome, deadline_ms + 5_000)

    async def transact(self, payload: bytes, *, timeout_ms: int) -> tuple[Transacted, list[BatchReceipt]]:
        """One transaction (`transact_payload`), awaited. Raises what the node answered, ConnectionLost or
        RequestTimeout."""
        answer = await self._ask(FrameType.TRANSACT, payload, timeout_ms)
        return read_transacted(_expect(answer, FrameType.TRANSACTED).payload)

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
        payload = _expect(answer, FrameType.BATCHES).payload
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

    def subscribe(self, message: Subscribe, subscriber: Subscriber) -> None:
        """Ask for grants. Raises ConnectionLost when the connection is gone already.

        By callbacks and without a deadline: grants come right behind the answer, and whoever gave up waiting for it
        must give back what comes all the same.
        """
        endpoint = self._usable_endpoint()
        correlation_id = self._next_id()

        def answered(answer: Frame | MirrorlogError) -> None:
            subscribed = answer if isinstance(answer, MirrorlogError) else _subscribed_in(answer)
            if isinstance(subscribed, MirrorlogError):
                subscriber.ended(subscribed)
                return
            self._subscribers[subscribed.subscription] = subscriber
            subscriber.subscribed(subscribed)

        self._waiting[correlation_id] = answered
        endpoint.send([frame(FrameType.REQUEST, encode(message), correlation_id)])

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
        endpoint = self._usable_endpoint()
        correlation_id = self._next_id()
        self._waiting[correlation_id] = lambda answer: done(_settled_in(answer))
        endpoint.send(
            [
                settle_frame(
                    ranges,
                    subscription=subscription,
                    epoch=epoch,
                    how=how,
                    level=level,
                    delay_ms=delay_ms,
                    flags=SETTLE_AGAIN if again else 0,
                    correlation_id=correlation_id,
                )
            ]
        )

    def unsubscribe(self, subscription: int, *, done: SettleDone, leaves: bool = False) -> None:
        """Ask for no more grants; those on their way come before `done`. `leaves`: what is in hand goes back as if the
        connection were lost. Raises ConnectionLost."""
        endpoint = self._usable_endpoint()
        correlation_id = self._next_id()
        self._waiting[correlation_id] = lambda answer: done(answer if isinstance(answer, MirrorlogError) else None)
        message = Unsubscribe(subscription=subscription, leaves=leaves)
        endpoint.send([frame(FrameType.REQUEST, encode(message), correlation_id)])

    def forget(self, subscription: int) -> None:
        """Nothing that comes for it interests anybody any more."""
        self._subscribers.pop(subscription, None)

    # --- FrameHandler ---

    def connected(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        endpoint.trust()
        endpoint.send([frame(FrameType.HELLO, encode(self._hello))])

    def frame(self, frame_: Frame) -> None:
        self._last_read = self.loop.time()
        if self._pinged_at is not None:
            self._pinged_at = None
        elif frame_.type == _PONG:
            self._is_held()
        correlation_id = frame_.correlation_id
        if (done := self._publishing.get(correlation_id)) is not None:
            # First read, then forgotten: if it cannot be read the connection ends, and whoever waits is told so.
            result = _confirm_in(frame_)
            del self._publishing[correlation_id]
            done(result)
        elif correlation_id:
            answer = _failure(frame_) if frame_.type == _ERROR else frame_
            if (answered := self._waiting.pop(correlation_id, None)) is not None:
                answered(answer)
        else:
            self._told(frame_)

    def _told(self, frame_: Frame) -> None:
        """A frame that answers nothing."""
        if frame_.type == _DELIVER:
            self._deliver(frame_)
        elif frame_.type == FrameType.CREDIT:
            credit = read_credit(frame_.payload)
            if not credit.queue_id:
                self._credit_bytes = credit.granted
            for credited in tuple(self._credited.get((credit.producer_id, credit.queue_id), ())):
                credited(credit)
        elif frame_.type == FrameType.ENDED:
            self._end_subscription(frame_)
        elif frame_.type == FrameType.WELCOME:
            welcome = decode(frame_.payload)
            if isinstance(welcome, Welcome) and not self._greeting.done():
                self._greeting.set_result(welcome)
        elif frame_.type == FrameType.GOODBYE:
            self._lost = ConnectionLost(f"{self.address} is going down")
        elif frame_.type == _ERROR:
            self._lost = _failure(frame_)

    def _deliver(self, frame_: Frame) -> None:
        facts = read_deliver(frame_.payload)
        subscriber = self._subscribers.get(facts.subscription)
        if subscriber is not None:
            body = frame_.body
            # What was not placed stands in the connection's own buffer, which is used again.
            content = memoryview(bytes(frame_.payload[DELIVER.size :])) if body is None else body
            subscriber.delivered(facts, content)

    def _end_subscription(self, frame_: Frame) -> None:
        message = decode(frame_.payload)
        if not isinstance(message, SubscriptionEnded):
            raise ProtocolError(f"an ENDED frame with {type(message).__name__}")
        subscriber = self._subscribers.pop(message.subscription, None)
        if subscriber is not None:
            subscriber.ended(_told_error(Failure(code=message.code, message=message.message, details=message.details)))

    def handled(self) -> None:
        pass

    def place(self, frame_type: int, correlation_id: int, facts: memoryview, size: int) -> memoryview | None:
        """Where its reader wants the answer to a fetch, or a subscriber its grants; what nobody waits for any more goes
        where it will."""
        if frame_type == _DELIVER:
            subscriber = self._subscribers.get(read_deliver(facts).subscription)
            return subscriber.room(size) if subscriber is not None else None
        room = self._rooms.get(correlation_id)
        return room(size) if room is not None and frame_type == _BATCHES else None

    def writable(self) -> None:
        """Nothing to do: what waits for the socket is bounded by the producers' windows."""

    def disconnected(self, error: MirrorlogError | None) -> None:
        hint = "" if self._greeting.done() else " before the greeting; does that port want TLS, or a certificate?"
        self._lost = self._lost or error or ConnectionLost(f"{self.address} closed the connection{hint}")
        lost = self._lost
        if not self._greeting.done():
            self._greeting.set_exception(lost)
        publishing, self._publishing = self._publishing, {}
        waiting, self._waiting = self._waiting, {}
        subscribers, self._subscribers = self._subscribers, {}
        # Whoever waits cannot know whether the node still got the request: that is ConnectionLost, whatever the reason.
        failure = lost if isinstance(lost, ConnectionLost) else ConnectionLost(f"{self.address}: {lost}")
        self._lost = ConnectionLost(str(lost))  # one that nobody raises: it would keep where it was raised
        for done in publishing.values():
            done(failure)
        for answered in waiting.values():
            answered(failure)
        for subscriber in subscribers.values():
            subscriber.ended(failure)

    # --- inside ---

    def _make_endpoint(self) -> Endpoint:
        return Endpoint(self, frame_bytes_max=_FRAME_BYTES_MAX, outgoing_bytes_max=_UNSENT_BYTES_MAX)

    def _next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _usable_endpoint(self) -> Endpoint:
        if self._endpoint is None or not self._endpoint.open or self._lost is not None:
            raise ConnectionLost(f"the connection to {self.address} is gone: {self._lost or 'closed'}")
        return self._endpoint

    async def _ask(self, kind: FrameType, payload: bytes, timeout_ms: int, room: _Room | None = None) -> Frame:
        """Send a frame and await its answer, whatever type that has. The answer's bytes are the caller's to keep."""
        endpoint = self._usable_endpoint()
        correlation_id = self._next_id()
        outcome: asyncio.Future[Frame] = self.loop.create_future()

        def answered(answer: Frame | MirrorlogError) -> None:
            if outcome.done():
                return
            if isinstance(answer, MirrorlogError):
                outcome.set_exception(answer)
            else:
                # The payload stands in the connection's own buffer, which is used again; a placed body does not.
                outcome.set_result(answer._replace(payload=memoryview(bytes(answer.payload))))

        self._waiting[correlation_id] = answered
        if room is not None:
            self._rooms[correlation_id] = room
        endpoint.send([frame(kind, payload, correlation_id)])
        try:
            return await self._within(outcome, timeout_ms)
        finally:
            self._waiting.pop(correlation_id, None)
            self._rooms.pop(correlation_id, None)

    async def _within(self, outcome: asyncio.Future[_T], timeout_ms: int) -> _T:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await outcome
        except TimeoutError:
            raise RequestTimeout(f"{self.address} did not answer within {timeout_ms} ms") from None

    def _tick(self) -> None:
        if not self.usable:
            return
        assert self._endpoint is not None
        now = self.loop.time()
        unanswered_s = now - self._pinged_at if self._pinged_at is not None else 0.0
        if unanswered_s >= _SILENCE_S_MAX - _TICK_S:
            self._lost = ConnectionLost(f"{self.address} said nothing for {now - self._last_read:.0f} s")
            self.close()
            return
        if self._held_until is not None and now >= self._held_until:
            self._held_until = None
            self._end_unacked(CLIENT_UNACKED_MS)
        silent_s = now - self._last_read
        if silent_s * 1000 >= REST_MS:
            self._endpoint.rest()
        if self._pinged_at is None and silent_s >= self._ping_after_s():
            self._pinged_at = now
            self._endpoint.send([frame(FrameType.PING)])
        self._ticker = self.loop.call_later(_TICK_S, self._tick)

    def _is_held(self) -> None:
        """By the limits of its user: a PONG came that nobody asked for."""
        if self._held_until is None:
            self._end_unacked(_HELD_UNACKED_MS)
        self._held_until = self._last_read + _HELD_S

    def _end_unacked(self, unacked_ms: int) -> None:
        if self._endpoint is not None and (sock := self._endpoint.socket) is not None:
            end_unacked(sock, unacked_ms)

    def _ping_after_s(self) -> float:
        """Who is subscribed waits for what may come any time, and cannot tell a node that hangs from an empty queue."""
        return _TICK_S if self._waiting or self._publishing or self._subscribers else _PING_IDLE_S


def _confirm_in(answer: Frame) -> Confirm | MirrorlogError:
    """What an answer to a batch says, or is wrong with it: whoever waits must be told, whatever comes."""
    if answer.type == _CONFIRM and len(answer.payload) >= CONFIRM.size:
        return Confirm._make(CONFIRM.unpack_from(answer.payload))
    return _failure(answer) if answer.type == _ERROR else _not_due(answer, FrameType.CONFIRM)


def _subscribed_in(answer: Frame) -> Subscribed | MirrorlogError:
    """What an answer to Subscribe says, or is wrong with it."""
    try:
        message = decode(_expect(answer, FrameType.RESPONSE).payload)
    except ProtocolError as error:
        return error
    if not isinstance(message, Subscribed):
        return ProtocolError(f"{type(message).__name__} where Subscribed was expected")
    return message


def _settled_in(answer: Frame | MirrorlogError) -> MirrorlogError | None:
    """What an answer to a settlement says is wrong; None for a confirm."""
    if isinstance(answer, MirrorlogError):
        return answer
    try:
        settled, elsewhere = read_settled(_expect(answer, FrameType.SETTLED).payload)
    except ProtocolError as error:
        return error
    return NotGranted.elsewhere_of(settled.passed_over, elsewhere) if settled.passed_over else None


def _expect(answer: Frame, kind: FrameType) -> Frame:
    """The answer. Raises ProtocolError when it is of another type."""
    if answer.type != kind:
        raise _not_due(answer, kind)
    return answer


def _not_due(answer: Frame, kind: FrameType) -> ProtocolError:
    return ProtocolError(f"an answer of type {answer.type} with {len(answer.payload)} bytes where {kind.name} was due")


def _failure(frame_: Frame) -> MirrorlogError:
    """What an ERROR frame says. Raises ProtocolError for one that cannot be read."""
    message = decode(frame_.payload)
    if not isinstance(message, Failure):
        return ProtocolError("an ERROR frame without a failure")
    return _told_error(message)


def _told_error(failure: Failure) -> MirrorlogError:
    """As an exception. Its details become keywords: those that have the names of its own parameters would clash."""
    details = {f"{name}_" if name in _TAKEN_NAMES else name: value for name, value in failure.details.items()}
    return as_error(Failure(code=failure.code, message=failure.message, details=details))


# Warm memory for what a reader fetches: an answer is received into it once and never copied.
#
# A fresh mebibyte costs as much in page faults and zeroing as it costs to receive, so buffers are used again. When may
# one be? When nobody looks into it any more, and the interpreter knows that: a bytearray with a view of it, or a numpy
# or Arrow array over such a view, cannot be resized. So nothing is handed back and nothing is counted; whoever keeps a
# view keeps its buffer.
#
# Rejected: giving buffers back by hand (one forgotten view, and records change under their reader), a weak reference
# to the view (an array over it outlives it).


_REMEMBERED_BYTES_MAX: Final = 16 * 1024 * 1024
_REMEMBERED_MAX: Final = 16
# Smaller ones come cheaply from the allocator, without a page fault.
_POOLED_BYTES_MIN: Final = 64 * 1024


class BufferPool:
    """Gives memory, and gives it again. Used by one thread; the views that it gives may be dropped in any."""

    def __init__(self, *, remembered_bytes_max: int = _REMEMBERED_BYTES_MAX) -> None:
        """`remembered_bytes_max`: of buffers that may be used again; those beyond it end with their last view."""
        self._remembered_bytes_max = remembered_bytes_max
        self._buffers: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """Room for exactly `size` bytes, with anything in it. Nobody else has it until the last view of it is gone."""
        if size < _POOLED_BYTES_MIN:
            return memoryview(bytearray(size))
        # Powers of two: few sizes to find one among, and a value that is kept keeps at most twice its answer alive.
        return memoryview(self._free(1 << (size - 1).bit_length()))[:size]

    def _free(self, size: int) -> bytearray:
        for at, buffer in enumerate(self._buffers):
            if len(buffer) == size and not _looked_at(buffer):
                del self._buffers[at]
                break
        else:
            buffer = bytearray(size)
        # To the front: the one that was used last is the likeliest to be in the processor's cache.
        self._buffers.insert(0, buffer)
        while len(self._buffers) > _REMEMBERED_MAX or sum(map(len, self._buffers)) > self._remembered_bytes_max:
            self._buffers.pop()
        return buffer


def _looked_at(buffer: bytearray) -> bool:
    """Whether a view of it lives."""
    try:
        # One byte less and again one more: within what is allocated, so nothing moves.
        buffer.pop()
        buffer.append(0)
    except BufferError:
        return True
    return False
