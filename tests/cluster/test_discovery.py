"""Nodes that look for a cluster come to one, whoever is there and whatever they are told."""

from __future__ import annotations

import asyncio
import random
from uuid import UUID

import pytest

from mirrorlog.cluster.membership.discovery import (
    Answer,
    FoundCluster,
    InCluster,
    Join,
    Looks,
    NoAnswer,
    Wait,
    decide,
    in_order,
)
from mirrorlog.cluster.membership.seeds import LINKS_MAX, SeekingPort, ask_to_join, look_at
from mirrorlog.cluster.requests import AskJoin
from mirrorlog.cluster.state.commands import Addresses
from mirrorlog.config import ClusterSettings, LimitSettings
from mirrorlog.errors import ConnectionLost, NotLeader, WrongCluster
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello

ONE, OTHER = UUID(int=1), UUID(int=2)
SEEDS = ("a:1", "b:1", "c:1")
ANY = ClusterSettings()
SILENT = NoAnswer("refused")


def looks(place: int, seeds: tuple[str, ...] = SEEDS) -> Looks:
    """The node at that seed."""
    return Looks(f"run {place}", f"n{place}", SEEDS[place], seeds)


def decided(place: int, *answers: Answer, wanted: ClusterSettings = ANY) -> object:
    """What the node at seed `place` does about the answers of all seeds, in their order."""
    return decide(looks(place), wanted, dict(zip(SEEDS, answers, strict=True)))


def test_a_cluster_that_is_there_is_joined() -> None:
    """By one answer of it among nodes that look, and by two."""
    there = InCluster(ONE, "x", "n9")
    assert decided(0, looks(0), looks(1), there) == Join(ONE, "x", ("c:1",))
    assert decided(0, there, SILENT, there) == Join(ONE, "x", ("a:1", "c:1"))


def test_the_first_seed_founds_once_a_majority_looks() -> None:
    """By answers of one, two and three of three; and of two with one that is asked under two addresses."""
    assert isinstance(decided(0, looks(0), SILENT, SILENT), Wait)
    assert decided(0, looks(0), looks(1), SILENT) == FoundCluster()
    assert decided(0, SILENT, SILENT, looks(2)) == FoundCluster(), "it need not reach itself"
    assert isinstance(decided(0, looks(0), looks(0), looks(0)), Wait), "one is one, however it is reached"


def test_nobody_but_the_first_founds() -> None:
    """It says for whom it waits; by the second and the third, with everybody there and with the first one gone."""
    for place in (1, 2):
        for first in (looks(0), SILENT):
            decision = decided(place, first, looks(1), looks(2))
            assert isinstance(decision, Wait)
            assert "a:1 comes first" in decision.reason


def test_a_node_that_is_no_seed_waits() -> None:
    """It joins what they found; by one with another address."""
    own = Looks("run 9", "n9", "z:1", SEEDS)
    decision = decide(own, ANY, {seed: looks(place) for place, seed in enumerate(SEEDS)})
    assert isinstance(decision, Wait)
    assert "z:1, is none of them" in decision.reason


def test_those_that_look_among_other_seeds_do_not_count() -> None:
    """Else two nodes that were given different lists could both found; by one of two that has another list."""
    decision = decided(0, looks(0), looks(1, ("a:1", "b:1")), SILENT)
    assert isinstance(decision, Wait)
    assert "give all nodes the same" in decision.reason
    assert decided(0, looks(0), looks(1, ("a:1", "b:1")), looks(2)) == FoundCluster()


@pytest.mark.parametrize(
    ("wanted", "answers"),
    [
        (ClusterSettings(name="y"), (InCluster(ONE, "x", "n"), SILENT)),
        (ClusterSettings(id=OTHER), (InCluster(ONE, "x", "n"), SILENT)),
        (ANY, (InCluster(ONE, "x", "n"), InCluster(OTHER, "y", "n"))),
    ],
)
def test_another_cluster_than_was_meant_is_refused(wanted: ClusterSettings, answers: tuple[Answer, ...]) -> None:
    """It is named; by a name, by an id, and by two of which none is meant."""
    with pytest.raises(WrongCluster, match=str(ONE)):
        decided(0, SILENT, *answers, wanted=wanted)


def test_of_two_clusters_the_one_that_is_meant_is_joined() -> None:
    """By its name."""
    answers = InCluster(ONE, "x", "n"), InCluster(OTHER, "y", "n")
    assert decided(0, SILENT, *answers, wanted=ClusterSettings(name="y")) == Join(OTHER, "y", ("c:1",))


@pytest.mark.parametrize("seed", range(200))
def test_whoever_sees_whom_one_founds_at_most(seed: int) -> None:
    """Nodes with lists that overlap anyhow, who reach each other anyhow: for one list there is one founder, and two
    founders share nobody who counts for both. By random worlds."""
    chance = random.Random(seed)
    everybody = [f"{name}:1" for name in "abcdefg"]
    lists = [in_order(chance.sample(everybody, chance.randint(1, 5))) for _ in range(2)]
    nodes = {address: Looks(f"run {address}", address, address, chance.choice(lists)) for address in everybody}
    founders: dict[str, frozenset[str]] = {}
    for address, own in nodes.items():
        seen = {seed: nodes[seed] if chance.random() < 0.7 else SILENT for seed in own.seeds}
        if decide(own, ANY, seen) == FoundCluster():
            like = {each for each in own.seeds if nodes[each].seeds == own.seeds}
            founders[address] = frozenset(like)
    assert len(founders) <= len(set(lists)), f"seed {seed}"
    assert not founders or sum(map(len, founders.values())) == len(frozenset.union(*founders.values())), f"seed {seed}"


# --- Over sockets ---------------------------------------------------------------------------------------------------


def address() -> str:
    return f"{HOST}:{free_ports(1)[0]}"


def test_a_node_that_looks_answers_others_that_do_and_lets_nobody_in() -> None:
    """By asking it what it is, and to be let in."""

    async def run() -> None:
        own = Looks("run 1", "n1", address(), in_order(["b:1", "a:1"]))
        port = SeekingPort(own, LimitSettings())
        await port.start(own.address)
        try:
            assert await look_at(own.address, node="n2", run="run 2") == own
            asked = AskJoin(node="n2", addresses=Addresses(), token="t")
            with pytest.raises(NotLeader, match="in no cluster yet"):
                await ask_to_join(own.address, None, asked, run="run 2")
            with pytest.raises(WrongCluster, match="in no cluster yet"):
                await ask_to_join(own.address, ONE, asked, run="run 2")
        finally:
            await port.stop()
        assert isinstance(await look_at(own.address, node="n2", run="run 2"), NoAnswer)
        with pytest.raises(ConnectionLost):
            await ask_to_join(own.address, ONE, asked, run="run 2")

    asyncio.run(run())


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        frame(FrameType.ASK, b"\x00", 1),
        frame(FrameType.HELLO, encode(Hello(version_min=1, version_max=1, role="member", cluster_id="c", node_id="n"))),
        frame(FrameType.HELLO, encode(Hello(version_min=1, version_max=1, role="joiner", node_id="n")))
        + frame(FrameType.ASK, b"\xc1" * 100, 1),
        frame(FrameType.HELLO, encode(Hello(version_min=1, version_max=1, role="joiner", node_id="n")))
        + frame(FrameType.RAFT, b"", 1),
    ],
    ids=["http", "noise", "ask first", "member", "bad question", "raft"],
)
def test_what_is_no_question_closes_the_connection(said: bytes) -> None:
    """And the port answers on; by one of each, then a good question."""

    async def run() -> None:
        own = Looks("run 1", "n1", address(), ())
        port = SeekingPort(own, LimitSettings())
        await port.start(own.address)
        try:
            reader, writer = await asyncio.open_connection(HOST, int(own.address.rpartition(":")[2]))
            writer.write(said)
            async with asyncio.timeout(10):
                while await reader.read(4096):
                    pass
            writer.close()
            assert await look_at(own.address, node="n2", run="run 2") == own
        finally:
            await port.stop()

    asyncio.run(run())


def test_connections_to_a_node_that_looks_are_few() -> None:
    """One too many is closed at once; by opening them."""

    async def run() -> None:
        own = Looks("run 1", "n1", address(), ())
        port = SeekingPort(own, LimitSettings())
        await port.start(own.address)
        number = int(own.address.rpartition(":")[2])
        try:
            opened = [await asyncio.open_connection(HOST, number) for _ in range(LINKS_MAX)]
            async with asyncio.timeout(10):
                while len(port.links) < LINKS_MAX:  # noqa: ASYNC110  (accepted in turns of the loop, told to nobody)
                    await asyncio.sleep(0)
                reader, writer = await asyncio.open_connection(HOST, number)
                with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                    await reader.readexactly(1)
            for _, each in [*opened, (reader, writer)]:
                each.close()
        finally:
            await port.stop()

    asyncio.run(run())
