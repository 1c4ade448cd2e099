"""The order of an idempotent producer's batches for one queue: what may be sent, and what an answer means.

Invariant 9 from the client's side. Batches go out in order, several in flight; each keeps its bytes and its sequence
until it ends. When one fails in a way that may pass, the later ones in flight will be refused as out of sequence: the
pipeline waits for all answers and sends again from the first that is not resolved.

A batch ends with a confirm, with the word that it went to dead letters, which uses its number up as a confirm does,
with an error that trying again cannot mend, or at its deadline: with the last refusal if no attempt can have been
stored, else as OutcomeUnknown. A refusal speaks for its own attempt only: one before it that got no clear answer may
have been stored, or may still arrive from a connection that was lost. A sequence that was given up leaves a gap that
the broker would refuse for ever, so what follows goes on under a new producer epoch, numbered from 0, once what is in
flight under the old one has been answered or has come to its own deadline. A producer that the node has forgotten goes
on in the same way.

A batch gets its number when it first leaves: those that wait behind an outage may end at their deadlines, one by one,
without a gap and without a look at the others.

The allowance bounds what may be sent, too: what a producer may have in one queue that is not confirmed, as its node has
granted it. It is the other half of the node's count (`queues/limits/credit.py`): a batch counts from when it is sent.
One at level `all` counts no more with its confirm; one below with the node's word that the confirmed offset has passed
it, since its own confirm came earlier. A batch may be sent while less than the grant is open. So a producer waits for
its own queue's copies, and no other queue's producer on the same connection with it. With nothing open it may always be
sent, and is the node's to refuse: so no word that was lost or came early can stop a producer for good. It belongs to a
connection: a node begins anew with each. A node that ceases to be the log's master says so, and what was open counts no
more.

Pure: answers and `now` (s, one monotonic clock) in; it resolves batches and says what to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mirrorlog.attempts import leaves_doubt, outcome_of
from mirrorlog.client.connection.backoff import Backoff
from mirrorlog.client.producer.batch import PendingBatch
from mirrorlog.errors import (
    BadInput,
    ConnectionLost,
    MirrorlogError,
    NoSuchQueue,
    OutcomeUnknown,
    OutOfSequence,
    Overloaded,
    QueueFull,
    Refused,
    RequestTimeout,
    SentToDeadLetters,
    StaleProducerEpoch,
)
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, CREDIT_ENDED, Confirm, Credit

_PRODUCER_EPOCH_MAX: Final = 2**32 - 1
# What an OutOfSequence names as the last sequence held when there is none.
_NONE_HELD: Final = -1
# Answers that prove that their attempt stored nothing and that another one will not either.
_HOPELESS: Final = (Refused, BadInput)


@dataclass(slots=True)
class ProducerStats:
    """Counts since the producer was made. Attempts are batches, the rest records.

    What is in a batch counts as sent when the batch is closed.
    """

    sent: int = 0
    sent_bytes: int = 0
    confirmed: int = 0
    failed: int = 0
    duplicates: int = 0
    batches: int = 0
    refused_attempts: int = 0
    unknown_attempts: int = 0
    lost_attempts: int = 0
    retries: int = 0


class Allowance:
    """What may be open in one queue by the node's grant: `granted` bytes and `batches_max` batches; 0: no limit."""

    def __init__(self, granted: int, batches_max: int, *, confirms_tell: bool) -> None:
        """`confirms_tell`: at level `all`."""
        self._granted = granted
        self._batches_max = batches_max
        self._limited = batches_max > 0
        self._confirms_tell = confirms_tell
        self._size = 0
        self._batches = 0
        self._confirmed = 0
        self._waiting: deque[tuple[int, int]] = deque()

    @property
    def limited(self) -> bool:
        """Whether the node has such a limit."""
        return self._limited

    @property
    def open(self) -> bool:
        """Whether another batch may be sent."""
        if not self._limited or not self._batches:
            return True
        return self._size < self._granted and self._batches < self._batches_max

    def why(self) -> Overloaded:
        """What holds what may not be sent."""
        return Overloaded(
            f"{self._size} bytes in {self._batches} batches of this queue are not confirmed by all of its copies, the "
            f"node grants {self._granted} bytes and {self._batches_max} batches (credit_bytes, credit_batches)",
            limit="credit_bytes" if self._size >= self._granted else "credit_batches",
        )

    @property
    def open_bytes(self) -> int:
        """Bytes that were sent and count still."""
        return self._size

    def sent(self, size: int) -> None:
        if self._limited:
            self._size += size
            self._batches += 1

    def refused(self, size: int) -> None:
        """An attempt ended without a confirm: the node does not count it, or will say so when it sees more."""
        self._release(size)

    def confirmed(self, confirm: Confirm, size: int) -> None:
        """A batch of `size` bytes was."""
        if not self._limited:
            return
        end = confirm.log_offset + size
        if self._confirms_tell or confirm.flags & CONFIRM_DUPLICATE or end <= self._confirmed:
            self._release(size)
        else:
            self._waiting.append((end, size))

    def told(self, credit: Credit) -> None:
        """The node's word."""
        self._granted, self._batches_max = credit.granted, credit.batches
        self._confirmed = max(self._confirmed, credit.confirmed)
        while self._waiting and self._waiting[0][0] <= self._confirmed:
            self._release(self._waiting.popleft()[1])
        if credit.confirmed == CREDIT_ENDED:
            self._confirmed = 0  # the same node may write the log again, and count anew

    def _release(self, size: int) -> None:
        if self._limited:
            self._size -= size
            self._batches -= 1


UNLIMITED = Allowance(0, 0, confirms_tell=True)
"""Before a node has said anything. It counts for nobody, so it may be shared."""


class Pipeline:
    """The unresolved batches of one producer and queue, oldest first. `jitter()` gives 0..1.
    `retry_full`: whether what a full queue refuses is tried again, too."""

    def __init__(
        self,
        *,
        idempotent: bool,
        max_in_flight: int,
        stats: ProducerStats,
        jitter: Callable[[], float],
        retry_full: bool = True,
    ) -> None:
        self.producer_epoch = 0
        self._idempotent = idempotent
        self._max_in_flight = max_in_flight
        self._stats = stats
        self._retry_full = retry_full
        self._batches: list[PendingBatch] = []
        # The first `_numbered` batches have a number of this producer epoch; those before `_cursor` have left.
        self._numbered = 0
        self._cursor = 0
        self._in_flight = 0
        self._next_sequence = 0
        self._broken = False
        self._renumber = False
        self._backoff = Backoff(jitter)
        self._resume_at = 0.0
        self.last_error: MirrorlogError | None = None
        """Why the pipeline is being retried; None while all goes well."""
        self.allowance = UNLIMITED

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def empty(self) -> bool:
        """Whether every batch has ended."""
        return not self._batches

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def begin_at(self, producer_epoch: int) -> None:
        """The smallest epoch under which the node knows that a new producer is new; nothing once batches have gone."""
        if not self._batches and not self._next_sequence:
            self.producer_epoch = max(self.producer_epoch, producer_epoch)

    def unresolved(self) -> list[PendingBatch]:
        """The batches that have not ended, oldest first."""
        return list(self._batches)

    def add(self, batch: PendingBatch) -> None:
        """A closed batch joins the end; its deadline is not before that of the one before it."""
        self._batches.append(batch)
        self._stats.sent += batch.count
        self._stats.sent_bytes += batch.size_bytes
        self._stats.batches += 1

    def next_to_send(self, now: float) -> PendingBatch | None:
        """The next batch to send now, marked as in flight; None when none may go."""
        cursor = self._cursor
        if cursor >= len(self._batches) or not self._may_send(now):
            return None
        batch = self._batches[cursor]
        if cursor == self._numbered:
            self._numbered += 1
            if self._idempotent:
                batch.number(producer_epoch=self.producer_epoch, sequence=self._next_sequence)
                self._next_sequence += batch.count
        self._cursor = cursor + 1
        self._in_flight += 1
        batch.in_flight = True
        if batch.attempts:
            self._stats.retries += 1
        batch.attempts += 1
        return batch

    def ready(self, now: float) -> bool:
        """Whether a batch that is added now may be sent at once: nothing stops it, and none waits before it."""
        return self._may_send(now) and self._cursor >= len(self._batches)

    def resume_at(self) -> float | None:
        """When a retry is due; None while none is waited for."""
        return self._resume_at if self._batches and not self._broken and self._cursor < len(self._batches) else None

    def next_deadline(self) -> float | None:
        """When the oldest batch must have ended."""
        return self._batches[0].deadline if self._batches else None

    def next_due(self, now: float) -> float | None:
        """When there is something to do though no answer comes: the earlier of both; None when all has ended."""
        if not self._batches:
            return None
        deadline, retry = self._batches[0].deadline, self._resume_at
        if now < retry < deadline and self.resume_at() is not None:
            return retry
        return deadline

    # --- answers ---

    def confirmed(self, batch: PendingBatch, confirm: Confirm, now: float) -> bool:
        """The node has it, at the level asked. Whether every batch has left, and none is being retried: nothing is to
        be done but to wait for answers."""
        if not self._landed(batch):
            return False
        self._stats.confirmed += batch.count
        if confirm.flags & CONFIRM_DUPLICATE:
            self._stats.duplicates += batch.count
        self._remove(batch)
        batch.resolve(confirm)
        if self.last_error is not None:
            self._took()
        if self._broken:
            self._settle(now)
        return self._cursor >= len(self._batches) and self.last_error is None and not self._broken

    def failed(self, batch: PendingBatch, error: MirrorlogError, now: float) -> None:
        """An attempt ended with `error`."""
        if not self._landed(batch):
            return
        if isinstance(error, SentToDeadLetters):
            self._end(batch, error)  # its number was used: what follows goes on
            self._took()
        elif leaves_doubt(error):
            self._maybe_stored(batch, error)
        elif isinstance(error, Refused) and error.retriable and (self._retry_full or not isinstance(error, QueueFull)):
            self._stats.refused_attempts += 1
            self._break(error)
        elif isinstance(error, OutOfSequence) and self._broken:
            pass  # expected: an earlier one failed and this one was behind it
        elif isinstance(error, _HOPELESS):
            self._hopeless(batch, error)
        else:
            self._maybe_stored(batch, error)
        self._settle(now)

    def not_connected(self, error: MirrorlogError) -> None:
        """No node could be reached that takes the batches: the reason that those which expire will name."""
        self.last_error = error

    def left(self, error: MirrorlogError) -> None:
        """The node that what is in flight was sent to is left for another, which must not get what follows before it:
        nothing leaves until all of it is answered."""
        if self._in_flight:
            self._break(error)

    def moved(self, now: float) -> None:
        """Another master was found, which has refused nothing yet: what waits for a retry may go to it at once."""
        self._backoff.reset()
        self._resume_at = min(self._resume_at, now)

    def expire(self, now: float) -> None:
        """End the batches whose deadline has come. Those in flight behind them keep their own."""
        if not self._batches or self._batches[0].deadline > now:
            return
        count = 0
        while count < len(self._batches) and self._batches[count].deadline <= now:
            count += 1
        expired = self._batches[:count]
        outcomes = [self._abandoned(batch) for batch in expired]
        gave_up_numbers = self._numbered > 0
        del self._batches[:count]
        self._cursor = max(0, self._cursor - count)
        self._numbered = max(0, self._numbered - count)
        for batch, outcome in zip(expired, outcomes, strict=True):
            self._in_flight -= batch.in_flight
            self._resolve(batch, outcome)
        if gave_up_numbers:
            self._renumber = True
            self._broken = True
            self._settle(now)

    def fail_all(self, error: MirrorlogError) -> None:
        """The producer ends: so does everything in it."""
        batches, self._batches = self._batches, []
        self._in_flight = self._cursor = self._numbered = 0
        for batch in batches:
            self._resolve(batch, _without_confirm(batch, error))

    def gone(self, error: MirrorlogError, now: float) -> None:
        """The queue is no more, and everything that was to be stored in it ends. What comes from here on has numbers of
        its own: it is for one that is declared anew."""
        self.fail_all(error)
        self._renumber = True
        self._break(error)
        self._settle(now)

    # --- inside ---

    def _may_send(self, now: float) -> bool:
        # After a failure one batch goes ahead as a probe: the others would only be refused with it.
        in_flight_max = self._max_in_flight if self.last_error is None else 1
        in_turn = not self._broken and now >= self._resume_at and self._in_flight < in_flight_max
        return in_turn and self.allowance.open

    def _landed(self, batch: PendingBatch) -> bool:
        """An answer came for an attempt that is still counted."""
        if batch.outcome is not None or not batch.in_flight:
            return False
        batch.in_flight = False
        self._in_flight -= 1
        return True

    def _maybe_stored(self, batch: PendingBatch, error: MirrorlogError) -> None:
        if isinstance(error, ConnectionLost | RequestTimeout):
            self._stats.lost_attempts += 1
        else:
            self._stats.unknown_attempts += 1
        batch.unknown = True
        self._break(error)
        if not self._idempotent:
            self._end(batch, OutcomeUnknown(f"{error}; without a producer id it is not sent again"))

    def _hopeless(self, batch: PendingBatch, error: MirrorlogError) -> None:
        """Trying again cannot mend it. Its number was not used, so what follows is numbered anew."""
        self._renumber = True
        if isinstance(error, StaleProducerEpoch):
            self.producer_epoch = max(self.producer_epoch, _epoch_ended(error))
        if _forgotten(error) and not batch.unknown:
            # No attempt of this batch was stored, and nothing is wrong with it: under a new number it is as good as
            # any.
            self._break(error)
            return
        self._end(batch, _without_confirm(batch, error))
        self._broken = True
        if isinstance(error, NoSuchQueue):
            others = [other for other in self._batches if not other.in_flight]
            self._batches = [other for other in self._batches if other.in_flight]
            self._cursor = self._numbered = len(self._batches)
            for other in others:
                self._resolve(other, _without_confirm(other, error))

    def _took(self) -> None:
        """The node took a batch."""
        if not self._broken and self.last_error is not None:
            self._backoff.reset()
            self.last_error = None

    def _break(self, error: MirrorlogError) -> None:
        self._broken = True
        self.last_error = error

    def _settle(self, now: float) -> None:
        """Once every answer is in after a failure: start again from the first that is not resolved."""
        if not self._broken or self._in_flight:
            return
        self._broken = False
        self._cursor = 0
        if self._renumber:
            self._new_epoch()
        if self.last_error is not None:
            self._resume_at = now + self._backoff.next_s()

    def _new_epoch(self) -> None:
        self._renumber = False
        # Only what has left, under a number, can be unknown.
        for batch in [batch for batch in self._batches[: self._numbered] if batch.unknown]:
            self._end(batch, self._abandoned(batch))
        self.producer_epoch = min(self.producer_epoch + 1, _PRODUCER_EPOCH_MAX)
        self._next_sequence = self._numbered = 0

    def _end(self, batch: PendingBatch, outcome: Confirm | MirrorlogError) -> None:
        self._remove(batch)
        self._resolve(batch, outcome)

    def _remove(self, batch: PendingBatch) -> None:
        # It has left, so it is among the first few.
        index = self._batches.index(batch)
        del self._batches[index]
        if index < self._cursor:
            self._cursor -= 1
        if index < self._numbered:
            self._numbered -= 1

    def _resolve(self, batch: PendingBatch, outcome: Confirm | MirrorlogError) -> None:
        """End a batch that is no longer among those to be sent."""
        batch.in_flight = False
        if isinstance(outcome, MirrorlogError):
            self._stats.failed += batch.count
        batch.resolve(outcome)

    def _abandoned(self, batch: PendingBatch) -> MirrorlogError:
        held_by = None if self.allowance.open else self.allowance.why()
        reason = self.last_error or held_by or ConnectionLost("no answer came")
        if (leaves_doubt(reason) or not isinstance(reason, Refused)) and not batch.in_flight and not batch.unknown:
            return Refused(f"not sent before the deadline, nothing was stored; last: {reason}")
        return _without_confirm(batch, reason)


def _without_confirm(batch: PendingBatch, reason: MirrorlogError) -> MirrorlogError:
    """What a batch ends with that was not confirmed: `reason`, if no attempt can have been stored."""
    return outcome_of(reason, in_doubt=batch.in_flight or batch.unknown, message="no confirm, stored perhaps")


def _forgotten(error: MirrorlogError) -> bool:
    """Whether the node does not know the producer: it holds nothing under its epoch, or that epoch has ended."""
    return isinstance(error, StaleProducerEpoch) or (
        isinstance(error, OutOfSequence) and error.details.get("last") == _NONE_HELD
    )


def _epoch_ended(error: StaleProducerEpoch) -> int:
    """The last producer epoch that has ended, as the node says; 0 when it does not say."""
    ended = error.details.get("producer_epoch", 0)
    return min(ended, _PRODUCER_EPOCH_MAX) if isinstance(ended, int) else 0
