"""Envelopes on a disk that crashes: they stand whole, or not at all."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

import pytest

from tests.crash.life import Story
from tests.crash.rounds import SEED, rounds, run_round

ROUNDS: Final = 40


def with_transactions(story: Story) -> Story:
    return replace(story, transactions=True)


@pytest.mark.long
def test_no_crash_leaves_a_part_of_a_transaction() -> None:
    """Goal: an envelope is found whole, cut whole, and told as lost as a whole. Method: random lives of a master's or a
    mirror's log, of which half are transactions, crashed by kill and power loss, held to the list of what was offered;
    also from within the copying, line by line."""
    counts: Counter[str] = Counter()
    for seed in range(SEED, SEED + rounds(ROUNDS)):
        counts += run_round(seed, bend=with_transactions)
    print(f"seeds from {SEED}: {dict(counts)}")
    assert counts["kill"]
    assert counts["power"]
