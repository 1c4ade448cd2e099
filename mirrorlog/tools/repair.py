"""Doing what a start of the node does to a log's directory, with the directory held against every node."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import UUID

from mirrorlog.commitlog.directory import IDENTITY_NAME as NODE_IDENTITY_NAME
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.opening import IDENTITY_NAME
from mirrorlog.commitlog.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.past import PastIndex
from mirrorlog.commitlog.past import delete as delete_index
from mirrorlog.commitlog.scan import ignore_batch
from mirrorlog.commitlog.table import table_name
from mirrorlog.config import LimitSettings, LogSettings
from mirrorlog.errors import DirectoryInUse, ForeignDirectory
from mirrorlog.tools.examination import Examination
from mirrorlog.tools.log_directory import LogDirectory
from mirrorlog.tools.recovery_plan import Plan

INDEX_KEPT: Final = frozenset({"agrees", "unchecked"})
"""States of an index that is left as it is."""


@contextlib.contextmanager
def locked(log: LogDirectory) -> Iterator[None]:
    """Hold the directory against every node and other mqtool. Raises DirectoryInUse, ForeignDirectory, DiskFailed."""
    if (node := log.data_directory) is not None:
        cluster_id, node_id = _node_identity(node)
        with DataDirectory.open(node, cluster_id=cluster_id, node_id=node_id):
            yield
        return
    # No node runs on a log outside of a node's directory; another mqtool may.
    try:
        fd = os.open(log.path / IDENTITY_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise disk_error(error, "open", log.path / IDENTITY_NAME) from None
    try:
        _flock(fd, log.path)
        yield
    finally:
        os.close(fd)


def _flock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DirectoryInUse(f"another mqtool works on {path}; wait for it") from None


def _node_identity(node: Path) -> tuple[UUID, str]:
    """(cluster id, node id)."""
    path = node / NODE_IDENTITY_NAME
    try:
        fields = json.loads(path.read_bytes())
        return UUID(fields["cluster_id"]), str(fields["node_id"])
    except OSError as error:
        raise disk_error(error, "read", path) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ForeignDirectory(f"{path} does not name a node of mirrorlog: {error!r}") from None


def repair(examined: Examination, plan: Plan, *, settle_loss: bool) -> None:
    """Open the log as a node does, make what is derived anew where it must be, and close it. The directory is locked.

    `settle_loss`: it counts as complete again. Raises as `CommitLog.open`.
    """
    log = examined.log
    try:
        for bad in examined.tables.bad:
            (log.path / table_name(bad.segment)).unlink(missing_ok=True)
        if examined.index.state not in INDEX_KEPT or examined.tables.bad or plan.tables:
            delete_index(log.path / INDEX_NAME)
        opened = _open(log)
        try:
            PastIndex.open(log.path / INDEX_NAME, opened.tables).close()
            if settle_loss:
                opened.settle_loss()
        finally:
            opened.tables.close()
            opened.close()
    except OSError as error:
        raise disk_error(error, "recover", log.path) from None


def _open(log: LogDirectory) -> CommitLog:
    """A file that must be made is as large as the log's others."""
    sizes = [segment.path.stat().st_size for segment in log.holding]
    settings = LogSettings()
    if sizes:
        settings = settings.model_copy(update={"segment_bytes": max(sizes)})
    return CommitLog.open(
        log.path,
        log_id=log.log_id,
        cluster_id=UUID(log.cluster_id),
        name=log.name,
        number=log.number,
        settings=settings,
        max_batch_bytes=LimitSettings().max_batch_bytes,
        on_batch=ignore_batch,
    )
