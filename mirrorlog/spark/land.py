"""Landing: queues' confirmed records, appended to Delta tables, each exactly once.

    python -m mirrorlog.spark.land flights --servers 127.0.0.1:7401 --to /lake/flights
    spark-submit … mirrorlog/spark/land.py --config landings.toml

Where a landing stands is in the table itself: every commit carries Delta's transaction ids, with the queue as the
application and the next queue offset as the version. Records and position are one commit, so a driver that dies before
it has added nothing, and one that dies after it has nothing left to do. See `mirrorlog.spark.landing` for the parts.

Rejected: a checkpoint directory beside the table, which is a second truth that can be lost or be ahead of the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import TYPE_CHECKING

from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.landing.definition import landing
from mirrorlog.spark.landing.results import LandResult
from mirrorlog.spark.landing.runner import OnMoment, Runner, land_all
from mirrorlog.spark.options import parse_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


OnStep = Callable[[str], None]


def land(
    spark: SparkSession,
    servers: str | Sequence[str],
    queue: str,
    table: str | PathLike[str],
    *,
    read_from: str = "nearest",
    access: Access = NO_ACCESS,
    on_step: OnStep = lambda step: None,
    on_moment: OnMoment = lambda moment: None,
    **settings: object,
) -> LandResult:
    """Append what the table does not have of `queue`, up to what was confirmed at the start. Blocks; not for use on an
    event loop.

    `read_from`: nearest, mirror, master, or a node's id. `settings`: other keys of a landing's definition,
    `partition_by=["date(timestamp)"]`. A large rest is several commits. Raises BadLanding and what `Runner.step` does;
    then all commits before it count, and running again is safe.
    """
    addresses = parse_servers(servers) if isinstance(servers, str) else tuple(servers)
    given = {"queue": [queue], "servers": list(addresses), "table": fspath(table), "read_from": read_from}
    files = {name: value for name, value in access.options().items() if name != "user"}
    made = landing({"hold": False, **given, **files, **settings})
    if access.user is not None:
        made = replace(made, access=access)  # with the password, which is no key
    on_step(f"landing queue {queue!r} into {made.table}")
    return land_all(Runner(spark, on_moment), made)


if __name__ == "__main__":
    from mirrorlog.spark.landing.command import main

    sys.exit(main())
