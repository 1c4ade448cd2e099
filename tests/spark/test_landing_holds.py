"""A landing's hold beside its work: renewed however long a step is, lost only once, and left to whoever took it.

The node is its own table of holds behind a plain list of what was asked; the clock is a number.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from mirrorlog.errors import ConnectionLost, HoldTaken
from mirrorlog.queues.limits.holds import EXPIRED, RELEASED, TOO_MUCH, HoldRequest
from mirrorlog.spark.landing.definition import Landing, landing
from mirrorlog.spark.landing.holds import NOBODY, Holds, keep_renewed
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.messages.queues import HoldInfo
from tests.queues.test_holds import Book

LEASE_S = 120.0
QUEUES = {"a": 1, "b": 2}
ONE = landing(
    {"name": "lake", "queue": ["a", "b"], "table": "/lake", "servers": "n1:7401", "lease_s": LEASE_S, "tiered": True}
)


class Node:
    """`asked`: the queue and queue offset of every wish, with the time; `away`: it answers nobody."""

    def __init__(self) -> None:
        self.book = Book()
        self.now_s = 1_000.0
        self.away = False
        self.asked: list[tuple[float, str, int]] = []
        self._renewed_s: dict[str, float] = {}

    def holds(self, **settings: Any) -> Holds:
        return Holds(settings.pop("landing", ONE), now=lambda: self.now_s, connect=self._connect, **settings)

    def held(self, queue: str) -> tuple[str, int, int]:
        """Who, in which epoch, from where on."""
        hold = self.book.holds.newest(QUEUES[queue])["lake"]
        return hold.holder, hold.epoch, hold.queue_offset

    @asynccontextmanager
    async def _connect(self, landing: Landing) -> AsyncIterator[Admin]:
        if self.away:
            raise ConnectionLost("no node answers")
        yield Admin(self)

    def set(self, queue: str, wish: HoldRequest) -> HoldInfo:
        self.asked.append((self.now_s, queue, wish.queue_offset))
        left_s = self._renewed_s.get(queue, 0.0) + wish.lease_ms / 1000 - self.now_s
        hold = self.book.ask(wish, left_ms=int(left_s * 1000), queue_id=QUEUES[queue])
        self._renewed_s[queue] = self.now_s
        return self._info(queue, hold)

    def all(self, queue: str) -> list[HoldInfo]:
        return [self._info(queue, hold) for hold in self.book.holds.newest(QUEUES[queue]).values()]

    def _info(self, queue: str, hold: Any) -> HoldInfo:
        return HoldInfo(
            queue=queue,
            name=hold.name,
            holder=hold.holder,
            epoch=hold.epoch,
            queue_offset=hold.queue_offset,
            lease_ms=hold.lease_ms,
        )


class Admin:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def set_hold(self, queue: str, name: str, **wish: Any) -> HoldInfo:
        return self._node.set(queue, HoldRequest(name, **wish))

    async def holds(self, queue: str) -> list[HoldInfo]:
        return self._node.all(queue)


def waking(node: Node, times: int, at_wake: Callable[[int], None] = lambda number: None) -> Callable[[float], bool]:
    """Instead of waiting: so much time has passed, so many times. `at_wake`: called with the number of the time."""
    left = iter(range(times))

    def wait(seconds: float) -> bool:
        number = next(left, None)
        if number is None:
            return True
        node.now_s += seconds
        at_wake(number)
        return False

    return wait


def test_a_step_of_ten_leases_keeps_its_hold_at_the_queue_offsets_said_last() -> None:
    """Goal: no lease runs out while a step is under way. Ten leases pass; every renewal says the same as before."""
    node = Node()
    holds = node.holds()
    holds.begin({"a": 5, "b": 0})
    holds.renew({"a": 30})
    del node.asked[:]
    keep_renewed(holds, waking(node, int(10 * LEASE_S / holds.tick_s)))
    for queue, offset in (("a", 30), ("b", 0)):
        times = [1_000.0, *(at_s for at_s, name, _ in node.asked if name == queue)]
        assert max(after - before for before, after in pairwise(times)) <= LEASE_S / 2
        assert node.now_s - times[-1] <= LEASE_S / 2
        assert {said for _, name, said in node.asked if name == queue} == {offset}
    holds.check()
    assert node.held("a")[1:] == (1, 30)


def test_a_renewal_that_fails_is_tried_again_within_the_lease() -> None:
    """Goal: a short outage costs no hold. The nodes are away for half a lease, when the renewal was due."""
    node = Node()
    holds = node.holds()
    holds.begin({"a": 0})

    def outage(number: int) -> None:
        node.away = LEASE_S / 3 <= node.now_s - 1_000.0 < LEASE_S * 5 / 6

    keep_renewed(holds, waking(node, 12, outage))
    renewed = [at_s - 1_000.0 for at_s, _, _ in node.asked[1:]]
    assert len(renewed) == 1
    assert LEASE_S * 5 / 6 <= renewed[0] < LEASE_S
    holds.check()


def test_a_renewal_that_is_refused_is_told_before_the_commit_and_once() -> None:
    """Goal: who lost the hold does not commit. Another run takes over by force while a step is under way; a run of the
    same name that asks again is refused as long as the other one lives."""
    node = Node()
    first, second = node.holds(), node.holds(take_over=True)
    first.begin({"a": 0, "b": 0})

    def replaced(number: int) -> None:
        if number == 1:
            second.begin({"a": 0})

    keep_renewed(first, waking(node, 6, replaced))
    with pytest.raises(HoldTaken) as refused:
        first.check()
    assert refused.value.details["holder"] == node.held("a")[0]
    first.check()
    with pytest.raises(HoldTaken):
        first.begin({"a": 0, "b": 0})
    second.renew({"a": 9})


@pytest.mark.parametrize("reason", [EXPIRED, TOO_MUCH])
def test_a_hold_that_ended_by_itself_is_registered_anew_and_stops_no_step(reason: str) -> None:
    """Goal: a landing that is far behind, or was cut off, gets on: nobody else has the hold. It ends; it is renewed."""
    node = Node()
    holds = node.holds()
    holds.begin({"a": 3})
    node.book.append(node.book.holds.end(QUEUES["a"], "lake", reason), QUEUES["a"])
    node.now_s += LEASE_S
    holds.renew_due()
    holds.check()
    assert node.held("a")[1:] == (2, 3)
    holds.renew({"a": 8})
    assert node.held("a")[2] == 8


@pytest.mark.parametrize("reason", [EXPIRED, TOO_MUCH, RELEASED])
def test_a_run_that_ends_revives_no_hold_that_has_ended(reason: str) -> None:
    """Goal: what nobody wants is not kept for a whole lease more. The hold ends, then the run does."""
    node = Node()
    holds = node.holds()
    holds.begin({"a": 3})
    node.book.append(node.book.holds.end(QUEUES["a"], "lake", reason), QUEUES["a"])
    holds.end()
    assert not any(hold.live for hold in node.book.holds.newest(QUEUES["a"]).values())


def test_a_run_whose_hold_was_ended_by_hand_is_told_once_and_may_register_again() -> None:
    """Goal: who ends a hold is heard. It is released; the next look tells, the next step begins anew."""
    node = Node()
    holds = node.holds()
    holds.begin({"a": 3})
    node.book.append(node.book.holds.end(QUEUES["a"], "lake", RELEASED), QUEUES["a"])
    node.now_s += LEASE_S
    holds.renew_due()
    with pytest.raises(HoldTaken, match="landing-end"):
        holds.check()
    assert not node.book.holds.newest(QUEUES["a"])
    holds.begin({"a": 3})
    assert node.held("a")[2] == 3


def test_a_hold_that_expired_and_was_taken_is_lost() -> None:
    """Goal: registering anew takes nothing from anybody. The lease ends, another run registers, the first renews."""
    node = Node()
    first, second = node.holds(), node.holds()
    first.begin({"a": 3})
    node.book.append(node.book.holds.end(QUEUES["a"], "lake", EXPIRED), QUEUES["a"])
    node.now_s += LEASE_S
    second.begin({"a": 0})
    with pytest.raises(HoldTaken):
        first.renew({"a": 8})
    assert node.held("a")[1:] == (2, 0)


def test_a_run_that_was_replaced_leaves_the_hold_to_its_successor() -> None:
    """Goal: its end evicts nobody. Another run takes one of two queues; the first, which has not heard of it, ends."""
    node = Node()
    first, second = node.holds(), node.holds(take_over=True)
    first.begin({"a": 0, "b": 0})
    first.renew({"b": 7})
    second.begin({"a": 3})
    successor = node.held("a")
    with pytest.raises(HoldTaken):
        first.end()
    assert node.held("a") == successor
    assert node.held("b")[0] == NOBODY
    assert node.held("b")[2] == 7
    first.end()
    second.renew({"a": 9})
    second.end()
    assert node.held("a") == (NOBODY, 3, 9)


def test_a_hold_is_taken_by_force_once() -> None:
    """Goal: two runs that may take over do not go on taking it from each other."""
    node = Node()
    first, second = node.holds(take_over=True), node.holds(take_over=True)
    first.begin({"a": 0})
    second.begin({"a": 0})
    with pytest.raises(HoldTaken):
        first.renew({"a": 5})
    with pytest.raises(HoldTaken):
        first.begin({"a": 5})
    second.renew({"a": 6})


def test_a_hand_over_whose_answer_was_lost_is_done() -> None:
    """Goal: a clean end is none that fails. The node has done it already when it is asked."""
    node = Node()
    holds = node.holds()
    holds.begin({"a": 4})
    holder, epoch, _ = node.held("a")
    node.set("a", HoldRequest("lake", NOBODY, 4, int(LEASE_S * 1000), "/lake", True, take_over=True, epoch=epoch))
    holds.end()
    assert node.held("a") == (NOBODY, epoch + 1, 4)
    assert holder != NOBODY


def test_the_thread_renews_while_the_block_runs_and_ends_with_it() -> None:
    """Goal: one thread per run, however blocks are nested. A lease of 120 ms, waited for until it was renewed."""
    node = Node()
    node_holds = node.holds(landing=replace(ONE, lease_s=0.12))
    node_holds.begin({"a": 0})
    with node_holds.kept(), node_holds.kept():
        node.now_s += LEASE_S
        wait_for(lambda: len(node.asked) > 1 or None, timeout=30, what=lambda: "no renewal")
    asked = len(node.asked)
    node.now_s += LEASE_S
    assert len(node.asked) == asked
    node_holds.end()
