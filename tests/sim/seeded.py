"""Small clusters with one kind of queues, into which a bug is put, and whether a check finds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan


def small_plan(
    seed: str, events: tuple[Event, ...], *, logs: tuple[str, ...] = ("memory",), seconds: float = 3.0, **kinds: Any
) -> Plan:
    """Three nodes that forget nothing, and these events. `kinds`: fields of a plan, which queues there are."""
    return Plan(
        seed=seed,
        kind="by hand",
        nodes=3,
        copies=3,
        min_in_sync=0,
        logs=logs,
        seconds=seconds,
        unit_bytes=512,
        ordered_names=True,
        forgets=False,
        events=events,
        **kinds,
    )


def found_in(plans: Iterable[Plan], by: tuple[str, ...]) -> bool:
    """Whether one of those checks finds something in these schedules; none is run behind the first that fails."""
    for each in plans:
        found = attempt(each, within_s=30)
        if isinstance(found, Failure):
            assert any(check in found.reason for check in by), found.reason
            return True
    return False
