"""What is sent to copies that are made for a move has a limit; nobody else is held back by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirrorlog.config import HaSettings
from mirrorlog.ha.in_sync import Grow
from mirrorlog.ha.pace import BURST_S, LinkPace, MovePace
from tests.ha.links import Pair, ack_of, connection_of, prove
from tests.ha.replicas import HA, KIB, append
from tests.ha.stage import ALONE, Stage, decided

RATE = 1_000_000


class Log:
    """Of which `held` are filled for a move."""

    def __init__(self, *held: str, paused: bool = False) -> None:
        self.held = set(held)
        self.paused = paused

    def holds_back(self, node: str) -> bool:
        return node in self.held


def sent_in(seconds: float, pace: MovePace, *, run: int, step_s: float) -> int:
    """By somebody who looks that often and sends runs of so many bytes as long as he may."""
    sent, now = 0, 100.0
    pace.wait_s(now)
    while now < 100.0 + seconds:
        while not pace.wait_s(now):
            pace.spend(run)
            sent += run
        now += step_s
    return sent


@pytest.mark.parametrize("run", [1_000, 65_536, 400_000])
def test_over_time_no_more_is_sent_than_the_limit(run: int) -> None:
    """And no less, whatever the size of a run; by runs that are sent whenever they may be, for ten seconds."""
    sent = sent_in(10.0, MovePace(RATE), run=run, step_s=0.01)
    assert 9.9 * RATE - run <= sent <= 10 * RATE + BURST_S * RATE + run


def test_a_rest_saves_up_no_more_than_a_moment() -> None:
    """By an hour without anything to send."""
    pace = MovePace(RATE)
    pace.wait_s(0.0)
    assert not pace.wait_s(3_600.0)
    sent = 0
    while not pace.wait_s(3_600.0):
        pace.spend(1_000)
        sent += 1_000
    assert sent <= BURST_S * RATE + 1_000
    assert 0 < pace.wait_s(3_600.0) <= 0.002


def test_without_a_limit_nothing_waits_but_while_it_is_paused() -> None:
    """By a limit of 0, and a pause."""
    log = Log("n1")
    link = LinkPace(MovePace(0), log, "n1")
    link.spend(10**12)
    assert not link.holds(1.0)
    assert link.bytes_per_s == 0
    log.paused = True
    assert link.holds(1.0)
    assert link.bytes_per_s == -1


def test_links_of_several_logs_share_the_limit() -> None:
    """By two that send in turns."""
    pace = MovePace(RATE)
    links = [LinkPace(pace, Log("n1"), "n1"), LinkPace(pace, Log("n2"), "n2")]
    now, sent = 0.0, 0
    while now < 5.0:
        for link in links:
            if not link.holds(now):
                link.spend(10_000)
                sent += 10_000
        now += 0.01
    assert sent <= 5.0 * RATE + BURST_S * RATE + 20_000


def test_a_link_that_is_held_back_goes_on_when_it_may_and_is_free_when_it_is_in(pair: Pair) -> None:
    """What the mirror gets is whole runs, in order, at the pace; heartbeats go on. By a mirror of an empty copy, time,
    and its entry into the set."""
    for _ in range(20):
        append(pair.master, 2 * KIB)
    log = Log("n1")
    ha = HaSettings(**HA.model_dump() | {"transfer_batch_bytes": 4 * KIB})
    connection = connection_of(pair.master, ha=ha)
    connection.pace = LinkPace(MovePace(10 * KIB), log, "n1")
    assert connection.pace.holds(0.0), "nothing is saved up at the beginning"
    assert prove(connection, pair.mirror, now=1.0) != []
    half, total = connection.write_half, pair.master.log.end
    first = half.next_transfer
    assert 0 < first <= 6 * KIB
    assert connection.owes
    assert connection.pump(1.0) == []
    assert half.next_transfer == first
    connection.tick(2.0)
    assert first < half.next_transfer <= first + 10 * KIB + 8 * KIB < total
    log.held.clear()
    connection.pump(2.0)
    assert half.next_transfer == total
    assert connection.pace is None


def test_nothing_is_sent_to_a_copy_for_a_move_while_moving_is_paused(pair: Pair) -> None:
    """Its link stays; by a pause before it asks, and its end."""
    append(pair.master, 2 * KIB)
    log = Log("n1", paused=True)
    connection = connection_of(pair.master)
    connection.pace = LinkPace(MovePace(0), log, "n1")
    prove(connection, pair.mirror, now=1.0)
    assert (connection.proven, connection.write_half.next_transfer) == (True, 0)
    connection.ack(ack_of(0, epoch=1), 2.0)
    log.paused = False
    connection.pump(3.0)
    assert connection.write_half.next_transfer == pair.master.log.end


def test_only_a_wished_copy_that_confirms_do_not_wait_for_is_held_back(tmp_path: Path) -> None:
    """Not one that fell behind, nor one that is proposed or in. By a wish for n2, a mirror of each kind, and the steps
    of n2 into the set."""
    stage = Stage(tmp_path, ALONE)
    assert not stage.mastership.holds_back("n1")
    stage.mastership.learned(replace(decided(6, "n0a"), target=("n0", "n1")))
    assert stage.mastership.holds_back("n1")
    assert not stage.mastership.holds_back("n2"), "nobody moves it: it fell behind, or is new for another reason"
    stage.mastership.learned(replace(decided(6, "n0a"), target=("n0", "n1"), paused=True))
    assert stage.mastership.paused
    _, wish = stage.proposed("n1a")
    assert isinstance(wish, Grow)
    assert not stage.mastership.holds_back("n1"), "confirms wait for it"
    stage.mastership.learned(replace(decided(7, "n0a", "n1a"), target=("n0", "n1")))
    assert not stage.mastership.holds_back("n1")
