"""Transactions on real nodes: all of it or nothing, for readers, mirrors, retries and after a failover."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.client.connection.queue_metadata import FoundQueue
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.errors import (
    AccessRefused,
    BadBatch,
    BadRequest,
    BatchTooLarge,
    CrossLogTransaction,
    MirrorlogError,
    NotGranted,
    OutcomeUnknown,
    Refused,
    StaleRouting,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.frames import CONFIRM_DUPLICATE
from mirrorlog.wire.messages.status import NodeCounts
from mirrorlog.wire.transaction_frames import transact_payload
from tests.process.clusters import eventually, fast_cluster
from tests.spark.offline_logs import read_all

pytestmark = pytest.mark.process

GROUP = {"x-log-group": "together"}


async def values(client: Client, queue: str) -> list[bytes | None]:
    async with client.consumer(queue, start="earliest", until="confirmed") as consumer:
        return [record.value async for record in consumer]


async def declare(client: Client, *queues: str) -> None:
    for queue in queues:
        await client.admin.declare(queue, GROUP)


async def test_what_a_transaction_publishes_and_acknowledges_counts_together() -> None:
    """Goal: a record moves from one queue to others in one step. Method: take two records, publish to two queues and
    acknowledge both in one transaction; readers see all of it, and nothing comes again."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await declare(client, "in", "out", "audit")
            async with client.producer("in") as producer:
                for value in (b"1", b"2"):
                    await producer.send(value)
            async with client.subscribe("in") as subscription:
                taken = await subscription.receive(2, timeout_ms=10_000)
                async with client.transaction() as tx:
                    for each in taken:
                        tx.send("out", each.value, key=b"k")
                        tx.send("audit", each.value)
                        tx.ack(each)
                with pytest.raises(BadRequest, match="was committed"):
                    await tx.commit()
            assert await values(client, "out") == await values(client, "audit") == [b"1", b"2"]
            async with client.subscribe("in") as again, client.subscribe("out") as moved:
                assert await again.receive(1, timeout_ms=300) == []
                assert [each.value for each in await moved.receive(2, timeout_ms=10_000)] == [b"1", b"2"]


async def test_receipts_are_in_the_order_of_the_records_and_a_queues_records_in_a_row() -> None:
    """Goal: who publishes to two queues in turns knows where each record is. Two transactions, one behind another."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await declare(client, "a", "b")
        for base in (0, 2):
            tx = client.transaction()
            assert [tx.send(queue, b"v") for queue in ("a", "b", "a", "b")] == [0, 1, 2, 3]
            receipts = await tx.commit()
            assert [each.queue_offset for each in receipts] == [base, base, base + 1, base + 1]
            assert not any(each.duplicate for each in receipts)
        assert await client.transaction().commit() == []


async def test_a_commit_waits_for_the_disk_when_asked() -> None:
    """Goal: durability of a transaction is that of a publish. Method: a log in memory, with a mirror; a commit on
    disk."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await declare(client, "a")
            tx = client.transaction(durability="disk")
            tx.send("a", b"v", headers={"h": b"1"}, timestamp=5, priority=3, ttl_ms=60_000)
            [receipt] = await tx.commit()
            assert (receipt.durability, receipt.copies) == (1, 2)
            async with client.consumer("a", start="earliest", until="confirmed") as consumer:
                [record] = [each async for each in consumer]
            assert (record.headers, record.timestamp, record.attributes.priority) == ([("h", b"1")], 5, 3)


async def test_who_may_not_write_to_one_of_the_queues_commits_nothing() -> None:
    """Goal: a transaction needs the rights of all its parts. Method: a user who may write to one of two queues, and
    read none."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as first:
        await declare(first, "mine", "other")
        await first.admin.topology.set_user("admin", password_hash=hashed("a"), tags=["administrator"])
        async with Client(*cluster.servers, user="admin", password="a") as admin:
            await admin.admin.topology.set_permissions("admin", configure=".*", write=".*", read=".*")
            await admin.admin.topology.set_user("u", password_hash=hashed("u"))
            await admin.admin.topology.set_permissions("u", configure="", write="^mine$", read="")
            async with Client(*cluster.servers, user="u", password="u") as user:
                tx = user.transaction()
                tx.send("mine", b"x")
                tx.send("other", b"x")
                with pytest.raises(AccessRefused, match="other"):
                    await tx.commit()
                async with user.transaction() as tx:
                    tx.send("mine", b"y")
            assert (await values(admin, "mine"), await values(admin, "other")) == ([b"y"], [])


async def test_a_rollback_leaves_everything_as_it_was() -> None:
    """Goal: an exception in the block undoes it. Method: publish and acknowledge, raise; the record is settled by its
    own ack afterwards, and the queue has nothing."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await declare(client, "in", "out")
        async with client.producer("in") as producer:
            await producer.send(b"1")
        async with client.subscribe("in") as subscription:
            [taken] = await subscription.receive(1, timeout_ms=10_000)

            async def fails() -> None:
                async with client.transaction() as tx:
                    tx.send("out", b"x")
                    tx.ack(taken)
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await fails()
            await taken.ack()
        assert await values(client, "out") == []


async def test_a_refused_transaction_stores_nothing_and_settles_nothing() -> None:
    """Goal: refusal means nothing was stored. Method: one that is too large; then the same ack in a smaller one."""
    async with (
        fast_cluster(1, settings={"limits.max_batch_bytes": 65_536, "limits.max_record_bytes": 50_000}) as cluster,
        Client(*cluster.servers) as client,
    ):
        await declare(client, "in", "out", "other")
        async with client.producer("in") as producer:
            await producer.send(b"1")
        async with client.subscribe("in") as subscription:
            [taken] = await subscription.receive(1, timeout_ms=10_000)
            tx = client.transaction()
            for queue in ("out", "other"):
                tx.send(queue, b"x" * 40_000)
            tx.ack(taken)
            with pytest.raises(BatchTooLarge, match="max_batch_bytes"):
                await tx.commit()
            async with client.transaction() as tx:
                tx.send("out", b"y")
                tx.ack(taken)
        assert (await values(client, "out"), await values(client, "other")) == ([b"y"], [])


async def test_queues_of_two_logs_are_refused_with_the_reason() -> None:
    """Goal: the user learns which queues, which logs, and what to do. Method: one queue in the log of one copy, one in
    the other; then a queue of the same x-log-group is put where that is, and one that does not fit is refused."""
    async with fast_cluster(2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            here = await client.admin.declare("here", {"copies": 1, **GROUP})
            await client.admin.declare("there", {})
            async with client.producer("there") as producer:
                await producer.send(b"0")
            tx = client.transaction()
            tx.send("here", b"x")
            tx.send("there", b"x")
            with pytest.raises(CrossLogTransaction, match=r"'here'.*'there'.*x-log-group") as caught:
                await tx.commit()
            assert caught.value.details["queues"] == ["here", "there"]
            assert (await values(client, "here"), await values(client, "there")) == ([], [b"0"])
            joined = await client.admin.declare("joined", GROUP)
            assert joined.log_id == here.log_id
            for queue in ("joined", "here"):
                await client.admin.delete_queue(queue)
            for queue in ("joined", "joined", "here"):  # also told twice, wherever it is asked first
                assert (await client.admin.declare(queue, GROUP)).log_id == here.log_id
            with pytest.raises(BadRequest, match="log group together is in log"):
                await client.admin.declare("unfit", {"copies": 2, **GROUP})


async def test_queues_of_one_group_that_are_declared_at_once_get_what_they_ask_for_or_a_refusal() -> None:
    """Goal: a queue is never in a log with fewer copies than it asks for, nor with more. Method: through two nodes at
    once, a queue of one copy and one of two copies, of the same new x-log-group; several times. Of either number there
    may be a log at each home: what counts is how many copies the cluster says that the log has."""
    async with fast_cluster(2, min_in_sync=1) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(cluster.servers[0]) as one, Client(cluster.servers[1]) as two:
            for number in range(5):
                group = {"x-log-group": f"g{number}"}
                declared = await asyncio.gather(
                    one.admin.declare(f"one-{number}", {"copies": 1, **group}),
                    two.admin.declare(f"two-{number}", {"copies": 2, **group}),
                    return_exceptions=True,
                )
                refused = [each for each in declared if isinstance(each, BaseException)]
                assert [type(each) for each in refused] == [BadRequest]
                assert "take another x-log-group" in str(refused[0])
                [placed] = [each for each in declared if not isinstance(each, BaseException)]
                view = (await asyncio.to_thread(cluster.nodes[placed.master].status)).cluster
                assert view is not None
                [copies] = [log.copies for log in view.logs if log.log_id == placed.log_id]
                assert copies == placed.arguments["copies"]


async def test_a_record_is_moved_once_whoever_else_had_it(tmp_path: Path) -> None:
    """Goal: publishes and acknowledgements count together, or neither. Method: a subscriber's connection breaks, so
    another one is given its record; the first commits what it had, is refused while the other has the record, and is
    refused when the other has committed: the publish does not count alone."""
    async with (
        fast_cluster(1, data_dir=tmp_path) as cluster,
        Client(*cluster.servers) as slow,
        Client(*cluster.servers) as quick,
    ):
        await declare(slow, "in", "out")
        async with slow.producer("in") as producer:
            await producer.send(b"order")
        async with slow.subscribe("in") as first:
            [taken] = await first.receive(1, timeout_ms=10_000)
            async with quick.subscribe("in") as second:
                assert first.session is not None
                first.session.connection.give_up("the cable was pulled")
                [again] = await second.receive(1, timeout_ms=10_000)

                async def refused() -> None:
                    assert await first.receive(1, timeout_ms=500) == []  # also until it is resumed
                    tx = slow.transaction(timeout_ms=10_000)
                    tx.send("out", b"moved by the first")
                    tx.ack(taken)
                    with pytest.raises(NotGranted):
                        await tx.commit()

                await refused()
                async with quick.transaction() as tx:
                    tx.send("out", b"moved by the second")
                    tx.ack(again)
                await refused()
        assert await values(slow, "out") == [b"moved by the second"]


@pytest.mark.long
async def test_a_commit_ends_at_its_time_or_with_its_client(tmp_path: Path) -> None:
    """Goal: who commits knows when it is over. Method: the only node stands still; a commit of half a second ends
    then, also one whose queue was not looked for before, which was not sent and says so. One of a minute, whose mirror
    stands still, ends when its client is closed."""
    async with fast_cluster(2, min_in_sync=2, data_dir=tmp_path) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        client = await Client(*cluster.servers).connect()
        await declare(client, "a", "b")
        async with client.transaction() as tx:
            tx.send("a", b"first")
        for node in cluster.nodes.values():
            node.pause()
        for queue, ends in (("a", OutcomeUnknown), ("b", Refused)):
            tx = client.transaction(timeout_ms=500)
            tx.send(queue, b"x")
            with pytest.raises(ends):
                async with asyncio.timeout(4):
                    await tx.commit()
        for node in cluster.nodes.values():
            node.resume()
        await asyncio.to_thread(eventually, lambda: cluster.wait_in_sync() or True, "all copies are in sync again")
        await asyncio.to_thread(cluster.mirrors[0].pause)
        tx = client.transaction(timeout_ms=60_000)
        tx.send("a", b"y")
        commit = asyncio.ensure_future(tx.commit())
        await asyncio.wait({commit}, timeout=0.5)
        assert not commit.done()
        await client.close()
        with pytest.raises(OutcomeUnknown, match="closed"):
            async with asyncio.timeout(4):
                await commit


async def test_what_a_closed_subscription_or_another_clients_gave_out_is_refused_at_once() -> None:
    """Goal: a mistake is told, and not waited for. Method: acknowledge in another client's transaction, and in one that
    is committed when the subscription is closed."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client, Client(*cluster.servers) as other:
        await declare(client, "in", "out")
        async with client.producer("in") as producer:
            await producer.send(b"1")
        async with client.subscribe("in") as subscription:
            [taken] = await subscription.receive(1, timeout_ms=10_000)
            with pytest.raises(BadRequest, match="another client"):
                other.transaction().ack(taken)
        tx = client.transaction(timeout_ms=60_000)
        tx.send("out", b"x")
        tx.ack(taken)
        with pytest.raises(NotGranted, match="commit before it is closed"):
            async with asyncio.timeout(10):
                await tx.commit()
        assert await values(client, "out") == []


async def test_commits_behind_one_another_ask_no_node_where_their_queues_are() -> None:
    """Goal: a commit costs one frame. Method: count what the client looks for: all of it in the first commit, nothing
    in the next; after a queue is deleted and declared anew it is looked for again, and has the records."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client, Client(*cluster.servers) as other:
        queues = ("a", "b", "c")
        await declare(client, *queues)
        looked: list[str] = []
        find = client.find

        async def counted(queue: str) -> FoundQueue:
            looked.append(queue)
            return await find(queue)

        client.find = counted  # type: ignore[method-assign]

        async def commit() -> list[str]:
            looked.clear()
            async with client.transaction() as tx:
                for queue in queues:
                    tx.send(queue, b"v")
            return sorted(looked)

        assert await commit() == list(queues)
        assert await commit() == []
        await other.admin.delete_queue("b")
        await declare(other, "b")
        assert await commit() == list(queues)
        assert await commit() == []
        assert [len(await values(other, queue)) for queue in queues] == [4, 2, 4]


async def test_the_node_refuses_what_no_client_of_ours_sends() -> None:
    """Goal: every input from outside has a check. Method: frames by hand: empty, of two logs, without a producer id,
    with bytes behind, with a part that landed alone; then a whole one twice, which is answered the same twice."""
    async with fast_cluster(1) as cluster, Client(*cluster.servers) as client:
        await declare(client, "a", "b")
        other = await client.admin.declare("other", {"flush": "disk", "copies": 1})
        ids = {queue: (await client.queue_info(queue)).queue_id for queue in ("a", "b")}
        connection = await client.any_connection()

        def batch(queue_id: int, *, sequence: int = 0, producer_id: int = 7, value: bytes = b"v") -> bytearray:
            return encode_batch([Record(value)], queue_id=queue_id, producer_id=producer_id, sequence=sequence)

        async def commit(*batches: bytearray | bytes) -> list[int]:
            payload = transact_payload([], list(batches), level=255, durability=0, deadline_ms=5_000)
            facts, receipts = await connection.transact(payload, timeout_ms=10_000)
            return [facts.flags, *(each.base_queue_offset for each in receipts)]

        async def refused(kind: type[MirrorlogError], *batches: bytearray | bytes) -> None:
            with pytest.raises(kind):
                await commit(*batches)

        def counts() -> NodeCounts:
            found = cluster.nodes["n1"].status().counts
            assert found is not None
            return found

        def confirms() -> int:
            return sum(sum(log.confirms.counts) for log in counts().logs)

        await refused(BadRequest)
        assert (await asyncio.to_thread(counts)).refused["BAD_REQUEST"] == 1
        confirmed = await asyncio.to_thread(confirms)
        await refused(CrossLogTransaction, batch(ids["a"]), batch(other.queue_id))
        await refused(BadRequest, batch(ids["a"], producer_id=0))
        await refused(BadBatch, batch(ids["a"]) + bytes(8))
        await refused(BadBatch, batch(ids["a"])[:-8])
        await refused(BadBatch, b"")
        await refused(MirrorlogError, batch(ids["a"]), batch(ids["b"], sequence=5))
        assert await values(client, "a") == []
        whole = [batch(ids["a"]), batch(ids["a"], sequence=1), batch(ids["b"])]
        assert await commit(*whole) == [0, 0, 1, 0]
        assert await asyncio.to_thread(confirms) == confirmed + 1
        assert await commit(*whole) == [CONFIRM_DUPLICATE, 0, 1, 0]
        await refused(BadBatch, batch(ids["a"], sequence=1), batch(ids["b"], sequence=1))
        await client.admin.topology.declare_exchange("e")
        for key in ("k1", "k2"):
            await client.admin.topology.bind("e", "a", key)
        stale = transact_payload([], [batch(ids["a"], sequence=2)], level=255, durability=0, deadline_ms=0, routing=1)
        with pytest.raises(StaleRouting):
            await connection.transact(stale, timeout_ms=10_000)
        assert (len(await values(client, "a")), len(await values(client, "b"))) == (2, 1)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("number", range(3))
async def test_a_master_killed_between_append_and_confirm_leaves_all_or_nothing(tmp_path: Path, number: int) -> None:
    """Goal: after a failover no part of a transaction is there without the others, and what was confirmed is there.
    Method: four writers commit to three queues in a row; kill -9 the master in the middle of them. The queues have the
    same records after it, each once, and those whose commit was told are among them."""
    async with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            queues = ("a", "b", "c")
            await declare(client, *queues)
            told: list[bytes] = []
            unknown: list[bytes] = []
            going = asyncio.Event()

            async def commits(writer: int) -> None:
                for count in range(40):
                    value = b"%d-%d" % (writer, count)
                    tx = client.transaction()
                    for queue in queues:
                        tx.send(queue, value)
                    try:
                        await tx.commit()
                        told.append(value)
                    except OutcomeUnknown:
                        unknown.append(value)
                    if len(told) > 20 + 10 * number:
                        going.set()

            work = [asyncio.ensure_future(commits(writer)) for writer in range(4)]
            await going.wait()
            cluster.master.kill()
            await asyncio.gather(*work)
            found = [await values(client, queue) for queue in queues]
            assert sorted(found[0], key=str) == sorted(found[1], key=str) == sorted(found[2], key=str)
            assert len(set(found[0])) == len(found[0])
            assert set(told) <= set(found[0]) <= set(told) | set(unknown)
            await asyncio.to_thread(_restarted, cluster)
            async with client.transaction() as tx:
                for queue in queues:
                    tx.send(queue, b"after")
            assert (await values(client, "c"))[-1] == b"after"


def _restarted(cluster: Cluster) -> None:
    for node in cluster.nodes.values():
        if not node.running:
            node.start()
    eventually(cluster.wait_in_sync, "all copies are in sync again")


async def test_a_commit_without_its_copies_is_unknown_and_the_next_one_goes_on() -> None:
    """Goal: every commit ends, and one of which nobody knows blocks none behind it. Method: the only mirror stands
    still, which is needed; the commit ends as unknown. It goes on: another commit to the same queues is confirmed, and
    the first one's records are there in both queues or in none."""
    async with fast_cluster(2, min_in_sync=2) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await declare(client, "a", "b")
            [mirror] = cluster.mirrors
            mirror.pause()
            tx = client.transaction(timeout_ms=1_500)
            tx.send("a", b"first")
            tx.send("b", b"first")
            with pytest.raises(OutcomeUnknown, match="as a whole, or not at all"):
                await tx.commit()
            assert [(await client.queue_info(queue)).next for queue in ("a", "b")] == [0, 0]
            mirror.resume()
            async with client.transaction() as tx:
                tx.send("a", b"second")
                tx.send("b", b"second")
            assert await values(client, "a") == await values(client, "b")
            assert (await values(client, "a"))[-1] == b"second"


async def test_a_commit_that_its_master_died_with_is_found_or_made_by_the_next(tmp_path: Path) -> None:
    """Goal: a transaction that publishes and acknowledges goes over a failover as one. Method: both mirrors stand still
    while it is committed, so it is appended and confirmed by nobody; kill -9 the master, let the mirrors go on. The
    commit is answered, its records are there once, and what it acknowledged does not come again."""
    async with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as cluster:
        await asyncio.to_thread(cluster.wait_in_sync)
        async with Client(*cluster.servers) as client:
            await declare(client, "in", "out")
            async with client.producer("in") as producer:
                for value in (b"1", b"2"):
                    await producer.send(value)
            async with client.subscribe("in") as subscription:
                taken = await subscription.receive(2, timeout_ms=10_000)
                master, mirrors = cluster.master, cluster.mirrors
                end = master.status().logs[0].end
                for mirror in mirrors:
                    mirror.pause()
                tx = client.transaction(timeout_ms=60_000)
                tx.send("out", b"moved")
                tx.ack(taken[0])
                commit = asyncio.ensure_future(tx.commit())
                await asyncio.to_thread(eventually, lambda: master.status().logs[0].end > end, "it is appended")
                master.kill()
                for mirror in mirrors:
                    mirror.resume()
                [receipt] = await commit
                assert receipt.queue_offset == 0
                assert await values(client, "out") == [b"moved"]
                [again] = await subscription.receive(1, timeout_ms=10_000)
                assert (again.offset, again.redelivered) == (taken[1].offset, True)
                await again.ack()


async def test_a_restarted_node_and_an_offline_reader_have_what_was_in_transactions(tmp_path: Path) -> None:
    """Goal: recovery and Spark's path reader read envelopes. Method: transactions, a clean stop, another start that
    reads the log; queue offsets go on, and the reader of its directory gives the same records."""
    with Cluster(1, data_dir=tmp_path) as cluster:
        async with Client(*cluster.servers) as client:
            await declare(client, "a", "b")
            for number in range(3):
                async with client.transaction() as tx:
                    tx.send("a", b"a%d" % number)
                    tx.send("b", b"b%d" % number)
            assert await values(client, "b") == [b"b0", b"b1", b"b2"]
        node = next(iter(cluster.nodes.values()))
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)
        await asyncio.to_thread(cluster.wait_master)
        async with Client(*cluster.servers) as client:
            async with client.transaction() as tx:
                tx.send("a", b"a3")
                tx.send("b", b"b3")
            expected = [b"a%d" % number for number in range(4)]
            assert await values(client, "a") == expected
        await asyncio.to_thread(node.stop)
        assert _read_from_directory(tmp_path, "a") == expected


def _read_from_directory(data_dir: Path, queue: str) -> list[bytes | None]:
    [directory] = {path.parent for path in data_dir.rglob("0" * 20)}
    return [row.value for row in read_all(directory, queue)]


def test_the_synchronous_face_commits_and_rolls_back() -> None:
    """Goal: the same without await. Method: one that is committed with an ack, one that ends with an exception."""
    with fast_cluster(1) as cluster, SyncClient(*cluster.servers) as client:
        client.admin.declare("in", GROUP)
        client.admin.declare("out", GROUP)
        with client.producer("in") as producer:
            producer.send(b"1")
        with client.subscribe("in") as subscription:
            [taken] = subscription.receive(1, timeout_ms=10_000)
            with client.transaction() as tx:
                tx.send("out", b"x")
                tx.ack(taken)

            def fails() -> None:
                with client.transaction() as tx:
                    tx.send("out", b"y")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                fails()
        with client.consumer("out", start="earliest", until="confirmed") as consumer:
            assert [record.value for record in consumer] == [b"x"]
