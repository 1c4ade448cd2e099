"""Lands the queue twice, the second time for nothing, and compares the table with the source."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import MirrorlogError


def land_and_compare(
    servers: Sequence[str], queue: str, table: Path, records: Sequence[Record], console: Console
) -> None:
    """Raises MirrorlogError when the second run adds anything or the table differs from the source."""
    # Imported only now: they load pyspark.
    from demo.compare import compare
    from mirrorlog.spark.land import land
    from mirrorlog.spark.session import local_session

    with console.status("   starting Spark …") as status:
        spark = local_session("mirrorlog demo")
        try:
            started = time.perf_counter()
            first = land(spark, servers, queue, table, on_step=lambda step: status.update(f"   {step} …"))
            seconds = time.perf_counter() - started
            console.print(
                f"   landed {first.rows:,} records, queue offsets {first.first} up to {first.next:,}, "
                f"in {seconds:.1f} s: table version {first.table_version}",
                highlight=False,
            )
            again = land(spark, servers, queue, table)
            if again.rows or again.table_version != first.table_version:
                raise MirrorlogError(f"the second landing added {again.rows} rows, version {again.table_version}")
            console.print(f"   landed again: 0 records, still table version {again.table_version}", highlight=False)
            status.update("   comparing with the source, row by row …")
            source = ((offset, record.value) for offset, record in enumerate(records))
            found = compare(spark, str(table), source)
        finally:
            spark.stop()
    console.print(found.table("the table against the source rows"))
    if not found.equal:
        raise MirrorlogError("the Delta table is not equal to the source")
