"""What several settlements hear that came in one turn of the loop, when a part of them cannot be logged."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from mirrorlog.errors import DiskFull, MirrorlogError, OutcomeUnknown
from mirrorlog.wire.frames import How
from tests.broker.test_deliverer import Group, group, run
from tests.ha.nodes import until


class Disk:
    """Refuses the appends of settlements that are numbered so, from 1."""

    def __init__(self, g: Group, *refused: int) -> None:
        self._publisher = g.deliverer()._publisher
        self._append = self._publisher.append_settlement
        self._refused = refused
        self.appends = 0
        self._publisher.append_settlement = self._take  # type: ignore[method-assign]

    def _take(self, batch: bytearray, changes: Any = None) -> int:
        self.appends += 1
        if self.appends in self._refused:
            raise DiskFull("the disk is full")
        return self._append(batch, changes)


def test_who_is_in_a_batch_that_is_refused_hears_of_it_alone(tmp_path: Path) -> None:
    """Goal: an ack is not refused for what others said, and what was logged is told as logged. Method: 1,000 returns
    with another delay each come at once, which are more than one batch takes; the disk is full for the second batch.
    Those of the first and the last one are answered and wait; those of the second are refused, still in hand, and
    settled when told again; nobody's return counts twice."""

    async def story() -> None:
        async with group(tmp_path, limits={"max_batch_bytes": 64 * 1024}) as g:
            await g.publish(0, 1000)
            taker = await g.taker(prefetch_records=1000)
            await taker.has(1000)
            disk = Disk(g, 2)
            told = await asyncio.gather(
                *(taker.settle(at, at + 1, how=How.RETURN, delay_ms=60_000 + at) for at in range(1000)),
                return_exceptions=True,
            )
            refused = [at for at, each in enumerate(told) if isinstance(each, MirrorlogError)]
            assert disk.appends > 2
            assert 0 < len(refused) < 600
            assert {type(told[at]) for at in refused} == {DiskFull}
            info = await g.info()
            assert (info.parked, info.out) == (1000 - len(refused), len(refused))
            await taker.settle(*[border for at in refused for border in (at, at + 1)])
            info = await g.info()
            assert (info.parked, info.out) == (1000 - len(refused), 0)

    run(story)


def test_of_one_settlement_that_is_logged_in_part_that_part_counts(tmp_path: Path) -> None:
    """Return every other of 10,000 records in one word, which takes two batches; the second one is refused: that is an
    unknown outcome. What was logged is out of the hand, once: it comes again with one attempt, the rest stays in
    hand and is acknowledged."""

    async def story() -> None:
        async with group(tmp_path) as g:
            await g.publish(0, 8000)
            taker = await g.taker(prefetch_records=8000)
            await taker.has(8000)
            await taker.settle(*[border for at in range(1, 8000, 2) for border in (at, at + 1)])
            disk = Disk(g, 2)
            even = [border for at in range(0, 8000, 2) for border in (at, at + 1)]
            try:
                await taker.settle(*even, how=How.RETURN)
                raise AssertionError("nothing was refused")
            except OutcomeUnknown:
                pass
            assert disk.appends >= 2
            await until(lambda: len(taker.offsets) > 8000)
            again = [grant for grant in taker.grants if grant.attempts]
            assert {grant.attempts for grant in again} == {1}
            assert (await g.info()).out == 4000
            await taker.settle(*even)
            assert (await g.info()).out == 0

    run(story)
