"""Steady publishing of numbered records through the public client, and readers that watch what comes of them.

All of it runs in a thread of its own, so that what is done to the nodes may block. What was told to the producer and
what the readers saw is kept, to hold the nodes to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple, Self

from mirrorlog.client import Client
from mirrorlog.client.producer.deliveries import Delivery
from mirrorlog.errors import MirrorlogError, OutcomeUnknown, Overloaded
from tests.process.clusters import eventually

_TICK_S: Final = 0.005
_READER_PAUSE_S: Final = 0.1
_END_S: Final = 60.0


class Confirmed(NamedTuple):
    """`at`: seconds of the monotonic clock."""

    at: float
    number: int
    queue_offset: int
    epoch: int


class Reader:
    """What one consumer saw. `numbers`: by queue offset; `wrong`: what must not be; `interruptions`: by code."""

    def __init__(self, read_from: str) -> None:
        self.read_from = read_from
        self.numbers: list[int] = []
        self.wrong: list[str] = []
        self.interruptions: Counter[str] = Counter()

    def saw(self, queue_offset: int, number: int) -> None:
        """The next record: offsets are dense, numbers rise."""
        if queue_offset != len(self.numbers):
            self.wrong.append(f"queue offset {queue_offset} came where {len(self.numbers)} was expected")
        elif self.numbers and number <= self.numbers[-1]:
            self.wrong.append(f"record {number} came behind {self.numbers[-1]}, at queue offset {queue_offset}")
        self.numbers.append(number)


class Traffic:
    """From `with` on `rate` records a second, confirmed by all, whatever becomes of those before them.

    `confirms`: in the order of the records; `sent_at`: by number (s); `refused`, `unknown`: codes by number; `readers`:
    one that reads from the master and one that reads from mirrors.
    """

    def __init__(self, servers: Sequence[str], queue: str, *, rate: int = 2_000, value_bytes: int = 100) -> None:
        self.queue = queue
        self.sent_at: list[float] = []
        self.confirms: list[Confirmed] = []
        self.refused: dict[int, str] = {}
        self.unknown: dict[int, str] = {}
        self.readers = [Reader("master"), Reader("mirror")]
        self.error: BaseException | None = None
        self._servers = list(servers)
        self._rate = rate
        self._padding = b"." * value_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="traffic", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait(lambda: len(self.confirms) > 0, "the first confirm")
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_END_S)

    def stop(self) -> None:
        """No new records; wait until all have ended, and until the readers have seen what was confirmed. Raises what
        ended it early."""
        self._stop.set()
        self._thread.join(_END_S)
        assert not self._thread.is_alive(), "the producer hangs"
        if self.error is not None:
            raise self.error

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = _END_S) -> None:
        """Until `condition` holds. Raises RequestTimeout, or what ended the traffic."""

        def met() -> bool:
            if self.error is not None:
                raise self.error
            return condition()

        eventually(met, what, timeout=timeout)

    def wait_confirm(self, sent_after: float, *, epoch_above: int = 0, since: int, timeout: float) -> Confirmed:
        """The first confirm behind the `since` first ones of a record that was sent after `sent_after` (s), in an epoch
        above `epoch_above`. Raises as `wait`."""
        at = since
        found: Confirmed | None = None

        def came() -> bool:
            nonlocal at, found
            while at < len(self.confirms):
                each = self.confirms[at]
                if each.epoch > epoch_above and self.sent_at[each.number] > sent_after:
                    found = each
                    return True
                at += 1
            return False

        self.wait(came, "the next confirm", timeout)
        assert found is not None
        return found

    def longest_gap(self, since: int) -> float:
        """The longest time (s) between two confirms from the one before the `since`-th on, or since the last one."""
        times = [each.at for each in self.confirms[max(0, since - 1) :]] + [time.monotonic()]
        return max((after - before for before, after in pairwise(times)), default=0.0)

    def check(self, numbers: Sequence[int]) -> dict[str, int]:
        """What is wrong with the stored records, by queue offset: how many of each kind."""
        stored = set(numbers)
        return {
            "missing": sum(each.number not in stored for each in self.confirms),
            "duplicates": len(numbers) - len(stored),
            "out_of_order": sum(after < before for before, after in pairwise(numbers)),
            "misplaced": sum(numbers[each.queue_offset : each.queue_offset + 1] != [each.number]
                             for each in self.confirms),
            "refused_but_stored": sum(number in stored for number in self.refused),
            "seen_and_gone": sum(reader.numbers != list(numbers[: len(reader.numbers)]) for reader in self.readers),
            "unseen": sum(max(0, len(self.confirms) - len(reader.numbers)) for reader in self.readers),
            "wrong_reads": sum(len(reader.wrong) for reader in self.readers),
        }  # fmt: skip

    # --- the thread ---

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self.error = error

    async def _work(self) -> None:
        readers = [asyncio.create_task(self._read(reader)) for reader in self.readers]
        try:
            await self._publish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_S / 2):
                    while any(len(reader.numbers) < len(self.confirms) for reader in self.readers):  # noqa: ASYNC110
                        await asyncio.sleep(_TICK_S)
        finally:
            for task in readers:
                task.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _publish(self) -> None:
        async with Client(*self._servers) as client, client.producer(self.queue) as producer:
            under_way: asyncio.Queue[tuple[int, Delivery] | None] = asyncio.Queue()
            keeping = asyncio.create_task(self._keep(under_way))
            began = time.monotonic()
            while not self._stop.is_set():
                while len(self.sent_at) < (time.monotonic() - began) * self._rate:
                    number = len(self.sent_at)
                    try:
                        delivery = producer.send_nowait(b"%d %s" % (number, self._padding))
                    except Overloaded:
                        await producer.room()
                        continue
                    self.sent_at.append(time.monotonic())
                    under_way.put_nowait((number, delivery))
                await asyncio.sleep(_TICK_S)
            under_way.put_nowait(None)
            await keeping

    async def _keep(self, under_way: asyncio.Queue[tuple[int, Delivery] | None]) -> None:
        while (each := await under_way.get()) is not None:
            number, delivery = each
            try:
                receipt = await delivery
            except OutcomeUnknown as error:
                self.unknown[number] = error.code
            except MirrorlogError as error:
                self.refused[number] = error.code
            else:
                self.confirms.append(Confirmed(time.monotonic(), number, receipt.queue_offset, receipt.epoch))

    async def _read(self, reader: Reader) -> None:
        async with Client(*self._servers) as client:
            while True:
                try:
                    start = len(reader.numbers)
                    async with client.consumer(self.queue, start=start, read_from=reader.read_from) as consumer:
                        async for record in consumer:
                            reader.saw(record.queue_offset, number_of(record.value or b""))
                except MirrorlogError as error:
                    reader.interruptions[error.code] += 1
                    await asyncio.sleep(_READER_PAUSE_S)


def number_of(value: bytes) -> int:
    """A record's."""
    return int(value.partition(b" ")[0])
