"""In-sync sets under a cluster whose commands come late, twice or never, with mirrors that ack, die and lose memory.

The cluster's own state machine decides. The master is real, its links too; logs are numbers. A failure names its seed:
run `Histories(seed).run()`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

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
    ReplicaAdded,
    ReplicaRemoved,
    Seen,
    StartKind,
)
from mirrorlog.cluster.state.machine import applied
from mirrorlog.cluster.state.state import ClusterState, LogFacts
from mirrorlog.commitlog.epochs import Epoch, EpochList
from mirrorlog.commitlog.segments.cold import ColdRead
from mirrorlog.errors import InSyncReplicasNotEnough
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.group_transfer import ALL_MEMBERS, Answer, PutStatus
from mirrorlog.ha.in_sync import Candidate, Grow, InSyncSet, Wish
from mirrorlog.ha.mastership import Mastership
from mirrorlog.wire.frames import Durability
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, Pull
from tests.ha.links import ack_of
from tests.ha.replicas import HA

MIRRORS = ("n1", "n2", "n3")
BATCH = 10
STEPS = 400
RUNS = 150
LAG_S = 3.0
EPOCH = Epoch(1, 0, "n0", "n0 1")


class Numbers:
    """A log of one epoch that is nothing but its end."""

    def __init__(self) -> None:
        self.begin = self.begin_ahead = self.last_start = self.confirmed = 0
        self.end = BATCH
        self.log = self
        self.epochs = EpochList.of([EPOCH])

    def read(self, log_offset: int, max_bytes: int, *, until: int) -> memoryview:
        return memoryview(bytes(until - log_offset))

    def read_cold(self, log_offset: int, max_bytes: int, *, until: int) -> ColdRead:
        raise AssertionError("nothing here is cold")


@dataclass
class Copy:
    """A mirror: its run and how far it really is. `lost`: less than a run before had, and the cluster does not know."""

    node: str
    run: str
    held: int = 0
    up: bool = True
    lost: bool = False


@dataclass
class Link:
    """As the master sees it: it does not end by itself when the mirror's process does. `acks`: on their way."""

    run: str
    connection: HAConnection
    acks: list[int] = field(default_factory=list)


@dataclass
class Asked:
    """A wish that the driver waits for, its command, and where in the history its outcome was."""

    wish: Wish
    command: Command
    outcome: tuple[bool, int] | None = None


class Histories:
    """One run of one seed. `history`: the cluster's states; `known`: up to which the master has learned them."""

    def __init__(self, seed: int, make: Callable[..., Mastership] = Mastership) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.now = 0.0
        self.runs = 0
        self.state = ClusterState("id", "name")
        self.history: list[ClusterState] = []
        self.copies = {node: Copy(node, "") for node in MIRRORS}
        self.links: dict[str, Link] = {}
        self.wire: list[Command] = []
        self.asked: Asked | None = None
        self.log = Numbers()
        self.waits: dict[int, int] = {}
        self.confirmed = self.publishes = self.answered = self.grown = self.late = self.awaited = self.in_vain = 0
        self._found_cluster()
        self.known = len(self.history) - 1
        self.mastership = make(
            name="x",
            own="n0",
            in_sync=self.view(),
            lag_s=LAG_S,
            durability=Durability.MEMORY,
            confirmed=0,
            waiting_max=10_000,
        )
        self.mastership.epoch_start_end = self.log.end
        self.mastership.appended(self.log.end)

    def _found_cluster(self) -> None:
        for node in ("n0", *MIRRORS):
            self.apply(NodeJoined(node=node, addresses=Addresses()))
        self.apply(NodeStarted(node="n0", start_id=EPOCH.start_id, addresses=Addresses(), kind=StartKind.CLEAN))
        for copy in self.copies.values():
            self.register(copy)
        least = self.random.choice([None, 1, 2])
        replicas = ("n0", "n1", "n2")
        self.apply(LogMade(log_id="x", number=0, name="x", flush="memory", replicas=replicas, min_in_sync=least))
        self.apply(Promoted(log_id="x", seen=self.facts.seen, holder=Holder("n0", EPOCH.start_id), epoch=1))

    @property
    def facts(self) -> LogFacts:
        return self.state.logs["x"]

    def view(self) -> InSyncSet:
        """What the master knows."""
        state = self.history[self.known]
        log = state.logs["x"]
        starts = {node: state.nodes[node].start_id for node in log.replicas}
        return InSyncSet(log.version, log.replicas, log.in_sync, log.marked, log.copies_wanted, starts)

    # --- the cluster ---

    def apply(self, command: Command) -> bool:
        """Whether it was refused."""
        self.state, outcome = applied(self.state, len(self.history) + 1, command)
        self.history.append(self.state)
        return bool(outcome.refusal)

    def register(self, copy: Copy) -> None:
        """The next run of a node, once the cluster knows it."""
        self.runs += 1
        before, copy.run = copy.run, f"{copy.node} {self.runs}"
        kind = StartKind.LOSSY if copy.lost else StartKind.DIED
        refused = self.apply(
            NodeStarted(node=copy.node, start_id=copy.run, kind=kind, addresses=Addresses(), before=before)
        )
        assert not refused
        copy.up, copy.lost = True, False

    # --- steps: nodes and links ---

    def kill(self) -> None:
        copy = self.copies[self.random.choice(MIRRORS)]
        copy.up = False
        if self.random.random() < 0.5:
            copy.held = self.random.randrange(copy.held // BATCH + 1) * BATCH
            copy.lost = True

    def start(self) -> None:
        for copy in self.copies.values():
            if not copy.up and self.random.random() < 0.6:
                self.register(copy)

    def connect(self) -> None:
        """Who has no link makes one; others do so at times, too."""
        for copy in self.copies.values():
            linked = copy.node in self.links and self.links[copy.node].run == copy.run
            if copy.up and copy.node in self.mastership.mirrors and self.random.random() < (0.1 if linked else 0.8):
                self.link(copy)

    def link(self, copy: Copy) -> None:
        connection = HAConnection(node_id=copy.node, start_id=copy.run, copy=self.log, settings=HA, now=self.now)
        epochs = [EpochEntry(*EPOCH)] if copy.held else []
        connection.follow(FollowRequest(log_id="x", epochs=epochs, begin=0, end=copy.held, confirmed=0), self.now)
        connection.pull(Pull(log_offset=copy.held), self.now)
        self.mastership.join(connection)
        self.links[copy.node] = Link(copy.run, connection)
        self.told(self.mastership.proven(connection))

    def copy_bytes(self) -> None:
        """A mirror takes some of what it lacks, and says so."""
        for link in list(self.links.values()):
            copy = self.copies[link.connection.node_id]
            if copy.up and copy.run == link.run and self.random.random() < 0.6:
                link.connection.pump(self.now)
                room = (link.connection.write_half.next_transfer - copy.held) // BATCH
                copy.held += BATCH * self.random.randint(0, room)
                link.acks.append(copy.held)

    def deliver_acks(self) -> None:
        for link in list(self.links.values()):
            while link.acks and self.random.random() < 0.7:
                ack = ack_of(link.acks.pop(0), epoch=1)
                self.told(self.mastership.acked(link.connection, ack, self.now))

    def cut(self) -> None:
        if self.links:
            link = self.links.pop(self.random.choice(sorted(self.links)))
            self.mastership.leave(link.connection)

    def publish(self) -> None:
        try:
            self.mastership.admit()
        except InSyncReplicasNotEnough:
            return
        self.log.end += BATCH
        self.publishes += 1
        self.told(self.mastership.appended(self.log.end))
        self.waits[self.publishes] = self.log.end
        self.told(
            self.mastership.wait(
                self.publishes, end=self.log.end, copies=ALL_MEMBERS, durability=Durability.MEMORY, deadline=1e9
            )
        )

    def told(self, answers: list[Answer]) -> None:
        for answer in answers:
            assert answer.status is PutStatus.PUT_OK
            self.answered += 1
            self.check_held(self.waits.pop(answer.token))  # type: ignore[call-overload]

    # --- steps: what the master asks for ---

    def wish(self) -> None:
        self.now += self.random.choice([0.0, 0.05, 0.5])
        wish = self.mastership.wish(self.now)
        if wish is None:
            return
        assert self.asked is None, "two wishes are under way"
        seen = Seen(1, wish.version)
        command: Command
        if isinstance(wish, Grow):
            command = InSyncGrown(log_id="x", seen=seen, holder=Holder(wish.node, wish.start_id))
        else:
            command = InSyncShrunk(log_id="x", seen=seen, nodes=wish.nodes)
        self.asked = Asked(wish, command)
        self.wire.append(command)

    def catch_up(self) -> None:
        """Its time comes with that of the wishes; at times it is looked at late."""
        before = self.mastership.awaited
        self.told(self.mastership.catch_up(self.now))
        if self.mastership.awaited != before:
            self.awaited += before is None
            self.in_vain += before is not None

    def arrive(self) -> None:
        """Any command of all that are on their way; it may come once more."""
        if not self.wire:
            return
        command = self.wire[self.random.randrange(len(self.wire))]
        if self.random.random() < 0.8:
            self.wire.remove(command)
        refused = self.apply(command)
        if isinstance(command, InSyncGrown) and not refused:
            self.grown += 1
            self.late += self.asked is None or self.asked.command is not command
        if self.asked is not None and command is self.asked.command and self.asked.outcome is None:
            self.asked.outcome = refused, len(self.history) - 1

    def drop(self) -> None:
        if self.wire:
            self.wire.pop(self.random.randrange(len(self.wire)))

    def learn(self) -> None:
        """Some of what has happened in the cluster."""
        self.known = self.random.randint(self.known, len(self.history) - 1)
        self.told(self.mastership.learned(self.view()))

    def read_outcome(self) -> None:
        if self.asked is None or self.asked.outcome is None:
            return
        refused, index = self.asked.outcome
        asked, self.asked = self.asked, None
        self.known = max(self.known, index)
        self.told(self.mastership.learned(self.view()))
        self.told(self.mastership.wish_ended(asked.wish, refused=refused))

    def give_up(self) -> None:
        if self.asked is not None:
            asked, self.asked = self.asked, None
            self.mastership.wish_unknown(asked.wish)

    # --- steps: the coordinator ---

    def coordinate(self) -> None:
        gone = [node for node, copy in self.copies.items() if not copy.up]
        if leaving := self.facts.may_leave([*gone, *self.facts.marked]):
            self.wire.append(InSyncShrunk(log_id="x", seen=self.facts.seen, nodes=leaving))

    def replace(self) -> None:
        node, seen = self.random.choice(MIRRORS), self.facts.seen
        change = ReplicaRemoved if node in self.facts.replicas else ReplicaAdded
        self.apply(change(log_id="x", seen=seen, node=node))

    # --- what holds ---

    def check(self) -> None:
        confirmed = self.mastership.progress.confirmed
        assert confirmed >= self.confirmed, f"seed {self.seed}: the confirmed offset went back"
        self.confirmed = self.log.confirmed = confirmed
        self.check_held(confirmed)

    def check_held(self, log_offset: int) -> None:
        """Whoever the cluster could promote holds it. A run that died with its memory cannot be: it does not answer,
        and the next one is marked."""
        for node in self.facts.promotable:
            copy = self.copies.get(node)
            held = self.log.end if copy is None else copy.held
            assert held >= log_offset or (copy is not None and copy.lost), (
                f"seed {self.seed}: {node} may be promoted and holds {held}, {log_offset} is confirmed"
            )

    def run(self) -> Histories:
        steps: dict[Callable[[], None], float] = {
            self.publish: 20,
            self.copy_bytes: 25,
            self.deliver_acks: 25,
            self.wish: 20,
            self.catch_up: 20,
            self.arrive: 12,
            self.learn: 8,
            self.read_outcome: 10,
            self.give_up: 4,
            self.drop: 2,
            self.connect: 8,
            self.cut: 2,
            self.kill: 2,
            self.start: 4,
            self.coordinate: 3,
            self.replace: 0.5,
        }
        for step in self.random.choices(list(steps), list(steps.values()), k=STEPS):
            step()
            self.check()
        return self

    def heal(self) -> None:
        """Nothing fails any more: every copy comes in, and everything is confirmed and answered."""
        for copy in self.copies.values():
            if not copy.up:
                self.register(copy)
            if copy.node in self.facts.replicas:
                self.known = len(self.history) - 1
                self.told(self.mastership.learned(self.view()))
                self.link(copy)
        look = (self.wish, self.catch_up)
        for _ in range(200):
            for step in (self.copy_bytes, self.deliver_acks, *look, self.arrive, self.learn, self.read_outcome):
                step()
                self.check()
            if self.asked is not None and self.asked.command not in self.wire and self.asked.outcome is None:
                self.give_up()
            if self.facts.promotable == self.facts.replicas and self.confirmed == self.log.end:
                assert not self.waits
                return
        raise AssertionError(f"seed {self.seed}: stuck with {self.facts}, {self.confirmed} of {self.log.end}")


def run_all(make: type[Mastership] = Mastership) -> list[Histories]:
    return [Histories(seed, make).run() for seed in range(RUNS)]


def test_whoever_may_be_promoted_holds_what_was_confirmed() -> None:
    """Run many histories: every confirmed offset, and every publish answered at `all`, is held by whoever the cluster
    could promote at that time; when nothing fails any more everything is confirmed."""
    runs = run_all()
    for run in runs:
        run.heal()
    assert sum(run.late for run in runs) > 20, "hardly any growth was applied late"
    assert sum(run.grown for run in runs) > 200
    assert sum(run.answered for run in runs) > 1000
    assert sum(run.awaited for run in runs) > 100
    assert sum(run.in_vain for run in runs) > 20, "hardly any copy was dropped again"


# --- Bugs that it must find -----------------------------------------------------------------------------------------


class GrowsAlone(Mastership):
    """Asks the cluster first, and waits for the copy once it is in."""

    def wish(self, now: float) -> Wish | None:
        wish = super().wish(now)
        if isinstance(wish, Grow):
            self._wishes.proposed = None
            self.progress.settle(self._in_sync)
            self._recount()
        return wish


class DropsTheUnknown(Mastership):
    """Takes an outcome that it did not hear for a refusal."""

    def wish_unknown(self, wish: Wish) -> None:
        self.wish_ended(wish, refused=True)


class DropsWhoIsProposed(Mastership):
    """Takes a copy whose link has ended for one that is only awaited, though a command names it already."""

    def catch_up(self, now: float) -> list[Answer]:
        proposed = self._wishes.proposed
        if proposed is not None and proposed.node not in self.links:
            self._wishes.proposed = None
            self.progress.settle(self._in_sync)
            self._recount()
        return super().catch_up(now)


class LowersTheBar(Mastership):
    """Lets a copy in that has not all that is confirmed."""

    def _ready(self) -> list[Candidate]:
        return [Candidate(node, link.start_id) for node, link in self.links.items() if self._wanted_in(node)]


@pytest.mark.parametrize("bug", [GrowsAlone, DropsTheUnknown, DropsWhoIsProposed, LowersTheBar])
def test_a_master_that_breaks_the_rule_is_found(bug: type[Mastership]) -> None:
    """Put each bug in: some history of those above fails by it."""
    with pytest.raises(AssertionError, match="may be promoted and holds"):
        run_all(bug)
