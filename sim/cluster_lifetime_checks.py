"""What must hold of queues that go by themselves whatever happened to their cluster: none goes too early. That each
goes in the end is waited for; see `cluster_groups`."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Final

from sim.cluster_checks import Outside
from sim.cluster_lifetimes import BRITTLE, EXPIRES_MS, RETURN_MS, LifetimeHistory, Used

STEP_S: Final = 0.02
"""A mastership is noted a moment after it began to count."""


def check_lifetimes(outside: Outside, history: LifetimeHistory) -> None:
    """Raises AssertionError naming the first that does not hold."""
    nobody_is_there_when_it_goes(history)
    a_new_master_waits(outside, history)
    what_is_used_stays(outside, history)


def nobody_is_there_when_it_goes(history: LifetimeHistory) -> None:
    """Is subscribed to its own group; of either queue: a subscriber uses it."""
    for went in history.went:
        assert not went.there, f"nobody is there when it goes: {went}"


def a_new_master_waits(outside: Outside, history: LifetimeHistory) -> None:
    """For subscribers, who may have been there; and what expires begins anew. One whose log the queue has come to is
    new."""
    opened_at = outside.observer.opened_at
    for went in history.went:
        waits_s = (RETURN_MS if went.auto_delete else EXPIRES_MS) / 1000
        homes = pairwise(outside.places.homes.get(went.queue, ()))
        came = (to.since for left, to in homes if left.log_id and to.log_id and to.since <= went.at)
        since = max(opened_at.get((went.log, went.epoch), -inf), *came, -inf)
        assert went.at >= since + waits_s - STEP_S, f"a new master waits: since {since:.3f}, and {went}"


def what_is_used_stays(outside: Outside, history: LifetimeHistory) -> None:
    """As long as it was declared again in time: by the id that is told."""
    for before, behind in pairwise(each for each in history.used if each.queue == BRITTLE):
        same = before.queue_id == behind.queue_id
        idle_s = behind.answered_at - before.asked_at
        assert same or idle_s >= EXPIRES_MS / 1000 or _lost_since(outside, before), (
            f"what is used stays: {before}, and after {idle_s:.3f} s at most {behind}"
        )


def _lost_since(outside: Outside, used: Used) -> bool:
    return outside.lost_since({used.log_id, *outside.logs_of(used.queue)}, used.asked_at)
