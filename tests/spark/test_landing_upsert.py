"""Upserts: the table is the latest record of each key of the log, whoever dies and whoever else lands."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from mirrorlog.spark.errors import LandingConflict, RecordWithoutKey, SparkFailed, TableOutOfStep
from mirrorlog.spark.landing.commit.delta_log import TableShape, commit
from mirrorlog.spark.landing.tables import RAW
from mirrorlog.spark.landing.upsert.positions import UpsertIds, announcement, landed_epoch, passage
from mirrorlog.spark.landing.upsert.staging import Staging, remove_old
from mirrorlog.spark.landing.upsert.table import (
    PROPERTIES,
    RAW_COLUMNS,
    TOMBSTONE,
    MergeMoment,
    QueueMove,
    _Step,
    merge_step,
    refuse_keyless,
    shut_out,
    staged_rows,
)
from mirrorlog.spark.landing.write.files import FileFormat, FileWriter
from mirrorlog.spark.plan import QueueFacts, QueueSpan
from mirrorlog.testing.asking import wait_for
from tests.spark import upserts
from tests.spark.upserts import ListQueue, in_table, land, latest, move, sample, seen_of, stage

_CHILD_S = 240
_HELD_S = 60

IDS = UpsertIds(QueueFacts("c", "q", "i", "log-1", 1, 0, 100))


# --- Positions ---


def after(versions: dict[str, int | None], sets: dict[str, int]) -> dict[str, int | None]:
    return {**versions, **sets}


NOTHING: dict[str, int | None] = dict.fromkeys(IDS)


def test_the_epoch_to_resume_with_is_that_of_the_last_merged_record_wherever_a_driver_died() -> None:
    """Goal: an announced merge counts once it has happened, not before. Walk through two steps, look at each commit."""
    announced = after(NOTHING, announcement(NOTHING, IDS, first=0, following=50, epoch=3, staging=7))
    assert (announced[IDS.offset], landed_epoch(announced, IDS)) == (0, None)
    merged = after(announced, {IDS.offset: 50})
    assert landed_epoch(merged, IDS) == 3
    again = after(merged, announcement(merged, IDS, first=50, following=90, epoch=5, staging=8))
    assert (again[IDS.offset], landed_epoch(again, IDS), again[IDS.epoch(50)]) == (50, 3, 3)
    # Nobody merged it; another driver announces another range.
    other = after(again, announcement(again, IDS, first=50, following=70, epoch=4, staging=9))
    assert (other[IDS.offset], landed_epoch(other, IDS)) == (50, 3)
    assert landed_epoch(after(other, {IDS.offset: 70}), IDS) == 4


def test_the_epoch_to_resume_with_is_found_in_the_log_in_which_the_record_stands() -> None:
    """Goal: a merge over a border counts as one before it, and a table from before a move goes on. Announce over the
    border, merge, and go on; a driver that knows the queue in its first log alone did the first step."""
    ids = UpsertIds(replace(IDS.facts, log_id="log-2", spans=(QueueSpan("log-1", 0), QueueSpan("log-2", 60))))
    nothing: dict[str, int | None] = dict.fromkeys(ids)
    merged = after(nothing, {**announcement(NOTHING, IDS, first=0, following=50, epoch=3, staging=7), IDS.offset: 50})
    assert landed_epoch(merged, ids) == 3
    announced = after(merged, announcement(merged, ids, first=50, following=90, epoch=1, staging=8))
    assert (announced[ids.offset], landed_epoch(announced, ids)) == (50, 3)
    over = after(announced, {ids.offset: 90})
    assert landed_epoch(over, ids) == 1
    assert {name for name in over if name.endswith(("log-1", "log-2"))} == {
        f"mirrorlog:c:i:{kind}:{log}" for kind in ("log", "pending") for log in ("log-1", "log-2")
    }
    again = after(over, announcement(over, ids, first=90, following=95, epoch=2, staging=9))
    assert (landed_epoch(again, ids), landed_epoch(after(again, {ids.offset: 95}), ids)) == (1, 2)


def test_a_range_that_ends_in_a_gap_is_announced_without_an_epoch() -> None:
    """Goal: no epoch is believed of a record that is none. Records and then a gap, after a merge and from the begin."""
    merged = after(
        after(NOTHING, announcement(NOTHING, IDS, first=0, following=50, epoch=3, staging=7)), {IDS.offset: 50}
    )
    for start, epoch in ((merged, 3), (NOTHING, None)):
        first = start[IDS.offset] or 0
        announced = after(start, announcement(start, IDS, first=first, following=90, epoch=None, staging=8))
        assert (announced[IDS.offset], landed_epoch(announced, IDS)) == (first, epoch)
        assert landed_epoch(after(announced, {IDS.offset: 90}), IDS) == epoch


def test_a_range_without_rows_moves_the_position_with_its_epoch() -> None:
    """Goal: what is passed over in one commit is as exact. After a merge, after an announcement, without a record."""
    merged = after(
        after(NOTHING, announcement(NOTHING, IDS, first=0, following=50, epoch=3, staging=7)), {IDS.offset: 50}
    )
    announced = after(merged, announcement(merged, IDS, first=50, following=90, epoch=5, staging=8))
    for start in (merged, announced):
        moved = after(start, passage(start, IDS, first=50, following=60, epoch=4))
        assert (moved[IDS.offset], landed_epoch(moved, IDS)) == (60, 4)
        skipped = after(start, passage(start, IDS, first=50, following=60, epoch=None))
        assert (skipped[IDS.offset], landed_epoch(skipped, IDS)) == (60, 3)
    from_nothing = passage(NOTHING, IDS, first=50, following=60, epoch=None)
    assert from_nothing == {IDS.begin: 50, IDS.offset: 60, IDS.pending: 0}


def test_where_a_table_begins_is_announced_once() -> None:
    """Goal: the first announcement says it, also when its merge never happens. Announce twice; look at the ids."""
    first = announcement(NOTHING, IDS, first=30, following=50, epoch=3, staging=7)
    announced = after(NOTHING, first)
    assert announced[IDS.begin] == 30
    assert IDS.begin not in announcement(announced, IDS, first=30, following=60, epoch=3, staging=8)
    older = after(NOTHING, {IDS.offset: 40})
    assert IDS.begin not in announcement(older, IDS, first=40, following=60, epoch=3, staging=8)
    assert {IDS.begin, IDS.dead} <= {*IDS}


# --- Rows ---


def test_rows_without_a_key_are_told_apart_and_tombstones_flagged() -> None:
    """Goal: what is staged has a key; nothing is lost. Rows with and without key, value, both; one and two columns."""
    rows = pa.RecordBatch.from_pydict(
        {"key": [b"a", None, b"", None], "value": [b"1", b"2", None, None], "n": [1, 2, None, 4]}
    )
    staged, with_key = staged_rows(rows, rows.column("value"), ["key"])
    assert with_key.to_pylist() == [True, False, True, False]
    assert staged.column("key").to_pylist() == [b"a", b""]
    assert staged.column(TOMBSTONE).to_pylist() == [False, True]
    staged, with_key = staged_rows(rows, rows.column("value"), ["key", "n"])
    assert with_key.to_pylist() == [True, False, False, False]
    with pytest.raises(RecordWithoutKey, match="'q': record 2 has no key"):
        refuse_keyless(rows, with_key, queue="q", offset="n")
    refuse_keyless(rows.slice(0, 1), with_key.slice(0, 1), queue="q", offset="n")
    empty, none = staged_rows(rows.slice(0, 0), rows.slice(0, 0).column("value"), ["key"])
    assert (empty.num_rows, len(none)) == (0, 0)


# --- Tables ---


@pytest.mark.long
def test_the_table_is_the_latest_of_each_key_after_every_step_and_tells_its_changes(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: table = latest per key of the log, at every step; the change feed leads from one to the next.

    Random records and steps; each step once more, planned from what it was planned from, or from before that.
    """
    seed = random.randrange(10**6)
    print("seed", seed)
    chosen = random.Random(seed)
    records = sample(600, seed=seed)
    queue, table = ListQueue.of(records), str(tmp_path / "table")
    old = None
    for until in upserts.cuts(len(records), 3, chosen):
        seen = seen_of(spark, table, [queue])
        done = land(spark, table, queue, until, seen=seen)
        assert in_table(table) == latest(records[:until])
        state = seen_of(spark, table, [queue])
        assert (state.versions[queue.ids.offset], landed_epoch(state.versions, queue.ids)) == (
            until,
            (until - 1) // upserts.EPOCH_RECORDS,
        )
        assert done.table_version == state.version
        with pytest.raises(LandingConflict, match="nothing was added"):
            land(spark, table, queue, until, seen=old or seen)
        old = seen
    assert DeltaTable(table).version() == 5, "two commits a step, and none of those that were refused"
    assert in_table(table) == latest(records)
    assert not list((tmp_path / "table" / "_staging").iterdir())
    changes = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(table)
    followed: dict[bytes, bytes] = {}
    for row in changes.where("_change_type != 'update_preimage'").orderBy("_commit_version").collect():
        key = bytes(row.key)
        if row._change_type == "delete":
            del followed[key]
        else:
            followed[key] = bytes(row.value)
    assert followed == {key: value for key, (_, value) in latest(records).items()}
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None, "the user's session is as it was"


@pytest.mark.long
def test_an_older_range_that_is_merged_again_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: neither an older value nor a deleted key comes back. Merge two ranges, then both again as one.

    The last one is what an overtaken driver with a longer range would do, had nothing else kept it out.
    """
    records = [(b"gone", b"1"), *sample(98), (b"kept", b"old"), (b"gone", None), (b"kept", b"new"), *sample(48, seed=3)]
    queue, table = ListQueue.of(records), str(tmp_path / "table")
    land(spark, table, queue, 100)
    land(spark, table, queue, 149)
    seen = seen_of(spark, table, [queue])
    staging = Staging.new()
    files = stage(table, queue.rows(0, 150), staging)
    # Its end is that of a gap, as a landing that skips a loss has it: its rows count all the same.
    whole = replace(move(queue, seen, 150), first=0, next=170, epoch=None)
    done = merge_step(
        spark, table, staging, files, seen=seen, moves=[whole], columns=RAW_COLUMNS, note={}
    )  # fmt: skip
    assert in_table(table) == latest(records)
    assert b"gone" not in in_table(table)
    state = seen_of(spark, table, [queue])
    assert (state.versions[queue.ids.offset], landed_epoch(state.versions, queue.ids)) == (170, 1)
    assert done.inserted + done.updated + done.deleted <= 1


@pytest.mark.long
def test_a_landing_that_stalled_before_its_merge_is_shut_out(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: after an announcement no merge but its own happens. Hold a landing between its announcement and its merge,
    land a longer range of newer epochs meanwhile, let the first one go on.
    """
    records = sample(400)
    queue, table = ListQueue.of(records), str(tmp_path / "table")
    reached, go_on = threading.Event(), threading.Event()

    def on_moment(moment: MergeMoment) -> None:
        if moment is MergeMoment.ANNOUNCED:
            reached.set()
            assert go_on.wait(_HELD_S)

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(land, spark, table, queue, 120, on_moment=on_moment)
        try:
            assert reached.wait(_HELD_S)
            state = seen_of(spark, table, [queue])
            assert (state.versions[queue.ids.offset], landed_epoch(state.versions, queue.ids)) == (0, None)
            # Announced and not merged: as the next driver finds it, and as one that dies at the same place leaves it.
            with pytest.raises(Died):
                land(spark, table, queue, 250, on_moment=die)
            assert in_table(table) == {}
        finally:
            go_on.set()
        with pytest.raises(LandingConflict, match="nothing was added"):
            first.result(timeout=_HELD_S)
    assert in_table(table) == {}
    land(spark, table, queue, 400)
    assert in_table(table) == latest(records)
    state = seen_of(spark, table, [queue])
    assert (state.versions[queue.ids.offset], landed_epoch(state.versions, queue.ids)) == (400, 3)


class Died(Exception):
    """A driver's death, as far as one process can show it."""


def die(moment: MergeMoment) -> None:
    raise Died(moment)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")
def test_a_merge_that_runs_while_another_landing_announces_is_refused_by_delta(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the announcement alone shuts out a merge that has its rows already. Hold a merge in the middle, with rows
    that need no file any more; announce another range; let it go on.
    """
    queue, table = ListQueue.of(sample(300)), str(tmp_path / "table")
    land(spark, table, queue, 50)
    merging, go_on = tmp_path / "merging", tmp_path / "go-on"
    latest_rows = _Step._latest

    def held_rows(self: _Step, session: SparkSession, *rest: Any) -> DataFrame:
        rows = latest_rows(self, session, *rest)
        kept = session.createDataFrame(rows.collect(), rows.schema)
        return kept.mapInArrow(upserts.held_until(go_on, merging), rows.schema)

    with ThreadPoolExecutor(1) as thread, monkeypatch.context() as patch:
        patch.setattr(_Step, "_latest", held_rows)
        first = thread.submit(land, spark, table, queue, 120)
        try:
            wait_for(lambda: merging.exists() or None, timeout=_HELD_S, what=lambda: "the merge runs")
            with pytest.raises(Died):
                land(spark, table, queue, 200, on_moment=die)
        finally:
            go_on.touch()
        with pytest.raises(LandingConflict, match="its log has another commit"):
            first.result(timeout=_HELD_S)
    assert in_table(table) == latest(queue.records[:50])
    land(spark, table, queue, 300)
    assert in_table(table) == latest(queue.records)


@pytest.mark.long
def test_a_driver_killed_between_announcement_and_merge_has_changed_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: table and position as before, and the next landing takes all of it, and the dead one's folder away.

    SIGKILL a program of its own there; then one right after its merge has only its folder left behind, as here.
    """
    table = str(tmp_path / "table")
    queue = ListQueue.of(sample(2_000))
    land(spark, table, queue, 300)
    command = [sys.executable, upserts.__file__, table, "1500", MergeMoment.ANNOUNCED]
    child = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_S, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    folders = list((tmp_path / "table" / "_staging").iterdir())
    assert len(folders) == 1
    assert list(folders[0].glob("*.parquet"))
    state = seen_of(spark, table, [queue])
    assert (state.versions[queue.ids.offset], landed_epoch(state.versions, queue.ids)) == (300, 2)
    assert in_table(table) == latest(queue.records[:300])
    land(spark, table, queue, 2_000)
    assert in_table(table) == latest(queue.records)
    assert not list((tmp_path / "table" / "_staging").iterdir())


@pytest.mark.long
def test_two_queues_have_keys_of_their_own_in_one_step_and_one_of_them_may_have_no_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: each queue is merged by its own offsets, with its own position. Two queues with the same keys in one step
    that dies between them; then the rest; then a range in which nothing has a row.
    """
    orders, returns = ListQueue.of(sample(200)), ListQueue.of(sample(90, seed=5), "returns", "i2")
    table = str(tmp_path / "table")

    def step(on_moment: Callable[[MergeMoment], None] = lambda moment: None) -> None:
        seen = seen_of(spark, table, [orders, returns])
        moves = [move(queue, seen, len(queue.records)) for queue in (orders, returns)]
        staging = Staging.new()
        files = [file for each, queue in zip(moves, (orders, returns), strict=True)
                 for file in stage(table, queue.rows(each.first, each.next), staging)]  # fmt: skip
        shape = TableShape(RAW, properties=PROPERTIES) if seen.version is None else None
        merge_step(
            spark, table, staging, files, seen=seen, moves=moves, columns=RAW_COLUMNS, note={}, shape=shape,
            on_moment=on_moment,
        )  # fmt: skip

    reached = count()
    with pytest.raises(Died):
        step(lambda moment: die(moment) if next(reached) == 2 else None)
    assert (in_table(table), in_table(table, "returns")) == (latest(orders.records), {})
    seen = seen_of(spark, table, [orders, returns])
    assert [seen.versions[queue.ids.offset] for queue in (orders, returns)] == [200, 0]
    land(spark, table, returns, 90)
    assert (in_table(table), in_table(table, "returns")) == (latest(orders.records), latest(returns.records))
    seen = seen_of(spark, table, [orders])
    passed = replace(move(orders, seen, 201), next=230, epoch=2)
    merge_step(spark, table, Staging.new(), (), seen=seen, moves=[passed], columns=RAW_COLUMNS, note={})
    seen = seen_of(spark, table, [orders])
    assert (seen.versions[orders.ids.offset], landed_epoch(seen.versions, orders.ids)) == (230, 2)
    assert in_table(table) == latest(orders.records)


@pytest.mark.long
def test_rows_that_cannot_be_placed_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: no silent mixing. A queue made anew under its name; a staged row without key."""
    queue, table = ListQueue.of(sample(60)), str(tmp_path / "table")
    land(spark, table, queue, 60)
    anew = ListQueue.of(sample(30, seed=9), incarnation="i9")
    with pytest.raises(TableOutOfStep, match="rows of another queue 'orders'"):
        land(spark, table, anew, 30)
    seen = seen_of(spark, table, [queue])
    staging = Staging.new()
    rows = queue.rows(0, 2)
    keyless = rows.set_column(0, "key", pa.array([None, b"a"], pa.binary()))
    with FileWriter(FileFormat(staging.root(table)), 0) as writer:
        writer.write(keyless.append_column(TOMBSTONE, pa.array([False, False])))
        files = writer.finish()
    with pytest.raises(SparkFailed, match="without key"):
        merge_step(
            spark, table, staging, files, seen=seen, moves=[move(queue, seen, 62)], columns=RAW_COLUMNS, note={}
        )  # fmt: skip
    assert in_table(table) == latest(queue.records)
    assert not list((tmp_path / "table" / "_staging").iterdir())


def test_a_spark_error_while_looking_for_an_older_queue_is_named(tmp_path: Path) -> None:
    """Goal: it ends a step, not the service. Let the table's reader fail where the frame is made."""

    class Broken:
        @property
        def read(self) -> Any:
            raise AnalysisException("the table cannot be read")

    queue = ListQueue.of(sample(3))
    spark: Any = Broken()
    step = _Step(spark, str(tmp_path), Staging.new(), (), RAW_COLUMNS, {}, lambda moment: None)
    with pytest.raises(SparkFailed, match="the table cannot be read"):
        step._refuse_older_queue(QueueMove(queue=queue.name, ids=queue.ids, first=0, next=3, epoch=0))


@pytest.mark.long
def test_a_column_that_is_added_is_there_before_the_merge(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: evolution as for appends. Rows of a wider schema into a table without the column; older rows have null."""
    queue, table = ListQueue.of([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]), str(tmp_path / "table")
    land(spark, table, queue, 2)
    seen = seen_of(spark, table, [queue])
    staging = Staging.new()
    rows = queue.rows(2, 3)
    wider = rows.append_column("colour", pa.array(["red"]))
    with FileWriter(FileFormat(staging.root(table)), 0) as writer:
        writer.write(staged_rows(wider, wider.column("value"), ["key"])[0])
        files = writer.finish()
    shape = replace(seen.shape, schema=StructType([*seen.shape.schema.fields, StructField("colour", StringType())]))
    merge_step(
        spark, table, staging, files, seen=seen, moves=[move(queue, seen, 3)], columns=RAW_COLUMNS, note={}, shape=shape
    )  # fmt: skip
    found = {row["key"]: row["colour"] for row in DeltaTable(table).to_pyarrow_table().to_pylist()}
    assert found == {b"a": "red", b"b": None}


@pytest.mark.long
def test_who_raises_a_fence_shuts_an_announced_merge_out(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: dead letters can be taken back without a merge coming after all. Announce, raise the fence, merge."""
    queue, table = ListQueue.of(sample(120)), str(tmp_path / "table")
    land(spark, table, queue, 50)

    def raise_fence(moment: MergeMoment) -> None:
        if moment is MergeMoment.ANNOUNCED:
            seen = seen_of(spark, table, [queue])
            commit(
                spark, table, seen=seen, sets={queue.ids.fence: 1, **shut_out(spark, table, seen, queue.ids)}, note={}
            )

    with pytest.raises(LandingConflict, match="took the staged rows away"):
        land(spark, table, queue, 120, on_moment=raise_fence)
    assert in_table(table) == latest(queue.records[:50])


def test_folders_that_nobody_names_are_removed_by_age(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: what a death before the announcement left goes, what is at work stays. An old folder and a new one."""
    table = str(tmp_path / "table")
    assert remove_old(spark, table, before_ms=10**15) == []
    old, new = Staging.new(), Staging.new()
    for folder, modified_s in ((old, 1_000), (new, 5_000)):
        path = Path(folder.root(table))
        path.mkdir(parents=True)
        (path / "part.parquet").touch()
        for each in (path / "part.parquet", path):
            os.utime(each, (modified_s, modified_s))
    assert remove_old(spark, table, before_ms=3_000_000) == [Path(old.name).name]
    assert (old.exists(spark, table), new.exists(spark, table)) == (False, True)
