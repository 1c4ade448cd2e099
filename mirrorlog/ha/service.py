"""HAService: all of a node's replication, started and stopped together (seed 002, lines 21-45).

AcceptSocketService listens for the mirrors of the logs that the node masters and makes an HAConnection for each;
GroupTransferService, inside each log's Mastership, answers the publishes that wait; an HAClientService per log that the
node mirrors drives its HAClient.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mirrorlog.ha.accept import AcceptSocketService
from mirrorlog.ha.client_service import HAClientService
from mirrorlog.ha.pace import STEP_S, MovePace

# How often the machines are told the time; deadlines and heartbeats are exact to this.
TICK_S: Final = 0.05


class HAService:
    """The two sides of replication of one node."""

    def __init__(self, accept: AcceptSocketService, pace: MovePace | None = None) -> None:
        """`pace`: of what is sent to copies that are made for a move."""
        self.accept = accept
        self.pace = pace
        self.clients: list[HAClientService] = []
        """One per log that the node mirrors now."""
        self._filling: asyncio.TimerHandle | None = None

    def add(self, client: HAClientService) -> None:
        """A log is mirrored from now on; the client dials at the next tick, if it was not told to before."""
        self.clients.append(client)

    def remove(self, client: HAClientService) -> None:
        """It is told the time no more; to stop it is its owner's."""
        self.clients.remove(client)

    async def start(self, address: str) -> None:
        """Listen for mirrors on `host:port`; the clients dial at their first tick. Raises PortTaken."""
        await self.accept.start(address)

    def tick(self, now: float) -> None:
        """Time passes (s, the loop's clock)."""
        self.accept.tick(now)
        for client in self.clients:
            client.tick(now)
        if self._filling is None:
            self._fill()

    def _fill(self) -> None:
        """Copies that are made for a move get what they may, as long as there are any, in steps shorter than a tick:
        who shares the network with them waits for one step at most."""
        links = [link for link in self.accept.links if link.connection is not None and link.connection.pace is not None]
        for link in links:
            link.pump(announce=False)
        self._filling = asyncio.get_running_loop().call_later(STEP_S, self._fill) if links else None

    async def stop(self) -> None:
        """The mirrors are told the last confirmed offset, the masters goodbye."""
        if self._filling is not None:
            self._filling.cancel()
        await self.accept.stop()
        for client in list(self.clients):
            await client.stop()
