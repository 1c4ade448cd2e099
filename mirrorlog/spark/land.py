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
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.landing.definition import Landing, landing
from mirrorlog.spark.landing.positions import MissedRange
from mirrorlog.spark.landing.results import StepResult
from mirrorlog.spark.landing.runner import OnMoment, Runner
from mirrorlog.spark.options import parse_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from mirrorlog.spark.landing.holds import Holds

OnStep = Callable[[str], None]
OnResult = Callable[[StepResult], None]


@dataclass(frozen=True, slots=True)
class LandResult:
    """Queue offsets `first` up to `next` (exclusive) are in the table now: `rows` of them were added, 0 when nothing
    was left to do.

    `table_version`: of the table afterwards; None when there is no table because the queue is empty. `bytes`: of the
    records in the log; `files`: added; `dead_letters`: records that went there; `missed`: what was passed over.
    """

    first: int
    next: int
    rows: int
    table_version: int | None
    bytes: int = field(default=0, compare=False)
    files: int = field(default=0, compare=False)
    dead_letters: int = field(default=0, compare=False)
    missed: tuple[MissedRange, ...] = field(default=(), compare=False)
    seconds: float = field(default=0.0, compare=False)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        shown = {name: getattr(self, name) for name in self.__slots__}
        return shown | {"missed": [[each.first, each.next, each.why] for each in self.missed]}


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


def land_all(
    runner: Runner, made: Landing, holds: Holds | None = None, on_result: OnResult = lambda result: None
) -> LandResult:
    """Steps of a landing of one queue until it has what was confirmed at the first. `on_result`: told of each.

    Raises as `Runner.step`.
    """
    steps: list[StepResult] = []
    while not steps or steps[-1].queues[0].next < steps[0].queues[0].confirmed:
        steps.append(runner.step(made, holds))
        on_result(steps[-1])
    return _summed(steps)


def _summed(steps: Sequence[StepResult]) -> LandResult:
    return LandResult(
        first=steps[0].queues[0].first,
        next=steps[-1].queues[0].next,
        rows=sum(step.rows for step in steps),
        table_version=steps[-1].table_version,
        bytes=sum(step.bytes for step in steps),
        files=sum(step.files for step in steps),
        dead_letters=sum(step.dead_letters for step in steps),
        missed=tuple(missed for step in steps for missed in step.missed),
        seconds=sum(step.seconds for step in steps),
    )


if __name__ == "__main__":
    from mirrorlog.spark.landing.command import main

    sys.exit(main())
