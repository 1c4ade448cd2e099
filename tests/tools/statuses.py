"""Fixed statuses: a cluster in the middle of an outage, with large offsets and everything that a table can show."""

from typing import Any

import msgspec

from mirrorlog.diagnosis.cluster_status import AllStatuses, Unreachable
from mirrorlog.wire.messages.queues import Position
from mirrorlog.wire.messages.status import ClusterStatus as View
from mirrorlog.wire.messages.status import (
    DiskStatus,
    GroupStatus,
    LogStatus,
    LossStatus,
    MemoryStatus,
    MirrorStatus,
    NodeStatus,
    PlacedLog,
    QueueStatus,
    Status,
)

NOW_US = 1_795_261_291_850_475
LOG_ID = "7c6e67c6-85b5-54b0-b99c-56b1e8d06aa8"

QUEUES = [
    QueueStatus(name="flights", queue_id=1, begin=0, next=336_776, confirmed=336_700),
    QueueStatus(name="orders[eu]", queue_id=2, begin=120, next=9_000_000_120, confirmed=9_000_000_120),
]
GROUPS = [
    GroupStatus(
        group="delta", queue="flights", position=Position(log_id=LOG_ID, epoch=3, queue_offset=300_000), lag=36_700
    ),
]

UP = MirrorStatus(
    node_id="n2",
    connected=True,
    proven=True,
    in_sync=True,
    requested=98_304,
    sent=12_345_678_912,
    acked=12_345_416_768,
    flushed=12_340_000_000,
    lag_bytes=262_144,
    lag_records=2_048,
    lag_records_estimated=False,
    lag_seconds=0.0125,
    bytes_per_second=95.5 * 1024 * 1024,
    last_read_us=NOW_US - 1_000,
    last_write_us=NOW_US - 250_000,
)
DOWN = MirrorStatus(
    node_id="n3",
    connected=False,
    proven=False,
    in_sync=False,
    requested=-1,
    sent=-1,
    acked=0,
    flushed=0,
    lag_bytes=12_345_678_912,
    lag_records=96_450_616,
    lag_records_estimated=True,
    lag_seconds=86_400.5,
    bytes_per_second=0.0,
)


def log_status(**changes: Any) -> LogStatus:
    """The log on its master, with `changes`."""
    usual = LogStatus(
        log_id=LOG_ID,
        name="main",
        role="master",
        state="serving",
        reason="",
        flush="memory",
        min_in_sync=2,
        epoch=3,
        begin=0,
        end=12_345_678_912,
        flushed=12_345_000_000,
        confirmed=12_345_416_768,
        mirrors=[UP, DOWN],
        queues=QUEUES,
        groups=GROUPS,
    )
    return msgspec.structs.replace(usual, **changes)


def node_status(node_id: str, *logs: LogStatus) -> Status:
    return Status(
        cluster_id="0d9b",
        cluster_name="testing",
        node_id=node_id,
        start_id=f"start-of-{node_id}",
        now_us=NOW_US,
        logs=list(logs),
    )


def mirror_log(**changes: Any) -> LogStatus:
    """The log on n2, a mirror a little behind."""
    usual = {"role": "mirror", "state": "following", "mirrors": [], "end": 12_345_416_768, "confirmed": 12_345_000_000}
    return log_status(**{**usual, **changes})


def cluster_status(*nodes: Status, unreachable: tuple[Unreachable, ...] = ()) -> AllStatuses:
    return AllStatuses(cluster_id="0d9b", cluster_name="testing", nodes=list(nodes), unreachable=list(unreachable))


N3_DOWN = Unreachable(
    node_id="n3", client="127.0.0.1:7421", error="CONNECTION_LOST", message="no connection to 127.0.0.1:7421: refused"
)

OUTAGE = cluster_status(node_status("n1", log_status()), node_status("n2", mirror_log()), unreachable=(N3_DOWN,))
"""n1 is master, n2 follows, n3 is down."""

MASTER_DOWN = cluster_status(
    node_status("n2", mirror_log(state="disconnected", reason="n1 refuses connections")),
    node_status("n3", mirror_log(state="disconnected", confirmed=12_345_416_768)),
    unreachable=(
        Unreachable(
            node_id="n1",
            client="127.0.0.1:7401",
            error="REQUEST_TIMEOUT",
            message="no answer from 127.0.0.1:7401 within 3000 ms",
        ),
    ),
)
"""n1 was master; n3 knows a higher confirmed offset than n2."""


def member(number: int, *, name: str = "", **changes: Any) -> NodeStatus:
    """The node n<number>, up and voting, with `changes`."""
    node_id = name or f"n{number}"
    usual = NodeStatus(
        node_id=node_id,
        member=number,
        client=f"127.0.0.1:74{number}1",
        replication=f"127.0.0.1:74{number}2",
        life="up",
        grpc=f"127.0.0.1:74{number}3",
        start_id=f"{number}a036149-1648-44c7-aaf6-61d3217ffd9a",
        kind="clean",
    )
    return msgspec.structs.replace(usual, **changes)


def placed(name: str = "main", **changes: Any) -> PlacedLog:
    """A log of three nodes, all in sync, that n1 masters, with `changes`."""
    usual = PlacedLog(
        log_id=LOG_ID,
        name=name,
        flush="memory",
        replicas=["n1", "n2", "n3"],
        master="n1",
        epoch=3,
        version=9,
        in_sync=["n1", "n2", "n3"],
        marked=[],
        copies=3,
        copies_wanted=2,
    )
    return msgspec.structs.replace(usual, **changes)


def view(*logs: PlacedLog, nodes: tuple[NodeStatus, ...] = (), **changes: Any) -> View:
    """What one node knows: n1 to n3, of which n2 coordinates, with `changes`."""
    usual = View(
        version=118,
        incarnation=1,
        coordinator="n2",
        term=4,
        elections=1,
        registered=True,
        nodes=list(nodes or (member(1), member(2), member(3))),
        logs=list(logs),
    )
    return msgspec.structs.replace(usual, **changes)


VIEW = view(
    placed(in_sync=["n1", "n2"], marked=["n2"]),
    placed(
        "n4",
        log_id="second",
        replicas=["n4", "n1"],
        master="",
        in_sync=["n4"],
        copies_wanted=1,
        losses=[LossStatus(epoch=2, start=4_096), LossStatus(epoch=3, start=8_192, end=12_288, leapt=True)],
    ),
    nodes=(
        member(1, draining=True),
        member(2),
        member(3, life="down", kind="died"),
        member(4, life="unknown", start_id="", kind="", grpc="", votes=False),
        member(5, name="w", witness=True, stopped=True, kind="lossy"),
    ),
    advice=["a cluster of these could be safer: do as its node advises"],
)
"""n1 drains, n3 is down, n4 learns and has not started, w is a witness that stopped; the coordinator, n2, waits for n4
in the log that has no master."""

WAITING = msgspec.structs.replace(
    VIEW, logs=[VIEW.logs[0], msgspec.structs.replace(VIEW.logs[1], waits_for=["n4"])], version=117
)

PLACED = cluster_status(
    msgspec.structs.replace(
        node_status("n1", log_status()),
        cluster=VIEW,
        disk=DiskStatus(state="low", reason="", free_bytes=3 * 1024**3, size_bytes=100 * 1024**3),
        memory=MemoryStatus(state="ok", reason="", used_bytes=192 << 20, high_bytes=2 << 30, size_bytes=3 << 30),
    ),
    msgspec.structs.replace(node_status("n2", mirror_log()), cluster=WAITING),
    unreachable=(N3_DOWN,),
)
"""The same in a cluster, whose coordinator knows a bit less than n1."""
