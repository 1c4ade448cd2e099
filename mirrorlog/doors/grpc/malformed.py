"""Requests that are no messages are answered as what they are: the caller's mistake, without a trace in the log.

gRPC reads a request before the service sees the call, and takes what its reader raises for a fault of the server:
status UNKNOWN, and a traceback for each. So what reads does not raise here; it gives a stand-in, and the call ends at
that.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from mirrorlog.doors.grpc.calls import abort
from mirrorlog.errors import BadRequest


class MalformedRequest(BadRequest):
    """Bytes that are not the message that the method takes."""


class RefuseMalformed(grpc.aio.ServerInterceptor):
    """For all services of a server."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        read = partial(_read, handler.request_deserializer, handler_call_details.method)
        if handler.unary_unary is not None:
            return handler._replace(request_deserializer=read, unary_unary=partial(_one, handler.unary_unary))
        if handler.unary_stream is not None:
            return handler._replace(request_deserializer=read, unary_stream=partial(_many, handler.unary_stream))
        if handler.stream_stream is not None:
            return handler._replace(request_deserializer=read, stream_stream=partial(_stream, handler.stream_stream))
        return handler


def _read(deserializer: Callable[[bytes], Any], method: str, data: bytes) -> Any:
    try:
        return deserializer(data)
    except DecodeError as error:
        return MalformedRequest(f"{len(data)} bytes that are no request of {method}: {error}")


async def _one(behavior: Callable[[Any, Any], Any], request: Any, context: Any) -> Any:
    if isinstance(request, MalformedRequest):
        await abort(context, request)
    answer = behavior(request, context)
    return await answer if inspect.isawaitable(answer) else answer


async def _many(behavior: Callable[[Any, Any], Any], request: Any, context: Any) -> None:
    if isinstance(request, MalformedRequest):
        await abort(context, request)
    await _answers(behavior(request, context), context)


async def _stream(behavior: Callable[[Any, Any], Any], requests: AsyncIterator[Any], context: Any) -> None:
    try:
        await _answers(behavior(_checked(requests), context), context)
    except MalformedRequest as error:
        await abort(context, error)


async def _checked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    async for request in requests:
        if isinstance(request, MalformedRequest):
            raise request
        yield request


async def _answers(answers: Any, context: Any) -> None:
    """A service writes its answers itself, or yields them."""
    if inspect.isawaitable(answers):
        await answers
        return
    async for answer in answers:
        await context.write(answer)
