"""Copies of one log with small segments, for the tests of replication: real directories, no sockets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from mirrorlog.broker.log.replica import Replica
from mirrorlog.commitlog.format.body import Record
from mirrorlog.commitlog.format.drafts import encode_batch
from mirrorlog.commitlog.format.header import BatchHeader, read_header
from mirrorlog.config import (
    ClusterSettings,
    Flush,
    HaSettings,
    LimitSettings,
    LogAssignment,
    LogSettings,
    Member,
    NodeSettings,
    Settings,
)
from mirrorlog.queues.changes import EpochStarted, encode_change
from mirrorlog.wire.frame_reader import FrameReader
from mirrorlog.wire.frames import Ack, Frame, FrameType, Transfer, read_ack, read_transfer
from mirrorlog.wire.messages.handshake import Hello

KIB = 1024
QUEUE_ID = 1
HA = HaSettings(
    send_heartbeat_interval_ms=500,
    housekeeping_interval_ms=2_000,
    transfer_batch_bytes=32 * KIB,
    sync_flush_timeout_ms=1_000,
    reconnect_interval_ms=100,
    in_flight_bytes_max=96 * KIB,
)


def settings_of(node: str, nodes: Sequence[str], *, flush: Flush = "memory", min_in_sync: int = 1) -> Settings:
    """The settings of `node` in a cluster whose first node is the master. Segments and batches are as small as can
    be."""
    log = LogAssignment(master=nodes[0], mirrors=tuple(nodes[1:]), flush=flush, min_in_sync=min_in_sync)
    return Settings(
        cluster=ClusterSettings(members=tuple(Member(id=each) for each in nodes), logs=(log,)),
        node=NodeSettings(id=node),
        limits=LimitSettings(max_batch_bytes=64 * KIB, max_record_bytes=32 * KIB),
        log=LogSettings(segment_bytes=256 * KIB, populate_bytes=0),
        ha=HA,
    )


def open_replica(directory: Path, settings: Settings) -> Replica:
    """The node's copy in `directory`, made or recovered."""
    assignment = settings.cluster.logs[0]
    replica = Replica(assignment, log_id_of(settings), settings)
    replica.open(directory)
    return replica


def log_id_of(settings: Settings) -> UUID:
    return settings.cluster.log_id(settings.cluster.logs[0])


# Every start of a node has an id of its own.
_starts = itertools.count(1)


def open_master(directory: Path, settings: Settings) -> Replica:
    """The master's copy with a new epoch and the epoch's first batch, as a node opens it."""
    replica = open_replica(directory, settings)
    start_epoch(replica, settings.node.id)
    return replica


def start_epoch(replica: Replica, node_id: str, epoch: int | None = None) -> None:
    epoch = replica.log.epochs.current + 1 if epoch is None else epoch
    start_id = f"s{next(_starts)}"
    replica.log.open_epoch(epoch, node_id=node_id, start_id=start_id)
    replica.append_change(encode_change(EpochStarted(epoch=epoch, node_id=node_id, start_id=start_id)), 1)


def append(replica: Replica, size: int = 100, fill: int = 1) -> BatchHeader:
    """One batch with a value of `size` bytes."""
    batch = memoryview(encode_batch([Record(bytes([fill % 255 + 1]) * size)], queue_id=QUEUE_ID))
    return replica.append(batch, read_header(batch), 1)


def content(replica: Replica) -> bytes:
    """Every byte of the copy, as a mirror would be sent it."""
    parts = []
    at = replica.log.begin
    while at < replica.log.end:
        run = replica.log.read(at, replica.log.end, until=replica.log.end)
        part = (
            bytes(run) if run is not None else replica.log.read_cold(at, replica.log.end, until=replica.log.end).run()
        )
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def flush(replica: Replica) -> None:
    job = replica.log.start_flush()
    job.run()
    replica.log.complete_flush(job)


def greeting_of(settings: Settings) -> Hello:
    return Hello(
        version_min=1,
        version_max=1,
        role="mirror",
        cluster_id=str(settings.cluster.cluster_id),
        node_id=settings.node.id,
        start_id="s",
    )


def frames_in(parts: Sequence[bytes | memoryview]) -> list[Frame]:
    """The frames of what was sent, each with a payload of its own."""
    data = b"".join(bytes(part) for part in parts)
    reader = FrameReader(frame_bytes_max=1 << 24, initial_bytes=len(data) + 16)
    reader.room()[: len(data)] = data
    reader.received(len(data))
    frames = []
    while (frame := reader.next_frame()) is not None:
        frames.append(Frame(frame.type, frame.correlation_id, memoryview(bytes(frame.payload))))
    assert not reader.partial
    return frames


def transfers_in(parts: Sequence[bytes | memoryview]) -> list[Transfer]:
    return [read_transfer(frame.payload) for frame in frames_in(parts) if frame.type == FrameType.TRANSFER]


def acks_in(parts: Sequence[bytes | memoryview]) -> list[Ack]:
    return [read_ack(frame.payload) for frame in frames_in(parts) if frame.type == FrameType.ACK]
