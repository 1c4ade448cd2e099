"""What of a log cannot be read, as far as anybody can tell. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirrorlog.errors import LogCorrupt, MirrorlogError, PositionLost

_ADVICE = "restore the log from another copy (mqtool verify names all of it), or set failOnDataLoss to false"


@dataclass(frozen=True, slots=True)
class BadStretch:
    """Log offsets `log_first` up to `log_last` hold no good batch; of which queue they were, and which queue offsets,
    `first` up to `next`, where that is known, else None. `path`: the file, or the log's directory.

    `go_on_at`: nothing is damaged, these queue offsets were given up when a loss was declared, up to that one; -1 else.
    """

    path: Path
    log_first: int
    log_last: int
    reason: str
    queue: str | None = None
    first: int | None = None
    next: int | None = None
    go_on_at: int = -1

    @property
    def given_up(self) -> bool:
        return self.go_on_at >= 0

    def __str__(self) -> str:
        records = f"queue {self.queue!r}, queue offsets {self.first} up to {self.next}"
        if self.given_up:
            return f"{records}: {self.reason}"
        place = f"log offsets {self.log_first} up to {self.log_last} in {self.path}: {self.reason}"
        return place if self.queue is None else f"{records}, {place}"

    def error(self) -> MirrorlogError:
        """For who does not go on without: PositionLost, or LogCorrupt."""
        if self.given_up:
            return PositionLost(f"{self}; go on at {self.go_on_at}", go_on_at=self.go_on_at)
        return LogCorrupt(f"{self}; {_ADVICE}", first=self.log_first, last=self.log_last, file=str(self.path))


OnBad = Callable[[BadStretch], None]
"""Called in place of an error; reading goes on behind the stretch."""
