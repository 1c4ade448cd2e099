"""One schedule: a cluster, clients that use it, a storm of faults by plan, then peace, in which all must come right.

In peace, within bounds: every node is in, every copy in sync, every record that is sent is confirmed, every producer
comes to its end, every reader reaches the end of its queue. Then everything that was seen is checked.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Final

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from mirrorlog.wire.messages.status import Status
from sim.cluster_checks import Outside, check_all
from sim.cluster_clients import AGAIN_S, FinalReader, History, Producing, Readers, Writers
from sim.cluster_coverage import Observer
from sim.cluster_credit import CreditTap, check_credit, credited, still_held
from sim.cluster_faults import PROMOTE_AFTER_MS, Faults, SimulatedCluster
from sim.cluster_groups import Groups
from sim.cluster_holds import Landing, holds_keep
from sim.cluster_lifetimes import watched
from sim.cluster_move_checks import a_log_group_stays_together, check_moves, left_open
from sim.cluster_moves import Mover, Places, placed
from sim.cluster_plan import Plan
from sim.cluster_policy import Policies, accept_losses, noted, nothing_is_given_up_that_somebody_has
from sim.cluster_taps import tapped
from sim.cluster_troubles import Troubles
from sim.loop import START_S
from sim.machines import Machine
from sim.sockets import TcpWeather
from sim.stand_ins import node_disks
from sim.trace import Trace
from sim.world import World

BEGIN_S: Final = 30.0
FLUSHED_S: Final = 0.9
"""By then most logs were flushed for the first time since they have queues; the storm does not begin earlier."""
STORM_END_S: Final = 40.0
"""How long the last faults take to undo themselves."""
OPERATOR_S: Final = 120.0
HEAL_S: Final = 30.0
END_S: Final = 60.0
"""More than the delivery timeout."""
_FIRST_CONFIRMS: Final = 5


def run(plan: Plan, *, trace: Trace | None = None) -> Counter[str]:
    """What happened, counted: faults (`fault kill`), rare branches, records. Raises RunFailed."""
    with World(f"cluster {plan.seed}", trace=trace) as world, node_disks(world), ExitStack() as undo:
        schedule = _Schedule(world, plan)
        if schedule.groups is not None:
            undo.enter_context(tapped(schedule.groups.tap))
        if schedule.groups is not None and plan.lifetimes:
            undo.enter_context(watched(schedule.groups.lifetimes))
        if plan.credit:
            undo.enter_context(credited(schedule.credit))
        undo.enter_context(placed(schedule.places))
        undo.enter_context(noted(schedule.policies))
        return world.run(schedule.story())


class _Schedule:
    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self._history = History()
        self._observer = Observer()
        self.credit = CreditTap(lambda: world.now)
        self._troubles = Troubles(lambda: world.now)
        world.trace.watch(self._observer)
        world.trace.watch(self._troubles)
        self._cluster = SimulatedCluster(world, plan)
        self.places = Places(lambda: world.now, self._observer.opened_at, self._observer.forget)
        self.policies = Policies(lambda: world.now)
        queues = {f"q{number}": mode for number, mode in enumerate((*plan.logs, plan.logs[0])[:2])}
        producers = list(_producers(plan, list(queues)))
        self._writers = Writers(self._cluster.servers, queues, producers, self._history)
        self._readers = Readers(self._cluster.servers, list(queues), self._history, mirrors=plan.copies > 1)
        self.groups = Groups(self._cluster, list(queues)) if plan.groups else None
        programs = self.groups.programs if self.groups is not None else {}
        meddler = self.groups.meddler if self.groups is not None and (plan.queues or plan.letters) else None
        self._mover = Mover(self._cluster.servers, plan, self._queues_that_move) if plan.placing else None
        self._landing = Landing(self._cluster.servers, self._history) if plan.placing else None
        self._faults = Faults(
            self._cluster, self._observer, self._troubles, programs, meddler=meddler, mover=self._mover
        )

    async def story(self) -> Counter[str]:
        cluster, history, world = self._cluster, self._history, self._world
        for name in self._plan.names:
            cluster.start(name)
        world.machine("writers").start(self._writers)
        world.machine("readers").start(self._readers)
        await self._confirms("nothing is confirmed at first", within_s=BEGIN_S)
        await asyncio.sleep(max(0.0, START_S + FLUSHED_S - world.now))
        await world.until(self._queues_are_on_disk, within_s=BEGIN_S, otherwise="the queues are not flushed")
        await self._begin()
        operators = [asyncio.ensure_future(work) for work in (cluster.watch(), cluster.operate())]
        storm = asyncio.gather(*(self._faults.do(event) for event in self._plan.events))
        await asyncio.wait_for(storm, self._plan.seconds + STORM_END_S)
        self._make_peace()
        await world.until(
            lambda: not cluster.busy or any(work.done() for work in operators),
            within_s=OPERATOR_S,
            otherwise="the operator is not done",
        )
        for work in operators:
            if work.done():
                work.result()
        await self._all_moved()
        await self._settle()
        await self._confirms("nothing is confirmed after the storm", within_s=HEAL_S)
        self._writers.stopping = True
        await world.until(lambda: self._writers.done, within_s=END_S, otherwise="a producer does not come to its end")
        await self._end_landing()
        final = FinalReader(cluster.addresses, history)
        world.machine("final").start(final)
        await world.until(lambda: final.done, within_s=END_S, otherwise="the queues cannot be read to their ends")
        await self._until_all_read()
        if self.groups is not None:
            await self.groups.end()
        if self._plan.credit:
            await self._credit_is_back()
        self._check()
        return self._counts()

    def _check(self) -> None:
        """Raises AssertionError."""
        outside = self._outside()
        nothing_is_given_up_that_somebody_has(self.policies, self._troubles, self._plan, PROMOTE_AFTER_MS / 1000)
        check_all(outside)
        check_credit(self.credit)
        check_moves(outside)
        if self._landing is not None:
            holds_keep(outside, self._landing)
        if self.groups is not None:
            self.groups.check(outside)

    def _queues_that_move(self) -> list[str]:
        return [*self._history.log_ids, *(self.groups.names if self.groups is not None else ())]

    async def _begin(self) -> None:
        """Whoever uses queues in the storm."""
        if self._plan.always:
            await asyncio.wait_for(accept_losses(self._cluster, self._plan), BEGIN_S)
        if self.groups is not None:
            await self.groups.begin()
            self.groups.start()
        if self._mover is not None:
            self._world.machine("mover").start(self._mover)
        if self._landing is not None:
            self._world.machine("landing").start(self._landing)

    async def _all_moved(self) -> None:
        """Whoever alters queues has his answers, and every move has come to its end, in every log."""
        a_log_group_stays_together(self._outside())
        mover, until = self._mover, self._world.until
        if mover is not None:
            await until(lambda: mover.idle, within_s=END_S, otherwise="who alters queues does not come to his end")
        try:
            await until(
                lambda: not left_open(self._cluster), within_s=HEAL_S, otherwise="a queue does not come to its place"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {left_open(self._cluster)}") from None

    async def _end_landing(self) -> None:
        landing = self._landing
        if landing is not None:
            landing.stopping = True
            until = self._world.until
            await until(lambda: landing.done, within_s=END_S, otherwise="a landing does not come to its end")

    async def _confirms(self, otherwise: str, *, within_s: float) -> None:
        """Every producer has some more records confirmed."""
        counts = self._history.counts
        producers = {each.name for each in self._writers.producers}
        before = {name: counts[f"confirmed of {name}"] for name in producers}
        await self._world.until(
            lambda: all(counts[f"confirmed of {name}"] >= before[name] + _FIRST_CONFIRMS for name in producers),
            within_s=within_s,
            otherwise=otherwise,
        )

    def _queues_are_on_disk(self) -> bool:
        """On that of every copy in sync. A log in memory may lose a queue that has just been made, with all that is in
        it, when all machines lose power, and nobody makes it anew."""
        state, history = self._cluster.decided(), self._history
        first = {sent.queue: sent.receipt.log_offset for sent in reversed(history.sent) if sent.receipt is not None}
        return state is not None and all(
            self._cluster.nodes[node].flushed(log_id) > first[queue]
            for queue, log_id in history.log_ids.items()
            for node in state.logs[log_id].in_sync
        )

    def _make_peace(self) -> None:
        world, cluster = self._world, self._cluster
        world.trace.note(world.now, "", "PEACE")
        world.network.heal()
        world.network.weather = TcpWeather()
        cluster.at_peace = True
        for node in cluster.present:
            machine = node.machine
            machine.pace.slow = 0.0
            machine.files.faults.heal()
            machine.files.limit(None)
            machine.resume()
            cluster.start(node.name)
        if self.groups is not None:
            self.groups.make_peace()

    async def _settle(self) -> None:
        """Every node says that it is in and that all copies are in sync."""
        settling = _Settling(self._cluster)
        self._world.machine("watcher").start(settling)
        try:
            await self._world.until(
                lambda: settling.settled, within_s=HEAL_S, otherwise="the cluster is not whole again"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {settling.waits_for}") from None

    async def _credit_is_back(self) -> None:
        """Nobody sends any more, so nobody is held, and nothing is open."""
        present = self._cluster.present
        try:
            await self._world.until(
                lambda: not still_held(present), within_s=HEAL_S, otherwise="credit does not come back"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {still_held(present)}") from None

    async def _until_all_read(self) -> None:
        ends = {final.queue: final.seen[-1].queue_offset for final in self._history.finals if final.seen}
        readings = [reading for reading in self._history.readings if reading.queue in ends]

        def behind() -> list[str]:
            return [
                f"{reading.name} is at {reading.next} of {ends[reading.queue] + 1}, last it met {reading.error!r}"
                for reading in readings
                if reading.next <= ends[reading.queue]
            ]

        until = self._world.until
        try:
            await until(lambda: not behind(), within_s=HEAL_S, otherwise="a reader does not come to its end")
        except AssertionError as error:
            raise AssertionError(f"{error}: {'; '.join(behind())}") from None

    def _outside(self) -> Outside:
        cluster = self._cluster
        damage = {name: frozenset(kinds) for name, kinds in cluster.damage.items()}
        given_up = frozenset((each.log, each.epoch) for each in self.policies.given_up)
        disks = {name: node.machine.files for name, node in cluster.nodes.items()}
        return Outside(self._plan, self._history, self._observer, self._troubles, damage, disks, self.places, given_up)

    def _counts(self) -> Counter[str]:
        history, seen = self._history, self._observer.counts
        losses = [loss for log in history.cluster.logs for loss in log.losses]
        seen["a loss is declared"] += len(losses)
        seen["a copy is promoted by a rule"] += len(self.policies.given_up)
        seen["queue offsets leap"] += sum(loss.leapt for loss in losses)
        seen["a retry is answered as a duplicate"] += sum(
            sent.receipt is not None and sent.receipt.duplicate for sent in history.sent
        )
        seen["a reader is sent over a gap"] += sum(len(reading.gaps) for reading in history.readings)
        for outcome in ("refused", "unknown"):
            count = sum(sent.outcome == outcome for sent in history.sent)
            seen["a record is refused" if outcome == "refused" else "a record of unknown outcome"] += count
        counts = Counter({f"branch: {branch}": count for branch, count in self._observer.branches().items()})
        counts.update({f"fault: {fault}": count for fault, count in self._faults.happened.items()})
        counts.update({f"operator: {what}": count for what, count in self._cluster.seen.items()})
        counts.update(
            {
                "records sent": len(history.sent),
                "records confirmed": history.confirmed(),
                "records read": sum(len(reading.seen) for reading in [*history.readings, *history.finals]),
                "positions committed": history.counts["positions committed"],
                "confirmed below all and lost": history.counts["confirmed below all and lost"],
                "losses that begin before their epoch": history.counts["losses that begin before their epoch"],
                "confirmed and reported as lost": history.counts["confirmed and reported as lost"],
                f"schedules of {self._plan.kind}": 1,
                f"schedules with {self._plan.nodes} nodes": 1,
                "schedules": 1,
            }
        )
        counts.update(self.credit.counts)
        counts.update(self.places.counts)
        if self._landing is not None:
            counts["moves: holds kept"] = len(self._landing.held)
        counts.update({name: count for name, count in seen.items() if name.startswith("moves: ")})
        if self._mover is not None:
            counts.update(f"moves: {each.by} {each.outcome}" for each in self._mover.altered)
        if self.groups is not None:
            counts.update(self.groups.counts())
        return counts


def _producers(plan: Plan, queues: list[str]) -> Iterator[Producing]:
    """One at level `all` for each queue, and another one at any level."""
    random = Random(f"{plan.seed} producers")
    levels: list[str | int] = ["all", "master", "none"]
    if plan.copies > 1:
        levels += ["majority", "majority", "one", "one"]
    if plan.copies > 2:
        levels.append(2)
    for number, (queue, level) in enumerate(
        [*((queue, "all") for queue in queues), (queues[0], random.choice(levels))]
    ):
        yield Producing(
            name=f"p{number}",
            queue=queue,
            level=level,
            pause_s=random.choice((0.05, 0.1) if plan.groups else (0.02, 0.05, 0.1)),
            burst=random.choice((1, 1, 3) if plan.groups else (1, 1, 3, 10)),
            padding=random.choice((10, 1000, 8000) if plan.groups else (10, 100, 1000)),
            durability=random.choice(("memory", "memory", "memory", "disk")),
            delivery_timeout_ms=random.choice((2_000, 30_000, 30_000)),
        )


class _Settling:
    """A program: asks all nodes until they agree that all is well."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.settled = False
        self.waits_for = "nobody has answered"
        self._cluster = cluster

    async def __call__(self, machine: Machine) -> None:
        while not self.settled:
            try:
                async with Client(*self._cluster.addresses, role="tool", request_timeout_ms=2_000) as client:
                    while not self.settled:
                        statuses = {node.name: await client.admin.status(node.name) for node in self._cluster.present}
                        self.waits_for = next(self._open_points(statuses), "")
                        plan = self._cluster.plan
                        self.settled = not self.waits_for and not (plan.moves or plan.placing)
                        for node in _draining(statuses):  # by a request of unknown outcome, decided after its undoing
                            await client.admin.drain(node, draining=False)
                        if (plan.moves or plan.placing) and not self.waits_for:
                            moves = await client.admin.copy_moves()
                            if moves.paused:
                                await client.admin.pause_moving(False)
                            self.waits_for = f"it is planned that {moves.moves} move" if moves.moves else ""
                            self.settled = not moves.moves and not moves.paused
                        await asyncio.sleep(AGAIN_S)
            except MirrorlogError as error:
                self.waits_for = f"{type(error).__name__}: {error}"
                await asyncio.sleep(AGAIN_S)

    def _open_points(self, statuses: dict[str, Status]) -> Iterator[str]:
        present = set(statuses)
        for name, status in statuses.items():
            view = status.cluster
            if view is None or not view.registered:
                yield f"{name} is not registered"
                continue
            if {node.node_id for node in view.nodes} != present:
                yield f"{name} knows {', '.join(sorted(node.node_id for node in view.nodes))}"
            for log in view.logs:
                wanted = min(log.copies, len(present))
                if not log.master or len(log.replicas) < wanted or set(log.in_sync) != set(log.replicas) or log.marked:
                    yield f"for {name} log {log.name} is {log}"
                if log.target:
                    yield f"for {name} log {log.name} is on its way to {log.target}"
                if any(not loss.leapt for loss in log.losses):
                    yield f"for {name} log {log.name} has still to leap: {log.losses}"


def _draining(statuses: dict[str, Status]) -> set[str]:
    views = [status.cluster for status in statuses.values() if status.cluster is not None]
    nodes = [node for view in views for node in view.nodes if node.node_id in statuses]
    return {node.node_id for node in nodes if node.draining or node.leaving}
