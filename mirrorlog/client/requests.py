"""Requests and their answers over queues.

    answer = await client.request("prices", b"AAPL", timeout_ms=5_000)      # who asks
    await delivery.reply(b"101.5")                                          # who handles it, then acks

Each request carries the client's own reply queue, which is exclusive and goes with its connection, and a correlation id
by which its answer is found. So an answer is read by who asked and by nobody else; one that comes too late is dropped.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Unpack

from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.consumer.records import ConsumedRecord
from mirrorlog.client.options import check_timeout
from mirrorlog.client.properties import Headers, RecordProperties, SendOptions
from mirrorlog.client.publisher.publisher import Publisher
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.errors import BadRequest, MirrorlogError, OutcomeUnknown, RequestTimeout


class ClientRequests:
    """Asks and answers for one client. Made by it."""

    def __init__(
        self,
        client: ClusterClient,
        *,
        make_publisher: Callable[..., Publisher],
        make_subscription: Callable[..., Subscription],
    ) -> None:
        self._client = client
        self._make_publisher = make_publisher
        self._make_subscription = make_subscription
        self._publishers: dict[str, Publisher] = {}
        self._opening = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._reply_to = ""
        self._waiting: dict[str, asyncio.Future[ConsumedRecord]] = {}

    async def request(
        self,
        routing_key: str,
        value: bytes | str | None,
        *,
        exchange: str,
        timeout_ms: int,
        headers: Headers | None,
        options: SendOptions,
    ) -> ConsumedRecord:
        """See `Client.request`."""
        check_timeout("timeout_ms", timeout_ms)
        correlation_id = options.get("correlation_id") or secrets.token_hex(8)
        if correlation_id in self._waiting:
            raise BadRequest(f"correlation_id {correlation_id!r} is that of a request that is under way")
        answer: asyncio.Future[ConsumedRecord] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = answer
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                options["reply_to"], options["correlation_id"] = await self._own_queue(), correlation_id
                publisher = await self._publisher(exchange)
                await publisher.publish(routing_key, value, headers=headers, mandatory=True, **options)
                return await answer
        except TimeoutError:
            raise RequestTimeout(f"no answer to the request within {timeout_ms} ms; it may be handled yet") from None
        finally:
            self._waiting.pop(correlation_id, None)

    async def reply(self, to: RecordProperties, value: bytes | str | None, **asked: Unpack[SendOptions]) -> None:
        """Answer a request with these properties; dropped when who asked is gone. BadRequest for what is none."""
        if to.reply_to is None:
            raise BadRequest("the record is no request: it has no reply_to")
        asked.setdefault("correlation_id", to.correlation_id)
        await (await self._publisher("")).publish(to.reply_to, value, **asked)

    async def _publisher(self, exchange: str) -> Publisher:
        async with self._opening:
            publisher = self._publishers.get(exchange)
            if publisher is None or not publisher.unclosed:
                publisher = self._publishers[exchange] = await self._make_publisher(exchange).start()
                publisher.kept = True
        return publisher

    async def _own_queue(self) -> str:
        """Made when it is needed, and made anew when it is gone."""
        async with self._opening:
            if self._reading is None or self._reading.done():
                from mirrorlog.client.admin import Admin

                name = (await Admin(self._client).declare("", {"exclusive": True})).name
                subscription = await self._make_subscription(name, auto_ack=True, create=True).start()
                subscription.kept = True
                self._reply_to, self._reading = name, asyncio.ensure_future(self._read(subscription))
        return self._reply_to

    async def _read(self, subscription: Subscription) -> None:
        """Give answers to who waits for them, until the queue is gone or the client is closed."""
        try:
            async for delivery in subscription:
                answer = self._waiting.pop(delivery.properties.correlation_id or "", None)
                if answer is not None and not answer.done():
                    answer.set_result(delivery.record)
        except MirrorlogError as error:
            waiting, self._waiting = self._waiting, {}
            for answer in waiting.values():
                if not answer.done():
                    answer.set_exception(OutcomeUnknown(f"the reply queue is gone, no answer can come; last: {error}"))
            with suppress(MirrorlogError):
                await subscription.close()
