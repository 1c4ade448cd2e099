"""Where queues with copied batches begin, and what a copy of the log shows that has not all of them yet."""

from __future__ import annotations

import pytest

from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.errors import OffsetOutOfRange
from tests.commitlog.rows import header

KIB = 1024


class Log:
    """Adds batches of 1 KiB one after the other."""

    def __init__(self, *, begin: int = 0, partial: bool = False) -> None:
        self.index = QueueIndex()
        self.index.partial = partial
        self.end = begin

    def add(self, base: int, records: int = 10, *, copied: bool = False, time: int = 0) -> int:
        """Append and confirm; the batch's log offset."""
        at = self.pend(base, records, copied=copied, time=time)
        self.index.confirm(self.end)
        return at

    def pend(self, base: int, records: int = 10, *, copied: bool = False, time: int = 0) -> int:
        at = self.end
        self.index.add(header(at, base=base, records=records, length=KIB, copied=copied, time_us=time))
        self.end += KIB
        return at

    def bases(self, queue_offset: int) -> list[int]:
        return [run.base_queue_offset for run in self.index.entries(1, queue_offset, 1 << 30)]


def test_a_logged_begin_is_where_the_queue_begins() -> None:
    """Say a begin within what is there: below it nothing is found; it never goes back, and what is freed changes
    nothing. Above the last record it is the next one."""
    log = Log()
    for base in (0, 10, 20, 30):
        log.add(base)
    log.index.set_start(1, 10)
    assert (log.index.begin(1), log.index.find_time(1, -1)) == (10, 10)
    with pytest.raises(OffsetOutOfRange):
        log.index.find(1, 9)
    log.index.set_start(1, 5)
    log.index.start_moved(2 * KIB, {1: 20})
    assert log.index.begin(1) == 10
    log.index.set_start(1, 99)
    assert (log.index.begin(1), log.index.next_confirmed(1)) == (40, 40)


def test_a_begin_may_be_said_before_the_queue_is_met() -> None:
    """A copy that begins with a checkpoint: the begin first, then where the queue goes on, then records."""
    log = Log()
    log.index.set_start(1, 15)
    assert log.index.begin(1) == 0
    log.index.set_next(1, 20)
    assert log.index.begin(1) == 15
    log.add(20)
    assert (log.index.begin(1), log.bases(20)) == (15, [20])


def test_copies_stay_when_a_checkpoint_tells_of_later_records() -> None:
    """Goal: nothing that is in the log is forgotten. A copy of the log has copies of 0..20 when a checkpoint says that
    the queue stands at 40, and the copies of the rest come after it."""
    log = Log(partial=True)
    log.index.set_start(1, 0)
    log.add(0, copied=True)
    log.add(10, copied=True)
    log.index.set_next(1, 40)
    assert (log.index.begin(1), log.index.next_confirmed(1)) == (40, 40)
    log.add(20, copied=True)
    log.add(30, copied=True)
    log.index.partial = False
    assert (log.index.begin(1), log.bases(0)) == (0, [0, 10, 20, 30])


def test_a_copy_that_is_not_complete_passes_nothing_over_in_silence() -> None:
    """Goal: a reader of a mirror that catches up from a decided begin sees no gap. Copies of 0..10, then newer records,
    then the copies in between: the queue begins behind the gap until the decision is reached, then at its begin."""
    log = Log(begin=9 * KIB, partial=True)
    log.index.set_start(1, 0)
    log.add(0, copied=True)
    assert (log.index.begin(1), log.bases(0)) == (0, [0])
    log.add(20)
    log.add(30)
    assert (log.index.begin(1), log.index.find_time(1, -1), log.bases(20)) == (20, 20, [20, 30])
    with pytest.raises(OffsetOutOfRange):
        log.index.find(1, 0)
    log.add(10, copied=True)
    assert log.index.begin(1) == 20
    log.index.partial = False
    assert (log.index.begin(1), log.bases(0)) == (0, [0, 10, 20, 30])


def test_a_leap_of_the_past_counts_while_the_copy_is_not_complete() -> None:
    """Say where the queue leapt in the tables: it begins there, until the copy is complete."""
    log = Log(partial=True)
    log.index.set_queue(1, begin=0, next_offset=50)
    log.index.set_start(1, 0)
    log.index.set_jump(1, 30)
    assert log.index.begin(1) == 30
    log.index.partial = False
    assert log.index.begin(1) == 0


def test_pending_batches_behind_a_checkpoints_word_are_cut() -> None:
    """A checkpoint tells of later records while a batch is pending; the batch is cut: nothing of it is left."""
    log = Log(partial=True)
    log.add(0, copied=True)
    at = log.pend(10, copied=True)
    log.index.set_next(1, 40)
    log.index.cut(at)
    log.index.partial = False
    assert log.bases(0) == [0]
    assert not log.index.holds(1, 10)


def test_what_memory_holds() -> None:
    """Confirmed batches by the queue offset at which they begin, pending ones and others not."""
    log = Log()
    log.add(0)
    log.pend(10)
    assert [log.index.holds(1, base) for base in (0, 5, 10)] == [True, False, False]
    assert not log.index.holds(2, 0)
    log.index.confirm(log.end)
    assert log.index.holds(1, 10)


def test_a_mirrors_lag_is_not_that_of_copied_batches() -> None:
    """Goal: a mirror that has not acked copies of old records is not called days behind. Ask from copies on: when
    the first batch was appended that is no copy, if any."""
    log = Log()
    log.add(0, time=100)
    log.add(10, time=5000)
    copy = log.add(0, copied=True, time=100)
    assert log.index.append_time_from(copy) is None
    log.add(20, time=6000)
    assert log.index.append_time_from(copy) == 6000
    assert log.index.append_time_from(0) == 100
