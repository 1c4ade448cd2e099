"""Logs and batches for the tests of the commit log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import UUID

from mirrorlog.commitlog.epochs import EpochLike
from mirrorlog.commitlog.files import OS_FILES, Files
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, Kind, is_inner
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.recovery.opening import OnPast
from mirrorlog.commitlog.segments.scan import OnBatch, ignore_batch
from mirrorlog.config import LogSettings

LOG_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")
CLUSTER_ID = UUID("c0000000-0000-0000-0000-000000000001")
KIB = 1024
MAX_BATCH_BYTES = 256 * KIB


def open_log(
    directory: Path,
    *,
    segment_bytes: int = 256 * KIB,
    files: Files = OS_FILES,
    on_batch: OnBatch = ignore_batch,
    on_past: OnPast = lambda tables: None,
    begin: int = 0,
    first_epochs: Iterable[EpochLike] = (),
    epoch: int | None = None,
    log_id: UUID = LOG_ID,
    cluster_id: UUID = CLUSTER_ID,
    populate_bytes: int = 64 * KIB,
    prepare_bytes: int = 0,
    prepare_at_rest_bytes: int | None = None,
    kept_mapped_bytes: int = 1 << 28,
    write_through: bool = False,
) -> CommitLog:
    """A log with small segments; with `epoch` that epoch is opened, as a master does at its start."""
    # model_construct: the tests roll after a few batches, below the least that a user may set.
    settings = LogSettings.model_construct(
        segment_bytes=segment_bytes,
        populate_bytes=populate_bytes,
        prepare_bytes=prepare_bytes,
        prepare_at_rest_bytes=prepare_bytes if prepare_at_rest_bytes is None else prepare_at_rest_bytes,
        kept_mapped_bytes=kept_mapped_bytes,
    )
    log = CommitLog.open(
        directory,
        log_id=log_id,
        cluster_id=cluster_id,
        name="main",
        settings=settings,
        max_batch_bytes=MAX_BATCH_BYTES,
        on_past=on_past,
        begin=begin,
        first_epochs=first_epochs,
        on_batch=on_batch,
        write_through=write_through,
        files=files,
    )
    if epoch is not None:
        log.open_epoch(epoch)
    return log


def make_batch(value: bytes = b"v", *, records: int = 1, queue_id: int = 1, kind: Kind = Kind.DATA) -> memoryview:
    return memoryview(encode_batch([Record(value)] * records, queue_id=queue_id, kind=kind))


def sized_batch(length: int, fill: int = 1) -> memoryview:
    """A batch of exactly `length` bytes (a multiple of 8, at least 112)."""
    return make_batch(bytes([fill]) * (length - 96 - 8))


def append(log: CommitLog, batch: memoryview, base_queue_offset: int = 0) -> BatchHeader:
    return log.append(batch, base_queue_offset=base_queue_offset, append_time_us=1_000_000)


def append_sizes(log: CommitLog, sizes: Iterable[int]) -> list[BatchHeader]:
    return [append(log, sized_batch(size, fill=1 + index % 255), index) for index, size in enumerate(sizes)]


def flush(log: CommitLog) -> int:
    job = log.start_flush()
    job.run()
    return log.complete_flush(job)


def warm(log: CommitLog) -> bool:
    """Run one job that warms and one that prepares; False when none was due."""
    return warm_pages(log) | prepare(log)


def warm_pages(log: CommitLog) -> bool:
    job = log.start_warm()
    if job is not None:
        job.run()
        log.complete_warm(job)
    return job is not None


def prepare(log: CommitLog) -> bool:
    job = log.start_prepare()
    if job is not None:
        job.run()
        log.complete_prepare(job)
    return job is not None


def stored(log: CommitLog) -> bytes:
    """Every byte of the log, read by pread; what is inside of transactions comes with them."""
    parts: list[bytes] = []
    log.scan(log.begin, lambda header, batch: None if is_inner(header) else parts.append(bytes(batch)))
    return b"".join(parts)


def mapped(log: CommitLog, max_bytes: int = 1 << 30) -> bytes:
    """Every byte of the log, as a mirror would be sent it: mapped where possible, cold else."""
    parts: list[bytes] = []
    at = log.begin
    while at < log.end:
        run = log.read(at, max_bytes, until=log.end)
        part = bytes(run if run is not None else log.read_cold(at, max_bytes, until=log.end).run())
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def abandon(log: CommitLog) -> None:
    """What a SIGKILL leaves: the files as they are, no flush, no checkpoint. The log must not be used any more."""
    log._chain.close()
    log._flusher.close()


def segment_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.isdigit())


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file of a directory with its bytes."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def patch(path: Path, at: int, content: bytes) -> None:
    """Overwrite bytes in a file, its size unchanged."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


def offsets(headers: Sequence[BatchHeader]) -> list[int]:
    return [header.log_offset for header in headers]
