"""Makes a large log of sparse files, opens it as a node does, and prints what it takes, as JSON.

python -m tests.broker.large_log DIRECTORY QUEUES BYTES
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.files import OS_FILES, replace_file
from mirrorlog.commitlog.flush import CheckpointFile
from mirrorlog.commitlog.format.header import Kind
from mirrorlog.commitlog.format.rows import ROW
from mirrorlog.commitlog.index.table import table_name
from mirrorlog.commitlog.index.tables import build_table
from mirrorlog.commitlog.segments.segment import segment_name
from mirrorlog.config import ClusterSettings, LogAssignment, LogSettings, Member, NodeSettings, Settings
from mirrorlog.queues.checkpoint_states import (
    CheckpointBegan,
    CheckpointEnded,
    QueueState,
    encode_checkpoint,
    encode_state,
)

SEGMENT_BYTES = 4 * 1024**3
RECORDS_PER_BATCH = 100


def settings() -> Settings:
    log = LogAssignment(master="n1")
    return Settings(
        cluster=ClusterSettings(members=(Member(id="n1"),), logs=(log,)),
        node=NodeSettings(id="n1"),
        log=LogSettings(segment_bytes=64 * 1024**2, populate_bytes=0, prepare_bytes=0),
    )


def replica() -> Replica:
    own = settings()
    assignment = own.cluster.logs[0]
    return Replica(assignment, own.cluster.log_id(assignment), own)


def make(directory: Path, queues: int, size: int) -> None:
    """Segments of the past without content but with tables, and a last one that tells the state of the queues."""
    segments = -(-size // SEGMENT_BYTES)
    begin = segments * SEGMENT_BYTES
    made = replica()
    made.open(directory, begin=begin)
    log = made.log
    log.open_epoch(1, node_id="n1", start_id="s")
    began_at = log.end
    made.append_change(encode_checkpoint([encode_state(CheckpointBegan(queue_id_max=queues))]), 1)
    for first in range(1, queues + 1, 250):
        states = [
            QueueState(
                queue_id=queue_id, name=f"queue-{queue_id}", incarnation="i", arguments={},
                next_queue_offset=segments * RECORDS_PER_BATCH, positions={}, declared_at=0,
            )
            for queue_id in range(first, min(first + 250, queues + 1))
        ]  # fmt: skip
        made.append_change(encode_checkpoint([encode_state(state) for state in states]), 1)
    made.append_change(encode_checkpoint([encode_state(CheckpointEnded(began_at=began_at, producer_epoch_floor=0))]), 1)
    made.set_confirmed(log.end)
    made.close()
    for number in range(segments):
        make_segment(directory, number, queues, log.seed)
    checkpoints = CheckpointFile.open(OS_FILES, directory, log.log_id)
    assert checkpoints.stored is not None
    checkpoints.write_both(checkpoints.stored._replace(begin=0, state=began_at))
    checkpoints.close()


def make_segment(directory: Path, number: int, queues: int, seed: int) -> None:
    start = number * SEGMENT_BYTES
    with (directory / segment_name(start)).open("wb") as file:
        file.truncate(SEGMENT_BYTES)
    length = SEGMENT_BYTES // queues // 8 * 8
    rows = np.zeros(queues, ROW)
    rows["log_offset"] = start + length * np.arange(queues, dtype=np.uint64)
    rows["length"] = length
    rows["length"][-1] = SEGMENT_BYTES - length * (queues - 1)
    rows["queue_id"] = 1 + np.arange(queues)
    rows["base"] = number * RECORDS_PER_BATCH
    rows["records"] = RECORDS_PER_BATCH
    rows["append_time"] = 1_000_000 * number
    rows["kind"] = int(Kind.DATA)
    table = build_table([memoryview(rows.tobytes())], start=start, end=start + SEGMENT_BYTES, seed=seed)
    replace_file(OS_FILES, directory / table_name(start), bytes(table))


def private_bytes() -> int:
    """What this process alone holds, mapped files aside."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024


def main(directory: Path, queues: int, size: int) -> None:
    make(directory, queues, size)
    before = private_bytes()
    opened = replica()
    opened.open(directory)
    choose = random.Random(1)
    looked_up = 0
    assert opened.past is not None
    for _ in range(200):
        queue_id, queue_offset = choose.randrange(1, queues + 1), choose.randrange(20 * RECORDS_PER_BATCH)
        until = opened.index.past_until(queue_id, queue_offset)
        assert until is not None
        (run, *_) = opened.past.entries(queue_id, queue_offset, 1, until=until)
        looked_up += run.base_queue_offset <= queue_offset < run.next_queue_offset
    told = {
        "queues": len(opened.queues),
        "bytes": opened.log.end - opened.log.begin,
        "looked_up": looked_up,
        "private_bytes": private_bytes(),
        "private_bytes_before": before,
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
