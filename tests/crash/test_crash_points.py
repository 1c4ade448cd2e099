"""Thousands of crashes of a real log on a simulated disk, each recovered and held to an oracle.

    MIRRORLOG_SEED=7 MIRRORLOG_ROUNDS=20000 pytest tests/crash/test_crash_points.py

runs 20,000 rounds from that seed on, each with the next one, and adds what they checked to `.build/crash/totals.json`;
without MIRRORLOG_ROUNDS nothing is added up. What fails names the seed that repeats it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.rounds import SEED, rounds, run_round
from tests.totals import add_run

ROUNDS = 55
TOTALS = Path(".build/crash/totals.json")


@pytest.mark.long
@pytest.mark.timeout(0)
def test_every_crash_point_keeps_what_was_flushed_and_shows_nothing_else() -> None:
    """Goal: crash consistency. Random lives of a master's or a mirror's log, crashed by kill and power loss at file
    operations, lines and inside copies; with failing disks and flipped bits, in recovery too."""
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for seed in range(SEED, SEED + rounds(ROUNDS)):
        counts += run_round(seed)
    lives, sealed = counts.pop("lives"), counts.pop("sealed")
    points = counts.total() - counts["copying"] - counts["past"]
    seconds = time.monotonic() - started
    rate = points / seconds
    print(f"seeds from {SEED}: {lives} lives, {points} crash points, {rate:.0f}/s, {sealed} sealed: {dict(counts)}")
    if "MIRRORLOG_ROUNDS" in os.environ:
        add_run(
            TOTALS,
            counts={**counts, "rounds": rounds(ROUNDS), "lives": lives, "points": points, "sealed": sealed},
            seconds=seconds,
            seed=SEED,
        )
    if rounds(ROUNDS) >= ROUNDS:
        assert points > 10 * ROUNDS
        assert min(sealed, counts["past"]) > 10
        assert min(counts[kind] for kind in ("kill", "power", "nested", "faulty recovery", "flip below flushed")) > 5


def test_a_seed_is_a_replay() -> None:
    """Goal: what a seed found can be found again. Run one twice and compare what was checked."""
    assert run_round(SEED) == run_round(SEED)
