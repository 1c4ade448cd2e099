"""A buffer for records on their way from callers' threads to a producer's loop: in bunches, so that one wake-up serves
many.

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

from mirrorlog.client.producer.batch import Receipt
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.sync.loop_thread import LoopThread
from mirrorlog.commitlog.format.attributes import Attributes
from mirrorlog.commitlog.format.body import Header
from mirrorlog.errors import Closed, MirrorlogError, OutcomeUnknown, Overloaded, Refused

Sent = tuple[bytes | None, bytes | None, Sequence[Header], int | None, Attributes | None]
"""Value, key, headers, event time in µs UTC, attributes: checked, as a producer takes them."""

_PLAIN: Final[dict[str, int]] = {}

# Half a millisecond of the loop's time.
_BUNCH_RECORDS_MAX: Final = 512
_HANDED_BYTES_MAX: Final = 4 * 1024 * 1024
# Of the refused records that nobody has asked for, the last ones are kept for a flush to tell.
_REFUSED_MAX: Final = 1000


class Bunch:
    """Records handed over one after another, and what became of them once `taken`: one outcome each, in order."""

    __slots__ = ("heard", "outcomes", "records", "size_bytes", "taken")

    def __init__(self) -> None:
        self.records: list[Sent] = []
        self.size_bytes = 0
        self.outcomes: list[Delivery | MirrorlogError] = []
        self.taken = asyncio.Event()
        # The refused ones among them that somebody was told of.
        self.heard: set[int] = set()

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
            raise self.told(index, outcome)
        return outcome.result() if outcome.done() else None

    async def ended(self, index: int, *, patience_s: float) -> Receipt:
        """Wait for it, on the loop: until it is taken, and then until it has ended, which its deadline sees to.

        Raises what it ended with; OutcomeUnknown if it has not after `patience_s`.
        """
        await self.taken.wait()
        outcome = self.outcomes[index]
        if isinstance(outcome, MirrorlogError):
            raise self.told(index, outcome)
        try:
            async with asyncio.timeout(patience_s):
                return await outcome
        except TimeoutError:
            raise OutcomeUnknown(
                f"the record has not ended {patience_s:g} s after it was taken; it may be stored"
            ) from None

    def told(self, index: int, refused: MirrorlogError) -> MirrorlogError:
        """The error to raise for a record that was refused; the caller is told of it."""
        self.heard.add(index)
        return type(refused)(refused.message, **refused.details)

    def fail(self, error: Exception) -> None:
        """End those without an outcome: of the first of them nobody knows how far it came."""
        missing = len(self.records) - len(self.outcomes)
        if missing > 0:
            why = f"the client failed: {type(error).__name__}: {error}"
            self.outcomes.append(OutcomeUnknown(f"the record may be stored: {why}"))
            self.outcomes += [Refused(f"the record was not sent, nothing was stored: {why}")] * (missing - 1)


class RecordBuffer:
    """Buffers the records of one producer. `put` is for any thread; the rest runs on the loop."""

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
        self._refused: deque[tuple[Bunch, int]] = deque(maxlen=_REFUSED_MAX)

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

    @property
    def waiting(self) -> int:
        """Records that the producer has not been given yet; for a finalizer, which may take no lock."""
        taking = self._taking
        bunches = [*self._bunches, *([] if taking is None else [taking])]
        return sum(max(0, len(bunch.records) - len(bunch.outcomes)) for bunch in bunches)

    async def taken(self) -> None:
        """Wait until the producer has everything that was put before."""
        with self._lock:
            last = self._bunches[-1] if self._bunches else self._taking
        if last is not None:
            self._start()  # who put it may have been interrupted before the wake-up
            await last.taken.wait()

    def take_refused(self) -> MirrorlogError | None:
        """The first error, since the last call, of a record that the producer did not take and nobody has heard of."""
        refused, self._refused = self._refused, deque(maxlen=_REFUSED_MAX)
        for bunch, index in refused:
            outcome = bunch.outcomes[index]
            if index not in bunch.heard and isinstance(outcome, MirrorlogError):
                return bunch.told(index, outcome)
        return None

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
        try:
            while (bunch := self._next()) is not None:
                try:
                    await self._send(bunch)
                except Exception as error:
                    # No memory, or a mistake of ours: these records end here, those behind them go on.
                    bunch.fail(error)
                finally:
                    self._took(bunch)
                await asyncio.sleep(0)
        finally:
            # However it ended, whoever comes next can start it again.
            self._task = self._taking = None

    def _next(self) -> Bunch | None:
        with self._lock:
            if not self._bunches:
                self._awake = False
                return None
            self._taking = self._bunches.popleft()
            return self._taking

    def _took(self, bunch: Bunch) -> None:
        refused = (index for index, outcome in enumerate(bunch.outcomes) if isinstance(outcome, MirrorlogError))
        self._refused.extend((bunch, index) for index in refused)
        bunch.records = []
        bunch.taken.set()
        with self._lock:
            self._handed_bytes -= bunch.size_bytes
            self._room.notify_all()

    async def _send(self, bunch: Bunch) -> None:
        send, outcomes = self._producer.send_nowait, bunch.outcomes
        for value, key, headers, timestamp_us, attributes in bunch.records:
            more = _PLAIN if attributes is None else attributes._asdict()
            while True:
                try:
                    outcomes.append(send(value, key=key, headers=headers or None, timestamp=timestamp_us, **more))
                except Overloaded:
                    await self._producer.room()
                    continue
                except Closed as error:  # the producer is closed
                    outcomes.append(Refused(f"{error.message} before this was sent; nothing was stored"))
                except MirrorlogError as error:
                    outcomes.append(error)
                break
