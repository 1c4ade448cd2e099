"""Where the output goes may be closed, or full: no traceback, and no word about the disk that was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outputs import closed_pipe, full_disk, needs_full, run_into
from tests.tools.logs import make_log


@pytest.mark.long_after(1)
@pytest.mark.parametrize("options", [(), ("--records",), ("--json",)])
def test_a_dump_that_nobody_reads_ends_quietly(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Goal: `mqtool dump … | head` says nothing of a disk. Method: a pipe that is closed from the start; with the two
    options every line is written inside of the walk over the log."""
    make_log(tmp_path)
    assert run_into(closed_pipe(), "mirrorlog.tools.main", "dump", str(tmp_path), *options) == (1, "")


@pytest.mark.long_after(1)
@needs_full
@pytest.mark.parametrize("command", [("dump", "DIR"), ("dump", "DIR", "--records"), ("verify", "DIR"), ("--help",)])
def test_an_output_that_is_full_is_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Goal: a full disk behind `> file` is told as that. Method: commands that write line by line and all at once."""
    make_log(tmp_path)
    arguments = [str(tmp_path) if each == "DIR" else each for each in command]
    code, told = run_into(full_disk(), "mirrorlog.tools.main", *arguments)
    assert (code, told) == (1, "mqtool: cannot write the output: No space left on device\n")
