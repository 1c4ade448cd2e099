"""Raft with a bug each, as proof that the checks of the simulator can fail."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import msgspec

from mirrorlog.cluster.raft.core import Raft, Role
from mirrorlog.cluster.raft.leadership import FollowerProgress, Leadership
from mirrorlog.cluster.raft.messages import (
    Append,
    Appended,
    AskVote,
    Effects,
    EntryKind,
    HardState,
    Members,
    ReadReady,
    Snapshot,
    encode_members,
)


class ForgetsItsVote(Raft):
    """Whom it voted for is never stored."""

    def take(self, now: float) -> Effects:
        effects = super().take(now)
        return effects if effects.hard_state is None else replace(effects, hard_state=HardState(self.term, 0))


class ForgetsItsTerm(Raft):
    """Which term it has seen is never stored."""

    def take(self, now: float) -> Effects:
        return replace(super().take(now), hard_state=None)


class VotesForAnyone(Raft):
    """Whether the candidate holds all that was committed is not looked at."""

    def _asked(self, message: AskVote, now: float) -> None:
        ahead = AskVote(
            message.sender, message.to, message.term, 2**62, 2**62, trial=message.trial, handed_over=message.handed_over
        )
        super()._asked(ahead, now)


class CommitsOlderTerms(Raft):
    """By counting copies alone (figure 8 of the paper)."""

    class leadership(Leadership):
        def commit_agreed(self, stored: int) -> None:
            held = {member: progress.matched for member, progress in self.progress.items()} | {self._own: stored}
            self._log.commit = max(self._log.commit, self._log.members.agreed_index(held))


class AnswersReadsAtOnce(Raft):
    """Without asking whether it still leads."""

    def read(self, token: Hashable) -> None:
        self._check_leads()
        self._reads.append(ReadReady(token, self.log.commit))


class ChangesManyMembersAtOnce(Raft):
    """A change of members does not wait for the one before."""

    def propose_members(self, members: Members) -> int:
        self._check_leads()
        return self._append(EntryKind.MEMBERS, encode_members(members))


class LeadsWithAMinority(Raft):
    """Half of the votes are enough."""

    def _count(self, voter: int, *, granted: bool, now: float) -> None:
        super()._count(voter, granted=granted, now=now)
        if len(self._votes) >= len(self.members.voters) / 2:
            for each in self.members.voters:
                if self.role.value in ("trial", "candidate"):
                    super()._count(each, granted=True, now=now)


class ActsBeforeItIsSettled(Raft):
    """A new leader answers reads and changes members before an entry of its own term is committed."""

    @property
    def settled(self) -> bool:
        return self.role is Role.LEADER


class CountsLearners(Raft):
    """A learner's copy is as good as a voter's."""

    class leadership(Leadership):
        def commit_agreed(self, stored: int) -> None:
            held = sorted([stored, *(progress.matched for progress in self.progress.values())])
            majority = self._log.members.majority
            agreed = held[-majority] if len(held) >= majority else 0
            if self._log.term_of(agreed) == self._term:
                self._log.commit = max(self._log.commit, agreed)


class CutsBehindEveryAppend(Raft):
    """What stands behind a leader's entries goes, also when the Append is old and the entries are the same."""

    def _append_from_leader(self, message: Append, now: float) -> None:
        super()._append_from_leader(message, now)
        last = max(message.before_index + len(message.entries), self.log.commit)
        if message.entries and self.log.term_of(message.before_index) == message.before_term:
            self.log._cut(last + 1)
            self._given_index = min(self._given_index, last)
            self._stored_index = min(self._stored_index, last)


class CommitsWhatItHas(Raft):
    """A leader says at once how far things are committed, and a follower takes all that it holds for the leader's."""

    class leadership(Leadership):
        def _send_heartbeat(self, member: int, progress: FollowerProgress) -> None:
            send, kept = self._send, []
            self._send = kept.append
            super()._send_heartbeat(member, progress)
            self._send = send
            send(msgspec.structs.replace(kept[0], commit=self._log.commit))

    def _append_from_leader(self, message: Append, now: float) -> None:
        super()._append_from_leader(message, now)
        self.log.commit = max(self.log.commit, min(message.commit, self.log.last_index))


class AnswersForWhatItHas(Raft):
    """A follower says that all that it holds is the leader's."""

    def _reply(self, to: Append, *, ok: bool, matched: int = 0, hint_index: int = 0, hint_term: int = 0) -> None:
        matched = self.log.last_index if ok else 0
        super()._reply(to, ok=ok, matched=matched, hint_index=hint_index, hint_term=hint_term)


class TakesEverySnapshot(Raft):
    """A snapshot replaces the log also where the log is the same and longer: entries that it has answered for go."""

    def _holds(self, index: int, term: int) -> bool:
        return index <= self.log.commit


class ForgetsMembersInSnapshots(Raft):
    """A snapshot leaves the configuration as it was."""

    def _restore(self, snapshot: Snapshot) -> None:
        super()._restore(msgspec.structs.replace(snapshot, members=self.members))


class NeverSendsAnew(Raft):
    """What got lost stays lost."""

    class leadership(Leadership):
        def appended(self, message: Appended, now: float, *, stored: int) -> None:
            super().appended(msgspec.structs.replace(message, round=0), now, stored=stored)


class LeavesNewMembersAlone(Raft):
    """A new member is sent nothing before there is something new."""

    class leadership(Leadership):
        def follow_members(self, now: float) -> None:
            former = set(self.progress)
            super().follow_members(now)
            for member, progress in self.progress.items():
                if member not in former:
                    progress.next = self._log.last_index + 1


class LetsTheRemovedRest(Raft):
    """Whoever has its own removal in the log does not stand, though it may be the only one that can commit it."""

    @property
    def _may_stand(self) -> bool:
        return self.own in self.members.voters


class Bug(NamedTuple):
    """`kind`: of the storm that is likely to find it. `hasty`: the driver's bug, not the core's."""

    make_raft: type[Raft]
    kind: str | None = None
    hasty: bool = False


BUGS: Final[Mapping[str, Bug]] = {
    "SendsBeforeItStores": Bug(Raft, "late messages", hasty=True),
} | {
    bug.__name__: Bug(bug, kind)
    for bug, kind in (
        (ForgetsItsVote, "falling leaders"),
        (ForgetsItsTerm, None),
        (VotesForAnyone, None),
        (CommitsOlderTerms, "falling leaders"),
        (AnswersReadsAtOnce, None),
        (ChangesManyMembersAtOnce, "changing members"),
        (LeadsWithAMinority, None),
        (ActsBeforeItIsSettled, None),
        (CountsLearners, "changing members"),
        (CutsBehindEveryAppend, "late messages"),
        (CommitsWhatItHas, "falling leaders"),
        (AnswersForWhatItHas, "falling leaders"),
        (ForgetsMembersInSnapshots, None),
        (NeverSendsAnew, None),
        (LeavesNewMembersAlone, None),
        (LetsTheRemovedRest, "changing members"),
    )
}
"""What the simulator finds. Not `TakesEverySnapshot`: that needs a snapshot between what a follower knows to be
committed and what it holds, while the leader waits for its answers; a test of its own shows it. A leader that counts
its own copy before it is stored is not here either: as long as nothing leaves before it is stored, that is harmless."""
