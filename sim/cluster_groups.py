"""The acking groups of a schedule: who takes from them, what is noted meanwhile, and when they are done.

Takers begin when the queues are on disk. In peace they settle all that comes for good; nothing may be left open within
`DRAIN_S`, then each of them has to come to its end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from sim.cluster_checks import Outside
from sim.cluster_faults import SimulatedCluster
from sim.cluster_group_checks import GroupsOutside, check_groups
from sim.cluster_ledgers import Ledgers
from sim.cluster_plan import TAKERS
from sim.cluster_takers import GroupHistory, GroupWatcher, Takers, takings
from sim.cluster_taps import Tap
from sim.machines import Main

DRAIN_S: Final = 30.0
END_S: Final = 60.0
LOOK_S: Final = 0.05


class Groups:
    """`tap`: to be put on the nodes while the schedule runs; `programs`: by machine."""

    def __init__(self, cluster: SimulatedCluster, queues: Sequence[str]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._takings = tuple(takings(cluster.plan.seed, queues))
        self._history = GroupHistory()
        self._ledgers = Ledgers()
        self._takers = {
            machine: Takers(
                machine,
                cluster.servers,
                self._takings[number :: len(TAKERS)],
                self._history,
                seed=f"{cluster.plan.seed} {machine}",
            )
            for number, machine in enumerate(TAKERS)
        }
        self.tap = Tap(lambda: self._world.now)
        self._looking: asyncio.Task[None] | None = None

    @property
    def programs(self) -> Mapping[str, Main]:
        return self._takers

    def start(self) -> None:
        for name, program in self._takers.items():
            self._world.machine(name).start(program)
        self._looking = asyncio.ensure_future(self._look())

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
        groups = sorted({(each.queue, each.group) for each in self._takings})
        watcher = GroupWatcher(self._cluster.addresses, groups)
        self._world.machine("group watcher").start(watcher)
        try:
            await until(lambda: watcher.done, within_s=DRAIN_S, otherwise="a group is not done")
        except AssertionError as error:
            raise AssertionError(f"{error}: {watcher.waits_for}; {self._history.errors}") from None
        for program in self._takers.values():
            program.stopping = True
        done = self._takers.values()
        try:
            await until(
                lambda: all(each.done for each in done), within_s=END_S, otherwise="a taker does not come to its end"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}: {list(self._history.waits.values())}") from None
        assert self._looking is not None
        self._looking.cancel()
        self._ledgers.look(self._cluster.present)

    def check(self, outside: Outside) -> None:
        """Raises AssertionError."""
        check_groups(GroupsOutside(outside, self._history, self.tap, self._ledgers, self._takings))

    def counts(self) -> Counter[str]:
        """What happened, counted."""
        taken = self._history.taken
        counts = Counter(f"groups: {each.how} {each.outcome or 'not answered'}" for each in taken if each.how)
        counts.update(
            {
                "groups: records taken": len(taken),
                "groups: records taken again": sum(each.redelivered for each in taken),
                "groups: grants": len(self.tap.granted),
                "groups: ledgers compared": self._ledgers.compared,
            }
        )
        return counts

    async def _look(self) -> None:
        while True:
            self._ledgers.look(self._cluster.present)
            await asyncio.sleep(LOOK_S)
