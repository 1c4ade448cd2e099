"""The end of a call that fails, and the deadline of one that has none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar

from mirrorlog.attempts import outcome_of
from mirrorlog.client import Client
from mirrorlog.doors.common.call_logins import Calling, CallLogins
from mirrorlog.doors.grpc.status_codes import as_call_status
from mirrorlog.errors import MirrorlogError, RequestTimeout

UNARY_TIMEOUT_S: Final = 10.0

_T = TypeVar("_T")


class Ending(Protocol):
    """The part of gRPC's context that ends a call; `abort` does not return."""

    async def abort(self, code: Any, details: str, trailing_metadata: Any) -> Any: ...


class Call(Calling, Ending, Protocol):
    """A call with one answer."""


async def abort(call: Ending, error: MirrorlogError) -> None:
    """End the call with the error's status and details. Every call, and a stream as a whole, can be repeated safely."""
    status = as_call_status(error, idempotent=True)
    await call.abort(status.code, status.message, status.trailing_metadata)


async def answered(
    call: Call, logins: CallLogins, ask: Callable[[Client], Awaitable[_T]], *, changes: bool = False
) -> _T:
    """What `ask` gives with the caller's client, within 10 seconds; a shorter deadline of the caller's is gRPC's to
    keep. `changes`: it is no mere question. Ends the call on errors."""
    asked = False
    try:
        async with asyncio.timeout(UNARY_TIMEOUT_S), logins.client(call) as client:
            asked = True
            return await ask(client)
    except TimeoutError:
        silent = RequestTimeout(f"no answer from the node within {UNARY_TIMEOUT_S:g} s")
        error = outcome_of(silent, in_doubt=changes and asked)
    except MirrorlogError as failure:
        error = failure
    await abort(call, error)
    raise AssertionError("a call goes on after its end")
