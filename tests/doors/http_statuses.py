"""Statuses made by hand, and what a scrape of a node that has them gives."""

from __future__ import annotations

from typing import Any

from prometheus_client import Metric

from mirrorlog.doors.http.answers import NodeReport, StatusScrape
from mirrorlog.doors.http.metric_families import SERIES_MAX
from mirrorlog.doors.http.metrics import metrics_text
from mirrorlog.wire.messages.queues import HoldInfo, Position
from mirrorlog.wire.messages.status import (
    AckingGroupStatus,
    ClusterStatus,
    DiskStatus,
    DurationCounts,
    FormerStatus,
    GroupStatus,
    LogCounts,
    LogStatus,
    MemoryStatus,
    MirrorStatus,
    NodeCounts,
    NodeStatus,
    PinStatus,
    PlacedLog,
    QueueCounts,
    QueueStatus,
    Status,
)
from tests.doors.http_door import families


def log(name: str = "main", **facts: Any) -> LogStatus:
    plain: dict[str, Any] = {
        "log_id": f"id of {name}",
        "role": "master",
        "state": "serving",
        "reason": "",
        "flush": "memory",
        "min_in_sync": 2,
        "epoch": 7,
        "begin": 64,
        "end": 4096,
        "flushed": 1024,
        "confirmed": 2048,
        "mirrors": [],
        "queues": [],
        "groups": [],
    }
    return LogStatus(name=name, **{**plain, **facts})


def mirror(node_id: str, **facts: Any) -> MirrorStatus:
    plain: dict[str, Any] = {
        "connected": True,
        "proven": True,
        "in_sync": True,
        "requested": 0,
        "sent": 4096,
        "acked": 4000,
        "flushed": 1000,
        "lag_bytes": 96,
        "lag_records": 3,
        "lag_records_estimated": False,
        "lag_seconds": 0.25,
        "bytes_per_second": 1.0,
        "last_read_us": 1_500_000,
        "last_write_us": 2_500_000,
    }
    return MirrorStatus(node_id=node_id, **{**plain, **facts})


def queue(
    number: int, name: str | None = None, *, begin: int = 1, following: int = 5, confirmed: int = 3
) -> QueueStatus:
    return QueueStatus(
        name=f"q{number}" if name is None else name,
        queue_id=number,
        begin=begin,
        next=following,
        confirmed=confirmed,
        counts=QueueCounts(published=21, delivered=22, redelivered=23, acked=24, expired=25, timed_out=26),
        ready=271,
        unacknowledged=272,
        consumers=273,
        delayed=274,
        oldest_age_ms=275_000,
    )


def acking(queue_name: str, name: str, **facts: Any) -> AckingGroupStatus:
    plain = {"ready": 281, "unacknowledged": 282, "delayed": 283, "leaving": 284, "consumers": 285}
    counted = {"delivered": 286, "acked": 287, "dead_lettered": 288, "oldest_age_ms": 289_000}
    return AckingGroupStatus(queue=queue_name, group=name, **{**plain, **counted, **facts})


def group(queue_name: str, name: str = "g", lag: int = 2) -> GroupStatus:
    return GroupStatus(group=name, queue=queue_name, position=Position(log_id="id", epoch=7, queue_offset=11), lag=lag)


def hold(queue_name: str, name: str = "lake", **facts: Any) -> HoldInfo:
    plain: dict[str, Any] = {
        "holder": "h",
        "epoch": 1,
        "queue_offset": 12,
        "lease_ms": 60_000,
        "left_ms": 30_500,
        "lag": 8,
        "kept_bytes": 640,
    }
    return HoldInfo(queue=queue_name, name=name, **{**plain, **facts})


def placed(name: str = "main", **facts: Any) -> PlacedLog:
    plain: dict[str, Any] = {
        "log_id": f"id of {name}",
        "flush": "memory",
        "replicas": ["n1", "n2", "n3"],
        "master": "n1",
        "epoch": 7,
        "version": 5,
        "in_sync": ["n1", "n2"],
        "marked": ["n3"],
        "copies": 4,
        "copies_wanted": 2,
    }
    return PlacedLog(name=name, **{**plain, **facts})


def member(number: int, life: str = "up", **facts: Any) -> NodeStatus:
    plain = {"client": "h:1", "replication": "h:2", "software_version": 6}
    return NodeStatus(node_id=f"n{number}", member=number, life=life, **{**plain, **facts})


def in_cluster(nodes: list[NodeStatus], logs: list[PlacedLog], *, coordinator: str = "n1") -> ClusterStatus:
    return ClusterStatus(
        version=12,
        incarnation=2,
        coordinator=coordinator,
        term=34,
        elections=3,
        registered=True,
        nodes=nodes,
        logs=logs,
        cluster_version=5,
    )


def counts(*logs: LogCounts) -> NodeCounts:
    return NodeCounts(
        accepted={"client": 71, "replication": 72},
        open={"client": 73, "replication": 74},
        refused={"NO_SUCH_QUEUE": 75},
        links_opened=9,
        links_open=2,
        questions_failed=76,
        logs=[*logs],
        strangers={"client": 77, "replication": 78},
        logins_failed={"password": 79},
        rights_refused={"read": 92},
        users_held_s={"publish_byte_rate": 9.5},
    )


def log_counts(log_name: str = "main", *, durations: tuple[int, ...] = (1, 2, 4), sum_s: float = 1.5) -> LogCounts:
    """`durations`: how many took up to 0.5 s, up to 1 s, and longer."""
    return LogCounts(
        log=log_name,
        published_batches=81,
        published_records=82,
        published_bytes=83,
        confirms=DurationCounts(bounds_s=[0.5, 1.0], counts=[*durations], sum_s=sum_s),
        unknown={"MASTER_CHANGED": 84},
        sent_bytes={"n2": 85},
        received_bytes=86,
        fetches=87,
        fetched_bytes=88,
        flushes=89,
        flushed_bytes=90,
        promotions=91,
    )


def scraped(
    *logs: LogStatus,
    disk: DiskStatus | None = None,
    cluster: ClusterStatus | None = None,
    counted: NodeCounts | None = None,
    memory: MemoryStatus | None = None,
    failures: int = 0,
    series_max: int = SERIES_MAX,
) -> dict[str, Metric]:
    """The families of a scrape of a node with these logs."""
    status = Status(
        cluster_id="id of c",
        cluster_name="c",
        node_id="n1",
        start_id="s1",
        now_us=3_000_000,
        logs=[*logs],
        disk=disk,
        cluster=cluster,
        counts=counted,
        memory=memory,
        certificate_expires_s=1_900_000_000,
        former=[FormerStatus(log_id="former", name="was main", size_bytes=1_000, since_us=2_000_000)],
    )
    answer = StatusScrape(NodeReport("mirrorlog 1.2.3", status), took_s=0.5, failures=failures)
    return families(metrics_text(answer, series_max).decode())


EVERYTHING = log(
    mirrors=[mirror("n2")],
    queues=[queue(1)],
    groups=[group("q1")],
    acking=[acking("q1", "b")],
    holds=[hold("q1")],
    pin=PinStatus(queue="q1", live_bytes=281, dead_bytes=282),
)
MEMORY = MemoryStatus(state="high", reason="", used_bytes=80, high_bytes=70, size_bytes=90)
DISK = DiskStatus(state="low", reason="", free_bytes=10, size_bytes=100)
CLUSTER = in_cluster([member(1)], [placed()])
COUNTS = counts(log_counts())
