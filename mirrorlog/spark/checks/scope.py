"""Scope: what of a log and of its table is compared: which rows, which columns, which queue offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mirrorlog.errors import BadInput, NoSuchQueue
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.checks.fingerprints import COMPARED
from mirrorlog.spark.checks.landed_table import LandedTable, Shape, files_of
from mirrorlog.spark.errors import TableOutOfStep
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.options import offsets_json, parse_options
from mirrorlog.spark.plan import QueueFacts
from mirrorlog.spark.reading.declared_gaps import Gap
from mirrorlog.spark.reading.lookup import open_lookup
from mirrorlog.spark.reading.planning import gaps_of
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


Write = Literal["append", "upsert"]
"""Of a landing: each record is a row, or the newest record of each key is, unless it deletes the key."""

Until = int | Literal["latest"] | None
"""To end before a queue offset, at the log's confirmed end, or (None) where the table itself says that it stands."""


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """What a user wants compared; `first` None: all that either side has. `dead_letters`: their table, if any."""

    write: Write = "append"
    first: int | None = None
    until: Until = None
    dead_letters: LandedTable | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """Queue offsets `first` up to `next` (exclusive); what lies below `log_first` is no longer in the log.

    `landed`: rows of the table and of its dead letters, with `offset` and `columns`; `dead`: dead letters alone. Rows
    at `next` and beyond are among them when the table itself said where it ends, for there must be none.
    """

    log: LogSource
    facts: QueueFacts
    table: LandedTable
    write: Write
    first: int
    next: int
    columns: tuple[str, ...]
    landed: DataFrame
    dead: DataFrame | None = None
    gaps: tuple[Gap, ...] = ()
    dead_letters: int = 0
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def log_first(self) -> int:
        return min(max(self.first, self.facts.begin), self.next)

    @property
    def log_next(self) -> int:
        """What of the log can be compared ends here: at `next`, or where the log itself does."""
        return max(min(self.next, self.facts.next), self.log_first)


def scope(
    spark: SparkSession, log: LogSource, facts: QueueFacts, table: LandedTable, asked: ComparisonRequest
) -> Scope:
    """Raises BadInput, TableOutOfStep when the table does not say where it ends, and what Spark does."""
    _check_shapes(table, asked)
    following = _end(facts, table, asked.until)
    tables = [each for each in (table, asked.dead_letters) if each is not None]
    columns = tuple(name for name in COMPARED if all(name in each.columns for each in tables))
    notes = list(_limits_of(table, columns, asked))
    landed = _rows(spark, facts, table, notes).select("offset", *columns)
    dead, count = None, 0
    if asked.dead_letters is not None:
        dead = asked.dead_letters.dead_letters_of(facts, table.path).select("offset", *columns)
        ahead, count = _counted(dead, following)
        dead = dead.where(f.col("offset") < following)
        landed = landed.unionByName(dead)
        if ahead:
            notes.append(f"{ahead:,} dead letters are ahead of their table: its next landing takes them back")
    if asked.until is not None:
        landed = landed.where(f.col("offset") < following)
    smallest = _smallest(landed, table, facts)
    first = asked.first if asked.first is not None else smallest
    if not 0 <= first <= following:
        raise BadInput(f"queue offset {first} is not within 0 and {following}, where the comparison ends")
    landed = landed.where(f.col("offset") >= first)
    found = Scope(log, facts, table, asked.write, first, following, columns, landed, dead, (), count, tuple(notes))
    if found.log_first == found.log_next:
        return found
    return replace(found, gaps=tuple(log.gaps(facts, found.log_first, found.log_next)))


def _check_shapes(table: LandedTable, asked: ComparisonRequest) -> None:
    dead = asked.dead_letters
    if table.shape is Shape.DEAD_LETTERS:
        raise BadInput(f"{table.path} is a table of dead letters; name it beside the table of its landing")
    if dead is not None and dead.shape is not Shape.DEAD_LETTERS:
        raise BadInput(f"{dead.path} is no table of dead letters: those have queue, offset and reason")
    if asked.write == "upsert" and "key" not in table.columns:
        raise BadInput(f"{table.path} has no column for the key, so it was not landed by upserts")


def _end(facts: QueueFacts, table: LandedTable, until: Until) -> int:
    if isinstance(until, int):
        return until
    if until == "latest":
        return facts.next
    position = table.positions.get(QueueIds(facts).offset)
    if position is None:
        raise TableOutOfStep(
            f"{table.path} names no position of queue {facts.name!r}: nothing of it was landed there, or not by a "
            "landing; say where to end (--until N, or --until latest)"
        )
    return position


def _rows(spark: SparkSession, facts: QueueFacts, table: LandedTable, notes: list[str]) -> DataFrame:
    """The queue's rows, without those of another queue that had its name, as far as the table's log tells them."""
    rows = table.of(facts.name)
    own = QueueIds(facts).offset
    cluster = own.rpartition(":")[0]
    others = {name for name in table.positions if name.rpartition(":")[0] == cluster and name != own}
    if not others:
        return rows
    files = f.broadcast(files_of(spark, table, others, own))
    left_out = rows.join(files, "file_name", "left_semi").count()
    if not left_out:
        return rows
    notes.append(
        f"{left_out:,} rows of {table.path} were left out: they came with another queue of this name, which is gone "
        "(another incarnation)"
    )
    return rows.join(files, "file_name", "left_anti")


def _counted(dead: DataFrame, following: int) -> tuple[int, int]:
    """Dead letters at `following` and beyond, and below it."""
    counts = dead.agg(
        f.count_if(f.col("offset") >= following).alias("ahead"), f.count_if(f.col("offset") < following).alias("count")
    ).collect()[0]
    return counts["ahead"], counts["count"]


def _smallest(landed: DataFrame, table: LandedTable, facts: QueueFacts) -> int:
    """Where the queue or its rows begin."""
    none = f.col("offset").isNull() | (f.col("offset") < 0)
    seen = landed.agg(f.min("offset").alias("first"), f.count_if(none).alias("none")).collect()[0]
    if seen["none"]:
        raise BadInput(f"{table.path} has {seen['none']:,} rows of queue {facts.name!r} without a queue offset")
    return facts.begin if seen["first"] is None else min(facts.begin, seen["first"])


def _limits_of(table: LandedTable, columns: tuple[str, ...], asked: ComparisonRequest) -> list[str]:
    """What the comparison cannot say, of such a table."""
    said = []
    missing = [name for name in COMPARED if name not in columns]
    if table.shape is Shape.DECODED:
        missing.remove("value")
        compared = ", ".join(columns)
        said.append(f"decoded values cannot be compared with the log's bytes: compared are offsets and {compared}")
        if asked.dead_letters is None:
            said.append("if what could not be decoded has a table of its own, name it (--dead-letters)")
    if missing:
        said.append(f"not compared, for the table has no such column: {', '.join(missing)}")
    return said
