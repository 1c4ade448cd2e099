"""A transaction's envelope: one batch whose body is whole batches, of several queues.

    offset  size
         0    96  header of kind TRANSACTION: queue id 0, no codec, no columns, no producer; `record_count` is the
                  number of batches inside
        96     …  the batches inside, one after the other up to the end: kind data or queue-state change, each with its
                  own header, stamped for its own place in the log, with flag `inner`

The envelope is the unit: it is copied, confirmed, cut and found torn as one, by its own length and checksum. What
stands inside is read as it would be outside, for it has its own place and checksums. So readers know no transactions:
indexes name the places of what is inside, and reads may begin there. Whoever walks a log meets the envelope, then what
is in it.

Flag `inner` keeps a batch whose envelope was torn from counting as a batch that stands behind bad bytes.

Rejected: a flag on ordinary batches that says "the next one too" (a crash between two of them leaves whole batches that
must not count, which every walk would have to look ahead for); a begin and an end marker (the same, and readers have to
wait for the end).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mirrorlog.commitlog.format.header import (
    CONTROL_QUEUE_ID,
    HEADER_SIZE,
    KIND_AT,
    BatchHeader,
    Codec,
    Flag,
    Kind,
    batch_length,
    check_body,
    check_stamped,
    read_header,
    stamp,
    write_producer_part,
)
from mirrorlog.errors import BadBatch

_TRANSACTION: Final = int(Kind.TRANSACTION)
_DATA: Final = int(Kind.DATA)
_INNER: Final = int(Flag.INNER)
_KINDS: Final = frozenset({int(Kind.DATA), int(Kind.QUEUE_STATE)})


class EnvelopePart(NamedTuple):
    """A whole batch, as checked (`check_producer_part`), and the queue offset of its first record; 0 of a change.
    `flags`: besides `INNER`."""

    batch: memoryview | bytearray
    base_queue_offset: int
    flags: int = 0


def envelope_bytes(parts: Sequence[memoryview | bytearray]) -> int:
    """The size of the envelope that holds these batches."""
    return HEADER_SIZE + sum(map(len, parts))


def seal_envelope(
    parts: Sequence[EnvelopePart], *, log_offset: int, append_time_us: int, epoch: int, seed: int
) -> tuple[bytearray, list[BatchHeader]]:
    """The bytes of the envelope that stands at `log_offset`, and its header and those inside, in log order."""
    envelope = bytearray(envelope_bytes([part.batch for part in parts]))
    at = HEADER_SIZE
    headers: list[BatchHeader] = []
    with memoryview(envelope) as view:
        for part in parts:
            inner = view[at : at + len(part.batch)]
            inner[:] = part.batch
            stamp(
                inner,
                log_offset=log_offset + at,
                base_queue_offset=part.base_queue_offset,
                append_time_us=append_time_us,
                epoch=epoch,
                flags=_INNER | part.flags,
                seed=seed,
            )
            headers.append(read_header(inner))
            at += len(part.batch)
        write_producer_part(view, kind=Kind.TRANSACTION, queue_id=CONTROL_QUEUE_ID, record_count=len(parts), columns=0)
        stamp(
            view,
            log_offset=log_offset,
            base_queue_offset=0,
            append_time_us=append_time_us,
            epoch=epoch,
            flags=0,
            seed=seed,
        )
        return envelope, [read_header(view), *headers]


def open_envelope(envelope: memoryview, header: BatchHeader, *, seed: int) -> list[BatchHeader]:
    """The headers of what is inside, in log order, each checked whole. `envelope`: its bytes, whose checksum matched.

    Raises BadBatch: a broken master has written it.
    """
    _check_outer(header)
    headers: list[BatchHeader] = []
    at = HEADER_SIZE
    while at < header.length:
        inner = check_stamped(
            envelope, at, log_offset=header.log_offset + at, seed=seed, max_batch_bytes=header.length - at
        )
        if inner.kind not in _KINDS or not inner.flags & _INNER or inner.epoch != header.epoch:
            raise BadBatch(f"a batch of kind {inner.kind}, epoch {inner.epoch} does not belong into a transaction")
        check_body(envelope, at, inner)
        headers.append(inner)
        at += inner.length
    if len(headers) != header.record_count:
        raise BadBatch(f"a transaction of {header.record_count} batches holds {len(headers)}")
    return headers


def holds_data(inside: memoryview | bytes) -> bool:
    """Whether one of the batches inside is data; `inside`: all that follows the envelope's header, checked."""
    at = 0
    while at < len(inside):
        if inside[at + KIND_AT] == _DATA:
            return True
        at += batch_length(inside[at : at + HEADER_SIZE])
    return False


def inner_bytes(envelope: memoryview, outer: BatchHeader, inner: BatchHeader) -> memoryview:
    """The bytes of one of the batches inside."""
    at = inner.log_offset - outer.log_offset
    return envelope[at : at + inner.length]


def _check_outer(header: BatchHeader) -> None:
    plain = header.codec == Codec.NONE and not header.columns and not header.padding and not header.producer_id
    if not plain or header.queue_id != CONTROL_QUEUE_ID or header.flags:
        raise BadBatch("the header of a transaction says what only batches of a queue have")
