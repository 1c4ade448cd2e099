"""The command line of the measurements."""

from __future__ import annotations

import re

from bench import cli
from tests.outputs import closed_pipe, full_disk, needs_full, run_into


def test_a_list_that_nobody_reads_ends_quietly() -> None:
    """Goal: `python -m bench --list | head` ends as other commands do. Method: a pipe that is closed from the start."""
    assert run_into(closed_pipe(), "bench", "--list") == (1, "")


@needs_full
def test_a_list_into_a_full_file_is_one_line() -> None:
    """Goal: no traceback for a full disk. Method: a file that takes nothing."""
    assert run_into(full_disk(), "bench", "--list") == (1, "error: cannot write the output: No space left on device\n")


def test_the_example_of_the_help_parses() -> None:
    """Goal: help is worth reading. Method: find the example, parse it, and choose by it."""
    example = re.search(r"Example: python -m bench ([^\n]+)", cli.parser().format_help())
    assert example is not None
    options = cli.parser().parse_args(example.group(1).split())
    assert cli.chosen(cli.registry.select(quick=True, peers=False, everything=False), options.only)
