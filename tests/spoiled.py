"""Batches as older nodes let them in: compressed, sealed as they should be, and no body of anything.

Nodes do not take such a batch any more, so a good one is made one where it stands, in the files of every copy, while
the nodes run: they have them mapped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from mirrorlog.commitlog.format.checksum import crc32c
from mirrorlog.commitlog.format.header import HEADER_SIZE, MAGIC, Kind, log_seed, read_header
from mirrorlog.testing import Node
from mirrorlog.wire.messages.queues import QueueInfo


def spoil(nodes: Iterable[Node], queue: QueueInfo, queue_offset: int) -> None:
    """The compressed batch of that record opens for nobody, on all of those nodes."""
    for node in nodes:
        assert sum(_spoil(path, queue, queue_offset) for path in _segments(node.data_dir)) == 1, node.id


def _segments(data_dir: Path) -> list[Path]:
    return [path for path in (data_dir / "logs").rglob("0*") if path.is_file() and len(path.name) == 20]


def _spoil(path: Path, queue: QueueInfo, queue_offset: int) -> bool:
    with path.open("r+b") as file:
        content = file.read()
        at = 0
        while at + HEADER_SIZE <= len(content) and (header := read_header(content, at)).magic == MAGIC:
            if (header.queue_id, header.kind) == (
                queue.queue_id,
                Kind.DATA,
            ) and header.base_queue_offset <= queue_offset < header.next_queue_offset:
                assert header.codec, "it was not compressed"
                file.seek(at)
                file.write(spoiled(content[at : at + header.length], header.body_at, queue.log_id))
                return True
            at += header.length
    return False


def spoiled(good: bytes, body_at: int, log_id: str) -> bytes:
    """That batch of that log, stamped, with a body that opens for nobody."""
    batch = bytearray(good)
    batch[body_at:] = b"\xff" * (len(good) - body_at)
    struct.pack_into("<I", batch, 36, crc32c(memoryview(batch)[40:]))
    struct.pack_into("<I", batch, 32, 0)
    struct.pack_into("<I", batch, 32, crc32c(batch[:HEADER_SIZE], log_seed(UUID(log_id))))
    return bytes(batch)
