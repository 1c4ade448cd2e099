"""The demo removes only what an earlier demo made and nobody uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.main_job import make_empty
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.errors import MirrorlogError


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """A directory with a file in it that no demo made."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(MirrorlogError, match="no demo's"):
        make_empty(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def test_an_earlier_demo_is_removed_unless_its_nodes_run(tmp_path: Path) -> None:
    """Made, filled, held by a lock as a running node holds it, let go."""
    directory = tmp_path / "demo"
    make_empty(directory)
    lock = directory / "nodes" / "n1" / "lock"
    lock.parent.mkdir(parents=True)
    held = OS_FILES.lock(lock, b"77\n")
    with pytest.raises(MirrorlogError, match="kill 77"):
        make_empty(directory)
    assert lock.exists()
    held.close()
    make_empty(directory)
    assert not lock.exists()
