"""Every feature of queues, over one, two and three copies, through every kind of restart.

All features are on one cluster at once, each with queues of its own. Two columns run always; all others are marked
`slow`, and take minutes together: `pytest -m slow`.
"""

from __future__ import annotations

import random

import pytest

from tests.process.matrix.columns import COLUMNS, SHORT, Column
from tests.process.matrix.frame import failures_of
from tests.process.matrix.rows import ROWS

_CASES = [pytest.param(column, id=str(column), marks=() if column in SHORT else pytest.mark.slow) for column in COLUMNS]


@pytest.mark.long_after(1)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("column", _CASES)
async def test_every_feature_keeps_its_promises_through_a_restart(column: Column) -> None:
    """Goal: what docs/use promises holds behind a restart as before it. Method: half of each feature before, half
    behind it, with subscriptions that stay open; each failure is named by feature and column."""
    seed = random.randrange(2**32)
    failures, logs = await failures_of(column, ROWS, seed=seed)
    told = [f"{len(failures)} of {len(ROWS)} features failed, seed {seed}:", *failures, logs]
    assert not failures, "\n".join(told)
