"""Batches that carry a number of their own, or none: passed on to the queue's master once.

The node's answer is the client's, and so is trying again: it keeps the sequence, so only it knows what must go first.
"""

from __future__ import annotations

import asyncio
from typing import Final, Self

from mirrorlog.attempts import leaves_doubt, outcome_of
from mirrorlog.client import Client, Receipt
from mirrorlog.client.connection import Connection
from mirrorlog.doors.batches import check_ready, check_size, number_records, read_attributes, read_records
from mirrorlog.doors.incoming import Batch
from mirrorlog.doors.opening import Opening
from mirrorlog.doors.sent import Sent
from mirrorlog.errors import ConnectionLost, MasterChanged, MirrorlogError, NotMaster, RequestTimeout
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm
from mirrorlog.wire.messages import Limits

# The node answers at the deadline; its answer says more than ours would.
_GRACE_S: Final = 1.0


class OneAttempt:
    """The way of a stream's ready batches, and of its records when the stream has an identity."""

    def __init__(self, client: Client, opening: Opening, connection: Connection, queue_id: int) -> None:
        """Use `open`."""
        self._client = client
        self._opening = opening
        self._connection = connection
        self._moved = False
        self.queue_id = queue_id

    @classmethod
    async def open(cls, client: Client, opening: Opening) -> Self:
        """Find the queue's master. Raises NoSuchQueue or ConnectionLost."""
        connection, queue = await client.master_of(opening.queue)
        return cls(client, opening, connection, queue.queue_id)

    @property
    def limits(self) -> Limits:
        """Of the master that was reached last."""
        return self._connection.welcome.limits

    async def send(self, batch: Batch) -> Sent:
        """Raises MirrorlogError when nothing was sent."""
        connection = await self._master()
        if isinstance(batch.content, memoryview):
            idempotent = check_ready(batch.content, self._opening, queue_id=self.queue_id, limits=self.limits)
            return Sent(self._produce(connection, batch.content), idempotent)
        assert batch.content is not None
        assert batch.sequence is not None
        records = read_records(batch.content)
        numbered = number_records(
            records,
            self._opening,
            sequence=batch.sequence,
            queue_id=self.queue_id,
            attributes=read_attributes(batch.content),
        )
        check_size(numbered, self.limits)
        return Sent(self._produce(connection, numbered), True)

    async def _master(self) -> Connection:
        if self._moved or not self._connection.usable:
            self._connection, queue = await self._client.master_of(self._opening.queue)
            self.queue_id = queue.queue_id
            self._moved = False
        return self._connection

    def _produce(self, connection: Connection, batch: bytes | memoryview) -> asyncio.Future[Receipt]:
        """Send now; the future ends within the delivery timeout and a second."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Receipt] = loop.create_future()
        # A stream that broke off asks no more: its failures are nobody's.
        outcome.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        timeout_ms = self._opening.delivery_timeout_ms

        def done(result: Confirm | MirrorlogError) -> None:
            timer.cancel()
            self._moved = self._moved or isinstance(result, NotMaster | MasterChanged)
            if outcome.done():
                return
            if isinstance(result, MirrorlogError):
                # After the batch has left, a silent or lost node may have stored it.
                outcome.set_exception(outcome_of(result, in_doubt=leaves_doubt(result)))
            else:
                outcome.set_result(_receipt(result))

        silent = RequestTimeout(f"{connection.address} did not answer within {timeout_ms} ms")
        timer = loop.call_later(timeout_ms / 1000 + _GRACE_S, done, silent)
        try:
            connection.produce(
                batch,
                level=self._opening.level,
                durability=self._opening.durability,
                deadline_ms=timeout_ms,
                done=done,
            )
        except ConnectionLost:
            timer.cancel()
            raise
        return outcome


def _receipt(confirm: Confirm) -> Receipt:
    return Receipt(
        queue_offset=confirm.base_queue_offset,
        log_offset=confirm.log_offset,
        epoch=confirm.epoch,
        copies=confirm.copies,
        durability=confirm.durability,
        duplicate=bool(confirm.flags & CONFIRM_DUPLICATE),
    )
