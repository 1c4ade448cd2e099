"""The processes of one round: servers in the background, load drivers in front, one deadline each, and nothing left.

Every process leads a session of its own, so killing its group ends what it has started too. The guard does the same
when this process dies without its `with` ending. Data is thrown away, so servers are killed, not asked to stop.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, TypeVar

from bench.peers.peer import PeerFailed
from mirrorlog.testing.guard import Guard
from mirrorlog.testing.ports import HOST, free_ports

__all__ = ["HOST", "Servers", "Words", "free_ports"]

Words = Sequence[str | Path]
"""A command line."""

START_SECONDS: Final = 90.0
"""How long a server may take until its port answers: a JVM on a busy machine is slow."""
LOAD_SECONDS: Final = 120.0
"""How long a load driver may take; each measures a few seconds."""

_ROOT: Final = str(Path(__file__).parents[2])
_POLL_SECONDS: Final = 0.05
_END_SECONDS: Final = 20.0
_START_ATTEMPTS: Final = 3
_LOG_TAIL_BYTES: Final = 16 * 1024
_TELLING: Final = re.compile(r"error|exception|cannot|in use|refused", re.IGNORECASE)

T = TypeVar("T")


class Servers:
    """A temporary directory and the processes of one cluster. For `with`; its end kills and removes all of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = Guard()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.directory = Path()

    def __enter__(self) -> Self:
        self.directory = Path(tempfile.mkdtemp(prefix=f"mirrorlog-bench-{self._name}-"))
        self._guard.remove(self.directory)
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()
        self._guard.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def started(self, start: Callable[[], T]) -> T:
        """What `start` gives, which starts servers on free ports; begun anew with others when it fails.

        A port that was free is now and then another's a second later, and each system says that in words of its own.
        """
        for _ in range(_START_ATTEMPTS - 1):
            with contextlib.suppress(PeerFailed):
                return start()
            self._kill_all()
            for path in self.directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return start()

    def start(self, name: str, command: Words, environment: Mapping[str, str] | None = None) -> None:
        """Start a server in the background; what it prints goes to `name`.log in the directory."""
        with self._log(name).open("ab") as log:
            self._spawn(name, command, environment, log.fileno())

    def kill(self, name: str) -> None:
        """End a server as a power cut would, with all that it has started; it may be started again."""
        _kill(self._processes.pop(name))

    def wait_gone(self, *ports: int) -> None:
        """Until nothing accepts connections there: what a server that was killed has started takes a moment to end.
        Raises PeerFailed at the deadline."""
        deadline = time.monotonic() + _END_SECONDS
        while open_ := [port for port in ports if _listens(port)]:
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self._name}: port {open_[0]} is open though its server was killed")
            time.sleep(_POLL_SECONDS)

    def wait_listening(self, *ports: int) -> None:
        """Until all ports accept connections. Raises PeerFailed at the deadline or when a server has ended."""
        deadline = time.monotonic() + START_SECONDS
        for port in ports:
            while not _listens(port):
                ended = [name for name, process in self._processes.items() if _ended(process.pid)]
                if ended or time.monotonic() > deadline:
                    why = "; ".join(f"{name}: {_telling_line(self._log(name))}" for name in ended or self._processes)
                    raise PeerFailed(f"{self._name} did not open port {port}: {why}")
                time.sleep(_POLL_SECONDS)

    def run(
        self,
        name: str,
        command: Words,
        environment: Mapping[str, str] | None = None,
        *,
        timeout: float = LOAD_SECONDS,
    ) -> list[str]:
        """Run a program to its end; the lines of its standard output.

        Raises PeerFailed when it fails, with the telling line of its standard error, or takes longer than `timeout`.
        """
        log = self._log(name)
        out = log.with_suffix(".out")
        with log.open("ab") as errors, out.open("wb") as output:
            process = self._spawn(name, command, environment, output.fileno(), errors.fileno())
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise PeerFailed(f"{self._name}: {name} did not end within {timeout:g} s") from None
        finally:
            _kill(process)
            del self._processes[name]
        if code != 0:
            raise PeerFailed(f"{self._name}: {name} ended with {code}: {_telling_line(log) or _telling_line(out)}")
        return out.read_text(errors="replace").splitlines()

    def _spawn(
        self, name: str, command: Words, environment: Mapping[str, str] | None, out: int, errors: int | None = None
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out if errors is None else errors,
            env={**os.environ, "PYTHONPATH": _ROOT, **(environment or {})},
            start_new_session=True,
        )
        self._processes[name] = process
        self._guard.watch(process.pid)
        return process

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _kill_all(self) -> None:
        for process in self._processes.values():
            _kill(process)
        self._processes.clear()


def _ended(pid: int) -> bool:
    # Looks without collecting: until it is collected, the number and with it the group belong to nobody else.
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


def _telling_line(file: Path) -> str:
    """The last line that speaks of an error, else the last one."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - _LOG_TAIL_BYTES))
        lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if _TELLING.search(line)]
        return next(reversed(errors or lines), "").strip()[:300]
    return ""
