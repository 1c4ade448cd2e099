"""Nodes of tests are forked from a process that has imported all of a node, and is none: a node's start is mostly
imports, and the tests make thousands of starts.

What is forked runs the same module with the same arguments, environment, directory and files as the command would, in
a session of its own. It is the child of that process, which waits for it when it is asked to: until then it stays a
zombie and keeps its number, as a child does. What a fork cannot have is started as it is: commands that begin otherwise
(`ip netns exec …`), and environments that tell the interpreter more than where modules are.

This file is also the program of that process: `python -m tests.forked_nodes SOCKET MODULE`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any, Final

MODULE: Final = "mirrorlog.broker.main"
_ROOT: Final = Path(__file__).parents[1]
_BYTES_MAX: Final = 200_000
"""Of one question: the environment is the most of it."""


class Forked:
    """What `Node` uses of a `Popen`."""

    def __init__(self, parent: Parent, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._parent = parent

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask({"poll": self.pid})
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        if self.poll() is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                while self.poll() is None:
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
                    select.select([pidfd], [], [], left)
            finally:
                os.close(pidfd)
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


class Parent:
    """The process that forks them, from the first start on; it ends with this one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._of_python = _of_python(os.environ)

    def popen(
        self, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **options: Any
    ) -> Forked | subprocess.Popen[bytes]:
        """As `subprocess.Popen` does what `Node` asks it for."""
        if list(command[:3]) != [sys.executable, "-m", MODULE] or _of_python(env) != self._of_python:
            return subprocess.Popen(command, stdout=stdout, env=env, **options)
        question = {"arguments": list(command[3:]), "environment": dict(env), "directory": str(Path.cwd())}
        return Forked(self, self.ask(question, stdout.fileno()))

    def ask(self, question: dict[str, Any], *files: int) -> Any:
        with self._lock:
            connection = self._connected()
            socket.send_fds(connection, [json.dumps(question).encode()], files)
            answer = connection.recv(_BYTES_MAX)
        assert answer, "the process that forks nodes has ended"
        return json.loads(answer)

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with other:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__, str(other.fileno()), MODULE],
                    stdin=subprocess.DEVNULL,
                    cwd=_ROOT,
                    pass_fds=[other.fileno()],
                    start_new_session=True,
                )
        return self._socket


def _of_python(environment: Mapping[str, str]) -> dict[str, str]:
    """What the interpreter reads as it starts, but for where modules are."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON") and name != "PYTHONPATH"}


def main(connection: socket.socket, module: str) -> None:
    """Fork whatever is asked for; in what is forked this returns."""
    runpy.run_module(module, run_name="imported")
    gc.freeze()
    while True:
        message, files, _, _ = socket.recv_fds(connection, _BYTES_MAX, 1)
        if not message:
            os._exit(0)
        question = json.loads(message)
        if "poll" in question:
            pid, status = os.waitpid(question["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            connection.send(json.dumps(answer).encode())
        elif os.fork() == 0:
            _become(question, files[0])
            connection.send(json.dumps(os.getpid()).encode())
            connection.close()
            return
        else:
            os.close(files[0])


def _become(question: dict[str, Any], output: int) -> None:
    os.setsid()
    os.chdir(question["directory"])
    os.environ.clear()
    os.environ.update(question["environment"])
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.argv[1:] = question["arguments"]
    sys.path[:0] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in (*sys.path, "")]
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")  # as the interpreter does when it starts


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])
    runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
