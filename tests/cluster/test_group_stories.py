"""What seed 003 tells of a group of nodes, four races among it: whole clusters of real nodes, in virtual time.

Those in which the moment counts run a few seeds: what happens when, and on which way, is another thing in each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar

import pytest

from mirrorlog.broker.hosting.hosted_log import HostedLog
from mirrorlog.broker.hosting.roles import MasterRole
from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError, NotCurrent, OutcomeUnknown, PositionLost, Refused
from mirrorlog.ha.in_sync import CATCH_UP_S
from mirrorlog.wire.messages.operators import Events, GetEvents
from mirrorlog.wire.messages.queues import GetMetadata, Metadata
from mirrorlog.wire.messages.status import ClusterStatus, GetStatus, Status
from sim.machines import ROOT, Machine
from sim.nodes import cluster, joining
from sim.stand_ins import node_disks
from sim.world import World

SEEDS = range(3)
AGAIN_S = 0.05
FORMED_S = 30.0
_T = TypeVar("_T")


class Errand(Generic[_T]):
    """A program: what one person does with a client of the group. `result`: of it, once `done`."""

    def __init__(self, servers: Iterable[str], what: Callable[[Client], Awaitable[_T]], **options: Any) -> None:
        self.done = False
        self.results: list[_T] = []
        self._servers = list(servers)
        self._what = what
        self._options = options

    async def __call__(self, machine: Machine) -> None:
        while True:
            with suppress(MirrorlogError):
                client = await Client(*self._servers, **self._options).connect()
                break
            await asyncio.sleep(AGAIN_S)
        async with client:
            self.results.append(await self._what(client))
        self.done = True

    @property
    def result(self) -> _T:
        (result,) = self.results
        return result


class Group:
    """A cluster with one log, `main`, that its first node masters at first; and people, each on a machine of its own.
    `options`: of `sim.nodes.cluster`; `settings`: of its section `cluster`."""

    def __init__(self, world: World, names: str = "abc", *, settings: Mapping[str, Any] | None = None, **options: Any):
        self.world = world
        self.nodes = {
            node.name: node for node in cluster(world, list(names), settings={"cluster": settings or {}}, **options)
        }
        self._people = 0

    async def formed(self, *, within_s: float = FORMED_S) -> None:
        """Start everybody who does not run; all nodes know the same view, and every copy in it is in sync."""
        for node in self.nodes.values():
            if not node.machine.up:
                node.start()
        await self.whole(within_s=within_s)

    async def whole(self, *, within_s: float = FORMED_S) -> None:
        """Until all that run know the same view, and every copy in it is in sync."""
        give_up_at = self.world.now + within_s
        while not whole(views := await self.views()):
            assert self.world.now < give_up_at, f"not whole within {within_s} s: {told(views)}"
            await asyncio.sleep(AGAIN_S)

    async def views(self) -> dict[str, ClusterStatus | None]:
        """Of each node, what it says that the cluster is; None for one that does not answer."""
        statuses = await self.statuses()
        return {name: status.cluster if status is not None else None for name, status in statuses.items()}

    async def statuses(self) -> dict[str, Status | None]:
        return await self.do(status_of_each({name: node.client_address for name, node in self.nodes.items()}))

    def log(self, node: str) -> HostedLog | None:
        """The copy of a node that runs, as it lies in its memory."""
        found = self.nodes[node]
        if not found.machine.up or found.node is None:
            return None
        return next(iter(found.node.logs), None)

    def end(self, node: str) -> int:
        """Where its copy ends; -1 while it has none to speak of."""
        log = self.log(node)
        return log.replica.log.end if log is not None and log.replica.usable else -1

    def masters(self) -> dict[int, list[str]]:
        """Who writes the log, by epoch."""
        found: dict[int, list[str]] = {}
        for name in self.nodes:
            log = self.log(name)
            if log is not None and isinstance(log.role, MasterRole):
                found.setdefault(log.replica.log.epochs.current, []).append(name)
        return found

    @property
    def master(self) -> str:
        """Of the newest epoch; empty for nobody."""
        masters = self.masters()
        assert all(len(names) == 1 for names in masters.values()), masters
        return masters[max(masters)][0] if masters else ""

    async def master_but(self, *former: str, within_s: float = 20.0) -> str:
        """Wait for another one than these."""
        await self.world.until(
            lambda: self.master and self.master not in former, within_s=within_s, otherwise="nobody takes over"
        )
        return self.master

    def join(self, name: str, seeds: Iterable[str]) -> None:
        """A new node asks those to be let in."""
        node = self.nodes[name] = joining(self.world, name, list(seeds))
        node.start()

    async def version(self) -> int:
        """Of the view that all have."""
        (version,) = {view.version for view in (await self.views()).values() if view is not None}
        return version

    async def caught_up(self) -> None:
        """Until every copy ends where the others do, all of it confirmed. Meaningful once nobody publishes."""

        def equal() -> bool:
            logs = [log for name in self.nodes if (log := self.log(name)) is not None]
            return len({end for log in logs for end in (log.replica.log.end, log.replica.log.confirmed)}) == 1

        await self.world.until(equal, within_s=10, otherwise="the copies do not end alike")

    def written(self, node: str) -> bytes:
        """The bytes of its copy, as they lie on its disk."""
        files, log = self.nodes[node].machine.files, self.log(node)
        assert log is not None
        directory = ROOT / "data" / "logs" / str(log.log_id)
        names = sorted(name for name in files.listdir(directory) if name.isdigit())
        first = int(names[0])
        return b"".join(files.content(directory / name) for name in names)[: log.replica.log.end - first]

    # --- people ---

    def send(
        self, what: Callable[[Client], Awaitable[_T]], *, to: Iterable[str] = (), machine: str = "", **options: Any
    ) -> Errand[_T]:
        """Let somebody do it, who knows the nodes `to`, by default all that founded the group."""
        self._people += 1
        errand = Errand([self.nodes[name].client_address for name in to or self.nodes], what, **options)
        self.world.machine(machine or f"person{self._people}").start(errand)
        return errand

    async def do(self, what: Callable[[Client], Awaitable[_T]], *, within_s: float = 40.0, **options: Any) -> _T:
        """As `send`, and wait for the result."""
        return await self.back(self.send(what, **options), within_s=within_s)

    async def back(self, errand: Errand[_T], *, within_s: float = 40.0) -> _T:
        await self.world.until(lambda: errand.done, within_s=within_s, otherwise="an errand is not done")
        return errand.result


def whole(views: Mapping[str, ClusterStatus | None]) -> bool:
    known = [view for view in views.values() if view is not None]
    return (
        len(known) == len(views)
        and len({(view.version, view.coordinator) for view in known}) == 1
        and all(view.registered and {node.node_id for node in view.nodes} == set(views) for view in known)
        and all(
            log.master and set(log.in_sync) == set(log.replicas) and len(log.replicas) == min(log.copies, len(views))
            for log in known[0].logs
        )
    )


def told(views: Mapping[str, ClusterStatus | None]) -> str:
    """In few words."""
    return "; ".join(
        f"{name}: view {view.version} of {view.coordinator}, {[(log.replicas, log.in_sync) for log in view.logs]}"
        if view is not None
        else f"{name}: nothing"
        for name, view in views.items()
    )


# --- What people do ---------------------------------------------------------------------------------------------------


def status_of_each(addresses: Mapping[str, str]) -> Callable[[Client], Awaitable[dict[str, Status | None]]]:
    async def ask(client: Client) -> dict[str, Status | None]:
        async def one(address: str) -> Status | None:
            try:
                async with asyncio.timeout(1.0):
                    return await (await client.connection_to(address)).request(GetStatus(), Status, timeout_ms=1_000)
            except (MirrorlogError, TimeoutError):
                return None

        answers = await asyncio.gather(*(one(address) for address in addresses.values()))
        return dict(zip(addresses, answers, strict=True))

    return ask


async def on_disk(group: Group) -> None:
    """Until no copy has anything that it could lose with its power."""

    def flushed() -> bool:
        logs = [log for name in group.nodes if (log := group.log(name)) is not None]
        ends = {log.replica.log.end for log in logs} | {log.replica.log.confirmed for log in logs}
        return len(logs) == len(group.nodes) and ends == {log.replica.log.flushed for log in logs} and len(ends) == 1

    await group.world.until(flushed, within_s=60, otherwise="not all is on the disks")


async def declare(client: Client) -> None:
    while True:
        with suppress(MirrorlogError):
            await client.admin.declare("q")
            return
        await asyncio.sleep(AGAIN_S)


def publishing(values: Iterable[bytes], **options: Any) -> Callable[[Client], Awaitable[list[Any]]]:
    """One record after the other; their receipts."""

    async def publish(client: Client) -> list[Any]:
        await declare(client)
        async with client.producer("q", **options) as producer:
            return [await producer.send(value) for value in values]

    return publish


def failing(value: bytes, **options: Any) -> Callable[[Client], Awaitable[MirrorlogError]]:
    """The error with which a publish ends; it must."""

    async def publish(client: Client) -> MirrorlogError:
        producer = client.producer("q", **options)
        try:
            await producer.start()
            receipt = await producer.send(value)
        except MirrorlogError as error:
            producer.abandon()
            return error
        raise AssertionError(f"no error, but {receipt}")

    return publish


def reading(count: int | None = None, *, node: str = "") -> Callable[[Client], Awaitable[list[bytes]]]:
    """What is confirmed, or the first `count` records as soon as they are there; of one node, or of whoever has it."""

    async def read(client: Client) -> list[bytes]:
        found: list[bytes] = []
        where = {"read_from": node} if node else {}
        async with client.consumer("q", start="earliest", **where) as consumer:
            while count is None or len(found) < count:
                records = await consumer.read(timeout_ms=500 if count is None else 20_000)
                if not records and count is None:
                    break
                found += [bytes(record.value or b"") for record in records]
        return found

    return read


class Stream:
    """Numbered records, one after the other, for as long as nobody says `stop`; none may fail."""

    def __init__(self, group: Group, *, pause_s: float = 0.01, padding: int = 0, **options: Any) -> None:
        self.confirmed = 0
        self.longest_s = 0.0
        self._group = group
        self.pause_s = pause_s
        self._padding = padding
        self._stopping = False
        self._errand = group.send(self._publish, **options)

    def value(self, number: int) -> bytes:
        return b"%d" % number + b"." * self._padding

    async def more(self, count: int = 20, within_s: float = 30.0) -> None:
        """So many more are confirmed."""
        wanted = self.confirmed + count
        await self._group.world.until(
            lambda: self.confirmed >= wanted,
            within_s=within_s,
            otherwise=f"only {self.confirmed} of {wanted} confirmed",
        )

    async def stop(self) -> None:
        self._stopping = True
        await self._group.back(self._errand)

    async def check(self) -> None:
        """Every copy is read as it was sent: all that was confirmed, once, in order, and nothing else."""
        expected = [self.value(number) for number in range(self.confirmed)]
        holders = [name for name in self._group.nodes if self._group.log(name) is not None]
        assert holders
        for name in holders:
            assert await self._group.do(reading(len(expected), node=name)) == expected, name
            assert await self._group.do(reading(node=name)) == expected, name

    async def _publish(self, client: Client) -> None:
        await declare(client)
        loop = asyncio.get_running_loop()
        async with client.producer("q") as producer:
            while not self._stopping:
                began = loop.time()
                await producer.send(self.value(self.confirmed))
                self.longest_s = max(self.longest_s, loop.time() - began)
                self.confirmed += 1
                await asyncio.sleep(self.pause_s)


def tell(story: Callable[[World], Coroutine[Any, Any, _T]], seed: object) -> _T:
    """What the story gives. The seed decides all that chance decides in it."""
    with World(f"group {seed}") as world, node_disks(world):
        return world.run(story(world))


# --- One master, and a majority ---------------------------------------------------------------------------------------


@pytest.mark.story("003:11a")
def test_whoever_is_asked_the_master_writes_and_all_copies_get_it() -> None:
    """Goal: one node writes a log, and a client need not know which. Method: publish and declare through a client that
    knows a mirror only; each receipt names three copies, one node masters, and every copy reads the same."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        values = [b"%d" % number for number in range(20)]
        receipts = await group.do(publishing(values), to="b")
        assert {receipt.copies for receipt in receipts} == {3}
        assert group.masters() == {receipts[0].epoch: ["a"]}
        for name in group.nodes:
            assert await group.do(reading(len(values), node=name)) == values

    tell(story, 0)


@pytest.mark.story("003:11c")
@pytest.mark.parametrize("seed", SEEDS)
def test_only_the_side_with_a_majority_goes_on(seed: int) -> None:
    """Goal: two sides never serve the same queue. Method: cut the master off with some people: there a publish is not
    confirmed and a read is refused, or, if asked for, has what was confirmed before; on the other side all goes on.
    After the cut all have what that side has, and nothing of the other."""

    async def story(world: World) -> None:
        group = Group(world, settings={"node_timeout_ms": 1_000})
        await group.formed()
        await group.do(publishing([b"before"]))
        world.network.cut_off({"a", "near1", "near2", "near3"}, {"b", "c", "far1", "far2"})
        near = group.send(failing(b"near", delivery_timeout_ms=8_000), to="a", machine="near1")
        await group.master_but("a")
        await group.do(publishing([b"far"]), to="bc", machine="far1")
        refused = await group.do(refusal_of_read(), to="a", machine="near2")
        assert type(refused) is NotCurrent, repr(refused)
        assert await group.do(reading(), to="a", machine="near3", allow_stale_reads=True) == [b"before"]
        error = await group.back(near)
        assert isinstance(error, OutcomeUnknown | Refused), repr(error)
        world.network.heal()
        await group.whole()
        assert group.master != "a"
        for name in group.nodes:
            assert await group.do(reading(node=name)) == [b"before", b"far"], name

    tell(story, seed)


def test_copies_enough_do_not_make_a_majority() -> None:
    """Goal: the smaller side takes nothing, though a level is reached there. Method: of five nodes cut off the master
    and one of its two mirrors, which are a majority of the copies: publishes for a majority come to be refused."""

    async def story(world: World) -> None:
        group = Group(world, "abcde", copies=3, settings={"node_timeout_ms": 1_000})
        await group.formed()
        await group.do(publishing([b"before"]))
        world.network.cut_off({"a", "b", "near"}, {"c", "d", "e"})
        await asyncio.sleep(5.0)
        error = await group.do(failing(b"near", confirm="majority"), to="ab", machine="near", within_s=60)
        assert isinstance(error, Refused), repr(error)

    tell(story, 0)


def refusal_of_read() -> Callable[[Client], Awaitable[MirrorlogError]]:
    """With what the first node refuses to read the queue; it must."""

    async def read(client: Client) -> MirrorlogError:
        connection = await client.any_connection()
        (queue,) = (await connection.request(GetMetadata(), Metadata, timeout_ms=1_000)).queues
        while True:
            try:
                await connection.fetch(
                    queue_id=queue.queue_id, epoch=0, queue_offset=0, max_bytes=1 << 16, wait_ms=0, timeout_ms=1_000
                )
            except MirrorlogError as error:
                return error
            await asyncio.sleep(AGAIN_S)

    return read


@pytest.mark.story("003:12")
def test_what_came_of_a_command_is_copied_not_the_command() -> None:
    """Goal: nobody works out anew what the master has worked out. Method: three machines whose clocks are hours apart,
    each masters for a while: every copy has the same bytes, times of appending among them."""

    async def story(world: World) -> None:
        group = Group(world)
        for hours, node in enumerate(group.nodes.values()):
            node.machine.set_clock((hours - 1) * 3_600 * 10**9)
        await group.formed()
        for victim in ("a", "b"):
            await group.do(publishing([b"by %s" % group.master.encode()] * 5))
            await group.do(handing_over(victim))
            await group.master_but(victim)
        await group.do(publishing([b"by %s" % group.master.encode()] * 5))
        await group.whole()
        await group.caught_up()
        copies = {name: group.written(name) for name in group.nodes}
        assert len(set(copies.values())) == 1
        assert copies["a"]

    tell(story, 0)


def handing_over(node: str) -> Callable[[Client], Awaitable[str]]:
    """It masters nothing any more."""
    return lambda client: client.admin.drain(node)


# --- Coming and going -------------------------------------------------------------------------------------------------

GROWING = {"logs": [{"name": "main", "master": "a", "mirrors": ["b"], "copies": 3, "flush": "memory"}]}
"""A log on two nodes that shall be on three."""
LARGE = 3_000
"""Bytes: some hundred records are more than is under way at a time."""


@pytest.mark.story("003:15")
@pytest.mark.story("003:16a")
@pytest.mark.story("003:16b")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_joins_takes_over_what_there_is_while_all_goes_on(seed: int) -> None:
    """Goal: a new node has queues and records of before, and nobody waits for it meanwhile. Method: let one join over a
    slow way, by seeds of which one does not exist, while records are published: those go on as fast as before, and in
    the end the new copy is read as the others are."""

    async def story(world: World) -> None:
        group = Group(world, "ab", settings=GROWING)
        await group.formed()
        stream = Stream(group, padding=LARGE)
        await stream.more(300)
        stream.pause_s = 0.1
        usual_s = stream.longest_s
        for name in "ab":
            world.network.lengthen(name, "c", 0.03)
        group.join("c", ["nobody", "b"])
        await world.until(lambda: group.end("c") > 0, within_s=30, otherwise="c holds nothing")
        before = stream.confirmed
        await group.whole()
        assert stream.confirmed > before, "nothing was published during the transfer"
        assert stream.longest_s < usual_s + 1.0
        await stream.more()
        await stream.stop()
        await stream.check()

    tell(story, seed)


@pytest.mark.story("003:23a")
def test_every_coming_and_going_is_a_view_that_all_have_alike() -> None:
    """Goal: nodes agree on who is there, by a number that only grows. Method: join, kill and start, stop, forget:
    after each, all nodes tell the same view, of a higher version."""

    async def story(world: World) -> None:
        group = Group(world, "ab", settings=GROWING)
        await group.formed()
        versions = [await group.version()]

        async def seen() -> None:
            await group.whole()
            versions.append(await group.version())

        group.join("c", ["a"])
        await seen()
        group.nodes["b"].machine.kill()
        group.nodes["b"].start()
        await seen()
        node = group.nodes["c"]
        assert node.node is not None
        node.machine.ask_to_stop(node.node.stop)
        await world.until(lambda: not node.machine.up, within_s=20, otherwise="c does not stop")
        del group.nodes["c"]
        await group.do(forgetting("c"))
        await seen()
        assert versions == sorted(set(versions)), versions

    tell(story, 0)


def forgetting(node: str) -> Callable[[Client], Awaitable[None]]:
    return lambda client: client.admin.forget_node(node)


@pytest.mark.story("003:22a")
@pytest.mark.story("003:23b")
def test_every_node_names_the_master_and_where_clients_reach_it() -> None:
    """Goal: whoever is asked knows whom to go to, before a failover and after. Method: ask each node by itself: all
    name one master, with the address of its port for clients, not that of replication."""

    async def story(world: World) -> None:
        group = Group(world)

        async def check(master: str) -> None:
            await group.whole()
            await group.caught_up()
            told = [await group.do(told_of_master(node.client_address)) for node in group.nodes.values()]
            assert set(told) == {(master, group.nodes[master].client_address)}

        await group.formed()
        await group.do(declare)
        await check("a")
        group.nodes["a"].machine.kill()
        master = await group.master_but("a")
        group.nodes["a"].start()
        await check(master)

    tell(story, 0)


def told_of_master(address: str) -> Callable[[Client], Awaitable[tuple[str, str]]]:
    """Node and address of the queue's master, as the node there has it."""

    async def ask(client: Client) -> tuple[str, str]:
        connection = await client.connection_to(address)
        told = await connection.request(GetMetadata(), Metadata, timeout_ms=1_000)
        (queue,) = told.queues
        return queue.master, next(node.client for node in told.nodes if node.node_id == queue.master)

    return ask


@pytest.mark.story("003:23c")
def test_watchers_that_block_delay_nobody() -> None:
    """Goal: whoever is told of changes cannot hold them up. Method: somebody asks every node for events, again and
    again, and then stands still without reading an answer; kill the master: publishes go on as soon as without him,
    and another watcher is told of it."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        stream = Stream(group)
        await stream.more()
        blocked = group.send(asking_for_events, machine="blocked")
        await asyncio.sleep(1.0)
        world.machines["blocked"].pause()
        watcher = group.send(told_of_kind("promoted"), to="c")
        await asyncio.sleep(0.5)
        group.nodes["a"].machine.kill()
        await stream.more(within_s=5.0)
        assert stream.longest_s < 2.0
        assert await group.back(watcher) == group.master
        assert not blocked.done
        await group.formed()
        await stream.stop()
        await stream.check()

    tell(story, 0)


async def asking_for_events(client: Client) -> None:
    """Many questions at once to each node, those that are answered anew; never ends."""

    async def ask(address: str) -> None:
        connection = await client.connection_to(address)
        after = 0
        while True:
            asked = GetEvents(after=after, wait_ms=30_000, limit=1_000)
            events = await connection.request(asked, Events, timeout_ms=60_000)
            after = events.last if after else max(0, events.last - 3)

    await asyncio.gather(*(ask(address) for address in client.servers for _ in range(30)))


def told_of_kind(kind: str) -> Callable[[Client], Awaitable[str]]:
    """The node of the next event of that kind."""

    async def watch(client: Client) -> str:
        after = (await client.admin.events()).last
        while True:
            told = await client.admin.events(after=after, wait_ms=10_000)
            for event in told.events:
                if event.kind == kind:
                    return event.node
            after = told.last

    return watch


# --- A new master, and those that come back ---------------------------------------------------------------------------


@pytest.mark.story("003:23d")
def test_a_new_master_confirms_nothing_before_its_members_follow_it() -> None:
    """Goal: no message goes by the old view. Method: of the in-sync copies one stands still, not for long enough to be
    counted out, while the master dies and the third takes over: what is published there is not confirmed and not seen,
    whatever its level, until the one that stood still holds the new epoch."""

    async def story(world: World) -> None:
        patient = {"node_timeout_ms": 60_000, "mirror_lag_time_ms": 60_000}
        group = Group(world, "abcde", copies=3, min_in_sync=1, settings=patient)
        await group.formed()
        await group.do(publishing([b"before"]))
        await group.caught_up()
        group.nodes["c"].machine.pause()
        group.nodes["a"].machine.kill()
        assert await group.master_but("a") == "b"
        (receipt,) = await group.do(publishing([b"after"], confirm="master"), to="bde")
        assert receipt.copies == 1
        error = await group.do(failing(b"too", delivery_timeout_ms=3_000), to="bde")
        assert isinstance(error, OutcomeUnknown), repr(error)
        assert await group.do(reading(node="b"), to="bde") == [b"before"]
        group.nodes["c"].machine.resume()
        assert await group.do(reading(3, node="b"), to="bde") == [b"before", b"after", b"too"]

    tell(story, 0)


@pytest.mark.story("003:24")
@pytest.mark.parametrize("seed", SEEDS)
def test_after_a_cut_the_smaller_side_takes_over_what_the_larger_one_has(seed: int) -> None:
    """Goal: sides that meet again become one, by what the majority decided. Method: cut the master off while somebody
    with it publishes at a level that it can answer alone; the others choose another master and go on; after the cut the
    former master follows, without what only it had, and its bytes are those of the others."""

    async def story(world: World) -> None:
        group = Group(world, settings={"node_timeout_ms": 1_000})
        await group.formed()
        stream = Stream(group, to="bc", machine="far")
        await stream.more()
        world.network.cut_off({"a", "near"}, {"b", "c", "far"})
        near = group.send(near_only, to="a", machine="near")
        await group.master_but("a")
        await stream.more()
        world.network.heal()
        await group.back(near)
        await group.whole()
        await stream.more()
        await stream.stop()
        await stream.check()
        await group.caught_up()
        assert len({group.written(name) for name in group.nodes}) == 1

    tell(story, seed)


async def near_only(client: Client) -> None:
    """Publishes for the master alone, until that is refused."""
    with suppress(MirrorlogError):
        async with client.producer("q", confirm="master", idempotent=False, delivery_timeout_ms=2_000) as producer:
            for number in range(10):
                await producer.send(b"near %d" % number)


# --- Four races -------------------------------------------------------------------------------------------------------


@pytest.mark.story("003:28a")
@pytest.mark.parametrize("moment", ["asks", "begins", "half", "end"])
def test_a_race_of_joining_and_failover(moment: str) -> None:
    """Goal: a group is not at rest when a node comes. Method: let one join under publishing, and kill the master when
    the new one asks, when its copy begins, is half done or nearly whole; start it again: all is there once."""

    async def story(world: World) -> None:
        logs = [{"name": "main", "master": "a", "mirrors": ["b", "e"], "copies": 4, "flush": "memory"}]
        group = Group(world, "abe", settings={"logs": logs})
        await group.formed()
        stream = Stream(group, padding=LARGE)
        await stream.more(200)
        goal = {"asks": -2, "begins": 0, "half": group.end("a") // 2, "end": group.end("a") - 10 * LARGE}[moment]
        world.network.lengthen("a", "c", 0.02)
        group.join("c", ["b"])
        await world.until(lambda: group.end("c") > goal, within_s=30, otherwise="c has not come that far")
        group.nodes["a"].machine.kill()
        await group.master_but("a")
        await stream.more()
        await group.formed()
        await stream.more()
        await stream.stop()
        await stream.check()

    tell(story, moment)


@pytest.mark.story("003:28b")
@pytest.mark.parametrize("seed", range(4))
def test_a_race_of_cuts_and_everything_else(seed: int) -> None:
    """Goal: a cut, or its end, may come at any time. Method: cut off one node after the other, or single ways between
    two, for shorter and longer than anybody waits, with a handover or a death now and then; all that was sent is
    confirmed in the end, and is there once, everywhere."""

    async def story(world: World) -> None:
        group = Group(world, settings={"node_timeout_ms": 600, "mirror_lag_time_ms": 600})
        await group.formed()
        stream = Stream(group)
        chance = world.random
        for _ in range(6):
            one, *others = chance.sample(sorted(group.nodes), 3)
            if chance.random() < 0.5:
                world.network.cut_off({one}, others)
            else:
                world.network.cut(one, others[0])
            await asyncio.sleep(chance.choice([0.02, 0.3, 0.7, 3.0]))
            deed = chance.choice(["nothing", "kill", "drain"])
            if deed == "kill":
                group.nodes[others[0]].machine.kill()
            if deed == "drain":
                group.send(draining_for_a_while(one))
            await asyncio.sleep(chance.choice([0.02, 0.3, 0.7]))
            world.network.heal()
            await asyncio.sleep(chance.choice([0.02, 0.3, 0.7]))
            if not group.nodes[others[0]].machine.up:
                group.nodes[others[0]].start()
        await group.whole(within_s=60)
        await stream.more()
        await stream.stop()
        await stream.check()

    tell(story, seed)


def draining_for_a_while(node: str) -> Callable[[Client], Awaitable[None]]:
    async def drain(client: Client) -> None:
        for draining in (True, False):
            while True:
                with suppress(MirrorlogError):
                    await client.admin.drain(node, draining=draining)
                    break
                await asyncio.sleep(AGAIN_S)

    return drain


@pytest.mark.story("003:28c")
@pytest.mark.parametrize("late", ["b", "c"])
def test_a_race_of_views_and_records(late: str) -> None:
    """Goal: nothing rests on hearing of a new master before, or after, its records come. Method: the way from the
    coordinator to the next master, or to the copy beside it, is long, that between the two is short; hand the log over:
    no two write in one epoch, and what is sent is there once."""

    async def story(world: World) -> bool:
        group = Group(world, "abcde", copies=3)
        await group.formed()
        view = (await group.views())["a"]
        assert view is not None
        if view.coordinator not in "ade":
            return False
        stream = Stream(group, to="abde")
        await stream.more()
        for name in "ade":
            world.network.lengthen(name, late, 0.3)
        await group.do(handing_over("a"))
        await group.master_but("a")
        await stream.more()
        await group.whole()
        world.network.heal()
        await stream.stop()
        await stream.check()
        return True

    assert sum(tell(story, seed) for seed in range(4)) > 0, "no seed had the coordinator beside the two"


@pytest.mark.story("003:28d")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_race_of_the_transfer_and_new_records(seed: int) -> None:
    """Goal: what is sent during the transfer is there once, also when the transfer breaks off. Method: let a node join
    under publishing, and reset its links, kill it and cut it off on the way; in the end it has everything once, in
    order, and is one of those that can take over."""

    async def story(world: World) -> None:
        group = Group(world, "ab", settings=GROWING)
        await group.formed()
        stream = Stream(group, padding=LARGE)
        await stream.more(300)
        stream.pause_s = 0.1
        for name in "ab":
            world.network.lengthen(name, "c", 0.02)
        group.join("c", ["a"])
        for share, deed in ((0.1, "reset"), (0.3, "kill"), (0.6, "cut"), (0.8, "reset")):
            goal = int(share * group.end("a"))
            await world.until(lambda least=goal: group.end("c") >= least, within_s=30, otherwise="c goes not on")
            if deed == "reset":
                assert world.network.reset("c", "a") + world.network.reset("c", "b")
            elif deed == "kill":
                group.nodes["c"].machine.kill()
                group.nodes["c"].start()
            else:
                world.network.cut_off({"c"}, {"a", "b"})
                await asyncio.sleep(1.0)
                for name in "ab":
                    world.network.mend(name, "c")
        await group.whole()
        group.nodes["a"].machine.kill()
        await group.master_but("a")
        await stream.more()
        await group.formed()
        await stream.stop()
        await stream.check()

    tell(story, seed)


# --- What others hit --------------------------------------------------------------------------------------------------


def test_short_cuts_of_a_link_leave_no_mirror_behind() -> None:
    """Goal: a mirror comes in again after any blip. Method: cut a mirror off for times around every clock there is,
    with resets, under publishing: after each it is in sync again."""

    async def story(world: World) -> None:
        group = Group(world, settings={"node_timeout_ms": 500, "mirror_lag_time_ms": 400})
        await group.formed()
        stream = Stream(group)
        for cut_s in (0.005, 0.1, 0.39, 0.41, 0.49, 0.51, 1.0, 2.0):
            world.network.cut_off({"c"}, {"a", "b"})
            await asyncio.sleep(cut_s)
            world.network.heal()
            if cut_s < 0.5:
                world.network.reset("a", "c")
            await group.whole(within_s=15)
        await stream.more()
        await stream.stop()
        await stream.check()

    tell(story, 0)


@pytest.mark.parametrize("way_s", [0.02, 0.08])
def test_a_mirror_that_is_further_away_is_let_in_while_publishing_goes_on(way_s: float) -> None:
    """Goal: a copy that keeps up comes in, also when it is never quite there, and costs publishes no more than its way.
    Method: the way to a mirror is longer than the time between two publishes, which the others confirm; it is let in
    all the same, and no publish waits for much longer than for its ack."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        for name in "ab":
            world.network.lengthen(name, "c", way_s)
        stream = Stream(group)
        group.nodes["c"].machine.kill()
        await stream.more()
        stream.longest_s = 0.0
        group.nodes["c"].start()
        await group.whole()
        assert stream.longest_s < 2 * way_s + 0.1
        await stream.stop()
        await stream.check()

    tell(story, 0)


def test_a_mirror_that_falls_silent_while_it_is_waited_for_holds_nobody_up_for_long() -> None:
    """Goal: whoever is to come in may cost a moment, and no more. Method: cut the way back from a mirror that follows
    from afar, in the moment in which confirms begin to wait for it: they go on within about a second, without it; with
    the way mended it comes in."""

    async def story(world: World) -> None:
        group = Group(world, settings={"node_timeout_ms": 20_000, "mirror_lag_time_ms": 20_000})
        await group.formed()
        world.network.lengthen("a", "c", 0.08)
        stream = Stream(group)
        group.nodes["c"].machine.kill()
        await stream.more()
        stream.longest_s = 0.0
        group.nodes["c"].start()
        role = group.log("a").role  # type: ignore[union-attr]
        assert isinstance(role, MasterRole)
        await world.until(lambda: role.mastership.awaited, within_s=20, otherwise="nobody waits for c")
        world.network.cut("c", "a")
        await stream.more(50)
        assert CATCH_UP_S / 2 < stream.longest_s < CATCH_UP_S + 0.2
        world.network.mend("c", "a")
        await group.whole()
        await stream.stop()
        await stream.check()

    tell(story, 0)


def test_an_idle_group_stays_as_it_is() -> None:
    """Goal: signs of life do not depend on data. Method: two minutes without a publish, many times longer than any
    timeout: no link ends, nobody is elected or leaves, and the view is the one of before."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(publishing([b"once"]))
        await group.whole()
        before = await group.views()
        connected = world.network.seen["connected"]
        await asyncio.sleep(120.0)
        assert world.network.seen["connected"] == connected
        after = await group.views()
        assert after == before

    tell(story, 0)


def test_a_mirror_whose_disk_takes_nothing_does_not_stop_the_others() -> None:
    """Goal: one sick copy costs its lag time, and then nothing. Method: fill a mirror's disk under publishing: confirms
    go on without it; with space again it is let in again."""

    async def story(world: World) -> None:
        group = Group(world, settings={"mirror_lag_time_ms": 1_000})
        await group.formed()
        stream = Stream(group, padding=LARGE)
        await stream.more()
        group.nodes["c"].machine.files.limit(400 * 1024)
        await stream.more(400, within_s=60)
        view = (await group.views())["a"]
        assert view is not None
        assert set(view.logs[0].in_sync) == {"a", "b"}
        assert stream.longest_s < 6.0
        group.nodes["c"].machine.files.limit(None)
        await group.whole()
        await stream.stop()
        await stream.check()

    tell(story, 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_groups_position_does_not_go_back_in_a_failover(seed: int) -> None:
    """Goal: positions are as safe as records. Method: read and commit, kill the master when the commit is answered: the
    next one has the position, and the group goes on behind it."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        values = [b"%d" % number for number in range(30)]
        await group.do(publishing(values))
        first = await group.do(reading_in_group(10))
        group.nodes[group.master].machine.kill()
        second = await group.do(reading_in_group(20))
        assert [*first, *second] == values

    tell(story, seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_goes_on_after_all_lost_their_power(seed: int) -> None:
    """Goal: a position never stands beyond the log and waits there for ever. Method: a memory log, read and committed
    to its end; all machines lose their power at once; what is published then reaches the group."""

    async def story(world: World) -> None:
        group = Group(world)
        await group.formed()
        await group.do(publishing([b"%d" % number for number in range(30)]))
        await group.do(reading_in_group(30))
        for node in group.nodes.values():
            node.machine.lose_power()
        await group.formed(within_s=60)
        await group.do(publishing([b"new"]))
        assert b"new" in await group.do(reading_in_group(up_to=b"new"))

    tell(story, seed)


def reading_in_group(count: int = 0, *, up_to: bytes = b"") -> Callable[[Client], Awaitable[list[bytes]]]:
    """The next so many; or all up to that one, what was declared as lost left out. And the commit behind them."""

    async def read(client: Client) -> list[bytes]:
        found: list[bytes] = []
        async with client.consumer("q", group="g") as consumer:
            while len(found) < count or (up_to and up_to not in found):
                try:
                    records = await consumer.read(max(1, count - len(found)), timeout_ms=20_000)
                except PositionLost as lost:
                    assert up_to, "nothing was lost"
                    await consumer.seek(lost.details["go_on_at"])
                    continue
                found += [bytes(record.value or b"") for record in records]
            await consumer.commit()
        return found

    return read
