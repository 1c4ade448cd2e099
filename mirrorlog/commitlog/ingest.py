"""The check of what a mirror receives: whole batches, as its master stamped them."""

from __future__ import annotations

from mirrorlog.commitlog.epochs import EpochList
from mirrorlog.commitlog.format import BatchHeader, check_body, check_stamped
from mirrorlog.errors import BadBatch


def check_run(
    run: memoryview, *, log_offset: int, seed: int, epochs: EpochList, max_batch_bytes: int
) -> list[BatchHeader]:
    """The headers of the 1..n batches of `run`, each checked whole: header, body, place, and the epoch that the list
    gives there. Raises BadBatch."""
    headers: list[BatchHeader] = []
    at = 0
    while at < len(run) or not headers:
        place = log_offset + at
        header = check_stamped(run, at, log_offset=place, seed=seed, max_batch_bytes=max_batch_bytes)
        if header.epoch != epochs.at(place):
            raise BadBatch(f"epoch {header.epoch} at log offset {place}, the epoch list has {epochs.at(place)}")
        check_body(run, at, header)
        headers.append(header)
        at += header.length
    return headers
