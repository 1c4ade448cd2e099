"""A Delta table's own log: what it says, and one commit of files and positions together, as a compare-and-set.

    seen = table_state(spark, table, [id, fence])
    version = commit(spark, table, files, seen=seen, sets={id: 1300}, note={…})

A commit begins a Delta transaction and goes on only when the table is still what was seen: the versions of the given
application ids, the columns, the partitions, the properties and the features. Having read the ids in the transaction,
Delta itself refuses it when another commit with one of them comes in between. So of two landings that planned the same
records one adds them, and the other one gets LandingConflict and has added nothing.

All of it through the Delta inside Spark's JVM (private classes, by py4j; the pair of versions is pinned), so the
table's protocol is kept by the code that defines it, and storage is reached by Spark's own settings. Rejected: the
`deltalake` package, which would need credentials of its own and does not write all that such a table may have;
`txnAppId` and `txnVersion` as options of a write, which only skip what is not newer and let a longer overlapping range
pass.

On a local path only one landing commits at a time (`commit_lock`), and the commit and all below it are on the disk when
`commit` returns: what is landed may be freed next.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from py4j.java_gateway import JavaPackage  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from mirrorlog.errors import MirrorlogError, MissingDependency
from mirrorlog.spark.errors import SPARK_ERRORS, LandingConflict, from_spark
from mirrorlog.spark.jars import DELTA_VERSION
from mirrorlog.spark.landing.commit.durable import sync_own
from mirrorlog.spark.landing.write.storage import local_path

if TYPE_CHECKING:
    from mirrorlog.spark.landing.write.files import DataFile

# Whether Delta refused a commit because of another one. Pure.
#
# Told by the classes of Delta's error conditions, which are its documented names; the texts around them are not.


_CONFLICT: Final = re.compile(
    r"DELTA_CONCURRENT_|DELTA_(METADATA|PROTOCOL)_CHANGED|Concurrent\w+Exception|"
    r"(Metadata|Protocol)ChangedException|DELTA_VERSIONS_NOT_CONTIGUOUS"
)


def is_conflict(error: BaseException) -> bool:
    """True when a commit lost against another one; nothing of it was added, and trying again is right."""
    return _CONFLICT.search(str(error)) is not None


# One commit at a time to a local table, among the landings that reach it, whatever process they run in.
#
# Delta makes a commit by naming a file that must not be there yet. Object stores and HDFS do that in one step. On a
# local path it is a look and then a rename, which takes the place of what came in between: of two drivers in that
# moment both would be told that their commit is the table's. So a landing holds a lock of the operating system
# meanwhile (`flock`; it goes with its process, and works over NFS).
#
# Other writers do not know of it. Rejected: a lock file that is made and removed (it outlives who is killed).


NAME: Final = "_delta_log/.mirrorlog-commit"
"""Hidden: Delta and VACUUM pass over it."""

WAIT_S: Final = 30.0
"""A commit takes a fraction of a second; a process that stands still in one must not hold up all others."""

_LOOK_S: Final = 0.01


@contextmanager
def one_commit(table: str, *, wait_s: float = WAIT_S) -> Iterator[None]:
    """Alone among landings at the table at that path or URI; elsewhere than on a local path nothing is done.

    Raises LandingConflict when another one has it for `wait_s` s, OSError.
    """
    root = local_path(table)
    if root is None:
        yield
        return
    path = root / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _lock(handle, table, time.monotonic() + wait_s)
        yield
    finally:
        os.close(handle)  # gives the lock back too


def _lock(handle: int, table: str, give_up_at: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= give_up_at:
                raise LandingConflict(
                    f"another process has been committing to {table} for long; nothing was added, run again; if it "
                    "stands still, end it"
                ) from None
        time.sleep(_LOOK_S)


# Parameters of DeltaOperations.Write behind the mode: partitionBy, predicate, userMetadata, and five that stay empty.
_WRITE_AFTER_NOTE: Final = 5

_NEEDED: Final = f"a landing needs a classic Spark session with the jars of Delta {DELTA_VERSION}: docs/land/landing.md"
# What py4j says of a call that a class does not have; of an object that is gone it says something like it.
_UNKNOWN_CALL: Final = re.compile(r"(?:Method|Constructor) .+ does not exist")


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a table is made of. `properties`: Delta's and the user's; `features`: of its protocol, by name."""

    schema: StructType = field(default_factory=StructType)
    partition_columns: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at a moment. `version`: None when there is none; `versions`: of the application ids that were asked for,
    None of one that never committed."""

    version: int | None
    versions: Mapping[str, int | None]
    shape: TableShape = field(default_factory=TableShape)

    @property
    def columns(self) -> list[str]:
        return self.shape.schema.names


def transactions_of(spark: SparkSession, table: str) -> tuple[int, dict[str, int]]:
    """The newest version, -1 when there is no table, and the versions of all application ids. Raises what Spark
    does."""
    snapshot = snapshot_of(spark, table)
    version = int(snapshot.version())
    found: dict[str, int] = {}
    entries = snapshot.transactions().iterator() if version >= 0 else None
    while entries is not None and entries.hasNext():
        entry = entries.next()
        found[entry._1()] = int(entry._2())
    return version, found


def table_state(spark: SparkSession, table: str, application_ids: Iterable[str]) -> TableState:
    """The table at path or URI `table` as it is now, not as the session last saw it. Raises SparkFailed when its log
    cannot be read, MissingDependency in a session without the Delta that is needed."""
    try:
        return _state(snapshot_of(spark, table), application_ids)
    except SPARK_ERRORS as error:
        raise _failed(error) from error


def commit(
    spark: SparkSession,
    table: str,
    files: Sequence[DataFile] = (),
    *,
    seen: TableState,
    sets: Mapping[str, int],
    note: Mapping[str, Any],
    shape: TableShape | None = None,
    on_begun: Callable[[], None] = lambda: None,
) -> int:
    """Add `files` and set the application ids' versions, in one commit; the table's version after it.

    `seen`: what the files were planned from; its ids should hold every id of `sets`. `note`: JSON, into the commit's
    userMetadata. `shape`: what the table becomes in the same commit: of one that is not there all of it, of one that
    is there its columns and properties. `on_begun`: called when the transaction has compared and not yet committed, for
    those who want to be in between. Raises LandingConflict when the table is not as seen any more, SparkFailed,
    MissingDependency as `table_state`.
    """
    try:
        log = open_log(spark, table)
        snapshot = snapshot_of(spark, table)
        _refuse_changed(table, seen, _state(snapshot, seen.versions))
        transaction = _begun(spark, log, snapshot)
        _refuse_moved(table, seen, {name: int(transaction.txnVersion(name)) for name in seen.versions})
        if shape is not None:
            transaction.updateMetadata(_metadata(spark, snapshot, seen, shape), False)
        on_begun()
        moved = [{"txn": {"appId": each, "version": sets[each], "lastUpdated": now_ms()}} for each in sets]
        actions = [*map(_add, files), *moved]
        _register_metrics(spark, transaction, files)
        made = _actions(spark, actions)
        with one_commit(table):
            version = int(transaction.commit(made, _operation(spark, json.dumps(note))))
    except SPARK_ERRORS as error:
        if is_conflict(error):
            raise _conflict(table, "its log has another commit") from error
        raise _failed(error) from error
    sync_own(table, version, above=int(snapshot.version()))
    return version


def make_clustered(
    spark: SparkSession, table: str, schema: StructType, columns: Sequence[str], properties: Mapping[str, str]
) -> None:
    """Make an empty table with liquid clustering, unless there is one. Raises LandingConflict, SparkFailed,
    MissingDependency.

    The clustering columns stand in a domain of the table's metadata, which a commit of files cannot make.
    """
    try:
        from delta.tables import DeltaTable
    except ImportError:
        raise MissingDependency(f"clustered tables need the package delta-spark {DELTA_VERSION}") from None
    try:
        made = DeltaTable.createIfNotExists(spark).location(table).addColumns(schema).clusterBy(*columns)
        for name, value in properties.items():
            made = made.property(name, value)
        made.execute()
    except SPARK_ERRORS as error:
        if is_conflict(error):
            raise _conflict(table, "it was made") from error
        raise _failed(error) from error


# --- The comparison -------------------------------------------------------------------------------------------------


def _refuse_changed(table: str, seen: TableState, found: TableState) -> None:
    if (seen.version is None) != (found.version is None):
        raise _conflict(table, "the table was made or removed")
    if seen.version is not None and seen.shape != found.shape:
        raise _conflict(table, "its columns, properties or features have changed")


def _refuse_moved(table: str, seen: TableState, found: Mapping[str, int]) -> None:
    for name, version in seen.versions.items():
        expected = -1 if version is None else version
        if found[name] != expected:
            raise _conflict(table, f"{name} is at {found[name]}, not at {expected}")


def _conflict(table: str, why: str) -> LandingConflict:
    return LandingConflict(f"another landing committed to {table} meanwhile ({why}); nothing was added, run again")


# --- To and from the JVM --------------------------------------------------------------------------------------------


def open_log(spark: SparkSession, table: str) -> Any:
    """Delta's own object of a table's log."""
    return _delta_class(spark, "DeltaLog").forTable(spark._jsparkSession, table)


def _delta_class(spark: SparkSession, name: str) -> Any:
    """Raises MissingDependency in a session without it: py4j takes a class that there is not for a package, and says
    so only when it is called, by a TypeError that nobody understands."""
    # A session of Spark Connect has no JVM, and raises an AttributeError.
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        raise MissingDependency(f"this session has no JVM of its own (Spark Connect): {_NEEDED}")
    found = jvm.org.apache.spark.sql.delta
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, JavaPackage):
        raise MissingDependency(f"this session has no Delta (class {name}): {_NEEDED}")
    return found


def _failed(error: BaseException) -> MirrorlogError:
    """As `from_spark`, but for calls that the session's Delta does not know."""
    if isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError) and _UNKNOWN_CALL.search(str(error)):
        return MissingDependency(f"this session's Delta is another one: {_NEEDED}")
    return from_spark(error)


def snapshot_of(spark: SparkSession, table: str) -> Any:
    """Delta's own object of a table as it is now; its version is -1 when there is none."""
    # Not the cached one: another process may have committed.
    return open_log(spark, table).update(False, none(spark), none(spark))


def _begun(spark: SparkSession, log: Any, snapshot: Any) -> Any:
    """A transaction that has read nothing but this snapshot."""
    jvm: Any = spark._jvm
    return log.startTransaction(none(spark), jvm.scala.Option.apply(snapshot))


def none(spark: SparkSession) -> Any:
    """Scala's None, as an argument that is left out."""
    jvm: Any = spark._jvm
    return jvm.scala.Option.empty()


def _state(snapshot: Any, application_ids: Iterable[str]) -> TableState:
    version = int(snapshot.version())
    if version < 0:
        return TableState(None, dict.fromkeys(application_ids))
    transactions = snapshot.transactions()
    found = {name: transactions.get(name) for name in application_ids}
    versions = {name: int(each.get()) if each.isDefined() else None for name, each in found.items()}
    return TableState(version, versions, _shape(snapshot))


def _shape(snapshot: Any) -> TableShape:
    described = json.loads(snapshot.metadata().json())["metaData"]
    protocol = json.loads(snapshot.protocol().json())["protocol"]
    features = {*protocol.get("writerFeatures", ()), *protocol.get("readerFeatures", ())}
    return TableShape(
        schema=StructType.fromJson(json.loads(described["schemaString"])),
        partition_columns=tuple(described["partitionColumns"]),
        properties=dict(described.get("configuration") or {}),
        features=frozenset(features),
    )


def _metadata(spark: SparkSession, snapshot: Any, seen: TableState, shape: TableShape) -> Any:
    """The table's own with other columns and properties, so its id and its name stay."""
    described = json.loads(snapshot.metadata().json())
    described["metaData"]["schemaString"] = shape.schema.json()
    described["metaData"]["configuration"] = dict(shape.properties)
    if seen.version is None:
        described["metaData"]["partitionColumns"] = list(shape.partition_columns)
        described["metaData"]["createdTime"] = now_ms()
    return _delta_class(spark, "actions.Action").fromJson(json.dumps(described))


def _add(file: DataFile) -> dict[str, Any]:
    return {
        "add": {
            "path": file.path,
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": file.modified_ms,
            "dataChange": True,
            "stats": file.stats,
        }
    }


def now_ms() -> int:
    """Since 1970, as Delta's actions have it."""
    return time.time_ns() // 1_000_000


def _actions(spark: SparkSession, described: Sequence[Mapping[str, Any]]) -> Any:
    jvm: Any = spark._jvm
    made = jvm.java.util.ArrayList()
    # Looked up once: py4j asks the JVM for each part of a class's name, and a commit may have thousands of files.
    from_json = _delta_class(spark, "actions.Action").fromJson
    for each in described:
        made.add(from_json(json.dumps(each)))
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(made).toList()


def _operation(spark: SparkSession, note: str) -> Any:
    jvm: Any = spark._jvm
    nothing = none(spark)
    write = _delta_class(spark, "DeltaOperations$Write")
    append = jvm.org.apache.spark.sql.SaveMode.Append
    return write(append, nothing, nothing, jvm.scala.Option.apply(note), *[nothing] * _WRITE_AFTER_NOTE)


def _register_metrics(spark: SparkSession, transaction: Any, files: Sequence[DataFile]) -> None:
    """As Spark's own writes have them in the table's history."""
    jvm: Any = spark._jvm
    values = {
        "numFiles": len(files),
        "numOutputBytes": sum(file.size for file in files),
        "numOutputRows": sum(file.records for file in files),
    }
    metrics = jvm.org.apache.spark.sql.execution.metric.SQLMetrics
    made = jvm.java.util.HashMap()
    for name, value in values.items():
        metric = metrics.createMetric(spark._jsparkSession.sparkContext(), name)
        metric.set(value)
        made.put(name, metric)
    pairs = jvm.scala.jdk.javaapi.CollectionConverters.asScala(made)
    transaction.registerSQLMetrics(spark._jsparkSession, getattr(jvm.scala.Predef.Map(), "from")(pairs))


def own_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A copy of `spark` with these settings above its own, for one command; it shares the context and the JVM.

    Delta takes some of a command's arguments from the session: transaction ids, sizes of files, the check of a
    retention. Set in the session that others use, they would reach whatever else runs in it at that moment. Rejected:
    setting and resetting, which two threads cannot do at once; `newSession`, which forgets what was set since the start
    (credentials of a storage, for one).
    """
    copy = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession(), {})
    for name, value in settings.items():
        copy.conf.set(name, value)
    return copy
