"""A transaction: records for several queues, messages to exchanges, and settlements, that count together or not at all.
All queues are in one log (`x-log-group`), since one node has to decide.

Nothing leaves before the commit (`commit`): until then a transaction is a list, and its end without a commit costs
nothing. The commit is one frame, and one envelope in the log.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Self, Unpack

from mirrorlog.client.arguments import checked, refuse
from mirrorlog.client.options import check_delay
from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.producer.record import as_headers, as_timestamp_us
from mirrorlog.client.properties import Headers, SendOptions, as_bytes, parted
from mirrorlog.client.publisher.publications import checked_keys
from mirrorlog.client.serializers import Serializer, serialized
from mirrorlog.client.subscription.delivered import Settleable
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.transaction.commit import Commit, Transactor
from mirrorlog.client.transaction.contents import Routed, SentRecord, SettledPart, release, settle
from mirrorlog.commitlog.format.attributes import Attributes, asked_attributes
from mirrorlog.commitlog.format.body import Record
from mirrorlog.errors import BadRequest
from mirrorlog.wire.frames import How
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, check_routing_key


@checked(but=("ack", "nack"))
class Transaction:
    """Made by `Client.transaction`. Committed at the end of its `async with` block, rolled back by an exception in it;
    used once. One that is let go without either is rolled back, with a ResourceWarning."""

    # For one whose options were refused.
    _over = "was never made"

    def __init__(
        self,
        transactor: Transactor,
        *,
        level: int,
        durability: int,
        timeout_ms: int,
        serializer: Serializer | None = None,
    ) -> None:
        self._transactor = transactor
        self._serializer = serializer
        self._level = level
        self._durability = durability
        self._timeout_ms = timeout_ms
        self._sent: list[SentRecord] = []
        self._taken: dict[tuple[int, int, int, How, int], SettledPart] = {}
        self._count = 0
        self._virtual_host = ""
        self._over = ""

    # --- what it is of ---

    def send(
        self,
        queue: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        **asked: Unpack[SendOptions],
    ) -> int:
        """A record for `queue`; which of the receipts will be its. Options as of `Producer.send`. Raises BadInput."""
        self._check_open()
        record, attributes = self._record(value, key, headers, timestamp, asked=asked, where=f"queue {queue!r}")
        self._sent.append(SentRecord(record, attributes, queue, self._count))
        self._count += 1
        return self._count - 1

    def publish(
        self,
        exchange: str,
        routing_key: str,
        value: Any,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: datetime | int | None = None,
        mandatory: bool = False,
        virtual_host: str = DEFAULT_VIRTUAL_HOST,
        also_keys: Sequence[str] = (),
        **asked: Unpack[SendOptions],
    ) -> Routed:
        """A message to an exchange, routed by the bindings that there are when it is committed; the result says where
        it is then. All queues that it leads to must be in the log of the others, or nothing of it counts.

        Options as of `Publisher.publish`. `mandatory`: the commit raises Unroutable when it leads to no queue; else it
        is dropped. Raises BadInput; BadRequest for the default exchange, which `send` is for, and for one of another
        virtual host than the transaction's first.
        """
        self._check_open()
        check_routing_key(routing_key)
        if not exchange:
            raise BadRequest("a message to the default exchange goes to the queue that it names: use send")
        if self._virtual_host not in ("", virtual_host):
            raise BadRequest(
                f"exchange {exchange!r} is in virtual host {virtual_host}, and this transaction publishes to one in "
                f"{self._virtual_host}: a transaction that publishes to exchanges is of one virtual host"
            )
        where, key = f"exchange {exchange!r}", routing_key if key is None else key
        record, attributes = self._record(value, key, headers, timestamp, asked=asked, where=where)
        routed = Routed(exchange, routing_key, mandatory, checked_keys(also_keys))
        self._sent.append(SentRecord(record, attributes, routed=routed))
        self._virtual_host = virtual_host
        return routed

    def _record(
        self,
        value: Any,
        key: bytes | str | None,
        headers: Headers | None,
        timestamp: datetime | int | None,
        *,
        asked: SendOptions,
        where: str,
    ) -> tuple[Record, Attributes | None]:
        """And what it asks for. Raises BadInput."""
        options, headers = parted(asked, headers)
        if self._serializer is not None:
            value = serialized(self._serializer, value, where)
        record = Record(as_bytes(value), as_bytes(key), list(as_headers(headers)), as_timestamp_us(timestamp))
        return record, asked_attributes(**options) if options else None

    def ack(self, delivery: Settleable[Any]) -> None:
        """Acknowledge a record, or a stretch of a batch, that a subscription of this client has given out. Raises
        BadRequest for one of another client."""
        self._take(delivery, How.ACK)

    def nack(self, delivery: Settleable[Any], requeue: bool = True, *, delay_ms: int = 0) -> None:
        """Not done: it comes again, after `delay_ms`, and that is counted. Without `requeue` it is dead: a dead letter,
        if the queue has a place for them. Raises as `ack`, and BadRequest for a wrong delay."""
        check_delay(delay_ms)
        if not isinstance(requeue, bool):
            raise refuse("requeue", requeue, "bool")
        self._take(delivery, How.RETURN if requeue else How.DEAD, delay_ms if requeue else 0)

    def _take(self, delivery: Settleable[Any], how: How, delay_ms: int = 0) -> None:
        self._check_open()
        grant: Any = getattr(delivery, "grant", (None,) * 4)
        subscription, granted, first, following = grant
        if not isinstance(subscription, Subscription):
            raise refuse("delivery", delivery, "what a subscription has given out")
        if subscription.client is not self._transactor.client:
            raise BadRequest(
                f"this record of queue {subscription.queue!r} was given out by another client; settle it in a "
                "transaction of that one"
            )
        key = id(subscription), granted.session, granted.epoch, how, delay_ms
        taken = self._taken.setdefault(key, SettledPart(subscription, granted.session, granted.epoch, how, delay_ms))
        taken.parts.append((granted, first, following))

    # --- its end ---

    async def commit(self) -> list[Receipt]:
        """Store all of it; receipts in the order in which records were sent. Nothing to store: none. Where messages to
        exchanges are, what `publish` gave says.

        Raises Refused or BadInput (CrossLogTransaction, BatchTooLarge, NotGranted, Unroutable, …), NoSuchQueue or
        NoSuchExchange: nothing of it counts; or OutcomeUnknown: all of it may count, or nothing.
        """
        self._check_open()
        self._over = "was committed"
        if not self._sent and not self._taken:
            return []
        taken = list(self._taken.values())
        settle(taken)
        settled = False
        try:
            async with self._transactor.numbers() as numbers:
                commit = Commit(self._transactor, self._sent, taken, numbers, self._virtual_host)
                receipts = await commit.run(self._level, self._durability, self._timeout_ms)
            settled = True
        finally:
            release(taken, settled=settled)
        return receipts

    async def rollback(self) -> None:
        """Nothing of it counts; what it settled is unacknowledged as before."""
        self._check_open()
        self._over = "was rolled back"

    def __del__(self) -> None:
        """Nobody can commit it any more."""
        if self._over or not (self._sent or self._taken):
            return
        settled = sum(len(each.parts) for each in self._taken.values())
        records = f"{len(self._sent)} record{'s' * (len(self._sent) != 1)}"
        told = f"a transaction of {records} and {settled} settlements was neither committed nor rolled back"
        warnings.warn(f"{told}: nothing of it counts", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        settled = sum(len(each.parts) for each in self._taken.values())
        return f"Transaction({len(self._sent)} sent, {settled} settled{self._over and ', ' + self._over})"

    @property
    def over(self) -> bool:
        """Whether it was committed or rolled back."""
        return bool(self._over)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._over:
            return
        if error is None:
            await self.commit()
        else:
            await self.rollback()

    def _check_open(self) -> None:
        if self._over:
            raise BadRequest(f"this transaction {self._over}; make another one")
