"""Commands that need Spark: this program becomes the module that does the work.

So the tool itself starts fast, and its other commands work where there is no Spark. What is given to such a command
goes to the module as it is, so each option is written down once, there; for the command's help the module is asked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import typer
from typer.core import TyperCommand

from mirrorlog.errors import MissingDependency
from mirrorlog.tools.session import session_of

PROGRAM_VARIABLE: Final = "MIRRORLOG_PROGRAM"
"""By it a module knows how the user called it, for its help and its errors."""

_PASSED_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}
_NODES: Final = ("servers", "tls_ca", "tls_cert", "tls_key")
_HELP_TIMEOUT_S: Final = 60
# Of argparse's help, what stands between the description and the example.
_OPTIONS: Final = re.compile(r"^(?:positional arguments|options):\n.*(?=^Example: )", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class SparkJob:
    """`module`: what is run; `what`: the work, for messages; `usage`: its arguments, in short."""

    module: str
    what: str
    usage: str = "[OPTIONS]"


def add_job(app: typer.Typer, function: Callable[[typer.Context], None], job: SparkJob) -> None:
    """Make `function`, which becomes `job`, a command of `app` whose help has the options of the module."""

    class JobCommand(TyperCommand):
        def format_options(self, ctx: Any, formatter: Any) -> None:
            formatter.write("\n")
            formatter.write(_options_of(job, ctx.command_path))

    app.command(cls=JobCommand, options_metavar=job.usage, context_settings=_PASSED_ON)(function)


def become(context: typer.Context, job: SparkJob) -> None:
    """Run the module in place of this process, with what was given to the command and, of the global options, those
    that were given on the command line; the others' variables are known there too. Raises MissingDependency without
    Spark."""
    _refuse_without_spark(job)
    arguments = [*_nodes(context), *(["--debug"] if session_of(context).debug else ()), *context.args]
    sys.stdout.flush()
    command = [sys.executable, "-m", job.module, *arguments]
    os.execve(sys.executable, command, {**os.environ, PROGRAM_VARIABLE: context.command_path})


def _refuse_without_spark(job: SparkJob) -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency(f"{job.what} needs Spark: pip install 'mirrorlog[spark]'")


def _nodes(context: typer.Context) -> Iterator[str]:
    """Where the nodes are, as it was given: a context of TLS cannot be handed on, and a default is no wish."""
    parent = context.parent
    for name in _NODES:
        source = None if parent is None else parent.get_parameter_source(name)
        if parent is not None and source is not None and source.name == "COMMANDLINE":
            yield from (f"--{name.replace('_', '-')}", str(parent.params[name]))


def _options_of(job: SparkJob, program: str) -> str:
    """As the module's own help explains them."""
    try:
        _refuse_without_spark(job)
    except MissingDependency as error:
        return f"The options are told where Spark is installed: {error}\n"
    command = [sys.executable, "-m", job.module, "--help"]
    environment = {**os.environ, PROGRAM_VARIABLE: program}
    told = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_HELP_TIMEOUT_S, check=False
    )
    found = _OPTIONS.search(told.stdout)
    return f"{found.group().rstrip()}\n" if found else f"See: {' '.join(command[1:])}\n"
