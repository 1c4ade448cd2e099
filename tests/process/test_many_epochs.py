"""A log that has had very many masters: its list of epochs is long, and copies still find their common point."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorlog.commitlog.epochs import ENTRIES_MAX, Epoch, EpochList, decode_epochs, encode_epochs
from mirrorlog.config import split_address
from mirrorlog.errors import LogUnavailable, MirrorlogError, Refused
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages.queues import QueueInfo
from tests.process.clusters import (
    assert_copies_equal,
    at_master,
    declare,
    error_of,
    eventually,
    fast_cluster,
    log_directory,
    log_lines,
    start_all,
)
from tests.process.raw import Raw, batch_of

SMALL = {"limits.max_batch_bytes": 256 * 1024, "limits.max_record_bytes": 128 * 1024}


def epochs_of(node: Node) -> EpochList:
    return decode_epochs((log_directory(node) / "epochs").read_bytes())


def lengthen(*nodes: Node, count: int, end: int) -> None:
    """As if the first one had been promoted until there are so many epochs, each time without a byte written; the
    cluster does not know of it. The nodes do not run."""
    first = decode_epochs((log_directory(nodes[0]) / "epochs").read_bytes())
    more = [Epoch(number, end, nodes[0].id, str(uuid.uuid4())) for number in range(first.current + 1, count + 1)]
    for node in nodes:
        path = log_directory(node) / "epochs"
        found = decode_epochs(path.read_bytes())
        path.write_bytes(encode_epochs(EpochList.of([*found.entries, *more])))


def stop_both(cluster: Cluster) -> None:
    for node in reversed(cluster.nodes.values()):
        assert node.stop() == 0


@contextmanager
def masters_by_a_long_list(data_dir: Path, count: int) -> Iterator[tuple[Cluster, QueueInfo]]:
    """Two nodes, of which the master alone began with so many epochs.

    Of two equal copies the cluster takes the one that is there first, and if that is the other one, this list does not
    count: then another pair is tried.
    """
    for number in range(10):
        with fast_cluster(2, data_dir=data_dir / str(number), settings=SMALL) as two:
            two.wait_in_sync()
            queue = declare(two.servers[0], "q")
            first, end = next(iter(two.nodes.values())), two.wait_confirmed().end
            stop_both(two)
            lengthen(first, count=count, end=end)
            start_all(two)
            two.wait_in_sync()
            if two.master is first:
                yield two, queue
                return
    pytest.fail("the node with the long list was never the master")


def publish(cluster: Cluster, queue: QueueInfo, value: bytes) -> None:
    with at_master(cluster) as raw:
        assert raw.produce(batch_of([value], queue)).copies == 2


@pytest.mark.long
def test_a_long_list_of_epochs_is_told_and_followed(tmp_path: Path) -> None:
    """Goal: no frame is too small for a list that may be. With half as many epochs as are allowed, 1.4 MB, which one
    node has and the other does not, they go on, and so they do when both know all; the master warns."""
    with masters_by_a_long_list(tmp_path, ENTRIES_MAX // 2) as (two, queue):
        first, second = two.nodes.values()
        for number in range(2):
            if number:
                stop_both(two)
                start_all(two)
                two.wait_in_sync()
            publish(two, queue, b"%d" % number)
            assert_copies_equal(two)
            assert epochs_of(first) == epochs_of(second)
            assert len(epochs_of(first).entries) > ENTRIES_MAX // 2 + number
            assert f"limit={ENTRIES_MAX}" in log_lines(two.master, "epochs_many")[-1]


@pytest.mark.long
def test_a_log_with_all_the_epochs_there_may_be_is_refused_alone(tmp_path: Path) -> None:
    """Goal: the limit says what to do, and costs one log, not the node. Method: start both nodes with a full list: they
    run, the log is refused by that reason at its home, the other one still serves readers, and no epoch was added."""
    with fast_cluster(2, data_dir=tmp_path, settings=SMALL) as two:
        two.wait_in_sync()
        queue = declare(two.servers[0], "q")
        publish(two, queue, b"kept")
        end = two.wait_confirmed().end
        first, second = two.nodes.values()
        stop_both(two)
        lengthen(first, second, count=ENTRIES_MAX, end=end)
        start_all(two)
        with Raw(first.client) as raw:
            error = error_of(lambda: raw.produce(batch_of([b"more"], queue)))
        assert isinstance(error, LogUnavailable)
        assert f"{ENTRIES_MAX} epochs" in error.message
        with Raw(second.client) as raw:
            eventually(lambda: raw.values(queue.queue_id) == [b"kept"], "it serves readers")
            assert isinstance(error_of(lambda: raw.produce(batch_of([b"more"], queue))), Refused)
        for node in (first, second):
            assert node.stop() == 0
            assert len(epochs_of(node).entries) == ENTRIES_MAX


def test_a_start_that_cannot_listen_begins_no_epoch(tmp_path: Path) -> None:
    """Goal: a node that is started again and again on a taken port does not fill its epoch list. Method: take the
    port, start, compare the file."""
    with fast_cluster(1, data_dir=tmp_path, settings=SMALL) as one:
        one.wait_in_sync()
        master = one.nodes["n1"]
        master.stop()
        before = epochs_of(master)
        with socket.create_server(split_address(master.client)), pytest.raises(MirrorlogError):
            master.start()
        assert epochs_of(master) == before
