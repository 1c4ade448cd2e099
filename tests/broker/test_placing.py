"""Which log a new queue goes to."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from mirrorlog.broker.membership.placing import place_for
from mirrorlog.cluster.state.commands import Addresses, Holder, LogMade
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts
from mirrorlog.errors import BadRequest

CLUSTER_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"


def log(number: int, copies: int = 3, *, flush: str = "memory", replicas: str = "abc", master: str = "a") -> LogFacts:
    return LogFacts(
        number=number,
        name=f"log{number}",
        flush=flush,
        replicas=tuple(replicas),
        copies=copies,
        master=Holder(master, "run") if master else None,
    )


def state(*logs: LogFacts, nodes: str = "abc", queues: dict[str, str] | None = None) -> ClusterState:
    facts = {node: NodeFacts(number, Addresses(), start_id="run") for number, node in enumerate(nodes, 1)}
    return ClusterState(
        CLUSTER_ID, "c", nodes=facts, logs={each.name: each for each in logs}, queues=queues or {}, homes=False
    )


def placed(known: ClusterState, *, copies: int = 3, down: str = "", **arguments: Any) -> str | LogMade:
    return place_for(known, arguments, copies=copies, is_up=lambda node: node not in down)


def test_a_queue_goes_to_the_log_with_the_fewest_queues() -> None:
    """Of those that have a master; of equals to the first."""
    assert placed(state(log(0), log(1))) == "log0"
    assert placed(state(log(0), log(1), queues={"q": "log0"})) == "log1"
    assert placed(state(log(0), log(1, master=""), queues={"q": "log0"})) == "log0"


def test_its_flush_mode_and_number_of_copies_are_a_logs() -> None:
    """Whichever it asks for; one that asks for nothing gets the cluster's number of copies, and any mode."""
    known = state(log(0), log(1, flush="disk"), log(2, 2, replicas="ab"), log(3, 1, replicas="b"))
    assert placed(known, flush="disk") == "log1"
    assert placed(known, flush="memory") == "log0"
    assert place_for(known, {"copies": 2}, copies=3, is_up=lambda node: True) == "log2"
    assert place_for(known, {"copies": 3, "flush": "disk"}, copies=3, is_up=lambda node: True) == "log1"
    for queues in ({}, {"a": "log0", "b": "log0", "c": "log1"}):
        assert placed(state(*known.logs.values(), queues=queues)) in ("log0", "log1")


@pytest.mark.parametrize("nodes", ["a", "ab"])
def test_a_small_cluster_has_as_many_copies_as_it_has_nodes(nodes: str) -> None:
    """A log with fewer is for those who asked for it; by a default that is above what there is."""
    known = state(log(0, len(nodes), replicas=nodes), log(1, 1, replicas="a"), nodes=nodes, queues={"q": "log0"})
    assert placed(known) == ("log0" if len(nodes) > 1 else "log1")


def test_a_log_is_made_for_a_number_that_none_has() -> None:
    """At home on the node that is up and holds the fewest copies, with a free number; the same whoever asks for it."""
    known = state(log(0), log(2, replicas="ab"))
    asked = place_for(known, {"copies": 2, "flush": "disk"}, copies=3, is_up=lambda node: True)
    assert isinstance(asked, LogMade)
    assert (asked.name, asked.number, asked.flush, asked.copies) == ("2-copies-disk", 1, "disk", 2)
    assert asked.replicas == ("c",)
    assert UUID(asked.log_id)
    again = place_for(known, {"copies": 2, "flush": "disk"}, copies=3, is_up=lambda node: node != "c")
    assert isinstance(again, LogMade)
    assert (again.log_id, again.replicas) == (asked.log_id, ("a",))
    after, outcome = applied(known, 7, asked)
    assert not outcome.refusal
    assert place_for(after, {"copies": 2, "flush": "disk"}, copies=3, is_up=lambda node: True) == asked.log_id


def test_what_the_cluster_cannot_have_is_refused() -> None:
    """More copies than nodes, a mode that no log has, a cluster without logs; by the reason."""
    with pytest.raises(BadRequest, match="'copies' is 4, and the cluster has 3 nodes"):
        place_for(state(log(0)), {"copies": 4}, copies=3, is_up=lambda node: True)
    with pytest.raises(BadRequest, match="no log of this cluster has flush = 'disk'; say with copies"):
        placed(state(log(0)), flush="disk")
    with pytest.raises(BadRequest, match="no log yet"):
        placed(state())
    full = state(*(log(number) for number in range(256)))
    with pytest.raises(BadRequest, match="256 logs, and can have no more"):
        place_for(full, {"copies": 2}, copies=3, is_up=lambda node: True)
