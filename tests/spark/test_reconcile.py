"""A landed table against its log: equal is said only of equal ones, and of others the exact ranges that differ."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadInput, NoSuchQueue
from mirrorlog.spark import reconcile as command
from mirrorlog.spark.checks.comparison import ComparisonLimits
from mirrorlog.spark.checks.differences import Difference, DifferenceKind, Reconciliation
from mirrorlog.spark.checks.fingerprints import COMPARED, row_hash
from mirrorlog.spark.checks.scope import LogSource
from mirrorlog.spark.errors import TableOutOfStep
from mirrorlog.spark.land import land
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.reading.declared_gaps import Gap
from mirrorlog.spark.reconcile import reconcile
from mirrorlog.testing import Cluster
from tests.spark.queues import every_kind_of_record, publish

Row = dict[str, Any]

COUNT = 1500
SMALL = ComparisonLimits(bucket_offsets=64)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class LateLog(LogSource):
    """One whose records below 1,000 retention has taken, and that has leapt over 1,200 to 1,299 after a loss."""

    def facts(self, queue: str) -> QueueFacts:
        return replace(LogSource.facts(self, queue), begin=1000)

    def gaps(self, facts: QueueFacts, first: int, following: int) -> list[Gap]:
        return [Gap(1200, 1300)]


@pytest.fixture(scope="module")
def name() -> str:
    return "reconciled"


@pytest.fixture(scope="module")
def log(servers: list[str], name: str) -> LogSource:
    """Of records of every kind, each header with a value and none."""
    publish(servers, name, every_kind_of_record(COUNT), batch_records=97)
    return LogSource(tuple(servers))


@pytest.fixture(scope="module")
def source(spark: SparkSession, log: LogSource, name: str) -> pa.Table:
    """The queue's rows as a landing has them, in order."""
    facts = log.facts(name)
    return log.rows(spark, facts, [(0, facts.next)], ["topic", *COMPARED]).toArrow().sort_by("offset")


def write(spark: SparkSession, path: Path, log: LogSource, name: str, rows: pa.Table, *, following: int | None) -> Path:
    """A table of those rows whose position is `following`, or that names none."""
    writer = spark.createDataFrame(rows).repartition(2).write.format("delta").mode("append")
    if following is not None:
        writer = writer.option("txnAppId", QueueIds(log.facts(name)).offset).option("txnVersion", following)
    writer.save(str(path))
    return path


def shown(found: Reconciliation) -> str:
    text = io.StringIO()
    Console(width=120, file=text).print(found.view())
    return text.getvalue()


def changed(rows: pa.Table, change: Callable[[list[Row]], list[Row]]) -> pa.Table:
    return pa.Table.from_pylist(change(rows.to_pylist()), schema=rows.schema)


@pytest.mark.long
def test_a_table_that_was_landed_whole_is_equal(
    spark: SparkSession, log: LogSource, source: pa.Table, name: str, tmp_path: Path
) -> None:
    """Goal: equal tables are equal, in whatever order and files, and the numbers are those of the data. Rows of an
    older queue of the name, which came with other commits, are in the table too, and are not blamed on this one."""
    own = QueueIds(log.facts(name)).offset
    older = {"txnAppId": own.rpartition(":")[0] + ":older", "txnVersion": 50}
    table = tmp_path / "table"
    spark.createDataFrame(source.slice(0, 50)).write.format("delta").options(**older).save(str(table))
    write(spark, table, log, name, source, following=COUNT)
    found = reconcile(spark, log, name, table, limits=SMALL)
    assert found.equal
    assert found.error() is None
    assert (found.first, found.next, found.differences) == (0, COUNT, ())
    assert found.log == found.landed
    assert (found.log.rows, found.buckets, found.compared) == (COUNT, -(-COUNT // 64), COMPARED)
    text = shown(found)
    assert "NOT EQUAL" not in text
    assert "50 rows" in text


def damaged(rows: list[Row]) -> list[Row]:
    """Each kind of damage at a place of its own."""
    by = {row["offset"]: row for row in rows}

    def swap(one: int, other: int, columns: Sequence[str]) -> None:
        for column in columns:
            by[one][column], by[other][column] = by[other][column], by[one][column]

    by[200]["again"] = True
    by[300]["value"] = b"X" + by[300]["value"][1:]
    moved = by[416]
    moved["key"], moved["value"] = moved["key"] + moved["value"][:1], moved["value"][1:]
    by[500]["offset"] = COUNT + 3
    swap(600, 601, ["key", "value", "headers", "timestamp", "timestampType"])
    by[701]["value"] = None if by[701]["value"] is not None else b""
    by[800]["timestampType"] = 1 - by[800]["timestampType"]
    by[813]["headers"] = [{"key": "n", "value": b"1"}, {"key": "n", "value": b""}, {"key": "", "value": b""}]
    left = [row for row in rows if row["offset"] not in (100, *range(900, 1100))]
    return [copy for row in left for copy in [row] * (2 if row.pop("again", False) else 1)]


@pytest.mark.long
def test_each_damage_is_reported_with_its_exact_range(
    spark: SparkSession, log: LogSource, source: pa.Table, name: str, tmp_path: Path
) -> None:
    """Goal: a row removed, one twice, one byte changed, one moved between columns, one offset shifted, two neighbours
    swapped, an absent value for an empty one, a header's null, a whole range gone: each is named, and nothing else."""
    rows = source.to_pylist()
    assert rows[416]["key"] is not None
    assert rows[813]["headers"] == [{"key": "n", "value": b"1"}, {"key": "n", "value": None}, {"key": "", "value": b""}]
    table = write(spark, tmp_path / "table", log, name, changed(source, damaged), following=COUNT)
    found = reconcile(spark, log, name, table, limits=SMALL)
    swapped = tuple(column for column in ("key", "value", "headers", "timestamp", "timestampType"))
    different = {column for column in swapped if rows[600][column] != rows[601][column]}
    assert found.differences == (
        Difference(DifferenceKind.MISSING_IN_TABLE, 100, 101, 0),
        Difference(DifferenceKind.TWICE, 200, 201, 2),
        Difference(DifferenceKind.CONTENT, 300, 301, 1, ("value",)),
        Difference(DifferenceKind.CONTENT, 416, 417, 1, ("key", "value")),
        Difference(DifferenceKind.MISSING_IN_TABLE, 500, 501, 0),
        Difference(
            DifferenceKind.CONTENT, 600, 602, 2, tuple(column for column in found.compared if column in different)
        ),
        Difference(DifferenceKind.CONTENT, 701, 702, 1, ("value",)),
        Difference(DifferenceKind.CONTENT, 800, 801, 1, ("timestampType",)),
        Difference(DifferenceKind.CONTENT, 813, 814, 1, ("headers",)),
        Difference(DifferenceKind.MISSING_IN_TABLE, 900, 1100, 0),
        Difference(DifferenceKind.BEYOND, COUNT + 3, COUNT + 4, 1),
    )
    assert not found.equal
    assert not found.more
    error = found.error()
    assert error is not None
    assert (error.exit_code, "100" in error.message) == (15, True)
    text = shown(found)
    assert "NOT EQUAL" in text
    assert "missing in the table" in text
    assert json.loads(json.dumps(found.fields()))["differences"][1]["kind"] == "TWICE"
    few = reconcile(spark, log, name, table, limits=ComparisonLimits(bucket_offsets=64, ranges_max=2))
    assert [each.first for each in few.differences] == [100, 200]
    assert few.unseen > 0
    assert "not looked into" in shown(few)


def test_no_two_records_have_one_hash(spark: SparkSession) -> None:
    """Goal: fields cannot flow into one another. Pairs that concatenate to the same bytes, with nulls and empties."""
    shapes: list[tuple[Any, ...]] = [
        (b"ab", b"c", None),
        (b"a", b"bc", None),
        (b"abc", None, None),
        (None, b"abc", None),
        (b"abc", b"", None),
        (b"", b"abc", None),
        (None, None, None),
        (None, None, []),
        (None, b"", None),
        (b"", None, None),
        (None, None, [("a", None), ("b", None)]),
        (None, None, [("a", b"b")]),
        (None, None, [("a", b""), ("b", None)]),
        (None, None, [("a", None), ("b", b"")]),
        (None, None, [("ab", b"")]),
        (None, None, [("", b"ab")]),
        (None, None, [("a", b"b"), ("", None)]),
        (b"ab", None, []),
    ]
    frame = spark.createDataFrame(
        [(0, *shape) for shape in shapes],
        "offset bigint, key binary, value binary, headers array<struct<key: string, value: binary>>",
    )
    hashes = {row[0] for row in frame.select(row_hash(["key", "value", "headers"])).collect()}
    assert len(hashes) == len(shapes)
    assert {"key", "value", "headers", "timestamp", "timestampType"} <= set(COMPARED)


@pytest.mark.long
def test_what_the_log_no_longer_has_is_checked_by_itself(
    spark: SparkSession, log: LogSource, source: pa.Table, name: str, tmp_path: Path
) -> None:
    """Goal: a begin that retention has moved is no difference, a hole or a row twice below it is one; a declared loss
    is none, a row in it is one. The log is made to begin at 1,000, and to have leapt, for the comparison."""
    log = LateLog(log.servers)

    def holed(rows: list[Row]) -> list[Row]:
        gone = {7, *range(100, 300), *range(1200, 1300)} - {1250}
        return [*(row for row in rows if row["offset"] not in gone), rows[9]]

    table = write(spark, tmp_path / "holed", log, name, changed(source, holed), following=COUNT)
    found = reconcile(spark, log, name, table, limits=SMALL)
    assert found.differences == (
        Difference(DifferenceKind.MISSING_IN_TABLE, 7, 8, 0),
        Difference(DifferenceKind.TWICE, 9, 10, 2),
        Difference(DifferenceKind.MISSING_IN_TABLE, 100, 300, 0),
        Difference(DifferenceKind.MISSING_IN_LOG, 1250, 1251, 1),
    )
    assert not found.equal
    assert (found.log_first, found.below_rows, found.log.rows) == (1000, 1000 - 201 + 1, 400)
    assert found.gaps == (Gap(1200, 1300),)
    assert "1200 up to 1300 are a declared loss" in shown(found)
    assert "the log begins at 1000" in shown(found)


@pytest.mark.long
def test_decoded_rows_and_dead_letters_cover_the_log_once(
    spark: SparkSession, log: LogSource, source: pa.Table, name: str, tmp_path: Path
) -> None:
    """Goal: a record is a row or a dead letter, never both or neither. Every tenth is a dead letter; then one is both,
    and one neither. That values are not compared is said."""
    dead = [number for number in range(COUNT) if number % 10 == 0]
    taken = source.take([number for number in range(COUNT) if number % 10 and number != 15])
    decoded = pa.table(
        {
            "note": pa.array(["decoded"] * len(taken)),
            "_queue": pa.array([name] * len(taken)),
            **{f"_{column}": taken[column] for column in source.column_names if column not in ("value", "topic")},
        }
    )
    letters = (
        source.drop_columns(["topic"]).take([*dead, 33]).append_column("queue", pa.array([name] * (len(dead) + 1)))
    )
    table = write(spark, tmp_path / "decoded", log, name, decoded, following=COUNT)
    more = {"reason": "no JSON", "incarnation": log.facts(name).incarnation, "landedIn": str(table)}
    for column, text in more.items():
        letters = letters.append_column(column, pa.array([text] * len(letters)))
    spark.createDataFrame(letters).write.format("delta").save(str(tmp_path / "dead"))
    found = reconcile(spark, log, name, table, dead_letters=tmp_path / "dead", limits=SMALL)
    assert found.differences == (
        Difference(DifferenceKind.MISSING_IN_TABLE, 15, 16, 0),
        Difference(DifferenceKind.TWICE, 33, 34, 2),
    )
    assert found.dead_letters == len(letters)
    assert "value" not in found.compared
    assert "decoded values cannot be compared" in shown(found)


@pytest.mark.long
def test_an_upserted_table_has_the_newest_record_of_each_key(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: tombstones and replaced records are no losses, a row that should be gone is named. Keys 0 to 9 over and
    over, some deleted at last; the landing's own table is equal; then one row is stale, and one is missing."""
    records = [Record(None if number in (93, 95) else b"%d" % number, b"%d" % (number % 10)) for number in range(100)]
    publish(servers, queue, records)
    log = LogSource(tuple(servers))
    table = tmp_path / "table"
    land(spark, servers, queue, table, write="upsert")
    found = reconcile(spark, log, queue, table, write="upsert", limits=SMALL)
    assert found.equal
    assert (found.log.rows, found.next) == (8, 100)
    spark.sql(f"UPDATE delta.`{table}` SET offset = 85 WHERE offset = 99")
    found = reconcile(spark, log, queue, table, write="upsert", limits=SMALL)
    assert found.differences == (
        Difference(DifferenceKind.STALE, 85, 86, 1),
        Difference(DifferenceKind.MISSING_IN_TABLE, 99, 100, 0),
    )


@pytest.mark.long
def test_a_landing_is_equal_to_its_log_and_to_the_logs_archive(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: what the landing makes is what the log has, also when no node is there to ask. Land, compare; stop the
    node, take a row out, compare with its directory."""
    table = tmp_path / "table"
    with Cluster(1, data_dir=tmp_path / "nodes") as one:
        publish(one.servers, "q", every_kind_of_record(300), batch_records=31)
        land(spark, one.servers, "q", table)
        found = reconcile(spark, LogSource(tuple(one.servers)), "q", table)
        assert found.equal
        assert (found.log.rows, found.compared) == (300, COMPARED)
        (node,) = one.nodes.values()
        node.stop()
        spark.sql(f"DELETE FROM delta.`{table}` WHERE offset = 17")
        offline = reconcile(spark, LogSource(path=str(node.data_dir)), "q", table)
        assert offline.log == found.log
        assert offline.differences == (Difference(DifferenceKind.MISSING_IN_TABLE, 17, 18, 0),)


@pytest.mark.long
def test_what_cannot_be_compared_is_said(
    spark: SparkSession, log: LogSource, source: pa.Table, name: str, tmp_path: Path
) -> None:
    """Goal: named errors. No table, a table of something else, no position, a queue that nobody knows."""
    with pytest.raises(BadInput, match="no Delta table"):
        reconcile(spark, log, name, tmp_path / "none")
    spark.range(1).write.format("delta").save(str(tmp_path / "other"))
    with pytest.raises(BadInput, match="no landed table"):
        reconcile(spark, log, name, tmp_path / "other")
    table = write(spark, tmp_path / "table", log, name, source, following=None)
    with pytest.raises(TableOutOfStep, match="--until"):
        reconcile(spark, log, name, table)
    assert reconcile(spark, log, name, table, until="latest").equal
    with pytest.raises(NoSuchQueue):
        reconcile(spark, log, "nobody's", table)
    with pytest.raises(BadInput, match="not both"):
        LogSource(log.servers, path="archive")
    with pytest.raises(BadInput, match="where the comparison ends"):
        reconcile(spark, log, name, table, first=10, until=5)


@pytest.mark.long
def test_the_command_prints_json_and_ends_with_15_when_they_differ(
    spark: SparkSession, landed_part: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: scripts can rely on it. In this process, with the session that is there: equal, different, refused."""
    monkeypatch.setattr("mirrorlog.spark.session.any_session", lambda app: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    assert command.main([*landed_part, "--until", "90"]) == 0
    assert "NOT EQUAL" not in capsys.readouterr().out
    assert command.main([*landed_part, "--json"]) == 15
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["equal"], found["differences"][0]["first"], found["differences"][0]["next"]) == (False, 90, 100)
    assert command.main([*landed_part, "--until", "soon"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, len(captured.err.splitlines())) == ("", 1)


@pytest.fixture
def landed_part(spark: SparkSession, log: LogSource, source: pa.Table, name: str, tmp_path: Path) -> list[str]:
    """The options of a table that has 90 records and says 100."""
    table = write(spark, tmp_path / "table", log, name, source.slice(0, 90), following=100)
    return ["--servers", log.servers[0], "--queue", name, "--table", str(table)]
