"""The rows of a run: the same in a queue, in Parquet files and, where Kafka is there, in a topic.

`random` does not compress: there the codec is off, and what is measured is moving bytes. `text` is JSON that does, as
most of what people publish; there the codec is snappy, Spark's default.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from bench.workload import KIB
from mirrorlog.client.sync import Client

RECORD_BYTES: Final = KIB
CODEC: Final = {"random": "none", "text": "snappy"}
"""By kind of rows: how files are compressed, on every side."""

FILES: Final = 8
"""Of Parquet; an even number of tasks for two cores."""

_CHUNK: Final = 8192
_CARRIERS: Final = ("UA", "AA", "DL", "B6", "EV", "MQ", "US", "WN", "VX", "FL")


@dataclass(frozen=True, slots=True)
class Rows:
    """`count` records of RECORD_BYTES each. `kind`: random or text."""

    kind: str
    count: int

    @property
    def queue(self) -> str:
        return f"rows-{self.kind}"

    @property
    def megabytes(self) -> float:
        return self.count * RECORD_BYTES / 1e6

    def values(self, first: int) -> pa.Array:
        """The values from row `first` on, at most _CHUNK of them; the same whenever asked for."""
        count = min(_CHUNK, self.count - first)
        return _random(first, count) if self.kind == "random" else _text(first, count)

    def starts(self) -> range:
        """The rows at which a chunk begins."""
        return range(0, self.count, _CHUNK)


def publish(rows: Rows, servers: list[str]) -> None:
    """All rows into their queue, confirmed."""
    with Client(*servers) as client:
        client.admin.declare(rows.queue)
        with client.producer(rows.queue) as producer:
            for first in rows.starts():
                producer.send_many(rows.values(first))


def write_parquet(spark: SparkSession, rows: Rows, servers: list[str], folder: Path) -> None:
    """What the queue holds, with the source's columns, in FILES files as Spark writes them.

    From the queue, so that both sides have the same columns and values. Raises AssertionError when it is not all there.
    """
    spark.conf.set("spark.sql.parquet.compression.codec", CODEC[rows.kind])
    source = spark.read.format("mirrorlog").options(
        servers=",".join(servers), subscribe=rows.queue, minPartitions=str(FILES)
    )
    source.load().write.parquet(str(folder))
    found = sum(pq.ParquetFile(file).metadata.num_rows for file in folder.glob("*.parquet"))
    assert found == rows.count, f"{found} rows in {folder}, {rows.count} were published"


def _random(first: int, count: int) -> pa.Array:
    data = np.random.default_rng(first).bytes(count * RECORD_BYTES)
    offsets = np.arange(0, (count + 1) * RECORD_BYTES, RECORD_BYTES, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _text(first: int, count: int) -> pa.Array:
    """Lines of JSON of a flight, its fields over and over with other numbers, cut to one length."""
    numbers = np.random.default_rng(first).integers(0, 10_000, size=(count, 24))
    lines = (
        "["
        + ",".join(
            f'{{"carrier":"{_CARRIERS[each % 10]}","flight":{each},"delay":{each % 97},"seat":"{each:05d}"}}'
            for each in row
        )
        for row in numbers.tolist()
    )
    return pc.cast(pa.array([line[:RECORD_BYTES].ljust(RECORD_BYTES) for line in lines]), pa.binary())
