"""What of a query's conditions the source takes over: queue names and queue offsets, which narrow the plan, and a range
of times, which chooses rows where they are read. Pure.

Event times stand in any order, so a condition on `timestamp` is never turned into offsets. None of the three columns is
ever null: `IS NOT NULL` always holds, `IS NULL` never, and a comparison with null, which is unknown, chooses no row.

A condition that is taken over whole is not handed back to Spark. All others are: of those the plan may still follow
what they imply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import numpy.typing as npt
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
)

_LEAST: Final = -(2**63)
_MOST: Final = 2**63
# Each is at least a task; what is between two of more than so many is read and left to Spark.
_BOUNDS_MAX: Final = 32
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Bounds = tuple[int, int]
"""The first, and behind the last."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Times, µs UTC, from `first_us` up to `next_us` (exclusive)."""

    first_us: int = _LEAST
    next_us: int = _MOST

    def __contains__(self, time_us: int) -> bool:
        return self.first_us <= time_us < self.next_us

    def mask(self, times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which of them are within."""
        if self.first_us >= self.next_us:
            return np.zeros(len(times_us), dtype=np.bool_)
        # The last one inclusive: one behind it may be no int64.
        within: npt.NDArray[np.bool_] = (times_us >= self.first_us) & (times_us <= self.next_us - 1)
        return within


EVERY_TIME: Final = TimeRange()
_EVERY_OFFSET: Final = ((_LEAST, _MOST),)


@dataclass(frozen=True, slots=True)
class Conditions:
    """`topics`: None for all; `offsets`: apart and in order; a row is chosen when all three hold."""

    topics: frozenset[str] | None = None
    offsets: tuple[Bounds, ...] = _EVERY_OFFSET
    times: TimeRange = EVERY_TIME

    def has_topic(self, queue: str) -> bool:
        return self.topics is None or queue in self.topics


ALL_ROWS: Final = Conditions()


def pushed(filters: Iterable[Filter]) -> tuple[Conditions, list[Filter]]:
    """What is taken over of conditions that must all hold, and those that Spark must check still."""
    conditions = ALL_ROWS
    left: list[Filter] = []
    for each in filters:
        conditions, whole = _narrowed(conditions, each)
        if not whole:
            left.append(each)
    return conditions, left


def _narrowed(conditions: Conditions, condition: Filter) -> tuple[Conditions, bool]:
    """With one more; and whether that is all of what it says."""
    column = getattr(condition, "attribute", ())
    if column == ("topic",):
        return _with_topic(conditions, condition)
    if column == ("offset",):
        return _with_offset(conditions, condition)
    if column == ("timestamp",):
        return _with_time(conditions, condition)
    return conditions, False


def _with_topic(conditions: Conditions, condition: Filter) -> tuple[Conditions, bool]:
    names = _chosen(condition, str)
    if names is None:
        return conditions, isinstance(condition, IsNotNull)
    chosen = frozenset(names)
    return replace(conditions, topics=chosen if conditions.topics is None else conditions.topics & chosen), True


def _with_offset(conditions: Conditions, condition: Filter) -> tuple[Conditions, bool]:
    numbers = _chosen(condition, int)
    if numbers is not None:
        bounds = _runs(numbers)
    elif (one := _compared(condition, int)) is not None:
        bounds = _within(one, int)
    else:
        return conditions, isinstance(condition, IsNotNull)
    whole = len(bounds) <= _BOUNDS_MAX
    if not whole:
        bounds = ((bounds[0][0], bounds[-1][1]),)
    return replace(conditions, offsets=_both(conditions.offsets, bounds)), whole


def _with_time(conditions: Conditions, condition: Filter) -> tuple[Conditions, bool]:
    numbers = _chosen(condition, datetime)
    if numbers is not None:
        bounds = _runs([_micros(each) for each in numbers])
    elif (one := _compared(condition, datetime)) is not None:
        bounds = _within(one, _micros)
    else:
        return conditions, isinstance(condition, IsNotNull)
    first, following = (bounds[0][0], bounds[-1][1]) if bounds else (_LEAST, _LEAST)
    times = conditions.times
    both = TimeRange(max(times.first_us, first), min(times.next_us, following))
    return replace(conditions, times=both), len(bounds) <= 1


def _chosen(condition: Filter, kind: type) -> list[Any] | None:
    """The values that the column may have; None when the condition does not name them in a type that is known.

    A null among them is passed over: what is compared with it is unknown, and unknown chooses no row.
    """
    match condition:
        case IsNull():
            return []
        case EqualTo(value=value) | EqualNullSafe(value=value):
            values: Sequence[Any] = [value]
        case In(value=several):
            values = several
        case _:
            return None
    given = [value for value in values if value is not None]
    return given if all(_is_a(value, kind) for value in given) else None


def _compared(condition: Filter, kind: type) -> Filter | None:
    match condition:
        case LessThan(value=value) | LessThanOrEqual(value=value):
            known = value is None or _is_a(value, kind)
        case GreaterThan(value=value) | GreaterThanOrEqual(value=value):
            known = value is None or _is_a(value, kind)
        case _:
            known = False
    return condition if known else None


def _within(condition: Filter, number: Any) -> tuple[Bounds, ...]:
    match condition:
        case LessThan(value=None) | LessThanOrEqual(value=None):
            return ()
        case GreaterThan(value=None) | GreaterThanOrEqual(value=None):
            return ()
        case LessThan(value=value):
            return ((_LEAST, number(value)),)
        case LessThanOrEqual(value=value):
            return ((_LEAST, number(value) + 1),)
        case GreaterThan(value=value):
            return ((number(value) + 1, _MOST),)
        case GreaterThanOrEqual(value=value):
            return ((number(value), _MOST),)
    raise AssertionError(condition)


def _is_a(value: Any, kind: type) -> bool:
    """A time without a zone is of another type of Spark's, whose meaning depends on the session."""
    return type(value) is kind and not (isinstance(value, datetime) and value.tzinfo is None)


def _micros(time: datetime) -> int:
    return (time - _EPOCH) // _MICROSECOND


def _runs(numbers: Iterable[int]) -> tuple[Bounds, ...]:
    """Neighbours as one."""
    found: list[Bounds] = []
    for number in sorted(set(numbers)):
        if found and found[-1][1] == number:
            found[-1] = (found[-1][0], number + 1)
        else:
            found.append((number, number + 1))
    return tuple(found)


def _both(some: Sequence[Bounds], others: Sequence[Bounds]) -> tuple[Bounds, ...]:
    """What lies within both."""
    pairs = ((max(one[0], other[0]), min(one[1], other[1])) for one in some for other in others)
    return tuple(sorted((first, following) for first, following in pairs if first < following))
