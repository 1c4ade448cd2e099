"""`mqtool dump`: every batch of a log directory or of one segment file, or the records in them, offline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from mirrorlog.commitlog.damage import Range
from mirrorlog.commitlog.format import BatchHeader, Kind
from mirrorlog.commitlog.scan import OnBatch
from mirrorlog.errors import BadBatch, BadInput, NoSuchQueue
from mirrorlog.tools.batch_view import TITLE, batch_fields, batch_lines
from mirrorlog.tools.log_directory import LogDirectory, SegmentFile, find_log, read_log_directory
from mirrorlog.tools.names import QueueNames
from mirrorlog.tools.output import print_json_line
from mirrorlog.tools.records import record_fields, record_line, stored_records
from mirrorlog.tools.session import AsJson
from mirrorlog.tools.survey import Survey, survey

_OFFSET_MAX = 2**63 - 1


@dataclass(slots=True)
class Chosen:
    """Which batches are wanted: those that begin within the log offsets [first, last), of these kinds (all when empty)
    and of the queue that is called so."""

    first: int = 0
    last: int = _OFFSET_MAX
    kinds: frozenset[int] = frozenset()
    queue: str | None = None
    names: QueueNames = field(default_factory=QueueNames)
    met: bool = False
    """Whether a batch of that queue was there."""

    def has(self, header: BatchHeader) -> bool:
        if self.queue is not None:
            if not self.names.is_called(header.queue_id, self.queue):
                return False
            self.met = True
        return self.first <= header.log_offset < self.last and (not self.kinds or header.kind in self.kinds)

    def segments(self, segments: Sequence[SegmentFile]) -> list[SegmentFile]:
        """Those that may hold some: each ends where the next one begins, at the latest."""
        ends = [segment.start for segment in segments[1:]] + [_OFFSET_MAX]
        return [
            segment
            for segment, end in zip(segments, ends, strict=True)
            if segment.start < self.last and end > self.first
        ]


def dump(
    path: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", exists=True, help="A log's or node's directory, or one segment file.")
    ],
    *,
    first: Annotated[int, typer.Option("--from", metavar="LOG_OFFSET", min=0, help="Only batches at or above it.")] = 0,
    last: Annotated[
        int | None, typer.Option("--until", metavar="LOG_OFFSET", min=0, help="Only batches below it.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="QUEUE", help="Only batches of this queue: its name or number.")
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="Only batches of this kind, e.g. data or control. Repeatable."),
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Print the records instead; --json gives what publish --records takes.")
    ] = False,
    states: Annotated[
        bool, typer.Option("--states", help="Print every queue and producer of the state checkpoints too.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the header of every batch, in log order. Changes nothing; the node may run.

    `first` is the queue offset of the batch's first record. Ranges that hold no batch are named at the end. With --json
    each batch is one line, and the last line has the kind "end"; with --records each record is one, and nothing else.

    Example: mqtool dump data/n1 --queue flights --from 1048576
    """
    chosen = Chosen(first, last if last is not None else _OFFSET_MAX, _kinds(kind or []), queue)
    source = _open(path, chosen)
    log = source.log
    chosen.names.read_state(log)
    if records:
        source.walk(chosen, _record_printer(chosen.names, as_json))
    elif as_json:
        found = source.walk(chosen, lambda *batch: print_json_line(batch_fields(*batch, states=states)))
        print_json_line(end_fields(log, found))
    else:
        typer.echo(f"log {log.name} ({log.log_id}) in {log.path}")
        typer.echo(TITLE)
        for line in end_lines(log, source.walk(chosen, _line_printer(states))):
            typer.echo(line)
    if queue is not None and not chosen.met and not chosen.names.knows(queue):
        raise NoSuchQueue(f"no batch of a queue {queue!r} in {log.path}; without --queue the numbers are seen")


def _kinds(names: Sequence[str]) -> frozenset[int]:
    known = {kind.name.lower(): int(kind) for kind in Kind}
    if unknown := [name for name in names if name not in known]:
        raise BadInput(f"--kind {unknown[0]!r} is none of {', '.join(known)}")
    return frozenset(known[name] for name in names)


@dataclass(frozen=True, slots=True)
class Source:
    """What is walked: these files, from the log offset `first` on."""

    log: LogDirectory
    segments: Sequence[SegmentFile]
    first: int

    def walk(self, chosen: Chosen, write: OnBatch) -> Survey:
        """Give what is chosen to `write`."""

        def show(header: BatchHeader, batch: memoryview) -> None:
            chosen.names.learn(header, batch)
            if chosen.has(header):
                write(header, batch)

        return survey(self.log, show, segments=self.segments, first=self.first)


def _open(path: Path, chosen: Chosen) -> Source:
    if path.is_dir():
        log = read_log_directory(find_log(path))
        segments = chosen.segments(log.holding)
        return Source(log, segments, max(log.begin, segments[0].start) if segments else log.begin)
    log = read_log_directory(find_log(path.parent))
    segments = [segment for segment in log.segments if segment.path.name == path.name]
    if not segments:
        raise BadInput(f"{path} is no segment; those of a log are named by their first log offset in 20 digits")
    # All of a file that was given by itself, below the log's begin too.
    return Source(log, segments, segments[0].start)


# --- One batch ------------------------------------------------------------------------------------------------------


def _line_printer(states: bool) -> OnBatch:
    def write(header: BatchHeader, batch: memoryview) -> None:
        for line in batch_lines(header, batch, states=states):
            typer.echo(line)

    return write


def _record_printer(names: QueueNames, as_json: bool) -> OnBatch:
    """Each record of a batch of data; whose body cannot be opened is named on stderr, and passed over."""

    def write(header: BatchHeader, batch: memoryview) -> None:
        if header.kind != Kind.DATA:
            return
        try:
            for record in stored_records(header, batch, names[header.queue_id]):
                if as_json:
                    print_json_line(record_fields(record))
                else:
                    typer.echo(f"{record.queue}\t{record_line(record)}")
        except BadBatch as error:
            typer.echo(f"queue {header.queue_id}, log offset {header.log_offset}: {error}", err=True)

    return write


# --- What is no batch -----------------------------------------------------------------------------------------------


def end_lines(log: LogDirectory, found: Survey) -> list[str]:
    """Where the log ends, and what in it is no batch."""
    lines = [
        f"end {found.end}, flushed {log.checkpoint.flushed}, confirmed {log.checkpoint.confirmed}"
        if log.checkpoint is not None
        else f"end {found.end}, no valid checkpoint"
    ]
    lines += [f"no batch at {each}" for each in found.bad]
    if found.bad_count > len(found.bad):
        lines.append(f"no batch at {found.bad_count - len(found.bad)} further ranges, the last {found.last_bad}")
    if found.tail is not None:
        lines.append(f"no batch at the end, {found.tail}")
    return lines


def end_fields(log: LogDirectory, found: Survey) -> dict[str, object]:
    """The last line of JSON."""
    ranges: list[Range] = [*found.bad, *([found.tail] if found.tail is not None else [])]
    return {
        "kind": "end",
        "end": found.end,
        "checkpoint": log.checkpoint._asdict() if log.checkpoint is not None else None,
        "no_batch": ranges,
    }
