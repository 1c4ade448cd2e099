"""A step's ranges are shared out to tasks whole and once, and a plan is bounded fairly over its queues."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mirrorlog.client import ConsumedBatch
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import LogCorrupt
from mirrorlog.spark.errors import StorageFailed
from mirrorlog.spark.landing import tasks
from mirrorlog.spark.landing.dead_letters import DeadLettersOf
from mirrorlog.spark.landing.planning import QueuePlan, limited
from mirrorlog.spark.landing.tasks import RECORDS_PER_TASK_MIN, TaskWork, tasks_for, write_range
from mirrorlog.spark.landing.upsert.table import RAW_COLUMNS
from mirrorlog.spark.landing.write.files import FileFormat
from mirrorlog.spark.landing.write.layout import parse_layout
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.plan import QueueFacts, QueueRange
from mirrorlog.spark.reading.lookup import open_lookup
from tests.spark.batches import given_out, stamped
from tests.spark.offline_logs import StoryLog, range_of
from tests.tools.logs import overwrite


def queue_range(name: str, first: int, following: int) -> QueueRange:
    return QueueRange("c", name, "log", 1, first, following)


def plan(name: str, first: int, following: int) -> QueuePlan:
    facts = QueueFacts("c", name, "i", "log", 1, 0, following)
    pieces = (queue_range(name, first, following),) if following > first else ()
    return QueuePlan(facts, first, following, pieces)


def test_every_record_is_in_one_task_in_order() -> None:
    """Goal: none is read twice or not at all. Random ranges, seed printed."""
    seed = 5
    print(f"seed {seed}")
    chosen = random.Random(seed)
    for _ in range(200):
        ranges = [queue_range(f"q{n}", 7, 7 + chosen.randrange(400_000)) for n in range(chosen.randrange(1, 9))]
        made = tasks_for(ranges, parallelism=chosen.randrange(1, 9), record_bytes=chosen.choice([1, 1e3, 1e6]))
        found = [piece for task in made for piece in task]
        assert all(len(piece) for piece in found)
        for each in ranges:
            pieces = [piece for piece in found if piece.queue == each.queue]
            edges = [edge for piece in pieces for edge in (piece.first, piece.next)]
            assert edges == sorted(edges)
            assert sum(map(len, pieces)) == len(each)
            if pieces:
                assert (pieces[0].first, pieces[-1].next) == (each.first, each.next)


def test_few_records_are_one_task_and_many_one_for_each_core() -> None:
    small = [queue_range(f"q{number}", 0, 10) for number in range(1_000)]
    assert len(tasks_for(small, parallelism=8, record_bytes=100)) == 1
    large = [queue_range("q", 0, 100 * RECORDS_PER_TASK_MIN)]
    assert len(tasks_for(large, parallelism=8, record_bytes=100)) == 8
    heavy = [queue_range("q", 0, 1_000)]
    assert len(tasks_for(heavy, parallelism=8, record_bytes=1e6)) == 8
    assert tasks_for([], parallelism=8, record_bytes=100) == []


def test_a_bounded_step_gives_each_queue_its_share_and_what_others_leave() -> None:
    cut = limited([plan("a", 0, 1_000), plan("b", 5, 8), plan("c", 0, 1_000)], 103)
    assert [(each.facts.name, each.first, each.next) for each in cut] == [("a", 0, 50), ("b", 5, 8), ("c", 0, 50)]
    assert limited([plan("a", 0, 10)], 100) == [plan("a", 0, 10)]


def test_a_bounded_step_always_gets_on() -> None:
    cut = limited([plan(f"q{number}", 0, 5) for number in range(10)], 1)
    assert sum(sum(map(len, each.pieces)) for each in cut) == 1


def test_a_place_that_takes_no_files_is_said_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a full or missing disk has a name that survives the way from a worker. A file stands in its place."""
    place = tmp_path / "table"
    place.touch()
    batch = given_out(stamped([Record(b"x")]))
    monkeypatch.setattr(tasks, "consumed_batches", lambda options, wanted, on_missing, bury: iter([batch]))
    options = SourceOptions(servers=("n1:7401",), queues=("q",))
    work = TaskWork((queue_range("q", 0, 1),), options, FileFormat(str(place)), DeadLettersOf(str(place), {}))
    with pytest.raises(StorageFailed, match=str(place)):
        write_range(0, work)


def test_bad_bytes_of_an_archive_are_an_error_or_named_and_left_out(tmp_path: Path) -> None:
    """Goal: what is not landed is said exactly, and only when that is allowed. One batch of forty is overwritten."""
    log = StoryLog(tmp_path / "log")
    for _ in range(40):
        log.publish(1, [Record(b"x" * 100)] * 10)
    log.checkpoint()
    log.confirm()
    log.close()
    bad = log.stored[7][0]
    overwrite(tmp_path / "log", bad.log_offset + 200, b"\xff" * 8)
    strict = SourceOptions(path=str(tmp_path), queues=("q1",))
    with open_lookup(replace(strict, fail_on_data_loss=False)) as lookup:
        (facts,) = lookup.facts(["q1"])
    work = TaskWork((range_of(facts),), strict, FileFormat(str(tmp_path / "table")), DeadLettersOf("table", {}))
    with pytest.raises(LogCorrupt, match=f"{bad.base_queue_offset} up to {bad.next_queue_offset}"):
        write_range(0, work)

    written = write_range(0, replace(work, options=replace(strict, fail_on_data_loss=False)))

    assert [(each.queue, each.first, each.next) for each in written.missed] == [
        ("q1", bad.base_queue_offset, bad.next_queue_offset)
    ]
    assert str(bad.log_offset) in written.missed[0].why
    tables = [pq.read_table(tmp_path / "table" / file.path) for file in written.files]
    found = [offset for table in tables for offset in table["offset"].to_pylist()]
    assert found == [each for each in range(facts.next) if not bad.base_queue_offset <= each < bad.next_queue_offset]


def test_a_range_of_which_nothing_is_left_says_nothing_of_its_epoch(tmp_path: Path) -> None:
    """Goal: no position is set by what another queue's batch said. The whole of the second range is overwritten."""
    log = StoryLog(tmp_path / "log")
    log.publish(1, [Record(b"x" * 100)] * 10)
    log.publish(2, [Record(b"y" * 100)] * 10)
    log.checkpoint()
    log.confirm()
    log.close()
    overwrite(tmp_path / "log", log.stored[1][0].log_offset + 200, b"\xff" * 8)
    options = SourceOptions(path=str(tmp_path), queues=("q1", "q2"), fail_on_data_loss=False)
    with open_lookup(options) as lookup:
        ranges = tuple(range_of(facts) for facts in lookup.facts(["q1", "q2"]))
    written = write_range(0, TaskWork(ranges, options, FileFormat(str(tmp_path / "table")), DeadLettersOf("table", {})))
    assert [(each.queue, each.first, each.next) for each in written.missed] == [("q2", 0, 10)]
    assert list(written.epochs) == [("q1", ranges[0].next)]


def test_only_plain_records_of_nodes_stay_where_they_were_received() -> None:
    """Goal: nothing is written from where it may change after its checksum was looked at, as bytes of a log file may,
    and whatever looks into rows or parts them gets them in one piece."""
    options = SourceOptions(servers=("n1:7401",), queues=("q",))
    plain = TaskWork((), options, FileFormat("t"), DeadLettersOf("t", {}))
    assert plain.as_received
    assert not replace(plain, options=SourceOptions(path="/log", queues=("q",))).as_received
    assert not replace(plain, format=FileFormat("t", layout=parse_layout(["date(timestamp)"]))).as_received
    assert not replace(plain, upsert=RAW_COLUMNS).as_received


def test_a_task_reads_a_queue_of_one_copy_from_its_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: `read_from = "mirror"` lands queues without mirrors beside others. Two queues; whom each is read from."""
    asked: dict[str, str] = {}
    batch = given_out(stamped([Record(b"x")]))

    def read(options: SourceOptions, wanted: QueueRange, on_missing: object, bury: object) -> Iterator[ConsumedBatch]:
        asked[wanted.queue] = options.read_from
        return iter([batch])

    monkeypatch.setattr(tasks, "consumed_batches", read)
    options = SourceOptions(servers=("n1:7401",), queues=("q", "alone"), read_from="mirror")
    ranges = (queue_range("q", 0, 1), queue_range("alone", 0, 1))
    work = TaskWork(ranges, options, FileFormat(str(tmp_path)), DeadLettersOf(str(tmp_path), {}))
    assert write_range(0, replace(work, from_master=frozenset({"alone"}))).records == 2
    assert asked == {"q": "mirror", "alone": "master"}
