"""A stream of queues goes on where it stood, notices what is gone, and reads every record once.

Mostly without a JVM: the reader is driven as Spark drives it, over a log that is a plain list, and told of losses,
deletions and retention between triggers. A few at the end with Spark and real nodes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import ConnectionLost, MirrorlogError, NoSuchQueue, NotCurrent, PositionLost
from mirrorlog.spark.errors import BadOption, BeginUnknown, HistoryChanged, RecordsMissing, from_spark
from mirrorlog.spark.options import parse_options
from mirrorlog.spark.reading import stream
from mirrorlog.spark.reading.stream import QueueStreamReader
from mirrorlog.testing import Cluster
from tests.spark.fake_log import LOG_ID, OTHER_LOG, FakeLog
from tests.spark.queues import publish

ALL = ReadAllAvailable()
ALLOWED = {"failOnDataLoss": "false"}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    found = FakeLog()
    monkeypatch.setattr(stream, "open_lookup", found.opened)
    return found


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def reader(clock: Callable[[], float] = Clock(), **options: str) -> QueueStreamReader:  # noqa: B008 - never set here
    subscription = {} if "subscribePattern" in options else {"subscribe": "q"}
    given = {"servers": "a:1", "startingOffsets": "earliest", **subscription, **options}
    return QueueStreamReader(parse_options(given, "stream"), clock)


class Query:
    """As Spark runs one: offsets go through JSON, a batch is planned from one to the next, and a restart begins with
    the newest offsets and another reader."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.reader = reader(**options)
        self.offset = through_json(self.reader.initialOffset())

    def restart(self, **options: str) -> None:
        self.reader = reader(**{**self.options, **options})

    def trigger(self, limit: ReadLimit = ALL) -> list[tuple[str, int, int]] | None:
        """The ranges that were read; None when there was no trigger."""
        end = through_json(self.reader.latestOffset(self.offset, limit))
        if json.dumps(end) == json.dumps(self.offset):
            return None
        found = ranges(self.reader, self.offset, end)
        self.offset = end
        return found

    def until_idle(self, limit: ReadLimit = ALL) -> list[tuple[str, int, int]]:
        found: list[tuple[str, int, int]] = []
        while (more := self.trigger(limit)) is not None:
            found += more
        return found

    @property
    def stands(self) -> dict[str, int]:
        return {queue: partitions["0"]["offset"] for queue, partitions in self.offset.items()}


def ranges(of: QueueStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
    wanted = [partition.wanted for partition in of.partitions(start, end)]  # type: ignore[attr-defined]
    return [(each.queue, each.first, each.next) for each in wanted]


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(offset)))


# --- Going on -------------------------------------------------------------------------------------------------------


def test_a_stream_reads_what_is_there_and_then_what_comes(log: FakeLog) -> None:
    """Goal: every record once, also over a restart; an idle trigger is none. Method: publish, trigger, restart."""
    queue = log.add("q", 10)
    query = Query()
    assert query.trigger() == [("q", 0, 10)]
    assert query.trigger() is None
    queue.publish(5)
    query.restart()
    assert query.until_idle() == [("q", 10, 15)]


def test_the_offsets_are_positions(log: FakeLog) -> None:
    """Goal: a checkpoint names log, incarnation and the epoch of the last record. Method: records of two epochs."""
    queue = log.add("q", 10)
    queue.publish(5, epoch=2)
    log.epoch = 2
    query = Query()
    assert query.offset == {"q": {"0": {"offset": 0, "log": queue.log_id, "incarnation": "first"}}}
    query.trigger()
    assert query.offset == {"q": {"0": {"offset": 15, "epoch": 2, "log": queue.log_id, "incarnation": "first"}}}


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"startingOffsets": "latest"}, 10),
        ({"startingOffsets": "earliest"}, 3),
        ({"startingOffsets": '{"q":{"0":7}}'}, 7),
        ({"startingOffsets": '{"q":{"0":-1}}'}, 10),
        ({"startingOffsets": '{"q":{"0":{"offset":7,"epoch":1}}}'}, 7),
        ({"startingOffsetsByTimestamp": '{"q":{"0":0}}'}, 3),
        ({"startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "latest"}, 10),
    ],
)
def test_a_new_stream_begins_where_it_is_told(log: FakeLog, options: dict[str, str], first: int) -> None:
    """Goal: the Kafka source's starts, and positions. Each; a time of 1 ms is later than all records here."""
    log.add("q", 10).free_below(3)
    query = Query(**options)
    assert query.stands == {"q": first}
    log.queues["q"].publish(1)
    assert query.until_idle() == [("q", first, 11)]


def test_a_start_that_cannot_be_is_an_error_at_once(log: FakeLog) -> None:
    """Goal: no stream that waits for what never comes. A queue and a time that are not there, a changed history."""
    with pytest.raises(NoSuchQueue, match="'q'"):
        reader().initialOffset()
    log.add("q", 10)
    with pytest.raises(BadOption, match="no record that was appended"):
        reader(startingTimestamp="1").initialOffset()
    with pytest.raises(HistoryChanged, match="epoch 9"):
        reader(startingOffsets='{"q":{"0":{"offset":7,"epoch":9}}}').initialOffset()


def test_queues_that_match_later_join_at_their_begin(log: FakeLog) -> None:
    """Goal: no record of a new queue is left out or read twice, also when the trigger in which it joins is run again.
    Method: two queues appear, one of them after retention; every plan between two offsets is asked for twice."""
    log.add("q-1", 10)
    query = Query(subscribePattern="q-.*")
    query.until_idle()
    log.add("q-2", 20).free_below(5)
    log.add("other", 20)
    log.queues["q-1"].publish(1)
    before = query.offset
    assert query.trigger() == [("q-1", 10, 11)]
    assert query.stands == {"q-1": 11, "q-2": 5}
    assert ranges(reader(subscribePattern="q-.*"), before, query.offset) == [("q-1", 10, 11)]
    assert query.until_idle() == [("q-2", 5, 20)]


def test_a_queue_that_is_subscribed_later_joins_and_one_that_is_not_any_more_leaves(log: FakeLog) -> None:
    """Goal: options may change between runs of a query. Method: another `subscribe` after a restart."""
    log.add("q", 10)
    log.add("r", 7)
    query = Query()
    query.until_idle()
    query.restart(subscribe="r")
    assert query.until_idle() == [("r", 0, 7)]
    assert query.stands == {"r": 7}


# --- How much -------------------------------------------------------------------------------------------------------


def test_a_limit_is_shared_by_what_the_queues_have(log: FakeLog) -> None:
    """Goal: maxOffsetsPerTrigger over several queues. Method: 90 and 10 records, 20 at a time, until all are read."""
    log.add("a", 90)
    log.add("b", 10)
    query = Query(subscribe="a,b", maxOffsetsPerTrigger="20")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(20)
    limit = query.reader.getDefaultReadLimit()
    assert query.trigger(limit) == [("a", 0, 18), ("b", 0, 2)]
    rest = query.until_idle(limit)
    assert max(following - first for _, first, following in rest) <= 20
    assert query.stands == {"a": 90, "b": 10}


def test_with_more_queues_than_records_in_a_trigger_each_has_its_turn(log: FakeLog) -> None:
    """Goal: no queue waits for ever. Method: one record for three queues, three triggers."""
    for name in ("a", "b", "c"):
        log.add(name, 100)
    query = Query(subscribe="a,b,c")
    read = [query.trigger(ReadMaxRows(1)) for _ in range(3)]
    assert sorted(read) == [[("a", 0, 1)], [("b", 0, 1)], [("c", 0, 1)]]  # type: ignore[type-var]


def test_a_trigger_waits_for_enough_records_or_long_enough(log: FakeLog) -> None:
    """Goal: minOffsetsPerTrigger and maxTriggerDelay. Method: the first trigger is at once; then too few, then long."""
    queue, clock = log.add("q", 1), Clock()
    query = Query(minOffsetsPerTrigger="10", maxTriggerDelay="5s")
    query.reader = reader(clock, minOffsetsPerTrigger="10", maxTriggerDelay="5s")
    limit = query.reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    assert query.trigger(limit) == [("q", 0, 1)]
    queue.publish(9)
    clock.now += 3
    assert query.trigger(limit) is None
    clock.now += 2
    assert query.trigger(limit) == [("q", 1, 10)], "to look counts for nothing"
    queue.publish(10)
    assert query.trigger(limit) == [("q", 10, 20)]
    queue.publish(1)
    assert query.trigger(ALL) == [("q", 20, 21)], "whoever asks for all is given all"


def test_without_limits_a_trigger_takes_all_there_is() -> None:
    """Goal: the default is no limit."""
    assert reader().getDefaultReadLimit() == ALL


def test_available_now_ends_where_it_began(log: FakeLog) -> None:
    """Goal: what comes meanwhile, of queues that come meanwhile too, is for the next run; limits hold, and minima do
    not. Method: records and a queue appear after the end was fixed."""
    queue = log.add("q-1", 25)
    query = Query(subscribePattern="q-.*", maxOffsetsPerTrigger="10", minOffsetsPerTrigger="10")
    limit = query.reader.getDefaultReadLimit()
    query.reader.prepareForTriggerAvailableNow()
    queue.publish(100)
    log.add("q-2", 5)
    assert query.until_idle(limit) == [("q-1", 0, 10), ("q-1", 10, 20), ("q-1", 20, 25)]
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.until_idle(limit)
    assert query.stands == {"q-1": 125, "q-2": 5}


def test_what_is_confirmed_is_reported(log: FakeLog) -> None:
    """Goal: Spark shows how far a query is behind. Method: look before and after a limited trigger."""
    log.add("q", 25)
    fresh = reader()
    assert fresh.reportLatestOffset() is None
    query = Query()
    query.trigger(ReadMaxRows(10))
    reported = query.reader.reportLatestOffset()
    assert reported is not None
    assert reported["q"]["0"]["offset"] == 25
    assert query.stands == {"q": 10}


def test_a_large_trigger_is_shared_out_to_tasks(log: FakeLog) -> None:
    """Goal: minPartitions and maxRecordsPerPartition hold for streams. Method: both."""
    log.add("q", 100)
    assert Query(minPartitions="3").trigger() == [("q", 0, 33), ("q", 33, 66), ("q", 66, 100)]
    assert len(Query(maxRecordsPerPartition="10").trigger() or []) == 10


def test_nothing_is_planned_between_equal_offsets(log: FakeLog) -> None:
    """Goal: as Spark asks for it: an empty range is no task, and nobody is asked."""
    log.add("q", 10)
    query = Query()
    query.trigger()
    log.queues.clear()
    assert ranges(query.reader, query.offset, query.offset) == []


# --- What is gone ---------------------------------------------------------------------------------------------------


def both_ways(expected: type[MirrorlogError], match: str, query: Query, change: Callable[[], object]) -> None:
    """After the change the query ends with the error, and its restart too; then it is allowed to go on."""
    change()
    for _ in range(2):
        with pytest.raises(expected, match=match):
            query.trigger()
        query.restart()
    query.restart(**ALLOWED)


def test_a_queue_that_is_gone_is_noticed(log: FakeLog) -> None:
    """Goal: a deleted queue is no silence. Allowed, it stays where it was, and goes on if it comes back."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()
    both_ways(NoSuchQueue, r"'q' was read up to 10 and is gone.*failOnDataLoss", query, log.queues.clear)
    assert query.trigger() is None
    log.queues["q"] = queue
    queue.publish(1)
    assert query.until_idle() == [("q", 10, 11)]


def test_a_queue_that_is_subscribed_and_not_there_is_noticed(log: FakeLog) -> None:
    """Goal: a misspelt name is no silence. Method: it is added between two runs, while a node does not answer; allowed,
    the stream goes on without it."""
    log.add("q", 10)
    query = Query()
    log.silent = ["n3"]
    query.restart(subscribe="q,r")
    with pytest.raises(NoSuchQueue, match="'r' is subscribed and not there, or known to n3 alone"):
        query.trigger()
    query.restart(subscribe="q,r", **ALLOWED)
    assert query.until_idle() == [("q", 0, 10)]


def test_a_queue_that_was_made_anew_is_noticed(log: FakeLog) -> None:
    """Goal: records of another queue of the name are not taken for the next ones. Allowed, its begin is read."""
    log.add("q", 10)
    query = Query()
    query.trigger()

    def anew() -> None:
        log.add("q", 30).incarnation = "second"

    both_ways(HistoryChanged, r"'q' was read up to 10; it was deleted and made anew", query, anew)
    assert query.until_idle() == [("q", 0, 30)]


def test_a_log_that_lost_its_tail_is_noticed(log: FakeLog) -> None:
    """Goal: the same offsets with other records are not passed over. Method: what was read is replaced under a newer
    epoch; allowed, the stream goes on behind it."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()

    def rewritten() -> None:
        queue.stretches = [(0, 8, 1), (8, 20, 2)]
        log.epoch = 2

    both_ways(HistoryChanged, r"record 9 was of epoch 1, now it is one of epoch 2", query, rewritten)
    assert query.until_idle() == [("q", 10, 20)]


def test_a_stream_goes_on_over_the_moves_of_its_queue(log: FakeLog) -> None:
    """Goal: every record once, each range within one log, and no move is taken for a loss, nor a loss for a move. A
    queue moves between triggers and within one, also back; the stream is started again in between. Then its log loses
    what was read last."""
    queue = log.add("q")
    queue.publish(10, epoch=7)
    query = Query()
    before = reader().initialOffset()
    assert query.until_idle() == [("q", 0, 10)]
    queue.move(OTHER_LOG)
    assert query.trigger() is None
    queue.publish(10, epoch=2)
    query.restart()
    assert query.until_idle() == [("q", 10, 20)]
    assert query.offset["q"]["0"] == {"offset": 20, "epoch": 2, "log": OTHER_LOG, "incarnation": "first"}
    queue.publish(5, epoch=2)
    queue.move(LOG_ID)
    queue.publish(5, epoch=9)
    assert query.until_idle() == [("q", 20, 25), ("q", 25, 30)]
    query.restart()
    assert query.until_idle() == []
    wanted = [partition.wanted for partition in query.reader.partitions(before, query.offset)]  # type: ignore[attr-defined]
    assert [(each.log_id, each.first, each.next) for each in wanted] == [
        (LOG_ID, 0, 10), (OTHER_LOG, 10, 25), (LOG_ID, 25, 30)
    ]  # fmt: skip
    queue.stretches[-1] = (25, 40, 8)
    query.restart()
    with pytest.raises(HistoryChanged, match="of epoch 9, now it is one of epoch 8"):
        query.trigger()


def test_a_trigger_that_is_run_again_checks_its_start(log: FakeLog) -> None:
    """Goal: also what was planned before a restart is not read from another history. Method: plan, rewrite, plan."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()
    before = query.offset
    queue.publish(10)
    query.trigger()
    queue.stretches = [(0, 8, 1), (8, 20, 2)]
    log.epoch = 2
    with pytest.raises(HistoryChanged, match="record 9"):
        ranges(reader(), before, query.offset)
    assert ranges(reader(**ALLOWED), before, query.offset) == [("q", 10, 20)]


def test_a_declared_loss_ends_the_stream_behind_what_is_left(log: FakeLog) -> None:
    """Goal: what was not lost is read, what was is named with where to go on. Allowed, the gap is passed over, and no
    task lies in it. Method: half of what was to be read is lost, and more comes behind the gap."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()
    queue.publish(10)
    queue.lose_from(15)
    queue.publish(5, epoch=2)
    log.epoch = 2
    go_on_at = 20 + 2**33
    assert query.trigger() == [("q", 10, 15)]
    both_ways(PositionLost, rf"15 up to {go_on_at} are lost.*go on at {go_on_at}", query, lambda: None)
    assert query.trigger() == [("q", go_on_at, go_on_at + 5)]
    assert query.trigger() is None


def test_a_position_inside_a_declared_loss_is_noticed(log: FakeLog) -> None:
    """Goal: a stream that had read what is lost now is told. Method: its last records are lost, nothing comes yet."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()

    def loss() -> None:
        queue.lose_from(7)
        log.epoch = 2

    both_ways(PositionLost, rf"10 up to {10 + 2**33} are lost", query, loss)
    assert query.until_idle() == []
    assert query.stands == {"q": 10 + 2**33}
    queue.publish(3, epoch=2)
    assert query.until_idle() == [("q", 10 + 2**33, 13 + 2**33)]


def test_one_trigger_may_pass_over_a_gap(log: FakeLog) -> None:
    """Goal: limits count records, and a gap costs neither tasks nor room. Method: a stream from the begin over two
    gaps, all at once and 4 at a time."""
    queue = log.add("q", 5)
    queue.lose_from(3)
    queue.publish(5, epoch=2)
    queue.lose_from(queue.next - 1)
    queue.publish(2, epoch=3)
    log.epoch = 3
    pieces = [("q", first, following) for first, following, _ in queue.stretches]
    assert [following - first for _, first, following in pieces] == [3, 4, 2]
    assert Query(**ALLOWED).until_idle() == pieces
    some = Query(**ALLOWED).until_idle(ReadMaxRows(4))
    assert [offset for _, first, following in some for offset in range(first, following)] == [
        offset for _, first, following in pieces for offset in range(first, following)
    ]


def test_records_that_were_freed_are_noticed(log: FakeLog) -> None:
    """Goal: a late restart after retention. Allowed, the stream goes on at the begin."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()
    queue.publish(10)
    both_ways(RecordsMissing, r"10 up to 15 are gone.*failOnDataLoss", query, lambda: queue.free_below(15))
    assert query.trigger() == [("q", 15, 20)]


def test_records_that_were_freed_after_they_were_planned_are_noticed(log: FakeLog) -> None:
    """Goal: as before, for a trigger that is run again. Method: plan between stored offsets after retention."""
    queue = log.add("q", 10)
    query = Query()
    before = query.offset
    query.trigger()
    queue.free_below(4)
    with pytest.raises(RecordsMissing, match="0 up to 4 are gone"):
        ranges(reader(), before, query.offset)
    assert ranges(reader(**ALLOWED), before, query.offset) == [("q", 4, 10)]
    queue.publish(10)
    queue.free_below(15)
    assert ranges(reader(**ALLOWED), before, query.offset) == []


def test_an_end_that_nobody_confirms_any_more_is_noticed(log: FakeLog) -> None:
    """Goal: a queue that is shorter than what was read of it, under a master that knows, is an error."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()
    queue.stretches = [(0, 6, 1)]
    with pytest.raises(RecordsMissing, match="10 is above 6, its confirmed end"):
        query.trigger()


@pytest.mark.parametrize("unknown", [{"current": False}, {"silent_master": "n1"}, {"silent_master": ""}])
def test_a_copy_that_lags_is_waited_for(log: FakeLog, unknown: dict[str, Any]) -> None:
    """Goal: no false alarm while the master is away or new. Method: copies know of less than was read; a trigger that
    was planned is planned again as it was, for its records were confirmed."""
    queue = log.add("q", 10)
    query = Query()
    before = query.offset
    query.trigger()
    queue.stretches = [(0, 6, 1)]
    vars(queue).update(unknown)
    assert query.trigger() is None
    assert ranges(reader(), before, query.offset) == [("q", 0, 10)]


def test_the_end_of_a_new_master_is_not_taken_for_the_end(log: FakeLog) -> None:
    """Goal: availableNow and a start at latest miss nothing that was confirmed. Method: a master that does not know."""
    log.add("q", 10).current = False
    for asked in (reader().prepareForTriggerAvailableNow, reader(startingOffsets="latest").initialOffset):
        with pytest.raises(NotCurrent, match="'q' has a new master"):
            asked()


def test_a_begin_that_its_master_has_not_told_is_not_believed(log: FakeLog) -> None:
    """Goal: a copy that began late hides nothing. Method: a start at its begin, a stream below it, a queue that joins,
    without the master; all of it goes when loss is allowed."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger(ReadMaxRows(2))
    queue.free_below(4)
    queue.silent_master = "n1"
    with pytest.raises(BeginUnknown, match="n1"):
        query.trigger()
    with pytest.raises(BeginUnknown, match="n1"):
        reader().initialOffset()
    assert reader(startingOffsets='{"q":{"0":4}}').initialOffset()["q"]["0"]["offset"] == 4
    with pytest.raises(BeginUnknown, match="n1"):
        reader().latestOffset({}, ALL)
    assert reader(**ALLOWED).latestOffset({}, ALL)["q"]["0"]["offset"] == 4
    query.restart(**ALLOWED)
    assert query.trigger() == [("q", 4, 10)]


def test_a_running_stream_looks_at_old_records_only_when_the_master_changes(log: FakeLog) -> None:
    """Goal: what never changes is not asked for with each trigger. Method: the places that are looked at, before and
    after a failover: the last record of the trigger, and after it those that prove the history."""
    queue = log.add("q", 10)
    query = Query()
    query.trigger()
    log.looks.clear()
    queue.publish(5)
    query.trigger()
    assert log.looks == [("q", 14)]
    log.epoch = 2
    log.looks.clear()
    queue.publish(5, epoch=2)
    query.trigger()
    assert ("q", 14) in log.looks


# --- With Spark and real nodes --------------------------------------------------------------------------------------


def stream_to_delta(
    spark: SparkSession, servers: list[str], table: Path, checkpoint: Path, **options: str
) -> list[tuple[int, int]]:
    """One run with availableNow; (batch, rows) of each trigger."""
    source = spark.readStream.format("mirrorlog").options(servers=",".join(servers), **options).load()
    query = (
        source.writeStream.format("delta")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(table))
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return [(progress.batchId, progress.numInputRows) for progress in query.recentProgress if progress.numInputRows]


def landed(spark: SparkSession, table: Path) -> list[tuple[str, int, bytes]]:
    rows = spark.read.format("delta").load(str(table)).select("topic", "offset", "value").collect()
    return sorted((row.topic, row.offset, bytes(row.value)) for row in rows)


@pytest.mark.long
def test_available_now_lands_everything_once_over_a_restart(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: Spark's own way to Delta works: limits, a queue that appears later, and a restart from the checkpoint.

    Then a node that is away ends the query with its error, and the next run goes on.
    """
    publish(servers, queue, [Record(b"a%d" % number) for number in range(100)])
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    options = {"subscribePattern": f"{queue}.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "60"}
    assert [rows for _, rows in stream_to_delta(spark, servers, table, checkpoint, **options)] == [60, 40]
    publish(servers, queue, [Record(b"b")])
    other = f"{queue}-other"
    publish(servers, other, [Record(b"c")])
    with pytest.raises(StreamingQueryException) as away:
        stream_to_delta(spark, ["127.0.0.1:1"], table, checkpoint, **options)
    assert isinstance(from_spark(away.value), ConnectionLost), away.value
    stream_to_delta(spark, servers, table, checkpoint, **options)
    expected = [(queue, number, b"a%d" % number) for number in range(100)] + [(queue, 100, b"b"), (other, 0, b"c")]
    assert landed(spark, table) == expected


@pytest.mark.long
def test_a_stream_survives_its_master(spark: SparkSession, queue: str, tmp_path: Path) -> None:
    """Goal: a failover between two runs loses and doubles nothing. Method: three copies, a run, kill the master,
    publish to the next one, a run."""
    with Cluster(3) as cluster:
        cluster.wait_in_sync()
        publish(cluster.servers, queue, [Record(b"%d" % number) for number in range(50)])
        table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
        options = {"subscribe": queue, "startingOffsets": "earliest", "read_from": "nearest"}
        stream_to_delta(spark, cluster.servers, table, checkpoint, **options)
        cluster.master.kill()
        cluster.wait_master()
        publish(cluster.servers, queue, [Record(b"%d" % number) for number in range(50, 90)])
        stream_to_delta(spark, cluster.servers, table, checkpoint, **options)
        assert landed(spark, table) == [(queue, number, b"%d" % number) for number in range(90)]
