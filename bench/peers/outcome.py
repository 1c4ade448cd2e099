"""What a load driver says, one JSON object a line, and the figures that follow from it. Pure.

Drivers are programs of their own in Python, Go and Java; these lines are all they have in common:

    {"workload": "W1", "variant": "linger 5 ms", "count": 210000, "seconds": 4.0, "sent": 260000, "confirmed": 260000,
     "stored": 260000}
    {"workload": "W2", "variant": "", "p50_us": 900.0, "p99_us": 3800.0, "sent": 3000, "confirmed": 3000}

`count` records passed in `seconds` of the measured window. `sent`, `confirmed` and `stored` are totals of the whole
run, warm-up included: `stored` is what the servers say they hold of it. Lines that do not begin with `{` are chatter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from bench.measure import Figure
from bench.peers.peer import PeerFailed

RECORD_BYTES: Final = 1024
"""Of every record of every peer: random bytes, made before the measurement."""


def figures_of(lines: Iterable[str], case: str) -> list[Figure]:
    """The figures of all outcomes in a driver's output, in its order; `case` is put before each variant.

    Raises PeerFailed when there is no outcome, one that cannot be read, or one in which records are missing.
    """
    figures = [figure for line in lines if line.startswith("{") for figure in _figures_of_line(line, case)]
    if not figures:
        raise PeerFailed(f"{case}: the load driver reported nothing")
    return figures


def _figures_of_line(line: str, case: str) -> list[Figure]:
    try:
        outcome: dict[str, Any] = json.loads(line)
        workload, variant = str(outcome["workload"]), str(outcome.get("variant", ""))
        case = f"{case}, {variant}" if variant else case
        _check_counts(outcome, f"{workload}, {case}")
        if "p50_us" in outcome:
            return [Figure(workload, case, name, "µs", float(outcome[f"{name}_us"])) for name in ("p50", "p99")]
        rate = float(outcome["count"]) / float(outcome["seconds"])
    except (ValueError, TypeError, KeyError, ZeroDivisionError) as error:
        raise PeerFailed(f"{case}: cannot read the load driver's {line.strip()[:200]!r} ({error})") from None
    return [
        Figure(workload, case, "rate", "msg/s", rate),
        Figure(workload, case, "throughput", "MB/s", rate * RECORD_BYTES / 1e6),
    ]


def _check_counts(outcome: dict[str, Any], what: str) -> None:
    """A figure counts only if every record sent was confirmed, and is there. A client's retry may store one twice."""
    if "sent" not in outcome:
        return
    sent, confirmed = int(outcome["sent"]), int(outcome["confirmed"])
    stored = int(outcome.get("stored", sent))
    if confirmed != sent or stored < sent or sent == 0:
        raise PeerFailed(f"{what}: {sent} records sent, {confirmed} confirmed, {stored} stored")
