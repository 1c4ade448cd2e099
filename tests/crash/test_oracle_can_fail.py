"""Logs and disks with a mistake built in: the oracle must find each within some rounds, or it proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirrorlog.commitlog.index.past import PastIndex
from mirrorlog.commitlog.recovery.recovery import LossNote, Recovery, RecoveryReport
from mirrorlog.commitlog.segments import scan
from mirrorlog.commitlog.segments.chain import SegmentChain
from mirrorlog.commitlog.segments.cold import ColdRead
from sim.disk import SimulatedFiles
from sim.inode import Inode
from tests.crash.life import Story
from tests.crash.rounds import SEED, failing_seed

ROUNDS = 60


def is_segment(path: Path) -> bool:
    return path.name.isdigit() or path.name.startswith("spare-")


def without_data_syncs(disk: SimulatedFiles) -> None:
    """A log that flushes nothing."""
    sync = disk._fdatasync
    disk._fdatasync = lambda inode, path: None if is_segment(path) else sync(inode, path)  # type: ignore[method-assign]


def without_name_syncs(disk: SimulatedFiles) -> None:
    """A log that never syncs its directory."""
    disk._sync_names = lambda path: None  # type: ignore[method-assign]


def checkpoint_before_data(disk: SimulatedFiles) -> None:
    """A log that writes down what is flushed before it is."""
    sync = disk._fdatasync
    waiting: list[tuple[Inode, Path]] = []

    def late(inode: Inode, path: Path) -> None:
        if is_segment(path):
            waiting.append((inode, path))
            return
        sync(inode, path)
        while path.name == "checkpoint" and waiting:
            sync(*waiting.pop())

    disk._fdatasync = late  # type: ignore[method-assign]


def without_syncs_of_replacements(disk: SimulatedFiles) -> None:
    """A log that renames a file over another before its bytes are on disk."""
    sync = disk._fdatasync

    def skipping(inode: Inode, path: Path) -> None:
        if path.suffix != ".new":
            sync(inode, path)

    disk._fdatasync = skipping  # type: ignore[method-assign]


def lowers_no_checkpoint(disk: SimulatedFiles) -> None:
    """A log that writes one slot where two are due: an older one goes on to claim what was cut."""
    write = disk._write

    def first_slot_only(operation: str, inode: Inode, path: Path, data: bytes | memoryview, at: int) -> None:
        if path.name != "checkpoint" or at == 0:
            write(operation, inode, path, data, at)

    disk._write = first_slot_only  # type: ignore[method-assign]


def believes_failed_syncs(disk: SimulatedFiles) -> None:
    """A log that goes on after a sync that failed."""
    sync = disk._fdatasync

    def believing(inode: Inode, path: Path) -> None:
        with suppress(OSError):
            sync(inode, path)

    disk._fdatasync = believing  # type: ignore[method-assign]


def with_faults(story: Story) -> Story:
    return replace(story, faults=True, keeps_past=False, steps=40)


def with_a_past(story: Story) -> Story:
    return replace(
        story, keeps_past=True, segment_bytes=4096, batch_bytes_max=2000, kept_mapped_bytes=0, steps=100, faults=False
    )


@pytest.mark.parametrize(
    "spoil",
    [
        without_data_syncs, without_name_syncs, checkpoint_before_data, without_syncs_of_replacements,
        lowers_no_checkpoint, believes_failed_syncs,
    ],
)  # fmt: skip
def test_a_disk_call_that_is_left_out_or_late_is_found(spoil: Any) -> None:
    """Goal: the order of syncs is under test. Take one away, or swap two, below the log."""
    assert failing_seed(SEED, 2 * ROUNDS, spoil=spoil, bend=with_faults) is not None


def test_a_run_stored_in_one_copy_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the mistake of an earlier log: a killed copy of many batches looks like a loss."""
    in_pieces = SegmentChain.place_run

    def place_run(self: SegmentChain, run: memoryview, lengths: Sequence[int]) -> None:
        if len(run) > self.active.room or self.active.view is None:
            in_pieces(self, run, lengths)
            return
        at = self.end - self.active.start
        self.active.view[at : at + len(run)] = run
        for length in lengths:
            self.active.append_border(length)

    def watched(story: Story) -> Story:
        return replace(
            story, line_chance=0.7, point_chance=0.02, write_through=False, batch_bytes_max=400, keeps_past=False,
            segment_bytes=65536, steps=40,
        )  # fmt: skip

    monkeypatch.setattr(SegmentChain, "place_run", place_run)
    assert failing_seed(SEED, 2 * ROUNDS, bend=watched) is not None


def test_a_recovery_that_checks_no_bodies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: torn bodies are generated and noticed."""
    monkeypatch.setattr(scan, "check_body", lambda log, at, header: None)
    assert failing_seed(SEED, ROUNDS) is not None


def test_a_recovery_that_leaves_torn_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: idempotence is under test. Report and do not cut."""
    monkeypatch.setattr(Recovery, "repair", lambda self: False)
    assert failing_seed(SEED, ROUNDS) is not None


def test_a_recovery_that_keeps_silent_about_whole_batches_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the report is under test. Cut whole batches and say nothing of them."""
    report = Recovery.report

    def silent(self: Recovery, *told: Any) -> RecoveryReport:
        said = report(self, *told)
        return RecoveryReport(said.begin, said.end, said.batches, said.recorded, said.torn, None, said.warnings)

    monkeypatch.setattr(Recovery, "report", silent)
    assert failing_seed(SEED, ROUNDS) is not None


def test_a_loss_that_is_not_noted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a start that lost something is lossy until that is settled. Cut whole batches and write nothing down."""
    monkeypatch.setattr(LossNote, "note", lambda self, report: None)
    assert failing_seed(SEED, ROUNDS) is not None


def test_an_index_that_forgets_a_stretch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: lookups in the past are under test. Leave out the last stretch of each segment."""
    put = PastIndex._put_stretches

    def put_fewer(self: PastIndex, transaction: Any, segment: int, rows: Any) -> None:
        put(self, transaction, segment, rows[:-1])

    monkeypatch.setattr(PastIndex, "_put_stretches", put_fewer)
    assert failing_seed(SEED, ROUNDS, bend=with_a_past) is not None


def test_a_sealed_segment_that_reads_other_bytes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: cold reads of what has left the memory are under test. Spoil the last byte of each."""
    run = ColdRead.run
    monkeypatch.setattr(ColdRead, "run", lambda self: memoryview(bytes(run(self)[:-1]) + b"?"))
    assert failing_seed(SEED, ROUNDS, bend=with_a_past) is not None
