"""Every whole batch of a log, written to a new directory: what can still be had of a log that is damaged.

The new directory is a log directory of the same log: its identity, epochs and checkpoint, and a segment file for each
stretch of batches without a gap, named by its first log offset. So the bytes are the same at the same log offsets, and
`mqtool dump` and `verify` read it as they read any other. `salvage.json` says what is there and what is not.

A transaction is saved whole or not at all: one bad byte in it costs all of its batches, and the range says so.

Rejected: the records as lines (ten times as large, and their producers' fields and places would be gone; `dump
--records` makes them of this), putting the batches into a log that could be started (offsets would be given out again).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec

from mirrorlog.commitlog.epochs import FILE_NAME as EPOCHS_NAME
from mirrorlog.commitlog.files import disk_error
from mirrorlog.commitlog.flush import FILE_NAME as CHECKPOINT_NAME
from mirrorlog.commitlog.format.header import BatchHeader, is_envelope, is_inner
from mirrorlog.commitlog.log_directory import LogDirectory
from mirrorlog.commitlog.recovery.opening import IDENTITY_NAME
from mirrorlog.commitlog.segments.segment import segment_name
from mirrorlog.errors import BadInput

REPORT_NAME: Final = "salvage.json"

_BUFFER_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class SavedStretch:
    """Log offsets [first, last) that were saved without a gap."""

    first: int
    last: int


@dataclass(slots=True)
class Salvage:
    """Writes the directory `out`. Made by `begin`; raises DiskFull or DiskFailed."""

    log: LogDirectory
    out: Path
    batches: int = 0
    records: int = 0
    stretches: list[SavedStretch] = field(default_factory=list)
    _file: BinaryIO | None = None
    _file_ends: int = 0
    _borders: set[int] = field(default_factory=set)

    @classmethod
    def begin(cls, log: LogDirectory, out: Path) -> Salvage:
        """Make the directory. Raises BadInput when something is there, or when it lies within the log's."""
        if out.absolute().is_relative_to(log.path.absolute()):
            raise BadInput(f"{out} lies within the log's directory; save to another place")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise BadInput(f"{out} exists and is not empty; save to a new directory")
        salvage = cls(log, out, _borders={segment.start for segment in log.holding})
        with salvage._disk():
            out.mkdir(parents=True, exist_ok=True)
            for name in (IDENTITY_NAME, EPOCHS_NAME, CHECKPOINT_NAME):
                if (log.path / name).exists():
                    shutil.copyfile(log.path / name, out / name)
        return salvage

    def batch(self, header: BatchHeader, batch: memoryview) -> None:
        """An OnBatch: write it behind the one before, or into a file of its own when there is a gap, or where the log
        itself begins a file."""
        if is_inner(header):
            self.batches += 1
            self.records += header.record_count
            return  # written with its transaction
        at = header.log_offset
        with self._disk():
            if self._file is None or at != self._file_ends or at in self._borders:
                self._next_file(at)
            assert self._file is not None
            self._file.write(batch)
        if self.stretches and self.stretches[-1].last == at:
            self.stretches[-1].last = header.next_log_offset
        else:
            self.stretches.append(SavedStretch(at, header.next_log_offset))
        self._file_ends = header.next_log_offset
        self.batches += 1
        self.records += 0 if is_envelope(header) else header.record_count

    def end(self, report: Callable[[], dict[str, Any]]) -> None:
        """Write what is left, and the report with `report` in it; on disk when this returns."""
        with self._disk():
            self._close_file()
            content = {
                "source": str(self.log.path.absolute()),
                "batches": self.batches,
                "records": self.records,
                "saved": self.stretches,
                **report(),
            }
            encoded = msgspec.json.format(msgspec.json.encode(content, enc_hook=str), indent=2)
            with (self.out / REPORT_NAME).open("wb") as file:
                file.write(encoded + b"\n")
                file.flush()
                os.fsync(file.fileno())

    # --- inside ---

    def _next_file(self, start: int) -> None:
        self._close_file()
        self._file = (self.out / segment_name(start)).open("xb", buffering=_BUFFER_BYTES)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with file:
                file.flush()
                os.fsync(file.fileno())

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise disk_error(error, "save to", self.out) from None
