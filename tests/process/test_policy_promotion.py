"""A log whose rule accepts a loss, by real nodes: the mirror that is left goes on by itself, and says what is lost."""

from __future__ import annotations

import asyncio
import time

import pytest

from mirrorlog.client.sync import Client
from mirrorlog.cluster.peers import Mesh, Voice
from mirrorlog.cluster.raft.messages import AnyMessage
from mirrorlog.cluster.requests import Applied, AskApply, decode_answer, encode
from mirrorlog.cluster.state.command_codec import encode_command
from mirrorlog.cluster.state.commands import Command, LogAltered, Seen
from mirrorlog.cluster.state.placements import ALWAYS, Placement
from mirrorlog.errors import PositionLost
from mirrorlog.testing import Cluster
from mirrorlog.testing.asking import wait_for
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.status import PlacedLog

pytestmark = pytest.mark.process

AFTER_MS = 1_500


class _Events:
    """Of a member that only asks."""

    def heard(self, node: str, start_id: str) -> None: ...
    def reset(self, node: str) -> None: ...
    def refused(self, node: str) -> None: ...
    def raft(self, message: AnyMessage, link: Voice) -> None: ...
    async def asked(self, node: str, question: bytes) -> bytes:
        raise AssertionError(f"{node} asks")


def decide(cluster: Cluster, command: Command) -> None:
    """As a policy will: by a link such as node n3 has to n1."""
    status, node = cluster.statuses()["n3"], cluster.nodes["n1"]

    async def ask() -> None:
        def hello() -> Hello:
            return Hello(
                version_min=PROTOCOL_VERSION_MAX,
                version_max=PROTOCOL_VERSION_MAX,
                role="member",
                cluster_id=status.cluster_id,
                node_id="n3",
                start_id=status.start_id,
            )

        mesh = Mesh(hello=hello, events=_Events())
        mesh.start()
        mesh.reach({"n1": [node.replication]})
        try:
            while "n1" not in mesh.reached():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            asked = AskApply(command=encode_command(command), pass_on=True)
            told = decode_answer(await mesh.ask("n1", encode(asked), timeout_s=5.0), Applied)
            assert not told.refusal
        finally:
            mesh.stop()

    asyncio.run(ask())


def placed(cluster: Cluster) -> PlacedLog:
    """As the node knows it that has seen most."""
    views = [status.cluster for status in cluster.statuses().values() if status.cluster is not None]
    return max(views, key=lambda view: view.version).logs[0]


def until(condition: object, what: str) -> None:
    assert callable(condition)
    wait_for(lambda: condition() or None, timeout=30.0, what=lambda: what)


def publish(servers: list[str], count: int) -> None:
    with Client(*servers) as client, client.producer("q") as producer:
        for number in range(count):
            producer.send(str(number).encode())


def test_the_mirror_that_is_left_goes_on_by_itself() -> None:
    """Goal: nobody has to be called, and nobody is left in doubt. Method: the mirror is down while records are
    confirmed by the master alone, which then is killed; the mirror is back, waits for the time that a master has to
    come back in, and takes over. The loss is declared, named by its key, and told to a reader; the former master comes
    back as a mirror, and what it cuts tells where the loss ends."""
    settings = {"cluster.promote_always_after_ms": AFTER_MS}
    with Cluster(3, min_in_sync=1, logs=({"mirrors": ["n2"]},), settings=settings) as cluster:
        cluster.wait_in_sync()
        first, second = cluster.nodes["n1"], cluster.nodes["n2"]
        with Client(*cluster.servers) as client:
            client.admin.declare("q")
            client.admin.pause_moving(True)
        publish(cluster.servers, 10)
        end = cluster.wait_confirmed().end
        log = placed(cluster)
        rule = Placement(copies=log.copies, min_in_sync=1, promote_on_failure=ALWAYS)
        decide(cluster, LogAltered(log_id=log.log_id, seen=Seen(log.epoch, log.version), placement=rule))
        second.kill()
        until(lambda: placed(cluster).in_sync == ["n1"], "n2 left the set")
        publish([first.client], 7)
        killed_at = time.monotonic()
        first.kill()
        second.start()
        until(lambda: placed(cluster).master == "n2", "n2 masters the log")
        assert time.monotonic() - killed_at >= AFTER_MS / 1000
        assert placed(cluster).losses[0].start == end
        servers = [second.client, cluster.nodes["n3"].client]
        publish(servers, 5)
        first.start()
        until(lambda: set(placed(cluster).in_sync) == {"n1", "n2"}, "n1 is back")
        until(lambda: (placed(cluster).losses[0].end or 0) > end, "it is known where the loss ends")
        with Client(*servers) as client:
            texts = [event.text for event in client.admin.events().events]
            assert any("ha-promote-on-failure asked for it" in text for text in texts)
            with client.consumer("q", start="earliest", until="confirmed") as consumer:
                assert len(consumer.read(10, timeout_ms=10_000)) == 10
                with pytest.raises(PositionLost) as lost:
                    consumer.read(1, timeout_ms=10_000)
            start = int(lost.value.details["go_on_at"])
            with client.consumer("q", start=start, until="confirmed") as consumer:
                assert len(list(consumer)) == 5
