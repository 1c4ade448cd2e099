"""What the seeds tell of queues and their consumers, where it takes a cluster: whole clusters of real nodes, with real
clients, in virtual time.

What is given out and answered is noted by whoever takes, in one list, so that what must not follow what can be said.
Those stories in which the moment counts run a few seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any, NamedTuple

import pytest

from mirrorlog.client import Client, Delivered
from mirrorlog.client.subscription.leases import Leased
from mirrorlog.errors import (
    MirrorlogError,
    NoSuchGroup,
    OutcomeUnknown,
    SubscriptionCancelled,
)
from mirrorlog.queues.groups.ledger import Ledger
from sim.world import World
from tests.cluster.test_group_stories import (
    AGAIN_S,
    GROWING,
    SEEDS,
    Group,
    Stream,
    declare,
    handing_over,
    on_disk,
    publishing,
    tell,
)

LEASE_S = 30.0
QUEUE = "q"


class Note(NamedTuple):
    """`what`: given, acked (answered so), refused or unknown. `session`: which subscribing of the taker's it came
    under."""

    at: float
    what: str
    taker: str
    offset: int
    redelivered: bool = False
    attempts: int = 0
    session: int = 0
    value: bytes = b""


class Book:
    """What happened, in order; of all takers of a story."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def of(self, what: str, *, taker: str = "") -> list[Note]:
        return [note for note in self.notes if note.what == what and (not taker or note.taker == taker)]

    def offsets(self, what: str, *, taker: str = "") -> list[int]:
        return [note.offset for note in self.of(what, taker=taker)]

    def check(self) -> None:
        """No record is given out behind the answer of its ack; whoever takes is given what there is in order."""
        acked: set[int] = set()
        last: dict[tuple[str, int], int] = {}
        for note in self.notes:
            if note.what == "acked":
                acked.add(note.offset)
            if note.what != "given":
                continue
            assert note.offset not in acked, f"{note} behind its ack"
            assert note.offset > last.get((note.taker, note.session), -1), f"{note} out of order"
            last[note.taker, note.session] = note.offset


class Taker:
    """Somebody who takes records on a machine of his own, and acknowledges those of which `acks` says so. `held`: what
    he was given and has not settled; `ended`: why he gets nothing more."""

    def __init__(
        self,
        group: Group,
        book: Book,
        name: str,
        *,
        acks: Callable[[int], bool] = lambda _: True,
        of: str = "",
        to: str = "",
        **options: Any,
    ) -> None:
        self.name = name
        self.acks = acks
        self.held: list[Delivered] = []
        self.ended: MirrorlogError | None = None
        self.subscribed = False
        self._book = book
        self._world = group.world
        self._of = of
        self._options = options
        self._stopping = False
        self._acking: set[asyncio.Task[None]] = set()
        self._later: list[Delivered] = []
        self._group = group
        self._errand = group.send(self._take, machine=name, to=to)

    async def given(self, count: int, *, within_s: float = 30.0) -> None:
        """Until he was given so many."""
        await self._world.until(
            lambda: len(self._book.of("given", taker=self.name)) >= count,
            within_s=within_s,
            otherwise=f"{self.name} has only {self._book.offsets('given', taker=self.name)}",
        )

    def ack(self, *records: Delivered) -> None:
        """He acknowledges them soon; the outcome is noted."""
        self._later += records

    async def stop(self) -> None:
        """He ends tidily: what he has goes back."""
        self._stopping = True
        await self._group.back(self._errand)

    async def _take(self, client: Client) -> None:
        await declare(client)
        with suppress(MirrorlogError):  # what he had goes back, or has gone
            async with client.subscribe(QUEUE, self._of, **self._options) as subscription:
                self.subscribed = True
                while not self._stopping and self.ended is None:
                    while self._later:
                        self._begin(self._later.pop(0))
                    try:
                        found = await subscription.take_within(100, timeout_ms=50)
                    except MirrorlogError as error:
                        self.ended = None if error.retriable else error
                        await asyncio.sleep(AGAIN_S)
                        continue
                    for record in found:
                        self._note("given", record)
                        self._settle(record)
                await asyncio.gather(*self._acking)

    def _settle(self, record: Delivered) -> None:
        if self._options.get("auto_ack"):
            return
        if self.acks(record.offset):
            self._begin(record)
        else:
            self.held.append(record)

    def _begin(self, record: Delivered) -> None:
        task = asyncio.ensure_future(self._ack(record))
        self._acking.add(task)
        task.add_done_callback(self._acking.discard)

    async def _ack(self, record: Delivered) -> None:
        try:
            await record.ack()
        except MirrorlogError as error:
            self._note("unknown" if isinstance(error, OutcomeUnknown) else "refused", record)
        else:
            self._note("acked", record)

    def _note(self, what: str, record: Delivered) -> None:
        self._book.notes.append(
            Note(
                self._world.now,
                what,
                self.name,
                record.offset,
                record.redelivered,
                record.attempts,
                record._granted.session,
                record.value or b"",
            )
        )


def ledger(group: Group, node: str, name: str = "") -> Ledger:
    """A group of the queue, as a node's copy has it."""
    log = group.log(node)
    assert log is not None
    return log.replica.groups.find(log.replica.queues.find(QUEUE).queue_id, name)


async def settled(group: Group, count: int, *, within_s: float = 40.0) -> None:
    """Until the queue's group has settled so many from the beginning."""

    def there() -> bool:
        with suppress(MirrorlogError, AssertionError):
            return bool(group.master) and ledger(group, group.master).floor >= count
        return False

    await group.world.until(there, within_s=within_s, otherwise=f"{count} records are not settled")


def numbered(count: int, *, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


# --- The master goes --------------------------------------------------------------------------------------------------


@pytest.mark.story("000:248")
@pytest.mark.story("000:1041b")
@pytest.mark.parametrize("seed", SEEDS)
def test_unsettled_records_come_again_in_order_and_settled_ones_do_not(seed: int) -> None:
    """Goal: a failover costs no ack that was answered, and no record. Method: three takers that acknowledge most of
    what they get, in no order; the master is killed at some moment; then they acknowledge all: nothing comes behind
    the answer of its ack, everything comes in order, and everything is settled."""

    async def story(world: World) -> None:
        chance = Random(seed)
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing(numbered(300), linger_ms=0))
        kept = {number for number in range(300) if chance.random() < 0.3}
        takers = [
            Taker(group, book, name, prefetch=40, acks=lambda offset: offset not in kept) for name in ("x", "y", "z")
        ]
        await world.until(
            lambda: len(book.notes) > chance.randrange(20, 200), within_s=20, otherwise="nobody is given anything"
        )
        former = group.master
        floor = ledger(group, former).floor
        group.nodes[former].machine.kill()
        for taker in takers:
            taker.acks = lambda _: True
        assert ledger(group, await group.master_but(former)).floor >= min([floor, *kept])
        await settled(group, 300)
        for taker in takers:
            await taker.stop()
        book.check()
        assert {note.offset for note in book.of("given")} == set(range(300))

    tell(story, seed)


@pytest.mark.story("000:1044")
@pytest.mark.parametrize("at_once", [True, False])
def test_two_failovers_in_a_row_cost_a_group_nothing(at_once: bool) -> None:
    """Goal: what one failover keeps two keep. Method: five nodes; the second master is killed before its epoch's first
    batch can be confirmed, or once it has given records out."""

    async def story(world: World) -> None:
        group, book = Group(world, "abcde"), Book()
        await group.formed()
        await group.do(publishing(numbered(100)))
        taker = Taker(group, book, "x", prefetch=50, acks=lambda offset: offset % 2 == 0)
        await taker.given(50)
        first = group.master
        group.nodes[first].machine.kill()
        second = await group.master_but(first)
        if not at_once:
            await taker.given(75)
        taker.acks = lambda _: True
        group.nodes[second].machine.kill()
        await settled(group, 100)
        await taker.stop()
        book.check()
        assert {note.offset for note in book.of("given")} == set(range(100))

    tell(story, at_once)


@pytest.mark.story("000:676")
def test_the_last_copy_alone_answers_no_ack() -> None:
    """Goal: who is the last one left confirms nothing. Method: of three copies two are killed; the ack is neither
    answered nor lost: with one of them back it is, and the record does not come again."""

    async def story(world: World) -> None:
        group, book = Group(world, min_in_sync=2), Book()
        await group.formed()
        await group.do(publishing(numbered(3)))
        taker = Taker(group, book, "x", acks=lambda _: False, settle_timeout_ms=120_000)
        await taker.given(3)
        former = group.master
        mirrors = [name for name in group.nodes if name != former]
        for name in mirrors:
            group.nodes[name].machine.kill()
        taker.ack(taker.held[0])
        await asyncio.sleep(20)
        assert not book.of("acked"), "one copy alone has answered"
        taker.acks = lambda _: True
        group.nodes[mirrors[0]].start()
        await world.until(lambda: 0 in book.offsets("acked"), within_s=60, otherwise="the ack is not answered")
        taker.ack(*taker.held[1:])
        await settled(group, 3)
        await taker.stop()
        book.check()

    tell(story, 0)


@pytest.mark.story("000:1003")
@pytest.mark.parametrize("how", ["handed over", "stopped"])
def test_a_handover_flags_nothing_that_was_not_given_out(how: str) -> None:
    """Goal: a master that goes tidily says exactly what it gave out. Method: 20 records of which 10 are given out; the
    master hands over, or all stop and start: the first ten come flagged, the rest do not."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing(numbered(20)))
        taker = Taker(group, book, "x", prefetch=10, acks=lambda _: False)
        await taker.given(10)
        former = group.master
        if how == "handed over":
            await group.do(handing_over(former))
            await group.master_but(former)
        else:
            for node in group.nodes.values():
                assert node.node is not None
                node.machine.ask_to_stop(node.node.stop)
            await world.until(
                lambda: not any(node.machine.up for node in group.nodes.values()), within_s=30, otherwise="some go on"
            )
            await group.formed()
        await taker.given(20)
        taker.acks = lambda _: True
        taker.ack(*taker.held[10:])
        await settled(group, 20)
        await taker.stop()
        book.check()
        flags = {note.offset: note.redelivered for note in book.of("given")[10:]}
        assert flags == {offset: offset < 10 for offset in range(20)}

    tell(story, how)


@pytest.mark.story("000:192a")
@pytest.mark.story("001:692")
def test_a_new_copy_takes_over_with_every_unsettled_record() -> None:
    """Goal: a copy that was made later knows what is settled as well as the others. Method: 200 records of which 80, in
    no order, are acknowledged; a node joins, its copy becomes the master, the former one is killed: it gives out
    exactly the other 120, in order."""

    async def story(world: World) -> None:
        chance = Random(0)
        group, book = Group(world, "ab", settings=GROWING), Book()
        await group.formed()
        await group.do(publishing(numbered(200)))
        acked = set(chance.sample(range(200), 80))
        taker = Taker(group, book, "x", acks=lambda offset: offset in acked)
        await taker.given(200)
        await world.until(lambda: len(book.of("acked")) == 80, within_s=20, otherwise="acks are not answered")
        await taker.stop()
        group.join("c", ["a"])
        await group.whole()
        for node in ("a", "b"):
            await group.do(handing_over(node))
        await group.master_but("a", "b")
        group.nodes["a"].machine.kill()
        later = Taker(group, book, "y", to="bc")
        await settled(group, 200)
        await later.stop()
        assert book.offsets("given", taker="y") == [offset for offset in range(200) if offset not in acked]
        assert all(note.redelivered for note in book.of("given", taker="y"))

    tell(story, 0)


# --- Leases -----------------------------------------------------------------------------------------------------------


def leasing(count: int = 10, *, lease_s: float = LEASE_S, wait_ms: int = 0) -> Callable[[Client], Awaitable[Any]]:
    """What somebody is given for a time: (offset, receipt) of each record."""

    async def lease(client: Client) -> list[tuple[int, str]]:
        await declare(client)
        found: list[Leased] = await client.lease(
            QUEUE, max_records=count, lease_ms=int(lease_s * 1000), wait_ms=wait_ms, holder="somebody"
        )
        return [(each.offset, each.receipt) for each in found]

    return lease


def settling(receipts: list[str], how: str = "ack") -> Callable[[Client], Awaitable[int]]:
    """By whoever has the texts only; how many records that changed."""

    async def settle(client: Client) -> int:
        return sum([await client.settle_receipt(QUEUE, each, how=how) for each in receipts])

    return settle


@pytest.mark.story("003:12c")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_lease_holds_through_a_failover_and_its_receipt_acks(seed: int) -> None:
    """Goal: what is hidden stays hidden, for all of its time. Method: three records are leased; with most of the time
    over the master is killed: nobody is given them until the time has passed anew; meanwhile one receipt acknowledges
    and one extends; no number is ever two leases."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(publishing(numbered(3)))
        leased = await group.do(leasing(3))
        assert [offset for offset, _ in leased] == [0, 1, 2]
        await asyncio.sleep(LEASE_S - 5)
        former = group.master
        group.nodes[former].machine.kill()
        await group.master_but(former)
        began = world.now
        assert await group.do(leasing()) == []
        assert await group.do(settling([leased[0][1]])) == 1
        again: list[tuple[int, str]] = []
        while not again:
            again = await group.do(leasing(lease_s=LEASE_S + world.now - began))
            await asyncio.sleep(1)
        assert LEASE_S - 5 < world.now - began < LEASE_S + 10
        assert [offset for offset, _ in again] == [1, 2]
        numbers = [{receipt.split("-")[1] for _, receipt in each} for each in (leased, again)]
        assert not numbers[0] & numbers[1]
        assert await group.do(settling([receipt for _, receipt in again])) == 2

    tell(story, seed)


@pytest.mark.story("003:11d")
@pytest.mark.parametrize("seed", SEEDS)
def test_no_record_is_leased_on_both_sides_of_a_cut(seed: int) -> None:
    """Goal: nobody is given what another one has. Method: cut the master off with somebody; on both sides records are
    leased, one by one, for as long as the cut lasts: no record is in two leases that were answered."""

    async def story(world: World) -> None:
        group = Group(world, settings={"node_timeout_ms": 1_000})
        await group.formed()
        await group.do(publishing(numbered(40)))
        answered: dict[str, list[int]] = {"near": [], "far": []}

        def person(side: str) -> Callable[[Client], Awaitable[None]]:
            async def lease(client: Client) -> None:
                while len(answered[side]) < 10 and world.now < until:
                    with suppress(MirrorlogError):
                        for each in await client.lease(QUEUE, max_records=1, lease_ms=600_000, wait_ms=100):
                            answered[side].append(each.offset)
                    await asyncio.sleep(0.02)

            return lease

        until = world.now + 40
        world.network.cut_off({"a", "near"}, {"b", "c", "far"})
        near = group.send(person("near"), to="a", machine="near", request_timeout_ms=2_000)
        far = group.send(person("far"), to="bc", machine="far", request_timeout_ms=2_000)
        await group.back(far, within_s=60)
        world.network.heal()
        await group.back(near, within_s=60)
        assert len(answered["far"]) == 10
        assert not set(answered["near"]) & set(answered["far"])

    tell(story, seed)


@pytest.mark.story("003:11d")
@pytest.mark.parametrize("seed", SEEDS)
def test_what_both_sides_of_a_cut_gave_out_is_flagged(seed: int) -> None:
    """Goal: what two may have is said to be. Method: a subscriber on each side of a cut: whatever both were given was
    flagged at the second, and no ack of the side that is cut off was answered while it was."""

    async def story(world: World) -> None:
        group, book = Group(world, settings={"node_timeout_ms": 1_000}), Book()
        await group.formed()
        await group.do(publishing(numbered(100)))
        world.network.cut_off({"a", "near"}, {"b", "c", "far"})
        near = Taker(group, book, "near", to="a", prefetch=20)
        far = Taker(group, book, "far", to="bc", prefetch=20)
        await far.given(100, within_s=60)
        assert not book.of("acked", taker="near"), "one side alone has answered"
        world.network.heal()
        await settled(group, 100)
        for taker in (near, far):
            await taker.stop()
        both = set(book.offsets("given", taker="near")) & set(book.offsets("given", taker="far"))
        first = {offset: min(note.at for note in book.of("given") if note.offset == offset) for offset in both}
        assert all(
            note.redelivered for note in book.of("given") if note.offset in both and note.at > first[note.offset]
        )

    tell(story, seed)


# --- What may be lost -------------------------------------------------------------------------------------------------


@pytest.mark.story("000:1049")
@pytest.mark.parametrize("seed", SEEDS)
def test_auto_ack_loses_at_most_what_was_under_way(seed: int) -> None:
    """Goal: what is settled as it is sent may be lost on its way, and nothing else. Method: the master is killed while
    it sends: what nobody ever got is one stretch, at the end of what the killed one sent."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing([b"%d" % number + b"." * 2_000 for number in range(400)]))
        taker = Taker(group, book, "x", auto_ack=True)
        await taker.given(1 + Random(seed).randrange(100))
        former = group.master
        group.nodes[former].machine.kill()
        await group.master_but(former)
        await group.do(publishing([b"last"]))
        await world.until(
            lambda: 400 in book.offsets("given"), within_s=30, otherwise="what came later is not given out"
        )
        await taker.stop()
        offsets = book.offsets("given")
        before = max(note.offset for note in book.of("given") if note.session == 1)
        missing = sorted(set(range(401)) - set(offsets))
        assert missing == list(range(before + 1, before + 1 + len(missing)))

    tell(story, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_acks_that_a_power_failure_took_come_again_flagged(seed: int) -> None:
    """Goal: what memory lost is told, or comes again. Method: a memory log; all machines lose their power behind the
    acks' answers: each record is settled, or comes again flagged, or its offset lies in the loss that was declared."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(declare)
        await on_disk(group)  # a queue that is lost itself is another story
        await group.do(publishing(numbered(30)))
        taker = Taker(group, book, "x", acks=lambda offset: offset < 20)
        await world.until(lambda: len(book.of("acked")) == 20, within_s=20, otherwise="acks are not answered")
        before = len(book.notes)
        for node in group.nodes.values():
            node.machine.lose_power()
        await group.formed(within_s=60)
        await group.do(publishing([b"new"]))
        taker.acks = lambda _: True
        await world.until(
            lambda: any(note.value == b"new" for note in book.of("given")),
            within_s=30,
            otherwise="what came later is not given out",
        )
        await taker.stop()
        log = group.log(group.master)
        assert log is not None
        state, gap = ledger(group, group.master), log.replica.index.gap(log.replica.queues.find(QUEUE).queue_id)
        again = [note for note in book.notes[before:] if note.what == "given" and note.value != b"new"]
        assert all(note.redelivered for note in again), [note.offset for note in again if not note.redelivered]
        came = {note.offset for note in again}
        for offset in range(30):
            lost = gap[0] <= offset < gap[1]
            assert lost or offset in came or not state.unsettled(offset, offset + 1), offset

    tell(story, seed)


# --- The way to the master goes ---------------------------------------------------------------------------------------


def test_who_was_cut_off_comes_back_to_its_right_and_its_records() -> None:
    """Goal: a cut costs a subscription nothing but time. Method: somebody who has a group for himself is cut off, and
    acknowledges one of five meanwhile: within seconds of the cut's end the others come again, the ack counts, and he is
    not told of an exclusive right that is his own."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing(numbered(5)))
        taker = Taker(group, book, "x", prefetch=5, exclusive=True, acks=lambda _: False, settle_timeout_ms=90_000)
        await taker.given(5)
        world.network.cut_off({"x"}, set(group.nodes))
        taker.ack(taker.held[2])
        await asyncio.sleep(30)
        assert not book.of("acked")
        world.network.heal()
        healed = world.now
        taker.acks = lambda _: True
        await settled(group, 5, within_s=10)
        assert world.now - healed < 10
        await taker.stop()
        assert taker.ended is None
        assert book.offsets("given")[5:] == [0, 1, 3, 4]
        assert sorted(book.offsets("acked")) == [0, 1, 2, 3, 4]

    tell(story, 0)


def test_a_group_that_was_deleted_meanwhile_is_not_made_anew_by_who_comes_back() -> None:
    """Goal: what was deleted stays so. Method: somebody takes from a group of its own name and is cut off; the group is
    deleted; he comes back, is told, and there is none."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing(numbered(3)))
        taker = Taker(group, book, "x", of="mine")
        await taker.given(3)
        world.network.cut_off({"x"}, set(group.nodes))
        await asyncio.sleep(30)
        await group.do(lambda client: client.admin.delete_group(QUEUE, "mine"))
        world.network.heal()
        await world.until(lambda: taker.ended is not None, within_s=60, otherwise="he was not told")
        assert isinstance(taker.ended, NoSuchGroup | SubscriptionCancelled), repr(taker.ended)
        groups = await group.do(lambda client: client.admin.groups(QUEUE))
        assert "mine" not in {each.group for each in groups.groups}
        await taker.stop()

    tell(story, 0)


@pytest.mark.story("000:250")
def test_who_asked_for_it_is_cancelled_by_a_failover_and_its_records_go_to_others() -> None:
    """Goal: `x-cancel-on-ha-failover` ends that subscription alone. Method: two takers, one asked for it; the master is
    killed: it is told, gets no more, and what it had comes to the other one, flagged and in order."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing(numbered(10)))
        told = Taker(group, book, "told", prefetch=5, acks=lambda _: False, cancel_on_failover=True)
        await told.given(5)
        other = Taker(group, book, "other", prefetch=10)
        await other.given(5)
        former = group.master
        group.nodes[former].machine.kill()
        await world.until(lambda: told.ended is not None, within_s=30, otherwise="it was not told")
        assert isinstance(told.ended, SubscriptionCancelled)
        await settled(group, 10)
        for taker in (told, other):
            await taker.stop()
        had = book.offsets("given", taker="told")
        assert len(had) == 5
        again = [note for note in book.of("given", taker="other") if note.offset in had]
        assert [note.offset for note in again] == sorted(had)
        assert all(note.redelivered for note in again)
        assert other.ended is None

    tell(story, 0)


# --- While all is well, and not quite ---------------------------------------------------------------------------------


@pytest.mark.story("000:15")
@pytest.mark.story("000:283")
@pytest.mark.story("000:1011")
def test_a_subscription_finds_the_master_from_any_node() -> None:
    """Goal: nobody needs to know who masters what. Method: somebody knows a mirror only; records and acks go to the
    master, and to the next one when it has handed over."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        former = group.master
        mirror = next(name for name in group.nodes if name != former)
        await group.do(publishing(numbered(5)))
        taker = Taker(group, book, "x", to=mirror)
        await settled(group, 5)
        await group.do(handing_over(former))
        await group.master_but(former)
        await group.do(publishing(numbered(5, first=5)))
        await settled(group, 10)
        await taker.stop()
        assert book.offsets("given") == list(range(10))

    tell(story, 0)


@pytest.mark.story("000:19a")
def test_nothing_is_given_out_before_its_confirm() -> None:
    """Goal: what a failover could take back is seen by nobody. Method: both mirrors stand still, a record is published
    at level `master` and answered: it is given out when they go on, and not before."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing([b"before"]))
        taker = Taker(group, book, "x")
        await settled(group, 1)
        mirrors = [group.nodes[name].machine for name in group.nodes if name != group.master]
        for machine in mirrors:
            machine.pause()
        await group.do(publishing([b"behind"], confirm="master"), to=group.master)
        await asyncio.sleep(1)
        assert book.offsets("given") == [0]
        for machine in mirrors:
            machine.resume()
        await taker.given(2)
        await settled(group, 2)
        await taker.stop()

    tell(story, 0)


@pytest.mark.story("000:35")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_that_catches_up_holds_up_no_delivery_and_no_ack(seed: int) -> None:
    """Goal: filling a new mirror stops nobody. Method: two nodes with some hundred large records; a third joins over a
    slow way while records are published and taken: nobody waits longer than before for one, nor for an ack."""

    async def story(world: World) -> None:
        group, book = Group(world, "ab", settings=GROWING), Book()
        await group.formed()
        stream = Stream(group, padding=2_000)
        await stream.more(300)
        taker = Taker(group, book, "x", prefetch=50)
        await taker.given(300)
        world.network.lengthen("a", "c", 0.2)
        began = world.now
        group.join("c", ["a"])
        await group.whole()
        ended = world.now
        await stream.stop()
        await settled(group, stream.confirmed)
        await taker.stop()
        book.check()
        for what in ("given", "acked"):
            times = [note.at for note in book.of(what) if began <= note.at <= ended]
            assert max(later - at for at, later in pairwise([began, *times, ended])) < 1.0, what

    tell(story, seed)


@pytest.mark.story("000:338")
def test_a_rolling_restart_brings_no_acked_record_back() -> None:
    """Goal: an upgrade goes by without its users. Method: records are published and taken by two while each node in
    turn is stopped and started: all come, none behind the answer of its ack, nobody is told an error."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        stream = Stream(group)
        takers = [Taker(group, book, name, prefetch=20) for name in ("x", "y")]
        await stream.more(20)
        for node in list(group.nodes.values()):
            assert node.node is not None
            node.machine.ask_to_stop(node.node.stop)
            await world.until(lambda node=node: not node.machine.up, within_s=30, otherwise="it does not stop")  # type: ignore[misc]
            await stream.more(20)
            await group.formed()
        await stream.stop()
        await settled(group, stream.confirmed)
        for taker in takers:
            await taker.stop()
            assert taker.ended is None
        book.check()
        assert {note.offset for note in book.of("given")} == set(range(stream.confirmed))
        assert not book.of("refused")

    tell(story, 0)


@pytest.mark.story("000:1088")
@pytest.mark.parametrize("seed", SEEDS)
def test_all_nodes_killed_at_once_bring_no_acked_record_back(seed: int) -> None:
    """Goal: in whatever order they start, a group stands where it stood. Method: some of 100 records are acknowledged
    at `all`; all nodes are killed at once and started one by one, the former master last: the rest comes, flagged."""

    async def story(world: World) -> None:
        group, book = Group(world), Book()
        await group.formed()
        await group.do(publishing(numbered(100)))
        taker = Taker(group, book, "x", acks=lambda offset: offset % 3 == seed)
        await world.until(lambda: len(book.of("acked")) > 20, within_s=20, otherwise="acks are not answered")
        await taker.given(100)
        taker.acks = lambda _: True
        former = group.master
        for node in group.nodes.values():
            node.machine.kill()
        for name in sorted(group.nodes, key=lambda name: name == former):
            group.nodes[name].start()
            await asyncio.sleep(0.5)
        await group.formed()
        await settled(group, 100)
        await taker.stop()
        book.check()
        assert all(note.redelivered for note in book.of("given")[100:])

    tell(story, seed)


def test_a_nack_whose_confirm_is_late_takes_the_next_delivery_from_nobody() -> None:
    """Goal: what is said once counts once. Method: a mirror stands still for longer than the node lets a settlement
    wait; a record is returned and comes again meanwhile: it stays in hand, with one attempt, and the nack returns."""

    async def story(world: World) -> None:
        group = Group(world, settings={"node_timeout_ms": 20_000, "mirror_lag_time_ms": 20_000})
        await group.formed()
        await group.do(publishing([b"one"]))
        given, still = asyncio.Event(), asyncio.Event()

        async def nack(client: Client) -> tuple[int, int]:
            async with client.subscribe(QUEUE) as subscription:
                record = await anext(subscription)
                given.set()
                await still.wait()
                late = asyncio.ensure_future(record.nack())
                again = await anext(subscription)
                await late
                more = await subscription.take_within(1, timeout_ms=500)
                await again.ack()
                return again.attempts, len(more)

        errand = group.send(nack)
        await world.until(given.is_set, within_s=10, otherwise="nothing is given out")
        mirror = next(node for name, node in group.nodes.items() if name != group.master)
        mirror.machine.pause()
        still.set()
        await asyncio.sleep(8)
        assert not errand.done
        mirror.machine.resume()
        assert await group.back(errand) == (1, 0)

    tell(story, 0)


@pytest.mark.story("000:635")
def test_a_new_master_gives_out_nothing_before_its_epoch_is_confirmed() -> None:
    """Goal: a promoted copy acts once its mirrors follow it. Method: of three copies the master is killed while another
    one stands still: the third is promoted, and gives neither records nor leases; when the other goes on it does."""

    async def story(world: World) -> None:
        group, book = Group(world, "abcde", copies=3, min_in_sync=2), Book()
        await group.formed()
        await group.do(publishing(numbered(1)))
        before = Taker(group, book, "before")
        await settled(group, 1)
        await before.stop()
        await group.do(publishing(numbered(4, first=1)))
        noted = len(book.notes)
        group.nodes["c"].machine.pause()
        group.nodes["a"].machine.kill()
        assert await group.master_but("a") == "b"
        taker = Taker(group, book, "x", to="bde", prefetch=3)
        lease = group.send(leasing(2, wait_ms=30_000), to="bde")
        await world.until(lambda: taker.subscribed, within_s=20, otherwise="nobody is subscribed")
        await asyncio.sleep(5)
        assert len(book.notes) == noted
        assert not lease.done
        group.nodes["c"].machine.resume()
        leased = await group.back(lease)
        assert len(leased) == 2
        assert await group.do(settling([receipt for _, receipt in leased]), to="bde") == 2
        await settled(group, 5)
        await taker.stop()
        assert sorted([*book.offsets("given"), *(offset for offset, _ in leased)]) == list(range(5))

    tell(story, 0)
