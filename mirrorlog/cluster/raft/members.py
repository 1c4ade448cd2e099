"""Who votes and who only learns, and what a majority of the voters is.

A configuration is an entry of the log like any other and holds from the moment it is appended (Ongaro's dissertation,
chapter 4): one change at a time, so that two majorities always share a member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
