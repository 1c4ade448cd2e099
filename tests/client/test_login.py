"""Users and permissions on a real node: who gets in, and what each may do there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorlog.broker.session.authorization import Gate
from mirrorlog.broker.session.logins import Gatekeeper
from mirrorlog.client import Client
from mirrorlog.cluster.state.topology import User
from mirrorlog.errors import (
    AccessRefused,
    BadRequest,
    ConnectionLost,
    InUse,
    LimitReached,
    LoginFailed,
    MirrorlogError,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire import endpoint
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.queues import Done, GetMetadata, Metadata
from mirrorlog.wire.messages.topology import DeleteUser, Login
from mirrorlog.wire.names import qualified
from mirrorlog.wire.routing import Binding
from tests.process.clusters import fast_cluster

PASSWORDS = {name: f"{name}'s" for name in ("admin", "writer", "reader", "nobody")}


@pytest.fixture(scope="module")
def guarded() -> Iterator[Cluster]:
    """One node with four users and a queue `orders`."""
    with fast_cluster(1) as cluster:
        asyncio.run(give_users(cluster))
        yield cluster


async def give_users(cluster: Cluster) -> None:
    async with Client(*cluster.servers) as client:
        await client.admin.declare("orders")
        await client.admin.declare("other")
        await client.admin.topology.set_user("admin", password_hash=hashed(PASSWORDS["admin"]), tags=["administrator"])
    async with as_user(cluster, "admin") as client:
        topology = client.admin.topology
        for name in ("writer", "reader", "nobody"):
            await topology.set_user(name, password_hash=hashed(PASSWORDS[name]))
        await topology.set_permissions("writer", configure="^new", write="^(orders|new)", read="^amq\\.")
        await topology.set_permissions("reader", configure="", write="", read="^orders$")
        await topology.set_permissions("admin", configure=".*", write=".*", read=".*")


def as_user(cluster: Cluster, name: str, password: str | None = None, **options: Any) -> Client:
    return Client(*cluster.servers, user=name, password=PASSWORDS[name] if password is None else password, **options)


@pytest.mark.parametrize(("name", "password"), [("admin", "wrong"), ("admin", ""), ("stranger", "admin's")])
async def test_a_wrong_name_and_a_wrong_password_are_one_answer(guarded: Cluster, name: str, password: str) -> None:
    """Goal: who guesses learns nothing of names. Method: each; the text differs in the name that was given only."""
    with pytest.raises(LoginFailed, match=f"no user '{name}' with that password"):
        await Client(*guarded.servers, user=name, password=password).connect()


async def test_clients_can_be_given_their_logins_before_the_first_user() -> None:
    """Goal: a running system gets users without anybody being refused. Method: a client with a login before there are
    users; the first user is made, by that name; what the client asks then is answered, for it has logged in again.
    Limits are told with their names."""
    with fast_cluster(1) as cluster:
        async with Client(*cluster.servers, user="ann", password="a") as early:
            await early.admin.declare("q")
            topology = early.admin.topology
            await topology.set_user("ann", password_hash=hashed("a"), tags=["administrator"])
            await topology.set_permissions("ann", configure=".*", write=".*", read=".*")
            assert [each.name for each in await topology.users()] == ["ann"]
            await topology.set_user("ann", password_hash=hashed("b"))
            assert (await topology.users())[0].tags == ["administrator"]
            await topology.add_virtual_host("v")
            await topology.set_permissions("ann", configure=".*", write="", read="", virtual_host="v")
            await early.admin.declare(qualified("v", "q"))
            with pytest.raises(InUse) as told:
                await topology.delete_virtual_host("v")
            assert told.value.details == {"queues": 1}


async def test_who_does_not_log_in_may_do_nothing(guarded: Cluster) -> None:
    """Goal: every way is shut. Method: requests, a publish and a fetch of a connection without a user."""
    async with Client(*guarded.servers) as client:
        for ask in (
            client.admin.queues(),
            client.admin.status(),
            client.admin.declare("x"),
            client.admin.topology.users(),
            client.admin.topology.set_user("me", password_hash=hashed("x"), tags=["administrator"]),
            client.producer("orders").start(),
        ):
            with pytest.raises(LoginFailed, match="log in first"):
                await ask
        connection = await client.any_connection()
        with pytest.raises(MirrorlogError, match="log in first"):
            await connection.fetch(queue_id=1, epoch=0, queue_offset=0, max_bytes=1024, wait_ms=0, timeout_ms=5_000)


@pytest.mark.long
async def test_who_guesses_passwords_is_cut_off_and_sends_little(guarded: Cluster) -> None:
    """Goal: strangers cost a node little. Method: a connection on which logins fail is closed after the third; one that
    has not logged in sends a frame as large as those of users."""
    async with Client(*guarded.servers) as client:
        connection = await client.any_connection()
        for _ in range(3):
            with pytest.raises(LoginFailed):
                await connection.request(Login(user="admin", password="guess"), Done, timeout_ms=9_000)
        with pytest.raises(ConnectionLost):
            await connection.request(Login(user="admin", password=PASSWORDS["admin"]), Done, timeout_ms=9_000)
    large = GetMetadata(queues=["x" * 1_000_000])
    async with Client(*guarded.servers) as client, as_user(guarded, "admin") as admin:
        with pytest.raises(ConnectionLost):
            await (await client.any_connection()).request(large, Metadata, timeout_ms=9_000)
        assert (await (await admin.any_connection()).request(large, Metadata, timeout_ms=9_000)).missing


async def test_writing_needs_the_right_to_write(guarded: Cluster) -> None:
    async with as_user(guarded, "writer") as client:
        async with client.producer("orders") as producer:
            await producer.send(b"v")
        async with client.producer("other") as producer:
            with pytest.raises(AccessRefused, match="'writer' may not write 'other'"):
                await producer.send(b"v")


async def test_reading_needs_the_right_to_read(guarded: Cluster) -> None:
    async with as_user(guarded, "admin") as client, client.producer("orders") as producer:
        await producer.send(b"v")
    async with as_user(guarded, "reader") as client:
        async with client.consumer("orders", start="earliest", until="confirmed") as consumer:
            assert [record.value async for record in consumer]
        with pytest.raises(AccessRefused, match="'reader' may not read 'other'"):
            async with client.consumer("other", start="earliest", until=1) as consumer:
                await anext(aiter(consumer))
        async with client.producer("orders") as producer:
            with pytest.raises(AccessRefused, match="'reader' may not write 'orders'"):
                await producer.send(b"v")


async def test_declaring_and_binding_need_rights_to_both_ends(guarded: Cluster) -> None:
    """Goal: configure to declare; read from the source and write to the destination to bind. Method: each with and
    without."""
    async with as_user(guarded, "writer") as client:
        topology = client.admin.topology
        await client.admin.declare("new-queue")
        with pytest.raises(AccessRefused, match="configure 'mine'"):
            await client.admin.declare("mine")
        await topology.declare_exchange("new-exchange")
        with pytest.raises(AccessRefused, match="configure 'mine'"):
            await topology.declare_exchange("mine")
        with pytest.raises(AccessRefused, match="configure 'mine'"):
            await topology.delete_exchange("mine")
        await topology.bind("amq.fanout", "new-queue")
        with pytest.raises(AccessRefused, match="read 'new-exchange'"):
            await topology.bind("new-exchange", "new-queue")
        with pytest.raises(AccessRefused, match="write 'other'"):
            await topology.bind("amq.fanout", "other")
        with pytest.raises(AccessRefused, match="write 'other'"):
            await topology.unbind("amq.fanout", "other")
        with pytest.raises(AccessRefused, match="read 'new-one'"):
            await topology.declare_exchange("new-one", alternate="new-exchange")
        async with client.publisher("amq.fanout") as publisher:
            assert (await publisher.publish("", b"v")).routed


async def test_what_changes_the_cluster_needs_an_administrator(guarded: Cluster) -> None:
    async with as_user(guarded, "nobody") as client:
        topology = client.admin.topology
        for ask in (
            topology.add_virtual_host("v"),
            topology.delete_user("reader"),
            topology.set_permissions("nobody", configure=".*", write=".*", read=".*"),
            topology.users(),
            client.admin.drain(),
            client.admin.status(),
            topology.routing(),
        ):
            with pytest.raises(AccessRefused):
                await ask
    async with as_user(guarded, "admin") as client:
        users = {each.name: each for each in await client.admin.topology.users()}
        assert set(users) == set(PASSWORDS)
        assert users["reader"].permissions[0].read == "^orders$"
        assert (await client.admin.status()).logs


async def test_bad_expressions_and_hashes_are_refused_where_they_are_asked_for(guarded: Cluster) -> None:
    async with as_user(guarded, "admin") as client:
        with pytest.raises(BadRequest, match="repeat"):
            await client.admin.topology.set_permissions("reader", configure="(a+)+", write="", read="")
        with pytest.raises(BadRequest, match="begins with one of"):
            await client.admin.topology.set_user("reader", password_hash="plain text")


async def test_a_right_that_is_taken_away_counts_at_once_on_connections_that_are_open(guarded: Cluster) -> None:
    """Goal: what was allowed is not kept too long. Method: a producer that has sent; its right goes and comes back."""
    async with as_user(guarded, "admin") as admin, as_user(guarded, "admin") as client:
        topology = admin.admin.topology
        await topology.set_user("passing", password_hash=hashed("p"))
        await topology.set_permissions("passing", configure="", write="orders", read="")
        async with (
            Client(*guarded.servers, user="passing", password="p") as passing,
            passing.producer("orders") as producer,
        ):
            await producer.send(b"v")
            await topology.set_permissions("passing", configure="", write="", read="")
            with pytest.raises(AccessRefused):
                await producer.send(b"v")
            await topology.set_permissions("passing", configure="", write="orders", read="")
            await producer.send(b"v")
            await topology.delete_user("passing")
            with pytest.raises(MirrorlogError):
                await (await passing.any_connection()).request(GetMetadata(), Metadata, timeout_ms=5_000)
            producer.abandon()
        assert not client.closed


async def test_who_may_read_may_neither_hold_nor_send_readers_elsewhere() -> None:
    """Goal: the right to read deletes nothing and forges nothing; holds are a right of their own, and tiering is as
    much as the right to delete. Method: the same holds by users with more and more rights, and at places on the node's
    list and off it."""
    tiered = {"holder": "x", "queue_offset": 0, "lease_ms": 60_000, "tiered": True}
    held = {**tiered, "tiered": False}
    with fast_cluster(1, settings={"log.tier_locations": ["/lake"]}) as cluster:
        await give_users(cluster)
        async with as_user(cluster, "admin") as admin, as_user(cluster, "reader") as reader:
            topology, holds = admin.admin.topology, reader.admin
            for hold in (held, {**tiered, "location": "/lake/a"}):
                with pytest.raises(AccessRefused):
                    await holds.set_hold("orders", "l", **hold)
            with pytest.raises(AccessRefused, match="tag landing"):
                await holds.set_hold("orders", "l", **held)
            await topology.set_user("reader", tags=["landing"])
            await holds.set_hold("orders", "l", **held)
            for refused in (
                holds.set_hold("orders", "t", location="/lake/a", **tiered),
                holds.end_hold("orders", "l"),
                holds.end_hold("orders", "l", holder="x"),
            ):
                with pytest.raises(AccessRefused, match="may not configure 'orders'"):
                    await refused
            with pytest.raises(AccessRefused, match="may not read 'other'"):
                await holds.set_hold("other", "l", **held)
            await topology.set_permissions("reader", configure="^orders$", write="", read="^orders$")
            for elsewhere in ("/lake2/a", "/lake/../etc", "s3://lake/a"):
                with pytest.raises(AccessRefused, match=r"log\.tier_locations"):
                    await holds.set_hold("orders", "t", location=elsewhere, **tiered)
            await holds.set_hold("orders", "t", location="/lake/a", **tiered)
            assert {each.name for each in await holds.holds("orders")} == {"l", "t"}
            await holds.end_hold("orders", "l")


async def test_with_users_a_node_without_a_list_of_places_sends_nobody_to_a_table(guarded: Cluster) -> None:
    """Method: an administrator, who may do everything else."""
    async with as_user(guarded, "admin") as admin:
        with pytest.raises(AccessRefused, match=r"log\.tier_locations"):
            await admin.admin.set_hold(
                "orders", "t", holder="x", queue_offset=0, lease_ms=60_000, tiered=True, location="/lake/a"
            )


async def test_a_subscription_ends_with_the_right_to_read(guarded: Cluster) -> None:
    """Goal: what was subscribed is not read for ever, and what was in hand goes to others. Method: a subscription that
    has had a record, and a wait for a lease; the right goes; a record that comes then is delivered to neither."""
    async with as_user(guarded, "admin") as admin:
        topology = admin.admin.topology
        await admin.admin.declare("rights")
        await admin.admin.declare("rights-2")
        await topology.set_user("losing", password_hash=hashed("l"))
        await topology.set_permissions("losing", configure="", write="", read="rights")
        async with (
            admin.producer("rights") as producer,
            Client(*guarded.servers, user="losing", password="l") as losing,
            losing.subscribe("rights") as subscription,
        ):
            records = aiter(subscription)
            await producer.send(b"1")
            assert (await anext(records)).value == b"1"
            leasing = asyncio.ensure_future(losing.lease("rights-2", group="g", wait_ms=10_000))
            while "g" not in [each.group for each in (await admin.admin.groups("rights-2")).groups]:
                assert not leasing.done()
            await topology.clear_permissions("losing")
            await producer.send(b"2")
            with pytest.raises(AccessRefused, match="'losing' may not read 'rights'"):
                await anext(records)
            with pytest.raises(AccessRefused, match="'losing' may not read 'rights-2'"):
                await leasing
        async with admin.subscribe("rights") as mine:
            got = [await anext(aiter(mine)) for _ in range(2)]
            assert [each.value for each in got] == [b"1", b"2"]
            assert got[0].redelivered


async def test_a_hundred_connections_of_one_user_cost_one_slow_comparison(guarded: Cluster) -> None:
    """Goal: clients that return together do not hold the node up. Method: many logins within a bound that slow ones
    could not keep: 100 of them take ten seconds of a core."""
    clients = [as_user(guarded, "admin", connect_timeout_ms=8_000) for _ in range(100)]
    await clients[0].connect()
    async with asyncio.timeout(8):
        for client in clients[1:]:
            await client.connect()
    for client in clients:
        await client.close()


async def test_no_password_travels_where_others_may_read_it(guarded: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: neither end takes part in it. Method: a client that takes the node for another machine says nothing; a
    connection that is neither TLS nor local, on the node's side."""
    monkeypatch.setattr(endpoint, "_is_here", lambda peer, own: False)
    with pytest.raises(LoginFailed, match=r"not sent to .* without TLS"):
        await as_user(guarded, "admin").connect()
    gate = Gate(Gatekeeper(lambda: {"admin": User("h")}, str), private=False)
    with pytest.raises(LoginFailed, match="over TLS or from this machine only"):
        await gate.login(Login(user="admin", password=PASSWORDS["admin"]))


async def test_a_fetch_that_waits_ends_with_the_right_to_read(guarded: Cluster) -> None:
    """Goal: what comes after the right has gone is read by nobody. Method: a fetch that waits for the next record; the
    right goes; the fetch is answered at once, and not with the record."""
    async with as_user(guarded, "admin") as admin:
        await admin.admin.declare("waited-for")
        topology = admin.admin.topology
        await topology.set_user("waiting", password_hash=hashed("w"))
        await topology.set_permissions("waiting", configure="", write="", read=".*")
        info = await admin.queue_info("waited-for")
        async with Client(*guarded.servers, user="waiting", password="w") as waiting:
            connection = await waiting.any_connection()
            fetch = asyncio.ensure_future(
                connection.fetch(
                    queue_id=info.queue_id, epoch=0, queue_offset=0, max_bytes=1_024, wait_ms=60_000, timeout_ms=70_000
                )
            )
            await connection.request(GetMetadata(), Metadata, timeout_ms=9_000)  # the fetch is there before it
            await topology.clear_permissions("waiting")
            with pytest.raises(AccessRefused, match="'waiting' may not read 'waited-for'"):
                async with asyncio.timeout(20):
                    await fetch


async def test_who_does_not_log_in_keeps_nobody_out() -> None:
    """Goal: strangers cannot take all places. Method: a node with room for four, users, and more strangers than that;
    users get in one after the other, and stay, until all places are theirs."""
    with fast_cluster(1, settings={"limits.max_connections": 4}) as cluster:
        async with Client(*cluster.servers) as first:
            await first.admin.topology.set_user("admin", password_hash=hashed("a"), tags=["administrator"])
        strangers = [Client(*cluster.servers) for _ in range(6)]
        users = [Client(*cluster.servers, user="admin", password="a") for _ in range(4)]
        try:
            for each in strangers:
                await each.connect()
            for each in users:
                await each.connect()
            for each in users:
                await each.admin.topology.users()
            with pytest.raises(MirrorlogError):
                await Client(*cluster.servers, user="admin", password="a").connect()
        finally:
            for each in (*strangers, *users):
                await each.close()


async def test_what_is_too_large_to_be_decided_is_not_even_proposed(guarded: Cluster) -> None:
    """Goal: a refusal costs no node a write to its disk. Method: bindings, a name and an expression of a mebibyte; what
    the cluster has decided is the same number as before."""
    async with as_user(guarded, "admin") as admin:
        topology, large = admin.admin.topology, "x" * 1_300_000
        binding = Binding("amq.topic", "orders", "k", arguments={"a": large})
        status = await admin.admin.status()
        assert status.cluster is not None
        for ask in (
            topology.bind_all([binding]),
            topology.set_user("large", password_hash=None, tags=[large]),
            topology.add_virtual_host(large),
        ):
            with pytest.raises(LimitReached) as told:
                await ask
            assert told.value.details == {"limit": "max_command_bytes"}
        after = (await admin.admin.status()).cluster
        assert after is not None
        assert after.version == status.cluster.version


async def test_what_a_user_changes_is_told_with_the_name(guarded: Cluster) -> None:
    """Goal: one can tell who did it. Method: a change by an administrator, as the events of the node tell it."""
    async with as_user(guarded, "admin") as admin:
        await admin.admin.topology.add_virtual_host("by-admin")
        found = await admin.admin.events()
        (event,) = (each for each in found.events if each.details.get("virtual_host") == "by-admin")
        assert (event.kind, event.details["by"]) == ("virtual_host_added", "admin")
        assert event.text.endswith("; admin asked for it")


@pytest.mark.long
async def test_a_node_that_is_started_alone_lets_in_whom_its_disk_knows() -> None:
    """Goal: a node without a majority is not open, and an operator still reads what it has. Method: two nodes with
    users, both stopped, one started: a stranger gets nothing, not even old records; a user who logs in gets those."""
    with fast_cluster(2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as client:
            await client.admin.declare("kept")
            async with client.producer("kept") as producer:
                await producer.send(b"v")
            await client.admin.topology.set_user("admin", password_hash=hashed("a"), tags=["administrator"])
        async with Client(*cluster.servers, user="admin", password="a") as client:
            await client.admin.topology.set_permissions("admin", configure=".*", write=".*", read=".*")
            queue = await client.queue_info("kept")
        for node in cluster.nodes.values():
            node.stop()
        alone = cluster.nodes["n1"]
        alone.start()
        asked = {"queue_id": queue.queue_id, "epoch": 0, "queue_offset": 0, "max_bytes": 1_024, "wait_ms": 0}
        async with Client(alone.client, allow_stale_reads=True) as stranger:
            connection = await stranger.any_connection()
            for ask in (
                connection.request(GetMetadata(), Metadata, timeout_ms=9_000),
                connection.fetch(**asked, timeout_ms=9_000),
            ):
                with pytest.raises(MirrorlogError, match="log in first"):
                    await ask
        async with Client(alone.client, allow_stale_reads=True, user="admin", password="a") as admin:
            connection = await admin.any_connection()
            facts, _ = await connection.fetch(**asked, timeout_ms=9_000)
            assert facts.batch_count
            with pytest.raises(MirrorlogError):
                await connection.request(DeleteUser(name="admin"), Done, timeout_ms=9_000)


async def test_a_user_lists_the_queues_that_he_has_a_right_to(guarded: Cluster) -> None:
    """Goal: a list tells nobody of what is not his, and is never old. Method: lists of four users; again after a
    publish, a new queue and a change of rights, each of which must show at once."""

    async def listed(client: Client) -> dict[str, int]:
        return {each.name: each.next for each in await client.admin.queues()}

    async with (
        as_user(guarded, "admin") as admin,
        as_user(guarded, "reader") as reader,
        as_user(guarded, "writer") as writer,
        as_user(guarded, "nobody") as nobody,
    ):
        everything = await listed(admin)
        assert {"orders", "other"} <= everything.keys()
        seen = (await listed(reader)).keys()
        assert seen == {"orders"}
        assert (await listed(writer)).keys() == {name for name in everything if name == "orders" or name[:3] == "new"}
        assert await listed(nobody) == {}
        async with writer.producer("orders") as producer:
            await producer.send(b"x")
        assert (await listed(reader))["orders"] == everything["orders"] + 1
        assert (await listed(admin))["orders"] == everything["orders"] + 1
        await admin.admin.declare("orders-2")
        assert "orders-2" in await listed(admin)
        await admin.admin.topology.set_permissions("reader", configure="", write="", read="^orders")
        assert (await listed(reader)).keys() == {"orders", "orders-2"}
        await admin.admin.delete_queue("orders-2")
        await admin.admin.topology.set_permissions("reader", configure="", write="", read="^orders$")
        assert (await listed(reader)).keys() == {"orders"}
        assert "orders-2" not in await listed(admin)


async def test_administrators_hear_of_failed_logins_and_refused_rights(guarded: Cluster) -> None:
    """Goal: what is refused reaches who runs the cluster. Method: a wrong password and a refused right; the node's
    counts have both, and there is an event of each kind, whoever else was refused before."""
    async with as_user(guarded, "admin") as admin:
        before = (await admin.admin.status("n1")).counts
        with pytest.raises(LoginFailed):
            await as_user(guarded, "reader", "a guess").connect()
        async with as_user(guarded, "nobody") as nobody:
            with pytest.raises(AccessRefused):
                await nobody.admin.declare("theirs")
        after = (await admin.admin.status("n1")).counts
        assert before is not None
        assert after is not None
        assert after.logins_failed["password"] > before.logins_failed["password"]
        assert after.rights_refused["configure"] > before.rights_refused["configure"]
        told: set[str] = set()
        number = 0
        async with asyncio.timeout(30):
            while not told >= {"logins_failed", "rights_refused"}:
                answer = await admin.admin.events(after=number, wait_ms=5_000)
                told |= {event.kind for event in answer.events if event.details.get("count")}
                number = answer.events[-1].number if answer.events else number
