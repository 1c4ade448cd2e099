"""Clients of a benchmark: they begin together, their failures have reasons, and none is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from bench.clients import Clients, Pace, run_clients
from bench.workload import WorkloadFailed


def note_begin(pace: Pace, delay_s: float) -> tuple[int, float, float]:
    """Which process, when it was ready, when it began."""
    time.sleep(delay_s)  # the work before the clock, longer for one than for the other
    ready = time.perf_counter()
    return os.getpid(), ready, pace.begin()


def fail(pace: Pace, reason: str) -> None:
    """Gives up, before or behind the begin."""
    if reason == "late":
        pace.begin()
    raise ValueError(reason)


def vanish(pace: Pace, _: None) -> None:
    """Is gone without a word, as after a kill."""
    pace.begin()
    os._exit(3)


def until_told(pace: Pace, _: None) -> int:
    """Goes on until it is stopped."""
    pace.begin()
    turns = 0
    while not pace.stopped:
        turns += 1
    return turns


def stay(pace: Pace, _: None) -> int:
    """Says who it is, by its result's place, and never ends."""
    pace.begin()
    while True:
        time.sleep(1)


def test_all_begin_when_the_last_one_is_ready() -> None:
    """One is ready later than the other; neither begins before both are, and each is a process of its own."""
    (first, *_), (second, *_) = results = run_clients(note_begin, [0.0, 0.2])
    assert len({first, second, os.getpid()}) == 3
    assert min(began for _, _, began in results) >= max(ready for _, ready, _ in results)


@pytest.mark.parametrize("reason", ["early", "late"])
def test_a_failure_names_its_reason(reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Before the begin and behind it."""
    with pytest.raises(WorkloadFailed, match=f"fail: ValueError: {reason}"):
        run_clients(fail, [reason])
    assert "Traceback" in capfd.readouterr().err


def test_a_process_that_vanishes_is_a_failure() -> None:
    """Not a wait for ever."""
    with pytest.raises(WorkloadFailed, match="ended without a result"):
        run_clients(vanish, [None])


def test_a_client_hears_the_stop() -> None:
    """It has gone on until then."""
    with Clients(until_told, [None]) as clients:
        clients.go()
        clients.stop()
        (turns,) = clients.results(timeout=30)
    assert turns >= 0


def test_what_does_not_end_in_time_is_killed() -> None:
    """A deadline for the results, and no process left behind it."""
    with Clients(stay, [None]) as clients:
        clients.go()
        with pytest.raises(WorkloadFailed, match="not done in time"):
            clients.results(timeout=0.05)
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children if Path(f"/proc/{pid}").exists()]
    assert not any(b"spawn_main" in line for line in lines)
