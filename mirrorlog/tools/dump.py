"""`mqtool dump`: every batch header of a log directory or of one segment file, offline."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from mirrorlog.commitlog.body import parse_batch_body
from mirrorlog.commitlog.damage import Range
from mirrorlog.commitlog.format import NO_PRODUCER, NO_TIMESTAMP, BatchHeader, Codec, Column, Flag, Kind
from mirrorlog.errors import BadInput, MirrorlogError
from mirrorlog.tools.log_directory import LogDirectory, SegmentFile, find_log, read_log_directory
from mirrorlog.tools.output import NOTHING, print_json_line, time_text
from mirrorlog.tools.session import AsJson
from mirrorlog.tools.survey import Survey, survey

_CHANGES: Final = (Kind.CONTROL, Kind.QUEUE_STATE, Kind.CHECKPOINT)
_LAYOUT: Final = "{:>14} {:>6} {:<11} {:>6} {:>12} {:>8} {:>9} {:<24}  {}"
_TITLES: Final = ("log offset", "epoch", "kind", "queue", "first", "records", "bytes", "appended", "what")


def dump(
    path: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", exists=True, help="A log's or node's directory, or one segment file.")
    ],
    as_json: AsJson = False,
) -> None:
    """Print the header of every batch, in log order. Changes nothing; the node may run.

    `first` is the queue offset of the batch's first record. Ranges that hold no batch are named at the end. With --json
    each batch is one line, and the last line has the kind "end".

    Example: mqtool dump data/n1
    """
    log, segments = _chosen(path)
    if as_json:
        found = survey(log, lambda header, batch: print_json_line(batch_fields(header, batch)), segments=segments)
        _print_rest_json(log, found)
        return
    typer.echo(f"log {log.name} ({log.log_id}) in {log.path}")
    typer.echo(_LAYOUT.format(*_TITLES))
    found = survey(log, lambda header, batch: typer.echo(batch_line(header, batch)), segments=segments)
    _print_rest(log, found)


def _chosen(path: Path) -> tuple[LogDirectory, list[SegmentFile] | None]:
    if path.is_dir():
        return read_log_directory(find_log(path)), None
    log = read_log_directory(find_log(path.parent))
    segments = [segment for segment in log.segments if segment.path.name == path.name]
    if not segments:
        raise BadInput(f"{path} is no segment; those of a log are named by their first log offset in 20 digits")
    return log, segments


# --- One batch ------------------------------------------------------------------------------------------------------


def batch_line(header: BatchHeader, batch: memoryview) -> str:
    """A batch for people."""
    data = header.kind in (Kind.DATA, Kind.TRANSACTION)
    return _LAYOUT.format(
        header.log_offset,
        header.epoch,
        _name(Kind, header.kind),
        header.queue_id,
        header.base_queue_offset if data else NOTHING,
        header.record_count,
        header.length,
        time_text(header.append_time_us),
        _producer(header) if data else "; ".join(_change_text(change) for change in _changes(header, batch)),
    ).rstrip()


def batch_fields(header: BatchHeader, batch: memoryview) -> dict[str, Any]:
    """A batch for programs: the fields of the format by their names, flags and columns as lists of names."""
    fields: dict[str, Any] = header._asdict()
    for constant in ("magic", "reserved"):
        del fields[constant]
    fields["kind"] = _name(Kind, header.kind)
    fields["codec"] = _name(Codec, header.codec)
    fields["flags"] = [str(flag.name).lower() for flag in Flag(header.flags)]
    fields["columns"] = [str(column.name).lower() for column in Column(header.columns)]
    if header.max_timestamp_us == NO_TIMESTAMP:
        fields["max_timestamp_us"] = None
    if changes := _changes(header, batch):
        fields["changes"] = changes
    return fields


def _name(kinds: Callable[[int], Kind | Codec], number: int) -> str:
    return kinds(number).name.lower()


def _producer(header: BatchHeader) -> str:
    parts = [] if header.producer_id == NO_PRODUCER else [
        f"producer {header.producer_id}/{header.producer_epoch} sequence {header.sequence}"
    ]  # fmt: skip
    if header.codec != Codec.NONE:
        parts.append(_name(Codec, header.codec))
    if header.flags & Flag.COPIED:
        parts.append("copied")
    return " ".join(parts)


def _changes(header: BatchHeader, batch: memoryview) -> list[Any]:
    """The changes in a batch that is no data. A tool may be older than the log: what it cannot read it leaves out."""
    if header.kind not in _CHANGES:
        return []
    try:
        values = parse_batch_body(batch).values
        return [msgspec.msgpack.decode(values[index] or b"") for index in range(len(values))]
    except (MirrorlogError, msgspec.DecodeError):
        return []


def _change_text(change: Any) -> str:
    if not isinstance(change, dict):
        return str(change)
    return " ".join([str(change.get("type", "")), *(f"{key}={change[key]}" for key in change if key != "type")]).strip()


# --- What is no batch -----------------------------------------------------------------------------------------------


def _print_rest(log: LogDirectory, found: Survey) -> None:
    if log.checkpoint is not None:
        typer.echo(f"end {found.end}, flushed {log.checkpoint.flushed}, confirmed {log.checkpoint.confirmed}")
    else:
        typer.echo(f"end {found.end}, no valid checkpoint")
    for each in found.bad:
        typer.echo(f"no batch at {each}")
    if found.tail is not None:
        typer.echo(f"no batch at the end, {found.tail}")


def _print_rest_json(log: LogDirectory, found: Survey) -> None:
    ranges: list[Range] = [*found.bad, *([found.tail] if found.tail is not None else [])]
    print_json_line(
        {
            "kind": "end",
            "end": found.end,
            "checkpoint": log.checkpoint._asdict() if log.checkpoint is not None else None,
            "no_batch": ranges,
        }
    )
