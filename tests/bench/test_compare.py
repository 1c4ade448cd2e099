"""What the comparison with RabbitMQ makes of what it sees; RabbitMQ itself is for `make compare-rabbitmq` alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import pytest

from bench.compare.driver import Driver, Place, Told, place_of
from bench.compare.play import Load, answer_text, sent_of, verdict
from bench.compare.scenarios import SCENARIOS, Begin, Check, End, Kill, Mark, Return, Scenario, Settled, filled_in
from bench.compare.table import markdown_of, rows_of


def test_a_queues_page_says_where_it_is_and_whether_all_copies_have_everything() -> None:
    row = {"state": "running", "node": "a", "slave_nodes": ["b"], "synchronised_slave_nodes": ["b"]}
    assert place_of(row) == Place("a", ("b",), ("b",))
    assert place_of(row).whole
    assert not place_of({**row, "synchronised_slave_nodes": []}).whole
    assert not place_of({**row, "mirrorlog_sync": {"left_records": 5}}).whole
    assert not place_of({**row, "mirrorlog_sync": {"unknown": "n1 is down"}}).whole
    without_process = {key: value for key, value in row.items() if key != "state"}
    assert place_of(without_process).master == ""


def test_bytes_are_those_of_sockets_with_a_port_of_the_links() -> None:
    """Goal: nothing of clients is counted. Method: both ends of a link, a client, a line without counters."""
    text = (
        "0 0 127.0.0.1:40000 127.0.0.1:25672 cubic wscale:7,7 rto:204 bytes_sent:120 bytes_acked:121 segs_out:3\n"
        "0 0 127.0.0.1:25672 127.0.0.1:40000 cubic wscale:7,7 bytes_sent:30 bytes_acked:30\n"
        "0 0 127.0.0.1:40001 127.0.0.1:5672 cubic bytes_sent:999\n"
        "0 0 127.0.0.1:40002 127.0.0.1:25672 cubic\n"
    )
    assert sorted(sent_of(text, {25672}).values()) == [30, 120]


def test_messages_that_are_missing_doubled_or_out_of_order_are_counted() -> None:
    kinds = ("confirmed messages that are missing", "messages that come twice", "messages out of order")
    for confirmed, found, counts in (
        ([0, 1, 2], [0, 1, 2, 3], (0, 0, 0)),
        ([0, 1, 2], [0, 2], (1, 0, 0)),
        ([0, 1, 2], [0, 1, 0, 1, 2], (0, 2, 0)),
        ([0, 1, 2], [0, 2, 1], (0, 0, 1)),
        ([], [], (0, 0, 0)),
    ):
        assert tuple(verdict(confirmed, found)[kind] for kind in kinds) == counts, found


def test_cells_are_medians_with_their_range_or_words_once() -> None:
    """Goal: figures of several rounds in one cell. Method: three rounds of one system, one of the other."""
    rounds = {
        "RabbitMQ": [{"s": 1.0, "w": "a"}, {"s": 9.0, "w": "a"}, {"s": 2.5, "w": "b|c"}],
        "mirrorlog": [{"s": 2000.0}],
    }
    assert rows_of(rounds) == {
        "s": {"RabbitMQ": "2.5 (1 to 9)", "mirrorlog": "2,000"},
        "w": {"RabbitMQ": "a / b|c", "mirrorlog": "-"},
    }
    lines = markdown_of([("t", rounds)], ["RabbitMQ", "mirrorlog"]).splitlines()
    assert lines[2:] == ["| **t** | | |", "| s | 2.5 (1 to 9) | 2,000 |", "| w | a / b\\|c | - |"]


def test_answers_are_told_by_status_and_reason() -> None:
    assert answer_text(Told(400, {"error": "bad_request", "reason": "Validation failed\n\nno\n"})) == (
        "400: Validation failed no"
    )
    assert answer_text(Told(500, b"")) == "500, empty body"
    assert answer_text(Told(204, None)) == "204"


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.key)
def test_every_story_is_told_to_its_end(scenario: Scenario) -> None:
    """Goal: no load is left on, no node away, no time without its begin. Method: the order of each story's steps."""
    steps = scenario.steps
    kinds = [type(step) for step in steps]
    assert kinds.count(Begin) == kinds.count(End)
    assert kinds.count(Kill) == kinds.count(Return)
    timed = [number for number, step in enumerate(steps) if isinstance(step, Settled) and step.told]
    assert all(Mark in kinds[:number] for number in timed)
    assert scenario.once or kinds[-1] is Check


class Breaking:
    """A system whose first connection breaks at its third message, 10 s after the one before, and whose second one
    takes 5 s to be made; on a clock of its own."""

    name = "breaking"

    def __init__(self) -> None:
        self.now = 0.0
        self.again = threading.Event()
        self._sent = 0

    @contextmanager
    def sender(self, queue: str, number: int) -> Iterator[SimpleNamespace]:
        self.now += 5 * (self._sent > 0)
        yield SimpleNamespace(send=self.send)

    def send(self, body: bytes) -> None:
        self._sent += 1
        if self._sent == 3:
            self.now += 10
            raise ConnectionError
        if self._sent > 4:
            self.again.set()


def test_a_pause_that_ends_with_the_connection_goes_on_until_the_next_confirm() -> None:
    """Goal: what a client of a killed node waits is counted. Method: a connection that breaks, and the one after it."""
    system = Breaking()
    load = Load(cast("Driver", system), "q", 0, 0, clock=lambda: system.now)
    assert system.again.wait(60)
    load.end()
    assert (load.longest_s, load.unconfirmed) == (15, [2])


def test_nodes_have_their_names_wherever_a_definition_has_them() -> None:
    assert filled_in({"ha-params": ["$0", "$2"], "n": 2}, ["a", "b", "c"]) == {"ha-params": ["a", "c"], "n": 2}
    assert filled_in([], ["a"]) == []
