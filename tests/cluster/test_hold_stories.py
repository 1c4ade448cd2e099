"""A landing's hold through failovers and the loss of power: whole clusters of real nodes, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mirrorlog.client import Client
from mirrorlog.errors import HoldTaken
from mirrorlog.wire.messages.queues import HoldInfo
from sim.world import World
from tests.cluster.test_group_stories import SEEDS, Group, publishing, tell

LEASE_S = 30.0


def holding(
    queue_offset: int, holder: str = "x", *, lease_s: float = LEASE_S, epoch: int = 0
) -> Callable[[Client], Awaitable[HoldInfo | HoldTaken]]:
    """A landing registers or renews; what it is told."""

    async def hold(client: Client) -> HoldInfo | HoldTaken:
        try:
            return await client.admin.set_hold(
                "q", "lake", holder=holder, queue_offset=queue_offset, lease_ms=int(lease_s * 1000), epoch=epoch
            )
        except HoldTaken as taken:
            return taken

    return hold


async def listed(client: Client) -> HoldInfo:
    (hold,) = await client.admin.holds("q")
    return hold


@pytest.mark.long_after(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hold_is_there_after_its_master_with_a_whole_lease(seed: int) -> None:
    """Goal: a failover takes nothing from a landing, and gives nobody else its place. Method: register; with most of
    the lease over the master is killed; the next one has the hold, its lease begins anew, another holder waits for all
    of it, and then has the next epoch."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(publishing([b"%d" % number for number in range(30)]))
        await asyncio.sleep(1)
        given = await group.do(holding(10))
        assert isinstance(given, HoldInfo)
        assert (given.epoch, given.queue_offset, given.next) == (1, 10, 30)
        await asyncio.sleep(LEASE_S - 5)
        former = group.master
        group.nodes[former].machine.kill()
        await group.master_but(former)
        hold = await group.do(listed)
        began = world.now
        assert (hold.holder, hold.epoch, hold.queue_offset, hold.ended) == ("x", 1, 10, "")
        assert hold.left_ms > (LEASE_S - 5) * 1000
        assert isinstance(await group.do(holding(0, "y")), HoldTaken)
        other: HoldInfo | HoldTaken = await group.do(holding(0, "y"))
        while isinstance(other, HoldTaken):
            await asyncio.sleep(1)
            other = await group.do(holding(0, "y"))
        assert LEASE_S - 6 < world.now - began < LEASE_S + 10
        assert (other.epoch, other.queue_offset) == (2, 0)
        assert isinstance(await group.do(holding(20, epoch=1)), HoldTaken)

    tell(story, seed)


@pytest.mark.long
def test_renewals_that_write_nothing_keep_a_hold() -> None:
    """Goal: an idle log does not grow for a landing that waits. Method: renew, unchanged, three times as long as the
    lease; the log ends where it did, and the hold is there; without renewals it is ended, once; a renewal that comes
    then is told so and revives nothing, a registration has the next epoch."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(publishing([b"%d" % number for number in range(3)]))
        await group.do(holding(3))
        await group.caught_up()
        end = group.end(group.master)
        for _ in range(9):
            await asyncio.sleep(LEASE_S / 3)
            assert isinstance(await group.do(holding(3, epoch=1)), HoldInfo)
        assert group.end(group.master) == end
        await asyncio.sleep(LEASE_S + 2)
        hold = await group.do(listed)
        assert (hold.ended, hold.left_ms, hold.holder) == ("expired", 0, "x")
        await group.caught_up()
        ended = group.end(group.master)
        assert ended > end
        await asyncio.sleep(2 * LEASE_S)
        assert group.end(group.master) == ended
        late = await group.do(holding(3, epoch=1))
        assert isinstance(late, HoldTaken)
        assert late.details["ended"] == "expired"
        assert group.end(group.master) == ended
        again = await group.do(holding(3))
        assert isinstance(again, HoldInfo)
        assert again.epoch == 2

    tell(story, 0)


def test_a_hold_outlives_the_power_of_all() -> None:
    """Goal: what was confirmed, and flushed, is there. Method: register, let it be flushed, take all power at once."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(publishing([b"%d" % number for number in range(30)]))
        await group.do(holding(10))
        await asyncio.sleep(5)
        for node in group.nodes.values():
            node.machine.lose_power()
        await group.formed(within_s=60)
        hold = await group.do(listed)
        assert (hold.holder, hold.epoch, hold.queue_offset, hold.ended) == ("x", 1, 10, "")

    tell(story, 0)
