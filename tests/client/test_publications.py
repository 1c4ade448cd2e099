"""What a message ends with when its queues end differently."""

from __future__ import annotations

from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.publisher.publications import whole
from mirrorlog.errors import AccessRefused, NotMaster, OutcomeUnknown, Refused

HERE = {"a": Receipt(0, 0, 1, 1, 0, False)}


def test_a_refusal_says_that_nothing_was_stored_anywhere() -> None:
    """Goal: whoever sends a refused message again doubles nothing. Method: one queue refuses, alone and beside one that
    has it."""
    alone = whole({}, {"b": NotMaster("elsewhere", master="h:1")})
    assert isinstance(alone, Refused)
    assert (str(alone), alone.details) == ("queue 'b': elsewhere", {"master": "h:1", "queue": "b", "confirmed": []})
    beside = whole(HERE, {"b": NotMaster("elsewhere")})
    assert type(beside) is OutcomeUnknown
    assert str(beside) == "stored in a, and not in queue 'b': elsewhere"
    assert beside.details == {"queue": "b", "confirmed": ["a"]}


def test_one_that_may_be_stored_makes_the_whole_so() -> None:
    """Goal: unknown goes before refused. Method: both."""
    failures = {"b": AccessRefused("no"), "c": OutcomeUnknown("no confirm")}
    for receipts in ({}, HERE):
        told = whole(receipts, failures)
        assert type(told) is OutcomeUnknown
        assert told.details["queue"] == "c"
