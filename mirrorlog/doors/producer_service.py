"""The gRPC service Producer: opens Publish streams and carries their messages. Thin over publish_stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import grpc

from mirrorlog.client import Client
from mirrorlog.doors.admission import Admission, node_stopping
from mirrorlog.doors.call_logins import Calling, CallLogins
from mirrorlog.doors.calls import abort
from mirrorlog.doors.incoming import Batch, read_request
from mirrorlog.doors.one_attempt import OneAttempt
from mirrorlog.doors.opening import Opening, read_opening
from mirrorlog.doors.publish_stream import PublishStream
from mirrorlog.doors.retrying import Retrying
from mirrorlog.doors.window import Window
from mirrorlog.errors import BadRequest, MirrorlogError
from mirrorlog.pb.v1 import producer_pb2 as pb

OPEN_TIMEOUT_S: Final = 10.0
SERVICE: Final = pb.DESCRIPTOR.services_by_name["Producer"].full_name

_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """`streams_max` windows are the most memory that publishing takes (1 GiB, and a batch per stream).

    A node remembers a producer's last 64 batches, so no more may wait for an answer.
    """

    window_bytes: int = 4 * _MIB
    window_batches: int = 64
    streams_max: int = 256


class PublishCall(Calling, Protocol):
    """The part of gRPC's context that a stream needs."""

    async def write(self, message: pb.PublishResponse, /) -> None: ...
    async def abort(self, code: Any, details: str, trailing_metadata: Any) -> Any: ...


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
            self.Publish,
            request_deserializer=read_request,
            response_serializer=pb.PublishResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Publish": publish}),))

    async def Publish(self, request_iterator: AsyncIterator[pb.PublishRequest | Batch], context: PublishCall) -> None:
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

    async def _serve(
        self, client: Client, requests: AsyncIterator[pb.PublishRequest | Batch], context: PublishCall
    ) -> None:
        opening = await _first(requests)
        one_attempt = await OneAttempt.open(client, opening)
        async with Retrying(client, opening, one_attempt.limits) as retrying:
            window = Window(bytes_max=self._limits.window_bytes, batches_max=self._limits.window_batches)
            stream = PublishStream(opening=opening, one_attempt=one_attempt, retrying=retrying, window=window)
            await context.write(pb.PublishResponse(opened=self._opened(one_attempt)))
            await self._carry(stream, requests, context)

    async def _carry(
        self, stream: PublishStream, requests: AsyncIterator[pb.PublishRequest | Batch], context: PublishCall
    ) -> None:
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


async def _first(requests: AsyncIterator[pb.PublishRequest | Batch]) -> Opening:
    """Raises BadRequest when none comes in time, or another kind."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            return read_opening(await anext(aiter(requests)))
    except StopAsyncIteration:
        raise BadRequest("the stream ended before its first request, `open`") from None
    except TimeoutError:
        raise BadRequest(f"no `open` within {OPEN_TIMEOUT_S:.0f} s") from None
