"""A blocking client of the native port made of sockets and frames, so that a test can say what no honest client says.

Every wait has a deadline. Answers that come out of order are kept until they are asked for.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import open_body
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import read_header
from mirrorlog.config import split_address
from mirrorlog.errors import ConnectionLost, MirrorlogError, RequestTimeout
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import (
    BATCHES,
    FETCH,
    PRODUCE,
    Batches,
    Confirm,
    FrameType,
    Level,
    frame,
    frame_header,
    read_batches,
    read_confirm,
)
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import as_error, decode, encode
from mirrorlog.wire.messages.handshake import Failure, Hello, Welcome
from mirrorlog.wire.messages.queues import QueueInfo

FRAME_BYTES_MAX = 256 * 1024 * 1024
_M = TypeVar("_M", bound=Message)


class Received(NamedTuple):
    """A frame with a payload of its own."""

    type: int
    correlation_id: int
    payload: bytes


class Raw:
    """One connection. `hello` is sent at once and its answer awaited; with None nothing is. `stale_reads`: a node that
    is cut off from the others shall answer reads all the same. `tls`: what the port speaks, without a host's name."""

    def __init__(
        self,
        address: str,
        *,
        hello: Hello | str | None = "client",
        timeout: float = 10.0,
        stale_reads: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.timeout = timeout
        self.welcome: Welcome | None = None
        self._reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX)
        self._answers: dict[int, deque[Received]] = {}
        self._number = 0
        try:
            self.socket = socket.create_connection(split_address(address), timeout=timeout)
        except OSError as error:
            raise ConnectionLost(f"{address}: {error}") from None
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self.socket = tls.wrap_socket(self.socket)
            except OSError as error:
                self.socket.close()
                raise ConnectionLost(f"{address}: {error}") from None
        if isinstance(hello, str):
            hello = Hello(version_min=1, version_max=1, role=hello, stale_reads=stale_reads)
        if hello is not None:
            self.greet(hello)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def greet(self, hello: Hello) -> Welcome:
        """Raises what the node answers instead."""
        self.send(frame(FrameType.HELLO, encode(hello)))
        self.welcome = self._message(self.receive(), Welcome)
        return self.welcome

    # --- bytes and frames ---

    def send(self, *parts: bytes | bytearray | memoryview) -> None:
        """Raises ConnectionLost."""
        try:
            for part in parts:
                self.socket.settimeout(self.timeout)
                self.socket.sendall(part)
        except OSError as error:
            raise ConnectionLost(f"while sending: {error}") from None

    def receive(self, timeout: float | None = None) -> Received:
        """The next frame as it comes. Raises ConnectionLost at the end of the stream, RequestTimeout."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while (found := self._reader.next_frame()) is None:
            self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                size = self.socket.recv_into(self._reader.room())
            except TimeoutError:
                raise RequestTimeout("no frame came in time") from None
            except OSError as error:
                raise ConnectionLost(f"while receiving: {error}") from None
            if size == 0:
                raise ConnectionLost("the node closed the connection")
            self._reader.received(size)
        if found.type == FrameType.GOODBYE:
            raise ConnectionLost("the node said goodbye")
        return Received(found.type, found.correlation_id, bytes(found.payload))

    def answer(self, correlation_id: int, timeout: float | None = None) -> Received:
        """The frame that answers; others are kept. Raises what an ERROR frame says."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while not self._answers.get(correlation_id):
            received = self.receive(max(0.001, deadline - time.monotonic()))
            self._answers.setdefault(received.correlation_id, deque()).append(received)
        received = self._answers[correlation_id].popleft()
        if received.type == FrameType.ERROR:
            raise failure(received)
        return received

    def last_words(self) -> MirrorlogError:
        """The ERROR with which the node closes this connection, after which nothing comes."""
        error = None
        try:
            while True:
                received = self.receive()
                if received.type == FrameType.ERROR and received.correlation_id == 0:
                    error = failure(received)
        except ConnectionLost as lost:
            return error or lost

    # --- requests ---

    def ask(self, message: Message) -> int:
        """Send a request; its correlation id."""
        self._number += 1
        self.send(frame(FrameType.REQUEST, encode(message), self._number))
        return self._number

    def request(self, message: Message, expected: type[_M]) -> _M:
        return self._message(self.answer(self.ask(message)), expected)

    def start_produce(
        self, batch: bytes | bytearray, *, level: int = Level.ALL, durability: int = 0, deadline_ms: int = 30_000
    ) -> int:
        self._number += 1
        head = frame_header(FrameType.PRODUCE, PRODUCE.size + len(batch), self._number)
        self.send(head + PRODUCE.pack(level, durability, 0, deadline_ms) + bytes(batch))
        return self._number

    def confirm(self, correlation_id: int, timeout: float | None = None) -> Confirm:
        return read_confirm(memoryview(self.answer(correlation_id, timeout).payload))

    def produce(self, batch: bytes | bytearray, **options: Any) -> Confirm:
        return self.confirm(self.start_produce(batch, **options))

    def start_fetch(self, queue_id: int, queue_offset: int, *, max_bytes: int = 1 << 20, wait_ms: int = 0) -> int:
        self._number += 1
        facts = FETCH.pack(queue_id, 0, queue_offset, max_bytes, wait_ms)
        self.send(frame(FrameType.FETCH, facts, self._number))
        return self._number

    def batches(self, correlation_id: int, timeout: float | None = None) -> tuple[Batches, list[memoryview]]:
        payload = memoryview(self.answer(correlation_id, timeout).payload)
        return read_batches(payload), split_batches(payload[BATCHES.size :])

    def fetch(self, queue_id: int, queue_offset: int, **options: Any) -> tuple[Batches, list[memoryview]]:
        return self.batches(self.start_fetch(queue_id, queue_offset, **options))

    def values(self, queue_id: int, queue_offset: int = 0) -> list[bytes]:
        """The values of all confirmed records from `queue_offset` on; checks that no number is left out."""
        found: list[bytes] = []
        while batches := self.fetch(queue_id, queue_offset + len(found))[1]:
            for batch in batches:
                header = read_header(batch)
                at = queue_offset + len(found)
                assert header.base_queue_offset <= at < header.next_queue_offset, (header, at)
                found += values_of(batch)[at - header.base_queue_offset :]
        return found

    @staticmethod
    def _message(received: Received, expected: type[_M]) -> _M:
        message = decode(received.payload)
        if isinstance(message, Failure):
            raise as_error(message)
        assert isinstance(message, expected), message
        return message


def failure(received: Received) -> MirrorlogError:
    """The error that an ERROR frame carries."""
    message = decode(received.payload)
    assert isinstance(message, Failure)
    return as_error(message)


def split_batches(run: memoryview) -> list[memoryview]:
    """Each batch of a run of whole ones."""
    found = []
    at = 0
    while at < len(run):
        length = read_header(run, at).length
        found.append(run[at : at + length])
        at += length
    return found


def values_of(batch: memoryview) -> list[bytes]:
    values = open_body(batch, body_bytes_max=FRAME_BYTES_MAX).values
    return [bytes(values[index] or b"") for index in range(len(values))]


def batch_of(
    values: Sequence[bytes | None] | Iterable[bytes | None], queue: QueueInfo | int, *, producer_id: int = 0,
    producer_epoch: int = 0, sequence: int = 0,
) -> bytearray:  # fmt: skip
    """A batch with these values; `queue` is what a declare answered, or a queue id."""
    return encode_batch(
        [Record(value) for value in values],
        queue_id=queue if isinstance(queue, int) else queue.queue_id,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        sequence=sequence,
    )
