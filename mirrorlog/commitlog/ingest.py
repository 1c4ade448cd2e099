"""The check of what a mirror receives: whole batches, as its master stamped them."""

from __future__ import annotations

from mirrorlog.commitlog.envelope import is_envelope, is_inner, open_envelope
from mirrorlog.commitlog.epochs import EpochList
from mirrorlog.commitlog.format import BatchHeader, check_body, check_stamped
from mirrorlog.errors import BadBatch


def check_run(
    run: memoryview, *, log_offset: int, seed: int, epochs: EpochList, max_batch_bytes: int
) -> list[BatchHeader]:
    """The headers of the 1..n batches of `run`, each checked whole: header, body, place, and the epoch that the list
    gives there; behind the header of a transaction those of what is inside. Raises BadBatch."""
    headers: list[BatchHeader] = []
    at = 0
    while at < len(run) or not headers:
        place = log_offset + at
        header = check_stamped(run, at, log_offset=place, seed=seed, max_batch_bytes=max_batch_bytes)
        if header.epoch != epochs.at(place):
            raise BadBatch(f"epoch {header.epoch} at log offset {place}, the epoch list has {epochs.at(place)}")
        check_body(run, at, header)
        if is_inner(header):
            raise BadBatch(f"the batch at log offset {place} belongs to a transaction that does not begin there")
        headers.append(header)
        if is_envelope(header):
            headers += open_envelope(run[at : at + header.length], header, seed=seed)
        at += header.length
    return headers
