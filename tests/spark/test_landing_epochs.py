"""The epoch that a table has of its last record: another history is told once, a moved batch says nothing of it."""

from __future__ import annotations

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.header import Flag, stamp
from mirrorlog.spark.landing.commit.delta_log import TableState
from mirrorlog.spark.landing.planning import limited
from mirrorlog.spark.landing.positions import QueueIds
from mirrorlog.spark.landing.runner import _epochs, _sets
from mirrorlog.spark.landing.tasks import WrittenFiles, _Counted
from mirrorlog.spark.plan import QueueRange
from tests.spark.batches import given_out, stamped
from tests.spark.fake_log import FakeLog
from tests.spark.test_landing_planning import plan


def test_another_history_is_told_once_also_when_none_of_its_records_is_landed() -> None:
    """Goal: no commit after commit with the same note. A step with no room for the queue notes the epoch it found."""
    log = FakeLog()
    log.add("q").publish(100, epoch=5)
    (cut,) = limited([plan(log, 50, epoch=4, skip=True)], 0)
    assert (cut.moves, cut.next) == (True, 50)
    ids = QueueIds(cut.facts)
    state = TableState(3, {**dict.fromkeys(ids), ids.offset: 50})
    assert _sets([cut], _epochs([cut], WrittenFiles()), state) == {ids.offset: 50, ids.epoch(50): 5}
    assert plan(log, 50, epoch=5, skip=True).missed == ()


def test_a_batch_that_was_moved_says_nothing_of_its_epoch() -> None:
    """Goal: it has the epoch of its move. Count a batch as it was written, then one that was moved."""
    wanted = QueueRange("c", "q", "log", 1, 0, 1)
    for flags, epoch in ((0, 3), (Flag.COPIED, 0)):
        batch = stamped([Record(b"x")], base=0)
        stamp(batch, log_offset=0, base_queue_offset=0, append_time_us=7, epoch=3, flags=flags, seed=1)
        counted = _Counted()
        list(counted.passed([given_out(batch)]))
        counted.end(wanted)
        assert (counted.epochs, counted.times) == ({("q", 1): epoch}, {("q", 1): 7})
