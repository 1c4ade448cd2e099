"""`mqtool group-reset`: what it prints, and what it does on real nodes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mirrorlog.diagnosis.cells import target_of
from mirrorlog.errors import BadInput
from mirrorlog.tools.common.output import page
from mirrorlog.tools.common.views import View
from mirrorlog.tools.group import reset_view
from mirrorlog.wire.messages.groups import GroupMove, GroupsReset
from mirrorlog.wire.messages.queues import Position
from tests.tools.conftest import Tool
from tests.tools.goldens import golden
from tests.tools.statuses import LOG_ID


def at(queue_offset: int) -> Position:
    return Position(log_id=LOG_ID, epoch=3, queue_offset=queue_offset)


MOVES = [
    GroupMove(group="", kind="acking", source=at(9_000_000), target=at(1200)),
    GroupMove(group="billing", kind="acking", source=at(1000), target=at(1200), active="2 subscribed, 7 leased"),
    GroupMove(group="[spark]", kind="stream", source=at(1200), target=at(1200)),
]


def told(*, done: bool, groups: list[GroupMove] = MOVES) -> GroupsReset:
    return GroupsReset(queue="flights", begin=1000, next=9_000_000, groups=groups, done=done)


@pytest.mark.parametrize(
    ("name", "view"),
    [
        ("group_reset_dry.txt", reset_view(told(done=False), forced=False)),
        ("group_reset_dry_forced.txt", reset_view(told(done=False), forced=True)),
        ("group_reset.txt", reset_view(told(done=True), forced=True)),
    ],
)
def test_a_view_is_printed_as_recorded(name: str, view: View) -> None:
    """Goal: the layout changes on purpose only. Method: compare with the golden text."""
    text = page(view)
    assert text == golden(name, text)


def test_a_queue_without_groups_is_one_line() -> None:
    """Goal: an empty table is no answer. Method: no groups."""
    assert page(reset_view(told(done=True, groups=[]), forced=False)) == "the queue has no group\n"


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", {"to": "earliest"}),
        ("latest", {"to": "latest"}),
        ("0", {"to": 0}),
        ("1200", {"to": 1200}),
        ("+10", {"shift": 10}),
        ("-10", {"shift": -10}),
        ("2026-11-21T10:15:00.5Z", {"to": datetime(2026, 11, 21, 10, 15, 0, 500_000, tzinfo=UTC)}),
        ("2026-11-21", {"to": datetime(2026, 11, 21, tzinfo=UTC)}),
    ],
)
def test_a_target_is_read(text: str, target: dict[str, Any]) -> None:
    """Goal: one option for every sort of target. Method: each of them."""
    assert target_of(text) == target


@pytest.mark.parametrize("text", ["", "soon", "+", "1.5", "--5", "9" * 30])
def test_what_is_no_target_is_refused(text: str) -> None:
    """Goal: nothing is guessed. Method: near misses."""
    with pytest.raises(BadInput):
        target_of(text)


@pytest.fixture
def queue(mqtool: Tool, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own, with five records."""
    name: str = request.node.name.split("[")[0]
    assert mqtool("declare", name).code == 0
    assert mqtool("publish", name, *(part for number in range(5) for part in ("--value", str(number)))).code == 0
    return name


def received(mqtool: Tool, queue: str, *options: str) -> list[str]:
    found = mqtool("receive", queue, "--wait", "0.3", "--json", *options)
    return [each["value"] for each in found.json_lines]


@pytest.mark.long
@pytest.mark.process
def test_a_reset_is_shown_before_it_is_done(mqtool: Tool, queue: str) -> None:
    """Goal: a dry run changes nothing and tells what comes. Method: two groups that have taken all; dry run, reset of
    one, of all; what is received then."""
    assert len(received(mqtool, queue)) == len(received(mqtool, queue, "--group", "g", "--create")) == 5
    told = mqtool("group-reset", queue, "g", "--to", "-2", "--dry-run", "--json").json
    assert (told["done"], told["begin"], told["next"]) == (False, 0, 5)
    (move,) = told["groups"]
    assert (move["group"], move["kind"], move["source"]["queue_offset"]) == ("g", "acking", 5)
    assert (move["target"]["queue_offset"], move["active"]) == (3, "")
    assert received(mqtool, queue, "--group", "g") == []
    assert mqtool("group-reset", queue, "g", "--to", "-2").out.split()[-6:] == ["g", "acking", "5", "3", "-2", "reset"]
    assert received(mqtool, queue, "--group", "g") == ["3", "4"]
    assert received(mqtool, queue) == []
    assert mqtool("group-reset", queue, "--all", "--to", "earliest").code == 0
    assert received(mqtool, queue) == received(mqtool, queue, "--group", "g") == ["0", "1", "2", "3", "4"]
    assert mqtool("group-reset", queue, "(own)", "--to", "4").code == 0
    assert received(mqtool, queue) == ["4"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["g", "--to", "earliest"], 5, "has no group 'g'; it has "),
        (["--to", "earliest"], 2, "--all"),
        (["g", "--all", "--to", "earliest"], 2, "--all, not both"),
        (["--all", "--to", "soon"], 2, "soon"),
        (["(own)", "--to", "600"], 7, "600 is not within 0 and "),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code(
    mqtool: Tool, queue: str, arguments: list[str], code: int, text: str
) -> None:
    """Goal: every wrong call ends at once and says what is wrong. Method: one of each kind."""
    outcome = mqtool("group-reset", queue, *arguments)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert text in outcome.err
