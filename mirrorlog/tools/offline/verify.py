"""`mqtool verify`: check everything that a log directory says, offline or beside a running node.

One walk over all batches feeds every check, so a log of 100 GB is read once; what is kept is bounded by the largest
segment, the number of queues, and the limits of each check. `mqtool recover` acts upon what is found.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self, TextIO

import typer

from mirrorlog.commitlog.epochs import Epoch
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.header import BatchHeader, Codec, Kind
from mirrorlog.commitlog.log_directory import LogDirectory, read_log_directory
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.recovery import FILE_NAME as LOSS_NAME
from mirrorlog.commitlog.segments.scan import OnBatch, ignore_batch
from mirrorlog.diagnosis.cells import bytes_text
from mirrorlog.errors import BadBatch, IndexDoubtful, LogCorrupt, MirrorlogError
from mirrorlog.tools.common.options import AsJson, LogPath
from mirrorlog.tools.common.output import print_json
from mirrorlog.tools.offline.index_check import IndexReport, TableCheck, check_index
from mirrorlog.tools.offline.log_directory import Inventory, find_log, set_aside, take_inventory
from mirrorlog.tools.offline.order import FAULTS_MAX, Order
from mirrorlog.tools.offline.survey import Survey, survey

_SHOWN_EVERY_S: Final = 0.5
_LOOKED_EVERY_BYTES: Final = 16 * 1024 * 1024

_SLOTS: Final = 2
_BODY_BYTES_MAX: Final = 2**28
"""As much as any node may allow a batch to have."""


class WalkProgress:
    """How far a walk over a large log has come: one line that is overwritten; nothing when `out`, stderr by default, is
    no terminal."""

    def __init__(
        self, what: str, first: int, last: int, *, out: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        out = out or sys.stderr
        self._what = what
        self._first = first
        self._last = max(first, last)
        self._out = out
        self._now = now
        self._on = out.isatty()
        self._began = self._shown = now()
        # The clock is looked at once per so many bytes: a walk over small batches is a million steps a second.
        self._next = first + _LOOKED_EVERY_BYTES if self._on else sys.maxsize

    def reached(self, log_offset: int) -> None:
        """The walk stands there."""
        if log_offset >= self._next:
            self._next = log_offset + _LOOKED_EVERY_BYTES
            now = self._now()
            if now - self._shown >= _SHOWN_EVERY_S:
                self._shown = now
                self._show(log_offset - self._first, now - self._began)

    def _show(self, done: int, seconds: float) -> None:
        rate = f"{bytes_text(done / seconds)}/s" if seconds > 0 else ""
        total = bytes_text(self._last - self._first)
        self._out.write(f"\r\033[K{self._what}: {bytes_text(done)} of {total}, {rate}")
        self._out.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._on:
            self._out.write("\r\033[K")
            self._out.flush()


class Unopened(NamedTuple):
    """A batch whose checksums hold, and whose compressed body nobody can open: queue offsets [first, next)."""

    log_offset: int
    queue_id: int
    first: int
    next: int
    producer_id: int
    what: str

    def __str__(self) -> str:
        records = f"queue {self.queue_id}: {self.first}..{self.next}, producer {self.producer_id}"
        return f"{self.log_offset}: {records}: {self.what}"


@dataclass(slots=True)
class Bodies:
    """Opens what is compressed: no checksum says that somebody can read it. The first ones of `count` are kept."""

    unopened: list[Unopened] = field(default_factory=list)
    count: int = 0

    def batch(self, header: BatchHeader, batch: memoryview) -> None:
        if header.codec == Codec.NONE or header.kind != Kind.DATA:
            return
        try:
            open_body(batch, header=header, body_bytes_max=_BODY_BYTES_MAX)
        except BadBatch as error:
            self.count += 1
            if len(self.unopened) < FAULTS_MAX:
                first, following = header.base_queue_offset, header.next_queue_offset
                self.unopened.append(
                    Unopened(header.log_offset, header.queue_id, first, following, header.producer_id, error.message)
                )

    def notes(self) -> Iterator[str]:
        for each in self.unopened:
            yield f"cannot be opened, here and in every copy: {each}"
        if (more := self.count - len(self.unopened)) > 0:
            yield f"cannot be opened: and {more} further batches"


@dataclass(slots=True)
class Examination:
    """What was found. `holder`: the process that runs on the directory meanwhile.

    `corrupt`: ranges that no crash explains. `checkpoint_faults`: what the checkpoint says and cannot be.
    """

    log: LogDirectory
    holder: str | None
    found: Survey
    order: Order
    tables: TableCheck
    index: IndexReport
    inventory: Inventory
    bodies: Bodies
    corrupt: list[Range] = field(default_factory=list)
    checkpoint_faults: list[str] = field(default_factory=list)

    @property
    def torn(self) -> Range | None:
        """What the next start cuts as a torn tail."""
        return self.found.tail if self.found.tail not in self.corrupt and self.holder is None else None

    @property
    def without_table(self) -> int:
        """Segments that have no table: the last ones of a log never have."""
        return len(self.log.holding) - len(self.inventory.tables)

    def epochs(self) -> list[tuple[Epoch, int]]:
        """Each epoch of the log's bytes, and where it ends."""
        covering = self.log.epochs.covering(self.log.begin, self.found.end)
        return [(epoch, self.log.epochs.end_of(epoch, self.found.end)) for epoch in covering]

    def error(self) -> MirrorlogError | None:
        """What a command ends with; None when the log is sound. LogCorrupt comes before IndexDoubtful."""
        path = self.log.path
        if self.corrupt:
            first, last = self.corrupt[0], self.corrupt[-1]
            return LogCorrupt(
                f"{path} has {len(self.corrupt)} bad range(s), the first {first}, the last {last}; "
                "restore it from a copy, or see what can be saved with: mqtool recover",
                first=first.first,
                last=last.last,
            )
        if self.order.faults:
            return LogCorrupt(
                f"{path} has {self.order.fault_count} batch(es) that cannot stand where they are, the first at "
                f"{self.order.faults[0]}",
                first=self.order.faults[0].log_offset,
            )
        if self.checkpoint_faults:
            return LogCorrupt(f"the checkpoint of {path} cannot be: {'; '.join(self.checkpoint_faults)}")
        if self.tables.bad or self.index.wrong:
            what = str(self.tables.bad[0]) if self.tables.bad else f"index: {self.index.what}"
            return IndexDoubtful(f"{path}: {what}; stop the node and make it anew with: mqtool recover --apply")
        return None

    def notes(self) -> Iterator[str]:
        """What is no damage and worth to be known."""
        log = self.log
        if self.holder is not None:
            yield f"in use by process {self.holder}: what stands above the flushed offset may move"
        if log.checkpoint is not None and log.valid_slots < _SLOTS:
            yield "one slot of the checkpoint is damaged; the other one counts"
        if (log.path / LOSS_NAME).exists():
            yield "lossy: an earlier start cut whole batches, and its node has not heard all other copies since"
        if self.torn is not None:
            yield f"torn tail {self.torn}: cut at the node's next start"
        for each in self.found.unreadable:
            yield f"unreadable {each}"
        yield from self.bodies.notes()
        if self.index.state not in ("agrees", "wrong"):
            yield f"index: {self.index.state}, {self.index.what}"
        yield from self._begin_notes()
        if self.inventory.leftovers:
            kept = "a running node may need them" if self.holder is not None else "a start removes or uses them"
            yield f"left over ({kept}): {_listing(self.inventory.leftovers)}"
        if self.inventory.unknown:
            yield f"not of this log, and left alone: {_listing(self.inventory.unknown)}"
        if aside := set_aside(log):
            yield f"former copies, set aside: {_listing([path.name for path in aside])}"

    def _begin_notes(self) -> Iterator[str]:
        checkpoint = self.log.checkpoint
        if checkpoint is None:
            return
        decided = [begin for end, begin in self.order.start_moved if end <= checkpoint.confirmed]
        if decided and decided[-1] > checkpoint.begin:
            yield f"the begin moves to {decided[-1]}: that is decided and confirmed, and not done yet"
        if checkpoint.begin and checkpoint.state <= checkpoint.begin and self.order.state_end is None:
            yield f"no state checkpoint yet: what queues were before {checkpoint.begin} is not known here"


def examine(log: LogDirectory, *, what: str, on_batch: OnBatch = ignore_batch, held: bool = False) -> Examination:
    """Read all of the log; each good batch is given to `on_batch` too. `what` names the progress; `held`: this process
    itself holds the directory's lock.

    Raises DiskFailed.
    """
    holder = None if held else log.holder()
    inventory = take_inventory(log)
    order = Order(state=log.checkpoint.state if log.checkpoint is not None else 0)
    tables = TableCheck(log, inventory.tables)
    bodies = Bodies()
    last = log.holding[-1] if log.holding else None
    end = max(log.flushed, last.start if last is not None else 0)
    with WalkProgress(what, log.begin, end) as progress:

        def check(header: BatchHeader, batch: memoryview) -> None:
            order.batch(header, batch)
            tables.batch(header)
            bodies.batch(header, batch)
            on_batch(header, batch)
            progress.reached(header.next_log_offset)

        tables.begin()
        found = survey(log, check, on_bad=order.gap, on_segment=tables.segment)
    holder = None if held else holder or log.holder()
    examined = Examination(log, holder, found, order, tables, check_index(log, tables.ends), inventory, bodies)
    _judge(examined)
    return examined


def _judge(examined: Examination) -> None:
    log, found = examined.log, examined.found
    now = log.read_checkpoint()
    # A running mirror may have been cut meanwhile; it says so before it is.
    flushed = min(log.flushed, now.flushed) if now is not None else log.flushed
    examined.corrupt = found.corrupt(flushed, moving=examined.holder is not None)
    if examined.holder is not None:
        _leave_out_moving(examined, flushed)
    checkpoint = log.checkpoint
    if checkpoint is None:
        return
    faults = examined.checkpoint_faults
    begin, _, confirmed, state = checkpoint
    if not begin <= min(flushed, confirmed):
        faults.append(f"begin {begin} is above flushed {flushed} or confirmed {confirmed}")
    if 0 < state < begin:
        faults.append(f"state {state} is below begin {begin}")
    moved = examined.holder is not None and now != checkpoint
    if found.end < confirmed and not moved:
        faults.append(f"confirmed {confirmed} is above the end {found.end}: what was confirmed is lost")
    if state > begin and examined.order.state_end is None and not found.freed > state:
        faults.append(f"no complete state checkpoint begins at {state}")


def _leave_out_moving(examined: Examination, flushed: int) -> None:
    """What a running node freed, or was just writing, is not lost."""
    order = examined.order
    left = [lost for lost in order.lost if lost.before <= flushed and not examined.found.freed]
    order.lost_count -= len(order.lost) - len(left)
    order.lost = left


def _listing(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def verify(path: LogPath, as_json: AsJson = False) -> None:
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
        name = order.names.get(lost.queue_id)
        yield f"LOST {lost}" + ("" if name is None else f" ({name})")
    if (more := order.lost_count - len(order.lost)) > 0:
        yield f"LOST and {more} further stretches"
    yield from (f"WRONG at {each}" for each in order.faults)
    if (more := order.fault_count - len(order.faults)) > 0:
        yield f"WRONG and {more} further batches"
    yield from (f"WRONG checkpoint: {each}" for each in examined.checkpoint_faults)
    yield from (f"WRONG {each}" for each in examined.tables.bad)
    if examined.index.wrong:
        yield f"WRONG index: {examined.index.what}"


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
