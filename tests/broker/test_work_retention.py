"""Queues that keep what is not settled, and nothing else, on real nodes with small segments."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.errors import BadRequest, OffsetOutOfRange
from mirrorlog.queues.changes import (
    Change,
    GroupDeleted,
    GroupReset,
    PositionCommitted,
    QueueDeclared,
    Settled,
    encode_change,
)
from tests.broker.hosting import KIB, SEGMENT_BYTES
from tests.broker.test_holds import Landing, landing, run, settings_of
from tests.ha.nodes import Node, hosted_by, replica_of

WORK = {"retention": "work"}


def change(node: Node, *changes: Change) -> None:
    """Of the queue `q`, as its master logs them."""
    log = hosted_by(node)
    queue_id = log.replica.queues.find("q").queue_id
    for each in changes:
        log.publisher.append_control(encode_change(each, queue_id=queue_id))


async def settled(it: Landing, node: Node, *, first: int, until_offset: int, group: str = "") -> None:
    change(node, Settled(group=group, ranges=[first, until_offset]))
    await it.publish(KIB)


@pytest.mark.parametrize(
    ("arguments", "log"),
    [(WORK, {}), ({**WORK, "retention_ms": 1}, {}), (WORK, {"retention_bytes": 1024 * KIB})],
    ids=["no limits", "limits of its own", "limits of the log"],
)
def test_the_begin_follows_the_lowest_floor_and_nothing_unsettled_goes(
    tmp_path: Path, arguments: dict[str, Any], log: dict[str, Any]
) -> None:
    """Goal: retention = "work" is what it says, whatever limits there are. Without a group everything stays; with two
    the begin follows the one that is behind, and stays at a record that is not settled, whatever is settled behind it;
    the end of that group lets go what the other has settled."""

    async def test() -> None:
        async with landing(settings_of(tmp_path, **log), **arguments) as (it, nodes):
            node = nodes[0]
            await it.publish(2048 * KIB)
            await it.rounds(node, 3)
            assert (await it.info()).begin == 0
            change(node, GroupReset(group="", queue_offset=0), GroupReset(group="late", queue_offset=0))
            await settled(it, node, first=0, until_offset=2000)
            await settled(it, node, first=0, until_offset=700, group="late")
            await settled(it, node, first=701, until_offset=2000, group="late")
            assert 0 < await it.begins_at(1) <= 700
            await it.rounds(node, 3)
            assert (await it.info()).begin <= 700
            assert await it.readable(700) == (await it.info()).next - 700
            change(node, GroupDeleted(group="late"))
            assert 700 < await it.begins_at(1000) <= 2000
            with pytest.raises(OffsetOutOfRange):
                await it.readable(0)

    run(test)


def test_a_queue_of_work_without_groups_any_more_keeps_all_that_it_has(tmp_path: Path) -> None:
    """Settle, let go, delete the group: what comes then stays."""

    async def test() -> None:
        async with landing(settings_of(tmp_path), **WORK) as (it, nodes):
            await it.publish(2048 * KIB)
            change(nodes[0], GroupReset(group="", queue_offset=0))
            await settled(it, nodes[0], first=0, until_offset=1500)
            begin = await it.begins_at(500)
            change(nodes[0], GroupDeleted(group=""))
            await it.publish(KIB)
            await it.rounds(nodes[0], 3)
            assert begin <= (await it.info()).begin <= 1500
            assert await it.readable(1500) == (await it.info()).next - 1500

    run(test)


def test_groups_of_a_queue_with_limits_hold_nothing(tmp_path: Path) -> None:
    """Goal: the default is as it was. A group that has settled nothing, in a queue that keeps a millisecond: its begin
    moves on."""

    async def test() -> None:
        async with landing(settings_of(tmp_path), retention="limits", retention_ms=1) as (it, nodes):
            change(nodes[0], GroupReset(group="", queue_offset=0))
            await it.publish(2048 * KIB)
            assert await it.begins_at(1000)

    run(test)


def test_what_groups_have_settled_is_settled_after_a_start(tmp_path: Path) -> None:
    """Goal: checkpoints carry groups. Let the log roll and free its begin, so that what was settled stands nowhere but
    in checkpoints; start again: the floor is where it was, and the exceptions too."""

    async def test() -> None:
        settings = settings_of(tmp_path)
        async with landing(settings, **WORK) as (it, nodes):
            await it.publish(2048 * KIB)
            change(nodes[0], GroupReset(group="", queue_offset=0))
            change(nodes[0], Settled(group="", ranges=[0, 1500, 1502, 1504]))
            replica = replica_of(nodes[0])
            async with asyncio.timeout(20):
                while replica.log.begin < SEGMENT_BYTES:
                    await it.rounds(nodes[0], 1)
            queue_id = replica.queues.find("q").queue_id
            before = list(replica.groups.find(queue_id, "").runs(0, 2000))
        async with landing(settings, **WORK) as (_, nodes):
            replica = replica_of(nodes[0])
            assert replica.log.begin >= SEGMENT_BYTES
            assert list(replica.groups.find(queue_id, "").runs(0, 2000)) == before

    run(test)


def test_the_argument_has_two_values(tmp_path: Path) -> None:
    """Another one is refused, naming both."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, _):
            with pytest.raises(BadRequest, match="must be 'limits' or 'work'"):
                await it.admin.declare("w", {"retention": "worker"})

    run(test)


def test_a_queue_that_is_used_for_work_frees_what_is_settled_without_being_asked(tmp_path: Path) -> None:
    """Goal: acked is gone, by default. Nothing goes while nobody acknowledges, nor of a queue that says that it keeps
    all. A stream group makes it a stream again, and its end a work queue; the queue is so after a start, too."""

    async def test() -> None:
        settings = settings_of(tmp_path)
        async with landing(settings) as (it, nodes):
            node = nodes[0]
            await it.publish(2048 * KIB)
            await it.rounds(node, 3)
            assert (await it.info()).begin == 0
            change(
                node,
                PositionCommitted(group="s", log_id="", epoch=1, queue_offset=10),
                GroupReset(group="", queue_offset=0),
            )
            await settled(it, node, first=0, until_offset=1500)
            await it.rounds(node, 3)
            assert (await it.info()).begin == 0
        async with landing(settings) as (it, nodes):
            change(nodes[0], GroupDeleted(group="s"))
            assert 500 < await it.begins_at(500) <= 1500
            assert await it.readable(1500) == (await it.info()).next - 1500

    run(test)


@pytest.mark.parametrize(
    "arguments", [{"retention": "limits"}, {"retention_bytes": 64 * 1024 * KIB}], ids=["said", "own limits"]
)
def test_a_queue_that_says_what_it_keeps_keeps_it(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Settle all in a queue that has limits of its own, or says that it goes by limits: nothing goes."""

    async def test() -> None:
        async with landing(settings_of(tmp_path), **arguments) as (it, nodes):
            await it.publish(2048 * KIB)
            change(nodes[0], GroupReset(group="", queue_offset=0))
            await settled(it, nodes[0], first=0, until_offset=2000)
            await it.rounds(nodes[0], 3)
            assert (await it.info()).begin == 0

    run(test)


def test_a_queue_of_a_cluster_of_before_keeps_all(tmp_path: Path) -> None:
    """Goal: an update frees nothing that was kept. A queue that was declared at the version before is as it was."""

    async def test() -> None:
        async with landing(settings_of(tmp_path)) as (it, nodes):
            before = QueueDeclared(name="before", queue_id=2)
            hosted_by(nodes[0]).publisher.append_control(encode_change(before))
            await it.publish(KIB)
            replica = replica_of(nodes[0])
            assert (replica.queues.works({1, 2}), replica.queues.find("before").kept_by_use) == ({1}, False)

    run(test)
