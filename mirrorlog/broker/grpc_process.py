"""Starts and watches the gRPC door, a process of its own: one busy Python thread in the node would cost its loop 10 ms.

The door ends by itself when the node does: it reads a pipe whose other end the node holds open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Final

logger = logging.getLogger(__name__)

_RESTART_S_MIN: Final = 0.5
_RESTART_S_MAX: Final = 30.0
_READY_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 5.0


class GrpcDoorProcess:
    """The door of one node. It is started again, ever more slowly, when it dies."""

    def __init__(self, *, node: str, bind: str, debug: bool = False) -> None:
        self._command = [sys.executable, "-m", "mirrorlog.doors.grpc_door", "--node", node, "--bind", bind]
        if debug:
            self._command.append("--debug")
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = asyncio.Event()

    async def start(self) -> bool:
        """Start it; True once it serves, False when it does not within 30 s (it is tried on)."""
        self._task = asyncio.ensure_future(self._watch())
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                await self._ready.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
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
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            if await self._serving(self._process):
                pause_s = _RESTART_S_MIN
            code = await self._process.wait()
            logger.warning("grpc_door_ended exit_code=%s restart_s=%s", code, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RESTART_S_MAX)

    async def _serving(self, process: asyncio.subprocess.Process) -> bool:
        """Read its output to the end; whether it ever said that it serves."""
        assert process.stdout is not None
        served = False
        while line := await process.stdout.readline():
            if b"serving" in line:
                served = True
                self._ready.set()
                logger.info("grpc_door_serving pid=%s", process.pid)
        return served
