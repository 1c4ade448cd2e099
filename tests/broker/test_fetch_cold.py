"""Answers from disk: a connection has its turns, and one that is gone has none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from mirrorlog.broker.log.fetch import COLD_READS_MAX, ROOM_S, Fetcher
from mirrorlog.broker.log.maintenance import PastKeeper
from mirrorlog.broker.log.replica import Replica
from mirrorlog.broker.resources.budgets import OutgoingBudget
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import LogUnavailable, MirrorlogError
from mirrorlog.queues.changes import LogStartMoved, QueueDeclared, QueueStartsMoved, encode_change
from mirrorlog.queues.checkpoint import CheckpointWriter
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.frames import BATCHES, FRAME_HEADER_SIZE, Fetch, FrameType
from mirrorlog.wire.messages.codec import as_error, decode
from mirrorlog.wire.messages.handshake import Failure
from tests.ha.replicas import KIB, QUEUE_ID, append, flush, open_master, settings_of

WAITING_MAX = 60


class Steps(Executor):
    """A helper that does a job when it is told to."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def do_one(self) -> None:
        future, job = self.jobs.pop(0)
        future.set_result(job())


class Reader:
    """A connection that notes how many batches each answer had."""

    unsent_bytes = 0
    meter = None

    def __init__(self) -> None:
        self.open = True
        self.answers: dict[int, int] = {}
        self.errors: list[MirrorlogError] = []

    def send(self, parts: Iterable[bytes | memoryview]) -> None:
        head = memoryview(b"".join(parts))
        correlation_id = int.from_bytes(head[8:16], "little")
        if int.from_bytes(head[4:6], "little") == FrameType.ERROR:
            self.errors.append(as_error(cast(Failure, decode(head[FRAME_HEADER_SIZE:]))))
        else:
            self.answers[correlation_id] = BATCHES.unpack_from(head, FRAME_HEADER_SIZE)[-1]


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """A queue whose first batches are on disk only."""
    settings = settings_of("n0", ["n0"])
    log = settings.log.model_copy(update={"kept_mapped_bytes": 0})
    replica = open_master(tmp_path, settings.model_copy(update={"log": log}))
    replica.append_change(encode_change(QueueDeclared(name="q", queue_id=QUEUE_ID)), 1)
    for number in range(30):
        append(replica, 30 * KIB, number)
    flush(replica)
    flush(replica)
    replica.set_confirmed(replica.log.end)
    assert replica.log.read(0, 1, until=replica.log.end) is None
    return replica


def fetcher_of(
    replica: Replica,
    helper: Executor,
    *,
    now: Callable[[], float] = time.monotonic,
    budget: OutgoingBudget[Endpoint] | None = None,
) -> Fetcher:
    settings = settings_of("n0", ["n0"])
    limits = settings.limits.model_copy(update={"max_waiting_fetches": WAITING_MAX})
    past = PastKeeper(replica, helper=helper, failed=lambda error: None)
    return Fetcher(
        replica, limits=limits, settings=settings.log, past=past, helper=helper, now=now, budget=budget
    )  # fmt: skip


def ask(fetcher: Fetcher, reader: Reader, count: int) -> None:
    for number in range(count):
        fetch = Fetch(queue_id=QUEUE_ID, epoch=0, queue_offset=0, max_bytes=1, wait_ms=0)
        fetcher.fetch(fetch, cast(Endpoint, reader), number + 1)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_reader_that_asks_far_ahead_has_its_turns(replica: Replica) -> None:
    """Goal: who asks for much at once does not keep the disk from others. One asks 50 times, then another asks once:
    the helper has no more than two jobs of the first, and the other's is next; in the end all are answered."""
    helper, greedy, other = Steps(), Reader(), Reader()
    fetcher = fetcher_of(replica, helper)
    ask(fetcher, greedy, 50)
    await settled()
    assert len(helper.jobs) == COLD_READS_MAX
    ask(fetcher, other, 1)
    await settled()
    for _ in range(COLD_READS_MAX + 1):
        helper.do_one()
    await settled()
    assert other.answers == {1: 1}
    while helper.jobs:
        assert len(helper.jobs) <= COLD_READS_MAX
        helper.do_one()
        await settled()
    assert greedy.answers == dict.fromkeys(range(1, 51), 1)


async def test_nothing_is_read_for_a_connection_that_is_gone(replica: Replica) -> None:
    """Goal: what was asked for on it costs the disk nothing. Ask 50 times and leave: the helper gets no more jobs."""
    helper, reader = Steps(), Reader()
    fetcher = fetcher_of(replica, helper)
    ask(fetcher, reader, 50)
    await settled()
    reader.open = False
    fetcher.forget(cast(Endpoint, reader))
    done = 0
    while helper.jobs:
        helper.do_one()
        done += 1
        await settled()
    assert done == COLD_READS_MAX


async def test_waiting_for_the_disk_has_a_limit(replica: Replica) -> None:
    """Goal: what waits is bounded, and said by name. Ask ten times more than may wait: ten are refused."""
    helper, reader = Steps(), Reader()
    fetcher = fetcher_of(replica, helper)
    ask(fetcher, reader, WAITING_MAX + 10)
    assert [error.details for error in reader.errors] == [{"limit": "max_waiting_fetches"}] * 10
    await settled()
    while helper.jobs:
        helper.do_one()
        await settled()
    assert list(reader.answers) == list(range(1, WAITING_MAX + 1))


def publish(replica: Replica, queue_id: int, size: int) -> int:
    """One batch of one record; its log offset."""
    batch = memoryview(encode_batch([Record(b"x" * size)], queue_id=queue_id))
    return replica.append(batch, read_header(batch), 1).log_offset


async def test_what_moved_while_a_reader_waited_for_its_turn_is_not_passed_over(tmp_path: Path) -> None:
    """Goal: records that are copied, and whose segment goes, between the question and its turn are in the answer. Keep
    both turns of a connection busy, ask once more for a sealed queue, copy it and free its segment, and go on: no
    answer begins behind a hole."""
    settings = settings_of("n0", ["n0"])
    log = settings.log.model_copy(update={"kept_mapped_bytes": 0})
    replica = open_master(tmp_path, settings.model_copy(update={"log": log}))
    for queue_id in (1, 2):
        replica.append_change(encode_change(QueueDeclared(name=f"q{queue_id}", queue_id=queue_id)), 1)
    places = [publish(replica, 1, KIB) for _ in range(10)]
    while replica.log.active_start == 0:
        publish(replica, 2, 30 * KIB)
    first_end = replica.log.active_start
    writer = CheckpointWriter(replica.queues, replica.producers, replica.index.next_appended)
    while (batch := writer.next_batch(replica.log.end)) is not None:
        replica.append_change(batch, 1)
    publish(replica, 1, KIB)
    replica.set_confirmed(replica.log.end)
    flush(replica)
    flush(replica)
    cold, reader = Steps(), Reader()
    with ThreadPoolExecutor(1) as past_helper:
        past = PastKeeper(replica, helper=past_helper, failed=lambda error: None)

        async def seal_and_free() -> None:
            past.wake()
            assert past._task is not None
            await past._task

        async def until(condition: Callable[[], bool], *, read: bool = False) -> None:
            async with asyncio.timeout(10):
                while not condition():
                    if read and cold.jobs:
                        cold.do_one()
                    await asyncio.sleep(0)

        await seal_and_free()
        fetcher = Fetcher(
            replica, limits=settings.limits, settings=settings.log, past=past, helper=cold, now=time.monotonic
        )
        fetch = Fetch(queue_id=1, epoch=0, queue_offset=0, max_bytes=1 << 20, wait_ms=0)
        for number in range(COLD_READS_MAX + 1):
            fetcher.fetch(fetch, cast(Endpoint, reader), number)
        await until(lambda: len(cold.jobs) == COLD_READS_MAX)
        replica.append_change(encode_change(QueueStartsMoved(begins={1: 0})), 1)
        for place in places:
            replica.append_copied(memoryview(replica.log.read_batch_at(place)[1]))
        replica.set_confirmed(replica.log.end)
        replica.append_change(encode_change(LogStartMoved(log_offset=first_end)), 1)
        replica.set_confirmed(replica.log.end)
        await seal_and_free()
        assert replica.log.begin == first_end
        await until(lambda: len(reader.answers) + len(reader.errors) == COLD_READS_MAX + 1, read=True)
    assert not reader.errors
    # Two had found out before that the first ten stand in the past; the third finds all of them in memory.
    assert reader.answers == {0: 10, 1: 10, COLD_READS_MAX: 11}


def full() -> OutgoingBudget[Endpoint]:
    """Somebody is read for, and there is room for nobody else."""
    budget: OutgoingBudget[Endpoint] = OutgoingBudget(1)
    assert budget.begin(cast(Endpoint, Reader()), 1)
    return budget


async def test_who_waits_for_room_is_told_when_the_log_leaves(replica: Replica) -> None:
    """Goal: every question has an answer. Method: more than may be read at once wait for room, and the log goes."""
    helper, reader = Steps(), Reader()
    fetcher = fetcher_of(replica, helper, budget=full())
    ask(fetcher, reader, COLD_READS_MAX + 1)
    await settled()
    fetcher.end_waits(LogUnavailable("it left"))
    await settled()
    assert [error.code for error in reader.errors] == [LogUnavailable.code] * (COLD_READS_MAX + 1)
    assert not helper.jobs


async def test_who_waits_for_room_is_told_after_a_while(replica: Replica) -> None:
    """Goal: a client need not give up a node that has no room. Method: time passes; before the deadline nothing is
    said, at it the limit is named, to those who have not had a turn, too."""
    helper, reader, time_s = Steps(), Reader(), [100.0]
    fetcher = fetcher_of(replica, helper, now=lambda: time_s[0], budget=full())
    ask(fetcher, reader, COLD_READS_MAX + 1)
    await settled()
    for later_s, told in ((ROOM_S - 1, 0), (ROOM_S, COLD_READS_MAX + 1)):
        time_s[0] = 100.0 + later_s
        fetcher.tick(time_s[0])
        await settled()
        assert [error.details for error in reader.errors] == [{"limit": "outgoing_bytes_total"}] * told
    assert not helper.jobs
