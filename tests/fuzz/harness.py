"""One target under atheris, and all of them one after the other with their executions added up.

    python -m tests.fuzz.harness --seconds 60 [--directory .build/fuzz]

Each fuzzer is a process of its own: libFuzzer ends the one it runs in. The corpus stays in `<directory>/<name>/` and
is gone on from; an input that broke something is kept beside it. `totals.json` adds all runs up.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz.targets import TARGETS, Target
from tests.totals import add_run

FUZZERS = ("amqp", "batch", "frames", "messages", "segment")
_EXECUTIONS = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_OUTPUT_LINES = 40


def fuzz(target: Target) -> None:
    """Run `target` with the command line's libFuzzer flags; does not return."""
    import atheris

    atheris.Setup(sys.argv, target.try_bytes)
    atheris.Fuzz()


def run_fuzzer(name: str, directory: Path, *, seconds: int, seed: int) -> int:
    """The executions of one run. Raises SystemExit with the end of its output when it found something."""
    corpus = directory / name
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{number}").write_bytes(data)
    command = [
        sys.executable, "-m", f"tests.fuzz.fuzz_{name}", str(corpus), f"-max_total_time={seconds}", f"-seed={seed}",
        "-print_final_stats=1", "-max_len=65536", "-rss_limit_mb=2048", "-timeout=20",
        f"-artifact_prefix={directory}/found-{name}-",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        last = "\n".join(output.splitlines()[-_OUTPUT_LINES:])
        raise SystemExit(f"{last}\nfuzz_{name} with seed {seed} found something: {directory}/found-{name}-*")
    found = _EXECUTIONS.search(output)
    if found is None:
        raise SystemExit(f"{output}\nfuzz_{name} did not say how much it executed")
    return int(found[1])


def main() -> None:
    """All fuzzers, `seconds` each."""
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz.harness",
        description=(__doc__ or "").splitlines()[0],
        epilog="Example: python -m tests.fuzz.harness --seconds 10 --seed 7",
    )
    parser.add_argument("--seconds", type=int, default=60, help="of each fuzzer")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31))
    parser.add_argument("--directory", type=Path, default=Path(".build/fuzz"))
    options = parser.parse_args()
    for name in FUZZERS:
        started = time.monotonic()
        executions = run_fuzzer(name, options.directory, seconds=options.seconds, seed=options.seed)
        seconds = time.monotonic() - started
        totals = options.directory / "totals.json"
        sums = add_run(totals, counts={name: executions}, seconds=seconds, seed=options.seed)
        print(f"{name}: {executions} executions in {seconds:.0f} s, nothing found; {sums[name]} in all", flush=True)


if __name__ == "__main__":
    main()
