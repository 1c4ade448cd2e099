"""What an operator should look at, from fixed views."""

import msgspec
import pytest

from mirrorlog.diagnosis.cluster_status import newest_view, role_of, warnings
from mirrorlog.tools.masters import still_away, still_mastered
from mirrorlog.wire.messages.operators import MasterMove
from mirrorlog.wire.messages.status import LossStatus, PlacedLog
from tests.tools.statuses import PLACED, cluster_status, member, placed, view


def test_of_a_healthy_cluster_nothing_is_told() -> None:
    """Goal: a warning means something. Method: three nodes in sync."""
    assert warnings(view(placed())) == []


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (placed(in_sync=["n1"], copies_wanted=1), "log main has no in-sync mirror: n1 alone has everything"),
        (placed(in_sync=["n1"], replicas=["n1"], copies_wanted=1), "log main has one copy: n1"),
        (placed(in_sync=["n1"]), "log main takes nothing: 1 in sync, 2 are needed"),
        (placed(master="", waits_for=["n1", "n3"]), "log main has no master; it waits for n1, n3"),
        (
            placed(master="", in_sync=["n1"], marked=["n1"], waits_for=["n1"]),
            "log main is recovering: every copy that had everything may have lost something; it waits for n1",
        ),
        (placed(marked=["n3"]), "log main: the copies on n3 may have lost something, and are not promoted"),
        (placed(replicas=[], master="", in_sync=[]), "log main has one copy: none is left"),
        (
            placed(losses=[LossStatus(epoch=7, start=4_096)]),
            "log main: confirmed records may be lost, log offsets 4096..unknown when epoch 7 began",
        ),
        (
            placed(losses=[LossStatus(epoch=7, start=4_096, end=8_192)]),
            "log main: confirmed records may be lost, log offsets 4096..8192 or further when epoch 7 began",
        ),
    ],
)
def test_what_is_wrong_with_a_log_is_told(log: PlacedLog, told: str) -> None:
    """Goal: the operator is told before it hurts. Method: one log each."""
    assert told in warnings(view(log))


def test_what_the_node_advises_is_told_as_it_says_it() -> None:
    """Goal: one rule, the node's, says what would be safer. Method: a view with advice, and two nodes without any."""
    assert warnings(view(placed(), advice=["add a third node"])) == ["add a third node"]
    assert warnings(view(placed(), nodes=(member(1), member(2)))) == []


def test_a_draining_master_and_a_view_without_a_coordinator_are_told() -> None:
    """Goal: nothing hangs unseen. Method: one view each."""
    draining = view(placed(), nodes=(member(1, draining=True), member(2), member(3)))
    assert warnings(draining) == ["node n1 is draining and still masters main"]
    assert "no coordinator is known" in warnings(view(coordinator=""))[0]
    assert "not let in yet" in warnings(view(registered=False))[0]


def test_every_role_has_its_name() -> None:
    """Goal: who decides is seen. Method: one node each."""
    told = [role_of(node, "n2") for node in (member(1), member(2), member(3, votes=False), member(4, witness=True))]
    assert told == ["voter", "coordinator", "learner", "witness"]
    assert role_of(member(2, witness=True), "n2") == "coordinator, witness"


def test_the_newest_view_is_shown_with_what_the_coordinator_knows() -> None:
    """Goal: one table for all nodes. Method: the coordinator's view is a bit older."""
    found = newest_view(PLACED.nodes)
    assert found is not None
    assert (found.version, found.logs[1].waits_for) == (118, ["n4"])
    assert newest_view(cluster_status().nodes) is None


def test_a_drain_is_done_when_the_node_is_known_to_drain_and_masters_nothing() -> None:
    """Goal: --wait returns neither early nor never. Method: the views on the way."""
    before = view(placed())
    assert still_mastered(before, "n1") == ["the node that answers does not know yet that n1 drains"]
    draining = msgspec.structs.replace(before, nodes=[member(1, draining=True), member(2), member(3)])
    assert still_mastered(draining, "n1") == ["log main (to n2, n3)"]
    alone = msgspec.structs.replace(draining, logs=[placed(in_sync=["n1", "n3"], marked=["n3"])])
    assert still_mastered(alone, "n1") == ["log main (no other copy is in sync: it stays until one is)"]
    assert still_mastered(msgspec.structs.replace(draining, logs=[placed(master="n3")]), "n1") == []


def test_a_rebalance_is_done_when_what_could_move_has_moved() -> None:
    """Goal: what stays by its reason is not waited for. Method: one log that moves, one that stays."""
    moves = [
        MasterMove(log_id="one", name="main", source="n2", target="n1"),
        MasterMove(log_id="two", name="other", source="n2", target="n3", reason="n3 is not up"),
    ]
    logs = (placed(log_id="one", master="n2"), placed("other", log_id="two", master="n2"))
    assert still_away(view(*logs), moves) == ["log main is mastered by n2, not by n1"]
    assert still_away(view(placed(log_id="one"), logs[1]), moves) == []
