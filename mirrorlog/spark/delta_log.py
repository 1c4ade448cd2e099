"""What a Delta table's own log says: its version, and the transaction version of an application.

Read by the same Delta that writes, inside Spark's JVM: so the landing sees the table through the same storage settings
and the same table features. Rejected: the `deltalake` package, which would need its own credentials for the same path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from mirrorlog.spark.errors import SPARK_ERRORS, from_spark


@dataclass(frozen=True, slots=True)
class TableState:
    """`version`: of the table, None when there is none; `landed`: the application's, None when it never committed."""

    version: int | None
    landed: int | None


def table_state(spark: SparkSession, table: str, application_id: str) -> TableState:
    """The table at path `table` as it is now. Raises SparkFailed when its log cannot be read."""
    try:
        snapshot = _snapshot(spark, table)
        version = int(snapshot.version())
        landed = snapshot.transactions().get(application_id)
        return TableState(
            version=version if version >= 0 else None,
            landed=int(landed.get()) if landed.isDefined() else None,
        )
    except SPARK_ERRORS as error:
        raise from_spark(error) from error


def _snapshot(spark: SparkSession, table: str) -> Any:
    jvm: Any = spark._jvm
    nothing = jvm.scala.Option.empty()
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, table)
    return log.update(False, nothing, nothing)  # not the cached one: another process may have committed
