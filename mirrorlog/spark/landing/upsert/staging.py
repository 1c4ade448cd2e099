"""Where the rows of an upsert wait for their merge: a folder below the table, which Delta does not look at.

    <table>/_staging/<number, 16 hexadecimal digits>/part-….parquet

Delta and its VACUUM pass over names that begin with `_`. So a folder is removed by whoever made it, after the merge or
after a failure; by the next landing of the queue, when the table names it as that of a merge that did not happen or
did not clean up (its number stands in the table, see `upsert_positions`); and by `remove_old`, when nobody names it
because its driver died before it could say so. Removed through Spark's own file systems, so that wherever a table lies
its staging can be removed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from mirrorlog.spark.errors import translated

FOLDER: Final = "_staging"
# Below 2 ** 62: it is the version of a transaction id as well, which is a signed long.
_BITS: Final = 62


@dataclass(frozen=True, slots=True)
class Staging:
    """The folder of one step. `number`: random, so that no two steps share one."""

    number: int

    @classmethod
    def new(cls) -> Staging:
        return cls(secrets.randbits(_BITS))

    @property
    def name(self) -> str:
        """Below the table's root, without a slash at the end."""
        return f"{FOLDER}/{self.number:016x}"

    def root(self, table: str) -> str:
        """What a task takes for the table it writes files of."""
        return f"{table.rstrip('/')}/{self.name}"

    @translated()
    def exists(self, spark: SparkSession, table: str) -> bool:
        """Whether the folder is there. Raises SparkFailed."""
        system, path = file_system(spark, self.root(table))
        return bool(system.exists(path))

    def remove(self, spark: SparkSession, table: str) -> None:
        """With all that is in it; nothing when it is not there. Raises SparkFailed."""
        _remove(spark, self.root(table))


@translated()
def remove_old(spark: SparkSession, table: str, *, before_ms: int) -> list[str]:
    """Remove the folders last written to before `before_ms` (since 1970, by the storage's clock); their names.

    `before_ms` must lie further back than any step takes. Raises SparkFailed.
    """
    found = [name for name, modified_ms in _folders(spark, table) if modified_ms < before_ms]
    for name in found:
        _remove(spark, f"{table.rstrip('/')}/{FOLDER}/{name}")
    return sorted(found)


def _folders(spark: SparkSession, table: str) -> Iterator[tuple[str, int]]:
    """Each folder and when something in it, or itself, was last written."""
    system, path = file_system(spark, f"{table.rstrip('/')}/{FOLDER}")
    if not system.exists(path):
        return
    for folder in system.listStatus(path):
        inside = [int(file.getModificationTime()) for file in system.listStatus(folder.getPath())]
        yield folder.getPath().getName(), max([int(folder.getModificationTime()), *inside])


@translated()
def _remove(spark: SparkSession, uri: str) -> None:
    system, path = file_system(spark, uri)
    system.delete(path, True)


def file_system(spark: SparkSession, uri: str) -> tuple[Any, Any]:
    """Hadoop's own objects for a place: its file system and its path."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(uri)
    return path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()), path
