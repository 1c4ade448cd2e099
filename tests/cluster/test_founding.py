"""A node with a blank disk founds its cluster at its first start, and never one that was there before."""

from __future__ import annotations

import random
from uuid import UUID

import pytest

from mirrorlog.cluster.membership.discovery import FoundCluster, InCluster, Looks, NoAnswer, Wait
from mirrorlog.cluster.membership.founding import OTHERS_S, ComeBack, Founders, Told, Untouched, founding_key
from mirrorlog.config import ClusterSettings, Member

ONE, OTHER = UUID(int=1), UUID(int=2)
SILENT = NoAnswer("refused")


def cluster(*names: str, cluster_id: UUID = ONE, port: int = 1) -> ClusterSettings:
    return ClusterSettings(
        id=cluster_id, members=tuple(Member(id=name, replication=f"{name}:{port}") for name in names)
    )


THREE = cluster("a", "b", "c")


def looks(node: str, settings: ClusterSettings = THREE) -> Looks:
    return Looks(f"run of {node}", node, f"{node}:1", founding_key(settings))


def untouched(node: str, member: int = 1, voters: tuple[int, ...] = (1, 2, 3)) -> Untouched:
    """As it answers the first member, a."""
    return Untouched(node, member, voters)


def there(node: str, cluster_id: UUID = ONE) -> InCluster:
    return InCluster(cluster_id, "x", node)


def of_a(settings: ClusterSettings = THREE) -> Founders:
    return Founders(looks("a", settings), settings)


def decided(founders: Founders, b: Told, c: Told, now: float = 0.0) -> object:
    return founders.decide({"b": ("b:1", b), "c": ("c:1", c)}, now)


def test_all_who_look_found_at_once() -> None:
    """Nobody waits at a first start of all; by one round in which everybody looks, and one in which one has founded."""
    assert decided(of_a(), looks("b"), looks("c")) == FoundCluster()
    assert decided(of_a(), untouched("b"), looks("c")) == FoundCluster()


def test_a_majority_waits_a_moment_for_the_others() -> None:
    """And founds without them; by two of three, round after round."""
    founders = of_a()
    assert isinstance(decided(founders, looks("b"), SILENT, now=7.0), Wait)
    assert isinstance(decided(founders, looks("b"), SILENT, now=7.0 + OTHERS_S / 2), Wait)
    assert decided(founders, looks("b"), SILENT, now=7.0 + OTHERS_S) == FoundCluster()


def test_one_alone_waits_and_says_for_whom() -> None:
    """By hours without an answer."""
    founders = of_a()
    for now in (0.0, 1.0, 10_000.0):
        decision = decided(founders, SILENT, NoAnswer("no answer"), now)
        assert isinstance(decision, Wait)
        assert decision.reason == (
            "1 of the members a, b, c are known to be in no cluster yet, 2 are needed to found it; b: refused; "
            "c: no answer"
        )


def test_who_was_seen_without_anything_need_not_be_there_any_more() -> None:
    """It may be between two ports; by two who are seen in different rounds."""
    founders = of_a()
    assert isinstance(decided(founders, looks("b"), SILENT), Wait)
    assert decided(founders, SILENT, untouched("c")) == FoundCluster()


@pytest.mark.parametrize("others", [(there("b"), looks("c")), (looks("b"), there("c")), (there("b"), SILENT)])
def test_a_cluster_that_is_there_is_not_founded_again(others: tuple[Told, Told]) -> None:
    """Whatever the others say, and whatever was seen before; by one who is in it."""
    founders = of_a()
    decided(founders, looks("b"), SILENT)
    decision = decided(founders, *others, now=100.0)
    assert isinstance(decision, ComeBack)
    assert decision.seeds == tuple(f"{each.node}:1" for each in others if isinstance(each, InCluster))


def test_a_majority_of_blank_disks_is_told_of() -> None:
    """The one that is left decides nothing any more; by two blank disks of three, and of two, and by one of three."""
    decision = decided(of_a(), looks("b"), there("c"))
    assert isinstance(decision, ComeBack)
    assert "recover the cluster on c with mqtool recover-cluster" in decision.hint
    alone = of_a(cluster("a", "b")).decide({"b": ("b:1", there("b"))}, 0.0)
    assert isinstance(alone, ComeBack)
    assert "recover-cluster" in alone.hint
    decision = decided(of_a(), SILENT, there("c"))
    assert isinstance(decision, ComeBack)
    assert not decision.hint


def test_a_cluster_of_others_is_not_founded_again() -> None:
    """All of the configuration have left it; by a node that joined it and dials, and by ones of the configuration,
    which may have founded just now."""
    founders, answers = of_a(), {"b": ("b:1", looks("b")), "c": ("c:1", looks("c"))}
    decision = founders.decide(answers, 0.0, {"d", "b"})
    assert isinstance(decision, Wait)
    assert decision.reason.startswith("d of this cluster dial")
    assert founders.decide(answers, 0.0, {"b"}) == FoundCluster()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (looks("b", cluster("a", "b")), "give all nodes the same"),
        (looks("b", cluster("a", "c", "b")), "give all nodes the same"),
        (looks("b", cluster("a", "b", "c", cluster_id=OTHER)), "give all nodes the same"),
        (looks("b", cluster("a", "b", "c", port=2)), "give all nodes the same"),
        (Looks("run", "b", "b:1", ("a:1", "b:1", "c:1")), "give all nodes the same"),
        (looks("z"), "node z answers at its address"),
        (untouched("b", member=2), "founded with other members"),
        (untouched("b", voters=(1, 2)), "founded with other members"),
        (there("b", OTHER), str(OTHER)),
        (there("z"), "node z answers at its address"),
    ],
)
def test_who_founds_something_else_does_not_count(answer: Told, reason: str) -> None:
    """Two that were given different members must not both found; by one answer of each kind, and by a long wait."""
    founders = of_a()
    for now in (0.0, 100.0):
        decision = decided(founders, answer, SILENT, now)
        assert isinstance(decision, Wait)
        assert reason in decision.reason


class World:
    """Nodes that look, found, and decide things with a majority of those that have founded."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = [f"n{number}" for number in range(1, self.chance.choice([2, 3, 3, 4, 5]) + 1)]
        self.settings = cluster(*self.names)
        self.searches: dict[str, Founders] = {}
        self.founded: set[str] = set()
        self.deciding: set[str] = set()
        self.voted: set[str] = set()
        """On any of its disks."""

    def replace_disk(self, node: str) -> None:
        """Unless it is the last one that holds what was decided."""
        if not self.deciding or self.deciding - {node}:
            self.founded.discard(node)
            self.deciding.discard(node)
            self.searches.pop(node, None)

    def look(self, node: str, now: float) -> object:
        if node not in self.searches:
            self.searches[node] = Founders(looks(node, self.settings), self.settings)
        answers = {each: (f"{each}:1", self._told(node, each)) for each in self.names if each != node}
        return self.searches[node].decide(answers, now)

    def decide(self) -> None:
        if len(self.founded) > len(self.names) // 2:
            self.deciding |= self.founded
            self.voted |= self.founded

    def _told(self, asker: str, node: str) -> Told:
        if node in self.deciding:
            return there(node)
        if self.chance.random() < 0.3:
            return SILENT
        if node in self.founded:
            return Untouched(node, self.names.index(asker) + 1, tuple(range(1, len(self.names) + 1)))
        return looks(node, self.settings) if node in self.searches else SILENT


@pytest.mark.parametrize("seed", range(200))
def test_no_member_votes_on_two_disks(seed: int) -> None:
    """As long as whoever holds what was decided is there when it is asked for. By random worlds of blank disks that are
    put in, nodes that start, look, found and decide, and connections that fail among those who hold nothing."""
    world = World(seed)
    for now in range(200):
        node = world.chance.choice(world.names)
        if world.chance.random() < 0.03:
            world.replace_disk(node)
        elif node not in world.founded and world.look(node, now) == FoundCluster():
            assert node not in world.voted, f"seed {seed}: {node} has voted on a disk that is gone"
            world.founded.add(node)
        if world.deciding or world.chance.random() < 0.5:
            world.decide()
