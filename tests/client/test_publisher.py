"""Publishing to exchanges through a real cluster: one confirm for all queues, and no binding missed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from mirrorlog.client import Client
from mirrorlog.client.publisher import queue_producers
from mirrorlog.client.publisher.publisher import Publisher
from mirrorlog.client.publisher.routes import FRESH_S
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import (
    AccessRefused,
    BadInput,
    BadRequest,
    Closed,
    NoSuchExchange,
    NoSuchVirtualHost,
    QueueFull,
    Refused,
    RequestTimeout,
    StaleRouting,
    Unroutable,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.names import qualified
from mirrorlog.wire.routing import Binding

Names = Callable[[], str]


@pytest.fixture
async def other(shared_cluster: Cluster) -> AsyncIterator[Client]:
    """A second client, of another node."""
    async with Client(shared_cluster.servers[-1]) as connected:
        yield connected


async def values(client: Client, queue: str) -> list[bytes]:
    """All confirmed records of a queue."""
    async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [bytes(record.value or b"") async for record in consumer]


async def declared(client: Client, *names: str) -> None:
    for name in names:
        await client.admin.declare(name)


async def test_one_publish_lands_in_every_matching_queue_and_is_confirmed_by_all(
    client: Client, new_name: Names
) -> None:
    """Goal: a publish to exchange and routing key lands in every matching queue, one confirm for all. Method: a topic
    exchange with three queues of which two match, one of them twice."""
    exchange, a, b, c = new_name(), new_name(), new_name(), new_name()
    await declared(client, a, b, c)
    topology = client.admin.topology
    await topology.declare_exchange(exchange, "topic")
    await topology.bind_all([Binding(exchange, a, "#"), Binding(exchange, a, "k.*"), Binding(exchange, b, "k.*")])
    await topology.bind(exchange, c, "other")
    async with client.publisher(exchange) as publisher:
        published = await publisher.publish("k.x", b"one", headers={"h": b"1"})
    assert set(published.receipts) == {a, b}
    assert [await values(client, queue) for queue in (a, b, c)] == [[b"one"], [b"one"], []]
    async with client.consumer(b, start="earliest", until="confirmed") as consumer:
        (record,) = [record async for record in consumer]
        assert (bytes(record.key or b""), record.headers) == (b"k.x", [("h", b"1")])


async def test_the_default_exchange_leads_to_the_queue_of_that_name(client: Client, queue: str) -> None:
    async with client.publisher("") as publisher:
        assert set((await publisher.publish(queue, b"v")).receipts) == {queue}
        assert not (await publisher.publish("no such queue", b"v")).routed
        with pytest.raises(Unroutable):
            await publisher.publish("no such queue", b"v", mandatory=True)
    assert await values(client, queue) == [b"v"]


async def test_what_leads_nowhere_is_dropped_and_counted_or_told(client: Client, new_name: Names, queue: str) -> None:
    """Goal: unroutable is returned or dropped as asked, after the alternate exchange was tried. Method: both, then an
    alternate exchange with a queue."""
    plain, spare, last = new_name(), new_name(), new_name()
    topology = client.admin.topology
    await topology.declare_exchange(plain, "direct")
    await topology.declare_exchange(last, "fanout")
    await topology.declare_exchange(spare, "direct", alternate=last)
    await topology.bind(last, queue)
    async with client.publisher(plain, mandatory=True) as publisher:
        with pytest.raises(Unroutable, match=f"exchange '{plain}' leads key 'k'") as told:
            await publisher.publish("k", b"lost")
        assert told.value.details == {"exchange": plain, "key": "k"}
        assert not (await publisher.publish("k", b"lost", mandatory=False)).routed
        assert publisher.stats.unroutable == 2
    async with client.publisher(spare, mandatory=True) as publisher:
        assert (await publisher.publish("k", b"kept")).routed
    assert await values(client, queue) == [b"kept"]


async def test_a_publish_behind_a_bind_meets_it_wherever_it_goes(
    client: Client, other: Client, new_name: Names
) -> None:
    """Goal: no message is routed by bindings that were changed before it. Method: one client publishes to a queue, has
    kept the routing, and another one binds and unbinds queues; after each answer one message is published, and it is in
    exactly the queues that are bound."""
    exchange, always, first, second = (new_name() for _ in range(4))
    await declared(client, always, first, second)
    topology = other.admin.topology
    await topology.declare_exchange(exchange, "fanout")
    await topology.bind(exchange, always)
    async with client.publisher(exchange) as publisher:
        assert set((await publisher.publish("", b"0")).receipts) == {always}
        await topology.bind(exchange, first)
        assert set((await publisher.publish("", b"1")).receipts) == {always, first}
        await topology.bind(exchange, second)
        await topology.unbind(exchange, first)
        assert set((await publisher.publish("", b"2")).receipts) == {always, second}
        assert publisher.stats.rerouted >= 2
    assert await values(client, always) == [b"0", b"1", b"2"]
    assert await values(client, first) == [b"1"]
    assert await values(client, second) == [b"2"]


async def test_messages_keep_their_order_while_bindings_change_under_them(
    client: Client, other: Client, new_name: Names
) -> None:
    """Goal: order per queue, nothing lost, nothing twice, though whole windows are refused and routed again. Method:
    messages in flight while another client binds and unbinds; the queue that stays bound has all of them in order."""
    exchange, always, moving = new_name(), new_name(), new_name()
    await declared(client, always, moving)
    topology = other.admin.topology
    await topology.declare_exchange(exchange, "topic")
    await topology.bind(exchange, always, "#")
    expected = [b"%d" % number for number in range(1_500)]
    async with client.publisher(exchange, batch_bytes=4096) as publisher:
        handed = []
        for number, value in enumerate(expected):
            handed.append(await publisher.hand_over("k", value))
            if number in (0, 151):  # however slow all is: one that is stored before a change, and one between two
                await handed[-1]
            if number % 300 == 150:
                await topology.bind(exchange, moving, "k")
            elif number % 300 == 299:
                await topology.unbind(exchange, moving, "k")
        told = [await each for each in handed]
        assert publisher.stats.rerouted > 0
    assert await values(client, always) == expected
    assert all(always in each.receipts for each in told)
    got = await values(client, moving)
    assert got == [value for value, each in zip(expected, told, strict=True) if moving in each.receipts]
    assert got == sorted(got, key=int)
    assert 0 < len(got) < len(expected)


async def test_messages_keep_their_order_when_a_message_that_leads_nowhere_finds_a_new_version(
    client: Client, other: Client, new_name: Names
) -> None:
    """Goal: order per queue, however a newer version is met. Method: one message that is refused as stale, and behind
    it one that led nowhere by the old version: it fetches the routing, and must not overtake the first."""
    exchange, queue = new_name(), new_name()
    await declared(client, queue)
    topology = other.admin.topology
    await topology.declare_exchange(exchange)
    await topology.bind(exchange, queue, "a")
    async with client.publisher(exchange) as publisher:
        await publisher.publish("a", b"0")
        await topology.bind(exchange, queue, "b")
        for publication in [await publisher.hand_over("a", b"1"), await publisher.hand_over("b", b"2")]:
            assert set((await publication).receipts) == {queue}
        assert publisher.stats.rerouted == 2
    assert await values(client, queue) == [b"0", b"1", b"2"]


async def test_who_has_just_been_told_that_a_message_leads_nowhere_meets_a_binding_made_since(
    client: Client, other: Client, new_name: Names
) -> None:
    """Goal: a publish behind the answer to a bind meets it, however fresh the word is that knows nothing of it. Method:
    be told so, bind, publish again at once; and one that is handed over in front of a message that leads somewhere."""
    exchange, queue = new_name(), new_name()
    await declared(client, queue)
    topology = other.admin.topology
    await topology.declare_exchange(exchange, "topic")
    await topology.bind(exchange, queue, "always")
    async with client.publisher(exchange, mandatory=True) as publisher:
        for key in ("a", "b"):
            with pytest.raises(Unroutable):
                await publisher.publish(key, b"lost")
            await topology.bind(exchange, queue, key)
            assert set((await publisher.publish(key, key.encode())).receipts) == {queue}
            await topology.unbind(exchange, queue, key)
            with pytest.raises(Unroutable):
                await publisher.publish(key, b"lost")
        await topology.bind(exchange, queue, "c")
        for publication in [await publisher.hand_over("c", b"c"), await publisher.hand_over("always", b"d")]:
            assert set((await publication).receipts) == {queue}
    assert await values(client, queue) == [b"a", b"b", b"c", b"d"]


async def test_messages_that_lead_nowhere_wait_for_one_question(client: Client, new_name: Names) -> None:
    """Goal: what nobody wants costs no round trip each, and holds up nothing. Method: 500 handed over at once, counted
    are the questions for the version."""
    exchange = new_name()
    await client.admin.topology.declare_exchange(exchange, "topic")
    async with client.publisher(exchange) as publisher:
        asked, hear_version = 0, publisher._routes.hear_version

        async def counted(address: str, at_least: int) -> int | None:
            nonlocal asked
            asked += 1
            return await hear_version(address, at_least)

        publisher._routes.hear_version = counted  # type: ignore[method-assign]
        handed = [await publisher.hand_over("k", b"lost") for _ in range(500)]
        assert [(await each).routed for each in handed] == [False] * 500
        assert asked == 1
        assert publisher.stats.refreshed == 1, "the start's"


async def test_messages_that_lead_nowhere_end_when_no_node_can_say_so(client: Client, new_name: Names) -> None:
    """Goal: nothing hangs, and nothing is called unroutable by a word from before. Method: no node answers the question
    for the version; all that wait for it are told the same, and later ones end as they should."""
    exchange = new_name()
    await client.admin.topology.declare_exchange(exchange, "topic")
    publisher = await client.publisher(exchange, delivery_timeout_ms=200).start()
    hear_version = publisher._routes.hear_version

    async def silent(address: str, at_least: int) -> int | None:
        raise RequestTimeout(f"{address} does not answer")

    publisher._routes.hear_version = silent  # type: ignore[method-assign]
    handed = [await publisher.hand_over("k", b"v", mandatory=bool(number % 2)) for number in range(100)]
    async with asyncio.timeout(10):
        for each in handed:
            with pytest.raises(RequestTimeout, match="does not answer"):
                await each
    assert publisher.stats.unroutable == 0
    publisher._routes.hear_version = hear_version  # type: ignore[method-assign]
    assert not (await publisher.publish("k", b"v")).routed
    await publisher.close()


async def test_a_publisher_that_was_idle_asks_for_the_version_before_it_sends(
    client: Client, other: Client, new_name: Names
) -> None:
    """Goal: 16 bits that have come round are not taken for a newer version. Method: a version that was vouched for long
    ago, though the message leads somewhere by it: it is fetched, and nothing is refused; one that is fresh is used."""
    exchange, first, second = new_name(), new_name(), new_name()
    await declared(client, first, second)
    await other.admin.topology.declare_exchange(exchange, "fanout")
    await other.admin.topology.bind(exchange, first)
    async with client.publisher(exchange) as publisher:
        await publisher.publish("", b"0")
        assert publisher.stats.refreshed == 1
        await other.admin.topology.bind(exchange, second)
        publisher._routes.vouched_at -= 2 * FRESH_S
        assert set((await publisher.publish("", b"1")).receipts) == {first, second}
        assert (publisher.stats.refreshed, publisher.stats.rerouted) == (2, 0)


async def test_publishes_end_though_bindings_change_without_an_end(
    client: Client, other: Client, new_name: Names
) -> None:
    """Goal: nobody starves a virtual host's publishers. Method: thousands of bindings, one client binds and unbinds all
    the while; messages through another exchange and through the default one are confirmed, and a message for which
    there is always a newer version ends at its deadline."""
    host, name = new_name(), new_name()
    topology = other.admin.topology
    await topology.add_virtual_host(host)
    await declared(client, qualified(host, name))
    await topology.declare_exchange("e", "topic", virtual_host=host)
    await topology.bind("e", name, "a", virtual_host=host)
    many = [Binding("amq.topic", name, f"k.{number}.x") for number in range(5_000)]
    await topology.bind_all(many, virtual_host=host)
    done = asyncio.Event()

    async def change() -> None:
        while not done.is_set():
            await topology.bind("amq.direct", name, "z", virtual_host=host)
            await topology.unbind("amq.direct", name, "z", virtual_host=host)

    options = {"virtual_host": host, "delivery_timeout_ms": 5_000}
    async with client.publisher("e", **options) as publisher, client.publisher("", **options) as default:
        changing = asyncio.ensure_future(change())
        try:
            async with asyncio.timeout(20):
                for _ in range(20):
                    assert (await publisher.publish("a", b"v")).routed
                    assert (await default.publish(name, b"v")).routed
                assert publisher.stats.rerouted
                assert default.stats.rerouted == 0, "no binding leads there"

                async def learn_nothing(at_least: int, *, give_up_at: float) -> None:
                    await asyncio.sleep(0)

                publisher._refresh = learn_nothing  # type: ignore[method-assign]
                publisher._delivery_s = 0.2
                with pytest.raises(StaleRouting, match="bindings"):
                    await publish_until_refused(publisher)
        finally:
            done.set()
            await changing


async def publish_until_refused(publisher: Publisher) -> None:
    """Until a change has come in between."""
    while True:
        await publisher.publish("a", b"v")


async def test_a_queue_that_was_deleted_gets_nothing_and_hinders_nothing(
    client: Client, other: Client, new_name: Names
) -> None:
    """Goal: its bindings went with it, so a message lands in the others. Method: a queue that the publisher has sent to
    is deleted, and declared anew without a binding; and what the default exchange leads to it."""
    exchange, stays, goes = new_name(), new_name(), new_name()
    await declared(client, stays, goes)
    await other.admin.topology.declare_exchange(exchange, "fanout")
    for queue in (stays, goes):
        await other.admin.topology.bind(exchange, queue)
    async with client.publisher(exchange) as publisher, client.publisher("") as default:
        assert set((await publisher.publish("", b"0")).receipts) == {stays, goes}
        assert (await default.publish(goes, b"1")).routed
        await other.admin.delete_queue(goes)
        assert set((await publisher.publish("", b"2")).receipts) == {stays}
        assert not (await default.publish(goes, b"3")).routed
        await declared(other, goes)
        assert set((await publisher.publish("", b"4")).receipts) == {stays}
        assert set((await default.publish(goes, b"5")).receipts) == {goes}
    assert await values(client, stays) == [b"0", b"2", b"4"]
    assert await values(client, goes) == [b"5"]


async def test_a_stale_batch_is_refused_and_stores_nothing(client: Client, other: Client, new_name: Names) -> None:
    """Goal: the node, not the publisher, sees to it. Method: a producer that says an old version; what is not routed
    passes."""
    exchange, queue = new_name(), new_name()
    await declared(client, queue)
    version = (await client.admin.topology.routing()).version
    async with client.producer(queue) as producer:
        producer.routed_by(version % 2**16)
        await producer.send(b"now")
        await other.admin.topology.declare_exchange(exchange)
        with pytest.raises(StaleRouting) as refused:
            await producer.send(b"stale")
        assert isinstance(refused.value, Refused)
        assert refused.value.details["version"] > version
        producer.routed_by(0)
        await producer.send(b"not routed")
    assert await values(client, queue) == [b"now", b"not routed"]


async def test_a_message_with_several_keys_is_once_in_each_queue(client: Client, new_name: Names) -> None:
    """Goal: CC and BCC. Method: keys that meet in a queue, by an exchange, by the default one, and in a transaction."""
    log = {"x-log-group": new_name()}
    one, two, three = [(await client.admin.declare(new_name(), log)).name for _ in range(3)]
    exchange = new_name()
    await client.admin.topology.declare_exchange(exchange, "direct")
    for queue, key in ((one, "a"), (one, "b"), (two, "b")):
        await client.admin.topology.bind(exchange, queue, key)
    async with client.publisher(exchange, mandatory=True) as publisher, client.publisher("") as default:
        published = await publisher.publish("a", b"1", also_keys=["b", "nowhere"])
        assert sorted(published.receipts) == sorted((one, two))
        with pytest.raises(Unroutable, match="'c' or 'd'"):
            await publisher.publish("c", b"2", also_keys=["d"])
        assert sorted((await default.publish(one, b"3", also_keys=(two, one, ""))).receipts) == sorted((one, two))
        with pytest.raises(BadInput, match="also_keys"):
            await publisher.publish("a", b"4", also_keys="b")
    async with client.transaction() as transaction:
        transaction.publish(exchange, "a", b"5", also_keys=["b"])
        transaction.send(three, b"6")
    assert await values(client, one) == [b"1", b"3", b"5"]
    assert await values(client, two) == [b"1", b"3", b"5"]


async def test_a_full_queue_is_told_at_once_to_who_does_not_want_to_wait(client: Client, new_name: Names) -> None:
    """Goal: reject-publish is an answer. Method: one record fits; others of a producer and a publisher are refused long
    before their delivery timeout, in a row and together, and what comes when there is room again lands."""
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = (await client.admin.declare(new_name(), limits)).name
    async with (
        asyncio.timeout(20),
        client.producer(queue, retry_full=False) as producer,
        client.publisher("", retry_full=False) as publisher,
    ):
        await producer.send(b"fits")
        for _ in range(3):
            refused = await asyncio.gather(
                publisher.publish(queue, b"x"), producer.send(b"y"), producer.send(b"z"), return_exceptions=True
            )
            assert [type(each) for each in refused] == [QueueFull] * 3
        await client.admin.purge(queue)
        await producer.send(b"fits again")


async def test_an_exchange_that_is_not_there_internal_or_gone_is_told(client: Client, new_name: Names) -> None:
    inner = new_name()
    topology = client.admin.topology
    with pytest.raises(NoSuchExchange):
        await client.publisher(new_name()).start()
    with pytest.raises(NoSuchVirtualHost):
        await client.publisher("amq.topic", virtual_host=new_name()).start()
    await topology.declare_exchange(inner, internal=True)
    with pytest.raises(AccessRefused, match="internal"):
        await client.publisher(inner).start()
    gone = new_name()
    await topology.declare_exchange(gone, "fanout")
    queue = new_name()
    await declared(client, queue)
    await topology.bind(gone, queue)
    async with client.publisher(gone) as publisher:
        await publisher.publish("", b"there")
        await topology.delete_exchange(gone)
        with pytest.raises(NoSuchExchange):
            await publisher.publish("", b"gone")
    assert await values(client, queue) == [b"there"]
    await topology.declare_exchange(gone, "fanout")
    async with client.publisher(gone) as publisher:
        assert not (await publisher.publish("", b"nowhere")).routed
        await topology.delete_exchange(gone)
        for _ in range(2):
            with pytest.raises(NoSuchExchange):
                await publisher.publish("", b"gone, and it led nowhere before")


async def test_virtual_hosts_keep_names_apart(client: Client, new_name: Names) -> None:
    """Goal: one name, two queues; the routing of one is nothing to the other. Method: a queue and `amq.fanout` in
    both."""
    host, name = new_name(), new_name()
    topology = client.admin.topology
    with pytest.raises(NoSuchVirtualHost):
        await client.admin.declare(qualified(host, name))
    await topology.add_virtual_host(host)
    await declared(client, name, qualified(host, name))
    await topology.bind("amq.fanout", name, virtual_host=host)
    async with client.publisher("amq.fanout", virtual_host=host) as publisher:
        assert set((await publisher.publish("k", b"v")).receipts) == {name}
    assert (await values(client, qualified(host, name)), await values(client, name)) == ([b"v"], [])
    (info,) = [each for each in await topology.virtual_hosts() if each.name == host]
    assert (info.exchanges, info.bindings, info.queues) == (0, 1, 1)


async def test_a_headers_exchange_looks_at_each_message(client: Client, new_name: Names, queue: str) -> None:
    exchange = new_name()
    await client.admin.topology.declare_exchange(exchange, "headers")
    await client.admin.topology.bind(exchange, queue, arguments={"x-match": "any", "kind": "a", "size": 7})
    async with client.publisher(exchange) as publisher:
        routed = [
            (await publisher.publish("", b"v", headers=headers)).routed
            for headers in ({"kind": b"a"}, {"kind": b"b"}, {"size": b"7"}, {})
        ]
    assert routed == [True, False, True, False]


async def test_flush_raises_what_nobody_has_heard(client: Client, new_name: Names) -> None:
    """Goal: an error is told once, to whoever waits first. Method: one awaited, one not."""
    exchange = new_name()
    await client.admin.topology.declare_exchange(exchange)
    publisher = await client.publisher(exchange, mandatory=True).start()
    heard = await publisher.hand_over("k", b"v")
    with pytest.raises(Unroutable):
        await heard
    await publisher.flush()
    await publisher.hand_over("l", b"v")
    with pytest.raises(Unroutable, match="'l'"):
        await publisher.flush()
    await publisher.close()


async def test_two_publishers_and_a_binder_at_once(client: Client, other: Client, new_name: Names) -> None:
    """Goal: no deadlock between routing anew and what is handed over meanwhile. Method: two tasks publish through one
    publisher and one through another, while a third binds and unbinds."""
    exchange, always, moving = new_name(), new_name(), new_name()
    await declared(client, always, moving)
    topology = other.admin.topology
    await topology.declare_exchange(exchange, "fanout")
    await topology.bind(exchange, always)

    async def bind_and_unbind() -> None:
        for _ in range(5):
            await topology.bind(exchange, moving)
            await topology.unbind(exchange, moving)

    async with client.publisher(exchange) as one, other.publisher(exchange, batch_bytes=1024) as two:

        async def publish(publisher: object, first: int) -> None:
            assert publisher in (one, two)
            for number in range(first, first + 200):
                published = await (one if publisher is one else two).publish("", b"%d" % number)
                assert always in published.receipts

        async with asyncio.timeout(30):
            await asyncio.gather(publish(one, 0), publish(one, 1_000), publish(two, 2_000), bind_and_unbind())
    got = await values(client, always)
    for first in (0, 1_000, 2_000):
        mine = [int(value) for value in got if first <= int(value) < first + 1_000]
        assert mine == list(range(first, first + 200))


def test_without_await_it_is_the_same(shared_cluster: Cluster, new_name: Names) -> None:
    """Goal: the synchronous face does what the other one does. Method: declare, bind, publish one and many, unroutable,
    unbind; a publisher that is not started says so."""
    exchange, queue = new_name(), new_name()
    with SyncClient(*shared_cluster.servers) as client:
        client.admin.declare(queue)
        topology = client.admin.topology
        topology.declare_exchange(exchange, "topic")
        topology.bind(exchange, queue, "k.#")
        with pytest.raises(Closed, match="not started"):
            client.publisher(exchange).publish("k", b"v")
        with client.publisher(exchange, mandatory=True) as publisher:
            assert set(publisher.publish("k", b"0").receipts) == {queue}
            assert len(publisher.publish_many([("k.x", b"1"), ("k.y", b"2")])) == 2
            with pytest.raises(BadRequest, match="routing key"):
                publisher.publish_many([("k" * 256, b"no"), ("k.z", b"3")])
            with pytest.raises(Unroutable):
                publisher.publish("other", b"v")
            topology.unbind(exchange, queue, "k.#")
            with pytest.raises(Unroutable):
                publisher.publish_many([("k", b"v"), ("k", b"v")])
        assert queue not in [each.destination for each in topology.routing().bindings]
        with client.consumer(queue, start="earliest", until="confirmed") as consumer:
            assert [bytes(record.value or b"") for record in consumer] == [b"0", b"1", b"2", b"3"]


async def test_producers_that_nobody_needs_any_more_go_and_come_again(
    client: Client, new_name: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a queue for each answer fills no memory, and no message is lost or turned round by that. Method: room for
    two; many messages to five queues in turn, and a fanout to all of them, whose producers are started together."""
    monkeypatch.setattr(queue_producers, "KEPT_MAX", 2)
    monkeypatch.setattr(queue_producers, "IDLE_KEPT_MAX", 2)
    names = [new_name() for _ in range(5)]
    await declared(client, *names)
    async with client.publisher("") as publisher:
        handed = [await publisher.hand_over(names[at % 5], b"%d" % at) for at in range(200)]
        for each in handed:
            assert (await each).routed
        for _ in range(2):
            await publisher.publish(names[0], b"last")
        assert len(publisher._producers) == 2
    exchange = new_name()
    await client.admin.topology.declare_exchange(exchange, "fanout")
    await client.admin.topology.bind_all([Binding(exchange, name) for name in names])
    async with client.publisher(exchange) as publisher:
        assert set((await publisher.publish("", b"all")).receipts) == set(names)
    found = {name: await values(client, name) for name in names}
    for at, name in enumerate(names):
        mine = [b"%d" % each for each in range(200) if each % 5 == at]
        assert found[name] == [*mine, *([b"last"] * 2 if at == 0 else []), b"all"]
