"""The stories of the seed's known flaws fail when the flaw is put back: each check runs here against a class with it.

A story that nobody can break tells nothing. Every class below does one thing as the seed's code does it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirrorlog.errors import ProtocolError, StalledFrame
from mirrorlog.ha.actions import Action, Close, Send
from mirrorlog.ha.client import ClientState, HAClient
from mirrorlog.ha.connection import HAConnection, ReadHalf
from mirrorlog.ha.group_transfer import Answer, GroupTransferService, Progress
from mirrorlog.wire.frames import TRANSFER, Ack, Frame, read_transfer
from mirrorlog.wire.messages.replication import Pull
from tests.ha.links import Pair
from tests.ha.replicas import HA
from tests.ha.test_client import (
    check_an_empty_mirror_takes_only_the_beginning,
    check_housekeeping_looks_at_what_was_read,
)
from tests.ha.test_connection import (
    check_an_empty_mirror_gets_all_history,
    check_only_acks_that_can_be_true_are_believed,
)
from tests.ha.test_group_transfer import check_each_wait_has_its_own_deadline
from tests.ha.test_progress import check_one_mirror_does_not_speak_for_all


class OneAfterTheOther(GroupTransferService):
    """Lines 181-213: the waits stand in a queue, and the clock of each starts when the one before it has ended."""

    def __init__(self, *, waiting_max: int) -> None:
        super().__init__(waiting_max=waiting_max)
        self._turn_began = 0.0

    def expired(self, now: float, progress: Progress, *, links_up: int) -> list[Answer]:
        if not self._by_deadline or self._turn_began + self._by_deadline[0][0] > now:
            return []
        self._turn_began = now
        rest = self._by_deadline[1:]
        del self._by_deadline[1:]
        answers = super().expired(now, progress, links_up=links_up)
        self._by_deadline.extend(rest)
        return answers


class LargestOfAll(Progress):
    """Lines 229-253: the largest offset that any mirror ever acked is what all are taken to hold."""

    def reached_by(self, copies: int, durability: int) -> int:
        return max(held.at(durability) for node, held in self._held.items() if node != self._own)

    def _advance(self) -> None:
        self.confirmed = max(self.confirmed, self.reached_by(self.copies, self._durability))


class BelievingHalf(ReadHalf):
    """Lines 829-853: what the mirror says is taken as it comes."""

    def take(self, ack: Ack, *, epoch: int, sent: int) -> None:
        self.acked, self.flushed = ack.written, ack.flushed


class BelievingConnection(HAConnection):
    def __init__(self, **facts: object) -> None:
        super().__init__(**facts)  # type: ignore[arg-type]
        self.read_half = BelievingHalf(0.0)


class LastFileConnection(HAConnection):
    """Lines 945-969: a mirror that has nothing is sent the last file."""

    def pull(self, message: Pull, now: float) -> list[Action]:
        last_file = self._log.active_start  # type: ignore[attr-defined]
        self._from = last_file if message.log_offset == 0 else message.log_offset
        return super().pull(Pull(log_offset=self._from), now)


class AnyBeginning(HAClient):
    """Lines 609-623: a mirror that has nothing does not look at the offset."""

    def _transfer(self, frame_: Frame, now: float) -> Sequence[Action]:
        facts = read_transfer(frame_.payload)
        if self._copy.log.end not in (0, facts.log_offset):
            raise ProtocolError("not the end")
        if len(frame_.payload) > TRANSFER.size:
            self._copy.append_run(frame_.payload[TRANSFER.size :], log_offset=facts.log_offset)
        return [self._ack(now)]


class LooksAtItsOwnWrites(HAClient):
    """Lines 359-375: the mirror leaves when it has not written for long, whatever it has read."""

    def tick(self, now: float) -> Sequence[Action]:
        if self.state is ClientState.TRANSFER and (now - self.last_write) * 1000 >= HA.housekeeping_interval_ms:
            return [Close(StalledFrame("silent"))]
        return [action for action in super().tick(now) if isinstance(action, Send)]


def test_a_clock_that_starts_at_a_publishs_turn_is_found() -> None:
    """Put back the queue of waits: the story of the own deadline fails."""
    with pytest.raises(AssertionError):
        check_each_wait_has_its_own_deadline(OneAfterTheOther)


def test_one_mirror_that_counts_for_all_is_found() -> None:
    """Put back the largest ack: the story of the mirror that does not speak for all fails."""
    with pytest.raises(AssertionError):
        check_one_mirror_does_not_speak_for_all(LargestOfAll)


def test_an_ack_that_is_not_checked_is_found(pair: Pair) -> None:
    """Put back the unchecked ack: the story of the believed acks fails."""
    with pytest.raises(AssertionError, match="was believed"):
        check_only_acks_that_can_be_true_are_believed(pair, BelievingConnection)


def test_an_empty_mirror_that_gets_only_the_last_file_is_found(pair: Pair) -> None:
    """Put back the last file: the story of all history fails."""
    with pytest.raises(AssertionError):
        check_an_empty_mirror_gets_all_history(pair, LastFileConnection)


def test_an_empty_mirror_that_takes_any_offset_is_found(pair: Pair) -> None:
    """Put back the missing look at the offset: the story of the beginning fails."""
    with pytest.raises(AssertionError, match="an empty copy took a push"):
        check_an_empty_mirror_takes_only_the_beginning(pair, AnyBeginning)


def test_housekeeping_by_ones_own_writes_is_found(pair: Pair) -> None:
    """Put back the clock of the last write: the story of the housekeeping fails."""
    with pytest.raises(AssertionError, match="was not left"):
        check_housekeeping_looks_at_what_was_read(pair, LooksAtItsOwnWrites)
