"""The checkers of credit can fail: bugs put into real nodes and clients are found, each by a plan that gives it a
chance."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.client.producer.pipeline import Allowance
from mirrorlog.queues.limits.credit import Credits, Key
from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Event, Plan
from tests.sim.seeded import found_in, small_plan

SEEDS_MAX = 4
SLOW = (
    Event(0.3, "lengthen", ("a", "b", 0.2, 1.0)),
    Event(0.5, "pause", ("@mirror", 0.6)),
    Event(1.6, "kill", ("@master", 0.4)),
    Event(2.0, "pause", ("c", 0.7)),
)


def caught(*events: Event, by: tuple[str, ...]) -> bool:
    """Whether one of those checks finds something in the first schedules."""
    return found_in((plan(number, events) for number in range(SEEDS_MAX)), by)


def plan(number: int, events: tuple[Event, ...]) -> Plan:
    return small_plan(f"seeded credit {number}", events, credit=True)


def test_nothing_is_found_without_a_bug() -> None:
    """By such a plan, with nothing put in; and producers are held."""
    found = attempt(plan(0, SLOW))
    assert not isinstance(found, Failure), found.reason
    assert found["credit: a producer is held"]


def test_a_producer_that_is_never_refused_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By clients that hold nothing back, and nodes that take it."""
    monkeypatch.setattr(Allowance, "open", property(lambda self: True))
    monkeypatch.setattr(Credits, "check", lambda self, key, **facts: None)
    assert caught(*SLOW, by=("an account has at most its grant and one batch",))


@pytest.mark.long
def test_a_producer_that_is_told_of_no_credit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nodes that tell nobody when there is some again."""
    confirmed = Credits.confirmed

    def told(self: Credits, offset: int, **facts: Any) -> list[Any]:
        confirmed(self, offset, **facts)
        return []

    monkeypatch.setattr(Credits, "confirmed", told)
    assert caught(*SLOW, by=("nothing is confirmed", "a producer does not come to its end"))


def test_credit_that_does_not_come_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By nodes that count the first batch of each account twice, also when its connection is gone."""
    appended = Credits.appended

    def twice(self: Credits, key: Key, **facts: Any) -> None:
        known = key in self._accounts
        appended(self, key, **facts)
        if not known:
            self._accounts[key].batches += 1

    monkeypatch.setattr(Credits, "appended", twice)
    monkeypatch.setattr(Credits, "forget", lambda self, owner: None)
    assert caught(*SLOW, by=("credit does not come back",))
