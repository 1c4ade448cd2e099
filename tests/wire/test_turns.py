"""Turns of the loop: slices, debts, and who waits for whom; against a loop that is a list of what connections want."""

from __future__ import annotations

from collections import deque
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirrorlog.wire.fairness.turns import (
    HEAVY_S_MAX,
    KNOWN,
    LIGHT_BURST_S,
    LIGHT_PART,
    STRANGER,
    Budget,
    LoopLine,
    Share,
)

BUDGET = Budget(turn_s=0.005, slice_s=0.001, frames=64)


class Loop:
    """Connections that have sent frames of known cost, and a loop that serves them as `Endpoint` and `Lines` do."""

    def __init__(self, budget: Budget = BUDGET) -> None:
        self.budget = budget
        self.now = 100.0
        self.line = LoopLine(budget)
        self.wants: dict[Share, deque[float]] = {}
        self.done: dict[Share, list[float]] = {}
        self.order: list[Share] = []

    def connection(self, *costs_s: float) -> Share:
        share = Share(self.line, lambda: None)
        self.wants[share] = deque(costs_s)
        self.done[share] = []
        return share

    def turn(self) -> float:
        """One turn: first those in line, then all who are read because they are not in it; how long it took."""
        began = self.now
        for share in self.line.turn():
            self.serve(share)
        for share, wants in self.wants.items():
            if wants and self.line.may_begin(share, self.now):
                self.serve(share)
        return self.now - began

    def serve(self, share: Share) -> None:
        began, wants = self.now, self.wants[share]
        until = began + self.line.slice_s(share)
        for _ in range(self.budget.frames):
            cost_s = wants.popleft()
            self.now += cost_s
            self.done[share].append(cost_s)
            self.order.append(share)
            if not wants or self.now >= until:
                break
        self.line.served(share, began, self.now, more=bool(wants))


def test_a_connection_gets_a_slice_and_waits_in_line_for_more() -> None:
    """Goal: frames and time are both bounded. Method: more cheap frames than a slice has; a slice of dear ones."""
    loop = Loop()
    cheap, dear = loop.connection(*[1e-6] * 100), loop.connection(*[0.0004] * 10)
    loop.turn()
    assert len(loop.done[cheap]) == BUDGET.frames
    assert len(loop.done[dear]) == 3
    assert cheap.waits is dear.waits is loop.line
    assert not loop.line.may_begin(cheap, loop.now), "what comes meanwhile waits behind what came before"


def test_a_frame_that_took_ten_slices_is_paid_for_with_nine_rounds() -> None:
    """Goal: who asks for what is dear waits, and the others do not wait for him. Method: he is one of two that never
    stop; the rounds between his frames are counted."""
    loop = Loop()
    dear, other = loop.connection(*[0.010] * 3), loop.connection(*[0.001] * 100)
    while len(loop.done[dear]) < 2:
        loop.turn()
    first = loop.order.index(dear)
    between = loop.order[first + 1 : loop.order.index(dear, first + 1)]
    assert between == [other] * 9


def test_who_asks_now_and_then_does_not_wait_behind_those_who_never_stop() -> None:
    """Goal: the bystander of fifty that send without end. Method: what is done between his word and his turn."""
    loop = Loop()
    for _ in range(50):
        loop.connection(*[0.00001] * 100_000)
    for _ in range(30):
        loop.turn()
    bystander = loop.connection()
    for _ in range(20):
        loop.wants[bystander].append(0.0001)
        said_at = loop.now
        while loop.wants[bystander]:
            loop.turn()
        assert loop.now - said_at <= 2 * BUDGET.turn_s + 0.002
        for _ in range(3):
            loop.turn()


def test_who_uses_more_than_his_part_is_heavy_until_he_rests() -> None:
    """Goal: nobody is light by sending just short of his slice for ever. Method: he uses the loop all the time, is in
    the second row, rests, and is in the first."""
    loop = Loop()
    greedy = loop.connection()
    for _ in range(100):
        loop.line.served(greedy, loop.now, loop.now + 0.0005, more=False)
        loop.now += 0.0005
    assert greedy.heavy_until > loop.now + LIGHT_BURST_S
    assert greedy.heavy_until <= loop.now + HEAVY_S_MAX
    assert greedy.heavy_until - loop.now <= 100 * 0.0005 / LIGHT_PART
    assert greedy.heavy_until <= loop.now + HEAVY_S_MAX + LIGHT_BURST_S


def test_alone_a_debt_costs_nothing() -> None:
    """Goal: an idle loop works. Method: one connection with dear frames only; each turn does one."""
    loop = Loop()
    alone = loop.connection(*[0.050] * 5)
    for _ in range(5):
        loop.turn()
    assert len(loop.done[alone]) == 5


def test_a_debt_is_paid_by_as_much_time() -> None:
    """Goal: who asked for something dear a while ago is served at once. Method: the time of it passes."""
    line = LoopLine(BUDGET)
    share = Share(line, lambda: None)
    line.served(share, 0.0, 0.011, more=False)
    list(line.turn())
    assert not line.may_begin(share, 0.012)
    line.drop(share)
    assert line.may_begin(share, 0.022)


def test_who_leaves_is_not_served() -> None:
    """Goal: a closed connection's turn does not come. Method: two wait, one leaves, also within a turn."""
    loop = Loop()
    shares = [loop.connection(*[0.001] * 9) for _ in range(4)]
    loop.turn()
    shares[0].leave()
    served = []
    for share in loop.line.turn():
        served.append(share)
        shares[2].leave()
    assert served == [shares[1], shares[3]]
    assert loop.line.waiting == 0


def test_strangers_have_a_seventh_of_the_loop_however_many_they_are() -> None:
    """Goal: next to nothing before the login. Method: a hundred that never stop, and a pause between turns."""
    loop = Loop(STRANGER)
    for _ in range(100):
        loop.connection(*[0.00002] * 1_000)
    used_s = 0.0
    for _ in range(100):
        used_s += loop.turn()
        loop.now += STRANGER.pause_s
    assert used_s <= 100 * (STRANGER.turn_s + 0.00002)
    assert STRANGER.turn_s / (STRANGER.turn_s + STRANGER.pause_s) <= 1 / 7
    assert KNOWN.turn_s > STRANGER.turn_s


COSTS = st.lists(st.sampled_from([0.00001, 0.0002, 0.0009, 0.003, 0.012]), max_size=30)


@pytest.mark.long
@given(st.lists(st.tuples(COSTS, st.integers(0, 20)), min_size=1, max_size=12))
def test_all_is_done_in_order_and_no_turn_is_longer_than_its_budget(arrivals: list[tuple[list[float], int]]) -> None:
    """Goal: no starvation, a bound for each turn, and the order of each connection's frames. Method: whoever comes,
    with whatever, at whatever turn."""
    loop = Loop()
    shares = [loop.connection() for _ in arrivals]
    expected = {share: costs for share, (costs, _) in zip(shares, arrivals, strict=True)}
    dearest = max((cost for costs, _ in arrivals for cost in costs), default=0.0)
    rounds_max = 40 + sum(1 + int(cost / BUDGET.slice_s) for costs, _ in arrivals for cost in costs)
    for number in count():
        for share, (costs, at) in zip(shares, arrivals, strict=True):
            if at == number:
                loop.wants[share].extend(costs)
        assert loop.turn() <= BUDGET.turn_s + dearest + 1e-9
        if number > 20 and not any(loop.wants.values()):
            break
        assert number < rounds_max, "somebody is not served"
    assert loop.done == expected
    assert loop.line.waiting == 0


@pytest.mark.long
@settings(deadline=None)
@given(st.lists(st.sampled_from([0.0001, 0.002, 0.02]), min_size=2, max_size=6))
def test_time_is_shared_evenly_between_those_who_never_stop(costs: list[float]) -> None:
    """Goal: a connection's part does not depend on what its frames cost. Method: each has frames of one cost; after a
    while nobody has had more than two frames of the dearest and two slices more than anybody else."""
    loop = Loop()
    shares = [loop.connection(*[cost] * 40_000) for cost in costs]
    for _ in range(2_000):
        loop.turn()
    used = [sum(loop.done[share]) for share in shares]
    assert max(used) - min(used) <= 2 * (max(costs) + BUDGET.slice_s)
