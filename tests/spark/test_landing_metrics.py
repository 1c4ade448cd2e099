"""Metrics and the progress view: every number where it belongs, in a form that scrapers and people can read."""

from __future__ import annotations

import io
import re
import socket
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from mirrorlog.errors import ConnectionLost, PortTaken
from mirrorlog.spark.errors import LandingConflict, StorageFailed
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.spark.landing.positions import MissedRange
from mirrorlog.spark.landing.results import QueueStep, Several, StepResult
from mirrorlog.spark.landing.service.counts import STATES, LandingCounts
from mirrorlog.spark.landing.service.display import (
    ROWS_MAX,
    LiveView,
    QueueRow,
    progress_table,
    queue_rows,
)
from mirrorlog.spark.landing.service.metrics import LandingMetrics, serve_metrics

ORDERS = Landing(name="orders", table="/lake/orders", queues=("o1", "o2"), mode="json")
FLIGHTS = Landing(name="flights", table="/lake/flights", queues=("f",))
STEP = StepResult(
    landing="orders",
    queues=(
        QueueStep("o1", 10, 110, 150, landed_time_us=990_000_000, missed=(MissedRange("o1", 20, 25, "gone"),)),
        QueueStep("o2", 0, 7, 7, landed_time_us=999_000_000),
    ),
    rows=98,
    records=102,
    bytes=2_048,
    files=3,
    file_bytes=1_000,
    dead_letters=4,
    table_version=6,
    seconds=2.0,
    parts={"plan": 0.25, "write": 1.0, "commit": 0.75},
)


@dataclass(frozen=True)
class Done:
    table: str = "/lake/orders"
    duty: str = "compact"
    files_before: int = 1_000
    files_after: int = 4
    seconds: float = 3.5


class Clock:
    """Both clocks of the counts; it is 1,000 s."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def counts(self, *landings: Landing) -> LandingCounts:
        return LandingCounts(landings, now_s=lambda: self.seconds, now_us=lambda: int(self.seconds * 1e6))


def scraped(counts: LandingCounts) -> dict[str, Metric]:
    """As a scraper reads it."""
    registry = CollectorRegistry()
    registry.register(LandingMetrics(counts))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {family.name: family for family in families}


def value(found: dict[str, Metric], name: str, **labels: str) -> float:
    family = found[f"mirrorlog_landing_{name}".removesuffix("_total")]
    (sample,) = [each for each in family.samples if labels.items() <= each.labels.items()]
    return sample.value


def full() -> tuple[Clock, LandingCounts]:
    """Everything has happened once: steps, a failure, another try, upkeep."""
    clock = Clock()
    counts = clock.counts(FLIGHTS)
    counts.step_began(ORDERS)
    counts.step_ended(ORDERS, STEP)
    counts.upkeep_done(ORDERS, Done())
    counts.upkeep_failed(ORDERS, StorageFailed("disk full"))
    counts.step_began(FLIGHTS)
    counts.step_failed(FLIGHTS, LandingConflict("another landing\ncommitted"))
    counts.step_began(FLIGHTS)
    counts.step_failed(FLIGHTS, ConnectionLost("no node answers"))
    return clock, counts


def test_every_number_of_a_step_is_counted_under_its_name() -> None:
    """Goal: no number stands under another's name. A step whose numbers all differ, twice, read back from a scrape."""
    clock, counts = full()
    counts.step_ended(ORDERS, replace(STEP, table_version=7))
    found = scraped(counts)
    told = {
        name: value(found, f"{name}_total", landing="orders")
        for name in ("rows", "bytes", "files", "file_bytes", "dead_letters", "commits", "steps", "conflicts", "retries")
    }
    assert told == {
        "rows": 196,
        "bytes": 4_096,
        "files": 6,
        "file_bytes": 2_000,
        "dead_letters": 8,
        "commits": 2,
        "steps": 2,
        "conflicts": 0,
        "retries": 0,
    }
    phases = {name: value(found, "phase_seconds_total", landing="orders", phase=name) for name in STEP.parts}
    assert phases == {"plan": 0.5, "write": 2.0, "commit": 1.5}
    assert value(found, "phase_seconds_total", phase="upkeep") == 3.5
    assert value(found, "upkeep_runs_total", duty="compact", table="/lake/orders") == 1
    assert value(found, "upkeep_files_removed_total", duty="compact") == 996
    assert value(found, "queue_records_total", queue="o1") == 2 * 95
    assert value(found, "queue_missed_records_total", queue="o1") == 2 * 5
    assert value(found, "queue_next_offset", queue="o1") == 110
    assert value(found, "queue_confirmed_offset", queue="o1") == 150
    assert value(found, "queue_lag_records", queue="o1") == 40
    assert value(found, "queue_lag_records", queue="o2") == 0
    assert value(found, "table_version", landing="orders") == 7
    assert value(found, "last_success_timestamp_seconds", landing="orders") == clock.seconds
    assert value(found, "info", landing="orders", table="/lake/orders", mode="json", write="append") == 1


def test_failures_conflicts_and_retries_are_told_apart() -> None:
    """Goal: an alert knows what it is about. A conflict, then an outage, then it works."""
    _, counts = full()
    found = scraped(counts)
    assert value(found, "failures_total", landing="flights", code="LANDING_CONFLICT") == 1
    assert value(found, "failures_total", landing="flights", code="CONNECTION_LOST") == 1
    assert value(found, "conflicts_total", landing="flights") == 1
    assert value(found, "retries_total", landing="flights") == 1
    assert value(found, "state", landing="flights", state="failed") == 1
    totals, _ = counts.copy()
    assert totals["flights"].error == "no node answers"
    counts.step_began(FLIGHTS)
    counts.step_ended(FLIGHTS, StepResult(landing="flights"))
    totals, _ = counts.copy()
    assert (totals["flights"].state, totals["flights"].error, totals["flights"].commits) == ("landed", None, 0)
    assert totals["flights"].retries == 2


def test_lag_in_seconds_is_that_of_the_oldest_record_and_grows_while_nothing_is_landed() -> None:
    """Goal: lag is never told too small. Behind after a step, time passes, a failure, all landed, a later look."""
    clock = Clock()
    counts = clock.counts(ORDERS)
    counts.step_ended(ORDERS, STEP)
    assert value(scraped(counts), "queue_lag_seconds", queue="o1") == 10.0
    assert value(scraped(counts), "queue_lag_seconds", queue="o2") == 0.0
    clock.seconds = 1_030.0
    counts.step_failed(ORDERS, ConnectionLost("away"))
    assert value(scraped(counts), "lag_seconds", landing="orders") == 40.0
    caught_up = QueueStep("o1", 110, 150, 150, landed_time_us=1_000_000_000)
    counts.step_ended(ORDERS, replace(STEP, queues=(caught_up,)))
    assert value(scraped(counts), "lag_seconds", landing="orders") == 0.0
    counts.looked(ORDERS, {"o1": 155, "o2": 7})
    clock.seconds = 1_033.0
    counts.looked(ORDERS, {"o1": 160, "o2": 7})
    found = scraped(counts)
    assert (value(found, "queue_lag_records", queue="o1"), value(found, "queue_lag_seconds", queue="o1")) == (10, 3.0)
    assert value(found, "state", landing="orders", state="behind") == 1
    # A step that landed nothing of a queue that is behind does not make its records younger.
    counts.step_ended(ORDERS, replace(STEP, queues=(QueueStep("o1", 150, 150, 160),)))
    assert value(scraped(counts), "queue_lag_seconds", queue="o1") == 3.0


def test_upkeep_that_failed_is_counted_and_fails_no_landing() -> None:
    """Goal: an alert on failed landings is about landings. One step, then upkeep that failed."""
    _, counts = full()
    found = scraped(counts)
    assert value(found, "upkeep_failures_total", landing="orders", code="STORAGE_FAILED") == 1
    assert value(found, "state", landing="orders", state="behind") == 1
    assert [each.labels["landing"] for each in found["mirrorlog_landing_failures"].samples] == ["flights", "flights"]


def test_a_record_that_a_look_saw_first_is_as_old_as_the_last_landed_one_at_most() -> None:
    """Goal: lag has one meaning, whoever asks. A look sees more confirmed than the step that ends afterwards."""
    clock = Clock()
    counts = clock.counts(ORDERS)
    counts.looked(ORDERS, {"o1": 150})
    clock.seconds = 1_050.0
    step = QueueStep("o1", 0, 140, 140, landed_time_us=1_030_000_000)
    assert step.lag_seconds(1_050_000_000) == 0.0
    counts.step_ended(ORDERS, replace(STEP, queues=(step,)))
    assert value(scraped(counts), "queue_lag_seconds", queue="o1") == 20.0


def test_several_observers_are_told_the_same() -> None:
    """Goal: a display and the counts at once. Two counts behind one observer."""
    clock = Clock()
    one, other = clock.counts(), clock.counts()
    both = Several(one, other)
    both.step_began(ORDERS)
    both.step_ended(ORDERS, STEP)
    both.looked(ORDERS, {"o2": 9})
    both.upkeep_done(ORDERS, Done())
    both.upkeep_failed(ORDERS, ConnectionLost("away"))
    both.step_failed(ORDERS, ConnectionLost("away"))
    assert one.copy() == other.copy()
    assert one.copy()[0]["orders"].state == "failed"


def test_exactly_one_state_is_1() -> None:
    """Goal: an alert on a state never misses. Every state that a landing goes through."""
    clock = Clock()
    counts = clock.counts(ORDERS)
    moves = [
        ("waiting", lambda: None),
        ("landing", lambda: counts.step_began(ORDERS)),
        ("behind", lambda: counts.step_ended(ORDERS, STEP)),
        ("failed", lambda: counts.step_failed(ORDERS, ConnectionLost("away"))),
        (
            "landed",
            lambda: counts.step_ended(ORDERS, StepResult(landing="orders", queues=(QueueStep("o1", 150, 150, 150),))),
        ),
    ]
    for expected, happen in moves:
        happen()
        found = scraped(counts)
        assert [state for state in STATES if value(found, "state", landing="orders", state=state)] == [expected]
    assert [state for state, _ in moves if state not in STATES] == []


def test_the_exposition_keeps_to_the_grammar_and_the_conventions() -> None:
    """Goal: what a dashboard can rely on. Every line against the text format; every family's name, unit and meaning."""
    _, counts = full()
    odd = replace(FLIGHTS, name='odd "name"\\\n', table="/lake/ä")
    counts.step_failed(odd, ConnectionLost("away"))
    registry = CollectorRegistry()
    registry.register(LandingMetrics(counts))
    text = generate_latest(registry).decode()
    label = r'[a-z_]+="(?:[^"\\\n]|\\["\\n])*"'
    number = r"-?[0-9.]+(?:e[+-][0-9]+)?"
    sample = re.compile(rf"mirrorlog_landing_[a-z_]+(?:\{{{label}(?:,{label})*\}})? {number}")
    comment = re.compile(
        r"# (?:HELP mirrorlog_landing_[a-z_]+ \S.{14,}|TYPE mirrorlog_landing_[a-z_]+ (?:counter|gauge))"
    )
    for line in text.splitlines():
        assert (comment if line.startswith("#") else sample).fullmatch(line), line
    assert text.endswith("\n")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, family in families.items():
        assert family.samples, f"{name} is not shown though everything has happened"
        assert not re.search(r"_(ms|us|kib|mib|percent|ratio)(_|$)", name), name
        assert {each.name.endswith("_total") for each in family.samples} == {family.type == "counter"}, name
    labels = [each.labels["landing"] for each in families["mirrorlog_landing_info"].samples]
    assert 'odd "name"\\\n' in labels


def test_a_landing_that_did_nothing_yet_is_there_with_zeros() -> None:
    """Goal: a rate has a beginning. Counts before the first step; without any landing."""
    counts = Clock().counts(ORDERS)
    found = scraped(counts)
    assert value(found, "rows_total", landing="orders") == 0
    assert value(found, "state", landing="orders", state="waiting") == 1
    assert found["mirrorlog_landing_table_version"].samples == []
    assert scraped(Clock().counts())["mirrorlog_landing_rows"].samples == []


def test_metrics_are_served_on_a_port_of_their_own_and_a_taken_one_is_said() -> None:
    """Goal: a scrape works while the service runs, and the port is free afterwards. Scrape; a port that is in use."""
    _, counts = full()
    with serve_metrics(counts, 0, "127.0.0.1") as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        assert 'mirrorlog_landing_rows_total{landing="orders"} 98.0' in text
        assert "python_info" not in text, "a registry of its own"
        with pytest.raises(PortTaken, match=str(port)), serve_metrics(counts, port, "127.0.0.1"):
            pass
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


# --- The view ---


def rendered(rows: Sequence[QueueRow], width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(progress_table(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_view_has_a_row_for_each_queue_with_lag_and_reason() -> None:
    """Goal: one look tells which queue stands and why. Landed, behind and failed ones, by text."""
    _, counts = full()
    rows = queue_rows(*counts.copy())
    assert [(row.queue, row.state) for row in rows] == [("flights", "failed"), ("o1", "behind"), ("o2", "landed")]
    lines = [line.split() for line in rendered(rows).splitlines()]
    assert lines[0] == ["queue", "table", "landed", "rate/s", "lag", "lag", "s", "state"]
    assert lines[1] == ["flights", "/lake/flights", "0", "0", "0", "0.0", "failed:", "no", "node", "answers"]
    assert lines[2] == ["o1", "/lake/orders", "95", "51", "40", "10.0", "behind"]
    assert lines[3] == ["o2", "/lake/orders", "7", "51", "0", "0.0", "landed"]


def test_the_view_bears_many_queues_long_reasons_and_names_that_look_like_markup() -> None:
    """Goal: a terminal that stays readable. More queues than rows, a reason of a page, a queue called [red]."""
    row = QueueRow("[red]", "/t", 1, 1.0, 0, 0.0, "failed", "x" * 5_000)
    many = [replace(row, queue=f"q{number}", reason=None, lag_records=number) for number in range(ROWS_MAX + 5)]
    text = rendered(many)
    assert len(text.splitlines()) == ROWS_MAX + 2
    assert f"q{ROWS_MAX + 4} " in text
    assert "and 5 queues that are less far behind" in text
    assert "[red]" in rendered([row])
    assert rendered([row]).count("x") < 200
    assert rendered([]).strip().startswith("queue")


def test_the_live_view_shows_the_counts_and_what_was_missed() -> None:
    """Goal: a terminal shows what is counted. A step with a missed range, on a console that is text."""
    out = io.StringIO()
    clock = Clock()
    console = Console(file=out, width=120, force_terminal=True, color_system=None)
    counts = clock.counts(ORDERS)
    with LiveView(counts, console) as shown:
        view = Several(counts, shown)
        view.step_began(ORDERS)
        view.step_ended(ORDERS, STEP)
        view.looked(ORDERS, {"o2": 9})
        view.upkeep_done(ORDERS, Done())
        view.upkeep_failed(ORDERS, StorageFailed("disk\nfull"))
        view.step_failed(ORDERS, ConnectionLost("away"))
    assert "orders: queue 'o1': 20 up to 25 were not landed: gone" in out.getvalue()
    assert "failed: away" in out.getvalue()
    assert "orders: upkeep failed: disk full" in out.getvalue()
    totals, _ = counts.copy()
    assert (totals["orders"].rows, totals["orders"].queues["o2"].lag_records) == (98, 2)


def test_only_this_machine_reaches_them_unless_an_address_says_so() -> None:
    """Nobody is asked who he is: by default the socket is loopback's, and another address of loopback does not reach
    it; with an address it is that one's."""
    with serve_metrics(LandingCounts([]), 0) as port:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port), timeout=5)
    with serve_metrics(LandingCounts([]), 0, "127.0.0.2") as port:
        socket.create_connection(("127.0.0.2", port), timeout=5).close()
