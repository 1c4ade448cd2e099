"""Ends nodes, and removes their temporary directory, when the process that started them is gone, however it went.

Neither `atexit` nor a fixture's end runs after SIGKILL or `os._exit` (a test's time limit ends a run so). A small
process holds the reading end of a pipe: when the writing end closes, its owner has ended, and the nodes follow.

Rejected: PR_SET_PDEATHSIG, which fires at the end of the starting *thread*; a list of ids to kill, which may belong to
others by then (the guard holds a pidfd of each node from its start on).

This file is also the program that the guard process runs: by its path and with the standard library alone, so that it
is up in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_END_SECONDS: Final = 10


class Guard:
    """A guard process, from the first `watch` or `remove` to `close` or `release`."""

    __slots__ = ("_process",)

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, pid: int) -> None:
        """The process group of `pid`, a child of this process that leads it, shall not outlive this process."""
        self._tell(f"watch {pid}\n")

    def remove(self, directory: Path) -> None:
        """Remove that directory, once all watched processes are dead, if it comes to killing them."""
        self._tell(f"remove {directory}\n")

    def release(self) -> None:
        """Let all watched processes live on."""
        self._end("release\n")

    def close(self) -> None:
        """Kill what is watched and still runs, and end. Idempotent."""
        self._end("kill\n")

    def _end(self, command: str) -> None:
        if self._process is None:
            return
        # Said in words: a fork of this process may hold the pipe open, so closing it is not always the end of it.
        self._tell(command)
        process, self._process = self._process, None
        try:
            process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def _tell(self, line: str) -> None:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                # Away from the terminal's Ctrl-C: it must still be there when its owner is not.
                start_new_session=True,
            )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()


def kill_group(pidfd: int, pid: int) -> None:
    """SIGKILL to the process group of `pid`, unless the process behind `pidfd` has ended."""
    with contextlib.suppress(ProcessLookupError):
        # Once stopped it cannot end by itself, so its number cannot have gone to another before the second call.
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        os.killpg(pid, signal.SIGKILL)


def serve(lines: Iterable[str]) -> None:
    """Take commands (`watch PID`, `remove DIRECTORY`, `release`, `kill`) until they end, then kill and remove."""
    watched: dict[int, int] = {}
    directories: list[str] = []
    for line in lines:
        command, _, argument = line.rstrip("\n").partition(" ")
        if command == "release":
            return
        if command == "kill":
            break
        if command == "remove":
            directories.append(argument)
            continue
        with contextlib.suppress(ProcessLookupError):
            watched[os.pidfd_open(int(argument))] = int(argument)
    for pidfd, pid in watched.items():
        kill_group(pidfd, pid)
    for pidfd in watched:
        # Readable once the process has ended: until then it could still make files.
        select.select([pidfd], [], [], _END_SECONDS / 2)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    serve(sys.stdin)
