"""Outputs that take nothing, and commands that write to them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

FULL: Final = Path("/dev/full")

needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")


def closed_pipe() -> int:
    """The writing end of a pipe that nobody reads any more."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def full_disk() -> int:
    """A file that takes no byte."""
    return os.open(FULL, os.O_WRONLY)


def run_into(stdout: int, module: str, *arguments: str) -> tuple[int, str]:
    """(exit code, stderr) of `python -m module`, which writes to `stdout`; that is closed then."""
    command = [sys.executable, "-m", module, *arguments]
    try:
        ended = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(stdout)
    return ended.returncode, ended.stderr
