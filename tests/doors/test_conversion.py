"""Queues, positions and a node's status say the same in both protocols."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mirrorlog.doors.grpc.admin_service import (
    argument_message,
    argument_value,
    node_message,
    position_message,
    queue_message,
    read_position,
    status_message,
)
from mirrorlog.errors import BadRequest
from mirrorlog.pb.v1 import admin_pb2 as pb
from mirrorlog.pb.v1 import common_pb2 as common
from mirrorlog.wire.messages.queues import HoldInfo, NodeInfo, Position, QueueInfo, SpanInfo, TierInfo
from mirrorlog.wire.messages.status import (
    GroupStatus,
    LeftQueueStatus,
    LogStatus,
    MirrorStatus,
    ProducerStatus,
    QueueCounts,
    QueueStatus,
    Status,
)

POSITION = Position(log_id="l", epoch=3, queue_offset=9)
MIRROR = MirrorStatus(
    node_id="m", connected=True, proven=False, in_sync=True, requested=-1, sent=2, acked=3, flushed=4, lag_bytes=5,
    lag_records=6, lag_records_estimated=True, lag_seconds=7.5, bytes_per_second=8.5,
    move_bytes_per_s=10, last_read_us=None, last_write_us=9,
)  # fmt: skip
LOG = LogStatus(
    log_id="l", name="main", role="master", state="serving", reason="r", flush="disk", min_in_sync=2, epoch=3, begin=4,
    end=5, flushed=6, confirmed=7, mirrors=[MIRROR],
    queues=[
        QueueStatus(
            name="q", queue_id=1, begin=2, next=3, confirmed=4,
            counts=QueueCounts(
                published=31, delivered=32, redelivered=33, acked=34, expired=35, timed_out=36, publish_rate=3.7,
                deliver_rate=3.8, redeliver_rate=3.9, ack_rate=4.1,
            ),
            ready=43, unacknowledged=44, consumers=45,
        ),
        QueueStatus(name="r", queue_id=2, begin=2, next=3, confirmed=4),
    ],
    producers=[
        ProducerStatus(
            queue="q", producer_id=2**64 - 1, peer="1.2.3.4:5", unconfirmed_bytes=41, unconfirmed_batches=42,
            blocked_by="credit_bytes", blocked_ms=43, refused=True,
        )
    ],
    producers_blocked=44,
    left=[LeftQueueStatus(queue="q", queue_id=45, begin=46, next=47, moved_to="n")],
    groups=[GroupStatus(group="g", queue="q", position=POSITION, lag=5)],
    holds=[
        HoldInfo(
            queue="q", name="n", holder="h", epoch=2, queue_offset=3, lease_ms=4, left_ms=5, location="/t", tiered=True,
            ended="expired", begin=6, next=7, lag=8, kept_bytes=9,
        )
    ],
)  # fmt: skip
STATUS = Status(cluster_id="c", cluster_name="n", node_id="i", start_id="s", now_us=1, logs=[LOG])


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**63 - 1, 0.5, "", "text", b"", b"\xff", [], {}, [1, "a", [None]],
        {"a": {"b": [True, 1.5]}},
    ],
)  # fmt: skip
def test_an_argument_comes_back_as_it_went(value: Any) -> None:
    """Goal: a queue declared here is equal to one declared natively. Method: there and back, type included."""
    message = pb.Argument.FromString(argument_message(value).SerializeToString())
    back = argument_value(message)
    assert back == value
    assert type(back) is type(value)


def test_a_number_too_large_for_64_bits_is_shown_as_far_as_it_can_be() -> None:
    """Goal: no queue makes a listing fail. Method: an integer that msgpack knows and protobuf does not."""
    assert argument_value(argument_message(2**64 - 1)) == float(2**64 - 1)


def test_no_fact_of_a_status_is_left_out() -> None:
    """Goal: GetStatus mirrors the native one. Method: all fields set, compared by name and value."""
    message = status_message(STATUS)
    assert compare(msgspec.to_builtins(STATUS), message) > 40


def compare(native: dict[str, Any], message: Any) -> int:
    """How many facts both have; every one of them equal."""
    count = 0
    for name, value in native.items():
        if name == "type":
            continue
        there = getattr(message, name)
        if isinstance(value, list):
            assert len(there) == len(value)
            count += sum(compare(item, other) for item, other in zip(value, there, strict=True))
        elif isinstance(value, dict):
            count += compare(value, there)
        elif name == "flush":
            assert common.Durability.Name(there) == f"DURABILITY_{value.upper()}"
        elif value is None:
            assert not message.HasField(name)
        else:
            assert there == value, name
            count += 1
    return count


def test_a_queue_and_a_node_keep_their_facts() -> None:
    """Goal: nothing is mixed up. Method: distinct values everywhere."""
    queue = queue_message(
        QueueInfo(
            name="q", queue_id=1, log_id="l", epoch=2, master="m", mirrors=["a", "b"], begin=3, next=4,
            arguments={"x": 5}, incarnation="i", producer_epoch=6, current=False,
            tiers=[TierInfo(name="t", location="/t", next=7)], gaps=[(8, 9)], attributes=True,
            spans=[SpanInfo(log_id="o", first=1, epoch=3, master="p", mirrors=["q"])], former_logs=["o", "r"],
            reason="w", policy="p", operator_policy="o", effective={"x": 4}, sources={"x": "operator policy o"},
            policy_version=10, policy_pending=True,
        )
    )  # fmt: skip
    assert (queue.name, queue.queue_id, queue.log_id, queue.epoch, queue.master) == ("q", 1, "l", 2, "m")
    assert (list(queue.mirrors), queue.begin, queue.next, queue.arguments["x"].integer) == (["a", "b"], 3, 4, 5)
    assert (queue.incarnation, queue.producer_epoch, queue.current, queue.attributes) == ("i", 6, False, True)
    assert [(each.name, each.location, each.next) for each in queue.tiers] == [("t", "/t", 7)]
    assert [(each.first, each.next) for each in queue.gaps] == [(8, 9)]
    assert [(each.log_id, each.first, each.epoch, each.master, *each.mirrors) for each in queue.spans] == [
        ("o", 1, 3, "p", "q")
    ]
    assert list(queue.former_logs) == ["o", "r"]
    assert (queue.reason, queue.policy, queue.operator_policy, queue.effective["x"].integer) == ("w", "p", "o", 4)
    assert (dict(queue.sources), queue.policy_version, queue.policy_pending) == ({"x": "operator policy o"}, 10, True)
    assert {field.name for field in queue.DESCRIPTOR.fields} == set(QueueInfo.__struct_fields__)
    node = node_message(NodeInfo(node_id="n", client="c:1", replication="r:2", http="h:4"))
    assert (node.node_id, node.client_address, node.replication_address, node.grpc_address, node.http_address) == (
        "n", "c:1", "r:2", "", "h:4",
    )  # fmt: skip


def test_a_position_is_never_guessed() -> None:
    """Goal: a forgotten position is no position 0. Method: there and back, and without."""
    request = pb.CommitPositionRequest(queue="q", group="g", position=position_message(POSITION))
    assert read_position(request) == POSITION
    with pytest.raises(BadRequest, match="position"):
        read_position(pb.CommitPositionRequest(queue="q", group="g"))
