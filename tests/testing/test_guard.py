"""Processes under a guard end with the process that started them, and only they do."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirrorlog.testing.asking import wait_for
from mirrorlog.testing.guard import Guard, kill_group

DEADLINE_SECONDS = 20

OWNER = """
import pathlib, subprocess, sys
from mirrorlog.testing.guard import Guard
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
guard = Guard()
guard.remove(pathlib.Path(sys.argv[2]))
guard.watch(child.pid)
if sys.argv[1] == "release":
    guard.release()
print(child.pid, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def owner(mode: str, directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process that has a child under guard; its Popen, and a pidfd of the child."""
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, mode, directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pidfd = os.pidfd_open(int(process.stdout.readline()))
        try:
            yield process, pidfd
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)


def ended(pidfd: int, timeout: float = DEADLINE_SECONDS) -> bool:
    """Whether the process ends within `timeout` seconds (a pidfd becomes readable then)."""
    return bool(select.select([pidfd], [], [], timeout)[0])


def test_a_killed_owner_takes_its_child_along(tmp_path: Path) -> None:
    """Goal: nothing is left behind by SIGKILL, which runs no clean-up. Method: kill the owner, wait for the child."""
    with owner("watch", tmp_path) as (process, pidfd):
        assert not ended(pidfd, 0)
        process.kill()
        assert ended(pidfd)


def test_a_stopped_child_ends_too(tmp_path: Path) -> None:
    """Goal: a paused node is no exception. Method: SIGSTOP the child first."""
    with owner("watch", tmp_path) as (process, pidfd):
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        process.kill()
        assert ended(pidfd)


def test_a_released_child_lives_on(tmp_path: Path) -> None:
    """Goal: nodes can be kept on purpose. Method: release, kill the owner, and see the child alive after its guard."""
    with owner("release", tmp_path) as (process, pidfd):
        # `release` returns after the guard has ended, so there is nobody left to kill the child later.
        process.kill()
        process.wait()
        assert not ended(pidfd, 0)


def test_the_directory_goes_with_a_killed_owner(tmp_path: Path) -> None:
    """Goal: no gigabytes of segments stay behind. Method: kill the owner, and wait until the directory has no name."""
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "segment").touch()
    with owner("watch", directory) as (process, _):
        process.kill()
        wait_for(lambda: None if directory.exists() else True, timeout=DEADLINE_SECONDS, what=lambda: "removed")


def test_the_directory_of_a_released_child_stays(tmp_path: Path) -> None:
    """Goal: what is kept keeps its files. Method: `release` returns after the guard has ended; look for them then."""
    with owner("release", tmp_path) as (process, _):
        process.kill()
        process.wait()
        assert tmp_path.is_dir()


def test_close_kills_what_still_runs_and_can_be_repeated() -> None:
    """Goal: a guard leaves nothing behind in its own process either. Method: close it with a child running."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        guard = Guard()
        guard.watch(child.pid)
        guard.close()
        guard.close()
        assert child.wait(DEADLINE_SECONDS) == -signal.SIGKILL


def test_a_process_that_has_ended_is_not_looked_for_by_its_number() -> None:
    """Goal: no stranger is hit. Method: a pidfd of an ended process beside the number of one that lives."""
    with subprocess.Popen(["true"]) as gone:
        pidfd = os.pidfd_open(gone.pid)
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as stranger:
        kill_group(pidfd, stranger.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            stranger.wait(0.05)
        stranger.kill()
    os.close(pidfd)


def test_close_does_not_wait_for_forks_of_its_owner() -> None:
    """Goal: a test that forks can still end its cluster. Method: a fork holds the guard's pipe open meanwhile."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as child:
        guard = Guard()
        guard.watch(child.pid)
        holder, release = os.pipe()
        fork = os.fork()
        if fork == 0:
            os.close(release)
            os.read(holder, 1)
            os._exit(0)
        guard.close()
        os.close(release)
        os.waitpid(fork, 0)
        assert child.wait(DEADLINE_SECONDS) == -signal.SIGKILL
