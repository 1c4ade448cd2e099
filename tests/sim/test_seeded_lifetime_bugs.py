"""The checkers of queues that go by themselves can fail: bugs put into real nodes are found, each by a plan that gives
it a chance."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.broker.session.queue_lifetimes import LifetimeKeeper
from mirrorlog.queues.limits.lifetime import Lifetime, Lifetimes, Uses
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from tests.sim.seeded import found_in, small_plan

SEEDS_MAX = 4
FALLING = tuple(Event(0.7 + 1.5 * number, "kill", ("@master", 0.3)) for number in range(3))
PEACE: tuple[Event, ...] = (Event(4.0, "reset", ("a", "readers")),)


def caught(*events: Event, by: str) -> bool:
    """Whether that check finds something in the first schedules."""
    return found_in((plan(number, events) for number in range(SEEDS_MAX)), (by,))


def plan(number: int, events: tuple[Event, ...]) -> Plan:
    return small_plan(f"seeded lifetimes {number}", events, seconds=5.0, groups=True, lifetimes=True)


def test_nothing_is_found_without_a_bug() -> None:
    """By such a plan, with nothing put in; and queues of both sorts go."""
    found = attempt(plan(0, FALLING))
    assert not isinstance(found, Failure), found.reason
    assert found["lifetimes: party goes"]
    assert found["lifetimes: brittle goes"]


def test_a_queue_that_goes_under_its_subscriber_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a node that sees nobody."""
    monkeypatch.setattr(LifetimeKeeper, "_uses", staticmethod(lambda log, queue: Uses(0, 0, True)))
    assert caught(*PEACE, by="nobody is there when it goes")


@pytest.mark.long
def test_a_new_master_that_waits_for_nobody_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one for which absence counts at once."""
    begin = Lifetimes.__init__

    def at_once(self: Lifetimes, now: float, *, return_s: float) -> None:
        begin(self, now, return_s=0.0)

    monkeypatch.setattr(Lifetimes, "__init__", at_once)
    assert caught(*FALLING, by="a new master waits")


def test_a_queue_that_expires_while_it_is_used_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that goes after half of its time."""
    ends = Lifetimes.ends

    def early(self: Lifetimes, queue_id: int, lifetime: Lifetime, uses: Uses, now: float) -> str:
        expires_ms = lifetime.expires_ms and lifetime.expires_ms // 2
        return ends(self, queue_id, lifetime._replace(expires_ms=expires_ms), uses, now)

    monkeypatch.setattr(Lifetimes, "ends", early)
    assert caught(*PEACE, by="what is used stays")


@pytest.mark.long
def test_a_queue_that_never_goes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nodes that look at none."""

    def none(self: LifetimeKeeper, log: Any, ids: Any, now: float) -> Any:
        return type(ids)()

    monkeypatch.setattr(LifetimeKeeper, "_look", none)
    assert caught(*PEACE, by="a queue does not go")
