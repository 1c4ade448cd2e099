"""A landing's hold on the records that it has not landed (decision 0032): registered, renewed, handed on.

    holds = Holds(landing)
    holds.begin({queue: offset})      once per queue and run; refused while another run of the landing lives
    holds.renew({queue: offset})      after every commit, and while there is nothing to do
    holds.end()                       the records stay held; the next run may have them at once

A run is a holder of its own, so a second one of the same name is told (HoldTaken). A run that ends cleanly hands the
hold to nobody, and one on the same machine that is dead for sure is not waited for; after another machine's death the
next run waits for the end of the lease, or takes over by force.

That two runs cannot both add a record is not the hold's doing but the commit's.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from mirrorlog.client import Client
from mirrorlog.errors import HoldTaken, NoSuchHold
from mirrorlog.spark.landing.definition import Landing

NOBODY: Final = "nobody"
"""The holder between two runs."""

_HOLDER: Final = re.compile(r"(?P<host>.*)/(?P<boot>[^/]*)/(?P<pid>\d+)/(?P<started>\d+)/[0-9a-f]+")
# A renewal may be late by a step, and fail once.
_RENEWALS_PER_LEASE: Final = 4

_T = TypeVar("_T")


class Holds:
    """Of one landing in one run. Every method blocks; not for use on an event loop.

    `take_over`: from another run that may still live.
    """

    def __init__(self, landing: Landing, *, take_over: bool = False, now: Callable[[], float] = time.monotonic) -> None:
        self._landing = landing
        self._take_over = take_over
        self._now = now
        self._holder = this_holder()
        self._epochs: dict[str, int] = {}
        self._renewed: dict[str, tuple[int, float]] = {}

    @property
    def due(self) -> bool:
        """Whether a renewal should not wait any longer."""
        return any(self._is_due(queue) for queue in self._epochs)

    def begin(self, positions: Mapping[str, int]) -> None:
        """Register the queues that are not yet. Raises HoldTaken naming who has the hold, and what nodes answer."""
        new = {queue: offset for queue, offset in positions.items() if queue not in self._epochs}
        if new:
            self._run(lambda client: self._register(client, new))

    def renew(self, positions: Mapping[str, int]) -> None:
        """What lies below `positions` is landed. Asks nobody when nothing moved and the lease is young.

        Raises HoldTaken when another run has taken the hold.
        """
        moved = {queue: offset for queue, offset in positions.items() if self._wants(queue, offset)}
        if moved:
            self._run(lambda client: self._renew(client, moved))

    def renew_due(self) -> None:
        """Renew as it is what would soon expire."""
        self.renew({queue: offset for queue, (offset, _) in self._renewed.items() if self._is_due(queue)})

    def end(self) -> None:
        """Hand what is held to nobody, for as long as the lease runs."""
        if self._epochs:
            held = {queue: self._renewed[queue][0] for queue in self._epochs}
            self._run(lambda client: self._hand_over(client, held))
            self._epochs.clear()
            self._renewed.clear()

    def _wants(self, queue: str, offset: int) -> bool:
        if queue not in self._epochs:
            return False
        return self._renewed[queue][0] != offset or self._is_due(queue)

    def _is_due(self, queue: str) -> bool:
        return self._now() - self._renewed[queue][1] >= self._landing.lease_s / _RENEWALS_PER_LEASE

    def _run(self, do: Callable[[Client], Coroutine[Any, Any, _T]]) -> _T:
        async def connected() -> _T:
            async with Client(*self._landing.servers, tls=self._landing.tls.context()) as client:
                return await do(client)

        return asyncio.run(connected())

    async def _register(self, client: Client, positions: Mapping[str, int]) -> None:
        for queue, offset in positions.items():
            known = [hold for hold in await client.admin.holds(queue) if hold.name == self._landing.name]
            take_over = self._take_over or any(is_gone(hold.holder) for hold in known)
            await self._set(client, queue, offset, holder=self._holder, take_over=take_over, epoch=0)

    async def _renew(self, client: Client, positions: Mapping[str, int]) -> None:
        for queue, offset in positions.items():
            try:
                await self._set(client, queue, offset, holder=self._holder, epoch=self._epochs[queue])
            except (HoldTaken, NoSuchHold):
                del self._epochs[queue], self._renewed[queue]
                raise

    async def _hand_over(self, client: Client, positions: Mapping[str, int]) -> None:
        for queue, offset in positions.items():
            await self._set(client, queue, offset, holder=NOBODY, take_over=True, epoch=0)

    async def _set(
        self, client: Client, queue: str, offset: int, *, holder: str, take_over: bool = False, epoch: int = 0
    ) -> None:
        given = await client.admin.set_hold(
            queue,
            self._landing.name,
            holder=holder,
            queue_offset=offset,
            lease_ms=int(self._landing.lease_s * 1000),
            location=self._landing.table,
            tiered=self._landing.tiered,
            take_over=take_over,
            epoch=epoch,
        )
        self._epochs[queue] = given.epoch
        self._renewed[queue] = (offset, self._now())


def this_holder() -> str:
    """This run's name: the machine and its start, the process and its start, and a number of its own."""
    return f"{socket.gethostname()}/{_boot()}/{os.getpid()}/{_started(os.getpid())}/{uuid.uuid4().hex[:8]}"


def is_gone(holder: str) -> bool:
    """Whether a holder is nobody, or a process of this machine that lives no more. Of other machines nobody knows."""
    if holder == NOBODY:
        return True
    found = _HOLDER.fullmatch(holder)
    if found is None or found["host"] != socket.gethostname():
        return False
    if found["boot"] != _boot():
        return bool(found["boot"]) and bool(_boot())
    return str(_started(int(found["pid"]))) != found["started"]


def _boot() -> str:
    """The machine's run, so that process numbers are compared within one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> int:
    """When the process began, in ticks since the machine's start; 0 when there is none or nobody can say."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
