"""Records on their way: what one takes in a batch, and the PendingBatch that ends once for all its records.

Pure: it knows no clock and no socket. A record costs one list append; the columns that it does not use cost nothing,
and its key, headers and timestamp one append each. The bytes are joined once, when the batch is first sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol, Self, TypeVar, cast

from mirrorlog.client.producer.receipts import Receipt, ReceiptRange
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Header
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import Draft, draft_columns
from mirrorlog.commitlog.format.header import HEADER_SIZE, NO_TIMESTAMP, Codec
from mirrorlog.errors import BadInput, BadRequest, MirrorlogError
from mirrorlog.wire.frames import Confirm

Headers = Mapping[str, bytes | None] | Sequence[Header]

RECORD_OVERHEAD_BYTES: Final = 24
"""What a record takes in a batch besides its bytes: offsets of value and key, its timestamp, a header list entry, and
its bits of the validity bitmaps."""

BATCH_OVERHEAD_BYTES: Final = HEADER_SIZE + 128
"""And the batch once: its header and attributes, the offset that each column has more than entries, the padding of each
part."""

# A header's name and value have an offset and a bit as well.
_HEADER_OVERHEAD_BYTES: Final = 9
_HEADERS_ARE: Final = "headers are a mapping or pairs of a name (str, UTF-8) and bytes or None"
_TIMESTAMP_MAX: Final = -NO_TIMESTAMP - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_T = TypeVar("_T")


class Waiter(Protocol):
    """The part of a future that a batch needs."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...


class PendingBatch:
    """1..n records of one queue between `send` and their confirm.

    `size_bytes`: what they take at most, uncompressed, besides BATCH_OVERHEAD_BYTES. `count`: how many there are, once
    it is closed. `ended`: called once, at the end. `routing`: the stamp of the version that routed it, 0 for none.
    `attributes`: of all its records; None for none.
    """

    __slots__ = (
        "_codec", "_draft", "_headers", "_keys", "_sealed", "_timestamps_us", "_values", "_waiters", "attempts",
        "attributes", "count", "deadline", "ended", "heard", "in_flight", "listeners", "outcome", "producer_epoch",
        "routing", "sequence", "size_bytes", "unknown",
    )  # fmt: skip

    def __init__(self, deadline: float, *, codec: Codec = Codec.NONE, attributes: Attributes | None = None) -> None:
        self.attributes = attributes
        self.size_bytes = 0
        self.count = 0
        self.deadline = deadline
        self.sequence = 0
        self.producer_epoch = 0
        self.routing = 0
        self.attempts = 0
        self.in_flight = False
        self.unknown = False
        self.outcome: Confirm | MirrorlogError | None = None
        self.ended: Callable[[PendingBatch], None] | None = None
        self.listeners = 0
        self.heard = False
        self._codec = codec
        # A column other than the values ends with its last entry that is there: what is missing behind it is absent.
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] = []
        self._headers: list[Sequence[Header]] = []
        self._timestamps_us: list[int | None] = []
        self._draft: Draft | None = None
        self._sealed = False
        self._waiters: list[Waiter] = []

    @classmethod
    def drafted(cls, draft: Draft, *, size_bytes: int, deadline: float, codec: Codec = Codec.NONE) -> Self:
        """One whose body, with its attributes, is ready."""
        batch = cls(deadline, codec=codec)
        batch.count = draft.record_count
        batch.size_bytes = size_bytes
        batch._draft = compress_draft(draft, codec) if codec else draft
        return batch

    def __len__(self) -> int:
        return self.count or len(self._values)

    @property
    def window_bytes(self) -> int:
        """What it takes of the window. A batch of one empty record takes memory too."""
        return self.size_bytes + BATCH_OVERHEAD_BYTES

    def add(
        self, value: bytes | None, key: bytes | None, headers: Sequence[Header], timestamp_us: int | None, size: int
    ) -> int:
        """One record of `size` bytes (`record_size`); its number in the batch."""
        values = self._values
        index = len(values)
        values.append(value)
        self.size_bytes += size
        if key is not None:
            _put(self._keys, index, key, None)
        if headers:
            _put(self._headers, index, headers, ())
        if timestamp_us is not None:
            _put(self._timestamps_us, index, timestamp_us, None)
        return index

    def close(self) -> None:
        """Nothing is added any more."""
        self.count = len(self)

    def encoded(self, queue_id: int, producer_id: int) -> bytearray | memoryview:
        """The batch's bytes: the same ones at every attempt, until it is numbered anew."""
        draft = self._draft
        if draft is None:
            draft = self._draft = self._take_columns()
        if not self._sealed:
            draft.seal(
                queue_id=queue_id,
                producer_id=producer_id,
                producer_epoch=self.producer_epoch,
                sequence=self.sequence,
            )
            self._sealed = True
        return draft.data

    def number(self, *, producer_epoch: int, sequence: int) -> None:
        """Give the batch its place; bytes under an older one are left to whoever may still be sending them."""
        self.producer_epoch = producer_epoch
        self.sequence = sequence
        if self._sealed and self._draft is not None:
            self._draft = self._draft._replace(data=bytearray(self._draft.data))
            self._sealed = False
        self.unknown = False

    def resolve(self, outcome: Confirm | MirrorlogError) -> None:
        """End it, once, for all its records."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._draft = None
        if self._values:
            self.close()
            self._clear_columns()
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self.ended is not None:
            self.ended(self)

    def wait(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def receipt(self, index: int) -> Receipt:
        """Of record `index`. Raises what the batch ended with."""
        if type(self.outcome) is Confirm:
            return Receipt.of(self.outcome, index)
        return self.receipts().receipt(index)

    def receipts(self) -> ReceiptRange:
        """Of all its records. Raises what the batch ended with, and notes that it was heard; BadRequest before the
        end."""
        outcome = self.outcome
        if isinstance(outcome, MirrorlogError):
            self.heard = True
            # One of its own for each: raised again and again, an error would drag all their tracebacks along.
            raise type(outcome)(outcome.message, **outcome.details)
        if outcome is None:
            raise BadRequest("the record has not ended yet; await its delivery, or look at done() first")
        return ReceiptRange.of(outcome, len(self))

    @property
    def failed_unheard(self) -> bool:
        """Whether it ended with an error that was raised nowhere yet, and that nobody waits for."""
        return isinstance(self.outcome, MirrorlogError) and not self.heard and not self.listeners

    def _take_columns(self) -> Draft:
        count = self.count = len(self._values)
        draft = draft_columns(
            self._values,
            _filled(self._keys, count, None),
            _filled(self._headers, count, ()),
            _filled(self._timestamps_us, count, None),
            self.attributes,
        )
        self._clear_columns()
        return compress_draft(draft, self._codec) if self._codec else draft

    def _clear_columns(self) -> None:
        self._values, self._keys, self._headers, self._timestamps_us = [], [], [], []


def _put(column: list[_T], index: int, entry: _T, absent: _T) -> None:
    """Entry `index`, behind as many absent ones as are missing before it."""
    if len(column) != index:
        column.extend([absent] * (index - len(column)))
    column.append(entry)


def _filled(column: list[_T], count: int, absent: _T) -> list[_T]:
    """The column at its full length, empty as long as it has no entry."""
    if column and len(column) != count:
        column.extend([absent] * (count - len(column)))
    return column


def record_size(value: bytes | None, key: bytes | None, headers: Sequence[Header]) -> int:
    """Bytes that a record takes in a batch at most, besides BATCH_OVERHEAD_BYTES.

    Raises BadInput for what is no bytes: found later, it would spoil the batch for the records around it.
    """
    size = RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value) if type(value) is bytes else _refuse("a value", value)
    if key is not None:
        size += len(key) if type(key) is bytes else _refuse("a key", key)
    return size + headers_size(headers) if headers else size


def headers_size(headers: Sequence[Header]) -> int:
    """Bytes that a record's headers take in a batch. Raises BadInput."""
    size = 0
    try:
        for name, content in headers:
            size += _HEADER_OVERHEAD_BYTES + (len(name) if name.isascii() else len(name.encode()))
            if type(name) is not str:
                _refuse("a name in headers", name)
            if content is not None:
                size += len(content) if type(content) is bytes else _refuse("a value in headers", content)
    except (TypeError, ValueError, AttributeError):
        raise BadInput(_HEADERS_ARE) from None
    return size


def _refuse(what: str, found: object) -> int:
    raise BadInput(f"{what} is {type(found).__name__}; give {'str' if 'name' in what else 'bytes or None'}")


def as_headers(headers: Headers | None) -> Sequence[Header]:
    """A mapping or pairs as tuples: read once, here, and nobody can change them afterwards. Raises BadInput."""
    if not headers:
        return ()
    try:
        # The usual case is a list, and asking for a Mapping is dear. A pair that is a tuple is not copied.
        if type(headers) is not list and isinstance(headers, Mapping):
            return tuple(headers.items())
        return cast("Sequence[Header]", tuple(map(tuple, headers)))
    except TypeError:
        raise BadInput(_HEADERS_ARE) from None


def as_timestamp_us(timestamp: datetime | int | None) -> int | None:
    """µs UTC. Raises BadInput for a datetime without a time zone: its meaning would depend on the machine."""
    if timestamp is None:
        return None
    if isinstance(timestamp, int):
        if not -_TIMESTAMP_MAX <= timestamp <= _TIMESTAMP_MAX:
            raise BadInput(f"timestamp {timestamp} is beyond 64 bits of µs")
        return timestamp
    if not isinstance(timestamp, datetime):
        raise BadInput(f"a timestamp is a datetime or µs as int, not {type(timestamp).__name__}")
    if timestamp.tzinfo is None:
        raise BadInput(f"timestamp {timestamp} has no time zone; use datetime(..., tzinfo=UTC)")
    elapsed = timestamp - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * 1_000_000 + elapsed.microseconds
