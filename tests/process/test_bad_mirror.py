"""A mirror that lies: its acks count for nothing, its histories are refused, and the real one is served after it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mirrorlog.errors import (
    AckBeyondEnd,
    BadRequest,
    ConnectionLost,
    FlushSlaveTimeout,
    MirrorlogError,
    NoSuchLog,
    OffsetOutOfRange,
    OutcomeUnknown,
    ProtocolError,
)
from mirrorlog.testing import Cluster
from mirrorlog.wire.frames import ACK, TRANSFER, FrameType, Level, Transfer, frame, read_transfer
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import Hello
from mirrorlog.wire.messages.queues import QueueInfo
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, History, Pull
from tests.process.clusters import (
    assert_copies_equal,
    declare,
    error_of,
    eventually,
    fast_cluster,
    log_lines,
    log_of,
    mirror_of,
)
from tests.process.raw import Raw, batch_of


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A master whose only mirror is down: the tests take its place."""
    with fast_cluster(2, min_in_sync=1) as two:
        two.wait_in_sync()
        declare(two.servers[0], "q")
        two.wait_confirmed()
        two.nodes["n2"].kill()
        yield two


@pytest.fixture
def queue(cluster: Cluster) -> QueueInfo:
    return declare(cluster.servers[0], "q")


@pytest.fixture(autouse=True)
def unharmed(cluster: Cluster) -> Iterator[None]:
    """After each test: the same log is served, nothing more is confirmed, and the liar is out."""
    before = log_of(cluster.master)
    yield
    if cluster.nodes["n2"].running:
        return
    eventually(lambda: not mirror_of(cluster, "n2").connected, "the link is gone")
    after = log_of(cluster.master)
    assert (after.state, after.confirmed) == ("serving", before.confirmed)


class FakeMirror(Raw):
    """Greets as n2, in the run that the cluster knows of it, and says what it is told to."""

    def __init__(self, cluster: Cluster, *, run: str = "") -> None:
        status = cluster.master.status()
        self.log = status.logs[0]
        assert status.cluster is not None
        (known,) = (node.start_id for node in status.cluster.nodes if node.node_id == "n2")
        hello = Hello(
            version_min=1,
            version_max=1,
            role="mirror",
            cluster_id=status.cluster_id,
            node_id="n2",
            start_id=run or known,
        )
        super().__init__(cluster.master.replication, hello=hello)

    def follow(self, **facts: Any) -> History:
        """Follow as an empty copy unless told otherwise. Raises what the master says."""
        claims = {"log_id": self.log.log_id, "epochs": [], "begin": 0, "end": 0, "confirmed": 0, **facts}
        self.send(frame(FrameType.FOLLOW, encode(FollowRequest(**claims))))
        return self._message(self.receive(), History)

    def pull(self, log_offset: int = 0) -> Transfer:
        """Ask for bytes; the first frame that comes."""
        self.send(frame(FrameType.PULL, encode(Pull(log_offset=log_offset))))
        received = self.receive()
        if received.type != FrameType.TRANSFER:
            raise self._failure(received.payload)
        return read_transfer(memoryview(received.payload))

    def take_all(self, end: int) -> None:
        """Receive bytes until log offset `end`."""
        self.follow()
        self.send(frame(FrameType.PULL, encode(Pull(log_offset=0))))
        self.take(end)

    def take(self, size: int) -> None:
        """Receive so many more bytes."""
        held = 0
        while held < size:
            received = self.receive()
            if received.type == FrameType.TRANSFER:
                held += len(received.payload) - TRANSFER.size

    def ack(self, written: int, flushed: int = 0, epoch: int | None = None) -> None:
        facts = (written, flushed, self.log.epoch if epoch is None else epoch, 0)
        self.send(frame(FrameType.ACK, ACK.pack(*facts)))

    @staticmethod
    def _failure(payload: bytes) -> MirrorlogError:
        return error_of(lambda: Raw._message(_Payload(payload), History))  # type: ignore[arg-type]


class _Payload:
    def __init__(self, payload: bytes) -> None:
        self.payload = payload


@pytest.mark.parametrize("beyond", [8, 2**40, 2**63])
def test_an_ack_beyond_what_was_sent(cluster: Cluster, queue: QueueInfo, beyond: int) -> None:
    """Goal: an impossible ack closes the link and confirms nothing. Method: publish, take the bytes, ack more than was
    sent: ACK_BEYOND_END, and the publish ends as unknown."""
    with FakeMirror(cluster) as mirror, Raw(cluster.master.client) as producer:
        mirror.take_all(log_of(cluster.master).end)
        waiting = producer.start_produce(batch_of([b"x"], queue))
        eventually(lambda: log_of(cluster.master).end > mirror.log.end, "the batch is stored")
        mirror.ack(log_of(cluster.master).end + beyond)
        error = mirror.last_words()
        assert type(error) is AckBeyondEnd, repr(error)
        assert isinstance(error_of(lambda: producer.confirm(waiting)), OutcomeUnknown)


def test_an_ack_on_disk_beyond_the_one_in_memory(cluster: Cluster) -> None:
    """Goal: what is not in memory is not on disk. Method: say so."""
    with FakeMirror(cluster) as mirror:
        mirror.take_all(mirror.log.end)
        mirror.ack(mirror.log.confirmed, mirror.log.end + 8)
        assert type(mirror.last_words()) is AckBeyondEnd


def test_an_ack_of_another_epoch(cluster: Cluster) -> None:
    """Goal: acks of other masterships count for nothing. Method: one of an older and one of a newer epoch."""
    for shift in (-1, 1):
        with FakeMirror(cluster) as mirror:
            mirror.take_all(mirror.log.end)
            mirror.ack(mirror.log.end, epoch=mirror.log.epoch + shift)
            assert type(mirror.last_words()) is ProtocolError


def test_an_ack_before_anything_was_asked_for(cluster: Cluster) -> None:
    """Goal: a link is proven by Pull, never by an ack. Method: ack right after Follow."""
    with FakeMirror(cluster) as mirror:
        mirror.follow()
        assert not mirror_of(cluster, "n2").proven
        mirror.ack(mirror.log.end)
        assert type(mirror.last_words()) is ProtocolError


@pytest.mark.parametrize("flushed", [False, True])
def test_an_ack_within_a_batch(cluster: Cluster, flushed: bool) -> None:
    """Goal: half a batch is never counted, so it never becomes visible. Method: ack four bytes less than all, in memory
    or on disk; the status can still be asked for."""
    with FakeMirror(cluster) as mirror:
        mirror.take_all(mirror.log.end)
        if flushed:
            mirror.ack(mirror.log.end, mirror.log.end - 4)
        else:
            mirror.ack(mirror.log.end - 4)
        assert type(mirror.last_words()) is ProtocolError


def test_a_mirror_that_never_acks(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: sent is not held. Method: take all bytes and keep silent; a publish ends at its deadline."""
    with FakeMirror(cluster) as mirror, Raw(cluster.master.client) as producer:
        mirror.take_all(mirror.log.end)
        error = error_of(lambda: producer.produce(batch_of([b"x"], queue), deadline_ms=300))
        assert type(error) is FlushSlaveTimeout, repr(error)
        assert producer.produce(batch_of([b"y"], queue), level=Level.MASTER).copies == 1


def test_acks_of_a_run_that_the_cluster_does_not_know(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: membership belongs to a node in one run; what another one holds confirms nothing. Method: take all and ack
    it, greeted as n2 by a start id that nobody has registered: a publish ends as unknown, and the link stays."""
    with FakeMirror(cluster, run="another") as mirror, Raw(cluster.master.client) as producer:
        mirror.take_all(mirror.log.end)
        waiting = producer.start_produce(batch_of([b"x"], queue), deadline_ms=300)
        eventually(lambda: log_of(cluster.master).end > mirror.log.end, "the batch is stored")
        before = log_of(cluster.master)
        mirror.take(before.end - mirror.log.end)
        mirror.ack(before.end)
        eventually(lambda: mirror_of(cluster, "n2").acked == before.end, "the ack is read")
        assert isinstance(error_of(lambda: producer.confirm(waiting)), OutcomeUnknown)
        assert log_of(cluster.master).confirmed == before.confirmed < before.end


@pytest.mark.parametrize(
    "epochs",
    [
        [(1, 8), (2, 0)],
        [(2, 0), (1, 8)],
        [(1, 0), (1, 0)],
        [(0, 0)],
        [(-1, 0)],
        [(1, -8)],
        [(2**32, 0)],
        [(1, 2**63)],
    ],
)
def test_a_history_that_is_none(cluster: Cluster, epochs: list[tuple[int, int]]) -> None:
    """Goal: an epoch list is checked before it is believed. Method: lists that fall, repeat, or leave all ranges."""
    with FakeMirror(cluster) as mirror:
        entries = [EpochEntry(*entry) for entry in epochs]
        error = error_of(lambda: mirror.follow(epochs=entries, end=8))
        assert type(error) is BadRequest, repr(error)


@pytest.mark.parametrize(("begin", "end", "confirmed"), [(0, -8, 0), (-8, 0, 0), (0, 0, -1), (80, 8, 0), (0, 8, 80)])
def test_offsets_that_are_none(cluster: Cluster, begin: int, end: int, confirmed: int) -> None:
    """Goal: a claim that contradicts itself is refused, and closes nothing but its link. Method: offsets below 0 or in
    the wrong order."""
    with FakeMirror(cluster) as mirror:
        entries = [EpochEntry(1, 0)]
        error = error_of(lambda: mirror.follow(epochs=entries, begin=begin, end=end, confirmed=confirmed))
        assert isinstance(error, BadRequest | OffsetOutOfRange | ProtocolError), repr(error)


def test_a_history_that_has_nothing_in_common(cluster: Cluster) -> None:
    """Goal: a copy that cannot be is sent away. Method: bytes below the start of its only epoch."""
    with FakeMirror(cluster) as mirror:
        error = error_of(lambda: mirror.follow(epochs=[EpochEntry(1, 64)], end=8))
        assert type(error) is BadRequest, repr(error)
        assert "do not say from when" in error.message


@pytest.mark.parametrize("log_offset", [8, -8, 2**40])
def test_a_pull_from_elsewhere(cluster: Cluster, log_offset: int) -> None:
    """Goal: bytes go on exactly where the histories part. Method: an empty mirror that asks for another offset."""
    with FakeMirror(cluster) as mirror:
        mirror.follow()
        error = error_of(lambda: mirror.pull(log_offset))
        assert type(error) is OffsetOutOfRange, repr(error)
        assert not mirror_of(cluster, "n2").proven


def test_a_log_that_nobody_has(cluster: Cluster) -> None:
    """Goal: the log is named by id. Method: follow another one."""
    for log_id in ("", "x", "00000000-0000-0000-0000-000000000000"):
        with FakeMirror(cluster) as mirror:
            error = error_of(lambda mirror=mirror, log_id=log_id: mirror.follow(log_id=log_id))  # type: ignore[misc]
            assert type(error) is NoSuchLog


def test_the_real_mirror_is_served_after_all_this(cluster: Cluster) -> None:
    """Goal: nothing that a liar did stays. Method: take its link away by starting the real mirror; copies are equal."""
    with FakeMirror(cluster) as mirror:
        mirror.take_all(mirror.log.end)
        cluster.nodes["n2"].start()
        cluster.wait_in_sync()
        assert_copies_equal(cluster)


def test_a_link_that_is_not_proven_takes_nobodys_place(cluster: Cluster, queue: QueueInfo) -> None:
    """Goal: to greet under a mirror's name, with any history, is not enough to silence it. Method: Follow beside the
    real mirror and publish, confirmed on both copies; then Pull: now the link counts, until the real mirror pulls."""
    if not cluster.nodes["n2"].running:
        cluster.nodes["n2"].start()
    cluster.wait_in_sync()

    def disconnects() -> list[str]:
        return log_lines(cluster.nodes["n2"], "mirror_disconnected")

    before = len(disconnects())
    with FakeMirror(cluster) as mirror, Raw(cluster.master.client) as producer:
        mirror.follow()
        for number in range(3):
            assert producer.produce(batch_of([b"%d" % number], queue)).copies == 2
        assert mirror_of(cluster, "n2").proven
        assert len(disconnects()) == before
        assert mirror.pull().confirmed > 0
        replaced = mirror.last_words()
        assert isinstance(replaced, ConnectionLost)
        assert "has opened a newer link" in replaced.message
    eventually(lambda: any("newer link" in line for line in disconnects()[before:]), "the real one was told, too")
    cluster.wait_in_sync()
    assert_copies_equal(cluster)
