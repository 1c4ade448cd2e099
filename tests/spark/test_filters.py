"""Conditions taken over from Spark choose the rows that Spark would, and narrow what is read. No JVM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from mirrorlog.commitlog.format.body import Body, Record
from mirrorlog.spark.plan import narrowed, ranges, tasks
from mirrorlog.spark.reading.arrow import merged
from mirrorlog.spark.reading.filters import ALL_ROWS, EVERY_TIME, Conditions, TimeRange, pushed
from tests.spark.batches import APPEND_TIME_US, consumed, record_lists
from tests.spark.test_plan import facts, options

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TOPIC, OFFSET, TIMESTAMP = ("topic",), ("offset",), ("timestamp",)
COMPARISONS: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    LessThan: lambda a, b: a < b,
    LessThanOrEqual: lambda a, b: a <= b,
    GreaterThan: lambda a, b: a > b,
    GreaterThanOrEqual: lambda a, b: a >= b,
}


def at(time_us: int) -> datetime:
    return EPOCH + timedelta(microseconds=time_us)


def holds(condition: Filter, value: Any) -> bool:
    """Whether SQL chooses a row by this: unknown is no."""
    if isinstance(condition, IsNull | IsNotNull):
        return isinstance(condition, IsNotNull)
    if isinstance(condition, In):
        return value in [each for each in condition.value if each is not None]
    return condition.value is not None and COMPARISONS[type(condition)](value, condition.value)  # type: ignore[attr-defined]


def conditions_on(column: tuple[str, ...], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Filter]:
    values = st.none() | values
    compared = st.sampled_from(list(COMPARISONS)).flatmap(lambda kind: st.builds(kind, st.just(column), values))
    several = st.builds(In, st.just(column), st.lists(values, min_size=1, max_size=5).map(tuple))
    nulls = st.sampled_from([IsNull(column), IsNotNull(column)])
    return compared | several | nulls


offset_conditions = st.lists(conditions_on(OFFSET, st.integers(80, 230)), max_size=3)
topic_conditions = st.lists(conditions_on(TOPIC, st.sampled_from(["q", "r"])), max_size=2).map(
    lambda found: [each for each in found if isinstance(each, EqualTo | EqualNullSafe | In | IsNull | IsNotNull)]
)
time_conditions = st.lists(
    conditions_on(TIMESTAMP, st.integers(-5, 5).map(at) | st.integers(-2, 2).map(lambda n: at(APPEND_TIME_US + n))),
    max_size=3,
)


@given(offset_conditions, topic_conditions)
def test_offsets_and_topics_that_are_planned_are_those_that_spark_would_choose(
    on_offset: list[Filter], on_topic: list[Filter]
) -> None:
    """Goal: a narrowed plan, and Spark's own look at what was handed back, give the rows that the conditions choose.
    Method: random conditions on two queues of known offsets."""
    conditions, left = pushed([*on_offset, *on_topic])
    queues = [facts("q"), facts("r", begin=90, end=120)]
    whole = ranges(options(), [each for each in queues if conditions.has_topic(each.name)])
    planned = {
        (each.queue, offset) for each in narrowed(whole, conditions.offsets) for offset in range(each.first, each.next)
    }
    found = {row for row in planned if all(holds(each, row[0] if each in on_topic else row[1]) for each in left)}
    expected = {
        (queue.name, offset)
        for queue in queues
        for offset in range(queue.begin, queue.next)
        if all(holds(each, offset) for each in on_offset) and all(holds(each, queue.name) for each in on_topic)
    }
    assert found == expected
    assert not left, "all of these are taken over whole"


# As small as the conditions' values, so that they meet.
few_times = st.none() | st.integers(-5, 5)


@settings(deadline=None)
@given(st.lists(record_lists(few_times), min_size=1, max_size=3), time_conditions)
def test_rows_chosen_by_time_are_those_that_spark_would_choose(lists: list[Any], on_time: list[Filter]) -> None:
    """Goal: filter in the source is filter behind it. Method: random batches, with and without event times; the rows
    under the conditions, and all rows of which those that hold are taken."""
    conditions, left = pushed(on_time)
    batches = [consumed(records) for records in lists]
    chosen = rows(merged(batches, times=conditions.times), left)
    assert chosen == rows(merged(batches), on_time)


def rows(batches: Any, conditions: list[Filter]) -> list[tuple[int, int]]:
    found = [
        row
        for batch in batches
        for row in zip(
            batch.column("timestamp").cast(pa.int64()).to_pylist(), batch.column("offset").to_pylist(), strict=True
        )
    ]
    return [row for row in found if all(holds(each, at(row[0])) for each in conditions)]


def test_a_condition_narrows_the_plan() -> None:
    """Goal: what cannot be chosen is not read. Method: plans of a million records, under each kind of condition."""
    million = [facts(begin=0, end=1_000_000)]

    def planned(*conditions: Filter) -> list[tuple[int, int]]:
        taken, left = pushed(conditions)
        assert left == []
        return [
            (each.first, each.next) for each in tasks(options(), narrowed(ranges(options(), million), taken.offsets))
        ]

    assert planned() == [(0, 500_000), (500_000, 1_000_000)]
    assert planned(EqualTo(OFFSET, 7)) == [(7, 8)]
    assert planned(GreaterThanOrEqual(OFFSET, 10), LessThan(OFFSET, 20), IsNotNull(OFFSET)) == [(10, 20)]
    assert planned(In(OFFSET, (5, 6, 999_999))) == [(5, 7), (999_999, 1_000_000)]
    assert planned(GreaterThan(OFFSET, 5), LessThan(OFFSET, 3)) == []
    assert planned(EqualTo(OFFSET, -1)) == []


def test_many_scattered_offsets_are_read_as_one_stretch_and_left_to_spark() -> None:
    """Goal: a long list does not become a task per number. Method: every tenth of a thousand."""
    many = In(OFFSET, tuple(range(0, 1000, 10)))
    conditions, left = pushed([many])
    assert left == [many]
    assert conditions.offsets == ((0, 991),)


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param(EqualTo(("key",), b"k"), id="another column"),
        pytest.param(IsNotNull(("value",)), id="a column that may be null"),
        pytest.param(EqualTo(("headers", "key"), "n"), id="within a column"),
        pytest.param(Not(EqualTo(OFFSET, 5)), id="not"),
        pytest.param(Not(In(OFFSET, (5, None))), id="not in, with a null"),
        pytest.param(EqualTo(OFFSET, 5.0), id="another type"),
        pytest.param(EqualTo(OFFSET, True), id="a boolean"),
        pytest.param(LessThan(TOPIC, "q"), id="topics in order"),
        pytest.param(StringStartsWith(TOPIC, "q"), id="topics by prefix"),
        pytest.param(LessThan(TIMESTAMP, datetime(2026, 1, 1)), id="a time without a zone"),
    ],
)
def test_what_is_not_understood_is_left_to_spark_whole(condition: Filter) -> None:
    """Goal: no row is lost to a guess. Each by itself: nothing is narrowed, it is handed back."""
    assert pushed([condition]) == (ALL_ROWS, [condition])


def test_times_that_are_scattered_are_narrowed_and_left_to_spark() -> None:
    """Goal: a list of times is right. Method: two of them; from the first to the last is read."""
    wanted = In(TIMESTAMP, (at(5), at(9)))
    conditions, left = pushed([wanted])
    assert (conditions, left) == (Conditions(times=TimeRange(5, 10)), [wanted])


class OnlyTimes:
    """A body of which nothing but the times may be looked at."""

    def __init__(self, body: Body) -> None:
        self.timestamps = body.timestamps


@pytest.mark.parametrize(
    ("time_us", "times"),
    [
        pytest.param(None, TimeRange(next_us=APPEND_TIME_US), id="appended too late"),
        pytest.param(None, TimeRange(first_us=APPEND_TIME_US + 1), id="appended too early"),
        pytest.param(5, TimeRange(next_us=5), id="all events are too late"),
        pytest.param(5, TimeRange(first_us=6), id="all events are too early"),
    ],
)
def test_batches_without_a_row_in_time_are_not_converted(time_us: int | None, times: TimeRange) -> None:
    """Goal: times are enough to skip one. Method: batches whose columns are not there."""
    batch = consumed([Record(b"v", timestamp_us=time_us)] * 3)
    hidden = replace(batch, body=cast(Body, OnlyTimes(batch.body)))
    assert list(merged([hidden, hidden], times=times)) == []
    assert sum(rows.num_rows for rows in merged([batch], times=EVERY_TIME)) == 3


@pytest.mark.parametrize(
    ("times_us", "times", "found"),
    [
        pytest.param([3, 5], TimeRange(first_us=5), [5], id="the latest event alone"),
        pytest.param([3, 5], TimeRange(next_us=4), [3], id="the earliest event alone"),
        pytest.param([3, None], TimeRange(first_us=6), [APPEND_TIME_US], id="the append time alone, behind events"),
        pytest.param(
            [2**60, None], TimeRange(next_us=2**59), [APPEND_TIME_US], id="the append time alone, before them"
        ),
        pytest.param([3, None], TimeRange(APPEND_TIME_US, APPEND_TIME_US + 1), [APPEND_TIME_US], id="exactly it"),
        pytest.param([3, None], TimeRange(next_us=APPEND_TIME_US), [3], id="everything but it"),
    ],
)
def test_a_single_row_in_time_is_found(times_us: list[int | None], times: TimeRange, found: list[int]) -> None:
    """Goal: nothing at an edge is skipped with its batch. Method: batches of two rows, one of which is in time."""
    batch = consumed([Record(b"v", timestamp_us=time_us) for time_us in times_us])
    assert [time_us for time_us, _ in rows(merged([batch], times=times), [])] == found
