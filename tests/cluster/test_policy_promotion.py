"""A rule that says `always` accepts a loss: when no copy is left that has everything, and never before; and one that
says `when-synced` never does."""

from __future__ import annotations

from random import Random
from uuid import UUID

import msgspec
import pytest

from mirrorlog.cluster.coordination.coordinator import Coordinator, CoordinatorSettings
from mirrorlog.cluster.coordination.promotion import FenceReport, Promotion, keys_that_count
from mirrorlog.cluster.state.commands import Command, InSyncShrunk, LogMade, NodeDraining, NodeStopped, Promoted
from mirrorlog.cluster.state.placements import (
    ALWAYS,
    PROMOTE_ON_FAILURE,
    PROMOTE_ON_SHUTDOWN,
    WHEN_SYNCED,
    Placement,
    PromoteWhen,
)
from mirrorlog.cluster.state.state import LogFacts
from tests.cluster.test_coordinator import World

AFTER_S = 10.0
WAIT_S = 2.0
WANTED = CoordinatorSettings(promote_wait_s=WAIT_S, promote_always_after_s=AFTER_S)
LOG_ID = str(UUID(int=77))
END = 100
"""Where the copies end that are not in sync."""


class Cluster(World):
    """Nodes a, b, c and d, and a log `x` that a masters, with copies elsewhere. `seen`: every promotion of it that was
    decided, with what the log was before, and who was up."""

    def __init__(self, rule: Placement | None = None, *, replicas: str = "ab") -> None:
        super().__init__(wanted=WANTED)
        for node in "abcd":
            self.join(node)
            self.settle()
        self.seen: list[tuple[LogFacts, Promoted, set[str]]] = []
        rule = rule or Placement(copies=len(replicas), promote_on_shutdown=ALWAYS, promote_on_failure=ALWAYS)
        assert not self.apply(
            LogMade(
                log_id=LOG_ID,
                number=77,
                name="x",
                flush="memory",
                replicas=tuple(replicas),
                copies=len(replicas),
                min_in_sync=1,
                placement=rule,
            )
        )
        self.settle()
        assert self.master("x") == "a"
        self.reports = dict.fromkeys("abcd", (1, END))

    def apply(self, command: Command) -> str:
        before = self.state.logs.get(LOG_ID)
        refusal = super().apply(command)
        if isinstance(command, Promoted) and command.log_id == LOG_ID and not refusal:
            assert before is not None
            there = {node for node in self.state.nodes if node not in self.down}
            self.seen.append((before, command, there))
        return refusal

    @property
    def promotions(self) -> list[Promoted]:
        """Behind the first."""
        return [command for before, command, _ in self.seen if before.epoch]

    def fall_behind(self, *nodes: str) -> None:
        """They leave the in-sync set, and do not come into it."""
        self.behind |= set(nodes)
        log = self.log("x")
        assert not self.apply(InSyncShrunk(log_id=LOG_ID, seen=log.seen, nodes=nodes))

    def end(self, node: str, how: str) -> None:
        start_id = self.state.nodes[node].start_id
        if how == "drain":
            self.drain(node)
        if how == "stop":
            assert not self.apply(NodeDraining(node=node, draining=True))
            assert not self.apply(NodeStopped(node=node, start_id=start_id))
        self.down.add(node)

    def wait(self, seconds: float) -> None:
        self.settle()
        self.now += seconds
        self.settle()


def rule(on_shutdown: PromoteWhen, on_failure: PromoteWhen) -> Placement:
    return Placement(copies=2, promote_on_shutdown=on_shutdown, promote_on_failure=on_failure)


@pytest.mark.parametrize("how", ["stop", "drain", "kill"])
@pytest.mark.parametrize("on_shutdown", [WHEN_SYNCED, ALWAYS])
@pytest.mark.parametrize("on_failure", [WHEN_SYNCED, ALWAYS])
def test_the_key_that_counts_is_that_of_the_last_masters_end(
    how: str, on_shutdown: PromoteWhen, on_failure: PromoteWhen
) -> None:
    """A stop and a drain are a shutdown, all else is failure; by each pair of keys. With the key's word the copy that
    is left is promoted, by that key's name, and what it may lack is declared; without it the log waits for its
    master, however long."""
    world = Cluster(rule(on_shutdown, on_failure))
    world.fall_behind("b")
    world.end("a", how)
    world.wait(AFTER_S)
    key, word = (PROMOTE_ON_FAILURE, on_failure) if how == "kill" else (PROMOTE_ON_SHUTDOWN, on_shutdown)
    if word == ALWAYS:
        (promoted,) = world.promotions
        assert (promoted.holder.node, promoted.unclean, promoted.lost_from, promoted.by) == ("b", True, END, key)
        assert [(loss.start, loss.leapt) for loss in world.log("x").losses] == [(END, False)]
    else:
        world.wait(10 * AFTER_S)
        assert not world.promotions
        assert world.coordinator.waits[LOG_ID] == ("a",)


def test_those_who_have_everything_are_waited_for_first() -> None:
    """A restart of one node after the other loses nothing; by a master that is killed, a moment before the time is up,
    a coordinator that begins anew, and a master that is there again and goes once more."""
    world = Cluster()
    world.fall_behind("b")
    world.end("a", "kill")
    world.wait(AFTER_S - 0.1)
    assert not world.promotions
    world.coordinator = Coordinator(WANTED)
    world.wait(AFTER_S - 0.1)
    assert not world.promotions, "it knows of no earlier time"
    world.down = set()
    world.settle()
    world.end("a", "kill")
    world.wait(AFTER_S - 0.1)
    assert not world.promotions
    world.wait(0.1)
    assert [each.holder.node for each in world.promotions] == ["b"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_who_is_back_and_has_still_to_register_is_waited_for(how: str) -> None:
    """It has everything, and says so soon; by a master that is up in a run that the cluster does not know, for long.
    Once it has registered it masters the log again, and nothing is lost."""
    world = Cluster()
    world.fall_behind("b")
    world.end("a", how)
    world.wait(AFTER_S / 2)
    world.down, world.unregistered, world.silent = set(), {"a"}, {"a"}
    world.wait(3 * AFTER_S)
    assert not world.promotions
    world.unregistered, world.silent = set(), set()
    world.start("a", run=2)
    world.settle()
    assert world.master("x") == "a"
    assert not world.log("x").losses


def test_who_is_back_before_it_is_decided_wins() -> None:
    """The promotion knew a log without it; by a master that registers between the proposal and its entry."""
    world = Cluster()
    world.fall_behind("b")
    world.end("a", "kill")
    world.wait(AFTER_S)
    (late,) = world.promotions

    again = Cluster()
    again.fall_behind("b")
    again.end("a", "kill")
    assert late.seen == again.log("x").seen
    again.start("a", run=2)
    assert "has moved on" in again.apply(late)


def test_nothing_is_lost_while_somebody_in_sync_is_up() -> None:
    """However long he takes to answer; by one of two mirrors that is in sync, and silent for a while."""
    world = Cluster(replicas="abc")
    world.fall_behind("b")
    world.reports |= {"b": (1, END + 50), "c": (1, END)}
    world.silent = {"c"}
    world.end("a", "kill")
    world.wait(3 * AFTER_S)
    assert not world.promotions
    world.silent = set()
    world.settle()
    assert [(each.holder.node, each.unclean, each.lost_from) for each in world.promotions] == [("c", False, None)]


def test_the_best_of_the_copies_that_are_left_is_promoted() -> None:
    """By its last epoch, then its end; one that is silent is waited for as in any promotion."""
    world = Cluster(replicas="abcd")
    world.fall_behind("b", "c", "d")
    world.reports |= {"b": (1, END), "c": (1, END + 50), "d": (1, END + 70)}
    world.silent = {"d"}
    world.end("a", "kill")
    world.wait(AFTER_S)
    assert not world.promotions
    world.wait(WAIT_S)
    (promoted,) = world.promotions
    assert (promoted.holder.node, promoted.lost_from) == ("c", END + 50)


def test_a_copy_that_holds_nothing_is_not_promoted() -> None:
    """Not even that its queues were declared is in it; by a mirror that has just been made. An operator may."""
    world = Cluster()
    world.fall_behind("b")
    world.reports["b"] = (0, 0)
    world.end("a", "kill")
    world.wait(AFTER_S)
    world.wait(AFTER_S)
    assert not world.promotions


def test_a_log_that_is_recovering_goes_on_with_what_is_there() -> None:
    """All that had everything may have lost something of it, and one of them does not come back; by a loss of power of
    two, of which one returns, beside a copy that had fallen behind."""
    world = Cluster(replicas="abc")
    world.fall_behind("c")
    world.reports |= {"b": (1, END + 20), "c": (1, END)}
    log = msgspec.structs.replace(world.log("x"), master=None, marked=frozenset("ab"))
    world.state = msgspec.structs.replace(world.state, logs={**world.state.logs, LOG_ID: log})
    world.down = {"a"}
    world.wait(AFTER_S - 0.1)
    assert not world.promotions
    world.wait(0.1)
    (promoted,) = world.promotions
    assert (promoted.holder.node, promoted.unclean, promoted.lost_from) == ("b", True, END + 20)


def test_an_only_copy_is_left_to_an_operator() -> None:
    """What stands behind its bad bytes is nowhere else; by a report of a copy that is damaged, by either way."""
    log = LogFacts(
        number=1, name="x", flush="memory", replicas=("a",), epoch=3, in_sync={"a": "a 1"}, marked=frozenset("a")
    )
    promotion = Promotion("x", log, epoch=4, now=0.0, wait_s=WAIT_S, by=PROMOTE_ON_FAILURE)
    promotion.reported("a", FenceReport("a 1", 3, 50, 90))
    assert promotion.decided(100.0) is None


def test_when_the_last_master_is_not_known_any_more_both_keys_count() -> None:
    """Its node ran again and went again before it was promoted: it is one of those in sync. A loss that the end of one
    of them forbids is none; by ends of both sorts, and of one."""
    world = Cluster(replicas="abc")
    world.down = {"a", "b"}
    world.start("a", run=2)
    log = world.log("x")
    assert log.master is None
    assert set(log.in_sync) == {"a", "b", "c"}
    assert keys_that_count(log, world.state) == (PROMOTE_ON_FAILURE,)
    for node, keys in (
        ("a", (PROMOTE_ON_SHUTDOWN, PROMOTE_ON_FAILURE)),
        ("b", (PROMOTE_ON_SHUTDOWN, PROMOTE_ON_FAILURE)),
        ("c", (PROMOTE_ON_SHUTDOWN,)),
    ):
        assert not world.apply(NodeStopped(node=node, start_id=world.state.nodes[node].start_id))
        assert keys_that_count(log, world.state) == keys


def test_a_log_without_a_first_master_is_no_matter_of_policy() -> None:
    """Nobody knows how he ended who had what may be there; by one whose home is gone before it is master."""
    log = LogFacts(number=1, name="x", flush="memory", replicas=("a", "b"))
    assert keys_that_count(log, Cluster().state) == ()


@pytest.mark.parametrize("seed", range(40))
def test_in_any_storm_a_loss_is_promoted_by_a_key_that_says_so_and_nothing_else(seed: int) -> None:
    """Goal: no loss without the key's word, none while somebody is up who has everything, none undeclared. Method:
    nodes of a log with four copies are killed, stopped, drained and started at random, with time between; each
    promotion is held against the log as it was before, and who was up."""
    random = Random(seed)
    words = (WHEN_SYNCED, ALWAYS)
    keys = {PROMOTE_ON_SHUTDOWN: random.choice(words), PROMOTE_ON_FAILURE: random.choice(words)}
    world = Cluster(
        Placement(
            copies=4,
            promote_on_shutdown=keys[PROMOTE_ON_SHUTDOWN],  # type: ignore[arg-type]
            promote_on_failure=keys[PROMOTE_ON_FAILURE],  # type: ignore[arg-type]
        ),
        replicas="abcd",
    )
    runs = dict.fromkeys("abcd", 1)
    for _ in range(40):
        node = random.choice("abcd")
        if node in world.down:
            runs[node] += 1
            world.start(node, run=runs[node])
        else:
            world.end(node, random.choice(("kill", "stop", "drain")))
        world.reports[node] = (1, random.randrange(END, 2 * END))
        if random.random() < 0.7:
            world.wait(random.choice((0.1, WAIT_S, AFTER_S, 2 * AFTER_S)))
    for before, promoted, there in world.seen:
        if before.epoch and promoted.by:
            assert promoted.unclean
            assert promoted.lost_from is not None
            assert keys[promoted.by] == ALWAYS
            assert not there & set(before.promotable)
        elif before.epoch:
            assert promoted.holder.node in before.promotable
