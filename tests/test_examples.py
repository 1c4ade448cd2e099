"""The help of what is run as a module; `tests/tools/test_main.py` has that of mqtool.

Examples of Spark's commands, also of mqtool's and in the manual, are tried: they must parse.
"""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from mirrorlog.spark.landing.command import landings_of
from mirrorlog.tools import landing
from mirrorlog.tools.main import app

JOBS = {job.name: job for job in landing.JOBS}
"""mqtool's commands that become a module, by name."""

SPARK = {
    **{job.module: job.module for job in JOBS.values()},
    "mirrorlog.spark.land": "mirrorlog.spark.landing.command",
    "mirrorlog.spark.analysis": "mirrorlog.spark.analysis.__main__",
    "mirrorlog.spark.jars": "mirrorlog.spark.jars",
    "mirrorlog.spark.py_files": "mirrorlog.spark.py_files",
}
"""Where the parser is, by the module that is run."""

MANUAL = Path(__file__).parent.parent / "docs" / "land"


@pytest.mark.parametrize(
    "module",
    [*("bench", "tests.fuzz.harness", "tests.process.torture"), *SPARK],
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
    if module in SPARK:
        refuse_nonsense(module, example.partition(f" -m {module} ")[2])


def refuse_nonsense(module: str, arguments: str) -> None:
    """Fail when the module would refuse the arguments before it does anything."""
    options = importlib.import_module(SPARK[module]).parser().parse_args(shlex.split(arguments))
    if module == "mirrorlog.spark.land" and options.config is None:
        landings_of(options)


def mqtools_examples() -> list[tuple[str, str]]:
    """Commands that become a module, with the arguments of each example in their help."""
    found = []
    for name, job in JOBS.items():
        examples = re.findall(rf"Example: mqtool {name} (.+)", job.help)
        found += [(name, example) for example in examples]
    return found


@pytest.mark.parametrize(("name", "arguments"), mqtools_examples())
def test_an_example_of_mqtools_is_one_of_the_module(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what the help shows works. The arguments that mqtool becomes the module with are what its parser takes."""
    became: list[list[str]] = []

    def execve(program: str, command: list[str], environment: dict[str, str]) -> None:
        became.append(command)

    monkeypatch.setattr("mirrorlog.tools.landing.os", SimpleNamespace(environ={}, execve=execve))
    app([name, *shlex.split(arguments)], prog_name="mqtool", standalone_mode=False)
    ((_, _, module, *given),) = became
    assert module == JOBS[name].module
    refuse_nonsense(module, shlex.join(given))


def test_each_of_mqtools_jobs_has_an_example() -> None:
    """Goal: the test above misses none."""
    assert {name for name, _ in mqtools_examples()} == set(JOBS)


def manuals_commands() -> list[tuple[str, str]]:
    """The module and the arguments of each line of a job in the manual, without its comment."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(MANUAL.glob("*.md"))).replace("\\\n", " ")
    called = re.findall(rf"^ +(?:\$ )?mqtool ({'|'.join(JOBS)}) ([^#\n]*)", text, re.MULTILINE)
    run = re.findall(r"^ +(?:\$ )?python -m (mirrorlog\.spark[\w.]*)([^#\n]*)", text, re.MULTILINE)
    return [*((JOBS[name].module, rest) for name, rest in called), *run]


@pytest.mark.parametrize(("module", "arguments"), sorted(set(manuals_commands())))
def test_a_command_in_the_manual_parses(module: str, arguments: str) -> None:
    """Goal: the manual can be copied from."""
    refuse_nonsense(module, arguments)


def test_the_manual_shows_landing_and_checking() -> None:
    """Goal: the test above finds lines at all."""
    assert {"mirrorlog.spark.land", "mirrorlog.spark.reconcile"} <= {module for module, _ in manuals_commands()}
