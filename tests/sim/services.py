"""Cluster services on simulated machines, each with a host that does at once what a broker would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mirrorlog.cluster.coordination.coordinator import CoordinatorSettings
from mirrorlog.cluster.membership.founding import founding
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Addresses, NodeStarted, StartKind
from mirrorlog.cluster.state.state import ClusterState, NodeFacts
from sim.machines import ROOT, Machine
from sim.world import World
from tests.cluster.members import CLUSTER_ID, TIMING, ServiceNode, settled

PORT = 7402


class SimulatedService(ServiceNode):
    """One node. `start_on` is its program."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.name, ROOT)
        self.machine = machine
        self.port = PORT

    @property
    def known(self) -> ClusterService:
        assert self.service is not None
        return self.service

    @property
    def started(self) -> bool:
        """It has read its disk."""
        return self.service is not None and self.service._driver is not None

    @property
    def addresses(self) -> Addresses:
        return Addresses(replication=f"{self.name}:{PORT}")

    def begin(self, founders: Sequence[SimulatedService], kind: StartKind = StartKind.DIED) -> None:
        """The next run."""
        self.service = None
        self._growing.clear()

        async def main(machine: Machine) -> None:
            await self._begin(machine, founders, kind)
            await asyncio.Event().wait()

        self.machine.start(main)

    async def _begin(self, machine: Machine, founders: Sequence[SimulatedService], kind: StartKind) -> None:
        before, self.runs = self.start_id if self.runs else "", self.runs + 1
        await self.listen()
        service = ClusterService(
            NodeStarted(node=self.name, start_id=self.start_id, addresses=self.addresses, kind=kind, before=before),
            host=self,
            hello=self._hello,
            wanted=CoordinatorSettings(),
            timing=TIMING,
            node_timeout_s=1.0,
            helper=self._helper,
        )
        self.service = service
        nodes = {each.name: NodeFacts(number, each.addresses) for number, each in enumerate(founders, 1)}
        snapshot = founding(ClusterState(CLUSTER_ID, "c", nodes=nodes))
        await service.open(machine.files, ROOT / "raft", own=1 + founders.index(self), snapshot=snapshot)
        service.start()


def found(world: World, *names: str) -> list[SimulatedService]:
    """Nodes of one cluster, started."""
    nodes = [SimulatedService(world.machine(name)) for name in names]
    for node in nodes:
        node.begin(nodes)
    return nodes


def all_settled(nodes: Sequence[SimulatedService]) -> bool:
    """Every log mastered by its home and held by all."""
    return all(node.started and settled(node, list(nodes)) for node in nodes)
