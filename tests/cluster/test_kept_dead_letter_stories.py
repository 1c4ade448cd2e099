"""Dead letters and redrives that must not be lost on their way, nor go on for ever: whole clusters, in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from mirrorlog.broker.dead_letters.addressing import PIECE_RECORDS
from mirrorlog.broker.dead_letters.reader import BatchLookup
from mirrorlog.broker.session.dead_letter_transport import DeadLetterLinks
from mirrorlog.client import Client
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import OWN_PRODUCERS
from mirrorlog.errors import BadRequest, LogUnavailable, MirrorlogError
from mirrorlog.queues.dead_letters.forwarding import producer_of
from mirrorlog.wire.frames import Confirm, Level
from sim import nodes
from sim.world import World
from tests.cluster.test_dead_letter_stories import Hands, alone, mastered, numbered
from tests.cluster.test_group_stories import AGAIN_S, Group, tell

BATCH_BYTES: Final = 64 * 1024
"""The largest batch that nodes of these stories take."""

HandOver = Callable[..., Awaitable[None]]


def taking(monkeypatch: pytest.MonkeyPatch, *, batch_bytes: int, record_bytes: int) -> None:
    """Nodes with other limits."""
    limits = {"max_batch_bytes": batch_bytes, "max_record_bytes": record_bytes}
    log = {**nodes.SMALL["log"], "segment_bytes": 4 * batch_bytes}
    monkeypatch.setattr(nodes, "SMALL", {**nodes.SMALL, "limits": limits, "log": log})


def on_the_way(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[HandOver], HandOver]) -> None:
    """Something happens to what is handed over."""
    monkeypatch.setattr(DeadLetterLinks, "hand_over", meddle(DeadLetterLinks.hand_over))


async def values_of(hands: Hands, queue: str) -> list[bytes]:
    """All that the queue ever had."""
    found: list[bytes] = []
    async with hands.client.consumer(queue, start="earliest") as consumer:
        while records := await consumer.read(1000, timeout_ms=1000):
            found += [record.value or b"" for record in records]
    return found


def target_away(monkeypatch: pytest.MonkeyPatch, *, landed: bool = False) -> list[bool]:
    """Every target is away until the list is cleared. `landed`: it takes what it is sent, and the answer is lost."""
    away = [True]

    def meddle(hand_over: HandOver) -> HandOver:
        async def shut(*args: Any, **more: Any) -> None:
            if landed or not away:
                await hand_over(*args, **more)
            if away:
                raise LogUnavailable("the target is away")

        return shut

    on_the_way(monkeypatch, meddle)
    return away


async def left(hands: Hands, queue: str) -> None:
    """Until nothing of it is on its way."""
    own = await hands.own(queue)
    while own.departing:
        await asyncio.sleep(AGAIN_S)
        own = await hands.own(queue)


async def waiting(hands: Hands, queue: str) -> None:
    """Until what is to leave it waits for something."""
    own = await hands.own(queue)
    while not own.departing_waits:
        await asyncio.sleep(0.01)
        own = await hands.own(queue)


def test_records_of_one_batch_with_keys_in_turn_all_come_to_their_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: what lies scattered in a large batch is read again, whole. Method: 2,000 records in one batch of 900 KB,
    with two keys in turn; 256 of them are rejected at once."""
    taking(monkeypatch, batch_bytes=1 << 20, record_bytes=32 * 1024)

    async def story(hands: Hands) -> None:
        for queue in ("x", "y"):
            await hands.declare(queue)
        await hands.declare("q", "")
        async with hands.client.producer("q") as producer:
            for number in range(2000):
                producer.send_nowait(b"%06d" % number + b"z" * 400, key=b"xy"[number % 2 :][:1])
            await producer.flush()
        await hands.reject_all("q", 256)
        await left(hands, "q")
        found = {queue: [int(value[:6]) for value in await values_of(hands, queue)] for queue in ("x", "y")}
        assert found == {"x": list(range(0, 256, 2)), "y": list(range(1, 256, 2))}

    alone(story, "keys in turn")


def test_what_is_redriven_to_a_queue_that_is_deleted_on_the_way_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    deleting: list[Client] = []

    def meddle(hand_over: HandOver) -> HandOver:
        async def deleted_before(*args: Any, **more: Any) -> None:
            while deleting:
                await deleting.pop().admin.delete_queue("p")
            await hand_over(*args, **more)

        return deleted_before

    on_the_way(monkeypatch, meddle)

    async def story(hands: Hands) -> None:
        await hands.declare("p")
        await hands.declare("dead")
        await hands.put("dead", b"1", b"2")
        deleting.append(hands.client)
        assert await hands.client.admin.redrive("dead", to="p") == 2
        await left(hands, "dead")
        own = await hands.own("dead")
        assert (own.ready, own.unsettled) == (2, 2)
        assert sorted(await hands.take("dead", 2)) == [(b"1", "", "", 0), (b"2", "", "", 0)]

    alone(story, "deleted on the way")


@pytest.mark.parametrize("landed", [False, True])
def test_a_record_that_is_freed_while_its_piece_waits_takes_no_other_one_with_it(
    monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    """Goal: what is there arrives, once. Method: 50 records wait for a target that does not answer, or that has them
    and whose answer is lost; then the first one is not there any more, and the target answers."""
    away = target_away(monkeypatch, landed=landed)
    batch_at = BatchLookup.at

    async def freed(self: BatchLookup, queue_id: int, at: int) -> Any:
        return await batch_at(self, queue_id, at) if away or at else None

    monkeypatch.setattr(BatchLookup, "at", freed)

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("q", "", "dead")
        for value in numbered(50):
            await hands.put("q", value)
        await hands.reject_all("q", 50)
        await waiting(hands, "q")
        away.clear()
        await left(hands, "q")
        assert await values_of(hands, "dead") == numbered(50)[0 if landed else 1 :]
        assert (await hands.own("q")).unsettled == 0
        await hands.put("q", b"next")
        await hands.reject("q", 1)
        await left(hands, "q")
        assert (await values_of(hands, "dead"))[-1] == b"next"

    alone(story, f"freed {landed}")


def test_no_client_can_use_the_numbers_of_letters() -> None:
    """Who may write to a queue for dead letters could otherwise send, before one comes, what has its numbers."""

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("q", "", "dead")
        source, target = await hands.client.find("q"), await hands.client.find("dead")
        producer = producer_of(source.info.incarnation, "", source.queue_id)
        assert producer >= OWN_PRODUCERS
        master = await hands.client.reach_master(target)
        batch = encode_batch([Record(b"mine")], queue_id=target.queue_id, producer_id=producer)
        answer: asyncio.Future[Confirm | MirrorlogError] = asyncio.get_running_loop().create_future()
        master.produce(batch, level=int(Level.ALL), durability=0, deadline_ms=5000, done=answer.set_result)
        assert isinstance(await answer, BadRequest)
        await hands.put("q", b"letter")
        await hands.reject("q", 1)
        assert [each.value for each in await hands.take("dead", 1)] == [b"letter"]

    alone(story, "whose numbers")


@pytest.mark.parametrize(
    ("value", "key"), [(b"v" * (BATCH_BYTES - 250), None), (b"v" * 1000, b"\0" * 10_000)], ids=["whole batch", "key"]
)
def test_a_rejected_record_that_its_own_headers_make_too_large_goes_with_fewer(
    monkeypatch: pytest.MonkeyPatch, value: bytes, key: bytes | None
) -> None:
    taking(monkeypatch, batch_bytes=BATCH_BYTES, record_bytes=BATCH_BYTES - 100)

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("q", "", "dead")
        await hands.put("q", b"small")
        await hands.put("q", value, key=key)
        await hands.put("q", b"too")
        await hands.reject_all("q", 3)
        await left(hands, "q")
        assert await values_of(hands, "dead") == [b"small", value, b"too"]

    alone(story, "too large")


def test_a_record_that_nobody_rejects_and_no_letter_is_small_enough_for_is_held_and_keeps_none_behind_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without any word of how it died it could go in a circle for ever, and dropped it would be lost."""
    taking(monkeypatch, batch_bytes=BATCH_BYTES, record_bytes=BATCH_BYTES - 100)

    async def story(hands: Hands) -> None:
        await hands.declare("b")
        await hands.declare("a", "", "b", x_message_ttl=100)
        await hands.put("a", b"v" * (BATCH_BYTES - 250))
        await hands.put("a", b"small")
        assert [each.value for each in await hands.take("b", 1)] == [b"small"]
        await waiting(hands, "a")
        await asyncio.sleep(20)
        own = await hands.own("a")
        assert (own.departing, own.unsettled, own.ready) == (1, 1, 0)
        assert "1 records cannot be sent, and are held, the first at queue offset 0" in own.departing_waits

    alone(story, "held")


@pytest.mark.long_after(1)
@pytest.mark.parametrize("killed", [False, True])
def test_a_letter_for_more_queues_than_a_change_can_name_comes_to_each_of_them_once(killed: bool) -> None:
    """Goal: a wide fanout ends, through a failover too. Method: 120 queues with long names, of which a change of these
    nodes names some 40; the queue's master is killed behind the first of them."""
    names = [f"{number:03}" + "n" * 150 for number in range(120)]

    async def prepare(client: Client) -> None:
        hands, topology = Hands(client), client.admin.topology
        await topology.declare_exchange("wide", "fanout")
        for name in names:
            await hands.declare(name)
            await topology.bind("wide", name, "")
        await hands.declare("q", "wide")
        await hands.put("q", *numbered(3))
        await hands.reject_all("q", 3)

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        errand = group.send(prepare)
        if killed:
            await group.world.until(lambda: bool(part_of(group) > 0), within_s=400, otherwise="no second part")
            group.nodes[group.master].machine.kill()
        await group.world.until(lambda: part_of(group) < 0, within_s=400, otherwise="it does not end")
        await group.back(errand, within_s=400)

        async def read(client: Client) -> None:
            for name in names:
                assert await values_of(Hands(client), name) == numbered(3)

        await group.do(read, within_s=400)

    def part_of(group: Group) -> int:
        """Which part of the piece is addressed, 0 for none or the first; -1 when all has left."""
        found = mastered(group, "q")
        if found is None:
            return 0
        replica = found[1].replica
        queue_id = replica.queues.find("q").queue_id
        there = replica.forwardings.of(queue_id)
        if there.piece is not None:
            return int(bool(there.piece.targets[0].name > names[0]))
        return -1 if there.sequences and queue_id not in replica.forwardings.leaving else 0

    tell(story, f"wide {killed}")


def test_a_record_that_is_rejected_again_behind_a_reset_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the piece of before settles nothing of what came since. Method: it waits for its target while the group is
    reset, and its records are rejected again within the second in which others join their departure."""
    away = target_away(monkeypatch)

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("q", "", "dead")
        await hands.put("q", *numbered(5))
        await hands.reject_all("q", 5)
        await waiting(hands, "q")
        await hands.client.admin.reset_groups("q", [""], to="earliest")
        await hands.reject_all("q", 5)
        away.clear()
        await left(hands, "q")
        assert Counter(await values_of(hands, "dead")) == Counter(2 * numbered(5))

    alone(story, "reset")


def test_who_does_not_want_to_wait_lets_go_of_all_that_is_not_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a queue whose letters cannot leave is no dead end. Method: 600 are rejected while their target is away, and
    the group is reset to the end of the queue; then the target is back."""
    away = target_away(monkeypatch)

    async def story(hands: Hands) -> None:
        await hands.declare("dead")
        await hands.declare("q", "", "dead")
        await hands.put("q", *numbered(600))
        await hands.reject_all("q", 600)
        await waiting(hands, "q")
        await hands.client.admin.reset_groups("q", [""], to="latest")
        assert (await hands.own("q")).departing == 0
        away.clear()
        await hands.put("q", b"next")
        await hands.reject("q", 1)
        await left(hands, "q")
        assert await values_of(hands, "dead") == [*numbered(PIECE_RECORDS), b"next"]

    alone(story, "let go")
