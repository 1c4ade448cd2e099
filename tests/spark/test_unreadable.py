"""Spark and a batch that nobody can open, which an older node took: it stops a landing only as long as it may."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError, UnreadableBatch
from mirrorlog.spark.errors import from_spark
from mirrorlog.spark.land import land
from mirrorlog.testing import Cluster
from tests.process.clusters import fast_cluster
from tests.spoiled import spoil

GOOD = [*range(10), *range(20, 30)]


async def _publish(cluster: Cluster, queue: str) -> None:
    async with Client(*cluster.servers) as client:
        info = await client.admin.declare(queue)
        async with client.producer(queue, compression="zstd") as producer:
            for first in range(0, 30, 10):
                for number in range(first, first + 10):
                    producer.send_nowait(b"%d" % number + bytes(2000))
                await producer.flush()
        await asyncio.to_thread(cluster.wait_confirmed)
        spoil(cluster.nodes.values(), info, 10)


def offsets(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["offset"].to_pylist())


@pytest.mark.long
def test_a_landing_writes_dead_letters_and_the_source_passes_when_told(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: one bad batch stops no landing. With a table for dead letters each of its records is one, with place and
    reason, and the rest lands; without one it ends by name and adds nothing, unless failOnDataLoss is false. The data
    source raises the same error, and passes it with that option."""
    with fast_cluster(1) as cluster:
        asyncio.run(_publish(cluster, "q"))
        table, dead, other = tmp_path / "table", tmp_path / "dead", tmp_path / "other"
        landed = land(spark, cluster.servers, "q", table, dead_letters=str(dead))
        assert landed.rows == 20
        assert offsets(table) == GOOD
        letters = DeltaTable(dead).to_pyarrow_table().sort_by("offset").to_pylist()
        assert [each["offset"] for each in letters] == list(range(10, 20))
        assert all(each["queue"] == "q" and each["value"] is None and each["appendTime"] for each in letters)
        assert "nobody can open" in letters[0]["reason"]
        assert "producer" in letters[0]["reason"]
        assert land(spark, cluster.servers, "q", table, dead_letters=str(dead)).rows == 0

        with pytest.raises(UnreadableBatch, match="dead_letters"):
            land(spark, cluster.servers, "q", other)
        assert not other.exists() or not offsets(other)
        assert land(spark, cluster.servers, "q", other, on_data_loss="skip").rows == 20
        assert offsets(other) == GOOD

        source = spark.read.format("mirrorlog").option("servers", ",".join(cluster.servers)).option("subscribe", "q")

        def rows(reader: object) -> list[int]:
            try:
                return sorted(row["offset"] for row in reader.load().collect())  # type: ignore[attr-defined]
            except Exception as error:
                raise from_spark(error) from error

        with pytest.raises(MirrorlogError, match="failOnDataLoss") as met:
            rows(source)
        assert met.value.code == "UNREADABLE_BATCH"
        assert rows(source.option("failOnDataLoss", "false")) == GOOD
