"""A landing over a copy whose newest bytes are bad, which only a reader can tell: the table is whole all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadBatch
from mirrorlog.spark.land import land
from tests.process.clusters import fast_cluster
from tests.spark.queues import publish
from tests.spark.test_land import numbered
from tests.spark.test_landing_runner import damage


def landed_values(table: Path) -> list[bytes | None]:
    """By queue offset."""
    return DeltaTable(table).to_pyarrow_table(columns=["offset", "value"]).sort_by("offset")["value"].to_pylist()


@pytest.mark.long
def test_a_landing_is_whole_over_a_damaged_copy_and_ends_where_no_copy_is(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: bad bytes of one copy cost a landing nothing, those of all copies no wrong row. Flip a bit on the nearest
    mirror in its mapped file, and another one on the master: land from either, and find the whole queue. Then flip the
    first on all three: the landing names the nodes, and adds nothing; what it landed before stays."""
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path / "nodes") as cluster:
        cluster.wait_in_sync()
        bad, other = b"the damaged one", b"another one that is damaged"
        records = [*numbered(0, 50), Record(bad), *numbered(51, 50), Record(other), *numbered(102, 50)]
        publish(cluster.servers, "q", records, batch_records=10)
        cluster.wait_confirmed()
        damage(cluster.mirrors[0].data_dir, bad)
        damage(cluster.master.data_dir, other)
        for read_from in ("nearest", "master"):
            assert land(spark, cluster.servers, "q", tmp_path / read_from, read_from=read_from).rows == len(records)
            assert landed_values(tmp_path / read_from) == [record.value for record in records]
        publish(cluster.servers, "q", [*numbered(152, 10), Record(b"the last one"), *numbered(163, 10)])
        cluster.wait_confirmed()
        for node in cluster.nodes.values():
            damage(node.data_dir, b"the last one")
        with pytest.raises(BadBatch, match=r"^queue 'q', log offset \d+: .* on (n\d, ){2}n\d$"):
            land(spark, cluster.servers, "q", tmp_path / "nearest", read_from="nearest")
        assert landed_values(tmp_path / "nearest") == [record.value for record in records]
