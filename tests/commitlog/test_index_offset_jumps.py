"""Queue offsets that leap after a loss, in the hot index: gaps, their order among the records, cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.format.header import Kind
from mirrorlog.commitlog.index.memory import QueueIndex
from mirrorlog.errors import OffsetOutOfRange
from tests.commitlog.rows import LENGTH, header

FAR = 1 << 32


class Log:
    """Batches one after the other, fed to an index."""

    def __init__(self) -> None:
        self.index = QueueIndex()
        self.end = 0

    def data(self, queue_id: int = 1, records: int = 10, *, confirm: bool = True) -> None:
        base = self.index.next_appended(queue_id)
        self.index.add(header(self.end, queue_id=queue_id, base=base, records=records))
        self._added(confirm)

    def jump(
        self, queue_ids: Sequence[int] = (1,), go_on_at: int = FAR, *, confirm: bool = True, lost: bool = True
    ) -> None:
        self.index.add(header(self.end, queue_id=0, base=0, kind=Kind.CONTROL))
        self.index.jump(self.end, queue_ids, go_on_at, lost=lost)
        self._added(confirm)

    def cut(self, log_offset: int) -> None:
        self.index.cut(log_offset)
        self.end = log_offset

    def _added(self, confirm: bool) -> None:
        self.end += LENGTH
        if confirm:
            self.index.confirm(self.end)


def offsets(index: QueueIndex, queue_id: int = 1) -> tuple[int, int, int]:
    return index.begin(queue_id), index.next_confirmed(queue_id), index.next_appended(queue_id)


def bases(index: QueueIndex, queue_offset: int, queue_id: int = 1) -> list[int]:
    return [run.base_queue_offset for run in index.entries(queue_id, queue_offset, 1 << 40)]


def test_a_leap_counts_from_its_confirm() -> None:
    """Goal: the next record is numbered above the gap at once, readers hear of it when it is confirmed, and the queue
    is among those that gained."""
    log = Log()
    log.data()
    log.jump(confirm=False)
    assert offsets(log.index) == (0, 10, FAR)
    assert log.index.gap_end(1, 10) is None
    assert log.index.confirm(log.end) == {1}
    assert offsets(log.index) == (0, FAR, FAR)
    assert [log.index.gap_end(1, each) for each in (9, 10, FAR - 1, FAR)] == [None, FAR, FAR, None]


@pytest.mark.parametrize("before", [0, 10])
def test_a_queue_that_comes_from_another_log_goes_on_there_and_has_no_gap(before: int) -> None:
    """Goal: what another log has is not lost. Method: a queue arrives that was never here, or had ten records here;
    its arrival is cut once, and comes again."""
    log = Log()
    if before:
        log.data()
    end = log.end
    for _ in range(2):
        log.cut(end)
        log.jump(go_on_at=40, confirm=False, lost=False)
        assert (log.index.next_appended(1), list(log.index.gaps())) == (40, [])
    log.index.confirm(log.end)
    assert offsets(log.index) == (0 if before else 40, 40, 40)
    log.data()
    assert offsets(log.index) == (0 if before else 40, 50, 50)
    assert bases(log.index, 40) == [40]
    assert bases(log.index, 0) == [0] if before else not log.index.gaps_of(1)
    assert log.index.gap_end(1, 20) is None


def test_a_loss_while_a_queue_was_elsewhere_is_none_of_its() -> None:
    """A copy that did not know that the queue had left lets it jump with the others, confirmed or not, before it comes
    back; the arrival is cut, and comes again."""
    for confirm in (True, False):
        log = Log()
        log.data()
        log.jump(confirm=confirm)
        end = log.end
        for _ in range(2):
            log.cut(end)
            assert log.index.next_appended(1) == FAR
            log.jump(go_on_at=40, confirm=False, lost=False)
            assert log.index.next_appended(1) == 40
            log.data(confirm=False)
            log.cut(log.end - LENGTH)
            assert log.index.next_appended(1) == 40
        log.data()
        assert (log.index.next_confirmed(1), log.index.gaps_of(1), bases(log.index, 40)) == (50, (), [40])


def test_what_stands_on_both_sides_of_a_gap_is_found() -> None:
    """Goal: queue offsets below and above stay valid. Records before, right behind and later than a leap that is
    confirmed together with them; a look-up in the gap finds the first one behind it, before there is one nothing."""
    log = Log()
    log.data()
    log.jump()
    assert bases(log.index, 0) == [0]
    assert bases(log.index, 10) == []
    with pytest.raises(OffsetOutOfRange):
        log.index.find(1, 10)
    log.data(confirm=False)
    log.data()
    assert bases(log.index, 0) == [0]
    assert bases(log.index, 10) == bases(log.index, FAR) == [FAR, FAR + 10]
    assert log.index.find(1, 500).base_queue_offset == FAR


def test_leap_and_records_confirmed_in_one_step_leave_the_same_gap() -> None:
    """Goal: a recovery confirms all at once. The gap is that of a log which was confirmed batch by batch."""
    slow, fast = Log(), Log()
    for log, confirm in ((slow, True), (fast, False)):
        log.data(confirm=confirm)
        log.jump(confirm=confirm)
        log.data(confirm=confirm)
    fast.index.confirm(fast.end)
    assert dict(fast.index.gaps()) == dict(slow.index.gaps()) == {1: ((10, FAR),)}
    assert offsets(fast.index) == offsets(slow.index) == (0, FAR + 10, FAR + 10)


def test_a_queue_without_records_begins_behind_the_leap() -> None:
    """Goal: nobody knows that it lost nothing. Its begin is where it goes on, whoever stood at 0 stands in the gap; a
    queue that comes later begins at 0."""
    log = Log()
    log.jump([1])
    log.data(2)
    assert offsets(log.index) == (FAR, FAR, FAR)
    assert log.index.gap_end(1, 0) == FAR
    assert offsets(log.index, 2) == (0, 10, 10)
    assert log.index.gap_end(2, 0) is None


def test_an_emptied_queue_with_a_logged_begin_begins_behind_the_leap() -> None:
    """Goal: the begin that was said does not point into the gap, whichever is heard first."""
    for said_first in (True, False):
        log = Log()
        log.data()
        if said_first:
            log.index.set_start(1, 10)
        log.jump()
        log.index.set_start(1, 10)
        assert offsets(log.index) == (FAR, FAR, FAR)


def test_applying_a_leap_twice_is_applying_it_once() -> None:
    """Goal: invariant 8. The same leap again, behind records that were numbered by the first, moves nothing."""
    log = Log()
    log.data()
    log.jump()
    log.data()
    log.jump()
    assert offsets(log.index) == (0, FAR + 10, FAR + 10)
    assert dict(log.index.gaps()) == {1: ((10, FAR),)}


def test_two_leaps_with_nothing_between_are_one_gap() -> None:
    """Goal: a second master leaps again. Whoever stood before the first is sent behind the second; with a record in
    between they are two, and both are known."""
    log = Log()
    log.data()
    log.jump(go_on_at=FAR)
    log.jump(go_on_at=2 * FAR, confirm=False)
    assert dict(log.index.gaps()) == {1: ((10, 2 * FAR),)}
    log.index.confirm(log.end)
    assert log.index.gap_end(1, 10) == 2 * FAR
    log.data()
    log.jump(go_on_at=3 * FAR)
    assert dict(log.index.gaps()) == {1: ((10, 2 * FAR), (2 * FAR + 10, 3 * FAR))}
    assert log.index.gap(1) == (2 * FAR + 10, 3 * FAR)
    ends = [log.index.gap_end(1, at) for at in (9, 10, 2 * FAR, 2 * FAR + 9, 2 * FAR + 10, 3 * FAR)]
    assert ends == [None, 2 * FAR, None, None, 3 * FAR, None]
    assert bases(log.index, 10) == [2 * FAR]


@pytest.mark.parametrize("before", [0, 1])
def test_a_leap_is_cut_with_its_batch(before: int) -> None:
    """Goal: what was cut is forgotten. Cut a leap with the record behind it, and only the record, of a queue with and
    without records: the next record is numbered as it was before, or behind the leap."""
    log = Log()
    for _ in range(before):
        log.data()
    place = log.end
    log.jump(confirm=False)
    log.data(confirm=False)
    log.cut(place + LENGTH)
    assert log.index.next_appended(1) == FAR
    log.cut(place)
    assert offsets(log.index) == (0, 10 * before, 10 * before)
    log.data()
    assert dict(log.index.gaps()) == {}
    assert offsets(log.index) == (0, 10 * before + 10, 10 * before + 10)


def test_a_checkpoint_s_gap_counts_unless_a_newer_one_is_known() -> None:
    """Goal: the word of a checkpoint for a leap that is gone. It is taken where nothing is known, and not for a pending
    leap that says the same, nor in the place of a newer one."""
    log = Log()
    log.index.set_next(1, FAR)
    log.index.set_gap(1, (10, FAR))
    assert log.index.gap_end(1, 10) == FAR
    log.jump(go_on_at=2 * FAR, confirm=False)
    log.index.set_gap(1, (10, 2 * FAR))
    assert log.index.gap_end(1, 10) == FAR
    log.index.confirm(log.end)
    log.index.set_gap(1, (10, FAR))
    assert log.index.gap_end(1, 10) == 2 * FAR


@pytest.mark.parametrize("confirm", [False, True])
def test_a_checkpoint_s_gap_begins_where_leaps_did_that_were_not_followed(confirm: bool) -> None:
    """Goal: all of a gap is known, also where a copy followed only the last of the leaps that made it, confirmed or
    not, one or two of them. What would be shorter changes nothing."""
    log = Log()
    log.index.set_next(1, FAR)
    log.jump(go_on_at=2 * FAR, confirm=confirm)
    log.jump(go_on_at=3 * FAR, confirm=False)
    for gap in ((10, 3 * FAR), (12, FAR // 2), (2 * FAR, 3 * FAR)):
        log.index.set_gap(1, gap)
    assert dict(log.index.gaps()) == {1: ((10, 3 * FAR),)}
    log.index.confirm(log.end)
    assert dict(log.index.gaps()) == {1: ((10, 3 * FAR),)}
    assert log.index.gap_end(1, 10) == 3 * FAR


def test_a_checkpoint_s_gaps_are_put_together_with_those_that_are_known() -> None:
    """Goal: whoever followed one loss and hears of the others in a checkpoint knows all, in any order, again, and of a
    checkpoint that software of before wrote, with the newest alone."""
    gaps = ((10, FAR), (FAR + 10, 2 * FAR), (2 * FAR + 10, 3 * FAR))
    for said in (gaps, gaps[::-1], gaps[:1], gaps[:2] * 2):
        log = Log()
        log.index.set_next(1, 2 * FAR + 10)
        log.jump(go_on_at=3 * FAR)
        for gap in said:
            log.index.set_gap(1, gap)
        assert set(log.index.gaps_of(1)) == {*said, gaps[2]}
        assert [log.index.gap_end(1, first) for first, _ in said] == [until for _, until in said]


def test_a_checkpoint_leaves_out_gaps_that_the_begin_has_passed() -> None:
    """Goal: what retention has gone over is of no use to anybody, but for the newest: whoever stood there was told of a
    loss, and is still. Two gaps between records, then the begin moves up to behind the first, and behind all."""
    log = Log()
    for go_on_at in (FAR, 2 * FAR):
        log.data()
        log.jump(go_on_at=go_on_at)
    log.data()
    both = ((10, FAR), (FAR + 10, 2 * FAR))
    for begin, expected in ((9, both), (FAR, both), (FAR + 1, both[1:]), (2 * FAR + 5, both[1:])):
        log.index.set_start(1, begin)
        assert dict(log.index.gaps()) == {1: expected}
    assert log.index.gaps_of(1) == both


def test_a_leap_that_is_cut_takes_its_gap_alone() -> None:
    """Goal: what was confirmed of earlier losses stays."""
    log = Log()
    log.data()
    log.jump()
    log.data()
    place = log.end
    log.jump(go_on_at=2 * FAR, confirm=False)
    assert dict(log.index.gaps()) == {1: ((10, FAR), (FAR + 10, 2 * FAR))}
    assert log.index.gaps_of(1) == ((10, FAR),)
    log.cut(place)
    assert dict(log.index.gaps()) == {1: ((10, FAR),)}


def test_a_record_that_comes_as_a_copy_is_in_no_gap() -> None:
    """Goal: what is there is not lost. A copy that began late followed a leap when it had heard of half of what stood
    before; the other half comes behind it."""
    log = Log()
    log.data(records=5)
    log.jump()
    assert log.index.gaps_of(1) == ((5, FAR),)
    log.index.add(header(log.end, queue_id=1, base=5, records=5, copied=True))
    log.index.confirm(log.end + LENGTH)
    assert log.index.gaps_of(1) == ((10, FAR),)
    assert [log.index.gap_end(1, at) for at in (5, 9, 10)] == [None, None, FAR]
    assert bases(log.index, 0) == [0, 5]


def test_where_memory_begins_a_queue_has_its_first_record() -> None:
    """Goal: a queue whose older records went begins with one that is there. The past has records, then a leap was
    given up twice, one record in between: memory begins behind the past, its first record at the leap's end."""
    log = Log()
    log.index.set_queue(1, begin=0, next_offset=10)
    log.jump()
    assert log.index.hot_first(1) == FAR
    log.data()
    log.jump(go_on_at=2 * FAR)
    assert (log.index.hot_start(1), log.index.hot_first(1), log.index.hot_first(2)) == (10, FAR, 0)


def test_a_leap_reaches_below_what_was_evicted() -> None:
    """Goal: memory that let all records of a queue go still knows the gap behind them."""
    log = Log()
    log.data()
    log.jump()
    log.index.evict(log.end)
    assert log.index.gap_end(1, 10) == FAR
    assert log.index.past_until(1, 5) == FAR
    log.index.start_moved(log.end, {1: log.index.hot_start(1)})
    assert offsets(log.index) == (FAR, FAR, FAR)


# --- against a model ---


@dataclass
class Model:
    """The log as a plain list: (queue id, queue offset) per record, (None, go on at) per leap; each one batch."""

    entries: list[tuple[int | None, int]] = field(default_factory=list)
    confirmed: int = 0

    def following(self, queue_id: int, count: int) -> int:
        """The next queue offset by the first `count` entries."""
        following = 0
        for owner, value in self.entries[:count]:
            following = max(following, value) if owner is None else value + 1 if owner == queue_id else following
        return following

    def records(self, queue_id: int) -> list[int]:
        return [value for owner, value in self.entries[: self.confirmed] if owner == queue_id]


STEP = st.one_of(
    st.tuples(st.just("data"), st.integers(1, 3)),
    st.tuples(st.just("leap"), st.integers(0, 50)),
    st.tuples(st.just("confirm"), st.integers(0, 9)),
    st.tuples(st.just("cut"), st.integers(0, 9)),
)


@given(st.lists(STEP, max_size=30))
def test_any_history_numbers_and_shows_as_the_model(steps: list[tuple[str, int]]) -> None:
    """Goal: numbers, visibility and gaps in any order of records, leaps, confirms and cuts. Method: a plain list, and
    a walk as a reader takes it: every visible record comes once, and each place in between is a gap that ends at the
    next one."""
    log, model = Log(), Model()
    for step, value in steps:
        count = len(model.entries)
        if step == "data":
            log.data(value, 1, confirm=False)
            model.entries.append((value, model.following(value, count)))
        elif step == "leap":
            log.jump([1, 2, 3], value, confirm=False)
            model.entries.append((None, value))
        elif step == "confirm":
            model.confirmed = min(count, model.confirmed + value)
            log.index.confirm(model.confirmed * LENGTH)
        else:
            del model.entries[max(model.confirmed, count - value) :]
            log.cut(len(model.entries) * LENGTH)
        for queue_id in (1, 2, 3):
            _check(log.index, model, queue_id)


def _check(index: QueueIndex, model: Model, queue_id: int) -> None:
    records, following = model.records(queue_id), model.following(queue_id, model.confirmed)
    assert index.next_appended(queue_id) == model.following(queue_id, len(model.entries))
    assert index.next_confirmed(queue_id) == following
    assert index.begin(queue_id) == (records[0] if records else following)
    at, found = 0, []
    while at < following:
        runs = index.entries(queue_id, at, 1 << 40) if at >= index.begin(queue_id) else []
        go_on_at = runs[0].base_queue_offset if runs else following
        if (end := index.gap_end(queue_id, at)) is not None:
            assert at not in records
            assert end == min([each for each in records if each >= at], default=following)
        elif at < following and index.begin(queue_id) <= at:
            assert at in records, "every gap is known"
        found += [run.base_queue_offset for run in runs]
        at = runs[-1].next_queue_offset if runs else max(go_on_at, at + 1) if at >= index.begin(queue_id) else at + 1
    assert found == records
