"""Two losses that were declared one after the other: what groups know that stood before both. Whole clusters of real
nodes, with real clients, in virtual time."""

from __future__ import annotations

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import PositionLost
from sim.world import World
from tests.cluster.test_group_stories import SEEDS, Group, on_disk, publishing, tell
from tests.cluster.test_queue_stories import QUEUE, Book, Taker, ledger

RECORDS = 60
"""In each part, of 10 KiB: more than a segment."""


def values(part: int) -> list[bytes]:
    return [b"%d %d" % (part, number) + b"." * 10_240 for number in range(RECORDS)]


async def lose_power(group: Group) -> None:
    """All at once; then they start, and a loss is declared."""
    for node in group.nodes.values():
        node.machine.lose_power()
    await group.formed(within_s=60)


async def read_all(client: Client) -> tuple[list[int], list[tuple[int, int]]]:
    """The queue offsets of all records, and where a reader was told of a loss, and to go on."""
    found, told = list[int](), list[tuple[int, int]]()
    async with client.consumer(QUEUE, start="earliest") as consumer:
        while True:
            try:
                records = await consumer.read(timeout_ms=500)
            except PositionLost as lost:
                told.append((consumer.position.queue_offset, lost.details["go_on_at"]))
                await consumer.seek(lost.details["go_on_at"])
                continue
            if not records:
                return found, told
            found += [record.queue_offset for record in records]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_that_acked_before_two_losses_goes_on_behind_both(seed: int) -> None:
    """Goal: no ack that was confirmed and flushed comes back, no record is passed over, and no gap is gone through.
    Method: a memory log of several segments; two groups acknowledge some records, which is on all disks; all machines
    lose their power, a loss is declared, more is published; and so once more. Then one of the groups is reset to the
    begin, which undoes what it had settled of both gaps. Each takes on to the end: the one what it had not
    acknowledged, the other all, and nothing that is not there; a reader is told of both losses."""

    async def story(world: World) -> None:
        group, books = Group(world), {"": Book(), "anew": Book()}
        await group.formed()
        await group.do(publishing(values(0)))
        for name, book in books.items():
            taker = Taker(group, book, f"first {name}", of=name, prefetch=20, acks=lambda offset: offset % 3 == 0)
            await taker.given(20)
            await world.until(lambda book=book: len(book.of("acked")) >= 7, within_s=20, otherwise="acks go unanswered")
            await taker.stop()
        await on_disk(group)
        acked = set(books[""].offsets("acked"))
        for part in (1, 2):
            await lose_power(group)
            await group.do(publishing(values(part)))
            await on_disk(group)
        there, told = await group.do(read_all)
        assert len(there) == 3 * RECORDS
        assert len(told) == 2
        await group.do(lambda client: client.admin.reset_groups(QUEUE, ["anew"], to="earliest"))
        begun = world.now
        for name, book in books.items():
            book.notes = [note for note in book.notes if note.what == "acked" and not name]
            taker = Taker(group, book, f"second {name}", of=name, prefetch=5)
            await world.until(
                lambda name=name: ledger(group, group.master, name).floor > there[-1],
                within_s=30,
                otherwise=f"group {name!r} does not come to the end",
            )
            await taker.stop()
            book.check()
            given = book.offsets("given")
            assert given == [offset for offset in there if name or offset not in acked]
        assert world.now - begun < 30

    tell(story, seed)
