"""Where a queue begins is told by its master, or by the copy that has most, never by a mirror that began late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.copies import Copies
from mirrorlog.client.connection.copy_refusals import is_elsewhere, judged
from mirrorlog.client.consumer.fetcher import lost_there
from mirrorlog.errors import ConnectionLost, NotMaster, OffsetOutOfRange, PositionLost
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import FindOffset, FoundOffset, QueueInfo, SpanInfo
from tests.client.late_mirrors import OLD_QUEUE, OLD_RECORDS, QUEUE, RECORDS, late_mirrors

FAR = 1 << 32


@pytest.mark.parametrize(
    ("whole", "elsewhere", "details", "told"),
    [
        (0, True, {"begin": 0, "next": 90, "node": "n2"}, "begins at 0, but its copy on n2 at 50; read from another"),
        (10, True, {"begin": 10, "next": 90, "node": "n2"}, "begins at 10"),
        (11, False, {"begin": 11, "next": 90}, "begins at 11, but its copy on n2 at 50"),
        (50, False, {"begin": 50, "next": 90}, "freed"),
        (60, False, {"begin": 50, "next": 90}, "freed"),
        (None, True, {"next": 90, "node": "n2"}, "whether n2 lacks it, or it is gone for good"),
    ],
)
def test_a_refusal_is_held_against_where_the_queue_begins(
    whole: int | None, elsewhere: bool, details: dict[str, Any], told: str
) -> None:
    """Goal: lacking is told from gone. Method: a reader at 10, a mirror that begins at 50, each word of the others."""
    refused = OffsetOutOfRange("freed", begin=50, next=90)
    error = judged(refused, queue="q", node_id="n2", queue_offset=10, whole=whole)
    assert is_elsewhere(error) == elsewhere
    assert error.details == details
    assert told in error.message


class SpanNodes:
    """A queue that is in log `new` on n3 from 20 on, before that in `old` on n1 and n2. `says`: what is found, by node
    and log; who is not in it does not answer."""

    request_timeout_ms = 100
    connected, closed = True, False

    def __init__(self, says: dict[tuple[str, str], int]) -> None:
        self._says = says
        self.asked: list[tuple[str, str]] = []
        old = SpanInfo(log_id="old", first=0, master="n1", mirrors=["n2"])
        new = SpanInfo(log_id="new", first=20, master="n3")
        self._info = QueueInfo(
            name="q", queue_id=1, log_id="new", epoch=1, master="n3", mirrors=[], begin=0, next=30, spans=[old, new]
        )

    async def queue_info(self, queue: str) -> QueueInfo:
        return self._info

    async def master_of(self, queue: str) -> tuple[Any, None]:
        return await self.reach("n3"), None

    async def has_moved(self, than: None) -> bool:
        return False

    async def node_address(self, node_id: str) -> str:
        return node_id

    async def reach(self, address: str) -> Any:
        async def request(message: FindOffset, expect: type, *, timeout_ms: int) -> FoundOffset:
            asked = address, message.log
            self.asked.append(asked)
            if asked not in self._says:
                raise ConnectionLost(f"{address} is away")
            if address == "n2" and not message.any_copy:
                raise NotMaster("n2 is a mirror")
            return FoundOffset(queue_offset=self._says[asked], log="new" if address == "n3" else "old")

        return SimpleNamespace(request=request, address=address)


@pytest.mark.parametrize(
    ("says", "any_copy", "found"),
    [
        ({("n1", "old"): 7, ("n3", ""): 20}, False, 7),
        ({("n1", "old"): 20, ("n3", ""): 25}, False, 25),
        ({("n2", "old"): 5, ("n3", ""): 20}, True, 5),
        ({("n2", "old"): 5, ("n3", ""): 20}, False, None),
        ({("n3", ""): 20}, True, None),
        ({("n1", "old"): 35, ("n3", ""): 4}, True, 20),
    ],
    ids=["old", "new", "old-by-mirror", "no-word-of-the-master", "nobody", "each-in-its-span"],
)
def test_a_time_is_looked_for_in_the_oldest_span_first(
    says: dict[tuple[str, str], int], any_copy: bool, found: int | None
) -> None:
    """Goal: records that a former log has are never passed over, not even while nobody answers for it. A log that the
    queue was in before may find something of another span: that does not count."""
    client = SpanNodes(says)
    looking = Copies(cast(Any, client), "q").first_at(1, any_copy=any_copy)
    if found is not None:
        assert asyncio.run(looking) == found
        assert client.asked[0] == ("n3", "")
        return
    with pytest.raises(ConnectionLost, match="n1 is away"):
        asyncio.run(looking)


def test_a_queue_that_has_not_moved_is_asked_for_once() -> None:
    client = SpanNodes({})

    async def reach(address: str) -> Any:
        async def request(message: FindOffset, expect: type, *, timeout_ms: int) -> FoundOffset:
            client.asked.append((address, message.log))
            return FoundOffset(queue_offset=3)

        return SimpleNamespace(request=request, address=address)

    cast(Any, client).reach = reach
    assert asyncio.run(Copies(cast(Any, client), "q").first_at(1)) == 3
    assert client.asked == [("n3", "")]


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("start", ["earliest", datetime(2020, 1, 1, tzinfo=UTC), 0], ids=["earliest", "time", "offset"])
def test_a_reader_of_mirrors_has_all_that_one_of_them_has_while_the_master_is_away(
    two_late: Cluster, start: str | int | datetime
) -> None:
    """Goal: nothing is passed over because two late mirrors agree. Method: the master is killed, the only whole copy
    is promoted, and mirrors are asked: a queue whose end they have and one of which they have nothing."""

    async def read(queue: str, until: int) -> tuple[list[int], str | None]:
        async with (
            Client(two_late.nodes["n2"].client) as client,
            client.consumer(queue, start=start, until=until, read_from="mirror") as consumer,
        ):
            return [int(record.value or b"") async for record in consumer], consumer.served_by

    for queue, count in ((QUEUE, RECORDS), (OLD_QUEUE, OLD_RECORDS)):
        assert asyncio.run(read(queue, count)) == (list(range(count)), "n4")


@pytest.fixture(scope="module")
def two_late() -> Iterator[Cluster]:
    """n1, the master, is gone, n2 and n3 began late, n4 has all and is the master."""
    with late_mirrors(4, late=2) as cluster:
        master = cluster.master
        master.kill()
        yield cluster


@pytest.mark.parametrize(("at", "go_on_at"), [(3, 10), (12, 20), (20, FAR), (25, FAR)])
def test_a_loss_in_a_former_log_ends_where_the_next_one_begins(at: int, go_on_at: int) -> None:
    """Whatever the node says that has that log: it may be of older software."""
    spans = [SpanInfo(log_id=log_id, first=first) for log_id, first in (("A", 0), ("B", 10), ("A", 20))]
    info = QueueInfo(name="q", queue_id=1, log_id="A", epoch=1, master="n1", mirrors=[], begin=0, next=30, spans=spans)
    lost = lost_there(PositionLost("lost", go_on_at=FAR, next=FAR), info, at)
    assert lost.details == {"go_on_at": go_on_at, "next": FAR}
    assert lost_there(PositionLost("lost", go_on_at=at + 1), info, at).details == {"go_on_at": at + 1}
