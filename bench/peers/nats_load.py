"""Load for NATS JetStream with nats-py: W1, W2 and W3 on a stream of its own, R3 with file storage.

    python -m bench.peers.nats_load --servers n1=nats://127.0.0.1:4222,... --seconds 4

Like the Go driver it works with the server that leads the stream. `publish_async` is the client's own pipeline.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

import nats
import uvloop
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, PubAck, StorageType, StreamConfig
from nats.js.errors import Error as JetStreamError

from bench.peers.load import Options, Window, latency, options, random_bodies, report

_SUBJECT: Final = "py"
_MAX_PENDING: Final = 4096
_FETCH: Final = 1000
_BURST: Final = 64
_ANSWER_SECONDS: Final = 20.0


async def main(given: Options) -> None:
    by_name = dict(server.split("=", 1) for server in given.servers.split(","))
    leader = await _create_stream(list(by_name.values()))
    connection = await nats.connect(by_name[leader])
    # Room for what is fetched but not yet read, so that the client never drops what it asked for.
    context = connection.jetstream(timeout=_ANSWER_SECONDS, publish_async_max_pending=_MAX_PENDING)
    await _publish(context, given)
    await _publish_one_by_one(context, given)
    await _consume(context, given)
    await connection.close()


async def _create_stream(servers: list[str]) -> str:
    """The name of the leader, once both followers are current."""
    connection = await nats.connect(servers)
    context = connection.jetstream(timeout=_ANSWER_SECONDS)
    config = StreamConfig(name=_SUBJECT, subjects=[_SUBJECT], num_replicas=3, storage=StorageType.FILE)
    await context.add_stream(config)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        cluster = (await context.stream_info(_SUBJECT)).cluster
        if cluster and cluster.leader and sum(bool(peer.current) for peer in cluster.replicas or ()) == 2:
            await connection.close()
            return cluster.leader
        await asyncio.sleep(0.1)
    raise TimeoutError(f"stream {_SUBJECT} has no leader with two current followers")


async def _stored(context: JetStreamContext) -> int:
    return (await context.stream_info(_SUBJECT)).state.messages


async def _publish(context: JetStreamContext, given: Options) -> None:
    bodies, sent, confirmed = random_bodies(), 0, 0
    failures: list[BaseException] = []

    def answered(future: asyncio.Future[PubAck]) -> None:
        nonlocal confirmed
        if (error := future.exception()) is None:
            confirmed += 1
        else:
            failures.append(error)

    window = Window(given.warm, given.measure)
    while window.open(confirmed):
        for _ in range(_BURST):
            future = await context.publish_async(_SUBJECT, bodies[sent % len(bodies)], wait_stall=_ANSWER_SECONDS)
            future.add_done_callback(answered)
            sent += 1
        await asyncio.sleep(0)
    result = window.result(confirmed)
    async with asyncio.timeout(_ANSWER_SECONDS):
        await context.publish_async_completed()
    await asyncio.sleep(0)  # the last callbacks
    if failures:
        raise JetStreamError(f"{len(failures)} of {sent} not confirmed, the first: {failures[0]}")
    stored = await _stored(context)
    report(
        "W1",
        f"publish_async, {_MAX_PENDING} pending",
        {**result, "sent": sent, "confirmed": confirmed, "stored": stored},
    )


async def _publish_one_by_one(context: JetStreamContext, given: Options) -> None:
    bodies, sent = random_bodies(), 0
    latencies_us: list[float] = []
    before = await _stored(context)
    started = time.perf_counter()
    while (asked := time.perf_counter()) - started < given.warm_again + given.measure:
        await context.publish(_SUBJECT, bodies[sent % len(bodies)])
        sent += 1
        if asked - started >= given.warm_again:
            latencies_us.append((time.perf_counter() - asked) * 1e6)
    stored = await _stored(context) - before
    report("W2", "", {**latency(latencies_us), "sent": sent, "confirmed": sent, "stored": stored})


async def _consume(context: JetStreamContext, given: Options) -> None:
    """The whole stream by `fetch`, again and again, from a consumer without acknowledgements or copies."""
    backlog = await _stored(context)
    count, seconds = 0, 0.0
    while seconds < given.measure:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, mem_storage=True, num_replicas=1)
        consumer = await context.pull_subscribe(_SUBJECT, durable=f"reader{count}", config=config)
        started, read = time.perf_counter(), 0
        while read < backlog:
            read += len(await consumer.fetch(_FETCH, timeout=_ANSWER_SECONDS))
        seconds += time.perf_counter() - started
        count += read
        await consumer.unsubscribe()
    report("W3", f"fetch of {_FETCH}", {"count": count, "seconds": seconds})


if __name__ == "__main__":
    uvloop.run(main(options()))
