"""The short form of `torture`, with fixed seeds, and how the long form counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.torture import PIECE_ROUNDS, Torture, next_seed, pieces, torture_cluster
from tests.totals import add_run, runs_of


@pytest.mark.long
@pytest.mark.parametrize(("flush", "seed"), [("memory", 20260716), ("disk", 20260718)])
def test_random_deaths_lose_and_double_nothing(tmp_path: Path, flush: str, seed: int) -> None:
    """Goal: whatever dies when, copies end equal and every record is there once. Method: kill, stop and pause nodes
    drawn from the seed under two loads, then compare all bytes and all records."""
    kept_mapped_bytes = 0 if flush == "memory" else None
    with torture_cluster(tmp_path, flush=flush, kept_mapped_bytes=kept_mapped_bytes) as cluster:
        cluster.wait_in_sync()
        torture = Torture(cluster, seed=seed, report=print)
        torture.run(rounds=4)
    assert torture.counts["rounds"] == len(torture.done) == 4
    assert torture.counts["epochs"] > 1, "nobody was promoted"
    assert torture.counts["checks"] >= 6
    assert torture.counts["confirmed_batches"] > 0


def test_the_long_form_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Goal: pieces add up. Plan some rounds, add two runs, ask for the next seed and the sums."""
    totals = tmp_path / "torture" / "totals.json"
    first = next_seed(totals)
    plan = pieces(2 * PIECE_ROUNDS + 3, first, None)
    assert [piece.rounds for piece in plan] == [PIECE_ROUNDS, PIECE_ROUNDS, 3]
    assert {piece.flush for piece in plan} == {"memory", "disk"}
    assert {piece.flush for piece in pieces(100, 1, "disk")} == {"disk"}
    for piece in plan[:2]:
        sums = add_run(totals, counts={"rounds": piece.rounds, "kills": 4}, seconds=1.5, **piece._asdict())
    assert sums == {"rounds": 2 * PIECE_ROUNDS, "kills": 8}
    assert next_seed(totals) == plan[2].seed
    assert [run["seed"] for run in runs_of(totals)] == [plan[0].seed, plan[1].seed]
