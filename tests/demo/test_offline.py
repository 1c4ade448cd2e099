"""What the demo reads from disk behind the nodes' back."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from demo.offline import compare_logs, end_of_log
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.config import LogSettings
from mirrorlog.errors import MirrorlogError

LOG_ID = UUID(int=7)
SEGMENT = 256 * 1024


def make_log(data_dir: Path, batches: int) -> int:
    """A log of `batches` batches over several segments; its end."""
    log = CommitLog.open(
        data_dir / "logs" / str(LOG_ID),
        log_id=LOG_ID,
        cluster_id=UUID(int=1),
        name="main",
        settings=LogSettings(segment_bytes=SEGMENT),
        max_batch_bytes=SEGMENT,
        on_batch=lambda header, batch: None,
    )
    log.open_epoch(1)
    for number in range(batches):
        batch = encode_batch([Record(b"%d" % number * 10_000)], queue_id=1)
        log.append(memoryview(batch), base_queue_offset=number, append_time_us=number)
    end = log.end
    log.close()
    return end


def test_the_end_is_that_of_the_last_whole_batch(tmp_path: Path) -> None:
    """Over several segments, and again with the last byte of the last batch damaged."""
    end = make_log(tmp_path, 40)
    assert end > SEGMENT
    assert end_of_log(tmp_path, str(LOG_ID)) == end
    last = max((tmp_path / "logs" / str(LOG_ID)).glob("[0-9]*"))
    with last.open("r+b") as file:
        file.seek(end - int(last.name) - 8)
        file.write(b"\xff")
    assert end_of_log(tmp_path, str(LOG_ID)) < end


def test_a_difference_is_found(tmp_path: Path) -> None:
    """Equal copies compare equal; one changed byte, or a missing file, is named."""
    for node in ("n1", "n2"):
        make_log(tmp_path / node, 40)
    directories = {"n1": tmp_path / "n1", "n2": tmp_path / "n2"}
    files, size = compare_logs(directories, str(LOG_ID))
    assert (files, size) == (files, files * SEGMENT)
    last = max((tmp_path / "n2" / "logs" / str(LOG_ID)).glob("[0-9]*"))
    content = bytearray(last.read_bytes())
    content[-1] ^= 1
    last.write_bytes(content)
    with pytest.raises(MirrorlogError, match="differs between n1 and n2"):
        compare_logs(directories, str(LOG_ID))
    last.unlink()
    with pytest.raises(MirrorlogError, match="different segments"):
        compare_logs(directories, str(LOG_ID))
