"""Which batch each idempotent producer may send next, and where its last ones landed (invariant 9).

The sequence is the number of a batch's first record per (producer id, producer epoch, queue), from 0; the next one is
sequence + count. A batch that was appended already is answered with the place of its first copy; anything else that
does not follow is refused naming the last one held. Rebuilt from batch headers alone, or from a checkpoint's
`ProducerState`s and the headers behind it, with the same result.

Who was idle for too long, by the append times of the log itself, is forgotten; so is the longest idle one when there
are too many. Someone forgotten cannot be told from someone new, and a batch of sequence 0 under an epoch that was
forgotten may be the retry of one that landed. So one number is kept for all who were forgotten: the *producer epoch
floor*, above every epoch that they had. Whoever is not known begins with sequence 0 of an epoch at or above it, and
that cannot be a duplicate. Rejected: to keep the ids (no bound), or to trust that nobody tries again after so long (a
client that was suspended in the middle of a retry does, and a full table forgets long before).

Pure: headers in, verdicts out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from mirrorlog.commitlog.format.header import NO_PRODUCER, BatchHeader, Flag, Kind
from mirrorlog.errors import BadBatch, OutOfSequence, StaleProducerEpoch
from mirrorlog.queues.changes import Change, QueueArrived, QueueArriving, QueueDeleted, StateGone
from mirrorlog.queues.checkpoint_states import CheckpointEnded, ProducerState, State

# A client keeps at most this many batches of a queue in flight, so a retry is always among the remembered ones.
REMEMBERED_BATCHES: Final = 64
EXPIRY_US: Final = 24 * 3600 * 1_000_000
"""How long a producer may be idle, µs."""

RECENT_US: Final = 10 * 60 * 1_000_000
"""Who has been idle for longer has nothing to send again, but for a client that waits very long; µs."""
IDLE_CARRIED_BATCHES: Final = 2

PRODUCER_EPOCH_MAX: Final = 2**32 - 1
PRODUCER_EPOCH_JUMP_MAX: Final = 2**28
"""How far above the last one a producer epoch may begin. What is forgotten raises the floor for all, and one client
that counts wrong would use all epochs up. 200 a second, all of them given up, take two weeks to get there."""

ProducerKey = tuple[int, int]
"""Producer id, queue id."""

# Plain numbers: an operation with a member of an enum takes a microsecond.
_NUMBERED: Final = frozenset({int(Kind.DATA), int(Kind.TRANSACTION)})
_COPIED: Final = int(Flag.COPIED)
_FLAG_REFUSED: Final = int(Flag.REFUSED)
_REFUSED: Final = 1 << 32
"""Above every epoch: what a checkpoint adds to that of a batch that was refused."""
_NEVER_US: Final = 2**63


class Landed(NamedTuple):
    """Where a batch went: enough to answer its retry. `refused`: the queue was full, and its records left as they came;
    its producer was told so.

    Of one that its queue has brought along from another log: where the queue arrived, from `log_offset` to the next
    one; no batch is as short."""

    crc: int
    record_count: int
    log_offset: int
    base_queue_offset: int
    next_log_offset: int
    epoch: int
    refused: bool = False

    @property
    def moved(self) -> bool:
        """Whether it landed in another log, before the queue moved."""
        return self.next_log_offset == self.log_offset + 1


def landed_of(header: BatchHeader) -> Landed:
    """Of a batch as stamped."""
    return Landed(
        header.crc,
        header.record_count,
        header.log_offset,
        header.base_queue_offset,
        header.log_offset + header.length,
        header.epoch,
        bool(header.flags & _FLAG_REFUSED),
    )


def _carried(landed: Landed) -> tuple[int, int, int, int, int, int]:
    """As a checkpoint has it."""
    crc, count, log_offset, base, following, epoch, refused = landed
    return crc, count, log_offset, base, following, epoch + _REFUSED if refused else epoch


def landed_at(
    facts: tuple[int, int, int, int, int, int], log_offset: int, epoch: int
) -> tuple[int, int, int, int, int, int]:
    """Of a batch whose queue has moved, as the batch at `log_offset` of the newer log says it; see `Landed.moved`."""
    landed = _restored(facts)
    return _carried(landed._replace(log_offset=log_offset, next_log_offset=log_offset + 1, epoch=epoch))


def _restored(facts: tuple[int, int, int, int, int, int]) -> Landed:
    landed = Landed(*facts)
    return landed._replace(epoch=landed.epoch % _REFUSED, refused=landed.epoch >= _REFUSED)


class _Sequence:
    """`landed`: the newest batches by sequence, oldest first."""

    __slots__ = ("landed", "last_append_time_us", "next_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.last_append_time_us = 0
        self.landed: dict[int, Landed] = {}


class ProducerTable:
    """One log's producers, each with its queues: at most `producers_max`, none idle for more than `expiry_us`.

    A producer that was forgotten is told OutOfSequence or StaleProducerEpoch and goes on under a new producer epoch.
    """

    def __init__(self, *, producers_max: int = 100_000, expiry_us: int = EXPIRY_US) -> None:
        self._producers_max = producers_max
        self._expiry_us = expiry_us
        # In the order of their last batches, which is the order of their append times too.
        self._sequences: OrderedDict[ProducerKey, _Sequence] = OrderedDict()
        self._epoch_floor = 0
        # Restored ones stand in any order until their checkpoint ends; none is too many until then.
        self._unsorted = False
        # Nobody expires by this time of the log; it may lag behind what the first in order says.
        self._expires_us = _NEVER_US

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def epoch_floor(self) -> int:
        """The smallest producer epoch under which a producer that is not known may begin."""
        return self._epoch_floor

    def check(self, header: BatchHeader) -> Landed | None:
        """None: append it. Landed: it is here already.

        Raises StaleProducerEpoch (`details["producer_epoch"]`: epochs up to it have ended), OutOfSequence
        (`details["last"]`: last sequence held, -1 for none) or BadBatch (with `details["producer_epoch"]`: the numbers
        are another batch's, which was sent under that epoch).
        """
        if header.producer_id == NO_PRODUCER:
            return None
        held = self._sequences.get((header.producer_id, header.queue_id))
        if held is None or header.producer_epoch != held.producer_epoch:
            self._check_begins(header, held)
            return None
        landed = held.landed.get(header.sequence)
        if landed is not None:
            return _same(header, landed)
        if header.sequence != held.next_sequence:
            raise _out_of_sequence(header, held.next_sequence)
        return None

    def apply(self, header: BatchHeader) -> None:
        """A batch was appended, of whatever kind: each carries the log's time."""
        if header.producer_id != NO_PRODUCER and header.kind in _NUMBERED and not header.flags & _COPIED:
            self._follow(header)
        if header.append_time_us > self._expires_us:
            self._expire(header.append_time_us)

    def follow(self, changes: Iterable[Change]) -> None:
        """Changes that a control batch brings, in their place in the log: so the table is the same wherever it is
        rebuilt. Of a queue that is deleted, or has moved, nothing is kept, and the floor stays: no batch for its id
        is taken again."""
        for change in changes:
            if isinstance(change, QueueArriving):
                self._epoch_floor = max(self._epoch_floor, change.producer_epoch_floor)
            if isinstance(change, QueueArrived):
                self._sort()
            elif isinstance(change, QueueDeleted | StateGone):
                for key in [key for key in dict.keys(self._sequences) if key[1] == change.queue_id]:
                    del self._sequences[key]

    # --- checkpoints ---

    def known(self) -> list[ProducerKey]:
        """Who is known, in no order."""
        # The plain dict's walk: 100,000 in 1 ms. The ordered one's takes ten times as long.
        return list(dict.keys(self._sequences))

    def state(self, key: ProducerKey, *, brief: bool, idle_brief: bool = True) -> ProducerState | None:
        """What is known of a producer; None once forgotten.

        `brief`: with its IDLE_CARRIED_BATCHES newest batches only, as one comes, with `idle_brief`, in any case that
        was idle for RECENT_US before the last batch of all.
        """
        held = self._sequences.get(key)
        if held is None:
            return None
        newest = self._sequences[next(reversed(self._sequences))]
        brief |= idle_brief and newest.last_append_time_us - held.last_append_time_us > RECENT_US
        older = max(0, len(held.landed) - IDLE_CARRIED_BATCHES) if brief else 0
        return ProducerState(
            producer_id=key[0],
            queue_id=key[1],
            producer_epoch=held.producer_epoch,
            next_sequence=held.next_sequence,
            last_append_time_us=held.last_append_time_us,
            landed={at: _carried(landed) for at, landed in islice(held.landed.items(), older, None)},
        )

    def restore(self, header: BatchHeader, states: Iterable[State]) -> None:
        """A batch of a checkpoint was appended: the higher (producer epoch, next sequence) of it and of what is known
        stands; other states are passed over."""
        for state in states:
            if isinstance(state, ProducerState):
                self._restore(state)
            elif isinstance(state, CheckpointEnded):
                self._epoch_floor = max(self._epoch_floor, state.producer_epoch_floor)
                self._sort()
        self.apply(header)

    # --- inside ---

    def _check_begins(self, header: BatchHeader, held: _Sequence | None) -> None:
        """Whether a producer may begin with this batch: it is not known, or not under this epoch."""
        if held is None and header.sequence:
            raise _out_of_sequence(header, 0)
        ended = self._epoch_floor - 1 if held is None else held.producer_epoch
        if header.producer_epoch <= ended:
            raise StaleProducerEpoch(
                f"producer epoch {header.producer_epoch} has ended: those up to {ended} are in use or forgotten",
                producer_epoch=ended,
            )
        if header.sequence:
            raise _out_of_sequence(header, 0)
        if header.producer_epoch > ended + PRODUCER_EPOCH_JUMP_MAX:
            raise BadBatch(
                f"producer epoch {header.producer_epoch} is more than {PRODUCER_EPOCH_JUMP_MAX} above {ended}, "
                "the last one that ended; count them up one by one"
            )

    def _follow(self, header: BatchHeader) -> None:
        key = (header.producer_id, header.queue_id)
        held = self._sequences.get(key)
        if held is None or header.producer_epoch > held.producer_epoch:
            held = self._sequences[key] = _Sequence(header.producer_epoch)
            self._expires_us = min(self._expires_us, header.append_time_us + self._expiry_us)
        elif header.producer_epoch < held.producer_epoch or header.sequence < held.next_sequence:
            return
        self._sequences.move_to_end(key)
        if len(self._sequences) > self._producers_max:
            self._forget_excess()
        held.last_append_time_us = header.append_time_us
        held.next_sequence = header.sequence + header.record_count
        landed = held.landed
        landed[header.sequence] = landed_of(header)
        if len(landed) > REMEMBERED_BATCHES:
            del landed[next(iter(landed))]

    def _restore(self, state: ProducerState) -> None:
        key = (state.producer_id, state.queue_id)
        held = self._sequences.get(key)
        if held is None or state.producer_epoch > held.producer_epoch:
            held = self._sequences[key] = _Sequence(state.producer_epoch)
            self._unsorted = True
        elif state.producer_epoch < held.producer_epoch:
            return
        held.next_sequence = max(held.next_sequence, state.next_sequence)
        held.last_append_time_us = max(held.last_append_time_us, state.last_append_time_us)
        _remember(held, state)

    def _sort(self) -> None:
        """A checkpoint is complete: all who are in it, and all who wrote since it began, are known now."""
        if self._unsorted:
            self._unsorted = False
            self._sequences = OrderedDict(sorted(self._sequences.items(), key=_last_place))
            self._expires_us = 0  # look again who is first
            self._forget_excess()

    def _expire(self, now_us: int) -> None:
        """Forget who was idle for too long before the log's time `now_us`."""
        self._expires_us = _NEVER_US
        while self._sequences:
            first = self._sequences[next(iter(self._sequences))]
            expires_us = first.last_append_time_us + self._expiry_us
            if now_us <= expires_us:
                self._expires_us = expires_us
                return
            self._forget_first()

    def _forget_excess(self) -> None:
        while len(self._sequences) > self._producers_max and not self._unsorted:
            self._forget_first()

    def _forget_first(self) -> None:
        _, held = self._sequences.popitem(last=False)
        self._epoch_floor = max(self._epoch_floor, min(held.producer_epoch + 1, PRODUCER_EPOCH_MAX))


def _last_place(item: tuple[ProducerKey, _Sequence]) -> tuple[int, ProducerKey]:
    """The log offset of a producer's last batch; those whose queue has brought them along have the same."""
    landed = item[1].landed
    return landed[next(reversed(landed))].log_offset if landed else 0, item[0]


def _remember(held: _Sequence, state: ProducerState) -> None:
    """Batches that the checkpoint knows of go before those that came since."""
    known = held.landed
    held.landed = {sequence: _restored(facts) for sequence, facts in state.landed.items()}
    if known:
        merged = sorted({**held.landed, **known}.items())
        held.landed = dict(merged[-REMEMBERED_BATCHES:])


def _out_of_sequence(header: BatchHeader, expected: int) -> OutOfSequence:
    return OutOfSequence(
        f"sequence {header.sequence} does not follow {expected - 1}, the last one held", last=expected - 1
    )


def _same(header: BatchHeader, landed: Landed) -> Landed:
    if (header.crc, header.record_count) != (landed.crc, landed.record_count):
        raise BadBatch(
            f"sequence {header.sequence} was used for another batch; a retry sends the identical bytes",
            producer_epoch=header.producer_epoch,
        )
    return landed
