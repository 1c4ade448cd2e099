"""Requests and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from mirrorlog.client import Client, Subscription
from mirrorlog.client.sync import Client as BlockingClient
from mirrorlog.errors import BadRequest, RequestTimeout, Unroutable
from mirrorlog.testing import Cluster


async def echo(subscription: Subscription) -> None:
    """Answers in the other order of two."""
    async for first in subscription:
        second = await anext(subscription)
        for delivery in (second, first):
            await delivery.reply(b"re: " + (delivery.value or b""), content_type=delivery.properties.content_type)
            await delivery.ack()


async def test_each_request_gets_its_own_answer(shared_cluster: Cluster, client: Client, queue: str) -> None:
    """Goal: who asks hears what was answered to him. Method: two requests at once, answered in the other order by
    another client; then one that nobody answers, one that leads nowhere, and a reply to what is no request."""
    async with Client(*shared_cluster.servers) as server, server.subscribe(queue) as subscription:
        serving = asyncio.ensure_future(echo(subscription))
        asked = [client.request(queue, text, content_type="text/plain", timeout_ms=20_000) for text in ("a", "b")]
        answers = await asyncio.gather(*asked)
        assert [each.value for each in answers] == [b"re: a", b"re: b"]
        assert answers[0].properties.content_type == "text/plain"
        serving.cancel()
        with pytest.raises(RequestTimeout, match="no answer to the request within 100 ms"):
            await client.request(queue, "c", timeout_ms=100)
        with pytest.raises(Unroutable):
            await client.request("nobody-there", "d")
        with pytest.raises(BadRequest, match="timeout_ms 'x' is str"):
            await client.request(queue, "d", timeout_ms="x")  # type: ignore[arg-type]
    async with client.producer(queue) as producer, client.subscribe(queue, "g") as subscription:
        await producer.send(b"plain")
        async for delivery in subscription:
            if delivery.value == b"plain":
                with pytest.raises(BadRequest, match="no reply_to"):
                    await delivery.reply(b"x")
                break


def test_the_blocking_client_asks_and_answers(shared_cluster: Cluster, new_name: Callable[[], str]) -> None:
    with BlockingClient(*shared_cluster.servers) as client, BlockingClient(*shared_cluster.servers) as server:
        queue = client.admin.declare(new_name()).name
        with server.subscribe(queue) as subscription, ThreadPoolExecutor(1) as threads:
            asked = threads.submit(client.request, queue, "a", timeout_ms=20_000)
            delivery = next(subscription)
            delivery.reply("b")
            delivery.ack()
            assert asked.result().value == b"b"
