"""Which batch each idempotent producer may send next, and where its last ones landed (invariant 9).

The sequence is the number of a batch's first record per (producer id, producer epoch, queue), from 0; the next one is
sequence + count. A batch that was appended already is answered with the place of its first copy; anything else that
does not follow is refused naming the last one held. Rebuilt from batch headers alone.

Pure: headers in, verdicts out.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from mirrorlog.commitlog.format import NO_PRODUCER, BatchHeader, Flag, Kind
from mirrorlog.errors import BadBatch, OutOfSequence, StaleProducerEpoch

# A client keeps at most this many batches of a queue in flight, so a retry is always among the remembered ones.
REMEMBERED_BATCHES: Final = 64

_NUMBERED: Final = frozenset({Kind.DATA, Kind.TRANSACTION})


class Landed(NamedTuple):
    """Where a batch went: enough to answer its retry."""

    crc: int
    record_count: int
    log_offset: int
    base_queue_offset: int
    next_log_offset: int
    epoch: int


class _Sequence:
    __slots__ = ("landed", "next_sequence", "producer_epoch")

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.next_sequence = 0
        self.landed: OrderedDict[int, Landed] = OrderedDict()


class ProducerTable:
    """One log's producers; at most `producers_max` of them and their queues, the longest idle goes first.

    A producer that was forgotten is told OutOfSequence and goes on under a new producer epoch.
    """

    def __init__(self, *, producers_max: int = 100_000) -> None:
        self._producers_max = producers_max
        self._sequences: OrderedDict[tuple[int, int], _Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def check(self, header: BatchHeader) -> Landed | None:
        """None: append it. Landed: it is here already.

        Raises StaleProducerEpoch, OutOfSequence (`details["last"]`: last sequence held, -1 for none) or BadBatch.
        """
        if header.producer_id == NO_PRODUCER:
            return None
        held = self._sequences.get((header.producer_id, header.queue_id))
        if held is None or header.producer_epoch > held.producer_epoch:
            expected = 0
        elif header.producer_epoch < held.producer_epoch:
            raise StaleProducerEpoch(
                f"producer epoch {header.producer_epoch} has ended, {held.producer_epoch} is in use",
                producer_epoch=held.producer_epoch,
            )
        elif (landed := held.landed.get(header.sequence)) is not None:
            return _same(header, landed)
        else:
            expected = held.next_sequence
        if header.sequence != expected:
            raise OutOfSequence(
                f"sequence {header.sequence} does not follow {expected - 1}, the last one held", last=expected - 1
            )
        return None

    def apply(self, header: BatchHeader) -> None:
        """A batch was appended."""
        if header.producer_id == NO_PRODUCER or header.kind not in _NUMBERED or header.flags & Flag.COPIED:
            return
        key = (header.producer_id, header.queue_id)
        held = self._sequences.get(key)
        if held is None or header.producer_epoch > held.producer_epoch:
            held = self._sequences[key] = _Sequence(header.producer_epoch)
        self._sequences.move_to_end(key)
        if len(self._sequences) > self._producers_max:
            self._sequences.popitem(last=False)
        if header.producer_epoch < held.producer_epoch or header.sequence < held.next_sequence:
            return
        held.next_sequence = header.next_sequence
        held.landed[header.sequence] = Landed(
            header.crc,
            header.record_count,
            header.log_offset,
            header.base_queue_offset,
            header.next_log_offset,
            header.epoch,
        )
        if len(held.landed) > REMEMBERED_BATCHES:
            held.landed.popitem(last=False)


def _same(header: BatchHeader, landed: Landed) -> Landed:
    if (header.crc, header.record_count) != (landed.crc, landed.record_count):
        raise BadBatch(f"sequence {header.sequence} was used for another batch; a retry sends the identical bytes")
    return landed
