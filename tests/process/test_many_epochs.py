"""A log whose master was started very often: its list of epochs is long, and copies still find their common point."""

from __future__ import annotations

import socket
import uuid
from pathlib import Path

import pytest

from mirrorlog.commitlog.epochs import ENTRIES_MAX, Epoch, EpochList, decode_epochs, encode_epochs
from mirrorlog.config import split_address
from mirrorlog.errors import LogUnavailable, MirrorlogError
from mirrorlog.testing import Cluster, Node
from mirrorlog.wire.messages import QueueInfo
from tests.process.clusters import (
    assert_copies_equal,
    declare,
    error_of,
    eventually,
    fast_cluster,
    log_directory,
    log_lines,
    log_of,
)
from tests.process.raw import Raw, batch_of

SMALL = {"limits.max_batch_bytes": 256 * 1024, "limits.max_record_bytes": 128 * 1024}


def epochs_of(node: Node) -> EpochList:
    return decode_epochs((log_directory(node) / "epochs").read_bytes())


def lengthen(node: Node, count: int, end: int) -> None:
    """As if the stopped master had been started until it has so many epochs, each time without a byte written."""
    path = log_directory(node) / "epochs"
    found = decode_epochs(path.read_bytes())
    more = [Epoch(number, end, node.id, str(uuid.uuid4())) for number in range(found.current + 1, count + 1)]
    path.write_bytes(encode_epochs(EpochList.of([*found.entries, *more])))


def publish(cluster: Cluster, queue: QueueInfo, value: bytes) -> None:
    with Raw(cluster.servers[0]) as raw:
        assert raw.produce(batch_of([value], queue)).copies == 2


def test_a_long_list_of_epochs_is_told_and_followed(tmp_path: Path) -> None:
    """Goal: no frame is too small for a list that may be. With half as many epochs as are allowed, 1.4 MB, a mirror
    that knows none of them follows, and so it does when it knows all; the master warns."""
    with fast_cluster(2, data_dir=tmp_path, settings=SMALL) as two:
        two.wait_in_sync()
        queue = declare(two.servers[0], "q")
        end = two.wait_confirmed().end
        master, mirror = two.master, two.nodes["n2"]
        eventually(lambda: log_of(mirror).confirmed == end, "the mirror has all")
        mirror.stop()
        master.stop()
        lengthen(master, ENTRIES_MAX // 2, end)
        mirror.start()
        for number in range(2):
            master.start()
            two.wait_in_sync()
            publish(two, queue, b"%d" % number)
            assert_copies_equal(two)
            assert epochs_of(mirror) == epochs_of(master)
            assert len(epochs_of(master).entries) == ENTRIES_MAX // 2 + 1 + number
            (line,) = log_lines(master, "epochs_many")[number:]
            assert f"limit={ENTRIES_MAX}" in line
            master.stop()


def test_a_log_with_all_the_epochs_there_may_be_is_refused_alone(tmp_path: Path) -> None:
    """Goal: the limit says what to do, and costs one log, not the node. Method: start its master with a full list: the
    node runs, the log is refused by that reason, its mirror still serves readers, and no epoch was added."""
    with fast_cluster(2, data_dir=tmp_path, settings=SMALL) as two:
        two.wait_in_sync()
        queue = declare(two.servers[0], "q")
        publish(two, queue, b"kept")
        end = two.wait_confirmed().end
        master, mirror = two.master, two.nodes["n2"]
        master.stop()
        lengthen(master, ENTRIES_MAX, end)
        master.start()
        with Raw(two.servers[0]) as raw:
            error = error_of(lambda: raw.produce(batch_of([b"more"], queue)))
        assert isinstance(error, LogUnavailable)
        assert f"{ENTRIES_MAX} epochs" in error.message
        with Raw(mirror.client) as raw:
            assert raw.values(queue.queue_id) == [b"kept"]
        assert len(epochs_of(master).entries) == ENTRIES_MAX


def test_a_start_that_cannot_listen_begins_no_epoch(tmp_path: Path) -> None:
    """Goal: a node that is started again and again on a taken port does not fill its epoch list. Method: take the
    port, start, compare the file."""
    with fast_cluster(1, data_dir=tmp_path, settings=SMALL) as one:
        one.wait_in_sync()
        master = one.master
        master.stop()
        before = epochs_of(master)
        with socket.create_server(split_address(master.client)), pytest.raises(MirrorlogError):
            master.start()
        assert epochs_of(master) == before
