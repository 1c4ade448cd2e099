"""A few Raft members in a dict, whose messages are delivered by hand: no randomness, and time goes on only when told.

Every bundle is done at once: stored, sent, applied. What happens is noted line by line in `trace`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from mirrorlog.cluster.raft.core import Raft, Role
from mirrorlog.cluster.raft.leadership import RaftLimits
from mirrorlog.cluster.raft.messages import (
    AnyMessage,
    Append,
    Appended,
    AskVote,
    Effects,
    EntryKind,
    HardState,
    Members,
    PartTaken,
    RaftEntry,
    Snapshot,
    SnapshotPart,
    Stored,
    TakeOver,
    Vote,
    decode_members,
)

NOBODY: Final = Members(())
LIMITS: Final = RaftLimits(append_bytes_max=100, part_bytes_max=8)


class Certain:
    """Chance without any: whoever waits for a leader waits for one and a half election times."""

    def random(self) -> float:
        return 0.5


class Unacked:
    """One member and its disk. `applied`: the commands, in order."""

    def __init__(self, number: int, stored: Stored, *, now: float, make_raft: Callable[..., Raft] = Raft) -> None:
        self.stored = stored
        self.applied = stored.snapshot.state.split()
        self.applied_index = stored.snapshot.index
        self.raft = make_raft(number, stored, chance=Certain(), now=now, limits=LIMITS)
        self.said: tuple[Any, ...] = ()

    def store(self, effects: Effects) -> None:
        """As a store would: snapshot and entries replace what they cover."""
        snapshot = effects.snapshot or self.stored.snapshot
        entries = () if effects.snapshot else self.stored.entries
        if effects.entries:
            kept = tuple(entry for entry in entries if entry.index < effects.entries[0].index)
            entries = (*kept, *effects.entries)
        self.stored = Stored(effects.hard_state or self.stored.hard_state, snapshot, entries)
        if effects.snapshot:
            self.applied, self.applied_index = effects.snapshot.state.split(), effects.snapshot.index

    def compact(self, keep: int) -> None:
        """A snapshot of what is applied takes the place of the log."""
        index, log = self.applied_index, self.raft.log
        snapshot = Snapshot(index, log.term_of(index) or 0, log.members_at(index), b" ".join(self.applied))
        self.stored = Stored(self.stored.hard_state, snapshot, self.raft.saved_entries(index))
        self.raft.compact(snapshot, keep=keep)


class ByHand:
    """`members`: who is up; `now`: seconds; `flying`: messages that were sent and neither delivered nor dropped."""

    def __init__(self, *voters: int, make_raft: Callable[..., Raft] = Raft) -> None:
        self.now = 0.0
        self.trace: list[str] = []
        self.flying: deque[AnyMessage] = deque()
        self.reads: list[tuple[str, int | None]] = []
        self.members: dict[int, Unacked] = {}
        self._make_raft = make_raft
        self._down: dict[int, Stored] = {}
        self._cut: set[tuple[int, int]] = set()
        for number in voters:
            self.add(number, Members(voters))

    def __getitem__(self, number: int) -> Raft:
        return self.members[number].raft

    # --- machines ---

    def add(self, number: int, members: Members = NOBODY) -> None:
        """A member with a blank disk; `members`: those of its founding."""
        self._begin(number, Stored(HardState(), Snapshot(0, 0, members, b"")))

    def kill(self, number: int) -> None:
        self._down[number] = self.members.pop(number).stored

    def start(self, number: int) -> None:
        """From what its disk has."""
        self._begin(number, self._down.pop(number))

    def _begin(self, number: int, stored: Stored) -> None:
        self.members[number] = Unacked(number, stored, now=self.now, make_raft=self._make_raft)
        self.work(number)

    def cut(self, those: set[int], others: set[int]) -> None:
        """Nothing gets through between the two, in either direction."""
        self._cut |= {pair for one in those for other in others for pair in ((one, other), (other, one))}

    def heal(self) -> None:
        self._cut.clear()

    # --- what happens ---

    def elapse(self, seconds: float, *whose: int) -> None:
        """Time goes on for all, and those (or all) notice."""
        self.now = round(self.now + seconds, 6)
        for number in whose or tuple(self.members):
            self[number].tick(self.now)
            self.work(number)

    def elect(self, number: int) -> None:
        """It waits long enough, and all messages arrive."""
        self.elapse(0.4, number)
        self.deliver()

    def propose(self, number: int, command: str) -> int:
        index = self[number].propose(command.encode())
        self.work(number)
        return index

    def change(self, number: int, change: Callable[[Members], Members]) -> None:
        self[number].propose_members(change(self[number].members))
        self.work(number)

    def read(self, number: int, token: str) -> None:
        self[number].read(token)
        self.work(number)

    def hand_over(self, number: int, to: int) -> None:
        self[number].hand_over(to, self.now)
        self.work(number)

    def lost(self, gone: int, *by: int) -> None:
        for number in by:
            self[number].lost(gone, self.now)
            self.work(number)

    def deliver(self, only: Callable[[AnyMessage], bool] = lambda _: True, *, rounds: int = 10_000) -> None:
        """Every message that is on its way, and those that follow from it; others stay where they are."""
        while rounds and (message := next((each for each in self.flying if only(each)), None)) is not None:
            self.flying.remove(message)
            self.arrive(message)
            rounds -= 1
        assert rounds, "messages without end"

    def arrive(self, message: AnyMessage) -> None:
        """Once, or once more."""
        if message.to in self.members:
            self[message.to].step(message, self.now)
            self.work(message.to)

    # --- a member at work ---

    def work(self, number: int) -> None:
        """Bundle by bundle, until there is nothing to do."""
        hand = self.members[number]
        self._note_role(number)
        for bundles in count():
            assert bundles < 1000, f"{number} never comes to rest"
            if (effects := hand.raft.take(self.now)).nothing:
                return
            hand.store(effects)
            self.trace += [f"{number} {line}" for line in _stores(effects)]
            for message in effects.messages:
                self._send(message)
            for entry in effects.committed:
                self._apply(number, entry)
            for read in effects.reads:
                self.reads.append((str(read.token), read.index))
                self.trace.append(f"{number} answers read {read.token}: {read.index or 'no'}")
            hand.raft.done()
            self._note_role(number)

    def _send(self, message: AnyMessage) -> None:
        gone = (message.sender, message.to) in self._cut or message.to not in self.members
        self.trace.append(f"{message.sender}>{message.to} {told(message)}{' (lost)' if gone else ''}")
        if not gone:
            self.flying.append(message)

    def _apply(self, number: int, entry: RaftEntry) -> None:
        hand = self.members[number]
        assert entry.index == hand.applied_index + 1, f"{number} applies {entry.index} after {hand.applied_index}"
        hand.applied_index = entry.index
        if entry.kind == EntryKind.COMMAND:
            hand.applied.append(entry.data)
        self.trace.append(f"{number} applies {entry.index}")

    def _note_role(self, number: int) -> None:
        hand = self.members[number]
        raft = hand.raft
        said = (raft.role, raft.term, raft.leader)
        if said != hand.said:
            hand.said = said
            led = f" of {raft.leader}" if raft.role is Role.FOLLOWER and raft.leader else ""
            self.trace.append(f"{number} is {raft.role.value}{led} in term {raft.term}")


def _stores(effects: Effects) -> Iterator[str]:
    if effects.hard_state is not None:
        yield f"stores term {effects.hard_state.term}, vote {effects.hard_state.vote or 'none'}"
    if effects.snapshot is not None:
        yield f"stores the snapshot of {effects.snapshot.index}"
    if effects.entries:
        yield f"stores {' '.join(map(_entry, effects.entries))}"


def _entry(entry: RaftEntry) -> str:
    """`7.2`: index and term."""
    what = entry.data.decode() if entry.kind == EntryKind.COMMAND else ""
    if entry.kind == EntryKind.MEMBERS:
        members = decode_members(entry.data)
        what = f"[{_numbers(members.voters)}|{_numbers(members.learners)}]"
    return f"{entry.index}.{entry.term}({what})"


def _numbers(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))


def told(message: AnyMessage) -> str:
    """A message on one line."""
    return f"term {message.term}: {_what(message)}"


def _what(message: AnyMessage) -> str:  # noqa: PLR0911
    match message:
        case AskVote():
            how = "would you vote" if message.trial else "vote, as the leader wants" if message.handed_over else "vote"
            return f"{how}? last {message.last_index}.{message.last_term}"
        case Vote():
            return f"{'I would' if message.trial else 'vote'}: {'yes' if message.granted else 'no'}"
        case Append():
            what = f"append {' '.join(map(_entry, message.entries))}" if message.entries else "heartbeat"
            behind = f"behind {message.before_index}.{message.before_term}"
            return f"{what} {behind}, committed {message.commit}, round {message.round}"
        case Appended():
            outcome = f"have {message.matched}" if message.ok else f"no, try {message.hint_index}.{message.hint_term}"
            return f"{outcome}, round {message.round}"
        case SnapshotPart():
            return f"snapshot of {message.index}, byte {message.at} of {message.size}"
        case PartTaken():
            return f"snapshot of {message.index}, go on at {message.at}"
        case TakeOver():
            return "take over"
