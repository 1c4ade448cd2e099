"""Time to live, delay and priority on real nodes: what a subscriber is given, when, and in which order; through a
restart of the delivery, and through another master. And what of their work a node bounds."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.broker.hosting import roles
from mirrorlog.broker.subscription_index import SubscriptionBook
from mirrorlog.errors import BadRequest, NotGranted
from mirrorlog.queues.delivery import priorities as attributed
from mirrorlog.queues.delivery.group import RANGES_AT_ONCE
from mirrorlog.queues.groups.ledger import Ledger
from mirrorlog.wire.frames import Deliver, How, read_grants
from mirrorlog.wire.messages.groups import LeasedRange, LeasesSettled, Purged, PurgeGroup, SettleLease
from tests.broker.hosting import hand_over
from tests.broker.test_deliverer import Group, Taker, group, run
from tests.ha.nodes import hosted_by, replica_of, until


async def publish(it: Group, values: list[bytes], **asked: Any) -> None:
    async with it.client.producer("q") as producer:
        await producer.send_many(values, **asked)


def queue_id(it: Group, node: int = 0) -> int:
    return replica_of(it.nodes[node]).queues.find("q").queue_id


def ledger(it: Group, name: str = "", node: int = 0) -> Ledger:
    return replica_of(it.nodes[node]).groups.find(queue_id(it, node), name)


def expired(it: Group, name: str, record: int) -> bool:
    return not ledger(it, name).unsettled(record, record + 1)


def test_a_delayed_record_comes_at_its_time_and_the_others_before(tmp_path: Path) -> None:
    """Two are delayed, one is not; nobody asks for anything in between."""

    async def test() -> None:
        async with group(tmp_path) as it:
            clock = asyncio.get_running_loop().time
            taker = await it.taker()
            begun = clock()
            await publish(it, [b"late", b"later"], delay_ms=400)
            await it.publish(2, 3)
            assert await taker.has(1) == [2]
            info = await it.info()
            assert (info.out, info.parked, info.ready) == (1, 2, 0)
            assert await taker.has(3) == [2, 0, 1]
            assert clock() - begun >= 0.4
            assert not any(grant.redelivered for grant in taker.grants)
            assert taker.values[0] == b"late"

    run(test)


def test_a_record_expires_whether_somebody_takes_from_the_group_or_not(tmp_path: Path) -> None:
    """One group has had a subscriber, the other one has one whose hand is full: of both the record is settled; what has
    no time to live stays, and a stream still reads all of it."""

    async def test() -> None:
        async with group(tmp_path) as it:
            left = await it.taker()
            busy = await it.taker(group="busy", prefetch_records=1)
            left.connection.close()
            await it.publish(0, 1)
            await publish(it, [b"short"], ttl_ms=200)
            await it.publish(2, 3)
            for name in ("", "busy"):
                await until(partial(expired, it, name, 1))
            assert await busy.has(1) == [0]
            await busy.settle(0, 1)
            assert await busy.has(2) == [0, 2]
            async with it.client.consumer("q", start=0, until="confirmed") as consumer:
                assert [record.value async for record in consumer] == [b"0", b"short", b"2"]

    run(test)


def test_a_queue_s_time_to_live_counts_before_anybody_has_come(tmp_path: Path) -> None:
    """Its own group is made when there is something that expires."""

    async def test() -> None:
        async with group(tmp_path, x_message_ttl=200) as it:
            await it.publish(0, 5)
            await until(lambda: replica_of(it.nodes[0]).groups.floors([queue_id(it)]) == {queue_id(it): 5})
            taker = await it.taker()
            await it.publish(5, 6)
            assert await taker.has(1) == [5]

    run(test)


def test_urgent_records_come_first(tmp_path: Path) -> None:
    """Records of three priorities wait; the queue tells two levels apart above the lowest."""

    async def test() -> None:
        async with group(tmp_path, x_max_priority=2) as it:
            for priority, first in ((0, 0), (1, 2), (9, 4), (2, 6)):
                await publish(it, [b"%d" % each for each in (first, first + 1)], priority=priority)
            taker = await it.taker()
            assert await taker.has(8) == [4, 5, 6, 7, 2, 3, 0, 1]
            assert taker.values[4] == b"4"

    run(test)


def test_another_master_goes_on_with_delays_and_times_to_live(tmp_path: Path) -> None:
    """One is delayed, one expires, one has a priority: the next master has them from its log, and does with them what
    the first one would have done."""

    async def test() -> None:
        async with group(tmp_path, 2, x_max_priority=9) as it:
            taker = await it.taker(prefetch_records=1)
            await it.publish(0, 2)
            assert await taker.has(1) == [0]
            await publish(it, [b"late"], delay_ms=700)
            await publish(it, [b"short"], ttl_ms=300)
            await publish(it, [b"urgent"], priority=9)
            await hand_over(*map(hosted_by, it.nodes))
            await until(lambda: not ledger(it, "", 1).unsettled(3, 4))
            next_one = await it.taker(1)
            # What the first one gave out is covered at once, what is behind it with the next watermark.
            assert (await next_one.has(3))[:3] in ([0, 4, 1], [4, 0, 1])
            await until(lambda: 2 in next_one.offsets)
            flagged = {
                each for grant in next_one.grants if grant.redelivered for each in range(grant.first, grant.next)
            }
            assert 2 not in flagged
            assert 3 not in next_one.offsets

    run(test)


def test_nobody_names_what_there_never_was(tmp_path: Path) -> None:
    """A settlement of 2^63 records, and receipts of as many, or of the same thousand times: refused at once, also while
    other settlements are gathered."""

    async def test() -> None:
        async with group(tmp_path, limits={"max_unsettled_records": 10}) as it:
            await it.publish(0, 5)
            taker = await it.taker()
            await taker.has(5)
            settled = asyncio.create_task(taker.settle(0, 1))
            with pytest.raises(NotGranted):
                await taker.settle(1, (1 << 63) - 1)
            await settled
            for receipts in (
                [LeasedRange(first=0, next=(1 << 63) - 1, lease=1)],
                [LeasedRange(first=0, next=5, lease=each) for each in range(100)],
            ):
                with pytest.raises(BadRequest):
                    await it.ask(SettleLease(queue="q", receipts=receipts, how=How.ACK), LeasesSettled)
            await taker.settle(1, 5)

    run(test)


def test_a_frame_of_scattered_records_has_an_end(tmp_path: Path) -> None:
    """One record of each of sixty batches of 64 KiB is left: no frame is above `send_at_once_bytes`, and all are
    granted, each with its bytes."""

    async def test() -> None:
        async with group(tmp_path) as it:
            for _ in range(60):
                await publish(it, [bytes(16 * 1024)] * 4)
            first = await it.taker()
            await first.has(240)
            await first.settle(*[border for each in range(60) for border in (4 * each + 1, 4 * each + 4)])
            first.connection.close()
            second = _Measured(await it.connect())
            await second.subscribe()
            assert await second.has(60) == list(range(0, 240, 4))
            assert max(second.sizes) <= it.nodes[0].settings.log.send_at_once_bytes + 24 * 60 + 64
            assert set(second.values) >= set(range(0, 240, 4))

    run(test)


class _Measured(Taker):
    """How large its frames are."""

    def delivered(self, facts: Deliver, content: memoryview) -> None:
        grants, _ = read_grants(content, facts.grant_count)
        assert grants
        self.sizes = [*getattr(self, "sizes", []), len(content)]
        super().delivered(facts, content)


def test_what_a_connection_had_of_scattered_records_and_a_purge_come_in_turns(tmp_path: Path) -> None:
    """Every second record of many is in hand when the connection goes: they are ready in the end, and a purge takes all
    of them, in more than one change each."""

    async def test() -> None:
        count = 5 * RANGES_AT_ONCE
        async with group(tmp_path, limits={"max_ranges_per_settle": count}) as it:
            await publish(it, [b"x"] * count)
            taker = await it.taker()
            await taker.has(count)
            await taker.settle(*[border for each in range(0, count, 2) for border in (each, each + 1)])
            taker.connection.close()
            await until(lambda: ledger(it).ready(count) == count // 2)
            assert ledger(it).attempts(1, 2)[0] == 1
            purged = await it.ask(PurgeGroup(queue="q"), Purged)
            assert purged.records == count // 2
            assert ledger(it).floor == count

    run(test)


def test_after_a_declared_loss_everything_that_is_left_may_have_been_given_out(tmp_path: Path) -> None:
    """The newest watermark may be among what was lost: it says 1 of 5, and all 5 are flagged; without a loss one is."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 5)
            taker = await it.taker(prefetch_records=1)
            await taker.has(1)
            taker.connection.close()
            await until(lambda: not it.deliverer()._works)
            for leapt, found in ((False, 1), (True, 5)):
                it.deliverer().begin(jumped=leapt)
                assert it.deliverer()._deliveries._found[queue_id(it), ""] == found
            await (again := await it.taker()).has(5)
            assert all(grant.redelivered for grant in again.grants)

    run(test)


def test_a_reset_group_expires_too(tmp_path: Path) -> None:
    """It is set back, and nobody takes from it: what is of no use any more is settled once more."""

    async def test() -> None:
        async with group(tmp_path) as it:
            (await it.taker()).connection.close()
            await it.publish(0, 1)
            await publish(it, [b"short"], ttl_ms=100)
            await until(partial(expired, it, "", 1))
            change = replica_of(it.nodes[0]).groups.reset(queue_id(it), "", 0)
            done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            it.deliverer().ends.replace(queue_id(it), [change], "reset", done.set_result)
            assert await done is None
            await until(partial(expired, it, "", 1))
            assert not expired(it, "", 0)

    run(test)


def test_a_lease_is_given_what_stands_behind_very_many_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty delayed records, each a run, three runs a look, then a plain one: whoever asks for a lease waits for
    nothing else to happen."""
    monkeypatch.setattr(attributed, "RUNS_MAX", 3)

    async def test() -> None:
        async with group(tmp_path) as it:
            async with it.client.producer("q") as producer:
                for at in range(30):
                    await producer.send(b"late", delay_ms=3_600_000 + at)
                await producer.send(b"plain")
            assert [(each.first, each.next) for each in await it.lease(10, wait_ms=20_000)] == [(30, 31)]

    run(test)


def test_a_clock_that_was_ahead_once_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's clock is a day ahead while a record is published, then right: a delay of 300 ms and a time to live of
    300 ms behind it end in a few hundred ms."""
    ahead = [0]
    wall_us = roles.now_us
    monkeypatch.setattr(roles, "now_us", lambda: wall_us() + ahead[0])

    async def test() -> None:
        async with group(tmp_path) as it:
            taker = await it.taker()
            ahead[0] = 86_400_000_000
            await it.publish(0, 1)
            ahead[0] = 0
            await publish(it, [b"late"], delay_ms=300)
            assert await taker.has(2) == [0, 1]
            await taker.settle(0, 2)
            taker.connection.close()
            await publish(it, [b"short"], ttl_ms=300)
            await until(partial(expired, it, "", 2))

    run(test)


def test_what_another_group_has_settled_keeps_its_time_for_the_queues_own(tmp_path: Path) -> None:
    """It is made after a record has expired that another group had acked: nobody is given that."""

    async def test() -> None:
        async with group(tmp_path) as it:
            other = await it.taker(group="other")
            await publish(it, [b"short"], ttl_ms=100)
            await it.publish(1, 2)
            await other.has(2)
            await other.settle(0, 2)
            ends_us = replica_of(it.nodes[0]).log.last_append_time_us + 100_000
            await until(lambda: it.deliverer().clock() > ends_us)
            own = await it.taker()
            assert await own.has(1) == [1]
            await until(partial(expired, it, "", 0))

    run(test)


def test_a_hundred_with_credit_are_given_a_hundred_records_of_no_time_to_live(tmp_path: Path) -> None:
    """More than one look gives out: nothing expires that somebody waits for."""

    async def test() -> None:
        async with group(tmp_path) as it:
            takers = [await it.taker(prefetch_records=1) for _ in range(100)]
            await publish(it, [b"now"] * 100, ttl_ms=0)
            for taker in takers:
                await taker.has(1)
            assert ledger(it).floor == 0

    run(test)


def test_numbers_of_subscriptions_go_round_and_nobody_waits_under_one() -> None:
    """They have 32 bits in frames; the one that is still there is passed over."""
    book = SubscriptionBook()
    deliverer, receiver = object(), object()
    first = book.next_number()
    book.add(first, receiver, deliverer)  # type: ignore[arg-type]
    book._last = (1 << 32) - 2
    assert [book.next_number(), book.next_number()] == [(1 << 32) - 1, first + 1]
    assert book.next_wait() > 1 << 32
    assert book.next_wait() != book.next_wait()


def test_a_group_that_a_drop_has_made_expires_too(tmp_path: Path) -> None:
    """Nobody is subscribed: three fit, the fourth has the first one dropped, which makes the group, in front of a
    record that has expired when there was none. It is counted, as what was dropped is."""

    async def test() -> None:
        async with group(tmp_path, x_max_length=3) as it:
            await it.publish(0, 1)
            await publish(it, [b"short"], ttl_ms=200)
            expiries = it.deliverer()._expiries._expiries
            await until(lambda: not expiries.unlooked and expiries.next_us == math.inf)
            await it.publish(2, 3)
            await it.publish(3, 4)
            counts = replica_of(it.nodes[0]).counters.queue(queue_id(it))
            await until(lambda: counts.expired == 2)
            assert expired(it, "", 1)
            assert ledger(it).floor == 2

    run(test)


def test_groups_that_nobody_takes_from_cost_no_confirm_before_something_expires(tmp_path: Path) -> None:
    """Thirty groups of a queue with a time to live, nobody there: no delivery is made for any of them by what is
    published, and none is asked; what expires early does so in all of them, and from then on no confirm asks them."""

    async def test() -> None:
        async with group(tmp_path, x_message_ttl=3_600_000) as it:
            names = ["", *(f"g{number}" for number in range(30))]
            for name in names:
                assert await it.lease(1, group=name) == []
            deliverer = it.deliverer()
            await until(lambda: not deliverer._works)
            pumped: list[str] = []
            pump = deliverer._pump.pump

            def counted(work: Any) -> None:
                pumped.append(work.key[1])
                pump(work)

            deliverer._pump.pump = counted  # type: ignore[method-assign]
            for at in range(5):
                await it.publish(at, at + 1)
            await until(lambda: not deliverer._expiries.unlooked)
            assert (pumped, len(deliverer._works)) == ([], 0)
            await publish(it, [b"short"], ttl_ms=200)
            await until(lambda: all(expired(it, name, 5) for name in names))
            assert set(pumped) == set(names)
            assert not expired(it, "", 0)
            await until(lambda: not deliverer._works.awake)
            pumped.clear()
            for at in range(5):
                await it.publish(at, at + 1)
            await until(lambda: not deliverer._expiries.unlooked)
            # A clock that leaps, as a busy machine's seems to, has each look once.
            assert max(map(pumped.count, names)) <= 2

    run(test)
