"""Stories of the Raft core as scripts with their whole trace, in `traces/`; a change of behaviour shows as a diff.

A line `> …` is a step, what stands below it is what happened. `MIRRORLOG_REGENERATE=1` writes the files anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from mirrorlog.cluster.raft.messages import Members
from mirrorlog.errors import MirrorlogError
from tests.cluster.raft_by_hand import ByHand

TRACES: Final = sorted((Path(__file__).parent / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_story_goes_as_it_is_written(path: Path) -> None:
    """By playing its steps and comparing all that the members store, send and apply."""
    written = path.read_text()
    played = play(written)
    if os.environ.get("MIRRORLOG_REGENERATE"):
        path.write_text(played)
        return
    assert played == written


def test_there_are_stories() -> None:
    """So that a moved directory does not pass as a green run."""
    assert len(TRACES) >= 10


def play(text: str) -> str:
    """The script with its trace."""
    lines: list[str] = []
    cluster = ByHand()
    for line in text.splitlines():
        if line.startswith("> "):
            lines += ["", line]
            cluster.trace.clear()
            try:
                step(cluster, *line[2:].split())
            except MirrorlogError as error:
                cluster.trace.append(f"refused: {error}")
            lines += cluster.trace
        elif line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


def step(cluster: ByHand, what: str, *words: str) -> None:
    """One line of a script."""
    STEPS[what](cluster, *(int(word) if word.isdecimal() else word for word in words))


def found(cluster: ByHand, *numbers: int) -> None:
    for number in numbers:
        cluster.add(number, Members(numbers))


def led(cluster: ByHand, *numbers: int) -> None:
    """As founded, and the first one is elected; of that only the outcome is noted."""
    found(cluster, *numbers)
    cluster.elect(numbers[0])
    cluster.elapse(0.05, numbers[0])
    cluster.deliver()
    cluster.trace[:] = [f"{numbers[0]} leads term {cluster[numbers[0]].term}"]


def applied(cluster: ByHand) -> None:
    for number, hand in sorted(cluster.members.items()):
        cluster.trace.append(f"{number} has applied {hand.applied_index}: {b' '.join(hand.applied).decode()}".rstrip())


STEPS: Final[dict[str, Callable[..., object]]] = {
    "found": found,
    "led": led,
    "blank": lambda cluster, member: cluster.add(member),
    "elapse": lambda cluster, seconds, *whose: cluster.elapse(float(seconds), *whose),
    "deliver": lambda cluster: cluster.deliver(),
    "propose": lambda cluster, leader, command: cluster.propose(leader, command),
    "learner": lambda cluster, leader, member: cluster.change(leader, lambda members: members.with_learner(member)),
    "voter": lambda cluster, leader, member: cluster.change(leader, lambda members: members.with_voter(member)),
    "remove": lambda cluster, leader, member: cluster.change(leader, lambda members: members.without(member)),
    "read": lambda cluster, leader, token: cluster.read(leader, token),
    "hand-over": lambda cluster, leader, to: cluster.hand_over(leader, to),
    "lost": lambda cluster, gone, *by: cluster.lost(gone, *by),
    "cut": lambda cluster, member: cluster.cut({member}, set(cluster.members) - {member}),
    "heal": lambda cluster: cluster.heal(),
    "kill": lambda cluster, member: cluster.kill(member),
    "start": lambda cluster, member: cluster.start(member),
    "compact": lambda cluster, member, kept: cluster.members[member].compact(kept),
    "applied": applied,
}
