"""`mqtool dump`: every batch of a log directory or of one segment file, or the records in them, offline."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.format.header import BatchHeader, Kind
from mirrorlog.commitlog.log_directory import FILES, LogDirectory, SegmentFile, read_log_directory
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.segments.scan import BlockReader, OnBatch, walk
from mirrorlog.errors import BadBatch, BadInput, NoSuchQueue
from mirrorlog.tools.common.options import AsJson
from mirrorlog.tools.common.output import print_json_line
from mirrorlog.tools.common.records import record_fields, record_line, stored_records
from mirrorlog.tools.offline.batch_view import TITLE, batch_fields, batch_lines, read_changes
from mirrorlog.tools.offline.log_directory import find_log
from mirrorlog.tools.offline.survey import Survey, survey

_OFFSET_MAX = 2**63 - 1


class QueueNames:
    """The names of the queues in a log, whose batches know numbers only: learned from declarations and checkpoints.

    What a queue's records stand behind: its declaration, or the state checkpoint that the log's checkpoint names. So
    `read_state` first, then every batch in order, and a record's name is known when it comes.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._ended = False

    def __getitem__(self, queue_id: int) -> str:
        """The number stands for a queue without a known name."""
        return self._names.get(queue_id, str(queue_id))

    def is_called(self, queue_id: int, text: str) -> bool:
        """Whether `text` means this queue: by its name, or by its number."""
        name = self._names.get(queue_id)
        return text in (name, str(queue_id)) if name is not None else text == str(queue_id)

    def knows(self, name: str) -> bool:
        """Whether a queue has that name."""
        return name in self._names.values()

    def learn(self, header: BatchHeader, batch: memoryview) -> None:
        """An OnBatch. What cannot be read is passed over."""
        if header.kind not in (Kind.CONTROL, Kind.CHECKPOINT):
            return
        try:
            changes = read_changes(header, batch)
        except BadBatch:
            return
        for change in changes:
            if change["type"] in ("QueueDeclared", "QueueState"):
                self._names[change.get("queue_id", 0)] = str(change.get("name", ""))
            self._ended = self._ended or change["type"] == "CheckpointEnded"

    def read_state(self, log: LogDirectory) -> None:
        """Learn from the state checkpoint, if the log has one. Bad bytes end that. Raises DiskFailed."""
        at = log.checkpoint.state if log.checkpoint is not None else 0
        for segment in log.holding if at else ():
            try:
                with closing(FILES.open(segment.path)) as file:
                    reader = BlockReader(file)
                    while segment.start <= at < segment.start + reader.size and not self._ended:
                        following = self._step(reader, log, segment.start, at)
                        if following is None:
                            break
                        at = following
            except OSError as error:
                raise disk_error(error, "read", segment.path) from None

    def _step(self, reader: BlockReader, log: LogDirectory, start: int, at: int) -> int | None:
        """Read the batch at log offset `at`; where the next one begins, or None when none is there."""
        stop = walk(reader, start=start, at=at - start, until=at - start + 1, rules=log.rules, on_batch=self.learn)
        return None if stop.reason else start + stop.at


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
class DumpSource:
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


def _open(path: Path, chosen: Chosen) -> DumpSource:
    if path.is_dir():
        log = read_log_directory(find_log(path))
        segments = chosen.segments(log.holding)
        return DumpSource(log, segments, max(log.begin, segments[0].start) if segments else log.begin)
    log = read_log_directory(find_log(path.parent))
    segments = [segment for segment in log.segments if segment.path.name == path.name]
    if not segments:
        raise BadInput(f"{path} is no segment; those of a log are named by their first log offset in 20 digits")
    # All of a file that was given by itself, below the log's start offset too.
    return DumpSource(log, segments, segments[0].start)


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
