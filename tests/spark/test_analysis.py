"""The analysis jobs on known numbers, and the command that runs them on a landed table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from pyspark.sql import DataFrame, SparkSession

from mirrorlog.errors import BadInput
from mirrorlog.spark.analysis import __main__ as command
from mirrorlog.spark.analysis.jobs import AnalysisRequest, lag, latency, records, redeliveries, report, throughput
from mirrorlog.spark.analysis.landings import LandedCommit, Landings, landings, steps, with_landed
from mirrorlog.spark.checks.landed_table import open_table

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIME = pa.timestamp("us", tz="UTC")
RAW = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIME),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
        ("appendTime", TIME),
    ]
)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def raw(offset: int, append_s: float, *, event_s: float | None = None, **fields: Any) -> dict[str, Any]:
    """A row as it is landed; without an event time it shows the append time."""
    event = append_s if event_s is None else event_s
    own = {"key": None, "value": b"12345", "topic": "q", "partition": 0, "headers": None}
    times = {"timestamp": at(event), "timestampType": int(event_s is None), "appendTime": at(append_s)}
    return {**own, **times, "offset": offset, **fields}


def rows_of(found: DataFrame) -> list[dict[str, Any]]:
    return [{**row, "time": row["time"] and row["time"].astimezone(UTC)} for row in found.toArrow().to_pylist()]


def write(spark: SparkSession, path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    frame = spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=RAW))
    frame.coalesce(1).write.format("delta").mode("append").save(str(path))
    return path


def test_a_record_was_landed_by_the_first_commit_that_reached_it() -> None:
    """Goal: what is written anew later keeps its time. Three commits, the second of which rewrites old rows."""
    found = landings(
        [
            LandedCommit("q", 10, 5, 9),
            LandedCommit("q", 20, 6, 8),
            LandedCommit("r", 25, 0, 0),
            LandedCommit("q", 30, 10, 19),
        ]
    )
    assert found == {"q": Landings(5, (9, 19), (10, 30)), "r": Landings(0, (0,), (25,))}


@pytest.fixture(scope="module")
def table(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits of queue q: 60 records in the minute of noon, 30 in the next; and one of queue r. Events are one
    second before their append, the last ten have none."""
    path = tmp_path_factory.mktemp("analysis") / "table"
    write(spark, path, [raw(number, number, event_s=number - 1, key=b"abc") for number in range(60)])
    write(
        spark,
        path,
        [raw(60 + number, 60 + 2 * number, event_s=None if number > 19 else 59 + 2 * number) for number in range(30)],
    )
    write(spark, path, [raw(0, 130, event_s=129.5, topic="r", value=None)])
    return path


def commit_times(table: Path) -> list[float]:
    """Seconds after noon, of each commit, from the table's log."""
    lines = [line for each in sorted((table / "_delta_log").glob("*.json")) for line in each.read_text().splitlines()]
    infos = [json.loads(line)["commitInfo"] for line in lines if "commitInfo" in line]
    return [info["timestamp"] / 1000 - NOON.timestamp() for info in infos]


@pytest.mark.long
def test_throughput_counts_records_and_bytes_by_minute_and_queue(spark: SparkSession, table: Path) -> None:
    """Goal: known numbers. 60 records of 8 bytes, 30 of 5, one without key or value."""
    found = rows_of(throughput(records(open_table(spark, table))))
    assert [(row["time"], row["queue"], row["records"], row["bytes"]) for row in found] == [
        (at(0), "q", 60, 480),
        (at(60), "q", 30, 150),
        (at(120), "r", 1, 0),
    ]
    assert [(row["records_per_s"], row["bytes_per_s"]) for row in found[:2]] == [(1.0, 8.0), (0.5, 2.5)]
    half = rows_of(throughput(records(open_table(spark, table), ["q"]), "30 seconds"))
    assert [row["records"] for row in half] == [30, 30, 15, 15]


@pytest.mark.long
def test_lag_is_told_by_the_commit_that_landed_a_record_also_after_a_compaction(
    spark: SparkSession, table: Path
) -> None:
    """Goal: known numbers, whatever was done to the files since. The commits' times are read from the table's log."""
    first, second, third = commit_times(table)
    spark.sql(f"OPTIMIZE delta.`{table}`").collect()
    opened = open_table(spark, table)
    rows = with_landed(records(opened), landings(steps(spark, opened)))
    assert rows.where("commit").count() == 91
    found = rows_of(lag(rows))
    assert [(row["time"], row["queue"], row["records"], row["with_event_time"]) for row in found] == [
        (at(0), "q", 60, 60),
        (at(60), "q", 30, 20),
        (at(120), "r", 1, 1),
    ]
    assert found[0]["landed_max"] == pytest.approx(first, abs=1e-3)
    assert found[0]["landed_p50"] == pytest.approx(first - 30, abs=1e-3)
    assert found[0]["landed_p90"] == pytest.approx(first - 6, abs=1e-3)
    assert found[1]["landed_max"] == pytest.approx(second - 60, abs=1e-3)
    assert found[2]["landed_max"] == pytest.approx(third - 130, abs=1e-3)
    assert [(row["event_p50"], row["event_max"]) for row in found] == [(1.0, 1.0), (1.0, 1.0), (0.5, 0.5)]


@pytest.mark.long
def test_a_record_whose_commit_nobody_knows_has_the_time_of_its_file(spark: SparkSession, table: Path) -> None:
    """Goal: an old table still gives a lag, and says what it is. Only the second commit is known."""
    opened = open_table(spark, table)
    rows = with_landed(records(opened), {"q": Landings(60, (89,), (1,))})
    counts = {bool(row["commit"]): row["count"] for row in rows.groupBy("commit").count().collect()}
    assert counts == {False: 61, True: 30}
    assert rows.where("landed_at < append_time - interval 1 day").count() == 30


def test_latency_percentiles_are_those_of_known_records(spark: SparkSession) -> None:
    """Goal: p50, p90, p99 and p99.9 of 1 to 1,000 ms, overall and by minute; clocks that disagree are counted."""
    rows = [("q", at(0), at(0) + timedelta(milliseconds=number), at(10)) for number in range(1, 1001)]
    rows += [("q", at(61), at(60), at(70)), ("q", None, at(60), at(70))]
    frame = spark.createDataFrame(
        rows, "queue string, event_time timestamp, append_time timestamp, landed_at timestamp"
    )
    found = {(row["time"], row["path"]): row for row in rows_of(latency(frame))}
    assert len(found) == 6
    noon = found[at(0), "event to append"]
    assert [noon[name] for name in ("p50", "p90", "p99", "p99_9", "max")] == [0.5, 0.9, 0.99, 0.999, 1.0]
    assert (noon["records"], noon["below_zero"]) == (1000, 0)
    overall = found[None, "event to append"]
    assert (overall["records"], overall["below_zero"], overall["max"]) == (1001, 1, 1.0)
    assert found[at(60), "event to append"]["p50"] == -1.0
    assert found[None, "event to landed"]["p50"] == 10.0


@pytest.mark.long
def test_redeliveries_are_what_headers_say_and_identities_that_come_twice(spark: SparkSession) -> None:
    """Goal: each header counts as it is documented, and only so. One record per header and value."""
    redelivered = [
        ("x-death", b""), ("Redelivered", b"TRUE"), ("x-redelivered", b"1"), ("x-delivery-count", b"1"),
        ("x-retries", b" 3 "), ("attempts", b"2"), ("X-Delivery-Attempt", b"7"),
    ]  # fmt: skip
    plain = [
        ("redelivered", b"false"), ("x-delivery-count", b"0"), ("attempts", b"1"), ("attempts", b"many"),
        ("attempts", None), ("attempts", b"\xff"), ("death", b"1"), ("redelivered", None),
    ]  # fmt: skip
    ids = [[("message-id", b"a")], [("Message-Id", b"a"), ("x", None)], [("message-id", b"b")], [("message-id", None)]]
    headers: list[Any] = (
        [[each] for each in (*redelivered, *plain)] + ids + [[], None, [("x", b"1"), ("x-death", b"1")]]
    )
    rows = [("q", number, b"key", each, at(0)) for number, each in enumerate(headers)]
    rows.append(("other", 0, b"key", [("message-id", b"a")], at(0)))
    frame = spark.createDataFrame(
        rows,
        "queue string, offset bigint, key binary, headers array<struct<key: string, value: binary>>, "
        "append_time timestamp",
    )
    other, mine = rows_of(redeliveries(frame).orderBy("queue"))
    assert (other["redelivered"], other["duplicates"], other["records"]) == (0, 0, 1)
    assert (mine["redelivered"], mine["duplicates"]) == (len(redelivered) + 1, 1)
    assert mine["duplicates_share"] == pytest.approx(1 / len(headers))
    by_key = rows_of(redeliveries(frame, by_key=True).orderBy("queue"))[1]
    assert by_key["duplicates"] == len(headers) - 3 - 1 + 1


@pytest.mark.long
def test_the_command_writes_a_table_a_picture_and_json(
    spark: SparkSession,
    table: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: all jobs by one command, in this process with the session that is there; then what it refuses."""
    monkeypatch.setattr("mirrorlog.spark.session.any_session", lambda app: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    assert command.main(["all", "--table", str(table), "--out", str(tmp_path / "out"), "--json"]) == 0
    told = {each["job"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(told) == ["throughput", "lag", "redeliveries", "latency"]
    assert told["throughput"]["rows"][0]["records"] == 60
    assert "no redelivery data of its own" in told["redeliveries"]["notes"][0]
    assert "10 of 91 records have no event time" in told["lag"]["notes"]
    for job in told:
        assert pyarrow.csv.read_csv(tmp_path / "out" / f"{job}.csv").num_rows == len(told[job]["rows"])
        assert (tmp_path / "out" / f"{job}.png").read_bytes().startswith(b"\x89PNG")
    given = ["throughput", "--table", str(table), "--queue", "r", "--format", "parquet", "--out", str(tmp_path)]
    assert command.main(given) == 0
    assert pyarrow.parquet.read_table(tmp_path / "throughput.parquet")["records"].to_pylist() == [1]
    assert "records_per_s" in capsys.readouterr().out
    assert command.main(["throughput", "--table", str(tmp_path / "none")]) == 2
    assert command.main(["throughput", "--table", str(table), "--every", "soon"]) == 2
    refused = capsys.readouterr()
    assert refused.out == ""
    assert len([line for line in refused.err.splitlines() if line.startswith("error: ")]) == 2


def test_a_table_without_append_times_is_refused(spark: SparkSession, table: Path, tmp_path: Path) -> None:
    """Goal: no made-up times. Drop the column."""
    spark.read.format("delta").load(str(table)).drop("appendTime").write.format("delta").save(str(tmp_path / "old"))
    with pytest.raises(BadInput, match="appendTime"):
        report(spark, open_table(spark, tmp_path / "old"), "throughput", AnalysisRequest())
