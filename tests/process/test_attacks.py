"""Clients in numbers, clients that do not read, sizes at their limits: the node answers, and goes on serving."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from mirrorlog.commitlog.format.header import read_header
from mirrorlog.config import split_address
from mirrorlog.errors import (
    BadRequest,
    ConnectionLost,
    NotAMember,
    NotMaster,
    OffsetOutOfRange,
    OutOfSequence,
    Overloaded,
    ProtocolError,
    QueueExists,
)
from mirrorlog.testing import Cluster, Node
from mirrorlog.testing.ports import HOST, free_ports
from mirrorlog.wire.frames import FrameType, frame
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.queues import (
    CommitPosition,
    DeclareQueue,
    Done,
    FetchPosition,
    FindOffset,
    FoundOffset,
    FoundPosition,
    GetMetadata,
    Metadata,
    Position,
    QueueInfo,
)
from tests.process.clusters import (
    MIB,
    assert_copies_equal,
    declare,
    error_of,
    eventually,
    fast_cluster,
    log_lines,
    log_of,
)
from tests.process.load import Load
from tests.process.raw import Raw, batch_of, failure

LIMITS = {
    "limits.max_connections": 400,
    "limits.max_waiting_fetches": 3_000,
    "limits.outgoing_bytes_max": 16 * MIB,
    "limits.idle_timeout_ms": 6_000,
}

# One mirror's link twice, and the spare ones.
LINKS_MAX = 2 + 16


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(2, settings=LIMITS, segment_bytes=64 * MIB) as two:
        two.wait_in_sync()
        yield two


@pytest.fixture(scope="module")
def queue(cluster: Cluster) -> QueueInfo:
    return declare(cluster.servers[0], "q")


@pytest.fixture(autouse=True)
def unharmed(cluster: Cluster) -> Iterator[None]:
    """After each test the node serves a good client quickly, its mirror follows, and it still has the same memory."""
    pids = [node.pid for node in cluster.nodes.values()]
    yield
    assert [node.pid for node in cluster.nodes.values() if node.running] == pids
    good = declare(cluster.servers[0], "good")
    with Raw(cluster.servers[0], timeout=5) as raw:
        confirm = raw.produce(batch_of([b"good"], good))
        assert confirm.copies == 2
        assert raw.values(good.queue_id, confirm.base_queue_offset) == [b"good"]
    assert memory_bytes(cluster) < 1024 * MIB
    for node in cluster.nodes.values():
        assert not log_lines(node, "connection_failed"), node.log_tail()
        assert "Traceback" not in node.log_file.read_text()


def memory_bytes(cluster: Cluster) -> int:
    """The master's own memory, without the pages of its files."""
    for line in Path(f"/proc/{cluster.nodes['n1'].pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def test_hundreds_of_connections_opened_and_dropped(cluster: Cluster) -> None:
    """Goal: what was dropped is forgotten. Method: 900 connections, more than the limit allows at once, dropped in the
    three ways that there are: silent, greeted, in the middle of a frame."""
    address = split_address(cluster.servers[0])
    for round_ in range(3):
        with contextlib.ExitStack() as held:
            for number in range(300):
                plain = held.enter_context(socket.create_connection(address, timeout=5))
                if number % 3 == 1:
                    plain.sendall(b"\x40\x00\x00\x00\x01")
                if number % 3 == 2:
                    # A reset instead of an ordinary end.
                    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            with Raw(cluster.servers[0]) as raw:
                assert raw.request(GetMetadata(), Metadata), round_


def test_connections_above_the_limit(cluster: Cluster) -> None:
    """Goal: the limit is answered by name, and one that leaves makes room. Method: open 400, then one more."""
    with contextlib.ExitStack() as held:
        connections = [held.enter_context(Raw(cluster.servers[0])) for _ in range(395)]
        extra = error_of(lambda: [held.enter_context(Raw(cluster.servers[0])) for _ in range(20)])
        assert type(extra) is Overloaded, repr(extra)
        assert extra.details["limit"] == "max_connections"
        for connection in connections:
            connection.close()
        eventually(lambda: room_at(cluster.servers[0]), "there is room again")


def room_at(address: str) -> Raw | None:
    """A connection, once the node has heard that others are gone."""
    with contextlib.suppress(Overloaded):
        return Raw(address)
    return None


def test_links_above_the_limit(cluster: Cluster) -> None:
    """Goal: who takes the replication port for a mirror's is bounded and told so, and the mirror gets in once they are
    gone. Method: let the mirror's link go by pausing it, greet as mirrors until all places are taken, resume it, see it
    refused, leave."""
    master, mirror = cluster.nodes.values()
    cluster_id = master.status().cluster_id
    as_mirror = Hello(
        version_min=1, version_max=1, role="mirror", cluster_id=cluster_id, node_id="n9", start_id=str(uuid4())
    )
    mirror.pause()
    try:
        eventually(lambda: not log_of(master).mirrors[0].connected, "the silent link is closed")
        with contextlib.ExitStack() as held:
            for _ in range(LINKS_MAX):
                held.enter_context(Raw(master.replication, hello=as_mirror))
            extra = error_of(lambda: Raw(master.replication, hello=as_mirror))
            assert type(extra) is Overloaded, repr(extra)
            assert extra.details["limit"] == "links_max"
            mirror.resume()
            eventually(lambda: "links are open on this port" in log_of(mirror).reason, "the mirror is refused")
    finally:
        mirror.resume()
    cluster.wait_in_sync()


def test_strangers_keep_no_mirror_out(cluster: Cluster) -> None:
    """Goal: sockets on the replication port that say nothing do not stand between a master and its mirror. Method: let
    the mirror's link go by pausing it, open sixty such sockets and go on opening them, resume it: it follows."""
    master, mirror = cluster.nodes.values()
    mirror.pause()
    try:
        eventually(lambda: not log_of(master).mirrors[0].connected, "the silent link is closed")
        with contextlib.ExitStack() as held:
            for _ in range(60):
                held.enter_context(Raw(master.replication, hello=None))
            mirror.resume()

            def follows() -> bool:
                held.enter_context(Raw(master.replication, hello=None))
                return log_of(master).mirrors[0].in_sync and log_of(master).mirrors[0].connected

            eventually(follows, "the mirror follows")
    finally:
        mirror.resume()


@pytest.mark.long
def test_a_client_that_never_reads(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: what nobody takes is bounded and given up. Method: ask for a gigabyte and do not read; the node's memory
    stays, other clients are served, and the connection is closed in the end."""
    with Raw(cluster.servers[0]) as raw:
        for number in range(4):
            raw.produce(batch_of([b"%d" % number * 900_000], queue))
    before = memory_bytes(cluster)
    with Raw(cluster.servers[0]) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(1000):
            deaf.start_fetch(queue.queue_id, 0)
        with Raw(cluster.servers[0]) as raw:
            assert raw.request(GetMetadata(), Metadata)
            assert memory_bytes(cluster) < before + 64 * MIB

        def closed() -> bool:
            try:
                deaf.send(frame(FrameType.PING))
            except ConnectionLost:
                return True
            return False

        eventually(closed, "the connection is given up")


def test_thousands_of_pipelined_fetches(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a client that asks far ahead and reads is served all of it, in order. Method: 3,000 fetches at once whose
    answers are many times the outgoing limit."""
    with Raw(cluster.servers[0]) as raw:
        first = raw.produce(batch_of([b"p" * 50_000], queue)).base_queue_offset
        numbers = [raw.start_fetch(queue.queue_id, first, max_bytes=1) for _ in range(3_000)]
        for number in numbers:
            facts, batches = raw.batches(number)
            assert len(batches) == 1
            assert facts.next > first


def test_thousands_of_waiting_fetches(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a wait costs no task, is answered by the record that it waits for, and the limit has a name. Method: 2,500
    waits on ten connections, then one record; then more waits than are allowed."""
    with contextlib.ExitStack() as held, Raw(cluster.servers[0]) as producer:
        readers = [held.enter_context(Raw(cluster.servers[0])) for _ in range(10)]
        at = producer.produce(batch_of([b"before"], queue)).base_queue_offset + 1
        waits = [(raw, raw.start_fetch(queue.queue_id, at, wait_ms=30_000)) for _ in range(250) for raw in readers]
        producer.produce(batch_of([b"awaited"], queue))
        for raw, number in waits:
            assert len(raw.batches(number)[1]) == 1
        numbers = [(raw, raw.start_fetch(queue.queue_id, at + 1, wait_ms=1_000)) for _ in range(310) for raw in readers]
        answered = refused = 0
        for raw, number in numbers:
            try:
                answered += raw.batches(number)[1] == []
            except Overloaded as error:
                refused += error.details["limit"] == "max_waiting_fetches"
        assert (answered, refused) == (3_000, 100)


def test_readers_that_left_do_not_hold_their_places(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a wait ends with its connection. Method: fill the limit with long waits, drop the connection, wait."""
    with Raw(cluster.servers[0]) as raw:
        at = raw.produce(batch_of([b"x"], queue)).base_queue_offset + 1
    for _ in range(2):
        with Raw(cluster.servers[0]) as leaving:
            for _ in range(3_000):
                leaving.start_fetch(queue.queue_id, at, wait_ms=60_000)
            leaving.send(frame(FrameType.PING, b"", 2**40))
            leaving.answer(2**40)

    def waits() -> bool:
        with Raw(cluster.servers[0]) as raw:
            try:
                return raw.fetch(queue.queue_id, at, wait_ms=1)[1] == []
            except Overloaded:
                return False

    eventually(waits, "there is room to wait", timeout=5)


@pytest.mark.parametrize("name", ["ä☃ 𝄞", " ", "a/b\\c", "..", "x" * 255, "'; drop table", "%s%n", "null"])
def test_odd_names_that_are_allowed(cluster: Cluster, name: str) -> None:
    """Goal: a name is text and nothing else. Method: declare, publish, find again, on the mirror too."""
    queue = declare(cluster.servers[0], name)
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([b"x"], queue))
        assert raw.request(GetMetadata(queues=[name]), Metadata).queues[0].next == 1
    cluster.wait_confirmed()
    with Raw(cluster.nodes["n2"].client) as raw:
        assert raw.request(DeclareQueue(name=name), Metadata).queues[0].name == name


@pytest.mark.parametrize("name", ["x" * 256, "a\nb", "\x00", "\x7f", "tab\t"])
def test_names_that_are_not(cluster: Cluster, name: str) -> None:
    """Goal: a name that would break a table or a log line is refused. Method: long, with control characters."""
    with Raw(cluster.servers[0]) as raw:
        assert type(error_of(lambda: raw.request(DeclareQueue(name=name), Metadata))) is BadRequest


def test_arguments_of_every_shape(cluster: Cluster) -> None:
    """Goal: what was declared is given back, again and again, and a difference is named; what no node knows is refused
    at any of them, and no queue is made. Method: all known ones; the same, another one, none; then values of every
    shape under unknown names."""
    arguments: dict[str, Any] = {"flush": "memory", "retention_ms": 2**63 - 1, "retention_bytes": -1}
    declare(cluster.servers[0], "args", **arguments)
    with Raw(cluster.servers[0]) as raw:
        found = raw.request(GetMetadata(queues=["args"]), Metadata).queues[0]
        assert found.arguments == arguments
        again = raw.request(DeclareQueue(name="args", arguments=arguments), Metadata).queues[0]
        assert again.queue_id == found.queue_id
        error = error_of(
            lambda: raw.request(DeclareQueue(name="args", arguments={**arguments, "retention_ms": 2}), Metadata)
        )
        assert type(error) is QueueExists
        assert "retention_ms" in error.message
        error = error_of(lambda: raw.request(DeclareQueue(name="args"), Metadata))
        assert type(error) is QueueExists
    unknown: dict[str, Any] = {
        "x-text": "ä", "x-number": -(2**63), "x-large": 2**64 - 1, "x-real": 1.5, "x-none": None, "x-true": True,
        "x-bytes": b"\xff\x00", "x-list": [1, [2, {"three": 3}]], "": "empty", "retentions": 1,
    }  # fmt: skip
    with Raw(cluster.servers[0]) as raw:
        for name, value in unknown.items():
            asked = DeclareQueue(name="other", arguments={**arguments, name: value})
            error = error_of(lambda asked=asked: raw.request(asked, Metadata))
            assert type(error) is BadRequest
            assert f"{name!r} is not known" in error.message
        assert raw.request(GetMetadata(queues=["other"]), Metadata).missing == ["other"]


@pytest.mark.parametrize("size", [40_000, 8 * MIB - 40])
def test_arguments_that_no_mirror_could_take(cluster: Cluster, size: int) -> None:
    """Goal: a declaration never becomes a batch above max_batch_bytes, which would end replication for good. Method: as
    large as a frame may be; the mirror still follows."""
    with Raw(cluster.servers[0]) as raw:
        error = error_of(lambda: raw.request(DeclareQueue(name="fat", arguments={"x": "y" * size}), Metadata))
        assert type(error) is BadRequest, repr(error)
        many = {f"x-{number}": number for number in range(101)}
        assert type(error_of(lambda: raw.request(DeclareQueue(name="fat", arguments=many), Metadata))) is BadRequest
    cluster.wait_in_sync()
    cluster.wait_confirmed()


@pytest.mark.long
def test_arguments_nested_too_deep(tmp_path: Path) -> None:
    """Goal: what one decoder takes and another one does not never gets into the log, where it would part the copies.
    Method: lists in lists, a little too deep, and around where decoders give up. The next queue has the next id, on
    both nodes, before and after a restart."""

    def nested(depth: int) -> dict[str, Any]:
        # Ready bytes: the encoder here has limits of its own.
        return {"flush": msgspec.Raw(b"\x91" * depth + b"\xc0")}

    with fast_cluster(2, data_dir=tmp_path) as two:
        two.wait_in_sync()
        first = declare(two.servers[0], "first")
        end = two.wait_confirmed().end
        for depth in (8, 9, 100, 500, *range(900, 1040, 4)):
            with Raw(two.servers[0]) as raw:
                deep = DeclareQueue(name=f"deep-{depth}", arguments=nested(depth))
                raw.send(frame(FrameType.REQUEST, encode(deep), 1))
                # Deeper than a message may be: the connection is closed. Else the argument is named.
                received = raw.receive()
                assert received.type == FrameType.ERROR
                allowed = {(1, BadRequest)} | ({(0, ProtocolError)} if depth >= 900 else set())
                assert (received.correlation_id, type(failure(received))) in allowed, depth
        assert log_of(two.master).end == end
        second = declare(two.servers[0], "second")
        assert (first.queue_id, second.queue_id) == (1, 2)
        two.wait_confirmed()

        def listed(address: str) -> dict[str, int]:
            with Raw(address) as raw:
                return {queue.name: queue.queue_id for queue in raw.request(GetMetadata(), Metadata).queues}

        for _ in range(2):
            assert [listed(node.client) for node in two.nodes.values()] == [{"first": 1, "second": 2}] * 2
            for node in two.nodes.values():
                node.kill()
                node.start()
            two.wait_in_sync()


def test_positions_at_and_beyond_the_end(cluster: Cluster) -> None:
    """Goal: a position stands among the records or right behind them, and no node that may be behind calls it wrong for
    good. Method: commit at the end, beyond it, below 0, in another log, in epochs that cannot be or are newer than the
    node's, for a queue and for groups that cannot be; and at a mirror."""
    queue = declare(cluster.servers[0], "positions")
    with Raw(cluster.servers[0]) as raw:
        raw.produce(batch_of([b"0", b"1", b"2"], queue))

        def commit(
            offset: int,
            *,
            group: str = "g",
            name: str = "positions",
            log_id: str = queue.log_id,
            epoch: int = queue.epoch,
        ) -> Done:
            position = Position(log_id=log_id, epoch=epoch, queue_offset=offset)
            return raw.request(CommitPosition(queue=name, group=group, position=position), Done)

        commit(3)
        for offset in (4, 2**63, -1, 2**64 - 1):
            assert type(error_of(lambda offset=offset: commit(offset))) is BadRequest  # type: ignore[misc]
        for group in ("", "x" * 256, "a\nb"):
            assert type(error_of(lambda group=group: commit(1, group=group))) is BadRequest  # type: ignore[misc]
        assert type(error_of(lambda: commit(1, log_id="elsewhere"))) is BadRequest
        for epoch in (0, 1, queue.epoch):
            commit(3, epoch=epoch)
        for epoch in (-1, 2**32, 2**63):
            error = error_of(lambda epoch=epoch: commit(1, epoch=epoch))  # type: ignore[misc]
            assert type(error) is BadRequest
            assert f"epoch {epoch} of a position is not within 0 and {2**32 - 1}" in str(error)
        # Whoever read under it knows of another master; this node may lack what he read.
        for epoch, offset in ((queue.epoch + 1, 1), (2**32 - 1, 1), (queue.epoch + 1, 4)):
            error = error_of(lambda epoch=epoch, offset=offset: commit(offset, epoch=epoch))  # type: ignore[misc]
            assert type(error) is NotMaster
            assert f"a position of epoch {epoch}, and log main is at epoch {queue.epoch} on this node" in str(error)
        with Raw(cluster.nodes["n2"].client) as mirror:
            behind = Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=4)
            asked = CommitPosition(queue="positions", group="g", position=behind)
            assert type(error_of(lambda: mirror.request(asked, Done))) is NotMaster
        assert error_of(lambda: commit(1, name="nobody")).code == "NO_SUCH_QUEUE"
        found = raw.request(FetchPosition(queue="positions", group="g"), FoundPosition).position
        assert found is not None
        assert found.queue_offset == 3
        assert raw.request(FetchPosition(queue="positions", group="h"), FoundPosition).position is None
    cluster.wait_confirmed()
    with Raw(cluster.nodes["n2"].client) as mirror:
        assert (
            mirror.request(FetchPosition(queue="positions", group="g", any_copy=True), FoundPosition).position == found
        )


def test_offsets_and_times_at_the_limits(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: no number breaks a lookup. Method: fetches and time lookups at the ends of their ranges."""
    with Raw(cluster.servers[0]) as raw:
        following = raw.produce(batch_of([b"x"], queue)).base_queue_offset + 1
        assert raw.fetch(queue.queue_id, following)[1] == []
        for offset in (following + 1, 2**63, 2**64 - 1):
            error = error_of(lambda offset=offset: raw.fetch(queue.queue_id, offset, wait_ms=1))  # type: ignore[misc]
            assert type(error) is OffsetOutOfRange
            assert error.details["next"] == following
        for time_us, expected in ((0, 0), (-(2**63), 0), (2**63, following), (2**64 - 1, following)):
            found = raw.request(FindOffset(queue="q", append_time_us=time_us), FoundOffset)
            assert found.queue_offset == expected


def test_values_of_every_size(cluster: Cluster) -> None:
    """Goal: sizes at their limits arrive unchanged on all nodes. Method: zero-length and absent values, one byte, the
    largest record, the largest batch, 4,000 tiny batches in a pipeline: more would be beyond the credit."""
    queue = declare(cluster.servers[0], "sizes")
    big = bytes(range(256)) * (4 * MIB // 256)
    with Raw(cluster.servers[0], timeout=30) as raw:
        raw.produce(batch_of([b"", None, b"x"], queue))
        raw.produce(batch_of([big], queue))
        room = 8 * MIB - len(batch_of([b"", b"", b""], queue))
        full = batch_of([big, b"y" * 8, b"z" * ((room - len(big) - 8) // 8 * 8)], queue)
        assert len(full) == 8 * MIB
        raw.produce(full)
        tiny = [raw.start_produce(batch_of([b"%d" % number], queue)) for number in range(4_000)]
        offsets = [raw.confirm(number).base_queue_offset for number in tiny]
        assert offsets == list(range(offsets[0], offsets[0] + 4_000))
    cluster.wait_confirmed()
    for node in cluster.nodes.values():
        with Raw(node.client, timeout=30) as raw:
            values = raw.values(queue.queue_id)
            assert values[:3] == [b"", b"", b"x"]
            same = values[3] == big and values[4] == big and set(values[6]) == {ord("z")}
            assert same
            assert values[7:] == [b"%d" % number for number in range(4_000)]


def test_a_mirror_refuses_publishes_without_growing(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: NOT_MASTER can be answered for ever. Method: 20,000 publishes to the mirror; its memory stays."""
    mirror = cluster.nodes["n2"]

    def memory() -> int:
        lines = Path(f"/proc/{mirror.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))

    batch = batch_of([b"x" * 100], queue)
    with Raw(mirror.client) as raw:

        def burst(count: int) -> None:
            for number in [raw.start_produce(batch) for _ in range(count)]:
                error = error_of(lambda number=number: raw.confirm(number))  # type: ignore[misc]
                assert type(error) is NotMaster

        burst(1_000)
        before = memory()
        for _ in range(19):
            burst(1_000)
        assert memory() < before + 4_000  # KiB; a traceback kept for each would be ten times that


def test_a_producer_whose_sequences_are_long_gone(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: a retry older than what is remembered is refused, never stored again. Method: 100 batches, retry the first
    one."""
    batches = [batch_of([b"%d" % number], queue, producer_id=51, sequence=number) for number in range(100)]
    with Raw(cluster.servers[0]) as raw:
        for number in [raw.start_produce(batch) for batch in batches]:
            raw.confirm(number)
        end = log_of(cluster.nodes["n1"]).end
        error = error_of(lambda: raw.produce(batches[0]))
        assert type(error) is OutOfSequence
        assert error.details["last"] == 99
        assert log_of(cluster.nodes["n1"]).end == end


# --- Clusters of their own ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_two_nodes_with_the_same_id(tmp_path: Path) -> None:
    """Goal: a second n2 on another directory costs no record and confirms nothing that is not on a copy. Method: start
    one beside the first under load: one of the two ends, for the cluster knows one n2. End both, start one
    again, on the disk of the one that is known; all lands once and copies are equal."""
    with fast_cluster(3, min_in_sync=2, data_dir=tmp_path) as three:
        three.wait_in_sync()
        queue = declare(three.servers[0], "q")
        first = three.nodes["n2"]
        client, replication = free_ports(2)
        flags = ["--data-dir", str(tmp_path / "twin")]
        flags += ["--set", f"client.bind='{HOST}:{client}'", "--set", f"replication.bind='{HOST}:{replication}'"]
        with Load(three.servers, queue, pace_s=0.01) as load:
            eventually(lambda: load.confirmed >= 10, "the load runs")
            command = [sys.executable, "-m", "mirrorlog.broker.main", "--config", str(first.config_file), *flags]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as twin:
                try:
                    eventually(lambda: not first.running or twin.poll() is not None, "one of them ends", timeout=30)
                finally:
                    twin.kill()
            if not first.running:
                assert first.exit_code == NotAMember.exit_code
                first.data_dir.rename(tmp_path / "aside")
                (tmp_path / "twin").rename(first.data_dir)
            first.kill()
            first.start()
            before = load.confirmed
            eventually(lambda: load.confirmed > before + 10, "confirms go on")
            three.wait_in_sync()
            load.stop()
        assert_copies_equal(three)
        for node in three.nodes.values():
            with Raw(node.client) as raw:
                load.check(raw.values(queue.queue_id))


@pytest.mark.long
def test_positions_and_queues_after_a_restart(tmp_path: Path) -> None:
    """Goal: what was answered is still there, whichever node died how. Method: declare and commit, kill -9 both, look
    on both."""
    with fast_cluster(2, data_dir=tmp_path) as two:
        queue = declare(two.servers[0], "q", retention_ms=1)
        with Raw(two.servers[0]) as raw:
            raw.produce(batch_of([b"0", b"1", b"2"], queue))
            for offset in (1, 2, 3, 2):
                position = Position(log_id=queue.log_id, epoch=queue.epoch, queue_offset=offset)
                raw.request(CommitPosition(queue="q", group="g", position=position), Done)
        two.wait_confirmed()
        for node in two.nodes.values():
            node.kill()
        for node in two.nodes.values():
            node.start()
        two.wait_in_sync()
        two.wait_confirmed()
        for node in two.nodes.values():
            with Raw(node.client) as raw:
                found = raw.request(FetchPosition(queue="q", group="g", any_copy=True), FoundPosition).position
                assert found is not None
                assert found.queue_offset == 2
                assert raw.request(DeclareQueue(name="q", arguments={"retention_ms": 1}), Metadata).queues[0].next == 3


@pytest.mark.long
def test_death_between_a_declare_and_its_confirm(tmp_path: Path) -> None:
    """Goal: a declaration of unknown outcome is there once, with one id. Method: with one of two mirrors paused the
    declare is stored, and cannot be confirmed; kill the master, declare again at the next one; restart."""
    with fast_cluster(3, data_dir=tmp_path) as three:
        three.wait_in_sync()
        master, paused = three.nodes["n1"], plain_mirror(three)
        paused.pause()
        with Raw(master.client) as raw:
            end = log_of(master).end
            raw.ask(DeclareQueue(name="q"))
            eventually(lambda: log_of(master).end > end, "it is stored")
        master.kill()
        paused.resume()
        assert three.master is not master
        master.start()
        three.wait_in_sync()
        ids = [declare(three.master.client, name).queue_id for name in ("q", "other", "q")]
        assert ids == [1, 2, 1]
        three.wait_confirmed()
        for node in three.nodes.values():
            with Raw(node.client) as raw:
                assert [queue.queue_id for queue in raw.request(GetMetadata(), Metadata).queues] == [1, 2]
        assert_copies_equal(three)


def plain_mirror(three: Cluster) -> Node:
    """One of the mirrors of n1, which does not coordinate: without it a queue's place is decided at once."""
    view = three.nodes["n1"].status().cluster
    assert view is not None
    return next(node for node in three.nodes.values() if node.id not in ("n1", view.coordinator))


def test_a_declare_is_answered_when_it_is_confirmed(tmp_path: Path) -> None:
    """Goal: nobody is told of a queue that not all copies have. Method: with one of two mirrors paused, a declare and
    its repetition both end as unknown; afterwards both are answered."""
    with fast_cluster(3, data_dir=tmp_path) as three:
        three.wait_in_sync()
        paused = plain_mirror(three)
        paused.pause()
        with Raw(three.servers[0]) as raw:
            numbers = [raw.ask(DeclareQueue(name="q")) for _ in range(2)]
            for number in numbers:
                error = error_of(lambda number=number: raw.answer(number))  # type: ignore[misc]
                assert error.code in ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"), repr(error)
            paused.resume()
            three.wait_in_sync()
            assert raw.request(DeclareQueue(name="q"), Metadata).queues[0].queue_id == 1


@pytest.mark.long
def test_a_declare_that_no_majority_decides_is_answered(tmp_path: Path) -> None:
    """Goal: nothing hangs, and nothing is left behind. Method: with the only mirror paused the place of a new queue
    cannot be decided: the declare ends by its own deadline, nothing is stored, and it works afterwards."""
    with fast_cluster(2, data_dir=tmp_path) as two:
        two.wait_in_sync()
        master, mirror = two.nodes.values()
        end = log_of(master).end
        mirror.pause()
        with Raw(master.client) as raw:
            error = error_of(lambda: raw.request(DeclareQueue(name="q"), Metadata))
            # Refused only if nobody was known to decide: what was asked may be decided yet.
            assert error.code in ("REQUEST_TIMEOUT", "OUTCOME_UNKNOWN", "NOT_LEADER"), repr(error)
            assert log_of(master).end == end
        mirror.resume()
        assert declare(two.servers[0], "q").queue_id == 1


def test_out_of_file_descriptors(tmp_path: Path) -> None:
    """Goal: a node that ran out of descriptors is well again once they are back. Method: a limit of 80, 120 connections
    that are dropped again, then a good client."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with fast_cluster(1, data_dir=tmp_path) as one:
        resource.prlimit(one.master.pid, resource.RLIMIT_NOFILE, (80, 80))
        with contextlib.ExitStack() as held:
            for _ in range(120):
                held.enter_context(socket.create_connection(split_address(one.servers[0]), timeout=5))
        queue = declare(one.servers[0], "q")
        with Raw(one.servers[0]) as raw:
            raw.produce(batch_of([b"x"], queue))
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_batches_are_read_whole_and_in_order_under_load(cluster: Cluster) -> None:
    """Goal: a reader that follows a writer sees each record once. Method: read while a load runs, from master and
    mirror, each from where it stands."""
    queue = declare(cluster.servers[0], "follow")
    with Load(cluster.servers, queue, batch_records=5) as load:
        for node in cluster.nodes.values():
            with Raw(node.client) as raw:
                at = 0
                while at < 2_000:
                    for batch in raw.fetch(queue.queue_id, at, max_bytes=4096, wait_ms=1_000)[1]:
                        header = read_header(batch)
                        assert header.base_queue_offset == at
                        at = header.next_queue_offset
        load.stop()
    with Raw(cluster.servers[0]) as raw:
        load.check(raw.values(queue.queue_id))


def test_a_thousand_queues(tmp_path: Path) -> None:
    """Goal: queues are cheap, and all are on every node. Method: declare 1,000 in one pipeline, publish to each,
    compare the nodes; then reach the limit."""
    with fast_cluster(2, data_dir=tmp_path, settings={"limits.max_queues": 1_100}) as cluster:
        cluster.wait_in_sync()
        with Raw(cluster.servers[0]) as raw:
            numbers = [raw.ask(DeclareQueue(name=f"many-{number}")) for number in range(1_000)]
            queues = [raw._message(raw.answer(number), Metadata).queues[0] for number in numbers]
            assert len({queue.queue_id for queue in queues}) == 1_000
            sent = [raw.start_produce(batch_of([queue.name.encode()], queue)) for queue in queues]
            for number in sent:
                assert raw.confirm(number).base_queue_offset == 0
            for queue in queues[::97]:
                assert raw.values(queue.queue_id) == [queue.name.encode()]
            error = error_of(lambda: [raw.request(DeclareQueue(name=f"too-{n}"), Metadata) for n in range(300)])
            assert type(error) is Overloaded
            assert error.details["limit"] == "max_queues"
        assert_copies_equal(cluster)
        with Raw(cluster.nodes["n2"].client) as raw:
            found = raw.request(GetMetadata(), Metadata).queues
            assert {queue.name for queue in queues} <= {queue.name for queue in found}


def test_more_waiting_confirms_than_allowed(tmp_path: Path) -> None:
    """Goal: waits are bounded, and the refusal stores nothing. Method: with the mirror paused, 50 publishes wait, the
    others are refused by the limit's name; afterwards the records of the first 50 are there and no others."""
    # Nobody takes over from a master that waits: what nobody confirmed might go with its log.
    settings = {"limits.max_waiting_confirms": 50, "cluster.node_timeout_ms": 60_000}
    with fast_cluster(2, data_dir=tmp_path, settings=settings) as two:
        two.wait_in_sync()
        queue = declare(two.servers[0], "q")
        two.nodes["n2"].pause()
        with Raw(two.servers[0]) as raw:
            numbers = [raw.start_produce(batch_of([b"%d" % number], queue)) for number in range(80)]
            for number in numbers[50:]:
                error = error_of(lambda number=number: raw.confirm(number))  # type: ignore[misc]
                assert type(error) is Overloaded
                assert error.details["limit"] == "max_waiting_confirms"
            two.nodes["n2"].resume()
            expected = [b"%d" % number for number in range(50)]
            # The node may have waited for a change of its own, too.
            eventually(lambda: raw.values(queue.queue_id) in (expected, expected[:-1]), "the first 50 are visible")
        assert_copies_equal(two)
