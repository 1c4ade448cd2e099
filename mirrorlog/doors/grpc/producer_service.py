"""The gRPC service Producer: opens Publish streams and carries their messages. Thin over publish_stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Self

import grpc

from mirrorlog.attempts import leaves_doubt, outcome_of
from mirrorlog.client import Client, Producer, Receipt
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.connection.queue_metadata import FoundQueue
from mirrorlog.client.options import ProducerOptions, level_for
from mirrorlog.client.producer.batch import ReceiptRange
from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES
from mirrorlog.commitlog.format.header import HEADER_SIZE
from mirrorlog.doors.grpc.calls import CallLogins, abort, as_message
from mirrorlog.doors.grpc.incoming import (
    Batch,
    Opening,
    check_content,
    check_ready,
    check_size,
    number_records,
    read_attributes,
    read_opening,
    read_records,
    read_request,
)
from mirrorlog.doors.grpc.window import Admission, SentBatch, StreamWindow, node_stopping
from mirrorlog.errors import BadRequest, ConnectionLost, MasterChanged, MirrorlogError, NotMaster, RequestTimeout
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import producer_pb2 as pb
from mirrorlog.wire.frames import Confirm, Durability
from mirrorlog.wire.messages.handshake import NodeLimits

# One Publish stream between its opening and its end: batches in, results out in the same order. Knows no gRPC.
#
# Two tasks: `read` hands batches over, `results` gives their answers. Between them stand the unanswered batches; the
# window stops `read` when they are many. A failed batch is a result like any other; what ends the stream is an _End.


_DURABILITIES = {Durability.MEMORY: common.DURABILITY_MEMORY, Durability.DISK: common.DURABILITY_DISK}

_IN_FLIGHT_MAX: Final = 16
# The stream's window is the one that counts; the producer's must never be the tighter one.
_NO_WINDOW_BYTES: Final = 2**62
# The node answers at the deadline; its answer says more than ours would.
_GRACE_S: Final = 1.0
PublishCall = grpc.aio.ServicerContext[Any, pb.PublishResponse]
Requests = AsyncIterator[pb.PublishRequest | Batch]
OPEN_TIMEOUT_S: Final = 10.0
SERVICE: Final = pb.DESCRIPTOR.services_by_name["Producer"].full_name
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Unanswered:
    """A batch whose result is still to be written. `handed`: what is known of the batch so far."""

    tag: int
    size: int
    handed: SentBatch | MirrorlogError


@dataclass(frozen=True, slots=True)
class _End:
    """No more answers; `error` is why, None after the client's own end."""

    error: Exception | None


class PublishStream:
    """One Publish stream between its opening and its end. `one_attempt`: for batches with a number of their own.
    `retrying`: for records without one."""

    def __init__(self, *, opening: Opening, one_attempt: OneAttempt, retrying: Retrying, window: StreamWindow) -> None:
        self._opening = opening
        self._one_attempt = one_attempt
        self._retrying = retrying
        self._way: OneAttempt | Retrying = one_attempt
        self._window = window
        self._unanswered: asyncio.Queue[_Unanswered | _End] = asyncio.Queue()

    async def read(self, requests: AsyncIterable[pb.PublishRequest | Batch]) -> None:
        """Hand over what comes, until the client's end or a request that makes no sense."""
        try:
            async for request in requests:
                if not isinstance(request, Batch):
                    raise BadRequest("after `open`, which comes once, every request is a `batch`")
                await self._take(request)
                await self._window.room()
            self._unanswered.put_nowait(_End(None))
        except Exception as error:
            # Whoever reads the results must hear of it, whatever it is: nothing else ends them.
            self._unanswered.put_nowait(_End(error))

    def end(self, error: MirrorlogError) -> None:
        """Answer what is unanswered, then end the stream with `error`."""
        self._unanswered.put_nowait(_End(error))

    async def results(self) -> AsyncIterator[pb.PublishResult]:
        """One result per batch, in order. Raises what ended the stream."""
        while not isinstance(item := await self._unanswered.get(), _End):
            yield await _result(item)
            # Only now: a client that does not read its answers is not read from either.
            self._window.remove(item.size)
        if item.error is not None:
            raise item.error

    async def _take(self, batch: Batch) -> None:
        handed: SentBatch | MirrorlogError
        try:
            check_content(batch, self._opening)
            await self._choose_way(batch)
            handed = await self._way.send(batch)
        except MirrorlogError as error:
            handed = error
        self._window.add(batch.size)
        self._unanswered.put_nowait(_Unanswered(batch.tag, batch.size, handed))

    async def _choose_way(self, batch: Batch) -> None:
        retried = isinstance(batch.content, pb.Records) and not self._opening.identified
        way = self._retrying if retried else self._one_attempt
        if way is not self._way:
            # What may still be tried again must not be overtaken.
            await self._window.empty()
            self._way = way


async def _result(item: _Unanswered) -> pb.PublishResult:
    if isinstance(item.handed, MirrorlogError):
        # Nothing was sent, so nothing can be doubled.
        return pb.PublishResult(tag=item.tag, error=as_message(item.handed, idempotent=True))
    try:
        receipt = await item.handed.outcome
    except MirrorlogError as error:
        return pb.PublishResult(tag=item.tag, error=as_message(error, idempotent=item.handed.idempotent))
    return pb.PublishResult(tag=item.tag, confirm=_confirm(receipt))


def _confirm(receipt: Receipt) -> pb.Confirm:
    return pb.Confirm(
        base_queue_offset=receipt.queue_offset,
        log_offset=receipt.log_offset,
        epoch=receipt.epoch,
        copies=receipt.copies,
        durability=_DURABILITIES[Durability(receipt.durability)],
        duplicate=receipt.duplicate,
    )


# Records without a number: the door's own producer numbers them and tries again, so each lands once on their way.
#
# That holds between door and node. A client that sends them again, on whatever stream, sends new records.


class Retrying:
    """The way of a stream's records when it has no identity. Use it with `async with`."""

    def __init__(self, client: Client, opening: Opening, limits: NodeLimits) -> None:
        self._opening = opening
        # Not by client.producer: the level is the wire's already, and it ends with its stream, never with the client.
        self._producer = Producer(
            client,
            opening.queue,
            ProducerOptions(
                level=opening.level,
                durability=opening.durability,
                batch_bytes=limits.max_batch_bytes - HEADER_SIZE,
                linger_ms=0,
                window_bytes=_NO_WINDOW_BYTES,
                max_in_flight=_IN_FLIGHT_MAX,
                delivery_timeout_ms=opening.delivery_timeout_ms,
            ),
        )

    async def __aenter__(self) -> Self:
        """Reach the queue's master, so that later on its absence is something to wait for. Raises ConnectionLost."""
        if not self._opening.identified:
            await self._producer.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End at once: whoever would hear of what is still tried has gone."""
        self._producer.abandon()

    async def send(self, batch: Batch) -> SentBatch:
        """Raises MirrorlogError when the records were not handed over."""
        assert isinstance(batch.content, pb.Records)
        asked = read_attributes(batch.content) or NO_ATTRIBUTES
        sent = self._producer.send_batch_nowait(read_records(batch.content), **asked._asdict())
        return SentBatch(sent, idempotent=False)


# Batches that carry a number of their own, or none: passed on to the queue's master once.
#
# The node's answer is the client's, and so is trying again: it keeps the sequence, so only it knows what must go
# first.


class OneAttempt:
    """The way of a stream's ready batches, and of its records when the stream has an identity."""

    def __init__(self, client: Client, opening: Opening, connection: Connection, queue: FoundQueue) -> None:
        """Use `open`."""
        self._client = client
        self._opening = opening
        self._use(connection, queue)

    def _use(self, connection: Connection, queue: FoundQueue) -> None:
        self._connection, self._moved = connection, False
        self.queue_id, self._level = queue.queue_id, level_for(self._opening.level, queue.info)

    @classmethod
    async def open(cls, client: Client, opening: Opening) -> Self:
        """Find the queue's master. Raises NoSuchQueue or ConnectionLost."""
        return cls(client, opening, *await client.master_of(opening.queue))

    @property
    def limits(self) -> NodeLimits:
        """Of the master that was reached last."""
        return self._connection.welcome.limits

    async def send(self, batch: Batch) -> SentBatch:
        """Raises MirrorlogError when nothing was sent."""
        connection = await self._master()
        if isinstance(batch.content, memoryview):
            idempotent = check_ready(batch.content, self._opening, queue_id=self.queue_id, limits=self.limits)
            return SentBatch(self._produce(connection, batch.content), idempotent)
        assert batch.content is not None
        assert batch.sequence is not None
        records = read_records(batch.content)
        numbered = number_records(
            records,
            self._opening,
            sequence=batch.sequence,
            queue_id=self.queue_id,
            attributes=read_attributes(batch.content),
        )
        check_size(numbered, self.limits)
        return SentBatch(self._produce(connection, numbered), True)

    async def _master(self) -> Connection:
        if self._moved or not self._connection.usable:
            self._use(*await self._client.master_of(self._opening.queue))
        return self._connection

    def _produce(self, connection: Connection, batch: bytes | memoryview) -> asyncio.Future[Receipt]:
        """Send now; the future ends within the delivery timeout and a second."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Receipt] = loop.create_future()
        # A stream that broke off asks no more: its failures are nobody's.
        outcome.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        timeout_ms = self._opening.delivery_timeout_ms

        def done(result: Confirm | MirrorlogError) -> None:
            timer.cancel()
            self._moved = self._moved or isinstance(result, NotMaster | MasterChanged)
            if outcome.done():
                return
            if isinstance(result, MirrorlogError):
                # After the batch has left, a silent or lost node may have stored it.
                outcome.set_exception(outcome_of(result, in_doubt=leaves_doubt(result)))
            else:
                outcome.set_result(ReceiptRange.of(result, 1).receipt(0))

        silent = RequestTimeout(f"{connection.address} did not answer within {timeout_ms} ms")
        timer = loop.call_later(timeout_ms / 1000 + _GRACE_S, done, silent)
        try:
            connection.produce(
                batch, level=self._level, durability=self._opening.durability, deadline_ms=timeout_ms, done=done
            )
        except ConnectionLost:
            timer.cancel()
            raise
        return outcome


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """How many Publish streams there may be, and how much of each may be unanswered. `streams_max` windows are the most
    memory that publishing takes (1 GiB, and a batch per stream).

    A node remembers a producer's last 64 batches, so no more may wait for an answer.
    """

    window_bytes: int = 4 * _MIB
    window_batches: int = 64
    streams_max: int = 256


class ProducerService:
    """All Publish streams of this door."""

    def __init__(self, logins: CallLogins, limits: StreamLimits) -> None:
        self._logins = logins
        self._limits = limits
        self._admission = Admission("Publish", streams_max=limits.streams_max)
        self._streams: set[PublishStream] = set()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Serve it there. As the generated code would, but for how requests are read."""
        publish = grpc.stream_stream_rpc_method_handler(
            self.Publish, request_deserializer=read_request, response_serializer=pb.PublishResponse.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Publish": publish}),))

    async def Publish(self, request_iterator: Requests, context: PublishCall) -> None:
        try:
            with self._admission.place():
                async with self._logins.client(context) as client:
                    await self._serve(client, request_iterator, context)
        except MirrorlogError as error:
            await abort(context, error)

    def stop(self) -> None:
        """End all streams once what they have read is answered; open no more."""
        self._admission.stopping = True
        for stream in self._streams:
            stream.end(node_stopping())

    async def _serve(self, client: Client, requests: Requests, context: PublishCall) -> None:
        opening = await _first(requests)
        one_attempt = await OneAttempt.open(client, opening)
        async with Retrying(client, opening, one_attempt.limits) as retrying:
            window = StreamWindow(bytes_max=self._limits.window_bytes, batches_max=self._limits.window_batches)
            stream = PublishStream(opening=opening, one_attempt=one_attempt, retrying=retrying, window=window)
            await context.write(pb.PublishResponse(opened=self._opened(one_attempt)))
            await self._carry(stream, requests, context)

    async def _carry(self, stream: PublishStream, requests: Requests, context: PublishCall) -> None:
        self._streams.add(stream)
        reading = asyncio.ensure_future(stream.read(requests))
        try:
            # The end may have been asked for while the stream was being opened.
            if self._admission.stopping:
                self.stop()
            async for result in stream.results():
                await context.write(pb.PublishResponse(result=result))
        finally:
            self._streams.discard(stream)
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading

    def _opened(self, way: OneAttempt) -> pb.Opened:
        return pb.Opened(
            queue_id=way.queue_id,
            max_record_bytes=way.limits.max_record_bytes,
            max_batch_bytes=way.limits.max_batch_bytes,
            window_bytes=self._limits.window_bytes,
            window_batches=self._limits.window_batches,
        )


async def _first(requests: Requests) -> Opening:
    """Raises BadRequest when none comes in time, or another kind."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            return read_opening(await anext(aiter(requests)))
    except StopAsyncIteration:
        raise BadRequest("the stream ended before its first request, `open`") from None
    except TimeoutError:
        raise BadRequest(f"no `open` within {OPEN_TIMEOUT_S:.0f} s") from None
