"""What a plan's events do to a simulated cluster. Each undoes itself after its time, and is counted when it happens.

Whoever runs the cluster is here too: a node that has ended is started again, one that is to leave is drained, stopped
and forgotten. Nobody helps a copy whose bytes went bad, nor a node whose disk is blank or was set back.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import cycle
from random import Random
from typing import Any, Final

from mirrorlog import versions
from mirrorlog.client import Client
from mirrorlog.cluster.state.commands import Command, MoveCancelled, ReplicaRetired, ReplicasWished, Seen
from mirrorlog.cluster.state.placements import MovingQueue
from mirrorlog.cluster.state.state import ClusterState
from mirrorlog.errors import BadRequest, DiskFailed, MirrorlogError, NotAMember, NotLeader, Refused
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.operators import Drained, DrainNode, ForgetNode, PauseMoving, Rebalance, Rebalanced
from mirrorlog.wire.messages.queues import Done
from sim.cluster_clients import AGAIN_S
from sim.cluster_coverage import Observer
from sim.cluster_credit import CREDIT_LIMITS
from sim.cluster_lifetimes import RETURN_MS
from sim.cluster_moves import Mover
from sim.cluster_plan import NAMES, Event, Plan
from sim.cluster_queues import REDRIVE, Meddler
from sim.cluster_troubles import Troubles
from sim.disk import DiskModel, SimulatedFiles
from sim.machines import ROOT, Machine, Main
from sim.nodes import SMALL, SimulatedNode, cluster, joining
from sim.sockets import TcpWeather
from sim.world import World

HASTY: Final = {
    "node_timeout_ms": 1_000, "promote_wait_ms": 700, "mirror_lag_time_ms": 1_300, "replace_after_ms": 4_000,
}  # fmt: skip
"""A third of the defaults, so that a storm goes through more of what comes after them."""
PROMOTE_AFTER_MS: Final = 500
"""So long those who have everything are waited for, where logs go on with what is left."""
LOOK_S: Final = 0.05
DOUBT_S: Final = 0.1
"""How late a master hears of what the cluster has decided, when that is waited for."""
RESTART_S: Final = 0.3
"""After it has ended a node is started again."""
REGISTER_S: Final = 30.0
"""How long all runs are waited for to register and to hear everything, at peace."""
LOGS: Final = ROOT / "data" / "logs"
INTERCEPT_S: Final = 0.001
"""How often letters, or moves, are looked for that are to be intercepted."""
_ASK_MS: Final = 2_000
_CONNECT_MS: Final = 300
_STOP_S: Final = 5.0
_DRAIN_S: Final = 1.0
STRAND_S: Final = 3.0
"""How long a master is waited for to be alone."""
_EMPTY_S: Final = 12.0
"""How long a node is waited for that is to be emptied before it leaves; then it goes all the same, if it may."""


class SimulatedCluster:
    """The nodes of a plan. `left`: those that are forgotten and gone for good; `damage`: by machine, what
    happened to its disk, so that it may hold less than it acknowledged; `seen`: what happened, counted."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.model = DiskModel(plan.unit_bytes, plan.ordered_names, forgets=plan.forgets)
        self.settings = {"cluster": {"copies": plan.copies, **HASTY}}
        if plan.always:
            self.settings["cluster"]["promote_always_after_ms"] = PROMOTE_AFTER_MS
        if plan.queues:
            # What is alive stays where it is: the checks of records know them by their places.
            self.settings["log"] = {"retention_copy_percent": 0}
        if plan.credit:
            self.settings["limits"] = {**SMALL["limits"], **CREDIT_LIMITS}
        if plan.lifetimes:
            self.settings["limits"] = {**SMALL["limits"], "subscriber_return_ms": RETURN_MS}
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
        self.doubtful: set[str] = set()
        """Who was to be forgotten, and may have been."""
        self.damage: dict[str, set[str]] = {}
        self.seen: Counter[str] = Counter()
        self.held: Counter[str] = Counter()
        """Nodes that are down on purpose, by how many faults."""
        self.at_peace = False
        self.to_leave: list[str] = []
        """By name; see `operate`."""
        self.to_restore: list[Callable[[], Awaitable[None]]] = []
        """At peace, and once all are `of_one_mind`: with others down, or only back, the cluster may forget what it had
        decided, and nothing tells."""
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

    @property
    def flipped(self) -> set[str]:
        """Nodes on whose disks a bit was."""
        return {name for name, kinds in self.damage.items() if "flip" in kinds}

    def hold(self, name: str) -> None:
        """It is not started before as many `release`."""
        self.held[name] += 1

    def release(self, name: str) -> None:
        self.held[name] -= 1
        self.start(name)

    def note_damage(self, name: str, kind: str) -> None:
        """power, fsync, flip, blank or restore."""
        self.damage.setdefault(name, set()).add(kind)

    def decided(self, *, but: str = "") -> ClusterState | None:
        """The newest that is known to any node that runs, but for one."""
        known = [state for node in self.present if node.name != but and (state := node.decided) is not None]
        return max(known, key=lambda state: state.version, default=None)

    @property
    def of_one_mind(self) -> bool:
        """Whether every node that is present knows all that is decided, in the same term. Who was away may have heard
        nothing yet of what was decided without it; with one that has forgotten that it would be a majority."""
        minds = {node.settled for node in self.present}
        return len(minds) == 1 and None not in minds

    def may_lose_disk(self, name: str) -> bool:
        """Whether it can come back without help, with what others have: they are a majority and know it, it knows one
        of them by its configuration, and no log's last whole copy is there, as far as anybody can tell."""
        state = self.decided()
        if state is None or self.plan.nodes < 3 or len(self.present) < 3:
            return False
        there = {node for node, facts in state.nodes.items() if facts.start_id} - self.left - set(self.to_leave)
        founders = there & set(self.plan.names) - {name}
        up = {node for node in there - {name} if self.nodes[node].machine.up}
        return len(there) >= 3 and bool(founders) and all(up & set(log.promotable) for log in state.logs.values())

    def whole_beside(self, name: str) -> bool:
        """Whether every log that it holds has another good copy that stays, as far as anybody can tell: one in sync, of
        which no bit was flipped. A start believes sealed segments: bad bytes there are found when they are read."""
        state = self.decided()
        gone = {name, *self.left, *self.doubtful, *self.to_leave[:1], *self.flipped}
        return state is not None and all(
            set(log.promotable) - gone for log in state.logs.values() if name in log.replicas
        )

    def on_its_way(self, masters: Mapping[str, str]) -> tuple[str, str] | None:
        """Names of the logs that some letters leave, and come to, as one of `masters`, by log, knows now: it is logged
        where they go, and not that they are there."""
        for node in self.present:
            if node.node is None or not node.machine.up or node.machine.paused:
                continue
            held = [each.replica for each in node.node.logs if each.replica.forwardings.leaving]
            for replica in held:
                name, table = replica.assignment.name, replica.forwardings
                pieces = [
                    piece for queue_id in sorted(table.leaving) if (piece := table.of(queue_id).piece) is not None
                ]
                if masters.get(name) == node.name and pieces and pieces[0].targets:
                    return name, self._name_of(pieces[0].targets[0].log_id)
        return None

    def moving(self, stage: str) -> MovingQueue | None:
        """A move that has come so far, as the masters of its logs know it now; see `cluster_plan.STAGES`."""
        state = self.decided()
        if state is None:
            return None
        for name, move in sorted(state.placing.moves.items()):
            left = self._aside(move.source, name, move.number, "left")
            came = self._aside(move.target, name, move.number, "arriving")
            if stage == ("arrived" if came and came.arrived else "left" if left else "begun"):
                return move
        for name, spans in sorted(state.placing.spans.items()) if stage == "added" else ():
            source, target = spans[-2].log_id, spans[-1].log_id
            if name not in state.placing.moves and self._aside(target, name, None, "arriving"):
                return MovingQueue(0, source, target)
        return None

    def _aside(self, log_id: str, name: str, move: int | None, how: str) -> Any:
        """What the master of a log knows of a queue that has left by that move, or is arriving by it."""
        node = self.nodes.get(self.master_of(log_id))
        if node is None or node.node is None or not node.machine.up or node.machine.paused:
            return None
        held = node.node.logs.held(log_id)
        moves = held.replica.queues.moves if held is not None else None
        known = getattr(moves, how, {})
        return next(
            (
                each
                for queue_id, each in known.items()
                if moves is not None and moves.name(queue_id) == name and move in (None, each.move)
            ),
            None,
        )

    def master_of(self, log_id: str) -> str:
        """Its node; empty while there is none."""
        state = self.decided()
        master = state.logs[log_id].master if state is not None and log_id in state.logs else None
        return master.node if master is not None else ""

    def in_sync(self, log_id: str) -> set[str]:
        """The nodes whose copies of a log are."""
        state = self.decided()
        return set(state.logs[log_id].in_sync) if state is not None and log_id in state.logs else set()

    def _name_of(self, log_id: str) -> str:
        state = self.decided()
        return state.logs[log_id].name if state is not None and log_id in state.logs else ""

    def holds(self, name: str) -> bool:
        """Whether a copy of some log is there, as far as anybody knows."""
        state = self.decided()
        return state is None or any(name in log.replicas for log in state.logs.values())

    def lets_in_unknown_to(self, name: str) -> bool:
        """Whether the cluster has let a copy into a log that this node masters, and it does not know yet."""
        own, newest = self.nodes[name].decided, self.decided(but=name)
        if own is None or newest is None:
            return False
        return any(
            log.master is not None
            and log.master.node == name
            and log_id in own.logs
            and log.epoch == own.logs[log_id].epoch
            and not log.in_sync.keys() <= own.logs[log_id].in_sync.keys()
            for log_id, log in newest.logs.items()
        )

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
                    if name in self.doubtful and NotAMember.exit_code in node.ended:
                        self.left.add(name)  # it was: it says so itself
                        continue
                    await asyncio.sleep(RESTART_S)
                    self.start(name)
                elif node.machine.up and not node.machine.paused and _disk_failed_at_start(node):
                    node.machine.kill()  # another start finds it well

    async def operate(self) -> None:
        """Does what is to be done, one after the other, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            while self.to_leave:
                if self.to_leave[0] not in self.left:
                    await self._leave(self.to_leave[0])
                self.to_leave.pop(0)
            while self.to_restore and self.at_peace:
                await self.to_restore[0]()
                self.to_restore.pop(0)

    @property
    def busy(self) -> bool:
        """Whether the operator has something to do."""
        return bool(self.to_leave or self.to_restore)

    async def _leave(self, name: str) -> None:
        if len(self.present) <= self.plan.copies:
            return  # it is needed
        await self.ask(DrainNode(node=name, empty=self.plan.moves), Drained)
        await asyncio.sleep(_DRAIN_S)
        end = self.world.now + (_EMPTY_S if self.plan.moves else 0.0)
        while self.holds(name) and self.world.now < end:  # noqa: ASYNC110  (a program of another machine tells nobody)
            await asyncio.sleep(LOOK_S)
        self.seen["emptied"] += self.plan.moves and not self.holds(name)
        node = self.nodes[name]
        self.hold(name)
        if node.node is not None:
            node.machine.ask_to_stop(node.node.stop)
        await asyncio.sleep(_DRAIN_S)
        node.machine.kill()
        if self.flipped - {name, *self.left} and not self.whole_beside(name):
            self.release(name)  # the last good copy would go, and that the one that stays is bad may not be known yet
        elif await self.ask(ForgetNode(node=name, force=True), Done):
            self.left.add(name)
            self.seen["left"] += 1
        else:  # it holds what nobody else does, or nobody has said what came of it
            self.doubtful.add(name)
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


def _disk_failed_at_start(node: SimulatedNode) -> bool:
    """Whether it refuses a log for that: it asks for its disk to be checked, and tries no more in this run."""
    return node.node is not None and any(isinstance(log.error, DiskFailed) for log in node.node.logs.refused)


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

    def __init__(
        self,
        cluster: SimulatedCluster,
        observer: Observer,
        troubles: Troubles,
        programs: Mapping[str, Main],
        *,
        meddler: Meddler | None = None,
        mover: Mover | None = None,
    ) -> None:
        """`programs`: by machine, those that can be killed and begin anew; `meddler`: who is told what to do to a queue
        that is taken from, if there is one; `mover`: the same, which queues are to move."""
        self._programs = programs
        self._meddler = meddler
        self._mover = mover
        self.happened: Counter[str] = Counter()
        self._cluster = cluster
        self._observer = observer
        self._troubles = troubles
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

    async def _strand(self, how: str, alone_s: float, for_s: float) -> bool | None:
        """The mirrors of the first log are down until they are in sync no more, and back when its master, which alone
        has everything by then, is hit."""
        cluster = self._cluster
        state = cluster.decided()
        log_id = next((each for each, log in state.logs.items() if log.name == "main"), "") if state else ""
        name = cluster.master_of(log_id)
        if state is None or not name or not cluster.nodes[name].machine.up:
            return False
        mirrors = [each for each in state.logs[log_id].replicas if each != name and each in cluster.nodes]
        for each in mirrors:
            cluster.nodes[each].machine.kill()
            cluster.hold(each)
        end = self._world.now + STRAND_S
        while not (alone := cluster.in_sync(log_id) == {name}) and self._world.now < end:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(alone_s)
        if alone and how == "drain":
            await cluster.ask(DrainNode(node=name), Drained, within_s=1.0)
        for each in mirrors:
            cluster.release(each)
        if not alone:
            return False
        return await (self._stop(name, for_s) if how == "stop" else self._hit_later(name, how, 0.0, for_s))

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
        with self._troubles.late(one, other):
            self._network.cut_off({one}, {other} - {one})
            await asyncio.sleep(for_s)
            self._network.mend(one, other)

    async def _cut_one_way(self, one: str, other: str, for_s: float) -> None:
        one = self._node(one).name
        pair = (one, other) if self._random.random() < 0.5 else (other, one)
        with self._troubles.late(*pair):
            self._network.cut(*pair)
            await asyncio.sleep(for_s)
            self._network.mend(*pair)

    async def _isolate(self, target: str, whom: str, for_s: float) -> None:
        node = self._node(target)
        self._hit(node)
        await self._cut_off(node, self._cluster.plan.clients if whom == "all" else (), for_s)

    async def _cut_off(self, node: SimulatedNode, clients: Sequence[str], for_s: float) -> None:
        """From all other nodes, and from those clients."""
        others = {*self._cluster.nodes, *clients} - {node.name}
        with self._troubles.late(node.name):
            self._network.cut_off({node.name}, others)
            await asyncio.sleep(for_s)
            for other in sorted(others):
                self._network.mend(node.name, other)

    async def _doubt(self, wait_s: float, for_s: float) -> bool:
        """The master of a log is cut off from the other nodes as soon as a copy was let in and it does not know yet:
        what the coordinator tells it comes late."""
        master, coordinator = self._node("@master"), self._node("@coordinator")
        if master is coordinator:
            return False  # it knows first
        with self._troubles.late(master.name, coordinator.name):
            self._network.lengthen(coordinator.name, master.name, DOUBT_S)
            end = self._world.now + wait_s
            while not (found := self._cluster.lets_in_unknown_to(master.name)) and self._world.now < end:  # noqa: ASYNC110
                await asyncio.sleep(DOUBT_S / 10)
            self._network.lengthen(coordinator.name, master.name, 0.0)
            if found:
                await self._cut_off(master, (), for_s)
        return found

    async def _split(self, some: str, for_s: float) -> None:
        others = set(self._cluster.nodes) - set(some)
        with self._troubles.late(*sorted(self._cluster.nodes)):
            self._network.cut_off(some, others)
            await asyncio.sleep(for_s)
            for one in some:
                for other in sorted(others):
                    self._network.mend(one, other)

    async def _reset(self, one: str, other: str) -> bool:
        one = self._node(one).name
        with self._troubles.late(one, other):
            return bool(self._network.reset(one, other))

    async def _weather(self, delay_s: float, hiccups: float, for_s: float) -> None:
        with self._troubles.late(*(sorted(self._cluster.nodes) if hiccups else ())):
            self._network.weather = TcpWeather(delay_s=(0.0001, delay_s), hiccups=hiccups)
            await asyncio.sleep(for_s)
            self._network.weather = TcpWeather()

    async def _lengthen(self, one: str, other: str, seconds: float, for_s: float) -> None:
        one = self._node(one).name
        with self._troubles.late(one, other):
            self._network.lengthen(one, other, seconds)
            await asyncio.sleep(for_s)
            self._network.lengthen(one, other, 0.0)

    # --- programs that use the cluster ---

    async def _desert(self, name: str, for_s: float) -> bool | None:
        """It is killed, and what its sessions had goes back."""
        machine = self._world.machines[name]
        if not machine.up:
            return False
        machine.kill()
        await asyncio.sleep(for_s)
        if not machine.up:
            machine.start(self._programs[name])
        return None

    async def _doze(self, name: str, for_s: float) -> bool | None:
        """It stands still with all that it has, and its connections stay."""
        machine = self._world.machines[name]
        if not machine.up or machine.paused:
            return False
        machine.pause()
        await asyncio.sleep(for_s)
        machine.resume()
        return None

    async def _meddle(self, what: str, group: str) -> bool | None:
        """With a queue that others take from, if there is one."""
        if self._meddler is None:
            return False
        self._meddler.ask(what, group)
        return None

    async def _redrive(self) -> bool | None:
        """What has died, to where it did."""
        return await self._meddle(REDRIVE, "")

    async def _intercept(self, whose: str, how: str, wait_s: float, after_s: float, for_s: float) -> bool | None:
        """A master is hit, `after_s` after it is in the log where letters go, and not yet that they are there: that of
        the log that they leave, or of the one that they come to."""
        end = self._world.now + wait_s
        while (found := self._cluster.on_its_way(self._observer.master)) is None:
            if self._world.now >= end:
                return False
            await asyncio.sleep(INTERCEPT_S)
        name = self._observer.master.get(found[whose == "target"], "")
        return await self._hit_later(name, how, after_s, for_s)

    async def _hit_later(self, name: str, how: str, after_s: float, for_s: float) -> bool | None:
        await asyncio.sleep(after_s)
        if name not in self._cluster.nodes:
            return False
        match how:
            case "kill" | "drain":
                return await self._kill(name, for_s)
            case "power":
                return await self._power(name, for_s)
            case "pause":
                return await self._pause(name, for_s)
            case _:
                return await self._isolate(name, "nodes", for_s)

    # --- queues that move ---

    async def _alter(self, number: int, steps: int) -> bool | None:
        if self._mover is None:
            return False
        self._mover.ask(number, steps)
        return None

    async def _govern(self, number: int, which: int) -> bool | None:
        if self._mover is None:
            return False
        self._mover.govern(number, which)
        return None

    async def _call_off(self, stage: str, wait_s: float, after_s: float) -> bool:
        """Somebody has a move cancelled that has come so far."""
        found = await self._moving(stage, wait_s)
        if found is None:
            return False
        await asyncio.sleep(after_s)
        return self._random.choice(self._cluster.present).propose(MoveCancelled(number=found.number))

    async def _moving(self, stage: str, wait_s: float) -> MovingQueue | None:
        """A move that comes so far within that time."""
        end = self._world.now + wait_s
        while (found := self._cluster.moving(stage)) is None and self._world.now < end:  # noqa: ASYNC110
            await asyncio.sleep(INTERCEPT_S)
        return found

    async def _ambush(self, when: str, how: str, wait_s: float, after_s: float, for_s: float) -> bool | None:
        """A master is hit when a move has come so far: that of the log that the queue leaves, or comes to; or a
        mirror of the latter."""
        stage, _, whose = when.partition(" ")
        found = await self._moving(stage, wait_s)
        if found is None:
            return False
        self._observer.counts[f"moves: the {whose} is hit when it has {stage}"] += 1
        name = self._cluster.master_of(found.source if whose == "source" else found.target)
        if whose == "mirror":
            name = next(iter(sorted(self._cluster.in_sync(found.target) - {name})), "")
        return await self._hit_later(name, how, after_s, for_s)

    # --- disks ---

    async def _slow(self, target: str, share: float, for_s: float) -> None:
        machine = self._node(target).machine
        with self._troubles.late(machine.name):
            machine.pace.slow = share
            await asyncio.sleep(for_s)
            machine.pace.slow = 0.0

    async def _full(self, target: str, free_bytes: int, for_s: float) -> None:
        machine = self._node(target).machine
        with self._troubles.late(machine.name):
            machine.files.limit(free_bytes)
            await asyncio.sleep(for_s)
            machine.files.limit(None)

    async def _fsync(self, target: str, number: int, for_s: float) -> None:
        machine = self._node(target).machine
        machine.files.faults.fail("fdatasync", first=number, times=1)
        self._damaged(machine.name, "fsync")
        await asyncio.sleep(for_s)
        machine.files.faults.heal()

    async def _flip(self, target: str, where: str, depth: float, bit: int, down_s: float) -> bool | None:
        """While its node is down, as a bad sector is found: by the next start, or by whoever reads it."""
        node, cluster = self._node(target), self._cluster
        if cluster.plan.copies < 2:
            return False  # the only copy: nothing would be left of its queues
        if (cluster.left or cluster.doubtful or cluster.to_leave) and not cluster.whole_beside(node.name):
            return False  # the only copy that stays: one that is away comes back, one that was forgotten does not
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
        # Bits flip on the device. What the log knows to be there ends a little before it.
        size = int(len(files.durable_content(path).rstrip(b"\0")) * 0.9)
        if not size:
            return False
        files.flip_bit(path, int(size * depth), bit)
        self._damaged(node.name, "flip")
        return True

    # --- machines ---

    async def _blank(self, target: str, down_s: float) -> bool | None:
        """Its disk is replaced, and it is started as it is."""
        node, cluster = self._node(target), self._cluster
        if not cluster.may_lose_disk(node.name):
            return False
        cluster.hold(node.name)
        node.machine.kill()
        node.machine.wipe()
        cluster.note_damage(node.name, "blank")
        await asyncio.sleep(down_s)
        cluster.release(node.name)
        return None

    async def _restore(self, target: str, down_s: float) -> bool:
        """The machine's disk is what it was now, later, when the storm is over."""
        node, cluster = self._node(target), self._cluster
        machine = node.machine
        if not machine.up or self._observer.registered.get(node.name, 0) < machine.runs:
            return False
        image, disk, run = machine.image(), machine.disks, machine.runs

        async def restore() -> None:
            if machine.disks == disk and node in cluster.present and cluster.may_lose_disk(node.name):
                await self._set_back(node, image, run, down_s)

        cluster.to_restore.append(restore)
        return True

    async def _set_back(self, node: SimulatedNode, image: SimulatedFiles, run: int, down_s: float) -> None:
        """To an image that was made in that run; the cluster has heard of a later one. Of a disk that is set back
        within one run nothing tells, see docs/use/guarantees.md."""
        cluster = self._cluster
        if node.machine.runs == run:
            cluster.hold(node.name)
            node.machine.kill()
            cluster.release(node.name)
        await self._world.until(
            lambda: self._all_registered() and cluster.of_one_mind,
            within_s=REGISTER_S,
            otherwise="not all nodes have registered and heard what is decided",
        )
        cluster.hold(node.name)
        self._lose_power(node.machine)
        node.machine.restore(image)
        self._damaged(node.name, "restore")
        cluster.seen["restored"] += 1
        await asyncio.sleep(down_s)
        cluster.release(node.name)

    def _all_registered(self) -> bool:
        registered = self._observer.registered
        return all(registered.get(node.name, 0) == node.machine.runs for node in self._cluster.present)

    # --- operators ---

    async def _drain(self, target: str, for_s: float) -> bool:
        name = self._node(target).name
        drained = await self._cluster.ask(DrainNode(node=name), Drained, within_s=2.0)
        await asyncio.sleep(for_s)
        await self._cluster.ask(DrainNode(node=name, draining=False), Drained)
        return drained

    async def _empty(self, target: str, for_s: float) -> bool:
        """It leaves, and stays after all."""
        name = self._node(target).name
        leaves = await self._cluster.ask(DrainNode(node=name, empty=True), Drained, within_s=2.0)
        await asyncio.sleep(for_s)
        if name not in (*self._cluster.to_leave, *self._cluster.left):
            await self._cluster.ask(DrainNode(node=name, draining=False), Drained)
        return leaves

    async def _halt(self, for_s: float) -> bool:
        halted = await self._cluster.ask(PauseMoving(paused=True), Done, within_s=2.0)
        await asyncio.sleep(for_s)
        await self._cluster.ask(PauseMoving(paused=False), Done)
        return halted

    async def _wish(self, number: int, nodes: str) -> bool:
        """A log shall be there."""
        return self._propose(
            number,
            lambda state, log_id, seen: ReplicasWished(
                log_id=log_id, seen=seen, nodes=tuple(node for node in nodes if node in state.nodes)
            ),
        )

    async def _retire(self, number: int, node: str) -> bool:
        """A copy shall go, whether others are there or not."""
        return self._propose(number, lambda _, log_id, seen: ReplicaRetired(log_id=log_id, seen=seen, node=node))

    def _propose(self, number: int, command: Callable[[ClusterState, str, Seen], Command]) -> bool:
        """Somebody proposes it of a log, by what he knows, sensible or not."""
        node = self._random.choice(self._cluster.present)
        state = node.decided
        if state is None or not state.logs or state.cluster_version < versions.PLACEMENTS:
            return False
        log_id, log = sorted(state.logs.items())[number % len(state.logs)]
        return node.propose(command(state, log_id, log.seen))

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
        cluster.to_leave.append(target)
        return True

    # --- inside ---

    def _damaged(self, name: str, kind: str) -> None:
        self._cluster.note_damage(name, kind)
        self._troubles.damaged(name)

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
