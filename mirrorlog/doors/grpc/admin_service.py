"""The gRPC service Admin: each call is one request of the native client, its answer converted. Thin."""

from __future__ import annotations

from typing import Final

from mirrorlog.client import Client
from mirrorlog.doors.common.call_logins import CallLogins
from mirrorlog.doors.grpc.calls import Call, answered
from mirrorlog.doors.grpc.conversion import (
    argument_value,
    node_message,
    position_message,
    queue_message,
    read_position,
    status_message,
)
from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import admin_pb2 as pb
from mirrorlog.pb.v1 import admin_pb2_grpc as pb_grpc
from mirrorlog.wire.messages.status import GetStatus, Status

PAGE_SIZE: Final = 500
PAGE_SIZE_MAX: Final = 5_000


class AdminService(pb_grpc.AdminServicer):
    """`node`: the native address whose status is told; a client may reach others of the cluster too."""

    def __init__(self, logins: CallLogins, node: str) -> None:
        self._logins = logins
        self._node = node

    # gRPC gives these their names; each is the deadline and the errors around one of those below.

    async def DeclareQueue(self, request: pb.DeclareQueueRequest, context: Call) -> pb.DeclareQueueResponse:
        return await answered(context, self._logins, lambda client: self._declare(client, request), changes=True)

    async def ListQueues(self, request: pb.ListQueuesRequest, context: Call) -> pb.ListQueuesResponse:
        return await answered(context, self._logins, lambda client: self._list(client, request))

    async def DescribeQueues(self, request: pb.DescribeQueuesRequest, context: Call) -> pb.DescribeQueuesResponse:
        return await answered(context, self._logins, lambda client: self._describe(client, request))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Call) -> pb.GetStatusResponse:
        return await answered(context, self._logins, self._status)

    async def FindOffset(self, request: pb.FindOffsetRequest, context: Call) -> pb.FindOffsetResponse:
        return await answered(context, self._logins, lambda client: self._find_offset(client, request))

    async def CommitPosition(self, request: pb.CommitPositionRequest, context: Call) -> pb.CommitPositionResponse:
        return await answered(
            context, self._logins, lambda client: self._commit_position(client, request), changes=True
        )

    async def FetchPosition(self, request: pb.FetchPositionRequest, context: Call) -> pb.FetchPositionResponse:
        return await answered(context, self._logins, lambda client: self._fetch_position(client, request))

    # --- what they do ---

    async def _declare(self, client: Client, request: pb.DeclareQueueRequest) -> pb.DeclareQueueResponse:
        arguments = {name: argument_value(value) for name, value in request.arguments.items()}
        if arguments.get("exclusive") is True:
            raise BadRequest("an exclusive queue goes with its connection, and calls have none; declare it natively")
        return pb.DeclareQueueResponse(queue=queue_message(await client.admin.declare(request.name, arguments)))

    async def _list(self, client: Client, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
        if not 0 <= request.page_size <= PAGE_SIZE_MAX:
            raise BadRequest(f"page_size {request.page_size} is not within 0 and {PAGE_SIZE_MAX}")
        size = request.page_size or PAGE_SIZE
        queues = sorted(await client.admin.queues(), key=lambda queue: queue.name)
        rest = [queue for queue in queues if queue.name > request.page_token]
        page = rest[:size]
        return pb.ListQueuesResponse(
            queues=[queue_message(queue) for queue in page],
            next_page_token=page[-1].name if len(rest) > size else "",
        )

    async def _describe(self, client: Client, request: pb.DescribeQueuesRequest) -> pb.DescribeQueuesResponse:
        if len(request.names) > PAGE_SIZE_MAX:
            raise BadRequest(f"{len(request.names)} names are above the limit of {PAGE_SIZE_MAX}")
        metadata = await client.metadata(list(request.names))
        return pb.DescribeQueuesResponse(
            queues=[queue_message(queue) for queue in metadata.queues],
            missing=metadata.missing,
            cluster_id=metadata.cluster_id,
            cluster_name=metadata.cluster_name,
            node_id=metadata.node_id,
            nodes=[node_message(node) for node in metadata.nodes],
        )

    async def _status(self, client: Client) -> pb.GetStatusResponse:
        connection = await client.connection_to(self._node)
        status = await connection.request(GetStatus(), Status, timeout_ms=client.request_timeout_ms)
        return pb.GetStatusResponse(status=status_message(status))

    async def _find_offset(self, client: Client, request: pb.FindOffsetRequest) -> pb.FindOffsetResponse:
        found = await client.admin.find_offset(request.queue, request.append_time_us)
        return pb.FindOffsetResponse(queue_offset=found)

    async def _commit_position(self, client: Client, request: pb.CommitPositionRequest) -> pb.CommitPositionResponse:
        position = read_position(request)
        await client.admin.commit_position(request.queue, request.group, position)
        return pb.CommitPositionResponse()

    async def _fetch_position(self, client: Client, request: pb.FetchPositionRequest) -> pb.FetchPositionResponse:
        position = await client.admin.position(request.queue, request.group)
        return pb.FetchPositionResponse(position=position_message(position) if position is not None else None)
