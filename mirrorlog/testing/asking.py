"""One question to one node over a blocking socket, so that waiting for a cluster needs neither a loop nor the client
that a test may be testing."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, TypeVar

from mirrorlog.config import split_address
from mirrorlog.errors import ConnectionLost, ProtocolError, RequestTimeout
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN, Frame, FrameType, frame
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import as_error, decode, encode
from mirrorlog.wire.messages.handshake import Failure, Hello
from mirrorlog.wire.messages.status import GetStatus, Status

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
_POLL_SECONDS: Final = 0.02

_T = TypeVar("_T")


def status_of(address: str, *, timeout: float = 5.0, tls: ssl.SSLContext | None = None) -> Status:
    """The status of the node whose client address is `host:port`; `timeout` in seconds for all of it. `tls`: for a port
    that speaks it.

    Raises ConnectionLost, RequestTimeout, ProtocolError, or what the node answered.
    """
    answer = ask(address, GetStatus(), timeout=timeout, tls=tls)
    if not isinstance(answer, Status):
        raise ProtocolError(f"{address} answered {type(answer).__name__} where Status was expected")
    return answer


def ask(address: str, question: Message, *, timeout: float = 5.0, tls: ssl.SSLContext | None = None) -> Message:
    """Greet, ask, and give the answer; the connection is closed again. Raises as `status_of`."""
    deadline = time.monotonic() + timeout
    hello = Hello(version_min=PROTOCOL_VERSION_MIN, version_max=PROTOCOL_VERSION_MAX, role="tool", software="testing")
    try:
        with _connection(address, timeout, tls) as connection:
            reader = FrameReader(frame_bytes_max=ANSWER_BYTES_MAX)
            connection.sendall(frame(FrameType.HELLO, encode(hello), 1))
            _answer(connection, reader, address, deadline)
            connection.sendall(frame(FrameType.REQUEST, encode(question), 2))
            return _answer(connection, reader, address, deadline)
    except TimeoutError:
        raise RequestTimeout(f"{address} did not answer within {timeout:g} s") from None
    except OSError as error:
        raise ConnectionLost(f"{address}: {error.strerror or error}") from None


def wait_for(condition: Callable[[], _T | None], *, timeout: float, what: Callable[[], str]) -> _T:
    """The first result of `condition` that is not None, asked for again and again for `timeout` seconds.

    Raises RequestTimeout whose text ends with `what()`, which says what was still missing.
    """
    deadline = time.monotonic() + timeout
    while (result := condition()) is None:
        if time.monotonic() > deadline:
            raise RequestTimeout(f"not within {timeout:g} s: {what()}")
        time.sleep(_POLL_SECONDS)
    return result


def _connection(address: str, timeout: float, tls: ssl.SSLContext | None) -> socket.socket:
    """Raises OSError."""
    place = split_address(address)
    connection = socket.create_connection(place, timeout=timeout)
    if tls is None:
        return connection
    try:
        return tls.wrap_socket(connection, server_hostname=place[0])
    except BaseException:
        connection.close()
        raise


def _answer(connection: socket.socket, reader: FrameReader, address: str, deadline: float) -> Message:
    received = _receive(connection, reader, address, deadline)
    message = decode(received.payload)
    if isinstance(message, Failure):
        raise as_error(message)
    return message


def _receive(connection: socket.socket, reader: FrameReader, address: str, deadline: float) -> Frame:
    """The next frame that is not a heartbeat."""
    while True:
        while (received := reader.next_frame()) is not None:
            if received.type not in (FrameType.PING, FrameType.PONG):
                return received
        # One deadline for all reads: a node that sends a byte now and then must not hold anybody up.
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        size = connection.recv_into(reader.room())
        if size == 0:
            raise ConnectionLost(f"{address} closed the connection without an answer")
        reader.received(size)
