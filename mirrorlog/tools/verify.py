"""`mqtool verify`: check every checksum of a log directory, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mirrorlog.commitlog.damage import Range
from mirrorlog.commitlog.scan import ignore_batch
from mirrorlog.errors import LogCorrupt
from mirrorlog.tools.log_directory import LogDirectory, find_log, read_log_directory
from mirrorlog.tools.output import print_json
from mirrorlog.tools.session import AsJson
from mirrorlog.tools.survey import Survey, survey


def verify(
    path: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="A log's or node's directory.")
    ],
    as_json: AsJson = False,
) -> None:
    """Walk all batches of a log directory and check every checksum, place and epoch. Changes nothing.

    Exit code 15 when bytes are bad that no crash explains: good batches follow them, or they had been flushed. A torn
    tail alone is named and is no error: the node cuts it at its next start.

    Example: mqtool verify data/n1
    """
    log = read_log_directory(find_log(path))
    found = survey(log, ignore_batch)
    corrupt = found.corrupt(log.flushed)
    if as_json:
        print_json(_report(log, found, corrupt))
    else:
        for line in _lines(log, found, corrupt):
            typer.echo(line)
    if corrupt:
        first, last = corrupt[0], corrupt[-1]
        raise LogCorrupt(
            f"{log.path} has {len(corrupt)} bad range(s), the first {first}, the last {last}; restore it from a copy",
            first=first.first,
            last=last.last,
        )


def _lines(log: LogDirectory, found: Survey, corrupt: list[Range]) -> list[str]:
    lines = [
        f"log {log.name} ({log.log_id}) in {log.path}",
        f"{found.batches} good batches, {found.records} records, log offsets {log.begin} to {found.end}, "
        f"{len(log.segments)} segments",
        f"checkpoint: flushed {log.checkpoint.flushed}, confirmed {log.checkpoint.confirmed}"
        if log.checkpoint is not None
        else "checkpoint: none is valid, so every tail counts as not yet flushed",
    ]
    lines += [f"BAD {each}" for each in corrupt]
    if found.tail is not None and found.tail not in corrupt:
        lines.append(f"torn tail {found.tail}: cut at the node's next start")
    return lines


def _report(log: LogDirectory, found: Survey, corrupt: list[Range]) -> dict[str, Any]:
    """What --json prints. Log offsets; ranges are [first, last)."""
    return {
        "path": str(log.path),
        "log_id": str(log.log_id),
        "name": log.name,
        "segments": len(log.segments),
        "batches": found.batches,
        "records": found.records,
        "begin": log.begin,
        "end": found.end,
        "checkpoint": log.checkpoint._asdict() if log.checkpoint is not None else None,
        "bad": corrupt,
        "tail": found.tail,
    }
