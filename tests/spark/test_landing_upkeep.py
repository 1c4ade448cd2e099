"""Upkeep: files are joined, the log shortened, rubbish goes; rows, positions and landings stay as they were."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from pyspark.sql import SparkSession

from mirrorlog.spark.errors import LandingConflict, TableBusy, TableRefused, UnsafeRetention
from mirrorlog.spark.landing import upkeep as upkeep_module
from mirrorlog.spark.landing.commit.delta_log import TableShape, commit, table_state
from mirrorlog.spark.landing.definition import Landing, Upkeep
from mirrorlog.spark.landing.tables import RAW
from mirrorlog.spark.landing.upkeep import (
    COMMITS_MAX,
    SMALL_FILES_MAX,
    SMALL_FILES_MIN,
    Duty,
    DutyDone,
    TableCare,
    TableFiles,
    TableUpkeep,
    do_duty,
    done_line,
    due,
    look,
    main,
    may_be_due,
    safe_keep_s,
)
from mirrorlog.spark.landing.upsert.staging import Staging
from mirrorlog.spark.landing.write.files import FileFormat, FileWriter
from mirrorlog.spark.landing.write.storage import KEEP_S_MIN, STEP_S_MAX, refuse_old_files
from tests.spark.upserts import ListQueue

_WAIT_S = 120
ALL = Upkeep(compact_every_s=600, checkpoint_every_s=300, vacuum_every_s=86400)
QUEUE = ListQueue.of([(b"k%d" % number, b"value %d" % number) for number in range(40_000)])


def files_of(small: int, *, commits: int = 0) -> TableFiles:
    return TableFiles(9, small + 4, 10_010, small, commits)


# --- When ---


@pytest.mark.parametrize(
    ("done_s", "seen", "expected"),
    [
        ({}, files_of(SMALL_FILES_MIN, commits=1), [Duty.COMPACT, Duty.CHECKPOINT, Duty.VACUUM]),
        ({}, files_of(SMALL_FILES_MIN - 1), [Duty.VACUUM]),
        (dict.fromkeys(Duty, 800.0), files_of(SMALL_FILES_MAX - 1, commits=COMMITS_MAX - 1), []),
        (dict.fromkeys(Duty, 800.0), files_of(SMALL_FILES_MAX, commits=COMMITS_MAX), [Duty.COMPACT, Duty.CHECKPOINT]),
        (dict.fromkeys(Duty, 400.0), files_of(SMALL_FILES_MIN, commits=1), [Duty.COMPACT, Duty.CHECKPOINT]),
        (dict.fromkeys(Duty, 401.0), files_of(SMALL_FILES_MIN, commits=1), [Duty.CHECKPOINT]),
        ({Duty.COMPACT: 900.0, Duty.CHECKPOINT: 900.0, Duty.VACUUM: -85_400.0}, files_of(9), [Duty.VACUUM]),
    ],
)
def test_a_duty_is_due_when_its_time_has_come_or_too_much_is_there(
    done_s: dict[Duty, float], seen: TableFiles, expected: list[Duty]
) -> None:
    """Goal: neither a compaction per step nor a log without end. At 1,000 s; tables just below and at each limit."""
    assert due(ALL, done_s, 1_000.0, seen) == expected


def test_what_has_no_time_is_not_done_and_not_looked_for() -> None:
    """Goal: upkeep is asked for, not imposed. No duty, one duty; the look at the files is rare."""
    full = files_of(SMALL_FILES_MAX, commits=COMMITS_MAX)
    assert due(Upkeep(), {}, 0.0, full) == []
    assert not may_be_due(Upkeep(), 0.0, looked_s=None)
    only = Upkeep(checkpoint_every_s=300)
    assert due(only, {}, 0.0, full) == [Duty.CHECKPOINT]
    assert may_be_due(only, 100.0, looked_s=None)
    assert not may_be_due(only, 159.0, looked_s=100.0)
    assert may_be_due(only, 160.0, looked_s=100.0)
    assert may_be_due(Upkeep(compact_every_s=5), 105.0, looked_s=100.0)


def test_a_retention_that_a_running_step_could_outlive_is_refused() -> None:
    """Goal: VACUUM never takes a file that is about to be committed. The limits of both sides fit together."""
    assert safe_keep_s(KEEP_S_MIN) == KEEP_S_MIN
    with pytest.raises(UnsafeRetention, match="24 hours"):
        safe_keep_s(KEEP_S_MIN - 1)
    assert STEP_S_MAX * 2 <= KEEP_S_MIN
    now_ms = 10**12
    limit_ms = int(STEP_S_MAX * 1000)
    refuse_old_files([], now_ms=now_ms)
    refuse_old_files([now_ms, now_ms - limit_ms], now_ms=now_ms)
    with pytest.raises(LandingConflict, match="nothing was added"):
        refuse_old_files([now_ms, now_ms - limit_ms - 1], now_ms=now_ms)


# --- The service's side, without Spark ---


def landed(table: str, **keys: object) -> Landing:
    return Landing(name="l", table=table, servers=("a:1",), queues=("q",), upkeep=ALL, **keys)  # type: ignore[arg-type]


def test_upkeep_goes_on_after_an_error_and_leaves_a_busy_table_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one bad table holds nothing up. Duties that fail, are busy, succeed; the table and its dead letters."""
    calls: list[tuple[str, Duty]] = []
    failing: dict[tuple[str, Duty], Exception] = {
        ("/t", Duty.COMPACT): TableBusy("others commit"),
        ("/t", Duty.CHECKPOINT): TableRefused("no"),
    }

    def done_or_failed(spark: object, care: TableCare, duty: Duty) -> DutyDone:
        calls.append((care.table, duty))
        if (care.table, duty) in failing:
            raise failing[care.table, duty]
        return DutyDone(care.table, duty, 2, 1, 10, 10, 0.1)

    now = [0.0]
    told: list[tuple[str, Duty]] = []
    monkeypatch.setattr(upkeep_module, "do_duty", done_or_failed)
    monkeypatch.setattr(upkeep_module, "look", lambda *_, **__: files_of(SMALL_FILES_MIN, commits=1))
    upkeep = TableUpkeep(None, on_done=lambda _, done: told.append((done.table, done.duty)), now=lambda: now[0])  # type: ignore[arg-type]
    landing = landed("/t", dead_letters="/dead")
    with pytest.raises(TableRefused):
        upkeep(landing)
    assert calls == [(table, duty) for table in ("/t", "/dead") for duty in Duty]
    assert told == [("/t", Duty.VACUUM), *(("/dead", duty) for duty in Duty)]
    calls.clear()
    upkeep(landing)
    assert calls == [], "not looked at again so soon"
    now[0] = 60.0
    upkeep(landing)
    assert calls == [("/t", Duty.COMPACT)], "the busy one is tried again; what failed waits for its time"
    failing.clear()
    calls.clear()
    now[0] = 300.0
    upkeep(landing)
    assert calls == [("/t", Duty.COMPACT), ("/t", Duty.CHECKPOINT), ("/dead", Duty.CHECKPOINT)]


def test_a_table_that_is_not_there_yet_is_no_error_and_a_short_retention_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a landing without records, or without dead letters, is not told as failed. No table; a retention of 1 h."""
    monkeypatch.setattr(upkeep_module, "look", lambda *_, **__: TableFiles(-1))
    landing = landed("/t", dead_letters="/dead")
    upkeep = TableUpkeep(None)  # type: ignore[arg-type]
    upkeep(landing)
    with pytest.raises(UnsafeRetention):
        upkeep(replace(landing, upkeep=replace(ALL, vacuum_keep_s=3_600)))
    upkeep(replace(landing, upkeep=Upkeep(compact_every_s=1, vacuum_keep_s=3_600)))


def test_the_command_refuses_what_cannot_be_right_before_it_starts_spark(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: an answer at once, in one line. No duty; a short retention; an unknown place; nonsense."""
    assert main(["--table", "/t"]) == 2
    assert "nothing to do" in capsys.readouterr().err
    assert main(["--table", "/t", "--vacuum", "--keep-hours", "1"]) == 2
    assert "too short" in capsys.readouterr().err
    assert main(["--table", "ftp://t", "--compact"]) == 2
    with pytest.raises(SystemExit):
        main(["--table", "/t", "--compact", "--target-mib", "0"])
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--compact --checkpoint --vacuum" in capsys.readouterr().out


def test_what_was_done_is_told_as_a_line_and_as_json() -> None:
    """Goal: numbers for people and for programs. A duty."""
    done = DutyDone("/t", Duty.COMPACT, 1_000, 3, 3 * 2**20, 2**20, 4.2)
    assert done_line(done) == "/t: compact: 1,000 data files, now 3 (3.0 MiB, now 1.0), 4.2 s"
    told = json.loads(json.dumps(done.as_json()))
    assert (told["duty"], told["files_before"], told["files_after"], told["seconds"]) == ("compact", 1_000, 3, 4.2)


# --- Tables ---


def compact(spark: SparkSession, table: str, **keys: tuple[str, ...]) -> DutyDone:
    return do_duty(spark, TableCare(table=table, target_bytes=2**22, **keys), Duty.COMPACT)


def checkpoint(spark: SparkSession, table: str) -> DutyDone:
    return do_duty(spark, TableCare(table=table), Duty.CHECKPOINT)


def vacuum(spark: SparkSession, table: str, *, keep_s: float = KEEP_S_MIN) -> DutyDone:
    return do_duty(spark, TableCare(table=table, keep_s=keep_s), Duty.VACUUM)


def rows(first: int, following: int) -> pa.Table:
    return pa.Table.from_batches([QUEUE.rows(first, following)])


def append_by_delta_rs(table: Path | DeltaTable, first: int, following: int) -> None:
    """As quick as an append can be, with the position of a landing's commit. An open table is not read anew."""
    ids = QUEUE.ids
    sets = [Transaction(ids.offset, following), Transaction(ids.epoch(0), following // 1_000)]
    write_deltalake(
        table, rows(first, following), mode="append", commit_properties=CommitProperties(app_transactions=sets)
    )


def append_by_commit(spark: SparkSession, table: str, following: int) -> int:
    """A landing's own append, from where the table stands."""
    ids = QUEUE.ids
    seen = table_state(spark, table, [ids.offset, ids.epoch(0), ids.fence])
    first = seen.versions[ids.offset] or 0
    with FileWriter(FileFormat(table), 0) as writer:
        writer.write(QUEUE.rows(first, following))
        files = writer.finish()
    shape = TableShape(RAW) if seen.version is None else None
    sets = {ids.offset: following, ids.epoch(0): following // 1_000}
    return commit(spark, table, files, seen=seen, sets=sets, note={}, shape=shape)


def offsets(table: str, version: int | None = None) -> list[int]:
    found = DeltaTable(table, version=version).to_pyarrow_table(columns=["offset"])["offset"].to_pylist()
    return sorted(found)


def position(spark: SparkSession, table: str) -> tuple[int | None, int | None]:
    state = table_state(spark, table, [QUEUE.ids.offset, QUEUE.ids.epoch(0)])
    return state.versions[QUEUE.ids.offset], state.versions[QUEUE.ids.epoch(0)]


def log_files(table: Path) -> int:
    return len(list((table / "_delta_log").glob("*.json")))


def made_old(paths: Iterator[Path], days: int) -> None:
    for path in paths:
        then = path.stat().st_mtime - days * 86_400
        os.utime(path, (then, then))


@pytest.mark.slow
def test_a_thousand_small_appends_become_few_files_and_nothing_else_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: the proof of upkeep. 1,000 appends with positions, the last 3 by a landing's own commit; compaction,
    checkpoint, VACUUM; then each row once, few files and log files, the position, versions within the retention, and a
    table beside it; and the landing goes on.
    """
    table, name = tmp_path / "table", str(tmp_path / "table")
    other = tmp_path / "other"
    write_deltalake(other, pa.table({"n": [1]}))
    untouched = sorted(other.rglob("*"))
    append_by_delta_rs(table, 0, 20)
    opened = DeltaTable(table)
    for number in range(1, 997):
        append_by_delta_rs(opened, number * 20, number * 20 + 20)
    for number in range(998, 1_001):
        append_by_commit(spark, name, number * 20)
    assert (offsets(name), position(spark, name)) == (list(range(20_000)), (20_000, 20))
    rubbish = table / "part-of-a-dead-task.parquet"
    rubbish.write_bytes(b"x")
    fresh = table / "part-of-a-running-task.parquet"
    fresh.write_bytes(b"x")
    made_old(iter([rubbish]), 30)
    # As if most of it had been landed long ago: Delta keeps log files by their age.
    made_old((table / "_delta_log" / f"{number:020d}.json" for number in range(900)), 60)

    logs_before = log_files(table)
    done = compact(spark, name)
    assert (done.files_before, done.files_after) == (1_000, 1)
    assert done.bytes_after < done.bytes_before
    # Delta writes a checkpoint itself now and then, and cleans up with it: some log files may be gone by now.
    shortened = checkpoint(spark, name)
    assert (logs_before, log_files(table) < 200) == (1_000, True)
    assert shortened.files_after <= shortened.files_before + 2
    assert look(spark, name, target_bytes=2**22).commits_since_checkpoint == 0

    kept = vacuum(spark, name)
    assert kept.files_before - kept.files_after == 1, "rubbish of a dead task, and nothing younger than the retention"
    assert (rubbish.exists(), fresh.exists()) == (False, True)
    assert offsets(name, 990) == list(range(19_820)), "versions within the retention can be read"
    assert vacuum(spark, name, keep_s=0).files_after == 1, "without one only what the table has is left"

    assert (offsets(name), position(spark, name)) == (list(range(20_000)), (20_000, 20))
    assert spark.read.format("delta").load(name).count() == 20_000
    append_by_commit(spark, name, 20_100)
    assert (offsets(name), position(spark, name)) == (list(range(20_100)), (20_100, 20))
    assert sorted(other.rglob("*")) == untouched


@pytest.mark.long
def test_landings_and_compactions_at_once_lose_nothing_and_none_fails(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: upkeep and landing do not meet. A landing appends 8 times while compaction, checkpoint and VACUUM run over
    and over.
    """
    name = str(tmp_path / "table")
    append_by_commit(spark, name, 10)
    ended = threading.Event()

    def land() -> None:
        try:
            for number in range(2, 10):
                append_by_commit(spark, name, number * 10)
        finally:
            ended.set()

    with ThreadPoolExecutor(1) as thread:
        landing = thread.submit(land)
        end = time.monotonic() + _WAIT_S
        while not ended.is_set():
            assert time.monotonic() < end
            compact(spark, name)
            checkpoint(spark, name)
            vacuum(spark, name)
        landing.result(timeout=_WAIT_S)
    assert (offsets(name), position(spark, name)) == (list(range(90)), (90, 0))
    assert compact(spark, name).files_after == 1
    assert offsets(name) == list(range(90))


@pytest.mark.long
def test_partitions_z_order_and_clusters_are_kept_apart_and_in_order(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: compaction per partition, with Z-order, and with liquid clustering. Rows and positions stay."""
    parts, name = tmp_path / "parts`", str(tmp_path / "parts`")
    for number in range(4):
        batch = rows(number * 20, number * 20 + 20).append_column("day", pa.array(["a", "b"] * 10))
        sets = [Transaction(QUEUE.ids.offset, number * 20 + 20)]
        properties = CommitProperties(app_transactions=sets)
        write_deltalake(parts, batch, mode="append", partition_by=["day"], commit_properties=properties)
    done = compact(spark, name, zorder_by=("offset",))
    assert (done.files_before, done.files_after) == (8, 2)
    assert offsets(name) == list(range(80))
    plain = str(tmp_path / "plain")
    for number in range(1, 4):
        append_by_commit(spark, plain, number * 20)
    done = compact(spark, plain, cluster_by=("offset",))
    assert (done.files_before, done.files_after) == (3, 1)
    (detail,) = spark.sql(f"DESCRIBE DETAIL delta.`{plain}`").collect()
    assert list(detail.clusteringColumns) == ["offset"]
    append_by_commit(spark, plain, 80)
    assert compact(spark, plain, cluster_by=("offset",)).files_after <= 2
    assert (offsets(plain), position(spark, plain)) == (list(range(80)), (80, 0))


@pytest.mark.long
def test_tables_that_are_not_ours_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: a mistyped path tidies nobody's table. No table; one without a landing; one that forgets positions."""
    with pytest.raises(TableRefused, match="no Delta table"):
        compact(spark, str(tmp_path / "none"))
    write_deltalake(tmp_path / "other", pa.table({"n": [1]}))
    for duty in (checkpoint, vacuum):
        with pytest.raises(TableRefused, match="not ours"):
            duty(spark, str(tmp_path / "other"))
    assert DeltaTable(tmp_path / "other").version() == 0
    forgets = str(tmp_path / "forgets")
    append_by_commit(spark, forgets, 10)
    property_ = "'delta.setTransactionRetentionDuration' = 'interval 1 hour'"
    spark.sql(f"ALTER TABLE delta.`{forgets}` SET TBLPROPERTIES ({property_})")
    with pytest.raises(TableRefused, match="forgets positions"):
        checkpoint(spark, forgets)


@pytest.mark.long
def test_vacuum_removes_staging_that_nobody_came_back_for(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: dead upserts cost no space for ever. An old staging folder and one at work."""
    name = str(tmp_path / "table")
    append_by_commit(spark, name, 10)
    old, new = Staging.new(), Staging.new()
    for folder in (old, new):
        Path(folder.root(name)).mkdir(parents=True)
        (Path(folder.root(name)) / "part.parquet").touch()
    made_old(iter([Path(old.root(name)) / "part.parquet", Path(old.root(name))]), 3)
    vacuum(spark, name)
    assert (old.exists(spark, name), new.exists(spark, name)) == (False, True)


@pytest.mark.long
def test_the_command_tidies_a_table(jvm: None, tmp_path: Path) -> None:
    """Goal: by hand, with numbers for programs and nothing else on stdout. All duties, in a program of its own."""
    import subprocess
    import sys

    for number in range(3):
        append_by_delta_rs(tmp_path / "table", number * 20, number * 20 + 20)
    command = [sys.executable, "-m", "mirrorlog.spark.landing.upkeep", "--table", str(tmp_path / "table")]
    run = subprocess.run(
        [*command, "--compact", "--checkpoint", "--vacuum", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert [(each["duty"], each["files_before"], each["files_after"]) for each in found] == [
        ("compact", 3, 1),
        ("checkpoint", found[1]["files_before"], found[1]["files_after"]),
        ("vacuum", 4, 4),
    ]
    assert found[1]["files_after"] > found[1]["files_before"], "the checkpoint; nothing in the log is old"
