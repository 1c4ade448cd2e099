"""Raft, as a pure core: `tick`, `step`, `propose` in, one bundle of effects out.

After Ongaro and Ousterhout (2014) and Ongaro's dissertation: elections with a trial vote first (9.6), a leader that
steps down when it does not hear a majority (6.2), reads by index (6.4), one change of members at a time and none before
an entry of the leader's own term is committed (4.1, and its correction of 2015), hand-over (3.10), learners.

The driver does each bundle in order and says `done`; events that come meanwhile are taken in and show in the next one.
A message never leaves before what it says is on disk, and the leader counts its own copy like any other: once it is
stored. `now` is seconds of a clock that only goes forward; no safety rests on it.

Rejected: pysyncobj and raft-rs bindings (decision 0018); leases for reads, which would rest on clocks.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from math import inf
from typing import Protocol

from mirrorlog.cluster.raft.leadership import Leadership, RaftLimits, Timing
from mirrorlog.cluster.raft.log import RaftLog
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
    ReadReady,
    Snapshot,
    SnapshotPart,
    Stored,
    TakeOver,
    Vote,
    encode_members,
)
from mirrorlog.errors import BadRequest, NotLeader, Overloaded


class Chance(Protocol):
    """Where randomness comes from: `random.Random`, or a seed's."""

    def random(self) -> float:
        """0 up to 1, exclusive."""


class Role(Enum):
    FOLLOWER = "follower"
    TRIAL = "trial"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Raft:
    """One member. `leader`: as far as it knows, 0 for none."""

    leadership: type[Leadership] = Leadership

    def __init__(
        self,
        own: int,
        stored: Stored,
        *,
        chance: Chance,
        now: float,
        timing: Timing | None = None,
        limits: RaftLimits | None = None,
    ) -> None:
        """`own`: this member's id; it may be in no configuration yet."""
        self.own = own
        self.role = Role.FOLLOWER
        self.leader = 0
        self.log = RaftLog(stored.snapshot, stored.entries)
        self._term, self._vote = stored.hard_state.term, stored.hard_state.vote
        self._timing, self._limits = timing or Timing(), limits or RaftLimits()
        self._chance = chance
        # When a leader was heard last: for as long as an election takes nobody else is voted for.
        self._heard_at = self._contact_at = -inf
        # Who is the only voter has nobody to wait for.
        self._election_at = now if self.log.members.voters == (own,) else self._patience(now)
        self._votes: dict[int, bool] = {}
        self._leads: Leadership | None = None
        self._round = 0
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
        return self._leads is not None and self.log.commit >= self._leads.begin

    def matched(self, member: int) -> int:
        """Leader: up to which index a member holds the log; 0 for one that is not in it."""
        if member == self.own:
            return self._stored_index
        return self._leads.matched(member) if self._leads is not None else 0

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
        return self._leads.heard_at(member) if self._leads is not None else -inf

    @property
    def next_deadline(self) -> float:
        """When `tick` has something to do, at the latest."""
        return self._leads.beat_at if self._leads is not None else self._election_at

    # --- what comes in ---

    def tick(self, now: float) -> None:
        """Time has passed."""
        if self._leads is not None:
            if now >= self._leads.beat_at and not self._leads.beat(now):
                self._follow(self._term, 0, now)
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
            case Appended() if self._leads is not None:
                self._leads.appended(message, now, stored=self._stored_index)
                self._reads += self._leads.answered_reads()
            case AskVote():
                self._asked(message, now)
            case Vote():
                self._voted(message, now)
            case SnapshotPart():
                self._take_part(message, now)
            case PartTaken() if self._leads is not None:
                self._leads.part_taken(message, now)
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
        if not self.members.one_step_to(members):
            raise BadRequest(f"members change one voter at a time: {self.members} cannot become {members}")
        return self._append(EntryKind.MEMBERS, encode_members(members))

    def read(self, token: Hashable) -> None:
        """Ask for the index up to which all that was committed before this call is included. Raises NotLeader."""
        self._check_leads().read(token)

    def hand_over(self, to: int, now: float) -> None:
        """Let a voter lead as soon as it holds everything; given up after the time that an election takes.

        Raises NotLeader, BadRequest for one that is no other voter.
        """
        leads = self._check_leads()
        if to == self.own or to not in self.members.voters:
            raise BadRequest(f"member {to} is no other voter")
        leads.hand_over(to, now)

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

    def saved_entries(self, behind: int) -> tuple[RaftEntry, ...]:
        """Those behind an index that bundles have given to the disk: what a store keeps behind a new snapshot of it.

        Only between `done` and `take`, and only for a snapshot newer than `log.snapshot`: else one that is coming in
        has replaced these entries here, and not yet on the disk.
        """
        assert behind >= self.log.snapshot.index, (behind, self.log.snapshot.index)
        return self.log.entries(behind + 1, self._given_index)

    # --- what goes out ---

    def take(self, now: float) -> Effects:
        """All that is to be done since the last one; `done` is due before the next."""
        if (leads := self._leads) is not None:
            leads.follow_members(now)
            if self.settled:
                leads.begin_round()
            self._reads += leads.answered_reads()
            leads.send_entries()
            if self._has_left:
                self._leave(leads, now)
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
            if self._leads is not None:
                self._leads.commit_agreed(self._stored_index)

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
        if self._leads is not None:
            self._contact_at = max(self._contact_at, self.contact_at(now))
            self._reads += self._leads.given_up_reads()
            self._round, self._leads = self._leads.round, None
        if term > self._term:
            self._term, self._vote = term, 0
        self.role, self.leader = Role.FOLLOWER, leader
        self._votes.clear()
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
        begin = self._append(EntryKind.EMPTY, b"")
        self._leads = self.leadership(
            self.own,
            self._term,
            self.log,
            timing=self._timing,
            limits=self._limits,
            send=self._send,
            round_=self._round,
            begin=begin,
            now=now,
        )

    def _told_to_take_over(self, message: TakeOver, now: float) -> None:
        if self.role is Role.FOLLOWER and message.sender == self.leader:
            self._stand(now, trial=False, handed_over=True)

    # --- the leader ---

    def _check_leads(self) -> Leadership:
        if self._leads is None:
            raise NotLeader(
                f"member {self.own} does not lead; {f'{self.leader} does' if self.leader else 'nobody is known to'}",
                leader=self.leader,
            )
        return self._leads

    def _check_takes(self) -> None:
        if to := self._check_leads().hand_over_to:
            raise NotLeader("leadership is being handed over; ask again", leader=to)

    def _append(self, kind: EntryKind, data: bytes) -> int:
        entry = RaftEntry(self.log.last_index + 1, self._term, kind, data)
        self.log.append(entry)
        return entry.index

    @property
    def _has_left(self) -> bool:
        """Whether this member has led its own removal to the end."""
        return self.own not in self.members.voters and self.log.members_index <= self.log.commit

    def _leave(self, leads: Leadership, now: float) -> None:
        """Somebody who holds everything leads at once, if there is one; else whoever waited longest."""
        leads.tell_to_take_over(max(self.members.voters, key=self.matched))
        self._follow(self._term, 0, now)

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
