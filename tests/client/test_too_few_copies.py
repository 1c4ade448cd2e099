"""What is asked of a log whose copies are not there yet, as right behind a failover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import InSyncReplicasNotEnough, MirrorlogError
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.groups import GroupsFound, ListGroups
from mirrorlog.wire.messages.queues import DeclareQueue
from tests.client.scripted_nodes import QUEUE, Node, scripted

Ask = Callable[[Client], Awaitable[object]]

ASKS: dict[type[Message], Ask] = {
    DeclareQueue: lambda client: client.admin.declare(QUEUE),
    ListGroups: lambda client: client.admin.groups(QUEUE),
}
TOO_FEW = InSyncReplicasNotEnough("1 copies up, min_in_sync is 2; waiting for n1, n2")


def refuse(node: Node, asked: type[Message], times: int) -> list[Message]:
    """So often, of such a request; gives those that come."""
    answer, seen = node.answer, list[Message]()

    def answered(message: Message) -> Message | MirrorlogError:
        if not isinstance(message, asked):
            return answer(message)
        seen.append(message)
        if len(seen) <= times:
            return TOO_FEW
        return GroupsFound(queue=QUEUE, next=0, groups=[]) if asked is ListGroups else answer(message)

    node.answer = answered  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("asked", ASKS)
async def test_what_is_declared_or_looked_at_waits_for_copies(asked: type[Message]) -> None:
    """Goal: a program that starts right behind a failover need not know of it. Method: the master refuses twice."""
    async with scripted(1) as nodes, Client(*nodes.servers) as client:
        seen = refuse(nodes["n1"], asked, 2)
        await ASKS[asked](client)
        assert len(seen) == 3


@pytest.mark.parametrize("asked", ASKS)
async def test_copies_that_stay_away_are_told_at_the_requests_end(asked: type[Message]) -> None:
    async with scripted(1) as nodes, Client(*nodes.servers, request_timeout_ms=300) as client:
        seen = refuse(nodes["n1"], asked, 1_000_000)
        with pytest.raises(InSyncReplicasNotEnough, match="waiting for n1, n2"):
            await ASKS[asked](client)
        assert len(seen) > 1
