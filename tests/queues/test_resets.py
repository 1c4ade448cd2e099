"""Where groups stand after a reset: targets, borders, gaps, times, and who is in the way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.commitlog.index.gaps import NO_GAPS, with_gap
from mirrorlog.errors import BadRequest, InUse, OffsetOutOfRange
from mirrorlog.queues.groups.resets import ACKING, Place, ResetPosition, ResetRequest, check_idle
from mirrorlog.wire.messages.groups import ResetGroups

PLACE = Place(100, 200, ())
GAPPED = Place(100, 1_000_200, ((150, 1_000_150),))
"""50 records, a gap of a million, 50 records."""


def target(at: int, place: Place = PLACE, **asked: Any) -> int:
    wish = ResetRequest.of(ResetGroups(queue="q", groups=["g"], **asked))
    return wish.target(ResetPosition("g", ACKING, at, ""), place)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"to": "earliest"}, 100),
        ({"to": "latest"}, 200),
        ({"to": "offset", "value": 100}, 100),
        ({"to": "offset", "value": 200}, 200),
        ({"to": "shift", "value": 10}, 160),
        ({"to": "shift", "value": -10}, 140),
        ({"to": "shift", "value": 51}, 200),
        ({"to": "shift", "value": -51}, 100),
        ({"to": "shift", "value": -(2**62)}, 100),
        ({"to": "each", "offsets": {"g": 170, "other": 1}}, 170),
        ({"to": "each", "offsets": {"g": 7}}, 100),
    ],
)
def test_a_target_lies_between_the_begin_and_what_is_confirmed(asked: dict[str, Any], expected: int) -> None:
    """A group at 150 in a queue from 100 to 200: what is relative is brought to the nearest place."""
    assert target(150, **asked) == expected


@pytest.mark.parametrize("value", [99, 201, 0])
def test_an_offset_that_is_no_place_is_refused(value: int) -> None:
    """A person has it from somewhere, and is wrong: the borders are told."""
    with pytest.raises(OffsetOutOfRange) as refused:
        target(150, to="offset", value=value)
    assert refused.value.details == {"begin": 100, "next": 200}


@pytest.mark.parametrize(
    ("at", "shift", "expected"),
    [
        (140, 9, 149),
        (140, 10, 1_000_150),
        (140, 11, 1_000_151),
        (1_000_160, -10, 1_000_150),
        (1_000_160, -11, 149),
        (1_000_200, -100, 100),
        (100, 100, 1_000_200),
        (1_000_150, 1, 1_000_151),
        (200, 1, 1_000_151),
        (200, -1, 149),
    ],
)
def test_a_shift_counts_records_and_no_gap(at: int, shift: int, expected: int) -> None:
    """Over the gap that a loss has left, both ways, and from a position within it."""
    assert target(at, GAPPED, to="shift", value=shift) == expected


@pytest.mark.parametrize(
    ("at", "shift", "expected"),
    [
        (100, 49, 149),
        (100, 50, 1_000),
        (100, 59, 1_009),
        (100, 60, 5_000),
        (500, 10, 5_000),
        (1_005, -6, 149),
        (1_005, 5, 5_000),
        (5_020, -20, 5_000),
        (5_020, -21, 1_009),
        (5_020, -31, 149),
        (3_000, -10, 1_000),
        (5_020, -90, 100),
    ],
)
def test_a_shift_counts_records_and_none_of_several_gaps(at: int, shift: int, expected: int) -> None:
    """50 records, a gap, 10 records, a gap, 20 records: over one of them, over both, and from a position within."""
    place = Place(100, 5_020, ((150, 1_000), (1_010, 5_000)))
    assert target(at, place, to="shift", value=shift) == expected


def test_nobody_is_sent_into_a_gap() -> None:
    """An offset within one is the one behind it."""
    assert target(100, GAPPED, to="offset", value=500) == 1_000_150
    two = Place(100, 5_020, ((150, 1_000), (1_010, 5_000)))
    for asked, there in ((150, 1_000), (999, 1_000), (1_009, 1_009), (1_010, 5_000)):
        assert target(100, two, to="offset", value=asked) == there


@given(st.tuples(*[st.integers(0, 300)] * 4), st.integers(0, 900), st.integers(-900, 900))
def test_every_target_is_a_place(widths: tuple[int, int, int, int], at: int, number: int) -> None:
    """Any queue, any standing, any wish: never below the begin, beyond the end, or in the gap."""
    begin, before, width, behind = widths
    gap = (begin + before, begin + before + width)
    place = Place(begin, gap[1] + behind, with_gap(NO_GAPS, gap))
    asks: list[dict[str, Any]] = [
        {"to": "shift", "value": number},
        {"to": "each", "offsets": {"g": abs(number)}},
        {"to": "earliest"},
        {"to": "latest"},
    ]
    for asked in asks:
        found = target(at, place, **asked)
        assert place.begin <= found <= place.next
        assert not gap[0] <= found < gap[1]


@pytest.mark.parametrize(
    "asked",
    [
        {"to": "begin"},
        {"groups": []},
        {"groups": ["x" * 256]},
        {"to": "offset", "value": -1},
        {"to": "offset", "value": 2**63},
        {"to": "shift", "value": -(2**63)},
        {"to": "time", "value": -5},
        {"to": "each", "groups": ["a", "b"], "offsets": {"a": 1}},
        {"to": "each", "offsets": {"a": 1}},
        {"to": "each", "groups": ["a"], "offsets": {"a": -1}},
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, Any]) -> None:
    """Unknown words, nobody named, numbers beyond what there is, a group without its own place."""
    with pytest.raises(BadRequest):
        ResetRequest.of(ResetGroups(queue="q", **asked))


class Times:
    """The memory finds `there`, the past `past`."""

    def __init__(self, there: int, past: int | None, *, asks_past: bool = True) -> None:
        self._there, self._past, self._asks = there, past, asks_past

    def is_past_time(self, queue_id: int, append_time_us: int) -> bool:
        return self._asks

    def find_time(self, queue_id: int, append_time_us: int) -> int:
        return self._there


class Past:
    def __init__(self, found: int | None) -> None:
        self._found = found

    async def find_time(self, queue_id: int, append_time_us: int) -> int | None:
        return self._found


@pytest.mark.parametrize(
    ("past", "asks_past", "expected"), [(120, True, 120), (None, True, 180), (120, False, 180), (50, True, 100)]
)
def test_a_time_is_the_earlier_of_what_past_and_memory_find(past: int | None, asks_past: bool, expected: int) -> None:
    """The past is asked only when it may have it; what is gone meanwhile is the begin."""
    wish = ResetRequest.of(ResetGroups(queue="q", groups=["g"], to="time", value=5))
    assert wish.needs_time
    found = asyncio.run(wish.at_time(Times(180, past, asks_past=asks_past), Past(past), 1))
    assert not found.needs_time
    assert found.target(ResetPosition("g", ACKING, 0, ""), PLACE) == expected


def test_the_active_ones_are_named() -> None:
    """Three of five, and how many more; nobody, and nothing is raised."""
    check_idle([ResetPosition("g", ACKING, 0, "")])
    standings = [ResetPosition(f"g{each}", ACKING, 0, "1 subscribed" if each else "") for each in range(6)]
    with pytest.raises(InUse, match=r"'g1' \(1 subscribed\), .*'g3' .* and 2 more; .* force") as refused:
        check_idle(standings)
    assert refused.value.details["groups"] == ["g1", "g2", "g3", "g4", "g5"]
