"""Bugs in how queues move, put into real nodes: each is found by plans in which some do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from tests.sim.seeded import small_plan

SEEDS: Final = 8
LOGS: Final = ("memory", "disk")
MOVING: Final = tuple(Event(0.3 + 0.25 * number, "alter", (number, 1)) for number in range(10))
"""Each queue in its turn, to and fro."""
FALLING: Final = (
    *MOVING,
    *(Event(0.2 + 0.4 * n, "ambush", (when, "kill", 2.0, 0.0, 0.4)) for n, when in enumerate(("arrived target",) * 6)),
)
"""And the new masters fall when all has come."""
SLOW: Final = tuple(Event(0.25, "lengthen", (one, other, 0.05, 4.0)) for one, other in ("ab", "bc", "ca"))
LOST_ANSWERS: Final = (
    *(Event(0.25, "lengthen", (node, "writers", 0.06, 3.0)) for node in "abc"),
    *(Event(0.4 + 0.25 * number, "reset", (node, "writers")) for number, node in enumerate("abcabcabc")),
    *MOVING,
)
CALLED_OFF: Final = (
    *MOVING,
    *SLOW,
    *(Event(0.32 + 0.01 * number, "call_off") for number in range(200)),
)
"""Somebody cancels moves that have begun."""


def plans(*events: Event, **kinds: bool) -> Iterator[Plan]:
    each = small_plan("", tuple(sorted(events, key=lambda event: event.at_s)), logs=LOGS, placing=True, **kinds)
    return (replace(each, seed=f"seeded moves {seed}") for seed in range(SEEDS))


def test_nothing_is_found_without_a_bug() -> None:
    """By the same plans, with nothing put in; and queues do move, and come back."""
    for events in (MOVING, (*FALLING, *SLOW), LOST_ANSWERS, CALLED_OFF):
        counts = attempt(next(plans(*events)))
        assert not isinstance(counts, Failure), counts.reason
        assert counts["moves: come about"] + counts["moves: cancelled"] > 3
