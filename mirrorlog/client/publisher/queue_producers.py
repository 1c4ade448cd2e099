"""The producers of a publisher, one for each queue that it has met lately: found, started, kept and let go.

Whoever publishes answers meets a new queue with each, and would fill its memory, and that of nodes, with producers
that nobody needs again. So beyond a thousand those go that have nothing under way and had nothing to do for some
seconds; beyond ten thousand all that have nothing under way. One that is needed again is made anew: everything that
its predecessor sent has ended by then, so order is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from mirrorlog.client.connection.cluster import ClusterClient
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.publisher.publications import Publication
from mirrorlog.client.publisher.routes import PublishRoutes
from mirrorlog.errors import LogUnavailable, MirrorlogError, NoSuchQueue, NotMaster, StaleRouting
from mirrorlog.wire.names import qualified

KEPT_MAX: Final = 1_000
IDLE_S: Final = 5.0
IDLE_KEPT_MAX: Final = 10_000
_LOOK_AGAIN_S: Final = 0.2
"""Between two looks for a queue that is bound, or placed, and that no node has."""
_STARTS_AT_ONCE: Final = 64
"""Producers, for one message."""
_LOOKED_AT: Final = 64
"""Producers, in one look: it is taken for each message."""


@dataclass(slots=True)
class _Kept:
    """`under_way`: messages that were handed to it and have not been heard of."""

    producer: Producer
    used_at: float
    under_way: int = 0


class QueueProducers:
    """Keeps producers by queue, pure; the one that was used longest ago comes first."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Producer]:
        return iter([kept.producer for kept in self._kept.values()])

    def get(self, queue: str) -> Producer | None:
        kept = self._kept.get(queue)
        return kept.producer if kept is not None else None

    def add(self, queue: str, producer: Producer, now: float) -> None:
        """A started one, in place of none."""
        self._kept[queue] = _Kept(producer, now)

    def drop(self, queue: str) -> None:
        """Its queue is gone, and what is under way ends with it."""
        kept = self._kept.pop(queue, None)
        if kept is not None:
            kept.producer.abandon()

    def sent(self, queue: str, now: float) -> None:
        """A message was handed to it."""
        kept = self._kept.pop(queue)
        kept.used_at = now
        kept.under_way += 1
        self._kept[queue] = kept

    def heard(self, queue: str, producer: Producer) -> None:
        """What has become of one message that was handed to that producer."""
        kept = self._kept.get(queue)
        if kept is not None and kept.producer is producer:
            kept.under_way -= 1

    def let_idle_go(self, now: float) -> None:
        """Those beyond the limits, a few at a time."""
        beyond = len(self._kept) - KEPT_MAX
        if beyond <= 0:
            return
        for queue, kept in [item for item, _ in zip(self._kept.items(), range(_LOOKED_AT), strict=False)]:
            if beyond <= 0 or (len(self._kept) <= IDLE_KEPT_MAX and now - kept.used_at < IDLE_S):
                return
            if not kept.under_way:
                self.drop(queue)
                beyond -= 1


class StartedProducers:
    """Finds queues and starts their producers. `make`: of a queue's qualified name. `exchange`: empty for the default
    one, which has no bindings."""

    def __init__(
        self, client: ClusterClient, routes: PublishRoutes, exchange: str, make: Callable[[str], Producer]
    ) -> None:
        self.kept = QueueProducers()
        self._client = client
        self._routes = routes
        self._exchange = exchange
        self._make = make
        self._loop = asyncio.get_running_loop()

    async def start_missing(self, queues: list[str], publication: Publication) -> None:
        """Some at a time: the first message of a wide fanout waits for the slowest node, and not for each in turn."""
        missing = [queue for queue in queues if self.kept.get(queue) is None]
        turns = asyncio.Semaphore(_STARTS_AT_ONCE)

        async def start(queue: str) -> None:
            async with turns:
                try:
                    await self.started(queue, publication)
                except StaleRouting as error:
                    publication.stale[queue] = error
                except MirrorlogError as error:
                    publication.failures[queue] = error

        await asyncio.gather(*map(start, missing))

    async def started(self, queue: str, publication: Publication) -> Producer | None:
        """Of a queue, started; None when nothing leads there. Raises StaleRouting when that may have changed; why it
        cannot be reached, LogUnavailable when it is there and no node that answers has it, not even in time."""
        while (producer := self.kept.get(queue)) is None:
            made = self._make(qualified(self._routes.virtual_host, queue))
            made.kept = True
            left_ms = max(0, int((publication.give_up_at - self._loop.time()) * 1000))
            timeout_ms = min(left_ms, self._client.request_timeout_ms)
            try:
                self.kept.add(queue, await made.start(timeout_ms=timeout_ms), self._loop.time())
            except (NoSuchQueue, NotMaster) as error:
                made.abandon()
                if self._exchange:
                    await self._check_binding(queue)
                elif isinstance(error, NoSuchQueue):
                    return None
                if self._is_over(publication):
                    raise LogUnavailable(f"{error.message}; nothing was stored", queue=queue) from None
                await asyncio.sleep(_LOOK_AGAIN_S)
            except LogUnavailable:  # the cluster says which node is down
                made.abandon()
                # Who names the queue is told at once. Behind a binding others may have the message already: it waits.
                if not self._exchange or publication.nothing_left or self._is_over(publication):
                    raise
                await asyncio.sleep(_LOOK_AGAIN_S)
        producer.routed_by(self._routes.stamp)
        return producer

    def _is_over(self, publication: Publication) -> bool:
        """Whether its queues are not looked for any more."""
        return self._routes.closed() or self._loop.time() >= publication.give_up_at

    async def _check_binding(self, queue: str) -> None:
        """Of a queue that no node has found. Behind a binding it is there, for one that is deleted takes its bindings
        along. Raises StaleRouting when the binding is perhaps not there any more."""
        version = await self._routes.version_known()
        if version > self._routes.table.version:
            raise StaleRouting(f"bindings have changed since this was routed to {queue!r}", version=version)
