"""The state machine under commands in any order, right ones and wrong ones: what must always hold, holds.

Commands are made from what somebody knew at some time, so many are stale, doubled, or of runs that are over. Hypothesis
prints the steps that fail; run with `--hypothesis-seed=N` to repeat a run.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrorlog.cluster.state.command_codec import decode_command, encode_command
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    LogAltered,
    LogMade,
    LossEndFound,
    MasterWished,
    NodeDraining,
    NodeForgotten,
    NodeJoined,
    NodeLeaving,
    NodeStarted,
    NodeStopped,
    OffsetJumpConfirmed,
    Promoted,
    ReplicaAdded,
    ReplicaRemoved,
    ReplicaRetired,
    ReplicasWished,
    Seen,
    StartKind,
)
from mirrorlog.cluster.state.log_rules import promised
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.node_rules import recovered
from mirrorlog.cluster.state.placements import Placement
from mirrorlog.cluster.state.state import ClusterState, LogFacts, NodeFacts, decode_state, encode_state

NODES = ("a", "b", "c", "d", "w")
LOGS = ("x", "y")

nodes = st.sampled_from(NODES)
data_nodes = st.sampled_from(NODES[:-1])
logs = st.sampled_from(LOGS)
kinds = st.sampled_from(StartKind)


class StateMachine(RuleBasedStateMachine):
    """`known`: some earlier or the present state, as whoever sends the next command has it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState("id", "name")
        self.first = self.state
        self.index = 0
        self.known = self.state
        self.commands: list[tuple[int, Command]] = []
        self.runs = 0
        # Every mastership that ever was: (log, epoch) to its run, and every (log, version) to its facts.
        self.masters: dict[tuple[str, int], Holder] = {}
        self.versions: dict[tuple[str, int], LogFacts] = {}

    # --- applying ---

    def apply(self, command: Command) -> str:
        self.index += 1
        assert decode_command(encode_command(command)) == command
        before = self.state
        self.state, outcome = applied(before, self.index, command)
        self.commands.append((self.index, command))
        if outcome.refusal:
            assert self.state is before
        else:
            self.check_logs(before, command)
        assert applied(self.state, self.index + 1, command)[0] == self.state
        if self.index % 9 < 5:
            self.known = self.state
        return outcome.refusal

    def check_logs(self, before: ClusterState, command: Command) -> None:
        for log_id, log in self.state.logs.items():
            earlier = before.logs.get(log_id)
            if earlier is not None and log != earlier:
                self.check_change(earlier, log, command)

    def check_change(self, before: LogFacts, after: LogFacts, command: Command) -> None:
        assert after.epoch >= before.epoch
        assert (after.number, after.name) == (before.number, before.name)
        if isinstance(command, LossEndFound):
            return
        assert after.version == before.version + 1
        seen = getattr(command, "seen", None)
        assert not isinstance(seen, Seen) or seen == before.seen
        if isinstance(command, Promoted | InSyncGrown):
            facts = self.state.nodes[command.holder.node]
            assert (facts.start_id, facts.stopped) == (command.holder.start_id, False)
        left = before.in_sync.keys() - after.in_sync.keys()
        assert not after.wished or after.wished in after.promotable
        if isinstance(command, InSyncShrunk):
            assert not left or len(after.in_sync) >= before.copies_wanted
            assert after.copies_wanted == before.copies_wanted
            if left - before.marked:
                assert len(after.promotable) >= before.copies_wanted
        elif isinstance(command, Promoted):
            assert after.epoch > before.epoch
            assert after.master == command.holder
            if before.epoch > 0 and command.holder.node not in before.promotable:
                assert after.owes_jump
                assert command.unclean
            else:
                assert not left
        elif isinstance(command, ReplicaRetired):
            assert left <= {command.node}
            assert len(after.promotable) >= max(before.copies_wanted, promised(self.state, command.log_id))
        elif not isinstance(command, NodeForgotten):
            assert not left
        if isinstance(command, ReplicaAdded | InSyncGrown) and len(before.promotable) >= before.copies_wanted:
            assert len(after.promotable) >= after.copies_wanted, "more copies hold nobody up"

    # --- what always holds ---

    @invariant()
    def a_log_has_one_master_run_in_an_epoch(self) -> None:
        for log_id, log in self.state.logs.items():
            if log.master is not None:
                assert self.masters.setdefault((log_id, log.epoch), log.master) == log.master

    @invariant()
    def a_version_is_one_value(self) -> None:
        for log_id, log in self.state.logs.items():
            if not log.losses:  # whose ends become known without a version
                assert self.versions.setdefault((log_id, log.version), log) == log

    @invariant()
    def sets_and_masters_are_of_present_runs_and_replicas(self) -> None:
        for log in self.state.logs.values():
            assert log.in_sync.keys() <= set(log.replicas)
            assert log.marked <= log.in_sync.keys()
            for node, start_id in log.in_sync.items():
                assert self.state.nodes[node].start_id == start_id
            for node in log.replicas:
                assert not self.state.nodes[node].witness
            assert len(set(log.replicas)) == len(log.replicas)
            if log.master is not None:
                assert log.in_sync.get(log.master.node) == log.master.start_id
                assert log.master.node not in log.marked
            assert bool(log.in_sync) == (log.epoch > 0)

    @invariant()
    def nobody_asks_for_more_copies_than_there_are(self) -> None:
        for log in self.state.logs.values():
            if log.min_in_sync is not None:
                altered = self.state.placing.place(self.id_of(log)).rule is not None
                assert log.copies_wanted == log.min_in_sync or (altered and log.copies_wanted < log.min_in_sync)
            else:
                assert 1 <= log.copies_wanted <= max(1, len(log.replicas) // 2 + 1)
            if log.master is not None:
                leaving = log.may_leave(NODES)
                assert not leaving or not self.try_out(
                    InSyncShrunk(log_id=self.id_of(log), seen=log.seen, nodes=leaving)
                )

    @invariant()
    def wishes_are_for_nodes_that_are_there_and_end_when_they_came_about(self) -> None:
        for log_id, place in self.state.placing.logs.items():
            assert len(set(place.target)) == len(place.target)
            assert set(place.target) <= self.state.nodes.keys() - {"w"}
            log = self.state.logs[log_id]
            assert not place.target or place.target != log.replicas
            if set(place.target) == set(log.replicas) and log.master is not None:
                assert log.master.node != place.target[0]

    @invariant()
    def numbers_and_members_are_given_once(self) -> None:
        assert len({log.number for log in self.state.logs.values()}) == len(self.state.logs)
        assert len({facts.member for facts in self.state.nodes.values()}) == len(self.state.nodes)

    def id_of(self, log: LogFacts) -> str:
        return next(log_id for log_id, each in self.state.logs.items() if each is log)

    def try_out(self, command: Command) -> str:
        return applied(self.state, self.index + 1, command)[1].refusal

    def teardown(self) -> None:
        again = self.first
        for index, command in self.commands:
            again, _ = applied(again, index, command)
            if index % 7 == 0:
                again = decode_state(encode_state(again))
        assert again == self.state
        assert encode_state(again) == encode_state(self.state)

    # --- what is sent ---

    @initialize(min_in_sync=st.sampled_from([None, None, 1, 2, 3]), flush=st.sampled_from(["memory", "disk"]))
    def found(self, min_in_sync: int | None, flush: str) -> None:
        for node in NODES[:3]:
            self.join(node)
            self.start(node, StartKind.CLEAN, ())
        self.apply(
            LogMade(log_id="x", number=0, name="x", flush=flush, replicas=("a", "b", "c"), min_in_sync=min_in_sync)
        )
        self.known = self.state
        self.promote("x", "a", 1)
        for node in ("b", "c"):
            self.known = self.state
            self.grow("x", node)

    @rule(node=nodes)
    def join(self, node: str) -> None:
        self.apply(NodeJoined(node=node, addresses=Addresses(), witness=node == "w", token=f"{node} {self.index % 2}"))

    @rule(node=nodes, kind=kinds, damaged=st.sets(logs).map(tuple))
    def start(self, node: str, kind: StartKind, damaged: tuple[str, ...]) -> None:
        self.runs += 1
        facts = self.known.nodes.get(node) or NodeFacts(member=0, addresses=Addresses())
        started = NodeStarted(
            node=node,
            member=facts.member,
            start_id=f"{node}{self.runs}",
            kind=kind,
            addresses=Addresses(),
            before=facts.start_id,
            damaged=damaged,
        )
        if not self.apply(started):
            self.check_marks(started)

    def check_marks(self, started: NodeStarted) -> None:
        for log_id, log in self.state.logs.items():
            lost = log_id in started.damaged or (started.kind is StartKind.LOSSY and log.flush == "memory")
            if started.node in log.in_sync and lost:
                assert started.node in log.marked
            assert log.master is None or log.master.node != started.node

    @rule(node=nodes)
    def set_back(self, node: str) -> None:
        self.runs += 1
        facts = self.state.nodes.get(node)
        if facts is None or not facts.start_id:
            return
        started = NodeStarted(
            node=node, start_id=f"{node}{self.runs}", kind=StartKind.CLEAN, addresses=Addresses(), before="older"
        )
        assert self.apply(started)
        assert not self.apply(NodeStarted(**{**fields(started), "seen": facts.start_id}))
        for log in self.state.logs.values():
            assert node not in log.promotable

    @rule(node=nodes)
    def stop(self, node: str) -> None:
        if node in self.known.nodes:
            self.apply(NodeStopped(node=node, start_id=self.known.nodes[node].start_id))

    @rule(node=nodes, draining=st.booleans())
    def drain(self, node: str, draining: bool) -> None:
        self.apply(NodeDraining(node=node, draining=draining))

    @precondition(lambda self: self.index % 4 == 0)
    @rule(node=nodes)
    def forget(self, node: str) -> None:
        if node in self.known.nodes:
            self.apply(NodeForgotten(node=node, member=self.known.nodes[node].member))

    @rule(log_id=logs, replicas=st.lists(nodes, max_size=3).map(tuple), number=st.integers(-1, 2))
    def make(self, log_id: str, replicas: tuple[str, ...], number: int) -> None:
        self.apply(LogMade(log_id=log_id, number=number, name=log_id, flush="memory", replicas=replicas))

    @rule(log_id=logs, node=nodes)
    def add_replica(self, log_id: str, node: str) -> None:
        self.apply(ReplicaAdded(log_id=log_id, seen=self.seen(log_id), node=node))

    @rule(log_id=logs, node=nodes)
    def remove_replica(self, log_id: str, node: str) -> None:
        self.apply(ReplicaRemoved(log_id=log_id, seen=self.seen(log_id), node=node))

    @rule(
        log_id=logs,
        node=data_nodes,
        above=st.sampled_from([1, 1, 1, 2, 2, 0]),
        unclean=st.booleans(),
        lost_from=st.none() | st.integers(0, 9),
    )
    def promote(self, log_id: str, node: str, above: int, unclean: bool = False, lost_from: int | None = None) -> None:
        self.apply(
            Promoted(
                log_id=log_id,
                seen=self.seen(log_id),
                holder=self.holder(node),
                epoch=self.seen(log_id).epoch + above,
                unclean=unclean,
                lost_from=lost_from,
            )
        )

    @rule(log_id=logs, node=data_nodes)
    def wish(self, log_id: str, node: str) -> None:
        self.apply(MasterWished(log_id=log_id, seen=self.seen(log_id), node=node))

    @rule(log_id=logs, wanted=st.permutations(NODES[:-1]), many=st.integers(0, 4))
    def wish_copies(self, log_id: str, wanted: list[str], many: int) -> None:
        self.apply(ReplicasWished(log_id=log_id, seen=self.seen(log_id), nodes=tuple(wanted[:many])))

    @rule(log_id=logs, wanted=st.permutations(NODES[:-1]))
    def move(self, log_id: str, wanted: list[str]) -> None:
        """Without a detour, as far as it goes."""
        for command in (ReplicasWished, ReplicaAdded, InSyncGrown, Promoted, ReplicaRetired):
            self.known = self.state
            log = self.known.logs.get(log_id)
            if log is None:
                return
            node = wanted[0] if command is not ReplicaRetired else next(iter(set(log.replicas) - set(wanted[:3])), "")
            if command is ReplicasWished:
                self.apply(ReplicasWished(log_id=log_id, seen=log.seen, nodes=tuple(wanted[:3])))
            elif command is InSyncGrown:
                self.grow(log_id, node)
            elif command is Promoted:
                self.promote(log_id, node, 1)
            elif command is ReplicaAdded:
                self.add_replica(log_id, node)
            else:
                self.retire(log_id, node)

    @rule(log_id=logs, node=nodes)
    def retire(self, log_id: str, node: str) -> None:
        self.apply(ReplicaRetired(log_id=log_id, seen=self.seen(log_id), node=node))

    @rule(node=nodes, leaving=st.booleans())
    def leave(self, node: str, leaving: bool) -> None:
        self.apply(NodeLeaving(node=node, leaving=leaving))

    @rule(
        log_id=logs,
        copies=st.integers(0, 4),
        some=st.sets(nodes, max_size=2).map(tuple),
        least=st.sampled_from([None, 1, 2]),
    )
    def alter(self, log_id: str, copies: int, some: tuple[str, ...], least: int | None) -> None:
        log = self.known.logs.get(log_id)
        rule = Placement(copies=copies, nodes=some, flush=log.flush if log else "disk", min_in_sync=least)
        self.apply(LogAltered(log_id=log_id, seen=self.seen(log_id), placement=rule))

    @rule(log_id=logs, gone=st.sets(nodes, max_size=3).map(tuple))
    def shrink(self, log_id: str, gone: tuple[str, ...]) -> None:
        self.apply(InSyncShrunk(log_id=log_id, seen=self.seen(log_id), nodes=gone))

    @rule(node=data_nodes, kind=kinds)
    def restart(self, node: str, kind: StartKind) -> None:
        self.known = self.state
        self.start(node, kind, ())

    @rule(log_id=logs, node=nodes)
    def grow(self, log_id: str, node: str) -> None:
        self.apply(InSyncGrown(log_id=log_id, seen=self.seen(log_id), holder=self.holder(node)))

    @rule(log_id=logs)
    def jump(self, log_id: str) -> None:
        self.apply(OffsetJumpConfirmed(log_id=log_id, seen=self.seen(log_id)))

    @rule(log_id=logs, end=st.integers(0, 1000))
    def find_end(self, log_id: str, end: int) -> None:
        self.apply(LossEndFound(log_id=log_id, epoch=self.seen(log_id).epoch, end=end))

    @precondition(lambda self: self.commands)
    @rule(back=st.integers(1, 30))
    def repeat(self, back: int) -> None:
        """One that was sent before comes again, late."""
        _, command = self.commands[-min(back, len(self.commands))]
        before = self.state.nodes
        self.apply(command)
        if isinstance(command, NodeStarted) and command.node in before and before[command.node].start_id:
            assert self.state.nodes[command.node] == before[command.node]

    @rule(survivors=st.sets(nodes, min_size=1))
    def would_recover(self, survivors: set[str]) -> None:
        """Whatever is left: every log with a copy waits for all of them and admits a loss."""
        known = self.state.nodes.keys()
        if not known:
            return
        left = recovered(self.state, survivors & known or known)
        for log_id, log in left.logs.items():
            assert log.epoch > self.state.logs[log_id].epoch
            assert log.recovering == bool(log.replicas)
            assert log.master is None
            assert set(log.replicas) == log.marked == log.in_sync.keys() <= left.nodes.keys()

    # --- from what the sender knew ---

    def seen(self, log_id: str) -> Seen:
        log = self.known.logs.get(log_id)
        return Seen(0, 0) if log is None else log.seen

    def holder(self, node: str) -> Holder:
        facts = self.known.nodes.get(node)
        return Holder(node, "" if facts is None else facts.start_id)


def fields(command: NodeStarted) -> dict[str, object]:
    return {name: getattr(command, name) for name in command.__struct_fields__}


TestState: Callable[..., object] = StateMachine.TestCase
StateMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
