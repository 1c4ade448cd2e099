"""The command line as a whole: help, exit codes, and errors that are one line."""

import asyncio
import getpass
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mirrorlog import __version__
from mirrorlog.errors import DiskFull, OutcomeUnknown
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.tools.common import session as passwords
from mirrorlog.tools.main import NOUNS, TABLE, app, main
from tests.client.scripted_nodes import QUEUE, scripted

RUNNER = CliRunner()
COMMANDS = sorted(TABLE)
VERBS = [(noun, verb) for noun, (_, verbs) in NOUNS.items() for verb in verbs]


def run(*arguments: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def nobody() -> str:
    """An address where nothing listens."""
    return f"{HOST}:{free_ports(1)[0]}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_that_parses(command: str) -> None:
    """Goal: help is worth reading. Method: find the example and ask the same command line for its help."""
    text = RUNNER.invoke(app, [command, "--help"]).stdout
    example = re.search(rf"Example:\s+mqtool ({command.replace('-', '[-_]')}[^\n]*)", text)
    assert example is not None, text
    assert RUNNER.invoke(app, [*shlex.split(example.group(1).partition(" < ")[0]), "--help"]).exit_code == 0


@pytest.mark.parametrize(("noun", "verb"), VERBS)
def test_every_verb_of_a_noun_has_help_whose_example_is_its_own(noun: str, verb: str) -> None:
    """Goal: who learns the nouns is told of them. Method: as above; no example has the old name."""
    text = RUNNER.invoke(app, [noun, verb, "--help"]).stdout
    examples = re.findall(r"Example:\s+(mqtool [^\n]*)", text)
    assert examples, text
    old = NOUNS[noun][1][verb]
    for example in examples:
        words = shlex.split(example.partition(" < ")[0])
        assert words[1:3] == [noun, verb] or old not in words, example
        assert RUNNER.invoke(app, [*words[1:], "--help"]).exit_code == 0, example


def test_every_command_has_a_noun_but_for_those_of_the_tool_itself() -> None:
    """Goal: help shows what there is. Method: what no verb stands for."""
    named = {old for _, verbs in NOUNS.values() for old in verbs.values()}
    assert set(TABLE) - named == {"completion", "dev"} & set(TABLE)
    assert named <= set(TABLE)


@pytest.mark.parametrize("noun", NOUNS)
def test_a_noun_alone_says_what_there_is_for_it(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(noun) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in NOUNS[noun][1])


@pytest.mark.parametrize(
    "arguments",
    [["queue", "list", "-s", "HERE"], ["--servers", "HERE", "queues"], ["queues", "q", "--servers", "HERE", "--json"]],
)
def test_global_options_stand_before_a_command_or_behind_it(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: nobody has to know where. Method: an address where nobody listens, which the error names."""
    server = nobody()
    assert run(*(server if each == "HERE" else each for each in arguments)) == 9
    assert server in capsys.readouterr().err


LISTS = [
    *("queues", "groups", "rates", "producers", "landings", "exchanges", "bindings", "vhosts", "users", "nodes"),
    *("connections", "list-queues", "list-policies", "list-operator-policies", "offsets", "doctor"),
]


@pytest.mark.parametrize("command", LISTS)
def test_every_list_can_be_watched(command: str) -> None:
    text = " ".join(RUNNER.invoke(app, [command, "--help"]).stdout.split())
    assert "--watch Look again and again until Ctrl-C" in text
    assert "--every" in text


def test_watching_goes_on_while_nobody_answers_but_not_with_a_wrong_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: what one watches for is that it comes back. Method: nobody listens; then what no look can mend."""
    command = [sys.executable, "-m", "mirrorlog.tools.main", "queues", "--watch", "--every", "0.1", "-s", nobody()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        looks = [process.stdout.readline() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        assert (process.wait(30), process.stderr.read()) == (0, "")
    assert [look.endswith("; trying again\n") for look in looks] == [True, False, True, False]
    assert run("list-queues", "no-such-column", "--watch", "-s", nobody()) == 2


def test_debug_behind_a_command_counts_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", str(tmp_path), "--debug") == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: `mqtool qu<TAB>`. Method: the script asks the program; asked as bash asks, it answers."""
    assert run("completion", shell) == 0
    assert "_MQTOOL_COMPLETE" in capsys.readouterr().out
    asked = {"COMP_WORDS": "mqtool queue al", "COMP_CWORD": "2", "_MQTOOL_COMPLETE": "complete_bash"}
    told = subprocess.run(
        [sys.executable, "-m", "mirrorlog.tools.main"],
        env={**os.environ, **asked}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert told.stdout.split() == ["alter"], told


def test_help_loads_no_command() -> None:
    """Goal: the tool starts fast. Method: what is imported after --help."""
    code = (
        "import sys; from mirrorlog.tools.main import main\ntry: main(['--help'])\nfinally: print(sorted(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "'mirrorlog.tools.main'" in told.stdout
    assert not re.search(r"'(numpy|pydantic|asyncio|mirrorlog\.client|mirrorlog\.tools\.queue)'", told.stdout)


@pytest.mark.parametrize("command", ["rebalance", "sync-queue"])
def test_help_says_that_watching_begins_what_it_shows(command: str) -> None:
    """Goal: nobody moves anything who only wants to look. Method: the help of --watch."""
    text = " ".join(RUNNER.invoke(app, [command, "--help"]).stdout.split())
    assert re.search(r"--watch.{0,30} Begin it, as without this", text), text


def test_without_arguments_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a first call helps. Method: no arguments at all."""
    assert run() == 0
    text = capsys.readouterr().out
    assert all(f"{noun} " in text for noun in NOUNS)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a report can name the version. Method: --version."""
    assert run("--version") == 0
    assert capsys.readouterr().out == f"mqtool {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["offsets", "--no-such-option"], 2, "No such option"),
        (["no-such-command"], 2, "No such command"),
        (["declare"], 2, "Missing argument"),
        (["-s", "localhost", "offsets"], 2, "--servers"),
        (["verify", "/no/such/directory"], 2, "does not exist"),
    ],
)
def test_a_usage_error_is_one_line(
    arguments: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: errors can be read and searched. Method: wrong command lines of every kind."""
    assert run(*arguments) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("mqtool: ")
    assert printed.err.count("\n") == 1
    assert text in printed.err


@pytest.mark.parametrize("command", [["offsets"], ["nodes"], ["queues"], ["groups"], ["declare", "q"]])
def test_no_server_is_one_line_with_its_exit_code(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a cluster that is down is said to be so. Method: an address where nobody listens."""
    server = nobody()
    assert run("--servers", server, *command) == 9
    error = capsys.readouterr().err
    assert error.startswith("mqtool: ")
    assert error.count("\n") == 1
    assert server in error


@pytest.mark.long
async def test_what_may_be_done_or_not_is_one_line_with_its_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: a script knows a refusal from what it has to look after. Method: a node takes the request in and cuts the
    connection, and refuses what is sent then; and one that refuses at once."""
    async with scripted(1) as nodes:
        nodes["n1"].cuts, nodes["n1"].refusal = 1, DiskFull("there is no space")
        assert (
            await asyncio.to_thread(run, "--servers", nodes["n1"].address, "purge", QUEUE) == OutcomeUnknown.exit_code
        )
        assert capsys.readouterr().err == "mqtool: it may have been done or not; last: there is no space\n"
        assert await asyncio.to_thread(run, "--servers", nodes["n1"].address, "purge", QUEUE) == DiskFull.exit_code


def test_servers_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: the variable of the help works. Method: it names an address where nobody listens."""
    server = nobody()
    monkeypatch.setenv("MIRRORLOG_SERVERS", server)
    assert run("offsets") == 9
    assert server in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "variable"),
    [(["--user", "alice", "queues"], "MIRRORLOG_PASSWORD"), (["user-set", "alice"], "MIRRORLOG_NEW_PASSWORD")],
)
def test_where_nobody_can_type_a_password_its_variable_is_named(command: list[str], variable: str) -> None:
    """Goal: a script without the variable is told so. Method: a process without a terminal and without stdin."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("PASSWORD")}
    ended = subprocess.run(
        [sys.executable, "-m", "mirrorlog.tools.main", "-s", nobody(), *command],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"mqtool: set {variable} for user alice: there is no terminal to ask for a password\n"


@pytest.mark.parametrize("end", [KeyboardInterrupt, EOFError])
@pytest.mark.parametrize("command", [["--user", "alice", "queues"], ["user-set", "alice"]])
def test_who_types_no_password_ends_the_command(
    command: list[str], end: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: Ctrl-C and Ctrl-D at the question are no fault. Method: a terminal where that is typed."""

    def typed(*_: object) -> str:
        raise end

    for variable in ("MIRRORLOG_PASSWORD", "MIRRORLOG_NEW_PASSWORD"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(passwords, "_has_terminal", lambda: True)
    monkeypatch.setattr(getpass, "getpass", typed)
    assert run("-s", nobody(), *command) == 130
    assert capsys.readouterr().err.endswith("mqtool: interrupted\n")


def test_a_traceback_comes_only_when_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Goal: --debug helps whoever repairs. Method: the same error with and without."""
    assert run("verify", str(tmp_path)) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert run("--debug", "verify", str(tmp_path)) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["cluster_status", "list_users", "list-vhosts", "import_definitions", "sync_queue"])
def test_commands_have_the_names_that_rabbitmq_gives_them(command: str) -> None:
    """Goal: who comes from there types on. Method: help by that name."""
    assert RUNNER.invoke(app, [command, "--help"]).exit_code == 0
    assert RUNNER.invoke(app, [f"{command}x", "--help"]).exit_code != 0


def test_a_plain_list_is_read_without_pydantic() -> None:
    """Goal: a list in a third of a second of processor time. Method: a fresh interpreter runs one whose server is not
    there, with options of every source that need no reading; what stands as it is asks no pydantic."""
    code = (
        "import sys; from mirrorlog.tools.main import main\n"
        "try: main(['--servers', '127.0.0.1:1', 'queue', 'list', 'flights', 'orders', '--vhost', 'x'])\n"
        "finally: print([name for name in sys.modules if name.startswith('pydantic')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (9, "[]\n"), result.stderr
