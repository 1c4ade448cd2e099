"""Members with real disks on one loop: they elect, agree, come back, and end when a disk fails."""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from mirrorlog.cluster import driver
from mirrorlog.cluster.driver import RaftDriver
from mirrorlog.cluster.raft.core import Raft
from mirrorlog.cluster.raft.leadership import Timing
from mirrorlog.cluster.raft.messages import AnyMessage, HardState, Members, Snapshot, Stored
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import Addresses, NodeJoined
from mirrorlog.cluster.state.machine import AppliedEntry, Machine
from mirrorlog.cluster.state.state import ClusterState, Outcome, encode_state
from mirrorlog.commitlog.files import Files, OsFiles
from mirrorlog.errors import DiskFailed, MirrorlogError
from sim.disk import SimulatedFiles
from tests.cluster.ports import WAIT_S, until
from tests.commitlog.faulty import FaultyFiles

_T = TypeVar("_T")

FOUNDING = Snapshot(0, 0, Members((1, 2, 3)), encode_state(ClusterState("id", "name")))


class Watching:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.steps: list[AppliedEntry] = []
        self.reads: dict[Hashable, int | None] = {}

    def applied(self, step: AppliedEntry) -> None:
        self.steps.append(step)

    def restored(self) -> None: ...

    def read_ready(self, token: Hashable, index: int | None) -> None:
        self.reads[token] = index


class Mesh:
    """Members by number, each message delivered in a turn of the loop of its own; those in `cut_off` get none.

    `helper`: makes what stores for a member.
    """

    helper: Callable[[], Executor] = partial(ThreadPoolExecutor, 1)

    def __init__(self, directory: Path) -> None:
        self.drivers: dict[int, RaftDriver] = {}
        self.watchers: dict[int, Watching] = {}
        self.failures: dict[int, MirrorlogError] = {}
        self.cut_off: set[int] = set()
        self._directory = directory
        self._helpers: dict[int, Executor] = {}

    def start(self, number: int, files: Files | None = None) -> RaftDriver:
        files, directory = files or OsFiles(), self._directory / str(number)
        found = RaftStore.open(files, directory)
        if found is None:
            found = RaftStore.create(files, directory, own=number, snapshot=FOUNDING), Stored(HardState(), FOUNDING)
        store, stored = found
        # Slow enough that a busy machine does not elect for ever.
        timing = Timing(heartbeat_s=0.05, election_s=0.5)
        now = asyncio.get_running_loop().time()
        self._helpers[number] = self.helper()
        self.watchers[number] = Watching()
        self.drivers[number] = RaftDriver(
            Raft(number, stored, chance=Random(number), now=now, timing=timing),
            store,
            Machine(stored.snapshot),
            send=self._send,
            watcher=self.watchers[number],
            helper=self._helpers[number],
            failed=partial(self._failed, number),
        )
        self.drivers[number].start()
        return self.drivers[number]

    async def stop(self, number: int) -> None:
        await self.drivers.pop(number).stop()
        self._helpers.pop(number).shutdown()

    def _failed(self, number: int, error: MirrorlogError) -> None:
        self.failures[number] = error

    def _send(self, message: AnyMessage) -> None:
        if not {message.sender, message.to} & self.cut_off and message.to in self.drivers:
            asyncio.get_running_loop().call_soon(self._deliver, message)

    def _deliver(self, message: AnyMessage) -> None:
        if message.to in self.drivers and message.to not in self.cut_off:
            self.drivers[message.to].receive(message)

    async def leader(self) -> RaftDriver:
        return await until(
            lambda: next((each for each in self.drivers.values() if each.raft.settled and self._reaches(each)), None)
        )

    def _reaches(self, each: RaftDriver) -> bool:
        return each.raft.own not in self.cut_off

    async def join(self, node: str) -> Outcome:
        """Propose it to whoever leads, until somebody has an answer."""
        while True:
            leader = await self.leader()
            answer: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
            command = NodeJoined(node=node, addresses=Addresses())
            leader.machine.wait(leader.raft.propose(encode_command(command)), leader.raft.term, answer.set_result)
            leader.wake()
            if (outcome := await asyncio.wait_for(answer, WAIT_S)) is not None:
                return outcome


@asynccontextmanager
async def mesh(directory: Path) -> AsyncIterator[Mesh]:
    found = Mesh(directory)
    try:
        for number in (1, 2, 3):
            found.start(number)
        yield found
    finally:
        for number in list(found.drivers):
            await found.stop(number)


def test_three_members_agree_on_what_one_was_told(tmp_path: Path) -> None:
    """By a proposal to the leader, seen on all of them."""

    async def run() -> None:
        async with mesh(tmp_path) as found:
            outcome = await found.join("a")
            assert outcome.refusal == ""
            await until(lambda: all("a" in each.machine.state.nodes for each in found.drivers.values()))
            assert {each.machine.state.nodes["a"].member for each in found.drivers.values()} == {outcome.index}

    asyncio.run(run())


def test_a_new_leader_goes_on_where_the_old_one_was_cut_off(tmp_path: Path) -> None:
    """And the old one takes over what was decided without it; by cutting it off and healing."""

    async def run() -> None:
        async with mesh(tmp_path) as found:
            await found.join("a")
            old = await found.leader()
            found.cut_off = {old.raft.own}
            await found.join("b")
            await until(lambda: old.raft.leader == 0)
            found.cut_off = set()
            await until(lambda: "b" in old.machine.state.nodes)
            assert list(old.machine.state.nodes) == ["a", "b"]

    asyncio.run(run())


def test_a_member_that_stopped_comes_back_with_what_it_had(tmp_path: Path) -> None:
    """From its own disk, and the rest from the others; by stopping all and starting them again."""

    async def run() -> None:
        async with mesh(tmp_path) as found:
            await found.join("a")
            for number in (1, 2, 3):
                await found.stop(number)
            for number in (1, 2):
                found.start(number)
            await found.join("b")
            found.start(3)
            await until(lambda: list(found.drivers[3].machine.state.nodes) == ["a", "b"])

    asyncio.run(run())


class StandingLoop(asyncio.SelectorEventLoop):
    """`now` goes on while the loop waits for a timer, by as much as it waits for, and not with what a machine has to do
    beside it."""

    def __init__(self) -> None:
        self.now = 100.0
        selector = selectors.DefaultSelector()
        self._select, selector.select = selector.select, self._waited  # type: ignore[method-assign]
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    def _waited(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._select(None if timeout is None else 0)
        self.now += (timeout or 0) if not events else 0
        return events


class AtOnce(Executor):
    """Stores within the turn that asks for it."""

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        done: Future[_T] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def test_who_was_late_himself_reads_first_what_was_said_meanwhile(tmp_path: Path) -> None:
    """Goal: a loop that stood still takes nobody for gone. Method: messages lie in sockets until a loop reads them; the
    loop of all three is held up for longer than an election takes; the term stays."""

    class Sockets(Mesh):
        """Messages are there when the loop has looked at its sockets, and not before."""

        helper = AtOnce

        def __init__(self, directory: Path) -> None:
            super().__init__(directory)
            self.unread: deque[AnyMessage] = deque()
            self.ends = socket.socketpair()
            self.ends[0].setblocking(False)
            asyncio.get_running_loop().add_reader(self.ends[0], self._read)

        def _send(self, message: AnyMessage) -> None:
            self.unread.append(message)
            self.ends[1].send(b"!")

        def _read(self) -> None:
            self.ends[0].recv(1 << 16)
            while self.unread:
                self._deliver(self.unread.popleft())

    async def run() -> None:
        found = Sockets(tmp_path)
        try:
            for number in (1, 2, 3):
                found.start(number)
            leader = await found.leader()
            term = leader.raft.term
            for name in ("a", "b", "c", "d"):
                loop.now += 0.9
                await found.join(name)
            assert {each.raft.term for each in found.drivers.values()} == {term}
        finally:
            asyncio.get_running_loop().remove_reader(found.ends[0])
            for number in list(found.drivers):
                await found.stop(number)
            for end in found.ends:
                end.close()

    loop = StandingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())


def test_a_long_journal_becomes_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a start reads instead; by a limit of a few entries."""
    monkeypatch.setattr(driver, "JOURNAL_BYTES_MAX", 500)

    async def run() -> None:
        async with mesh(tmp_path) as found:
            for number in range(20):
                await found.join(f"n{number}")
            leader = await found.leader()
            assert leader.raft.log.snapshot.index > 0
            for number in (1, 2, 3):
                await found.stop(number)
            for number in (1, 2, 3):
                found.start(number)
            await until(lambda: all(len(each.machine.state.nodes) == 20 for each in found.drivers.values()))

    asyncio.run(run())


def test_a_read_waits_for_a_round_and_sees_what_was_decided_before(tmp_path: Path) -> None:
    """By reading on the leader, and on one that was cut off meanwhile."""

    async def run() -> None:
        async with mesh(tmp_path) as found:
            outcome = await found.join("a")
            leader = await found.leader()
            leader.raft.read("now")
            leader.wake()
            watcher = found.watchers[leader.raft.own]
            index = await until(lambda: watcher.reads.get("now"))
            assert index >= outcome.index
            found.cut_off = {leader.raft.own}
            leader.raft.read("late")
            leader.wake()
            await until(lambda: "late" in watcher.reads)
            assert watcher.reads["late"] is None

    asyncio.run(run())


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.ENOSPC])
def test_a_snapshot_that_is_refused_is_taken_later_and_ends_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A journal grows on while nothing can be opened beside it, and is replaced when it can; by a leader whose system
    refuses that a few times."""
    monkeypatch.setattr(driver, "JOURNAL_BYTES_MAX", 500)
    monkeypatch.setattr(driver, "SNAPSHOT_REFUSED_S", 0.0)

    async def run() -> None:
        async with mesh(tmp_path) as found:
            await found.join("a")
            files: dict[int, FaultyFiles] = {}
            for number in (1, 2, 3):
                await found.stop(number)
                files[number] = FaultyFiles()
                found.start(number, files[number])
            leader = await found.leader()
            for each in files.values():
                each.disk.refuse(code)
            before = {number: each.disk.calls["open_directory"] for number, each in files.items()}
            for number in range(8):
                await found.join(f"node-{number}")
            index = leader.raft.log.snapshot.index
            await until(lambda: all(each.disk.calls["open_directory"] > before[n] for n, each in files.items()))
            for each in files.values():
                each.disk.heal()
            await found.join("z")
            await until(lambda: all(each.raft.log.snapshot.index > index for each in found.drivers.values()))
            assert found.failures == {}
            for number in (1, 2, 3):
                await found.stop(number)
                found.start(number)
            await until(lambda: all("z" in each.machine.state.nodes for each in found.drivers.values()))

    asyncio.run(run())


def test_a_leaders_snapshot_that_is_refused_is_stored_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that lacks descriptors when a snapshot comes says nothing until it has it; by one that was away while
    the others' journals were replaced, and they were started again."""
    monkeypatch.setattr(driver, "JOURNAL_BYTES_MAX", 500)

    async def run() -> None:
        async with mesh(tmp_path) as found:
            await found.join("a")
            await found.stop(3)
            for number in range(8):
                await found.join(f"node-{number}")
            for number in (1, 2):
                await until(lambda: found.drivers[number].raft.log.snapshot.index > 0)  # noqa: B023
                await found.stop(number)
                found.start(number)
            files = FaultyFiles()
            late = found.start(3, files)
            files.disk.refuse()
            before = files.disk.calls["open_directory"]
            await until(lambda: files.disk.calls["open_directory"] > before + 2)
            assert len(late.machine.state.nodes) < 9
            files.disk.heal()
            await until(lambda: len(late.machine.state.nodes) == 9)
            assert found.failures == {}

    asyncio.run(run())


def test_a_disk_that_fails_ends_its_member_and_no_other(tmp_path: Path) -> None:
    """By a sync that fails on a simulated disk."""

    async def run() -> None:
        async with mesh(tmp_path) as found:
            await found.join("a")
            await found.stop(3)
            files = SimulatedFiles(tmp_path / "3", seed=1)
            RaftStore.create(files, tmp_path / "3", own=3, snapshot=FOUNDING).close()
            files.faults.fail("fdatasync", errno.EIO)
            found.start(3, files)
            assert isinstance(await until(lambda: found.failures.get(3)), DiskFailed)
            assert (await found.join("b")).refusal == ""

    asyncio.run(run())
