"""Whole Raft clusters in virtual time, with faults at random: nothing that was chosen changes, and all agree again."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from sim.raft_run import run
from tests.cluster.raft_bugs import BUGS

SCHEDULES: Final = 40
EXPECTED: Final = {
    "kill", "power loss", "blink", "start", "pause", "partition", "one-way cut", "bad weather", "late messages",
    "longer way", "slow disk", "hand over", "stranded leader", "split", "member added", "member promoted",
    "member removed", "snapshot taken", "snapshot installed", "crash in a bundle", "told of a death", "lost", "doubled",
    "late", "cut", "read", "confirmed",
}  # fmt: skip
"""What the schedules together must have gone through."""
SEEDS_TO_FIND: Final = 400


def test_nothing_chosen_is_lost_and_peace_brings_agreement() -> None:
    """By schedules of all kinds of storm; every kind of fault and every rare path is among them."""
    seen: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        try:
            seen += run(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert set(seen) >= EXPECTED, EXPECTED - set(seen)


@pytest.mark.long_after(1)
@pytest.mark.parametrize("name", BUGS)
def test_a_seeded_bug_is_found(name: str) -> None:
    """So the checks can fail: each of these breaks one rule of the algorithm, in a schedule that is fine without it."""
    bug = BUGS[name]
    for seed in range(SEEDS_TO_FIND):
        try:
            run(f"{name} {seed}", kind=bug.kind, make_raft=bug.make_raft, hasty=bug.hasty)
        except AssertionError:
            run(f"{name} {seed}", kind=bug.kind)
            return
    pytest.fail(f"not found in {SEEDS_TO_FIND} schedules")
