"""A program that fills queues which may be so long and no longer, when nobody takes from them any more."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from sim.cluster_clients import AGAIN_S, insist
from sim.cluster_record_checks import Filled
from sim.cluster_sorts import LENGTH_MAX
from sim.machines import Machine

OVER: Final = 7
"""So many records more than there is room for are sent."""
_DELIVERY_MS: Final = 300


class Filler:
    """`filled`: what became of each queue."""

    def __init__(self, servers: Sequence[str], queues: Sequence[str]) -> None:
        self.done = False
        self.filled: list[Filled] = []
        self._servers = servers
        self._queues = queues

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers).connect())
        for queue in self._queues:
            self.filled.append(await self._fill(client, queue))
        self.done = True

    async def _fill(self, client: Client, queue: str) -> Filled:
        """One record after the other: batches of more may go beyond the limit."""
        confirmed, codes = 0, list[str]()
        producer = client.producer(queue, confirm="all", delivery_timeout_ms=_DELIVERY_MS)
        await insist(producer.start)
        for number in range(LENGTH_MAX + OVER):
            try:
                await producer.send(b"filler %d ." % number)
                confirmed += 1
            except MirrorlogError as error:
                codes.append(error.code)
        await asyncio.sleep(AGAIN_S)  # what is too much goes when its turn comes
        found = await insist(lambda: client.admin.groups(queue))
        ready = sum(each.unsettled for each in found.groups if each.group == "")
        return Filled(queue, confirmed, len(codes), frozenset(codes), ready)
