"""What the load drivers in Python share: options, bodies, the clock of a workload, and the line that reports it."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bench.measure import percentile
from bench.peers.outcome import RECORD_BYTES

BODY_COUNT: Final = 1000

_WARM_AGAIN_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Options:
    """`servers` as the peer's client takes them; `warm` (of the first workload) and `measure` in seconds."""

    servers: str
    warm: float
    measure: float

    @property
    def warm_again(self) -> float:
        """Seconds of warm-up for the workloads after the first: they find servers that are warm already."""
        return min(self.warm, _WARM_AGAIN_SECONDS)


def options() -> Options:
    """From the command line of a driver."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--servers", required=True)
    parser.add_argument("--warm", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    return Options(given.servers, given.warm, given.seconds)


def random_bodies() -> list[bytes]:
    """Made before the clock starts; random, so that nothing on the way can compress them."""
    return [os.urandom(RECORD_BYTES) for _ in range(BODY_COUNT)]


@dataclass(slots=True)
class Window:
    """Counts confirmed records between the end of the warm-up and the end of a workload."""

    warm: float
    measure: float
    started: float = field(default_factory=time.perf_counter)
    _begin: float = 0.0
    _count_begin: int = 0

    def open(self, confirmed: int) -> bool:
        """Whether to send on. Call it once per burst; `confirmed` counts from the start of the workload."""
        now = time.perf_counter()
        if not self._begin and now - self.started >= self.warm:
            self._begin, self._count_begin = now, confirmed
        return now - self.started < self.warm + self.measure

    def result(self, confirmed: int) -> dict[str, float]:
        """`count` and `seconds` up to now; call it before waiting for what is still outstanding."""
        return {"count": confirmed - self._count_begin, "seconds": time.perf_counter() - self._begin}


def one_by_one(given: Options, send: Callable[[int], None]) -> dict[str, float]:
    """W2 for a client that blocks: `send(number)` returns when that record is confirmed. Percentiles and totals."""
    latencies_us: list[float] = []
    sent = 0
    started = time.perf_counter()
    while (asked := time.perf_counter()) - started < given.warm_again + given.measure:
        send(sent)
        sent += 1
        if asked - started >= given.warm_again:
            latencies_us.append((time.perf_counter() - asked) * 1e6)
    return {**latency(latencies_us), "sent": sent, "confirmed": sent}


def latency(latencies_us: list[float]) -> dict[str, float]:
    """The percentiles as a driver reports them."""
    return {"p50_us": percentile(latencies_us, 0.50), "p99_us": percentile(latencies_us, 0.99)}


def report(workload: str, variant: str, result: dict[str, float]) -> None:
    """One line on standard output, as `outcome` describes it."""
    print(json.dumps({"workload": workload, "variant": variant, **result}), flush=True)
