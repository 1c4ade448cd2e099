"""Drives one Raft member: its disk, its messages, its timers. Thin: what happens is the core's to say.

One bundle at a time, in the order of its fields; the disk is waited for on a helper, and the loop goes on meanwhile. A
disk that fails ends the member, and with it the node: it cannot say any more what it has promised. What a full disk, or
a system without descriptors, refuses before anything is written is tried again: a bundle while the member says nothing,
a snapshot of its own beside everything else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from functools import partial
from typing import Final, Protocol

from mirrorlog.cluster.raft.core import Raft
from mirrorlog.cluster.raft.messages import AnyMessage, Effects, Snapshot
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.state.machine import AppliedEntry, Machine
from mirrorlog.errors import DiskFull, MirrorlogError

logger = logging.getLogger(__name__)

JOURNAL_BYTES_MAX: Final = 4 * 1024 * 1024
"""A snapshot is due when the journal is longer."""
REFUSED_S: Final = 0.2
"""After a bundle that could not be written, it is tried again."""
SNAPSHOT_REFUSED_S: Final = 5.0
"""After a snapshot that could not: its journal grows meanwhile."""
LATE_S: Final = 0.02
"""A timer may be so late without a reason."""
_TURNS_TO_READ: Final = 2
"""A turn of the loop may come to what waits already before it looks at its sockets."""


class Watcher(Protocol):
    """Who wants to know. Called on the loop, between two bundles: it must not wait."""

    def applied(self, step: AppliedEntry) -> None:
        """One more entry."""

    def restored(self) -> None:
        """The state is another one, further on."""

    def read_ready(self, token: Hashable, index: int | None) -> None:
        """See `raft.messages.ReadReady`; everything up to `index` is applied."""


class RaftDriver:
    """`send(message)`: towards its receiver, or away; `failed`: called once, then nothing more happens here."""

    def __init__(
        self,
        raft: Raft,
        store: RaftStore,
        machine: Machine,
        *,
        send: Callable[[AnyMessage], None],
        watcher: Watcher,
        helper: Executor,
        failed: Callable[[MirrorlogError], None],
    ) -> None:
        self.raft = raft
        self.machine = machine
        self._store = store
        self._send = send
        self._watcher = watcher
        self._helper = helper
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._excused = False
        self._snapshot_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())
        self.wake()

    async def stop(self) -> None:
        """What is being stored ends first. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.machine.give_up()
        await self._loop.run_in_executor(self._helper, self._store.close)

    def receive(self, message: AnyMessage) -> None:
        """A message came for this member."""
        self.raft.step(message, self._loop.time())
        self.wake()

    def wake(self) -> None:
        """Something was asked of the core: see what is to be done."""
        self._wake.set()

    @property
    def _is_late(self) -> bool:
        """Whether this loop stood still beyond the time when the member wanted to be asked. Then what the others said
        meanwhile lies unread in sockets. It is read first: else a follower would take its leader for gone, and a leader
        its majority."""
        return self._loop.time() - self.raft.next_deadline > LATE_S

    async def _hear_first(self) -> None:
        """Once: who is always late is not excused for ever."""
        for _ in range(_TURNS_TO_READ):
            await asyncio.sleep(0)
        self._excused = self._is_late and not self._excused
        if self._excused:
            self.raft.excuse(self._loop.time())

    async def _run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                if self._is_late:
                    await self._hear_first()
                else:
                    self._excused = False
                self.raft.tick(self._loop.time())
                while not (effects := self.raft.take(self._loop.time())).nothing:
                    await self._do(effects)
                self._plan()
        except MirrorlogError as error:
            self._failed(error)
        except Exception as error:
            logger.exception("raft_failed member=%s", self.raft.own)
            self._failed(MirrorlogError(f"internal error: {type(error).__name__}: {error}"))

    async def _do(self, effects: Effects) -> None:
        if effects.must_sync:
            await self._save(effects)
        for message in effects.messages:
            self._send(message)
        if effects.snapshot is not None:
            self.machine.restore(effects.snapshot)
            self._watcher.restored()
        for step in self.machine.apply(effects.committed):
            self._watcher.applied(step)
        for read in effects.reads:
            self._watcher.read_ready(read.token, read.index)
        self.raft.done()
        if self._store.journal_bytes > JOURNAL_BYTES_MAX and self._loop.time() >= self._snapshot_at:
            await self._snapshot()

    async def _save(self, effects: Effects) -> None:
        told = ""
        while True:
            try:
                await self._helped(partial(self._store.save, effects))
            except DiskFull as error:
                if self._store.doubtful:
                    raise
                if told != str(error):
                    told = str(error)
                    logger.error("raft_waits member=%s reason=%r", self.raft.own, told)
                await asyncio.sleep(REFUSED_S)
            else:
                return

    async def _helped(self, work: Callable[[], None]) -> None:
        # Shielded: a stop in the middle must not leave a store behind that somebody still writes to.
        await asyncio.shield(self._loop.run_in_executor(self._helper, work))

    async def _snapshot(self) -> None:
        machine, log = self.machine, self.raft.log
        if machine.index <= log.snapshot.index:
            return
        members = log.members_at(machine.index)
        snapshot = Snapshot(machine.index, machine.term, members, machine.snapshot_state())
        entries = self.raft.saved_entries(snapshot.index)
        try:
            await self._helped(partial(self._store.replace, snapshot, entries))
        except DiskFull as error:
            if self._store.doubtful:
                raise
            logger.error("raft_snapshot_refused member=%s reason=%r", self.raft.own, str(error))
            self._snapshot_at = self._loop.time() + SNAPSHOT_REFUSED_S
            return
        self.raft.compact(snapshot)

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self.raft.next_deadline, self.wake)
