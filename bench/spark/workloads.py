"""What is measured: each a function that moves all rows once, timed from the call to its end, with the session warm.

Every way has the same session, the same rows and the same codec. The sources are asked for as many tasks as there are
Parquet files; the landing takes one for each core, and writes two columns more (headers, append time) than the others
have. What lands is counted afterwards, outside the time; a way that lost or doubled a row fails.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import deltalake
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

from bench.measure import Figure
from bench.spark.data import CODEC, RECORD_BYTES, Rows
from bench.spark.handing_over import HandingOver
from bench.workload import LIMIT, OWN, PEER, Measured, WorkloadFailed
from mirrorlog.spark.land import land

NOOP: Final = "S1"
DELTA: Final = "S2"

_TASKS: Final = 8


@dataclass(slots=True)
class Lake:
    """The places of a run. `servers`: of the node; `data_dir`: its files; `kafka`: address, None without one."""

    spark: SparkSession
    folder: Path
    servers: list[str]
    data_dir: Path
    kafka: str | None = None
    _tables: itertools.count[int] = field(default_factory=itertools.count)

    def parquet(self, rows: Rows) -> Path:
        """Where the Parquet files of these rows are."""
        return self.folder / f"parquet-{rows.kind}"

    def new_table(self) -> Path:
        """A folder that is not there yet; those of before are removed, so that the disk does not fill."""
        for old in self.folder.glob("table-*"):
            shutil.rmtree(old)
        return self.folder / f"table-{next(self._tables)}"


Way = Callable[[Lake, Rows], None]
"""Moves the rows."""
LandingWay = Callable[[Lake, Rows, Path], None]
"""Lands the rows in a table at that path."""


def workloads(lake: Lake, random: Rows, text: Rows) -> list[Measured]:
    """All of them."""
    found = [
        _reading(lake, random, OWN, "mirrorlog source", from_nodes),
        _reading(lake, random, OWN, "mirrorlog source over path", from_path),
        _reading(lake, random, LIMIT, "Parquet source", from_parquet),
        _reading(lake, random, LIMIT, "Python source that only hands over", from_memory),
        _reading(lake, random, PEER, "Kafka source", from_kafka),
    ]
    for rows in (random, text):
        found += [
            _landing(lake, rows, OWN, "landing", land_columns),
            _landing(lake, rows, OWN, "writeStream to Delta", stream_to_delta),
            _landing(lake, rows, LIMIT, "Parquet to Delta", parquet_to_delta),
            _landing(lake, rows, LIMIT, "deltalake, one process", deltalake_alone),
        ]
    found.append(_landing(lake, random, PEER, "Kafka writeStream to Delta", kafka_to_delta))
    return found


# --- Reading ----------------------------------------------------------------------------------------------------------


def from_nodes(lake: Lake, rows: Rows) -> None:
    """The data source, over the network."""
    _noop(_queue(lake, rows, servers=",".join(lake.servers)))


def from_path(lake: Lake, rows: Rows) -> None:
    """The data source, from the node's log files."""
    _noop(_queue(lake, rows, path=str(lake.data_dir)))


def from_parquet(lake: Lake, rows: Rows) -> None:
    """Spark's own Parquet source over the same rows."""
    _noop(lake.spark.read.parquet(str(lake.parquet(rows))))


def from_memory(lake: Lake, rows: Rows) -> None:
    """A Python source that hands over the same batch again and again: what Spark's interface for them allows."""
    lake.spark.dataSource.register(HandingOver)
    options = {"rows": str(rows.count), "tasks": str(_TASKS)}
    _noop(lake.spark.read.format(HandingOver.name()).options(**options).load())


def from_kafka(lake: Lake, rows: Rows) -> None:
    """Spark's own Kafka source. Raises Skipped without Kafka."""
    options = {"kafka.bootstrap.servers": _kafka(lake), "subscribe": rows.queue, "minPartitions": str(_TASKS)}
    _noop(lake.spark.read.format("kafka").options(**options, startingOffsets="earliest").load())


def _queue(lake: Lake, rows: Rows, **where: str) -> DataFrame:
    options = {"subscribe": rows.queue, "minPartitions": str(_TASKS), **where}
    return lake.spark.read.format("mirrorlog").options(**options).load()


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


# --- Landing ----------------------------------------------------------------------------------------------------------


def land_columns(lake: Lake, rows: Rows, table: Path) -> None:
    """The landing: Parquet by Arrow in the tasks, one commit; files and commit are synced, which no other way does."""
    land(lake.spark, lake.servers, rows.queue, table, compression=CODEC[rows.kind])


def stream_to_delta(lake: Lake, rows: Rows, table: Path) -> None:
    """The plain way: a structured stream of the data source into Delta."""
    options = {"servers": ",".join(lake.servers), "subscribe": rows.queue, "minPartitions": str(_TASKS)}
    # A stream begins with what comes after it by default, as one of Kafka's source does.
    _stream(lake.spark.readStream.format("mirrorlog").options(**options, startingOffsets="earliest").load(), table)


def kafka_to_delta(lake: Lake, rows: Rows, table: Path) -> None:
    """The plain way, of Kafka's source. Raises Skipped without Kafka."""
    options = {"kafka.bootstrap.servers": _kafka(lake), "subscribe": rows.queue, "minPartitions": str(_TASKS)}
    _stream(lake.spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load(), table)


def parquet_to_delta(lake: Lake, rows: Rows, table: Path) -> None:
    """What Spark itself needs for the same rows: the limit of the engine."""
    lake.spark.read.parquet(str(lake.parquet(rows))).write.format("delta").save(str(table))


def deltalake_alone(lake: Lake, rows: Rows, table: Path) -> None:
    """delta-rs, in this process, from Arrow batches of the same files."""
    batches = ds.dataset(lake.parquet(rows), format="parquet").scanner(batch_size=8192).to_reader()
    codec = "UNCOMPRESSED" if CODEC[rows.kind] == "none" else CODEC[rows.kind].upper()
    properties = deltalake.WriterProperties(compression=codec)
    deltalake.write_deltalake(str(table), batches, writer_properties=properties)


def _stream(frame: DataFrame, table: Path) -> None:
    query = (
        frame.writeStream.format("delta")
        .option("checkpointLocation", f"{table}-checkpoint")
        .trigger(availableNow=True)
        .start(str(table))
    )
    query.awaitTermination()


# --- Measuring --------------------------------------------------------------------------------------------------------


def _reading(lake: Lake, rows: Rows, group: str, what: str, way: Way) -> Measured:
    def measure(case: str) -> list[Figure]:
        return _figures(NOOP, case, rows, _seconds(lambda: way(lake, rows)))

    return Measured(NOOP, f"{what} to noop, {RECORD_BYTES} B, {rows.kind}", measure, group)


def _landing(lake: Lake, rows: Rows, group: str, what: str, way: LandingWay) -> Measured:
    def measure(case: str) -> list[Figure]:
        table = lake.new_table()
        lake.spark.conf.set("spark.sql.parquet.compression.codec", CODEC[rows.kind])
        seconds = _seconds(lambda: way(lake, rows, table))
        _check(lake, rows, table)
        return _figures(DELTA, case, rows, seconds)

    codec = CODEC[rows.kind].replace("none", "uncompressed")
    return Measured(DELTA, f"{what}, {RECORD_BYTES} B, {rows.kind}, {codec}", measure, group)


def _check(lake: Lake, rows: Rows, table: Path) -> None:
    """Each row once. Raises WorkloadFailed."""
    landed = lake.spark.read.format("delta").load(str(table))
    found = landed.count(), landed.select("offset").distinct().count()
    if found != (rows.count, rows.count):
        raise WorkloadFailed(f"{found[0]} rows with {found[1]} offsets landed, {rows.count} were to")


def _seconds(job: Callable[[], None]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def _figures(workload: str, case: str, rows: Rows, seconds: float) -> list[Figure]:
    return [
        Figure(workload, case, "rate", "rows/s", rows.count / seconds),
        Figure(workload, case, "throughput", "MB/s", rows.megabytes / seconds),
    ]


def _kafka(lake: Lake) -> str:
    if lake.kafka is None:
        raise WorkloadFailed("Kafka is not there: python -m bench.peers.install kafka spark-kafka")
    return lake.kafka
