"""Admin: queues, offsets, groups' positions and nodes' status."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from mirrorlog.client.batching import as_timestamp_us
from mirrorlog.client.copies import Copies
from mirrorlog.errors import (
    ConnectionLost,
    LogUnavailable,
    MasterChanged,
    MirrorlogError,
    NodeStopping,
    NotMaster,
    RequestTimeout,
)
from mirrorlog.wire.messages import (
    CommitPosition,
    DeclareQueue,
    Done,
    FetchPosition,
    FoundPosition,
    GetStatus,
    Message,
    Metadata,
    Position,
    QueueInfo,
    Status,
)

if TYPE_CHECKING:
    from mirrorlog.client.client import Client

_M = TypeVar("_M", bound=Message)


class Admin:
    """Made by `Client.admin`. Every method raises ConnectionLost, RequestTimeout, and what the node answers."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def declare(self, name: str, arguments: Mapping[str, Any] | None = None) -> QueueInfo:
        """Make a queue, or find it with the same arguments. Raises QueueExists naming the difference, or Refused."""
        message = DeclareQueue(name=name, arguments=dict(arguments or {}))
        reason: MirrorlogError = ConnectionLost("no node is known")
        for address in self._client.addresses():
            try:
                return await self._declare_at(address, message)
            except (NotMaster, MasterChanged) as error:
                if (master := error.details.get("master")) is not None:
                    return await self._declare_at(str(master), message)
                reason = error
            except (ConnectionLost, LogUnavailable, NodeStopping) as error:
                # Another node may know the master. Asking twice makes no second queue.
                reason = error
        raise reason

    async def _declare_at(self, address: str, message: DeclareQueue) -> QueueInfo:
        connection = await self._client.connection_to(address)
        answer = await connection.request(message, Metadata, timeout_ms=self._client.request_timeout_ms)
        return answer.queues[0]

    async def metadata(self, queues: list[str] | None = None) -> Metadata:
        """Nodes, and all queues or those named."""
        return await self._client.metadata(queues)

    async def queues(self) -> list[QueueInfo]:
        return (await self._client.metadata(None)).queues

    async def status(self, node_id: str | None = None) -> Status:
        """What a node knows of its logs; of any node when none is named."""
        if node_id is None:
            connection = await self._client.any_connection()
        else:
            connection = await self._client.connection_to(await self._client.node_address(node_id))
        return await connection.request(GetStatus(), Status, timeout_ms=self._client.request_timeout_ms)

    async def find_offset(self, queue: str, time: datetime | int) -> int:
        """The first confirmed queue offset whose batch was appended at or after `time` (datetime or µs UTC)."""
        return await Copies(self._client, queue).first_at(as_timestamp_us(time) or 0)

    async def position(self, queue: str, group: str) -> Position | None:
        """Where a group stands; None when it has never committed."""
        return (await self._ask_holder(queue, FetchPosition(queue=queue, group=group), FoundPosition)).position

    async def commit_position(self, queue: str, group: str, position: Position) -> None:
        """Store where a group stands; returns when it is confirmed by all copies. Raises Refused or OutcomeUnknown."""
        connection, _ = await self._client.master_of(queue)
        message = CommitPosition(queue=queue, group=group, position=position)
        await connection.request(message, Done, timeout_ms=self._client.request_timeout_ms)

    async def _ask_holder(self, queue: str, message: Message, expect: type[_M]) -> _M:
        """Of the queue's master, or of a mirror while that cannot answer: it knows what is confirmed, a bit later.

        Raises why the first cannot answer.
        """
        info = await self._client.queue_info(queue)
        failure: MirrorlogError | None = None
        for node_id in (info.master, *info.mirrors):
            try:
                connection = await self._client.connection_to(await self._client.node_address(node_id))
                return await connection.request(message, expect, timeout_ms=self._client.request_timeout_ms)
            except (ConnectionLost, RequestTimeout, LogUnavailable, NodeStopping) as error:
                failure = failure or error
        assert failure is not None
        raise failure
