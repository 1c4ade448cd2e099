"""What is there is deleted by hand, on real nodes; what is not there is said not to be."""

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


def test_a_queue_is_deleted_and_a_second_time_it_is_not_there(mqtool: Tool, queue: str) -> None:
    """In words and as JSON; a queue of its name is empty; the chronicle tells it."""
    assert mqtool("delete", queue).out == f"queue {queue} deleted; it had 5 records\n"
    again = mqtool("delete", queue)
    assert (again.code, "no queue" in again.err, again.err.count("\n")) == (5, True, 1)
    assert mqtool("declare", queue).code == 0
    assert mqtool("consume", queue, "--until-end").out == ""
    assert mqtool("delete", queue, "--json").json == {"queue": queue, "records": 0}
    assert f"queue {queue} was deleted" in mqtool("events").out


def test_of_a_work_queue_what_was_not_settled_is_told(mqtool: Tool, queue: str) -> None:
    """And of one that nobody was ever subscribed to how much it had, as above."""
    assert mqtool("receive", queue, "--count", "2").code == 0
    assert mqtool("delete", queue).out == f"queue {queue} deleted; 3 records had not been settled\n"


def test_conditions_refuse_and_say_why(mqtool: Tool, queue: str) -> None:
    """A queue with records, for --if-empty; once it is empty it goes. --if-unused, and of another virtual host."""
    refused = mqtool("delete", queue, "--if-empty")
    assert (refused.code, "not empty: 5 records" in refused.err, refused.err.count("\n")) == (6, True, 1)
    assert len(mqtool("receive", queue, "--wait", "0.3").out.splitlines()) == 5
    assert mqtool("vhost-add", "theirs").code == 0
    assert mqtool("declare", queue, "--vhost", "theirs").code == 0
    assert mqtool("delete", queue, "--if-unused", "--vhost", "theirs").code == 0
    gone = mqtool("delete", queue, "--if-empty", "--if-unused", "--force").out
    assert gone == f"queue {queue} deleted; 0 records had not been settled\n"


@pytest.mark.parametrize(
    "command",
    [
        ("delete", "no-q"),
        ("group-delete", "no-q", "g"),
        ("landing-end", "no-q", "l"),
        ("exchange-delete", "no-e"),
        ("unbind", "amq.topic", "no-q", "--key", "k"),
        ("unbind", "amq.topic", "amq.match", "--to-exchange", "--arg", "size=7"),
        ("vhost-delete", "no-v"),
        ("user-delete", "nobody"),
        ("user-permissions", "nobody", "--clear"),
        ("clear-policy", "no-p"),
        ("clear-operator-policy", "no-p"),
        ("forget-node", "n9"),
        ("close-connection", "no-c"),
    ],
    ids="-".join,
)
def test_what_is_not_there_to_be_taken_away_is_an_error_unless_it_need_not_be(
    mqtool: Tool, command: tuple[str, ...]
) -> None:
    """Goal: a mistyped name is seen; a script that runs twice says so beforehand."""
    missing = mqtool(*command)
    assert (missing.code, missing.out, missing.err.count("\n")) == (5, "", 1), missing
    allowed = mqtool(*command, "--if-exists")
    assert (allowed.code, allowed.out, allowed.err.count("\n")) == (0, "", 1), allowed


@pytest.mark.parametrize(
    "command",
    ["queues", "groups", "rates", "producers", "landings", "offsets", "doctor", "list-queues", "list-policies",
     "list-operator-policies", "exchanges", "bindings", "export-definitions"],
)  # fmt: skip
def test_a_list_of_a_virtual_host_that_is_not_there_is_an_error(mqtool: Tool, command: str) -> None:
    """Goal: nobody takes a mistyped name for an empty virtual host."""
    found = mqtool(command, "--vhost", "no-v")
    assert (found.code, found.out, found.err.count("\n")) == (5, "", 1), found
    assert "no virtual host 'no-v'" in found.err


@pytest.mark.parametrize("command", [("events",), ("nodes",), ("close-connection", "c")])
def test_a_node_that_is_not_there_is_an_error(mqtool: Tool, command: tuple[str, ...]) -> None:
    found = mqtool(*command, "--node", "nope")
    assert (found.code, found.out, found.err.count("\n")) == (5, "", 1), found
    assert "no node 'nope' in this cluster" in found.err


def test_a_tag_that_means_nothing_is_refused_by_those_that_do(mqtool: Tool) -> None:
    refused = mqtool("user-set", "alice", "--tag", "administrater", "--password-hash", "x")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "administrater means nothing here; there are administrator, monitoring, " in refused.err
