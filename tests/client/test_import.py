"""The client comes alone: without what nodes, doors, tools and Spark need."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

TOLD = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
MODULES = {"grpcio": "grpc", "grpcio-health-checking": "grpc_health", "grpcio-reflection": "grpc_reflection",
           "grpcio-status": "grpc_status", "prometheus-client": "prometheus_client", "protobuf": "google"}  # fmt: skip
OWN_MODULES_MAX = 59
LATE = {"argparse", "crcmod", "dataclasses", "importlib.metadata", "ipaddress", "pathlib", "secrets", "urllib.parse"}
"""Of Python and of what the client depends on: each a hundredth of the import, or a sixth, for what few need."""
BLOCKING = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {without!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
"""


def without(names: set[str], program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKING.format(without=names) + program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def modules_of(*extras: str) -> set[str]:
    named = [Requirement(each).name for extra in extras for each in TOLD["optional-dependencies"][extra]]
    return {MODULES.get(name, name.replace("-", "_")) for name in named} - {"mirrorlog", "delta_spark"}


def test_the_client_is_imported_without_what_is_an_extra() -> None:
    """Goal: `pip install mirrorlog` is enough for a program. Method: a fresh interpreter to which no package of the
    extras is there; the client, its events and its errors are imported, and nothing that computes on its own."""
    program = "import mirrorlog.client.sync, mirrorlog.client.events, mirrorlog.errors; print(*sys.modules)"
    result = without(modules_of("node", "spark"), program)
    assert result.returncode == 0, result.stderr
    loaded = set(result.stdout.split())
    assert not loaded & {"tomllib", "mirrorlog.config.sections", "mirrorlog.broker"}
    assert len(loaded) < 600


def test_an_import_loads_what_a_client_needs_and_no_more() -> None:
    """Goal: a program, a shell or a notebook has its client in a fifth of a second. Method: a fresh interpreter imports
    one; what takes long is not loaded, and so few files of this package that one more is thought about."""
    program = "import sys; from mirrorlog.client.sync import Client; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(result.stdout.split())
    late = {"numpy", "lz4", "zstandard", "pyarrow", "pydantic", "opentelemetry", *LATE, *modules_of("node")}
    assert not loaded & late
    own = {name for name in loaded if name.partition(".")[0] == "mirrorlog"}
    assert not own & {"mirrorlog.client.admin", "mirrorlog.wire.messages.operators", "mirrorlog.wire.messages.status"}
    assert len(own) <= OWN_MODULES_MAX


@pytest.mark.parametrize("command", ["mqnode", "mqtool"])
def test_a_command_whose_packages_are_missing_says_what_to_install(command: str) -> None:
    result = without({"typer"}, f"from mirrorlog.commands import {command}; {command}()")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"{command} needs typer: pip install 'mirrorlog[node]'\n"


def test_tests_of_users_whose_packages_are_missing_say_what_to_install() -> None:
    result = without(modules_of("node"), "import mirrorlog.testing")
    lines = result.stderr.splitlines()
    assert re.fullmatch(
        r"ModuleNotFoundError: mirrorlog\.testing needs \w+: pip install 'mirrorlog\[node\]'", lines[-1]
    )
    assert "exception" not in result.stderr  # neither what it was made of, nor one more
