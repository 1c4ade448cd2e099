"""When records expire next, by queue: each run is looked at once, and a queue's groups are asked only when one has."""

from __future__ import annotations

import math

from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.queues.limits.attributes import RunTable
from mirrorlog.queues.limits.expiry import Expiries

MS = 1000


class Log:
    """Queues of runs of one record; all is confirmed."""

    def __init__(self) -> None:
        self.runs = RunTable(runs_max=100_000, floors=lambda queue_ids: {})
        self.ends: dict[int, int] = {}
        self.expiries = Expiries(runs=self.runs.of, confirmed=lambda queue_id: self.ends.get(queue_id, 0))

    def publish(self, queue_id: int, now_us: int, **asked: int) -> None:
        at = self.ends.get(queue_id, 0)
        self.runs.add(queue_id, at, 1, now_us, Attributes(**asked))
        self.ends[queue_id] = at + 1
        self.expiries.gained([queue_id])


def test_a_queue_is_told_of_when_its_first_record_has_expired_and_then_of_what_came_behind() -> None:
    log = Log()
    expiries = log.expiries
    log.publish(1, 0, ttl_ms=50)
    log.publish(1, 0, ttl_ms=20)
    log.publish(2, 0, priority=3)
    assert expiries.look(100) == [1]
    assert not expiries.unlooked
    assert (expiries.next_us, expiries.come(19 * MS)) == (20 * MS, [])
    log.publish(1, 10 * MS, ttl_ms=100)
    assert expiries.look(100) == [1]
    # Whoever looks by then knows of the others, too.
    assert expiries.come(20 * MS) == [1]
    assert expiries.come(10_000 * MS) == []
    log.publish(1, 30 * MS, ttl_ms=5)
    assert expiries.look(100) == [1]
    assert expiries.come(35 * MS) == [1]
    assert expiries.next_us == math.inf


def test_of_all_queues_so_many_runs_are_looked_at_at_once_and_each_once() -> None:
    """Ten queues of a thousand runs each, a thousand at once: eleven looks or so, in all of which each queue has its
    turn; then each confirm is one run."""
    log = Log()
    for at in range(1000):
        for queue_id in range(1, 11):
            log.publish(queue_id, 0, ttl_ms=10_000, priority=at % 2)
    looks, found = 0, set[int]()
    while log.expiries.unlooked:
        found.update(log.expiries.look(1000))
        looks += 1
    assert 10 <= looks <= 12
    assert found == set(range(1, 11))
    log.publish(1, 0, ttl_ms=20_000)
    assert log.expiries.look(1) == [1]
    log.expiries.look(1)
    assert not log.expiries.unlooked


def test_a_queue_is_looked_at_anew_when_a_group_was_made() -> None:
    log = Log()
    log.publish(1, 0, ttl_ms=10)
    log.expiries.look(100)
    assert log.expiries.come(10 * MS) == [1]
    log.expiries.anew(1)
    assert log.expiries.look(100) == [1]
    assert log.expiries.come(11 * MS) == [1]
    log.expiries.anew(2)
    assert not log.expiries.unlooked


def test_a_queue_that_is_gone_is_forgotten_and_no_end_is_kept_twice() -> None:
    log = Log()
    for at in range(1000):
        log.publish(1, 0, ttl_ms=100_000 - at)
        log.expiries.look(10)
    assert len(log.expiries.moments) < 200
    log.expiries.forget(1)
    assert log.expiries.come(10**12) == []
