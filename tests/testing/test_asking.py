"""A node is asked with one deadline for everything, and every way of not answering has its error."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from mirrorlog.errors import ConnectionLost, ProtocolError, RequestTimeout, WrongCluster
from mirrorlog.testing.asking import status_of, wait_for
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages.codec import encode, error_frame
from mirrorlog.wire.messages.handshake import NodeLimits, Welcome
from mirrorlog.wire.messages.queues import Done
from mirrorlog.wire.messages.status import Status

WELCOME = frame(
    FrameType.WELCOME,
    encode(
        Welcome(
            version=1,
            cluster_id="c",
            cluster_name="testing",
            node_id="n1",
            start_id="s",
            limits=NodeLimits(max_record_bytes=1, max_batch_bytes=1),
        )
    ),
)
STATUS = Status(cluster_id="c", cluster_name="testing", node_id="n1", start_id="s", now_us=1, logs=[])


@contextlib.contextmanager
def peer(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a socket that treats its one connection with `serve`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        for answer in answers:
            connection.recv(65536)
            connection.sendall(answer)

    return serve


def test_an_answer_is_found_behind_a_heartbeat() -> None:
    """Goal: frames that are no answers are passed over. Method: a PING in the same bytes as the status."""
    answer = frame(FrameType.PING) + frame(FrameType.RESPONSE, encode(STATUS), 2)
    with peer(answering(WELCOME, answer)) as address:
        assert status_of(address) == STATUS


def test_a_refusal_is_raised_as_what_it_is() -> None:
    """Goal: a node's error keeps its class. Method: an ERROR frame instead of the welcome."""
    with peer(answering(error_frame(WrongCluster("another cluster")))) as address, pytest.raises(WrongCluster):
        status_of(address)


def test_an_answer_to_something_else_is_an_error() -> None:
    """Goal: no wrong type is handed on. Method: Done in place of the status."""
    with (
        peer(answering(WELCOME, frame(FrameType.RESPONSE, encode(Done()), 2))) as address,
        pytest.raises(ProtocolError, match="Done"),
    ):
        status_of(address)


def test_a_closed_connection_is_an_error() -> None:
    """Goal: no endless wait for a node that has gone. Method: close after the welcome."""
    with peer(answering(WELCOME)) as address, pytest.raises(ConnectionLost):
        status_of(address)


def test_a_silent_node_times_out() -> None:
    """Goal: nothing hangs. Method: a peer that accepts and says nothing."""
    release = threading.Event()
    with peer(lambda _: release.wait(10) and None) as address:
        with pytest.raises(RequestTimeout, match=r"within 0\.05 s"):
            status_of(address, timeout=0.05)
        release.set()


def test_nobody_there_is_an_error() -> None:
    """Goal: a refused connection is told apart from silence. Method: a port that was just let go."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConnectionLost, match="refused"):
        status_of(address)


def test_a_wait_says_what_was_missing() -> None:
    """Goal: a failed wait explains itself. Method: a condition that never holds."""
    with pytest.raises(RequestTimeout, match="not within 0 s: three of four"):
        wait_for(lambda: None, timeout=0, what=lambda: "three of four")
