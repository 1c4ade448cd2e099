"""A log changes hands while its nodes run: nothing that is confirmed is lost, doubled or left out, nobody hangs."""

from __future__ import annotations

import asyncio
import math
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import uvloop

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.roles import MasterRole, MirrorRole
from mirrorlog.broker.hosting.states import HostedState
from mirrorlog.broker.log.replica import Replica
from mirrorlog.client import Client
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.config import Settings
from mirrorlog.errors import (
    BadRequest,
    DiskFailed,
    FileRefused,
    LogUnavailable,
    MasterChanged,
    MirrorlogError,
    NoSuchQueue,
    NotCurrent,
    NotLeader,
    NotMaster,
    OutcomeUnknown,
)
from mirrorlog.ha.client import ClientState
from tests.broker.derived import derived
from tests.broker.hosting import (
    KIB,
    Reader,
    Writer,
    hand_over,
    in_sync,
    next_epoch,
    node_of,
    running_all,
    settings_for,
    take_over,
    written_by,
)
from tests.commitlog.faulty import FaultyFiles, opens_on
from tests.ha.nodes import Node, decider_of, hosted_by, lead, running, until
from tests.ha.replicas import content


@contextmanager
def held_up(helper: Executor, threads: int = 1) -> Iterator[threading.Event]:
    """All threads of a helper wait until the event is set, at the latest at the end."""
    event, taken = threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        taken.release()
        event.wait(30)

    for _ in range(threads):
        helper.submit(wait)
    for _ in range(threads):
        assert taken.acquire(timeout=10)
    try:
        yield event
    finally:
        event.set()


async def turns(count: int = 20) -> None:
    """Let the loop turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def opened_again(log: HostedLog, settings: Settings, place: Path) -> dict[str, object]:
    """What a start derives from a copy of the log's directory as it is now."""
    assert log.maintenance is not None
    # No file may get another name while it is copied.
    await log.past.pause()
    await log.maintenance.rest()
    shutil.copytree(log.replica.log.directory, place)
    log.past.resume()
    again = Replica(log.assignment, log.log_id, settings)
    again.open(place)
    again.set_confirmed(log.replica.log.confirmed)
    try:
        return derived(again)
    finally:
        again.close()


# --- The whole story ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flush", ["memory", "disk"])
@pytest.mark.parametrize("read_from", ["master", "mirror"])
def test_a_log_changes_hands_ten_times_under_traffic(tmp_path: Path, flush: str, read_from: str) -> None:
    """Goal: every confirmed record is there once and in order, whoever masters the log, and readers see each of them
    once. Method: publish and read without a pause while the log goes from one node to the other and back, in turns as
    an orderly handover and as one that the old master hears of late, so that its end must be cut; in the end the copies
    are equal, and a start derives from them what they have derived."""
    settings = settings_for(tmp_path, 2, flush=flush)

    async def check() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            old, new = map(hosted_by, nodes)
            await client.admin.declare("numbers")
            writer = Writer(client, "numbers")
            async with Client(settings[1].client_bind, settings[0].client_bind) as other:
                reader = Reader(other, "numbers", read_from)
                for turn in range(10):
                    await writer.more()
                    if turn % 2:
                        await hand_over(old, new)
                    else:
                        confirmed, end = new.facts().confirmed, await take_over(old, new)
                        assert confirmed < end
                    old, new = new, old
                    await writer.more()
                await writer.stop()
                await reader.reached(len(writer.confirmed))
                await reader.stop()
            await in_sync(old, new)
            count = len(writer.confirmed)
            assert count > 20 * 20
            assert writer.confirmed == list(range(count))
            assert reader.seen == writer.confirmed
            queue = old.replica.queues.find("numbers").queue_id
            assert old.replica.index.next_confirmed(queue) == count
            assert content(old.replica) == content(new.replica)
            assert [queue.name for queue in old.replica.queues] == ["numbers"]
            await until(lambda: all(log.replica.log.flushed == log.replica.log.end for log in (old, new)))
            # What a role has hung on the copy goes with it.
            hooks = [
                (
                    each.on_stored,
                    each.on_appended,
                    [hook for hook in each.on_confirmed if hook != log.fetcher._confirmed],
                    each.on_lengths,
                    each.on_flush_wanted,
                )
                for log, each in ((old, old.replica), (new, new.replica))
            ]
            assert [[len(hook) for hook in each] for each in hooks] == [[1, 2, 3, 1, 1], [1, 1, 0, 0, 1]]
            for number, log in enumerate((old, new)):
                found = await opened_again(log, settings[0], tmp_path / f"again{number}")
                assert _comparable(found) == _comparable(derived(log.replica))

    uvloop.run(check())


def _comparable(facts: dict[str, object]) -> dict[str, object]:
    """Without what depends on how far a copy has got in leaving its past to the disk, and how many old batches of a
    producer it still knows."""
    return {key: value for key, value in facts.items() if key not in {"queues", "producers", "checkpoints"}}


async def test_a_mirror_that_becomes_the_master_has_what_a_start_as_master_has(tmp_path: Path) -> None:
    """Goal: one way of deriving. Method: a mirror follows queues, producers and positions, is cut when it returns from
    a mastership of its own, and becomes the master: all that it derives is what a start finds in its directory."""
    settings = settings_for(tmp_path, 2, segment_bytes=8 * 1024 * KIB)
    async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
        first, second = map(hosted_by, nodes)
        await client.admin.declare("q", arguments={"retention_bytes": 1 << 30})
        async with client.producer("q") as producer:
            for number in range(5):
                await producer.send(b"%d" % number)
            await take_over(first, second)
            await producer.send(b"5")
        async with client.consumer("q", start="earliest", group="g") as consumer:
            async for _ in consumer:
                break
            await consumer.commit()
        await in_sync(second, first)
        await hand_over(second, first)
        await in_sync(first, second)
        for number, log in enumerate((first, second)):
            await until(lambda log=log: log.replica.log.flushed == log.replica.log.end)  # type: ignore[misc]
            assert await opened_again(log, settings[0], tmp_path / f"again{number}") == derived(log.replica)


async def test_the_end_that_was_never_confirmed_is_cut(tmp_path: Path) -> None:
    """Let a master append what nobody else has while another is promoted: it follows, and what it alone held is gone,
    bytes and queue; its answer is an outcome unknown."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes:
        first, second = map(hosted_by, nodes)
        await in_sync(first, second)
        common = first.facts().end
        answers: list[MirrorlogError | None] = []
        assignment = written_by(first, "n1")
        await lead(second, assignment, 2)
        batch = first.replica.queues.declare("gone", {})
        assert batch is not None
        first.publisher.append_change(batch, answers.append)
        assert (first.facts().last_epoch, first.facts().end) > (1, common)
        assert not answers
        await first.follow(assignment, epoch=2)
        (answer,) = answers
        assert isinstance(answer, MasterChanged)
        assert answer.details["master"] == settings[1].client_bind
        await in_sync(second, first)
        assert first.replica.queues.get("gone") is None
        assert [each.start for each in first.replica.log.epochs.entries] == [0, common]
        assert content(first.replica) == content(second.replica)


async def test_what_a_former_master_cut_when_it_followed_is_cut_of_others_too(tmp_path: Path) -> None:
    """Goal: bytes that a master gave up as a mirror are not bytes that it lost. Of three nodes let n1 write a tail that
    n2 alone takes; promote n0, whom n1 follows, cutting the tail; give the log back to n1, and let n2 return: it is cut
    too, and all are in sync."""
    settings = settings_for(tmp_path, 3)
    async with running_all(settings) as nodes:
        logs = {node_of(log): log for log in map(hosted_by, nodes)}
        zero, one, two = logs["n0"], logs["n1"], logs["n2"]
        await in_sync(zero, one, two)
        by_zero, by_one = written_by(zero, "n0"), written_by(zero, "n1")
        await zero.step_down(by_one)
        await lead(one, by_one, 2)
        await zero.follow(by_one)
        await two.follow(by_one)
        await in_sync(one, zero, two)
        common = zero.facts().end
        await zero.step_down(by_one)
        batch = one.replica.queues.declare("tail", {})
        assert batch is not None
        one.publisher.append_change(batch, lambda error: None)
        await until(lambda: two.facts().end == one.facts().end > common)
        await two.step_down(by_one)
        await lead(zero, by_zero, 3)
        await one.follow(by_zero, epoch=3)
        await until(lambda: one.facts().end == zero.facts().end and one.facts().last_epoch == 3)
        await zero.step_down(by_one)
        await lead(one, by_one, 4)
        await zero.follow(by_one, epoch=4)
        await two.follow(by_one, epoch=4)
        await in_sync(one, zero, two)
        assert [len(log.replica.queues) for log in (zero, one, two)] == [0, 0, 0]
        assert content(zero.replica) == content(one.replica) == content(two.replica)


# --- The fence ------------------------------------------------------------------------------------------------------


async def test_a_publish_that_waits_is_answered_when_its_master_steps_down(tmp_path: Path) -> None:
    """Goal: nobody waits for a confirm that no one will give. Have a publish and a change of the node wait, two minutes
    if need be, for a mirror that rests; let the master step down, once knowing its successor and once not: both are
    answered, and what comes next is refused as not the master's."""
    settings = settings_for(tmp_path, 2)
    async with running(settings[1]) as mirror, running(settings[0]) as master:
        log = hosted_by(master)
        await in_sync(log, hosted_by(mirror))
        async with Client(settings[0].client_bind) as client:
            await client.admin.declare("q")
            for successor, said in (("n1", f"now written by node n1 at {settings[1].client_bind}"), (None, "any more")):
                await hosted_by(mirror).step_down()
                async with client.producer("q", idempotent=False) as producer:
                    answers: list[MirrorlogError | None] = []
                    waits = asyncio.ensure_future(producer.send(b"v"))
                    await until(lambda: log.waiting == 1)
                    log.publisher.when_confirmed(answers.append)
                    assert log.waiting == 2
                    facts = await log.step_down(written_by(log, successor) if successor else None)
                    assert [type(each) for each in answers] == [MasterChanged]
                    with pytest.raises(OutcomeUnknown, match=said):
                        await waits
                    assert log.waiting == 0
                    assert facts == log.facts()
                    assert facts.confirmed < facts.end
                with pytest.raises(NotMaster) as refused:
                    log.publisher.when_confirmed(answers.append)
                assert ("master" in refused.value.details) is (successor is not None)
                await lead(log, written_by(log, "n0"), next_epoch(log))
                await hosted_by(mirror).follow(log.assignment)
                await in_sync(log, hosted_by(mirror))


async def test_nothing_is_confirmed_after_the_fence(tmp_path: Path) -> None:
    """Goal: what a former master learns late confirms nothing, or a copy could not be cut that must be. Method: a log
    with confirms from the disk, on one node: hold its flushes up, publish, step down while the flush is out: it waits
    for the flush, and the confirmed offset stays."""
    (settings,) = settings_for(tmp_path, 1, flush="disk")
    async with running(settings) as node:
        log = hosted_by(node)
        await until(lambda: log.facts().confirmed == log.facts().end)
        confirmed = log.facts().confirmed
        answers: list[MirrorlogError | None] = []
        with held_up(log._flush_helper) as event:
            batch = log.replica.queues.declare("q", {})
            assert batch is not None
            log.publisher.append_change(batch, answers.append)
            await until(lambda: log._flush_helper.waiting == 1)
            change = asyncio.ensure_future(log.step_down())
            await turns()
            assert not change.done()
            assert [type(each) for each in answers] == [MasterChanged]
            event.set()
            assert (await change).confirmed == confirmed
        await until(lambda: log.facts().flushed == log.facts().end)
        assert log.facts().confirmed == confirmed


async def test_a_mirror_acks_nothing_after_the_fence(tmp_path: Path) -> None:
    """Let a mirror rest, whose flush is held up so that it takes a while: from the beginning its master counts one
    copy less, and what it writes is neither taken nor confirmed until the mirror follows again."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes:
        first, second = map(hosted_by, nodes)
        await in_sync(first, second)
        assert isinstance(first.role, MasterRole)
        mastership = first.role.mastership
        answers: list[MirrorlogError | None] = []
        something = first.replica.queues.declare("something to flush", {})
        assert something is not None
        with held_up(second._flush_helper):
            first.publisher.append_change(something, lambda error: None)
            await until(lambda: second._flush_helper.waiting == 1)
            end = second.facts().end
            batch = first.replica.queues.declare("q", {})
            assert batch is not None
            change = asyncio.ensure_future(second.step_down(first.assignment))
            await until(lambda: second.state is HostedState.CHANGING)
            first.publisher.append_change(batch, answers.append)
            await until(lambda: mastership.copies_up == 1)
            assert not change.done()
        await change
        assert second.facts().end == end < first.facts().end
        assert not answers
        with pytest.raises(NotMaster, match="node n0"):
            second.publisher.when_confirmed(answers.append)
        await second.follow(first.assignment)
        await until(lambda: answers == [None])


async def test_a_mirror_that_comes_before_the_epoch_is_open_is_let_in_when_it_is(tmp_path: Path) -> None:
    """Goal: no failover waits for a mirror to come again. Let the master rest; when the mirror has come back and waits
    at its port, let it lead: the mirror follows on the link on which it waited."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes:
        first, second = map(hosted_by, nodes)
        await in_sync(first, second)
        assert isinstance(second.role, MirrorRole)
        own, epoch, mirror = first.assignment, first.facts().epoch_known + 1, second.role.service
        accept = nodes[0].server.ha.accept
        await first.step_down()
        await until(lambda: any(link.waits for link in accept.links))
        accepted = accept.accepted
        await lead(first, own, epoch)
        await until(lambda: mirror.following)
        assert accept.accepted == accepted


# --- Order of changes -----------------------------------------------------------------------------------------------


async def test_changes_that_are_asked_for_at_once_are_made_one_after_the_other(tmp_path: Path) -> None:
    """Goal: no role begins before the one before has ended, also when who asked gives up. Method: hold the flushes up,
    ask for four changes at once and give up on two: each is made, in the order in which they were asked for."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes:
        first, second = map(hosted_by, nodes)
        await in_sync(first, second)
        states: list[str] = []
        enter = first._enter

        def noted(state: HostedState) -> None:
            states.append(state.value)
            enter(state)

        first._enter = noted  # type: ignore[method-assign]
        own, other = written_by(first, "n0"), written_by(first, "n1")
        with held_up(first._flush_helper) as event:
            asked = [
                asyncio.ensure_future(change)
                for change in (
                    first.lead(own, 2, decider_of(first).promoted(first, 2)),
                    first.follow(other),
                    first.step_down(),
                    first.lead(own, 5, decider_of(first).promoted(first, 5)),
                )
            ]
            await turns()
            assert states == ["changing"]
            for given_up in asked[:2]:
                given_up.cancel()
            event.set()
            await asyncio.wait(asked)
        assert states == ["changing", "master", "changing", "mirror", "changing", "resting", "changing", "master"]
        assert [each.epoch for each in first.replica.log.epochs.entries] == [1, 2, 5]
        assert asked[0].cancelled()
        asked[3].result()
        await second.follow(own)
        await in_sync(first, second)


async def test_a_change_that_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """Ask for an epoch that is not new, another log, oneself as the master to follow, and a role of a closed log: each
    is refused by its reason, and the master goes on."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes:
        first, second = map(hosted_by, nodes)
        await in_sync(first, second)
        role, own, other = first.role, written_by(first, "n0"), written_by(first, "n1")
        known = decider_of(first).in_sync(first)
        with pytest.raises(BadRequest, match="epoch 1 is not above 1"):
            await first.lead(own, 1, known)
        with pytest.raises(BadRequest, match="written by node n1"):
            await first.lead(other, 2, known)
        with pytest.raises(BadRequest, match="cannot follow itself"):
            await first.follow(own)
        with pytest.raises(BadRequest, match="cannot step down for itself"):
            await first.step_down(own)
        with pytest.raises(BadRequest, match="cannot become another"):
            await first.lead(own.model_copy(update={"name": "another"}), 2, known)
        assert first.role is role
        await second.close()
        await second.close()
        with pytest.raises(LogUnavailable, match="is closed on this node"):
            await second.lead(other, 2, known)
        with pytest.raises(LogUnavailable, match="is closed on this node"):
            second.facts()


async def test_a_master_of_an_older_epoch_is_not_followed(tmp_path: Path) -> None:
    """Tell a mirror of an epoch that its master does not know: it takes nothing, and acks nothing, until that master
    is in that epoch."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes:
        first, second = map(hosted_by, nodes)
        await in_sync(first, second)
        await second.follow(first.assignment, epoch=3)
        client = second.role.service.client  # type: ignore[attr-defined]
        await until(lambda: "not the newest one known here, 3" in str(client.last_error))
        assert isinstance(first.role, MasterRole)
        assert first.role.mastership.copies_up == 1
        await lead(first, first.assignment, 3)
        await in_sync(first, second)


async def test_a_change_that_the_disk_fails_ends_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk fail at the epoch list of a promotion: whoever asked is told, and the node ends by that reason."""
    files = FaultyFiles()
    _, settings = settings_for(tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "open", opens_on(files))
        node = Node(settings)
        task = asyncio.ensure_future(node.run())
        await until(lambda: any(log.state is HostedState.MIRROR for log in node.logs))
    try:
        log = hosted_by(node)
        files.disk.fail("create")
        with pytest.raises(DiskFailed):
            await lead(log, written_by(log, "n1"), 7)
        assert await asyncio.wait_for(asyncio.shield(task), 10) == DiskFailed.exit_code
    finally:
        node.ended.set()
        await task


async def test_a_promotion_that_the_system_refuses_is_made_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a node without descriptors is not ended by what it is asked to become. Method: nothing can be opened when a
    mirror is promoted; it rests, its node goes on, and promoted again it leads and takes what is published."""
    files = FaultyFiles()
    settings = settings_for(tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "open", opens_on(files))
        async with running(settings[1]) as node:
            log = hosted_by(node)
            await until(lambda: log.state is HostedState.MIRROR)
            files.disk.refuse()
            for epoch in (7, 8):
                with pytest.raises(FileRefused):
                    await lead(log, written_by(log, "n1"), epoch)
                assert log.state is HostedState.RESTING
            assert node.failure is None
            files.disk.heal()
            await lead(log, written_by(log, "n1"), 9)
            assert log.masters
            assert log.facts().epoch_known == 9


async def test_a_mirror_whose_cut_the_system_refuses_cuts_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a former master without descriptors keeps its copy until it can follow. Method: let it follow when nothing
    can be opened, so that its end cannot be cut; its node goes on, and in the end the copies are equal."""
    files = FaultyFiles()
    settings = settings_for(tmp_path, 2)
    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "open", opens_on(files))
        async with running(settings[0]) as node:
            patched.undo()
            async with running(settings[1]) as other:
                first, second = hosted_by(node), hosted_by(other)
                await in_sync(first, second)
                files.disk.refuse()
                end = await take_over(first, second)
                role = first.role
                assert isinstance(role, MirrorRole)
                await until(lambda: isinstance(role.service.client.last_error, FileRefused))
                assert first.facts().end == end
                assert node.failure is None
                files.disk.heal()
                await in_sync(second, first)
                assert content(first.replica) == content(second.replica)
                assert await opened_again(first, settings[0], tmp_path / "again") == derived(first.replica)


# --- What helpers have begun ----------------------------------------------------------------------------------------


def test_a_step_down_waits_for_cold_reads_and_readers_get_theirs(tmp_path: Path) -> None:
    """Goal: what a helper reads for a mirror ends before the next role; what it reads for a reader is answered. Fill
    some segments; hold the reads up; let a mirror join from the begin and a reader ask for it; step down: it waits for
    the mirror's read; let go: the reader has everything, once, and the mirror joins the next mastership."""
    settings = settings_for(tmp_path, 2)

    async def check() -> None:
        async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
            first, second = map(hosted_by, nodes)
            await client.admin.declare("numbers")
            writer = Writer(client, "numbers")
            await writer.more(2_000)
            await writer.stop()
            await in_sync(first, second)
            await until(lambda: first.replica.past is not None and len(first.replica.past.tables.heads) >= 2)
            node = nodes[0]
            with held_up(node.server.helpers.read, threads=2) as event:
                reader = Reader(client, "numbers", "n0")
                await until(lambda: node.server.helpers.read._work_queue.qsize() == 1)
                await second.step_down()
                assert isinstance(first.role, MasterRole)
                # As empty as a new member: what it is sent is on disk only.
                second.replica.begin_anew()
                await asyncio.get_running_loop().run_in_executor(None, partial(second.replica.align, 0, (), anew=True))
                second.replica.aligned()
                await second.follow(first.assignment)
                await until(lambda: node.server.helpers.read._work_queue.qsize() == 2)
                change = asyncio.ensure_future(first.step_down())
                await turns()
                assert not change.done()
                event.set()
                await change
                await reader.reached(len(writer.confirmed))
                await reader.stop()
                assert reader.seen == writer.confirmed
            await lead(first, written_by(first, "n0"), next_epoch(first))
            await in_sync(first, second)
            assert content(first.replica) == content(second.replica)

    uvloop.run(check())


def test_a_step_down_waits_for_retention_which_appends_nothing_more(tmp_path: Path) -> None:
    """Goal: no change of a former mastership gets into the log. Have the first round of retention decide on a helper
    that is held up, and step down: it waits, and nothing is appended when the round goes on; in the next mastership
    what it had decided is."""
    settings = settings_for(tmp_path, 1)

    async def check() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            (log,) = map(hosted_by, nodes)
            assert isinstance(log.role, MasterRole)
            retention = log.role.retention
            retention.queues._not_before = math.inf
            await client.admin.declare("numbers", arguments={"retention_bytes": 1})
            writer = Writer(client, "numbers")
            await writer.more(2_000)
            await writer.stop()
            await until(lambda: log.facts().flushed == log.facts().end and not log.past._due())
            assert log.replica.past is not None
            assert len(log.replica.past.tables.heads) >= 2
            with held_up(nodes[0].server.helpers.index) as event:
                retention.queues._not_before = 0
                retention.check()
                await until(lambda: nodes[0].server.helpers.index._work_queue.qsize() > 0)
                end = log.facts().end
                change = asyncio.ensure_future(log.step_down())
                await turns()
                assert not change.done()
                assert retention.queues._task is not None
                event.set()
                assert (await change).end == end
                assert retention.queues._task.done()
            await turns()
            assert log.facts().end == end
            assert log.replica.begin_ahead == 0
            await lead(log, log.assignment, next_epoch(log))
            await until(lambda: log.replica.begin_ahead > 0)

    uvloop.run(check())


async def test_a_promotion_waits_for_a_cut_whose_link_is_gone(tmp_path: Path) -> None:
    """Goal: a cut that a helper makes ends, in the log and in all that is derived from it, before the next role. Let a
    mirror that must be cut be held up in that, lose its link meanwhile, and be promoted: it waits, and leads what is
    left, as a start finds it."""
    settings = settings_for(tmp_path, 2, segment_bytes=8 * 1024 * KIB)
    async with running_all(settings) as nodes:
        first, second = map(hosted_by, nodes)
        await in_sync(first, second)
        common = first.facts().end
        await take_over(first, second)
        role = first.role
        assert isinstance(role, MirrorRole)
        with held_up(first._flush_helper) as event:
            await until(lambda: role.service.client.align_out)
            await second.step_down(written_by(first, "n0"))
            await until(lambda: role.service.client.state is ClientState.WAITING)
            change = asyncio.ensure_future(lead(first, written_by(first, "n0"), 3))
            await turns()
            assert not change.done()
            event.set()
            await change
        assert [(each.epoch, each.start) for each in first.replica.log.epochs.entries][-1] == (3, common)
        assert not len(first.replica.queues)
        await second.follow(first.assignment, epoch=3)
        await in_sync(first, second)
        await until(lambda: first.replica.log.flushed == first.replica.log.end)
        assert await opened_again(first, settings[0], tmp_path / "again") == derived(first.replica)


async def test_a_log_that_leaves_its_node_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Take a log from a node and close it while a reader waits and a publish does: both are told, and its queues are
    not there any more."""
    settings = settings_for(tmp_path, 2)
    async with running(settings[1]) as mirror, running(settings[0]) as node, Client(settings[0].client_bind) as client:
        log = hosted_by(node)
        await in_sync(log, hosted_by(mirror))
        await client.admin.declare("numbers")
        queue = log.replica.queues.find("numbers").queue_id
        reader = Reader(client, "numbers", "n0")
        await until(lambda: log.fetcher._count == 1)
        await hosted_by(mirror).step_down()
        answers: list[MirrorlogError | None] = []
        batch = log.replica.queues.declare("another", {})
        assert batch is not None
        log.publisher.append_change(batch, answers.append)
        assert node.logs.of_queue(queue) is log
        node.logs.remove(log)
        await log.close()
        assert [type(each) for each in answers] == [MasterChanged]
        assert log.fetcher._count == 0
        assert not len(node.logs)
        with pytest.raises(NoSuchQueue):
            node.logs.of_queue(queue)
        await reader.stop()


async def test_a_queue_gets_no_id_that_the_cluster_does_not_know_of(tmp_path: Path) -> None:
    """Goal: after a loss the next master knows above which ids to go on. Method: three ids are left; of ten queues that
    are declared at once none has another one's, and each is within what was granted before; then nobody grants more:
    what is there is found, and a new one is refused."""
    settings = settings_for(tmp_path, 1)
    async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
        view = nodes[0].view
        log = hosted_by(nodes[0])
        await client.admin.declare("first")
        view.queue_ids_granted = log.replica.queues.ids_assigned + 3
        found = await asyncio.gather(*(client.admin.declare(f"q{number}") for number in range(10)))
        assert len({info.queue_id for info in found}) == 10
        assert log.replica.queues.ids_assigned == 11 <= view.queue_ids_granted
        view.queue_ids_granted, view.queue_ids_refused = 11, True
        assert (await client.admin.declare("q3")).queue_id in {info.queue_id for info in found}
        async with Client(settings[0].client_bind, request_timeout_ms=200) as hasty:
            with pytest.raises(NotLeader):
                await hasty.admin.declare("one more")
        view.queue_ids_refused = False
        assert log.replica.queues.get("one more") is None
        await client.admin.declare("one more")


async def test_a_log_that_rests_is_shown_flushed_and_read(tmp_path: Path) -> None:
    """Let a log rest that has bytes that are not on disk: they get there, the node's status says what it does, and who
    reads this copy has what it knows to be confirmed. What is confirmed of the queue nobody can say: who asks for that
    is told so, in time, for the cluster may have made another node its master."""
    settings = settings_for(tmp_path, 1)
    async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
        (log,) = map(hosted_by, nodes)
        await client.admin.declare("q")
        async with client.producer("q") as producer:
            await producer.send(b"v")
        await log.step_down()
        (status,) = (await client.admin.status()).logs
        assert (status.role, status.state, status.end) == ("none", "resting", log.facts().end)
        await until(lambda: log.facts().flushed == log.facts().end)
        async with client.consumer("q", start="earliest", until="confirmed", read_from="n0") as consumer:
            assert [record.value async for record in consumer] == [b"v"]
        async with client.consumer("q", start="earliest", until=1) as consumer:
            assert [record.value async for record in consumer] == [b"v"]
        async with Client(settings[0].client_bind, request_timeout_ms=200) as hasty:
            with pytest.raises(NotCurrent, match="read_from"):
                await asyncio.wait_for(hasty.consumer("q", until="confirmed").start(), 10)


async def test_a_reader_up_to_what_is_confirmed_waits_for_a_new_master_to_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what a predecessor confirmed is not left out. Promote a mirror while nobody follows it, so that it cannot
    confirm the beginning of its epoch, and read from it: nothing is answered before the other copy is there."""
    settings = settings_for(tmp_path, 2)
    async with running_all(settings) as nodes, Client(*(each.client_bind for each in settings)) as client:
        first, second = map(hosted_by, nodes)
        await client.admin.declare("q")
        async with client.producer("q") as producer:
            await producer.send(b"v")
        await in_sync(first, second)
        by_second = written_by(first, "n1")
        await first.step_down(by_second)
        await lead(second, by_second, 2)
        async with Client(settings[1].client_bind) as asks_it:
            (info,) = (await asks_it.admin.metadata(["q"])).queues
            assert not info.current
            finding = asyncio.ensure_future(client.admin.find_offset("q", 2**62))

        async def read() -> list[bytes]:
            async with client.consumer("q", start="earliest", until="confirmed") as consumer:
                return [record.value async for record in consumer]

        asked: list[HostedLog] = []
        knows = HostedLog.knows_confirmed.fget
        assert knows is not None
        monkeypatch.setattr(HostedLog, "knows_confirmed", property(lambda log: asked.append(log) or knows(log)))
        reading = asyncio.ensure_future(read())
        await until(lambda: len(asked) >= 3 or reading.done())
        assert not reading.done()
        assert not finding.done()
        await first.follow(by_second, epoch=2)
        assert await reading == [b"v"]
        assert await finding == 1
