"""One schedule of a Raft cluster: faults at random for a while, then peace, in which it must agree again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final

from mirrorlog.cluster.raft.core import Raft
from sim.network import Weather
from sim.raft_world import MakeRaft, Member, RaftWorld

PEACE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Kind:
    """What a storm is made of: `count` faults over `seconds`, drawn by weight from `faults`, which names methods of
    `_Storm`; `proposals` times a second `burst` commands. `hunted`: most new leaders are stranded soon."""

    faults: Mapping[str, int]
    seconds: float
    count: int
    proposals: int = 20
    burst: int = 1
    hunted: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "anything": Kind(
        {
            "kill": 2, "start": 2, "pause": 1, "resume": 1, "cut": 1, "cut_one_way": 1, "heal": 2, "weather": 1,
            "slow_disk": 1, "add": 1, "promote": 2, "remove": 1, "hand_over": 1,
        },
        seconds=12, count=30,
    ),
    "falling leaders": Kind(
        {"start": 2, "heal": 1, "delay": 2, "weather": 1, "kill": 1, "slow_disk": 1}, seconds=6, count=20, hunted=True
    ),
    "changing members": Kind(
        {"add": 3, "promote": 4, "remove": 2, "split": 4, "heal": 3, "start": 1, "kill": 1, "hand_over": 1},
        seconds=6, count=40,
    ),
    "late messages": Kind(
        {"delay": 3, "lengthen": 4, "slow_disk": 1, "kill": 2, "start": 3, "heal": 1, "cut_one_way": 1},
        seconds=5, count=25, burst=8,
    ),
}  # fmt: skip


def run(seed: int | str, *, kind: str | None = None, make_raft: MakeRaft = Raft, hasty: bool = False) -> Counter[str]:
    """What happened, counted; `kind` of storm: the seed's, if none is named. Raises AssertionError: what must never be,
    or no agreement in peace."""
    plan = Random(f"plan {seed}")
    drawn = plan.choice(list(KINDS))
    return _run(seed, plan, KINDS[kind or drawn], make_raft=make_raft, hasty=hasty)


def _run(seed: int | str, plan: Random, kind: Kind, *, make_raft: MakeRaft, hasty: bool) -> Counter[str]:
    world = RaftWorld(seed, founders=plan.choice([1, 2, 3, 3, 3, 5]), make_raft=make_raft, hasty=hasty)
    storm = _Storm(world, plan, kind)
    for _ in range(kind.count):
        world.clock.after(plan.random() * kind.seconds, storm.fault)
    for _ in range(int(kind.seconds * kind.proposals)):
        world.clock.after(plan.random() * kind.seconds, storm.propose)
        if plan.random() < 0.3:
            world.clock.after(plan.random() * kind.seconds, world.read)
    world.clock.run_until(kind.seconds)
    _peace(world)
    return world.seen + world.network.seen + Counter(confirmed=len(world.confirmed))


def _peace(world: RaftWorld) -> None:
    """All agree, without a word from a client; a new member learns what there is; a command is confirmed."""
    world.heal()
    _wait(world, lambda: world.agreed, "no agreement after the storm")
    _wait(world, world.add, "nobody lets a new member in after the storm")
    _wait(world, lambda: world.agreed, "the new member learns nothing")
    before = len(world.confirmed)
    _wait(world, world.propose, "nobody takes a command after the storm")
    _wait(world, lambda: len(world.confirmed) > before, "nothing is confirmed after the storm")


def _wait(world: RaftWorld, condition: Callable[[], bool], otherwise: str) -> None:
    assert world.clock.run_while(lambda: not condition(), until=world.clock.now + PEACE_S), otherwise


class _Storm:
    """Faults, each drawn when it comes."""

    def __init__(self, world: RaftWorld, plan: Random, kind: Kind) -> None:
        self._world = world
        self._plan = plan
        self._kind = kind
        self._names = [name for name, weight in kind.faults.items() for _ in range(weight)]
        self._hunted_terms: set[int] = set()
        if kind.hunted:
            self._hunt()

    def fault(self) -> None:
        getattr(self, f"_{self._plan.choice(self._names)}")()

    def propose(self) -> None:
        for _ in range(self._kind.burst):
            self._world.propose()

    def _any(self) -> Member:
        return self._plan.choice(list(self._world.members.values()))

    def _kill(self) -> None:
        leaders = self._world.leaders
        self._fell(self._plan.choice(leaders) if leaders and self._plan.random() < 0.5 else self._any())

    def _fell(self, member: Member) -> None:
        if member.up:
            power = self._plan.random() < 0.5
            member.kill(power=power)
            self._world.seen["power loss" if power else "kill"] += 1
            if self._plan.random() < 0.5:
                self._world.tell_lost(member.number)
                self._world.seen["told of a death"] += 1

    def _start(self) -> None:
        for member in self._world.members.values():
            if not member.up and not member.damaged:
                member.start()
                self._world.seen["start"] += 1

    def _pause(self) -> None:
        member = self._any()
        if member.up and not member.paused:
            member.paused = True
            self._world.seen["pause"] += 1

    def _resume(self) -> None:
        for member in self._world.members.values():
            if member.paused:
                member.resume()

    def _cut(self) -> None:
        numbers = list(self._world.members)
        some = set(self._plan.sample(numbers, self._plan.randrange(len(numbers) + 1)))
        self._world.network.cut_off(some, set(numbers) - some)
        self._world.seen["partition"] += 1

    def _cut_one_way(self) -> None:
        self._world.network.cut(self._any().number, self._any().number)
        self._world.seen["one-way cut"] += 1

    def _heal(self) -> None:
        self._world.network.heal()

    def _weather(self) -> None:
        plan = self._plan
        self._world.network.weather = Weather(
            delay_s=(0.0002, plan.choice([0.002, 0.02, 0.2])),
            lost=plan.choice([0, 0.05, 0.3]),
            doubled=plan.choice([0, 0.2]),
            late=plan.choice([0, 0.1]),
        )
        self._world.seen["bad weather"] += 1

    def _slow_disk(self) -> None:
        self._world.slow_disk_s = self._plan.choice([0.0, 0.05, 0.3])
        self._world.seen["slow disk"] += 1

    def _delay(self) -> None:
        late_s = self._plan.choice([0.02, 0.1, 0.3])
        self._world.network.weather = Weather(lost=0.02, doubled=0.2, late=self._plan.choice([0.1, 0.4]), late_s=late_s)
        self._world.seen["late messages"] += 1

    def _lengthen(self) -> None:
        sender, to = self._any(), self._any()
        self._world.network.lengthen(sender.number, to.number, self._plan.choice([0.05, 0.2, 0.4]))
        self._world.seen["longer way"] += 1

    # --- against leaders ---

    def _hunt(self) -> None:
        """Looks for new leaders every few milliseconds; most of them are stranded soon."""
        for leader in self._world.leaders:
            assert leader.raft is not None
            if leader.raft.term not in self._hunted_terms:
                self._hunted_terms.add(leader.raft.term)
                if self._plan.random() < 0.7:
                    within_s = self._plan.choice([0.003, 0.03, 0.3])
                    self._world.clock.after(self._plan.random() * within_s, partial(self._strand, leader))
        if self._world.clock.now < self._kind.seconds:
            self._world.clock.after(0.004, self._hunt)

    def _strand(self, leader: Member) -> None:
        """It takes commands that nobody else sees, or only one, and falls; it comes back some time."""
        world, plan = self._world, self._plan
        others = [number for number in world.members if number != leader.number]
        spared = plan.sample(others, min(len(others), plan.randrange(2)))
        world.network.cut_off({leader.number}, set(others) - set(spared))
        for _ in range(plan.choice([0, 1, 10])):
            world.propose()
        world.clock.after(plan.random() * 0.03, lambda: self._fell(leader))
        for _ in range(plan.randrange(4)):
            world.clock.after(plan.random() * 0.12, lambda: self._blink(self._any()))
        world.clock.after(0.1 + plan.random() * 0.5, lambda: self._come_back(leader))
        world.seen["stranded leader"] += 1

    def _blink(self, member: Member) -> None:
        """In the middle of an election, if it hits it."""
        if member.up and not member.paused:
            member.kill(power=self._plan.random() < 0.5)
            member.start()
            self._world.seen["blink"] += 1

    def _come_back(self, member: Member) -> None:
        self._world.network.heal()
        if not member.up:
            member.start()

    # --- about members ---

    def _split(self) -> None:
        """A leader is left with the learners and a voter perhaps, and removes those that it does not reach."""
        world, plan = self._world, self._plan
        for leader in world.leaders:
            assert leader.raft is not None
            members = leader.raft.members
            voters = [each for each in members.voters if each != leader.number]
            side = {leader.number, *members.learners, *plan.sample(voters, min(len(voters), plan.randrange(2)))}
            world.network.cut_off(side, set(world.members) - side)
            world.tell_lost(leader.number)
            world.seen["split"] += 1
            for _ in range(plan.randrange(4)):
                world.remove()
            return

    def _add(self) -> None:
        self._world.add()

    def _promote(self) -> None:
        self._world.promote()

    def _remove(self) -> None:
        self._world.remove()

    def _hand_over(self) -> None:
        self._world.hand_over()
