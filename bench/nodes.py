"""The nodes of a workload: with the product's own settings, and with their pages prepared as far as it will write.

A node prepares the pages ahead of its tail in spare time. A benchmark that starts writing at once would measure a node
in its first seconds, so it waits until as much is prepared as it is going to write.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.workload import MIB, WorkloadFailed
from mirrorlog.client import Client
from mirrorlog.commitlog.segments.preallocation import first_file_bytes
from mirrorlog.config import LimitSettings, LogSettings
from mirrorlog.testing import Cluster, Node

PREPARED_SECONDS_MAX: Final = 60.0

_MARGIN_BYTES: Final = 64 * MIB
_STEP_BYTES: Final = 16 * MIB
_POLL_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 1.0


@contextmanager
def prepared_cluster(
    queue: str,
    copies: int,
    total_bytes: int,
    *,
    flush: str = "memory",
    segment_bytes: int = LogSettings().segment_bytes,
    min_in_sync: int | None = None,
    grpc: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Iterator[Cluster]:
    """A cluster of `copies` nodes, with one queue, that is ready for `total_bytes` of batches.

    `min_in_sync`: by default all of them. `grpc`: with the gRPC doors. `settings`: more of them, by their keys.
    """
    with Cluster(
        copies,
        flush=flush,
        segment_bytes=segment_bytes,
        min_in_sync=min_in_sync or copies,
        settings={
            "log.prepare_bytes": total_bytes + _MARGIN_BYTES,
            "log.prepare_at_rest_bytes": total_bytes + _MARGIN_BYTES,
            **(settings or {}),
        },
        grpc=grpc,
    ) as cluster:
        cluster.wait_in_sync()
        for node in cluster.nodes.values():
            # A node prepares the active segment and a spare, no more; some pages of them it has written itself.
            first = first_file_bytes(segment_bytes, LimitSettings().max_batch_bytes)
            wait_prepared(node, min(total_bytes, first + segment_bytes - _STEP_BYTES))
        asyncio.run(_declare(cluster.servers, queue))
        try:
            yield cluster
        except Exception as error:
            # The nodes' logs go with them; what they say is often the reason.
            raise WorkloadFailed("; ".join([str(error), *_last_words(cluster)])) from error


def _last_words(cluster: Cluster) -> Iterator[str]:
    """Of each node that has ended or complained, the last line of its log that says so."""
    for node in cluster.nodes.values():
        lines = node.log_tail(200).splitlines()
        complaints = [line for line in lines if "rror" in line or "WARNING" in line or "CRITICAL" in line]
        if not node.running:
            yield f"{node.id} ended with {node.exit_code}: {(complaints or lines or [''])[-1]}"
        elif complaints:
            yield f"{node.id}: {complaints[-1]}"


async def _declare(servers: list[str], queue: str) -> None:
    async with Client(*servers) as client:
        await client.admin.declare(queue)


def wait_prepared(node: Node, total_bytes: int) -> None:
    """Until so many bytes of pages are ready. Raises WorkloadFailed: the figures would be those of another work.

    The kernel counts a page that becomes dirty for the process that touched it.
    """
    deadline = time.monotonic() + PREPARED_SECONDS_MAX
    while (dirtied := dirtied_bytes(node.pid)) < total_bytes:
        if time.monotonic() > deadline:
            raise WorkloadFailed(f"{node.id} prepared {dirtied // MIB} MiB of {total_bytes // MIB}, then no more")
        time.sleep(_POLL_SECONDS)


def wait_at_rest(cluster: Cluster) -> None:
    """Until no node has made a page dirty for a second: what was published is on disk, and the pages that a log which
    is idle prepares are there. Raises WorkloadFailed."""
    deadline = time.monotonic() + PREPARED_SECONDS_MAX
    pids = [node.pid for node in cluster.nodes.values()]
    before, since = [dirtied_bytes(pid) for pid in pids], time.monotonic()
    while time.monotonic() - since < _QUIET_SECONDS:
        if time.monotonic() > deadline:
            raise WorkloadFailed(f"the nodes did not come to rest within {PREPARED_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
        now = [dirtied_bytes(pid) for pid in pids]
        if now != before:
            before, since = now, time.monotonic()


def dirtied_bytes(pid: int) -> int:
    """Bytes of file pages that a process has made dirty."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
