"""Services whose runs say that they are of other versions: what the cluster does with those that it has left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.requests import AskJoin
from mirrorlog.cluster.state.commands import Addresses, NodeDraining
from mirrorlog.errors import NotAMember, NotLeader
from mirrorlog.versions import run_id
from tests.cluster.members import ServiceNode
from tests.cluster.ports import WAIT_S, until


class VersionedNode(ServiceNode):
    """`versions`: what each of its runs says that it is; all are of this software."""

    versions = (2, 2)

    @property
    def start_id(self) -> str:
        return run_id(super().start_id, self.versions[self.runs - 1])


@asynccontextmanager
async def cluster(directory: Path, *, last: tuple[int, int]) -> AsyncIterator[list[VersionedNode]]:
    """Three nodes, each with a log; `last`: the versions of the last one's runs."""
    nodes = [VersionedNode(name, directory) for name in "abc"]
    nodes[-1].versions = last
    try:
        for node in nodes:
            await node.listen()
        for node in nodes:
            await node.start(list(nodes))
        await until(lambda: all(len(node.state.logs) == len(nodes) for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            await node.die()
            node.close()


def version_is(version: int, nodes: list[VersionedNode]) -> bool:
    return {node.state.cluster_version for node in nodes} == {version}


def test_software_that_is_left_behind_has_no_part_in_anything(tmp_path: Path) -> None:
    """Goal: a node of the version before is told to update, before it meets what it cannot read. Method: three nodes
    raise the version; one comes back as the version before. It ends with the reason, has heard of no coordinator and of
    nothing that was decided, and the others go on under theirs."""

    async def run() -> None:
        async with cluster(tmp_path, last=(2, 1)) as nodes:
            await until(lambda: version_is(2, nodes))
            a, b, c = nodes
            assert a.service is not None
            await c.die()
            await until(lambda: settled_on(a) == settled_on(b) in ("a", "b"))
            leader = settled_on(a)
            await c.start(list(nodes))
            await until(lambda: c.failures)
            assert c.service is not None
            assert isinstance(c.failures[0], NotAMember)
            assert "software of version 1 works in clusters of version 1 only" in str(c.failures[0])
            assert (c.service.leader, c.service.driver.machine.index) == ("", 0)
            assert not (
                await a.service.decisions.propose(NodeDraining(node="b", draining=True), timeout_s=WAIT_S)
            ).refusal
            assert settled_on(a) == leader

    asyncio.run(run())


def settled_on(node: VersionedNode) -> str:
    """The coordinator that a node knows, if it is there."""
    assert node.service is not None
    return node.service.leader if node.service.life(node.service.leader) is Life.UP else ""


def test_the_version_waits_for_the_last_node(tmp_path: Path) -> None:
    """Goal: it rises with the last update, whoever leads. Method: three nodes of which one is of the version before;
    then that one is started anew."""

    async def run() -> None:
        async with cluster(tmp_path, last=(1, 2)) as nodes:
            assert version_is(1, nodes), "its coordinator has seen all of them, and made them logs"
            await nodes[-1].die()
            await nodes[-1].start(list(nodes))
            await until(lambda: version_is(2, nodes))
            assert not [failure for node in nodes for failure in node.failures]

    asyncio.run(run())


def test_a_node_that_is_behind_its_cluster_turns_nobody_away_for_good(tmp_path: Path) -> None:
    """Goal: a node that has not heard yet of the version that its cluster was raised to refuses no newcomer by the old
    one: that would end the newcomer's start. Method: one node whose state says version 2 and whose run is of version 4,
    as after its restart: who asks it is sent to ask again. As a run of version 2 it says no."""

    async def run() -> None:
        (node,) = nodes = [VersionedNode("a", tmp_path)]
        try:
            await node.listen()
            await node.start(list(nodes))
            await until(lambda: len(node.state.logs) == 1 and version_is(2, nodes))
            service = node.service
            assert service is not None
            asked = AskJoin(node="n", addresses=Addresses(client="h:1", replication="h:2"), token="t", version=4)
            own = service.identity
            service.identity = replace(own, start_id=run_id("a", 4))
            with pytest.raises(NotLeader, match="does not know yet what its cluster has decided"):
                await service.answers.let_in(asked)
            service.identity = own
            with pytest.raises(NotAMember, match="software of version 4"):
                await service.answers.let_in(asked)
            assert "n" not in node.state.nodes
        finally:
            await node.die()
            node.close()

    asyncio.run(run())
