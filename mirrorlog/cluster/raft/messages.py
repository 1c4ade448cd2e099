"""The members of a Raft cluster, what they say to each other, and what the core wants done. Pure.

A configuration of members is an entry of the log like any other and holds from the moment it is appended (Ongaro's
dissertation, chapter 4): one change at a time, so that two majorities always share a member.

Every message names its sender, its receiver and the sender's term. They may be lost, doubled, late and out of order:
nothing in the core relies on a connection. Terms and indexes count from 1; 0 is before the first. What is to be done
comes as one bundle (`Effects`), its fields in the order in which they are due.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import msgspec

from mirrorlog.errors import BadRequest


class Members(msgspec.Struct, frozen=True, array_like=True):
    """Member ids, in order. A learner gets everything and counts for nothing."""

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Voters and learners."""
        return (*self.voters, *self.learners)

    @property
    def majority(self) -> int:
        """How many voters that is."""
        return len(self.voters) // 2 + 1

    def agree(self, those: Collection[int]) -> bool:
        """Whether `those` hold a majority of the voters."""
        return sum(voter in those for voter in self.voters) >= self.majority

    def agreed_index(self, held: Mapping[int, int]) -> int:
        """The highest index that a majority of the voters holds. `held`: by member; who is absent holds nothing."""
        indexes = sorted((held.get(voter, 0) for voter in self.voters), reverse=True)
        return indexes[self.majority - 1] if indexes else 0

    # --- one step away ---

    def one_step_to(self, after: Members) -> bool:
        """Whether any majority of the one and any of the other share a member, and `after` can be at all."""
        can_be = after.voters and len(set(after.all)) == len(after.all)
        return bool(can_be) and len(set(self.voters) ^ set(after.voters)) <= 1

    def with_learner(self, member: int) -> Self:
        """Raises BadRequest when it is there already."""
        if member in self.all:
            raise BadRequest(f"member {member} is in the cluster already")
        return type(self)(self.voters, tuple(sorted((*self.learners, member))))

    def with_voter(self, member: int) -> Self:
        """A learner may vote from now on. Raises BadRequest when it is none."""
        if member not in self.learners:
            raise BadRequest(f"member {member} is no learner; only one that has learned what there is may vote")
        return type(self)(tuple(sorted((*self.voters, member))), _without(self.learners, member))

    def without(self, member: int) -> Self:
        """Raises BadRequest when it is not there, or is the last voter."""
        if member not in self.all:
            raise BadRequest(f"member {member} is not in the cluster")
        if self.voters == (member,):
            raise BadRequest(f"member {member} is the last voter; a cluster without one can decide nothing any more")
        return type(self)(_without(self.voters, member), _without(self.learners, member))


def _without(members: tuple[int, ...], member: int) -> tuple[int, ...]:
    return tuple(each for each in members if each != member)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Members)


def encode_members(members: Members) -> bytes:
    """As an entry has it."""
    return _encoder.encode(members)


def decode_members(data: bytes) -> Members:
    """The other way. Raises msgspec.DecodeError."""
    return _decoder.decode(data)


class EntryKind(IntEnum):
    """COMMAND is the state machine's; EMPTY begins a term; MEMBERS is a configuration."""

    COMMAND = 0
    EMPTY = 1
    MEMBERS = 2


class RaftEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the log. `data`: the command, or the encoded Members."""

    index: int
    term: int
    kind: EntryKind
    data: bytes = b""


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What must be on disk before anything that follows from it is said. `vote`: in this term, 0 for none."""

    term: int = 0
    vote: int = 0


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state machine after entry `index`, whose term is `term`; `members`: as of then."""

    index: int
    term: int
    members: Members
    state: bytes


class RaftMessage(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""

    sender: int
    to: int
    term: int


class AskVote(RaftMessage, frozen=True):
    """`last_index`, `last_term`: of the candidate's log. `trial`: would you? Nobody's term changes by that, and `term`
    is the one that the candidate would have. `handed_over`: the leader wants it so, and is no reason to refuse."""

    last_index: int
    last_term: int
    trial: bool = False
    handed_over: bool = False


class Vote(RaftMessage, frozen=True):
    """To an AskVote. `term`: that of the question when granted, else the voter's own."""

    granted: bool
    trial: bool = False


class Append(RaftMessage, frozen=True):
    """The leader's entries behind `before_index`, whose term is `before_term`; none of them is a heartbeat.

    `commit`: up to here the leader has committed. `round`: comes back in the answer, and proves that the leader still
    leads.
    """

    before_index: int
    before_term: int
    commit: int
    round: int
    entries: tuple[RaftEntry, ...] = ()


class Appended(RaftMessage, frozen=True):
    """To an Append: whether the entry before was there. If it was, both logs are the same up to `matched`.

    If not, `hint_index` and `hint_term` are the last entry that may be the same in both.
    """

    ok: bool
    round: int
    matched: int = 0
    hint_index: int = 0
    hint_term: int = 0


class SnapshotPart(RaftMessage, frozen=True):
    """A piece of a snapshot's `state`, from byte `at` on; `size`: of all of it."""

    index: int
    index_term: int
    members: Members
    at: int
    size: int
    part: bytes


class PartTaken(RaftMessage, frozen=True):
    """To a SnapshotPart: the piece at byte `at` is wanted next; at `size` all is there, and Appended follows."""

    index: int
    at: int


class TakeOver(RaftMessage, frozen=True):
    """The leader hands over: stand for election at once."""


AnyMessage = AskVote | Vote | Append | Appended | SnapshotPart | PartTaken | TakeOver


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A read that was asked for may be answered once entry `index` is applied; None: this member leads no more."""

    token: Hashable
    index: int | None


@dataclass(frozen=True, slots=True)
class Stored:
    """What a member finds on its disk when it starts; `entries` follow the snapshot without a gap."""

    hard_state: HardState
    snapshot: Snapshot
    entries: tuple[RaftEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Effects:
    """Do the first three and sync them to disk, all or in this order; then the rest; then say `Raft.done`.

    `hard_state`: replaces the one before. `snapshot`: from the leader; it replaces log and state. `entries`: each
    replaces the one of its index and all behind it. `messages`: may leave now, not before. `committed`: to be applied,
    in order. `reads`: may be answered, or never will be.
    """

    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    entries: tuple[RaftEntry, ...] = ()
    messages: tuple[AnyMessage, ...] = ()
    committed: tuple[RaftEntry, ...] = ()
    reads: tuple[ReadReady, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.must_sync or self.messages or self.committed or self.reads)

    @property
    def must_sync(self) -> bool:
        """Whether something is to be stored before the messages may leave."""
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)
