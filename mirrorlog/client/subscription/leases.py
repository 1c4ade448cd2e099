"""Leases: records that are the caller's for a time, without a subscription or a connection that must stay.

    for leased in await client.lease("flights", max_records=10, lease_ms=30_000, wait_ms=20_000):
        handle(leased.value)
        await leased.ack()

Who forgets one, or dies, does nothing: when the time is over the record comes again, and that is counted. What names a
record and its lease is a receipt, a text that holds on whichever node is master; also one whose lease is over still
acknowledges, as long as nobody else has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from mirrorlog.attempts import outcome_of
from mirrorlog.client.arguments import checked
from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.connection.masters import change_at_master
from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord, GrantedRecord
from mirrorlog.client.options import check_delay, check_leasing, check_timeout
from mirrorlog.client.subscription.grant_buffer import GrantedBytes
from mirrorlog.client.subscription.lease_receipts import LeaseReceipt
from mirrorlog.client.subscription.settlements import FINAL
from mirrorlog.errors import (
    BadRequest,
    MirrorlogError,
    NotGranted,
    OffsetOutOfRange,
    ReceiptStale,
    UnreadableBatch,
    UnsupportedVersion,
)
from mirrorlog.wire.frames import How, Level
from mirrorlog.wire.messages.groups import ExtendLease, Lease, LeasedRange, Leases, LeasesSettled, SettleLease

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

logger = logging.getLogger(__name__)

_FETCH_BYTES: Final = 1024 * 1024
# Of batches, where leased records are scattered.
_KEPT_BYTES: Final = 4 * 1024 * 1024
# Queues whose reader is kept for the next lease.
_READERS_MAX: Final = 64
# What may be done with a receipt, by its name.
_HOWS: Final = {"ack": How.ACK, "return": How.RETURN, "release": How.RELEASE, "reject": How.DEAD}
_SOMEBODY_ELSES: Final = (NotGranted, ReceiptStale)


class LeaseSettler(Protocol[R_co]):
    """Whoever settles leased records: awaited, or blocking."""

    def settle_leased(self, receipt: LeaseReceipt, how: How, *, delay_ms: int = 0) -> R_co: ...

    def extend_lease(self, receipt: LeaseReceipt, lease_ms: int) -> R_co: ...


@checked(internal=("lease_receipt",))
class LeasedRecord(GrantedRecord, Generic[R]):
    """A record under a lease. `R` is what a call gives that settles, a coroutine or nothing."""

    __slots__ = ("_settler", "attempts", "lease_receipt", "ready", "redelivered")

    def __init__(
        self,
        settler: LeaseSettler[R],
        receipt: LeaseReceipt,
        record: ConsumedRecord,
        *,
        redelivered: bool,
        attempts: int,
        ready: int,
    ) -> None:
        """`ready`: how many might have been leased beside those that came with it; -1 from nodes of older software."""
        self._settler = settler
        self.lease_receipt = receipt
        super().__init__(record)
        self.redelivered = redelivered
        self.attempts = attempts
        self.ready = ready

    @property
    def receipt(self) -> str:
        """Names it in `Client.settle_receipt`, in every process, whichever node is master."""
        return str(self.lease_receipt)

    def ack(self) -> R:
        """Done; also when the lease is over, as long as nobody else has got it: ReceiptStale. Returns when all copies
        have that. It and the others raise as `Client.settle_receipt`."""
        return self._settler.settle_leased(self.lease_receipt, How.ACK)

    def nack(self, requeue: bool = True, *, delay_ms: int = 0) -> R:
        """Not done: it comes again, after `delay_ms`, and that is counted. Without `requeue` it is dead."""
        if not requeue:
            return self.reject()
        return self._settler.settle_leased(self.lease_receipt, How.RETURN, delay_ms=delay_ms)

    def reject(self) -> R:
        """Dead: a dead letter, if the queue has a place for them."""
        return self._settler.settle_leased(self.lease_receipt, How.DEAD)

    def release(self, *, delay_ms: int = 0) -> R:
        """It comes again, after `delay_ms`, as if it had not been seen. Nothing happens when it lies free already."""
        return self._settler.settle_leased(self.lease_receipt, How.RELEASE, delay_ms=delay_ms)

    def extend(self, lease_ms: int) -> R:
        """All records that the same `lease()` gave out are the holder's for `lease_ms` from now on, for they are one
        lease, unless they were leased `apart`. Raises NotGranted when it is over, and as `Client.settle_receipt`."""
        return self._settler.extend_lease(self.lease_receipt, lease_ms)

    def __repr__(self) -> str:
        return f"Leased(queue={self.queue!r}, offset={self.offset}, receipt={self.receipt!r}, value={self.value!r:.60})"


class Leased(LeasedRecord[Coroutine[Any, Any, None]]):
    """A record under a lease; calls that settle it are awaited."""

    __slots__ = ()


class ClientLeases:
    """Takes, settles and extends leases for a client. Made by it."""

    def __init__(self, client: ClusterClient, make_consumer: Callable[..., Consumer]) -> None:
        self._client = client
        self._make_consumer = make_consumer
        # With the last used one behind.
        self._readers: OrderedDict[tuple[str, int, str, int], _Reader] = OrderedDict()

    async def lease(
        self,
        queue: str,
        group: str,
        *,
        max_records: int,
        lease_ms: int,
        wait_ms: int,
        holder: str,
        ordered_by: str,
        read_from: str,
        apart: bool,
    ) -> list[Leased]:
        """See `Client.lease`."""
        check_leasing(max_records=max_records, lease_ms=lease_ms, wait_ms=wait_ms)
        message = Lease(
            queue=queue, group=group, records_max=max_records, lease_ms=lease_ms, wait_ms=wait_ms, holder=holder,
            ordered_by=ordered_by, apart=apart,
        )  # fmt: skip
        answer = await change_at_master(self._client, queue, message, Leases, once=True, wait_ms=wait_ms)
        unknown = "ordered_by" if ordered_by and not answer.ordered else ""
        if apart and any(each.next - each.first > 1 for each in answer.leased):
            unknown = "apart"
        if unknown:
            await self._release(queue, group, answer.leased)
            raise UnsupportedVersion(f"the master of queue {queue!r} knows no {unknown} yet: update all nodes")
        found: list[Leased] = []
        try:
            for each in answer.leased:
                found += await self._records(queue, group, answer, each, read_from)
        except MirrorlogError as error:
            try:
                await self._release(queue, group, answer.leased)
            except MirrorlogError:  # their leases end by themselves
                told = "records are leased that nobody was told of"
                raise outcome_of(error, in_doubt=True, message=told) from None
            raise
        except BaseException:  # whoever waits was cancelled
            self._client.background.run(f"a lease of {queue!r}", partial(self._release, queue, group, answer.leased))
            raise
        return found

    async def settle(self, receipt: LeaseReceipt, how: How, *, delay_ms: int = 0, level: int = Level.ALL) -> bool:
        """Settle one record; whether that changed anything. Raises as `Client.settle_receipt`."""
        check_delay(delay_ms)
        ranges = [_range(receipt)]
        return await self._ask_settle(receipt.queue, receipt.group, ranges, how, delay_ms=delay_ms, level=level) > 0

    async def settle_as(self, receipt: LeaseReceipt, how: str, *, delay_ms: int, level: int) -> bool:
        """See `Client.settle_receipt`."""
        if how not in _HOWS:
            raise BadRequest(f"how {how!r:.32} is none of {', '.join(_HOWS)}")
        return await self.settle(receipt, _HOWS[how], delay_ms=delay_ms, level=level)

    async def settle_leased(self, receipt: LeaseReceipt, how: How, *, delay_ms: int = 0) -> None:
        """For what it gives out: settle it at level `all`."""
        await self.settle(receipt, how, delay_ms=delay_ms)

    async def extend_lease(self, receipt: LeaseReceipt, lease_ms: int) -> None:
        """Let a lease run for `lease_ms` from now on. Raises NotGranted when it is over; and else as `settle`."""
        check_timeout("lease_ms", lease_ms)
        message = ExtendLease(queue=receipt.queue, group=receipt.group, receipts=[_range(receipt)], lease_ms=lease_ms)
        await self._ask(receipt.queue, message, telling=())

    async def close(self) -> None:
        """Idempotent."""
        readers, self._readers = self._readers, OrderedDict()
        for reader in readers.values():
            await reader.bytes.close()

    # --- inside ---

    async def _release(self, queue: str, group: str, leased: list[LeasedRange]) -> None:
        if leased:
            await self._ask_settle(queue, group, leased, How.RELEASE)

    async def _ask_settle(
        self,
        queue: str,
        group: str,
        receipts: list[LeasedRange],
        how: How,
        *,
        delay_ms: int = 0,
        level: int = Level.ALL,
    ) -> int:
        message = SettleLease(queue=queue, group=group, receipts=receipts, how=how, delay_ms=delay_ms, level=level)
        # An ack or a reject that had counted would be answered so again: then the record is done, and nobody else's.
        # What was given back, and counted, somebody else may have by now.
        return await self._ask(queue, message, telling=_SOMEBODY_ELSES if how in FINAL else ())

    async def _ask(
        self, queue: str, message: SettleLease | ExtendLease, telling: tuple[type[MirrorlogError], ...]
    ) -> int:
        """Told twice it counts once."""
        answer = await change_at_master(self._client, queue, message, LeasesSettled, telling=telling)
        return answer.records

    async def _records(
        self, queue: str, group: str, answer: Leases, leased: LeasedRange, read_from: str
    ) -> list[Leased]:
        reader = self._reader(queue, answer.queue_id, read_from, kept_bytes=_KEPT_BYTES if answer.ordered else 0)
        async with reader.lock:
            found, unreadable = await _batches(reader.bytes, leased)
            records = [record for batch in found for record in batch.records()]
        # Others read meanwhile: the answer may take its time.
        if unreadable:
            reasons = [error.message for _, error in unreadable]
            logger.warning("unreadable_rejected queue=%s group=%s reason=%r", queue, group, "; ".join(reasons))
            await self._ask_settle(queue, group, [part for part, _ in unreadable], How.DEAD)
        return [
            Leased(
                self,
                LeaseReceipt(queue, group, record.queue_offset, leased.lease),
                record,
                redelivered=leased.redelivered,
                attempts=leased.attempts,
                ready=answer.ready,
            )
            for record in records
        ]

    def _reader(self, queue: str, queue_id: int, read_from: str, *, kept_bytes: int) -> _Reader:
        """By the id too: what was read of a queue that was deleted is none of the next one's of its name. The one that
        was used longest ago goes for it, of those that nobody reads from."""
        key = queue, queue_id, read_from, kept_bytes
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = _Reader(
                GrantedBytes(
                    self._make_consumer,
                    queue,
                    read_from=read_from,
                    fetch_bytes=_FETCH_BYTES,
                    kept_bytes=kept_bytes,
                )
            )
        self._readers.move_to_end(key)
        if len(self._readers) > _READERS_MAX:
            idle = (other for other, each in self._readers.items() if other != key and not each.lock.locked())
            if (oldest := next(idle, None)) is not None:
                self._client.background.run(f"a reader of queue {oldest[0]!r}", self._readers.pop(oldest).bytes.close)
        return reader


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """Reads one queue, for one lease at a time."""

    bytes: GrantedBytes
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


async def _batches(
    source: GrantedBytes, leased: LeasedRange
) -> tuple[list[ConsumedBatch], list[tuple[LeasedRange, UnreadableBatch]]]:
    """What there is of a leased range, without what was freed since it was leased; and what nobody can open, to be
    dead: it would come back for ever."""
    found: list[ConsumedBatch] = []
    unreadable: list[tuple[LeasedRange, UnreadableBatch]] = []
    at = leased.first
    while at < leased.next:
        try:
            batch = await source.fetched(at)
        except OffsetOutOfRange as error:
            begin = error.details.get("go_on_at", error.details.get("begin"))
            if not isinstance(begin, int) or begin <= at:
                raise
            at = begin
            continue
        except UnreadableBatch as error:
            following = min(error.details["go_on_at"], leased.next)
            unreadable.append((LeasedRange(first=at, next=following, lease=leased.lease), error))
            at = following
            continue
        if batch.first < leased.next:
            found.append(batch.before(leased.next))
        at = batch.next
    return found, unreadable


def _range(receipt: LeaseReceipt) -> LeasedRange:
    return LeasedRange(first=receipt.offset, next=receipt.offset + 1, lease=receipt.lease)
