"""Landings from end to end, on real nodes: beside retention and tiering, over damaged copies, in a service with its
upkeep, by schemas that drift, and what remains when everything but the table is gone."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from pyspark.sql import SparkSession

from mirrorlog.client.sync import Client
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import OffsetOutOfRange
from mirrorlog.spark.checks.differences import DifferenceKind
from mirrorlog.spark.checks.scope import LogSource
from mirrorlog.spark.errors import RecordsMissing
from mirrorlog.spark.land import land, land_all
from mirrorlog.spark.landing.definition import Landing, landing
from mirrorlog.spark.landing.holds import NOBODY, Holds
from mirrorlog.spark.landing.runner import Runner
from mirrorlog.spark.landing.service.service import Service
from mirrorlog.spark.landing.upkeep import SMALL_FILES_MIN, Duty, DutyDone, TableUpkeep
from mirrorlog.spark.reconcile import reconcile
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.queues import QueueInfo
from tests.spark.decode.test_avro import confluent, folder_of, record, written
from tests.spark.landing_child import STREAMED
from tests.spark.queues import every_kind_of_record, publish
from tests.spark.test_land import assert_is_the_log, die_landing, landed_offsets, numbered, positions
from tests.spark.test_landing_runner import MIB, SMALL, damage, notes
from tests.spark.test_landing_service import eventually, running
from tests.spark.test_stream import landed, stream_to_delta

FREEING = {**SMALL, "log.kept_mapped_bytes": 0}
"""Segments can go as soon as they are full."""
_HOUR_MS = 3600 * 1000
_WAIT_S = 120


def made(servers: Sequence[str], queue: str, table: Path, **keys: Any) -> Landing:
    return landing({"queue": queue, "servers": list(servers), "table": str(table), "read_from": "master", **keys})


def info(client: Client, queue: str) -> QueueInfo:
    return client.admin.metadata([queue]).queues[0]


def grow_until(client: Client, queue: str, met: Callable[[], object], what: str) -> None:
    """Publish until then: what is freed follows the log's growth."""
    with client.producer(queue) as producer:

        def grown() -> object:
            producer.send_many([bytes(8 * 1024)] * 16)
            return met() or None

        wait_for(grown, timeout=_WAIT_S, what=lambda: what)


def let_go_until(client: Client, queue: str, least: int, *, grows: str) -> int:
    """Until the queue begins there or later, and then no more of it; where it begins."""
    grow_until(client, grows, lambda: info(client, queue).begin >= least, f"the log begins {queue} at {least}")
    begin = info(client, queue).begin
    return client.admin.set_hold(queue, "brake", holder="x", queue_offset=begin, lease_ms=_HOUR_MS).begin


# --- What a stream and a landing leave, and need --------------------------------------------------------------------


@pytest.mark.long
def test_a_stream_that_dies_before_its_checkpoint_lands_nothing_twice_and_without_one_all(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: Spark's own way is exactly once as long as the checkpoint is kept, and no longer. SIGKILL the driver of a
    stream between Delta's commit and Spark's; run again. Then delete the checkpoint and run again: all comes twice."""
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"
    options = {"subscribe": queue, "startingOffsets": "earliest"}
    publish(servers, queue, numbered(0, 60))
    stream_to_delta(spark, servers, table, checkpoint, **options)
    publish(servers, queue, numbered(60, 40))
    case = {"queue": queue, "table": str(table), "servers": servers, "checkpoint": str(checkpoint)}
    die_landing({"moment": STREAMED, **case})
    assert DeltaTable(table).version() == 1
    assert [(checkpoint / log / "1").exists() for log in ("offsets", "commits")] == [True, False]
    publish(servers, queue, numbered(100, 10))
    stream_to_delta(spark, servers, table, checkpoint, **options)
    expected = [(queue, number, b"%d" % number) for number in range(110)]
    assert landed(spark, table) == expected
    shutil.rmtree(checkpoint)
    stream_to_delta(spark, servers, table, checkpoint, **options)
    assert Counter(landed(spark, table)) == Counter(expected * 2)


def test_a_landing_needs_nothing_but_its_table(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: there is no checkpoint that could be lost. Land, with a hold; then end the hold, take the table alone to
    another place and delete all else; land there: nothing is added but what is new."""
    first, second = tmp_path / "first" / "table", tmp_path / "second" / "table"
    publish(servers, queue, every_kind_of_record(80))
    one = made(servers, queue, first)
    land_all(Runner(spark), one, Holds(one))
    with Client(*servers) as client:
        client.admin.end_hold(queue, one.name)
    shutil.copytree(first, second)
    shutil.rmtree(first.parent)
    assert land(spark, servers, queue, second).rows == 0
    publish(servers, queue, numbered(80, 5))
    assert land(spark, servers, queue, second).rows == 5
    assert positions(second) == [80, 85]
    assert_is_the_log(spark, servers, queue, second, 85)


# --- Beside retention and tiering -----------------------------------------------------------------------------------


@pytest.mark.long
def test_retention_waits_for_a_hold_and_a_landing_without_one_says_exactly_what_it_missed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: a registered landing holds, an ended one does not, and says so. Of 5 MiB on a node that keeps 2, land 250
    records and stop: what is below goes, and nothing else. End the hold: more goes. Come back, both ways."""
    table = tmp_path / "table"
    with (
        Cluster(1, segment_bytes=MIB, settings={**FREEING, "log.retention_bytes": 2 * MIB}) as cluster,
        Client(*cluster.servers) as client,
    ):
        one = made(cluster.servers, "q", table, max_records=250)
        holds = Holds(one)
        publish(cluster.servers, "q", numbered(0, 50))
        assert Runner(spark).step(one, holds).rows == 50
        publish(cluster.servers, "q", [Record(b"x" * 8192)] * 600, batch_records=20)
        assert Runner(spark).step(one, holds).rows == 250
        holds.end()
        (hold,) = client.admin.holds("q")
        assert (hold.holder, hold.queue_offset, hold.lag, hold.ended) == (NOBODY, 300, 350, "")
        client.admin.declare("beside")
        grow_until(client, "beside", lambda: info(client, "q").begin, "retention has freed what nobody holds")
        assert 0 < info(client, "q").begin <= 300
        with client.consumer("q", start=300, until="confirmed") as consumer:
            assert sum(1 for _ in consumer) == 350

        client.admin.end_hold("q", one.name)
        begin = let_go_until(client, "q", 301, grows="q")
        following = info(client, "q").next
        again = Holds(one)
        with pytest.raises(RecordsMissing, match=f"300 up to {begin}"):
            Runner(spark).step(one, again)
        assert landed_offsets(table) == list(range(300))
        skipping = replace(one, on_data_loss="skip", max_records=10**6)
        result = Runner(spark).step(skipping, again)
        ((missed,),) = (each.missed for each in result.queues)
        assert ((missed.first, missed.next), result.rows) == ((300, begin), following - begin)
        assert notes(table)[-1]["missed"][0][:3] == ["q", 300, begin]
        assert landed_offsets(table) == [*range(300), *range(begin, following)]
        found = reconcile(spark, LogSource(tuple(cluster.servers)), "q", table)
        assert [(each.kind, each.first, each.next) for each in found.differences] == [
            (DifferenceKind.MISSING_IN_TABLE, 300, begin)
        ]


@pytest.mark.long
def test_a_consumer_reads_across_the_border_of_the_table_that_a_landing_wrote(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: tiering, from end to end. Read a queue; land it tiered, in several commits; wait until its begin has moved;
    read it again from 0: the same values, keys, headers, event and append times, now from the table and the log."""
    table, padding = tmp_path / "table", bytes(1024)
    records = [each._replace(value=each.value and each.value + padding) for each in every_kind_of_record(3000)]
    with Cluster(1, segment_bytes=MIB, settings=FREEING) as cluster, Client(*cluster.servers) as client:
        client.admin.declare("q", {"tier_keep_ms": 0})
        client.admin.declare("beside", {"retention_ms": 1})
        send(client, "q", records[:2500])
        one = made(cluster.servers, "q", table, tiered=True, max_records=1000)
        holds = Holds(one)
        assert land_all(Runner(spark), one, holds).next == 2500
        send(client, "q", records[2500:])
        with client.consumer("q", start=0, until="confirmed") as consumer:
            before = list(consumer)
        assert [each.queue_offset for each in before] == list(range(3000))
        begin = let_go_until(client, "q", 1, grows="beside")
        assert 0 < begin <= 2500
        assert [tier.location for tier in info(client, "q").tiers] == [str(table)]
        with client.consumer("q", start=0, until="confirmed", tiers=False) as consumer, pytest.raises(OffsetOutOfRange):
            next(iter(consumer))
        with client.consumer("q", start=0, until="confirmed") as consumer:
            after = [(each, consumer.served_by) for each in consumer]
        assert [each for each, _ in after] == before
        assert after[0][1] == str(table)
        assert after[-1][1] != str(table)
        assert land_all(Runner(spark), one, holds).rows == 500
        assert landed_offsets(table) == list(range(3000))


def send(client: Client, queue: str, records: Sequence[Record]) -> None:
    with client.producer(queue) as producer:
        for each in records:
            producer.send_nowait(each.value, key=each.key, headers=each.headers, timestamp=each.timestamp_us)
        producer.flush()


# --- Over a damaged copy --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_landing_reads_on_elsewhere_when_a_copy_is_damaged_and_the_copy_is_repaired(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Goal: bad bytes on one of three nodes cost nothing. Damage a record on the master's disk and land from it: it
    ends rather than serve it, and all is landed from the next one. Start it again: its own copy is whole."""
    # A busy machine is not to change the master before it has been read from.
    settings = {**FREEING, "cluster.node_timeout_ms": 60_000}
    with Cluster(3, data_dir=tmp_path / "nodes", segment_bytes=MIB, settings=settings) as cluster:
        cluster.wait_in_sync()
        publish(cluster.servers, "q", [*numbered(0, 50), Record(b"the damaged one")], batch_records=10)
        publish(cluster.servers, "q", [Record(b"x" * 8192)] * 500, batch_records=10)
        cluster.wait_confirmed()
        node = cluster.master
        damage(node.data_dir, b"the damaged one")
        assert land(spark, cluster.servers, "q", tmp_path / "table", read_from="master").rows == 551
        wait_for(lambda: not node.running or None, timeout=_WAIT_S, what=lambda: "the node with the bad bytes ends")
        assert_is_the_log(spark, cluster.servers, "q", tmp_path / "table", 551)
        node.start()
        cluster.wait_in_sync()
        assert land(spark, cluster.servers, "q", tmp_path / "other", read_from=node.id).rows == 551
        assert_is_the_log(spark, cluster.servers, "q", tmp_path / "other", 551)


# --- In a service ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_service_compacts_its_table_by_schedule_and_goes_on(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: the real upkeep in the real service. Many small commits, a compaction between them when it is due; the
    landing goes on from its position, and the table is the queue."""
    publish(servers, queue, every_kind_of_record(100))
    keys = {"max_records": 10, "max_latency_s": 0.1, "compact_every_s": 1, "checkpoint_every_s": 3600}
    one = made(servers, queue, tmp_path, hold=False, **keys)
    told: list[DutyDone] = []
    service = Service(spark, [one], upkeep=TableUpkeep(spark, on_done=lambda _, done: told.append(done)))
    (turn,) = service.schedule.turns

    def compactions() -> list[DutyDone]:
        return [each for each in told if each.duty is Duty.COMPACT]

    with running(service):
        wait_for(compactions, timeout=_WAIT_S, what=lambda: f"the table is compacted, {told}, {turn.error}")
        eventually(turn, 100)
        publish(servers, queue, every_kind_of_record(20))
        eventually(turn, 120)
    assert turn.error is None
    (first, *_) = compactions()
    assert (first.files_before >= SMALL_FILES_MIN, first.files_after) == (True, 1)
    assert {each.duty for each in told} == {Duty.COMPACT, Duty.CHECKPOINT}
    assert len(DeltaTable(tmp_path).file_uris()) < len(positions(tmp_path))
    assert positions(tmp_path) == list(range(10, 121, 10))
    assert_is_the_log(spark, servers, queue, tmp_path, 120)


# --- By schemas that drift ------------------------------------------------------------------------------------------


def avro(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """The settings, and the values of two writers, the newer one's at 2, and one that is cut at 3."""
    old = record(("id", "long"), ("carrier", ["null", "string"]))
    new = record(("id", "long"), ("carrier", ["null", "string"]), ("gate", "string"))
    path.mkdir()
    folder = folder_of(path, _1=old, _2=new)
    values = [confluent(1, written(old, id=n, carrier="UA")) for n in range(5)]
    values[2] = confluent(2, written(new, id=2, carrier="UA", gate="C7"))
    values[3] = values[3][:-1]
    return {"schema": json.dumps(old), "framing": "confluent", "schemas": str(folder)}, values


def protobuf(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """The same of a message with one field; the newer writer's has another."""
    number = FieldDescriptorProto(
        name="id", number=1, type=FieldDescriptorProto.TYPE_INT64, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    message = DescriptorProto(name="Flight", field=[number])
    file = FileDescriptorProto(name="flight.proto", package="air", syntax="proto3", message_type=[message])
    path.write_bytes(FileDescriptorSet(file=[file]).SerializeToString())
    values = [b"\x08" + bytes([n]) for n in range(5)]
    values[2] += b"\x12\x02C7"
    values[3] = values[3][:-1]
    return {"schema_file": str(path), "message": "air.Flight"}, values


@pytest.mark.long
def test_avro_and_protobuf_are_landed_and_newer_writers_are_quarantined(
    spark: SparkSession, servers: list[str], queue: str, tmp_path: Path
) -> None:
    """Goal: no drift is passed over, through a whole landing. A record of a newer writer and a broken one of each
    format: dead letters with reason and bytes, the others are rows."""
    for mode, prepare, word in (("avro", avro, "gate"), ("protobuf", protobuf, "2")):
        decoder, values = prepare(tmp_path / f"{mode}-schema")
        name, table, dead = f"{queue}-{mode}", tmp_path / mode, tmp_path / f"{mode}-dead"
        publish(servers, name, [Record(value, key=b"k") for value in values])
        result = land(spark, servers, name, table, mode=mode, decoder=decoder, dead_letters=str(dead))
        assert (result.next, result.rows, result.dead_letters) == (5, 3, 2), mode
        rows = DeltaTable(table).to_pyarrow_table(columns=["id", "_offset"]).sort_by("_offset")
        assert rows["id"].to_pylist() == rows["_offset"].to_pylist() == [0, 1, 4], mode
        letters = DeltaTable(dead).to_pyarrow_table().sort_by("offset").to_pylist()
        assert [(each["offset"], each["value"]) for each in letters] == [(n, values[n]) for n in (2, 3)], mode
        assert word in letters[0]["reason"], letters
        assert_is_the_log(spark, servers, name, table, 5, dead_letters=dead)
