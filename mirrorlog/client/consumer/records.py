"""What a consumer gives out: checked batches, their columns as views, and their records. Pure.

A batch stands in the memory that it was received into. Values, keys and Arrow arrays are views of that memory and keep
it alive; only `records` copies, because a `bytes` object is one of its own.

A batch that is compressed stays so until the reader comes to it: an answer of a few megabytes may hold a thousand times
as much.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast, overload
from uuid import UUID

from mirrorlog.client.properties import RecordProperties, properties_in
from mirrorlog.client.serializers import Deserializer, deserialized
from mirrorlog.commitlog.format.attributes import NO_ATTRIBUTES, Attributes, attributes_of
from mirrorlog.commitlog.format.body import BinaryColumn, Body, Header, HeadersColumn, Int32s, TimestampsColumn
from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, check_body, check_stamped, log_seed, place_of
from mirrorlog.errors import BadBatch, MissingDependency, UnreadableBatch

if TYPE_CHECKING:
    import pyarrow as pa

# The frame's own limit has held already; a batch's length is only checked against the bytes that are there.
_BATCH_BYTES_MAX: Final = 2**31
# Of a compressed body when opened, by default: as much as any node may allow a batch to have.
_BODY_BYTES_MAX: Final = 2**28
# length and record_count stand side by side, base_queue_offset before them: see commitlog.format.
_PLACE: Final = Struct("<8xQ28xII")

_FIRST: Final = itemgetter(0)

_T = TypeVar("_T")


class ConsumedRecord(NamedTuple):
    """A record that was read. `timestamp`: event time, µs UTC, None when the producer gave none; `append_time_us`, µs
    UTC, and `attributes`: of its batch."""

    queue: str
    queue_offset: int
    value: bytes | None
    key: bytes | None
    headers: list[Header]
    timestamp: int | None
    append_time_us: int
    attributes: Attributes = NO_ATTRIBUTES

    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r:.60}"
        return f"ConsumedRecord(queue={self.queue!r}, queue_offset={self.queue_offset}, value={self.value!r:.60}{key})"

    @property
    def data(self) -> Any:
        """The value, by the reader's `deserializer` if it was given one. Raises BadInput when that fails."""
        return self.value

    @property
    def properties(self) -> RecordProperties:
        """Content type, correlation id, reply to, and so on."""
        return properties_in(self.headers)

    @property
    def priority(self) -> int:
        """The higher the more urgent, from 0 to 255."""
        return self.attributes.priority

    @property
    def expires_at_us(self) -> int | None:
        """From when on it is given out to nobody in a group that acks, µs UTC; None: never."""
        return self.attributes.expires_at_us(self.append_time_us)

    @property
    def not_before_us(self) -> int:
        """From when on it is given out in a group that acks, µs UTC."""
        return self.attributes.not_before_us(self.append_time_us)


def record_kind(deserializer: Deserializer | None) -> type[ConsumedRecord]:
    """What a reader with that deserializer gives out: a class of its own, so that no record is larger for it."""
    if deserializer is None:
        return ConsumedRecord

    class DeserializedRecord(ConsumedRecord):
        __slots__ = ()

        @property
        def data(self) -> Any:
            return deserialized(deserializer, self.value, self.queue, self.queue_offset)

        def __reduce__(self) -> tuple[Any, ...]:
            return ConsumedRecord, tuple(self)  # another process has the value

    return DeserializedRecord


class Views(Sequence[memoryview | None]):
    """A column's entries, each a view of the batch's bytes, None where absent; made when asked for.

    Rows `first` up to `next` (exclusive) of the column; all absent when there is no column.
    """

    __slots__ = ("_column", "_rows")

    def __init__(self, column: BinaryColumn | None, rows: range) -> None:
        self._column = column
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> memoryview | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview | None]: ...
    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview | None] | None:
        if isinstance(index, slice):
            rows = self._rows[index]
            return Views(self._column, rows) if rows.step == 1 else [self._at(row) for row in rows]
        return self._at(self._rows[index])

    def __iter__(self) -> Iterator[memoryview | None]:
        column, rows = self._column, self._rows
        if column is None:
            return repeat(None, len(rows))
        offsets = column.offsets[rows.start : rows.stop + 1].tolist()
        found: Iterable[memoryview | None] = map(column.data.__getitem__, map(slice, offsets, offsets[1:]))
        return iter(found if column.validity is None else _where_valid(found, column.validity, rows))

    def tolist(self) -> list[bytes | None]:
        """Copies of their own, much faster than one by one."""
        return [None] * len(self._rows) if self._column is None else list(_bytes_of(self._column, self._rows))

    def _at(self, row: int) -> memoryview | None:
        return None if self._column is None else self._column[row]


@dataclass(frozen=True, slots=True, eq=False)
class ConsumedBatch:
    """A checked batch. Of its records those with queue offsets `first` up to `next` (exclusive) are the reader's.

    `raw`: header and body as they stand in the log; `body`: its columns, of all records, the reader's or not. `kind`:
    of its records, by the reader's deserializer.
    """

    queue: str
    log_id: str
    header: BatchHeader
    body: Body
    raw: memoryview
    first: int
    next: int
    kind: type[ConsumedRecord] = ConsumedRecord

    def __repr__(self) -> str:
        return f"ConsumedBatch(queue={self.queue!r}, first={self.first}, next={self.next})"

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def attributes(self) -> Attributes:
        """What its producer asked for with it. Raises BadBatch naming queue and log offset."""
        try:
            return attributes_of(self.header, self.raw)
        except BadBatch as error:
            raise _named(error, self.queue, self.header.log_offset) from None

    @property
    def values(self) -> Views:
        """The reader's values."""
        return Views(self.body.values, self._rows)

    @property
    def keys(self) -> Views:
        """The reader's keys."""
        return Views(self.body.keys, self._rows)

    def value_bytes(self, index: int) -> bytes | None:
        """A copy of the reader's value `index`."""
        value = self.values[index]
        return None if value is None else bytes(value)

    def key_bytes(self, index: int) -> bytes | None:
        """A copy of the reader's key `index`."""
        key = self.keys[index]
        return None if key is None else bytes(key)

    def to_arrow(self) -> pa.RecordBatch:
        """The reader's records under `arrow.SCHEMA`, over the batch's own bytes.

        Raises MissingDependency without pyarrow, BadBatch when a header's name is not UTF-8.
        """
        try:
            from mirrorlog.client.consumer.arrow import record_batch
        except ImportError as error:
            raise MissingDependency(f"to_arrow needs pyarrow ({error}): pip install pyarrow") from None
        return record_batch(self.header, self.body, first=self.first, following=self.next)

    def records(self) -> Iterator[ConsumedRecord]:
        """The reader's records as objects of their own."""
        body, rows = self.body, self._rows
        fields: Iterable[tuple[Any, ...]] = zip(
            repeat(self.queue),
            range(self.first, self.next),
            _bytes_of(body.values, rows),
            repeat(None) if body.keys is None else _bytes_of(body.keys, rows),
            map(list, repeat((), len(rows))) if body.headers is None else _headers_of(body.headers, rows),
            repeat(None) if body.timestamps is None else _timestamps_of(body.timestamps, rows),
            repeat(self.header.append_time_us),
            repeat(self.attributes),
            strict=False,
        )
        # As a named tuple's own constructor does, but without a Python frame per record: half the time.
        return cast(Iterator[ConsumedRecord], map(tuple.__new__, repeat(self.kind), fields))

    def opened(self, kind: type[ConsumedRecord] = ConsumedRecord) -> ConsumedBatch:
        """Itself."""
        return self if self.kind is kind else replace(self, kind=kind)

    def after(self, queue_offset: int) -> ConsumedBatch:
        """What of it stands at `queue_offset` or later."""
        return self if queue_offset <= self.first else replace(self, first=queue_offset)

    def before(self, queue_offset: int) -> ConsumedBatch:
        """What of it stands below `queue_offset`."""
        return self if queue_offset >= self.next else replace(self, next=queue_offset)

    @property
    def _rows(self) -> range:
        base = self.header.base_queue_offset
        return range(self.first - base, self.next - base)


@dataclass(frozen=True, slots=True, eq=False)
class ClosedBatch:
    """A batch that is proven by both of its checksums, and not opened yet.

    `raw`: header and body as they stand in the log; `body_bytes_max`: what the body may have when it is opened.
    """

    queue: str
    log_id: str
    header: BatchHeader
    raw: memoryview
    body_bytes_max: int

    @property
    def first(self) -> int:
        """The queue offset of its first record."""
        return self.header.base_queue_offset

    @property
    def next(self) -> int:
        """The queue offset behind its last record."""
        return self.header.next_queue_offset

    def opened(self, kind: type[ConsumedRecord] = ConsumedRecord) -> ConsumedBatch:
        """With its columns. Raises BadBatch naming queue and log offset; UnreadableBatch when that is what its producer
        sent."""
        from mirrorlog.commitlog.format.codec import open_body  # with numpy, which who only sends can do without

        header = self.header
        try:
            body = open_body(self.raw, header=header, body_bytes_max=self.body_bytes_max)
        except BadBatch as error:
            if header.body_length > self.body_bytes_max:
                raise _named(error, self.queue, header.log_offset) from None
            raise unreadable(error, self.queue, header) from None
        return ConsumedBatch(self.queue, self.log_id, header, body, self.raw, self.first, self.next, kind)


# Columns to objects in whole runs, at a quarter of the cost of row by row. As iterators: a reader that drops one record
# before the next one gets its memory again, warm.


def _bytes_of(column: BinaryColumn, rows: range) -> Iterator[bytes | None]:
    offsets = column.offsets[rows.start : rows.stop + 1]
    found = _same_size(column, offsets)
    if found is None:
        found = _any_size(column, offsets.tolist())
    return found if column.validity is None else _where_valid(found, column.validity, rows)


def _same_size(column: BinaryColumn, offsets: Int32s) -> Iterator[bytes | None] | None:
    """Where all entries have one size, they are cut without a step in Python, in half the time; None elsewhere."""
    count = len(offsets) - 1
    start, end = int(offsets[0]), int(offsets[-1])
    size = (end - start) // count if count else 0
    if not size or size * count != end - start or not (offsets[1:] - offsets[:-1] == size).all():
        return None
    return map(_FIRST, Struct(f"{size}s").iter_unpack(column.data[start:end]))


def _any_size(column: BinaryColumn, offsets: list[int]) -> Iterator[bytes | None]:
    start = offsets[0]
    content = bytes(column.data[start : offsets[-1]])
    return (content[at - start : end - start] for at, end in pairwise(offsets))


def _headers_of(column: HeadersColumn, rows: range) -> list[list[Header]]:
    offsets = column.list_offsets[rows.start : rows.stop + 1].tolist()
    start = offsets[0]
    entries = range(start, offsets[-1])
    try:
        names = [str(name or b"", "utf-8") for name in _bytes_of(column.names, entries)]
    except UnicodeDecodeError as error:
        raise BadBatch(f"a header's name is not UTF-8: {error}") from None
    pairs = list(zip(names, _bytes_of(column.values, entries), strict=True))
    return [pairs[at - start : end - start] for at, end in pairwise(offsets)]


def _timestamps_of(column: TimestampsColumn, rows: range) -> Iterable[int | None]:
    found: list[int | None] = column.values[rows.start : rows.stop].tolist()
    return found if column.validity is None else _where_valid(found, column.validity, rows)


def _where_valid(entries: Iterable[_T | None], validity: memoryview, rows: range) -> Iterator[_T | None]:
    present = (validity[row >> 3] >> (row & 7) & 1 for row in rows)
    return (entry if is_there else None for entry, is_there in zip(entries, present, strict=True))


# --- From bytes -----------------------------------------------------------------------------------------------------


def end_of(content: memoryview, count: int) -> int | None:
    """The queue offset behind the `count` batches that stand in `content`, as their headers say, unproven.

    None when they do not say it, or there are none: `proven_batches` tells what is wrong with them.
    """
    at = following = 0
    for _ in range(count):
        if len(content) - at < HEADER_SIZE:
            return None
        base, length, record_count = _PLACE.unpack_from(content, at)
        if length < HEADER_SIZE:
            return None
        at += length
        following = base + record_count
    return following or None


def headers_in(content: memoryview, count: int) -> list[tuple[int, int, int]]:
    """First and next queue offset, and length, of the `count` batches that stand in `content`, unproven.

    Raises BadBatch when so many cannot stand there.
    """
    found: list[tuple[int, int, int]] = []
    at = 0
    for _ in range(count):
        if len(content) - at < HEADER_SIZE:
            raise BadBatch(f"{count} batches do not fit into {len(content)} bytes")
        base, length, record_count = _PLACE.unpack_from(content, at)
        if not HEADER_SIZE <= length <= len(content) - at:
            raise BadBatch(f"a batch of {length} bytes at {at} of {len(content)}")
        found.append((base, base + record_count, length))
        at += length
    return found


def proven_batches(
    content: bytes | memoryview, count: int, *, queue: str, log_id: str, body_bytes_max: int = _BODY_BYTES_MAX
) -> list[ClosedBatch]:
    """The `count` batches that stand back to back in `content`, each proven by both of its checksums.

    `body_bytes_max`: of each body when it is opened. Raises BadBatch naming queue and log offset.
    """
    found, bad = sound_batches(content, count, queue=queue, log_id=log_id, body_bytes_max=body_bytes_max)
    if bad is not None:
        raise bad
    return found


def sound_batches(
    content: bytes | memoryview, count: int, *, queue: str, log_id: str, body_bytes_max: int
) -> tuple[list[ClosedBatch], BadBatch | None]:
    """As `proven_batches`, up to the first one that is bad, and what is wrong with that; None when all are good."""
    # Read-only: what is given out is the log's, whoever looks at it.
    view = memoryview(content).toreadonly()
    seed = log_seed(UUID(log_id))
    found: list[ClosedBatch] = []
    at = 0
    for _ in range(count):
        try:
            header = _proven(view, at, queue=queue, seed=seed)
        except BadBatch as error:
            return found, error
        following = at + header.length
        found.append(ClosedBatch(queue, log_id, header, view[at:following], body_bytes_max))
        at = following
    return found, None


def is_of_log(content: bytes | memoryview, log_id: str) -> bool:
    """Whether the first batch in `content` is stamped as that log's."""
    place, seed = place_of(content, 0), log_seed(UUID(log_id))
    try:
        check_stamped(memoryview(content), 0, log_offset=place, seed=seed, max_batch_bytes=_BATCH_BYTES_MAX)
    except BadBatch:
        return False
    return True


def checked_batches(content: bytes | memoryview, count: int, *, queue: str, log_id: str) -> list[ConsumedBatch]:
    """As `proven_batches`, all of them opened at once."""
    return [batch.opened() for batch in proven_batches(content, count, queue=queue, log_id=log_id)]


def _proven(content: memoryview, at: int, *, queue: str, seed: int) -> BatchHeader:
    place = place_of(content, at)
    try:
        header = check_stamped(content, at, log_offset=place, seed=seed, max_batch_bytes=_BATCH_BYTES_MAX)
        check_body(content, at, header)
    except BadBatch as error:
        raise _named(error, queue, place) from None
    return header


def unreadable(error: BadBatch, queue: str, header: BatchHeader) -> UnreadableBatch:
    """Of a batch that both of its checksums prove."""
    first, following = header.base_queue_offset, header.next_queue_offset
    return UnreadableBatch(
        f"queue {queue!r}, queue offsets {first} up to {following} at log offset {header.log_offset}: producer "
        f"{header.producer_id} sent what nobody can open: {error.message}; go on at {following} to pass it",
        queue=queue,
        queue_offset=first,
        go_on_at=following,
        log_offset=header.log_offset,
        producer_id=header.producer_id,
        append_time_us=header.append_time_us,
    )


def _named(error: BadBatch, queue: str, log_offset: int) -> BadBatch:
    return BadBatch(f"queue {queue!r}, log offset {log_offset}: {error}", log_offset=log_offset)


# A record that a group gave out, under a subscription or a lease: what both kinds have of the record itself.


class GrantedRecord:
    """A record that a group gave out. `offset`: its queue offset; `timestamp`: event time, µs UTC, None when the
    producer gave none; `append_time_us` and `attributes`: of its batch, µs UTC."""

    __slots__ = ("append_time_us", "attributes", "headers", "key", "offset", "queue", "timestamp", "value")

    def __init__(self, record: ConsumedRecord) -> None:
        self.queue: str
        self.offset: int
        self.value: bytes | None
        self.key: bytes | None
        self.headers: list[Header]
        self.timestamp: int | None
        self.append_time_us: int
        self.attributes: Attributes
        (
            self.queue, self.offset, self.value, self.key, self.headers, self.timestamp, self.append_time_us,
            self.attributes,
        ) = record  # fmt: skip

    @property
    def record(self) -> ConsumedRecord:
        """As a consumer gives it out."""
        return ConsumedRecord(
            self.queue, self.offset, self.value, self.key, self.headers, self.timestamp, self.append_time_us,
            self.attributes,
        )  # fmt: skip

    @property
    def queue_offset(self) -> int:
        """`offset`, by the name that consumed records have for it."""
        return self.offset

    @property
    def properties(self) -> RecordProperties:
        """Content type, correlation id, reply to, and so on."""
        return properties_in(self.headers)

    @property
    def priority(self) -> int:
        """The higher the more urgent, from 0 to 255."""
        return self.attributes.priority

    @property
    def expires_at_us(self) -> int | None:
        """From when on it is given to nobody any more, µs UTC; None: never."""
        return self.attributes.expires_at_us(self.append_time_us)

    @property
    def not_before_us(self) -> int:
        """From when on it could be given out, µs UTC."""
        return self.attributes.not_before_us(self.append_time_us)
