"""Making batches: columns of values, keys, headers and times, joined once into the bytes of a batch. Pure.

The layout that they are given is `body`'s. A header is written last, with the CRC of everything. numpy is imported by
what needs it: a few records with values and keys are drafted without, at a third of the cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from mirrorlog.commitlog.format.attributes import Attributes, encode_attributes
from mirrorlog.commitlog.format.body import (
    ATTRIBUTES,
    FEW_OFFSETS,
    FEW_RECORDS,
    HEADER_VALUES_VALIDITY,
    HEADERS,
    KEYS,
    KEYS_VALIDITY,
    TIMESTAMPS,
    TIMESTAMPS_VALIDITY,
    VALUES_VALIDITY,
    Bools,
    Header,
    Int32s,
    Int64s,
    Record,
)
from mirrorlog.commitlog.format.header import HEADER_SIZE, NO_PRODUCER, NO_TIMESTAMP, Codec, Kind, write_producer_part

Part = bytes | bytearray | memoryview
"""Bytes on their way into a body."""
Join = Callable[[Sequence[Part]], bytearray | memoryview]
"""Makes one piece of memory, that may be written to, of parts in their order."""
_NO_HEADER: Final = bytes(HEADER_SIZE)
_ONE_SIZE: Final = FEW_OFFSETS[1]
# What fills a part of n bytes up to a multiple of 8, at n % 8.
_ZEROS: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class Draft(NamedTuple):
    """A batch whose body is in place and whose header is still zeros. A named tuple because one is made per batch.

    `data`: all of the batch, its attributes in place too. `padding`: its last bytes that belong to no column.
    `body_length`: before the codec, attributes and padding excluded.
    """

    data: bytearray | memoryview
    record_count: int
    columns: int
    max_timestamp_us: int
    codec: Codec
    padding: int
    body_length: int

    def seal(
        self,
        *,
        queue_id: int,
        kind: Kind = Kind.DATA,
        producer_id: int = NO_PRODUCER,
        producer_epoch: int = 0,
        sequence: int = 0,
    ) -> bytearray | memoryview:
        """Write the producer's part of the header, with the CRC of everything, into `data`, and give it."""
        write_producer_part(
            self.data,
            kind=kind,
            queue_id=queue_id,
            record_count=self.record_count,
            columns=self.columns,
            padding=self.padding,
            codec=self.codec,
            body_length=self.body_length,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            sequence=sequence,
            max_timestamp_us=self.max_timestamp_us,
        )
        return self.data


class BodyWriter:
    """Collects columns in the order of the layout; `draft` joins all their bytes once, into the batch itself.

    The entries stay where they are until then: each is copied one time, and nothing is allocated but the batch.
    """

    __slots__ = ("_columns", "_max_timestamp_us", "_parts", "_record_count")

    def __init__(self, record_count: int, attributes: Attributes | None = None) -> None:
        self._record_count = record_count
        self._columns = 0 if attributes is None else ATTRIBUTES
        self._max_timestamp_us = NO_TIMESTAMP
        self._parts: list[Part] = [_head(attributes)]

    def add_values(self, offsets: Int32s, data: Iterable[Part], present: Bools | None) -> None:
        """`data`: the entries' bytes, in as many pieces as they have. `present`: None when none is absent."""
        self._add_binary(offsets, data, present, VALUES_VALIDITY)

    def add_keys(self, offsets: Int32s, data: Iterable[Part], present: Bools | None) -> None:
        self._columns |= KEYS
        self._add_binary(offsets, data, present, KEYS_VALIDITY)

    def add_headers(self, counts: Iterable[int], names: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """`counts`: entries of each record; the entries of all records follow one another."""
        self._columns |= HEADERS
        self._add((_offsets(counts, self._record_count).data,), 4 * (self._record_count + 1))
        self._add_binary(*_binary(names), 0)
        self._add_binary(*_binary(values), HEADER_VALUES_VALIDITY)

    def add_timestamps(self, stamps_us: Int64s, present: Bools | None) -> None:
        """`stamps_us`: 0 where absent; at least one is there."""
        self._columns |= TIMESTAMPS
        there = stamps_us if present is None else stamps_us[present]
        self._max_timestamp_us = int(there.max())
        self._add_validity(present, TIMESTAMPS_VALIDITY)
        self._add((stamps_us.astype("<i8", copy=False).data,), 8 * len(stamps_us))

    def draft(self, join: Join | None = None) -> Draft:
        """The batch, but for its header. `join`: None takes new memory."""
        return _joined(self._parts, self._record_count, self._columns, self._max_timestamp_us, join)

    def _add_binary(self, offsets: Int32s, data: Iterable[Part], present: Bools | None, validity_bit: int) -> None:
        if present is not None:
            self._add_validity(present, validity_bit)
        parts = self._parts
        parts += (offsets.data, _ZEROS[4 * len(offsets) % 8])
        parts += data
        parts.append(_ZEROS[int(offsets[-1]) % 8])

    def _add_validity(self, present: Bools | None, bit: int) -> None:
        """A bitmap, only if something is absent."""
        if present is not None:
            import numpy as np

            self._columns |= bit
            bitmap = np.packbits(present, bitorder="little")
            self._add((bitmap.data,), len(bitmap))

    def _add(self, pieces: Iterable[Part], size: int) -> None:
        self._parts.extend(pieces)
        self._parts.append(_ZEROS[size % 8])


def _joined(
    parts: Sequence[Part],
    record_count: int,
    columns: int,
    max_timestamp_us: int = NO_TIMESTAMP,
    join: Join | None = None,
) -> Draft:
    """`parts`: all of the batch, in order."""
    data = bytearray().join(parts) if join is None else join(parts)
    return Draft(data, record_count, columns, max_timestamp_us, Codec.NONE, 0, len(data) - len(parts[0]))


def _head(attributes: Attributes | None) -> bytes:
    """What stands before the body, its first part: the header to be, and the attributes."""
    return _NO_HEADER if attributes is None else _NO_HEADER + encode_attributes(attributes)


def _offsets(sizes: Iterable[int], count: int) -> Int32s:
    import numpy as np

    offsets: Int32s = np.fromiter(accumulate(sizes, initial=0), dtype="<i4", count=count + 1)
    return offsets


def _presence(entries: Sequence[object | None]) -> Bools | None:
    """None when nothing is absent."""
    if None not in entries:
        return None
    import numpy as np

    return np.fromiter((entry is not None for entry in entries), dtype=bool, count=len(entries))


def _binary(entries: Sequence[bytes | None]) -> tuple[Int32s, Sequence[bytes], Bools | None]:
    present = _presence(entries)
    filled = entries if present is None else [entry or b"" for entry in entries]
    # Nothing in `filled` is absent: `_presence` gives None for entries without an absence.
    return _offsets(map(len, filled), len(filled)), filled, present  # type: ignore[arg-type, return-value]


def encode_batch(
    records: Sequence[Record],
    *,
    queue_id: int,
    kind: Kind = Kind.DATA,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = 0,
    sequence: int = 0,
    attributes: Attributes | None = None,
) -> bytearray:
    """A batch of 1..n records as a producer sends it: header with the broker's part still zero, and body."""
    draft = draft_columns(
        [record.value for record in records],
        [record.key for record in records],
        [record.headers for record in records],
        [record.timestamp_us for record in records],
        attributes,
    )
    batch = draft.seal(
        queue_id=queue_id, kind=kind, producer_id=producer_id, producer_epoch=producer_epoch, sequence=sequence
    )
    assert isinstance(batch, bytearray)  # no other memory was asked for
    return batch


def draft_columns(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] = (),
    headers: Sequence[Sequence[Header]] = (),
    timestamps_us: Sequence[int | None] = (),
    attributes: Attributes | None = None,
) -> Draft:
    """A batch from columns of the values' length; one that is empty, or has nothing but absent entries, takes no
    space."""
    has_keys, has_headers = len(keys) > keys.count(None), any(headers)
    has_timestamps = len(timestamps_us) > timestamps_us.count(None)
    absences = None in values or (has_keys and None in keys)
    if len(values) <= FEW_RECORDS and not (has_headers or has_timestamps or absences):
        return _draft_few(values, keys if has_keys else (), attributes)  # type: ignore[arg-type]  # without an absence
    writer = BodyWriter(len(values), attributes)
    writer.add_values(*_binary(values))
    if has_keys:
        writer.add_keys(*_binary(keys))
    if has_headers:
        entries = [entry for entries in headers for entry in entries]
        names, contents = [name.encode() for name, _ in entries], [content for _, content in entries]
        writer.add_headers(map(len, headers), names, contents)
    if has_timestamps:
        import numpy as np

        stamps = np.fromiter((stamp or 0 for stamp in timestamps_us), dtype=np.int64, count=len(values))
        writer.add_timestamps(stamps, _presence(timestamps_us))
    return writer.draft()


def draft_record(value: bytes, key: bytes | None = None) -> Draft:
    """A batch of one record that has a value, and no headers and no time."""
    size = len(value)
    parts = [_NO_HEADER, _ONE_SIZE.pack(0, size), value, _ZEROS[size % 8]]
    if key is not None:
        size = len(key)
        parts += (_ONE_SIZE.pack(0, size), key, _ZEROS[size % 8])
    return _joined(parts, 1, 0 if key is None else KEYS)


def _draft_few(values: Sequence[bytes], keys: Sequence[bytes], attributes: Attributes | None) -> Draft:
    """As `draft_columns`, of few records without an absence: without numpy."""
    parts: list[Part] = [_head(attributes), *_few(values)]
    if keys:
        parts += _few(keys)
    columns = 0 if attributes is None else ATTRIBUTES
    return _joined(parts, len(values), columns | KEYS if keys else columns)


def _few(entries: Sequence[bytes]) -> list[Part]:
    """The parts of a column of a few entries, all of them there."""
    offsets = tuple(accumulate(map(len, entries), initial=0))
    packed = FEW_OFFSETS[len(entries)].pack(*offsets)
    return [packed, _ZEROS[len(packed) % 8], *entries, _ZEROS[offsets[-1] % 8]]
