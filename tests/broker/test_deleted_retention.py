"""The space of deleted queues, on real nodes with small segments."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import NoSuchQueue, QueueMoving
from mirrorlog.queues.moving import hand_over, leave
from tests.broker.hosting import KIB, SEGMENT_BYTES
from tests.broker.test_holds import Landing, landing, run, settings_of
from tests.ha.nodes import Node, hosted_by, replica_of, running

WORK = {"retention": "work"}
PARTS = 8


def delete(node: Node, name: str) -> int:
    """As its master logs it; the queue's id."""
    log = hosted_by(node)
    queue_id = log.replica.queues.find(name).queue_id
    log.publisher.append_control(log.replica.queues.delete(queue_id))
    return queue_id


async def begins_above(it: Landing, node: Node, least: int) -> None:
    """Something is published meanwhile: the log's begin follows its checkpoints, and they follow its growth."""
    async with asyncio.timeout(30):
        while replica_of(node).log.begin < least:
            await it.publish(32 * KIB, "kept")
            await asyncio.sleep(0.01)


async def fill(it: Landing) -> None:
    await it.admin.declare("kept")
    for _ in range(PARTS):
        await it.publish(256 * KIB, "q")
        await it.publish(4 * KIB, "kept")


async def all_of(it: Landing, queue: str) -> int:
    async with it.client.consumer(queue, start=0, until="confirmed") as consumer:
        count = 0
        async for batch in consumer.batches():
            assert batch.first == count
            count += len(batch)
        return count


def test_the_records_of_a_deleted_queue_are_dead_and_nothing_else_is(tmp_path: Path) -> None:
    """Goal: space at once, whatever the queue was declared with. A queue that keeps what is not settled, and one that
    keeps everything, in the same segments of a log without limits: nothing goes. The first is deleted: the log's begin
    passes its records, and the other has all of its own, from the first one on."""

    async def test() -> None:
        async with landing(settings_of(tmp_path), **WORK) as (it, (node,)):
            await fill(it)
            await it.rounds(node, 2)
            assert replica_of(node).log.begin == 0
            queue_id = delete(node, "q")
            filled = replica_of(node).log.end
            await begins_above(it, node, filled - 2 * SEGMENT_BYTES)
            replica = replica_of(node)
            info = (await it.admin.metadata(["kept"])).queues[0]
            assert (info.begin, await all_of(it, "kept")) == (0, info.next)
            assert queue_id not in replica.queues.start_offsets
            assert queue_id not in replica.index.queue_ids()
            with pytest.raises(NoSuchQueue):
                await it.client.consumer("q", start=0).start()

    run(test)


def test_the_records_of_a_queue_that_has_moved_stay_until_they_are_freed(tmp_path: Path) -> None:
    """Goal: the log that a queue was in keeps what it has left there, whatever else goes, until it is told. Method: a
    queue leaves a log that is limited to a MiB, and is handed over: the log's begin passes its records, which are
    copied and stay; freed, there are none."""

    async def test() -> None:
        async with landing(settings_of(tmp_path, retention_bytes=4 * SEGMENT_BYTES)) as (it, (node,)):
            await it.publish(4 * KIB, "q")
            log = hosted_by(node)
            replica, queue_id = log.replica, log.replica.queues.find("q").queue_id
            following = replica.index.next_appended(queue_id)
            log.publisher.append_control(leave(replica.queues, queue_id, 1, "another", next_queue_offset=following))
            log.publisher.append_control(hand_over(replica.queues, queue_id, 1) or bytearray())
            await it.admin.declare("kept")
            await begins_above(it, node, 2 * SEGMENT_BYTES)
            index = replica.index
            until, found = index.past_until(queue_id, 0), index.entries
            runs = (
                found(queue_id, 0, 1 << 30)
                if until is None
                else await log.past.entries(queue_id, 0, 1 << 30, until=until)
            )
            assert (runs[0].base_queue_offset, runs[-1].next_queue_offset) == (0, following)
            assert runs[0].log_offset >= replica.log.begin
            with pytest.raises(QueueMoving):
                replica.queues.find_id(queue_id)
            log.publisher.append_control(hand_over(replica.queues, queue_id, 1, freed=True) or bytearray())
            await begins_above(it, node, replica.log.end)
            assert index.begin(queue_id) == following
            assert not replica.queues.left_ids()

    run(test)


@pytest.mark.long
def test_space_is_freed_also_after_a_start_that_has_not_heard_of_the_queue(tmp_path: Path) -> None:
    """Goal: checkpoints do not carry what is gone, and its records are dead all the same. The deletion stands before
    the newest checkpoint, from which the log starts again: what the begin has not passed yet goes then."""

    async def test() -> None:
        settings = settings_of(tmp_path)
        async with landing(settings, **WORK) as (it, (node,)):
            await fill(it)
            delete(node, "q")
            state_from = replica_of(node).checkpoints.state_from
            async with asyncio.timeout(20):
                while replica_of(node).checkpoints.state_from <= state_from:
                    await it.publish(64 * KIB, "kept")
            filled = replica_of(node).log.end
        async with running(settings[0]) as node:
            assert replica_of(node).queues.any_gone
            async with Client(settings[0].client_bind) as client:
                it = Landing(client)
                await begins_above(it, node, filled - 2 * SEGMENT_BYTES)
                info = (await it.admin.metadata(["kept"])).queues[0]
                assert (info.begin, await all_of(it, "kept")) == (0, info.next)
                assert [each.name for each in replica_of(node).queues] == ["kept"]

    run(test)
