"""Services over real sockets: a cluster forms, decides, loses a node, and takes it back."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from msgspec.structs import replace

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.raft.messages import AnyMessage, Vote
from mirrorlog.cluster.state.commands import NodeDraining, StartKind
from mirrorlog.errors import NotLeader, RequestTimeout
from tests.cluster.members import ServiceNode, founded, settled
from tests.cluster.ports import WAIT_S, until


def test_one_node_alone_is_a_full_cluster(tmp_path: Path) -> None:
    """It masters a log; by founding it and asking it for a change."""

    async def run() -> None:
        async with founded(tmp_path, "a") as (a,):
            assert a.service is not None
            assert not (
                await a.service.decisions.propose(NodeDraining(node="a", draining=True), timeout_s=WAIT_S)
            ).refusal
            assert a.state.nodes["a"].draining

    asyncio.run(run())


def test_three_nodes_form_one_cluster(tmp_path: Path) -> None:
    """With one coordinator and the same state everywhere; by starting them at once."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            await until(lambda: len({node.state.version for node in nodes}) == 1)
            assert len({node.service.leader for node in nodes if node.service}) == 1
            assert nodes[0].state == nodes[1].state == nodes[2].state
            assert {log.master.node for log in nodes[0].state.logs.values() if log.master} == {"a", "b", "c"}

    asyncio.run(run())


def test_any_node_may_be_asked_for_a_change(tmp_path: Path) -> None:
    """It passes it on to the coordinator, and a refusal comes back with its reason; by asking each."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            for node in nodes:
                assert node.service is not None
                outcome = await node.service.decisions.propose(NodeDraining(node="x", draining=True), timeout_s=WAIT_S)
                assert "no node x is in the cluster" in outcome.refusal

    asyncio.run(run())


def kill_and_see(tmp_path: Path, *, coordinator: bool) -> None:
    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            first = nodes[0].service
            assert first is not None
            await until(lambda: first.leader)
            victim = next(node for node in nodes if (node.name == first.leader) == coordinator)
            left = [node for node in nodes if node is not victim]
            left[0].end, left[1].end = 10, 20
            log_id = next(
                each for each, log in victim.state.logs.items() if log.master and log.master.node == victim.name
            )
            await victim.die()
            await until(lambda: all(_mastered_by(node, log_id) not in ("", victim.name) for node in left))
            assert _mastered_by(left[0], log_id) == left[1].name, "the copy that has most"
            await until(lambda: all(victim.name not in log.in_sync for log in left[0].state.logs.values()))
            assert not [failure for node in left for failure in node.failures]

    asyncio.run(run())


def _mastered_by(node: ServiceNode, log_id: str) -> str:
    master = node.state.logs[log_id].master
    return master.node if master else ""


def test_a_killed_nodes_log_is_mastered_by_the_copy_that_has_most(tmp_path: Path) -> None:
    """At once, not after a timeout; by killing one that does not coordinate."""
    kill_and_see(tmp_path, coordinator=False)


def test_a_killed_coordinators_too(tmp_path: Path) -> None:
    """Another one takes over first; by killing the coordinator."""
    kill_and_see(tmp_path, coordinator=True)


def test_a_node_that_comes_back_is_taken_in_again(tmp_path: Path) -> None:
    """In a new run, in sync with everything, master of nothing that it lost; by killing and starting one."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            victim, *left = nodes
            await victim.die()
            await until(lambda: left[0].service and left[0].service.life(victim.name) is Life.DOWN)
            await victim.start(nodes)
            run = victim.start_id
            await until(
                lambda: all(log.in_sync.get(victim.name) == run for node in nodes for log in node.state.logs.values())
            )
            assert victim.state.nodes[victim.name].kind is StartKind.DIED
            assert {len(log.in_sync) for log in victim.state.logs.values()} == {3}

    asyncio.run(run())


def test_a_run_that_is_over_does_not_live_in_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is promoted, and who leaves a set, hangs on the run that the cluster knows, and its node may have another one
    that has still to register; by hearing of another run, while the known one is heard too, and while it is not."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as (_, b, _):
            assert b.service is not None
            service = b.service
            await until(lambda: service.life_of_run("a") is Life.UP)
            service.heard("a", "another run")
            assert service.life("a") is Life.UP
            assert service.life_of_run("a") is Life.UNKNOWN
            monkeypatch.setattr("mirrorlog.cluster.coordination.liveness.RIVAL_HEARD_S", 0.0)
            assert service.life_of_run("a") is Life.DOWN
            await until(lambda: service.life_of_run("a") is Life.UP)
            service.identity = replace(service.identity, start_id="another run")
            assert service.life_of_run("b") is Life.DOWN
            service.identity = replace(service.identity, start_id=b.start_id)

    asyncio.run(run())


def test_a_node_whose_disk_forgot_does_not_vote_before_it_is_another_member(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have voted, and answered for entries, that only others know of; by a blank disk and one other node, which
    elect nobody, and the third, with which they do."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            a, b, c = nodes
            for node in nodes:
                await node.die()
            b.lose_disk()
            await b.start(nodes)
            await c.start(nodes)
            assert b.service is not None
            assert c.service is not None
            answered: list[AnyMessage] = []
            take = c.service.raft
            monkeypatch.setattr(c.service, "raft", lambda *told: answered.append(told[0]) or take(*told))
            await until(lambda: sum(isinstance(each, Vote) and each.granted for each in answered) >= 3)
            assert "disk_forgot node=b start_id=b 2 registered_as=b 1" in caplog.text
            assert (b.service.coordination.elections, c.service.coordination.elections) == (0, 0)
            await a.start(nodes)
            await until(lambda: a.state.nodes["b"].member not in (1, 2, 3))
            await until(lambda: all(settled(node, nodes) for node in nodes))
            assert not b.failures

    asyncio.run(run())


def test_a_majority_that_is_gone_stops_decisions_and_its_return_resumes_them(tmp_path: Path) -> None:
    """Nothing is decided by one of three; by killing two and starting one."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            a, b, c = nodes
            await b.die()
            await c.die()
            assert a.service is not None
            await until(lambda: a.service and a.service.leader == "")
            deciding = asyncio.ensure_future(
                a.service.decisions.propose(NodeDraining(node="a", draining=True), timeout_s=WAIT_S)
            )
            await b.start(nodes)
            assert not (await deciding).refusal

    asyncio.run(run())


def test_a_node_that_starts_again_logs_nothing_once_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a line of the log is of the moment that it is stamped with, though all since the last snapshot is applied
    again. Method: a node alone, whose next run makes it master in another epoch."""
    caplog.set_level(logging.INFO, logger="mirrorlog.cluster.service")

    def promoted() -> list[str]:
        lines = [record.getMessage().split() for record in caplog.records]
        return [word for words in lines if words[0] == "promoted" for word in words if word.startswith("epoch=")]

    async def run() -> None:
        async with founded(tmp_path, "a") as (a,):
            assert promoted() == ["epoch=2"]
            await a.die()
            caplog.clear()
            await a.start([a])
            await until(lambda: [log.epoch for log in a.state.logs.values()] == [3])
            assert promoted() == ["epoch=3"]

    asyncio.run(run())


def test_a_whole_cluster_that_stops_goes_on_where_it_was(tmp_path: Path) -> None:
    """Every log gets a master in a new epoch; by killing all and starting all."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            epochs = {log_id: log.epoch for log_id, log in nodes[0].state.logs.items()}
            for node in nodes:
                await node.die()
            for node in nodes:
                await node.start(nodes)
            await until(
                lambda: all(
                    log.epoch > epochs[log_id] and log.master and len(log.in_sync) == 3
                    for node in nodes
                    for log_id, log in node.state.logs.items()
                )
            )

    asyncio.run(run())


def test_a_node_comes_to_know_what_was_decided_before_it_asked(tmp_path: Path) -> None:
    """Each of them, the coordinator too, right after another one was told that a change is decided; a hundred times."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            for turn in range(100):
                told, asks = nodes[turn % 3].service, nodes[(turn // 3 + turn + 1) % 3].service
                assert told is not None
                assert asks is not None
                outcome = await told.decisions.propose(NodeDraining(node="a", draining=turn % 2 == 0), timeout_s=WAIT_S)
                await asks.decisions.up_to_date()
                assert asks.driver.machine.index >= outcome.index

    asyncio.run(run())


def test_a_node_that_is_cut_off_never_says_that_it_knows_all_that_is_decided(tmp_path: Path) -> None:
    """The coordinator, which has not found out yet: another one may decide by now."""

    async def run() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            coordinator = next(node for node in nodes if node.service and node.name == node.service.leader)
            others = [node for node in nodes if node is not coordinator]
            for node in others:
                await node.die()
            assert coordinator.service is not None
            with pytest.raises((NotLeader, RequestTimeout)):
                await coordinator.service.decisions.up_to_date()

    asyncio.run(run())
