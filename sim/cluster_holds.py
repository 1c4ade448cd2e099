"""A landing of a simulated cluster, as far as its queues know one: it holds their records from where it has come to on,
and goes on there. What it was told of its holds has to stay, whichever logs the queues go through; and so has the
position of a group that has committed once, and never again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from mirrorlog.client import Client
from mirrorlog.errors import HoldTaken, MirrorlogError
from mirrorlog.wire.messages.queues import HoldInfo, Position
from sim.cluster_checks import Outside
from sim.cluster_clients import Committed, History, insist
from sim.machines import Machine

NAME: Final = "table"
HOLDER: Final = "the only run"
LEASE_MS: Final = 600_000
"""No hold ends by itself in a run."""
RENEW_S: Final = 0.3
ONCE: Final = "once"
"""The group that commits once."""


class Held(NamedTuple):
    """A hold that was confirmed. `at`: when it was asked for, in s of the run."""

    queue_offset: int
    epoch: int
    at: float


class Landing:
    """A program: renews its holds until `stopping`. `held`: the last of each queue that was confirmed; `gone`: those
    that were not there any more when they were to be renewed, and what was said; `found`: in the end."""

    def __init__(self, servers: Sequence[str], history: History) -> None:
        self.stopping = False
        self.done = False
        self.held: dict[str, Held] = {}
        self.gone: list[tuple[str, Held, str]] = []
        self.found: dict[str, HoldInfo] = {}
        self._servers = servers
        self._history = history

    async def __call__(self, machine: Machine) -> None:
        client = await insist(lambda: Client(*self._servers, request_timeout_ms=5_000).connect())
        await asyncio.gather(*(self._hold(client, queue) for queue in self._history.log_ids))
        for queue in self._history.log_ids:
            found = await insist(lambda queue=queue: client.admin.holds(queue))  # type: ignore[misc]
            self.found.update((queue, hold) for hold in found if hold.name == NAME)
        self.done = True

    async def _hold(self, client: Client, queue: str) -> None:
        await self._commit(client, queue)
        while not self.stopping:
            await asyncio.sleep(RENEW_S)
            before, at = self.held.get(queue), asyncio.get_running_loop().time()
            try:
                hold = await client.admin.set_hold(
                    queue,
                    NAME,
                    holder=HOLDER,
                    queue_offset=self._reached(queue),
                    lease_ms=LEASE_MS,
                    epoch=before.epoch if before is not None else 0,
                )
                self.held[queue] = Held(hold.queue_offset, hold.epoch, at)
            except HoldTaken as error:
                if before is not None:
                    self.gone.append((queue, before, str(error)))
                    del self.held[queue]
            except MirrorlogError:
                continue

    async def _commit(self, client: Client, queue: str) -> None:
        """A position that others do not write again, if the queue is where it was made."""
        offset, at = self._reached(queue), asyncio.get_running_loop().time()
        position = Position(log_id=self._history.log_ids[queue], epoch=1, queue_offset=offset)
        with suppress(MirrorlogError):
            await client.admin.commit_position(queue, ONCE, position)
            self._history.committed[queue, ONCE] = Committed(offset, at)

    def _reached(self, queue: str) -> int:
        """The last record that is known to be confirmed."""
        sent = (each for each in self._history.sent if each.queue == queue and each.level == "all")
        return max((each.receipt.queue_offset for each in sent if each.receipt is not None), default=0)


def holds_keep(outside: Outside, landing: Landing) -> None:
    """What was confirmed of a hold is so for whoever asks later, unless something was lost since."""
    for queue, held, said in landing.gone:
        assert outside.lost_since(outside.logs_of(queue), held.at), f"holds keep: {held} of {queue} is gone: {said}"
    for queue, held in landing.held.items():
        found = landing.found.get(queue)
        kept = found is not None and not found.ended and found.queue_offset >= held.queue_offset
        assert kept or outside.lost_since(outside.logs_of(queue), held.at), (
            f"holds keep: {held} of {queue} was confirmed, and there is {found}"
        )
