"""Every line of a package as a point at which the process may die.

File operations are seen by the simulated disk; stores into mapped memory are not. Between two lines of the log at most
one copy was made, so what changed from one line to the next is a copy that a kill can tear.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import mirrorlog.commitlog

_PACKAGE = str(Path(mirrorlog.commitlog.__file__).parent)


@contextmanager
def watching_lines(on_line: Callable[[], None]) -> Iterator[None]:
    """Call `on_line` before each line of the log's package that is executed inside."""

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        return at_line if frame.f_code.co_filename.startswith(_PACKAGE) else None

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            on_line()
        return at_line

    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def unwatched() -> Iterator[None]:
    """Nothing inside is watched."""
    before = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(before)
