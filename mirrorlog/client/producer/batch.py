"""Batches on their way, each of which ends once for all its records, and the receipts that confirms become. Pure.

A batch knows no clock and no socket. A record costs one list append; the columns that it does not use cost nothing, and
its key, headers and timestamp one append each. The bytes are joined once, when the batch is first sent.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from mirrorlog.client.producer.record import BATCH_OVERHEAD_BYTES
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Header
from mirrorlog.commitlog.format.drafts import Draft, draft_columns
from mirrorlog.commitlog.format.header import Codec
from mirrorlog.errors import BadRequest, MirrorlogError
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm, Durability

_DURABILITIES: Final = {int(each): each.name.lower() for each in Durability}

_T = TypeVar("_T")


class EndWaiter(Protocol):
    """The part of a future that is told of an end."""

    def done(self) -> bool: ...
    def set_result(self, result: None, /) -> None: ...


class PendingBatch:
    """1..n records of one queue between `send` and their confirm.

    `size_bytes`: what they take at most, uncompressed, besides BATCH_OVERHEAD_BYTES. `count`: how many there are, once
    it is closed. `ended`: called once, at the end. `routing`: the stamp of the version that routed it, 0 for none.
    `attributes`: of all its records; None for none. `waiters`: are told at the end.
    """

    __slots__ = (
        "_codec", "_draft", "_headers", "_keys", "_sealed", "_timestamps_us", "_values", "attempts",
        "attributes", "count", "deadline", "ended", "heard", "in_flight", "listeners", "outcome", "producer_epoch",
        "routing", "sequence", "size_bytes", "unknown", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        deadline: float,
        *,
        codec: Codec = Codec.NONE,
        attributes: Attributes | None = None,
        draft: Draft | None = None,
        size_bytes: int = 0,
    ) -> None:
        """`draft`: the body, with its attributes, of one whose records are known already; `size_bytes`: of those."""
        self.attributes = attributes
        self.size_bytes = size_bytes
        self.count = 0 if draft is None else draft.record_count
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
        self._draft = _compressed(draft, codec) if codec and draft is not None else draft
        self._sealed = False
        self.waiters: list[EndWaiter] = []

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
                queue_id=queue_id, producer_id=producer_id, producer_epoch=self.producer_epoch, sequence=self.sequence
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
        if self.waiters:
            waiters, self.waiters = self.waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self.ended is not None:
            self.ended(self)

    def receipt(self, index: int) -> Receipt:
        """Of record `index`. Raises what the batch ended with."""
        outcome = self.outcome
        if type(outcome) is not Confirm:
            return self.receipts().receipt(index)
        log_offset, base_queue_offset, epoch, copies, durability, flags = outcome
        duplicate = flags & CONFIRM_DUPLICATE != 0
        # As the named tuple's own constructor does, but without another Python frame.
        return tuple.__new__(Receipt, (base_queue_offset + index, log_offset, epoch, copies, durability, duplicate))

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
        return _compressed(draft, self._codec) if self._codec else draft

    def _clear_columns(self) -> None:
        self._values, self._keys, self._headers, self._timestamps_us = [], [], [], []


def _compressed(draft: Draft, codec: Codec) -> Draft:
    from mirrorlog.commitlog.format.codec import compress_draft  # with numpy, for what opens bodies

    return compress_draft(draft, codec)


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


class Receipt(NamedTuple):
    """A confirmed record. `log_offset`: of its batch; `copies`: that held it when it was answered.

    `durability`: 0 in memory, 1 on disk, of all those copies. `duplicate`: an earlier attempt had landed.

    A named tuple because one is made for each record that somebody awaits.
    """

    queue_offset: int
    log_offset: int
    epoch: int
    copies: int
    durability: int
    duplicate: bool

    def __repr__(self) -> str:
        return _told(self)


class ReceiptRange(NamedTuple):
    """The confirmed records of one batch, which stand one after another. The fields are those of a Receipt."""

    queue_offsets: range
    log_offset: int
    epoch: int
    copies: int
    durability: int
    duplicate: bool

    def __repr__(self) -> str:
        return _told(self)

    @classmethod
    def of(cls, confirm: Confirm, count: int) -> Self:
        """What the confirm of a batch of `count` records says."""
        log_offset, base_queue_offset, epoch, copies, durability, flags = confirm
        queue_offsets = range(base_queue_offset, base_queue_offset + count)
        return cls(queue_offsets, log_offset, epoch, copies, durability, flags & CONFIRM_DUPLICATE != 0)

    def receipt(self, index: int) -> Receipt:
        """Of the record `index` of the batch."""
        return Receipt(
            self.queue_offsets[index], self.log_offset, self.epoch, self.copies, self.durability, self.duplicate
        )


def _told(receipt: Receipt | ReceiptRange) -> str:
    """As named tuples show themselves, with the durability as a word: only the number is kept, since a member of an
    enum would have to be looked up for each record."""
    fields = {name: repr(value) for name, value in receipt._asdict().items()}
    if receipt.durability in _DURABILITIES:
        fields["durability"] = _DURABILITIES[receipt.durability]
    return f"{type(receipt).__name__}({', '.join(f'{name}={value}' for name, value in fields.items())})"


class Receipts:
    """The receipts of records handed over together, in their order: `receipts[i]` is record i's.

    `ranges`: one per batch. Records of other senders may stand between two batches, never within one.
    """

    __slots__ = ("_ends", "ranges")

    def __init__(self, ranges: Sequence[ReceiptRange]) -> None:
        self.ranges = tuple(ranges)
        self._ends = list(accumulate(len(each.queue_offsets) for each in self.ranges))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, index: int) -> Receipt:
        """Raises IndexError beyond either end; negative ones count from the end."""
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"there are {len(self)} receipts, {index} is none of them")
        at = bisect_right(self._ends, number)
        return self.ranges[at].receipt(number - self._ends[at])

    def __iter__(self) -> Iterator[Receipt]:
        return (each.receipt(index) for each in self.ranges for index in range(len(each.queue_offsets)))

    def __eq__(self, other: object) -> bool:
        return self.ranges == other.ranges if isinstance(other, Receipts) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"Receipts({list(self.ranges)!r})"
