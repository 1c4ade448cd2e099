"""Replay: records of a landed Delta table, or of one of dead letters, published to a queue again.

    python -m mirrorlog.spark.replay --servers 127.0.0.1:7401 --table lake/flights --queue flights --to-queue again \\
        --from-offset 1000 --until-offset 2000

Key, value, headers and event time are those that were landed. The records of each source queue come in the order that
they had there, queue after queue, and each gets the header `mirrorlog-replay`: `<name of the replay>/<queue offset in
the source>/<source queue>`. By it a run that is started again knows what the queue has already, and publishes the rest:
nothing is published twice, also after a kill at any moment. (Where a run ended because a batch was not confirmed in
time and a later one was, the next run brings that batch behind it.) The same selection of the same table to the same
queue is the same replay, unless it is given a name (`--id`): another name publishes again.

One run of a replay at a time: two that run at once do not know of each other, and publish both.

Rejected: publishing in Spark's tasks (the order would end where a task does, and a task that is run again, or whose
executor was only believed dead, publishes again).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from mirrorlog.client.sync import BulkDelivery, Client, Producer
from mirrorlog.errors import BadInput, NoSuchQueue
from mirrorlog.spark import command_line
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.errors import translated
from mirrorlog.spark.options import parse_servers
from mirrorlog.spark.replaying.progress import HEADER, PublishedOffsets, ReplayProgress, header_value
from mirrorlog.spark.replaying.rows import (
    EVERYTHING,
    ReplaySource,
    Selection,
    count_from,
    in_order,
    replay_name,
    replay_rows,
    sources,
    table_id,
)
from mirrorlog.spark.writing.columns_out import header_lists

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTED_RECORDS: Final = 100_000
"""So often a note is made of how far a replay came: whoever goes on reads so many records of the target to find out."""

_NAME_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class ReplayedQueue:
    """Of `selected` records of a source queue `before` were there from an earlier run, `published` came now.

    `first` and `next`: the source offsets that this run went through for what was not there yet; `to_first` and
    `to_next`: where that stands in the target, among what others published meanwhile. None when nothing came.
    """

    queue: str
    selected: int
    before: int
    published: int
    first: int
    next: int
    to_first: int | None = None
    to_next: int | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """A replay, by its name. `dry_run`: nothing was published; what would have been is told as if."""

    replay: str
    to_queue: str
    queues: tuple[ReplayedQueue, ...]
    dry_run: bool = False

    @property
    def published(self) -> int:
        return sum(each.published for each in self.queues)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {**asdict(self), "published": self.published}


@dataclass(frozen=True, slots=True)
class ReplayMoment:
    """How far a replay is: of the source queue that it is at, `done` of `total` records are confirmed."""

    queue: str
    done: int
    total: int
    records_per_s: float


OnMoment = Callable[[ReplayMoment], None]


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """Where a replay goes, and how sure each record must be there before it counts."""

    servers: tuple[str, ...]
    queue: str
    confirm: str = "all"
    compression: str = "none"
    access: Access = NO_ACCESS


def replay_table(
    spark: SparkSession,
    table: str | PathLike[str],
    target: ReplayTarget,
    selection: Selection = EVERYTHING,
    *,
    name: str | None = None,
    dry_run: bool = False,
    on_moment: OnMoment = lambda moment: None,
) -> Replayed:
    """Publish what is selected of the Delta table at a path, and was not yet. Blocks; not for use on an event loop.

    `name`: of the replay, by default made of table, selection and target. Raises as `replay`, and SparkFailed when
    there is no such table.
    """
    path = fspath(table)
    own = name or replay_name(table_id(spark, path), selection, target.queue)
    with translated():
        frame = spark.read.format("delta").load(path)
    return replay(frame, target, selection, name=own, dry_run=dry_run, on_moment=on_moment)


def replay(
    frame: DataFrame,
    target: ReplayTarget,
    selection: Selection = EVERYTHING,
    *,
    name: str,
    dry_run: bool = False,
    on_moment: OnMoment = lambda moment: None,
) -> Replayed:
    """Publish rows of any DataFrame with columns value, offset, and topic or queue (else `selection.queue`); key,
    headers, timestamp and timestampType count where they are there.

    `name` tells one replay from another: under the same name nothing is published twice. Raises BadInput, NoSuchQueue,
    ReplayUnknown, SparkFailed, and what the records end with: Refused, OutcomeUnknown. After any of them what was
    confirmed is there, and the same call goes on behind it.
    """
    _check_name(name)
    rows = replay_rows(frame, selection)
    with Client(*target.servers, **target.access.client_options()) as client:
        if client.admin.metadata([target.queue]).missing:
            raise NoSuchQueue(f"no queue {target.queue!r}; make it with: mqtool declare {target.queue}")
        found = sources(rows)
        queues: list[ReplayedQueue] = []
        for source in found:
            progress = ReplayProgress(client, target.queue, name, source.queue)
            part = _Part(source, progress, target, on_moment)
            queues.append(part.told(rows) if dry_run else part.publish(rows))
    return Replayed(name, target.queue, tuple(queues), dry_run)


def _check_name(name: str) -> None:
    if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum() and len(name) <= _NAME_MAX):
        raise BadInput(f"a replay's name has 1 to {_NAME_MAX} letters, digits, - and _, not {name!r:.80}")


class _Part:
    """One source queue of a replay."""

    def __init__(
        self, source: ReplaySource, progress: ReplayProgress, target: ReplayTarget, on_moment: OnMoment
    ) -> None:
        self._source = source
        self._progress = progress
        self._target = target
        self._on_moment = on_moment
        self._others = pa.array([], pa.int64())
        self._under_way: deque[BulkDelivery] = deque()
        self._last_read = self._last_sent = self._last_other = -1
        self._taken = self._done = self._noted = 0
        self._to: tuple[int, int] | None = None
        self._began = time.monotonic()

    def told(self, rows: DataFrame) -> ReplayedQueue:
        """What `publish` would do. Changes nothing."""
        first, left = self._left(rows, self._progress.published(note=False))
        return self._result(first, left, left)

    def publish(self, rows: DataFrame) -> ReplayedQueue:
        """What is left of the queue; every record is confirmed when this returns."""
        published = self._progress.published(note=True)
        self._others = pa.array(published.others, pa.int64())
        self._last_other = max(published.others, default=-1)
        first, left = self._left(rows, published)
        if left:
            with self._producer() as producer:
                for batch in in_order(rows, self._source, first=first):
                    self._send(producer, batch, left)
                self._settle(left)
        return self._result(first, left, self._done)

    def _left(self, rows: DataFrame, published: PublishedOffsets) -> tuple[int, int]:
        """(source offset to go on at, how many records are to be published)."""
        source = self._source
        first = max(source.first, published.up_to or 0)
        records = source.records if first == source.first else count_from(rows, source, first)
        there = sum(first <= each < source.next for each in published.others)
        return first, records - there

    def _producer(self) -> Producer:
        target = self._target
        return self._progress.client.producer(target.queue, confirm=target.confirm, compression=target.compression)

    def _send(self, producer: Producer, batch: pa.RecordBatch, total: int) -> None:
        offsets = batch.column("offset").to_pylist()
        if any(later <= earlier for earlier, later in zip([self._last_read, *offsets], offsets, strict=False)):
            raise BadInput(f"queue {self._source.queue!r}: the table changed while it was read; run the replay again")
        self._last_read = offsets[-1]
        if len(self._others):
            batch = batch.filter(pc.invert(pc.is_in(batch.column("offset"), self._others)))
            offsets = batch.column("offset").to_pylist()
        if not offsets:
            return
        self._last_sent = offsets[-1]
        delivery = producer.send_many_nowait(
            batch.column("value"),
            keys=batch.column("key"),
            headers=self._headers(batch, offsets),
            timestamps=batch.column("timestamp"),
        )
        self._under_way.append(delivery)
        self._taken += len(delivery)
        if self._taken - self._noted >= NOTED_RECORDS:
            self._settle(total)

    def _headers(self, batch: pa.RecordBatch, offsets: Sequence[int]) -> list[list[tuple[str, bytes | None]]]:
        own = header_lists(batch.column("headers")) or [()] * len(offsets)
        replay, source = self._progress.replay, self._source.queue
        return [
            [*pairs, (HEADER, header_value(replay, source, offset))] for pairs, offset in zip(own, offsets, strict=True)
        ]

    def _settle(self, total: int) -> None:
        """Wait until all that was sent is confirmed, and note it."""
        while self._under_way:
            for each in self._under_way.popleft().result().ranges:
                places = each.queue_offsets
                self._to = (self._to[0] if self._to else places.start, places.stop)
                self._done += len(places)
        # What stands out of order before a note would not be read again: so none is made before all of that is passed.
        if self._to is not None and self._done > self._noted and self._last_sent >= self._last_other:
            self._progress.note(self._to[1] - 1)
        self._noted = self._done
        elapsed = max(time.monotonic() - self._began, 1e-6)
        self._on_moment(ReplayMoment(self._source.queue, self._done, total, self._done / elapsed))

    def _result(self, first: int, left: int, published: int) -> ReplayedQueue:
        source = self._source
        to_first, to_next = self._to or (None, None)
        before = source.records - left
        return ReplayedQueue(source.queue, source.records, before, published, first, source.next, to_first, to_next)


# --- The command line -----------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code is that of the error, 0 when the queue has everything that was selected."""
    return command_line.run(parser().parse_args(arguments), _work)


def parser() -> argparse.ArgumentParser:
    """Of the command."""
    parser = command_line.command(
        "mirrorlog.spark.replay",
        "Publish records of a landed Delta table, or of a table of dead letters, to a queue again, once.",
        example="--servers 127.0.0.1:7401 --table lake/flights --queue flights --to-queue flights-again "
        "--from-offset 1000 --until-offset 2000 --dry-run",
    )
    command_line.add_servers(parser)
    add = parser.add_argument
    add("--table", required=True, metavar="PATH", help="the Delta table")
    add("--queue", metavar="NAME", help="records of this queue; by default of all that the table has")
    add("--to-queue", required=True, metavar="NAME", help="where to publish; it must be there")
    add("--from-offset", type=int, metavar="N", help="from this queue offset on")
    add("--until-offset", type=int, metavar="N", help="up to this queue offset, itself left out")
    add("--from-time", type=_time, metavar="TIME", help="appended then or later: 2026-01-31T12:00:00+00:00")
    add("--until-time", type=_time, metavar="TIME", help="appended before")
    add("--id", metavar="NAME", help="of the replay; another one than the last time publishes once more")
    add("--confirm", default="all", metavar="LEVEL", help="all (default), majority, one, master, or a number of copies")
    add("--compression", default="none", choices=("none", "lz4", "zstd"), help="of batches")
    add("--dry-run", action="store_true", help="tell what would be published; change nothing")
    command_line.add_access(parser)
    command_line.add_json(parser, "print a JSON object")
    return parser


def _work(options: argparse.Namespace) -> int:
    done = _run(options)
    print(json.dumps(done.as_json()) if options.json else "\n".join(_lines(done)), flush=True)
    return 0


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time like 2026-01-31T12:00:00+00:00") from None
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} has no zone, like +00:00 or Z")
    return found


def _run(options: argparse.Namespace) -> Replayed:
    from mirrorlog.spark.session import spark_session

    servers, access = parse_servers(command_line.servers_of(options)), command_line.access_of(options)
    target = ReplayTarget(servers, options.to_queue, options.confirm, options.compression, access)
    selection = Selection(
        options.queue, options.from_offset, options.until_offset, options.from_time, options.until_time
    )
    # Before the session, which takes seconds: what is wrong with these is told at once.
    selection.check()
    access.context()
    if options.id is not None:
        _check_name(options.id)
    with spark_session(f"replay to {options.to_queue}") as (spark, on_step):
        on_step(f"looking at {options.table}")
        return replay_table(
            spark,
            options.table,
            target,
            selection,
            name=options.id,
            dry_run=options.dry_run,
            on_moment=lambda moment: on_step(_progress_line(moment)),
        )


def _progress_line(moment: ReplayMoment) -> str:
    share = 100 * moment.done // max(moment.total, 1)
    pace = f"{moment.records_per_s:,.0f}/s"
    return f"queue {moment.queue!r}: {moment.done:,} of {moment.total:,} records ({share} %), {pace}"


def _lines(done: Replayed) -> list[str]:
    did = "would publish" if done.dry_run else "published"
    lines = [
        f"{did} {each.published:,} of {each.selected:,} selected records of queue {each.queue!r} to {done.to_queue!r}"
        + (f", {each.before:,} were there from an earlier run" if each.before else "")
        for each in done.queues
    ]
    return [
        *(lines or [f"nothing is selected, and nothing was published to {done.to_queue!r}"]),
        f"replay {done.replay}",
    ]


if __name__ == "__main__":
    sys.exit(main())
