"""Queues are deleted while nodes die between the steps, publishers and readers go on, and landings hold."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import (
    ConnectionLost,
    InSyncReplicasNotEnough,
    InUse,
    MirrorlogError,
    NoSuchQueue,
    OutcomeUnknown,
    Refused,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.messages.queues import Deleted, DeleteQueue, QueueInfo
from tests.process.clusters import eventually, fast_cluster

DIES = '''
import os, signal

def dies_at(step):
    """The first node that comes to the step dies there; the others, and its next run, do not."""
    try:
        os.rename(os.environ["DIE_AT"] + f".{step}", os.environ["DIE_AT"] + ".died")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

if "DIE_AT" in os.environ:
    from mirrorlog.broker.membership.cluster_view import NodeView

    def around(name, before, behind):
        inner = getattr(NodeView, name)
        async def wrapped(*args):
            dies_at(before)
            await inner(*args)
            dies_at(behind)
        setattr(NodeView, name, wrapped)

    around("unbind_queues", 1, 2)
    around("remove_queues", 3, 4)
'''
"""For the interpreter of every node: a node dies by SIGKILL before the cluster is asked for step 1, when it has decided
it, when step 2 is confirmed, and when step 3 is decided."""

STEPS = {1: "nothing done", 2: "unbound", 3: "logged and confirmed", 4: "its place taken away"}


@asynccontextmanager
async def cluster_of(directory: Path, **settings: object) -> AsyncIterator[tuple[Cluster, Client]]:
    chosen = {"cluster.node_timeout_ms": 600, **settings}
    with fast_cluster(3, min_in_sync=2, data_dir=directory, settings=chosen) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers, request_timeout_ms=20_000) as client:
            yield cluster, client


def start_dead(cluster: Cluster) -> None:
    dead = [node for node in cluster.nodes.values() if not node.running]
    for node in dead:
        node.launch()
    for node in dead:
        node.wait_serving()


async def declared(client: Client, queue: str) -> QueueInfo:
    """As soon as enough copies are up again."""
    async with asyncio.timeout(15):
        while True:
            with suppress(InSyncReplicasNotEnough):
                return await client.admin.declare(queue)
            await asyncio.sleep(0.02)


async def fill(client: Client, queue: str, count: int) -> None:
    async with client.producer(queue) as producer:
        for number in range(count):
            await producer.send(b"%d" % number)


async def values(client: Client, queue: str) -> list[bytes]:
    async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [bytes(record.value or b"") async for record in consumer]


async def all_given(given: AsyncIterator[object]) -> None:
    async for _ in given:
        pass


async def bound(client: Client, queue: str) -> bool:
    return any(each.destination == queue for each in (await client.admin.topology.routing()).bindings)


@pytest.mark.long
@pytest.mark.parametrize("again", [True, False], ids=["asked again", "not asked again"])
@pytest.mark.parametrize("step", STEPS, ids=STEPS.values())
async def test_a_master_may_die_between_any_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, again: bool
) -> None:
    """Goal: each step can be done again, and none leaves anything behind that cannot be gone on from. Method: SIGKILL
    of the master at each border. Who asks again has it deleted. Who does not declares: before step 2 was logged the
    queue is there, with all records; afterwards it is a new one, and can be deleted."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("DIE_AT", str(tmp_path / "die"))
    async with cluster_of(tmp_path / "nodes") as (cluster, client):
        first = await client.admin.declare("q")
        await client.admin.topology.declare_exchange("e", "fanout")
        await client.admin.topology.bind("e", "q")
        await fill(client, "q", 5)
        master = cluster.master
        (tmp_path / f"die.{step}").touch()
        if again:
            assert await client.admin.delete_queue("q") == (5 if step < 3 else 0)
            with pytest.raises(NoSuchQueue):
                await client.admin.delete_queue("q")
            gone = True
        else:
            connection, _ = await client.master_of("q")
            with pytest.raises(ConnectionLost):
                await connection.request(DeleteQueue(name="q"), Deleted, timeout_ms=20_000)
            gone = step > 2
        assert (tmp_path / "die.died").exists()
        eventually(lambda: not master.running, "the master is dead")
        second = await declared(client, "q")
        assert (second.queue_id > first.queue_id, second.incarnation != first.incarnation) == (gone, gone)
        assert await values(client, "q") == ([] if gone else [b"%d" % number for number in range(5)])
        assert await bound(client, "q") == (step == 1 and not again)
        await fill(client, "q", 2)
        start_dead(cluster)
        cluster.wait_in_sync()
        assert await client.admin.delete_queue("q") == (2 if gone else 7)
        for node in cluster.nodes.values():
            async with Client(node.client) as other:
                assert (await other.admin.metadata(["q"])).missing == ["q"]


async def test_the_next_master_takes_away_the_place_of_a_queue_that_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody has to ask again for the name to be free, and for publishes to be unroutable and not looked for.
    Method: SIGKILL of the master when the deletion is confirmed; nobody asks or declares; another queue stays."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(DIES)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("DIE_AT", str(tmp_path / "die"))
    async with cluster_of(tmp_path / "nodes") as (_, client):
        for queue in ("q", "r"):
            await client.admin.declare(queue)
        (tmp_path / "die.3").touch()
        connection, _ = await client.master_of("q")
        with pytest.raises(ConnectionLost):
            await connection.request(DeleteQueue(name="q"), Deleted, timeout_ms=20_000)
        async with asyncio.timeout(15):
            while (await client.admin.metadata(["q"])).placed:  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.05)
        assert [queue.name for queue in await client.admin.queues()] == ["r"]


@pytest.mark.long
async def test_whoever_uses_a_deleted_queue_is_told(tmp_path: Path) -> None:
    """Goal: nobody waits for what does not come, and nobody reads or settles another queue than his. Method: a
    producer, a reader at the end, one at a mirror, a subscriber with records in hand, and a wait for a lease; the queue
    is deleted and declared anew at once."""
    async with cluster_of(tmp_path) as (_, client):
        await client.admin.declare("q")
        await fill(client, "q", 3)
        producer = await client.producer("q").start()
        await producer.send(b"x")
        reader = await client.consumer("q", start="latest").start()
        mirror = await client.consumer("q", start="earliest", read_from="mirror").start()
        ahead = aiter(mirror)
        assert len([await anext(ahead) for _ in range(4)]) == 4
        subscription = await client.subscribe("q", prefetch=2).start()
        given = aiter(subscription)
        await anext(given)
        lease = asyncio.ensure_future(client.lease("q", max_records=1, group="g", lease_ms=1000, wait_ms=20_000))
        waits = [asyncio.ensure_future(anext(each)) for each in (aiter(reader), ahead)]
        assert len(await lease) == 1, "of a group of its own"
        lease = asyncio.ensure_future(client.lease("q", max_records=9, group="g", lease_ms=10_000, wait_ms=20_000))
        await lease
        lease = asyncio.ensure_future(client.lease("q", max_records=9, group="g", lease_ms=10_000, wait_ms=20_000))
        with pytest.raises(InUse, match="used"):
            await client.admin.delete_queue("q", if_unused=True)
        with pytest.raises(InUse, match="not empty"):
            await client.admin.delete_queue("q", if_empty=True)
        assert await client.admin.delete_queue("q") == 4
        await client.admin.declare("q")
        await fill(client, "q", 10)
        for wait in (*waits, lease):
            with pytest.raises(NoSuchQueue):
                await wait
        with pytest.raises(NoSuchQueue):
            await all_given(given)
        with pytest.raises((NoSuchQueue, Refused)):
            await producer.send(b"y")
        assert b"y" not in await values(client, "q")
        for each in (reader, mirror, subscription, producer):
            with suppress(MirrorlogError):
                await each.close()


async def _subscribes(client: Client, queue: str) -> object:
    return await client.subscribe(queue).start()


async def _subscribes_to_another_group(client: Client, queue: str) -> object:
    return await client.subscribe(queue, "billing").start()


async def _has_a_lease(client: Client, queue: str) -> object:
    return await client.lease(queue, max_records=1, lease_ms=600_000)


async def _has_a_lease_of_another_group(client: Client, queue: str) -> object:
    return await client.lease(queue, max_records=1, lease_ms=600_000, group="billing")


async def _waits_for_a_lease(client: Client, queue: str) -> object:
    async with client.subscribe(queue), client.subscribe(queue, "done"):
        await client.admin.reset_groups(queue, ["done"], to="latest", force=True)
    return asyncio.ensure_future(client.lease(queue, group="done", wait_ms=60_000))


async def _reads(client: Client, queue: str) -> object:
    consumer = await client.consumer(queue, start="latest", max_wait_ms=20_000).start()
    return asyncio.ensure_future(anext(aiter(consumer)))


@pytest.mark.long
async def test_each_kind_of_use_alone_keeps_a_queue(tmp_path: Path) -> None:
    """Goal: `if_unused` knows whoever would miss the queue. Method: one queue for each way to use it, with that alone;
    a held lease counts, as for `x-expires`, also when its holder's connection is gone, and behind a failover; the
    others are over with their client, and their queues deleted."""
    uses = (
        _subscribes, _subscribes_to_another_group, _has_a_lease, _has_a_lease_of_another_group, _waits_for_a_lease,
        _reads,
    )  # fmt: skip
    async with cluster_of(tmp_path) as (cluster, client):
        async with Client(*cluster.servers, request_timeout_ms=20_000) as user:
            waiting = []
            for use in uses:
                queue = use.__name__
                await client.admin.declare(queue)
                await fill(client, queue, 1)
                waiting.append(await use(user, queue))
                await asked_until(client, queue, "users")
            for each in waiting:
                if isinstance(each, asyncio.Future):
                    each.cancel()
        for use in set(uses) - {_has_a_lease, _has_a_lease_of_another_group}:
            await asked_until(client, use.__name__, "records")
            assert await client.admin.delete_queue(use.__name__, if_unused=True) == 1
        cluster.master.kill()
        start_dead(cluster)
        for use, group in ((_has_a_lease, ""), (_has_a_lease_of_another_group, "billing")):
            await asked_until(client, use.__name__, "users")
            await client.admin.reset_groups(use.__name__, [group], to="earliest", force=True)
            await asked_until(client, use.__name__, "records")


async def asked_until(client: Client, queue: str, why: str) -> None:
    """Until the queue, which is not empty, is kept for that: users, or records where there are none. Nothing is
    deleted."""
    told: list[MirrorlogError] = []
    try:
        async with asyncio.timeout(15):
            while not told or why not in told[-1].details:
                # Behind a failover an attempt may have been lost: then a refusal of the next one is no certainty.
                with pytest.raises((InUse, InSyncReplicasNotEnough, ConnectionLost, OutcomeUnknown)) as refused:
                    await client.admin.delete_queue(queue, if_unused=True, if_empty=True)
                told.append(refused.value)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"{queue}: {told[-1:]}") from None
    assert told[-1].details[why] == 1


@pytest.mark.long
async def test_publishers_go_on_while_the_queue_is_deleted_and_declared(tmp_path: Path) -> None:
    """Goal: what was confirmed for a queue that is there is in it; nothing of the former one is. Method: messages
    through an exchange and by name all the while, the queue is deleted and declared ten times; when all is over the
    last one holds exactly what was confirmed for it."""
    async with cluster_of(tmp_path) as (_, client):
        stop = asyncio.Event()
        confirmed: list[tuple[int, bytes]] = []
        generation = 0
        await client.admin.topology.declare_exchange("e", "fanout")

        async def publish() -> None:
            number = 0
            async with client.publisher("e") as publisher:
                while not stop.is_set():
                    value, before = b"%d" % number, generation
                    number += 1
                    try:
                        published = await publisher.publish("", value)
                    except MirrorlogError:
                        continue
                    if published.receipts and before == generation:
                        confirmed.append((before, value))

        await client.admin.declare("q")
        await client.admin.topology.bind("e", "q")
        task = asyncio.ensure_future(publish())
        for _ in range(10):
            many = len(confirmed) + 5
            while len(confirmed) < many:  # noqa: ASYNC110  (nobody tells)
                await asyncio.sleep(0.005)
            generation += 1
            await client.admin.delete_queue("q")
            await client.admin.declare("q")
            await client.admin.topology.bind("e", "q")
            generation += 1
        many = len(confirmed) + 5
        while len(confirmed) < many:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        stop.set()
        await task
        found = await values(client, "q")
        assert len(found) == len(set(found))
        mine = {value for its, value in confirmed if its == generation}
        # A bind counts before its answer is here: what was published in between may be in the last queue already.
        former = {value for its, value in confirmed if its < generation - 1}
        assert mine <= set(found)
        assert former.isdisjoint(found)


@pytest.mark.long
async def test_two_deletions_at_once_are_one(tmp_path: Path) -> None:
    """Five clients delete, each through another node first, while others declare: every deletion gives what it took, or
    that there was nothing; ids only rise; at the end there is one queue or none."""
    async with cluster_of(tmp_path) as (cluster, client):
        ids = [(await client.admin.declare("q")).queue_id]
        await fill(client, "q", 3)
        clients = [Client(node.client) for node in cluster.nodes.values()]
        found = await asyncio.gather(
            *(each.admin.delete_queue("q") for each in clients), *(each.admin.delete_queue("q") for each in clients),
            return_exceptions=True,
        )  # fmt: skip
        assert found.count(3) == 1
        assert all(isinstance(each, NoSuchQueue) for each in found if each != 3), found
        for _ in range(10):
            answers = await asyncio.gather(
                *(each.admin.declare("q") for each in clients), *(each.admin.delete_queue("q") for each in clients),
                return_exceptions=True,
            )  # fmt: skip
            assert all(not isinstance(each, Exception) or isinstance(each, NoSuchQueue) for each in answers), answers
            last = await client.admin.declare("q")
            assert last.queue_id >= max(ids)
            ids.append(last.queue_id)
            assert [each.name for each in await client.admin.queues()] == ["q"]
            await fill(client, "q", 1)
        for each in clients:
            await each.close()


@pytest.mark.long
async def test_what_a_landing_holds_is_deleted_by_force_only(tmp_path: Path) -> None:
    """Goal: a landing does not lose by mistake what it has not had. Method: a hold, a deletion, and one by force; a
    queue of its name is held by nobody. Empty queues go when that is asked for, settled ones too."""
    async with cluster_of(tmp_path) as (_, client):
        admin = client.admin
        await admin.declare("q")
        await fill(client, "q", 2)
        await admin.set_hold("q", "lake", holder="h", queue_offset=0, lease_ms=60_000)
        with pytest.raises(InUse, match="'lake' holds") as refused:
            await admin.delete_queue("q")
        assert refused.value.details["landing"] == "lake"
        assert await admin.delete_queue("q", force=True) == 2
        await admin.declare("q")
        assert await admin.holds("q") == []
        assert await admin.delete_queue("q", if_empty=True, if_unused=True) == 0
        await admin.declare("q")
        await fill(client, "q", 2)
        async with client.subscribe("q") as subscription:
            given = aiter(subscription)
            for _ in range(2):
                await (await anext(given)).ack()
        assert await admin.delete_queue("q", if_empty=True, if_unused=True) == 0


@pytest.mark.long
async def test_a_cluster_that_starts_again_knows_what_was_deleted(tmp_path: Path) -> None:
    """Goal: nothing comes back. Method: delete with one node down; it returns, and then all are killed and started."""
    async with cluster_of(tmp_path) as (cluster, client):
        first = await client.admin.declare("q")
        await client.admin.declare("r")
        await fill(client, "q", 3)
        away = next(node for node in cluster.nodes.values() if node is not cluster.master)
        away.kill()
        assert await client.admin.delete_queue("q") == 3
        start_dead(cluster)
        cluster.wait_in_sync()
        for node in cluster.nodes.values():
            node.kill()
        start_dead(cluster)
        cluster.wait_in_sync()
        assert [each.name for each in await client.admin.queues()] == ["r"]
        with pytest.raises(NoSuchQueue):
            await client.admin.delete_queue("q")
        assert (await client.admin.declare("q")).queue_id > first.queue_id + 1


@pytest.mark.long
async def test_a_queue_that_is_to_go_only_when_empty_loses_no_record(tmp_path: Path) -> None:
    """Goal: `if_empty` deletes nothing that was confirmed. Method: one that publishes and settles its own record,
    while another deletes the queue if it is empty, again and again, and declare it anew: a record that
    was confirmed is always there to be received, or its queue's deletion came behind its settlement."""
    async with cluster_of(tmp_path) as (_, client):
        await client.admin.declare("q")
        stop, deletions = asyncio.Event(), 0

        async def delete() -> None:
            nonlocal deletions
            while not stop.is_set():
                try:
                    assert await client.admin.delete_queue("q", if_empty=True) == 0
                except InUse:
                    continue
                deletions += 1
                await client.admin.declare("q")

        task = asyncio.ensure_future(delete())
        async with asyncio.timeout(30):
            confirmed = 0
            while confirmed < 30 or deletions < 10:
                value = b"%d" % confirmed
                try:
                    async with client.producer("q") as producer:
                        await producer.send(value)
                except MirrorlogError:
                    continue  # it was refused, and nothing stored
                confirmed += 1
                leased = await client.lease("q", lease_ms=60_000)
                assert {bytes(each.value or b"") for each in leased} == {value}
                for each in leased:
                    await each.ack()
        stop.set()
        await task
