"""The thin part: sockets, clocks and helpers around the machines, in whole nodes on one loop."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from pathlib import Path

import pytest
from pydantic import ValidationError

from mirrorlog.broker.hosting.roles import MirrorRole
from mirrorlog.commitlog.log import CommitLog
from mirrorlog.config import (
    ClusterSettings,
    Flush,
    HaSettings,
    ListenSettings,
    LogAssignment,
    Member,
    split_address,
)
from mirrorlog.errors import ConnectionLost, DiskFailed
from mirrorlog.ha.client import ClientState
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.mastership import LogState
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire import endpoint
from mirrorlog.wire.frames import Frame, FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from tests.cluster.ports import way
from tests.commitlog.faulty import FaultyFiles, opens_on
from tests.commitlog.logs import patch
from tests.ha.nodes import Node, cluster_settings, hosted_by, mastered_by, mirrored_by, replica_of, running, until
from tests.ha.replicas import content

QUICK = HaSettings(reconnect_interval_ms=20)
# No heartbeat comes to the rescue while a test runs.
QUIET = HaSettings(reconnect_interval_ms=20, send_heartbeat_interval_ms=60_000, housekeeping_interval_ms=120_000)


@pytest.mark.story("002:31-45")
async def test_a_master_listens_and_a_mirror_follows_it_by_itself(tmp_path: Path) -> None:
    """Start the mirror before its master: it keeps trying, and follows as soon as there is somebody to follow."""
    master, mirror = cluster_settings(tmp_path, copies=2, ha=QUICK)
    async with running(mirror) as second:
        await until(lambda: isinstance(mirrored_by(second).client.last_error, ConnectionLost))
        async with running(master) as first:
            await until(lambda: mirrored_by(second).following)
            await until(lambda: replica_of(second).log.end == replica_of(first).log.end > 0)
            assert content(replica_of(second)) == content(replica_of(first))


async def test_a_mirror_whose_master_has_bad_bytes_dials_it_less_and_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: the only whole copy that has met bad bytes is not kept busy by its mirror. Flip a bit of the master's file
    and start an empty mirror: each link comes to its transfer and is refused, each time after a longer wait, and that
    is told once. Flip it back: the mirror follows."""
    caplog.set_level(logging.INFO, "mirrorlog.ha.client_service")

    def told(event: str) -> list[float]:
        return [record.created for record in caplog.records if record.getMessage().startswith(event)]

    patient = HaSettings(reconnect_interval_ms=160)
    master, mirror = cluster_settings(tmp_path, copies=2, ha=patient)
    async with running(master) as first:
        log = hosted_by(first)
        batch = log.replica.queues.declare("q", {})
        assert batch is not None
        log.publisher.append_change(batch, lambda error: None)
        path = replica_of(first).log.directory / ("0" * 20)
        place = replica_of(first).log.end - 1
        whole = path.read_bytes()[place]
        patch(path, place, bytes([whole ^ 1]))
        async with running(mirror) as second:
            await until(lambda: len(told("mirror_follows")) == 7)
            assert replica_of(second).log.end < replica_of(first).log.end
            waits = [following - before for before, following in pairwise(told("mirror_follows"))]
            assert all(wait >= least for wait, least in zip(waits[1:], (0.02, 0.04, 0.08, 0.16, 0.16), strict=True))
            assert len(told("mirror_disconnected")) == 1
            patch(path, place, bytes([whole]))
            await until(lambda: replica_of(second).log.end == replica_of(first).log.end)
            assert mirrored_by(second).client.last_error is None


async def test_a_mirror_whose_words_were_changed_on_their_way_closes_no_log(tmp_path: Path) -> None:
    """Goal: a master does not stop for good because of one bit that says that its mirror holds more than it does.
    Method: flip that bit of the first Follow on its way; the mirror comes again and follows, and the log serves."""
    changed: list[int] = []

    def change(number: int, data: bytes) -> bytes:
        at = data.find(b"\xa3end\xcd")
        if at < 0 or changed:
            return data
        changed.append(number)
        return data[: at + 5] + bytes([data[at + 5] ^ 0x40]) + data[at + 6 :]

    async with way(change) as changing:
        master, mirror = cluster_settings(tmp_path, copies=2, ha=QUICK, replication=changing.address)
        port = next(iter(free_ports(1)))
        bound = master.model_copy(update={"replication": ListenSettings(bind=f"{HOST}:{port}")})
        changing.to = f"{HOST}:{port}"
        async with running(bound) as first:
            async with running(mirror) as second:
                batch = hosted_by(first).replica.queues.declare("q", {})
                assert batch is not None
                hosted_by(first).publisher.append_change(batch, lambda error: None)
                await until(lambda: replica_of(second).log.end == replica_of(first).log.end > 256)
                changed.clear()
            async with running(mirror) as second:
                await until(lambda: mirrored_by(second).following)
                assert changed
                assert mastered_by(first).mastership.state is LogState.SERVING


async def test_a_mirror_to_whom_bytes_were_lost_asks_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: confirms do not wait for what will not come. Method: take the end of a Transfer away, behind which the
    master has nothing to say."""
    monkeypatch.setattr(endpoint, "LINK_FRAME_MS", 50)
    taken: list[int] = []

    def take(number: int, data: bytes) -> bytes:
        kind = int.from_bytes(data[4:6], "little")
        if taken or kind != FrameType.TRANSFER or len(data) < 200:
            return data
        taken.append(number)
        return data[:-100]

    async with way(back=take) as losing:
        master, mirror = cluster_settings(tmp_path, copies=2, ha=QUIET, replication=losing.address)
        losing.to = f"{HOST}:{next(iter(free_ports(1)))}"
        bound = master.model_copy(update={"replication": ListenSettings(bind=losing.to)})
        async with running(bound) as first, running(mirror) as second:
            await until(lambda: len(taken) == 1)
            await until(lambda: mirrored_by(second).following)
            await until(lambda: replica_of(second).log.end == replica_of(first).log.end > 0)


async def test_a_member_that_does_not_end_what_it_began_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a member's link is not deaf for as long as what follows is taken for the end of a frame. Method: begin one
    as a member of the cluster does that was let in, and say no more."""
    monkeypatch.setattr(endpoint, "LINK_FRAME_MS", 50)

    class Member:
        def frame(self, frame_: Frame) -> None: ...

        def disconnected(self) -> None: ...

    (settings,) = cluster_settings(tmp_path, copies=1, ha=QUIET)
    cluster_id = str(settings.cluster.cluster_id)
    hello = Hello(version_min=1, version_max=1, role="member", cluster_id=cluster_id, node_id="n9", start_id="s")
    async with running(settings) as node:
        node.server.ha.accept.member_link = lambda hello, endpoint: Member()
        reader, writer = await asyncio.open_connection(*split_address(settings.member.replication))
        writer.write(frame(FrameType.HELLO, encode(hello)) + frame(FrameType.RAFT, bytes(100))[:50])
        async with asyncio.timeout(5):
            assert b"was begun and not completed" in await reader.read()
        writer.close()


@pytest.mark.story("002:91-117")
async def test_every_mirror_gets_a_connection_of_its_own(tmp_path: Path) -> None:
    """Let two mirrors join: two links, each with its own place in the log."""
    settings = cluster_settings(tmp_path, copies=3, ha=QUICK)
    async with running(settings[0]) as master, running(settings[1]), running(settings[2]):
        links = mastered_by(master).mastership.links
        await until(lambda: sum(link.proven for link in links.values()) == 2)
        assert set(links) == {"n1", "n2"}
        assert all(isinstance(link, HAConnection) for link in links.values())
        assert links["n1"] is not links["n2"]


async def test_who_is_in_sync_is_told_once_per_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: the master's log says since when it has how many copies, and why. Let two mirrors be let in one after the
    other, wait for some clocks to pass, stop one and start it again: a line for each change, with all that are in sync
    then. It is let in when it lacks nothing, and is in sync at once when it comes back."""
    caplog.set_level(logging.INFO, "mirrorlog.ha")

    def told() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if line.startswith(("mirror_in_sync", "mirror_not_in"))]

    settings = cluster_settings(tmp_path, copies=3, ha=QUICK)
    async with running(settings[0]) as master, running(settings[1]):
        mastership, end = mastered_by(master).mastership, replica_of(master).log.end
        await until(lambda: mastership.copies_up == 2 and len(told()) == 1)
        for count in (2, 4):
            async with running(settings[2]) as second:
                await until(lambda count=count: mastership.copies_up == 3 and len(told()) == count)  # type: ignore[misc]
                await until(lambda second=second: replica_of(second).log.confirmed == replica_of(master).log.end)  # type: ignore[misc]
            await until(lambda: mastership.copies_up == 2)
        let_in, gone = "reason='lacks no record of the log'", "mirror_not_in_sync node=n2 log=main in_sync=n0,n1"
        assert [line.removesuffix(" reason='closed'") for line in told()] == [
            f"mirror_in_sync node=n1 log=main in_sync=n0,n1 {let_in}",
            f"mirror_in_sync node=n2 log=main in_sync=n0,n1,n2 {let_in}",
            gone,
            f"mirror_in_sync node=n2 log=main in_sync=n0,n1,n2 reason='follows from {end}'",
            gone,
        ]


@pytest.mark.story("002:133-159")
@pytest.mark.story("002:783-787")
async def test_a_bad_connection_is_closed_and_others_are_still_accepted(tmp_path: Path) -> None:
    """Send garbage to the replication port: that connection is closed, and a mirror that comes after it is served."""
    master, mirror = cluster_settings(tmp_path, copies=2, ha=QUICK)
    async with running(master) as first:
        for garbage in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\0" * 8):
            reader, writer = await asyncio.open_connection(*split_address(master.member.replication))
            writer.write(garbage)
            if len(garbage) < 16:
                writer.write_eof()
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()
        async with running(mirror) as second:
            await until(lambda: mirrored_by(second).following)
            assert mastered_by(first).mastership.state.value == "serving"


@pytest.mark.story("002:65-89")
async def test_a_master_returns_to_its_port_at_once(tmp_path: Path) -> None:
    """Stop and start the master three times while a mirror is connected: the port is free again and the mirror is
    back, in a new epoch each time."""
    master, mirror = cluster_settings(tmp_path, copies=2, ha=QUICK)
    async with running(mirror) as second:
        for epoch in (1, 2, 3):
            async with running(master):
                await until(lambda epoch=epoch: replica_of(second).log.epochs.current == epoch)
                await until(lambda: mirrored_by(second).following)


@pytest.mark.parametrize("flush", ["memory", "disk"])
async def test_every_mirror_hears_at_once_what_is_confirmed(tmp_path: Path, flush: Flush) -> None:
    """Write while one of two in-sync mirrors rests, and let it come back, with heartbeats far away: both come to know
    the confirmed offset, also the one whose own ack did not move it."""
    settings = cluster_settings(tmp_path, copies=3, ha=QUIET, flush=flush)
    async with running(settings[0]) as master, running(settings[1]) as one, running(settings[2]) as two:
        log, end = hosted_by(master), replica_of(master).log.end
        await until(lambda: mastered_by(master).mastership.in_sync == {"n1", "n2"})
        await hosted_by(two).step_down()
        batch = log.replica.queues.declare("q", {})
        assert batch is not None
        log.publisher.append_change(batch, lambda error: None)
        await until(lambda: replica_of(one).log.end == replica_of(master).log.end > end)
        assert replica_of(one).log.confirmed <= end
        await hosted_by(two).follow(log.assignment)
        for node in (master, two, one):
            await until(lambda node=node: replica_of(node).log.confirmed == replica_of(master).log.end)


async def test_a_master_tells_the_confirmed_offset_before_it_goes(tmp_path: Path) -> None:
    """Start a master whose mirror is in sync, and stop it right after the mirror has joined: what waited for the mirror
    alone it knows as confirmed."""
    master, mirror = cluster_settings(tmp_path, copies=2, ha=QUIET)
    async with running(mirror) as second:
        async with running(master) as first:
            await until(lambda: mastered_by(first).mastership.in_sync == {"n1"})
            end = replica_of(first).log.end
        async with running(master) as first:
            await until(lambda: replica_of(second).log.end > end)
            await until(lambda: replica_of(first).log.confirmed == replica_of(first).log.end)
        await until(lambda: replica_of(second).log.confirmed == replica_of(second).log.end)


async def test_a_mirror_whose_disk_fails_in_the_handshake_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the mirror's disk fail at the epoch list that it takes over: its log takes nothing more, so the node ends
    with that reason, instead of asking its master again for ever."""
    files = FaultyFiles()
    master, mirror = cluster_settings(tmp_path, copies=2, ha=QUICK, flush="disk")
    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "open", opens_on(files))
        second = Node(mirror)
        task = asyncio.ensure_future(second.run())
        await until(lambda: any(isinstance(log.role, MirrorRole) for log in second.logs))
    files.disk.fail("create")
    try:
        async with running(master):
            assert await asyncio.wait_for(asyncio.shield(task), 10) == DiskFailed.exit_code
    finally:
        second.ended.set()
        await task


@pytest.mark.parametrize("address", ["a..b:7402", "127.0.0.1:70000"])
async def test_an_address_that_cannot_be_is_said_and_tried_again(tmp_path: Path, address: str) -> None:
    """Give the mirror an address that no socket takes: it says so and tries again, instead of standing still."""
    _, mirror = cluster_settings(tmp_path, copies=2, ha=QUICK, replication=address)
    async with running(mirror) as second:
        client = mirrored_by(second).client
        for _ in range(2):
            await until(lambda: client.state is ClientState.WAITING and client.last_error is not None)
            assert address in str(client.last_error)
            client.last_error = None


@pytest.mark.story("002:271")
def test_a_log_without_a_known_master_is_a_configuration_error() -> None:
    """Assign a log to a node that is no member, and ask for an unknown member: said at start, not waited for."""
    members = (Member(id="n0"),)
    with pytest.raises(ValidationError, match="assigned to n9"):
        ClusterSettings(members=members, logs=(LogAssignment(master="n9", mirrors=("n0",)),))
