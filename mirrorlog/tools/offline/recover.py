"""`mqtool recover`: what a start would do to a log directory, doing it, and saving what is readable of a bad one.

What a start would do is found out by the node's own recovery, which changes nothing here: it reads through files that
cannot be written, and the tables that it would make stay in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import UUID

import typer

from mirrorlog.commitlog.directory import IDENTITY_NAME as NODE_IDENTITY_NAME
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.flush import Checkpoint
from mirrorlog.commitlog.index.past import DIRECTORY_NAME as INDEX_NAME
from mirrorlog.commitlog.index.past import PastIndex
from mirrorlog.commitlog.index.past import delete as delete_index
from mirrorlog.commitlog.index.table import SegmentTable, TableHead, table_name
from mirrorlog.commitlog.index.tables import Tables
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.commitlog.log_directory import FILES, LogDirectory, read_log_directory
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.recovery.recovery import LossNote, Recovery, RecoveryReport
from mirrorlog.commitlog.segments.scan import ignore_batch
from mirrorlog.commitlog.segments.segment import segment_name, segment_start
from mirrorlog.config import LimitSettings, LogSettings
from mirrorlog.errors import BadInput, DirectoryInUse, ForeignDirectory, LogCorrupt, MirrorlogError
from mirrorlog.tools.common.options import AsJson, LogPath
from mirrorlog.tools.common.output import print_json
from mirrorlog.tools.offline.log_directory import find_log, take_inventory, with_spares
from mirrorlog.tools.offline.salvage import Salvage
from mirrorlog.tools.offline.verify import Examination, damage_lines, examination_fields, examine

_NO_CHECKPOINT: Final = Checkpoint(0, 0, 0)

INDEX_KEPT: Final = frozenset({"agrees", "unchecked"})
"""States of an index that is left as it is."""


@dataclass(slots=True)
class StartPlan:
    """What a start of the node would do to a log's directory. `refused`: why the node would not open the log; nothing
    else is known then. `torn`, `cut_valid`: what it would cut, see RecoveryReport. `lossy`: it would count as having
    lost something, by what it cuts or, in `earlier`, by what earlier ones cut and nobody has acted on. `tables`:
    segments whose table it would make. `renamed`: (old, new) names. `removed`: names."""

    refused: MirrorlogError | None = None
    end: int = 0
    torn: Range | None = None
    cut_valid: Range | None = None
    lossy: bool = False
    earlier: Range | None = None
    tables: list[int] = field(default_factory=list)
    renamed: list[tuple[str, str]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether it would change anything but the index."""
        return bool(self.torn or self.cut_valid or self.tables or self.renamed or self.removed)


def plan_start(log: LogDirectory) -> StartPlan:
    """Try a start. Raises DiskFailed."""
    first = min(
        (start for segment in log.segments if (start := segment_start(segment.path.name)) is not None), default=0
    )
    tables = _PlannedTables(log)
    recovery = Recovery(FILES, log.path, log.rules, log.checkpoint or _NO_CHECKPOINT._replace(begin=first), tables)
    try:
        recovery.take_sealed()
        recovery.scan(ignore_batch)
    except LogCorrupt as error:
        return StartPlan(refused=error, tables=tables.made)
    except OSError as error:
        return StartPlan(refused=disk_error(error, "read", log.path), tables=tables.made)
    return _planned(log, recovery, recovery.report(()), tables.made)


def _planned(log: LogDirectory, recovery: Recovery, report: RecoveryReport, made: list[int]) -> StartPlan:
    told = LossNote(FILES, log.path).told(report)
    kept = {segment.path.name: segment_name(segment.start) for segment in recovery.segments}
    inventory = take_inventory(log)
    candidates = [*inventory.leftovers, *(segment.path.name for segment in log.holding)]
    return StartPlan(
        end=report.end,
        torn=report.torn,
        cut_valid=report.cut_valid,
        lossy=told.lossy,
        earlier=told.cut_valid if not report.lossy else None,
        tables=made,
        renamed=[(old, new) for old, new in kept.items() if old != new],
        removed=sorted({name for name in candidates if name not in kept}),
    )


class _PlannedTables(Tables):
    """Tables that are not written. `made`: the segments of those that would be."""

    def __init__(self, log: LogDirectory) -> None:
        super().__init__(FILES, log.path, seed=log.rules.seed)
        self.made: list[int] = []
        self._log_seed = log.rules.seed

    def store(self, start: int, end: int, content: memoryview) -> TableHead:
        self.made.append(start)
        with os.fdopen(os.memfd_create("table"), "wb", buffering=0) as memory:
            memory.write(content)
            path = Path(f"/proc/self/fd/{memory.fileno()}")
            with SegmentTable.open(FILES, path, start=start, end=end, seed=self._log_seed) as table:
                self.heads[start] = table.head
        return self.heads[start]


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


def repair(examined: Examination, plan: StartPlan, *, settle_loss: bool) -> None:
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


def recover(
    path: LogPath,
    *,
    apply: Annotated[bool, typer.Option("--apply", help="Do it. The node must be down.")] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="With --apply: the copy counts as complete again.")
    ] = False,
    salvage: Annotated[
        Path | None,
        typer.Option("--salvage", metavar="OUT", help="Write every whole batch to the new directory OUT first."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a start of the node would do to a log directory; do it with --apply. Changes nothing without.

    That is: cut a torn tail, remove what is left over, make tables and the index anew. A log with bad bytes below its
    flushed offset is refused (exit code 15): the damaged ranges, what of each queue was in them and what stands behind
    them is reported. A start that cuts whole batches is LOSSY: what it lost is noted in the directory, and the node as
    a master then waits to hear what each other copy holds; after --accept-loss it does not.

    With --salvage every whole batch, behind the damage too, goes to a new log directory: look at it with `mqtool dump
    OUT`, and publish its records again with: mqtool dump OUT --queue flights --records --json | mqtool publish flights
    --records -

    Exit codes: 0 nothing is damaged, or what was asked for is done; 13 a node runs on it; 15 and 17 as verify.

    Example: mqtool recover data/n1 --salvage saved
    """
    if accept_loss and not apply:
        raise BadInput("--accept-loss goes with --apply")
    directory = find_log(path)
    with locked(read_log_directory(directory)) if apply else contextlib.nullcontext():
        log = read_log_directory(directory)
        if apply or log.holder() is None:
            log = with_spares(log)
        done = _look(log, salvage, held=apply)
        error = done.refusal()
        if not apply:
            error = error or done.examined.error()
        elif error is None:
            done.apply(accept_loss=accept_loss)
        if as_json:
            print_json(done.fields(salvage))
        else:
            for line in done.lines(salvage):
                typer.echo(line)
    if error is not None and (apply or salvage is None):
        raise error


@dataclass(slots=True)
class Recovered:
    """What was found, and what was done about it. `plan`: None beside a running node, which has been started."""

    examined: Examination
    plan: StartPlan | None
    applied: bool = False
    settled: bool = False

    def refusal(self) -> MirrorlogError | None:
        """Why the log must not be opened as it is."""
        flushed = self.examined.log.flushed
        damaged = [each for each in self.examined.corrupt if each.first < flushed]
        if not damaged:
            return self.plan.refused if self.plan is not None else None
        return LogCorrupt(
            f"{self.examined.log.path} has {len(damaged)} damaged range(s) below the flushed offset {flushed}, the "
            f"first {damaged[0]}; move the directory aside and let the node copy the log again, or save what is "
            "readable with --salvage",
            first=damaged[0].first,
            last=damaged[-1].last,
        )

    def apply(self, *, accept_loss: bool) -> None:
        """Do what a start does. Raises as `repair`."""
        assert self.plan is not None
        repair(self.examined, self.plan, settle_loss=accept_loss)
        self.applied, self.settled = True, accept_loss

    # --- as text and JSON ---

    def lines(self, salvage: Path | None) -> Iterator[str]:
        """What was found and what comes of it, one line each."""
        log, plan = self.examined.log, self.plan
        yield f"log {log.name} ({log.log_id}) in {log.path}"
        yield from damage_lines(self.examined)
        yield from self._behind()
        if salvage is not None:
            found = self.examined.found
            yield f"saved {found.batches} batches, {found.records} records to {salvage}"
        if plan is not None and plan.refused is not None:
            yield f"a start is refused: {plan.refused}"
        elif plan is not None:
            steps = list(self._steps(plan))
            yield from (f"{'done' if self.applied else 'a start would'}: {step}" for step in steps)
            for bad in self.examined.tables.bad:
                if bad.segment not in plan.tables:
                    done = "done" if self.applied else "--apply would"
                    yield f"{done}: make the table of segment {bad.segment} again"
            yield from self._loss(plan)
            if not steps:
                yield f"a start changes nothing; the log ends at {plan.end}"
        yield from self.examined.notes()

    def _loss(self, plan: StartPlan) -> Iterator[str]:
        if plan.earlier is not None:
            yield f"{plan.earlier.first}..{plan.earlier.last} was lost by an earlier start, and nobody has acted on it"
        if self.settled:
            yield "the copy counts as complete: what was lost is accepted"
        elif plan.lossy:
            yield "the copy counts as lossy until its node, as the master, has heard every other one; or --accept-loss"

    def _behind(self) -> Iterator[str]:
        """What stands behind the first damage."""
        if self.examined.corrupt:
            first = self.examined.corrupt[0]
            if self.examined.found.end > first.last:
                yield f"whole batches stand behind it, from {first.last} to {self.examined.found.end}"
            else:
                yield "no whole batch stands behind it"

    def _steps(self, plan: StartPlan) -> Iterator[str]:
        if plan.torn is not None:
            yield f"cut {plan.torn}"
        if plan.cut_valid is not None:
            yield f"cut the whole batches behind that, {plan.cut_valid.first}..{plan.cut_valid.last} (LOSSY)"
        elif plan.lossy and plan.earlier is None:
            yield f"end at {plan.end}, below what was confirmed (LOSSY)"
        for old, new in plan.renamed:
            yield f"name {old} {new}, as its first batch says"
        if plan.removed:
            yield f"remove {', '.join(plan.removed)}"
        if plan.tables:
            yield f"make the tables of the segments {', '.join(map(str, plan.tables))}"
        if self.examined.index.state not in INDEX_KEPT:
            yield "make the index"

    def fields(self, salvage: Path | None) -> dict[str, Any]:
        """What --json prints: as `verify --json`, and what a start would do."""
        plan = self.plan
        return {
            **examination_fields(self.examined),
            "start": None
            if plan is None
            else {
                "refused": str(plan.refused) if plan.refused is not None else None,
                "end": plan.end if plan.refused is None else None,
                "lossy": plan.lossy,
                "lost_earlier": plan.earlier,
                "torn": plan.torn,
                "cut_valid": plan.cut_valid,
                "renamed": plan.renamed,
                "removed": plan.removed,
                "tables": plan.tables,
            },
            "applied": self.applied,
            "loss_accepted": self.settled,
            "salvaged": str(salvage) if salvage is not None else None,
        }


def _look(log: LogDirectory, salvage: Path | None, *, held: bool) -> Recovered:
    """Read everything once, saving it meanwhile if that is wanted. `held`: the directory is, by this process."""
    if salvage is None:
        examined = examine(log, what="recover", held=held)
    else:
        saved = Salvage.begin(log, salvage)
        examined = examine(log, what="salvage", on_batch=saved.batch, held=held)
        saved.end(
            lambda: {
                "damaged": [asdict(each) for each in examined.corrupt],
                "lost": [asdict(each) for each in examined.order.lost],
                "queues": {str(queue_id): name for queue_id, name in sorted(examined.order.names.items())},
            }
        )
    return Recovered(examined, plan_start(log) if examined.holder is None else None)
