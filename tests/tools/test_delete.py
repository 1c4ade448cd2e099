"""Queues are deleted by hand, on real nodes."""

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
    assert mqtool("delete", queue).out == f"queue {queue} deleted; 5 records had not been settled\n"
    again = mqtool("delete", queue)
    assert (again.code, "no queue" in again.err, again.err.count("\n")) == (5, True, 1)
    assert mqtool("declare", queue).code == 0
    assert mqtool("consume", queue, "--until-end").out == ""
    assert mqtool("delete", queue, "--json").json == {"queue": queue, "records": 0}
    assert f"queue {queue} was deleted" in mqtool("events").out


def test_conditions_refuse_and_say_why(mqtool: Tool, queue: str) -> None:
    """A queue with records, for --if-empty; once it is empty it goes. --if-unused, and of another virtual host."""
    refused = mqtool("delete", queue, "--if-empty")
    assert (refused.code, "not empty: 5 records" in refused.err, refused.err.count("\n")) == (6, True, 1)
    assert len(mqtool("receive", queue, "--wait", "0.3").out.splitlines()) == 5
    assert mqtool("vhost-add", "theirs").code == 0
    assert mqtool("declare", queue, "--vhost", "theirs").code == 0
    assert mqtool("delete", queue, "--if-unused", "--vhost", "theirs").code == 0
    assert mqtool("delete", queue, "--if-empty", "--if-unused", "--force").out.startswith(f"queue {queue} deleted; 0 ")
