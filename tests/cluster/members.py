"""Whole services over real sockets in one process, each with a host that does at once what a broker would."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from mirrorlog import versions
from mirrorlog.cluster.coordination.coordinator import CoordinatorSettings
from mirrorlog.cluster.coordination.liveness import Change, Life
from mirrorlog.cluster.coordination.promotion import FenceReport
from mirrorlog.cluster.membership.founding import founding
from mirrorlog.cluster.peers import MemberEvents
from mirrorlog.cluster.raft.leadership import Timing
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Addresses, Holder, InSyncGrown, NodeStarted, StartKind
from mirrorlog.cluster.state.state import ClusterState, NodeFacts
from mirrorlog.commitlog.files import OsFiles
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.endpoint import Endpoint
from mirrorlog.wire.messages.handshake import Hello, NodeLimits, Welcome
from tests.cluster.ports import Port, until

CLUSTER_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"
# Slow enough that a busy machine does not elect for ever.
TIMING = Timing(heartbeat_s=0.05, election_s=0.4)


class ServiceNode:
    """A node whose copies have what `end` says, and whose mirrors have everything at once."""

    version = versions.FIRST
    """At which its cluster begins, and of its runs."""

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.end = 0
        self.runs = 0
        self.tells_runs: tuple[str, ...] | None = None
        """The former runs that its disk tells of; None: it says nothing of them."""
        self.endpoints: list[Endpoint] = []
        self.failures: list[MirrorlogError] = []
        self.fences: list[tuple[str, int]] = []
        self.service: ClusterService | None = None
        self.port = 0
        self._directory = directory / name
        self._server: asyncio.Server | None = None
        self._helper = ThreadPoolExecutor(1)
        self._growing: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._endpoint, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def start(self, founders: list[ServiceNode], kind: StartKind = StartKind.DIED) -> None:
        """The next run."""
        if self._server is None:
            await self.listen()
        before, self.runs = self.start_id if self.runs and self.tells_runs is None else "", self.runs + 1
        self.service = ClusterService(
            NodeStarted(node=self.name, start_id=self.start_id, addresses=self.addresses, kind=kind, before=before),
            host=self,
            hello=self._hello,
            wanted=CoordinatorSettings(),
            timing=TIMING,
            node_timeout_s=1.0,
            helper=self._helper,
        )
        nodes = {each.name: NodeFacts(number, each.addresses) for number, each in enumerate(founders, 1)}
        state = ClusterState(CLUSTER_ID, "c", nodes=nodes, cluster_version=self.version)
        own = next(number for number, each in enumerate(founders, 1) if each is self)
        await self.service.open(OsFiles(), self._directory, own=own, snapshot=founding(state))
        self.service.start()

    async def die(self) -> None:
        """As far as others can tell, its process is killed."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._growing):
            task.cancel()
        if self.service is not None:
            service, self.service = self.service, None
            service.mesh.stop()
            for endpoint in self.endpoints:
                endpoint.abort()
            self.endpoints.clear()
            await service.stop()

    def lose_disk(self) -> None:
        """While it is dead."""
        shutil.rmtree(self._directory)
        self.tells_runs = ()

    def close(self) -> None:
        self._helper.shutdown()

    @property
    def start_id(self) -> str:
        return versions.run_id(f"{self.name} {self.runs}", self.version)

    @property
    def addresses(self) -> Addresses:
        return Addresses(replication=f"127.0.0.1:{self.port}")

    @property
    def state(self) -> ClusterState:
        assert self.service is not None
        return self.service.state

    @property
    def greets(self) -> bool:
        return True

    @property
    def member_events(self) -> MemberEvents:
        assert self.service is not None
        return self.service

    @property
    def welcome(self) -> Welcome:
        limits = NodeLimits(max_record_bytes=1, max_batch_bytes=1)
        return Welcome(
            version=1,
            cluster_id=CLUSTER_ID,
            cluster_name="c",
            node_id=self.name,
            start_id=self.start_id,
            limits=limits,
            runs=self.tells_runs,
        )

    # --- Host ---

    def changed(self, state: ClusterState) -> None:
        for log_id, log in state.logs.items():
            if log.master != Holder(self.name, self.start_id):
                continue
            for node in log.replicas:
                holder = Holder(node, state.nodes[node].start_id)
                lives = self.service is not None and self.service.life(node) is Life.UP
                if lives and log.in_sync.get(node) != holder.start_id:
                    self._grow(InSyncGrown(log_id=log_id, seen=log.seen, holder=holder))

    def life_changed(self, change: Change) -> None:
        if self.service is not None:
            self.changed(self.service.state)

    async def fence(self, log_id: str, epoch: int, *, gently: bool = False) -> FenceReport:
        self.fences.append((log_id, epoch))
        return FenceReport(self.start_id, 1, self.end, confirmed=0)

    def sizes(self) -> Mapping[str, int]:
        return {}

    def lags(self) -> Mapping[str, Mapping[str, tuple[int, int]]]:
        return {}

    def registered(self) -> None:
        pass

    def failed(self, error: MirrorlogError) -> None:
        self.failures.append(error)

    # --- inside ---

    def _grow(self, command: InSyncGrown) -> None:
        task = asyncio.ensure_future(self._propose(command))
        self._growing.add(task)
        task.add_done_callback(self._growing.discard)

    async def _propose(self, command: InSyncGrown) -> None:
        assert self.service is not None
        try:
            await self.service.decisions.propose(command, timeout_s=1.0)
        except MirrorlogError:
            if self.service is not None:
                self.changed(self.service.state)

    def _hello(self) -> Hello:
        return Hello(
            version_min=1,
            version_max=1,
            role="member",
            cluster_id=CLUSTER_ID,
            node_id=self.name,
            start_id=self.start_id,
            runs=self.tells_runs,
        )

    def _endpoint(self) -> Endpoint:
        return Endpoint(Port(self), frame_bytes_max=1 << 20, outgoing_bytes_max=1 << 20)


@asynccontextmanager
async def founded(directory: Path, *names: str) -> AsyncIterator[list[ServiceNode]]:
    """A cluster of these nodes, every log mastered by its home and held by all."""
    nodes = [ServiceNode(name, directory) for name in names]
    try:
        for node in nodes:
            await node.listen()
        for node in nodes:
            await node.start(nodes)
        await until(lambda: all(settled(node, nodes) for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            await node.die()
            node.close()


def settled(node: ServiceNode, nodes: list[ServiceNode]) -> bool:
    """Whether a node knows of a log for each node, mastered, and in sync on as many as there shall be copies."""
    logs = node.state.logs.values()
    copies = min(3, len(nodes))
    return len(logs) == len(nodes) and all(log.master and len(log.in_sync) == copies for log in logs)
