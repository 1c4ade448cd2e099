"""The help of what is run as a module; `tests/tools/test_main.py` has that of mqtool."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["bench", "mirrorlog.spark.jars", "mirrorlog.spark.land", "tests.fuzz.harness", "tests.process.torture"]
)
def test_help_ends_with_an_example_of_its_own_options(module: str) -> None:
    """Goal: help is worth reading. Method: the example is of this module, on one line, and each option that it has is
    explained above."""
    command = [sys.executable, "-m", module, "--help"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    explained, _, example = text.strip().rpartition("\n")
    assert example.startswith(f"Example: python -m {module} ")
    options = [word for word in example.split() if word.startswith("--")]
    assert options
    assert all(f"  {option} " in explained for option in options)
