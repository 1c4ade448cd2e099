"""What one fetch brought, proven and cut to what a reader asked for: batches, records not touched. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirrorlog.client.consumer.records import ClosedBatch, sound_batches
from mirrorlog.errors import ProtocolError
from mirrorlog.wire.frames import Batches


@dataclass(frozen=True, slots=True)
class FetchSource:
    """Where batches come from."""

    queue: str
    log_id: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """The records with queue offsets `first` up to `next` (exclusive) are the reader's; `batches`: all that hold some
    of them. `epoch`: of the last one. `begin`, `end`: the confirmed records that the node knew, `end` exclusive."""

    source: FetchSource
    batches: Sequence[ClosedBatch]
    first: int
    next: int
    epoch: int
    begin: int
    end: int


def read_fetched(
    facts: Batches,
    content: bytes | memoryview,
    source: FetchSource,
    *,
    queue_offset: int,
    epoch: int,
    until: int | None,
    body_bytes_max: int,
) -> Fetched:
    """What a fetch at `queue_offset` brought, for a reader that has read in `epoch` so far and stops at `until`.

    Every batch is proven by its checksums, here, where another copy can still be asked. What stands in front of a bad
    one is given out before the bad one is asked for again. `body_bytes_max`: what a compressed body may have when it is
    opened. Raises BadBatch or ProtocolError.
    """
    batches, bad = sound_batches(
        content, facts.batch_count, queue=source.queue, log_id=source.log_id, body_bytes_max=body_bytes_max
    )
    if bad is not None and not batches:
        raise bad
    size = sum(len(batch.raw) for batch in batches)
    if bad is None and size != len(content):
        raise ProtocolError(f"node {source.node_id} answered with {len(content)} bytes for batches of {size}")
    _check_order(batches, queue_offset, source)
    following = batches[-1].next if batches else queue_offset
    if until is not None and following > until:
        following = until
        batches = [batch for batch in batches if batch.first < until]
    last_epoch = batches[-1].header.epoch if batches else epoch
    return Fetched(source, batches, queue_offset, following, last_epoch, facts.begin, facts.next)


def _check_order(batches: Sequence[ClosedBatch], queue_offset: int, source: FetchSource) -> None:
    """Each batch has something behind what came before it."""
    reached = queue_offset
    for batch in batches:
        if batch.next <= reached:
            raise ProtocolError(
                f"node {source.node_id} answered with records below queue offset {reached} of {source.queue!r}"
            )
        reached = batch.next
