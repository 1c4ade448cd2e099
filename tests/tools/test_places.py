"""Why what a policy or a queue asks for of its place cannot be had now, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mirrorlog.config import COPIES_MAX
from mirrorlog.diagnosis.advice import NOTED, Diagnosis
from mirrorlog.diagnosis.findings import Facts, findings
from mirrorlog.diagnosis.places import why_queue_unmet, why_unmet, with_reasons
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.messages.status import ClusterStatus, NodeStatus, PlacedLog
from mirrorlog.wire.policies import Policy, PolicyRow
from tests.tools.statuses import cluster_status, node_status

ALL = {"copies": 255}


def view_of(**nodes: str) -> ClusterStatus:
    """By name: up, down or unknown, or another thing that a node may be."""
    rows = [
        NodeStatus(
            node_id=name,
            member=number,
            client="",
            replication="",
            life=is_ if is_ in ("down", "unknown") else "up",
            witness=is_ == "witness",
            draining=is_ == "draining",
            leaving=is_ == "leaving",
        )
        for number, (name, is_) in enumerate(nodes.items(), 1)
    ]
    return ClusterStatus(
        version=1, incarnation=1, coordinator="n1", term=1, elections=0, registered=True, nodes=rows, logs=[]
    )


def log_on(*replicas: str, in_sync: tuple[str, ...] | None = None) -> PlacedLog:
    members = list(replicas if in_sync is None else in_sync)
    return PlacedLog(
        log_id="x", name="log", flush="memory", replicas=list(replicas), master=replicas[0], epoch=1, version=1,
        in_sync=members, marked=[], copies=len(replicas), copies_wanted=1,
    )  # fmt: skip


THREE = view_of(n1="up", n2="up", n3="up")
ONE_DOWN = view_of(n1="up", n2="up", n3="down")


@pytest.mark.parametrize(
    ("holds", "view", "why"),
    [
        ({"copies": 3}, THREE, ""),
        ({"copies": 3}, view_of(n1="up", n2="unknown", n3="up"), ""),
        ({"copies": 3}, ONE_DOWN, "wants 3 copies, 2 nodes are eligible: n3 is down"),
        ({"copies": 2}, ONE_DOWN, ""),
        ({"copies": 2}, view_of(n1="up"), "wants 2 copies, 1 node is eligible"),
        (
            {"copies": 4},
            view_of(n1="up", n2="witness", n3="leaving", n4="draining"),
            "wants 4 copies, 1 node is eligible: n2 is a witness; n3 is leaving; n4 is draining",
        ),
        (ALL, THREE, ""),
        (ALL, view_of(n1="up", n2="draining", n3="witness"), ""),
        (ALL, ONE_DOWN, "wants a copy on every node: n3 is down"),
        ({"copies": COPIES_MAX}, THREE, ""),
        ({"nodes": ["n1", "n3"]}, THREE, ""),
        (
            {"nodes": ["n1", "n3", "n7"]},
            ONE_DOWN,
            "wants copies on n1, n3, n7: n3 is down; n7 is no node of this cluster",
        ),
        ({"min_in_sync": 2}, THREE, ""),
        ({"min_in_sync": 3}, ONE_DOWN, "wants 3 copies in sync, there can be 2: n3 is down"),
        ({"min_in_sync": 3, "copies": 2}, THREE, "wants 3 copies in sync, there can be 2"),
        ({"min_in_sync": 3, "nodes": ["n1", "n2"]}, ONE_DOWN, "wants 3 copies in sync, there can be 2"),
        ({"min_in_sync": 4, **ALL}, THREE, "wants 4 copies in sync, there can be 3"),
        ({"x-max-length": 5}, ONE_DOWN, ""),
        ({"copies": "many", "nodes": 7, "min_in_sync": None}, ONE_DOWN, ""),
    ],
)
def test_why_a_policy_cannot_be_met(holds: dict[str, Any], view: ClusterStatus, why: str) -> None:
    assert why_unmet(holds, view) == why


@pytest.mark.parametrize(
    ("holds", "log", "why"),
    [
        ({"copies": 2}, log_on("n1", "n2"), ""),
        ({"copies": 2}, log_on("n1", "n3"), "wants 2 copies, 1 is up: n3 is down"),
        ({"copies": 3}, log_on("n1", "n2", "n3"), "wants 3 copies, 2 nodes are eligible: n3 is down"),
        ({"copies": 2}, log_on("n1"), ""),
        ({"min_in_sync": 2}, log_on("n1", "n2", in_sync=("n1",)), "wants 2 copies in sync, 1 is"),
        ({"min_in_sync": 2}, log_on("n1", "n3"), "wants 2 copies in sync, 1 is: n3 is down"),
        ({"min_in_sync": 2}, log_on("n1", "n2", "n3"), ""),
        ({"nodes": ["n1", "n2"]}, log_on("n1", "n3"), "wants 2 copies, 1 is up: n3 is down"),
        ({"nodes": ["n1", "n2"]}, log_on("n1"), ""),
        ({"confirm": 3}, log_on("n1", "n2"), "wants confirms by 3 copies, its log has 2"),
        ({"confirm": 2}, log_on("n1", "n2"), ""),
        ({"confirm": "all"}, log_on("n1", "n2"), ""),
    ],
)
def test_why_a_queue_is_not_as_it_is_wanted(holds: dict[str, Any], log: PlacedLog, why: str) -> None:
    """Of three nodes one is down; what is on its way is no reason."""
    info = QueueInfo(
        name="q", queue_id=1, log_id="x", epoch=1, master="n1", mirrors=[], begin=0, next=0, effective=holds
    )
    assert why_queue_unmet(info, ONE_DOWN, log) == why
    assert why_queue_unmet(replace(info, effective={}, arguments=holds), ONE_DOWN, log) == why


def test_of_what_nobody_tells_no_reason_is_made_up() -> None:
    """A queue without a master has a reason of its own; a transient one goes with its node; a user may not see it."""
    info = QueueInfo(
        name="q", queue_id=1, log_id="x", epoch=1, master="n1", mirrors=[], begin=0, next=0, arguments={"copies": 3}
    )
    log = log_on("n1", "n3")
    assert why_queue_unmet(info, ONE_DOWN, log)
    assert why_queue_unmet(info, None, log) == ""
    assert why_queue_unmet(info, ONE_DOWN, None) == ""
    assert why_queue_unmet(replace(info, master=""), ONE_DOWN, log) == ""
    assert why_queue_unmet(info, ONE_DOWN, replace(log, transient=True)) == ""


def test_policies_are_listed_with_their_reasons() -> None:
    """By the keys that they have; a reason that a node tells is kept, and without a view there are no others."""
    definitions = {
        "exactly": {"ha-mode": "exactly", "ha-params": 3},
        "all": {"ha-mode": "all", "min-in-sync": 2},
        "nodes": {"ha-mode": "nodes", "ha-params": ["n1", "n2"]},
        "least": {"min-in-sync": 3},
        "limit": {"max-length": 5},
    }
    rows = [PolicyRow(virtual_host="/", name=name, policy=Policy("", said)) for name, said in definitions.items()]
    told = replace(rows[0], reason="told by a node")
    assert {row.name: row.reason for row in with_reasons(rows, ONE_DOWN)} == {
        "exactly": "wants 3 copies, 2 nodes are eligible: n3 is down",
        "all": "wants a copy on every node: n3 is down",
        "nodes": "",
        "least": "wants 3 copies in sync, there can be 2: n3 is down",
        "limit": "",
    }
    assert with_reasons([told], ONE_DOWN) == [told]
    assert with_reasons(rows, None) == rows


def test_the_doctor_says_of_a_queue_what_it_lacks() -> None:
    """Goal: whoever asks what is wrong is told of it by the queue, with its policy. Method: a policy of three copies in
    a cluster of which one of three nodes is down; when that is back there is nothing to say."""
    info = QueueInfo(
        name="q", queue_id=1, log_id="x", epoch=1, master="n1", mirrors=[], begin=0, next=0, effective={"copies": 3},
        policy="three",
    )  # fmt: skip

    def found(view: ClusterStatus) -> list[Diagnosis]:
        node = replace(node_status("n1"), cluster=replace(view, logs=[log_on("n1", "n2", "n3")]))
        return [each for each in findings(Facts(status=cluster_status(node), queues=[info])) if each.what == "queue"]

    (told,) = found(ONE_DOWN)
    assert (told.reason, told.weight, told.name) == ("place-unmet", NOTED, "q")
    assert told.text == "queue q (policy three) wants 3 copies, 2 nodes are eligible: n3 is down"
    assert found(THREE) == []
