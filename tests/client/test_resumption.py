"""Whether a subscription goes on: by what ended a session, and how long nobody has answered."""

from __future__ import annotations

import pytest

from mirrorlog.client.subscription.resumption import Resumption, ResumptionState
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    ConsumerTimedOut,
    ExclusiveTaken,
    MirrorlogError,
    NoSuchQueue,
    NotMaster,
    Overloaded,
    QueueMoving,
    SubscriptionCancelled,
)

PATIENCE_S = 10.0


def begun(*, cancel_on_failover: bool = False) -> Resumption:
    made = Resumption(now=0.0, patience_s=PATIENCE_S, cancel_on_failover=cancel_on_failover)
    made.subscribed("log", 3)
    return made


@pytest.mark.parametrize("error", [ConnectionLost("gone"), NotMaster("another"), QueueMoving("another log")])
def test_a_lost_session_is_looked_for_again(error: MirrorlogError) -> None:
    """Goal: transparent resumption. Method: lose it, find it; nobody who waits hears of it in time."""
    made = begun()
    made.lost(error, 5.0)
    assert made.state is ResumptionState.SEEKING
    assert made.trouble(5.0 + PATIENCE_S - 0.1) is None
    assert made.trouble(5.0 + PATIENCE_S) is error
    made.refused(NotMaster("none yet"), 16.0)
    assert isinstance(made.trouble(16.0), NotMaster)
    made.subscribed("log", 4)
    assert made.state is ResumptionState.SUBSCRIBED
    assert made.trouble(99.0) is None


@pytest.mark.parametrize("error", [ConsumerTimedOut("late"), NoSuchQueue("deleted"), SubscriptionCancelled("reset")])
def test_what_no_master_answers_otherwise_ends_it(error: MirrorlogError) -> None:
    """Goal: no endless attempts. Method: a session that ends so; the first reason counts."""
    made = begun()
    made.lost(error, 1.0)
    made.end(ConnectionLost("closed"))
    assert made.over
    assert made.trouble(1.0) is error
    made.subscribed("log", 3)
    assert made.over


@pytest.mark.parametrize("asked", [True, False])
def test_who_asked_is_told_of_a_failover(asked: bool) -> None:
    """Goal: `cancel_on_failover`. Method: lose the session; a later epoch is named, or only found by asking. A log that
    the queue has moved to is another mastership, too, whatever its epoch."""
    for log_id, epoch in (("log", 4), ("log", 9), ("another", 3)):
        made = begun(cancel_on_failover=True)
        made.lost(ConnectionLost("n1 is gone"), 1.0)
        assert not made.over
        with pytest.raises(SubscriptionCancelled, match=f"epoch {epoch}.*n1 is gone"):
            made.subscribed(log_id, epoch) if asked or log_id != "log" else made.sees(log_id, epoch)
        assert isinstance(made.error, SubscriptionCancelled)


def test_a_connection_that_was_lost_is_no_failover() -> None:
    """Goal: a broken link, which a door's users never see, cancels nobody. Method: the same epoch again, also where a
    node that is behind names an earlier one."""
    made = begun(cancel_on_failover=True)
    made.lost(ConnectionLost("reset"), 1.0)
    made.sees("log", 2)
    made.sees("log", 3)
    made.subscribed("log", 3)
    assert made.state is ResumptionState.SUBSCRIBED


def test_a_master_of_the_past_is_not_believed() -> None:
    """Goal: epochs rise. Method: the former master says it is one."""
    made = begun()
    made.lost(ConnectionLost("reset"), 1.0)
    with pytest.raises(NotMaster, match="before epoch 3"):
        made.subscribed("log", 2)
    assert made.state is ResumptionState.SEEKING


@pytest.mark.parametrize(
    "error",
    [
        NoSuchQueue("no queue"),
        ExclusiveTaken("taken"),
        BadRequest("no"),
        Overloaded("groups", limit="max_groups_per_queue"),
    ],
)
def test_a_first_attempt_that_is_refused_ends_it_at_once(error: MirrorlogError) -> None:
    """Goal: a wrong name is told at once. Method: refuse before it was ever subscribed."""
    made = Resumption(now=0.0, patience_s=PATIENCE_S, cancel_on_failover=False)
    made.refused(error, 0.1)
    assert made.error is error


@pytest.mark.parametrize("error", [NoSuchQueue("not heard of yet"), ExclusiveTaken("by itself, from before")])
def test_what_held_a_moment_ago_is_asked_for_again_for_a_while(error: MirrorlogError) -> None:
    """Goal: a node that is behind, or has not noticed the lost connection, ends nothing. Method: refuse again within
    the patience and behind it."""
    made = begun()
    made.lost(ConnectionLost("gone"), 5.0)
    made.refused(error, 6.0)
    assert made.state is ResumptionState.SEEKING
    made.refused(error, 5.0 + PATIENCE_S)
    assert made.error is error


def test_a_limit_that_others_make_room_below_is_waited_for() -> None:
    """Goal: a node that is full for a moment ends nothing. Method: a limit of what runs, at the first attempt."""
    made = Resumption(now=0.0, patience_s=PATIENCE_S, cancel_on_failover=False)
    made.refused(Overloaded("subscriptions", limit="max_subscriptions"), 0.1)
    assert made.state is ResumptionState.SEEKING


def test_an_attempt_that_may_go_better_is_repeated_for_ever() -> None:
    """Goal: an outage ends nothing; who waits is told. Method: refuse for a long time."""
    made = Resumption(now=0.0, patience_s=PATIENCE_S, cancel_on_failover=False)
    for now in range(100):
        made.refused(ConnectionLost("nobody there"), float(now))
    assert not made.over
    assert isinstance(made.trouble(99.0), ConnectionLost)
