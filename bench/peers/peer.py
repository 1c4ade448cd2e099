"""What a peer is for the runner: a case with a `run`, and the two ways in which that can end without figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench.measure import Figure

_JVM_WARM: Final = 3


class Skipped(Exception):
    """The peer is not installed, or could not be; the message is the reason and what to do."""


class PeerFailed(Exception):
    """The peer is installed but did not start, did not finish in time, or lost count. The message says which."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One peer. `run` is one round on a cluster started for it; every process is ended and all data removed after it.

    `workload` is "peer" because a round gives figures of W1, W2 and W3, each naming its own. `run` raises `Skipped` or
    `PeerFailed`: report the message and go on with the next.
    """

    case: str
    run: Callable[[], list[Figure]]
    workload: str = "peer"
    group: str = "peer"


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long each workload of a round is measured, and how long the first one is warmed up."""

    warm: float
    measure: float

    def on_jvm(self) -> Seconds:
        """With a longer warm-up: on two cores a JVM needs ten seconds to compile what a record runs through."""
        return Seconds(_JVM_WARM * self.warm, self.measure)

    def arguments(self) -> list[str]:
        """As every load driver takes them."""
        return ["--warm", f"{self.warm:g}", "--seconds", f"{self.measure:g}"]
