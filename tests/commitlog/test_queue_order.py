"""The batches of one queue in memory, in queue order, beside a plain list."""

from __future__ import annotations

import random

import pytest

from mirrorlog.commitlog.index.queue_order import QueueOrder


class Queue:
    """A queue of batches of ten records, all confirmed, and what is known of it by plain means."""

    def __init__(self) -> None:
        self.order = QueueOrder(0)
        self.held: dict[int, int] = {}
        self.lost: set[int] = set()
        self.count = 0

    def append(self) -> None:
        base = self.order.next_confirmed
        self.order.bases.append(base)
        self.order.numbers.append(self.count)
        self.order.next_confirmed = base + 10
        self._add(base)

    def copy(self, base: int) -> None:
        self.order.insert(base, self.count, 10)
        self._add(base)

    def _add(self, base: int) -> None:
        self.held[base] = self.count
        self.lost.discard(base)
        self.count += 1

    def trim(self, floor: int) -> None:
        self.lost |= {base for base, number in self.held.items() if number < floor}
        self.held = {base: number for base, number in self.held.items() if number >= floor}
        self.order.trim(floor)

    def check(self) -> None:
        order = self.order
        assert list(zip(order.bases, order.numbers, strict=True)) == sorted(self.held.items())
        assert max(self.lost, default=-1) < order.hot_start <= order.next_confirmed or not (
            self.lost or order.hot_start
        )


@pytest.mark.parametrize("seed", range(30))
def test_what_is_forgotten_is_below_what_is_said_to_be_complete(seed: int) -> None:
    """Append, copy old batches and forget the oldest rows, at random: what is held is what the plain list holds, and
    nothing that was lost stands where the memory says that it is complete, which never goes back."""
    print("seed", seed)
    chance = random.Random(seed)
    queue = Queue()
    floor = hot_start = 0
    for _ in range(300):
        what = chance.random()
        if what < 0.6 or not queue.count:
            queue.append()
        elif what < 0.9:
            queue.copy(chance.randrange(queue.order.next_confirmed // 10) * 10)
        else:
            floor = chance.randrange(floor, queue.count + 1)
            queue.trim(floor)
            assert queue.order.hot_start >= hot_start
            hot_start = queue.order.hot_start
        queue.check()


def test_a_queue_whose_copies_are_forgotten_is_plain_again() -> None:
    """Goal: copies of long ago do not make every later trim cost a walk. Copy a batch, forget it with those before it:
    the rows rise with the queue offsets again, and the queue knows it."""
    queue = Queue()
    for _ in range(5):
        queue.append()
    queue.copy(0)
    queue.append()
    queue.trim(3)
    queue.check()
    assert queue.order.mixed
    queue.trim(6)
    queue.check()
    assert not queue.order.mixed
    queue.append()
    queue.trim(7)
    queue.check()
