"""Which log a new queue goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mirrorlog import versions
from mirrorlog.broker.hosting.hosting import assignment_of
from mirrorlog.broker.membership.placing import Declared, PlacingSettings, evening, place_for, rule_for, unlike, will_do
from mirrorlog.cluster.state.commands import Addresses, Holder, LogMade, QueuesPlaced
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.placements import Placement
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


def state(*logs: LogFacts, nodes: str = "abc", queues: dict[str, str] | None = None, version: int = 6) -> ClusterState:
    facts = {node: NodeFacts(number, Addresses(), start_id="run") for number, node in enumerate(nodes, 1)}
    return ClusterState(
        CLUSTER_ID,
        "c",
        nodes=facts,
        logs={each.name: each for each in logs},
        queues=queues or {},
        homes=False,
        cluster_version=version,
    )


def placed(
    known: ClusterState,
    *,
    name: str = "q",
    at: str = "",
    down: str = "",
    settings: PlacingSettings = PlacingSettings(),  # noqa: B008
    **arguments: Any,
) -> str | LogMade:
    found = {key.replace("locator", "queue-master-locator"): value for key, value in arguments.items()}
    return place_for(known, Declared(name, found, at), settings, is_up=lambda node: node not in down)


def made(known: ClusterState, **asked: Any) -> LogMade:
    found = placed(known, **asked)
    assert isinstance(found, LogMade)
    return found


def declared(known: ClusterState, name: str, **asked: Any) -> tuple[ClusterState, str]:
    """The state once the queue is placed, in a log that its home masters by then; and who that is."""
    found = placed(known, name=name, **asked)
    if isinstance(found, LogMade):
        known, outcome = applied(known, known.version + 1, found)
        assert not outcome.refusal
    log_id = found.log_id if isinstance(found, LogMade) else found
    known, outcome = applied(known, known.version + 1, QueuesPlaced(log_id=log_id, names=(name,)))
    assert not outcome.refusal
    return known, known.logs[log_id].replicas[0]


def test_a_queue_goes_to_the_log_with_the_fewest_queues() -> None:
    """Of those that have a master; of equals to the first."""
    assert placed(state(log(0), log(1))) == "log0"
    assert placed(state(log(0), log(1), queues={"q": "log0"})) == "log1"
    assert placed(state(log(0), log(1, master=""), queues={"q": "log0"})) == "log0"


def test_a_queue_goes_to_the_node_that_masters_the_fewest() -> None:
    """Not to the emptiest log of one that masters many."""
    queues = {"1": "log0", "2": "log0", "3": "log2"}
    assert placed(state(log(0), log(1), log(2, master="b"), queues=queues)) == "log2"


def test_its_flush_mode_and_number_of_copies_are_a_logs() -> None:
    """Whichever it asks for; one that asks for nothing gets the cluster's number of copies, and any mode."""
    known = state(log(0), log(1, flush="disk"), log(2, 2, replicas="ab"), log(3, 1, replicas="b"))
    assert placed(known, flush="disk") == "log1"
    assert placed(known, flush="memory") == "log0"
    assert placed(known, copies=2) == "log2"
    assert placed(known, copies=3, flush="disk") == "log1"
    for queues in ({}, {"a": "log0", "b": "log0", "c": "log1"}):
        assert placed(state(*known.logs.values(), queues=queues)) in ("log0", "log1")


@pytest.mark.parametrize("nodes", ["a", "ab"])
def test_a_small_cluster_has_as_many_copies_as_it_has_nodes(nodes: str) -> None:
    """A log with fewer is for those who asked for it; by a default that is above what there is."""
    known = state(log(0, len(nodes), replicas=nodes), log(1, 1, replicas="a"), nodes=nodes, queues={"q": "log0"})
    assert placed(known) == ("log0" if len(nodes) > 1 else "log1")


def test_a_log_is_made_for_what_none_has() -> None:
    """At the home that masters the fewest queues, with a free number and its other copies where the fewest are; the
    same whoever asks for it."""
    known = state(log(0), log(2, replicas="ab"))
    asked = made(known, copies=2, flush="disk")
    assert (asked.name, asked.number, asked.flush, asked.copies) == ("2-copies-disk-c", 1, "disk", 2)
    assert asked.placement == Placement(copies=2, flush="disk")
    assert asked.replicas == ("c", "a")
    assert UUID(asked.log_id)
    assert made(known, copies=2, flush="disk") == asked
    assert made(known, copies=2, flush="disk", down="c").replicas == ("b", "a")
    after, outcome = applied(known, 7, asked)
    assert not outcome.refusal
    assert after.rule(asked.log_id) == asked.placement
    assert placed(after, copies=2, flush="disk", down="ab") == asked.log_id


def test_a_cluster_of_before_gets_one_log_for_a_number_of_copies() -> None:
    """As software of that version makes it: the copies come one by one, and whoever asks next goes there."""
    known = state(log(0), version=versions.PLACEMENTS - 1)
    asked = made(known, copies=2)
    assert (asked.name, asked.replicas, asked.placement) == ("2-copies-memory", ("b",), None)
    after, _ = applied(known, 7, asked)
    assert placed(after, copies=2, name="other") == asked.log_id


def test_masters_are_spread() -> None:
    """Twelve queues with two copies on three nodes are four on each, in three logs; a fourth node gets the next
    four."""
    known = state(log(0))
    homes = Counter[str]()
    for number in range(12):
        known, home = declared(known, f"q{number}", copies=2)
        homes[home] += 1
    assert homes == {"a": 4, "b": 4, "c": 4}
    assert len(known.logs) == 4
    joined = ClusterState(
        CLUSTER_ID,
        "c",
        nodes={**known.nodes, "d": NodeFacts(9, Addresses(), start_id="run")},
        logs=known.logs,
        queues=known.queues,
        places=known.places,
        cluster_version=6,
    )
    for number in range(4):
        joined, home = declared(joined, f"new{number}", copies=2)
        assert home == "d"


@pytest.mark.parametrize(
    "words",
    [
        {"copies": 2},
        {"nodes": ["a", "b"]},
        {"min_in_sync": 2},
        {"flush": "disk"},
        {"ha-promote-on-shutdown": "always"},
        {"ha-promote-on-failure": "always"},
    ],
)
def test_queues_by_different_rules_never_share_a_log(words: dict[str, Any]) -> None:
    """Each has its own, beside the one of those that ask for nothing; one that asks for the same goes there."""
    known, _ = declared(state(log(0), nodes="a"), "plain")
    known, _ = declared(known, "other", **words)
    known, _ = declared(known, "same", **words)
    assert known.queues["plain"] != known.queues["other"] == known.queues["same"]


def test_nodes_say_who_holds_it() -> None:
    """In their order of preference; unknown ones are left out, and when none is there the node that was asked takes
    it."""
    known = state(log(0), nodes="abcd")
    assert made(known, nodes=["d", "b"]).replicas in (("d", "b"), ("b", "d"))
    assert made(known, nodes=["d", "x"]).replicas == ("d",)
    assert made(known, nodes=["d", "b"], down="d").replicas == ("b",)
    alone = made(known, nodes=["x", "y"], at="c")
    assert (alone.replicas, alone.copies) == (("c",), 2), "those that it names come later"


def test_a_locator_chooses_the_home() -> None:
    """The node that was asked, or any: the same for the same queue, and all of them for many."""
    known = state(log(0), nodes="abc")
    assert made(known, copies=1, at="b", locator="client-local").replicas == ("b",)
    assert made(known, copies=1, at="b", settings=PlacingSettings(locator="client-local")).replicas == ("b",)
    at_random = [made(known, name=f"q{number}", copies=1, locator="random").replicas[0] for number in range(40)]
    assert set(at_random) == set("abc")
    assert at_random[3] == made(known, name="q3", copies=1, locator="random").replicas[0]
    known = state(log(0), log(1, master="b"), log(2, master="c"), nodes="abc")
    assert placed(known, at="c", locator="client-local") == "log2"
    assert {placed(known, name=f"q{number}", locator="random") for number in range(40)} == {"log0", "log1", "log2"}


def test_more_copies_than_nodes_are_all_nodes() -> None:
    """It is no error: the others come with their nodes."""
    asked = made(state(log(0)), copies=5)
    assert (asked.copies, set(asked.replicas)) == (5, set("abc"))


def test_a_node_is_home_to_no_more_logs_than_it_may_be() -> None:
    """Another one takes the next; when all are full a log that is there does; when none of the rule is there it is
    refused, by the setting."""
    settings = PlacingSettings(logs_per_node_max=1)
    known = state(log(0, replicas="abc"))
    assert made(known, copies=2, settings=settings).replicas[0] == "b"
    known, _ = declared(known, "1", copies=2, settings=settings)
    known, _ = declared(known, "2", copies=2, settings=settings)
    assert len(known.logs) == 3
    assert isinstance(placed(known, copies=2, settings=settings), str)
    with pytest.raises(BadRequest, match=r"home to 1 logs \(cluster.logs_per_node_max\)"):
        placed(known, copies=1, settings=settings)


def test_what_the_cluster_cannot_have_is_refused() -> None:
    """More in sync than copies, a cluster without logs, one with all that it can have; by the reason."""
    with pytest.raises(BadRequest, match="'min_in_sync' is 3, and the queue shall have 2 copies"):
        placed(state(log(0)), copies=2, min_in_sync=3)
    with pytest.raises(BadRequest, match="no log yet"):
        placed(state())
    full = state(*(log(number) for number in range(256)))
    with pytest.raises(BadRequest, match="256 logs, and can have no more"):
        placed(full, copies=2)


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["memory", "disk"])), max_size=30), st.integers(1, 4))
def test_no_node_masters_two_more_than_another_of_one_rule(asked: list[tuple[int, str]], nodes: int) -> None:
    """However queues of many rules come: all nodes have as many of them, to one."""
    known = state(log(0), nodes="abcd"[:nodes])
    mastered = Counter[str](dict.fromkeys(known.nodes, 0))
    for number, (copies, flush) in enumerate(asked):
        known, home = declared(known, f"q{number}", copies=copies, flush=flush, min_in_sync=1)
        mastered[home] += 1
    assert max(mastered.values()) - min(mastered.values()) <= 1


class Uncounted(dict[str, str]):
    """The queues of a cluster, which nobody is to go through."""

    def values(self) -> Any:
        raise AssertionError("all queues were looked at")


def test_a_rule_alone_counts_no_queues() -> None:
    """It is asked for again and again, of a cluster that may have 100,000 queues."""
    known = state(log(0), log(1, flush="disk"), queues=Uncounted(q="log0"))
    assert rule_for({"copies": 2}, known, PlacingSettings()) == Placement(copies=2, flush="memory")
    assert will_do(known, "log0", {"flush": "memory"}, PlacingSettings())
    assert not will_do(known, "log0", {"flush": "disk"}, PlacingSettings())


def evened(known: ClusterState, *, copies: int = 2) -> tuple[ClusterState, int]:
    """The state once no log gives queues away any more, the fullest home first; and how many went."""
    moved = 0
    while True:
        at = Counter(known.logs[log_id].replicas[0] for log_id in known.queues.values())
        for log_id in sorted(set(known.queues.values()), key=lambda each: (-at[known.logs[each].replicas[0]], each)):
            names = sorted(name for name, where in known.queues.items() if where == log_id)
            queue = Declared(names[0], {"copies": copies})
            many = evening(known, queue, log_id, PlacingSettings(), is_up=lambda node: True)
            if many:
                break
        else:
            return known, moved
        for name in names[:many]:
            known, _ = declared(replace(known, queues=without(known.queues, name)), name, copies=copies)
            moved += 1
        assert moved < 10_000


def without(queues: Mapping[str, str], name: str) -> dict[str, str]:
    return {each: log_id for each, log_id in queues.items() if each != name}


def joined(known: ClusterState, node: str) -> ClusterState:
    return replace(known, nodes={**known.nodes, node: NodeFacts(len(known.nodes) + 1, Addresses(), start_id="run")})


def queues_at(known: ClusterState) -> Counter[str]:
    return Counter(known.logs[log_id].replicas[0] for log_id in known.queues.values())


@given(st.integers(1, 60), st.data())
def test_queues_are_spread_again_after_a_node_joined_or_queues_went(count: int, data: st.DataObject) -> None:
    """No home has more than a fifth more than another, none is left with nothing, and no more go than must. By queues
    declared on three nodes, of which some are deleted, and a fourth node."""
    known = state(log(0))
    for number in range(count):
        known, _ = declared(known, f"q{number}", copies=2)
    gone = data.draw(st.sets(st.sampled_from(sorted(known.queues))))
    known = joined(replace(known, queues={name: at for name, at in known.queues.items() if name not in gone}), "d")
    before = queues_at(known)
    after, moved = evened(known)
    counts = queues_at(after)
    of_all = [counts[node] for node in "abcd"]
    assert max(of_all) - min(of_all) < max(2, max(of_all) // 5)
    assert sum(of_all) == count - len(gone)
    assert moved == sum(max(0, counts[node] - before[node]) for node in "abcd")


def test_a_queue_that_was_placed_where_it_was_wanted_stays_there() -> None:
    """By the argument, and by the setting; and where homes have as many, or one more."""
    known = state(log(0))
    for number in range(4):
        known, home = declared(known, f"q{number}", at="a", copies=2, locator="client-local")
        assert home == "a"
    log_id = known.queues["q0"]

    def many(settings: PlacingSettings, **arguments: Any) -> int:
        return evening(known, Declared("q0", {"copies": 2, **arguments}), log_id, settings, is_up=lambda node: True)

    assert many(PlacingSettings()) == 2
    assert many(PlacingSettings(), **{"queue-master-locator": "client-local"}) == 0
    assert many(PlacingSettings(locator="random")) == 0
    assert many(PlacingSettings(locator="random"), **{"queue-master-locator": "min-masters"}) == 2
    known = replace(known, queues={"q0": log_id})
    assert many(PlacingSettings()) == 0


PLACES: Any = st.fixed_dictionaries(
    {},
    optional={
        "copies": st.integers(1, 5),
        "nodes": st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True),
        "flush": st.sampled_from(["memory", "disk"]),
        "min_in_sync": st.just(1),
        "ha-promote-on-shutdown": st.sampled_from(["when-synced", "always"]),
        "ha-promote-on-failure": st.sampled_from(["when-synced", "always"]),
    },
)


@given(
    places=st.lists(PLACES, min_size=1, max_size=12),
    founded=st.sampled_from([(2,), (3,), (3, 1)]),
    copies=st.integers(1, 4),
)
def test_where_a_queue_is_placed_it_is_wanted(
    places: list[dict[str, Any]], founded: tuple[int, ...], copies: int
) -> None:
    """Goal: a queue that is moved to where its arguments lead is not moved again. Method: queues with any arguments, in
    a cluster with any logs; none of the logs that they come to is unlike what they ask for."""
    known = state(*(log(number, each) for number, each in enumerate(founded)))
    settings = PlacingSettings(copies=copies)
    for number, arguments in enumerate(places):
        name = f"q{number}"
        try:
            known, _ = declared(known, name, settings=settings, **arguments)
        except BadRequest:
            continue
        log_id = known.queues[name]
        made = known.placing.place(log_id).rule is not None
        assert unlike(arguments, known.rule(log_id), made=made) == {}


def test_a_queue_is_unlike_a_log_that_is_otherwise_and_says_how() -> None:
    """Of what it names, and of nodes that it does not name; one of a log group is where its group is."""
    rule = Placement(copies=2, flush="memory")
    assert unlike({"copies": 2, "flush": "memory"}, rule, made=True) == {}
    assert unlike({"copies": 3, "flush": "disk"}, rule, made=True) == {"copies": 2, "flush": "memory"}
    assert unlike({"nodes": ["a"]}, rule, made=True) == {"nodes": None}
    on_nodes = Placement(nodes=("a", "b"))
    assert unlike({"nodes": ["a", "b"]}, on_nodes, made=True) == {}
    assert unlike({"copies": 2}, on_nodes, made=True) == {"copies": None, "nodes": ["a", "b"]}
    assert unlike({}, on_nodes, made=True) == {"nodes": ["a", "b"]}
    assert unlike({"copies": 2, "x-log-group": "g"}, on_nodes, made=True) == {}
    assert unlike({"x-log-group": "g"}, on_nodes, made=True) == {}
    assert unlike({"min_in_sync": 2}, Placement(copies=2, min_in_sync=1), made=False) == {"min_in_sync": 1}
    always = Placement(copies=2, promote_on_failure="always")
    assert unlike({"copies": 2, "ha-promote-on-failure": "always"}, always, made=True) == {}
    assert unlike({"copies": 2}, always, made=True) == {"ha-promote-on-failure": "always"}
    assert unlike({"copies": 2, "ha-promote-on-shutdown": "always"}, rule, made=True) == {
        "ha-promote-on-shutdown": "when-synced"
    }


@pytest.mark.parametrize("copies", [16, 17, 255])
def test_more_copies_than_there_can_be_are_all_of_them(copies: int) -> None:
    """Goal: no queue asks for a log that no node could open. Method: numbers up to the largest that is taken; the log
    is made, opened as a node does, and what the queue asks for."""
    log_made = made(state(log(0)), copies=copies)
    assert log_made.placement == Placement(copies=16)
    known, outcome = applied(state(log(0)), 1, log_made)
    assert not outcome.refusal
    assert assignment_of(known.logs[log_made.log_id]).copies == 16
    assert unlike({"copies": copies}, Placement(copies=16), made=True) == {}
    assert assignment_of(replace(known.logs[log_made.log_id], copies=copies)).copies == 16, "as software before made it"
