"""A read is planned as ranges of queue offsets: each offset of the queue in exactly one, nothing else. No JVM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.errors import NotCurrent
from mirrorlog.spark.errors import BadOption, BeginUnknown, RangeNotDense, RecordsMissing
from mirrorlog.spark.options import AtTime, Offsets, SourceOptions
from mirrorlog.spark.plan import TASK_RECORDS, TASKS_MAX, QueueFacts, QueueRange, TimeOffsets, dense, plan, ranges


def facts(
    name: str = "q", begin: int = 100, end: int = 200, silent_master: str | None = None, *, current: bool = True
) -> QueueFacts:
    return QueueFacts(
        cluster_id="c",
        name=name,
        incarnation="i",
        log_id="l",
        queue_id=7,
        begin=begin,
        next=end,
        silent_master=silent_master,
        current=current,
    )


def options(
    starting: Offsets = "earliest", ending: Offsets = "latest", *, parts: int = 1, fail_on_data_loss: bool = True
) -> SourceOptions:
    return SourceOptions(
        servers=("a:1",),
        queues=("q",),
        starting=starting,
        ending=ending,
        min_partitions=parts,
        fail_on_data_loss=fail_on_data_loss,
    )


def bounds(ranges: list[QueueRange]) -> list[tuple[int, int]]:
    return [(each.first, each.next) for each in ranges]


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        ("earliest", "latest", [(100, 200)]),
        ({"q": -2}, {"q": -1}, [(100, 200)]),
        ({"q": 150}, "latest", [(150, 200)]),
        ("earliest", {"q": 150}, [(100, 150)]),
        ({"q": 150}, {"q": 150}, []),
        ({"q": 200}, "latest", []),
    ],
)
def test_the_range_is_the_one_asked_for(starting: Offsets, ending: Offsets, expected: list[tuple[int, int]]) -> None:
    """Goal: offsets mean what the Kafka source means by them; an empty range costs no task."""
    planned = plan(options(starting, ending), [facts()])
    assert bounds(planned) == expected
    assert all((each.cluster_id, each.log_id, each.queue_id) == ("c", "l", 7) for each in planned)


@pytest.mark.parametrize(
    ("starting", "ending", "kept"),
    [
        ({"q": 99}, "latest", [(100, 200)]),
        ({"q": 201}, "latest", []),
        ("earliest", {"q": 201}, [(100, 200)]),
        ({"q": 10}, {"q": 20}, []),
        ({"q": 300}, {"q": 400}, []),
    ],
)
def test_offsets_that_the_queue_does_not_have(starting: Offsets, ending: Offsets, kept: list[tuple[int, int]]) -> None:
    """Goal: missing records are an error unless the user says otherwise; then the read goes on with what is there."""
    with pytest.raises(RecordsMissing, match=r"'q'.*failOnDataLoss"):
        plan(options(starting, ending), [facts()])
    assert bounds(plan(options(starting, ending, fail_on_data_loss=False), [facts()])) == kept


@pytest.mark.parametrize(
    ("begin", "starting", "planned"),
    [
        (100, "earliest", None),
        (100, {"q": -2}, None),
        (100, {"q": 99}, None),
        (100, {"q": 100}, [(100, 200)]),
        (100, {"q": 150}, [(150, 200)]),
        (200, "earliest", None),
        (0, "earliest", [(0, 200)]),
    ],
)
def test_a_begin_that_its_master_has_not_told_is_not_believed(
    begin: int, starting: Offsets, planned: list[tuple[int, int]] | None
) -> None:
    """Goal: copies that began late leave nothing out without a word. Method: the master is silent; each start. From an
    offset that the copies have on, and from 0, nothing can be missing, and nobody minds who allows loss."""
    told = facts(begin=begin, silent_master="n1")
    if planned is None:
        with pytest.raises(BeginUnknown, match=r"'q'.* n1 does not answer.*startingOffsets"):
            plan(options(starting), [told])
    else:
        assert bounds(plan(options(starting), [told])) == planned
    lenient = plan(options(starting, fail_on_data_loss=False), [told])
    assert bounds(lenient) == (planned or ([(begin, 200)] if begin < 200 else []))


def test_a_range_that_runs_backwards_is_refused() -> None:
    """Goal: swapped offsets are a mistake, not an empty read."""
    with pytest.raises(BadOption, match="startingOffsets 150 is above endingOffsets 120"):
        plan(options({"q": 150}, {"q": 120}), [facts()])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(1, 20))
def test_parts_cover_every_offset_once(sizes: list[int], parts: int) -> None:
    """Goal: no record twice, none left out, at least `minPartitions` tasks if there are records for them.

    Queues of random sizes; their parts are laid end to end.
    """
    queues = [facts(f"q{number}", begin=10 * number, end=10 * number + size) for number, size in enumerate(sizes)]
    planned = plan(options(parts=parts), queues)
    for queue in queues:
        mine = [each for each in planned if each.queue == queue.name]
        assert [offset for each in mine for offset in range(each.first, each.next)] == [*range(queue.begin, queue.next)]
        assert max(map(len, mine), default=0) - min(map(len, mine), default=0) <= 1
    assert all(map(len, planned))
    assert min(parts, sum(sizes)) <= len(planned) <= parts + len(queues)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(1, 20), st.integers(1, 20))
def test_no_task_has_more_records_than_it_may(sizes: list[int], parts: int, most: int) -> None:
    """Goal: maxRecordsPerPartition beside minPartitions. Method: queues of random sizes; every task has a turn of its
    own, so that those who read from mirrors are spread over them."""
    queues = [facts(f"q{number}", begin=0, end=size) for number, size in enumerate(sizes)]
    planned = plan(replace(options(parts=parts), partition_records_max=most), queues)
    assert sum(map(len, planned)) == sum(sizes)
    assert all(1 <= len(each) <= most for each in planned)
    assert len(planned) >= min(parts, sum(sizes))
    assert [each.turn for each in planned] == list(range(len(planned)))


def test_large_queues_are_shared_out_unless_the_options_say_how() -> None:
    """Goal: no tuning needed. Method: a queue of more than one task's records, alone and with options."""
    large = [facts(begin=0, end=TASK_RECORDS * 2 + 1)]
    assert len(plan(options(), large)) == 3
    assert len(plan(options(parts=2), large)) == 2
    assert len(plan(replace(options(), partition_records_max=TASK_RECORDS * 2), large)) == 2


def test_too_many_tasks_are_refused() -> None:
    """Goal: a mistake does not fill the driver. Method: a task for each of ever so many records."""
    with pytest.raises(BadOption, match=f"at most {TASKS_MAX} are planned"):
        plan(replace(options(), partition_records_max=1), [facts(begin=0, end=2**40)])


def test_the_end_of_a_new_master_is_not_believed_before_it_knows_it() -> None:
    """Goal: no plan ends before what its predecessor confirmed. Method: every end that depends on it, and one that
    does not."""
    behind = facts(current=False)
    for ending in ("latest", {"q": -1}, {"q": 201}):
        with pytest.raises(NotCurrent, match=r"'q' has a new master.*behind 200"):
            plan(options(ending=ending), [behind])  # type: ignore[arg-type]
    assert bounds(plan(options(ending={"q": 200}), [behind])) == [(100, 200)]


@pytest.mark.parametrize(("silent", "why"), [("n1", "n1, that does not answer"), ("", "no master")])
def test_without_its_master_the_end_of_a_queue_is_what_mirrors_know_for_their_readers_alone(
    silent: str, why: str
) -> None:
    """Goal: a read from the master is whole or is refused; one from mirrors goes on while there is none. Method: plan
    both without an answer of the master."""
    alone = facts(silent_master=silent, current=False, begin=0)
    with pytest.raises(NotCurrent, match=f"{why}.*behind 200"):
        plan(options(), [alone])
    assert bounds(plan(replace(options(), read_from="mirror"), [alone])) == [(0, 200)]


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        pytest.param(120, 150, [(120, 150)], id="between"),
        pytest.param(100, 200, [(100, 200)], id="all: nothing as late as the end"),
        pytest.param(150, 120, [], id="backwards"),
    ],
)
def test_times_choose_the_range_that_the_nodes_found(
    starting: int, ending: int, expected: list[tuple[int, int]]
) -> None:
    """Goal: startingTimestamp and endingTimestamp. Method: found places, the end standing for: nowhere."""
    wanted = options(AtTime(5), AtTime(7, else_latest=True))
    assert bounds(ranges(wanted, [facts()], TimeOffsets({"q": starting}, {"q": ending}))) == expected


def test_a_time_after_all_records_is_an_error_unless_latest_is_meant() -> None:
    """Goal: startingOffsetsByTimestampStrategy. Method: nothing was appended that late, then records come."""
    nowhere = TimeOffsets({"q": 200}, {})
    with pytest.raises(BadOption, match=r"no record that was appended at 5 µs or later.*Strategy"):
        ranges(options(AtTime(5)), [facts()], nowhere)
    assert ranges(options(AtTime(5, else_latest=True)), [facts()], nowhere) == []
    # Records that came after the facts were asked for belong to the next read.
    assert ranges(options(AtTime(5, else_latest=True)), [facts()], TimeOffsets({"q": 201}, {})) == []


def test_under_a_pattern_offsets_must_name_every_queue_that_is_read() -> None:
    """Goal: nothing is guessed for a queue that nobody named. Method: two queues, one of them named."""
    wanted = replace(options({"q": 100}), queues=(), pattern=".")
    assert bounds(plan(wanted, [facts()])) == [(100, 200)]
    with pytest.raises(BadOption, match=r"'startingOffsets' must name every queue that matches, also r"):
        plan(wanted, [facts(), facts("r")])


@dataclass(frozen=True)
class Piece:
    first: int
    next: int


@given(st.sets(st.integers(11, 29)))
def test_pieces_that_follow_each_other_are_dense(cuts: set[int]) -> None:
    """Goal: a complete read is let through unchanged, however it was cut into batches."""
    marks = [10, *sorted(cuts), 30]
    pieces = [Piece(first, end) for first, end in pairwise(marks)]
    assert list(dense(QueueRange("c", "q", "l", 7, 10, 30), pieces)) == pieces


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="nothing"),
        pytest.param([Piece(10, 20)], id="the end is missing"),
        pytest.param([Piece(11, 30)], id="the first is missing"),
        pytest.param([Piece(10, 15), Piece(16, 30)], id="one in between is missing"),
        pytest.param([Piece(10, 15), Piece(14, 30)], id="one twice"),
        pytest.param([Piece(10, 15), Piece(10, 15), Piece(15, 30)], id="a batch twice"),
        pytest.param([Piece(10, 31)], id="one too many"),
        pytest.param([Piece(10, 30), Piece(30, 31)], id="a batch too many"),
        pytest.param([Piece(10, 10), Piece(10, 30)], id="an empty one"),
        pytest.param([Piece(10, 5), Piece(5, 30)], id="backwards"),
    ],
)
def test_anything_but_each_offset_once_is_an_error(pieces: list[Piece]) -> None:
    """Goal: a gap or a repetition never reaches a table. Each kind by itself."""
    with pytest.raises(RangeNotDense, match="queue 'q' from 10 up to 30"):
        list(dense(QueueRange("c", "q", "l", 7, 10, 30), pieces))
