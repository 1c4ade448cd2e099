"""Who counts as there: deaths that are told, silence, and runs that follow each other."""

from __future__ import annotations

from mirrorlog.cluster.coordination.liveness import Life, Liveness


def watching(*nodes: str) -> Liveness:
    liveness = Liveness(timeout_s=1.0)
    liveness.watch(set(nodes), 0.0)
    return liveness


def test_a_node_that_is_heard_is_up_and_told_once() -> None:
    """By hearing it twice."""
    liveness = watching("b")
    (change,) = liveness.heard("b", "run 1", 0.1)
    assert (change.node, change.life, change.start_id) == ("b", Life.UP, "run 1")
    assert liveness.heard("b", "run 1", 0.2) == []


def test_a_reset_and_a_refusal_are_a_death_at_once() -> None:
    """Long before any timeout; by both in order."""
    liveness = watching("b")
    liveness.heard("b", "run 1", 0.1)
    liveness.reset("b")
    assert liveness.life("b") is Life.UP
    (change,) = liveness.refused("b")
    assert (change.life, change.start_id) == (Life.DOWN, "run 1")
    assert liveness.refused("b") == []


def test_a_refusal_alone_is_no_death() -> None:
    """A node that starts does not listen yet; by refusals without a connection before."""
    liveness = watching("b")
    assert liveness.refused("b") == []
    assert liveness.life("b") is Life.UNKNOWN


def test_a_reset_alone_is_no_death() -> None:
    """The next connection stands; by hearing it again before a refusal that is late."""
    liveness = watching("b")
    liveness.heard("b", "run 1", 0.1)
    liveness.reset("b")
    assert liveness.heard("b", "run 1", 0.2) == []
    assert liveness.refused("b") == []


def test_silence_takes_its_time() -> None:
    """From the last word on; of one that was never heard, from when it was watched."""
    liveness = watching("b", "c")
    assert silent(liveness, 0.0, 0.4) == []
    liveness.heard("b", "run 1", 0.5)
    assert silent(liveness, 0.5, 0.99) == []
    assert silent(liveness, 1.0) == ["c"]
    assert silent(liveness, 1.4, 1.6) == ["b"]
    assert silent(liveness, 2.0) == []


def test_who_was_stopped_itself_takes_nobody_for_silent() -> None:
    """What the others said meanwhile is still to be read; by a tick after a long pause, and then by real silence."""
    liveness = watching("b")
    assert silent(liveness, 0.0, 0.4) == []
    liveness.heard("b", "run 1", 0.4)
    assert silent(liveness, 60.0, 60.5, 60.9) == []
    assert silent(liveness, 61.1) == ["b"]


def silent(liveness: Liveness, *times: float) -> list[str]:
    """Who is said to be down, looked at these times."""
    return [change.node for now in times for change in liveness.tick(now)]


def test_another_run_says_that_the_one_before_has_died() -> None:
    """However fast it came back; by another start id."""
    liveness = watching("b")
    liveness.heard("b", "run 1", 0.1)
    died, back = liveness.heard("b", "run 2", 0.15)
    assert (died.life, died.start_id) == (Life.DOWN, "run 1")
    assert (back.life, back.start_id) == (Life.UP, "run 2")


def test_who_left_is_not_watched_any_more() -> None:
    """Nothing is said of it, and nothing of it is kept; by watching others."""
    liveness = watching("b", "c")
    liveness.heard("b", "run 1", 0.1)
    liveness.watch({"c"}, 0.2)
    assert liveness.heard("b", "run 1", 0.3) == []
    assert silent(liveness, 0.3, 0.7, 1.1) == []
    assert liveness.life("b") is Life.UNKNOWN
    assert liveness.start_id("b") == ""
