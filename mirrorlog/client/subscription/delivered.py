"""What a subscription gives out: records, or stretches of a batch as a whole, which their user settles.

A record knows its grant, and the subscription whose it is; nothing more is kept for it. Whoever settles what was
granted before a failover names the grants of then, and the new master takes it.

The awaited and the blocking face share these classes: `R` is what a call gives that settles, a coroutine or nothing.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack

from mirrorlog.client.arguments import checked
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord, GrantedRecord, Views, record_kind
from mirrorlog.client.properties import SendOptions
from mirrorlog.client.serializers import Deserializer, deserialized
from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.wire.frames import How

if TYPE_CHECKING:
    import pyarrow as pa

    from mirrorlog.commitlog.format.attributes import Attributes

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Settler(Protocol[R_co]):
    """Whoever gave it out. `origin`: the subscription that has the grants; `deserializer`: of its records' values."""

    @property
    def deserializer(self) -> Deserializer | None: ...

    @property
    def origin(self) -> object: ...

    def settle(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> R_co: ...

    def settle_nowait(
        self, granted: Granted, first: int, following: int, how: How, *, delay_ms: int = 0, multiple: bool = False
    ) -> None: ...

    def answer(self, record: GrantedRecord, value: bytes | str | None, asked: SendOptions) -> R_co: ...


@checked(but=("ack", "ack_nowait"), internal=("grant",))
class Settleable(Generic[R]):
    """Records that their user decides about, once.

    What is waited for returns when it is confirmed at the subscription's level, and raises what it ended with: Refused
    (nothing was settled), OutcomeUnknown at its deadline, NotGranted for what was settled before or is somebody else's
    by now, SettledOtherwise for what somebody has acknowledged where this rejects it, or the other way round. What is
    not waited for leaves with all that is settled before the loop turns; `Subscription.flush` tells what became of it.
    """

    __slots__ = ()  # their places are those of whoever inherits: a record has others than a batch

    offset: int
    _following: int
    _granted: Granted
    _settler: Settler[R]

    @property
    def redelivered(self) -> bool:
        """Whether somebody may have had it before."""
        return self._granted.redelivered

    @property
    def attempts(self) -> int:
        """How often it came back before, counted: by `nack`, or with a reader that was lost; up to 255."""
        return self._granted.attempts

    @property
    def grant(self) -> tuple[object, Granted, int, int]:
        """The subscription, its grant, and the queue offsets [first, next), for whoever settles it with others."""
        return self._settler.origin, self._granted, self.offset, self._following

    def ack(self, multiple: bool = False) -> R:
        """Done. `multiple`: with all that this subscription has given out up to it."""
        return self._settler.settle(self._granted, self.offset, self._following, How.ACK, multiple=multiple)

    def ack_nowait(self, multiple: bool = False) -> None:
        """The same without waiting."""
        self._settler.settle_nowait(self._granted, self.offset, self._following, How.ACK, multiple=multiple)

    def nack(self, requeue: bool = True, *, delay_ms: int = 0, multiple: bool = False) -> R:
        """Not done: it comes again, after `delay_ms`, and that is counted. Without `requeue` it is dead."""
        return self._settle(How.RETURN if requeue else How.DEAD, delay_ms=delay_ms if requeue else 0, multiple=multiple)

    def nack_nowait(self, requeue: bool = True, *, delay_ms: int = 0, multiple: bool = False) -> None:
        """The same without waiting."""
        how = How.RETURN if requeue else How.DEAD
        self._settle_nowait(how, delay_ms=delay_ms if requeue else 0, multiple=multiple)

    def reject(self) -> R:
        """Dead: a dead letter, if the queue has a place for them."""
        return self._settle(How.DEAD)

    def release(self, *, delay_ms: int = 0) -> R:
        """It comes again, as if it had not been seen: that is not counted."""
        return self._settle(How.RELEASE, delay_ms=delay_ms)

    def release_nowait(self, *, delay_ms: int = 0) -> None:
        """The same without waiting."""
        self._settle_nowait(How.RELEASE, delay_ms=delay_ms)

    def extend(self) -> R:
        """The time begins anew after which the node takes it for forgotten (the queue's consumer timeout)."""
        return self._settle(How.EXTEND)

    def _settle(self, how: How, *, delay_ms: int = 0, multiple: bool = False) -> R:
        granted, first, following = self._granted, self.offset, self._following
        return self._settler.settle(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)

    def _settle_nowait(self, how: How, *, delay_ms: int = 0, multiple: bool = False) -> None:
        granted, first, following = self._granted, self.offset, self._following
        self._settler.settle_nowait(granted, first, following, how, delay_ms=delay_ms, multiple=multiple)


@checked()
class DeliveredRecord(GrantedRecord, Settleable[R]):
    """A record that was given out."""

    __slots__ = ("_following", "_granted", "_settler")

    def __init__(self, settler: Settler[R], granted: Granted, record: ConsumedRecord) -> None:
        self._settler = settler
        self._granted = granted
        super().__init__(record)
        self._following = self.offset + 1

    @property
    def data(self) -> Any:
        """The value, by the subscription's `deserializer` if it was given one. Raises BadInput when that fails: it can
        be rejected then, as any record."""
        return deserialized(self._settler.deserializer, self.value, self.queue, self.offset)

    def reply(self, value: bytes | str | None, **asked: Unpack[SendOptions]) -> R:
        """Answer it, where it is a request (`Client.request`); settle it besides. Raises BadRequest where it is
        none, and as `Publisher.publish`."""
        return self._settler.answer(self, value, asked)

    def __repr__(self) -> str:
        again = f", redelivered, attempts={self.attempts}" if self.redelivered else ""
        return f"Delivered(queue={self.queue!r}, offset={self.offset}, value={self.value!r:.60}{again})"


class DeliveredStretch(Settleable[R]):
    """Records of one batch that were given out together: those of `batch`, which is cut to them."""

    __slots__ = ("_following", "_granted", "_settler", "batch", "offset")

    def __init__(self, settler: Settler[R], granted: Granted, batch: ConsumedBatch) -> None:
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
        return self.batch.opened(record_kind(self._settler.deserializer)).records()

    def to_arrow(self) -> pa.RecordBatch:
        """As of `ConsumedBatch`."""
        return self.batch.to_arrow()

    def __repr__(self) -> str:
        return f"DeliveredBatch(queue={self.batch.queue!r}, offset={self.offset}, next={self.next})"


class Delivered(DeliveredRecord[Coroutine[Any, Any, None]]):
    """A record that was given out; calls that settle it are awaited."""

    __slots__ = ()


class DeliveredBatch(DeliveredStretch[Coroutine[Any, Any, None]]):
    """Records of one batch that were given out together; calls that settle them are awaited."""

    __slots__ = ()
