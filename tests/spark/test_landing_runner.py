"""Steps of landings on real queues and tables: what is lost is named, what is damaged is reported, what is written is
read by others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadBatch, LogCorrupt
from mirrorlog.spark.errors import RecordsMissing, TableRefused, UndecodableRecord
from mirrorlog.spark.land import land
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.runner import Runner
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueueRange
from mirrorlog.spark.reading import rows as reading
from mirrorlog.spark.reading.nodes import ask_nodes
from mirrorlog.spark.reading.rows import consumed_batches
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from tests.spark.queues import publish
from tests.spark.test_land import landed_offsets, numbered, positions

MIB = 1024 * 1024
SMALL = {"limits.max_batch_bytes": 256 * 1024, "limits.max_record_bytes": 128 * 1024, "log.populate_bytes": 0}


@pytest.fixture
def freeing() -> Iterator[Cluster]:
    """A node that keeps about 2 MiB."""
    with Cluster(1, segment_bytes=MIB, settings={**SMALL, "log.retention_bytes": 2 * MIB}) as cluster:
        yield cluster


def notes(table: Path) -> list[dict[str, Any]]:
    """What landings wrote into the table's history."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    return [json.loads(each["commitInfo"]["userMetadata"])["mirrorlog"] for each in actions if "commitInfo" in each]


@pytest.mark.long
def test_a_late_restart_names_what_retention_took_or_goes_on_without_it(
    spark: SparkSession, freeing: Cluster, tmp_path: Path
) -> None:
    """Goal: failOnDataLoss both ways. Land some, publish until the begin has passed it; land again, both ways."""
    table = tmp_path / "table"
    publish(freeing.servers, "q", numbered(0, 50))
    land(spark, freeing.servers, "q", table)
    publish(freeing.servers, "q", [Record(b"x" * 8192)] * 1_000, batch_records=20)
    facts = wait_for(
        lambda: next((each for each in ask_nodes(freeing.servers, ["q"]) if each.begin > 50), None),
        timeout=60,
        what=lambda: "retention has freed what was not landed",
    )
    with pytest.raises(RecordsMissing, match="50 up to") as refused:
        land(spark, freeing.servers, "q", table)
    assert refused.value.details["first"] == 50
    assert landed_offsets(table) == list(range(50))
    assert facts.next == 1050
    result = land(spark, freeing.servers, "q", table, on_data_loss="skip")
    ((missed),) = result.missed
    assert (missed.first, result.next) == (50, 1050)
    assert landed_offsets(table) == [*range(50), *range(missed.next, 1050)]
    assert notes(table)[-1]["missed"][0][:3] == ["q", 50, missed.next]


@pytest.mark.long
def test_a_queue_of_a_cluster_made_anew_is_landed_from_its_begin(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: an incarnation is a queue of its own. Land a queue, then one of the same name of another cluster."""
    publish(servers, queue, numbered(0, 30))
    land(spark, servers, queue, tmp_path)
    with Cluster(1, name="another") as cluster:
        publish(cluster.servers, queue, numbered(0, 20))
        result = land(spark, cluster.servers, queue, tmp_path)
    assert (result.first, result.rows) == (0, 20)
    assert landed_offsets(tmp_path) == sorted([*range(30), *range(20)])


def test_a_damaged_batch_is_reported_and_nothing_around_it_is_landed(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: corruption is never passed over in silence. Flip a byte of a record in the log's file, under the node."""
    with Cluster(1, data_dir=tmp_path / "nodes") as cluster:
        publish(cluster.servers, "q", numbered(0, 50), batch_records=10)
        publish(cluster.servers, "q", [Record(b"the damaged one")])
        publish(cluster.servers, "q", numbered(51, 50), batch_records=10)
        damage(tmp_path / "nodes", b"the damaged one")
        with pytest.raises(BadBatch, match=r"^queue 'q', log offset \d+: the batch does not match its CRC-32C$"):
            land(spark, cluster.servers, "q", tmp_path / "table", on_data_loss="skip")
        assert not (tmp_path / "table" / "_delta_log").exists()


@pytest.mark.process
def test_bad_bytes_of_the_past_are_reported_with_queue_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the same where the node itself finds them, in a file that is full. Read it as a task does."""
    monkeypatch.setattr(reading, "_REQUEST_TIMEOUT_MS", 1_000)
    settings = {**SMALL, "log.kept_mapped_bytes": 0}
    with Cluster(1, data_dir=tmp_path, segment_bytes=MIB, settings=settings) as cluster:
        publish(cluster.servers, "q", [*numbered(0, 50), Record(b"the damaged one")], batch_records=10)
        publish(cluster.servers, "q", [Record(b"x" * 8192)] * 300, batch_records=10)
        damage(tmp_path, b"the damaged one")
        (facts,) = ask_nodes(cluster.servers, ["q"])
        wanted = QueueRange(facts.cluster_id, "q", facts.log_id, facts.queue_id, 0, facts.next)
        options = SourceOptions(servers=tuple(cluster.servers), fail_on_data_loss=False)
        with pytest.raises(
            LogCorrupt, match=r"^queue 'q', read from queue offset \d+ on: bad bytes from log offset \d+ to \d+ in /"
        ):
            list(consumed_batches(options, wanted))


def damage(directory: Path, content: bytes) -> None:
    for file in directory.rglob("*"):
        if file.is_file() and (at := file.read_bytes().find(content)) >= 0:
            with file.open("r+b") as opened:
                opened.seek(at)
                opened.write(bytes([content[0] ^ 1]))
            return
    raise AssertionError(f"{content!r} is in no file of {directory}")


@pytest.mark.long
def test_files_are_read_by_spark_delta_rs_and_duckdb_and_are_skipped_by_their_bounds(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: files with statistics that others use. Land three ranges in partitions by hash, read all with each, and
    count the files that a filter on the offset leaves."""
    for first in (0, 100, 200):
        records = [Record(b"%d" % n, key=b"k%d" % n, timestamp_us=n * 1_000_000) for n in range(first, first + 100)]
        publish(servers, queue, records)
        result = land(spark, servers, queue, tmp_path, partition_by=["hash(key, 2)"], compression="zstd")
        assert result.files == 2
    table = DeltaTable(tmp_path)
    files = table.file_uris()
    assert duckdb.sql(f"SELECT sum(CAST(decode(value) AS INT)), count(*) FROM read_parquet({files})").fetchall() == [
        (sum(range(300)), 300)
    ]
    assert landed_offsets(tmp_path) == list(range(300))
    wanted = ds.field("offset") >= 250
    assert len(list(table.to_pyarrow_dataset().get_fragments(wanted))) == 2
    frame = spark.read.format("delta").load(str(tmp_path))
    assert files_read(frame.where("offset >= 250")) == (50, 2)
    assert files_read(frame.where("timestamp < timestamp'1970-01-01 00:01:40Z'")) == (100, 2)
    assert files_read(frame.where("bucket = 1 AND offset < 100"))[1] == 1
    assert files_read(frame) == (300, 6)


def files_read(frame: DataFrame) -> tuple[int, int]:
    """Rows, and the files that Spark opened for them."""
    rows = len(frame.collect())
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return rows, int(leaves.head().metrics().apply("numFiles").value())


@pytest.mark.long
def test_many_queues_are_one_commit(spark: SparkSession, servers: list[str], queue: str, tmp_path: Path) -> None:
    """Goal: a table of a pattern stands at one version for all. Three queues, then a fourth; a bounded step is fair."""
    names = [f"{queue}-{number}" for number in range(4)]
    for name in names[:3]:
        publish(servers, name, numbered(0, 20))
    keys = {"servers": list(servers), "table": str(tmp_path), "hold": False, "max_records": 30}
    made = landing({"queue_pattern": f"{queue}-.*", **keys})
    runner = Runner(spark)
    first = runner.step(made)
    assert [(each.queue, each.next, each.lag) for each in first.queues] == [(name, 10, 10) for name in names[:3]]
    publish(servers, names[3], numbered(0, 3))
    second = runner.step(made)
    assert [each.next for each in second.queues] == [19, 19, 19, 3]
    assert (second.table_version, second.lag) == (1, 3)
    assert runner.step(made).lag == 0
    assert landed_offsets(tmp_path) == sorted([*range(20)] * 3 + [*range(3)])


JSON = {"mode": "json", "decoder": {"schema": "n BIGINT"}}


@pytest.mark.long
def test_a_value_becomes_columns_and_a_new_field_a_column_of_all_files(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: columns are added in the commit that needs them. Land values of one field, then some with another."""
    publish(servers, queue, [Record(b'{"n": %d}' % n, key=b"k") for n in range(10)])
    land(spark, servers, queue, tmp_path, **JSON, evolution="add")
    publish(servers, queue, [Record(b'{"n": %d}' % n) for n in range(10, 20)])
    publish(servers, queue, [Record(b'{"n": %d, "more": "m%d"}' % (n, n)) for n in range(20, 30)])
    assert land(spark, servers, queue, tmp_path, **JSON, evolution="add").rows == 20
    rows = DeltaTable(tmp_path).to_pyarrow_table(columns=["n", "more", "_offset", "_queue"]).sort_by("_offset")
    assert rows["n"].to_pylist() == rows["_offset"].to_pylist() == list(range(30))
    assert rows["more"].to_pylist() == [None] * 20 + [f"m{n}" for n in range(20, 30)]
    assert set(rows["_queue"].to_pylist()) == {queue}
    publish(servers, queue, [Record(b'{"n": 30}')])
    with pytest.raises(TableRefused, match="no column other"):
        land(spark, servers, queue, tmp_path, mode="json", decoder={"schema": "n BIGINT, other INT"})
    assert len(landed_offsets(tmp_path, "_offset")) == 30


@pytest.mark.long
def test_what_cannot_be_decoded_goes_to_the_dead_letters_or_stops_the_landing(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: no record is lost and none becomes null. Values of another type, no JSON at all, none, and a new field
    under `quarantine`; without a table for them nothing is landed."""
    values = [b'{"n": 1}', b'{"n": "one"}', b"\xff", None, b'{"n": 2, "new": 1}', b'{"n": 3}']
    publish(servers, queue, [Record(value, key=b"k") for value in values])
    table, dead = tmp_path / "table", tmp_path / "dead"
    with pytest.raises(UndecodableRecord, match=f"'{queue}', record 1: .*dead_letters"):
        land(spark, servers, queue, table, **JSON)
    assert not (table / "_delta_log").exists()
    result = land(spark, servers, queue, table, **JSON, dead_letters=str(dead))
    assert (result.rows, result.dead_letters) == (2, 4)
    assert landed_offsets(table, "_offset") == [0, 5]
    letters = DeltaTable(dead).to_pyarrow_table().sort_by("offset").to_pylist()
    assert [(each["offset"], each["value"], each["key"]) for each in letters] == [
        (number, values[number], b"k") for number in range(1, 5)
    ]
    assert all(each["reason"] and each["schemaVersion"] and each["queue"] == queue for each in letters)
    assert positions(table) == [6]


@pytest.mark.long
def test_a_clustered_table_is_made_and_landed_into(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: liquid clustering. Its columns stand in the table, and files of a landing go in as into any other."""
    publish(servers, queue, numbered(0, 20))
    assert land(spark, servers, queue, tmp_path, cluster_by=["offset"]).rows == 20
    publish(servers, queue, numbered(20, 20))
    assert land(spark, servers, queue, tmp_path, cluster_by=["offset"]).rows == 20
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}`").collect()
    assert detail.clusteringColumns == ["offset"]
    assert sorted(row.offset for row in spark.read.format("delta").load(str(tmp_path)).collect()) == list(range(40))


@pytest.mark.long
def test_an_upsert_keeps_the_latest_of_each_key_and_deletes_by_tombstone(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: the table is a plain dict of the queue. Two ranges with changes, tombstones and one record without key."""
    table, dead = tmp_path / "table", tmp_path / "dead"
    expected: dict[bytes, bytes] = {}
    for first in (0, 60):
        records = []
        for n in range(first, first + 60):
            key, value = b"k%d" % (n * 7 % 10), None if n % 11 == 5 else b"%d" % n
            records.append(Record(value, key=key))
            expected[key] = value or b""
        if not first:
            records.append(Record(b"no key"))
        publish(servers, queue, records)
        land(spark, servers, queue, table, write="upsert", dead_letters=str(dead))
    assert land(spark, servers, queue, table, write="upsert", dead_letters=str(dead)).rows == 0
    rows = spark.read.format("delta").load(str(table)).select("key", "value").collect()
    assert {bytes(row.key): bytes(row.value) for row in rows} == {k: v for k, v in expected.items() if v}
    assert len(rows) == len({bytes(row.key) for row in rows})
    assert [each["reason"] for each in DeltaTable(dead).to_pyarrow_table().to_pylist()] == ["no key"]
    assert not list((table / "_staging").glob("*"))


@pytest.mark.long
def test_an_upsert_of_decoded_values_deletes_too(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: a tombstone has no columns and still finds its row, under a schema with NOT NULL as well."""
    keys = {"mode": "json", "decoder": {"schema": "n BIGINT NOT NULL"}, "write": "upsert"}
    publish(servers, queue, [Record(b'{"n": %d}' % n, key=b"%d" % n) for n in range(5)])
    land(spark, servers, queue, tmp_path, **keys)
    publish(servers, queue, [Record(None, key=b"1"), Record(b'{"n": 20}', key=b"2")])
    land(spark, servers, queue, tmp_path, **keys)
    rows = spark.read.format("delta").load(str(tmp_path)).collect()
    assert sorted((bytes(row._key), row.n, row._offset) for row in rows) == [
        *((b"0", 0, 0), (b"2", 20, 6), (b"3", 3, 3), (b"4", 4, 4)),
    ]
