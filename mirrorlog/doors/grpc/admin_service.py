"""The gRPC service Admin: each call is one request of the native client, its answer converted. Thin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import Message
from msgspec import Struct

from mirrorlog.client import Client
from mirrorlog.doors.grpc.calls import Call, CallLogins, answered
from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import admin_pb2 as pb
from mirrorlog.pb.v1 import admin_pb2_grpc as pb_grpc
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import status_pb2 as status_pb
from mirrorlog.wire.messages.queues import NodeInfo, Position, QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import GetStatus, LogStatus, QueueStatus, Status

_Message = TypeVar("_Message", bound=Message)

_INT64_MAX = 2**63 - 1
_FLUSH = {"memory": common.DURABILITY_MEMORY, "disk": common.DURABILITY_DISK}

PAGE_SIZE: Final = 500
PAGE_SIZE_MAX: Final = 5_000


def _like(kind: type[_Message], native: Struct, **others: Any) -> _Message:
    """A message with the fields of its native namesake, but for those that are not named or made alike."""
    same = {name: getattr(native, name) for name in kind.DESCRIPTOR.fields_by_name if name not in others}
    return kind(**same, **others)


def queue_message(queue: QueueInfo) -> pb.QueueInfo:
    return _like(
        pb.QueueInfo,
        queue,
        arguments={name: argument_message(value) for name, value in queue.arguments.items()},
        tiers=[_like(pb.TierInfo, tier) for tier in queue.tiers],
        gaps=[pb.OffsetRange(first=first, next=following) for first, following in queue.gaps],
        spans=[_like(pb.Span, span) for span in queue.spans],
        effective={name: argument_message(value) for name, value in queue.effective.items()},
    )


def outage_message(outage: QueueOutage) -> pb.QueueOutage:
    return _like(pb.QueueOutage, outage)


def node_message(node: NodeInfo) -> pb.NodeInfo:
    return pb.NodeInfo(
        node_id=node.node_id,
        client_address=node.client,
        replication_address=node.replication,
        grpc_address=node.grpc or "",
        http_address=node.http or "",
    )


def argument_message(value: Any) -> pb.Argument:  # noqa: PLR0911  (one line per kind)
    """A value of a queue's arguments; what is of no known kind becomes its text."""
    if value is None:
        return pb.Argument()
    if isinstance(value, bool):
        return pb.Argument(boolean=value)
    if isinstance(value, int) and -_INT64_MAX <= value <= _INT64_MAX:
        return pb.Argument(integer=value)
    if isinstance(value, int | float):
        return pb.Argument(number=value)
    if isinstance(value, bytes):
        return pb.Argument(binary=value)
    if isinstance(value, list | tuple):
        return pb.Argument(list=pb.ArgumentList(items=[argument_message(item) for item in value]))
    if isinstance(value, Mapping):
        entries = {str(name): argument_message(item) for name, item in value.items()}
        return pb.Argument(table=pb.ArgumentTable(entries=entries))
    return pb.Argument(text=str(value))


def argument_value(argument: pb.Argument) -> Any:
    kind = argument.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "list":
        return [argument_value(item) for item in argument.list.items]
    if kind == "table":
        return {name: argument_value(item) for name, item in argument.table.entries.items()}
    return getattr(argument, kind)


def position_message(position: Position) -> common.Position:
    return _like(common.Position, position)


def read_position(request: pb.CommitPositionRequest) -> Position:
    """Raises BadRequest when there is none."""
    if not request.HasField("position"):
        raise BadRequest("a position is needed: its log id, epoch and queue offset")
    position = request.position
    return Position(log_id=position.log_id, epoch=position.epoch, queue_offset=position.queue_offset)


def status_message(status: Status) -> status_pb.NodeStatus:
    return _like(status_pb.NodeStatus, status, logs=[_log(log) for log in status.logs])


def _log(log: LogStatus) -> status_pb.LogStatus:
    return _like(
        status_pb.LogStatus,
        log,
        flush=_FLUSH.get(log.flush, common.DURABILITY_UNSPECIFIED),
        mirrors=[_like(status_pb.MirrorStatus, mirror) for mirror in log.mirrors],
        queues=[_queue(queue) for queue in log.queues],
        groups=[_like(status_pb.GroupStatus, group, position=position_message(group.position)) for group in log.groups],
        holds=[_like(status_pb.HoldStatus, hold) for hold in log.holds],
        producers=[_like(status_pb.ProducerStatus, each) for each in log.producers],
        left=[_like(status_pb.LeftQueueStatus, each) for each in log.left],
        acking=[_like(status_pb.AckingGroupStatus, each) for each in log.acking],
        pin=None if log.pin is None else _like(status_pb.PinStatus, log.pin),
    )


def _queue(queue: QueueStatus) -> status_pb.QueueStatus:
    counts = None if queue.counts is None else _like(status_pb.QueueCounts, queue.counts)
    return _like(status_pb.QueueStatus, queue, counts=counts)


class AdminService(pb_grpc.AdminServicer):
    """Declares, alters, lists and describes queues, tells the status, and keeps positions of groups. `node`: the native
    address whose status is told; a client may reach others of the cluster too."""

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

    async def AlterQueue(self, request: pb.AlterQueueRequest, context: Call) -> pb.AlterQueueResponse:
        return await answered(context, self._logins, lambda client: self._alter(client, request), changes=True)

    async def CancelMove(self, request: pb.CancelMoveRequest, context: Call) -> pb.CancelMoveResponse:
        return await answered(context, self._logins, lambda client: self._cancel_move(client, request), changes=True)

    async def ListMoves(self, request: pb.ListMovesRequest, context: Call) -> pb.ListMovesResponse:
        return await answered(context, self._logins, self._moves)

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
        metadata = await client.metadata(None)
        queues = sorted(metadata.queues, key=lambda queue: queue.name)
        rest = [queue for queue in queues if queue.name > request.page_token]
        page = rest[:size]
        is_last = len(rest) <= size
        return pb.ListQueuesResponse(
            queues=[queue_message(queue) for queue in page],
            next_page_token="" if is_last else page[-1].name,
            outages=[outage_message(outage) for outage in metadata.outages] if is_last else [],
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
            outages=[outage_message(outage) for outage in metadata.outages],
        )

    async def _alter(self, client: Client, request: pb.AlterQueueRequest) -> pb.AlterQueueResponse:
        arguments = {name: argument_value(value) for name, value in request.arguments.items()}
        if not arguments:
            raise BadRequest("nothing to change: an alteration says an argument at least, such as copies")
        altered = await client.admin.alter(request.name, arguments, dry_run=request.dry_run)
        return _like(pb.AlterQueueResponse, altered)

    async def _cancel_move(self, client: Client, request: pb.CancelMoveRequest) -> pb.CancelMoveResponse:
        if not request.name:
            raise BadRequest("name is empty; say which queue shall stay where it is")
        stays = await client.admin.cancel_move(request.name)
        return _like(
            pb.CancelMoveResponse,
            stays,
            arguments={name: argument_message(value) for name, value in stays.arguments.items()},
        )

    async def _moves(self, client: Client) -> pb.ListMovesResponse:
        found = await client.admin.moves()
        return pb.ListMovesResponse(moves=[_like(pb.MoveOfQueue, move) for move in found.moves], paused=found.paused)

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
