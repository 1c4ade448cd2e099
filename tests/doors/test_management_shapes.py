"""Shapes of the management API, without a cluster: rows, lists, errors, paths, values."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from msgspec.structs import replace

from mirrorlog import errors
from mirrorlog.client.definitions.rows import flag, number, stored_hash, table, tags_of
from mirrorlog.doors.http.lists import Statuses
from mirrorlog.doors.management.api import ROUTES, RouteTable
from mirrorlog.doors.management.calls import ClusterStatuses
from mirrorlog.doors.management.queues import outage_row, queue_row
from mirrorlog.doors.management.shapes import ApiError, error_of, shaped
from mirrorlog.doors.management.topology import properties_key
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.queues import QueueInfo, QueueOutage
from mirrorlog.wire.messages.status import QueueStatus
from mirrorlog.wire.routing import Binding

INFO = QueueInfo(
    name="shop\x1fbills", queue_id=1, log_id="l", epoch=1, master="n1", mirrors=["n2"], begin=0, next=5,
    arguments={"durable": False, "copies": 2},
)  # fmt: skip
TOLD = QueueStatus(
    name="shop\x1fbills", queue_id=1, begin=0, next=5, confirmed=5, ready=3, unacknowledged=1, consumers=2
)


def test_a_number_that_nobody_tells_is_left_out_and_none_is_null() -> None:
    whole = queue_row(INFO, None, TOLD)
    assert (whole["messages"], whole["messages_ready"], whole["consumers"]) == (4, 3, 2)
    assert (whole["vhost"], whole["name"], whole["durable"], whole["arguments"]) == (
        "shop",
        "bills",
        False,
        {"copies": 2},
    )
    older = QueueStatus(name="q", queue_id=1, begin=0, next=5, confirmed=5)
    for told in (None, older):
        assert not {"messages", "messages_ready", "consumers", "message_stats"} & queue_row(INFO, None, told).keys()
    down = outage_row(QueueOutage(name="q", log_id="l", node="n2", reason="all are down"))
    assert down == {"name": "q", "vhost": "/", "node": "n2", "state": "down", "reason": "all are down"}
    for row in (whole, down, queue_row(INFO, None, None)):
        assert None not in row.values()


def test_a_queue_tells_its_policies_and_what_they_make_of_it() -> None:
    """Goal: RabbitMQ's columns. Method: a queue with a key of its own, and one of its policy."""
    effective, sources = {"copies": 2, "x-max-length": 5}, {"copies": "argument", "x-max-length": "policy p"}
    row = queue_row(replace(INFO, policy="p", effective=effective, sources=sources), None, None)
    assert (row["policy"], row["effective_policy_definition"]) == ("p", {"x-max-length": 5})
    assert "operator_policy" not in row


def test_a_node_that_does_not_answer_tells_of_no_queue() -> None:
    silent: Statuses = {"n1": errors.RequestTimeout("silent")}
    statuses = ClusterStatuses(silent)
    assert statuses.queue(INFO) is None
    assert list(statuses.told) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [({"f": True}, True), ({"f": "false"}, False), ({}, True)],
)
def test_flags_are_taken_as_rabbitmqadmin_sends_them(body: dict[str, Any], said: bool) -> None:
    assert flag(body, "f", default=True) is said


def test_values_that_do_not_fit_are_refused_by_name() -> None:
    for wrong in (
        lambda: flag({"f": 1}, "f"), lambda: number({"n": "-1"}, "n", 0), lambda: number({"n": 1.5}, "n", 0),
        lambda: number({"n": True}, "n", 0), lambda: table({"t": "x"}, "t"), lambda: tags_of({"tags": [1]}),
        lambda: stored_hash({"password_hash": "x", "hashing_algorithm": "md5"}),
    ):  # fmt: skip
        with pytest.raises(errors.BadRequest, match=r"should be|is not known") as caught:
            wrong()
        assert error_of(caught.value).status == 400
    assert number({"n": "12"}, "n", 0) == 12
    assert table({"t": []}, "t") == table({}, "t") == {}
    assert tags_of({"tags": "a, b,"}) == ["a", "b"]
    assert stored_hash({"password_hash": "x"}) == "rabbit_password_hashing_sha256$x"


def test_rows_are_sorted_by_what_is_within_them_whatever_they_lack() -> None:
    rows = [{"name": "a", "d": {"rate": 2}}, {"name": "b"}, {"name": "c", "d": {"rate": "x"}}, {"name": "d", "d": 5}]
    found = shaped(rows, {"sort": "d.rate"})
    assert [row["name"] for row in found] == ["b", "d", "a", "c"]
    assert shaped([{"a": {"b": 1, "c": 2}, "d": 3}], {"columns": "a.b,a.c,x"}) == [{"a": {"b": 1, "c": 2}}]
    page = shaped([], {"page": "1"})
    assert isinstance(page, dict)
    assert (page["page_count"], page["items"]) == (1, [])


def test_every_error_of_the_tree_has_a_status_and_what_may_be_tried_again_is_no_fault_of_the_asker() -> None:
    """Goal: no error of a node is taken for one of the door. Method: all classes there are."""
    kinds = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, MirrorlogError)]
    for kind in kinds:
        found = error_of(kind.__new__(kind))
        if kind.retriable:
            assert found.status in (503, 504), kind
        if issubclass(kind, errors.BadInput) and not issubclass(kind, errors.PreconditionFailed):
            assert found.status in (400, 401), kind
    assert error_of(errors.NoSuchVirtualHost("x")).body == {"error": "not_found", "reason": "vhost_not_found"}
    assert error_of(errors.LoginFailed("x")).headers is not None


def test_paths_are_split_before_they_are_decoded() -> None:
    routes = RouteTable(ROUTES)
    assert routes.find("queues/%2f/a%2Fb/get")[1] == {"vhost": "/", "queue": "a/b"}
    assert routes.find("users/without-permissions")[1] == {}
    assert routes.find("users/else")[1] == {"user": "else"}
    for path in ("queues/%2f/a/b/c", "nothing", "queues//q/"):
        with pytest.raises(ApiError, match="Not Found"):
            routes.find(path)
    with pytest.raises(UnicodeDecodeError):
        routes.find("queues/%2f/%ff")


def test_bindings_have_rabbitmqs_keys() -> None:
    assert properties_key(Binding("e", "q")) == "~"
    assert properties_key(Binding("e", "q", "a.#~ b")) == "a.%23%7E+b"
    keyed = properties_key(Binding("e", "q", "k", arguments={"a": 1, "b": "x"}))
    assert keyed.startswith("k~")
    assert keyed == properties_key(Binding("e", "q", "k", arguments={"b": "x", "a": 1}))
    assert keyed != properties_key(Binding("e", "q", "k", arguments={"a": 1, "b": "y"}))
