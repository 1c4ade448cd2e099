"""`df.write.format("mirrorlog")` and `df.writeStream.format("mirrorlog")`: rows as records of queues.

    df.write.format("mirrorlog").option("servers", "127.0.0.1:7401").option("queue", "flights").mode("append").save()

Options are those of `WriterOptions`, columns those of `mirrorlog.spark.writing.columns_out`.

A task sends its rows through one idempotent producer per queue, in their order, and ends well when every one of them is
confirmed at the level asked for. Between tasks there is no order: sort into one partition where it matters.

Within an attempt of a task nothing lands twice, whatever is sent again. But Spark may run a task once more, whole:
because its executor died, or because the driver did between the last confirm and the stream's commit log. Then what the
attempt before had written is in the queue twice, as with Kafka's sink: at least once. Readers that mind tell by a key
of their own. A job that fails leaves in the queue what its tasks had confirmed.

Rejected: a producer id made of query, batch and partition, so that nodes would answer the second attempt instead of
storing it. They remember 64 batches of a producer and compare bytes (`queues.producers`): a longer task could not be
run again at all, and one whose input came in another order (after a shuffle: most) would end in a refusal that no
further attempt can get past, with half of it stored.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from mirrorlog.client.options import check_timeout, parse_compression, parse_durability, parse_level
from mirrorlog.client.producer.batch import Receipts
from mirrorlog.client.sync import BulkDelivery, Client, Producer
from mirrorlog.errors import BadRequest, NoSuchQueue
from mirrorlog.spark.access import NO_ACCESS, Access
from mirrorlog.spark.errors import BadOption, WriteUnproven
from mirrorlog.spark.options import access_of, boolean_of, parse_servers
from mirrorlog.spark.writing.columns_out import OutColumns, check_columns, per_queue

# The writer's options are in docs/land/spark.md. As for Kafka's sink `queue` goes above the column `topic`: rows that
# were read from one queue and are written to another have that column, which names where they came from.


_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_NAMES: Final = (
    *("servers", _BOOTSTRAP, "queue", "topic", "confirm", "durability", "compression", "declare"),
    *("delivery_timeout_ms", "tls_ca", "tls_cert", "tls_key", "user", "password"),
)
_KNOWN: Final = frozenset(_NAMES)
# Spark's own, which it hands on.
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
DELIVERY_TIMEOUT_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Checked options. `queue`: None when rows name theirs."""

    servers: tuple[str, ...]
    queue: str | None = None
    confirm: str = "all"
    durability: str = "memory"
    compression: str = "none"
    declare: bool = False
    delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS
    access: Access = NO_ACCESS


def parse_writer_options(options: Mapping[str, str]) -> WriterOptions:
    """Raises BadOption naming the option and what is wrong with it."""
    given = {name.lower(): value.strip() for name, value in options.items()}
    _refuse_unknown(given)
    confirm = given.get("confirm", "all").lower()
    if confirm in ("none", "0"):
        raise BadOption("option 'confirm': a task must know that its records are there; give master at least")
    durability, compression = given.get("durability", "memory").lower(), given.get("compression", "none").lower()
    timeout_ms = given.get("delivery_timeout_ms", str(DELIVERY_TIMEOUT_MS))
    if not (timeout_ms.isascii() and timeout_ms.isdigit() and len(timeout_ms) <= 20):
        raise BadOption(f"option 'delivery_timeout_ms' is a number of ms, not {timeout_ms!r:.80}")
    try:
        parse_level(confirm)
        parse_durability(durability)
        parse_compression(compression)
        check_timeout("delivery_timeout_ms", int(timeout_ms))
    except BadRequest as error:
        raise BadOption(f"option of the writer: {error}") from None
    return WriterOptions(
        servers=parse_servers(_either(given, "servers", _BOOTSTRAP) or ""),
        queue=_either(given, "queue", "topic"),
        confirm=confirm,
        durability=durability,
        compression=compression,
        declare=boolean_of(given, "declare", False),
        delivery_timeout_ms=int(timeout_ms),
        access=access_of(given),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    if "path" in given:
        raise BadOption("option 'path' is for reading; records are written to nodes, named by 'servers': save() alone")
    for name in given.keys() - _KNOWN - _OF_SPARK:
        raise BadOption(f"option {name!r} is not one of the writer's; there are {', '.join(_NAMES)}")


def _either(given: Mapping[str, str], name: str, other: str) -> str | None:
    if name in given and other in given:
        raise BadOption(f"options {name!r} and {other!r} mean the same; give one of them")
    found = given.get(name, given.get(other))
    if found == "":
        raise BadOption(f"option {name!r} is empty")
    return found


__all__ = ["QueueStreamWriter", "QueueWriter", "WrittenRows", "batch_writer", "parse_writer_options", "stream_writer"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class QueueWritten:
    """What a task wrote to a queue: so many records, at these queue offsets, [first, next), rising."""

    records: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, receipts: Receipts) -> None:
        """The confirms of records that were sent behind those before."""
        for each in receipts.ranges:
            first, following = each.queue_offsets.start, each.queue_offsets.stop
            if self.ranges and self.ranges[-1][1] == first:
                first = self.ranges.pop()[0]
            self.ranges.append((first, following))


@dataclass(slots=True)
class WrittenRows(WriterCommitMessage):
    """What one task wrote, by queue: its word to the driver."""

    queues: dict[str, QueueWritten] = field(default_factory=dict)


def batch_writer(options: WriterOptions, schema: StructType, *, overwrite: bool) -> QueueWriter:
    """Raises BadOption, and what nodes answer: NoSuchQueue, ConnectionLost."""
    _check(options, schema, overwrite=overwrite)
    return QueueWriter(options)


def stream_writer(options: WriterOptions, schema: StructType, *, overwrite: bool) -> QueueStreamWriter:
    """As `batch_writer`. `overwrite`: Spark's output mode `complete`."""
    _check(options, schema, overwrite=overwrite)
    return QueueStreamWriter(options)


class QueueWriter(DataSourceArrowWriter):
    """A batch job's."""

    def __init__(self, options: WriterOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """One attempt of a task. Raises Refused, OutcomeUnknown, BadInput, NoSuchQueue, ConnectionLost."""
        return write_rows(self.options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Raises WriteUnproven."""
        check_written(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What is written stays: records of a queue are never taken back."""
        tell_left(messages)


class QueueStreamWriter(DataSourceStreamArrowWriter):
    """A stream's: the same for each micro-batch."""

    def __init__(self, options: WriterOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        """As `QueueWriter.write`."""
        return write_rows(self.options, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Raises WriteUnproven."""
        check_written(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """As `QueueWriter.abort`."""
        tell_left(messages)


# --- A task ---------------------------------------------------------------------------------------------------------


def write_rows(options: WriterOptions, batches: Iterable[pa.RecordBatch]) -> WrittenRows:
    """Send all rows; returns when every one is confirmed. Nodes are not asked while there is no row.

    Raises the first error that a record ended with, when all that were sent have ended.
    """
    with ExitStack() as stack:
        sending: _Sending | None = None
        for batch in batches:
            for queue, columns in per_queue(batch, queue=options.queue):
                sending = sending or _Sending(options, stack)
                sending.send(queue, columns)
        return WrittenRows() if sending is None else sending.finish()


class _Sending:
    """A client, a producer for each queue, and what is on its way."""

    def __init__(self, options: WriterOptions, stack: ExitStack) -> None:
        """`stack`: ends the connections."""
        self._options = options
        self._client = stack.enter_context(Client(*options.servers, **options.access.client_options()))
        self._producers: dict[str, Producer] = {}
        self._under_way: deque[tuple[str, BulkDelivery]] = deque()
        self._written = WrittenRows()

    def send(self, queue: str, columns: OutColumns) -> None:
        """Waits for room in the producer's window. Raises as `write_rows`."""
        producer = self._producers.get(queue) or self._producer(queue)
        delivery = producer.send_many_nowait(
            columns.values, keys=columns.keys, headers=columns.headers, timestamps=columns.timestamps
        )
        self._under_way.append((queue, delivery))
        self._written.queues.setdefault(queue, QueueWritten()).records += len(delivery)
        while self._under_way and self._under_way[0][1].done():
            self._take()

    def finish(self) -> WrittenRows:
        """When all is confirmed. Raises as `write_rows`."""
        while self._under_way:
            self._take()
        return self._written

    def _take(self) -> None:
        queue, delivery = self._under_way.popleft()
        self._written.queues[queue].add(delivery.result())

    def _producer(self, queue: str) -> Producer:
        options = self._options
        if options.declare:
            self._client.admin.declare(queue)
        producer = self._client.producer(
            queue,
            confirm=options.confirm,
            durability=options.durability,
            compression=options.compression,
            delivery_timeout_ms=options.delivery_timeout_ms,
        )
        self._producers[queue] = producer.start()
        return producer


# --- The driver -----------------------------------------------------------------------------------------------------


def _check(options: WriterOptions, schema: StructType, *, overwrite: bool) -> None:
    """Before any task runs: what can be known to be wrong."""
    if overwrite:
        raise BadOption("records are appended to a queue, never replaced: use mode append")
    check_columns(schema, queue=options.queue)
    if options.queue is None:
        return
    with Client(*options.servers, **options.access.client_options()) as client:
        if options.declare:
            client.admin.declare(options.queue)
        elif client.admin.metadata([options.queue]).missing:
            raise NoSuchQueue(
                f"no queue {options.queue!r}; make it with: mqtool declare {options.queue}, or set option declare"
            )


def check_written(messages: Sequence[WriterCommitMessage | None]) -> dict[str, QueueWritten]:
    """What all tasks wrote, by queue. Raises WriteUnproven when the confirms of all tasks do not fit together."""
    total: dict[str, QueueWritten] = {}
    for message in messages:
        if not isinstance(message, WrittenRows):
            raise WriteUnproven("a task did not say what it wrote; look at the queue before the job is run again")
        for queue, written in message.queues.items():
            of_queue = total.setdefault(queue, QueueWritten())
            of_queue.records += written.records
            of_queue.ranges += written.ranges
    for queue, written in total.items():
        _check_queue(queue, written)
    return total


def _check_queue(queue: str, written: QueueWritten) -> None:
    written.ranges.sort()
    confirmed = sum(following - first for first, following in written.ranges)
    if confirmed != written.records:
        raise WriteUnproven(f"queue {queue!r}: {written.records} records were sent and {confirmed} are confirmed")
    for (_, following), (first, _) in pairwise(written.ranges):
        if first < following:
            raise WriteUnproven(
                f"queue {queue!r}: queue offset {first} was given to two tasks, so records were lost between them; "
                "that happens to confirm levels below all when a node fails, and to a queue that is made anew"
            )


def tell_left(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Log what a failed job leaves in queues."""
    for message in messages:
        for queue, written in message.queues.items() if isinstance(message, WrittenRows) else ():
            logger.warning("records_left queue=%s records=%d ranges=%s", queue, written.records, written.ranges[:10])
