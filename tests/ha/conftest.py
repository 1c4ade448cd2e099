from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ha.links import Pair, open_pair
from tests.ha.world import World


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    """A master with one epoch and an empty mirror."""
    both = open_pair(tmp_path)
    yield both
    both.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A master and two mirrors that have joined it."""
    three = World(tmp_path, mirrors=2)
    three.settle()
    yield three
    three.close()
