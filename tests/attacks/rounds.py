"""All fuzzers, round after round, for as long as asked: four at the ports of either kind of cluster, and somebody in
the middle between clients and nodes or between the nodes, with TLS and without.

    python -m tests.attacks.rounds [--seconds 600] [--turn 20] [--seed 7] [--only middle_nodes,…] [--kept DIRECTORY]

Each round has the next seed, so a turn is repeated by its seed and name. A row for each turn, totals at the end; exit
code 1 when anything was wrong. Data and logs of the clusters where something was wrong are kept.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from mirrorlog.errors import MirrorlogError
from tests.attacks import middle
from tests.attacks.stage import KINDS, stage, tracebacks

FUZZERS: Final = ("fuzz_client", "fuzz_replication", "fuzz_http", "fuzz_grpc")
GROWTH_BYTES_MAX: Final = 128 * 1024 * 1024
_WHERE: Final = ("client", "nodes")
_NAMES: Final = (*FUZZERS, *(f"middle_{where}" for where in _WHERE))
_MIB: Final = 1 << 20


class Row(NamedTuple):
    """A turn. `wrong`: what should not be, for people; latencies are none of it."""

    name: str
    kind: str
    inputs: int = 0
    elections: int = 0
    grew_bytes: int = 0
    wrong: Sequence[str] = ()


def _at_ports(kind: str, names: Sequence[str], turn_s: float, seed: int, directory: Path) -> Iterator[Row]:
    """One cluster of a kind, and each fuzzer's turn at it."""
    with stage(kind, directory) as stand:
        before = sum(stand.facts().memory_bytes.values())
        for name in names:
            seen = tracebacks(directory)
            outcome = stand.attacked(name, seconds=turn_s, seed=seed)
            wrong = [f"{node} ended" for node in outcome.ended]
            wrong += [f"{outcome.promotions} promotions"] if outcome.promotions else []
            wrong += [f"{outcome.elections} elections"] if outcome.elections else []
            wrong += outcome.bystander.failed[:1]
            wrong += [f"{count} tracebacks"] if (count := tracebacks(directory) - seen) else []
            wrong += ["grew too far"] if outcome.grew_bytes > GROWTH_BYTES_MAX else []
            yield Row(name, kind, outcome.inputs, outcome.elections, outcome.grew_bytes, wrong)
        after = sum(stand.facts().memory_bytes.values())
        print(
            f"{'memory of the nodes':18} {kind:8} {before / _MIB:.0f} MiB before, {after / _MIB:.0f} after", flush=True
        )


def _in_the_middle(where: str, tls: bool, turn_s: float, seed: int, directory: Path) -> Row:
    found = middle.run(where, seconds=turn_s, seed=seed, tls=tls, directory=directory)
    return Row(
        f"middle_{where}", "tls" if tls else "plain", found.changed, found.elections, found.grew_bytes, found.wrong
    )


def _turns(names: Sequence[str], turn_s: float, seed: int, kept: Path) -> Iterator[Row]:
    """One round. A cluster that fails to start, an attack that hangs or fails, are found too."""
    for kind in KINDS:
        if chosen := [name for name in names if name in FUZZERS]:
            directory = kept / f"{seed}-ports-{kind}"
            rows = list[Row]()
            try:
                for row in _at_ports(kind, chosen, turn_s, seed, directory):
                    rows.append(row)
                    yield row
            except (AssertionError, MirrorlogError, subprocess.SubprocessError) as error:
                rows.append(Row("ports", kind, wrong=[f"{type(error).__name__}: {error}"]))
                yield rows[-1]
            _forget(directory, rows)
    for where in _WHERE:
        for tls in (False, True):
            if f"middle_{where}" in names:
                directory = kept / f"{seed}-middle-{where}-{'tls' if tls else 'plain'}"
                try:
                    row = _in_the_middle(where, tls, turn_s, seed, directory)
                except (AssertionError, MirrorlogError) as error:
                    row = Row(f"middle_{where}", "tls" if tls else "plain", wrong=[f"{type(error).__name__}: {error}"])
                yield row
                _forget(directory, [row])


def _forget(directory: Path, rows: Sequence[Row]) -> None:
    if not any(row.wrong for row in rows):
        shutil.rmtree(directory, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks.rounds", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="in all; a round that is begun is ended")
    parser.add_argument("--turn", type=float, default=20.0, help="seconds of each fuzzer's turn")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32), help="of the first round")
    parser.add_argument("--only", default=",".join(_NAMES), help="names, with commas: " + ", ".join(_NAMES))
    parser.add_argument("--kept", type=Path, default=Path(".build/attacks"), help="where clusters are kept")
    asked = parser.parse_args(arguments)
    names = asked.only.split(",")
    if unknown := set(names) - set(_NAMES):
        parser.error(f"no such fuzzer: {', '.join(sorted(unknown))}")
    totals: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    until, seed, began = time.monotonic() + asked.seconds, asked.seed, time.monotonic()
    while time.monotonic() < until:
        for row in _turns(names, asked.turn, seed, asked.kept.absolute()):
            print(f"seed={seed:<12} {_line(row.name, row.kind, row.inputs, row.elections, row.grew_bytes)}", end=" ")
            print("; ".join(row.wrong), flush=True)
            total = totals[row.name, row.kind]
            total.update(inputs=row.inputs, elections=row.elections, wrong=len(row.wrong), turns=1)
            total["grew"] = max(total["grew"], row.grew_bytes)
        seed += 1
    print(f"in all {time.monotonic() - began:.0f} s, seeds {asked.seed} to {seed - 1}")
    for (name, kind), total in totals.items():
        line = _line(name, kind, total["inputs"], total["elections"], total["grew"])
        print(f"{line} in {total['turns']} turns, {total['wrong']} wrong")
    return 1 if any(total["wrong"] for total in totals.values()) else 0


def _line(name: str, kind: str, inputs: int, elections: int, grew_bytes: int) -> str:
    return f"{name:18} {kind:8} {inputs:9,} inputs, {elections:3} elections, grew {grew_bytes / _MIB:5.1f} MiB"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
