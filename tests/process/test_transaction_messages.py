"""Messages to exchanges, and returns and rejections, within transactions, on real nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mirrorlog.client import Client, Delivered
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import (
    BadRequest,
    CrossLogTransaction,
    MirrorlogError,
    NoSuchExchange,
    NotGranted,
    Unroutable,
)
from mirrorlog.wire.frames import How
from mirrorlog.wire.transaction_frames import settle_part, transact_payload
from tests.process.clusters import eventually, fast_cluster
from tests.process.test_transactions import declare, values

pytestmark = pytest.mark.process


async def bound(client: Client, exchange: str, kind: str = "topic", **bindings: str) -> None:
    """Queues by their names, each with the pattern that leads there."""
    await client.admin.topology.declare_exchange(exchange, kind)
    for queue, pattern in bindings.items():
        await client.admin.topology.bind(exchange, queue, pattern)


@pytest.mark.long
async def test_a_message_to_an_exchange_lands_with_the_rest_or_not_at_all() -> None:
    """Goal: one step for what is published to queues, to exchanges, and acknowledged. Method: two mirrors; a record is
    acknowledged, one sent, two published of which one leads to two queues and one to none; each says where it is, and a
    queue's records have the order of the calls."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await declare(client, "in", "a", "b")
            await bound(client, "events", a="order.*", b="order.new")
            async with client.producer("in") as producer:
                await producer.send(b"1")
            async with client.subscribe("in") as subscription:
                (taken,) = await subscription.receive(1, timeout_ms=10_000)
                tx = client.transaction()
                assert tx.send("a", b"first") == 0
                new = tx.publish("events", "order.new", b"second", headers={"h": b"1"}, priority=0)
                lost = tx.publish("events", "bill.new", b"nowhere")
                assert tx.send("b", b"third") == 1
                tx.ack(taken)
                with pytest.raises(BadRequest, match="not committed"):
                    new.result()
                receipts = await tx.commit()
            assert [each.queue_offset for each in receipts] == [0, 1]
            assert (sorted(new.result().receipts), lost.result().routed) == (["a", "b"], False)
            assert {queue: each.queue_offset for queue, each in new.result().receipts.items()} == {"a": 1, "b": 0}
            assert (await values(client, "a"), await values(client, "b")) == (
                [b"first", b"second"],
                [b"second", b"third"],
            )
            async with client.consumer("b", start="earliest", until="confirmed") as consumer:
                records = [record async for record in consumer]
            assert [record.key for record in records] == [b"order.new", None]
            async with client.subscribe("in") as again:
                assert await again.receive(1, timeout_ms=300) == []


async def test_a_transaction_meets_bindings_that_were_made_before_its_commit() -> None:
    """Goal: a commit behind the answer to a bind is routed by it. Method: another client binds and unbinds between
    commits of one that knows the bindings from before; the version of a node refuses what was routed by an older one,
    and it is routed anew; nothing is stored twice."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client, Client(*cluster.servers) as other:
        await declare(client, "a", "b")
        await bound(client, "events", "fanout", a="")

        async def commit(value: bytes) -> list[str]:
            tx = client.transaction()
            message = tx.publish("events", "k", value)
            await tx.commit()
            return sorted(message.result().receipts)

        assert await commit(b"1") == ["a"]
        await other.admin.topology.bind("events", "b", "")
        assert await commit(b"2") == ["a", "b"]
        await other.admin.topology.unbind("events", "a", "")
        assert await commit(b"3") == ["b"]
        await other.admin.topology.unbind("events", "b", "")
        assert await commit(b"4") == []
        await other.admin.topology.bind("events", "a", "")
        assert await commit(b"5") == ["a"], "what led nowhere is asked for anew"
        assert (await values(client, "a"), await values(client, "b")) == ([b"1", b"2", b"5"], [b"2", b"3"])


@pytest.mark.long
async def test_bindings_that_change_all_the_time_lose_and_double_nothing() -> None:
    """Goal: each commit lands once, by one state of the bindings. Method: 60 commits to an exchange, while another
    client binds one queue again and again; one queue is bound all the time."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client, Client(*cluster.servers) as other:
        await declare(client, "always", "sometimes")
        await bound(client, "events", "fanout", always="")
        told: list[bytes] = []

        async def change() -> None:
            while True:
                await other.admin.topology.bind("events", "sometimes", "")
                await other.admin.topology.unbind("events", "sometimes", "")

        changing = asyncio.ensure_future(change())
        for number in range(60):
            tx = client.transaction()
            message = tx.publish("events", "k", b"%d" % number)
            tx.send("always", b"beside %d" % number)
            await tx.commit()
            if "sometimes" in message.result().receipts:
                told.append(b"%d" % number)
        changing.cancel()
        expected = [value for number in range(60) for value in (b"%d" % number, b"beside %d" % number)]
        assert await values(client, "always") == expected
        assert await values(client, "sometimes") == told


async def test_a_message_that_leads_out_of_the_log_refuses_all_of_it() -> None:
    """Goal: nothing is stored in part, and the reason is told. Method: an exchange leads to a queue of another log; an
    exchange that is not there, one that is internal, a mandatory message that leads nowhere, a queue of another virtual
    host, the default exchange."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await declare(client, "a")
        await client.admin.declare("other", {"flush": "disk", "copies": 1})
        await bound(client, "both", "fanout", a="", other="")
        await client.admin.topology.declare_exchange("inside", "fanout", internal=True)

        async def refused(kind: type[MirrorlogError], match: str, exchange: str, *, mandatory: bool = False) -> None:
            tx = client.transaction(timeout_ms=10_000)
            tx.send("a", b"v")
            message = tx.publish(exchange, "k", b"v", mandatory=mandatory)
            with pytest.raises(kind, match=match):
                await tx.commit()
            with pytest.raises(BadRequest, match="not committed"):
                message.result()

        await refused(
            CrossLogTransaction, r"queue 'other' \(to which exchange 'both' leads\) in log .*same x-log-group", "both"
        )
        await refused(NoSuchExchange, "nobody", "nobody")
        await refused(MirrorlogError, "internal", "inside")
        await client.admin.topology.unbind("both", "a", "")
        await client.admin.topology.unbind("both", "other", "")
        await refused(Unroutable, "nothing of the transaction was stored", "both", mandatory=True)
        tx = client.transaction()
        tx.send("a", b"v")
        with pytest.raises(BadRequest, match="use send"):
            tx.publish("", "a", b"v")
        tx.publish("both", "k", b"v", virtual_host="v")
        with pytest.raises(BadRequest, match="of one virtual host"):
            tx.publish("both", "k", b"v")
        with pytest.raises(BadRequest, match="queue a is not in virtual host v"):
            await tx.commit()
        assert await values(client, "a") == []
        async with client.transaction() as tx:  # after all of that, what leads to one log counts
            await client.admin.topology.bind("both", "a", "")
            tx.publish("both", "k", b"w", mandatory=True)
        assert await values(client, "a") == [b"w"]


async def test_a_commit_with_nothing_that_leads_anywhere_ends_well() -> None:
    """Goal: what is unroutable is dropped, as a publisher does. One message that leads nowhere, and nothing else; then
    with an acknowledgement, which counts."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await declare(client, "in")
        await bound(client, "events")
        tx = client.transaction()
        message = tx.publish("events", "k", b"v")
        assert await tx.commit() == []
        assert not message.result().routed
        async with client.producer("in") as producer:
            await producer.send(b"1")
        async with client.subscribe("in") as subscription:
            (taken,) = await subscription.receive(1, timeout_ms=10_000)
            async with client.transaction() as tx:
                tx.publish("events", "k", b"v")
                tx.ack(taken)
        async with client.subscribe("in") as again:
            assert await again.receive(1, timeout_ms=300) == []


async def test_returns_and_rejections_count_with_the_rest_or_not_at_all() -> None:
    """Goal: what could not be done goes back, or dies, in the step that says so elsewhere. Method: four records: one is
    acknowledged, one returned, one rejected (its dead letter arrives), one returned with a delay; in a transaction that
    is refused nothing of that counts, and then in one that is not."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await client.admin.declare("dead")
            letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
            await client.admin.declare("in", {"x-log-group": "together", **letters})
            await declare(client, "said")
            async with client.producer("in") as producer:
                for value in (b"done", b"again", b"bad", b"later"):
                    await producer.send(value)
            async with client.subscribe("in") as subscription:
                taken = {each.value: each for each in await subscription.receive(4, timeout_ms=10_000)}
                for queue in ("nobody", "said"):
                    tx = client.transaction()
                    tx.send(queue, b"what became of them")
                    tx.ack(taken[b"done"])
                    tx.nack(taken[b"again"])
                    tx.nack(taken[b"bad"], requeue=False)
                    tx.nack(taken[b"later"], delay_ms=100)
                    if queue == "nobody":
                        with pytest.raises(MirrorlogError, match="nobody"):
                            await tx.commit()
                        assert await subscription.receive(1, timeout_ms=200) == [], "they are in hand as before"
                    else:
                        await tx.commit()
                found = [*await subscription.receive(1, timeout_ms=10_000)]
                found += await subscription.receive(1, timeout_ms=10_000)
                assert [(each.value, each.redelivered, each.attempts) for each in found] == [
                    (b"again", True, 1),
                    (b"later", True, 1),
                ]
                with pytest.raises(NotGranted):
                    await taken[b"again"].ack()
                for each in found:
                    await each.ack()
            async with client.subscribe("dead") as dead:
                (letter,) = await dead.receive(1, timeout_ms=10_000)
                assert letter.value == b"bad"
            assert await values(client, "said") == [b"what became of them"]
            async with client.subscribe("in") as again:
                assert await again.receive(1, timeout_ms=300) == []


async def test_a_return_of_what_went_back_by_itself_counts_if_nobody_else_has_it() -> None:
    """Goal: a lost connection costs no transaction that gives back, and none is told that it gave back what another one
    has. Method: a subscription's connection is lost with a record in hand, which comes again with the one attempt that
    this costs; sent and returned: it counts. Lost again, the record goes to another reader: refused, nothing is
    published; settled by that one: the same."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client, Client(*cluster.servers) as other:
        await declare(client, "in", "said")
        async with client.producer("in") as producer:
            await producer.send(b"1")

        async def give_back(taken: Delivered, value: bytes) -> None:
            tx = client.transaction(timeout_ms=10_000)
            tx.send("said", value)
            tx.nack(taken)
            await tx.commit()

        async with client.subscribe("in") as subscription:
            (taken,) = await subscription.receive(1, timeout_ms=10_000)
            assert subscription.session is not None
            subscription.session.connection.close()
            (again,) = await subscription.receive(1, timeout_ms=10_000)
            assert (again.value, again.attempts) == (b"1", 1)
            await give_back(taken, b"gave it back")
            assert await values(client, "said") == [b"gave it back"]
            async with other.subscribe("in", priority=1) as late:
                subscription.session.connection.close()
                (theirs,) = await late.receive(1, timeout_ms=10_000)
                assert theirs.attempts == 2
                with pytest.raises(NotGranted, match="somebody else's hands"):
                    await give_back(again, b"in other hands")
                await theirs.ack()
                with pytest.raises(NotGranted, match="are settled already"):
                    await give_back(again, b"settled")
            assert await values(client, "said") == [b"gave it back"]


@pytest.mark.long
async def test_a_commit_that_routes_and_gives_back_goes_over_a_failover_as_one(tmp_path: Path) -> None:
    """Goal: what is published to an exchange, acknowledged, rejected and given back counts together at the next master,
    too, and once. Method: both mirrors stand still while it is committed; kill -9 the master, let the mirrors go on."""
    async with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await declare(client, "in", "out", "copy")
            await bound(client, "events", "fanout", out="", copy="")
            async with client.producer("in") as producer:
                for value in (b"done", b"bad", b"again"):
                    await producer.send(value)
            async with client.subscribe("in") as subscription:
                done, bad, again = await subscription.receive(3, timeout_ms=10_000)
                async with client.transaction() as tx:
                    tx.publish("events", "k", b"before")
                master, mirrors = cluster.master, cluster.mirrors
                end = master.status().logs[0].end
                for mirror in mirrors:
                    mirror.pause()
                tx = client.transaction(timeout_ms=60_000)
                message = tx.publish("events", "k", b"moved")
                tx.ack(done)
                tx.nack(bad, requeue=False)
                tx.nack(again)
                commit = asyncio.ensure_future(tx.commit())
                await asyncio.to_thread(eventually, lambda: master.status().logs[0].end > end, "it is appended")
                master.kill()
                for mirror in mirrors:
                    mirror.resume()
                assert await commit == []
                assert {queue: each.queue_offset for queue, each in message.result().receipts.items()} == {
                    "out": 1,
                    "copy": 1,
                }
                assert await values(client, "out") == await values(client, "copy") == [b"before", b"moved"]
                (back,) = await subscription.receive(1, timeout_ms=10_000)
                assert (back.value, back.redelivered) == (b"again", True)
                await back.ack()
                assert await subscription.receive(1, timeout_ms=300) == []


async def test_the_node_refuses_ways_to_settle_that_are_no_part_of_a_transaction() -> None:
    """Goal: every input from outside has a check. Frames by hand: a release, an extension, and a way that is none."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await declare(client, "in")
        async with client.producer("in") as producer:
            await producer.send(b"1")
        async with client.subscribe("in") as subscription:
            (taken,) = await subscription.receive(1, timeout_ms=10_000)
            session = subscription.session
            assert session is not None
            for how in (How.RELEASE, How.EXTEND, 77):
                part = settle_part((0, 1), subscription=session.number, epoch=session.epoch, how=how, again=False)
                payload = transact_payload([part], [], level=255, durability=0, deadline_ms=1_000)
                with pytest.raises(BadRequest):
                    await session.connection.transact(payload, timeout_ms=5_000)
            await taken.ack()


def test_the_synchronous_face_publishes_and_gives_back() -> None:
    """Goal: the same without `await`. A message to an exchange and a rejection in one block."""
    with fast_cluster(1) as cluster, SyncClient(*cluster.servers) as client:
        for queue in ("in", "a"):
            client.admin.declare(queue, {"x-log-group": "together"})
        client.admin.topology.declare_exchange("events", "fanout")
        client.admin.topology.bind("events", "a", "")
        with client.producer("in") as producer:
            producer.send(b"1")
        with client.subscribe("in") as subscription:
            (taken,) = subscription.receive(1, timeout_ms=10_000)
            with client.transaction() as tx:
                message = tx.publish("events", "k", b"v")
                tx.nack(taken, requeue=False)
            assert message.result().receipts["a"].queue_offset == 0
        assert client.admin.groups("in").groups[0].unsettled == 0
