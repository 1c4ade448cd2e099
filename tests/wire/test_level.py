"""Confirm levels as people write them."""

from __future__ import annotations

import pytest

from mirrorlog.errors import BadRequest
from mirrorlog.wire.frames import Level


@pytest.mark.parametrize(
    ("text", "level"),
    [("none", 0), ("master", 1), ("one", 2), ("majority", 254), ("all", 255), ("3", 3), ("253", 253), (7, 7)],
)
def test_names_and_numbers_of_copies(text: str | int, level: int) -> None:
    """Parse each name, and numbers as text and as they are."""
    assert Level.parse(text) == level


@pytest.mark.parametrize(
    "text", ["", "ALL", "most", "-1", "1.5", "254", "255", "256", "²", "٣", "0x3", "9" * 5000, " 3", -1, 256, 10**30]
)
def test_anything_else_is_refused(text: str | int) -> None:
    """Parse what is no level: one error that names the levels; 254 and 255 are names on the wire, not numbers of
    copies."""
    with pytest.raises(BadRequest, match="is none of none, master, one, majority, all, nor a number of copies"):
        Level.parse(text)
