"""What a subscription gives out: records, or stretches of a batch as a whole, which their user settles.

A record knows its grant, and the grant whose it is; nothing more is kept for it. Whoever settles what was granted
before a failover names the grants of then, and the new master takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord, GivenRecord, Views
from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.wire.frames import How

if TYPE_CHECKING:
    import pyarrow as pa

    from mirrorlog.commitlog.format.attributes import Attributes


class Settler(Protocol):
    """Whoever gave it out."""

    async def settle(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> None: ...

    def settle_nowait(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> None: ...


class Settleable:
    """Records that their user decides about, once.

    What is awaited returns when it is confirmed at the subscription's level, and raises what it ended with: Refused
    (nothing was settled), OutcomeUnknown at its deadline, NotGranted for what was settled before or is somebody else's
    by now, SettledOtherwise for what somebody has acknowledged where this rejects it, or the other way round. What is
    not awaited leaves with all that is settled before the loop turns; `Subscription.flush` tells what became of it.
    """

    __slots__ = ()  # their places are those of whoever inherits: a record has others than a batch

    offset: int
    _following: int
    _granted: Granted
    _settler: Settler

    @property
    def redelivered(self) -> bool:
        """Whether somebody may have had it before."""
        return self._granted.redelivered

    @property
    def attempts(self) -> int:
        """How often it came back before, counted: by `nack`, or with a reader that was lost; up to 255."""
        return self._granted.attempts

    @property
    def taken(self) -> tuple[Settler, Granted, int, int]:
        """Who gave it out, of which grant, and its queue offsets [first, next), for whoever settles it with others."""
        return self._settler, self._granted, self.offset, self._following

    async def ack(self, multiple: bool = False) -> None:
        """Done. `multiple`: with all that this subscription has given out up to it."""
        await self._settle(How.ACK, multiple=multiple)

    def ack_nowait(self, multiple: bool = False) -> None:
        """The same without waiting."""
        self._settle_nowait(How.ACK, multiple=multiple)

    async def nack(self, requeue: bool = True, *, delay_ms: int = 0, multiple: bool = False) -> None:
        """Not done: it comes again, after `delay_ms`, and that is counted. Without `requeue` it is dead."""
        await self._settle(How.RETURN if requeue else How.DEAD, delay_ms=delay_ms if requeue else 0, multiple=multiple)

    def nack_nowait(self, requeue: bool = True, *, delay_ms: int = 0, multiple: bool = False) -> None:
        """The same without waiting."""
        how = How.RETURN if requeue else How.DEAD
        self._settle_nowait(how, delay_ms=delay_ms if requeue else 0, multiple=multiple)

    async def reject(self) -> None:
        """Dead: a dead letter, if the queue has a place for them."""
        await self._settle(How.DEAD)

    async def release(self, *, delay_ms: int = 0) -> None:
        """It comes again, as if it had not been seen: that is not counted."""
        await self._settle(How.RELEASE, delay_ms=delay_ms)

    def release_nowait(self, *, delay_ms: int = 0) -> None:
        """The same without waiting."""
        self._settle_nowait(How.RELEASE, delay_ms=delay_ms)

    async def extend(self) -> None:
        """The time begins anew after which the node takes it for forgotten (the queue's consumer timeout)."""
        await self._settle(How.EXTEND)

    async def _settle(self, how: How, *, delay_ms: int = 0, multiple: bool = False) -> None:
        await self._settler.settle(
            self._granted, self.offset, self._following, how, delay_ms=delay_ms, multiple=multiple
        )

    def _settle_nowait(self, how: How, *, delay_ms: int = 0, multiple: bool = False) -> None:
        self._settler.settle_nowait(
            self._granted, self.offset, self._following, how, delay_ms=delay_ms, multiple=multiple
        )


class Delivered(GivenRecord, Settleable):
    """A record that was given out."""

    __slots__ = ("_following", "_granted", "_settler")

    def __init__(self, settler: Settler, granted: Granted, record: ConsumedRecord) -> None:
        self._settler = settler
        self._granted = granted
        super().__init__(record)
        self._following = self.offset + 1

    def __repr__(self) -> str:
        again = f", redelivered, attempts={self.attempts}" if self.redelivered else ""
        return f"Delivered(queue={self.queue!r}, offset={self.offset}, value={self.value!r:.60}{again})"


class DeliveredBatch(Settleable):
    """Records of one batch that were given out together: those of `batch`, which is cut to them."""

    __slots__ = ("_following", "_granted", "_settler", "batch", "offset")

    def __init__(self, settler: Settler, granted: Granted, batch: ConsumedBatch) -> None:
        self._settler = settler
        self._granted = granted
        self.offset = batch.first
        self._following = batch.next
        self.batch = batch

    def __len__(self) -> int:
        """Records."""
        return len(self.batch)

    @property
    def next(self) -> int:
        """The queue offset behind the last record."""
        return self.batch.next

    @property
    def attributes(self) -> Attributes:
        """Of all its records. Raises BadBatch."""
        return self.batch.attributes

    @property
    def values(self) -> Views:
        return self.batch.values

    @property
    def keys(self) -> Views:
        return self.batch.keys

    def records(self) -> Iterator[ConsumedRecord]:
        """The records as objects of their own; they are settled together, by this."""
        return self.batch.records()

    def to_arrow(self) -> pa.RecordBatch:
        """As of `ConsumedBatch`."""
        return self.batch.to_arrow()

    def __repr__(self) -> str:
        return f"DeliveredBatch(queue={self.batch.queue!r}, offset={self.offset}, next={self.next})"
