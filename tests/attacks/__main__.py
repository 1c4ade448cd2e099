"""Every attack on real nodes, with users and TLS and without: what it does to a bystander, to memory and to masters.

    python -m tests.attacks [--seconds 10] [--only pings,metadata] [--kind plain] [--seed 7] [--out FILE]

A row for each; exit code 1 when a node ended, an election was held, a master was deposed or a bystander's publish
failed. Times above the marks (p99 50 ms, worst 250 ms) are told, and no more: how long a machine's cores are somebody
else's is not the node's to decide.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

from tests.attacks.stage import KINDS, Outcome, attacks, stage

_P99_MS = 50.0
_MAX_MS = 250.0
_HEAD = f"{'attack':24} {'cluster':8} {'inputs':>9} {'elect.':>6} {'p50 ms':>7} {'p99 ms':>7} {'max ms':>7} {'grew':>9}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each attack")
    parser.add_argument("--only", default="", help="names, with commas: " + ", ".join(attacks()))
    parser.add_argument("--kind", choices=KINDS, action="append", help="of cluster; by default both")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--out", type=Path, help="where the rows go as JSON")
    asked = parser.parse_args(arguments)
    chosen = asked.only.split(",") if asked.only else attacks()
    if unknown := set(chosen) - set(attacks()):
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    print(f"seed={asked.seed}\n{_HEAD}", flush=True)
    outcomes = []
    for kind in asked.kind or KINDS:
        with stage(kind) as stand:
            for name in chosen:
                outcomes.append(stand.attacked(name, seconds=asked.seconds, seed=asked.seed))
                print(_row(outcomes[-1]), flush=True)
    if asked.out is not None:
        asked.out.write_text(json.dumps([asdict(each) for each in outcomes], indent=2) + "\n")
    return 0 if all(each.harmless for each in outcomes) else 1


def _row(outcome: Outcome) -> str:
    seen = outcome.bystander
    told = [f"{node} ended" for node in outcome.ended]
    told += [f"{outcome.promotions} promotions"] if outcome.promotions else []
    told += [f"{len(seen.failed)} failed: {seen.failed[0]}"] if seen.failed else []
    told += ["above the marks"] if seen.p99_ms > _P99_MS or seen.max_ms > _MAX_MS else []
    return (
        f"{outcome.attack:24} {outcome.kind:8} {outcome.inputs:9,} {outcome.elections:6} {seen.p50_ms:7.1f} "
        f"{seen.p99_ms:7.1f} {seen.max_ms:7.1f} {outcome.grew_bytes / 2**20:5.1f} MiB {'; '.join(told)}"
    ).rstrip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
