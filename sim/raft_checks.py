"""What must never be, whatever happens to a Raft cluster. Raised as AssertionError, with the names of the paper.

The checks keep what they saw of all members, dead ones too, and take nobody's word for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirrorlog.cluster.raft.core import Role
from mirrorlog.cluster.raft.messages import (
    AnyMessage,
    Appended,
    AskVote,
    EntryKind,
    Members,
    RaftEntry,
    Snapshot,
    Vote,
    decode_members,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sim.raft_world import Member


class RaftChecks:
    """`founding`: the members from the start; `chosen`: the entry that was applied at each index, by whoever came
    first."""

    def __init__(self, founding: Members) -> None:
        self.chosen: dict[int, RaftEntry] = {}
        self._founding = founding
        self._newest = 0
        # The term of whoever applied it, as of then, the lowest: in this term or an earlier one it was committed.
        self._chosen_in: dict[int, int] = {}
        self._leaders: dict[int, int] = {}
        self._committed_by_others: dict[int, int] = {}
        self._votes: dict[tuple[int, int], int] = {}
        # What each member has said: the newest term, and up to where it holds the log of that term's leader.
        self._word: dict[int, tuple[int, int]] = {}
        self._written: dict[tuple[int, int], RaftEntry] = {}

    def looked_at(self, member: Member) -> None:
        """After every event: a member keeps its word; election safety, leader completeness, and its commit rule."""
        raft = member.raft
        if raft is None:
            return
        term, held = self._word.get(member.number, (0, 0))
        assert raft.term >= term, f"{member.number} is in term {raft.term}, it spoke in {term}"
        assert raft.term > term or raft.log.last_index >= held, (
            f"{member.number} holds {raft.log.last_index} entries, it answered for {held} in term {term}"
        )
        if raft.role is not Role.LEADER:
            return
        newest = self._newest
        first = newest - 20 if raft.term in self._leaders else 0  # a leader changes nothing of its log
        leader = self._leaders.setdefault(raft.term, member.number)
        assert leader == member.number, f"election safety: {leader} and {member.number} both lead term {raft.term}"
        found = self._committed_by_others.setdefault(raft.term, raft.commit)
        assert raft.commit == found or raft.log.term_of(raft.commit) == raft.term, (
            f"leader {member.number} of term {raft.term} commits entry {raft.commit} of an earlier one by counting"
        )
        for index in range(max(raft.log.base_index, first, 1), newest + 1):
            # Only what an earlier term, or this one, has committed: this leader may not know yet that it was replaced.
            assert self._chosen_in[index] > raft.term or raft.log.term_of(index) == self.chosen[index].term, (
                f"leader completeness: {member.number} leads term {raft.term} without entry {index}"
            )

    def writes(self, entries: Sequence[RaftEntry]) -> None:
        """Log matching: an index and a term name one entry, in all logs."""
        for entry in entries:
            other = self._written.setdefault((entry.index, entry.term), entry)
            assert other == entry, f"log matching: {entry} and {other}"

    def says(self, member: Member, to: Member | None, message: AnyMessage) -> None:
        """Noted as its word. One vote in a term, a candidate's own too; restarts do not change that. What it says it
        has of the leader's log it has."""
        self._note_word(member, message)
        if isinstance(message, Appended) and message.ok and to is not None:
            _compare(member, to, message)
        if isinstance(message, AskVote) and not message.trial:
            candidate = member.number
        elif isinstance(message, Vote) and message.granted and not message.trial:
            candidate = message.to
        else:
            return
        former = self._votes.setdefault((member.number, message.term), candidate)
        assert former == candidate, f"{member.number} votes for {former} and {candidate} in term {message.term}"

    def _note_word(self, member: Member, message: AnyMessage) -> None:
        if isinstance(message, AskVote | Vote) and message.trial:
            return  # in the name of a term that may never be
        term, held = self._word.get(member.number, (0, 0))
        if message.term > term:
            term, held = message.term, 0
        if message.term == term and isinstance(message, Appended) and message.ok:
            held = max(held, message.matched)
        self._word[member.number] = (term, held)

    def applies(self, member: Member, entry: RaftEntry) -> None:
        """State machine safety: the same entry at an index, everywhere, and none left out."""
        following = member.applied[-1].index + 1 if member.applied else 1
        assert entry.index == following, f"{member.number} applies entry {entry.index}, {following} is next"
        chosen = self.chosen.setdefault(entry.index, entry)
        assert chosen == entry, f"state machine safety: {member.number} applies {entry}, {chosen} was applied"
        assert member.raft is not None
        self._newest = max(self._newest, entry.index)
        self._chosen_in[entry.index] = min(member.raft.term, self._chosen_in.get(entry.index, member.raft.term))

    def restores(self, member: Member, snapshot: Snapshot, entries: Sequence[RaftEntry]) -> None:
        """A snapshot, from a leader or the disk, stands for exactly the entries that were chosen, and knows the members
        as of its end."""
        assert len(entries) == snapshot.index, f"{member.number} has a snapshot of {snapshot.index} with other entries"
        assert all(self.chosen.get(entry.index) == entry for entry in entries), f"{member.number} has another history"
        if not entries:
            return
        changes = [entry for entry in entries if entry.kind == EntryKind.MEMBERS]
        members = decode_members(changes[-1].data) if changes else self._founding
        assert snapshot.members == members, f"{member.number}: {snapshot.members} in a snapshot, {members} were chosen"

    def confirms(self, entry: RaftEntry, command: bytes) -> None:
        """A client is told that its command stands at this index."""
        assert entry.data == command, f"a client was told of {command!r}, and {entry.data!r} stands there"

    def read(self, member: Member, *, index: int, wanted: int) -> None:
        """A read includes all that was confirmed before it was asked for, and that is applied by now."""
        assert index >= wanted, f"stale read: {member.number} answers as of {index}, {wanted} was confirmed before"
        applied = member.applied[-1].index if member.applied else 0
        assert index <= applied, f"early read: {member.number} answers as of {index}, it has applied {applied}"


def _compare(member: Member, leader: Member, message: Appended) -> None:
    raft, leading = member.raft, leader.raft
    if raft is None or leading is None or {raft.term, leading.term} != {message.term}:
        return
    index = message.matched
    if index >= max(raft.log.base_index, leading.log.base_index):
        same = index <= leading.log.last_index and raft.log.term_of(index) == leading.log.term_of(index)
        assert same, f"{member.number} answers {leader.number} for entry {index}, which is not the same in both"
