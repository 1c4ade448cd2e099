"""Starts and watches a door, a process of its own: one busy Python thread in the node would cost its loop 10 ms.

The door ends by itself when the node does: it reads a pipe whose other end the node holds open. It says that it serves
by a line on its standard output; its log lines go where the node's go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from typing import Final

from mirrorlog.config import Settings, TlsSettings
from mirrorlog.errors import PortTaken

logger = logging.getLogger(__name__)

_RESTART_S_MIN: Final = 0.5
_RESTART_S_MAX: Final = 30.0
_SLOW_S: Final = 30.0
"""How long it takes at most until it serves, where nothing is wrong: then that is said."""
_STOP_TIMEOUT_S: Final = 5.0


def tls_flags(tls: TlsSettings, mode: str) -> list[str]:
    """What a door has to know of TLS. `mode`: of its own port."""
    if tls.client == "off" and mode == "off":
        return []
    certificate, key, ca = tls.files
    files = ["--tls-certificate", str(certificate), "--tls-key", str(key), "--tls-ca", str(ca)]
    if tls.client_ca is not None:
        files += ["--tls-client-ca", str(tls.client_ca)]
    return [*files, "--tls", mode, *(["--node-tls"] if tls.client != "off" else [])]


def door_flags(settings: Settings, kind: str) -> list[str]:
    """What else a door is told."""
    found = ["--json-logs", settings.node.id] if settings.node.log_format == "json" else []
    if kind == "amqp" and settings.amqp.plain_passwords:
        found.append("--plain-passwords")
    if kind == "http":
        found += ["--metrics-series", str(settings.http.metrics_series)]
        found += ["--open-metrics"] if settings.http.metrics == "open" else []
        found += [] if settings.http.management else ["--no-management"]
    return found


class DoorProcess:
    """A door of one node. It is started again, ever more slowly, when it dies.

    `kind`: grpc, http or amqp. `node`: the node's client address; `bind`: where the door serves;
    `flags`: more of its command line. `token`: by which the node knows it; it gets it by the pipe, for everybody on the
    machine can read command lines.
    """

    def __init__(
        self, kind: str, *, node: str, bind: str, debug: bool = False, flags: Sequence[str] = (), token: str = ""
    ) -> None:
        self.kind = kind
        self._bind = bind
        self._token = token
        self._command = [sys.executable, "-m", f"mirrorlog.doors.{kind}_door", "--node", node, "--bind", bind, *flags]
        if token:
            self._command.append("--token")
        if debug:
            self._command.append("--debug")
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()
        self._refused = asyncio.Event()
        self._serves = False
        self._renew_then = False

    @property
    def pid(self) -> int | None:
        """Of its process; None while there is none."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def renew(self) -> None:
        """It shall read the files of TLS anew; one that does not serve yet, once it does."""
        if self._serves and self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended; the next one reads them at its start
                self._process.send_signal(signal.SIGHUP)
        else:  # the signal would end a process that has not come to expect it
            self._renew_then = True

    @property
    def serves(self) -> bool:
        """Whether it does now."""
        return self._serves

    async def start(self) -> None:
        """Start it, and return once it serves; it is tried on until then. Raises PortTaken for an address that it does
        not get at its first try."""
        self._task = asyncio.ensure_future(self._watch())
        ready, refused = asyncio.ensure_future(self._ready.wait()), asyncio.ensure_future(self._refused.wait())
        try:
            while not ready.done():
                done, _ = await asyncio.wait({ready, refused}, timeout=_SLOW_S, return_when=asyncio.FIRST_COMPLETED)
                if refused in done:
                    what = f"the {self.kind} door does not get it"
                    raise PortTaken(f"cannot listen on {self._bind}: {what}; free it or bind another one")
                if not done:
                    logger.warning("door_not_serving kind=%s bind=%s", self.kind, self._bind)
        finally:
            for each in (ready, refused):
                each.cancel()

    async def stop(self) -> None:
        """End it and wait until it is gone. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _watch(self) -> None:
        pause_s = _RESTART_S_MIN
        while True:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
                )
            except OSError as error:  # no memory or no descriptor for it just now
                logger.warning("%s_door_not_started reason=%r restart_s=%s", self.kind, str(error), pause_s)
            else:
                self._tell_token(self._process)
                if await self._serving(self._process):
                    pause_s = _RESTART_S_MIN
                code = await self._process.wait()
                if code == PortTaken.exit_code and not self._ready.is_set():
                    self._refused.set()
                logger.warning("%s_door_ended exit_code=%s restart_s=%s", self.kind, code, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RESTART_S_MAX)

    def _tell_token(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        if self._token:
            process.stdin.write(f"{self._token}\n".encode())

    async def _serving(self, process: asyncio.subprocess.Process) -> bool:
        """Read its output to the end; whether it ever said that it serves."""
        assert process.stdout is not None
        served = False
        while line := await process.stdout.readline():
            if b"serving" in line:
                served = self._serves = True
                self._ready.set()
                logger.info("%s_door_serving pid=%s", self.kind, process.pid)
                if self._renew_then:
                    self._renew_then = False
                    self.renew()
        self._serves = False
        return served
