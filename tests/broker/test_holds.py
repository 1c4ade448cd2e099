"""Landings that hold a queue's records, on real nodes with small segments: who is given what, what is kept and what
goes, and that a hold outlives its master."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from mirrorlog import versions
from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.retention import queue_retention
from mirrorlog.broker.retention.holds import HoldKeeper
from mirrorlog.client import Client
from mirrorlog.commitlog.retention import Decision
from mirrorlog.config import HaSettings, Settings
from mirrorlog.errors import (
    BadRequest,
    HoldTaken,
    NoSuchHold,
    NoSuchQueue,
    NotMaster,
    OffsetOutOfRange,
    UnsupportedVersion,
)
from mirrorlog.wire.messages.queues import HoldGranted, HoldInfo, QueueInfo, SetHold, TierInfo
from tests.broker.hosting import KIB, hand_over, running_all, small, take_over
from tests.ha.nodes import Node, cluster_settings, hosted_by, replica_of, until

LONG_MS = 3600 * 1000
SHORT = {"retention_ms": 1}


def settings_of(root: Path, copies: int = 1, **log: Any) -> list[Settings]:
    return small(cluster_settings(root, copies=copies, ha=HaSettings(reconnect_interval_ms=20)), **log)


class Landing:
    """Publishes to a queue `q` of one cluster, and holds it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.admin = client.admin

    async def set(self, queue_offset: int = 0, **options: Any) -> HoldInfo:
        wanted = {"name": "lake", "holder": "x", "lease_ms": LONG_MS, **options}
        return await self.admin.set_hold("q", wanted.pop("name"), queue_offset=queue_offset, **wanted)

    async def publish(self, total_bytes: int, *queues: str) -> None:
        """So many bytes to each queue, in records of 1 KiB."""
        for queue in queues or ("q",):
            async with self.client.producer(queue, batch_bytes=8 * KIB) as producer:
                await producer.send_many([bytes(KIB)] * (total_bytes // KIB))

    async def info(self) -> QueueInfo:
        return (await self.admin.metadata(["q"])).queues[0]

    async def begins_at(self, least: int) -> int:
        """Wait until the queue begins there or later; something is published meanwhile, for the log's begin follows its
        checkpoints, and they follow its growth."""
        async with asyncio.timeout(20):
            while (begin := (await self.info()).begin) < least:
                await self.publish(8 * KIB)
                await asyncio.sleep(0.01)
            return begin

    async def rounds(self, node: Node, count: int = 4) -> None:
        """Let the log grow and be looked at so often."""
        replica = replica_of(node)
        for _ in range(count):
            flushed = replica.log.flushed
            await self.publish(512 * KIB)
            await until(lambda flushed=flushed: replica.log.flushed > flushed)  # type: ignore[misc]

    async def readable(self, first: int) -> int:
        """How many records there are from `first` on, each once."""
        async with self.client.consumer("q", start=first, until="confirmed") as consumer:
            count = 0
            async for batch in consumer.batches():
                assert batch.first == first + count
                count += len(batch)
            return count


@asynccontextmanager
async def landing(settings: list[Settings], **arguments: Any) -> AsyncIterator[tuple[Landing, list[Node]]]:
    async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
        await client.admin.declare("q", arguments)
        yield Landing(client), nodes


def run(test: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(test())  # type: ignore[arg-type]


def keeper_of(node: Node) -> HoldKeeper:
    keeper = hosted_by(node).mastering.holds
    assert keeper is not None
    return keeper


# --- requests ---


def test_a_landing_registers_renews_and_ends(tmp_path: Path) -> None:
    """By its answers: the hold, where the queue begins and ends, what is left of the lease; listed until it ends."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, _):
            await it.publish(10 * KIB)
            given = await it.set(4, location="file:///lake")
            assert (given.queue, given.name, given.holder, given.epoch) == ("q", "lake", "x", 1)
            assert (given.queue_offset, given.begin, given.next, given.lag) == (4, 0, 10, 6)
            assert LONG_MS - 5000 < given.left_ms <= LONG_MS
            assert (await it.set(7, epoch=given.epoch)).queue_offset == 7
            assert [hold.queue_offset for hold in await it.admin.holds("q")] == [7]
            await it.admin.end_hold("q", "lake", holder="x")
            assert await it.admin.holds("q") == []
            with pytest.raises(NoSuchHold, match="queue q has no landing 'lake'"):
                await it.admin.end_hold("q", "lake")
            await it.admin.end_hold("q", "lake", missing_ok=True)

    run(test)


def test_what_a_landing_may_not_ask_for(tmp_path: Path) -> None:
    """Beyond the confirmed end, of no queue, of a mirror, against another holder, with a lease that is none."""

    async def test() -> None:
        async with landing(settings_of(tmp_path, 2)) as (it, nodes):
            await it.publish(KIB)
            for options, error in (
                ({"queue_offset": 2}, BadRequest),
                ({"lease_ms": 1}, BadRequest),
                ({"name": "\0"}, BadRequest),
                ({"tiered": True}, BadRequest),
            ):
                with pytest.raises(error):
                    await it.set(**options)
            with pytest.raises(NoSuchQueue):
                await it.admin.set_hold("other", "lake", holder="x", queue_offset=0, lease_ms=1000)
            await until(lambda: replica_of(nodes[1]).queues.get("q") is not None)
            mirror = await it.client.connection_to(nodes[1].settings.client_bind)
            wish = SetHold(queue="q", name="lake", holder="x", queue_offset=0, lease_ms=1000)
            with pytest.raises(NotMaster):
                await mirror.request(wish, HoldGranted, timeout_ms=5000)
            await it.set()
            with pytest.raises(HoldTaken, match="held by 'x' in epoch 1, 3") as refusal:
                await it.set(holder="y")
            assert refusal.value.details["holder"] == "x"
            assert (await it.set(holder="y", take_over=True)).epoch == 2
            with pytest.raises(HoldTaken):
                await it.set()
            with pytest.raises(HoldTaken):
                await it.admin.end_hold("q", "lake", holder="x")

    run(test)


def test_of_two_that_register_at_once_one_has_it(tmp_path: Path) -> None:
    """Both ask before either is answered; the one that is refused is told who has it; so it is with two that take over:
    each is told of its own epoch, or of the other."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, _):
            found = await asyncio.gather(*(it.set(holder=holder) for holder in "xy"), return_exceptions=True)
            given = [each for each in found if isinstance(each, HoldInfo)]
            refused = [each for each in found if isinstance(each, HoldTaken)]
            assert (len(given), [each.details["holder"] for each in refused]) == (1, [given[0].holder])
            both = await asyncio.gather(
                *(it.set(holder=holder, take_over=True) for holder in "vw"), return_exceptions=True
            )
            (hold,) = await it.admin.holds("q")
            assert hold.epoch == 3
            for holder, each in zip("vw", both, strict=True):
                if isinstance(each, HoldInfo):
                    assert each.holder == holder
                else:
                    assert isinstance(each, HoldTaken)
                    assert holder != hold.holder

    run(test)


def test_a_planner_is_told_of_the_gaps_that_losses_left(tmp_path: Path) -> None:
    """Let the queue offsets leap, and once more: metadata has the gaps of a queue with records before them, and none of
    one that begins behind them, nor when there was no loss."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, nodes):
            await it.admin.declare("empty")
            await it.publish(5 * KIB)
            assert (await it.info()).gaps == []
            log = hosted_by(nodes[0])
            expected: list[tuple[int, int]] = []
            for _ in range(2):
                told: list[object] = []
                stood = (await it.info()).next
                log.publisher.append_change(log.replica.jump_batch(lost_from=log.replica.log.end), told.append)
                await until(lambda told=told: told == [None])
                await it.publish(KIB)
                info, empty = (await it.admin.metadata(["q", "empty"])).queues
                expected.append((stood, info.next - 1))
                assert info.gaps == expected
                assert (empty.gaps, empty.begin) == ([], empty.next)

    run(test)


def test_holds_need_a_cluster_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no master of the software before frees what is held. At the version before: refused, and nothing stored."""
    monkeypatch.setattr("tests.ha.nodes.Assigned.cluster_version", lambda self: versions.HOLDS - 1)

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, nodes):
            end = replica_of(nodes[0]).log.end
            with pytest.raises(UnsupportedVersion, match="holds came with version 3"):
                await it.set()
            with pytest.raises(UnsupportedVersion):
                await it.admin.end_hold("q", "lake")
            assert await it.admin.holds("q") == []
            assert replica_of(nodes[0]).log.end == end

    run(test)


# --- what is kept ---


@pytest.mark.parametrize("arguments", [SHORT, {}], ids=["limits of its own", "limits of the log"])
def test_a_landing_that_is_away_keeps_its_records_until_its_hold_ends(tmp_path: Path, arguments: dict) -> None:
    """Goal: retention waits for a landing. A queue that keeps a millisecond, or a log that keeps 1 MiB: the landing
    holds from the middle; several times as much is published and checked; all it needs is there, and what is below
    goes. It moves on, and what it passed goes; it ends, and the rest goes."""

    async def test() -> None:
        log = {} if arguments else {"retention_bytes": 1024 * KIB}
        async with landing(settings_of(tmp_path, **log), **arguments) as (it, nodes):
            await it.set(0)  # or some of it is gone before the landing has moved to the middle
            await it.publish(1024 * KIB)
            await it.set(700)
            await it.rounds(nodes[0], 6)
            begin = await it.begins_at(1)
            assert begin <= 700
            assert await it.readable(700) == (await it.info()).next - 700
            await it.set(2000)
            assert 700 < await it.begins_at(1200) <= 2000
            await it.admin.end_hold("q", "lake")
            await it.begins_at(2001)
            with pytest.raises(OffsetOutOfRange):
                await it.readable(0)

    run(test)


def test_a_low_disk_does_not_free_what_is_held(tmp_path: Path) -> None:
    """Goal: then data is refused instead. Say that the disk is low, again and again: what is held stays; and goes once
    it is not."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, nodes):
            await it.publish(1024 * KIB)
            await it.set(300)
            retention = hosted_by(nodes[0]).role.retention  # type: ignore[union-attr]
            for _ in range(6):
                retention.disk_is_low()
                await it.rounds(nodes[0], 1)
            assert (await it.info()).begin <= 300
            await it.admin.end_hold("q", "lake")
            async with asyncio.timeout(20):
                while (await it.info()).begin <= 300:
                    retention.disk_is_low()
                    await it.publish(64 * KIB)

    run(test)


def test_a_landing_that_comes_late_is_told_what_it_missed(tmp_path: Path) -> None:
    """Records are gone before it registers, from 0 on: it is given its hold, and `begin` says where the rest begins;
    from there on nothing goes any more."""

    async def test() -> None:
        async with landing(settings_of(tmp_path), **SHORT) as (it, nodes):
            await it.publish(1024 * KIB)
            gone = await it.begins_at(1)
            given = await it.set(0)
            assert given.queue_offset == 0
            assert given.begin >= gone
            await it.rounds(nodes[0], 4)
            assert (await it.info()).begin == given.begin
            assert await it.readable(given.begin) > 0

    run(test)


def test_a_landing_that_registers_while_it_is_decided_what_goes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a decision that is under way passes over no hold that was answered. Method: a decision that lets records go
    is kept on its helper until a landing has its hold from 0 on; what its answer says is there stays there."""
    decide, decided, goes_on = queue_retention.decide, threading.Event(), threading.Event()

    def slow(*facts: Any, **more: Any) -> Decision:
        decision = decide(*facts, **more)
        if decision.queue_starts and not decided.is_set():
            decided.set()
            assert goes_on.wait(20)
        return decision

    monkeypatch.setattr(queue_retention, "decide", slow)

    async def test() -> None:
        async with landing(settings_of(tmp_path), **SHORT) as (it, nodes):
            try:
                await it.publish(1024 * KIB)
                await until(decided.is_set)
                given = await it.set(0)
                assert given.begin == 0, "nothing was gone yet"
            finally:
                goes_on.set()
            await it.rounds(nodes[0])
            assert (await it.info()).begin == 0
            assert await it.readable(0) == (await it.info()).next

    run(test)


def test_what_is_tiered_goes_early_and_readers_are_told_where_it_is(tmp_path: Path) -> None:
    """A queue that is kept for ever, tiered at once: what is below its landing's hold goes, unless another landing,
    which is not tiered, still needs it; metadata names the table, after the hold has expired too."""

    async def test() -> None:
        async with landing(settings_of(tmp_path), tier_keep_ms=0) as (it, nodes):
            await it.publish(2048 * KIB)
            await it.set(100, name="other")
            tiered = {"location": "file:///lake", "tiered": True, "lease_ms": 2000}
            given = await it.set(0, **tiered)
            assert (await it.info()).tiers == [], "nothing is landed yet, and there may be no table"
            given = await it.set(1500, epoch=given.epoch, **tiered)
            await it.rounds(nodes[0])
            assert (await it.info()).begin <= 100
            await it.admin.end_hold("q", "other")
            assert 100 < await it.begins_at(800) <= 1500
            tier = TierInfo(name="lake", location="file:///lake", next=given.queue_offset)
            assert (await it.info()).tiers == [tier]
            await until(lambda: not any(replica_of(nodes[0]).holds.live()))
            assert (await it.info()).tiers == [tier]

    run(test)


def test_what_no_landing_has_landed_is_not_let_go_and_no_table_is_left_behind(tmp_path: Path) -> None:
    """Goal: readers find all that is gone. A landing that is tiered at once, and registers at the end: nothing goes
    before it has landed something; then it may not go to another table under its name, or be tiered no more."""

    async def test() -> None:
        async with landing(settings_of(tmp_path), tier_keep_ms=0) as (it, nodes):
            await it.publish(2048 * KIB)
            tiered = {"location": "file:///lake", "tiered": True}
            await it.set(1500, **tiered)
            await it.rounds(nodes[0])
            assert (await it.info()).begin == 0
            await it.set(1600, **tiered)
            await it.begins_at(800)
            for change in ({"location": "file:///new"}, {"tiered": False}):
                with pytest.raises(BadRequest, match="name of its own"):
                    await it.set(1700, **{**tiered, **change})
                await it.set(1700, **{**tiered, **change}, name=f"new {change}")
            assert ("lake", "file:///lake") in [(tier.name, tier.location) for tier in (await it.info()).tiers]

    run(test)


def test_what_is_tiered_stays_while_it_is_young(tmp_path: Path) -> None:
    """By default an hour: nothing goes in the time of a test, though all of it is landed."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, nodes):
            await it.publish(1024 * KIB)
            await it.set(0, location="file:///lake", tiered=True)
            await it.set(1024, location="file:///lake", tiered=True)
            await it.rounds(nodes[0])
            assert (await it.info()).begin == 0

    run(test)


# --- leases ---


def test_a_lease_that_is_not_renewed_ends_and_another_landing_goes_on(tmp_path: Path) -> None:
    """Method: the keeper is given a time of its own. Half the lease passes, it is renewed, half passes again: it holds;
    then all of it: it is ended as expired, in the log, and another holder has the next epoch without force."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, nodes):
            await it.publish(KIB)
            now = asyncio.get_running_loop().time
            keeper, holds = keeper_of(nodes[0]), replica_of(nodes[0]).holds
            await it.set()
            half_s = LONG_MS / 2000
            keeper.tick(now() + half_s)
            (queue_id,) = holds.floors()
            keeper.renewed(queue_id, "lake", now() + half_s)
            keeper.tick(now() + 1.5 * half_s)
            assert [hold.ended for hold in await it.admin.holds("q")] == [""]
            with pytest.raises(HoldTaken):
                await it.set(holder="y")
            keeper.tick(now() + 3 * half_s + 1)
            await until(lambda: holds.confirmed(queue_id)["lake"].ended == "expired")
            assert (await it.set(holder="y")).epoch == 2
            with pytest.raises(HoldTaken, match="held by 'y' in epoch 2"):
                await it.set(epoch=1)

    run(test)


def test_a_hold_that_keeps_more_than_it_may_is_ended(tmp_path: Path) -> None:
    """A log that lets holds keep 1 MiB: one at the end may stay, one that keeps more is ended as too-much, also where
    its records have left the memory; and says how much it kept before."""

    async def test() -> None:
        async with landing(settings_of(tmp_path, hold_bytes=1024 * KIB)) as (it, nodes):
            await it.publish(2048 * KIB)
            await it.set(0, name="behind")
            await it.set(2048)
            holds = replica_of(nodes[0]).holds
            (queue_id,) = holds.floors()
            await until(lambda: holds.confirmed(queue_id)["behind"].ended == "too-much")
            await until(lambda: keeper_of(nodes[0]).kept_bytes(queue_id, "lake") >= 0)
            assert [hold.ended for hold in await it.admin.holds("q")] == ["too-much", ""]
            told = [hold for log in (await it.admin.status()).logs for hold in log.holds]
            assert [(hold.name, hold.ended, 0 <= hold.kept_bytes < 1024 * KIB) for hold in told] == [
                ("behind", "too-much", False),
                ("lake", "", True),
            ]

    run(test)


def test_a_hold_is_not_judged_by_what_was_kept_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what a landing keeps is measured as it stands. One that was ended as too-much registers again at the end of
    the log, and is looked at before it was measured anew: it lives. So does one that has moved on since."""

    async def test() -> None:
        async with landing(settings_of(tmp_path, hold_bytes=1024 * KIB)) as (it, nodes):
            await it.publish(2048 * KIB)
            await it.set(0)
            keeper, holds = keeper_of(nodes[0]), replica_of(nodes[0]).holds
            (queue_id,) = (queue.queue_id for queue in replica_of(nodes[0]).queues)
            await until(lambda: holds.confirmed(queue_id)["lake"].ended == "too-much")
            monkeypatch.setattr(keeper, "_measure_at", float("inf"))
            assert (await it.set(2048)).epoch == 2
            keeper.tick(asyncio.get_running_loop().time() + 1)
            assert holds.newest(queue_id)["lake"].live
            monkeypatch.setattr(keeper, "_measure_at", 0.0)
            await until(lambda: keeper.kept_bytes(queue_id, "lake") >= 0)
            assert holds.newest(queue_id)["lake"].live

            monkeypatch.setattr(keeper, "_hold_bytes", -1)
            await it.set(0, name="moves")
            await until(lambda: keeper.kept_bytes(queue_id, "moves") > 1024 * KIB)
            monkeypatch.setattr(keeper, "_measure_at", float("inf"))
            await it.set(2048, name="moves", epoch=1)
            monkeypatch.setattr(keeper, "_hold_bytes", 1024 * KIB)
            assert keeper.kept_bytes(queue_id, "moves") > 1024 * KIB, "the old figure"
            keeper.tick(asyncio.get_running_loop().time() + 2)
            assert holds.newest(queue_id)["moves"].live

    run(test)


def test_a_renewal_whose_end_is_appended_is_not_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no landing believes that it holds what is let go. A renewal that changes nothing waits for its answer; then
    the lease ends, in the log, but not confirmed yet: the landing is told of the end. After `landing-end`, too; a new
    registration is given."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, nodes):
            await it.publish(KIB)
            given = await it.set(0)
            log = hosted_by(nodes[0])
            holds, keeper, publisher = log.replica.holds, keeper_of(nodes[0]), log.publisher
            confirmed, confirm = publisher.when_confirmed, holds.confirm
            (queue_id,) = holds.floors()
            seen: list[tuple[bool, bool]] = []

            def when_confirmed(done: Callable[[Any], None]) -> None:
                monkeypatch.setattr(publisher, "when_confirmed", confirmed)

                def ends(error: Any) -> None:
                    done(error)  # the answer is worked out in a step of its own
                    monkeypatch.setattr(holds, "confirm", lambda log_offset: None)
                    keeper.tick(asyncio.get_running_loop().time() + LONG_MS)
                    seen.append((holds.confirmed(queue_id)["lake"].live, holds.newest(queue_id)["lake"].live))

                confirmed(ends)

            monkeypatch.setattr(publisher, "when_confirmed", when_confirmed)
            with pytest.raises(HoldTaken, match=r"no hold of epoch 1 any more: it ended in epoch 1 \(expired\)"):
                await it.set(0, epoch=given.epoch)
            assert seen == [(True, False)]
            monkeypatch.setattr(holds, "confirm", confirm)
            assert (await it.set(0)).epoch == 2
            await it.admin.end_hold("q", "lake")
            with pytest.raises(HoldTaken, match="it was ended"):
                await it.set(0, epoch=2)
            assert await it.admin.holds("q") == []
            assert (await it.set(0)).epoch == 1

    run(test)


@pytest.mark.parametrize("change", [hand_over, take_over])
def test_a_hold_outlives_its_master_and_its_lease_begins_anew(
    tmp_path: Path, change: Callable[[HostedLog, HostedLog], Awaitable[Any]]
) -> None:
    """Goal: a failover takes nothing from a landing. The master changes, cleanly and by force, with half a lease left:
    the new one has the hold, gives all of its lease, keeps what it holds, and refuses who comes too early."""

    async def test() -> None:
        async with landing(settings_of(tmp_path, 2), **SHORT) as (it, nodes):
            await it.set(0)  # or some of it is gone before the landing has moved to the middle
            await it.publish(1024 * KIB)
            given = await it.set(700, location="s3://lake", tiered=False)
            old, new = (hosted_by(node) for node in nodes)
            await change(old, new)
            (hold,) = await it.admin.holds("q")
            assert (hold.holder, hold.epoch, hold.queue_offset) == ("x", given.epoch, 700)
            assert (hold.location, hold.ended) == ("s3://lake", "")
            assert hold.left_ms > LONG_MS - 60_000
            with pytest.raises(HoldTaken):
                await it.set(holder="y")
            await it.rounds(nodes[1])
            assert (await it.info()).begin <= 700
            assert await it.readable(700) > 0
            assert (await it.set(800, epoch=given.epoch)).epoch == given.epoch

    run(test)


def test_a_hold_is_there_after_a_start_from_a_checkpoint(tmp_path: Path) -> None:
    """Two holds, one ended, and many segments behind them, so that the changes themselves have gone from the log;
    restart, and look."""
    settings = settings_of(tmp_path)

    async def before() -> None:
        async with landing(settings, **SHORT) as (it, nodes):
            await it.publish(KIB)
            await it.set(1, name="ended", lease_ms=100, location="file:///lake", tiered=True)
            await until(lambda: not any(replica_of(nodes[0]).holds.live()))
            await it.publish(1024 * KIB)
            await it.set(1000)
            await it.rounds(nodes[0], 6)
            await it.begins_at(300)
            assert replica_of(nodes[0]).log.begin > 0

    async def after() -> None:
        async with landing(settings, **SHORT) as (it, _):
            lake, ended = sorted(await it.admin.holds("q"), key=lambda hold: -hold.queue_offset)
            assert (lake.name, lake.queue_offset, lake.ended) == ("lake", 1000, "")
            assert (ended.name, ended.ended, ended.location, ended.tiered) == ("ended", "expired", "file:///lake", True)
            assert (await it.set(1, name="ended")).epoch == 2

    run(before)
    run(after)
