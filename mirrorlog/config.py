"""Settings of a node: defaults < TOML file < environment (`MIRRORLOG__SECTION__KEY`) < flags. Unknown keys are errors.

Names are ours in Python and RocketMQ's in files where they mean the same (`[ha] haSendHeartbeatInterval`), with
RocketMQ's defaults; where a default differs, its description says why. Both spellings are accepted.

A `[cluster]` table with members, the same on every node, founds a cluster of these; `join` looks for one; a node with
neither founds one of itself. Whatever becomes of nodes and logs is decided by the cluster, not here.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from uuid import UUID, uuid5

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from mirrorlog.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "MIRRORLOG__"
CLIENT_PORT: Final = 7401
REPLICATION_PORT: Final = 7402
GRPC_PORT: Final = 7403
HTTP_PORT: Final = 7404
MULTICAST_PORT: Final = 7405
MULTICAST_GROUP: Final = "239.255.74.1"
SEEDS_MAX: Final = 64
LOG_NUMBER_MAX: Final = 255
COPIES_MAX: Final = 16

_NAMESPACE: Final = UUID("6d697272-6f72-6c6f-672e-636c75737465")  # "mirrorlog.cluste" in ASCII
_KIB: Final = 1024
_MIB: Final = 1024 * 1024
_GIB: Final = 1024 * _MIB

_NAME: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
_PORT: Final = r"([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
_ADDRESS: Final = rf"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):{_PORT}$"
Name = Annotated[str, StringConstraints(pattern=_NAME)]
Address = Annotated[str, StringConstraints(pattern=_ADDRESS)]
Flush = Literal["memory", "disk"]
_PORTS: Final = ("client", "replication", "grpc", "http")
_DEFAULT_PORTS: Final = {"client": CLIENT_PORT, "replication": REPLICATION_PORT, "grpc": GRPC_PORT, "http": HTTP_PORT}

PATTERN_WORDS: Final = {
    _NAME: "is no name: 1 to 128 letters, digits, dots, dashes and underscores, the first a letter or a digit",
    _ADDRESS: "is not host:port, e.g. a.example:7402 or [2001:db8::1]:7402, the port at most 65535",
}
"""What is said of a value that does not match a pattern: nobody wants to read one."""

_SHOWN_CHARS: Final = 80


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Member(_Section):
    """A node of the cluster with the addresses that others use to reach it (advertised)."""

    id: Name
    client: Address = f"127.0.0.1:{CLIENT_PORT}"
    replication: Address = f"127.0.0.1:{REPLICATION_PORT}"
    grpc: Address | None = None
    http: Address | None = None


class LogAssignment(_Section):
    """A log and the nodes that hold it. `min_in_sync` defaults to 1 with one or two copies, else to the majority.

    `number` is the high byte of its queues' ids, so that an id tells the log. It is kept with the log's data: by
    default the place in [[cluster.logs]], from 0, and to be written there before the list is put in another order.
    `copies`: how many there shall be as nodes come; by default as many as are named here.
    """

    name: Name = "main"
    number: int | None = Field(None, ge=0, le=LOG_NUMBER_MAX)
    master: Name
    mirrors: tuple[Name, ...] = ()
    flush: Flush = "memory"
    copies: int | None = Field(None, ge=1, le=COPIES_MAX)
    min_in_sync: int | None = Field(None, ge=1)

    @property
    def nodes(self) -> tuple[str, ...]:
        return (self.master, *self.mirrors)

    @property
    def log_number(self) -> int:
        """`number`; 0 for an assignment that is in no list."""
        return self.number or 0

    @property
    def copies_wanted(self) -> int:
        """`min_in_sync`, with its default filled in."""
        if self.min_in_sync is not None:
            return self.min_in_sync
        copies = len(self.nodes)
        return 1 if copies <= 2 else copies // 2 + 1

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError(f"log {self.name!r} names a node twice: {', '.join(self.nodes)}")
        if self.copies_wanted > len(self.nodes):
            raise ValueError(f"log {self.name!r}: min_in_sync {self.min_in_sync} is above its {len(self.nodes)} copies")
        return self


class ClusterSettings(_Section):
    """`members` and `logs`, the same on every node, found a cluster and are not looked at again: from then on it
    decides itself. With `join` or multicast a node looks for one; with nothing it founds a cluster of one."""

    name: Name = "mirrorlog"
    id: UUID | None = Field(None, description="derived from the name when absent")
    members: tuple[Member, ...] = ()
    logs: tuple[LogAssignment, ...] = ()
    join: tuple[Address, ...] = Field(
        (),
        max_length=SEEDS_MAX,
        description="replication addresses of some nodes, one of which lets this one in; when they all look for a "
        "cluster, the first of them by text founds it. Not looked at by a node that is in one, but to see that it is "
        "the same",
    )
    discovery: Literal["seeds", "multicast"] = Field(
        "seeds", description="multicast: members are asked for, and answer, by multicast too"
    )
    multicast_group: str = Field(MULTICAST_GROUP, description="an IPv4 multicast address")
    multicast_port: int = Field(MULTICAST_PORT, ge=1, le=65535, description="of UDP")
    multicast_interface: str = Field("0.0.0.0", description="an IPv4 address of this machine; 0.0.0.0: it chooses")
    copies: int = Field(3, ge=1, le=COPIES_MAX, description="of each log, or as many as there are nodes")
    node_timeout_ms: int = Field(
        3_000, ge=100, description="a node that is silent for so long is down; one whose process is gone is so at once"
    )
    promote_wait_ms: int = Field(
        2_000, ge=0, description="how long a promotion waits for copies that are silent, once one has answered"
    )
    mirror_lag_time_ms: int = Field(
        4_000,
        ge=100,
        description="a mirror that has not caught up for so long leaves the in-sync set; below syncFlushTimeout, so "
        "that publishes are confirmed without it",
    )
    replace_after_ms: int = Field(
        600_000, ge=1_000, description="a copy whose node is gone for so long is made on another one"
    )
    homes: bool = Field(
        False, description="every node is home to a log of its own; always so when no [[cluster.logs]] are given"
    )
    secret: SecretStr | None = Field(
        None, description="proven by nodes to each other on replication ports, the same on all; it is never shown"
    )
    secret_file: Path | None = Field(
        None, description="a file that holds the secret, or while it is changed two, a line each"
    )

    @field_serializer("secret")
    def _hidden(self, secret: SecretStr | None) -> None:
        """Nobody sees it, and nobody uses stars for it by mistake."""

    @field_validator("multicast_group", "multicast_interface")
    @classmethod
    def _ipv4(cls, text: str, info: ValidationInfo) -> str:
        try:
            address = IPv4Address(text)
        except ValueError:
            raise ValueError(f"{text!r} is no IPv4 address") from None
        if address.is_multicast != (info.field_name == "multicast_group"):
            raise ValueError(f"{text} is {'an' if address.is_multicast else 'no'} IPv4 multicast address")
        return text

    @field_validator("logs")
    @classmethod
    def _number(cls, logs: tuple[LogAssignment, ...]) -> tuple[LogAssignment, ...]:
        """A log without a number has that of its place."""
        return tuple(
            log if log.number is not None else log.model_copy(update={"number": place})
            for place, log in enumerate(logs)
        )

    @property
    def cluster_id(self) -> UUID:
        return self.id or uuid5(_NAMESPACE, self.name)

    @property
    def looks(self) -> bool:
        """Whether a node that is in no cluster looks for one."""
        return bool(self.join) or self.discovery == "multicast"

    @property
    def named(self) -> bool:
        """Whether somebody has said which cluster it is, by its id or its name."""
        return self.id is not None or "name" in self.model_fields_set

    def is_this(self, cluster_id: UUID, name: str) -> bool:
        """Whether a cluster may be the one that is meant: nothing that was said of it is wrong."""
        if self.id is not None:
            return self.id == cluster_id
        return not self.named or name == self.name

    def known_as(self, cluster_id: UUID, name: str) -> Self:
        """The same, of the cluster that the node has turned out to be in."""
        return self.model_copy(update={"id": cluster_id, "name": name})

    def log_id(self, log: LogAssignment) -> UUID:
        return uuid5(self.cluster_id, log.name)

    def member(self, node_id: str) -> Member:
        """Raises ConfigError for a node that is not one."""
        for member in self.members:
            if member.id == node_id:
                return member
        raise ConfigError(f"node {node_id!r} is not in [[cluster.members]]; add it there or set node.id to one of them")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("give the secret, or the secret_file, not both")
        if self.members and self.looks:
            raise ValueError("members found a cluster, join and multicast look for one; give only one of them")
        ids = [member.id for member in self.members]
        if len(set(ids)) != len(ids):
            raise ValueError(f"[[cluster.members]] names a node twice: {', '.join(ids)}")
        names = [log.name for log in self.logs]
        if len(set(names)) != len(names):
            raise ValueError(f"[[cluster.logs]] names a log twice: {', '.join(names)}")
        numbers = [log.log_number for log in self.logs]
        if len(set(numbers)) != len(numbers):
            given = ", ".join(f"{log.name} {log.log_number}" for log in self.logs)
            raise ValueError(
                f"[[cluster.logs]] gives a number twice ({given}); write `number` for every log or for none"
            )
        for log in self.logs:
            if unknown := set(log.nodes) - set(ids):
                raise ValueError(
                    f"log {log.name!r} is assigned to {', '.join(sorted(unknown))}, not in [[cluster.members]]"
                )
        return self


class NodeSettings(_Section):
    """This node."""

    id: Name = "n1"
    data_dir: Path = Path("mirrorlog-data")
    witness: bool = Field(False, description="it votes and holds no messages")
    insecure: bool = Field(
        False,
        description="it may be reached by other machines although it trusts whoever says that he is a node, and serves "
        "whoever comes while the cluster has no users",
    )
    first_admin: Name | None = Field(
        None, description="the administrator whom a cluster without users gets from this node"
    )
    first_admin_file: Path | None = Field(None, description="a file that holds his password and nothing else")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.first_admin is None) != (self.first_admin_file is None):
            raise ValueError("first_admin and first_admin_file are needed together")
        return self


class ListenSettings(_Section):
    """Where a port is bound, and where others reach it: each stands for the other. Absent both: as in
    [[cluster.members]]; without that table on the host of the replication port, and without that on 127.0.0.1."""

    bind: Address | None = None
    advertise: Address | None = Field(None, description="where others reach it; needed when `bind` is any address")


class GrpcSettings(ListenSettings):
    enabled: bool = True


class HttpSettings(ListenSettings):
    enabled: bool = True
    metrics: Literal["login", "open"] = Field(
        "login", description="open: for everybody; login: where there are users, for those with a tag that may look"
    )


TlsMode = Literal["off", "server", "mutual"]


class TlsSettings(_Section):
    """Which ports speak TLS. server: whoever connects sees the node's certificate; mutual: and shows one itself."""

    certificate: Path | None = Field(None, description="of this node, PEM; with those between it and the authority")
    key: Path | None = Field(None, description="of the certificate, PEM, not encrypted")
    ca: Path | None = Field(
        None, description="certificates of the authorities whose word is taken for nodes, and for clients where mutual"
    )
    client_ca: Path | None = Field(
        None, description="and of others, whose word is taken for clients alone: not on replication ports"
    )
    replication: Literal["off", "mutual"] = Field("off", description="the same on all nodes")
    client: TlsMode = Field("off", description="the same on all nodes: doors reach other nodes as their own")
    grpc: TlsMode = "off"
    http: TlsMode = "off"

    @property
    def files(self) -> tuple[Path, Path, Path]:
        """Certificate, key and authorities. Only when a port speaks TLS."""
        assert self.certificate is not None
        assert self.key is not None
        assert self.ca is not None
        return self.certificate, self.key, self.ca

    @property
    def is_used(self) -> bool:
        """Whether any port speaks TLS."""
        return any(getattr(self, port) != "off" for port in _PORTS)

    @model_validator(mode="after")
    def _check(self) -> Self:
        used = [port for port in _PORTS if getattr(self, port) != "off"]
        missing = [name for name in ("certificate", "key", "ca") if getattr(self, name) is None]
        if used and missing:
            raise ValueError(f"{used[0]} needs {', '.join(missing)}")
        if self.client_ca is not None and "mutual" not in (self.client, self.grpc, self.http):
            raise ValueError("client_ca is for ports that ask clients for certificates: client, grpc or http = mutual")
        return self


class LimitSettings(_Section):
    """Named limits; what is above one is answered with its name."""

    max_record_bytes: int = Field(4 * _MIB, ge=1, le=64 * _MIB, alias="maxMessageSize")
    max_batch_bytes: int = Field(8 * _MIB, ge=64 * _KIB, le=256 * _MIB)
    max_connections: int = Field(
        4096, ge=1, description="of clients that are let in; less where the limit of open files is too low for so many"
    )
    max_links: int = Field(
        512, ge=16, description="of nodes that are let in on the replication port: members, mirrors, those that join"
    )
    max_strangers: int = Field(
        1024,
        ge=8,
        description="connections that have not greeted, or not logged in where there are users, on each port; for one "
        "more the oldest of the address that has most goes",
    )
    max_strangers_per_address: int = Field(
        256, ge=4, description="and of one address (of IPv6: one /64); for one more its oldest goes"
    )
    unpacking_bytes: int = Field(
        128 * _MIB, ge=_MIB, description="of compressed batches that wait to be opened before they are stored"
    )
    max_queues: int = Field(100_000, ge=1)
    max_groups_per_queue: int = Field(10_000, ge=1)
    max_holds_per_queue: int = Field(64, ge=1, le=1000, description="of landings, ended ones among them")
    max_producers: int = Field(100_000, ge=1, description="remembered per log, with a queue each; the longest idle go")
    producer_expiry_ms: int = Field(
        24 * 3600 * 1000,
        ge=60_000,
        description="idle for longer, by the append times of its log, a producer is forgotten",
    )
    max_waiting_fetches: int = Field(10_000, ge=1)
    max_waiting_confirms: int = Field(100_000, ge=1)
    credit_bytes: int = Field(
        64 * _MIB, ge=1, description="of one producer in one queue, not confirmed by all copies, and one batch more"
    )
    credit_batches: int = Field(4096, ge=1, description="and in so many batches")
    max_unconfirmed_bytes: int = Field(
        1024 * _MIB, ge=64 * _KIB, description="of a whole log; producers are granted less from half of it on"
    )
    max_subscriptions: int = Field(100_000, ge=1, description="of all connections of the node")
    max_unsettled_records: int = Field(
        1_000_000, ge=1, description="given to one subscriber and not settled; a smaller prefetch counts"
    )
    attribute_runs_max: int = Field(
        1_000_000,
        ge=1,
        description="per log: stretches of unsettled records with a priority, a time to live or a delay; some 50 bytes "
        "of memory each",
    )
    max_unsettled_bytes: int = Field(256 * _MIB, ge=1024, description="and of so many bytes")
    max_ranges_per_settle: int = Field(16_384, ge=1, le=1_000_000, description="in one settlement; send several")
    subscriber_return_ms: int = Field(
        30_000,
        ge=0,
        description="a new master waits so long for subscribers of queues with auto-delete before their absence counts",
    )
    hello_timeout_ms: int = Field(
        5_000, ge=1, description="a connection that has not greeted by then, or not logged in, is closed"
    )
    frame_timeout_ms: int = Field(30_000, ge=1, description="a frame once begun must be complete within this time")
    idle_timeout_ms: int = Field(120_000, ge=1, description="a client that sends nothing, not even PING, is closed")
    outgoing_bytes_max: int = Field(64 * _MIB, ge=_MIB, description="per connection, queued to a slow reader")
    outgoing_bytes_total: int = Field(
        512 * _MIB, ge=_MIB, description="of all connections, read from disk and not taken; above half of it not more"
    )
    incoming_bytes_total: int = Field(
        512 * _MIB, ge=_MIB, description="of all connections, of frames that were begun and are not complete"
    )
    memory_bytes: int | None = Field(
        None,
        ge=_MIB,
        description="that the node and its doors may have; absent: what the machine, or the container, has",
    )
    memory_high_percent: float = Field(
        70, ge=0, le=100, description="of that; with more in use data is refused, acks and control go on; 0: never"
    )
    memory_low_percent: float = Field(60, ge=0, le=100, description="of that; below it data is taken again")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if 0 < self.memory_high_percent < self.memory_low_percent:
            raise ValueError("memory_low_percent cannot be above memory_high_percent")
        return self


class LogSettings(_Section):
    """How logs lie on this node's disk."""

    segment_bytes: int = Field(1024 * _MIB, ge=256 * _KIB, alias="mappedFileSizeCommitLog")
    populate_bytes: int = Field(8 * _MIB, ge=0, description="window of writable pages ahead of the tail")
    prepare_bytes: int = Field(
        2048 * _MIB, ge=0, description="how far ahead of the tail pages are brought into the page cache in spare time"
    )
    kept_mapped_bytes: int = Field(
        256 * _MIB, ge=0, description="what is further behind the end is let go from memory and read from disk"
    )
    flush_interval_ms: int = Field(
        500, ge=1, alias="flushIntervalCommitLog", description="how often a log is flushed that nobody waits for"
    )
    flush_bytes: int = Field(
        256 * _MIB, ge=_MIB, description="and how much at most is appended before it is flushed earlier"
    )
    retention_ms: int | None = Field(
        None, ge=1000, description="segments whose last batch is older are freed; absent: kept for ever"
    )
    retention_bytes: int | None = Field(
        None, ge=_MIB, description="the oldest segments are freed while the log is larger; absent: no limit"
    )
    retention_on_low_disk: bool = Field(
        False, description="while the master's disk is low the oldest segment is freed, one a second"
    )
    retention_copy_percent: float = Field(
        12.5,
        ge=0,
        le=50,
        description="batches of queues with longer limits are appended once more, and their segments freed, where they "
        "are at most so much of these; 0: never",
    )
    retention_copy_bytes: int = Field(32 * _MIB, ge=64 * _KIB, description="and at most so much of them a second")
    hold_bytes: int = Field(
        -1, ge=-1, description="a landing's hold that keeps more of the log is ended; -1: no limit, a full disk is one"
    )
    tier_locations: tuple[str, ...] | None = Field(
        None,
        description="where tables of tiered landings may be, each a path or URL; absent: anywhere in a cluster without "
        "users, nowhere in one with",
    )
    disk_low_percent: float = Field(
        10, ge=0, le=99, description="of the disk; with less free, or no room for another segment, it is warned"
    )
    disk_low_bytes: int = Field(32 * _GIB, ge=0, description="never more than this must be free")
    disk_full_percent: float = Field(
        2, ge=0, le=99, description="of the disk; with less free data is refused, acks and control go on"
    )
    disk_full_bytes: int = Field(4 * _GIB, ge=0, description="never more than this must be free")
    reserve_bytes: int = Field(
        8 * _MIB,
        ge=0,
        description="left in a segment for acks and control when no next one can be made; at most 1/8 of it",
    )
    copies_aside_max: int = Field(
        4, ge=1, description="former copies of a log that a mirror keeps; with so many it does not begin anew again"
    )
    send_at_once_bytes: int = Field(2 * _MIB, ge=4 * _KIB, description="largest batch run read at once for a consumer")

    @property
    def reserve(self) -> int:
        """`reserve_bytes`, but at most an eighth of a segment."""
        return min(self.reserve_bytes, self.segment_bytes // 8)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.disk_full_percent > self.disk_low_percent or self.disk_full_bytes > self.disk_low_bytes:
            raise ValueError(
                "disk_full_percent and disk_full_bytes cannot be above disk_low_percent and disk_low_bytes"
            )
        return self


class HaSettings(_Section):
    """Replication. Names and defaults are RocketMQ's where they mean the same."""

    send_heartbeat_interval_ms: int = Field(5_000, ge=1, alias="haSendHeartbeatInterval")
    housekeeping_interval_ms: int = Field(20_000, ge=1, alias="haHousekeepingInterval")
    transfer_batch_bytes: int = Field(
        _MIB,
        ge=1024,
        alias="haTransferBatchSize",
        description="RocketMQ's 32 KiB would cut our batches of 256 KiB; a frame carries whole batches",
    )
    sync_flush_timeout_ms: int = Field(5_000, ge=1, alias="syncFlushTimeout")
    start: Literal["begin", "last-segment"] = Field(
        "begin",
        description="where an empty mirror begins; at the last segment it is in sync only once older records are gone",
    )
    reconnect_interval_ms: int = Field(
        500,
        ge=1,
        description="the longest wait between two attempts of a mirror, the first is 20 ms; RocketMQ always waits 5 s",
    )
    in_flight_bytes_max: int = Field(32 * _MIB, ge=_KIB, description="sent to one mirror and not yet acked")
    slave_fall_behind_bytes_max: int = Field(
        256 * _MIB,
        ge=1,
        alias="haMaxGapNotInSync",
        description="a mirror further behind is shown as not caught up; the static in-sync set never shrinks",
    )


class Settings(_Section):
    """All settings of one node."""

    cluster: ClusterSettings = ClusterSettings()
    node: NodeSettings = NodeSettings()
    client: ListenSettings = ListenSettings()
    replication: ListenSettings = ListenSettings()
    grpc: GrpcSettings = GrpcSettings()
    http: HttpSettings = HttpSettings()
    tls: TlsSettings = TlsSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    ha: HaSettings = HaSettings()

    @property
    def member(self) -> Member:
        """This node, with the addresses that others use. Raises ConfigError when it is not in [[cluster.members]]."""
        return _advertised(self.cluster.member(self.node.id), self)

    @property
    def client_bind(self) -> str:
        return self.client.bind or self.member.client

    @property
    def replication_bind(self) -> str:
        return self.replication.bind or self.member.replication

    @property
    def grpc_bind(self) -> str | None:
        """None when the node runs no gRPC door."""
        if not self.grpc.enabled:
            return None
        return self.grpc.bind or self.member.grpc

    @property
    def http_bind(self) -> str | None:
        """None when the node runs no HTTP door."""
        if not self.http.enabled:
            return None
        return self.http.bind or self.member.http

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.log.segment_bytes < self.limits.max_batch_bytes:
            raise ValueError("log.segment_bytes must hold at least one batch of limits.max_batch_bytes")
        if self.ha.housekeeping_interval_ms <= self.ha.send_heartbeat_interval_ms:
            raise ValueError(
                "ha.haHousekeepingInterval must be above ha.haSendHeartbeatInterval, or idle links would flap"
            )
        if self.limits.outgoing_bytes_max < 2 * self.limits.max_batch_bytes:
            raise ValueError("limits.outgoing_bytes_max must hold two batches of limits.max_batch_bytes")
        if self.limits.max_batch_bytes < self.limits.max_record_bytes:
            raise ValueError("limits.max_batch_bytes must hold at least one record of limits.max_record_bytes")
        return self


def load_settings(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Settings:
    """The settings alone, as `load`."""
    return load(file, overrides, environment).settings


@dataclass(frozen=True, slots=True)
class Loaded:
    """`origins`: by section and field, where a value was given last, or what it was derived from; a value that was
    given nowhere is not in it."""

    settings: Settings
    origins: Mapping[tuple[str, str], str]


def load(
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Loaded:
    """Read the settings from `file` (TOML), the environment and `overrides` (`section.key=value`, TOML or text).

    `environment` is the process's own by default. Raises ConfigError: one line that names the key and what is wrong.
    """
    layers = (
        (str(file), _read_file(file) if file is not None else {}),
        ("environment", _parse_environment(os.environ if environment is None else environment)),
        ("command line", _parse_overrides(overrides)),
    )
    merged: dict[str, dict[str, Any]] = {}
    origins: dict[tuple[str, str], str] = {}
    for origin, layer in layers:
        for section, values in layer.items():
            named = _by_field_name(section, values)
            merged.setdefault(section, {}).update(named)
            origins.update({(section, name): origin for name in named})
    if file is not None and origins.get(("cluster", "secret")) == str(file):
        check_private(file, "cluster.secret stands in a file that others must not read:")
    try:
        settings = Settings.model_validate(merged)
    except ValidationError as error:
        raise ConfigError(_one_line(error)) from None
    settings, derived = _with_hosts(settings)
    return Loaded(_with_defaults(settings), origins | derived)


def _with_hosts(settings: Settings) -> tuple[Settings, dict[tuple[str, str], str]]:
    """Ports of which nothing is said are where the port is by which other nodes reach this one; with their origins.

    Who reaches the one shall reach the others: what is bound on loopback alone is in every view, and of no use there.
    """
    source = None if settings.cluster.members else _host_source(settings)
    if source is None:
        return settings, {}
    model: ListenSettings = getattr(settings, source)
    sections: dict[str, ListenSettings] = {}
    origins: dict[tuple[str, str], str] = {}
    for name in _PORTS:
        section: ListenSettings = getattr(settings, name)
        if _is_set(section) or not getattr(section, "enabled", True):
            continue
        told = {
            key: f"{given.rpartition(':')[0]}:{_DEFAULT_PORTS[name]}"
            for key in ("bind", "advertise")
            if (given := getattr(model, key)) is not None
        }
        sections[name] = section.model_copy(update=told)
        origins.update({(name, key): f"derived from {source}" for key in told})
    return settings.model_copy(update=sections), origins


def _host_source(settings: Settings) -> str | None:
    """The section whose host stands for those that are absent. None: loopback does.

    Only replication, for it is to be reached by other machines: a node that shows them its metrics does not open its
    other ports by that. One that looks for a cluster has to be reached, so there it is the first one that is set.
    """
    candidates = ("replication", *_PORTS) if settings.cluster.looks else ("replication",)
    for name in candidates:
        section: ListenSettings = getattr(settings, name)
        if _is_set(section) and getattr(section, "enabled", True):
            # What nobody can dial is refused under its own name.
            return None if _is_anywhere(section.advertise or section.bind or "") else name
    return None


def _is_set(section: ListenSettings) -> bool:
    return section.bind is not None or section.advertise is not None


def _with_defaults(settings: Settings) -> Settings:
    """A node without members knows itself alone, and a cluster without logs has one log on all its nodes."""
    cluster = settings.cluster
    if not cluster.members:
        own = Member(
            id=settings.node.id,
            **{name: getattr(settings, name).bind or _local(port) for name, port in _DEFAULT_PORTS.items()},
        )
        cluster = cluster.model_copy(update={"members": (_advertised(own, settings),)})
    if settings.node.witness and len(cluster.members) == 1:
        cluster = cluster.model_copy(update={"logs": (), "homes": True})
    elif not cluster.logs:
        first, *others = (member.id for member in cluster.members)
        log = LogAssignment(number=0, master=first, mirrors=tuple(others), copies=cluster.copies)
        cluster = cluster.model_copy(update={"logs": (log,), "homes": True})
    changed = settings.model_copy(update={"cluster": cluster})
    _check_reachable(changed)
    _check_seeds(changed)
    return changed


def _advertised(member: Member, settings: Settings) -> Member:
    """A node's own entry, with what its sections say. The table itself stays the same on every node."""
    told: dict[str, str | None] = {}
    for name in _PORTS:
        section: ListenSettings = getattr(settings, name)
        if not getattr(section, "enabled", True):
            told[name] = None
        elif section.advertise is not None:
            told[name] = section.advertise
    return member.model_copy(update=told)


def _check_reachable(settings: Settings) -> None:
    """Raises ConfigError for an address that nobody can dial, or a node that is no member."""
    for name in _PORTS:
        address = getattr(settings.member, name)
        if address is not None and _is_anywhere(address):
            raise ConfigError(
                f"{name}.bind: nobody can reach a node at {address}; set {name}.advertise to the address that "
                "others use"
            )


def _check_seeds(settings: Settings) -> None:
    """Raises ConfigError for a node that tells others, on other machines, to reach it on theirs."""
    if all(map(_is_loopback, settings.cluster.join)):
        return
    for name in ("replication", *_PORTS):  # that one first: the others may follow from it
        own = getattr(settings.member, name)
        if own is not None and _is_loopback(own):
            off = f", or {name}.enabled=false" if name in ("grpc", "http") else ""
            raise ConfigError(
                f"{name}: those on other machines cannot reach this node at {own}; set {name}.advertise, or "
                f"{name}.bind, to an address that they can use{off}"
            )


def _is_anywhere(address: str) -> bool:
    """Whether its host means every address of the machine, in any spelling: `0.0.0.0`, `0`, `[::]`, `[::0]`."""
    return not split_address(address)[0].strip("0.:")


def _is_loopback(address: str) -> bool:
    host = split_address(address)[0]
    return host in ("localhost", "::1") or host.startswith("127.")


def _local(port: int) -> str:
    return f"127.0.0.1:{port}"


def _read_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}; give an existing file to --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None


def _parse_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """`MIRRORLOG__LOG__SEGMENT_BYTES=…` → {"log": {"SEGMENT_BYTES": …}}."""
    nested: dict[str, dict[str, Any]] = {}
    for variable, text in environment.items():
        if variable.startswith(ENVIRONMENT_PREFIX):
            section, separator, key = variable.removeprefix(ENVIRONMENT_PREFIX).partition("__")
            if not separator or section.lower() not in Settings.model_fields:
                known = ", ".join(name.upper() for name in Settings.model_fields)
                raise ConfigError(f"environment variable {variable}: no such section; there are {known}")
            nested.setdefault(section.lower(), {})[key] = _value(section, key, text)
    return nested


def _parse_overrides(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """`a.b=value` → {"a": {"b": value}}."""
    nested: dict[str, dict[str, Any]] = {}
    for override in overrides:
        path, equals, text = override.partition("=")
        section, dot, key = path.partition(".")
        if not (equals and dot and key):
            raise ConfigError(f"--set {override!r}: write section.key=value, for example node.id=n1")
        nested.setdefault(section, {})[key] = _value(section, key, text)
    return nested


def _value(section: str, key: str, text: str) -> Any:
    """A secret is what was given, even if it looks like a number."""
    return text if (section.lower(), key.lower()) == ("cluster", "secret") else _toml_value(text)


def _toml_value(text: str) -> Any:
    """What is no TOML value is taken as text, so that nobody has to quote a name."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _by_field_name(section: str, values: Any) -> dict[str, Any]:
    """Either spelling of a key, in any case, under the one that Python uses: a later layer replaces an earlier one."""
    if not isinstance(values, dict):
        raise ConfigError(f"{section}: a table of keys is expected, not {values!r}")
    field = Settings.model_fields.get(section)
    fields: dict[str, FieldInfo] = getattr(field.annotation, "model_fields", {}) if field is not None else {}
    names: dict[str, str] = {}
    for name, each in fields.items():
        names[name.lower()] = names[(each.alias or name).lower()] = name
    return {names.get(str(key).lower(), str(key)): value for key, value in values.items()}


def _one_line(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"]) or "settings"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{key}: no such key{_meant(first['loc'])}{more}"
    if first["type"] == "string_pattern_mismatch":
        shown = repr(first["input"][:_SHOWN_CHARS])
        return f"{key}: {shown} {PATTERN_WORDS[first['ctx']['pattern']]}{more}"
    return f"{key}: {first['msg'].removeprefix('Value error, ')}{more}"


def _meant(place: Sequence[int | str]) -> str:
    """What a key that nobody knows comes nearest to: the same one elsewhere, else one of its section, else any."""
    *section, wrong = (str(part) for part in place)
    here = {spelling: ".".join([*section, name]) for spelling, name in _spellings(section).items()}
    elsewhere = {
        spelling: f"{other}.{name}" for other in Settings.model_fields for spelling, name in _spellings([other]).items()
    }
    for fields, cutoff in ((elsewhere, 1.0), (here, 0.6), (elsewhere, 0.8)):
        if found := get_close_matches(wrong.lower(), fields, n=1, cutoff=cutoff):
            return f"; did you mean {fields[found[0]]}?"
    return ""


def _spellings(section: Sequence[str]) -> dict[str, str]:
    """The keys of a section, or the sections, each by both of its names in small letters."""
    model: Any = Settings
    for part in section:
        field = model.model_fields.get(part)
        model = getattr(field, "annotation", None)
        if not hasattr(model, "model_fields"):
            return {}
    found = {name.lower(): name for name in model.model_fields}
    return found | {(each.alias or name).lower(): each.alias or name for name, each in model.model_fields.items()}


def check_private(file: Path, what: str) -> None:
    """Whether a file with a secret keeps it: where it is this user's nobody else may read it, where it is another's
    (root's) a group may. A file that is not there is not looked at. Raises ConfigError."""
    try:
        found = file.stat()
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & (0o077 if found.st_uid == os.geteuid() else 0o027):
        raise ConfigError(f"{what} {file} is open to others (mode {mode:04o}): chmod 600 {file}")


def split_address(address: str) -> tuple[str, int]:
    """`host:port` → (host, port), brackets of an IPv6 address removed. Raises ConfigError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)
