"""Commands that need Spark: this program becomes the module that does the work.

So the tool itself starts fast, and its other commands work where there is no Spark.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence

import typer

from mirrorlog.errors import MissingDependency
from mirrorlog.tools.session import session_of


def become(module: str, arguments: Sequence[str], *, what: str) -> None:
    """Run `python -m module` with `arguments` in place of this process. Raises MissingDependency without Spark.

    `what`: the work, for the message.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise MissingDependency(f"{what} needs Spark: pip install 'mirrorlog[spark]'")
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def given(option: str, value: object) -> Iterator[str]:
    """The option with its value, as arguments; nothing for None."""
    if value is not None:
        yield from (option, str(value))


def nodes_of(context: typer.Context) -> Iterator[str]:
    """The global options that say where the nodes are, as they were given: a context of TLS cannot be handed on."""
    yield from ("--servers", ",".join(session_of(context).servers))
    values = context.parent.params if context.parent is not None else {}
    for name in ("tls_ca", "tls_cert", "tls_key"):
        yield from given(f"--{name.replace('_', '-')}", values.get(name))
