"""Which runs of other nodes are heard, and what a run's word is worth. Pure.

A node may have a run that the cluster does not know of yet, or two at once: an old one that is ending, or two processes
on copies of one disk. What is decided about a node is decided about the run that the cluster knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final

from mirrorlog.cluster.coordination.liveness import Life, Liveness
from mirrorlog.cluster.raft.messages import Entry, EntryKind
from mirrorlog.cluster.state.commands import NodeStarted, decode_command
from mirrorlog.errors import NotLeader

RIVAL_HEARD_S: Final = 1.0
"""A run that lives is heard ten times as often."""
RUNS_MAX: Final = 1_000
"""Of those that were heard; then the silent ones are forgotten."""


class Runs:
    """When each run of a node was heard last. `now` is in s of a clock that only goes forward."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], float] = {}

    def heard(self, node: str, start_id: str, now: float) -> None:
        """Something came from it."""
        if len(self._heard) >= RUNS_MAX and (node, start_id) not in self._heard:
            self._heard = {run: at for run, at in self._heard.items() if now - at < RIVAL_HEARD_S}
        self._heard[node, start_id] = now

    def life_of(self, node: str, start_id: str, liveness: Liveness, now: float) -> Life:
        """Of this run. One that is not heard while another run of its node is has ended."""
        life = liveness.life(node)
        if life is not Life.UP or liveness.start_id(node) == start_id:
            return life
        return Life.UNKNOWN if self._is_heard(node, start_id, now) else Life.DOWN

    def check_rival(self, started: NodeStarted, own: tuple[str, str], now: float) -> None:
        """A disk that was set back begins anew, and the run that the cluster knows is over then: not while that one is
        heard, for then this is a second process with its name. `own`: node and start id of who is asked. Raises
        NotLeader."""
        seen = (started.node, started.seen)
        if started.seen and (seen == own or self._is_heard(*seen, now)):
            raise NotLeader(
                f"run {started.seen} of node {started.node} is there, so run {started.start_id} has its name and no "
                "disk of its own; stop it, or give it another id",
                rival=started.seen,
            )

    def _is_heard(self, node: str, start_id: str, now: float) -> bool:
        return now - self._heard.get((node, start_id), -inf) < RIVAL_HEARD_S


def unknown_to(
    node: str, start_id: str, *, runs: tuple[str, ...] | None, registered: str, undecided: Iterable[Entry]
) -> str:
    """The run that the cluster knows of `node` and the disk of run `start_id` does not; empty when it knows it.

    Such a disk was set back, or is blank: it may have forgotten a vote, and entries that it answered for. `runs`: those
    that it knows, None when it did not say; `registered`: by what is decided; `undecided`: the entries behind that, by
    which a later run may have registered.
    """
    if runs is None or start_id == registered:
        return ""
    newest = registered
    for entry in undecided:
        if entry.kind is EntryKind.COMMAND:
            command = decode_command(entry.data)
            if isinstance(command, NodeStarted) and command.node == node:
                newest = command.start_id
    return "" if newest in ("", start_id, *runs) else newest
