"""A real process, killed while it appends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirrorlog.commitlog.log import CommitLog
from tests.commitlog.logs import open_log, stored

CHILD = """
import sys
from pathlib import Path
from mirrorlog.commitlog.log import CommitLog
from tests.commitlog.logs import append, flush, open_log, sized_batch, warm

log = open_log(Path(sys.argv[1]), segment_bytes=64 * 1024, epoch=int(sys.argv[2]))
number = log.recovery.batches
while True:
    warm(log)
    header = append(log, sized_batch(112 + number % 500 * 8, fill=number % 255 + 1), number)
    number += 1
    if number % 64 == 0:
        flush(log)
    print(header.next_log_offset, log.flushed, flush=True)
"""


def base_queue_offsets(log: CommitLog) -> list[int]:
    found: list[int] = []
    log.scan(0, lambda header, batch: found.append(header.base_queue_offset))
    return found


@pytest.mark.process
def test_a_process_killed_while_appending_loses_nothing_that_it_told(tmp_path: Path) -> None:
    """Goal: recovery after a real SIGKILL. Kill a child in its append loop four times; all it printed must be there."""
    end_before = 0
    for epoch in range(1, 5):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(epoch)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        assert child.stdout is not None
        told = [child.stdout.readline() for _ in range(100 + 37 * epoch)]
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
        child.stdout.close()
        assert child.wait(timeout=20) == -signal.SIGKILL
        whole = [line for line in told if line.endswith("\n") and line.count(" ") == 1]
        end, flushed = (int(number) for number in whole[-1].split())

        log = open_log(tmp_path)
        assert log.end >= end > end_before
        assert log.flushed >= flushed
        assert base_queue_offsets(log) == list(range(log.recovery.batches))
        assert not log.recovery.lossy
        assert len(stored(log)) == log.end
        end_before = log.end
        log.close()
