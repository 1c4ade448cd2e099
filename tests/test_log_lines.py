"""What a process writes about itself: one line of text an event, or one JSON object with what the text holds."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from mirrorlog.log_lines import configure_logs, fields_of


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hook = sys.excepthook
    yield
    sys.excepthook = hook
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_an_object_with_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=True, debug=False, node="n1")
    logging.getLogger("mirrorlog.x").info("epoch_began log=%s epoch=%s reason=%r", "main", 7, "it's\nso: \"a\" = 'b'")
    [line] = lines(capsys)
    assert line.pop("ts")[-1] == "Z"
    message = line.pop("message")
    assert message.startswith("epoch_began log=main epoch=7 reason=")
    assert line == {
        "level": "info",
        "logger": "mirrorlog.x",
        "node": "n1",
        "event": "epoch_began",
        "fields": {"log": "main", "epoch": 7, "reason": "it's\nso: \"a\" = 'b'"},
    }


def test_a_traceback_is_inside_its_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=True, debug=False, node="n1")
    try:
        raise ValueError("one\ntwo")
    except ValueError:
        logging.getLogger("x").exception("turn failed")
    [line] = lines(capsys)
    assert line["message"] == "turn failed"
    assert line["traceback"].endswith("ValueError: one\ntwo")
    assert "event" not in line


def test_what_python_says_itself_is_an_object_too(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: nothing on stderr that a collector cannot read. Method: a warning, and what nobody has caught."""
    configure_logs(as_json=True, debug=False, node="n1")
    warnings.warn("old", DeprecationWarning, stacklevel=1)
    sys.excepthook(RuntimeError, RuntimeError("lost"), None)
    told = [(line["level"], line["logger"]) for line in lines(capsys)]
    assert told[-1] == ("critical", "mirrorlog")
    assert all(each == ("warning", "py.warnings") for each in told[:-1])


def test_text_has_who_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(as_json=False, debug=False, node="n1")
    logging.getLogger("x").warning("disk_low free=%s", 5)
    assert capsys.readouterr().err.endswith("Z warning node=n1 disk_low free=5\n")


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("began", {}),
        ("began a= b=-3 c=0x", {"a": "", "b": -3, "c": "0x"}),
        ("began a='x' 'y=z'", {"a": "x", "y": "z'"}),
        ("began a='unended b=1", {"a": "'unended", "b": 1}),
        (r"began a='\xzz' b=2", {"a": r"'\xzz'", "b": 2}),
    ],
)
def test_fields_of_any_text_are_found(message: str, fields: dict[str, str | int]) -> None:
    assert fields_of(message) == fields
