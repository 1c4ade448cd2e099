"""A door process of a node, and a plain gRPC client of it, as another language's. Every wait has a deadline."""

from __future__ import annotations

import queue
import selectors
import subprocess
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import grpc
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from mirrorlog.client import Client
from mirrorlog.doors.common.callers import Callers
from mirrorlog.doors.grpc.calls import CallLogins
from mirrorlog.pb.v1 import admin_pb2_grpc, consumer_pb2, consumer_pb2_grpc, producer_pb2, producer_pb2_grpc

DEADLINE_S = 30.0
HOST = "127.0.0.1"


class Door:
    """The process that `mqnode` would start, on a port of its own choice, so that it can outlive its node in a test."""

    def __init__(self, node: str, *, bind: str = f"{HOST}:0") -> None:
        command = [sys.executable, "-m", "mirrorlog.doors.grpc_door", "--node", node, "--bind", bind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.address = ""
        self.errors = ""

    def wait_serving(self) -> Self:
        """Until it says where it serves."""
        line = self.first_line()
        assert line.startswith(f"grpc door serving {HOST}:"), line or self.end()
        self.address = line.split()[-1]
        return self

    def first_line(self) -> str:
        """What it prints first; empty when it ends without a word."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            assert selector.select(DEADLINE_S), "the door printed nothing in time"
        return self.process.stdout.readline().strip()

    def end(self) -> tuple[int, str]:
        """Wait until it has ended by itself: its exit code and what it wrote to standard error.

        Its standard input stays open meanwhile: `communicate` would close it, and the door ends at that.
        """
        code = self.process.wait(DEADLINE_S)
        assert self.process.stderr is not None
        self.errors += self.process.stderr.read()
        return code, self.errors

    def close(self) -> None:
        """Kill it, if it still runs."""
        self.process.kill()
        self.process.wait()
        if self.process.stderr is not None:
            self.errors += self.process.stderr.read()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self.wait_serving()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            assert not any(word in self.errors for word in ("Traceback", "never retrieved")), self.errors


def logins_as(client: Client) -> CallLogins:
    """Every call has that client, whoever calls."""
    return CallLogins(Callers("", lambda login: client))


def channel_to(address: str) -> grpc.Channel:
    """A channel that tries again at once after a failure, so that a test need not wait for its back-off."""
    return grpc.insecure_channel(
        address, options=[("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 200)]
    )


def admin(channel: grpc.Channel) -> Any:
    return admin_pb2_grpc.AdminStub(channel)


def health(channel: grpc.Channel, service: str = "") -> str:
    """SERVING, NOT_SERVING, …"""
    request = health_pb2.HealthCheckRequest(service=service)
    answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE_S)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


class Publishing:
    """One Publish stream: `send` requests, take `result`s in their order."""

    def __init__(self, channel: grpc.Channel, queue_name: str | None, **opening: Any) -> None:
        self._requests: queue.SimpleQueue[producer_pb2.PublishRequest | None] = queue.SimpleQueue()
        stub = producer_pb2_grpc.ProducerStub(channel)
        self._call = stub.Publish(iter(self._requests.get, None), timeout=DEADLINE_S)
        if queue_name is not None:
            self.send(producer_pb2.PublishRequest(open=producer_pb2.OpenPublish(queue=queue_name, **opening)))

    def opened(self) -> producer_pb2.Opened:
        response = next(self._call)
        assert response.WhichOneof("response") == "opened", response
        return response.opened

    def send(self, request: producer_pb2.PublishRequest) -> None:
        self._requests.put(request)

    def publish(self, values: Iterable[bytes], *, tag: int = 0, sequence: int | None = None) -> None:
        """A batch of records."""
        records = producer_pb2.Records(records=[producer_pb2.Record(value=value) for value in values])
        self.send(
            producer_pb2.PublishRequest(batch=producer_pb2.PublishBatch(tag=tag, sequence=sequence, records=records))
        )

    def publish_ready(self, batch: bytes | bytearray, *, tag: int = 0) -> None:
        """A batch in the native format."""
        self.send(producer_pb2.PublishRequest(batch=producer_pb2.PublishBatch(tag=tag, ready=bytes(batch))))

    def result(self) -> producer_pb2.PublishResult:
        response = next(self._call)
        assert response.WhichOneof("response") == "result", response
        return response.result

    def confirm(self) -> producer_pb2.Confirm:
        result = self.result()
        assert result.WhichOneof("outcome") == "confirm", result
        return result.confirm

    def error(self) -> Any:
        result = self.result()
        assert result.WhichOneof("outcome") == "error", result
        return result.error

    def finish(self) -> list[producer_pb2.PublishResponse]:
        """End this side; what still comes until the stream has ended well."""
        self._requests.put(None)
        return list(self._call)

    def cancel(self) -> None:
        self._requests.put(None)
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


class Consuming:
    """One Consume stream: `opened` first, then responses in their order."""

    def __init__(self, channel: grpc.Channel, queue_name: str, *, timeout_s: float = DEADLINE_S, **asked: Any) -> None:
        request = consumer_pb2.ConsumeRequest(queue=queue_name, **asked)
        self._call = consumer_pb2_grpc.ConsumerStub(channel).Consume(request, timeout=timeout_s)

    def opened(self) -> consumer_pb2.ConsumeResponse:
        """The first response, which says where the reader begins."""
        response = self.response()
        assert response.WhichOneof("content") is None, response
        return response

    def response(self) -> consumer_pb2.ConsumeResponse:
        return next(self._call)

    def with_records(self) -> consumer_pb2.ConsumeResponse:
        """The next response that has any."""
        while (response := self.response()).WhichOneof("content") is None:
            pass
        return response

    def values(self, count: int) -> list[bytes]:
        """The values of the next `count` records."""
        found: list[bytes] = []
        while len(found) < count:
            found += values_of(self.with_records())
        assert len(found) == count, found
        return found

    def rest(self) -> list[consumer_pb2.ConsumeResponse]:
        """What still comes until the stream has ended well."""
        return list(self._call)

    def cancel(self) -> None:
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def values_of(response: consumer_pb2.ConsumeResponse) -> list[bytes]:
    """Of a response in the records shape; each batch must begin where the one before it ended."""
    found: list[bytes] = []
    for batch in response.batches.batches:
        assert batch.base_queue_offset == response.first + len(found), response
        found += [record.value for record in batch.records]
    return found


def failure_of(call: Any) -> grpc.RpcError:
    """The RpcError that `call()` ends with; it must."""
    try:
        result = call()
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"no error, but {result!r}")


def info_of(error: Any) -> ErrorInfo:
    """The ErrorInfo in the details of a failed call."""
    status = rpc_status.from_call(error)
    assert status is not None, error
    info = ErrorInfo()
    assert status.details[0].Unpack(info)
    return info
