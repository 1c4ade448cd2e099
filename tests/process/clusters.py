"""Clusters with short clocks, and what the tests look at on their nodes and disks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mirrorlog.errors import (
    ConnectionLost,
    InSyncReplicasNotEnough,
    MirrorlogError,
    NotCurrent,
    NotLeader,
    OutcomeUnknown,
    RequestTimeout,
)
from mirrorlog.testing import Cluster, Node
from mirrorlog.testing import asking as _asking
from mirrorlog.wire.messages.queues import DeclareQueue, Metadata, QueueInfo
from mirrorlog.wire.messages.status import LogStatus, MirrorStatus
from tests.process.raw import Raw

MIB = 1024 * 1024
SEGMENT_BYTES = 8 * MIB
FAST = {
    "ha.syncFlushTimeout": 1_000,
    "ha.haSendHeartbeatInterval": 200,
    "ha.haHousekeepingInterval": 1_500,
    "ha.reconnect_interval_ms": 50,
    "log.flushIntervalCommitLog": 50,
}

_T = TypeVar("_T")


def fast_cluster(copies: int = 3, *, settings: dict[str, Any] | None = None, **options: Any) -> Cluster:
    """As `Cluster`, every clock shortened and all copies needed unless said otherwise."""
    options = {"min_in_sync": copies, "segment_bytes": SEGMENT_BYTES, **options}
    return Cluster(copies, settings={**FAST, **(settings or {})}, **options)


def eventually(condition: Callable[[], _T | bool | None], what: str, timeout: float = 15.0) -> _T:
    """The first true result of `condition`; a node that does not answer yet counts as not true."""

    def met() -> _T | None:
        try:
            return condition() or None  # type: ignore[return-value]
        except (ConnectionLost, RequestTimeout, InSyncReplicasNotEnough, OutcomeUnknown, NotLeader, NotCurrent):
            return None

    return _asking.wait_for(met, timeout=timeout, what=lambda: what)


def declare(address: str, name: str, **arguments: Any) -> QueueInfo:
    """Declare a queue as soon as the cluster takes it."""

    def attempt() -> QueueInfo:
        with Raw(address) as raw:
            return raw.request(DeclareQueue(name=name, arguments=arguments), Metadata).queues[0]

    return eventually(attempt, f"queue {name} is declared")


def log_of(node: Node) -> LogStatus:
    """The node's only log."""
    return node.status().logs[0]


def at_master(cluster: Cluster, *, timeout: float = 10.0) -> Raw:
    """A connection to whoever masters the first log now."""
    return Raw(cluster.master.client, timeout=timeout)


def start_all(cluster: Cluster) -> None:
    """Start all nodes, each as if the others were starting too."""
    for node in cluster.nodes.values():
        node.launch()
    for node in cluster.nodes.values():
        node.wait_serving()


def wait_next_master(cluster: Cluster, former: Node, epoch: int) -> Node:
    """Another one than `former`, who mastered in `epoch`, or a later run of it."""

    def met() -> Node | None:
        found = cluster.master
        return found if log_of(found).epoch > epoch else None

    found = eventually(met, f"somebody masters after {former.id} in epoch {epoch}")
    assert found is not former
    return found


def mirror_of(cluster: Cluster, node_id: str) -> MirrorStatus:
    """A mirror as its master sees it."""
    return next(mirror for mirror in log_of(cluster.master).mirrors if mirror.node_id == node_id)


def log_directory(node: Node) -> Path:
    """Of the node's only log."""
    (found,) = (node.data_dir / "logs").iterdir()
    return found


def lose_log(node: Node) -> Path:
    """As if the disk had lost the copy of the only log, of a node that does not run; where its files are now."""
    lost = node.data_dir / "lost"
    log_directory(node).rename(lost)
    return lost


def segments(node: Node) -> dict[str, bytes]:
    """The segment files by name."""
    directory = log_directory(node)
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.name.isdigit()}


def assert_copies_equal(cluster: Cluster) -> int:
    """Wait until all is confirmed everywhere, then compare the files of all nodes byte by byte; the log's end."""
    end, copies = copies_of_one_end(cluster)
    (first, expected), *others = copies.items()
    assert sum(len(content) for content in expected.values()) >= end
    for node_id, found in others:
        assert found.keys() == expected.keys()
        for name, content in found.items():
            # Never `==` in the assert: a difference of megabytes would be printed.
            equal = content == expected[name]
            assert equal, f"segment {name} of {node_id} {difference(content, expected[name])} of {first}"
    return end


def copies_of_one_end(cluster: Cluster) -> tuple[int, dict[str, dict[str, bytes]]]:
    """The log's end when all is confirmed everywhere, and by node the files of then."""

    def met() -> tuple[int, dict[str, dict[str, bytes]]] | None:
        end = cluster.wait_confirmed().end
        copies = {node.id: segments(node) for node in cluster.nodes.values()}
        # A roll's checkpoint goes on in later turns of the loop, and so may come between the reading of two copies.
        return (end, copies) if log_of(cluster.master).end == end else None

    # Not `eventually`: a node that does not answer here is a failure, as it is to `wait_confirmed`.
    return _asking.wait_for(met, timeout=15.0, what=lambda: "nothing is appended while the copies are read")


def difference(content: bytes, expected: bytes) -> str:
    """Where the two part and how long each is, in words that end before the name of whose `expected` is."""
    pairs = enumerate(zip(content, expected, strict=False))
    at = next((index for index, (ours, theirs) in pairs if ours != theirs), min(len(content), len(expected)))
    found, wanted = (part[at : at + 48] for part in (content, expected))
    return f"({len(content):,} bytes) has {found!r} at {at:,}, not {wanted!r} as that ({len(expected):,} bytes)"


def log_lines(node: Node, event: str) -> list[str]:
    """The lines of the node's own log that tell of `event`."""
    return [line for line in node.log_file.read_text().splitlines() if f" {event} " in line]


def facts(line: str) -> dict[str, str]:
    """The `key=value` words of a log line."""
    return dict(word.split("=", 1) for word in line.split() if "=" in word)


def error_of(call: Callable[[], object]) -> MirrorlogError:
    """The error that `call` ends with; it must."""
    try:
        result = call()
    except MirrorlogError as error:
        return error
    raise AssertionError(f"no error, but {result!r}")
