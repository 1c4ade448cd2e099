"""`mqtool restore`: a data directory is made of a backup, of another cluster's first node. Offline."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Annotated, Final
from uuid import UUID, uuid4

import typer

from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.format.header import batch_length
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.segments.scan import ignore_batch
from mirrorlog.config import LogSettings
from mirrorlog.errors import BadInput, Refused
from mirrorlog.tools.backups.folder import MANIFEST, STATE, UNFINISHED, CopyingProgress, Folder, KeptLog, Manifest
from mirrorlog.tools.common.options import AsJson
from mirrorlog.tools.common.output import emit

RUN_BYTES: Final = 1024 * 1024
BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
_SEGMENT_BYTES: Final = 64 * 1024 * 1024


def restore(
    folder: Annotated[Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The backup.")],
    *,
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Of the node that begins; it must not be there yet.")],
    node_id: Annotated[str, typer.Option("--node-id", help="Its name.")],
    cluster_name: Annotated[str, typer.Option("--cluster-name", help="Of the new cluster; by default as before.")] = "",
    as_json: AsJson = False,
) -> None:
    """Make a data directory of a backup: of a new cluster's first node, with all that the other one held. Offline.

    Everything is checked before anything is written. The cluster has an id of its own, and no node of the former one:
    start this node, then others with --join, each with a blank disk. Queue offsets, headers, times, groups and what
    they have not settled, exchanges, users, policies are as they were. Nothing that is there is written over.

    Example: mqtool restore backups/main --data-dir data --node-id n1
    """
    source = Folder(folder)
    with source.held():
        manifest = source.read(MANIFEST)
        if manifest is None and (folder / UNFINISHED).exists():
            raise BadInput(f"{folder} is incomplete: run mqtool backup once more, it goes on where it was cut short")
        if manifest is None:
            raise BadInput(f"{folder} holds no backup: it has no {MANIFEST}")
        if data_dir.exists() and (not data_dir.is_dir() or any(data_dir.iterdir())):
            raise Refused(f"{data_dir} is there and not empty; a restore writes over nothing")
        _check(source, manifest)
        cluster_id = uuid4()
        manifest.cluster_name = cluster_name or manifest.cluster_name
        _restore(source, manifest, data_dir, node_id, cluster_id)
    fields = {"data_dir": str(data_dir), "node_id": node_id, "cluster_id": str(cluster_id)}
    start = shlex.join(["mqnode", "--node-id", node_id, "--data-dir", str(data_dir)])
    emit(as_json, fields, f"{data_dir}: node {node_id} of cluster {cluster_id}; start it: {start}")


def _check(source: Folder, manifest: Manifest) -> None:
    """Raises BadInput."""
    progress = CopyingProgress("checked", sum(part.bytes for log in manifest.logs for part in log.parts))
    for kept in manifest.files:
        source.check(kept)
    for log in manifest.logs:
        at = min(log.parts[0].first, log.begin) if log.parts else log.begin
        for part in log.parts:
            if part.first != at:
                raise BadInput(f"{source.path}: bytes {at} to {part.first} of log {log.name} are missing")
            source.check(part)
            at += part.bytes
            progress.add(part.bytes)
        if at != log.end:
            raise BadInput(f"{source.path}: bytes {at} to {log.end} of log {log.name} are missing")


def _restore(source: Folder, manifest: Manifest, data_dir: Path, node: str, cluster_id: UUID) -> None:
    """In a folder beside, which is named at the end: what is cut short is no node's directory."""
    from mirrorlog.cluster.membership.recovering import begin_restored, check_state

    making = data_dir.with_name(f"{data_dir.name}.restoring")
    state_file = next(source.path / each.file for each in manifest.files if each.file.endswith(f".{STATE}"))
    state = check_state(state_file.read_bytes(), str(state_file))
    shutil.rmtree(making, ignore_errors=True)
    with DataDirectory.open(making, cluster_id=cluster_id, node_id=node) as directory:
        progress = CopyingProgress("restored", sum(log.end - log.begin for log in manifest.logs))
        for log in manifest.logs:
            _restore_log(source, log, directory.log_directory(UUID(log.id)), cluster_id, progress)
        epochs = {log.id: max((epoch for epoch, *_ in log.epochs), default=0) for log in manifest.logs}
        begin_restored(
            OS_FILES, making, state, node=node, cluster_id=cluster_id, name=manifest.cluster_name, epochs=epochs
        )
    if data_dir.exists():
        data_dir.rmdir()
    making.rename(data_dir)
    OS_FILES.fsync_directory(data_dir.parent)


def _restore_log(source: Folder, log: KeptLog, directory: Path, cluster_id: UUID, progress: CopyingProgress) -> None:
    """As a mirror takes it, each batch checked once more."""
    size = log.end - log.begin
    segment = min(LogSettings().segment_bytes, max(_SEGMENT_BYTES, -(-size // _SEGMENT_BYTES) * _SEGMENT_BYTES))
    made = CommitLog.open(
        directory,
        log_id=UUID(log.id),
        cluster_id=cluster_id,
        name=log.name,
        number=log.number,
        settings=LogSettings(segment_bytes=segment, prepare_bytes=0),
        max_batch_bytes=BATCH_BYTES_MAX,
        on_batch=ignore_batch,
        begin=log.begin,
        first_epochs=log.epoch_list.entries,
        write_through=True,
    )
    try:
        for part in log.parts:
            content = memoryview((source.path / part.file).read_bytes())[max(0, log.begin - part.first) :]
            while content:
                run = content[: _whole(content, RUN_BYTES)]
                made.append_run(run, log_offset=made.end)
                content = content[len(run) :]
                progress.add(len(run))
            made.set_confirmed(made.end)
            _flush(made)
        made.set_confirmed(made.end)
        _flush(made)
    finally:
        made.close()


def _flush(log: CommitLog) -> None:
    job = log.start_flush()
    job.run()
    log.complete_flush(job)


def _whole(content: memoryview, most: int) -> int:
    """The length of the whole batches at the beginning of `content`, at most that long, and one at least."""
    end = batch_length(content)
    while end < len(content) and end + (length := batch_length(content[end:])) <= most:
        end += length
    return end
