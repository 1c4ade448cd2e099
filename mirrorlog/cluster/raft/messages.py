"""What members say to each other, and the entries that they say it about.

Every message names its sender, its receiver and the sender's term. They may be lost, doubled, late and out of order:
nothing in the core relies on a connection. Terms and indexes count from 1; 0 is before the first.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from mirrorlog.cluster.raft.members import Members


class EntryKind(IntEnum):
    """COMMAND is the state machine's; EMPTY begins a term; MEMBERS is a configuration."""

    COMMAND = 0
    EMPTY = 1
    MEMBERS = 2


class Entry(msgspec.Struct, frozen=True, array_like=True):
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


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of all messages."""

    sender: int
    to: int
    term: int


class AskVote(Message, frozen=True):
    """`last_index`, `last_term`: of the candidate's log. `trial`: would you? Nobody's term changes by that, and `term`
    is the one that the candidate would have. `handed_over`: the leader wants it so, and is no reason to refuse."""

    last_index: int
    last_term: int
    trial: bool = False
    handed_over: bool = False


class Vote(Message, frozen=True):
    """To an AskVote. `term`: that of the question when granted, else the voter's own."""

    granted: bool
    trial: bool = False


class Append(Message, frozen=True):
    """The leader's entries behind `before_index`, whose term is `before_term`; none of them is a heartbeat.

    `commit`: up to here the leader has committed. `round`: comes back in the answer, and proves that the leader still
    leads.
    """

    before_index: int
    before_term: int
    commit: int
    round: int
    entries: tuple[Entry, ...] = ()


class Appended(Message, frozen=True):
    """To an Append: whether the entry before was there. If it was, both logs are the same up to `matched`.

    If not, `hint_index` and `hint_term` are the last entry that may be the same in both.
    """

    ok: bool
    round: int
    matched: int = 0
    hint_index: int = 0
    hint_term: int = 0


class SnapshotPart(Message, frozen=True):
    """A piece of a snapshot's `state`, from byte `at` on; `size`: of all of it."""

    index: int
    index_term: int
    members: Members
    at: int
    size: int
    part: bytes


class PartTaken(Message, frozen=True):
    """To a SnapshotPart: the piece at byte `at` is wanted next; at `size` all is there, and Appended follows."""

    index: int
    at: int


class TakeOver(Message, frozen=True):
    """The leader hands over: stand for election at once."""


AnyMessage = AskVote | Vote | Append | Appended | SnapshotPart | PartTaken | TakeOver
