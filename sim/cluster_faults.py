"""What a plan's events do to a simulated cluster. Each undoes itself after its time, and is counted when it happens.

Whoever runs the cluster is here too: a node that has ended is started again, one that refuses a damaged copy is stopped
and the copy is removed, one that lost its disk is forgotten and joins anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import cycle
from random import Random
from typing import Final

from mirrorlog.client import Client
from mirrorlog.errors import BadRequest, MirrorlogError, NotLeader, Refused
from mirrorlog.wire.messages import (
    CopyPromoted,
    Done,
    Drained,
    DrainNode,
    ForgetNode,
    Message,
    PromoteCopy,
    Rebalance,
    Rebalanced,
)
from sim.cluster_clients import AGAIN_S
from sim.cluster_coverage import Observer
from sim.cluster_plan import CLIENTS, NAMES, Event, Plan
from sim.disk import DiskModel
from sim.machines import ROOT, Machine
from sim.nodes import SimulatedNode, cluster, joining, joining_settings
from sim.sockets import TcpWeather
from sim.world import World

HASTY: Final = {
    "node_timeout_ms": 1_000, "promote_wait_ms": 700, "mirror_lag_time_ms": 1_300, "replace_after_ms": 4_000,
}  # fmt: skip
"""A third of the defaults, so that a storm goes through more of what comes after them."""
LOOK_S: Final = 0.05
RESTART_S: Final = 0.3
"""After it has ended a node is started again."""
REPAIR_S: Final = 0.5
LOGS: Final = ROOT / "data" / "logs"
_ASK_MS: Final = 2_000
_CONNECT_MS: Final = 300
_STOP_S: Final = 5.0
_DRAIN_S: Final = 1.0
_FORGET_ATTEMPTS: Final = 60
_FORGET_AGAIN_S: Final = 1.0


class SimulatedCluster:
    """The nodes of a plan. `left`: those that are forgotten and gone for good; `damage`: by machine, what
    happened to its disk, so that it may hold less than it acknowledged; `seen`: what happened, counted."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.model = DiskModel(plan.unit_bytes, plan.ordered_names, forgets=plan.forgets)
        self.settings = {"cluster": {"copies": plan.copies, **HASTY}}
        self.nodes: dict[str, SimulatedNode] = {
            node.name: node
            for node in cluster(
                world,
                plan.names,
                flush=plan.logs,
                copies=plan.copies,
                min_in_sync=plan.min_in_sync or None,
                settings=self.settings,
                disk=self.model,
            )
        }
        self.left: set[str] = set()
        self.damage: dict[str, set[str]] = {}
        self.seen: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        """Nodes that are down on purpose, by how many faults."""
        self.to_do: list[tuple[str, str]] = []
        """By the operator: `renew` or `leave`, and which node."""
        self._operators = 0

    @property
    def servers(self) -> list[str]:
        """Client addresses of those that founded it."""
        return [self.nodes[name].client_address for name in self.plan.names]

    @property
    def present(self) -> list[SimulatedNode]:
        """Those that are to serve in the end."""
        return [node for name, node in self.nodes.items() if name not in self.left]

    @property
    def addresses(self) -> list[str]:
        """Client addresses of those that are present now."""
        return [node.client_address for node in self.present]

    def hold(self, name: str) -> None:
        """It is not started before as many `release`."""
        self.held[name] += 1

    def release(self, name: str) -> None:
        self.held[name] -= 1
        self.start(name)

    def note_damage(self, name: str, kind: str) -> None:
        """power, fsync, flip, blank, or copy: the copy of a log was removed."""
        self.damage.setdefault(name, set()).add(kind)

    def start(self, name: str) -> None:
        """Unless it runs, or was forgotten, or somebody else keeps it down."""
        if name not in self.left and not self.held[name] and not self.nodes[name].machine.up:
            self.nodes[name].start()

    async def watch(self) -> None:
        """What an operator with a lot of patience does, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            for name, node in list(self.nodes.items()):
                if not node.machine.up and not self.held[name] and name not in self.left:
                    await asyncio.sleep(RESTART_S)
                    self.start(name)
                elif node.machine.up and not node.machine.paused and node.node is not None:
                    await self._repair(name, node)

    async def _repair(self, name: str, node: SimulatedNode) -> None:
        """A copy that its node refuses is removed, and copied anew."""
        assert node.node is not None
        refused = [str(log.log_id) for log in node.node.logs.refused]
        if not refused:
            return
        await asyncio.sleep(REPAIR_S)
        machine = node.machine
        machine.kill()
        for log_id in refused:
            machine.files.remove_tree(LOGS / log_id)
        self.note_damage(name, "copy")
        self.seen["copy removed"] += len(refused)
        self.start(name)

    async def operate(self) -> None:
        """Does what is in `to_do`, one after the other, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            while self.to_do:
                what, name = self.to_do[0]
                if name not in self.left:
                    await (self._renew(name) if what == "renew" else self._leave(name))
                self.to_do.pop(0)

    @property
    def busy(self) -> bool:
        """Whether the operator has something to do."""
        return bool(self.to_do)

    async def _forget(self, name: str) -> None:
        """With its last copies, if nobody else's is whole: then the best of the others is promoted before."""
        for _ in range(_FORGET_ATTEMPTS):
            if await self.ask(ForgetNode(node=name, force=True), Done):
                self.seen["forgotten"] += 1
                return
            for log in self.plan.log_names:
                if await self.ask(PromoteCopy(log=log, accept_loss=True), CopyPromoted):
                    self.seen["promoted by hand"] += 1
            await asyncio.sleep(_FORGET_AGAIN_S)
        raise AssertionError(f"{name} cannot be forgotten")

    async def _renew(self, name: str) -> None:
        """Its disk is blank: it is forgotten, and joins under its old name."""
        await self._forget(name)
        others = [node.name for node in self.present if node.name != name and not self.held[node.name]]
        self.nodes[name].settings = joining_settings(name, others or self.plan.names, self.settings)
        self.release(name)

    async def _leave(self, name: str) -> None:
        if len(self.present) <= self.plan.copies:
            return  # it is needed
        await self.ask(DrainNode(node=name), Drained)
        await asyncio.sleep(_DRAIN_S)
        node = self.nodes[name]
        self.hold(name)
        if node.node is not None:
            node.machine.ask_to_stop(node.node.stop)
        await asyncio.sleep(_DRAIN_S)
        node.machine.kill()
        if await self.ask(ForgetNode(node=name, force=True), Done):
            self.left.add(name)
            self.seen["left"] += 1
        else:  # it holds what nobody else does
            self.release(name)

    async def ask(self, message: Message, expect: type[Message], *, within_s: float = 10.0) -> bool:
        """As an operator would, from the machine `operator`; whether it was answered in time."""
        self._operators += 1
        first = self._operators % len(self.addresses)
        asking = _Asking([*self.addresses[first:], *self.addresses[:first]], message, expect)
        machine = self.world.machine(f"operator{self._operators}")
        machine.start(asking)
        end = self.world.now + within_s
        while not asking.done and self.world.now < end:  # noqa: ASYNC110  (a program of another machine tells nobody)
            await asyncio.sleep(LOOK_S)
        machine.kill()
        self.world.trace.note(self.world.now, "", "ASKED %s: %s", message, asking.told)
        return asking.answered


class _Asking:
    """A program: one question, to one node after the other, until it is answered or refused."""

    def __init__(self, servers: Sequence[str], message: Message, expect: type[Message]) -> None:
        self.done = False
        self.answered = False
        self.told = "no answer"
        self._servers = servers
        self._message = message
        self._expect = expect

    async def __call__(self, machine: Machine) -> None:
        for server in cycle(self._servers):
            if self.answered:
                break
            try:
                async with Client(server, role="tool", connect_timeout_ms=_CONNECT_MS) as client:
                    connection = await client.any_connection()
                    await connection.request(self._message, self._expect, timeout_ms=_ASK_MS)
                    self.answered, self.told = True, "done"
            except NotLeader as error:
                self.told = str(error)
                await asyncio.sleep(LOOK_S)
            except Refused as error:
                self.told = str(error)
                break
            except BadRequest as error:  # it is not, or no more
                self.answered, self.told = True, str(error)
            except MirrorlogError as error:
                self.told = str(error)
                await asyncio.sleep(AGAIN_S)
        self.done = True


class Faults:
    """Does events. `happened` counts those that found somebody to hit."""

    def __init__(self, cluster: SimulatedCluster, observer: Observer) -> None:
        self.happened: Counter[str] = Counter()
        self._cluster = cluster
        self._observer = observer
        self._world = cluster.world
        self._network = cluster.world.network
        self._random = Random(f"{cluster.plan.seed} faults")

    async def do(self, event: Event) -> None:
        """At its time, and undo it."""
        await asyncio.sleep(event.at_s)
        self._world.trace.note(self._world.now, "", "FAULT %s", event)
        if await getattr(self, f"_{event.fault}")(*event.args) is not False:
            self.happened[event.fault] += 1

    # --- processes ---

    async def _kill(self, target: str, down_s: float) -> bool | None:
        return await self._down(target, down_s, Machine.kill)

    async def _power(self, target: str, down_s: float) -> bool | None:
        return await self._down(target, down_s, self._lose_power)

    async def _stop(self, target: str, down_s: float) -> bool | None:
        """Cleanly, and for as long as that takes."""
        node = self._node(target)
        if not node.machine.up or node.node is None or node.machine.paused:
            return False
        run = node.machine.runs
        node.machine.ask_to_stop(node.node.stop)
        self._cluster.hold(node.name)
        end = self._world.now + _STOP_S
        while node.machine.up and node.machine.runs == run and self._world.now < end:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(down_s)
        self._cluster.release(node.name)
        return None

    async def _down(self, target: str, down_s: float, how: Callable[[Machine], None]) -> bool | None:
        node = self._node(target)
        if not node.machine.up:
            return False
        self._hit(node)
        how(node.machine)
        self._cluster.hold(node.name)
        await asyncio.sleep(down_s)
        self._cluster.release(node.name)
        return None

    async def _pause(self, target: str, for_s: float) -> bool | None:
        node = self._node(target)
        if not node.machine.up or node.machine.paused:
            return False
        self._hit(node)
        node.machine.pause()
        await asyncio.sleep(for_s)
        node.machine.resume()
        return None

    async def _blackout(self, down_s: float) -> None:
        nodes = self._cluster.present
        for node in nodes:
            self._lose_power(node.machine)
            self._cluster.hold(node.name)

        async def back(node: SimulatedNode) -> None:
            await asyncio.sleep(down_s * self._random.random())
            self._cluster.release(node.name)

        await asyncio.gather(*(back(node) for node in nodes))

    async def _clock(self, target: str, skew_s: float) -> None:
        """From now on, and for good."""
        self._node(target).machine.set_clock(round(skew_s * 1e9))

    # --- the network ---

    async def _cut(self, one: str, other: str, for_s: float) -> None:
        one = self._node(one).name
        self._network.cut_off({one}, {other} - {one})
        await asyncio.sleep(for_s)
        self._network.mend(one, other)

    async def _cut_one_way(self, one: str, other: str, for_s: float) -> None:
        one = self._node(one).name
        pair = (one, other) if self._random.random() < 0.5 else (other, one)
        self._network.cut(*pair)
        await asyncio.sleep(for_s)
        self._network.mend(*pair)

    async def _isolate(self, target: str, whom: str, for_s: float) -> None:
        node = self._node(target)
        self._hit(node)
        others = {*self._cluster.nodes, *(CLIENTS if whom == "all" else ())} - {node.name}
        self._network.cut_off({node.name}, others)
        await asyncio.sleep(for_s)
        for other in sorted(others):
            self._network.mend(node.name, other)

    async def _split(self, some: str, for_s: float) -> None:
        others = set(self._cluster.nodes) - set(some)
        self._network.cut_off(some, others)
        await asyncio.sleep(for_s)
        for one in some:
            for other in sorted(others):
                self._network.mend(one, other)

    async def _reset(self, one: str, other: str) -> bool:
        return bool(self._network.reset(self._node(one).name, other))

    async def _weather(self, delay_s: float, hiccups: float, for_s: float) -> None:
        self._network.weather = TcpWeather(delay_s=(0.0001, delay_s), hiccups=hiccups)
        await asyncio.sleep(for_s)
        self._network.weather = TcpWeather()

    async def _lengthen(self, one: str, other: str, seconds: float, for_s: float) -> None:
        one = self._node(one).name
        self._network.lengthen(one, other, seconds)
        await asyncio.sleep(for_s)
        self._network.lengthen(one, other, 0.0)

    # --- disks ---

    async def _slow(self, target: str, share: float, for_s: float) -> None:
        machine = self._node(target).machine
        machine.pace.slow = share
        await asyncio.sleep(for_s)
        machine.pace.slow = 0.0

    async def _full(self, target: str, free_bytes: int, for_s: float) -> None:
        machine = self._node(target).machine
        machine.files.limit(free_bytes)
        await asyncio.sleep(for_s)
        machine.files.limit(None)

    async def _fsync(self, target: str, number: int, for_s: float) -> None:
        machine = self._node(target).machine
        machine.files.faults.fail("fdatasync", first=number, times=1)
        self._cluster.note_damage(machine.name, "fsync")
        await asyncio.sleep(for_s)
        machine.files.faults.heal()

    async def _flip(self, target: str, where: str, depth: float, bit: int, down_s: float) -> bool | None:
        """While its node is down, as a bad sector is found: by the next start, or by whoever reads it."""
        node = self._node(target)
        if self._cluster.plan.copies < 2:
            return False  # the only copy: nothing would be left of its queues
        node.machine.kill()
        self._cluster.hold(node.name)
        flipped = self._flipped(node, where, depth, bit)
        await asyncio.sleep(down_s)
        self._cluster.release(node.name)
        return flipped

    def _flipped(self, node: SimulatedNode, where: str, depth: float, bit: int) -> bool:
        files = node.machine.files
        segments = sorted(path for path in files.tree() if path.name.isdigit() and path.is_relative_to(LOGS))
        written = [path for path in segments if files.content(path).rstrip(b"\0")]
        if not written:
            return False
        last = written[-1]
        path = last if where == "active" or len(written) == 1 else self._random.choice(written[:-1])
        files.flip_bit(path, int(len(files.content(path).rstrip(b"\0")) * depth * 0.999), bit)
        self._cluster.note_damage(node.name, "flip")
        return True

    # --- machines ---

    async def _blank(self, target: str, down_s: float) -> bool | None:
        """Its disk is replaced, and the operator is told."""
        node, cluster = self._node(target), self._cluster
        if len(cluster.present) < 3 or cluster.busy or cluster.plan.copies < 2:
            return False  # of two nodes none could let it in again, and of one copy nothing would be left
        cluster.hold(node.name)
        node.machine.kill()
        node.machine.wipe()
        cluster.note_damage(node.name, "blank")
        await asyncio.sleep(down_s)
        cluster.to_do.append(("renew", node.name))
        return None

    # --- operators ---

    async def _drain(self, target: str, for_s: float) -> bool:
        name = self._node(target).name
        drained = await self._cluster.ask(DrainNode(node=name), Drained, within_s=2.0)
        await asyncio.sleep(for_s)
        await self._cluster.ask(DrainNode(node=name, draining=False), Drained)
        return drained

    async def _rebalance(self) -> bool:
        return await self._cluster.ask(Rebalance(), Rebalanced, within_s=2.0)

    async def _join(self) -> bool | None:
        cluster = self._cluster
        free = [name for name in NAMES if name not in cluster.nodes]
        if not free:
            return False
        name = free[0]
        seeds = cluster.plan.names
        cluster.nodes[name] = joining(self._world, name, seeds, settings=cluster.settings, disk=cluster.model)
        cluster.start(name)
        return None

    async def _leave(self, target: str) -> bool:
        """For good: it is drained, stopped and forgotten; not when it may be needed."""
        cluster = self._cluster
        seed = cluster.plan.names[0]  # one that the clients were given stays
        if target in {seed, *cluster.left} or len(cluster.present) <= cluster.plan.copies:
            return False
        cluster.to_do.append(("leave", target))
        return True

    # --- inside ---

    def _node(self, target: str) -> SimulatedNode:
        """The one that is meant, or plays that part now."""
        nodes = self._cluster.present
        if not target.startswith("@"):
            return self._cluster.nodes[target]
        name = {
            "@master": self._observer.master.get("main", ""),
            "@coordinator": self._observer.coordinator,
        }.get(target, "")
        others = [node for node in nodes if node.name != self._observer.master.get("main", "")]
        if target == "@mirror" and others:
            return self._random.choice(others)
        return self._cluster.nodes.get(name) or self._random.choice(nodes)

    def _lose_power(self, machine: Machine) -> None:
        machine.lose_power()
        self._cluster.note_damage(machine.name, "power")

    def _hit(self, node: SimulatedNode) -> None:
        if node.name == self._observer.coordinator and self._observer.without_master:
            self._observer.counts["the coordinator is hit while a log has no master"] += 1
