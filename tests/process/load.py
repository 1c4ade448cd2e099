"""A producer that never gives up: numbered records in a window of batches, each retried under its sequence.

It is the honest client in the middle of a fault. It follows the master: to where a refusal sends it, else to one node
after the other. What it was told is kept, so a test can hold the nodes to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from mirrorlog.errors import (
    ConnectionLost,
    LogUnavailable,
    MasterChanged,
    MirrorlogError,
    NoSuchQueue,
    NotMaster,
    OutcomeUnknown,
    OutOfSequence,
    Refused,
    RequestTimeout,
)
from mirrorlog.wire.frames import CONFIRM_DUPLICATE, Confirm
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.raw import Raw, batch_of

GIVE_UP_SECONDS = 60.0
# NO_SUCH_QUEUE: a node that has just started, or that has not followed yet, does not know what the master knows.
_ELSEWHERE = (NotMaster, MasterChanged, NoSuchQueue, LogUnavailable)


class _Sent(NamedTuple):
    sequence: int
    batch: bytearray


class Load:
    """Runs in a thread from `with` on; `stop` lets it finish what it began. `servers`: the first one is begun with;
    one that does not answer within `answer_s` (s) is left.

    `outcomes`: every refusal's code; `lost`: how often a connection ended; `longest_s`: the longest time between two
    confirms of different bursts.
    """

    def __init__(
        self, servers: Sequence[str], queue: QueueInfo, *, producer_id: int = 7, batch_records: int = 20,
        value_bytes: int = 200, window: int = 8, pace_s: float = 0.0, deadline_ms: int = 30_000, answer_s: float = 5.0,
    ) -> None:  # fmt: skip
        self.servers = list(servers)
        self.address = self.servers[0]
        self.queue = queue
        self.confirms: dict[int, Confirm] = {}
        self.outcomes: list[str] = []
        self.lost = 0
        self.longest_s = 0.0
        self.error: BaseException | None = None
        self._producer_id = producer_id
        self._batch_records = batch_records
        self._padding = b"." * value_bytes
        self._window = window
        self._pace_s = pace_s
        self._deadline_ms = deadline_ms
        self._answer_s = answer_s
        self._sequence = 0
        self._waiting: list[_Sent] = []
        self._stop = threading.Event()
        self._confirmed_at = 0.0
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(GIVE_UP_SECONDS)

    @property
    def records(self) -> int:
        """Records given a sequence."""
        return self._sequence

    @property
    def confirmed(self) -> int:
        """Batches confirmed."""
        return len(self.confirms)

    def stop(self) -> None:
        """No new batches; wait until every one that was begun is confirmed. Raises what ended it early."""
        self._stop.set()
        self._thread.join(GIVE_UP_SECONDS)
        assert not self._thread.is_alive(), "the producer hangs"
        if self.error is not None:
            raise self.error
        assert not self._waiting

    def value(self, number: int) -> bytes:
        """What record `number` holds."""
        return b"%d %s" % (number, self._padding)

    def check(self, values: Sequence[bytes]) -> None:
        """All records are there once and in order, and each confirm told the truth about its place."""
        assert len(values) == self.records
        wrong = [number for number, value in enumerate(values) if value != self.value(number)]
        assert not wrong, f"records {wrong[:5]} are not what was sent"
        misplaced = [sequence for sequence, confirm in self.confirms.items() if confirm.base_queue_offset != sequence]
        assert not misplaced

    # --- the thread ---

    def _run(self) -> None:
        try:
            last_progress = time.monotonic()
            while not (self._stop.is_set() and not self._waiting):
                before = self.confirmed
                self._session()
                if self.confirmed > before:
                    last_progress = time.monotonic()
                if time.monotonic() - last_progress > GIVE_UP_SECONDS / 2:
                    raise AssertionError(
                        f"no confirm for {GIVE_UP_SECONDS / 2:g} s, last outcomes {self.outcomes[-5:]}"
                    )
                # Not a wait for a condition: a client's pause before it tries a node again that has just refused it.
                time.sleep(0.02)
        except BaseException as error:
            self.error = error

    def _session(self) -> None:
        """Publish over one connection until it breaks or something is refused."""
        try:
            with Raw(self.address, timeout=self._answer_s) as raw:
                while self._burst(raw):
                    if self._stop.is_set() and not self._waiting:
                        return
                    if self._pace_s:
                        time.sleep(self._pace_s)
        except (ConnectionLost, RequestTimeout):
            self.lost += 1
            self._go_to(None)

    def _go_to(self, address: str | None) -> None:
        """To the master, as far as it is known, else to the next node."""
        known = address if address in self.servers else None
        self.address = known or self.servers[(self.servers.index(self.address) + 1) % len(self.servers)]

    def _burst(self, raw: Raw) -> bool:
        """Send what waits, fill the window, take all answers; False when anything was refused."""
        while len(self._waiting) < self._window and not self._stop.is_set():
            self._waiting.append(self._next())
        numbers = [raw.start_produce(sent.batch, deadline_ms=self._deadline_ms) for sent in self._waiting]
        still: list[_Sent] = []
        elsewhere: MirrorlogError | None = None
        for index, (number, sent) in enumerate(zip(numbers, self._waiting, strict=True)):
            try:
                self.confirms[sent.sequence] = raw.confirm(number)
            except (Refused, OutcomeUnknown, OutOfSequence, NoSuchQueue) as error:
                self.outcomes.append(error.code)
                still.append(sent)
                elsewhere = error if isinstance(error, _ELSEWHERE) else elsewhere
            except MirrorlogError:
                self._waiting = [*still, *self._waiting[index:]]
                raise
        if len(still) < len(self._waiting):
            self._note_confirm()
        self._waiting = still
        if elsewhere is not None:
            self._go_to(elsewhere.details.get("master"))
        return not still

    def _note_confirm(self) -> None:
        now = time.monotonic()
        if self._confirmed_at:
            self.longest_s = max(self.longest_s, now - self._confirmed_at)
        self._confirmed_at = now

    def _next(self) -> _Sent:
        first = self._sequence
        self._sequence += self._batch_records
        values = [self.value(number) for number in range(first, self._sequence)]
        return _Sent(first, batch_of(values, self.queue, producer_id=self._producer_id, sequence=first))


def duplicates(load: Load) -> int:
    """How many confirms were answers to a retry of what had landed."""
    return sum(bool(confirm.flags & CONFIRM_DUPLICATE) for confirm in load.confirms.values())
