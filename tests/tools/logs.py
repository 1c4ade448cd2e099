"""Log directories on disk for the offline tools."""

from contextlib import closing
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.body import Record, encode_batch
from mirrorlog.commitlog.checkpoint import Checkpoint, CheckpointFile
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.commitlog.format import BatchHeader, Kind
from mirrorlog.queues.changes import EpochStarted, QueueDeclared, encode_change
from tests.commitlog.logs import LOG_ID, append, append_sizes, open_log

APPEND_TIME_US: Final = 1_795_261_291_850_475
BATCH_BYTES: Final = 1024
SEGMENT_BYTES: Final = 16 * BATCH_BYTES


def make_log(directory: Path, *, batches: int = 40, flushed: bool = True) -> list[BatchHeader]:
    """A closed log of equal batches over several segments; their headers. Without `flushed` its checkpoint says that
    nothing was on disk yet, as after a crash."""
    log = open_log(directory, segment_bytes=SEGMENT_BYTES, epoch=1)
    headers = append_sizes(log, [BATCH_BYTES] * batches)
    log.set_confirmed(log.end)
    log.close()
    if not flushed:
        with closing(CheckpointFile.open(OS_FILES, directory, LOG_ID)) as file:
            file.write_both(Checkpoint(0, 0, 0))
    return headers


def make_story(directory: Path) -> None:
    """A closed log with one batch of every kind that a node writes."""
    log = open_log(directory, epoch=1)
    append(log, memoryview(encode_change(EpochStarted(epoch=1, node_id="n1", start_id="s-1"))))
    declared = QueueDeclared(name="flights", queue_id=1, arguments={"x-max-age": "7D"})
    append(log, memoryview(encode_change(declared)))
    records = [Record(b"v", b"k", [("row", b"0")], 1_357_000_000_000_000), Record(None)]
    data = encode_batch(records, queue_id=1, kind=Kind.DATA, producer_id=77, producer_epoch=1, sequence=5)
    log.append(memoryview(data), base_queue_offset=5, append_time_us=APPEND_TIME_US)
    log.set_confirmed(log.end)
    log.close()


def overwrite(directory: Path, log_offset: int, content: bytes) -> None:
    """Damage the stored bytes at `log_offset`."""
    starts = sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    start = max(start for start in starts if start <= log_offset)
    with (directory / f"{start:020d}").open("r+b") as file:
        file.seek(log_offset - start)
        file.write(content)


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below with its bytes and modification time in ns."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
