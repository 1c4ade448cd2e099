"""What callers give is checked by name and type, and harms nobody else on the connection."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.client.sync import Client as BlockingClient
from mirrorlog.errors import BadInput, BadRequest
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.operators import NoSuchNode
from mirrorlog.wire.messages.queues import Position

NONSENSE: dict[str, Any] = {
    "str": "\ud800", "int": 10**30, "bool": True, "bytes": b"x", "float": 1.5, "object": object(), "list": [object()],
}  # fmt: skip
TAKES = {
    "bool": ("bool", "int", "TierChoice"), "list": ("Any", "headers"), "float": ("float",), "bytes": ("bytes", "Any"),
}  # fmt: skip
"""Where nonsense of a kind may be none: by words in the hint; the rest is nonsense everywhere but where anything is."""
GIVEN: dict[str, Any] = {
    "timeout_ms": 10, "queue_offset": 0, "lease_ms": 10, "time": 0, "records_max": 1, "arguments": {}, "bindings": [],
    "prefetch": 1, "definition": {}, "position": Position(log_id="", epoch=0, queue_offset=0),
}  # fmt: skip


def cases(faces: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """What tab completion shows, with its parameters."""
    for kind, face in faces.items():
        for name in dir(face):
            method = getattr(type(face), name, None)
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            for parameter in list(inspect.signature(method).parameters.values())[1:]:
                if parameter.kind != parameter.VAR_KEYWORD and "Any" not in parameter.annotation.split(" | "):
                    yield kind, name, parameter.name


@pytest.fixture
async def faces(client: Client, queue: str) -> AsyncIterator[dict[str, Any]]:
    """One of each, started, and what they gave out."""
    async with client.producer(queue) as producer, client.publisher("amq.direct") as publisher:
        await producer.send_many([b"1", b"2"])
        async with client.consumer(queue) as consumer, client.subscribe(queue, prefetch=1) as subscription:
            (leased,) = await client.lease(queue, "leasing", max_records=1)
            transaction = client.transaction()
            yield {
                "Client": client, "Admin": client.admin, "Topology": client.admin.topology, "Consumer": consumer,
                "Producer": producer, "Publisher": publisher, "Subscription": subscription,
                "Transaction": transaction, "Delivered": await anext(subscription), "Leased": leased,
            }  # fmt: skip
            await transaction.rollback()


async def test_nonsense_is_refused_by_name_and_the_connection_stays(client: Client, faces: dict[str, Any]) -> None:
    """Goal: a wrong argument is a BadInput that names it, raised before anything is sent. Method: objects, numbers that
    no wire takes, half characters and wrong containers, at every parameter of every public method that has a hint; then
    the connection is the same one, and in use."""
    before = await client.any_connection()
    missed = []
    for face, method, wrong in cases(faces):
        GIVEN["delivery"] = faces["Delivered"]
        for value in nonsense(getattr(faces[face], method), wrong):
            try:
                outcome = called(getattr(faces[face], method), wrong, value)
                if inspect.isawaitable(outcome):
                    await outcome
            except BadInput as error:
                if wrong.rstrip("s") not in str(error):
                    missed.append(f"{face}.{method}({wrong}={value!r:.20}): {error}")
            except Exception as error:
                missed.append(f"{face}.{method}({wrong}={value!r:.20}): {error!r}")
            else:
                missed.append(f"{face}.{method}({wrong}={value!r:.20}) was taken")
    assert missed == [], "\n".join(missed)
    assert await client.any_connection() is before
    assert (await client.admin.status()).node_id


def nonsense(method: Callable[..., Any], name: str) -> list[Any]:
    hint = inspect.signature(method).parameters[name].annotation
    found = [value for kind, value in NONSENSE.items() if not any(each in hint for each in TAKES.get(kind, ()))]
    if "bool" in hint:
        found = [value for value in found if value is not True]
    return found


def called(method: Callable[..., Any], wrong: str, value: Any) -> Any:
    """With what fits for the others."""
    given: list[Any] = []
    named: dict[str, Any] = {}
    for each in inspect.signature(method).parameters.values():
        needed = each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        if each.name == wrong or needed:
            fits = value if each.name == wrong else GIVEN.get(each.name, b"v" if "bytes" in each.annotation else "x")
            if each.kind == each.VAR_POSITIONAL:
                given.append(fits)
            else:
                named[each.name] = fits
    return method(*given, **named)


def test_what_blocks_refuses_the_same(shared_cluster: Cluster, new_name: Callable[[], str]) -> None:
    """Goal: options by keyword are looked at too. Method: by each way that a call gets to the loop's thread."""
    with BlockingClient(*shared_cluster.servers) as client:
        queue = client.admin.declare(new_name()).name
        wrong: list[tuple[str, Callable[[], object]]] = [
            ("group", lambda: client.subscribe(queue, group=5)),  # type: ignore[arg-type]
            ("settle_timeout_ms", lambda: client.subscribe(queue, settle_timeout_ms="x")),  # type: ignore[arg-type]
            ("wait_ms", lambda: client.lease(queue, wait_ms="x")),  # type: ignore[arg-type]
            ("timeout_ms", lambda: client.transaction(timeout_ms="x")),  # type: ignore[arg-type]
            ("delivery_timeout_ms", lambda: client.producer(queue, delivery_timeout_ms="x")),  # type: ignore[arg-type]
            ("name", lambda: client.admin.declare(5)),  # type: ignore[arg-type]
            ("wait_ms", lambda: client.admin.events(wait_ms="x")),  # type: ignore[arg-type]
            ("DeclareQueue", lambda: client.admin.declare("x", {"copies": object()})),
            ("arguments", lambda: client.admin.declare("x", {5: 1})),  # type: ignore[dict-item]
        ]
        for name, call in wrong:
            with pytest.raises(BadRequest, match=name):
                call()
        with client.consumer(queue) as consumer, pytest.raises(BadRequest, match="max_records 'x' is str; give int or"):
            consumer.read("x", timeout_ms=1)  # type: ignore[arg-type]
        assert client.admin.status().node_id


def test_a_client_says_which_of_its_options_is_wrong_and_shows_no_password() -> None:
    for name, value in {"user": 5, "tls": "x", "cluster_id": 7, "connect_timeout_ms": "1", "password": 12345}.items():
        with pytest.raises(BadRequest, match=f"^{name} ") as caught:
            Client("127.0.0.1:1", **{name: value})  # type: ignore[arg-type]
        assert "12345" not in str(caught.value)


async def test_a_record_of_a_wrong_type_is_a_bad_request_that_says_what_is_taken(client: Client, queue: str) -> None:
    """Goal: what `send` looks at itself is refused as all else is. Method: each part of a record, alone and as
    columns, and by a transaction; nothing was stored."""
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"value": 5}, "a value is int; give bytes, text or None, or make the producer with serializer="),
        ({"value": {}}, "a value is dict"),
        ({"value": b"v", "key": 5}, "a key is int; give bytes, text or None"),
        ({"value": b"v", "headers": {"a": 1}}, "a value in headers is int; give bytes, text or None"),
        ({"value": b"v", "headers": 5, "app_id": "me"}, "headers 5 is int"),
        ({"value": b"v", "timestamp": 1.5}, "timestamp"),
        ({"value": b"v", "delay_ms": -1}, "delay_ms is -1"),
    ]
    async with client.producer(queue) as producer:
        for options, says in wrong:
            for send in (producer.send, producer.send_nowait):
                with pytest.raises(BadRequest, match=re.escape(says)):
                    await send(**options)
        with pytest.raises(BadRequest, match="values are str"):
            await producer.send_many("abc")
        with pytest.raises(BadRequest, match="headers"):
            await producer.send_many([b"v"], headers=5)
    assert (await client.admin.metadata([queue])).queues[0].next == 0


async def test_text_is_taken_wherever_bytes_are(client: Client, queue: str) -> None:
    async with client.producer(queue) as producer:
        await producer.send("value", key="key", headers={"a": "zwölf", "b": b"2", "c": None})
        await producer.send("value", key="key", headers=[("a", "zwölf"), ("b", b"2")], app_id="me")
        await producer.send_many(["value"], keys=["key"], headers=[{"a": "zwölf"}])
        await producer.send_many(["value"], keys=["key"], headers={"a": "zwölf"})
    async with client.consumer(queue, until="confirmed") as consumer:
        found = [each async for each in consumer]
    assert {(each.value, each.key) for each in found} == {(b"value", b"key")}
    assert [dict(each.headers)["a"] for each in found] == ["zwölf".encode()] * 4
    assert found[0].headers == [("a", "zwölf".encode()), ("b", b"2"), ("c", None)]


async def test_a_keyword_that_nobody_knows_is_pythons_error(client: Client) -> None:
    """Of the method that was called, also where options go on to another one."""
    for name in ("producer", "publisher", "consumer", "subscribe"):
        with pytest.raises(TypeError, match=rf"Client.{name}\(\) got an unexpected keyword argument 'acks'"):
            getattr(client, name)("q", acks="all")


async def test_what_admin_is_told_is_checked_before_it_asks(client: Client) -> None:
    """A time that is none, and a node that is not there, by the error of `forget_node`."""
    for call in (client.admin.connections, client.admin.moves):
        with pytest.raises(BadRequest, match="node_timeout_ms"):
            await call(node_timeout_ms=-1)
    for ask in (client.admin.events, client.admin.status, client.admin.forget_node):
        with pytest.raises(NoSuchNode, match="no node 'nope'"):
            await ask(node_id="nope")  # type: ignore[operator]
