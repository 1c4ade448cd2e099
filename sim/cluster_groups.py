"""The acking groups of a schedule: who takes from them, what is noted meanwhile, and when they are done.

Takers begin when the queues are on disk. In peace they settle all that comes for good; nothing may be left open within
`DRAIN_S`, then each of them has to come to its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Final

from sim.cluster_checks import Outside
from sim.cluster_consumers import GroupHistory, GroupWatcher, Subscribers, takings
from sim.cluster_dead_letter_checks import check_letters
from sim.cluster_dead_letters import letter_queues_of, takings_of_letters
from sim.cluster_faults import SimulatedCluster
from sim.cluster_filler import Filler
from sim.cluster_group_checks import FINAL, GroupsOutside, check_groups
from sim.cluster_ledgers import Ledgers
from sim.cluster_lifetime_checks import check_lifetimes
from sim.cluster_lifetimes import BRITTLE, PARTY, Farewell, Guests, LifetimeHistory
from sim.cluster_plan import MEDDLER, TAKERS
from sim.cluster_queues import ALONE, Feeders, Meddler, QueueHistory, queues_of, takings_of
from sim.cluster_record_checks import Filled, RecordsOutside, check_records
from sim.cluster_sorts import LIMITED, sorts_of, takings_of_sorts
from sim.cluster_taps import Tap
from sim.cluster_transaction_checks import Shown, check_transactions
from sim.machines import Main

DRAIN_S: Final = 30.0
MADE_S: Final = 30.0
FEEDERS: Final = "feeders"
END_S: Final = 60.0
GONE_S: Final = 15.0
"""Until what goes by itself is gone, when all has been quiet."""
LOOK_S: Final = 0.05
FEW: Final = 3
"""Takers of the usual queues, where there are others besides."""


class Groups:
    """`tap`: to be put on the nodes while the schedule runs; `programs`: by machine."""

    def __init__(self, cluster: SimulatedCluster, queues: Sequence[str]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        seed = cluster.plan.seed
        self._queues = queues_of(seed) if cluster.plan.queues else []
        plan = cluster.plan
        sorts = sorts_of(seed, records=plan.records, transactions=plan.transactions)
        letters = letter_queues_of(seed) if plan.letters else []
        usual = takings(seed, queues)
        self._takings = (
            *(usual[:FEW] if sorts or letters or plan.lifetimes else usual),
            *takings_of(seed, self._queues),
            *takings_of_sorts(seed, sorts),
            *takings_of_letters(seed, letters),
        )
        self._queues += [*sorts, *letters]
        self._limited = [each for each in sorts if each in LIMITED]
        self._filled: tuple[Filled, ...] = ()
        self._history = GroupHistory()
        self._fed = QueueHistory()
        self._feeders = Feeders(
            cluster.servers, self._queues, (plan.logs[0], plan.logs[-1]), self._fed, seed=seed, made=self._made
        )
        self.meddler = Meddler(cluster.servers, self._fed)
        self._ledgers = Ledgers()
        self._shown = Shown(self._fed.names)
        self._takers = {
            machine: Subscribers(
                machine,
                cluster.servers,
                self._takings[number :: len(TAKERS)],
                self._history,
                seed=f"{cluster.plan.seed} {machine}",
            )
            for number, machine in enumerate(TAKERS)
        }
        self.tap = Tap(lambda: self._world.now)
        self._letters = Counter[str]()
        self.lifetimes = LifetimeHistory(lambda: self._world.now)
        self._guests = Guests(cluster.servers, plan.logs[0], self.lifetimes, seed=seed)
        self._looking: asyncio.Task[None] | None = None

    @property
    def programs(self) -> Mapping[str, Main]:
        return self._takers

    @property
    def names(self) -> list[str]:
        """Of queues of other sorts that there are by now, or may be."""
        return [*self._fed.log_ids, *((PARTY, BRITTLE) if self._cluster.plan.lifetimes else ())]

    def _made(self, queue: str, queue_id: int) -> None:
        if queue in ALONE:
            self.tap.alone.add(queue_id)

    async def begin(self) -> None:
        """Queues of other sorts are made. Raises AssertionError."""
        if self._queues:
            self._world.machine(FEEDERS).start(self._feeders)
            self._world.machine(MEDDLER).start(self.meddler)
            until = self._world.until
            await until(lambda: self._feeders.ready, within_s=MADE_S, otherwise="the other queues are not made")
        if self._cluster.plan.letters:
            # Nobody makes one anew that nobody sends to.
            await until(self._on_disk(), within_s=MADE_S, otherwise="the other queues are not flushed")

    def _on_disk(self) -> Callable[[], bool]:
        """Whether all that there is now is on the disk of every copy in sync."""
        cluster, ends = self._cluster, dict[str, int]()
        for log_id in set(self._fed.log_ids.values()):
            ends[log_id] = max(node.end(log_id) for node in cluster.present)

        def flushed() -> bool:
            state = cluster.decided()
            return state is not None and all(
                cluster.nodes[node].flushed(log_id) >= end
                for log_id, end in ends.items()
                for node in state.logs[log_id].in_sync
            )

        return flushed

    def start(self) -> None:
        for name, program in self._takers.items():
            self._world.machine(name).start(program)
        self._looking = asyncio.ensure_future(self._look())
        if self._cluster.plan.lifetimes:
            self._world.machine("guests").start(self._guests)

    def make_peace(self) -> None:
        """Everybody is there, and settles what comes."""
        for name, program in self._takers.items():
            program.peace = True
            machine = self._world.machines[name]
            machine.resume()
            if not machine.up:
                machine.start(program)

    async def end(self) -> None:
        """Nothing is open in any group, then every taker comes to its end. Raises AssertionError."""
        until = self._world.until
        if self._queues:
            await until(
                lambda: self.meddler.idle, within_s=END_S, otherwise="who resets and deletes does not come to his end"
            )
            self._feeders.stopping = True
            await until(lambda: self._feeders.done, within_s=END_S, otherwise="a feeder does not come to its end")
        if self._cluster.plan.lifetimes:
            await self._part()
        groups = sorted({(each.queue, each.group) for each in self._takings})
        watcher = GroupWatcher(self._cluster.addresses, groups)
        self._world.machine("group watcher").start(watcher)
        try:
            await until(lambda: watcher.done, within_s=DRAIN_S, otherwise="a group is not done")
        except AssertionError as error:
            raise AssertionError(f"{error}: {watcher.waits_for}; {self._history.errors}; {self._fed.errors}") from None
        for program in self._takers.values():
            program.stopping = True
        done = self._takers.values()
        try:
            await until(
                lambda: all(each.done for each in done), within_s=END_S, otherwise="a taker does not come to its end"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {list(self._history.waits.values())}") from None
        if self._limited:
            filler = Filler(self._cluster.addresses, self._limited)
            self._world.machine("filler").start(filler)
            await until(lambda: filler.done, within_s=END_S, otherwise="queues with a length are not filled")
            self._filled = tuple(filler.filled)
        assert self._looking is not None
        self._looking.cancel()
        self._look_once()

    async def _part(self) -> None:
        """Guests leave, and queues that go by themselves go. Raises AssertionError."""
        until = self._world.until
        self._guests.stopping = True
        await until(lambda: self._guests.done, within_s=END_S, otherwise="a guest does not come to its end")
        farewell = Farewell(self._cluster.addresses)
        self._world.machine("farewell").start(farewell)
        try:
            await until(lambda: farewell.done, within_s=GONE_S, otherwise="a queue does not go")
        except AssertionError as error:
            raise AssertionError(f"{error}: {farewell.waits_for}; {self.lifetimes.errors}") from None

    def check(self, outside: Outside) -> None:
        """Raises AssertionError."""
        groups = GroupsOutside(outside, self._history, self.tap, self._ledgers, self._takings, self._fed)
        check_groups(groups)
        if outside.plan.records:
            check_records(RecordsOutside(groups, self._ledgers, self._filled))
        if outside.plan.transactions:
            check_transactions(groups, self._shown)
        if outside.plan.letters:
            self._letters = check_letters(groups)
        if outside.plan.lifetimes:
            check_lifetimes(outside, self.lifetimes)

    def counts(self) -> Counter[str]:
        """What happened, counted."""
        taken = self._history.taken
        verdicts: dict[tuple[str, str, int], set[str]] = {}
        for one in taken:
            if one.how in FINAL:
                verdicts.setdefault((one.queue, one.group, one.queue_offset), set()).add(one.how)
        counts = Counter(f"groups: {each.how} {each.outcome or 'not answered'}" for each in taken if each.how)
        counts.update(
            {
                "groups: records taken": len(taken),
                "groups: records taken again": sum(each.redelivered for each in taken),
                "groups: contrary verdicts": sum(len(each) > 1 for each in verdicts.values()),
                "groups: settled otherwise": sum(bool(each.stands) for each in taken),
                "groups: grants": len(self.tap.granted),
                "groups: ledgers compared": self._ledgers.compared,
                "queues: records sent": len(self._fed.sent),
                "queues: a begin moved": int(self._fed.begin > 0),
                "queues: deleted and made anew": max(0, len(self._fed.names) - len(self._queues)),
            }
        )
        counts.update(f"transactions: {each.outcome or 'not answered'}" for each in self._history.transactions)
        counts.update(self._letters)
        counts.update(Counter(f"lifetimes: {each.queue} goes" for each in self.lifetimes.went))
        if self._cluster.plan.lifetimes:
            counts["lifetimes: stays"] = self.lifetimes.stays
            counts["lifetimes: declarations"] = len(self.lifetimes.used)
        for each in self._fed.meddled:
            counts[f"queues: {each.what}{'' if each.done_at < inf else ', and nobody knows'}"] += 1
        return counts

    async def _look(self) -> None:
        while True:
            self._look_once()
            await asyncio.sleep(LOOK_S)

    def _look_once(self) -> None:
        self._ledgers.look(self._cluster.present)
        if self._cluster.plan.transactions:
            self._shown.look(self._cluster.present, self._world.now)
