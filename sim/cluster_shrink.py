"""Makes a plan that fails smaller: leaves events out while it still fails in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from sim.cluster_plan import Plan

Try = Callable[[Plan], str]
"""Runs a plan; the first line of what is wrong, or nothing."""


@dataclass(frozen=True, slots=True)
class Shrunk:
    """`failure`: of the smaller plan; `runs`: that it took."""

    plan: Plan
    failure: str
    runs: int


def failure_kind(failure: str) -> str:
    """What two failures have to have in common to be the same: the words up to what differs from run to run."""
    text = re.sub(r"^seed [^:]*: ", "", failure)
    name = text.split(": ")[1] if text.startswith("AssertionError: ") else text
    return re.sub(r"[\d.]+|\b\w#\d+\b", "", name)[:60]


def shrink(plan: Plan, failure: str, attempt: Try, *, go_on: Callable[[], bool]) -> Shrunk:
    """As far as `go_on` lets it: first halves of the events are left out, then quarters, at last single ones."""
    wanted, runs = failure_kind(failure), 0
    events, size = plan.events, max(1, len(plan.events) // 2)
    while go_on():
        found, start = False, 0
        while start < len(events) and go_on():
            fewer = (*events[:start], *events[start + size :])
            runs += 1
            told = attempt(plan.with_events(fewer))
            if told and failure_kind(told) == wanted:
                events, failure, found = fewer, told, True
            else:
                start += size
        if size == 1 and not found:
            break
        size = max(1, size // 2)
    return Shrunk(plan.with_events(events), failure, runs)
