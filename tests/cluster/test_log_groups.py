"""Queues of one `x-log-group` share a log: decided once, kept, and refused where it cannot be."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.membership.cluster_view import NodeView
from mirrorlog.broker.membership.placing import Declared, PlacingSettings, place_for
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.command_codec import decode_command, encode_command
from mirrorlog.cluster.state.commands import Addresses, QueuesPlaced, QueuesRemoved
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.queue_rules import LOG_GROUPS_MAX, LOG_GROUPS_PER_HOST
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts, Outcome
from mirrorlog.cluster.state.topology_commands import VirtualHostMade, VirtualHostRemoved
from mirrorlog.errors import BadRequest
from mirrorlog.queues.arguments import check_names, check_values, log_group_of, version_needed
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST, qualified


def log(number: int, *, copies: int = 1, flush: str = "memory") -> LogFacts:
    return LogFacts(number=number, name=f"log{number}", flush=flush, replicas=("a",), copies=copies)


def cluster(**facts: object) -> ClusterState:
    logs = {"one": log(0), "two": log(1), "disk": log(2, flush="disk")}
    return ClusterState(
        cluster_id="c", name="c", nodes={"a": NodeFacts(1, Addresses(), start_id="run")}, logs=logs, **facts
    )  # type: ignore[arg-type]


def place(state: ClusterState, log_id: str, *names: str, group: str = "g") -> tuple[ClusterState, Outcome]:
    return applied(state, state.version + 1, QueuesPlaced(log_id=log_id, names=names, log_group=group))


def with_hosts(state: ClusterState, *names: str) -> ClusterState:
    for name in names:
        state, outcome = applied(state, state.version + 1, VirtualHostMade(name=name))
        assert not outcome.refusal
    return state


def test_queues_of_one_group_are_in_the_log_of_the_first() -> None:
    """Goal: two declarations at once that chose different logs end in one. Apply both."""
    state, _ = place(cluster(), "two", "first")
    state, outcome = place(state, "one", "second")
    assert outcome.refusal == ""
    assert (state.queues, state.log_groups) == ({"first": "two", "second": "two"}, {"g": "two"})
    assert place_for(state, Declared("q", {}, "", "g"), PlacingSettings(1), is_up=lambda node: True) == "two"


def test_a_decision_that_is_applied_twice_changes_nothing() -> None:
    """Goal: commands may be decided again. Apply one twice."""
    once, _ = place(cluster(), "two", "first")
    twice, outcome = place(once, "two", "first")
    assert (twice, outcome.refusal) == (once, "")


def test_a_group_outlives_its_queues() -> None:
    """Goal: who declares the queues anew finds them together again. Remove the only queue and place another."""
    state, _ = place(cluster(), "two", "first")
    state, _ = applied(
        state, 9, QueuesRemoved(names=("first",), log_id="two", epoch=state.logs["two"].epoch, removals=0)
    )
    assert "first" not in state.queues
    state, _ = place(state, "one", "first")
    assert state.queues == {"first": "two"}


def test_a_queue_that_was_placed_before_takes_its_group_along_or_is_refused() -> None:
    """Goal: a group is never in two logs. A placed queue names a new group, then one that is elsewhere."""
    state, _ = place(cluster(), "one", "q", group="")
    state, _ = place(state, "two", "q")
    assert (state.queues, state.log_groups) == ({"q": "one"}, {"g": "one"})
    state, _ = place(state, "two", "other", group="h")
    same, outcome = place(state, "one", "q", group="h")
    assert same == state
    assert "queue q is in log log0, and log group h in log log1" in outcome.refusal


def test_groups_of_two_virtual_hosts_have_nothing_in_common() -> None:
    """Goal: a group is known by its qualified name. Place the same name twice."""
    state, _ = place(cluster(), "one", "q", group="v\x1fg")
    state, _ = place(state, "two", "r", group="g")
    assert state.log_groups == {"v\x1fg": "one", "g": "two"}


def test_a_group_is_never_in_a_log_that_goes_with_its_node() -> None:
    """Goal: no durable queue loses its copies, and its records with the next restart, since its group is where another
    queue is not durable. Method: a queue in a transient log is named with a new group, and a group is to go there by
    itself: both are refused, and the group is still free."""
    state = cluster(transient={"a": "one"}, queues={"passing": "one"})
    for names, log_id in ((("passing",), "two"), (("other",), "one")):
        same, outcome = place(state, log_id, *names)
        assert same == state
        assert "log group g cannot be in log log0" in outcome.refusal
    state, outcome = place(state, "two", "invoices")
    assert (outcome.refusal, state.log_groups) == ("", {"g": "two"})


def groups_of(*hosts: str) -> dict[str, str]:
    """As many groups as each of these virtual hosts may have."""
    return {qualified(host, str(each)): "one" for host in hosts for each in range(LOG_GROUPS_PER_HOST)}


def test_a_virtual_host_has_so_many_groups_and_no_more() -> None:
    """Goal: the state stays small, and one virtual host does not use up what others need. Fill one and ask for one
    more: refused, saying what to do. A group that is there, and one of another virtual host, are as before."""
    full = with_hosts(cluster(log_groups=groups_of(DEFAULT_VIRTUAL_HOST)), "v")
    same, outcome = place(full, "one", "q", group="new")
    assert same == full
    assert f"virtual host / has {LOG_GROUPS_PER_HOST} log groups" in outcome.refusal
    assert "leave x-log-group away, take one that is there" in outcome.refusal
    assert place(full, "two", "q", group="7")[0].queues == {"q": "one"}
    assert place(full, "two", "v\x1fq", group="v\x1fnew")[0].log_groups["v\x1fnew"] == "two"


def test_there_are_so_many_groups_in_all_and_no_more() -> None:
    """Goal: the same of all virtual hosts together. As many as there may be, and one of a virtual host without any."""
    hosts = [f"v{number}" for number in range(LOG_GROUPS_MAX // LOG_GROUPS_PER_HOST)]
    full = with_hosts(cluster(log_groups=groups_of(*hosts)), *hosts)
    assert len(full.log_groups) == LOG_GROUPS_MAX
    same, outcome = place(full, "one", "q", group="new")
    assert same == full
    assert f"this cluster has {LOG_GROUPS_MAX} log groups" in outcome.refusal
    assert "remove a virtual host that nobody needs" in outcome.refusal


def test_groups_of_a_virtual_host_go_with_it() -> None:
    """Goal: names are not used up for ever. Remove a virtual host that has a group and no queue any more; its group is
    gone, that of another, whose name begins alike, is there."""
    state = with_hosts(cluster(), "v", "v2")
    for host in ("v", "v2", DEFAULT_VIRTUAL_HOST):
        state, outcome = place(state, "two", qualified(host, "q"), group=qualified(host, "g"))
        assert not outcome.refusal
    gone = QueuesRemoved(names=("v\x1fq",), log_id="two", epoch=state.logs["two"].epoch, removals=0)
    state, _ = applied(state, state.version + 1, gone)
    state, outcome = applied(state, state.version + 1, VirtualHostRemoved(name="v"))
    assert (outcome.refusal, state.log_groups) == ("", {"v2\x1fg": "two", "g": "two"})


def test_a_queue_that_does_not_fit_the_log_of_its_group_is_refused_saying_so() -> None:
    """Goal: placement arguments and group must agree. Ask for another flush mode, and for more copies."""
    state, _ = place(cluster(), "one", "q")
    for arguments in ({"flush": "disk"}, {"copies": 3}):
        with pytest.raises(BadRequest, match=r"log group g is in log log0, which has flush = 'memory' and copies = 1"):
            place_for(state, Declared("q", arguments, "", "g"), PlacingSettings(1), is_up=lambda node: True)
    fitting = {"flush": "memory", "copies": 1}
    assert place_for(state, Declared("q", fitting, "", "g"), PlacingSettings(3), is_up=lambda node: True) == "one"


def test_a_decision_that_would_put_a_queue_where_it_does_not_fit_is_refused() -> None:
    """Goal: also of two declarations at once, which did not know of each other when they chose a log, the second gets
    what it asks for or is told. Decide the first, then a second that chose another log; it asks for more copies, for
    another flush mode, and for what the log has."""
    state, _ = place(cluster(), "one", "first")
    for asked in ({"copies": 3}, {"flush": "disk"}):
        late = QueuesPlaced(log_id="disk", names=("second",), log_group="g", **asked)  # type: ignore[arg-type]
        same, outcome = applied(state, state.version + 1, late)
        assert same == state
        assert "log group g is in log log0, which has flush = 'memory' and copies = 1" in outcome.refusal
        assert "another x-log-group" in outcome.refusal
        assert decode_command(encode_command(late)) == late
    fits = QueuesPlaced(log_id="two", names=("second",), log_group="g", copies=1, flush="memory")
    assert applied(state, state.version + 1, fits)[0].queues == {"first": "one", "second": "one"}


@pytest.mark.parametrize(("groups", "advice"), [({}, "under another name"), ({"g": "one"}, "and another x-log-group")])
def test_who_cannot_reach_a_groups_log_is_told_to_take_another_group(groups: dict[str, str], advice: str) -> None:
    """Goal: what the refusal advises works: a queue of the same group would go to the same log. A log whose only node
    is down, with a group in it and without."""
    view, log_id = NodeView(), UUID(int=1)
    state = cluster(log_groups={group: str(log_id) for group in groups})
    state = replace(state, logs={**state.logs, str(log_id): log(3)})
    view.service = cast(ClusterService, SimpleNamespace(state=state, life=lambda node: Life.DOWN))
    error = view.outage(log_id)
    assert error is not None
    assert error.message.endswith(advice)


def test_a_command_without_a_group_is_the_bytes_that_it_was() -> None:
    """Goal: older software in the cluster reads what it knows. Encode both kinds, and read them back."""
    plain = QueuesPlaced(log_id="one", names=("q",))
    assert not any(name in encode_command(plain) for name in (b"log_group", b"copies", b"flush"))
    grouped = QueuesPlaced(log_id="one", names=("q",), log_group="g")
    assert decode_command(encode_command(grouped)) == grouped


@pytest.mark.parametrize("value", ["", 7, None, "a\x1fb", "x" * 256, ["g"]])
def test_a_group_is_a_name(value: object) -> None:
    """Goal: what is no name is refused. Declare with other values."""
    with pytest.raises(BadRequest, match="x-log-group"):
        check_values({"x-log-group": value})
    assert log_group_of({"x-log-group": value}) == ""


def test_the_argument_is_known_and_needs_the_cluster_that_knows_it() -> None:
    """Goal: no master of older software forgets it. Look at its version."""
    check_names(["x-log-group"], known={})
    check_values({"x-log-group": "orders"})
    assert version_needed({"x-log-group": "orders"}) == versions.LOG_GROUPS
