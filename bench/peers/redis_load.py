"""Load for Redis with redis-py: W1 and W2 by XADD and WAIT 2, W3 by XREAD, on one stream.

    python -m bench.peers.redis_load --servers 127.0.0.1:6379 --seconds 4

One server is given, the primary; it starts once both replicas are online. WAIT answers for the whole connection, so a
pipeline of XADD that ends with it is confirmed as a whole.
"""

from __future__ import annotations

import time
from typing import Any, Final

import redis

from bench.peers.load import Options, Window, one_by_one, options, random_bodies, report

_STREAM: Final = "bench"
_PIPELINE: Final = 500
_READ: Final = 1000
_REPLICAS: Final = 2
_ANSWER_SECONDS: Final = 20.0


def main() -> None:
    given = options()
    host, _, port = given.servers.partition(":")
    with redis.Redis(host=host, port=int(port), socket_timeout=2 * _ANSWER_SECONDS) as client:
        _wait_for_replicas(client)
        _publish(client, given)
        _publish_one_by_one(client, given)
        _consume(client, given)


def _wait_for_replicas(client: redis.Redis) -> None:
    deadline = time.monotonic() + _ANSWER_SECONDS
    while True:
        information: Any = client.info("replication")
        if [information.get(f"slave{number}", {}).get("state") for number in range(_REPLICAS)] == [
            "online"
        ] * _REPLICAS:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{_REPLICAS} replicas did not come online within {_ANSWER_SECONDS:g} s")
        time.sleep(0.05)


def _send(client: redis.Redis, bodies: list[bytes]) -> None:
    """Returns when the primary and both replicas have all of them."""
    pipeline = client.pipeline(transaction=False)
    for body in bodies:
        pipeline.xadd(_STREAM, {"v": body})
    pipeline.wait(_REPLICAS, int(_ANSWER_SECONDS * 1000))
    replicas = pipeline.execute()[-1]
    if replicas != _REPLICAS:
        raise TimeoutError(f"{replicas} of {_REPLICAS} replicas have it after {_ANSWER_SECONDS:g} s")


def _publish(client: redis.Redis, given: Options) -> None:
    bodies, confirmed = random_bodies()[:_PIPELINE], 0
    window = Window(given.warm, given.measure)
    while window.open(confirmed):
        _send(client, bodies)
        confirmed += _PIPELINE
    result = window.result(confirmed)
    stored = client.xlen(_STREAM)
    report(
        "W1",
        f"pipeline of {_PIPELINE} XADD and WAIT",
        {**result, "sent": confirmed, "confirmed": confirmed, "stored": stored},
    )


def _publish_one_by_one(client: redis.Redis, given: Options) -> None:
    bodies, before = random_bodies(), client.xlen(_STREAM)
    result = one_by_one(given, lambda number: _send(client, [bodies[number % len(bodies)]]))
    report("W2", "XADD and WAIT in one pipeline", {**result, "stored": client.xlen(_STREAM) - before})


def _consume(client: redis.Redis, given: Options) -> None:
    """The whole stream, again and again, from the primary."""
    backlog = client.xlen(_STREAM)
    count, seconds = 0, 0.0
    while seconds < given.measure:
        started, last, read = time.perf_counter(), b"0", 0
        while read < backlog:
            answer: Any = client.xread({_STREAM: last}, count=_READ)
            ((_, entries),) = answer
            last, read = entries[-1][0], read + len(entries)
        seconds += time.perf_counter() - started
        count += read
    report("W3", f"XREAD of {_READ}", {"count": count, "seconds": seconds})


if __name__ == "__main__":
    main()
