"""A queue that has moved, from the directories of its logs: one queue, or an error that names a log that is missing."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from mirrorlog.commitlog.format.header import read_header
from mirrorlog.errors import NoSuchQueue, PositionLost
from mirrorlog.queues.changes import QueueDeleted, QueueLeft, SpanCopied, encode_change
from mirrorlog.queues.checkpoint_states import MoveState, QueueState, encode_checkpoint, encode_state
from mirrorlog.spark.errors import RecordsMissing
from mirrorlog.spark.offline import BadStretch, LogDirectories
from mirrorlog.spark.offline.log_view import KnownQueues
from mirrorlog.spark.options import SourceOptions
from mirrorlog.spark.reading.lookup import open_lookup
from mirrorlog.spark.reading.planning import planned
from mirrorlog.spark.reading.rows import Missing, consumed_batches
from tests.commitlog.logs import LOG_ID
from tests.spark.offline_logs import Row, StoryLog, rows_of

ONE, OTHER = str(LOG_ID), "99999999-4455-6677-8899-aabbccddeeff"
SPANS = [(ONE, 0), (OTHER, 30), (ONE, 50)]


class TwoLogs:
    """Queue q1 goes from the log `one` to the log `other` at 30, comes back at 50, and ends at 60; in batches of 5."""

    def __init__(self, path: Path, *, gap: bool = False) -> None:
        self.path = path
        self.one = one = StoryLog(path / "one", queues=2)
        self.other = other = StoryLog(path / "other", queues=0, log_id=UUID(OTHER))
        self.fill(one, 25 if gap else 30)
        if gap:
            one.jump()
        self.border = other.take(1, one, move=7)
        self.fill(other, 20)
        one.take(1, other, move=9)
        self.fill(one, 10)

    def fill(self, log: StoryLog, count: int) -> None:
        for _ in range(0, count, 5):
            log.data(1)

    def close(self) -> LogDirectories:
        self.one.close()
        self.other.close()
        return LogDirectories.open(str(self.path))

    @property
    def rows(self) -> list[Row]:
        return sorted([*self.one.rows[1].values(), *self.other.rows[1].values()])


def read(path: Path, *, allowed: bool = False, first: int | None = None) -> tuple[list[int], list[Missing]]:
    """Queue offsets of a job over the path, and what it left out."""
    starting = "earliest" if first is None else {"q1": first}
    options = SourceOptions(path=str(path), queues=("q1",), starting=starting, fail_on_data_loss=not allowed)
    missed: list[Missing] = []
    with open_lookup(options) as lookup:
        plan = planned(options, lookup)
    batches = [batch for wanted in plan for batch in consumed_batches(options, wanted, missed.append)]
    return [offset for batch in batches for offset in range(batch.first, batch.next)], missed


@pytest.mark.parametrize("seed", [1, 2])
def test_its_spans_are_read_as_one_queue(tmp_path: Path, seed: int) -> None:
    """Goal: whole and dense, each record from the log in which it is, its header and its time found there. All of it,
    parts of it, and what comes while it is read on."""
    dice = random.Random(seed)
    logs = TwoLogs(tmp_path)
    directories = logs.close()
    (facts,) = directories.facts(["q1"])
    assert (facts.begin, facts.next, facts.log_id, [*map(tuple, facts.spans)]) == (0, 60, ONE, SPANS)
    assert {*facts.logs} == {ONE, OTHER}
    assert facts.incarnation == "made once"
    for _ in range(10):
        first, following = sorted(dice.randint(0, 60) for _ in range(2))
        pieces = facts.in_logs(facts.range(first, following))
        found = [row for piece in pieces for row in rows_of(directories.batches(piece))]
        assert found == logs.rows[first:following]
    for row in logs.rows[::5]:
        assert directories.find_time("q1", row.append_time_us) == row.offset
        header = directories.header("q1", row.offset)
        assert header is not None
        assert header.base_queue_offset == row.offset
    assert directories.find_time("q1", logs.rows[-1].append_time_us + 1) == 60
    assert read(tmp_path) == ([*range(60)], [])


def test_a_log_that_is_not_there_is_named_and_nothing_is_passed_over(tmp_path: Path) -> None:
    """Goal: no path shows less than there is without saying so. A path with either log alone: what the other one has is
    an error that names it, behind the last record too; allowed, it is left out and told."""
    TwoLogs(tmp_path).close()
    with pytest.raises(RecordsMissing, match=f"went on in log {ONE} with record 50"):
        LogDirectories.open(str(tmp_path / "other")).facts(["q1"])
    told: list[BadStretch] = []
    LogDirectories.open(str(tmp_path / "other")).facts(["q1"], told.append)
    assert [(each.other_log, each.first) for each in told] == [(ONE, 50)]
    offsets, missed = read(tmp_path / "other", allowed=True)
    assert (offsets, [(each.first, each.next) for each in missed]) == ([*range(30, 50)], [(0, 30)])
    with pytest.raises(RecordsMissing, match=f"from 30 up to 50: these records stood in log {OTHER}"):
        read(tmp_path / "one")
    assert read(tmp_path / "one", first=50) == ([*range(50, 60)], [])
    offsets, missed = read(tmp_path / "one", allowed=True)
    assert (offsets, [(each.first, each.next) for each in missed]) == ([*range(30), *range(50, 60)], [(30, 50)])
    with pytest.raises(RecordsMissing, match="these records stood in"):
        LogDirectories.open(str(tmp_path / "one")).find_time("q1", 2**62)


def test_a_declared_loss_before_a_border_is_no_missing_log(tmp_path: Path) -> None:
    """Goal: what was given up is told as that, and what stands before it is read."""
    logs = TwoLogs(tmp_path, gap=True)
    directories = logs.close()
    (facts,) = directories.facts(["q1"])
    assert [*map(tuple, facts.spans)] == [(ONE, 0), (OTHER, logs.border), (ONE, logs.border + 20)]
    with pytest.raises(PositionLost, match="25 up to"):
        read(tmp_path)
    assert read(tmp_path, allowed=True)[0] == [row.offset for row in logs.rows]


def test_a_loss_that_took_the_word_of_a_move_ends_where_the_queue_left(tmp_path: Path) -> None:
    """Goal: what was lost in a former log is told up to its border, and the rest is read from the next log. Method: the
    queue offsets of the former one jumped before it said again that the queue is elsewhere."""
    one, other = StoryLog(tmp_path / "one"), StoryLog(tmp_path / "other", queues=0, log_id=UUID(OTHER))
    for _ in range(5):
        one.data(1)
    border = other.take(1, Lost(one, 5), move=7)
    other.data(1)
    one.jump()
    one.change(encode_change(QueueLeft(1, 0, OTHER, border)))
    one.close()
    other.close()
    with pytest.raises(PositionLost, match="25 up to 30"):
        read(tmp_path)
    assert read(tmp_path, allowed=True)[0] == [*range(25), *range(30, 35)]


class Lost:
    """A log that has lost its newest records, so many, of a queue that left it, and that it had left."""

    def __init__(self, log: StoryLog, count: int) -> None:
        self.log_id = log.log_id
        self._log, self._count = log, count

    def leave(self, queue_id: int, target: UUID, *, move: int) -> tuple[int, int]:
        return self._log.next_of(queue_id) + self._count, 1


def test_one_that_has_no_record_in_its_newest_log_and_one_that_was_deleted_there(tmp_path: Path) -> None:
    """Goal: where a queue is the log says, not its records; and one that is no more is not read from what it left."""
    one, other = StoryLog(tmp_path / "one"), StoryLog(tmp_path / "other", queues=0, log_id=UUID(OTHER))
    for queue_id in (1, 2):
        one.data(queue_id)
        other.take(queue_id, one, move=queue_id)
    other.change(encode_change(QueueDeleted(queue_id=2)))
    one.close()
    other.close()
    directories = LogDirectories.open(str(tmp_path))
    (facts,) = directories.facts(["q1"])
    assert (facts.log_id, [*map(tuple, facts.spans)]) == (OTHER, [(ONE, 0), (OTHER, 5)])
    with pytest.raises(NoSuchQueue):
        directories.facts(["q2"])
    assert {each.name for each in directories.facts()} == {"q1", "q3"}


def test_a_checkpoint_says_of_moves_what_the_log_has_said_before() -> None:
    """Goal: a log that begins behind the moves of its queues, or is followed from a checkpoint on, is known as well.
    States of queues that left, with and without records, are arriving, came, and were deleted."""
    states = [
        MoveState(1, "left", 7, OTHER, 30, name="q1"),
        MoveState(2, "over", 7, OTHER, 40, name="q2"),
        MoveState(3, "freed", 7, OTHER, 50),
        MoveState(4, "arrived", 7, OTHER, 60),
        MoveState(5, "came", first=70),
        MoveState(6, "gone"),
        *(QueueState(each, f"q{each}", "made once", {}, 10 * each + 20, {}, 0) for each in (1, 4, 5)),
    ]
    batch = bytes(encode_checkpoint(list(map(encode_state, states))))
    known = KnownQueues()
    known.apply(read_header(batch), batch)
    assert {each.queue_id: (each.name, each.incarnation) for each in known.queues.values()} == {
        1: ("q1", "made once"), 2: ("q2", ""), 4: ("q4", "made once"), 5: ("q5", "made once")
    }  # fmt: skip
    assert {each: tuple(left) for each, left in known.left.items()} == {1: (OTHER, 30), 2: (OTHER, 40), 3: (OTHER, 50)}
    assert (known.arriving, known.came, known.deleted) == ({4: (OTHER, 60)}, {5: ("", 70)}, {6})
    assert [each for each in range(1, 7) if known.is_here(each)] == [5]


def test_what_was_copied_is_read_in_the_newest_log(tmp_path: Path) -> None:
    """Goal: a queue that is being synced (decision 0051) is whole at any time, with the log from which it is copied or
    without it, as far as that is needed. Copy the newest batches, then all of them."""
    one, other = StoryLog(tmp_path / "one"), StoryLog(tmp_path / "other", queues=0, log_id=UUID(OTHER))
    for _ in range(6):
        one.data(1)
    other.take(1, one, move=7)
    other.data(1)
    batches = [header for header, _ in one.stored if header.queue_id == 1]
    for first, border in ((3, 15), (0, 0)):
        other.copy_from(one, batches[first : first + 3])
        other.change(encode_change(SpanCopied(1, border)))
        one.confirm()
        other.confirm()
        (facts,) = LogDirectories.open(str(tmp_path)).facts(["q1"])
        assert [*map(tuple, facts.spans)] == ([(ONE, 0), (OTHER, border)] if border else [])
        assert read(tmp_path) == ([*range(35)], [])
        if border:
            with pytest.raises(RecordsMissing, match="from 0 up to 15: these records stood in another log"):
                read(tmp_path / "other")
            assert read(tmp_path / "other", first=border) == ([*range(border, 35)], [])
        else:
            assert read(tmp_path / "other") == ([*range(35)], [])
    one.close()
    other.close()
