"""`mqtool verify`: check everything that a log directory says, offline or beside a running node."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from mirrorlog.commitlog.log_directory import read_log_directory
from mirrorlog.tools.common.options import AsJson, LogPath
from mirrorlog.tools.common.output import print_json
from mirrorlog.tools.offline.examination import Examination, examine
from mirrorlog.tools.offline.log_directory import find_log, set_aside


def verify(
    path: LogPath,
    as_json: AsJson = False,
) -> None:
    """Walk all batches of a log directory and check what it says. Changes nothing; the node may run.

    Checked are every checksum, place and epoch; that queue offsets are dense, sequences follow and times do not go
    back; that the tables and the index say what the batches say; the checkpoint, and the state checkpoint it names.
    Compressed batches are opened: those that nobody can read are named, and are no error of this copy.

    Exit code 15 when bytes are bad that no crash explains (good batches follow them, or they had been flushed), or
    batches or the checkpoint cannot be what they are; 17 when only a table or the index is wrong. A torn tail alone is
    named and is no error: the node cuts it at its next start.

    Example: mqtool verify data/n1
    """
    examined = examine(read_log_directory(find_log(path)), what="verify")
    if as_json:
        print_json(examination_fields(examined))
    else:
        for line in examination_lines(examined):
            typer.echo(line)
    if (error := examined.error()) is not None:
        raise error


def examination_lines(examined: Examination) -> Iterator[str]:
    """What was found, for people: the log in brief, what is wrong with it in capitals, then notes."""
    log, found, tables = examined.log, examined.found, examined.tables
    yield f"log {log.name} ({log.log_id}) in {log.path}"
    yield (
        f"{found.batches} good batches, {found.records} records, log offsets {log.begin} to {found.end}, "
        f"{len(log.holding)} segments"
    )
    yield (
        "checkpoint: " + ", ".join(f"{name} {offset}" for name, offset in log.checkpoint._asdict().items())
        if log.checkpoint is not None
        else "checkpoint: none is valid, so every tail counts as not yet flushed"
    )
    for epoch, end in examined.epochs():
        yield f"epoch {epoch.epoch}: {epoch.start} to {end}{f', written by {epoch.node_id}' if epoch.node_id else ''}"
    yield (
        f"tables: {tables.compared} say what their segments hold, of {tables.checked} only the checksums were checked, "
        f"{examined.without_table} segments have none"
    )
    if examined.index.state == "agrees":
        yield f"index: agrees with the tables, {examined.index.places} entries"
    yield from damage_lines(examined)
    yield from examined.notes()


def damage_lines(examined: Examination) -> Iterator[str]:
    """What is wrong, one line each."""
    order = examined.order
    yield from (f"BAD {each}" for each in examined.corrupt)
    if (more := examined.found.bad_count - len(examined.found.bad)) > 0:
        yield f"BAD and {more} further ranges, the last {examined.found.last_bad}"
    for lost in order.lost:
        yield f"LOST {lost}{_called(order.names.get(lost.queue_id))}"
    if (more := order.lost_count - len(order.lost)) > 0:
        yield f"LOST and {more} further stretches"
    yield from (f"WRONG at {each}" for each in order.faults)
    if (more := order.fault_count - len(order.faults)) > 0:
        yield f"WRONG and {more} further batches"
    yield from (f"WRONG checkpoint: {each}" for each in examined.checkpoint_faults)
    yield from (f"WRONG {each}" for each in examined.tables.bad)
    if examined.index.wrong:
        yield f"WRONG index: {examined.index.what}"


def _called(name: str | None) -> str:
    return f" ({name})" if name is not None else ""


def examination_fields(examined: Examination) -> dict[str, Any]:
    """What --json prints. Ranges are log offsets [first, last), lost stretches queue offsets [first, next)."""
    log, found, order, tables = examined.log, examined.found, examined.order, examined.tables
    return {
        "path": str(log.path),
        "log_id": str(log.log_id),
        "name": log.name,
        "in_use_by": examined.holder,
        "segments": len(log.holding),
        "batches": found.batches,
        "records": found.records,
        "begin": log.begin,
        "end": found.end,
        "checkpoint": log.checkpoint._asdict() if log.checkpoint is not None else None,
        "checkpoint_faults": examined.checkpoint_faults,
        "epochs": [{**epoch._asdict(), "end": end} for epoch, end in examined.epochs()],
        "bad": examined.corrupt,
        "bad_count": max(found.bad_count, len(examined.corrupt)),
        "tail": found.tail,
        "unreadable": found.unreadable,
        "faults": order.faults,
        "fault_count": order.fault_count,
        "unopened": [each._asdict() for each in examined.bodies.unopened],
        "unopened_count": examined.bodies.count,
        "lost": order.lost,
        "lost_count": order.lost_count,
        "queues": [
            {"queue_id": queue_id, "name": order.names.get(queue_id), "first": seen.first, "next": seen.next}
            for queue_id, seen in sorted(order.queues.items())
        ],
        "tables": {
            "compared": tables.compared,
            "checked": tables.checked,
            "missing": examined.without_table,
            "bad": tables.bad,
        },
        "index": examined.index,
        "leftovers": examined.inventory.leftovers,
        "unknown": examined.inventory.unknown,
        "set_aside": [str(path) for path in set_aside(log)],
        "notes": list(examined.notes()),
    }
