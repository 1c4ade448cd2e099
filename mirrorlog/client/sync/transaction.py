"""Transactions without `await`: as `mirrorlog.client.transaction.transaction`, over the loop of the client's thread."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import Self, TypeVar, Unpack

from mirrorlog.client.producer.batch import Headers
from mirrorlog.client.producer.receipts import Receipt
from mirrorlog.client.sync.caller import Caller
from mirrorlog.client.sync.subscription import Delivered, DeliveredBatch
from mirrorlog.client.transaction import transaction as awaited
from mirrorlog.client.transaction.commit import Routed
from mirrorlog.commitlog.format.attributes import RecordOptions
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST

_T = TypeVar("_T")


class Transaction:
    """As `mirrorlog.client.Transaction`; use it with `with`. For one thread at a time."""

    def __init__(self, client: Caller, of: awaited.Transaction, *, timeout_s: float) -> None:
        self._client = client
        self._awaited = of
        self._timeout_s = timeout_s

    def send(
        self,
        queue: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        **asked: Unpack[RecordOptions],
    ) -> int:
        """A record for `queue`; which of the receipts will be its. Raises BadInput."""
        return self._awaited.send(queue, value, key=key, headers=headers, timestamp=timestamp, **asked)

    def ack(self, delivery: Delivered | DeliveredBatch) -> None:
        """Acknowledge what a subscription of this client has given out."""
        self._awaited.ack(delivery.awaited)

    def publish(
        self,
        exchange: str,
        routing_key: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        mandatory: bool = False,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        **asked: Unpack[RecordOptions],
    ) -> Routed:
        """A message to an exchange; as `mirrorlog.client.Transaction.publish`."""
        return self._awaited.publish(
            exchange,
            routing_key,
            value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            mandatory=mandatory,
            virtual_host=virtual_host,
            **asked,
        )

    def nack(self, delivery: Delivered | DeliveredBatch, requeue: bool = True, *, delay_ms: int = 0) -> None:
        """It comes again, or is dead; as `mirrorlog.client.Transaction.nack`."""
        self._awaited.nack(delivery.awaited, requeue, delay_ms=delay_ms)

    def commit(self) -> list[Receipt]:
        """Store all of it; as `mirrorlog.client.Transaction.commit`."""
        return self._client.change(self._awaited.commit, what="commit", more_s=self._timeout_s)

    def rollback(self) -> None:
        """Nothing of it counts."""
        self._client.call(self._awaited.rollback, what="rollback")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._awaited.over:
            return
        if error is None:
            self.commit()
        else:
            self.rollback()
