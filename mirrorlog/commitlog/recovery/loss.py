"""That a recovery lost something, kept until somebody has acted on it.

A recovery that finds whole batches behind bad ones cuts them, and the next start would look complete. So before
anything is cut the loss is written down, and a start counts as lossy as long as the note is there (invariant 7). What
further starts lose is added: a recovery that is interrupted finds less the next time.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Final

from mirrorlog.commitlog.files import Files, read_file, replace_file
from mirrorlog.commitlog.recovery.damage import Range
from mirrorlog.commitlog.recovery.recovery import RecoveryReport

FILE_NAME: Final = "lossy"
EARLIER: Final = "lost by an earlier start"
_BYTES_MAX: Final = 64 * 1024


class Loss:
    """The note in a log's directory. Reading it and every method raise OSError."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._path = directory / FILE_NAME
        self._noted = files.exists(self._path)
        self._earlier = self._read() if self._noted else None

    def note(self, report: RecoveryReport) -> None:
        """Write down what a start loses, with what earlier ones lost; on disk when this returns."""
        lost = _joined(_lost(report), self._earlier)
        content = {"first": lost.first, "last": lost.last}
        replace_file(self._files, self._path, (json.dumps(content) + "\n").encode())

    def told(self, report: RecoveryReport) -> RecoveryReport:
        """The report of a start, with what earlier ones lost and nobody has acted on."""
        if not self._noted:
            return report
        lost = self._earlier or Range(report.end, report.end, f"{EARLIER}, whose note cannot be read")
        return replace(report, cut_valid=_joined(_lost(report), lost) if report.lossy else lost)

    def settle(self) -> None:
        """The loss was acted on: this copy has been compared with the others."""
        if self._files.exists(self._path):
            self._files.unlink(self._path)
        # Always: an unlink whose sync failed was not seen to be on disk.
        self._files.fsync_directory(self._path.parent)

    def _read(self) -> Range | None:
        """None when what was lost cannot be read any more; that something was, is known."""
        try:
            content = json.loads(read_file(self._files, self._path, max_bytes=_BYTES_MAX))
            return Range(int(content["first"]), int(content["last"]), EARLIER)
        except (ValueError, KeyError, TypeError, OverflowError):
            return None


def _lost(report: RecoveryReport) -> Range:
    """All that a lossy start lost: what it cut, and what was confirmed and is not there."""
    gone = report.recorded.confirmed
    missing = Range(report.end, gone, "confirmed and not there") if report.end < gone else None
    return _joined(missing, report.cut_valid) if missing else report.cut_valid or Range(report.end, report.end, "")


def _joined(one: Range, other: Range | None) -> Range:
    """From the first to the last that is in either."""
    if other is None:
        return one
    return Range(min(one.first, other.first), max(one.last, other.last), other.reason)
