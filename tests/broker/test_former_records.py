"""What a node tells the masters of queues' logs of the records that these have left in its own, and at which pace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mirrorlog.broker.log.clock import now_us
from mirrorlog.broker.moves.former_records import FormerRecords
from mirrorlog.cluster.requests import AskBegin, AskHeld, AskRecords, BeginTold, HeldTold
from mirrorlog.commitlog.retention import PART, RetentionLimits, SegmentParts
from mirrorlog.errors import LogUnavailable
from mirrorlog.ha.pace import MovePace
from tests.broker.test_alter import HERE, Node


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(tmp_path / "log")
    yield made
    made.log.replica.close()


def records(node: Node, bytes_per_s: int = 0) -> tuple[FormerRecords, MovePace]:
    """The service of that node, with the pace of all that it sends for moves."""
    pace = MovePace(bytes_per_s)
    return FormerRecords("n0", node.logs, node.view, helper=cast(Any, None), pace=pace), pace


async def test_others_are_given_no_more_than_may_be_sent_for_moves(node: Node) -> None:
    """Goal: a node that many copy from keeps its disk and network. Method: it has sent for ten seconds ahead; who asks
    for records is told to ask again, who asks how many bytes there are is answered, and so is the node itself."""
    queue_id = node.declare("q")
    former, pace = records(node, 1_000)
    pace.wait_s(asyncio.get_running_loop().time())
    pace.spend(10_000)
    asked = AskRecords(log_id=HERE, queue_id=queue_id, first=0, until=0, max_bytes=1)
    with pytest.raises(LogUnavailable, match="as much as it may"):
        await former.asked(asked)
    assert await former.asked(AskHeld(log_id=HERE, queue_id=queue_id, first=0, until=0)) == HeldTold(size=0, first=0)
    former, _ = records(node)
    assert (await former.asked(asked)).first == 0


class Unlooked(SegmentParts):
    """One whose parts nobody looks at."""

    def __getattribute__(self, name: str) -> Any:
        assert name != "parts", "looked at"
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("own", "limits"),
    [
        (False, RetentionLimits()),
        (True, RetentionLimits()),
        (True, RetentionLimits(max_bytes=1)),
        (False, RetentionLimits(max_bytes=1_000, max_age_us=10**9)),
    ],
)
async def test_where_nothing_can_go_nothing_is_looked_through(node: Node, own: bool, limits: RetentionLimits) -> None:
    """Neither segments nor the queue: there are no limits, of a log or of the queue itself, or not even the oldest
    segment is old enough."""
    queue_id = node.declare("q")
    segment = Unlooked(0, 100, now_us(), np.empty(0, PART))

    async def surveyed() -> list[SegmentParts]:
        return [segment]

    retention = SimpleNamespace(limits=limits, queues=SimpleNamespace(surveyed=surveyed))
    cast(Any, node.hosted).mastering = SimpleNamespace(retention=retention)
    asked = AskBegin(log_id=HERE, queue_id=queue_id, begin=0, first=7, until=9, floor=9, own=own, newer_bytes=5)
    former, _ = records(node)
    assert await former.asked(asked) == BeginTold(begin=7, size=0)
