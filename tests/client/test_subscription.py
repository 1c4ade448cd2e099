"""Subscriptions and leases on real nodes: one that is there, and three of which the master is killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest

from mirrorlog.client import Client, Delivered, Subscription
from mirrorlog.client.connection.connection import Connection
from mirrorlog.client.sync import Client as SyncClient
from mirrorlog.errors import BadRequest, ExclusiveTaken, MirrorlogError, NoSuchGroup, NotGranted, ReceiptStale
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import Deliver, How, Level, read_grants
from mirrorlog.wire.messages.groups import Subscribe, Subscribed
from tests.process.clusters import fast_cluster

pytestmark = pytest.mark.process


async def publish(client: Client, queue: str, count: int, *, first: int = 0) -> None:
    async with client.producer(queue) as producer:
        await producer.send_many([b"%d" % number for number in range(first, first + count)])


async def take(subscription: Subscription, count: int) -> list[Delivered]:
    async with asyncio.timeout(30):
        return [await anext(subscription) for _ in range(count)]


def numbers(found: list[Delivered]) -> list[int]:
    return [int(each.value or b"") for each in found]


async def test_what_is_acknowledged_never_comes_again(client: Client, queue: str) -> None:
    """Goal: the queue's life of a record. Method: ack some, leave the rest; a second subscriber gets the rest."""
    await publish(client, queue, 10)
    async with client.subscribe(queue) as subscription:
        found = await take(subscription, 10)
        assert numbers(found) == list(range(10))
        assert not any(each.redelivered for each in found)
        await asyncio.gather(*(found[number].ack() for number in (0, 2, 4)))
        found[1].ack_nowait()
    async with client.subscribe(queue) as subscription:
        again = await take(subscription, 6)
        assert numbers(again) == [3, 5, 6, 7, 8, 9]
        assert all(each.redelivered and each.attempts == 1 for each in again)
        await again[-1].ack(multiple=True)
        assert await subscription.receive(timeout_ms=100) == []


async def test_what_comes_later_is_pushed(client: Client, queue: str) -> None:
    """Goal: no polling. Method: subscribe to an empty queue, then publish, twice."""
    async with client.subscribe(queue) as subscription:
        for first in (0, 5):
            await publish(client, queue, 5, first=first)
            found = await take(subscription, 5)
            assert numbers(found) == list(range(first, first + 5))
            await found[-1].ack(multiple=True)


async def test_prefetch_bounds_what_is_in_hand(client: Client, queue: str) -> None:
    """Goal: credit. Method: a prefetch of three over ten records: the fourth comes once one is settled."""
    await publish(client, queue, 10)
    async with client.subscribe(queue, prefetch=3) as subscription:
        found = await subscription.receive(10, timeout_ms=300)
        assert numbers(found) == [0, 1, 2]
        await found[1].ack()
        assert numbers(await take(subscription, 1)) == [3]


async def given(client: Client, queue: str, count: int) -> None:
    """Wait until its node has given so many of a hundred."""
    async with asyncio.timeout(10):
        while [each.ready for each in (await client.admin.groups(queue)).groups] != [100 - count]:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_the_prefetch_changes_while_it_is_subscribed(client: Client, queue: str) -> None:
    """Goal: nothing is taken back, and what there is room for comes at once. Method: up, paused, resumed, down."""
    await publish(client, queue, 100)
    async with client.subscribe(queue, prefetch=3) as subscription:
        await given(client, queue, 3)
        await subscription.set_prefetch(5)
        await given(client, queue, 5)
        await subscription.pause()
        for record in await take(subscription, 5):
            await record.ack()
        await given(client, queue, 5)
        await subscription.resume()
        await given(client, queue, 10)
        await subscription.set_prefetch(1)
        for record in await take(subscription, 4):
            await record.ack()
        await given(client, queue, 10)
        [record] = await take(subscription, 1)
        await record.ack()
        await given(client, queue, 11)


async def test_a_pause_holds_with_auto_ack(client: Client, queue: str) -> None:
    """Goal: nothing is settled that nobody wants now. Method: all that came is taken while it is paused."""
    await publish(client, queue, 100)
    async with client.subscribe(queue, prefetch=3, auto_ack=True) as subscription:
        await given(client, queue, 3)
        await subscription.pause()
        await take(subscription, 3)
        assert await subscription.receive(1, timeout_ms=50) == []
        await subscription.set_prefetch(4)
        await given(client, queue, 3)
        await subscription.resume()
        await given(client, queue, 7)
        await take(subscription, 4)
        await given(client, queue, 11)


async def test_who_asks_for_more_than_the_prefetch_does_not_wait_for_it(client: Client, queue: str) -> None:
    """Goal: no second is lost where nothing more can come. Method: ask for ten with a prefetch of three and a time that
    the test does not have; again, once these are settled."""
    await publish(client, queue, 6)
    async with client.subscribe(queue, prefetch=3) as subscription:
        for first in (0, 3):
            async with asyncio.timeout(60):
                found = await subscription.receive(10, timeout_ms=600_000)
            assert numbers(found) == list(range(first, first + 3))
            await found[-1].ack(multiple=True)


async def test_who_asks_for_more_than_the_bytes_of_the_prefetch_does_not_wait_for_it(
    client: Client, queue: str
) -> None:
    """The same with bytes, sent one by one and together: three records fit, and a fourth would not."""
    async with client.producer(queue) as producer:
        for number in range(6):
            await producer.send(b"%d" % number + b"x" * 10_240)
        await producer.send_many([b"x" * 10_240] * 3)
    async with client.subscribe(queue, prefetch_bytes=35 * 1024) as subscription:
        for first in (0, 3, 6):
            async with asyncio.timeout(60):
                found = await subscription.receive(10, timeout_ms=600_000)
            assert [each.queue_offset for each in found] == list(range(first, first + 3))
            await found[-1].ack(multiple=True)
        async with asyncio.timeout(60):
            assert await subscription.receive(10, timeout_ms=1) == []  # with all of it settled there is room


async def test_prefetch_bytes_bound_what_is_in_hand(client: Client, queue: str) -> None:
    """Goal: bounded memory. Method: ten records of 10 KiB, 35 KiB at most; one that is larger than all comes alone."""
    async with client.producer(queue) as producer:
        await producer.send_many([b"x" * 10_240] * 10)
    async with client.subscribe(queue, prefetch_bytes=35 * 1024) as subscription:
        assert 1 <= len(await subscription.receive(10, timeout_ms=300)) <= 4
    async with client.subscribe(queue, prefetch_bytes=1) as subscription:
        assert len(await subscription.receive(10, timeout_ms=300)) == 1


async def test_what_is_given_back_comes_again_at_its_place(client: Client, queue: str) -> None:
    """Goal: requeue keeps the order of the queue. Method: nack the second of three with a prefetch of three."""
    await publish(client, queue, 5)
    async with client.subscribe(queue, prefetch=3) as subscription:
        found = await take(subscription, 3)
        await found[1].nack()
        [again] = await take(subscription, 1)
        assert (again.value, again.redelivered, again.attempts) == (b"1", True, 1)
        await again.nack(delay_ms=200)
        [other] = await take(subscription, 1)
        assert other.value == b"3"
        await asyncio.gather(other.ack(), found[0].ack(), found[2].reject())
        assert numbers(await take(subscription, 2)) == [4, 1]


async def test_named_groups_have_each_record_each(client: Client, queue: str) -> None:
    """Goal: groups know nothing of each other. Method: two groups, one acks."""
    await publish(client, queue, 3)
    for group in ("one", "two"):
        async with client.subscribe(queue, group) as subscription:
            found = await take(subscription, 3)
            await found[-1].ack(multiple=True)
            assert numbers(found) == [0, 1, 2]
    kinds = {each.group: (each.kind, each.floor) for each in (await client.admin.groups(queue)).groups}
    assert (kinds["one"], kinds["two"]) == (("acking", 3), ("acking", 3))
    await client.admin.delete_group(queue, "two")
    assert "two" not in {each.group for each in (await client.admin.groups(queue)).groups}
    with pytest.raises(NoSuchGroup, match="this queue has no group 'two'"):
        await client.admin.delete_group(queue, "two")
    await client.admin.delete_group(queue, "two", missing_ok=True)
    with pytest.raises(BadRequest):
        await client.admin.delete_group(queue, "")


async def test_an_exclusive_subscriber_is_alone(client: Client, queue: str) -> None:
    """Goal: exclusive. Method: a second one is refused, until the first is gone."""
    async with client.subscribe(queue, exclusive=True):
        with pytest.raises(ExclusiveTaken):
            await client.subscribe(queue).start()
    async with client.subscribe(queue, exclusive=True):
        pass


async def test_whoever_comes_back_ends_what_its_node_has_not_missed(
    client: Client, shared_cluster: Cluster, queue: str
) -> None:
    """Goal: a connection that is half open keeps nothing from whoever lost it. Method: an exclusive subscriber has
    three of five in hand, and its connection stays; over another one its place is taken, by number and secret: the
    three come again, what was acknowledged counts, the former is none any more. Without the secret it is refused."""
    await publish(client, queue, 5)
    async with Client(*shared_cluster.servers) as other:
        wish = Subscribe(queue=queue, prefetch_records=3, exclusive=True)
        former, _ = await Taking.begin(client, wish)
        assert await former.granted(3) == [0, 1, 2]
        for secret in ("", "0" * 64, "ü"):
            guess = msgspec.structs.replace(wish, replaces=former.number, secret=secret)
            with pytest.raises(ExclusiveTaken):
                await Taking.begin(other, guess)
        again, connection = await Taking.begin(
            other, msgspec.structs.replace(wish, replaces=former.number, secret=former.secret)
        )
        assert again.secret not in ("", former.secret)
        answer: asyncio.Future[MirrorlogError | None] = asyncio.get_running_loop().create_future()
        connection.settle(
            [1, 2], subscription=again.number, epoch=again.epoch, how=How.ACK, level=Level.ALL, delay_ms=0, again=True,
            done=answer.set_result,
        )  # fmt: skip
        assert await answer is None
        assert await again.granted(4) == [0, 1, 2, 3]
        floors = {each.group: each for each in (await client.admin.groups(queue)).groups}
        assert (floors[""].subscribers, floors[""].unsettled) == (1, 4)
        # Its number is nobody's by now: naming it once more harms none.
        with pytest.raises(ExclusiveTaken):
            await Taking.begin(client, msgspec.structs.replace(wish, replaces=former.number, secret=former.secret))


class Taking:
    """A subscription by hand: the frames alone, and nobody who goes on by himself."""

    def __init__(self) -> None:
        self.number, self.epoch, self.secret = 0, 0, ""
        self.offsets: list[int] = []
        self.changed = asyncio.Event()
        self.error: MirrorlogError | None = None

    @classmethod
    async def begin(cls, client: Client, wish: Subscribe) -> tuple[Taking, Connection]:
        """Raises what the node answers."""
        connection, _ = await client.master_of(wish.queue)
        made = cls()
        connection.subscribe(wish, made)
        async with asyncio.timeout(10):
            await made.changed.wait()
        if made.error is not None:
            raise made.error
        return made, connection

    async def granted(self, count: int) -> list[int]:
        """So many offsets, in the order in which they came."""
        async with asyncio.timeout(10):
            while len(self.offsets) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.offsets

    # --- Subscriber ---

    def subscribed(self, answer: Subscribed) -> None:
        self.number, self.epoch, self.secret = answer.subscription, answer.epoch, answer.secret
        self.changed.set()

    def delivered(self, facts: Deliver, content: memoryview) -> None:
        grants, _ = read_grants(content, facts.grant_count)
        self.offsets += [offset for grant in grants for offset in range(grant.first, grant.next)]
        self.changed.set()

    def ended(self, error: MirrorlogError) -> None:
        self.error = error
        self.changed.set()

    def room(self, size: int) -> memoryview:
        return memoryview(bytearray(size))


async def test_subscribers_share_a_queue(client: Client, shared_cluster: Cluster, queue: str) -> None:
    """Goal: each record goes to one of them. Method: two clients that ack all they get."""
    async with Client(*shared_cluster.servers) as other:
        found: list[int] = []

        async def work(of: Client) -> None:
            async with of.subscribe(queue, prefetch=10) as subscription:
                async for each in subscription:
                    found.append(int(each.value or b""))
                    each.ack_nowait()

        workers = [asyncio.ensure_future(work(each)) for each in (client, other)]
        await publish(client, queue, 500)
        async with asyncio.timeout(30):
            while len(found) < 500:  # noqa: ASYNC110  (the workers know nothing of events)
                await asyncio.sleep(0.01)
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    assert sorted(found) == list(range(500))


async def test_batches_are_columns_of_what_was_granted(client: Client, queue: str) -> None:
    """Goal: thousands of records without an object for each. Method: count values by batches, ack each as one."""
    await publish(client, queue, 5_000)
    async with client.subscribe(queue, prefetch=0) as subscription:
        seen = 0
        async with asyncio.timeout(30):
            async for batch in subscription.batches():
                assert batch.values.tolist() == [b"%d" % number for number in range(seen, seen + len(batch))]
                seen += len(batch)
                batch.ack_nowait()
                if seen == 5_000:
                    break
        await subscription.flush()
        assert (await client.admin.groups(queue)).groups[0].unsettled == 0


async def test_bytes_may_come_from_a_mirror(client: Client, queue: str) -> None:
    """Goal: `read_from`, one by one out of a batch. Method: a prefetch of one, bytes that did not come are fetched."""
    await publish(client, queue, 50)
    async with client.subscribe(queue, prefetch=1, read_from="mirror") as subscription:
        for number in range(50):
            [record] = await take(subscription, 1)
            assert record.value == b"%d" % number
            await record.ack()


async def test_auto_ack_settles_what_is_sent(client: Client, queue: str) -> None:
    """Goal: nothing to settle. Method: read, close, look again."""
    await publish(client, queue, 5)
    async with client.subscribe(queue, auto_ack=True) as subscription:
        assert numbers(await take(subscription, 5)) == list(range(5))
    async with client.subscribe(queue) as subscription:
        assert await subscription.receive(timeout_ms=100) == []


async def test_auto_ack_settles_no_more_than_the_prefetch_ahead_of_its_program(client: Client, queue: str) -> None:
    """Goal: what a program that dies may lose is bounded, and its memory. Method: 2,000 records in batches of 10, and a
    program that reads none; later it reads all: each once, and everything is settled."""
    async with client.producer(queue, batch_bytes=256) as producer:
        await producer.send_many([b"%d" % number for number in range(2_000)])
    async with client.subscribe(queue, auto_ack=True, prefetch=100) as subscription:
        await subscription.receive(1, timeout_ms=10_000)
        await asyncio.sleep(0.2)  # nothing tells that no more comes
        [group] = (await client.admin.groups(queue)).groups
        assert 100 <= 2_000 - group.unsettled <= 200
        rest = await take(subscription, 1_999)
        assert numbers(rest) == list(range(1, 2_000))
    async with client.subscribe(queue, auto_ack=True, prefetch_bytes=1) as subscription:
        await publish(client, queue, 30, first=2_000)
        assert numbers(await take(subscription, 30)) == list(range(2_000, 2_030))
    [group] = (await client.admin.groups(queue)).groups
    assert group.unsettled == 0


async def test_purging_leaves_what_is_in_hand(client: Client, queue: str) -> None:
    """Goal: `admin.purge`. Method: one in hand of ten; its ack still counts."""
    await publish(client, queue, 10)
    async with client.subscribe(queue, prefetch=1) as subscription:
        [record] = await take(subscription, 1)
        assert await client.admin.purge(queue) == 9
        await record.ack()
        assert await subscription.receive(timeout_ms=100) == []


async def test_leased_records_may_be_extended_and_given_back_one_by_one(client: Client, queue: str) -> None:
    """Goal: each its own time. Method: three leased apart; one is extended, one returned, one forgotten."""
    await publish(client, queue, 5)
    kept, returned, forgotten = await client.lease(queue, max_records=3, lease_ms=1_000, apart=True)
    assert [each.ready for each in (kept, returned, forgotten)] == [2, 2, 2]
    await kept.extend(60_000)
    await returned.nack()
    found: list[bytes | None] = []
    while len(found) < 4:
        found += [each.value for each in await client.lease(queue, lease_ms=60_000, wait_ms=10_000)]
    assert sorted(each or b"" for each in found) == [b"1", b"2", b"3", b"4"]
    with pytest.raises(ReceiptStale):
        await forgotten.ack()
    await kept.ack()


async def test_a_lease_that_is_forgotten_comes_back(client: Client, queue: str) -> None:
    """Goal: visibility timeout. Method: lease briefly, lease again; the old receipts ack what nobody else has got, and
    extend nothing."""
    await publish(client, queue, 3)
    [kept] = await client.lease(queue, max_records=1, lease_ms=60_000)
    assert kept.value == b"0"
    first = await client.lease(queue, max_records=2, lease_ms=200)
    assert [each.value for each in first] == [b"1", b"2"]
    [again] = await client.lease(queue, max_records=1, lease_ms=60_000, wait_ms=10_000)
    assert (again.value, again.redelivered, again.attempts) == (b"1", True, 1)
    with pytest.raises(ReceiptStale):
        await first[0].ack()
    with pytest.raises(NotGranted):
        await first[1].extend(1_000)
    await first[1].ack()
    await again.ack()
    await kept.release()
    [kept_again] = await client.lease(queue, wait_ms=10_000)
    assert (kept_again.value, kept_again.attempts) == (b"0", 0)
    assert await client.settle_receipt(queue, kept_again.receipt)
    assert not await client.settle_receipt(queue, kept_again.receipt)


@pytest.mark.parametrize("options", [{"prefetch": 3}, {"prefetch_bytes": 35 * 1024}])
def test_who_blocks_and_has_all_that_the_prefetch_allows_does_not_wait_for_more(
    shared_cluster: Cluster, queue: str, options: dict[str, int]
) -> None:
    """Goal: records that have crossed to the thread count. Method: one is read, three may be out; ask for ten."""
    with SyncClient(*shared_cluster.servers) as client:
        with client.producer(queue) as producer:
            producer.send_many([b"x" * 10_240] * 6)
        with client.subscribe(queue, **options) as subscription:  # type: ignore[arg-type]
            assert next(subscription).queue_offset == 0
            begun = time.monotonic()
            assert [each.queue_offset for each in subscription.receive(10, timeout_ms=60_000)] == [1, 2]
            assert time.monotonic() - begun < 30


def test_the_synchronous_face_does_the_same(shared_cluster: Cluster, queue: str) -> None:
    """Goal: no `await`. Method: records, batches, acks awaited and not, leases, from a thread without a loop."""
    with SyncClient(*shared_cluster.servers) as client:
        with client.producer(queue) as producer:
            producer.send_many([b"%d" % number for number in range(1_000)])
            producer.flush()
        with client.subscribe(queue, prefetch=600) as subscription:
            for number, record in enumerate(subscription):
                assert record.value == b"%d" % number
                if number == 400:
                    record.ack()
                    break
                record.ack_nowait()
            subscription.flush()
        with client.subscribe(queue) as subscription:
            rest = subscription.receive(599, timeout_ms=10_000)
            assert [record.value for record in rest] == [b"%d" % number for number in range(401, 1_000)]
            # What had crossed to this thread and was not seen went back uncounted.
            assert {record.attempts for record in rest} == {0}
            rest[9].ack(multiple=True)
        with client.subscribe(queue) as subscription:
            batch = next(subscription.batches())
            assert batch.values[0] == b"411"
            batch.ack()
            assert subscription.receive(1, timeout_ms=100) == []
            batch.ack_nowait()
            with pytest.raises(NotGranted, match="settled before"):
                subscription.flush()
        with client.producer(queue) as producer:
            producer.send(b"leased")
        [leased] = client.lease(queue, max_records=1, wait_ms=10_000)
        assert leased.value == b"leased"
        client.extend_receipt(queue, leased.receipt, 60_000)
        assert client.settle_receipt(queue, leased.receipt)
        assert client.admin.purge(queue) == 0
        assert [each.unsettled for each in client.admin.groups(queue).groups] == [0]


# --- The master is killed ---


@pytest.fixture
async def own() -> AsyncIterator[tuple[Cluster, Client]]:
    """Three copies of which two are enough, so that one may die."""
    with fast_cluster(3, min_in_sync=2) as cluster:
        cluster.wait_in_sync()
        async with Client(*cluster.servers) as connected:
            await connected.admin.declare("q")
            yield cluster, connected


async def kill_master(cluster: Cluster, client: Client) -> None:
    info = await client.queue_info("q")
    cluster.nodes[info.master].kill()


async def test_what_was_acknowledged_at_all_never_comes_again_and_the_rest_comes_in_order(
    own: tuple[Cluster, Client],
) -> None:
    """Goal: no ack confirmed at `all` comes back; unsettled records come again in order, flagged; what was never given
    out is not flagged. Method: ack every third of a hundred, kill the master, read on."""
    cluster, client = own
    await publish(client, "q", 100)
    async with client.subscribe("q", prefetch=100) as subscription:
        found = await take(subscription, 100)
        await asyncio.gather(*(each.ack() for each in found[::3]))
        await kill_master(cluster, client)
        left = [number for number in range(100) if number % 3]
        again = await take(subscription, len(left))
        assert numbers(again) == left
        assert all(each.redelivered for each in again)
        # What is held from before may be acknowledged all the same.
        await found[1].ack()
        await asyncio.gather(*(each.ack() for each in again[1:]))
        await publish(client, "q", 1, first=100)
        assert numbers(await take(subscription, 1)) == [100]
    async with client.subscribe("q") as subscription:
        assert numbers(await take(subscription, 1)) == [100]
        assert await subscription.receive(timeout_ms=200) == []


async def test_acks_on_their_way_when_the_master_dies_are_told_to_the_next(own: tuple[Cluster, Client]) -> None:
    """Goal: who acknowledges all the time loses none of it. Method: a worker that acks without waiting while the
    master is killed; each record is seen, and behind the end none is left."""
    cluster, client = own
    await publish(client, "q", 3_000)
    seen: set[int] = set()
    killed: asyncio.Task[None] | None = None
    async with asyncio.timeout(60), client.subscribe("q", prefetch=200) as subscription:
        while len(seen) < 3_000:
            [record] = await take(subscription, 1)
            seen.add(int(record.value or b""))
            record.ack_nowait()
            if len(seen) == 1_000 and killed is None:
                killed = asyncio.ensure_future(kill_master(cluster, client))
        try:
            await subscription.flush()
        except MirrorlogError as error:
            pytest.fail(f"an ack was lost: {error}")
    assert seen == set(range(3_000))
    async with client.subscribe("q") as subscription:
        assert await subscription.receive(timeout_ms=300) == []


async def test_a_prefetch_that_was_set_and_a_pause_outlive_their_master(own: tuple[Cluster, Client]) -> None:
    """Goal: the next master bounds as the last one was told to. Method: one of three in hand, paused; the master is
    killed, which gives nothing; resumed, two come."""
    cluster, client = own
    await publish(client, "q", 100)
    async with client.subscribe("q", prefetch=50) as subscription:
        await subscription.set_prefetch(2)
        await subscription.pause()
        await kill_master(cluster, client)
        async with asyncio.timeout(30):
            while subscription.session is not None and subscription.session.epoch == 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await given(client, "q", 0)
        await subscription.resume()
        await given(client, "q", 2)
        assert numbers(await subscription.receive(50, timeout_ms=600_000)) == [0, 1]


async def test_a_lease_outlives_its_master(own: tuple[Cluster, Client]) -> None:
    """Goal: holder, duration and receipt survive a failover. Method: lease, kill the master; nobody else gets it, the
    receipt extends and acks."""
    cluster, client = own
    await publish(client, "q", 2)
    [leased] = await client.lease("q", max_records=1, lease_ms=60_000)
    await kill_master(cluster, client)
    [other] = await client.lease("q", max_records=2, wait_ms=10_000)
    assert (leased.value, other.value) == (b"0", b"1")
    await leased.extend(60_000)
    assert await client.settle_receipt("q", leased.receipt)
    await other.ack()
    assert [each.unsettled for each in (await client.admin.groups("q")).groups] == [0]
