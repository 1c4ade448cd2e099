"""The threads that logs share for their disks: order within a log, none that waits for another one's disk, no more than
are needed."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager

import pytest

from mirrorlog.broker.log.disk_threads import DiskLane, DiskThreads

WAIT_S = 10.0


@contextmanager
def ended(threads: DiskThreads) -> Iterator[DiskThreads]:
    try:
        yield threads
    finally:
        threads.shutdown()


@contextmanager
def held_up(*lanes: DiskLane) -> Iterator[None]:
    """What stands on these lanes waits; all of them are worked on."""
    go, begun = threading.Event(), threading.Semaphore(0)

    def hold() -> None:
        begun.release()
        go.wait(WAIT_S)

    held = [lane.submit(hold) for lane in lanes]
    for _ in lanes:
        assert begun.acquire(timeout=WAIT_S)
    try:
        yield
    finally:
        go.set()
        wait(held, WAIT_S)


def test_a_lane_keeps_its_order_whoever_works_on_it() -> None:
    """Goal: a log's close follows its flush. Many jobs of many lanes on few threads, in a random order: on each lane
    they are done one after the other, in the order in which they came."""
    seed = random.randrange(2**32)
    print(f"seed={seed}")
    chance = random.Random(seed)
    done: dict[int, list[int]] = defaultdict(list)
    asked: dict[int, list[int]] = defaultdict(list)
    inside: set[int] = set()

    def job(number: int, serial: int) -> int:
        assert number not in inside, "two at once on a lane"
        inside.add(number)
        done[number].append(serial)
        inside.discard(number)
        return serial

    with ended(DiskThreads("test", threads_max=3, rest_s=0.001)) as threads:
        lanes = [threads.lane() for _ in range(10)]
        futures: list[tuple[int, Future[int]]] = []
        for serial in range(2000):
            number = chance.randrange(10)
            asked[number].append(serial)
            futures.append((serial, lanes[number].submit(job, number, serial)))
        assert [future.result(WAIT_S) for _, future in futures] == [serial for serial, _ in futures]
        assert done == asked
        assert threads.count <= 3


def test_a_slow_disk_job_of_one_log_holds_nobody_else_up() -> None:
    with ended(DiskThreads("test")) as threads:
        slow, other = threads.lane(), threads.lane()
        with held_up(slow):
            behind = slow.submit(lambda: "slow")
            assert other.submit(lambda: "other").result(WAIT_S) == "other"
            assert not behind.done()
            assert slow.waiting == 1
        assert behind.result(WAIT_S) == "slow"


def test_threads_come_with_the_work_and_go_when_there_is_none() -> None:
    """Hold twenty lanes up: twenty threads. When all are done, each ends by itself."""
    with ended(DiskThreads("test", rest_s=0.001)) as threads:
        lanes = [threads.lane() for _ in range(20)]
        with held_up(*lanes):
            assert threads.count == 20
            running = [each for each in threading.enumerate() if each.name.startswith("test-")]
        for thread in running:
            thread.join(WAIT_S)
        assert threads.count == 0
        assert lanes[0].submit(lambda: 1).result(WAIT_S) == 1


def test_lanes_above_the_most_threads_wait_for_one() -> None:
    with ended(DiskThreads("test", threads_max=2)) as threads:
        first, second, third = (threads.lane() for _ in range(3))
        with held_up(first, second):
            waiting = third.submit(lambda: 3)
            assert threads.count == 2
            assert not waiting.done()
        assert waiting.result(WAIT_S) == 3


def test_what_a_job_raises_is_the_answer_and_the_lane_goes_on() -> None:
    def fail() -> None:
        raise OSError("no disk")

    with ended(DiskThreads("test")) as threads:
        lane = threads.lane()
        failed = lane.submit(fail)
        assert lane.submit(lambda: 1).result(WAIT_S) == 1
        with pytest.raises(OSError, match="no disk"):
            failed.result(WAIT_S)


def test_a_lane_that_is_shut_down_waits_for_what_it_does_and_drops_the_rest() -> None:
    with ended(DiskThreads("test")) as threads:
        lane, other = threads.lane(), threads.lane()
        with held_up(lane):
            dropped = lane.submit(lambda: 1)
            lane.shutdown(wait=False, cancel_futures=True)
            assert dropped.cancelled()
        lane.shutdown()
        with pytest.raises(RuntimeError, match="nothing is taken"):
            lane.submit(lambda: 1)
        assert other.submit(lambda: 2).result(WAIT_S) == 2


def test_the_threads_end_with_what_is_under_way_and_begin_nothing_more() -> None:
    """Goal: a stop that is given up on leaves nothing hanging. Shut down while one lane is worked on and another waits
    for a thread: the first comes to its end, the second is told."""
    threads = DiskThreads("test", threads_max=1)
    first, second = threads.lane(), threads.lane()
    with held_up(first):
        never = second.submit(lambda: 1)
        threads.shutdown(wait=False, cancel_futures=True)
        with pytest.raises(CancelledError):
            never.result(WAIT_S)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="have ended"):
        second.submit(lambda: 1)
    second.shutdown()
    first.shutdown()
