"""Calls that fail by plan: the n-th fdatasync, every allocation from now on, a rename of one file."""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """The calls of `operation` from number `first` on, `times` of them, end with `code`. Numbers begin with 1."""

    operation: str
    first: int
    times: int
    code: int


class FaultPlan:
    """Counts calls by the names of the methods of `Files` and `File` and says which fail."""

    __slots__ = ("calls", "faults")

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.faults: list[Fault] = []

    def fail(self, operation: str, code: int = errno.EIO, *, first: int = 1, times: int = 1_000_000) -> None:
        """From the `first` call on, counted from now: 1 is the next one."""
        self.faults.append(Fault(operation, self.calls[operation] + first, times, code))

    def heal(self) -> None:
        self.faults.clear()

    def due(self, operation: str) -> OSError | None:
        """Count a call; the error that it ends with, if any."""
        self.calls[operation] += 1
        number = self.calls[operation]
        for fault in self.faults:
            if fault.operation == operation and fault.first <= number < fault.first + fault.times:
                return OSError(fault.code, os.strerror(fault.code))
        return None
