"""What the runner runs: a workload with a name and a `run` of one round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from bench.measure import Figure

KIB: Final = 1024
MIB: Final = 1024 * 1024

OWN: Final = "own"
LIMIT: Final = "limit"
PEER: Final = "peer"
TRAP: Final = "trap"


class Skipped(Exception):
    """Cannot be measured on this machine; the message is the reason and what to do."""


class WorkloadFailed(Exception):
    """A process of the workload ended early, was late, or lost count. The message says which."""


class Workload(Protocol):
    """`group`: own, limit or peer. `workload`: e.g. W1, or `peer` where a round gives figures of several."""

    @property
    def group(self) -> str: ...
    @property
    def workload(self) -> str: ...
    @property
    def case(self) -> str: ...

    def run(self) -> list[Figure]:
        """One round, on nodes started for it and ended with it. An exception's text says why there are no figures."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """A workload by a function of its case; what it measures is filed under the name that it is listed by.

    `compared`: a mark needs it, so it runs beside the peers too.
    """

    workload: str
    case: str
    measure: Callable[[str], list[Figure]] = field(repr=False)
    group: str = OWN
    compared: bool = False

    def run(self) -> list[Figure]:
        """One round."""
        return self.measure(self.case)


def name_of(workload: Workload) -> str:
    """What `--only` is matched with."""
    return f"{workload.group} {workload.workload} {workload.case}"
