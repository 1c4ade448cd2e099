"""Logs for which nobody can answer, and those that are waited for."""

from __future__ import annotations

from msgspec.structs import replace

from mirrorlog.cluster.commands import NodeStopped
from mirrorlog.cluster.liveness import Life
from mirrorlog.cluster.outages import nodes_out
from mirrorlog.cluster.state import LogFacts
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
