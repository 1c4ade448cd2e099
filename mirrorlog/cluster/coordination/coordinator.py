"""The coordinator: it sees to it that every log has a living master and enough copies. Pure, and level-triggered.

`step` compares the state with what is wanted and with who is there, and gives what is to be done next: one change per
log at a time, and none that rests on what it did before. What it remembers are the promotions under way and since when
nodes are gone; a new leader begins without, and comes to the same.

Wanted is: every log has a master that lives, and that is not draining, nor another one than was wished, as long as
somebody in sync can take over, or, where its rule says so, a copy that may lack something; nobody is in an in-sync set
who is gone, as far as `min_in_sync` allows; every node that may hold messages is home to a log; every log has as many
copies as are asked for (`copies`), the nodes evenly used (`balance`); Raft's members are the cluster's nodes, and vote
once they have learned; the cluster runs at the highest version that every node's software has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid5

from mirrorlog import versions
from mirrorlog.cluster.coordination.balance import Outlook, next_move
from mirrorlog.cluster.coordination.copies import LogCopies
from mirrorlog.cluster.coordination.handover import heir
from mirrorlog.cluster.coordination.liveness import Life
from mirrorlog.cluster.coordination.promotion import FenceReport, Promotion, by_policy
from mirrorlog.cluster.raft.messages import Members
from mirrorlog.cluster.state.commands import Command, LogMade, ReplicasWished, RunEnded, VersionRaised
from mirrorlog.cluster.state.state import ClusterState, LogFacts, behind
from mirrorlog.config import LOG_NUMBER_MAX

HANDOVER_AGAIN_S = 1.0
"""A handover that came to nothing, because the other copy did not come to the master's end in time, is tried again."""

QUIET_S = 0.1
PLAN_AGAIN_S = 1.0
"""How often it is looked what should move while nothing changes."""


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """`copies`: of each log, as far as there are nodes; `promote_wait_s`: for copies that are silent when a master is
    looked for; `promote_always_after_s`: so long those who have everything are waited for where a rule says `always`;
    `replace_after_s`: a copy whose node is gone for so long is made elsewhere."""

    copies: int = 3
    promote_wait_s: float = 2.0
    promote_always_after_s: float = 15.0
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
    the state knows; `caught_up`: whether a member has all entries; `sizes`: bytes by log id, as far as they are known.

    A node that is there in a run that has still to register masters nothing, and its copy is waited for."""

    members: Members
    life: Callable[[str], Life]
    life_of_run: Callable[[str], Life]
    caught_up: Callable[[int], bool]
    now: float
    sizes: Mapping[str, int] = field(default_factory=dict)


class Coordinator:
    """`waits`: by log, whom it waits for and cannot go on without."""

    def __init__(self, wanted: CoordinatorSettings) -> None:
        self.waits: dict[str, tuple[str, ...]] = {}
        self._wanted = wanted
        self._promotions: dict[str, Promotion] = {}
        self._elections: dict[str, int] = {}
        self._without_since: dict[str, float] = {}
        """Since when nobody is there who has everything of a log whose rule accepts a loss."""
        self._copies_of_logs = LogCopies(wanted.replace_after_s)
        self._handover_at: dict[str, float] = {}
        self._planned_for, self._planned_at = -1, 0.0
        self._changed_to, self._changed_at = -1, 0.0
        # A step is made many times a second, and there may be 100,000 queues: in which logs none of them is.
        self._searched: Mapping[str, str] | None = None
        self._empty: set[str] = set()

    def step(self, state: ClusterState, seen: Observation) -> list[Action]:
        """What is to be done now. Asked again after every change, and from time to time."""
        self._copies_of_logs.look(state, seen.life, seen.now)
        self.waits.clear()
        actions: list[Action] = [*self._members(state, seen), *self._version(state, seen)]
        for log_id, log in state.logs.items():
            actions += self._masters(log_id, log, state, seen) or self._copies(log_id, log, state, seen)
        actions += self._homes(state, seen)
        actions += self._moves(state, seen)
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
                self._without_since.pop(log_id, None)
                return []
        by = "" if to else self._by_policy(log_id, log, state, seen)
        promotion = self._promotions.get(log_id)
        actions: list[Action] = []
        if promotion is None or promotion.log != log or promotion.by != by:
            epoch = max(log.epoch, promotion.epoch if promotion else 0) + 1
            promotion = Promotion(
                log_id,
                log,
                epoch=epoch,
                now=seen.now,
                wait_s=self._wanted.promote_wait_s,
                to=to,
                made=state.placing.place(log_id).rule is not None,
                by=by,
            )
            self._promotions[log_id] = promotion
        promotion.tick(seen.now)
        for node in promotion.asked:
            if seen.life(node) is Life.DOWN or state.nodes[node].stopped:
                promotion.gone(node)
                continue
            promotion.here(node, state.nodes[node].start_id)
            if node in promotion.waits_for and state.nodes[node].start_id:
                actions.append(Fence(node, log_id, promotion.epoch, gently=promotion.gently(node)))
        draining = {node for node, facts in state.nodes.items() if facts.draining}
        if (decided := promotion.decided(seen.now, draining=draining)) is not None:
            return [Propose(decided)]
        self.waits[log_id] = promotion.waits_for or promotion.asked
        return actions

    def _by_policy(self, log_id: str, log: LogFacts, state: ClusterState, seen: Observation) -> str:
        """The key by which a copy is promoted now that may lack what was confirmed; empty while there is none, and
        while those who have everything may come back: nodes that are started one after the other, or all at once."""
        found = by_policy(log_id, log, state, seen.life)
        if found is None:
            self._without_since.pop(log_id, None)
            return ""
        since = self._without_since.setdefault(log_id, seen.now)
        return found.key if seen.now - since >= self._wanted.promote_always_after_s else ""

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
        to = heir(log, state, seen.life, home=_home_to_be(log_id, state))
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
        """One change of a log whose master is seen to live."""
        if log.master is None or not self._has_master(log, state, seen):
            return []
        if seen.life_of_run(log.master.node) is not Life.UP:
            return []
        step = self._copies_of_logs.step(log_id, log, state, seen.life)
        return [Propose(step)] if step is not None else []

    def outlook(self, state: ClusterState, seen: Observation) -> Outlook:
        """For the plan of what moves next."""
        return Outlook(seen.life, lambda node, log_id: self._copies_of_logs.gone(node, log_id, state), seen.sizes)

    def _moves(self, state: ClusterState, seen: Observation) -> Iterator[Action]:
        """Where the next log shall go. Looked for a moment after a change, and else now and then: with many logs it
        takes longer than the rest, and a failover has other things to do."""
        if state.version != self._changed_to:
            self._changed_to, self._changed_at = state.version, seen.now
            self._planned_at = self._planned_at or seen.now
        quiet = state.version != self._planned_for and seen.now - self._changed_at >= QUIET_S
        if not quiet and seen.now - self._planned_at < PLAN_AGAIN_S:
            return
        self._planned_for, self._planned_at = state.version, seen.now
        if (move := next_move(state, self.outlook(state, seen))) is not None:
            wished = ReplicasWished(log_id=move.log_id, seen=state.logs[move.log_id].seen, nodes=move.nodes)
            yield Propose(wished)

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
        number = state.free_number(LOG_NUMBER_MAX)
        for node in _holders(state):
            if node not in homes and seen.life(node) is Life.UP and number is not None:
                name = _free_name(node, state)
                # One of the name may have been there and gone, and be on disks still.
                distinct = f"{name} {state.placing.logs_removed}" if state.placing.logs_removed else name
                log_id = str(uuid5(UUID(state.cluster_id), distinct))
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


def _home_to_be(log_id: str, state: ClusterState) -> str:
    """Of a log that is on its way to other nodes; empty when it is not."""
    places = state.places
    if places is None or places.paused or log_id not in places.logs:
        return ""
    return next(iter(places.logs[log_id].target), "")


def _holders(state: ClusterState) -> list[str]:
    """Nodes that may be given something to hold, by name."""
    return sorted(node for node, facts in state.nodes.items() if facts.stays)


def _free_name(node: str, state: ClusterState) -> str:
    """The node's own name; a number behind it when an earlier node had the same."""
    taken = {log.name for log in state.logs.values()}
    return next(name for name in (node, *(f"{node}-{count}" for count in range(2, 1000))) if name not in taken)
