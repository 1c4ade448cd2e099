"""What `make bench` measures: nothing twice, and everything that docs/contributing/performance.md promises."""

from __future__ import annotations

import pytest

from bench import cli, registry
from bench.workload import LIMIT, OWN, TRAP, Workload, name_of
from mirrorlog.errors import BadInput


def _all() -> list[Workload]:
    return registry.select(quick=False, peers=False, everything=False)


def test_every_workload_has_a_name_of_its_own() -> None:
    """A name that is there twice would mix two workloads' rounds."""
    names = [name_of(each) for each in _all()]
    assert len(set(names)) == len(names)


def test_every_case_says_copies_record_size_and_durability() -> None:
    """Of mirrorlog's own: a row must not be read without them."""
    for each in registry.own(quick=False):
        assert "cop" in each.case, each.case
        assert " B, " in each.case, each.case
        assert "memory" in each.case or "disk" in each.case, each.case


@pytest.mark.parametrize("workload", ["W1", "W2", "W3", "W5", "open loop"])
@pytest.mark.parametrize("record_bytes", registry.RECORD_SIZES)
def test_each_record_size_is_measured(workload: str, record_bytes: int) -> None:
    """In every workload, on three copies."""
    assert any(
        each.workload == workload and f"3 copies, {record_bytes} B" in each.case for each in registry.own(quick=False)
    )


@pytest.mark.parametrize("workload", ["W1", "W2", "W3"])
def test_the_grpc_door_is_measured_beside_the_native_one(workload: str) -> None:
    """Publishing in bulk, one record outstanding and reading: with every record size, on three copies."""
    cases = [each.case for each in registry.own(quick=False) if each.workload == workload]
    for record_bytes in registry.RECORD_SIZES:
        assert any(case.startswith(f"3 copies, {record_bytes} B, memory, gRPC") for case in cases), record_bytes


def test_a_quick_run_has_the_same_workloads() -> None:
    """So that it shows that all of them run; only a backlog's size is part of a name."""
    full, quick = _all(), registry.select(quick=True, peers=False, everything=False)
    assert [(each.group, each.workload) for each in full] == [(each.group, each.workload) for each in quick]


def test_limits_and_traps_stand_beside_the_own_workloads() -> None:
    """All three groups are there without peers."""
    assert {each.group for each in _all()} == {OWN, LIMIT, TRAP}


def test_workloads_are_chosen_by_a_pattern() -> None:
    """On group, workload and case; one that fits nothing, or is none, is an error."""
    found = cli.chosen(_all(), r"own W2 3 copies, 1024 B, memory, send")
    assert [each.workload for each in found] == ["W2", "W2"]
    with pytest.raises(BadInput, match="--list"):
        cli.chosen(_all(), "no such workload")
    with pytest.raises(BadInput, match="regular expression"):
        cli.chosen(_all(), "(")
