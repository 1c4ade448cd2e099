"""A promotion by hand is refused while nothing need be lost, and says from where on something may be."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.coordination.promotion import (
    FenceReport,
    Unclean,
    best_of,
    lost_from,
    lost_to,
    unclean_promotion,
)
from mirrorlog.cluster.state.commands import Addresses, Holder
from mirrorlog.cluster.state.state import ClusterState, LogFacts, Loss, NodeFacts
from mirrorlog.errors import Refused

STATE = ClusterState(
    "id",
    "testing",
    nodes={name: NodeFacts(number, Addresses(), start_id=f"{name} 1") for number, name in enumerate("abc", 1)},
)
LOG = LogFacts(
    number=0,
    name="main",
    flush="memory",
    replicas=("a", "b", "c"),
    master=Holder("a", "a 1"),
    epoch=4,
    in_sync={"a": "a 1"},
)
MARKED = msgspec.structs.replace(LOG, master=None, in_sync={"a": "a 1", "b": "b 1"}, marked=frozenset({"a", "b"}))


def judged(log: LogFacts, *down: str, unknown: tuple[str, ...] = ()) -> Unclean:
    def life(node: str) -> Life:
        return Life.DOWN if node in down else Life.UNKNOWN if node in unknown else Life.UP

    return unclean_promotion(log, STATE, life)


def test_the_only_one_that_had_everything_is_gone() -> None:
    """The others can take over, with a loss; by its death."""
    assert judged(LOG, "a") == Unclean(("a",), ("b", "c"))
    assert judged(LOG, "a", "b") == Unclean(("a",), ("c",))


def test_of_marked_members_one_is_missing() -> None:
    """The cluster waits for it, for ever; by a log that is recovering."""
    assert judged(MARKED, "b") == Unclean(("b",), ("a", "c"))


@pytest.mark.parametrize(
    ("log", "down", "told"),
    [
        (LOG, (), "is mastered by a"),
        (LOG, ("b", "c"), "is mastered by a"),
        (msgspec.structs.replace(LOG, in_sync={"a": "a 1", "b": "b 1"}), ("a",), "b is not known to be gone"),
        (MARKED, (), "a, b, c is not known to be gone"),
        (MARKED, ("a", "b", "c"), "no node with a copy of log main is up"),
    ],
)
def test_what_needs_no_hand_is_refused(log: LogFacts, down: tuple[str, ...], told: str) -> None:
    """No loss is declared that need not be; by logs that have a master, or will have one, or cannot."""
    with pytest.raises(Refused, match=told):
        judged(log, *down)


def test_who_was_not_heard_yet_may_be_there() -> None:
    """An operator who is asked too early waits; by a node that just started to watch."""
    with pytest.raises(Refused, match="is mastered by a"):
        judged(LOG, unknown=("a",))


def test_a_log_without_any_copy_that_counts_may_be_begun_by_hand() -> None:
    """After a recovery without its nodes; by a copy that was added empty."""
    log = msgspec.structs.replace(LOG, replicas=("b",), master=None, in_sync={})
    assert judged(log) == Unclean((), ("b",))


def test_the_loss_starts_where_the_copy_ends() -> None:
    """In the same epoch nothing below is missing; by a copy that is behind another one's confirmed offset."""
    reports = {"b": FenceReport("b 1", 4, 100, 90), "c": FenceReport("c 1", 4, 150, 140)}
    assert best_of(LOG, reports) == "c"
    assert (lost_from(LOG, "c", reports), lost_to(LOG, "c", reports)) == (150, None)
    assert (lost_from(LOG, "b", reports), lost_to(LOG, "b", reports)) == (100, 140)


def test_of_a_history_that_was_given_up_only_what_was_confirmed_counts() -> None:
    """Its last bytes may be others in the later epoch; by a longer copy of an older epoch."""
    reports = {"b": FenceReport("b 1", 3, 500, 80), "c": FenceReport("c 1", 4, 150, 140)}
    assert best_of(LOG, reports) == "c"
    assert (lost_from(LOG, "b", reports), lost_to(LOG, "b", reports)) == (80, 140)


def test_a_copy_that_lacks_the_logs_last_epoch_may_end_in_a_history_that_was_given_up() -> None:
    """Also when nobody is there who has that epoch. Then what any copy of its own epoch knows to be confirmed counts,
    up to where it ends: both hold the same. By two copies of the epoch before, and a third one of an older epoch."""
    reports = {
        "a": FenceReport("a 1", 2, 600, 60),
        "b": FenceReport("b 1", 3, 500, 80),
        "c": FenceReport("c 1", 3, 150, 140),
    }
    assert [lost_from(LOG, node, reports) for node in "abc"] == [60, 140, 140]
    reports["b"] = replace(reports["b"], end=100)
    assert lost_from(LOG, "b", reports) == 100


def test_what_a_damaged_copy_held_is_not_known_to_be_confirmed() -> None:
    """Of two copies that lack the last epoch; by one that held more than it can show."""
    reports = {"b": FenceReport("b 1", 3, 500, 80), "c": FenceReport("c 1", 3, 150, 400)}
    assert lost_from(LOG, "b", reports) == 80


def test_what_was_declared_lost_does_not_come_back() -> None:
    """Records may have been confirmed in its place, in the epoch that came of the loss; by a copy that lacks that
    epoch, and one that has it."""
    log = msgspec.structs.replace(LOG, losses=(Loss(3, 70), Loss(2, 20)))
    reports = {"b": FenceReport("b 1", 2, 500, 80), "c": FenceReport("c 1", 3, 150, 140)}
    assert [lost_from(log, node, reports) for node in "bc"] == [70, 140]


def test_of_equal_copies_the_first_replica_is_the_best() -> None:
    """So that two operators come to the same; by the same reports in another order."""
    report = FenceReport("", 4, 150, 140)
    both = {"c": replace(report, start_id="c 1"), "b": replace(report, start_id="b 1")}
    assert best_of(LOG, both) == "b"
