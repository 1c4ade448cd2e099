"""The gRPC service Consumer: each call is a reader whose fetches become responses. Thin.

The next fetch is under way while a response is being written, and none further: a response is written when the flow
control of its stream lets it, so a client that does not read holds its reader up, and nothing but its reader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc

from mirrorlog.doors.grpc import consumed
from mirrorlog.doors.grpc.calls import CallLogins, abort
from mirrorlog.doors.grpc.consume_options import ConsumeOptions, read_options
from mirrorlog.doors.grpc.consume_reader import ConsumeReader
from mirrorlog.doors.grpc.fetched import Fetched
from mirrorlog.doors.grpc.window import Admission, node_stopping
from mirrorlog.errors import MirrorlogError
from mirrorlog.pb.v1 import consumer_pb2 as pb
from mirrorlog.pb.v1 import consumer_pb2_grpc as pb_grpc


@dataclass(frozen=True, slots=True)
class ConsumeLimits:
    """A stream holds two fetches, each of `max_bytes` or one batch, and the response that is being written."""

    streams_max: int = 256


ConsumeCall = grpc.aio.ServicerContext[pb.ConsumeRequest, pb.ConsumeResponse]


class ConsumerService(pb_grpc.ConsumerServicer):
    """All Consume streams of this door. Made on its loop."""

    def __init__(self, logins: CallLogins, limits: ConsumeLimits) -> None:
        self._logins = logins
        self._admission = Admission("Consume", streams_max=limits.streams_max)
        self._stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def Consume(self, request: pb.ConsumeRequest, context: ConsumeCall) -> None:
        try:
            with self._admission.place():
                async with self._logins.client(context) as client:
                    await self._serve(ConsumeReader(client, read_options(request)), context)
        except MirrorlogError as error:
            await abort(context, error)

    def stop(self) -> None:
        """End all streams behind the response that they are writing; open no more."""
        self._admission.stopping = True
        if not self._stopped.done():
            self._stopped.set_result(None)

    async def _serve(self, reader: ConsumeReader, context: ConsumeCall) -> None:
        async with aclosing(self._fetches(reader)) as fetches:
            async for fetched in fetches:
                for response in _responses(fetched, reader.subscription):
                    await context.write(response)

    async def _fetches(self, reader: ConsumeReader) -> AsyncGenerator[Fetched]:
        """Where the reader begins, then what it fetches, until everything was given out."""
        fetched = await self._unless_stopped(_started(reader.open()))
        while not reader.done(fetched.next):
            ahead = _started(reader.fetch(fetched.next, fetched.epoch))
            try:
                yield fetched
                fetched = await self._unless_stopped(ahead)
            finally:
                ahead.cancel()
        yield fetched

    async def _unless_stopped(self, work: asyncio.Task[Fetched]) -> Fetched:
        """What `work` gives or raises; NodeStopping when the stop comes first."""
        try:
            await asyncio.wait((work, self._stopped), return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.done():
                raise node_stopping()
            return work.result()
        finally:
            work.cancel()


def _started(work: Coroutine[Any, Any, Fetched]) -> asyncio.Task[Fetched]:
    task = asyncio.ensure_future(work)
    # A stream that broke off asks no more: its reader's failure is nobody's.
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


def _responses(fetched: Fetched, subscription: ConsumeOptions) -> Iterator[pb.ConsumeResponse]:
    if not fetched.batches:
        yield consumed.nothing(fetched)
    elif subscription.raw:
        yield consumed.raw(fetched)
    else:
        yield from consumed.records(fetched, max_bytes=subscription.max_bytes)
