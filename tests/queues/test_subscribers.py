"""Since when a subscriber has had the oldest of its records, told from what is kept for its timeout."""

from __future__ import annotations

from mirrorlog.queues.delivery.subscribers import Subscriber, SubscriberOptions

TIMEOUT_S = 80.0
GENERATION_S = TIMEOUT_S / 8


def subscriber(timeout_s: float = TIMEOUT_S) -> Subscriber:
    return Subscriber(SubscriberOptions(1, prefetch_records=1_000, prefetch_bytes=1_000_000), timeout_s)


def test_the_oldest_record_says_since_when() -> None:
    """Goal: exact for who has stopped. Method: records at several times, and the first of them stays."""
    held = subscriber()
    assert held.held_at(100.0) is None
    held.give(5, 8, 30, now=100.0)
    held.give(8, 9, 10, now=101.0)
    held.give(9, 12, 30, now=100.0 + 3 * GENERATION_S)
    assert held.held_at(150.0) == 100.0
    held.take(5, 9)
    assert held.held_at(150.0) == 100.0 + 3 * GENERATION_S
    held.take(9, 12)
    assert held.held_at(150.0) is None


def test_it_is_never_said_to_be_held_for_longer_than_it_is() -> None:
    """Goal: nobody who works on is taken for stuck. Method: one that always has something and settles the oldest; and
    one of whose records the first is settled, and the others are not."""
    busy = subscriber()
    now = 100.0
    busy.give(0, 1, 10, now=now)
    for number in range(1, 200):
        now += GENERATION_S / 100
        busy.give(number, number + 1, 10, now=now)
        busy.take(number - 1, number)
        at = busy.held_at(now)
        assert at is None or at >= now - GENERATION_S / 100
    stuck = subscriber()
    stuck.give(0, 2, 20, now=100.0)
    stuck.take(0, 1)
    assert stuck.held_at(100.0 + GENERATION_S / 2) is None
    assert stuck.held_at(100.0 + 2 * GENERATION_S) == 100.0 + GENERATION_S


def test_one_without_a_timeout_keeps_nothing_to_tell_it_by() -> None:
    held = subscriber(float("inf"))
    held.give(0, 1, 10, now=1.0)
    assert held.held_at(2.0) is None
