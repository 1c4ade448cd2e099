"""The short form of `chaos`: one fault of each sort under steady publishing through the public client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.namespaces import Network, NotPermitted, SeparatedCluster, remove_leftovers
from mirrorlog.testing import Cluster
from tests.process.chaos import DISKS, KINDS, MUST_BE_ZERO, Chaos, plan, table
from tests.process.traffic import Confirmed, Traffic

_NODE_TIMEOUT_MS = 1_000
_SETTINGS = {"cluster.node_timeout_ms": _NODE_TIMEOUT_MS, "cluster.promote_wait_ms": 500}
# Not a measurement: a machine that has other things to do must not fail it. What waits for the links' own silence
# (haHousekeepingInterval, 20 s) takes longer.
_SOON_MS = 10_000


@pytest.fixture
def network() -> Iterator[Network]:
    """Namespaces for three nodes; the test is skipped where there can be none."""
    try:
        with Network(["n1", "n2", "n3"]) as network:
            yield network
    except NotPermitted as error:
        pytest.skip(f"no network namespaces here: {error}")


@pytest.mark.long
def test_deaths_and_hangs_lose_nothing(tmp_path: Path) -> None:
    """Goal: whoever dies or hangs, confirms go on soon and every confirmed record is there once. Method: kill the
    master and the coordinator, stop the master for longer than node_timeout_ms, which must find itself replaced;
    compare."""
    with Cluster(data_dir=tmp_path, settings=_SETTINGS) as cluster:
        chaos = Chaos(cluster, seed=1, report=print)
        counts = chaos.run(["kill-master", "kill-coordinator", "stop-master"])
    assert [row["kind"].split()[0] for row in chaos.rounds] == ["kill", "kill", "SIGSTOP"]
    check(chaos, counts)


def test_a_work_queue_keeps_its_promises_through_a_death_and_a_hang(tmp_path: Path) -> None:
    """Goal: what was acknowledged never comes again, nothing is lost, what comes again says so, what was moved or
    rejected is there once, and everybody is soon given something new. Method: the takers of `work`, while the master is
    killed, and stopped for longer than node_timeout_ms."""
    with Cluster(data_dir=tmp_path, settings=_SETTINGS) as cluster:
        chaos = Chaos(cluster, seed=1, report=print, kind="queue")
        counts = chaos.run(["kill-master", "stop-master"])
    assert {name: counts[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert (counts["refused"], counts["unknown"]) == (0, 0)
    assert all(row["delivery_ms"] < _SOON_MS for row in chaos.rounds), chaos.rounds
    # None of it was tried in vain.
    assert counts["given"] > counts["confirmed"] == counts["records"] > 500
    assert min(counts[name] for name in ("given_again", "acked", "moved", "rejected")) > 0, counts


@pytest.mark.long
def test_a_master_that_is_cut_off_is_replaced_and_refuses(tmp_path: Path, network: Network) -> None:
    """Goal: the side without a majority takes nothing and says so soon; the other goes on; healed, all are in sync
    again. Method: cut the master from both mirrors, not from the client; ask it to read and to publish."""
    with SeparatedCluster(network, data_dir=tmp_path, settings=_SETTINGS) as cluster:
        chaos = Chaos(cluster, seed=1, network=network, report=print)
        counts = chaos.run(["cut-master"])
    (row,) = chaos.rounds
    assert row["reads_refused_ms"] < _SOON_MS
    assert row["refused_ms"] < _SOON_MS
    check(chaos, counts)


@pytest.mark.long
def test_confirms_are_back_soon_after_a_ring_of_one_way_cuts_has_healed(tmp_path: Path, network: Network) -> None:
    """Goal: a heal is noticed, however far the system has backed off meanwhile. Method: each node reaches one
    of the others only, for some seconds; then no other at all."""
    with SeparatedCluster(network, data_dir=tmp_path, settings=_SETTINGS) as cluster:
        chaos = Chaos(cluster, seed=1, network=network, report=print)
        counts = chaos.run(["ring-cut", "cut-all"])
    check(chaos, counts)


def test_namespaces_of_a_process_that_was_killed_are_removed(network: Network) -> None:
    """Goal: nothing stays behind on the machine, and nobody else's is touched. Method: one named after a process that
    has ended goes; those of this one stay."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    command("ip", "netns", "add", f"mlc{ended.pid}-n1")
    command("ip", "link", "add", f"mlc{ended.pid}b", "type", "bridge")
    remove_leftovers()
    namespaces, links = command("ip", "netns", "list"), command("ip", "link", "list")
    assert f"mlc{ended.pid}" not in namespaces + links
    assert namespaces.count(f"mlc{os.getpid()}-") == 3
    assert f"mlc{os.getpid()}b" in links


def command(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def check(chaos: Chaos, counts: dict[str, int]) -> None:
    """Nothing is wrong with any record, on any node, and each fault was over soon."""
    assert {name: counts[name] for name in MUST_BE_ZERO} == dict.fromkeys(MUST_BE_ZERO, 0)
    assert (counts["refused"], counts["unknown"]) == (0, 0)
    assert counts["confirmed"] == counts["records"] > 2_000
    assert all(row["confirm_ms"] < _SOON_MS for row in chaos.rounds), table(chaos.rounds)


def test_a_plan_has_every_fault_as_often() -> None:
    """Goal: a seed repeats its plan, and no fault is left out. Method: plans of two rounds each, of two seeds."""
    kinds = [*KINDS, *DISKS]
    first = plan(2 * len(kinds), 7, kinds)
    assert first == plan(2 * len(kinds), 7, kinds) != plan(2 * len(kinds), 8, kinds)
    assert sorted(first[: len(kinds)]) == sorted(first[len(kinds) :]) == sorted(kinds)


def test_the_check_finds_what_it_looks_for() -> None:
    """Goal: a check that has gone blind fails here. Method: records that are lost, twice, swapped, refused and stored,
    or seen and gone: each is counted under its name."""
    traffic = Traffic(["127.0.0.1:1"], "q")
    traffic.confirms = [Confirmed(0.0, number, number, 1) for number in range(4)]
    for reader in traffic.readers:
        for number in range(4):
            reader.saw(number, number)
    assert not any(traffic.check([0, 1, 2, 3]).values())
    assert found(traffic, [0, 1, 2]) == {"missing", "misplaced", "seen_and_gone"}
    assert found(traffic, [0, 1, 2, 3, 3]) == {"duplicates"}
    assert found(traffic, [0, 2, 1, 3]) == {"out_of_order", "misplaced", "seen_and_gone"}
    traffic.refused[4] = "DISK_FULL"
    assert found(traffic, [0, 1, 2, 3, 4]) == {"refused_but_stored"}
    traffic.confirms.append(Confirmed(0.0, 5, 4, 1))
    assert found(traffic, [0, 1, 2, 3, 5]) == {"unseen"}
    traffic.readers[0].saw(4, 3)
    assert "wrong_reads" in found(traffic, [0, 1, 2, 3, 5])


def found(traffic: Traffic, numbers: list[int]) -> set[str]:
    return {name for name, count in traffic.check(numbers).items() if count}
