"""A broker of RocketMQ as far as its slaves see it, classic: it serves a commit log that a test writes."""

from __future__ import annotations

import asyncio
import struct
from types import TracebackType
from typing import Final, Self

from tests.rocketmq.written import record

HOST: Final = "127.0.0.1"
_TRANSFER_BYTES: Final = 1_000
"""Small and odd: records are cut anywhere."""


class Broker:
    """`log`: its commit log; what is appended to it goes to slaves. `reports`: what they have told, in order."""

    def __init__(self) -> None:
        self.log = bytearray()
        self.reports: list[int] = []
        self.links = 0
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"{HOST}:{self._server.sockets[0].getsockname()[1]}"

    @property
    def acknowledged(self) -> int:
        return self.reports[-1] if self.reports else 0

    def write(self, *bodies: bytes, topic: str = "orders") -> None:
        for body in bodies:
            self.log += record(len(self.log), body, topic=topic, properties={"KEYS": body.decode()})
        self._wake()

    def write_bytes(self, content: bytes) -> None:
        self.log += content
        self._wake()

    def drop(self) -> None:
        """Every connection ends."""
        for writer in self._writers:
            writer.transport.abort()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.links += 1
        self._writers.add(writer)
        try:
            (at,) = struct.unpack(">q", await reader.readexactly(8))
            self.reports.append(at)
            sending = asyncio.create_task(self._send(writer, at))
            self._tasks.add(sending)
            while True:
                self.reports.append(struct.unpack(">q", await reader.readexactly(8))[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, at: int) -> None:
        while True:
            changed = self._changed
            while part := bytes(self.log[at : at + _TRANSFER_BYTES]):
                writer.write(struct.pack(">qi", at, len(part)) + part)
                at += len(part)
                await writer.drain()
            writer.write(struct.pack(">qi", at, 0))
            await changed.wait()
