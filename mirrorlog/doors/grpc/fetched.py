"""What one fetch brought, proven and cut to what a reader asked for: batches, records not touched. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from mirrorlog.commitlog.format.header import BatchHeader, Buffer, check_body, check_stamped, log_seed, read_header
from mirrorlog.errors import BadBatch, ProtocolError
from mirrorlog.wire.frames import Batches

# The frame's own limit has held already; a batch's length is only checked against the bytes that are there.
_BATCH_BYTES_MAX: Final = 2**31


class BatchPlace(NamedTuple):
    """A batch whose first byte is at `at` of the content."""

    at: int
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class FetchSource:
    """Where batches come from."""

    queue: str
    log_id: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """The records with queue offsets `first` up to `next` (exclusive) are the reader's; `places` holds all their
    batches. `epoch`: of the last one. `begin`, `end`: the confirmed records that the node knew, `end` exclusive."""

    source: FetchSource
    content: memoryview
    places: Sequence[BatchPlace]
    first: int
    next: int
    epoch: int
    begin: int
    end: int

    @property
    def batches(self) -> memoryview:
        """The bytes of all places, back to back."""
        if not self.places:
            return self.content[:0]
        last = self.places[-1]
        return self.content[self.places[0].at : last.at + last.header.length]


def read_fetched(
    facts: Batches, content: Buffer, source: FetchSource, *, queue_offset: int, epoch: int, until: int | None
) -> Fetched:
    """What a fetch at `queue_offset` brought, for a reader that has read in `epoch` so far and stops at `until`.

    Every batch is proven by its checksums, here, where another copy can still be asked. What stands in front of a bad
    one is given out before the bad one is asked for again. Raises BadBatch or ProtocolError.
    """
    view = memoryview(content)
    places = _places(view, facts.batch_count, source)
    _check_order(places, queue_offset, source)
    following = places[-1].header.next_queue_offset if places else queue_offset
    if until is not None and following > until:
        following = until
        places = [place for place in places if place.header.base_queue_offset < until]
    return Fetched(
        source=source,
        content=view,
        places=places,
        first=queue_offset,
        next=following,
        epoch=places[-1].header.epoch if places else epoch,
        begin=facts.begin,
        end=facts.next,
    )


def _places(content: memoryview, count: int, source: FetchSource) -> list[BatchPlace]:
    seed = log_seed(UUID(source.log_id))
    found: list[BatchPlace] = []
    at = 0
    for _ in range(count):
        try:
            header = _proven(content, at, seed, source)
        except BadBatch:
            if not found:
                raise
            return found
        found.append(BatchPlace(at, header))
        at += header.length
    if at != len(content):
        raise ProtocolError(f"node {source.node_id} answered with {len(content)} bytes for batches of {at}")
    return found


def _proven(content: memoryview, at: int, seed: int, source: FetchSource) -> BatchHeader:
    log_offset = read_header(content, at).log_offset
    try:
        header = check_stamped(content, at, log_offset=log_offset, seed=seed, max_batch_bytes=_BATCH_BYTES_MAX)
        check_body(content, at, header)
    except BadBatch as error:
        raise BadBatch(f"queue {source.queue!r}, log offset {log_offset}: {error}", log_offset=log_offset) from None
    return header


def _check_order(places: Sequence[BatchPlace], queue_offset: int, source: FetchSource) -> None:
    """Each batch has something behind what came before it."""
    reached = queue_offset
    for _, header in places:
        if header.next_queue_offset <= reached:
            raise ProtocolError(
                f"node {source.node_id} answered with records below queue offset {reached} of {source.queue!r}"
            )
        reached = header.next_queue_offset
