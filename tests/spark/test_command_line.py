"""What the commands of Spark's jobs share: one-line errors, exit codes, Ctrl-C, defaults. No JVM is started."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from mirrorlog.errors import BadInput, NoSuchQueue
from mirrorlog.spark import command_line
from mirrorlog.spark.access import Access
from mirrorlog.spark.session import started_spark
from mirrorlog.testing.ports import HOST
from mirrorlog.tools import landing as spark_job
from mirrorlog.tools.common import session

MODULES = [
    *("mirrorlog.spark.landing.command", "mirrorlog.spark.reconcile", "mirrorlog.spark.replay"),
    *("mirrorlog.spark.audit", "mirrorlog.spark.analysis.__main__", "mirrorlog.spark.landing.upkeep"),
    *("mirrorlog.spark.jars", "mirrorlog.spark.py_files"),
]
_CHILD_S = 60


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (command_line.SERVERS_VARIABLE, *command_line.TLS_VARIABLES, command_line.PROGRAM_VARIABLE):
        monkeypatch.delenv(name, raising=False)


def parsed(*arguments: str) -> argparse.Namespace:
    parser = command_line.command("m", "What it does.", example="q")
    command_line.add_queue(parser)
    command_line.add_servers(parser)
    command_line.add_access(parser)
    return parser.parse_args(arguments)


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def work(options: argparse.Namespace) -> int:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (NoSuchQueue("no\nqueue"), NoSuchQueue.exit_code, "error: no queue\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_an_error_is_one_line_and_a_traceback_comes_when_asked_for(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: scripts and people can read it. One of ours with a line break in it, and Ctrl-C; then with --debug."""
    assert command_line.run(parsed("q"), raising(error)) == code
    assert capsys.readouterr() == ("", line)
    assert command_line.run(parsed("q", "--debug"), raising(error)) == code
    told = capsys.readouterr().err
    assert told.startswith("Traceback")
    assert told.endswith(line)


def test_another_error_is_a_bug_and_keeps_its_traceback() -> None:
    """Goal: nothing is swallowed."""
    with pytest.raises(ZeroDivisionError):
        command_line.run(parsed("q"), raising(ZeroDivisionError()))


@pytest.mark.parametrize("module", MODULES)
def test_a_wrong_option_is_one_line_and_says_where_help_is(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the same of each command, in the words of how it was called."""
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(["--no-such-option"])
    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert "--help" in told.err


@pytest.mark.parametrize("module", MODULES)
def test_every_command_has_debug_and_an_example(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: they are alike, and name what the user typed."""
    monkeypatch.setenv(command_line.PROGRAM_VARIABLE, "mqtool something")
    parser = importlib.import_module(module).parser()
    told = parser.format_help()
    assert "--debug" in told
    assert told.strip().splitlines()[-1].startswith("Example: mqtool something ")


def test_a_queue_is_given_once() -> None:
    """Goal: an option that loses is refused."""
    assert command_line.queues_of(parsed("a, b")) == command_line.queues_of(parsed("--queue", "a,b")) == ["a", "b"]
    for wrong in ([], [" , "], ["a", "--queue", "a"]):
        with pytest.raises(BadInput, match="QUEUE"):
            command_line.queues_of(parsed(*wrong))


def test_servers_and_tls_are_those_of_mqtool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: one set of variables and one default for all commands; what is given wins."""
    assert command_line.SERVERS_VARIABLE == session.SERVERS_VARIABLE
    assert command_line.DEFAULT_SERVERS == session.DEFAULT_SERVERS
    tls = (session.TLS_CA_VARIABLE, session.TLS_CERTIFICATE_VARIABLE, session.TLS_KEY_VARIABLE)
    assert tls == command_line.TLS_VARIABLES
    assert command_line.PROGRAM_VARIABLE == spark_job.PROGRAM_VARIABLE
    assert command_line.servers_of(parsed()) == session.DEFAULT_SERVERS
    assert command_line.access_of(parsed()) == Access()
    monkeypatch.setenv(session.SERVERS_VARIABLE, "a:1")
    monkeypatch.setenv(session.TLS_CA_VARIABLE, "ca")
    assert command_line.servers_of(parsed()) == "a:1"
    assert command_line.servers_of(parsed("--servers", "b:2")) == "b:2"
    assert command_line.access_of(parsed("--tls-key", "k")) == Access("ca", None, "k")


@pytest.mark.parametrize("module", ["mirrorlog.spark.command_line", "mirrorlog.spark.jars", "mirrorlog.spark.py_files"])
def test_light_modules_stay_light(module: str) -> None:
    """Goal: help, and fetching jars, without a second of imports. Import it in a process of its own."""
    code = f"import sys, {module}; print([name for name in ('pyspark', 'pyarrow') if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_CHILD_S, check=True)
    assert told.stdout == "[]\n"


@pytest.mark.process
def test_ctrl_c_ends_a_command_with_130_and_one_line() -> None:
    """Goal: no traceback out of a command that is ended. One that waits for a node which takes the connection and says
    nothing gets SIGINT."""
    with socket.create_server((HOST, 0)) as silent:
        silent.settimeout(_CHILD_S)
        address = f"{HOST}:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "mirrorlog.spark.audit", "q", "--servers", address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
            try:
                taken, _ = silent.accept()
                with taken:
                    os.kill(child.pid, signal.SIGINT)
                    out, told = child.communicate(timeout=_CHILD_S)
            finally:
                child.kill()
    assert (child.returncode, out) == (130, "")
    assert told == "asking the nodes\nerror: interrupted\n"


@pytest.mark.process
def test_a_reader_that_leaves_is_no_error() -> None:
    """Goal: `… | head` is quiet. The output is a pipe that nobody reads."""
    code = (
        "import sys; from mirrorlog.spark import command_line as c; "
        "p = c.command('m', 'd', example='e'); "
        "sys.exit(c.run(p.parse_args([]), lambda options: print('x' * 10_000_000) or 0))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        child = subprocess.run(
            [sys.executable, "-c", code],
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_CHILD_S,
            check=False,
        )
    finally:
        os.close(writing)
    assert (child.returncode, child.stderr) == (1, "")


def test_ctrl_c_while_spark_starts_waits_until_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no JVM is left behind. SIGINT comes while the session is made: that goes on to its end first."""
    done: list[str] = []

    def any_session(app_name: str) -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(app_name)

    monkeypatch.setattr("mirrorlog.spark.session.any_session", any_session)
    with pytest.raises(KeyboardInterrupt), started_spark("app"):
        done.append("not reached")
    assert done == ["app"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("debug", "lines"), [([], 0), (["--debug"], 1)])
def test_what_py4j_logs_of_errors_that_it_raises_is_shown_for_debugging_only(
    debug: list[str], lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: an error is one line. A record of the root logger out of py4j's files, and one of ours, which stays."""

    def work(options: argparse.Namespace) -> int:
        for path in ("/lib/py4j/java_gateway.py", "/lib/mirrorlog/x.py"):
            logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, path, 1, path, None, None))
        return 0

    command_line.run(parsed("q", *debug), work)
    assert [record.getMessage() for record in caplog.records].count("/lib/mirrorlog/x.py") == 1
    assert len([record for record in caplog.records if "py4j" in record.pathname]) == lines
