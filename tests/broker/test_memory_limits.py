"""The watermark of memory: what a node may hold on machines of any size, whoever fills them, and no flutter."""

from __future__ import annotations

import pytest

from mirrorlog.broker.resources.memory_limits import MemoryLimits, MemoryReport, MemoryState, MemoryUse
from mirrorlog.config import LimitSettings

MIB = 1024**2
GIB = 1024**3


@pytest.mark.parametrize(
    ("use", "memory_bytes", "high_bytes"),
    [
        # Alone on a machine; one whose neighbours leave little; above what is free; with a smaller or larger setting.
        (MemoryUse(GIB, 10 * GIB, 9 * GIB), None, 7 * GIB),
        (MemoryUse(GIB, 10 * GIB, GIB), None, 14 * GIB // 10),
        (MemoryUse(GIB, 10 * GIB, 0), None, 7 * GIB // 10),
        (MemoryUse(GIB, 10 * GIB, 9 * GIB), 100 * MIB, 70 * MIB),
        (MemoryUse(GIB, 10 * GIB, 9 * GIB), 100 * GIB, 7 * GIB),
    ],
)
def test_a_node_may_hold_a_share_of_what_others_leave_it(
    use: MemoryUse, memory_bytes: int | None, high_bytes: int
) -> None:
    """By the default share, for each use."""
    assert MemoryLimits.of(LimitSettings(memory_bytes=memory_bytes), use).high_bytes == high_bytes


def test_it_is_high_at_one_limit_and_ok_below_the_other() -> None:
    """Walk up and down again over both."""
    limits, state, seen = MemoryLimits(high_bytes=100, low_bytes=80), MemoryState.OK, []
    for used in (79, 99, 100, 99, 80, 79, 99, 101):
        state = limits.judge(used, state)
        seen.append((used, state.value))
    assert seen == [
        (79, "ok"), (99, "ok"), (100, "high"), (99, "high"), (80, "high"), (79, "ok"), (99, "ok"), (101, "high"),
    ]  # fmt: skip


def test_zero_percent_is_no_limit() -> None:
    """Goal: it can be switched off. A machine without a free byte, under no limit, is as good as any."""
    limits = MemoryLimits.of(LimitSettings(memory_high_percent=0), MemoryUse(GIB, GIB, 0))
    assert limits.judge(GIB, MemoryState.OK) is MemoryState.OK


def test_a_refusal_names_the_settings_and_says_that_nothing_was_stored() -> None:
    limits, use = MemoryLimits(high_bytes=100, low_bytes=80), MemoryUse(120, 1000, 10)
    assert MemoryReport(MemoryState.OK, use, limits).refusal == ""
    refusal = MemoryReport(MemoryState.HIGH, use, limits).refusal
    for word in ("120", "100", "80", "limits.memory_high_percent", "limits.memory_low_percent", "nothing was stored"):
        assert word in refusal
