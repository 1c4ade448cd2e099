"""Handles of records that were handed over: await one for what became of them.

A handle is light because its batch knows everything: a Delivery is the batch and a number, a BulkDelivery a list of
batches. Whoever stops waiting takes nothing from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any

from mirrorlog.attempts import outcome_of
from mirrorlog.client.arguments import checked
from mirrorlog.client.producer.batch import PendingBatch, Receipt, Receipts
from mirrorlog.errors import MirrorlogError, OutcomeUnknown


class Delivery:
    """A record that was handed over: await it for its Receipt, or for the error that its batch ended with."""

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def __repr__(self) -> str:
        outcome = self._batch.outcome
        told = repr(outcome) if isinstance(outcome, MirrorlogError) else "confirmed" if outcome else "under way"
        return f"Delivery({told})"

    def done(self) -> bool:
        return self._batch.outcome is not None

    def result(self) -> Receipt:
        """The receipt of a delivery that is done. Raises what its batch ended with, BadRequest before the end."""
        return self._batch.receipt(self._index)

    def when_ended(self, call: Callable[[Receipt | MirrorlogError], object]) -> None:
        """Have it called with what becomes of the record, now or at its end; an error is not heard by that."""
        batch = self._batch
        if batch.outcome is None:
            batch.waiters.append(_EndCall(self, call))
        else:
            call(batch.outcome if isinstance(batch.outcome, MirrorlogError) else batch.receipt(self._index))

    def __await__(self) -> Generator[Any, None, Receipt]:
        batch = self._batch
        if batch.outcome is None:
            # As `_listen`, for one batch: this is most of what awaiting one record costs.
            batch.listeners += 1
            try:
                waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                batch.waiters.append(waiter)
                yield from waiter
            finally:
                batch.listeners -= 1
        return batch.receipt(self._index)


class _EndCall:
    """An `EndWaiter`, for `when_ended`."""

    __slots__ = ("_call", "_delivery")

    def __init__(self, delivery: Delivery, call: Callable[[Receipt | MirrorlogError], object]) -> None:
        self._delivery = delivery
        self._call = call

    def done(self) -> bool:
        return False

    def set_result(self, result: None, /) -> None:
        self._delivery.when_ended(self._call)


@checked(internal=("add", "failed", "whole"))
class BulkDelivery:
    """Records that were handed over together: await it for their Receipts, or for the first error among them.

    It ends when all of its batches have. After an error `failures` tells which records it was for: the others are
    confirmed.
    """

    __slots__ = ("_batches", "_count", "_well")

    def __init__(self, batches: Iterable[PendingBatch] = ()) -> None:
        self._batches: list[PendingBatch] = []
        self._count = 0
        # So many from the first one on are confirmed; the rest is to be looked at.
        self._well = 0
        for batch in batches:
            self.add(batch)

    def __repr__(self) -> str:
        return f"BulkDelivery({len(self)} records, {'ended' if self.done() else 'under way'})"

    def __len__(self) -> int:
        """Records."""
        return self._count

    def add(self, batch: PendingBatch) -> None:
        """More of the same records."""
        self._batches.append(batch)
        self._count += len(batch)

    def done(self) -> bool:
        return all(batch.outcome is not None for batch in self._batches)

    def failed(self) -> bool:
        """Whether a batch has ended with an error, and all before it have ended."""
        while self._well < len(self._batches) and (outcome := self._batches[self._well].outcome) is not None:
            if isinstance(outcome, MirrorlogError):
                return True
            self._well += 1
        return False

    def failures(self) -> list[tuple[range, MirrorlogError]]:
        """What has failed so far: the records' numbers in the call, and why."""
        found = []
        first = 0
        for batch in self._batches:
            if isinstance(batch.outcome, MirrorlogError):
                batch.heard = True
                found.append((range(first, first + len(batch)), batch.outcome))
            first += len(batch)
        return found

    def result(self) -> Receipts:
        """The receipts of a delivery that is done. Raises the first error; BadRequest before the end."""
        failed = [batch for batch in self._batches if isinstance(batch.outcome, MirrorlogError)]
        for batch in failed:
            batch.heard = True
        for batch in failed:
            batch.receipts()
        return Receipts([batch.receipts() for batch in self._batches])

    def whole(self, error: MirrorlogError, records: int) -> MirrorlogError:
        """What all the `records` have ended with of which some have ended with `error`: what is stored in part, or may
        be, is not refused."""
        failed = [(batch, batch.outcome) for batch in self._batches if isinstance(batch.outcome, MirrorlogError)]
        confirmed = len(self) - sum(len(batch) for batch, _ in failed)
        in_doubt = confirmed > 0 or any(isinstance(outcome, OutcomeUnknown) for _, outcome in failed)
        return outcome_of(error, in_doubt=in_doubt, message=f"{confirmed} of {records} records are confirmed")

    def __await__(self) -> Generator[Any, None, Receipts]:
        yield from _listen([batch for batch in self._batches if batch.outcome is None])
        return self.result()


def _listen(batches: Iterable[PendingBatch]) -> Generator[Any, None, None]:
    """Wait until all have ended, known to them as one who will hear of a failure."""
    for batch in batches:
        batch.listeners += 1
    try:
        yield from wait_for_end(batches).__await__()
    finally:
        for batch in batches:
            batch.listeners -= 1


async def wait_for_end(batches: Iterable[PendingBatch]) -> None:
    """Until all have ended, well or not; at most until their deadlines."""
    for batch in batches:
        if batch.outcome is None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            batch.waiters.append(waiter)
            await waiter
