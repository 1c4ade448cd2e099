"""A mirror that began late hides no record from a job: neither from planning nor from reading nor from a landing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mirrorlog.commitlog.format.body import Record
from mirrorlog.spark.errors import BeginUnknown
from mirrorlog.spark.land import LandResult, land
from mirrorlog.spark.landing.positions import Start, starting_offset
from mirrorlog.spark.options import offsets_json, parse_options
from mirrorlog.spark.reading.nodes import ask_nodes
from mirrorlog.spark.source import QueueBatchReader
from mirrorlog.testing import Cluster
from tests.client.late_mirrors import OLD_QUEUE, OLD_RECORDS, QUEUE, RECORDS, late_begin, late_mirrors
from tests.process.clusters import eventually
from tests.spark.queues import publish

QUEUES = {QUEUE: RECORDS, OLD_QUEUE: OLD_RECORDS}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """n2 began late, n3 has all."""
    with late_mirrors(3) as started:
        yield started


def offsets_read(servers: list[str], queue: str, **options: str) -> list[int]:
    """As Spark does it: planned once, then each partition by itself, in the order in which they were planned."""
    asked = {"servers": ",".join(servers), "subscribe": queue, "minPartitions": "3", **options}
    reader = QueueBatchReader(parse_options(asked))
    batches = (batch for partition in reader.partitions() for batch in reader.read(partition))
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def landed_offsets(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


@pytest.mark.long
@pytest.mark.process
def test_a_queue_begins_where_its_master_says_whoever_is_asked_first(cluster: Cluster) -> None:
    """Goal: no offset is left out of a plan. Method: ask the late mirror first, then the master; then without the
    master, when the mirror that has most is believed; the queues are read by tasks each time, from mirrors."""
    master = cluster.master
    for servers in ([cluster.nodes["n2"].client], cluster.servers):
        for facts in ask_nodes(servers, list(QUEUES)):
            assert (facts.begin, facts.next, facts.silent_master) == (0, QUEUES[facts.name], None)
    for queue, count in QUEUES.items():
        for read_from in ("master", "mirror", "n3"):
            assert offsets_read(cluster.servers, queue, read_from=read_from) == list(range(count))
    master.kill()
    for queue, count in QUEUES.items():
        # On a busy machine the one that has most may not answer in time: then the other's word is all there is.
        eventually(partial(tells, cluster.nodes["n2"].client, queue, count), f"all of {queue} is told", timeout=30.0)
        assert offsets_read(cluster.servers, queue, read_from="mirror") == list(range(count))


def tells(server: str, queue: str, count: int) -> bool:
    (facts,) = ask_nodes([server], [queue])
    return (facts.begin, facts.next) == (0, count)


@pytest.mark.long
@pytest.mark.process
def test_a_late_mirror_alone_plans_nothing_that_might_leave_records_out(cluster: Cluster) -> None:
    """Goal: a loud end where nobody can say what is gone. Method: only the late mirror runs; from the begin and from
    below its own it is refused by the name of the master; from its begin on it serves, or when loss is allowed."""
    master = cluster.master
    master.kill()
    cluster.nodes["n3"].kill()
    late = [cluster.nodes["n2"].client]
    begin = late_begin(cluster)
    mirror = {"read_from": "mirror"}
    for queue in QUEUES:
        with pytest.raises(BeginUnknown, match=f"'{queue}'.* n1 ") as refused:
            offsets_read(late, queue, **mirror)
        assert refused.value.retriable
    with pytest.raises(BeginUnknown, match=f"from {begin} on"):
        offsets_read(late, QUEUE, startingOffsets=offsets_json(QUEUE, begin - 1), **mirror)
    held = list(range(begin, RECORDS))
    assert offsets_read(late, QUEUE, startingOffsets=offsets_json(QUEUE, begin), **mirror) == held
    assert offsets_read(late, QUEUE, failOnDataLoss="false", **mirror) == held
    (facts,) = ask_nodes(late, [QUEUE])
    for landed in (None, 0, begin - 1):
        with pytest.raises(BeginUnknown, match="nothing was added"):
            starting_offset(facts, landed, "table")
    assert starting_offset(facts, begin, "table") == Start(begin)


@pytest.mark.long
def test_a_landing_adds_every_record_once_beside_a_late_mirror(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Goal: the table is the queue. Method: land from the master, and the rest from mirrors; then let the late mirror
    be alone: the table is complete, and a new one gets nothing."""
    master = cluster.master
    table = tmp_path / "table"
    landed = land(spark, cluster.servers, QUEUE, table)
    assert landed == LandResult(first=0, next=RECORDS, rows=RECORDS, table_version=0)
    publish(cluster.servers, QUEUE, [Record(b"more")] * 50)
    cluster.wait_confirmed()
    assert land(spark, cluster.servers, QUEUE, table, read_from="mirror").rows == 50
    assert landed_offsets(table) == list(range(RECORDS + 50))
    assert land(spark, cluster.servers, OLD_QUEUE, tmp_path / "old", read_from="mirror").rows == OLD_RECORDS
    master.kill()
    cluster.nodes["n3"].kill()
    assert land(spark, cluster.servers, QUEUE, table, read_from="mirror").rows == 0
    for queue in QUEUES:
        with pytest.raises(BeginUnknown):
            land(spark, cluster.servers, queue, tmp_path / "new", read_from="mirror")
    assert not (tmp_path / "new").exists()
