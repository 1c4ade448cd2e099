"""What is done with a crashed disk: recover it, hold the result to the witness, recover it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

from mirrorlog.commitlog.epochs import EpochList
from mirrorlog.commitlog.format.header import HEADER_SIZE, BatchHeader, is_inner, read_header
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.errors import DiskFailed, DiskFull, ForeignDirectory, LogCorrupt
from sim.disk import SimulatedFiles
from tests.commitlog.logs import abandon, open_log
from tests.crash.finder import Finder, copy_past, lose_power
from tests.crash.lines import unwatched
from tests.crash.witness import Expected, Witness, require

NESTED_MAX = 2
NESTED_CHECKS_MAX = 6
PAST_CHANCE = 0.2
_FOUND_LATER = "in a sealed segment, which opening does not read"


class Opener(Protocol):
    """Opens the log on a disk; the batches that it holds are added to `found`, and given to what finds records."""

    def __call__(self, disk: SimulatedFiles, found: list[bytes], finder: Finder | None = None) -> CommitLog: ...


def opener(
    directory: Path,
    *,
    segment_bytes: int,
    prepare_bytes: int,
    kept_mapped_bytes: int,
    write_through: bool,
    begin: int,
    epochs: EpochList,
) -> Opener:
    """`begin`, `epochs`: of the log when it is made."""

    def opened(disk: SimulatedFiles, found: list[bytes], finder: Finder | None = None) -> CommitLog:
        finder = finder or Finder(None)
        walked: list[bytes] = []

        def walk(header: BatchHeader, batch: memoryview) -> None:
            if not is_inner(header):
                walked.append(bytes(batch))
            finder.add(header)

        log = open_log(
            directory,
            segment_bytes=segment_bytes,
            prepare_bytes=prepare_bytes,
            kept_mapped_bytes=kept_mapped_bytes,
            write_through=write_through,
            files=disk,
            begin=begin,
            first_epochs=epochs.entries,
            on_past=finder.open_past,
            on_batch=walk,
        )
        finder.confirm(log.confirmed)
        # Sealed segments are taken in by their tables, without a walk.
        try:
            log.scan(log.begin, lambda header, batch: None if is_inner(header) else found.append(bytes(batch)))
        except LogCorrupt as error:
            error.add_note(_FOUND_LATER)
            raise
        require(walked == found[len(found) - len(walked) :], "recovery gave out other batches than the log holds")
        return log

    return opened


@dataclass(slots=True)
class Crashes:
    """Checks of crashed disks, counted by kind. `past`: a real directory in which the past of the process stands as
    `now` and as it was `before`; None when it has none. `rotten`: a table was damaged."""

    witness: Witness
    open: Opener
    random: Random
    past: Path | None = None
    rotten: bool = False
    nested_left: int = 0
    nested_chance: float = 0.03
    counts: Counter[str] = field(default_factory=Counter)

    def check(self, disk: SimulatedFiles, *, killed: bool = False, copying: bool = False, depth: int = 0) -> None:
        """Recover `disk` and compare. `killed`: the page cache is whole. `copying`: it died in the middle of a copy.

        Raises Violation, and what opening raises where it must not.
        """
        with unwatched():
            self.counts["nested" if depth else "kill" if killed else "power"] += 1
            self.counts["copying"] += copying
            expected = self.witness.expect(disk)
            settled = disk.settled
            if depth == 0:
                self.nested_left = NESTED_CHECKS_MAX
            if depth < NESTED_MAX:
                disk.observer = lambda moment: self._maybe_crash_recovery(disk, expected, depth)
            found: list[bytes] = []
            finder = self._left_past() if depth == 0 else None
            log = self.open(disk, found, finder)
            disk.observer = None
            self._compare(log, found, expected)
            if finder is not None:
                finder.check(log, found, self.random, freed_to=self.witness.freed_to)
                finder.release()
            if killed:
                self.witness.check_nothing_lost(log.end)
                require(expected.lost is None, f"a kill looks like a loss: {log.recovery}")
                require(copying or log.recovery.torn is None or self.witness.floor is not None, "a kill tore a batch")
            self._check_again(disk, log, found, expected, settled=settled)

    def _left_past(self) -> Finder | None:
        """What the crash left of the past, for some of the crashes."""
        if self.past is None or self.random.random() > PAST_CHANCE:
            return None
        self.counts["past"] += 1
        left = self.past / "left"
        copy_past(self.past / "now", left)
        if self.random.random() < 0.5:
            lose_power(left, self.past / "before", self.random)
        return Finder(left, rotten=self.rotten)

    def check_faulty(self, disk: SimulatedFiles, operation: str, number: int, code: int) -> None:
        """Recovery itself meets a disk that fails, and later one that does not."""
        with unwatched():
            self.counts["faulty recovery"] += 1
            expected, settled = self.witness.expect(disk), disk.settled
            disk.faults.fail(operation, code, first=number, times=1)
            found: list[bytes] = []
            try:
                log = self.open(disk, found)
            except (DiskFailed, DiskFull):
                self.check(disk.after_power_loss(), depth=NESTED_MAX)
            else:
                self._compare(log, found, expected)
                disk.faults.heal()
                self._check_again(disk, log, found, expected, settled=settled)

    def check_flipped(self, disk: SimulatedFiles) -> None:
        """One bit of the disk has turned: below the flushed offset that is corruption, named; elsewhere it may cost
        what was not flushed, and never gives out a byte that was not written."""
        with unwatched():
            expected = self.witness.expect(disk)
            # Only the log's own directory: what stands beside it is not its to check.
            filled = [path for path, content in sorted(disk.tree().items()) if content]
            if not filled:
                return
            path = self.random.choice(filled)
            at = self.random.randrange(len(disk.content(path)))
            in_log = _flushed_place(path, at, expected, filled)
            self.counts["flip below flushed" if in_log is not None else "flip elsewhere"] += 1
            disk.flip_bit(path, at, self.random.randrange(8))
            before, flipped = _without_tables(disk), disk.content(path)
            found: list[bytes] = []
            try:
                log = self.open(disk, found)
            except (LogCorrupt, ForeignDirectory) as error:
                after = _without_tables(disk) if _FOUND_LATER not in getattr(error, "__notes__", ()) else before
                changed = sorted(
                    str(path) for path in before.keys() | after.keys() if before.get(path) != after.get(path)
                )
                require(not changed, f"a refused log was changed: {changed}; {error}")
                if in_log is not None:
                    require(isinstance(error, LogCorrupt), f"{error} is not corruption")
                    first, last = error.details["first"], error.details["last"]
                    require(first <= in_log < last, f"the flip at {in_log} is not in {first}..{last}")
            else:
                require(in_log is None, f"a flip at {in_log}, below the flushed offset, was not found")
                require(log.recovery.lossy or expected.noted is None, f"a flip in {path.name} hides a loss")
                # What was flushed and not yet recorded as such is cut like a torn tail: see `CommitLog.start_flush`.
                recorded = expected.recorded.flushed if expected.recorded is not None else 0
                self.witness.check_kept(found, log.begin, flushed=recorded)
                # A file whose name was lost, and in which nothing is whole any more, is no segment.
                if log.end < expected.end and (_is_segment(path) or self.witness.known_as_segment(flipped, log.epochs)):
                    require(log.recovery.torn, f"a flip in {path.name} cut bytes and nothing was said")
                    require(log.recovery.torn.first == log.end, "what was cut begins elsewhere")

    def _compare(self, log: CommitLog, found: list[bytes], expected: Expected) -> None:
        report = log.recovery
        self.witness.check_kept(found, log.begin)
        require(found == list(expected.chain), f"recovery found {len(found)} batches of {len(expected.chain)}")
        require((log.begin, log.end) == (expected.begin, expected.end), "begin or end are wrong")
        require(log.flushed <= log.end, "more is flushed than there is")
        require(log.confirmed <= min(log.end, self.witness.confirmed), "the confirmed offset was made up")
        dropped = report.cut_valid
        require(
            (dropped and (dropped.first, dropped.last)) == expected.reported,
            f"{expected.reported} was lost, and {dropped} was reported",
        )
        require(report.lossy == expected.lossy, f"lossy is {report.lossy}")
        require(expected.cut is None or report.torn is not None, "whole batches were cut without a reason")
        if report.torn is not None:
            require(report.torn.first == log.end <= report.torn.last, f"{report.torn} is not behind {log.end}")

    def _check_again(
        self, disk: SimulatedFiles, log: CommitLog, found: list[bytes], expected: Expected, *, settled: bool
    ) -> None:
        """A second recovery finds the same and has nothing to report but an unsettled loss: after a kill, and, when all
        that the first one found was on the device (`settled`), after a power loss too."""
        state = (log.begin, log.end, log.flushed, log.confirmed, log.epochs)
        abandon(log)
        again: list[bytes] = []
        second = self.open(
            disk.after_power_loss() if settled and self.random.random() < 0.5 else disk.after_kill(), again
        )
        report = second.recovery
        lost = report.cut_valid and (report.cut_valid.first, report.cut_valid.last)
        require(not (report.torn or report.warnings), f"the second recovery reports {report}")
        require((lost, report.lossy) == (expected.owed, expected.lossy), f"{expected.owed} was lost: {report}")
        require(again == found, "the second recovery finds other batches")
        state_again = (second.begin, second.end, second.flushed, second.confirmed, second.epochs)
        require(state_again == state, f"the second recovery differs: {state_again}, first {state}")
        abandon(second)

    def _maybe_crash_recovery(self, disk: SimulatedFiles, expected: Expected, depth: int) -> None:
        if self.nested_left and self.random.random() < self.nested_chance:
            self.nested_left -= 1
            killed = self.random.random() < 0.5
            crashed = disk.after_kill() if killed else disk.after_power_loss()
            owed = self.witness.expect(crashed).owed
            require(
                not killed or disk.doubtful or owed == expected.owed,
                f"{expected.owed} was lost, a killed start left {owed}",
            )
            self.check(crashed, depth=depth + 1)


def _flushed_place(path: Path, at: int, expected: Expected, files: Sequence[Path]) -> int | None:
    """The log offset of a byte of a file when it is one of a batch below the recorded flushed offset.

    A file may hold former batches behind its end; then the next file has the place.
    """
    if not _is_segment(path) or expected.recorded is None:
        return None
    place = int(path.name) + at
    holder = max((int(each.name) for each in files if _is_segment(each) and int(each.name) <= place), default=None)
    batch = next((each for each in expected.chain if _holds(each, place)), None)
    held = batch is not None and holder == int(path.name) and place < expected.recorded.flushed
    return place if held else None


def _without_tables(disk: SimulatedFiles) -> dict[Path, bytes]:
    """Tables can be made anew from their segments at any time, and are."""
    return {path: content for path, content in disk.tree().items() if ".table" not in path.name}


def _is_segment(path: Path) -> bool:
    return path.name.isdigit()


def _holds(batch: bytes, place: int) -> bool:
    assert len(batch) >= HEADER_SIZE
    first = read_header(batch).log_offset
    return first <= place < first + len(batch)
