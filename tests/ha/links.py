"""Both ends of a link, led by hand to the state that a test wants. No sockets: frames and actions only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mirrorlog.broker.log.replica import Replica
from mirrorlog.config import Flush, HaSettings, Settings
from mirrorlog.errors import MirrorlogError
from mirrorlog.ha.actions import Action, Align, Close, Send
from mirrorlog.ha.client import HAClient
from mirrorlog.ha.connection import HAConnection
from mirrorlog.ha.in_sync import InSyncSet
from mirrorlog.ha.links import DeclaredLoss
from mirrorlog.wire.frames import ACK, TRANSFER, Ack, Frame, FrameType
from mirrorlog.wire.messages.base import Message
from mirrorlog.wire.messages.codec import encode
from mirrorlog.wire.messages.handshake import NodeLimits, Welcome
from mirrorlog.wire.messages.replication import EpochEntry, FollowRequest, History, Pull
from tests.ha.replicas import HA, greeting_of, log_id_of, open_master, open_replica, settings_of

_A = TypeVar("_A", bound=Action)


@dataclass
class Pair:
    """A master's copy (n0) and a mirror's (n1)."""

    master: Replica
    mirror: Replica
    settings: Settings
    mirror_settings: Settings

    def close(self) -> None:
        self.master.close()
        self.mirror.close()


@dataclass
class Declared:
    """A loss that the cluster has declared."""

    epoch: int
    start: int


def open_pair(directory: Path, *, flush: Flush = "memory") -> Pair:
    own, other = (settings_of(node, ["n0", "n1"], flush=flush) for node in ("n0", "n1"))
    return Pair(open_master(directory / "n0", own), open_replica(directory / "n1", other), own, other)


def everybody(nodes: Sequence[str], *, copies_wanted: int = 1) -> InSyncSet:
    """Every node is in sync, in the run that `greeting_of` and `connection_of` give it."""
    runs = dict.fromkeys(nodes, "s")
    return InSyncSet(
        version=1, replicas=tuple(nodes), members=runs, marked=frozenset(), copies_wanted=copies_wanted, starts=runs
    )


# --- The master's end -------------------------------------------------------------------------------------------------


def connection_of(
    master: Replica,
    *,
    make: Callable[..., HAConnection] = HAConnection,
    ha: HaSettings = HA,
    now: float = 0.0,
    node: str = "n1",
    start_id: str = "s",
    losses: Sequence[DeclaredLoss] = (),
) -> HAConnection:
    return make(node_id=node, start_id=start_id, copy=master, settings=ha, now=now, losses=losses)


def follow_of(copy: Replica) -> FollowRequest:
    """What a mirror with this copy says first."""
    return FollowRequest(
        log_id=str(copy.log_id),
        epochs=[EpochEntry(*each) for each in copy.log.epochs.entries],
        begin=copy.log.begin,
        end=copy.log.end,
        confirmed=copy.log.confirmed,
    )


def prove(connection: HAConnection, mirror: Replica, now: float = 0.0) -> list[Action]:
    """The mirror asks from its end; what the master does first."""
    connection.follow(follow_of(mirror), now)
    return connection.pull(Pull(log_offset=mirror.log.end), now)


def ack_of(written: int, *, epoch: int, flushed: int = 0) -> Ack:
    return Ack(written, flushed, epoch, 0)


# --- The mirror's end -------------------------------------------------------------------------------------------------


def client_of(
    mirror: Replica,
    settings: Settings,
    *,
    make: Callable[..., HAClient] = HAClient,
    ha: HaSettings = HA,
    now: float = 0.0,
    losses: Sequence[DeclaredLoss] = (),
) -> HAClient:
    return make(
        log_id=log_id_of(settings),
        copy=mirror,
        greeting=greeting_of(settings),
        master="master:7402",
        settings=ha,
        now=now,
        losses=losses,
    )


def welcome(settings: Settings) -> Frame:
    cluster = settings.cluster
    return message_frame(
        FrameType.WELCOME,
        Welcome(
            version=1,
            cluster_id=str(cluster.cluster_id),
            cluster_name=cluster.name,
            node_id="n0",
            start_id="s",
            limits=NodeLimits(max_record_bytes=1, max_batch_bytes=1),
        ),
    )


def history(master: Replica) -> Frame:
    epochs = [EpochEntry(*each) for each in master.log.epochs.entries]
    return message_frame(
        FrameType.HISTORY,
        History(
            epoch=master.log.epochs.current,
            epochs=epochs,
            begin=master.log.begin,
            end=master.log.end,
            confirmed=master.log.confirmed,
        ),
    )


def transfer(
    master: Replica,
    first: int,
    last: int,
    *,
    at: int | None = None,
    epoch: int | None = None,
    damage: int | None = None,
) -> Frame:
    """The master's bytes [first, last) as one frame, said to stand `at`, with the byte at `damage` flipped."""
    run = bytearray(master.log.read_cold(first, last - first, until=last).run() if last > first else b"")
    if damage is not None:
        run[damage] ^= 1
    epoch = master.log.epochs.current if epoch is None else epoch
    facts = TRANSFER.pack(first if at is None else at, master.log.confirmed, master.log.end, epoch, 0)
    return Frame(FrameType.TRANSFER, 0, memoryview(facts + bytes(run)))


def ack_frame(ack: Ack) -> Frame:
    return Frame(FrameType.ACK, 0, memoryview(ACK.pack(*ack)))


def message_frame(kind: FrameType, message: Message) -> Frame:
    return Frame(kind, 0, memoryview(encode(message)))


def lead_to_asking(client: HAClient, settings: Settings, now: float = 0.0) -> None:
    client.tick(now)
    client.connected(now)
    client.received(welcome(settings), now)


def lead_to_transfer(client: HAClient, pair: Pair, now: float = 0.0) -> Sequence[Action]:
    """Everything up to the first bytes; the actions of its end."""
    lead_to_asking(client, pair.mirror_settings, now)
    align = only(Align, client.received(history(pair.master), now))
    pair.mirror.align(align.log_offset, align.epochs)
    pair.mirror.aligned()
    return client.aligned(now)


# --- What came of it --------------------------------------------------------------------------------------------------


def only(kind: type[_A], actions: Sequence[Action]) -> _A:
    """The only action, which must be of this kind."""
    (action,) = actions
    assert isinstance(action, kind)
    return action


def sends(actions: Sequence[Action]) -> list[bytes | memoryview]:
    """The parts of all that is sent, in order; nothing else may be asked for."""
    parts: list[bytes | memoryview] = []
    for action in actions:
        assert isinstance(action, Send), action
        parts.extend(action.parts)
    return parts


def closes(actions: Sequence[Action]) -> bool:
    return any(isinstance(action, Close) for action in actions)


def refusal(step: Callable[[], object]) -> MirrorlogError | None:
    """The error with which `step` ends the link, None when it goes on."""
    try:
        step()
    except MirrorlogError as error:
        return error
    return None
