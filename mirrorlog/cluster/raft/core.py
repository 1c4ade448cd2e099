"""Raft, as a pure core: `tick`, `step`, `propose` in, one bundle of effects out.

After Ongaro and Ousterhout (2014) and Ongaro's dissertation: elections with a trial vote first (9.6), a leader that
steps down when it does not hear a majority (6.2), reads by index (6.4), one change of members at a time and none before
an entry of the leader's own term is committed (4.1, and its correction of 2015), hand-over (3.10), learners.

The driver does each bundle in order and says `done`; events that come meanwhile are taken in and show in the next one.
A message never leaves before what it says is on disk, and the leader counts its own copy like any other: once it is
stored. `now` is seconds of a clock that only goes forward; no safety rests on it.

Rejected: pysyncobj and raft-rs bindings (`docs/decisions/0018-raft.md`); leases for reads, which would rest on clocks.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

from mirrorlog.cluster.raft.effects import Effects, ReadReady, Stored
from mirrorlog.cluster.raft.log import RaftLog
from mirrorlog.cluster.raft.members import Members, encode_members
from mirrorlog.cluster.raft.messages import (
    AnyMessage,
    Append,
    Appended,
    AskVote,
    Entry,
    EntryKind,
    HardState,
    PartTaken,
    Snapshot,
    SnapshotPart,
    TakeOver,
    Vote,
)
from mirrorlog.cluster.raft.progress import Progress, Stage
from mirrorlog.errors import BadRequest, NotLeader, Overloaded


class Chance(Protocol):
    """Where randomness comes from: `random.Random`, or a seed's."""

    def random(self) -> float:
        """0 up to 1, exclusive."""


@dataclass(frozen=True, slots=True)
class Timing:
    """`heartbeat_s`: between two of a leader's; `election_s`: without a leader for so long, up to twice that, a voter
    stands for election."""

    heartbeat_s: float = 0.05
    election_s: float = 0.25


@dataclass(frozen=True, slots=True)
class Limits:
    """`append_bytes_max`: of one Append's commands; a single command may be larger. `part_bytes_max`: of one piece of a
    snapshot. `uncommitted_bytes_max`: of commands that wait for a majority; beyond it a proposal is refused."""

    append_bytes_max: int = 256 * 1024
    part_bytes_max: int = 256 * 1024
    uncommitted_bytes_max: int = 16 * 1024 * 1024


class Role(Enum):
    FOLLOWER = "follower"
    TRIAL = "trial"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Raft:
    """One member. `leader`: as far as it knows, 0 for none."""

    def __init__(
        self,
        own: int,
        stored: Stored,
        *,
        chance: Chance,
        now: float,
        timing: Timing | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`own`: this member's id; it may be in no configuration yet."""
        self.own = own
        self.role = Role.FOLLOWER
        self.leader = 0
        self.log = RaftLog(stored.snapshot, stored.entries)
        self._term, self._vote = stored.hard_state.term, stored.hard_state.vote
        self._timing, self._limits = timing or Timing(), limits or Limits()
        self._chance = chance
        # When a leader was heard last: for as long as an election takes nobody else is voted for.
        self._heard_at = self._contact_at = -inf
        # Who is the only voter has nobody to wait for.
        self._election_at = now if self.log.members.voters == (own,) else self._patience(now)
        self._votes: dict[int, bool] = {}
        # The leader's part.
        self._progress: dict[int, Progress] = {}
        self._beat_at = inf
        self._round = 0
        # Reads that wait for a round, each with the round and the index as of when it began; and those before theirs.
        self._reads_in_round: list[tuple[int, int, Hashable]] = []
        self._reads_asked: list[Hashable] = []
        self._term_begin = 0
        self._hand_over_to, self._hand_over_until = 0, -inf
        # A snapshot that is coming in: the term of who sends it, its index, and its pieces so far.
        self._incoming: tuple[int, int, bytearray] | None = None
        # What the disk has, what was given to it, and what was given to be applied.
        self._stored_index = self._given_index = self.log.last_index
        self._applied = self.log.commit
        self._saved_state = stored.hard_state
        self._restored: Snapshot | None = None
        self._messages: list[AnyMessage] = []
        self._reads: list[ReadReady] = []

    # --- what it is ---

    @property
    def term(self) -> int:
        return self._term

    @property
    def members(self) -> Members:
        return self.log.members

    @property
    def commit(self) -> int:
        """Everything up to this index can never change."""
        return self.log.commit

    @property
    def settled(self) -> bool:
        """Whether this member leads and has committed an entry of its term: it knows all that ever was committed."""
        return self.role is Role.LEADER and self.log.commit >= self._term_begin

    def matched(self, member: int) -> int:
        """Leader: up to which index a member holds the log; 0 for one that is not in it."""
        if member == self.own:
            return self._stored_index
        return self._progress[member].matched if member in self._progress else 0

    def contact_at(self, now: float) -> float:
        """When this member heard a leader last, or, leading, a majority: of what was decided later it knows nothing.
        Where nothing is decided without it, that is now."""
        if self.own in self.members.voters and len(self.members.voters) <= 2:
            return now
        if self.role is not Role.LEADER:
            return self._contact_at
        heard = sorted((now if each == self.own else self.heard_at(each) for each in self.members.voters), reverse=True)
        return heard[len(heard) // 2]

    def heard_at(self, member: int) -> float:
        """Leader: when a member answered last; minus infinity for one that is not in."""
        return self._progress[member].heard_at if member in self._progress else -inf

    @property
    def next_deadline(self) -> float:
        """When `tick` has something to do, at the latest."""
        return self._beat_at if self.role is Role.LEADER else self._election_at

    # --- what comes in ---

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self.role is Role.LEADER:
            if now >= self._beat_at:
                self._beat(now)
        elif now >= self._election_at:
            self._stand(now, trial=True)

    def excuse(self, now: float) -> None:
        """It was this member that stood still, and perhaps its machine with all the others: whoever leads has a moment
        to be heard before this one stands for election."""
        if self.role is not Role.LEADER:
            self._election_at = max(self._election_at, now + 2 * self._timing.heartbeat_s)

    def step(self, message: AnyMessage, now: float) -> None:
        """A message came. One that makes no sense here is ignored: it is late, or from someone who left."""
        if message.to != self.own or not self._heed_term(message, now):
            return
        match message:
            case Append():
                self._append_from_leader(message, now)
            case Appended():
                self._appended(message, now)
            case AskVote():
                self._asked(message, now)
            case Vote():
                self._voted(message, now)
            case SnapshotPart():
                self._take_part(message, now)
            case PartTaken():
                self._part_taken(message, now)
            case TakeOver():
                self._told_to_take_over(message, now)

    def propose(self, command: bytes) -> int:
        """The index that it will have, if this member goes on leading; it counts once it comes back as committed with
        this member's present term. Raises NotLeader, or Overloaded."""
        self._check_takes()
        waiting = sum(len(entry.data) for entry in self.log.entries(self.log.commit + 1, self.log.last_index))
        if waiting + len(command) > self._limits.uncommitted_bytes_max:
            raise Overloaded(f"{waiting} bytes of changes wait for a majority", limit="uncommitted_bytes_max")
        return self._append(EntryKind.COMMAND, command)

    def propose_members(self, members: Members) -> int:
        """A configuration that is one step from the present one; as `propose`. Raises BadRequest for another one,
        Overloaded while another change is under way."""
        self._check_takes()
        if not self.settled or self.log.members_index > self.log.commit:
            raise Overloaded("another change of members is under way; ask again", limit="one change at a time")
        if not _one_step(self.members, members):
            raise BadRequest(f"members change one voter at a time: {self.members} cannot become {members}")
        return self._append(EntryKind.MEMBERS, encode_members(members))

    def read(self, token: Hashable) -> None:
        """Ask for the index up to which all that was committed before this call is included. Raises NotLeader."""
        self._check_leads()
        self._reads_asked.append(token)

    def hand_over(self, to: int, now: float) -> None:
        """Let a voter lead as soon as it holds everything; given up after the time that an election takes.

        Raises NotLeader, BadRequest for one that is no other voter.
        """
        self._check_leads()
        if to == self.own or to not in self.members.voters:
            raise BadRequest(f"member {to} is no other voter")
        self._hand_over_to, self._hand_over_until = to, now + self._timing.election_s
        self._go_on_handing_over()

    def lost(self, member: int, now: float) -> None:
        """A member's process is known to be gone: its connection was reset and it cannot be reached."""
        if member != self.leader or self.role is Role.LEADER:
            return
        self.leader, self._heard_at = 0, -inf
        # Not all at once: whoever comes first is voted for by the others.
        soon = now + self._chance.random() * self._timing.heartbeat_s
        self._election_at = min(self._election_at, soon)

    def compact(self, snapshot: Snapshot, *, keep: int = 1000) -> None:
        """The state as of an applied index stands for all before it. It is on disk already, or will be before the
        entries are removed there."""
        if snapshot.index > self.log.snapshot.index:
            self.log.compact(snapshot, keep=keep)

    def saved_entries(self, behind: int) -> tuple[Entry, ...]:
        """Those behind an index that bundles have given to the disk: what a store keeps behind a new snapshot of it.

        Only between `done` and `take`, and only for a snapshot newer than `log.snapshot`: else one that is coming in
        has replaced these entries here, and not yet on the disk.
        """
        assert behind >= self.log.snapshot.index, (behind, self.log.snapshot.index)
        return self.log.entries(behind + 1, self._given_index)

    # --- what goes out ---

    def take(self, now: float) -> Effects:
        """All that is to be done since the last one; `done` is due before the next."""
        if self.role is Role.LEADER:
            self._follow_members(now)
            self._begin_round()
            self._answer_reads()
            self._send_entries()
            if self._has_left:
                self._leave(now)
        hard_state = HardState(self._term, self._vote)
        effects = Effects(
            hard_state=None if hard_state == self._saved_state else hard_state,
            snapshot=self._restored,
            entries=self.log.entries(self._given_index + 1, self.log.last_index),
            messages=tuple(self._messages),
            committed=self.log.entries(self._applied + 1, self.log.commit),
            reads=tuple(self._reads),
        )
        self._saved_state = hard_state
        self._restored = None
        self._given_index = self.log.last_index
        self._applied = self.log.commit
        self._messages.clear()
        self._reads.clear()
        return effects

    def done(self) -> None:
        """What the last bundle wanted stored is on disk."""
        if self._stored_index != self._given_index:
            self._stored_index = self._given_index
            if self.role is Role.LEADER:
                self._commit_agreed()

    # --- terms ---

    def _heed_term(self, message: AnyMessage, now: float) -> bool:
        """Whether a message is to be handled, after what its term says by itself."""
        if message.term > self._term:
            if isinstance(message, AskVote):
                # With a leader that lives nobody needs another: who asks was cut off, or has left.
                if not message.handed_over and self._has_leader(now):
                    return False
                if message.trial:
                    return True
            if isinstance(message, Vote) and message.trial and message.granted:
                return True
            leads = isinstance(message, Append | SnapshotPart)
            self._follow(message.term, message.sender if leads else 0, now)
        elif message.term < self._term:
            if isinstance(message, Append | SnapshotPart):
                self._send(Appended(self.own, message.sender, self._term, ok=False, round=0))
            elif isinstance(message, AskVote) and message.trial:
                self._send(Vote(self.own, message.sender, self._term, granted=False, trial=True))
            return False
        return True

    def _follow(self, term: int, leader: int, now: float) -> None:
        if self.role is Role.LEADER:
            self._contact_at = max(self._contact_at, self.contact_at(now))
        if term > self._term:
            self._term, self._vote = term, 0
        self.role, self.leader = Role.FOLLOWER, leader
        self._votes.clear()
        self._fail_reads()
        self._progress.clear()
        self._hand_over_to = 0
        self._election_at = self._patience(now)

    def _has_leader(self, now: float) -> bool:
        if self.role is Role.LEADER:
            return True
        return self.leader != 0 and now - self._heard_at < self._timing.election_s

    def _patience(self, now: float) -> float:
        return now + self._timing.election_s * (1 + self._chance.random())

    # --- elections ---

    def _stand(self, now: float, *, trial: bool, handed_over: bool = False) -> None:
        """Ask all voters: whether they would, and when a majority would, whether they do."""
        self._election_at = self._patience(now)
        self.leader = 0
        if not self._may_stand:
            return
        self._votes = {}
        if trial:
            self.role, term = Role.TRIAL, self._term + 1
        else:
            self._term, self._vote = self._term + 1, self.own
            self.role, term = Role.CANDIDATE, self._term
        for voter in self.members.voters:
            if voter != self.own:
                self._send(
                    AskVote(
                        self.own,
                        voter,
                        term,
                        last_index=self.log.last_index,
                        last_term=self.log.last_term,
                        trial=trial,
                        handed_over=handed_over,
                    )
                )
        self._count(self.own, granted=True, now=now)

    @property
    def _may_stand(self) -> bool:
        """Voters, and one whose removal may not be committed: it may be the only one that can lead it to its end."""
        return self.own in self.members.voters or self.own in self.log.members_at(self.log.commit).voters

    def _asked(self, message: AskVote, now: float) -> None:
        free = message.term > self._term if message.trial else self._vote in (0, message.sender)
        led = message.term == self._term and self.leader != 0
        granted = free and not led and self.log.is_current(message.last_index, message.last_term)
        if granted and not message.trial:
            self._vote = message.sender
            self._election_at = self._patience(now)
        term = message.term if granted else self._term
        self._send(Vote(self.own, message.sender, term, granted=granted, trial=message.trial))

    def _voted(self, message: Vote, now: float) -> None:
        wanted = self._term + 1 if self.role is Role.TRIAL else self._term
        counts = self.role is (Role.TRIAL if message.trial else Role.CANDIDATE)
        if counts and (message.term == wanted or not message.granted):
            self._count(message.sender, granted=message.granted, now=now)

    def _count(self, voter: int, *, granted: bool, now: float) -> None:
        self._votes[voter] = granted
        if not self.members.agree([each for each, yes in self._votes.items() if yes]):
            return
        if self.role is Role.TRIAL:
            self._stand(now, trial=False)
        else:
            self._lead(now)

    def _lead(self, now: float) -> None:
        self.role, self.leader = Role.LEADER, self.own
        self._votes = {}
        self._term_begin = self._append(EntryKind.EMPTY, b"")
        self._follow_members(now)
        self._beat_at = now + self._timing.heartbeat_s

    def _told_to_take_over(self, message: TakeOver, now: float) -> None:
        if self.role is Role.FOLLOWER and message.sender == self.leader:
            self._stand(now, trial=False, handed_over=True)

    # --- the leader ---

    def _check_leads(self) -> None:
        if self.role is not Role.LEADER:
            raise NotLeader(
                f"member {self.own} does not lead; {f'{self.leader} does' if self.leader else 'nobody is known to'}",
                leader=self.leader,
            )

    def _check_takes(self) -> None:
        self._check_leads()
        if self._hand_over_to:
            raise NotLeader("leadership is being handed over; ask again", leader=self._hand_over_to)

    def _append(self, kind: EntryKind, data: bytes) -> int:
        entry = Entry(self.log.last_index + 1, self._term, kind, data)
        self.log.append(entry)
        return entry.index

    def _follow_members(self, now: float) -> None:
        """A Progress for each other member, and for nobody else. The newest entry is what a new one is tried with: what
        brought it here, the term's begin or the change of members, is an entry in any case."""
        others = [member for member in self.members.all if member != self.own]
        self._progress = {
            member: self._progress.get(member) or Progress(next_index=self.log.last_index, now=now) for member in others
        }

    def _beat(self, now: float) -> None:
        self._beat_at = now + self._timing.heartbeat_s
        if not self._hears_majority(now):
            self._follow(self._term, 0, now)
            return
        if now >= self._hand_over_until:
            self._hand_over_to = 0
        self._heartbeats()

    def _hears_majority(self, now: float) -> bool:
        since = now - 2 * self._timing.election_s
        return self.members.agree({self.own, *(each for each in self._progress if self.heard_at(each) >= since)})

    def _heartbeats(self) -> None:
        """A round of their own: by its answers what was sent before it and got lost is found."""
        self._round += 1
        for member, progress in self._progress.items():
            self._send_heartbeat(member, progress)

    def _send_heartbeat(self, member: int, progress: Progress) -> None:
        """Behind what the member is known to hold, where it cannot be refused."""
        before, before_term = progress.matched, self.log.term_of(progress.matched)
        if before_term is None:
            before, before_term = 0, 0
        commit = min(self.log.commit, before)
        self._send(Append(self.own, member, self._term, before, before_term, commit, self._round))

    def _send_entries(self) -> None:
        """What every member may be sent; and how far things are committed, where no entries tell it."""
        for member, progress in self._progress.items():
            while progress.may_send and self._send_next(member, progress):
                pass
            if progress.told < (commit := min(self.log.commit, progress.matched)):
                progress.told = commit
                self._send_heartbeat(member, progress)

    def _send_next(self, member: int, progress: Progress) -> bool:
        """Whether there were entries. If it needs some that are gone, a piece of the snapshot leaves instead."""
        before = progress.next - 1
        before_term = self.log.term_of(before)
        if progress.stage is Stage.SNAPSHOT or before_term is None:
            self._send_part(member, progress)
            return False
        if before == self.log.last_index:
            return False
        entries = self.log.entries_from(progress.next, self._limits.append_bytes_max)
        self._send(Append(self.own, member, self._term, before, before_term, self.log.commit, self._round, entries))
        progress.sent(entries[-1].index, self._round)
        progress.told = max(progress.told, min(self.log.commit, entries[-1].index))
        return True

    def _send_part(self, member: int, progress: Progress) -> None:
        snapshot = self.log.snapshot
        if progress.stage is not Stage.SNAPSHOT or progress.snapshot_index != snapshot.index:
            progress.send_snapshot(snapshot.index)
        part = snapshot.state[progress.part_at : progress.part_at + self._limits.part_bytes_max]
        self._send(
            SnapshotPart(
                self.own,
                member,
                self._term,
                index=snapshot.index,
                index_term=snapshot.term,
                members=snapshot.members,
                at=progress.part_at,
                size=len(snapshot.state),
                part=part,
            )
        )
        progress.part_sent(self._round)

    def _appended(self, message: Appended, now: float) -> None:
        progress = self._progress.get(message.sender)
        if progress is None:
            return
        if message.ok:
            progress.taken(message.matched)
            self._commit_agreed()
            self._go_on_handing_over()
        else:
            progress.refused(self.log.last_with_term_up_to(message.hint_index, message.hint_term) + 1)
        progress.answered(message.round, now)
        self._answer_reads()

    def _part_taken(self, message: PartTaken, now: float) -> None:
        progress = self._progress.get(message.sender)
        if progress is None:
            return
        progress.heard_at = now
        if progress.stage is Stage.SNAPSHOT and progress.snapshot_index == message.index:
            progress.wants_part(message.at)

    def _commit_agreed(self) -> None:
        """What a majority has on disk is committed, if it is of this term: older entries are by that, not before."""
        held = {member: progress.matched for member, progress in self._progress.items()} | {
            self.own: self._stored_index
        }
        agreed = self.members.agreed_index(held)
        if agreed <= self.log.commit or self.log.term_of(agreed) != self._term:
            return
        self.log.commit = agreed

    @property
    def _has_left(self) -> bool:
        """Whether this member has led its own removal to the end."""
        return self.own not in self.members.voters and self.log.members_index <= self.log.commit

    def _leave(self, now: float) -> None:
        """Somebody who holds everything leads at once, if there is one; else whoever waited longest."""
        heir = max(self.members.voters, key=self.matched)
        if self.matched(heir) == self.log.last_index:
            self._send(TakeOver(self.own, heir, self._term))
        self._follow(self._term, 0, now)

    def _go_on_handing_over(self) -> None:
        to = self._hand_over_to
        if to and self.matched(to) == self.log.last_index:
            self._send(TakeOver(self.own, to, self._term))

    # --- reads ---

    def _begin_round(self) -> None:
        """All reads that were asked for since the last bundle share one."""
        if not self._reads_asked or not self.settled:
            return
        self._heartbeats()
        self._reads_in_round += [(self._round, self.log.commit, token) for token in self._reads_asked]
        self._reads_asked.clear()

    def _answer_reads(self) -> None:
        waiting = self._reads_in_round
        while waiting:
            round_, index, token = waiting[0]
            heard = {member for member, progress in self._progress.items() if progress.round >= round_}
            if not self.members.agree(heard | {self.own}):
                return
            del waiting[0]
            self._reads.append(ReadReady(token, index))

    def _fail_reads(self) -> None:
        tokens = [*(token for _, _, token in self._reads_in_round), *self._reads_asked]
        self._reads_in_round.clear()
        self._reads_asked.clear()
        self._reads += [ReadReady(token, None) for token in tokens]

    # --- a follower ---

    def _heard_leader(self, leader: int, now: float) -> None:
        assert self.role is not Role.LEADER, f"members {self.own} and {leader} both lead term {self._term}"
        self.role, self.leader, self._heard_at, self._contact_at = Role.FOLLOWER, leader, now, now
        self._election_at = self._patience(now)

    def _append_from_leader(self, message: Append, now: float) -> None:
        self._heard_leader(message.sender, now)
        log, before, entries = self.log, message.before_index, message.entries
        if before < log.commit:
            # Up to there both are the same, and some of it may be known by the snapshot alone.
            entries = tuple(entry for entry in entries if entry.index > log.commit)
        elif log.term_of(before) != message.before_term:
            hint = log.last_with_term_up_to(before - 1, message.before_term)
            self._reply(message, ok=False, hint_index=hint, hint_term=log.term_of(hint) or 0)
            return
        if (changed := log.take_over(entries)) is not None:
            self._given_index = min(self._given_index, changed - 1)
            self._stored_index = min(self._stored_index, changed - 1)
        matched = max(before + len(message.entries), log.commit)
        log.commit = max(log.commit, min(message.commit, matched))
        self._reply(message, ok=True, matched=matched)

    def _reply(self, to: Append, *, ok: bool, matched: int = 0, hint_index: int = 0, hint_term: int = 0) -> None:
        self._send(
            Appended(
                self.own,
                to.sender,
                self._term,
                ok=ok,
                round=to.round,
                matched=matched,
                hint_index=hint_index,
                hint_term=hint_term,
            )
        )

    def _take_part(self, message: SnapshotPart, now: float) -> None:
        self._heard_leader(message.sender, now)
        log, which = self.log, (message.term, message.index)
        if self._holds(message.index, message.index_term):
            self._incoming = None
            log.commit = max(log.commit, message.index)
            self._send(Appended(self.own, message.sender, self._term, ok=True, round=0, matched=log.commit))
            return
        # Two leaders' snapshots of one index say the same, not in the same bytes perhaps.
        if self._incoming is None or self._incoming[:2] != which:
            self._incoming = (*which, bytearray())
        state = self._incoming[2]
        if message.at == len(state):
            state += message.part
        if len(state) < message.size:
            self._send(PartTaken(self.own, message.sender, self._term, message.index, at=len(state)))
        else:
            self._restore(Snapshot(message.index, message.index_term, message.members, bytes(state)))
            self._send(Appended(self.own, message.sender, self._term, ok=True, round=0, matched=message.index))

    def _holds(self, index: int, term: int) -> bool:
        """Whether a snapshot's history is here already. Then it is not taken: entries behind it may be answered for."""
        return index <= self.log.commit or self.log.term_of(index) == term

    def _restore(self, snapshot: Snapshot) -> None:
        self._incoming = None
        self.log.restore(snapshot)
        self._restored = snapshot
        self._given_index = self._stored_index = self._applied = snapshot.index

    # --- out ---

    def _send(self, message: AnyMessage) -> None:
        self._messages.append(message)


def _one_step(before: Members, after: Members) -> bool:
    """Whether any majority of the one and any of the other share a member, and `after` can be at all."""
    can_be = after.voters and len(set(after.all)) == len(after.all)
    return bool(can_be) and len(set(before.voters) ^ set(after.voters)) <= 1
