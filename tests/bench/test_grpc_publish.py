"""What the clients of the gRPC door take for a confirm."""

from __future__ import annotations

import pytest

from bench.grpc_publish import check_confirm
from bench.workload import WorkloadFailed
from mirrorlog.pb.v1 import common_pb2, producer_pb2


def _answer(tag: int, **outcome: object) -> producer_pb2.PublishResponse:
    return producer_pb2.PublishResponse(result=producer_pb2.PublishResult(tag=tag, **outcome))


def _confirm(*, copies: int, duplicate: bool = False) -> producer_pb2.Confirm:
    return producer_pb2.Confirm(copies=copies, duplicate=duplicate)


def test_a_first_confirm_by_all_copies_counts() -> None:
    """The only answer that is taken."""
    check_confirm(_answer(7, confirm=_confirm(copies=3)), tag=7, copies=3)


@pytest.mark.parametrize(
    "answer",
    [
        _answer(6, confirm=_confirm(copies=3)),
        _answer(7, confirm=_confirm(copies=2)),
        _answer(7, confirm=_confirm(copies=3, duplicate=True)),
        _answer(7, error=common_pb2.Error(code="OVERLOADED")),
        producer_pb2.PublishResponse(opened=producer_pb2.Opened(queue_id=1)),
    ],
    ids=["of another batch", "by too few copies", "of an earlier time", "an error", "no result"],
)
def test_anything_else_fails_the_workload(answer: producer_pb2.PublishResponse) -> None:
    """A rate shall count nothing that was not stored by this very batch, on all copies; the message names the batch."""
    with pytest.raises(WorkloadFailed, match="batch 7"):
        check_confirm(answer, tag=7, copies=3)
