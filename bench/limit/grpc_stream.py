"""One bidirectional gRPC stream in Python over loopback: the limit of the gRPC door.

    python -m bench.limit.grpc_stream SECONDS MESSAGE_BYTES

The client and the server are those of W1 by gRPC, with the door's own options, but a message is bytes that nobody
reads, stores or passes on; each is answered by a small one.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

from bench.limit import children

METHOD: Final = "/bench.Limit/Stream"

_ANSWER: Final = bytes(40)
_POOL_BYTES: Final = 64 * 1024 * 1024
_WARM_UP_SHARE: Final = 0.2


async def _answer_each(messages: AsyncIterator[bytes], context: Any) -> None:
    async for _ in messages:
        await context.write(_ANSWER)


async def _serve(message_bytes: int, ready: int) -> None:
    import grpc

    from mirrorlog.doors.grpc_door import server_options
    from mirrorlog.wire.messages.handshake import NodeLimits

    limits = NodeLimits(max_record_bytes=message_bytes, max_batch_bytes=message_bytes)
    server = grpc.aio.server(options=server_options(limits))
    service, method = METHOD.strip("/").split("/")
    handler: Any = grpc.stream_stream_rpc_method_handler(_answer_each)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    os.write(ready, f"{port}\n".encode())
    await server.wait_for_termination()


def _server(message_bytes: int, ready: int) -> None:
    import uvloop

    from mirrorlog.doors.grpc_door import KEPT_BYTES
    from mirrorlog.freed_memory import keep_freed_memory

    keep_freed_memory(KEPT_BYTES)
    uvloop.run(_serve(message_bytes, ready))


def _messages(pool: list[bytes], end: float) -> Iterator[bytes]:
    number = 0
    while time.perf_counter() < end:
        yield pool[number % len(pool)]
        number += 1


def _exchange(stream: Any, pool: list[bytes], seconds: float) -> int:
    """Send for so long, and take every answer; how many there were."""
    return sum(1 for _ in stream(_messages(pool, time.perf_counter() + seconds), timeout=children.DEADLINE_S))


def _measure(address: str, message_bytes: int, seconds: float) -> dict[str, float]:
    import grpc

    pool = [os.urandom(message_bytes) for _ in range(max(1, _POOL_BYTES // message_bytes))]
    with grpc.insecure_channel(address) as channel:
        stream: Any = channel.stream_stream(METHOD)
        _exchange(stream, pool, seconds * _WARM_UP_SHARE)
        began = time.perf_counter()
        answered = _exchange(stream, pool, seconds)
        return {"bytes": answered * message_bytes, "seconds": time.perf_counter() - began}


def main() -> None:
    seconds, message_bytes = float(sys.argv[1]), int(sys.argv[2])
    theirs, ready = os.pipe()
    server = children.start(partial(_server, message_bytes, ready))
    os.close(ready)
    with open(theirs, encoding="ascii") as answer:  # noqa: PTH123 - a descriptor
        port = answer.readline().strip()
    if not port:
        sys.exit("the server did not start")
    outcome = _measure(f"127.0.0.1:{port}", message_bytes, seconds)
    children.end(server)
    print(json.dumps(outcome))


if __name__ == "__main__":
    main()
