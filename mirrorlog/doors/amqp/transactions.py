"""Transactions of a channel: what is published and settled on it counts at its commit. Thin.

Where all of it is in one log it is one transaction of the cluster: all of it counts, or nothing. Else, and where a
message leads to a queue that is not there, it is done as RabbitMQ does it, whose transactions are not atomic over
queues either: messages first, each confirmed, then what was settled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrorlog.client.subscription.unacked import Granted
from mirrorlog.doors.amqp.consuming import Consuming, HeldGrant, Unsettled
from mirrorlog.doors.amqp.message import AmqpMessage, queue_named
from mirrorlog.doors.amqp.publishing import AmqpPublication, worse
from mirrorlog.errors import CrossLogTransaction, NoSuchQueue
from mirrorlog.wire.frames import How
from mirrorlog.wire.names import qualified

if TYPE_CHECKING:
    from collections.abc import Callable

    from mirrorlog.client.subscription.subscription import Subscription
    from mirrorlog.doors.amqp.consuming import ConsumingSide
    from mirrorlog.doors.amqp.publishing import Publishing


class _Taken(NamedTuple):
    """What a transaction of the cluster settles."""

    grant: tuple[Subscription, Granted, int, int]


class ChannelTransaction:
    """Of one channel, from one commit to the next. `returned`: is given each mandatory message that led nowhere."""

    def __init__(
        self,
        connection: ConsumingSide,
        publishing: Publishing,
        consuming: Consuming,
        *,
        returned: Callable[[AmqpMessage], None],
    ) -> None:
        self._connection = connection
        self._publishing = publishing
        self._consuming = consuming
        self._returned = returned
        self._messages: list[AmqpMessage] = []
        self._settled: list[tuple[int, Unsettled, How]] = []

    def publish(self, message: AmqpMessage) -> None:
        """At the commit."""
        self._messages.append(message)

    def settle(self, tag: int, how: How, *, multiple: bool) -> None:
        """At the commit. Raises AmqpError for what is not unacknowledged."""
        self._settled += [(each, held, how) for each, held in self._consuming.take(tag, multiple=multiple)]

    def take(self) -> list[AmqpMessage]:
        """Nothing of it counts: what was settled is unacknowledged again; the messages."""
        messages, self._messages = self._messages, []
        settled, self._settled = self._settled, []
        self._consuming.restore([(tag, held) for tag, held, _ in settled])
        return messages

    async def commit(self) -> list[AmqpMessage]:
        """What was published. Raises MirrorlogError: then nothing of it is known to count."""
        messages, self._messages = self._messages, []
        settled, self._settled = self._settled, []
        try:
            await self._as_one(messages, settled)
        except (CrossLogTransaction, NoSuchQueue):
            await self._one_by_one(messages)
            for _, held, how in settled:
                self._consuming.settle_held([held], how)
        return messages

    async def _as_one(self, messages: list[AmqpMessage], settled: list[tuple[int, Unsettled, How]]) -> None:
        if any(message.exchange == "" and len(message.keys) > 1 for message in messages):
            raise CrossLogTransaction("a message for several queues")
        transaction: Any = self._connection.client.transaction()
        host = self._connection.virtual_host
        routed = []
        for message in messages:
            options = {"key": message.key.encode(), "headers": [message.header], **message.options}
            if message.exchange:
                options |= {"virtual_host": host, "also_keys": message.keys[1:]}
                sent = transaction.publish(message.exchange, message.key, message.body, **options)
                routed.append((message, sent))
            else:
                transaction.send(qualified(host, queue_named(message.key)), message.body, **options)
        leases = []
        for _, held, how in settled:
            if type(held) is HeldGrant:
                taken = _Taken((held.consumer.subscription, held.granted, held.offset, held.offset + 1))
                if how == How.ACK:
                    transaction.ack(taken)
                else:
                    transaction.nack(taken, how == How.RETURN)
            else:
                leases.append((held, how))
        await transaction.commit()
        for held, how in leases:
            self._consuming.settle_held([held], how)
        for message, sent in routed:
            if message.mandatory and not sent.result().routed:
                self._returned(message)

    async def _one_by_one(self, messages: list[AmqpMessage]) -> None:
        if not messages:
            return
        left, failure = len(messages), None
        done = asyncio.get_running_loop().create_future()

        def ended(publication: AmqpPublication) -> None:
            nonlocal left, failure
            left -= 1
            if publication.error is not None:
                failure = worse(failure, publication.error)
            elif not publication.routed and publication.message.mandatory:
                self._returned(publication.message)
            if not left and not done.done():
                done.set_result(None)

        for message in messages:
            publication = AmqpPublication(message, 0, ended)
            if not self._publishing.publish_nowait(publication):
                await self._publishing.publish(publication)
        await done
        if failure is not None:
            raise failure
