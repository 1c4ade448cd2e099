"""A cluster of Raft members in virtual time: real cores, real stores on simulated disks, a network that fails.

The state machine is the list of the commands, so that members can be held against each other command by command. A
member works as its driver will: one bundle at a time, stored, sent, applied, done; storing takes time, and a crash may
come in the middle of it.

`sim.raft_checks` looks on from outside. What a client was told is kept by the world, not by the members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from mirrorlog.cluster.raft.core import Raft
from mirrorlog.cluster.raft.leadership import RaftLimits
from mirrorlog.cluster.raft.messages import (
    AnyMessage,
    Effects,
    EntryKind,
    HardState,
    Members,
    RaftEntry,
    Snapshot,
    Stored,
)
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.errors import LogCorrupt, MirrorlogError
from sim.clock import Clock
from sim.disk import Moment, SimulatedFiles
from sim.network import Network
from sim.raft_checks import RaftChecks

_DIRECTORY: Final = Path("/node/raft")
_TICK_S: Final = 0.01
_SNAPSHOT_EACH: Final = 40
"""Commands between two snapshots: few, so that members that were away need one."""
_KEPT: Final = 10
_LIMITS: Final = RaftLimits(append_bytes_max=20, part_bytes_max=600)
"""Small, so that what is large in life goes in several pieces here too."""

MakeRaft = Callable[..., Raft]
"""`Raft`, or one with a seeded bug."""


class _Crashed(Exception):
    """The machine stopped in the middle of something."""


class Member:
    """One member and the machine that it runs on."""

    def __init__(self, world: RaftWorld, number: int, files: SimulatedFiles, founding: Snapshot) -> None:
        self.number = number
        self.up = False
        self.paused = False
        self.damaged = False
        self.files = files
        self.raft: Raft | None = None
        self.applied: list[RaftEntry] = []
        self._world = world
        self._founding = founding
        self._store: RaftStore | None = None
        self._life = 0
        self._storing: Effects | None = None
        self._inbox: list[AnyMessage] = []

    # --- life ---

    def start(self) -> None:
        """From what the disk has; a disk without a member is given one, as a node that joins is."""
        try:
            found = RaftStore.open(self.files, _DIRECTORY)
        except LogCorrupt:
            self.damaged = True
            return
        if found is None:
            self._store = RaftStore.create(self.files, _DIRECTORY, own=self.number, snapshot=self._founding)
            stored = Stored(HardState(), self._founding)
        else:
            self._store, stored = found
        assert self._store.own == self.number
        world = self._world
        self.raft = world.make_raft(self.number, stored, chance=world.random, now=world.clock.now, limits=_LIMITS)
        self._restore(stored.snapshot)
        self._life += 1
        self._storing = None
        self.up, self.paused = True, False
        self._inbox.clear()
        self._tick(self._life)
        self.wake()

    def kill(self, *, power: bool) -> None:
        """The process ends, with `power` the machine too; perhaps in the middle of a bundle."""
        if not self.up:
            return
        if self._storing is not None and self._world.random.random() < 0.7:
            self._store_until_crash(self._storing)
        self.up = self.paused = False
        self.raft, self._store = None, None
        self.files = self.files.after_power_loss() if power else self.files.after_kill()

    def _store_until_crash(self, effects: Effects) -> None:
        left = self._world.random.randrange(8)

        def crash(_: Moment) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Crashed

        assert self._store is not None
        self.files.observer = crash
        try:
            self._store.save(effects)
        except _Crashed:
            self._world.seen["crash in a bundle"] += 1
        finally:
            self.files.observer = None

    def resume(self) -> None:
        """A process that was stopped goes on, with everything that came meanwhile."""
        self.paused = False
        inbox, self._inbox = self._inbox, []
        for message in inbox:
            self.receive(message)
        self.wake()

    # --- working ---

    def receive(self, message: AnyMessage) -> None:
        if self.paused:
            self._inbox.append(message)
        elif self.up:
            assert self.raft is not None
            self.raft.step(message, self._world.clock.now)
            self.wake()

    def _tick(self, life: int) -> None:
        if not self.up or life != self._life:
            return
        if not self.paused:
            assert self.raft is not None
            self.raft.tick(self._world.clock.now)
            self.wake()
        self._world.clock.after(_TICK_S, lambda: self._tick(life))

    def wake(self) -> None:
        """Take the next bundle, unless one is being stored."""
        if not self.up or self.paused or self._storing is not None:
            return
        assert self.raft is not None
        self._world.checks.looked_at(self)
        effects = self.raft.take(self._world.clock.now)
        if effects.nothing:
            return
        life = self._life
        self._storing = effects
        if self._world.hasty:
            self._send(effects)
        delay = self._world.disk_s() if effects.must_sync else 0.0
        self._world.clock.after(delay, lambda: self._stored(life, effects))

    def _stored(self, life: int, effects: Effects) -> None:
        if not self.up or life != self._life:
            return
        if self.paused:  # a stopped process finds the disk's answer when it goes on
            self._world.clock.after(_TICK_S, lambda: self._stored(life, effects))
            return
        assert self.raft is not None
        assert self._store is not None
        self._store.save(effects)
        self._world.checks.writes(effects.entries)
        if not self._world.hasty:
            self._send(effects)
        if effects.snapshot is not None:
            self._restore(effects.snapshot)
            self._world.seen["snapshot installed"] += 1
        for entry in effects.committed:
            self._world.checks.applies(self, entry)
            self.applied.append(entry)
            self._world.applied(self, entry)
        for read in effects.reads:
            self._world.read_answered(self, read.token, read.index)
        self._storing = None
        self.raft.done()
        self._snapshot_if_due()
        self.wake()

    def _send(self, effects: Effects) -> None:
        for message in effects.messages:
            self._world.checks.says(self, self._world.members.get(message.to), message)
            self._world.network.send(self.number, message.to, message)

    def _restore(self, snapshot: Snapshot) -> None:
        self.applied = _entries_of(snapshot)
        self._world.checks.restores(self, snapshot, self.applied)

    def _snapshot_if_due(self) -> None:
        assert self.raft is not None
        assert self._store is not None
        log = self.raft.log
        if len(self.applied) - log.snapshot.index < _SNAPSHOT_EACH:
            return
        last = self.applied[-1]
        snapshot = Snapshot(last.index, last.term, log.members_at(last.index), _state_of(self.applied))
        self._store.replace(snapshot, self.raft.saved_entries(snapshot.index))
        self.raft.compact(snapshot, keep=_KEPT)
        self._world.seen["snapshot taken"] += 1


class RaftWorld:
    """`founders` members from the start. One seed decides everything. `hasty`: a seeded bug of the drivers, which send
    each bundle's messages before it is stored."""

    def __init__(self, seed: int | str, *, founders: int = 3, make_raft: MakeRaft = Raft, hasty: bool = False) -> None:
        self.random = Random(seed)
        self.clock = Clock()
        self.hasty = hasty
        self.seen: Counter[str] = Counter()
        self.make_raft = make_raft
        self.network = Network(self.clock, self.random, self._deliver)
        self.slow_disk_s = 0.0
        voters = tuple(range(1, founders + 1))
        founding = Snapshot(0, 0, Members(voters), _state_of([]))
        self.checks = RaftChecks(founding.members)
        self.members = {number: self._member(number, founding) for number in voters}
        self._commands = 0
        # Proposals that a client waits for, by (index, term); what it asked to read, with what it knew to be committed.
        self._proposed: dict[tuple[int, int], bytes] = {}
        self._reads: dict[int, int] = {}
        self.confirmed: dict[bytes, int] = {}
        for member in self.members.values():
            member.start()

    def _member(self, number: int, founding: Snapshot) -> Member:
        files = SimulatedFiles(_DIRECTORY.parent, seed=self.random.getrandbits(64))
        return Member(self, number, files, founding)

    def disk_s(self) -> float:
        """How long the next sync takes."""
        return self.random.uniform(0.0002, 0.003) + self.slow_disk_s * self.random.random()

    def _deliver(self, sender: int, to: int, message: AnyMessage) -> None:
        if to in self.members:
            self.members[to].receive(message)

    # --- a client ---

    @property
    def leaders(self) -> list[Member]:
        """Who thinks so."""
        return [each for each in self.members.values() if each.up and not each.paused and _leads(each)]

    def propose(self) -> bool:
        """A new command, by whoever takes it; whether somebody did."""
        before = self._commands
        for member in self.leaders:
            assert member.raft is not None
            command = b"%d" % self._commands
            try:
                index = member.raft.propose(command)
            except MirrorlogError:
                continue
            self._commands += 1
            self._proposed[index, member.raft.term] = command
            member.wake()
        return self._commands > before

    def read(self) -> None:
        """Whoever says that it leads is asked for all that was confirmed until now."""
        for member in self.leaders:
            assert member.raft is not None
            token = len(self._reads)
            self._reads[token] = max(self.confirmed.values(), default=0)
            try:
                member.raft.read(token)
            except MirrorlogError:
                continue
            member.wake()

    def read_answered(self, member: Member, token: object, index: int | None) -> None:
        if index is not None:
            assert isinstance(token, int)
            self.seen["read"] += 1
            self.checks.read(member, index=index, wanted=self._reads[token])

    def applied(self, member: Member, entry: RaftEntry) -> None:
        """The member that proposed it answers its client when it applies it."""
        command = self._proposed.get((entry.index, entry.term))
        if command is not None and entry.kind == EntryKind.COMMAND and _leads(member):
            self.checks.confirms(entry, command)
            self.confirmed[command] = entry.index

    # --- an operator ---

    def add(self) -> bool:
        """A new machine joins as a learner, if somebody takes it; whether somebody did."""
        number = max(self.members) + 1
        if not self._change(lambda members: members.with_learner(number)):
            return False
        self.members[number] = self._member(number, Snapshot(0, 0, Members(()), _state_of([])))
        self.members[number].start()
        self.seen["member added"] += 1
        return True

    def promote(self) -> None:
        """A learner that has caught up may vote."""
        for leader in self.leaders:
            assert leader.raft is not None
            for learner in leader.raft.members.learners:
                if leader.raft.matched(learner) >= leader.raft.commit and self._change(
                    lambda members, learner=learner: members.with_voter(learner)  # type: ignore[misc]
                ):
                    self.seen["member promoted"] += 1
                    return

    def remove(self) -> None:
        """Some member leaves, the leader perhaps."""
        for leader in self.leaders:
            assert leader.raft is not None
            members = leader.raft.members
            gone = self.random.choice(members.all)
            if self._change(lambda members, gone=gone: members.without(gone)):  # type: ignore[misc]
                self.seen["member removed"] += 1
            return

    def _change(self, change: Callable[[Members], Members]) -> bool:
        for leader in self.leaders:
            assert leader.raft is not None
            try:
                leader.raft.propose_members(change(leader.raft.members))
            except MirrorlogError:
                continue
            leader.wake()
            return True
        return False

    def hand_over(self) -> None:
        for leader in self.leaders:
            assert leader.raft is not None
            others = [each for each in leader.raft.members.voters if each != leader.number]
            if others:
                leader.raft.hand_over(self.random.choice(others), self.clock.now)
                leader.wake()
                self.seen["hand over"] += 1

    def tell_lost(self, gone: int) -> None:
        """Everybody's connection to it was reset and is refused."""
        for member in self.members.values():
            if member.up and not member.paused and member.number != gone:
                assert member.raft is not None
                member.raft.lost(gone, self.clock.now)

    # --- the end ---

    def heal(self) -> None:
        """Everything that can run runs, and everybody reaches everybody."""
        self.network.heal()
        self.slow_disk_s = 0.0
        for member in self.members.values():
            if member.paused:
                member.resume()
            elif not member.up and not member.damaged:
                member.start()

    @property
    def agreed(self) -> bool:
        """Whether one leader is settled and every member of its configuration has applied all that it has."""
        settled = [each for each in self.leaders if each.raft is not None and each.raft.settled]
        if len(settled) != 1 or settled[0].raft is None:
            return False
        leader = settled[0]
        members = [self.members[number] for number in settled[0].raft.members.all if not self.members[number].damaged]
        return all(each.up and len(each.applied) == len(leader.applied) for each in members)


def _leads(member: Member) -> bool:
    return member.raft is not None and member.raft.leader == member.number


def _state_of(applied: list[RaftEntry]) -> bytes:
    return msgspec.msgpack.encode(applied)


def _entries_of(snapshot: Snapshot) -> list[RaftEntry]:
    return msgspec.msgpack.decode(snapshot.state, type=list[RaftEntry])
