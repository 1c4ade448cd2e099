"""A replay publishes what is selected of a table, in order, with all that its records were, and never twice.

Method: how far a replay came is asked of a real node without Spark; then tables are written as a landing leaves them
and replayed, whole, in part, interrupted, and again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from mirrorlog.client.sync import Client
from mirrorlog.errors import BadInput, NoSuchQueue, RequestTimeout
from mirrorlog.spark import replay as replaying
from mirrorlog.spark.errors import ReplayUnknown, SparkFailed
from mirrorlog.spark.replay import Replayed, ReplayMoment, ReplayTarget, main, replay, replay_table
from mirrorlog.spark.replaying.progress import HEADER, PublishedOffsets, ReplayProgress, header_value
from mirrorlog.spark.replaying.rows import Selection, replay_name, replay_rows
from tests.spark.offline_logs import Row, rows_of

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
DEAD = (
    "queue string, offset long, reason string, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, timestamp timestamp, timestampType int, appendTime timestamp, "
    "schemaVersion string"
)


@pytest.fixture
def client(servers: list[str]) -> Iterator[Client]:
    with Client(*servers) as client:
        yield client


def read(client: Client, queue: str) -> list[Row]:
    with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return rows_of(consumer.batches())


def without_mark(row: Row) -> tuple[Any, ...]:
    return row.value, row.key, tuple(each for each in row.headers if each[0] != HEADER), row.timestamp


# --- Without Spark ----------------------------------------------------------------------------------------------------


def test_a_replay_is_named_by_table_selection_and_target() -> None:
    one = replay_name("t", Selection("q", 1, 2), "again")
    assert one == replay_name("t", Selection("q", 1, 2), "again")
    others = [
        replay_name("u", Selection("q", 1, 2), "again"),
        replay_name("t", Selection("q", 1, 3), "again"),
        replay_name("t", Selection("q", 1, 2), "elsewhere"),
        replay_name("t", Selection("q", 1, 2, BEGAN), "again"),
    ]
    assert len({one, *others}) == 5


@pytest.mark.parametrize(
    ("selection", "told"),
    [
        (Selection(None, 1), "of one queue"),
        (Selection("q", 5, 4), "above the last one"),
        (Selection("q", from_time=datetime(2026, 1, 1)), "no zone"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(selection: Selection, told: str) -> None:
    with pytest.raises(BadInput, match=told):
        selection.check()


def publish_marked(client: Client, queue: str, replay: str, offsets: Sequence[int], source: str = "src") -> int:
    """The queue offset of the last one."""
    with client.producer(queue) as producer:
        return [
            producer.send(b"v", headers=[("other", None), (HEADER, header_value(replay, source, offset))])
            for offset in offsets
        ][-1].queue_offset


def test_progress_is_what_the_queue_has(client: Client, queue: str) -> None:
    client.admin.declare(queue)
    publish_marked(client, queue, "r", [90, 91])  # before it began: not looked at
    progress = ReplayProgress(client, queue, "r", "src")
    assert progress.published(note=False) == PublishedOffsets()
    assert progress.published(note=True) == PublishedOffsets()
    assert progress.published(note=True) == PublishedOffsets()
    publish_marked(client, queue, "r", [3, 4])
    publish_marked(client, queue, "other", [5])
    publish_marked(client, queue, "r", [7], source="another/source")
    assert progress.published(note=False) == PublishedOffsets(None, (3, 4))
    progress.note(publish_marked(client, queue, "r", [5]))
    publish_marked(client, queue, "r", [6, 8])
    assert progress.published(note=True) == PublishedOffsets(6, (6, 8))
    assert ReplayProgress(client, queue, "r", "another/source").published(note=False) == PublishedOffsets()


def test_progress_that_cannot_be_told_is_an_error(client: Client, queue: str) -> None:
    client.admin.declare(queue)
    progress = ReplayProgress(client, queue, "r", "src")
    progress.published(note=True)
    progress.note(publish_marked(client, queue, "someone else's", [5]))
    with pytest.raises(ReplayUnknown, match="under another name"):
        progress.published(note=True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--from-offset", "1"], "name it"),
        (["--queue", "q", "--from-offset", "9", "--until-offset", "1"], "above the last one"),
        (["--id", "no spaces"], "letters, digits"),
        (["--tls-cert", "x"], "certificate and its key"),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirrorlog.spark.session.any_session", lambda name: pytest.fail("Spark was started"))
    code = main(["--servers", "127.0.0.1:1", "--table", "t", "--to-queue", "x", *arguments])
    captured = capsys.readouterr()
    assert (code, captured.out) in ((2, ""), (10, ""))
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert told in captured.err


@pytest.mark.parametrize("time", ["yesterday", "2026-01-01T00:00:00"])
def test_a_time_without_a_zone_is_no_argument(capsys: pytest.CaptureFixture[str], time: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--servers", "a:1", "--table", "t", "--to-queue", "x", "--from-time", time])
    assert ended.value.code == 2
    assert time in capsys.readouterr().err


def test_the_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "Example: python -m mirrorlog.spark.replay --servers" in capsys.readouterr().out


# --- With Spark -------------------------------------------------------------------------------------------------------


def landed(spark: SparkSession, source: str, count: int) -> DataFrame:
    """As a raw landing leaves it, in no order; every second record has an event time, every third one headers."""
    began_s = int(BEGAN.timestamp())
    return (
        spark.range(count)
        .selectExpr(
            "cast(concat('k', id) as binary) key",
            "case when id <> 5 then cast(concat('v', id) as binary) end value",
            f"'{source}' topic",
            "0 partition",
            "id offset",
            f"timestamp_seconds({began_s} + id) timestamp",
            "cast(id % 2 as int) timestampType",
            "case when id % 3 = 0 then array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary)), "
            "named_struct('key', 'n', 'value', cast(null as binary))) end headers",
            f"timestamp_seconds({began_s} + id) appendTime",
        )
        .orderBy("key")
    )


def record(number: int) -> tuple[Any, ...]:
    """As `landed` has it."""
    micros = int(BEGAN.timestamp() + number) * 1_000_000
    headers = (("h", b"%d" % number), ("n", None)) if number % 3 == 0 else ()
    value = None if number == 5 else b"v%d" % number
    return value, b"k%d" % number, headers, micros if number % 2 == 0 else None


@pytest.fixture
def target(client: Client, servers: list[str], queue: str) -> ReplayTarget:
    client.admin.declare(queue)
    return ReplayTarget(tuple(servers), queue)


@pytest.mark.long
def test_a_table_is_replayed_once_whole_and_in_order(
    spark: SparkSession, client: Client, target: ReplayTarget, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    landed(spark, "a", 50).union(landed(spark, "b", 20)).write.format("delta").save(table)
    told = replay_table(spark, table, target, dry_run=True)
    assert (told.published, told.dry_run, read(client, target.queue)) == (70, True, [])
    moments: list[ReplayMoment] = []
    done = replay_table(spark, table, target, on_moment=moments.append)
    assert [(each.queue, each.selected, each.before, each.published) for each in done.queues] == [
        ("a", 50, 0, 50),
        ("b", 20, 0, 20),
    ]
    assert [(each.to_first, each.to_next) for each in done.queues] == [(0, 50), (50, 70)]
    rows = read(client, target.queue)
    assert [without_mark(row) for row in rows] == [record(number) for number in (*range(50), *range(20))]
    assert rows[51].headers[-1] == (HEADER, header_value(done.replay, "b", 1))
    assert [(each.queue, each.done, each.total) for each in moments] == [("a", 50, 50), ("b", 20, 20)]

    again = replay_table(spark, table, target)
    assert (again.published, [each.before for each in again.queues]) == (0, [50, 20])
    assert len(read(client, target.queue)) == 70


@pytest.mark.long
@pytest.mark.parametrize("noted_records", [1, 40])
def test_a_replay_that_was_killed_goes_on_where_it_was(
    spark: SparkSession,
    client: Client,
    target: ReplayTarget,
    monkeypatch: pytest.MonkeyPatch,
    noted_records: int,
) -> None:
    frame = landed(spark, "a", 100)
    monkeypatch.setattr(replaying, "NOTED_RECORDS", noted_records)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    try:
        for batches in (0, 3, 5):
            _die_after(monkeypatch, batches)
            with pytest.raises(RequestTimeout, match="killed"):
                replay(frame, target, name="r")
            monkeypatch.undo()
            monkeypatch.setattr(replaying, "NOTED_RECORDS", noted_records)
        done = replay(frame, target, name="r")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    # Without a note a run meets again what the one before had sent, and passes over it.
    assert (done.queues[0].before, done.queues[0].published) == ((80, 20) if noted_records == 1 else (50, 50))
    assert [without_mark(row) for row in read(client, target.queue)] == [record(number) for number in range(100)]


def _die_after(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """The next replay ends after so many Arrow batches, which were handed over."""
    whole = replaying.in_order

    def some(*args: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(whole(*args, **options)):
            if number == batches:
                raise RequestTimeout("killed")
            yield batch

    monkeypatch.setattr(replaying, "in_order", some)


def test_what_a_failed_batch_left_out_is_brought_and_the_rest_is_not_doubled(
    spark: SparkSession, client: Client, target: ReplayTarget
) -> None:
    """After a batch that was given up, later ones may have landed: they are told one by one."""
    ReplayProgress(client, target.queue, "r", "a").published(note=True)
    publish_marked(client, target.queue, "r", [0, 1, 4, 5, 9], source="a")
    done = replay(landed(spark, "a", 10), target, name="r")
    assert (done.queues[0].before, done.queues[0].published) == (5, 5)
    marks = [dict(row.headers)[HEADER] for row in read(client, target.queue)]
    assert sorted(marks) == [header_value("r", "a", number) for number in range(10)]
    assert replay(landed(spark, "a", 10), target, name="r").published == 0
    more = replay(landed(spark, "a", 12), target, name="r").queues[0]
    assert (more.next, more.before, more.published) == (12, 10, 2), "what is landed later belongs to the same replay"


def test_a_part_is_chosen_by_queue_offsets_or_append_times(
    spark: SparkSession, client: Client, target: ReplayTarget
) -> None:
    frame = landed(spark, "a", 30).union(landed(spark, "b", 30))
    replay(frame, target, Selection("a", 10, 20), name="offsets")
    between = Selection("b", from_time=BEGAN + timedelta(seconds=3), until_time=BEGAN + timedelta(seconds=6))
    replay(frame, target, between, name="times")
    assert replay(frame, target, Selection("nobody"), name="nothing").queues == ()
    expected = [record(number) for number in (*range(10, 20), 3, 4, 5)]
    assert [without_mark(row) for row in read(client, target.queue)] == expected


def test_dead_letters_are_replayed_as_they_were(spark: SparkSession, client: Client, target: ReplayTarget) -> None:
    rows = [
        ("a", number, "no JSON", b"k", b"{%d" % number, [("h", b"1")], BEGAN, 1, BEGAN, "3") for number in (7, 3, 900)
    ]
    replay(spark.createDataFrame(rows, DEAD), target, name="dead")
    found = read(client, target.queue)
    assert [(row.value, row.key, row.timestamp) for row in found] == [
        (b"{3", b"k", None),
        (b"{7", b"k", None),
        (b"{900", b"k", None),
    ]
    assert found[0].headers == (("h", b"1"), (HEADER, header_value("dead", "a", 3)))


def test_what_cannot_be_replayed_is_told_before_anything_is_published(
    spark: SparkSession, client: Client, target: ReplayTarget, tmp_path: Path
) -> None:
    frame = landed(spark, "a", 3)
    for wrong, told in (
        (frame.drop("value"), "no column 'value'"),
        (frame.drop("offset"), "no column 'offset'"),
        (frame.drop("topic"), "name the queue"),
    ):
        with pytest.raises(BadInput, match=told):
            replay_rows(wrong, Selection())
    with pytest.raises(BadInput, match="appendTime"):
        replay_rows(frame.drop("appendTime"), Selection(from_time=BEGAN))
    with pytest.raises(BadInput, match="6 rows have 3 queue offsets"):
        replay(frame.union(frame), target, name="twice")
    with pytest.raises(NoSuchQueue, match="mqtool declare"):
        replay(frame, ReplayTarget(target.servers, f"{target.queue}-none"), name="r")
    with pytest.raises(SparkFailed):
        replay_table(spark, str(tmp_path / "none"), target)
    assert read(client, target.queue) == []


@pytest.fixture
def running(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """The session, which a command finds and cannot end."""
    monkeypatch.setattr("mirrorlog.spark.session.any_session", lambda name: _Unstopped(spark))
    return spark


@pytest.mark.long
def test_the_command_replays_and_says_what_it_did(
    running: SparkSession, client: Client, target: ReplayTarget, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = str(tmp_path / "table")
    landed(running, "a", 20).write.format("delta").save(table)
    arguments = ["--servers", target.servers[0], "--table", table, "--queue", "a", "--to-queue", target.queue]
    arguments += ["--from-offset", "5", "--until-offset", "15", "--from-time", "2026-01-01T00:00:00Z"]
    assert main([*arguments, "--dry-run"]) == 0
    assert "would publish 10 of 10 selected records of queue 'a'" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["published"], said["queues"][0]["first"], said["queues"][0]["next"]) == (10, 5, 15)
    assert main([*arguments, "--id", "once-more"]) == 0
    assert "published 10 of 10 selected records of queue 'a'" in capsys.readouterr().out
    assert len(read(client, target.queue)) == 20


class _Unstopped:
    """The tests' session, which the command must not end."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def stop(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)


def test_a_result_is_json() -> None:
    assert json.dumps(Replayed("r", "q", ()).as_json()) == (
        '{"replay": "r", "to_queue": "q", "queues": [], "dry_run": false, "published": 0}'
    )
