"""A queue's log as a job reads it: from nodes, or straight from log directories, with one face for both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from mirrorlog.errors import BadInput, NoSuchQueue
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.options import offsets_json, parse_options
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.reading.differences import Gap
from mirrorlog.spark.reading.history import gaps_of
from mirrorlog.spark.reading.lookup import open_lookup
from mirrorlog.spark.source import FORMAT, register, spark_schema

_RECORDS_PER_TASK_MIN: Final = 50_000


@dataclass(frozen=True, slots=True)
class LogSource:
    """`servers`: client addresses of nodes; or `path`: of log directories. One of the two."""

    servers: tuple[str, ...] = ()
    path: str | None = None
    read_from: str = "master"
    access: Access = NO_ACCESS

    def __post_init__(self) -> None:
        if bool(self.servers) == bool(self.path):
            raise BadInput("give the addresses of nodes, or a path with log directories, and not both")

    def facts(self, queue: str) -> QueueFacts:
        """Blocks; not for use on an event loop. Raises NoSuchQueue, ConnectionLost, and what log files are not."""
        with open_lookup(parse_options(self._options(queue))) as lookup:
            for facts in lookup.facts([queue]):
                return facts
        raise NoSuchQueue(f"no queue {queue!r} in {self.path or 'the cluster; see: mqtool queues'}")

    def gaps(self, facts: QueueFacts, first: int, following: int) -> list[Gap]:
        """Declared losses within `first` up to `following` (exclusive). Blocks; raises as `facts`."""
        with open_lookup(parse_options(self._options(facts.name))) as lookup:
            return gaps_of(lookup, facts, first, following)

    def rows(
        self, spark: SparkSession, facts: QueueFacts, parts: Sequence[tuple[int, int]], columns: Iterable[str]
    ) -> DataFrame:
        """The records of the queue in `parts`, ranges [first, following) without a gap: offset and `columns`."""
        register(spark)
        names = ["offset", *columns]
        frames = [self._part(spark, facts, part, names) for part in parts]
        return reduce(DataFrame.unionByName, frames) if frames else spark.createDataFrame([], spark_schema(names))

    def _part(self, spark: SparkSession, facts: QueueFacts, part: tuple[int, int], columns: Sequence[str]) -> DataFrame:
        first, following = part
        tasks = min(spark.sparkContext.defaultParallelism, -(-(following - first) // _RECORDS_PER_TASK_MIN))
        options = {
            **self._options(facts.name),
            "startingOffsets": offsets_json(facts.name, first),
            "endingOffsets": offsets_json(facts.name, following),
            "minPartitions": str(tasks),
            "columns": ",".join(columns),
        }
        return spark.read.format(FORMAT).options(**options).load()

    def _options(self, queue: str) -> dict[str, str]:
        if self.path is not None:
            return {"subscribe": queue, "path": self.path}
        servers = ",".join(self.servers)
        return {"subscribe": queue, "servers": servers, "read_from": self.read_from, **self.access.options()}
