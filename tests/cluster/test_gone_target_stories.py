"""Dead letters for queues that go with their node: whole clusters of real nodes, in virtual time. What was on its way
to one that is gone ends, and what the same queue sends to others goes on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mirrorlog.broker.session.dead_letter_transport import DeadLetterLinks
from mirrorlog.client import Client
from sim.world import World
from tests.cluster.test_dead_letter_stories import insist, mastered, reading
from tests.cluster.test_group_stories import Group, tell


def declaring(transient: dict[str, Any]) -> Any:
    async def declare(client: Client) -> None:
        await insist(client, "gone", transient)

    return declare


async def rest(client: Client) -> None:
    """A queue whose records go, by their keys, to the one that will be gone, and to one that stays."""
    await insist(client, "stays", {"flush": "disk", "copies": 3})
    await insist(client, "q", {"x-dead-letter-exchange": ""})


async def rejected(client: Client) -> None:
    """One record for each, in this order."""
    async with client.producer("q", batch_bytes=1) as producer:
        for name in ("gone", "stays"):
            await producer.send(name.encode(), key=name.encode())
    async with client.subscribe("q", prefetch=1) as subscription:
        for _ in range(2):
            await (await anext(subscription)).nack(requeue=False)


@pytest.mark.parametrize("forgotten", [False, True], ids=["down", "forgotten"])
def test_what_was_on_its_way_to_a_queue_that_went_with_its_node_keeps_nothing_back(
    forgotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a piece that was addressed to a queue whose node never comes back ends. Method: nothing is handed over
    until the node of a queue that is not durable was killed, and forgotten perhaps; then what leaves for another queue
    arrives, and nothing leaves any more."""
    hand_over = DeadLetterLinks.hand_over
    dead = asyncio.Event()

    async def held(self: DeadLetterLinks, log_id: str, batch: bytes, *, name: str = "") -> None:
        await dead.wait()
        await hand_over(self, log_id, batch, name=name)

    async def story(world: World) -> None:
        monkeypatch.setattr(DeadLetterLinks, "hand_over", held)
        group = Group(world)
        await group.formed()
        await group.do(rest)
        there = mastered(group, "q")
        assert there is not None
        node, replica = there[0], there[1].replica
        victim = next(name for name in group.nodes if name != node)
        await group.do(declaring({"durable": False}), to=[victim])
        await group.do(rejected)
        queue_id = replica.queues.find("q").queue_id
        forwardings = replica.forwardings
        await world.until(lambda: forwardings.of(queue_id).piece is not None, within_s=20, otherwise="no piece")
        group.nodes[victim].machine.kill()
        if forgotten:
            left = [name for name in group.nodes if name != victim]
            await group.do(lambda client: client.admin.forget_node(victim, force=True), to=left)
        dead.set()
        assert await group.do(reading("stays", 1)) == [b"stays"]
        await world.until(lambda: queue_id not in forwardings.leaving, within_s=60, otherwise="something still leaves")

    tell(story, f"gone {forgotten}")
