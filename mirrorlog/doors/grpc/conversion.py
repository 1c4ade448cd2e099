"""Native messages as gRPC's and back: queues with their arguments, positions, a node's status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import admin_pb2 as pb
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.pb.v1 import status_pb2 as status_pb
from mirrorlog.wire.messages.queues import HoldInfo, NodeInfo, Position, QueueInfo
from mirrorlog.wire.messages.status import GroupStatus, LogStatus, MirrorStatus, QueueStatus, Status

_INT64_MAX = 2**63 - 1
_FLUSH = {"memory": common.DURABILITY_MEMORY, "disk": common.DURABILITY_DISK}


def queue_message(queue: QueueInfo) -> pb.QueueInfo:
    return pb.QueueInfo(
        name=queue.name,
        queue_id=queue.queue_id,
        log_id=queue.log_id,
        epoch=queue.epoch,
        master=queue.master,
        mirrors=queue.mirrors,
        begin=queue.begin,
        next=queue.next,
        arguments={name: argument_message(value) for name, value in queue.arguments.items()},
        incarnation=queue.incarnation,
        producer_epoch=queue.producer_epoch,
        current=queue.current,
        tiers=[pb.TierInfo(name=tier.name, location=tier.location, next=tier.next) for tier in queue.tiers],
        gaps=[pb.OffsetRange(first=first, next=following) for first, following in queue.gaps],
        attributes=queue.attributes,
    )


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
    return common.Position(log_id=position.log_id, epoch=position.epoch, queue_offset=position.queue_offset)


def read_position(request: pb.CommitPositionRequest) -> Position:
    """Raises BadRequest when there is none."""
    if not request.HasField("position"):
        raise BadRequest("a position is needed: its log id, epoch and queue offset")
    position = request.position
    return Position(log_id=position.log_id, epoch=position.epoch, queue_offset=position.queue_offset)


def status_message(status: Status) -> status_pb.NodeStatus:
    return status_pb.NodeStatus(
        cluster_id=status.cluster_id,
        cluster_name=status.cluster_name,
        node_id=status.node_id,
        start_id=status.start_id,
        now_us=status.now_us,
        logs=[_log(log) for log in status.logs],
    )


def _log(log: LogStatus) -> status_pb.LogStatus:
    return status_pb.LogStatus(
        log_id=log.log_id,
        name=log.name,
        role=log.role,
        state=log.state,
        reason=log.reason,
        flush=_FLUSH.get(log.flush, common.DURABILITY_UNSPECIFIED),
        min_in_sync=log.min_in_sync,
        epoch=log.epoch,
        begin=log.begin,
        end=log.end,
        flushed=log.flushed,
        confirmed=log.confirmed,
        mirrors=[_mirror(mirror) for mirror in log.mirrors],
        queues=[_queue(queue) for queue in log.queues],
        groups=[_group(group) for group in log.groups],
        holds=[_hold(hold) for hold in log.holds],
        producers=[status_pb.ProducerStatus(**structs.asdict(each)) for each in log.producers],
        producers_blocked=log.producers_blocked,
        copies_up=log.copies_up,
    )


def _hold(hold: HoldInfo) -> status_pb.HoldStatus:
    return status_pb.HoldStatus(**structs.asdict(hold))


def _mirror(mirror: MirrorStatus) -> status_pb.MirrorStatus:
    return status_pb.MirrorStatus(
        node_id=mirror.node_id,
        connected=mirror.connected,
        proven=mirror.proven,
        in_sync=mirror.in_sync,
        requested=mirror.requested,
        sent=mirror.sent,
        acked=mirror.acked,
        flushed=mirror.flushed,
        lag_bytes=mirror.lag_bytes,
        lag_records=mirror.lag_records,
        lag_records_estimated=mirror.lag_records_estimated,
        lag_seconds=mirror.lag_seconds,
        bytes_per_second=mirror.bytes_per_second,
        last_read_us=mirror.last_read_us,
        last_write_us=mirror.last_write_us,
    )


def _queue(queue: QueueStatus) -> status_pb.QueueStatus:
    return status_pb.QueueStatus(
        name=queue.name,
        queue_id=queue.queue_id,
        begin=queue.begin,
        next=queue.next,
        confirmed=queue.confirmed,
        counts=None if queue.counts is None else status_pb.QueueCounts(**structs.asdict(queue.counts)),
        refuse_rate=queue.refuse_rate,
    )


def _group(group: GroupStatus) -> status_pb.GroupStatus:
    return status_pb.GroupStatus(
        group=group.group, queue=group.queue, position=position_message(group.position), lag=group.lag
    )
