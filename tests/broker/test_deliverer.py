"""Acking groups on real nodes over plain connections: what is delivered, settled, returned, leased, and what becomes of
it when a connection, a master or a process goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import uvloop

from mirrorlog import versions
from mirrorlog.broker.consumer_groups import active_groups as gathered
from mirrorlog.broker.consumer_groups.coordinator import Deliverer
from mirrorlog.broker.consumer_groups.leases import APART_MAX
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.session import group_requests
from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.commitlog.format.body_reader import parse_batch_body
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.config import HaSettings, Settings
from mirrorlog.errors import (
    BadRequest,
    ConsumerTimedOut,
    ExclusiveTaken,
    MirrorlogError,
    NoSuchGroup,
    NoSuchQueue,
    NoSuchSubscription,
    NotGranted,
    NotMaster,
    OutcomeUnknown,
    Overloaded,
    ReceiptStale,
    SubscriptionCancelled,
    UnsupportedVersion,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import GRANT_REDELIVERED, Deliver, Grant, How, Level, read_grants
from mirrorlog.wire.messages.groups import (
    DeleteGroup,
    ExtendLease,
    GroupInfo,
    GroupsFound,
    Lease,
    LeasedRange,
    Leases,
    LeasesSettled,
    ListGroups,
    Purged,
    PurgeGroup,
    SettleLease,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from mirrorlog.wire.messages.queues import Done
from tests.broker.hosting import hand_over, promotable, running_all, take_over
from tests.ha.nodes import Node, cluster_settings, hosted_by, replica_of, until

TIMEOUT_MS = 10_000


class Taker:
    """A subscriber: what it was granted, in the order in which it came, and the bytes that came with it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.grants: list[Grant] = []
        self.values: dict[int, bytes] = {}
        self.batches = 0
        self.error: MirrorlogError | None = None
        self.answer: Subscribed | None = None

    async def subscribe(self, **options: Any) -> Taker:
        """Raises what the node answers."""
        self.connection.subscribe(Subscribe(**{"queue": "q", **options}), self)
        await until(lambda: self.answer is not None or self.error is not None)
        if self.error is not None:
            raise self.error
        return self

    @property
    def number(self) -> int:
        assert self.answer is not None
        return self.answer.subscription

    @property
    def epoch(self) -> int:
        assert self.answer is not None
        return self.answer.epoch

    @property
    def offsets(self) -> list[int]:
        """Every record granted, in order."""
        return [each for grant in self.grants for each in range(grant.first, grant.next)]

    async def has(self, count: int) -> list[int]:
        """Wait until so many records were granted."""
        await until(lambda: len(self.offsets) >= count)
        return self.offsets

    async def settle(self, *ranges: int, how: int = How.ACK, epoch: int | None = None, **options: Any) -> None:
        """Raises what the node answers."""
        done: asyncio.Future[MirrorlogError | None] = asyncio.get_running_loop().create_future()
        self.connection.settle(
            ranges,
            subscription=options.pop("subscription", None) or self.number,
            epoch=self.epoch if epoch is None else epoch,
            how=how,
            level=options.get("level", Level.ALL),
            delay_ms=options.get("delay_ms", 0),
            again=options.get("again", False),
            done=done.set_result,
        )
        async with asyncio.timeout(10):
            if (error := await done) is not None:
                raise error

    # --- Subscriber ---

    def subscribed(self, answer: Subscribed) -> None:
        self.answer = answer

    def delivered(self, facts: Deliver, content: memoryview) -> None:
        assert facts.subscription == self.number
        grants, batches = read_grants(content, facts.grant_count)
        self.grants += grants
        self.batches += facts.batch_count
        while batches:
            header = read_header(batches)
            values = parse_batch_body(batches[: header.length]).values
            for index in range(header.record_count):
                self.values[header.base_queue_offset + index] = bytes(values[index] or b"")
            batches = batches[header.length :]

    def ended(self, error: MirrorlogError) -> None:
        self.error = error

    def room(self, size: int) -> memoryview:
        return memoryview(bytearray(size))


class Group:
    """A queue `q` of one cluster in this process."""

    def __init__(self, client: Client, nodes: list[Node]) -> None:
        self.client = client
        self.nodes = nodes

    async def connect(self, node: int = 0) -> Connection:
        return await Connection.open(self.nodes[node].settings.client_bind)

    async def taker(self, node: int = 0, **options: Any) -> Taker:
        return await Taker(await self.connect(node)).subscribe(**options)

    async def publish(self, first: int, until: int, **options: Any) -> None:
        async with self.client.producer("q", **options) as producer:
            await producer.send_many([b"%d" % each for each in range(first, until)])

    async def ask(self, message: Any, answer: type[Any], node: int = 0) -> Any:
        connection = await self.connect(node)
        try:
            return await connection.request(message, answer, timeout_ms=TIMEOUT_MS)
        finally:
            connection.close()

    async def lease(self, records_max: int, node: int = 0, **options: Any) -> list[LeasedRange]:
        wish = {"queue": "q", "records_max": records_max, "lease_ms": 600_000, **options}
        return list((await self.ask(Lease(**wish), Leases, node)).leased)

    async def info(self, group: str = "", node: int = 0) -> GroupInfo:
        found = await self.ask(ListGroups(queue="q"), GroupsFound, node)
        return next(each for each in found.groups if each.group == group)

    def deliverer(self, node: int = 0) -> Deliverer:
        deliverer = hosted_by(self.nodes[node]).deliverer
        assert deliverer is not None
        return deliverer


@asynccontextmanager
async def group(
    root: Path, copies: int = 1, limits: dict[str, Any] | None = None, **arguments: Any
) -> AsyncIterator[Group]:
    settings = cluster_settings(root, copies=copies, ha=HaSettings(reconnect_interval_ms=20))
    settings = [_with_limits(each, limits or {}) for each in settings]
    async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
        await client.admin.declare("q", {name.replace("_", "-"): value for name, value in arguments.items()})
        yield Group(client, nodes)


def _with_limits(settings: Settings, limits: dict[str, Any]) -> Settings:
    return settings.model_copy(update={"limits": settings.limits.model_copy(update=limits)})


def run(test: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(test())  # type: ignore[arg-type]


# --- what is delivered ---


def test_records_come_in_order_with_their_bytes_and_are_gone_once_acked(tmp_path: Path) -> None:
    """Published before and after the subscription; each once, each batch's bytes once; after the acks a new subscriber
    gets nothing but what is new."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 100)
            taker = await it.taker()
            await taker.has(100)
            await it.publish(100, 150)
            assert await taker.has(150) == list(range(150))
            assert taker.values == {each: b"%d" % each for each in range(150)}
            assert not any(grant.redelivered or grant.attempts for grant in taker.grants)
            await taker.settle(0, 150)
            assert (await it.info()).floor == 150
            taker.connection.close()
            await until(lambda: it.deliverer().subscribers(1, "") == 0)
            again = await it.taker()
            await it.publish(150, 151)
            assert await again.has(1) == [150]

    run(test)


def test_prefetch_is_what_is_in_hand_at_most_and_a_batch_s_bytes_come_once(tmp_path: Path) -> None:
    """A batch of 20, three records at a time."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 20)
            taker = await it.taker(prefetch_records=3)
            for first in range(0, 18, 3):
                assert await taker.has(first + 3) == list(range(first + 3))
                await asyncio.sleep(0)
                assert (await it.info()).out == 3
                await taker.settle(first, first + 3)
            assert await taker.has(20) == list(range(20))
            assert taker.batches == 1

    run(test)


def test_two_subscribers_share_what_comes(tmp_path: Path) -> None:
    """Each record goes to one of them, and each of them gets some."""

    async def test() -> None:
        async with group(tmp_path) as it:
            takers = [await it.taker(prefetch_records=4) for _ in range(2)]
            await it.publish(0, 8)
            await until(lambda: sum(len(each.offsets) for each in takers) == 8)
            assert sorted(takers[0].offsets + takers[1].offsets) == list(range(8))
            assert all(len(each.offsets) == 4 for each in takers)

    run(test)


def test_each_group_has_every_record(tmp_path: Path) -> None:
    """The queue's own group and a named one; a stream group's name is taken."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 5)
            for name in ("", "other"):
                taker = await it.taker(group=name)
                assert await taker.has(5) == list(range(5))
                await taker.settle(0, 5)
            async with it.client.consumer("q", group="stream", until="confirmed") as consumer:
                async for _ in consumer:
                    pass
                await consumer.commit()
            with pytest.raises(BadRequest, match="stream"):
                await it.taker(group="stream")
            found = await it.ask(ListGroups(queue="q"), GroupsFound)
            assert {each.group: (each.kind, each.floor) for each in found.groups} == {
                "": ("acking", 5), "other": ("acking", 5), "stream": ("stream", 5),
            }  # fmt: skip

    run(test)


def test_auto_ack_settles_what_it_sends(tmp_path: Path) -> None:
    """Nothing is in hand, nothing comes back when the connection goes. No more is sent than the prefetch ahead of what
    the client says that its program has taken."""

    async def test() -> None:
        async with group(tmp_path) as it:
            taker = await it.taker(auto_ack=True, prefetch_records=30)
            await it.publish(0, 50)
            assert await taker.has(30) == list(range(30))
            info = await it.info()
            assert (info.floor, info.unsettled, info.out) == (30, 20, 0)
            await taker.settle(0, 30, how=How.EXTEND)
            assert await taker.has(50) == list(range(50))
            info = await it.info()
            assert (info.floor, info.unsettled, info.out) == (50, 0, 0)

    run(test)


def test_records_whose_bytes_left_the_memory_are_granted_without_them(tmp_path: Path) -> None:
    """The index of the past has them: the subscriber is told which they are, and fetches."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            replica = replica_of(it.nodes[0])
            replica.log.read = lambda log_offset, max_bytes, *, until: None  # type: ignore[method-assign]
            taker = await it.taker()
            assert await taker.has(10) == list(range(10))
            assert taker.batches == 0

    run(test)


def test_a_slow_reader_is_given_what_its_connection_takes(tmp_path: Path) -> None:
    """It does not read while 20 MiB are published, with two subscriptions: it is not thrown out, the node holds little
    for it, and everything comes when it reads."""

    async def test() -> None:
        async with group(tmp_path, limits={"outgoing_bytes_max": 12 * 1024 * 1024}) as it:
            taker = await it.taker()
            other = await Taker(taker.connection).subscribe(group="other")
            endpoint = taker.connection._endpoint
            assert endpoint is not None
            assert endpoint._transport is not None
            endpoint._transport.pause_reading()
            async with it.client.producer("q") as producer:
                await producer.send_many([bytes(16 * 1024)] * 1280)
            pushed = it.deliverer()._pushed
            assert all(each.work.delivery.subscribers.find(number).held for number, each in pushed.items())
            endpoint._transport.resume_reading()
            assert await taker.has(1280) == list(range(1280))
            assert await other.has(1280) == list(range(1280))
            assert sum(map(len, taker.values.values())) == 1280 * 16 * 1024

    run(test)


# --- what becomes of it ---


def test_what_is_nacked_comes_again_at_its_place_and_counted(tmp_path: Path) -> None:
    """Before what follows it in the queue."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 6)
            taker = await it.taker(prefetch_records=4)
            await taker.has(4)
            await taker.settle(1, 3, how=How.RETURN)
            await taker.has(6)
            await taker.settle(0, 4)
            await taker.has(8)
            assert taker.offsets == [0, 1, 2, 3, 1, 2, 4, 5]
            assert [(grant.redelivered, grant.attempts) for grant in taker.grants if grant.first == 1] == [(True, 1)]

    run(test)


def test_what_a_connection_had_goes_to_others_when_it_goes(tmp_path: Path) -> None:
    """Redelivered, one attempt more, in order; what it had settled stays settled."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            first = await it.taker()
            await first.has(10)
            await first.settle(0, 4)
            other = await it.taker()
            first.connection.close()
            assert await other.has(6) == list(range(4, 10))
            assert [(grant.redelivered, grant.attempts) for grant in other.grants] == [(True, 1)]

    run(test)


def test_what_one_had_who_leaves_goes_to_others_though_nothing_can_be_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log takes nothing. What is released beside a return is free; the return is refused, and stays in hand until
    its subscriber leaves. His connection lasts. Flagged, and not counted."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            first = await it.taker()
            await first.has(10)
            publisher = hosted_by(it.nodes[0]).publisher
            assert publisher is not None

            def refuse(batch: bytearray, changes: Any = None) -> int:
                raise Overloaded("not now", limit="test")

            async def unsubscribe(**options: bool) -> None:
                message = Unsubscribe(subscription=first.number, **options)
                await first.connection.request(message, Done, timeout_ms=TIMEOUT_MS)

            with monkeypatch.context() as patched:
                patched.setattr(publisher, "append_settlement", refuse)
                await unsubscribe()
                released = asyncio.ensure_future(first.settle(6, 10, how=How.RELEASE))
                with pytest.raises(Overloaded):
                    await first.settle(0, 6, how=How.RETURN)
                await released
                assert (await it.info()).out == 6
                await unsubscribe(leaves=True)
                assert (await it.info()).out == 0
            with pytest.raises(NoSuchSubscription):
                await first.settle(0, 6)
            last = await it.taker()
            assert await last.has(10) == list(range(10))
            assert last.grants == [Grant(0, 6, GRANT_REDELIVERED, 0), Grant(6, 10, 0, 0)]

    run(test)


def test_an_ack_that_was_lost_with_its_connection_is_said_again_on_the_next_one(tmp_path: Path) -> None:
    """In the same epoch: what lies free is settled, what another subscriber has by now is passed over."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            first = await it.taker()
            await first.has(10)
            first.connection.close()
            await until(lambda: it.deliverer().subscribers(1, "") == 0)
            other = await it.taker(prefetch_records=2)
            assert await other.has(2) == [0, 1]
            again = await it.taker(prefetch_records=1)
            await again.has(1)
            with pytest.raises(NotGranted, match="2 of the records"):
                await again.settle(0, 10, again=True)
            info = await it.info()
            assert (info.floor, info.unsettled, info.out) == (0, 2, 2)
            await other.settle(0, 2)
            with pytest.raises(NotGranted):
                await again.settle(10, 11, again=True)

    run(test)


def test_a_release_counts_nothing_and_a_reject_ends_a_record(tmp_path: Path) -> None:
    """Three records: one released, one rejected, one acked."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 3)
            taker = await it.taker()
            await taker.has(3)
            await taker.settle(0, 1, how=How.DEAD)
            await taker.settle(2, 3)
            await taker.settle(1, 2, how=How.RELEASE)
            assert (await taker.has(4))[3] == 1
            assert (taker.grants[-1].redelivered, taker.grants[-1].attempts) == (False, 0)
            assert (await it.info()).floor == 1

    run(test)


def test_a_delay_holds_a_returned_record_back(tmp_path: Path) -> None:
    """It is parked, others go on, and then it comes."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 2)
            taker = await it.taker(prefetch_records=1)
            await taker.has(1)
            await taker.settle(0, 1, how=How.RETURN, delay_ms=60)
            assert (await taker.has(2))[1] == 1
            assert (await it.info()).parked == 1
            await taker.settle(1, 2)
            assert (await taker.has(3))[2] == 0

    run(test)


def test_a_record_that_came_back_too_often_is_given_to_nobody(tmp_path: Path) -> None:
    """With a delivery limit of 2 it is delivered three times."""

    async def test() -> None:
        async with group(tmp_path, x_delivery_limit=2) as it:
            await it.publish(0, 1)
            taker = await it.taker()
            for count in range(1, 4):
                await taker.has(count)
                assert taker.grants[-1].attempts == count - 1
                await taker.settle(0, 1, how=How.RETURN)
            info = await it.info()
            assert (info.floor, info.unsettled) == (1, 0)
            assert len(taker.offsets) == 3

    run(test)


def test_a_settlement_is_answered_at_its_level(tmp_path: Path) -> None:
    """The mirror does not follow: `none` and `master` are answered, `all` only when it does again. Nothing is given out
    meanwhile that the confirmed watermark does not cover."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 6)
            taker = await it.taker(prefetch_records=3)
            await taker.has(3)
            mirror = hosted_by(it.nodes[1])
            assignment, epoch = mirror.assignment, mirror.facts().epoch_known
            await promotable(mirror)
            await mirror.step_down()
            await taker.settle(0, 1, level=Level.NONE)
            await taker.settle(1, 2, level=Level.MASTER)
            waiting = asyncio.ensure_future(taker.settle(2, 3, level=Level.ALL))
            await until(lambda: replica_of(it.nodes[0]).groups.find(1, "").floor == 3)
            assert not waiting.done()
            assert len(taker.offsets) == 3
            await mirror.follow(assignment, epoch=epoch)
            await waiting
            assert await taker.has(6) == list(range(6))

    run(test)


def test_what_a_subscriber_may_not_settle(tmp_path: Path) -> None:
    """What another one has, what nobody has, what is no range, another connection's subscription, an unknown level; and
    nothing of such a frame counts. What is settled already is answered as the first time."""

    async def test() -> None:
        async with group(tmp_path, limits={"max_ranges_per_settle": 2}) as it:
            await it.publish(0, 4)
            one = await it.taker(prefetch_records=2)
            await one.has(2)
            two = await it.taker(prefetch_records=2)
            await two.has(2)
            for ranges in ((0, 3), (3, 4), (0, 1, 50, 51)):
                with pytest.raises(NotGranted):
                    await one.settle(*ranges)
            for ranges in ((1, 0), (0, 0), (1, 2, 0, 1)):
                with pytest.raises(BadRequest):
                    await one.settle(*ranges)
            with pytest.raises(BadRequest, match="max_ranges_per_settle"):
                await one.settle(0, 1, 1, 2, 2, 3)
            for options in ({"how": 9}, {"level": 3}):
                with pytest.raises(BadRequest):
                    await one.settle(0, 1, **options)
            with pytest.raises(NoSuchSubscription):
                await one.settle(2, 3, subscription=two.number)
            with pytest.raises(NotGranted):
                await one.settle(0, 1, epoch=one.epoch + 1)
            assert (await it.info()).unsettled == 4
            await one.settle(0, 2)
            await one.settle(0, 2)
            await one.settle()
            assert (await it.info()).floor == 2

    run(test)


def test_who_has_had_a_record_for_too_long_loses_its_subscription(tmp_path: Path) -> None:
    """By the consumer timeout; the record goes to another one."""

    async def test() -> None:
        async with group(tmp_path, x_consumer_timeout=80) as it:
            await it.publish(0, 1)
            slow = await it.taker()
            await slow.has(1)
            other = await it.taker()
            await until(lambda: slow.error is not None)
            assert isinstance(slow.error, ConsumerTimedOut)
            assert await other.has(1) == [0]
            with pytest.raises(NoSuchSubscription):
                await slow.settle(0, 1)
            await other.settle(0, 1)

    run(test)


# --- who may take ---


def test_one_may_have_a_group_for_itself(tmp_path: Path) -> None:
    """An exclusive subscriber keeps all others out, leases too, until it is gone; and comes in where nobody is only."""

    async def test() -> None:
        async with group(tmp_path) as it:
            alone = await it.taker(exclusive=True)
            for options in ({}, {"exclusive": True}):
                with pytest.raises(ExclusiveTaken):
                    await it.taker(**options)
            with pytest.raises(ExclusiveTaken):
                await it.lease(1)
            alone.connection.close()
            await until(lambda: it.deliverer().subscribers(1, "") == 0)
            await it.taker()
            with pytest.raises(ExclusiveTaken):
                await it.taker(exclusive=True)

    run(test)


def test_a_single_active_consumer_has_all_until_it_goes(tmp_path: Path) -> None:
    """The next one takes over, in order."""

    async def test() -> None:
        async with group(tmp_path, x_single_active_consumer=True) as it:
            first, second = await it.taker(), await it.taker()
            await it.publish(0, 10)
            await first.has(10)
            assert second.offsets == []
            await first.settle(0, 3)
            first.connection.close()
            assert await second.has(7) == list(range(3, 10))

    run(test)


def test_a_node_has_so_many_subscriptions_at_most(tmp_path: Path) -> None:
    """One more is refused by the limit's name; there is room again when one is gone."""

    async def test() -> None:
        async with group(tmp_path, limits={"max_subscriptions": 1}) as it:
            taker = await it.taker()
            with pytest.raises(Overloaded, match="max_subscriptions"):
                await it.taker()
            taker.connection.close()
            await until(lambda: it.deliverer().subscribers(1, "") == 0)
            await it.taker()

    run(test)


def test_a_mirror_sends_on_and_an_older_cluster_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscribe, lease and purge at a mirror; then as if the cluster ran at the version before: only its master says
    so."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await until(lambda: replica_of(it.nodes[1]).queues.get("q") is not None)
            with pytest.raises(NotMaster) as refused:
                await it.taker(1)
            assert refused.value.details["master"] == it.nodes[0].settings.client_bind
            for message in (Lease(queue="q"), PurgeGroup(queue="q"), ListGroups(queue="q")):
                with pytest.raises(NotMaster):
                    await it.ask(message, Done, 1)
            with pytest.raises(NoSuchQueue):
                await it.taker(queue="other")
            with mock.patch.object(versions, "ORDERED_GROUPS", versions.OWN + 1):
                for message in (Subscribe(queue="q", ordered_by="key"), Lease(queue="q", ordered_by="key")):
                    with pytest.raises(UnsupportedVersion, match="ordered by key"):
                        await it.ask(message, Leases)
            monkeypatch.setattr(versions, "GROUPS", versions.OWN + 1)
            with pytest.raises(UnsupportedVersion):
                await it.taker()
            with pytest.raises(NotMaster):  # who has not heard its cluster yet may know of an older version only
                await it.taker(1)

    run(test)


# --- leases ---


def test_a_lease_is_given_extended_and_settled_by_its_receipts(tmp_path: Path) -> None:
    """Waits for a record, hands it out once, extends, acks."""

    async def test() -> None:
        async with group(tmp_path) as it:
            assert await it.lease(5) == []
            waiting = asyncio.ensure_future(it.lease(3, wait_ms=10_000, holder="me"))
            await until(lambda: it.deliverer().leasing.waiting > 0)
            await it.publish(0, 5)
            (first,) = await waiting
            assert (first.first, first.next, first.redelivered) == (0, 3, False)
            (rest,) = await it.lease(5)
            assert (rest.first, rest.next) == (3, 5)
            assert rest.lease != first.lease
            await it.ask(ExtendLease(queue="q", receipts=[first], lease_ms=600_000), LeasesSettled)
            done = await it.ask(SettleLease(queue="q", receipts=[first], how=How.ACK), LeasesSettled)
            assert done.records == 3
            info = await it.info()
            assert (info.floor, info.leased) == (3, 2)
            with pytest.raises(NotGranted):
                await it.ask(ExtendLease(queue="q", receipts=[first], lease_ms=1000), LeasesSettled)
            await it.ask(SettleLease(queue="q", receipts=[rest], how=How.RELEASE), LeasesSettled)
            (again,) = await it.lease(5)
            assert (again.first, again.next, again.attempts) == (3, 5, 0)

    run(test)


def test_leases_tell_how_many_are_ready_beside_them_and_are_one_or_each_its_own(tmp_path: Path) -> None:
    """Goal: basic.get's count without a question more. Method: of forty records some leased, acked and delayed; then
    more apart than are given together."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 40)
            wish = {"queue": "q", "lease_ms": 600_000}
            first = await it.ask(Lease(records_max=2, **wish), Leases)
            assert (first.ready, len(first.leased)) == (38, 1)
            delayed = [LeasedRange(first=0, next=1, lease=first.leased[0].lease)]
            await it.ask(SettleLease(queue="q", receipts=delayed, how=How.RETURN, delay_ms=600_000), LeasesSettled)
            apart = await it.ask(Lease(records_max=40, apart=True, **wish), Leases)
            assert [(each.first, each.next) for each in apart.leased] == [(at, at + 1) for at in range(2, 27)]
            assert len({each.lease for each in apart.leased}) == APART_MAX
            assert apart.ready == 13
            await it.ask(SettleLease(queue="q", receipts=apart.leased[:1], how=How.RELEASE), LeasesSettled)
            with pytest.raises(NotGranted):
                await it.ask(ExtendLease(queue="q", receipts=apart.leased[:2], lease_ms=1000), LeasesSettled)
            await it.ask(ExtendLease(queue="q", receipts=apart.leased[1:2], lease_ms=1000), LeasesSettled)
            last = await it.ask(Lease(records_max=20, **wish), Leases)
            assert last.ready == 0
            assert (await it.ask(Lease(records_max=20, **wish), Leases)).ready == 0

    run(test)


def test_a_lease_that_does_not_wait_ends_behind_a_look_and_not_before_it(tmp_path: Path) -> None:
    """Goal: who asks for records that are there gets them. Method: the clock strikes between the question and the turn
    of the loop that looks."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 3)
            answers: list[Any] = []
            deliverer, loop = it.deliverer(), asyncio.get_running_loop()
            queue_id = replica_of(it.nodes[0]).queues.find("q").queue_id
            wish = Lease(queue="q", records_max=3, lease_ms=600_000)
            deliverer.leasing.lease(wish, queue_id, mock.Mock(), answers.append)
            deliverer.tick(loop.time())
            await until(lambda: bool(answers))
            assert [(each.first, each.next) for each in answers[0].leased] == [(0, 3)]

    run(test)


def test_a_receipt_waits_until_a_new_master_knows_what_was_leased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master whose epoch has just begun, and which was killed before, takes for confirmed what its disk says: who
    settles then what he leased behind that is answered when the epoch's first batch is confirmed."""
    waiting: list[Callable[[MirrorlogError | None], None]] = []

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 3)
            (leased,) = await it.lease(3)
            hosted = hosted_by(it.nodes[0])
            monkeypatch.setattr(HostedLog, "knows_confirmed", False)
            monkeypatch.setattr(type(hosted.publisher), "when_confirmed", lambda _, done: waiting.append(done))
            monkeypatch.setattr(type(hosted.replica.index), "next_confirmed", lambda _, queue_id: 0)
            asked = asyncio.ensure_future(it.ask(SettleLease(queue="q", receipts=[leased], how=How.ACK), LeasesSettled))
            await until(lambda: bool(waiting) or asked.done())
            assert not asked.done(), asked.result()
            monkeypatch.undo()
            waiting.pop()(None)
            assert (await asked).records == 3

    run(test)


def test_what_is_logged_of_an_extension_counts_though_the_rest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten leases are extended together, in several batches of which the log takes the first: these go on, and the
    others end at their time."""
    monkeypatch.setattr(gathered, "CHANGES_BYTES_MAX", 500)

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            receipts = [each for _ in range(10) for each in await it.lease(1, lease_ms=2500)]
            publisher = hosted_by(it.nodes[0]).publisher
            assert publisher is not None
            append, taken = publisher.append_settlement, list[bytearray]()

            def one_alone(batch: bytearray, changes: Any = None) -> int:
                if taken:
                    raise Overloaded("not now", limit="test")
                taken.append(batch)
                return append(batch, changes)

            with monkeypatch.context() as patched:
                patched.setattr(publisher, "append_settlement", one_alone)
                with pytest.raises(OutcomeUnknown):
                    await it.ask(ExtendLease(queue="q", receipts=receipts, lease_ms=600_000), LeasesSettled)
            ledger = replica_of(it.nodes[0]).groups.find(1, "")
            extended = [number for number, row in ledger.leases.items() if row.lease_ms == 600_000]
            assert 0 < len(extended) < 10
            await until(lambda: list(ledger.leases) == extended)

    run(test)


def test_a_lease_that_ends_gives_its_records_back_and_its_receipt_still_acks(tmp_path: Path) -> None:
    """While nobody has them; what the next holder has, counted, is his alone."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 2)
            (old,) = await it.lease(2, lease_ms=20)
            (new,) = await it.lease(1, wait_ms=10_000)
            assert (new.first, new.next, new.redelivered, new.attempts) == (0, 1, True, 1)
            with pytest.raises(ReceiptStale):
                await it.ask(SettleLease(queue="q", receipts=[old], how=How.ACK), LeasesSettled)
            free = LeasedRange(first=1, next=2, lease=old.lease)
            returned = await it.ask(SettleLease(queue="q", receipts=[free], how=How.RETURN), LeasesSettled)
            assert returned.records == 0
            assert (await it.ask(SettleLease(queue="q", receipts=[free], how=How.ACK), LeasesSettled)).records == 1
            info = await it.info()
            assert (info.floor, info.unsettled, info.leased) == (0, 1, 1)

    run(test)


def test_bad_leases_are_refused(tmp_path: Path) -> None:
    """No records, no time, receipts of what is not there."""

    async def test() -> None:
        async with group(tmp_path) as it:
            for options in ({"records_max": 0}, {"lease_ms": 0}, {"holder": "x" * 300}):
                with pytest.raises(BadRequest):
                    await it.ask(Lease(queue="q", **options), Leases)
            for receipts in ([], [LeasedRange(first=0, next=1, lease=1)], [LeasedRange(first=2, next=1, lease=1)]):
                with pytest.raises(BadRequest):
                    await it.ask(SettleLease(queue="q", receipts=receipts, how=How.ACK), LeasesSettled)
            unknown = SettleLease(queue="q", group="no", receipts=[LeasedRange(first=0, next=1, lease=1)], how=How.ACK)
            with pytest.raises(NoSuchGroup):
                await it.ask(unknown, LeasesSettled)

    run(test)


# --- groups ---


def test_a_purge_takes_what_is_ready_and_a_deleted_group_ends_its_subscribers(tmp_path: Path) -> None:
    """What is in hand stays; the group is gone afterwards, and made anew it begins anew."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            taker = await it.taker(group="g", prefetch_records=2)
            await taker.has(2)
            assert (await it.ask(PurgeGroup(queue="q", group="g"), Purged)).records == 8
            info = await it.info("g")
            assert (info.ready, info.unsettled, info.out) == (0, 2, 2)
            await it.ask(DeleteGroup(queue="q", group="g"), Done)
            await until(lambda: taker.error is not None)
            assert isinstance(taker.error, SubscriptionCancelled)
            with pytest.raises(NoSuchGroup):
                await it.ask(DeleteGroup(queue="q", group="g"), Done)
            with pytest.raises(BadRequest):
                await it.ask(DeleteGroup(queue="q", group=""), Done)
            again = await it.taker(group="g")
            assert await again.has(10) == list(range(10))
            assert not any(grant.redelivered for grant in again.grants)

    run(test)


def test_a_group_that_nobody_takes_from_costs_the_master_nothing(tmp_path: Path) -> None:
    """After the last subscriber there is no delivery of it, and nothing planned."""

    async def test() -> None:
        async with group(tmp_path) as it:
            taker = await it.taker()
            await it.publish(0, 3)
            await taker.has(3)
            await taker.settle(0, 3)
            taker.connection.close()
            await until(lambda: not it.deliverer()._works)
            deliverer = it.deliverer()
            assert [*deliverer._works._of_queue, *deliverer._pushed.items(), *deliverer._works.awake] == []
            assert (await it.info()).watermark == 3

    run(test)


# --- another master ---


def test_after_a_clean_handover_only_what_was_given_out_is_flagged(tmp_path: Path) -> None:
    """The subscriber is sent to the new master; what it had comes again there, flagged; what it had not, unflagged; an
    ack of the old epoch is taken there."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 10)
            taker = await it.taker(prefetch_records=4)
            await taker.has(4)
            await taker.settle(0, 1)
            await taker.has(5)
            old, new = (hosted_by(each) for each in it.nodes)
            await old.come_to_end(5.0)
            await hand_over(old, new)
            await until(lambda: taker.error is not None)
            assert isinstance(taker.error, NotMaster)
            again = await Taker(await it.connect(1)).subscribe(prefetch_records=1)
            await again.settle(1, 3, epoch=taker.epoch)
            await until(lambda: again.offsets != [])
            await again.settle(again.offsets[0], again.offsets[0] + 1)
            while len(again.offsets) < 9 - (1 not in again.offsets) - 1:
                count = len(again.offsets)
                await again.has(count)
                await again.settle(again.offsets[-1], again.offsets[-1] + 1)
            flags = {grant.first: grant.redelivered for grant in again.grants}
            assert {each: flag for each, flag in flags.items() if each >= 3} == {
                each: each < 5 for each in range(3, 10)
            }
            with pytest.raises(NotGranted):
                await again.settle(9, 10, 20, 21, epoch=taker.epoch)

    run(test)


def test_what_was_not_confirmed_when_a_master_was_replaced_comes_again(tmp_path: Path) -> None:
    """Without a word to the old master: acks that were answered hold, all else comes again, in order."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 20)
            taker = await it.taker()
            await taker.has(20)
            await taker.settle(3, 9)
            await take_over(*(hosted_by(each) for each in it.nodes))
            again = await Taker(await it.connect(1)).subscribe()
            assert await again.has(14) == [*range(3), *range(9, 20)]
            assert all(grant.redelivered for grant in again.grants)

    run(test)


def test_who_takes_and_who_has_leases_is_told(tmp_path: Path) -> None:
    """Goal: the sentence that a lease's holder survives a failover, and that a subscription's name is for people.
    Method: two leases, one of them extended, and two subscribers; then another master: the leases are the same, their
    times begin anew; who subscribes there is told of."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 5)
            (first,) = await it.lease(2, holder="worker-7", lease_ms=500_000)
            (second,) = await it.lease(1, holder="worker-8")
            await it.ask(ExtendLease(queue="q", receipts=[first], lease_ms=400_000), LeasesSettled)
            await (await it.taker(name="billing", priority=3)).has(2)
            await it.taker(name="spare", priority=1)
            info = await it.info()
            assert [(each.name, each.priority, each.in_hand, each.alone) for each in info.consumers] == [
                ("billing", 3, 2, False),
                ("spare", 1, 0, False),
            ]
            assert all(each.peer for each in info.consumers)
            held = [(first.lease, "worker-7", 2, 400_000), (second.lease, "worker-8", 1, 600_000)]
            check_leases(info, held)
            await take_over(*map(hosted_by, it.nodes))
            await until_known(it, 1)
            info = await it.info(node=1)
            assert info.consumers == []
            check_leases(info, held)
            await it.taker(1, name="alone", exclusive=True, prefetch_records=1)
            assert [(each.name, each.alone) for each in (await it.info(node=1)).consumers] == [("alone", True)]
            await it.ask(SettleLease(queue="q", receipts=[second], how=How.ACK), LeasesSettled, 1)
            check_leases(await it.info(node=1), held[:1])

    run(test)


def check_leases(info: GroupInfo, held: list[tuple[int, str, int, int]]) -> None:
    """`held`: lease, holder, records, and how long it is in ms; it began within the last minute."""
    assert [(each.lease, each.holder, each.records) for each in info.leases] == [each[:3] for each in held]
    for each, (_, _, _, lease_ms) in zip(info.leases, held, strict=True):
        assert lease_ms - 60_000 < each.ends_in_ms <= lease_ms


async def until_known(it: Group, node: int) -> None:
    """Until the node's mastership has begun."""
    await until(lambda: hosted_by(it.nodes[node]).knows_confirmed)


def test_who_is_named_is_bounded(tmp_path: Path) -> None:
    """Goal: an answer that a frame holds. Method: 25 subscribers and leases of one group and 20 of each are named; a
    name that is too long is refused."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 30)
            for number in range(25):
                assert await it.lease(1, holder=f"h{number}")
            connection = await it.connect()
            takers = [await Taker(connection).subscribe(name=f"n{number}", prefetch_records=1) for number in range(25)]
            info = await it.info()
            assert (info.subscribers, info.leased) == (len(takers), 25)
            assert [each.name for each in info.consumers] == [f"n{number}" for number in range(20)]
            assert [each.holder for each in info.leases] == [f"h{number}" for number in range(20)]
            with pytest.raises(BadRequest, match="255 characters"):
                await it.taker(name="x" * 256)
            with mock.patch.object(group_requests, "NAMED_IN_ANSWER_MAX", 21):
                await it.taker(group="z", name="last")
                (last,) = (await it.info("z")).consumers
                assert last.name == "last"
                await it.taker(group="z", name="beyond")
                assert [each.name for each in (await it.info("z")).consumers] == ["last"]

    run(test)


def test_leases_and_delays_outlive_their_master(tmp_path: Path) -> None:
    """The new master gives a leased record to nobody, and takes its receipt."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 3)
            (leased,) = await it.lease(1)
            taker = await it.taker(prefetch_records=1)
            await taker.has(1)
            await taker.settle(1, 2, how=How.RETURN, delay_ms=150)
            await hand_over(*(hosted_by(each) for each in it.nodes))
            again = await Taker(await it.connect(1)).subscribe()
            assert await again.has(2) == [2, 1]
            done = await it.ask(SettleLease(queue="q", receipts=[leased], how=How.ACK), LeasesSettled, 1)
            assert done.records == 1

    run(test)


def test_six_masters_under_traffic_lose_nothing_and_bring_back_no_confirmed_ack(tmp_path: Path) -> None:
    """Records are published and acked while the log changes hands, with and without a word to the old master. Every
    record comes; none comes again whose ack was answered; at the end all is settled."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            logs = [hosted_by(each) for each in it.nodes]
            addresses = [each.settings.client_bind for each in it.nodes]
            acked: set[int] = set()
            seen: set[int] = set()
            master = 0
            async with Client(*addresses) as client, client.producer("q") as producer:
                for turn in range(6):
                    taker = await Taker(await it.connect(master)).subscribe(prefetch_records=40)
                    publishing = [asyncio.ensure_future(producer.send(b"x")) for _ in range(100)]
                    at = 0
                    for _ in range(3):
                        await taker.has(at + 1)
                        new = taker.offsets[at:]
                        at += len(new)
                        assert acked.isdisjoint(new), "an ack that was answered came back"
                        seen.update(new)
                        done = new[: -len(new) // 3] if len(new) > 2 else new
                        await taker.settle(*(border for each in done for border in (each, each + 1)))
                        acked.update(done)
                    await asyncio.gather(*publishing)
                    old, new_master = logs[master], logs[1 - master]
                    await (hand_over(old, new_master) if turn % 2 else take_over(old, new_master))
                    taker.connection.close()
                    master = 1 - master
            last = await Taker(await it.connect(master)).subscribe()
            left = [each for each in range(600) if each not in acked]
            assert await last.has(len(left)) == left
            await last.settle(left[0], 600)
            info = await it.info(node=master)
            assert (info.floor, info.unsettled) == (600, 0)

    run(test)


def test_a_killed_master_brings_back_the_unsettled_and_no_confirmed_ack(tmp_path: Path) -> None:
    """Three real nodes, kill -9: acks answered at `all` stay, everything else comes again, in order, flagged."""

    async def test() -> None:
        async with Cluster(3) as cluster:
            await asyncio.to_thread(cluster.wait_in_sync)
            async with Client(*cluster.servers) as client:
                await client.admin.declare("q")
                async with client.producer("q") as producer:
                    await producer.send_many([b"%d" % each for each in range(500)])
            master = await asyncio.to_thread(lambda: cluster.master)
            taker = await Taker(await Connection.open(master.client)).subscribe()
            await taker.has(500)
            for first in range(0, 500, 7):
                await taker.settle(first, min(first + 3, 500))
            acked = {each for first in range(0, 500, 7) for each in range(first, min(first + 3, 500))}
            await asyncio.to_thread(master.kill)
            successor = await asyncio.to_thread(lambda: cluster.nodes[cluster.wait_master()])
            again = await Taker(await Connection.open(successor.client)).subscribe()
            left = [each for each in range(500) if each not in acked]
            assert await again.has(len(left)) == left
            assert all(grant.redelivered for grant in again.grants)
            for each in left[:50]:
                await again.settle(each, each + 1)
            again.connection.close()
            last = await Taker(await Connection.open(successor.client)).subscribe()
            assert await last.has(len(left) - 50) == left[50:]

    run(test)
