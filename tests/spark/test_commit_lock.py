"""Commits of several processes to one local table: one at a time, and nobody waits for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlog.spark.errors import LandingConflict
from mirrorlog.spark.landing.commit.delta_log import NAME, one_commit

HOLDER = """
import sys
from mirrorlog.spark.landing.commit.delta_log import one_commit
with one_commit(sys.argv[1]):
    print("has it", flush=True)
    sys.stdin.read()
"""


def test_another_process_that_commits_is_waited_for_and_then_named(tmp_path: Path) -> None:
    """Goal: two drivers never commit in the same moment. A process holds the lock; one that comes is refused in time,
    also when the first one is killed the next one has it at once."""
    table = str(tmp_path / "table")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, table], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "has it\n"
        with (
            pytest.raises(LandingConflict, match="another process has been committing"),
            one_commit(table, wait_s=0.05),
        ):
            pytest.fail("two have it")
        holder.kill()
        holder.wait()
    with one_commit(table, wait_s=5):
        pass
    with one_commit(table, wait_s=0):
        pass


def test_an_error_within_gives_it_back(tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    with pytest.raises(ZeroDivisionError), one_commit(table):
        raise ZeroDivisionError
    with one_commit(table, wait_s=0):
        assert (Path(table) / NAME).exists()


def test_an_object_store_has_no_lock() -> None:
    with one_commit("s3a://nowhere/table", wait_s=0), one_commit("s3a://nowhere/table", wait_s=0):
        pass
