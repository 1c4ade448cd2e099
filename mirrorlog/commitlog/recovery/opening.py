"""Opening a log's directory: whose it is, what its checkpoint and epoch list say, and recovery.

log.json        log id, cluster id, name, format version; written last, so a directory with it is complete
epochs          see `epochs`
checkpoint      see `flush`
<20 digits>     segments, see `chain`
<digits>.table  where the batches of a sealed segment stand, see `table`
lossy           what a recovery lost that nobody has acted on yet, see `recovery.LossNote`
doubtful        bad bytes were met while the log was in use, see `Doubt`
index/          which segment holds which records, see `past`
spare-<n>       a file prepared for the next segment, see `preallocation`

Bad bytes below the flushed offset are LogCorrupt. Whoever can do without them opens the log once more with that error:
then it ends where they begin, can be read and compared, and takes nothing; its files stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from mirrorlog.commitlog.directory import check_identity, write_identity
from mirrorlog.commitlog.epochs import FILE_NAME as EPOCHS_NAME
from mirrorlog.commitlog.epochs import EpochList, load_epochs, store_epochs
from mirrorlog.commitlog.files import Files
from mirrorlog.commitlog.flush import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.flush import Checkpoint, CheckpointFile, Flusher
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.recovery import LossNote, Recovery, RecoveryReport
from mirrorlog.commitlog.segments.chain import SegmentChain
from mirrorlog.commitlog.segments.preallocation import Preparer, first_file_bytes
from mirrorlog.commitlog.segments.scan import BatchRules, OnBatch
from mirrorlog.commitlog.segments.segment import Segment, segment_name, segment_start
from mirrorlog.commitlog.segments.warming import Warmer
from mirrorlog.config import LogSettings
from mirrorlog.errors import ForeignDirectory, IndexDoubtful, LogCorrupt

FILE_NAME: Final = "doubtful"


class Doubt:
    """The mark in a log's directory that bad bytes were met while the log was in use: the next opening believes no
    table before it has read what the table speaks of. An empty file: a name may still be taken by a disk that takes no
    more bytes. Every method blocks and raises OSError."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / FILE_NAME

    @property
    def there(self) -> bool:
        """Whether it was raised and nobody has looked since."""
        return self._files.exists(self._path)

    def raise_(self) -> None:
        """On disk when this returns."""
        self._files.open(self._path, create=True).close()
        self._files.fsync_directory(self._path.parent)

    def settle(self) -> None:
        """Everything was read, or what is bad was cut."""
        if self.there:
            self._files.unlink(self._path)
            self._files.fsync_directory(self._path.parent)


OnPast = Callable[[Tables], None]
"""Called before any batch, with the tables of the segments whose batches are not given; again, when it raises
IndexDoubtful, after all of them were checked and damaged ones made anew."""

IDENTITY_NAME: Final = "log.json"
NO_CHECKPOINT: Final = (
    "no valid checkpoint was found: every byte was treated as not yet flushed, so damage was cut instead of refused"
)


@dataclass(slots=True)
class OpenedLog:
    """The parts of a log that is ready to be used."""

    chain: SegmentChain
    flusher: Flusher
    warmer: Warmer
    preparer: Preparer
    tables: Tables
    loss: LossNote
    doubt: Doubt
    epochs: EpochList
    report: RecoveryReport
    confirmed: int
    state_from: int
    last_append_time_us: int


class FirstState(NamedTuple):
    """Of a log that is made now: where it begins, and the epochs that it has then."""

    begin: int
    epochs: EpochList


def open_directory(
    files: Files,
    directory: Path,
    *,
    identity: Mapping[str, str | int],
    log_id: UUID,
    seed: int,
    settings: LogSettings,
    max_batch_bytes: int,
    first: FirstState,
    write_through: bool,
    on_past: OnPast,
    on_recorded: Callable[[int], None],
    on_batch: OnBatch,
    corrupt: Range | None = None,
) -> OpenedLog:
    """Make or recover the log in `directory`. `corrupt`: the bad bytes before which it shall end.

    Raises ForeignDirectory, LogCorrupt (then nothing was changed but tables, which are derived), DiskFull and OSError.
    """
    _prepare(files, directory, identity, log_id, first)
    epochs = _load_epochs(files, directory)
    checkpoints = _open_checkpoints(files, directory, log_id)
    recorded = checkpoints.stored if checkpoints is not None else None
    warnings = (NO_CHECKPOINT,) if recorded is None and _segment_starts(files, directory) else ()

    tables = Tables(files, directory, seed=seed)
    doubt = Doubt(files, directory)
    recovery = Recovery(
        files,
        directory,
        BatchRules(seed, epochs),
        recorded or Checkpoint(_first_start(files, directory), 0, 0),
        tables,
        stop_at=corrupt.first if corrupt is not None else None,
        # The pass that met the bad bytes has read all that stands before them.
        check_past=corrupt is None and doubt.there,
    )
    recovery.take_sealed()
    try:
        on_past(tables)
    except IndexDoubtful:
        recovery.check_tables()
        on_past(tables)
    on_recorded(recovery.recorded.confirmed)
    recovery.scan(on_batch)
    loss = LossNote(files, directory)
    begin, flushed, confirmed, state = recovery.recorded
    checkpoint = Checkpoint(begin, min(flushed, recovery.end), min(confirmed, recovery.end), min(state, recovery.end))
    if corrupt is None:
        # What is believed must be on disk before anything is done because of it: a killed process may have written it
        # only, the names of the epoch list and of files included.
        files.fsync_directory(directory)
        if checkpoints is not None and recorded is not None:
            checkpoints.write_both(recorded)
        if recovery.report(()).lossy:
            loss.note(recovery.report(()))
        recovery.repair()
        doubt.settle()
    if checkpoints is None:
        CheckpointFile.create(files, directory, log_id, Checkpoint(0, 0, 0))
        checkpoints = CheckpointFile.open(files, directory, log_id)
    if checkpoint != recorded and corrupt is None:
        checkpoints.write_both(checkpoint)

    preparer = Preparer(
        files,
        directory,
        segment_bytes=settings.segment_bytes,
        prepare_bytes=settings.prepare_bytes,
        at_rest_bytes=settings.prepare_at_rest_bytes,
        first_bytes=first_file_bytes(settings.segment_bytes, max_batch_bytes),
    )
    chain = SegmentChain(
        files, directory, recovery.segments or _no_segment(directory, begin, corrupt), preparer,
        kept_mapped_bytes=settings.kept_mapped_bytes, write_through=write_through,
    )  # fmt: skip
    if corrupt is None:
        if not chain.segments:
            chain.begin_first(begin)
        chain.open_files(checkpoint.flushed)
    flusher = Flusher(checkpoints, checkpoint.flushed)
    preparer.on_sync_failed = flusher.sync_failed
    return OpenedLog(
        chain=chain,
        flusher=flusher,
        warmer=Warmer(files, populate_bytes=0 if write_through else settings.populate_bytes),
        preparer=preparer,
        tables=tables,
        epochs=epochs,
        report=loss.told(recovery.report(warnings, corrupt)),
        loss=loss,
        doubt=doubt,
        confirmed=checkpoint.confirmed,
        state_from=checkpoint.state,
        last_append_time_us=recovery.last_append_time_us,
    )


def _prepare(files: Files, directory: Path, identity: Mapping[str, str | int], log_id: UUID, first: FirstState) -> None:
    """Check whose the directory is, or make it ours when nothing is there."""
    files.make_directory(directory)
    path = directory / IDENTITY_NAME
    if not files.exists(path):
        if _segment_starts(files, directory):
            raise ForeignDirectory(
                f"{directory} holds segments but no {IDENTITY_NAME}; restore that file or move them away"
            )
        begin = first.begin
        CheckpointFile.create(files, directory, log_id, Checkpoint(begin, begin, begin, begin))
        store_epochs(files, directory, first.epochs)
        write_identity(files, path, identity)
        files.fsync_directory(directory.parent)
    check_identity(files, path, identity)


def _load_epochs(files: Files, directory: Path) -> EpochList:
    try:
        return load_epochs(files, directory)
    except FileNotFoundError:
        raise LogCorrupt(f"{directory / EPOCHS_NAME} is missing; restore the log's directory from a copy") from None


def _open_checkpoints(files: Files, directory: Path, log_id: UUID) -> CheckpointFile | None:
    if not files.exists(directory / CHECKPOINT_NAME):
        return None
    return CheckpointFile.open(files, directory, log_id)


def _no_segment(directory: Path, begin: int, corrupt: Range | None) -> list[Segment]:
    """Of a log that is bad from its start offset on; it has no file."""
    return [Segment(begin, directory / segment_name(begin), 0, begin)] if corrupt is not None else []


def _segment_starts(files: Files, directory: Path) -> list[int]:
    return [start for name in files.listdir(directory) if (start := segment_start(name)) is not None]


def _first_start(files: Files, directory: Path) -> int:
    return min(_segment_starts(files, directory), default=0)
