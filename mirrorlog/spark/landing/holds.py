"""A landing's hold on the records that it has not landed (decision 0032): registered, renewed, handed on.

    holds = Holds(landing)
    with holds.kept():                  leases are renewed in a thread, several times in each, while the block runs
        holds.begin({queue: offset})    once per queue and run; refused while another run of the landing lives
        holds.check()                   before a commit: raises when a renewal was refused
        holds.renew({queue: offset})    after every commit
    holds.end()                         the records stay held; the next run may have them at once

A run is a holder of its own, so a second one of the same name is told (HoldTaken). A run that ends cleanly hands the
hold to nobody, and one on the same machine that is dead for sure is not waited for; after another machine's death the
next run waits for the end of the lease, or takes over by force. A run that was replaced leaves the hold to its
successor.

That two runs cannot both add a record is not the hold's doing but the commit's.

Rejected: renewing between steps and duties alone, for one of them may take longer than a lease, or be many landings'.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirrorlog.client import Client
from mirrorlog.client.admin import Admin
from mirrorlog.errors import HoldTaken, MirrorlogError
from mirrorlog.spark.landing.definition import Landing
from mirrorlog.wire.messages.queues import HoldInfo

logger: Final = logging.getLogger(__name__)

NOBODY: Final = "nobody"
"""The holder between two runs."""

_BY_HAND: Final = "released"
_HOLDER: Final = re.compile(r"(?P<host>.*)/(?P<boot>[^/]*)/(?P<pid>\d+)/(?P<started>\d+)/[0-9a-f]+")
_RENEWALS_PER_LEASE: Final = 3
# So a renewal that fails is tried again eight times before the lease is over.
_LOOKS_PER_LEASE: Final = 12


@dataclass(frozen=True, slots=True)
class _Registered:
    """A queue that this run holds: under which epoch, from where on, and when that was said last."""

    epoch: int
    queue_offset: int
    renewed_s: float


Connect = Callable[[Landing], AbstractAsyncContextManager[Admin]]
"""Gives what is asked of the nodes."""


@asynccontextmanager
async def _connected(landing: Landing) -> AsyncIterator[Admin]:
    async with Client(*landing.servers, **landing.access.client_options()) as client:
        yield client.admin


class Holds:
    """Of one landing in one run. Every method blocks; not for use on an event loop. May be used by several threads.

    `take_over`: from another run that may still live, once per queue. `now`: a monotonic clock, seconds.
    """

    def __init__(
        self,
        landing: Landing,
        *,
        take_over: bool = False,
        now: Callable[[], float] = time.monotonic,
        connect: Connect = _connected,
    ) -> None:
        self.name = landing.name
        self._landing = landing
        self._take_over = take_over
        self._now = now
        self._connect = connect
        self._holder = this_holder()
        self._lock = threading.RLock()
        self._registered: dict[str, _Registered] = {}
        self._lost: dict[str, HoldTaken] = {}
        self._had: set[str] = set()
        self._kept = False

    @property
    def tick_s(self) -> float:
        """How often to look whether a renewal is due: one that fails is tried again several times in a lease."""
        return self._landing.lease_s / _LOOKS_PER_LEASE

    def begin(self, positions: Mapping[str, int]) -> None:
        """Register the queues that are not yet. Raises HoldTaken naming who has the hold, and what nodes answer."""
        with self._lock:
            new = {queue: offset for queue, offset in positions.items() if queue not in self._registered}
            for queue in new:
                self._lost.pop(queue, None)  # what comes now is news
            if new:
                self._run(lambda admin: self._register(admin, new))

    def renew(self, positions: Mapping[str, int]) -> None:
        """What lies below `positions` is landed. Asks nobody when nothing moved and the lease is young. A hold that
        ended meanwhile, because it kept too much or nobody heard of this run for a lease, is registered anew.

        Raises HoldTaken when another run has taken the hold.
        """
        with self._lock:
            self._renew(positions)
            self.check()

    def renew_due(self) -> None:
        """Renew as it is what would soon expire. A refusal is kept for `check`; raises what else nodes answer."""
        with self._lock:
            self._renew({queue: each.queue_offset for queue, each in self._registered.items()})

    def check(self) -> None:
        """Raise what a renewal was refused with (HoldTaken), once."""
        with self._lock:
            lost, self._lost = self._lost, {}
            for error in lost.values():
                raise error

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew in a thread, at the queue offsets last said, while the block runs, however long that is. A block in
        such a block has the same thread."""
        if self._kept:
            yield
            return
        stop = threading.Event()
        thread = threading.Thread(target=keep_renewed, args=(self, stop.wait), name="mirrorlog-hold", daemon=True)
        thread.start()
        self._kept = True
        try:
            yield
        finally:
            self._kept = False
            stop.set()
            thread.join()

    def end(self) -> None:
        """Hand what is held to nobody, for as long as the lease runs. Raises HoldTaken, when the rest is handed over,
        for what another run has taken: that stays as it is."""
        with self._lock:
            if self._registered:
                self._run(self._hand_over)

    def _renew(self, positions: Mapping[str, int]) -> None:
        wanted = {queue: offset for queue, offset in positions.items() if self._wants(queue, offset)}
        if wanted:
            self._run(lambda admin: self._ask_again(admin, wanted))

    def _wants(self, queue: str, offset: int) -> bool:
        known = self._registered.get(queue)
        if known is None:
            return False
        is_due = self._now() - known.renewed_s >= self._landing.lease_s / _RENEWALS_PER_LEASE
        return is_due or known.queue_offset != offset

    def _run(self, do: Callable[[Admin], Coroutine[Any, Any, None]]) -> None:
        async def connected() -> None:
            async with self._connect(self._landing) as admin:
                await do(admin)

        asyncio.run(connected())

    async def _register(self, admin: Admin, positions: Mapping[str, int]) -> None:
        for queue, offset in positions.items():
            known = [hold for hold in await admin.holds(queue) if hold.name == self._landing.name]
            # By force once: who was replaced by force does not take it back.
            forced = self._take_over and queue not in self._had
            take_over = forced or any(is_gone(hold.holder) for hold in known)
            given = await self._ask(admin, queue, offset, holder=self._holder, take_over=take_over, epoch=0)
            self._registered[queue] = _Registered(given.epoch, offset, self._now())
            self._had.add(queue)

    async def _ask_again(self, admin: Admin, positions: Mapping[str, int]) -> None:
        for queue, offset in positions.items():
            try:
                given = await self._ask_as_holder(admin, queue, offset)
                self._registered[queue] = _Registered(given.epoch, offset, self._now())
            except HoldTaken as error:
                logger.warning("hold_lost landing=%r queue=%r reason=%r", self.name, queue, error.message)
                self._lost[queue] = error
                del self._registered[queue]

    async def _hand_over(self, admin: Admin) -> None:
        refused: HoldTaken | None = None
        for queue in list(self._registered):
            mine = self._registered[queue]
            try:
                await self._ask(admin, queue, mine.queue_offset, holder=NOBODY, take_over=True, epoch=mine.epoch)
            except HoldTaken as error:
                # Nobody's already, asked for twice because the first answer was lost; or ended, and nobody wants it.
                if error.details.get("holder") != NOBODY and "ended" not in error.details:
                    refused = error
            del self._registered[queue]
        if refused is not None:
            raise refused

    async def _ask_as_holder(self, admin: Admin, queue: str, offset: int) -> HoldInfo:
        """Under the own epoch, so that a node refuses it when another run has taken the hold meanwhile."""
        epoch = self._registered[queue].epoch
        try:
            return await self._ask(admin, queue, offset, holder=self._holder, take_over=False, epoch=epoch)
        except HoldTaken as error:
            # Who ended it by hand wants this run to hear of it.
            if error.details.get("ended") in (None, _BY_HAND):
                raise
            # It ended by itself: what is left is held anew, and what is gone is told by the next plan.
            logger.warning("hold_ended landing=%r queue=%r reason=%r", self.name, queue, error.message)
            return await self._ask(admin, queue, offset, holder=self._holder, take_over=False, epoch=0)

    async def _ask(
        self, admin: Admin, queue: str, offset: int, *, holder: str, take_over: bool, epoch: int
    ) -> HoldInfo:
        return await admin.set_hold(
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


def keep_renewed(holds: Holds, wait: Callable[[float], bool]) -> None:
    """Renew what is due until `wait`, given seconds, says that it is over. An error is told, and tried again."""
    while not wait(holds.tick_s):
        try:
            holds.renew_due()
        except MirrorlogError as error:
            logger.warning("hold_not_renewed landing=%r reason=%r", holds.name, error.message)


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
