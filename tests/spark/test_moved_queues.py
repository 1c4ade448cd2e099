"""Queues that move between logs, on real nodes: readers, streams, landings and what checks them cross the borders
without a gap or a double."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from mirrorlog.client import ConsumedRecord
from mirrorlog.client.sync import Client
from mirrorlog.errors import OffsetOutOfRange
from mirrorlog.spark.audit import audit
from mirrorlog.spark.checks.scope import LogSource
from mirrorlog.spark.errors import RecordsMissing
from mirrorlog.spark.land import land, land_all
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.holds import Holds
from mirrorlog.spark.landing.runner import Runner, StepMoment
from mirrorlog.spark.landing.service.schedule import Turn
from mirrorlog.spark.landing.service.service import Service
from mirrorlog.spark.options import AtTime, SourceOptions
from mirrorlog.spark.plan import QueueRange
from mirrorlog.spark.positions import QueuePosition
from mirrorlog.spark.reading.lookup import open_lookup
from mirrorlog.spark.reading.nodes import ask_nodes
from mirrorlog.spark.reading.planning import planned
from mirrorlog.spark.reading.rows import record_batches
from mirrorlog.spark.reconcile import reconcile
from mirrorlog.spark.replay import ReplayTarget, replay_table
from mirrorlog.spark.replaying.rows import Selection
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.queues import QueueInfo
from tests.client.test_tier import table_of
from tests.process.clusters import MIB, eventually, fast_cluster
from tests.process.traffic import Traffic
from tests.spark.test_land import assert_is_the_log, landed_offsets
from tests.spark.test_landing_service import running
from tests.spark.test_stream import stream_to_delta

pytestmark = pytest.mark.process

COUNT = 40
"""Records in each span."""
HERE, THERE = ["n1", "n2"], ["n3"]
COLUMNS = ("offset", "value", "logId", "epoch", "appendTime")


def value(number: int) -> bytes:
    """Every tenth is no JSON."""
    return b'{"n": %d}' % number if number % 10 else b"bad %d" % number


@dataclass
class MovingQueue:
    """`q`, with a number in each record, where each log has another queue beside it: so `q` goes, and not its log.
    `logs`: the one of each span."""

    cluster: Cluster
    client: Client
    name: str = "q"
    count: int = 0
    logs: list[str] = field(default_factory=list)

    @property
    def info(self) -> QueueInfo:
        return self.client.admin.metadata([self.name]).queues[0]

    def publish(self, count: int = COUNT, *, size: int = 0) -> None:
        with self.client.producer(self.name, confirm="all") as producer:
            numbers = range(self.count, self.count + count)
            producer.send_many([value(n) + bytes(size) for n in numbers], keys=[b"%d" % (n % 7) for n in numbers])
        self.count += count

    def move(self, nodes: Sequence[str]) -> QueueInfo:
        """Returns once it is in another log."""
        before = self.info.log_id
        self.client.admin.alter(self.name, {"nodes": list(nodes)})

        def moved() -> QueueInfo | None:
            (info,) = self.client.admin.metadata([self.name]).queues or [None]
            return info if info is not None and info.log_id != before else None

        found = eventually(moved, f"{self.name} is in another log than {before}")
        self.logs.append(found.log_id)
        return found


@contextmanager
def moving_queue(path: Path, arguments: dict[str, Any] | None = None, **options: Any) -> Iterator[MovingQueue]:
    """On a cluster with its directories there. `arguments`: of the queue; `options`: of the cluster."""
    with fast_cluster(3, min_in_sync=1, data_dir=path, **options) as cluster, Client(*cluster.servers) as client:
        cluster.wait_in_sync()
        for number, nodes in enumerate((HERE, HERE, THERE, ["n1"])):
            client.admin.declare(f"beside-{number}", {"nodes": nodes, "retention_ms": 1})
        first = client.admin.declare("q", {"nodes": HERE, **(arguments or {})})
        yield MovingQueue(cluster, client, logs=[first.log_id])


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[MovingQueue]:
    with moving_queue(tmp_path / "nodes") as queue:
        yield queue


def over(queue: MovingQueue, **options: Any) -> SourceOptions:
    given = {"starting": "earliest", "columns": COLUMNS, **options}
    return SourceOptions(servers=tuple(queue.cluster.servers), queues=(queue.name,), **given)


def plan(options: SourceOptions) -> list[QueueRange]:
    with open_lookup(options) as lookup:
        return planned(options, lookup)


def rows(options: SourceOptions) -> list[dict[str, Any]]:
    batches = [each for wanted in plan(options) for each in record_batches(options, wanted)]
    found: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist() if batches else []
    return found


def offsets(options: SourceOptions) -> list[int]:
    return [row["offset"] for row in rows(options)]


def test_a_job_reads_each_span_in_its_log(moving: MovingQueue) -> None:
    """Goal: a read over nodes has every record once, from the log in which it stands, and says which that is. A queue
    goes to another node and comes back, with records in each span; read it from masters, mirrors and the nearest, all
    of it, from offsets, positions and times in each span, up to such ones, and in many tasks."""
    times = []
    for nodes in (None, THERE, HERE):
        if nodes is not None:
            moving.move(nodes)
        times.append(time.time_ns() // 1000)
        moving.publish()
    assert moving.logs[0] == moving.logs[2] != moving.logs[1]
    expected = [(n, value(n), moving.logs[n // COUNT]) for n in range(3 * COUNT)]
    for read_from in ("master", "mirror", "nearest"):
        found = rows(over(moving, read_from=read_from))
        assert [(row["offset"], row["value"], row["logId"]) for row in found] == expected, read_from
    epochs = {row["offset"]: row["epoch"] for row in found}
    assert [(each.log_id, each.first, each.next) for each in plan(over(moving))] == [
        (moving.logs[number], number * COUNT, (number + 1) * COUNT) for number in range(3)
    ]
    assert len(plan(over(moving, min_partitions=10))) >= 10
    assert offsets(over(moving, min_partitions=10)) == list(range(3 * COUNT))
    for number in range(3):
        first = number * COUNT
        assert offsets(over(moving, starting=AtTime(times[number]))) == list(range(first, 3 * COUNT))
        assert offsets(over(moving, ending=AtTime(times[number]))) == list(range(first))
        assert offsets(over(moving, starting={"q": first + 5}, ending={"q": first + 7})) == [first + 5, first + 6]
        log_id, incarnation = moving.logs[number], moving.info.incarnation
        position = QueuePosition(first + 5, epochs[first + 4], log_id, incarnation)
        assert offsets(over(moving, starting={"q": position})) == list(range(first + 5, 3 * COUNT))


@pytest.mark.long
def test_a_plan_has_a_queue_that_is_between_two_logs(moving: MovingQueue) -> None:
    """Goal: no stream ends, and no landing is told that there is no such queue, because it moves. Plans are made
    all the time, by name and by pattern, while it goes from log to log."""
    named, listed = over(moving), replace(over(moving), queues=(), pattern="q")
    moving.publish()
    with ThreadPoolExecutor(1) as thread:
        for nodes in (THERE, HERE, THERE):
            moves = thread.submit(moving.move, nodes)
            while not moves.done():
                for options in (named, listed):
                    assert sum(map(len, plan(options))) == moving.count
            moves.result()
            moving.publish()


def test_by_path_it_is_the_same_queue_as_over_nodes(moving: MovingQueue, tmp_path: Path) -> None:
    """Goal: both readers have the same rows, from the same logs. A queue goes elsewhere and comes back; read it from
    the nodes and from their directories, while they run and when they have stopped; the directory of one node that has
    a part of it alone says what is missing."""
    path = tmp_path / "nodes"
    moving.publish()
    for nodes in (THERE, HERE):
        moving.move(nodes)
        moving.publish()
    files = replace(over(moving), servers=(), path=str(path))
    expected = rows(over(moving))

    def met() -> bool:
        """The checkpoint, which is all that a reader of files may believe, is written twice a second."""
        with open_lookup(files) as lookup:
            facts = lookup.facts(["q"])
        return facts == ask_nodes(moving.cluster.servers, ["q"])

    eventually(met, "the path has what the nodes say")
    assert rows(files) == expected
    with pytest.raises(RecordsMissing, match=f"went on in log {moving.logs[0]} with record {2 * COUNT}"):
        plan(replace(files, path=str(path / "n3")))
    for node in moving.cluster.nodes.values():
        node.stop()
    assert rows(files) == expected
    with pytest.raises(RecordsMissing, match=f"stood in log {moving.logs[1]}"):
        rows(replace(files, path=str(path / "n1")))


def test_an_audit_compares_each_span_among_its_nodes(moving: MovingQueue) -> None:
    """Goal: all copies of all records are compared, also on nodes that have old ones alone. A queue goes elsewhere and
    comes back; of each span its nodes are named with what they have, whole and from within the first one on."""
    moving.publish()
    for nodes in (THERE, HERE):
        moving.move(nodes)
        moving.publish()
    for first in (0, 10):
        found = audit(moving.cluster.servers, "q", first=first)
        assert (found.findings, found.first, found.next) == ((), first, 3 * COUNT)
        seen = sorted((copy.node, copy.records) for copy in found.copies)
        assert [node for node, _ in seen] == ["n1", "n1", "n2", "n2", "n3"]
        assert sum(records for _, records in seen) >= 5 * COUNT - 2 * first
        assert [note.partition(" are in")[0] for note in found.notes] == [
            *[f"{first} up to {COUNT}"] * 2, f"{COUNT} up to {2 * COUNT}"
        ]  # fmt: skip


def test_what_is_copied_after_it_was_planned_is_read_all_the_same(moving: MovingQueue, tmp_path: Path) -> None:
    """Goal: a sync (decision 0051) is in nobody's way. A job over two former logs, and a position in the first, are
    from before; then all is copied to the newest one. The job's tasks, a read from the position, a new one, and one by
    path have every record once, and say in which log they have found it."""
    for nodes in (None, THERE, ["n1"]):
        if nodes is not None:
            moving.move(nodes)
        moving.publish()
    options = over(moving)
    files = replace(options, servers=(), path=str(tmp_path / "nodes"))
    planned_before, found = plan(options), rows(options)
    assert [each.log_id for each in planned_before] == moving.logs
    position = QueuePosition(6, found[5]["epoch"], moving.logs[0], moving.info.incarnation)
    moving.client.admin.sync_queue("q")
    eventually(lambda: not moving.info.spans, "all is copied")
    values = [row["value"] for row in found]

    def read_by(options: SourceOptions, wanted: Sequence[QueueRange]) -> list[dict[str, Any]]:
        batches = [batch for each in wanted for batch in record_batches(options, each)]
        read: list[dict[str, Any]] = pa.Table.from_batches(batches).to_pylist()
        return read

    for read in (read_by(options, planned_before), rows(options)):
        assert [row["value"] for row in read] == values
        assert {row["logId"] for row in read} == {moving.logs[-1]}
    assert [row["value"] for row in rows(replace(options, starting={"q": position}))] == values[6:]
    eventually(lambda: [row["value"] for row in rows(files)] == values, "the path has what the nodes say")


@pytest.mark.long_after(1)
@pytest.mark.parametrize("where", ["within its span", "all of its span"])
def test_what_was_freed_of_a_former_span_comes_from_the_table(tmp_path: Path, where: str) -> None:
    """Goal: a consumer does not notice a border, neither between logs nor between log and table. A tiered queue is
    landed; its log frees some of it, and it moves to a node that has nothing of that log; or it moves, and all of its
    former span is freed. Read it all, from its begin and from a time, from the master and the nearest."""
    table, size = str(tmp_path / "table"), 8 * 1024
    small = {"log.kept_mapped_bytes": 0, "limits.max_batch_bytes": MIB, "limits.max_record_bytes": MIB // 2}
    with moving_queue(tmp_path / "nodes", {"tier_keep_ms": 0}, segment_bytes=MIB, settings=small) as moving:
        client = moving.client
        landed: list[ConsumedRecord] = []

        def land(count: int) -> None:
            """Publish, and have the table and its hold say that all of it is landed."""
            hold = {"holder": "x", "lease_ms": 3_600_000, "location": table, "tiered": True}
            client.admin.set_hold("q", "lake", queue_offset=len(landed), **hold)
            moving.publish(count, size=size)
            with client.consumer("q", start=len(landed), until="confirmed") as consumer:
                landed.extend(consumer)
            cluster_id = client.admin.metadata(["q"]).cluster_id
            ids = [Transaction(f"mirrorlog:{cluster_id}:{moving.info.incarnation}", len(landed))]
            sets = CommitProperties(app_transactions=ids)
            write_deltalake(table, table_of(landed), mode="overwrite", commit_properties=sets)
            client.admin.set_hold("q", "lake", queue_offset=len(landed), **hold)

        def grow_until(least: int) -> None:
            """What is freed follows the log's growth."""

            def met() -> bool:
                for number in range(4):
                    with client.producer(f"beside-{number}") as producer:
                        producer.send_many([bytes(size)] * 32)
                return moving.info.begin >= least

            eventually(met, f"q begins at {least}", timeout=60)

        land(300)
        if where == "within its span":
            grow_until(1)
            moving.move(THERE)
        else:
            moving.move(THERE)
            land(300)
            grow_until(301)
            eventually(lambda: not moving.info.spans, "the former span has ended")
        moving.publish(20, size=size)
        assert 0 < moving.info.begin < moving.count
        files = replace(over(moving), servers=(), path=str(tmp_path / "nodes"))
        eventually(lambda: rows(files) == rows(over(moving)), "the path has what the nodes say")
        with client.consumer("q", start=0, until="confirmed", tiers=False) as consumer, pytest.raises(OffsetOutOfRange):
            next(iter(consumer))
        middle = datetime.fromtimestamp(landed[100].append_time_us / 1e6, UTC)
        for read_from in ("master", "nearest"):
            with client.consumer("q", start="earliest", until="confirmed", read_from=read_from) as consumer:
                found = list(consumer)
            assert [each.queue_offset for each in found] == list(range(moving.count))
            assert found[: len(landed)] == landed
            with client.consumer("q", start=middle, until="confirmed", read_from=read_from) as consumer:
                first = next(iter(consumer))
            assert first.append_time_us == landed[100].append_time_us


# --- With Spark -----------------------------------------------------------------------------------------------------

UPSERT = {"write": "upsert"}
JSON = {"mode": "json", "decoder": {"schema": "n BIGINT"}}


def epochs_of(table: Path) -> set[str]:
    """The logs of which the table has an epoch."""
    commits = sorted((table / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    found = [action["txn"]["appId"].split(":") for action in actions if "txn" in action]
    return {parts[-1] for parts in found if parts[-2] in ("log", "pending")}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["raw", "upserted", "decoded"])
def test_a_landing_goes_on_over_the_borders(
    spark: SparkSession, moving: MovingQueue, tmp_path: Path, kind: str
) -> None:
    """Goal: a table has each record once, in whichever log it stands, and is equal to the queue. A queue goes elsewhere
    and comes back, with records in each span, and is landed before and after, in steps that end within a span and
    reach over borders: appended, merged by key, or decoded with dead letters. The hold goes with the queue."""
    servers, table, dead = moving.cluster.servers, tmp_path / "table", tmp_path / "dead"
    keys = {"raw": {"max_records": 50}, "upserted": UPSERT, "decoded": {**JSON, "dead_letters": str(dead)}}[kind]
    made = landing({"queue": "q", "servers": servers, "table": str(table), **keys})
    holds = Holds(made)
    moving.publish()
    assert land_all(Runner(spark), made, holds).next == COUNT
    for nodes in (THERE, HERE):
        moving.publish()
        moving.move(nodes)
        (hold,) = moving.client.admin.holds("q")
        assert (hold.name, hold.queue_offset) == (made.name, moving.count - COUNT)
        moving.publish()
        assert land_all(Runner(spark), made, holds).next == moving.count
    moving.publish()
    moving.move(["n1"])
    moving.client.admin.sync_queue("q")
    eventually(lambda: not moving.info.spans, "all is copied")
    moving.publish()
    assert land_all(Runner(spark), made, holds).next == moving.count
    assert epochs_of(table) == {*moving.logs}
    if kind == "upserted":
        assert reconcile(spark, LogSource(tuple(servers)), "q", table, write="upsert").equal
    else:
        letters = dead if kind == "decoded" else None
        assert_is_the_log(spark, servers, "q", table, moving.count, dead_letters=letters)
    holds.end()


@pytest.mark.long_after(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("places", [[THERE, HERE], [THERE, ["n1"], HERE, THERE, HERE]], ids=["twice", "often"])
def test_a_landing_and_a_stream_run_while_their_queue_moves(
    spark: SparkSession, moving: MovingQueue, tmp_path: Path, places: list[list[str]]
) -> None:
    """Goal: nobody has to stop for a move. A service lands the queue and a stream of Spark's reads it, each into its
    table, while somebody publishes, and the queue goes elsewhere and comes back; both have every record once, and
    neither has ended. The long form has more moves, a sync, and kill -9 of a node that has old records."""
    servers, table, streamed = moving.cluster.servers, tmp_path / "table", tmp_path / "streamed"
    made = landing({"queue": "q", "servers": servers, "table": str(table), "max_latency_s": 0.1})
    service = Service(spark, [made])
    (turn,) = service.schedule.turns
    source = spark.readStream.format("mirrorlog").options(
        servers=",".join(servers), subscribe="q", startingOffsets="earliest"
    )
    writing = source.load().writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writing.start(str(streamed))
    try:
        with Traffic(servers, "q", rate=100) as traffic:

            def go_on(*at: Callable[[], int]) -> None:
                """Until they are at what is confirmed now."""
                count = len(traffic.confirms)
                wait_for(
                    lambda: all(each() >= count for each in at) or None,
                    timeout=240,
                    what=lambda: f"{count} are landed: {turn.landed}, {turn.error}; {query.lastProgress}",
                )

            stream, lands = partial(streamed_up_to, query), partial(landed_up_to, turn)
            go_on(stream)
            with running(service):
                go_on(lands)
                for number, nodes in enumerate(places):
                    moving.move(nodes)
                    go_on(stream, lands)
                    if number == 2:
                        moving.client.admin.sync_queue("q")
                    if number == 3:
                        moving.cluster.nodes["n2"].kill()
                        go_on(stream, lands)
                        moving.cluster.nodes["n2"].start()
                        moving.cluster.wait_in_sync()
                traffic.stop()
                count = len(traffic.confirms)
                go_on(stream, lands)
        assert (turn.error, query.exception()) == (None, None)
    finally:
        query.stop()
    assert_is_the_log(spark, servers, "q", table, count)
    assert sorted(landed_offsets(table)) == sorted(landed_offsets(streamed)) == list(range(count))


@pytest.mark.long
def test_a_stream_goes_on_from_its_checkpoint_over_moves_and_a_sync(
    spark: SparkSession, moving: MovingQueue, tmp_path: Path
) -> None:
    """Goal: a checkpoint outlives what becomes of the logs. Runs with availableNow, from one checkpoint: before a move,
    behind it, behind another one, and when all is copied to the newest log."""
    servers, table, checkpoint = moving.cluster.servers, tmp_path / "table", tmp_path / "checkpoint"
    options = {"subscribe": "q", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(COUNT + 5)}
    for nodes in (None, THERE, HERE, None):
        moving.publish()
        if nodes is not None:
            moving.move(nodes)
        else:
            moving.client.admin.sync_queue("q")
            eventually(lambda: not moving.info.spans, "all is copied")
        moving.publish()
        stream_to_delta(spark, servers, table, checkpoint, **options)
        assert landed_offsets(table) == list(range(moving.count))


def landed_up_to(turn: Turn) -> int:
    return (turn.landed or {}).get("q", 0)


def streamed_up_to(query: StreamingQuery) -> int:
    """Where the query's last trigger ended."""
    if (error := query.exception()) is not None:
        raise error
    progress = query.lastProgress
    end = json.loads(progress.sources[0].endOffset) if progress is not None and progress.sources else {}
    return int(end.get("q", {}).get("0", {}).get("offset", 0))


@pytest.mark.long
def test_a_landing_over_a_border_outlives_the_master_of_the_former_log(
    spark: SparkSession, moving: MovingQueue, tmp_path: Path
) -> None:
    """Goal: what stands in a former log is landed from another copy of it. A queue moves with nothing landed; kill -9
    the former log's master once the first step over the border is planned."""
    servers, table = moving.cluster.servers, tmp_path / "table"
    moving.publish(2000)
    former = moving.cluster.nodes[moving.info.master]
    moving.move(THERE)
    moving.publish(500)
    steps: list[int] = []

    def reached(moment: StepMoment) -> None:
        if moment is StepMoment.PLANNED:
            steps.append(0)
            if len(steps) == 2:
                former.kill()

    result = land(spark, servers, "q", table, read_from="master", max_records=1500, on_moment=reached)
    assert (result.first, result.next, result.rows) == (0, 2500, 2500)
    assert not former.running
    assert_is_the_log(spark, servers, "q", table, 2500)


@pytest.mark.long
def test_a_replay_comes_from_and_goes_to_queues_that_have_moved(
    spark: SparkSession, moving: MovingQueue, tmp_path: Path
) -> None:
    """Goal: a replay publishes each record once, also when it was begun before its target moved. Land a queue over a
    border; replay a part into a queue, move that, replay the same and the rest."""
    servers, table = moving.cluster.servers, tmp_path / "table"
    moving.publish()
    moving.move(THERE)
    moving.publish()
    land(spark, servers, "q", table)
    moving.client.admin.declare("again", {"nodes": HERE})
    target = ReplayTarget(tuple(servers), "again")
    again = MovingQueue(moving.cluster, moving.client, "again")
    for name, end in (("one", COUNT + 10), ("one", COUNT + 10), ("two", 2 * COUNT)):
        first = 0 if name == "one" else COUNT + 10
        replay_table(spark, table, target, Selection("q", first, end), name=name)
        again.move(THERE if again.info.master in HERE else HERE)
    with moving.client.consumer("again", start="earliest", until="confirmed") as consumer:
        assert [each.value for each in consumer] == [value(number) for number in range(2 * COUNT)]
