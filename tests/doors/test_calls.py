"""How a call ends that no node answers in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from mirrorlog.client import Client
from mirrorlog.doors.common.running import client_of
from mirrorlog.doors.grpc import calls
from mirrorlog.doors.grpc.calls import Call, CallLogins, answered
from mirrorlog.errors import MirrorlogError, OutcomeUnknown, RequestTimeout


class Ended(Exception):
    """What the call was ended with: `status`, and what it says."""


class Caller:
    """A call, and the login of nobody."""

    async def abort(self, code: Any, details: str, trailing_metadata: Any) -> None:
        raise Ended(code.name, details)

    @asynccontextmanager
    async def client(self, call: Call) -> AsyncIterator[Client]:
        yield cast(Client, None)


@pytest.mark.parametrize(("changes", "kind"), [(True, OutcomeUnknown), (False, RequestTimeout)])
async def test_a_change_that_is_not_answered_in_time_is_of_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch, changes: bool, kind: type[MirrorlogError]
) -> None:
    """Goal: callers of other languages are told so, too. Method: a node that never answers, and little patience."""
    monkeypatch.setattr(calls, "UNARY_TIMEOUT_S", 0.01)
    caller = Caller()

    async def never(client: Client) -> None:
        await asyncio.Event().wait()

    with pytest.raises(Ended) as ended:
        await answered(cast(Call, caller), cast(CallLogins, caller), never, changes=changes)
    status, details = ended.value.args
    assert status == kind.grpc_status
    assert ("may have been done or not" in details) is changes


async def test_a_change_whose_caller_was_not_let_in_yet_was_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: who may try again is told so. Method: a login that takes for ever."""
    monkeypatch.setattr(calls, "UNARY_TIMEOUT_S", 0.01)

    class Waiting(Caller):
        @asynccontextmanager
        async def client(self, call: Call) -> AsyncIterator[Client]:
            await asyncio.Event().wait()
            yield cast(Client, None)

    async def asked(client: Client) -> None:
        raise AssertionError("nobody is let in")

    caller = Waiting()
    with pytest.raises(Ended) as ended:
        await answered(cast(Call, caller), cast(CallLogins, caller), asked, changes=True)
    assert ended.value.args[0] == RequestTimeout.grpc_status
    assert "may have been done or not" not in ended.value.args[1]


async def test_a_doors_client_gives_up_before_the_door_does() -> None:
    """Goal: of what was not sent the client says so; the door's own clock cannot tell."""
    client = client_of("grpc", "127.0.0.1:1", None)
    assert client.request_timeout_ms < calls.UNARY_TIMEOUT_S * 1000
