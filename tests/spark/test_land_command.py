"""The landing's command without Spark: options that contradict each other, and what a single run shows."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from mirrorlog.errors import MirrorlogError, NoSuchQueue
from mirrorlog.spark import command_line
from mirrorlog.spark.access import Access
from mirrorlog.spark.landing.command import landings_of, main, parser
from mirrorlog.spark.landing.definition import Landing, landing
from mirrorlog.spark.landing.results import Observer, QueueStep, StepMoment, StepResult
from mirrorlog.spark.landing.service.display import JsonLines, RunBar, RunLines
from mirrorlog.spark.reconcile import main as reconcile

FILE = """
[defaults]
servers = "a:1"
[[landing]]
queue = "q"
table = "/t"
"""
MADE = landing({"queue": "q", "table": "/t", "servers": "a:1"})


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (command_line.SERVERS_VARIABLE, *command_line.TLS_VARIABLES):
        monkeypatch.delenv(name, raising=False)


def one(*arguments: str) -> Landing:
    (made,) = landings_of(parser().parse_args(arguments))
    return made


@pytest.mark.parametrize(
    "given",
    [
        *(["q"], ["--queue", "q"], ["--to", "t"], ["--servers", "a:1"], ["--path", "p"], ["--mode", "raw"]),
        *(["--partition-by", "date(timestamp)"], ["--dead-letters", "d"], ["--read-from", "n1"]),
        *(["--on-data-loss", "skip"], ["--hold"], ["--name", "n"], ["--set", "mode=raw"], ["--follow"]),
        *(["--tls-ca", "f"], ["--tls-cert", "f"], ["--tls-key", "f"]),
    ],
)
def test_an_option_of_one_landing_is_refused_beside_a_file_of_many(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: nothing is ignored in silence. Each such option with a good file."""
    file = tmp_path / "landings.toml"
    file.write_text(FILE)
    assert main([*given, "--config", str(file)]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert "--config" in told.err
    assert ("QUEUE" if given == ["q"] else given[0]) in told.err


def test_every_option_is_known_to_be_for_one_landing_or_for_a_service(tmp_path: Path) -> None:
    """Goal: the test above misses no option that is added. Those that a file goes with are told here."""
    file = tmp_path / "landings.toml"
    file.write_text(FILE)
    words = ["--config", str(file), "--once", "--take-over", "--metrics-port", "0", "--json", "--debug"]
    options = parser().parse_args(words)
    (made,) = landings_of(options)
    assert made.servers == ("a:1",)
    with_a_file = {name for name, value in vars(options).items() if value not in (None, False, [])}
    with_a_file |= {"metrics_port", "metrics_host"}
    refused = {"queue", "queue_option", "to", "servers", "path", "mode", "partition_by", "dead_letters", "read_from"}
    refused |= {"on_data_loss", "hold", "name", "set", "follow", "tls_ca", "tls_cert", "tls_key", "user"}
    assert with_a_file | refused == set(vars(options))


@pytest.mark.parametrize(
    ("given", "both"),
    [
        (["q", "--to", "t", "--once"], ("--once", "--config")),
        (["q", "--to", "t", "--once", "--follow"], ("--once", "--follow")),
        (["q", "--to", "t", "--metrics-port", "0"], ("--metrics-port", "--follow")),
        (["q", "--to", "t", "--take-over"], ("--take-over", "--hold")),
        (["q", "--to", "t", "--queue", "r"], ("QUEUE", "--queue")),
        (["q", "--to", "t", "--set", "queue=r"], ("QUEUE", "--set")),
        (["q", "--to", "t", "--set", "table=r"], ("--to", "--set")),
        (["q", "--to", "t", "--mode", "raw", "--set", "mode=json"], ("--mode", "--set")),
        (["q", "--to", "t", "--set", "name=r", "--set", "name=s"], ("--set name", "twice")),
        (["q", "--to", "t", "--path", "p", "--tls-ca", "f"], ("--path", "--tls-ca")),
        (["q", "--to", "t", "--path", "p", "--read-from", "n1"], ("--path", "--read-from")),
        (["q", "--to", "t", "--path", "p", "--servers", "a:1"], ("--path", "--servers")),
        (["q", "--to", "t", "--path", "p", "--hold"], ("hold", "offline")),
        (["q"], ("--to", "QUEUE")),
        (["--to", "t"], ("--to", "QUEUE")),
        (["q", "--to", "t", "--set", "mode"], ("--set", "KEY=VALUE")),
    ],
)
def test_options_that_mean_nothing_together_are_refused_in_one_line(
    given: list[str], both: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: whoever gives an option gets it, or is told. Before anything is asked of a node."""
    assert main(given) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert all(each in told for each in both)


def test_a_landing_is_what_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what is given wins over --set's place in line, variables and defaults; a pattern needs no queue."""
    assert one("q", "--to", "/t").servers == ("127.0.0.1:7401",)
    monkeypatch.setenv(command_line.SERVERS_VARIABLE, "v:1")
    monkeypatch.setenv(command_line.TLS_VARIABLES[0], "ca")
    made = one("--to", "/t", "--set", "queue_pattern=x.*", "--set", "lease_s=60")
    assert (made.queue_pattern, made.servers, made.access, made.lease_s) == ("x.*", ("v:1",), Access("ca"), 60.0)
    assert (one("q", "--to", "/t").hold, one("q", "--to", "/t", "--follow").hold) == (False, True)
    assert not one("q", "--to", "/t", "--follow", "--set", "hold=false").hold
    assert one("q", "--set", "table=/s", "--set", 'servers="w:2"').servers == ("w:2",)
    offline = one("q", "--to", "/t", "--path", "p", "--follow")
    assert (offline.servers, offline.access, offline.hold) == ((), Access(), False)


# --- What a single run shows ----------------------------------------------------------------------------------------


def step(first: int, following: int, confirmed: int) -> StepResult:
    queue = QueueStep("q", first, following, confirmed, landed_time_us=1)
    count = following - first
    return StepResult("q", (queue,), rows=count, records=count, bytes=count, files=1, table_version=0, seconds=2.0)


STEPS = [step(10, 60, 110), step(60, 110, 110)]


def show(view: Observer) -> None:
    """A run of two steps."""
    view.planned(range(10, 110))
    for each in STEPS:
        for moment in (
            StepMoment.BEGAN,
            StepMoment.PLANNED,
            StepMoment.WRITTEN,
            StepMoment.COMMITTING,
            StepMoment.COMMITTED,
        ):
            view.moment(moment)
        view.step_ended(MADE, each)


def test_in_a_log_there_are_lines_of_what_is_done() -> None:
    """Goal: a run that takes long shows that it lives, and how far it is."""
    out = io.StringIO()
    show(RunLines(MADE, out))
    lines = out.getvalue().splitlines()
    assert lines[:5] == [
        *("starting Spark", "q: 100 records to land, 10 up to 110"),
        *("q: writing files", "q: committing", "q: committed"),
    ]
    assert lines[5].startswith("q: 50 records in 2.0 s (25/s")
    assert (len(lines), lines[9].partition(" in ")[0]) == (10, "q: 50 records")


def test_in_a_log_nothing_to_land_is_one_line_more() -> None:
    """Goal: no talk of files that are not written."""
    out = io.StringIO()
    view = RunLines(MADE, out)
    view.planned(range(5, 5))
    for moment in (StepMoment.BEGAN, StepMoment.PLANNED, StepMoment.RENEWED):
        view.moment(moment)
    view.step_ended(MADE, replace(step(5, 5, 5), files=0))
    assert out.getvalue().splitlines() == ["starting Spark", "q: nothing to land"]


def test_on_a_terminal_there_is_a_bar_of_records_landed_of_those_confirmed_at_the_begin() -> None:
    """Goal: the bar is at half when half is landed, at all when it is, also when more was published meanwhile."""
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    seen = []
    with RunBar(MADE, console) as bar:
        assert "starting Spark" in bar.line
        bar.planned(range(10, 110))
        bar.moment(StepMoment.BEGAN)
        assert "q: planning" in bar.line
        for each in (STEPS[0], step(60, 130, 130)):
            bar.moment(StepMoment.PLANNED)
            assert "q: writing files" in bar.line
            bar.step_ended(MADE, each)
            seen.append(bar.line)
    assert "50 of 100 records, 25/s" in seen[0]
    assert "100 of 100 records" in seen[1]


def test_json_of_a_single_run_is_what_a_service_prints() -> None:
    """Goal: one form for programs. The same steps, and a failure, told to both."""
    single, service = io.StringIO(), io.StringIO()
    failed: MirrorlogError = NoSuchQueue("gone")
    view, lines = JsonLines(single), JsonLines(service)
    show(view)
    view.step_failed(MADE, failed)
    for each in STEPS:
        lines.step_ended(MADE, each)
    lines.step_failed(MADE, failed)
    found = [json.loads(line) for line in single.getvalue().splitlines()]
    expected = [json.loads(line) for line in service.getvalue().splitlines()]
    for each in (*found, *expected):
        each.pop("lag_s", None)  # by the clock
    assert found == expected
    assert [each["event"] for each in found] == ["landed", "landed", "failed"]


def test_a_table_that_is_not_there_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a mistyped path costs no time. Method: reconcile with no cluster and with no Java, as if it had none."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert reconcile(["q", "--table", str(tmp_path / "nope"), "--servers", "127.0.0.1:1"]) == 2
    assert f"there is no Delta table at {tmp_path / 'nope'}" in capsys.readouterr().err
