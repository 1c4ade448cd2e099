"""A node comes to its cluster once, whenever it is killed on the way, and to no other."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from uuid import UUID, uuid4

import msgspec
import pytest

from mirrorlog.broker.membership.entry import RAFT_NAME, Entered, Entry
from mirrorlog.cluster.membership.discovery import Looks, in_order
from mirrorlog.cluster.membership.joining import JoinRecord
from mirrorlog.cluster.membership.seeds import SeekingPort
from mirrorlog.cluster.raft.messages import Members, Snapshot
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.requests import AnyAnswer, AnyQuestion, AskJoin, Joined
from mirrorlog.cluster.state.commands import Addresses
from mirrorlog.cluster.state.state import ClusterState, NodeFacts, encode_state
from mirrorlog.commitlog.directory import DataDirectory
from mirrorlog.commitlog.files import OS_FILES
from mirrorlog.config import LimitSettings, Settings, load_settings
from mirrorlog.errors import ForeignDirectory, MirrorlogError, NotAMember, NotLeader, WrongCluster
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.messages.handshake import Welcome
from tests.cluster.ports import until

ONE, OTHER = UUID(int=1), UUID(int=2)
SNAPSHOT = Snapshot(
    9, 2, Members((1,)), encode_state(ClusterState(str(ONE), "one", nodes={"n1": NodeFacts(7, Addresses())}))
)


class Seed(SeekingPort):
    """A member of cluster `ONE`, which lets everybody in as member 7, unless `refusals` are left."""

    cluster_id = str(ONE)

    def __init__(self, address: str) -> None:
        super().__init__(Looks("seed", "s", address, ()), LimitSettings())
        self.tokens: list[str] = []
        self.refusals: list[MirrorlogError] = []

    def welcome(self, version: int) -> Welcome:
        return msgspec.structs.replace(super().welcome(version), cluster_name="one")

    async def answer(self, question: AnyQuestion) -> AnyAnswer:
        assert isinstance(question, AskJoin)
        self.tokens.append(question.token)
        if self.refusals:
            raise self.refusals.pop()
        return Joined(member=7, snapshot=SNAPSHOT)


@pytest.fixture
def address() -> str:
    return f"{HOST}:{free_ports(1)[0]}"


@asynccontextmanager
async def listening(port: SeekingPort) -> AsyncIterator[None]:
    await port.start(port.own.address)
    try:
        yield
    finally:
        await port.stop()


def settings(path: Path, *join: str, **more: str) -> Settings:
    """Of node n1, on a port of its own."""
    flags = [f"node.data_dir='{path}'", f"replication.bind='{HOST}:{free_ports(1)[0]}'"]
    flags += [f"cluster.join={list(join)}"] if join else []
    return load_settings(None, [*flags, *(f"{key.replace('__', '.')}={value}" for key, value in more.items())], {})


async def entered(made: Settings, *, bootstrap: bool = False, discard: bool = False) -> Entered:
    """Its directory is free again, as after a kill."""
    async with asyncio.timeout(20):
        found = await Entry(made, OS_FILES, bootstrap=bootstrap, discard=discard).enter()
    found.directory.close()
    return found


def store_of(path: Path, cluster_id: UUID, name: str) -> None:
    """The disk of a member."""
    with closing(DataDirectory.open(path, cluster_id=cluster_id, node_id="n1")):
        state = encode_state(ClusterState(str(cluster_id), name))
        RaftStore.create(OS_FILES, path / RAFT_NAME, own=3, snapshot=Snapshot(1, 1, Members((3,)), state)).close()


def said(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    return any(text in record.getMessage() for record in caplog.records)


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO):
        yield


def test_a_node_that_was_let_in_asks_nobody_again(tmp_path: Path, address: str) -> None:
    """By a kill behind the answer, and seeds that are gone then."""

    async def run() -> None:
        seed = Seed(address)
        async with listening(seed):
            first = await entered(settings(tmp_path, address))
        assert (first.own, first.snapshot) == (7, SNAPSHOT)
        assert (first.settings.cluster.cluster_id, first.settings.cluster.name) == (ONE, "one")
        again = await entered(settings(tmp_path, address))
        assert (again.own, again.snapshot) == (7, SNAPSHOT)
        assert len(seed.tokens) == 1

    asyncio.run(run())


def test_an_answer_that_was_lost_is_asked_for_by_the_same_token(tmp_path: Path, address: str) -> None:
    """By a seed that fails twice."""

    async def run() -> None:
        seed = Seed(address)
        seed.refusals = [NotLeader("nobody leads"), NotLeader("nobody leads")]
        async with listening(seed):
            assert (await entered(settings(tmp_path, address))).own == 7
        assert len(seed.tokens) == 3
        assert len(set(seed.tokens)) == 1

    asyncio.run(run())


def test_a_cluster_that_wants_nobody_ends_it(tmp_path: Path, address: str) -> None:
    """And the next start asks again, as the same; by a refusal and a second start."""

    async def run() -> None:
        seed = Seed(address)
        seed.refusals = [NotAMember("forget it first")]
        async with listening(seed):
            with pytest.raises(NotAMember, match="forget it first"):
                await entered(settings(tmp_path, address))
            assert (await entered(settings(tmp_path, address))).own == 7
        assert len(set(seed.tokens)) == 1

    asyncio.run(run())


def test_a_node_that_has_asked_one_cluster_founds_no_other(
    tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be in it; by a disk that has asked, and seeds that all look. It does not answer them either."""

    async def run() -> None:
        with closing(DataDirectory.open(tmp_path, cluster_id=ONE, node_id="n1")):
            JoinRecord.open(OS_FILES, tmp_path)
        made = settings(tmp_path)
        seeds = in_order([made.replication_bind, address])
        made = made.model_copy(update={"cluster": made.cluster.model_copy(update={"join": seeds})})
        async with listening(SeekingPort(Looks("r", "n2", address, seeds), LimitSettings())):
            waiting = asyncio.ensure_future(entered(made))
            await until(lambda: said(caplog, "no seed that answers does") or waiting.done())
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        with pytest.raises(ForeignDirectory, match="a new cluster"):
            await entered(made, bootstrap=True)

    asyncio.run(run())


def test_a_wait_that_is_given_up_leaves_port_and_directory_free(
    tmp_path: Path, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    """By giving up the search of a node that is alone, twice."""

    async def run() -> None:
        made = settings(tmp_path, address)
        for _ in range(2):
            waiting = asyncio.ensure_future(entered(made))
            await until(lambda: said(caplog, f"{address} comes first"))
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            caplog.clear()
        async with listening(Seed(address)):
            assert (await entered(made)).own == 7

    asyncio.run(run())


def test_a_directory_with_nothing_but_a_name_is_blank(tmp_path: Path, address: str) -> None:
    """Its node was killed before it had asked or founded; by joining another cluster with it."""

    async def run() -> None:
        DataDirectory.open(tmp_path, cluster_id=OTHER, node_id="n1").close()
        async with listening(Seed(address)):
            assert (await entered(settings(tmp_path, address))).settings.cluster.cluster_id == ONE

    asyncio.run(run())


def test_the_disk_of_another_cluster_is_refused_or_set_aside(tmp_path: Path, address: str) -> None:
    """By a member's disk, without --discard and with it; and once more behind a kill in the middle of the renames."""

    async def run() -> None:
        store_of(tmp_path, OTHER, "other")
        (tmp_path / "logs" / "x").mkdir()
        async with listening(Seed(address)):
            with pytest.raises(ForeignDirectory) as caught:
                await entered(settings(tmp_path, address))
            for text in (str(ONE), str(OTHER), "--discard"):
                assert text in str(caught.value)
            (tmp_path / "discarded-1").mkdir()
            (tmp_path / "logs").rename(tmp_path / "discarded-1" / "logs")  # as far as it came
            found = await entered(settings(tmp_path, address), discard=True)
        assert found.settings.cluster.cluster_id == ONE
        assert (tmp_path / "discarded-1" / "logs" / "x").exists()
        assert json.loads((tmp_path / "discarded-2" / "node.json").read_text())["cluster_id"] == str(OTHER)
        assert (tmp_path / "discarded-2" / RAFT_NAME).exists()

    asyncio.run(run())


def test_seeds_are_not_needed_by_who_is_in_a_cluster(tmp_path: Path, address: str) -> None:
    """By a member's disk and seeds that are gone, and --discard, which has nothing to do."""

    async def run() -> None:
        store_of(tmp_path, OTHER, "other")
        found = await entered(settings(tmp_path, address), discard=True)
        assert (found.own, found.settings.cluster.cluster_id, found.settings.cluster.name) == (3, OTHER, "other")
        with pytest.raises(ForeignDirectory, match="cluster third"):
            await entered(settings(tmp_path, cluster__name="third"))

    asyncio.run(run())


def test_another_cluster_than_the_one_that_is_meant_is_not_joined(tmp_path: Path, address: str) -> None:
    """By a name; nothing is written."""

    async def run() -> None:
        async with listening(Seed(address)):
            with pytest.raises(WrongCluster, match=str(ONE)):
                await entered(settings(tmp_path / "data", address, cluster__name="third"))
        assert not (tmp_path / "data").exists()

    asyncio.run(run())


def test_two_clusters_that_nobody_named_are_two(tmp_path: Path) -> None:
    """By two bootstraps, and by starting one of them again, before it has a store."""

    async def run() -> None:
        one, two = (settings(tmp_path / name) for name in ("one", "two"))
        ids = [(await entered(made, bootstrap=True)).settings.cluster.cluster_id for made in (one, two, one)]
        assert ids[0] == ids[2] != ids[1]
        named = settings(tmp_path / "three", cluster__name="x", cluster__id=f"'{uuid4()}'")
        assert (await entered(named, bootstrap=True)).settings.cluster.cluster_id == named.cluster.id

    asyncio.run(run())


def test_a_founder_that_was_killed_founds_the_same(tmp_path: Path) -> None:
    """By the only seed, which finds itself, killed before it has a store."""

    async def run() -> None:
        made = settings(tmp_path)
        made = made.model_copy(update={"cluster": made.cluster.model_copy(update={"join": (made.replication_bind,)})})
        first, again = await entered(made), await entered(made)
        assert first.own == again.own == 1
        assert first.snapshot == again.snapshot
        assert first.settings.cluster.cluster_id == again.settings.cluster.cluster_id

    asyncio.run(run())
