"""The short form of `torture`, with fixed seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.torture import Torture, torture_cluster


@pytest.mark.parametrize(("flush", "seed", "seconds"), [("memory", 20260701, 12), ("disk", 20260702, 8)])
def test_random_deaths_lose_and_double_nothing(tmp_path: Path, flush: str, seed: int, seconds: int) -> None:
    """Goal: whatever dies when, copies end equal and every record is there once. Method: kill, stop and pause nodes
    drawn from the seed under two loads for some seconds, then compare all bytes and all records."""
    with torture_cluster(tmp_path, flush=flush) as cluster:
        cluster.wait_in_sync()
        torture = Torture(cluster, seed=seed, report=print)
        torture.run(seconds=seconds)
    assert len(torture.done) >= 3
