"""How a node that has a list of seeds finds its cluster: it joins one, founds one, or waits. Pure.

It asks all its seeds at once, again and again. One that is in a cluster lets it in. When all look, one of them founds:
the seed whose own address comes first, once a majority of the seeds, itself included, has answered that it is in no
cluster and looks among the same seeds. So there is never more than one: of nodes that are given the same seeds one
alone may found, and those that are given others do not count for it. When that one is not there the others wait.

Rejected: the first to be heard founds (two of them do, when they do not see each other), a vote (a node that looks has
nothing on its disk that could remember one).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from mirrorlog.config import ClusterSettings
from mirrorlog.errors import WrongCluster

SEED_CHARS_MAX: Final = 300
"""Of an address: a host's name has 253 at most."""


@dataclass(frozen=True, slots=True)
class InCluster:
    """A seed's answer: it is in this one."""

    cluster_id: UUID
    name: str
    node: str


@dataclass(frozen=True, slots=True)
class Looks:
    """A seed's answer: it looks, too. `run`: of its process; `address`: its own, as it advertises it."""

    run: str
    node: str
    address: str
    seeds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer that could be used."""

    reason: str


Answer = InCluster | Looks | NoAnswer


@dataclass(frozen=True, slots=True)
class Join:
    """A cluster was found. `seeds`: who is in it."""

    cluster_id: UUID
    name: str
    seeds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundCluster:
    """This node is the one that founds."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask again. `reason`: for whom or what."""

    reason: str


Decision = Join | FoundCluster | Wait


def in_order(seeds: Iterable[str]) -> tuple[str, ...]:
    """Each once, and the same for everybody who is given the same."""
    return tuple(sorted(set(seeds)))


def clusters(answers: Mapping[str, Answer]) -> dict[UUID, Join]:
    """The clusters that seeds are in."""
    found: dict[UUID, Join] = {}
    for seed, answer in answers.items():
        if isinstance(answer, InCluster):
            known = found.get(answer.cluster_id, Join(answer.cluster_id, answer.name, ()))
            found[answer.cluster_id] = Join(known.cluster_id, known.name, (*known.seeds, seed))
    return found


def decide(own: Looks, wanted: ClusterSettings, answers: Mapping[str, Answer]) -> Decision:
    """What follows from one round of answers, by address asked. `wanted`: which cluster it is to be.

    Raises WrongCluster when seeds are in another one than `wanted`, or in several.
    """
    found = clusters(answers)
    meant = [each for each in found.values() if wanted.is_this(each.cluster_id, each.name)]
    if len(meant) == 1:
        return meant[0]
    if found:
        there = "; ".join(f"{each.name} ({each.cluster_id}) at {', '.join(each.seeds)}" for each in found.values())
        meaning = f"{wanted.name} ({wanted.id or 'any id'})" if wanted.named else "only one of them"
        raise WrongCluster(f"the seeds are in {there}; cluster.name, cluster.id and cluster.join mean {meaning}")
    return _found_or_wait(own, list(answers.values()))


def _found_or_wait(own: Looks, answers: Iterable[Answer]) -> Decision:
    seeds = own.seeds
    if not seeds:
        return Wait("nobody has answered who is in a cluster")
    looking = {each.run: each for each in answers if isinstance(each, Looks)} | {own.run: own}
    others = [each for each in looking.values() if each.seeds != seeds]
    agreed = {each.address for each in looking.values() if each.seeds == seeds} & set(seeds)
    first, needed = seeds[0], len(seeds) // 2 + 1
    if own.address != first:
        unknown = "" if own.address in seeds else f" (this node, at {own.address}, is none of them)"
        return Wait(f"the seed {first} comes first and founds the cluster{unknown}")
    if len(agreed) < needed:
        theirs = "; ".join(f"node {each.node} at {each.address} looks among {', '.join(each.seeds)}" for each in others)
        return Wait(
            f"{len(agreed)} of the seeds {', '.join(seeds)} have answered that they are in no cluster, {needed} are "
            f"needed to found one{f'; {theirs}: give all nodes the same cluster.join' if theirs else ''}"
        )
    return FoundCluster()
