"""Landing a queue in a Delta table: every record once, whenever the driver runs, dies or runs again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from mirrorlog.commitlog.body import Record
from mirrorlog.errors import MirrorlogError, NoSuchQueue
from mirrorlog.spark.errors import LandingConflict
from mirrorlog.spark.land import LandResult, append, application_id, land, read
from mirrorlog.spark.nodes import ask_nodes
from mirrorlog.testing.asking import wait_for
from tests.spark import landing_child
from tests.spark.queues import every_kind_of_record, publish

_CHILD_S = 240
_HELD_S = 60
# The JVM's own, not to be had without; and the progress.
_EXPECTED_STDERR = {"WARNING: Using incubator modules: jdk.incubator.vector", "starting Spark"}


def landed_offsets(table: Path) -> list[int]:
    """Read by delta-rs: a second implementation is the witness."""
    return sorted(DeltaTable(table).to_pyarrow_table(columns=["offset"])["offset"].to_pylist())


def transactions(table: Path) -> list[int]:
    """The versions of the application transactions in the table's log, in order of commit."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    return [action["txn"]["version"] for action in actions if "txn" in action]


def numbered(first: int, count: int) -> list[Record]:
    return [Record(b"%d" % number) for number in range(first, first + count)]


def die_landing(servers: Sequence[str], queue: str, table: Path, moment: str) -> None:
    """Land in a process of its own which is killed at `moment`; it must not get further."""
    command = [sys.executable, landing_child.__file__, ",".join(servers), queue, str(table), moment]
    child = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr


def test_a_landing_adds_each_record_once_with_the_sources_columns(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: the table is the queue. Land records of every kind; run again for nothing; publish more; land again.

    The table is read by delta-rs too, and compared with the data source.
    """
    table = tmp_path / "table"
    publish(servers, queue, every_kind_of_record(500), batch_records=60)
    assert land(spark, servers, queue, table) == LandResult(first=0, next=500, rows=500, table_version=0)
    assert land(spark, servers, queue, table) == LandResult(first=500, next=500, rows=0, table_version=0)
    assert DeltaTable(table).version() == 0
    publish(servers, queue, every_kind_of_record(200), batch_records=60)
    assert land(spark, servers, queue, table) == LandResult(first=500, next=700, rows=200, table_version=1)
    assert landed_offsets(table) == list(range(700))
    assert transactions(table) == [500, 700]
    source = spark.read.format("mirrorlog").options(
        servers=servers[0], subscribe=queue, includeHeaders="true"
    )  # fmt: skip
    landed = spark.read.format("delta").load(str(table))
    expected = source.load()
    assert landed.columns == expected.columns
    assert landed.orderBy("offset").collect() == expected.orderBy("offset").collect()


def test_a_driver_killed_after_its_commit_lands_nothing_twice(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: exactly 1,000 more. Land 300, publish 1,000, SIGKILL the driver when its commit stands, run again.

    The commit carries the offset, so the second run has nothing to add.
    """
    table = tmp_path / "table"
    publish(servers, queue, numbered(0, 300))
    land(spark, servers, queue, table)
    publish(servers, queue, numbered(300, 1000))
    die_landing(servers, queue, table, "committed")
    assert transactions(table) == [300, 1300]
    assert land(spark, servers, queue, table) == LandResult(first=1300, next=1300, rows=0, table_version=1)
    assert landed_offsets(table) == list(range(1300))


def test_a_driver_killed_before_its_commit_leaves_no_record(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: files without a commit do not count. SIGKILL the driver at its first data file, run again: each once."""
    table = tmp_path / "table"
    publish(servers, queue, numbered(0, 300))
    land(spark, servers, queue, table)
    publish(servers, queue, numbered(300, 1000))
    die_landing(servers, queue, table, "written")
    result = land(spark, servers, queue, table)
    assert (result.first, result.next, result.rows) == (300, 1300, 1000)
    assert landed_offsets(table) == list(range(1300))
    assert transactions(table) == [300, 1300]


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_a_landing_that_another_one_overtakes_adds_nothing(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: two writers in the same stretch of a queue never both win.

    Hold a landing in the middle of its write, land the same records meanwhile, let the first one go on.
    """
    table = tmp_path / "table"
    publish(servers, queue, numbered(0, 10))
    land(spark, servers, queue, table)
    publish(servers, queue, numbered(10, 10))
    facts = ask_nodes(servers, [queue])[0]
    records = read(spark, servers, facts, first=10)
    writing, go_on = tmp_path / "writing", tmp_path / "go-on"
    held = records.mapInArrow(held_until(go_on, writing), records.schema)
    ids = {"application": application_id(facts), "version": facts.next, "queue": queue}
    with ThreadPoolExecutor(1) as thread:
        overtaken = thread.submit(append, held, str(table), **ids)
        try:
            wait_for(lambda: writing.exists() or None, timeout=_HELD_S, what=lambda: "the first landing writes")
            assert land(spark, servers, queue, table).rows == 10
        finally:
            go_on.touch()
        with pytest.raises(LandingConflict, match="nothing was added"):
            overtaken.result(timeout=_HELD_S)
    assert landed_offsets(table) == list(range(20))
    assert transactions(table) == [10, 20]


def held_until(go_on: Path, writing: Path) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Passes batches on once the file `go_on` is there; says by the file `writing` that it waits."""

    def held(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        end = time.monotonic() + _HELD_S
        writing.touch()
        while not go_on.exists():
            assert time.monotonic() < end, "nobody let this landing go on"
            time.sleep(0.01)
        yield from batches

    return held


def test_an_empty_queue_makes_no_table(spark: SparkSession, servers: list[str], queue: str, tmp_path: Path) -> None:
    """Goal: nothing to do, no commit. Land a queue without records."""
    publish(servers, queue, [])
    result = land(spark, servers, queue, tmp_path / "table")
    assert (result.first, result.next, result.rows) == (0, 0, 0)
    assert not (tmp_path / "table").exists()


def test_two_queues_share_a_table_by_their_own_offsets(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: the transaction id is the queue's. Land two queues into one table, then both again."""
    other = f"{queue}-other"
    publish(servers, queue, numbered(0, 50))
    publish(servers, other, numbered(0, 20))
    for name, count in ((queue, 50), (other, 20), (queue, 0), (other, 0)):
        assert land(spark, servers, name, tmp_path).rows == count
    assert landed_offsets(tmp_path) == sorted([*range(50), *range(20)])


def test_what_stops_a_landing_is_said_and_nothing_is_added(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: named errors. An unknown queue; a table with other columns."""
    with pytest.raises(NoSuchQueue):
        land(spark, servers, "nobody's", tmp_path / "table")
    publish(servers, queue, numbered(0, 5))
    spark.range(1).write.format("delta").save(str(tmp_path / "other"))
    with pytest.raises(MirrorlogError) as refused:
        land(spark, servers, queue, tmp_path / "other")
    assert "\n" not in refused.value.message
    assert DeltaTable(tmp_path / "other").version() == 0


def test_the_command_lands_and_says_so_in_one_line(jvm: None, servers: list[str], queue: str, tmp_path: Path) -> None:
    """Goal: `python -m mirrorlog.spark.land` works by itself and is quiet. Run it as a program; then without a node."""
    publish(servers, queue, numbered(0, 40))
    command = [sys.executable, "-m", "mirrorlog.spark.land", "--queue", queue, "--to", str(tmp_path / "table")]

    def run(server: str) -> subprocess.CompletedProcess[str]:
        whole = [*command, "--servers", server]
        return subprocess.run(whole, capture_output=True, text=True, timeout=_CHILD_S, check=False)

    landed = run(servers[0])
    assert landed.returncode == 0, landed.stderr
    (line,) = landed.stdout.splitlines()
    assert "40" in line
    assert landed_offsets(tmp_path / "table") == list(range(40))
    noise = [line for line in landed.stderr.splitlines() if line.strip() and line not in _EXPECTED_STDERR]
    assert noise == []
    refused = run("127.0.0.1:1")
    assert (refused.returncode, refused.stdout) == (9, "")
    (line,) = refused.stderr.splitlines()
    assert "127.0.0.1:1" in line
