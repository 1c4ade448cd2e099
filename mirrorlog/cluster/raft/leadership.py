"""What a leader does beyond a member's part: it sends entries and snapshots, commits, and answers reads by index. Pure.

Of every other member it knows how far its log is the same, and how much it may send it before it hears of that
(`FollowerProgress`). PROBE: where the logs part is not known; one Append at a time finds out. REPLICATE: it is; entries
are sent without waiting, so many and so large. SNAPSHOT: what the member lacks is not in the log any more; pieces of
the snapshot go out, one at a time.

What got lost is found by rounds, not by time: when a heartbeat that was sent later is answered and the entries are not,
they are sent anew. So a slow disk or a narrow connection gets nothing twice, and a dead member gets heartbeats alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Final

from mirrorlog.cluster.raft.log import RaftLog
from mirrorlog.cluster.raft.messages import AnyMessage, Append, Appended, PartTaken, ReadReady, SnapshotPart, TakeOver


@dataclass(frozen=True, slots=True)
class Timing:
    """`heartbeat_s`: between two of a leader's; `election_s`: without a leader for so long, up to twice that, a voter
    stands for election."""

    heartbeat_s: float = 0.05
    election_s: float = 0.25


@dataclass(frozen=True, slots=True)
class RaftLimits:
    """`append_bytes_max`: of one Append's commands; a single command may be larger. `part_bytes_max`: of one piece of a
    snapshot. `uncommitted_bytes_max`: of commands that wait for a majority; beyond it a proposal is refused."""

    append_bytes_max: int = 256 * 1024
    part_bytes_max: int = 256 * 1024
    uncommitted_bytes_max: int = 16 * 1024 * 1024


IN_FLIGHT_MAX: Final = 32
"""Appends sent to a member that it has not answered."""


class SendingStage(Enum):
    """Of sending to one member; see the head of this file."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class FollowerProgress:
    """`matched`: up to here its log is the leader's; `next`: the first index that was not sent; `told`: up to here it
    was said to be committed; `heard_at`: its last answer, on the leader's clock; `round`: the newest one answered."""

    __slots__ = (
        "_in_flight", "_one_sent_in", "heard_at", "matched", "next", "part_at", "round", "snapshot_index", "stage",
        "told",
    )  # fmt: skip

    def __init__(self, *, next_index: int, now: float) -> None:
        self.stage = SendingStage.PROBE
        self.matched = self.told = 0
        self.next = next_index
        self.heard_at = now
        self.round = 0
        self.snapshot_index = self.part_at = 0
        """Which snapshot it is sent, and the byte of its state that it wants next."""
        # The round of the probe or piece that is on its way, one at most; last index and round of each Append that is.
        self._one_sent_in: int | None = None
        self._in_flight: deque[tuple[int, int]] = deque()

    @property
    def may_send(self) -> bool:
        """Whether entries, or a piece of the snapshot, may leave now."""
        if self.stage is SendingStage.REPLICATE:
            return len(self._in_flight) < IN_FLIGHT_MAX
        return self._one_sent_in is None

    # --- what left ---

    def sent(self, last_index: int, round_: int) -> None:
        """Entries up to `last_index` are on their way."""
        if self.stage is SendingStage.PROBE:
            self._one_sent_in = round_
        else:
            self._in_flight.append((last_index, round_))
            self.next = last_index + 1

    def send_snapshot(self, index: int) -> None:
        """What it lacks is not in the log any more; from the snapshot's first byte."""
        self.stage, self.snapshot_index, self.part_at = SendingStage.SNAPSHOT, index, 0
        self._one_sent_in = None
        self._in_flight.clear()

    def part_sent(self, round_: int) -> None:
        """The piece at `part_at` is on its way."""
        self._one_sent_in = round_

    # --- what came back ---

    def taken(self, matched: int) -> None:
        """It holds everything up to `matched`."""
        self.matched = max(self.matched, matched)
        while self._in_flight and self._in_flight[0][0] <= self.matched:
            self._in_flight.popleft()
        if self.stage is SendingStage.SNAPSHOT and matched >= self.snapshot_index:
            self._probe(self.matched + 1)
        elif self.stage is SendingStage.PROBE and matched >= self.next - 1:
            self.stage, self._one_sent_in = SendingStage.REPLICATE, None
        self.next = max(self.next, self.matched + 1)

    def refused(self, following: int) -> None:
        """The entry before what was sent is not there: the logs may be the same below `following`."""
        if self.stage is not SendingStage.SNAPSHOT:
            self._probe(max(self.matched + 1, min(following, self.next)))

    def wants_part(self, at: int) -> None:
        """The piece at byte `at` is next. Asked for again, it is on its way already: nothing multiplies."""
        if at != self.part_at:
            self.part_at, self._one_sent_in = at, None

    def answered(self, round_: int, now: float) -> None:
        """It answered something of that round: what was sent in an older one and is still unanswered got lost."""
        self.heard_at = now
        self.round = max(self.round, round_)
        if self._one_sent_in is not None and self._one_sent_in < self.round:
            self._one_sent_in = None
        if self._in_flight and self._in_flight[0][1] < self.round:
            self._probe(self.matched + 1)

    def _probe(self, following: int) -> None:
        self.stage = SendingStage.PROBE
        self.next = following
        self._one_sent_in = None
        self._in_flight.clear()


class Leadership:
    """Of one member, `own`, in one term. `send`: takes what shall leave, in order; `round_`: the last one of this
    member's leadership before. `begin`: the index of the term's first entry."""

    def __init__(
        self,
        own: int,
        term: int,
        log: RaftLog,
        *,
        timing: Timing,
        limits: RaftLimits,
        send: Callable[[AnyMessage], None],
        round_: int,
        begin: int,
        now: float,
    ) -> None:
        self.progress: dict[int, FollowerProgress] = {}
        self.round = round_
        self.begin = begin
        self.beat_at = now + timing.heartbeat_s
        self.hand_over_to = 0
        """Who is to lead next; 0 for nobody."""
        self._hand_over_until = -inf
        self._own, self._term, self._log = own, term, log
        self._timing, self._limits = timing, limits
        self._send = send
        # Reads that wait for a round, each with the round and the index as of when it began; and those before theirs.
        self._reads_in_round: list[tuple[int, int, Hashable]] = []
        self._reads_asked: list[Hashable] = []
        self.follow_members(now)

    def matched(self, member: int) -> int:
        """Up to which index another member holds the log; 0 for one that is not in it."""
        return self.progress[member].matched if member in self.progress else 0

    def heard_at(self, member: int) -> float:
        """When another member answered last; minus infinity for one that is not in."""
        return self.progress[member].heard_at if member in self.progress else -inf

    def follow_members(self, now: float) -> None:
        """A Progress for each other member, and for nobody else. The newest entry is what a new one is tried with: what
        brought it here, the term's begin or the change of members, is an entry in any case."""
        others = [member for member in self._log.members.all if member != self._own]
        self.progress = {
            member: self.progress.get(member) or FollowerProgress(next_index=self._log.last_index, now=now)
            for member in others
        }

    # --- what leaves ---

    def beat(self, now: float) -> bool:
        """Heartbeats, when they are due. Whether a majority is heard: else nobody is led."""
        self.beat_at = now + self._timing.heartbeat_s
        since = now - 2 * self._timing.election_s
        heard = {self._own, *(each for each in self.progress if self.heard_at(each) >= since)}
        if not self._log.members.agree(heard):
            return False
        if now >= self._hand_over_until:
            self.hand_over_to = 0
        self._heartbeats()
        return True

    def _heartbeats(self) -> None:
        """A round of their own: by its answers what was sent before it and got lost is found."""
        self.round += 1
        for member, progress in self.progress.items():
            self._send_heartbeat(member, progress)

    def _send_heartbeat(self, member: int, progress: FollowerProgress) -> None:
        """Behind what the member is known to hold, where it cannot be refused."""
        before, before_term = progress.matched, self._log.term_of(progress.matched)
        if before_term is None:
            before, before_term = 0, 0
        commit = min(self._log.commit, before)
        self._send(Append(self._own, member, self._term, before, before_term, commit, self.round))

    def send_entries(self) -> None:
        """What every member may be sent; and how far things are committed, where no entries tell it."""
        for member, progress in self.progress.items():
            while progress.may_send and self._send_next(member, progress):
                pass
            if progress.told < (commit := min(self._log.commit, progress.matched)):
                progress.told = commit
                self._send_heartbeat(member, progress)

    def _send_next(self, member: int, progress: FollowerProgress) -> bool:
        """Whether there were entries. If it needs some that are gone, a piece of the snapshot leaves instead."""
        log, before = self._log, progress.next - 1
        before_term = log.term_of(before)
        if progress.stage is SendingStage.SNAPSHOT or before_term is None:
            self._send_part(member, progress)
            return False
        if before == log.last_index:
            return False
        entries = log.entries_from(progress.next, self._limits.append_bytes_max)
        self._send(Append(self._own, member, self._term, before, before_term, log.commit, self.round, entries))
        progress.sent(entries[-1].index, self.round)
        progress.told = max(progress.told, min(log.commit, entries[-1].index))
        return True

    def _send_part(self, member: int, progress: FollowerProgress) -> None:
        snapshot = self._log.snapshot
        if progress.stage is not SendingStage.SNAPSHOT or progress.snapshot_index != snapshot.index:
            progress.send_snapshot(snapshot.index)
        part = snapshot.state[progress.part_at : progress.part_at + self._limits.part_bytes_max]
        self._send(
            SnapshotPart(
                self._own,
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
        progress.part_sent(self.round)

    # --- what comes back ---

    def appended(self, message: Appended, now: float, *, stored: int) -> None:
        """A member's answer. `stored`: up to which index this member's own disk has the log."""
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        if message.ok:
            progress.taken(message.matched)
            self.commit_agreed(stored)
            self.go_on_handing_over()
        else:
            progress.refused(self._log.last_with_term_up_to(message.hint_index, message.hint_term) + 1)
        progress.answered(message.round, now)

    def part_taken(self, message: PartTaken, now: float) -> None:
        """A member has a piece of the snapshot, and wants the next."""
        progress = self.progress.get(message.sender)
        if progress is None:
            return
        progress.heard_at = now
        if progress.stage is SendingStage.SNAPSHOT and progress.snapshot_index == message.index:
            progress.wants_part(message.at)

    def commit_agreed(self, stored: int) -> None:
        """What a majority has on disk is committed, if it is of this term: older entries are by that, not before."""
        held = {member: progress.matched for member, progress in self.progress.items()} | {self._own: stored}
        agreed = self._log.members.agreed_index(held)
        if agreed > self._log.commit and self._log.term_of(agreed) == self._term:
            self._log.commit = agreed

    # --- handing over ---

    def hand_over(self, to: int, now: float) -> None:
        """Let a voter lead as soon as it holds everything; given up after the time that an election takes."""
        self.hand_over_to, self._hand_over_until = to, now + self._timing.election_s
        self.go_on_handing_over()

    def go_on_handing_over(self) -> None:
        """It may hold everything by now."""
        if self.hand_over_to:
            self.tell_to_take_over(self.hand_over_to)

    def tell_to_take_over(self, member: int) -> None:
        """If it holds everything."""
        if self.matched(member) == self._log.last_index:
            self._send(TakeOver(self._own, member, self._term))

    # --- reads ---

    def read(self, token: Hashable) -> None:
        """To be answered by `answered_reads`, or given up with the leadership."""
        self._reads_asked.append(token)

    def begin_round(self) -> None:
        """All reads that were asked for since the last bundle share one."""
        if self._reads_asked:
            self._heartbeats()
            self._reads_in_round += [(self.round, self._log.commit, token) for token in self._reads_asked]
            self._reads_asked.clear()

    def answered_reads(self) -> list[ReadReady]:
        """Those whose round a majority has answered; each once."""
        ready: list[ReadReady] = []
        while self._reads_in_round:
            round_, index, token = self._reads_in_round[0]
            heard = {member for member, progress in self.progress.items() if progress.round >= round_}
            if not self._log.members.agree(heard | {self._own}):
                break
            del self._reads_in_round[0]
            ready.append(ReadReady(token, index))
        return ready

    def given_up_reads(self) -> list[ReadReady]:
        """All that wait when the leadership ends."""
        tokens = [*(token for _, _, token in self._reads_in_round), *self._reads_asked]
        return [ReadReady(token, None) for token in tokens]
