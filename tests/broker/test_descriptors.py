"""How many connections so many open files are."""

from __future__ import annotations

import pytest

from mirrorlog.broker.resources.descriptors import capped, fitted
from mirrorlog.config import LimitSettings
from mirrorlog.wire.listening import DROPPED_MAX

DEFAULTS = LimitSettings()


@pytest.mark.parametrize("files", [64, 256, 1_024, 4_096, 10_000, 65_536, 1 << 20])
def test_places_leave_descriptors_for_files(files: int) -> None:
    """Goal: connections alone never use up the files. Method: for limits from tiny to none, take every place of both
    ports; at least a quarter, or a thousand, stay for segments, indexes, links and doors."""
    fits = fitted(DEFAULTS, files)
    most = fits.max_connections + fits.max_links + 2 * (fits.max_strangers + DROPPED_MAX)
    assert most <= max(files - min(1024, files // 4), 100)
    assert 1 <= fits.max_connections <= DEFAULTS.max_connections
    assert fits.max_strangers_per_address < fits.max_strangers or files < 100


def test_what_is_lower_than_the_settings_ask_for_is_named() -> None:
    """At a thousand files all is lower; with as many as a service usually gets, nothing."""
    assert set(capped(DEFAULTS, fitted(DEFAULTS, 1_024))) == {
        "max_connections", "max_links", "max_strangers", "max_strangers_per_address",
    }  # fmt: skip
    assert fitted(DEFAULTS, 1_024).max_connections > 400
    assert capped(DEFAULTS, fitted(DEFAULTS, 65_536)) == {}
    assert set(capped(LimitSettings(max_connections=100), fitted(LimitSettings(max_connections=100), 4_096))) == {
        "max_links", "max_strangers",
    }  # fmt: skip
