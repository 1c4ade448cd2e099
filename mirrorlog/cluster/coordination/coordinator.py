"""The coordinator: it sees to it that every log has a living master and enough copies. Pure, and level-triggered.

`step` compares the state with what is wanted and with who is there, and gives what is to be done next: one change per
log at a time, and none that rests on what it did before. What it remembers are the promotions under way and since when
nodes are gone; a new leader begins without, and comes to the same.

Wanted is: every log has a master that lives, and that is not draining, nor another one than was wished, as long as
somebody in sync can take over; nobody is in an in-sync set who is gone, as far as `min_in_sync` allows;
every node that may hold messages is home to a log; every log has as many copies as are asked for, the nodes evenly
used; Raft's members are the cluster's nodes, and vote once they have learned; the cluster runs at the highest version
that every node's software has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from uuid import UUID, uuid5

from mirrorlog import versions
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.coordination.promotion import FenceReport, Promotion
from mirrorlog.cluster.raft.messages import Members
from mirrorlog.cluster.state.commands import (
    Command,
    InSyncShrunk,
    LogMade,
    ReplicaAdded,
    ReplicaRemoved,
    RunEnded,
    VersionRaised,
)
from mirrorlog.cluster.state.log_rules import spares
from mirrorlog.cluster.state.state import ClusterState, LogFacts, behind

_NUMBERS = 256

HANDOVER_AGAIN_S = 1.0
"""A handover that came to nothing, because the other copy did not come to the master's end in time, is tried again."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """`copies`: of each log, as far as there are nodes; `promote_wait_s`: for copies that are silent when a master is
    looked for; `replace_after_s`: a copy whose node is gone for so long is made elsewhere."""

    copies: int = 3
    promote_wait_s: float = 2.0
    replace_after_s: float = 600.0
    flush: str = "memory"


@dataclass(frozen=True, slots=True)
class Propose:
    """A command for the state machine."""

    command: Command


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """A configuration for Raft, one step away."""

    members: Members


@dataclass(frozen=True, slots=True)
class Fence:
    """Ask a node to keep this epoch for the log, to stop in the one before, and to report. `gently`: it masters the
    log, and shall take nothing more and let its mirrors come to its end before."""

    node: str
    log_id: str
    epoch: int
    gently: bool = False


Action = Propose | ChangeMembers | Fence


@dataclass(frozen=True, slots=True)
class Observation:
    """What the leader sees besides the state. `life`: of a node, in whatever run; `life_of_run`: of the run of it that
    the state knows; `caught_up`: whether a member has all entries.

    A node that is there in a run that has still to register masters nothing, and its copy is waited for."""

    members: Members
    life: Callable[[str], Life]
    life_of_run: Callable[[str], Life]
    caught_up: Callable[[int], bool]
    now: float


class Coordinator:
    """`waits`: by log, whom it waits for and cannot go on without."""

    def __init__(self, wanted: CoordinatorSettings) -> None:
        self.waits: dict[str, tuple[str, ...]] = {}
        self._wanted = wanted
        self._promotions: dict[str, Promotion] = {}
        self._elections: dict[str, int] = {}
        self._gone_since: dict[str, float] = {}
        self._handover_at: dict[str, float] = {}
        # A step is made many times a second, and there may be 100,000 queues: in which logs none of them is.
        self._searched: Mapping[str, str] | None = None
        self._empty: set[str] = set()

    def step(self, state: ClusterState, seen: Observation) -> list[Action]:
        """What is to be done now. Asked again after every change, and from time to time."""
        self._note_gone(state, seen)
        self.waits.clear()
        actions: list[Action] = [*self._members(state, seen), *self._version(state, seen)]
        for log_id, log in state.logs.items():
            actions += self._masters(log_id, log, state, seen) or self._copies(log_id, log, state, seen)
        actions += self._homes(state, seen)
        actions += self._ended_runs(state, seen)
        return actions

    def fenced(self, log_id: str, epoch: int, node: str, report: FenceReport) -> None:
        """A node's answer to a Fence."""
        promotion = self._promotions.get(log_id)
        if promotion is not None and promotion.epoch == epoch:
            promotion.reported(node, report)

    def elect(self, log_id: str, epoch: int) -> None:
        """A copy that has promised this epoch cannot follow the log's master, who is in an older one."""
        self._elections[log_id] = max(self._elections.get(log_id, 0), epoch)

    # --- Raft's members ---

    def _members(self, state: ClusterState, seen: Observation) -> Iterator[Action]:
        """One step: first those who left, then those who may vote, then those who came."""
        members = seen.members
        known = {facts.member for facts in state.nodes.values()}
        for member in members.all:
            if member not in known and members.voters != (member,):
                yield ChangeMembers(members.without(member))
                return
        for learner in members.learners:
            if seen.caught_up(learner):
                yield ChangeMembers(members.with_voter(learner))
                return
        for facts in state.nodes.values():
            if facts.member not in members.all:
                yield ChangeMembers(members.with_learner(facts.member))
                return

    # --- The cluster's version ---

    @staticmethod
    def _version(state: ClusterState, seen: Observation) -> Iterator[Action]:
        """One up, once all nodes can do it. All are there: one that is away may be on its way back to older software,
        and would be refused."""
        version = state.cluster_version + 1
        if version > versions.OWN or behind(state, version):
            return
        if all(not facts.stopped and seen.life(node) is Life.UP for node, facts in state.nodes.items()):
            yield Propose(VersionRaised(version=version))

    # --- Masters ---

    def _masters(self, log_id: str, log: LogFacts, state: ClusterState, seen: Observation) -> list[Action]:
        """Towards a master that lives; nothing when there is one."""
        to = ""
        if self._has_master(log, state, seen) and log.epoch >= self._elections.get(log_id, 0):
            to = self._hands_over_to(log_id, log, state, seen)
            if not to:
                self._promotions.pop(log_id, None)
                return []
        promotion = self._promotions.get(log_id)
        actions: list[Action] = []
        if promotion is None or promotion.log != log:
            epoch = max(log.epoch, promotion.epoch if promotion else 0) + 1
            promotion = Promotion(log_id, log, epoch=epoch, now=seen.now, wait_s=self._wanted.promote_wait_s, to=to)
            self._promotions[log_id] = promotion
        promotion.tick(seen.now)
        for node in promotion.asked:
            if seen.life(node) is Life.DOWN or state.nodes[node].stopped:
                promotion.gone(node)
                continue
            promotion.here(node, state.nodes[node].start_id)
            if node in promotion.waits_for and state.nodes[node].start_id:
                actions.append(Fence(node, log_id, promotion.epoch, gently=promotion.gently(node)))
        if (decided := promotion.decided(seen.now)) is not None:
            return [Propose(decided)]
        self.waits[log_id] = promotion.waits_for or promotion.asked
        return actions

    def _hands_over_to(self, log_id: str, log: LogFacts, state: ClusterState, seen: Observation) -> str:
        """Whom a master that lives shall hand the log over to now; empty for nobody. One log after the other: each is
        without a master for a moment. What has begun goes on to its end, for the master may be fenced already."""
        under_way = self._promotions.get(log_id)
        if under_way is not None and under_way.to and under_way.log.epoch == log.epoch:
            return under_way.to
        if under_way is not None and log.master is not None and log.master.node == under_way.to:
            self._handover_at.pop(log_id, None)
        others = any(promotion.to for each, promotion in self._promotions.items() if each != log_id)
        tried_at = self._handover_at.get(log_id)
        if others or (tried_at is not None and seen.now - tried_at < HANDOVER_AGAIN_S):
            return ""
        to = heir(log, state, seen.life)
        if to:
            self._handover_at[log_id] = seen.now
        return to

    @staticmethod
    def _has_master(log: LogFacts, state: ClusterState, seen: Observation) -> bool:
        master = log.master
        if master is None or master.node not in state.nodes:
            return False
        facts = state.nodes[master.node]
        stopped = facts.start_id != master.start_id or facts.stopped
        return not stopped and seen.life_of_run(master.node) is not Life.DOWN

    # --- Copies ---

    def _copies(self, log_id: str, log: LogFacts, state: ClusterState, seen: Observation) -> list[Action]:
        """One change of a log whose master is seen to live: a set that shrinks beside a dead one may be left with
        nobody who can be promoted."""
        if log.master is None or not self._has_master(log, state, seen):
            return []
        if seen.life_of_run(log.master.node) is not Life.UP:
            return []
        gone = [node for node in log.in_sync if node not in state.nodes or seen.life(node) is Life.DOWN]
        if leaving := log.may_leave([*gone, *log.marked]):
            return [Propose(InSyncShrunk(log_id=log_id, seen=log.seen, nodes=leaving))]
        lasting = [node for node in log.replicas if not self._gone_for_long(node, seen)]
        wanted = min(log.copies, len(_holders(state)))
        if len(lasting) < wanted and (node := self._least_used(log, state, seen)) is not None:
            return [Propose(ReplicaAdded(log_id=log_id, seen=log.seen, node=node))]
        replaced = [
            node for node in log.replicas if node not in lasting and node not in log.in_sync and spares(log, node)
        ]
        if replaced and len(lasting) >= wanted and len(log.in_sync) >= wanted:
            return [Propose(ReplicaRemoved(log_id=log_id, seen=log.seen, node=replaced[0]))]
        return []

    def _note_gone(self, state: ClusterState, seen: Observation) -> None:
        for node in state.nodes:
            if seen.life(node) is Life.DOWN:
                self._gone_since.setdefault(node, seen.now)
            else:
                self._gone_since.pop(node, None)

    def _gone_for_long(self, node: str, seen: Observation) -> bool:
        return seen.now - self._gone_since.get(node, seen.now) >= self._wanted.replace_after_s

    def _least_used(self, log: LogFacts, state: ClusterState, seen: Observation) -> str | None:
        """A node that lives and holds the fewest copies; of equals the first by name."""
        free = [node for node in _holders(state) if node not in log.replicas and seen.life(node) is Life.UP]
        held = {node: sum(node in each.replicas for each in state.logs.values()) for node in free}
        return min(free, key=lambda node: (held[node], node), default=None)

    # --- What goes with a run ---

    def _ended_runs(self, state: ClusterState, seen: Observation) -> Iterator[Action]:
        """A node is down, and queues are there still that were not to outlive its run."""
        if self._searched is not state.queues:
            self._searched, self._empty = state.queues, set()
        for node, log_id in state.transient.items():
            if node not in state.nodes or seen.life_of_run(node) is not Life.DOWN or log_id in self._empty:
                continue
            if log_id in state.queues.values():
                yield Propose(RunEnded(node=node, start_id=state.nodes[node].start_id))
            else:
                self._empty.add(log_id)

    # --- Homes ---

    def _homes(self, state: ClusterState, seen: Observation) -> Iterator[Action]:
        """A log for a node that is there and home to none."""
        if not state.homes:
            return
        transient = set(state.transient.values())
        homes = {log.replicas[0] for log_id, log in state.logs.items() if log.replicas and log_id not in transient}
        numbers = {log.number for log in state.logs.values()}
        for node in _holders(state):
            number = next((each for each in range(_NUMBERS) if each not in numbers), None)
            if node not in homes and seen.life(node) is Life.UP and number is not None:
                name = _free_name(node, state)
                log_id = str(uuid5(UUID(state.cluster_id), name))
                made = LogMade(
                    log_id=log_id,
                    number=number,
                    name=name,
                    flush=self._wanted.flush,
                    replicas=(node,),
                    copies=self._wanted.copies,
                )
                yield Propose(made)
                return


def heir(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> str:
    """Whom the log's master shall hand it over to: who was wished, or, when it drains, of those who can take over the
    one that masters the fewest logs. Empty when it shall not, or nobody can."""
    if log.master is None:
        return ""
    able = heirs(log, state, life)
    if log.wished in able:
        return log.wished
    if log.master.node not in state.nodes or not state.nodes[log.master.node].draining:
        return ""
    mastered = Counter(each.master.node for each in state.logs.values() if each.master is not None)
    return min(able, key=lambda node: mastered[node], default="")


def heirs(log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> list[str]:
    """Who can take over from the log's master: in sync, whole, there, and to stay; in the order of the replicas."""
    return [
        node
        for node in log.promotable
        if (log.master is None or node != log.master.node)
        and (facts := state.nodes.get(node)) is not None
        and facts.start_id == log.in_sync[node]
        and not facts.draining
        and not facts.stopped
        and life(node) is Life.UP
    ]


@dataclass(frozen=True, slots=True)
class Away:
    """A log that is not mastered by its home. `reason`: why its home cannot take it over now; empty when it can."""

    log_id: str
    home: str
    reason: str = ""


def away_from_home(state: ClusterState, life: Callable[[str], Life]) -> list[Away]:
    """In the order of the logs. The home of a log is the first of its replicas."""
    return [
        Away(log_id, log.replicas[0], _why_not(log.replicas[0], log, state, life))
        for log_id, log in state.logs.items()
        if log.replicas and (log.master is None or log.master.node != log.replicas[0])
    ]


def _why_not(node: str, log: LogFacts, state: ClusterState, life: Callable[[str], Life]) -> str:
    if log.master is None:
        return "the log has no master"
    if node in heirs(log, state, life):
        return ""
    facts = state.nodes.get(node)
    if facts is None or facts.stopped or life(node) is not Life.UP:
        return f"{node} is not up"
    if facts.draining:
        return f"{node} is draining"
    return f"{node} is {'marked' if node in log.marked else 'not in sync'}"


def _holders(state: ClusterState) -> list[str]:
    """Nodes that may hold messages, by name."""
    return sorted(node for node, facts in state.nodes.items() if not facts.witness and not facts.draining)


def _free_name(node: str, state: ClusterState) -> str:
    """The node's own name; a number behind it when an earlier node had the same."""
    taken = {log.name for log in state.logs.values()}
    return next(name for name in (node, *(f"{node}-{count}" for count in range(2, 1000))) if name not in taken)
