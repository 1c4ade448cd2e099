"""Whoever waits for copies is told when they have moved on, whatever becomes of the others who wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from mirrorlog.config import HaSettings
from mirrorlog.ha.accept import MasteredLog


def test_an_answer_that_cannot_be_made_keeps_no_other_and_no_confirm_back(caplog: pytest.LogCaptureFixture) -> None:
    """It ends in the frame of whoever moved the copies on: a mirror, whose link has no part in it."""
    told: list[object] = []
    copy: Any = SimpleNamespace(
        log=SimpleNamespace(confirmed=0), set_confirmed=lambda at: told.append(("confirmed", at))
    )
    mastership: Any = SimpleNamespace(name="main", progress=SimpleNamespace(confirmed=7))

    def answer(each: Any) -> None:
        if each == "bad":
            raise ValueError("no such frame")
        told.append(each)

    mastered = MasteredLog(
        log_id=UUID(int=1), copy=copy, mastership=mastership, settings=HaSettings(),
        answer=answer,
    )  # fmt: skip
    answers: Any = ["first", "bad", "last"]
    mastered.progressed(answers)
    assert told == ["first", "last", ("confirmed", 7)]
    assert "answer_failed log=main" in caplog.text
