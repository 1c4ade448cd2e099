"""One node process: started, watched, stopped, killed, paused."""

from __future__ import annotations

import contextlib
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from mirrorlog.config import ENVIRONMENT_PREFIX
from mirrorlog.errors import (
    ConfigError,
    DirectoryInUse,
    DiskFailed,
    ForeignDirectory,
    LogCorrupt,
    MirrorlogError,
    NotAMember,
    PortTaken,
    RequestTimeout,
)
from mirrorlog.testing.asking import status_of, wait_for
from mirrorlog.wire.messages.status import Status

START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 15.0

_LOG_LINES: Final = 20
_FAILED: Final = "mqnode: "
_FORGOTTEN: Final = "was forgotten by its cluster"
"""As a node says it: its exit code is that of others, too."""
_LOG_TAIL_BYTES: Final = 64 * 1024
_START_ERRORS: Final = {
    kind.exit_code: kind for kind in (ConfigError, PortTaken, DirectoryInUse, ForeignDirectory, LogCorrupt, DiskFailed)
}


class Node:
    """A node of a test cluster. Addresses are `host:port`; `grpc`, `http` and `amqp` are None without such a door.

    Signals go to the node's process group, so a door that it has started shares its fate; `stop` asks the node alone,
    which ends its door itself.

    `popen`: what starts processes, as `subprocess.Popen` does.
    """

    popen: ClassVar[Callable[..., Any]] = subprocess.Popen

    def __init__(
        self,
        node_id: str,
        *,
        client: str,
        replication: str,
        grpc: str | None = None,
        http: str | None = None,
        amqp: str | None = None,
        directory: Path,
        on_start: Callable[[int], None] = lambda pid: None,
        command_prefix: Sequence[str] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`command_prefix`: what the node's command is started by, and what must become it (`ip netns exec …`). `tls`:
        to ask it on a client port that speaks TLS."""
        self.id = node_id
        self.client = client
        self.replication = replication
        self.grpc = grpc
        self.http = http
        self.amqp = amqp
        self.data_dir = directory / node_id
        self.config_file = directory / f"{node_id}.toml"
        self.log_file = directory / f"{node_id}.log"
        self.command_prefix = tuple(command_prefix)
        self._tls = tls
        self._on_start = on_start
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __repr__(self) -> str:
        return f"Node({self.id!r}, client={self.client!r}, running={self.running})"

    @property
    def running(self) -> bool:
        """The process exists (paused or not)."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the last start. Raises MirrorlogError when it was never started."""
        return self._started().pid

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` gives it (negative: the signal); None while it runs or when it never did."""
        return None if self._process is None else self._process.poll()

    def start(self, *flags: str, timeout: float = START_SECONDS) -> None:
        """Start the process and wait until it serves; `flags` are added to its command line.

        Raises the error that the node ended with (PortTaken, DirectoryInUse, …), with what it said, or RequestTimeout
        with the last lines of its log.
        """
        self.launch(*flags)
        self.wait_serving(timeout)

    def launch(self, *flags: str) -> None:
        """Start the process and do not wait. Raises MirrorlogError when it runs already."""
        if self.running:
            raise MirrorlogError(f"node {self.id} runs already, as process {self.pid}")
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = self.popen(
                [
                    *self.command_prefix,
                    *(sys.executable, "-m", "mirrorlog.broker.main", "--config", str(self.config_file)),
                    *flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_clean_environment(),
                start_new_session=True,
            )
        self._on_start(self._process.pid)

    def wait_serving(self, timeout: float = START_SECONDS) -> None:
        """Until the process says that it serves. Raises as `start`."""
        try:
            wait_for(self._serving, timeout=timeout, what=lambda: f"node {self.id} serves; {self._last_lines()}")
        except RequestTimeout:
            self.kill()
            raise

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM, and wait for the exit code. Nothing happens when it does not run.

        Raises RequestTimeout after `timeout` seconds; the node is killed then.
        """
        process = self._started()
        if process.poll() is None:
            self.resume()
            process.terminate()
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise RequestTimeout(
                    f"node {self.id} did not stop within {timeout:g} s and was killed; {self._last_lines()}"
                ) from None
        return process.wait()

    def kill(self) -> None:
        """SIGKILL, and wait until the process is gone. Nothing happens when it does not run."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: the process stands still, its connections stay open."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT: on with it."""
        self._signal(signal.SIGCONT)

    def status(self, timeout: float = 5.0) -> Status:
        """What the node says of itself. Raises ConnectionLost, RequestTimeout or the error that it answers."""
        return status_of(self.client, timeout=timeout, tls=self._tls)

    def log_tail(self, lines: int = _LOG_LINES) -> str:
        """The last lines of its log, of any start."""
        with contextlib.suppress(FileNotFoundError), self.log_file.open("rb") as log:
            log.seek(max(0, self.log_file.stat().st_size - _LOG_TAIL_BYTES))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return ""

    def last_word(self) -> str:
        """What it said at its end, of the last start: why it failed, if it did, else the last line of its log."""
        with contextlib.suppress(FileNotFoundError), self.log_file.open("rb") as log:
            log.seek(max(self._log_start, self.log_file.stat().st_size - _LOG_TAIL_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            told = [line for line in lines if line.startswith(_FAILED) or "node_failed" in line]
            return (told or lines or [""])[-1].removeprefix(_FAILED)
        return ""

    @property
    def forgotten(self) -> bool:
        """Whether it has ended since its cluster has forgotten it: its directory is of no use to it any more."""
        return self.exit_code == NotAMember.exit_code and _FORGOTTEN in self.last_word()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise MirrorlogError(f"node {self.id} was not started")
        return self._process

    def _signal(self, number: signal.Signals) -> None:
        # Until `poll` has seen the end the process is at least a zombie and keeps its number, so this hits nobody else.
        if self.running:
            os.killpg(self.pid, number)

    def _serving(self) -> bool | None:
        code = self.exit_code
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            said = b"mqnode %s serving " % self.id.encode()
            if any(line.startswith((said, b"{")) and said in line for line in log):
                return True
        if code is not None:
            kind = _START_ERRORS.get(code, MirrorlogError)
            raise kind(
                f"node {self.id} ended with exit code {code} before it served: {self.last_word()}; its log is "
                f"{self.log_file}"
            )
        return None

    def _last_lines(self) -> str:
        return f"the last lines of {self.log_file}:\n{self.log_tail()}"


def _clean_environment() -> dict[str, str]:
    """Without settings of the surrounding shell: a test's node has those of its file alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
