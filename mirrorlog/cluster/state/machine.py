"""The state machine behind Raft: entries in, the cluster's state and the outcomes of proposals out. Pure.

Whoever proposed a command waits for its entry by (index, term): what comes back at that index with another term is
somebody else's, and the command is lost for good. Whether a command that got no answer was applied shows in the state
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mirrorlog import versions
from mirrorlog.cluster.raft.messages import Entry, EntryKind, Snapshot
from mirrorlog.cluster.state.commands import AnyCommand, decode_command
from mirrorlog.cluster.state.state import ClusterState, Outcome, applied, decode_state, encode_state

Done = Callable[[Outcome | None], None]
"""Called with what came of a proposal; None: it was never applied, and never will be."""


@dataclass(frozen=True, slots=True)
class Step:
    """One entry that was applied. `command`: None where the entry is not the state machine's."""

    entry: Entry
    command: AnyCommand | None
    before: ClusterState
    after: ClusterState
    outcome: Outcome


class Machine:
    """`state`: after entry `index`, of term `term`. What this software cannot follow, because the cluster's version is
    above it, raises UnsupportedVersion before it changes anything."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.state = decode_state(snapshot.state)
        self.index, self.term = snapshot.index, snapshot.term
        self._waiting: dict[int, tuple[int, Done]] = {}

    def wait(self, index: int, term: int, done: Done) -> None:
        """Tell `done` what comes of the entry that was proposed there."""
        self._waiting[index] = term, done

    def apply(self, entries: Iterable[Entry]) -> list[Step]:
        """The next entries, each exactly once. Raises UnsupportedVersion."""
        return [self._apply(entry) for entry in entries]

    def restore(self, snapshot: Snapshot) -> None:
        """Another's state, further on. What waited here may have been applied there: nobody can say any more."""
        self.state = decode_state(snapshot.state)
        self.index, self.term = snapshot.index, snapshot.term
        self.give_up()

    def give_up(self) -> None:
        """Whoever waits is told that he will hear nothing."""
        waiting, self._waiting = self._waiting, {}
        for _, done in waiting.values():
            done(None)

    def snapshot_state(self) -> bytes:
        """For a snapshot as of `index`."""
        return encode_state(self.state)

    def _apply(self, entry: Entry) -> Step:
        assert entry.index == self.index + 1, f"entry {entry.index} after {self.index}"
        before, outcome, command = self.state, Outcome(entry.index), None
        if entry.kind == EntryKind.COMMAND:
            command = decode_command(entry.data)
            after, outcome = applied(before, entry.index, command)
            versions.check_supported(after.cluster_version)
            self.state = after
        self.index, self.term = entry.index, entry.term
        if entry.index in self._waiting:
            term, done = self._waiting.pop(entry.index)
            done(outcome if term == entry.term else None)
        return Step(entry, command, before, self.state, outcome)
