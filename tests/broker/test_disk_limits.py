"""The two watermarks of a disk: what is low and full on disks of any size, and that states do not flutter."""

from __future__ import annotations

import random

import pytest

from mirrorlog.broker.resources.disk_limits import DiskLimits, DiskReport, DiskSpace, DiskState
from mirrorlog.config import LogSettings

MIB = 1024**2
GIB = 1024**3
TIB = 1024**4


@pytest.mark.parametrize(
    ("size_bytes", "segment_bytes", "low_bytes", "full_bytes"),
    [
        # Shares of a common disk; a number of bytes on a huge one; on a small one what the next segment needs.
        (100 * GIB, GIB, 10 * GIB, 2 * GIB),
        (100 * TIB, GIB, 32 * GIB, 4 * GIB),
        (10 * GIB, GIB, GIB, 10 * GIB // 50),
        (50 * MIB, MIB, 5 * MIB, MIB),
        (0, MIB, 0, 0),
    ],
)
def test_a_limit_is_a_share_and_never_more_than_so_many_bytes(
    size_bytes: int, segment_bytes: int, low_bytes: int, full_bytes: int
) -> None:
    """By the defaults, for a disk of each size."""
    limits = DiskLimits.of(LogSettings(segment_bytes=segment_bytes), size_bytes)
    assert limits == DiskLimits(low_bytes=low_bytes, full_bytes=full_bytes)


def test_zero_percent_is_no_limit() -> None:
    """Goal: the watch can be switched off. A disk without a free byte, under no limits, is as good as any."""
    settings = LogSettings(disk_low_percent=0, disk_full_percent=0)
    limits = DiskLimits.of(settings, TIB)
    assert limits.judge(0, DiskState.OK) is DiskState.OK
    only_full = DiskLimits.of(LogSettings(disk_low_percent=0, disk_full_percent=0, disk_full_bytes=0), TIB)
    assert only_full == limits


def test_a_state_gets_worse_at_its_limit_and_better_a_quarter_above() -> None:
    """Walk down and up again over each limit."""
    limits = DiskLimits(low_bytes=1000, full_bytes=100)
    state = DiskState.OK
    seen = []
    for free in (1001, 1000, 999, 1000, 1249, 100, 99, 100, 124, 125, 1249, 1250, 99, 1250):
        state = limits.judge(free, state)
        seen.append((free, state.value))
    assert seen == [
        (1001, "ok"),
        (1000, "ok"),
        (999, "low"),
        (1000, "low"),
        (1249, "low"),
        (100, "low"),
        (99, "full"),
        (100, "full"),
        (124, "full"),
        (125, "low"),
        (1249, "low"),
        (1250, "ok"),
        (99, "full"),
        (1250, "ok"),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_space_that_comes_and_goes_by_less_than_a_quarter_changes_the_state_once(seed: int) -> None:
    """Goal: no line in the log for each file that comes and goes. Random free space around either limit."""
    rng = random.Random(seed)
    limits = DiskLimits(low_bytes=1000, full_bytes=100)
    for limit in (1000, 100):
        state = DiskState.OK
        changes = 0
        for _ in range(1000):
            now = limits.judge(rng.randint(limit - 20, limit + limit // 4 - 1), state)
            changes += now is not state
            state = now
        assert changes <= 2, seed


def test_a_report_says_what_is_wrong_and_what_may_be_taken() -> None:
    """One report of each state: its warning, its refusal, and the bytes for data."""
    limits = DiskLimits(low_bytes=1000, full_bytes=100)
    ok, low, full = (
        DiskReport(state, DiskSpace(5000, free), limits)
        for state, free in ((DiskState.OK, 2000), (DiskState.LOW, 600), (DiskState.FULL, 60))
    )
    assert (ok.warning, ok.refusal, ok.allowed_bytes) == ("", "", 1900)
    assert (low.refusal, low.allowed_bytes) == ("", 500)
    assert [report.allowed_to_mirror_bytes for report in (ok, low, full)] == [1975, 575, 35]
    assert DiskReport(DiskState.FULL, DiskSpace(5000, 20), limits).allowed_to_mirror_bytes == 0
    assert low.warning.startswith("the disk is low: 600 of 5000 bytes are free, below the 1000")
    assert full.allowed_bytes == 0
    assert full.warning == full.refusal
    assert "log.disk_full_percent" in full.refusal
    assert "nothing was stored" in full.refusal


def test_former_copies_are_named_where_space_is_wanted() -> None:
    """Goal: who must free space learns of what nobody may need. A low and a full disk with two and with five."""
    limits = DiskLimits(low_bytes=1000, full_bytes=100)
    for state, free in ((DiskState.LOW, 600), (DiskState.FULL, 60)):
        few = DiskReport(state, DiskSpace(5000, free), limits, ("logs/a.aside-1", "logs/b.aside-7"))
        assert few.warning.endswith("free space on it, perhaps of former copies that were set aside: "
                                    "logs/a.aside-1, logs/b.aside-7")  # fmt: skip
        many = DiskReport(state, DiskSpace(5000, free), limits, tuple("abcde"))
        assert many.warning.endswith("a, b, c and 2 more")
