"""Commands of mqtool that become a module: what is given goes there, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from mirrorlog.errors import MissingDependency
from mirrorlog.tools import landing as spark_job
from mirrorlog.tools.main import app, main

Call = Callable[..., list[str]]


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs mqtool with arguments; the program that it became, from the module on, with how it was called in front."""
    found: list[list[str]] = []

    def execve(program: str, command: list[str], environment: dict[str, str]) -> None:
        assert command[:2] == [program, "-m"]
        found.append([environment[spark_job.PROGRAM_VARIABLE], *command[2:]])

    environ = {"MIRRORLOG_SERVERS": "of-the-environment:1"}
    monkeypatch.setattr(spark_job, "os", SimpleNamespace(environ=environ, execve=execve))
    monkeypatch.setenv("MIRRORLOG_SERVERS", "of-the-environment:1")

    def call(*arguments: str) -> list[str]:
        found.clear()
        app(list(arguments), prog_name="mqtool", standalone_mode=False)
        return found[0]

    return call


def test_every_option_goes_to_the_module_as_it_is(became: Call) -> None:
    """Goal: no list of options is kept twice. Options that mqtool itself knows nothing of, in their order."""
    words = ["q", "--table", "t", "--bucket", "7", "--read-from", "n1", "--set", 'a=["b c"]', "--from", "-5", "--json"]
    assert became("reconcile", *words) == ["mqtool reconcile", "mirrorlog.spark.reconcile", *words]
    pattern = ["--to", "T", "--set", "queue_pattern=x"]
    assert became("land", *pattern) == ["mqtool land", "mirrorlog.spark.land", *pattern]


def test_global_options_go_there_when_they_are_given(became: Call) -> None:
    """Goal: a default, or a variable, is no wish: a file of landings names its own servers. Given options go in front,
    so that those of the command win."""
    assert became("land", "--config", "f") == ["mqtool land", "mirrorlog.spark.land", "--config", "f"]
    given = became("--debug", "--servers", "b:2,c:3", "audit", "q")
    assert given == ["mqtool audit", "mirrorlog.spark.audit", "--servers", "b:2,c:3", "--debug", "q"]


def test_tls_is_handed_on_as_files(became: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the module makes a context of its own. All three files."""
    monkeypatch.setattr("mirrorlog.tools.main.tls_of", lambda *files: None)
    files = ["--tls-ca", "ca", "--tls-cert", "cert", "--tls-key", "key"]
    assert became(*files, "audit", "q") == ["mqtool audit", "mirrorlog.spark.audit", *files, "q"]


def test_without_spark_it_says_what_to_install(
    became: Call, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: the tool works where there is no Spark, and so does help."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main(["upkeep", "--table", "t"])
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (MissingDependency.exit_code, 1)
    assert "pip install 'mirrorlog[spark]'" in told
    shown = CliRunner().invoke(app, ["upkeep", "--help"])
    assert shown.exit_code == 0
    assert "Example: mqtool upkeep" in shown.stdout
    assert "pip install 'mirrorlog[spark]'" in shown.stdout


def test_help_has_the_modules_options_and_one_example_of_its_own() -> None:
    """Goal: one look tells all of it. The options that only the module knows are there, its example is not."""
    shown = CliRunner().invoke(app, ["reconcile", "--help"]).stdout
    assert all(option in shown for option in ("--bucket", "--read-from", "--until", "-h, --help"))
    assert shown.count("Example:") == 1
