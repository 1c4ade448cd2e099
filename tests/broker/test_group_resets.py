"""Resets of groups, and what is gone from under them, on real nodes over plain connections."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import (
    BadRequest,
    DiskFull,
    InUse,
    MirrorlogError,
    NoSuchGroup,
    NoSuchSubscription,
    NotGranted,
    NotMaster,
    OffsetOutOfRange,
    OutcomeUnknown,
    PositionLost,
    ReceiptStale,
    SubscriptionCancelled,
)
from mirrorlog.queues.changes import OffsetsJumped, QueueStartsMoved, encode_change
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import How
from mirrorlog.wire.messages.groups import (
    DeleteGroup,
    GroupsFound,
    GroupsReset,
    LeasesSettled,
    ListGroups,
    Purged,
    PurgeGroup,
    ResetGroups,
    SettleLease,
)
from mirrorlog.wire.messages.queues import CommitPosition, Done, FetchPosition, FoundPosition, Position
from tests.broker.hosting import hand_over
from tests.broker.test_deliverer import TIMEOUT_MS, Group, Taker, group, run
from tests.ha.nodes import hosted_by, replica_of, until


async def reset(it: Group, *groups: str, node: int = 0, **options: Any) -> GroupsReset:
    """Of those groups, without any of all. Raises what the node answers."""
    named = list(groups) or None
    answer: GroupsReset = await it.ask(ResetGroups(queue="q", groups=named, **options), GroupsReset, node)
    return answer


def moves(answer: GroupsReset) -> dict[str, tuple[str, int, int]]:
    return {each.group: (each.kind, each.source.queue_offset, each.target.queue_offset) for each in answer.groups}


async def stream_at(it: Group, name: str, queue_offset: int, node: int = 0) -> None:
    """By a connection that goes: nobody reads there then."""
    replica = replica_of(it.nodes[node])
    position = Position(log_id=str(replica.log_id), epoch=replica.log.epochs.current, queue_offset=queue_offset)
    await it.ask(CommitPosition(queue="q", group=name, position=position), Done, node)


async def position(it: Group, name: str, node: int = 0) -> int | None:
    found = (await it.ask(FetchPosition(queue="q", group=name), FoundPosition, node)).position
    return found.queue_offset if found is not None else None


async def floors(it: Group, node: int = 0) -> dict[str, tuple[str, int]]:
    found = await it.ask(ListGroups(queue="q"), GroupsFound, node)
    return {each.group: (each.kind, each.floor) for each in found.groups}


async def acked(it: Group, name: str, count: int, node: int = 0) -> None:
    """A group from which so many were taken; nobody is there any more."""
    taker = await it.taker(node, group=name)
    await taker.has(count)
    await taker.settle(0, count)
    taker.connection.close()
    deliverer = it.deliverer(node)
    await until(lambda: not deliverer._works)


def change(it: Group, *changes: Any) -> None:
    """Of the log, as its master logs them."""
    for each in changes:
        hosted_by(it.nodes[0]).publisher.append_control(encode_change(each))


# --- resets ---


def test_groups_of_both_kinds_are_reset_at_once_as_a_dry_run_has_told(tmp_path: Path) -> None:
    """Goal: shown before it is done, and then as shown. Method: an acking group, the queue's own and a stream group at
    different places, each target; a dry run changes nothing; what it told comes about; who subscribes then gets all
    records from there on, unflagged."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 100)
            await acked(it, "", 100)
            await acked(it, "g", 100)
            await stream_at(it, "s", 60)
            asks: Sequence[tuple[dict[str, Any], tuple[int, int, int]]] = [
                ({"to": "earliest"}, (0, 0, 0)),
                ({"to": "latest"}, (100, 100, 100)),
                ({"to": "shift", "value": -30}, (70, 70, 70)),
                ({"to": "offset", "value": 55}, (55, 55, 55)),
                ({"to": "shift", "value": 10}, (65, 65, 65)),
            ]
            for asked, (own, named, stream) in asks:
                before = await floors(it)
                told = await reset(it, dry_run=True, **asked)
                assert not told.done
                assert await floors(it) == before
                done = await reset(it, **asked)
                assert done.done
                assert moves(done) == moves(told)
                assert await floors(it) == {"": ("acking", own), "g": ("acking", named), "s": ("stream", stream)}
                assert await position(it, "s") == stream
            taker = await it.taker(group="g")
            assert await taker.has(35) == list(range(65, 100))
            assert not any(grant.redelivered for grant in taker.grants)

    run(test)


def test_a_reset_to_a_time_finds_the_first_batch_of_it(tmp_path: Path) -> None:
    """Between two batches, before all and after all."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            index = replica_of(it.nodes[0]).index
            first = index.append_time_from(0) or 0
            await it.publish(10, 20)
            second = next(at for at in range(first, first + 60_000_000) if index.find_time(1, at) == 10)
            await acked(it, "g", 20)
            for time_us, expected in ((second, 10), (0, 0), (second + 10**12, 20)):
                assert moves(await reset(it, "g", to="time", value=time_us))["g"][2] == expected

    run(test)


def test_an_active_group_is_reset_by_force_only_and_who_is_there_is_told(tmp_path: Path) -> None:
    """Goal: refused naming who is there, nothing changed, in no group; by force the subscription ends, its hands and
    leases are void, and all comes again. Method: a subscriber with records in hand, a lease, a stream reader, and one
    group with nobody."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10)
            await acked(it, "idle", 10)
            taker = await it.taker(group="g", prefetch_records=4)
            await taker.has(4)
            await taker.settle(0, 2)
            await taker.has(6)
            (leased,) = await it.lease(1, group="l")
            reader = await it.connect()
            await reader.request(FetchPosition(queue="q", group="s"), FoundPosition, timeout_ms=TIMEOUT_MS)
            await stream_at(it, "s", 5)
            await reader.request(FetchPosition(queue="q", group="s"), FoundPosition, timeout_ms=TIMEOUT_MS)
            before = await floors(it)
            for name, reason in (("g", "1 subscribed, 4 records in hand"), ("l", "1 records leased"), ("s", "heard")):
                with pytest.raises(InUse, match=reason):
                    await reset(it, "idle", name, to="earliest")
            assert await floors(it) == before
            told = await reset(it, to="earliest", dry_run=True)
            assert [each.group for each in told.groups if each.active] == ["g", "l", "s"]

            await reset(it, to="earliest", force=True)
            assert {floor for _, floor in (await floors(it)).values()} == {0}
            await until(lambda: taker.error is not None)
            assert isinstance(taker.error, SubscriptionCancelled)
            with pytest.raises(NoSuchSubscription):
                await taker.settle(2, 3)
            again = await Taker(taker.connection).subscribe(group="g", prefetch_records=3)
            for options in ({}, {"again": True}):
                with pytest.raises(NotGranted):
                    await again.settle(4, 6, **options)
            assert await again.has(3) == [0, 1, 2]
            assert not again.grants[0].redelivered
            info = await it.info("l")
            assert (info.leased, info.ready) == (0, 10)
            for how in (How.RETURN, How.ACK):
                with pytest.raises(ReceiptStale, match="reset"):
                    await it.ask(SettleLease(queue="q", group="l", receipts=[leased], how=how), LeasesSettled)
            assert (await it.info("l")).ready == 10
            assert await position(it, "s") == 0
            reader.close()

    run(test)


def test_who_waits_for_a_lease_is_told_of_a_forced_reset(tmp_path: Path) -> None:
    """And keeps the group from a reset that is not forced."""

    async def test() -> None:
        async with group(tmp_path) as it:
            waiting = asyncio.ensure_future(it.lease(1, wait_ms=10_000))
            await until(lambda: it.deliverer().leasing.waiting > 0)
            with pytest.raises(InUse, match="1 waiting for leases"):
                await reset(it, "", to="latest")
            await reset(it, "", to="latest", force=True)
            with pytest.raises(SubscriptionCancelled):
                await waiting

    run(test)


def test_a_reset_that_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Unknown groups beside known ones, no place, nonsense, too many for a batch; a queue without a group."""

    async def test() -> None:
        async with group(tmp_path, copies=2, limits={"max_batch_bytes": 64 * 1024, "max_record_bytes": 1024}) as it:
            assert (await reset(it, to="latest")).groups == []
            await it.publish(0, 10)
            await acked(it, "g", 10)
            bad: Sequence[tuple[type[MirrorlogError], tuple[str, ...], dict[str, Any]]] = [
                (NoSuchGroup, ("g", "none"), {"to": "earliest"}),
                (OffsetOutOfRange, ("g",), {"to": "offset", "value": 11}),
                (BadRequest, ("g",), {"to": "offset", "value": -1}),
                (BadRequest, ("g",), {"to": "begin"}),
                (BadRequest, (), {"groups": []}),
            ]
            for kind, groups, options in bad:
                asked = {"groups": list(groups) or None, **options}
                with pytest.raises(kind):
                    await it.ask(ResetGroups(queue="q", **asked), GroupsReset)
            await until(lambda: replica_of(it.nodes[1]).queues.get("q") is not None)
            with pytest.raises(NotMaster):
                await reset(it, "g", to="earliest", node=1)
            for each in range(80):
                await stream_at(it, f"{each}" + "\U0001f600" * 250, 1)
            with pytest.raises(BadRequest, match="81 groups at once"):
                await reset(it, to="earliest")
            assert (await floors(it))["g"] == ("acking", 10)
            # The queue's own group is there before anybody has subscribed.
            assert moves(await reset(it, "", to="latest")) == {"": ("acking", 0, 10)}
            taker = await it.taker()
            await it.publish(10, 12)
            assert await taker.has(2) == [10, 11]

    run(test)


def test_a_stream_group_is_deleted_and_stays_so(tmp_path: Path) -> None:
    """Also on the mirror that masters the log next; its name is free for an acking group."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 5)
            await stream_at(it, "s", 3)
            await stream_at(it, "t", 4)
            await it.ask(DeleteGroup(queue="q", group="s"), Done)
            with pytest.raises(NoSuchGroup):
                await it.ask(DeleteGroup(queue="q", group="s"), Done)
            assert await floors(it) == {"t": ("stream", 4)}
            assert await position(it, "s") is None
            old, new = (hosted_by(each) for each in it.nodes)
            await old.come_to_end(5.0)
            await hand_over(old, new)
            assert await floors(it, 1) == {"t": ("stream", 4)}
            taker = await it.taker(1, group="s")
            assert await taker.has(5) == list(range(5))

    run(test)


def test_a_reset_outlives_its_master(tmp_path: Path) -> None:
    """A dry run at one master, the reset at the next, and a third look at the first again."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 20)
            await acked(it, "g", 15)
            await stream_at(it, "s", 20)
            told = await reset(it, to="shift", value=-5, dry_run=True)
            logs = [hosted_by(each) for each in it.nodes]
            await logs[0].come_to_end(5.0)
            await hand_over(logs[0], logs[1])
            offsets = {each.group: each.target.queue_offset for each in told.groups}
            done = await reset(it, "g", "s", node=1, to="each", offsets=offsets)
            assert moves(done) == moves(told)
            assert {each.target.epoch for each in done.groups} == {replica_of(it.nodes[1]).log.epochs.current}
            await hand_over(logs[1], logs[0])
            assert await floors(it) == {"g": ("acking", 10), "s": ("stream", 15)}
            taker = await it.taker(group="g")
            assert await taker.has(10) == list(range(10, 20))

    run(test)


def test_what_was_given_out_before_a_reset_is_void_at_the_next_master_too(tmp_path: Path) -> None:
    """Goal: a replay misses nothing. Method: ten records are in somebody's hands, or leased, when the group is reset by
    force; all are given out again and come back; another master: acks under the old epoch, and the old receipts, are
    refused, those of what was given out since count."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            logs = [hosted_by(each) for each in it.nodes]
            await it.publish(0, 10)
            await hand_over(logs[0], logs[1])
            taker = await it.taker(1, prefetch_records=5)
            await taker.has(5)
            (leased,) = await it.lease(5, node=1)
            await hand_over(logs[1], logs[0])
            await reset(it, "", to="earliest", force=True)
            since = await it.taker()
            await since.has(10)
            since.connection.close()
            await until(lambda: it.deliverer().subscribers(1, "") == 0)
            await hand_over(logs[0], logs[1])
            again = await Taker(await it.connect(1)).subscribe(prefetch_records=1)
            await again.has(1)
            with pytest.raises(NotGranted, match="reset"):
                await again.settle(1, 5, epoch=taker.epoch)
            with pytest.raises(ReceiptStale, match="reset"):
                await it.ask(SettleLease(queue="q", receipts=[leased], how=How.ACK), LeasesSettled, 1)
            assert (await it.info(node=1)).unsettled == 10
            await again.settle(1, 5, epoch=since.epoch)
            assert (await it.info(node=1)).unsettled == 6

    run(test)


# --- what is gone from under a group ---


def test_what_retention_frees_is_nobody_s_any_more(tmp_path: Path) -> None:
    """Goal: counts, hands and floors follow the begin, by one change. Method: one group with a subscriber whose hands
    are full, one with nobody; the begin moves over what is in hand: the subscriber is given what comes behind, as soon
    as there is something to do, and both are counted from the begin."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 100)
            await acked(it, "nobody", 10)
            taker = await it.taker(prefetch_records=5)
            await taker.has(5)
            change(it, QueueStartsMoved(begins={1: 50}))
            await until(lambda: replica_of(it.nodes[0]).index.begin(1) == 50)
            nobody = await it.info("nobody")
            assert (nobody.floor, nobody.ready, nobody.unsettled) == (50, 50, 50)
            await it.publish(100, 101)
            assert await taker.has(10) == [*range(5), *range(50, 55)]
            info = await it.info()
            assert (info.floor, info.ready, info.unsettled, info.out) == (50, 46, 51, 5)
            await taker.settle(0, 5, 50, 55)
            await taker.has(15)
            assert replica_of(it.nodes[0]).groups.find(1, "").floor == 55

    run(test)


@pytest.mark.parametrize("lost", [False, True], ids=["freed", "lost"])
def test_a_subscriber_whose_records_are_gone_goes_on_behind_them(tmp_path: Path, lost: bool) -> None:
    """Goal: no record is granted, missed and granted again for ever. Method: all that the prefetch allows was granted
    without its bytes; then the queue begins behind that, or a fetch says that it is lost up to there. The client goes
    on there, and nothing stays in its hands."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 20)
            replica = replica_of(it.nodes[0])
            replica.log.read = _without(replica.log.read)  # type: ignore[method-assign]
            async with it.client.subscribe("q", prefetch=5) as subscription:
                await until(lambda: it.deliverer()._pushed.items() and replica.groups.find(1, "").out == 5)
                if lost:
                    fetcher = hosted_by(it.nodes[0]).fetcher
                    fetcher.fetch = _losing(fetcher.fetch, up_to=10)  # type: ignore[method-assign]
                else:
                    change(it, QueueStartsMoved(begins={1: 10}))
                    await until(lambda: replica.index.begin(1) == 10)
                async with asyncio.timeout(10):
                    for expected in range(10, 20):
                        delivered = await anext(subscription)
                        assert delivered.offset == expected
                        await delivered.ack()
            info = await it.info()
            assert (info.floor, info.unsettled, info.out) == (20, 0, 0)

    run(test)


def _without(read: Any) -> Any:
    """Bytes are for who fetches them: the log's memory has nothing for those who are pushed to."""
    return lambda log_offset, max_bytes, *, until: (
        None if sys._getframe(1).f_code.co_name == "_view" else read(log_offset, max_bytes, until=until)
    )


def _losing(fetch: Any, *, up_to: int) -> Any:
    """Whoever asks for what is below is told that it is lost."""

    def lost(asked: Any, endpoint: Any, correlation_id: int) -> None:
        if asked.queue_offset < up_to:
            raise PositionLost("lost by a declared loss", go_on_at=up_to)
        fetch(asked, endpoint, correlation_id)

    return lost


def test_a_gap_that_a_loss_left_is_never_given_out_and_not_counted(tmp_path: Path) -> None:
    """Goal: 2^32 queue offsets that are nothing are neither ready nor given. Method: groups with a subscriber and with
    nobody; the queue leaps; records come behind; then another master, at whose begin the group with nobody is told."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 10)
            await acked(it, "nobody", 4)
            taker = await it.taker(prefetch_records=8)
            await taker.has(8)
            replica = replica_of(it.nodes[0])
            behind = 10 + 2**32
            change(it, OffsetsJumped(epoch=replica.log.epochs.current, lost_from=0, go_on_at=behind))
            await until(lambda: replica.index.next_confirmed(1) == behind)
            for name, unsettled in (("", 10), ("nobody", 6)):
                assert (await it.info(name)).unsettled == unsettled
            assert (await it.info("nobody")).ready == 6
            await it.publish(0, 5)
            await taker.settle(0, 8)
            assert await taker.has(15) == [*range(10), *range(behind, behind + 5)]
            assert (await it.info("nobody")).ready == 11
            await taker.settle(8, 10, behind, behind + 5)
            assert (await it.info()).floor == behind + 5
            shifted = moves(await reset(it, "nobody", to="shift", value=7, dry_run=True))["nobody"]
            assert shifted == ("acking", 4, behind + 1)
            old, new = (hosted_by(each) for each in it.nodes)
            await old.come_to_end(5.0)
            await hand_over(old, new)
            await until(lambda: replica_of(it.nodes[1]).groups.find(1, "nobody").unsettled(10, behind) == 0)
            assert (await it.info("nobody", 1)).unsettled == 11

    run(test)


def test_gaps_of_two_losses_are_neither_given_out_nor_counted(tmp_path: Path) -> None:
    """Goal: the first of two losses is known as well as the second. Method: a queue leaps twice, with records before,
    between and behind, and groups with a subscriber and with nobody; of a third one a reset to the begin has undone
    what it had settled. Then another master, at whose begin the groups with nobody are told of both gaps."""

    async def test() -> None:
        async with group(tmp_path, copies=2) as it:
            await it.publish(0, 10)
            await acked(it, "nobody", 4)
            await acked(it, "anew", 4)
            taker = await it.taker(prefetch_records=5)
            await taker.has(5)
            replica = replica_of(it.nodes[0])
            gaps = list[tuple[int, int]]()
            for _ in range(2):
                stood = replica.index.next_confirmed(1)
                gaps.append((stood, stood + 2**32))
                change(it, OffsetsJumped(epoch=replica.log.epochs.current, lost_from=0, go_on_at=stood + 2**32))
                await until(lambda: replica.index.next_confirmed(1) == gaps[-1][1])
                await it.publish(0, 5)
            assert replica.index.gaps_of(1) == tuple(gaps)
            there = [*range(10), *range(gaps[0][1], gaps[1][0]), *range(gaps[1][1], gaps[1][1] + 5)]
            assert (await it.info("nobody")).unsettled == (await it.info("nobody")).ready == 16
            await reset(it, "anew", to="earliest")
            assert (await it.info("anew")).unsettled == (await it.info("anew")).ready == 20
            shifted = moves(await reset(it, "nobody", to="shift", value=12, dry_run=True))["nobody"]
            assert shifted == ("acking", 4, gaps[1][1] + 1)
            for number in range(0, len(there), 5):
                assert await taker.has(number + 5) == there[: number + 5]
                await taker.settle(there[number], there[number] + 5)
            assert (await it.info()).floor == there[-1] + 1
            assert replica.counters.queue(1).expired == 0, "numbers that never were a record"
            old, new = (hosted_by(each) for each in it.nodes)
            await old.come_to_end(5.0)
            await hand_over(old, new)
            groups = replica_of(it.nodes[1]).groups
            for name, left in (("nobody", 16), ("anew", 20)):
                await until(lambda name=name: not any(groups.find(1, name).unsettled(*gap) for gap in gaps))
                info = await it.info(name, 1)
                assert (info.unsettled, info.ready, info.gone) == (left, left, 0)

    run(test)


def test_a_purge_of_scattered_records_is_logged_in_batches_that_fit(tmp_path: Path) -> None:
    """Every second of 10,000 records is settled; the rest are purged, and nothing is left."""

    async def test() -> None:
        async with group(tmp_path, copies=2, limits={"max_batch_bytes": 64 * 1024, "max_record_bytes": 1024}) as it:
            await it.publish(0, 10_000)
            taker = await it.taker()
            await taker.has(10_000)
            await taker.settle(*(border for each in range(0, 10_000, 2) for border in (each, each + 1)))
            await taker.settle(0, 10_000, how=How.RELEASE)
            taker.connection.close()
            await until(lambda: it.deliverer().subscribers(1, "") == 0)
            assert (await it.ask(PurgeGroup(queue="q"), Purged)).records == 5000
            info = await it.info()
            assert (info.floor, info.unsettled) == (10_000, 0)
            mirror = replica_of(it.nodes[1])
            await until(lambda: mirror.groups.find(1, "").floor == 10_000)

    run(test)


def test_a_purge_of_which_a_part_is_logged_says_so_and_may_be_said_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no answer "nothing was changed" where something was. Method: 5,000 scattered records need two batches, and
    the log takes one of them; then none: that is a refusal; then all."""

    async def test() -> None:
        async with group(tmp_path) as it:
            await it.publish(0, 10_000)
            taker = await it.taker()
            await taker.has(10_000)
            await taker.settle(*(border for each in range(0, 10_000, 2) for border in (each, each + 1)))
            await taker.settle(0, 10_000, how=How.RELEASE)
            taker.connection.close()
            await until(lambda: not it.deliverer()._works)  # it has logged all that it wanted to
            publisher = hosted_by(it.nodes[0]).publisher
            append = publisher.append_settlement
            for taken, kind in ((1, OutcomeUnknown), (0, DiskFull)):
                left = iter(range(taken))

                def some(batch: bytearray, changes: Any = None, left: Any = left) -> int:
                    if next(left, None) is None:
                        raise DiskFull("the disk is full")
                    return append(batch, changes)

                monkeypatch.setattr(publisher, "append_settlement", some)
                with pytest.raises(kind) as refused:
                    await it.ask(PurgeGroup(queue="q"), Purged)
                assert type(refused.value) is kind
            monkeypatch.undo()
            assert 0 < (await it.ask(PurgeGroup(queue="q"), Purged)).records < 5000
            assert (await it.info()).floor == 10_000

    run(test)


# --- whole processes ---


def test_a_master_dies_between_dry_run_and_reset(tmp_path: Path) -> None:
    """Goal: what was told comes about at the next master, by the client's own methods, of both kinds, and what was
    settled after the reset stays so. Method: three real nodes, kill -9."""

    async def test() -> None:
        async with Cluster(3) as cluster:
            await asyncio.to_thread(cluster.wait_in_sync)
            async with Client(*cluster.servers) as client:
                await client.admin.declare("q")
                async with client.producer("q") as producer:
                    await producer.send_many([b"%d" % each for each in range(100)])
                async with client.subscribe("q", "g", prefetch=40) as subscription:
                    for _ in range(40):
                        await (await anext(subscription)).ack()
                async with Client(*cluster.servers) as other, other.consumer("q", group="s") as consumer:
                    await consumer.seek(90)
                    await consumer.commit()
                told = await client.admin.reset_groups("q", shift=-25, dry_run=True)
                master = await asyncio.to_thread(lambda: cluster.master)
                await asyncio.to_thread(master.kill)
                done = await client.admin.reset_groups("q", shift=-25)
                assert moves(done) == moves(told)
                assert moves(done) == {"g": ("acking", 40, 15), "s": ("stream", 90, 65)}
                found = {each.group: each.floor for each in (await client.admin.groups("q")).groups}
                assert found == {"g": 15, "s": 65}
                async with client.subscribe("q", "g") as subscription:
                    again = [await anext(subscription) for _ in range(85)]
                    assert [each.offset for each in again] == list(range(15, 100))

    run(test)
