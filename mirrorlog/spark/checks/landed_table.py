"""A landed table as one kind of rows, whatever the landing made of the records.

A raw table has the record as it was; a decoded one has the value's fields and the rest of the record in columns that
begin with `_`; a table of dead letters has both parts under names of its own. Who compares or measures wants none of
this: `rows` has the columns queue, offset, key, value, headers, timestamp, timestampType, appendTime, as far as the
table has them, read at one version of the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from os import PathLike, fspath
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from mirrorlog.errors import BadInput
from mirrorlog.spark.errors import translated
from mirrorlog.spark.landing.commit.delta_log import transactions_of
from mirrorlog.spark.landing.write.storage import local_path, table_uri
from mirrorlog.spark.plan import QueueFacts

_RECORD: Final = ("key", "value", "headers", "timestamp", "timestampType", "appendTime")
_COMMITS: Final = "txn struct<appId: string>, add struct<path: string>"


class Shape(StrEnum):
    """What the rows of a landed table are."""

    RAW = "raw"
    DECODED = "decoded"
    DEAD_LETTERS = "dead letters"


_NAMES: Final[Mapping[Shape, Mapping[str, str]]] = {
    Shape.DECODED: {
        "queue": "_queue",
        "offset": "_offset",
        **{name: f"_{name}" for name in _RECORD if name != "value"},
    },
    Shape.RAW: {"queue": "topic", "offset": "offset", **{name: name for name in _RECORD}},
    Shape.DEAD_LETTERS: {"queue": "queue", "offset": "offset", **{name: name for name in _RECORD}},
}
"""For each shape, which column is what. The first shape whose queue and offset a table has is the table's."""


@dataclass(frozen=True, slots=True)
class LandedTable:
    """The table at `path`, at `version`. `columns`: those of the record that `rows` has besides queue and offset.

    `positions`: of the applications that committed to it, the versions of their transactions, by application id.
    """

    path: str
    version: int
    shape: Shape
    rows: DataFrame
    columns: tuple[str, ...]
    positions: Mapping[str, int]

    @property
    def commits(self) -> str:
        """A pattern of the table's commits, JSON files, as Spark reads them. Old ones are removed by and by."""
        return re.sub(r"([\\\[\]{}*?,])", r"\\\1", self.path) + "/_delta_log/*.json"

    def of(self, queue: str) -> DataFrame:
        """The rows of one queue."""
        return self.rows.where(f.col("queue") == queue)

    def dead_letters_of(self, facts: QueueFacts, table: str) -> DataFrame:
        """Of a table of dead letters, those of a queue, and of no other that had its name, that belong to `table`."""
        return self.of(facts.name).where((f.col("incarnation") == facts.incarnation) & (f.col("landedIn") == table))


def open_table(spark: SparkSession, table: str | PathLike[str]) -> LandedTable:
    """The table at a path or URI as it is now. Raises BadInput when there is none, or none that was landed;
    SparkFailed when it cannot be read."""
    path = table_uri(fspath(table))
    with translated():
        version, positions = transactions_of(spark, path)
        if version < 0:
            raise BadInput(f"there is no Delta table at {path}")
        frame = spark.read.format("delta").option("versionAsOf", version).load(path)
        shape = _shape(frame, path)
        names = {name: found for name, found in _NAMES[shape].items() if found in frame.columns}
        hidden = f.col("_metadata.file_name").alias("file_name")
        modified = f.col("_metadata.file_modification_time").alias("file_time")
        more = [f.col(name) for name in ("incarnation", "landedIn") if shape is Shape.DEAD_LETTERS]
        rows = frame.select(*(f.col(found).alias(name) for name, found in names.items()), *more, hidden, modified)
    return LandedTable(path, version, shape, rows, tuple(name for name in _RECORD if name in names), positions)


def refuse_absent(*tables: str | PathLike[str] | None) -> None:
    """Before a session, which takes seconds, as far as a path alone tells. Raises BadInput as `open_table`."""
    for table in tables:
        path = None if table is None else local_path(table_uri(fspath(table)))
        if path is not None and not (path / "_delta_log").is_dir():
            raise BadInput(f"there is no Delta table at {path}")


def files_of(spark: SparkSession, table: LandedTable, others: set[str], own: str) -> DataFrame:
    """One column, `file_name`: of files that came with a commit of the applications `others` and not of `own`.

    By the commits that the table's log still has; what was compacted since is in files of no application.
    """
    source = spark.read.schema(_COMMITS).json(table.commits)
    actions = source.select(f.col("_metadata.file_name").alias("commit"), "txn.appId", "add.path")
    commits = actions.groupBy("commit").agg(f.collect_set("appId").alias("applications"))
    theirs = commits.where(
        f.arrays_overlap("applications", f.array(*map(f.lit, sorted(others)))) & ~f.array_contains("applications", own)
    )
    added = actions.where(f.col("path").isNotNull()).join(theirs.select("commit"), "commit", "left_semi")
    return added.select(f.substring_index("path", "/", -1).alias("file_name")).distinct()


def _shape(frame: DataFrame, path: str) -> Shape:
    columns = set(frame.columns)
    for shape, names in _NAMES.items():
        if {names["queue"], names["offset"]} <= columns:
            return shape
    raise BadInput(f"{path} is no landed table: it has neither topic and offset, nor _queue and _offset")
