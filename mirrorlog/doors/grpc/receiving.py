"""How the gRPC door receives requests: a few at once of callers of whom it knows nothing yet, and what is no message is
answered as the caller's mistake.

gRPC reads a unary request whole before the service sees the call, and a stream's as soon as it is asked for one: two
hundred strangers who send 8 MiB each had 1.7 GiB of a door, whatever it thought of them. So every method is served as
one with a stream of requests, which is read when the door wants to: a few at a time, each for a moment while others
wait. An honest request is small and comes with its call, so its place is free again at once; who sends much or slowly
loses his to the next. Larger than a little only batches are, and these come after the `open` of a Publish stream,
behind its caller's login and within the stream's window.

What a reader raises gRPC takes for a fault of the server: status UNKNOWN, and a traceback for each. So what reads does
not raise here; it gives a stand-in, and the call ends at that.

Rejected: to refuse by the number of calls alone (most callers only wait for answers, and hold nothing).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from mirrorlog.doors.grpc.calls import abort
from mirrorlog.errors import BadRequest, MirrorlogError, Overloaded

RECEIVING_MAX: Final = 16
"""Each up to the largest message: some 150 MiB in all."""
GRACE_S: Final = 0.25
"""For one, while others wait."""
REQUEST_S_MAX: Final = 10.0
REQUEST_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of what is no batch; the cluster takes no command that is larger."""


class TooLarge(BadRequest):
    """A request that is no batch, above its limit."""


class MalformedRequest(BadRequest):
    """Bytes that are not the message that the method takes."""


_STAND_INS: Final = (TooLarge, MalformedRequest)
"""What stands in place of a request that could not be read."""


class Receiving:
    """Places for requests that are being received."""

    def __init__(self, *, places: int = RECEIVING_MAX, grace_s: float = GRACE_S) -> None:
        self._places = asyncio.Semaphore(places)
        self._grace_s = grace_s
        self._waiting = 0

    async def next(self, requests: AsyncIterator[Any]) -> Any:
        """The next of them. Raises StopAsyncIteration, Overloaded, TooLarge, MalformedRequest, and as they do."""
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        try:
            request = await self._received(requests)
        finally:
            self._places.release()
        if isinstance(request, _STAND_INS):
            raise request
        return request

    async def first(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The first of them, and then the others without a place: they are its caller's, who is known by then."""
        try:
            yield await self.next(requests)
        except StopAsyncIteration:
            return
        async for request in requests:
            if isinstance(request, _STAND_INS):
                raise request
            yield request

    async def _received(self, requests: AsyncIterator[Any]) -> Any:
        loop = asyncio.get_running_loop()
        until = loop.time() + REQUEST_S_MAX
        receiving = asyncio.ensure_future(_anext(requests))
        try:
            while not receiving.done():
                await asyncio.wait({receiving}, timeout=self._grace_s)
                if not receiving.done() and (self._waiting or loop.time() >= until):
                    raise Overloaded("this request takes long to come, and others wait; try again", limit="receiving")
        finally:
            receiving.cancel()
        found, request = receiving.result()
        if not found:
            raise StopAsyncIteration
        return request


async def _anext(requests: AsyncIterator[Any]) -> tuple[bool, Any]:
    """Whether there was one: a task cannot raise StopAsyncIteration for its awaiter's."""
    async for request in requests:
        return True, request
    return False, None


class ReceiveInTurn(grpc.aio.ServerInterceptor):
    """For all services of a server. `batches`: the full name of the method whose requests are batches."""

    def __init__(self, receiving: Receiving, *, batches: str) -> None:
        self._receiving = receiving
        self._batches = batches

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        bytes_max = None if method == self._batches else REQUEST_BYTES_MAX
        handler = handler._replace(
            request_streaming=True, request_deserializer=partial(_read, handler.request_deserializer, method, bytes_max)
        )
        if handler.unary_unary is not None:
            return handler._replace(unary_unary=None, stream_unary=partial(self._one, handler.unary_unary))
        if handler.unary_stream is not None:
            return handler._replace(unary_stream=None, stream_stream=partial(self._answered, handler.unary_stream))
        return handler._replace(stream_stream=partial(_many, handler.stream_stream, self._receiving.first))

    async def _one(self, behavior: Callable[[Any, Any], Any], requests: AsyncIterator[Any], context: Any) -> Any:
        answer = behavior(await self._only(requests, context), context)
        return await answer if inspect.isawaitable(answer) else answer

    async def _answered(self, behavior: Callable[[Any, Any], Any], requests: AsyncIterator[Any], context: Any) -> None:
        await _answers(behavior(await self._only(requests, context), context), context)

    async def _only(self, requests: AsyncIterator[Any], context: Any) -> Any:
        try:
            return await self._receiving.next(requests)
        except StopAsyncIteration:
            await abort(context, BadRequest("the call ended before its request"))
        except MirrorlogError as error:
            await abort(context, error)


def _read(deserialize: Callable[[bytes], Any] | None, method: str, bytes_max: int | None, data: bytes) -> Any:
    if bytes_max is not None and len(data) > bytes_max:
        return TooLarge(f"a request of {len(data)} bytes is above the limit of {bytes_max}")
    try:
        return data if deserialize is None else deserialize(data)
    except DecodeError as error:
        return MalformedRequest(f"{len(data)} bytes that are no request of {method}: {error}")


async def _many(
    behavior: Callable[[Any, Any], Any],
    receive: Callable[[AsyncIterator[Any]], AsyncIterator[Any]],
    requests: AsyncIterator[Any],
    context: Any,
) -> None:
    try:
        await _answers(behavior(receive(requests), context), context)
    except MirrorlogError as error:
        await abort(context, error)


async def _answers(answers: Any, context: Any) -> None:
    """A service writes its answers itself, or yields them."""
    if inspect.isawaitable(answers):
        await answers
        return
    async for answer in answers:
        await context.write(answer)
