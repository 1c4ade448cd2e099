"""The programs of the limits: those in C compile without a warning; all move bytes and say how many."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bench import limits
from bench.workload import KIB, MIB, Skipped

COMPILER = shutil.which("gcc")
SECONDS = "0.02"

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


@needs_compiler
@pytest.mark.parametrize("source", sorted(limits.SOURCES.glob("*.c")), ids=lambda path: path.stem)
def test_a_program_compiles_without_a_warning(source: Path) -> None:
    """With the warnings that find most."""
    assert COMPILER is not None
    command = [COMPILER, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", os.devnull, str(source)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.long_after(1)
@needs_compiler
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("copy", (SECONDS,)),
        ("stream", (SECONDS, "bare")),
        ("fanout", (SECONDS, str(256 * KIB), "16", "2")),
        ("disk", (SECONDS, str(MIB), "2")),
    ],
)
def test_a_program_moves_bytes(program: str, arguments: tuple[str, ...]) -> None:
    """For a moment; it says how many and how long it took."""
    outcome = limits.run_program(program, *arguments)
    assert outcome["bytes"] > 0
    assert outcome["seconds"] > 0


@needs_compiler
def test_the_round_trip_gives_percentiles() -> None:
    """With one batch outstanding: the median is not above the 99th."""
    p50, p99, p999 = limits.round_trip("a", limits.run_program("fanout", SECONDS, "1024", "1", "2"))
    assert 0 < p50.value <= p99.value <= p999.value


def test_the_round_trip_in_python_gives_percentiles() -> None:
    """A producer, a master and two mirrors, each a process; the median is not above the 99th."""
    p50, p99, p999 = limits.round_trip("a", limits.run_python("hops", SECONDS, "1024", "2"))
    assert 0 < p50.value <= p99.value <= p999.value


def test_a_bare_grpc_stream_moves_whole_messages() -> None:
    """Each message is answered, and only those count."""
    outcome = limits.run_python("grpc_stream", SECONDS, str(64 * KIB))
    assert outcome["bytes"] > 0
    assert outcome["bytes"] % (64 * KIB) == 0


def test_a_program_in_python_that_fails_says_why() -> None:
    """What it printed last is part of the failure's message."""
    with pytest.raises(limits.WorkloadFailed, match=r"many"):
        limits.run_python("hops", SECONDS, "many", "2")


@needs_compiler
def test_a_copy_by_sendfile_ends_at_the_bytes_asked_for(tmp_path: Path) -> None:
    """Two files of 100,000 bytes, of which 150,000 are asked for, then more than there are."""
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(os.urandom(100_000))
    names = [str(file) for file in files]
    assert limits.run_program("sendfile_copy", "new", "150000", *names)["bytes"] == 150_000
    assert limits.run_program("sendfile_copy", "warm", "999999", *names)["bytes"] == 200_000


@needs_compiler
def test_a_refused_argument_names_itself() -> None:
    """What the program prints is the failure's message."""
    with pytest.raises(limits.WorkloadFailed, match=r"many"):
        limits.run_program("disk", SECONDS, "many", "2")


def test_without_a_compiler_the_limits_are_skipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty PATH: the reason says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(limits, "BUILT", tmp_path)
    with pytest.raises(Skipped, match="install gcc"):
        limits.compiled("copy")
