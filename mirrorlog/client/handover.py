"""Records on their way from callers' threads to a producer's loop: in bunches, so that one wake-up serves many.

A caller checks its record and puts it into the last bunch; only who finds the loop asleep wakes it. The loop takes
bunch after bunch and lets other work go on between two. What is handed over and not taken is limited: then callers
wait, and since the loop takes no more than the producer's window allows, they wait for confirms in the end.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from mirrorlog.client.deliveries import Delivery
from mirrorlog.client.loop_thread import LoopThread
from mirrorlog.client.producer import Producer
from mirrorlog.client.receipts import Receipt
from mirrorlog.commitlog.body import Header
from mirrorlog.errors import MirrorlogError, Overloaded

Sent = tuple[bytes | None, bytes | None, Sequence[Header], int | None]
"""Value, key, headers, event time in µs UTC: checked, as a producer takes them."""

# Half a millisecond of the loop's time.
_BUNCH_RECORDS_MAX: Final = 512
_HANDED_BYTES_MAX: Final = 4 * 1024 * 1024


class Bunch:
    """Records handed over one after another, and what became of them once `taken`: one outcome each, in order."""

    __slots__ = ("outcomes", "records", "size_bytes", "taken")

    def __init__(self) -> None:
        self.records: list[Sent] = []
        self.size_bytes = 0
        self.outcomes: list[Delivery | MirrorlogError] = []
        self.taken = asyncio.Event()

    def has_ended(self, index: int) -> bool:
        if index >= len(self.outcomes):
            return False
        outcome = self.outcomes[index]
        return isinstance(outcome, MirrorlogError) or outcome.done()

    def outcome(self, index: int) -> Receipt | None:
        """The receipt of a record that has ended, None before. Raises what it ended with."""
        if index >= len(self.outcomes):
            return None
        outcome = self.outcomes[index]
        if isinstance(outcome, MirrorlogError):
            raise type(outcome)(outcome.message, **outcome.details)
        return outcome.result() if outcome.done() else None

    async def ended(self, index: int) -> Receipt:
        """Wait for it, on the loop."""
        await self.taken.wait()
        outcome = self.outcomes[index]
        if isinstance(outcome, Delivery):
            return await outcome
        raise type(outcome)(outcome.message, **outcome.details)


class Handover:
    """To one producer. `put` is for any thread; the rest runs on the loop."""

    def __init__(self, producer: Producer, thread: LoopThread, *, patience_s: float) -> None:
        """`patience_s`: how long `put` waits for room."""
        self._producer = producer
        self._thread = thread
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._bunches: deque[Bunch] = deque()
        self._handed_bytes = 0
        self._awake = False
        self._task: asyncio.Task[None] | None = None
        self._taking: Bunch | None = None
        self._refused: MirrorlogError | None = None

    def put(self, record: Sent, size: int) -> tuple[Bunch, int]:
        """Hand over a record of `size` bytes: its bunch and its place there. Raises Overloaded when no room comes."""
        with self._lock:
            if self._handed_bytes >= _HANDED_BYTES_MAX:
                self._wait_for_room()
            bunch = self._bunches[-1] if self._bunches else None
            if bunch is None or len(bunch.records) >= _BUNCH_RECORDS_MAX:
                bunch = Bunch()
                self._bunches.append(bunch)
            bunch.records.append(record)
            bunch.size_bytes += size
            self._handed_bytes += size
            if not self._awake:
                # In this order: whoever is interrupted between the two wakes it once too often.
                self._thread.call_soon(self._start)
                self._awake = True
            return bunch, len(bunch.records) - 1

    async def taken(self) -> None:
        """Wait until the producer has everything that was put before."""
        with self._lock:
            last = self._bunches[-1] if self._bunches else self._taking
        if last is not None:
            await last.taken.wait()

    def take_refused(self) -> MirrorlogError | None:
        """The first error of a record that the producer did not take, since the last call."""
        refused, self._refused = self._refused, None
        return refused

    def _wait_for_room(self) -> None:
        if not self._room.wait_for(lambda: self._handed_bytes < _HANDED_BYTES_MAX, self._patience_s):
            raise Overloaded(
                f"no room in the window within {self._patience_s:g} s (window_bytes)", limit="window_bytes"
            )

    # --- on the loop ---

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._take())

    async def _take(self) -> None:
        while (bunch := self._next()) is not None:
            try:
                await self._send(bunch)
            finally:
                bunch.taken.set()
                with self._lock:
                    self._handed_bytes -= bunch.size_bytes
                    self._room.notify_all()
            await asyncio.sleep(0)

    def _next(self) -> Bunch | None:
        with self._lock:
            if not self._bunches:
                self._awake = False
                self._task = self._taking = None
                return None
            self._taking = self._bunches.popleft()
            return self._taking

    async def _send(self, bunch: Bunch) -> None:
        send, outcomes = self._producer.send_nowait, bunch.outcomes
        for value, key, headers, timestamp_us in bunch.records:
            while True:
                try:
                    outcomes.append(send(value, key=key, headers=headers or None, timestamp=timestamp_us))
                except Overloaded:
                    await self._producer.room()
                    continue
                except MirrorlogError as error:
                    outcomes.append(error)
                    self._refused = self._refused or error
                break
        bunch.records = []
