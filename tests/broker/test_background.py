"""What a node does in the background may fail; the rest goes on."""

from __future__ import annotations

import logging

import pytest

from mirrorlog.broker.moves.background import BackgroundTicks


def test_a_failure_in_the_background_is_told_once_and_stops_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Goal: the node's clock goes on, and its lines are not flooded. Method: of three ticks the second fails, a
    hundred times in one way and then in another."""
    came: list[tuple[str, float]] = []
    wrong: list[Exception] = [ValueError("odd")]

    def fail(now: float) -> None:
        raise wrong[-1]

    background = BackgroundTicks(
        first=lambda now: came.append(("first", now)), second=fail, third=lambda now: came.append(("third", now))
    )
    with caplog.at_level(logging.DEBUG):
        for now in range(100):
            background.tick(now)
        wrong.append(KeyError("other"))
        background.tick(100)
    assert came == [(name, now) for now in range(101) for name in ("first", "third")]
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [message for level, message in told if level == "ERROR"] == [
        "background_failed what=second error='ValueError: odd'",
        "background_failed what=second error=\"KeyError: 'other'\"",
    ]
    assert [record.exc_info is not None for record in caplog.records] == [False, True, False, True]
