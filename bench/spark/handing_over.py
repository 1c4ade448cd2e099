"""A Python source that does nothing but hand rows over: what Spark's interface for such sources allows by itself.

Each task makes one Arrow batch with the columns of the real source, as many rows in it as that gives at a time, and
yields it until its share of the rows is given. No node, no socket to it, no checksum and no thread is there: what
is left is the way of a batch from a Python worker into Spark's JVM.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.spark.data import RECORD_BYTES
from mirrorlog.spark.reading.arrow import BYTES_MIN, arrow_schema
from mirrorlog.spark.reading.rows import spare_modules
from mirrorlog.spark.source import spark_schema

FORMAT: Final = "bench-handing-over"

# As the real source has them in one batch.
_BATCH: Final = BYTES_MIN // RECORD_BYTES


class HandingOver(DataSource):
    """Options `rows`: of all tasks, and `tasks`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The real source's."""
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises KeyError without both options."""
        return _Reader(rows=int(self.options["rows"]), tasks=int(self.options["tasks"]))


class _Share(InputPartition):
    """What one task hands over."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.rows = rows


class _Reader(DataSourceReader):
    def __init__(self, *, rows: int, tasks: int) -> None:
        self._rows = rows
        self._tasks = tasks

    def partitions(self) -> list[InputPartition]:
        """Of nearly equal size."""
        ends = [self._rows * number // self._tasks for number in range(self._tasks + 1)]
        return [_Share(end - first) for first, end in pairwise(ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        spare_modules()
        rows = _ready(_BATCH)
        for first in range(0, partition.rows, _BATCH):
            yield rows.slice(0, partition.rows - first)


@lru_cache(maxsize=1)
def _ready(count: int) -> pa.RecordBatch:
    """So many rows of random bytes, with what the real source gives besides."""
    values = np.random.default_rng(0).bytes(count * RECORD_BYTES)
    ends = np.arange(0, (count + 1) * RECORD_BYTES, RECORD_BYTES, dtype=np.int32)
    columns = {
        "key": pa.nulls(count, pa.binary()),
        "value": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(values)]),
        "topic": pa.repeat("rows-random", count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(np.arange(count)),
        "timestamp": pa.repeat(pa.scalar(1, pa.timestamp("us", "UTC")), count),
        "timestampType": pa.repeat(pa.scalar(1, pa.int32()), count),
    }
    schema = arrow_schema(include_headers=False)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
