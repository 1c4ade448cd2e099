"""Records of a queue's groups by hand, on real nodes: receive, groups, purge, group-delete."""

from __future__ import annotations

import pytest

from tests.tools.conftest import Tool

pytestmark = pytest.mark.process


@pytest.fixture
def queue(mqtool: Tool, request: pytest.FixtureRequest) -> str:
    """A queue of the test's own, with five records."""
    name: str = request.node.name.split("[")[0]
    assert mqtool("declare", name).code == 0
    assert mqtool("publish", name, *(part for number in range(5) for part in ("--value", str(number)))).code == 0
    return name


def received(mqtool: Tool, queue: str, *options: str) -> list[tuple[str, int]]:
    found = mqtool("receive", queue, "--wait", "0.3", "--json", *options)
    assert (found.code, found.err) == (0, "")
    return [(each["value"], each["attempts"]) for each in found.json_lines]


def test_what_is_received_is_acknowledged(mqtool: Tool, queue: str) -> None:
    """Goal: taken once. Method: two, the rest, none."""
    assert received(mqtool, queue, "--count", "2") == [("0", 0), ("1", 0)]
    assert received(mqtool, queue) == [("2", 0), ("3", 0), ("4", 0)]
    assert received(mqtool, queue) == []


def test_what_is_given_back_comes_again(mqtool: Tool, queue: str) -> None:
    """Goal: --peek changes nothing, --nack counts, --reject ends it. Method: one after the other."""
    assert received(mqtool, queue, "--peek") == [(str(number), 0) for number in range(5)]
    assert received(mqtool, queue, "--nack", "--count", "2") == [("0", 0), ("1", 0)]
    assert received(mqtool, queue, "--reject", "--count", "1") == [("0", 1)]
    lines = mqtool("receive", queue, "--wait", "0.3").out.splitlines()
    assert lines[0].endswith("\t1\tagain, 1 attempts before")
    assert lines[1].endswith("\t2")
    assert len(lines) == 4


def test_groups_are_received_from_and_listed_each(mqtool: Tool, queue: str) -> None:
    """Goal: what each group has before it. Method: one group acks three; both kinds of listing; then it is deleted."""
    assert len(received(mqtool, queue, "--group", "billing", "--count", "3")) == 3
    [billing] = [each for each in mqtool("groups", queue, "--json").json if each["group"] == "billing"]
    assert (billing["kind"], billing["floor"], billing["unsettled"], billing["queue"]) == ("acking", 3, 2, queue)
    shown = mqtool("groups", queue).out
    assert any(line.split()[:3] == ["billing", "3", "2"] for line in shown.splitlines())
    deleted = mqtool("group-delete", queue, "billing")
    assert deleted.out == f"acking group billing of queue {queue} deleted; it stood at 3\n"
    again = mqtool("group-delete", queue, "billing")
    assert (again.code, "no group 'billing'" in again.err) == (5, True)


def test_a_queue_is_purged(mqtool: Tool, queue: str) -> None:
    """Goal: nothing waits any more, and the stream is as it was. Method: purge twice, receive, consume."""
    assert received(mqtool, queue, "--count", "1") == [("0", 0)]
    assert mqtool("purge", queue, "--json").json == {"queue": queue, "group": "", "records": 4}
    assert mqtool("purge", queue).out == f"0 records purged from queue {queue}\n"
    assert received(mqtool, queue) == []
    assert len(mqtool("consume", queue, "--until-end").out.splitlines()) == 5


def test_dead_letters_are_sent_back(mqtool: Tool, queue: str) -> None:
    """Goal: what was rejected is back in its queue. Method: one queue leads to another; reject two of five, redrive one
    and then the rest; to another queue nothing is left."""
    dead = f"{queue}.dead"
    source = f"{queue}.source"
    assert mqtool("declare", dead).code == 0
    way = ["--arg", "x-dead-letter-exchange=", "--arg", f"x-dead-letter-routing-key={dead}"]
    assert mqtool("declare", source, *way).code == 0
    assert mqtool("publish", source, "--value", "v").code == 0
    assert received(mqtool, source, "--reject", "--count", "1") == [("v", 0)]
    assert received(mqtool, dead, "--peek", "--count", "1", "--wait", "20") == [("v", 0)]
    assert mqtool("redrive", dead, "--json").json == {"queue": dead, "to": "", "records": 1}
    assert received(mqtool, source, "--count", "1", "--wait", "20") == [("v", 0)]
    assert mqtool("redrive", dead, "--to", queue).out == f"0 records on the way to queue {queue}\n"


def test_a_queue_of_another_virtual_host_is_another_one(mqtool: Tool, queue: str) -> None:
    """Goal: --vhost of each command. Method: the same name there, without records; what is not there is told."""
    assert mqtool("vhost-add", "mine").code == 0
    assert mqtool("declare", queue, "--vhost", "mine").code == 0
    assert received(mqtool, queue, "--vhost", "mine", "--group", "g") == []
    assert mqtool("purge", queue, "--vhost", "mine").out.startswith("0 records purged")
    assert mqtool("groups", queue, "--vhost", "mine", "--json").json[0]["unsettled"] == 0
    assert mqtool("group-delete", queue, "g", "--vhost", "mine").code == 0
    assert received(mqtool, queue, "--count", "1") == [("0", 0)]


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["receive", "no-such-queue"], 5, "mqtool declare no-such-queue"),
        (["purge", "no-such-queue"], 5, "mqtool declare no-such-queue"),
        (["redrive", "no-such-queue"], 5, "mqtool declare no-such-queue"),
        (["redrive", "q", "--max", "0"], 2, "--max"),
        (["group-delete", "no-such-queue", "g"], 5, "mqtool declare no-such-queue"),
        (["receive", "q", "--nack", "--peek"], 2, "exclude each other"),
        (["receive", "q", "--count", "0"], 2, "--count"),
        (["group-delete", "q", ""], 2, "own group"),
    ],
)
def test_a_mistake_is_one_line_with_its_exit_code(mqtool: Tool, arguments: list[str], code: int, text: str) -> None:
    """Goal: every wrong call ends at once and says what is wrong. Method: one of each kind."""
    mqtool("declare", "q")
    outcome = mqtool(*arguments)
    assert (outcome.code, outcome.err.count("\n")) == (code, 1)
    assert outcome.err.startswith("mqtool: ")
    assert text in outcome.err
