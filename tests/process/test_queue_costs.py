"""What queues cost that nobody uses: no thread, no timer, no task."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from mirrorlog.client import Client
from mirrorlog.config import HaSettings
from mirrorlog.wire.messages.queues import Position
from tests.broker.hosting import running_all
from tests.ha.nodes import cluster_settings

QUEUES: Final = 300
AT_ONCE: Final = 50
SPARE: Final = 12
"""Of what comes and goes by itself: a connection's next PING, a look that has begun, a thread of the loop's pool."""

SORTS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"x-expires": 3_600_000},
    {"x-message-ttl": 3_600_000},
    {"x-max-length": 10},
    {"x-max-length": 10, "x-overflow": "reject-publish"},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q0"},
    {"x-max-priority": 5},
    {"x-single-active-consumer": True},
    {"auto-delete": True},
)


class Costs(NamedTuple):
    threads: int
    timers: int
    tasks: int


def costs() -> Costs:
    """Of this process, once what has ended is taken away."""
    gc.collect()
    loop: Any = asyncio.get_running_loop()
    timers = sum(not timer.cancelled() for timer in loop._scheduled)
    return Costs(len(list(Path("/proc/self/task").iterdir())), timers, len(asyncio.all_tasks()))


async def each_of(queues: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(queue: str) -> None:
        async with room:
            await act(queue)

    await asyncio.gather(*map(one, queues))


def test_there_is_no_thread_timer_or_task_per_queue(tmp_path: Path) -> None:
    """Goal: ten thousand idle queues are memory, and nothing else. Method: a node in this process; 300 queues of nine
    sorts, each with a record that was leased and acknowledged, one that waits, and a position of a stream group: the
    threads of the process, and timers and tasks of its loop, are as many as before."""

    async def run() -> None:
        settings = cluster_settings(tmp_path, copies=1, ha=HaSettings(reconnect_interval_ms=20))
        async with running_all(settings), Client(settings[0].client_bind) as client:

            async def use(queue: str) -> None:
                info = await client.admin.declare(queue, SORTS[int(queue[1:]) % len(SORTS)])
                async with client.producer(queue) as producer:
                    await producer.send_many([b"taken", b"left"])
                if "x-single-active-consumer" not in info.arguments:
                    (leased,) = await client.lease(queue, max_records=1, lease_ms=3_600_000)
                    await leased.ack()
                else:
                    async with client.subscribe(queue, prefetch=1) as subscription:
                        await (await anext(subscription)).ack()
                position = Position(log_id=info.log_id, epoch=info.epoch, queue_offset=1)
                await client.admin.commit_position(queue, "stream", position)

            # The loop's pool of threads fills up once, whatever is done; each sort's own duties begin.
            await each_of([f"q{number}" for number in range(2 * AT_ONCE)], use)
            before = costs()
            names = [f"q{number}" for number in range(2 * AT_ONCE, 2 * AT_ONCE + QUEUES)]
            await each_of(names, use)
            after = costs()
            there = await client.admin.queues()
            assert len(there) == 2 * AT_ONCE + QUEUES
            own = {each.group: each for each in (await client.admin.groups(names[-1])).groups}
            assert (own[""].floor, own[""].unsettled, own["stream"].floor) == (1, 1, 1)
            grown = Costs(*(late - early for late, early in zip(after, before, strict=True)))
            assert max(grown) <= SPARE, (before, after)

    asyncio.run(run())
