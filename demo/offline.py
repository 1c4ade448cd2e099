"""What lies on disk, read without the nodes' help."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Final
from uuid import UUID

from mirrorlog.commitlog.format.header import check_body, check_stamped, log_seed
from mirrorlog.errors import BadBatch, MirrorlogError

_BATCH_BYTES_MAX: Final = 1 << 30
_BLOCK: Final = 4 << 20


def segments(data_dir: Path, log_id: str) -> list[Path]:
    """The segment files of a node's log, in order of their first log offset."""
    return sorted(path for path in (data_dir / "logs" / log_id).iterdir() if path.name.isdigit())


def end_of_log(data_dir: Path, log_id: str) -> int:
    """The log offset after the last whole batch of a stopped node: what it had received and kept."""
    seed = log_seed(UUID(log_id))
    end = 0
    for path in segments(data_dir, log_id):
        content = memoryview(path.read_bytes())
        start = int(path.name)
        end = start
        while end - start < len(content):
            try:
                at = end - start
                header = check_stamped(content, at, log_offset=end, seed=seed, max_batch_bytes=_BATCH_BYTES_MAX)
                check_body(content, at, header)
            except BadBatch:
                break
            end += header.length
    return end


def compare_logs(directories: dict[str, Path], log_id: str) -> tuple[int, int]:
    """Compare all nodes' segment files byte by byte; (files, bytes) of one node.

    Raises MirrorlogError naming the first file and node that differ.
    """
    (first_id, first_dir), *others = directories.items()
    files = segments(first_dir, log_id)
    size = 0
    for node_id, directory in others:
        for left, right in zip_longest(files, segments(directory, log_id)):
            if left is None or right is None or left.name != right.name:
                raise MirrorlogError(f"{first_id} and {node_id} have different segments: {left} and {right}")
            if not _equal(left, right):
                raise MirrorlogError(f"segment {left.name} differs between {first_id} and {node_id}")
    for path in files:
        size += path.stat().st_size
    return len(files), size


def _equal(left: Path, right: Path) -> bool:
    with left.open("rb") as one, right.open("rb") as other:
        while block := one.read(_BLOCK):
            if block != other.read(_BLOCK):
                return False
        return not other.read(1)
