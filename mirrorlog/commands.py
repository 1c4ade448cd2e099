"""What `mqnode` and `mqtool` begin with: the Python client alone is installed without what these need."""

from __future__ import annotations

import sys
from importlib import import_module


def mqnode() -> None:
    """Run a node."""
    _run("mirrorlog.broker.main", "mqnode")


def mqtool() -> None:
    """Run one of the operator's commands."""
    _run("mirrorlog.tools.main", "mqtool")


def _run(module: str, command: str) -> None:
    try:
        main = import_module(module).main
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "mirrorlog"):
            raise
        sys.exit(f"{command} needs {missing}: pip install 'mirrorlog[node]'")
    main()
