"""Batches with attributes on real nodes: what a master takes, what it refuses, and what its mirror has of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from mirrorlog import versions
from mirrorlog.client import Client
from mirrorlog.client.connection.connection import Connection
from mirrorlog.commitlog.format.attributes import Attributes, attributes_of
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.codec import compress_draft
from mirrorlog.commitlog.format.drafts import draft_columns, encode_batch
from mirrorlog.commitlog.format.header import Codec
from mirrorlog.errors import BadBatch, BadRequest, MirrorlogError, NotMaster
from mirrorlog.wire.frames import Confirm, Level
from mirrorlog.wire.transaction_frames import transact_payload
from tests.broker.hosting import KIB, in_sync, running_all, settings_for
from tests.ha.nodes import hosted_by, replica_of, until

ASKED = Attributes(7, 60_000, 1_500)


def run(test: Callable[[], Awaitable[None]]) -> None:
    uvloop.run(test())  # type: ignore[arg-type]


async def publish(connection: Connection, batch: bytes | bytearray | memoryview) -> Confirm | MirrorlogError:
    """As any client may, whatever the node offers."""
    ended: asyncio.Future[Confirm | MirrorlogError] = asyncio.get_running_loop().create_future()
    connection.produce(batch, level=Level.ALL, durability=0, deadline_ms=0, done=ended.set_result)
    async with asyncio.timeout(20):
        return await ended


def batch_of(attributes: Attributes | None, codec: Codec = Codec.NONE, *, queue_id: int) -> bytearray:
    draft = compress_draft(draft_columns([b"value" * 20, b"more"], attributes=attributes), codec)
    return bytearray(draft.seal(queue_id=queue_id))


@pytest.mark.parametrize("codec", Codec)
def test_a_master_and_its_mirror_have_the_attributes_of_a_batch(tmp_path: Path, codec: Codec) -> None:
    """Goal: they are kept as they were sent, on every copy, under every codec. Method:
    publish, read both logs' bytes, and consume."""
    settings = settings_for(tmp_path, 2)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            await client.admin.declare("q")
            await in_sync(hosted_by(nodes[0]), hosted_by(nodes[1]))
            connection, found = await client.master_of("q")
            confirm = await publish(connection, batch_of(ASKED, codec, queue_id=found.queue_id))
            assert isinstance(confirm, Confirm), confirm
            for node in nodes:
                header, content = replica_of(node).log.read_batch_at(confirm.log_offset)
                assert attributes_of(header, content) == ASKED
            async with client.consumer("q", start=0, until="confirmed") as consumer:
                records = [record async for record in consumer]
            assert [record.value for record in records] == [b"value" * 20, b"more"]
            assert {record.attributes for record in records} == {ASKED}

    run(test)


def test_what_is_not_known_of_attributes_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    """Goal: no reader ever meets a block that it cannot read. Method: a reserved byte, a time to live and a delay above
    the limit, a body_length that counts the block, a value above the limit behind it; the connection stays."""
    settings = settings_for(tmp_path, 1)

    def spoilt(at: int, content: bytes, queue_id: int) -> bytearray:
        draft = draft_columns([b"v"], attributes=ASKED)
        draft.data[at : at + len(content)] = content
        return bytearray(draft.seal(queue_id=queue_id))

    async def test() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            await client.admin.declare("q")
            connection, found = await client.master_of("q")
            end = replica_of(nodes[0]).log.end
            draft = draft_columns([b"v"], attributes=ASKED)
            counted = draft._replace(body_length=draft.body_length + 16)
            for bad, kind in (
                (spoilt(111, b"\1", found.queue_id), BadBatch),
                (spoilt(96, b"\xfe" * 8, found.queue_id), BadBatch),
                (spoilt(104, b"\xff" * 6, found.queue_id), BadBatch),
                (bytearray(counted.seal(queue_id=found.queue_id)), BadBatch),
                (encode_batch([Record(bytes(33 * KIB))], queue_id=found.queue_id, attributes=ASKED), MirrorlogError),
            ):
                refused = await publish(connection, bad)
                assert isinstance(refused, kind), refused
            assert replica_of(nodes[0]).log.end == end
            assert isinstance(await publish(connection, batch_of(ASKED, queue_id=found.queue_id)), Confirm)

    run(test)


def test_of_a_node_that_has_not_heard_its_cluster_the_master_is_asked_whether_it_takes_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody gives up because a node that was just started knows the version of its cluster's founding only, and
    no frame or batch goes to a master whose software may not know it. Method: a client of such a mirror commits and
    sends with attributes, in a cluster of the version and in one of the version before; who insists over the wire is
    refused by the mirror, which is no master, and by the master."""
    active, unheard = [versions.ATTRIBUTES - 1], set[str]()
    monkeypatch.setattr("tests.ha.nodes.Assigned.cluster_version", lambda self: active[0])
    monkeypatch.setattr("tests.ha.nodes.Assigned.has_heard", lambda self: self.node not in unheard)
    sent: list[str] = []
    transact = Connection.transact

    async def noted(self: Connection, payload: bytes, *, timeout_ms: int) -> object:
        sent.append(self.address)
        return await transact(self, payload, timeout_ms=timeout_ms)

    monkeypatch.setattr(Connection, "transact", noted)
    settings = settings_for(tmp_path, 2)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            queue_id = (await client.admin.declare("q")).queue_id
            await until(lambda: replica_of(nodes[1]).queues.get("q") is not None)
            unheard.add(settings[1].node.id)
            for takes in (False, True):
                active[0] = versions.ATTRIBUTES - (not takes)
                async with Client(settings[1].client_bind) as late:
                    assert not (await late.queue_info("q")).attributes
                    transaction = late.transaction(timeout_ms=5_000)
                    transaction.send("q", b"v")
                    async with late.producer("q") as producer:
                        if takes:
                            await transaction.commit()
                            await producer.send(b"v", priority=3)
                        else:
                            with pytest.raises(BadRequest, match="takes no transactions"):
                                await transaction.commit()
                            with pytest.raises(BadRequest, match="takes no priority"):
                                await producer.send(b"v", priority=3)
                assert sent == [settings[0].client_bind] * takes
            active[0] = versions.ATTRIBUTES - 1
            payload = transact_payload(
                [], [batch_of(None, queue_id=queue_id)], level=255, durability=0, deadline_ms=1_000
            )
            mirror = await client.connection_to(settings[1].client_bind)
            with pytest.raises(NotMaster):
                await mirror.transact(payload, timeout_ms=5_000)
            end = replica_of(nodes[0]).log.end
            master = await client.connection_to(settings[0].client_bind)
            with pytest.raises(BadRequest, match="transactions came with version 4: update all nodes"):
                await master.transact(payload, timeout_ms=5_000)
            assert replica_of(nodes[0]).log.end == end

    run(test)


def test_an_older_cluster_takes_no_attributes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no copy of the software before takes them for damage. Method: at the version before, a batch with and one
    without, over the same connection; then the version is raised."""
    active = [versions.ATTRIBUTES - 1]
    monkeypatch.setattr("tests.ha.nodes.Assigned.cluster_version", lambda self: active[0])
    settings = settings_for(tmp_path, 1)

    async def test() -> None:
        async with running_all(settings) as nodes, Client(settings[0].client_bind) as client:
            await client.admin.declare("q")
            connection, found = await client.master_of("q")
            end = replica_of(nodes[0]).log.end
            refused = await publish(connection, batch_of(ASKED, queue_id=found.queue_id))
            assert isinstance(refused, BadRequest)
            assert "came with version 4: update all nodes" in refused.message
            assert replica_of(nodes[0]).log.end == end
            assert isinstance(await publish(connection, batch_of(None, queue_id=found.queue_id)), Confirm)
            active[0] = versions.ATTRIBUTES
            assert isinstance(await publish(connection, batch_of(ASKED, queue_id=found.queue_id)), Confirm)

    run(test)
