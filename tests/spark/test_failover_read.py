"""A read goes on when the node that it reads from dies in the middle of it: every record once, the same values."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from mirrorlog.commitlog.format.body import Record
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.reading.lookup import open_lookup
from mirrorlog.spark.reading.rows import consumed_batches
from mirrorlog.spark.source import planned
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster
from tests.spark.queues import publish

# More than a reader has ahead, so that most of it is still at the nodes when one of them dies.
RECORDS = 3_000
VALUE_BYTES = 16 * 1024


def value(number: int) -> bytes:
    return b"%08d" % number * (VALUE_BYTES // 8)


def filled(cluster: Cluster, queue: str) -> None:
    cluster.wait_in_sync()
    publish(cluster.servers, queue, [Record(value(number)) for number in range(RECORDS)], batch_records=16)
    cluster.wait_confirmed()


@pytest.mark.long_after(1)
@pytest.mark.process
@pytest.mark.parametrize("read_from", ["master", "mirror", "nearest"])
def test_a_task_outlives_the_node_that_it_reads_from(queue: str, read_from: str) -> None:
    """Goal: a failover in the middle of a range. Method: plan, read the first batch, kill the master or the mirrors'
    first one, whichever serves; read on, and compare every value."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        filled(cluster, queue)
        options = SourceOptions(servers=tuple(cluster.servers), queues=(queue,), read_from=read_from)
        with open_lookup(options) as lookup:
            (wanted,) = planned(options, lookup)
        victim = cluster.master if read_from == "master" else cluster.mirrors[0]
        batches = consumed_batches(options, wanted)
        found = [next(batches)]
        victim.kill()
        found += batches
        offsets = [offset for batch in found for offset in range(batch.first, batch.next)]
        assert offsets == list(range(RECORDS))
        assert all(
            batch.value_bytes(index) == value(batch.first + index) for batch in found for index in range(len(batch))
        )


@pytest.mark.long
def test_a_job_outlives_its_master(spark: SparkSession, queue: str) -> None:
    """Goal: a job that was planned before a failover reads on behind it. Method: partitions are read one after the
    other; the master is killed after the first rows."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        filled(cluster, queue)
        frame = (
            spark.read.format("mirrorlog")
            .options(servers=",".join(cluster.servers), subscribe=queue, minPartitions="3", columns="offset,value")
            .load()
        )
        rows = frame.toLocalIterator()
        first = next(rows)
        cluster.master.kill()
        found = [(row.offset, bytes(row.value)) for row in (first, *rows)]
        assert found == [(number, value(number)) for number in range(RECORDS)]
