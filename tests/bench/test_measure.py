"""The arithmetic under every benchmark's table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from bench.measure import (
    Busy,
    Figure,
    Load,
    Ticks,
    latencies,
    percentile,
    publish_figures,
    summarise,
    ticks_of_descendants,
)


def test_rounds_become_minimum_median_maximum() -> None:
    """Three rounds of one figure, with one of another in between, stay apart and in order."""
    rounds = [Figure("W1", "a", "rate", "msg/s", value) for value in (30.0, 10.0, 20.0)]
    rounds.insert(1, Figure("W2", "a", "p50", "µs", 5.0))
    first, second = summarise(rounds)
    assert (first.workload, first.minimum, first.median, first.maximum, first.rounds) == ("W1", 10.0, 20.0, 30.0, 3)
    assert (second.workload, second.median, second.rounds) == ("W2", 5.0, 1)


def test_a_percentile_is_a_measured_value() -> None:
    """Of 1..100 in any order; also of a single one."""
    values = [float(number) for number in range(100, 0, -1)]
    assert percentile(values, 0.50) == 51.0
    assert percentile(values, 0.99) == 100.0
    assert percentile([7.0], 0.99) == 7.0


def test_latencies_are_named_by_their_share() -> None:
    """Of 0..9999, so that each share is told from its neighbours."""
    values = [float(number) for number in range(10_000)]
    figures = latencies("W2", "a", values, ("p50", "p99.9", "max"))
    assert [(each.name, each.value) for each in figures] == [("p50", 5000.0), ("p99.9", 9990.0), ("max", 9999.0)]


def test_a_rate_counts_records_and_a_throughput_their_bytes() -> None:
    """2000 records of 1000 bytes in half a second; a MB is a million bytes."""
    rate, throughput = publish_figures("W1", "a", count=2000, record_bytes=1000, seconds=0.5)
    assert (rate.value, rate.unit) == (4000.0, "msg/s")
    assert (throughput.value, throughput.unit) == (4.0, "MB/s")


def test_processor_time_is_read_without_the_guests_part() -> None:
    """/proc/stat counts a guest's time within user and nice time already: it must not be counted twice."""
    ticks = Ticks.parse("cpu  100 10 50 700 40 1 2 3 90 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert ticks == Ticks(idle=740, interrupts=3, total=906)


def test_busy_time_is_told_apart_by_whose_it_was() -> None:
    """Of 1000 ticks 400 were idle, 100 interrupts and 300 own: 200 were others'."""
    before, after = Ticks(idle=0, interrupts=0, total=0), Ticks(idle=400, interrupts=100, total=1000)
    assert Busy.between(before, after, own_ticks=300) == Busy(own=0.3, foreign=0.2, total=0.6)


@pytest.mark.parametrize(("elapsed", "own_ticks"), [(0, 0), (10, 50)])
def test_a_short_time_gives_shares_too(elapsed: int, own_ticks: int) -> None:
    """No tick has passed, or more own time was booked than has: shares stay within 0 and 1."""
    busy = Busy.between(Ticks(0, 0, 0), Ticks(0, 0, elapsed), own_ticks=own_ticks)
    assert 0.0 <= busy.own <= 1.0
    assert 0.0 <= busy.foreign <= 1.0


def test_the_load_counts_own_work_as_own() -> None:
    """Compute until the process's own time has moved by a tick; it must show as own."""
    load = Load()
    while (busy := load.busy()).own == 0.0:
        sum(range(100_000))
    assert 0.0 < busy.own <= 1.0


def test_processes_that_still_run_are_counted_with_what_came_from_them() -> None:
    """A child has a child of its own that computes; time must show for both."""
    grandchild = [sys.executable, "-c", "while True: sum(range(100_000))"]
    code = f"import subprocess; p = subprocess.Popen({grandchild!r}); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        try:
            while len([ticks for ticks in ticks_of_descendants(os.getpid()) if ticks > 0]) < 2:
                os.sched_yield()
        finally:
            os.kill(pid, signal.SIGKILL)
