"""Nodes that found a cluster together: at once when it is new, and not at all when it was there before."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pytest

from mirrorlog import versions
from mirrorlog.broker.membership.entry import Entry
from mirrorlog.broker.membership.founder import Founder
from mirrorlog.broker.node import BrokerNode
from mirrorlog.cluster.membership import founding
from mirrorlog.cluster.membership.discovery import Looks
from mirrorlog.cluster.membership.founding import founding_key
from mirrorlog.cluster.membership.joining import JoinRecord
from mirrorlog.cluster.membership.run_history import RunHistory
from mirrorlog.cluster.membership.seeds import SeekingPort
from mirrorlog.cluster.state.commands import NodeForgotten, StartKind
from mirrorlog.cluster.state.state import NodeFacts
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.config import LimitSettings, Settings, load_settings
from mirrorlog.errors import MirrorlogError, NotAMember
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.auth.credentials import OPEN
from tests.cluster.members import CLUSTER_ID, ServiceNode, founded
from tests.cluster.ports import WAIT_S, until


@pytest.fixture(autouse=True)
def _founded_as_by_this_software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServiceNode, "version", versions.MIN)


SMALL = [
    "log.segment_bytes=16777216", "log.prepare_bytes=0", "log.disk_low_percent=0", "log.disk_full_percent=0",
    "grpc.enabled=false", "http.enabled=false",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * WAIT_S):
            await work()

    asyncio.run(bounded())


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


def settings(path: Path, node: str, members: dict[str, str], *more: str) -> Settings:
    """`members`: replication addresses."""
    clients = free_ports(len(members))
    table = ",".join(
        f"{{id='{name}',client='{HOST}:{client}',replication='{address}'}}"
        for (name, address), client in zip(members.items(), clients, strict=True)
    )
    flags = [f"node.id='{node}'", f"node.data_dir='{path}'", f"cluster.members=[{table}]", *SMALL, *more]
    return load_settings(None, flags, {})


# --- Whole nodes ----------------------------------------------------------------------------------------------------


class Nodes:
    """n1, n2, n3 by one configuration, in this process."""

    def __init__(self, path: Path) -> None:
        names = ("n1", "n2", "n3")
        members = {name: f"{HOST}:{port}" for name, port in zip(names, free_ports(3), strict=True)}
        self.settings = {name: settings(path / name, name, members) for name in names}
        self.running: dict[str, tuple[BrokerNode, asyncio.Future[int]]] = {}

    def start(self, *names: str) -> None:
        for name in names:
            node = BrokerNode(self.settings[name], ready=lambda _: None)
            self.running[name] = node, asyncio.ensure_future(node.run())

    async def stop(self, *names: str) -> None:
        """As after a crash: nothing is handed over, and nobody is told."""
        stopped = [self.running.pop(name) for name in names or list(self.running)]
        for node, _ in stopped:
            node.fail(MirrorlogError("the test stops it"))
        await asyncio.gather(*(ends for _, ends in stopped), return_exceptions=True)

    def facts(self, name: str) -> NodeFacts | None:
        """As that node itself knows them, once it is registered."""
        service = self.running[name][0]._service
        if service is None or not service.registration.is_in:
            return None
        return service.state.nodes[name]

    async def registered(self, *names: str) -> list[int]:
        """Their numbers."""
        await until(lambda: all(self.facts(name) for name in names))
        return [facts.member for name in names if (facts := self.facts(name))]

    def wipe(self, name: str) -> None:
        shutil.rmtree(self.settings[name].node.data_dir)


def test_nodes_that_start_together_found_with_their_places(tmp_path: Path) -> None:
    """And go on as these when all start again; by three nodes, twice. A majority waits for the third for as long as a
    busy machine takes to start it."""

    async def work() -> None:
        nodes = Nodes(tmp_path)
        for _ in range(2):
            nodes.start("n3", "n1", "n2")
            assert await nodes.registered("n1", "n2", "n3") == [1, 2, 3]
            await nodes.stop()

    with patch.object(founding, "OTHERS_S", WAIT_S):
        run(work)


@pytest.mark.long
def test_two_of_three_found_and_the_third_comes_when_it_comes(tmp_path: Path) -> None:
    """Whoever comes when something is decided is another member, for it may have voted; its first start is a clean one.
    By starting the third one late, and replacing its disk twice."""

    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.start("n1", "n2")
        assert await nodes.registered("n1", "n2") == [1, 2]
        nodes.start("n3")
        numbers = [3, *await nodes.registered("n3")]
        facts = nodes.facts("n3")
        assert facts is not None
        assert facts.kind is StartKind.CLEAN
        for _ in range(2):
            await nodes.stop("n3")
            nodes.wipe("n3")
            nodes.start("n3")
            numbers += await nodes.registered("n3")
            facts = nodes.facts("n3")
            assert facts is not None
            assert facts.kind is StartKind.LOSSY
        assert numbers == sorted(set(numbers))
        await nodes.stop()

    run(work)


def test_one_of_three_waits_and_says_for_whom(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It votes for nobody, and stops when it is asked to; by starting it alone, twice, and then another one."""

    async def work() -> None:
        nodes = Nodes(tmp_path)
        for _ in range(2):
            nodes.start("n2")
            await until(lambda: said(caplog, "1 of the members n1, n2, n3 are known to be in no cluster yet"))
            assert not (nodes.settings["n2"].node.data_dir / "raft").exists()
            await nodes.stop()
            caplog.clear()
        nodes.start("n2", "n1")
        assert await nodes.registered("n1", "n2") == [1, 2]
        await nodes.stop()

    run(work)


def test_a_majority_of_blank_disks_founds_nothing_while_another_one_is_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the cluster has decided is not forgotten, and what can be done is said; by replacing two disks of three."""

    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.start("n1", "n2", "n3")
        await nodes.registered("n1", "n2", "n3")
        await nodes.stop()
        nodes.wipe("n1")
        nodes.wipe("n2")
        nodes.start("n3")
        await until(lambda: nodes.running["n3"][0]._service)
        nodes.start("n1", "n2")
        await until(lambda: said(caplog, "recover the cluster on n3 with mqtool recover-cluster"))
        assert not any((nodes.settings[name].node.data_dir / "raft").exists() for name in ("n1", "n2"))
        await nodes.stop()

    run(work)


# --- Among services -------------------------------------------------------------------------------------------------


def founder(path: Path, nodes: list[ServiceNode], name: str = "c") -> Settings:
    """Of a node on a blank disk, at a port of its own."""
    members = {node.name: node.addresses.replication for node in nodes}
    made = settings(path, name, members, f"cluster.id='{CLUSTER_ID}'", "cluster.name=c")
    DataDirectory.open(path, cluster_id=UUID(CLUSTER_ID), node_id=name).close()
    return made


def test_a_member_without_its_disk_is_another_one(tmp_path: Path) -> None:
    """What is on its disk then is enough for a start without asking, and names the run that the cluster knows; by a
    service that dies, and a founder in its place."""

    async def work() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            await nodes[2].die()
            made = founder(tmp_path / "blank", nodes)
            assert not await Founder(made, OS_FILES, OPEN).founds()
            record = JoinRecord.open(OS_FILES, tmp_path / "blank")
            starts = RunHistory.open(OS_FILES, tmp_path / "blank", boot_id="another")
            await until(lambda: nodes[0].state.nodes["c"].start_id == starts.before)
            assert record.content.member == nodes[0].state.nodes["c"].member > 3
            assert starts.kind is StartKind.LOSSY
            entered = await Entry(made, OS_FILES).enter()
            entered.directory.close()
            assert entered.own == record.content.member

    run(work)


def test_a_run_that_is_there_keeps_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with one name: the one with the blank disk ends, the other one goes on. By a founder beside the
    service that it would replace."""
    monkeypatch.setattr("mirrorlog.broker.membership.founder.RIVAL_S", 0.5)

    async def work() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            made = founder(tmp_path / "blank", nodes)
            made = made.model_copy(update={"replication": made.replication.model_copy(update={"bind": f"{HOST}:0"})})
            with pytest.raises(NotAMember, match="no disk of its own"):
                await Founder(made, OS_FILES, OPEN).founds()
            assert nodes[0].state.nodes["c"].member == 3
            assert not nodes[2].failures

    run(work)


def test_a_node_that_asks_in_vain_is_told_once_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A cluster without a majority takes nobody back; by one of three that is left, and many rounds."""

    async def work() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            await nodes[1].die()
            await nodes[2].die()
            made = founder(tmp_path / "blank", nodes)
            waiting = asyncio.ensure_future(Founder(made, OS_FILES, OPEN).founds())
            await until(lambda: said(caplog, "could not take this node in again"))
            lines = {record.getMessage() for record in caplog.records if "looking_for_cluster" in record.getMessage()}
            told = [record for record in caplog.records if record.getMessage() in lines]
            assert len(told) == len(lines)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert json.loads((tmp_path / "blank" / "node.json").read_text())["node_id"] == "c"

    run(work)


def test_a_name_that_was_forgotten_joins(tmp_path: Path) -> None:
    """It is no member of the cluster, so it asks to be let in; by whole nodes, of which one is forgotten and comes with
    a blank disk."""

    async def work() -> None:
        nodes = Nodes(tmp_path)
        nodes.start("n1", "n2", "n3")
        await nodes.registered("n1", "n2", "n3")
        service = nodes.running["n1"][0]._service
        assert service is not None
        await until(lambda: [len(log.in_sync) for log in service.state.logs.values()] == [3, 3, 3])
        await nodes.stop("n3")
        await until(
            lambda: all(log.master and log.master.node != "n3" for log in service.state.logs.values()),
        )
        outcome = await service.decisions.decide(NodeForgotten(node="n3"), timeout_s=WAIT_S)
        assert not outcome.refusal
        nodes.wipe("n3")
        nodes.start("n3")
        assert (await nodes.registered("n3"))[0] > 3
        await nodes.stop()

    run(work)


def test_a_cluster_that_only_others_are_in_is_not_founded_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It knows of this node, and dials it; by services of a configuration that names none of them."""

    async def work() -> None:
        async with founded(tmp_path, "a", "b", "c") as nodes:
            await nodes[2].die()
            addresses = {"c": nodes[2].addresses.replication, "d": f"{HOST}:{free_ports(1)[0]}"}
            for name in addresses:
                DataDirectory.open(tmp_path / f"blank-{name}", cluster_id=UUID(CLUSTER_ID), node_id=name).close()
            c, d = (
                Founder(
                    settings(tmp_path / f"blank-{name}", name, addresses, f"cluster.id='{CLUSTER_ID}'"), OS_FILES, OPEN
                )
                for name in addresses
            )
            waiting = asyncio.ensure_future(c.founds())
            await until(lambda: said(caplog, "a, b of this cluster dial this node"))
            assert await d.founds(), "nobody knows it, and it has seen that c looks"
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    run(work)


def test_who_founds_stays_until_others_know_that_it_looked(tmp_path: Path) -> None:
    """Else these would wait for it; by a founder that is asked only after it has decided."""

    async def work() -> None:
        (own, other) = (f"{HOST}:{port}" for port in free_ports(2))
        made = settings(tmp_path, "a", {"a": own, "b": other})
        port = SeekingPort(Looks("run b", "b", other, founding_key(made.cluster)), LimitSettings())
        await port.start(other)
        try:
            DataDirectory.open(tmp_path, cluster_id=made.cluster.cluster_id, node_id="a").close()
            founding = asyncio.ensure_future(Founder(made, OS_FILES, OPEN).founds())
            await port.news.wait()
            answer = await Founder(settings(tmp_path, "b", {"a": own, "b": other}), OS_FILES, OPEN)._ask_others()
            assert isinstance(answer["a"][1], Looks)
            assert await founding
        finally:
            await port.stop()

    run(work)
