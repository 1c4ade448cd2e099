"""When queues go by themselves: with their last subscriber, or when nobody uses them."""

from __future__ import annotations

from typing import Any

import pytest

from mirrorlog.errors import BadRequest, QueueExists
from mirrorlog.queues.arguments import version_needed
from mirrorlog.queues.changes import QueueUsed, encode_change
from mirrorlog.queues.checkpoint_states import encode_checkpoint, encode_state
from mirrorlog.queues.limits.lifetime import Lifetime, Lifetimes, Uses, is_transient, lifetime_of
from mirrorlog.queues.registry import QueueRegistry
from mirrorlog.versions import GROUPS
from tests.queues.test_registry import Book

AUTO = Lifetime(auto_delete=True, expires_ms=None)
MINUTE = Lifetime(auto_delete=False, expires_ms=60_000)
HOUR_S = 3600.0
TICK_S = 0.125
"""Exact in binary, so that an end comes neither a tick early nor late."""


def nobody(*, was_used: bool) -> Uses:
    return Uses(subscribers=0, users=0, was_used=was_used)


def some(count: int = 1) -> Uses:
    return Uses(subscribers=count, users=count, was_used=True)


class Clock:
    """Time passes for `lifetimes` as on a node that is at work: in steps that are no standstill."""

    def __init__(self, lifetimes: Lifetimes, now: float = 0.0) -> None:
        self.lifetimes = lifetimes
        self._step = round(now / TICK_S)

    def go_to(self, now: float) -> None:
        for step in range(self._step, round(now / TICK_S)):
            self.lifetimes.passed(step * TICK_S)
        self._step = round(now / TICK_S)
        self.lifetimes.passed(now)

    def ends(self, lifetime: Lifetime, uses: Uses, now: float) -> bool:
        self.go_to(now)
        return bool(self.lifetimes.ends(7, lifetime, uses, now))


def test_an_auto_delete_queue_goes_with_its_last_consumer_and_not_before_its_first() -> None:
    """Nobody was there for an hour: it stays. Two come and one goes: it stays; the other goes too: it goes."""
    clock = Clock(Lifetimes(0.0, return_s=30))
    assert not clock.ends(AUTO, nobody(was_used=False), HOUR_S)
    assert not clock.ends(AUTO, some(2), HOUR_S + 1)
    assert not clock.ends(AUTO, some(1), HOUR_S + 2)
    assert clock.ends(AUTO, nobody(was_used=True), HOUR_S + 3)


def test_leases_and_named_groups_do_not_keep_an_auto_delete_queue() -> None:
    """Four use it in other ways, none is subscribed to its own group any more: it goes."""
    assert Clock(Lifetimes(0.0, return_s=0)).ends(AUTO, Uses(subscribers=0, users=4, was_used=True), 1.0)


def test_a_new_master_waits_for_subscribers_before_their_absence_counts() -> None:
    """It knows nobody: until its time is over the queue stays, also when one of two is back and goes again."""
    clock = Clock(Lifetimes(100.0, return_s=30), 100.0)
    assert not clock.ends(AUTO, nobody(was_used=True), 100.0)
    assert not clock.ends(AUTO, some(), 110.0)
    assert not clock.ends(AUTO, nobody(was_used=True), 129.875)
    assert clock.ends(AUTO, nobody(was_used=True), 130.0)


def test_subscribers_that_were_sent_away_are_waited_for() -> None:
    """Long after the mastership began all have to come back: an auto-delete queue waits, as at its beginning, and goes
    when nobody came."""
    clock = Clock(Lifetimes(0.0, return_s=30))
    assert not clock.ends(AUTO, some(), 100)
    clock.lifetimes.returning(100)
    assert not clock.ends(AUTO, nobody(was_used=True), 129.875)
    assert clock.ends(AUTO, nobody(was_used=True), 130)


def test_subscribers_of_a_queue_that_came_from_another_log_are_waited_for() -> None:
    """Long after the mastership began the queue comes, and goes by itself as behind a new master; another one does not
    wait. What may be idle for a minute has one, however long ago it was used when it was here before."""
    lifetimes = Lifetimes(0.0, return_s=30)
    clock = Clock(lifetimes)
    assert not clock.ends(MINUTE, some(), 50)
    clock.go_to(100)
    lifetimes.came(7, 100)
    assert lifetimes.ends(8, AUTO, nobody(was_used=True), 100)
    assert not clock.ends(AUTO, nobody(was_used=True), 129.875)
    assert clock.ends(AUTO, nobody(was_used=True), 130)
    assert not clock.ends(MINUTE, nobody(was_used=True), 159.875)
    assert clock.ends(MINUTE, nobody(was_used=True), 160)


def test_a_queue_that_nobody_uses_is_deleted_in_time() -> None:
    """60 s from when it was first seen; somebody who uses it, or asks for it, begins them anew, in full; and so does a
    new master."""
    lifetimes = Lifetimes(0.0, return_s=30)
    clock, idle = Clock(lifetimes), nobody(was_used=False)
    assert not clock.ends(MINUTE, idle, HOUR_S)  # declared an hour after this mastership began
    assert not clock.ends(MINUTE, idle, HOUR_S + 59)
    lifetimes.used(7, HOUR_S + 59)
    assert not clock.ends(MINUTE, idle, HOUR_S + 118)
    assert not clock.ends(MINUTE, Uses(subscribers=0, users=1, was_used=False), HOUR_S + 119)
    assert not clock.ends(MINUTE, idle, HOUR_S + 178)
    assert clock.ends(MINUTE, idle, HOUR_S + 179)
    assert not Clock(Lifetimes(HOUR_S + 179, return_s=30), HOUR_S + 179).ends(MINUTE, idle, HOUR_S + 179)


def test_time_in_which_the_node_stood_still_is_no_time() -> None:
    """Goal: a queue that is read all the time is not deleted since its node was paused for longer than it may be idle.
    Method: used, then nothing for an hour, as of a machine that was suspended: in the first step after it its wait is
    over; it has the whole rest of its time from there on, and not an hour more."""
    for first in ("ends", "used"):
        lifetimes = Lifetimes(0.0, return_s=30)
        clock = Clock(lifetimes)
        assert not clock.ends(MINUTE, some(), 10.0)
        after = 10.0 + HOUR_S
        if first == "used":  # a fetch may be read before time is told
            lifetimes.used(7, after)
        assert not lifetimes.ends(7, MINUTE, nobody(was_used=True), after)
        clock = Clock(lifetimes, after)
        assert not clock.ends(MINUTE, nobody(was_used=True), after + 59.875)
        assert clock.ends(MINUTE, nobody(was_used=True), after + 60)


@pytest.mark.parametrize(("still_s", "waits_s"), [(1.0, 3.0), (HOUR_S, 30.0)])
def test_who_gave_up_a_node_that_stood_still_is_waited_for(still_s: float, waits_s: float) -> None:
    """Goal: an auto-delete queue does not go since its subscribers are seen to have gone when the node comes back; they
    dial again. Method: a standstill, short or long; their absence counts after three times as long, or after the time
    of a new master."""
    lifetimes = Lifetimes(0.0, return_s=30)
    Clock(lifetimes).go_to(100.0)
    after = 100.0 + still_s
    assert not lifetimes.ends(7, AUTO, nobody(was_used=True), after)
    clock = Clock(lifetimes, after)
    assert not clock.ends(AUTO, nobody(was_used=True), after + waits_s - TICK_S)
    assert clock.ends(AUTO, nobody(was_used=True), after + waits_s)


def test_nothing_is_kept_of_queues_that_are_gone() -> None:
    """Their ids never come again, but a node runs for long."""
    lifetimes = Lifetimes(0.0, return_s=0)
    clock = Clock(lifetimes)
    clock.go_to(5.0)
    lifetimes.used(7, 5.0)
    lifetimes.keep({8})
    assert not clock.ends(MINUTE, nobody(was_used=False), 64.0)
    assert not clock.ends(MINUTE, nobody(was_used=False), 66.0)


@pytest.mark.parametrize(
    ("arguments", "lifetime"),
    [
        ({}, None),
        ({"auto-delete": False}, None),
        ({"auto-delete": True}, AUTO),
        ({"x-expires": 60_000}, MINUTE),
        ({"auto-delete": "yes", "x-expires": -1}, None),
        ({"auto-delete": True, "x-expires": 1}, Lifetime(auto_delete=True, expires_ms=1)),
    ],
)
def test_the_arguments_say_how_long_a_queue_lives(arguments: dict[str, Any], lifetime: Lifetime | None) -> None:
    """What an older log holds of another shape says nothing."""
    assert lifetime_of(arguments) == lifetime


@pytest.mark.parametrize(
    "arguments", [{"auto-delete": 1}, {"x-expires": 0}, {"x-expires": True}, {"x-expires": "1"}, {"x-expires": 2**40}]
)
def test_a_lifetime_that_is_none_is_refused(arguments: dict[str, Any]) -> None:
    """With the argument's name."""
    with pytest.raises(BadRequest, match=next(iter(arguments))):
        registry().declare("q", arguments)


@pytest.mark.parametrize("arguments", [{"auto-delete": True}, {"x-expires": 5}])
def test_an_older_cluster_keeps_no_such_queue(arguments: dict[str, Any]) -> None:
    """A master of older software would let it stay for ever."""
    assert version_needed(arguments) == GROUPS


def test_declaring_again_with_another_lifetime_is_refused_naming_the_difference() -> None:
    """Both arguments, added, taken away and changed; a flag that is not set is the same as none."""
    book = Book()
    book.declare("q", **{"auto-delete": True, "x-expires": 5})
    book.declare("r", **{"auto-delete": False})
    queues = book.registry
    assert queues.declare("q", {"auto-delete": True, "x-expires": 5}) is None
    assert queues.declare("r", {}) is None
    for queue, arguments, named in (
        ("q", {"x-expires": 5}, "auto-delete=True"),
        ("q", {"auto-delete": True}, "x-expires=5"),
        ("q", {"auto-delete": True, "x-expires": 6}, "x-expires=6"),
        ("r", {"auto-delete": True}, "auto-delete=True"),
    ):
        with pytest.raises(QueueExists, match=named):
            queues.declare(queue, arguments)


def test_that_a_queue_was_used_is_a_fact_of_the_log() -> None:
    """The first time counts; a cut takes it back, and with it the next one counts again; a queue that goes and comes
    back by a cut has it still; a checkpoint says it, and one that has not begun there takes it from it."""
    book = Book()
    book.declare("q", **{"auto-delete": True})
    queue = book.registry.find("q")
    at = book.end
    used = encode_change(QueueUsed(), queue_id=queue.queue_id)
    book.append(bytearray(used))
    book.append(bytearray(used))
    assert queue.used_at == at
    deleted_from = book.end
    book.append(book.registry.delete(queue.queue_id))
    assert book.registry.lifetimes == {}
    book.registry.cut(deleted_from)
    assert book.registry.find("q").used_at == at
    assert book.registry.lifetimes == {queue.queue_id: AUTO}
    state = book.registry.state(queue.queue_id, [], next_queue_offset=0)
    assert state is not None
    other = Book()
    other.append(encode_checkpoint([encode_state(state)]))
    assert other.registry.find("q").used_at == at
    book.registry.cut(at)
    assert book.registry.find("q").used_at == -1
    book.registry.cut(0)
    assert book.registry.lifetimes == {}


def registry() -> QueueRegistry:
    return QueueRegistry(queues_max=100, groups_max=100)


@pytest.mark.parametrize(
    ("arguments", "transient"),
    [
        ({}, False),
        ({"durable": True}, False),
        ({"durable": False}, True),
        ({"exclusive": True}, True),
        ({"exclusive": True, "durable": True}, True),
        ({"exclusive": False, "durable": "no"}, False),
    ],
)
def test_what_is_exclusive_or_not_durable_goes_with_its_node(arguments: dict[str, Any], transient: bool) -> None:
    """Whatever else is said of it."""
    assert is_transient(arguments) is transient


@pytest.mark.parametrize("way", [{"exclusive": True}, {"durable": False}])
@pytest.mark.parametrize("wrong", [{"copies": 2}, {"flush": "disk"}, {"x-log-group": "g"}, {"nodes": ["n1"]}])
def test_it_has_no_copies_no_disk_and_no_log_group(way: dict[str, Any], wrong: dict[str, Any]) -> None:
    """Refused naming the argument; what it has anyway may be said."""
    with pytest.raises(BadRequest, match=next(iter(wrong))):
        registry().declare("q", {**way, **wrong})
    assert registry().declare("q", {**way, "copies": 1, "flush": "memory"}) is not None


def test_that_a_queue_is_durable_need_not_be_said() -> None:
    """Either way it is the same queue; one that is not is another, and the difference is named."""
    book = Book()
    book.declare("q")
    assert book.registry.declare("q", {"durable": True, "exclusive": False}) is None
    for arguments in ({"durable": False}, {"exclusive": True}):
        with pytest.raises(QueueExists, match=next(iter(arguments))):
            book.registry.declare("q", arguments)
