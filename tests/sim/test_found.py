"""What storms have found, each as the plan that shows it, with its story."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cluster_main import Failure, attempt
from sim.cluster_plan import Plan

PLANS = Path(__file__).parent / "plans"


def reason_of(name: str) -> str:
    """Why the plan fails; empty when it does not."""
    found = attempt(Plan.from_json((PLANS / f"{name}.json").read_text()))
    return found.reason if isinstance(found, Failure) else ""


@pytest.mark.xfail(strict=False, reason="a member answers Raft only over what it dialled, and dials whom it knows")
def test_a_member_that_knows_none_of_its_leader_catches_up() -> None:
    """A node is away while others join and one of them becomes the coordinator. Back, it is sent what it lacks, and
    cannot say that it has it: it knows no address of that coordinator. By the plan that showed it."""
    assert not reason_of("leader_unknown")
