"""What the machine itself allows, by small programs that make the same moves and nothing else.

They are in bench/limit and print one JSON object: bytes and seconds, or percentiles. Those in C are compiled when first
needed. Two are in Python: what gRPC, and what an event loop, allow there at best.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.grpc_publish import BATCH_BYTES as GRPC_BATCH_BYTES
from bench.measure import Figure
from bench.workload import KIB, LIMIT, MIB, Measured, Skipped, WorkloadFailed

_ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = _ROOT / "bench" / "limit"
BUILT: Final = _ROOT / ".build" / "bench"

_COMPILE_SECONDS: Final = 60
_RUN_SECONDS: Final = 90
_FLAGS: Final = ("-std=gnu11", "-O2", "-march=native")
_BATCH: Final = 256 * KIB
_WINDOW: Final = 16
_DISK_CHUNKS: Final = (256 * KIB, MIB, 4 * MIB)


def workloads(seconds: float) -> list[Measured]:
    """All limits; each measures for so long."""
    time = f"{seconds:g}"

    def limit(program: str, case: str, *arguments: str, compared: bool = True) -> Measured:
        return Measured(
            "limit",
            case,
            lambda name: throughput(name, run_program(program, *arguments)),
            group=LIMIT,
            compared=compared,
        )

    return [
        limit("copy", "memcpy, memory", time, compared=False),
        limit("stream", "loopback stream, 256 KiB writes, nothing stored", time, "bare"),
        limit("stream", "loopback stream, 256 KiB writes, CRC and copy to a mapped file, page cache", time, "store"),
        limit("fanout", "1 copy, batches of 256 KiB, window 16, page cache", time, str(_BATCH), str(_WINDOW), "0"),
        limit("fanout", "2 copies, batches of 256 KiB, window 16, page cache", time, str(_BATCH), str(_WINDOW), "1"),
        limit("fanout", "3 copies, batches of 256 KiB, window 16, page cache", time, str(_BATCH), str(_WINDOW), "2"),
        Measured(
            "limit",
            "3 copies, 1024 B, one outstanding, page cache",
            lambda name: round_trip(name, run_program("fanout", time, "1024", "1", "2")),
            group=LIMIT,
            compared=True,
        ),
        Measured(
            "limit",
            "3 copies, 1024 B, one outstanding, Python and uvloop, page cache",
            lambda name: round_trip(name, run_python("hops", time, "1024", "2")),
            group=LIMIT,
            compared=True,
        ),
        Measured(
            "limit",
            f"gRPC stream, messages of {GRPC_BATCH_BYTES // KIB} KiB, Python, nothing stored",
            lambda name: throughput(name, run_python("grpc_stream", time, str(GRPC_BATCH_BYTES))),
            group=LIMIT,
            compared=True,
        ),
        *(
            limit("disk", f"3 files, fdatasync after each {chunk // KIB} KiB, disk", time, str(chunk), "3")
            for chunk in _DISK_CHUNKS
        ),
    ]


def throughput(case: str, outcome: dict[str, float]) -> list[Figure]:
    """Of a program that moves bytes."""
    return [Figure("limit", case, "throughput", "MB/s", outcome["bytes"] / 1e6 / outcome["seconds"])]


def round_trip(case: str, outcome: dict[str, float]) -> list[Figure]:
    """Of a program with one batch outstanding."""
    return [Figure("limit", case, name, "µs", outcome[f"{name}_us"]) for name in ("p50", "p99", "p99.9")]


def run_program(program: str, *arguments: str) -> dict[str, float]:
    """A program in C: compile if need be, run in a directory of its own, if it takes one, on the disk of the nodes.

    What it prints. Raises Skipped without a compiler, WorkloadFailed.
    """
    executable = compiled(program)
    with _scratch() as directory:
        where = [] if program == "copy" else [str(directory)]
        return _run(program, [str(executable), *where, *arguments])


def run_python(program: str, *arguments: str) -> dict[str, float]:
    """A program in Python: what it prints. Raises WorkloadFailed."""
    return _run(program, [sys.executable, "-m", f"bench.limit.{program}", *arguments])


def _run(program: str, command: Sequence[str]) -> dict[str, float]:
    try:
        run = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=_RUN_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise WorkloadFailed(f"{program} did not end within {_RUN_SECONDS} s") from None
    if run.returncode != 0:
        raise WorkloadFailed(f"{program} ended with {run.returncode}: {run.stderr.strip()[-300:]}")
    outcome: dict[str, float] = json.loads(run.stdout)
    return outcome


def compiled(program: str) -> Path:
    """The executable, made anew when a source is newer. Raises Skipped without a compiler or if it refuses."""
    source, executable = SOURCES / f"{program}.c", BUILT / program
    newest = max(each.stat().st_mtime for each in (source, SOURCES / "common.h"))
    if executable.is_file() and executable.stat().st_mtime >= newest:
        return executable
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise Skipped("a C compiler is needed: install gcc (for Debian: apt-get install gcc libc6-dev)")
    BUILT.mkdir(parents=True, exist_ok=True)
    unfinished = executable.with_suffix(".unfinished")
    run = subprocess.run(
        [compiler, *_FLAGS, "-o", unfinished, source],
        capture_output=True,
        text=True,
        timeout=_COMPILE_SECONDS,
        check=False,
    )
    if run.returncode != 0:
        raise Skipped(f"{compiler} does not compile {source.name}: {run.stderr.strip()[:300]}")
    unfinished.rename(executable)
    return executable


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="mirrorlog-bench-limit-") as directory:
        yield Path(directory)
