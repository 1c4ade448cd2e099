"""What a confirm says of records: a Receipt for one, Receipts for many, without an object for each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, Self

from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm, Durability

_WORDS: Final = {int(each): each.name.lower() for each in Durability}


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

    @classmethod
    def of(cls, confirm: Confirm, index: int) -> Self:
        """Of the record `index` of a batch that was answered so."""
        log_offset, base_queue_offset, epoch, copies, durability, flags = confirm
        duplicate = flags & CONFIRM_DUPLICATE != 0
        # As the named tuple's own constructor does, but without another Python frame.
        return tuple.__new__(cls, (base_queue_offset + index, log_offset, epoch, copies, durability, duplicate))


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
    if receipt.durability in _WORDS:
        fields["durability"] = _WORDS[receipt.durability]
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
