"""Records on their way: a PendingBatch collects columns, is encoded once, and ends once for all its records.

Pure: it knows no clock and no socket. A record's Delivery is its batch and its number in it, so a record costs four
list appends and one small object until its batch is confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from mirrorlog.commitlog.body import Header, encode_columns
from mirrorlog.commitlog.format import HEADER_SIZE, NO_TIMESTAMP
from mirrorlog.errors import BadInput, MirrorlogError
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm

Headers = Mapping[str, bytes | None] | Sequence[Header]

# What a record takes in a batch besides its bytes: offsets of value and key, its timestamp, a header list entry, and
# its bits of the validity bitmaps; a header's name and value have an offset and a bit as well.
_RECORD_OVERHEAD_BYTES: Final = 24
_HEADER_OVERHEAD_BYTES: Final = 9
# And the batch once: its header, the offset that each column has more than entries, the padding of each part.
BATCH_OVERHEAD_BYTES: Final = HEADER_SIZE + 128
_TIMESTAMP_MAX: Final = -NO_TIMESTAMP - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A confirmed record. `log_offset`: of its batch; `copies`: that held it when it was answered.

    `durability`: 0 in memory, 1 on disk, of all those copies. `duplicate`: an earlier attempt had landed.
    """

    queue_offset: int
    log_offset: int
    epoch: int
    copies: int
    durability: int
    duplicate: bool


class Waiter(Protocol):
    """The part of a future that a batch needs."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...


class PendingBatch:
    """1..n records of one queue between `send` and their confirm."""

    __slots__ = (
        "_encoded", "_waiters", "attempts", "deadline", "headers", "in_flight", "keys", "outcome", "producer_epoch",
        "sequence", "size_bytes", "timestamps_us", "unknown", "values",
    )  # fmt: skip

    def __init__(self, deadline: float) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[Sequence[Header]] = []
        self.timestamps_us: list[int | None] = []
        self.size_bytes = 0
        self.deadline = deadline
        self.sequence = 0
        self.producer_epoch = 0
        self.attempts = 0
        self.in_flight = False
        self.unknown = False
        self.outcome: Confirm | MirrorlogError | None = None
        self._encoded: bytearray | None = None
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self.values)

    def add(
        self, value: bytes | None, key: bytes | None, headers: Sequence[Header], timestamp_us: int | None, size: int
    ) -> Delivery:
        """One record of `size` bytes (`record_size`)."""
        self.values.append(value)
        self.keys.append(key)
        self.headers.append(headers)
        self.timestamps_us.append(timestamp_us)
        self.size_bytes += size
        return Delivery(self, len(self.values) - 1)

    def encoded(self, queue_id: int, producer_id: int) -> bytearray:
        """The batch's bytes: the same ones at every attempt, until it is numbered anew."""
        if self._encoded is None:
            self._encoded = encode_columns(
                self.values,
                self.keys,
                self.headers,
                self.timestamps_us,
                queue_id=queue_id,
                producer_id=producer_id,
                producer_epoch=self.producer_epoch,
                sequence=self.sequence,
            )
        return self._encoded

    def number(self, *, producer_epoch: int, sequence: int) -> None:
        """Give the batch its place; bytes under an older one are forgotten."""
        self.producer_epoch = producer_epoch
        self.sequence = sequence
        self._encoded = None
        self.unknown = False

    def resolve(self, outcome: Confirm | MirrorlogError) -> None:
        """End it, once, for all its records."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        self._encoded = None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def wait(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)

    def receipt(self, index: int) -> Receipt:
        """Of record `index`. Raises what the batch ended with."""
        outcome = self.outcome
        if isinstance(outcome, MirrorlogError):
            # One of its own for each: raised again and again, an error would drag all their tracebacks along.
            raise type(outcome)(outcome.message, **outcome.details)
        assert outcome is not None, "the batch has not ended"
        return Receipt(
            outcome.base_queue_offset + index,
            outcome.log_offset,
            outcome.epoch,
            outcome.copies,
            outcome.durability,
            bool(outcome.flags & CONFIRM_DUPLICATE),
        )


class Delivery:
    """A record that was handed over: await it for its Receipt, or for the error that its batch ended with."""

    __slots__ = ("_batch", "_index")

    # Set by the producer's module, so that this one stays free of event loops.
    make_waiter: Callable[[], Any]

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        return self._batch.outcome is not None

    def result(self) -> Receipt:
        """The receipt of a delivery that is done. Raises what its batch ended with."""
        return self._batch.receipt(self._index)

    def __await__(self) -> Generator[Any, None, Receipt]:
        if self._batch.outcome is None:
            # A waiter of its own: whoever stops waiting must not end the batch for the others.
            waiter = Delivery.make_waiter()
            self._batch.wait(waiter)
            yield from waiter.__await__()
        return self._batch.receipt(self._index)


def record_size(value: bytes | None, key: bytes | None, headers: Sequence[Header]) -> int:
    """Bytes that a record takes in a batch at most, besides BATCH_OVERHEAD_BYTES.

    Raises BadInput for what is no bytes: found later, it would spoil the batch for the records around it.
    """
    size = _RECORD_OVERHEAD_BYTES
    if value is not None:
        size += len(value) if type(value) is bytes else _refuse("a value", value)
    if key is not None:
        size += len(key) if type(key) is bytes else _refuse("a key", key)
    return size + _headers_size(headers) if headers else size


def _headers_size(headers: Sequence[Header]) -> int:
    size = 0
    try:
        for name, content in headers:
            size += _HEADER_OVERHEAD_BYTES + (len(name) if name.isascii() else len(name.encode()))
            if type(name) is not str:
                _refuse("a name in headers", name)
            if content is not None:
                size += len(content) if type(content) is bytes else _refuse("a value in headers", content)
    except (TypeError, ValueError, AttributeError):
        raise BadInput("headers are a mapping or pairs of a name (str, UTF-8) and bytes or None") from None
    return size


def _refuse(what: str, found: object) -> int:
    raise BadInput(f"{what} is {type(found).__name__}; give {'str' if 'name' in what else 'bytes or None'}")


def as_headers(headers: Headers | None) -> Sequence[Header]:
    """A mapping or pairs as pairs that no longer change. Raises BadInput."""
    if not headers:
        return ()
    if type(headers) is list:  # the usual case, and asking for a Mapping is dear
        return tuple(headers)
    try:
        return tuple(headers.items() if isinstance(headers, Mapping) else headers)
    except TypeError:
        raise BadInput(f"headers are a mapping or pairs, not {type(headers).__name__}") from None


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
