"""Logs for which nobody can answer, and those that are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from mirrorlog.broker.membership.cluster_view import NodeView
from mirrorlog.cluster.coordination.liveness import Life, nodes_needed, nodes_out
from mirrorlog.cluster.coordination.unmastered import waited_for, why_unmastered
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Holder, NodeStopped
from mirrorlog.cluster.state.placements import LogPlace, LogPlaces, Placement
from mirrorlog.cluster.state.state import LogFacts
from tests.cluster.test_coordinator import World


def log_on(*replicas: str) -> LogFacts:
    return LogFacts(number=1, name="x", flush="memory", replicas=replicas)


def out(world: World, *replicas: str) -> tuple[str, ...]:
    return nodes_out(log_on(*replicas), world.state, world.life)


def test_a_log_is_out_when_all_its_nodes_are_down() -> None:
    """One of three, two of three, and all; a log that has lost all its copies is nobody's to start."""
    world = World()
    for node in "abc":
        world.join(node)
    assert out(world, "a") == ()
    world.down = {"a"}
    assert out(world, "a") == ("a",)
    assert out(world, "b", "a") == ()
    world.down = {"a", "b"}
    assert out(world, "b", "a") == ("b", "a")
    assert out(world, "a", "b", "c") == ()
    assert out(world) == ()


def test_the_node_is_named_first_whose_start_helps() -> None:
    """Goal: who does as he is told has his log back. Method: the home has left the in-sync set, another may have lost
    something; both and the whole one are down."""
    world = World()
    for node in "abc":
        world.join(node)
    world.down = {"a", "b", "c"}
    log = replace(log_on("a", "b", "c"), in_sync={"b": "1", "c": "1"}, marked=frozenset("b"))
    assert nodes_out(log, world.state, world.life) == ("c", "b", "a")


def test_who_was_not_heard_yet_is_waited_for() -> None:
    """A node that has just started knows nothing of others. But one that said that it stops is down, until it is
    heard again, also before it has registered."""
    world = World()
    world.join("a")
    unknown = lambda node: Life.UNKNOWN  # noqa: E731
    assert nodes_out(log_on("a"), world.state, unknown) == ()
    assert not world.apply(NodeStopped(node="a", start_id=world.state.nodes["a"].start_id))
    assert nodes_out(log_on("a"), world.state, unknown) == ("a",)
    assert out(world, "a") == ()


def needed(world: World, log: LogFacts) -> tuple[str, ...]:
    return nodes_needed(log, world.state, world.life)


def test_a_log_waits_for_those_that_have_everything_when_copies_that_are_up_may_lack_something() -> None:
    """Goal: nobody waits for a promotion that will not come. Method: one copy has left the in-sync set and is up, one
    that is in it may have lost something and is up, the whole one is the master and down; one after the other is back.
    A log that never had a master, one whose copies are all down, and one with nothing whole that is down, wait for
    nobody to be started by this."""
    world = World()
    for node in "abc":
        world.join(node)
    log = replace(log_on("a", "b", "c"), in_sync={"b": "1", "c": "1"}, marked=frozenset("b"), epoch=3)
    log = replace(log, master=Holder("c", "1"))
    assert needed(world, log) == ()
    world.down = {"c"}
    assert needed(world, log) == ("c",)
    assert needed(world, replace(log, master=None)) == ("c",)
    assert needed(world, replace(log, master=Holder("a", "1"))) == (), "it is mastered"
    assert needed(world, replace(log, marked=frozenset())) == (), "another one may follow"
    world.down = {"a", "b", "c"}
    assert needed(world, log) == ()
    world.down = {"b", "c"}
    assert needed(world, replace(log, marked=frozenset("bc"))) == ("b", "c")
    assert needed(world, log_on("a", "b", "c")) == ()


@pytest.mark.parametrize(("down", "asked", "words"), [("b", "a", "start b"), ("ab", "c", "start them")])
def test_who_names_a_queue_that_waits_for_a_node_is_told_which(down: str, asked: str, words: str) -> None:
    """Goal: the advice helps, and is given beside the copy that is there to be read. Method: a log of two copies of
    which one has everything; that one is down, or both; a list of all queues has only what nobody can answer for."""
    log_id = str(UUID(int=1))
    world = World()
    for node in "abc":
        world.join(node)
    world.down = set(down)
    log = replace(log_on("a", "b"), in_sync={"b": "1"}, master=Holder("b", "1"), epoch=2)
    state = replace(world.state, logs={log_id: log}, queues={"q": log_id})
    view = NodeView()
    why = lambda log_id, since: why_unmastered(log_id, state, world.life, since=since)  # noqa: E731
    view.service = cast(
        ClusterService,
        SimpleNamespace(state=state, life=world.life, identity=SimpleNamespace(node=asked), why_unmastered=why),
    )
    (told,) = view.outages(["q"])
    assert (told.name, told.node, words in told.reason) == ("q", "b", True)
    assert ("mqtool promote" in told.reason) == (down == "b")
    assert len(view.outages(None)) == (down == "ab")


def told(
    world: World, log: LogFacts, *, rule: Placement | None = None, lags: dict[str, tuple[int, int]] | None = None
) -> str:
    log_id = str(UUID(int=1))
    places = LogPlaces(logs={log_id: LogPlace(rule=rule)})
    state = replace(world.state, logs={log_id: log}, places=places)
    return why_unmastered(log_id, state, world.life, lags=lags or {}, since=" at noon", after_s=10.0)


def test_one_sentence_says_what_is_missing_whom_it_waits_for_and_what_goes_on_without() -> None:
    """Goal: who reads it knows what to do, and what it costs. Method: the only copy in sync is down; others lack
    records, bytes, or nobody knows what, by rules that wait and that do not; then the others are down too."""
    world = World()
    for node in "abcd":
        world.join(node)
    log = replace(log_on("a", "b", "c", "d"), in_sync={"a": "a 1"}, master=Holder("a", "a 1"), epoch=2)
    assert told(world, log) == ""
    world.down = {"a"}
    by_hand = "if it is lost for good: mqtool promote x --accept-loss, which says what is lost"
    assert told(world, log, lags={"b": (70_000, 1_203), "c": (4_096, 0)}) == (
        "no in-sync mirror is up: b lacks 1,203 records, c lacks 4,096 bytes, what d lacks nobody knows who is up; "
        "it waits for node a, which alone had everything, and went down at noon; start a; "
        f"ha-promote-on-failure = when-synced: with always it would go on without; {by_hand}"
    )
    always = told(world, log, rule=Placement(promote_on_failure="always"), lags={"b": (1, 1), "c": (0, 0)})
    assert "b lacks 1 record, c may lack what was confirmed last" in always
    assert "ha-promote-on-failure = always: the best of these is promoted when they are gone for 10 s" in always
    assert not world.apply(NodeStopped(node="a", start_id=world.state.nodes["a"].start_id))
    assert "ha-promote-on-shutdown = when-synced" in told(world, log, rule=Placement(promote_on_failure="always"))
    world.down = set("abcd")
    nobody = told(world, log)
    assert nobody.startswith("no copy is up; it waits for one of nodes a, b, c, d, which went down at noon; start a")
    assert "mqtool promote" not in nobody, "there is nothing to promote"


def test_a_log_that_is_recovering_waits_for_who_is_marked_and_down() -> None:
    """Though others of those who had everything are there; by two that lost power, of which one is back."""
    world = World()
    for node in "abc":
        world.join(node)
    log = replace(log_on("a", "b", "c"), in_sync={"a": "a 1", "b": "b 1"}, marked=frozenset("ab"), epoch=2)
    assert waited_for(log, world.state, world.life) == ()
    world.down = {"b"}
    assert waited_for(log, world.state, world.life) == ("b",)
    assert "may have lost something; it waits for b, down at noon; start b" in told(world, log)
    assert told(world, replace(log, epoch=0)) == "", "it never had a master"
