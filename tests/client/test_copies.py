"""Where a queue begins is told by its master, or by the copy that has most, never by a mirror that began late."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.copy_refusals import is_elsewhere, judged
from mirrorlog.errors import OffsetOutOfRange
from mirrorlog.testing import Cluster
from tests.client.late_mirrors import OLD_QUEUE, OLD_RECORDS, QUEUE, RECORDS, late_mirrors


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
