"""Rows: exchanges, virtual hosts and users, transactions."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import AccessRefused, LoginFailed, MirrorlogError, Unroutable
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.names import qualified
from tests.process.matrix.world import World, ack_all, again, offsets, receive

Headers = dict[str, bytes]


async def exchanges(world: World) -> AsyncGenerator[None]:
    """Fanout, topic and headers lead where they are bound, what none matches to the alternate; one that is bound or
    taken away behind the restart counts at once."""
    topology = world.client.admin.topology
    for queue in ("every", "paid", "big", "rest"):
        await world.declare(queue)
    await topology.declare_exchange("rest", "fanout")
    for kind in ("fanout", "topic", "headers"):
        await topology.declare_exchange(kind, kind, alternate="" if kind == "fanout" else "rest")
    await topology.bind("rest", "rest")
    await topology.bind("fanout", "every")
    await topology.bind("topic", "paid", "orders.*.paid")
    await topology.bind_exchange("topic", "fanout", "orders.#")
    await topology.bind("headers", "big", arguments={"x-match": "all", "size": "big"})
    yield
    expected: dict[str, list[bytes]] = {"every": [], "paid": [], "big": [], "rest": []}
    await _publish_to_all(world, b"before", expected)
    yield
    await _publish_to_all(world, b"behind", expected)
    async with world.client.publisher("fanout") as publisher:
        await topology.unbind("fanout", "every")
        await topology.bind("fanout", "rest")
        assert set((await publisher.publish("", b"bound anew")).receipts) == {"rest"}
        expected["rest"].append(b"bound anew")
    yield
    for queue, values in expected.items():
        assert await world.values(queue) == values, queue
    routing = await topology.routing()
    bound = {(each.source, each.destination) for each in routing.bindings}
    assert {("fanout", "rest"), ("topic", "paid"), ("topic", "fanout"), ("headers", "big"), ("rest", "rest")} <= bound
    assert ("fanout", "every") not in bound


async def unroutable(world: World) -> AsyncGenerator[None]:
    """What leads nowhere is told to who asks, and a publish behind the answer to a bind meets it, also of who has been
    told so just before."""
    topology = world.client.admin.topology
    await world.declare("found")
    await topology.declare_exchange("nowhere", "topic")
    yield
    async with world.client.publisher("nowhere", mandatory=True) as publisher:
        for round_, key in enumerate(("before", "behind")):
            with pytest.raises(Unroutable):
                await publisher.publish(key, b"lost")
            await topology.bind("nowhere", "found", key)
            assert set((await publisher.publish(key, b"found")).receipts) == {"found"}
            await topology.unbind("nowhere", "found", key)
            with pytest.raises(Unroutable):
                await publisher.publish(key, b"lost")
            assert len(await world.values("found")) == round_ + 1
            yield
    async with world.client.publisher("nowhere") as publisher:
        assert not (await publisher.publish("behind", b"lost")).routed
        assert publisher.stats.unroutable == 1


async def _publish_to_all(world: World, value: bytes, expected: dict[str, list[bytes]]) -> None:
    """One message of each kind, where it must land, and by an exchange to an exchange."""
    for exchange, key, headers, queues in (
        ("fanout", "any", {}, ["every"]),
        ("topic", "orders.17.paid", {}, ["every", "paid"]),
        ("topic", "orders.17.late", {}, ["every"]),
        ("topic", "letters", {}, ["rest"]),
        ("headers", "", {"size": b"big"}, ["big"]),
        ("headers", "", {"size": b"small"}, ["rest"]),
        ("", "paid", {}, ["paid"]),
    ):
        async with world.client.publisher(exchange) as publisher:
            published = await publisher.publish(key, value, headers=headers)
        assert sorted(published.receipts) == queues, (exchange, key, headers)
        for queue in queues:
            expected[queue].append(value)


async def virtual_hosts_and_rights(world: World) -> AsyncGenerator[None]:
    """What a user may holds on connections that are open and on new ones, of this virtual host alone; the same name in
    another one is another queue."""
    topology, host, user = world.client.admin.topology, "shop", "seller"
    mine, theirs = qualified(host, "own-q"), qualified(host, "their-q")
    await topology.add_virtual_host(host)
    await topology.set_user(user, password_hash=hashed("pw"))
    await topology.set_permissions("admin", configure=".*", write=".*", read=".*", virtual_host=host)
    await topology.set_permissions(user, configure="^own-", write="^own-", read="^own-", virtual_host=host)
    await world.declare("own-q")
    await world.declare(theirs)
    yield
    client = await world.connect(user=user, password="pw")
    await client.admin.declare(mine)
    await _has_rights(world, client, mine, theirs, count=1)
    yield
    await _has_rights(world, client, mine, theirs, count=2)
    newcomer = await world.connect(user=user, password="pw")
    await _has_rights(world, newcomer, mine, theirs, count=3)
    with pytest.raises(LoginFailed):
        await world.connect(user=user, password="another")
    with pytest.raises(MirrorlogError):
        async with Client(*world.cluster.servers) as stranger:
            await stranger.admin.queues()
    await topology.set_permissions(user, configure="", write="", read="^own-", virtual_host=host)
    async with client.producer(mine) as producer:
        with pytest.raises(AccessRefused):
            await producer.send(b"no more")
    yield
    assert len(await world.values(mine)) == 3
    assert await world.values("own-q") == await world.values(theirs) == []
    assert [each.name for each in await topology.virtual_hosts()] == ["/", host]
    assert [each.name for each in await topology.users()] == ["admin", user]


async def _has_rights(world: World, client: Client, mine: str, theirs: str, *, count: int) -> None:
    async with client.producer(mine) as producer:
        await producer.send(b"mine")
    async with client.consumer(mine, start="earliest", until="confirmed") as consumer:
        assert len([each async for each in consumer]) == count
    for queue in (theirs, "own-q"):
        with pytest.raises(AccessRefused):
            await client.admin.declare(queue)
        async with client.producer(queue) as producer:
            with pytest.raises(AccessRefused):
                await producer.send(b"not mine")
        with pytest.raises(AccessRefused):
            await client.subscribe(queue).start()


async def transaction_with_acks(world: World) -> AsyncGenerator[None]:
    """Records move from one queue to two others, each once; what was rolled back did not; what was in hand and not
    committed comes again."""
    for queue in ("tx-in", "tx-out", "tx-audit"):
        await world.declare(queue, x_log_group="matrix")
    await world.publish("tx-in", 6)
    yield
    async with world.client.subscribe("tx-in", prefetch=6) as subscription:
        taken = await receive(subscription, 6)
        async with world.client.transaction() as tx:
            for each in (taken[0], taken[3]):
                tx.send("tx-out", each.value)
                tx.send("tx-audit", each.value)
                tx.ack(each)
        undone = world.client.transaction()
        undone.send("tx-out", b"never")
        undone.ack(taken[1])
        await undone.rollback()
        yield
        left = await receive(subscription, 4)
        again(left, [1, 2, 4, 5])
        async with world.client.transaction() as tx:
            for each in left[:3]:
                tx.send("tx-out", each.value)
                tx.ack(each)
        yield
        (found,) = (await world.client.admin.groups("tx-in")).groups
        assert (found.floor, found.unsettled) == (5, 1)
        assert await world.values("tx-out") == [b"record %d" % number for number in (0, 3, 1, 2, 4)]
        assert await world.values("tx-audit") == [b"record 0", b"record 3"]
        await left[3].ack()
    await world.is_settled("tx-in", 6)
    async with world.client.subscribe("tx-out") as moved:
        records = await receive(moved, 5)
        assert offsets(records) == list(range(5))
        await ack_all(records)
