"""The commit of a landing is a compare-and-set: it goes through only on the table that it was planned from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from mirrorlog.spark.errors import LandingConflict
from mirrorlog.spark.landing.commit import durable
from mirrorlog.spark.landing.commit.delta_log import TableShape, TableState, commit, table_state
from mirrorlog.spark.landing.commit.durable import COMMITS_MAX, sync_table
from mirrorlog.spark.landing.write.files import DataFile, FileFormat, FileWriter

IDS = ("app", "fence")
SHAPE = TableShape(StructType().add("offset", LongType()), properties={"delta.enableChangeDataFeed": "true"})


def files(table: Path, first: int, following: int) -> list[DataFile]:
    with FileWriter(FileFormat(str(table)), 0) as writer:
        writer.write(pa.RecordBatch.from_pydict({"offset": pa.array(range(first, following), pa.int64())}))
        return writer.finish()


def offsets(table: Path) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["offset"].to_pylist())


def put(  # noqa: PLR0917  (what is put where)
    spark: SparkSession, table: Path, seen: TableState, first: int, following: int, between: Callable[[], object] = list
) -> int:
    return commit(
        spark,
        str(table),
        files(table, first, following),
        seen=seen,
        sets={"app": following},
        note={"why": "test"},
        shape=SHAPE if seen.version is None else None,
        on_begun=between,  # type: ignore[arg-type]
    )


def see(spark: SparkSession, table: Path) -> TableState:
    return table_state(spark, str(table), IDS)


@pytest.mark.long
def test_files_and_positions_are_one_commit_with_its_history(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: what a commit holds. The first one makes the table; a second one adds; the history says so."""
    nothing = see(spark, tmp_path)
    assert (nothing.version, nothing.versions) == (None, {"app": None, "fence": None})
    assert put(spark, tmp_path, nothing, 0, 10) == 0
    assert put(spark, tmp_path, see(spark, tmp_path), 10, 15) == 1
    state = see(spark, tmp_path)
    assert (state.version, state.versions) == (1, {"app": 15, "fence": None})
    assert state.shape.schema == SHAPE.schema
    assert state.shape.properties == SHAPE.properties
    assert offsets(tmp_path) == list(range(15))
    (last, _) = spark.sql(f"DESCRIBE HISTORY delta.`{tmp_path}`").collect()
    assert (last.operation, last.userMetadata) == ("WRITE", '{"why": "test"}')
    assert (last.operationMetrics["numFiles"], last.operationMetrics["numOutputRows"]) == ("1", "5")


def test_a_commit_on_another_table_than_was_seen_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: each thing that is compared is. Positions, a table that is made or not, columns, properties, a fence."""
    nothing = see(spark, tmp_path)
    put(spark, tmp_path, nothing, 0, 10)
    seen = see(spark, tmp_path)
    wider = StructType([*SHAPE.schema.fields, StructField("more", StringType())])
    wrong = [
        nothing,
        replace(seen, versions={"app": 9, "fence": None}),
        replace(seen, versions={"app": None}),
        replace(seen, versions={"app": 10, "fence": 1}),
        replace(seen, shape=replace(seen.shape, schema=wider)),
        replace(seen, shape=replace(seen.shape, properties={})),
    ]
    for state in wrong:
        with pytest.raises(LandingConflict, match="nothing was added"):
            put(spark, tmp_path, state, 10, 20)
    assert offsets(tmp_path) == list(range(10))
    assert put(spark, tmp_path, seen, 10, 20) == 1


@pytest.mark.long
def test_a_commit_that_comes_in_between_wins_by_its_ids_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: what Delta refuses while a transaction is open. Another commit of the id, of the fence, of the columns; one
    of another application, as of another queue, is no conflict."""
    put(spark, tmp_path, see(spark, tmp_path), 0, 10)

    def other(sets: dict[str, int], shape: TableShape | None = None) -> Callable[[], object]:
        seen = table_state(spark, str(tmp_path), sets)
        return lambda: commit(spark, str(tmp_path), seen=seen, sets=sets, note={}, shape=shape)

    state = see(spark, tmp_path)
    wider = replace(state.shape, schema=StructType([*SHAPE.schema.fields, StructField("more", StringType())]))
    for between in (other({"app": 99}), other({"fence": 1}), other({"nobody": 1}, wider)):
        with pytest.raises(LandingConflict, match="nothing was added"):
            put(spark, tmp_path, see(spark, tmp_path), 10, 20, between)
    assert put(spark, tmp_path, see(spark, tmp_path), 10, 20, other({"another queue": 5})) == 5
    state = see(spark, tmp_path)
    assert (state.versions, state.columns) == ({"app": 20, "fence": 1}, ["offset", "more"])
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table(columns=["offset"])["offset"].to_pylist()) == list(range(20))


# --- On the disk ---


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is fsynced, by its path, in a process that has synced no table yet."""
    found: list[str] = []
    real = os.fsync

    def spy(handle: int) -> None:
        found.append(str(Path(f"/proc/self/fd/{handle}").readlink()))
        real(handle)

    monkeypatch.setattr(os, "fsync", spy)
    monkeypatch.setattr(durable, "_synced", {})
    return found


def log_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def written(table: Path, version: int, *names: str) -> None:
    """A commit that somebody else made, with its data files, none of it synced."""
    log_file(table, version).parent.mkdir(parents=True, exist_ok=True)
    actions = [{"commitInfo": {}}, *({"add": {"path": quote(name)}} for name in names)]
    log_file(table, version).write_text("\n".join(map(json.dumps, actions)))
    for name in names:
        (table / name).parent.mkdir(exist_ok=True)
        (table / name).touch()


def test_a_position_is_on_the_disk_before_the_log_hears_of_it(tmp_path: Path, synced: list[str]) -> None:
    """Goal: what a killed driver left in the page cache survives a power loss, in the order that it needs. Commits with
    files that nobody synced: files, their folders, commits, the log's folder; then nothing, then what is new alone."""
    written(tmp_path, 0, "a.parquet")
    written(tmp_path, 1, "date=1/b c.parquet", "gone.parquet")
    (tmp_path / "gone.parquet").unlink()
    (tmp_path / "_delta_log" / "_last_checkpoint").touch()
    sync_table(str(tmp_path), 1)
    log = tmp_path / "_delta_log"
    expected = [tmp_path / "a.parquet", tmp_path / "date=1" / "b c.parquet", tmp_path / "date=1", tmp_path]
    expected += [log_file(tmp_path, 0), log_file(tmp_path, 1), log, tmp_path]
    assert synced == [str(log / "_last_checkpoint"), str(log), *map(str, expected)]
    synced.clear()
    sync_table(str(tmp_path), 1)
    assert synced == []
    written(tmp_path, 2, "c.parquet")
    sync_table(str(tmp_path), 2)
    assert synced == [str(each) for each in (tmp_path / "c.parquet", tmp_path, log_file(tmp_path, 2), log, tmp_path)]


def test_a_first_look_is_bounded_and_a_table_made_anew_is_looked_at_again(tmp_path: Path, synced: list[str]) -> None:
    """Goal: a long log costs no long start; no version is believed of another table. Many commits; then one with fewer
    in its place. Where there is no table, or an object store, there is nothing to do."""
    last = COMMITS_MAX + 20
    for version in range(last + 1):
        written(tmp_path / "t", version)
    sync_table(str(tmp_path / "t"), last)
    assert [each for each in synced if each.endswith(".json")] == [
        str(log_file(tmp_path / "t", version)) for version in range(21, last + 1)
    ]
    (tmp_path / "t").rename(tmp_path / "old")
    for version in range(last + 2):
        written(tmp_path / "t", version)
    synced.clear()
    sync_table(str(tmp_path / "t"), last + 1)
    assert str(log_file(tmp_path / "t", last)) in synced
    synced.clear()
    sync_table(str(tmp_path / "none"), None)
    sync_table("s3a://bucket/table", 7)
    assert synced == []


@pytest.mark.long
def test_a_commit_is_on_the_disk_with_all_below_it(spark: SparkSession, tmp_path: Path, synced: list[str]) -> None:
    """Goal: a commit is nothing without those below. Another application commits in between, and is not synced."""
    put(spark, tmp_path, see(spark, tmp_path), 0, 10)
    assert {str(log_file(tmp_path, 0)), str(tmp_path / "_delta_log"), str(tmp_path), str(tmp_path.parent)} <= {*synced}

    def foreign() -> None:
        frame = spark.createDataFrame([(5,)], SHAPE.schema)
        frame.write.format("delta").mode("append").save(str(tmp_path))
        synced.clear()

    assert put(spark, tmp_path, see(spark, tmp_path), 10, 20, foreign) == 2
    assert str(log_file(tmp_path, 1)) in synced
    assert synced.index(str(log_file(tmp_path, 1))) < synced.index(str(log_file(tmp_path, 2)))
    assert [each for each in synced if each.endswith(".parquet")]
