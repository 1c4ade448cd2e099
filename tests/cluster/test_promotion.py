"""Who becomes master: by tables for each case, and by whole histories of a log in which nothing confirmed may go.

Hypothesis prints the steps that fail; run with `--hypothesis-seed=N` to repeat a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrorlog.cluster.coordination.promotion import FenceReport, Promotion
from mirrorlog.cluster.state.commands import (
    Addresses,
    Command,
    Holder,
    InSyncGrown,
    InSyncShrunk,
    LogMade,
    NodeJoined,
    NodeStarted,
    Promoted,
    StartKind,
)
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, LogFacts, Loss

WAIT_S = 2.0


def log(**fields: Any) -> LogFacts:
    """Three copies in sync, in epoch 5."""
    values = {
        "number": 0,
        "name": "x",
        "flush": "memory",
        "replicas": ("a", "b", "c"),
        "epoch": 5,
        "version": 9,
        "in_sync": {"a": "a1", "b": "b1", "c": "c1"},
    }
    return LogFacts(**(values | fields))


def promotion(facts: LogFacts | None = None, *, epoch: int = 6) -> Promotion:
    return Promotion("x", facts or log(), epoch=epoch, now=0.0, wait_s=WAIT_S)


def report(node: str, end: int = 100, *, last_epoch: int = 5, confirmed: int = 0, **fields: Any) -> FenceReport:
    values = {"start_id": f"{node}1", "last_epoch": last_epoch, "end": end, "confirmed": confirmed}
    return FenceReport(**(values | fields))


def decided(attempt: Promotion, now: float = 0.0) -> Promoted:
    found = attempt.decided(now)
    assert found is not None
    return found


# --- Who is asked, and who is waited for ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "asked"),
    [
        (log(), ("a", "b", "c")),
        (log(in_sync={"c": "c1", "a": "a1"}), ("a", "c")),
        (log(marked=frozenset({"a"})), ("b", "c")),
        (log(epoch=0, in_sync={}), ("a", "b", "c")),
        (log(in_sync={"a": "a1", "b": "b1"}, marked=frozenset({"a", "b"})), ("a", "b", "c")),
    ],
    ids=["all", "two in sync", "one marked", "the first", "all marked"],
)
def test_who_is_asked(facts: LogFacts, asked: tuple[str, ...]) -> None:
    """Whole in-sync members; everybody before the first promotion and when none is whole."""
    assert promotion(facts).asked == asked
    assert promotion(facts).waits_for == asked


def test_nothing_is_decided_without_a_report() -> None:
    """However long it takes, and when all are known to be gone."""
    attempt = promotion()
    assert attempt.decided(1000.0) is None
    for node in ("a", "b", "c"):
        attempt.gone(node)
    assert attempt.waits_for == ()
    assert attempt.decided(1000.0) is None


def test_who_is_silent_is_waited_for_and_not_for_ever() -> None:
    """The old epoch cannot be confirmed without the one that answered; by one report of three."""
    attempt = promotion()
    attempt.reported("b", report("b"))
    assert attempt.waits_for == ("a", "c")
    assert attempt.decided(WAIT_S - 0.001) is None
    assert decided(attempt, WAIT_S) == Promoted(
        log_id="x", seen=attempt.log.seen, holder=Holder("b", "b1"), epoch=6
    )  # fmt: skip


def test_who_is_gone_is_not_waited_for() -> None:
    """By one report and two dead."""
    attempt = promotion()
    attempt.reported("b", report("b"))
    attempt.gone("a")
    assert attempt.decided(0.0) is None
    attempt.gone("c")
    assert decided(attempt).holder == Holder("b", "b1")


def test_who_is_back_is_waited_for_again() -> None:
    """It may hold more; by one that was gone and is here."""
    attempt = promotion()
    attempt.reported("b", report("b"))
    attempt.gone("a")
    attempt.gone("c")
    attempt.here("a", "a1")
    assert attempt.waits_for == ("a",)
    attempt.reported("a", report("a", 200))
    assert decided(attempt).holder == Holder("a", "a1")


def test_one_that_drains_is_promoted_only_where_it_holds_more() -> None:
    """Goal: nothing goes to whom it has to leave again. Of equals the first of the replicas that stays; what only
    the one that drains has may be confirmed, and is not lost; where all drain it is as if none did."""
    attempt = promotion()
    for node in "abc":
        attempt.reported(node, report(node, 100))
    for draining, chosen in (((), "a"), ("a", "b"), ("ab", "c"), ("abc", "a")):
        found = attempt.decided(0.0, draining=set(draining))
        assert found is not None
        assert found.holder.node == chosen
    attempt.reported("a", report("a", 101))
    found = attempt.decided(0.0, draining={"a"})
    assert found is not None
    assert found.holder.node == "a"


@pytest.mark.parametrize("leaves", ["gone", "here"])
def test_a_run_that_ended_after_its_report_is_not_promoted(leaves: str) -> None:
    """Who is left holds everything as well; by a death after the best report, and by another run."""
    attempt = promotion()
    for node, end in (("a", 300), ("b", 200), ("c", 100)):
        attempt.reported(node, report(node, end))
    if leaves == "gone":
        attempt.gone("a")
    else:
        attempt.here("a", "a2")
        assert attempt.waits_for == ("a",)
    assert decided(attempt, WAIT_S).holder == Holder("b", "b1")


def test_a_report_of_another_run_than_the_clusters_counts_for_nothing() -> None:
    """It is late, or comes before it is registered; by reports of both sides."""
    attempt = promotion()
    attempt.reported("a", report("a", start_id="a0"))
    attempt.reported("b", report("b", start_id="b2"))
    assert attempt.waits_for == ("a", "b", "c")


def test_a_report_of_one_that_was_not_asked_counts_for_nothing() -> None:
    """It may lack what was confirmed; by a marked member, a copy that is not in sync, and no copy at all."""
    attempt = promotion(log(in_sync={"a": "a1", "b": "b1"}, marked=frozenset({"b"})))
    for node in ("b", "c", "d"):
        attempt.reported(node, report(node, 900))
    assert attempt.decided(1000.0) is None
    attempt.reported("a", report("a"))
    assert decided(attempt).holder == Holder("a", "a1")


# --- Who it is ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reports", "master"),
    [
        ({"a": (5, 100), "b": (5, 101), "c": (5, 99)}, "b"),
        ({"a": (4, 900), "b": (5, 100), "c": (5, 90)}, "b"),
        ({"a": (5, 100), "b": (5, 100), "c": (5, 100)}, "a"),
        ({"a": (5, 99), "b": (5, 100), "c": (5, 100)}, "b"),
        ({"c": (5, 0)}, "c"),
    ],
    ids=["longest", "last epoch before length", "the home of equals", "the older of equals", "an empty one"],
)
def test_the_highest_epoch_and_end_is_it(reports: dict[str, tuple[int, int]], master: str) -> None:
    """By reports in either order."""
    for order in (list(reports), list(reversed(reports))):
        attempt = promotion()
        for node in order:
            last_epoch, end = reports[node]
            attempt.reported(node, report(node, end, last_epoch=last_epoch))
        found = decided(attempt, WAIT_S)
        assert found.holder == Holder(master, f"{master}1")
        assert not found.unclean
        assert found.lost_from is None


@pytest.mark.parametrize(
    ("last_epoch", "promised", "epoch"),
    [(5, 0, 6), (5, 6, 6), (6, 6, 7), (9, 0, 10), (5, 8, 8), (9, 8, 10)],
    ids=["usual", "kept", "begun", "unheard of", "told more by another", "both"],
)
def test_the_epoch_is_above_all_that_a_copy_knows(last_epoch: int, promised: int, epoch: int) -> None:
    """And not below what it has promised to keep; by one report among usual ones."""
    attempt = promotion()
    attempt.reported("a", report("a", promised=6))
    attempt.reported("b", report("b", last_epoch=last_epoch, promised=promised))
    attempt.gone("c")
    assert decided(attempt).epoch == epoch


def test_a_loss_that_nobody_marked_is_reported_all_the_same() -> None:
    """A copy knows that more was confirmed than the best one holds; by such a report."""
    attempt = promotion()
    attempt.reported("a", report("a", 100, confirmed=100))
    attempt.reported("b", report("b", 90, confirmed=140))
    attempt.gone("c")
    found = decided(attempt)
    assert (found.holder.node, found.lost_from, found.unclean) == ("a", 100, False)


# --- When all have to answer ----------------------------------------------------------------------------------------


def test_the_first_promotion_waits_for_every_replica() -> None:
    """They may hold an older cluster's log; by two of three, one gone, and the third when it is back."""
    attempt = promotion(log(epoch=0, version=0, in_sync={}), epoch=1)
    attempt.reported("a", report("a", 0, last_epoch=0))
    attempt.reported("b", report("b", 10, last_epoch=3))
    attempt.gone("c")
    assert attempt.waits_for == ("c",)
    assert attempt.decided(1000.0) is None
    attempt.reported("c", report("c", 70, last_epoch=3, start_id="c8"))
    found = decided(attempt)
    assert (found.holder, found.epoch, found.unclean, found.lost_from) == (Holder("c", "c8"), 4, False, None)


def test_a_damaged_copy_counts_by_what_is_good_of_it() -> None:
    """Goal: invariant 7. All are marked: two end at once, one holds most and is bad below that. Who can show most is
    it, and the loss begins there."""
    facts = log(marked=frozenset({"a", "b", "c"}))
    attempt = promotion(facts)
    attempt.reported("a", report("a", 40, confirmed=100))
    attempt.reported("b", report("b", 60))
    attempt.reported("c", report("c", 50))
    assert (decided(attempt).holder.node, decided(attempt).lost_from) == ("b", 60)
    attempt.reported("a", report("a", 80, confirmed=100))
    assert (decided(attempt).holder.node, decided(attempt).lost_from) == ("a", 80)


def test_a_log_is_not_taken_for_empty_while_another_copy_may_have_some_of_it() -> None:
    """The one that had everything comes back with a blank disk; by a replica outside the set that is away, and back."""
    attempt = promotion(log(in_sync={"a": "a1"}, marked=frozenset({"a"})))
    attempt.reported("a", report("a", 0, last_epoch=0))
    attempt.reported("b", report("b", 0, last_epoch=0))
    attempt.gone("c")
    assert attempt.waits_for == ("c",)
    assert attempt.decided(1000.0) is None
    attempt.reported("c", report("c", 70, confirmed=60))
    assert (decided(attempt).holder.node, decided(attempt).lost_from) == ("c", 70)


def test_an_only_copy_that_is_damaged_waits_for_an_operator() -> None:
    """Goal: what stands behind its bad bytes is nowhere else. It is not promoted, however long it takes; one that lost
    its end without knowing of more is, as is a damaged one when there is another copy."""
    only = {"replicas": ("a",), "in_sync": {"a": "a1"}, "marked": frozenset({"a"})}
    attempt = promotion(log(**only))
    attempt.reported("a", report("a", 80, confirmed=100))
    assert attempt.decided(1e9) is None
    attempt.reported("a", report("a", 80, confirmed=80))
    assert decided(attempt).lost_from == 80
    attempt = promotion(log(**only | {"replicas": ("a", "b")}))
    attempt.reported("a", report("a", 80, confirmed=100))
    attempt.reported("b", report("b", 10))
    assert decided(attempt).lost_from == 80


def test_a_recovering_log_waits_for_all_that_are_marked_and_asks_the_others_too() -> None:
    """What is left may be longest on one that had fallen behind; by two marked and one out of sync."""
    facts = log(in_sync={"a": "a1", "b": "b1"}, marked=frozenset({"a", "b"}))
    attempt = promotion(facts)
    attempt.reported("a", report("a", 50, confirmed=80))
    attempt.reported("c", report("c", 70))
    assert attempt.waits_for == ("b",)
    attempt.gone("b")
    assert attempt.decided(1000.0) is None
    attempt.reported("b", report("b", 60))
    assert decided(attempt) == Promoted(
        log_id="x", seen=facts.seen, holder=Holder("c", "c1"), epoch=6, unclean=True, lost_from=70
    )


@pytest.mark.parametrize("third", ["gone", "silent"])
def test_a_recovering_log_waits_for_the_others_only_for_a_while(third: str) -> None:
    """By both marked ones, and a third that is gone or silent."""
    attempt = promotion(log(in_sync={"a": "a1", "b": "b1"}, marked=frozenset({"a", "b"})))
    attempt.reported("a", report("a", 50))
    attempt.reported("b", report("b", 60))
    assert attempt.decided(0.0) is None
    if third == "gone":
        attempt.gone("c")
    assert decided(attempt, 0.0 if third == "gone" else WAIT_S).holder.node == "b"


def test_an_only_copy_that_lost_something_says_so() -> None:
    """By a log with one copy."""
    attempt = promotion(log(replicas=("a",), in_sync={"a": "a1"}, marked=frozenset({"a"})))
    attempt.reported("a", report("a", 30))
    assert (decided(attempt).unclean, decided(attempt).lost_from) == (True, 30)


@pytest.mark.parametrize(("last_epoch", "lost_from"), [(5, 100), (4, 30)])
def test_an_epoch_that_a_recovery_raised_makes_no_copy_old(last_epoch: int, lost_from: int) -> None:
    """Nobody wrote in it: a copy in the last epoch that somebody led keeps all it has, an older one what it knows to be
    confirmed. By the only copy that is left of a log."""
    only = {"replicas": ("a",), "in_sync": {"a": "a1"}, "marked": frozenset({"a"})}
    attempt = promotion(log(**only, epoch=1_000_005, raised_from=5), epoch=1_000_006)
    attempt.reported("a", report("a", 100, last_epoch=last_epoch, confirmed=30))
    assert decided(attempt).lost_from == lost_from


@pytest.mark.parametrize(("confirmed", "lost_from"), [(70, 70), (30, 30), (10, 20)])
def test_what_another_copy_of_its_epoch_knows_to_be_confirmed_is_not_lost(confirmed: int, lost_from: int) -> None:
    """Goal: invariant 6, the start of a loss is exact. Nobody has the log's last epoch, and all are marked: of two that
    end at once the first is it, and knows less to be confirmed than the second, or more."""
    facts = log(in_sync={"a": "a1", "b": "b1"}, marked=frozenset({"a", "b"}))
    attempt = promotion(facts)
    attempt.reported("a", report("a", 70, last_epoch=2, confirmed=20))
    attempt.reported("b", report("b", 70, last_epoch=2, confirmed=confirmed))
    attempt.reported("c", report("c", 60, last_epoch=1, confirmed=60))
    assert (decided(attempt).holder.node, decided(attempt).lost_from) == ("a", lost_from)


def test_what_was_declared_lost_does_not_come_back_with_an_older_copy() -> None:
    """Goal: invariant 6, nothing is lost without a report. A loss was declared, and the epoch that came of it confirmed
    records in the place of what was lost. Its copy goes bad, and one from before is the best that is left: the next
    loss starts where the former one did, whatever that copy knows to be confirmed."""
    facts = log(in_sync={"b": "b1"}, marked=frozenset({"b"}), losses=(Loss(2, 10), Loss(4, 40)))
    attempt = promotion(facts)
    attempt.reported("a", report("a", 100, last_epoch=3, confirmed=90))
    attempt.reported("b", report("b", 20, last_epoch=3, confirmed=80))
    attempt.gone("c")
    assert (decided(attempt).holder.node, decided(attempt).lost_from) == ("a", 40)


# --- Whole histories ------------------------------------------------------------------------------------------------

NODES = ("a", "b", "c")
nodes = st.sampled_from(NODES)


@dataclass
class Copy:
    """A node's copy of the log, and what the node knows. `held`: (epoch, number) of each batch."""

    node: str
    held: list[tuple[int, int]]
    run: str = ""
    up: bool = True
    promised: int = 0
    confirmed: int = 0
    mastering: int = 0
    view: LogFacts | None = None
    wait_set: set[str] = field(default_factory=set)
    acks: dict[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def writes(self) -> bool:
        return self.up and self.mastering > 0 and self.promised <= self.mastering


class Histories(RuleBasedStateMachine):
    """Three copies, masters that may not know that they are it no more, and coordinators that come and go.

    `confirmed`: what was answered at level `all`, less what a promotion said to be lost. Masters keep the union rule,
    copies their promises, and everything is late at times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState("id", "name")
        self.index = self.number = 0
        self.now = 0.0
        self.copies: dict[str, Copy] = {}
        self.confirmed: list[tuple[int, int]] = []
        self.attempt: Promotion | None = None
        self.late: list[Command] = []
        self.late_reports: list[tuple[str, FenceReport, list[tuple[int, int]]]] = []
        # What the reports of this attempt speak of.
        self.heard: dict[str, list[tuple[int, int]]] = {}

    @property
    def log(self) -> LogFacts:
        return self.state.logs["x"]

    def apply(self, command: Command) -> str:
        self.index += 1
        before = self.state
        self.state, outcome = applied(before, self.index, command)
        if isinstance(command, Promoted) and not outcome.refusal:
            self.promoted(before.logs["x"], command)
        return outcome.refusal

    def promoted(self, before: LogFacts, command: Promoted) -> None:
        copy = self.copies[command.holder.node]
        assert copy.run == command.holder.start_id
        if command.lost_from is not None:
            assert before.recovering, "nothing else loses anything here"
            self.confirmed = self.confirmed[: command.lost_from]
        assert copy.held[: len(self.confirmed)] == self.confirmed
        assert all(epoch < command.epoch for epoch, _ in copy.held)
        # A loss that was declared is not found once more by the same copy.
        copy.confirmed = min(copy.confirmed, len(copy.held))
        if copy.up and copy.promised <= command.epoch:
            copy.promised = copy.mastering = command.epoch
            copy.held.append((command.epoch, 0))
            copy.view, copy.acks = self.log, {}
            copy.wait_set = set(self.log.in_sync)

    @initialize(
        ends=st.tuples(*[st.integers(0, 4)] * 3), min_in_sync=st.sampled_from([None, 1, 3]), settled=st.booleans()
    )
    def begin(self, ends: tuple[int, int, int], min_in_sync: int | None, settled: bool) -> None:
        """An older cluster's log, of which anything may have been confirmed."""
        older = [(1, 0), (1, 1), (3, 0), (3, 1)]
        for node, end in zip(NODES, ends, strict=True):
            self.copies[node] = Copy(node, older[:end], up=False)
            self.apply(NodeJoined(node=node, addresses=Addresses()))
            self.start(node, lossy=False, left=0)
        self.confirmed = older[: max(ends)]
        self.apply(LogMade(log_id="x", number=0, name="x", flush="memory", replicas=NODES, min_in_sync=min_in_sync))
        if settled:
            self.promote_now()
            self.catch_up()

    # --- always ---

    @invariant()
    def whoever_may_be_promoted_holds_all_that_was_confirmed(self) -> None:
        if "x" in self.state.logs:
            for node in self.log.promotable:
                assert self.copies[node].held[: len(self.confirmed)] == self.confirmed, node

    # --- nodes ---

    @rule(node=nodes)
    def kill(self, node: str) -> None:
        copy = self.copies[node]
        copy.up, copy.mastering = False, 0

    @rule(node=nodes, lossy=st.sampled_from([False, False, True]), left=st.integers(0, 9))
    def start(self, node: str, lossy: bool, left: int) -> None:
        """`left` tenths of what it held are there after a power loss."""
        copy = self.copies[node]
        self.kill(node)
        self.index += 1
        # What an older cluster lost nobody here can tell.
        lossy = lossy and "x" in self.state.logs and self.log.epoch > 0
        if lossy:
            del copy.held[len(copy.held) * left // 10 :]
        run = f"{node} {self.index}"
        started = NodeStarted(
            node=node,
            start_id=run,
            kind=StartKind.LOSSY if lossy else StartKind.DIED,
            addresses=Addresses(),
            before=copy.run,
        )
        assert not self.apply(started)
        copy.run, copy.up = run, True

    # --- the log ---

    def masters(self) -> list[Copy]:
        return [copy for copy in self.copies.values() if copy.writes]

    @rule(node=nodes)
    def append(self, node: str) -> None:
        copy = self.copies[node]
        if copy.writes:
            self.number += 1
            copy.held.append((copy.mastering, self.number))

    @rule(node=nodes, of=nodes, count=st.integers(0, 6))
    def pull(self, node: str, of: str, count: int) -> None:
        copy, master = self.copies[node], self.copies[of]
        if not master.writes or not copy.up or copy is master or copy.promised > master.mastering:
            return
        copy.promised, copy.mastering = master.mastering, 0
        same = 0
        while same < min(len(copy.held), len(master.held)) and copy.held[same] == master.held[same]:
            same += 1
        copy.held = master.held[: same + count] if same < len(copy.held) or count else copy.held
        copy.confirmed = min(master.confirmed, len(copy.held))
        marked = copy.node in self.log.marked
        if not marked or copy.node in master.wait_set - set(self.log.in_sync):
            master.acks[node] = (copy.run, len(copy.held))

    @rule(node=nodes)
    def confirm(self, node: str) -> None:
        master = self.copies[node]
        if not master.writes or master.view is None or len(master.view.in_sync) < master.view.copies_wanted:
            return
        ends = [master.acks.get(each, ("", 0))[1] for each in master.wait_set if each != node]
        end = min([len(master.held), *ends])
        if end <= master.held.index((master.mastering, 0)):
            return
        known = min(end, len(self.confirmed))
        assert master.held[:known] == self.confirmed[:known], "two histories were confirmed"
        self.confirmed = max(self.confirmed, master.held[:end], key=len)
        master.confirmed = end

    @rule(node=nodes)
    def read(self, node: str) -> None:
        """The master learns what was decided: from now on it waits for that set only."""
        master = self.copies[node]
        if master.writes and self.log.master == Holder(node, master.run) and self.log.epoch == master.mastering:
            master.view, master.wait_set = self.log, set(self.log.in_sync)

    @rule(node=nodes, of=nodes, late=st.booleans())
    def grow(self, node: str, of: str, late: bool) -> None:
        """A complete mirror, after the master has begun to wait for it."""
        copy, master = self.copies[node], self.copies[of]
        if not master.writes or master.view is None or copy is master or not copy.up:
            return
        run, end = master.acks.get(node, ("", 0))
        start = master.held.index((master.mastering, 0))
        if node in master.wait_set or run != copy.run:
            master.wait_set.add(node)
            if run == copy.run and end > start and end >= master.confirmed and copy.held[:end] == master.held[:end]:
                self.send(InSyncGrown(log_id="x", seen=master.view.seen, holder=Holder(node, run)), late=late)
        else:
            master.wait_set.add(node)

    @rule(late=st.booleans())
    def shrink(self, late: bool) -> None:
        dead = [node for node in NODES if not self.copies[node].up]
        leaving = self.log.may_leave([*dead, *self.log.marked])
        if leaving:
            self.send(InSyncShrunk(log_id="x", seen=self.log.seen, nodes=leaving), late=late)

    def send(self, command: Command, *, late: bool) -> None:
        if late:
            self.late.append(command)
        else:
            self.apply(command)

    @precondition(lambda self: self.late)
    @rule()
    def arrive(self) -> None:
        self.apply(self.late.pop(0))

    # --- promotions ---

    @rule(forgets=st.booleans())
    def attempt_promotion(self, forgets: bool) -> None:
        """`forgets`: another coordinator, which does not know what was told before."""
        told = 0 if forgets or self.attempt is None else self.attempt.epoch
        epoch = max(self.log.epoch, told) + 1
        self.attempt = Promotion("x", self.log, epoch=epoch, now=self.now, wait_s=WAIT_S)
        self.late_reports.clear()
        self.heard.clear()

    @precondition(lambda self: self.attempt is not None)
    @rule(node=nodes, late=st.sampled_from([False, False, True]))
    def fence(self, node: str, late: bool) -> None:
        copy = self.copies[node]
        if self.attempt is None or not copy.up or node not in self.attempt.asked:
            return
        copy.promised = max(copy.promised, self.attempt.epoch)
        if copy.mastering < copy.promised:
            copy.mastering = 0
        last = copy.held[-1][0] if copy.held else 0
        found = FenceReport(copy.run, last, len(copy.held), copy.confirmed, copy.promised)
        if late:
            self.late_reports.append((node, found, list(copy.held)))
        else:
            self.hear(node, found, list(copy.held))

    def hear(self, node: str, found: FenceReport, held: list[tuple[int, int]]) -> None:
        assert self.attempt is not None
        self.attempt.reported(node, found)
        if self.attempt.log.in_sync.get(node, found.start_id) == found.start_id:
            self.heard[node] = held

    @precondition(lambda self: self.attempt is not None and self.late_reports)
    @rule()
    def report_arrives(self) -> None:
        self.hear(*self.late_reports.pop(0))

    @precondition(lambda self: self.attempt is not None)
    @rule(node=nodes)
    def look(self, node: str) -> None:
        """The coordinator sees who is there."""
        assert self.attempt is not None
        if self.copies[node].up:
            self.attempt.here(node, self.copies[node].run)
        else:
            self.attempt.gone(node)
        if node in self.attempt.waits_for or not self.copies[node].up:
            self.heard.pop(node, None)

    @precondition(lambda self: self.attempt is not None)
    @rule(passes=st.booleans(), late=st.sampled_from([False, False, True]))
    def decide(self, passes: bool, late: bool) -> None:
        assert self.attempt is not None
        self.now += WAIT_S if passes else 0.0
        found = self.attempt.decided(self.now)
        if found is not None:
            self.check_choice(found)
            self.send(found, late=late)

    def check_choice(self, found: Promoted) -> None:
        """It holds what any other that was heard may have acked, at any level, in the newest epoch of all."""
        chosen = self.heard[found.holder.node]
        newest = max(held[-1][0] if held else 0 for held in self.heard.values())
        for held in self.heard.values():
            if held and held[-1][0] == newest:
                assert chosen[: len(held)] == held

    # --- so that much happens ---

    @rule()
    def promote_now(self) -> None:
        self.attempt_promotion(forgets=False)
        for node in NODES:
            self.look(node)
            self.fence(node, late=False)
        self.decide(passes=True, late=False)

    @rule()
    def catch_up(self) -> None:
        for master in self.masters():
            for node in NODES:
                self.pull(node, master.node, 100)
            self.confirm(master.node)
            for node in NODES:
                self.grow(node, master.node, late=False)
                self.grow(node, master.node, late=False)
            self.read(master.node)
            self.append(master.node)


TestHistories: Callable[..., object] = Histories.TestCase
Histories.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
