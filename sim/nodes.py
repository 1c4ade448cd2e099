"""Real nodes on simulated machines: one cluster, each node with its disk, its ports and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from mirrorlog.broker.node import BrokerNode
from mirrorlog.broker.resources.disk_limits import DiskSpace
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.state.commands import Command
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.config import Settings, load_settings
from mirrorlog.errors import MirrorlogError
from mirrorlog.queues.queue_table import Queue
from sim.disk import DiskModel
from sim.machines import ROOT, Machine
from sim.world import World

CLIENT_PORT: Final = 7401
REPLICATION_PORT: Final = 7402
DATA: Final = ROOT / "data"
"""Every node's data directory, on its own disk."""
_KIB: Final = 1024
_ENDLESS_BYTES: Final = 1 << 50

SMALL: Final[Mapping[str, Mapping[str, Any]]] = {
    "grpc": {"enabled": False},
    "http": {"enabled": False},
    "limits": {"max_batch_bytes": 64 * _KIB, "max_record_bytes": 32 * _KIB, "memory_high_percent": 0},
    "log": {"segment_bytes": 256 * _KIB, "prepare_bytes": 0, "populate_bytes": 0},
}
"""Settings with which a run of seconds goes through what takes days in life, and copies of disks stay cheap."""


class SimulatedNode:
    """One machine and the settings of its node. `node`: of the last run; `ended`: how each run ended that came to an
    end by itself: its exit code, or the error that it could not start for."""

    def __init__(self, machine: Machine, settings: Settings) -> None:
        self.machine = machine
        self.settings = settings
        self.node: BrokerNode | None = None
        self.ended: list[int | MirrorlogError] = []

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def client_address(self) -> str:
        return f"{self.name}:{CLIENT_PORT}"

    @property
    def decided(self) -> ClusterState | None:
        """What its run knows to be decided; None while there is none, or it knows nothing."""
        service = self._service
        return service.state if service is not None else None

    @property
    def settled(self) -> tuple[int, int] | None:
        """The term that its run is in, and up to which entry it knows everything to be decided; None while it holds
        entries that may come to nothing, and when it knows nothing."""
        service = self._service
        if service is None:
            return None
        raft, index = service.driver.raft, service.driver.machine.index
        return (raft.term, index) if raft.log.last_index == index else None

    @property
    def _service(self) -> ClusterService | None:
        """Its run's part in the cluster, once it has one."""
        service = self.node._service if self.node is not None and self.machine.up else None
        return service if service is not None and service._driver is not None else None

    def sees_up(self, node: str) -> bool:
        """Whether its run takes another node to be up."""
        service = self._service
        return service is not None and service.life(node) is Life.UP

    def propose(self, command: Command) -> bool:
        """Its run has it decided, whatever comes of it; False when it does not run."""
        service = self._service
        if service is None or self.machine.paused:
            return False
        self.machine.have(lambda: service.propose_soon(command))
        return True

    def asks_elsewhere(self, queue: Queue, log_id: UUID) -> bool:
        """Whether what holds for a queue asks for another place than that log's, by its run."""
        return self.node is not None and bool(self.node._view.unlike(queue, log_id))

    def flushed(self, log_id: str) -> int:
        """Up to which log offset its run has the log on disk; 0 when it does not hold it."""
        held = self.node.logs.held(log_id) if self.node is not None else None
        return held.replica.log.flushed if held is not None else 0

    def end(self, log_id: str) -> int:
        """Where its run's copy of the log ends; 0 when it does not hold it."""
        held = self.node.logs.held(log_id) if self.node is not None else None
        return held.replica.log.end if held is not None else 0

    def begin(self, log_id: str) -> int:
        """Where its run's copy of the log begins; 0 when it does not hold it."""
        held = self.node.logs.held(log_id) if self.node is not None else None
        return held.replica.log.begin if held is not None else 0

    def start(self) -> None:
        """The next run."""
        files = self.machine.files
        if not files.exists(DATA):
            files.make_directory(DATA)
            files.fsync_directory(ROOT)  # made by whoever made the machine
        self.machine.start(self._run)

    async def _run(self, machine: Machine) -> None:
        self.node = BrokerNode(
            self.settings,
            files=machine.files,
            measure=lambda _: _space(machine),
            boot_id=lambda: f"{machine.name} {machine.boots}",
            ready=lambda _: None,
        )
        try:
            self.ended.append(await self.node.run())
        except MirrorlogError as error:
            self.ended.append(error)


def cluster(
    world: World,
    names: Sequence[str],
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    flush: str | Sequence[str] = "memory",
    copies: int | None = None,
    min_in_sync: int | None = None,
    disk: DiskModel | None = None,
) -> list[SimulatedNode]:
    """Nodes of one cluster, on new machines, not started. `settings`: by section, above `SMALL`; `flush`: of its one
    log, `main`, or of each of several; `copies`: of each log, by default as many as there are nodes."""
    modes = [flush] if isinstance(flush, str) else flush
    logs = []
    for number, mode in enumerate(modes):
        placed = [names[(number + place) % len(names)] for place in range(copies or len(names))]
        name = "main" if number == 0 else f"log{number}"
        log = {"name": name, "master": placed[0], "mirrors": placed[1:], "flush": mode, "copies": copies}
        logs.append({**log, "min_in_sync": min_in_sync})
    founding = {"name": "simulated", "members": [_member(name) for name in names], "logs": logs}
    given = {**(settings or {}), "cluster": {**founding, **(settings or {}).get("cluster", {})}}
    return [SimulatedNode(world.machine(name, disk), settings_of(name, given)) for name in names]


def joining(
    world: World,
    name: str,
    seeds: Sequence[str],
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    disk: DiskModel | None = None,
) -> SimulatedNode:
    """A node on a new machine that will ask those nodes to be let in."""
    return SimulatedNode(world.machine(name, disk), joining_settings(name, seeds, settings))


def joining_settings(
    name: str, seeds: Sequence[str], settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Settings:
    """Of a node whose disk is blank, and that is to join."""
    given = {
        **(settings or {}),
        "node": {"id": name, "data_dir": str(DATA), "insecure": True},
        "client": {"bind": f"{name}:{CLIENT_PORT}"},
        "replication": {"bind": f"{name}:{REPLICATION_PORT}"},
    }
    seeds = [f"{seed}:{REPLICATION_PORT}" for seed in seeds]
    given["cluster"] = {**given.get("cluster", {}), "name": "simulated", "join": seeds}
    sections = {section: {**SMALL.get(section, {}), **given.get(section, {})} for section in (*SMALL, *given)}
    overrides = [
        f"{section}.{key}={json.dumps(value)}" for section, values in sections.items() for key, value in values.items()
    ]
    return load_settings(None, overrides, {})


def settings_of(name: str, given: Mapping[str, Mapping[str, Any]]) -> Settings:
    """`SMALL` with what is given, by section, above it."""
    sections = {section: {**SMALL.get(section, {}), **given.get(section, {})} for section in (*SMALL, *given)}
    return Settings.model_validate({**sections, "node": {"id": name, "data_dir": DATA, "insecure": True}})


def _member(name: str) -> dict[str, str]:
    return {"id": name, "client": f"{name}:{CLIENT_PORT}", "replication": f"{name}:{REPLICATION_PORT}"}


def _space(machine: Machine) -> DiskSpace:
    capacity = machine.files.model.capacity_bytes
    if capacity is None:
        return DiskSpace(_ENDLESS_BYTES, _ENDLESS_BYTES)
    return DiskSpace(capacity, max(0, capacity - machine.files.used_bytes))
